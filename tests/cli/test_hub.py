"""`veen hub`: real processes and real directories."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from urllib.parse import urlsplit

import pytest
from tests.cli.hubprocess import DEV, report, running, veen
from tests.damage import flipped
from tests.examples import spread
from tests.hub import builders as w
from tests.waiting import until

from veen.cli.shared.output import Exit
from veen.core.hashing import H, Ht
from veen.core.objects.evidence import Equivocation
from veen.core.objects.receipt import Receipt


@pytest.fixture
def data(tmp_path):
    return tmp_path / "hub"


# --- life ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "env"),
    [
        (("--host", "0.0.0.0"), {}),  # noqa: S104 - what must be refused
        (("--set", "listen.host=192.0.2.1", "--set", "dev=false"), {}),
        ((), {"VEEN_LISTEN_HOST": "192.0.2.1"}),
    ],
)
def test_dev_and_a_public_address_are_refused(data, options, env):
    """Admission is open there, so the address must not be."""
    env = {**env, "VEEN_FORCE_PLAIN_HTTP": "true"}
    refused = report("hub", "start", "--dev", "--data-dir", data, *options, code=Exit.LOCAL, env=env)
    assert refused["code"] == "E.CONFIG"
    assert "not loopback" in json.dumps(refused)
    assert not data.exists()


def test_dev_refuses_web_pages_and_foreign_names(data):
    """A page in the user's browser can send a POST to any port of this machine."""
    with running(data) as hub:
        body = b"\xa2\x01\x01\x02" + w.msg(token=None).to_bytes()
        for headers in ({"Origin": "https://evil.example"}, {"Host": f"evil.example:{urlsplit(hub.url).port}"}):
            connection = hub.client.connect()
            connection.request("POST", "/v1/submit", body, headers)
            assert connection.getresponse().status == 403
            connection.close()
        assert hub.submit().stream_seq == 1


def test_a_hub_answers_and_stops_cleanly_on_sigterm(data, tmp_path):
    with running(data) as hub:
        receipts = [hub.submit(seq=seq) for seq in (1, 2, 3)]
        status = report("hub", "status", "--data-dir", data)
        assert status["url"] == hub.url
        tasks = {row["task"]: (row["restarts"], row["running"]) for row in status["background"]}
        assert tasks["housekeeping"] == tasks["scrubber"] == (0, True)
        assert status["warnings"] == []
        assert status["status"]["hub_pk"] == status["hub_pk"] == hub.about["hub_pk"]
        assert status["labels"] == 1
        assert report("hub", "health", "--hub", hub.url)["healthz"]["last_stream_seq"] == 3
        assert report("hub", "limits", "--hub", hub.url)["max_msg_bytes"] == 1_048_576
        assert report("hub", "admission", "--hub", hub.url)["capability_gating"] is False
        assert report("hub", "metrics", "--hub", hub.url)["metrics"]["veen_entries"] == 3
        (signed,) = report("hub", "checkpoint", "--data-dir", data, "--out", tmp_path / "out")["checkpoints"]
        (file,) = (tmp_path / "out").iterdir()
        assert veen("verify", file, "--hub-pk", hub.about["hub_pk"]).returncode == Exit.OK
        assert receipts[-1].mmr_root.hex() in json.dumps(signed)
        assert hub.stop() == 0
    assert len(list((data / "journal").iterdir())) == 1
    (segment,) = (data / "journal").iterdir()
    assert segment.stat().st_size < 100  # at rest: nothing to replay
    assert report("hub", "verify-data", data)["sections"][0]["labels"][w.LABEL.hex()]["size"] == 3
    assert veen("hub", "status", "--data-dir", data).returncode == Exit.NETWORK


def test_sigterm_answers_what_was_taken_in(data):
    messages = [b"\xa2\x01\x01\x02" + w.msg(seq=seq, token=None).to_bytes() for seq in range(1, 31)]
    head = (
        b"POST /v1/submit HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/cbor\r\ncontent-length: %d\r\n\r\n"
    )
    with running(data, "--dev", "--set", "engine.workers=1") as hub:
        address = urlsplit(hub.url)
        with socket.create_connection((address.hostname, address.port), timeout=20) as connection:
            connection.sendall(b"".join(head % len(message) + message for message in messages))
            answers = connection.recv(1)  # the first is on its way, the others are being worked on
            hub.process.send_signal(signal.SIGTERM)
            while more := connection.recv(65_536):
                answers += more
        assert hub.process.wait(timeout=20) == 0
    assert answers.count(b"HTTP/1.1 200") == 30
    assert sections(data)[0][w.LABEL.hex()]["size"] == 30


