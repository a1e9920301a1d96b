"""Folding of streams by the client: every entry is verified, becomes an event, and is folded.

The client knows nothing of overlays and overlays know nothing of hubs; here entries become events. The summary is
stored (`fold_cache`) with the position and the root of each label. The next time the log is read from that position on,
and the stored summary is used only if the log has the same root there: the entry at that position is read again, and
the client proves that all that follows grew from it. Otherwise it is refused, reported, and the whole log is folded.

Where labels rotate nothing is stored: the labels of a stream then follow each other, and the past of each is short.

Summaries of folded streams in the home: sealed for those who can read the streams, bound to the log.

A summary holds decrypted contents, so it is sealed too: under a key derived from the read keys of its streams. Anyone
who can open it could also read the log. It is a cache: deleting it costs time and nothing else.
"""

import contextlib
import heapq
import os
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from veen.cli.shared.as_of import AsOf
from veen.client.home import PrivateFs
from veen.client.identity.keyring import StreamKeys
from veen.core import cbor
from veen.core.crypto import aead
from veen.core.crypto.hkdf import hkdf
from veen.core.errors import FormatError, OpenError
from veen.core.event import Event
from veen.core.hashing import H
from veen.core.objects.payload_hdr import PayloadHdr
from veen.overlays.framework.fold import AnyFold
from veen.overlays.framework.ordered import LateEvent
from veen.overlays.framework.schema import Issue
from veen.overlays.framework.snapshot import Cut, Snapshot, SnapshotRefused
from veen.overlays.framework.state import state_bytes, state_hash
from veen.overlays.framework.stream import fold_events

if TYPE_CHECKING:
    from veen.cli.shared.command import CliSession
    from veen.client.read.reading import Entry
    from veen.client.sync import SyncClient

MAX_BYTES: Final = 256 * 1024 * 1024  # a larger state is folded anew: reading it back would take as long
_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedFold:
    """A snapshot with the greatest ts* in it: a view of an earlier time must not use it."""

    snapshot: Snapshot
    ts: int
    unopened: int  # entries that could not be opened, and so are not in it


class FoldCache:
    """The stored summary of a fold over some streams of a hub."""

    def __init__(
        self, fs: PrivateFs, hub_id: bytes, fold: AnyFold, keys: Sequence[StreamKeys], *, purpose: str | None = None
    ) -> None:
        """Derive path and key. `purpose` separates summaries made by other rules about unreadable entries."""
        what: tuple[Any, ...] = (
            fold.name,
            fold.mirrors,
            fold.settings(),
            [(stream_keys.stream_id, stream_keys.reader_pk) for stream_keys in keys],
        )
        if purpose is not None:
            what = (*what, purpose)
        self._fs, self._aad = fs, b"veen/fold-cache" + hub_id + state_bytes(what)
        self._path = f"{fold.name}-{H(self._aad).hex()[:32]}"
        self._key = hkdf(
            b"".join(stream_keys.secret() for stream_keys in keys), b"veen/fold-cache", self._aad, aead.KEY_BYTES
        )

    def load(self) -> CachedFold | None:
        """Return the stored summary, if any. Raise SnapshotRefused if it is damaged.

        `restore` checks it against the log.
        """
        if not self._fs.exists(self._path):
            return None
        file = self._fs.open(self._path)
        try:
            data = file.read_at(0, min(file.size(), MAX_BYTES))
        finally:
            file.close()
        nonce, sealed = data[: aead.NONCE_BYTES], data[aead.NONCE_BYTES :]
        try:
            ver, ts, unopened, snapshot = _parts(
                aead.open_(self._key, nonce.ljust(aead.NONCE_BYTES, b"\0"), self._aad, sealed)
            )
            if ver != _VERSION:
                return None  # written by another version of this program
            return CachedFold(snapshot=Snapshot.from_bytes(snapshot), ts=ts, unopened=unopened)
        except (OpenError, FormatError) as exc:
            raise SnapshotRefused(f"the snapshot is damaged: {exc}") from exc

    def save(self, entry: CachedFold) -> None:
        """Replace the stored summary atomically."""
        data = cbor.encode([_VERSION, entry.ts, entry.unopened, entry.snapshot.to_bytes()])
        if len(data) > MAX_BYTES - aead.NONCE_BYTES - aead.TAG_BYTES:
            return
        nonce = os.urandom(aead.NONCE_BYTES)
        self._fs.replace(self._path, nonce + aead.seal(self._key, nonce, self._aad, data))

    def forget(self) -> None:
        if self._fs.exists(self._path):
            self._fs.remove(self._path)


