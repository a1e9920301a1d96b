"""A hub that lies, one lie at a time: a transport around an honest hub that changes what the hub says.

It has what a hostile operator has: the answers on the wire and, for some lies, the hub's own private key. `serve`
puts it, or any transport, behind a real socket. A client must detect every lie.

    hub = HostileHub(InProcess(api))
    hub.lies.append(Drops(3))
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Protocol, TypeVar

from veen.client.errors import NetworkError, Unreachable
from veen.client.transport.calls import NO_HEADERS, Answer, Transport
from veen.core import cbor
from veen.core.crypto.ed25519 import SigningKey
from veen.core.hashing import H
from veen.core.labels import hub_id_of
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.envelopes import CheckpointResponse, ReceiptResponse, StreamItem, StreamResponse, SubmitResponse
from veen.core.objects.identity import HubIdentity
from veen.core.objects.receipt import Receipt
from veen.core.objects.tooling import HubKey, IdentityResponse, StatusResponse
from veen.core.wire import Wire

W = TypeVar("W", bound=Wire)

_PAGES: Final = ("v1/stream", "tooling/tail")
_RECEIPTS: Final = ("v1/submit", "v1/receipt")
_CHECKPOINTS: Final = ("v1/checkpoint", "tooling/checkpoint_latest")
_BATCH: Final = "tooling/submit_batch"


class Lie(Protocol):
    """A change of one answer; unrelated answers are returned unchanged."""

    def __call__(self, operation: str, body: bytes, answer: Answer) -> Answer: ...


class HostileHub:
    """A transport to a hub whose answers pass through `lies`, in order."""

    def __init__(self, honest: Transport) -> None:
        self.honest = honest
        self.lies: list[Lie] = []
        self.calls: list[tuple[str, bytes]] = []

    async def call(
        self,
        operation: str,
        body: bytes = b"",
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the interface of every transport
        headers: Mapping[str, str] = NO_HEADERS,
        again: bool = True,
    ) -> Answer:
        self.calls.append((operation, body))
        answer = await self.honest.call(operation, body, timeout=timeout, headers=headers)
        for lie in self.lies:
            answer = lie(operation, body, answer)
        return answer

    async def aclose(self) -> None:
        await self.honest.aclose()


def _answer_with(answer: Answer, wire: Wire) -> Answer:
    return replace(answer, body=wire.to_bytes())


def _in_page(
    operation: str, answer: Answer, change: Callable[[tuple[StreamItem, ...]], tuple[StreamItem, ...]]
) -> Answer:
    if operation not in _PAGES or not answer.ok:
        return answer
    page = StreamResponse.from_bytes(answer.body)
    return _answer_with(answer, replace(page, items=change(page.items)))


def _each_receipt(operation: str, answer: Answer, change: Callable[[Receipt], Receipt]) -> Answer:
    """Change every receipt in an answer."""
    if not answer.ok:
        return answer
    if operation == "v1/submit":
        response = SubmitResponse.from_bytes(answer.body)
        return _answer_with(answer, replace(response, receipt=change(response.receipt)))
    if operation == "v1/receipt":
        reply = ReceiptResponse.from_bytes(answer.body)
        return _answer_with(answer, replace(reply, receipt=change(reply.receipt)))
    if operation == _BATCH:
        items = [
            change(Receipt.from_bytes(item)).to_bytes() if item[0] == 0x87 else item
            for item in cbor.sequence(answer.body)
        ]
        return replace(answer, body=b"".join(items))
    return _in_page(
        operation,
        answer,
        lambda items: tuple(replace(item, receipt=item.receipt and change(item.receipt)) for item in items),
    )


def _sign_again(key: SigningKey, receipt: Receipt) -> Receipt:
    return Receipt.issue(
        key,
        label=receipt.label,
        stream_seq=receipt.stream_seq,
        leaf_hash=receipt.leaf_hash,
        mmr_root=receipt.mmr_root,
        hub_ts=receipt.hub_ts,
    )


# --- about the log ----------------------------------------------------------------------------------------


class Reorders:
    """Two entries of each page change places."""

    def __call__(self, operation: str, body: bytes, answer: Answer) -> Answer:
        return _in_page(operation, answer, lambda items: (*items[1::-1], *items[2:]) if len(items) > 1 else items)


class Misplaces:
    """Two entries of each page change places, and their numbers with them."""

    def __call__(self, operation: str, body: bytes, answer: Answer) -> Answer:
        def change(items: tuple[StreamItem, ...]) -> tuple[StreamItem, ...]:
            if len(items) < 2:
                return items
            first, second, *rest = items
            return (
                replace(second, stream_seq=first.stream_seq),
                replace(first, stream_seq=second.stream_seq),
                *rest,
            )

        return _in_page(operation, answer, change)


@dataclass(frozen=True, slots=True)
class Drops:
    """One entry is missing."""

    seq: int

    def __call__(self, operation: str, body: bytes, answer: Answer) -> Answer:
        return _in_page(operation, answer, lambda items: tuple(item for item in items if item.stream_seq != self.seq))


@dataclass(frozen=True, slots=True)
class Truncates:
    """The log ends before an entry, as if it had never been."""

    seq: int

    def __call__(self, operation: str, body: bytes, answer: Answer) -> Answer:
        if operation not in _PAGES or not answer.ok:
            return answer
        page = StreamResponse.from_bytes(answer.body)
        items = tuple(item for item in page.items if item.stream_seq < self.seq)
        return _answer_with(answer, replace(page, items=items, next_cursor=None))


@dataclass(frozen=True, slots=True)
class Forges:
    """The author's signature of one entry is replaced by zeros."""

    seq: int

    def __call__(self, operation: str, body: bytes, answer: Answer) -> Answer:
        def change(items: tuple[StreamItem, ...]) -> tuple[StreamItem, ...]:
            return tuple(
                replace(item, msg=replace(item.msg, sig=bytes(64))) if item.stream_seq == self.seq else item
                for item in items
            )

        return _in_page(operation, answer, change)


