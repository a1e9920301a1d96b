"""Edits of the user's configuration that keep comments and order and lose nothing.

A changed text is written only if it reads back as intended. Files are replaced as a whole and durably, under a lock.
"""

import contextlib
import fcntl
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from veen.client.config.file import bad_file, read


def change(path: Path, changes: Mapping[str, Any]) -> None:
    """Set each key of `changes` (`mode`, `context.acme.hub`); None removes it. All of them or none."""

    def edit(document: Any) -> None:
        for key, value in changes.items():
            *tables, member = key.split(".")
            target = document
            for table in tables:
                target = target.setdefault(table, {})
            if value is not None:
                target[member] = value
            elif member in target:
                del target[member]

    _edit(path, edit)


def remove_context(path: Path, name: str) -> None:
    """Remove a context, and `current_context` if it names it."""

    def edit(document: Any) -> None:
        del document["context"][name]
        if not document["context"]:
            del document["context"]
        if document.get("current_context") == name:
            del document["current_context"]

    _edit(path, edit)


def _edit(path: Path, edit: Callable[[Any], None]) -> None:
    """Apply `edit` to the file. The same edit of its plain values gives the values that the new text must have."""
    with lock_file(path):
        read(path)  # a file that cannot be used is not changed either
        text = path.read_text("utf-8") if path.exists() else ""
        expected = tomllib.loads(text)
        edit(expected)
        changed = _edit_text(text, edit)
        if changed is None or tomllib.loads(changed) != expected:
            raise bad_file(path, "its TOML has a form that cannot be edited automatically", "change the file by hand")
        write(path, changed)


def _edit_text(text: str, edit: Callable[[Any], None]) -> str | None:
    import tomlkit  # not at the top: it would slow down every command that only reads
    from tomlkit.exceptions import TOMLKitError

    try:
        document = tomlkit.parse(text)
        edit(document)
        changed = tomlkit.dumps(document)
        tomllib.loads(changed)
    except (TOMLKitError, tomllib.TOMLDecodeError):  # a table that is spread over the file, or made by dotted keys
        return None
    return changed


@contextlib.contextmanager
def lock_file(path: Path) -> Iterator[None]:
    """Lock a file for one change at a time."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(path.with_name(f".{path.name}.lock"), flags, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def write(path: Path, text: str) -> None:
    """Replace a file of the user durably and as a whole; only its owner can read it."""
    from veen.io.local import OsFs

    OsFs(path.parent).replace(path.name, text.encode(), private=True)
