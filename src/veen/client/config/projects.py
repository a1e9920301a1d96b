"""Project files (`veen.toml`): the settings that they may make, and the trust of the user in them.

A project file comes with a directory: a clone, an archive, a shared disk. Its author is not the user. Without trust
it may therefore only select things that the user defined: one of the user's contexts (`current_context`) and one of
the user's identities by name (`identity`). Everything else, such as the address and the pin of a hub, requires trust
that the user gives once: `veen config trust`. Trust is bound to the absolute path of the file, to the SHA-256 of its
content, and to the content of the certificates and witness policies that it names, so a changed file requires trust
again.

Only the file in the current directory counts; directories above are not searched.

Trust is stored in `trusted.json` beside the user's config.toml:

    {"projects": {"/home/u/work/veen.toml": "<sha256>"}, "ver": 1}

Edits of the user's configuration that keep comments and order and lose nothing.

A changed text is written only if it reads back as intended. Files are replaced as a whole and durably, under a lock.
"""

import contextlib
import fcntl
import json
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from veen.client.config.file import ConfigFile, bad_file, read
from veen.client.errors import SettingsError


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


PROJECT_FILE: Final = "veen.toml"
_STORE: Final = "trusted.json"
_MAX_STORE_BYTES: Final = 1024 * 1024
_SHOWN_WISHES: Final = 12
_SHOWN_CHARACTERS: Final = 100
_DECIDING: Final = ("ca_file", "witness_policy")  # settings whose files decide about trust
_MAX_NAMED_BYTES: Final = 1024 * 1024


def read_both(directory: Path, config_file: Path) -> tuple[ConfigFile, ConfigFile]:
    """Read the project file and the user's file, and return both. Fail if the project file requires trust that it
    lacks."""
    return read_project(directory, config_file), read(config_file)


def read_project(directory: Path, config_file: Path) -> ConfigFile:
    """Read the project file of `directory`. Fail if it requires trust that it lacks."""
    project = read(place_of(directory), project=True)
    check_trust(project, read_trusted(store_of(config_file)))
    return project


def place_of(path: Path) -> Path:
    """Return the absolute path of the project file for `path`, which is a directory or the file itself.

    Links on the way to it are resolved, so that one file has one path.
    """
    file = path / PROJECT_FILE if path.is_dir() else path
    return Path(os.path.realpath(file.parent)) / file.name


def wishes(project: ConfigFile) -> dict[str, Any]:
    """Return the settings of a project file beyond selecting things that the user defined."""
    top = {key: value for key, value in project.top.items() if not _selects(key, value)}
    tables = {
        f"context.{name}.{key}": value for name, table in project.contexts.items() for key, value in table.items()
    }
    empty = {f"context.{name}": "" for name, table in project.contexts.items() if not table}
    return {**top, **tables, **empty}


def _selects(key: str, value: Any) -> bool:
    """Return True if this setting names something of the user's. A directory with an identity is not."""
    return key == "current_context" or (key == "identity" and "/" not in value and value not in (".", ".."))


def check_trust(project: ConfigFile, trusted_files: Mapping[str, str]) -> None:
    """Fail if the file has settings that require trust, and is not trusted with exactly this content."""
    wanted = wishes(project)
    before = trusted_files.get(str(project.path))
    if not wanted or (before is not None and before == digest_of(project)):
        return
    changed = "it changed since it was trusted, or a file that it names did. " if before is not None else ""
    raise SettingsError(
        "E.LOCAL.UNTRUSTED",
        f"{project.path}: this project file is not trusted",
        f"{changed}it wants to set {shown(wanted)}. A project file may only choose one of your contexts or identities",
        "if you want all of this: veen config trust; if not, remove the file or work in another directory",
    )


def digest_of(project: ConfigFile) -> str:
    """Return the digest that trust is bound to: the SHA-256 of the file, or one over it and the files that it names."""
    tables = (project.top, *(project.contexts[name] for name in sorted(project.contexts)))
    named = sorted({Path(table[key]) for table in tables for key in _DECIDING if key in table})
    if not named:
        return project.sha256
    parts = [project.sha256, *(f"{path.name} {_file_digest(path)}" for path in named)]
    return sha256("\n".join(parts).encode()).hexdigest()


def _file_digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_NAMED_BYTES + 1)
    except OSError:
        return "missing"  # using the file raises an error; if it appears later, that is a change
    return sha256(data).hexdigest() if len(data) <= _MAX_NAMED_BYTES else "too long"


def shown(wanted: Mapping[str, Any]) -> str:
    """Return wishes in one sentence, cut to a few."""
    texts = [f"{key} = {str(value)[:_SHOWN_CHARACTERS]}" for key, value in list(wanted.items())[:_SHOWN_WISHES]]
    if len(wanted) > _SHOWN_WISHES:
        texts.append(f"and {len(wanted) - _SHOWN_WISHES} more")
    return "; ".join(texts)


# --- the store of trust ------------------------------------------------------------------------------------


def store_of(config_file: Path) -> Path:
    return config_file.with_name(_STORE)


def read_trusted(store: Path) -> dict[str, str]:
    """Read path and SHA-256 of every trusted project file."""
    try:
        with store.open("rb") as file:
            data = file.read(_MAX_STORE_BYTES + 1)
        document = json.loads(data) if len(data) <= _MAX_STORE_BYTES else None
    except FileNotFoundError:
        return {}
    except OSError as exc:
        raise bad_file(store, str(exc.strerror), "check its permissions") from exc
    except (ValueError, RecursionError):
        document = None
    match document:
        case {"ver": 1, "projects": dict(projects)} if all(type(value) is str for value in projects.values()):
            return projects
    raise bad_file(store, "not a list of trusted project files", "remove it, and trust the files again")


def trust(store: Path, project: ConfigFile) -> None:
    """Trust this file from now on, with its present path and content."""
    with lock_file(store):
        _save(store, {**read_trusted(store), str(project.path): digest_of(project)})


def untrust(store: Path, path: Path) -> bool:
    """Remove the trust in a file, even if it does not exist; return False if it was not trusted."""
    with lock_file(store):
        trusted_files = read_trusted(store)
        if trusted_files.pop(str(path), None) is None:
            return False
        _save(store, trusted_files)
        return True


def _save(store: Path, projects: Mapping[str, str]) -> None:
    write(store, json.dumps({"projects": projects, "ver": 1}, indent=2, sort_keys=True) + "\n")
