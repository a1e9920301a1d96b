"""A pinned root: hubs whose directory may vanish, and what an attacker with one of their keys can do (D-121)."""

import contextlib
import shutil
from dataclasses import replace

import pytest
from tests.client.builders import seeded
from tests.client.hubs import OPEN, RING, Clock, bodies, client_at, copy_of, hub_at, person, run

from veen.client.errors import ForeignKey, HubIdChanged, NotPinned, OlderHub, RetiredKey, Rewound
from veen.client.home import Home
from veen.client.identity.keyring import StreamKeys
from veen.client.state import StateStore
from veen.client.transport.inprocess import InProcess
from veen.client.verify.pin import HubPin
from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import MalformedError
from veen.core.objects.identity import HubIdentity
from veen.core.objects.receipt import Receipt
from veen.core.objects.tooling import IdentityResponse
from veen.core.objects.trusted_root import TrustedKeys
from veen.io.local import OsFs
from veen.storage.keys import identity as identities
from veen.storage.keys.identity import write_private_key
from veen.testing.hostile import HostileHub, Replaces
from veen.verify.directory import verify_data

ROOT, OTHER_ROOT = SigningKey(b"\x07" * 32), SigningKey(b"\x17" * 32)
ONE, TWO, THREE, FOREIGN = (SigningKey(bytes([number]) * 32) for number in (1, 2, 3, 0x66))
FIRST = HubIdentity.first(ONE.public, valid_from=100)
SECOND = FIRST.with_rotation(TWO.public, valid_from=200, overlap_until=250)
THIRD = SECOND.with_rotation(THREE.public, valid_from=300, overlap_until=300)
NEXT_HUB = HubIdentity.first(FOREIGN.public, valid_from=400)
PIN = HubPin.of_root(ROOT.public)
STREAMS = RING.with_keys(StreamKeys.create("news", random=seeded("news")))
TEXT = f"root:ed25519:{ROOT.public.hex()}"


def told(identity, signer=ROOT):
    return IdentityResponse.of(identity, identity.sign(signer))


def receipt(key, hub_ts):
    return Receipt.issue(key, label=b"L" * 32, stream_seq=1, leaf_hash=b"l" * 32, mmr_root=b"r" * 32, hub_ts=hub_ts)


# --- the value -------------------------------------------------------------------------------------------------


def test_a_root_pin_is_written_with_its_kind():
    for text in (TEXT, f" {TEXT}\n", f"root:{ROOT.public.hex().upper()}"):
        assert HubPin.parse(text) == PIN
    assert PIN.to_text() == TEXT
    assert HubPin.of_key(ROOT.public) != PIN
    assert HubPin.parse(TEXT, FIRST.hub_id.hex()) == HubPin.of_root(ROOT.public, FIRST.hub_id)
    for text in ("root:", "root:ed25519:", f"root:root:{ROOT.public.hex()}", TEXT[:-1], f"Root:{ROOT.public.hex()}"):
        with pytest.raises(NotPinned):
            HubPin.parse(text)
    for sizes in ((b"r", None), (ROOT.public, b"i")):
        with pytest.raises(NotPinned):
            HubPin.of_root(*sizes)
    with pytest.raises(NotPinned):
        HubPin(keys=())
    with pytest.raises(NotPinned, match="no hub has shown"):
        PIN.check_receipt(receipt(ONE, 100))


@pytest.mark.req("HID-09")
def test_every_key_of_an_identity_that_the_root_signed_counts():
    assert not PIN.needs_rotations(told(THIRD))
    pin = PIN.learn(told(THIRD))
    assert (pin.keys, pin.hub_id, pin.to_text()) == (THIRD.keys, FIRST.hub_id, TEXT)
    for key, hub_ts in ((ONE, 150), (TWO, 260), (THREE, 300)):
        assert pin.check_receipt(receipt(key, hub_ts)).hub_pk == key.public
    with pytest.raises(RetiredKey):
        pin.check_receipt(receipt(ONE, 260))
    with pytest.raises(ForeignKey):  # the root signs identities and nothing else
        pin.check_receipt(receipt(ROOT, 150))


