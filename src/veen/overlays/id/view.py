"""View of ID: from the summary of the fold to `IdState` as of a moment (D-80)."""

from collections.abc import Iterator
from typing import Any, TypeVar

from veen.core.objects.policies import FOREVER
from veen.overlays.framework.body import Body
from veen.overlays.framework.state import Free
from veen.overlays.id.bodies import CtxProfile, DeviceRecord, ExternalLink, HandleMap, OrgProfile, PrincipalRecord
from veen.overlays.id.ids import principal_stream
from veen.overlays.id.records import ANYWHERE, IdRecords, Last, Stamp
from veen.overlays.id.state import (
    AccountLink,
    Device,
    GroupState,
    Handle,
    IdContext,
    IdPrincipal,
    IdRevocation,
    IdState,
    Org,
    RoleGrant,
)

B = TypeVar("B", bound=Body)
K = TypeVar("K")


def show(records: IdRecords, as_of: int) -> IdState:
    """Return the state without what has expired at `as_of`. Devices and revocations stay, with their ends."""
    return IdState(
        principals=_principals(records, as_of),
        devices=_devices(records),
        contexts=_contexts(records, as_of),
        orgs=_orgs(records, as_of),
        groups=_groups(records, as_of),
        roles=_roles(records, as_of),
        handles=_handles(records, as_of),
        links=_links(records, as_of),
        revocations=_revocations(records),
        revokers=_revokers(records),
    )


def _principals(records: IdRecords, as_of: int) -> dict[bytes, IdPrincipal]:
    """Return the principals. A principal does not expire; its info may."""
    return {
        principal_pk: IdPrincipal(
            principal_pk=principal_pk,
            created_at=records.since[principal_pk][2],
            info=_free(PrincipalRecord.from_bytes_unchecked(raw).info) if has_info and as_of <= until else None,
            msg_id=msg_id,
        )
        for principal_pk, (has_info, _, msg_id, until, raw) in records.principals.items()
    }


def _devices(records: IdRecords) -> dict[tuple[bytes, bytes], Device]:
    devices = {}
    for key, (_, order, msg_id, until, raw) in records.devices.items():
        body = DeviceRecord.from_bytes_unchecked(raw)
        scopes = (principal_stream(body.principal_pk), ANYWHERE)
        revoked = [entry for scope in scopes if (entry := records.revoked.get((scope, "device", body.device_id, None)))]
        devices[key] = Device(
            principal_pk=body.principal_pk,
            device_id=body.device_id,
            device_pk=body.device_pk,
            dh_pk=body.dh_pk,
            label=body.label,
            created_at=body.created_at,
            expires_at=_until(min(until, FOREVER if body.expires_at is None else body.expires_at)),
            disabled=body.disabled,
            revoked_since=min((entry[0] for entry in revoked), default=None),
            msg_id=msg_id,
            disabled_since=order[0] if body.disabled else None,
        )
    return devices


def _contexts(records: IdRecords, as_of: int) -> dict[tuple[bytes, bytes], IdContext]:
    return {
        key: IdContext(
            ctx_id=body.ctx_id,
            realm_id=body.realm_id,
            display_name=body.display_name,
            avatar_coid=body.avatar_coid,
            prefs=_free(body.prefs),
            updated_at=body.updated_at,
            until=until,
            msg_id=msg_id,
        )
        for key, body, until, msg_id in _current(records.contexts, CtxProfile, as_of)
    }


def _orgs(records: IdRecords, as_of: int) -> dict[bytes, Org]:
    return {
        org_id: Org(
            org_id=org_id,
            display_name=body.display_name,
            metadata=_free(body.metadata),
            created_at=body.created_at,
            updated_at=body.updated_at,
            until=until,
            msg_id=msg_id,
        )
        for org_id, body, until, msg_id in _current(records.orgs, OrgProfile, as_of)
    }


