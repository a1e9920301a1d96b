"""The verbs of a connection, to be awaited: send, read, follow, evidence, kv. `blocking` has the same without await.

Values of programs: bodies of any kind, entries with time, author and body, and times as people write them.
"""

import asyncio
import contextlib
import json
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from veen.api.connecting import Connector, connector
from veen.api.evidence import EvidenceBundle
from veen.client.client import Client
from veen.client.errors import HubRefused, LocalError, UnknownStream
from veen.client.evidence_file import Contents
from veen.client.home import Home
from veen.client.identity.contacts import AuthorNames, ContactBook, ContactStore
from veen.client.identity.keyring import StreamRef
from veen.client.identity.stream_keys import StreamInUse
from veen.client.identity.workers import worker_client_ids
from veen.client.moments import parse_moment
from veen.client.read.reading import Entry
from veen.client.send.sealing import Attach, Draft
from veen.client.send.writing import Outcome, Sent
from veen.core.errors import ApiCode
from veen.core.labels import schema_id
from veen.core.objects.captoken import CapToken
from veen.core.objects.receipt import Receipt
from veen.core.objects.speaking import SPEAKING_SCHEMAS, AuthorKey
from veen.core.objects.tooling import StatusResponse
from veen.overlays.framework.schema import Draft as OverlayDraft
from veen.overlays.framework.stream import fold_events
from veen.overlays.kv import KvEntry, KvFold, delete, put

Body = Mapping[str, Any] | list[Any] | str | bytes
Moment = datetime | str | int
AuthorName = Callable[[Entry], str | None]

JSON_SCHEMA: Final = "veen.json.v1"  # a body that is one JSON value, in UTF-8


def draft_of(body: Body, schema: str | bytes | None = None, **details: Any) -> Draft:
    """Return a message: dicts and lists become JSON, text UTF-8, bytes stay as they are. Raise LocalError for other
    types."""
    if isinstance(body, bytes | bytearray | memoryview):
        data = bytes(body)
    elif isinstance(body, str):
        data = body.encode()
    elif isinstance(body, Mapping | list | tuple):
        try:
            data = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as exc:
            raise LocalError(f"the body is not JSON: {exc}") from exc
        schema = schema or JSON_SCHEMA
    else:
        raise LocalError(f"the body must be a dict, a list, text or bytes, not {type(body).__name__}")
    return Draft(body=data, schema=None if schema is None else schema_id(schema), **details)


def moment_of(value: Moment | None) -> int | None:
    """Return the seconds since 1970 of an aware datetime, of text such as "-1h" or ISO 8601, or of a number."""
    if value is None or type(value) is int:
        return value
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise LocalError(f"{value!r} has no time zone: use datetime.now(UTC) or .astimezone()")
        return max(int(value.timestamp()), 0)
    if not isinstance(value, str):
        raise LocalError(f"the time must be a datetime, text or a number, not {type(value).__name__}")
    try:
        return parse_moment(value, time.time())
    except ValueError as exc:
        raise LocalError(str(exc)) from exc


