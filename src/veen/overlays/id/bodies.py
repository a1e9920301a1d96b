"""The nine bodies of ID, fields in the order of the document (001 ID §5 … §11, D-02 … D-05).

What a body alone can show to be wrong is refused here; what depends on the stream it came through, by the fold.
"""

import re
from dataclasses import dataclass
from typing import Annotated, Final

from veen.core.wire import Bytes32, Choice, Length, TextMap, Uint
from veen.overlays.framework.schema import Body, InvalidBody, Schema, SchemaSet
from veen.overlays.id.ids import device_id_of

MAX_HANDLE_BYTES: Final = 255  # D-95
TARGET_TYPES: Final = ("ctx", "org")
_MAX_IDS: Final = 32_768  # more than fit into one body (D-75)

# Space and control characters (D-95), and what is invisible or steers the direction of text (D-177): the code points
# that Unicode calls Default_Ignorable, and the blank of Braille. The two joiners and the variation selectors are not
# among them: words of some scripts and emoji are written with them. Spelled out, because the tables of Unicode grow
# with each Python, and two readers must never disagree about a handle.
_NOT_IN_HANDLES: Final = re.compile(
    "[\x00-\x20\x7f-\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164"
    "\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e00ff]"
)


def check_handle(handle: str) -> None:
    """Raise InvalidBody unless `handle` has 1 to 255 bytes, all of them visible. Case matters (D-95)."""
    if not 1 <= len(handle.encode()) <= MAX_HANDLE_BYTES:
        raise InvalidBody("ID.HANDLE", f"a handle has 1 to {MAX_HANDLE_BYTES} bytes")
    if _NOT_IN_HANDLES.search(handle) is not None:
        raise InvalidBody(
            "ID.HANDLE", "a handle must not contain spaces, or control, invisible or directional characters"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PrincipalRecord(Body, kind="id.principal.v1"):
    """A root identity (§6.1)."""

    principal_pk: Bytes32
    created_at: Uint
    info: TextMap | None = None  # free-form


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFlags(Body, kind="id.device.v1.flags"):
    """The flags of a device."""

    disabled: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRecord(Body, kind="id.device.v1"):
    """A key that may act for a principal (§6.2)."""

    principal_pk: Bytes32
    device_id: Bytes32
    device_pk: Bytes32
    dh_pk: Bytes32
    label: str | None = None
    created_at: Uint
    expires_at: Uint | None = None
    flags: DeviceFlags | None = None

    def _check(self) -> None:
        # Another size is a fault of its own, reported when the body has been read to its end.
        if len(self.device_pk) == len(self.device_id) == 32 and self.device_id != device_id_of(self.device_pk):
            raise InvalidBody("ID.DEVICE_ID", "device_id does not belong to device_pk")

    @property
    def disabled(self) -> bool:
        return self.flags is not None and bool(self.flags.disabled)


@dataclass(frozen=True, slots=True, kw_only=True)
class CtxProfile(Body, kind="id.ctx.profile.v1"):
    """An account of a realm as it shows itself (§7.1)."""

    ctx_id: Bytes32
    realm_id: Bytes32
    display_name: str | None = None  # not unique
    avatar_coid: Bytes32 | None = None
    prefs: TextMap | None = None  # free-form
    updated_at: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class OrgProfile(Body, kind="id.org.profile.v1"):
    """The profile of an organization (§8.1)."""

    org_id: Bytes32
    display_name: str | None = None
    metadata: TextMap | None = None  # free-form
    created_at: Uint
    updated_at: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupChange(Body, kind="id.group.v1"):
    """Additions to and removals from a group (§8.2). The name may change; group_id does not."""

    org_id: Bytes32
    realm_id: Bytes32 | None = None
    group_id: Bytes32
    name: str
    members_add: Annotated[tuple[Bytes32, ...], Length(0, _MAX_IDS)] | None = None
    members_remove: Annotated[tuple[Bytes32, ...], Length(0, _MAX_IDS)] | None = None
    updated_at: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleBinding(Body, kind="id.role.v1"):
    """Assignment of a role to accounts and groups (§8.3). Roles only accumulate."""

    org_id: Bytes32
    realm_id: Bytes32 | None = None
    role: str
    targets_ctx: Annotated[tuple[Bytes32, ...], Length(0, _MAX_IDS)] | None = None
    targets_group: Annotated[tuple[Bytes32, ...], Length(0, _MAX_IDS)] | None = None
    ts: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class HandleMap(Body, kind="id.handlemap.v1"):
    """The target of a handle in a realm (§10.1)."""

    realm_id: Bytes32
    handle: str
    target_type: Annotated[str, Choice(*TARGET_TYPES)]
    target_id: Bytes32
    ts: Uint

    def _check(self) -> None:
        check_handle(self.handle)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalLink(Body, kind="id.external.v1"):
    """Link of an external account to a ctx or an org (§10.2)."""

    realm_id: Bytes32
    ctx_id: Bytes32 | None = None
    org_id: Bytes32 | None = None
    provider: str
    external_sub: str
    attributes: TextMap | None = None  # free-form
    ts: Uint

    def _check(self) -> None:
        if self.ctx_id is None and self.org_id is None:
            raise InvalidBody("ID.LINK_TARGET", "a link needs ctx_id or org_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class IdRevocationRecord(Body, kind="id.revoke.v1"):
    """A revocation (§11.1). principal_pk, or org_id beside another target, names the revoker."""

    principal_pk: Bytes32 | None = None
    org_id: Bytes32 | None = None
    device_id: Bytes32 | None = None
    revoked_auth_ref: Bytes32 | None = None
    realm_id: Bytes32 | None = None
    ctx_id: Bytes32 | None = None
    reason: str | None = None
    ts: Uint

    def _check(self) -> None:
        if not self.targets():
            raise InvalidBody("ID.REVOKE_TARGET", "a revocation needs device_id, revoked_auth_ref, ctx_id or org_id")

    def targets(self) -> list[tuple[str, bytes]]:
        """Return the revoked targets by kind. An org_id without another target is itself the target."""
        named = [("device", self.device_id), ("auth-ref", self.revoked_auth_ref), ("ctx", self.ctx_id)]
        targets = [(kind, target) for kind, target in named if target is not None]
        return targets if targets or self.org_id is None else [("org", self.org_id)]


PRINCIPAL: Final = Schema(PrincipalRecord.KIND, PrincipalRecord)
DEVICE: Final = Schema(DeviceRecord.KIND, DeviceRecord)
CTX_PROFILE: Final = Schema(CtxProfile.KIND, CtxProfile)
ORG_PROFILE: Final = Schema(OrgProfile.KIND, OrgProfile)
GROUP: Final = Schema(GroupChange.KIND, GroupChange)
ROLE_BINDING: Final = Schema(RoleBinding.KIND, RoleBinding)
HANDLE_MAP: Final = Schema(HandleMap.KIND, HandleMap)
EXTERNAL_LINK: Final = Schema(ExternalLink.KIND, ExternalLink)
REVOCATION: Final = Schema(IdRevocationRecord.KIND, IdRevocationRecord)

SCHEMAS: Final = SchemaSet(
    [PRINCIPAL, DEVICE, CTX_PROFILE, ORG_PROFILE, GROUP, ROLE_BINDING, HANDLE_MAP, EXTERNAL_LINK, REVOCATION]
)
