"""The commands of the everyday overlays, against a real hub."""

import json
import os
import subprocess
import sys

import pytest
from tests.cli import shapecheck
from tests.cli.overlay_people import world

from veen.cli.shared.output import Exit
from veen.overlays.crdt import OrSetFold
from veen.overlays.framework.snapshot import Snapshot


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    with world(tmp_path_factory.mktemp("overlays"), "alice", "bob") as (_, alice, bob):
        # The test of a stream whose whole state it looks at is the only one that writes to it.
        for stream in ("kv", "kv-expiry", "kv-shown", "crud", "queue", "crdt", "crdt-snapshot", "rpc"):
            bob.join(alice, alice.new_stream(stream))
        yield alice, bob


@pytest.mark.req("CKQ-02", "OVL-02")
def test_the_last_writer_of_a_key_wins_and_the_past_can_be_asked_for(people):
    alice, bob = people
    first = alice.json("kv", "put", "kv", "colour", "red")
    assert first["verified"]
    bob.json("kv", "put", "kv", "colour", "blue")
    alice.json("kv", "put", "kv", "size", '{"w":2,"h":[1]}', "--format", "json")
    assert alice.json("kv", "get", "kv", "colour")["value"] == "blue"
    assert alice.run("kv", "get", "kv", "colour").stdout == "blue\n"
    assert bob.json("kv", "get", "kv", "colour", "--as-of", first["seq"])["value"] == "red"
    assert bob.json("kv", "get", "kv", "size")["value"] == {"w": 2, "h": [1]}
    bob.json("kv", "del", "kv", "colour")
    gone = alice.json("kv", "get", "kv", "colour", code=Exit.LOCAL)
    assert gone["code"] == "E.ABSENT"
    listed = alice.json("kv", "list", "kv")
    assert [entry["key"] for entry in listed["entries"]] == ["size"]
    assert listed["entries"][0]["client_id"] == alice.client_id
    assert listed["state_hash"] == bob.json("kv", "list", "kv")["state_hash"]


def test_a_value_expires_and_what_cannot_be_sent_is_refused_before_it_is(people):
    alice, _ = people
    alice.json("kv", "put", "kv-expiry", "short", "x", "--expires", "+1h")
    alice.json("kv", "put", "kv-expiry", "gone", "x", "--expires", "2001-01-01T00:00:00Z")
    keys = [entry["key"] for entry in alice.json("kv", "list", "kv-expiry")["entries"]]
    assert "short" in keys
    assert "gone" not in keys
    alice.run("kv", "put", "kv-expiry", "k", "1.5", "--format", "json", code=Exit.USAGE)
    refused = alice.json("kv", "put", "kv-expiry", "k", "null", "--format", "json", code=Exit.USAGE)
    assert refused["code"] == "KV.VALUE"


@pytest.mark.req("CKQ-01")
def test_records_have_revisions_and_a_change_of_an_older_one_counts_for_nothing(people):
    alice, bob = people
    result = alice.json("crud", "create", "crud", "user", "1", '{"name":"Ann","mail":"a@b"}')
    assert result["counted"]
    alice.json("crud", "update", "crud", "user", "1", '{"name":"Anna","mail":null}', "--if-rev", 1)
    late = bob.json("crud", "update", "crud", "user", "1", '{"name":"Bert"}', "--if-rev", 1, code=Exit.POLICY)
    assert late["code"] == "CRUD.REV"
    record = bob.json("crud", "get", "crud", "user", "1")
    assert (record["rev"], record["fields"]) == (2, {"name": "Anna"})
    assert [issue["code"] for issue in record["issues"]] == ["CRUD.REV"]
    assert alice.json("crud", "create", "crud", "user", "1", "{}", code=Exit.POLICY)["code"] == "CRUD.EXISTS"
    alice.json("crud", "delete", "crud", "user", "1")
    assert alice.json("crud", "list", "crud")["records"] == []
    assert alice.json("crud", "get", "crud", "user", "1", code=Exit.LOCAL)["code"] == "E.ABSENT"
    assert len(alice.json("crud", "list", "crud", "user", "--as-of", 1)["records"]) == 1


