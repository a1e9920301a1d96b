"""Wire objects for programs: their fields by name, also those of objects that are arrays on the wire."""

from typing import Any

from veen.core.wire import Wire


def named(obj: Wire) -> dict[str, Any]:
    """Every field by the name that the spec gives it, bytes as hex. `veen verify` reads this form as well."""
    return {name: _plain(value) for name, value in obj.present_fields()}


def _plain(value: Any) -> Any:
    if isinstance(value, Wire):
        return named(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, (list, tuple)):
        return [_plain(element) for element in value]
    if isinstance(value, dict):
        return {name: _plain(element) for name, element in value.items()}
    return value
