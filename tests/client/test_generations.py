"""Generations of a stream's keys: hand-overs are messages, a removed reader opens nothing new, nobody else loses."""

import asyncio
import contextlib
import re
import time
from dataclasses import replace

import pytest
from tests.client.builders import NOW, identity, seeded
from tests.client.hubs import all_of, client_at, hub_at, person, pin_of, run

from veen.client.errors import GenerationRefused, NotOwner, NotReader
from veen.client.generations import owning, records
from veen.client.generations.fold import GRACE_SEC, KeyState, apply, learn, record_of
from veen.client.generations.records import (
    GENERATION_SCHEMA,
    AuthorCard,
    Enrolment,
    HandOver,
    KeyGeneration,
    KeyShred,
    OwnerChange,
    control_keys,
    open_back,
    seal_back,
)
from veen.client.identity.identity import Identity
from veen.client.identity.keyring import Keyring, StreamKeys
from veen.client.transport.inprocess import InProcess
from veen.core.crypto import hpke
from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import OpenError, SignatureError
from veen.core.event import Event
from veen.core.labels import schema_id
from veen.core.objects.card import CARD_SCHEMA
from veen.core.objects.payload_hdr import PayloadHdr
from veen.core.objects.speaking import (
    PRINCIPAL_NEXT_SCHEMA,
    SPEAKS_END_SCHEMA,
    SPEAKS_SCHEMA,
    PrincipalNext,
    SpeaksBinding,
    SpeaksEnd,
)
from veen.core.sealing.ciphertext import open_with_one

OWNER, BOB, CAROL, MALLORY = (identity(name) for name in ("owner", "bob", "carol", "mallory"))
FIRST = StreamKeys.create("plans", owner_pk=OWNER.id_sign_pk, random=seeded("plans"))
START = KeyState(stream_id=FIRST.stream_id, owner_pk=OWNER.id_sign_pk)


def event(record, schema, *, seq=1, ts=NOW, author=OWNER):
    return Event(
        stream_id=FIRST.stream_id,
        label=b"L" * 32,
        epoch=0,
        stream_seq=seq,
        leaf_hash=bytes([seq]) * 32,
        client_id=author.client_id,
        auth_ref=None,
        hub_ts=ts,
        ts=ts,
        hdr=PayloadHdr(schema=schema),
        body=record.to_bytes(),
    )


def folded(state, *events):
    for item in events:
        record = record_of(state, item)
        state = state if record is None else apply(state, item, record)
    return state


def handed_to(*people, seq=1):
    return event(HandOver.issue(OWNER.id_sign, FIRST, [who.card() for who in people]), records.WRAP_SCHEMA, seq=seq)


def second(*staying, history=True):
    return owning.next_generation(OWNER, FIRST, [who.card() for who in staying], history=history)


def second_of_an_earlier_release(*staying):
    """A generation without a number that leads back to the first one."""
    keys, _ = second(*staying)
    cards = [OWNER.card(), *(who.card() for who in staying)]
    return keys, KeyGeneration.issue(OWNER.id_sign, keys, cards, history=True, back=seal_back(keys, FIRST))


# --- records --------------------------------------------------------------------------------------------------


def test_records_come_back_from_their_bytes():
    _keys, generation = second(BOB)
    invite = SigningKey(b"\x07" * 32)
    for record in (
        generation,
        HandOver.issue(OWNER.id_sign, FIRST, [BOB.card()]),
        HandOver.issue(OWNER.id_sign, FIRST, invite_pk=invite.public, expires_at=NOW),
        Enrolment.issue(invite, FIRST.stream_id, BOB.card()),
        KeyShred.issue(OWNER.id_sign, FIRST.stream_id, 0, reason="done"),
        AuthorCard(card=BOB.card()),
    ):
        assert type(record).from_bytes(record.to_bytes()) == record


def test_a_generation_is_opened_by_those_it_is_wrapped_for_and_by_its_owner():
    keys, record = second(BOB)
    assert record.secret_for(bytes.fromhex(BOB.card_id), BOB.dh_sk) == keys.reader_sk
    assert record.secret_for(bytes.fromhex(OWNER.card_id), OWNER.dh_sk) == keys.reader_sk
    assert record.secret_for(bytes.fromhex(CAROL.card_id), CAROL.dh_sk) is None
    assert record.secret_for(bytes.fromhex(BOB.card_id), CAROL.dh_sk) is None
    assert record.back is None  # D-182


@contextlib.contextmanager
def recipients(monkeypatch):
    """Every HPKE sealing while this lasts: the public key that it was for, and what was sealed."""
    sealings = []
    original = hpke.setup_sender

    def spy(pk, ikm, info=b""):
        enc, context = original(pk, ikm, info)

        class Noted:
            def seal(self, aad, plaintext):
                sealings.append((pk, plaintext))
                return context.seal(aad, plaintext)

        return enc, Noted()

    with monkeypatch.context() as patch:
        patch.setattr(hpke, "setup_sender", spy)
        yield sealings


