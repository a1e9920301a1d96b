"""What the program tells people to run is run: hints of errors, next commands, and every fix of the catalogue."""

import itertools
import re
import shlex

import click
import pytest
from tests.cli.homes import Cli
from tests.cli.hubprocess import veen
from tests.cli.talk import Talk
from tests.cli.test_app import ALL, NAMES
from tests.cli.tree import Missing, announced, command_lines, exists, parse
from tests.examples import spread

from veen.cli.app import COMMANDS, GUESSES, run_line
from veen.cli.shared.output import Exit
from veen.core.catalogue import catalogue

# They run until they are stopped, wait for somebody else, or take minutes: their help is shown instead.
LASTING = {
    *("hub start", "recorder agent", "rpc serve", "rpc call", "tail", "bridge copy", "bridge run", "agent start"),
    *(
        "console open",
        "console serve",
        "query serve",
        "witness run",
        "replica run",
        "monitor",
        "policy run",
        "disc serve",
        "disc watch",
    ),
    *(
        "selftest authority",
        "selftest bridge",
        "selftest core",
        "selftest federated",
        "selftest overlays",
        "selftest recorder",
    ),
}


class World(Talk):
    """A home with one of everything that a hint may ask for."""

    def __init__(self, root, hub, tmp_path):
        super().__init__(root, hub)
        self.numbers = itertools.count()
        self.tmp_path = tmp_path
        stream = self.new_stream("hints/stream")
        self.json("send", stream, "first", "--receipt", tmp_path / "receipt.cbor")
        self.json("cap", "issue", "--subject", "alice", "--stream", stream, "--ttl", "10m", "--out", tmp_path / "cap")
        self.json("hub", "clone", hub.data_dir, tmp_path / "copy")
        self.text = self.json("id", "keyring", "share", stream)["key"]
        self.values = {
            "STREAM": stream,
            "SEQ": "1",
            "FILE": tmp_path / "receipt.cbor",
            "TOKEN": tmp_path / "cap",
            "DIR": tmp_path / "copy",
            "SOURCE": tmp_path / "copy",
            "NAME": "dev",
            "URL": hub.url,
            "HEX": hub.about["hub_pk"].removeprefix("ed25519:"),
            "TEXT": self.text,
            "HOST": "127.0.0.1:1",
            "BODY": "text",
        }

    def filled(self, line):
        """A line with something real in the place of each word in capitals."""
        words = []
        for word in line:
            if word == "TARGET" and "clone" in line:
                word = str(self.tmp_path / f"target-{next(self.numbers)}")
            for name, value in self.values.items():
                word = re.sub(rf"(?<![A-Z_]){name}(?![A-Z_])", str(value), word)
            words.append(word)
        return words


@pytest.fixture(scope="module")
def world(hub, tmp_path_factory):
    root = tmp_path_factory.mktemp("hints")
    return World(root / "home", hub, root)


COMMAND = dict(ALL)


def sampled(cases, step):
    """All of them in the slow suite, some in the fast one."""
    return [pytest.param(*case, id=name, marks=[pytest.mark.slow] if number % step else [])
            for number, (name, case) in enumerate(cases)]  # fmt: skip


def fixes():
    lines = [
        line
        for row in catalogue().values()
        for text in (row.message, row.means, row.because, *row.fixes)
        for line in command_lines(text)
    ]
    return sorted({tuple(line) for line in lines})


def runnable(line):
    """The line, or the help of its command if it only names it or if it would go on for long."""
    name = next((" ".join(line[:count]) for count in (3, 2, 1) if " ".join(line[:count]) in NAMES), None)
    try:
        whole = not isinstance(parse(list(line)), Missing)
    except AssertionError:
        whole = False
    named_only = name == " ".join(line) and any(isinstance(p, click.Argument) for p in COMMAND[name].params)
    if name is None or name in LASTING or not whole or named_only:
        return [*line[: len((name or " ".join(line)).split())], "--help"]
    return list(line)


