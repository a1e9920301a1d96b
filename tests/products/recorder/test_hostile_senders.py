"""Senders that want to swallow, stall or shut out the records of others."""

import asyncio
import contextlib
import hmac
import http.client
import logging.handlers
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.hubs import run
from tests.products.recorder.sources import Taken, running
from tests.products.recorder.test_http_sources import JSON, sent
from tests.products.recorder.test_syslog import connected
from tests.waiting import eventually

from veen.io.web_listener import WebAnswer, WebListener
from veen.products.recorder.adapters.registry import SourceConfig, SourceInvalid, adapter_of
from veen.products.recorder.adapters.syslog import Framer, SyslogTcp, frames
from veen.products.recorder.adapters.webhook import Webhook

MANY = 300  # more connections than any listener takes


def framed(data, cut=7):
    framer = Framer()
    result = [frame for at in range(0, len(data), cut) for frame in framer.feed(data[at : at + cut])]
    return result + ([framer.rest()] if framer.rest() else [])


def test_a_newline_and_a_number_in_a_message_swallow_nothing():
    """One host of a relay writes `\\n60000 ` and the records of all others become its own."""
    lines = [b"<13>one", b"60000 ", b"60000 <13>x", b"<13>of another host"]
    assert framed(b"".join(line + b"\n" for line in lines)) == lines


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=8), st.integers(1, 9))
def test_the_first_frame_decides_the_framing_of_a_connection(messages, cut):
    counted = [b"<" + message for message in messages]
    assert framed(b"".join(b"%d %s" % (len(frame), frame) for frame in counted), cut) == counted
    lines = [b"<1>first", *(message.translate(None, b"\r\n\0 ") for message in messages)]
    assert framed(b"\n".join([*lines, b""]), cut) == [line for line in lines if line]


def test_a_count_is_followed_by_an_angle_bracket():
    assert framed(b"5 hello\n<13>next\n") == [b"5 hello", b"<13>next"]


def test_a_broken_count_is_recorded_and_ends_the_connection():
    async def story():
        reader = asyncio.StreamReader()
        reader.feed_data(b"7 <13>oneno count here")
        reader.feed_eof()
        return [batch async for batch in frames(reader)]

    assert run(story()) == [[b"<13>one", b"no count here"]]


def test_newlines_do_not_stall_the_loop():
    """64 KiB of newlines cost 4 GB of copies."""
    framer = Framer()
    for _ in range(200):
        assert list(framer.feed(b"\n" * 65_536)) == []
    chunk = b"x" * 65_536
    assert [len(frame) for _ in range(33) for frame in framer.feed(chunk)] == [1 << 20, 1 << 20]


def test_messages_of_pythons_syslog_handler_are_frames_of_their_own():
    """They end with NUL."""

    def log(port):
        handler = logging.handlers.SysLogHandler(("127.0.0.1", port), socktype=socket.SOCK_STREAM)
        try:
            for number in (1, 2, 3):
                handler.emit(logging.makeLogRecord({"msg": f"order {number}", "levelno": logging.INFO}))
        finally:
            handler.close()

    async def story():
        intake = Taken()
        async with running(SyslogTcp("net", "127.0.0.1", 0), intake) as adapter:
            await asyncio.to_thread(log, adapter.port)
            await eventually(lambda: len(intake.records()) == 3)
        assert intake.messages() == ["order 1", "order 2", "order 3"]
        assert [payload["_src"]["peer"] for payload in intake.payloads()] == ["127.0.0.1"] * 3

    run(story())


@contextlib.asynccontextmanager
async def silent(port, count):
    """Connections of one address that say nothing."""
    writers = []
    try:
        for _ in range(count):
            with contextlib.suppress(ConnectionError):
                writers.append((await asyncio.open_connection("127.0.0.1", port))[1])
        yield
    finally:
        for writer in writers:
            writer.close()