def check_sealings(sealings, keys, staying):
    """The new secret key goes to the cards of those who stay, and to no key of the stream."""
    given_new = {pk for pk, plaintext in sealings if keys.secret() in plaintext}
    assert given_new == {who.dh_pk for who in (OWNER, *staying)}
    assert FIRST.reader_pk not in {pk for pk, _ in sealings}


def test_the_new_key_is_never_sealed_to_the_old_one(monkeypatch):
    """D-171: whoever has the old key would have the new one."""
    with recipients(monkeypatch) as sealings:
        keys, _ = second(BOB)
    check_sealings(sealings, keys, [BOB])


@pytest.mark.parametrize("field", ["back", "wrap"])
def test_a_change_that_seals_the_new_key_to_the_old_one_is_noticed(monkeypatch, field):
    """The mutation that the test above is there for, made in the source's own function."""
    original = KeyGeneration.issue

    def leaking(owner, keys, cards, **options):
        if field == "back":
            records.WrappedKey.seal(FIRST.reader_pk, b"veen/keys-back", b"", keys.secret(), seeded("leak"))
        else:
            old = replace(OWNER.card(), dh_pk=FIRST.reader_pk)
            cards = [*cards, old]
        return original(owner, keys, cards, **options)

    monkeypatch.setattr(KeyGeneration, "issue", leaking)
    with recipients(monkeypatch) as sealings:
        keys, _ = second(BOB)
    with pytest.raises(AssertionError):
        check_sealings(sealings, keys, [BOB])


def test_nothing_in_an_announcement_opens_with_what_a_removed_reader_has():
    """Every sealed part of the record, tried with every secret of the old generation and of the removed reader."""
    keys, record = second_of_an_earlier_release(BOB)
    secrets = [FIRST.secret(), CAROL.dh_sk, control_keys(FIRST.stream_id, OWNER.id_sign_pk).secret()]
    sealed = [wrap.key for wrap in record.wraps] + [record.back]
    cards = [wrap.card_id for wrap in record.wraps] + [bytes.fromhex(CAROL.card_id), b""]
    place = record.stream_id + record.gen.to_bytes(8, "big") + record.pk
    tried = 0
    for part in sealed:
        for secret in secrets:
            for info in (b"veen/keys-wrap", b"veen/keys-back", b""):
                for card_id in cards:
                    tried += 1
                    with pytest.raises(OpenError):
                        part.open(secret, info, place + card_id)
    assert tried == 3 * 3 * 3 * 4
    assert keys.secret() not in record.to_bytes()


def test_a_signature_of_anybody_but_the_owner_counts_for_nothing():
    keys, record = second(BOB)
    forged = replace(record, sig=MALLORY.id_sign.sign(record.signing_digest()))
    own = KeyGeneration.issue(MALLORY.id_sign, keys, [MALLORY.card()])
    posing = replace(own, owner_pk=OWNER.id_sign_pk)
    for bad in (forged, own, posing, replace(record, reason="another"), replace(record, gen=7)):
        assert record_of(START, event(bad, GENERATION_SCHEMA)) is None
    with pytest.raises(SignatureError):
        forged.check_signed_by(OWNER.id_sign_pk)
    assert record_of(START, event(record, GENERATION_SCHEMA)) == record


def test_a_record_of_another_stream_counts_for_nothing():
    other = StreamKeys.create("other", owner_pk=OWNER.id_sign_pk)
    _, record = owning.next_generation(OWNER, other, [BOB.card()])
    assert record_of(START, event(record, GENERATION_SCHEMA)) is None


def test_nonsense_in_place_of_a_record_changes_nothing():
    for schema in records.KEY_SCHEMAS:
        bad = replace(event(AuthorCard(card=BOB.card()), schema), body=b"\xa1\x01")
        assert record_of(START, bad) is None


# --- the fold -------------------------------------------------------------------------------------------------


def test_readers_are_those_whom_the_owner_gave_a_key_and_a_generation_keeps_those_it_names():
    _keys, record = second(BOB)
    state = folded(START, handed_to(BOB, CAROL))
    assert {card.name for card in state.members} == {"bob", "carol"}
    state = folded(state, event(record, GENERATION_SCHEMA, seq=2))
    assert state.gen == 1
    assert {card.name for card in state.members} == {"bob"}
    assert KeyState.from_bytes(state.to_bytes()) == state


def test_a_generation_counts_once_by_its_first_announcement():
    first, later = second(BOB), second(CAROL)
    state = folded(START, event(first[1], GENERATION_SCHEMA, seq=1), event(later[1], GENERATION_SCHEMA, seq=2))
    assert [row.pk for row in state.generations] == [first[0].reader_pk]


