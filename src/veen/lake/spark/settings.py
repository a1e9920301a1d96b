"""Settings `spark.veen.*` of a Spark session, for all that reads logs in it.

They are read on the driver when work begins. Spark passes a data source only its options, so `reader` sets those that
concern the source.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from veen.lake.log.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader, SparkSession

_MIB: Final = 1024 * 1024

SETTINGS: Final = {
    "spark.veen.partitionBytes": "bytes of log per task of the source and of an audit (default 64 MiB)",
    "spark.veen.openBytes": "bytes of log per task where entries are opened, as by a query (default 8 MiB)",
    "spark.veen.verify": "the option `verify` of `reader` where nothing else is said",
    "spark.veen.onDamage": "the option `onDamage` of `reader` where nothing else is said",
    "spark.veen.log": "for a session that we start: a file for what the JVM and its workers say (default: nowhere)",
}
_OPTIONS: Final = {
    "spark.veen.partitionBytes": "partitionBytes",
    "spark.veen.verify": "verify",
    "spark.veen.onDamage": "onDamage",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSettings:
    """Amount of log that one Spark task takes."""

    partition_bytes: int = 64 * _MIB
    open_bytes: int = 8 * _MIB  # opening costs far more than reading: smaller tasks than those of the source

    @classmethod
    def of(cls, session: "SparkSession") -> Self:
        settings = _settings(session)
        return cls(
            partition_bytes=_count(settings, "spark.veen.partitionBytes", 64 * _MIB),
            open_bytes=_count(settings, "spark.veen.openBytes", 8 * _MIB),
        )


def reader(session: "SparkSession", name: str = "veen") -> "DataFrameReader":
    """Return `session.read.format(name)` with the options that the session's settings imply; later options win."""
    from veen.lake.spark.session import register_sources

    if name != "veen":  # which Spark finds by itself
        register_sources(session)
    settings, frame_reader = _settings(session), session.read.format(name)
    for setting, option in _OPTIONS.items():
        if setting in settings:
            frame_reader = frame_reader.option(option, settings[setting])
    return frame_reader


def _settings(session: "SparkSession") -> dict[str, str]:
    values = {name: session.conf.get(name, None) for name in SETTINGS}
    return {name: value for name, value in values.items() if value is not None}


def _count(settings: Mapping[str, str], name: str, default: int) -> int:
    text = settings.get(name)
    if text is None:
        return default
    if not text.isdecimal() or int(text) == 0:
        raise OptionError(f"{name} is {text!r}, which is not a number of bytes")
    return int(text)
