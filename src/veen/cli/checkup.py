"""What `veen doctor` looks at. Each check gives findings: what was seen, how bad it is, and what mends it."""

import os
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from veen.cli.configfile import ConfigFile, read
from veen.cli.failures import failure_of
from veen.cli.hubclient import HubClient
from veen.cli.output import Exit, Fail
from veen.cli.settings import PROJECT_FILE, resolve
from veen.client.errors import ClientError
from veen.client.keystore import SealedKeystore, read_card

if TYPE_CHECKING:
    from veen.client.home import Home

__all__ = ["Finding", "Level", "check_contexts", "check_files", "check_identities", "check_spark"]

_TIMEOUT_SECONDS: Final = 5.0
_CLOCK_WARN_SEC: Final = 5  # more than the coarseness of hub_ts and a slow answer explain
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_WRITABLE: Final = stat.S_IWGRP | stat.S_IWOTH


class Level(Enum):
    OK = "ok"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the report. `exit_code` is what a BAD one means for the command."""

    level: Level
    about: str
    what: str
    fix: str = ""
    exit_code: Exit = Exit.LOCAL


def _good(about: str, what: str) -> Finding:
    return Finding(level=Level.OK, about=about, what=what)


def _warn(about: str, what: str, fix: str) -> Finding:
    return Finding(level=Level.WARN, about=about, what=what, fix=fix)


def _bad(about: str, what: str, fix: str, exit_code: Exit = Exit.LOCAL) -> Finding:
    return Finding(level=Level.BAD, about=about, what=what, fix=fix, exit_code=exit_code)


def check_files(home: "Home", directory: Path, env: Mapping[str, str]) -> Iterator[Finding]:
    """Permissions of the home, and whether the configuration can be read."""
    exposed = home.exposed()
    for found in exposed:
        mode = "700" if found.path.is_dir() else "600"
        yield _bad(
            "permissions", f"{found.path} is open to others (mode {found.mode:04o})", f"chmod {mode} '{found.path}'"
        )
    if not exposed:
        yield _good("permissions", f"keys and state below {home.data} are their owner's alone")
    try:
        user, project = read(home.config_file), read(directory / PROJECT_FILE, project=True)
        settings = resolve({}, env, project, user)
    except Fail as fail:
        yield _bad("config", f"{fail.what}: {fail.cause}", fail.hint)
        return
    for file in (user, project):
        if file.path.exists() and file.path.stat().st_mode & _WRITABLE:
            yield _bad("config", f"{file.path} can be changed by others, pins included", f"chmod go-w '{file.path}'")
    yield _good(
        "config", f"{home.config_file}: {len(user.contexts)} contexts; in use: {settings.context.value or 'none'}"
    )


def check_identities(home: "Home") -> Iterator[Finding]:
    """Keystores and cards, as far as they can be judged without a passphrase."""
    names = home.identities()
    if not names:
        yield _warn("identity", f"there are no keys in {home.data}", "veen keygen --name NAME")
    for name in names:
        about = f"identity {name}"
        try:
            sealed = SealedKeystore.read(home.identity_fs(name))
            card = read_card(home.identity_fs(name))
        except (ClientError, OSError) as exc:
            fail = failure_of(exc)
            yield _bad(about, fail.cause, fail.hint)
            continue
        if sealed.is_plain:
            yield _warn(
                about,
                "its keystore has no passphrase: whoever reads the file has the keys",
                f"veen id passphrase {name}",
            )
        else:
            yield _good(
                about, f"card {card.card_id}, keystore sealed with {sealed.kdf}, {sealed.memory_kib // 1024} MiB"
            )


def check_contexts(user: ConfigFile, project: ConfigFile, *, online: bool) -> Iterator[Finding]:
    """Each context: files, pin, and whether the hub there is the one that was pinned."""
    for name, table in {**user.contexts, **project.contexts}.items():
        about = f"context {name}"
        yield from _check_table(about, name, table)
        if online and "hub" in table:
            yield from _check_hub(about, name, table)


def _check_table(about: str, name: str, table: Mapping[str, Any]) -> Iterator[Finding]:
    if "hub" not in table:
        yield _bad(about, "it names no hub", f"veen config set context.{name}.hub URL")
    if "hub_pk" not in table:
        yield _warn(about, "no key is pinned: commands that verify will ask or fail", f"veen context pin {name}")
    for key in ("ca_file", "token_file"):
        path = Path(table.get(key, os.devnull))
        if not os.access(path, os.R_OK):
            yield _bad(about, f"{key} {path} cannot be read", f"veen config set context.{name}.{key} FILE")
        elif key == "token_file" and path.is_file() and path.stat().st_mode & _OTHERS:
            yield _bad(about, f"{path} holds a token and is open to others", f"chmod 600 '{path}'")


def _check_hub(about: str, name: str, table: Mapping[str, Any]) -> Iterator[Finding]:
    ca_file, token_file = (Path(table[key]) if key in table else None for key in ("ca_file", "token_file"))
    client = HubClient(table["hub"], ca_file, token_file, _TIMEOUT_SECONDS)
    try:
        before = time.time()
        status = client.get("/tooling/status")
        after = time.time()
        keys = [str(key["hub_pk"]) for key in client.get("/tooling/identity")["hub_keys"]]
        hub_ts = int(status["hub_ts"])
    except Fail as fail:
        yield _bad(about, f"{fail.what}: {fail.cause}", fail.hint, fail.exit_code)
        return
    except (KeyError, TypeError, ValueError):
        yield _bad(about, f"{client.url}: the answer is not that of a hub", f"veen context show {name}", Exit.NETWORK)
        return
    pin = table.get("hub_pk", "").removeprefix("ed25519:")
    if pin and pin not in keys:
        yield _bad(
            about,
            f"another key answers at {client.url}: ed25519:{keys[-1] if keys else 'none'}",
            "veen explain E.DIVERGED.FOREIGN_KEY",
            Exit.BAD_EVIDENCE,
        )
    else:
        yield _good(about, f"{client.url} answers{' and claims the pinned key' if pin else ''}")
    skew = hub_ts - before if hub_ts < before else max(hub_ts - after, 0)
    if abs(skew) > _CLOCK_WARN_SEC:
        yield _warn(about, f"the hub's clock differs from this one's by {skew:+.0f} s", "veen explain EPOCH")
    else:
        yield _good(about, "the clocks agree")


def check_spark() -> Iterator[Finding]:
    """The one extra that needs something pip cannot install."""
    if find_spec("pyspark") is None:
        yield _good("spark", "veen[spark] is not installed; nothing but Spark audits needs it")
    else:
        from veen.pipeline.errors import JavaMissing
        from veen.pipeline.session import find_java

        try:
            java = find_java()
        except JavaMissing as exc:  # none, or one that is too old
            yield _bad("spark", f"veen[spark] is installed, but {exc}", "apt install openjdk-17-jre-headless")
        else:
            yield _good("spark", f"pyspark and {java} are there")