def test_a_member_learns_the_new_key_and_a_removed_one_only_where_to_write():
    _keys, record = second(BOB)
    state = folded(START, handed_to(BOB, CAROL), event(record, GENERATION_SCHEMA, seq=2))
    ring = Keyring().with_keys(FIRST)
    bobs, carols = (learn(ring, state, record, who).readers("plans") for who in (BOB, CAROL))
    assert [(key.generation, key.can_read) for key in bobs] == [(1, True), (0, True)]
    assert [(key.generation, key.can_read) for key in carols] == [(1, False), (0, True)]
    assert bobs[0].name == "plans"


def readable(ring):
    return [key.generation for key in ring.readers("plans") if key.can_read]


def test_a_back_field_of_an_earlier_release_is_read():
    """D-182."""
    keys, record = second_of_an_earlier_release(BOB)
    assert open_back(record.back, keys.secret(), record.stream_id, record.gen, record.pk) == FIRST.reader_sk
    state = folded(START, event(record, GENERATION_SCHEMA))
    ring = learn(Keyring().with_keys(replace(keys, reader_sk=None)), state, record, BOB)
    assert readable(ring) == [1, 0]
    assert state.find_opening_generation(0) == 1
    state = folded(state, event(KeyShred.issue(OWNER.id_sign, FIRST.stream_id, 0), records.SHRED_SCHEMA, seq=2))
    assert state.is_forgotten(0)
    assert not state.is_shredded(0)


def test_a_hand_over_gives_exactly_the_generations_that_it_wraps():
    """D-182."""
    keys, record = second()
    state = folded(START, event(record, GENERATION_SCHEMA))
    ring = Keyring().with_keys(keys.for_writers())
    for earlier, expected in (([], [1]), ([FIRST], [1, 0])):
        record = HandOver.issue(OWNER.id_sign, keys, [BOB.card()], number=2, earlier=earlier)
        after = folded(state, event(record, records.WRAP_SCHEMA, seq=2))
        assert readable(learn(ring, after, record, BOB)) == expected
        assert readable(learn(ring, after, record, CAROL)) == []
    assert state.find_opening_generation(0) is None


def test_new_readers_get_nothing_from_before_the_last_rotation_without_history():
    _, open_ended = second()
    _, closed = second(history=False)
    assert folded(START, event(open_ended, GENERATION_SCHEMA)).first_for_new_readers() == 0
    assert folded(START, event(closed, GENERATION_SCHEMA)).first_for_new_readers() == 1


def test_an_invitation_makes_a_reader_once_in_time_and_by_the_key_on_the_card():
    invite = SigningKey(b"\x07" * 32)
    bearer = HandOver.issue(OWNER.id_sign, FIRST, invite_pk=invite.public, expires_at=NOW + 60)
    offered = folded(START, event(bearer, records.WRAP_SCHEMA))

    def joined(who, *, state=offered, ts=NOW, author=None, key=invite):
        record = Enrolment.issue(key, FIRST.stream_id, who.card())
        return folded(state, event(record, records.JOIN_SCHEMA, seq=2, ts=ts, author=author or who))

    once = joined(BOB)
    assert [card.name for card in once.members] == ["bob"]
    assert once.author(BOB.client_id) == BOB.id_sign_pk
    assert not once.invites
    assert joined(CAROL, state=once).members == once.members  # a second use
    assert not joined(BOB, ts=NOW + 61).members  # too late
    assert not joined(BOB, author=MALLORY).members  # somebody else's card
    assert not joined(BOB, key=SigningKey(b"\x08" * 32)).members  # no invitation of the owner


def test_an_author_is_whom_both_keys_say():
    stolen = event(AuthorCard(card=BOB.card()), CARD_SCHEMA, author=MALLORY)
    assert folded(START, stolen).author(MALLORY.client_id) is None
    state = folded(START, event(AuthorCard(card=BOB.card()), CARD_SCHEMA, author=BOB))
    assert state.author(BOB.client_id) == BOB.id_sign_pk
    rotated = BOB.with_new_client_key(NOW, random=seeded("rotated"))
    state = folded(state, event(AuthorCard(card=rotated.card()), CARD_SCHEMA, author=rotated, seq=2))
    assert {state.author(BOB.client_id), state.author(rotated.client_id)} == {BOB.id_sign_pk}


def bound(who, key, *, sender=None, seq=1, **fields):
    times = {"not_before": NOW, "not_after": NOW + 60, "stream_id": FIRST.stream_id, **fields}
    return event(SpeaksBinding.issue(who.id_sign, key, **times), SPEAKS_SCHEMA, author=sender or who, seq=seq)


def test_a_binding_proves_who_an_author_is_whoever_sent_it():
    """D-179: both keys signed; the proof that came first counts, be it a card or a binding."""
    key = BOB.client_key.key
    assert folded(START, bound(BOB, key, sender=MALLORY)).author(BOB.client_id) == BOB.id_sign_pk
    carded = folded(START, event(AuthorCard(card=BOB.card()), CARD_SCHEMA, author=BOB))
    assert folded(carded, bound(MALLORY, key)).author(BOB.client_id) == BOB.id_sign_pk
    proved = folded(START, bound(BOB, key), event(AuthorCard(card=BOB.card()), CARD_SCHEMA, author=BOB, seq=2))
    assert [row.client_id for row in proved.authors] == [BOB.client_id]


