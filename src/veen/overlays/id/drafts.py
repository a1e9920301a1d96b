"""Messages of ID, each with the stream that it belongs to (001 ID §4.1, §6 … §11). Nothing is sent here."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from veen.core.event import Event
from veen.core.wire import Wire
from veen.overlays.framework.fold import NO_MIRRORS, Mirrors, copy_draft
from veen.overlays.framework.schema import Body, Draft
from veen.overlays.id import bodies
from veen.overlays.id.ids import (
    ctx_stream,
    device_id_of,
    group_id_of,
    handle_stream,
    org_stream,
    principal_stream,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Addressed:
    """A draft and the stream to send it to."""

    stream_id: bytes
    draft: Draft


def stream_of(body: Wire | None) -> bytes:
    """Return the stream that a body of ID belongs to."""
    match body:
        case bodies.PrincipalRecord() | bodies.DeviceRecord():
            return principal_stream(body.principal_pk)
        case bodies.CtxProfile():
            return ctx_stream(body.ctx_id, body.realm_id)
        case bodies.OrgProfile() | bodies.GroupChange() | bodies.RoleBinding():
            return org_stream(body.org_id)
        case bodies.HandleMap():
            return handle_stream(body.realm_id)
        case bodies.ExternalLink():
            return org_stream(body.org_id or b"") if body.ctx_id is None else ctx_stream(body.ctx_id, body.realm_id)
        case bodies.IdRevocationRecord():  # a principal revokes in its own stream, an organization in its own
            return org_stream(body.org_id or b"") if body.principal_pk is None else principal_stream(body.principal_pk)
        case _:
            raise TypeError(type(body).__name__)


def addressed(body: Body, *, expires_at: int | None = None) -> Addressed:
    """Return the message of a body, and its stream. A body that is not allowed is a FormatError."""
    draft = _SCHEMAS[type(body)].draft(body, expires_at=expires_at)
    return Addressed(stream_id=stream_of(body), draft=draft)


def principal(principal_pk: bytes, *, created_at: int, info: Mapping[str, Any] | None = None) -> Addressed:
    return addressed(bodies.PrincipalRecord(principal_pk=principal_pk, created_at=created_at, info=_map(info)))


def device(
    principal_pk: bytes,
    *,
    device_pk: bytes,
    dh_pk: bytes,
    created_at: int,
    label: str | None = None,
    expires_at: int | None = None,
    disabled: bool | None = None,
) -> Addressed:
    """Draft a new device, or new flags and expiry of a known one."""
    return addressed(
        bodies.DeviceRecord(
            principal_pk=principal_pk,
            device_id=device_id_of(device_pk),
            device_pk=device_pk,
            dh_pk=dh_pk,
            label=label,
            created_at=created_at,
            expires_at=expires_at,
            flags=None if disabled is None else bodies.DeviceFlags(disabled=disabled),
        )
    )


def ctx_profile(
    ctx_id: bytes,
    realm_id: bytes,
    *,
    updated_at: int,
    display_name: str | None = None,
    avatar_coid: bytes | None = None,
    prefs: Mapping[str, Any] | None = None,
) -> Addressed:
    """Draft a whole profile: a field that is left out is removed."""
    return addressed(
        bodies.CtxProfile(
            ctx_id=ctx_id,
            realm_id=realm_id,
            display_name=display_name,
            avatar_coid=avatar_coid,
            prefs=_map(prefs),
            updated_at=updated_at,
        )
    )


def org_profile(
    org_id: bytes,
    *,
    created_at: int,
    updated_at: int,
    display_name: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Addressed:
    return addressed(
        bodies.OrgProfile(
            org_id=org_id,
            display_name=display_name,
            metadata=_map(metadata),
            created_at=created_at,
            updated_at=updated_at,
        )
    )


def change_group(
    org_id: bytes,
    local_name: str,
    *,
    updated_at: int,
    add: Iterable[bytes] = (),
    remove: Iterable[bytes] = (),
    name: str | None = None,
    realm_id: bytes | None = None,
    expires_at: int | None = None,
) -> Addressed:
    """`local_name` makes the group_id and never changes; `name` is what people read. `org_id` may be a scoped one."""
    return addressed(
        bodies.GroupChange(
            org_id=org_id,
            realm_id=realm_id,
            group_id=group_id_of(org_id, local_name),
            name=local_name if name is None else name,
            members_add=_ids(add),
            members_remove=_ids(remove),
            updated_at=updated_at,
        ),
        expires_at=expires_at,
    )


def bind_role(
    org_id: bytes,
    role: str,
    *,
    ts: int,
    ctx: Iterable[bytes] = (),
    groups: Iterable[bytes] = (),
    realm_id: bytes | None = None,
    expires_at: int | None = None,
) -> Addressed:
    """Roles only add up; one that shall end gets `expires_at`, or goes through a group that members can leave."""
    return addressed(
        bodies.RoleBinding(
            org_id=org_id, realm_id=realm_id, role=role, targets_ctx=_ids(ctx), targets_group=_ids(groups), ts=ts
        ),
        expires_at=expires_at,
    )


def handle(
    realm_id: bytes, name: str, *, target_type: str, target_id: bytes, ts: int, expires_at: int | None = None
) -> Addressed:
    return addressed(
        bodies.HandleMap(realm_id=realm_id, handle=name, target_type=target_type, target_id=target_id, ts=ts),
        expires_at=expires_at,
    )


def external_link(
    realm_id: bytes,
    *,
    provider: str,
    external_sub: str,
    ts: int,
    ctx_id: bytes | None = None,
    org_id: bytes | None = None,
    attributes: Mapping[str, Any] | None = None,
    expires_at: int | None = None,
) -> Addressed:
    body = bodies.ExternalLink(
        realm_id=realm_id,
        ctx_id=ctx_id,
        org_id=org_id,
        provider=provider,
        external_sub=external_sub,
        attributes=_map(attributes),
        ts=ts,
    )
    return addressed(body, expires_at=expires_at)


def revoke_by_principal(
    principal_pk: bytes,
    *,
    ts: int,
    device_id: bytes | None = None,
    auth_ref: bytes | None = None,
    ctx_id: bytes | None = None,
    realm_id: bytes | None = None,
    reason: str | None = None,
) -> Addressed:
    """Draft that a principal revokes a device, a token or one of its accounts."""
    return addressed(
        bodies.IdRevocationRecord(
            principal_pk=principal_pk,
            device_id=device_id,
            revoked_auth_ref=auth_ref,
            realm_id=realm_id,
            ctx_id=ctx_id,
            reason=reason,
            ts=ts,
        )
    )


def revoke_by_org(
    org_id: bytes,
    *,
    ts: int,
    device_id: bytes | None = None,
    auth_ref: bytes | None = None,
    ctx_id: bytes | None = None,
    realm_id: bytes | None = None,
    reason: str | None = None,
) -> Addressed:
    """Draft that an organization revokes a key, a token or a membership; with no target, itself."""
    return addressed(
        bodies.IdRevocationRecord(
            org_id=org_id,
            device_id=device_id,
            revoked_auth_ref=auth_ref,
            realm_id=realm_id,
            ctx_id=ctx_id,
            reason=reason,
            ts=ts,
        )
    )


def mirrored(event: Event, hub_id: bytes | None = None, mirrors: Mirrors = NO_MIRRORS) -> Addressed:
    """Return the draft that a bridge sends to another hub (§12.1, D-85).

    Stream, schema and body are the same; parent_id names the original.

    With `hub_id`, that of the hub which the event was read from, the copy states its origin (D-193).
    """
    if hub_id is not None:
        return Addressed(stream_id=event.stream_id, draft=copy_draft(event, hub_id=hub_id, mirrors=mirrors))
    draft = Draft(schema=event.hdr.schema, body=event.body, parent_id=event.msg_id, expires_at=event.hdr.expires_at)
    return Addressed(stream_id=event.stream_id, draft=draft)


def _ids(ids: Iterable[bytes]) -> tuple[bytes, ...] | None:
    return tuple(sorted(set(ids))) or None


def _map(value: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if value is None else dict(value)


_SCHEMAS: Final = {schema.body: schema for schema in bodies.SCHEMAS.values()}
