"""The blocking twin of the client: the same verbs, for scripts and notebooks without an event loop.

Its own event loop runs in a thread, so this also works where another loop is running already, as in notebooks.
"""

import asyncio
import atexit
import contextlib
import functools
import inspect
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import CancelledError
from pathlib import Path
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar, get_args

from veen.client.client import Client
from veen.client.home import Home
from veen.client.identity.identity import Identity
from veen.client.identity.keyring import Keyring, Stream
from veen.client.read.reading import Entry
from veen.client.send.grants import TokenGrant
from veen.client.send.writing import Sent
from veen.client.state import LabelState, Mode
from veen.client.verify.evidence import Proven
from veen.client.verify.pin import HubPin
from veen.core.evidence_file import EvidenceFile
from veen.core.objects.captoken import CapToken
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.evidence import Equivocation
from veen.core.objects.receipt import Receipt
from veen.core.objects.speaking import AuthorKey
from veen.core.tree.proof import ConsistencyProof

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

A = TypeVar("A")  # the asynchronous class
P = ParamSpec("P")
T = TypeVar("T")

_PATIENCE_SECONDS: Final = 5.0


class LoopThread:
    """An event loop in its own thread, for callers that block.

    A KeyboardInterrupt may reach the caller between any two instructions. It also ends the work, and it is the only
    error that the caller sees. A loop that was not closed is stopped when the interpreter exits: a thread that goes on
    while the interpreter is torn down may crash it.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="veen-client", daemon=True)
        self._thread.start()
        _running.add(self)

    @property
    def is_closed(self) -> bool:
        return self._loop.is_closed()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        call = _Call(work)
        try:
            self._loop.call_soon_threadsafe(call.start)
            call.wait()
            return call.result()
        except BaseException:
            if not call.has_ended:  # interrupted: the work ends before the caller goes on
                self._loop.call_soon_threadsafe(call.cancel)
                call.wait(_PATIENCE_SECONDS)
            raise
        finally:
            del call  # its error refers to this frame

    def close(self) -> None:
        if not self._loop.is_closed():
            self.run(self._loop.shutdown_asyncgens())
            self.run(self._loop.shutdown_default_executor())
            self.stop()
            self._loop.close()

    def stop(self, timeout_sec: float | None = None) -> None:
        """End the thread and join it. Work that has not ended stays unfinished."""
        if self._thread.is_alive():  # in a forked process it is not
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout_sec)
        _running.discard(self)


_running: Final[set[LoopThread]] = set()


@atexit.register
def _stop_all() -> None:
    for loop in list(_running):
        loop.stop(_PATIENCE_SECONDS)


class _Call(Generic[T]):
    """One run of a coroutine in the loop. `start` and `cancel` are called by the loop's thread, in this order if both
    are; `wait` and `result` by the caller."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self.has_ended = False
        self._work = work
        self._task: asyncio.Task[T] | None = None
        # Released when the work has ended. An Event has a lock that an interrupted `wait` may leave locked forever.
        self._gate = threading.Lock()
        self._gate.acquire()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._work)
        self._task.add_done_callback(self._end)

    def cancel(self) -> None:
        """End the work, started or not."""
        if self._task is None:
            self._work.close()
            self._end()
        else:
            self._task.cancel()

    def _end(self, _task: object = None) -> None:
        self.has_ended = True
        self._gate.release()

    def wait(self, timeout_sec: float = -1) -> None:
        """Return when the work has ended or the time is over; -1 sets no limit."""
        if not self.has_ended:
            self._gate.acquire(timeout=timeout_sec)

    def result(self) -> T:
        """Return the result of work that has ended, or raise its error."""
        if self._task is None or self._task.cancelled():
            raise CancelledError
        return self._task.result()


class BlockingTwin(Generic[A]):
    """An asynchronous object, and the loop in which its coroutines run for callers that block."""

    def __init__(self, loop: LoopThread, twin: A) -> None:
        self._loop, self._twin = loop, twin


