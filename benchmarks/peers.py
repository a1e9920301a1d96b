"""What others do with the same load and the same durability: NATS JetStream, Redis streams, PostgreSQL.

Each gets messages of 690 bytes in a closed loop, one by one from 64 connections or 64 at a time from 8, by a client of
a few lines that speaks its wire protocol, and answers when they are synced. None checks an author's signature, signs a
receipt or can prove anything later; the table says so. It also says how much of a core the client took: far less than
one, so that it is not what is measured.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, cast

MESSAGE: Final = bytes(range(256)) * 2 + bytes(178)  # 690 bytes
CONNECTIONS: Final = 64
BATCH: Final = 64
BATCH_CONNECTIONS: Final = 8


class Loop(asyncio.Protocol):
    """Sends `message` again and again, the next when the last is answered, `count` times.

    `hello` comes before, and `welcome` ends what it is answered with.
    """

    def __init__(
        self, hello: bytes, welcome: bytes, message: bytes, answered: Callable[[bytes], int], count: int
    ) -> None:
        self._hello, self._welcome, self._message, self._answered = hello, welcome, message, answered
        self._left = count
        self._buffer = b""
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.latencies: list[float] = []
        self._sent = 0.0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._hello:
            self._transport.write(self._hello)
        else:
            self.ready.set_result(None)

    def send(self) -> None:
        assert self._transport is not None
        self._sent = time.perf_counter()
        self._transport.write(self._message)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self.ready.done():
            if self._buffer.endswith(self._welcome):
                self._buffer = b""
                self.ready.set_result(None)
            return
        used = self._answered(self._buffer)
        if not used:
            return
        self._buffer = self._buffer[used:]
        self.latencies.append(time.perf_counter() - self._sent)
        self._left -= 1
        if self._left:
            self.send()
        else:
            self.done.set_result(None)


def _nats_answers(buffer: bytes, batch: int) -> int:
    """The length of `batch` whole `MSG inbox sid size CRLF body CRLF`, or 0."""
    start = 0
    for _ in range(batch):
        if buffer.startswith(b"PING\r\n", start):  # it goes on for minutes without an answer
            start += 6
        end = buffer.find(b"\r\n", start)
        if end < 0:
            return 0
        whole = end + 4 + int(buffer[start:end].rsplit(b" ", 1)[1])
        if len(buffer) < whole:
            return 0
        if not buffer.startswith(b"MSG", start) or b'"error"' in buffer[start:whole]:
            raise RuntimeError(buffer[start:whole].decode())
        start = whole
    return start


def _redis_answers(buffer: bytes, batch: int) -> int:
    if buffer.startswith(b"-") or b"\n-" in buffer:
        raise RuntimeError(buffer.decode())
    return len(buffer) if buffer.count(b"\r\n") == 2 * batch else 0


async def _drive(
    port: int,
    make: Callable[[int, int], tuple[bytes, bytes, bytes]],
    answered: Callable[[bytes, int], int],
    each: int,
    batch: int,
) -> dict[str, float]:
    loop = asyncio.get_running_loop()
    loops = []
    connections = CONNECTIONS if batch == 1 else BATCH_CONNECTIONS
    requests = max(1, each * CONNECTIONS // connections // batch)
    for number in range(connections):
        worker = Loop(*make(number, batch), partial(_whole, answered, batch), requests)
        await loop.create_connection(partial(_same, worker), "127.0.0.1", port)
        await worker.ready
        loops.append(worker)
    began, cpu = time.perf_counter(), time.process_time()
    for worker in loops:
        worker.send()
    await asyncio.gather(*(worker.done for worker in loops))
    seconds, own = time.perf_counter() - began, time.process_time() - cpu
    latencies = sorted(latency for worker in loops for latency in worker.latencies)
    return {
        "per_second": len(latencies) * batch / seconds,
        "p50_ms": latencies[len(latencies) // 2] * 1000,
        "p99_ms": latencies[len(latencies) * 99 // 100] * 1000,
        "own_cpu_share": own / seconds,
    }


def _same(worker: Loop) -> Loop:
    return worker


def _whole(answered: Callable[[bytes, int], int], batch: int, buffer: bytes) -> int:
    return answered(buffer, batch)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def _server(command: list[str], port: int, stop: int = signal.SIGTERM, user: str | None = None) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, user=user)
    try:
        for _ in range(200):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        yield
    finally:
        process.send_signal(stop)
        process.wait(timeout=60)


def nats(each: int, batch: int) -> dict[str, float] | None:
    """JetStream, file storage, `sync_interval: always`."""
    binary = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which("nats-server")
    if binary is None:
        return None
    root, port = Path(tempfile.mkdtemp(prefix="veen-nats-")), _free_port()
    try:
        config = root / "server.conf"
        config.write_text(
            f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{root / "data"}", sync_interval: always }}\n'
        )
        with _server([binary, "-c", str(config)], port):
            asyncio.run(_make_stream(port))
            return asyncio.run(_drive(port, _nats_message, _nats_answers, each, batch))
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _nats_message(number: int, batch: int) -> tuple[bytes, bytes, bytes]:
    hello = b'CONNECT {"verbose":false}\r\nSUB inbox.%d 1\r\nPING\r\n' % number
    return hello, b"PONG\r\n", b"PUB bench.m inbox.%d %d\r\n%b\r\n" % (number, len(MESSAGE), MESSAGE) * batch


async def _make_stream(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    request = json.dumps({"name": "bench", "subjects": ["bench.>"], "storage": "file"}).encode()
    writer.write(b'CONNECT {"verbose":false}\r\nSUB made 1\r\n')
    writer.write(b"PUB $JS.API.STREAM.CREATE.bench made %d\r\n%b\r\n" % (len(request), request))
    while not (line := await asyncio.wait_for(reader.readline(), 10)).startswith(b"MSG"):
        if line.startswith(b"-ERR"):
            raise RuntimeError(line.decode())
    writer.close()


def redis(each: int, batch: int) -> dict[str, float] | None:
    """XADD with `appendfsync always`."""
    binary = shutil.which("redis-server")
    if binary is None:
        return None
    root, port = Path(tempfile.mkdtemp(prefix="veen-redis-")), _free_port()
    try:
        options = {"port": port, "bind": "127.0.0.1", "dir": root, "appendonly": "yes", "appendfsync": "always"}
        command = [binary, *(word for name, value in options.items() for word in (f"--{name}", str(value)))]
        with _server([*command, "--save", ""], port):
            return asyncio.run(_drive(port, _redis_message, _redis_answers, each, batch))
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _redis_message(number: int, batch: int) -> tuple[bytes, bytes, bytes]:
    words = (b"XADD", b"bench", b"*", b"m", MESSAGE)
    command = b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
    return b"", b"", command * batch


# --- PostgreSQL ------------------------------------------------------------------------------------------

_READY: Final = b"Z\x00\x00\x00\x05I"  # ReadyForQuery, idle


def postgres(each: int, batch: int) -> dict[str, float] | None:
    """A prepared INSERT of one row, or of `batch` rows, committed by itself, with `synchronous_commit = on`."""
    tools = _postgres_tools()
    if tools is None:
        return None
    root, port = Path(tempfile.mkdtemp(prefix="veen-postgres-")), _free_port()
    user = "postgres" if os.geteuid() == 0 else None  # the server refuses to run as root
    try:
        if user is not None:
            shutil.chown(root, user)
        data = root / "data"
        initdb = [str(tools / "initdb"), "-D", str(data), "-A", "trust", "-U", "bench", "-E", "UTF8", "--no-locale"]
        subprocess.run(initdb, check=True, stdout=subprocess.DEVNULL, user=user, cwd=root)
        command = [str(tools / "postgres"), "-D", str(data), "-k", str(root), "-p", str(port)]
        for setting in ("listen_addresses=127.0.0.1", "synchronous_commit=on", "fsync=on"):
            command += ["-c", setting]
        with _server(command, port, signal.SIGINT, user):  # SIGINT: without waiting for clients
            asyncio.run(_make_table(port))
            return asyncio.run(_drive(port, _postgres_message, _postgres_answer, each, batch))
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _postgres_tools() -> Path | None:
    """Where the server is: on the path, or where Debian puts it."""
    if (program := shutil.which("postgres")) is not None:
        return Path(program).resolve().parent
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    return versions[-1].parent if versions else None


def _framed(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack(">I", len(body) + 4) + body


def _startup() -> bytes:
    return _framed(b"", struct.pack(">I", 3 << 16) + b"user\0bench\0database\0postgres\0\0")


def _postgres_message(number: int, batch: int) -> tuple[bytes, bytes, bytes]:
    rows = ", ".join(f"(${row})" for row in range(1, batch + 1)).encode()
    types = struct.pack(">H", batch) + struct.pack(">I", 17) * batch  # 17: bytea
    parse = _framed(b"P", b"add\0INSERT INTO bench (m) VALUES " + rows + b"\0" + types)
    values = (struct.pack(">I", len(MESSAGE)) + MESSAGE) * batch
    bind = _framed(b"B", b"\0add\0" + struct.pack(">HHH", 1, 1, batch) + values + struct.pack(">H", 0))
    message = bind + _framed(b"E", b"\0" + struct.pack(">I", 0)) + _framed(b"S", b"")
    # Startup is answered by one ReadyForQuery, Parse and Sync by ParseComplete and another one.
    return _startup() + parse + _framed(b"S", b""), b"1\x00\x00\x00\x04" + _READY, message


def _postgres_answer(buffer: bytes, batch: int) -> int:
    if buffer.startswith(b"E"):
        raise RuntimeError(buffer.decode("utf-8", "replace"))
    return len(buffer) if buffer.endswith(_READY) else 0


async def _make_table(port: int) -> None:
    for _ in range(100):  # it listens before it takes queries
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        query = b"CREATE TABLE bench (id bigserial PRIMARY KEY, at timestamptz DEFAULT now(), m bytea NOT NULL)\0"
        writer.write(_startup() + _framed(b"Q", query))
        with contextlib.suppress(asyncio.IncompleteReadError):
            await asyncio.wait_for(reader.readuntil(b"CREATE TABLE\0" + _READY), 10)
            writer.close()
            return
        writer.close()
        await asyncio.sleep(0.1)
    raise RuntimeError("PostgreSQL does not take queries")


@dataclass(frozen=True, slots=True)
class Peer:
    """Another system under the same load; `measure` gives None where it is not installed."""

    run: Callable[[int, int], dict[str, float] | None]
    batch: int = 1
    target: float | None = None  # of VEEN beside it

    def measure(self, each: int) -> dict[str, float] | None:
        return self.run(each, self.batch)


PEERS: Final = {
    "NATS JetStream, sync always": Peer(nats, target=2.2),
    "Redis XADD, appendfsync always": Peer(redis),
    "PostgreSQL INSERT, synchronous_commit on": Peer(postgres),
    f"NATS JetStream, {BATCH} publishes without waiting": Peer(nats, BATCH),
    f"Redis, pipelines of {BATCH} XADD": Peer(redis, BATCH),
    f"PostgreSQL INSERT of {BATCH} rows": Peer(postgres, BATCH, target=1.0),
}

if __name__ == "__main__":
    for title, peer in PEERS.items():
        print(title, json.dumps(peer.measure(200)), flush=True)
