"""A hub with TLS and a private authority, looked after on its own machine and from afar."""

import json
import os
import stat
import subprocess
import sys

import pytest
from tests.cli.homes import Cli
from tests.cli.hubprocess import HubProcess, report, running
from tests.hub.test_http import certificate
from tests.waiting import until

from veen.cli.shared.output import Exit

OTHER = f"ed25519:{'b' * 64}"


@pytest.fixture(scope="module")
def tls_hub(tmp_path_factory):
    """Only loopback's name is in the certificate, so it is called by that name."""
    directory = tmp_path_factory.mktemp("tls")
    cert, key, _ = certificate(directory, "localhost")
    config = directory / "hub.toml"
    config.write_text(f'[tls]\ncert = "{cert}"\nkey = "{key}"\n[listen]\nport = 0\n[engine]\nworkers = 0\n')
    with running(directory / "data", "--config", config) as hub:
        hub.cert, hub.config = cert, config
        hub.name = hub.url.replace("127.0.0.1", "localhost")
        yield hub


@pytest.fixture
def cli(tmp_path):
    return Cli(tmp_path / "home")


def test_a_hub_with_tls_is_asked_through_its_local_door(tls_hub):
    """The port would want its authority; the socket in the data directory wants the right to open it."""
    for words in (["hub", "status", tls_hub.data_dir], ["hub", "status", "--data-dir", tls_hub.data_dir]):
        status = report(*words)
        assert status["url"] == tls_hub.url
        assert status["ready"]["ready"]
    assert report("hub", "health", tls_hub.data_dir)["readyz"]["ready"]


def test_the_local_door_is_for_its_owner_only_and_goes_with_the_hub(tmp_path):
    directory = tmp_path / ("a" * 80)  # a path that is longer than the address of a socket may be
    directory.mkdir()
    with running(directory / "data") as hub:
        local = hub.data_dir / "local"
        assert stat.S_IMODE(local.stat().st_mode) == 0o700
        assert stat.S_IMODE((local / "hub.sock").stat().st_mode) == 0o600
        assert report("hub", "status", hub.data_dir)["url"] == hub.url
        verified = report("hub", "verify-data", hub.data_dir, code=Exit.POLICY)  # it has no entry yet
        assert verified["sections"][0]["findings"] == []  # none for the socket
        assert hub.stop() == 0
    assert not local.exists()


def test_a_certificate_of_a_private_authority_has_its_own_error_that_names_the_option(tls_hub, cli):
    error = cli.json("hub", "status", "--hub", tls_hub.name, code=Exit.NETWORK)
    assert error["code"] == "E.NET.CERTIFICATE"
    assert "--ca-file" in error["hint"]
    assert "self-signed" in error["cause"]
    assert cli.json("hub", "status", "--hub", tls_hub.name, "--ca-file", tls_hub.cert)["url"] == tls_hub.name
    wrong_host = cli.json("hub", "status", "--hub", tls_hub.url, "--ca-file", tls_hub.cert, code=Exit.NETWORK)
    assert wrong_host["code"] == "E.NET.CERTIFICATE"
    assert "IP address mismatch" in wrong_host["cause"]


def test_a_bulk_reader_names_the_option_for_the_authority(tls_hub):
    from veen.lake.log.options import HubAddress
    from veen.lake.log.remote import HubCertificate, HubLink

    link = HubLink(HubAddress(url=tls_hub.name))

    async def never(calls):
        return await calls.send("healthz", b"")

    with link, pytest.raises(HubCertificate, match="caFile") as failure:
        link.run(never)
    assert failure.value.code == "E.NET.CERTIFICATE"


def test_a_key_is_rotated_on_the_spot_and_verified_at_once(tls_hub, cli):
    """The record is still in the journal then: a retirement takes it to the control log half a minute later."""
    rotated = report("hub", "key", "rotate", tls_hub.data_dir, "--overlap", "1h")
    checks = report("hub", "key", "verify-rotation", tls_hub.data_dir)["checks"]
    assert any("introduced the next one" in line for line in checks)
    keys = sorted(path.name for path in (tls_hub.data_dir / "keys").iterdir())
    assert len(keys) == 2
    refused = report("hub", "key", "rotate", tls_hub.data_dir, code=Exit.REFUSED)
    assert refused["code"] == "E.CONFLICT"
    assert sorted(path.name for path in (tls_hub.data_dir / "keys").iterdir()) == keys  # no stray key
    shown = cli.json("hub", "key", "show", "--hub", tls_hub.name, "--ca-file", tls_hub.cert)
    assert shown["hub_keys"][-1]["hub_pk"] == rotated["hub_pk"]
    assert shown["signed_by_own_key"]
    assert shown["hub_keys"] == report("hub", "key", "show", tls_hub.data_dir)["hub_keys"]
    cli.run("context", "add", "tls", "--hub", tls_hub.name, "--ca-file", tls_hub.cert, "--pin", rotated["hub_pk"])
    assert cli.json("hub", "key", "show")["hub_keys"] == shown["hub_keys"]


