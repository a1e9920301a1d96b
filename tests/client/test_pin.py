"""The pin: which keys are the hub's, and what makes a new one count (spec §8.4, D-37, D-41)."""

from dataclasses import replace
from typing import Any

import pytest
from tests.client.hubs import Clock, all_of, bodies, client_at, connected, hub_at, person, run

from veen.client.errors import ForeignKey, HubIdChanged, NotPinned, ProofInvalid, RetiredKey
from veen.client.transport.calls import Answer
from veen.client.transport.inprocess import InProcess
from veen.client.verify.pin import HubPin
from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import MalformedError, VersionError
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import ControlRecord, KeyRotate, StreamRegister
from veen.core.objects.identity import HubIdentity, canonical_json
from veen.core.objects.receipt import Receipt
from veen.core.objects.tooling import IdentityResponse
from veen.hub.api.rotation import rotate_at_rest
from veen.io.local import OsFs
from veen.testing.hostile import HostileHub

ONE, TWO, THREE, FOREIGN = (SigningKey(bytes([number]) * 32) for number in (1, 2, 3, 0x66))
FIRST = HubIdentity.first(ONE.public, valid_from=100)
SECOND = FIRST.with_rotation(TWO.public, valid_from=200, overlap_until=250)
THIRD = SECOND.with_rotation(THREE.public, valid_from=300, overlap_until=300)
L = b"L" * 32


KEYS = {key.public: key for key in (ONE, TWO, THREE, FOREIGN)}


def told(identity, *, signer=None, **changes):
    """What a hub says, signed by its newest key or by whom the test says."""
    sig = identity.sign(signer or KEYS[identity.current.hub_pk])
    return replace(IdentityResponse.of(identity, sig), **changes)


def journal(*signers, identity=THIRD, back=1):
    """The records that introduce each key, signed by the one before it, or by whom the test says."""
    records = [ControlRecord.issue(ONE, None, StreamRegister(stream_id=L), hub_ts=100)]
    for rotation, signer in zip(identity.rotations(), signers or (ONE, TWO), strict=False):
        records.append(ControlRecord.issue(signer, records[-1], rotation, hub_ts=rotation.valid_from - back))
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


@pytest.mark.req("HID-01", "HID-02", "HID-13", "CRY-20", "KEX0-01")
def test_a_hub_that_does_not_have_the_pinned_key_is_another_hub():
    pin = HubPin.of_key(ONE.public).learn(told(FIRST))
    assert pin.hub_id == FIRST.hub_id
    other = HubIdentity.first(FOREIGN.public, valid_from=1)
    for stranger in (told(other), told(FIRST, hub_id=other.hub_id)):
        for asked in (pin, HubPin.of_key(ONE.public), HubPin.of_identity(FIRST)):
            with pytest.raises(ForeignKey):
                asked.learn(stranger)


@pytest.mark.req("HID-05")
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


@pytest.mark.req("HID-12")
def test_a_retired_key_introduces_nobody_whatever_time_its_record_carries():
    """D-174: the record counts only if it is signed by the key that it retires, and that is the newest one."""
    honest = journal(identity=SECOND)
    back_dated, in_its_name = (
        ControlRecord.issue(
            ONE,
            honest[-1],
            KeyRotate(hub_pk=FOREIGN.public, valid_from=260, retired_pk=retired, retired_until=260),
            hub_ts=hub_ts,
        )
        for retired, hub_ts in ((ONE.public, 150), (TWO.public, 210))
    )
    lie = SECOND.with_rotation(FOREIGN.public, valid_from=260, overlap_until=260)
    # The newest key retires one that is not the newest.
    of_another = KeyRotate(hub_pk=FOREIGN.public, valid_from=260, retired_pk=ONE.public, retired_until=260)
    with pytest.raises(ForeignKey):
        HubPin.of_identity(SECOND).learn(
            told(lie), [*honest, ControlRecord.issue(TWO, honest[-1], of_another, hub_ts=210)]
        )
    for record in (back_dated, in_its_name):
        for start in (HubPin.of_key(ONE.public), HubPin.of_identity(FIRST), HubPin.of_identity(SECOND)):
            for keys in (lie, HubIdentity((FIRST.keys[0], lie.keys[-1]))):
                with pytest.raises(ForeignKey):
                    start.learn(told(keys), [*honest, record])
    with pytest.raises(ForeignKey, match="control record 3 names it, but the newest key at that time did not sign"):
        HubPin.of_identity(SECOND).learn(told(lie), [*honest, in_its_name])


