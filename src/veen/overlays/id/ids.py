"""Identifiers and streams of ID (001 ID §3, §4).

All are hashes of 32-byte values and names, so nothing has to be looked up to know them. Names are UTF-8 (D-94).
"""

from hashlib import sha256
from typing import Final

from veen.core.errors import FieldSizeError
from veen.core.hashing import tag_prefix
from veen.core.objects.policies import realm_id_of

__all__ = [
    "DEFAULT_REALM",
    "ctx_id_of",
    "ctx_stream",
    "device_id_of",
    "group_id_of",
    "handle_stream",
    "org_id_of",
    "org_stream",
    "principal_id_of",
    "principal_stream",
    "realm_id_of",
    "scoped_org_id_of",
]

DEFAULT_REALM: Final = "default"  # D-94


def principal_id_of(principal_pk: bytes) -> bytes:
    """Return the reference of a principal. The protocol itself does not use it (§3.2)."""
    return _hash_one(_PRINCIPAL, principal_pk)


def ctx_id_of(principal_pk: bytes, realm_id: bytes) -> bytes:
    """Return the account of a principal in a realm. Only the principal's key links its accounts of different realms."""
    return _hash_two(_CTX, principal_pk, realm_id)


def device_id_of(device_pk: bytes) -> bytes:
    """Return the id of a device in identity payloads; on the wire it stays client_id = device_pk (§3.4)."""
    return _hash_one(_DEVICE, device_pk)


def org_id_of(org_pk: bytes) -> bytes:
    return _hash_one(_ORG, org_pk)


def scoped_org_id_of(org_id: bytes, realm_id: bytes) -> bytes:
    """Return the id of an organization within one realm. Once it is used, bindings in that realm use it (§3.5)."""
    return _hash_two(_ORG_REALM, org_id, realm_id)


def group_id_of(org_id: bytes, local_name: str) -> bytes:
    """Return the id of a group of an organization, scoped or not. `local_name` must not change (§3.6)."""
    return sha256(_GROUP + _check_size(org_id) + local_name.encode()).digest()


def principal_stream(principal_pk: bytes) -> bytes:
    """Return the stream_id of a principal's record, devices and revocations (§4.1)."""
    return _hash_one(_PRINCIPAL_STREAM, principal_pk)


def ctx_stream(ctx_id: bytes, realm_id: bytes) -> bytes:
    """Return the stream_id of an account's profile and external links."""
    return _hash_two(_CTX_STREAM, ctx_id, realm_id)


def org_stream(org_id: bytes) -> bytes:
    """Return the stream_id of an organization, scoped or not: profile, groups, roles, revocations."""
    return _hash_one(_ORG_STREAM, org_id)


def handle_stream(realm_id: bytes) -> bytes:
    """Return the stream_id of the handles of a realm."""
    return _hash_one(_HANDLE_STREAM, realm_id)


# Folding derives one or two of these for every event, so the tags are ready to be hashed.
_PRINCIPAL: Final = tag_prefix("id/principal")
_CTX: Final = tag_prefix("id/ctx")
_DEVICE: Final = tag_prefix("id/device")
_ORG: Final = tag_prefix("id/org")
_ORG_REALM: Final = tag_prefix("id/org/realm")
_GROUP: Final = tag_prefix("id/group")
_PRINCIPAL_STREAM: Final = tag_prefix("id/stream/principal")
_CTX_STREAM: Final = tag_prefix("id/stream/ctx")
_ORG_STREAM: Final = tag_prefix("id/stream/org")
_HANDLE_STREAM: Final = tag_prefix("id/stream/handle")


def _hash_one(prefix: bytes, part: bytes) -> bytes:
    if len(part) != 32:
        _check_size(part)
    return sha256(prefix + part).digest()


def _hash_two(prefix: bytes, first: bytes, second: bytes) -> bytes:
    """Hash a concatenation, which is unambiguous only if every part has its size."""
    if len(first) != 32 or len(second) != 32:
        _check_size(first)
        _check_size(second)
    return sha256(prefix + first + second).digest()


def _check_size(part: bytes) -> bytes:
    if len(part) != 32:
        raise FieldSizeError("an identifier of ID", "32 bytes", len(part))
    return part
