"""Verify a bundle. Checks run in the order of PRODUCTS 3.4; the first failure is reported.

The file is read twice. The first reading checks form, version, id, signature, source, chain and range; nothing in the
file is trusted before. The second checks every event, and that it reads the same bytes as the first. Memory holds one
batch of events, whatever the size of the bundle. No key, no clock, no network.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Final

from veen.client.errors import ClientError
from veen.core import cbor
from veen.core.errors import FormatError, OpenError, ProofError, VeenError, VerifyError
from veen.core.hashing import H
from veen.core.labels import label_of, routing_key_of, stream_id_of
from veen.core.limits import DEFAULT_LIMITS
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import ControlRecord
from veen.core.objects.identity import HubIdentity
from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt
from veen.core.objects.tooling import IdentityResponse
from veen.core.run_check import MAX_WARNINGS, Fault, Pair, Rule, RunCheck, check_signatures, warning_of
from veen.core.sealing.ciphertext import TAG_BYTES, Binding, Opened, att_root_of, open_with_opening
from veen.core.tree.mmr import Mmr, root_of
from veen.overlays.airgap.bodies import ImportedEvent, WithheldEvent
from veen.overlays.recorder import events as sdr
from veen.products.bridge.bundle import BundleAttachment, BundleEvent, BundleReader, Header, Rejected, Trailer
from veen.products.bridge.trust import TrustedSource, TrustList

_BATCH: Final = 256  # events whose signatures are verified together
_BATCH_BYTES: Final = 8 << 20
# Limit of the carried part: an imported event adds some hundred bytes and must fit into a body.
MAX_CARRIED_BYTES: Final = DEFAULT_LIMITS.max_body_bytes - TAG_BYTES - 4_096
# The code and the text of each broken rule of an event, in the order in which they are reported.
_RULES: Final = {
    Rule.HUB_SIG: ("AGB.RECEIPT_SIG", "the receipt is by no key of the source hub that was valid then"),
    Rule.SEQ: ("AGB.LABEL_SEQ", "expected entry {0.expected} of the label, found {0.actual}"),
    Rule.LABEL: ("AGB.LABEL_SEQ", "the entry is of another label"),
    Rule.AUTHOR_SIG: ("AGB.MSG_SIG", "the message is not signed by its client_id"),
    Rule.CT_HASH: ("AGB.CT_HASH", "MSG: ct_hash is not the hash of the ciphertext (I1)"),
    Rule.LEAF: ("AGB.LEAF", "the receipt is for another message"),
    Rule.CLIENT_SEQ: ("AGB.LABEL_SEQ", "client_seq is {0.actual}, {0.expected} follows (I8, I9)"),
    Rule.ACK_BACK: ("AGB.LABEL_SEQ", "prev_ack is {0.actual}, the author's entry before had {0.expected} (I6)"),
    Rule.ACK_AHEAD: ("AGB.LABEL_SEQ", "prev_ack {0.actual} names an entry that did not exist yet (I6)"),
    Rule.ROOT: ("AGB.ROOT", "the entries before it do not lead to the root of its receipt"),
}
_RANKS: Final = {rule: rank for rank, rule in enumerate(_RULES)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainHead:
    """The last imported bundle of a bridge and a label."""

    bundle_seq: int
    bundle_id: bytes
    seq: int
    root: bytes


Chains = Mapping[tuple[bytes, bytes], ChainHead]  # by bridge_id and label

Crossing = ImportedEvent | WithheldEvent


def _no_attachment(ciphertext: bytes) -> None:
    """Ignore the attachment: for callers that only need the verdict."""


class OutOfOrder(Rejected):
    """A valid bundle that is not the next one: `is_early` if others must come first, else it was imported before."""

    def __init__(self, detail: str, *, is_early: bool) -> None:
        super().__init__("AGB.CHAIN", detail)
        self.args = (detail,)
        self.is_early = is_early


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleVerdict:
    """A bundle that passed every check."""

    header: Header
    trailer: Trailer
    target: str  # the import stream
    root: bytes  # after the last event
    warnings: tuple[str, ...] = ()  # where hub_ts goes back (D-28)

    @property
    def head(self) -> ChainHead:
        return ChainHead(
            bundle_seq=self.header.bundle_seq,
            bundle_id=self.trailer.bundle_id,
            seq=self.header.export_seq_to,
            root=self.root,
        )


def verify(
    file: IO[bytes],
    trust: TrustList,
    chains: Chains,
    emit: Callable[[Crossing], None] = lambda crossing: None,
    emit_attachment: Callable[[bytes], None] = _no_attachment,
) -> BundleVerdict:
    """Return the verdict, or raise `Rejected`.

    `emit` gets each event as it will be imported, `emit_attachment` the ciphertexts of its attachments; both must
    discard them if this raises.
    """
    header, trailer = _whole(file)
    source, identity = _source(header, trailer, trust)
    _check_chain(header, chains.get((header.bridge_id, header.label)))
    _check_range(header, trailer, chains.get((header.bridge_id, header.label)))
    reader = BundleReader(file)
    events = _Events(header, identity, trailer.bundle_id)
    for batch in _batches(reader.contents()):
        if isinstance(batch, BundleAttachment):
            if (ciphertext := events.judge_attachment(batch)) is not None:
                emit_attachment(ciphertext)
            continue
        for crossing in events.judge(batch):
            emit(crossing)
    if reader.header != header or reader.trailer != trailer or reader.bundle_id != trailer.bundle_id:
        raise Rejected("AGB.ID", "the file changed while it was verified")
    _check_checkpoint(header, trailer, identity, events)
    if events.fault is not None:
        raise events.fault
    return BundleVerdict(
        header=header,
        trailer=trailer,
        target=_target(header, source),
        root=events.root,
        warnings=tuple(events.warnings),
    )


def judge_alone(file: IO[bytes], trust: TrustList) -> BundleVerdict:
    """Verify a bundle alone: the header's statement about the bundle before it is taken as given."""
    header = BundleReader(file).header
    chains = {}
    if header.bundle_seq > 1 and header.prev_bundle_id is not None and header.peaks_before:
        before = ChainHead(
            bundle_seq=header.bundle_seq - 1,
            bundle_id=header.prev_bundle_id,
            seq=header.export_seq_from - 1,
            root=root_of(header.peaks_before),
        )
        chains = {(header.bridge_id, header.label): before}
    return verify(file, trust, chains)


