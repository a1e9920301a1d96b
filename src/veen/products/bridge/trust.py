"""The trust list of a receiving zone: hubs, exporters, and the targets of their streams (AGB-07, AGB-08, D-132).

    [[source]]
    zone = "z1"                              # [a-z0-9-]{1,32}
    bridge = "plant-a"                       # the name that the exporter uses
    hub = "ed25519:…"                        # a key of the source hub, or root:ed25519:…
    hub_id = "…"                             # optional
    exporters = ["…"]                        # keys that may sign bundles, 64 hex digits each

    [source.map]                             # optional; default: these two rules
    "export/z1/*" = "import/z1/*"
    "record/*" = "import/z1/*"

A pattern ends in `*` or names one stream; the longest match applies.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from veen.client.errors import ClientError
from veen.client.verify.pin import HubPin
from veen.products.bridge.bundle import BridgeMisconfigured, bridge_id_of

_ZONE: Final = re.compile(r"[a-z0-9-]{1,32}")
_IMPORT: Final = "import/"
_MEMBERS: Final = frozenset(("zone", "bridge", "hub", "hub_id", "exporters", "map"))


def check_zone(zone: str) -> str:
    if not _ZONE.fullmatch(zone):
        raise BridgeMisconfigured(f"{zone[:80]!r} is not a valid zone name: expected [a-z0-9-], at most 32 characters")
    return zone


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedSource:
    """One bridge from one hub."""

    zone: str
    bridge: str
    hub: str  # the text of a pin
    hub_id: str | None
    exporters: tuple[str, ...]
    rules: tuple[tuple[str, str], ...]

    @property
    def bridge_id(self) -> bytes:
        return bridge_id_of(self.bridge)

    @property
    def pin(self) -> HubPin:
        return HubPin.parse(self.hub, self.hub_id)

    def trusts(self, exporter_pk: bytes) -> bool:
        return exporter_pk.hex() in self.exporters

    def target_of(self, stream: str) -> str | None:
        """Return the import stream of a stream of the source; None if no rule matches."""
        fits = [
            (len(pattern), target.removesuffix("*") + stream.removeprefix(pattern[:-1]))
            if pattern.endswith("*")
            else (len(pattern), target)
            for pattern, target in self.rules
            if stream == pattern or (pattern.endswith("*") and stream.startswith(pattern[:-1]))
        ]
        return max(fits)[1] if fits else None

    def to_json(self) -> dict[str, Any]:
        return {
            "zone": self.zone,
            "bridge": self.bridge,
            "hub": self.hub,
            "hub_id": self.hub_id,
            "exporters": list(self.exporters),
            "map": dict(self.rules),
        }

    @classmethod
    def from_json(cls, value: Any) -> Self:
        if type(value) is not dict or not value.keys() <= _MEMBERS:
            raise BridgeMisconfigured(f"a source has the members {', '.join(sorted(_MEMBERS))} and no others")
        zone, bridge, hub = (_text(value, name) for name in ("zone", "bridge", "hub"))
        check_zone(zone)
        exporters = value.get("exporters")
        if type(exporters) is not list or not exporters or not all(_is_key(key) for key in exporters):
            raise BridgeMisconfigured("exporters: expected a list of keys of 64 lower-case hex digits")
        rules = value.get("map") or {f"export/{zone}/*": f"import/{zone}/*", "record/*": f"import/{zone}/*"}
        if type(rules) is not dict or not all(type(target) is str for target in rules.values()):
            raise BridgeMisconfigured("map: expected streams, or patterns that end in *, and their target streams")
        for pattern, target in rules.items():
            if "*" in pattern[:-1] or "*" in target[:-1] or pattern.endswith("*") != target.endswith("*"):
                raise BridgeMisconfigured(f"map: {pattern!r} to {target!r}: a * may stand at the end of both")
            if not target.startswith(_IMPORT):
                raise BridgeMisconfigured(f"map: {target!r} does not begin with {_IMPORT}")
        source = cls(
            zone=zone,
            bridge=bridge,
            hub=hub,
            hub_id=None if value.get("hub_id") is None else _text(value, "hub_id"),
            exporters=tuple(exporters),
            rules=tuple(sorted(rules.items())),
        )
        try:
            _ = source.pin
        except ClientError as exc:
            raise BridgeMisconfigured(f"hub: {exc}") from exc
        return source


@dataclass(frozen=True, slots=True)
class TrustList:
    """The list of trusted sources."""

    sources: tuple[TrustedSource, ...]

    @classmethod
    def from_toml(cls, text: str) -> Self:
        try:
            tables = tomllib.loads(text)
        except tomllib.TOMLDecodeError as exc:
            raise BridgeMisconfigured(f"the trust list is not TOML: {exc}") from exc
        if tables.keys() - {"source"}:
            raise BridgeMisconfigured("a trust list has [[source]] tables and nothing else")
        return cls.from_json(tables.get("source", []))

    @classmethod
    def from_json(cls, value: Any) -> Self:
        if type(value) is not list or not value:
            raise BridgeMisconfigured("the trust list names no source")
        sources = tuple(TrustedSource.from_json(element) for element in value)
        names = [source.bridge for source in sources]
        if len(set(names)) != len(names):
            raise BridgeMisconfigured("two sources have the same bridge name")
        return cls(sources)

    def to_json(self) -> list[dict[str, Any]]:
        return [source.to_json() for source in self.sources]

    def source_of(self, bridge_id: bytes) -> TrustedSource | None:
        return next((source for source in self.sources if source.bridge_id == bridge_id), None)


def _text(value: Mapping[str, Any], name: str) -> str:
    text = value.get(name)
    if type(text) is not str or not text:
        raise BridgeMisconfigured(f"{name}: expected a text")
    return text


def _is_key(value: Any) -> bool:
    return type(value) is str and re.fullmatch("[0-9a-f]{64}", value) is not None