@pytest.mark.req("STOR-21")
def test_kill_9_loses_nothing_that_was_acknowledged(data):
    released: list[Receipt] = []
    for start in (1, 6, 11):
        with running(data) as hub:
            assert [hub.receipt(receipt.stream_seq) for receipt in released] == released
            released += [hub.submit(seq=seq) for seq in range(start, start + 5)]
            hub.stop(signal.SIGKILL)
    assert [receipt.stream_seq for receipt in released] == list(range(1, 16))
    assert report("hub", "verify-data", data)["ok"]


def test_a_second_start_names_the_first(data):
    with running(data) as hub:
        done = veen("hub", "start", "--data-dir", data, *DEV)
        assert done.returncode == Exit.LOCAL
        lines = done.stderr.decode().splitlines()
        assert [line.split(":")[0] for line in lines[-3:]] == ["error", "cause", "hint"]
        assert f"pid {hub.process.pid} {hub.url}" in lines[-2]


def test_sighup_reloads_and_sigusr1_summarises(data, tmp_path):
    config = tmp_path / "hub.toml"
    config.write_text("[admission]\nstreams = ['orders']\n")
    with running(data, "--config", config, "--port", "0", "--set", "engine.workers=0") as hub:
        body = w.FREE_TOKEN.to_bytes()

        def authorize():
            connection = hub.client.connect()
            connection.request("POST", "/tooling/authorize", body, {"Content-Type": "application/cbor"})
            answer = connection.getresponse()
            answer.read()
            connection.close()
            return answer.status

        assert authorize() == 403
        config.write_text(f"[admission]\nstreams = ['orders']\ntrusted_issuers = ['{w.ISSUER.public.hex()}']\n")
        hub.process.send_signal(signal.SIGHUP)
        until(lambda: any(line["operation"] == "reload" for line in hub.lines()))
        assert authorize() == 200
        config.write_text("nonsense = 1\n")
        hub.process.send_signal(signal.SIGHUP)
        until(lambda: any("was not applied" in line["message"] for line in hub.lines() if "message" in line))
        assert authorize() == 200
        hub.process.send_signal(signal.SIGUSR1)
        until(lambda: any(line["operation"] == "state" for line in hub.lines()))
        (state,) = [line for line in hub.lines() if line["operation"] == "state"]
        assert state["capabilities"] == 1
        assert hub.stop(signal.SIGINT) == 0


def test_a_hub_that_cannot_keep_its_promise_exits_and_says_why(data):
    """Fail-stop: the exit code is not 0, so that a service manager notices."""
    program = textwrap.dedent(
        """
        import sys
        from veen.storage.journal import Journal
        write = Journal.write
        def fail(self, payload):
            if len(payload) > 700:  # an entry, not the limits
                raise OSError(5, "Input/output error")
            write(self, payload)
        Journal.write = fail
        from veen.cli import main
        sys.argv[1:1] = ["hub", "start"]
        main()
        """
    )
    with running(data, *DEV, program=[sys.executable, "-c", program]) as hub:
        with pytest.raises(AssertionError):
            hub.submit(seq=1, ciphertext=w.CIPHERTEXT[:40] + bytes(0) + w.CIPHERTEXT[40:], label=b"L" * 32)
        assert hub.process.wait(timeout=20) == Exit.LOCAL
        text = hub.log.read_text()
    assert "Input/output error" in text
    assert "the hub stopped by itself" in text
    assert "Traceback" not in text


@pytest.mark.parametrize("named", [["--data-dir"], []], ids=["by option", "as DIR"])
def test_detach_and_stop(data, named):
    about = report("hub", "start", *named, data, *DEV, "--detach")
    try:
        assert about["pid"] != os.getpid()
        assert report("hub", "health", "--data-dir", data)["readyz"]["ready"]
        again = veen("hub", "start", "--data-dir", data, *DEV, "--detach")
        assert again.returncode == Exit.LOCAL
        assert b"in use by another hub" in again.stderr
    finally:
        assert report("hub", "stop", "--data-dir", data) == {"stopped": True, "pid": about["pid"]}
    assert report("hub", "stop", "--data-dir", data) == {"stopped": False, "running": False}


