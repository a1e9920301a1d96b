"""Values of overlays: from the command line into bodies, and from states into JSON and onto the screen."""

import json
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Final, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

_MAX_VALUE: Final = 64 * 1024 * 1024  # more than any hub takes; its limits decide
_BINARY_FORMS: Final[Sequence[str]] = ("text", "hex")
_FORMS: Final[Sequence[str]] = (*_BINARY_FORMS, "json")


class _Hex32(click.ParamType[bytes]):
    """A msg_id, a client_id or another id: 64 hex digits."""

    name = "hex"

    def convert(self, value: str | bytes, param: click.Parameter | None, ctx: click.Context | None) -> bytes:
        if isinstance(value, bytes):
            return value
        from veen.cli.shared.files import hex32

        return hex32(value)


HEX32: Final = _Hex32()


def value_options(name: str, *, binary: bool = False) -> Callable[[F], F]:
    """Let the argument `name` be text, JSON or hex, or standard input as "-"; with `binary` it becomes bytes."""

    def decorate(command: F) -> F:
        @click.option(
            "--format",
            "written",
            type=click.Choice(_BINARY_FORMS if binary else _FORMS),
            default="text",
            show_default=True,
            help=f"How {name.upper()} is written.",
        )
        @wraps(command)
        def run(*args: Any, written: str, **kwargs: Any) -> Any:
            if kwargs[name] is not None:
                kwargs[name] = _value(kwargs[name], written, binary=binary)
            return command(*args, **kwargs)

        return run  # type: ignore[return-value]  # wraps keeps the name, click keeps the parameters

    return decorate


def _value(text: str, form: str, *, binary: bool) -> Any:
    if text == "-":
        data = sys.stdin.buffer.read(_MAX_VALUE)
        if binary and form == "text":
            return data
        try:
            text = data.decode().removesuffix("\n")
        except UnicodeDecodeError as exc:
            raise click.UsageError("standard input is not UTF-8 text") from exc
    if form == "hex":
        try:
            return bytes.fromhex(text)
        except ValueError as exc:
            raise click.UsageError(f"{text!r} is not hex") from exc
    if form == "text":
        return text.encode("utf-8", "surrogateescape") if binary else text
    return json_value(text)


def json_value(text: str) -> Any:
    """Parse an argument as JSON."""
    try:
        return json.loads(text, parse_float=_no_float, parse_constant=_no_float)
    except (ValueError, RecursionError) as exc:
        raise click.UsageError(f"this is not JSON that can be sent: {exc}") from exc


def _no_float(text: str) -> Any:
    raise ValueError(f"{text}: bodies hold integers, no other numbers; write it as text or in a smaller unit")


def printable(data: bytes) -> str:
    """Return printable UTF-8 as text, other bytes as hex:…."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"hex:{data.hex()}"
    return text if text.isprintable() else f"hex:{data.hex()}"
