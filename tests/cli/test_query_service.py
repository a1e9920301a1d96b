"""`veen query serve` as a process, and the commands that ask it."""

import contextlib
import json
import os
import signal
import ssl
import subprocess
import sys
from hashlib import sha256

import pytest
from cryptography import x509
from tests.cli import shapecheck
from tests.cli.hubprocess import DEV, running
from tests.cli.interrupts import interruptible
from tests.cli.talk import Talk
from tests.products.queryservice.test_certificates import Authority
from tests.waiting import until

from veen.cli.shared.output import Exit
from veen.lake.query import connect
from veen.lake.query.errors import ServiceRefused
from veen.lake.query.recording import ACCESSES, EXECUTIONS, REQUESTS, RESULTS

EVENTS = ("login", "logout", "login")


@contextlib.contextmanager
def serving(talk, *words):
    process = subprocess.Popen(
        [sys.executable, "-m", "veen", "query", "serve", "--port", "0", "--json", *map(str, words)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **talk.env},
        preexec_fn=interruptible,
    )
    try:
        assert process.stderr is not None
        yield process, shapecheck.check_start(["query", "serve"], process.stderr.readline())["url"]
    finally:
        process.send_signal(signal.SIGINT)
        with process:
            process.communicate(timeout=120)


@pytest.mark.req("QRY-01", "QRY-20", "QRY-21")
def test_a_service_records_answers_and_is_verified_by_a_person_with_the_log(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with running(tmp_path / "hub", *DEV, "--set", "engine.retire_seconds=1", "--set", "log.level=error") as hub:
        talk = Talk(tmp_path / "home", hub)
        for stream in ("record/app", REQUESTS, RESULTS, EXECUTIONS, ACCESSES):
            talk.new_stream(stream)
        for number, event_type in enumerate(EVENTS):
            talk.json(
                "recorder", "emit", "record/app", "--type", event_type, "--subject", "alice", json.dumps({"n": number})
            )
        until(lambda: len(_rows(talk, tmp_path)) == len(EVENTS))
        token = talk.json("query", "token", "--out", tmp_path / "token")
        assert token["token_sha256"] == sha256((tmp_path / "token").read_text().strip().encode()).hexdigest()
        assert (tmp_path / "token").stat().st_mode & 0o077 == 0
        talk.run("query", "token", "--out", tmp_path / "token", code=Exit.LOCAL)
        (tmp_path / "principals.toml").write_text(
            f'[principal.alice]\nscopes = ["record/app"]\nclient_id = "{"5b" * 32}"\n'
            f'token_sha256 = "{token["token_sha256"]}"\n'
        )
        asked = {"scope": ["record/app"], "filter": {"event_type": ["login"]}, "projection": ["payload.n"],
                 "evidence": {"mode": "full"}, "query_id": "q-1"}  # fmt: skip
        (tmp_path / "descriptor.json").write_text(json.dumps(asked))
        words = ("--data-dir", tmp_path / "hub", "--principals", tmp_path / "principals.toml")
        with serving(talk, *words) as (process, url):
            service = ("--service", url, "--service-token", tmp_path / "token")
            accepted = talk.json("query", "submit", tmp_path / "descriptor.json", *service)
            result_id = accepted["result_id"]
            until(lambda: talk.json("query", "status", result_id, *service)["status"] == "completed")
            page = talk.json("query", "result", result_id, *service)
            assert page["rows"] == [{"payload.n": 0}, {"payload.n": 2}]
            assert talk.json("query", "descriptor", "q-1", *service)["scope"] == ["record/app"]
            checked = talk.json("query", "verify", result_id, "--data-dir", tmp_path / "hub", *service)
            assert checked["ok"] is True
            talk.run("query", "status", "r-none", *service, code=Exit.LOCAL)
            (tmp_path / "wrong").write_text("wrong\n")
            (tmp_path / "wrong").chmod(0o600)
            wrong = ("--service", url, "--service-token", tmp_path / "wrong")
            assert "unauthorized" in talk.run("query", "status", result_id, *wrong, code=Exit.LOCAL).stderr
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) in (0, -signal.SIGTERM)
        assert len(talk.entries(REQUESTS)) == len(talk.entries(RESULTS)) == 1
        assert len(talk.entries(ACCESSES)) >= 2


