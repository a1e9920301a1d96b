"""`veen demo`: short, true, the same facts in both forms; and what it prints as next works as printed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from click.testing import CliRunner
from tests.cli.interrupts import interruptible
from tests.waiting import until

from veen.cli.app import cli
from veen.cli.shared.output import Exit
from veen.core.objects.evidence import Equivocation
from veen.core.objects.receipt import Receipt
from veen.products.demo.story import BODIES, STEPS


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """One run whose directory stays, and its facts; nobody writes into it."""
    return demo_at(tmp_path_factory.mktemp("demo") / "kept")


def demo_at(root):
    result = CliRunner().invoke(cli, ["demo", "--keep", str(root), "--json"])
    assert result.exit_code == 0, result.output
    return root, json.loads(result.stdout)


@pytest.mark.req("RCPT-07", "OUT-01")
def test_the_demo_catches_both_and_proves_it(kept):
    root, facts = kept
    assert facts["plaintext_at_hub"] == 0
    assert facts["finding"]["path"] == facts["tampered"]["path"]
    assert facts["finding"]["offset"] <= facts["tampered"]["offset"]
    assert "entry 3" in facts["finding"]["message"]
    assert facts["restored"]["entries"] == len(BODIES)
    assert facts["caught"] == "E.DIVERGED.EQUIVOCATION"
    assert facts["evidence_bytes"] <= 512
    evidence = Equivocation.from_bytes((root / "evidence.cbor").read_bytes())
    evidence.verify()
    assert [f"ed25519:{key.hex()}" for key in evidence.hub_pks] == [facts["hub_pk"]]
    receipt = Receipt.from_bytes((root / "receipt.cbor").read_bytes())
    receipt.verify(evidence.hub_pks[0])
    assert any("<- this message" in line for line in facts["tree"])


@pytest.mark.req("SDR-12")
def test_the_changed_line_of_a_service_is_named(kept):
    """I2: an entry up to a checkpoint verifies, or verification fails and says where."""
    _, facts = kept
    recorder = facts["recorder"]
    assert (recorder["stream"], recorder["state"]) == ("record/app/shop", "invalid")
    assert f"entry {recorder['tampered']}" in recorder["why"]


def test_what_is_kept_is_small_private_and_holds_no_second_hub(kept):
    root, _ = kept
    files = [path for path in root.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 3_000_000
    assert sorted(path.name for path in root.iterdir()) == [
        "evidence.cbor", "home", "hub", "passphrase", "proof.svg", "receipt.cbor",
    ]  # fmt: skip
    assert (root / "passphrase").stat().st_mode & 0o077 == 0
    stored = b"".join(path.read_bytes() for path in (root / "hub").rglob("*") if path.is_file())
    assert not any(body in stored for body in BODIES)


@pytest.mark.slow
def test_the_next_commands_work_as_they_are_printed(tmp_path):
    root, facts = demo_at(tmp_path / "kept")
    veen = Path(sys.executable).with_name("veen")
    script = "\n".join(["set -e", f'veen() {{ "{veen}" "$@"; }}', *facts["next"]])
    env = {name: value for name, value in os.environ.items() if not name.startswith("VEEN_")}
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, check=False, timeout=120, env=env, cwd=root
    )
    try:
        assert done.returncode == 0, done.stderr
    finally:
        if done.returncode:
            subprocess.run([veen, "hub", "stop", "--data-dir", root / "hub"], check=False, capture_output=True)
    assert all(body.decode() in done.stdout for body in BODIES)
    assert "<- this message" in done.stdout
    assert "differs" in done.stdout
    assert (root / "files" / "0000-plan.txt").exists()


def test_the_demo_tells_each_step_and_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    lines = CliRunner().invoke(cli, ["demo"]).stdout.splitlines()
    assert [line[:3] for line in lines if line[1:2] == "/"] == [f"{step}/{STEPS}" for step in range(1, STEPS + 1)]
    assert list(tmp_path.iterdir()) == []


def test_a_directory_with_something_in_it_is_left_alone(tmp_path):
    (tmp_path / "mine").write_text("keep me")
    result = CliRunner().invoke(cli, ["demo", "--keep", str(tmp_path), "--json"])
    assert result.exit_code == Exit.LOCAL
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


# --- on Spark: what it prints is compared with the README, see tests/test_readme.py ---------------------------


def test_without_java_the_spark_part_is_refused_before_anything_is_played(tmp_path):
    veen = Path(sys.executable).with_name("veen")
    env = dict(os.environ, JAVA_HOME=str(tmp_path / "none"), TMPDIR=str(tmp_path))
    done = subprocess.run([veen, "demo", "--spark"], capture_output=True, text=True, check=False, timeout=60, env=env)
    assert (done.returncode, done.stdout) == (Exit.LOCAL, "")
    assert "Java" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.xdist_group("jvm")
def test_the_spark_part_names_the_flipped_bit_and_what_is_kept_is_good(tmp_path):
    root = tmp_path / "kept"
    result = CliRunner().invoke(cli, ["demo", "--spark", "--keep", str(root), "--json"])
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    named = facts["named"]
    assert named["offset"] <= named["flipped"]
    assert named["seq"] == 77
    assert facts["audit"]["ok"]
    assert facts["query"]["rows"] == facts["query"]["digest"]["row_count"] > 0
    assert not (root / "spark").exists()  # the readers' keys were there
    veen = Path(sys.executable).with_name("veen")
    ask = next(command for command in facts["next"] if "query run" in command)
    script = "\n".join(["set -e", f'veen() {{ "{veen}" "$@"; }}', facts["next"][0], ask])
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, timeout=120, cwd=root)
    assert done.returncode == 0, done.stderr
    assert "badge:26" in done.stdout


# --- in the browser -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_console_of_the_demo_shows_the_story_and_ends_with_ctrl_c(tmp_path):
    """One command, one address; afterwards nothing is left."""
    browser = tmp_path / "browser"  # one that writes down what it was asked to open
    browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened\n')
    browser.chmod(0o755)
    (tmp_path / "tmp").mkdir()
    env = {**os.environ, "BROWSER": f"{browser} %s", "TMPDIR": str(tmp_path / "tmp")}
    process = subprocess.Popen(
        [sys.executable, "-m", "veen", "demo", "--console", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, preexec_fn=interruptible,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        notice = json.loads(process.stderr.readline())
        with httpx2.Client(base_url=notice["url"]) as visitor:
            assert visitor.get("/overview").status_code == 401
            assert visitor.get(notice["address"]).status_code == 200
            rows = visitor.get("/streams.json").json()["streams"]
            heads = {row["stream"]: row["head"] for row in rows}
            assert (heads["demo/control-room"], heads["record/app/shop"]) == (len(BODIES), 40)
            assert all(row["error"] is None for row in rows)
            (room,) = (row for row in rows if row["stream"] == "demo/control-room")
            entries = visitor.get(f"/stream/{room['stream_id']}.json").json()["entries"]
            assert [entry["body"].encode() for entry in entries] == list(BODIES)
        until((tmp_path / "opened").exists)
        assert "token=" not in (tmp_path / "opened").read_text()
    finally:
        process.send_signal(signal.SIGINT)
        with process:
            process.communicate(timeout=120)
    assert process.returncode == 0
    assert list((tmp_path / "tmp").iterdir()) == []