def test_a_log_with_two_rotations_within_the_lead_time_is_refused_with_the_reason():
    """Older releases let the first key sign the second rotation too: the chain does not hold."""
    lapped = SECOND.with_rotation(THREE.public, valid_from=260, overlap_until=260)
    records = journal(ONE, ONE, identity=lapped, back=90)
    with pytest.raises(ForeignKey, match="control record 3 names it"):
        HubPin.of_key(ONE.public).learn(told(lapped), records)
    pin = HubPin.of_key(THREE.public).learn(told(lapped), records)  # the way out: pin the present key
    assert (pin.hub_id, pin.newest.hub_pk) == (lapped.hub_id, THREE.public)


# --- hub_id -----------------------------------------------------------------------------------------------


def invented(identity=FIRST):
    """The identity with an older first key, which fixes another hub_id."""
    older = replace(HubIdentity.first(FOREIGN.public, valid_from=1).keys[0], valid_until=2)
    return HubIdentity((older, *identity.keys))


@pytest.mark.req("HID-09", "HID-12", "HID-13")
def test_only_the_pinned_key_says_what_the_hub_id_is():
    """D-174: whoever answers cannot invent an older first key, at first contact or later."""
    for sig in (bytes(64), FIRST.sign(ONE), invented().sign(FOREIGN)):
        with pytest.raises(ForeignKey, match="not signed by key"):
            HubPin.of_key(ONE.public).learn(told(invented(), sig=sig))
    with pytest.raises(ForeignKey, match="not signed by key"):
        HubPin.of_key(ONE.public).learn(told(FIRST, sig=bytes(64)))
    learned = HubPin.of_key(ONE.public).learn(told(FIRST))
    for start in (learned, HubPin.of_key(ONE.public, FIRST.hub_id), HubPin.of_identity(FIRST)):
        with pytest.raises(HubIdChanged):  # also if the hub's own key signs it
            start.learn(told(invented(), signer=ONE))


def test_a_successor_of_the_pinned_key_signs_the_identity():
    for start in (HubPin.of_key(ONE.public), HubPin.of_identity(FIRST)):
        assert start.learn(told(SECOND), journal(identity=SECOND)).hub_id == FIRST.hub_id
        for signer in (ONE, FOREIGN):
            with pytest.raises(ForeignKey, match="not signed by key"):
                start.learn(told(SECOND, signer=signer), journal(identity=SECOND))


def test_times_that_nobody_signed_are_not_learned():
    """One lie at first contact must not make the client refuse the honest hub later."""
    moved = HubIdentity((replace(FIRST.keys[0], valid_from=7),))
    with pytest.raises(ForeignKey):
        HubPin.of_key(ONE.public).learn(told(moved, sig=FIRST.sign(ONE)))


@pytest.mark.req("HID-04")
def test_a_key_under_another_name_is_refused():
    answer = told(SECOND)
    swapped = tuple(
        replace(key, key_id=other.key_id) for key, other in zip(answer.hub_keys, answer.hub_keys[::-1], strict=True)
    )
    with pytest.raises(ForeignKey, match="key_id is not that of its hub_pk"):
        HubPin.of_identity(SECOND).learn(replace(answer, hub_keys=swapped))


def test_what_a_pin_remembers_reads_back():
    later = HubPin.of_key(TWO.public).learn(told(SECOND))
    for pin in (HubPin.of_identity(THIRD), later):
        assert HubPin.from_bytes(pin.to_bytes()) == pin
        assert pin.identity.hub_id == pin.hub_id == FIRST.hub_id
    assert not later.is_whole


