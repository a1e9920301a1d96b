"""Parts of states as JSON has them, for people and programs."""

from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
    """Return a part of a state as JSON has it: bytes are hex, records are objects by field, keys are text."""
    from veen.overlays.framework.state import Free

    if isinstance(value, Free):
        return plain(value.value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: plain(getattr(value, name)) for name in value._fields}
    if hasattr(type(value), "__dataclass_fields__"):
        return {name: plain(getattr(value, name)) for name in type(value).__dataclass_fields__}
    if isinstance(value, Mapping):
        return {_key(key): plain(element) for key, element in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted((plain(element) for element in value), key=str)
    if isinstance(value, (list, tuple)):
        return [plain(element) for element in value]
    return value


def _key(key: Any) -> str:
    if isinstance(key, tuple):
        return "/".join(map(_key, key))
    return key.hex() if isinstance(key, bytes) else str(key)
