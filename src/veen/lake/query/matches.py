"""Matches of a query: entries of slices are opened, decoded, filtered and projected; the rest is counted by reason.

A match is the unit that the engines order and fold. It already has what the result needs of the event: the canonical
bytes of its row, or its group and its contribution to the metrics. The same code makes it in this process and on an
executor, so the engines cannot differ.

Besides the reasons for which an entry cannot be opened (`veen.lake.log.decryption`):

malformed   it opens, but header or body break a rule of sdr.event.v1 (SDR0 I3 included)
schema      it is no recorder event
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from veen.client.identity.keyring import Keyring
from veen.core import canonical
from veen.core.canonical import Json
from veen.core.crypto import ed25519
from veen.core.errors import FormatError, VerifyError
from veen.core.event import Event, Order
from veen.core.objects.identity import HubIdentity
from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt
from veen.io.local import Fs
from veen.lake.log.decryption import Opener, Skips, reader_of
from veen.lake.log.slices import Slice
from veen.lake.query.aggregate import Partial, group_key
from veen.lake.query.descriptor import Filter, QueryDescriptor
from veen.lake.query.fields import RecordedEvent
from veen.overlays.framework.schema import Issue
from veen.overlays.recorder import events as sdr


class Witness(NamedTuple):
    """Signed data behind a match, without its contents."""

    receipt: bytes
    client_id: bytes
    msg_digest: bytes
    msg_sig: bytes


class Match(NamedTuple):
    """One matching event."""

    order: Order
    label: bytes
    row: bytes  # canonical JSON of the row; of an aggregate, the group key
    partial: Partial | None  # of an aggregate, what the event adds
    witness: Witness | None  # None: the query asks for no evidence
    fault: str | None  # why its signatures do not hold; only checked in mode "full"
    verified: bytes | None = None  # what the evidence says of it, if a task has verified it; then there is no witness

    @property
    def stream_seq(self) -> int:
        return self.order[3]

    @property
    def leaf_hash(self) -> bytes:
        return self.order[4]


@dataclass(slots=True)
class MatchTally(Skips):
    """Counts of a source besides its matches. Owned by the loop that reads."""

    left_out: int = 0  # further matches, none of which can be a row: the limit of the query has no room for them


def takes(chosen: Filter, record: RecordedEvent) -> bool:
    """Return True if the record fits the filter (QRY-07); its time was compared before it was opened."""
    return (
        (chosen.subject_id is None or chosen.subject_id == record.body.subject_id)
        and (chosen.event_type is None or record.body.event_type in chosen.event_type)
        and all(condition.fits(record) for condition in chosen.where)
    )


def project(descriptor: QueryDescriptor, record: RecordedEvent) -> dict[str, Json]:
    """Return one ResultRow: every projected field under its own name, null where it is missing (QRY-13)."""
    return {field.name: field.value(record) for field in descriptor.projection}


class Matcher:
    """Finder of the matches of one query. Owned by the thread that reads."""

    def __init__(self, descriptor: QueryDescriptor, keyring: Keyring, identity: HubIdentity | None) -> None:
        """Raise UnknownStream if the keyring lacks a stream of the scope: its entries must not pass as sealed."""
        self._descriptor, self._identity = descriptor, identity
        self._names = descriptor.stream_names
        for stream_id in self._names:
            reader_of(keyring, stream_id)
        self._opener = Opener(keyring)

    def matches(self, fs: Fs, slices: Iterable[Slice], skips: Skips) -> Iterator[Match]:
        """Yield the matches in some slices, in order; skip entries outside of the time of the query."""
        chosen = self._descriptor.filter
        for event, raw, receipt in self._opener.entries(fs, slices, takes_time=chosen.takes_time):
            if not isinstance(event, Event):
                skips.add(event.label, event.reason, event.stream_seq)
                continue
            record = record_of(event, self._names[event.stream_id])
            if isinstance(record, str):
                skips.add(event.label, record, event.stream_seq)
            elif takes(chosen, record):
                yield self._match(record, raw or b"", receipt or b"")

    def _match(self, record: RecordedEvent, raw: bytes, receipt: bytes) -> Match:
        witness = None
        if self._descriptor.evidence.mode != "none":
            msg = Msg.from_bytes(raw)
            witness = Witness(receipt, msg.client_id, Msg.digest_of(raw), msg.sig)
        return match_of(self._descriptor, self._identity, record, witness)


def record_of(event: Event, stream: str) -> RecordedEvent | str:
    """Return the recorder event of a stream of this name, or the reason why it is none."""
    if event.hdr.schema != sdr.EVENT.id:
        return "schema"
    typed = sdr.read(event)
    if isinstance(typed, Issue):
        return "malformed"
    return RecordedEvent(stream=stream, event=event, body=typed.body)


def match_of(
    descriptor: QueryDescriptor, identity: HubIdentity | None, record: RecordedEvent, witness: Witness | None
) -> Match:
    """Return the match of a record. `witness` is None if the query asks for no evidence."""
    aggregate, partial, fault = descriptor.aggregate, None, None
    if aggregate is None:
        row = canonical.encode(project(descriptor, record))
    else:
        row = group_key(aggregate.group_by, record)
        partial = Partial.empty(aggregate)
        partial.add(aggregate, record)
    if descriptor.evidence.mode == "full" and witness is not None:  # every event is verified, wherever it was opened
        fault = signature_fault(identity, witness)
    return Match(record.event.order, record.event.label, row, partial, witness, fault)


def signature_fault(identity: HubIdentity | None, witness: Witness) -> str | None:
    """Return the fault in the signatures of author and hub; None if both are valid."""
    if identity is None:
        return "there is no identity of the hub to hold its receipt to"
    if not ed25519.verify(witness.client_id, witness.msg_digest, witness.msg_sig):
        return "sig does not verify under client_id"
    try:
        identity.verify_receipt(Receipt.from_bytes(witness.receipt))
    except (VerifyError, FormatError) as exc:
        return str(exc)
    return None
