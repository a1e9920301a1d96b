"""`veen resync` and `veen verify-state`: local memory is a cache of the log, and is checked as one."""

import shutil
import sqlite3

import pytest
from tests.cli.hubprocess import running
from tests.cli.talk import DEV, Talk

from veen.cli.shared.output import Exit


def state_file(talk):
    return talk.root / "state" / "identities" / "alice" / "state.db"


@pytest.mark.req("CLNT-04", "RES-02")
def test_a_lost_state_is_rebuilt_from_the_log(talk):
    stream = talk.new_stream("resync/lost")
    talk.say(stream, "a", "b", "c")
    shutil.rmtree(talk.root / "state")
    result = talk.json("resync", stream)
    assert (result["read"], result["seq"], result["client_seq"]) == (3, 3, 3)
    assert talk.json("send", stream, "d")["client_seq"] == 4


def test_a_file_that_cannot_be_read_is_set_aside_and_made_again(talk):
    stream = talk.new_stream("resync/damaged")
    talk.say(stream, "a", "b")
    state_file(talk).write_bytes(b"not a database at all" * 100)
    error = talk.json("send", stream, "c", code=Exit.LOCAL)
    assert error["code"] == "E.LOCAL.STATE"
    assert "veen resync STREAM" in error["hint"]
    assert talk.json("verify-state", "--offline", code=Exit.LOCAL)["code"] == "E.LOCAL.STATE"
    assert talk.json("resync", stream)["client_seq"] == 2
    assert state_file(talk).with_name("state.db.damaged").exists()
    assert talk.json("send", stream, "c")["client_seq"] == 3


@pytest.mark.parametrize("table", ["label_state", "hub"])
def test_a_row_that_was_altered_is_noticed_and_told_by_the_log_again(talk, table):
    stream = talk.new_stream(f"resync/row-{table}")
    talk.say(stream, "a", "b")
    with sqlite3.connect(state_file(talk)) as db:
        db.execute(f"UPDATE {table} SET sum = zeroblob(32)")  # noqa: S608 - a fixed name
    db.close()
    assert talk.json("send", stream, "c", code=Exit.LOCAL)["code"] == "E.LOCAL.STATE"
    assert talk.json("resync", stream)["seq"] == 2
    assert talk.json("send", stream, "c")["client_seq"] == 3


def test_from_scratch_reads_all_of_it_again(talk):
    stream = talk.new_stream("resync/scratch")
    talk.say(stream, "a", "b")
    assert talk.json("resync", stream)["read"] == 0
    assert talk.json("resync", stream, "--from-scratch")["read"] == 2


def test_the_state_is_compared_with_the_log_of_the_hub(talk):
    stream = talk.new_stream("resync/verify")
    sent = talk.say(stream, "a", "b")
    result = talk.json("verify-state")
    row = next(row for row in result["labels"] if row["label"] == sent[0]["label"])
    assert (row["seq"], row["mmr_root"], row["pending"]) == (2, sent[1]["mmr_root"], 0)
    assert row["checked"] == "hub, which has 2"
    assert result["ok"]
    assert talk.json("verify-state", "--offline")["labels"][0]["checked"] == "file"


def test_a_hub_that_lost_its_log_is_caught(tmp_path, monkeypatch):
    """Rewound: an old copy of the same hub behind the same name."""
    monkeypatch.chdir(tmp_path)
    with running(tmp_path / "hub", *DEV) as hub:
        talk = Talk(tmp_path / "home", hub)
        stream = talk.new_stream("resync/rewound")
        talk.say(stream, "a")
        hub.stop()
        shutil.copytree(tmp_path / "hub", tmp_path / "old")
    with running(tmp_path / "hub", *DEV) as hub:
        talk.point_at(hub, "now")
        talk.say(stream, "b")
    with running(tmp_path / "old", *DEV) as hub:
        talk.point_at(hub, "rewound")
        for line in (["verify-state"], ["resync", stream], ["checkpoint", "show", stream]):
            failed = talk.run(*line, code=Exit.BAD_EVIDENCE)
            assert "error:" in failed.stderr
