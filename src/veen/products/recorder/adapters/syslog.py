"""Syslog: RFC 5424 and RFC 3164 over TCP (both framings of RFC 6587), TLS (RFC 5425) and UDP (RFC 5426).

The protocol has neither positions nor acknowledgements. `_src.peer` has the address of the sender, since the host in a
record is the sender's claim. Over TCP a full spool holds the sender back; over UDP records that do not fit are counted,
and so are datagrams that the kernel drops (SO_RXQ_OVFL). A frame that is not syslog is recorded unchanged, with the
reason: nothing is dropped because of its form.
"""

import asyncio
import contextlib
import re
import socket
import ssl
import struct
import time
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from veen.client.errors import LocalError
from veen.core.canonical import Json
from veen.io.addresses import network_of
from veen.io.shares import Shares
from veen.products.recorder.events import UNKNOWN, SourceRecord, text_of, words_of
from veen.products.recorder.redaction import Redactor, redact
from veen.products.recorder.sink import SpoolSink

_PRI: Final = re.compile(rb"<(\d{1,3})>")
_5424: Final = re.compile(rb"1 (\S{1,64}) (\S{1,255}) (\S{1,48}) (\S{1,128}) (\S{1,32}) ", re.DOTALL)
_3164: Final = re.compile(rb"([A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d) (?:(\S{1,255}) )?", re.DOTALL)
_TAG: Final = re.compile(rb"([^\s:\[]{1,48})(?:\[([^\]]{1,128})\])?:? ?", re.DOTALL)
_SD_NAME: Final = re.compile(rb"[^\s=\]\"]{1,64}")
_FACILITIES: Final = (
    *("kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv", "ftp", "ntp"),
    *("audit", "alert", "clock", *(f"local{number}" for number in range(8))),
)
_SEVERITIES: Final = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")
_MAX_FRAME: Final = 1024 * 1024
_BATCH: Final = 256
_CHUNK: Final = 65_536
_MAX_CONNECTIONS: Final = 256
_ADDRESS_PERCENT: Final = 50  # of the connections, for one address
_FIRST_SECONDS: Final = 30.0  # for the first frame of a connection
_COUNT: Final = re.compile(rb"([1-9]\d{0,6}) (?=<)")
_COUNT_PART: Final = re.compile(rb"(?:[1-9]\d{0,6} ?)?")  # what may become a count
_LINE_END: Final = re.compile(rb"[\n\0]+")
_NO_FRAME: Final = re.compile(rb"[\r\n\0]*")
_SO_RXQ_OVFL: Final = 40  # Linux: how many datagrams the kernel dropped on this socket


@dataclass(frozen=True, slots=True)
class _Parsed:
    """All fields of a frame, and its time as written."""

    payload: dict[str, Json]
    time: int | None = None
    stamp: str | None = None


def parse_syslog(frame: bytes, *, now: int, peer: str, redactor: Redactor | None = None) -> SourceRecord:
    """Return any frame as a record; the caller sets `position`."""
    data = frame.rstrip(b"\r\n\0")
    pri = _PRI.match(data)
    if pri is None or int(pri[1]) > 191:
        parsed = _Parsed({"message": text_of(data), "malformed": "no PRI"})
    else:
        number, rest = int(pri[1]), data[pri.end() :]
        parsed = _rfc5424(rest) or _rfc3164(rest, peer, now)
        parsed.payload["facility"] = _FACILITIES[number >> 3]
        parsed.payload["severity"] = _SEVERITIES[number & 7]
    payload, openings = redact(redactor, parsed.payload, data)
    stamp, address = parsed.stamp, peer
    if redactor is not None:  # these two stand beside the payload
        stamp, address = redactor.name(stamp), redactor.name(peer) or UNKNOWN
    app, host, msgid = (words_of(payload.get(name)) for name in ("app", "host", "msgid"))
    return SourceRecord(
        subject=_user(payload) or app or address,
        event_type=msgid or app or "syslog",
        origin=host or address,
        time=now if parsed.time is None or stamp is None else parsed.time,
        payload=payload,
        position="",
        source_time=stamp,
        about={"peer": address},
        openings=openings,
    )


def _user(payload: Json) -> str | None:
    elements = payload.get("structured")
    for values in elements.values() if isinstance(elements, dict) else ():
        if isinstance(values, dict) and (user := words_of(values.get("user"))):
            return user
    return None


def _rfc5424(data: bytes) -> _Parsed | None:
    header = _5424.match(data)
    if header is None:
        return None
    stamp, host, app, procid, msgid = (_nil(part) for part in header.groups())
    elements, at = _parse_structured(data, header.end())
    if at is None:
        return None
    payload: dict[str, Json] = {"message": text_of(data[at:].removeprefix(b" ").removeprefix(b"\xef\xbb\xbf"))}
    for name, value in (("app", app), ("host", host), ("procid", procid), ("msgid", msgid)):
        if value:
            payload[name] = value
    if elements:
        payload["structured"] = elements
    return _Parsed(payload, _iso(stamp), stamp)


