"""QUIC: what is on the wire, who is let in, what a client may hold of the hub, and answers without an end."""

import asyncio
import contextlib
import functools
import socket

import pytest
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic import events
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from tests.client.hubs import run
from tests.hub.test_http import certificate
from tests.transports.builders import hub_by, message_for, transport_by, url_of, world_of
from tests.transports.test_conformance import tails_of
from tests.waiting import eventually

from veen.client.errors import CertificateUnverified, ExtraMissing, LocalError, Unreachable
from veen.client.transport.opening import open_transport
from veen.client.transport.quic import QuicTransport
from veen.core import cbor
from veen.core.call_frames import RequestFrame, ResponseFrame
from veen.core.objects.envelopes import SUBMIT_PREFIX, ErrorEnvelope
from veen.core.objects.tooling import TailRequest
from veen.hub.process.config import ConfigError, load

pytestmark = pytest.mark.timeout(120)


class Raw(QuicConnectionProtocol):  # type: ignore[misc]  # its types come with an extra
    """A client of the test's own: streams as bytes, and what became of them."""

    def __init__(self, quic):
        super().__init__(quic)
        self.streams, self.ended, self.stopped, self.alpn, self.resumed = {}, set(), set(), None, None
        self.closed = None

    def quic_event_received(self, event):
        if isinstance(event, events.StreamDataReceived):
            self.streams.setdefault(event.stream_id, bytearray()).extend(event.data)
            if event.end_stream:
                self.ended.add(event.stream_id)
        elif isinstance(event, events.StopSendingReceived):
            self.stopped.add(event.stream_id)
        elif isinstance(event, events.HandshakeCompleted):
            self.alpn, self.resumed = event.alpn_protocol, event.session_resumed
        elif isinstance(event, events.ConnectionTerminated):
            self.closed = event

    def say(self, data, *, end=True, stream_id=None):
        stream_id = self._quic.get_next_available_stream_id() if stream_id is None else stream_id
        self._quic.send_stream_data(stream_id, data, end)
        self.transmit()
        return stream_id

    async def response(self, stream_id):
        await eventually(lambda: stream_id in self.ended or self.closed)
        return ResponseFrame.from_bytes(bytes(self.streams[stream_id]))


@contextlib.asynccontextmanager
async def raw_client(world, hub, *, alpn=("veen/1",), tickets=None, **settings):
    port = int(hub.transport_urls[0].rpartition(":")[2])
    configuration = QuicConfiguration(
        is_client=True,
        alpn_protocols=list(alpn) or None,
        server_name="localhost",
        cadata=world.cert.read_bytes(),
        **settings,
    )
    quic = QuicConnection(configuration=configuration, session_ticket_handler=tickets)
    transport, client = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: Raw(quic), remote_addr=("127.0.0.1", port)
    )
    try:
        client.connect(("127.0.0.1", port))
        yield client
    finally:
        client.close()
        await asyncio.sleep(0)
        if client._timer is not None:
            client._timer.cancel()
        transport.close()


def served(test, **settings):
    """Run `test(hub, world)` with a hub that is reached by QUIC."""

    async def check(tmp_path):
        async with world_of("quic", tmp_path) as world, hub_by("quic", world, tmp_path / "hub", **settings) as hub:
            await test(hub, world)

    return check


def listener_of(hub):
    return hub._transports._listening[0]


# --- the wire ------------------------------------------------------------------------------------------------


@pytest.mark.req("DR0-02")
def test_a_call_is_a_stream_that_the_client_ends_and_the_hub_answers(tmp_path):
    """001 spec-1 §30, D-113: endpoints mapped 1:1 over QUIC streams with TLS; [1, operation, request]."""

    async def check(hub, world):
        async with raw_client(world, hub) as client:
            await client.wait_connected()
            assert client.alpn == "veen/1"
            body = SUBMIT_PREFIX + message_for(hub).to_bytes()
            frame = cbor.encode([1, "v1/submit", body])
            stream_id = client.say(frame[:100], end=False)
            client.say(frame[100:], stream_id=stream_id)
            answer = cbor.decode(bytes(await answered(client, stream_id)))
            assert answer[:2] == [1, 200]
            async with transport_by("http", world, hub) as http:
                assert (await http.call("v1/submit", body)).status == 409
            again = client.say(frame)
            assert (await client.response(again)).status == 409
            assert again == stream_id + 4  # one stream for each call

    run(served(check)(tmp_path))


