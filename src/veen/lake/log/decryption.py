"""Decryption: each entry of a slice becomes an event, or an `Unread` with the reason.

damaged     the entry or an earlier one of its file is damaged
erased      its payload was erased under the retention policy
missing     no file has it
sealed      no key of the reader opens it
malformed   it opens, but header or body break a rule
ambiguous   it opens under more than one key of the stream (D-170)

Skipped entries: the number and first position of each label and kind that became no event or row.

Marks of readers: hashes of the keys that opened the entries of a state or table.

Two readers with equal marks open the same entries. A reading leaves out entries that it cannot open, so its result is
valid only for readers with the same mark.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from hashlib import sha256
from heapq import heapify, heappop, heappush
from hmac import compare_digest
from itertools import count
from typing import Any, Final, Protocol, TypeVar

import pyarrow as pa

from veen.client.identity.keyring import Keyring, StreamKeys
from veen.core.errors import AmbiguousError, OpenError, VeenError
from veen.core.event import Event, Order
from veen.core.objects.identity import HubIdentity
from veen.core.objects.msg import Msg
from veen.core.sealing.ciphertext import Opened, open_with_one
from veen.io.local import Fs
from veen.lake.log.columns import ENTRIES, Column, select_columns
from veen.lake.log.entries import Level, ReadSpec, batches
from veen.lake.log.prefix import Clock
from veen.lake.log.slices import LabelStream, Slice

REASONS: Final = ("damaged", "erased", "missing", "sealed", "malformed", "ambiguous")

_COLUMNS: Final = select_columns(["stream_seq", "hub_ts", "msg", "receipt", "ok"], ENTRIES)
_REST: Final = select_columns(["leaf_hash", "client_id", "auth_ref"], ENTRIES)  # what identifies an erased entry

ReadSlice = Callable[[Slice], Iterable[pa.RecordBatch]]


def columns_of(part: Slice) -> tuple[Column, ...]:
    """Return the columns that `Opener` reads of a slice, in this order."""
    return (*_COLUMNS, *_REST) if part.is_erased else _COLUMNS


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """An entry without an event: the fields that are known, and the reason."""

    stream_id: bytes | None
    label: bytes
    epoch: int
    stream_seq: int
    leaf_hash: bytes | None
    client_id: bytes | None
    auth_ref: bytes | None
    hub_ts: int | None
    ts: int
    reason: str  # one of REASONS

    @property
    def order(self) -> Order:
        return self.ts, self.stream_id or b"", self.epoch, self.stream_seq, self.leaf_hash or b""


@dataclass(frozen=True, slots=True)
class StreamReader:
    """Read keys of one stream, the newest first. Without keys every entry is sealed."""

    keys: tuple[StreamKeys, ...] = field(default=(), repr=False)

    def open(self, msg: Msg) -> Opened | str:
        """Open a message; return its header and body, or one of REASONS."""
        try:
            _, opened = open_with_one([(keys.secret(), keys.reader_pk) for keys in self.keys], msg)
        except OpenError:
            return "sealed"
        except AmbiguousError:
            return "ambiguous"
        except VeenError:  # sealed to us by a writer who breaks the rules
            return "malformed"
        if opened.hdr.cap_ref is not None and not compare_digest(opened.hdr.cap_ref, msg.auth_ref or b""):
            return "malformed"  # CLNT-13
        return opened


def reader_of(keyring: Keyring, stream_id: bytes) -> StreamReader:
    """Return the reader for a stream. Raise UnknownStream if the keyring has no key of it."""
    return StreamReader(tuple(keys for keys in keyring.readers(stream_id) if keys.can_read))


class Opener:
    """Opens entries with the keys of a reader. Owned by the thread that reads."""

    def __init__(self, keyring: Keyring, *, level: Level = "hash", identity: HubIdentity | None = None) -> None:
        self._keyring = keyring
        self._spec = ReadSpec(columns=_COLUMNS, level=level, identity=identity)
        self._streams = {keys.stream_id: None for keys in keyring.entries}  # in order, each once
        self.names = {keys.stream_id: keys.name for keys in reversed(keyring.entries) if keys.name is not None}
        self._readers: dict[bytes, tuple[LabelStream, StreamReader]] = {}  # by label

    def events(self, fs: Fs, slices: Iterable[Slice]) -> Iterator[Event | Unread]:
        """Yield each entry of the slices; those of one label keep its order."""
        return (event for event, _, _ in self.entries(fs, slices))

    def entries(
        self,
        fs: Fs,
        slices: Iterable[Slice],
        *,
        takes_time: Callable[[int], bool] | None = None,
        read: ReadSlice | None = None,
    ) -> Iterator[tuple[Event | Unread, bytes | None, bytes | None]]:
        """Yield each entry with its MSG and RECEIPT, byte for byte.

        Skip entries for whose hub_ts `takes_time` is false; they are not opened. `read` replaces the reading of a
        slice: it yields batches whose first columns are `columns_of(part)`, checked to the level of this opener. A
        caller that needs more columns of the same entries so reads them once.
        """
        clock = Clock()
        for part in slices:
            clock.enter(part)
            stream, reader = self._reader_for(part.stream)
            if part.is_missing:
                for seq in part.seqs():
                    yield Unread(**_common_fields(stream, seq, None, clock.ts), reason="missing"), None, None
                continue
            spec = replace(self._spec, columns=columns_of(part))
            for batch in batches(fs, part, spec) if read is None else read(part):
                for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    seq, hub_ts, raw, receipt, *_ = row
                    if not part.first <= seq <= part.last:
                        continue  # bytes behind the last entry, which are none
                    ts = clock.tick(hub_ts or 0)
                    if takes_time is None or hub_ts is None or takes_time(hub_ts):
                        yield _open_row(part, stream, reader, row, ts), raw, receipt

    def _reader_for(self, stream: LabelStream) -> tuple[LabelStream, StreamReader]:
        resolved = self._readers.get(stream.label)
        if resolved is None:
            named = (
                stream._replace(stream_id=None) if stream.is_foreign else stream.match_stream(self._streams) or stream
            )
            has_keys = named.stream_id is not None and named.stream_id in self._streams
            resolved = named, reader_of(self._keyring, named.stream_id or b"") if has_keys else StreamReader()
            self._readers[stream.label] = resolved
        return resolved


def _open_row(part: Slice, stream: LabelStream, reader: StreamReader, row: tuple[Any, ...], ts: int) -> Event | Unread:
    seq, hub_ts, raw, _, ok, *rest = row
    msg = Msg.from_bytes(raw) if raw is not None else None
    who = (msg.leaf_hash(), msg.client_id, msg.auth_ref) if msg is not None else tuple(rest)
    shared = _common_fields(stream, seq, hub_ts, ts, *who)
    opened: Opened | str = "erased" if part.is_erased and shared["leaf_hash"] is not None else "damaged"
    if ok and msg is not None:
        opened = reader.open(msg)
    if not isinstance(opened, str):
        return Event.from_message(opened.hdr, opened.body, **shared)
    # A journal that names a stream which the label disproves: no key can be right.
    return Unread(**shared, reason="damaged" if opened == "sealed" and part.stream.is_foreign else opened)


def _common_fields(
    stream: LabelStream,
    seq: int,
    hub_ts: int | None,
    ts: int,
    leaf_hash: bytes | None = None,
    client_id: bytes | None = None,
    auth_ref: bytes | None = None,
) -> dict[str, Any]:
    """Return the fields that Event and Unread share."""
    return {
        "stream_id": stream.stream_id,
        "label": stream.label,
        "epoch": stream.epoch,
        "stream_seq": seq,
        "leaf_hash": leaf_hash,
        "client_id": client_id,
        "auth_ref": auth_ref,
        "hub_ts": hub_ts,
        "ts": ts,
    }


class _Ordered(Protocol):
    @property
    def order(self) -> Order: ...


P = TypeVar("P", bound=_Ordered)


def in_order(labels: Iterable[tuple[int, Iterator[P]]]) -> Iterator[P]:
    """Merge labels by logical order (D-27). Start reading a label only when its first entry can be next.

    Each label comes with a time that is not after its first entry.
    """
    ticket = count()
    heap: list[tuple[Order, int, P | None, Iterator[P]]] = [
        ((begin, b"", 0, 0, b""), next(ticket), None, rest) for begin, rest in labels
    ]
    heapify(heap)
    while heap:
        _, _, item, rest = heappop(heap)
        if item is not None:
            yield item
        following = next(rest, None)
        if following is not None:
            heappush(heap, (following.order, next(ticket), following, rest))


KINDS: Final = (*REASONS, "schema")  # the last: of another schema than the one that was asked for


@dataclass(frozen=True, slots=True)
class SkipCount:
    """Number of skipped entries and the first position."""

    count: int
    first_seq: int

    def to_json(self) -> dict[str, int]:
        return {"count": self.count, "first_seq": self.first_seq}


@dataclass(slots=True)
class Skips:
    """Skipped entries by label and kind; a monoid. Owned by the loop that reads."""

    counts: dict[tuple[bytes, str], SkipCount] = field(default_factory=dict)

    def add(self, label: bytes, kind: str, first_seq: int, count: int = 1) -> None:
        before = self.counts.get((label, kind))
        if before is not None:
            count, first_seq = count + before.count, min(first_seq, before.first_seq)
        self.counts[label, kind] = SkipCount(count, first_seq)

    def of(self, label: bytes) -> dict[str, SkipCount]:
        return {kind: self.counts[label, kind] for kind in KINDS if (label, kind) in self.counts}

    def totals(self) -> dict[str, int]:
        """Return the sums over all labels; leave out kinds without any."""
        sums = {kind: sum(skip.count for (_, k), skip in self.counts.items() if k == kind) for kind in KINDS}
        return {kind: count for kind, count in sums.items() if count}

    def to_tree(self) -> list[list[Any]]:
        """Return sorted [label, kind, first_seq, count] lists, to send them between tasks."""
        return [[label, kind, skip.first_seq, skip.count] for (label, kind), skip in sorted(self.counts.items())]

    def absorb(self, tree: list[list[Any]]) -> None:
        for label, kind, first_seq, number in tree:
            self.add(label, kind, first_seq, number)


def reader_mark(keyring: Keyring, stream_id: bytes, level: Level) -> str:
    """Return a hash of the public read keys of a stream and of how entries are checked."""
    public = sorted(keys.reader_pk for keys in reader_of(keyring, stream_id).keys)
    return sha256(b"".join((level.encode(), b"\0", *public))).hexdigest()


def reader_marks(keyring: Keyring, stream_ids: Iterable[bytes], level: Level) -> dict[bytes, str]:
    """Return the mark of each of the streams that the keyring has."""
    names = {keys.stream_id for keys in keyring.entries}
    return {stream_id: reader_mark(keyring, stream_id, level) for stream_id in stream_ids if stream_id in names}
