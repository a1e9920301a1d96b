"""From entries of a chunk to records: open, judge, filter. What cannot be a row is counted with its reason.

Besides the reasons for which an entry cannot be opened (`veen.pipeline.opening`):

malformed   it opens, but header or body break a rule of sdr.event.v1 (SDR0 I3 included)
schema      it is no recorder event
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from veen.core.ciphertext import Opened
from veen.core.msg import Msg
from veen.overlays import sdr
from veen.overlays.decode import Issue
from veen.pipeline.opening import REASONS, Clock, Entry, Reader, event_at, open_entries
from veen.pipeline.plan import Piece
from veen.pipeline.query.descriptor import Filter
from veen.pipeline.query.fields import Record
from veen.pipeline.query.planning import LabelPlan
from veen.pipeline.query.rows import takes
from veen.storage.fs import Fs

__all__ = ["KINDS", "Skipped", "Taken", "Witness", "entries"]

KINDS: Final = (*REASONS, "schema")


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


def entries(
    fs: Fs, plan: LabelPlan, piece: Piece, clock: Clock, reader: Reader, wanted: Filter
) -> Iterator[Taken | Skipped]:
    """The entries of one piece in order; those outside of the time of the query are passed by."""
    for entry in open_entries(fs, piece, clock, reader, takes_time=wanted.takes_time):
        if isinstance(entry.opened, str):
            yield Skipped(entry.opened, entry.stream_seq)
            continue
        found = _judged(plan, entry, entry.opened)
        if isinstance(found, str):
            yield Skipped(found, entry.stream_seq)
        elif takes(wanted, found):
            yield Taken(found, _witness(entry))


def _witness(entry: Entry) -> Witness:
    assert entry.msg is not None  # noqa: S101 - what was opened has a MSG
    assert entry.raw is not None  # noqa: S101 - as above
    assert entry.receipt is not None  # noqa: S101 - and a RECEIPT
    return Witness(entry.receipt, entry.msg.client_id, Msg.digest_of(entry.raw), entry.msg.sig)


def _judged(plan: LabelPlan, entry: Entry, opened: Opened) -> Record | str:
    if opened.hdr.schema != sdr.EVENT.id:
        return "schema"
    typed = sdr.read(event_at(stream_id=plan.stream_id, label=plan.label, epoch=plan.epoch, entry=entry, opened=opened))
    if isinstance(typed, Issue):
        return "malformed"
    event = typed.event
    return Record(
        stream=plan.stream,
        stream_id=plan.stream_id,
        label=plan.label,
        epoch=plan.epoch,
        stream_seq=event.stream_seq,
        ts=event.ts,
        hub_ts=event.hub_ts,
        leaf_hash=event.leaf_hash,
        body=typed.body,
    )