async def answered(client, stream_id):
    await eventually(lambda: stream_id in client.ended)
    return client.streams[stream_id]


def test_another_protocol_is_not_spoken_and_no_session_is_resumed(tmp_path):
    """0-RTT off: without a ticket there is nothing that could be replayed."""

    async def check(hub, world):
        tickets: list[object] = []
        async with raw_client(world, hub, alpn=("h3",)) as client:
            await eventually(lambda: client.closed)
        async with raw_client(world, hub, tickets=tickets.append) as client:
            await client.wait_connected()
            assert (await client.response(client.say(RequestFrame("healthz").to_bytes()))).status == 200
            assert client.resumed is False
        assert not tickets

    run(served(check)(tmp_path))


def test_a_wait_for_an_entry_keeps_its_stream_open_until_there_is_one(tmp_path):
    async def check(hub, world):
        async with transport_by("quic", world, hub) as transport:
            label = message_for(hub).label
            tail = TailRequest(label=label, from_seq=1, wait_sec=30).to_bytes()
            waiting = asyncio.create_task(transport.call("tooling/tail", tail, timeout=100))
            await eventually(lambda: tails_of(hub) == 1)
            assert (await transport.call("v1/submit", SUBMIT_PREFIX + message_for(hub).to_bytes())).status == 200
            assert message_for(hub).to_bytes() in (await waiting).body

    run(served(check)(tmp_path))


def test_events_come_on_a_stream_that_stays_open(tmp_path):
    """The server keeps the stream open; leaving the loop ends it at the hub as well."""

    async def check(hub, world):
        async with transport_by("quic", world, hub) as transport:
            label = message_for(hub).label
            received = b""
            stream = transport.stream(f"tooling/events?label={label.hex()}&from=1")
            async with contextlib.aclosing(stream):
                async for piece in stream:
                    received += piece
                    if b": connected" in received and b"id: " not in received:
                        await transport.call("v1/submit", SUBMIT_PREFIX + message_for(hub).to_bytes())
                    if b"id: 1\n" in received:
                        break
            await eventually(lambda: not listener_of(hub).calls)
            with pytest.raises(Exception, match="400"):
                async for _ in transport.stream("tooling/events?label=00"):
                    pass

    run(served(check)(tmp_path))


@pytest.mark.parametrize("kind", ["file", "nats"])
def test_other_transports_say_that_their_answers_have_an_end(kind, tmp_path):
    async def check():
        async with (
            world_of(kind, tmp_path) as world,
            hub_by(kind, world, tmp_path / "hub") as hub,
            transport_by(kind, world, hub) as transport,
        ):
            answer = await transport.call(f"tooling/events?label={'0' * 64}")
            assert answer.status == 501
            assert "tooling/tail" in ErrorEnvelope.from_bytes(answer.body).message

    run(check())


# --- trust ---------------------------------------------------------------------------------------------------


def test_a_certificate_that_is_not_trusted_or_of_another_name_is_refused(tmp_path):
    async def check(hub, world):
        other, _, _ = certificate(tmp_path / "other", "localhost")
        async with transport_by("quic", world, hub, ca_file=other) as transport:
            with pytest.raises(CertificateUnverified):
                await transport.call("healthz")
        url = hub.transport_urls[0]  # by its address, which is not in the certificate
        transport = open_transport(url, ca_file=world.cert)
        with pytest.raises(CertificateUnverified):
            await transport.call("healthz")
        await transport.aclose()
        transport = open_transport(url_of("quic", hub))  # the authorities of this machine
        with pytest.raises(CertificateUnverified):
            await transport.call("healthz")
        await transport.aclose()

    (tmp_path / "other").mkdir()
    run(served(check)(tmp_path))


