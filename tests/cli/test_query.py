"""`veen query` end to end, by the reference engine."""

import json

import pytest
from tests.cli.homes import Cli
from tests.pipeline.queryworld import KEYS, STREAMS, filled

from veen.cli.shared.output import Exit


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    path = tmp_path_factory.mktemp("log")
    filled(path, 60).done()
    return path


@pytest.fixture
def cli(tmp_path):
    (tmp_path / "keys").write_text("".join(f"{keys.to_text()}\n" for keys in KEYS.values()))
    return Cli(tmp_path / "home")


@pytest.fixture
def places(log, tmp_path):
    return ("--data-dir", log, "--key-file", tmp_path / "keys")


def asked(cli, places, *more, **kwargs):
    return cli.json("query", "run", *places, *more, **kwargs)


@pytest.mark.req("QRY-14", "QRY-23")
def test_a_query_is_answered_stored_fetched_and_verified(cli, places):
    result = asked(cli, places, "--scope", "record/*", "--type", "login", "--evidence", "full")
    digest = result["result_digest"]
    assert digest["row_count"] == len(result["rows"]) > 0
    assert {row["event_type"] for row in result["rows"]} == {"login"}
    assert {stream["stream"] for stream in result["coverage"]["streams"]} == set(STREAMS)
    result_id = digest["result_id"]
    page = cli.json("query", "result", result_id, "--offset", 1, "--limit", 2)
    assert page["rows"] == result["rows"][1:3]
    assert page["result_digest"] == digest
    assert page["page"] == {"offset": 1, "limit": 2, "total": digest["row_count"], "has_more": True}
    assert cli.json("query", "status", result_id)["status"] == "completed"
    assert cli.json("query", "descriptor", digest["query_id"])["filter"]["event_type"] == ["login"]
    assert cli.json("query", "verify", result_id, *places)["ok"] is True
    assert cli.json("query", "replay", result_id, *places)["differences"] == []


@pytest.mark.req("QRY-28")
def test_another_zone_replays_from_the_two_records(cli, places, tmp_path):
    digest = asked(cli, places, "--scope", STREAMS[0], "--evidence", "spot", "--sample-rate", "0.5")["result_digest"]
    (tmp_path / "digest").write_text(json.dumps(digest))
    (tmp_path / "descriptor").write_text(cli.run("query", "descriptor", digest["query_id"]).stdout)
    files = ("--descriptor", tmp_path / "descriptor", "--digest", tmp_path / "digest")
    other = Cli(tmp_path / "elsewhere")
    assert other.json("query", "replay", *files, *places)["ok"] is True
    (tmp_path / "digest").write_text(json.dumps(digest | {"rows_hash": "0" * 64}))
    failed = other.run("query", "replay", *files, *places, code=Exit.BAD_EVIDENCE)
    assert "rows_hash" in failed.stdout
    assert "DIFFERENT" in failed.stdout


def test_aggregates_and_numbers_are_printed_with_every_digit(cli, places):
    more = ("--scope", "record/*", "--group-by", "stream", "--metric", "count", "--metric", "sum(payload.price)")
    rows = asked(cli, places, *more)["rows"]
    assert [row["stream"] for row in rows] == sorted(STREAMS)
    text = cli.run("query", "run", *places, *more, "--ndjson").stdout
    assert "100000000000000000018.290000004" in text
    assert len(text.splitlines()) == 3


def test_rows_go_to_stdout_and_everything_else_to_stderr(cli, places):
    result = cli.run("query", "run", *places, "--scope", STREAMS[0], "--field", "origin", "--field", "payload.where")
    lines = result.stdout.splitlines()
    assert all(len(line.split("\t")) == 2 for line in lines)
    assert "rows_hash" in result.stderr
    assert "are no rows: " in result.stderr
    human = cli.run("query", "run", *places, "--scope", "record/*", "-o", "human")
    assert "40 of" in human.stderr
    assert "rows_hash" in human.stdout


def test_a_descriptor_can_be_given_as_it_is(cli, places, tmp_path):
    question = {"scope": [STREAMS[0]], "filter": {"later": 1}, "projection": ["*"], "evidence": {"mode": "none"}}
    (tmp_path / "query").write_text(json.dumps(question))
    result = cli.run("query", "run", *places, "--descriptor", tmp_path / "query")
    assert "'later' is not known" in result.stderr
    bad = cli.json("query", "run", *places, "--descriptor", "-", stdin="{}", code=Exit.USAGE)
    assert bad["cause"] == "scope: is missing"


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ((), Exit.USAGE),
        (("--scope", "nothing/*"), Exit.USAGE),
        (("--scope", "record/unknown"), Exit.LOCAL),
        (("--scope", STREAMS[0], "--evidence", "spot"), Exit.USAGE),
        (("--scope", STREAMS[0], "--evidence", "spot", "--sample-rate", "half"), Exit.USAGE),
        (("--scope", STREAMS[0], "--field", "nonsense"), Exit.USAGE),
        (("--scope", STREAMS[0], "--from", "2025-01-02T00:00:00Z", "--to", "2025-01-01T00:00:00Z"), Exit.USAGE),
    ],
)
def test_what_cannot_be_asked_is_refused_with_the_right_code(cli, places, more, code):
    cli.run("query", "run", *places, *more, code=code)


def test_a_result_that_is_not_there_is_named(cli, places):
    for command in (("result", "r-1"), ("status", "r-1"), ("descriptor", "q-1"), ("verify", "r-1", *places)):
        failed = cli.run("query", *command, code=Exit.LOCAL)
        assert "there is no" in failed.stderr
    cli.run("query", "replay", *places, code=Exit.USAGE)


def test_bad_evidence_has_its_own_exit_code(cli, tmp_path):
    path = tmp_path / "log"
    path.mkdir()
    filled(path, 10).done()
    (path / "hub-identity.json").unlink()
    places = ("--data-dir", path, "--key-file", tmp_path / "keys")
    failed = cli.json("query", "run", *places, "--scope", "record/*", "--evidence", "full", code=Exit.BAD_EVIDENCE)
    assert failed["code"] == "E.VERIFY"


def test_keys_come_from_the_keyring_of_the_identity(cli, log, tmp_path):
    cli.keygen()
    (tmp_path / "key").write_text(KEYS[STREAMS[0]].to_text())
    cli.run("id", "keyring", "add", f"@{tmp_path / 'key'}")
    result = cli.json("query", "run", "--data-dir", log, "--scope", "record/*")
    assert {row["stream"] for row in result["rows"]} == {STREAMS[0]}
    refused = cli.json("query", "run", "--data-dir", log, "--scope", STREAMS[1], code=Exit.LOCAL)
    assert "not known or may not be read" in refused["cause"]
