"""The fold of ID: events of identity streams in, `IdState` out (001 ID §6 … §12).

Codes of what has no effect, besides those of the bodies (ID.DEVICE_ID, ID.HANDLE, ID.LINK_TARGET,
ID.REVOKE_TARGET) and of decoding (OVL.*):

    ID.STREAM      the event came through a stream that is not that of the identity it speaks about
    ID.ORG_SCOPE   in the stream of a realm-scoped organization, a group or role names the bare org_id (§3.5)
    ID.CTX_OWNER   a principal revokes an account that is not its own
    ID.DEVICE_OWNER  an organization revokes a device of the principal that it names: only the principal can (D-177)
    ID.AUTHOR      the reader's configuration names the writers of this stream, and the sender is none of them

View of ID: from the summary of the fold to `IdState` as of a moment (D-80).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

from veen.core import cbor
from veen.core.event import Event
from veen.core.objects.policies import FOREVER
from veen.overlays.framework.fold import NO_MIRRORS, Compact, Mirrors, Summary
from veen.overlays.framework.schema import Body, Typed, Violation
from veen.overlays.framework.state import Free
from veen.overlays.id.bodies import (
    SCHEMAS,
    CtxProfile,
    DeviceRecord,
    ExternalLink,
    GroupChange,
    HandleMap,
    IdRevocationRecord,
    OrgProfile,
    PrincipalRecord,
    RoleBinding,
)
from veen.overlays.id.ids import ctx_id_of, ctx_stream, handle_stream, org_stream, principal_stream, scoped_org_id_of
from veen.overlays.id.state import (
    ANYWHERE,
    AccountLink,
    Device,
    GroupState,
    Handle,
    IdContext,
    IdPrincipal,
    IdRecords,
    IdRevocation,
    IdState,
    Last,
    Member,
    Org,
    RoleGrant,
    Stamp,
    absorb,
    add_member,
    check_bodies,
    expiry_of,
    place_of,
    put,
    revoke,
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


class IdFold(Compact[IdRecords, IdState]):
    """Fold of identities, delegations and revocations.

    `merged` are stream ids that carry the events of any identity (§4.1 allows merging streams): whoever may write there
    speaks for everybody. `authors` names the writers of single streams, for readers who do not want to rely on a hub's
    capabilities alone; copies that a registered bridge made pass, since the bridge is trusted (D-85).
    """

    name = "id"
    version = 2  # times count at most as ts*, revocations introduce their principal (D-175, D-178)
    schemas = SCHEMAS
    SUMMARY = IdRecords

    def __init__(
        self,
        *,
        mirrors: Mirrors = NO_MIRRORS,
        merged: Iterable[bytes] = (),
        authors: Mapping[bytes, Iterable[bytes]] | None = None,
    ) -> None:
        super().__init__(mirrors=mirrors)
        self.merged = frozenset(merged)
        self.authors = {stream: frozenset(keys) for stream, keys in (authors or {}).items()}

    def settings(self) -> tuple[frozenset[bytes], dict[bytes, frozenset[bytes]]]:
        return self.merged, self.authors

    def start(self) -> IdRecords:
        return IdRecords()

    def add(self, into: IdRecords, event: Typed[Any]) -> None:
        e, body = event
        if self.authors:
            self._check_author(e)
        _ADD[type(body)](self, into, e, body)

    def absorb(self, into: IdRecords, other: IdRecords) -> None:
        absorb(into, other)

    def show(self, state: IdRecords, as_of: int) -> IdState:
        return show(state, as_of)

    def load(self, tree: cbor.Item) -> Summary[IdRecords]:
        summary = super().load(tree)
        check_bodies(summary.state)  # nobody checks them again
        show(summary.state, 0)  # what else does not fit together must be found now
        return summary

    # --- checks ------------------------------------------------------------------------------------------

    def _check_author(self, e: Event) -> None:
        authors = self.authors.get(e.stream_id)
        if authors is not None and e.client_id not in authors and self.mirrors.original_of(e) is None:
            raise Violation("ID.AUTHOR", "the sender is not among the writers of this stream")

    def _check_stream(self, e: Event, stream_id: bytes, of: str) -> None:
        if e.stream_id != stream_id and e.stream_id not in self.merged:
            raise Violation("ID.STREAM", f"the record is not on the stream of its {of}")

    def _check_org_stream(self, e: Event, org_id: bytes, realm_id: bytes | None) -> None:
        if e.stream_id == org_stream(org_id) or e.stream_id in self.merged:
            return
        if realm_id is not None and e.stream_id == org_stream(scoped_org_id_of(org_id, realm_id)):
            raise Violation("ID.ORG_SCOPE", "in the stream of a realm-scoped organization, org_id is the scoped one")
        raise Violation("ID.STREAM", "the record is not on the stream of its organization")

    # --- one schema each ---------------------------------------------------------------------------------

    def _principal(self, into: IdRecords, e: Event, body: PrincipalRecord) -> None:
        self._check_stream(e, principal_stream(body.principal_pk), "principal")
        # A record without info does not override the info of an earlier one (§6.1).
        put(into.principals, body.principal_pk, int(body.info is not None), e)
        first, previous = (*place_of(e), body.created_at), into.since.get(body.principal_pk)
        if previous is None or first < previous:
            into.since[body.principal_pk] = first

    def _device(self, into: IdRecords, e: Event, body: DeviceRecord) -> None:
        self._check_stream(e, principal_stream(body.principal_pk), "principal")
        put(into.devices, (body.principal_pk, body.device_id), 0, e)  # the last in the log decides (§6.2)

    def _ctx_profile(self, into: IdRecords, e: Event, body: CtxProfile) -> None:
        self._check_stream(e, ctx_stream(body.ctx_id, body.realm_id), "context")
        put(into.contexts, (body.ctx_id, body.realm_id), _time(body.updated_at, e), e)

    def _org_profile(self, into: IdRecords, e: Event, body: OrgProfile) -> None:
        self._check_stream(e, org_stream(body.org_id), "organization")
        put(into.orgs, body.org_id, _time(body.updated_at, e), e)

    def _group(self, into: IdRecords, e: Event, body: GroupChange) -> None:
        self._check_org_stream(e, body.org_id, body.realm_id)
        group, place = (body.org_id, body.group_id), place_of(e)
        stamp = (_time(body.updated_at, e), *place)
        previous = into.groups.get(group)
        if previous is None or stamp > previous[0]:
            into.groups[group] = (stamp, body.name, body.realm_id)
        added, removed = frozenset(body.members_add or ()), frozenset(body.members_remove or ())
        addition = ((*place, expiry_of(e)),)
        for ctx_id in added | removed:
            change: Member = (place if ctx_id in removed else None, addition if ctx_id in added else ())
            add_member(into.members, (*group, ctx_id), change)

    def _role(self, into: IdRecords, e: Event, body: RoleBinding) -> None:
        self._check_org_stream(e, body.org_id, body.realm_id)
        until, roles = expiry_of(e), into.roles
        for kind, targets in (("ctx", body.targets_ctx), ("group", body.targets_group)):
            for target in targets or ():
                key = (body.org_id, body.realm_id, body.role, kind, target)
                roles[key] = max(until, roles.get(key, 0))

    def _handle(self, into: IdRecords, e: Event, body: HandleMap) -> None:
        self._check_stream(e, handle_stream(body.realm_id), "realm's handles")
        put(into.handles, (body.realm_id, body.handle), _time(body.ts, e), e)

    def _link(self, into: IdRecords, e: Event, body: ExternalLink) -> None:
        homes = []
        if body.ctx_id is not None:
            homes.append(ctx_stream(body.ctx_id, body.realm_id))
        if body.org_id is not None:
            homes.append(org_stream(body.org_id))
        if e.stream_id not in homes:
            self._check_stream(e, homes[0], "context or organization")
        key = body.realm_id, body.provider, body.external_sub, e.client_id
        put(into.links, key, _time(body.ts, e), e)

    def _revocation(self, into: IdRecords, e: Event, body: IdRevocationRecord) -> None:
        """Store a revocation by the stream that it came through: it has effect only on what the author of that stream
        owns, a principal or an organization."""
        scopes = self._scopes(e, body)
        own = self._check_owner(body, scopes)
        if body.principal_pk is not None and principal_stream(body.principal_pk) in scopes:
            into.revokers.add(body.principal_pk)
        entry = (_time(body.ts, e), *place_of(e), body.reason)
        for kind, target in body.targets():
            realm_id = body.realm_id if kind == "ctx" else None
            for scope in (ANYWHERE,) if kind == "ctx" and own else scopes:
                revoke(into.revoked, (scope, kind, target, realm_id), entry)

    def _check_owner(self, body: IdRevocationRecord, scopes: tuple[bytes, ...]) -> bool:
        """Return True if a principal revokes its own account: this needs no other authority."""
        if body.ctx_id is None or body.realm_id is None or body.principal_pk is None:
            return False
        if principal_stream(body.principal_pk) not in scopes:
            return False
        if body.ctx_id != ctx_id_of(body.principal_pk, body.realm_id):
            raise Violation("ID.CTX_OWNER", "the account is not one of this principal's")
        return True

    def _scopes(self, e: Event, body: IdRevocationRecord) -> tuple[bytes, ...]:
        """Return the streams on whose authority the revocation was made."""
        named = []
        if body.principal_pk is not None:
            named.append(principal_stream(body.principal_pk))
        if body.org_id is not None:
            named.append(org_stream(body.org_id))
        if e.stream_id in self.merged:
            return tuple(named) or (ANYWHERE,)
        if named and e.stream_id not in named:
            raise Violation("ID.STREAM", "the record is not on the stream of its principal or organization")
        if body.device_id is not None and body.principal_pk is not None and e.stream_id == named[-1] != named[0]:
            raise Violation("ID.DEVICE_OWNER", "an organization cannot revoke a device of a principal")
        return (e.stream_id,)


def _time(ts: int, e: Event) -> int:
    """Return the time in the body, at most ts*: a later one could never be corrected (D-175)."""
    return min(ts, e.ts)


_ADD: Final[Mapping[type, Callable[[IdFold, IdRecords, Event, Any], None]]] = {
    PrincipalRecord: IdFold._principal,
    DeviceRecord: IdFold._device,
    CtxProfile: IdFold._ctx_profile,
    OrgProfile: IdFold._org_profile,
    GroupChange: IdFold._group,
    RoleBinding: IdFold._role,
    HandleMap: IdFold._handle,
    ExternalLink: IdFold._link,
    IdRevocationRecord: IdFold._revocation,
}