def test_what_cannot_be_served_is_said_before_the_hub_starts(tmp_path):
    cert, key, _ = certificate(tmp_path, "localhost")
    flags = {"data_dir": str(tmp_path / "hub"), "quic.enabled": "true"}
    with pytest.raises(ConfigError, match=r"tls\.cert"):
        load(None, {}, flags)
    with pytest.raises(ConfigError, match="client certificates"):
        load(None, {}, {**flags, "tls.cert": str(cert), "tls.key": str(key), "tls.client_ca": str(cert)})

    async def check():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken_port:
            taken_port.bind(("127.0.0.1", 0))
            async with world_of("quic", tmp_path) as world:
                with pytest.raises(ConfigError, match="UDP port"):
                    async with hub_by("quic", world, tmp_path / "hub", quic__port=taken_port.getsockname()[1]):
                        pass

    run(check())


def test_a_new_certificate_is_in_force_after_a_reload(tmp_path):
    async def check(hub, world):
        async with transport_by("quic", world, hub) as transport:
            assert (await transport.call("healthz")).status == 200
        (tmp_path / "next").mkdir()
        cert, key, _ = certificate(tmp_path / "next", "localhost")
        world.cert.write_bytes(cert.read_bytes())
        world.key.write_bytes(key.read_bytes())
        hub.reload(hub.config)
        async with transport_by("quic", world, hub, ca_file=cert) as transport:
            assert (await transport.call("healthz")).status == 200

    run(served(check)(tmp_path))


# --- strangers -----------------------------------------------------------------------------------------------


def test_a_request_that_is_none_is_answered_before_it_is_complete(tmp_path):
    """Nothing of a body is awaited that would be refused; the client is asked to stop."""

    async def check(hub, world):
        async with raw_client(world, hub) as client:
            await client.wait_connected()
            heads = {
                b"\xff": 400,
                b"\x83\x02": 400,
                b"\x83\x01\x6ano/such/op\x58\x20": 404,
                b"\x83\x01\x69v1/submit\x5b" + (1 << 62).to_bytes(8, "big"): 413,
                b"\x83\x01\x69v1/stream\x1a": 400,
                b"\x83\x01\x69v1/stream\x5a" + (1 << 20).to_bytes(4, "big"): 413,
            }
            for head, status in heads.items():
                stream_id = client.say(head, end=False)
                assert (await client.response(stream_id)).status == status, head
                await eventually(functools.partial(client.stopped.__contains__, stream_id))
            cut = client.say(RequestFrame("v1/stream", bytes(50)).to_bytes()[:-1])
            assert (await client.response(cut)).status == 400
            empty = client.say(b"")
            assert (await client.response(empty)).status == 400
            assert (await client.response(client.say(RequestFrame("healthz").to_bytes()))).status == 200
        assert listener_of(hub).door.bodies.in_use == 0

    run(served(check)(tmp_path))


def test_bodies_that_never_end_are_given_back_with_their_connection(tmp_path):
    async def check(hub, world):
        door = listener_of(hub).door
        async with raw_client(world, hub) as client:
            await client.wait_connected()
            head = b"\x83\x01\x69v1/submit\x5a" + (1 << 20).to_bytes(4, "big")
            for _ in range(10):
                client.say(head, end=False)
            await eventually(lambda: door.bodies.in_use == 10 << 20)
            half = client.say(head, end=False)
            await eventually(lambda: door.bodies.in_use == 11 << 20)
            client._quic.reset_stream(half, 1)
            client.transmit()
            await eventually(lambda: door.bodies.in_use == 10 << 20)
        await eventually(lambda: door.bodies.in_use == 0)
        await eventually(lambda: listener_of(hub).connections.in_use == 0)

    run(served(check)(tmp_path))


