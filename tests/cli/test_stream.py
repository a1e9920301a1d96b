"""`veen stream` and `veen tail`: verified, then opened, then shown without steering the terminal."""

import json
import os
import signal
import subprocess
import sys

import pytest
from tests.cli.interrupts import interruptible

from veen.cli.shared.output import Exit
from veen.core.objects.receipt import Receipt
from veen.core.tree.proof import MmrProof


@pytest.fixture(scope="module")
def bodies():
    return ["one", "two", "drei ü", "four\tand a tab", "\x1b[31mfive"]


@pytest.fixture
def stream(talk, bodies, request):
    name = talk.new_stream(f"stream/{request.node.name[:60]}")
    talk.say(name, *bodies)
    return name


@pytest.mark.req("CLNT-02", "CLNT-03")
def test_a_range_is_read_verified_and_opened(talk, stream, bodies):
    assert [entry["body"] for entry in talk.entries(stream)] == bodies
    for line in (["--from", 2, "--to", 3], ["--range", "2..3"], ["--range", "2..3", "--sealed"]):
        assert [entry["seq"] for entry in talk.entries(stream, *line)] == [2, 3]
    assert [entry["body"] for entry in talk.entries(stream, "--to", 2, "--sealed")] == [None, None]
    assert [entry["seq"] for entry in talk.entries(stream, "--last", 2)] == [4, 5]
    assert [entry["seq"] for entry in talk.entries(stream, "--last", 2, "--grep", "o")] == [2, 4]
    assert [entry["seq"] for entry in talk.entries(stream, "--from", 0, "--to", 1)] == [1]
    assert talk.entries(stream, "--since", "2020-01-01", "--until", "-1d") == []
    assert len(talk.entries(stream, "--since", "-1h")) == 5


@pytest.mark.req("CLNT-02")
@pytest.mark.parametrize("flag", ["--with-proofs", "--with-proof"])
def test_every_entry_brings_a_proof_that_holds_by_itself(talk, stream, flag):
    for entry in talk.entries(stream, flag):
        receipt, proof = Receipt.from_json(list(entry["receipt"].values())), MmrProof.from_json(entry["proof"])
        proof.verify(leaf_hash=receipt.leaf_hash, stream_seq=entry["seq"], expected_root=receipt.mmr_root)
    assert "hashes to" in talk.run("stream", stream, flag, "-o", "human").stdout


def test_the_forms_of_output_carry_the_same_entries(talk, stream, bodies):
    whole = talk.json("stream", stream)
    assert [entry["body"] for entry in whole["entries"]] == bodies
    assert whole["entries"] == talk.entries(stream)
    rows = talk.lines("stream", stream)
    assert [row[0] for row in rows] == ["1", "2", "3", "4", "5"]
    assert rows[0][2] == talk.me["name"]
    assert whole["entries"][0]["client_id"] == talk.me["client_id"]
    assert talk.run("stream", stream, "-o", "human").stdout.splitlines()[0].split() == ["seq", "time", "author", "body"]


def test_bodies_cannot_steer_the_terminal_or_forge_columns(talk, stream):
    for form in ("human", "plain"):
        shown = talk.run("stream", stream, "-o", form).stdout
        assert "\x1b" not in shown
        assert "four\\tand a tab" in shown
        assert "\\x1b[31mfive" in shown
    assert "\x1b" not in talk.run("stream", stream, "--format", "{seq} {body}").stdout


def test_a_format_names_fields_and_nothing_else(talk, stream):
    assert talk.run("stream", stream, "--to", 2, "--format", "{seq}\\t{body}").stdout == "1\tone\n2\ttwo\n"
    for bad in ("{seq.__class__}", "{0}", "{}", "{nope}", "{seq", "{seq!r}", "{seq:>9}"):
        talk.run("stream", stream, "--format", bad, code=Exit.USAGE)


def test_a_body_that_is_no_text_is_hex(talk, tmp_path):
    stream = talk.new_stream("stream/binary")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    talk.json("send", stream, "--file", tmp_path / "binary")
    (entry,) = talk.entries(stream)
    assert (entry["body"], entry["body_hex"]) == (None, "fffe")
    assert talk.lines("stream", stream)[0][-1] == "hex:fffe"


