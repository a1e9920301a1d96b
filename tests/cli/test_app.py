"""The command tree as a whole: every command speaks JSON, help is cheap, errors have three parts, nothing crashes."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from tests.cases import every
from tests.cli.homes import Cli
from tests.cli.interrupts import interruptible
from tests.cli.tree import COMING, check_line, command_lines, commands, example_lines, exists, groups, signature
from tests.examples import spread

from veen import native
from veen.cli.app import COMMANDS, GUESSES, SECTIONS, cli
from veen.cli.directories import DIR_ARGUMENT
from veen.cli.examples import EXAMPLES
from veen.cli.lazy import GuessedCommand
from veen.cli.shared.options import keep_former
from veen.cli.shared.output import Exit

ALL = list(commands())
NAMES = [name for name, _ in ALL]
GROUPS = list(groups())


def veen(*args: str, stdin: bytes = b"", env: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "veen", *args],
        input=stdin,
        capture_output=True,
        check=False,
        env={**os.environ, **(env or {})},
    )


@every(ALL, lambda row: row[0])
def test_every_command_takes_the_options_of_output(row):
    _, command = row
    options = {option for parameter in command.params for option in parameter.opts}
    assert {"--json", "--ndjson", "--output", "--quiet", "--no-input"} <= options


@every(ALL, lambda row: row[0])
def test_every_command_has_its_name_and_help(row):
    """The table repeats the help so that listing imports nothing; the command itself must exist under its name."""
    name, command = row
    assert command.name == name.split()[-1]
    assert command.help
    assert command.callback is not None


RECORDED = Path(__file__).with_name("commands.txt").read_text("utf-8").splitlines()
SIGNATURES = {name: signature(name, command).removeprefix(name).split() for name, command in ALL}


def test_commands_keep_the_arguments_and_options_that_they_had():
    """`commands.txt` is what scripts rely on: a new option adds a word to its line, and no word goes away."""
    for line in RECORDED:
        name = max((name for name in NAMES if f"{line} ".startswith(f"{name} ")), key=len, default=None)
        assert name is not None, f"there is no command of this line any more: {line}"
        words = line.removeprefix(name).split()
        arguments = [word for word in SIGNATURES[name] if not word.startswith("-")]
        assert [word for word in words if not word.startswith("-")] == arguments, line
        assert set(words) <= set(SIGNATURES[name]), line
    assert len(RECORDED) == len(NAMES), "a new command gets a line: tests.cli.tree.signature"


@every([*ALL, *GROUPS], lambda row: row[0])
def test_help_names_no_decision_by_its_number(row):
    """People who read help do not have the list of decisions at hand."""
    _, command = row
    texts = [command.help or "", *(getattr(parameter, "help", None) or "" for parameter in command.params)]
    assert not re.search(r"\bD-\d", "\n".join(texts))


@every(ALL, lambda row: row[0])
def test_every_example_in_a_help_text_parses(row):
    """What stands in help is copied into terminals."""
    name, command = row
    for line in command_lines(command.help or ""):
        check_line(line)
    for line in example_lines(name, command):
        check_line(line)


@every(ALL, lambda row: row[0])
def test_every_command_shows_an_example_of_itself(row):
    """In its docstring, or in `veen.cli.examples`."""
    name, command = row
    lines = list(example_lines(name, command))
    assert any(line[: len(name.split())] == name.split() for line in lines), f"no example in veen {name} --help"


def test_examples_are_of_commands_that_exist_and_are_shown_in_their_help():
    assert set(EXAMPLES) <= set(NAMES)
    shown = Cli("unused").invoke("id", "keyring", "share", "--help").output
    assert "Examples:" in shown
    assert "veen id keyring share orders --read --out orders.veen-key" in shown


@pytest.mark.parametrize("guess", spread(sorted(GUESSES), 24))
def test_a_guess_is_answered_with_a_command_that_exists(guess):
    """Names of other tools: `status`, `export`, `login`. Where a command has the name by now, it is the answer."""
    command, _ = GUESSES[guess]
    check_line(shlex.split(command)[1:])
    if guess in COMMANDS:
        return
    with pytest.raises(GuessedCommand) as caught:
        cli.resolve_command(click.Context(cli, info_name="veen"), [guess])
    assert caught.value.hint == command
    for line in command_lines(caught.value.format_message()):
        if not exists(" ".join(line)):
            check_line(line)


def test_a_guess_is_answered_on_the_command_line_with_exit_code_two():
    done = veen("status")
    assert done.returncode == Exit.USAGE
    assert done.stderr.decode().splitlines()[2] == "hint:  veen hub status"


DIRECTORY_COMMANDS = [name for name, command in ALL if any(p.name == DIR_ARGUMENT for p in command.params)]


def test_commands_about_a_directory_take_it_behind_their_name():
    assert {"hub status", "hub stop", "hub start", "hub retention show", "hub key rotate", "query run"} <= set(
        DIRECTORY_COMMANDS
    )
    for name, command in ALL:
        options = {option for parameter in command.params for option in parameter.opts}
        if "--data-dir" in options:
            assert any(isinstance(parameter, click.Argument) for parameter in command.params), name


def test_a_directory_is_given_once(tmp_path):
    cli_at = Cli(tmp_path / "home")
    missing = tmp_path / "no-such-directory"
    for line in (["hub", "key", "show", missing], ["hub", "key", "show", "--data-dir", missing]):
        assert cli_at.json(*line, code=Exit.LOCAL)["message"].startswith(str(missing))
    twice = cli_at.invoke("hub", "key", "show", missing, "--data-dir", missing)
    assert twice.exit_code == Exit.USAGE
    assert "give the directory once" in twice.output
    assert cli_at.invoke("hub", "reload").exit_code == Exit.USAGE


@every(ALL, lambda row: row[0])
def test_options_have_help_and_short_names_are_few(row):
    _, command = row
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help or parameter.hidden, parameter.name
            short = {option for option in parameter.opts if not option.startswith("--")}
            assert short <= {"-o", "-q", "-v", "-c", "-n", "-f"}


@pytest.mark.parametrize(("name", "group"), spread(GROUPS, 20), ids=[name or "veen" for name, _ in GROUPS])
def test_a_group_lists_only_commands_that_exist(name, group):
    context = click.Context(group)
    for command, (target, text) in group.table.items():
        assert text.endswith((".", "?"))
        assert group.get_command(context, command) is not None, target


def test_every_command_has_one_section_of_the_help():
    listed = [name for _, names in SECTIONS for name in names]
    assert len(listed) == len(set(listed))
    assert set(COMMANDS) <= set(listed)


# --- cost ----------------------------------------------------------------------------------------------------


LOADED = """
import sys
before = set(sys.modules)
from veen.cli import main
sys.argv = ["veen", *{arguments!r}]
try:
    main()
