"""The nine bodies of ID, fields in the order of the document (001 ID §5 … §11, D-02 … D-05).

What a body alone can show to be wrong is refused here; what depends on the stream it came through, by the fold.
"""

import re
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self

from veen.core import cbor
from veen.core.wire import Fields
from veen.overlays.body import Body, InvalidBody
from veen.overlays.id.ids import device_id_of
from veen.overlays.schema import Schema, SchemaSet

__all__ = [
    "CTX_PROFILE",
    "DEVICE",
    "EXTERNAL_LINK",
    "GROUP",
    "HANDLE_MAP",
    "MAX_HANDLE_BYTES",
    "ORG_PROFILE",
    "PRINCIPAL",
    "REVOCATION",
    "ROLE_BINDING",
    "SCHEMAS",
    "TARGET_TYPES",
    "CtxProfile",
    "DeviceFlags",
    "DeviceRecord",
    "ExternalLink",
    "GroupChange",
    "HandleMap",
    "OrgProfile",
    "PrincipalRecord",
    "RevocationRecord",
    "RoleBinding",
    "check_handle",
]

MAX_HANDLE_BYTES: Final = 255  # D-95
TARGET_TYPES: Final = ("ctx", "org")
_MAX_IDS: Final = 32_768  # more than fit into one body (D-75)

# Space and control characters (D-95), those that steer the direction of text included. Spelled out, because the tables
# of Unicode grow with each Python, and two readers must never disagree about a handle.
_NOT_IN_HANDLES: Final = re.compile(
    "[\x00-\x20\x7f-\xa0\u061c\u1680\u180e\u2000-\u200b\u200e\u200f\u2028-\u202f\u205f-\u2064\u2066-\u206f\u3000\ufeff]"
)


