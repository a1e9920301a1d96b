"""universe.toml: one authority, its tenants and bridges (001 spec-4 §3)."""

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final, TypeVar

from veen.core.errors import StatedError

T = TypeVar("T")

_DNS: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_QUANTITY: Final = re.compile(r"[1-9][0-9]*(Mi|Gi|Ti)")
_VERSION: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_CRON_FIELD: Final = re.compile(r"[0-9*,/-]+")
_REGISTRY: Final = re.compile(r"[a-z0-9][a-z0-9.:/_-]*")
_MAX_LABEL: Final = 63
_MAX_NAME: Final = 253
_TENANT_PREFIX: Final = "veen-tenant-"
# Fixed by the profile; a different configuration would contradict the manifests.
_FIXED: Final = frozenset({"data_dir", "keys_dir", "identity", "role", "hub_profile", "universe_id", "tenant_id"})


class UniverseError(StatedError):
    """universe.toml is invalid, so that no manifests can be made."""

    hint = "docs/kubernetes.md describes every key; `veen kube validate FILE` names all faults of rendered manifests."


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorityHub:
    """The hub that holds schemas, label classes, authorities and revocations."""

    storage: str = "10Gi"
    storage_class: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A hub in a separate namespace. Without `storage` it is disposable: lost with its pod (D-121)."""

    id: str
    storage: str | None = None
    storage_class: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def namespace(self) -> str:
        return f"{_TENANT_PREFIX}{self.id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bridge:
    """Copies streams from one hub to another. Each end is the id of a tenant, or `authority`."""

    name: str
    source: str
    target: str
    streams: tuple[str, ...]

    @property
    def tenant(self) -> str | None:
        """The tenant in whose namespace the bridge runs; None for veen-system."""
        return next((end for end in (self.target, self.source) if end != "authority"), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Universe:
    """All hubs of a cluster that share an authority."""

    id: str
    version: str
    registry: str | None = None
    authority: AuthorityHub = AuthorityHub()
    tenants: tuple[Tenant, ...] = ()
    bridges: tuple[Bridge, ...] = ()
    selftest_schedule: str | None = None

    def image(self, name: str) -> str:
        return f"{self.registry}/{name}:{self.version}" if self.registry else f"{name}:{self.version}"

    def tenant(self, tenant_id: str) -> Tenant:
        for tenant in self.tenants:
            if tenant.id == tenant_id:
                return tenant
        raise UniverseError(f"no tenant is called {tenant_id!r}; there are {_join_names([t.id for t in self.tenants])}")


def parse_universe(text: str, default_version: str) -> Universe:
    """Parse a universe. Raise UniverseError, which names the wrong key."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise UniverseError(f"universe.toml is not TOML: {exc}") from exc
    top = _Table(table, "")
    universe = Universe(
        id=top.take("universe", _label(_MAX_LABEL)),
        version=top.take("version", _pattern(_VERSION, "an image tag"), default_version),
        registry=top.take("registry", _pattern(_REGISTRY, "a registry and a path"), None),
        authority=_authority(top.table("authority")),
        tenants=tuple(_tenant(entry) for entry in top.tables("tenants")),
        bridges=tuple(_bridge(entry) for entry in top.tables("bridges")),
        selftest_schedule=_selftest(top.table("selftest")),
    )
    top.end()
    _check_names(universe)
    return universe


class _Table:
    """A table of the file whose keys are taken one by one; the rest are errors."""

    def __init__(self, table: Mapping[str, Any], where: str) -> None:
        self._left, self._where = dict(table), where
        self._keys: list[str] = []  # that were asked for, to name the nearest

    def take(self, key: str, read: Callable[[Any, str], T], default: Any = ...) -> T:
        self._keys.append(key)
        where = f"{self._where}{key}"
        if key not in self._left:
            if default is ...:
                raise UniverseError(f"{where} is missing")
            return default  # type: ignore[no-any-return]  # the caller's default replaces a value
        return read(self._left.pop(key), where)

    def table(self, key: str) -> "_Table":
        value = self.take(key, _table_of, {})
        return _Table(value, f"{self._where}{key}.")

    def tables(self, key: str) -> Sequence["_Table"]:
        entries = self.take(key, _list_of(_table_of), [])
        return [_Table(entry, f"{self._where}{key}[{number}].") for number, entry in enumerate(entries)]

    def end(self) -> None:
        for key in self._left:
            near = get_close_matches(key, self._keys, n=1)
            meant = f"; did you mean {near[0]}?" if near else f"; known are {_join_names(self._keys)}"
            raise UniverseError(f"{self._where}{key}: no such key{meant}")


