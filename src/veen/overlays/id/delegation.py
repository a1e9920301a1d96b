"""Delegation, rotation, and revocations for hubs (001 ID §9.1, §11; D-51, D-96).

Keys of principals and organizations are long-lived roots: ID v0.0.1 has no schema that replaces them (§11.3), so
nothing here rotates them.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import CapabilityError
from veen.core.objects import policies
from veen.core.objects.captoken import CapToken, Rate
from veen.overlays.id import drafts
from veen.overlays.id.drafts import Addressed
from veen.overlays.id.ids import ctx_id_of, ctx_stream, device_id_of, org_id_of, org_stream, principal_stream
from veen.overlays.id.state import Device, IdState


class DelegationRefused(CapabilityError, code="ID.DELEGATION"):
    """A token asked for a key that is no ACTIVE device of the principal."""


def delegate(
    principal: SigningKey,
    device_pk: bytes,
    *,
    state: IdState,
    as_of: int,
    ttl: int,
    realms: Iterable[bytes] = (),
    streams: Iterable[bytes] = (),
    rate: Rate | None = None,
) -> CapToken:
    """Issue a token by which a device acts for its principal.

    It covers the principal's stream, those of its accounts in `realms`, and the `streams` of applications.
    """
    device = state.device(principal.public, device_pk)
    if device is None:
        raise DelegationRefused("the key is not that of a device of this principal")
    if not device.is_active(as_of):
        raise DelegationRefused(f"the device is {device.status(as_of).value}")
    own = [ctx_stream(ctx_id_of(principal.public, realm_id), realm_id) for realm_id in realms]
    return CapToken.issue(
        principal, device_pk, [principal_stream(principal.public), *own, *streams], ttl=ttl, rate=rate
    )


def delegate_by_org(
    org: SigningKey, subject_pk: bytes, *, ttl: int, streams: Iterable[bytes], rate: Rate | None = None
) -> CapToken:
    """Issue a token by which a principal, a device or a service acts for an organization."""
    return CapToken.issue(org, subject_pk, streams, ttl=ttl, rate=rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """The public halves of a new device. With `expires_at` it serves as a rotated client key (D-96)."""

    device_pk: bytes
    dh_pk: bytes
    label: str | None = None
    expires_at: int | None = None


def rotate_device(
    old: Device,
    new: NewKey,
    *,
    now: int,
    auth_refs: Iterable[bytes] = (),
    disable: bool = True,
    reason: str | None = "rotated",
) -> tuple[Addressed, ...]:
    """Return the messages that replace `old` by `new`, in sending order (§11.2). Then `delegate` to the new key.

    The new device comes first, so a principal never is without one. The old tokens are revoked too, and the old device
    is disabled as well, for readers who look at device records only.
    """
    principal_pk = old.principal_pk
    messages = [
        drafts.device(
            principal_pk,
            device_pk=new.device_pk,
            dh_pk=new.dh_pk,
            label=old.label if new.label is None else new.label,
            created_at=now,
            expires_at=new.expires_at,
        ),
        drafts.revoke_by_principal(principal_pk, device_id=old.device_id, reason=reason, ts=now),
        *(
            drafts.revoke_by_principal(principal_pk, auth_ref=auth_ref, reason=reason, ts=now)
            for auth_ref in sorted(set(auth_refs))
        ),
    ]
    if disable:
        messages.append(
            drafts.device(
                principal_pk,
                device_pk=old.device_pk,
                dh_pk=old.dh_pk,
                label=old.label,
                created_at=old.created_at,
                expires_at=old.expires_at,
                disabled=True,
            )
        )
    return tuple(messages)


def hub_revocations(state: IdState, tokens: Iterable[CapToken]) -> tuple[policies.Revocation, ...]:
    """Return revocations of those of `tokens` that are revoked, for hubs, which cannot read identity streams (D-51).

    A token falls with itself or with the device it is for, if its own issuer said so. Keys are never reported as such:
    a device record does not prove that its author holds the key, and a hub would refuse the key to everyone.
    """
    revoked = []
    for token in tokens:
        auth_ref = token.auth_ref()
        homes = (principal_stream(token.issuer_pk), org_stream(org_id_of(token.issuer_pk)))
        revocations = [
            state.revocation("auth-ref", auth_ref, homes, policies.FOREVER),
            state.revocation("device", device_id_of(token.subject_pk), homes, policies.FOREVER),
        ]
        since = [revocation.since for revocation in revocations if revocation is not None]
        if since:
            revoked.append(policies.Revocation(kind="auth-ref", target=auth_ref, ts=min(since)))
    return tuple(sorted(revoked, key=lambda item: item.target))
