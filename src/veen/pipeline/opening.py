"""From entries of a chunk to what was sealed in them, or to the reason why nothing can be had.

damaged     the entry is not as it was written, or lies behind such a place
erased      its payload was erased under the retention policy
missing     no file has it
sealed      no key of the reader opens it
malformed   it opens, but header or body break a rule
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from hmac import compare_digest
from itertools import count
from typing import Final, NamedTuple, Protocol, TypeVar

from veen.client.keyring import Keyring, StreamKeys
from veen.core.ciphertext import Opened, open_msg
from veen.core.errors import OpenError, VeenError
from veen.core.event import Event, Order
from veen.core.hubkeys import HubIdentity
from veen.core.msg import Msg
from veen.pipeline import bronze
from veen.pipeline.columns import ENTRIES, chosen
from veen.pipeline.plan import Piece
from veen.storage.fs import Fs

__all__ = ["REASONS", "Clock", "Entry", "Reader", "event_at", "in_order", "open_entries", "readers_of"]

REASONS: Final = ("damaged", "erased", "missing", "sealed", "malformed")

_COLUMNS: Final = chosen(["stream_seq", "hub_ts", "msg", "receipt", "ok"], ENTRIES)
_REST: Final = chosen(["leaf_hash", "client_id", "auth_ref"], ENTRIES)  # what an erased entry is known by
_ERASED: Final = ("receipts", "heads")


class Entry(NamedTuple):
    """One entry as it was found."""

    stream_seq: int
    hub_ts: int | None
    ts: int
    opened: Opened | str  # or one of REASONS
    leaf_hash: bytes | None
    client_id: bytes | None
    auth_ref: bytes | None
    msg: Msg | None
    raw: bytes | None  # the MSG, byte for byte
    receipt: bytes | None


@dataclass(slots=True)
class Clock:
    """ts* of a label: the greatest hub_ts so far (D-27)."""

    ts: int = 0

    def tick(self, hub_ts: int) -> int:
        self.ts = max(self.ts, hub_ts)
        return self.ts


@dataclass(frozen=True, slots=True)
class Reader:
    """The keys of one stream, the newest first; without any, everything is sealed."""

    keys: tuple[StreamKeys, ...] = field(default=(), repr=False)

    def open(self, msg: Msg) -> Opened | str:
        """What was sealed, or the kind of the reason why not."""
        for keys in self.keys:
            try:
                opened = open_msg(keys.secret(), msg, reader_pk=keys.reader_pk)
            except OpenError:
                continue
            except VeenError:  # sealed to us by a writer who breaks the rules
                return "malformed"
            if opened.hdr.cap_ref is not None and not compare_digest(opened.hdr.cap_ref, msg.auth_ref or b""):
                return "malformed"  # CLNT-13
            return opened
        return "sealed"


def readers_of(keyring: Keyring, stream_id: bytes) -> Reader:
    """UnknownStream if the keyring has nothing of this stream."""
    return Reader(tuple(keys for keys in keyring.readers(stream_id) if keys.can_read))


def open_entries(
    fs: Fs,
    piece: Piece,
    clock: Clock,
    reader: Reader,
    *,
    takes_time: Callable[[int], bool] | None = None,
    level: bronze.Level = "hash",
    identity: HubIdentity | None = None,
) -> Iterator[Entry]:
    """Every entry of one piece, in order; those whose time is not taken are passed by, and not opened."""
    if piece.ref.kind == "missing":
        for seq in range(piece.first, piece.last + 1):
            yield Entry(seq, None, clock.ts, "missing", None, None, None, None, None, None)
        return
    erased = piece.ref.kind in _ERASED
    columns = (*_COLUMNS, *_REST) if erased else _COLUMNS
    for batch in bronze.batches(
        fs, piece.ref, columns, level=level, identity=identity, first=piece.first, last=piece.last
    ):
        for seq, hub_ts, raw, receipt, ok, *rest in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            if not piece.first <= seq <= piece.last:
                continue  # bytes behind the last entry, which are none
            ts = clock.tick(hub_ts or 0)
            if takes_time is not None and hub_ts is not None and not takes_time(hub_ts):
                continue
            msg = Msg.from_bytes(raw) if raw is not None else None
            leaf_hash, client_id, auth_ref = rest or (None, None, None)
            if msg is not None:
                leaf_hash, client_id, auth_ref = msg.leaf_hash(), msg.client_id, msg.auth_ref
            opened: Opened | str = "erased" if erased and leaf_hash is not None else "damaged"
            if ok and msg is not None:
                opened = reader.open(msg)
            yield Entry(seq, hub_ts, ts, opened, leaf_hash, client_id, auth_ref, msg, raw, receipt)


def event_at(*, stream_id: bytes, label: bytes, epoch: int, entry: Entry, opened: Opened) -> Event:
    """The event of an entry that was opened."""
    assert entry.leaf_hash is not None  # noqa: S101 - what was opened has a MSG
    assert entry.client_id is not None  # noqa: S101 - as above
    assert entry.hub_ts is not None  # noqa: S101 - and a RECEIPT
    return Event(
        stream_id=stream_id,
        label=label,
        epoch=epoch,
        stream_seq=entry.stream_seq,
        leaf_hash=entry.leaf_hash,
        client_id=entry.client_id,
        auth_ref=entry.auth_ref,
        hub_ts=entry.hub_ts,
        ts=entry.ts,
        hdr=opened.hdr,
        body=opened.body,
    )


class _Placed(Protocol):
    @property
    def order(self) -> Order: ...


P = TypeVar("P", bound=_Placed)


def in_order(labels: Iterable[tuple[int, Iterator[P]]]) -> Iterator[P]:
    """Labels merged by logical order (D-27); each is begun only when its first entry can be the next one.

    With each label comes a time that is not after its first entry.
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
