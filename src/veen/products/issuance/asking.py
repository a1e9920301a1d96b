"""Requests a token from an issuance service and checks the answer (001 spec-5 §7.3)."""

from collections.abc import Collection, Sequence
from typing import Any

from veen.core.errors import FormatError, StatedError, VerifyError
from veen.core.objects.captoken import CapToken
from veen.overlays.framework.link import Link, Stream
from veen.overlays.rpc.caller import Caller
from veen.products.issuance.service import METHOD


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
