"""The blocking twin of the client: the same verbs, for scripts and notebooks that have no event loop.

An event loop of its own runs in a thread, so this also works where another loop is running already, as in notebooks.
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from veen.client.client import Client
from veen.client.home import Home
from veen.client.identity.identity import Identity
from veen.client.identity.keyring import Keyring, Stream
from veen.client.read.reading import Entry
from veen.client.read.resync import Resynced
from veen.client.send.grants import TokenGrant
from veen.client.send.sealing import Attach, Draft, Prepared
from veen.client.send.writing import Outcome, Sent
from veen.client.state import LabelState, Mode
from veen.client.verify.evidence import Proven
from veen.client.verify.pin import HubPin
from veen.core.evidence_file import EvidenceFile
from veen.core.objects.captoken import CapToken
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.evidence import Equivocation
from veen.core.objects.receipt import Receipt
from veen.core.objects.tooling import ClientCursorResponse, IdentityResponse, StatusResponse
from veen.core.tree.proof import ConsistencyProof

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

__all__ = ["LoopThread", "SyncClient"]

T = TypeVar("T")

_PATIENCE_SECONDS: Final = 5.0


class LoopThread:
    """An event loop in a thread of its own, for callers that block."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="veen-client", daemon=True)
        self._thread.start()

    @property
    def is_closed(self) -> bool:
        return self._loop.is_closed()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        ended = threading.Event()

        async def whole() -> T:
            try:
                return await work
            finally:
                ended.set()

        future: Future[T] = asyncio.run_coroutine_threadsafe(whole(), self._loop)
        try:
            return future.result()
        except BaseException:  # an interrupt must not leave the work running behind the caller's back
            if future.cancel():
                ended.wait(_PATIENCE_SECONDS)  # what is being cancelled must not meet what the caller does next
            raise

    def close(self) -> None:
        if not self._loop.is_closed():
            self.run(self._loop.shutdown_asyncgens())
            self.run(self._loop.shutdown_default_executor())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


