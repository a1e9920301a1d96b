"""Reading of wire objects and keys named on the command line."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from veen.cli.shared.output import Exit, Fail

if TYPE_CHECKING:
    from veen.core.objects.recognise import Recognised

OBJECT_FILE = click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)
_MAX_TEXT: Final = 4096


def text_of(text: str) -> str:
    """Return the text of an argument: itself, that of `@FILE`, or standard input for `-`."""
    if text == "-":
        return sys.stdin.read(_MAX_TEXT).strip()
    if text.startswith("@"):
        with Path(text[1:]).open(encoding="utf-8", errors="replace") as file:
            return file.read(_MAX_TEXT).strip()
    return text


def hex32(text: str) -> bytes:
    """Parse a key or hash: 64 hex digits, keys also as `ed25519:…`."""
    try:
        data = bytes.fromhex(text.removeprefix("ed25519:"))
    except ValueError:
        data = b""
    if len(data) != 32:
        raise click.BadParameter(f"{text!r} is not 32 bytes in hex")
    return data


def read_object(path: Path, *, exit_code: Exit) -> "tuple[bytes, Recognised]":
    """Read a file and the object in it: CBOR, its JSON form, or either as hex text."""
    from veen.core import cbor
    from veen.core.errors import FormatError
    from veen.core.evidence_file import is_evidence
    from veen.core.objects.recognise import recognise

    if str(path) == "-":
        data = sys.stdin.buffer.read(cbor.MAX_ITEM_BYTES + 1)
    else:
        with path.open("rb") as file:
            data = file.read(cbor.MAX_ITEM_BYTES + 1)
    if is_evidence(data):
        raise Fail(
            "E.FORMAT",
            f"{path}: this is an evidence file",
            "it holds many objects, and is checked as a whole",
            f"veen verify {path}",
            exit_code=exit_code,
        )
    try:
        return data, recognise(_array_form(decode_hex(data)))
    except FormatError as exc:
        raise Fail("E.FORMAT", f"{path}: not a VEEN object", str(exc), exc.hint, exit_code=exit_code) from exc


def _array_form(data: bytes) -> bytes:
    """Convert the JSON form with named fields, which our commands print, to the array of the wire."""
    import json

    from veen.core.objects.recognise import KINDS

    if data.lstrip()[:1] != b"{":
        return data
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        return data  # `recognise` says what is wrong with it
    for kind in KINDS if isinstance(fields, dict) else ():
        names = [field.name for field in kind.wire_fields()]
        if kind.FORM == "array" and set(fields) == set(names):
            return json.dumps([fields[name] for name in names]).encode()
    return data


def decode_hex(data: bytes) -> bytes:
    """Decode hex text; return other data unchanged. No object's own bytes are all hex digits."""
    try:
        return bytes.fromhex(data.decode("ascii"))
    except (ValueError, UnicodeDecodeError):
        return data