@pytest.mark.parametrize(
    "fields",
    [{"stream_id": bytes(32)}, {"not_after": NOW}, {"not_after": NOW + 87_001}],
    ids=lambda row: next(iter(row)),
)
def test_a_binding_without_effect_names_no_author(fields):
    assert not folded(START, bound(BOB, BOB.client_key.key, **fields)).authors


def test_a_forged_binding_names_no_author():
    item = bound(BOB, BOB.client_key.key)
    forged = replace(SpeaksBinding.from_bytes(item.body), principal_pk=MALLORY.id_sign_pk)
    assert not folded(START, replace(item, body=forged.to_bytes())).authors


def ended(who, *, client_id=None, seq=5, at=None, author=None):
    record = SpeaksEnd.issue(who.id_sign, stream_id=FIRST.stream_id, client_id=client_id, ended_at=at)
    return event(record, SPEAKS_END_SCHEMA, seq=seq, author=author or who)


def seqs_of(state, client_id, *, ts=NOW):
    """Return the positions among 1 to 9 at which an entry of a key counts as its identity's."""
    (row,) = (row for row in state.authors if row.client_id == client_id)
    return [seq for seq in range(1, 10) if row.covers(ts, (0, seq))]


@pytest.mark.parametrize("by_name", [True, False])
@pytest.mark.parametrize("proof", ["card", "binding"])
def test_an_end_counts_from_its_place_on_for_a_card_as_for_a_binding(proof, by_name):
    card = event(AuthorCard(card=BOB.card()), CARD_SCHEMA, author=BOB)
    start = folded(START, card if proof == "card" else bound(BOB, BOB.client_key.key))
    end = ended(BOB, client_id=BOB.client_id if by_name else None, author=CAROL)  # anybody may carry it
    state = folded(start, end)
    assert seqs_of(state, BOB.client_id) == [1, 2, 3, 4, 5]
    assert folded(state, replace(end, stream_seq=8)) == state  # it counts once
    assert KeyState.from_bytes(state.to_bytes()) == state
    stranger = ended(MALLORY, client_id=BOB.client_id if by_name else None)
    assert seqs_of(folded(start, stranger), BOB.client_id) == list(range(1, 10))


def test_an_end_of_all_keys_that_is_repeated_ends_no_later_key():
    late = BOB.with_new_client_key(NOW, random=seeded("late"))
    end = ended(BOB, at=NOW)
    state = folded(START, end, bound(BOB, late.client_key.key, seq=6), replace(end, stream_seq=7))
    assert seqs_of(state, late.client_id) == list(range(1, 10))
    again = folded(state, ended(BOB, at=NOW + 1, seq=8))
    assert seqs_of(again, late.client_id) == list(range(1, 9))


def test_a_key_that_was_ended_before_it_was_bound_is_nobodys_and_a_binding_counts_in_its_time():
    key = BOB.client_key.key
    assert not seqs_of(folded(START, ended(BOB, client_id=BOB.client_id), bound(BOB, key, seq=6)), BOB.client_id)
    state = folded(START, event(AuthorCard(card=BOB.card()), CARD_SCHEMA, author=BOB), bound(BOB, key, seq=2))
    assert seqs_of(state, BOB.client_id, ts=NOW + 60)
    assert not seqs_of(state, BOB.client_id, ts=NOW + 61)


def test_a_principal_whose_place_was_taken_proves_no_further_key_and_its_successor_ends_its_keys():
    late = BOB.with_new_client_key(NOW, random=seeded("late"))
    following = PrincipalNext.issue(BOB.id_sign, CAROL.id_sign, stream_id=FIRST.stream_id)
    state = folded(START, bound(BOB, BOB.client_key.key), event(following, PRINCIPAL_NEXT_SCHEMA, seq=2, author=BOB))
    state = folded(state, bound(BOB, late.client_key.key, seq=3))
    state = folded(state, event(AuthorCard(card=late.card()), CARD_SCHEMA, author=late, seq=4))
    assert [row.client_id for row in state.authors] == [BOB.client_id]
    assert seqs_of(folded(state, ended(CAROL, client_id=BOB.client_id)), BOB.client_id) == [1, 2, 3, 4, 5]
    back = PrincipalNext.issue(CAROL.id_sign, BOB.id_sign, stream_id=FIRST.stream_id)
    assert folded(state, event(back, PRINCIPAL_NEXT_SCHEMA, seq=5, author=CAROL)) == state


def changed(old, new, number=1, seq=1):
    record = OwnerChange.issue(old.id_sign, new.id_sign, FIRST.stream_id, number=number)
    return event(record, records.OWNER_SCHEMA, seq=seq, author=old)


