"""access.grant.v1 and access.revoke.v1: changes of access control as logged operations (001 spec-3 §3, D-91, D-159).

Granters are configured, or hold a grant for the stream ACCESS_ADMIN; such a holder grants nothing beyond one of his own
live grants. The hub cannot sign for a granter, so his client mints the token that follows from a grant (`token_for`)
and shows it to the hub. A revocation reaches hubs by the policy agent, which takes `AccessState.revoked_refs` (D-51).

    GRANT.STREAMS     the streams are none, not ascending, or repeated
    GRANT.RATE        of maximum_rate_per_second and maximum_burst only one is there
    GRANT.EXPIRY      the grant had expired when the hub took it
    GRANT.AUTHORITY   the sender may not grant (A1)
    GRANT.BEYOND      the sender may grant, but less than this
    REVOKE.AUTHORITY  the sender may not revoke what the subject has
    REVOKE.UNMATCHED  the reference is of no grant and of no token that the reader knows; it is revoked all the same
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Any, Final

from veen.core.crypto.ed25519 import SigningKey
from veen.core.hashing import H
from veen.core.limits import MAX_CAP_STREAMS
from veen.core.objects.captoken import CapToken, Rate
from veen.core.wire import Bytes32, Length, Uint
from veen.overlays.framework.fold import NO_MIRRORS, Mirrors
from veen.overlays.framework.ordered import Table
from veen.overlays.framework.schema import Draft, InvalidBody, Schema, SchemaSet, Violation
from veen.overlays.framework.speaking import SpeakingKey, SpeakingRecord
from veen.overlays.framework.state import state_record
from veen.overlays.framework.typed_table import StateTable
from veen.overlays.operations.common import KEYS_ONLY, Operation, Speakers
from veen.overlays.operations.delegation import DELEGATED, NO_CAPS, Act, ActingFold, Caps, KnownCap

ACCESS_ADMIN: Final = H(b"veen/access-admin")  # the stream_id whose grant lets its subject grant (D-159)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessGrant(Operation, kind="access.grant.v1"):
    """Right of an identity to write to streams."""

    subject_identity: Bytes32
    subject_label: str | None = None
    allowed_stream_ids: Annotated[tuple[Bytes32, ...], Length(0, MAX_CAP_STREAMS)]
    expiry_time: Uint
    maximum_rate_per_second: Uint | None = None
    maximum_burst: Uint | None = None
    maximum_amount: Uint | None = None
    currency_code: str | None = None
    reason: str | None = None
    parent_operation_id: Bytes32 | None = None

    def _check(self) -> None:
        streams = self.allowed_stream_ids
        if not streams or any(left >= right for left, right in pairwise(streams)):
            raise InvalidBody("GRANT.STREAMS", "streams must not be empty, and must be ascending without repetition")
        if (self.maximum_rate_per_second is None) != (self.maximum_burst is None):
            raise InvalidBody("GRANT.RATE", "maximum_rate_per_second and maximum_burst must be given together")


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessRevoke(Operation, kind="access.revoke.v1"):
    """Revocation of such rights."""

    subject_identity: Bytes32
    target_capability_reference: Bytes32 | None = None  # an auth_ref, or the operation_id or msg_id of a grant
    reason: str | None = None
    parent_operation_id: Bytes32 | None = None


GRANT: Final = Schema(AccessGrant.KIND, AccessGrant)
REVOKE: Final = Schema(AccessRevoke.KIND, AccessRevoke)


def grant(subject: bytes, streams: Iterable[bytes], *, expiry_time: int, **fields: Any) -> Draft:
    """Build a draft. `fields` are the other fields of AccessGrant."""
    ordered = tuple(sorted(set(streams)))
    return GRANT.draft(
        AccessGrant(subject_identity=subject, allowed_stream_ids=ordered, expiry_time=expiry_time, **fields)
    )


def revoke(subject: bytes, target: bytes | None = None, **fields: Any) -> Draft:
    """Build a draft. Without a target, it revokes everything that the subject was granted."""
    return REVOKE.draft(AccessRevoke(subject_identity=subject, target_capability_reference=target, **fields))


def token_for(body: AccessGrant, issuer: SigningKey, *, now: int) -> CapToken:
    """Issue the capability of a grant (§3.3) with the granter's key. Its auth_ref is that of the core.

    The hub fixes issued_at when it first sees the token, so show it to the hub at once (D-91).
    """
    rate = None
    if body.maximum_rate_per_second is not None and body.maximum_burst is not None:
        rate = Rate(per_sec=body.maximum_rate_per_second, burst=body.maximum_burst)
    ttl = max(0, body.expiry_time - now)
    return CapToken.issue(issuer, body.subject_identity, body.allowed_stream_ids, ttl=ttl, rate=rate)


@state_record
class GrantedAccess:
    """A valid grant, until it expires or is revoked."""

    operation_id: bytes
    msg_id: bytes
    granter: bytes
    subject: bytes
    subject_label: str | None = None
    stream_ids: tuple[bytes, ...]
    expiry_time: int
    rate: tuple[int, int] | None = None  # (per second, burst)
    maximum_amount: int | None = None
    currency_code: str | None = None
    reason: str | None = None
    revoked_by: bytes | None = None  # operation_id

    def is_live(self, at: int) -> bool:
        return self.revoked_by is None and at < self.expiry_time

    def is_stood_for_by(self, token: CapToken) -> bool:
        """Return True for a token that says the same as this grant."""
        said = token.subject_pk, token.issuer_pk, token.allow.stream_ids
        return said == (self.subject, self.granter, self.stream_ids)

    def covers(self, body: AccessGrant) -> bool:
        """Return True if the grant includes all of `body`."""
        return (
            set(body.allowed_stream_ids) <= set(self.stream_ids)
            and body.expiry_time <= self.expiry_time
            and self._covers_rate(body)
            and self._covers_amount(body)
        )

    def _covers_rate(self, body: AccessGrant) -> bool:
        if self.rate is None:
            return True
        if body.maximum_rate_per_second is None or body.maximum_burst is None:
            return False
        return body.maximum_rate_per_second <= self.rate[0] and body.maximum_burst <= self.rate[1]

    def _covers_amount(self, body: AccessGrant) -> bool:
        if body.maximum_amount is None:
            return True
        if self.maximum_amount is None:
            return False
        return body.maximum_amount <= self.maximum_amount and body.currency_code == self.currency_code


@state_record
class Revoked:
    """A valid revocation."""

    revocation_id: bytes  # operation_id
    subject: bytes
    target: bytes | None = None
    reason: str | None = None
    hub_ts: int
    code: str | None = None  # REVOKE.UNMATCHED where the reference means nothing that the reader knows
    ended: tuple[bytes, ...] | None = (
        None  # grants that it ended; None: by a configured granter, and not limited to them
    )


@state_record
class Named:
    """The grants of one subject, by operation_id."""

    grants_of_subject: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class AccessState:
    """Rights to write to streams by the log (A2)."""

    grants: Mapping[bytes, GrantedAccess]  # by operation_id
    revocations: Mapping[bytes, Revoked]  # by operation_id

    def live(self, subject: bytes, at: int) -> tuple[GrantedAccess, ...]:
        return tuple(grant for grant in self.grants.values() if grant.subject == subject and grant.is_live(at))

    def admits(self, subject: bytes, stream_id: bytes, at: int, bootstrap: Caps = NO_CAPS) -> bool:
        """Return True if a bootstrap token or a grant that is not revoked admits the subject (A2)."""
        if any(stream_id in grant.stream_ids for grant in self.live(subject, at)):
            return True
        return any(
            cap.token.subject_pk == subject
            and stream_id in cap.token.allow.stream_ids
            and cap.is_live(at)
            and not any(self.ends(entry, ref, cap) for entry in self.revocations.values())
            for ref, cap in bootstrap.items()
        )

    def ends(self, revoked: Revoked, ref: bytes, cap: KnownCap) -> bool:
        """Return True if a revocation ends a token: the one that it names, or one that stands for a grant it ended.

        Without a target, a configured granter ends every token that the subject had by then.
        """
        if revoked.target == ref:
            return True
        if cap.issued_at > revoked.hub_ts:
            return False
        if revoked.ended is None and revoked.target is None:
            return cap.token.subject_pk == revoked.subject
        ended = self._grants_ended_by(revoked)
        return any(grant.is_stood_for_by(cap.token) for grant in ended)

    def _grants_ended_by(self, revoked: Revoked) -> Iterable[GrantedAccess]:
        """Return the grants that a revocation ended."""
        if revoked.ended is not None:
            return (self.grants[key] for key in revoked.ended if key in self.grants)
        return (grant for grant in self.grants.values() if grant.revoked_by == revoked.revocation_id)

    @property
    def revoked_refs(self) -> tuple[bytes, ...]:
        """The references in revocations, for hubs, which refuse tokens whose auth_ref is among them (D-51)."""
        return tuple(
            sorted({revocation.target for revocation in self.revocations.values() if revocation.target is not None})
        )


_Key = tuple[str, bytes]
_Record = GrantedAccess | Revoked | Named


class AccessFold(ActingFold[_Key, _Record, AccessState]):
    """Fold of grants and revocations. `granters` may grant and revoke without a grant of their own. Default: nobody."""

    name = "operation.access"
    schemas = SchemaSet([GRANT, REVOKE, DELEGATED])
    KEEPS_NAMES = True
    TABLE = dict[_Key | SpeakingKey, _Record | SpeakingRecord]

    def __init__(
        self,
        *,
        granters: Collection[bytes] = (),
        speakers: Speakers = KEYS_ONLY,
        caps: Caps = NO_CAPS,
        mirrors: Mirrors = NO_MIRRORS,
        speaks: bool = True,
        realms: Collection[bytes] = (),
    ) -> None:
        super().__init__(speakers=speakers, caps=caps, mirrors=mirrors, speaks=speaks, realms=realms)
        self._granters = frozenset(granters)

    def own_settings(self) -> Any:
        return sorted(self._granters)

    def act(self, state: Table[_Key, _Record], act: Act[Any]) -> None:
        if isinstance(act.body, AccessGrant):
            self._grant(state, act)
        else:
            self._revoke(state, act)

    def _grant(self, state: Table[_Key, _Record], act: Act[AccessGrant]) -> None:
        body, at = act.body, act.event.hub_ts
        granter = self._granter(state, act)
        if body.expiry_time <= at:
            raise Violation("GRANT.EXPIRY", "the grant expired before the hub admitted it")
        rate = None
        if body.maximum_rate_per_second is not None and body.maximum_burst is not None:
            rate = (body.maximum_rate_per_second, body.maximum_burst)
        state["grant", act.operation_id] = GrantedAccess(
            operation_id=act.operation_id,
            msg_id=act.msg_id,
            granter=granter,
            subject=body.subject_identity,
            subject_label=body.subject_label,
            stream_ids=body.allowed_stream_ids,
            expiry_time=body.expiry_time,
            rate=rate,
            maximum_amount=body.maximum_amount,
            currency_code=body.currency_code,
            reason=body.reason,
        )
        subject: _Key = ("subject", body.subject_identity)
        named = state.get(subject)
        ids = named.grants_of_subject if isinstance(named, Named) else ()
        state[subject] = Named(grants_of_subject=(*ids, act.operation_id))
        self.note_name(state, body.subject_identity)

    def _granter(self, state: Table[_Key, _Record], act: Act[AccessGrant]) -> bytes:
        """Return the identity under which the sender may grant this (A1, D-159); raise Violation if there is none."""
        granters = act.identities.those_of(self._granters)
        if granters:
            return min(granters)
        own = [
            grant
            for identity in sorted(act.identities.names)
            for grant in _grants_of(state, identity)
            if grant.is_live(act.event.hub_ts) and ACCESS_ADMIN in grant.stream_ids
        ]
        if not own:
            raise Violation("GRANT.AUTHORITY", "the sender may not grant")
        for grant in own:
            if grant.covers(act.body):
                return grant.subject
        raise Violation("GRANT.BEYOND", "streams, time, rate or amount go beyond what the sender was granted")

    def _revoke(self, state: Table[_Key, _Record], act: Act[AccessRevoke]) -> None:
        """Apply a revocation. A configured granter revokes anything, any other sender only its own grants."""
        body, is_granter = act.body, act.identities.any_of(self._granters)
        subjects = self.names_of(state, act.event.stream_id, body.subject_identity)
        named = [
            grant for subject in sorted(subjects) for grant in _grants_of(state, subject) if self._is_meant(grant, body)
        ]
        ours = named if is_granter else [grant for grant in named if grant.granter in act.identities]
        if not is_granter and not ours:
            raise Violation("REVOKE.AUTHORITY", "the sender is no granter and did not grant this")
        for grant in ours:
            if grant.revoked_by is None:
                state["grant", grant.operation_id] = replace(grant, revoked_by=act.operation_id)
        target = body.target_capability_reference
        state["revoke", act.operation_id] = Revoked(
            revocation_id=act.operation_id,
            subject=body.subject_identity,
            target=target,
            reason=body.reason,
            hub_ts=act.event.hub_ts,
            code="REVOKE.UNMATCHED" if target is not None and not named and target not in self.caps else None,
            ended=None if is_granter else tuple(sorted(grant.operation_id for grant in ours)),
        )

    def _is_meant(self, one: GrantedAccess, body: AccessRevoke) -> bool:
        """Return True if a revocation targets a grant: by operation_id, msg_id, or the auth_ref of its token."""
        target = body.target_capability_reference
        if target is None or target in (one.operation_id, one.msg_id):
            return True
        cap = self.caps.find(target)
        return cap is not None and one.is_stood_for_by(cap.token)

    def show(self, state: Table[_Key, _Record], as_of: int) -> AccessState:
        """Return all grants and revocations, expired ones included: queries name their time."""
        grants: dict[bytes, GrantedAccess] = {}
        revocations: dict[bytes, Revoked] = {}
        for (_, key), record in self.records(state):
            if isinstance(record, GrantedAccess):
                grants[key] = record
            elif isinstance(record, Revoked):
                revocations[key] = record
        return AccessState(
            {key: grants[key] for key in sorted(grants)}, {key: revocations[key] for key in sorted(revocations)}
        )


def _grants_of(state: Table[_Key, _Record], subject: bytes) -> Iterator[GrantedAccess]:
    named = state.get(("subject", subject))
    for operation_id in named.grants_of_subject if isinstance(named, Named) else ():
        grant = state["grant", operation_id]
        if isinstance(grant, GrantedAccess):
            yield grant


STATES: Final = (
    StateTable.of(
        AccessFold.name,
        GrantedAccess,
        {"operation_id": "hex"},
        lambda view: view.grants,
        part="grants",
        about="rights that were granted",
        times=("expiry_time",),
    ),
    StateTable.of(
        AccessFold.name,
        Revoked,
        {"operation_id": "hex"},
        lambda view: view.revocations,
        part="revocations",
        about="revocations of rights",
        times=("hub_ts",),
    ),
)
