"""Rotation of a hub's key, at rest or running, and the check of its rotations (spec §8.4, D-37, D-41, decisions.md
26)."""

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import VerifyError
from veen.core.objects.control import ControlRecord, KeyRotate
from veen.core.objects.identity import HubIdentity
from veen.hub.admission.control_index import ControlIndex
from veen.hub.process.startup import Sealing, at_rest, rotation_records
from veen.hub.sequencer.clock import HubClock
from veen.hub.sequencer.sequencer import NotDurable, Sequencer
from veen.io.errors import CorruptError, StorageError
from veen.io.local import Fs
from veen.storage.keys import identity as identities
from veen.storage.keys import rotation as keyrotation
from veen.storage.maintenance.rotation_repair import all_control_records

# The new key signs nothing before: clients that pin keys can fetch the identity before they see its signatures.
LEAD_SECONDS: Final = 10
_READ_AGAIN: Final = 2
_PAUSE_SECONDS: Final = 0.2


def rotate_at_rest(
    fs: Fs,
    now: int,
    overlap_seconds: int,
    draw: Callable[[int], bytes] = os.urandom,
    *,
    request_id: bytes | None = None,
    accept_clock: bool = False,
) -> HubIdentity:
    """Add a key that is valid from the next second on. The hub must not run.

    Under the `request_id` of an earlier rotation, change nothing.
    """
    with at_rest(fs, now, accept_clock=accept_clock) as hub:
        if request_id is not None and ControlIndex(hub.store).outcome(request_id, KeyRotate.KIND) is not None:
            return hub.keys.identity
        # One second later: without overlap, the record itself must still be signed by a key that is valid at its time.
        rotated, _ = keyrotation.rotate(
            fs,
            hub.keys,
            draw(32),
            hub_ts=hub.hub_ts,
            lead_seconds=1,
            overlap_seconds=overlap_seconds,
            journal=partial(hub.journal, request_id=request_id),
        )
        hub.sealing.replace(rotated)
    return rotated.identity


