"""A small world of identities for the tests of ID: keys, realms, and logs of the derived streams."""

from collections.abc import Iterable
from dataclasses import replace

from veen.core.crypto.ed25519 import SigningKey
from veen.core.event import Event
from veen.core.hashing import H
from veen.overlays.framework.fold import NO_MIRRORS, Mirrors
from veen.overlays.id.drafts import Addressed
from veen.overlays.id.fold import IdFold
from veen.overlays.id.ids import ctx_id_of, org_id_of, realm_id_of
from veen.overlays.id.state import IdState
from veen.testing.events import FakeLog


def key(name: str) -> SigningKey:
    return SigningKey(H(name.encode()))


APP, SHOP = realm_id_of("app"), realm_id_of("shop")
ALICE, BOB, ACME = key("alice"), key("bob"), key("acme")
PHONE, LAPTOP, TABLET = key("phone"), key("laptop"), key("tablet")
DH = H(b"dh")
ALICE_APP, BOB_APP = ctx_id_of(ALICE.public, APP), ctx_id_of(BOB.public, APP)
ACME_ID = org_id_of(ACME.public)
BRIDGE = H(b"bridge")  # the client_id of FakeLog's bridge


class IdLog:
    """Hubs as logs: each message goes to the stream it is addressed to."""

    def __init__(self) -> None:
        self.log = FakeLog()
        self.events: list[Event] = []

    def send(
        self,
        message: Addressed,
        *,
        ts: int | None = None,
        stream_id: bytes | None = None,
        client: str = "someone",
        hub: str = "a",
    ) -> Event:
        """`stream_id` sends it elsewhere; `hub` is where: the same stream has another label there."""
        stream_id = message.stream_id if stream_id is None else stream_id
        event = self.log.append(message.draft, stream=f"{hub}/{stream_id.hex()}", client=client, ts=ts)
        event = replace(event, stream_id=stream_id)
        self.events.append(event)
        return event

    def send_all(self, messages: Iterable[Addressed], *, ts: int | None = None) -> None:
        for message in messages:
            self.send(message, ts=ts)

    def state(self, as_of: int | None = None, *, mirrors: Mirrors = NO_MIRRORS) -> IdState:
        fold = IdFold(mirrors=mirrors)
        return fold.view(fold.summarize(self.events), as_of)

    def codes(self, fold: IdFold | None = None) -> list[str]:
        fold = fold or IdFold()
        return [issue.code for issue in fold.issues(fold.summarize(self.events))]
