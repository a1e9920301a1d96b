"""The door between client and overlays: streams are read through the client, every entry verified, and folded.

The client knows nothing of overlays and overlays know nothing of hubs; here entries become events. What was folded is
kept (`veen.cli.foldcache`) with the position and the root of each label. The next time the log is read from that
position on, and the kept summary counts only if the log has the same root there: the entry at that position is read
again, and the client proves that all that follows grew from it. Otherwise it is refused, reported, and the whole log is
folded.

Where labels rotate nothing is kept: the labels of a stream then follow each other, and the past of each is short.
"""

import contextlib
import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from veen.cli.asof import AsOf
from veen.cli.foldcache import FoldCache, Kept
from veen.client.keyring import StreamKeys
from veen.core.event import Event
from veen.core.payload_hdr import PayloadHdr
from veen.overlays.decode import Issue
from veen.overlays.fold import AnyFold
from veen.overlays.ordered import LateEvent
from veen.overlays.snapshot import Cut, Snapshot, SnapshotRefused
from veen.overlays.state import state_hash
from veen.overlays.stream import fold_events

if TYPE_CHECKING:
    from veen.cli.clictx import Session
    from veen.client.reading import Entry
    from veen.client.sync import SyncClient

__all__ = ["SNAPSHOT_EVENTS", "Folded", "Unopened", "event_of", "events_of", "fold_streams", "readable"]

SNAPSHOT_EVENTS: Final = 256  # fewer new events than this are quicker read again than kept
_TOLD: Final = 100  # unopened entries that are listed; all are counted
_SEALED: Final = bytes(32)  # the schema of an entry that we cannot open: no schema has this id


@dataclass(frozen=True, slots=True)
class Unopened:
    """An entry whose contents we do not know, and why."""

    label: bytes
    stream_seq: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """A state, what it was made from, and what counted for nothing."""

    name: str
    summary: Any
    state: Any
    state_hash: bytes
    as_of: int
    issues: tuple[Issue, ...]
    cuts: tuple[Cut, ...]
    unopened: tuple[Unopened, ...]
    unopened_count: int
    read: int  # entries
    resumed: bool  # from a snapshot
    refused: str | None  # why the snapshot that was kept was not used
    latest: frozenset[bytes]  # labels of which an entry of the last second was read

    def about(self) -> dict[str, Any]:
        """Everything but the state, for programs."""
        return {
            "overlay": self.name,
            "as_of": self.as_of,
            "state_hash": self.state_hash.hex(),
            "upto": [cut.to_json() for cut in self.cuts],
            "issues": [issue._asdict() for issue in self.issues],
            "unopened": self.unopened_count,
            "unopened_entries": [
                {"label": one.label, "stream_seq": one.stream_seq, "error": one.error} for one in self.unopened
            ],
            "snapshot": {"used": self.resumed, "refused": self.refused, "entries_read": self.read},
        }

    def issue_at(self, label: bytes, stream_seq: int) -> Issue | None:
        return next((issue for issue in self.issues if issue.place == (label, stream_seq)), None)


@dataclass(slots=True)
class _Seen:
    """What reading has met."""

    cuts: dict[bytes, Cut] = field(default_factory=dict)
    unopened: list[Unopened] = field(default_factory=list)
    unopened_count: int = 0
    read: int = 0
    ts: int = 0
    last: dict[bytes, int] = field(default_factory=dict)  # by label: ts*


def readable(session: "Session", streams: Sequence[Any]) -> list[StreamKeys]:
    """The keys of these streams, each once and in one order; NoReaderKey where one can only be written to."""
    found: dict[bytes, StreamKeys] = {}
    for stream in streams:
        keys = session.keystore.secrets.keyring.readers(stream)
        able = next((one for one in keys if one.can_read), keys[0])
        able.secret()  # or say that there is none
        found[able.stream_id] = able
    return [found[stream_id] for stream_id in sorted(found)]


def event_of(entry: "Entry", stream_id: bytes) -> Event:
    """An entry as an event; one that cannot be opened keeps its place and counts for nothing."""
    if entry.event is not None:
        return entry.event
    return Event(
        stream_id=stream_id,
        label=entry.receipt.label,
        epoch=entry.epoch,
        stream_seq=entry.seq,
        leaf_hash=entry.receipt.leaf_hash,
        client_id=entry.msg.client_id,
        auth_ref=entry.msg.auth_ref,
        hub_ts=entry.receipt.hub_ts,
        ts=entry.ts,
        hdr=PayloadHdr(schema=_SEALED),
        body=b"",
    )


