"""What a client remembers of a label, and the file it remembers it in (RESYNC0.4, D-09, D-11, D-56, D-66)."""

import contextlib
import random
import sqlite3
import stat
import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.builders import NOW, PROFILE_ID, HubLog, identity, killed, line, message, process, seeded
from tests.examples import examples, spread

from veen.client.errors import IdentityInUse, LocalError, StateDamaged
from veen.client.home import Home
from veen.client.state import LabelState, Pending, StateStore, rekey, session_keys
from veen.client.verify.pin import HubPin
from veen.core.crypto import hkdf
from veen.core.errors import FormatError, MalformedError
from veen.core.hashing import H, Ht, u64be
from veen.core.objects.identity import HubKey
from veen.testing.memfs import Crash, Fault, MemFs

ALICE = identity()
KEY = ALICE.client_key.key
HUB = HubLog()
LABEL = HUB.label("room")
RK = bytes(range(32))


def fresh(mode="full", **changes):
    state = LabelState(hub_id=HUB.hub_id, label=LABEL, client_id=KEY.public, profile_id=PROFILE_ID, mode=mode, rk=RK)
    return replace(state, **changes)


def seen(state, hub, receipt):
    tree = hub.trees[state.label]
    peaks = tree.peaks() if state.mode == "full" else ()
    return replace(
        state, last_stream_seq=tree.size, last_mmr_root=tree.root(), peaks=tuple(peaks), last_receipt=receipt
    )


def sent(count, mode="full"):
    """A state after some messages, all acknowledged, and the hub that took them."""
    hub, state = HubLog(), fresh(mode)
    for number in range(1, count + 1):
        msg = message(KEY, LABEL, number, state.prev_ack)
        state = state.with_pending(msg.to_bytes())
        receipt = hub.admit(msg)
        state = seen(state, hub, receipt).with_receipts({number: receipt})
    return state, hub


# --- the value ----------------------------------------------------------------------------------------------


@pytest.mark.req("CLNT-09")
def test_the_rekey_chain_is_the_one_that_was_decided():
    """D-11: rk' = HKDF(ikm=rk, salt="", info="veen/rk" ‖ u64be(s), 32)"""
    following = rekey(RK, 7)
    assert following == hkdf.hkdf(RK, b"", b"veen/rk" + u64be(7), 32)
    assert session_keys(following) == tuple(
        hkdf.hkdf(following, b"", info, 32) for info in (b"veen/send", b"veen/recv")
    )
    state, _ = sent(3)
    assert state.rk == rekey(rekey(rekey(RK, 1), 2), 3)


@pytest.mark.req("RES-05")
@given(st.integers(0, 9), st.sampled_from(["full", "light"]))
def test_a_state_comes_back_from_its_bytes(count, mode):
    state, _ = sent(count, mode)
    assert LabelState.from_bytes(state.to_bytes()) == state
    assert (state.client_seq, state.prev_ack, state.last_stream_seq) == (count, count, count)


def test_a_message_is_pending_until_its_receipt_and_can_be_withdrawn():
    """D-56: the same bytes are sent again."""
    first, second, third = (message(KEY, LABEL, number) for number in (1, 2, 3))
    state = fresh().with_pending(first.to_bytes(), second.to_bytes(), third.to_bytes())
    assert state.client_seq == 3
    assert [pending.msg for pending in state.pending] == [first.to_bytes(), second.to_bytes(), third.to_bytes()]
    hub = HubLog()
    receipts = {1: hub.admit(first), 2: hub.admit(second)}
    state = seen(state, hub, receipts[2]).with_receipts(receipts)
    assert (state.prev_ack, [pending.client_seq for pending in state.pending]) == (2, [3])
    assert state.with_receipts({}) == state
    withdrawn = state.withdraw(3)
    assert (withdrawn.client_seq, withdrawn.pending) == (2, ())
    state.check()
    withdrawn.check()


def test_only_the_next_message_of_this_key_on_this_label_can_be_sent():
    """I8: client_seq rises by exactly one; a mistake here would be a lie to the hub."""
    for wrong in (
        message(KEY, LABEL, 2),
        message(KEY, H(b"another label"), 1),
        message(ALICE.with_new_client_key(NOW).client_key.key, LABEL, 1),
    ):
        with pytest.raises(ValueError, match="client_seq 1"):
            fresh().with_pending(wrong.to_bytes())
    with pytest.raises(FormatError):
        fresh().with_pending(b"no message")


