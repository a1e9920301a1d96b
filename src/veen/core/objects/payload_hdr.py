"""payload_hdr, the encrypted header that types a message (spec §4.5)."""

from dataclasses import dataclass

from veen.core.wire import Bytes32, Part, Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadHdr(Part, kind="payload_hdr"):
    """Header that only readers see; no field of it may influence admission."""

    schema: Bytes32
    parent_id: Bytes32 | None = None
    att_root: Bytes32 | None = None
    cap_ref: Bytes32 | None = None  # equals MSG.auth_ref when present; readers check it
    expires_at: Uint | None = None  # for overlays, never for hubs
