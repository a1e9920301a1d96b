"""`veen selftest core`: the promises of every hub, tested through its public API (001 spec-4 §8, K8S-14).

About twenty small messages and one attachment stay in the stream of the run; nothing else at the hub changes.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Final

from veen.client.client import Client
from veen.client.errors import BadAnswer, Divergence, HubRefused
from veen.client.send.sealing import Attach
from veen.client.transport.calls import ATTACHMENT, NO_HEADERS, Answer, Retry, Transport, error_of, place_of, read
from veen.core.errors import MalformedError, Refusal, VeenError
from veen.core.hashing import H
from veen.core.labels import epoch_at
from veen.core.limits import Limits
from veen.core.objects.envelopes import SUBMIT_PREFIX
from veen.core.objects.receipt import Receipt
from veen.core.objects.tooling import HealthResponse, ReadyResponse, StatusResponse
from veen.products.selftest.suite import CheckFailed, Suite, World, expect, expect_refusal, open_probe, stream_of

_SCOPES: Final = ("open", "enforced")
_ATTACHMENT: Final = b"an attachment of a self-test" * 40


async def identity(world: World) -> None:
    """Check that the identity record follows from the pin."""
    client = await world.client("probe")
    answer = await client.identity()
    record = answer.to_identity()
    expect(record.hub_id == client.hub_id, "the hub_id of the identity is not the one that the pin leads to")
    expect(client.pin.newest.hub_pk in {key.hub_pk for key in record.keys}, "the pinned key is not in the identity")


async def _health(world: World) -> None:
    transport = await world.transport()
    alive = await transport.call("healthz")
    if not alive.ok:
        raise error_of("healthz", alive)
    expect(read("healthz", alive.body, HealthResponse).ok, "healthz: the hub says that it is not well")
    reason: str | None = None
    async for _ in Retry(seconds=(await world.hub()).wait_seconds).pauses():  # it may have started just now
        answer = await transport.call("readyz")
        if not answer.ok and answer.status != 503:
            raise error_of("readyz", answer)
        ready = read("readyz", answer.body, ReadyResponse)
        if ready.ready and answer.ok:
            return
        reason = ready.reason
    raise CheckFailed(f"readyz: the hub does not admit messages: {reason or 'it does not say why'}")


def _limits_of(status: StatusResponse) -> Limits:
    """Read the limits of the specification; a hub may state others beside them."""
    return Limits.from_json({name: value for name, value in status.limits.items() if name in Limits().to_json()})


async def _status(world: World) -> None:
    client = await world.client("probe")
    status = await client.status()
    try:
        _limits_of(status)
    except (MalformedError, VeenError) as exc:
        raise CheckFailed(f"the limits are not those of the specification: {exc}") from exc
    missing = Limits().to_json().keys() - dict(status.limits).keys()
    expect(not missing, f"the status does not tell the limits {', '.join(sorted(missing))}")
    expect(status.hub_pk in {key.hub_pk for key in client.pin.keys}, "the key that signs now is not of this hub")
    spans = {profile.epoch_sec for profile in status.profiles}
    expect(len(spans) == 1, "the profiles have different epochs")
    expect(status.epoch == epoch_at(status.hub_ts, spans.pop()), "the epoch does not follow from the hub's time")
    expect(status.stream_scope in _SCOPES, "stream_scope is neither open nor enforced")


async def _receipt(world: World) -> None:
    probe = await open_probe(world)
    sent = await probe.client.send(probe.keys, b"receipt")
    receipt = sent.receipt  # its signature was checked
    expect(receipt.leaf_hash == sent.msg.leaf_hash(), "the receipt is about another message")
    expect(receipt.label == sent.msg.label, "the receipt is about another label")
    again = await probe.client.receipt(probe.keys, sent.seq, epoch=probe.epoch_of(sent))
    expect(again == receipt, "the hub tells two receipts of one entry")


async def _same_bytes(world: World) -> None:
    probe = await open_probe(world)
    prepared = await probe.client.prepare(probe.keys, [b"once"])
    first = await probe.submit(prepared[0].msg)
    if isinstance(first, HubRefused):
        raise first
    answer = await probe.submit(prepared[0].msg)
    if isinstance(answer, Receipt):
        place: int | None = answer.stream_seq
        expect(answer == first, "the same bytes got a second receipt that differs from the first")
    else:
        expect_refusal(answer, Refusal.DUPLICATE, "the same bytes again")
        place = place_of(answer)
    expect(place == first.stream_seq, f"the same bytes again: place {place}, they stand at {first.stream_seq}")
    (outcome,) = await probe.client.submit_prepared(probe.keys, prepared)
    if isinstance(outcome, VeenError):
        raise outcome
    expect(outcome.seq == first.stream_seq, "a client that sends again is told another place")


async def _wrong_number(world: World) -> None:
    probe = await open_probe(world)
    (sent,) = await probe.send(1, "first")
    msg = await probe.message(b"wrong number")
    expect(msg.client_seq == 2, f"the second message of a client has the number {msg.client_seq}")
    answer = await probe.submit(probe.sign(msg, client_seq=msg.client_seq + 1))
    expect_refusal(answer, Refusal.CLIENT_SEQ, "a message whose client_seq leaves a gap")
    answer = await probe.submit(probe.sign(msg, client_seq=1))
    expect_refusal(answer, Refusal.DUPLICATE, f"another message with the client_seq of entry {sent.seq}")


async def _bad_signature(world: World) -> None:
    probe = await open_probe(world)
    msg = await probe.message(b"forged")
    forged = replace(msg, sig=bytes([msg.sig[0] ^ 1]) + msg.sig[1:])
    expect_refusal(await probe.submit(forged), Refusal.SIG_INVALID, "a message with a bad signature")
    changed = replace(msg, ciphertext=bytes([msg.ciphertext[0] ^ 1]) + msg.ciphertext[1:])
    expect_refusal(await probe.submit(changed), Refusal.CT_HASH, "a message with a changed ciphertext")


async def _too_large(world: World) -> None:
    probe = await open_probe(world)
    most = _limits_of(probe.session.status).max_msg_bytes
    try:
        await probe.session.calls.send("v1/submit", SUBMIT_PREFIX + bytes(most + 1), again=False)
    except HubRefused as exc:
        expect_refusal(exc, Refusal.SIZE_PREFILTER, f"a request of more than {most} bytes")
    else:
        raise CheckFailed(f"a request of more than {most} bytes was admitted")


async def _proofs(world: World) -> None:
    probe = await open_probe(world)
    sent = await probe.send(4, "proof")
    epoch, first, last = probe.epoch_of(sent[0]), sent[0].seq, sent[-1].seq
    for message in sent:
        proven = await probe.client.proof(probe.keys, message.seq, epoch=epoch)
        expect(proven.receipt.leaf_hash == message.msg.leaf_hash(), f"entry {message.seq} is another message")
    await probe.client.proof(probe.keys, first, tree_size=last, epoch=epoch)
    await probe.client.consistency(probe.keys, first, last, epoch=epoch)
    entries = probe.client.read(probe.keys, from_seq=first, to_seq=last, epoch=epoch, with_proofs=True)
    proofs = [entry.proof async for entry in entries]
    expect(len(proofs) == last - first + 1 and None not in proofs, "a page of entries does not come with its proofs")


async def _checkpoint(world: World) -> None:
    probe = await open_probe(world)
    sent = await probe.send(2, "checkpoint")
    epoch, last = probe.epoch_of(sent[0]), sent[-1].receipt
    checkpoint = await probe.client.checkpoint(probe.keys, last.stream_seq, epoch=epoch)
    expect(checkpoint.mmr_root == last.mmr_root, "checkpoint and receipt of one length tell two roots")
    latest = await probe.client.checkpoint(probe.keys, epoch=epoch)
    expect(latest.upto_seq >= 1, "the latest checkpoint is about nothing")


async def _read_back(world: World) -> None:
    probe = await open_probe(world)
    sent = await probe.send(3, "read")
    reader = await world.client("reader", probe.keys)
    wanted = {message.seq: b"read %d" % number for number, message in enumerate(sent)}
    seqs = range(sent[0].seq, sent[-1].seq + 1)
    entries = reader.read(probe.keys, from_seq=seqs[0], to_seq=seqs[-1], epoch=probe.epoch_of(sent[0]))
    bodies = {}
    async for entry in entries:
        expect(entry.seq in seqs, f"the hub sent entry {entry.seq}, asked were {seqs[0]} to {seqs[-1]}")
        if entry.seq in wanted:
            expect(entry.event is not None, f"entry {entry.seq} does not open: {entry.error}")
            bodies[entry.seq] = entry.body
    expect(bodies == wanted, "what was read is not what was sent")


async def _attachment(world: World) -> None:
    probe = await open_probe(world)
    attach = Attach(data=_ATTACHMENT, name="selftest.txt", media_type="text/plain")
    sent = await probe.client.send(probe.keys, b"with an attachment", attachments=[attach])
    reader = await world.client("reader", probe.keys)
    entries = reader.read(probe.keys, from_seq=sent.seq, to_seq=sent.seq, epoch=probe.epoch_of(sent))
    (entry,) = [entry async for entry in entries]
    expect([item.name for item in entry.attachments] == ["selftest.txt"], "the attachment is not declared")
    expect(await reader.attachments.get(entry, 0) == _ATTACHMENT, "the attachment is not what was stored")
    try:
        await probe.session.calls.send(f"{ATTACHMENT}{H(probe.keys.stream_id).hex()}", b"", again=False)
    except HubRefused as exc:
        expect(exc.code == "E.NOT_FOUND", f"an attachment that nobody stored: the hub answered {exc.code}")
    else:
        raise CheckFailed("the hub has an attachment that nobody stored")


class _Tampering:
    """A transport that changes one bit in the middle of every answer to one operation."""

    def __init__(self, honest: Transport, operation: str) -> None:
        self._honest, self._operation = honest, operation
        self.count = 0  # answers that were changed

    async def call(
        self,
        operation: str,
        body: bytes = b"",
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the interface of every transport
        headers: Mapping[str, str] = NO_HEADERS,
        again: bool = True,
    ) -> Answer:
        answer = await self._honest.call(operation, body, timeout=timeout, headers=headers)
        if not answer.ok or not operation.startswith(self._operation):
            return answer
        self.count += 1
        middle = len(answer.body) // 2
        data = answer.body[:middle] + bytes([answer.body[middle] ^ 1]) + answer.body[middle + 1 :]
        return replace(answer, body=data)

    async def aclose(self) -> None:
        await self._honest.aclose()


async def _check_tampering(world: World) -> None:
    """Check that the client detects answers changed between hub and client."""
    probe = await open_probe(world)
    attach = Attach(data=_ATTACHMENT, name="selftest.txt")
    first = await probe.client.send(probe.keys, b"tampered", attachments=[attach])
    (second,) = await probe.send(1, "tampered")
    keys, seq, epoch = await stream_of(world), second.seq, probe.epoch_of(second)
    at_first = probe.epoch_of(first)

    async def read_entries(client: Client) -> None:
        _ = [entry async for entry in client.read(keys, from_seq=first.seq, to_seq=first.seq, epoch=at_first)]

    async def read_attachment(client: Client) -> None:
        async for entry in client.read(keys, from_seq=first.seq, to_seq=first.seq, epoch=at_first):
            await client.attachments.get(entry, 0)

    uses: dict[str, Callable[[Client], Awaitable[object]]] = {
        "tooling/identity": lambda client: client.identity(),
        "v1/receipt": lambda client: client.receipt(keys, seq, epoch=epoch),
        "v1/proof": lambda client: client.proof(keys, seq, epoch=epoch),
        "v1/checkpoint": lambda client: client.checkpoint(keys, seq, epoch=epoch),
        "v1/stream": read_entries,
        ATTACHMENT: read_attachment,
    }
    for operation, use in uses.items():
        tampering = _Tampering(await world.transport(probe.at.token_file), operation)
        try:
            await use(await world.client_over(tampering, probe.client.pin, world.person("reader"), keys))
        except (Divergence, BadAnswer):
            expect(tampering.count > 0, f"{operation}: the answer of the hub is not believed as it is")
        else:
            raise CheckFailed(f"{operation}: an answer that was changed on the way was believed")


SUITE: Final = Suite(
    name="core",
    about="What every hub promises",
    checks={
        "identity: the pinned hub answers, and its identity is signed": identity,
        "health: the hub is alive and admits messages": _health,
        "status: limits, profiles, key and time are well formed": _status,
        "submit: a message gets a receipt that verifies, and its place is proven": _receipt,
        "submit: the same bytes again are answered with their place": _same_bytes,
        "submit: a wrong client_seq is refused": _wrong_number,
        "submit: a bad signature or a changed ciphertext is refused": _bad_signature,
        "submit: a message over the limit is refused": _too_large,
        "proof: every entry is proven, and the log only grew": _proofs,
        "checkpoint: it is signed and has the root of the receipts": _checkpoint,
        "read: what was sent comes back in order and opens": _read_back,
        "attachment: what was stored comes back": _attachment,
        "client: an answer that was changed on the way is not believed": _check_tampering,
    },
    first_decides=True,
)
