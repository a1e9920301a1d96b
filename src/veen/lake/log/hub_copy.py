"""Copies of a hub's entries, for work that reads a directory: a hub's URL then serves as a directory does.

The copy holds chunks, the signed identity and the list of entries that the hub had erased, and grows: each fetch asks
only for entries that it lacks, up to the current heads of the hub. Entries are written as the hub sends them, byte for
byte, if the hub signed them.

A bad answer is retried and then refused: a page without an entry that the hub counts, an entry that it did not sign, an
entry that is damaged on its disk. The label then ends before it, so that a hole is never read as the log. Only entries
that the hub declares erased are left out, and recorded as such. Holes in copies of earlier versions are fetched again.
Everything in a copy is sealed: it discloses as much as the hub's pages.
"""

import json
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Final

from veen.client.session import HubSession
from veen.core.objects.identity import HubIdentity
from veen.core.verdict import Because, Reason, StatedBy, Verdict
from veen.io.local import OsFs
from veen.lake.log.columns import ENTRIES, select_columns
from veen.lake.log.entries import ReadSpec, batches
from veen.lake.log.options import HubAddress
from veen.lake.log.remote import HubFailed, HubLink, Item, RemoteHub, Run, runs, tables
from veen.lake.log.slices import Selection, Slice
from veen.storage import frame, layout
from veen.storage.pinned import LabelPin, LogView, pin, read_erased_spans, without

_CHUNK_BYTES: Final = 4 << 20  # of frames in one file of a copy
_TRIES: Final = 3  # of a bad answer
_MAX_UNPROVEN: Final = 1 << 17  # erased entries in a row without a receipt: a hub may claim that it had 2^60
_PARTITION_BYTES: Final = 64 << 20
_CHECKED: Final = select_columns(["stream_seq", "ok", "reason", "path"], ENTRIES)

Span = tuple[int, int]


class CopyIncomplete(HubFailed):
    """A hub that does not serve entries that it counts, or serves unsigned ones. The copy ends before them."""

    hint = (
        "Try again; if it stays so, `veen audit run` on the data directory of the hub says what is wrong with it, "
        "and a replica may have the entries."
    )


def fetch(address: HubAddress, root: Path, *, streams: Collection[bytes] | None = None) -> str:
    """Bring the copy below `root` up to the hub, or some streams of it; return the directory of the copy.

    Raise LockedError while another process does the same. A hub with another identity gets its own directory. Raise
    CopyIncomplete, after storing all that the hub serves, if it does not serve all.
    """
    with HubLink(address) as link:
        identity, sig, root_pk = link.session(_fetch_identity)
        directory = root / identity.hub_id.hex()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        (directory / layout.LOG).mkdir(mode=0o700, exist_ok=True)
        fs = OsFs(directory)
        with fs.lock():
            fs.replace(layout.IDENTITY, identity.to_bytes())
            fs.replace(layout.IDENTITY_SIG, sig)
            if root_pk is not None:
                fs.replace(layout.ROOT, root_pk.hex().encode() + b"\n")
            asked = _ask(address, streams).labels.values()
            wanted = [label_pin for label_pin in asked if streams is None or label_pin.stream_id in streams]
            _fetch_all(fs, link, wanted, identity)
    return str(directory)


def _ask(address: HubAddress, streams: Collection[bytes] | None = None) -> LogView:
    """Ask the hub for its heads."""
    hub = RemoteHub(address, _PARTITION_BYTES)
    return hub.pin(Selection(streams=None if streams is None else frozenset(streams)))


async def _fetch_identity(session: HubSession) -> tuple[HubIdentity, bytes, bytes | None]:
    """Return the hub's identity, checked against the pin, its signature, and the pinned root key if there is one."""
    answer = await session.refresh_identity()
    return answer.to_identity(), answer.sig, session.pin.root_pk


def _fetch_all(fs: OsFs, link: HubLink, wanted: Iterable[LabelPin], identity: HubIdentity) -> None:
    copy = pin(str(fs.root))
    erased = {label: list(spans) for label, spans in read_erased_spans(fs).items()}
    faults: list[str] = []
    for asked in wanted:
        label, before = asked.label, copy.labels.get(asked.label)
        label_fetch = _LabelFetch(fs, link, asked, identity, erased.setdefault(label, []))
        for span in _gaps_of(before, asked.size, erased[label]):
            if (fault := label_fetch.fetch(span)) is not None:
                faults.append(f"label {label.hex()}: {fault}")
                break  # what lies behind it is fetched when this is there
        if spans := {label.hex(): _join_spans(pairs) for label, pairs in sorted(erased.items()) if pairs}:
            fs.replace(layout.ERASED, json.dumps(spans).encode())
    if faults:
        more = f"; {len(faults) - 1} more labels" if len(faults) > 1 else ""
        raise CopyIncomplete(f"{link.address.url}: {faults[0]}{more}")


def _gaps_of(before: LabelPin | None, size: int, erased: Collection[Span]) -> Iterator[Span]:
    """Yield the positions that a copy lacks: its holes and those after its head."""
    if before is not None:
        yield from before.holes
    head = before.size if before is not None else 0
    yield from without((head + 1, size), list(erased))


def _join_spans(spans: Collection[Span]) -> list[Span]:
    joined: list[Span] = []
    for first, last in sorted(spans):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return joined