def test_the_log_of_a_detached_hub_is_not_written_through_a_link(data, tmp_path):
    """It lies beside the data directory, where whoever prepared that directory could have put a link."""
    victim = tmp_path / "victim"
    victim.write_text("whole")
    data.with_name(f"{data.name}.log").symlink_to(victim)
    said = report("hub", "start", "--data-dir", data, *DEV, "--detach", code=Exit.LOCAL)
    assert "symbolic link" in said["cause"]
    assert victim.read_text() == "whole"


@pytest.mark.req("K8S-05")
def test_the_command_of_the_kubernetes_profile(data, tmp_path):
    """spec-4 §4.2: veen-hub --profile=authority --config=… --data-dir=…, with VEEN_ROLE and the like around it."""
    config = tmp_path / "hub.yaml"
    keys = tmp_path / "keys"
    public = report("hub", "init", "--keys-dir", keys)["hub_pk"]
    config.write_text(f"listen: {{host: 127.0.0.1, port: 0}}\nauthority_id: one\nkeys_dir: {keys}\n")
    environ = {"VEEN_ROLE": "tenant", "VEEN_UNIVERSE_ID": "u1", "VEEN_LOG_LEVEL": "info"}
    program = [sys.executable, "-c", "from veen.cli.hub.group import veen_hub_main; veen_hub_main()"]
    options = ("--profile=authority", f"--config={config}", "--set", "engine.workers=0")
    with running(data, *options, program=program, env=environ) as hub:
        assert hub.about["hub_pk"] == public
        until(lambda: hub.log.read_text())
        assert hub.lines()[0]["role"] == "authority"  # the flag beats the variable
        assert hub.stop() == 0


def test_a_start_that_is_refused_says_what_to_do(data, tmp_path):
    config = tmp_path / "hub.toml"
    config.write_text("[limits]\nmax_msg_bytes = 2000000\n")
    for options, words in (
        (("--config", config), "limits.max_msg_bytes: 2000000 is above the maximum"),
        (("--port", "http"), "flag --port: listen.port: expected a whole number"),
        (("--set", "listen.prot=1"), "listen.prot: no such key"),
        (("--profile", "authority"), "an authority hub does not create its own identity"),
    ):
        done = veen("hub", "start", "--data-dir", data, *options)
        assert done.returncode == Exit.LOCAL
        assert words in done.stderr.decode()
        assert done.stderr.decode().splitlines()[-1].startswith("hint:")
    assert veen("hub", "start").returncode == Exit.LOCAL


def test_config_tells_where_each_value_comes_from(tmp_path):
    (tmp_path / "hub.toml").write_text("[engine]\nmax_queue = 7\n")
    shown = report(
        "hub", "config", "--config", tmp_path / "hub.toml", "--data-dir", "d", env={"VEEN_LOG_LEVEL": "error"}
    )
    assert shown["engine.max_queue"] == {"value": 7, "origin": str(tmp_path / "hub.toml")}
    assert shown["log.level"] == {"value": "error", "origin": "variable VEEN_LOG_LEVEL"}
    assert shown["data_dir"]["origin"] == "flag --data-dir"
    assert shown["listen.port"] == {"value": 8080, "origin": "default"}


# --- keys ------------------------------------------------------------------------------------------------


