"""Everyday tasks of a backend engineer, an operator and a data engineer, typed as they type them, in fresh homes.

What is asserted is what the person needs to see in order to go on: the outcome, and the next command.
"""

import json
import re
from types import SimpleNamespace

import pytest
from tests.journeys.typed import People

QUIET = "--set engine.workers=0 --set log.level=error"


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """People on one machine, and no hub: each starts her own, which is stopped behind her."""
    monkeypatch.chdir(tmp_path)
    people = People(tmp_path, SimpleNamespace(url="", about={"hub_pk": ""}))
    yield people
    for home in tmp_path.glob("home-*/dev-hub"):
        if (home / "lock").exists():
            people.in_processes(home.parent.name.removeprefix("home-"), "veen hub stop || true")


def fields(printed):
    """`name TAB value` lines."""
    return dict(line.split("\t", 1) for line in printed.splitlines() if "\t" in line)


def test_a_first_day_with_a_hub_to_try(alone):
    """Tasks 3, 4, 9, 10, 11, 16, 23, 25, 27, 28, 30."""
    first = fields(alone.in_processes("ann", f"veen hub start --dev --detach {QUIET}"))
    sent = fields(alone.types("ann", "veen send orders hello --receipt receipt.cbor"))
    assert (sent["seq"], sent["verified"]) == ("1", "yes")
    assert alone.types("ann", "veen stream orders --with-proofs").startswith("1\t")
    assert "<- this message" in alone.types("ann", "veen proof show orders 1 --tree --svg proof.svg -o human")
    assert (alone.root / "proof.svg").read_text("utf-8").startswith("<svg")
    # a receipt is judged by the key of the context, whichever of the two commands is typed
    for command in ("veen receipt verify receipt.cbor", "veen verify receipt.cbor"):
        assert f"by hub key {first['hub_pk'].removeprefix('ed25519:')}" in alone.types("ann", f"{command} -o human")
    assert "add --hub-pk HEX" in alone.types("stranger", "veen verify receipt.cbor", status=2)
    # another identity changes nothing for the first one
    alone.types("ann", "veen keygen --name second")
    assert fields(alone.types("ann", "veen send orders again"))["seq"] == "2"
    assert "Did you mean veen send?" in alone.in_processes("ann", "veen sedn orders x", status=2)
    assert "veen invite STREAM --for NAME" in alone.in_processes("ann", "veen share orders", status=2)
    # the hub is away: the message is not kept, and the text says so; then it is back at the same place
    alone.in_processes("ann", "veen hub stop")
    said = alone.types("ann", "veen send orders lost --wait 0", status=3)
    assert "connection refused, nothing listens there" in said
    assert "no message is kept" in said
    assert fields(alone.in_processes("ann", f"veen hub start --dev --detach {QUIET}"))["url"] == first["url"]
    assert fields(alone.types("ann", "veen send orders 'the day after'"))["seq"] == "3"


def test_a_receipt_of_another_hub_is_judged_by_the_pin_and_the_text_says_by_which(people):
    people.types("ann", "veen keygen --name ann")
    people.types("ann", "veen context add team --hub $URL --pin $PIN --use")
    people.types("ann", "veen id keyring new orders")
    people.types("ann", "veen send orders hello --receipt receipt.cbor")
    people.types("bob", f"veen context add other --hub http://127.0.0.1:9 --pin ed25519:{'a' * 64} --no-check --use")
    said = people.types("bob", "veen verify receipt.cbor", status=1)
    assert "[context.other]" in said
    assert "--hub-pk HEX" in said
    assert "add --hub-pk HEX" in people.types("bob", "veen verify receipt.cbor --no-pin", status=2)
    assert people.types("bob", "veen verify receipt.cbor --hub-pk $PIN")


def test_messages_of_every_kind_go_in_and_are_found_again(people):
    """Tasks 15, 18, 19, 20, 21, 22, 32, 33."""
    (people.root / "plan.txt").write_text("the plan\n")
    people.types("ann", "veen keygen --name ann")
    people.types("ann", "veen context add team --hub $URL --pin $PIN --use")
    people.types("ann", "veen id keyring new orders")
    people.types("ann", "printf 'one\\ntwo\\nthree\\n' | veen send orders --lines")
    people.types("ann", """echo '{"event":"login"}' | veen send orders - --schema app.login.v1""")
    people.types("ann", "veen send orders --file plan.txt")
    people.types("ann", "veen send orders 'see the plan' --attach plan.txt")
    shown = people.types(
        "ann", "veen stream orders --grep '^t' --since -1h --author me --format '{seq} {author} {body}'"
    )
    assert shown.splitlines() == ["2 ann two", "3 ann three", "5 ann the plan\\n"]
    people.types("ann", "veen attachment get orders 6 plan.txt --out copy.txt")
    assert (people.root / "copy.txt").read_text() == "the plan\n"
    # for somebody who has no hub and no keys
    people.types("ann", "veen evidence export orders --out orders.veen-evidence --html orders.html")
    report = people.types("auditor", "veen verify orders.veen-evidence --hub-pk $PIN -o human")
    assert "keys pinned" in report
    assert "all of the first 6 entries" in report
    assert "keys not pinned" in people.types("auditor", "veen verify orders.veen-evidence -o human")
    other = people.types("auditor", f"veen verify orders.veen-evidence --hub-pk {'a' * 64}", status=1)
    assert "is not a key of this hub" in other
    assert b"veen-stream1" not in (people.root / "orders.veen-evidence").read_bytes()