def _groups(records: IdRecords, as_of: int) -> dict[tuple[bytes, bytes], GroupState]:
    members: dict[tuple[bytes, bytes], dict[bytes, int | None]] = {key: {} for key in records.groups}
    for (org_id, group_id, ctx_id), (_, additions) in records.members.items():
        until = max((addition[2] for addition in additions), default=-1)
        if as_of <= until:
            members[org_id, group_id][ctx_id] = _until(until)
    return {
        (org_id, group_id): GroupState(
            org_id=org_id,
            group_id=group_id,
            realm_id=realm_id,
            name=name,
            updated_at=stamp[0],
            members=members[org_id, group_id],
        )
        for (org_id, group_id), (stamp, name, realm_id) in records.groups.items()
    }


def _roles(records: IdRecords, as_of: int) -> dict[tuple[bytes, bytes | None, str], RoleGrant]:
    targets: dict[tuple[bytes, bytes | None, str], dict[str, dict[bytes, int | None]]] = {}
    for (org_id, realm_id, role, kind, target), until in records.roles.items():
        if as_of <= until:
            binding = targets.setdefault((org_id, realm_id, role), {"ctx": {}, "group": {}})
            binding[kind][target] = _until(until)
    return {
        (org_id, realm_id, role): RoleGrant(
            org_id=org_id,
            realm_id=realm_id,
            role=role,
            targets_ctx=binding["ctx"],
            targets_group=binding["group"],
        )
        for (org_id, realm_id, role), binding in targets.items()
    }


def _handles(records: IdRecords, as_of: int) -> dict[tuple[bytes, str], Handle]:
    return {
        key: Handle(
            realm_id=body.realm_id,
            handle=body.handle,
            target_type=body.target_type,
            target_id=body.target_id,
            ts=body.ts,
            until=until,
            msg_id=msg_id,
        )
        for key, body, until, msg_id in _current(records.handles, HandleMap, as_of)
    }


def _links(records: IdRecords, as_of: int) -> dict[tuple[bytes, str, str], tuple[AccountLink, ...]]:
    by_key: dict[tuple[bytes, str, str], list[tuple[Stamp, AccountLink]]] = {}
    for (realm_id, provider, external_sub, client_id), last in records.links.items():
        until = last[3]
        if as_of > until:
            continue
        body = ExternalLink.from_bytes_unchecked(last[4])
        link = AccountLink(
            realm_id=realm_id,
            provider=provider,
            external_sub=external_sub,
            ctx_id=body.ctx_id,
            org_id=body.org_id,
            attributes=_free(body.attributes),
            ts=body.ts,
            until=_until(until),
            client_id=client_id,
            msg_id=last[2],
        )
        by_key.setdefault((realm_id, provider, external_sub), []).append((last[:3], link))
    newest_first = {key: sorted(links, key=lambda pair: pair[0], reverse=True) for key, links in by_key.items()}
    return {key: tuple(link for _, link in links) for key, links in newest_first.items()}


def _revocations(records: IdRecords) -> dict[tuple[str, bytes], tuple[IdRevocation, ...]]:
    revocations: dict[tuple[str, bytes], list[IdRevocation]] = {}
    for (scope, kind, target, realm_id), (since, _, msg_id, reason) in records.revoked.items():
        revocation = IdRevocation(
            kind=kind, target=target, scope=scope, realm_id=realm_id, since=since, reason=reason, msg_id=msg_id
        )
        revocations.setdefault((kind, target), []).append(revocation)
    return {key: tuple(sorted(items, key=_age)) for key, items in revocations.items()}


def _revokers(records: IdRecords) -> frozenset[bytes] | None:
    principals = {*records.principals, *(principal_pk for principal_pk, _ in records.devices)}
    return frozenset(records.revokers - principals) or None


def _age(revocation: IdRevocation) -> tuple[int, bytes, bytes, bytes]:
    return revocation.since, revocation.msg_id, revocation.scope, revocation.realm_id or b""


def _current(register: dict[K, Last], kind: type[B], as_of: int) -> Iterator[tuple[K, B, int | None, bytes]]:
    for key, (_, _, msg_id, until, raw) in register.items():
        if as_of <= until:
            yield key, kind.from_bytes_unchecked(raw), _until(until), msg_id


def _until(until: int) -> int | None:
    return None if until == FOREVER else until


def _free(value: dict[str, Any] | None) -> Free | None:
    return None if value is None else Free(value)
