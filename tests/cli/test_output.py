"""How commands speak: forms, colour, records, safe text, progress."""

import builtins
import json
import os
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.terminal import in_terminal

from veen.cli.shared import output as output_module
from veen.cli.shared.output import Exit, Fail, Mode, Output, output_options, report, sniff_mode
from veen.cli.shared.text import block, cell, compact, cut, pretty, safe, width_of

ENTRIES = [{"seq": 1, "body": "hello"}, {"seq": 2, "body": "tab\there"}]


@click.command()
@click.option("--fail-after", type=int)
@click.option("--error")
@output_options
def sample(output, fail_after, error):
    """A command of the usual shape."""
    if error == "fail":
        raise Fail("E.SEQ", "no", "because", "do this", stage="commit", request_id="r-1")
    if error:
        raise getattr(builtins, error)("x")
    with output.records("entries", ("seq", "body"), (4, 8)) as records:
        for number, entry in enumerate(ENTRIES):
            if fail_after == number:
                raise Fail("E.NET", "gone", "the hub went away", "again")
            records.add(entry, (entry["seq"], entry["body"]))
        records.summary({"upto": 2})
    output.note("a note")


def run(*args, env=None):
    return CliRunner().invoke(sample, args, env={"VEEN_FORCE_TTY": "", "NO_COLOR": "", **(env or {})})


def test_records_in_every_form_hold_the_same_data():
    assert json.loads(run("--json").stdout) == {"entries": ENTRIES, "upto": 2}
    assert [json.loads(line) for line in run("--ndjson").stdout.splitlines()] == ENTRIES
    assert run("-o", "plain").stdout == "1\thello\n2\ttab\\there\n"
    assert run("-o", "human").stdout == "seq   body\n1     hello\n2     tab\\there\n"


def test_a_pipe_gets_the_plain_form_and_a_forced_terminal_the_human_one():
    assert run().stdout == run("-o", "plain").stdout
    assert click.unstyle(run(env={"VEEN_FORCE_TTY": "1"}).stdout) == run("-o", "human").stdout


def test_one_json_object_is_whole_also_when_the_command_fails_half_way():
    result = run("--json", "--fail-after", "1")
    assert json.loads(result.stdout) == {"entries": ENTRIES[:1]}
    assert json.loads(result.stderr)["code"] == "E.NET"
    assert result.exit_code == Exit.NETWORK
    assert json.loads(run("--json", "--fail-after", "0").stdout) == {"entries": []}


def test_notes_go_to_stderr_and_quiet_drops_them():
    assert run().stderr == "note:  a note\n"
    assert run("--quiet").stderr == ""
    assert run("--json").stderr == ""


def test_an_error_under_json_mirrors_the_envelope_of_the_protocol():
    result = run("--json", "--error", "fail")
    assert result.exit_code == Exit.REFUSED
    assert json.loads(result.stderr) == {
        "code": "E.SEQ",
        "stage": "commit",
        "message": "no",
        "cause": "because",
        "hint": "do this",
        "request_id": "r-1",
        "exit": 4,
    }


def test_an_error_for_people_has_three_parts_and_names_the_code():
    assert run("--error", "fail").stderr == (
        "error: no\ncause: because\nhint:  do this  (veen explain E.SEQ)\nnote:  request_id r-1\n"
    )


@pytest.mark.parametrize("kind", ["ValueError", "KeyError", "RecursionError", "MemoryError", "ZeroDivisionError"])
def test_what_nobody_foresaw_is_told_as_a_defect_not_as_a_traceback(kind):
    result = run("--error", kind)
    assert result.exit_code == Exit.LOCAL
    assert "Traceback" not in result.stderr
    assert "E.BUG" in result.stderr
    assert "Traceback" in run("--error", kind, env={"VEEN_DEBUG": "1"}).stderr


# --- colour ----------------------------------------------------------------------------------------------------


def coloured(*args, **env):
    return "\x1b[" in CliRunner().invoke(sample, args, env=env, color=True).output


def test_colour_obeys_the_conventions_and_json_never_has_any():
    human = ("-o", "human")
    assert not coloured(*human)  # a pipe
    assert coloured(*human, CLICOLOR_FORCE="1")
    assert not coloured(*human, CLICOLOR_FORCE="0")
    assert not coloured(*human, CLICOLOR_FORCE="1", NO_COLOR="1")
    assert coloured(*human, VEEN_FORCE_TTY="1")
    assert not coloured(*human, VEEN_FORCE_TTY="1", TERM="dumb")
    assert coloured("--error", "fail", CLICOLOR_FORCE="1")
    for form in ("--json", "--ndjson"):
        assert not coloured(form, CLICOLOR_FORCE="1", VEEN_FORCE_TTY="1")
        assert not coloured(form, "--error", "fail", CLICOLOR_FORCE="1", VEEN_FORCE_TTY="1")


# --- text ------------------------------------------------------------------------------------------------------


