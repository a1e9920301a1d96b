"""Place of issuance: where a service has its tokens issued, in the details of its auth_policy (001 spec-5 §7.3)."""

from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuancePlace:
    """The stream and the keys of a service that issues tokens."""

    stream_id: bytes  # of requests, at the hub of the directory
    servers: tuple[bytes, ...]  # client_ids whose answers count; empty: anybody who may write there

    def to_details(self) -> dict[str, Any]:
        """Return the details to be published; keys in the order of deterministic CBOR."""
        return {"issue": {"stream_id": self.stream_id, "servers": list(self.servers)}}

    @classmethod
    def of_details(cls, details: Any) -> Self | None:
        """Return the place; None if the details name none, or have an unknown form."""
        place = details.get("issue") if isinstance(details, dict) else None
        if not isinstance(place, dict):
            return None
        stream_id, servers = place.get("stream_id"), place.get("servers", [])
        if not isinstance(servers, list) or not all(isinstance(key, bytes) and len(key) == 32 for key in servers):
            return None
        if not isinstance(stream_id, bytes) or len(stream_id) != 32:
            return None
        return cls(stream_id=stream_id, servers=tuple(servers))
