"""A replica: a hub without keys, which serves the log of another one and writes what that one has decided (D-78).

It is a hub in everything else: the same directory, the same journal and recovery, the same answers to readers. Who
follows the primary, verifies and calls `Sequencer.replicate`, is above (`veen.products.federation`). A replica cannot
sign: checkpoints are those of the primary, kept where they seal chunks, and asked for otherwise.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, Final

from veen.core.errors import FormatError
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.envelopes import CheckpointRequest, CheckpointResponse
from veen.core.objects.identity import HubIdentity
from veen.core.objects.tooling import MAX_LISTED, CheckpointRangeRequest, LabelRequest
from veen.fs.errors import CorruptError, StorageError
from veen.fs.local import Fs
from veen.hub.api.access import Role
from veen.hub.api.calls import Call
from veen.hub.api.label_order import LabelOrder
from veen.hub.api.reply import ApiError, Reply, dump_json
from veen.hub.process.metrics import Value
from veen.hub.process.runtime import Hub
from veen.hub.process.startup import Sealing
from veen.storage import layout
from veen.storage.keys import identity as identities
from veen.storage.keys.identity import HubKeys, MissingKeyError
from veen.storage.label_files import LabelFiles, LabelHead
from veen.storage.scan import read_file

__all__ = ["FollowedIdentity", "ReplicaHub"]

# (label, upto_seq) -> the checkpoint that the primary signed; ApiError if it cannot be had now
AskCheckpoint = Callable[[bytes, int], Awaitable[Checkpoint]]
_MAX_CHECKPOINTS: Final = 16_384


class FollowedIdentity(Sealing):
    """The identity of the primary: its public keys, and checkpoints that it signed."""

    def __init__(self, fs: Fs) -> None:
        self._fs = fs
        self._checkpoints: dict[tuple[bytes, int], Checkpoint] = {}  # the newest are last
        super().__init__(HubKeys(identities.read_identity(fs), {}))

    def replace(self, keys: HubKeys) -> None:
        self.held, self.signed_identity = keys, self._sign(keys)

    def _sign(self, keys: HubKeys) -> tuple[HubIdentity, bytes]:
        """With the signature that the primary sent."""
        return keys.identity, identities.read_signatures(self._fs)[-1]

    def keep(self, checkpoint: Checkpoint) -> None:
        """A checkpoint that was verified."""
        self._checkpoints.pop((checkpoint.label_curr, checkpoint.upto_seq), None)
        self._checkpoints[checkpoint.label_curr, checkpoint.upto_seq] = checkpoint
        if len(self._checkpoints) > _MAX_CHECKPOINTS:
            del self._checkpoints[next(iter(self._checkpoints))]

    def at_hand(self, label: bytes, upto_seq: int) -> Checkpoint | None:
        """A checkpoint of the primary that is here: in memory, for a seal to come, or of a sealed chunk."""
        if (checkpoint := self._checkpoints.get((label, upto_seq))) is not None:
            return checkpoint
        for path in (layout.replica_seal(label, upto_seq), layout.checkpoint(label, upto_seq)):
            if self._fs.exists(path):
                try:
                    return Checkpoint.from_bytes(read_file(self._fs, path))
                except FormatError as exc:
                    raise CorruptError(path, 0, str(exc)) from exc
        return None

    def seal(self, files: LabelFiles | LabelHead, upto_seq: int, mmr_root: bytes, hub_ts: int) -> Checkpoint:
        checkpoint = self.at_hand(files.label, upto_seq)
        if checkpoint is None:
            raise MissingKeyError(self.held.identity.signing_key_at(hub_ts).key_id)
        if checkpoint.mmr_root != mmr_root:
            raise StorageError(f"the checkpoint of the primary for entry {upto_seq} has another root than the log here")
        return checkpoint


class ReplicaHub(Hub):
    """A hub that follows. `ask_checkpoint` and `lag` are set by whoever follows the primary for it."""

    is_replica: ClassVar[bool] = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.ask_checkpoint: AskCheckpoint | None = None
        self.lag: Callable[[], tuple[int, float]] = lambda: (0, 0.0)  # entries, seconds
        self.followed: FollowedIdentity

    def _open_keys(self) -> HubKeys:
        """The identity was written when the directory was made a replica; keys are never read."""
        if not self.fs.exists(layout.REPLICA):
            raise StorageError(f"{layout.REPLICA}: the file is missing, so this directory is no replica")
        self.followed = FollowedIdentity(self.fs)
        return self.followed.held

    def _sealing(self, keys: HubKeys) -> Sealing:
        return self.followed

    def _replica_gauges(self) -> Mapping[str, Value]:
        entries, seconds = self.lag()
        return {"veen_replica_lag_entries": entries, "veen_replica_lag_seconds": round(seconds, 3)}

    # --- checkpoints -----------------------------------------------------------------------------------

    def _add_operations(self) -> None:
        self.api.add(
            {
                "checkpoint": (Role.READ, self._checkpoint),
                "checkpoint_latest": (Role.READ, self._checkpoint_latest),
                "checkpoint_range": (Role.READ, self._checkpoint_range),
            }
        )

    async def _checkpoint(self, call: Call) -> Reply:
        request = self.api.context.read(call, CheckpointRequest)
        self.api.context.entry(request.label, request.upto_seq, "upto_seq")
        return self._checkpoint_reply(await self._signed(request.label, request.upto_seq), call)

    async def _checkpoint_latest(self, call: Call) -> Reply:
        files = self.api.context.files(self.api.context.read(call, LabelRequest).label)
        return self._checkpoint_reply(await self._signed(files.label, files.size), call)

    async def _checkpoint_range(self, call: Call) -> Reply:
        request = self.api.context.read(call, CheckpointRangeRequest)
        order = LabelOrder(self.api.context)
        if request.label is not None:
            files = self.sequencer.store.files(request.label)
            in_range = files is not None and request.epoch_min <= files.epoch <= request.epoch_max
            heads = [files.head()] if files is not None and in_range else []
        else:
            listed = order.between(request.epoch_min, request.epoch_max, request.after, MAX_LISTED)
            heads = [head async for head in listed]
        checkpoints = [await self._signed(head.label, head.size) for head in heads]
        json_form = call.answer == "json"
        items = [dump_json(checkpoint.to_json()) if json_form else checkpoint.to_bytes() for checkpoint in checkpoints]
        return self.api.replies.sequence(items, call.answer)

    def _checkpoint_reply(self, checkpoint: Checkpoint, call: Call) -> Reply:
        return self.api.replies.ok(
            CheckpointResponse(checkpoint=checkpoint, server_version=self.server_version), call.answer
        )

    async def _signed(self, label: bytes, upto_seq: int) -> Checkpoint:
        """The primary's own; from here if it was asked for before."""
        if (checkpoint := self.followed.at_hand(label, upto_seq)) is not None:
            return checkpoint
        if self.ask_checkpoint is None:
            raise ApiError.unavailable("only the primary can sign this checkpoint, and it cannot be reached")
        return await self.ask_checkpoint(label, upto_seq)