def _authority(table: _Table) -> AuthorityHub:
    authority = AuthorityHub(
        storage=table.take("storage", _pattern(_QUANTITY, "a size such as 10Gi"), "10Gi"),
        storage_class=table.take("storage_class", _dns, None),
        config=table.take("config", _config, {}),
    )
    table.end()
    return authority


def _tenant(table: _Table) -> Tenant:
    tenant = Tenant(
        id=table.take("id", _label(_MAX_LABEL - len(_TENANT_PREFIX))),
        storage=table.take("storage", _pattern(_QUANTITY, "a size such as 10Gi"), None),
        storage_class=table.take("storage_class", _dns, None),
        config=table.take("config", _config, {}),
    )
    table.end()
    return tenant


def _bridge(table: _Table) -> Bridge:
    bridge = Bridge(
        name=table.take("name", _label(_MAX_LABEL - len("veen-bridge--config"))),
        source=table.take("source", _text),
        target=table.take("target", _text),
        streams=tuple(table.take("streams", _list_of(_text))),
    )
    table.end()
    return bridge


def _selftest(table: _Table) -> str | None:
    schedule = table.take("schedule", _cron, None)
    table.end()
    return schedule


def _check_names(universe: Universe) -> None:
    for what, names in (
        ("tenants", [tenant.id for tenant in universe.tenants]),
        ("bridges", [bridge.name for bridge in universe.bridges]),
    ):
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise UniverseError(f"{what}: {_join_names(twice)} occurs twice")
    ends = {"authority", *(tenant.id for tenant in universe.tenants)}
    for bridge in universe.bridges:
        for key, end in (("source", bridge.source), ("target", bridge.target)):
            if end not in ends:
                raise UniverseError(f"bridge {bridge.name}: {key} is {end!r}; there are {_join_names(sorted(ends))}")
        if bridge.source == bridge.target:
            raise UniverseError(f"bridge {bridge.name}: source and target are the same hub")
        if not bridge.streams:
            raise UniverseError(f"bridge {bridge.name}: streams is empty")


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise UniverseError(f"{where}: expected some text")
    return value


def _pattern(pattern: re.Pattern[str], what: str) -> Callable[[Any, str], str]:
    def read(value: Any, where: str) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise UniverseError(f"{where}: expected {what}")
        return value

    return read


def _label(most: int) -> Callable[[Any, str], str]:
    """Return the parser of a part of a DNS name, as in namespaces and objects."""

    def read(value: Any, where: str) -> str:
        if not isinstance(value, str) or len(value) > most or not _DNS.fullmatch(value):
            raise UniverseError(f"{where}: expected at most {most} lower-case letters, digits and inner hyphens")
        return value

    return read


def _dns(value: Any, where: str) -> str:
    if not isinstance(value, str) or len(value) > _MAX_NAME or not all(map(_DNS.fullmatch, value.split("."))):
        raise UniverseError(f"{where}: expected a name of lower-case letters, digits, hyphens and dots")
    return value


def _cron(value: Any, where: str) -> str:
    if not isinstance(value, str) or len(parts := value.split()) != 5 or not all(map(_CRON_FIELD.fullmatch, parts)):
        raise UniverseError(f"{where}: expected five fields of cron, such as 17 3 * * *")
    return value


def _config(value: Any, where: str) -> Mapping[str, Any]:
    config = _table_of(value, where)
    fixed = sorted(_FIXED & config.keys())
    if fixed:
        raise UniverseError(f"{where}.{fixed[0]}: the profile sets this key; leave it out")
    return config


def _table_of(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise UniverseError(f"{where}: expected a table")
    return value


def _list_of(read: Callable[[Any, str], T]) -> Callable[[Any, str], list[T]]:
    def read_all(value: Any, where: str) -> list[T]:
        if not isinstance(value, list):
            raise UniverseError(f"{where}: expected a list")
        return [read(item, f"{where}[{number}]") for number, item in enumerate(value)]

    return read_all


def _join_names(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "none"