def test_after_a_change_of_owner_the_new_key_signs_and_the_old_one_does_not():
    """D-171, D-179: the numbers go on, and so do the control key and the readers."""
    keys = replace(FIRST, gen=1, reader_pk=BOB.dh_pk)
    state = folded(START, changed(OWNER, BOB))
    assert (state.owner, state.owner_pk, state.next_number) == (BOB.id_sign_pk, OWNER.id_sign_pk, 2)
    by_old = event(KeyGeneration.issue(OWNER.id_sign, keys, [], number=2), GENERATION_SCHEMA, seq=2)
    by_new = event(KeyGeneration.issue(BOB.id_sign, keys, [], number=2), GENERATION_SCHEMA, seq=3)
    assert folded(state, by_old) == state
    assert folded(state, by_old, by_new).gen == 1


def test_after_a_change_of_owner_no_further_client_key_counts_as_the_former_owners():
    """Whoever has the former key would otherwise write what counts only from the owner (D-186)."""
    early, late = (identity(name).client_key.key for name in ("early", "late"))
    state = folded(START, bound(OWNER, early), changed(OWNER, BOB), bound(OWNER, late, seq=3), bound(BOB, late, seq=4))
    assert state.author(early.public) == OWNER.id_sign_pk
    assert state.author(late.public) == BOB.id_sign_pk
    assert state.gen_at_change == 0
    assert KeyState.from_bytes(state.to_bytes()) == state


def test_an_owner_is_changed_by_both_keys_with_a_number_of_its_own_and_not_back():
    record = OwnerChange.issue(OWNER.id_sign, BOB.id_sign, FIRST.stream_id, number=1)
    other = OwnerChange.issue(OWNER.id_sign, BOB.id_sign, FIRST.stream_id, number=2)
    for name in ("sig", "sig_new"):
        forged = replace(record, **{name: getattr(other, name)})
        assert folded(START, event(forged, records.OWNER_SCHEMA)) == START
    assert folded(START, changed(MALLORY, BOB)) == START
    used = replace(START, number=3)
    assert folded(used, changed(OWNER, BOB, number=3)) == used
    back = folded(START, changed(OWNER, BOB), changed(BOB, OWNER, number=2, seq=2))
    assert back.owner == BOB.id_sign_pk
    on = folded(START, changed(OWNER, BOB), changed(BOB, CAROL, number=2, seq=2), changed(CAROL, BOB, number=3, seq=3))
    assert on.owner == CAROL.id_sign_pk


def test_messages_about_speakers_are_described_for_people():
    key, stream_id = BOB.client_key.key, FIRST.stream_id
    for statement, words in (
        (SpeaksBinding.issue(BOB.id_sign, key, stream_id=stream_id, not_before=NOW, not_after=NOW + 1), "speaks for"),
        (SpeaksEnd.issue(BOB.id_sign, stream_id=stream_id, reason="lost"), "all keys of .* ended: lost"),
        (SpeaksEnd.issue(BOB.id_sign, stream_id=stream_id, client_id=key.public), "^key .* ended$"),
        (PrincipalNext.issue(BOB.id_sign, CAROL.id_sign, stream_id=stream_id), "takes the place of"),
    ):
        schema = schema_id(statement.KIND)
        assert schema in records.KEY_SCHEMAS
        assert re.search(words, records.describe(schema, statement.to_bytes()))
    change = OwnerChange.issue(OWNER.id_sign, BOB.id_sign, stream_id, number=1)
    assert BOB.id_sign_pk.hex() in records.describe(records.OWNER_SCHEMA, change.to_bytes())


def test_a_shredded_generation_is_forgotten_by_readers_and_the_one_in_use_is_not():
    _keys, record = second(BOB)
    ring = Keyring().with_keys(FIRST)
    current = KeyShred.issue(OWNER.id_sign, FIRST.stream_id, 1)
    gone = KeyShred.issue(OWNER.id_sign, FIRST.stream_id, 0)
    state = folded(START, handed_to(BOB), event(record, GENERATION_SCHEMA, seq=2))
    ring = learn(ring, state, record, BOB)
    state = folded(state, event(current, records.SHRED_SCHEMA, seq=3), event(gone, records.SHRED_SCHEMA, seq=4))
    ring = learn(ring, state, gone, BOB)
    assert [(key.generation, key.can_read) for key in ring.readers("plans")] == [(1, True), (0, False)]


def test_what_is_sealed_to_an_older_generation_counts_for_a_while():
    _keys, record = second(BOB)
    state = folded(START, event(record, GENERATION_SCHEMA, ts=NOW))
    assert not state.is_stale(0, NOW + GRACE_SEC)
    assert state.is_stale(0, NOW + GRACE_SEC + 1)
    assert not state.is_stale(1, NOW + 10 * GRACE_SEC)


# --- with a hub -----------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def people_at(tmp_path, **rings):
    """A hub, and clients of people by name; each with a keyring."""
    async with hub_at(tmp_path / "hub") as hub, contextlib.AsyncExitStack() as stack:
        clients = {}
        for name, ring in rings.items():
            visit = client_at(InProcess(hub.api), pin_of(hub), person(name), tmp_path / name, ring=ring)
            clients[name] = await stack.enter_async_context(visit)
        yield hub, clients


