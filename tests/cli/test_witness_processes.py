"""Hubs, a witness and a monitor as processes: one hub forks, and is convicted within one poll."""

import contextlib
import json
import shutil
import signal
import subprocess
import sys
from typing import Any

import pytest
from tests.cli import shapecheck
from tests.cli.hubprocess import DEV, report, running, veen
from tests.hub import builders as w
from tests.waiting import until

from veen.core.objects.evidence import Equivocation
from veen.core.tlog.note import LogCheckpoint, Note

ORIGIN = "hub.example/veen"
OTHER = w.CIPHERTEXT[:-1] + b"c"
OPEN = (*DEV, "--set", "admission.stream_scope=open", "--set", "admission.capability_gating=false")
OUTER = (*OPEN, "--port", "0", "--set", f"outer.origin={ORIGIN}", "--set", "outer.every=1")


@contextlib.contextmanager
def witness_process(directory, logs, *options):
    """`veen witness run`, and what it says when it listens."""
    process = subprocess.Popen(
        [sys.executable, "-m", "veen", "witness", "run", str(directory), "--logs", str(logs), "--port", "0", "--json"]
        + [str(option) for option in options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        yield process, shapecheck.check_start(["witness", "run"], process.stderr.readline())
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        stdout, stderr = process.communicate(timeout=60)
    shapecheck.check(["witness", "run", "--json"], process.returncode, stdout.decode(), stderr.decode())


def note_of(hub):
    connection = hub.client.connect()
    with contextlib.closing(connection):
        connection.request("GET", "/outer/checkpoint")
        answer = connection.getresponse()
        data = answer.read()
    return Note.from_bytes(data) if answer.status == 200 else None


def listed(hub, size):
    """Wait until a published note has at least so many leaves."""
    until(lambda: (note := note_of(hub)) is not None and LogCheckpoint.parse(note.text).size >= size)
    return LogCheckpoint.parse(note_of(hub).text).size


def pinned(hub):
    return ("--hub", hub.url, "--pin", f"ed25519:{hub.about['hub_pk'].removeprefix('ed25519:')}")


def convicted(polls, words):
    polls.append(veen(*words))
    return polls[-1].returncode == 1


@pytest.mark.slow
def test_a_hub_that_forks_is_convicted_within_one_poll(tmp_path):
    """Four processes: two hubs with one key, a witness, and a monitor."""
    with running(tmp_path / "hub", *OUTER) as hub:
        hub.submit(seq=1)
        listed(hub, 3)
        line = report("witness", "show", *pinned(hub))["line"]
        hub.stop()
    logs = tmp_path / "logs.policy"
    logs.write_text(f"{line}\nquorum none\n")
    shutil.copytree(tmp_path / "hub", tmp_path / "copy")
    with witness_process(tmp_path / "w", logs, "--name", "w.example") as (_, about):
        policy = tmp_path / "witnesses.policy"
        policy.write_text(f"{line}\nwitness w {about['vkey']} {about['url']}\nquorum w\n")
        asked = (*OUTER, "--set", f"outer.policy={policy}")
        with running(tmp_path / "hub", *asked) as hub, running(tmp_path / "copy", *OUTER) as copy:
            hub.submit(seq=2)
            copy.submit(seq=2, ciphertext=OTHER)
            until(lambda: len(note_of(hub).signatures) == 2)
            listed(copy, listed(hub, 4))
            shown = report("witness", "show", *pinned(hub), "--policy", policy)
            assert list(shown["cosigned_by"]) == ["w"]
            # Polls, as a monitor does once in its interval, until both hubs have listed what they signed.
            words = ("monitor", hub.url, copy.url, *pinned(hub), "--once", "--state", tmp_path / "monitor", "--json")
            polls: list[Any] = []
            until(lambda: convicted(polls, words))
            done = polls[-1]
            result = json.loads(done.stdout)
            codes = {finding["code"] for finding in result["findings"]}
            assert "E.MONITOR.SPLIT" in codes
            conviction = next(path for path in (tmp_path / "monitor").glob("conviction-*.cbor"))
            assert len(conviction.read_bytes()) <= 512
            Equivocation.from_bytes(conviction.read_bytes()).verify()
            key = hub.about["hub_pk"].removeprefix("ed25519:")
            assert report("equivocation", "show", conviction, "--hub-pk", key)["ok"]
            # The witness refuses the other history: a copy that asks for cosignatures is found out as well.
            assert b"E.MONITOR.SPLIT" in done.stderr
    with witness_process(tmp_path / "w", logs) as (_, about):
        policy.write_text(f"witness w {about['vkey']} {about['url']}\nquorum w\n")
        late = veen(
            "hub", "start", "--data-dir", tmp_path / "copy", *OUTER, "--set", f"outer.policy={policy}", "--json"
        )
        assert late.returncode == 5
        assert b"E.WITNESS.AHEAD" in late.stderr


def test_a_monitor_of_an_honest_hub_finds_nothing_and_remembers(tmp_path):
    with running(tmp_path / "hub", *OUTER) as hub:
        hub.submit(seq=1)
        listed(hub, 3)
        first = report("monitor", *pinned(hub), "--once", "--state", tmp_path / "m")
        assert (first["ok"], first["leaves"]) == (True, first["leaves"])
        assert first["leaves"] >= 3
        assert report("monitor", *pinned(hub), "--once", "--state", tmp_path / "m")["leaves"] <= 1
    gone = veen("monitor", *pinned(hub), "--once", "--wait", "0", "--json")
    assert gone.returncode == 3


def test_the_words_of_a_policy_command(tmp_path):
    policy = tmp_path / "bad.policy"
    policy.write_text("quorum nobody\n")
    assert b"E.TLOG.POLICY" in veen("witness", "policy", "check", policy, "--json").stderr
    witness = report("witness", "key", tmp_path / "w", "--name", "w.example", "--url", "http://127.0.0.1:1")
    policy.write_text(f"{witness['line'].replace('witness w.example', 'witness w')}\ngroup g 1 w\nquorum g\n")
    shown = report("witness", "policy", "check", policy)
    assert (shown["quorum"], shown["groups"]) == ("g", {"g": "1 of 1"})
    note = tmp_path / "note"
    note.write_text("rubbish")
    assert b"E.TLOG.NOTE" in veen("witness", "policy", "check", policy, "--note", note, "--json").stderr
    assert report("witness", "evidence", tmp_path / "w")["evidence"] == []
    assert b"E.WITNESS.STATE" in veen("witness", "evidence", tmp_path / "none", "--json").stderr
    assert b"E.WITNESS.STATE" in veen("witness", "key", tmp_path / "w", "--name", "v.example", "--json").stderr


@pytest.mark.parametrize("command", [("witness",), ("witness", "policy"), ("monitor",)])
def test_help_has_an_example(command):
    assert veen(*command, "--help").returncode == 0