def test_keys_are_created_shown_rotated_and_checked(data):
    created = report("hub", "key", "create", "--data-dir", data)
    assert veen("hub", "key", "create", "--data-dir", data).returncode == Exit.LOCAL
    rotated = report("hub", "key", "rotate", "--data-dir", data, "--overlap", "0s")
    assert rotated["hub_id"] == created["hub_id"]
    assert rotated["hub_pk"] != created["hub_pk"]
    shown = report("hub", "key", "show", "--data-dir", data)
    assert [key["hub_pk"] for key in shown["hub_keys"]] == [created["hub_pk"], rotated["hub_pk"]]
    assert len(report("hub", "key", "verify-rotation", "--data-dir", data)["checks"]) == 3
    assert report("hub", "verify-data", data, code=Exit.POLICY)["verdict"]["value"] == "incomplete"  # no entry
    assert oct((next((data / "keys").iterdir())).stat().st_mode)[-3:] == "600"
    with running(data) as hub:
        assert veen("hub", "key", "rotate", "--hub", hub.url).returncode == Exit.REFUSED  # closed by default
        hub.submit()
    identity = data / "hub-identity.json"
    identity.write_bytes(identity.read_bytes().replace(b'"anchoring":"data-directory"', b'"anchoring":"fingerprint"'))
    assert veen("hub", "key", "show", "--data-dir", data).returncode == Exit.BAD_EVIDENCE


def test_the_key_of_a_running_hub_is_rotated_by_its_administrator(data, tmp_path):
    token = tmp_path / "admin"
    token.write_text("an-administrator")
    token.chmod(0o600)
    with running(data, *DEV, "--set", f"auth.admin_token_files={token}") as hub:
        before = hub.submit()
        refused = report("hub", "key", "rotate", "--hub", hub.url, code=Exit.REFUSED)
        rotated = report("hub", "key", "rotate", "--data-dir", data, "--token-file", token)
        assert rotated["valid_from"] > before.hub_ts
        hub.stop()
    assert refused["code"] == "E.UNAUTHORIZED"
    shown = report("hub", "key", "show", "--data-dir", data)
    assert [key["hub_pk"] for key in shown["hub_keys"]] == [hub.about["hub_pk"], rotated["hub_pk"]]
    assert len(report("hub", "key", "verify-rotation", "--data-dir", data)["checks"]) == 3
    assert report("hub", "verify-data", data)["ok"]


# --- outcomes --------------------------------------------------------------------------------------------


def sections(data_dir):
    result = report("hub", "verify-data", data_dir)
    assert result["ok"], result
    return [section["labels"] for section in result["sections"]]


def test_damage_is_exit_code_1_and_names_the_byte(data):
    with running(data, *DEV, "--set", "limits.max_checkpoint_interval=2") as hub:
        for seq in (1, 2, 3):
            hub.submit(seq=seq)
        hub.stop()
    (chunk,) = (data / "log").glob("chunk-*.log")
    whole = chunk.read_bytes()
    chunk.write_bytes(flipped(whole, 300))
    done = veen("hub", "verify-data", data)
    assert done.returncode == Exit.BAD_EVIDENCE
    assert chunk.name in done.stderr.decode()


@pytest.mark.req("OUT-01", "OUT-05")
@pytest.mark.parametrize("live", spread([False, True], 1), ids=["at rest", "running"])
def test_a_clone_is_the_same_hub_and_goes_on(data, tmp_path, live):
    copy = tmp_path / "copy"
    options = (*DEV, "--set", "limits.max_checkpoint_interval=4")
    with running(data, *options) as hub:
        released = [hub.submit(seq=seq) for seq in range(1, 11)]
        if not live:
            hub.stop()
        said = report("hub", "clone", data, copy, "--with-keys")
        assert said["source_was_running"] is live
        assert said["entries"] == 10
        hub.stop() if live else None
    assert sections(copy) == sections(data)
    with running(copy, *options) as hub:
        assert [hub.receipt(seq) for seq in range(1, 11)] == released
        cloned = hub.submit(seq=11)
        hub.stop()
    with running(data, *options) as hub:  # never do this: the point is that both would say the same
        original = hub.submit(seq=11)
        hub.stop()
    assert (cloned.stream_seq, cloned.mmr_root, cloned.leaf_hash) == (11, original.mmr_root, original.leaf_hash)
    assert sections(copy) == sections(data)
    for path in sorted((data / "log").glob("c*-*")):  # chunks, summaries, checkpoints, checkpoint index
        assert (copy / "log" / path.name).exists()
    assert veen("hub", "clone", data, copy).returncode == Exit.LOCAL  # not empty