def shared_ring(owner):
    keys = StreamKeys.create("plans", owner_pk=owner.id_sign_pk, random=seeded("shared"))
    return Keyring().with_keys(keys), Keyring().with_keys(keys.for_writers())


async def texts(client, **options):
    return [entry.body if entry.event else entry.error async for entry in client.read("plans", **options)]


def test_a_removed_reader_is_told_that_it_has_no_key_and_the_others_go_on(tmp_path):
    async def story():
        alice, bob, carol = (person(name) for name in ("alice", "bob", "carol"))
        ring, _ = shared_ring(alice)
        async with people_at(tmp_path, alice=ring, bob=ring, carol=ring) as (_, clients):
            await owning.hand_over(clients["alice"], alice, "plans", [bob.card(), carol.card()])
            await clients["bob"].send("plans", b"one")
            done = await owning.rotate(clients["alice"], alice, "plans", without={carol.id_sign_pk}, reason="left")
            assert [card.name for card in done.readers] == ["bob"]
            await clients["bob"].key_state("plans")  # or it would go on with the old key for up to a second
            await clients["bob"].send("plans", b"two")
            await clients["alice"].send("plans", b"three")
            assert (await texts(clients["bob"]))[1::2] == [b"one", b"two"]
            assert (await texts(clients["alice"]))[3:] == [b"two", b"three"]
            carols = await texts(clients["carol"])
            assert carols[1] == b"one"
            for text in carols[3:]:
                assert "no read key for this stream" in text
                assert "generation 1" in text
            late = await all_of(clients["bob"].read("plans", from_seq=4))
            assert [entry.body for entry in late] == [b"two", b"three"]
            with pytest.raises(NotReader):
                await owning.rotate(clients["alice"], alice, "plans", without={carol.id_sign_pk})
            with pytest.raises(NotOwner):
                await owning.rotate(clients["bob"], bob, "plans")

    run(story())


def test_a_writer_without_a_read_key_follows_and_nothing_is_read_again_in_another_run(tmp_path):
    async def story():
        alice, wanda = person("alice"), person("wanda")
        ring, write_only = shared_ring(alice)
        async with hub_at(tmp_path / "hub") as hub:
            at = InProcess(hub.api), pin_of(hub)
            async with client_at(*at, alice, tmp_path / "alice", ring=ring) as owner:
                async with client_at(*at, wanda, tmp_path / "wanda", ring=write_only) as writer:
                    await writer.send("plans", b"one")
                    await owning.rotate(owner, alice, "plans")
                    await writer.key_state("plans")
                    await writer.send("plans", b"two")
                    learned = writer.keyring
                newest = learned.for_stream("plans")
                assert (newest.generation, newest.can_read) == (1, False)
                async with client_at(*at, wanda, tmp_path / "wanda", ring=learned) as writer:
                    await writer.send("plans", b"three")
                assert [text for text in await texts(owner) if text in (b"one", b"two", b"three")] == [
                    b"one",
                    b"two",
                    b"three",
                ]
                sealed_to = {entry.body: entry.opened_with async for entry in owner.read("plans") if entry.event}
                assert sealed_to[b"two"] == sealed_to[b"three"] == owner.keyring.for_stream("plans").secret()
                assert sealed_to[b"one"] == ring.for_stream("plans").secret()

    run(story())


def test_a_live_reader_takes_over_the_keys_that_are_announced(tmp_path):
    async def story():
        alice, bob = person("alice"), person("bob")
        ring, _ = shared_ring(alice)
        async with people_at(tmp_path, alice=ring, bob=ring) as (_, clients):
            await owning.hand_over(clients["alice"], alice, "plans", [bob.card()])
            entries = clients["bob"].follow("plans", from_seq=1)
            assert (await anext(entries)).event is not None
            await owning.rotate(clients["alice"], alice, "plans")
            await clients["alice"].send("plans", b"after")
            assert (await anext(entries)).event is not None
            assert (await anext(entries)).body == b"after"
            await entries.aclose()

    run(story())


def test_shredding_an_earlier_generation_ends_reading_it_for_everybody(tmp_path):
    async def story():
        alice, bob = person("alice"), person("bob")
        ring, _ = shared_ring(alice)
        async with people_at(tmp_path, alice=ring, bob=ring) as (_, clients):
            await owning.hand_over(clients["alice"], alice, "plans", [bob.card()])
            await clients["alice"].send("plans", b"secret")
            with pytest.raises(GenerationRefused):
                await owning.ask_to_shred(clients["alice"], alice, "plans", 0)
            await owning.rotate(clients["alice"], alice, "plans", history=False)
            await owning.ask_to_shred(clients["alice"], alice, "plans", 0)
            with pytest.raises(GenerationRefused):
                await owning.ask_to_shred(clients["alice"], alice, "plans", 0)
            await clients["bob"].key_state("plans")
            for name in ("alice", "bob"):
                assert "shredded" in (await texts(clients[name]))[1]

    run(story())


