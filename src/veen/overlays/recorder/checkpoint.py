"""sdr.checkpoint.v1: one root over all streams of a recorder, chained to the checkpoint before it (D-105, D-123).

The hub signs a CHECKPOINT for each label; `log_root` binds them into one value: an MMR over
Ht("sdr/log-leaf", label ‖ u64be(last_seq) ‖ mmr_root), sorted by label. `prev` is the msg_id of the previous record, so
records that are left out leave a gap.

    SDR.LOG_ROOT    log_root does not follow from the streams
    SDR.ORDER       the streams are not sorted by label, or one is listed twice
    SDR.CHECKPOINT  the hub's CHECKPOINT of a stream is about another label, position or root
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self

from veen.core.hashing import Ht, u64be
from veen.core.objects.checkpoint import Checkpoint
from veen.core.tree.mmr import Mmr, Tags
from veen.core.wire import VERSION, Fields, Form, Wire
from veen.overlays.framework.body import Body, Draft, InvalidBody
from veen.overlays.framework.schema import Schema

__all__ = ["CHECKPOINT", "EMPTY_ROOT", "RecorderCheckpoint", "StreamHead", "checkpoint", "log_root_of"]

EMPTY_ROOT: Final = bytes(32)  # mmr_root of a stream without entries, and log_root of no streams
_TAGS: Final = Tags(node="sdr/log-node", root="sdr/log-root")
_MAX_STREAMS: Final = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamHead(Wire):
    """Where one label of one stream ended, under the hub's signature. `checkpoint` is empty if it has no entry."""

    KIND: ClassVar[str] = "stream head"
    FORM: ClassVar[Form] = "array"

    stream_id: bytes
    label: bytes
    epoch: int
    last_seq: int
    mmr_root: bytes
    checkpoint: bytes

    @classmethod
    def _read(cls, f: Fields) -> Self:
        return cls(
            stream_id=f.bstr("stream_id", 32),
            label=f.bstr("label", 32),
            epoch=f.uint("epoch"),
            last_seq=f.uint("last_seq"),
            mmr_root=f.bstr("mmr_root", 32),
            checkpoint=f.blob("checkpoint"),
        )

    def _write(self) -> dict[str, Any]:
        return {
            "stream_id": self.stream_id,
            "label": self.label,
            "epoch": self.epoch,
            "last_seq": self.last_seq,
            "mmr_root": self.mmr_root,
            "checkpoint": self.checkpoint,
        }

    def leaf(self) -> bytes:
        return Ht("sdr/log-leaf", self.label + u64be(self.last_seq) + self.mmr_root)

    def sealed(self) -> Checkpoint | None:
        """The hub's CHECKPOINT, which must be about this head; None for a stream without entries."""
        if not self.last_seq:
            if self.checkpoint or self.mmr_root != EMPTY_ROOT:
                raise InvalidBody("SDR.CHECKPOINT", "a stream without entries has neither root nor CHECKPOINT")
            return None
        signed = Checkpoint.from_bytes(self.checkpoint)
        if (signed.label_curr, signed.upto_seq, signed.mmr_root) != (self.label, self.last_seq, self.mmr_root):
            raise InvalidBody("SDR.CHECKPOINT", "the hub's CHECKPOINT is about another label, position or root")
        return signed


def log_root_of(streams: Sequence[StreamHead]) -> bytes:
    """One root over the heads, which are sorted by label."""
    tree = Mmr(tags=_TAGS)
    for head in streams:
        tree.append(head.leaf())
    return tree.root() if tree.size else EMPTY_ROOT


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderCheckpoint(Body):
    """sdr.checkpoint.v1"""

    KIND: ClassVar[str] = "sdr.checkpoint.v1"

    log_root: bytes
    streams: tuple[StreamHead, ...]
    hub_id: bytes
    hub_pk: bytes
    profile_id: bytes  # of VEEN
    sdr_profile_id: bytes  # of the recorder's configuration (D-124)
    ts: int
    prev: bytes | None = None

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        body = cls(
            log_root=f.bstr("log_root", 32),
            streams=f.objects("streams", StreamHead, at_most=_MAX_STREAMS),
            hub_id=f.bstr("hub_id", 32),
            hub_pk=f.bstr("hub_pk", 32),
            profile_id=f.bstr("profile_id", 32),
            sdr_profile_id=f.bstr("sdr_profile_id", 32),
            ts=f.uint("ts"),
            prev=f.optional(f.bstr, "prev", 32),
        )
        labels = [head.label for head in body.streams]
        if labels != sorted(set(labels)):
            raise InvalidBody("SDR.ORDER", "the streams are sorted by label, each listed once")
        if body.log_root != log_root_of(body.streams):
            raise InvalidBody("SDR.LOG_ROOT", "log_root does not follow from the streams")
        for head in body.streams:
            head.sealed()
        return body

    def _write(self) -> dict[str, Any]:
        return {
            "ver": VERSION,
            "log_root": self.log_root,
            "streams": self.streams,
            "hub_id": self.hub_id,
            "hub_pk": self.hub_pk,
            "profile_id": self.profile_id,
            "sdr_profile_id": self.sdr_profile_id,
            "ts": self.ts,
            "prev": self.prev,
        }

    @property
    def events(self) -> int:
        """How many entries it covers."""
        return sum(head.last_seq for head in self.streams)


CHECKPOINT: Final = Schema(RecorderCheckpoint.KIND, RecorderCheckpoint)


def checkpoint(heads: Sequence[StreamHead], **fields: Any) -> Draft:
    """A record over these heads, ready to be sent to record/infrastructure/checkpoints."""
    streams = tuple(sorted(heads, key=lambda head: head.label))
    return CHECKPOINT.draft(RecorderCheckpoint(log_root=log_root_of(streams), streams=streams, **fields))
