"""`veen query` end to end, by the reference engine."""

import json
from decimal import Decimal

import pytest
from tests.cli.homes import Cli
from tests.examples import spread
from tests.lake.query_builders import KEYS, STREAMS, Recorder, filled

from veen.cli.lake.where import condition_of
from veen.cli.shared.output import Exit
from veen.lake import tables
from veen.lake.log.keys import KeyFile


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


def test_a_query_says_whether_tables_or_the_log_have_answered(cli, places, log, tmp_path):
    to = tmp_path / "tables"
    tables.load(str(log), str(to), keys=KeyFile(str(tmp_path / "keys")), engine="python")
    question = ("--scope", STREAMS[0], "--subject", "svc")
    plain, planned = asked(cli, places, *question), asked(cli, places, *question, "--tables", to)
    assert planned["rows"] == plain["rows"]
    names = ("rows_hash", "evidence_hash", "coverage_hash", "row_count")
    assert [planned["result_digest"][name] for name in names] == [plain["result_digest"][name] for name in names]
    assert (plain["plan"]["source"], planned["plan"]["source"]) == ("log", "tables")
    shown = cli.run("query", "run", *places, *question, "--tables", to).stderr
    assert "answered from tables: 1 of" in shown.replace("\n", " ")
    assert cli.json("query", "verify", planned["result_digest"]["result_id"], *places)["ok"] is True
    (to / "manifests" / "latest").write_text("0")
    narrow = tmp_path / "narrow"
    (tmp_path / "one").write_text(KEYS[STREAMS[1]].to_text())
    tables.load(str(log), str(narrow), keys=KeyFile(str(tmp_path / "one")), engine="python")
    shown = cli.run("query", "run", *places, *question, "--tables", narrow).stderr
    assert "from the log: label" in shown
    assert "other keys" in shown


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


# --- conditions, order, limit and columns ---------------------------------------------------------------------------


def test_conditions_on_the_command_line_are_those_of_the_descriptor(cli, places):
    more = ("--where", "payload.where.rack in 0,1", "--where", "payload.amount>=20", "--where", "origin^=gw-")
    result = asked(
        cli, places, "--scope", "record/*", *more, "--field", "payload.amount", "--field", "payload.where.rack"
    )
    assert result["rows"]
    assert all(row["payload.amount"] >= 20 and row["payload.where.rack"] in (0, 1) for row in result["rows"])
    recorded = cli.json("query", "descriptor", result["result_digest"]["query_id"])
    assert recorded["filter"]["where"] == [
        {"field": "origin", "op": "^=", "value": "gw-"},
        {"field": "payload.amount", "op": ">=", "value": 20},
        {"field": "payload.where.rack", "op": "in", "value": [0, 1]},
    ]
    assert cli.json("query", "verify", result["result_digest"]["result_id"], *places)["ok"] is True


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("payload.level=error", ("payload.level", "=", "error")),
        ("payload.ms >= 100", ("payload.ms", ">=", 100)),
        ("payload.ms<-1.50", ("payload.ms", "<", Decimal("-1.5"))),
        ("payload.ok=true", ("payload.ok", "=", True)),
        ('payload.code="42"', ("payload.code", "=", "42")),
        ('payload.code in "42",true, x y ', ("payload.code", "in", ["42", True, "x y"])),
        ('payload.a in ["x,y",1]', ("payload.a", "in", ["x,y", 1])),
        ("payload.a=", ("payload.a", "=", "")),
        ("payload.a=b=c", ("payload.a", "=", "b=c")),
        ("payload.a^=12", ("payload.a", "^=", "12")),
        ("subject_id=42", ("subject_id", "=", "42")),
        ("payload.v=1.2.3", ("payload.v", "=", "1.2.3")),
        ("event_time>=1700000000", ("event_time", ">=", "2023-11-14T22:13:20Z")),
        ("hub_commit_time<2023-11-14T23:13:20+01:00", ("hub_commit_time", "<", "2023-11-14T22:13:20Z")),
        ("event_time^=2023-11", ("event_time", "^=", "2023-11")),
    ],
)
def test_a_condition_is_read_as_it_is_meant(text, condition):
    assert tuple(condition_of(text).values()) == condition