def test_the_loser_of_two_rotations_at_once_is_told(tmp_path):
    async def story():
        alice = person("alice")
        twin = Identity(name="twin", id_sign=alice.id_sign, dh_sk=alice.dh_sk, client_keys=person("twin").client_keys)
        ring, _ = shared_ring(alice)
        async with hub_at(tmp_path / "hub") as hub:
            at = InProcess(hub.api), pin_of(hub)
            async with (
                client_at(*at, alice, tmp_path / "a", ring=ring) as laptop,
                client_at(*at, twin, tmp_path / "b", ring=ring) as phone,
            ):
                results = await asyncio.gather(
                    owning.rotate(laptop, alice, "plans"), owning.rotate(phone, twin, "plans"), return_exceptions=True
                )
                lost = [result for result in results if isinstance(result, GenerationRefused)]
                assert len(lost) <= 1
                assert (await laptop.key_state("plans")).newest.pk == (await phone.key_state("plans")).newest.pk

    run(story())


async def bodies_of(client, schema):
    return [entry.body async for entry in client.read("plans") if entry.event and entry.event.hdr.schema == schema]


async def repeat(client, alice, body, schema):
    """Send the body of somebody's record again, under one's own key."""
    keys = client.keyring.for_stream("plans")
    await client.send(control_keys(keys.stream_id, alice.id_sign_pk), body, schema=schema)


def test_a_removed_reader_who_repeats_her_hand_over_stays_removed(tmp_path):
    async def story():
        alice, carol = person("alice"), person("carol")
        ring, _ = shared_ring(alice)
        async with people_at(tmp_path, alice=ring, carol=ring) as (_, clients):
            await owning.hand_over(clients["alice"], alice, "plans", [carol.card()])
            await owning.rotate(clients["alice"], alice, "plans", without={carol.id_sign_pk})
            [old] = await bodies_of(clients["carol"], records.WRAP_SCHEMA)
            await repeat(clients["carol"], alice, old, records.WRAP_SCHEMA)
            done = await owning.rotate(clients["alice"], alice, "plans")
            assert done.readers == ()
            await clients["alice"].send("plans", b"not for carol")
            assert b"not for carol" not in await texts(clients["carol"])
            await owning.hand_over(clients["alice"], alice, "plans", [carol.card()])  # a newer one does name her
            assert (await clients["alice"].key_state("plans")).member(carol.id_sign_pk) == carol.card()
            assert b"not for carol" in await texts(clients["carol"])

    run(story())


def test_a_used_invitation_that_is_offered_again_enrols_nobody(tmp_path):
    async def story():
        alice, bob, mallory = (person(name) for name in ("alice", "bob", "mallory"))
        ring, _ = shared_ring(alice)
        invite = SigningKey(b"\x07" * 32)
        async with people_at(tmp_path, alice=ring, bob=ring, mallory=ring) as (_, clients):
            later = int(time.time()) + 3_600
            await owning.hand_over(clients["alice"], alice, "plans", invite_pk=invite.public, expires_at=later)
            await owning.enrol(clients["bob"], bob, ring.for_stream("plans"), invite)
            [offer] = await bodies_of(clients["mallory"], records.WRAP_SCHEMA)
            await repeat(clients["mallory"], alice, offer, records.WRAP_SCHEMA)
            await owning.enrol(clients["mallory"], mallory, ring.for_stream("plans"), invite)
            state = await clients["alice"].key_state("plans")
            assert [card.name for card in state.members] == ["bob"]

    run(story())


def test_two_reads_of_one_log_open_the_same(tmp_path):
    """walk A1: keys that are found later in the log open what is before them, in the first read as well."""

    async def story():
        alice, bob = person("alice"), person("bob")
        ring, write_only = shared_ring(alice)
        async with people_at(tmp_path, alice=ring, bob=write_only) as (_, clients):
            await clients["alice"].send("plans", b"early")
            await owning.rotate(clients["alice"], alice, "plans")
            earlier = [keys for keys in clients["alice"].keyring.readers("plans") if keys.generation == 0]
            await owning.hand_over(clients["alice"], alice, "plans", [bob.card()], earlier=earlier)
            first, second_read = await texts(clients["bob"]), await texts(clients["bob"])
            assert first == second_read
            assert b"early" in first

    run(story())