def test_entries_that_no_key_opens_are_shown_with_the_reason(talk):
    """Whoever has another key for a stream of the same name sees the entries, verified and closed."""
    stream = talk.new_stream("stream/other-key")
    talk.say(stream, "for another")
    talk.run("id", "keyring", "remove", stream, "--yes")
    talk.new_stream(stream)
    (entry,) = talk.entries(stream)
    assert entry["body"] is None
    assert entry["error"].startswith("E.OPEN")
    assert "[E.OPEN" in talk.run("stream", stream).stdout


def test_an_empty_stream_has_no_entries(talk):
    stream = talk.new_stream("stream/empty")
    assert talk.json("stream", stream) == {"entries": []}
    assert talk.run("stream", stream, "-o", "plain").stdout == ""
    assert talk.json("stream", stream, "--last", 3) == {"entries": []}


def test_the_spelling_of_the_specification_reads(talk, stream, hub):
    """001 spec-4 §7."""
    line = ["stream", "--hub", hub.url, "--client", talk.root, "--stream", stream, "--from", 0]
    assert len(talk.json(*line)["entries"]) == 5


def test_a_writer_without_the_read_key_gets_a_name_for_it(talk, stream):
    talk.let_write("bob", stream)
    talk.json("send", stream, "from bob", "--identity", "bob")
    failed = talk.run("stream", stream, "--identity", "bob", "--json", code=Exit.LOCAL)
    assert json.loads(failed.stderr)["code"] == "E.LOCAL.READER"
    assert json.loads(failed.stdout) == {"entries": []}
    assert len(talk.json("stream", stream, "--identity", "bob", "--sealed")["entries"]) == 6


def test_tail_shows_what_comes_and_ends_where_it_is_told(talk, stream):
    for line in (["tail", stream, "-n", 2], ["stream", stream, "--follow", "--from", 4]):
        lines = talk.run(*line, "--to", 5, "--ndjson").stdout.splitlines()
        assert [json.loads(entry)["seq"] for entry in lines] == [4, 5]
        assert [entry["seq"] for entry in talk.json(*line, "--to", 5)["entries"]] == [4, 5]


@pytest.mark.slow
def test_tail_delivers_while_others_write(talk, stream):
    """A process of its own, which sees a message that is written after it began."""
    talk.let_write("bob", stream)
    command = [sys.executable, "-m", "veen", "tail", stream, "--from", "5", "--to", "6", "--ndjson", "--identity"]
    with subprocess.Popen([*command, "alice"], stdout=subprocess.PIPE, env={**os.environ, **talk.env}) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["seq"] == 5
        talk.json("send", stream, "live", "--identity", "bob")
        assert json.loads(process.stdout.readline())["body"] == "live"
    assert process.returncode == Exit.OK


def test_ctrl_c_ends_a_tail_with_130_and_the_next_command_goes_on(talk, stream):
    command = [sys.executable, "-m", "veen", "tail", stream, "--from", "5", "--ndjson"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **talk.env},
        preexec_fn=interruptible,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["seq"] == 5
        process.send_signal(signal.SIGINT)
        errors = process.stderr.read().decode()
    assert process.returncode == Exit.INTERRUPTED
    assert "Traceback" not in errors
    assert json.loads(errors)["exit"] == Exit.INTERRUPTED
    assert talk.json("send", stream, "after")["client_seq"] == 6


@pytest.mark.parametrize(
    "line",
    [
        ["--range", "2..1"],
        ["--range", ".."],
        ["--range", "1..2", "--from", "1"],
        ["--from", "1", "--last", "1"],
        ["--since", "yesterday"],
        ["--follow", "--since", "-1h"],
        ["--stream", "other"],
    ],
)
def test_a_range_that_cannot_be_meant_is_a_usage_error(talk, line):
    talk.run("stream", "x", *line, code=Exit.USAGE)