except SystemExit:
    pass
print(sorted(set(sys.modules) - before))
"""
LIGHT = {
    "app", "guesses", "lazy", "shared", "shared.log_lines", "shared.output", "shared.text",
}  # fmt: skip
HEAVY = {
    "asyncio", "cbor2", "email", "http", "httpx2", "logging", "multiprocessing", "nacl", "pyspark", "sqlite3", "ssl",
    "subprocess", "tempfile", "tomllib", "yaml",
}  # fmt: skip


def loaded(*arguments: str, env: dict[str, str] | None = None) -> set[str]:
    code = LOADED.format(arguments=arguments)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True, env={**os.environ, **(env or {})}
    )
    return set(json.loads(done.stdout.splitlines()[-1].replace("'", '"')))


def test_help_loads_the_frame_and_nothing_else():
    """An allow-list: the 150 ms of CPU that help may cost are click's own, and stay so."""
    modules = loaded("--help")
    ours = {name for name in modules if name.split(".")[0] == "veen"}
    programs = {"veen.io", "veen.io.core_files"}  # what every program does before it reads its command line
    assert ours - programs == {"veen", "veen._moved", "veen.cli"} | {f"veen.cli.{name}" for name in LIGHT}
    foreign = {name.split(".")[0] for name in modules} - set(sys.stdlib_module_names) - {"veen"}
    assert foreign == {"click"}
    assert not HEAVY & modules