def test_the_next_client_key_begins_at_one_and_knows_the_log():
    """D-102a"""
    state, _ = sent(3)
    rotated = state.for_next_key(b"\x05" * 32)
    assert (rotated.client_id, rotated.client_seq, rotated.pending) == (b"\x05" * 32, 0, ())
    assert (rotated.last_stream_seq, rotated.last_mmr_root, rotated.peaks) == (3, state.last_mmr_root, state.peaks)


def test_the_next_client_key_takes_no_pending_message_along():
    state, _ = sent(3)
    assert state.with_pending(message(KEY, LABEL, 4, 3).to_bytes()).for_next_key(b"\x05" * 32).pending == ()


def test_a_client_may_send_until_no_table_has_a_number_for_it():
    state, _ = sent(3)
    replace(state, client_seq=2**63 - 1).check()


@pytest.mark.parametrize(
    "wrong",
    [
        {"last_mmr_root": None},
        {"last_mmr_root": bytes(32)},
        {"peaks": ()},
        {"peaks": (bytes(32), bytes(32))},
        {"last_stream_seq": 4},
        {"prev_ack": 4},
        {"mode": "light"},
        {"mode": "other"},
        {"client_seq": 2**63},
        {"label": bytes(32)},
        {"pending": (Pending(4, b""),)},
        {"pending": (Pending(0, b""),)},
        {"pending": (Pending(3, b""), Pending(2, b""))},
    ],
    ids=" ".join,
)
def test_parts_that_do_not_agree_are_refused(wrong):
    state, _ = sent(3)
    store = StateStore(MemFs())
    with pytest.raises(MalformedError):
        store.save(replace(state, **wrong))


def test_secrets_of_a_state_are_not_shown():
    state = fresh().with_pending(message(KEY, LABEL, 1).to_bytes())
    assert repr(RK) not in repr(state)
    assert RK.hex() not in repr(state)
    assert "sealed" not in repr(state)


# --- the store ----------------------------------------------------------------------------------------------


@pytest.mark.req("RES-05")
def test_what_is_saved_is_there_in_the_next_process(tmp_path):
    home = Home.at(tmp_path)
    state, _ = sent(3)
    state = state.with_pending(message(KEY, LABEL, 4, 3).to_bytes())
    with StateStore.open(home, "alice") as store:
        assert store.load(HUB.hub_id, LABEL, KEY.public) is None
        store.save(state)
    with StateStore.open(home, "alice") as store:
        assert store.load(HUB.hub_id, LABEL, KEY.public) == state
        assert store.states_with_pending() == store.states_with_pending(HUB.hub_id) == [state]
        assert store.states_with_pending(bytes(32)) == []
    for path in home.state_dir("alice").iterdir():
        assert path.name == "lock" or stat.S_IMODE(path.stat().st_mode) == 0o600


def test_states_are_kept_apart_by_hub_label_and_client_key():
    store = StateStore(MemFs())
    other = HubLog(2)
    states = [
        fresh(),
        fresh(label=HUB.label("board")),
        fresh(hub_id=other.hub_id, label=other.label("room")),
        fresh(client_id=H(b"another client key"), client_seq=9),
    ]
    store.save(*states)
    assert sorted(store.states(), key=repr) == sorted(states, key=repr)
    assert {state.label for state in store.states(hub_id=HUB.hub_id)} == {LABEL, HUB.label("board")}
    assert store.counts(H(b"another client key")) == {LABEL: 9}
    assert set(store.counts(KEY.public)) == {LABEL, HUB.label("board"), other.label("room")}
    store.forget(HUB.hub_id, LABEL)
    assert len(list(store.states())) == 2


def test_a_rotated_key_goes_on_from_what_its_predecessors_saw():
    store = StateStore(MemFs())
    behind, _ = sent(2)
    state, _ = sent(5)
    store.save(replace(behind, client_id=H(b"an even older key")), state)
    loaded = store.load(HUB.hub_id, LABEL, b"\x05" * 32)
    assert loaded == state.for_next_key(b"\x05" * 32)
    assert store.load(HUB.hub_id, LABEL, KEY.public) == state


def test_a_pending_message_that_was_sealed_again_replaces_the_old_one():
    """D-09: after a resync the same client_seq may carry new bytes."""
    store = StateStore(MemFs())
    first, again = message(KEY, LABEL, 1, ciphertext=b"a" * 50), message(KEY, LABEL, 1, ciphertext=b"b" * 50)
    store.save(fresh().with_pending(first.to_bytes()))
    store.save(fresh().with_pending(again.to_bytes()))
    loaded = store.load(HUB.hub_id, LABEL, KEY.public)
    assert loaded is not None
    assert [pending.msg for pending in loaded.pending] == [again.to_bytes()]


