"""The method `cap.issue`: a caller requests a token for its own key, and the policy decides (001 spec-5 §7.3).

Arguments are {"subject_pk": 32 bytes, "streams": [stream_id, …], "ttl": seconds?}, the result is {"token": cap_token}.
The signature of the request identifies its author. A token is only for a key of that author: the client key that signed
the request, or the identity that proved in the stream to have this client key.

    ISSUE.REQUEST  the arguments are invalid
    ISSUE.SUBJECT  the token would be for another caller's key
    ISSUE.DENIED   no grant of the policy matches
    ISSUE.RATE     the caller got its hourly number of tokens already

Grants of capability tokens: a TOML file of the operator of the issuance service.

    [[grant]]
    streams = ["app/calls"]                # streams that may be requested, all or some of them
    clients = ["5be1…c0ff"]                # client_ids, or identities (id_sign_pk) that prove their client keys
    ttl_sec = 3600                         # at most; a request may ask for less
    rate = [100, 200]                      # per_sec and burst of the token; default: the limit of the hub
    per_hour = 20                          # tokens for one caller; default 20

The first grant that matches a request decides. A grant for everybody who may write to the stream of requests needs
`clients = ["*"]`; without `clients` it is refused.

Requests a token from an issuance service and checks the answer (001 spec-5 §7.3).
"""

import tomllib
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, TypeGuard

from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import FormatError, StatedError, VerifyError
from veen.core.labels import stream_id_of
from veen.core.objects.captoken import CapToken, Rate
from veen.overlays.framework.link import Link, Stream
from veen.overlays.rpc.ends import CallContext, Caller, RpcFailed

ANYBODY: Final = "*"
_PER_HOUR: Final = 20
_KEYS: Final = frozenset(("streams", "clients", "ttl_sec", "rate", "per_hour"))
_HEX: Final = 64


