"""Rules and advice about messages, applied before a message is sealed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from veen.client.errors import LocalError
from veen.client.identity.keyring import StreamKeys
from veen.client.send.sealing import Draft

if TYPE_CHECKING:
    from veen.client.client import Client


class SendRule(Protocol):
    """A rule that layers above the client pass to `Client.connect`; the client itself has none."""

    async def check(
        self, client: "Client", keys: StreamKeys, drafts: Sequence[Draft]
    ) -> Sequence[LocalError | None] | None:
        """Return a refusal or None for each draft; None for all of them at once if the rule is not about the stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelAdvice:
    """The advice of a deployment for one label. The profiles of the hub limit what is possible."""

    pad_blocks: tuple[int, ...] = ()  # the first one that a profile of the hub has is used
    retention_sec: int | None = None  # time after which readers may forget a message without an expiry
    per_sec: int | None = None  # the greatest number of messages per second of this sender


class SendAdvisor(Protocol):
    """A source of advice, asked once for each label of a connection."""

    async def advice(self, client: "Client", keys: StreamKeys, label: bytes) -> LabelAdvice | None: ...
