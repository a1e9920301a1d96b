"""Syslog: RFC 5424 and RFC 3164 over TCP (both framings of RFC 6587), TLS (RFC 5425) and UDP (RFC 5426).

The protocol has no positions and no acknowledgement. Over TCP a full spool holds the sender back; over UDP what does
not fit is counted, and so is what the kernel drops (SO_RXQ_OVFL). A frame that is no syslog is recorded as it is, with
the reason: nothing that arrives is dropped for its form.
"""

import asyncio
import contextlib
import re
import socket
import ssl
import struct
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from veen.client.errors import LocalError
from veen.products.recorder.events import SourceRecord, text_of
from veen.products.recorder.sink import SpoolSink
from veen.query.canonical import Json

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
_MAX_CONNECTIONS: Final = 256
_SO_RXQ_OVFL: Final = 40  # Linux: how many datagrams the kernel dropped on this socket


@dataclass(frozen=True, slots=True)
class _Parsed:
    payload: dict[str, Json]
    subject: str
    event_type: str
    origin: str
    time: int | None
    stamp: str | None


def parse_syslog(frame: bytes, *, now: int, peer: str) -> SourceRecord:
    """Any frame as a record; `position` is left to the caller."""
    data = frame.rstrip(b"\r\n\0")
    pri = _PRI.match(data)
    if pri is None or int(pri[1]) > 191:
        parsed = _Parsed({"message": text_of(data), "malformed": "no PRI"}, peer, "syslog", peer, None, None)
    else:
        number, rest = int(pri[1]), data[pri.end() :]
        parsed = _rfc5424(rest, peer) or _rfc3164(rest, peer, now)
        parsed.payload["facility"] = _FACILITIES[number >> 3]
        parsed.payload["severity"] = _SEVERITIES[number & 7]
    return SourceRecord(
        subject=parsed.subject,
        event_type=parsed.event_type,
        origin=parsed.origin,
        time=now if parsed.time is None else parsed.time,
        payload=parsed.payload,
        position="",
        source_time=parsed.stamp,
    )


def _rfc5424(data: bytes, peer: str) -> _Parsed | None:
    header = _5424.match(data)
    if header is None:
        return None
    stamp, host, app, procid, msgid = (_nil(part) for part in header.groups())
    elements, at = _structured(data, header.end())
    if at is None:
        return None
    payload: dict[str, Json] = {"message": text_of(data[at:].removeprefix(b" ").removeprefix(b"\xef\xbb\xbf"))}
    for name, value in (("app", app), ("host", host), ("procid", procid), ("msgid", msgid)):
        if value:
            payload[name] = value
    if elements:
        payload["structured"] = elements
    user = next((values["user"] for values in elements.values() if "user" in values), None)
    return _Parsed(payload, user or app or peer, msgid or app or "syslog", host or peer, _iso(stamp), stamp)


def _structured(data: bytes, at: int) -> tuple[dict[str, dict[str, str]], int | None]:
    """STRUCTURED-DATA from `at` on, and where it ends; None if it is malformed."""
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
    """The older form, which senders follow loosely: whatever does not fit is message."""
    payload: dict[str, Json] = {}
    stamp: str | None = None
    host, when = peer, None
    header = _3164.match(data)
    if header is not None:
        stamp, host = _text(header[1]), _text(header[2] or b"") or peer
        when = _bsd_time(stamp, now)
        data = data[header.end() :]
    tag = _TAG.match(data)
    app = ""
    if tag is not None and (tag[2] is not None or tag[0].rstrip().endswith(b":")):
        app = _text(tag[1])
        payload["app"] = app
        if tag[2]:
            payload["procid"] = _text(tag[2])
        data = data[tag.end() :]
    payload["message"] = text_of(data)
    payload["host"] = host
    return _Parsed(payload, app or peer, app or "syslog", host, when, stamp)


def _bsd_time(stamp: str, now: int) -> int | None:
    """Without year or zone: taken as UTC, in the year that puts it nearest to now."""
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


async def frames(reader: asyncio.StreamReader) -> AsyncGenerator[bytes, None]:
    """Frames of one connection: octet counting where one begins with a digit, else up to a newline (RFC 6587)."""
    buffer = b""
    while True:
        frame, buffer = _cut(buffer)
        if frame is not None:
            if frame:
                yield frame
            continue
        chunk = await reader.read(65_536)
        if not chunk:
            if buffer.strip():
                yield buffer  # the connection ended inside a frame: what came is recorded
            return
        buffer += chunk


def _cut(buffer: bytes) -> tuple[bytes | None, bytes]:
    """One frame and the rest; None if more bytes are needed."""
    if not buffer:
        return None, buffer
    if buffer[:1].isdigit():
        head, space, rest = buffer[:11].partition(b" ")
        if space and head.isdigit() and int(head) <= _MAX_FRAME:
            size = int(head)
            start = len(head) + 1
            return (
                (buffer[start : start + size], buffer[start + size :])
                if len(buffer) >= start + size
                else (None, buffer)
            )
        if not space and len(head) < 8 and head.isdigit():
            return None, buffer
    line, newline, rest = buffer.partition(b"\n")
    if newline:
        return line, rest
    if len(buffer) >= _MAX_FRAME:
        return buffer[:_MAX_FRAME], buffer[_MAX_FRAME:]
    return None, buffer


class SyslogTcp:
    """Listens for connections; with `tls` as RFC 5425."""

    kind = "syslog"

    def __init__(self, id: str, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> None:
        self.id, self._host, self.port, self._tls = id, host, port, tls
        self.ready = asyncio.Event()
        self._slots = asyncio.Semaphore(_MAX_CONNECTIONS)
        self._count = 0  # frames since the agent began, of all connections

    async def run(self, sink: SpoolSink) -> None:
        began = int(time.time())
        failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            peer = str((writer.get_extra_info("peername") or ("unknown",))[0])
            try:
                async with self._slots, contextlib.aclosing(frames(reader)) as source:
                    async for frame in source:
                        self._count += 1
                        record = parse_syslog(frame, now=sink.now(), peer=peer)
                        await sink.put([_at(record, f"{began}:{self._count}")])
            except (ConnectionError, ssl.SSLError):
                pass
            except LocalError as exc:  # the disk is full: nothing would hold the sender back, so the agent ends
                if not failed.done():
                    failed.set_exception(exc)
            finally:
                writer.close()

        server = await asyncio.start_server(serve, self._host, self.port, ssl=self._tls)
        self.port = server.sockets[0].getsockname()[1]
        self.ready.set()
        async with server:
            await failed


def _at(record: SourceRecord, position: str) -> SourceRecord:
    return replace(record, position=position)


class SyslogUdp:
    """Listens for datagrams. The sender does not wait, so what does not fit is counted as lost."""

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
                    record = parse_syslog(data, now=sink.now(), peer=str(address[0]))
                    records.append(_at(record, f"{began}:{count}"))
                if overflow > dropped:
                    await sink.lost("dropped by the kernel: the socket buffer was full", overflow - dropped)
                    dropped = overflow
                if records:
                    await sink.offer(records)


async def _readable(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
    ready = loop.create_future()

    def arrived() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(sock, arrived)
    try:
        await ready
    finally:
        loop.remove_reader(sock)
