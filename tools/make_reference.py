"""Writes docs/reference from the code: commands from their help, errors from the catalogue, Python from docstrings.

python tools/make_reference.py           write the pages
python tools/make_reference.py --check   exit 1 if a page is not what the code says
"""

from __future__ import annotations

import argparse
import copy
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import GenericAlias, ModuleType

import click

import veen.api.evidence
import veen.contrib
from veen.cli.app import cli
from veen.cli.examples import epilog_of
from veen.client import Client, SyncClient
from veen.core.catalogue import catalogue

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "reference"
WIDTH = 100
COMMON = ("--json-schema", "--json", "--ndjson", "--output", "--quiet", "--no-input", "--context", "--help")
MODULES = (
    "veen",
    "veen.ext",
    "veen.testing",
    *(f"veen.contrib.{module.name}" for module in pkgutil.iter_modules(veen.contrib.__path__)),
)
NOTE = "This page is written by `tools/make_reference.py`.\n"
_MODULE = re.compile(r"~|\b(?:[a-z_]+\.)+(?=[A-Z])")  # before a type: the module it is from
_QUOTED = re.compile(r"((?:->|:) )'([^']+)'")  # a type by its name


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Return groups and commands by name, a group before its commands."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


def help_of(words: tuple[str, ...], command: click.Command) -> str:
    """Return the help of a command as a terminal shows it, without the options that every command has."""
    own = copy.copy(command)
    own.params = [param for param in command.params if not set(param.opts) & set(COMMON)]
    own.add_help_option = False
    own.epilog = own.epilog or epilog_of(" ".join(words))
    context = click.Context(own, info_name=" ".join(("veen", *words)), terminal_width=WIDTH, max_content_width=WIDTH)
    return "\n".join(line.rstrip() for line in own.get_help(context).splitlines()).strip()


def commands_page() -> str:
    common = ", ".join(f"`{option}`" for option in COMMON)
    parts = [
        "# Every command\n\nWhat `veen COMMAND --help` prints. The options that every command has are left out:\n"
        f"{common};\n[the command line](../cli.md) explains them. {NOTE}"
    ]
    for words, command in commands(cli):
        if isinstance(command, click.Group):
            if len(words) == 1:
                first = inspect.cleandoc(command.help or "").partition("\n\n")[0].replace("\n", " ")
                parts.append(f"## veen {' '.join(words)}\n\n{first}\n")
            continue
        level = "##" if len(words) == 1 else "###"
        parts.append(f"{level} veen {' '.join(words)}\n\n```text\n{help_of(words, command)}\n```\n")
    return "\n".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def errors_page() -> str:
    """Return the page of codes by family, in the order of the catalogue."""
    families: dict[str, list[str]] = {}
    for code, row in catalogue().items():
        family = row.part_of or ".".join(code.split(".")[:-1]) or "Query service"
        http = "" if row.http_status is None else str(row.http_status)
        fields = (f"`{code}`", str(row.exit_status), http, row.blame, _cell(row.means), _cell(row.hint))
        families.setdefault(family, []).append(f"| {' | '.join(fields)} |")
    parts = [
        "# Every error\n\n`veen explain CODE` shows one with its causes and all remedies. The exit status is that of\n"
        f"a command that ends with the code by a check of its own; a hub's refusal ends it with 4. {NOTE}"
    ]
    for family, rows in families.items():
        table = [
            "| code | exit | HTTP | fault of | what happened | what to do first |",
            "|---|---|---|---|---|---|",
            *rows,
        ]
        parts.append("\n".join((f"## {family}\n", *table, "")))
    return "\n".join(parts)


def _doc(thing: object) -> str:
    """Return the docstring; that of the base for a method without one."""
    doc = inspect.getdoc(thing) if inspect.isfunction(thing) else thing.__doc__
    return inspect.cleandoc(doc) if isinstance(doc, str) else ""


def _signature(name: str, thing: object) -> str:
    """Return the signature of a function as a block of code."""
    function = thing.__func__ if isinstance(thing, classmethod | staticmethod) else thing
    signature = inspect.signature(function)  # type: ignore[arg-type]
    shown = [_shown(item) for name, item in signature.parameters.items() if name not in ("self", "cls")]
    prefix = "async " if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function) else ""
    text = _plain(f"{prefix}{name}{signature.replace(parameters=shown)}")
    if len(text) > WIDTH:  # a parameter a line, the marks for positional and named ones included
        result = text.rpartition(") -> ")[2]
        first_named = next((place for place, item in enumerate(shown) if item.kind is item.KEYWORD_ONLY), len(shown))
        lines = [f"    {_plain(str(parameter))},\n" for parameter in shown]
        if first_named < len(shown) and not any(item.kind is item.VAR_POSITIONAL for item in shown):
            lines.insert(first_named, "    *,\n")
        text = f"{prefix}{name}(\n{''.join(lines)}) -> {result}"
    return f"```python\n{text}\n```\n"


