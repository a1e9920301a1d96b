"""Which entries a query has to look at: its streams' labels up to a pinned head, the chunks that can hold its rows.

A plan is a small value without secrets: it names files and ranges, and travels to executors. Heads are pinned once, so
one execution sees one prefix; an execution that is repeated is given the heads of the first (QRY-28).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from veen.core.hubkeys import HubIdentity
from veen.core.labels import stream_id_of
from veen.core.receipt import Receipt
from veen.pipeline.files import open_fs
from veen.pipeline.inventory import ChunkRef, LabelPin, Pinned, pin
from veen.pipeline.plan import Piece, Selection, pieces
from veen.pipeline.prefix import place_of, receipt_at, resolve
from veen.pipeline.query.descriptor import QueryDescriptor
from veen.pipeline.query.errors import EvidenceFailed, ExecutionFailed
from veen.storage.fs import Fs

__all__ = ["LabelPlan", "Plan", "make_plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelPlan:
    """One label of a stream, up to its head."""

    stream: str
    stream_id: bytes
    label: bytes
    epoch: int
    head: int
    head_receipt: Receipt | None  # None if the last entry is damaged
    chunks: tuple[ChunkRef, ...]  # all of them: proofs need every leaf
    pieces: tuple[Piece, ...]  # those that can hold rows
    gaps: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to read, and by whose keys to judge it."""

    uri: str
    identity: HubIdentity | None
    labels: tuple[LabelPlan, ...]  # by stream_id, epoch and label

    @property
    def hub_id(self) -> str | None:
        return self.identity.hub_id.hex() if self.identity else None


def make_plan(
    uri: str,
    descriptor: QueryDescriptor,
    *,
    heads: Mapping[bytes, int] | None = None,
    identity: HubIdentity | None = None,
) -> Plan:
    """Pin the directory, find the labels of the scope, choose chunks by time.

    `heads` are those of an earlier execution: the same prefix is looked at again, or EvidenceFailed says what is gone.
    `identity` is the hub's, where it is known from elsewhere; a directory of another hub is refused.
    """
    fs = open_fs(uri)
    if not fs.exists("log"):
        raise ExecutionFailed(f"{uri}: there is no log")
    pinned = pin(uri)
    if identity is not None:
        if pinned.identity is not None and pinned.identity.hub_id != identity.hub_id:
            raise EvidenceFailed(
                f"the directory is of hub {pinned.identity.hub_id.hex()}, not of {identity.hub_id.hex()}"
            )
        pinned = replace(pinned, identity=identity)
    found = [
        _label_plan(fs, pinned, label_pin, stream, epoch, descriptor, heads)
        for label_pin, stream, epoch in _labels_of(fs, pinned, descriptor.scope)
        if label_pin.size and (heads is None or label_pin.label in heads)
    ]
    if heads is not None and (gone := sorted(set(heads) - {one.label for one in found})):
        raise EvidenceFailed(f"label {gone[0].hex()} was covered before and is not in the directory any more")
    order = sorted(found, key=lambda one: (one.stream_id, one.epoch, one.label))
    return Plan(uri=uri, identity=pinned.identity, labels=tuple(order))


def _labels_of(fs: Fs, pinned: Pinned, scope: Iterable[str]) -> Iterator[tuple[LabelPin, str, int]]:
    """The labels of the streams, each with the name of its stream and its epoch."""
    streams = {stream_id_of(name): name for name in scope}
    for _, label_pin in sorted(pinned.labels.items()):
        place = resolve(place_of(fs, label_pin, pinned.identity), streams)
        if place is not None and place.stream_id is not None:
            yield label_pin, streams[place.stream_id], place.epoch


def _label_plan(
    fs: Fs,
    pinned: Pinned,
    label_pin: LabelPin,
    stream: str,
    epoch: int,
    descriptor: QueryDescriptor,
    heads: Mapping[bytes, int] | None,
) -> LabelPlan:
    label = label_pin.label
    head = label_pin.size if heads is None else heads[label]
    if head > label_pin.size:
        raise EvidenceFailed(f"label {label.hex()} had {head} entries and now has {label_pin.size}: the log was cut")
    chunks = tuple(ref for ref in label_pin.chunks if ref.start_seq <= head)
    wanted = Selection(
        labels=frozenset((label,)),
        last_seq=head,
        first_ts=descriptor.filter.first_ts,
        last_ts=descriptor.filter.last_ts,
    )
    narrowed = replace(pinned, labels={label: replace(label_pin, chunks=chunks)})
    return LabelPlan(
        stream=stream,
        stream_id=stream_id_of(stream),
        label=label,
        epoch=epoch,
        head=head,
        head_receipt=receipt_at(fs, chunks, head),
        chunks=chunks,
        pieces=tuple(pieces(fs, narrowed, wanted)),
        gaps=tuple((first, min(last, head)) for first, last in label_pin.gaps if first <= head),
    )