@pytest.mark.req("CKQ-03")
def test_an_item_stays_in_the_queue_until_its_group_acknowledges_it(people):
    alice, bob = people
    first, second = (alice.json("queue", "push", "queue", item)["msg_id"] for item in ("one", "two"))
    pulled = bob.json("queue", "pull", "queue", "--group", "g")
    assert [item["msg_id"] for item in pulled["items"]] == [first]
    bob.json("queue", "nack", "queue", first, "--group", "g")
    assert bob.json("queue", "pull", "queue", "--group", "g")["items"][0]["attempt"] == 2
    bob.json("queue", "ack", "queue", first, "--group", "g")
    rest = bob.json("queue", "pull", "queue", "--group", "g", "--max", 9)
    assert [item["msg_id"] for item in rest["items"]] == [second]
    assert alice.json("queue", "pull", "queue", "--max", 9)["pending"] == 2
    assert bob.json("queue", "nack", "queue", first, "--group", "g", code=Exit.POLICY)["code"] == "QUEUE.DONE"
    assert bob.json("queue", "ack", "queue", "ab" * 32, code=Exit.POLICY)["code"] == "QUEUE.UNKNOWN"
    shown = alice.json("queue", "show", "queue")
    assert shown["pending"]["g"] == 1
    parts = [
        alice.json("queue", "pull", "queue", "--max", 9, "--consumer", name, "--consumers", "a,b") for name in "ab"
    ]
    assert sorted(item["msg_id"] for part in parts for item in part["items"]) == sorted([first, second])


@pytest.mark.req("CRDT-01", "CRDT-02", "CRDT-03")
def test_registers_sets_and_counters_agree_between_writers(people):
    alice, bob = people
    alice.json("crdt", "lww", "set", "crdt", "k", "old", "--ts", 2000)
    bob.json("crdt", "lww", "set", "crdt", "k", "older", "--ts", 1000)
    assert alice.json("crdt", "lww", "get", "crdt", "k")["value"] == "old"
    alice.json("crdt", "lww", "set", "crdt", "raw", "00ff", "--format", "hex")
    assert bob.json("crdt", "lww", "get", "crdt", "raw")["value_hex"] == "00ff"
    assert len(bob.json("crdt", "lww", "get", "crdt")["registers"]) == 2
    alice.json("crdt", "orset", "add", "crdt", "milk")
    bob.json("crdt", "orset", "add", "crdt", "milk")
    bob.json("crdt", "orset", "add", "crdt", "tea")
    alice.json("crdt", "orset", "remove", "crdt", "milk")
    assert [member["elem"] for member in bob.json("crdt", "orset", "list", "crdt")["members"]] == ["tea"]
    assert alice.json("crdt", "orset", "remove", "crdt", "milk", code=Exit.LOCAL)["code"] == "E.ABSENT"
    alice.json("crdt", "counter", "add", "crdt", 2)
    bob.json("crdt", "counter", "add", "crdt", 3)
    result = alice.json("crdt", "counter", "get", "crdt")
    assert result["value"] == 5
    assert result["shards"] == {alice.client_id: 2, bob.client_id: 3}


@pytest.mark.req("OVL-11", "CRDT-04")
def test_a_snapshot_of_a_state_is_good_for_its_own_log_only(people, tmp_path):
    alice, bob = people
    alice.json("crdt", "orset", "add", "crdt-snapshot", "bread")
    path = tmp_path / "set.snapshot"
    result = alice.json("crdt", "snapshot", "crdt-snapshot", "--kind", "orset", "--out", path)
    checked = bob.json("crdt", "snapshot", "crdt-snapshot", "--kind", "orset", "--check", path)
    assert checked["state_hash"] == result["state_hash"]
    other = bob.json("crdt", "snapshot", "kv", "--kind", "orset", "--check", path, code=Exit.BAD_EVIDENCE)
    assert other["code"] == "E.SNAPSHOT"
    assert bob.json("crdt", "snapshot", "crdt-snapshot", "--kind", "lww", "--check", path, code=Exit.BAD_EVIDENCE)
    whole = Snapshot.from_bytes(path.read_bytes())
    fold = OrSetFold()
    path.write_bytes(Snapshot.take(fold, fold.identity(), whole.cuts).to_bytes())  # the right root, another state
    forged = bob.json("crdt", "snapshot", "crdt-snapshot", "--kind", "orset", "--check", path, code=Exit.BAD_EVIDENCE)
    assert "another state" in forged["cause"]


