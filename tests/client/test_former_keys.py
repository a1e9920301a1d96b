"""Former long-term keys of an identity: what they open, and that replacing them is one step."""

import random
import time
from dataclasses import replace
from hashlib import sha256

import pytest
from tests.client.builders import CHEAP, NOW, PASSPHRASE, identity, seeded
from tests.client.hubs import all_of, client_at, hub_at, person, pin_of, run
from tests.client.test_generations import FIRST, OWNER, START, event
from tests.client.test_invites import invitation

from veen.client.generations.fold import apply, learn, record_of
from veen.client.generations.records import WRAP_SCHEMA, HandOver
from veen.client.home import KEYSTORE, Home
from veen.client.identity.identity import MAX_FORMER
from veen.client.identity.keyring import Keyring
from veen.client.identity.keystore import Keystore, Secrets, create_identity
from veen.client.invites import SealedInvite
from veen.client.personal import due_prekey, read_inbox, send_personal
from veen.client.transport.inprocess import InProcess
from veen.core import cbor
from veen.core.errors import LimitError
from veen.testing.memfs import Crash, Fault, MemFs

BOB = identity("bob")
# The hash of the secrets of BOB in a release without former keys.
EARLIER = "f32a34ca3c38ce50a33218c6c8ebb2a8b8b7ae2f7081573dcaa2c1987d42a956"
LATER = BOB.with_new_keys(NOW + 5, random=seeded("later"))


def test_new_keys_keep_the_former_ones_and_take_a_new_client_key():
    again = LATER.with_new_keys(NOW + 9, random=seeded("again"))
    assert again.principals == (BOB.id_sign_pk, LATER.id_sign_pk, again.id_sign_pk)
    assert [keys.generation for keys in again.former] == [1, 2]
    assert [keys.replaced_at for keys in again.former] == [NOW + 5, NOW + 9]
    assert [key.generation for key in again.client_keys] == [1, 2, 3]
    assert again.openings == tuple((who.card_id, who.dh_sk) for who in (again, LATER, BOB))
    acting = again.act_as(again.former[0])
    assert (acting.id_sign_pk, acting.client_id) == (BOB.id_sign_pk, again.client_id)
    assert set(acting.openings) == set(again.openings)
    assert again.former_card(again.former[0]) == BOB.card()
    assert BOB.id_sign.seed.hex() not in repr(again.former)


def test_a_keystore_without_former_keys_has_the_bytes_of_earlier_releases_and_one_with_them_comes_back():
    data = Secrets(identity=BOB).to_bytes()
    assert sha256(data).hexdigest() == EARLIER
    assert sorted(cbor.decode(data)) == [1, 2, 3, 4, 5, 6, 7]
    for secrets in (Secrets(identity=BOB), Secrets(identity=LATER)):
        assert Secrets.from_bytes(secrets.to_bytes()) == secrets
    assert sorted(cbor.decode(Secrets(identity=LATER).to_bytes())) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_long_term_keys_are_replaced_a_limited_number_of_times():
    who = BOB
    for number in range(MAX_FORMER):
        who = who.with_new_keys(NOW + number)
    assert Secrets.from_bytes(Secrets(identity=who).to_bytes()).identity == who
    with pytest.raises(LimitError):
        who.with_new_keys(NOW)


@pytest.mark.parametrize("kind", ["lost", "done"])
@pytest.mark.parametrize("at", range(1, 16))
def test_a_crash_leaves_the_keys_of_before_or_all_new_ones(at, kind):
    fs = MemFs()
    Keystore.create(fs, Secrets(identity=BOB), PASSPHRASE, kdf=CHEAP)
    before = fs.after_crash(random.Random(0))
    fault = Fault(at=at, kind=kind)
    disk = MemFs(fault=fault)
    try:
        keystore = Keystore.create(disk, Secrets(identity=BOB), PASSPHRASE, kdf=CHEAP)
        keystore.replace_keys(NOW + 5)
    except (Crash, OSError):
        pass
    for seed in range(3):
        copy = disk.after_crash(random.Random(seed))
        if not copy.exists(KEYSTORE):
            continue
        opened = Keystore.open(copy, PASSPHRASE).secrets
        assert len(opened.identity.former) == len(opened.own_prekeys) == len(opened.identity.client_keys) - 1
    assert Keystore.open(before, PASSPHRASE).identity == BOB


def test_an_invitation_for_a_former_card_is_opened():
    sealed = SealedInvite.for_card(invitation(), BOB.card(), random=seeded("card"))
    assert sealed.open(NOW, identities=[LATER]) == invitation()


def test_a_hand_over_to_a_former_card_is_opened():
    record = HandOver.issue(OWNER.id_sign, FIRST, [BOB.card()], number=1)
    entry = event(record, WRAP_SCHEMA)
    record_read = record_of(START, entry)
    assert record_read is not None
    ring = Keyring().with_keys(FIRST.for_writers())
    state = apply(START, entry, record_read)
    assert learn(ring, state, record_read, LATER).for_stream(FIRST.stream_id).can_read
    stranger = replace(LATER, former=())
    assert not learn(ring, state, record_read, stranger).for_stream(FIRST.stream_id).can_read


def test_messages_to_a_former_card_are_read_and_a_new_prekey_is_published(tmp_path):
    async def story():
        home = Home.at(tmp_path / "keys")
        keystore = create_identity(home, "bob", None, now=int(time.time()))
        old, alice = keystore.identity, person("alice")
        first = keystore.secrets.prekeys[0]

        def at(hub, who):
            return client_at(InProcess(hub.api), pin_of(hub), who, tmp_path / who.name, ring=Keyring())

        async with hub_at(tmp_path / "hub") as hub:
            async with at(hub, alice) as client:
                await send_personal(client, old.card(), b"to the prekey", prekey=first.prekey)
                await send_personal(client, old.card(), b"to the card", to_card=True)
                with home.lock("bob"):
                    new = keystore.replace_keys(int(time.time()))
                await send_personal(client, new.card(), b"to the new card", to_card=True)
            assert due_prekey(keystore, int(time.time())) is None  # there is one of the new key already
            assert [secret.prekey.id_sign_pk for secret in keystore.secrets.own_prekeys] == [new.id_sign_pk]
            async with at(hub, new) as client:
                entries = await all_of(read_inbox(client, new, keystore.secrets.prekeys))
        assert [entry.body for entry in entries] == [b"to the prekey", b"to the card", b"to the new card"]

    run(story())