@pytest.mark.req("HID-09")
def test_an_identity_that_the_root_did_not_sign_is_refused():
    """Whoever signs it: the hub's own key, another root, nobody, or the root something else."""
    for signer in (ONE, OTHER_ROOT, FOREIGN):
        with pytest.raises(ForeignKey, match="root key did not sign"):
            PIN.learn(told(FIRST, signer))
    for sig in (bytes(64), SECOND.sign(ROOT), receipt(ROOT, 1).hub_sig):
        with pytest.raises(ForeignKey, match="root key did not sign"):
            PIN.learn(replace(told(FIRST), sig=sig))
    moved = replace(FIRST.keys[0], valid_from=99)
    with pytest.raises(ForeignKey):
        PIN.learn(replace(told(HubIdentity((moved,))), sig=FIRST.sign(ROOT)))
    with pytest.raises(ForeignKey):  # a key pin on the root is no root pin
        HubPin.of_key(ROOT.public).learn(told(FIRST))
    with pytest.raises(ForeignKey):  # nor does a key pin believe a root
        HubPin.of_key(ONE.public).learn(told(FIRST))


@pytest.mark.req("HID-05")
def test_the_keys_of_one_hub_only_grow():
    """An older list, another one with the same first key, or other times: refused, though the root signed it."""
    learned = PIN.learn(told(SECOND))
    assert learned.learn(told(SECOND)) == learned
    assert learned.learn(told(THIRD)).keys == THIRD.keys
    assert PIN.learn(told(FIRST)).learn(told(SECOND)) == learned
    back = (
        FIRST,
        FIRST.with_rotation(FOREIGN.public, valid_from=200, overlap_until=250),
        FIRST.with_rotation(TWO.public, valid_from=201, overlap_until=250),
        FIRST.with_rotation(TWO.public, valid_from=200, overlap_until=9_999),
        HubIdentity((replace(SECOND.keys[0], valid_until=None), SECOND.keys[1])),
        HubIdentity((SECOND.keys[0], *FIRST.with_rotation(FOREIGN.public, valid_from=199, overlap_until=250).keys[1:])),
    )
    for identity in back:
        with pytest.raises(ForeignKey, match="takes back"):
            learned.learn(told(identity))
    ended = HubIdentity((SECOND.keys[0], replace(SECOND.keys[1], valid_until=300)))
    with pytest.raises(ForeignKey, match="takes back"):  # an end that was proven stays
        learned.learn(told(ended)).learn(told(SECOND))


@pytest.mark.req("HID-13")
def test_another_hub_id_is_another_hub_unless_one_is_pinned():
    assert PIN.learn(told(NEXT_HUB)).hub_id == NEXT_HUB.hub_id
    for fixed in (HubPin.of_root(ROOT.public, FIRST.hub_id), PIN.learn(told(FIRST))):
        with pytest.raises(HubIdChanged, match="another hub of the pinned root"):
            fixed.learn(told(NEXT_HUB))
        with pytest.raises(ForeignKey):
            fixed.learn(told(NEXT_HUB, FOREIGN))


def test_what_a_root_pin_remembers_reads_back():
    pin = PIN.learn(told(SECOND))
    assert HubPin.from_bytes(pin.to_bytes()) == pin
    assert b"root_pk" not in HubPin.of_identity(FIRST).to_bytes()
    for record in (
        pin.to_bytes().replace(ROOT.public.hex().encode(), b"x"),
        pin.to_bytes().split(b'"hub_keys":')[0] + b'"hub_keys":[],"root_pk":"00","ver":2}',
    ):
        with pytest.raises(MalformedError):
            HubPin.from_bytes(record)


# --- against hubs ----------------------------------------------------------------------------------------------


class Place:
    """A disposable hub at one address: its directory may be wiped, its root stays."""

    def __init__(self, tmp_path, root=ROOT, name="hub"):
        self.tmp_path, self.path, self.clock = tmp_path, tmp_path / name, Clock()
        self.settings = {**OPEN, "identity": "ephemeral", "keys_dir": str(tmp_path / f"{name}-root")}
        write_private_key(tmp_path / f"{name}-root", root)

    @contextlib.asynccontextmanager
    async def running(self):
        async with hub_at(self.path, clock=self.clock, settings=self.settings) as hub:
            yield HostileHub(InProcess(hub.api)), hub

    @contextlib.asynccontextmanager
    async def client(self, wire, pin=PIN, name="alice"):
        who = person(name, 1_800_000_000)
        async with client_at(wire, pin, who, self.tmp_path / name, ring=STREAMS, clock=self.clock) as client:
            yield client

    async def refused(self, error, wire, pin=PIN, name="alice"):
        with pytest.raises(error) as caught:
            async with self.client(wire, pin, name):
                pass
        return caught.value

    def wipe(self):
        shutil.rmtree(self.path)
        self.clock.now += 100

    def pins(self, name="alice"):
        with StateStore.open(Home.at(self.tmp_path / name), name) as store:
            return store.pins()


