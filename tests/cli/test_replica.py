"""`veen replica` and `veen hub fence`, with hubs as processes."""

import contextlib
import json
import shutil
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner
from tests.cli.hubprocess import DEV, report, running, veen
from tests.hub import builders as w
from tests.waiting import until

from veen.cli.app import cli
from veen.cli.shared.output import Exit
from veen.core.objects.evidence import Equivocation
from veen.storage import layout

OTHER = w.CIPHERTEXT[:-1] + b"c"
OPEN = (*DEV, "--port", "0", "--set", "admission.stream_scope=open", "--set", "admission.capability_gating=false")


@contextlib.contextmanager
def replica_process(url, directory, *options):
    """`veen replica run`, and what it says when it listens."""
    process = subprocess.Popen(
        [sys.executable, "-m", "veen", "replica", "run", url, str(directory), "--json", *map(str, options)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        yield process, json.loads(process.stderr.readline())
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def follow(hub, directory):
    """Until everything is there."""
    return report("replica", "run", hub.url, directory, "--hub-pk", hub.about["hub_pk"], "--once")


def test_a_cutover_from_the_command_line(tmp_path):
    with running(tmp_path / "a", *OPEN) as a:
        a.submit(seq=1)
        a.submit(seq=2)
        assert follow(a, tmp_path / "r")["entries"] == 2
        resting = report("replica", "status", tmp_path / "r")
        assert (resting["running"], resting["entries"], resting["complete"]) == (False, 2, False)
        assert [(part["first_seq"], part["known"]) for part in resting["may_be_missing"]] == [(3, False)]
        keys = ("--key-from", tmp_path / "a")
        alive = report("replica", "promote", tmp_path / "r", *keys, code=Exit.POLICY)
        assert alive["code"] == "E.REPLICA.PRIMARY"
        a.submit(seq=3)
        fenced = report("hub", "fence", "--data-dir", tmp_path / "a")
        assert fenced["entries"] == 3
        assert report("hub", "fence", tmp_path / "a") == fenced
        assert follow(a, tmp_path / "r")["entries"] == 3
        assert report("replica", "status", tmp_path / "r")["complete"]
    promoted = report("replica", "promote", tmp_path / "r", *keys)
    assert (promoted["entries"], promoted["complete"], promoted["may_be_lost"]) == (3, True, [])
    assert promoted["hub_pk"] == a.about["hub_pk"]
    report("replica", "status", tmp_path / "r", code=Exit.LOCAL)
    with running(tmp_path / "r", *OPEN) as new:
        new.submit(seq=4)
        refused = veen("hub", "start", "--data-dir", tmp_path / "a", *OPEN, "--set", f"replicas={new.url}", "--json")
        assert refused.returncode == Exit.LOCAL
        assert json.loads(refused.stderr.splitlines()[-1])["code"] == "E.STORAGE.REPLACED"
    assert report("hub", "verify-data", tmp_path / "r")["ok"]


def test_a_running_replica_tells_how_far_it_is_and_refuses_messages(tmp_path):
    with running(tmp_path / "a", *OPEN) as a:
        a.submit(seq=1)
        pin = ("--hub-pk", a.about["hub_pk"])
        with replica_process(a.url, tmp_path / "r", *pin, "--listen", "127.0.0.1:0") as (process, about):
            deadline_report(tmp_path / "r", entries=1)
            status = report("replica", "status", tmp_path / "r")
            assert (status["running"], status["lag_entries"], status["url"]) == (True, 0, about["url"])
            answer = veen("hub", "status", "--hub", about["url"], "--json")
            assert answer.returncode == 0
            again = veen("replica", "run", a.url, tmp_path / "r", "--json")
            assert again.returncode != 0  # one process at a time
            process.send_signal(signal.SIGTERM)
            out, _ = process.communicate(timeout=60)
            assert json.loads(out)["entries"] == 1


def deadline_report(directory, entries):
    """Wait until the running replica has so many entries."""

    def there():
        done = veen("replica", "status", directory, "--json")
        return done.returncode in (0, Exit.POLICY) and json.loads(done.stdout).get("entries") == entries

    until(there)


def test_a_hub_that_forked_ends_the_replica_with_evidence(tmp_path):
    with running(tmp_path / "a", *OPEN) as a:
        a.submit(seq=1)
    shutil.copytree(tmp_path / "a", tmp_path / "fork", ignore=shutil.ignore_patterns("local"))
    with running(tmp_path / "a", *OPEN) as a:
        a.submit(seq=2)
        follow(a, tmp_path / "r")
    with running(tmp_path / "fork", *OPEN) as fork:
        fork.submit(seq=2, ciphertext=OTHER)
        fork.submit(seq=3)
        failed = veen("replica", "run", fork.url, tmp_path / "r", "--json")
        assert failed.returncode == Exit.BAD_EVIDENCE
        assert json.loads(failed.stderr.splitlines()[-1])["code"] == "E.REPLICA.INCONSISTENT"
    (file,) = (tmp_path / "r" / "evidence").iterdir()
    Equivocation.from_bytes(file.read_bytes()).verify()
    assert len(file.read_bytes()) <= 512
    assert report("equivocation", "show", file)


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("run", "nonsense", "{dir}/x", "--hub-pk", "ed25519:" + "11" * 32), Exit.LOCAL),
        (("run", "http://127.0.0.1:9", "{dir}/x"), Exit.LOCAL),  # no key
        (("run", "http://127.0.0.1:9", "{dir}/x", "--hub-pk", "ed25519:" + "11" * 32), Exit.NETWORK),
        (("promote", "{dir}", "--key-from", "{dir}"), Exit.LOCAL),
        (("status", "{dir}/missing"), Exit.LOCAL),
    ],
)
def test_what_cannot_be_done_has_a_named_error(tmp_path, args, code):
    done = CliRunner().invoke(cli, ["replica", *(arg.format(dir=tmp_path) for arg in args), "--json"])
    assert done.exit_code == code, done.stderr
    assert json.loads(done.stderr.splitlines()[-1])["code"].startswith("E.")