def check_handle(handle: str) -> None:
    """InvalidBody unless `handle` may be one: 1 to 255 bytes, no space, no control character; case matters (D-95)."""
    if not 1 <= len(handle.encode()) <= MAX_HANDLE_BYTES:
        raise InvalidBody("ID.HANDLE", f"a handle has 1 to {MAX_HANDLE_BYTES} bytes")
    if _NOT_IN_HANDLES.search(handle) is not None:
        raise InvalidBody("ID.HANDLE", "a handle holds no space and no control characters")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrincipalRecord(Body):
    """id.principal.v1: a root identity (§6.1)."""

    KIND: ClassVar[str] = "id.principal.v1"

    principal_pk: bytes
    created_at: int
    info: dict[str, Any] | None = None  # free-form

    @classmethod
    def _read(cls, f: Fields) -> Self:
        return cls(
            principal_pk=f.bstr("principal_pk", 32),
            created_at=f.uint("created_at"),
            info=f.optional(f.mapping, "info"),
        )

    def _write(self) -> dict[str, Any]:
        return {
            "principal_pk": self.principal_pk,
            "created_at": self.created_at,
            "info": cbor.sort_keys(self.info),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFlags(Body):
    """The flags of a device."""

    KIND: ClassVar[str] = "id.device.v1.flags"

    disabled: bool | None = None

    @classmethod
    def _read(cls, f: Fields) -> Self:
        return cls(disabled=f.optional(f.flag, "disabled"))

    def _write(self) -> dict[str, Any]:
        return {"disabled": self.disabled}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRecord(Body):
    """id.device.v1: a key that may act for a principal (§6.2)."""

    KIND: ClassVar[str] = "id.device.v1"

    principal_pk: bytes
    device_id: bytes
    device_pk: bytes
    dh_pk: bytes
    label: str | None = None
    created_at: int
    expires_at: int | None = None
    flags: DeviceFlags | None = None

    @classmethod
    def _read(cls, f: Fields) -> Self:
        body = cls(
            principal_pk=f.bstr("principal_pk", 32),
            device_id=f.bstr("device_id", 32),
            device_pk=f.bstr("device_pk", 32),
            dh_pk=f.bstr("dh_pk", 32),
            label=f.optional(f.text, "label"),
            created_at=f.uint("created_at"),
            expires_at=f.optional(f.uint, "expires_at"),
            flags=f.optional(f.object, "flags", DeviceFlags),
        )
        # Another size is a fault of its own, reported when the body has been read to its end.
        if len(body.device_pk) == len(body.device_id) == 32 and body.device_id != device_id_of(body.device_pk):
            raise InvalidBody("ID.DEVICE_ID", "device_id does not belong to device_pk")
        return body

    def _write(self) -> dict[str, Any]:
        return {
            "principal_pk": self.principal_pk,
            "device_id": self.device_id,
            "device_pk": self.device_pk,
            "dh_pk": self.dh_pk,
            "label": self.label,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            "flags": self.flags,
        }

    @property
    def disabled(self) -> bool:
        return self.flags is not None and bool(self.flags.disabled)


@dataclass(frozen=True, slots=True, kw_only=True)
class CtxProfile(Body):
    """id.ctx.profile.v1: an account of a realm as it shows itself (§7.1)."""

    KIND: ClassVar[str] = "id.ctx.profile.v1"

    ctx_id: bytes
    realm_id: bytes
    display_name: str | None = None  # not unique
    avatar_coid: bytes | None = None
    prefs: dict[str, Any] | None = None  # free-form
    updated_at: int

    @classmethod
    def _read(cls, f: Fields) -> Self:
        return cls(
            ctx_id=f.bstr("ctx_id", 32),
            realm_id=f.bstr("realm_id", 32),
            display_name=f.optional(f.text, "display_name"),
            avatar_coid=f.optional(f.bstr, "avatar_coid", 32),
            prefs=f.optional(f.mapping, "prefs"),
            updated_at=f.uint("updated_at"),
        )

    def _write(self) -> dict[str, Any]:
        return {
            "ctx_id": self.ctx_id,
            "realm_id": self.realm_id,
            "display_name": self.display_name,
            "avatar_coid": self.avatar_coid,
            "prefs": cbor.sort_keys(self.prefs),
            "updated_at": self.updated_at,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class OrgProfile(Body):
    """id.org.profile.v1 (§8.1)."""

    KIND: ClassVar[str] = "id.org.profile.v1"

    org_id: bytes
    display_name: str | None = None
    metadata: dict[str, Any] | None = None  # free-form
    created_at: int
    updated_at: int

    @classmethod
    def _read(cls, f: Fields) -> Self:
        return cls(
            org_id=f.bstr("org_id", 32),
            display_name=f.optional(f.text, "display_name"),
            metadata=f.optional(f.mapping, "metadata"),
            created_at=f.uint("created_at"),
            updated_at=f.uint("updated_at"),
        )

    def _write(self) -> dict[str, Any]:
        return {
            "org_id": self.org_id,
            "display_name": self.display_name,
            "metadata": cbor.sort_keys(self.metadata),
            "created_at": self.created_at,
            "updated_at": self.updated_at,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupChange(Body):
    """id.group.v1: who joins and who leaves (§8.2). The name is for people and may change; group_id stays."""

    KIND: ClassVar[str] = "id.group.v1"

    org_id: bytes
    realm_id: bytes | None = None
    group_id: bytes
    name: str
    members_add: tuple[bytes, ...] | None = None
    members_remove: tuple[bytes, ...] | None = None
    updated_at: int

    @classmethod
    def _read(cls, f: Fields) -> Self:
        return cls(
            org_id=f.bstr("org_id", 32),
            realm_id=f.optional(f.bstr, "realm_id", 32),
            group_id=f.bstr("group_id", 32),
            name=f.text("name"),
            members_add=f.optional(f.bstrs, "members_add", 32, at_most=_MAX_IDS),
            members_remove=f.optional(f.bstrs, "members_remove", 32, at_most=_MAX_IDS),
            updated_at=f.uint("updated_at"),
        )

    def _write(self) -> dict[str, Any]:
        return {
            "org_id": self.org_id,
            "realm_id": self.realm_id,
            "group_id": self.group_id,
            "name": self.name,
            "members_add": self.members_add,
            "members_remove": self.members_remove,
            "updated_at": self.updated_at,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleBinding(Body):
    """id.role.v1: who has a role, directly or through groups (§8.3). Roles only add up."""

    KIND: ClassVar[str] = "id.role.v1"

    org_id: bytes
    realm_id: bytes | None = None
    role: str
    targets_ctx: tuple[bytes, ...] | None = None
    targets_group: tuple[bytes, ...] | None = None
    ts: int

    @classmethod
    def _read(cls, f: Fields) -> Self:
        return cls(
            org_id=f.bstr("org_id", 32),
            realm_id=f.optional(f.bstr, "realm_id", 32),
            role=f.text("role"),
            targets_ctx=f.optional(f.bstrs, "targets_ctx", 32, at_most=_MAX_IDS),
            targets_group=f.optional(f.bstrs, "targets_group", 32, at_most=_MAX_IDS),
            ts=f.uint("ts"),
        )

    def _write(self) -> dict[str, Any]:
        return {
            "org_id": self.org_id,
            "realm_id": self.realm_id,
            "role": self.role,
            "targets_ctx": self.targets_ctx,
            "targets_group": self.targets_group,
            "ts": self.ts,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class HandleMap(Body):
    """id.handlemap.v1: whom a handle means in a realm (§10.1)."""

    KIND: ClassVar[str] = "id.handlemap.v1"

    realm_id: bytes
    handle: str
    target_type: str
    target_id: bytes
    ts: int

    @classmethod
    def _read(cls, f: Fields) -> Self:
        body = cls(
            realm_id=f.bstr("realm_id", 32),
            handle=f.text("handle"),
            target_type=f.choice("target_type", TARGET_TYPES),
            target_id=f.bstr("target_id", 32),
            ts=f.uint("ts"),
        )
        check_handle(body.handle)
        return body

    def _write(self) -> dict[str, Any]:
        return {
            "realm_id": self.realm_id,
            "handle": self.handle,
            "target_type": self.target_type,
            "target_id": self.target_id,
            "ts": self.ts,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalLink(Body):
    """id.external.v1: an account elsewhere that stands for a ctx or an org here (§10.2)."""

    KIND: ClassVar[str] = "id.external.v1"

    realm_id: bytes
    ctx_id: bytes | None = None
    org_id: bytes | None = None
    provider: str
    external_sub: str
    attributes: dict[str, Any] | None = None  # free-form
    ts: int

    @classmethod
    def _read(cls, f: Fields) -> Self:
        body = cls(
            realm_id=f.bstr("realm_id", 32),
            ctx_id=f.optional(f.bstr, "ctx_id", 32),
            org_id=f.optional(f.bstr, "org_id", 32),
            provider=f.text("provider"),
            external_sub=f.text("external_sub"),
            attributes=f.optional(f.mapping, "attributes"),
            ts=f.uint("ts"),
        )
        if body.ctx_id is None and body.org_id is None:
            raise InvalidBody("ID.LINK_TARGET", "a link needs ctx_id or org_id")
        return body

    def _write(self) -> dict[str, Any]:
        return {
            "realm_id": self.realm_id,
            "ctx_id": self.ctx_id,
            "org_id": self.org_id,
            "provider": self.provider,
            "external_sub": self.external_sub,
            "attributes": cbor.sort_keys(self.attributes),
            "ts": self.ts,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RevocationRecord(Body):
    """id.revoke.v1 (§11.1). principal_pk, and org_id beside another target, say who revokes."""

    KIND: ClassVar[str] = "id.revoke.v1"

    principal_pk: bytes | None = None
    org_id: bytes | None = None
    device_id: bytes | None = None
    revoked_auth_ref: bytes | None = None
    realm_id: bytes | None = None
    ctx_id: bytes | None = None
    reason: str | None = None
    ts: int

    @classmethod
    def _read(cls, f: Fields) -> Self:
        body = cls(
            principal_pk=f.optional(f.bstr, "principal_pk", 32),
            org_id=f.optional(f.bstr, "org_id", 32),
            device_id=f.optional(f.bstr, "device_id", 32),
            revoked_auth_ref=f.optional(f.bstr, "revoked_auth_ref", 32),
            realm_id=f.optional(f.bstr, "realm_id", 32),
            ctx_id=f.optional(f.bstr, "ctx_id", 32),
            reason=f.optional(f.text, "reason"),
            ts=f.uint("ts"),
        )
        if not body.targets():
            raise InvalidBody("ID.REVOKE_TARGET", "a revocation needs device_id, revoked_auth_ref, ctx_id or org_id")
        return body

    def _write(self) -> dict[str, Any]:
        return {
            "principal_pk": self.principal_pk,
            "org_id": self.org_id,
            "device_id": self.device_id,
            "revoked_auth_ref": self.revoked_auth_ref,
            "realm_id": self.realm_id,
            "ctx_id": self.ctx_id,
            "reason": self.reason,
            "ts": self.ts,
        }

    def targets(self) -> list[tuple[str, bytes]]:
        """What is revoked, by kind. An org_id that stands alone is itself the target."""
        named = [("device", self.device_id), ("auth-ref", self.revoked_auth_ref), ("ctx", self.ctx_id)]
        targets = [(kind, target) for kind, target in named if target is not None]
        return targets if targets or self.org_id is None else [("org", self.org_id)]


PRINCIPAL: Final = Schema("id.principal.v1", PrincipalRecord)
DEVICE: Final = Schema("id.device.v1", DeviceRecord)
CTX_PROFILE: Final = Schema("id.ctx.profile.v1", CtxProfile)
ORG_PROFILE: Final = Schema("id.org.profile.v1", OrgProfile)
GROUP: Final = Schema("id.group.v1", GroupChange)
ROLE_BINDING: Final = Schema("id.role.v1", RoleBinding)
HANDLE_MAP: Final = Schema("id.handlemap.v1", HandleMap)
EXTERNAL_LINK: Final = Schema("id.external.v1", ExternalLink)
REVOCATION: Final = Schema("id.revoke.v1", RevocationRecord)

SCHEMAS: Final = SchemaSet(
    [PRINCIPAL, DEVICE, CTX_PROFILE, ORG_PROFILE, GROUP, ROLE_BINDING, HANDLE_MAP, EXTERNAL_LINK, REVOCATION]
)