COMPLETED = """
import sys
from veen.cli.app import cli
from click.shell_completion import BashComplete
for name in sys.argv[1:]:  # in one process: what all of them together do not load, none of them loads
    items = BashComplete(cli, {}, "veen", "_VEEN_COMPLETE").get_completions(name.split(), "--")
    assert "--json" in [item.value for item in items]
    print(name, *{"asyncio", "httpx2", "nacl", "pyspark"} & set(sys.modules), sep="|")
"""


def test_completing_the_options_of_a_command_loads_nothing_heavy():
    done = subprocess.run([sys.executable, "-c", COMPLETED, *NAMES], capture_output=True, check=True, text=True)
    assert done.stdout.splitlines() == NAMES, "import what is heavy inside the command"


# --- errors --------------------------------------------------------------------------------------------------


def test_a_usage_error_says_what_why_and_what_next():
    done = veen("verify")
    assert done.returncode == Exit.USAGE
    assert done.stdout == b""
    lines = done.stderr.decode().splitlines()
    assert [line.split(":")[0] for line in lines] == ["error", "cause", "hint"]
    assert "Missing argument" in lines[1]
    assert veen(*lines[2].removeprefix("hint:").split()[1:]).returncode == Exit.OK  # the hint is a command that works


def test_an_unknown_command_is_a_usage_error_in_json_too():
    for form in (["--json"], ["--ndjson"], ["-o", "json"], ["--output=ndjson"]):
        done = veen("frobnicate", *form)
        assert done.returncode == Exit.USAGE
        error = json.loads(done.stderr)
        assert error["exit"] == Exit.USAGE
        assert set(error) == {"code", "stage", "message", "cause", "hint", "request_id", "exit"}


def test_a_slip_of_the_fingers_is_answered_with_what_was_meant():
    assert b"Did you mean veen hub?" in veen("hbu").stderr
    assert b"Did you mean veen hub start or" in veen("hub", "strat").stderr


def test_veen_alone_shows_help_and_a_group_alone_is_a_usage_error():
    assert veen().returncode == Exit.OK
    assert b"Start:" in veen().stdout
    alone = veen("hub")
    assert alone.returncode == Exit.USAGE
    assert alone.stdout == b""
    assert b"verify-data" in alone.stderr


@pytest.mark.parametrize(("name", "command"), spread(ALL, 60), ids=NAMES)
def test_nonsense_ends_no_command_in_a_traceback(name, command, tmp_path, monkeypatch):
    """Files that are none, names that are none, control characters: an answer with an exit code, never a crash."""
    monkeypatch.chdir(tmp_path)
    noise = tmp_path / "noise"
    noise.write_bytes(bytes(range(256)))
    arguments = [str(noise) for parameter in command.params if isinstance(parameter, click.Argument)]
    # Without arguments these would do their work.
    nonsense = {"hub start": ["--config"], "spark shell": ["--conf"], "agent start": ["--for"]}
    nonsense |= {suite: ["--context"] for suite in NAMES if suite.startswith("selftest ")}
    arguments = [*nonsense[name], str(noise)] if name in nonsense else arguments
    if any(parameter.name == "engine" for parameter in command.params):
        arguments += ["--engine", "python"]  # no Spark session for what is nonsense anyway
    done = Cli(tmp_path / "home").invoke(*name.split(), *arguments, "--no-input", "--json")
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert "E.BUG" not in done.stderr
    assert done.exit_code in set(Exit)
    if done.exit_code and done.stderr and not done.stderr.startswith("Usage"):  # click's own words: `main` has ours
        assert json.loads(done.stderr.splitlines()[-1])["exit"] == done.exit_code


