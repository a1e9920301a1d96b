"""What the objects of the tooling API have in common, and the bounds of its lists."""

from dataclasses import dataclass, fields
from functools import cache
from typing import Any, ClassVar, Final, Self

from veen.core.wire import Fields, Form, Wire

__all__ = [
    "MAX_BATCH_ITEMS",
    "MAX_LISTED",
    "MAX_WAIT_SEC",
    "LabelRequest",
    "Map",
    "OkResponse",
    "Part",
    "VersionRequest",
]

MAX_BATCH_ITEMS: Final = 1_000
MAX_LISTED: Final = 1_000  # elements of one answer that lists things
MAX_WAIT_SEC: Final = 60


class Map(Wire):
    """A map whose fields are the dataclass's own, in their order, after `ver`."""

    __slots__ = ()

    FORM: ClassVar[Form] = "map"

    def _write(self) -> dict[str, Any]:
        return {"ver": 1, **{name: getattr(self, name) for name in _fields_of(type(self))}}


class Part(Wire):
    """A map inside another one: no `ver`."""

    __slots__ = ()

    FORM: ClassVar[Form] = "map"

    def _write(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _fields_of(type(self))}


@cache
def _fields_of(kind: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRequest(Map):
    """A request that says nothing but which version it speaks."""

    KIND: ClassVar[str] = "request"

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls()


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelRequest(Map):
    KIND: ClassVar[str] = "label request"

    label: bytes

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(label=f.bstr("label", 32))


@dataclass(frozen=True, slots=True, kw_only=True)
class OkResponse(Map):
    KIND: ClassVar[str] = "ok response"

    ok: bool

    @classmethod
    def _read(cls, f: Fields) -> Self:
        f.version()
        return cls(ok=f.flag("ok"))
