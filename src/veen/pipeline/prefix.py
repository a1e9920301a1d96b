"""A pinned prefix of labels: what one execution reads, and the roots that bind what it makes (OVL-11).

A plan of small values without secrets: it names files, positions and ids of streams, and travels to executors. Which
stream a label is of, the control journal says; where the hub is known, the label itself proves it, and also tells the
stream of labels that the journal is silent about.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from veen.core.errors import VeenError
from veen.core.hubkeys import HubIdentity
from veen.core.labels import epoch_at, label_of, routing_key_of
from veen.core.profile import PRESETS
from veen.core.receipt import Receipt
from veen.overlays.snapshot import Cut
from veen.pipeline import bronze
from veen.pipeline.columns import ENTRIES, chosen
from veen.pipeline.errors import PipelineError
from veen.pipeline.files import absolute, open_fs
from veen.pipeline.inventory import ChunkRef, LabelPin, Pinned, first_ts, pin
from veen.pipeline.plan import Piece
from veen.storage.fs import Fs

__all__ = [
    "LabelPart",
    "Mark",
    "Place",
    "Prefix",
    "Shortened",
    "_epochs",
    "make_prefix",
    "place_of",
    "receipt_at",
    "resolve",
]

_RECEIPT: Final = chosen(["stream_seq", "receipt"], ENTRIES)
_NEAR: Final = 2  # epochs around the time of an entry in which its label may lie


class Shortened(PipelineError):
    """Entries that were there before are in the directory no more."""

    hint = "Restore the directory; `veen audit run --since DIRECTORY` tells what happened to it."


class Mark(NamedTuple):
    """How far a label was read before: the last position, and ts* there (D-27)."""

    upto_seq: int = 0
    ts: int = 0


class Place(NamedTuple):
    """A label, and what the directory says about its stream."""

    label: bytes
    epoch: int
    stream_id: bytes | None  # None: the control journal is silent
    routing_key: bytes | None  # None: the hub is not known, and nothing can be proven
    epochs: tuple[int, ...] = ()  # where to look for a stream that is not named

    @property
    def is_foreign(self) -> bool:
        """Whether the journal says what the label disproves: such entries are of another hub, or of another stream."""
        if self.stream_id is None or self.routing_key is None:
            return False
        return label_of(self.routing_key, self.stream_id, self.epoch) != self.label


def resolve(place: Place, streams: Iterable[bytes]) -> Place | None:
    """The place with its stream and epoch, if it is one of `streams`; else None."""
    if place.stream_id is not None:
        return place if place.stream_id in streams and not place.is_foreign else None
    if place.routing_key is None:
        return None
    for epoch in place.epochs:
        for stream_id in streams:
            if label_of(place.routing_key, stream_id, epoch) == place.label:
                return place._replace(stream_id=stream_id, epoch=epoch)
    return None


def place_of(fs: Fs, found: LabelPin, identity: HubIdentity | None) -> Place:
    routing_key = routing_key_of(identity.hub_id) if identity else None
    epochs = _epochs(fs, found) if found.stream_id is None and routing_key is not None else ()
    return Place(found.label, found.epoch, found.stream_id, routing_key, epochs)


def _epochs(fs: Fs, found: LabelPin) -> tuple[int, ...]:
    """The epochs in which a label of unknown stream may lie, by the time of its first entry."""
    begin = first_ts(fs, found.chunks[0]) if found.chunks else None
    epochs = {found.epoch}
    if begin is not None:
        for profile in PRESETS.values():
            now = epoch_at(begin, profile.epoch_sec)
            epochs |= {epoch for epoch in range(now - _NEAR, now + _NEAR + 1) if epoch >= 0}
    return tuple(sorted(epochs))


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelPart:
    """The entries after `before` and up to `head` of one label."""

    place: Place
    before: Mark
    head: int
    head_root: bytes | None  # None if the receipt of the last entry cannot be read
    pieces: tuple[Piece, ...]  # without holes: entries that no file has are pieces of kind "missing"

    @property
    def label(self) -> bytes:
        return self.place.label


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """Some labels of a directory at one moment."""

    uri: str
    identity: HubIdentity | None = None
    labels: tuple[LabelPart, ...]  # by label

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """Where state that is made of this prefix is bound to the log, by label; see `rootless`."""
        return tuple(
            Cut(label=one.label, upto_seq=one.head, mmr_root=one.head_root)
            for one in self.labels
            if one.head_root is not None
        )

    @property
    def rootless(self) -> tuple[bytes, ...]:
        """Labels whose last entry is damaged: nothing binds state to their head."""
        return tuple(one.label for one in self.labels if one.head_root is None)

    @property
    def heads(self) -> dict[bytes, int]:
        return {one.label: one.head for one in self.labels}

    @property
    def entries(self) -> int:
        return sum(one.head - one.before.upto_seq for one in self.labels)

    @property
    def size(self) -> int:
        """About how many bytes of log it has."""
        return sum(piece.size for one in self.labels for piece in one.pieces)


def make_prefix(
    uri: str,
    *,
    streams: Collection[bytes] | None = None,
    labels: Collection[bytes] | None = None,
    since: Mapping[bytes, Mark] | None = None,
    upto: Mapping[bytes, int] | None = None,
    pinned: Pinned | None = None,
    roots: bool = True,
) -> Prefix:
    """Pin the directory, or take `pinned`, and plan to read it.

    `streams` (ids) leaves only labels that are theirs. `since` says how far labels were read before; a label with
    nothing new is left out. `upto` bounds labels, and leaves out those it does not name; Shortened if one is not there
    any more up to that position. Without `roots` nothing of the log is read, and the prefix has no cuts.
    """
    fs = open_fs(uri)
    pinned = pinned or pin(uri)
    found = []
    if upto is not None and (
        gone := sorted(label for label, head in upto.items() if head and label not in pinned.labels)
    ):
        raise Shortened(f"label {gone[0].hex()} had {upto[gone[0]]} entries and is not there any more")
    for label, label_pin in sorted(pinned.labels.items()):
        if labels is not None and label not in labels:
            continue
        if upto is not None and label not in upto:
            continue
        named = place_of(fs, label_pin, pinned.identity)
        place = named if streams is None else resolve(named, streams)
        if place is None:
            continue
        head = label_pin.size if upto is None else upto[label]
        before = (since or {}).get(label, Mark())
        if head > label_pin.size or before.upto_seq > label_pin.size:
            raise Shortened(
                f"label {label.hex()} had {max(head, before.upto_seq)} entries and now has {label_pin.size}"
            )
        if head > before.upto_seq:
            receipt = receipt_at(fs, label_pin.chunks, head) if roots else None
            found.append(
                LabelPart(
                    place=place,
                    before=before,
                    head=head,
                    head_root=receipt.mmr_root if receipt else None,
                    pieces=tuple(_pieces(label_pin, before.upto_seq + 1, head)),
                )
            )
    return Prefix(uri=absolute(uri), identity=pinned.identity, labels=tuple(found))


def _pieces(label_pin: LabelPin, first: int, last: int) -> Iterator[Piece]:
    holes = [
        ChunkRef(
            label=label_pin.label,
            epoch=label_pin.epoch,
            stream_id=label_pin.stream_id,
            start_seq=start,
            end_seq=end,
            path="",
            kind="missing",
            size=0,
        )
        for start, end in label_pin.gaps
    ]
    for ref in sorted((*label_pin.chunks, *holes), key=lambda ref: ref.start_seq):
        if ref.end_seq >= first and ref.start_seq <= last:
            yield Piece(ref, max(ref.start_seq, first), min(ref.end_seq, last))


def receipt_at(fs: Fs, chunks: tuple[ChunkRef, ...], stream_seq: int) -> Receipt | None:
    """The receipt of one entry, as the directory has it; None if it cannot be read."""
    for ref in reversed(chunks):
        if ref.start_seq <= stream_seq <= ref.end_seq:
            for batch in bronze.batches(fs, ref, _RECEIPT, level="hash", first=stream_seq, last=stream_seq):
                for row in batch.to_pylist():
                    try:
                        return Receipt.from_bytes(row["receipt"]) if row["receipt"] is not None else None
                    except VeenError:
                        return None
    return None
