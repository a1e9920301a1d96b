"""A replica: a hub without keys, which serves the log of another hub and writes what that hub decided (D-78).

It is a hub in everything else: same directory, journal, recovery and answers to readers. Following the primary,
verifying and calling `Sequencer.replicate` is the work of the room above (`veen.products.federation`). A replica
cannot sign: its checkpoints are those of the primary, stored where they seal chunks, and requested otherwise.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, Final

from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import FormatError
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import ControlRecord, OuterKey
from veen.core.objects.envelopes import CheckpointRequest
from veen.core.objects.identity import HubIdentity
from veen.core.objects.tooling import MAX_LISTED
from veen.core.tlog.note import VerifierKey
from veen.hub.admission.control_index import ControlIndex
from veen.hub.api.access import Role
from veen.hub.api.calls import Call, LabelOrder
from veen.hub.api.reply import ApiError, Reply, dump_json
from veen.hub.api.tooling import GET_LATEST, GET_RANGE, checkpoint_answer, checkpoint_label, checkpoint_range
from veen.hub.process.runtime import Hub
from veen.hub.process.startup import Sealing
from veen.hub.sequencer.sequencer import Sequencer
from veen.io.errors import CorruptError, StorageError
from veen.io.local import Fs
from veen.io.metrics_text import Value
from veen.storage import layout
from veen.storage.keys import identity as identities
from veen.storage.keys.identity import HubKeys, MissingKeyError
from veen.storage.label_files import LabelFiles, LabelHead
from veen.storage.outer import OuterLogFiles
from veen.storage.scan import read_file

# (label, upto_seq) -> the checkpoint that the primary signed; ApiError if the primary cannot be asked now
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
        """Return the identity with the signature that the primary sent."""
        return keys.identity, identities.read_signatures(self._fs)[-1]

    def keep(self, checkpoint: Checkpoint) -> None:
        """Keep a verified checkpoint; drop the oldest beyond the bound."""
        self._checkpoints.pop((checkpoint.label_curr, checkpoint.upto_seq), None)
        self._checkpoints[checkpoint.label_curr, checkpoint.upto_seq] = checkpoint
        if len(self._checkpoints) > _MAX_CHECKPOINTS:
            del self._checkpoints[next(iter(self._checkpoints))]

    def find_checkpoint(self, label: bytes, upto_seq: int) -> Checkpoint | None:
        """Return a stored checkpoint of the primary, from memory, for a coming seal, or of a sealed chunk; None if
        there is none."""
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
        checkpoint = self.find_checkpoint(files.label, upto_seq)
        if checkpoint is None:
            raise MissingKeyError(self.held.identity.signing_key_at(hub_ts).key_id)
        if checkpoint.mmr_root != mmr_root:
            raise StorageError(f"the checkpoint of the primary for entry {upto_seq} has another root than the log here")
        return checkpoint


class FollowedOuter:
    """The copied part of the primary's outer log: served to readers, never signed."""

    def __init__(self, fs: Fs, sequencer: Sequencer, vkey: VerifierKey) -> None:
        self._sequencer, self.vkey = sequencer, vkey
        self.files = OuterLogFiles(fs, vkey)

    def record(self) -> ControlRecord | None:
        return ControlIndex(self._sequencer.store).outer_key()

    def sign_receipt_key(self) -> SigningKey:
        raise ApiError.unavailable("only the primary can sign a receipt of its outer log")


