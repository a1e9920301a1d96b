"""Names for shell completion: contexts, identities, streams. Fast, and silent about errors.

`veen.client.home` spells all paths, but imports cryptography, and TAB must answer at once. So the few paths that
completion needs are found here as well; a test holds them equal to those of `Home`.
"""

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

STREAMS_FILE: Final = "streams"
_MAX_STREAMS: Final = 200
_MAX_BYTES: Final = 1024 * 1024  # of a file that names come from
_TABLE: Final = re.compile(r"\s*\[\s*context\s*\.\s*([A-Za-z0-9_-]+)\s*\]")


def roots() -> tuple[Path, Path, Path]:
    """Return the directories of configuration, data and cache, as `Home.default` finds them."""
    if root := os.environ.get("VEEN_HOME"):
        home = Path(root).expanduser().absolute()
        return home, home, home / "cache"
    from platformdirs import PlatformDirs

    dirs = PlatformDirs("veen", appauthor=False)
    return dirs.user_config_path, dirs.user_data_path, dirs.user_cache_path


def contexts() -> list[str]:
    """Return context names by their headings, which an invalid file has, too."""
    names: list[str] = []
    for path in (Path("veen.toml"), roots()[0] / "config.toml"):
        names += [match[1] for line in _lines(path) if (match := _TABLE.match(line))]
    return list(dict.fromkeys(names))


def identities() -> list[str]:
    try:
        return sorted(path.name for path in (roots()[1] / "identities").iterdir() if not path.name.startswith("."))
    except OSError:
        return []


def streams() -> list[str]:
    """Return names of streams that were used on this machine, the latest first."""
    return _lines(roots()[2] / STREAMS_FILE)


def remember_stream(cache: Path, name: str) -> None:
    """Store a name for completion. Stream names may be confidential: only the owner can read the file."""
    if not name.isprintable() or name.startswith(("hex:", "label:")):
        return
    path = cache / STREAMS_FILE
    remembered = _lines(path)
    if remembered[:1] == [name]:
        return
    latest = [name, *(other for other in remembered if other != name)][:_MAX_STREAMS]
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = path.with_name(f".{STREAMS_FILE}.{os.getpid()}")
        with os.fdopen(
            os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w", encoding="utf-8"
        ) as file:
            file.write("".join(f"{line}\n" for line in latest))
        temporary.replace(path)
    except OSError:  # a convenience must not fail a command that did its work
        return


def _lines(path: Path) -> list[str]:
    try:
        if not path.is_file():  # a named pipe would wait for ever
            return []
        with path.open("rb") as file:
            return file.read(_MAX_BYTES).decode().splitlines()
    except (OSError, UnicodeDecodeError):
        return []


class _Name(click.ParamType[str]):
    """Text that completes to existing names."""

    def __init__(self, name: str, names: Callable[[], Iterable[str]]) -> None:
        self.name = name
        self._known = names

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        return [CompletionItem(name) for name in self._known() if name.startswith(incomplete)]


class _Stream(_Name):
    """A name, 64 hex digits, `hex:…` or `label:…`; `StreamRef` interprets it."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not value:
            self.fail("a stream name must not be empty", param, ctx)
        if re.match("hex:|label:", value) and not re.fullmatch("(hex|label):[0-9a-fA-F]{64}", value):
            self.fail(f"{value!r}: expected 64 hex digits after the colon", param, ctx)
        return value


CONTEXT: Final = _Name("context", contexts)
IDENTITY: Final = _Name("identity", identities)
STREAM: Final = _Stream("stream", streams)