def test_silent_connections_do_not_shut_out_another_syslog_sender():
    async def story():
        intake = Taken()
        async with running(SyslogTcp("net", "127.0.0.1", 0), intake) as adapter, silent(adapter.port, MANY):
            await connected(adapter.port, b"<13>heard\n", local_addr=("127.0.0.2", 0))
            await eventually(intake.records)
            assert intake.messages() == ["heard"]
            assert intake.payloads()[0]["_src"]["peer"] == "127.0.0.2"

    run(story())


def test_a_connection_without_a_frame_is_closed(monkeypatch):
    monkeypatch.setattr("veen.products.recorder.adapters.syslog._FIRST_SECONDS", 0.05)

    async def story():
        async with running(SyslogTcp("net", "127.0.0.1", 0), Taken()) as adapter:
            reader, writer = await asyncio.open_connection("127.0.0.1", adapter.port)
            assert await reader.read() == b""
            writer.close()

    run(story())


def test_silent_connections_do_not_shut_out_another_http_sender():
    """The witness has the same listener."""

    def post(port):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60, source_address=("127.0.0.2", 0))
        connection.request("POST", "/", b"x")
        status = connection.getresponse().status
        connection.close()
        return status

    async def story():
        async def answer(request):
            assert request.peer == "127.0.0.2"
            return WebAnswer(204)

        listener = WebListener("127.0.0.1", 0, answer)
        task = asyncio.create_task(listener.run())
        await listener.ready.wait()
        async with silent(listener.port, MANY):
            assert await asyncio.to_thread(post, listener.port) == 204
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run(story())


def test_the_signature_of_github_is_checked():
    secret, body = b"It's a Secret to Everybody", b"Hello, World!"

    async def story():
        intake = Taken()
        async with running(Webhook("hook", "127.0.0.1", 0, "webhook", secret=secret), intake) as adapter:
            good = (
                "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"  # of GitHub's documentation
            )
            assert good == f"sha256={hmac.digest(secret, body, 'sha256').hex()}"
            for value, status in ((good, 204), (good[:-1] + "8", 401), ("", 401), ("sha1=x", 401)):
                headers = {**JSON, "x-github-event": "push", "x-hub-signature-256": value}
                assert (await sent(adapter.port, "/", body, headers))[0] == status
            assert (await sent(adapter.port, "/", body, JSON))[0] == 401
        assert [payload["_src"]["signature"] for payload in intake.payloads()] == ["checked"]
        intake = Taken()
        async with running(Webhook("hook", "127.0.0.1", 0, "webhook"), intake) as adapter:
            assert (await sent(adapter.port, "/", body, {**JSON, "x-hub-signature-256": good}))[0] == 204
        assert intake.payloads()[0]["_src"]["signature"] == "not checked"

    run(story())


def test_a_listener_beyond_loopback_needs_tls_and_a_credential(tmp_path):
    """As the hub does."""
    import subprocess

    key, cert, token = tmp_path / "key.pem", tmp_path / "cert.pem", tmp_path / "token"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout",
         key, "-out", cert, "-days", "2", "-subj", "/CN=h"],
        check=True, capture_output=True,
    )  # fmt: skip
    token.write_text("one\ntwo\n")
    token.chmod(0o600)
    tls = {"cert": str(cert), "key": str(key)}
    for kind in ("syslog", "otlp", "cloudevents", "webhook", "kubernetes"):
        credential = {"client_ca": str(cert)} if kind == "syslog" else {"token_file": str(token)}
        for options in ({}, tls, credential if kind != "syslog" else {}):
            with pytest.raises(SourceInvalid, match="not loopback"):
                adapter_of(SourceConfig("net", kind, {"listen": "0.0.0.0:1", **options}))
        allowed: tuple[dict[str, object], ...] = ({**tls, **credential}, {"open_to_anybody": True})
        for enough in allowed:
            adapter_of(SourceConfig("net", kind, {"listen": "0.0.0.0:1", **enough}))
        adapter_of(SourceConfig("net", kind, {"listen": "127.0.0.1:1"}))
    with pytest.raises(SourceInvalid, match="not loopback"):
        adapter_of(SourceConfig("net", "syslog", {"listen": "0.0.0.0:1", "transport": "udp"}))
