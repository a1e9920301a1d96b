"""Reading: ranges, times, epochs, live tails, and all that is verified before anything is opened (spec §9, D-27)."""

import asyncio
import time
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.builders import message, seeded
from tests.client.hubs import (
    GATED,
    OPEN,
    ORDERS,
    QUICK,
    RING,
    Clock,
    all_of,
    bodies,
    client_at,
    connected,
    hub_at,
    person,
    pin_of,
    run,
    token_for,
    visiting,
)
from tests.core.twokeys import seal_for_both
from tests.examples import examples
from tests.waiting import DEADLINE_SEC, eventually

from veen.client.errors import Divergence, LocalError, NoReaderKey, ProofInvalid, Rewound, UnknownStream
from veen.client.identity.keyring import Keyring, StreamKeys
from veen.client.read import reading
from veen.client.session import OutsideEpoch
from veen.client.transport.inprocess import InProcess
from veen.client.verify.view import Forged
from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import MalformedError
from veen.core.hashing import H
from veen.core.labels import epoch_at
from veen.core.objects.envelopes import StreamItem, StreamRequest, StreamResponse, SubmitRequest
from veen.core.objects.msg import Msg
from veen.core.objects.payload_hdr import PayloadHdr
from veen.core.objects.profile import PRESETS
from veen.core.objects.receipt import Receipt
from veen.core.objects.tooling import CapStatusResponse
from veen.core.sealing.ciphertext import Binding, open_msg, open_with_one, seal
from veen.core.tree.mmr import Mmr
from veen.testing import hostile
from veen.testing.hostile import HostileHub, Replaces, Truncates

ROTATING = {**GATED, "admission.profiles": "rotating"}
HOUR = 3600


@pytest.mark.req("CLNT-02")
def test_any_range_reads_the_same_entries_with_proofs_that_hold(tmp_path):
    async def check():
        async with connected(tmp_path) as (hub, _, client):
            await client.send_many("orders", [b"%d" % number for number in range(20)])
            everything = await all_of(client.read("orders", with_proofs=True))
            for entry in everything:
                assert entry.proof is not None
                entry.proof.verify(
                    leaf_hash=entry.msg.leaf_hash(), stream_seq=entry.seq, expected_root=entry.receipt.mmr_root
                )
            async with client_at(InProcess(hub.api), pin_of(hub), person("bob"), tmp_path / "bob") as other:
                for reader in (client, other):
                    for first, last in ((1, 20), (1, 1), (7, 13), (20, 20), (5, None), (16, 400), (21, None), (9, 4)):
                        entries = await all_of(reader.read("orders", from_seq=first, to_seq=last, with_proofs=True))
                        assert entries == everything[first - 1 : last] or (last or 99) < first

    run(check())


@pytest.mark.req("CLNT-12")
@pytest.mark.parametrize("knows", [False, True], ids=["a new reader", "one that read all before"])
def test_a_range_is_asked_for_from_its_first_entry_on(tmp_path, knows):
    """A late part of a long log must not cost the log."""

    async def check():
        async with connected(tmp_path) as (hub, _, client):
            await client.send_many("orders", [b"%d" % number for number in range(40)])
            wire = HostileHub(InProcess(hub.api))
            async with client_at(wire, pin_of(hub), person("bob"), tmp_path / "bob") as reader:
                if knows:
                    assert len(await bodies(reader)) == 40
                for first, last in ((31, 35), (40, 40), (38, None), (2, 3)):
                    wire.calls.clear()
                    assert len(await bodies(reader, from_seq=first, to_seq=last)) == (last or 40) - first + 1
                    asked = [StreamRequest.from_bytes(body) for name, body in wire.calls if name == "v1/stream"]
                    assert asked
                    assert min(request.cursor or request.from_seq for request in asked) == first
                    assert last is None or max(request.to_seq or 40 for request in asked) == last

    run(check())


def test_reading_a_stream_that_nobody_wrote_to_gives_nothing(tmp_path):
    async def check():
        async with connected(tmp_path) as (_, _, client):
            assert await bodies(client) == []
            assert await bodies(client, from_seq=5) == []
            assert await bodies(client, since=5) == []

    run(check())


