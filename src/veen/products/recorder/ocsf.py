"""Events in OCSF with record_integrity, for a SIEM whose users want to check them.

`raw_data` has the whole payload as text; numbers of the event are integers, so the canonical form of RFC 8785 (JCS) is
that of Python's json with sorted names. The fingerprint covers the whole event except itself. OCSF has no field for the
bytes of a signature yet, so the hub's receipt is in `unmapped.veen`.
"""

import hashlib
import json
from typing import Any, Final

from veen.core.canonical import encode
from veen.products.recorder.events import payload_json
from veen.products.recorder.replay import Row

OCSF_VERSION: Final = "1.9.0"
_BASE_EVENT: Final = 0
_OTHER: Final = 99
_SHA_256: Final = 3
_HEX: Final = 1
_JCS: Final = 2


def canonical(value: Any) -> bytes:
    """Encode a value by RFC 8785: text, integers below 2^53, booleans, lists, and objects with ASCII names."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def fingerprint_of(event: dict[str, Any]) -> str:
    """Return the SHA-256 of an event's canonical form without the fingerprint itself."""
    attestation = {
        name: value
        for name, value in event["record_integrity"]["attestation_list"][0].items()
        if name not in ("fingerprint", "signatures")
    }
    bare = {**event, "record_integrity": {"attestation_list": [attestation]}}
    return hashlib.sha256(canonical(bare)).hexdigest()


def ocsf_event(row: Row, hub_id: bytes, previous: tuple[int, str] | None = None) -> dict[str, Any]:
    """Return one row as an OCSF base event. `previous`: number and fingerprint of the preceding entry of the label."""
    receipt, event = row.receipt, row.event
    label = receipt.label.hex()
    attestation: dict[str, Any] = {
        "uid": f"{label}:{receipt.stream_seq}",
        "authority_uid": hub_id.hex(),
        "chain_uid": label,
    }
    if receipt.stream_seq > 1:
        before: dict[str, Any] = {"uid": f"{label}:{receipt.stream_seq - 1}", "type_uid": _OTHER}
        if previous is not None and previous[0] == receipt.stream_seq - 1:
            before["fingerprint"] = _fingerprint(previous[1])
        attestation["prev_event"] = before
    data: dict[str, Any] = {
        "class_uid": _BASE_EVENT,
        "category_uid": 0,
        "activity_id": _OTHER,
        "type_uid": _OTHER,
        "severity_id": 0,
        "time": (event.event_time if event else receipt.hub_ts) * 1000,
        "message": event.event_type if event else (row.about_keys or row.error or "unreadable"),
        "metadata": {
            "version": OCSF_VERSION,
            "uid": receipt.leaf_hash.hex(),
            "log_name": row.stream,
            "logged_time": receipt.hub_ts * 1000,
            "product": {"name": "VEEN recorder", "vendor_name": "VEEN"},
        },
        "record_integrity": {"attestation_list": [attestation]},
        "unmapped": {"veen": {"receipt": receipt.to_bytes().hex(), "hub_commit_seq": receipt.stream_seq}},
    }
    if event is not None:
        data["activity_name"] = event.event_type
        data["actor"] = {"user": {"uid": event.subject_id}}
        data["device"] = {"hostname": event.origin, "type_id": 0}
        data["raw_data"] = encode(payload_json(event)).decode()
        data["unmapped"]["veen"]["principal_id"] = event.principal_id.hex()
    attestation["fingerprint"] = _fingerprint(fingerprint_of(data))
    return data


def _fingerprint(value: str) -> dict[str, Any]:
    return {"algorithm_id": _SHA_256, "encoding_id": _HEX, "serialization_id": _JCS, "value": value}