@pytest.mark.req("RPC-02", "RPC-06")
def test_a_call_is_answered_by_a_program_and_silence_has_a_code(people, tmp_path):
    alice, bob = people
    silent = alice.json("rpc", "call", "rpc", "add", "[1,2]", "--timeout", "1s", code=Exit.NETWORK)
    assert silent["code"] == "RPC.NO_ANSWER"
    program = tmp_path / "add.py"
    program.write_text("import json, sys\nprint(sum(json.load(sys.stdin)))\n")
    command = [sys.executable, "-m", "veen", "rpc", "serve", "rpc", "--echo", "--for", "60s", "--ndjson"]
    command += ["--exec", f"add={sys.executable} {program}", "--exec", "fail=false", "--exec", "none=/nonexistent"]
    env = {**os.environ, **bob.env, "PATH": "/usr/bin:/bin"}  # PYTHONPATH included: the program under test
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as server:
        try:
            result = alice.json(
                "rpc", "call", "rpc", "add", "[1,2,3]", "--idem", 7, "--retry", "--server", bob.client_id
            )
            assert result["result"] == 6
            assert alice.run("rpc", "call", "rpc", "echo", '{"a":[1]}').stdout == '{"a":[1]}\n'
            for method, code in (("fail", "RPC.PROGRAM"), ("none", "RPC.PROGRAM"), ("other", "RPC.METHOD")):
                refused = alice.json("rpc", "call", "rpc", method, code=Exit.REFUSED)
                assert refused["code"] == code
        finally:
            server.terminate()
            said, _ = server.communicate()
    shapecheck.check(["rpc", "serve", "--ndjson"], 0, said.decode(), "")
    assert bob.json("rpc", "serve", "rpc", "--echo", "--for", "1s").keys() == {"calls"}
    served = [json.loads(line) for line in said.splitlines()]
    assert {row["method"] for row in served} >= {"add", "echo", "fail", "none"}
    traced = alice.json("rpc", "trace", "rpc", "--server", bob.client_id)["calls"]
    ended = {row["method"]: row["status"] for row in traced}
    assert ended == {"add": "answered", "echo": "answered", "fail": "failed", "none": "failed", "other": "failed"}
    assert all(row["answered_by"] == bob.client_id for row in traced)
    assert alice.json("rpc", "trace", "rpc", "--open")["calls"] == []


def test_a_call_cannot_be_repeated_without_an_idempotency_key(people):
    alice, _ = people
    alice.run("rpc", "call", "rpc", "add", "--retry", code=Exit.USAGE)
    alice.run("rpc", "serve", "rpc", code=Exit.USAGE)
    alice.run("rpc", "call", "rpc", "add", "{", code=Exit.USAGE)


# --- folding -----------------------------------------------------------------------------------------------------


def fill(person, stream, count, start=0):
    """Many writes at once, by the same keys that the command line uses."""
    from veen.client.home import Home
    from veen.client.identity.keystore import open_identity
    from veen.client.send.sealing import Draft
    from veen.client.sync import SyncClient
    from veen.client.verify.pin import HubPin
    from veen.overlays import kv

    keystore = open_identity(Home.at(person.root), person.name, None)
    shown = person.json("context", "show", "dev")
    with SyncClient.connect(
        shown["hub"],
        pin=HubPin.parse(shown["hub_pk"]),
        identity=keystore.identity,
        keyring=keystore.secrets.keyring,
        home=Home.at(person.root),
    ) as client:
        drafts = [kv.put(f"k{n % 7}", n) for n in range(start, start + count)]
        client.send_many(stream, [Draft(body=draft.body, schema=draft.schema) for draft in drafts])


@pytest.fixture
def stream(people, request):
    """A stream with enough in it to be worth keeping what was folded."""
    alice, bob = people
    name = f"fold/{request.node.name}"
    bob.join(alice, alice.new_stream(name))
    fill(alice, name, 300)
    return name


def kept_by(person):
    """The files of the cache, the newest last."""
    return sorted((person.root / "cache" / "folds" / person.name).iterdir(), key=lambda path: path.stat().st_mtime_ns)


@pytest.mark.req("OVL-07", "OVL-10")
def test_what_was_folded_is_kept_sealed_and_the_next_fold_reads_only_what_is_new(people, stream):
    alice, bob = people
    first = alice.json("fold", "show", stream, "--overlay", "kv")
    assert first["snapshot"] == {"used": False, "refused": None, "entries_read": 300}
    fill(alice, stream, 5, start=300)
    again = alice.json("fold", "show", stream, "--overlay", "kv")
    assert again["snapshot"] == {"used": True, "refused": None, "entries_read": 5}
    assert again["state"]["k3"]["value"] == 304 - (304 - 3) % 7
    whole = alice.json("fold", "show", stream, "--overlay", "kv", "--no-cache")
    assert not whole["snapshot"]["used"]
    assert (
        whole["state_hash"] == again["state_hash"] == bob.json("fold", "show", stream, "--overlay", "kv")["state_hash"]
    )
    assert '\n  "k3": {\n' in alice.run("fold", "show", stream, "--overlay", "kv", "-o", "human").stdout
    earlier = alice.json("fold", "show", stream, "--overlay", "kv", "--as-of", 300)
    assert earlier["state_hash"] == first["state_hash"]
    assert alice.json("fold", "show", stream, "--overlay", "kv", "--as-of", 10)["upto"][0]["upto_seq"] == 10
    summary = kept_by(alice)[-1]
    assert summary.stat().st_mode & 0o077 == 0
    assert b"value" not in summary.read_bytes()


