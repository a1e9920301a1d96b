"""Threads of `veen_native` that check messages and seal entries, beside the thread that orders (docs/native.md).

Each operation has a twin in Python with the same results, byte for byte. Every refusal is decided in Python: the
module only reports that a message is valid, that its signature alone is invalid, or that Python must check it.

What it does has a twin in Python, with the same results byte for byte; which of the two runs decides nothing. Every
refusal is Python's: the module only says that something is good, that the signature alone is bad, or that Python must
look itself.
"""

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Final, Literal

from veen import native
from veen.core.crypto.ed25519 import SigningKey
from veen.core.limits import Limits
from veen.storage.state import Admitted

Verdict = native.Checked | Literal[False] | None  # False: the signature alone is invalid; None: Python must check

_TURN: Final = 64  # verdicts that are acted on before the event loop may do something else
_NICE: Final = 5  # lower priority than the thread that orders, for which everybody waits (decisions.md 48)


class NativePool:
    """The thread pool of the native module. Owned by the event loop's thread, but for the groups, which the writer
    thread completes."""

    def __init__(
        self,
        module: native.Module,
        loop: asyncio.AbstractEventLoop,
        workers: int,
        profiles: Collection[bytes],
        limits: Limits,
        done: Callable[[Sequence[Verdict]], None],
        died: Callable[[str], None],
    ) -> None:
        """Start the threads. `done` gets verdicts in the order of submission."""
        self._module, self._loop, self._done, self._died = module, loop, done, died
        self._profiles, self._limits = sorted(profiles), limits
        self._pool = module.Pool(workers, self._profiles, _sizes(limits), _NICE)
        self._wake = socket.socket(fileno=self._pool.wake_fd)
        self._wake.setblocking(False)
        self._verdicts: deque[Verdict] = deque()  # taken and not acted on; not empty: `_act` is scheduled
        # The key that signed last, and its form inside the module. A hub signs with one key for weeks.
        self._signer: tuple[SigningKey, native.NativeSigner] | None = None
        self._closed = False
        loop.add_reader(self._wake, self._readable)

    def submit(self, raw: bytes, limits: Limits) -> bool:
        """Queue a message for its check under `limits`. Return False if Python must check it: no verdict will come."""
        if limits is not self._limits:
            self._limits = limits
            self._pool.set_rules(self._profiles, _sizes(limits))
        return self._pool.submit(raw)

    def begin_group(self) -> native.SealedGroup:
        return self._module.Group()

    def seal(self, group: native.SealedGroup, key: SigningKey, raw: bytes, admitted: Admitted) -> None:
        """Queue the entry for signing and framing, as the next part of `group`."""
        if self._signer is None or self._signer[0] is not key:
            self._signer = (key, self._module.Signer(key.seed))
        self._pool.seal(
            group,
            self._signer[1],
            raw,
            admitted.label.label,
            admitted.stream_seq,
            admitted.leaf_hash,
            admitted.mmr_root,
            admitted.hub_ts,
        )

    def _readable(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake.recv(64)
        try:
            verdicts = self._pool.take()
        except RuntimeError as exc:
            self._loop.remove_reader(self._wake)
            self._died(str(exc))
            return
        waiting = bool(self._verdicts)
        self._verdicts += verdicts
        if not waiting:
            self._act()

    def _act(self) -> None:
        if self._closed or not self._verdicts:
            return
        turn = [self._verdicts.popleft() for _ in range(min(_TURN, len(self._verdicts)))]
        if self._verdicts:
            self._loop.call_soon(self._act)
        self._done(turn)

    def close(self) -> None:
        """End the threads. Work in progress is finished; its verdicts are dropped."""
        self._closed = True
        self._loop.remove_reader(self._wake)
        self._pool.close()
        self._wake.close()


def _sizes(limits: Limits) -> native.Sizes:
    return limits.max_msg_bytes, limits.max_hdr_bytes, limits.max_body_bytes
