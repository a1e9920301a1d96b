"""`veen recorder` as people and scripts use it, against a hub of its own."""

import json

import pytest
from tests.cli.homes import Cli
from tests.cli.hubprocess import running


@pytest.fixture
def cli(tmp_path):
    return Cli(tmp_path / "home")


def init(cli, hub, *options, code=0):
    return cli.json(
        "recorder", "init", "--producer", "web=record/app/web", "--insecure-plain-keystore", "--hub", hub.url,
        "--pin", hub.about["hub_pk"], *options, code=code,
    )  # fmt: skip


def emit(cli, hub, *words, identity="web", **more):
    return cli.json(
        "recorder", "emit", *words, "--identity", identity, "--hub", hub.url, "--pin", hub.about["hub_pk"], **more
    )


def test_init_makes_roles_and_emit_returns_with_a_receipt(cli, tmp_path):
    with running(tmp_path / "hub") as hub:
        about = init(cli, hub)
        assert about["producers"]["web"]["streams"] == ["record/app/web"]
        assert about["written"]
        assert init(cli, hub)["written"] == []
        done = emit(cli, hub, "record/app/web", "--type", "login", "--subject", "alice", '{"ip":"10.0.0.7"}')
        assert done["recorded"] == 1
        assert done["receipt"]
        lines = "\n".join(json.dumps({"user": f"u{n}", "event": "tick", "n": n}) for n in range(300)) + "\nno JSON\n"
        done = emit(cli, hub, "record/app/web", "-", "--subject", ".user|nobody", "--type", ".event|log", stdin=lines)
        assert (done["lines"], done["recorded"], done["faults"]) == (301, 301, [])
        assert (done["first_seq"], done["last_seq"]) == (2, 302)


@pytest.mark.req("SDR-05")
def test_a_hub_that_does_not_trust_the_admin_is_named_with_what_to_do(cli, tmp_path):
    with running(tmp_path / "hub", "--set", "engine.workers=0", "--port", "0") as hub:
        refusal = init(cli, hub, code=4)
        assert refusal["code"] == "SDR.ISSUER"
        assert "admission.trusted_issuers" in refusal["hint"]
    issuer = cli.json("id", "show", "--identity", "recorder-admin")["id_sign_pk"]
    trusted = f"admission.trusted_issuers={issuer}"
    with running(tmp_path / "hub", "--set", "engine.workers=0", "--port", "0", "--set", trusted) as hub:
        assert init(cli, hub)["capability_gating"] is True
        assert emit(cli, hub, "record/app/web", "--type", "a", "--subject", "b")["recorded"] == 1


def admin(cli, hub, *words, code=0):
    at = ("--identity", "recorder-admin", "--hub", hub.url, "--pin", hub.about["hub_pk"])
    return cli.json("recorder", *words, *at, code=code)