class ReplicaHub(Hub):
    """A hub that follows. The follower of the primary sets `ask_checkpoint`, `lag` and `attachments_missing`."""

    is_replica: ClassVar[bool] = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.ask_checkpoint: AskCheckpoint | None = None
        self.lag: Callable[[], tuple[int, float]] = lambda: (0, 0.0)  # entries, seconds
        self.attachments_missing: Callable[[], int] = lambda: 0
        self.followed: FollowedIdentity
        self.followed_outer: FollowedOuter | None = None  # set once a part of it was copied

    def _open_keys(self) -> HubKeys:
        """Read the identity, which was written when the directory was made a replica. Private keys are never read."""
        if not self.fs.exists(layout.REPLICA):
            raise StorageError(f"{layout.REPLICA}: the file is missing, so this directory is no replica")
        self.followed = FollowedIdentity(self.fs)
        return self.followed.held

    def _make_sealing(self, keys: HubKeys) -> Sealing:
        return self.followed

    def _replica_gauges(self) -> Mapping[str, Value]:
        entries, seconds = self.lag()
        return {
            "veen_replica_lag_entries": entries,
            "veen_replica_lag_seconds": round(seconds, 3),
            "veen_replica_attachments_missing": self.attachments_missing(),
        }

    # --- the outer log ---------------------------------------------------------------------------------

    async def _open_outer(self) -> None:
        """Open the copy of the outer log. It is served while the primary is away; the configured origin is for a
        primary."""
        self._stack.callback(self._close_outer)
        record = ControlIndex(self.sequencer.store).outer_key()
        if record is not None and isinstance(record.body, OuterKey) and OuterLogFiles.exists(self.fs):
            self.follow_outer(VerifierKey.parse(record.body.vkey))

    def follow_outer(self, vkey: VerifierKey) -> FollowedOuter:
        """Return the copy of the outer log; begin one if there is none. The control journal must bind the key."""
        if self.followed_outer is None:
            self.followed_outer = FollowedOuter(self.fs, self.sequencer, vkey)
        return self.followed_outer

    def _close_outer(self) -> None:
        if self.followed_outer is not None:
            self.followed_outer.files.close()

    def _outer_to_serve(self) -> FollowedOuter | None:
        return self.followed_outer

    # --- checkpoints -----------------------------------------------------------------------------------

    def _add_operations(self) -> None:
        self.api.add(
            {
                "checkpoint": (Role.READ, self._checkpoint),
                "checkpoint_latest": (Role.READ, self._checkpoint_latest),
                "checkpoint_range": (Role.READ, self._checkpoint_range),
                GET_LATEST: (Role.READ, self._checkpoint_latest),
                GET_RANGE: (Role.READ, self._checkpoint_range),
            }
        )

    async def _checkpoint(self, call: Call) -> Reply:
        request = self.api.context.read(call, CheckpointRequest)
        self.api.context.entry(request.label, request.upto_seq, "upto_seq")
        return self._checkpoint_reply(await self._checkpoint_of(request.label, request.upto_seq), call)

    async def _checkpoint_latest(self, call: Call) -> Reply:
        files = self.api.context.files(checkpoint_label(self.api.context, call))
        return self._checkpoint_reply(await self._checkpoint_of(files.label, files.size), call)

    async def _checkpoint_range(self, call: Call) -> Reply:
        request = checkpoint_range(self.api.context, call)
        order = LabelOrder(self.api.context)
        if request.label is not None:
            files = self.api.context.store.files(request.label)
            in_range = files is not None and request.epoch_min <= files.epoch <= request.epoch_max
            heads = [files.head()] if files is not None and in_range else []
        else:
            listed = order.iterate(request.epoch_min, request.epoch_max, request.after, MAX_LISTED)
            heads = [head async for head in listed]
        checkpoints = [await self._checkpoint_of(head.label, head.size) for head in heads]
        json_form = call.answer == "json"
        items = [dump_json(checkpoint.to_json()) if json_form else checkpoint.to_bytes() for checkpoint in checkpoints]
        return self.api.replies.sequence(items, call.answer)

    def _checkpoint_reply(self, checkpoint: Checkpoint, call: Call) -> Reply:
        return self.api.replies.ok(checkpoint_answer(checkpoint, self.server_version, call), call.answer)

    async def _checkpoint_of(self, label: bytes, upto_seq: int) -> Checkpoint:
        """Return the primary's own checkpoint: the stored one, or else ask for it."""
        if (checkpoint := self.followed.find_checkpoint(label, upto_seq)) is not None:
            return checkpoint
        if self.ask_checkpoint is None:
            raise ApiError.unavailable("only the primary can sign this checkpoint, and it cannot be reached")
        return await self.ask_checkpoint(label, upto_seq)