def test_what_was_read_is_remembered(tmp_path):
    """A reader that comes back catches a hub that has less than it showed."""

    async def check():
        async with visiting(tmp_path / "hub", person("alice"), tmp_path / "home") as client:
            await client.send_many("orders", [b"1", b"2", b"3"])
        async with visiting(tmp_path / "hub", person("bob"), tmp_path / "bob") as reader:
            assert len(await bodies(reader)) == 3
        async with hub_at(tmp_path / "hub") as hub:
            wire = HostileHub(InProcess(hub.api))
            wire.lies.append(Truncates(3))
            async with client_at(wire, pin_of(hub), person("bob"), tmp_path / "bob") as reader:
                with pytest.raises(Rewound):
                    await bodies(reader)

    run(check())


@pytest.mark.req("CLNT-02", "CLNT-12")
def test_a_time_range_is_found_without_reading_what_is_before_it(tmp_path):
    clock = Clock()

    async def check():
        async with connected(tmp_path, clock=clock, settings={**OPEN}, bounds=None) as (_, wire, client):
            for number in range(60):
                await client.send("orders", b"%d" % number)
                clock.now += 10
            start = 1_800_000_000
            wire.calls.clear()
            assert await bodies(client, since=start + 405, until=start + 435) == [b"41", b"42", b"43"]
            assert [operation for operation, _ in wire.calls].count("v1/receipt") < 10
            assert len(await bodies(client, since=start)) == 60
            assert await bodies(client, since=start + 10_000) == []
            assert await bodies(client, until=start - 1) == []

    run(check())


# --- keys -------------------------------------------------------------------------------------------------


def test_who_has_only_the_write_key_reads_sealed_entries(tmp_path):
    async def check():
        async with connected(tmp_path) as (hub, _, client):
            await client.send("orders", b"for readers")
            writers = Keyring().with_keys(ORDERS.for_writers())
            async with client_at(
                InProcess(hub.api), pin_of(hub), person("bob"), tmp_path / "bob", ring=writers
            ) as other:
                with pytest.raises(NoReaderKey):
                    await bodies(other)
                (entry,) = await all_of(other.read("orders", open=False))
                assert (entry.event, entry.error) == (None, None)
                (entry,) = await all_of(other.read(f"label:{client.label('orders').hex()}", open=False))
                assert entry.seq == 1
            async with client_at(
                InProcess(hub.api), pin_of(hub), person("eve"), tmp_path / "eve", ring=Keyring()
            ) as eve:
                with pytest.raises(UnknownStream):
                    await bodies(eve)
                assert len(await all_of(eve.read(f"label:{client.label('orders').hex()}", open=False))) == 1

    run(check())


def test_one_message_that_cannot_be_opened_does_not_stop_the_others(tmp_path):
    """Anybody with the write key can seal to another key, or nonsense: the entry says so, the log goes on."""
    other_key = StreamKeys.create("orders", random=seeded("another"))

    async def check():
        async with connected(tmp_path) as (hub, _, client):
            await client.send("orders", b"good")
            strange = Keyring().with_keys(other_key)
            async with client_at(
                InProcess(hub.api), pin_of(hub), person("bob"), tmp_path / "bob", ring=strange
            ) as other:
                await other.send("orders", b"to another key")
            await client.send("orders", b"good again")
            entries = await all_of(client.read("orders"))
            assert [entry.event is not None for entry in entries] == [True, False, True]
            assert entries[1].error == "E.OPEN: no read key for this stream"
            both = RING.with_keys(other_key)
            async with client_at(InProcess(hub.api), pin_of(hub), person("cy"), tmp_path / "cy", ring=both) as cy:
                assert await bodies(cy) == [b"good", b"to another key", b"good again"]

    run(check())


@pytest.mark.req("CLNT-13", "CAP-13", "CAP-21")
def test_where_the_hub_does_not_scope_tokens_the_reader_does(tmp_path):
    """stream_scope open: the hub admits a token for another stream; whoever opens the message refuses it."""
    settings = {**GATED, "admission.stream_scope": "open"}

    async def check():
        async with connected(tmp_path, settings=settings) as (_, _, client):
            elsewhere = token_for(client.client_id, b"e" * 32)
            await client.authorize(elsewhere)
            await client.send("orders", b"out of scope", auth_ref=elsewhere.auth_ref())
            await client.authorize(token_for(client.client_id))
            await client.send("orders", b"in scope")
            first, second = await all_of(client.read("orders"))
            assert first.event is None
            assert (first.error or "").startswith("E.CAP")
            assert second.body == b"in scope"

    run(check())


