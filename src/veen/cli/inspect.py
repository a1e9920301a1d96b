"""`veen inspect`: what is in this object? No keys needed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from veen.cli.files import OBJECT_FILE, read_object
from veen.cli.output import Exit, Output, json_option
from veen.core.captoken import CapToken
from veen.core.ciphertext import Parts
from veen.core.control import ControlRecord
from veen.core.errors import VeenError
from veen.core.msg import Msg
from veen.core.profile import PRESETS, Profile
from veen.core.wire import Wire

__all__ = ["inspect"]


@click.command()
@click.argument("file", type=OBJECT_FILE)
@json_option
def inspect(output: Output, file: Path) -> None:
    """Show the fields of the wire object in FILE, and what can be computed from them without keys.

    FILE holds CBOR, its JSON form, or hex; "-" reads standard input.
    """
    data, found = read_object(file, exit_code=Exit.USAGE)
    derived = _derived(found.obj)
    document: dict[str, Any] = {
        "kind": found.obj.KIND,
        "encoding": found.encoding,
        "bytes": len(data),
        "also_fits": list(found.also),
        "object": found.obj.to_json(),
        "fields": dict(_fields(found.obj)),
        "derived": derived,
    }

    def human() -> None:
        also = f" (same shape: {', '.join(found.also)})" if found.also else ""
        click.echo(f"{found.obj.KIND}{also}, {len(data)} bytes as {found.encoding.upper()}")
        output.fields(_fields(found.obj))
        if derived:
            click.echo("computed from these")
            output.fields(derived.items())

    output.result(document, human)


def _fields(obj: Wire, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every field by its name in the spec, nested ones with their path."""
    for name, value in obj.named():
        yield from _field(prefix + name, value)


def _field(path: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Wire):
        yield from _fields(value, f"{path}.")
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


def _derived(obj: Wire) -> dict[str, str]:
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