@pytest.mark.req("HID-06")
def test_the_time_of_its_last_entry_names_the_key_of_a_checkpoint():
    """D-166: a key that is retired signs no checkpoint of later entries, though labels do not rotate."""
    pin = HubPin.of_identity(THIRD)

    def checkpoint(signer, *witnesses):
        return Checkpoint.issue(
            signer, label_prev=L, label_curr=L, upto_seq=1, mmr_root=b"r" * 32, epoch=0, witnesses=witnesses
        )

    for signer, last_ts in ((ONE, 150), (TWO, 260), (THREE, 300)):
        pin.check_seal(checkpoint(signer), last_ts)
        for other in (key for key in (ONE, TWO, THREE) if key is not signer):
            pin.check_checkpoint(checkpoint(other), 0)  # it is a key of the hub
            with pytest.raises(RetiredKey):
                pin.check_seal(checkpoint(other), last_ts)
        with pytest.raises(ForeignKey):
            pin.check_seal(checkpoint(FOREIGN), last_ts)
    pin.check_seal(checkpoint(TWO, ONE, TWO), 220)
    with pytest.raises(ProofInvalid):
        pin.check_seal(checkpoint(TWO, TWO), 220)


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


# --- what errors and records say to programs --------------------------------------------------------------


def test_a_pin_of_a_key_and_a_hub_id_is_read_from_text():
    text = FIRST.hub_id.hex()
    assert HubPin.parse(ONE.public.hex(), f" {text}\n") == HubPin.of_key(ONE.public, FIRST.hub_id)
    assert HubPin.parse(ONE.public.hex(), text).hub_id == FIRST.hub_id
    for wrong in ("", "zz" * 32, text[:-2], text + "00"):
        with pytest.raises(NotPinned, match="hub_id"):
            HubPin.parse(ONE.public.hex(), wrong)


def test_a_pin_is_whole_if_it_has_the_first_key_and_has_what_it_was_made_of():
    assert HubPin.of_identity(THIRD).is_whole
    assert HubPin.of_key(ONE.public, FIRST.hub_id).is_whole
    assert not HubPin.of_key(TWO.public, FIRST.hub_id).is_whole
    for pin in (HubPin.of_key(ONE.public), HubPin.of_identity(SECOND)):
        assert pin.has(pin)
        assert HubPin.of_identity(THIRD).has(pin)
        assert not pin.has(HubPin.of_key(FOREIGN.public))


def test_a_remembered_pin_of_another_form_or_release_is_refused():
    pin = HubPin.of_identity(THIRD)
    assert HubPin.from_bytes(pin.to_bytes()) == pin
    wrong: Any
    for wrong in ([], {}, {"ver": "2"}, {"ver": 2}, {"ver": 2, "hub_id": 0, "hub_keys": []}):
        with pytest.raises(MalformedError, match=r"^pin record: "):
            HubPin.from_bytes(canonical_json(wrong))
    with pytest.raises(VersionError, match=r"^pin record: version 3 is not supported") as caught:
        HubPin.from_bytes(pin.to_bytes().replace(b'"ver":2', b'"ver":3'))
    assert caught.value.actual == 3


def test_who_was_expected_and_who_answered_is_told():
    pin, other = HubPin.of_identity(FIRST), HubIdentity.first(FOREIGN.public, valid_from=1)
    with pytest.raises(ForeignKey) as caught:
        pin.learn(told(FIRST, hub_id=other.hub_id))
    assert caught.value.found == other.hub_id
    with pytest.raises(ForeignKey) as caught:
        pin.learn(told(other))
    assert (caught.value.expected, caught.value.found) == (ONE.public, FOREIGN.public)
    with pytest.raises(HubIdChanged) as changed:
        HubPin.of_key(ONE.public, other.hub_id).learn(told(FIRST))
    assert (changed.value.expected, changed.value.found) == (other.hub_id, FIRST.hub_id)
    with pytest.raises(ForeignKey) as caught:
        pin.learn(told(SECOND))
    assert caught.value.found == TWO.public
    later = HubIdentity((replace(FIRST.keys[0], valid_from=101),))
    with pytest.raises(ForeignKey, match="another time") as caught:
        pin.learn(told(later))
    assert caught.value.found == ONE.public
    with pytest.raises(ForeignKey, match="not signed") as caught:
        pin.learn(told(FIRST, sig=bytes(64)))
    assert caught.value.expected == ONE.public


