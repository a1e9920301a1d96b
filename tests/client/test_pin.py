"""The pin: which keys are the hub's, and what makes a new one count (spec §8.4, D-37, D-41)."""

from dataclasses import replace

import pytest
from tests.client.hubs import Clock, all_of, bodies, client_at, connected, hub_at, person, run

from veen.client.errors import ForeignKey, NotPinned, ProofInvalid, RetiredKey
from veen.client.inprocess import InProcess
from veen.client.pin import HubPin
from veen.client.transport import Answer
from veen.core.checkpoint import Checkpoint
from veen.core.control import ControlRecord, StreamRegister
from veen.core.ed25519 import SigningKey
from veen.core.hubkeys import HubIdentity
from veen.core.receipt import Receipt
from veen.core.tooling import HubKey as ToldKey
from veen.core.tooling import IdentityResponse
from veen.hub.rotation import rotate_at_rest
from veen.storage.fs import OsFs
from veen.testing.hostile import HostileHub

ONE, TWO, THREE, FOREIGN = (SigningKey(bytes([number]) * 32) for number in (1, 2, 3, 0x66))
FIRST = HubIdentity.first(ONE.public, valid_from=100)
SECOND = FIRST.rotated(TWO.public, valid_from=200, overlap_until=250)
THIRD = SECOND.rotated(THREE.public, valid_from=300, overlap_until=300)
L = b"L" * 32


def told(identity, **changes):
    keys = tuple(
        ToldKey(key_id=key.key_id, hub_pk=key.hub_pk, valid_from=key.valid_from, valid_until=key.valid_until)
        for key in identity.keys
    )
    return replace(IdentityResponse(hub_id=identity.hub_id, hub_keys=keys), **changes)


def journal(*signers, identity=THIRD):
    """The records that introduce each key, signed by the one before it, or by whom the test says."""
    records = [ControlRecord.issue(ONE, None, StreamRegister(stream_id=L), hub_ts=100)]
    for rotation, signer in zip(identity.rotations(), signers or (ONE, TWO), strict=False):
        records.append(ControlRecord.issue(signer, records[-1], rotation, hub_ts=rotation.valid_from - 1))
    return records


def receipt(key, hub_ts):
    return Receipt.issue(key, label=L, stream_seq=1, leaf_hash=b"l" * 32, mmr_root=b"r" * 32, hub_ts=hub_ts)


def test_a_pin_is_a_key_in_either_writing():
    for text in (ONE.public.hex(), f"ed25519:{ONE.public.hex()}", f" ed25519:{ONE.public.hex()}\n"):
        assert HubPin.parse(text) == HubPin.of_key(ONE.public)
    assert HubPin.parse(HubPin.of_key(ONE.public).to_text()) == HubPin.of_key(ONE.public)
    for text in ("", "ed25519:", "00" * 31, "hello", "ed25519:" + "zz" * 32):
        with pytest.raises(NotPinned):
            HubPin.parse(text)


@pytest.mark.req("HID-01", "HID-02", "HID-13", "CRY-20")
def test_a_hub_that_does_not_have_the_pinned_key_is_another_hub():
    pin = HubPin.of_key(ONE.public).learn(told(FIRST))
    assert pin.hub_id == FIRST.hub_id
    other = HubIdentity.first(FOREIGN.public, valid_from=1)
    for stranger in (told(other), told(FIRST, hub_id=other.hub_id)):
        for asked in (pin, HubPin.of_key(ONE.public), HubPin.of_identity(FIRST)):
            with pytest.raises(ForeignKey):
                asked.learn(stranger)


@pytest.mark.req("HID-05", "HID-12", "KEX0-01")
def test_a_new_key_counts_if_an_older_one_introduced_it():
    for start in (HubPin.of_key(ONE.public), HubPin.of_identity(FIRST), HubPin.of_identity(SECOND)):
        assert start.needs_rotations(told(THIRD))
        pin = start.learn(told(THIRD), journal())
        assert pin.keys == THIRD.keys
        assert not pin.needs_rotations(told(THIRD))


@pytest.mark.parametrize(
    "records",
    [
        [],
        journal()[:2],  # the last key is introduced by nobody
        journal(FOREIGN, TWO),
        journal(ONE, FOREIGN),
        journal(ONE, ONE),  # its time was over when it signed
        journal(TWO, TWO),  # introduces itself
    ],
    ids=["none", "one missing", "foreign first", "foreign second", "retired", "itself"],
)
def test_a_new_key_does_not_count_otherwise(records):
    for start in (HubPin.of_key(ONE.public), HubPin.of_identity(FIRST)):
        with pytest.raises(ForeignKey):
            start.learn(told(THIRD), records)


def test_a_hub_cannot_tell_other_times_for_its_keys_than_it_signed():
    for moved in (
        replace(SECOND.keys[0], valid_until=9_999),
        replace(SECOND.keys[0], valid_until=None),
    ):
        lie = HubIdentity((moved, SECOND.keys[1]))
        with pytest.raises(ForeignKey):
            HubPin.of_key(ONE.public).learn(told(lie), journal(identity=SECOND))
        with pytest.raises(ForeignKey):
            HubPin.of_identity(SECOND).learn(told(lie), journal(identity=SECOND))