def _parse_structured(data: bytes, at: int) -> tuple[dict[str, dict[str, str]], int | None]:
    """Return STRUCTURED-DATA from `at` on and its end; None as the end if it is malformed."""
    elements: dict[str, dict[str, str]] = {}
    if data[at : at + 1] == b"-":
        return elements, at + 1
    while data[at : at + 1] == b"[":
        name = _SD_NAME.match(data, at + 1)
        if name is None:
            return elements, None
        values = elements.setdefault(_text(name[0]), {})
        at = name.end()
        while data[at : at + 1] == b" ":
            key = _SD_NAME.match(data, at + 1)
            if key is None or data[key.end() : key.end() + 2] != b'="':
                return elements, None
            at = key.end() + 2
            value = bytearray()
            while at < len(data) and data[at] != 0x22:
                if data[at] == 0x5C and data[at + 1 : at + 2] in (b'"', b"\\", b"]"):
                    at += 1
                value.append(data[at])
                at += 1
            if at >= len(data):
                return elements, None
            values[_text(key[0])] = _text(bytes(value))
            at += 1
        if data[at : at + 1] != b"]":
            return elements, None
        at += 1
    return (elements, at) if elements else (elements, None)


def _rfc3164(data: bytes, peer: str, now: int) -> _Parsed:
    """Parse the older form, which senders follow loosely: the rest of the line is the message."""
    payload: dict[str, Json] = {}
    stamp: str | None = None
    host, when = peer, None
    header = _3164.match(data)
    if header is not None:
        stamp, host = _text(header[1]), _text(header[2] or b"") or peer
        when = _bsd_time(stamp, now)
        data = data[header.end() :]
    tag = _TAG.match(data)
    if tag is not None and (tag[2] is not None or tag[0].rstrip().endswith(b":")):
        payload["app"] = _text(tag[1])
        if tag[2]:
            payload["procid"] = _text(tag[2])
        data = data[tag.end() :]
    payload["message"] = text_of(data)
    payload["host"] = host
    return _Parsed(payload, when, stamp)


def _bsd_time(stamp: str, now: int) -> int | None:
    """Parse a time without year and zone: UTC, in the year that is nearest to now."""
    year = time.gmtime(now).tm_year
    options = []
    for candidate in (year - 1, year, year + 1):
        with contextlib.suppress(ValueError):
            moment = datetime.strptime(f"{candidate} {stamp}", "%Y %b %d %H:%M:%S").replace(tzinfo=UTC)
            options.append(int(moment.timestamp()))
    return min(options, key=lambda seconds: abs(seconds - now), default=None)


def _iso(stamp: str) -> int | None:
    try:
        return max(int(datetime.fromisoformat(stamp).timestamp()), 0)
    except (ValueError, OverflowError):
        return None


def _nil(data: bytes) -> str:
    return "" if data == b"-" else _text(data)


def _text(data: bytes) -> str:
    return data.decode(errors="backslashreplace")


# --- framing ------------------------------------------------------------------------------------------------------


class BrokenCount(Exception):
    """A frame of a connection with octet counting does not begin with a count."""


class Framer:
    """Cuts the bytes of one connection into frames (RFC 6587). The first frame selects the framing.

    A connection uses octet counting if it begins with a count, a space and `<`; then each frame does. On any other
    connection a newline or a NUL ends a frame, whatever it contains: digits at the start of a line mean nothing, so one
    host behind a relay cannot swallow the records of others.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._searched = 0  # bytes of an unfinished line in which there is no end
        self._is_counted: bool | None = None  # None: no frame has begun yet

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the frames that end in this chunk. Raise BrokenCount if a count is missing."""
        buffer = self._buffer
        buffer += chunk
        at = 0
        try:
            while True:
                if self._is_counted is None:
                    at = _NO_FRAME.match(buffer, at).end()  # type: ignore[union-attr]  # it matches nothing as well
                    self._is_counted = _counts(buffer, at)
                    if self._is_counted is None:
                        return
                start, end, after = self._find_counted(at) if self._is_counted else self._line(at)
                if end is None:
                    at = start
                    return
                frame, at = bytes(buffer[start:end]), after
                self._searched = 0
                yield frame
        finally:
            del buffer[:at]

    def _find_counted(self, at: int) -> tuple[int, int | None, int]:
        """Return start, end and following offset of the frame at `at`; no end if more bytes are needed."""
        at = _NO_FRAME.match(self._buffer, at).end()  # type: ignore[union-attr]  # as above
        head = _COUNT.match(self._buffer, at)
        if head is None:
            if _COUNT_PART.fullmatch(self._buffer, at):
                return at, None, at
            raise BrokenCount
        if int(head[1]) > _MAX_FRAME:
            raise BrokenCount
        start = head.end()
        end = start + int(head[1])
        return (start, end, end) if len(self._buffer) >= end else (at, None, at)

    def _line(self, at: int) -> tuple[int, int | None, int]:
        if not self._searched:
            at = _NO_FRAME.match(self._buffer, at).end()  # type: ignore[union-attr]  # as above
        match = _LINE_END.search(self._buffer, at + self._searched)
        if match is not None and match.start() - at <= _MAX_FRAME:
            return at, match.start(), match.end()
        if len(self._buffer) - at >= _MAX_FRAME:
            return at, at + _MAX_FRAME, at + _MAX_FRAME
        self._searched = len(self._buffer) - at
        return at, None, at

    def rest(self) -> bytes:
        """Return the bytes left when the connection ends inside a frame, at most the size of one frame."""
        return bytes(self._buffer[:_MAX_FRAME]).strip(b"\r\n\0 ")


