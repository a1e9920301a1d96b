"""`veen equivocation`: a hub that forks its history convicts itself, and the proof stays in a file."""

import json
import re
import shutil
from pathlib import Path

import pytest
from tests.cli import world
from tests.cli.homes import OTHER, Cli
from tests.cli.hubprocess import running
from tests.cli.talk import DEV, Talk

from veen.cli.output import Exit
from veen.core.evidence import Equivocation


@pytest.fixture
def evidence(tmp_path):
    path = tmp_path / "evidence.cbor"
    path.write_bytes(world.OBJECTS["equivocation"].to_bytes())
    return path


@pytest.mark.req("RCPT-07")
def test_two_histories_are_caught_and_the_proof_is_kept(tmp_path, monkeypatch):
    """A copy of a hub goes on by itself; whoever met both has the proof, and any command leaves it in a file."""
    monkeypatch.chdir(tmp_path)
    with running(tmp_path / "hub", *DEV) as hub:
        talk = Talk(tmp_path / "home", hub)
        stream = talk.new_stream("fork/ours")
        talk.let_write("bob", stream)
        talk.json("send", stream, "first", "--identity", "alice")
        hub.stop()
        shutil.copytree(tmp_path / "hub", tmp_path / "fork")
    with running(tmp_path / "hub", *DEV) as hub:
        talk.point_at(hub, "honest")
        talk.json("send", stream, "second", "--identity", "alice", "--receipt", tmp_path / "mine.cbor")
    with running(tmp_path / "fork", *DEV) as hub:
        talk.point_at(hub, "forked")
        talk.json("send", stream, "another second", "--identity", "bob", "--receipt", tmp_path / "yours.cbor")
        failed = talk.run("stream", stream, "--identity", "alice", "--json", code=Exit.BAD_EVIDENCE)
        told = json.loads(failed.stderr)
        assert told["code"] == "E.DIVERGED.EQUIVOCATION"
        kept = Path(re.findall(r"veen equivocation show (\S+)", told["hint"])[0])
        Equivocation.from_bytes(kept.read_bytes()).verify()
        shown = talk.json("equivocation", "show", kept)
        assert "leaf_hash" in shown["differs"]
        assert shown["hub_pks"] == [hub.about["hub_pk"]]
        made = talk.json(
            "equivocation", "report", "mine.cbor", "yours.cbor", "--out", "evidence.cbor", "--identity", "bob"
        )
        assert made["told_the_hub"]
        assert (tmp_path / "evidence.cbor").read_bytes() == kept.read_bytes()
        assert list((tmp_path / "fork" / "evidence").iterdir())
        assert talk.json("equivocation", "report", kept, "--no-send")["told_the_hub"] is False


def test_evidence_convinces_a_stranger_without_a_hub(tmp_path, evidence):
    stranger = Cli(tmp_path / "home")
    found = stranger.json("equivocation", "show", evidence)
    assert found["ok"]
    assert found["differs"] == ["leaf_hash", "mmr_root", "hub_sig"]
    assert "differs" in stranger.run("equivocation", "show", evidence, "-o", "human").stdout
    assert stranger.json("verify", evidence)["ok"]
    stranger.json("equivocation", "show", evidence, "--hub-pk", OTHER, code=Exit.BAD_EVIDENCE)
    data = bytearray(evidence.read_bytes())
    data[-1] ^= 1
    evidence.write_bytes(bytes(data))
    stranger.json("equivocation", "show", evidence, code=Exit.BAD_EVIDENCE)


def test_two_receipts_that_agree_prove_nothing(talk, tmp_path):
    stream = talk.new_stream("fork/none")
    talk.json("send", stream, "a", "--receipt", tmp_path / "a")
    talk.json("send", stream, "b", "--receipt", tmp_path / "b")
    told = talk.json("equivocation", "report", "a", "b", code=Exit.BAD_EVIDENCE)
    assert "different positions" in told["cause"]
    talk.run("equivocation", "report", "a", code=Exit.USAGE)
    talk.run("equivocation", "show", "a", code=Exit.USAGE)