def test_a_pin_on_a_later_key_does_not_trust_what_came_before_it():
    pin = HubPin.of_key(TWO.public).learn(told(SECOND), journal(identity=SECOND))
    assert [key.hub_pk for key in pin.keys] == [TWO.public]
    assert pin.hub_id == SECOND.hub_id
    pin.check_receipt(receipt(TWO, 210))
    with pytest.raises(ForeignKey):
        pin.check_receipt(receipt(ONE, 150))


@pytest.mark.req("HID-03", "HID-06", "HID-07")
def test_a_signature_counts_in_the_time_of_its_key():
    pin = HubPin.of_identity(THIRD)
    for key, good, bad in (
        (ONE, (100, 249), (99, 250, 999)),
        (TWO, (200, 299), (199, 300)),
        (THREE, (300, 10**9), (299,)),
    ):
        for hub_ts in good:
            assert pin.check_receipt(receipt(key, hub_ts)).hub_pk == key.public
        for hub_ts in bad:
            with pytest.raises(RetiredKey) as caught:
                pin.check_receipt(receipt(key, hub_ts))
            assert (caught.value.label, caught.value.seq) == (L, 1)
    with pytest.raises(ForeignKey):
        pin.check_receipt(receipt(FOREIGN, 200))


@pytest.mark.req("KEX0-02", "KEX0-03")
def test_a_checkpoint_from_a_rotation_needs_both_keys():
    pin = HubPin.of_identity(SECOND)

    def checkpoint(*witnesses):
        return Checkpoint.issue(
            TWO, label_prev=L, label_curr=L, upto_seq=1, mmr_root=b"r" * 32, epoch=0, witnesses=witnesses
        )

    pin.check_witnesses(checkpoint(ONE, TWO), 220)
    pin.check_witnesses(checkpoint(), 260)
    for witnesses in ((), (ONE,), (TWO,), (FOREIGN, TWO)):
        with pytest.raises(ProofInvalid):
            pin.check_witnesses(checkpoint(*witnesses), 220)


class KeepsBack(HostileHub):
    """Does not say how its keys follow from the first."""

    keeps_back = True

    async def call(self, operation, body=b"", **options):
        if self.keeps_back and operation == "tooling/key_rotations":
            return Answer(200, b"")
        return await super().call(operation, body, **options)


@pytest.mark.req("HID-05", "HID-07")
def test_a_client_follows_a_real_rotation_and_remembers_it(tmp_path):
    """Pinned by the first key alone: the second counts, and still counts when the hub shows its records no more."""
    clock = Clock()

    async def check():
        async with connected(tmp_path, clock=clock) as (hub, _, client):
            await client.send("orders", b"by the first key")
            first_pk = hub.identity.current_pk
        rotate_at_rest(OsFs(tmp_path / "hub"), clock.now, 3600)
        clock.now += 100
        who = person("alice", clock.now)
        async with hub_at(tmp_path / "hub", clock=clock) as hub:
            wire = KeepsBack(InProcess(hub.api))
            pin = HubPin.of_key(first_pk)
            with pytest.raises(ForeignKey):
                async with client_at(wire, pin, who, tmp_path / "home", clock=clock):
                    pass
            wire.keeps_back = False
            async with client_at(wire, pin, who, tmp_path / "home", clock=clock) as client:
                sent = await client.send("orders", b"by the second key")
                assert client.pin.check_receipt(sent.receipt).hub_pk == hub.identity.current_pk != first_pk
                assert len(await all_of(client.read("orders"))) == 2
                checkpoint = await client.checkpoint("orders")
                assert len(checkpoint.witness_sigs or ()) == 2
            wire.keeps_back = True
            async with client_at(wire, pin, who, tmp_path / "home", clock=clock) as client:
                assert await bodies(client) == [b"by the first key", b"by the second key"]

    run(check())


def test_a_rotation_in_the_middle_of_a_session_is_noticed(tmp_path):
    clock = Clock()

    async def check():
        async with connected(tmp_path, clock=clock) as (hub, _, client):
            await client.send("orders", b"1")
            pin = HubPin.of_identity(hub.identity.held.identity)
        async with hub_at(tmp_path / "hub", clock=clock) as hub:
            wire = HostileHub(InProcess(hub.api))
            async with client_at(wire, pin, person("bob", clock.now), tmp_path / "bob", clock=clock) as client:
                await client.send("orders", b"2")
                await hub.stop()
                rotate_at_rest(OsFs(tmp_path / "hub"), clock.now, 0)
                clock.now += 10
                async with hub_at(tmp_path / "hub", clock=clock) as rotated:
                    wire.honest = InProcess(rotated.api)
                    assert (await client.send("orders", b"3")).receipt.stream_seq == 3
                    assert await bodies(client) == [b"1", b"2", b"3"]

    run(check())
