"""Repeats a query of the sending zone over the imported events: the digests must be equal (QRY-28, D-110).

Rows show the origin's metadata and evidence is the origin's receipts, both carried by imported events. The tree of the
origin's label is built again from the leaves of those receipts, withheld events included, so proofs lead to roots that
the origin's hub signed. A withheld or sealed event cannot be a row; if one matches the query, the digests differ, and
`skipped` of the coverage has their number.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from veen.client.identity.keyring import Keyring
from veen.core.event import Event
from veen.core.labels import stream_id_of
from veen.core.objects.identity import HubIdentity
from veen.core.objects.receipt import Receipt
from veen.io.places import open_fs
from veen.lake.log.decryption import Opener, in_order, reader_of
from veen.lake.log.prefix import LabelRange, Mark, Prefix, make_prefix
from veen.lake.log.skips import Skips
from veen.lake.log.slices import LabelStream
from veen.lake.log.times import Clock
from veen.lake.query import api
from veen.lake.query.descriptor import QueryDescriptor
from veen.lake.query.engine import skip_missing
from veen.lake.query.matches import Match, Witness, match_of, record_of, takes
from veen.overlays.airgap.bodies import ImportedEvent, WithheldEvent, origin_event, read_crossed
from veen.overlays.framework.decode import Typed
from veen.products.bridge.errors import BridgeError

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
