"""Authentication without passwords or sessions: the path of 001 ID §9.2 as one pure function.

Every check is made and reported, so that a refusal names all of its reasons and an approval can be audited. A check
that has nothing to look at is skipped; a verdict is good only if the token was there and no check failed.

    ID.AUTH_SIGNATURE   MSG.sig verifies under client_id
    ID.AUTH_TOKEN       there is a cap_token, and it is the one that auth_ref names
    ID.AUTH_CHAIN       its sig_chain verifies under issuer_pk
    ID.AUTH_SUBJECT     its subject is the key that signed the message
    ID.AUTH_STREAMS     it allows the stream of the message and all further ones that are asked for
    ID.AUTH_TTL         it is within its time to live
    ID.AUTH_RATE        it is within its rate
    ID.AUTH_REVOKED     its issuer has not taken it back
    ID.AUTH_ISSUER      its issuer is known, and is not revoked
    ID.AUTH_DEVICE      the key belongs to an ACTIVE device of the principal; organizations: it is not revoked
    ID.AUTH_CTX         the account is the principal's in this realm, and is not disabled
    ID.AUTH_ROLE        the account has the role; one check for each required role
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from hmac import compare_digest
from typing import Self

from veen.core.errors import CapabilityError, VerifyError
from veen.core.event import Event
from veen.core.labels import label_of
from veen.core.limits import DEFAULT_LIMITS, Limits
from veen.core.objects.captoken import Allow, CapToken
from veen.core.objects.msg import Msg
from veen.overlays.id.ids import ctx_id_of, device_id_of, org_id_of, org_stream, principal_stream
from veen.overlays.id.state import DeviceStatus, IdState


class NotAuthenticated(VerifyError):
    """A message that does not prove that its sender is who it must be."""

    hint = "The verdict lists every check; the sender may need a new token, another device, or a role."


class Outcome(Enum):
    PASS = "pass"  # noqa: S105 - not a password
    FAIL = "fail"
    SKIP = "skip"


class IssuerKind(Enum):
    """Kind of issuer whose token is expected. The caller decides: one key may be both, with different rights (§9.1)."""

    PRINCIPAL = "principal"
    ORG = "org"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFacts:
    """Facts about the message that authenticates its sender."""

    client_id: bytes
    auth_ref: bytes | None
    stream_id: bytes
    signed: bool  # MSG.sig verifies under client_id, and the label is one of stream_id
    at: int  # when: ts* of the log (D-27), or the reader's clock for a message that no hub has ordered
    admitted: bool = False  # a hub admitted it, and so held the token to its ttl and rate (§9.1)
    issued_at: int | None = None  # when the token began to count (D-47), if the caller knows
    uses: tuple[int, ...] | None = None  # when the token was used, this message last, if the caller knows

    @classmethod
    def of_event(cls, event: Event, *, issued_at: int | None = None, uses: Iterable[int] | None = None) -> Self:
        """Return the facts of a log entry. Its signature and receipt were verified when the event was made (I2, I3)."""
        return cls(
            client_id=event.client_id,
            auth_ref=event.auth_ref,
            stream_id=event.stream_id,
            signed=True,
            at=event.ts,
            admitted=True,
            issued_at=issued_at,
            uses=None if uses is None else tuple(uses),
        )

    @classmethod
    def of_msg(
        cls,
        msg: Msg,
        *,
        stream_id: bytes,
        epoch: int,
        routing_key: bytes,
        at: int,
        issued_at: int | None = None,
        uses: Iterable[int] | None = None,
    ) -> Self:
        """Return the facts of a message that has not passed a hub. Its signed label must be that of the stream."""
        try:
            msg.verify()
            signed = msg.label == label_of(routing_key, stream_id, epoch)
        except VerifyError:
            signed = False
        return cls(
            client_id=msg.client_id,
            auth_ref=msg.auth_ref,
            stream_id=stream_id,
            signed=signed,
            at=at,
            issued_at=issued_at,
            uses=None if uses is None else tuple(uses),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleNeed:
    """A role that the account must have in an organization (bare or scoped org_id)."""

    org_id: bytes
    role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check and its result."""

    code: str
    outcome: Outcome
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthVerdict:
    """Verdict about the sender, with every check. The ids are set only if the verdict is good."""

    ok: bool
    checks: tuple[Check, ...]
    ctx_id: bytes | None = None  # a principal's token: bind the session to this account
    org_id: bytes | None = None  # an organization's token: the sender acts for it
    device_id: bytes | None = None

    @property
    def failed(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.outcome is Outcome.FAIL)

    def require(self) -> Self:
        """Return the verdict; raise NotAuthenticated with every reason if it is not good."""
        if not self.ok:
            raise NotAuthenticated("; ".join(f"{check.code}: {check.why}" for check in self.failed))
        return self


