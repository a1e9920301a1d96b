"""The same verbs without await: for scripts, notebooks, tests, and services that use threads."""

import contextlib
from collections.abc import AsyncGenerator, Generator, Iterable, Sequence
from pathlib import Path
from typing import Any, Self

from veen.api.entries import Body, Moment, StreamEntry
from veen.api.evidence import EvidenceBundle
from veen.api.hubs import AsyncHubConnection, AsyncKv, AsyncStream, KvView, aconnect
from veen.client.client import Client
from veen.client.evidence_file import Contents
from veen.client.home import Home
from veen.client.send.sealing import Attach
from veen.client.send.writing import Outcome, Sent
from veen.client.sync import LoopThread
from veen.core.objects.tooling import StatusResponse

__all__ = ["HubConnection", "KvState", "StreamHandle", "connect"]


class HubConnection:
    """A verified connection to one hub, as one identity. May be used by many threads."""

    def __init__(self, loop: LoopThread, hub: AsyncHubConnection) -> None:
        self._loop, self._hub = loop, hub

    @property
    def client(self) -> Client:
        """The client of `veen.client` behind it; it lives in the loop of this connection (`run`)."""
        return self._hub.client

    @property
    def url(self) -> str:
        """The address of the hub."""
        return self._hub.url

    @property
    def identity(self) -> str:
        """The name of the identity."""
        return self._hub.identity

    @property
    def client_id(self) -> bytes:
        """The key that signs what is sent here."""
        return self._hub.client_id

    @property
    def hub_pk(self) -> str:
        """The key to give to outsiders with evidence."""
        return self._hub.hub_pk

    def stream(self, name: str) -> "StreamHandle":
        """A stream by name. Its keys are made by the first send, if nobody has written to it yet."""
        return StreamHandle(self._loop, self._hub.stream(name))

    def status(self) -> StatusResponse:
        """What the hub says of itself: keys, clock, profiles, limits, version."""
        return self._loop.run(self._hub.status())

    def close(self) -> None:
        """Give the identity back and close the connections. `with` does it."""
        if not self._loop.is_closed:
            self._loop.run(self._hub.aclose())
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r}, identity={self.identity!r})"


class StreamHandle:
    """One stream of a connection."""

    def __init__(self, loop: LoopThread, stream: AsyncStream) -> None:
        self._loop, self._stream = loop, stream

    @property
    def name(self) -> str:
        """The name of the stream."""
        return self._stream.name

    def send(
        self,
        body: Body,
        *,
        schema: str | bytes | None = None,
        attachments: Sequence[Attach | bytes] = (),
        parent: bytes | None = None,
        expires: Moment | None = None,
    ) -> Sent:
        """Seal, send, and return when the receipt is verified. A dict or a list is sent as JSON."""
        return self._loop.run(
            self._stream.send(body, schema=schema, attachments=attachments, parent=parent, expires=expires)
        )

    def send_many(self, bodies: Iterable[Body], *, schema: str | bytes | None = None) -> list[Outcome]:
        """Send in batches. One outcome for each body, in order: a Sent, or the error that concerns this one alone."""
        return self._loop.run(self._stream.send_many(bodies, schema=schema))

    def read(
        self,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        from_seq: int | None = None,
        to_seq: int | None = None,
        author: str | bytes | None = None,
    ) -> Generator[StreamEntry, None, None]:
        """Every entry, or those of a time, a range or an author (a name that is known here, or a key); all verified."""
        return self._each(self._stream.read(since=since, until=until, from_seq=from_seq, to_seq=to_seq, author=author))

    def follow(
        self, *, from_seq: int | None = None, author: str | bytes | None = None
    ) -> Generator[StreamEntry, None, None]:
        """Entries as they are written, from now on or from a number on; ends when the generator is closed."""
        return self._each(self._stream.follow(from_seq=from_seq, author=author))

    def _each(self, entries: AsyncGenerator[StreamEntry, None]) -> Generator[StreamEntry, None, None]:
        async def next_entry() -> StreamEntry | None:
            return await anext(entries, None)

        with contextlib.ExitStack() as closing:
            closing.callback(self._end, entries)
            while (entry := self._loop.run(next_entry())) is not None:
                yield entry

    def _end(self, entries: AsyncGenerator[StreamEntry, None]) -> None:
        if not self._loop.is_closed:  # a reader that was left unfinished may outlive its connection
            self._loop.run(entries.aclose())

    def evidence(
        self,
        first: int | None = None,
        last: int | None = None,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        contents: Contents = "sealed",
    ) -> EvidenceBundle:
        """The entries `first` to `last`, or of a time, with all their proofs: one file for an outsider.

        `contents` says what an outsider gets to read: "sealed" nothing, "openings" each message with its proof,
        "plaintext" the text without one. Keys never get in.
        """
        return self._loop.run(self._stream.evidence(first, last, since=since, until=until, contents=contents))

    def kv(self) -> "KvState":
        """The stream as values by key, as they are now."""
        return KvState(self._loop, self._loop.run(self._stream.kv()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class KvState(KvView):
    """Values by key as they were when the log was read last, and what changes them."""

    def __init__(self, loop: LoopThread, view: AsyncKv) -> None:
        super().__init__()
        self._loop, self._view = loop, view
        self._entries = view._entries

    def refresh(self) -> Self:
        self._loop.run(self._view.refresh())
        self._entries = self._view._entries
        return self

    def put(self, key: str, value: Any, *, expires: Moment | None = None) -> Sent:
        """Set a value: a message of the stream, whose receipt is verified."""
        sent = self._loop.run(self._view.put(key, value, expires=expires))
        self._entries = self._view._entries
        return sent

    def delete(self, key: str) -> Sent:
        sent = self._loop.run(self._view.delete(key))
        self._entries = self._view._entries
        return sent


def connect(
    context: str | None = None,
    *,
    pin: str | None = None,
    identity: str | None = None,
    passphrase: str | None = None,
    passphrase_file: str | Path | None = None,
    ca_file: str | Path | None = None,
    token_file: str | Path | None = None,
    home: Home | str | Path | None = None,
    worker: bool = False,
    make_keys: bool | None = None,
) -> HubConnection:
    """Connect to the hub of the current context, of the context that is named, or at a URL with its key as `pin`.

    Address, pin, certificates, token, identity and keys are those of the context; what is given here outranks them. The
    keystore is opened by `passphrase`, a passphrase file, or the agent (`veen agent start`); nobody is asked.

    `worker` gives this process a client key of its own, under the same identity: any number of processes may then use
    one identity. `make_keys` says whether a missing identity and the keys of streams that nobody has written to are
    made: by default those of streams are, and an identity only if the context says so, as that of `veen hub start
    --dev` does.
    """
    pending = aconnect(
        context,
        pin=pin,
        identity=identity,
        passphrase=passphrase,
        passphrase_file=passphrase_file,
        ca_file=ca_file,
        token_file=token_file,
        home=home,
        worker=worker,
        make_keys=make_keys,
    )

    async def opened() -> AsyncHubConnection:
        return await pending

    loop = LoopThread()
    try:
        return HubConnection(loop, loop.run(opened()))
    except BaseException:
        loop.close()
        raise
