"""`veen send`: sealed here, believed only with a receipt that verifies."""

import json

import pytest
from tests.cli.hubprocess import running
from tests.cli.talk import DEV, Talk

from veen.cli.shared.output import Exit
from veen.cli.shared.wire_tree import to_named
from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt


def test_a_message_is_sent_and_its_receipt_is_verified_and_kept(talk, tmp_path):
    stream = talk.new_stream("send/basic")
    result = talk.json("send", stream, "hello", "--receipt", tmp_path / "receipt.cbor")
    assert (result["seq"], result["client_seq"], result["verified"]) == (1, 1, True)
    receipt = Receipt.from_bytes((tmp_path / "receipt.cbor").read_bytes())
    receipt.verify(bytes.fromhex(talk.hub.about["hub_pk"].removeprefix("ed25519:")))
    assert to_named(receipt) == result["receipt"]
    assert receipt.leaf_hash.hex() == result["msg_id"]
    assert talk.json("send", stream, "again")["client_seq"] == 2


@pytest.mark.parametrize(
    "line",
    [
        ["send/forms", "hello"],
        ["send/forms", "--body", "hello"],
        ["--stream", "send/forms", "hello"],
        ["--stream", "send/forms", "--body", "hello"],
        ["send/forms", "-"],
        ["--stream", "send/forms", "-"],
        ["send/forms", "--file", "body"],
        ["hex:" + "0" * 64, "hello"],
    ],
)
def test_every_way_to_name_stream_and_body_sends_the_same(talk, tmp_path, line):
    (tmp_path / "body").write_bytes(b"hello")
    stream = talk.new_stream("hex:" + "0" * 64 if line[0].startswith("hex:") else "send/forms")
    seq = talk.json("send", *line, stdin=b"hello")["seq"]
    assert talk.entries(stream, "--from", seq)[-1]["body"] == "hello"


@pytest.mark.parametrize(
    "line",
    [
        ["x"],
        ["x", "y", "--body", "z"],
        ["x", "y", "--file", "body"],
        ["x", "y", "--stream", "z"],
        [],
        ["--body", "y"],
        ["", "y"],
        ["x", "y", "--parent", "12"],
        ["x", "y", "--expires", "soon"],
        ["x", "y", "--file", "no-such-file"],
    ],
)
def test_a_line_that_cannot_be_meant_is_a_usage_error(talk, tmp_path, line):
    (tmp_path / "body").write_bytes(b"hello")
    talk.run("send", *line, code=Exit.USAGE)


def test_a_body_that_names_a_file_as_curl_does_is_asked_about(talk, tmp_path):
    path = tmp_path / "plan.txt"
    path.write_text("contents")
    stream = talk.new_stream("send/at")
    assert f"--file {path} " in talk.run("send", stream, f"@{path}", code=Exit.USAGE).stderr
    talk.json("send", stream, "--body", f"@{path}")
    talk.json("send", stream, "@nobody, no file")
    assert [entry["body"] for entry in talk.entries(stream)] == [f"@{path}", "@nobody, no file"]


def test_header_fields_arrive_at_the_reader(talk):
    stream = talk.new_stream("send/header")
    parent = talk.json("send", stream, "question")["msg_id"]
    talk.json("send", stream, "answer", "--parent", parent, "--expires", "2030-01-01T00:00:00Z", "--schema", "a.b.v1")
    entry = talk.entries(stream)[1]
    assert entry["parent_id"] == parent
    assert entry["expires_at"] == 1_893_456_000
    assert entry["schema"] == talk.json("schema", "id", "a.b.v1")["schema_id"]


def test_a_dry_run_shows_the_message_and_sends_nothing(talk):
    stream = talk.new_stream("send/dry")
    report = talk.json("send", stream, "secret words", "--dry-run")
    msg = Msg.from_bytes(bytes.fromhex(report["cbor"]))
    msg.verify()
    assert (msg.client_seq, msg.leaf_hash().hex()) == (1, report["derived"]["msg_id"])
    assert "secret words" not in json.dumps(report)
    assert talk.run("send", stream, "secret words", "--dry-run").stdout.startswith("MSG of ")
    assert talk.entries(stream) == []
    assert talk.json("send", stream, "hello")["client_seq"] == 1


def test_whoever_has_no_key_of_a_stream_is_told_to_ask_for_an_invitation(talk):
    """Keys made beside those that others use would lock everybody out."""
    error = talk.json("send", "send/unknown", "hello", code=Exit.LOCAL)
    assert error["code"] == "E.LOCAL.STREAM"
    assert "veen join" in error["hint"]
    assert "keyring new" not in error["hint"]


def test_a_body_that_is_too_large_is_refused_before_it_is_sent(talk, tmp_path):
    stream = talk.new_stream("send/large")
    (tmp_path / "large").write_bytes(bytes(2 * 1024 * 1024))
    assert talk.json("send", stream, "--file", tmp_path / "large", code=Exit.LOCAL)["code"] == "E.SIZE"
    assert talk.json("send", stream, "small")["client_seq"] == 1


def test_a_hub_that_is_gone_is_exit_code_three_and_the_message_is_sent_by_the_next_command(tmp_path, monkeypatch):
    """D-56: kept byte for byte, sent once."""
    monkeypatch.chdir(tmp_path)
    with running(tmp_path / "hub", *DEV) as hub:
        talk = Talk(tmp_path / "home", hub)
        stream = talk.new_stream("send/again")
        talk.json("send", stream, "first")
        port = hub.url.rpartition(":")[2]
        hub.stop()
        assert talk.json("send", stream, "second", "--wait", 0, code=Exit.NETWORK)["code"] == "E.NET.UNREACHABLE"
    with running(tmp_path / "hub", *DEV, "--port", port):
        assert talk.json("send", stream, "third")["seq"] in (2, 3)
        assert "third" in [entry["body"] for entry in talk.entries(stream)]


@pytest.mark.req("SH1-04")
def test_work_is_paid_or_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with running(tmp_path / "hub", *DEV, "--set", "admission.pow_difficulty=6") as hub:
        talk = Talk(tmp_path / "home", hub)
        stream = talk.new_stream("send/work")
        error = talk.json("send", stream, "hello", "--no-pow", code=Exit.POLICY)
        assert "6 zero bits" in error["cause"]
        assert talk.json("send", stream, "hello")["seq"] == 1


def test_neither_files_of_the_hub_nor_the_state_hold_the_body_or_the_name(talk):
    stream = talk.new_stream("send/confidential-name")
    talk.json("send", stream, "confidential body")
    stored = b"".join(path.read_bytes() for path in talk.hub.data_dir.rglob("*") if path.is_file())
    assert b"confidential" not in stored
    state = b"".join(path.read_bytes() for path in (talk.root / "state").rglob("*") if path.is_file())
    assert b"confidential body" not in state


def test_people_and_pipes_get_the_same_facts(talk):
    stream = talk.new_stream("send/forms-of-output")
    human = talk.run("send", stream, "hello", "-o", "human")
    assert human.stdout.startswith("accepted  seq 1  msg_id ")
    assert f"veen proof show {stream} 1 --tree" in human.stderr
    plain = dict(talk.lines("send", stream, "hello"))
    assert (plain["seq"], plain["verified"]) == ("2", "yes")