def test_a_reload_says_what_changed_and_refuses_what_cannot_be_used(tls_hub):
    before = tls_hub.config.read_text()
    tls_hub.config.write_text(before + "retire_seconds = 7\nmax_queue = 99\n")
    result = report("hub", "reload", tls_hub.data_dir)
    assert (result["applied"], result["needs_restart"]) == (["engine.retire_seconds"], ["engine.max_queue"])
    tls_hub.config.write_text(before + "[nonsense]\n")
    error = report("hub", "reload", tls_hub.data_dir, code=Exit.LOCAL)
    assert error["code"] == "E.CONFIG"
    assert "nonsense" in error["cause"]
    tls_hub.config.write_text(before)
    assert report("hub", "reload", "--data-dir", tls_hub.data_dir)["reloaded"]


def test_what_does_not_run_cannot_be_reloaded(tmp_path):
    (tmp_path / "data").mkdir()
    assert report("hub", "reload", tmp_path / "data", code=Exit.NETWORK)["code"] == "E.NET.UNREACHABLE"
    assert report("hub", "reload", code=Exit.USAGE)
    assert report("hub", "status", tmp_path / "data", "--data-dir", tmp_path / "data", code=Exit.USAGE)


def test_a_pin_is_compared_with_the_hub_before_it_is_saved(tls_hub, cli):
    place = ["--hub", tls_hub.name, "--ca-file", tls_hub.cert]
    pin = tls_hub.about["hub_pk"]
    wrong = cli.json("context", "add", "a", *place, "--pin", OTHER, code=Exit.LOCAL, VEEN_CHECK_PIN="")
    assert wrong["code"] == "E.LOCAL.PIN"
    assert "a" not in [entry["context"] for entry in cli.json("context", "list")["contexts"]]
    added = cli.json("context", "add", "a", *place, "--pin", pin, VEEN_CHECK_PIN="")
    assert added["pin_check"] == "the hub has this key"
    assert cli.json("context", "add", "b", *place, "--pin", OTHER, "--no-check")["pin_check"] == "not checked"
    away = cli.json("context", "add", "c", "--hub", "http://127.0.0.1:1", "--pin", OTHER, VEEN_CHECK_PIN="")
    assert away["pin_check"].startswith("not checked: ")
    unknown = cli.json("context", "add", "d", "--hub", tls_hub.name, "--pin", pin, VEEN_CHECK_PIN="")
    assert "self-signed" in unknown["pin_check"]


def test_the_error_of_a_detached_hub_is_that_of_a_hub_in_the_foreground(tls_hub, tmp_path):
    """And a first start that fails leaves no identity behind: the next one may begin with another key."""
    port = tls_hub.url.rpartition(":")[2]
    for number, options in enumerate((["--detach"], [])):
        data = tmp_path / f"data{number}"
        error = report("hub", "start", "--data-dir", data, "--port", port, *options, code=Exit.LOCAL)
        assert error["code"] == "E.CONFIG"
        assert f"port {port}: Address already in use" in error["cause"]
        assert "error:" not in error["cause"]
        assert error["hint"].startswith("Choose another port")
        assert sorted(path.name for path in data.iterdir()) == ["lock"]


@pytest.mark.parametrize(
    "options",
    [
        ["--set", "tls.cert=missing.pem", "--set", "tls.key=missing.key"],
        ["--set", "auth.admin_token_files=missing"],
        ["--host", "192.0.2.1"],  # plain HTTP beyond loopback
    ],
)
def test_no_first_start_that_fails_leaves_an_identity(tmp_path, options):
    data = tmp_path / "data"
    error = report("hub", "start", "--data-dir", data, "--port", 0, *options, code=Exit.LOCAL)
    assert error["hint"]
    assert not data.exists() or sorted(path.name for path in data.iterdir()) == ["lock"]


def test_the_log_tells_by_its_request_id_why_somebody_was_refused(tmp_path):
    """Through the network, as a user reports it: the id in the answer finds the line with the reason."""
    log = tmp_path / "data.log"
    settings = ["--set", f"log.file={log}", "--set", "log.format=json", "--set", "engine.workers=0", "--port", "0"]
    with running(tmp_path / "data", *settings) as hub:
        with pytest.raises(AssertionError) as refused:
            hub.submit()
        from veen.core.objects.envelopes import ErrorEnvelope

        answer = ErrorEnvelope.from_bytes(refused.value.args[0] if isinstance(refused.value.args[0], bytes) else b"")
        until(lambda: answer.request_id in log.read_text())
        (line,) = report("hub", "log", tmp_path / "data", "--request-id", answer.request_id)["lines"]
        assert line["code"] == answer.code
        assert line["detail"] == (answer.detail or {})["detail_enum"]
        assert len(line["client_id_prefix"]) == 8
        newest = report("hub", "log", log, "--refused", "--client", line["client_id_prefix"] + "00", "--last", "1")
        assert newest["lines"] == [line]
        assert report("hub", "log", log, "--code", "CLIENT_REVOKED")["lines"] == []
        piped = subprocess.run(
            [sys.executable, "-m", "veen", "hub", "log", "-", "--code", line["detail"], "--ndjson"],
            input=b"not JSON\n[]\n" + log.read_bytes(),
            capture_output=True,
            check=True,
            env=dict(os.environ),
        )
        assert json.loads(piped.stdout) == line
    assert report("hub", "log", tmp_path / "nothing", code=Exit.LOCAL)["code"] == "E.LOCAL"


def test_stop_takes_the_directory_by_its_place(tmp_path):
    hub = HubProcess(tmp_path / "data", "--dev", "--set", "engine.workers=0")
    assert report("hub", "stop", hub.data_dir)["stopped"]
    assert hub.process.wait(30) == 0
    hub.stdout.close()