def _prepared(tmp_path, hub):
    """A home whose identity can run a service, with a few events; and the words that say where everything is."""
    talk = Talk(tmp_path / "home", hub)
    for stream in ("record/app", REQUESTS, RESULTS, EXECUTIONS, ACCESSES):
        talk.new_stream(stream)
    for number, event_type in enumerate(EVENTS):
        talk.json("recorder", "emit", "record/app", "--type", event_type, "--subject", "alice", f'{{"n": {number}}}')
    until(lambda: len(_rows(talk, tmp_path)) == len(EVENTS))
    return talk, ("--data-dir", tmp_path / "hub", "--principals", tmp_path / "principals.toml")


ASKED = {"scope": ["record/app"], "projection": ["payload.n"], "evidence": {"mode": "full"}}


@pytest.mark.req("QRY-20", "QRY-26")
def test_a_client_certificate_opens_a_service_with_tls_and_a_query_that_ended_stays(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    web, clients = Authority(tmp_path / "web", "web"), Authority(tmp_path / "clients", "clients")
    cert, key = web.certificate("localhost", x509.DNSName("localhost"))
    alice, mallory = clients.certificate("alice.example"), clients.certificate("mallory.example")
    with running(tmp_path / "hub", *DEV, "--set", "engine.retire_seconds=1", "--set", "log.level=error") as hub:
        talk, words = _prepared(tmp_path, hub)
        (tmp_path / "principals.toml").write_text(
            f'[principal.alice]\nscopes = ["record/app"]\nclient_id = "{"5b" * 32}"\n'
            'certificate_names = ["alice.example"]\n'
        )
        (tmp_path / "descriptor.json").write_text(json.dumps(ASKED))
        assert "--client-ca" in talk.run("query", "serve", *words, code=Exit.USAGE).stderr
        talk.run("query", "serve", *words, "--client-ca", clients.file, code=Exit.USAGE)
        tls = ("--host", "localhost", "--tls-cert", cert, "--tls-key", key, "--client-ca", clients.file)
        with serving(talk, *words, *tls) as (process, url):
            assert url.startswith("https://localhost:")
            service = ("--service", url, "--service-ca", web.file)
            me = ("--service-cert", alice[0], "--service-key", alice[1])
            accepted = talk.json("query", "submit", tmp_path / "descriptor.json", *service, *me)
            result_id = accepted["result_id"]
            until(lambda: talk.json("query", "status", result_id, *service, *me)["status"] == "completed")
            state = talk.json("query", "cancel", result_id, *service, *me)
            assert (state["status"], state["error_code"]) == ("completed", None)
            checked = talk.json("query", "verify", result_id, "--data-dir", tmp_path / "hub", *service, *me)
            assert checked["ok"] is True
            other = ("--service-cert", mallory[0], "--service-key", mallory[1])
            assert "unauthorized" in talk.run("query", "status", result_id, *service, *other, code=Exit.LOCAL).stderr
            assert "unauthorized" in talk.run("query", "cancel", result_id, *service, *other, code=Exit.LOCAL).stderr
            talk.run("query", "status", result_id, *service, code=Exit.USAGE)
            talk.run("query", "status", result_id, *service, *me[:2], code=Exit.USAGE)
            talk.run("query", "cancel", result_id, code=Exit.USAGE)
            process.send_signal(signal.SIGTERM)
            lines = [json.loads(line) for line in process.communicate(timeout=120)[1].splitlines()]
        assert {(line["operation"], line["message"]) for line in lines} >= {
            ("submit", "recorded"), ("execute", "completed"), ("request", "request failed"),
        }  # fmt: skip
        assert {line["component"] for line in lines} == {"query"}
        assert not any("record/app" in json.dumps(line) or "alice" in json.dumps(line) for line in lines)


@pytest.mark.slow
@pytest.mark.req("QRY-20")
def test_principals_and_the_certificate_are_read_again_on_sighup(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    web = Authority(tmp_path / "web", "web")
    cert, key = web.certificate("localhost", x509.DNSName("localhost"))
    with running(tmp_path / "hub", *DEV, "--set", "engine.retire_seconds=1", "--set", "log.level=error") as hub:
        talk, words = _prepared(tmp_path, hub)
        tokens = {name: talk.json("query", "token", "--out", tmp_path / name) for name in ("alice", "bob")}

        def allow(name):
            (tmp_path / "principals.toml").write_text(
                f'[principal.{name}]\nscopes = ["record/app"]\nclient_id = "{"5b" * 32}"\n'
                f'token_sha256 = "{tokens[name]["token_sha256"]}"\n'
            )

        allow("alice")
        tls = ("--host", "localhost", "--tls-cert", cert, "--tls-key", key)
        with serving(talk, *words, *tls) as (process, url):
            lines = iter(process.stderr)

            def reload():
                process.send_signal(signal.SIGHUP)
                return next(line for line in map(json.loads, lines) if line["operation"] == "reload")

            def refused(name):
                with connect(url, token=(tmp_path / name).read_text(), ca_file=web.file) as service:
                    with pytest.raises(ServiceRefused) as caught:
                        service.status("r-none")
                    return caught.value.refused_with

            assert (refused("alice"), refused("bob")) == ("query_not_found", "unauthorized")
            serial = _serial_at(url)
            allow("bob")
            for renewed, file in zip(web.certificate("localhost", x509.DNSName("localhost")), (cert, key), strict=True):
                renewed.replace(file)
            assert reload()["message"] == "taken over"
            assert (refused("alice"), refused("bob")) == ("unauthorized", "query_not_found")
            assert _serial_at(url) not in (None, serial)
            (tmp_path / "principals.toml").write_text("[principal]\n")
            failure = reload()
            assert failure["level"] == "error"
            assert "nothing was taken over" in failure["message"]
            assert refused("bob") == "query_not_found"


def _serial_at(url):
    """The number of the certificate that a server shows to a new connection."""
    host, _, port = url.removeprefix("https://").rpartition(":")
    return x509.load_pem_x509_certificate(ssl.get_server_certificate((host, int(port))).encode()).serial_number


@pytest.mark.slow
@pytest.mark.req("QRY-26", "QRY-27")
def test_a_service_that_is_killed_goes_on_with_every_query_at_its_next_start(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with running(tmp_path / "hub", *DEV, "--set", "engine.retire_seconds=1", "--set", "log.level=error") as hub:
        talk, words = _prepared(tmp_path, hub)
        token = talk.json("query", "token", "--out", tmp_path / "token")
        (tmp_path / "principals.toml").write_text(
            f'[principal.alice]\nscopes = ["record/app"]\nclient_id = "{"5b" * 32}"\n'
            f'token_sha256 = "{token["token_sha256"]}"\n'
        )
        text, results = (tmp_path / "token").read_text(), []
        for round_number in range(3):
            with serving(talk, *words, "--sync-entries", "0", "--workers", "1") as (process, url):
                with connect(url, token=text) as service:
                    for number in range(3):
                        question = ASKED | {"query_id": f"q-{round_number}-{number}"}
                        results.append(service.submit(question)["result_id"])
                process.kill()
                process.wait(120)
        with serving(talk, *words) as (_, url), connect(url, token=text) as service:
            until(lambda: all(service.status(result_id)["status"] == "completed" for result_id in results))
            for result_id in results:
                assert list(service.result(result_id).rows()) == [{"payload.n": number} for number in range(3)]
        assert len(talk.entries(REQUESTS)) == len(results)
        digests = [entry["body"] for entry in talk.entries(RESULTS)]
        assert len(digests) == len(results)


def _rows(talk, tmp_path):
    return talk.json("query", "run", "--data-dir", tmp_path / "hub", "--scope", "record/app")["rows"]


def test_a_service_beyond_loopback_needs_tls_and_a_file_of_principals(tmp_path, talk):
    (tmp_path / "principals.toml").write_text("[classes]\n")
    words = ("query", "serve", "--data-dir", tmp_path, "--principals", tmp_path / "principals.toml")
    assert "--tls-cert" in talk.run(*words, "--host", "0.0.0.0", code=Exit.LOCAL).stderr  # noqa: S104 - refused
    assert "nobody could use" in talk.run(*words, code=Exit.LOCAL).stderr
    talk.run(*words, "--tls-cert", tmp_path / "principals.toml", code=Exit.USAGE)
    assert (
        "--service-token"
        in talk.run("query", "status", "r-1", "--service", "http://127.0.0.1:9", code=Exit.USAGE).stderr
    )
