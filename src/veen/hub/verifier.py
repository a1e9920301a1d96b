"""Ed25519 verification in worker processes (NOTES: threads lose more to the interpreter lock than they gain).

The hub sends jobs over a socket pair, `count u16 · count × (signature 64 · digest 32 · key 32)`; the worker answers
with one byte per signature. Batches go to the workers in turn and are taken back in the order they were sent, so
admission keeps the order of arrival for any number of workers.
"""

import asyncio
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from typing import Final

from veen.core import ed25519

__all__ = ["InlineVerifier", "Job", "WorkerVerifier"]

Job = tuple[bytes, bytes, bytes]  # signature, digest, key

_JOB_BYTES: Final = 128
_BATCH: Final = 8  # small batches keep both sides busy and turns short
_OUTSTANDING: Final = 16  # batches per worker on their way


class InlineVerifier:
    """Verifies at once, in this process: for tests and tiny machines."""

    def __init__(self, done: Callable[[list[bool]], None]) -> None:
        self._done = done

    def submit(self, job: Job) -> None:
        self._done([ed25519.verify(job[2], job[1], job[0])])

    def close(self) -> None:
        """Nothing to stop."""


class _Worker:
    """One process and our end of its socket."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(  # noqa: S603 - our own module, no outside input
                [sys.executable, "-m", "veen.hub.verifier", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 18)
        self.socket = ours
        self.outstanding = 0
        self.received = bytearray()

    def close(self) -> None:
        self.socket.close()  # the worker ends when its socket does
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class WorkerVerifier:
    """Spreads jobs over workers; `done` gets the verdicts in the order of submission."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        count: int,
        done: Callable[[list[bool]], None],
        died: Callable[[], None],
    ) -> None:
        self._loop, self._done, self._died = loop, done, died
        self._workers = [_Worker() for _ in range(count)]
        self._waiting: deque[Job] = deque()
        self._sent: deque[tuple[_Worker, int]] = deque()  # batches in order: who has it, how many
        self._turn = 0
        self._scheduled = False
        for worker in self._workers:
            loop.add_reader(worker.socket, self._readable, worker)

    def submit(self, job: Job) -> None:
        self._waiting.append(job)
        if len(self._waiting) >= _BATCH:
            self._send()
        elif not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._send_rest)

    def _send_rest(self) -> None:
        """At the end of a turn nothing waits for company."""
        self._scheduled = False
        self._send()

    def _send(self) -> None:
        while self._waiting:
            worker = self._workers[self._turn % len(self._workers)]
            if worker.outstanding >= _OUTSTANDING:
                return  # its answers will bring us back here
            count = min(_BATCH, len(self._waiting))
            batch = [self._waiting.popleft() for _ in range(count)]
            data = count.to_bytes(2, "big") + b"".join(b"".join(job) for job in batch)
            try:
                sent = worker.socket.send(data)
            except (BlockingIOError, OSError):
                sent = 0
            if sent != len(data):  # the buffer holds all outstanding batches, so this is a dead worker
                self._died()
                return
            worker.outstanding += 1
            self._sent.append((worker, count))
            self._turn += 1

    def _readable(self, worker: _Worker) -> None:
        try:
            data = worker.socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(worker.socket)
            self._died()
            return
        worker.received += data
        while self._sent:
            owner, count = self._sent[0]
            if len(owner.received) < count:
                break
            self._sent.popleft()
            verdicts = [byte == 1 for byte in owner.received[:count]]
            del owner.received[:count]
            owner.outstanding -= 1
            self._done(verdicts)
        self._send()

    def close(self) -> None:
        for worker in self._workers:
            self._loop.remove_reader(worker.socket)
            worker.close()


def _receive(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


def serve(connection: socket.socket) -> None:
    """The worker: verify batches until the hub closes the socket."""
    verify = ed25519.verify
    while True:
        try:
            count = int.from_bytes(_receive(connection, 2), "big")
            data = _receive(connection, count * _JOB_BYTES)
        except EOFError:
            return
        verdicts = bytearray()
        for pos in range(0, len(data), _JOB_BYTES):
            verdicts.append(verify(data[pos + 96 : pos + 128], data[pos + 64 : pos + 96], data[pos : pos + 64]))
        connection.sendall(verdicts)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as inherited:
        inherited.setblocking(True)
        serve(inherited)
