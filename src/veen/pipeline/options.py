"""The options of `format("veen")`, read once and checked at the door."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Self

from veen.core.errors import VeenError
from veen.core.labels import stream_id_of
from veen.pipeline.bronze import LEVELS, Level
from veen.pipeline.errors import OptionError
from veen.pipeline.plan import Selection

__all__ = ["KNOWN", "Options", "seconds_of"]

KNOWN: Final = {
    "path": "the data directory: a path, or a URL that Arrow can read",
    "stream": "one stream: its name, or its id as hex:…",
    "label": "one label, in hex",
    "fromseq": "the first stream_seq",
    "toseq": "the last stream_seq",
    "fromtime": "the first hub_ts: seconds, or ISO-8601",
    "totime": "the last hub_ts",
    "verify": "none, hash (default), receipt or full",
    "ondamage": "row (default): a damaged entry is a row with ok = false; fail: stop at the first",
    "maxentriespertrigger": "how many entries one micro-batch may take",
    "failondataloss": "whether a stream stops when entries it has not read are gone (default true)",
    "partitionbytes": "how many bytes of log one task reads (default 64 MiB)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a reader was asked for."""

    path: str
    selection: Selection
    level: Level = "hash"
    fail_fast: bool = False
    max_entries: int | None = None
    fail_on_data_loss: bool = True
    partition_bytes: int = 64 * 1024 * 1024

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Self:
        """Names in any case; a name that is not known is refused, since it would silently change nothing."""
        options = {name.lower(): value for name, value in given.items()}
        if unknown := sorted(set(options) - set(KNOWN)):
            raise OptionError(f"there is no option {', '.join(unknown)}; known are {', '.join(sorted(KNOWN))}")
        if "path" not in options:
            raise OptionError("give the data directory: .load(PATH) or .option('path', PATH)")
        level = options.get("verify", "hash")
        if level not in LEVELS:
            raise OptionError(f"verify is {level!r}; it may be {', '.join(LEVELS)}")
        damage = options.get("ondamage", "row")
        if damage not in ("row", "fail"):
            raise OptionError(f"onDamage is {damage!r}; it may be row or fail")
        return cls(
            path=options["path"],
            selection=Selection(
                labels=frozenset((_label(options["label"]),)) if "label" in options else None,
                streams=frozenset((_stream(options["stream"]),)) if "stream" in options else None,
                first_seq=_number(options, "fromseq", 1),
                last_seq=_number(options, "toseq", None),
                first_ts=seconds_of(options["fromtime"]) if "fromtime" in options else None,
                last_ts=seconds_of(options["totime"]) if "totime" in options else None,
            ),
            level=level,
            fail_fast=damage == "fail",
            max_entries=_number(options, "maxentriespertrigger", None),
            fail_on_data_loss=_flag(options, "failondataloss", default=True),
            partition_bytes=_number(options, "partitionbytes", 64 * 1024 * 1024) or 1,
        )


def _label(text: str) -> bytes:
    try:
        label = bytes.fromhex(text.removeprefix("label:"))
    except ValueError:
        label = b""
    if len(label) != 32:
        raise OptionError(f"label {text!r} is not 64 hex digits")
    return label


def _stream(text: str) -> bytes:
    try:
        return stream_id_of(text.removeprefix("hex:"))
    except VeenError as exc:
        raise OptionError(f"stream {text!r}: {exc}") from exc


def _number(options: Mapping[str, str], name: str, default: int | None) -> int | None:
    if name not in options:
        return default
    try:
        value = int(options[name])
    except ValueError:
        value = -1
    if value < 0:
        raise OptionError(f"{name} is {options[name]!r}, which is not a count")
    return value


def _flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    value = options.get(name, str(default)).lower()
    if value not in ("true", "false"):
        raise OptionError(f"{name} is {value!r}; it may be true or false")
    return value == "true"


def seconds_of(text: str) -> int:
    """Seconds since 1970, from a number or from ISO-8601; a time without a zone is UTC."""
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as exc:
        raise OptionError(f"{text!r} is not a time: expected seconds or ISO-8601") from exc
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
