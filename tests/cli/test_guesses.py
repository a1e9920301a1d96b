"""What people type by habit of other tools, in groups and as options, and names that they mistype."""

import shlex

import click
import pytest
from tests.cli.homes import Cli
from tests.cli.tree import check_line, command_lines, commands, exists, groups
from tests.examples import spread

from veen.cli.app import GUESSES, cli, run_line
from veen.cli.guesses import GROUP_GUESSES, OPTION_GUESSES
from veen.cli.lazy import GuessedCommand
from veen.cli.shared.output import Exit
from veen.client.errors import UnknownStream
from veen.client.identity.keyring import Keyring, StreamKeys

GROUPS = dict(groups())
ALL = dict(commands())


@pytest.fixture
def here(tmp_path):
    return Cli(tmp_path / "home")


@pytest.fixture
def complaint(here, monkeypatch, capsys):
    """What the program says to a command line that cannot be used: its cause and its hint."""
    for name, value in here.env.items():
        monkeypatch.setenv(name, value)

    def typed(*line):
        assert run_line(line) == Exit.USAGE
        said = capsys.readouterr().err.splitlines()
        parts = {name: text.strip() for name, _, text in (row.partition(":") for row in said)}
        return parts["cause"], parts["hint"]

    return typed


@pytest.mark.parametrize(
    ("path", "word"), spread([(path, word) for path, words in GROUP_GUESSES.items() for word in words], 10)
)
def test_a_guess_in_a_group_is_answered_with_a_command_that_exists(complaint, path, word):
    command, what = GROUP_GUESSES[path][word]
    assert path in GROUPS
    assert word not in GROUPS[path].table, "the command exists by now"
    check_line(shlex.split(command)[1:])
    for line in command_lines(f"there is no command {word!r}; {command}: {what}"):
        if not exists(" ".join(line)):
            check_line(line)
    assert complaint(*path.split(), word)[1] == command


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("context ls", "veen context list"),
        ("context rm", "veen context remove"),
        ("contacts delete", "veen contacts remove"),
        ("id ls", "veen id list"),
        ("cap get", "veen cap show"),
        ("pending ls", "veen pending list"),
        ("pending show", "veen pending list"),
    ],
)
def test_words_for_list_show_and_remove_are_understood_in_every_group(complaint, typed, meant):
    assert complaint(*typed.split())[1] == meant


def test_a_verb_that_was_left_out_is_named(complaint):
    assert complaint("proof", "my stream", "3")[1] == "veen proof show 'my stream' 3"
    assert complaint("receipt", "orders", "3")[1] == "veen receipt get orders 3"
    assert complaint("proof", "orders")[1] == "veen proof --help"


def test_a_small_group_lists_its_commands(complaint):
    assert complaint("revoke", "bob")[0] == "there is no command 'bob'; there are publish, reader, writer"


def test_what_cannot_be_asked_for_is_said_with_the_way_that_fits(here, talk, tmp_path):
    """A code comes from a file, a new keystore may have no passphrase, and only one that exists is opened."""
    here.env["VEEN_PASSPHRASE_FILE"] = ""
    new = here.json("keygen", "--name", "bob", code=Exit.LOCAL)["hint"]
    assert "--insecure-plain-keystore" in new
    assert "veen agent" not in new
    here.keygen("bob")
    stream = talk.new_stream("guesses/invite")
    talk.run("invite", stream, "--code", "--out", tmp_path / "invite")
    assert "--code @FILE" in here.json("join", tmp_path / "invite", code=Exit.LOCAL)["hint"]
    again = talk.json("invite", stream, "--code", "--out", tmp_path / "invite", code=Exit.LOCAL)
    assert "another name" in again["hint"]


def test_a_message_without_attachments_says_so(talk):
    stream = talk.new_stream("guesses/attachments")
    talk.say(stream, "nothing attached")
    assert "has no attachments" in talk.run("attachment", "get", stream, 1).stderr


@pytest.mark.parametrize("word", ["serve", "ls", "get", "logs", "count", "delete", "users", "subscribe", "ui", "sql"])
def test_words_of_other_tools_have_an_answer(word):
    with pytest.raises(GuessedCommand) as caught:
        cli.resolve_command(click.Context(cli, info_name="veen"), [word])
    assert caught.value.hint == GUESSES[word][0]


