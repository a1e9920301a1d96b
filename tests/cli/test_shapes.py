"""The documented shapes of JSON: printed by --json-schema, kept in docs/json.md, and compared with every output."""

import importlib.util
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]  # it has no types
from tests.cases import every
from tests.cli import shapecheck
from tests.cli.homes import Cli
from tests.cli.test_app import ALL, NAMES
from tests.cli.test_hints import LASTING

from veen.cli.app import cli
from veen.cli.shared.shapes import ERROR, FOREIGN, schema_of, shapes

ROOT = Path(__file__).parents[2]
SHAPED = sorted(set(shapes()) & set(NAMES))


def tool():
    spec = importlib.util.spec_from_file_location("json_shapes", ROOT / "tools/json_shapes.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_page_is_made_from_the_shapes():
    assert (ROOT / "docs/json.md").read_text("utf-8") == tool().page(), "run python tools/json_shapes.py"


def test_every_command_has_a_recorded_shape_or_a_reason_why_it_has_none():
    """A new command is run with --json by a test and recorded: `python tools/json_shapes.py --help`."""
    assert set(NAMES) - set(shapes()) == set(FOREIGN)
    assert set(shapes()) <= set(NAMES), "a command that is gone"
    assert len(FOREIGN) <= 2
    page = (ROOT / "docs/json.md").read_text("utf-8")
    for name, reason in FOREIGN.items():
        assert f"| `veen {name}` | {reason} |" in page
        assert schema_of(name)["description"] == reason


def test_a_shape_says_something():
    """Of each command the members of its object are recorded, or those of the line that it prints when it is ready."""
    for name, row in shapes().items():
        assert row["version"] >= 1, name
        for part in (row[part] for part in ("schema", "start") if part in row):
            assert part["type"] == "object", name
        assert "schema" in row or "start" in row, name


@pytest.mark.parametrize("name", sorted(set(LASTING) & {name for name, row in shapes().items() if "start" in row}))
def test_the_line_of_a_start_is_documented_where_it_is_printed(name):
    schema = schema_of(name)
    start = schema.get("x-start", schema)
    assert "standard error" in start["description"]
    assert "notice" in start["properties"]


@every(NAMES)
def test_every_schema_is_json_schema_with_a_version(name):
    schema = schema_of(name)
    Draft202012Validator.check_schema(schema)
    assert schema["$id"].startswith("veen:json:")
    assert schema["$id"].rpartition(":")[2].isdecimal()


def test_the_schema_is_printed_and_nothing_else_is_done(tmp_path):
    home = Cli(tmp_path / "home")
    printed = json.loads(home.run("send", "--json-schema").stdout)
    assert printed == schema_of("send")
    assert printed["properties"]["seq"]["description"] == "the position in the log, from 1"
    assert printed["properties"]["receipt"]["properties"]["hub_sig"]["pattern"] == "^[0-9a-f]{128}$"
    assert printed["x-ndjson"] == "one line for each element of messages"
    assert list(tmp_path.iterdir()) == []


def test_every_command_takes_the_option():
    for name, command in ALL:
        assert any("--json-schema" in parameter.opts for parameter in command.params), name


def test_keys_of_hubs_are_written_one_way():
    """`hub_pk` is `ed25519:HEX` in every shape that has it."""

    def kinds(schema):
        for name, part in schema.get("properties", {}).items():
            if name in ("hub_pk", "source_hub_pk") and "pattern" in part:
                yield part["pattern"]
            yield from kinds(part)
            yield from kinds(part.get("items", {}))

    # The hubs of the predecessor have their own form, and a descriptor is shown as it was published.
    for name in set(SHAPED) - {"vesn verify", "disc list"}:
        assert set(kinds(shapes()[name].get("schema", {}))) <= {"^ed25519:[0-9a-f]{64}$"}, name


def names_in(value):
    if isinstance(value, dict):
        yield from value
    for element in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from names_in(element)


def test_what_people_see_has_the_names_of_the_json(talk):
    """Commands that print names and values: `hub status`, `receipt get`, `context show`."""
    stream = talk.new_stream("shapes/names")
    talk.say(stream, "one")
    lines = ["hub status", "hub health", "hub admission", "hub limits", "context show dev", "id show", "agent status",
             f"receipt get {stream} 1", f"checkpoint show {stream}", f"label derive {stream}", "pow request",
             f"send {stream} two", "version", "schema id a.v1", "config show"]  # fmt: skip
    for line in lines:
        names = set(names_in(talk.json(*line.split())))
        rows = [row.split("\t") for row in talk.run(*line.split()).stdout.splitlines()]
        shown = {row[0] for row in rows if len(row) == 2}
        assert shown <= names, (line, shown - names)


@pytest.mark.parametrize(
    "error",
    [["explain", "NONE"], ["verify", "no-such-file"], ["context", "use", "none"], ["send", "x", "y", "--no-input"]],
)
def test_errors_have_the_documented_shape(tmp_path, error):
    result = Cli(tmp_path / "home").invoke(*error, "--json")
    lines = [line for line in result.stderr.splitlines() if line.startswith("{")]
    for line in lines:
        assert list(shapecheck.departures(ERROR, json.loads(line))) == []


def test_the_comparison_of_this_suite_is_strict():
    """Without this the hook in every other test would prove nothing."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"]}
    assert list(shapecheck.departures(schema, {"a": 1, "b": "x"})) == []
    wrong: list[object] = [{}, {"a": "1"}, {"a": True}, {"a": 1, "c": 2}, [], {"a": 1, "b": None}]
    for value in wrong:
        assert list(shapecheck.departures(schema, value)), value
    assert shapecheck.name_of(["id", "keyring", "list", "--json"]) == "id keyring list"
    if not shapecheck.RECORDING:
        with pytest.raises(AssertionError, match="does not describe"):
            shapecheck.check(["version", "--json"], 0, '{"veen": 1, "surprise": 2}', "")


def test_the_hook_sees_what_commands_print(monkeypatch):
    lines = []
    monkeypatch.setattr(shapecheck, "check", lambda args, *_: lines.append(args))
    CliRunner().invoke(cli, ["version", "--json"])
    assert lines == [["version", "--json"]]