def test_a_large_batch_of_pending_messages_is_kept():
    """64 messages of the largest size: more than any one CBOR item may be."""
    store = StateStore(MemFs())
    state = fresh().with_pending(*(message(KEY, LABEL, n, ciphertext=bytes(1 << 19)).to_bytes() for n in range(1, 65)))
    store.save(state)
    assert store.load(HUB.hub_id, LABEL, KEY.public) == state


def test_the_record_of_a_hub_is_kept():
    store = StateStore(MemFs())
    whole, later = HubPin.of_identity(HUB.identity), HubPin.of_key(b"p" * 32, b"i" * 32)
    assert store.pins() == []
    store.save_pin(replace(whole, keys=(*whole.keys, HubKey(hub_pk=b"p" * 32, valid_from=1))))
    store.save_pin(whole)
    assert store.pins() == [whole]
    store.save_pin(replace(later, windows_known=True))
    assert {pin.hub_id for pin in store.pins()} == {HUB.hub_id, b"i" * 32}


def test_an_unsigned_record_of_an_older_release_is_not_believed(tmp_path):
    """Its hub_id and times are what somebody said at first contact (D-174)."""
    home, _ = on_disk(tmp_path)
    record = HUB.identity.to_bytes()
    with sqlite3.connect(home.state_dir("alice") / StateStore.FILE) as db:
        db.execute("UPDATE hub SET record = ?, sum = ?", (record, Ht("veen/client-hub", HUB.hub_id + record)))
    db.close()
    states, pins = everything(home)
    assert states
    assert pins == []


def test_threads_may_share_a_store(tmp_path):
    with StateStore.open(Home.at(tmp_path), "alice") as store:
        labels = [H(bytes([number])) for number in range(4)]

        def work(label):
            for number in range(20):
                store.save(fresh(label=label, client_seq=number))

        threads = [threading.Thread(target=work, args=(label,)) for label in labels]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert store.counts(KEY.public) == dict.fromkeys(labels, 19)


# --- damage -------------------------------------------------------------------------------------------------


def on_disk(tmp_path):
    home = Home.at(tmp_path)
    state, _ = sent(3)
    with StateStore.open(home, "alice") as store:
        store.save(state.with_pending(message(KEY, LABEL, 4, 3, ciphertext=b"c" * 3_000).to_bytes()))
        store.save_pin(HubPin.of_identity(HUB.identity))
    return home, home.state_dir("alice") / StateStore.FILE


def everything(home):
    with StateStore.open(home, "alice") as store:
        return list(store.states()), store.pins()


@pytest.mark.parametrize(
    "content",
    [b"", b"SQLite format 3\x00" + b"garbage" * 100, b"not a database at all" * 50],
    ids=["empty", "garbage", "text"],
)
def test_a_file_that_is_no_database_is_damage_or_new(tmp_path, content):
    home, path = on_disk(tmp_path)
    path.write_bytes(content)
    if not content:
        assert everything(home) == ([], [])
        return
    with pytest.raises(StateDamaged, match="the local state is damaged") as caught:
        everything(home)
    assert "veen resync STREAM" in caught.value.hint
    with home.lock("alice"):  # the failed attempt holds nothing
        pass
    with StateStore.open(home, "alice", recover=True) as store:
        assert list(store.states()) == []
        store.save(fresh())
    with StateStore.open(home, "alice", recover=True) as store:  # a good one is not set aside
        assert list(store.states()) == [fresh()]
    assert path.with_name("state.db.damaged").read_bytes() == content


