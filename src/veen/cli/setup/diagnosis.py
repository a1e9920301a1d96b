"""Checks of `veen doctor`. Each yields findings: the observation, its severity, and the fix."""

import os
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from veen import native
from veen.cli.shared.failures import failure_of
from veen.cli.shared.output import Exit
from veen.client.config.file import ConfigFile
from veen.client.config.projects import read_both
from veen.client.config.settings import resolve
from veen.client.errors import ClientError, SettingsError
from veen.client.identity.keystore import SealedKeystore, read_card
from veen.client.transport.hubapi import HubApi
from veen.core.errors import VerifyError
from veen.core.objects.tooling import IdentityResponse
from veen.core.objects.trusted_root import PinnedKey

if TYPE_CHECKING:
    from veen.client.home import Home

_TIMEOUT_SECONDS: Final = 5.0
_CLOCK_WARN_SEC: Final = 5  # more than the coarseness of hub_ts and a slow answer explain
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_WRITABLE: Final = stat.S_IWGRP | stat.S_IWOTH


class Severity(Enum):
    OK = "ok"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """One line of the report. `exit_code` is that of the command if it is BAD."""

    level: Severity
    about: str
    what: str
    fix: str = ""
    exit_code: Exit = Exit.LOCAL


def _good(about: str, what: str) -> Diagnosis:
    return Diagnosis(level=Severity.OK, about=about, what=what)


def _warn(about: str, what: str, fix: str) -> Diagnosis:
    return Diagnosis(level=Severity.WARN, about=about, what=what, fix=fix)


def _bad(about: str, what: str, fix: str, exit_code: Exit = Exit.LOCAL) -> Diagnosis:
    return Diagnosis(level=Severity.BAD, about=about, what=what, fix=fix, exit_code=exit_code)


def check_files(home: "Home", directory: Path, env: Mapping[str, str]) -> Iterator[Diagnosis]:
    """Check permissions of the home, and the configuration."""
    exposed = home.find_exposed()
    for entry in exposed:
        mode = "700" if entry.path.is_dir() else "600"
        yield _bad(
            "permissions", f"{entry.path} is open to others (mode {entry.mode:04o})", f"chmod {mode} '{entry.path}'"
        )
    if not exposed:
        yield _good("permissions", f"keys and state below {home.data} are their owner's alone")
    try:
        project, user = read_both(directory, home.config_file)
        settings = resolve({}, env, project, user)
    except SettingsError as exc:
        yield _bad("config", str(exc), exc.hint)
        return
    for file in (user, project):
        if file.path.exists() and file.path.stat().st_mode & _WRITABLE:
            yield _bad("config", f"{file.path} can be changed by others, pins included", f"chmod go-w '{file.path}'")
    yield _good(
        "config", f"{home.config_file}: {len(user.contexts)} contexts; in use: {settings.context.value or 'none'}"
    )


def check_identities(home: "Home") -> Iterator[Diagnosis]:
    """Check keystores and cards, as far as possible without a passphrase."""
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


def check_contexts(user: ConfigFile, project: ConfigFile, *, online: bool) -> Iterator[Diagnosis]:
    """Check each context: its files, its pin, and the hub there."""
    for name, table in {**user.contexts, **project.contexts}.items():
        about = f"context {name}"
        yield from _check_table(about, name, table)
        if online and "hub" in table:
            yield from _check_hub(about, table)


def _check_table(about: str, name: str, table: Mapping[str, Any]) -> Iterator[Diagnosis]:
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


def _check_hub(about: str, table: Mapping[str, Any]) -> Iterator[Diagnosis]:
    ca_file, token_file = (Path(table[key]) if key in table else None for key in ("ca_file", "token_file"))
    url, insecure = table["hub"], bool(table.get("insecure_http"))
    try:
        with HubApi(
            url, ca_file=ca_file, token_file=token_file, insecure_http=insecure, timeout=_TIMEOUT_SECONDS
        ) as hub:
            before = time.time()
            hub_ts = hub.status().hub_ts
            after = time.time()
            identity = hub.identity()
    except (ClientError, OSError) as exc:
        fail = failure_of(exc)
        yield _bad(about, f"{fail.what}: {fail.cause}", fail.hint, fail.exit_code)
        return
    yield _check_pin(about, url, identity, table)
    skew = hub_ts - before if hub_ts < before else max(hub_ts - after, 0)
    if abs(skew) > _CLOCK_WARN_SEC:
        yield _warn(about, f"the hub's clock differs from this one's by {skew:+.0f} s", "veen explain EPOCH")
    else:
        yield _good(about, "the clocks agree")


def _check_pin(about: str, url: str, answer: IdentityResponse, table: Mapping[str, Any]) -> Diagnosis:
    """Check that the hub may be the pinned one. Of its signatures only a root's is verified."""
    if "hub_pk" not in table:
        return _good(about, f"{url} answers")
    pinned, hub_id = PinnedKey.parse(table["hub_pk"]), answer.hub_id.hex()
    if pinned.is_root:
        try:
            answer.to_identity().verify(answer.sig, pinned.public)
        except VerifyError as exc:
            what, explained = f"the pinned root did not sign the identity of {url}: {exc}", "E.DIVERGED.FOREIGN_KEY"
            return _bad(about, what, f"veen explain {explained}", Exit.BAD_EVIDENCE)
    elif all(key.hub_pk != pinned.public for key in answer.hub_keys):
        what = f"another key answers at {url}: {PinnedKey(answer.hub_keys[-1].hub_pk).to_text()}"
        return _bad(about, what, "veen explain E.DIVERGED.FOREIGN_KEY", Exit.BAD_EVIDENCE)
    if table.get("hub_id", hub_id) != hub_id:
        what = f"{url} answers with another hub_id than the pinned one: {hub_id}"
        return _bad(about, what, "veen explain E.DIVERGED.HUB_ID", Exit.BAD_EVIDENCE)
    if pinned.is_root:
        return _good(about, f"{url} answers as hub {hub_id}, which the pinned root signed")
    return _good(about, f"{url} answers and claims the pinned key")


def check_native(loaded: native.Loaded = native.LOADED) -> Iterator[Diagnosis]:
    """Report the code that makes and checks signatures; warn of a native module that does not fit."""
    if loaded.status == "unfit":
        yield _warn("signatures", loaded.what, "make native, or pip uninstall veen-native")
    else:
        yield _good("signatures", loaded.what)


def check_spark() -> Iterator[Diagnosis]:
    """Check Java, which the extra spark needs and pip cannot install."""
    if find_spec("pyspark") is None:
        yield _good("spark", "the extra spark is not installed; nothing but Spark audits needs it")
    else:
        from veen.lake.log.errors import JavaMissing
        from veen.lake.spark.session import find_java

        try:
            java = find_java()
        except JavaMissing as exc:  # none, or one that is too old
            yield _bad("spark", f"the extra spark is installed, but {exc}", "apt install openjdk-17-jre-headless")
        else:
            yield _good("spark", f"pyspark and {java} are there; {_class_archive_words()}")


def _class_archive_words() -> str:
    from veen.lake.spark.session import java_version
    from veen.lake.spark.startup import class_archive
    from veen.lake.spark.submit import spark_home

    archive = class_archive(java_version(), spark_home())
    if archive is None:
        return "class-data archives are switched off"
    if archive.adopt():
        return "with its class-data archive Spark starts quicker"
    return "the next use of Spark, or veen doctor --prepare-spark, makes a class-data archive for quicker starts"
