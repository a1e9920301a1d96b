"""Clients of the suites `core` and `authority`, and calls whose refusals are the result.

Every probe is a new client with its own key. All probes of a run write to one stream: the one for which the hub trusts
the issuer of self-tests (D-147), or a new one with a random name.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

from veen.client.client import Client
from veen.client.errors import HubRefused
from veen.client.identity.identity import Identity
from veen.client.identity.keyring import StreamKeys
from veen.client.send.captokens import issue
from veen.client.send.sealing import Prepared
from veen.client.send.submitting import Submitter
from veen.client.send.writing import Sent
from veen.client.session import HubSession
from veen.client.transport.calls import NO_RETRY, Calls, Retry, refusal_of
from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import ApiCode, Refusal
from veen.core.objects.captoken import CapToken, Rate
from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt
from veen.core.objects.tooling import StatusResponse
from veen.products.selftest.suite import CheckFailed, expect
from veen.products.selftest.world import HubAt, World

_TOKEN_TTL_SEC: Final = 3600
_TOKEN_RATE: Final = Rate(per_sec=50, burst=50)
_CLOCK_POLLS: Final = 600
_CLOCK_PAUSE_SEC: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class HubProbe:
    """One new client at the hub."""

    at: HubAt
    identity: Identity
    keys: StreamKeys
    client: Client  # verifies, repeats
    session: HubSession  # verifies; says at once what the hub refuses

    def token(self, *, ttl: int = _TOKEN_TTL_SEC, rate: Rate | None = _TOKEN_RATE) -> CapToken:
        """Return a capability of the issuer for this client and the stream of the run."""
        return issue(self.issuer, self.identity.client_id, [self.keys.stream_id], ttl=ttl, rate=rate)

    @property
    def issuer(self) -> SigningKey:
        """The issuer whose tokens the hub accepts."""
        if self.at.issuer is None:
            raise CheckFailed("the hub asks for capabilities, and there is no key to issue one: give --issuer-key FILE")
        return self.at.issuer

    async def message(self, body: bytes, auth_ref: bytes | None = None) -> Msg:
        """Return a sealed and signed message with the next number of this client; it is not sent."""
        (prepared,) = await self.client.prepare(self.keys, [body], auth_ref=auth_ref)
        await self.client.withdraw_prepared(self.keys)
        return prepared.msg

    def sign(self, msg: Msg, *, label: bytes | None = None, client_seq: int | None = None) -> Msg:
        """Return the message with other fields, signed again by this client."""
        return Msg.compose(
            self.identity.client_key.key,
            profile_id=msg.profile_id,
            label=msg.label if label is None else label,
            client_seq=msg.client_seq if client_seq is None else client_seq,
            prev_ack=msg.prev_ack,
            auth_ref=msg.auth_ref,
            ciphertext=msg.ciphertext,
        )

    async def submit(self, msg: Msg) -> Receipt | HubRefused:
        """Return the hub's answer to a message; retry only while the hub is unavailable."""
        answer: Receipt | HubRefused | None = None
        async for _ in Retry(seconds=self.at.wait_seconds).pauses():
            try:
                delivered = await Submitter(self.session).deliver([Prepared.of(msg.to_bytes())], batched=False)
                answer = delivered.answers[0]
            except HubRefused as exc:
                answer = exc
            if not (isinstance(answer, HubRefused) and answer.code == ApiCode.UNAVAILABLE.code):
                break
        if answer is None:
            raise CheckFailed("the hub neither admitted nor refused a message")
        return answer

    async def send(self, count: int, what: str) -> list[Sent]:
        """Send messages of one label; the client verifies each."""
        for _ in range(2):  # a label may end between two of them, but not twice
            outcomes = await self.client.send_many(self.keys, [b"%s %d" % (what.encode(), n) for n in range(count)])
            sent = [outcome for outcome in outcomes if isinstance(outcome, Sent)]
            for outcome in outcomes:
                if not isinstance(outcome, Sent):
                    raise outcome
            if len({message.msg.label for message in sent}) == 1:
                return sent
        raise CheckFailed(f"{count} messages do not fit into one epoch of the hub")

    def epoch_of(self, sent: Sent) -> int:
        """Return the epoch of the label of a message."""
        now = self.session.epoch_now()
        for epoch in range(max(now - self.session.window - 1, 0), now + self.session.window + 2):
            if self.session.label(self.keys.stream_id, epoch) == sent.msg.label:
                return epoch
        raise CheckFailed("a message stands in a label that is none of its stream")

    async def after(self, second: int) -> None:
        """Wait until the hub's clock is past a second."""
        for _ in range(_CLOCK_POLLS):
            if (await self.session.refresh_status()).hub_ts > second:
                return
            await asyncio.sleep(_CLOCK_PAUSE_SEC)
        raise CheckFailed(f"the clock of the hub stands still: it is not past {second}")


def needs_token(status: StatusResponse) -> bool:
    """Return True if a message of a new stream needs a capability."""
    return status.capability_gating or status.stream_scope != "open"


async def stream_of(world: World) -> StreamKeys:
    """Return the stream that this run writes to."""
    at = await world.hub()
    return world.private_keys(at.stream or f"veen/selftest/{world.suffix}")


async def open_probe(world: World, name: str = "probe", *, authorized: bool = True) -> HubProbe:
    """Connect a new client, with a capability if the hub needs one, unless `authorized` is False."""
    at, identity, keys = await world.hub(), world.person(name), await stream_of(world)
    client = await world.client(identity, keys)
    session = HubSession(Calls(await world.transport(at.token_file), NO_RETRY), client.pin)
    await session.open()
    probe = HubProbe(at=at, identity=identity, keys=keys, client=client, session=session)
    if authorized and needs_token(session.status):
        await client.authorize(probe.token())
    return probe


def expect_refusal(answer: Receipt | HubRefused, expected: Refusal, what: str) -> HubRefused:
    """Raise CheckFailed unless the hub refused for this reason."""
    if isinstance(answer, Receipt):
        raise CheckFailed(f"{what}: the hub admitted it as entry {answer.stream_seq}")
    reason = answer.detail_enum or answer.code
    expect(refusal_of(answer) is expected, f"{what}: expected {expected.name}, the hub answered {reason}")
    return answer
