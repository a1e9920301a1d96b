"""One QUIC connection of a client. Requires the extra `quic`."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic import events
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicErrorCode

from veen.client.errors import BadAnswer, CertificateUnverified, NetworkError, Unreachable
from veen.core import cbor
from veen.core.errors import MalformedError
from veen.io.quic_link import CANCELLED, IDLE_SEC

if TYPE_CHECKING:
    from aioquic.quic.configuration import QuicConfiguration

_PING_SEC: Final = IDLE_SEC / 3  # while a call waits, so that the connection is not idle
_CERTIFICATE_ALERTS: Final = frozenset((42, 43, 44, 45, 46, 48))  # of TLS: bad, unsupported, …, unknown authority


@dataclass(slots=True)
class _Receiving:
    """The answer on one stream, while it arrives."""

    max_bytes: int
    data: bytearray = field(default_factory=bytearray)
    ended: bool = False
    error: NetworkError | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def fail(self, error: NetworkError) -> None:
        self.error = self.error or error
        self.changed.set()


class QuicLink(QuicConnectionProtocol):  # type: ignore[misc]  # its types come with an extra
    """One connection to a hub. Every field is owned by the event loop's thread."""

    def __init__(self, quic: Any, url: str) -> None:
        super().__init__(quic)
        self._url = url
        self._receiving: dict[int, _Receiving] = {}
        self._pinger: asyncio.TimerHandle | None = None  # runs while a call waits
        self._fault: NetworkError | None = None  # the reason why the connection ended

    @property
    def is_open(self) -> bool:
        return self._fault is None

    # --- calls -----------------------------------------------------------------------------------------

    async def ask(self, frame: bytes, max_bytes: int) -> bytes:
        """Make one call: send the request and the end of the stream's half, and read the whole answer."""
        stream_id, receiving = self._begin(frame, max_bytes)
        try:
            while not receiving.ended:
                await self._more(receiving)
            return bytes(receiving.data)
        finally:
            self._end(stream_id, receiving)

    async def follow(self, frame: bytes, max_bytes: int) -> AsyncGenerator[bytes, None]:
        """Yield the response frame, then the byte strings after it as they arrive."""
        stream_id, receiving = self._begin(frame, max_bytes)
        is_first = True
        try:
            while True:
                item = _first_item(receiving.data)
                if item is None:
                    if receiving.ended:
                        return
                    await self._more(receiving)
                    continue
                del receiving.data[: len(item)]
                if is_first:
                    yield item
                else:
                    yield item[cbor.uint_at(item, 0, 0x40)[1] :]
                is_first = False
        except (MalformedError, ValueError, IndexError) as exc:
            raise BadAnswer(f"{self._url}: the answer is not a sequence of byte strings") from exc
        finally:
            self._end(stream_id, receiving)

    def _begin(self, frame: bytes, max_bytes: int) -> tuple[int, _Receiving]:
        if self._fault is not None:
            raise self._fault
        stream_id = self._quic.get_next_available_stream_id()
        receiving = self._receiving[stream_id] = _Receiving(max_bytes)
        self._quic.send_stream_data(stream_id, frame, True)
        self.transmit()
        if self._pinger is None:
            self._pinger = self._loop.call_later(_PING_SEC, self._ping)
        return stream_id, receiving

    async def _more(self, receiving: _Receiving) -> None:
        await receiving.changed.wait()
        receiving.changed.clear()
        if receiving.error is not None:
            raise receiving.error

    def _end(self, stream_id: int, receiving: _Receiving) -> None:
        """Forget a call; if it is abandoned, tell the hub."""
        del self._receiving[stream_id]
        if not receiving.ended and self._fault is None and stream_id in self._quic._streams:
            self._quic.stop_stream(stream_id, CANCELLED)
            if not self._quic._streams[stream_id].sender.is_finished:
                self._quic.reset_stream(stream_id, CANCELLED)
            self.transmit()

    def _ping(self) -> None:
        self._pinger = None
        if self._receiving and self._fault is None:
            self._quic.send_ping(0)
            self.transmit()
            self._pinger = self._loop.call_later(_PING_SEC, self._ping)

    # --- events ----------------------------------------------------------------------------------------

    def quic_event_received(self, event: Any) -> None:
        if isinstance(event, events.ConnectionTerminated):
            self._on_end(_fault_of(self._url, event.error_code, event.reason_phrase))
            return
        receiving = self._receiving.get(getattr(event, "stream_id", -1))
        if receiving is None:
            return
        if isinstance(event, events.StreamDataReceived):
            if len(receiving.data) + len(event.data) > receiving.max_bytes:
                receiving.fail(BadAnswer(f"{self._url}: an answer of more than {receiving.max_bytes} bytes"))
                return
            receiving.data += event.data
            receiving.ended = event.end_stream
            receiving.changed.set()
        elif isinstance(event, events.StreamReset):
            receiving.fail(Unreachable(f"{self._url}: the hub reset the stream before it answered"))

    def error_received(self, exc: Exception) -> None:
        """Handle the system's report that nobody listens at the address."""
        if not self._connected or isinstance(exc, ConnectionRefusedError):
            self._on_end(Unreachable(f"{self._url}: {getattr(exc, 'strerror', None) or exc}"))
            if self._connected_waiter is not None and not self._connected_waiter.done():
                self._connected_waiter.set_exception(ConnectionError())

    def _on_end(self, fault: NetworkError) -> None:
        self._fault = self._fault or fault
        if self._pinger is not None:
            self._pinger.cancel()
            self._pinger = None
        for receiving in self._receiving.values():
            receiving.fail(self._fault)
        if self._transport is not None:
            self._transport.close()
        timer: asyncio.TimerHandle | None = self.__dict__.get("_timer")
        if timer is not None:
            timer.cancel()

    def transmit(self) -> None:
        if self._transport is None or not self._transport.is_closing():
            super().transmit()

    async def shake_hands(self, address: Any) -> None:
        self.connect(address)
        try:
            await self.wait_connected()
        except ConnectionError as exc:
            raise self._fault or Unreachable(f"{self._url}: the handshake failed") from exc

    async def aclose(self) -> None:
        if self._fault is None:
            self.close()
            await asyncio.sleep(0)
            self._on_end(Unreachable(f"{self._url}: closed"))


async def open_quic(configuration: "QuicConfiguration", url: str, info: Any) -> QuicLink:
    """Open a connection whose certificate is verified. Raise NetworkError if that fails."""
    family, _, _, _, address = info
    quic = QuicConnection(configuration=replace(configuration))
    _, link = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: QuicLink(quic, url), remote_addr=address[:2], family=family
    )
    try:
        await link.shake_hands(address)
    except BaseException:
        await link.aclose()
        raise
    return link


def _fault_of(url: str, code: int, reason: str) -> NetworkError:
    alert = code - QuicErrorCode.CRYPTO_ERROR
    if alert in _CERTIFICATE_ALERTS:
        return CertificateUnverified(f"{url}: {reason or 'the certificate cannot be verified'}")
    return Unreachable(f"{url}: the connection ended before the hub answered{f' ({reason})' if reason else ''}")


def _first_item(data: bytearray) -> bytes | None:
    """Return the first CBOR item of `data` if it is complete, else None."""
    try:
        return bytes(data[: cbor.item_end(bytes(data), max_items=64)])
    except MalformedError as exc:
        if "ends in the middle" in str(exc):
            return None
        raise