class _Dots:
    def __repr__(self) -> str:
        return "..."


def _shown(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return a parameter with `...` for a default that has no form in Python, as a function or the environment."""
    default = parameter.default
    short = default is parameter.empty or isinstance(default, int | float | str | bytes | tuple | None)
    return parameter if short else parameter.replace(default=_Dots())


def _plain(signature: str) -> str:
    return _MODULE.sub("", _QUOTED.sub(r"\1\2", signature))


def _members(kind: type) -> Iterator[str]:
    """Public methods and properties in the order of their declaration; of `SyncClient` those that `Client` lacks."""
    for name, member in vars(kind).items():
        if name.startswith("_") or name in getattr(kind, "__dataclass_fields__", ()):
            continue
        if kind is SyncClient and hasattr(Client, name):
            continue
        if isinstance(member, property):
            yield f"#### `{kind.__name__}.{name}`\n\n{_doc(member)}\n"
        elif inspect.isfunction(member) or isinstance(member, classmethod | staticmethod):
            says = _doc(member)
            yield f"#### `{kind.__name__}.{name}()`\n\n{_signature(name, member)}\n{says}\n"


def _names(module: str) -> Iterator[str]:
    loaded = importlib.import_module(module)
    for name in loaded.__all__:
        thing = getattr(loaded, name)
        if (module, name) == ("veen", "verify"):  # it is a package too, once something has imported it
            thing = veen.api.evidence.verify
        if inspect.ismodule(thing):
            yield f"### `{name}`\n\n{_paragraph(thing)}\n\n{_table(thing)}\n"
        elif inspect.isclass(thing):
            yield f"### `{name}`\n\n{_doc(thing)}\n"
            yield from _members(thing)
        elif isinstance(thing, GenericAlias):
            yield f"### `{name}`\n\nThe type `{thing}`.\n"
        elif callable(thing):
            yield f"### `{name}()`\n\n{_signature(name, thing)}\n{_doc(thing)}\n"
        else:
            yield f"### `{name}`\n\nThe text `{thing}` in this release.\n"


def _paragraph(thing: object) -> str:
    return _doc(thing).partition("\n\n")[0]


def _public(module: ModuleType) -> Iterator[str]:
    """Yield the public names of a module: those of `__all__`, or what it defines without an underscore."""
    if hasattr(module, "__all__"):
        yield from module.__all__
        return
    for name, thing in vars(module).items():
        if not name.startswith("_") and getattr(thing, "__module__", None) == module.__name__ and callable(thing):
            yield name


def _table(module: ModuleType) -> str:
    """Return the names of a module, each with its sentence; a module below it is public with its names, too."""
    rows = ["| name | |", "|---|---|"]
    for name in _public(module):
        thing = getattr(module, name)
        if inspect.ismodule(thing):
            rows += (f"| `{name}.{inner}` | {_first(getattr(thing, inner))} |" for inner in _public(thing))
        else:
            rows.append(f"| `{name}` | {_first(thing)} |")
    return "\n".join(rows)


def _first(thing: object) -> str:
    """Return the first paragraph of the docstring; of a value what it is."""
    if inspect.isclass(thing) or callable(thing):
        return _cell(_paragraph(thing))
    return _cell(f"`{thing!r}`" if isinstance(thing, int | str) else f"a `{type(thing).__name__}`")


def python_page() -> str:
    parts = [
        "# Python\n\nThe public names and what their docstrings say; [programs and services](../services.md) and "
        "[the client library](../client.md) show them at work. Everything else is private, but for the name `veen` of\n"
        f"the Spark format. A name that is a module is public with its names. {NOTE}"
    ]
    for module in MODULES:
        first = _paragraph(importlib.import_module(module))
        parts.append("\n".join((f"## `{module}`\n\n{first}\n", *_names(module))))
    return "\n".join(parts)


def pages() -> Mapping[str, str]:
    return {"commands.md": commands_page(), "errors.md": errors_page(), "python.md": python_page()}


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the generated pages of docs/reference.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page is not up to date")
    check = parser.parse_args().check
    old = []
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        path = FOLDER / name
        if path.is_file() and path.read_text("utf-8") == text:
            continue
        old.append(name)
        if not check:
            path.write_text(text, "utf-8")
    if check and old:
        print(f"run tools/make_reference.py: {', '.join(old)} not up to date", file=sys.stderr)
    return 1 if check and old else 0


if __name__ == "__main__":
    sys.exit(main())
