"""The state of ID and its queries (001 ID §6 … §11).

Everything that depends on time takes `as_of` (D-80), so one state answers for every moment from which it was made on:
an application keeps it and authenticates many messages with it.

Summary of the fold of ID: a compact commutative monoid (D-82), independent of the time of the query.

Three shapes serve all nine schemas. A register keeps the last write: (rank, logical order, msg_id) decides. A
membership keeps the last removal and those additions after it that outlive each other (D-95). Roles and revocations
only add up, so a maximum or a minimum is enough. Each of them merges without regard to order or repetition.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, Final, TypeVar

from veen.core.event import Event, Order
from veen.core.objects.policies import FOREVER
from veen.overlays.framework.schema import Body
from veen.overlays.framework.state import DERIVED, Free, state_record
from veen.overlays.id.bodies import CtxProfile, DeviceRecord, ExternalLink, HandleMap, OrgProfile, PrincipalRecord
from veen.overlays.id.ids import ctx_id_of, device_id_of, org_stream, principal_stream, scoped_org_id_of

K = TypeVar("K")

# Copies of one stream on two hubs can hold equal positions, so the msg_id has the last word.
Place = tuple[Order, bytes]
Stamp = tuple[int, Order, bytes]  # rank (the writer's time where the schema has one), then the place
# A stamp, the last second in which it counts (payload_hdr.expires_at, D-80), and the body as it was sealed. Bodies are
# read again when the state is shown: as bytes they take less room, and most writes are overwritten before anyone looks.
Last = tuple[int, Order, bytes, int, bytes]
Addition = tuple[Order, bytes, int]  # a place, and the last second in which it counts
Member = tuple[Place | None, tuple[Addition, ...]]  # last removal · additions not removed, newest last
Revoked = tuple[int, Order, bytes, str | None]  # from when on, place, reason

ANYWHERE: Final = b""  # the scope of a revocation that needs no further proof of authority


@dataclass(slots=True)
class IdRecords:
    """Records of a range: mutable while it is folded, a value afterwards."""

    principals: dict[bytes, Last] = field(default_factory=dict)
    since: dict[bytes, tuple[Order, bytes, int]] = field(default_factory=dict)  # created_at of the first record
    devices: dict[tuple[bytes, bytes], Last] = field(default_factory=dict)  # principal_pk, device_id
    contexts: dict[tuple[bytes, bytes], Last] = field(default_factory=dict)  # ctx_id, realm_id
    orgs: dict[bytes, Last] = field(default_factory=dict)
    groups: dict[tuple[bytes, bytes], tuple[Stamp, str, bytes | None]] = field(default_factory=dict)  # name, realm_id
    members: dict[tuple[bytes, bytes, bytes], Member] = field(default_factory=dict)  # org_id, group_id, ctx_id
    # org_id, realm_id, role, "ctx" or "group", target: until when
    roles: dict[tuple[bytes, bytes | None, str, str, bytes], int] = field(default_factory=dict)
    handles: dict[tuple[bytes, str], Last] = field(default_factory=dict)
    # realm_id, provider, external_sub, client_id: the last record of each writer; readers choose which writers count
    links: dict[tuple[bytes, str, str, bytes], Last] = field(default_factory=dict)
    # scope (the stream of whoever revoked), kind, target, realm_id
    revoked: dict[tuple[bytes, str, bytes, bytes | None], Revoked] = field(default_factory=dict)
    revokers: set[bytes] = field(default_factory=set)  # principal_pk, named by a revocation in its own stream (D-178)


def check_bodies(records: IdRecords) -> None:
    """Raise FormatError unless every body can be read: those of a snapshot may be damaged."""
    registers: tuple[tuple[Mapping[Any, Last], type[Body]], ...] = (
        (records.principals, PrincipalRecord),
        (records.devices, DeviceRecord),
        (records.contexts, CtxProfile),
        (records.orgs, OrgProfile),
        (records.handles, HandleMap),
        (records.links, ExternalLink),
    )
    for register, kind in registers:
        for last in register.values():
            kind.from_bytes(last[4])


def place_of(event: Event) -> Place:
    return event.order, event.leaf_hash


def expiry_of(event: Event) -> int:
    """Return the last second in which the event is valid."""
    expires_at = event.hdr.expires_at
    return FOREVER if expires_at is None else expires_at


def put(register: dict[K, Last], key: K, rank: int, event: Event) -> None:
    """Write the body of `event` unless a later write is known."""
    previous = register.get(key)
    if previous is not None and previous[0] > rank:
        return
    order, msg_id = event.order, event.leaf_hash
    if previous is None or previous[0] < rank or (previous[1], previous[2]) < (order, msg_id):
        expires_at = event.hdr.expires_at
        register[key] = (rank, order, msg_id, FOREVER if expires_at is None else expires_at, event.body)


def add_member(
    members: dict[tuple[bytes, bytes, bytes], Member], key: tuple[bytes, bytes, bytes], change: Member
) -> None:
    previous = members.get(key)
    members[key] = change if previous is None else _join(previous, change)


def _join(a: Member, b: Member) -> Member:
    """Merge two memberships. A removal cancels earlier additions; an addition that a later one outlives is dropped."""
    removed = a[0] if b[0] is None or (a[0] is not None and a[0] > b[0]) else b[0]
    additions: list[Addition] = []
    for addition in sorted({*a[1], *b[1]}, reverse=True):
        # Within one event removals come first (D-95), hence not "<=".
        if removed is not None and addition[:2] < removed:
            break
        if not additions or addition[2] > additions[-1][2]:
            additions.append(addition)
    return removed, tuple(reversed(additions))


def revoke(
    revoked: dict[tuple[bytes, str, bytes, bytes | None], Revoked],
    key: tuple[bytes, str, bytes, bytes | None],
    entry: Revoked,
) -> None:
    """Record a revocation; keep the earliest, because a revocation cannot be undone."""
    previous = revoked.get(key)
    if previous is None or entry[:3] < previous[:3]:
        revoked[key] = entry


def absorb(into: IdRecords, other: IdRecords) -> None:
    """Merge `other` into `into`; leave `other` unchanged."""
    _absorb_last(into.principals, other.principals)
    for key, first in other.since.items():
        into.since[key] = min(first, into.since.get(key, first))
    _absorb_last(into.devices, other.devices)
    _absorb_last(into.contexts, other.contexts)
    _absorb_last(into.orgs, other.orgs)
    for group, name in other.groups.items():
        previous = into.groups.get(group)
        if previous is None or name[0] > previous[0]:
            into.groups[group] = name
    for member, change in other.members.items():
        add_member(into.members, member, change)
    for role, until in other.roles.items():
        into.roles[role] = max(until, into.roles.get(role, 0))
    _absorb_last(into.handles, other.handles)
    _absorb_last(into.links, other.links)
    for target, entry in other.revoked.items():
        revoke(into.revoked, target, entry)
    into.revokers |= other.revokers


def _absorb_last(into: dict[K, Last], other: dict[K, Last]) -> None:
    if not into:
        into.update(other)
        return
    for key, last in other.items():
        previous = into.get(key)
        if previous is None or last[:3] > previous[:3]:
            into[key] = last


def _counts(until: int | None, as_of: int) -> bool:
    return until is None or as_of <= until


@state_record
class IdRevocation:
    """A revocation: target, revoker (`scope`: a stream, empty if no authority is needed) and start."""

    kind: str  # device, auth-ref, ctx, org
    target: bytes
    scope: bytes
    realm_id: bytes | None
    since: int
    reason: str | None
    msg_id: bytes


@state_record
class IdPrincipal:
    principal_pk: bytes
    created_at: int
    info: Free | None
    msg_id: bytes


class DeviceStatus(Enum):
    """Status of a device; the first that applies."""

    REVOKED = "revoked"
    DISABLED = "disabled"
    EXPIRED = "expired"
    ACTIVE = "active"


@state_record
class Device:
    principal_pk: bytes
    device_id: bytes
    device_pk: bytes
    dh_pk: bytes
    label: str | None
    created_at: int
    expires_at: int | None  # of the record or of its message, whichever comes first
    disabled: bool
    revoked_since: int | None
    msg_id: bytes
    disabled_since: int | None = field(default=None, metadata=DERIVED)  # ts* of the record that disabled it

    @property
    def until(self) -> int | None:
        """The last second in which the device acts for its principal; None without an end (§6.2, §11.1)."""
        begins = [since - 1 for since in (self.revoked_since, self.disabled_since) if since is not None]
        return min((*begins, *(() if self.expires_at is None else (self.expires_at,))), default=None)

    def status(self, as_of: int) -> DeviceStatus:
        """Return ACTIVE unless disabled, expired (now <= expires_at is still valid) or revoked (§6.2, §11.1)."""
        if self.revoked_since is not None and self.revoked_since <= as_of:
            return DeviceStatus.REVOKED
        if self.disabled:
            return DeviceStatus.DISABLED
        return DeviceStatus.ACTIVE if _counts(self.expires_at, as_of) else DeviceStatus.EXPIRED

    def is_active(self, as_of: int) -> bool:
        return self.status(as_of) is DeviceStatus.ACTIVE


@state_record
class IdContext:
    """The profile of an account. display_name is no identifier: several accounts may have the same (§7.1)."""

    ctx_id: bytes
    realm_id: bytes
    display_name: str | None
    avatar_coid: bytes | None
    prefs: Free | None
    updated_at: int
    until: int | None
    msg_id: bytes


@state_record
class Org:
    org_id: bytes
    display_name: str | None
    metadata: Free | None
    created_at: int
    updated_at: int
    until: int | None
    msg_id: bytes


@state_record
class GroupState:
    org_id: bytes
    group_id: bytes
    realm_id: bytes | None
    name: str
    updated_at: int
    members: Mapping[bytes, int | None]  # ctx_id, and until when; None is for ever


@state_record
class RoleGrant:
    org_id: bytes
    realm_id: bytes | None  # None: in every realm
    role: str
    targets_ctx: Mapping[bytes, int | None]
    targets_group: Mapping[bytes, int | None]


@state_record
class Handle:
    realm_id: bytes
    handle: str
    target_type: str
    target_id: bytes
    ts: int
    until: int | None
    msg_id: bytes


@state_record
class AccountLink:
    """The last record of one writer about an external account."""

    realm_id: bytes
    provider: str
    external_sub: str
    ctx_id: bytes | None
    org_id: bytes | None
    attributes: Free | None
    ts: int
    until: int | None
    client_id: bytes
    msg_id: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """Two contradictory statements of the log, for people to settle. Queries follow a rule."""

    code: str
    what: str


@dataclass(frozen=True, kw_only=True)
class IdState:
    """The state of the identity overlay. A value; the caches below are functions of it."""

    principals: Mapping[bytes, IdPrincipal]
    devices: Mapping[tuple[bytes, bytes], Device]  # principal_pk, device_id
    contexts: Mapping[tuple[bytes, bytes], IdContext]  # ctx_id, realm_id
    orgs: Mapping[bytes, Org]
    groups: Mapping[tuple[bytes, bytes], GroupState]  # org_id, group_id
    roles: Mapping[tuple[bytes, bytes | None, str], RoleGrant]  # org_id, realm_id, role
    handles: Mapping[tuple[bytes, str], Handle]  # realm_id, handle
    links: Mapping[tuple[bytes, str, str], tuple[AccountLink, ...]]  # realm_id, provider, external_sub; newest first
    revocations: Mapping[tuple[str, bytes], tuple[IdRevocation, ...]]  # kind, target
    revokers: frozenset[bytes] | None = None  # principals of which the log has revocations and nothing else

    # --- principals and devices ---------------------------------------------------------------------------

    def device(self, principal_pk: bytes, device_pk: bytes) -> Device | None:
        return self.devices.get((principal_pk, device_id_of(device_pk)))

    def devices_of(self, principal_pk: bytes) -> list[Device]:
        return [device for device in self.devices.values() if device.principal_pk == principal_pk]

    def knows(self, principal_pk: bytes) -> bool:
        """Return True if the log has a record of this principal or of one of its devices."""
        return principal_stream(principal_pk) in self._principals_by_stream

    def principal_of(self, ctx_id: bytes, realm_id: bytes) -> bytes | None:
        """Return the principal of an account; None if the log lacks its key, from which the id derives (§13)."""
        principals = self._principals_by_stream.values()
        return next((pk for pk in principals if ctx_id_of(pk, realm_id) == ctx_id), None)

    # --- organizations, groups, roles ---------------------------------------------------------------------

    def binding_org(self, org_id: bytes, realm_id: bytes) -> bytes:
        """Return the id of an organization for groups and roles in a realm: the scoped one once it is used (§3.5)."""
        scoped = scoped_org_id_of(org_id, realm_id)
        return scoped if scoped in self._orgs_with_bindings else org_id

    def why_role(self, role: str, ctx_id: bytes, *, org_id: bytes, realm_id: bytes, as_of: int) -> str | None:
        """Explain how an account has a role of an organization, in words; None if it does not have it (§8.3)."""
        bound = self.binding_org(org_id, realm_id)
        if any(self.org_revocation(org, as_of) is not None for org in {org_id, bound}):
            return None
        if self.ctx_revocation(ctx_id, realm_id, as_of) is not None:  # by its own principal (D-178)
            return None
        if self._is_expelled(ctx_id, {org_id, bound}, as_of):
            return None
        for binding in (self.roles.get((bound, None, role)), self.roles.get((bound, realm_id, role))):
            if binding is None:
                continue
            if _has(binding.targets_ctx, ctx_id, as_of):
                return "bound directly"
            for group_id, until in binding.targets_group.items():
                group = self.groups.get((bound, group_id))
                if group is not None and _counts(until, as_of) and _has(group.members, ctx_id, as_of):
                    return f"bound through group {group.name!r}"
        return None

    def roles_of(self, ctx_id: bytes, *, org_id: bytes, realm_id: bytes, as_of: int) -> frozenset[str]:
        """Return all roles of an account in an organization."""
        bound = self.binding_org(org_id, realm_id)
        names = {role for org, realm, role in self.roles if org == bound and realm in (None, realm_id)}
        return frozenset(
            role
            for role in names
            if self.why_role(role, ctx_id, org_id=org_id, realm_id=realm_id, as_of=as_of) is not None
        )

    # --- handles and links --------------------------------------------------------------------------------

    def resolve(self, realm_id: bytes, handle: str, *, as_of: int) -> Handle | None:
        """Return the target of a handle. The last mapping is valid; None if its target is revoked (§10.1, D-95)."""
        target = self.handles.get((realm_id, handle))
        if target is None or not _counts(target.until, as_of):
            return None
        if target.target_type == "org":
            gone = self.org_revocation(target.target_id, as_of)
        else:
            gone = self.ctx_revocation(target.target_id, realm_id, as_of)
        return target if gone is None else None

    def link(
        self, realm_id: bytes, provider: str, external_sub: str, *, as_of: int, writers: Collection[bytes] | None = None
    ) -> AccountLink | None:
        """Return the active link of an external account in a realm: the newest that one of `writers` wrote (§10.2)."""
        for link in self.links.get((realm_id, provider, external_sub), ()):
            if (writers is None or link.client_id in writers) and _counts(link.until, as_of):
                return link
        return None

    # --- revocations --------------------------------------------------------------------------------------

    def revocation(self, kind: str, target: bytes, scopes: Collection[bytes], as_of: int) -> IdRevocation | None:
        """Return the revocation of `target` by one of `scopes`, or one that needs no further authority."""
        for revocation in self.revocations.get((kind, target), ()):
            if revocation.since <= as_of and (revocation.scope == ANYWHERE or revocation.scope in scopes):
                return revocation
        return None

    def ctx_revocation(
        self, ctx_id: bytes, realm_id: bytes, as_of: int, *, trusted_orgs: Collection[bytes] = ()
    ) -> IdRevocation | None:
        """Return the revocation of an account in its realm, by its principal or a trusted organization (§11.1)."""
        trusted = {org_stream(org_id) for org_id in trusted_orgs}
        for revocation in self.revocations.get(("ctx", ctx_id), ()):
            if revocation.since > as_of or revocation.realm_id not in (None, realm_id):
                continue
            if revocation.scope == ANYWHERE or revocation.scope in trusted:
                return revocation
            principal_pk = self._speakers_by_stream.get(revocation.scope)
            if principal_pk is not None and ctx_id_of(principal_pk, realm_id) == ctx_id:
                return revocation
        return None

    def org_revocation(self, org_id: bytes, as_of: int) -> IdRevocation | None:
        return self.revocation("org", org_id, (org_stream(org_id),), as_of)

    def _is_expelled(self, ctx_id: bytes, org_ids: Collection[bytes], as_of: int) -> bool:
        """Return True if one of the organizations revoked an account. It has effect in that organization only."""
        return self.revocation("ctx", ctx_id, {org_stream(org_id) for org_id in org_ids}, as_of) is not None

    # --- what people should settle --------------------------------------------------------------------------

    def conflicts(self) -> tuple[Conflict, ...]:
        return (*self._link_conflicts(), *self._scope_conflicts(), *self._device_conflicts())

    def _link_conflicts(self) -> Iterator[Conflict]:
        for (realm_id, provider, external_sub), links in sorted(self.links.items()):
            targets = {(link.ctx_id, link.org_id) for link in links}
            if len(targets) > 1:
                account = f"{provider}:{external_sub} in realm {realm_id.hex()}"
                yield Conflict(code="ID.LINK_CONFLICT", what=f"{account} is linked to {len(targets)} identities")

    def _scope_conflicts(self) -> Iterator[Conflict]:
        """Yield bindings by the bare org_id in a realm where the scoped id is used: they have no effect (§3.5)."""
        bare = {(group.org_id, group.realm_id) for group in self.groups.values()}
        bare |= {(role.org_id, role.realm_id) for role in self.roles.values()}
        for org_id, realm_id in sorted((org, realm) for org, realm in bare if realm is not None):
            if self.binding_org(org_id, realm_id) != org_id:
                where = f"organization {org_id.hex()} in realm {realm_id.hex()}"
                yield Conflict(code="ID.ORG_SCOPE", what=f"{where} has bindings by its bare and by its scoped id")

    def _device_conflicts(self) -> Iterator[Conflict]:
        """Yield revocations of devices by organizations. They apply to the organization's tokens, not to the device."""
        owners = {device_id: principal_pk for principal_pk, device_id in sorted(self.devices)}
        for (kind, target), revocations in sorted(self.revocations.items()):
            owner = owners.get(target) if kind == "device" else None
            if owner is None:
                continue
            for revocation in revocations:
                if revocation.scope not in (ANYWHERE, principal_stream(owner)):
                    what = f"device {target.hex()} is a principal's: only {owner.hex()} can revoke it for the principal"
                    yield Conflict(code="ID.DEVICE_OWNER", what=what)

    # --- caches -----------------------------------------------------------------------------------------------

    @cached_property
    def _principals_by_stream(self) -> dict[bytes, bytes]:
        principal_pks = {*self.principals, *(principal_pk for principal_pk, _ in self.devices)}
        return {principal_stream(principal_pk): principal_pk for principal_pk in sorted(principal_pks)}

    @cached_property
    def _speakers_by_stream(self) -> dict[bytes, bytes]:
        """Principals by stream, also those of which the log has a revocation alone."""
        revokers = {principal_stream(principal_pk): principal_pk for principal_pk in self.revokers or ()}
        return revokers | self._principals_by_stream

    @cached_property
    def _orgs_with_bindings(self) -> frozenset[bytes]:
        return frozenset((*(org for org, _ in self.groups), *(org for org, _, _ in self.roles)))


def _has(targets: Mapping[bytes, int | None], target: bytes, as_of: int) -> bool:
    return target in targets and _counts(targets[target], as_of)