def test_an_address_that_is_none_is_a_mistake_of_usage(tmp_path):
    args = ["replica", "run", "http://127.0.0.1:9", str(tmp_path), "--listen", "nowhere"]
    done = CliRunner().invoke(cli, args)
    assert done.exit_code == Exit.USAGE
    assert "expected HOST:PORT" in done.stderr


def until_there_or_ended(path, process):
    until(lambda: path.exists() or process.poll() is not None)


@pytest.mark.slow
def test_a_replica_that_is_killed_again_and_again_ends_with_the_same_log(tmp_path):
    """kill -9 while it copies, at three different moments; nothing is lost, nothing is there twice."""
    small = ("--set", "limits.max_checkpoint_interval=8")
    with running(tmp_path / "a", *OPEN, *small) as a:
        for seq in range(1, 41):
            a.submit(seq=seq)
        for moment in (layout.REPLICA, layout.CONTROL, layout.LOCAL_SOCKET):
            program = [sys.executable, "-m", "veen", "replica", "run", a.url, str(tmp_path / "r"), "--json"]
            process = subprocess.Popen(
                [*program, "--hub-pk", a.about["hub_pk"]], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            until_there_or_ended(tmp_path / "r" / moment, process)
            process.kill()
            process.wait()
        a.submit(seq=41)
        assert follow(a, tmp_path / "r")["entries"] == 41
        a.stop()
    assert report("hub", "verify-data", tmp_path / "r", "--no-pin")["ok"]
    for name in sorted(path.name for path in (tmp_path / "a" / "log").iterdir()):
        assert (tmp_path / "r" / "log" / name).read_bytes() == (tmp_path / "a" / "log" / name).read_bytes(), name