@pytest.mark.parametrize(
    "text",
    [
        "", "payload.a", "payload.a!=1", "payload.a==1", "=1", "payload.a in ", "payload.a ~ x", "payload.a=null",
        'payload.a="x', "payload.a=1e999", "payload.a in [1", "event_time>=soon", "nonsense=1", "payload.a like x",
    ],
)  # fmt: skip
def test_what_is_no_condition_is_refused(cli, places, text):
    cli.run("query", "run", *places, "--scope", STREAMS[0], "--where", text, code=Exit.USAGE)


def test_rows_come_in_the_order_of_the_fields_and_values_asked_for(cli, places):
    fields = ("--field", "subject_id", "--field", "payload.amount", "--field", "event_type")
    ordered = ("--order", "event_type desc", "--order", "subject_id", "--limit", "5")
    lines = cli.run("query", "run", *places, "--scope", "record/*", *fields, *ordered).stdout.splitlines()
    cells = [line.split("\t") for line in lines]
    assert len(cells) == 5
    assert {cell[2] for cell in cells} <= {"login", "logout", "read"}
    assert [cell[2] for cell in cells] == sorted((cell[2] for cell in cells), reverse=True)
    first_type = [cell[0] for cell in cells if cell[2] == cells[0][2]]
    assert first_type == sorted(first_type)
    cli.run("query", "run", *places, "--scope", "record/*", "--order", "subject_id", code=Exit.USAGE)
    cli.run("query", "run", *places, "--scope", "record/*", "--order", "a b c", "--limit", "1", code=Exit.USAGE)


def test_no_rows_among_other_bodies_says_what_to_do(cli, tmp_path):
    world = Recorder(tmp_path / "log")
    for _ in range(3):
        world.emit(schema=bytes(32), body=b'{"event":"login"}')
    world.done()
    place = ("--data-dir", tmp_path / "log", "--key-file", tmp_path / "keys")
    result = cli.run("query", "run", *place, "--scope", STREAMS[0])
    assert "0 rows: 3 entries are no recorder events" in result.stderr
    assert "veen recorder emit" in result.stderr


# --- SQL ------------------------------------------------------------------------------------------------------------


def test_sql_over_tables_is_answered_kept_and_compared(cli, log, tmp_path):
    tables.load(str(log), str(tmp_path / "tables"), keys=KeyFile(str(tmp_path / "keys")), engine="python")
    place = ("--tables", tmp_path / "tables")
    statement = (
        "SELECT origin, count(*) AS n FROM typed_sdr_event_v1 WHERE issue IS NULL GROUP BY origin ORDER BY origin"
    )
    result = cli.json("query", "sql", statement, *place)
    digest = result["sql_digest"]
    assert [row["origin"] for row in result["rows"]] == ["gw-1", "gw-2"]
    assert (digest["row_count"], digest["manifest_version"], digest["sql"]) == (2, 1, statement)
    assert cli.run("query", "sql", statement, *place).stdout.splitlines()[0].startswith("gw-1\t")
    again = cli.json("query", "sql", "--again", digest["result_id"], *place)
    assert again["ok"] is True
    (digest_file,) = (path for path in (tmp_path / "home").rglob(f"{digest['result_id']}.json"))
    digest_file.write_text(json.dumps(digest | {"rows_hash": "0" * 64}))
    failed = cli.run("query", "sql", "--again", digest["result_id"], *place, code=Exit.BAD_EVIDENCE)
    assert "rows_hash" in failed.stdout
    for bad in (("DROP TABLE x",), ("SELECT * FROM read_text('/etc/hostname')",), (), (statement, "--again", "r-1")):
        cli.run("query", "sql", *bad, *place, code=Exit.USAGE)
    cli.run("query", "sql", "--again", "r-1", *place, code=Exit.LOCAL)
    cli.run("query", "sql", "--again", "../x", *place, code=Exit.USAGE)


# --- results that somebody has changed (D-190) ------------------------------------------------


