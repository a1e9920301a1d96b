"""A load generator for the hub: prepared messages, closed loop, as little work per request as Python allows.

    python -m benchmarks.load PORT MESSAGES --connections 64 --batch 1 [--ca CERTIFICATE]
    python -m benchmarks.load PORT --ca CERTIFICATE --handshakes 200

With --ca it speaks TLS, on connections that were opened before the clock starts. Run it as a process of its own. It
prints one JSON object: messages, seconds, refusals, latencies, and the CPU it used itself, which tells whether it was
the bottleneck. Requests are built before the clock starts; answers are kept and checked after it has stopped.
"""

import argparse
import asyncio
import contextlib
import json
import pickle
import ssl
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

    def __init__(
        self, hub_pk: bytes, number: int, *, size: int = CIPHERTEXT_BYTES, stream: int | None = None, gated: bool = True
    ) -> None:
        """`size` is that of the ciphertext; without `gated` its messages name no capability."""
        self._number, self._key, self._size = number, client_key(number), size
        self._auth_ref = token(number).auth_ref() if gated else None
        stream_id = STREAMS[number % len(STREAMS)] if stream is None else stream_id_of(f"bench/{stream}")
        self._label = label_of(routing_key_of(hub_id_of(hub_pk)), stream_id, 0)
        self._seq = 0

    def next(self) -> bytes:
        self._seq += 1
        filler = H(b"%d %d" % (self._number, self._seq)) * (self._size // 32 + 1)
        head = bytes(32) + (52).to_bytes(4, "big") + (self._size - 92).to_bytes(4, "big")
        msg = Msg.compose(
            self._key,
            profile_id=PROFILE_ID,
            label=self._label,
            client_seq=self._seq,
            prev_ack=0,
            auth_ref=self._auth_ref,
            ciphertext=(head + filler)[: self._size],
        )
        return msg.to_bytes()


def prepare(hub_pk: bytes, clients: int, each: int, path: Path, *, size: int = CIPHERTEXT_BYTES) -> None:
    """Write `each` messages of every client: one list per client, in the order they must be sent."""
    writers = [Writer(hub_pk, number, size=size) for number in range(clients)]
    path.write_bytes(pickle.dumps([[writer.next() for _ in range(each)] for writer in writers]))


def prepare_fresh(
    hub_pk: bytes, connections: int, each: int, path: Path, *, labels: int = len(STREAMS), size: int = CIPHERTEXT_BYTES
) -> None:
    """One message of each of many clients, over `labels` labels: one list per connection."""

    def message(number: int) -> bytes:
        return Writer(hub_pk, number, size=size, stream=number % labels, gated=False).next()

    numbers = range(connections * each)
    path.write_bytes(
        pickle.dumps([[message(number) for number in numbers[k::connections]] for k in range(connections)])
    )


def request(path: str, body: bytes, line: str = "") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/cbor\r\n{line}"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def submit(raw: bytes, line: str = "") -> bytes:
    """The request that submits one MSG, with one more line in its head."""
    return request("/v1/submit", b"\xa2\x01\x01\x02" + raw, line)


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


def requests_of(messages: list[bytes], batch: int, *, changing: bool = False) -> list[bytes]:
    """With `changing`, each head has a line that no other has, as those of clients that trace their requests."""
    if batch == 1:
        lines = (f"X-Request-Id: {H(raw).hex()}\r\n" if changing else "" for raw in messages)
        return [submit(raw, line) for raw, line in zip(messages, lines, strict=True)]
    groups = [messages[start : start + batch] for start in range(0, len(messages), batch)]
    return [request("/tooling/submit_batch", b"".join(group)) for group in groups]


def cpu_seconds(pid: int) -> tuple[float, float]:
    """CPU time of a process with its children so far, and of its first thread, which orders messages; 0 of none."""
    total = first = 0.0
    waiting = [pid] if pid else []
    while waiting:
        process = waiting.pop()
        for thread in Path(f"/proc/{process}/task").iterdir():
            with contextlib.suppress(OSError):
                seconds = int((thread / "schedstat").read_text("ascii").split()[0]) / 1e9
                total += seconds
                first += seconds if thread.name == str(pid) else 0.0
                waiting += map(int, (thread / "children").read_text("ascii").split())
    return total, first


def hub_cost(before: tuple[float, float], hub: int, count: int) -> dict[str, float]:
    """CPU time of the hub for each of `count` since `before`; nothing if nobody said which process it is."""
    if not hub:
        return {}
    total, first = (new - old for old, new in zip(before, cpu_seconds(hub), strict=True))
    return {"hub_cpu_us": total / max(count, 1) * 1e6, "ordering_cpu_us": first / max(count, 1) * 1e6}


def tls_of(ca: Path | None) -> ssl.SSLContext | None:
    return None if ca is None else ssl.create_default_context(cafile=str(ca))


async def shake_hands(port: int, tls: ssl.SSLContext | None, count: int, hub: int = 0) -> dict[str, object]:
    """Open and close connections, one after the other."""
    loop = asyncio.get_running_loop()
    before = cpu_seconds(hub)
    began, cpu = time.perf_counter(), time.process_time()
    for _ in range(count):
        transport, _ = await loop.create_connection(asyncio.Protocol, "127.0.0.1", port, ssl=tls)
        transport.close()
    seconds, own_cpu = time.perf_counter() - began, time.process_time() - cpu
    cost = hub_cost(before, hub, count)
    return {"handshakes": count, "per_second": count / seconds, "own_cpu_us": own_cpu / count * 1e6, **cost}


async def drive(
    port: int,
    lists: list[list[bytes]],
    connections: int,
    batch: int,
    tls: ssl.SSLContext | None = None,
    *,
    changing: bool = False,
    hub: int = 0,
) -> dict[str, object]:
    loop = asyncio.get_running_loop()
    opened: list[Connection] = []
    waiting = []
    for messages in lists[:connections]:
        done: asyncio.Future[None] = loop.create_future()
        link = Connection(requests_of(messages, batch, changing=changing), done)
        await loop.create_connection(partial(_same, link), "127.0.0.1", port, ssl=tls)
        opened.append(link)
        waiting.append(done)
    before = cpu_seconds(hub)
    began, cpu = time.perf_counter(), time.process_time()
    for connection in opened:
        connection.send()
    await asyncio.gather(*waiting)
    seconds, own_cpu = time.perf_counter() - began, time.process_time() - cpu
    cost = hub_cost(before, hub, sum(len(messages) for messages in lists[:connections]))
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
        **cost,
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
    parser.add_argument("messages", type=Path, nargs="?")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--ca", type=Path, help="speak TLS, and trust this certificate")
    parser.add_argument("--changing", action="store_true", help="a line in each head that no other request has")
    parser.add_argument("--hub", type=int, default=0, metavar="PID", help="tell the CPU time of this process, too")
    parser.add_argument("--handshakes", type=int, help="send nothing: open so many connections, one after the other")
    options = parser.parse_args()
    tls = tls_of(options.ca)
    if options.handshakes:
        work = shake_hands(options.port, tls, options.handshakes, options.hub)
    else:
        lists = pickle.loads(options.messages.read_bytes())  # noqa: S301 - our own file
        more = {"changing": options.changing, "hub": options.hub}
        work = drive(options.port, lists, options.connections, options.batch, tls, **more)
    try:
        import uvloop
    except ImportError:
        result = asyncio.run(work)
    else:
        result = uvloop.run(work)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
