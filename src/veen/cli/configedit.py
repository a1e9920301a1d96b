"""Changing the user's configuration: comments and order stay, and nothing is lost.

Lines are edited, and the result counts only if it reads back as intended: TOML has many ways to say one thing, and a
form that is not edited here is left to its owner. Files are replaced as a whole and durably, under a lock.
"""

import contextlib
import fcntl
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from veen.cli.configfile import bad_file, read

__all__ = ["change", "remove_context"]


def change(path: Path, changes: Mapping[str, Any]) -> None:
    """Set each key of `changes` (`mode`, `context.acme.hub`); None takes it out. All of them or none."""
    with _locked(path):
        text = _text(path)
        for key, value in changes.items():
            text = _without(path, text, key) if value is None else _with(path, text, key, value)
        _write(path, text)


def remove_context(path: Path, name: str) -> None:
    """Take a context out, and the choice of it."""
    with _locked(path):
        text = _text(path)
        expected = tomllib.loads(text)
        del expected["context"][name]
        lines = text.splitlines(keepends=True)
        if (found := _section(lines, f"context.{name}")) is not None:
            first, last = found
            lines[first - 1 : last] = []
        if not expected["context"] and "context" not in tomllib.loads("".join(lines)):
            del expected["context"]  # with its last table the name itself is gone
        text = _checked(path, "".join(lines), expected, f"context.{name}")
        if expected.get("current_context") == name:
            text = _without(path, text, "current_context")
        _write(path, text)


def _with(path: Path, text: str, key: str, value: Any) -> str:
    expected, target, table, member = _target(text, key)
    target[member] = value
    lines = _lines(text)
    if (found := _section(lines, table)) is None:
        lines += [*["\n"] * bool(lines), f"[{table}]\n"]
        found = len(lines), len(lines)
    first, last = found
    line = f"{member} = {_toml(value)}\n"
    if (at := _line_of(lines, first, last, member)) is not None:
        lines[at] = line
    else:
        while last > first and not lines[last - 1].strip():  # after the last line that says something
            last -= 1
        lines.insert(last, line)
    return _checked(path, "".join(lines), expected, key)


def _without(path: Path, text: str, key: str) -> str:
    expected, target, table, member = _target(text, key)
    if member not in target:
        return text
    del target[member]
    lines = _lines(text)
    first, last = _section(lines, table) or (0, 0)
    if (at := _line_of(lines, first, last, member)) is not None:
        del lines[at]
    return _checked(path, "".join(lines), expected, key)


def _target(text: str, key: str) -> tuple[dict[str, Any], dict[str, Any], str, str]:
    """What the file says; in it, the table of `key`; the name of that table, and of the member."""
    document = tomllib.loads(text)
    table, _, member = key.rpartition(".")
    target = document
    for part in table.split(".") if table else ():
        target = target.setdefault(part, {})
    return document, target, table, member


def _lines(text: str) -> list[str]:
    lines = text.splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    return lines


def _section(lines: list[str], table: str) -> tuple[int, int] | None:
    """The lines under the heading of a table, from and to; "" is what stands above the first heading."""
    first = 0
    if table:
        heads = [at for at, line in enumerate(lines) if line.partition("#")[0].replace(" ", "").strip() == f"[{table}]"]
        if not heads:
            return None
        first = heads[0] + 1
    return first, next((at for at in range(first, len(lines)) if lines[at].lstrip().startswith("[")), len(lines))


def _line_of(lines: list[str], first: int, last: int, member: str) -> int | None:
    return next((at for at in range(first, last) if re.match(rf"\s*{member}\s*=", lines[at])), None)


def _checked(path: Path, text: str, expected: Mapping[str, Any], key: str) -> str:
    """The edited text, if it says just what it should."""
    try:
        if tomllib.loads(text) == expected:
            return text
    except tomllib.TOMLDecodeError:
        pass
    raise bad_file(path, f"{key} is written in a form that is not edited", f"change {key} in the file by hand")


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    escaped = "".join(
        {'"': '\\"', "\\": "\\\\"}.get(character, character) if character.isprintable() else f"\\U{ord(character):08x}"
        for character in str(value)
    )
    return f'"{escaped}"'


def _text(path: Path) -> str:
    read(path)  # what cannot be used is not changed either
    return path.read_text("utf-8") if path.exists() else ""


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One change at a time, so that none is lost."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _write(path: Path, text: str) -> None:
    from veen.storage.fs import OsFs

    OsFs(path.parent).replace(path.name, text.encode(), private=True)