def test_version_in_every_form():
    assert json.loads(veen("version", "--json").stdout)["protocol"] == "v0.0.1"
    assert json.loads(veen("version", "--json").stdout)["signatures"] == native.LOADED.what
    assert json.loads(veen("version", "--ndjson").stdout) == json.loads(veen("version", "-o", "json").stdout)
    assert veen("version", "--ndjson").stdout.count(b"\n") == 1
    assert veen("version").stdout.splitlines()[0].startswith(b"veen\t")
    assert veen("version", "-o", "human").stdout.startswith(b"  veen ")
    assert veen("--version").returncode == Exit.OK
    assert veen("version", "--json", "-o", "plain").returncode == Exit.USAGE


def test_a_closed_pipe_ends_quietly():
    with subprocess.Popen(
        [sys.executable, "-m", "veen", "explain"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == Exit.OK


def test_an_interrupt_is_told_and_has_its_own_exit_code(tmp_path):
    (tmp_path / "body").write_bytes(b"x")
    with subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "veen", "pow", "solve", tmp_path / "body", "--difficulty", "64"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=interruptible,
    ) as process:
        assert process.stderr is not None
        while b"veen.core.pow" not in process.stderr.readline():  # which the command itself imports: it has begun
            pass
        process.send_signal(signal.SIGINT)
        errors = process.stderr.read()
    assert process.returncode == Exit.INTERRUPTED
    assert errors.splitlines()[-3:] == [
        b"error: interrupted",
        b"cause: it was stopped before it finished",
        b"hint:  run it again  (veen explain E.INTERRUPTED)",
    ]


def test_a_terminal_without_unicode_gets_escapes():
    done = veen("help", "formats", env={"PYTHONIOENCODING": "latin-1"})
    assert done.returncode == Exit.OK
    assert b"veen1\\u2026" in done.stdout


def test_the_tree_is_one_object_for_both_programs():
    assert cli.name == "cli"
    assert set(cli.list_commands(click.Context(cli))) == set(COMMANDS)


@pytest.mark.parametrize("name", sorted(COMING))
def test_what_is_announced_does_not_exist_yet(name):
    """Once it does, take it off the list: from then on its lines must parse."""
    assert not exists(name), f"take {name!r} off COMING in tests/cli/tree.py"


RENAMED = {
    "audit diff": {"--identity": "--hub-identity"},
    "audit run": {"--identity": "--hub-identity", "--policy": "--witness-policy", "--since": "--earlier"},
    "evidence export": {"--force": "--replace"},
    "fold run": {"--since": "--earlier"},
    "query run": {"--from": "--since", "--to": "--until"},
    "verify": {"--policy": "--witness-policy"},
}


def test_a_renamed_option_keeps_its_former_name_which_help_does_not_show():
    """Decision 550: scripts may have the former name; both at once contradict each other."""
    renamed = {
        name: {
            parameter.opts[0]: next(
                other.opts[0] for other in command.params if other.name == parameter.name.removeprefix("former_")
            )
            for parameter in command.params
            if parameter.name.startswith("former_")
        }
        for name, command in ALL
    }
    assert {name: pairs for name, pairs in renamed.items() if pairs} == RENAMED
    for name, command in ALL:
        hidden = [parameter for parameter in command.params if parameter.name.startswith("former_")]
        assert all(parameter.hidden for parameter in hidden), name


def test_a_former_name_means_what_the_present_one_means():
    @click.command()
    @keep_former("--witness-policy", "policy", former="--policy", type=int, help="A number.")
    @keep_former("--replace", "force", former="--force", is_flag=True, help="A flag.")
    def command(policy, force):
        click.echo(f"{policy} {force}")

    def output(*args):
        return CliRunner().invoke(command, args)

    assert output().output == "None False\n"
    assert (
        output("--witness-policy", "3", "--replace").output == output("--policy", "3", "--force").output == "3 True\n"
    )
    both = output("--policy", "3", "--witness-policy", "4")
    assert both.exit_code == Exit.USAGE
    assert "--policy is the former name of --witness-policy" in both.output
    assert "--policy " not in output("--help").output
