"""Load attacks on one hub, each bounded in connections and requests, and an honest writer beside them.

Everybody connects to 127.0.0.1. Each attack comes from a loopback address of its own, as strangers have other
addresses than the honest writer; the hub tells clients apart by address. An attack runs until `Battle.over` is set.
"""

import asyncio
import http.client
import itertools
import socket
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from veen.core.crypto.ed25519 import SigningKey
from veen.core.hashing import H
from veen.core.objects.envelopes import SUBMIT_PREFIX, StreamRequest
from veen.core.objects.msg import Msg
from veen.core.objects.profile import PRESETS
from veen.core.objects.tooling import CheckpointRangeRequest
from veen.core.pow import solve

__all__ = [
    "ATTACKS",
    "POW_BITS",
    "Attack",
    "Battle",
    "Writer",
    "fill",
    "label_of_writer",
    "message",
    "post",
    "read_answer",
]

IDLE: Final = 1_100  # as in the report of the first such attack
SLOW_HEADS: Final = 64
UNREAD: Final = 8
PIPELINED: Final = 64
TINY_CHUNKS: Final = 4
STREAMS: Final = 64
REFUSED: Final = 4
EXPENSIVE: Final = 4
POW_BITS: Final = 4
_PROFILE: Final = PRESETS["bulk"].profile_id()
_HOST: Final = "Host: 127.0.0.1"  # a hub for trying things answers to no other name
_PAUSE: Final = 0.02  # between two steps of one attacker: what counts is what it holds, not how busy this process is


def label_of_writer(name: str) -> bytes:
    return H(b"hostile label " + name.encode())


def message(name: str, seq: int, body_bytes: int = 24) -> bytes:
    """A signed MSG of the writer `name`; a hub started with --dev takes it."""
    ciphertext = bytes(32) + (20).to_bytes(4, "big") + body_bytes.to_bytes(4, "big") + b"h" * 20 + b"b" * body_bytes
    msg = Msg.compose(
        SigningKey(H(b"hostile key " + name.encode())),
        profile_id=_PROFILE,
        label=label_of_writer(name),
        client_seq=seq,
        prev_ack=0,
        auth_ref=None,
        ciphertext=ciphertext,
    )
    return msg.to_bytes()


