"""veen.attached.v1, the general body that declares its attachments (D-16).

Schemas without fields for attachments wrap their body in this one. Count and plaintext sizes are declared inside the
encrypted body, so nobody can add, drop or swap an attachment undetected (spec §4.6).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from veen.core.errors import VerifyError
from veen.core.hashing import H
from veen.core.limits import DEFAULT_LIMITS
from veen.core.wire import Bytes32, Form, Length, Uint, Wire

ATTACHED_SCHEMA: Final = H(b"veen.attached.v1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment(Wire, kind="attachment"):
    """One declared attachment; `size` is that of the plaintext."""

    FORM: ClassVar[Form] = "body"

    coid: Bytes32
    size: Uint
    name: str | None = None
    media_type: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached(Wire, kind="veen.attached.v1"):
    """A body together with the list of its attachments, by index from 0 (D-14)."""

    FORM: ClassVar[Form] = "body"

    body: bytes
    attachments: Annotated[tuple[Attachment, ...], Length(0, DEFAULT_LIMITS.max_attachments_per_msg)]

    def check(self, coids: Sequence[bytes], plaintexts: Sequence[bytes]) -> None:
        """Raise VerifyError unless these are exactly the declared attachments."""
        if not len(self.attachments) == len(coids) == len(plaintexts):
            raise VerifyError(f"{len(self.attachments)} attachments are declared, {len(plaintexts)} were supplied")
        for index, declared in enumerate(self.attachments):
            if declared.coid != coids[index]:
                raise VerifyError(f"attachment {index} is not the declared one: its coid differs")
            if declared.size != len(plaintexts[index]):
                raise VerifyError(f"attachment {index}: {declared.size} bytes declared, {len(plaintexts[index])} found")