@pytest.mark.req("CAP-21")
def test_the_chain_of_a_token_that_the_hub_shows_is_verified(tmp_path):
    """A hub that wants a message out of scope to be read shows a token that nobody signed; its hash is right."""

    async def check():
        async with connected(tmp_path) as (_, wire, client):
            signed = token_for(client.client_id)
            forged = replace(signed, sig_chain=(SigningKey(b"\x08" * 32).sign(H(b"forged")),))
            shown = CapStatusResponse(token=forged.to_bytes(), issued_at=1, expires_at=2)
            wire.lies.append(Replaces("tooling/cap_status", shown.to_bytes()))
            assert await client._session.token(forged.auth_ref()) is None
            with pytest.raises(ProofInvalid):
                await client.cap_status(forged.auth_ref())
            shown = CapStatusResponse(token=signed.to_bytes(), issued_at=1, expires_at=2)
            wire.lies[:] = [Replaces("tooling/cap_status", shown.to_bytes())]
            assert await client._session.token(signed.auth_ref()) == signed
            assert await client._session.token(b"another auth_ref".ljust(32)) is None

    run(check())


@pytest.mark.req("PHDR-05", "CLNT-13")
def test_a_header_that_claims_another_capability_than_the_message_is_refused(tmp_path):
    """The hub cannot see cap_ref; whoever opens the message compares it with auth_ref."""
    profile, key = PRESETS["messaging"], person("mallory").client_key.key

    def sealed(label, client_seq, cap_ref):
        fields = {"profile_id": profile.profile_id(), "label": label, "client_seq": client_seq, "prev_ack": 0}
        binding = Binding(client_id=key.public, auth_ref=None, **fields)
        hdr = PayloadHdr(schema=bytes(32), cap_ref=cap_ref)
        sealed = seal(
            ORDERS.reader_pk, binding, hdr, b"body", ikm=bytes([client_seq]) * 32, pad_block=profile.pad_block
        )
        return Msg.compose(key, auth_ref=None, ciphertext=sealed.ciphertext, **fields)

    async def check():
        async with connected(tmp_path) as (_, wire, client):
            for client_seq, cap_ref in ((1, b"c" * 32), (2, None)):
                request = SubmitRequest(msg=sealed(client.label("orders"), client_seq, cap_ref))
                assert (await wire.call("v1/submit", request.to_bytes())).ok
            claims, plain = await all_of(client.read("orders"))
            assert claims.event is None
            assert "cap_ref" in (claims.error or "")
            assert plain.body == b"body"

    run(check())


def ambiguous_msg(label, second, client_seq=1):
    """A message whose sender holds two keys against each other: ORDERS and `second` both open it."""
    profile, key = PRESETS["messaging"], person("mallory").client_key.key
    fields = {"profile_id": profile.profile_id(), "label": label, "client_seq": client_seq, "prev_ack": 0}
    binding = Binding(client_id=key.public, auth_ref=None, **fields)
    sealed = seal_for_both(ORDERS.reader_pk, second.reader_pk, binding, schema=H(b"any.v1"), body=b"pay 10")
    return Msg.compose(key, auth_ref=None, ciphertext=sealed + bytes(-len(sealed) % profile.pad_block), **fields)


def test_a_message_that_opens_under_two_keys_of_a_stream_is_opened_by_none(tmp_path):
    """D-170: whoever has one of the keys sees one content, so who has both believes neither."""
    second = StreamKeys.create("orders", random=seeded("second"))
    from veen.lake.log.decryption import StreamReader

    async def check():
        async with connected(tmp_path) as (hub, wire, client):
            msg = ambiguous_msg(client.label("orders"), second)
            assert (await wire.call("v1/submit", SubmitRequest(msg=msg).to_bytes())).ok
            await client.send("orders", b"good")
            one_key = await all_of(client.read("orders"))
            assert one_key[0].body.startswith(b"pay 10"), "with one key alone it looks like any other"
            for ring in (RING.with_keys(second), Keyring().with_keys(second).with_keys(ORDERS)):
                home = tmp_path / str(len(ring.entries[0].to_text())) / ring.entries[0].reader_pk.hex()[:8]
                async with client_at(InProcess(hub.api), pin_of(hub), person("bob"), home, ring=ring) as bob:
                    twice, good = await all_of(bob.read("orders"))
                    assert twice.event is None
                    assert (twice.error or "").startswith("OVL.AMBIGUOUS")
                    assert good.body == b"good", "what one key opens is opened, whichever it is"
                    reader = StreamReader(tuple(ring.readers("orders")))
                    assert reader.open(msg) == "ambiguous"
                    assert not isinstance(reader.open(good.msg), str)
            with pytest.raises(MalformedError):  # the second content is no payload: it still counts as opened
                open_msg(second.secret(), msg)

    run(check())


