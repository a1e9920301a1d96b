"""Many messages at once: `veen send --lines`, NDJSON in and out, and scripts with one opening of the keystore."""

import json

import pytest
from tests.cli.hubprocess import running
from tests.cli.talk import DEV, Talk

from veen.cli.shared.output import Exit
from veen.client.identity import keystore as keystores
from veen.client.identity import unlocking

FULL = ("--set", "engine.min_free_bytes=9000000000000000")


def bodies(talk, stream):
    return [entry["body"] for entry in talk.entries(stream)]


def test_every_line_is_a_message_in_order(talk, tmp_path):
    stream = talk.new_stream("lines/file")
    (tmp_path / "app.log").write_bytes(b"one\r\n\ntwo\nthree without an end")
    result = talk.json("send", stream, "--lines", "--file", tmp_path / "app.log")
    assert [(row["line"], row["seq"], row["verified"]) for row in result["messages"]] == [
        (1, 1, True),
        (3, 2, True),
        (4, 3, True),
    ]
    assert (result["accepted"], result["failed"], result["first_seq"], result["last_seq"]) == (3, 0, 1, 3)
    assert bodies(talk, stream) == ["one", "two", "three without an end"]


def test_a_thousand_lines_go_out_in_batches_with_one_line_for_people(talk):
    stream = talk.new_stream("lines/many")
    text = "".join(f"line {number}\n" for number in range(1000))
    said = talk.run("send", stream, "--lines", "-o", "human", stdin=text.encode()).stdout
    assert said.startswith("accepted  1000 messages  seq 1 to 1000  receipts verified")
    assert said.count("\n") == 1
    assert talk.entries(stream, "--last", 1)[0]["body"] == "line 999"


def test_what_a_stream_prints_as_ndjson_can_be_sent_again(talk):
    source, copy = talk.new_stream("lines/source"), talk.new_stream("lines/copy")
    talk.json("send", source, "text", "--schema", "a.b.v1", "--expires", "2030-01-01T00:00:00Z")
    talk.run("send", source, "-", stdin=b"\xff\x00bytes")
    printed = talk.run("stream", source, "--ndjson").stdout
    rows = talk.run("send", copy, "--from-ndjson", "--ndjson", stdin=printed.encode()).stdout.splitlines()
    assert [json.loads(row)["seq"] for row in rows] == [1, 2]
    names = ("body", "body_hex", "schema", "expires_at")
    assert [[entry[name] for name in names] for entry in talk.entries(copy)] == [
        [entry[name] for name in names] for entry in talk.entries(source)
    ]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "not JSON"),
        ("[1]", "not a JSON object"),
        ("{}", "neither body nor body_hex"),
        ('{"body_hex":"zz"}', "neither body nor body_hex"),
        ('{"body":"x","parent_id":"12"}', "parent_id"),
        ('{"body":"x","expires_at":-1}', "expires_at"),
        ('{"body":"x","schema":7}', "schema"),
    ],
)
def test_a_line_that_is_no_message_is_named_and_what_stands_before_it_is_sent(talk, line, why):
    stream = talk.new_stream("lines/bad")
    seq = len(talk.entries(stream))
    result = talk.run("send", stream, "--from-ndjson", "--json", stdin=f'{{"body":"good"}}\n{line}\n', code=Exit.USAGE)
    assert json.loads(result.stdout)["accepted"] == 1
    error = json.loads(result.stderr)
    assert "line 2 of -" in error["message"]
    assert why in error["cause"]
    assert "--skip 1" in error["hint"]
    assert len(talk.entries(stream)) == seq + 1


def test_objects_as_bodies_are_sent_as_compact_json(talk):
    stream = talk.new_stream("lines/objects")
    talk.run("send", stream, "--from-ndjson", stdin=b'{"body": {"event": "login", "n": 1}}\n')
    assert bodies(talk, stream) == ['{"event":"login","n":1}']


def test_a_line_that_is_too_large_is_told_by_its_number_and_the_others_are_sent(talk):
    stream = talk.new_stream("lines/large")
    text = b"small\n" + b"x" * (2 * 1024 * 1024) + b"\nsmall again\n"
    result = talk.run("send", stream, "--lines", "--json", stdin=text, code=Exit.LOCAL)
    data = json.loads(result.stdout)
    assert [row["error"] and row["error"]["code"] for row in data["messages"]] == [None, "E.SIZE", None]
    assert json.loads(result.stderr)["cause"].startswith("line 2: ")
    assert bodies(talk, stream) == ["small", "small again"]


