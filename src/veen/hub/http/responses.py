"""The bytes before a body: status line and headers, as few as a client needs."""

from email.utils import formatdate
from http import HTTPStatus
from typing import Final

from veen.hub.api.reply import Reply

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"
_REASONS: Final = {status.value: status.phrase for status in HTTPStatus}


def date_line() -> bytes:
    """Return the Date and Server headers, which all answers of one second share."""
    return f"date: {formatdate(usegmt=True)}\r\nserver: veen\r\n".encode()


def head_of(reply: Reply, date: bytes, *, keep_alive: bool, http10: bool) -> bytes:
    """Return status line and headers of a reply."""
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
    """Encode a piece of a body of unknown length. HTTP/1.0 has no chunks: the end of the connection ends its body."""
    return data if http10 else b"%x\r\n%b\r\n" % (len(data), data)