@pytest.mark.parametrize("line", spread(sampled([(" ".join(line), (line,)) for line in fixes()], 4), 20))
def test_every_fix_of_the_catalogue_can_be_run(world, line, monkeypatch):
    """It need not succeed here: it must be understood, and end in a result or in a named error."""
    if announced(line) and not exists(" ".join(line[:2])):
        pytest.skip("a command that is announced")
    monkeypatch.chdir(world.tmp_path)
    words = world.filled(runnable(line))
    if any(option in line for option in ("--overlay",)):
        words = [word if before != "--overlay" else "kv" for before, word in zip(["", *words], words, strict=False)]
    options = [] if "--help" in words else ["--no-input"]
    done = world.invoke(*words, *options)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert "E.BUG" not in done.output
    assert "No such option" not in done.output
    assert "unexpected extra argument" not in done.output
    assert "Missing" not in done.output
    assert done.exit_code in set(Exit)


def hint_of(result):
    """The commands in the hint of an error, or behind next:."""
    text = result.stderr
    for line in text.splitlines():
        label, _, rest = line.partition(":")
        if label in ("hint", "next"):
            yield from command_lines(rest.strip().partition("  (veen explain")[0])


def test_whoever_follows_the_hints_from_nothing_gets_a_verified_receipt(hub, tmp_path, monkeypatch, request):
    """Each hint is run as it is printed, with the names that a person would put in; then the command again."""
    monkeypatch.chdir(tmp_path)
    cli = Cli(tmp_path / "home")
    answers = {"NAME": "alice", "STREAM": "orders", "URL": hub.url, "HEX": hub.about["hub_pk"].removeprefix("ed25519:")}
    followed: list[str] = []
    command = ("send", "orders", "hello", "-o", "human", "--no-input")
    result = cli.invoke(*command)
    while result.exit_code and len(followed) < 6:
        line = next(line for line in hint_of(result) if "TEXT" not in line)  # nobody has given us a key
        words = [re.sub("NAME|STREAM|URL|HEX", lambda match: answers[match[0]], word) for word in line]
        if words[0] == "keygen":
            words.append("--insecure-plain-keystore")  # nobody is here to type a passphrase
        followed.append(" ".join(line))
        if words[:2] == ["hub", "start"]:  # a person has a second terminal
            started = veen(*words, "--detach", env=cli.env)
            assert started.returncode == 0, started.stderr
            request.addfinalizer(lambda: cli.run("hub", "stop"))
        else:
            cli.run(*words)
        result = cli.invoke(*command)
    assert result.exit_code == 0, (followed, result.output)
    assert "receipt verified" in result.stdout
    for line in hint_of(result):
        cli.run(*line)


def test_next_commands_are_run_as_they_are_printed(hub, tmp_path):
    world = World(tmp_path / "home", hub, tmp_path)  # its own: a fix of the catalogue changes the address of the hub
    stream = world.values["STREAM"]
    for line in (
        ["send", stream, "again"],
        ["attachment", "put", stream, world.values["FILE"]],
        ["receipt", "get", stream, "1", "--out", tmp_path / "r.cbor"],
        ["audit", "run", world.values["DIR"], "--engine", "python", "--out", tmp_path / "audit"],
    ):
        result = world.run(*line, "-o", "human")
        lines = list(hint_of(result))
        assert lines, line
        for words in lines:
            world.run(*(str(tmp_path / "out") if word == "DIRECTORY" else word for word in words))


@pytest.mark.parametrize(("name", "command"), sampled([(name, (name, command)) for name, command in ALL], 8))
def test_the_hint_of_a_usage_error_shows_help(name, command, capsys):
    assert run_line([*name.split(), "--no-such-option"]) == Exit.USAGE
    (hint,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("hint:")]
    assert run_line(shlex.split(hint.removeprefix("hint:"))[1:]) == Exit.OK
    assert capsys.readouterr().out.startswith(f"Usage: veen {name}")


@pytest.mark.parametrize("guess", spread(sorted(set(GUESSES) - set(COMMANDS)), 20))
def test_the_answer_to_a_guess_can_be_run(world, guess, monkeypatch):
    monkeypatch.chdir(world.tmp_path)
    done = world.invoke(*world.filled(runnable(shlex.split(GUESSES[guess][0])[1:])), "--no-input")
    assert "E.BUG" not in done.output
    assert "No such option" not in done.output or "--help" in done.output