@pytest.mark.parametrize("option", spread(OPTION_GUESSES, 10))
def test_every_option_that_is_guessed_leads_to_one_that_some_command_has(option):
    options = {name for command in ALL.values() for parameter in command.params for name in parameter.opts}
    assert set(OPTION_GUESSES[option]) <= options


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("stream orders --limit 5", "--last"),
        ("stream orders --after -1h", "--since"),
        ("send orders x --token t", "--token-file"),
        ("hub status --url http://x", "--hub"),
        ("keygen --password secret", "--passphrase-file"),
    ],
)
def test_an_option_of_other_tools_leads_to_ours(complaint, line, option):
    command = next(
        f"veen {' '.join(line.split()[:count])}" for count in (2, 1) if " ".join(line.split()[:count]) in ALL
    )
    assert complaint(*line.split())[1] == f"use {option}; {command} --help"


def test_hints_name_the_command_that_was_typed_also_where_an_option_lacks_its_value(complaint):
    assert complaint("tail", "orders", "-n")[1] == "veen tail --help"
    assert complaint("hub", "key", "show", "--hub")[1] == "veen hub key show --help"


def test_without_a_stream_the_way_to_ones_streams_is_named(complaint):
    for line in (["stream"], ["send"], ["proof", "show"], ["kv", "list"]):
        assert complaint(*line)[1].endswith("veen keys list"), line


def test_a_stream_in_the_place_of_a_file_is_explained(complaint):
    assert "veen stream STREAM" in complaint("verify", "orders")[1]
    assert complaint("verify", "orders.cbor")[1] == "veen verify --help"


def test_the_choices_of_an_argument_are_listed_in_one_line(complaint):
    assert "Choose from: bash, zsh, fish" in complaint("completion")[0]


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("stream orders --since 1h", "do you mean -1h, that long ago?"),
        ("context add x --hub localhost:8080", "do you mean http://localhost:8080 or https://localhost:8080?"),
    ],
)
def test_what_was_left_out_of_a_value_is_named(here, line, meant):
    assert meant in here.invoke(*line.split()).stderr


def test_a_range_of_evidence_is_given_as_that_of_a_stream(talk, tmp_path):
    stream = talk.new_stream("guesses/range")
    talk.say(stream, "one", "two", "three")
    out = ("--out", tmp_path / "evidence")
    assert talk.json("evidence", "export", stream, "--range", "2..3", *out)["entry_count"] == 2
    assert talk.json("evidence", "export", stream, "--range", "2", "--force", *out)["entry_count"] == 1
    assert [entry["seq"] for entry in talk.entries(stream, "--range", 2)] == [2]
    talk.run("evidence", "export", stream, "--range", "2..3", "--to", 3, *out, code=Exit.USAGE)


def test_words_behind_docs_lead_to_its_search(complaint):
    assert "veen docs --search" in complaint("docs", "search", "retention")[1]


# --- mistyped names of streams -----------------------------------------------------------------------------------


def keyring(*names):
    return Keyring.of(StreamKeys.create(name) for name in names)


def test_a_mistyped_stream_is_answered_with_the_names_that_are_near():
    ring = keyring("orders", "orders/eu", "audit")
    with pytest.raises(UnknownStream) as caught:
        ring.for_stream("oders")
    assert caught.value.near == ("orders",)
    assert caught.value.hint.startswith("Did you mean 'orders'? If others use")
    with pytest.raises(UnknownStream) as caught:
        ring.for_stream("payments")
    assert caught.value.near == ()
    assert caught.value.hint.startswith("If others use")


def test_the_search_for_near_names_is_bounded():
    ring = keyring("orders")
    with pytest.raises(UnknownStream):
        ring.for_stream("o" * 400)


# --- against a hub --------------------------------------------------------------------------------------------------


def test_following_to_an_entry_that_is_there_already_ends_with_the_command_that_reads_it(talk):
    stream = talk.new_stream("guesses/follow")
    talk.say(stream, "one", "two")
    refused = talk.run("stream", stream, "--follow", "--to", 1, code=Exit.USAGE)
    assert f"veen stream {stream} --to 1" in refused.stderr
    assert [entry["seq"] for entry in talk.entries(stream, "--to", 1)] == [1]
    talk.run("tail", stream, "--to", 2, code=Exit.USAGE)


def test_a_command_in_a_note_can_be_typed_as_it_is_printed(talk):
    talk.run("config", "set", "context.dev.make_keys", "true")
    noted = talk.run("send", "my stream", "hello").stderr
    assert "veen invite 'my stream' --code" in noted
    assert talk.json("invite", "my stream", "--code", "--out", talk.root / "invite")["streams"] == ["my stream"]


def test_the_log_of_the_dev_hub_is_the_default(here, tmp_path, monkeypatch):
    monkeypatch.setenv("VEEN_HOME", str(here.root))
    directory = here.root / "dev-hub"
    directory.mkdir(parents=True)
    (here.root / "dev-hub.log").write_text('{"ts":"t","level":"info","operation":"submit"}\n')
    assert here.json("hub", "log")["lines"][0]["operation"] == "submit"
