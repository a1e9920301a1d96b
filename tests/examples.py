"""How many examples Hypothesis draws for a law that wants another number than the profile has."""

from typing import Any

from hypothesis import settings

QUICK = 15  # what the profile of `make check` draws
_USUAL = 100  # what the profile of `make explore` draws; that of `make test` draws half
_LEAST = 10


def examples(count: int, **others: Any) -> settings:
    """`count` where the profile draws 100, and in proportion where it draws more or fewer; `others` as for settings."""
    return settings(max_examples=max(count * settings().max_examples // _USUAL, min(count, _LEAST)), **others)