def test_keys_are_tried_in_the_order_of_the_keyring_the_newest_first():
    older, newer = (StreamKeys.create("orders", random=seeded(name)) for name in ("older", "newer"))
    ring = Keyring().with_keys(older).with_keys(newer)
    assert [keys.reader_pk for keys in ring.readers("orders")] == [newer.reader_pk, older.reader_pk]


@pytest.mark.req("CAP-19")
def test_a_token_is_asked_for_and_verified_once_however_many_messages_name_it(tmp_path):
    settings = {**GATED, "admission.stream_scope": "open"}

    async def check():
        async with connected(tmp_path, settings=settings) as (_, wire, client):
            await client.authorize(token_for(client.client_id))
            await client.send_many("orders", [b"%d" % number for number in range(20)])
            wire.calls.clear()
            for _ in range(2):
                assert len(await bodies(client)) == 20
            assert [operation for operation, _ in wire.calls].count("tooling/cap_status") == 1

    run(check())


# --- what is checked before anything is opened ----------------------------------------------------------------


@pytest.mark.req("CLNT-05")
@pytest.mark.parametrize("place", [1, 3, 5])
def test_nothing_of_a_page_is_opened_before_the_hubs_signatures_were_checked(tmp_path, monkeypatch, place):
    """One receipt under a strange key: no secret key meets the bytes that came along with it, or before it."""
    opened = []

    def recorded(keys, msg, **options):
        opened.append(msg)
        return open_with_one(keys, msg, **options)

    monkeypatch.setattr(reading, "open_with_one", recorded)

    def strange(operation, body, answer):
        def change(receipt):
            return hostile._sign_again(SigningKey(b"\x77" * 32), receipt) if receipt.stream_seq == place else receipt

        return hostile._each_receipt(operation, answer, change)

    async def check():
        async with connected(tmp_path) as (hub, wire, client):
            await client.send_many("orders", [b"%d" % number for number in range(5)])
            wire.lies.append(strange)
            async with client_at(wire, pin_of(hub), person("bob"), tmp_path / "bob") as reader:
                with pytest.raises(Divergence):
                    await bodies(reader)
                assert opened == []
                wire.lies.clear()
                assert len(await bodies(reader)) == len(opened) == 5

    run(check())


def history_with(hub, label, acks):
    """A page of a log that the hub signed although the author's prev_ack is what `acks` says."""
    signer = hub.identity.held.private[hub.identity.current_pk]
    key, tree, items = person("author").client_key.key, Mmr(), []
    for number, prev_ack in enumerate(acks, start=1):
        msg = message(key, label, number, prev_ack)
        tree.append(msg.leaf_hash())
        receipt = Receipt.issue(
            signer,
            label=label,
            stream_seq=number,
            leaf_hash=msg.leaf_hash(),
            mmr_root=tree.root(),
            hub_ts=int(time.time()),
        )
        items.append(StreamItem(stream_seq=number, msg=msg, receipt=receipt))
    return StreamResponse(label=label, from_seq=1, items=tuple(items))


@pytest.mark.req("INV-06")
@pytest.mark.parametrize(
    ("acks", "fault"),
    [
        ((0, 1, 2), None),
        ((0, 0, 0), None),
        ((0, 1, 1, 3), None),
        ((0, 1, 0), "goes back"),
        ((0, 1, 2, 1), "goes back"),
        ((1,), "did not exist"),
        ((0, 2), "did not exist"),
        ((0, 1, 9), "did not exist"),
    ],
)
def test_readers_see_a_prev_ack_that_goes_back_or_names_what_did_not_exist(tmp_path, acks, fault):
    """I6: no hub may admit it, and one that did has signed it: whoever reads the log can tell."""

    async def check():
        async with connected(tmp_path) as (hub, wire, client):
            page = history_with(hub, client.label("orders"), acks)

            def rewritten(operation, body, answer):
                return replace(answer, status=200, body=page.to_bytes()) if operation == "v1/stream" else answer

            wire.lies.append(rewritten)
            async with client_at(wire, pin_of(hub), person("bob"), tmp_path / "bob") as reader:
                if fault is None:
                    assert len(await all_of(reader.read("orders"))) == len(acks)
                    return
                with pytest.raises(Forged, match=fault) as caught:
                    await all_of(reader.read("orders"))
                assert caught.value.seq == len(acks)

    run(check())