class IssuancePolicyInvalid(StatedError, code="ISSUE.POLICY"):
    """The policy file of an issuance service is invalid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuanceGrant:
    """One row of the policy."""

    stream_ids: frozenset[bytes]
    clients: frozenset[bytes] | None  # client_ids and id_sign_pks; None: all callers
    ttl_sec: int
    rate: Rate | None = None
    per_hour: int = _PER_HOUR

    def fits(self, keys: Iterable[bytes], stream_ids: frozenset[bytes]) -> bool:
        """Return True if one of the keys of a caller may have a token for these streams."""
        is_known = self.clients is None or not self.clients.isdisjoint(keys)
        return is_known and stream_ids <= self.stream_ids


@dataclass(frozen=True, slots=True)
class IssuancePolicy:
    """The grants, in the order of the file."""

    grants: tuple[IssuanceGrant, ...]

    @classmethod
    def from_toml(cls, text: str) -> Self:
        """Parse the policy. Raise IssuancePolicyInvalid, which names the grant and the fault."""
        try:
            table = tomllib.loads(text)
        except tomllib.TOMLDecodeError as exc:
            raise IssuancePolicyInvalid(f"the policy is not valid TOML: {exc}") from exc
        rows = table.get("grant")
        if set(table) != {"grant"} or not isinstance(rows, list) or not rows:
            raise IssuancePolicyInvalid("the policy is a list of [[grant]], and has nothing else")
        return cls(tuple(_grant(number, row) for number, row in enumerate(rows, start=1)))

    def grant_for(self, keys: Iterable[bytes], stream_ids: frozenset[bytes]) -> IssuanceGrant | None:
        """Return the first grant that matches, or None."""
        keys = tuple(keys)
        return next((grant for grant in self.grants if grant.fits(keys, stream_ids)), None)


def _grant(number: int, row: Any) -> IssuanceGrant:
    def refuse(what: str) -> IssuancePolicyInvalid:
        return IssuancePolicyInvalid(f"grant {number}: {what}")

    if not isinstance(row, dict) or (unknown := set(row) - _KEYS):
        raise refuse(f"unknown key {', '.join(sorted(unknown)) if isinstance(row, dict) else row!r}")
    streams, clients, ttl_sec = row.get("streams"), row.get("clients"), row.get("ttl_sec")
    if not _are_texts(streams) or not streams:
        raise refuse("streams is a list of names or hex:ID")
    if not _are_texts(clients) or not clients:
        raise refuse('clients is a list of keys in hex; ["*"] means everybody who may write to the stream of requests')
    per_hour, rate = row.get("per_hour", _PER_HOUR), row.get("rate")
    if not _is_count(ttl_sec) or not _is_count(per_hour):
        raise refuse("ttl_sec and per_hour are whole numbers above 0")
    if rate is not None and (not isinstance(rate, list) or len(rate) != 2 or not all(map(_is_count, rate))):
        raise refuse("rate is [PER_SEC, BURST]")
    keys: frozenset[bytes] | None = None
    if clients != [ANYBODY]:
        try:
            keys = frozenset(_key(text) for text in clients)
        except ValueError:
            raise refuse("a client is a key of 32 bytes in hex") from None
    return IssuanceGrant(
        stream_ids=frozenset(map(_stream, streams)),
        clients=keys,
        ttl_sec=ttl_sec,
        rate=None if rate is None else Rate(per_sec=rate[0], burst=rate[1]),
        per_hour=per_hour,
    )


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) and text for text in value)


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and value > 0


def _key(text: str) -> bytes:
    key = bytes.fromhex(text.removeprefix("ed25519:"))
    if len(key) * 2 != _HEX:
        raise ValueError
    return key


def _stream(text: str) -> bytes:
    return bytes.fromhex(text[4:]) if text.startswith("hex:") else stream_id_of(text)


METHOD: Final = "cap.issue"
MAX_STREAMS: Final = 64
_HOUR_SEC: Final = 3_600
_CALLERS: Final = 65_536  # whose tokens of the last hour are counted


class TokenIssuer:
    """Decides requests. Used by one RPC server, so one request at a time."""

    def __init__(
        self,
        policy: IssuancePolicy,
        key: SigningKey,
        *,
        clock: Callable[[], float],
        identity_of: Callable[[bytes], bytes | None] = lambda client_id: None,
    ) -> None:
        """Set up the issuer.

        `key` signs tokens; `identity_of` returns the identity (id_sign_pk) proven for a client key.
        """
        self._policy, self._key, self._clock, self._identity_of = policy, key, clock, identity_of
        self._issued: OrderedDict[bytes, deque[float]] = OrderedDict()  # caller -> when

    async def handle(self, args: Any, context: CallContext) -> Any:
        """Answer a call; the RPC server passes it on."""
        subject_pk, stream_ids, ttl = _request(args)
        identity = self._identity_of(context.client_id)
        keys = (context.client_id,) if identity is None else (context.client_id, identity)
        if subject_pk not in keys:
            raise RpcFailed("ISSUE.SUBJECT", "a token is issued for the key of the caller alone")
        grant = self._policy.grant_for(keys, frozenset(stream_ids))
        if grant is None:
            raise RpcFailed("ISSUE.DENIED", "no grant of the policy gives the caller a token for these streams")
        self._count(identity or context.client_id, grant.per_hour)
        ttl_sec = grant.ttl_sec if ttl is None else min(ttl, grant.ttl_sec)
        token = CapToken.issue(self._key, subject_pk, stream_ids, ttl=ttl_sec, rate=grant.rate)
        return {"token": token.to_bytes()}

    def _count(self, caller: bytes, per_hour: int) -> None:
        now = self._clock()
        times = self._issued.setdefault(caller, deque())
        self._issued.move_to_end(caller)
        while times and times[0] <= now - _HOUR_SEC:
            times.popleft()
        if len(times) >= per_hour:
            raise RpcFailed("ISSUE.RATE", f"{per_hour} tokens were issued to this caller within the last hour")
        times.append(now)
        if len(self._issued) > _CALLERS:
            self._issued.popitem(last=False)


def _request(args: Any) -> tuple[bytes, list[bytes], int | None]:
    if isinstance(args, dict) and {"subject_pk", "streams"} <= set(args) <= {"subject_pk", "streams", "ttl"}:
        subject_pk, streams, ttl = args["subject_pk"], args["streams"], args.get("ttl")
        are_ids = isinstance(streams, list) and 0 < len(streams) <= MAX_STREAMS and all(map(_is_id, streams))
        if _is_id(subject_pk) and are_ids and (ttl is None or (type(ttl) is int and ttl > 0)):
            return subject_pk, sorted(set(streams)), ttl
    raise RpcFailed("ISSUE.REQUEST", "the arguments are {subject_pk, streams, ttl?}")


def _is_id(value: Any) -> bool:
    return isinstance(value, bytes) and len(value) == 32


class IssuedTokenInvalid(StatedError, code="ISSUE.TOKEN"):
    """The answer of an issuance service is not the requested token."""


async def ask_token(
    link: Link,
    stream: Stream,
    subject_pk: bytes,
    stream_ids: Sequence[bytes],
    *,
    servers: Collection[bytes] | None = None,
    ttl: int | None = None,
    timeout: float = 30.0,  # noqa: ASYNC109 - the time that a caller waits for others
) -> CapToken:
    """Return a token for `subject_pk`. Raise RpcFailed with ISSUE.* if the service refuses, NoAnswer without an
    answer.
    """
    args: dict[str, Any] = {"subject_pk": subject_pk, "streams": sorted(set(stream_ids))}
    if ttl is not None:
        args["ttl"] = ttl
    async with Caller(link, stream, servers=servers or None) as caller:
        result = await caller.call(METHOD, args, timeout=timeout)
    return check_answer(result, subject_pk, stream_ids)


def check_answer(result: Any, subject_pk: bytes, stream_ids: Sequence[bytes]) -> CapToken:
    """Return the token of an answer; IssuedTokenInvalid if it is not the one that was asked for."""
    data = result.get("token") if isinstance(result, dict) else None
    try:
        token = CapToken.from_bytes(data if isinstance(data, bytes) else b"")
        token.verify()
    except (FormatError, VerifyError) as exc:
        raise IssuedTokenInvalid(f"the service answered with no valid token: {exc}") from exc
    if token.subject_pk != subject_pk or not set(stream_ids) <= set(token.allow.stream_ids):
        raise IssuedTokenInvalid("the service answered with a token for another key or for other streams")
    return token