def _whole(file: IO[bytes]) -> tuple[Header, Trailer]:
    """Check FORMAT, VERSION, ID: the bundle is complete, and its id matches its contents."""
    reader = BundleReader(file)
    for _ in reader.events():
        pass
    trailer = reader.trailer
    assert trailer is not None  # noqa: S101 - `events` ends with it
    if reader.bundle_id != trailer.bundle_id:
        raise Rejected(
            "AGB.ID", f"bundle_id is {trailer.bundle_id.hex()}, the contents hash to {reader.bundle_id.hex()}"
        )
    return reader.header, trailer


def _source(header: Header, trailer: Trailer, trust: TrustList) -> tuple[TrustedSource, HubIdentity]:
    source = trust.source_of(header.bridge_id)
    exporter = trailer.exporter_pk
    if not any(source.trusts(exporter) for source in trust.sources):
        raise Rejected("AGB.SIG_EXPORTER", f"exporter {exporter.hex()} is not in the trust list")
    if not trailer.is_signed():
        raise Rejected("AGB.SIG_EXPORTER", "the signature is not by exporter_pk over this bundle_id")
    if source is None:
        raise Rejected("AGB.SOURCE", f"bridge {header.bridge_id.hex()} is not in the trust list")
    if not source.trusts(exporter):
        raise Rejected("AGB.SIG_EXPORTER", f"exporter {exporter.hex()} may not sign for bridge {source.bridge}")
    identity = identity_of(header, source)
    if header.label != label_of(routing_key_of(identity.hub_id), header.export_stream_id, header.epoch):
        raise Rejected("AGB.SOURCE", "label is not that of the stream and epoch at this hub")
    return source, identity


