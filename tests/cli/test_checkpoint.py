"""`veen checkpoint`: one signature over a whole log."""

import pytest
from tests.cli.hubprocess import running
from tests.cli.talk import DEV, Talk
from tests.cli.test_receipt import flip

from veen.cli.shared.output import Exit
from veen.cli.shared.wire_tree import to_named
from veen.core.objects.checkpoint import Checkpoint


@pytest.mark.req("CKPT-03")
def test_a_checkpoint_is_shown_kept_and_verified_offline(talk, tmp_path):
    stream, file = talk.new_stream("checkpoint/show"), tmp_path / "c.cbor"
    sent = talk.say(stream, "a", "b", "c")
    result = talk.json("checkpoint", "show", stream, "--out", file)
    assert (result["upto_seq"], result["mmr_root"]) == (3, sent[2]["mmr_root"])
    assert to_named(Checkpoint.from_bytes(file.read_bytes())) == result["checkpoint"]
    assert talk.json("checkpoint", "show", stream, "--upto", 2)["mmr_root"] == sent[1]["mmr_root"]
    assert talk.json("checkpoint", "verify", file, "--stream", stream)["ok"]
    assert talk.json("checkpoint", "verify", file, "--stream", f"label:{sent[0]['label']}")["ok"]
    assert talk.json("checkpoint", "verify", file, "--stream", "other", code=Exit.BAD_EVIDENCE)["code"] == "E.VERIFY"
    talk.json("checkpoint", "verify", file, "--witness", "0" * 64, code=Exit.BAD_EVIDENCE)
    flip(file)
    talk.json("checkpoint", "verify", file, code=Exit.BAD_EVIDENCE)


def test_the_list_has_the_label_of_the_stream(talk):
    stream = talk.new_stream("checkpoint/list")
    assert talk.json("checkpoint", "list", stream) == {"checkpoints": []}
    (sent,) = talk.say(stream, "a")
    (checkpoint,) = talk.json("checkpoint", "list", stream)["checkpoints"]
    assert (checkpoint["label"], checkpoint["upto_seq"], checkpoint["epoch"]) == (sent["label"], 1, 0)
    assert talk.lines("checkpoint", "list", stream) == [["0", "1", sent["mmr_root"], sent["label"]]]
    assert talk.run("checkpoint", "list", stream, "-o", "human").stdout.startswith("epoch")


def test_a_stream_that_spans_labels_has_one_for_each_epoch(tmp_path, monkeypatch):
    """D-27: labels change with the epoch; the latest checkpoint of each is listed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hub.toml").write_text(
        '[admission]\nprofiles = [{ epoch_sec = 2, pad_block = 256 }]\nstreams = ["checkpoint/epochs"]\n'
    )
    scoped = ("--set", "admission.stream_scope=enforced", "--config", tmp_path / "hub.toml")
    with running(tmp_path / "hub", *DEV, *scoped) as hub:
        talk = Talk(tmp_path / "home", hub)
        stream = talk.new_stream("checkpoint/epochs")
        epochs: set[str] = set()
        while len(epochs) < 2:
            sent = talk.json("send", stream, "again")
            epochs.add(sent["label"])
        checkpoints = talk.json("checkpoint", "list", stream)["checkpoints"]
        assert {row["label"] for row in checkpoints} == epochs
        assert [row["epoch"] for row in checkpoints] == sorted(row["epoch"] for row in checkpoints)
        first = checkpoints[0]["epoch"]
        assert talk.json("checkpoint", "show", stream, "--epoch", first)["label"] == checkpoints[0]["label"]
        assert talk.entries(stream, "--epoch", first)[0]["epoch"] == first
        assert len({entry["label"] for entry in talk.entries(stream)}) == 2
