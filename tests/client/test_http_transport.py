"""HTTP to a hub: reused connections, HTTP/2 where nothing else is offered, certificates always checked, answers bounded
(D-67)."""

import asyncio
import contextlib
import ssl
import tracemalloc
from typing import Any

import h2.config
import h2.connection
import h2.events
import pytest
from tests.client.hubs import IMPATIENT, OPEN, RING, bodies, client_at, hub_at, person, pin_of, run
from tests.hub.test_http import certificate

from veen.client.client import Client
from veen.client.errors import (
    BadAnswer,
    CertificateUnverified,
    HubRefused,
    InsecureHttp,
    LocalError,
    OpenPermissions,
    TimedOut,
    Unreachable,
)
from veen.client.home import Home
from veen.client.transport.http import Http1, HttpTransport, _Connection
from veen.core.objects.tooling import StatusResponse, VersionRequest


@contextlib.asynccontextmanager
async def answering(*answers, tls=None):
    """A server that gives each connection the next of these bytes, or hangs for None; yields its port."""
    left = list(answers)
    tasks: set[Any] = set()

    async def serve(reader, writer):
        task = asyncio.current_task()
        tasks.add(task)
        try:
            await reader.readuntil(b"\r\n\r\n")
            answer = left.pop(0) if left else b""
            if answer is None:
                await asyncio.sleep(3600)
            writer.write(answer)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            tasks.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()


@contextlib.asynccontextmanager
async def transport(url, **options):
    transport = HttpTransport(url, **options)
    try:
        yield transport
    finally:
        await transport.aclose()


def http(body=b"", status="200 OK", *headers):
    head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


async def fails(error, *answers, **options):
    async with answering(*answers) as port, transport(f"http://127.0.0.1:{port}", **options) as hub:
        with pytest.raises(error) as caught:
            await hub.call("tooling/status", b"x")
        return caught.value


@pytest.mark.req("API-02")
def test_a_client_speaks_to_a_hub_over_a_socket(tmp_path):
    async def check():
        async with hub_at(tmp_path / "hub") as hub, transport(hub.url) as http1:
            for body in (b"", VersionRequest().to_bytes()):
                answer = await http1.call("tooling/status", body)
                assert StatusResponse.from_bytes(answer.body).hub_id == hub.identity.hub_id
                assert answer.headers["content-type"] == "application/cbor"
            refused = await http1.call("v1/nothing", b"\xa0")
            assert refused.status == 404
            async with client_at(HttpTransport(hub.url), pin_of(hub), person("alice"), tmp_path / "home") as client:
                await client.send("orders", b"hello")
                assert await bodies(client) == [b"hello"]

    run(check())


