"""`veen equivocation`: a hub that forks its history convicts itself, and the proof stays in a file."""

import json
import re
import shutil
from pathlib import Path

import pytest
from tests.cli import objects as world
from tests.cli.homes import OTHER, Cli
from tests.cli.hubprocess import running
from tests.cli.talk import DEV, Talk

from veen.cli.shared.output import Exit
from veen.core.objects.evidence import Equivocation


@pytest.fixture
def evidence(tmp_path):
    path = tmp_path / "evidence.cbor"
    path.write_bytes(world.OBJECTS["equivocation"].to_bytes())
    return path


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
        error = json.loads(failed.stderr)
        assert error["code"] == "E.DIVERGED.EQUIVOCATION"
        proof = Path(re.findall(r"veen equivocation show (\S+)", error["hint"])[0])
        Equivocation.from_bytes(proof.read_bytes()).verify()
        shown = talk.json("equivocation", "show", proof)
        assert "leaf_hash" in shown["differs"]
        assert shown["hub_pks"] == [hub.about["hub_pk"]]
        result = talk.json(
            "equivocation", "report", "mine.cbor", "yours.cbor", "--out", "evidence.cbor", "--identity", "bob"
        )
        assert result["told_the_hub"]
        assert (tmp_path / "evidence.cbor").read_bytes() == proof.read_bytes()
        assert list((tmp_path / "fork" / "evidence").iterdir())
        assert talk.json("equivocation", "report", proof, "--no-send")["told_the_hub"] is False


def test_evidence_convinces_a_stranger_without_a_hub(tmp_path, evidence):
    stranger = Cli(tmp_path / "home")
    result = stranger.json("equivocation", "show", evidence)
    assert result["ok"]
    assert result["differs"] == ["leaf_hash", "mmr_root", "hub_sig"]
    assert "differs" in stranger.run("equivocation", "show", evidence, "-o", "human").stdout
    assert stranger.json("verify", evidence)["ok"]
    stranger.json("equivocation", "show", evidence, "--hub-pk", OTHER, code=Exit.BAD_EVIDENCE)
    data = bytearray(evidence.read_bytes())
    data[-1] ^= 1
    evidence.write_bytes(bytes(data))
    stranger.json("equivocation", "show", evidence, code=Exit.BAD_EVIDENCE)


@pytest.fixture
def statements(tmp_path):
    """The two statements of the evidence, in a file each."""
    lie = world.OBJECTS["equivocation"]
    paths = tmp_path / "mine.cbor", tmp_path / "yours.cbor"
    for path, statement in zip(paths, (lie.first, lie.second), strict=True):
        path.write_bytes(statement.to_bytes())
    return paths


def test_a_report_that_is_not_sent_needs_neither_hub_nor_passphrase(tmp_path, statements):
    """The home is empty: no identity, so no passphrase either; no hub runs."""
    lie = world.OBJECTS["equivocation"]
    keys = [part for key in lie.hub_pks for part in ("--hub-pk", f"ed25519:{key.hex()}")]
    out = tmp_path / "evidence.cbor"
    stranger = Cli(tmp_path / "home")
    result = stranger.json("equivocation", "report", *statements, "--no-send", *keys, "--out", out)
    assert (result["ok"], result["told_the_hub"]) == (True, False)
    assert out.read_bytes() == lie.to_bytes()
    missing = stranger.json("equivocation", "report", *statements, "--no-send", code=Exit.USAGE)
    assert "--hub-pk" in missing["hint"]
    wrong = stranger.json("equivocation", "report", *statements, "--no-send", "--hub-pk", OTHER, code=Exit.BAD_EVIDENCE)
    assert wrong["code"] == "E.VERIFY"
    stranger.json("equivocation", "report", out, "--no-send")
    stranger.json("equivocation", "report", out, "--no-send", "--hub-pk", OTHER, code=Exit.BAD_EVIDENCE)


def test_a_report_that_is_not_sent_uses_the_pinned_key(tmp_path, statements):
    (key,) = world.OBJECTS["equivocation"].hub_pks
    person = Cli(tmp_path / "home")
    person.run("context", "add", "away", "--hub", "http://127.0.0.1:1", "--pin", f"ed25519:{key.hex()}", "--use")
    assert person.json("equivocation", "report", *statements, "--no-send")["ok"]


def test_two_receipts_that_agree_prove_nothing(talk, tmp_path):
    stream = talk.new_stream("fork/none")
    talk.json("send", stream, "a", "--receipt", tmp_path / "a")
    talk.json("send", stream, "b", "--receipt", tmp_path / "b")
    error = talk.json("equivocation", "report", "a", "b", code=Exit.BAD_EVIDENCE)
    assert "different positions" in error["cause"]
    talk.run("equivocation", "report", "a", code=Exit.USAGE)
    talk.run("equivocation", "show", "a", code=Exit.USAGE)
