"""Contents of a wire object: its fields by name, and values that follow from them without keys.

Wire objects for programs: their fields by name, also those of arrays on the wire.
"""

from collections.abc import Iterator
from typing import Any

from veen.core.errors import VeenError
from veen.core.objects.captoken import CapToken
from veen.core.objects.control import ControlRecord
from veen.core.objects.msg import Msg
from veen.core.objects.profile import PRESETS, Profile
from veen.core.sealing.ciphertext import Parts
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


def fields_of(obj: Wire, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield every field by its name in the specification, nested ones with their path."""
    for name, value in obj.present_fields():
        yield from _field(prefix + name, value)


def _field(path: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Wire):
        yield from fields_of(value, f"{path}.")
    elif isinstance(value, (list, tuple)):
        if not value:
            yield path, "none"
        for index, element in enumerate(value):
            yield from _field(f"{path}[{index}]", element)
    elif isinstance(value, dict):
        for key, element in value.items():
            yield from _field(f"{path}.{key}", element)
    elif value is None:
        yield path, "none"
    else:
        yield path, value.hex() if isinstance(value, bytes) else str(value)


def derive_fields(obj: Wire) -> dict[str, str]:
    """Return values that follow from the fields: ids, sizes, and the result of the object's own checks."""
    if isinstance(obj, Msg):
        return {"msg_id": obj.leaf_hash().hex(), **_ciphertext(obj), "self_check": _self_check(obj)}
    if isinstance(obj, Profile):
        presets = [name for name, preset in PRESETS.items() if preset == obj]
        return {"profile_id": obj.profile_id().hex(), "preset": ", ".join(presets) or "none"}
    if isinstance(obj, CapToken):
        return {"auth_ref": obj.auth_ref().hex()}
    if isinstance(obj, ControlRecord):
        return {"record_hash": obj.record_hash().hex()}
    return {}


def _ciphertext(msg: Msg) -> dict[str, str]:
    try:
        parts = Parts.split(msg.ciphertext)
    except VeenError as exc:
        return {"ciphertext_parts": f"unreadable: {exc}"}
    sizes = f"header {len(parts.hpke_ct_hdr)}, body {len(parts.aead_ct_body)}, padding {len(parts.padding)} bytes"
    return {"ciphertext_parts": f"{sizes}, all encrypted for the reader of the stream"}


def _self_check(msg: Msg) -> str:
    try:
        msg.verify()
    except VeenError as exc:
        return f"FAILED: {exc}"
    return "ct_hash and sig hold"