def test_one_connection_serves_many_calls():
    async def check():
        connections = 0
        tasks: set[Any] = set()

        async def serve(reader, writer):
            nonlocal connections
            connections += 1
            tasks.add(asyncio.current_task())
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                while True:
                    await reader.readuntil(b"\r\n\r\n")
                    writer.write(http(b"ok"))
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with transport(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as hub:
            for _ in range(20):
                assert (await hub.call("healthz")).body == b"ok"
        assert connections == 1
        server.close()
        await asyncio.gather(*tasks)
        await server.wait_closed()

    run(check())


def test_every_fault_of_the_way_has_a_name():
    async def check():
        await fails(TimedOut, None, timeout=0.2)
        await fails(Unreachable, b"")
        await fails(BadAnswer, b"SSH-2.0-OpenSSH\r\n\r\n")
        await fails(BadAnswer, http(bytes(2000)), max_answer_bytes=1000)
        endless = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"400\r\n" + bytes(0x400) + b"\r\n"
        await fails(BadAnswer, endless + b"400\r\n" + bytes(0x400) + b"\r\n0\r\n\r\n", max_answer_bytes=1500)
        async with transport("http://127.0.0.1:1") as nobody:
            with pytest.raises(Unreachable):
                await nobody.call("healthz")

    run(check())


def test_a_redirect_is_an_answer_and_is_not_followed():
    async def check():
        moved = http(b"", "302 Found", "Location: http://127.0.0.1:1/elsewhere")
        async with answering(moved) as port, transport(f"http://127.0.0.1:{port}") as hub:
            assert (await hub.call("tooling/status")).status == 302

    run(check())


@pytest.mark.parametrize("url", ["", "hub.example", "ftp://hub.example", "http://", "https:///x", "http://[::"])
def test_what_is_not_the_address_of_a_hub_is_said_so(url):
    with pytest.raises(LocalError):
        HttpTransport(url)


def test_a_bearer_token_comes_from_a_file_and_shows_nowhere(tmp_path):
    token = tmp_path / "token"
    token.write_text("a-reader-token-0123456789\n")
    token.chmod(0o600)

    async def check():
        settings = {**OPEN, "auth.read_token_files": str(token), "auth.open_status": "true"}
        async with hub_at(tmp_path / "hub", settings=settings) as hub:
            async with client_at(HttpTransport(hub.url), pin_of(hub), person("eve"), tmp_path / "eve") as client:
                await client.send("orders", b"anybody may write")
                with pytest.raises(HubRefused) as refused:
                    await bodies(client)
                assert refused.value.code == "E.UNAUTHORIZED"
            with_token = HttpTransport(hub.url, token_file=token)
            assert "token-01" not in repr(with_token)
            async with client_at(with_token, pin_of(hub), person("bob"), tmp_path / "bob", ring=RING) as client:
                assert await bodies(client) == [b"anybody may write"]

    run(check())
    for content in (b"", b"two tokens", b"\xff\xfe"):
        token.write_bytes(content)
        token.chmod(0o600)
        with pytest.raises(LocalError):
            HttpTransport("http://127.0.0.1:1", token_file=token)
    with pytest.raises(LocalError):
        HttpTransport("http://127.0.0.1:1", token_file=tmp_path / "missing")


def test_a_writer_that_may_not_read_needs_a_metrics_token_where_the_status_is_closed(tmp_path):
    for name in ("reader", "writer"):
        (tmp_path / name).write_text(f"the-token-of-a-{name}\n")
        (tmp_path / name).chmod(0o600)

    async def check():
        files = {
            "auth.read_token_files": str(tmp_path / "reader"),
            "auth.metrics_token_files": str(tmp_path / "writer"),
        }
        async with hub_at(tmp_path / "hub", settings={**OPEN, **files}) as hub:
            with pytest.raises(HubRefused) as refused:
                async with client_at(HttpTransport(hub.url), pin_of(hub), person("eve"), tmp_path / "eve"):
                    pass
            assert refused.value.code == "E.UNAUTHORIZED"
            transport = HttpTransport(hub.url, token_file=tmp_path / "writer")
            async with client_at(transport, pin_of(hub), person("ann"), tmp_path / "ann") as client:
                await client.send("orders", b"writing is a matter of capabilities")
                with pytest.raises(HubRefused) as refused:
                    await bodies(client)
                assert refused.value.code == "E.FORBIDDEN"

    run(check())


@pytest.mark.parametrize("url", ["http://hub.example", "http://10.0.0.7:37411", "http://[2001:db8::1]/x"])
def test_a_token_does_not_go_to_another_machine_over_plain_http(tmp_path, url):
    token = tmp_path / "token"
    token.write_text("a-reader-token-0123456789\n")
    token.chmod(0o600)
    with pytest.raises(InsecureHttp) as refused:
        HttpTransport(url, token_file=token)
    assert refused.value.code == "E.LOCAL.PLAIN_HTTP"
    assert "--insecure-http" in refused.value.hint
    HttpTransport(url, token_file=token, insecure_http=True)
    HttpTransport(url)  # without a secret there is nothing to lose
    for near in (
        "http://127.0.0.1:1",
        "http://localhost",
        "http://LOCALHOST.:80",
        "http://[::1]:1",
        "http://0.0.0.0:1",
    ):
        HttpTransport(near, token_file=token)


def test_a_connection_with_a_token_is_refused_before_anything_is_sent(tmp_path):
    """Client.connect passes the rule on, and nothing is looked up or opened before it is applied."""
    token = tmp_path / "token"
    token.write_text("a-reader-token-0123456789\n")
    token.chmod(0o600)

    async def check(**options):
        await Client.connect(
            "http://hub.invalid",
            pin="00" * 32,
            identity=person("alice"),
            home=Home.at(tmp_path / "home"),
            token_file=token,
            retry=IMPATIENT,
            **options,
        )

    with pytest.raises(InsecureHttp):
        run(check())
    with pytest.raises(Unreachable):
        run(check(insecure_http=True))


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602, 0o660])
def test_a_token_that_others_may_read_or_change_is_not_used(tmp_path, mode):
    token = tmp_path / "token"
    token.write_text("a-reader-token-0123456789\n")
    token.chmod(mode)
    with pytest.raises(OpenPermissions, match=f"mode {mode:04o}") as refused:
        HttpTransport("http://127.0.0.1:1", token_file=token)
    assert "chmod 600" in refused.value.hint
    assert "token-01" not in str(refused.value)
    token.chmod(0o400)
    HttpTransport("http://127.0.0.1:1", token_file=token)