@pytest.mark.slow
def test_a_clone_of_a_busy_hub_verifies(data, tmp_path):
    """Copied while it seals and retires."""
    options = (*DEV, "--set", "limits.max_checkpoint_interval=3", "--set", "engine.retire_seconds=1")
    with running(data, *options) as hub:
        for seq in range(1, 6):
            hub.submit(seq=seq)
        cloning = subprocess.Popen(
            [sys.executable, "-m", "veen", "hub", "clone", data, tmp_path / "copy", "--with-keys", "--json"],
            stdout=subprocess.PIPE,
        )
        seq = 6
        while cloning.poll() is None:
            hub.submit(seq=seq)
            seq += 1
        with cloning:
            assert cloning.returncode == Exit.OK
        hub.stop()
    (section,) = sections(tmp_path / "copy")
    assert 5 <= section[w.LABEL.hex()]["size"] < seq
    with running(tmp_path / "copy", *options) as hub:
        hub.submit(seq=section[w.LABEL.hex()]["size"] + 1)
        hub.stop()
    sections(tmp_path / "copy")


def test_a_clone_is_checked_against_the_pinned_key(data, tmp_path):
    """A directory that another hub wrote verifies by its own keys alone; the pin is what tells."""
    with running(data) as hub:
        hub.submit()
        pin = hub.about["hub_pk"]
        hub.stop()
    other = f"ed25519:{w.STRANGER.public.hex()}"
    done = veen("hub", "clone", data, tmp_path / "other", "--pin", other)
    assert done.returncode == Exit.BAD_EVIDENCE
    assert b"the copy does not verify" in done.stderr
    assert report("hub", "clone", data, tmp_path / "pinned", "--pin", pin)["keys"] == "pinned"
    assert report("hub", "clone", data, tmp_path / "unpinned", "--no-pin")["keys"] == "not pinned"


def test_a_clone_without_keys_verifies_and_does_not_start(data, tmp_path):
    with running(data) as hub:
        hub.submit()
        hub.stop()
    report("hub", "clone", data, tmp_path / "copy", "--without-keys")
    assert not list((tmp_path / "copy" / "keys").iterdir())
    assert sections(tmp_path / "copy") == sections(data)
    done = veen("hub", "start", "--data-dir", tmp_path / "copy", *DEV)
    assert done.returncode == Exit.LOCAL
    assert b"the private key is missing" in done.stderr


@pytest.mark.req("OUT-02")
@pytest.mark.parametrize("upto", spread([None, 5, 4], 2), ids=["all", "inside a chunk", "at a seal"])
def test_a_fork_keeps_a_prefix_and_both_sides_verify(data, tmp_path, upto):
    target = tmp_path / "fork"
    options = (*DEV, "--set", "limits.max_checkpoint_interval=4")
    with running(data, *options) as hub:
        released = [hub.submit(seq=seq) for seq in range(1, 8)]
        origin_pk = hub.about["hub_pk"]
        busy = veen("hub", "fork", data, target)
        assert busy.returncode == Exit.LOCAL  # it runs
        hub.stop()
    shutil.rmtree(target, ignore_errors=True)
    cut = [] if upto is None else ["--upto", f"{w.LABEL.hex()}={upto}"]
    said = report("hub", "fork", data, target, *cut)
    size = upto or 7
    assert said["hub_pk"] != origin_pk
    assert said["labels"][0]["upto_seq"] == size
    assert said["labels"][0]["mmr_root"] == released[size - 1].mmr_root.hex()
    with running(target, *options) as hub:  # the fork diverges
        mine = [hub.submit(seq=seq, ack=0) for seq in (1, 2)]
        hub.stop()
    with running(data, *options) as hub:  # and so does the origin
        hub.submit(seq=8)
        hub.stop()
    own, origin = sections(target)
    assert own[w.LABEL.hex()]["size"] == 2
    assert origin[w.LABEL.hex()] == {"size": size, "mmr_root": released[size - 1].mmr_root.hex()}
    assert sections(data)[0][w.LABEL.hex()]["size"] == 8
    assert isinstance(mine[0], Receipt)
    for name in ("fork-origin.json", "fork-origin.sig"):  # neither may change unseen
        whole = (target / name).read_bytes()
        (target / name).write_bytes(flipped(whole, -5))
        assert veen("hub", "verify-data", target).returncode in (Exit.BAD_EVIDENCE, Exit.LOCAL)
        (target / name).write_bytes(whole)
    sections(target)


