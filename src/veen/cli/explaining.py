"""The registry behind `veen explain`: every code a person can meet, what it means, where the spec says so, what to do.

A layer that brings codes of its own adds a module to SOURCES with a tuple EXPLANATIONS. A test walks the code base for
codes and fails if one is not explained, and parses every command that a fix names.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Final

__all__ = ["SOURCES", "Explanation", "explanation_of", "explanations", "part_of"]

SOURCES: Final = ("veen.cli.explained_hub", "veen.cli.explained_local", "veen.cli.explained_overlays")


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One code. Commands in `fixes` stand in backquotes and are real: a test parses them."""

    code: str
    means: str
    because: str
    spec: str
    fixes: tuple[str, ...]
    part_of: str | None = None  # the code that the hub answers with, if this one is a detail of it


@cache
def explanations() -> Mapping[str, Explanation]:
    """All codes, in the order in which their sources list them."""
    found = [explanation for source in SOURCES for explanation in import_module(source).EXPLANATIONS]
    return {explanation.code: explanation for explanation in found}


def explanation_of(code: str) -> Explanation | None:
    """By code, in any case; a detail also as `E.SEQ/CLIENT_SEQ`, and names that older documents use (D-55)."""
    wanted = code.strip().upper().replace("-", "_")
    known = explanations()
    if wanted in known:
        return known[wanted]
    if (detail := wanted.rpartition("/")[2]) in known:
        return known[detail]
    from veen.core.errors import RETIRED_CODES

    retired = RETIRED_CODES.get(wanted)
    return known.get(retired.detail_enum) if retired else None


def part_of(code: str) -> list[Explanation]:
    """The details under one code of the hub."""
    return [explanation for explanation in explanations().values() if explanation.part_of == code]