def test_records_that_introduce_nobody_do_not_hide_those_that_do():
    """Between the honest records stand one by a stranger and one that dates a key back."""
    first, honest, last = journal()
    rotation = KeyRotate(hub_pk=TWO.public, valid_from=200, retired_pk=ONE.public, retired_until=250)
    forged = ControlRecord.issue(FOREIGN, first, rotation, hub_ts=199)
    dated_back = replace(rotation, hub_pk=FOREIGN.public, valid_from=100)
    backward = ControlRecord.issue(ONE, first, dated_back, hub_ts=199)
    again = ControlRecord.issue(TWO, honest, KeyRotate(
        hub_pk=ONE.public, valid_from=290, retired_pk=TWO.public, retired_until=290,
    ), hub_ts=260)  # fmt: skip
    for noise in (forged, backward):
        assert HubPin.of_identity(FIRST).learn(told(THIRD), [first, noise, honest, last]).keys == THIRD.keys
    assert HubPin.of_identity(FIRST).learn(told(THIRD), [first, honest, again, last]).keys == THIRD.keys


def test_blame_names_the_statement_its_place_and_its_time():
    pin = HubPin.of_identity(THIRD)

    def checkpoint(signer, epoch=0):
        return Checkpoint.issue(signer, label_prev=L, label_curr=L, upto_seq=7, mmr_root=b"r" * 32, epoch=epoch)

    def record(signer, hub_ts):
        return ControlRecord.issue(signer, None, StreamRegister(stream_id=L), hub_ts=hub_ts)

    assert pin.check_control(record(TWO, 220)).hub_pk == TWO.public
    assert pin.check_checkpoint(checkpoint(ONE, 2), 60).hub_pk == ONE.public
    foreign = r"signed by none of the pinned hub's keys"
    for work, kind, expected, words in (
        (lambda: pin.check_receipt(receipt(ONE, 260)), RetiredKey, (L, 1), "RECEIPT: .* signs at 260"),
        (lambda: pin.check_receipt(receipt(FOREIGN, 260)), ForeignKey, (L, 1), f"RECEIPT: {foreign}"),
        (lambda: pin.check_control(record(TWO, 150)), RetiredKey, (b"", 1), "control record: .* signs at 150"),
        (lambda: pin.check_control(record(FOREIGN, 220)), ForeignKey, (b"", 1), f"control record: {foreign}"),
        (lambda: pin.check_checkpoint(checkpoint(ONE, 9), 60), RetiredKey, (L, 7), "CHECKPOINT: .* signs in epoch 9"),
        (lambda: pin.check_checkpoint(checkpoint(FOREIGN), 60), ForeignKey, (L, 7), f"CHECKPOINT: {foreign}"),
        (lambda: pin.check_seal(checkpoint(ONE), 260), RetiredKey, (L, 7), "CHECKPOINT: .* signs at 260, the time of"),
        (lambda: pin.check_witnesses(checkpoint(TWO), 220), ProofInvalid, (L, 7), "not witnessed by both keys"),
    ):
        with pytest.raises(kind, match=words) as caught:
            work()
        assert (caught.value.label, caught.value.seq) == expected
    with pytest.raises(ProofInvalid) as missing:
        pin.check_witnesses(checkpoint(TWO), 220)
    assert missing.value.expected == min(ONE.public, TWO.public)
