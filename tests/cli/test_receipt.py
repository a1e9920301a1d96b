"""`veen receipt`: fetched and verified, or verified from a file alone."""

import pytest
from tests.cli.homes import OTHER, Cli

from veen.cli.shared.output import Exit
from veen.cli.shared.wire_tree import to_named
from veen.core.objects.receipt import Receipt


def flip(path, position=-1):
    data = bytearray(path.read_bytes())
    data[position] ^= 0x01
    path.write_bytes(bytes(data))


def test_a_receipt_is_fetched_verified_and_kept(talk, tmp_path):
    stream = talk.new_stream("receipt/get")
    sent = talk.say(stream, "one", "two")
    for line in ([stream, 2], ["--stream", stream, 2]):
        result = talk.json("receipt", "get", *line, "--out", tmp_path / "r.cbor")
        assert result["receipt"] == sent[1]["receipt"]
        assert to_named(Receipt.from_bytes((tmp_path / "r.cbor").read_bytes())) == result["receipt"]
    assert talk.json("receipt", "get", stream, 3, code=Exit.REFUSED)["code"] == "E.NOT_FOUND"
    talk.run("receipt", "get", stream, 0, code=Exit.USAGE)
    talk.run("receipt", "get", stream, code=Exit.USAGE)
    talk.run("receipt", "get", "--stream", stream, "many", code=Exit.USAGE)


@pytest.mark.req("RCPT-02")
def test_a_receipt_verifies_offline_under_the_pinned_key_or_a_given_one(talk, tmp_path):
    stream, file = talk.new_stream("receipt/verify"), tmp_path / "r.cbor"
    talk.json("send", stream, "one", "--receipt", file)
    stranger = Cli(tmp_path / "other-home")
    assert talk.json("receipt", "verify", file, "--hub", "http://127.0.0.1:9", "--pin", talk.hub.about["hub_pk"])["ok"]
    assert talk.json("receipt", "verify", file)["ok"]
    assert talk.run("receipt", "verify", file).stdout.startswith("RECEIPT verified: ")
    assert stranger.json("receipt", "verify", file, code=Exit.USAGE)["code"] == "E.USAGE"
    assert stranger.json("receipt", "verify", file, "--hub-pk", talk.hub.about["hub_pk"])["ok"]
    assert stranger.json("receipt", "verify", file, "--hub-pk", OTHER, code=Exit.BAD_EVIDENCE)["code"] == "E.VERIFY"
    flip(file)
    assert talk.json("receipt", "verify", file, code=Exit.BAD_EVIDENCE)["code"] == "E.VERIFY"


def test_a_receipt_is_for_its_message_only(talk, tmp_path):
    stream, file = talk.new_stream("receipt/msg"), tmp_path / "r.cbor"
    talk.json("send", stream, "one", "--receipt", file)
    other = tmp_path / "msg.cbor"
    other.write_text(talk.json("send", stream, "two", "--dry-run")["cbor"])
    error = talk.json("receipt", "verify", file, "--msg", other, code=Exit.BAD_EVIDENCE)
    assert "another message" in error["cause"]
    error = talk.json("receipt", "verify", other, code=Exit.USAGE)
    assert error["message"].endswith("not a RECEIPT")