@pytest.mark.req("SDR-04", "SDR-07", "SDR-08", "SDR-10")
def test_the_commands_of_the_admin_agree_with_each_other(cli, tmp_path):
    with running(tmp_path / "hub") as hub:
        init(cli, hub, "--every-events", "3")
        at = ("--identity", "web", "--hub", hub.url, "--pin", hub.about["hub_pk"])
        lines = "".join(json.dumps({"user": f"u{n}", "event": "tick", "n": n}) + "\n" for n in range(6))
        log = tmp_path / "app.log"
        log.write_text(lines)
        source = ("--source", f"file:{log}", "--stream", "record/app/web", "--once")
        done = cli.json("recorder", "agent", *source, "--subject", ".user", "--type", ".event", *at)
        assert (done["sent"], done["waiting"], done["lost"]) == (8, 0, 0)
        assert cli.json("recorder", "agent", *source, *at)["sent"] == 10  # a start and a stop, and no line again

        status = admin(cli, hub, "status")
        assert status["checkpoint"] is None
        assert status["checkpoint_due"] is True
        written = admin(cli, hub, "checkpoint", "--if-due")
        assert written["written"] is True
        assert admin(cli, hub, "checkpoint", "--if-due")["written"] is False
        assert admin(cli, hub, "status")["checkpoint"]["log_root"] == written["log_root"]

        rows = admin(cli, hub, "replay", "--stream", "record/app/web", "--from", "2", "--to", "4")["rows"]
        assert [row["payload"]["n"] for row in rows[:-1]] == [1, 2, 3]
        assert rows[-1]["trailer"]["rows"] == 3
        whole = admin(cli, hub, "replay", "--since", "-1h")["rows"]
        streams = {row["stream"] for row in whole[:-1]}
        assert {"record/app/web", "record/infrastructure/recorder"} <= streams
        assert len(whole[-1]["trailer"]["coverage"]) == len({row["stream"] for row in whole[:-1]})
        ocsf = admin(cli, hub, "replay", "--stream", "record/app/web", "--from", "1", "--to", "2", "--ocsf")["rows"]
        assert ocsf[0]["record_integrity"]["attestation_list"][0]["chain_uid"] == rows[0]["label"]

        report = tmp_path / "report.json"
        assert admin(cli, hub, "verify", "--report", str(report))["ok"] is True
        report_data = json.loads(report.read_text())
        assert report_data["findings"] == []
        assert report_data["verdict"]["value"] == "good"
        (web,) = (row for row in report_data["verdict"]["compared"] if row["log"] == "record/app/web")
        assert (web["read"], web["head"], web["stated_by"]) == (6, 6, "the running hub")
        assert report_data["signatures"] >= 2 * 6  # walk A16
        mapped = admin(cli, hub, "map", "tick", "record/security/gate", "--reason", "moved")
        assert {"event_type": "tick", "stream": "record/security/gate"} in mapped["mapping"]
        admin(cli, hub, "map", "tick", "record/app/web", "--rename", "record/security/gate")
        refused = emit(cli, hub, "record/app/web", "--type", "unmapped", "--subject", "x", code=4)
        assert [fault["code"] for fault in refused["faults"]] == ["SDR.MAPPING"]
        assert admin(cli, hub, "verify")["ok"] is True


def test_checkpoints_by_the_next_key_of_the_admin_follow_those_of_the_first(cli, tmp_path):
    """Messages about keys among the checkpoints are no findings, and a replay says what they are."""
    with running(tmp_path / "hub") as hub:
        init(cli, hub)
        emit(cli, hub, "record/app/web", "--type", "tick", "--subject", "x")
        admin(cli, hub, "checkpoint")
        for name in ("recorder-admin", "web"):
            cli.run("id", "rotate", name)
        emit(cli, hub, "record/app/web", "--type", "tick", "--subject", "y")
        admin(cli, hub, "checkpoint")
        report = admin(cli, hub, "verify")
        assert (report["ok"], report["findings"]) == (True, [])
        rows = admin(cli, hub, "replay", "--stream", "record/app/web", "--since", "-1h")["rows"]
        assert [row["event_type"] for row in rows[:-1]] == ["tick", None, "tick"]
        assert "speaks for" in rows[1]["about_keys"]


def test_verify_at_a_hub_that_has_nothing_of_the_recorder_is_incomplete(cli, tmp_path):
    """It said ok, with exit code 0."""
    with running(tmp_path / "hub") as hub:
        init(cli, hub)
    with running(tmp_path / "other") as hub:
        answer = admin(cli, hub, "verify", code=6)
        assert (answer["ok"], answer["verdict"]["value"]) == (False, "incomplete")
        assert {row["stated_by"] for row in answer["verdict"]["compared"]} == {"nobody"}
        at = ("--identity", "recorder-admin", "--hub", hub.url, "--pin", hub.about["hub_pk"])
        assert "verdict: incomplete" in cli.run("recorder", "verify", *at, code=6).stdout


