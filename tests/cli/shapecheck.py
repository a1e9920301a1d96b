"""Compare what commands print as JSON with their documented shapes, in every test that runs a command.

With VEEN_RECORD_SHAPES=DIRECTORY outputs are written there instead, for `tools/json_shapes.py`.
"""

import json
import os
import re
from pathlib import Path

import click

from veen.cli.app import cli
from veen.cli.shared.output import Mode, sniff_mode
from veen.cli.shared.shapes import ERROR, FOREIGN, shapes

RECORDING = os.environ.get("VEEN_RECORD_SHAPES")
_TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
}


def name_of(arguments):
    """The command of a command line; None if it names none."""
    context, path = click.Context(cli, info_name="veen"), []
    command: click.Command | None = cli
    for word in arguments:
        if not isinstance(command, click.Group):
            break
        if word.startswith("-"):
            return None
        command = command.get_command(context, word)
        if command is None:
            return None
        context = click.Context(command, info_name=word, parent=context)
        path.append(word)
    return None if isinstance(command, click.Group) else " ".join(path)


def departures(schema, value, where="$"):
    """How a value departs from a schema. A field that the schema does not name is a departure: it is not documented."""
    wanted = schema.get("type")
    if wanted is not None:
        names = [wanted] if isinstance(wanted, str) else wanted
        if not any(_is(name, value) for name in names):
            yield f"{where}: {type(value).__name__}, documented as {' or '.join(names)}"
            return
    if isinstance(value, str) and "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"{where}: {value[:80]!r} does not fit {schema['pattern']}"
    if isinstance(value, dict) and ("properties" in schema or "additionalProperties" in schema):
        properties, others = schema.get("properties", {}), schema.get("additionalProperties")
        for name in schema.get("required", ()):
            if name not in value:
                yield f"{where}.{name}: missing"
        for name, element in value.items():
            if name in properties:
                yield from departures(properties[name], element, f"{where}.{name}")
            elif isinstance(others, dict):
                yield from departures(others, element, f"{where}.*")
            else:
                yield f"{where}.{name}: not documented"
    if isinstance(value, list) and "items" in schema:
        for element in value:
            yield from departures(schema["items"], element, f"{where}[]")


def _is(name, value):
    if name == "integer":
        return type(value) is int
    if name == "number":
        return type(value) in (int, float)
    return isinstance(value, _TYPES[name])


def parsed(mode, text):
    """(is a line of many, value) for each JSON text; nothing for what is no JSON."""
    try:
        if mode is Mode.JSON:
            return [(False, json.loads(text))] if text.strip() else []
        return [(True, json.loads(line)) for line in text.splitlines()]
    except ValueError:
        return []


def check(arguments, code, stdout, stderr):
    """Compare one run of a command with its shape."""
    arguments = [str(argument) for argument in arguments]
    mode = sniff_mode(arguments)
    if mode not in (Mode.JSON, Mode.NDJSON) or {"--help", "--json-schema"} & set(arguments):
        return
    name = name_of(arguments)
    if name is None or name in FOREIGN:
        return
    values = parsed(mode, stdout)
    if RECORDING:
        _record(name, code, values)
        return
    if code:
        for line in stderr.splitlines()[-1:]:
            for _, error in parsed(Mode.NDJSON, line):
                if isinstance(error, dict) and "exit" in error:
                    problems = list(departures(ERROR, error))
                    assert not problems, f"veen {name}: {problems}"
    row = shapes().get(name)
    if row is None or "schema" not in row:
        assert not values, f"veen {name} prints JSON, and docs/json.md describes none: record it"
        return
    for is_line, value in values:
        problems = list(departures(row["schema"], value))
        if is_line and problems and row.get("lines"):
            element = row["schema"]["properties"].get(row["lines"], {}).get("items", {})
            problems = list(departures(element, value))
        # What is absent or null in a rare case is no new name: which cases a run meets may depend on time.
        problems = [
            problem for problem in problems if not problem.endswith(": missing") and ": NoneType," not in problem
        ]
        assert not problems, (
            f"veen {name} prints JSON that docs/json.md does not describe: {problems[:5]};"
            " record it: see `python tools/json_shapes.py --help`"
        )


def check_start(arguments, line):
    """Compare the line that a command prints on standard error when it is ready with its shape: what the line says."""
    name, value = name_of([str(argument) for argument in arguments]), json.loads(line)
    if RECORDING:
        _record(name, 0, [(False, value)], start=True)
    else:
        problems = list(departures(shapes()[name]["start"], value))
        assert not problems, f"veen {name} begins with JSON that docs/json.md does not describe: {problems}"
    return value


def _record(name, code, values, *, start=False):
    assert RECORDING is not None
    directory = Path(RECORDING)
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / f"{os.getpid()}.ndjson").open("a") as file:
        for is_line, value in values:
            row = {"command": name, "code": code, "line": is_line, "start": start, "value": value}
            file.write(json.dumps(row) + "\n")
