"""Ids of refused requests, shared by the answer and the line of the log."""

import secrets
from itertools import count
from typing import Final

_RUN: Final = secrets.token_hex(4)  # of this process, so that ids of two runs of a hub differ
_NUMBERS: Final = count(1)


def next_request_id() -> str:
    """Return an id that no other request of this process has."""
    return f"{_RUN}-{next(_NUMBERS):x}"
