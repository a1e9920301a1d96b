"""The fold of ID: events of identity streams in, `IdState` out (001 ID §6 … §12).

Codes of what has no effect, besides those of the bodies (ID.DEVICE_ID, ID.HANDLE, ID.LINK_TARGET,
ID.REVOKE_TARGET) and of decoding (OVL.*):

    ID.STREAM      the event came through a stream that is not that of the identity it speaks about
    ID.ORG_SCOPE   in the stream of a realm-scoped organization, a group or role names the bare org_id (§3.5)
    ID.CTX_OWNER   a principal revokes an account that is not its own
    ID.DEVICE_OWNER  an organization revokes a device of the principal that it names: only the principal can (D-177)
    ID.AUTHOR      the reader's configuration names the writers of this stream, and the sender is none of them
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from veen.core import cbor
from veen.core.event import Event
from veen.overlays.framework.decode import Typed, Violation
from veen.overlays.framework.dedup import NO_MIRRORS, Mirrors
from veen.overlays.framework.fold import Compact, Summary
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
from veen.overlays.id.records import (
    ANYWHERE,
    IdRecords,
    Member,
    absorb,
    add_member,
    check_bodies,
    expiry_of,
    place_of,
    put,
    revoke,
)
from veen.overlays.id.state import IdState
from veen.overlays.id.view import show


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