def test_an_agent_without_its_hub_keeps_what_it_read_and_says_so(cli, tmp_path):
    with running(tmp_path / "hub") as hub:
        init(cli, hub)
        pin = hub.about["hub_pk"]
    log, settings = tmp_path / "app.log", tmp_path / "agent.toml"
    log.write_text("one\ntwo\n")
    settings.write_text(
        f'[agent]\ndrain = 1\n[[source]]\nid = "a"\nkind = "file"\nstream = "record/app/web"\npath = "{log}"\n'
        "follow = false\n"
    )
    words = ("recorder", "agent", "--config", settings, "--identity", "web", "--pin", pin)
    done = cli.run(*words, "--hub", "http://127.0.0.1:9", "--json", "--wait", "0", code=6)
    assert json.loads(done.stdout)["waiting"] == 4
    assert json.loads(done.stderr.splitlines()[-1])["code"] == "SDR.WAITING"
    with running(tmp_path / "hub") as hub:
        done = cli.json(*words, "--hub", hub.url)
        assert (done["waiting"], done["sent"]) == (0, 6)
        rows = admin(cli, hub, "replay", "--stream", "record/app/web", "--since", "0")["rows"]
        assert [row["payload"]["message"] for row in rows[:-1]] == ["one", "two"]


def test_events_that_an_agent_recorded_are_queried_by_members_of_their_payload(cli, tmp_path):
    pytest.importorskip("pyarrow")  # of the extra spark
    with running(tmp_path / "hub") as hub:
        init(cli, hub)
        lines = "".join(
            json.dumps({"user": f"u{n % 2}", "event": "sale", "shop": "a" if n % 3 else "b", "price": 0.1 * n}) + "\n"
            for n in range(9)
        )
        emit(cli, hub, "record/app/web", "-", "--subject", ".user", "--type", ".event", stdin=lines)
        hub.stop()  # then everything is in its files
        answer = cli.json(
            "query", "run", "--data-dir", hub.data_dir, "--scope", "record/app/*", "--type", "sale", "--group-by",
            "payload.shop", "--metric", "count", "--evidence", "full", "--identity", "recorder-admin",
        )  # fmt: skip
    assert answer["rows"], answer
    counts = {row["payload.shop"]: row["count"] for row in answer["rows"]}
    assert counts == {"a": 6, "b": 3}


def test_queries_sql_and_tables_take_a_hub_in_the_place_of_a_directory(cli, tmp_path):
    """The newest entries included: each command asks the running hub again."""
    with running(tmp_path / "hub") as hub:
        init(cli, hub)
        at = ("--identity", "recorder-admin", "--hub", hub.url, "--pin", hub.about["hub_pk"])
        names = ("rows_hash", "coverage_hash", "evidence_hash", "row_count", "hub_id")
        tables, asked = tmp_path / "tables", {}
        question = ("--scope", "record/app/web", "--field", "payload.n", "--field", "subject_id")
        for number in range(3):
            emit(cli, hub, "record/app/web", "--type", "login", "--subject", f"user-{number}", f'{{"n":{number}}}')
            asked = cli.json("query", "run", *question, *at)
            assert [row["payload.n"] for row in asked["rows"]] == list(range(number + 1))
            here = cli.json("query", "run", *question, "--data-dir", hub.data_dir, "--identity", "recorder-admin")
            assert [here["result_digest"][name] for name in names] == [asked["result_digest"][name] for name in names]
            statement = "SELECT count(*) AS n FROM typed_sdr_event_v1"
            assert cli.json("query", "sql", statement, "--tables", tables, "--refresh", *at)["rows"] == [
                {"n": number + 1}
            ]
        loaded = cli.json("table", "load", tables, "--engine", "python", *at)
        assert loaded["entries"] == 0  # the statement has loaded them
        planned = cli.json("query", "run", *question, "--tables", tables, *at)
        assert planned["plan"]["source"] == "tables"
        assert planned["rows"] == asked["rows"]
        proven = cli.json("query", "run", *question, "--evidence", "full", *at)
        assert proven["result_digest"]["row_count"] == 3
        copy = next((tmp_path / "home").rglob("copies/*/log"))
        assert cli.json("query", "verify", asked["result_digest"]["result_id"], "--data-dir", copy.parent, *at[:2])[
            "ok"
        ]
    assert cli.run("query", "run", *question, *at, code=3).stdout == ""
    cli.env.pop("VEEN_HUB", None)
    assert "--hub" in cli.run("query", "run", *question, "--identity", "recorder-admin", code=2).stderr
