"""The configuration of an agent: a TOML file with [agent] and one [[source]] for each source.

[agent]
spool_bytes = 268435456
heartbeat = 60
redact = [".password"]

[[source]]
id = "access-log"
kind = "file"
stream = "record/app/http"
path = "/var/log/nginx/access.log"
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from veen.client.identity.keyring import Keyring
from veen.products.recorder.adapters.registry import SourceConfig, SourceInvalid, adapter_of
from veen.products.recorder.agent import AgentSource, Pace
from veen.products.recorder.events import MAX_PAYLOAD
from veen.products.recorder.redaction import Redactor

_SPOOL_BYTES: Final = 256 * 1024 * 1024
_AGENT_KEYS: Final = ("spool_bytes", "heartbeat", "max_payload", "redact", "drain")
_MAX_FILE: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """Settings of one agent, from its configuration file."""

    sources: tuple[tuple[SourceConfig, str, Redactor | None], ...]  # with the stream of each
    spool_bytes: int = _SPOOL_BYTES
    max_payload: int = MAX_PAYLOAD
    pace: Pace = field(default_factory=Pace)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the file. Raise SourceInvalid, which names the source and the error."""
        with path.open("rb") as file:
            data = file.read(_MAX_FILE)
        try:
            return cls.of(tomllib.loads(data.decode()))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
            raise SourceInvalid(f"{path}: {exc}") from exc

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Self:
        """Build the configuration from the tables of the file."""
        unknown = set(table) - {"agent", "source"}
        agent = table.get("agent", {})
        if unknown or not isinstance(agent, dict) or set(agent) - set(_AGENT_KEYS):
            wrong = ", ".join(sorted(unknown or set(agent) - set(_AGENT_KEYS)))
            raise SourceInvalid(
                f"unknown key {wrong}: [agent] has {', '.join(_AGENT_KEYS)}, and sources are [[source]]"
            )
        common = _rules(agent.get("redact", []))
        sources = tuple(_source(entry, common) for entry in table.get("source", []))
        if len({config.id for config, _, _ in sources}) < len(sources):
            raise SourceInvalid("two sources have the same id")
        return cls(
            sources=sources,
            spool_bytes=_number(agent, "spool_bytes", _SPOOL_BYTES),
            max_payload=min(_number(agent, "max_payload", MAX_PAYLOAD), MAX_PAYLOAD * 3),
            pace=Pace(heartbeat=float(_number(agent, "heartbeat", 60)), drain=float(_number(agent, "drain", 30))),
        )

    def open_sources(self, ring: Keyring) -> list[AgentSource]:
        """Return the sources with their adapters. Raise UnknownStream if the producer has no key of a stream."""
        return [
            AgentSource(adapter_of(config), ring.for_stream(stream).stream_id, redactor)
            for config, stream, redactor in self.sources
        ]


def _rules(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(rule, str) for rule in value):
        raise SourceInvalid("redact is a list of rules such as .password or re:PATTERN")
    return value


def _source(entry: Any, common: Sequence[str]) -> tuple[SourceConfig, str, Redactor | None]:
    if not isinstance(entry, dict):
        raise SourceInvalid("a source is a table [[source]]")
    options = dict(entry)
    for name in ("id", "kind", "stream"):
        if not isinstance(options.get(name), str) or not options[name]:
            raise SourceInvalid(f"source {options.get('id', '?')!r}: {name} is missing")
    rules = [*common, *_rules(options.pop("redact", []))]
    config_id, kind, stream = options.pop("id"), options.pop("kind"), options.pop("stream")
    return SourceConfig(config_id, kind, options), stream, Redactor.of(rules) if rules else None


def _number(table: Mapping[str, Any], name: str, default: int) -> int:
    value = table.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise SourceInvalid(f"[agent] {name} is a whole number above 0")
    return value
