"""Rotating the key of a hub at rest, and checking how its keys followed each other (spec §8.4, D-37, D-41)."""

import os
from collections.abc import Callable

from veen.core.control import ControlRecord, KeyRotate
from veen.core.errors import VerifyError
from veen.core.hubkeys import HubIdentity
from veen.hub.atrest import at_rest
from veen.storage import identity as identities
from veen.storage.controlfold import control_records
from veen.storage.fs import Fs

__all__ = ["check_rotations", "rotate_at_rest"]


def rotate_at_rest(fs: Fs, now: int, overlap_seconds: int, draw: Callable[[int], bytes] = os.urandom) -> HubIdentity:
    """Add a key that is valid from the next second on; the hub must not run."""
    with at_rest(fs, now) as hub:
        # One second later: the record itself must be signed by a key that is valid then, also without overlap.
        begins = max(hub.hub_ts, hub.keys.identity.current.valid_from) + 1
        rotated, _ = identities.rotate(
            fs, hub.keys, draw(32), valid_from=begins, overlap_until=begins + overlap_seconds, journal=hub.journal
        )
        hub.sealing.replace(rotated)
    return rotated.identity


def check_rotations(fs: Fs) -> list[str]:
    """What holds about the keys of a hub; VerifyError for the first thing that does not."""
    identity = identities.read_identity(fs)
    checks = [f"hub-identity.json is signed by its current key {identity.current.key_id}"]
    known = [identity.keys[0].hub_pk]
    previous: ControlRecord | None = None
    wanted = identity.rotations()
    for _, record in control_records(fs):
        record.check_follows(previous)
        previous = record
        if not isinstance(record.body, KeyRotate):
            continue
        if not wanted or record.body != wanted.pop(0):
            raise VerifyError(f"control record {record.seq}: the identity does not list this rotation")
        signer = identity.verify_control(record)
        if signer.hub_pk not in known:
            raise VerifyError(f"control record {record.seq}: a key that no older one introduced signed it")
        known.append(record.body.hub_pk)
        checks.append(f"key {signer.key_id} introduced the next one in control record {record.seq}")
    if wanted:
        raise VerifyError(f"key {wanted[0].hub_pk.hex()[:16]}…: no control record introduces it")
    checks.append(f"hub_id {identity.hub_id.hex()} is that of the first key")
    return checks