def test_a_copy_that_was_cut_off_is_refused_by_name_and_every_command_says_what_to_do(data, tmp_path):
    with running(data) as hub:
        hub.submit()
        hub.stop()
    copy = tmp_path / "copy"
    report("hub", "clone", data, copy, "--with-keys")
    (copy / "unfinished-copy.json").write_text('{"copy":"clone","ver":1}')
    for command in (
        ("hub", "start", "--data-dir", copy, *DEV),
        ("hub", "verify-data", copy),
        ("hub", "rebuild-index", copy),
        ("hub", "cut-tail", copy),
        ("hub", "clone", copy, tmp_path / "other"),
        ("hub", "clone", data, copy),
        ("hub", "fork", copy, tmp_path / "other"),
        ("hub", "fork", data, copy),
        ("hub", "key", "show", "--data-dir", copy),
        ("hub", "key", "rotate", "--data-dir", copy),
        ("hub", "retention", "show", "--data-dir", copy),
        ("verify", copy),
    ):
        said = report(*command, code=Exit.LOCAL)
        assert said["code"] == "E.STORAGE.UNFINISHED", command
        assert "remove this directory" in said["hint"]
    for name in ("clone", "fork"):
        said = report("hub", name, data, data / "inside", code=Exit.LOCAL)
        assert "is inside" in said["cause"]
    assert not (data / "inside").exists()


def test_a_known_key_over_a_blank_directory_is_refused_by_name(data, tmp_path):
    keys = tmp_path / "keys"
    public = report("hub", "init", "--keys-dir", keys)["hub_pk"]
    assert "holds a private key already" in report("hub", "init", "--keys-dir", keys, code=Exit.LOCAL)["cause"]
    (keys / "birth.json").unlink()
    said = report("hub", "start", "--data-dir", data, "--keys-dir", keys, *DEV, code=Exit.LOCAL)
    assert said["code"] == "E.STORAGE.BLANK_LOG"
    assert "veen hub init" in said["hint"]
    assert report("hub", "init", "--keys-dir", keys, "--reuse-key", "--valid", "1h")["hub_pk"] == public
    with running(data, *DEV, "--keys-dir", keys) as hub:
        assert hub.about["hub_pk"] == public
        hub.stop()
    own = tmp_path / "own"
    public = report("hub", "init", "--data-dir", own)["hub_pk"]
    assert report("hub", "key", "show", "--data-dir", own)["hub_keys"][0]["hub_pk"] == public
    assert (
        veen("hub", "init").returncode == veen("hub", "init", "--data-dir", own, "--reuse-key").returncode == Exit.USAGE
    )


def test_a_torn_end_of_the_journal_is_shown_and_cut(data):
    with running(data, *DEV, "--set", "engine.retire_seconds=0") as hub:
        released = [hub.submit(seq=seq) for seq in range(1, 4)]
        os.kill(hub.process.pid, signal.SIGKILL)
        hub.process.wait()
    assert report("hub", "cut-tail", data) == {"torn": False, "cut": False}
    (path,) = (data / "journal").glob("*.wal")
    whole = path.read_bytes()
    length, chain = 2000, bytes(range(32))
    check = Ht("veen/journal", length.to_bytes(4, "big") + chain)[:4]
    path.write_bytes(whole + length.to_bytes(4, "big") + chain + check + bytes(length))  # the bytes never came
    refused = veen("hub", "start", "--data-dir", data, *DEV)
    assert refused.returncode == Exit.BAD_EVIDENCE
    assert b"veen hub cut-tail" in refused.stderr
    shown = report("hub", "cut-tail", data)
    assert (shown["torn"], shown["cut"], shown["offset"]) == (True, False, len(whole))
    assert path.stat().st_size > len(whole)
    assert report("hub", "cut-tail", data, "--yes", code=Exit.LOCAL)["code"] == "E.STORAGE.TAIL"
    assert path.stat().st_size > len(whole)
    cut = report("hub", "cut-tail", data, "--yes", "--no-receipt-left")
    assert path.read_bytes() == whole
    assert json.loads((data / cut["record"]).read_bytes())["sha256"] == cut["sha256"]
    assert len((data / cut["kept_in"]).read_bytes()) == cut["bytes"] == 2040
    sections(data)
    with running(data) as hub:
        assert [hub.receipt(seq) for seq in range(1, 4)] == released
        hub.stop()


