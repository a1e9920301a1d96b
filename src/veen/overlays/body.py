"""Bodies: the typed contents of messages, as maps with text keys in listed order (D-02 … D-05).

A body is a wire object of the form "body" and lists its fields once, in the order of its document. What is free-form
(`Fields.anything`, `Fields.mapping`) is read in any order and written sorted (D-03): `_write` passes it through
`cbor.sort_keys`.
"""

from dataclasses import dataclass
from typing import ClassVar

from veen.core.errors import FormatError
from veen.core.wire import Form, Wire

__all__ = ["Body", "Draft", "InvalidBody"]


class Body(Wire):
    """Base of all bodies. KIND is the name of the schema, or of the part where bodies nest."""

    __slots__ = ()

    FORM: ClassVar[Form] = "body"


class InvalidBody(FormatError):
    """The fields are of the right types, but together they say nothing the schema allows.

    Raised by `_read`, so what cannot be read cannot be written either. `code` is stable and names the broken rule.
    """

    hint = "The producer of this message broke a rule of its schema; the message counts for nothing, the log is whole."

    def __init__(self, code: str, what: str) -> None:
        super().__init__(code, what)
        self.code, self.what = code, what

    def __str__(self) -> str:
        return f"{self.code}: {self.what}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A message about to be sent: all that a writer has to put into payload_hdr and body."""

    schema: bytes
    body: bytes
    parent_id: bytes | None = None
    expires_at: int | None = None
