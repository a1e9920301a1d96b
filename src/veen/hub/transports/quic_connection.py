"""One QUIC connection of a hub: streams in, calls, responses out. Requires the extra `quic`."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.asyncio.server import QuicServer
from aioquic.buffer import Buffer
from aioquic.quic import events
from aioquic.quic.packet import QuicErrorCode, pull_quic_header

from veen.core import cbor
from veen.core.call_frames import MAX_HEADERS_BYTES, RequestFrame, RequestHead, request_head
from veen.core.errors import FormatError, MalformedError
from veen.hub.api.access import Principal
from veen.hub.api.reply import ApiError, Reply
from veen.hub.transports.door import frame_of
from veen.io.addresses import network_of
from veen.io.quic_link import ALPN, CANCELLED
from veen.io.shares import LARGE

if TYPE_CHECKING:
    from aioquic.quic.configuration import QuicConfiguration

    from veen.hub.transports.quic_listener import QuicListener

_MAX_STREAMS: Final = 256  # unanswered streams of one connection
_MAX_UNREAD: Final = 256 * 1024  # bytes of an answer without an end, before its next piece is made
_UNREAD_SEC: Final = 30.0  # without progress of a client that has an answer to read
_TICK_SEC: Final = 0.1


class _Incoming:
    """A request while it arrives. `reserved` is its part of the share for bodies, in bytes."""

    __slots__ = ("data", "head", "limit", "reserved")

    def __init__(self) -> None:
        self.data = bytearray()
        self.head: RequestHead | None = None
        self.limit = 0  # greatest number of bytes, once the head is known
        self.reserved = 0


class _Unread:
    """A response that the client has not acknowledged."""

    __slots__ = ("acked", "principal", "reply", "since")

    def __init__(self, principal: Principal, reply: Reply | None, since: float) -> None:
        self.principal, self.reply, self.since = principal, reply, since
        self.acked = 0  # bytes


class _Connection(QuicConnectionProtocol):  # type: ignore[misc]  # its types come with an extra
    """One client. Every field is owned by the event loop's thread.

    A stream is in `_incoming`, then in `_tasks`, then in `unread`, and then forgotten.
    """

    def __init__(self, quic: Any, stream_handler: Any = None, *, listener: "QuicListener") -> None:
        super().__init__(quic, stream_handler)
        self._listener, self._door = listener, listener.door
        self._address: str | None = None  # for the share of connections: None before the first packet, "" after the end
        self._incoming: dict[int, _Incoming] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self.unread: dict[int, _Unread] = {}
        self._ticker: asyncio.TimerHandle | None = None  # runs while something is unread

    # --- events ----------------------------------------------------------------------------------------

    def datagram_received(self, data: Any, addr: Any) -> None:
        if self._address is None:
            address = network_of(addr)
            if self._listener.draining or not self._listener.connections.take(address, 1):
                self._listener.http.api.services.observer.on_connection_refused()
                self._connection_terminated_handler()
                return  # no answer: the address of the caller is not validated yet
            self._address = address
        super().datagram_received(data, addr)

    def quic_event_received(self, event: Any) -> None:
        if isinstance(event, events.StreamDataReceived):
            self._on_data(event.stream_id, event.data, event.end_stream)
        elif isinstance(event, events.StreamReset | events.StopSendingReceived):
            self._forget(event.stream_id)
        elif isinstance(event, events.HandshakeCompleted) and event.alpn_protocol != ALPN:
            self.close(QuicErrorCode.CONNECTION_REFUSED, "ALPN veen/1 is expected")
        elif isinstance(event, events.ConnectionTerminated):
            self._on_end()

    def _on_end(self) -> None:
        for stream_id in [*self._incoming, *self._tasks, *self.unread]:
            self._forget(stream_id)
        if self._ticker is not None:
            self._ticker.cancel()
        address, self._address = self._address, ""
        if address is not None and address != "":
            self._listener.connections.give_back(address, 1)

    def _forget(self, stream_id: int) -> None:
        if (incoming := self._incoming.pop(stream_id, None)) is not None:
            self._release(incoming)
        if (task := self._tasks.pop(stream_id, None)) is not None:
            task.cancel()
        self._on_read(stream_id)

    # --- requests --------------------------------------------------------------------------------------

    def _on_data(self, stream_id: int, data: bytes, end: bool) -> None:
        if stream_id % 4:  # not a bidirectional stream that the client opened
            self._quic.stop_stream(stream_id, CANCELLED)
            return
        incoming = self._incoming.get(stream_id)
        if incoming is None:
            if stream_id in self._tasks or stream_id in self.unread:
                return  # the rest of a request that was refused already
            incoming = self._incoming[stream_id] = _Incoming()
            if len(self._incoming) + len(self._tasks) > _MAX_STREAMS:
                self._refuse(stream_id, self._door.too_many(self._principal()))
                return
        incoming.data += data
        if incoming.head is None and not self._read_head(stream_id, incoming):
            return
        if incoming.head is not None and len(incoming.data) > incoming.limit:
            fault = MalformedError("bytes follow the frame", "request frame")
            self._refuse(stream_id, self._door.of_fault(fault, self._principal()))
        elif end:
            del self._incoming[stream_id]
            self._start(stream_id, bytes(incoming.data))
            self._release(incoming)

    def _read_head(self, stream_id: int, incoming: _Incoming) -> bool:
        """Read the head if it is complete. Return False if the request was refused."""
        try:
            head = request_head(bytes(incoming.data))
        except FormatError as exc:
            self._refuse(stream_id, self._door.of_fault(exc, self._principal()))
            return False
        if head is None:
            return True
        refusal = self._door.check_head(head)
        if refusal is None and self._listener.draining:
            refusal = self._door.of_error(ApiError.unavailable("the hub is stopping"), self._principal())
        if refusal is None and head.body_bytes > LARGE:
            if self._door.bodies.take(self._address or "", head.body_bytes):
                incoming.reserved = head.body_bytes
            else:
                refusal = self._door.of_error(ApiError.unavailable("too much is being sent at once"), self._principal())
        if refusal is not None:
            self._refuse(stream_id, refusal)
            return False
        incoming.head = head
        incoming.limit = head.body_start + head.body_bytes + (MAX_HEADERS_BYTES if head.has_headers else 0)
        return True

    def _release(self, incoming: _Incoming) -> None:
        if incoming.reserved:
            self._door.bodies.give_back(self._address or "", incoming.reserved)
            incoming.reserved = 0

    def _refuse(self, stream_id: int, reply: Reply) -> None:
        """Answer before the request is complete, and ask the client to stop sending it."""
        incoming = self._incoming.pop(stream_id)
        self._release(incoming)
        self._quic.stop_stream(stream_id, CANCELLED)
        self._respond(stream_id, frame_of(reply).to_bytes(), self._principal(), None)

    def _principal(self) -> Principal:
        paths = self._quic._network_paths
        peer = paths[0].addr if paths else None
        denied = self._listener.http.is_denied(peer)
        return Principal(denied=denied, address=network_of(peer) or self._address or "")

    def _start(self, stream_id: int, data: bytes) -> None:
        task = asyncio.create_task(self._serve(stream_id, data))
        self._tasks[stream_id] = task
        self._listener.calls.add(task)
        task.add_done_callback(self._listener.calls.discard)

    async def _serve(self, stream_id: int, data: bytes) -> None:
        principal, operation = self._principal(), ""
        try:
            request = RequestFrame.from_bytes(data)
            operation = request.operation
            reply = await self._door.call(request, principal)
        except FormatError as exc:
            reply = self._door.of_fault(exc, principal)
        if reply.stream is not None:
            await self._stream(stream_id, reply, reply.stream, principal)
        elif self._door.take_answer(principal, reply, operation):
            self._tasks.pop(stream_id, None)
            self._respond(stream_id, frame_of(reply).to_bytes(), principal, reply)
        else:
            self._tasks.pop(stream_id, None)
            self._respond(stream_id, frame_of(self._door.unread(principal)).to_bytes(), principal, None)

    async def _stream(
        self, stream_id: int, reply: Reply, stream: AsyncGenerator[bytes, None], principal: Principal
    ) -> None:
        """Send an answer without a known end: a response frame with an empty body, then byte strings until the
        stream ends.

        No piece is made before most of the one before it is acknowledged.
        """
        head = frame_of(Reply(reply.status, b"", reply.content_type, reply.headers))
        self._send(stream_id, head.to_bytes(), principal, None, end=False)
        async with aclosing(stream):
            async for piece in stream:
                self._send(stream_id, cbor.bstr_head(len(piece)) + piece, principal, None, end=False)
                while self._unread_bytes(stream_id) > _MAX_UNREAD:  # noqa: ASYNC110 - the library tells nobody
                    await asyncio.sleep(_TICK_SEC)
        self._tasks.pop(stream_id, None)
        self._send(stream_id, b"", principal, None, end=True)

    # --- responses -------------------------------------------------------------------------------------

    def _respond(self, stream_id: int, data: bytes, principal: Principal, reply: Reply | None) -> None:
        self._send(stream_id, data, principal, reply, end=True)

    def _send(self, stream_id: int, data: bytes, principal: Principal, reply: Reply | None, *, end: bool) -> None:
        """Hand bytes to the connection. The room of `reply` is released once they are acknowledged."""
        if self._address == "":  # the connection has ended
            if reply is not None:
                self._door.release_answer(principal, reply)
            return
        if stream_id not in self.unread:
            self.unread[stream_id] = _Unread(principal, reply, self._loop.time())
        self._quic.send_stream_data(stream_id, data, end)
        self.transmit()
        if self._ticker is None:
            self._ticker = self._loop.call_later(_TICK_SEC, self._tick)

    def _on_read(self, stream_id: int) -> None:
        """Release the response: the client has acknowledged it, or cancelled it."""
        unread = self.unread.pop(stream_id, None)
        if unread is not None and unread.reply is not None:
            self._door.release_answer(unread.principal, unread.reply)

    def _unread_bytes(self, stream_id: int) -> int:
        stream = self._quic._streams.get(stream_id)
        return 0 if stream is None else len(stream.sender._buffer)

    def _tick(self) -> None:
        """Release acknowledged answers, and close the connection of a client that makes no progress."""
        self._ticker = None
        now = self._loop.time()
        for stream_id, unread in list(self.unread.items()):
            stream = self._quic._streams.get(stream_id)
            if stream is None or stream.sender.is_finished:
                self._on_read(stream_id)
            elif stream.sender._buffer_start != unread.acked or not stream.sender._buffer:
                unread.acked, unread.since = stream.sender._buffer_start, now
            elif now - unread.since > _UNREAD_SEC:
                self.close(QuicErrorCode.NO_ERROR, "the answers are not read")
                return
        if self.unread:
            self._ticker = self._loop.call_later(_TICK_SEC, self._tick)


class _Server(QuicServer):  # type: ignore[misc]  # as above
    """The server of the library, with a bound on connections that does not affect connected clients."""

    def __init__(self, listener: "QuicListener", configuration: "QuicConfiguration") -> None:
        super().__init__(
            configuration=configuration,
            create_protocol=lambda quic, stream_handler=None: _Connection(quic, stream_handler, listener=listener),
            retry=True,
        )
        self._listener = listener

    def datagram_received(self, data: Any, addr: Any) -> None:
        connections = self._listener.connections
        if connections.in_use >= connections.total or self._listener.draining:
            try:
                header = pull_quic_header(Buffer(data=data), host_cid_length=self._configuration.connection_id_length)
            except ValueError:
                return
            if header.destination_cid not in self._protocols:
                return  # no new connection
        super().datagram_received(data, addr)


def make_server(listener: "QuicListener", configuration: "QuicConfiguration") -> Any:
    return _Server(listener, configuration)
