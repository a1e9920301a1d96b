"""Directories with two rotations from one key: found, named, and repaired where that is possible."""

import pytest
from tests.hub import builders as w
from tests.hub.test_rotation import Machine, run
from tests.storage.oracle import assert_clean

from veen.client.verify.pin import HubPin
from veen.core.crypto.ed25519 import SigningKey
from veen.core.objects.identity import key_id_of
from veen.core.objects.tooling import IdentityResponse
from veen.hub.api.rotation import LEAD_SECONDS, check_rotations
from veen.hub.process.startup import at_rest
from veen.storage import layout
from veen.storage.keys import identity as identities
from veen.storage.keys import rotation as keyrotation
from veen.storage.keys.rotation import TwoRotationsError
from veen.storage.maintenance.rotation_repair import (
    RotationConflictError,
    all_control_records,
    find_conflicts,
    open_conflicts,
    repair_rotations,
)
from veen.verify.directory import verify_data

FIRST, SECOND = SigningKey(b"\x51" * 32), SigningKey(b"\x52" * 32)


async def send(machine, count=1):
    async with machine.running():
        await machine.send(count)


def damaged(machine=None, *, signs=(), last=SECOND):
    """A hub as two rotations at once left it; `signs` are the keys that signed an entry each, `last` was published."""
    machine = machine or Machine()
    run(send(machine, 3))
    with at_rest(machine.fs, machine.now) as hub:
        keys = hub.keys
        order = (FIRST, SECOND)
        for key in order:
            keyrotation.rotate(
                machine.fs,
                keys,
                key.seed,
                hub_ts=hub.hub_ts,
                lead_seconds=LEAD_SECONDS,
                overlap_seconds=0,
                journal=hub.journal,
            )
    machine.now += 1000
    for key in (*signs, last):
        select(machine, keys, key)
        if key in signs:
            run(send(machine))
    for key in order:  # both private keys are there, as a rotation writes its key first
        identities.write_key(machine.fs, key)
    return machine


def select(machine, keys, key):
    """Have the identity files name one of the two keys, and have its private key alone."""
    valid_from = w.NOW + LEAD_SECONDS
    identity = keys.identity.with_rotation(key.public, valid_from=valid_from, overlap_until=valid_from)
    keyrotation.publish(machine.fs, identity, key)
    identities.write_key(machine.fs, key)
    for other in {FIRST, SECOND} - {key}:
        machine.fs.remove(layout.key(key_id_of(other.public)))


def followed(fs, identity):
    """The keys of a client that pinned the first key and asks for the rotations."""
    rotations = [record for record in all_control_records(fs) if record.kind == "key.rotate"]
    answer = IdentityResponse.of(identity, identities.read_signatures(fs)[-1])
    return HubPin.of_key(w.HUB.public).learn(answer, rotations)


@pytest.mark.parametrize("last", [FIRST, SECOND])
def test_two_rotations_at_once_stop_the_start_by_name_and_a_repair_makes_it_start(last):
    """Neither key signed anything: the first one stays, since clients follow it by themselves."""
    machine = damaged(last=last)
    with pytest.raises(TwoRotationsError, match="veen hub key repair"):
        run(send(machine))
    (conflict,) = open_conflicts(machine.fs)
    assert [candidate.signatures for candidate in conflict.candidates] == [0, 0]
    assert conflict.is_followed
    identity = repair_rotations(machine.fs, [conflict])
    assert [key.hub_pk for key in identity.keys] == [w.HUB.public, FIRST.public]
    assert not machine.fs.exists(layout.key(key_id_of(SECOND.public)))
    run(send(machine, 3))
    assert machine.signers()[-3:] == [FIRST.public] * 3
    assert any("is void" in line for line in check_rotations(machine.fs))
    assert not open_conflicts(machine.fs)
    assert_clean(machine.fs)
    followed(machine.fs, identity)


def test_the_key_that_signed_entries_stays_and_clients_are_named_that_do_not_follow():
    machine = damaged(signs=(SECOND,))
    (conflict,) = open_conflicts(machine.fs)
    assert [candidate.signatures > 0 for candidate in conflict.candidates] == [False, True]
    assert not conflict.is_followed
    repair_rotations(machine.fs, [conflict])
    run(send(machine, 2))
    assert machine.signers()[-3:] == [SECOND.public] * 3
    assert verify_data(machine.fs).ok


def test_where_both_keys_signed_entries_nothing_is_changed():
    machine = damaged(signs=(FIRST, SECOND))
    files = machine.fs.files()
    (conflict,) = find_conflicts(machine.fs)
    assert conflict.choice is None
    with pytest.raises(RotationConflictError, match="more than one of them signed"):
        repair_rotations(machine.fs, [conflict])
    assert machine.fs.files() == files


def test_a_repaired_hub_rotates_on():
    """The void record stays in the chain, and verification passes it by."""
    machine = damaged()
    repair_rotations(machine.fs, open_conflicts(machine.fs))

    async def rotate():
        async with machine.running():
            await machine.rotation.rotate(0)
            machine.now += 1000
            await machine.send()

    run(rotate())
    assert len(identities.read_identity(machine.fs).keys) == 3
    assert not open_conflicts(machine.fs)
    check_rotations(machine.fs)
    assert_clean(machine.fs)


def test_a_hub_without_such_rotations_has_nothing_to_repair():
    machine = Machine()
    run(send(machine))
    assert find_conflicts(machine.fs) == open_conflicts(machine.fs) == []