class Rotation:
    """Rotation of a running hub's key while it goes on admitting; one at a time.

    The new key signs nothing before record and identity files are durable. It is valid only some seconds after the
    record, and if the disk takes longer, hub_ts is held before that second. So a crash leaves no entry that
    recovery, which reads the identity before the journal, could not verify.
    """

    def __init__(
        self,
        fs: Fs,
        sequencer: Sequencer,
        sealing: Sealing,
        clock: HubClock,
        *,
        failed: Callable[[BaseException], None],
        given_keys: bool = False,
        draw: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._fs, self._sequencer, self._sealing, self._clock = fs, sequencer, sealing, clock
        self._failed, self._given_keys, self._draw = failed, given_keys, draw
        self._lock = asyncio.Lock()  # held by the rotation's own task: its caller may disconnect before it ends
        self._running: set[asyncio.Task[ControlRecord]] = set()

    async def rotate(self, overlap_seconds: int, request_id: bytes | None = None) -> ControlRecord:
        """Return the key.rotate record, once it is in force. Continue to the end even if the caller disconnects.

        Under the `request_id` of an earlier rotation, return the record of that one and change nothing.
        """
        rotating = asyncio.create_task(self._rotate_in_turn(overlap_seconds, request_id))
        self._running.add(rotating)
        rotating.add_done_callback(self._on_end)
        return await asyncio.shield(rotating)

    def _on_end(self, rotating: asyncio.Task[ControlRecord]) -> None:
        self._running.discard(rotating)
        if not rotating.cancelled():
            rotating.exception()  # mark it as retrieved: the caller may have disconnected

    async def finish(self) -> None:
        """Wait for all running rotations: the sequencer must not close before."""
        if self._running:
            await asyncio.wait(self._running)

    async def _rotate_in_turn(self, overlap_seconds: int, request_id: bytes | None) -> ControlRecord:
        async with self._lock:
            if request_id is not None:
                await self._sequencer.wait_settled()  # see decisions.md 498
                outcome = ControlIndex(self._sequencer.store).outcome(request_id, KeyRotate.KIND)
                if outcome is not None:
                    return outcome
            return await self._rotate(overlap_seconds, request_id)

    async def _rotate(self, overlap_seconds: int, request_id: bytes | None) -> ControlRecord:
        keys = self._sealing.held
        # Checked before a key is written: a refused rotation leaves nothing behind.
        keyrotation.validity_of_next(keys.identity, self._sequencer.now(), LEAD_SECONDS, overlap_seconds)
        if keys.root is not None:
            await asyncio.to_thread(keyrotation.check_signer, self._fs, keys.root)
        # The private key is durable before the record that names it: a crash in between leaves an unused key file, and
        # never a record whose key is lost.
        new = await asyncio.to_thread(self._new_key, keys.identity)
        rotated = keys.identity

        def make(hub_ts: int) -> KeyRotate:
            nonlocal rotated
            rotated = keyrotation.next_identity(
                keys.identity,
                new.public,
                hub_ts=hub_ts,
                lead_seconds=LEAD_SECONDS,
                overlap_seconds=overlap_seconds,
            )
            # No entry gets a time at which the new key is valid until its identity is published below.
            self._clock.hold(rotated.current.valid_from - 1)
            return rotated.rotations()[-1]

        try:
            record = await self._sequencer.control(make, request_id=request_id)
        except NotDurable:  # the record may still be on the disk: wait until the store has been opened again, and look
            await self._sequencer.wait_settled()
            record = next(
                (candidate for candidate in rotation_records(self._sequencer.store) if _introduces(candidate, new)),
                None,
            )
            # Unknown: the next start may find the record, and need the key.
            if record is None and self._sequencer.is_stopped:
                self._clock.release()
                raise
        except Exception:  # refused before a record was made: nothing names the key
            self._clock.release()
            await asyncio.to_thread(self._forget_key, new)
            raise
        if record is None:
            self._clock.release()
            await asyncio.to_thread(self._forget_key, new)
            raise StorageError("the key.rotate record could not be made durable: nothing has changed")
        try:
            await asyncio.to_thread(keyrotation.publish, self._fs, rotated, keys.root or new)
        except BaseException as exc:  # the record is durable, the identity files are not: the next start completes them
            self._failed(exc)
            raise
        self._sealing.replace(replace(keys, identity=rotated, private={**keys.private, new.public: new}))
        self._clock.release()
        return record

    def _new_key(self, identity: HubIdentity) -> SigningKey:
        if self._given_keys:
            return keyrotation.read_given_key(self._fs, identity)
        key = SigningKey(self._draw(32))
        identities.write_key(self._fs, key)
        return key

    def _forget_key(self, key: SigningKey) -> None:
        if not self._given_keys:
            identities.remove_key(self._fs, key)


def _introduces(record: ControlRecord, key: SigningKey) -> bool:
    return isinstance(record.body, KeyRotate) and record.body.hub_pk == key.public


def check_rotations(fs: Fs, pause: Callable[[float], None] = time.sleep) -> list[str]:
    """Check the keys of a hub and return the facts that hold; raise VerifyError for the first one that does not.

    The hub may run, and files are read one after the other. So a contradiction counts only if it is there again at a
    second reading (decisions.md 172).
    """
    for _ in range(_READ_AGAIN):
        try:
            return _check_rotations(fs)
        except (VerifyError, CorruptError, FileNotFoundError):
            pause(_PAUSE_SECONDS)
    return _check_rotations(fs)


def _check_rotations(fs: Fs) -> list[str]:
    identity = identities.read_identity(fs)
    checks = [f"hub-identity.json is signed by its current key {identity.current.key_id}"]
    hub_pks = [identity.keys[0].hub_pk]
    previous: ControlRecord | None = None
    wanted = identity.rotations()
    records = list(all_control_records(fs))
    in_force = identity.in_force([record.body for record in records if isinstance(record.body, KeyRotate)])
    for record in records:
        record.check_follows(previous)
        previous = record
        if not isinstance(record.body, KeyRotate):
            continue
        if record.body not in in_force:
            checks.append(f"control record {record.seq} is void: another record retires the same key")
            continue
        if not wanted or record.body != wanted.pop(0):
            raise VerifyError(f"control record {record.seq}: the identity does not list this rotation")
        signer = identity.verify_rotation(record)
        if signer.hub_pk not in hub_pks:
            raise VerifyError(f"control record {record.seq}: a key that no older one introduced signed it")
        hub_pks.append(record.body.hub_pk)
        checks.append(f"key {signer.key_id} introduced the next one in control record {record.seq}")
    if wanted:
        raise VerifyError(f"key {wanted[0].hub_pk.hex()[:16]}…: no control record introduces it")
    checks.append(f"hub_id {identity.hub_id.hex()} is that of the first key")
    return checks
