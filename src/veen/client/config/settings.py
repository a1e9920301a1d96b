"""Settings in force for one command: flag > VEEN_* > ./veen.toml > the user's config.toml > default, with their
origin.

Rules that keep a pin a pin, and a token with its hub:

- A project file selects things that the user defined; for anything else it must be trusted (`projects`). The
  argument `project` has passed that check.
- A context is taken whole from one file. A project file that redefines a context of the user with another key is
  refused: a pin that a directory can change protects nobody.
- `--hub URL` without `--context` ignores the selected context, so that a token or a pin for one hub is never used
  with another. If a context has exactly this URL, it is selected.
- `--context` outranks VEEN_HUB.
- A token that the environment names is for hubs that the user selected, by a flag, a variable or the user's own
  configuration. A hub that a project file selected, trusted or not, does not get it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from veen.client.config.file import CONTEXT_KEYS, TOP_KEYS, ConfigFile, check_value
from veen.client.errors import SettingsError

ENVIRONMENT: Final[Mapping[str, str]] = {
    "context": "VEEN_CONTEXT",
    "hub": "VEEN_HUB",
    "hub_pk": "VEEN_PIN",
    "hub_id": "VEEN_HUB_ID",
    "profile": "VEEN_PROFILE_ID",
    "identity": "VEEN_IDENTITY",
    "ca_file": "VEEN_CA_FILE",
    "token_file": "VEEN_TOKEN_FILE",
    "insecure_http": "VEEN_INSECURE_HTTP",
    "passphrase_file": "VEEN_PASSPHRASE_FILE",
    "witness_policy": "VEEN_WITNESS_POLICY",
    "witnesses": "VEEN_WITNESSES",
    "make_keys": "VEEN_MAKE_KEYS",
    "mode": "VEEN_MODE",
    "remember_streams": "VEEN_REMEMBER_STREAMS",
    "wait": "VEEN_WAIT",
    "timeout": "VEEN_TIMEOUT",
}
PIN_FILE: Final = "VEEN_PIN_FILE"
_FLAGS: Final[Mapping[str, str]] = {"hub_pk": "--pin"}
_DEFAULTS: Final[Mapping[str, Any]] = {
    "mode": "full",
    "remember_streams": True,
    "wait": 5,
    "timeout": 30,
    "insecure_http": False,
    "witnesses": "require",
    "make_keys": False,
}


@dataclass(frozen=True, slots=True)
class Value:
    """A value and its origin; None and "unset" if there is none."""

    value: Any
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """The settings of one command."""

    context: Value
    hub: Value
    hub_pk: Value
    hub_id: Value
    profile: Value
    identity: Value
    ca_file: Value
    token_file: Value
    insecure_http: Value
    passphrase_file: Value
    witness_policy: Value  # a policy that the newest note of the hub must satisfy
    witnesses: Value  # action if it does not: require, warn, off
    make_keys: Value  # True: make a missing identity, and the keys of an unused stream
    mode: Value
    remember_streams: Value
    wait: Value  # seconds for which calls without an answer are repeated
    timeout: Value  # seconds for one call

    def shown(self) -> Iterator[tuple[str, Any, str]]:
        for field in fields(self):
            value: Value = getattr(self, field.name)
            yield field.name, value.value, value.origin

    def path(self, name: str) -> Path | None:
        value = getattr(self, name).value
        return None if value is None else Path(value)

    def passphrase_file_for(self, name: str) -> Path | None:
        """Return the passphrase file of this identity. The file of a context is only for the identity of that
        context."""
        file = self.passphrase_file
        if self._is_of_context(file) and (self.identity.value, self.identity.origin) != (name, file.origin):
            return None
        return self.path("passphrase_file")

    def may_make_identity(self, name: str) -> bool:
        """Return True if a missing identity may be made: the one of the context, with a file for its passphrase."""
        return bool(self.make_keys.value) and self.passphrase_file_for(name) is not None

    def is_implied(self, name: str) -> bool:
        """Return True if a value comes from a context that no option and no variable of this command selected."""
        asked = self.context.origin.startswith(("--", "VEEN_"))
        return self._is_of_context(getattr(self, name)) and not asked

    @staticmethod
    def _is_of_context(value: Value) -> bool:
        return value.origin.endswith("]")


_UNSET: Final = Value(None, "unset")


def resolve(
    flags: Mapping[str, str | None], env: Mapping[str, str], project: ConfigFile, user: ConfigFile
) -> ClientSettings:
    """Resolve the settings. Pure: everything that decides is an argument."""
    asked = {name: _explicit_value(name, flags, env) for name in ENVIRONMENT}
    contexts = _contexts(project, user)
    context = _choose(asked, contexts, project, user)
    table, file = contexts[context.value] if context.value is not None else ({}, None)
    by_project = _project_chose(context, file, project, user)

    def value(name: str) -> Value:
        rank, choice = asked[name]
        if name == "token_file" and rank == 1 and by_project:
            rank = 0
        if name == "hub" and "hub" in table and context.value is not None and rank < asked["context"][0]:
            rank = 0  # --context outranks VEEN_HUB
        if rank:
            return choice
        if name in table:
            return Value(table[name], f"{_origin(file)} [context.{context.value}]")
        if name in TOP_KEYS:
            for layer in (project, user):
                if name in layer.top:
                    return Value(layer.top[name], _origin(layer))
        if name == "token_file" and asked[name][0] == 1:
            return Value(None, f"{ENVIRONMENT[name]} is not used: {_origin(project)} chose the hub")
        return Value(_DEFAULTS[name], "default") if name in _DEFAULTS else _UNSET

    values = {name: value(name) for name in ENVIRONMENT if name != "context"}
    if not asked["hub_id"][0] and values["hub_pk"].value != table.get("hub_pk"):
        values["hub_id"] = _UNSET  # it belongs to the key of the context, and another key was given
    return ClientSettings(context=context, **values)


def resolve_with_files(
    flags: Mapping[str, str | None], env: Mapping[str, str], project: ConfigFile, user: ConfigFile
) -> ClientSettings:
    """Resolve the settings; the pin may also be in the file that VEEN_PIN_FILE names, such as a mounted Secret."""
    path = env.get(PIN_FILE)
    if not path or env.get("VEEN_PIN") or flags.get("hub_pk") is not None:
        return resolve(flags, env, project, user)
    settings = resolve(flags, {**env, "VEEN_PIN": read_pin_file(path, PIN_FILE)}, project, user)
    if settings.hub_pk.origin != "VEEN_PIN":
        return settings
    return replace(settings, hub_pk=Value(settings.hub_pk.value, f"{PIN_FILE}, {path}"))


def read_pin_file(path: str, variable: str) -> str:
    """Read the pin from a file that a variable names."""
    try:
        return Path(path).read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as exc:
        cause = exc.strerror if isinstance(exc, OSError) else "it is no text"
        hint = "put ed25519: and 64 hex digits there: veen hub key show --data-dir DIR --only-pin"
        raise SettingsError("E.USAGE", f"{variable}: {path} cannot be read", str(cause), hint) from exc


def _project_chose(context: Value, file: ConfigFile | None, project: ConfigFile, user: ConfigFile) -> bool:
    """Return True if the project file selected the hub: by its own context, or by another of the user's contexts."""
    if file is None:
        return False
    selected = context.origin == _origin(project) and context.value != user.top.get("current_context")
    return file.project or selected