# --- TLS --------------------------------------------------------------------------------------------------


@pytest.mark.req("API-02")
def test_certificates_are_always_checked(tmp_path):
    cert, key, issuer = certificate(tmp_path, "localhost")
    other, _, _ = certificate(tmp_path, "other.example")
    settings = {**OPEN, "tls.cert": str(cert), "tls.key": str(key), "tls.client_ca": str(cert)}
    client_cert, client_key, _ = certificate(tmp_path, "a-client", issuer)

    async def check():
        async with hub_at(tmp_path / "hub", settings=settings) as hub:
            url = hub.url.replace("127.0.0.1", "localhost")
            own = {"ca_file": cert, "client_cert": client_cert, "client_key": client_key}
            async with client_at(HttpTransport(url, **own), pin_of(hub), person("alice"), tmp_path / "home") as client:
                await client.send("orders", b"hello")
            for options in ({}, {"ca_file": other}):
                async with transport(url, **options) as hub_unknown:
                    with pytest.raises(CertificateUnverified):
                        await hub_unknown.call("tooling/status")
            async with transport(hub.url, ca_file=cert) as wrong_name:  # an address is not the name in the certificate
                with pytest.raises(CertificateUnverified):
                    await wrong_name.call("tooling/status")

    run(check())
    with pytest.raises(LocalError):
        HttpTransport("https://localhost", ca_file=tmp_path / "missing")


async def speak_h2(reader, writer, spoken):
    """A server that knows HTTP/2 only, and answers every request with its path."""
    connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="utf-8"))
    connection.initiate_connection()
    writer.write(connection.data_to_send())
    paths: dict[int, Any] = {}
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            for event in connection.receive_data(data):
                if isinstance(event, h2.events.RequestReceived):
                    paths[event.stream_id] = dict[Any, Any](event.headers)[":path"]
                elif isinstance(event, h2.events.StreamEnded):
                    spoken.append(paths[event.stream_id])
                    connection.send_headers(event.stream_id, [(":status", "200")])
                    connection.send_data(event.stream_id, paths[event.stream_id].encode(), end_stream=True)
            writer.write(connection.data_to_send())
            await writer.drain()
    writer.close()


