"""The method `cap.issue`: a caller requests a token for its own key, and the policy decides (001 spec-5 §7.3).

Arguments are {"subject_pk": 32 bytes, "streams": [stream_id, …], "ttl": seconds?}, the result is {"token": cap_token}.
The signature of the request identifies its author. A token is only for a key of that author: the client key that signed
the request, or the identity that proved in the stream to have this client key.

    ISSUE.REQUEST  the arguments are invalid
    ISSUE.SUBJECT  the token would be for another caller's key
    ISSUE.DENIED   no grant of the policy matches
    ISSUE.RATE     the caller got its hourly number of tokens already
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, Final

from veen.core.crypto.ed25519 import SigningKey
from veen.core.objects.captoken import CapToken
from veen.overlays.rpc.caller import RpcFailed
from veen.overlays.rpc.server import CallContext
from veen.products.issuance.policy import IssuancePolicy

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
