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
from typing import Annotated, Any, ClassVar, Final

from veen.core.hashing import Ht, u64be
from veen.core.objects.checkpoint import Checkpoint
from veen.core.tree.mmr import Mmr, Tags
from veen.core.wire import VERSION, Bytes32, Form, Length, Uint, Version, Wire
from veen.overlays.framework.schema import Body, Draft, InvalidBody, Schema
from veen.overlays.framework.typed_table import TypedColumn, TypedTable

EMPTY_ROOT: Final = bytes(32)  # mmr_root of a stream without entries, and log_root of no streams
_TAGS: Final = Tags(node="sdr/log-node", root="sdr/log-root")
_MAX_STREAMS: Final = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamHead(Wire, kind="stream head"):
    """The end of one label of a stream, signed by the hub. `checkpoint` is empty if the label has no entry."""

    FORM: ClassVar[Form] = "array"

    stream_id: Bytes32
    label: Bytes32
    epoch: Uint
    last_seq: Uint
    mmr_root: Bytes32
    checkpoint: bytes

    def leaf(self) -> bytes:
        return Ht("sdr/log-leaf", self.label + u64be(self.last_seq) + self.mmr_root)

    def read_checkpoint(self) -> Checkpoint | None:
        """Return the hub's CHECKPOINT, which must be about this head; None for a stream without entries."""
        if not self.last_seq:
            if self.checkpoint or self.mmr_root != EMPTY_ROOT:
                raise InvalidBody("SDR.CHECKPOINT", "a stream without entries has neither root nor CHECKPOINT")
            return None
        signed = Checkpoint.from_bytes(self.checkpoint)
        if (signed.label_curr, signed.upto_seq, signed.mmr_root) != (self.label, self.last_seq, self.mmr_root):
            raise InvalidBody("SDR.CHECKPOINT", "the hub's CHECKPOINT is about another label, position or root")
        return signed


def log_root_of(streams: Sequence[StreamHead]) -> bytes:
    """Return one root over the heads, which are sorted by label."""
    tree = Mmr(tags=_TAGS)
    for head in streams:
        tree.append(head.leaf())
    return tree.root() if tree.size else EMPTY_ROOT


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderCheckpoint(Body, kind="sdr.checkpoint.v1"):
    """One root over all streams of a recorder."""

    ver: ClassVar[Version] = VERSION
    log_root: Bytes32
    streams: Annotated[tuple[StreamHead, ...], Length(0, _MAX_STREAMS)]
    hub_id: Bytes32
    hub_pk: Bytes32
    profile_id: Bytes32  # of VEEN
    sdr_profile_id: Bytes32  # of the recorder's configuration (D-124)
    ts: Uint
    prev: Bytes32 | None = None

    def _check(self) -> None:
        labels = [head.label for head in self.streams]
        if labels != sorted(set(labels)):
            raise InvalidBody("SDR.ORDER", "streams must be sorted by label, without repetition")
        if self.log_root != log_root_of(self.streams):
            raise InvalidBody("SDR.LOG_ROOT", "log_root is not the root of the streams")
        for head in self.streams:
            head.read_checkpoint()

    @property
    def events(self) -> int:
        """Number of entries that it covers."""
        return sum(head.last_seq for head in self.streams)


CHECKPOINT: Final = Schema(RecorderCheckpoint.KIND, RecorderCheckpoint)


def _columns(body: RecorderCheckpoint) -> dict[str, object]:
    fields = {"body_ts" if name == "ts" else name: value for name, value in body.present_fields() if name != "ver"}
    return fields | {"streams": [dict(head.present_fields()) for head in body.streams], "events": body.events}


CHECKPOINT_TABLE: Final = TypedTable(
    schema=CHECKPOINT,
    columns=(
        TypedColumn("log_root", "hex", "the root over the heads of all streams"),
        TypedColumn("streams", "json", "the head of each stream, by label"),
        TypedColumn("hub_id", "hex", "the hub"),
        TypedColumn("hub_pk", "hex", "its key"),
        TypedColumn("profile_id", "hex", "of VEEN"),
        TypedColumn("sdr_profile_id", "hex", "of the configuration of the recorder"),
        TypedColumn("body_ts", "time", "when it was made"),
        TypedColumn("prev", "hex", "the checkpoint before it"),
        TypedColumn("events", "integer", "how many entries it covers"),
    ),
    values=_columns,
)


def checkpoint(heads: Sequence[StreamHead], **fields: Any) -> Draft:
    """Build a record over these heads, to be sent to record/infrastructure/checkpoints."""
    streams = tuple(sorted(heads, key=lambda head: head.label))
    return CHECKPOINT.draft(RecorderCheckpoint(log_root=log_root_of(streams), streams=streams, **fields))
