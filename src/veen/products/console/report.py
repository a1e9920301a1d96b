"""Pages made of sections: facts, a picture, a table. The template `report.html` shows any of them.

A section is the form of facts for people; the twin of the page has the same facts as data of their own.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class DigestCell:
    """Hex digits that are shown cut, with all of them at hand."""

    digits: str


@dataclass(frozen=True, slots=True)
class MomentCell:
    """A time in seconds."""

    seconds: int


@dataclass(frozen=True, slots=True)
class LinkCell:
    """A path of the console, from its root on."""

    text: Any
    path: str


@dataclass(frozen=True, slots=True)
class MarkCell:
    """A state in a word: `kind` is good, partly, bad or muted."""

    text: str
    kind: str


Cell = Any  # text, a number, None, or one of the above


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A card of a page. `note` stands under the title, `empty` in place of a table without rows."""

    title: str
    note: str = ""
    facts: tuple[tuple[str, Cell], ...] = ()
    picture: str = ""  # SVG
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Cell, ...], ...] = ()
    empty: str = ""
    kind: str = ""  # "bad" or "" of the card
    text: str = ""  # shown as it is, such as JSON
    folded: bool = field(default=False)  # the table is behind a summary: the picture says the same
