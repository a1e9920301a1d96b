"""Bodies: the typed contents of messages, as maps with text keys in listed order (D-02 … D-05).

A body is a wire object of the form "body" and lists its fields once, in the order of its document. What is free-form
(`Fields.anything`, `Fields.mapping`) is read in any order and written sorted (D-03): `_write` passes it through
`cbor.sort_keys`.
"""

from dataclasses import dataclass
from typing import ClassVar, Self

from veen.core.errors import FormatError
from veen.core.wire import Fields, Form, Wire


class Body(Wire):
    """Base of all bodies. KIND is the name of the schema, or of the part where bodies nest."""

    __slots__ = ()

    FORM: ClassVar[Form] = "body"

    @classmethod
    def _from(cls, fields: Fields) -> Self:
        """Read the fields, then check them. If both fail, the error about the fields is raised (D-177)."""
        try:
            body = cls._read(fields)
        except InvalidBody:
            fields.done()
            raise
        fields.done()
        return body


class InvalidBody(FormatError):
    """A body whose fields have the right types but break a rule of the schema.

    Raised by `_read` when it has read all fields, so what cannot be read cannot be written either. `code` is stable
    and names the broken rule.
    """

    def __init__(self, code: str, what: str) -> None:
        super().__init__(code, what)
        self.code, self.what = code, what

    def __str__(self) -> str:
        return f"{self.code}: {self.what}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A message to be sent: schema, body, and what a writer puts into payload_hdr."""

    schema: bytes
    body: bytes
    parent_id: bytes | None = None
    expires_at: int | None = None