# --- about signatures -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SignsWith:
    """Every receipt and checkpoint is signed with another key: a foreign one, or a retired one."""

    key: SigningKey

    def __call__(self, operation: str, body: bytes, answer: Answer) -> Answer:
        if operation not in _CHECKPOINTS or not answer.ok:
            return _each_receipt(operation, answer, lambda receipt: _sign_again(self.key, receipt))
        response = CheckpointResponse.from_bytes(answer.body)
        old = response.checkpoint
        signed = Checkpoint.issue(
            self.key,
            label_prev=old.label_prev,
            label_curr=old.label_curr,
            upto_seq=old.upto_seq,
            mmr_root=old.mmr_root,
            epoch=old.epoch,
        )
        return _answer_with(answer, replace(response, checkpoint=signed))


@dataclass(frozen=True, slots=True)
class Equivocates:
    """The receipt of one entry has another root than before, signed with the hub's own key."""

    key: SigningKey
    seq: int

    def __call__(self, operation: str, body: bytes, answer: Answer) -> Answer:
        def change(receipt: Receipt) -> Receipt:
            if receipt.stream_seq != self.seq:
                return receipt
            return _sign_again(self.key, replace(receipt, mmr_root=H(receipt.mmr_root)))

        return _each_receipt(operation, answer, change)


class SwapsReceipts:
    """A message is answered with the receipt of the first one: genuine, but not for this message."""

    def __init__(self) -> None:
        self._first: Receipt | None = None

    def __call__(self, operation: str, body: bytes, answer: Answer) -> Answer:
        if operation not in _RECEIPTS:
            return answer

        def change(receipt: Receipt) -> Receipt:
            self._first = self._first or receipt
            return self._first

        return _each_receipt(operation, answer, change)