def _parts(data: bytes) -> tuple[int, int, int, bytes]:
    parts = cbor.decode(data, what="fold cache", max_bytes=MAX_BYTES)
    match parts:
        case [int(ver), int(ts), int(unopened), bytes(snapshot)]:
            return ver, ts, unopened, snapshot
    raise SnapshotRefused("the snapshot is damaged: it has another form")


SNAPSHOT_EVENTS: Final = 256  # fewer new events than this are quicker read again than kept
_TOLD: Final = 100  # unopened entries that are listed; all are counted
_SEALED: Final = bytes(32)  # the schema of an entry that we cannot open: no schema has this id


@dataclass(frozen=True, slots=True)
class UnopenedEntry:
    """An entry that could not be opened, and the reason."""

    label: bytes
    stream_seq: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """A state, its sources, and the messages without effect."""

    name: str
    summary: Any
    state: Any
    state_hash: bytes
    as_of: int
    issues: tuple[Issue, ...]
    cuts: tuple[Cut, ...]
    unopened: tuple[UnopenedEntry, ...]
    unopened_count: int
    read: int  # entries
    resumed: bool  # from a snapshot
    refused: str | None  # why the snapshot that was kept was not used
    latest: frozenset[bytes]  # labels of which an entry of the last second was read

    def about(self) -> dict[str, Any]:
        """Return everything but the state, for programs."""
        return {
            "overlay": self.name,
            "as_of": self.as_of,
            "state_hash": self.state_hash.hex(),
            "upto": [cut.to_json() for cut in self.cuts],
            "issues": [issue._asdict() for issue in self.issues],
            "unopened": self.unopened_count,
            "unopened_entries": [
                {"label": entry.label, "stream_seq": entry.stream_seq, "error": entry.error} for entry in self.unopened
            ],
            "snapshot": {"used": self.resumed, "refused": self.refused, "entries_read": self.read},
        }

    def issue_at(self, label: bytes, stream_seq: int) -> Issue | None:
        return next((issue for issue in self.issues if issue.place == (label, stream_seq)), None)


@dataclass(slots=True)
class _Seen:
    """Progress of reading."""

    cuts: dict[bytes, Cut] = field(default_factory=dict)
    unopened: list[UnopenedEntry] = field(default_factory=list)
    unopened_count: int = 0
    read: int = 0
    ts: int = 0
    last: dict[bytes, int] = field(default_factory=dict)  # by label: ts*


def read_keys(session: "CliSession", streams: Sequence[Any]) -> list[StreamKeys]:
    """Return the keys of these streams, each once and sorted. Raise NoReaderKey for a write-only stream."""
    by_stream: dict[bytes, StreamKeys] = {}
    for stream in streams:
        keys = session.keystore.secrets.keyring.readers(stream)
        able = next((candidate for candidate in keys if candidate.can_read), keys[0])
        able.secret()  # or say that there is none
        by_stream[able.stream_id] = able
    return [by_stream[stream_id] for stream_id in sorted(by_stream)]


def event_of(entry: "Entry", stream_id: bytes) -> Event:
    """Convert an entry to an event. One that cannot be opened keeps its place and has no effect."""
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
    session: "CliSession",
    fold: AnyFold,
    streams: Sequence[Any],
    *,
    moment: AsOf | None = None,
    at: int | None = None,
    keep: bool = True,
) -> Folded:
    """Fold `streams` and return the state, at their end or as of a moment.

    Expiry is evaluated at the time of the moment, else at `at`, but never before ts* of the last entry; without both,
    at ts* of the last entry (D-80). Without `keep`, only the log is used.
    """
    client = session.client()
    keys = read_keys(session, streams)
    cache = None
    if keep and not client.status().profiles[0].epoch_sec:
        cache = FoldCache(session.home.folds_fs(session.identity_name), client.hub_id, fold, keys)
    with session.output.progress("folding"):
        refused = None
        if cache is not None:
            try:
                if (saved := _usable(cache.load(), moment)) is not None:
                    return _fold(client, fold, keys, moment, at, cache=cache, saved=saved)
            except (SnapshotRefused, LateEvent) as exc:
                cache.forget()
                refused = str(exc)
                session.output.note(f"a snapshot was refused, and the whole log is folded: {exc}")
        return _fold(client, fold, keys, moment, at, cache=cache, refused=refused)