def test_a_fork_of_what_is_not_there(data, tmp_path):
    with running(data) as hub:
        hub.submit()
        hub.stop()
    for cut, words in (
        ("ab=1", "64 hex digits"),
        (f"{'ab' * 32}=1", "does not exist"),
        (f"{w.LABEL.hex()}=9", "has 1 entries"),
    ):
        done = veen("hub", "fork", data, tmp_path / "fork", "--upto", cut)
        assert words in done.stderr.decode()


def test_a_fork_under_the_same_identity_goes_on_from_the_prefix(data, tmp_path):
    """D-77: disaster recovery only, and what the old hub signed beyond the prefix proves equivocation."""
    target = tmp_path / "fork"
    with running(data, *DEV, "--set", "limits.max_checkpoint_interval=4") as hub:
        lost = [hub.submit(seq=seq) for seq in range(1, 8)][5]
        hub.stop()
    said = report("hub", "fork", data, target, "--same-identity", "--upto", f"{w.LABEL.hex()}=5")
    with running(target) as hub:
        assert hub.about["hub_pk"] == said["hub_pk"]
        again = hub.submit(seq=6, ciphertext=w.CIPHERTEXT[:-1] + b"x")
        hub.stop()
    assert sections(target)[0][w.LABEL.hex()]["size"] == 6
    public = bytes.fromhex(said["hub_pk"].removeprefix("ed25519:"))
    Equivocation.of(lost, again, one_pk=public).verify()


@pytest.mark.req("STOR-20", "OPS-04")
def test_a_hub_is_rebuilt_from_its_log_alone(data):
    with running(data, *DEV, "--set", "limits.max_checkpoint_interval=2") as hub:
        released = [hub.submit(seq=seq) for seq in range(1, 6)]
        hub.stop()
    before = sections(data)
    for name in ("nodes", "offsets"):
        shutil.rmtree(data / name)
    for path in data.glob("index.db*"):
        path.unlink()
    assert veen("hub", "verify-data", data).returncode == Exit.POLICY  # the log is good, what follows from it is gone
    done = veen("hub", "start", "--data-dir", data, *DEV)
    assert done.returncode == Exit.LOCAL
    assert b"rebuild-index" in done.stderr
    assert report("hub", "rebuild-index", data)["entries"] == 5
    assert sections(data) == before
    with running(data) as hub:
        assert [hub.receipt(seq) for seq in range(1, 6)] == released
        assert hub.submit(seq=6).stream_seq == 6


def test_retention_is_planned_applied_and_shown(data):
    with running(data, *DEV, "--set", "limits.max_checkpoint_interval=2") as hub:
        for seq in range(1, 4):
            data_of = b"attachment %d" % seq
            entry = f"label={w.LABEL.hex()}&client_id={w.ALICE.public.hex()}&client_seq={seq}"
            path = f"/tooling/attachment/{H(data_of).hex()}?{entry}"
            connection = hub.client.connect()
            connection.request("PUT", path, data_of)
            assert connection.getresponse().status == 201
            connection.close()
            hub.submit(seq=seq)
        assert veen("hub", "retention", "apply", "--data-dir", data, "--payloads", "1s").returncode == Exit.LOCAL
        hub.stop()
    options = ("--data-dir", data, "--payloads", "1s")
    time.sleep(1.1)
    (planned,) = report("hub", "retention", "plan", *options)["erasures"]
    assert (planned["start_seq"], planned["end_seq"], planned["what"]) == (1, 2, "payloads")
    assert report("hub", "retention", "show", "--data-dir", data)["labels"][0]["payloads_erased"] == 0
    applied = report("hub", "retention", "apply", *options)
    assert (applied["erasures"], applied["attachments"]) == ([planned], 2)
    assert [path.name for path in (data / "attachments").glob("*/*")] == [H(b"attachment 3").hex()]
    assert report("hub", "retention", "plan", *options)["erasures"] == []
    assert report("hub", "retention", "show", "--data-dir", data)["labels"][0]["payloads_erased"] == 1
    assert sections(data)[0][w.LABEL.hex()]["size"] == 3
    assert veen("hub", "retention", "plan", "--data-dir", data, "--payloads", "soon").returncode == Exit.USAGE
