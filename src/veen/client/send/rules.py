"""Rules and advice about messages that are to be sent, asked before a message is sealed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from veen.client.errors import LocalError
from veen.client.identity.keyring import StreamKeys
from veen.client.send.sealing import Draft

if TYPE_CHECKING:
    from veen.client.client import Client


class SendRule(Protocol):
    """A rule that layers above the client give to `Client.connect`; the client itself knows none."""

    async def check(
        self, client: "Client", keys: StreamKeys, drafts: Sequence[Draft]
    ) -> Sequence[LocalError | None] | None:
        """Return a refusal or None for each draft; None for all of them at once if the rule is not about the stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelAdvice:
    """What a deployment advises for one label. The profiles of the hub decide what of it is possible."""

    pad_blocks: tuple[int, ...] = ()  # the first one that a profile of the hub has is used
    retention_sec: int | None = None  # when readers may forget a message that says nothing else
    per_sec: int | None = None  # messages that this sender sends in a second at most


class SendAdvisor(Protocol):
    """Advises once for each label of a connection."""

    async def advice(self, client: "Client", keys: StreamKeys, label: bytes) -> LabelAdvice | None: ...
