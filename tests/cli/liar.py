"""A server on loopback that is no honest hub: it answers with one lie, or passes some requests on to a real hub."""

import contextlib
import http.client
import socket
import threading
import time
from urllib.parse import urlsplit

from veen.core.objects.envelopes import ErrorEnvelope

CBOR = "application/cbor"
ESCAPES = "\x1b]0;owned\x07\x1b[2J\x1b[31mverified\x9b\u202e\u2028"
STEERING = ("\x1b", "\x07", "\x9b", "\u202e", "\u2028")
GREETINGS = ("/tooling/identity", "/tooling/status", "/tooling/key_rotations")  # what a client asks for first
_DRIP_SECONDS = 60  # how long a lie that takes time goes on: far longer than the time limit of a test


class Liar:
    """`lie(send, path)` writes the answer. Requests whose path is in `truths` go to the hub at `real`."""

    def __init__(self, lie, *, real=None, truths=()):
        self.lie, self._real, self._truths = lie, real, truths
        self.requests = []
        self._closing = threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._closing.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()

    def _accept(self):
        while not self._closing.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        with connection, contextlib.suppress(OSError):
            file = connection.makefile("rb")
            while line := file.readline():
                method, path, _ = line.decode("latin-1").split(" ", 2)
                headers = http.client.parse_headers(file)
                body = file.read(int(headers.get("Content-Length", 0)))
                self.requests.append(path)
                if path in self._truths:
                    connection.sendall(self._pass_on(method, path, headers, body))
                elif not self.lie(_Wire(connection, self._closing), path):
                    return

    def _pass_on(self, method, path, headers, body):
        parts = urlsplit(self._real)
        with contextlib.closing(http.client.HTTPConnection(parts.hostname, parts.port, timeout=30)) as connection:
            forwarded = {name: headers[name] for name in ("Accept", "Content-Type") if name in headers}
            connection.request(method, path, body or None, forwarded)
            result = connection.getresponse()
            return answer(result.read(), status=result.status, kind=result.headers["Content-Type"])


class _Wire:
    """Where a lie is written to."""

    def __init__(self, connection, closing):
        self._connection, self._closing = connection, closing

    def send(self, data):
        self._connection.sendall(data)

    def for_ever(self, data, pause=0.0):
        """Again and again, until the other side has enough or the test is over."""
        until = time.monotonic() + _DRIP_SECONDS
        while time.monotonic() < until and not self._closing.wait(pause):
            self._connection.sendall(data)


def answer(body, *, status=200, kind=CBOR):
    return f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def says(body, **options):
    """The lie that is always the same answer."""
    data = answer(body, **options)

    def lie(wire, _path):
        wire.send(data)
        return True

    return lie


def refuses(code="E.BAD_REQUEST", message=ESCAPES, status=400, **members):
    return says(ErrorEnvelope(code=code, message=message, **members).to_bytes(), status=status)


def _once(data):
    def lie(wire, _path):
        wire.send(data)
        return False

    return lie


def _endless(head, data, pause=0.0):
    def lie(wire, _path):
        wire.send(head)
        wire.for_ever(data, pause)
        return False

    return lie


_CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
_EMPTY_MAPS = 12 * 1024 * 1024

# Lies that cost the liar nothing and end at once.
QUICK = {
    "no_map": says(b"\x80"),
    "an_empty_map": says(b"\xa0"),
    "another_map": says(b"\xa3\x01\x01\x02\x41\x00\x03\xf6"),
    "json": says(b'{"ver": 1}', kind="application/json"),
    "a_login_page": says(b"<html>log in</html>", kind="text/html"),
    "nothing": says(b""),
    "an_error_with_escapes": refuses(),
    "an_error_with_a_strange_code": refuses(code=f"E.{ESCAPES}", request_id=ESCAPES, detail={"stage": ESCAPES}),
    "an_error_that_is_none": says(b"\xa1\x01\x02", status=500),
    "a_redirect": _once(b"HTTP/1.1 302 X\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"),
    "not_http": _once(b"\x00\x01\x02 no http\r\n\r\n"),
    "half_an_answer": _once(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc"),
    "deep_nesting": says(b"\x81" * 1_000_000),
}
# Lies that aim at time and memory.
HEAVY = {
    "empty_maps": says(b"\x9a" + _EMPTY_MAPS.to_bytes(4, "big") + b"\xa0" * _EMPTY_MAPS),
    "a_sequence_of_nothing": says(b"\x00" * _EMPTY_MAPS),
    "an_endless_body": _endless(_CHUNKED, b"10000\r\n" + b"\x00" * 65536 + b"\r\n"),
    "an_endless_header": _endless(b"HTTP/1.1 200 OK\r\nX: ", b"a" * 65536),
    "endless_headers": _endless(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n" * 1000),
}
# Lies that take longer than anybody waits: a byte at a time, and never enough of them.
SLOW = {
    "a_dripping_body": _endless(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b"\xa0", 0.05),
    "a_dripping_header": _endless(b"HTTP/1.1 200 OK\r\nX: ", b"a", 0.05),
    "silence": _endless(b"", b"", 0.05),
}