def authenticate(
    state: IdState,
    token: CapToken | None,
    facts: MessageFacts,
    *,
    realm_id: bytes,
    ctx_id: bytes | None = None,
    issuer: IssuerKind = IssuerKind.PRINCIPAL,
    streams: Collection[bytes] = (),
    roles: Collection[RoleNeed] = (),
    trusted_orgs: Collection[bytes] = (),
    limits: Limits = DEFAULT_LIMITS,
    as_of: int | None = None,
) -> AuthVerdict:
    """Check that `facts` and `token` prove an account of `realm_id`. Default time: that of the message.

    `ctx_id` is the account the sender claims to be, if it claims one; `streams` are those it asks for besides that of
    the message; `trusted_orgs` may disable accounts for the whole realm. A message that a hub admitted was held to ttl
    and rate there; `issued_at` and `uses` make the caller hold it to them again.
    """
    now = facts.at if as_of is None else as_of
    checks = [
        _check(
            "ID.AUTH_SIGNATURE", facts.signed, "MSG.sig is client_id's, for this stream", "MSG.sig is not client_id's"
        )
    ]
    checks.append(_token(token, facts))
    if token is None:
        return AuthVerdict(ok=False, checks=tuple(checks))
    principal = issuer is IssuerKind.PRINCIPAL
    home = principal_stream(token.issuer_pk) if principal else org_stream(org_id_of(token.issuer_pk))
    checks += [
        _chain(token),
        _check(
            "ID.AUTH_SUBJECT", token.subject_pk == facts.client_id, "the subject sent it", "the subject is another key"
        ),
        _streams(token, {facts.stream_id, *streams}),
        _ttl(token, facts, now),
        _rate(token.allow, facts, limits),
        _check_revocation(state, "ID.AUTH_REVOKED", "auth-ref", token.auth_ref(), home, now),
    ]
    if principal:
        checks += _principal(state, token, facts, now)
    else:
        checks += _org(state, token, home, now)
    account = ctx_id_of(token.issuer_pk, realm_id) if principal else None
    checks.append(_ctx(state, account, ctx_id, realm_id, trusted_orgs, now))
    checks += [_role(state, need, account, realm_id, now) for need in roles]
    if any(check.outcome is Outcome.FAIL for check in checks):
        return AuthVerdict(ok=False, checks=tuple(checks))
    return AuthVerdict(
        ok=True,
        checks=tuple(checks),
        ctx_id=account,
        org_id=None if principal else org_id_of(token.issuer_pk),
        device_id=device_id_of(facts.client_id),
    )


def _check(code: str, ok: bool, good: str, bad: str) -> Check:
    return Check(code=code, outcome=Outcome.PASS if ok else Outcome.FAIL, why=good if ok else bad)


def _token(token: CapToken | None, facts: MessageFacts) -> Check:
    if facts.auth_ref is None:
        return _check("ID.AUTH_TOKEN", False, "", "the message names no token")
    if token is None:
        return _check("ID.AUTH_TOKEN", False, "", "the token that the message names is not known")
    same = compare_digest(token.auth_ref(), facts.auth_ref)
    return _check("ID.AUTH_TOKEN", same, "auth_ref names this token", "auth_ref names another")


def _chain(token: CapToken) -> Check:
    try:
        token.verify()
    except CapabilityError as exc:
        return _check("ID.AUTH_CHAIN", False, "", str(exc))
    return _check("ID.AUTH_CHAIN", True, f"{len(token.sig_chain)} links verify under issuer_pk", "")


def _streams(token: CapToken, wanted: set[bytes]) -> Check:
    missing = sorted(wanted.difference(token.allow.stream_ids))
    bad = f"the token does not allow stream {missing[0].hex()}" if missing else ""
    return _check("ID.AUTH_STREAMS", not missing, f"the token allows {len(wanted)} streams that are used", bad)