def _usable(cached: CachedFold | None, moment: AsOf | None) -> CachedFold | None:
    """Return the summary if it ends before the moment and left out no entry: a later key might open one."""
    if cached is None or cached.unopened:
        return None
    if moment is None:
        return cached
    if moment.time is not None:
        return cached if cached.ts <= moment.time else None
    upto = max((cut.upto_seq for cut in cached.snapshot.cuts), default=0)
    return cached if moment.position is None or upto <= moment.position else None


def _fold(
    client: "SyncClient",
    fold: AnyFold,
    keys: Sequence[StreamKeys],
    moment: AsOf | None,
    at: int | None,
    *,
    cache: FoldCache | None,
    saved: CachedFold | None = None,
    refused: str | None = None,
) -> Folded:
    cuts_before = {} if saved is None else {cut.label: cut for cut in saved.snapshot.cuts}
    progress = _Seen(cuts=dict(cuts_before))
    if saved is not None:
        progress.ts, progress.unopened_count = saved.ts, saved.unopened
    with contextlib.ExitStack() as closing:
        runs, roots = [], {}
        for stream_keys in keys:
            cut = cuts_before.get(client.label(stream_keys)) if cuts_before else None
            entries = closing.enter_context(
                contextlib.closing(_entries(client, stream_keys, moment, None if cut is None else cut.upto_seq))
            )
            if cut is not None:  # the entry at the cut is read again, for its root
                first = next(entries, None)
                if first is not None and first.seq == cut.upto_seq:
                    roots[cut.label, cut.upto_seq] = first.receipt.mmr_root
            runs.append(_track(entries, stream_keys.stream_id, progress))
        base = None if saved is None else saved.snapshot.restore(fold, lambda label, seq: roots.get((label, seq)))
        summary = fold_events(fold, heapq.merge(*runs, key=lambda event: event.order), base)
    cuts = tuple(sorted(progress.cuts.values(), key=lambda cut: cut.label))
    if cache is not None and moment is None and progress.read >= SNAPSHOT_EVENTS:
        cache.save(
            CachedFold(snapshot=Snapshot.take(fold, summary, cuts), ts=progress.ts, unopened=progress.unopened_count)
        )
    as_of = moment.time if moment is not None and moment.time is not None else max(progress.ts, at or 0)
    state = fold.view(summary, as_of)
    return Folded(
        name=fold.name,
        summary=summary,
        state=state,
        state_hash=state_hash(fold.name, state),
        as_of=as_of,
        issues=fold.issues(summary),
        cuts=cuts,
        unopened=tuple(progress.unopened),
        unopened_count=progress.unopened_count,
        read=progress.read,
        resumed=saved is not None,
        refused=refused,
        latest=frozenset(label for label, ts in progress.last.items() if ts == progress.ts),
    )


def _entries(
    client: "SyncClient", keys: Any, moment: AsOf | None, first: int | None = None
) -> "Generator[Entry, None, None]":
    """Read the entries of a stream up to a moment."""
    moment = moment or AsOf()
    return client.read(keys, from_seq=first, to_seq=moment.position, until=moment.time)


def _track(entries: "Iterator[Entry]", stream_id: bytes, progress: _Seen) -> Iterator[Event]:
    for entry in entries:
        receipt = entry.receipt
        progress.read += 1
        progress.ts = max(progress.ts, entry.ts)
        progress.last[receipt.label] = entry.ts
        progress.cuts[receipt.label] = Cut(label=receipt.label, upto_seq=entry.seq, mmr_root=receipt.mmr_root)
        if entry.event is None:
            progress.unopened_count += 1
            if len(progress.unopened) < _TOLD:
                progress.unopened.append(UnopenedEntry(receipt.label, entry.seq, entry.error or "sealed"))
        yield event_of(entry, stream_id)


def events_of(session: "CliSession", streams: Sequence[Any], *, moment: AsOf | None = None) -> Iterator[Event]:
    """Yield the events of some streams in logical order, for uses other than a fold."""
    client = session.client()
    with contextlib.ExitStack() as closing:
        runs = []
        for stream_keys in read_keys(session, streams):
            entries = closing.enter_context(contextlib.closing(_entries(client, stream_keys, moment)))
            runs.append(event_of(entry, stream_keys.stream_id) for entry in entries)
        yield from heapq.merge(*runs, key=lambda event: event.order)
