"""Messages to one person: sealed to her prekey, opened by her alone, refreshed when nothing moves."""

import time
from dataclasses import replace

import pytest
from tests.client.builders import seeded
from tests.client.hubs import IMPATIENT, all_of, client_at, hub_at, person, pin_of, run

from veen.client.errors import PrekeyMissing, Unreachable
from veen.client.home import Home
from veen.client.identity.identity import PrekeySecret, recent_prekeys
from veen.client.identity.keyring import Keyring
from veen.client.identity.keystore import create_identity
from veen.client.personal import (
    ATTEMPTS,
    due_prekey,
    find_prekey,
    inbox_id,
    publish_prekey,
    read_inbox,
    send_personal,
)
from veen.client.transport.inprocess import InProcess

ALICE, BOB, CAROL = (person(name) for name in ("alice", "bob", "carol"))


def prekey_of(who, *, ttl=7 * 86_400, seed="prekey"):
    return PrekeySecret.create(who, now=int(time.time()), ttl_sec=ttl, random=seeded(seed))


class Flaky:
    """A transport that loses the first submits, and counts what is asked for."""

    def __init__(self, inner, losses=0):
        self._inner, self.losses, self.paths = inner, losses, []

    async def call(self, path, *args, **options):
        self.paths.append(path)
        if "submit" in path and self.losses:
            self.losses -= 1
            raise Unreachable("lost on its way")
        return await self._inner.call(path, *args, **options)

    async def aclose(self):
        await self._inner.aclose()


def at(hub, who, tmp_path, transport=None, **options):
    transport = transport or InProcess(hub.api)
    return client_at(transport, pin_of(hub), who, tmp_path / who.name, ring=Keyring(), **options)


@pytest.mark.req("KEX0-05")
def test_a_message_is_opened_by_its_receiver_alone_also_after_its_prekey_has_expired(tmp_path):
    async def story():
        secret = prekey_of(BOB, ttl=3_600)
        async with hub_at(tmp_path / "hub") as hub:
            async with at(hub, BOB, tmp_path) as bob:
                assert await publish_prekey(bob, BOB, secret.prekey) is not None
                assert await publish_prekey(bob, BOB, secret.prekey) is None  # it is there
            async with at(hub, ALICE, tmp_path) as alice:
                sent, used = await send_personal(alice, BOB.card(), b"for bob")
                assert used == secret.prekey
                later = int(time.time()) + 3_601
                assert await find_prekey(alice, BOB.card(), later) is None  # expired: nobody seals to it any more
                assert alice.label(inbox_keys(BOB)) == sent.label
            newer = prekey_of(BOB, seed="newer")
            async with at(hub, BOB, tmp_path) as bob:
                entries = await all_of(read_inbox(bob, BOB, [newer, secret]))
                assert [entry.body for entry in entries] == [b"for bob"]
                without = await all_of(read_inbox(bob, BOB, [newer]))
                assert "no read key" in without[0].error
            async with at(hub, CAROL, tmp_path) as carol:
                carol.use_personal_keys(inbox_id(BOB.id_sign_pk), (inbox_keys(BOB),))
                overheard = await all_of(carol.read(inbox_keys(BOB)))
                assert [entry.event is None for entry in overheard] == [False, True]  # the prekey, not the message

    run(story())


def inbox_keys(who):
    from veen.client.personal import _directory

    return _directory(who.card())


def test_without_a_live_prekey_nothing_is_sent_unless_the_long_term_key_is_asked_for(tmp_path):
    async def story():
        async with hub_at(tmp_path / "hub") as hub:
            async with at(hub, ALICE, tmp_path) as alice:
                with pytest.raises(PrekeyMissing):
                    await send_personal(alice, BOB.card(), b"hello")
                _, used = await send_personal(alice, BOB.card(), b"hello", to_card=True)
                assert used is None
            async with at(hub, BOB, tmp_path) as bob:
                assert [entry.body for entry in await all_of(read_inbox(bob, BOB, []))] == [b"hello"]

    run(story())


def test_a_prekey_that_somebody_else_put_into_the_inbox_is_not_used(tmp_path):
    """Anybody can write there: only what her id_sign signed counts."""

    async def story():
        forged = replace(prekey_of(CAROL).prekey, id_sign_pk=BOB.id_sign_pk)
        async with hub_at(tmp_path / "hub") as hub, at(hub, CAROL, tmp_path) as carol:
            from veen.client.personal import PREKEY_SCHEMA

            for prekey in (forged, prekey_of(CAROL).prekey):
                await carol.send(inbox_keys(BOB), prekey.to_bytes(), schema=PREKEY_SCHEMA)
            await carol.send(inbox_keys(BOB), b"nonsense", schema=PREKEY_SCHEMA)
            assert await find_prekey(carol, BOB.card(), int(time.time())) is None

    run(story())


@pytest.mark.req("RES-04")
def test_after_three_attempts_without_progress_the_prekey_is_fetched_anew_and_nothing_is_doubled(tmp_path):
    async def story():
        old, new = prekey_of(BOB, ttl=3_600, seed="old"), prekey_of(BOB, seed="new")
        async with hub_at(tmp_path / "hub") as hub:
            async with at(hub, BOB, tmp_path) as bob:
                await publish_prekey(bob, BOB, new.prekey)
            wire = Flaky(InProcess(hub.api), losses=ATTEMPTS)
            async with at(hub, ALICE, tmp_path, wire, retry=IMPATIENT) as alice:
                wire.paths.clear()
                _, used = await send_personal(alice, BOB.card(), b"once", prekey=old.prekey)
                assert used == new.prekey  # read from the inbox, although the one that was known is live
                assert sum("stream" in path for path in wire.paths) >= 1
            async with at(hub, BOB, tmp_path) as bob:
                entries = await all_of(read_inbox(bob, BOB, [old, new]))
                assert [entry.body for entry in entries if entry.event] == [b"once"]

    run(story())


def test_fewer_losses_than_that_keep_the_prekey(tmp_path):
    async def story():
        live = prekey_of(BOB)
        async with hub_at(tmp_path / "hub") as hub:
            wire = Flaky(InProcess(hub.api), losses=ATTEMPTS - 1)
            async with at(hub, ALICE, tmp_path, wire, retry=IMPATIENT) as alice:
                _, used = await send_personal(alice, BOB.card(), b"once", prekey=live.prekey)
                assert used == live.prekey

    run(story())


def test_a_prekey_is_replaced_before_it_ends_and_after_the_client_key_rotated(tmp_path):
    now = int(time.time())
    keystore = create_identity(Home.at(tmp_path), "bob", None, now=now)
    assert due_prekey(keystore, now) is None
    fresh = due_prekey(keystore, now + 6 * 86_400 + 1)
    assert fresh is not None
    assert fresh in keystore.secrets.prekeys
    before = keystore.secrets.prekeys
    keystore.rotate(now + 7 * 86_400)
    assert len(keystore.secrets.prekeys) == len(before) + 1
    assert set(recent_prekeys(before, now)) <= set(keystore.secrets.prekeys)  # the old ones still open
