"""TLS handshakes that never end: bounded like connections, dropped in time, no obstacle to anybody else."""

import asyncio
import contextlib
import socket
import ssl

import pytest
from tests.hub.servers import LiveHub
from tests.hub.test_http import certificate, over_tls, trusting
from tests.waiting import until

from veen.hub.http.server import HttpSettings
from veen.io.tls import Tls

HELLO = bytes.fromhex("16030100c8010000c40303")  # how a client begins, if it went on


def loops():
    yield asyncio.new_event_loop
    with contextlib.suppress(ImportError):
        import uvloop

        yield uvloop.new_event_loop


class Server:
    """Starts hubs with one certificate, and knows how to trust it."""

    def __init__(self, directory, new_loop):
        self._directory, self._new_loop = directory, new_loop
        self._cert, self._key, _ = certificate(directory, "localhost")
        self.context = trusting(self._cert)

    def __call__(self, **settings):
        return LiveHub(
            self._directory / "data",
            tls=Tls(self._cert, self._key),
            settings=HttpSettings(**settings),
            new_loop=self._new_loop,
        )


@pytest.fixture(params=loops(), ids=lambda loop: loop.__module__.partition(".")[0])
def serve(request, tmp_path):
    return Server(tmp_path, request.param)


class HalfOpen:
    """Clients that connect, say a little, and wait."""

    def __init__(self, hub, count):
        self.sockets = [socket.create_connection((hub.host, hub.port), timeout=20) for _ in range(count)]
        for number, client in enumerate(self.sockets):
            with contextlib.suppress(OSError):  # refused already
                client.sendall(HELLO[: number % len(HELLO)])

    def closed_by_the_hub(self):
        count = 0
        for client in self.sockets:
            client.setblocking(False)
            try:
                count += client.recv(1) == b""
            except BlockingIOError:
                pass
            except OSError:
                count += 1
        return count

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for client in self.sockets:
            client.close()


def handshakes(hub):
    return hub.on_loop(lambda: hub.server.handshakes)


def test_half_open_handshakes_take_the_place_of_connections(serve):
    """No more than max_connections sockets, whatever their clients say; who is connected stays connected."""
    with serve(max_connections=20) as hub:
        raw = socket.create_connection((hub.host, hub.port), timeout=20)
        with serve.context.wrap_socket(raw, server_hostname="localhost") as early:
            until(lambda: hub.on_loop(lambda: len(hub.server._connections)) == 1)
            with HalfOpen(hub, 100) as clients:
                until(lambda: clients.closed_by_the_hub() == 100 - 19)
                assert handshakes(hub) == 19
                with pytest.raises(OSError):  # noqa: PT011 - reset or closed, by chance
                    over_tls(hub, serve.context)
                early.sendall(b"GET /healthz HTTP/1.1\r\nHost: hub\r\n\r\n")
                assert early.recv(1 << 16).startswith(b"HTTP/1.1 200")
            until(lambda: handshakes(hub) == 0)
            assert over_tls(hub, serve.context)[0] == 200


def test_a_handshake_that_takes_too_long_is_dropped(serve):
    with serve(max_connections=3, handshake_sec=0.3) as hub, HalfOpen(hub, 3) as clients:
        until(lambda: clients.closed_by_the_hub() == 3)
        until(lambda: handshakes(hub) == 0)
        assert over_tls(hub, serve.context)[0] == 200


def test_a_handshake_that_fails_leaves_nothing(serve):
    with serve(max_connections=2) as hub:
        for _ in range(10):
            with pytest.raises(ssl.SSLError):
                over_tls(hub, ssl.create_default_context())  # does not trust the hub
            with socket.create_connection((hub.host, hub.port), timeout=20) as client:
                client.sendall(b"GET / HTTP/1.1\r\n\r\n")  # not TLS at all
                with contextlib.suppress(OSError):
                    while client.recv(4096):
                        pass
        until(lambda: handshakes(hub) == 0)
        assert over_tls(hub, serve.context)[0] == 200


def test_a_hub_stops_although_somebody_never_finishes_the_handshake(serve):
    with serve() as hub, HalfOpen(hub, 5) as clients:
        until(lambda: handshakes(hub) == 5)
        hub.run(hub.server.stop(5))
        until(lambda: clients.closed_by_the_hub() == 5)