def to_blocking(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[BlockingTwin[A], P], T]:
    """Return the method of a BlockingTwin that calls `method` in the loop and waits for it."""

    @functools.wraps(method)
    def call(self: BlockingTwin[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._loop.run(method(self._twin, *args, **kwargs))

    return call


def to_blocking_each(
    method: Callable[Concatenate[A, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[BlockingTwin[A], P], Generator[T, None, None]]:
    """Return the method of a BlockingTwin that yields the values of `method`, one after another."""

    @functools.wraps(method)
    def call(self: BlockingTwin[A], /, *args: P.args, **kwargs: P.kwargs) -> Generator[T, None, None]:
        return _each(self._loop, method(self._twin, *args, **kwargs))

    signature = inspect.signature(method)
    element = get_args(signature.return_annotation)[0]
    yields = GenericAlias(Generator, (element, None, None))
    call.__signature__ = signature.replace(return_annotation=yields)  # type: ignore[attr-defined]
    return call


def _each(loop: LoopThread, values: AsyncGenerator[T, None]) -> Generator[T, None, None]:
    one_at_a_time = asyncio.Lock()  # an interrupted step may still be on its way out when the reader is closed

    async def next_value() -> tuple[T, ...]:
        async with one_at_a_time:
            async for value in values:
                return (value,)
        return ()

    async def close() -> None:
        async with one_at_a_time:
            await values.aclose()

    try:
        while value := loop.run(next_value()):
            yield value[0]
    finally:
        if not loop.is_closed:  # a reader that was left unfinished may outlive its client
            loop.run(close())


class SyncClient(BlockingTwin[Client]):
    """`with SyncClient.connect(url, pin=…, identity=…, keyring=…) as client: client.send("orders", b"hello")`."""

    def __init__(self, open_client: Callable[[], Coroutine[Any, Any, Client]]) -> None:
        """Start the loop and open the client in it by `open_client`."""
        loop = LoopThread()
        try:
            super().__init__(loop, loop.run(open_client()))
        except BaseException:
            loop.close()
            raise

    @classmethod
    def connect(
        cls,
        url: str,
        *,
        pin: HubPin | str | None,
        identity: Identity,
        keyring: Keyring = Keyring(),  # noqa: B008 - a value
        home: Home | None = None,
        mode: Mode = "full",
        ca_file: Path | None = None,
        token_file: Path | None = None,
        insecure_http: bool = False,
    ) -> Self:
        """Connect like `Client.connect`."""
        return cls(
            lambda: Client.connect(
                url,
                pin=pin,
                identity=identity,
                keyring=keyring,
                home=home,
                mode=mode,
                ca_file=ca_file,
                token_file=token_file,
                insecure_http=insecure_http,
            )
        )

    def close(self) -> None:
        """Close the connections and end the thread. `with` does it."""
        try:
            self._loop.run(self._twin.aclose())
        finally:
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        """Run `work` in the loop of the client, for operations without a verb here; an interrupt cancels it."""
        return self._loop.run(work(self._twin))

    @property
    def pin(self) -> HubPin:
        """As `Client.pin`."""
        return self._twin.pin

    @property
    def hub_id(self) -> bytes:
        """As `Client.hub_id`."""
        return self._twin.hub_id

    @property
    def replaced_hubs(self) -> tuple[bytes, ...]:
        """As `Client.replaced_hubs`."""
        return self._twin.replaced_hubs

    @property
    def client_id(self) -> bytes:
        """As `Client.client_id`."""
        return self._twin.client_id

    @property
    def keyring(self) -> Keyring:
        """As `Client.keyring`."""
        return self._twin.keyring

    def author(self, stream: Stream, client_id: bytes) -> AuthorKey | None:
        """As `Client.author`."""
        return self._twin.author(stream, client_id)

    def label(self, stream: Stream, epoch: int | None = None) -> bytes:
        """As `Client.label`."""
        return self._twin.label(stream, epoch)

    send = to_blocking(Client.send)
    send_many = to_blocking(Client.send_many)
    prepare = to_blocking(Client.prepare)
    submit_prepared = to_blocking(Client.submit_prepared)
    recover = to_blocking(Client.recover)

    def pending(self) -> list[LabelState]:
        """Return the pending messages like `Client.pending`."""
        return self._twin.pending()

    send_pending = to_blocking(Client.send_pending)
    drop_pending = to_blocking(Client.drop_pending)

    def take_recovered(self) -> list[Sent]:
        """As `Client.take_recovered`."""
        return self._twin.take_recovered()

    cursor = to_blocking(Client.cursor)
    resync = to_blocking(Client.resync)
    read = to_blocking_each(Client.read)
    read_kept = to_blocking_each(Client.read_kept)
    follow = to_blocking_each(Client.follow)

    def to_arrow(self, stream: Stream, **options: Any) -> "pa.Table":
        """Return a range as an Arrow table; the options are those of `Client.read`."""
        from veen.client.read.frames import to_arrow

        with contextlib.closing(self.read(stream, **options)) as entries:
            return to_arrow(entries)

    def to_pandas(self, stream: Stream, **options: Any) -> "pd.DataFrame":
        """Return a range as a pandas frame; the options are those of `Client.read`."""
        from veen.client.read.frames import to_pandas

        with contextlib.closing(self.read(stream, **options)) as entries:
            return to_pandas(entries)

    def receipt(self, stream: Stream, seq: int, *, epoch: int | None = None) -> Receipt:
        """Return the receipt of an entry, verified."""
        return self._loop.run(self._twin.receipt(stream, seq, epoch=epoch))

    def proof(self, stream: Stream, seq: int, *, tree_size: int | None = None, epoch: int | None = None) -> Proven:
        """Return the proof that an entry is in the log, verified."""
        return self._loop.run(self._twin.proof(stream, seq, tree_size=tree_size, epoch=epoch))

    def consistency(self, stream: Stream, from_size: int, to_size: int) -> ConsistencyProof:
        """Return the proof that the log of `to_size` only adds to the one of `from_size`, verified."""
        return self._loop.run(self._twin.consistency(stream, from_size, to_size))

    def checkpoint(self, stream: Stream, upto_seq: int | None = None, *, epoch: int | None = None) -> Checkpoint:
        """Return the newest checkpoint, or the one up to an entry, verified."""
        return self._loop.run(self._twin.checkpoint(stream, upto_seq, epoch=epoch))

    def checkpoints(self, stream: Stream) -> list[Checkpoint]:
        """Return all checkpoints of a stream, verified."""
        return self._loop.run(self._twin.checkpoints(stream))

    def evidence(self, stream: Stream, **options: Any) -> EvidenceFile:
        """Export evidence like `Client.evidence`, with its options."""
        return self._loop.run(self._twin.evidence(stream, **options))

    def report_equivocation(self, evidence: Equivocation) -> None:
        """Send the evidence to the hub."""
        self._loop.run(self._twin.report_equivocation(evidence))

    def attachment(self, entry: Entry, index: int) -> bytes:
        """Return an attachment of an entry, opened."""
        return self._loop.run(self._twin.attachments.get(entry, index))

    def fetch_attachment(self, coid: bytes) -> bytes:
        """Return an attachment as the hub stores it, sealed; its hash is its name."""
        return self._loop.run(self._twin.attachments.fetch(coid))

    def authorize(self, token: CapToken) -> TokenGrant:
        """Register a capability token at the hub."""
        return self._loop.run(self._twin.authorize(token))

    def remember(self, grant: TokenGrant) -> None:
        """Use a grant from an earlier run."""
        self._twin.grants.remember(grant)

    def cap_status(self, auth_ref: bytes) -> TokenGrant:
        """Ask the hub for the state of a capability token."""
        return self._loop.run(self._twin.cap_status(auth_ref))

    status = to_blocking(Client.status)
    identity = to_blocking(Client.identity)