def _counts(buffer: bytearray, at: int) -> bool | None:
    """Return True if the frame at `at` has an octet count; None if more bytes are needed to tell."""
    head = _COUNT.match(buffer, at)
    if head is not None:
        return int(head[1]) <= _MAX_FRAME
    return None if _COUNT_PART.fullmatch(buffer, at) else False


async def frames(reader: asyncio.StreamReader) -> AsyncGenerator[list[bytes], None]:
    """Yield the frames of one connection in batches; the last one may be cut off."""
    framer = Framer()
    while chunk := await reader.read(_CHUNK):
        batch: list[bytes] = []
        try:
            for frame in framer.feed(chunk):
                batch.append(frame)
                if len(batch) == _BATCH:
                    yield batch
                    batch = []
        except BrokenCount:
            yield [*batch, framer.rest()]
            return  # where the next frame begins is not known: the sender connects again
        if batch:
            yield batch
    if rest := framer.rest():
        yield [rest]  # the connection ended inside a frame: what came is recorded


class SyslogTcp:
    """Listens for connections; with `tls` as RFC 5425.

    One address gets at most half of the connections, and a connection without a frame for 30 seconds is closed, so that
    silent connections block nobody.
    """

    kind = "syslog"

    def __init__(self, id: str, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> None:
        self.id, self._host, self.port, self._tls = id, host, port, tls
        self.ready = asyncio.Event()
        self._slots = Shares(_MAX_CONNECTIONS, _ADDRESS_PERCENT)
        self._count = 0  # frames since the agent began, of all connections

    async def run(self, sink: SpoolSink) -> None:
        began = int(time.time())
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            peername = writer.get_extra_info("peername")
            address = network_of(peername)
            if not self._slots.take(address, 1):
                writer.close()
                return
            try:
                await self._connection(reader, sink, str((peername or (UNKNOWN,))[0]), began)
            except (ConnectionError, ssl.SSLError, TimeoutError):
                pass
            except LocalError as exc:  # the disk is full: nothing would hold the sender back, so the source ends
                if not failed.done():
                    failed.set_exception(exc)
            finally:
                self._slots.give_back(address, 1)
                writer.close()

        server = await asyncio.start_server(serve, self._host, self.port, ssl=self._tls)
        self.port = server.sockets[0].getsockname()[1]
        self.ready.set()
        async with server:
            await failed

    async def _connection(self, reader: asyncio.StreamReader, sink: SpoolSink, peer: str, began: int) -> None:
        async with contextlib.aclosing(frames(reader)) as source, asyncio.timeout(_FIRST_SECONDS) as deadline:
            async for batch in source:
                deadline.reschedule(None)
                records = []
                for frame in batch:
                    self._count += 1
                    record = parse_syslog(frame, now=sink.now(), peer=peer, redactor=sink.redactor)
                    records.append(_at(record, f"{began}:{self._count}"))
                await sink.put(records)


def _at(record: SourceRecord, position: str) -> SourceRecord:
    return replace(record, position=position)


class SyslogUdp:
    """Listens for datagrams. The sender does not wait, so records that do not fit are counted as lost."""

    kind = "syslog"

    def __init__(self, id: str, host: str, port: int) -> None:
        self.id, self._host, self.port = id, host, port
        self.ready = asyncio.Event()

    async def run(self, sink: SpoolSink) -> None:
        loop = asyncio.get_running_loop()
        began, count, dropped = int(time.time()), 0, 0
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, _SO_RXQ_OVFL, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * 1024 * 1024)
            sock.bind((self._host, self.port))
            self.port = sock.getsockname()[1]
            self.ready.set()
            while True:
                await _readable(loop, sock)
                records: list[SourceRecord] = []
                overflow = dropped
                while len(records) < _BATCH:
                    try:
                        data, ancillary, _, address = sock.recvmsg(65_536, 64)
                    except BlockingIOError:
                        break
                    for level, kind, value in ancillary:
                        if level == socket.SOL_SOCKET and kind == _SO_RXQ_OVFL:
                            overflow = max(overflow, struct.unpack("I", value[:4])[0])
                    count += 1
                    peer = str(address[0])
                    record = parse_syslog(data, now=sink.now(), peer=peer, redactor=sink.redactor)
                    records.append(_at(record, f"{began}:{count}"))
                if overflow > dropped:
                    await sink.lost("dropped by the kernel: the socket buffer was full", overflow - dropped)
                    dropped = overflow
                if records:
                    await sink.offer(records)


async def _readable(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
    ready = loop.create_future()

    def on_readable() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(sock, on_readable)
    try:
        await ready
    finally:
        loop.remove_reader(sock)
