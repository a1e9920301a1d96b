"""`veen help`, `veen label`, `veen schema`, `veen pow`: what needs no keys."""

import json
import re

import pytest
from tests.cli.homes import PIN, Cli
from tests.cli.hubprocess import running
from tests.hub import builders as w

from veen.cli.setup.topics import TOPICS
from veen.cli.shared.output import Exit
from veen.client.config.settings import ENVIRONMENT
from veen.core.hashing import H
from veen.core.labels import hub_id_of, label_of, routing_key_of, stream_id_of
from veen.core.pow import PowCookie


@pytest.fixture
def cli(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Cli(tmp_path / "home")


# --- help ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", TOPICS)
def test_every_topic_has_a_text(cli, topic):
    text = cli.run("help", topic).stdout
    assert len(text.splitlines()) > 5
    assert cli.json("help", topic)["text"] == text.rstrip("\n")


def test_every_exit_code_and_variable_is_listed(cli):
    text = cli.run("help", "exit-codes").stdout
    assert [int(number) for number in re.findall(r"^ +(\d+)  ", text, re.MULTILINE)] == [int(code) for code in Exit]
    environment = cli.run("help", "environment").stdout
    assert set(ENVIRONMENT.values()) <= set(re.findall(r"VEEN_[A-Z_]+", environment))


def test_help_shows_the_help_of_any_command(cli):
    assert "Usage: cli hub start" in cli.run("help", "hub", "start").stdout.replace("veen", "cli")
    assert "Topics: commands, exit-codes" in cli.run("help").stdout
    cli.run("help", "no", "such", "thing", code=Exit.USAGE)


# --- names -----------------------------------------------------------------------------------------------------


def test_a_label_is_derived_from_hub_stream_and_epoch(cli):
    hub_pk = bytes.fromhex(PIN.removeprefix("ed25519:"))
    hub_id = hub_id_of(hub_pk)
    key = routing_key_of(hub_id)
    result = cli.json("label", "derive", "record/app/http", "--pin", PIN, "--hub", "http://a")
    assert result["label"] == label_of(key, stream_id_of("record/app/http"), 0).hex()
    assert result["stream_id"] == H(b"record/app/http").hex()
    by_id = cli.json("label", "derive", "hex:" + "0" * 64, "--hub-id", hub_id.hex(), "--epoch-sec", 3600, "--at", 7300)
    assert by_id["label"] == label_of(key, bytes(32), 2).hex()
    by_key = cli.json("label", "derive", "0" * 64, "--routing-key", key.hex(), "--epoch", 2)
    assert by_key["label"] == by_id["label"]


@pytest.mark.parametrize(
    "line",
    [
        [""],
        ["hex:12"],
        ["label:" + "0" * 64, "--routing-key", "0" * 64],
        ["x", "--routing-key", "0" * 64, "--hub-id", "0" * 64],
        ["x", "--hub-id", "12"],
        ["x", "--epoch", "-1"],
    ],
)
def test_a_label_of_nonsense_is_a_usage_error(cli, line):
    cli.run("label", "derive", *line, code=Exit.USAGE)


def test_the_id_of_a_schema_is_the_hash_of_its_name(cli):
    assert cli.json("schema", "id", "recorder.event.v1")["schema_id"] == H(b"recorder.event.v1").hex()
    operation = cli.json("schema", "id", "paid.operation.v1")["schema_id"]
    assert operation == H(b"veen/schema:paid.operation.v1").hex()  # D-83


# --- proof of work ---------------------------------------------------------------------------------------------


def test_a_cookie_pays_for_one_request(cli, tmp_path):
    body = tmp_path / "body"
    body.write_bytes(b"a request")
    result = cli.json("pow", "solve", body, "--difficulty", 8, "--out", tmp_path / "cookie")
    cookie = PowCookie.from_bytes(bytes.fromhex(result["header"].removeprefix("VEEN-PoW: ")))
    cookie.verify(b"a request", 8)
    assert (tmp_path / "cookie").read_bytes() == cookie.to_bytes()
    assert cli.json("pow", "solve", "-", "--difficulty", 8, stdin=b"a request")["nonce"] == cookie.nonce
    more = cli.json("pow", "solve", body, "--difficulty", 8, "--start", cookie.nonce + 1)
    assert (more["nonce"] > cookie.nonce, more["hashes"]) == (True, more["nonce"] - cookie.nonce)
    cli.run("pow", "solve", body, "--difficulty", 0, code=Exit.USAGE)


@pytest.mark.req("SH1-04")
def test_a_hub_that_asks_for_work_takes_the_cookie(cli, tmp_path):
    """001 SH1+ §5.2, D-59: the cookie of the command line opens the door of a real hub."""
    body = b"\xa2\x01\x01\x02" + w.msg(seq=1, token=None).to_bytes()
    (tmp_path / "body").write_bytes(body)
    with running(tmp_path / "hub", "--dev", "--set", "engine.workers=0", "--set", "admission.pow_difficulty=6") as hub:
        asked = cli.json("pow", "request", "--hub", hub.url)["difficulty"]
        assert asked == 6
        header = cli.json("pow", "solve", tmp_path / "body", "--difficulty", asked)["header"].split(": ")[1]
        statuses = []
        for headers in ({}, {"VEEN-PoW": header}):
            connection = hub.client.connect()
            connection.request("POST", "/v1/submit", body, {"Content-Type": "application/cbor", **headers})
            answer = connection.getresponse()
            statuses.append(answer.status)
            refused = answer.read() if answer.status != 200 else b""
            connection.close()
            assert b"PREFILTER_REJECT" in refused or answer.status == 200
    assert statuses == [403, 200]


def test_json_of_every_small_command_is_one_object(cli):
    for line in (["version"], ["help"], ["explain"], ["schema", "id", "x"], ["config", "path"], ["context", "list"]):
        assert isinstance(json.loads(cli.run(*line, "--ndjson").stdout), dict)