def post(path: str, body: bytes, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", _HOST, f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def proof_of_work(body: bytes) -> str:
    return f"VEEN-PoW: {solve(body, POW_BITS).to_bytes().hex()}"


def fill(port: int, name: str, count: int, body_bytes: int) -> None:
    """Write entries for others to read."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        for seq in range(1, count + 1):
            body = SUBMIT_PREFIX + message(name, seq, body_bytes)
            header, _, value = proof_of_work(body).partition(": ")
            connection.request("POST", "/v1/submit", body, {header: value})
            answer = connection.getresponse()
            data = answer.read()
            assert answer.status == 200, data
    finally:
        connection.close()


class Writer(threading.Thread):
    """The honest one: sends a message, waits for its receipt, sends the next. `seconds` holds how long each took."""

    def __init__(self, port: int, name: str = "honest", body_bytes: int = 24) -> None:
        super().__init__(daemon=True)
        self._port, self._name, self._body_bytes = port, name, body_bytes
        self._over = threading.Event()
        self.statuses: Counter[int] = Counter()
        self.seconds: list[float] = []
        self.failure = ""

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            for seq in itertools.count(1):
                if self._over.is_set():
                    return
                body = SUBMIT_PREFIX + message(self._name, seq, self._body_bytes)
                name, _, value = proof_of_work(body).partition(": ")
                began = time.perf_counter()
                connection.request("POST", "/v1/submit", body, {name: value})
                answer = connection.getresponse()
                answer.read()
                self.seconds.append(time.perf_counter() - began)
                self.statuses[answer.status] += 1
        except (OSError, http.client.HTTPException) as exc:
            self.failure = repr(exc)
        finally:
            connection.close()

    def stop(self) -> None:
        self._over.set()
        self.join(timeout=90)


@dataclass(slots=True)
class Battle:
    """What the attackers share. `counts` says what happened to them, so that a test can tell that they were there."""

    port: int
    over: asyncio.Event = field(default_factory=asyncio.Event)
    counts: Counter[str] = field(default_factory=Counter)

    async def connect(self, source: str, *, small: bool = False) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        connection = socket.socket()
        connection.setblocking(False)
        if small:  # so that unread answers stay with the hub and not in our kernel
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        try:
            connection.bind((source, 0))
            await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", self.port))
        except BaseException:
            connection.close()
            raise
        return await asyncio.open_connection(sock=connection, limit=1 << 16)

    async def again(self, name: str, attack: Callable[[], Awaitable[None]]) -> None:
        """Attack until it is over; whoever is thrown out comes back."""
        while not self.over.is_set():
            try:
                await attack()
            except (OSError, asyncio.IncompleteReadError):
                self.counts[f"{name}: thrown out"] += 1
            await asyncio.sleep(_PAUSE)


Attack = Callable[[Battle], Awaitable[None]]


async def _together(battle: Battle, name: str, count: int, attack: Callable[[int], Awaitable[None]]) -> None:
    async def one(number: int) -> None:
        await battle.again(name, lambda: attack(number))

    await asyncio.gather(*(one(number) for number in range(count)))


async def _wait_out(battle: Battle, reader: asyncio.StreamReader, seconds: float = 600.0) -> bytes:
    """What the hub says, until it closes, the time is up or the battle is over."""
    over = asyncio.ensure_future(battle.over.wait())
    reading = asyncio.ensure_future(reader.read(1 << 16))
    try:
        await asyncio.wait((over, reading), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return reading.result() if reading.done() else b"quiet"
    finally:
        for task in (over, reading):
            task.cancel()
        await asyncio.gather(over, reading, return_exceptions=True)


async def idle(battle: Battle) -> None:
    """1,100 connections that say nothing."""

    async def attack(number: int) -> None:
        reader, writer = await battle.connect("127.0.0.2")
        battle.counts["idle: connected"] += 1
        try:
            if (await _wait_out(battle, reader)).startswith(b"HTTP/1.1 503"):
                battle.counts["idle: refused"] += 1
            await asyncio.sleep(0.5)
        finally:
            writer.close()

    await _together(battle, "idle", IDLE, attack)


async def slow_heads(battle: Battle) -> None:
    """A byte now and then, never a whole head; half of them send empty lines instead."""

    async def attack(number: int) -> None:
        reader, writer = await battle.connect("127.0.0.3")
        try:
            head = itertools.cycle(b"\r\n") if number % 2 else b"POST /v1/submit HTTP/1.1\r\nX: " + b"y" * 10_000
            for byte in head:
                writer.write(bytes((byte,)))
                battle.counts["slow heads: bytes"] += 1
                if (await _wait_out(battle, reader, 0.2)) != b"quiet" or battle.over.is_set():
                    return
        finally:
            writer.close()

    await _together(battle, "slow heads", SLOW_HEADS, attack)


async def unread_reads(battle: Battle) -> None:
    """64 pipelined reads of large pages on each connection, and nobody reads the answers."""
    read = StreamRequest(label=label_of_writer("large"), from_seq=1, with_receipts=True).to_bytes()

    async def attack(number: int) -> None:
        _, writer = await battle.connect("127.0.0.4", small=True)
        try:
            form = "Accept: application/json" if number % 2 else "Accept: application/cbor"
            writer.write(post("/v1/stream", read, form) * PIPELINED)
            battle.counts["unread reads: sent"] += PIPELINED
            await battle.over.wait()
        finally:
            writer.transport.abort()

    await _together(battle, "unread reads", UNREAD, attack)


async def tiny_chunks(battle: Battle) -> None:
    """Bodies in chunks of two bytes, as long as a body may be, and never finished."""

    async def attack(number: int) -> None:
        reader, writer = await battle.connect("127.0.0.5")
        try:
            writer.write(f"POST /v1/submit HTTP/1.1\r\n{_HOST}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
            for _ in range(60):
                writer.write(b"2\r\nxx\r\n" * 8192)
                battle.counts["tiny chunks: sent"] += 8192
                await writer.drain()
                await asyncio.sleep(5 * _PAUSE)
                if battle.over.is_set():
                    return
            await _wait_out(battle, reader, 2)
        finally:
            writer.close()

    await _together(battle, "tiny chunks", TINY_CHUNKS, attack)


async def event_streams(battle: Battle) -> None:
    """Event streams for ever: half of them of large entries and never read, the others of what comes now."""
    path = f"/tooling/events?label={label_of_writer('large').hex()}&from="

    async def attack(number: int) -> None:
        reader, writer = await battle.connect("127.0.0.6", small=number % 2 == 0)
        try:
            writer.write(f"GET {path}{1 + (number % 2 << 32)} HTTP/1.1\r\n{_HOST}\r\n\r\n".encode())
            if number % 2 == 0:
                await battle.over.wait()
                return
            status = (await reader.readuntil(b"\r\n")).split()[1].decode()
            battle.counts[f"event streams: {status}"] += 1
            while (await _wait_out(battle, reader)) and not battle.over.is_set():
                pass
        finally:
            writer.transport.abort()

    await _together(battle, "event streams", STREAMS, attack)


async def refused_requests(battle: Battle) -> None:
    """The smallest requests that are refused, a hundred at a time."""

    async def attack(number: int) -> None:
        reader, writer = await battle.connect("127.0.0.7")
        try:
            while not battle.over.is_set():
                writer.write(post("/v1/submit", b"\xff") * 100)
                for _ in range(100):
                    battle.counts[f"refused requests: {await read_answer(reader)}"] += 1
                await asyncio.sleep(_PAUSE)
        finally:
            writer.close()

    await _together(battle, "refused requests", REFUSED, attack)


async def replays(battle: Battle) -> None:
    """One message with one proof of work, again and again."""
    body = SUBMIT_PREFIX + message("replayed", 1)
    request = post("/v1/submit", body, proof_of_work(body))

    async def attack(number: int) -> None:
        reader, writer = await battle.connect("127.0.0.8")
        try:
            while not battle.over.is_set():
                writer.write(request * 20)
                for _ in range(20):
                    battle.counts[f"replays: {await read_answer(reader)}"] += 1
                await asyncio.sleep(_PAUSE)
        finally:
            writer.close()

    await _together(battle, "replays", REFUSED, attack)


async def expensive_requests(battle: Battle) -> None:
    """What costs a hub most for the bytes of the request: pages in JSON, checkpoints of many labels."""
    page = StreamRequest(label=label_of_writer("large"), from_seq=1, with_receipts=True).to_bytes()
    checkpoints = CheckpointRangeRequest(epoch_min=0, epoch_max=0).to_bytes()
    requests = (
        post("/v1/stream", page, "Accept: application/json"),
        post("/tooling/checkpoint_range", checkpoints, "Accept: application/json"),
    )

    async def attack(number: int) -> None:
        reader, writer = await battle.connect("127.0.0.9")
        try:
            while not battle.over.is_set():
                writer.write(requests[number % len(requests)])
                battle.counts[f"expensive requests: {await read_answer(reader)}"] += 1
        finally:
            writer.close()

    await _together(battle, "expensive requests", EXPENSIVE, attack)


async def read_answer(reader: asyncio.StreamReader) -> int:
    """The status of the next answer, its body read and thrown away."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")
    )
    while length:
        length -= len(await reader.readexactly(min(length, 1 << 15)))
    return int(head.split()[1])


ATTACKS: Final[dict[str, Attack]] = {
    "idle connections": idle,
    "slow heads": slow_heads,
    "unread reads": unread_reads,
    "tiny chunks": tiny_chunks,
    "event streams": event_streams,
    "refused requests": refused_requests,
    "replays": replays,
    "expensive requests": expensive_requests,
}