def fold_streams(
    session: "Session",
    fold: AnyFold,
    streams: Sequence[Any],
    *,
    moment: AsOf | None = None,
    at: int | None = None,
    keep: bool = True,
) -> Folded:
    """The state of `fold` over `streams`, at its end or as of a moment.

    What expires is judged at the time of the moment, else at `at`, but never before ts* of the last entry; without
    both, at ts* of the last entry (D-80). Without `keep`, nothing but the log is used.
    """
    client = session.client()
    keys = readable(session, streams)
    cache = None
    if keep and not client.status().profiles[0].epoch_sec:
        cache = FoldCache(session.home.folds_fs(session.identity_name), client.hub_id, fold, keys)
    with session.output.progress("folding"):
        refused = None
        if cache is not None:
            try:
                if (kept := _usable(cache.load(), moment)) is not None:
                    return _folded(client, fold, keys, moment, at, cache=cache, kept=kept)
            except (SnapshotRefused, LateEvent) as exc:
                cache.forget()
                refused = str(exc)
                session.output.note(f"a snapshot was refused, and the whole log is folded: {exc}")
        return _folded(client, fold, keys, moment, at, cache=cache, refused=refused)


def _usable(kept: Kept | None, moment: AsOf | None) -> Kept | None:
    """A snapshot helps if it ends before the moment."""
    if kept is None or moment is None:
        return kept
    if moment.time is not None:
        return kept if kept.ts <= moment.time else None
    upto = max((cut.upto_seq for cut in kept.snapshot.cuts), default=0)
    return kept if moment.position is None or upto <= moment.position else None


def _folded(
    client: "SyncClient",
    fold: AnyFold,
    keys: Sequence[StreamKeys],
    moment: AsOf | None,
    at: int | None,
    *,
    cache: FoldCache | None,
    kept: Kept | None = None,
    refused: str | None = None,
) -> Folded:
    known = {} if kept is None else {cut.label: cut for cut in kept.snapshot.cuts}
    seen = _Seen(cuts=dict(known))
    if kept is not None:
        seen.ts, seen.unopened_count = kept.ts, kept.unopened
    with contextlib.ExitStack() as closing:
        runs, roots = [], {}
        for one in keys:
            cut = known.get(client.label(one)) if known else None
            entries = closing.enter_context(
                contextlib.closing(client.read(one, **_span(moment, None if cut is None else cut.upto_seq)))
            )
            if cut is not None:  # the entry at the cut is read again, for its root
                first = next(entries, None)
                if first is not None and first.seq == cut.upto_seq:
                    roots[cut.label, cut.upto_seq] = first.receipt.mmr_root
            runs.append(_met(entries, one.stream_id, seen))
        base = None if kept is None else kept.snapshot.restore(fold, lambda label, seq: roots.get((label, seq)))
        summary = fold_events(fold, heapq.merge(*runs, key=lambda event: event.order), base)
    cuts = tuple(sorted(seen.cuts.values(), key=lambda cut: cut.label))
    if cache is not None and moment is None and seen.read >= SNAPSHOT_EVENTS:
        cache.save(Kept(snapshot=Snapshot.take(fold, summary, cuts), ts=seen.ts, unopened=seen.unopened_count))
    as_of = moment.time if moment is not None and moment.time is not None else max(seen.ts, at or 0)
    state = fold.view(summary, as_of)
    return Folded(
        name=fold.name,
        summary=summary,
        state=state,
        state_hash=state_hash(fold.name, state),
        as_of=as_of,
        issues=fold.issues(summary),
        cuts=cuts,
        unopened=tuple(seen.unopened),
        unopened_count=seen.unopened_count,
        read=seen.read,
        resumed=kept is not None,
        refused=refused,
        latest=frozenset(label for label, ts in seen.last.items() if ts == seen.ts),
    )


def _span(moment: AsOf | None, first: int | None) -> dict[str, int]:
    """What to read, in the words of the client."""
    moment = moment or AsOf()
    found = {"from_seq": first, "to_seq": moment.position, "until": moment.time}
    return {name: value for name, value in found.items() if value is not None}


def _met(entries: "Iterator[Entry]", stream_id: bytes, seen: _Seen) -> Iterator[Event]:
    for entry in entries:
        receipt = entry.receipt
        seen.read += 1
        seen.ts = max(seen.ts, entry.ts)
        seen.last[receipt.label] = entry.ts
        seen.cuts[receipt.label] = Cut(label=receipt.label, upto_seq=entry.seq, mmr_root=receipt.mmr_root)
        if entry.event is None:
            seen.unopened_count += 1
            if len(seen.unopened) < _TOLD:
                seen.unopened.append(Unopened(receipt.label, entry.seq, entry.error or "sealed"))
        yield event_of(entry, stream_id)


def events_of(session: "Session", streams: Sequence[Any], *, moment: AsOf | None = None) -> Iterator[Event]:
    """The events of some streams in logical order, for what needs more than a fold."""
    client = session.client()
    with contextlib.ExitStack() as closing:
        runs = []
        for one in readable(session, streams):
            entries = closing.enter_context(contextlib.closing(client.read(one, **_span(moment, None))))
            runs.append(event_of(entry, one.stream_id) for entry in entries)
        yield from heapq.merge(*runs, key=lambda event: event.order)
