"""Parts shared by pages over folds: links to entries, and the section about the inputs of a state."""

import time
from typing import Any

from veen.products.console.events import FoldedStreams
from veen.products.console.views import CONSOLE, DigestCell, LinkCell, MarkCell, PageView, Section


def now() -> int:
    return int(time.time())


def entry_link(folded: FoldedStreams, label: bytes, stream_seq: int) -> LinkCell | str:
    """Return the link to the page of an entry, by its place in the log."""
    place = folded.stream_at(label)
    text = f"entry {stream_seq}"
    if place is None:
        return text
    keys, epoch = place
    return LinkCell(text, f"/stream/{keys.stream_id.hex()}/{stream_seq}{f'?epoch={epoch}' if epoch else ''}")


def basis(folded: FoldedStreams) -> list[Section]:
    """Return the section of folded streams and ignored entries."""
    sections = [
        Section(
            title="What this rests on",
            note="Every entry of these streams was read and verified by this console, then folded here.",
            columns=("Stream", "Entries", "Not opened"),
            rows=tuple(
                (
                    LinkCell(str(stream.keys), f"/stream/{stream.keys.stream_id.hex()}"),
                    len(stream.events),
                    stream.unopened,
                )
                for stream in folded.streams
            ),
        )
    ]
    if folded.left_out:
        sections.append(
            Section(
                title="Left out",
                note="These streams are too long for a page to fold, or their first entries were pruned.",
                columns=("Stream",),
                rows=tuple((str(keys),) for keys in folded.left_out),
                kind="bad",
            )
        )
    if folded.issues:
        sections.append(
            Section(
                title="Counted for nothing",
                columns=("Entry", "Code", "Why"),
                rows=tuple(
                    (entry_link(folded, issue.label, issue.stream_seq), MarkCell(issue.code, "partly"), issue.what)
                    for issue in folded.issues
                ),
            )
        )
    return sections


def fold_page(
    folded: FoldedStreams, *, title: str, command: str, data: dict[str, Any], sections: list[Section], nothing: str
) -> PageView:
    """Return a page over one fold; without events of its kind the page says so, and nothing is marked as verified."""
    some = bool(folded.streams)
    what = "every entry was read and verified, and the state was folded here." if some else nothing
    return PageView(
        template="report.html",
        title=title,
        command=command,
        data={**data, **folded.about()},
        verified_by=CONSOLE if some else None,
        verified_what=what,
        sections=tuple([*sections, *basis(folded)] if some else []),
    )


def digest(data: bytes | None) -> DigestCell | None:
    return None if data is None else DigestCell(data.hex())