def test_flipped_bits_are_told_and_never_believed(tmp_path):
    """What the disk did to us must not look as if the hub had done it."""
    home, path = on_disk(tmp_path)
    good, expected = path.read_bytes(), everything(home)
    rng = random.Random(5)
    refusals = 0
    for _ in range(150):
        content = bytearray(good)
        bit = rng.randrange(8 * len(content))
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        try:
            states = everything(home)
        except (StateDamaged, LocalError):
            refusals += 1
        else:
            assert states in (expected, ([], []), (expected[0], []), ([], expected[1]))
        for stray in ("-wal", "-shm"):
            path.with_name(path.name + stray).unlink(missing_ok=True)
    assert refusals > 20


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("label_state", "body"),
        ("label_state", "sum"),
        ("label_state", "label"),
        ("pending", "msg"),
        ("pending", "sum"),
        ("pending", "client_seq"),
        ("hub", "record"),
    ],
)
def test_a_changed_row_is_named_and_can_be_forgotten(tmp_path, table, column):
    home, path = on_disk(tmp_path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        changed = 3 if column == "client_seq" else b"\x01" * 32
        db.execute(f"UPDATE {table} SET {column} = ?", (changed,))  # noqa: S608 - names from the list above
    with pytest.raises(StateDamaged):
        everything(home)
    if table != "hub":
        with StateStore.open(home, "alice") as store:
            store.forget(HUB.hub_id, b"\x01" * 32 if column == "label" else LABEL)
            assert list(store.states()) == []


def test_a_file_of_another_release_is_not_touched(tmp_path):
    home, path = on_disk(tmp_path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA user_version = 7")
    with pytest.raises(StateDamaged, match="another release"):
        everything(home)


# --- crashes and other processes ----------------------------------------------------------------------------


@pytest.mark.req("RES-06")
@examples(150)
@given(st.integers(1, 12), st.sampled_from(["lost", "torn", "done", "error"]), st.integers(0, 10**6))
def test_after_a_crash_the_state_is_the_last_one_saved_or_the_one_being_saved(at, kind, seed):
    fs = MemFs(fault=Fault(at=at, kind=kind))
    hub, state = HubLog(), fresh()
    saved, tried = None, None
    try:
        store = StateStore(fs)
        for number in range(1, 6):
            msg = message(KEY, LABEL, number, state.prev_ack)
            for step in ("send", "acknowledge"):
                if step == "send":
                    tried = state.with_pending(msg.to_bytes())
                else:
                    receipt = hub.admit(msg)
                    tried = seen(state, hub, receipt).with_receipts({number: receipt})
                store.save(tried)
                state = saved = tried
    except (Crash, OSError):
        pass
    after = StateStore(fs.after_crash(random.Random(seed))).load(HUB.hub_id, LABEL, KEY.public)
    assert after in (saved, tried)


HOLD = """
import sys
from pathlib import Path
from veen.client.home import Home
from veen.client.state import StateStore
with StateStore.open(Home.at(Path(sys.argv[1])), "alice"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_process_gets_a_clear_error_and_changes_nothing(tmp_path):
    home, _ = on_disk(tmp_path)
    expected = everything(home)
    child = process(HOLD, tmp_path)
    try:
        assert line(child) == "held\n"
        with pytest.raises(IdentityInUse, match=f"process {child.pid}"):
            StateStore.open(home, "alice")
    finally:
        killed(child)
    assert everything(home) == expected


SEND = """
import sys
from dataclasses import replace
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from tests.client.builders import message
from tests.client.test_state import KEY, LABEL, fresh
from veen.client.home import Home
from veen.client.state import StateStore
with StateStore.open(Home.at(Path(sys.argv[1])), "alice") as store:
    state = fresh()
    for number in range(1, 100_000):
        state = state.with_pending(message(KEY, LABEL, number).to_bytes())
        store.save(state)
        print(number, flush=True)
        state = replace(state, pending=())
"""


@pytest.mark.req("RES-06")
@pytest.mark.parametrize("lines", spread([1, 3, 40], 1))
def test_a_killed_process_has_forgotten_no_client_seq_it_used(tmp_path, lines, pytestconfig):
    """kill -9 between any two instructions: no client_seq can be given to a second message."""
    child = process(SEND, tmp_path, pytestconfig.rootpath)
    try:
        used = [int(line(child)) for _ in range(lines)][-1]
    finally:
        rest = killed(child)
    used = max([used, *map(int, rest)])
    with StateStore.open(Home.at(tmp_path), "alice") as store:
        state = store.load(HUB.hub_id, LABEL, KEY.public)
    assert state is not None
    assert used <= state.client_seq <= used + 1
    assert state.pending[-1].msg == message(KEY, LABEL, state.client_seq).to_bytes()


def test_the_fresh_rk_of_a_test_is_no_default():
    """Every state is given its rk: a forgotten one would be the same for all."""
    with pytest.raises(TypeError):
        # That is the point.
        LabelState(hub_id=HUB.hub_id, label=LABEL, client_id=KEY.public, profile_id=PROFILE_ID, mode="full")  # type: ignore[call-arg]
    assert seeded("a")(32) != seeded("b")(32)