@pytest.mark.req("HID-09", "HID-13")
def test_a_client_goes_on_with_the_next_hub_and_keeps_what_it_verified_of_the_last(tmp_path):
    """D-121 (b), from end to end."""
    place = Place(tmp_path)

    async def check():
        async with place.running() as (wire, hub):
            async with place.client(wire) as client:
                old_id, old_label = client.hub_id, client.label("orders")
                sent = [await client.send("orders", body) for body in (b"1", b"2")]
                assert client.replaced_hubs == ()
            await hub.rotate_key(0)
            place.clock.now += 100
            async with place.client(wire) as client:
                sent.append(await client.send("orders", b"3"))
                assert client.hub_id == old_id
                assert client.replaced_hubs == ()
                assert len(client.pin.keys) == 2
        archive = OsFs(copy_of(place.path, tmp_path / "archive"))
        place.wipe()
        async with place.running() as (wire, _):
            async with place.client(wire) as client:
                assert client.hub_id != old_id
                assert client.label("orders") != old_label
                assert client.replaced_hubs == (old_id,)
                assert await bodies(client) == []
                assert (await client.send("orders", b"4")).receipt.stream_seq == 1
                assert await bodies(client) == [b"4"]
            async with place.client(wire) as client:
                assert client.replaced_hubs == ()  # said once
        with StateStore.open(Home.at(tmp_path / "alice"), "alice") as store:
            (remembered,) = store.states(hub_id=old_id)
            (old,) = (pin for pin in store.pins() if pin.hub_id == old_id)
        assert (remembered.last_stream_seq, remembered.last_mmr_root) == (3, sent[-1].receipt.mmr_root)
        for message in sent:
            old.check_receipt(message.receipt)
        return archive, old_id

    archive, old_id = run(check())
    for pin in (TEXT, f"{TEXT}:{old_id.hex()}"):
        assert verify_data(archive, pin=TrustedKeys.parse(pin)).ok
    for root, hub_id in ((OTHER_ROOT, ""), (ROOT, f":{'ab' * 32}")):
        stranger = TrustedKeys.parse(f"root:ed25519:{root.public.hex()}{hub_id}")
        assert {finding.code for finding in verify_data(archive, pin=stranger).errors} == {"pin"}
    (tmp_path / "archive" / "hub-root.pk").unlink()  # the directory does not get to choose
    assert not verify_data(archive, pin=TrustedKeys.parse(TEXT)).ok


def test_a_hub_that_is_replaced_in_the_middle_of_a_connection_is_noticed(tmp_path):
    place = Place(tmp_path)

    async def check():
        async with contextlib.AsyncExitStack() as stack:
            async with place.running() as (wire, _):
                client = await stack.enter_async_context(place.client(wire))
                await client.send("orders", b"1")
            place.wipe()
            async with place.running() as (_, hub):
                wire.honest = InProcess(hub.api)
                for work in (client.identity, client.status, lambda: client.send("news", b"2")):
                    with pytest.raises(HubIdChanged):
                        await work()
                with pytest.raises(Rewound):  # the labels of the hub that is gone
                    await client.send("orders", b"2")
                await stack.aclose()
                async with place.client(wire) as again:
                    assert (await again.send("orders", b"2")).receipt.stream_seq == 1

    run(check())


def test_a_thief_of_the_present_hub_key_introduces_nobody(tmp_path):
    """Under a root pin a rotation that only the hub's key signs does not count."""
    place = Place(tmp_path)

    async def check():
        async with place.running() as (wire, hub):
            async with place.client(wire) as client:
                await client.send("orders", b"1")
            stolen = hub.identity.held.private[hub.identity.current_pk]
            ours = hub.identity.held.identity
            later = int(place.clock.now)
            widened = ours.with_rotation(FOREIGN.public, valid_from=later + 1, overlap_until=later + 2)
            for signer in (stolen, FOREIGN):
                wire.lies[:] = [Replaces("tooling/identity", told(widened, signer).to_bytes())]
                for name in ("alice", "new"):
                    assert "did not sign" in str(await place.refused(ForeignKey, wire, name=name))

    run(check())


