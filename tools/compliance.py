"""Writes the tables of docs/compliance.md that have a row for each section of the specifications.

    python tools/compliance.py           write them
    python tools/compliance.py --check   exit 1 if the page is not what this program writes

docs/spec/headings.json lists the sections and where we part from the text on purpose. Which requirements a section has
stands in docs/requirements.md, and which of them no test demonstrates in docs/requirements-open.md.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "compliance.md"
HEADINGS: Final = ROOT / "docs" / "spec" / "headings.json"
BEGIN: Final = "<!-- sections: written by tools/compliance.py -->\n"
_REQUIREMENT: Final = re.compile(r"^- (\S+) \| .* \| (MUST|SHOULD|MAY) \| (.*)$", re.MULTILINE)
_SOURCE: Final = re.compile(
    r"\b(?P<document>00[0234]|spec-[1-5]|products|query|ID|WAL)\b|§(?P<section>\d+(?:\.\d+)*)|(?P<profile>[A-Z]+0\.\d+)"
)


class Requirement(NamedTuple):
    """A line of docs/requirements.md: where it comes from, and the decisions that read it."""

    name: str
    sections: frozenset[tuple[str, str]]  # document, section
    decisions: tuple[str, ...]


def requirements(text: str) -> list[Requirement]:
    """Return the requirements of the inventory."""
    rows = []
    for name, _, source in _REQUIREMENT.findall(text):
        place, document, sections = source.partition("[")[0], "", set()
        for match in _SOURCE.finditer(place):
            document = match["document"] or ("spec-1" if match["profile"] else document)
            if section := match["section"] or match["profile"]:
                sections.add((document, section))
        rows.append(Requirement(name, frozenset(sections), tuple(re.findall(r"D-\d+[a-z]?", source))))
    return rows


def open_names(text: str) -> set[str]:
    """Return the requirements that docs/requirements-open.md lists."""
    return set(re.findall(r"^\| ([A-Z][A-Z0-9]*-\d+[a-z]?) \|", text, re.MULTILINE))


def parent_of(section: str) -> str:
    return section.rpartition(".")[0]


class Sections:
    """The sections of all documents, with the requirements that each states."""

    def __init__(self, headings: Sequence[Mapping[str, Any]], rows: Sequence[Requirement], not_done: set[str]) -> None:
        self.headings, self.rows, self.not_done = headings, rows, not_done
        self._by_name = {heading["document"]: heading for heading in headings}
        self._cited = {cited for row in rows for cited in row.sections}

    def requirements_of(self, document: str, section: str) -> list[Requirement]:
        """Return the requirements of a section and of the sections in it."""
        names = {*self._by_name[document]["sections"], *(name for where, name in self._cited if where == document)}
        inside = {name for name in names if self._is_inside(document, name, section)}
        return [row for row in self.rows if any((document, name) in row.sections for name in inside)]

    def around(self, document: str, section: str) -> str | None:
        """Return the section around this one that states requirements for all that is in it."""
        while section := parent_of(section):
            if (document, section) in self._cited:
                return section
        return None

    def _is_inside(self, document: str, name: str, section: str) -> bool:
        chapter = self._by_name[document].get("chapters", {}).get(section)
        return name.startswith((f"{section}.", f"{chapter}.")) if name != section else True

    def different(self, document: str, section: str) -> list[str]:
        """Return the decisions by which a section, or one in it, is done differently."""
        decisions = self._by_name[document]["differently"]
        names = [each for name, of in decisions.items() if self._is_inside(document, name, section) for each in of]
        return sorted(set(names), key=_number)

    def row(self, document: str, section: str) -> str:
        """Return the row of one section."""
        source = self._by_name[document].get("read_as", document)
        stated, different = self.requirements_of(source, section), self.different(source, section)
        missing = [row.name for row in stated if row.name in self.not_done]
        silent = self._by_name[source].get("silent", {}).get(section)
        decisions = sorted({*different, *(each for row in stated for each in row.decisions)}, key=_number)
        if missing:
            state = f"not done: {', '.join(missing)}"
        elif different:
            state = f"differently: {', '.join(different)}"
        elif stated:
            state = "done"
        elif silent is not None:
            state = silent
        else:
            around = self.around(source, section)
            state = f"as §{around}" if around is not None else "not explained"
        names = f"as {source}" if source != document else ", ".join(row.name for row in stated) or "–"
        return f"| §{section} | {state} | {names} | {', '.join(decisions) or '–'} |"

    def tables(self) -> str:
        """Return a table for each document."""
        parts = []
        for heading in self.headings:
            rows = [self.row(heading["document"], section) for section in heading["sections"]]
            head = f"### {heading['title']}\n\n| section | state | requirements | decisions |\n|---|---|---|---|\n"
            parts.append(head + "\n".join(rows) + "\n")
        return "\n".join(parts)


def _number(decision: str) -> tuple[int, str]:
    match = re.fullmatch(r"D-(\d+)([a-z]?)", decision)
    assert match is not None, decision  # noqa: S101 - headings.json and requirements.md name decisions so
    return int(match[1]), match[2]


def read() -> Sections:
    """Return the sections as the files on disk have them."""
    docs = ROOT / "docs"
    return Sections(
        json.loads(HEADINGS.read_text("utf-8")),
        requirements((docs / "requirements.md").read_text("utf-8")),
        open_names((docs / "requirements-open.md").read_text("utf-8")),
    )


def page() -> str:
    """Return the page with its tables written anew."""
    text = PAGE.read_text("utf-8")
    return text[: text.index(BEGIN)] + BEGIN + "\n" + read().tables()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only compare")
    text = page()
    if not parser.parse_args().check:
        PAGE.write_text(text, "utf-8")
    elif PAGE.read_text("utf-8") != text:
        print("docs/compliance.md is not current: run python tools/compliance.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
