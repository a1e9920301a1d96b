"""Policy that the hubs of a realm enforce: a pure function of the states of its streams (D-51, 001 spec-2 §2, §4).

Hubs cannot read the streams. A policy agent folds them and hands the outcome to each hub; two agents that read the same
log hand over the same. Four sources, of which the first is always there:

    realm     authority over streams, and revocations (`RealmState`)
    access    grants that were revoked (`AccessState`): the tokens that stand for them, where those are known
    devices   client keys whose device record is disabled, revoked or past its end (`IdState`, D-96), and the tokens
              that their issuers took back there
    caps      the tokens that the agent knows, by auth_ref: a revocation names a grant, a hub knows the token only

A revocation cannot be taken back from a hub, but a device may be enabled again. So devices are revoked for a span of
time that is extended as long as the reason lasts (`LEASE_SEC`). A device record is not signed by the device, so only
those of the principals that the operator names count: else anyone could shut out any key.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

from veen.core.objects.policies import Authority, Revocation
from veen.overlays.federation.realm import RealmState
from veen.overlays.id.delegation import hub_revocations
from veen.overlays.id.state import IdState
from veen.overlays.operations.access import AccessState, Revoked
from veen.overlays.operations.delegation import NO_CAPS, Caps

Item = TypeVar("Item", Authority, Revocation)

LEASE_SEC: Final = 3_600


@dataclass(frozen=True, slots=True)
class Unresolved:
    """A revocation of grants whose tokens the agent does not know: no hub can refuse them by it."""

    revocation_id: bytes  # the operation_id of the access.revoke.v1
    subject: bytes


@dataclass(frozen=True, slots=True)
class RealmPolicy:
    """The records for hubs, sorted, each once."""

    authorities: tuple[Authority, ...]
    revocations: tuple[Revocation, ...]
    unresolved: tuple[Unresolved, ...] = ()

    def in_force(self, at: int) -> "RealmPolicy":
        """Return the policy without ended records, which a hub would refuse."""
        return RealmPolicy(
            tuple(item for item in self.authorities if item.until > at),
            tuple(item for item in self.revocations if item.until > at),
            self.unresolved,
        )


def realm_policy(
    realm: RealmState,
    *,
    access: AccessState | None = None,
    devices: IdState | None = None,
    principals: Collection[bytes] = (),
    caps: Caps = NO_CAPS,
    as_of: int,
) -> RealmPolicy:
    """Return the policy at `as_of`. It depends on the states alone, not on the order of the log."""
    revocations = list(realm.revocations)
    unresolved: list[Unresolved] = []
    if access is not None:
        for revoked in access.revocations.values():
            refs = set(_auth_refs(revoked, access, caps))
            if not refs:
                unresolved.append(Unresolved(revoked.revocation_id, revoked.subject))
            revocations += [Revocation(kind="auth-ref", target=ref, ts=revoked.hub_ts) for ref in refs]
    if devices is not None:
        revocations += _devices(devices, principals, as_of)
        revocations += hub_revocations(devices, (cap.token for cap in caps.values()))
    return RealmPolicy(_sort_records(realm.authorities), _sort_records(revocations), tuple(unresolved))


def _auth_refs(revoked: Revoked, access: AccessState, caps: Caps) -> Iterator[bytes]:
    """Yield the tokens that a revocation of access ends: those of the grants it ended, and what a granter names.

    Whoever holds a grant and is no configured granter ends his own grants, and no other token of their subject.
    """
    target = revoked.target
    names_grant = any(target in (grant.operation_id, grant.msg_id) for grant in access.grants.values())
    if target is not None and not names_grant and revoked.ended is None:
        yield target
    for ref, cap in caps.items():
        if access.ends(revoked, ref, cap):
            yield ref


def _devices(state: IdState, principals: Collection[bytes], as_of: int) -> Iterator[Revocation]:
    """Yield client keys without an active record, each for the span that contains `as_of` and the one after it."""
    devices = [device for device in state.devices.values() if device.principal_pk in principals]
    active = {device.device_pk for device in devices if device.is_active(as_of)}
    start = as_of // LEASE_SEC * LEASE_SEC
    for device_pk in sorted({device.device_pk for device in devices} - active):
        yield Revocation(kind="client-id", target=device_pk, ts=start, ttl=2 * LEASE_SEC)


def _sort_records(items: Iterable[Item]) -> tuple[Item, ...]:
    return tuple(sorted(set(items), key=lambda item: (item.ts, item.to_bytes())))