def test_a_hub_that_is_full_half_way_loses_and_doubles_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").write_text("a\nb\nc\n")
    with running(tmp_path / "hub", *DEV) as hub:
        port = hub.url.rpartition(":")[2]
        talk = Talk(tmp_path / "home", hub)
        stream = talk.new_stream("lines/full")
    line = ("send", stream, "--lines", "--file", tmp_path / "in", "--wait", 0)
    with running(tmp_path / "hub", *DEV, "--port", port, *FULL):
        result = talk.run(*line, "--json", code=Exit.REFUSED)
        error = json.loads(result.stderr)
        assert error["pending"] == 3
        assert "--skip 0" in error["hint"]
    with running(tmp_path / "hub", *DEV, "--port", port):
        assert talk.json(*line, "--skip", 0)["late"] == 3
        assert bodies(talk, stream) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "options",
    [
        ["--lines", "--from-ndjson"],
        ["--lines", "--body", "x"],
        ["--lines", "--attach", "in"],
        ["--lines", "--dry-run"],
        ["body", "--skip", "3"],
        ["body", "--lines"],
    ],
)
def test_options_that_do_not_go_together_are_a_usage_error(talk, tmp_path, options):
    (tmp_path / "in").write_text("x")
    talk.run("send", talk.new_stream("lines/usage"), *options, code=Exit.USAGE)


# --- scripts -----------------------------------------------------------------------------------------------------


@pytest.fixture
def openings(monkeypatch):
    count = []
    usual = keystores.open_identity

    def counted(*args, **kwargs):
        count.append(args[1])
        return usual(*args, **kwargs)

    for module in (keystores, unlocking):
        monkeypatch.setattr(module, "open_identity", counted)
    return count


def test_a_script_opens_the_keystore_once(talk, tmp_path, openings):
    stream = talk.new_stream("script/once")
    script = tmp_path / "nightly.veen"
    script.write_text(f"# three commands\nsend {stream} 'hello world'\n\nveen send {stream} two\nstream {stream}\n")
    del openings[:]
    said = talk.run("shell", script)
    assert openings == ["alice"]
    assert [line.split("\t")[3] for line in said.stdout.splitlines() if line.count("\t") == 3] == ["hello world", "two"]
    del openings[:]
    assert talk.run("--batch", script).exit_code == 0
    assert openings == ["alice"]


def test_a_script_opens_the_keystore_again_if_it_changed(talk, openings):
    stream = talk.new_stream("script/changed")
    del openings[:]
    talk.run("shell", stdin=f"send {stream} a\nid keyring new script/other\nsend script/other b\n".encode())
    assert 1 <= len(openings) <= 2
    assert bodies(talk, "script/other") == ["b"]


def test_a_script_ends_with_the_first_failure_unless_it_keeps_going(talk):
    script = b"version\nexplain E.NONE\nversion\n"
    ended = talk.run("shell", stdin=script, code=Exit.USAGE)
    assert ended.stdout.count("protocol") == 1
    assert "line 2 failed with exit code 2" in ended.stderr
    assert talk.run("shell", "--keep-going", stdin=script, code=Exit.USAGE).stdout.count("protocol") == 2


def test_every_command_of_a_script_prints_the_form_that_was_asked_for(talk):
    lines = talk.run("shell", "--ndjson", stdin=b"version\nconfig path\n").stdout.splitlines()
    assert "protocol" in json.loads(lines[0])
    assert len(lines) >= 2


@pytest.mark.parametrize("script", ["send x -", "shell other", "send 'x", "--batch f"])
def test_a_line_that_a_script_cannot_run_is_a_usage_error(talk, script):
    talk.run("shell", stdin=script.encode(), code=Exit.USAGE)


def test_a_script_that_is_no_text_or_not_there_is_a_usage_error(talk, tmp_path):
    (tmp_path / "noise").write_bytes(bytes(range(256)))
    talk.run("shell", tmp_path / "noise", code=Exit.USAGE)
    talk.run("--batch", tmp_path / "none", code=Exit.USAGE)
    talk.run("--batch", tmp_path / "noise", "version", code=Exit.USAGE)
