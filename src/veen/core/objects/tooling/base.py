"""Common requests and responses of the tooling API, and the bounds of its lists."""

from dataclasses import dataclass
from typing import Final

from veen.core.wire import Bytes32, Map

MAX_BATCH_ITEMS: Final = 1_000
MAX_LISTED: Final = 1_000  # elements of one answer that lists things
MAX_WAIT_SEC: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRequest(Map, kind="request"):
    """A request with no field but its version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelRequest(Map, kind="label request"):
    """A request about one label."""

    label: Bytes32


@dataclass(frozen=True, slots=True, kw_only=True)
class OkResponse(Map, kind="ok response"):
    """Confirmation that the hub carried out the request."""

    ok: bool