class ReplaysCheckpoints:
    """The latest checkpoint is always the one that was served first."""

    def __init__(self) -> None:
        self._first: dict[bytes, bytes] = {}

    def __call__(self, operation: str, body: bytes, answer: Answer) -> Answer:
        if operation != "tooling/checkpoint_latest" or not answer.ok:
            return answer
        return replace(answer, body=self._first.setdefault(body, answer.body))


@dataclass(frozen=True, slots=True)
class TellsIdentity:
    """The hub claims an additional key as its own."""

    hub_pk: bytes
    key_id: str
    valid_from: int

    def __call__(self, operation: str, body: bytes, answer: Answer) -> Answer:
        if operation != "tooling/identity":
            return answer
        response = IdentityResponse.from_bytes(answer.body)
        claimed = HubKey(key_id=self.key_id, hub_pk=self.hub_pk, valid_from=self.valid_from)
        return _answer_with(answer, replace(response, hub_keys=(*response.hub_keys, claimed)))


@dataclass(frozen=True, slots=True)
class InventsFirstKey:
    """The hub claims that an older key was its first, which gives another hub_id and another label space.

    With `signer`, the hub's own key, the claim is signed; an impostor without the hub's key cannot sign it.
    """

    first: SigningKey
    signer: SigningKey | None = None

    def __call__(self, operation: str, body: bytes, answer: Answer) -> Answer:
        if operation == "tooling/status":
            status = StatusResponse.from_bytes(answer.body)
            return _answer_with(answer, replace(status, hub_id=hub_id_of(self.first.public)))
        if operation != "tooling/identity":
            return answer
        honest = IdentityResponse.from_bytes(answer.body)
        identity = honest.to_identity()
        older = HubIdentity.first(self.first.public, valid_from=0).keys[0]
        claimed = HubIdentity((replace(older, valid_until=1), *identity.keys), identity.anchoring)
        sig = honest.sig if self.signer is None else claimed.sign(self.signer)
        return _answer_with(answer, IdentityResponse.of(claimed, sig, honest.server_version))


# --- about the way ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class LosesAnswers:
    """The hub acts, and its answer never arrives: `count` times, for operations that begin with `prefix`."""

    count: int
    prefix: str = "v1/submit"

    def __call__(self, operation: str, body: bytes, answer: Answer) -> Answer:
        if self.count and operation.startswith(self.prefix):
            self.count -= 1
            raise Unreachable(f"{operation}: the connection broke")
        return answer


@dataclass(slots=True)
class Replaces:
    """Answers to one operation are always these bytes."""

    operation: str
    data: bytes
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, operation: str, body: bytes, answer: Answer) -> Answer:
        return Answer(self.status, self.data, self.headers) if operation.startswith(self.operation) else answer


# --- behind a socket --------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def serve(transport: Transport, *, max_body: int = cbor.MAX_ITEM_BYTES) -> AsyncIterator[str]:
    """Yield the URL at which `transport` answers over HTTP/1.1 while the context lasts."""

    async def on_connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, ValueError):
                while await _answer(reader, writer):
                    pass
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        line = (await reader.readline()).split()
        if len(line) < 2:
            return False
        headers: dict[str, str] = {}
        while (header := await reader.readline()) not in (b"\r\n", b""):
            name, _, value = header.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
        body = await reader.readexactly(min(int(headers.get("content-length", "0")), max_body))
        passed = {name: headers[name.lower()] for name in ("VEEN-PoW", "VEEN-Cap") if name.lower() in headers}
        try:
            answer = await transport.call(line[1].decode().lstrip("/"), body, headers=passed)
        except NetworkError:
            return False  # what a broken connection looks like from here
        head = (
            f"HTTP/1.1 {answer.status} OK\r\nContent-Type: application/cbor\r\nContent-Length: {len(answer.body)}\r\n"
        )
        writer.write(head.encode() + b"\r\n" + answer.body)
        await writer.drain()
        return True

    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(on_connect(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()