def identity_of(header: Header, source: TrustedSource) -> HubIdentity:
    """Return the keys of the source hub that follow from the pin of the trust list."""
    try:
        identity = HubIdentity.from_bytes(header.identity)
        rotations = tuple(ControlRecord.from_bytes(record) for record in header.rotations)
        pin = source.pin.learn(IdentityResponse.of(identity, header.identity_sig), rotations)
    except (ClientError, VeenError) as exc:
        raise Rejected("AGB.SOURCE", f"the identity of the source hub is not trusted: {exc}") from exc
    if pin.hub_id != header.source_hub_id:
        raise Rejected("AGB.SOURCE", "source_hub_id is not that of the trusted hub")
    if header.source_hub_pk not in {key.hub_pk for key in pin.keys}:
        raise Rejected("AGB.SOURCE", "source_hub_pk is no key of the trusted hub")
    return pin.identity


def _check_chain(header: Header, head: ChainHead | None) -> None:
    expected = 1 if head is None else head.bundle_seq + 1
    if header.bundle_seq > expected:
        what = f"bundle {header.bundle_seq} of this chain, but bundle {expected} is not imported yet"
        raise OutOfOrder(what, is_early=True)
    if header.bundle_seq < expected:
        raise OutOfOrder(f"bundle {header.bundle_seq} of this chain was imported before", is_early=False)
    if header.prev_bundle_id != (None if head is None else head.bundle_id):
        raise Rejected("AGB.CHAIN", "prev_bundle_id is not the bundle that was imported before it")


def _check_range(header: Header, trailer: Trailer, head: ChainHead | None) -> None:
    first = 1 if head is None else head.seq + 1
    if header.export_seq_from != first:
        raise Rejected("AGB.RANGE", f"begins at {header.export_seq_from}, expected {first}")
    if header.export_seq_to != first + trailer.count - 1:
        raise Rejected("AGB.RANGE", f"{first} to {header.export_seq_to} are not {trailer.count} events")
    if header.size_before != first - 1:
        raise Rejected("AGB.RANGE", "size_before is not the number of entries before the first")
    if header.export_seq_to == 0:
        raise Rejected("AGB.RANGE", "a bundle about an empty label")
    try:
        before = Mmr(header.size_before, header.peaks_before)
    except ProofError as exc:
        raise Rejected("AGB.RANGE", f"peaks_before: {exc}") from exc
    if head is not None and before.root() != head.root:
        raise Rejected("AGB.RANGE", "peaks_before do not lead to the root of what was imported before")


def _check_checkpoint(header: Header, trailer: Trailer, identity: HubIdentity, events: "_Events") -> None:
    export = trailer.export_checkpoint
    try:
        checkpoint = Checkpoint.from_bytes(export.checkpoint)
        signer = identity.verify_checkpoint(checkpoint, 0)
        checkpoint.check_labels(routing_key_of(identity.hub_id), header.export_stream_id)
    except (FormatError, VerifyError) as exc:
        raise Rejected("AGB.CHECKPOINT", str(exc)) from exc
    if signer.hub_pk != export.hub_public:
        raise Rejected("AGB.CHECKPOINT", "hub_public is not the key that signed the checkpoint")
    if (checkpoint.label_curr, checkpoint.epoch) != (header.label, header.epoch):
        raise Rejected("AGB.CHECKPOINT", "the checkpoint is about another label")
    if checkpoint.upto_seq != header.export_seq_to:
        raise Rejected("AGB.CHECKPOINT", f"the checkpoint ends at {checkpoint.upto_seq}, not {header.export_seq_to}")
    if checkpoint.mmr_root != events.root:
        raise Rejected("AGB.CHECKPOINT", "the checkpoint has another root than the events")
    if trailer.count and (header.export_time_from, header.export_time_to) != (events.first_ts, events.last_ts):
        raise Rejected("AGB.CHECKPOINT", "the times of the header are not those of the first and last receipt")
    if trailer.count and export.timestamp != events.last_ts:
        raise Rejected("AGB.CHECKPOINT", "timestamp is not that of the last receipt")