@pytest.mark.req("HID-05")
def test_a_thief_of_a_retired_key_cannot_take_the_rotation_back(tmp_path):
    """He has the key, and the identity that the root signed before the rotation."""
    place = Place(tmp_path)

    async def check():
        async with place.running() as (wire, hub):
            before = await wire.call("tooling/identity")
            async with place.client(wire, name="before"):
                pass
            await hub.rotate_key(0)
            place.clock.now += 100
            async with place.client(wire) as client:
                await client.send("orders", b"1")
            wire.lies.append(Replaces("tooling/identity", before.body))
            assert "takes back" in str(await place.refused(ForeignKey, wire))
            async with place.client(wire, name="before"):
                pass  # has never seen the rotation: nothing tells it that the old list is old
            wire.lies.clear()
            async with place.client(wire, name="before") as client:
                assert len(client.pin.keys) == 2
            wire.lies.append(Replaces("tooling/identity", before.body))
            await place.refused(ForeignKey, wire, name="before")

    run(check())


@pytest.mark.req("HID-13")
def test_a_thief_of_the_key_of_a_hub_since_gone_stands_in_for_no_later_hub(tmp_path):
    """He runs the old hub again: whoever met a newer one refuses, somebody new cannot know (docs/threat-model.md)."""
    place = Place(tmp_path)

    async def check():
        async with place.running() as (wire, _), place.client(wire) as client:
            await client.send("orders", b"1")
            old_id, old_label = client.hub_id, client.label("orders")
        stolen = Place(tmp_path, name="stolen")
        stolen.clock = place.clock
        copy_of(place.path, stolen.path)
        place.wipe()
        async with place.running() as (wire, hub):
            async with place.client(wire) as client:
                await client.send("orders", b"2")
                assert client.label("orders") != old_label
            async with place.client(wire, name="later") as client:  # never met the old hub
                assert client.replaced_hubs == ()
            new_id = hub.identity.hub_id
        async with stolen.running() as (wire, _):
            for name in ("alice", "later"):
                caught = await place.refused(OlderHub, wire, name=name)
                assert (caught.expected, caught.found) == (new_id, old_id)
            assert len(place.pins("later")) == 1  # nothing was learned from him
            async with place.client(wire, name="victim") as client:  # has met no hub of this root
                assert client.hub_id == old_id
            async with place.client(wire, HubPin.of_root(ROOT.public, old_id)) as client:  # asked for just this hub
                assert await bodies(client) == [b"1"]
            await place.refused(HubIdChanged, wire, HubPin.of_root(ROOT.public, new_id))
        async with place.running() as (wire, _):
            async with place.client(wire, name="victim") as client:
                assert client.replaced_hubs == (old_id,)
            async with place.client(wire) as client:
                assert await bodies(client) == [b"2"]
        async with stolen.running() as (wire, _):
            await place.refused(OlderHub, wire, name="victim")

    run(check())


def test_a_root_says_nothing_to_those_who_pinned_a_key(tmp_path):
    """D-174 stays as it is: what a root signed neither widens a key pin nor gets in its way."""
    place = Place(tmp_path)

    async def check():
        async with place.running() as (wire, hub):
            first = hub.identity.current_pk
            await hub.rotate_key(0)
            place.clock.now += 100
            async with place.client(wire):
                pass
            second = hub.identity.current_pk
            for hub_pk in (first, second):  # the root's record is there, and this pin does not read it
                assert "not signed by key" in str(await place.refused(ForeignKey, wire, HubPin.of_key(hub_pk)))
        async with hub_at(tmp_path / "durable", clock=place.clock) as durable:
            wire, hub_pk = InProcess(durable.api), durable.identity.current_pk
            # A root that the user pinned lists the key of another hub as its own, first and second.
            ours = durable.identity.held.identity
            later = ours.with_rotation(
                FOREIGN.public, valid_from=place.clock.now + 1, overlap_until=place.clock.now + 2
            )
            before = HubIdentity.first(FOREIGN.public, valid_from=1).with_rotation(
                hub_pk, valid_from=ours.keys[0].valid_from, overlap_until=place.clock.now
            )
            with StateStore.open(Home.at(tmp_path / "alice"), "alice") as store:
                for identity in (later, before):
                    store.save_pin(HubPin.of_root(OTHER_ROOT.public).learn(told(identity, OTHER_ROOT)))
            pin = HubPin.of_key(hub_pk)
            for _ in range(2):
                async with place.client(wire, pin) as client:
                    await client.send("orders", b"1")
                    assert [key.hub_pk for key in client.pin.keys] == [hub_pk]
            assert len(place.pins()) == 4  # neither record replaced another

    run(check())


def test_the_served_signature_is_the_one_on_disk(tmp_path):
    place = Place(tmp_path)

    async def check():
        async with place.running() as (wire, hub):
            answer = IdentityResponse.from_bytes((await wire.call("tooling/identity")).body)
            assert (answer.sig,) == identities.read_signatures(hub.fs)
            answer.to_identity().verify(answer.sig, ROOT.public)

    run(check())
