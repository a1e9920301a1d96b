"""Evidence of one event that crossed: seven links from its author to its entry in the other zone (K1, AGB-15).

Repeats a query of the sending zone over the imported events: the digests must be equal (QRY-28, D-110).

Rows show the origin's metadata and evidence is the origin's receipts, both carried by imported events. The tree of the
origin's label is built again from the leaves of those receipts, withheld events included, so proofs lead to roots that
the origin's hub signed. A withheld or sealed event cannot be a row; if one matches the query, the digests differ, and
`skipped` of the coverage has their number.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from veen.client.identity.keyring import Keyring
from veen.core.errors import FormatError, VerifyError
from veen.core.event import Event
from veen.core.labels import stream_id_of
from veen.core.objects.identity import HubIdentity
from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt
from veen.core.tree.mmr import Mmr
from veen.core.verdict import Because, Coverage, Reason, StatedBy, Verdict
from veen.io.local import Fs
from veen.io.places import open_fs
from veen.lake.log.columns import ENTRIES, select_columns
from veen.lake.log.decryption import Opener, Skips, in_order, reader_of
from veen.lake.log.entries import ReadSpec, batches
from veen.lake.log.prefix import Clock, LabelRange, Mark, Prefix, make_prefix
from veen.lake.log.slices import LabelStream, Slice
from veen.lake.query import api
from veen.lake.query.descriptor import QueryDescriptor
from veen.lake.query.engine import skip_missing
from veen.lake.query.matches import Match, Witness, match_of, record_of, takes
from veen.overlays.airgap.bodies import OFFLINE, ONLINE, ImportedEvent, WithheldEvent, origin_event, read_crossed
from veen.overlays.framework.schema import AnySchema, Typed
from veen.products.bridge.audit import OFFLINE_LOG, ONLINE_LOG
from veen.products.bridge.bundle import BridgeError, BundleEvent, BundleReader, Rejected
from veen.products.bridge.reconciling import audit_records, has_attachment, import_prefix
from veen.products.bridge.trust import TrustList
from veen.products.bridge.verify import BundleVerdict, judge_alone
from veen.storage.attachments import AttachmentFiles

LINKS: Final = ("author", "receipt", "checkpoint", "bundle", "online log", "offline log", "import")
_LEAVES: Final = ReadSpec(columns=select_columns(["stream_seq", "leaf_hash", "receipt"], ENTRIES), level="none")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceLink:
    """One link: its statement, its result (None: not checked, for lack of input), and details."""

    name: str
    holds: bool | None
    what: str
    facts: dict[str, Any]
    because: Because = Because.COVERAGE  # what it is if it does not hold
    compared: Coverage | None = None  # how far its log was compared


def links_of(
    msg_id: bytes,
    *,
    bundles: Iterable[Path],
    trust: TrustList,
    offline: str,
    online: str | None,
    keyring: Keyring,
) -> list[EvidenceLink]:
    """Return the seven links in the order of LINKS.

    Raise BridgeError if no bundle has the event, Rejected if it is bad.
    """
    path, event, verdict = _bundle_of(msg_id, bundles, trust)
    bundle_id = verdict.trailer.bundle_id
    receipt = Receipt.from_bytes(event.receipt)
    links = [*_origin(event, receipt, verdict), _bundle(path, verdict)]
    links.append(_audit_link("online log", ONLINE_LOG, online, keyring, ONLINE, bundle_id))
    links.append(_audit_link("offline log", OFFLINE_LOG, offline, keyring, OFFLINE, bundle_id))
    links.append(_import_link(msg_id, offline, keyring))
    return links


def verdict_of(links: Sequence[EvidenceLink], msg_id: str) -> Verdict:
    """Return the verdict over the links of one event: good if all of them were checked and are valid."""
    reasons = [
        Reason(link.because if link.holds is False else Because.COVERAGE, f"{link.name}: {link.what}")
        for link in links
        if not link.holds
    ]
    return Verdict.of([link.compared for link in links if link.compared is not None], reasons)


def _bundle_of(msg_id: bytes, bundles: Iterable[Path], trust: TrustList) -> tuple[Path, BundleEvent, BundleVerdict]:
    for path in bundles:
        with path.open("rb") as file:
            try:
                event = next((event for event in BundleReader(file).events() if _leaf(event) == msg_id), None)
            except Rejected:
                continue  # not a bundle, or a damaged one: another may have the event
            if event is not None:
                return path, event, judge_alone(file, trust)
    raise BridgeError(f"no bundle has the event {msg_id.hex()}: name the folder that has its bundle")


def _leaf(event: BundleEvent) -> bytes | None:
    try:
        return Receipt.from_bytes(event.receipt).leaf_hash
    except FormatError:
        return None


def _origin(event: BundleEvent, receipt: Receipt, verdict: BundleVerdict) -> list[EvidenceLink]:
    """Return the first three links; `judge_alone` has verified them."""
    place = {"label": receipt.label.hex(), "stream_seq": receipt.stream_seq}
    if event.msg is None:
        author = EvidenceLink(
            name="author", holds=None, what="the event is withheld: its author stays in its zone", facts={}
        )
    else:
        msg = Msg.from_bytes(event.msg)
        facts = {"client_id": msg.client_id.hex(), "client_seq": msg.client_seq, "sig": msg.sig.hex()}
        author = EvidenceLink(name="author", holds=True, what="the author signed the message", facts=facts)
    signed = {
        **place,
        "hub_id": verdict.header.source_hub_id.hex(),
        "hub_ts": receipt.hub_ts,
        "root": receipt.mmr_root.hex(),
    }
    upto = {"upto_seq": verdict.header.export_seq_to, "root": verdict.root.hex()}
    return [
        author,
        EvidenceLink(name="receipt", holds=True, what="the source hub signed its place", facts=signed),
        EvidenceLink(
            name="checkpoint",
            holds=True,
            what="its place leads to the root of the export checkpoint",
            facts=upto,
            compared=Coverage(
                log=f"sending zone: label {receipt.label.hex()[:16]}…",
                read=verdict.header.export_seq_to,
                head=verdict.header.export_seq_to,
                stated_by=StatedBy.FILE,
                identity=f"ed25519:{verdict.header.source_hub_pk.hex()}",
            ),
        ),
    ]


def _bundle(path: Path, verdict: BundleVerdict) -> EvidenceLink:
    facts = {
        "file": path.name,
        "bundle_id": verdict.trailer.bundle_id.hex(),
        "bundle_seq": verdict.header.bundle_seq,
        "exporter_pk": verdict.trailer.exporter_pk.hex(),
    }
    return EvidenceLink(name="bundle", holds=True, what="a trusted exporter signed the bundle that has it", facts=facts)


def _audit_link(
    name: str, stream: str, uri: str | None, keyring: Keyring, schema: AnySchema, bundle_id: bytes
) -> EvidenceLink:
    if uri is None:
        return EvidenceLink(name=name, holds=None, what=f"{stream} was not given", facts={})
    for client_id, record in audit_records(uri, stream, keyring, schema):
        if record.bundle_id == bundle_id and getattr(record, "result", "imported") in ("imported", "resumed"):
            facts = {"client_id": client_id.hex(), "operator": record.operator, "ts": record.ts, "count": record.count}
            return EvidenceLink(name=name, holds=True, what=f"{stream} has the bundle", facts=facts)
    return EvidenceLink(name=name, holds=False, what=f"{stream} does not have the bundle", facts={})


def _import_link(msg_id: bytes, uri: str, keyring: Keyring) -> EvidenceLink:
    fs, opener = open_fs(uri), Opener(keyring)
    prefix = import_prefix(uri, keyring)
    for label_range in prefix.labels:
        for event in opener.events(fs, skip_missing(label_range.slices)):
            if not isinstance(event, Event) or event.hdr.parent_id != msg_id:
                continue
            crossed = read_crossed(event)
            if isinstance(crossed, Typed):
                link = _place_link(fs, label_range, event.stream_seq, prefix.identity)
                return _add_attachments(link, getattr(crossed.body, "attachments", ()), AttachmentFiles(fs))
    return EvidenceLink(name="import", holds=False, what="no import stream has the event", facts={})


def _add_attachments(link: EvidenceLink, coids: Sequence[bytes], store: AttachmentFiles) -> EvidenceLink:
    """Return the link, valid only if every attachment that crossed is in the store of the receiving zone."""
    if not coids:
        return link
    absent = [coid.hex() for coid in coids if not has_attachment(store, coid)]
    facts = {**link.facts, "attachments": [coid.hex() for coid in coids], "missing_attachments": absent}
    what = f"{len(absent)} of {len(coids)} attachments are missing or damaged" if absent else link.what
    because = link.because if link.holds is False else Because.COVERAGE
    return replace(link, holds=link.holds and not absent, what=what, facts=facts, because=because)


def _place_link(fs: Fs, label_range: LabelRange, seq: int, identity: HubIdentity | None) -> EvidenceLink:
    """Fold the leaves of the label up to its head: the roots at the entry and at the head must be signed by the hub."""
    head = label_range.head
    mmr, holds = Mmr(), identity is not None
    facts: dict[str, Any] = {"label": label_range.label.hex(), "stream_seq": seq}
    for chunk in label_range.chunks:
        for batch in batches(fs, Slice.whole(chunk), _LEAVES):
            for row in batch.to_pylist():
                if row["stream_seq"] > head:
                    continue
                if row["leaf_hash"] is None or row["stream_seq"] != mmr.size + 1:
                    return EvidenceLink(
                        name="import",
                        holds=False,
                        what=f"entry {mmr.size + 1} is damaged or missing",
                        facts=facts,
                        because=Because.EVIDENCE if row["leaf_hash"] is None else Because.COVERAGE,
                    )
                mmr.append(row["leaf_hash"])
                if mmr.size in (seq, head):
                    holds = holds and _is_signed(row["receipt"], mmr, identity)
    receipt = label_range.head_receipt
    facts |= {"head": head, "root": receipt.mmr_root.hex() if receipt else None}
    holds = holds and receipt is not None and mmr.size == head
    return EvidenceLink(
        name="import",
        holds=holds,
        what="the other zone's hub signed its place" if holds else "the other zone's hub did not sign its place",
        facts=facts,
        because=Because.EVIDENCE if identity is not None and receipt is not None else Because.COVERAGE,
        compared=Coverage(
            log=f"receiving zone: label {label_range.label.hex()[:16]}…",
            read=mmr.size,
            head=head,
            stated_by=StatedBy.OWN_FILES,
            identity=None if identity is None else f"ed25519:{identity.current.hub_pk.hex()}",
        ),
    )


def _is_signed(raw: bytes | None, mmr: Mmr, identity: HubIdentity | None) -> bool:
    try:
        receipt = Receipt.from_bytes(raw or b"")
        if identity is not None:
            identity.verify_receipt(receipt)
    except (FormatError, VerifyError):
        return False
    return receipt.stream_seq == mmr.size and receipt.mmr_root == mmr.root()


_MAX_LABELS: Final = 100_000


def replay_imported(
    data_dir: str,
    recorded: api.Recorded,
    *,
    keys: Keyring,
    streams: Mapping[str, str],
    identity: HubIdentity,
) -> api.Comparison:
    """Repeat a recorded query. `streams`: import stream of each stream in its scope; `identity`: that of the origin."""
    descriptor = recorded.descriptor
    for name in descriptor.scope:
        if name not in streams:
            raise BridgeError(f"the query reads {name!r}, and no import stream is named for it")
    source = _Imports(data_dir, descriptor, keys, streams, identity)
    return api.replay_over(source.prefix, source, recorded, leaves=source.leaves)


class _Imports:
    """Matches from import streams. Owned by one thread; reads a stream once for each label of its origin."""

    def __init__(
        self,
        data_dir: str,
        descriptor: QueryDescriptor,
        keys: Keyring,
        streams: Mapping[str, str],
        identity: HubIdentity,
    ) -> None:
        self._uri, self._descriptor, self._keys, self._streams = data_dir, descriptor, keys, streams
        self._identity = identity
        self._by_label: dict[bytes, str] = {}  # the stream of the scope that a label of the origin is of
        labels = [label_range for name in descriptor.scope for label_range in self._labels_of(name, identity)]
        by_label = sorted(labels, key=lambda label_range: label_range.label)
        self.prefix = Prefix(uri=data_dir, identity=identity, labels=tuple(by_label))

    def _labels_of(self, name: str, identity: HubIdentity) -> list[LabelRange]:
        """Return the labels of a stream in the origin's log, as far as they were imported; this zone has no files of
        them.
        """
        heads: dict[bytes, tuple[int, Receipt]] = {}
        for body in self._imports_of(name):
            if body.origin_hub_id == identity.hub_id:
                heads[body.receipt.label] = body.origin_epoch, body.receipt
            if len(heads) > _MAX_LABELS:
                raise BridgeError(f"the imported events of {name!r} are of more than {_MAX_LABELS} labels")
        self._by_label |= dict.fromkeys(heads, name)
        return [
            LabelRange(
                stream=LabelStream(label, epoch, stream_id_of(name)),
                before=Mark(),
                head=receipt.stream_seq,
                head_receipt=receipt,
                chunks=(),
                slices=(),
            )
            for label, (epoch, receipt) in heads.items()
        ]

    def groups(self, skips: Skips) -> None:
        return None

    def matches(self, skips: Skips) -> Iterator[Match]:
        return in_order((0, self._matches_of(label_range.label, skips)) for label_range in self.prefix.labels)

    def leaves(self, label_range: LabelRange) -> Iterator[tuple[int, bytes | None]]:
        for body in self._of_label(label_range.label):
            receipt = body.receipt
            yield receipt.stream_seq, receipt.leaf_hash

    def _matches_of(self, label: bytes, skips: Skips) -> Iterator[Match]:
        clock, wanted, name = Clock(), self._descriptor.filter, self._by_label[label]
        for body in self._of_label(label):
            receipt = body.receipt
            ts = clock.tick(receipt.hub_ts)
            if not wanted.takes_time(receipt.hub_ts):
                continue
            event = origin_event(body, ts) if isinstance(body, ImportedEvent) else None
            if event is None or not isinstance(body, ImportedEvent):
                skips.add(label, "sealed", receipt.stream_seq)
                continue
            record = record_of(event, name)
            if isinstance(record, str):
                skips.add(label, record, receipt.stream_seq)
            elif takes(wanted, record):
                witness = Witness(body.origin_receipt, body.origin_client, body.origin_digest, body.origin_sig)
                yield match_of(self._descriptor, self._identity, record, witness)

    def _of_label(self, label: bytes) -> Iterator[ImportedEvent | WithheldEvent]:
        return (body for body in self._imports_of(self._by_label[label]) if body.receipt.label == label)

    def _imports_of(self, name: str) -> Iterator[ImportedEvent | WithheldEvent]:
        """Yield the records that a bridge wrote to the import stream of a stream, in the order of the log."""
        stream_id = stream_id_of(self._streams[name])
        reader_of(self._keys, stream_id)  # a stream without keys must not pass as an empty one
        fs, opener = open_fs(self._uri), Opener(self._keys)
        labels = make_prefix(self._uri, streams={stream_id}).labels
        for label_range in sorted(labels, key=lambda label_range: label_range.stream.epoch):
            for event in opener.events(fs, skip_missing(label_range.slices)):
                crossed = read_crossed(event) if isinstance(event, Event) else None
                if isinstance(crossed, Typed):
                    yield crossed.body
