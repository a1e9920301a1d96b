"""A load generator for the hub: prepared messages, closed loop, as little work per request as Python allows.

    python -m benchmarks.load PORT MESSAGES --connections 64 --batch 1

Run it as a process of its own. It prints one JSON object: messages, seconds, refusals, latencies, and the CPU it
used itself, which tells whether it was the bottleneck. Requests are built before the clock starts; answers are
kept and checked after it has stopped.
"""

import argparse
import asyncio
import json
import pickle
import time
from functools import partial
from pathlib import Path
from typing import Final, cast

from veen.core import cbor
from veen.core.crypto.ed25519 import SigningKey
from veen.core.hashing import H
from veen.core.labels import hub_id_of, label_of, routing_key_of, stream_id_of
from veen.core.objects.captoken import CapToken, Rate
from veen.core.objects.msg import Msg
from veen.core.objects.profile import PRESETS
from veen.core.objects.receipt import Receipt

ISSUER: Final = SigningKey(H(b"bench issuer"))
CIPHERTEXT_BYTES: Final = 480
PROFILE_ID: Final = PRESETS["bulk"].profile_id()
STREAMS: Final = tuple(stream_id_of(f"bench/{number}") for number in range(8))


def client_key(number: int) -> SigningKey:
    return SigningKey(H(b"bench client %d" % number))


def token(number: int) -> CapToken:
    rate = Rate(per_sec=10**6, burst=10**6)
    return CapToken.issue(ISSUER, client_key(number).public, STREAMS, ttl=10**6, rate=rate)


class Writer:
    """One client of a hub: its messages, in the order in which they must be sent."""

    def __init__(self, hub_pk: bytes, number: int) -> None:
        self._number, self._key, self._auth_ref = number, client_key(number), token(number).auth_ref()
        self._label = label_of(routing_key_of(hub_id_of(hub_pk)), STREAMS[number % len(STREAMS)], 0)
        self._seq = 0

    def next(self) -> bytes:
        self._seq += 1
        filler = H(b"%d %d" % (self._number, self._seq)) * 14
        head = bytes(32) + (52).to_bytes(4, "big") + (CIPHERTEXT_BYTES - 92).to_bytes(4, "big")
        msg = Msg.compose(
            self._key,
            profile_id=PROFILE_ID,
            label=self._label,
            client_seq=self._seq,
            prev_ack=0,
            auth_ref=self._auth_ref,
            ciphertext=(head + filler)[:CIPHERTEXT_BYTES],
        )
        return msg.to_bytes()


def prepare(hub_pk: bytes, clients: int, each: int, path: Path) -> None:
    """Write `each` messages of every client: one list per client, in the order they must be sent."""
    writers = [Writer(hub_pk, number) for number in range(clients)]
    path.write_bytes(pickle.dumps([[writer.next() for _ in range(each)] for writer in writers]))


def request(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/cbor\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def submit(raw: bytes) -> bytes:
    """The request that submits one MSG."""
    return request("/v1/submit", b"\xa2\x01\x01\x02" + raw)


def next_answer(buffer: bytes) -> tuple[bytes, bytes, int] | None:
    """Status and body of the first answer in the buffer, and how long it is; None if it is not whole."""
    end = buffer.find(b"\r\n\r\n")
    if end < 0:
        return None
    start = buffer.lower().find(b"content-length:", 0, end) + 15
    whole = end + 4 + int(buffer[start : buffer.find(b"\r\n", start)])
    return (buffer[9:12], buffer[end + 4 : whole], whole) if len(buffer) >= whole else None


class Connection(asyncio.Protocol):
    """Sends its requests one after the other, the next when the last is answered."""

    def __init__(self, requests: list[bytes], done: "asyncio.Future[None]") -> None:
        self._requests, self._next, self._done = requests, 0, done
        self._buffer = b""
        self.answers: list[bytes] = []
        self.latencies: list[float] = []
        self._transport: asyncio.Transport | None = None
        self._sent = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not say that it is one

    def send(self) -> None:
        assert self._transport is not None
        self._sent = time.perf_counter()
        self._transport.write(self._requests[self._next])
        self._next += 1

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        answer = next_answer(self._buffer)
        if answer is None:
            return
        self.latencies.append(time.perf_counter() - self._sent)
        status, body, used = answer
        self.answers.append(status + body)
        self._buffer = self._buffer[used:]
        if self._next < len(self._requests):
            self.send()
        elif not self._done.done():
            self._done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(exc or ConnectionError("the hub closed the connection"))


def _same(connection: Connection) -> Connection:
    return connection


def requests_of(messages: list[bytes], batch: int) -> list[bytes]:
    if batch == 1:
        return [submit(raw) for raw in messages]
    groups = [messages[start : start + batch] for start in range(0, len(messages), batch)]
    return [request("/tooling/submit_batch", b"".join(group)) for group in groups]


async def drive(port: int, lists: list[list[bytes]], connections: int, batch: int) -> dict[str, object]:
    loop = asyncio.get_running_loop()
    opened: list[Connection] = []
    waiting = []
    for messages in lists[:connections]:
        done: asyncio.Future[None] = loop.create_future()
        link = Connection(requests_of(messages, batch), done)
        await loop.create_connection(partial(_same, link), "127.0.0.1", port)
        opened.append(link)
        waiting.append(done)
    began, cpu = time.perf_counter(), time.process_time()
    for connection in opened:
        connection.send()
    await asyncio.gather(*waiting)
    seconds, own_cpu = time.perf_counter() - began, time.process_time() - cpu
    receipts, refused = check([answer for connection in opened for answer in connection.answers], batch)
    latencies = sorted(latency for connection in opened for latency in connection.latencies)
    return {
        "receipts": receipts,
        "refused": refused,
        "seconds": seconds,
        "per_second": receipts / seconds,
        "p50_ms": latencies[len(latencies) // 2] * 1000,
        "p99_ms": latencies[len(latencies) * 99 // 100] * 1000,
        "own_cpu_us": own_cpu / max(receipts, 1) * 1e6,
        "own_cpu_share": own_cpu / seconds,
    }


def check(answers: list[bytes], batch: int) -> tuple[int, int]:
    """Count receipts and refusals; every answer must be one or the other."""
    receipts = refused = 0
    for answer in answers:
        status, body = answer[:3], answer[3:]
        if batch == 1:
            if status == b"200":
                Receipt.from_tree(cbor.decode(body)[2])
                receipts += 1
            else:
                refused += 1
            continue
        for item in cbor.sequence(body):
            if item[0] == 0x87:
                Receipt.from_bytes(item)
                receipts += 1
            else:
                refused += 1
    return receipts, refused


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("port", type=int)
    parser.add_argument("messages", type=Path)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--batch", type=int, default=1)
    options = parser.parse_args()
    lists = pickle.loads(options.messages.read_bytes())  # noqa: S301 - our own file
    try:
        import uvloop
    except ImportError:
        result = asyncio.run(drive(options.port, lists, options.connections, options.batch))
    else:
        result = uvloop.run(drive(options.port, lists, options.connections, options.batch))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
