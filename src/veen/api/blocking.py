"""The verbs without await: for scripts, notebooks, tests, and services that use threads."""

from pathlib import Path
from typing import Any, Self

from veen.api.hubs import AsyncHubConnection, AsyncKv, AsyncStream, KvView, Moment, aconnect
from veen.client.client import Client
from veen.client.home import Home
from veen.client.send.writing import Sent
from veen.client.sync import BlockingTwin, LoopThread, to_blocking, to_blocking_each


class HubConnection(BlockingTwin[AsyncHubConnection]):
    """A verified connection to one hub, as one identity. Thread-safe."""

    @property
    def client(self) -> Client:
        """The underlying client of `veen.client`. It lives in the event loop of this connection (`run`)."""
        return self._twin.client

    @property
    def url(self) -> str:
        """The address of the hub."""
        return self._twin.url

    @property
    def identity(self) -> str:
        """The name of the identity."""
        return self._twin.identity

    @property
    def client_id(self) -> bytes:
        """The key that signs messages sent here."""
        return self._twin.client_id

    @property
    def hub_pk(self) -> str:
        """The key to give to outsiders with evidence."""
        return self._twin.hub_pk

    def stream(self, name: str) -> "StreamHandle":
        """Return a stream by name. The first send makes its keys, if nobody has written to it yet."""
        return StreamHandle(self._loop, self._twin.stream(name))

    status = to_blocking(AsyncHubConnection.status)

    def close(self) -> None:
        """Release the identity and close the connections. `with` does it."""
        if not self._loop.is_closed:
            try:
                self._loop.run(self._twin.aclose())
            finally:
                self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r}, identity={self.identity!r})"


class StreamHandle(BlockingTwin[AsyncStream]):
    """One stream of a connection."""

    @property
    def name(self) -> str:
        """The name of the stream."""
        return self._twin.name

    send = to_blocking(AsyncStream.send)
    send_many = to_blocking(AsyncStream.send_many)
    read = to_blocking_each(AsyncStream.read)
    follow = to_blocking_each(AsyncStream.follow)
    evidence = to_blocking(AsyncStream.evidence)

    def kv(self) -> "KvState":
        """Return the stream as values by key, as they are now."""
        return KvState(self._loop, self._loop.run(self._twin.kv()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class KvState(KvView):
    """Values by key as of the last read of the log, with the methods that change them."""

    def __init__(self, loop: LoopThread, view: AsyncKv) -> None:
        super().__init__()
        self._loop, self._view = loop, view
        self._entries = view._entries

    def refresh(self) -> Self:
        self._loop.run(self._view.refresh())
        self._entries = self._view._entries
        return self

    def put(self, key: str, value: Any, *, expires: Moment | None = None) -> Sent:
        """Set a value by a message of the stream, and verify its receipt."""
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
    """Connect to the hub of the current context, of a named context, or at a URL with its key as `pin`.

    Address, pin, certificates, token, identity and keys come from the context; arguments override them. The keystore
    is opened by `passphrase`, a passphrase file, the agent (`veen agent start`) or the desktop keyring (`veen
    keystore remember`), never by a prompt.

    With `worker`, this process gets its own client key under the same identity, so any number of processes may use
    one identity. `make_keys` decides if a missing identity, and the keys of streams that nobody has written to, are
    made. Default: those of streams are, and an identity only if the context allows it, as that of `veen hub start
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

    async def open_hub() -> AsyncHubConnection:
        return await pending

    loop = LoopThread()
    try:
        return HubConnection(loop, loop.run(open_hub()))
    except BaseException:
        loop.close()
        raise
