"""From entries of a chunk to records: open, judge, filter. What cannot be a row is counted with its reason.

damaged     the entry is not as it was written, or lies behind such a place
erased      its payload was erased under the retention policy
missing     no file has it
sealed      no key of the reader opens it
malformed   it opens, but header or body break a rule of sdr.event.v1 (SDR0 I3 included)
schema      it is no recorder event
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import Final, NamedTuple

from veen.client.keyring import Keyring, StreamKeys
from veen.core.ciphertext import Opened, open_msg
from veen.core.errors import OpenError, VeenError
from veen.core.event import Event
from veen.core.msg import Msg
from veen.overlays import sdr
from veen.overlays.decode import Issue
from veen.pipeline import bronze
from veen.pipeline.columns import ENTRIES, chosen
from veen.pipeline.plan import Piece
from veen.pipeline.query.descriptor import Filter
from veen.pipeline.query.fields import Record
from veen.pipeline.query.planning import LabelPlan
from veen.pipeline.query.rows import takes
from veen.storage.fs import Fs

__all__ = ["KINDS", "Clock", "Reader", "Skipped", "Taken", "Witness", "entries", "readers_of"]

KINDS: Final = ("damaged", "erased", "missing", "sealed", "malformed", "schema")

_COLUMNS: Final = chosen(["stream_seq", "hub_ts", "msg", "receipt", "ok", "reason"], ENTRIES)


class Witness(NamedTuple):
    """What the signatures behind a record are verified by; holds nothing of its contents."""

    receipt: bytes
    client_id: bytes
    msg_digest: bytes
    msg_sig: bytes


class Taken(NamedTuple):
    """A record that fits the filter."""

    record: Record
    witness: Witness


class Skipped(NamedTuple):
    """An entry in the range of the query that can be no row."""

    kind: str
    stream_seq: int


@dataclass(slots=True)
class Clock:
    """ts* of a label: the greatest hub_ts so far (D-27)."""

    ts: int = 0

    def tick(self, hub_ts: int) -> int:
        self.ts = max(self.ts, hub_ts)
        return self.ts


@dataclass(frozen=True, slots=True)
class Reader:
    """The keys of one stream, the newest first."""

    keys: tuple[StreamKeys, ...] = field(repr=False)

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


def entries(
    fs: Fs, plan: LabelPlan, piece: Piece, clock: Clock, reader: Reader, wanted: Filter
) -> Iterator[Taken | Skipped]:
    """The entries of one piece in order; those outside of the time of the query are passed by."""
    erased = piece.ref.kind in ("receipts", "heads")
    for batch in bronze.batches(fs, piece.ref, _COLUMNS, level="hash", first=piece.first, last=piece.last):
        seqs, times, msgs, receipts, oks = (batch.column(at).to_pylist() for at in range(5))
        for seq, hub_ts, raw, receipt, ok in zip(seqs, times, msgs, receipts, oks, strict=True):
            if not piece.first <= seq <= piece.last:
                continue  # bytes behind the last entry, which are none
            ts = clock.tick(hub_ts or 0)
            if hub_ts is not None and not wanted.takes_time(hub_ts):
                continue
            if not ok:
                yield Skipped("erased" if erased else "damaged", seq)
                continue
            msg = Msg.from_bytes(raw)
            opened = reader.open(msg)
            if isinstance(opened, str):
                yield Skipped(opened, seq)
                continue
            found = _judged(plan, msg, opened, seq, hub_ts, ts)
            if isinstance(found, str):
                yield Skipped(found, seq)
            elif takes(wanted, found):
                yield Taken(found, Witness(receipt, msg.client_id, Msg.digest_of(raw), msg.sig))


def _judged(plan: LabelPlan, msg: Msg, opened: Opened, seq: int, hub_ts: int, ts: int) -> Record | str:
    if opened.hdr.schema != sdr.EVENT.id:
        return "schema"
    typed = sdr.read(
        Event(
            stream_id=plan.stream_id,
            label=plan.label,
            epoch=plan.epoch,
            stream_seq=seq,
            leaf_hash=msg.leaf_hash(),
            client_id=msg.client_id,
            auth_ref=msg.auth_ref,
            hub_ts=hub_ts,
            ts=ts,
            hdr=opened.hdr,
            body=opened.body,
        )
    )
    if isinstance(typed, Issue):
        return "malformed"
    return Record(
        stream=plan.stream,
        stream_id=plan.stream_id,
        label=plan.label,
        epoch=plan.epoch,
        stream_seq=seq,
        ts=ts,
        hub_ts=hub_ts,
        leaf_hash=typed.event.leaf_hash,
        body=typed.body,
    )