# --- epochs -----------------------------------------------------------------------------------------------


@pytest.mark.req("OPS-05")
def test_a_stream_over_many_labels_reads_in_one_order(tmp_path):
    clock = Clock(1_800_000_000 - 1_800_000_000 % HOUR + 5)

    async def check():
        async with connected(tmp_path, clock=clock, settings=ROTATING, bounds=None) as (_, _, client):
            await client.authorize(token_for(client.client_id))
            sent = []
            for number in range(30):
                sent.append(await client.send("orders", b"%d" % number))
                clock.now += 1200
            assert len({message.label for message in sent}) == 10
            entries = await all_of(client.read("orders"))
            assert [entry.body for entry in entries] == [b"%d" % number for number in range(30)]
            assert [entry.order for entry in entries] == sorted(entry.order for entry in entries)
            assert [entry.event.epoch for entry in entries] == [
                epoch_at(entry.receipt.hub_ts, HOUR) for entry in entries
            ]
            middle = entries[14].receipt.hub_ts
            assert await bodies(client, since=middle) == [b"%d" % number for number in range(14, 30)]
            assert await bodies(client, until=middle) == [b"%d" % number for number in range(15)]
            assert await bodies(client, epoch=entries[0].epoch, from_seq=2) == [b"1", b"2"]
            with pytest.raises(LocalError):
                await bodies(client, from_seq=2)
            assert (await client.checkpoint("orders", epoch=entries[0].epoch)).upto_seq == 3

    run(check())


@pytest.mark.req("INV-12")
def test_an_entry_outside_the_time_of_its_label_is_caught(tmp_path):
    """A hub whose clock went back by hours: it signs hub_ts that its own labels do not allow."""
    clock = Clock(1_800_000_000 - 1_800_000_000 % HOUR + 5)

    class Backdates:
        def __init__(self, key):
            self.key = key

        def __call__(self, operation, body, answer):
            def change(receipt):
                return Receipt.issue(
                    self.key,
                    label=receipt.label,
                    stream_seq=receipt.stream_seq,
                    leaf_hash=receipt.leaf_hash,
                    mmr_root=receipt.mmr_root,
                    hub_ts=receipt.hub_ts + 5 * HOUR,
                )

            return hostile._each_receipt(operation, answer, change)

    async def check():
        async with connected(tmp_path, clock=clock, settings=ROTATING, bounds=None) as (hub, wire, client):
            await client.authorize(token_for(client.client_id))
            await client.send("orders", b"x")
            wire.lies.append(Backdates(hub.identity.held.private[hub.identity.current_pk]))
            with pytest.raises(OutsideEpoch):
                await bodies(client)

    run(check())


# --- live -------------------------------------------------------------------------------------------------


def _has(entries, count):
    return len(entries) >= count


async def take(entries, count, into=None):
    received = [] if into is None else into
    async for entry in entries:
        received.append(entry)
        if len(received) == count:
            break
    await entries.aclose()
    return received


def test_follow_begins_with_what_is_there_or_with_what_comes(tmp_path):
    async def check():
        async with connected(tmp_path) as (hub, _, client):
            await client.send_many("orders", [b"1", b"2"])
            async with client_at(InProcess(hub.api), pin_of(hub), person("bob"), tmp_path / "bob") as other:
                old = asyncio.create_task(take(other.follow("orders", from_seq=2), 3))
                new = asyncio.create_task(take(other.follow("orders"), 2))
                while not (old.done() and new.done()):
                    await asyncio.sleep(0.05)
                    await client.send("orders", b"live")
                assert [entry.body for entry in await old] == [b"2", b"live", b"live"]
                assert [entry.body for entry in await new] == [b"live", b"live"]
                assert [entry.seq for entry in await old] == [2, 3, 4]

    run(check())


