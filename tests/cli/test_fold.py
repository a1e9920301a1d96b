"""`veen fold` over data directories, by the reference engine."""

import json
import random

import pytest
from tests.cli.homes import Cli
from tests.cli.overlay_people import world as overlay_world
from tests.cli.talk import DEV
from tests.lake.fold_builders import WRITERS, real_log, send
from tests.lake.query_builders import KEYS, STREAMS

from veen.cli.shared.output import Exit
from veen.testing.events import FakeLog


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    rng = random.Random(3)
    log = real_log(
        tmp_path_factory.mktemp("log") / "hub", [WRITERS["kv"](rng, FakeLog()) for _ in range(50)], foreign=0.1
    )
    yield log
    log.store.close()


@pytest.fixture
def cli(tmp_path):
    (tmp_path / "keys").write_text("".join(f"{keys.to_text()}\n" for keys in KEYS.values()))
    return Cli(tmp_path / "home")


@pytest.fixture
def places(world, tmp_path):
    return ("--data-dir", world.path, "--key-file", tmp_path / "keys", "--engine", "python")


def test_a_directory_is_folded_kept_shown_extended_and_verified(cli, places, world, tmp_path):
    state = tmp_path / "state"
    result = cli.json("fold", "run", *places, "--overlay", "kv", "--out", state)
    assert len(result["upto"]) > 1
    assert result["unopened"][0]["reason"] == "sealed"
    assert not result["unproven"]
    shown = cli.json("fold", "show", "--state", state)
    assert (shown["state_hash"], shown["upto"]) == (result["state_hash"], result["upto"])
    assert shown["state"] == cli.json("fold", "run", *places, "--overlay", "kv")["state"]
    assert cli.json("fold", "verify", state, *places)["ok"] is True
    further = cli.json("fold", "run", *places, "--overlay", "kv", "--since", state)
    assert (further["state_hash"], further["entries"], further["resumed"]) == (result["state_hash"], 0, True)
    human = cli.run("fold", "run", *places, "--overlay", "kv", "-o", "human").stdout
    assert result["state_hash"] in human
    assert result["state_hash"] in cli.run("fold", "show", "--state", state, "-o", "human").stdout


def test_one_stream_and_one_moment_of_a_directory(cli, places):
    whole = cli.json("fold", "run", *places, "--overlay", "kv")
    narrow = cli.json("fold", "run", STREAMS[0], *places, "--overlay", "kv")
    assert 0 < len(narrow["upto"]) < len(whole["upto"])
    early = cli.json("fold", "run", *places, "--overlay", "kv", "--as-of", f"@{whole['as_of'] - 30}")
    assert 0 < early["entries"] < whole["entries"]
    assert early["as_of"] == whole["as_of"] - 30


@pytest.mark.req("SNAP-04")
def test_a_state_that_is_not_true_is_told_with_every_difference(cli, places, world, tmp_path):
    from veen.lake import folds

    result = folds.run(str(world.path), "kv", keys=str(tmp_path / "keys"), engine="python")
    (tmp_path / "good").write_bytes(result.checkpoint().body)
    assert cli.json("fold", "verify", *places, "--checkpoint", tmp_path / "good")["ok"] is True
    (tmp_path / "bad").write_bytes(result.checkpoint().body.replace(result.state_hash, bytes(32)))
    failed = cli.run("fold", "verify", *places, "--checkpoint", tmp_path / "bad", code=6)  # some entries are sealed
    assert "not known" in failed.stdout
    assert result.state_hash.hex() in failed.stdout
    (tmp_path / "bad").write_bytes(result.checkpoint().body.replace(result.cuts[0].mmr_root, bytes(32)))
    failed = cli.run("fold", "verify", *places, "--checkpoint", tmp_path / "bad", code=Exit.BAD_EVIDENCE)
    assert "FALSE" in failed.stdout
    none = json.loads(cli.run("fold", "verify", *places, "--json", code=6).stdout)
    assert (none["ok"], none["states"], none["verdict"]["value"]) == (False, [], "incomplete")
    send(world, [result.checkpoint()], random.Random(0))
    (verdict,) = cli.json("fold", "verify", *places)["states"]
    assert (verdict["state_hash"], verdict["ok"]) == (result.state_hash.hex(), True)


@pytest.mark.req("SNAP-01", "SNAP-04")
def test_a_checkpoint_that_was_sent_to_a_running_hub_is_verified_from_its_directory(tmp_path):
    """Beside a running hub, most of whose entries are in its journal alone."""
    with overlay_world(tmp_path, "alice", options=DEV) as (_, alice):
        stream = alice.new_stream("app/settings")
        for number in range(5):
            alice.json("kv", "put", stream, f"k{number % 2}", number)
        places = ("--data-dir", tmp_path / "hub", "--engine", "python")
        assert alice.json("fold", "run", stream, *places, "--overlay", "kv")["entries"] == 5
        result = alice.json("fold", "run", stream, *places, "--overlay", "kv", "--checkpoint", stream)
        assert result["checkpoint"]["seq"] == result["entries"] + 1 == 6
        online = alice.json("fold", "show", stream, "--overlay", "kv", "--as-of", 5)
        assert (online["state_hash"], online["upto"]) == (result["state_hash"], result["upto"])
        (verdict,) = alice.json("fold", "verify", *places)["states"]
        assert (verdict["msg_id"], verdict["ok"]) == (result["checkpoint"]["msg_id"], True)


def test_options_that_do_not_go_together_are_usage_errors(cli, places, tmp_path):
    for words in (
        ("fold", "run", *places, "--overlay", "kv", "--every", "5"),
        ("fold", "run", *places, "--overlay", "kv", "--as-of", "5"),
        ("fold", "run", "--overlay", "kv"),
        ("fold", "run", "app/x", "--overlay", "kv", "--out", tmp_path / "state"),
        ("fold", "show"),
        ("fold", "show", "app/x", "--overlay", "kv", "--state", tmp_path),
        ("fold", "verify", tmp_path, *places, "--checkpoint", tmp_path / "keys"),
    ):
        cli.run(*words, code=Exit.USAGE)
    cli.run("fold", "run", *places, "--overlay", "nothing", code=Exit.USAGE)


def test_a_state_of_an_earlier_release_is_found_and_folded_again(cli, places, tmp_path):
    """A state that does not say which keys read it."""
    state = tmp_path / "state"
    cli.json("fold", "run", *places, "--overlay", "kv", "--out", state)
    assert cli.json("fold", "repair", state, *places)["states"][0]["why"] is None
    manifest = json.loads((state / "manifest.json").read_text())
    del manifest["readers"]
    (state / "manifest.json").write_text(json.dumps(manifest))
    (row,) = cli.json("fold", "repair", state, *places, "--dry-run")["states"]
    assert ("which keys" in row["why"], row["changed"], row["written"]) == (True, False, False)
    (row,) = cli.json("fold", "repair", state, *places)["states"]
    assert (row["changed"], row["written"]) == (False, True)
    assert "left alone" in cli.run("fold", "repair", state, *places, "-o", "human").stdout