class StreamEntry:
    """One verified entry: its signatures, order and place in the log were checked. A value."""

    __slots__ = ("_name", "entry")

    def __init__(self, entry: Entry, name: AuthorName) -> None:
        self.entry, self._name = entry, name

    @property
    def seq(self) -> int:
        """Number of the entry in the log, from 1."""
        return self.entry.seq

    @property
    def time(self) -> datetime:
        """Time of admission, by the hub's clock."""
        return datetime.fromtimestamp(self.entry.receipt.hub_ts, UTC)

    @property
    def client_id(self) -> bytes:
        """Key that signed the entry."""
        return self.entry.msg.client_id

    @property
    def author(self) -> str:
        """Name of the author, if it is known here and its binding is in force; otherwise the key in hex."""
        return self._name(self.entry) or self.client_id.hex()

    @property
    def msg_id(self) -> bytes:
        """Hash that identifies the message."""
        return self.entry.msg_id

    @property
    def receipt(self) -> Receipt:
        """Receipt that the hub signed for the entry."""
        return self.entry.receipt

    @property
    def is_open(self) -> bool:
        """True if a key of the keyring opened the body."""
        return self.entry.event is not None

    @property
    def error(self) -> str | None:
        """Reason why the body cannot be read, although the entry is verified; None if it can be."""
        return self.entry.error

    @property
    def body(self) -> bytes:
        """Body of the entry; OpenError if no key of the keyring opens it."""
        return self.entry.body

    @property
    def text(self) -> str:
        """Body as text; LocalError if it is not UTF-8."""
        try:
            return self.body.decode()
        except UnicodeDecodeError as exc:
            raise LocalError(f"the body of entry {self.seq} is not UTF-8 text") from exc

    @property
    def json(self) -> Any:
        """Body decoded as JSON; LocalError if it is not JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as exc:
            raise LocalError(f"the body of entry {self.seq} is not JSON") from exc

    def __repr__(self) -> str:
        state = "opened" if self.is_open else self.error or "sealed"
        return f"StreamEntry(seq={self.seq}, time={self.time.isoformat()}, author={self.author[:16]!r}, {state})"

    def _repr_html_(self) -> str:
        return self.entry._repr_html_()


_STATEMENTS: Final = 8  # statements about client keys expected among the newest entries


class AsyncHubConnection:
    """A verified connection to one hub, as one identity. For any number of tasks of one event loop."""

    def __init__(self, source: Connector, client: Client) -> None:
        self._connector = source
        self._client = client
        self._workers: set[bytes] = set()  # client keys of the identity's workers, as of the last lookup
        self._strangers: set[bytes] = set()  # client keys that were looked up and are none of these
        self._book: ContactBook | None = None  # contacts, as of the first lookup of an author
        self._making = asyncio.Lock()  # held while keys of a stream are made

    @property
    def client(self) -> Client:
        """The underlying client of `veen.client`, for operations that have no verb here."""
        return self._client

    @property
    def url(self) -> str:
        """The address of the hub."""
        return self._connector.url

    @property
    def identity(self) -> str:
        """The name of the identity."""
        return self._connector.name

    @property
    def client_id(self) -> bytes:
        """The key that signs messages sent here."""
        return self._client.client_id

    @property
    def hub_pk(self) -> str:
        """The key to give to outsiders with evidence: the pinned root, or the oldest trusted key."""
        return self._client.pin.origin_text()

    def stream(self, name: str) -> "AsyncStream":
        """Return a stream by name. The first send makes its keys, if nobody has written to it yet."""
        return AsyncStream(self, name)

    async def status(self) -> StatusResponse:
        """Return the status of the hub: keys, clock, profiles, limits, version."""
        return await self._client.status()

    async def aclose(self) -> None:
        """Release the identity and close the connections. `async with` does it."""
        await self._client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r}, identity={self.identity!r})"

    # --- what streams use ------------------------------------------------------------------------------

    def author_name(self, stream: str, entry: Entry) -> str | None:
        """Return the name of an entry's author, if it is known: that of the identity, of its workers, or of a
        contact."""
        if self._book is None:
            self._book = ContactStore(self._connector.home).load()
        identity = self._connector.keystore.identity
        return AuthorNames(identity, self._book, lambda key: self._prove_author(stream, key), self._is_own)(entry).name

    def _is_own(self, client_id: bytes) -> bool:
        if client_id != self._client.client_id and client_id not in self._strangers | self._workers:
            self._workers = worker_client_ids(self._connector.home, self._connector.keystore.identity)
            if client_id not in self._workers:
                self._strangers.add(client_id)
        return client_id == self._client.client_id or client_id in self._workers

    def _prove_author(self, stream: str, client_id: bytes) -> list[AuthorKey]:
        try:
            proof = self._client.author(stream, client_id)
        except UnknownStream:  # a label without keys
            return []
        return [] if proof is None else [proof]

    async def ensure_keys(self, stream: str) -> None:
        """Make the keys of the stream if the keyring does not have them."""
        async with self._making:
            if not self.has_keys(stream):
                if not self._connector.make_keys:
                    raise UnknownStream(stream)
                await self._connector.new_keys(self._client, stream)

    def has_keys(self, stream: str) -> bool:
        """Return True if the keyring has the stream."""
        if StreamRef.parse(stream).label is not None:
            return True
        try:
            self._connector.keystore.secrets.keyring.for_stream(stream)
        except UnknownStream:
            return False
        return True

    async def token_for(self, client: Client, stream: str) -> CapToken | None:
        """Return the capability to write with; None if the hub requires none."""
        if not (await client.status()).capability_gating:
            return None
        keyring = self._connector.keystore.secrets.keyring
        return await client.token(keyring.for_stream(stream).stream_id)


class AsyncStream:
    """One stream of a connection."""

    def __init__(self, hub: AsyncHubConnection, name: str) -> None:
        self._hub, self.name = hub, name
        self._token: tuple[bytes, CapToken | None] | None = None  # the client key it is for, and the token

    async def send(
        self,
        body: Body,
        *,
        schema: str | bytes | None = None,
        attachments: Sequence[Attach | bytes] = (),
        parent: bytes | None = None,
        expires: Moment | None = None,
    ) -> Sent:
        """Seal and send a message; return once its receipt is verified. A dict or a list is sent as JSON."""
        draft = draft_of(body, schema, parent=parent, expires_at=moment_of(expires))

        async def work(client: Client) -> Sent:
            return await client.send(
                self.name,
                draft.body,
                schema=draft.schema,
                attachments=attachments,
                parent=draft.parent,
                expires_at=draft.expires_at,
                capability=await self._capability(client),
            )

        await self._hub.ensure_keys(self.name)
        return await work(self._hub.client)

    async def send_many(self, bodies: Iterable[Body], *, schema: str | bytes | None = None) -> list[Outcome]:
        """Send in batches. Return one outcome for each body, in order: a Sent, or the error of this body alone."""
        drafts = [draft_of(body, schema) for body in bodies]

        async def work(client: Client) -> list[Outcome]:
            return await client.send_many(self.name, drafts, capability=await self._capability(client))

        await self._hub.ensure_keys(self.name)
        return await work(self._hub.client)

    async def _capability(self, client: Client) -> CapToken | None:
        if self._token is None or self._token[0] != client.client_id:
            self._token = (client.client_id, await self._hub.token_for(client, self.name))
        return self._token[1]

    async def read(
        self,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        from_seq: int | None = None,
        to_seq: int | None = None,
        author: str | bytes | None = None,
        last: int | None = None,
    ) -> AsyncGenerator[StreamEntry, None]:
        """Yield verified entries: all, or those of a time, a range or an author (a known name, or a key).

        `last` limits them to the newest N.
        """
        if last is not None and last < 1:
            raise LocalError(f"last is {last}: it must be at least 1")
        if not await self._is_readable():
            return
        if last is not None and (since, until, from_seq, to_seq, author) == (None,) * 5:
            from_seq = await self._before_end(last + _STATEMENTS)
        entries = self._hub.client.read(
            self.name, since=moment_of(since), until=moment_of(until), from_seq=from_seq, to_seq=to_seq
        )
        async with contextlib.aclosing(self._select(entries, author)) as shown:
            if last is None:
                async for entry in shown:
                    yield entry
                return
            newest: deque[StreamEntry] = deque(maxlen=last)  # which ones these are is known when all were read
            async for entry in shown:
                newest.append(entry)
        for entry in newest:
            yield entry

    async def _before_end(self, count: int) -> int:
        """Return the number of the first of the last `count` entries, by the signed end of the log."""
        try:
            return max((await self._hub.client.checkpoint(self.name)).upto_seq - count + 1, 1)
        except HubRefused as exc:
            if exc.code != ApiCode.NOT_FOUND.code:
                raise
            return 1  # nobody wrote to it yet

    async def follow(
        self, *, from_seq: int | None = None, author: str | bytes | None = None
    ) -> AsyncGenerator[StreamEntry, None]:
        """Yield entries as they are written, from now on or from a number on, until the generator is closed."""
        await self._hub.ensure_keys(self.name)
        entries = self._hub.client.follow(self.name, from_seq=from_seq)
        async with contextlib.aclosing(self._select(entries, author)) as shown:
            async for entry in shown:
                yield entry

    async def _select(
        self, entries: AsyncGenerator[Entry, None], author: str | bytes | None
    ) -> AsyncGenerator[StreamEntry, None]:
        wanted = author.hex() if isinstance(author, bytes) else author
        async with contextlib.aclosing(entries):
            async for entry in entries:
                if entry.event is not None and entry.event.hdr.schema in SPEAKING_SCHEMAS:
                    continue  # a statement about a client key, which the client sends by itself
                shown = StreamEntry(entry, partial(self._hub.author_name, self.name))
                if wanted is None or wanted in (shown.author, shown.client_id.hex()):
                    yield shown

    async def _is_readable(self) -> bool:
        """Return False for a stream without keys that nobody has written to. Raise StreamInUse if somebody has."""
        if self._hub.has_keys(self.name):
            return True
        stream_id = StreamRef.parse(self.name).stream_id
        if stream_id is None or await self._hub.client.has_entries(stream_id):
            raise StreamInUse(self.name)
        return False

    async def evidence(
        self,
        first: int | None = None,
        last: int | None = None,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        contents: Contents = "sealed",
    ) -> EvidenceBundle:
        """Return the entries `first` to `last`, or those of a time, with all their proofs.

        `contents` selects what an outsider can read: "sealed" nothing, "openings" each message with its proof,
        "plaintext" the text without a proof. Keys are never exported.
        """
        client = self._hub.client
        file = await client.evidence(
            self.name,
            from_seq=first,
            to_seq=last,
            since=moment_of(since),
            until=moment_of(until),
            contents=contents,
        )
        return EvidenceBundle(file, self._hub.hub_pk)

    async def kv(self) -> "AsyncKv":
        """Return the stream as values by key, as they are now."""
        view = AsyncKv(self)
        await view.refresh()
        return view

    async def kv_entries(self) -> dict[str, KvEntry]:
        """Return the state of the KV overlay, folded from the whole log."""
        fold, events = KvFold(), []
        if await self._is_readable():
            async with contextlib.aclosing(self._hub.client.read(self.name)) as entries:
                events = [entry.event async for entry in entries if entry.event is not None]
        as_of = max([int(time.time()), *(event.ts for event in events)])
        return fold.view(fold_events(fold, events), as_of)

    async def send_draft(self, draft: OverlayDraft) -> Sent:
        """Send a message that an overlay has drafted."""
        message = Draft(body=draft.body, schema=draft.schema, parent=draft.parent_id, expires_at=draft.expires_at)
        return await self.send(message.body, schema=message.schema, parent=message.parent, expires=message.expires_at)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self._hub.url!r})"


class KvView(Mapping[str, Any]):
    """Values by key as of the last read of the log. A mapping; `refresh` reads again."""

    def __init__(self) -> None:
        self._entries: dict[str, KvEntry] = {}

    def __getitem__(self, key: str) -> Any:
        return self._entries[key].value.value

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({dict(self)!r})"


class AsyncKv(KvView):
    """A `KvView` with the methods that change it."""

    def __init__(self, stream: AsyncStream) -> None:
        super().__init__()
        self._stream = stream

    async def refresh(self) -> Self:
        self._entries = await self._stream.kv_entries()
        return self

    async def put(self, key: str, value: Any, *, expires: Moment | None = None) -> Sent:
        """Set a value by a message of the stream, and verify its receipt."""
        sent = await self._stream.send_draft(put(key, value, expires_at=moment_of(expires)))
        await self.refresh()
        return sent

    async def delete(self, key: str) -> Sent:
        sent = await self._stream.send_draft(delete(key))
        await self.refresh()
        return sent


class PendingConnection:
    """The result of `aconnect`: `async with veen.aconnect() as hub`, or `hub = await veen.aconnect()`."""

    def __init__(self, open_hub: Callable[[], Awaitable[AsyncHubConnection]]) -> None:
        self._open = open_hub
        self._hub: AsyncHubConnection | None = None

    def __await__(self) -> Generator[Any, None, AsyncHubConnection]:
        return self._open().__await__()

    async def __aenter__(self) -> AsyncHubConnection:
        self._hub = await self._open()
        return self._hub

    async def __aexit__(self, *_: object) -> None:
        if self._hub is not None:
            await self._hub.aclose()


def aconnect(
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
) -> PendingConnection:
    """Connect to a hub like `veen.connect`, for programs with an event loop."""
    place = home if isinstance(home, Home) or home is None else Home.at(Path(home).absolute())
    files = {"passphrase_file": passphrase_file, "ca_file": ca_file, "token_file": token_file}

    def resolve() -> Connector:
        return connector(
            context,
            pin=pin,
            identity=identity,
            passphrase=passphrase,
            options={name: None if path is None else str(path) for name, path in files.items()},
            home=place,
            worker=worker,
            make_keys=make_keys,
        )

    async def open_hub() -> AsyncHubConnection:
        source = await asyncio.to_thread(resolve)
        return AsyncHubConnection(source, await source.connect())

    return PendingConnection(open_hub)
