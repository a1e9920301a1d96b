"""Agreements and other operations, each by its own fold, under no policy: nobody has special rights (001 spec-3).

The nouns of overlays that other packages bring follow them.
"""

from functools import cache
from typing import Any, Final

from veen.overlays.framework.nouns import Noun
from veen.overlays.framework.plain import plain
from veen.overlays.framework.registry import BUILTIN
from veen.overlays.operations.nouns import NOUNS
from veen.products.console.events import FoldedStreams
from veen.products.console.pages.common import basis, now
from veen.products.console.report import DigestCell, MomentCell, Section
from veen.products.console.views import CONSOLE, Console, PageView, Query, stream_word

_ORDER: Final = ("agreement", "access", "delegation", "paid", "publication", "recovery", "audit", "mirror")


@cache
def _nouns() -> dict[str, tuple[str, Noun]]:
    """Return the nouns of the page by name, with the commands of their groups."""
    nouns = {name: (f"veen op {name}", NOUNS[name]) for name in _ORDER}
    for overlay in BUILTIN.with_installed().values():
        if overlay.name not in BUILTIN:
            for noun in overlay.nouns:
                group = overlay.name if noun.name == overlay.name else f"{overlay.name} {noun.name}"
                nouns[group] = (f"veen {group}", noun)
    return nouns


async def operations(console: Console, query: Query) -> PageView:
    sections: list[Section] = []
    data: dict[str, Any] = {}
    streams: dict[bytes, FoldedStreams] = {}
    command = "veen op agreement list STREAM"
    for name, (group, noun) in _nouns().items():
        folded = await console.events.fold(noun.fold(), now=now())
        facts, columns, listed = noun.list(folded.state, folded.as_of)
        rows = [tuple(map(_cell, columns, row)) for row in listed]
        data[name] = {**plain(facts), **folded.about()}
        if not rows and not folded.issues:
            continue
        if not streams:
            command = f"{group} list {stream_word(folded.streams[0].keys)}"
        for stream in folded.streams:
            streams[stream.keys.stream_id] = folded
        sections.append(Section(title=name.capitalize(), note=noun.about, columns=tuple(columns), rows=tuple(rows)))
        sections += [part for part in basis(folded) if part.title != "What this rests on"]
    what = (
        "every entry was read and verified, and each state was folded here."
        if streams
        else ("no stream of your keyring has operations.")
    )
    return PageView(
        template="report.html",
        title="Agreements and operations",
        command=command,
        data=data,
        verified_by=CONSOLE if streams else None,
        verified_what=what,
        sections=tuple(sections),
    )


def _cell(column: str, value: Any) -> Any:
    value = plain(value)
    if column in ("hub_ts", "expires") and isinstance(value, int):
        return MomentCell(value)
    return DigestCell(value) if isinstance(value, str) and len(value) == 64 else value
