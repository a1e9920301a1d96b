"""The bytes before a body: status lines and headers, as few as a client needs."""

from email.utils import formatdate
from http import HTTPStatus
from typing import Final

from veen.hub.api.reply import Reply

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"
_REASONS: Final = {status.value: status.phrase for status in HTTPStatus}


def date_line() -> bytes:
    """For all answers of one second."""
    return f"date: {formatdate(usegmt=True)}\r\nserver: veen\r\n".encode()


def head_of(reply: Reply, date: bytes, *, keep_alive: bool, http10: bool) -> bytes:
    lines = [f"HTTP/1.1 {reply.status} {_REASONS.get(reply.status, 'Unknown')}"]
    if reply.status != HTTPStatus.NO_CONTENT:
        lines.append(f"content-type: {reply.content_type}")
        if reply.stream is None:
            lines.append(f"content-length: {len(reply.body)}")
        elif not http10:
            lines.append("transfer-encoding: chunked")
        lines.append("x-content-type-options: nosniff")
    if all(name.lower() != "cache-control" for name, _ in reply.headers):
        lines.append("cache-control: no-store")
    lines += [f"{name.lower()}: {value}" for name, value in reply.headers]
    if not keep_alive:
        lines.append("connection: close")
    elif http10:
        lines.append("connection: keep-alive")
    return "\r\n".join(lines).encode() + b"\r\n" + date + b"\r\n"


def chunk(data: bytes, http10: bool) -> bytes:
    """A piece of a body whose length is not known; HTTP/1.0 knows no chunks and ends with the connection."""
    return data if http10 else b"%x\r\n%b\r\n" % (len(data), data)
