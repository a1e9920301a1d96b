"""Ids of requests that were refused: what an answer and a line of the log have in common."""

import secrets
from itertools import count
from typing import Final

_RUN: Final = secrets.token_hex(4)  # of this process, so that ids of two runs of a hub differ
_NUMBERS: Final = count(1)


def next_request_id() -> str:
    """An id that no other request of this process has."""
    return f"{_RUN}-{next(_NUMBERS):x}"