@dataclass(slots=True)
class _LabelFetch:
    """Fetches entries of one label into a copy, without a hole."""

    fs: OsFs
    link: HubLink
    asked: LabelPin
    identity: HubIdentity
    erased: list[Span]
    _unproven: int = field(default=0, init=False)

    def fetch(self, span: Span) -> str | None:
        """Fetch the entries of a span; return the fault of the first one that cannot be fetched."""
        pos, last = span
        tries = 0
        writer = _ChunkWriter(self.fs, self.asked.label)
        fault: str | None = None
        while pos <= last and tries < _TRIES:
            began = pos
            pos, fault = self._pages(writer, pos, last)
            tries = tries + 1 if pos == began else 1
        writer.flush()
        return None if pos > last else f"entry {pos}: {fault}"

    def _pages(self, writer: "_ChunkWriter", first: int, last: int) -> tuple[int, str | None]:
        """Take entries up to the first bad answer; return the position of the next entry, and what was wrong."""
        for ref in self.asked.chunks:
            if ref.end_seq < first or ref.start_seq > last:
                continue
            part = Slice.whole(ref)._replace(first=max(first, ref.start_seq), last=min(last, ref.end_seq))
            for run in runs(self.link, part):
                first, fault = self._take(writer, run, part)
                if fault is not None:
                    return first, fault
        return first, None

    def _take(self, writer: "_ChunkWriter", run: Run, part: Slice) -> tuple[int, str | None]:
        if run.erased:
            behind = run.first + len(run.rows)
            self._unproven = 0 if all("receipt" in row for row in run.rows) else self._unproven + len(run.rows)
            if self._unproven > _MAX_UNPROVEN:
                return run.first, f"the hub says that {self._unproven} in a row are erased, and shows no receipt"
            writer.flush()
            self.erased.append((run.first, behind - 1))
            return behind, None
        if run.rows:
            return run.first, str(run.rows[0]["reason"])
        spec = ReadSpec(columns=_CHECKED, level="full", identity=self.identity)
        rows = [row for table in tables(run, part.chunk, spec) for row in table.to_pylist()]
        good = len(list(takewhile(lambda row: row["ok"], rows[: len(run.items)])))
        for number, item in enumerate(run.items[:good], start=run.first):
            writer.add(number, item)
        behind = run.first + good
        return behind, None if good == len(run.items) else str(rows[good]["reason"])


class _ChunkWriter:
    """Frames of one label, written as chunks."""

    def __init__(self, fs: OsFs, label: bytes) -> None:
        self._fs, self._label = fs, label
        self._first, self._next = 0, 0
        self._frames = bytearray()

    def add(self, number: int, item: Item) -> None:
        """Add the entry at position `number`, which has been checked."""
        if number != self._next or len(self._frames) >= _CHUNK_BYTES:
            self.flush()
            self._first = number
        self._frames += frame.encode(self._label, *item).to_bytes()
        self._next = number + 1

    def flush(self) -> None:
        if self._frames:
            self._fs.replace(layout.chunk(self._label, self._first, self._next - 1), bytes(self._frames))
        self._frames.clear()


# --- copies that were made before ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyCheck:
    """Result of checking a copy of a hub: entries that it lacks, files that are damaged."""

    directory: str
    holes: dict[bytes, tuple[Span, ...]]  # entries that are in no file, and that the hub did not erase
    damaged: dict[str, str]  # files with an entry that is not as the hub signed it, and the first reason
    verdict: Verdict


def check_copy(address: HubAddress, root: Path, *, repair: bool = False) -> CopyCheck:
    """Check every entry of the copy below `root`, and compare its extent with the heads that the hub names now.

    `repair` removes files with damaged entries and asks the hub for what is missing; then the copy is checked again.
    """
    with HubLink(address) as link:
        identity, _, _ = link.session(_fetch_identity)
    directory = root / identity.hub_id.hex()
    if not directory.is_dir():
        raise HubFailed(f"{address.url}: there is no copy of this hub in {root}")
    check = _check_entries(address, directory, identity)
    if not repair or check.verdict.is_good:
        return check
    fs = OsFs(directory)
    with fs.lock():
        for path in check.damaged:
            fs.remove(path)
        fs.sync_dir(layout.LOG)
    with suppress(CopyIncomplete):  # the check says what is missing still
        fetch(address, root)
    return _check_entries(address, directory, identity)


def _check_entries(address: HubAddress, directory: Path, identity: HubIdentity) -> CopyCheck:
    hub, copy, fs = _ask(address), pin(str(directory)), OsFs(directory)
    spec = ReadSpec(columns=_CHECKED, level="full", identity=identity)
    damaged: dict[str, str] = {}
    for ref in copy.chunks():
        for batch in batches(fs, Slice.whole(ref), spec):
            bad = next((row for row in batch.to_pylist() if not row["ok"]), None)
            if bad is not None:
                damaged.setdefault(ref.path, f"entry {bad['stream_seq']}: {bad['reason']}")
    holes = {label: label_pin.holes for label, label_pin in copy.labels.items() if label_pin.holes}
    # A copy is no evidence against anybody: what is damaged in it can be fetched again.
    reasons = [Reason(Because.DERIVED, f"{path}: {why}") for path, why in damaged.items()]
    rows = copy.coverage(address.pin, stated={StatedBy.HUB: hub.heads})
    return CopyCheck(directory=str(directory), holes=holes, damaged=damaged, verdict=Verdict.of(rows, reasons))