def test_a_generation_that_a_back_field_leads_to_is_shredded_only_as_weak(tmp_path):
    """D-182."""

    async def story():
        alice = person("alice")
        ring, _ = shared_ring(alice)
        first = ring.for_stream("plans")
        fresh = StreamKeys.create("plans", owner_pk=alice.id_sign_pk)
        keys = replace(fresh, gen=1)
        old = KeyGeneration.issue(alice.id_sign, keys, [alice.card()], history=True, back=seal_back(keys, first))
        async with people_at(tmp_path, alice=ring) as (_, clients):
            client = clients["alice"]
            await repeat(client, alice, old.to_bytes(), GENERATION_SCHEMA)
            with pytest.raises(GenerationRefused, match="leads back to 0"):
                await owning.ask_to_shred(client, alice, "plans", 0)
            await owning.ask_to_shred(client, alice, "plans", 0, weak=True)
            state = await client.key_state("plans")
            assert (state.is_forgotten(0), state.is_shredded(0)) == (True, False)
            await owning.rotate(client, alice, "plans")
            await owning.ask_to_shred(client, alice, "plans", 1)
            assert (await client.key_state("plans")).is_shredded(0)  # nothing leads to it any more

    run(story())


READERS, WRITERS, EACH = 1_000, 8, 6


@pytest.mark.slow
def test_removing_one_of_a_thousand_readers_while_eight_writers_send(tmp_path):
    """The removed one opens nothing sealed after its writer saw the announcement; nobody else loses anything."""

    async def story():
        alice = person("alice")
        ring, write_only = shared_ring(alice)
        keys = ring.for_stream("plans")
        readers = [Identity.create(f"r{number}", now=NOW, random=seeded(f"r{number}")) for number in range(READERS)]
        removed = readers[417]
        writers = [person(f"w{number}") for number in range(WRITERS)]
        async with hub_at(tmp_path / "hub") as hub, contextlib.AsyncExitStack() as stack:
            at = InProcess(hub.api), pin_of(hub)
            owner = await stack.enter_async_context(client_at(*at, alice, tmp_path / "alice", ring=ring))
            for start in range(0, READERS, 500):
                cards = [who.card() for who in readers[start : start + 500]]
                await owning.hand_over(owner, alice, "plans", cards)
            clients = [
                await stack.enter_async_context(client_at(*at, who, tmp_path / who.name, ring=write_only))
                for who in writers
            ]
            announced = asyncio.Event()

            async def write(client, name):
                for number in range(1, EACH):
                    await client.send("plans", f"{name} {number}".encode())
                await announced.wait()
                for number in range(EACH, 2 * EACH):
                    await client.send("plans", f"{name} {number}".encode())

            for client, who in zip(clients, writers, strict=True):
                await client.send("plans", f"{who.name} 0".encode())
            writing = [
                asyncio.create_task(write(client, who.name)) for client, who in zip(clients, writers, strict=True)
            ]
            started, cpu = time.perf_counter(), time.process_time()
            done = await owning.rotate(owner, alice, "plans", without={removed.id_sign_pk})
            announced.set()
            rotated, cpu = time.perf_counter() - started, time.process_time() - cpu
            await asyncio.gather(*writing)

            sealed = await all_of(owner.read("plans", open=False))
            place = done.sent.seq
            state, control = (
                KeyState(stream_id=keys.stream_id, owner_pk=alice.id_sign_pk),
                control_keys(keys.stream_id, alice.id_sign_pk),
            )
            started = time.perf_counter()
            rings = [ring] * READERS
            async for entry in owner.read("plans"):
                record = record_of(state, entry.event)
                if record is not None:
                    state = apply(state, entry.event, record)
                    if isinstance(record, KeyGeneration):
                        rings = [learn(own, state, record, who) for own, who in zip(rings, readers, strict=True)]
            learned = time.perf_counter() - started

            opened = {}  # by the secrets that a reader has: equal secrets open the same

            def opened_by(own):
                secrets = tuple((key.secret(), key.reader_pk) for key in own.readers("plans") if key.can_read)
                if secrets not in opened:
                    opened[secrets] = {entry.seq for entry in sealed if opens(secrets, entry)}
                return opened[secrets]

            def opens(secrets, entry):
                try:
                    open_with_one(secrets, entry.msg)
                except OpenError:
                    return False
                return True

            messages = {entry.seq for entry in sealed if not opens([(control.secret(), control.reader_pk)], entry)}
            assert len(messages) == WRITERS * 2 * EACH
            complete = [who for who, own in zip(readers, rings, strict=True) if opened_by(own) == messages]
            assert len(complete) == READERS - 1
            assert removed not in complete
            left = opened_by(rings[417])
            aware = {entry.seq for entry in sealed if entry.msg.prev_ack >= place and entry.seq in messages}
            assert len(aware) >= WRITERS * (EACH - 1)  # each writer went on after its head had reached the announcement
            assert not left & aware
            assert left == {seq for seq in messages if opens([(keys.secret(), keys.reader_pk)], by_seq(sealed, seq))}
            assert all(client.keyring.for_stream("plans").generation == 1 for client in clients)
            print(f"announced in {rotated:.2f} s ({cpu:.2f} s of CPU, hub and writers included)")
            print(f"taken over by {READERS - 1} readers in {learned:.2f} s")

    run(story())


def by_seq(entries, seq):
    return next(entry for entry in entries if entry.seq == seq)