class SyncClient:
    """`with SyncClient.connect(url, pin=…, identity=…, keyring=…) as client: client.send("orders", b"hello")`."""

    def __init__(self, open_client: Callable[[], Coroutine[Any, Any, Client]]) -> None:
        """`open_client` makes the client inside the loop it will live in."""
        self._loop = LoopThread()
        try:
            self._client = self._loop.run(open_client())
        except BaseException:
            self._loop.close()
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
        """As `Client.connect`."""
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
        self._loop.run(self._client.aclose())
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        """Whatever has no verb here: `work` runs in the loop of the client; an interrupt cancels it."""
        return self._loop.run(work(self._client))

    @property
    def pin(self) -> HubPin:
        return self._client.pin

    @property
    def hub_id(self) -> bytes:
        return self._client.hub_id

    @property
    def replaced_hubs(self) -> tuple[bytes, ...]:
        return self._client.replaced_hubs

    @property
    def client_id(self) -> bytes:
        return self._client.client_id

    @property
    def keyring(self) -> Keyring:
        return self._client.keyring

    def author(self, stream: Stream, client_id: bytes) -> bytes | None:
        return self._client.author(stream, client_id)

    def label(self, stream: Stream, epoch: int | None = None) -> bytes:
        return self._client.label(stream, epoch)

    def send(
        self,
        stream: Stream,
        body: bytes,
        *,
        schema: str | bytes | None = None,
        attachments: Sequence[Attach | bytes] = (),
        parent: bytes | None = None,
        expires_at: int | None = None,
        capability: CapToken | None = None,
        auth_ref: bytes | None = None,
        once: bool = False,
    ) -> Sent:
        return self._loop.run(
            self._client.send(
                stream,
                body,
                schema=schema,
                attachments=attachments,
                parent=parent,
                expires_at=expires_at,
                capability=capability,
                auth_ref=auth_ref,
                once=once,
            )
        )

    def send_many(self, stream: Stream, bodies: Iterable[bytes | Draft], **options: Any) -> list[Outcome]:
        return self._loop.run(self._client.send_many(stream, bodies, **options))

    def prepare(self, stream: Stream, bodies: Iterable[bytes | Draft], **options: Any) -> list[Prepared]:
        return self._loop.run(self._client.prepare(stream, bodies, **options))

    def submit_prepared(self, stream: Stream, prepared: Sequence[Prepared], *, batch: int = 64) -> list[Outcome]:
        return self._loop.run(self._client.submit_prepared(stream, prepared, batch=batch))

    def recover(self, stream: Stream) -> list[Sent]:
        return self._loop.run(self._client.recover(stream))

    def pending(self) -> list[LabelState]:
        """As `Client.pending`."""
        return self._client.pending()

    def send_pending(self, state: LabelState) -> None:
        self._loop.run(self._client.send_pending(state))

    def drop_pending(self, state: LabelState) -> tuple[int, int]:
        return self._loop.run(self._client.drop_pending(state))

    def take_recovered(self) -> list[Sent]:
        return self._client.take_recovered()

    def cursor(
        self, stream: Stream, client_seq: int | None = None, *, epoch: int | None = None
    ) -> ClientCursorResponse | None:
        return self._loop.run(self._client.cursor(stream, client_seq, epoch=epoch))

    def resync(self, stream: Stream, *, epoch: int | None = None, from_scratch: bool = False) -> Resynced:
        return self._loop.run(self._client.resync(stream, epoch=epoch, from_scratch=from_scratch))

    def read(self, stream: Stream, **options: Any) -> Generator[Entry, None, None]:
        """The options of `Client.read`."""
        return self._each(self._client.read(stream, **options))

    def follow(self, stream: Stream, **options: Any) -> Generator[Entry, None, None]:
        """The options of `Client.follow`; ends when the generator is closed."""
        return self._each(self._client.follow(stream, **options))

    def to_arrow(self, stream: Stream, **options: Any) -> "pa.Table":
        """A range as an Arrow table: the options of `Client.read`."""
        from veen.client.read.frames import to_arrow

        with contextlib.closing(self.read(stream, **options)) as entries:
            return to_arrow(entries)

    def to_pandas(self, stream: Stream, **options: Any) -> "pd.DataFrame":
        """A range as a pandas frame: the options of `Client.read`."""
        from veen.client.read.frames import to_pandas

        with contextlib.closing(self.read(stream, **options)) as entries:
            return to_pandas(entries)

    def _each(self, entries: AsyncGenerator[Entry, None]) -> Generator[Entry, None, None]:
        async def next_entry() -> Entry | None:
            return await anext(entries, None)

        with contextlib.ExitStack() as closing:
            closing.callback(self._end, entries)
            while (entry := self._loop.run(next_entry())) is not None:
                yield entry

    def _end(self, entries: AsyncGenerator[Entry, None]) -> None:
        if not self._loop.is_closed:  # a reader that was left unfinished may outlive its client
            self._loop.run(entries.aclose())

    def receipt(self, stream: Stream, seq: int, *, epoch: int | None = None) -> Receipt:
        return self._loop.run(self._client.receipt(stream, seq, epoch=epoch))

    def proof(self, stream: Stream, seq: int, *, tree_size: int | None = None, epoch: int | None = None) -> Proven:
        return self._loop.run(self._client.proof(stream, seq, tree_size=tree_size, epoch=epoch))

    def consistency(self, stream: Stream, from_size: int, to_size: int) -> ConsistencyProof:
        return self._loop.run(self._client.consistency(stream, from_size, to_size))

    def checkpoint(self, stream: Stream, upto_seq: int | None = None, *, epoch: int | None = None) -> Checkpoint:
        return self._loop.run(self._client.checkpoint(stream, upto_seq, epoch=epoch))

    def checkpoints(self, stream: Stream) -> list[Checkpoint]:
        return self._loop.run(self._client.checkpoints(stream))

    def evidence(self, stream: Stream, **options: Any) -> EvidenceFile:
        """As `Client.evidence`, with its options."""
        return self._loop.run(self._client.evidence(stream, **options))

    def report_equivocation(self, evidence: Equivocation) -> None:
        self._loop.run(self._client.report_equivocation(evidence))

    def attachment(self, entry: Entry, index: int) -> bytes:
        return self._loop.run(self._client.attachments.get(entry, index))

    def sealed_attachment(self, coid: bytes) -> bytes:
        """As the hub stores it; its hash is its name."""
        return self._loop.run(self._client.attachments.fetch(coid))

    def authorize(self, token: CapToken) -> TokenGrant:
        return self._loop.run(self._client.authorize(token))

    def remember(self, grant: TokenGrant) -> None:
        """Use a grant from an earlier run."""
        self._client.grants.remember(grant)

    def cap_status(self, auth_ref: bytes) -> TokenGrant:
        return self._loop.run(self._client.cap_status(auth_ref))

    def status(self) -> StatusResponse:
        return self._loop.run(self._client.status())

    def identity(self) -> IdentityResponse:
        return self._loop.run(self._client.identity())