def _explicit_value(name: str, flags: Mapping[str, str | None], env: Mapping[str, str]) -> tuple[int, Value]:
    """Return rank and value of a setting on the command line (2) or in the environment (1)."""
    flag, variable = flags.get(name), ENVIRONMENT[name]
    if flag is not None:
        where, text, rank = _FLAGS.get(name, f"--{name.replace('_', '-')}"), flag, 2
    elif env.get(variable):
        where, text, rank = variable, env[variable], 1
    else:
        return 0, _UNSET
    try:
        return rank, Value(_check(name, text), where)
    except ValueError as exc:
        raise SettingsError("E.USAGE", f"{where} cannot be used", str(exc), "veen help environment") from exc


def _check(name: str, text: str) -> Any:
    if name in CONTEXT_KEYS:
        return check_value(f"context.any.{name}", text)
    if name in TOP_KEYS:
        return check_value(name, text)
    return text


def _contexts(project: ConfigFile, user: ConfigFile) -> dict[str, tuple[Mapping[str, Any], ConfigFile]]:
    for name in project.contexts.keys() & user.contexts.keys():
        if project.contexts[name].get("hub_pk") != user.contexts[name].get("hub_pk"):
            raise SettingsError(
                "E.LOCAL.CONFIG",
                f"{project.path}: redefines the context {name!r} with another key",
                f"your own configuration pins {user.contexts[name].get('hub_pk') or 'no key'} for it",
                f"rename it in the project's file; if the new key is right: veen context pin {name} KEY --replace",
            )
    return {name: (table, file) for file in (user, project) for name, table in file.contexts.items()}


def _choose(
    asked: Mapping[str, tuple[int, Value]],
    contexts: Mapping[str, tuple[Mapping[str, Any], ConfigFile]],
    project: ConfigFile,
    user: ConfigFile,
) -> Value:
    rank, chosen = asked["context"]
    if not rank:
        for layer in (project, user):
            if "current_context" in layer.top:
                chosen = Value(layer.top["current_context"], _origin(layer))
                break
    hub_rank, hub = asked["hub"]
    if hub_rank > rank:
        same = [name for name, (table, _) in contexts.items() if table.get("hub") == hub.value]
        if chosen.value not in same:
            chosen = Value(same[0], f"its hub is that of {hub.origin}") if same else _UNSET
    if chosen.value is not None and chosen.value not in contexts:
        raise no_context(str(chosen.value), chosen.origin)
    return chosen


def no_context(name: str, origin: str) -> SettingsError:
    return SettingsError(
        "E.LOCAL.CONTEXT",
        f"there is no context {name!r}",
        f"it is asked for by {origin}",
        f"veen context list, or: veen context add {name} --hub URL --pin ed25519:HEX",
    )


def _origin(file: ConfigFile | None) -> str:
    return "" if file is None else f"./{file.path.name}" if file.project else str(file.path)