def forged(cli, result_id, old=b'"login"', new=b'"logon"'):
    """Change a row of a stored result without changing its length."""
    path = next(cli.root.rglob(f"{result_id}/rows.ndjson"))
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new, 1))


@pytest.mark.parametrize("mode", [(), ("--json",), ("--ndjson",), ("-o", "human")])
def test_forged_rows_are_not_printed(cli, places, mode):
    """What is printed is checked before it is printed."""
    result_id = asked(cli, places, "--scope", STREAMS[0], "--type", "login")["result_digest"]["result_id"]
    page = cli.json("query", "result", result_id)
    assert (page["ok"], page["verdict"]["value"]) == (True, "good")
    forged(cli, result_id)
    failed = cli.run("query", "result", result_id, *mode, code=Exit.BAD_EVIDENCE)
    assert "logon" not in failed.output
    assert "login" not in failed.output
    if mode == ("--json",):
        report = json.loads(failed.stdout)
        assert (report["ok"], report["verdict"]["value"], report["rows"]) == (False, "bad", [])


def test_forged_rows_are_not_verified(cli, places):
    """`query verify` read the digest alone."""
    result_id = asked(cli, places, "--scope", STREAMS[0], "--type", "login")["result_digest"]["result_id"]
    checked = cli.json("query", "verify", result_id, *places)
    assert (checked["ok"], checked["verdict"]["value"]) == (True, "good")
    assert all(row["read"] == row["head"] > 0 for row in checked["verdict"]["compared"])
    forged(cli, result_id)
    report = json.loads(cli.run("query", "verify", result_id, *places, "--json", code=Exit.BAD_EVIDENCE).stdout)
    assert (report["ok"], report["verdict"]["value"]) == (False, "bad")


def test_a_result_is_not_verified_by_a_directory_that_lacks_entries(cli, places, tmp_path):
    """D-181: exit 6 and the rows that say how far each label was read."""
    result_id = asked(cli, places, "--scope", STREAMS[0])["result_digest"]["result_id"]
    (tmp_path / "half").mkdir()
    short = filled(tmp_path / "half", 10).done()
    failed = cli.run(
        "query", "verify", result_id, "--data-dir", short, "--key-file", tmp_path / "keys", "--json", code=6
    )
    report = json.loads(failed.stdout)
    assert (report["ok"], report["verdict"]["value"]) == (False, "incomplete")
    assert any(row["behind"] for row in report["verdict"]["compared"])


# --- fields that no event has (walk A6) ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["payload.message*=root", "payload.a~=b", "payload.a!=b", "payload.a%=b", "payload.a|=b"]
)
def test_operators_of_other_languages_are_refused(cli, places, text):
    """walk A6: the character before = became a part of the name, and fitted nothing."""
    cli.run("query", "run", *places, "--scope", STREAMS[0], "--where", text, code=Exit.USAGE)


@pytest.mark.parametrize("more", [(), ("--evidence", "full"), ("--metric", "count")])
def test_a_misspelt_field_is_reported_and_proves_no_absence(cli, places, more):
    """walk A6: 0 rows with a coverage hash looked like a proof."""
    question = ("--scope", STREAMS[0], "--where", "payload.ampunt=3", *more)
    result = asked(cli, places, *question)
    assert result["unknown_fields"] == ["payload.ampunt"]
    assert "no event in scope has a field payload.ampunt" in cli.run("query", "run", *places, *question).stderr
    result_id = result["result_digest"]["result_id"]
    report = json.loads(cli.run("query", "verify", result_id, *places, "--json", code=6).stdout)
    assert report["verdict"]["value"] == "incomplete"
    assert "payload.ampunt" in report["verdict"]["reasons"][0]["text"]


@pytest.mark.parametrize("where", spread(["payload.amount=-77", "payload.tags=x", "payload.tags.1.k=9"], 1))
def test_a_field_that_some_event_has_is_not_reported(cli, places, where):
    """Lists and objects count: they are there, although nothing can equal them."""
    result = asked(cli, places, "--scope", "record/*", "--where", where)
    assert (result["rows"], result["unknown_fields"]) == ([], [])
    cli.run("query", "verify", result["result_digest"]["result_id"], *places)
