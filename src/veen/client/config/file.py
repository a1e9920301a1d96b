"""The configuration file of a user: its keys and its reading.

::

    current_context = "acme"            # set by `veen context use`
    identity = "alice"                  # used if the context names none
    mode = "full"                       # full: fold the whole log; light: check proofs
    remember_streams = true             # names for the completion of the shell
    wait = 5                            # seconds to keep trying a hub that cannot be reached
    timeout = 30                        # seconds for one call to a hub, from its first byte to its last

    [context.acme]
    hub = "https://hub.example"
    hub_pk = "ed25519:…"                # the pin: signatures of other keys are refused; or root:ed25519:…
    hub_id = "…"                        # learned on the first connection, signed by hub_pk; never changes
    identity = "alice"
    ca_file = "ca.pem"                  # relative to this file
    token_file = "token"
    insecure_http = false               # true: the token may go to another machine over plain http://
    passphrase_file = "dev.passphrase"  # the passphrase of the identity, for unattended machines
    witness_policy = "hub.policy"       # k of n witnesses that must have cosigned the newest note of the hub
    witnesses = "require"               # without the cosignatures: require (refuse), warn, or off
    make_keys = true                    # make a missing identity, and the keys of a stream that nobody has written to

`veen.client.config.projects` changes values; `veen.client.config.projects` decides about project files.
"""

import os
import re
import stat
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from veen.client.errors import SettingsError
from veen.client.transport.addresses import check_hub_url, credentials_of
from veen.core.objects.trusted_root import PinnedKey