def test_more_connections_than_there_may_be_get_no_answer_and_a_place_that_is_given_back_is_taken_again(tmp_path):
    async def check(hub, world):
        listener = listener_of(hub)
        async with raw_client(world, hub) as first:
            await first.wait_connected()
            async with raw_client(world, hub) as second:
                await second.wait_connected()
                async with raw_client(world, hub) as third:
                    with pytest.raises(TimeoutError):
                        await asyncio.wait_for(third.wait_connected(), 0.5)
                    assert (await first.response(first.say(RequestFrame("healthz").to_bytes()))).status == 200
        await eventually(lambda: listener.connections.in_use == 0)
        async with transport_by("quic", world, hub) as transport:
            assert (await transport.call("healthz")).status == 200

    run(served(check, quic__max_connections=2, listen__address_percent=100)(tmp_path))


def test_packets_that_are_no_quic_change_nothing(tmp_path):
    async def check(hub, world):
        port = int(hub.transport_urls[0].rpartition(":")[2])
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            for packet in (b"", b"x", bytes(1200), b"\xff" * 1200, b"\xc0\x00\x00\x00\x01" + bytes(1195)):
                stranger.sendto(packet, ("127.0.0.1", port))
        async with transport_by("quic", world, hub) as transport:
            assert (await transport.call("healthz")).status == 200
        await eventually(lambda: listener_of(hub).connections.in_use == 0)

    run(served(check)(tmp_path))


def test_a_client_that_does_not_read_its_answers_harms_nobody_else(tmp_path):
    """Its flow control lets nothing through; what it holds is bounded, and given back when it is gone."""

    async def check(hub, world):
        async with transport_by("quic", world, hub, timeout=60) as transport:
            for seq in range(1, 4):
                raw = message_for(hub, seq=seq, ack=seq - 1, size=900_000).to_bytes()
                assert (await transport.call("v1/submit", SUBMIT_PREFIX + raw)).status == 200
            answers = hub._server.answers
            tail = TailRequest(label=message_for(hub).label, from_seq=1, wait_sec=0).to_bytes()
            async with raw_client(world, hub, max_data=2000, max_stream_data=2000) as deaf:
                await deaf.wait_connected()
                deaf._quic._write_connection_limits = lambda *_, **__: None  # grants nothing more
                deaf._quic._write_stream_limits = lambda *_, **__: None
                for _ in range(20):
                    deaf.say(RequestFrame("tooling/tail", tail).to_bytes())
                await eventually(lambda: answers.in_use > 20 << 20)
                raw = message_for(hub, seq=4, ack=3).to_bytes()
                assert (await transport.call("v1/submit", SUBMIT_PREFIX + raw)).status == 200
                assert answers.in_use <= answers.total
            await eventually(lambda: answers.in_use == 0)

    run(served(check)(tmp_path))


def test_a_cancelled_call_ends_at_the_hub_as_well(tmp_path):
    async def check(hub, world):
        async with transport_by("quic", world, hub) as transport:
            tail = TailRequest(label=message_for(hub).label, from_seq=1, wait_sec=30).to_bytes()
            waiting = asyncio.create_task(transport.call("tooling/tail", tail))
            await eventually(lambda: tails_of(hub) == 1)
            waiting.cancel()
            await eventually(lambda: tails_of(hub) == 0)
            assert (await transport.call("healthz")).status == 200

    run(served(check)(tmp_path))


def test_nobody_at_the_port_is_known_at_once(tmp_path):
    async def check():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        transport = QuicTransport(f"quic://127.0.0.1:{port}", timeout=1000)
        with pytest.raises(Unreachable):
            await transport.call("healthz")
        await transport.aclose()

    run(check())


@pytest.mark.parametrize("url", ["quic://host", "quic://host:1/path", "quic://:1", "quic://u:p@h:1", "quic://h:99999"])
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(LocalError):
        open_transport(url)


def test_without_the_extra_its_name_is_said(monkeypatch):
    def missing(*_):
        raise ImportError("aioquic")

    monkeypatch.setattr("veen.client.transport.quic.client_configuration", missing)
    with pytest.raises(ExtraMissing, match="quic"):
        QuicTransport("quic://127.0.0.1:1")