@given(st.text())
def test_text_from_outside_can_neither_steer_a_terminal_nor_break_a_table(text):
    for shown in (safe(text), cell(text), cell([text]), cell({text: text})):
        assert "\n" not in shown
        assert "\t" not in shown
        assert "\x1b" not in shown
        assert not {unicodedata.category(character) for character in shown} & {"Cc", "Cf", "Cs", "Zl", "Zp"}


@given(
    st.recursive(
        st.text() | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_json_is_harmless_on_a_terminal_and_says_the_same(value):
    for text in (compact(value), pretty(value)):
        assert json.loads(text) == value
        assert not {unicodedata.category(character) for character in text.replace("\n", "")} & {"Cc", "Cf", "Cs"}


def test_escapes_that_would_rewrite_the_screen_are_spelled_out():
    assert safe("ok\x1b[1A\x1b[2KFAILED") == "ok\\x1b[1A\\x1b[2KFAILED"
    assert safe("\u202eevil") == "\\u202eevil"
    assert safe("naïve – …") == "naïve – …"
    assert safe("a\nb", keep="\n") == "a\nb"
    assert safe("\udcff") == "\\udcff"


def test_long_messages_wrap_with_a_hanging_indent_and_keep_words_whole():
    digest = "a" * 64
    text = block("cause", f"the root is {digest} and that is not what was expected at all", 60)
    assert digest in text
    assert all(line.startswith("       ") for line in text.splitlines()[1:])
    assert "\n" not in block("cause", f"the root is {digest}", None)


def test_the_form_is_known_even_if_the_line_cannot_be_parsed():
    assert sniff_mode(["x", "--json"]) is Mode.JSON
    assert sniff_mode(["x", "-o", "ndjson"]) is Mode.NDJSON
    assert sniff_mode(["x", "-ojson"]) is Mode.JSON
    assert sniff_mode(["x", "json"]) is None
    assert sniff_mode([]) is None


# --- terminals ---------------------------------------------------------------------------------------------------

SLOW = """
import sys, time
from veen.cli.shared.output import Mode, Output
with Output(Mode.PLAIN, quiet="quiet" in sys.argv).progress("reading") as progress:
    progress("chunk 3")
    input() if sys.argv[1] == "read" else time.sleep(float(sys.argv[1]))
print("done")
"""


def test_progress_appears_on_a_terminal_after_a_second_and_vanishes():
    _, screen = in_terminal(program=[sys.executable, "-c", SLOW, "read"], answers=[("chunk 3", "")])
    assert "reading…" in screen
    assert "chunk 3" in screen
    assert screen.rstrip().endswith("\r\x1b[Kdone")


def test_progress_is_silent_when_it_is_quick_quiet_or_nobody_watches():
    _, quick = in_terminal(program=[sys.executable, "-c", SLOW, "0"])
    assert quick.strip() == "done"
    _, quiet = in_terminal(program=[sys.executable, "-c", SLOW, "1.5", "quiet"])
    assert quiet.strip() == "done"
    piped = subprocess.run(
        [sys.executable, "-c", SLOW, "1.5"], capture_output=True, check=True, env={**os.environ, "VEEN_FORCE_TTY": "1"}
    )
    assert piped.stderr == b""


def test_a_terminal_gets_aligned_fields():
    code, screen = in_terminal("version")
    assert code == Exit.OK
    assert screen.splitlines()[0].startswith("  veen      ")


def test_a_report_on_a_terminal_wraps_to_its_width(monkeypatch, capsys):
    monkeypatch.setenv("VEEN_FORCE_TTY", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "50")
    report(Output(Mode.HUMAN), Fail("E.LOCAL", "what", "word " * 30, "hint"))
    lines = capsys.readouterr().err.splitlines()
    assert max(map(len, lines)) <= 50
    assert len(lines) > 4


# Where a command writes by itself: its own text, or JSON and cells that were made harmless before.
_WRITERS = {
    "app.py",  # help and usage
    "completion.py",  # a script of ours
    "output.py",
    "query.py",  # canonical JSON through `harmless`
    "records.py",
    "spark.py",  # a banner
    "stream.py",  # cells in a format that the user wrote
    "topics.py",  # help
}


def test_commands_write_through_the_output_which_spells_out_what_steers_a_terminal():
    sources = Path(output_module.__file__).parent.glob("*.py")
    writers = {path.name for path in sources if re.search(r"\bclick\.(s?echo|echo_via_pager)\(", path.read_text())}
    assert writers <= _WRITERS, sorted(writers - _WRITERS)


def test_names_of_fields_and_lines_of_text_are_spelled_out(capsys):
    output = Output(Mode.PLAIN)
    output.fields([("\x1b[31m", "\x07")])
    output.text("a\x1b[2J\nb\n")
    output.line("\u202e")
    output.document({"\x9b": "\x1b"})
    output.say("\x1b")
    shown = capsys.readouterr()
    assert not any(mark in shown.out + shown.err for mark in "\x1b\x07\x9b\u202e")
    assert "a\\x1b[2J\nb\n" in shown.out


# --- tables --------------------------------------------------------------------------------------------------------


def test_columns_are_as_wide_as_a_terminal_shows_their_cells(capsys):
    """East Asian characters fill two columns, combining marks none: counted by len the table would not align."""
    output = Output(Mode.HUMAN)
    output.table(("name", "n"), [("日本", 1), ("e\u0301tude", 2), ("plain ascii", 3)])
    lines = capsys.readouterr().out.splitlines()
    assert {width_of(line[: line.rindex(" ")]) for line in lines} == {width_of("plain ascii") + 1}


def test_records_get_columns_that_fit_their_first_rows(capsys):
    output = Output(Mode.HUMAN)
    with output.records("rows", ("a", "b", "c")) as records:
        records.add({}, ("x" * 20, "1", "end"))
        records.add({}, ("y", "22", "end"))
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.index("b") == rows[0].index("1") == rows[1].index("22") == 22
    assert head.index("c") == rows[0].index("end") == rows[1].index("end")


def test_one_very_long_cell_does_not_widen_the_whole_table(capsys):
    output = Output(Mode.HUMAN)
    with output.records("rows", ("a", "b")) as records:
        records.add({}, ("x" * 500, "1"))
        records.add({}, ("y", "2"))
    long, short_row = capsys.readouterr().out.splitlines()[1:]
    assert "x" * 500 in long
    assert len(short_row) < 60


def test_a_live_table_shows_every_row_at_once(capsys):
    output = Output(Mode.HUMAN)
    with output.records("rows", ("a",), live=True) as records:
        records.add({}, ("first",))
        assert "first" in capsys.readouterr().out


@given(st.text(max_size=200), st.integers(24, 80))
def test_what_is_cut_fits_and_says_how_much_is_missing(text, width):
    shown = cut(cell(text), width)
    assert width_of(shown) <= width
    whole = cell(text)
    if shown != whole:
        visible, _, note = shown.rpartition("… (+")
        assert whole.startswith(visible)
        assert int(note.split()[0]) == len(whole) - len(visible)


def test_long_bodies_are_cut_on_a_terminal_and_nowhere_else(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "60")
    for forced, is_cut in (("1", True), ("", False)):
        monkeypatch.setenv("VEEN_FORCE_TTY", forced)
        output = Output(Mode.HUMAN)
        with output.records("rows", ("n", "body"), whole=False) as records:
            records.add({}, (1, "long " * 100))
        assert records.is_cut is is_cut
        row = capsys.readouterr().out.splitlines()[-1]
        assert (width_of(row) <= 60) is is_cut
    monkeypatch.setenv("VEEN_FORCE_TTY", "1")
    with Output(Mode.PLAIN).records("rows", ("n", "body"), whole=False) as records:
        records.add({}, (1, "long " * 100))
    assert "(+" not in capsys.readouterr().out


def test_a_check_that_held_is_green_and_one_that_failed_is_red(monkeypatch, capsys):
    monkeypatch.setenv("CLICOLOR_FORCE", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    output = Output(Mode.PLAIN)
    assert output.style("verified", "good") == "\x1b[32mverified\x1b[0m"
    monkeypatch.setattr(click, "echo", lambda text, **_: print(text))  # click strips colours where no terminal is
    output.line("receipt verified here", good="receipt verified")
    output.line("it FAILED", bad="FAILED")
    output.line("nothing of the kind", good="verified", bad="FAILED")
    assert capsys.readouterr().out.splitlines() == [
        "\x1b[32mreceipt verified\x1b[0m here",
        "it \x1b[31m\x1b[1mFAILED\x1b[0m",
        "nothing of the kind",
    ]
    monkeypatch.setenv("NO_COLOR", "1")
    output.line("receipt verified here", good="receipt verified")
    assert capsys.readouterr().out == "receipt verified here\n"


MIXED = """
import time
from veen.cli.shared import output as module
from veen.cli.shared.output import Mode, Output

def wait():
    while not module._SCREEN.is_drawn:
        time.sleep(0.01)

output = Output(Mode.PLAIN)
with output.progress("playing") as progress:
    wait()
    output.line("2/8  keys")
    wait()
print("done")
"""


def screen_of(stream):
    """What a terminal shows in the end, as far as carriage returns and the erasing of a line go."""
    lines = [""]
    for part in re.split(r"(\r\n|\n|\r\x1b\[K|\r)", stream):
        if part in ("\n", "\r\n"):
            lines.append("")
        elif part.startswith("\r"):
            lines[-1] = ""
        else:
            lines[-1] += part
    return [line for line in lines if line]


def test_what_is_printed_during_progress_does_not_mix_with_its_line():
    """`playing… 2 s2/8 keys` was on the screen of the demo for good."""
    _, screen = in_terminal(program=[sys.executable, "-c", MIXED])
    assert screen.count("playing…") >= 2
    assert screen_of(screen) == ["2/8  keys", "done"]