def _target(header: Header, source: TrustedSource) -> str:
    name = header.stream_name
    if name is None:
        raise Rejected("AGB.MAPPING", "the bundle does not name its stream, so no rule can fit")
    try:
        is_named = stream_id_of(name) == header.export_stream_id
    except FormatError as exc:
        raise Rejected("AGB.MAPPING", f"stream_name: {exc}") from exc
    if not is_named:
        raise Rejected("AGB.MAPPING", "stream_name is not the name of export_stream_id")
    target = source.target_of(name)
    if target is None:
        raise Rejected("AGB.MAPPING", f"no rule of the trust list says where {name[:80]!r} goes")
    return target


# --- events --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _ParsedEvent:
    """One event with its decoded parts and the faults of its signatures."""

    event: BundleEvent
    receipt: Receipt | None
    msg: Msg | None
    unreadable: str | None  # why receipt or msg cannot be read
    unsigned: list[Fault]


class _Events:
    """Checks the events of a bundle in order. Owned by one thread.

    `fault` is the first failure of a later rank (OPENING, SCHEMA, MAPPING): it is reported only if nothing of an
    earlier rank fails anywhere.
    """

    def __init__(self, header: Header, identity: HubIdentity, bundle_id: bytes) -> None:
        self._header, self._identity, self._bundle_id = header, identity, bundle_id
        self._check = RunCheck(header.label, Mmr(header.size_before, header.peaks_before))
        self._position = 0
        self.warnings: list[str] = []
        self._coids: tuple[bytes, ...] = ()  # of the event that was judged last
        self.first_ts = 0
        self.fault: Rejected | None = None

    @property
    def root(self) -> bytes:
        return self._check.tree.root()

    @property
    def last_ts(self) -> int:
        return self._check.last_ts

    def judge(self, batch: Sequence[BundleEvent]) -> Iterator[Crossing]:
        for parsed in self._parse(batch):
            crossing = self._judge_event(parsed)
            self._position += 1
            self._coids = parsed.event.attachments
            if crossing is not None:
                yield crossing

    def judge_attachment(self, attachment: BundleAttachment) -> bytes | None:
        """Return the ciphertext of an attachment of the last event; None after a fault of a later rank."""
        if self.fault is None and H(attachment.data) != self._coids[attachment.att]:
            detail = f"attachment {attachment.att} does not have the hash that the event names"
            self.fault = Rejected("AGB.ATTACHMENT", detail, self._position - 1)
        return attachment.data if self.fault is None else None

    def _parse(self, batch: Sequence[BundleEvent]) -> list[_ParsedEvent]:
        """Decode receipts and messages, and verify all signatures of the batch together."""
        rows: list[tuple[BundleEvent, Receipt | None, Msg | None, str | None]] = []
        for event in batch:
            receipt, msg, unreadable = None, None, None
            try:
                receipt = Receipt.from_bytes(event.receipt)
                msg = None if event.msg is None else Msg.from_bytes(event.msg)
            except FormatError as exc:
                unreadable = str(exc)
            rows.append((event, receipt, msg, unreadable))
        pairs = [Pair(msg, receipt) for _, receipt, msg, _ in rows if receipt is not None]
        unsigned = iter(check_signatures(pairs, self._identity)[0])
        return [_ParsedEvent(*row, [] if row[1] is None else next(unsigned)) for row in rows]

    def _judge_event(self, parsed: _ParsedEvent) -> Crossing | None:
        event, receipt, msg = parsed.event, parsed.receipt, parsed.msg
        if receipt is None:
            raise self._rejection("AGB.RECEIPT_SIG", f"the receipt cannot be read: {parsed.unreadable}")
        seq = self._check.tree.size + 1
        faults = [*parsed.unsigned, *self._check.append(msg, receipt)]
        if event.seq != seq:
            faults.append(Fault(Rule.SEQ, seq, seq, event.seq))
        if receipt.label == self._header.label:  # a MSG of another label is another message
            faults = [fault._replace(rule=Rule.LEAF) if fault.rule is Rule.LABEL else fault for fault in faults]
        self.warnings += [f"entry {seq}: {warning_of(fault)}" for fault in faults if fault.rule is Rule.TIME]
        del self.warnings[MAX_WARNINGS:]
        broken = sorted((fault for fault in faults if fault.rule in _RANKS), key=lambda fault: _RANKS[fault.rule])
        if parsed.unreadable is not None and not (broken and _RANKS[broken[0].rule] < _RANKS[Rule.AUTHOR_SIG]):
            raise self._rejection("AGB.MSG_SIG", f"the message cannot be read: {parsed.unreadable}")
        for fault in broken:
            code, words = _RULES[fault.rule]
            raise self._rejection(code, words.format(fault))
        self.first_ts = self.first_ts or receipt.hub_ts
        return self._to_crossing(event, receipt, msg)

    def _to_crossing(self, event: BundleEvent, receipt: Receipt, msg: Msg | None) -> Crossing | None:
        """Return the event as it will be imported; None after a fault of a later rank."""
        header = self._header
        if self.fault is not None:
            return None
        if msg is None:
            return WithheldEvent(
                origin_stream_id=header.export_stream_id,
                origin_epoch=header.epoch,
                origin_receipt=event.receipt,
                origin_hub_id=header.source_hub_id,
                reason=event.withheld_reason or "",
                bundle_id=self._bundle_id,
                position=self._position,
                import_time=0,
                bridge_id=header.bridge_id,
            )
        opened = None
        if event.opening is not None and (opened := self._open(event.opening, msg)) is None:
            return None
        if event.attachments and opened is not None and att_root_of(event.attachments) != opened.hdr.att_root:
            self.fault = self._rejection("AGB.ATTACHMENT", "the attachments do not lead to att_root of the event")
            return None
        has_key = bool(event.attachments) and opened is not None
        carried = len(event.msg or b"") if opened is None else len(opened.body)
        carried += 34 * len(event.attachments)
        if carried > MAX_CARRIED_BYTES:
            self.fault = self._rejection("AGB.MAPPING", f"{carried} bytes do not fit into an imported event")
            return None
        return ImportedEvent(
            origin_stream_id=header.export_stream_id,
            origin_epoch=header.epoch,
            origin_schema=None if opened is None else opened.hdr.schema,
            origin_header=None if opened is None else cbor.encode(opened.hdr.to_tree()),
            origin_body=None if opened is None else opened.body,
            origin_msg=event.msg if opened is None else None,
            origin_digest=Msg.digest_of(event.msg or b""),
            origin_sig=msg.sig,
            origin_msg_id=receipt.leaf_hash,
            origin_client=msg.client_id,
            origin_receipt=event.receipt,
            origin_hub_id=header.source_hub_id,
            bundle_id=self._bundle_id,
            position=self._position,
            import_time=0,
            bridge_id=header.bridge_id,
            attachments=event.attachments,
            opening=event.opening if has_key else None,
            aad=Binding.of(msg).aad() if has_key else None,
        )

    def _open(self, opening: bytes, msg: Msg) -> Opened | None:
        try:
            opened = open_with_opening(opening, msg)
        except OpenError:
            self.fault = self._rejection("AGB.OPENING", "the opening does not open the message")
            return None
        except VeenError as exc:
            self.fault = self._rejection("AGB.SCHEMA", f"what was sealed breaks the form: {exc}")
            return None
        if opened.hdr.schema == sdr.EVENT.id:
            try:
                sdr.RecorderEvent.from_bytes(opened.body)
            except FormatError as exc:
                self.fault = self._rejection("AGB.SCHEMA", f"the body is no recorder event: {exc}")
                return None
        return opened

    def _rejection(self, code: str, detail: str) -> Rejected:
        return Rejected(code, detail, self._position)


def _batches(contents: Iterator[BundleEvent | BundleAttachment]) -> Iterator[list[BundleEvent] | BundleAttachment]:
    """Yield events in batches, and attachments one by one behind the batch that ends with their event."""
    batch: list[BundleEvent] = []
    size = 0
    for event in contents:
        if isinstance(event, BundleAttachment):
            if batch:
                yield batch
                batch, size = [], 0
            yield event
            continue
        batch.append(event)
        size += len(event.msg or b"")
        if len(batch) >= _BATCH or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
