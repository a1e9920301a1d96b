"""Several processes as one identity: each has a client key of its own, and nobody meets "identity in use"."""

import os
import subprocess
import sys

import pytest

import veen
from veen.client.errors import IdentityInUse, LocalError, StateDamaged
from veen.client.home import Home
from veen.client.identity import workers
from veen.client.identity.identity import Identity
from veen.client.identity.keystore import create_identity
from veen.client.identity.workers import SlotKeys, take_slot
from veen.client.state import StateStore

DAY = 86_400
NOW = 1_800_000_000


@pytest.fixture(scope="module")
def hub():
    with veen.testing.hub() as running:
        yield running


WORKER = """
import sys, veen
url, pin, home, number = sys.argv[1:]
with veen.connect(url, pin=pin, home=home, identity="service", worker=True, make_keys=True) as hub:
    print("ready", flush=True)
    sys.stdin.readline()
    for n in range(5):
        hub.stream("jobs").send({"worker": int(number), "n": n})
    print(hub.client_id.hex())
"""


@pytest.mark.slow
def test_processes_write_at_once_as_one_identity(hub, tmp_path):
    """Also the keys of the stream are made once, whoever is first."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, hub.url, hub.pin, str(tmp_path / "home"), str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={name: value for name, value in os.environ.items() if not name.startswith("VEEN_")},
            cwd=tmp_path,
        )
        for number in range(3)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    outputs = [process.communicate("go\n", timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    keys = {output.strip() for output in outputs}
    assert len(keys) == 3
    with veen.connect(hub.url, pin=hub.pin, home=tmp_path / "home", identity="service") as connection:
        entries = list(connection.stream("jobs").read())
    assert {entry.client_id.hex() for entry in entries} == keys
    assert {entry.author for entry in entries} == {"service"}
    for number in range(3):
        assert [entry.json["n"] for entry in entries if entry.json["worker"] == number] == list(range(5))


def test_a_worker_runs_beside_a_client_of_the_same_identity(hub):
    with hub.connect("busy") as first:
        first.stream("busy").send("x")
        with pytest.raises(IdentityInUse) as caught:
            hub.connect("busy")
        assert "worker=True" in caught.value.hint
        with hub.connect("busy", worker=True) as second, hub.connect("busy", worker=True) as third:
            assert len({first.client_id, second.client_id, third.client_id}) == 3
            second.stream("busy").send("y")
            third.stream("busy").send("z")
            assert [entry.author for entry in second.stream("busy").read(from_seq=2, to_seq=2)] == ["busy"]
            assert [entry.text for entry in third.stream("busy").read()] == ["x", "y", "z"]


def test_a_hub_that_asks_for_capabilities_takes_workers_of_an_identity_that_may_issue_them(tmp_path):
    home = Home.at(tmp_path / "home")
    issuer = create_identity(home, "service", None, now=NOW).identity.id_sign_pk.hex()
    gated = {"admission__capability_gating": "true", "admission__trusted_issuers": issuer}
    with veen.testing.hub(tmp_path / "hub", **gated) as hub:
        with veen.connect(hub.url, pin=hub.pin, home=home, worker=True) as worker:
            worker.stream("jobs").send("x")
            assert worker.stream("jobs").send("y").seq == 2
        with veen.connect(hub.url, pin=hub.pin, home=home) as client, pytest.raises(veen.Error) as caught:
            client.stream("jobs").send("z")
        assert caught.value.code == "E.LOCAL.TOKEN"


# --- slots -------------------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path):
    return Home.at(tmp_path)


ALICE = Identity.create("alice", now=NOW)


def first_slot(home, now=NOW, identity=ALICE, **options):
    return next(take_slot(home, identity, now, **options))


def test_a_slot_keeps_its_key_and_another_identity_has_another(home):
    key = first_slot(home).identity.client_id
    assert first_slot(home).identity.client_id == key != ALICE.client_id
    assert first_slot(home).identity.id_sign == ALICE.id_sign
    assert first_slot(home, identity=Identity.create("bob", now=NOW)).identity.client_id != key


def test_the_key_follows_from_the_keystore_and_no_file_has_it(home):
    seed = first_slot(home).identity.client_key.key.seed
    for path in home.state.rglob("*"):
        if path.is_file():
            assert seed not in path.read_bytes()
            assert path.stat().st_mode & 0o077 == 0
    other = Identity.create("alice", now=NOW)
    assert first_slot(home, identity=other).identity.client_key.key.seed != seed


def test_a_slot_in_use_is_passed_over(home):
    slot = first_slot(home)
    with StateStore.open(slot.home, "alice"):
        assert first_slot(home).number == 1
    assert first_slot(home).number == 0


def test_a_key_is_replaced_at_half_of_its_life_or_when_it_is_spent(home):
    key = first_slot(home).identity.client_id
    assert first_slot(home, NOW + DAY // 2 - 1).identity.client_id == key
    slot = first_slot(home, NOW + DAY // 2)
    assert (renewed := slot.identity.client_id) != key
    identity = SlotKeys(slot).next_key(NOW + DAY // 2)
    assert identity.client_id not in (key, renewed)
    assert {client_key.client_id for client_key in identity.client_keys} == {key, renewed, identity.client_id}
    assert first_slot(home, NOW + DAY // 2).identity == identity


def test_a_clock_that_was_set_back_gives_a_new_key(home):
    key = first_slot(home).identity.client_id
    assert first_slot(home, NOW - 10).identity.client_id != key


def test_the_number_of_workers_is_bounded(home, monkeypatch):
    monkeypatch.setattr(workers, "MAX_WORKERS", 1)
    slot = first_slot(home)
    with StateStore.open(slot.home, "alice"), pytest.raises(LocalError, match="may have are running"):
        first_slot(home)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"nonce": 1, "created_at": 2}', '{"nonce": "zz", "created_at": 2}'])
def test_a_record_that_is_damaged_is_named(home, text):
    slot = first_slot(home)
    (slot.home.state / "worker.json").write_text(text)
    with pytest.raises(StateDamaged, match=r"worker\.json"):
        first_slot(home)
