"""Wire objects for programs: their fields by name, also those of arrays on the wire."""

from typing import Any

from veen.core.wire import Wire


def to_named(obj: Wire) -> dict[str, Any]:
    """Return every field by its name in the specification, bytes as hex. `veen verify` reads this form, too."""
    return {name: _plain(value) for name, value in obj.present_fields()}


def _plain(value: Any) -> Any:
    if isinstance(value, Wire):
        return to_named(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, (list, tuple)):
        return [_plain(element) for element in value]
    if isinstance(value, dict):
        return {name: _plain(element) for name, element in value.items()}
    return value
