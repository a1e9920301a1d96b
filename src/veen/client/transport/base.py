"""How a client reaches a hub: one small protocol that HTTP, queues, pipes and tests all fit (spec §10, 001 spec-1 §16).

An operation is a name such as `v1/submit` or `tooling/status`; bodies are CBOR both ways. An empty body asks for
something that takes no request (`tooling/status`, an attachment); an attachment with a body is stored. Nothing above
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
    """What came back: the status numbers of spec §10.6, whatever the transport."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)  # names in lower case

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300


class Transport(Protocol):
    """One way to one hub."""

    async def call(
        self,
        operation: str,
        body: bytes = b"",
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - each transport bounds its own reads; a cut-off call is an error of its own
        headers: Mapping[str, str] = NO_HEADERS,
        again: bool = True,
    ) -> Answer:
        """Carry out one operation; a NetworkError if no answer came, which leaves open whether the hub acted.

        Without `again` the request is sent once and never resent, whatever breaks: the hub may have acted.
        """

    async def aclose(self) -> None: ...