@pytest.mark.req("OVL-04", "OVL-10")
def test_one_run_tells_the_state_at_many_moments(people, stream):
    alice, _ = people
    report = alice.json("fold", "run", stream, "--overlay", "kv", "--every", 100, "--interval", 16)
    assert [moment["upto"] for moment in report["moments"]] == [100, 200, 300]
    for moment in report["moments"]:
        assert moment["events"] < 16
        assert (
            moment["state_hash"]
            == alice.json("fold", "show", stream, "--overlay", "kv", "--as-of", moment["upto"], "--no-cache")[
                "state_hash"
            ]
        )
    late = alice.json("fold", "run", stream, "--overlay", "kv", "--as-of", 5, "--as-of", "2001-01-01T00:00:00Z")
    assert [moment["upto"] for moment in late["moments"]] == [5, 0]


def test_a_damaged_snapshot_is_refused_reported_and_not_used(people, stream):
    alice, _ = people
    good = alice.json("fold", "show", stream, "--overlay", "kv")
    summary = kept_by(alice)[-1]
    data = bytearray(summary.read_bytes())
    data[-1] ^= 1
    summary.write_bytes(data)
    result = alice.json("fold", "show", stream, "--overlay", "kv")
    assert "damaged" in result["snapshot"]["refused"]
    assert result["snapshot"]["entries_read"] == good["upto"][0]["upto_seq"]
    assert result["state_hash"] == good["state_hash"]


@pytest.mark.req("OVL-11")
def test_a_snapshot_of_another_root_is_refused_and_the_log_is_folded(people, stream):
    """The hub shows another log than the one that was folded, to a client that has forgotten what it knew."""
    alice, _ = people
    from veen.cli.shared.folding import CachedFold, FoldCache
    from veen.client.home import Home
    from veen.client.identity.keystore import open_identity
    from veen.core.labels import hub_id_of
    from veen.overlays.framework.snapshot import Cut
    from veen.overlays.kv import KvFold

    report = alice.json("fold", "show", stream, "--overlay", "kv")
    home = Home.at(alice.root)
    keys = [open_identity(home, "alice", None).secrets.keyring.for_stream(stream)]
    hub_id = hub_id_of(bytes.fromhex(alice.json("context", "show", "dev")["hub_pk"].removeprefix("ed25519:")))
    fold = KvFold()
    cut = report["upto"][0]
    forged = Cut(label=bytes.fromhex(cut["label"]), upto_seq=cut["upto_seq"] - 1, mmr_root=b"x" * 32)
    cache = FoldCache(home.folds_fs("alice"), hub_id, fold, keys)
    cache.save(CachedFold(snapshot=Snapshot.take(fold, fold.identity(), [forged]), ts=0, unopened=0))
    result = alice.json("fold", "show", stream, "--overlay", "kv")
    assert "another root" in result["snapshot"]["refused"]
    assert result["state_hash"] == report["state_hash"]


def test_overlays_are_listed_and_an_unknown_one_is_a_usage_error(people):
    alice, _ = people
    names = {overlay["name"] for overlay in alice.json("fold", "list")["overlays"]}
    assert {"kv", "crud", "queue", "crdt", "rpc"} <= names
    alice.run("fold", "show", "kv", "--overlay", "nothing", code=Exit.USAGE)
    assert alice.json("fold", "show", "crdt", "--overlay", "crdt")["overlay"] == "crdt.gcnt+crdt.lww+crdt.orset"
    alice.run("fold", "show", "kv", "crdt", "--overlay", "kv", "--as-of", 3, code=Exit.USAGE)
    alice.json("kv", "put", "kv-shown", "x", "y")
    alice.json("kv", "put", "crdt", "x", "y")
    both = alice.json("fold", "show", "kv-shown", "crdt", "--overlay", "kv")
    assert len(both["upto"]) == 2


def test_an_entry_that_cannot_be_opened_is_counted_and_harms_nothing(people):
    alice, bob = people
    alice.new_stream("mixed")
    bob.run("id", "keyring", "new", "mixed")  # other keys for the same stream: sealed for somebody else
    alice.json("kv", "put", "mixed", "a", "1")
    bob.json("kv", "put", "mixed", "b", "2")
    alice.json("kv", "put", "mixed", "c", "3")
    result = alice.json("kv", "list", "mixed")
    assert [entry["key"] for entry in result["entries"]] == ["a", "c"]
    assert result["unopened"] == 1
    assert result["unopened_entries"][0]["stream_seq"] == 2
    assert result["issues"] == []


def test_people_get_the_state_on_stdout_and_what_it_rests_on_beside_it(people):
    alice, _ = people
    alice.json("kv", "put", "kv-shown", "shown", "here")
    result = alice.run("kv", "get", "kv-shown", "shown", "-o", "human")
    assert result.stdout == "here\n"
    assert "state_hash" in result.stderr
    assert alice.run("kv", "get", "kv-shown", "shown", "-o", "human", "-q").stderr == ""
