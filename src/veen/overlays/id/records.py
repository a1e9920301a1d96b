"""Summary of the fold of ID: a compact commutative monoid (D-82), independent of the time of the query.

Three shapes serve all nine schemas. A register keeps the last write: (rank, logical order, msg_id) decides. A
membership keeps the last removal and those additions after it that outlive each other (D-95). Roles and revocations
only add up, so a maximum or a minimum is enough. Each of them merges without regard to order or repetition.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from veen.core.event import Event, Order
from veen.core.objects.policies import FOREVER
from veen.overlays.framework.body import Body
from veen.overlays.id.bodies import CtxProfile, DeviceRecord, ExternalLink, HandleMap, OrgProfile, PrincipalRecord

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
