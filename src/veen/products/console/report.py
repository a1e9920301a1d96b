"""Pages made of sections: facts, a picture, a table. The template `report.html` renders any of them.

A section is the form of facts for people; the twin of the page has the same facts as separate data.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class DigestCell:
    """Hex digits, shown shortened."""

    digits: str


@dataclass(frozen=True, slots=True)
class MomentCell:
    """A time in seconds."""

    seconds: int


@dataclass(frozen=True, slots=True)
class LinkCell:
    """A link to a path of the console, from its root."""

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
    """A card of a page. `note` is below the title, `empty` replaces a table without rows."""

    title: str
    note: str = ""
    facts: tuple[tuple[str, Cell], ...] = ()
    picture: str = ""  # SVG
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Cell, ...], ...] = ()
    empty: str = ""
    kind: str = ""  # "bad" or "" of the card
    text: str = ""  # shown unchanged, such as JSON
    folded: bool = field(default=False)  # the table is behind a summary: the picture says the same
