"""payload_hdr, the encrypted header that types a message (spec §4.5)."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from veen.core.wire import Fields, Form, Wire

__all__ = ["PayloadHdr"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadHdr(Wire):
    """Seen by readers only; no field of it may influence admission."""

    KIND: ClassVar[str] = "payload_hdr"
    FORM: ClassVar[Form] = "map"

    schema: bytes
    parent_id: bytes | None = None
    att_root: bytes | None = None
    cap_ref: bytes | None = None  # equals MSG.auth_ref when present; readers check it
    expires_at: int | None = None  # for overlays, never for hubs

    @classmethod
    def _read(cls, f: Fields) -> Self:
        return cls(
            schema=f.bstr("schema", 32),
            parent_id=f.optional(f.bstr, "parent_id", 32),
            att_root=f.optional(f.bstr, "att_root", 32),
            cap_ref=f.optional(f.bstr, "cap_ref", 32),
            expires_at=f.optional(f.uint, "expires_at"),
        )

    def _write(self) -> dict[str, Any]:
        return {
            "schema": self.schema,
            "parent_id": self.parent_id,
            "att_root": self.att_root,
            "cap_ref": self.cap_ref,
            "expires_at": self.expires_at,
        }
