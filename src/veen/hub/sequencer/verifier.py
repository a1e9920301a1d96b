"""Ed25519 verification in worker processes, where `veen_native` is not built. Threads would lose more to the
interpreter lock than they gain.

The hub sends jobs of a fixed size over a socket pair, `signature 64 · digest 32 · key 32`; the worker answers with one
byte for each. Jobs go to the workers in batches, in turn, and are taken back in the order they were sent, so admission
keeps the order of arrival for any number of workers. When all of them are far behind, the hub verifies a few itself: on
two cores the workers are what limits it otherwise.

A worker ends when its socket closes, and ignores signals that are meant for the hub: Ctrl-C goes to the process group,
`systemctl stop` to the control group, and the hub needs its workers to finish the messages that it accepted.
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from typing import Final

from veen.core.crypto.ed25519 import JOB_BYTES, verify_many

Job = bytes  # signature, digest, key

_BATCH: Final = 8  # small batches keep both sides busy and turns short
_OUTSTANDING: Final = 16  # batches per worker on their way
_BACKLOG: Final = 32  # jobs without a free worker from which on the hub verifies some itself
_HELP: Final = 4  # jobs that the hub verifies in one turn of the loop, so that no turn gets long
_FOR_THE_HUB: Final = frozenset(
    (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
)
_NICE: Final = 5  # lower priority than the thread that orders, for which everybody waits (decisions.md 48)


class InlineVerifier:
    """A verifier in this process, without workers: for tests and small machines."""

    def __init__(self, done: Callable[[bytes], None]) -> None:
        self._done = done

    def submit(self, job: Job) -> None:
        self._done(verify_many(job))

    def close(self) -> None:
        """Do nothing: there are no workers."""


class _Worker:
    """One worker process and the hub's end of its socket."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        # A child inherits the signals that its parent's thread blocks, so they are blocked from its first instruction
        # on; a handler that it set itself would come too late for a signal in the first moments.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _FOR_THE_HUB)
        try:
            with theirs:
                self.process = subprocess.Popen(  # noqa: S603 - our own module, no outside input
                    [sys.executable, "-m", "veen.hub.sequencer.verifier", str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
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
    """Distributes jobs over workers. `done` gets verdicts in the order of submission, one byte each, 1 for a valid
    signature."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        count: int,
        done: Callable[[bytes], None],
        died: Callable[[], None],
    ) -> None:
        self._loop, self._done, self._died = loop, done, died
        self._workers = [_Worker() for _ in range(count)]
        self._waiting: list[Job] = []
        self._sent: deque[tuple[_Worker, int] | bytes] = deque()  # batches in order: worker and size; or own verdicts
        self._turn = 0
        self._scheduled = self._helping = False
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
        """Send an incomplete batch at the end of a turn of the loop."""
        self._scheduled = False
        self._send()

    def _send(self) -> None:
        waiting = self._waiting
        start, until = 0, len(waiting)
        while start < until:
            worker = self._workers[self._turn % len(self._workers)]
            if worker.outstanding >= _OUTSTANDING:
                break  # its answers will bring us back here
            batch = waiting[start : start + _BATCH]
            data = b"".join(batch)
            try:
                sent = worker.socket.send(data)
            except (BlockingIOError, OSError):
                sent = 0
            if sent != len(data):  # the buffer has room for all outstanding batches, so the worker is dead
                self._died()
                return
            worker.outstanding += 1
            self._sent.append((worker, len(batch)))
            self._turn += 1
            start += len(batch)
        del waiting[:start]
        if len(waiting) >= _BACKLOG and not self._helping:
            self._helping = True
            self._loop.call_soon(self._help)

    def _help(self) -> None:
        """Verify the next few jobs in this process; their verdicts wait for those before them."""
        self._helping = False
        if len(self._waiting) >= _BACKLOG:
            self._sent.append(verify_many(b"".join(self._waiting[:_HELP])))
            del self._waiting[:_HELP]
            self._send()

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
            if isinstance(first := self._sent[0], bytes):
                verdicts = first
            else:
                owner, count = first
                if len(owner.received) < count:
                    break
                verdicts = bytes(owner.received[:count])
                del owner.received[:count]
                owner.outstanding -= 1
            self._sent.popleft()
            self._done(verdicts)
        self._send()

    def close(self) -> None:
        for worker in self._workers:
            self._loop.remove_reader(worker.socket)
            worker.close()


def serve(connection: socket.socket) -> None:
    """Run the worker: verify until the hub closes the socket. Answer after each batch, because messages wait for it."""
    rest = b""
    while part := connection.recv(_BATCH * _OUTSTANDING * JOB_BYTES):
        data = rest + part
        whole = len(data) - len(data) % JOB_BYTES
        for start in range(0, whole, _BATCH * JOB_BYTES):
            connection.sendall(verify_many(data[start : min(whole, start + _BATCH * JOB_BYTES)]))
        rest = data[whole:]


if __name__ == "__main__":
    # A hub that was killed leaves answers unread, which resets the connection instead of ending it.
    with socket.socket(fileno=int(sys.argv[1])) as inherited, contextlib.suppress(ConnectionError):
        inherited.setblocking(True)
        os.nice(_NICE)
        serve(inherited)