_MAX_BYTES: Final = 1024 * 1024
_CONTEXT_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The contents of one file. `project` files come with a directory, perhaps from somebody else: see `projects`."""

    path: Path
    top: Mapping[str, Any] = field(default_factory=dict)
    contexts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    project: bool = False
    sha256: str = ""  # of the bytes that were read; "" if there is no file


# --- kinds of values --------------------------------------------------------------------------------------


def _pin(text: str) -> str:
    return PinnedKey.parse(text).to_text()


def _hub_id(text: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{64}", text.lower()):
        raise ValueError(f"expected 64 hex digits, found {text!r}")
    return text.lower()


def _name(text: str) -> str:
    if not text or not text.isprintable():
        raise ValueError(f"expected a name, found {text!r}")
    return text


def _path(text: str) -> str:
    if not text or "\0" in text:
        raise ValueError(f"expected the path of a file, found {text!r}")
    return text


def _mode(text: str) -> str:
    if text not in ("full", "light"):
        raise ValueError(f"expected full or light, found {text!r}")
    return text


def _witnesses(text: str) -> str:
    if text not in ("require", "warn", "off"):
        raise ValueError(f"expected require, warn or off, found {text!r}")
    return text


def _flag(text: str) -> bool:
    try:
        return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[text.lower()]
    except KeyError:
        raise ValueError(f"expected true or false, found {text!r}") from None


def _seconds(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text):
        raise ValueError(f"expected seconds, found {text!r}")
    return int(text)


def _at_least_one_second(text: str) -> int:
    if (seconds := _seconds(text)) < 1:
        raise ValueError(f"expected at least one second, found {text!r}")
    return seconds


def context_name(text: str) -> str:
    if not _CONTEXT_NAME.fullmatch(text):
        raise ValueError(f"a context has a name of letters, digits, '_' and '-', found {text!r}")
    return text


Check = Callable[[str], Any]
TOP_KEYS: Final[Mapping[str, Check]] = {
    "current_context": context_name,
    "identity": _name,
    "mode": _mode,
    "remember_streams": _flag,
    "wait": _seconds,
    "timeout": _at_least_one_second,
}
CONTEXT_KEYS: Final[Mapping[str, Check]] = {
    "hub": check_hub_url,
    "hub_pk": _pin,
    "hub_id": _hub_id,
    "profile": _name,
    "identity": _name,
    "ca_file": _path,
    "token_file": _path,
    "insecure_http": _flag,
    "passphrase_file": _path,
    "witness_policy": _path,
    "witnesses": _witnesses,
    "make_keys": _flag,
}
_FILES: Final = ("ca_file", "token_file", "passphrase_file", "witness_policy")


def check_value(key: str, text: str) -> Any:
    """Parse the value of `key` (`mode`, `context.acme.hub`). Raise ValueError with what was expected."""
    return _check_of(key)(text)


def check_key(key: str) -> None:
    """Raise ValueError unless there is such a key."""
    _check_of(key)


def _check_of(key: str) -> Check:
    if key in TOP_KEYS:
        return TOP_KEYS[key]
    match key.split("."):
        case ["context", name, member] if member in CONTEXT_KEYS:
            context_name(name)
            return CONTEXT_KEYS[member]
    keys = ", ".join([*TOP_KEYS, *(f"context.NAME.{member}" for member in CONTEXT_KEYS)])
    raise ValueError(f"there is no key {key!r}; there are {keys}")


# --- reading -----------------------------------------------------------------------------------------------


def read(path: Path, *, project: bool = False) -> ConfigFile:
    """Read a configuration file; one that does not exist is empty.

    A project file may come from somebody else, with a clone or an archive. So the files it names must lie beside it:
    otherwise it could have any file of the user sent to its own hub as a bearer token. It is refused if another user
    owns it or may change it. `veen.client.config.projects` decides if it is applied.
    """
    try:
        # Without O_NONBLOCK a named pipe in a cloned directory would stop every command.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise bad_file(path, "not a regular file", "remove it, or put a file in its place")
            if project:
                _check_owner(path, status)
            data = file.read(_MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return ConfigFile(path, project=project)
    except OSError as exc:
        raise bad_file(path, str(exc.strerror), "check its permissions") from exc
    if len(data) > _MAX_BYTES:
        raise bad_file(path, f"more than {_MAX_BYTES} bytes", "give the right file")
    return _parse(path, data, project=project)


def _check_owner(path: Path, status: os.stat_result) -> None:
    """Refuse a project file unless it is the user's own (or root's) and closed to all others."""
    if status.st_uid not in (os.geteuid(), 0):
        cause, hint = (
            f"it belongs to another user (uid {status.st_uid})",
            "work in a copy of the directory that is yours",
        )
    elif status.st_mode & stat.S_IWOTH:
        cause, hint = f"anybody may change it (mode {stat.S_IMODE(status.st_mode):04o})", f"chmod o-w '{path}'"
    else:
        return
    raise SettingsError("E.LOCAL.UNTRUSTED", f"{path}: this project file is not trusted", cause, hint)


def _parse(path: Path, data: bytes, *, project: bool) -> ConfigFile:
    try:
        document = tomllib.loads(data.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as exc:
        raise bad_file(path, f"not TOML: {exc}", "mend the line, or remove it") from exc
    contexts = document.pop("context", {})
    if not isinstance(contexts, dict) or not all(isinstance(table, dict) for table in contexts.values()):
        raise bad_file(path, "context: expected tables [context.NAME]", "veen context add NAME --hub URL")
    try:
        top = {key: _value(key, value) for key, value in document.items()}
        tables = {
            context_name(name): {key: _value(f"context.{name}.{key}", value) for key, value in table.items()}
            for name, table in contexts.items()
        }
    except ValueError as exc:
        raise bad_file(path, str(exc), "veen config show --origin") from exc
    for table in tables.values():
        if project and (credentials := credentials_of(table.get("hub", ""))) is not None:
            _locate(path, "credentials", credentials, project=True)
        for key in _FILES:
            if key in table:
                table[key] = _locate(path, key, table[key], project=project)
    return ConfigFile(path, top, tables, project, sha256(data).hexdigest())


def _value(key: str, value: Any) -> Any:
    check = _check_of(key)
    if isinstance(value, bool) and check is _flag:
        return value
    if type(value) is int and check in (_seconds, _at_least_one_second):
        value = str(value)
    if not isinstance(value, str):
        raise ValueError(f"{key}: expected text, found {value!r}")
    try:
        return check(value)
    except ValueError as exc:
        raise ValueError(f"{key}: {exc}") from exc


def _locate(path: Path, key: str, text: str, *, project: bool) -> str:
    base = path.parent
    if not project:
        return str(base / Path(text).expanduser())
    located = base / text
    if not located.resolve().is_relative_to(base.resolve()):
        cause = f"{key}: {text!r} is outside the directory of the project"
        raise bad_file(path, cause, "put the file beside veen.toml, or define the context by `veen context add`")
    return str(located)


def bad_file(path: Path, cause: str, hint: str) -> SettingsError:
    """Return the error for a configuration file that cannot be used, with its cause and remedy."""
    return SettingsError("E.LOCAL.CONFIG", f"{path}: the configuration cannot be used", cause, hint)