WORKER = """
import subprocess, veen
with veen.connect(worker=True) as hub:
    hub.stream("jobs").send({"job": 1})
with veen.connect() as hub:  # it has the identity, and a command is typed beside it
    hub.stream("jobs").send("own")
    subprocess.run(["VEEN", "send", "jobs", "beside"], check=True, capture_output=True)
"""


def test_what_workers_and_commands_beside_a_service_write_is_shown_as_ours(people):
    """Task 37: each has a client key of its own, under one identity."""
    people.types("ann", "veen keygen --name ann")
    people.types("ann", "veen context add team --hub $URL --pin $PIN --use")
    people.python("ann", WORKER)
    shown = people.types("ann", "veen stream jobs --format '{author} {author_kind} {body}'")
    assert shown.splitlines() == ['ann me {"job":1}', "ann me own", "ann me beside"]
    assert len(set(people.types("ann", "veen stream jobs --format '{client_id}'").split())) == 2
    assert people.types("ann", "veen stream jobs --author me --format '{seq}'").split() == ["1", "2", "3"]


def test_an_operator_rotates_backs_up_and_moves_to_another_machine(people):
    """Tasks 47, 48, 49, 51."""
    people.types("op", "veen keygen --name op")
    people.types("op", "veen context add plant --hub $URL --pin $PIN --use")
    people.types("op", "veen id keyring new orders")
    people.types("op", "veen send orders before")
    people.types("op", "veen hub key rotate data")
    people.types("op", "veen hub key verify-rotation data")
    assert re.search(r"from 20\d\d-\S+Z until further notice", people.types("op", "veen hub key show data"))
    people.types("op", "veen hub key rotate data", status=4)
    assert len(list((people.root / "data" / "keys").iterdir())) == 2  # none of the rotation that was refused
    people.types("op", "veen send orders after")
    people.types("op", "veen hub clone data copy")
    assert "copy: verified" in people.types("op", "veen verify copy -o human")
    # on a new laptop: the keys by the export, the context by the command that the export names
    said = people.both("op", "veen id export me -o human")
    [line] = re.findall(r"veen context add plant --hub \S+ --pin \S+", said)
    people.types("laptop", "veen id import me")
    people.types("laptop", f"{line} --use")
    assert people.types("laptop", "veen stream orders --format '{body}'").split() == ["before", "after"]


def test_recorded_events_are_asked_by_type_and_payload_and_the_other_identity_goes_on(people):
    """Tasks 16, 56, 58."""
    pytest.importorskip("pyarrow")
    people.types("ann", "veen keygen --name ann")
    people.types("ann", "veen context add team --hub $URL --pin $PIN --use")
    people.types("ann", "veen id keyring new orders")
    people.types("ann", "veen recorder init --producer web=record/app/web --insecure-plain-keystore")
    people.types("ann", "veen send orders 'still ann'")  # three more identities, and no question which one
    for user, ms in (("alice", 4), ("bob", 6), ("alice", 8)):
        event = f"veen recorder emit record/app/web --identity web --type login --subject {user}"
        people.types("ann", f"""{event} '{{"ms":{ms}}}'""")
    assert people.hub.stop() == 0
    ask = "veen query run data --scope 'record/app/*' --type login --identity recorder-admin --json"
    rows = json.loads(people.types("ann", f"{ask} --field subject_id --field payload.ms --evidence full"))["rows"]
    assert [(row["subject_id"], row["payload.ms"]) for row in rows] == [("alice", 4), ("bob", 6), ("alice", 8)]
    groups = json.loads(people.types("ann", f"{ask} --group-by subject_id --metric 'avg(payload.ms)'"))["rows"]
    assert [(row["subject_id"], row["avg(payload.ms)"]) for row in groups] == [("alice", 6), ("bob", 6)]
    people.types("ann", "veen table load tables --data-dir data --identity recorder-admin")
    assert (people.root / "tables" / "silver").is_dir()
    people.types("ann", "veen audit run data --engine python")
