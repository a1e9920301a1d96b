"""The protocol of all transports: HTTP, queues, pipes and tests (spec §10, 001 spec-1 §16).

An operation is a name such as `v1/submit` or `tooling/status`; bodies are CBOR both ways. An empty body is for
operations without a request (`tooling/status`, an attachment); an attachment with a body is stored. Nothing above
this module knows which transport carries its calls.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Protocol

ATTACHMENT: Final = "tooling/attachment/"  # before the hex of a coid
CAP_HEADER: Final = "VEEN-Cap"
POW_HEADER: Final = "VEEN-PoW"
NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, with the status numbers of spec §10.6 for every transport."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)  # names in lower case

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300


class Transport(Protocol):
    """One connection to one hub, by any transport."""

    async def call(
        self,
        operation: str,
        body: bytes = b"",
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - each transport bounds its own reads; a cut-off call is an error of its own
        headers: Mapping[str, str] = NO_HEADERS,
        again: bool = True,
    ) -> Answer:
        """Run one operation. Raise NetworkError if no answer came: the hub may still have acted.

        Without `again` the request is sent once and never resent, whatever fails: the hub may have acted.
        """

    async def aclose(self) -> None: ...
