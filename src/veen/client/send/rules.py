"""Rules about messages that are to be sent: what an overlay of the deployment refuses before anything is sealed."""

from collections.abc import Sequence
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