def _ttl(token: CapToken, facts: MessageFacts, now: int) -> Check:
    if facts.issued_at is None:
        bad = "nobody knows when the token began to count"
        return _check("ID.AUTH_TTL", facts.admitted, f"the hub held the token to its ttl at {facts.at}", bad)
    live = token.is_live(issued_at=facts.issued_at, hub_ts=now)
    end = facts.issued_at + token.allow.ttl
    return _check("ID.AUTH_TTL", live, f"the token lasts until {end}", f"the token ended at {end}, it is {now}")


def _rate(allow: Allow, facts: MessageFacts, limits: Limits) -> Check:
    if facts.uses is not None:
        good, bad = "the bucket holds a token for this message", "more messages than the rate of the token allows"
        return _check("ID.AUTH_RATE", _within(allow.bucket(limits), facts.uses), good, bad)
    if allow.rate is None:
        return _check("ID.AUTH_RATE", True, "the token sets no rate", "")
    return _check(
        "ID.AUTH_RATE", facts.admitted, "the hub held the token to its rate", "nobody counted the uses of the token"
    )


def _within(bucket: tuple[int, int], uses: Sequence[int]) -> bool:
    """Return True if the last use gets a token from a bucket that was full at the first use (D-50)."""
    per_sec, burst = bucket
    tokens, last = burst, uses[0] if uses else 0
    granted = True
    for use in uses:
        tokens, last = min(burst, tokens + per_sec * (use - last)), use
        granted = tokens >= 1
        tokens -= granted
    return granted


def _check_revocation(state: IdState, code: str, kind: str, target: bytes, home: bytes, now: int) -> Check:
    revocation = state.revocation(kind, target, (home,), now)
    if revocation is None:
        return _check(code, True, "not revoked", "")
    return _check(code, False, "", f"revoked since {revocation.since}" + _because(revocation.reason))


def _because(reason: str | None) -> str:
    return "" if reason is None else f": {reason}"


def _principal(state: IdState, token: CapToken, facts: MessageFacts, now: int) -> list[Check]:
    is_known = state.knows(token.issuer_pk)
    checks = [
        _check("ID.AUTH_ISSUER", is_known, "a principal of this log", "no record of this principal is in the log")
    ]
    device = state.device(token.issuer_pk, facts.client_id)
    if device is None:
        return [*checks, _check("ID.AUTH_DEVICE", False, "", "no device of the principal has this key")]
    status = device.status(now)
    active = status is DeviceStatus.ACTIVE
    return [*checks, _check("ID.AUTH_DEVICE", active, "the device is ACTIVE", f"the device is {status.value}")]


def _org(state: IdState, token: CapToken, home: bytes, now: int) -> list[Check]:
    org_id = org_id_of(token.issuer_pk)
    gone = state.org_revocation(org_id, now)
    bad = "no profile of this organization is in the log"
    if gone is not None:
        bad = f"the organization is revoked since {gone.since}" + _because(gone.reason)
    is_known = org_id in state.orgs and gone is None
    return [
        _check("ID.AUTH_ISSUER", is_known, "an organization of this log", bad),
        _check_revocation(state, "ID.AUTH_DEVICE", "device", device_id_of(token.subject_pk), home, now),
    ]


def _ctx(
    state: IdState,
    account: bytes | None,
    claimed: bytes | None,
    realm_id: bytes,
    trusted_orgs: Collection[bytes],
    now: int,
) -> Check:
    if account is None:
        if claimed is None:
            return Check(code="ID.AUTH_CTX", outcome=Outcome.SKIP, why="an organization's token binds no account")
        return _check("ID.AUTH_CTX", False, "", "an organization's token cannot prove an account")
    if claimed is not None and claimed != account:
        return _check("ID.AUTH_CTX", False, "", "the principal has another account in this realm")
    gone = state.ctx_revocation(account, realm_id, now, trusted_orgs=trusted_orgs)
    if gone is not None:
        return _check("ID.AUTH_CTX", False, "", f"the account is disabled since {gone.since}" + _because(gone.reason))
    return _check("ID.AUTH_CTX", True, "the principal's account in this realm", "")


def _role(state: IdState, need: RoleNeed, account: bytes | None, realm_id: bytes, now: int) -> Check:
    if account is None:
        return _check("ID.AUTH_ROLE", False, "", f"role {need.role!r} needs an account")
    why = state.why_role(need.role, account, org_id=need.org_id, realm_id=realm_id, as_of=now)
    return _check(
        "ID.AUTH_ROLE", why is not None, f"role {need.role!r}, {why}", f"the account has no role {need.role!r}"
    )