def test_follow_goes_with_the_epochs(tmp_path):
    clock = Clock(1_800_000_000 - 1_800_000_000 % HOUR + HOUR - 30)

    async def check():
        async with connected(tmp_path, clock=clock, settings=ROTATING, bounds=None) as (hub, _, client):
            await client.authorize(token_for(client.client_id))
            await client.send("orders", b"0")
            options = {"clock": clock, "bounds": None, "retry": QUICK}
            async with client_at(InProcess(hub.api), pin_of(hub), person("bob"), tmp_path / "bob", **options) as other:
                entries: list[reading.Entry] = []
                following = asyncio.create_task(take(other.follow("orders", from_seq=1), 6, entries))
                for number in range(1, 6):
                    await eventually(partial(_has, entries, number))
                    clock.now += 20
                    await client.send("orders", b"%d" % number)
                await asyncio.wait_for(following, DEADLINE_SEC)
                assert sorted(entry.body for entry in entries) == [b"%d" % number for number in range(6)]
                assert len({entry.epoch for entry in entries}) == 2

    run(check())


@pytest.mark.req("CLNT-10")
def test_follow_hears_writers_whose_clock_is_an_epoch_ahead(tmp_path):
    """The reader's clock stays behind: the label of the next epoch is followed all the same."""
    clock, behind = (Clock(1_800_000_000 - 1_800_000_000 % HOUR + HOUR - 5) for _ in range(2))

    async def check():
        async with connected(tmp_path, clock=clock, settings=ROTATING, bounds=None) as (hub, _, client):
            await client.authorize(token_for(client.client_id))
            await client.send("orders", b"now")
            options = {"clock": behind, "bounds": None, "retry": QUICK}
            async with client_at(InProcess(hub.api), pin_of(hub), person("bob"), tmp_path / "bob", **options) as other:
                following = asyncio.create_task(take(other.follow("orders", from_seq=1), 2))
                clock.now += 10
                await client.send("orders", b"ahead")
                entries = await asyncio.wait_for(following, 60)
                assert sorted(entry.body for entry in entries) == [b"ahead", b"now"]
                assert len({entry.epoch for entry in entries}) == 2

    run(check())


@pytest.mark.req("CLNT-10")
def test_follow_skips_no_epoch_when_its_clock_jumps(tmp_path):
    """A reader that slept for hours hears what was written in the epoch before the one it wakes up in."""
    start = 1_800_000_000 - 1_800_000_000 % HOUR + 5
    clock, sleeper = Clock(start), Clock(start)

    async def check():
        async with connected(tmp_path, clock=clock, settings=ROTATING, bounds=None) as (hub, _, client):
            await client.authorize(token_for(client.client_id))
            await client.send("orders", b"0")
            options = {"clock": sleeper, "bounds": None, "retry": QUICK}
            async with client_at(InProcess(hub.api), pin_of(hub), person("bob"), tmp_path / "bob", **options) as other:
                entries = other.follow("orders", from_seq=1)
                first = await asyncio.wait_for(anext(entries), 60)
                clock.now += 2 * HOUR
                await client.send("orders", b"2")
                clock.now += HOUR
                sleeper.now = clock.now
                second = await asyncio.wait_for(anext(entries), 60)
                await entries.aclose()
                assert (first.body, second.body) == (b"0", b"2")
                assert second.epoch - first.epoch == 2

    run(check())


# --- any history ------------------------------------------------------------------------------------------


@examples(10)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 4)), min_size=1, max_size=8), st.booleans())
def test_whatever_two_writers_do_both_read_one_log(tmp_path_factory, turns, light):
    """Sends and batches interleaved in any way: the same order for everybody, and every author's numbers whole."""
    tmp_path = tmp_path_factory.mktemp("story")

    async def check():
        async with hub_at(tmp_path / "hub") as hub:
            mode = "light" if light else "full"
            alice = client_at(InProcess(hub.api), pin_of(hub), person("alice"), tmp_path / "a", mode=mode)
            bob = client_at(InProcess(hub.api), pin_of(hub), person("bob"), tmp_path / "b")
            async with alice as first, bob as other:
                said: list[bytes] = []
                for who, count in turns:
                    texts = [b"%s %d" % (who.encode(), len(said) + number) for number in range(count)]
                    await (first if who == "a" else other).send_many("orders", texts, batch=3)
                    said += texts
                assert await bodies(first) == await bodies(other) == said

    run(check())
