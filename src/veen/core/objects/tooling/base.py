"""What the objects of the tooling API have in common, and the bounds of its lists."""

from dataclasses import dataclass
from typing import ClassVar, Final

from veen.core.wire import Bytes32, Map

__all__ = [
    "MAX_BATCH_ITEMS",
    "MAX_LISTED",
    "MAX_WAIT_SEC",
    "LabelRequest",
    "OkResponse",
    "VersionRequest",
]

MAX_BATCH_ITEMS: Final = 1_000
MAX_LISTED: Final = 1_000  # elements of one answer that lists things
MAX_WAIT_SEC: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRequest(Map):
    """A request that says nothing but which version it speaks."""

    KIND: ClassVar[str] = "request"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelRequest(Map):
    """A request about one label."""

    KIND: ClassVar[str] = "label request"

    label: Bytes32


@dataclass(frozen=True, slots=True, kw_only=True)
class OkResponse(Map):
    """The hub has done it."""

    KIND: ClassVar[str] = "ok response"

    ok: bool