def tls_server(tmp_path, protocols):
    """The certificate for localhost, and a server's context with it that offers these protocols."""
    cert, key, _ = certificate(tmp_path, "localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    context.set_alpn_protocols(protocols)
    return cert, context


def test_http1_over_tls_keeps_its_connections_even_if_the_server_prefers_http2(tmp_path):
    """A head and a small body are one record; the HTTP library has no part in it."""
    cert, context = tls_server(tmp_path, ["h2", "http/1.1"])

    async def check():
        tasks: set[Any] = set()
        pieces: list[bytes] = []

        async def serve(reader, writer):
            tasks.add(asyncio.current_task())
            with contextlib.suppress(OSError):
                while data := await reader.read(1 << 16):
                    pieces.append(data)
                    writer.write(http(data.partition(b"\r\n\r\n")[2]))
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        async with transport(f"https://localhost:{port}", ca_file=cert) as hub:
            for number in range(20):
                assert (await hub.call("v1/submit", b"%d" % number)).body == b"%d" % number
            assert len(tasks) == 1
            assert len(pieces) == 20
            answers = await asyncio.gather(*(hub.call("v1/submit", b"%d" % number) for number in range(200)))
            assert [answer.body for answer in answers] == [b"%d" % number for number in range(200)]
            assert len(tasks) == 64
            assert isinstance(hub._carrier._carrier, Http1)
        server.close()
        await asyncio.gather(*tasks)
        await server.wait_closed()

    run(check())


def test_a_server_without_protocols_in_its_handshake_is_served_by_the_library(tmp_path):
    cert, context = tls_server(tmp_path, [])

    async def check():
        async with (
            answering(http(b"ok"), tls=context) as port,
            transport(f"https://localhost:{port}", ca_file=cert) as hub,
        ):
            assert (await hub.call("tooling/status", b"x")).body == b"ok"

    run(check())


@pytest.mark.parametrize("protocols", [["http/1.1"], []])
def test_faults_over_tls_have_the_same_names(tmp_path, protocols):
    cert, context = tls_server(tmp_path, protocols)

    async def fails(error, *answers, **options):
        async with (
            answering(*answers, tls=context) as port,
            transport(f"https://localhost:{port}", ca_file=cert, **options) as hub,
        ):
            with pytest.raises(error):
                await hub.call("tooling/status", b"x")

    async def check():
        await fails(TimedOut, None, timeout=0.5)
        await fails(Unreachable, b"")
        await fails(BadAnswer, b"SSH-2.0-OpenSSH\r\n\r\n")
        await fails(BadAnswer, http(bytes(2000)), max_answer_bytes=1000)
        async with answering(None) as port, transport(f"https://localhost:{port}", timeout=0.5) as plain:
            with pytest.raises(TimedOut):  # the other side never begins its part of the handshake
                await plain.call("healthz")
        async with transport("https://127.0.0.1:1") as nobody:
            with pytest.raises(Unreachable):
                await nobody.call("healthz")

    run(check())


def test_http2_is_spoken_where_the_server_offers_nothing_else(tmp_path):
    """Many calls at once share one connection."""
    cert, context = tls_server(tmp_path, ["h2"])

    async def check():
        spoken: list[str] = []
        tasks: list[Any] = []

        async def serve(reader, writer):
            tasks.append(asyncio.current_task())
            await speak_h2(reader, writer, spoken)

        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        async with transport(f"https://localhost:{port}", ca_file=cert) as hub:
            assert (await hub.call("first")).body == b"/first"
            answers = await asyncio.gather(*(hub.call(f"v1/{number}", b"x") for number in range(20)))
            assert [answer.body for answer in answers] == [b"/v1/%d" % number for number in range(20)]
        assert len(tasks) == 2  # with the one that asked for HTTP/1.1
        assert len(spoken) == 21
        server.close()
        await asyncio.gather(*tasks)
        await server.wait_closed()

    run(check())


def test_an_answer_in_tiny_chunks_takes_about_its_own_size():
    """A list of two-byte objects took 28 bytes for each byte that a hub sent."""
    size = 400_000

    async def scenario():
        connection = _Connection("hub", size)
        connection._waiting = asyncio.get_running_loop().create_future()
        connection.data_received(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        piece = b"2\r\nxy\r\n" * 1000
        tracemalloc.start()
        try:
            for _ in range(size // 2000):
                connection.data_received(piece)
            memory, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        connection.data_received(b"0\r\n\r\n")
        return memory, (await connection._waiting).body

    memory, body = asyncio.run(scenario())
    assert memory < 2 * size
    assert body == b"xy" * (size // 2)
