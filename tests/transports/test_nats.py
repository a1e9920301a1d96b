"""NATS: the subjects of DR0-03 and D-148, who may do what, a server that goes away, TLS, strangers."""

import asyncio
import re
import socket
import time

import nats
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.hubs import run
from tests.hub.test_http import certificate
from tests.transports.builders import hub_by, message_for, transport_by, url_of, world_of
from tests.transports.natsserver import NatsServer, nats_server
from tests.waiting import DEADLINE_SEC, eventually

from veen.client.errors import BrokerRefused, CertificateUnverified, HubRefused, InsecureHttp, LocalError, Unreachable
from veen.client.transport.calls import NO_RETRY, Calls
from veen.client.transport.opening import open_transport
from veen.core import cbor
from veen.core.call_frames import RequestFrame, ResponseFrame
from veen.core.objects.envelopes import SUBMIT_PREFIX, ErrorEnvelope
from veen.core.objects.receipt import Receipt
from veen.core.objects.tooling import RotateKeyRequest, VersionRequest
from veen.core.pow import solve
from veen.hub.process.config import ConfigError, load
from veen.hub.process.supervisor import Supervisor
from veen.hub.transports.nats_listener import NatsListener
from veen.io.nats_link import FrameParts, NatsAddress, PartsFault, hub_id16, split, subject_of

pytestmark = pytest.mark.timeout(120)
ARRAY, MAP = 4, 5


def connected(test, **settings):
    """Run `test(hub, world, link)` with a hub and a plain NATS client of the test's own."""

    async def check(tmp_path):
        async with world_of("nats", tmp_path) as world, hub_by("nats", world, tmp_path / "hub", **settings) as hub:
            link = await nats.connect(world.nats.url)
            try:
                await test(hub, world, link)
            finally:
                await link.close()

    return check


def hub_subject(hub, operation):
    return subject_of(hub_id16(hub.identity.hub_id), operation)


# --- the subjects ------------------------------------------------------------------------------------------


@pytest.mark.req("DR0-03")
def test_a_bare_msg_on_the_subject_of_its_label_is_answered_with_a_bare_receipt_or_an_error_map(tmp_path):
    """001 spec-1 §30, D-113: told apart by the major type of the first byte."""

    async def check(hub, world, link):
        message = message_for(hub)
        subject = f"submit.{message.label.hex()}"
        reply = await link.request(subject, message.to_bytes(), timeout=60)
        receipt = Receipt.from_bytes(reply.data)
        receipt.verify(hub.identity.current_pk)
        assert (receipt.stream_seq, receipt.leaf_hash) == (1, message.leaf_hash())
        assert reply.data[0] >> 5 == ARRAY
        again = await link.request(subject, message.to_bytes(), timeout=60)
        assert again.data[0] >> 5 == MAP
        error = ErrorEnvelope.from_bytes(again.data)
        assert (error.code, (error.detail or {}).get("stream_seq")) == ("E.SEQ", 1)

    run(connected(check)(tmp_path))


def test_defects_in_the_loops_of_nats_are_logged_and_counted_and_the_loops_go_on(tmp_path, monkeypatch):
    """They are under the one supervisor of everything beside the log."""
    monkeypatch.setattr(Supervisor.__init__, "__kwdefaults__", {"first_pause": 0.01, "longest_pause": 0.02})

    async def check(hub, world, link):
        assert {"nats", "nats tail"} <= set(hub.background.states)
        listener = next(transport for transport in hub._transports._listening if isinstance(transport, NatsListener))
        connect, tries = listener._connect, []

        async def failing():
            tries.append(1)
            if len(tries) < 3:
                raise ValueError("a defect")
            await connect()

        monkeypatch.setattr(listener, "_connect", failing)
        first = listener._link
        assert first is not None
        await first.close()
        await eventually(lambda: listener._link not in (None, first))
        assert hub.background.states["nats"].restarts == 2
        assert 'veen_background_restarts_total{task="nats"} 2' in hub.metrics_text().decode()
        message = message_for(hub)
        reply = await link.request(f"submit.{message.label.hex()}", message.to_bytes(), timeout=60)
        Receipt.from_bytes(reply.data).verify(hub.identity.current_pk)

    run(connected(check, nats__tail="true")(tmp_path))


def test_a_msg_under_the_subject_of_another_label_is_refused(tmp_path):
    """The server's permissions are by subject, so a subject must not carry anything else."""

    async def check(hub, world, link):
        message = message_for(hub)
        reply = await link.request(f"submit.{'0' * 64}", message.to_bytes(), timeout=60)
        assert ErrorEnvelope.from_bytes(reply.data).code == "E.BAD_REQUEST"
        for garbage in (b"", b"\xff", message.to_bytes()[:50], bytes(200)):
            reply = await link.request(f"submit.{message.label.hex()}", garbage, timeout=60)
            assert ErrorEnvelope.from_bytes(reply.data).code in ("E.BAD_REQUEST", "E.FORMAT", "E.SIZE")
        assert hub.sequencer.store.entry_count == 0

    run(connected(check)(tmp_path))


def test_proof_of_work_travels_as_a_header_of_the_message(tmp_path):
    """D-148: PoW and Cap travel as NATS headers of the same names."""

    async def check(hub, world, link):
        message = message_for(hub)
        subject, raw = f"submit.{message.label.hex()}", message.to_bytes()
        refused = await link.request(subject, raw, timeout=60)
        assert (ErrorEnvelope.from_bytes(refused.data).detail or {}).get("field") == "VEEN-PoW"
        proof = solve(SUBMIT_PREFIX + raw, 4).to_bytes().hex()
        reply = await link.request(subject, raw, timeout=60, headers={"VEEN-PoW": proof})
        assert Receipt.from_bytes(reply.data).stream_seq == 1

    run(connected(check, admission__pow_difficulty=4)(tmp_path))


def test_every_new_entry_is_published_to_its_tail_once_it_is_durable(tmp_path):
    async def check(hub, world, link):
        label, news = message_for(hub).label, []

        async def told(message):
            news.append(message.data)

        await link.subscribe(f"tail.{label.hex()}", cb=told)
        await link.flush()
        async with transport_by("nats", world, hub) as transport:
            messages = [message_for(hub, seq=seq, ack=seq - 1) for seq in range(1, 6)]
            for message in messages:
                await transport.call("v1/submit", SUBMIT_PREFIX + message.to_bytes())
        await eventually(lambda: len(news) == 5)
        for seq, (data, message) in enumerate(zip(news, messages, strict=True), start=1):
            end = cbor.item_end(data, 1)
            receipt = Receipt.from_bytes(data[1:end])
            receipt.verify(hub.identity.current_pk)
            assert (data[:1], receipt.stream_seq, data[end:]) == (b"\x82", seq, message.to_bytes())

    run(connected(check, nats__tail="true")(tmp_path))


def test_nothing_is_published_unless_the_operator_says_so(tmp_path):
    async def check(hub, world, link):
        news = []

        async def told(message):
            news.append(message)

        await link.subscribe("tail.>", cb=told)
        message = message_for(hub)
        await link.request(f"submit.{message.label.hex()}", message.to_bytes(), timeout=60)
        await link.request(hub_subject(hub, "version"), RequestFrame("version").to_bytes(), timeout=60)
        assert not news

    run(connected(check)(tmp_path))


@pytest.mark.parametrize(
    ("operation", "subject"),
    [
        ("v1/submit", "v1.submit"),
        ("tooling/status", "tooling.status"),
        ("tooling/openapi.json", "tooling.openapi.json"),
        (f"tooling/attachment/{'0' * 64}?a=b", "tooling.attachment"),
        ("outer/tile/0/x001/067.p/8", "outer"),
        ("tooling/policy?after=3", "tooling.policy"),
        ("//..//", "_"),
        ("a b>c*/d", "a_b_c_.d"),
    ],
)
def test_the_subject_of_an_operation_is_its_name_with_dots(operation, subject):
    assert subject_of("0123456789abcdef", operation) == f"veen.0123456789abcdef.{subject}"


# --- who may do what -----------------------------------------------------------------------------------------


def test_a_frame_of_another_operation_than_its_subject_names_is_refused(tmp_path):
    async def check(hub, world, link):
        frame = RequestFrame("tooling/rotate_key", RotateKeyRequest(overlap_sec=60).to_bytes()).to_bytes()
        reply = await link.request(hub_subject(hub, "tooling/status"), frame, timeout=60)
        assert ResponseFrame.from_bytes(reply.data).status == 403

    run(connected(check)(tmp_path))


def test_no_reply_is_sent_to_a_subject_of_a_hub(tmp_path):
    """Whoever may ask the hub must not have it publish where only the hub may."""

    async def check(hub, world, link):
        said = []

        async def told(message):
            said.append(message)

        for subject in ("tail.>", "submit.>"):
            await link.subscribe(subject, cb=told)
        label = message_for(hub).label.hex()
        frame = RequestFrame("version").to_bytes()
        for reply in (f"tail.{label}", "$SYS.REQ.SERVER.PING"):
            await link.publish(hub_subject(hub, "version"), frame, reply=reply)
        await link.request(hub_subject(hub, "version"), frame, timeout=60)  # those before it were handled
        assert not said

    run(connected(check)(tmp_path))


def shipped_config(request, hub16, port_line=""):
    """The configuration of docs/transports.md."""
    text = (request.config.rootpath / "docs" / "transports.md").read_text("utf-8")
    (block,) = re.findall(r"```nats-server.conf\n(.*?)```", text, re.DOTALL)
    block = re.sub(r"(?m)^(listen|max_payload):.*$", "", block).replace("veen.HUB.", f"veen.{hub16}.")
    for name in ("HUB", "WRITER", "READER"):
        block = block.replace(f"${name}_PASSWORD", f"{name.lower()}-password-0")
    return block


def secret(path, text):
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_the_shipped_configuration_lets_each_do_its_work_and_nothing_else(tmp_path, request):
    async def check():
        async with hub_by("http", None, tmp_path / "hub") as hub:
            hub16 = hub_id16(hub.identity.hub_id)
        files = {
            name: secret(tmp_path / f"{name}.credentials", f"{name}:{name}-password-0\n")
            for name in ("hub", "writer", "reader")
        }
        with nats_server(tmp_path / "nats", more=shipped_config(request, hub16)) as server:
            settings = {"nats__url": server.url, "nats__credentials_file": files["hub"], "nats__tail": "true"}
            async with hub_by("nats", None, tmp_path / "hub", **settings) as hub:
                url = url_of("nats", hub)
                writer = open_transport(f"{url}&credentials={files['writer']}", timeout=60)
                reader = open_transport(f"{url}&credentials={files['reader']}", timeout=60)
                stranger = open_transport(url, timeout=60)
                try:
                    submit = SUBMIT_PREFIX + message_for(hub).to_bytes()
                    assert (await writer.call("v1/submit", submit)).status == 200
                    assert (await reader.call("tooling/status", VersionRequest().to_bytes())).status == 200
                    with pytest.raises(BrokerRefused):
                        await reader.call("v1/submit", submit)
                    with pytest.raises(BrokerRefused):
                        await writer.call("tooling/rotate_key", RotateKeyRequest(overlap_sec=60).to_bytes())
                    with pytest.raises(BrokerRefused):
                        await stranger.call("healthz")
                    assert (await writer.call("healthz")).status == 200
                finally:
                    for transport in (writer, reader, stranger):
                        await transport.aclose()
            wrong = secret(tmp_path / "wrong", "hub:another-password\n")
            with pytest.raises(ConfigError, match="refuses"):
                async with hub_by("nats", None, tmp_path / "hub", **{**settings, "nats__credentials_file": wrong}):
                    pass

    run(check())


def test_credentials_that_others_may_read_or_that_are_none_are_not_used(tmp_path):
    async def check():
        async with world_of("nats", tmp_path) as world:
            path = tmp_path / "credentials"
            for text, mode in (("user:password", 0o644), ("no credentials", 0o600), ("a:b\nc:d", 0o600)):
                path.write_text(text)
                path.chmod(mode)
                transport = open_transport(f"{world.nats.url}/?hub={'0' * 16}&credentials={path}")
                with pytest.raises(LocalError):
                    await transport.call("healthz")
                with pytest.raises(ConfigError, match=r"credentials|private"):
                    async with hub_by("nats", world, tmp_path / "hub", nats__credentials_file=path):
                        pass

    run(check())


def test_secrets_go_to_another_machine_over_tls_only(tmp_path):
    token = secret(tmp_path / "token", "a-bearer-token-0000\n")

    async def check():
        with pytest.raises(InsecureHttp):
            open_transport(f"nats://nats.example/?hub={'0' * 16}", token_file=token)
        with pytest.raises(InsecureHttp):
            open_transport(f"nats://nats.example/?hub={'0' * 16}&credentials={token}")
        open_transport(f"nats+tls://nats.example/?hub={'0' * 16}", token_file=token)

    run(check())


# --- the server ------------------------------------------------------------------------------------------------


def test_a_server_that_lets_no_message_of_the_largest_size_pass_is_refused_at_the_start(tmp_path):
    """Its default equals the largest message exactly, so that message in a frame would not pass."""

    async def check():
        with nats_server(tmp_path / "nats", max_payload=1 << 20) as server:
            with pytest.raises(ConfigError, match="max_payload") as error:
                async with hub_by("nats", None, tmp_path / "hub", nats__url=server.url):
                    pass
            assert "max_payload" in error.value.remedy
            async with hub_by(
                "nats", None, tmp_path / "hub", nats__url=server.url, limits__max_msg_bytes=(1 << 20) - 4096
            ) as hub:
                assert hub.transport_urls

    run(check())


def test_without_a_hub_the_answer_comes_at_once(tmp_path):
    """NoResponders is E.UNAVAILABLE, long before the time of the call is up: the test would end otherwise."""

    async def check():
        async with world_of("nats", tmp_path) as world:
            transport = open_transport(f"{world.nats.url}/?hub={'0' * 16}", timeout=10_000)
            try:
                with pytest.raises(HubRefused) as error:
                    await Calls(transport, NO_RETRY).send("tooling/status", b"")
                assert (error.value.code, error.value.retry_after) == ("E.UNAVAILABLE", 1)
            finally:
                await transport.aclose()

    run(check())


def test_a_hub_begins_without_its_server_and_serves_once_it_is_there_and_again_after_it_was_gone(tmp_path):
    async def check():
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        server = NatsServer(tmp_path / "nats", port=port)
        async with (
            hub_by("nats", None, tmp_path / "hub", nats__url=f"nats://127.0.0.1:{port}") as hub,
            transport_by("nats", None, hub) as transport,
            transport_by("http", None, hub) as http,
        ):
            with pytest.raises(Unreachable):
                await transport.call("healthz")
            for _ in range(2):
                await asyncio.to_thread(server.start)
                try:
                    assert await is_up(transport)
                finally:
                    await asyncio.to_thread(server.stop)
                with pytest.raises(Unreachable):
                    await transport.call("healthz")
                assert (await http.call("healthz")).status == 200

    run(check())


async def is_up(transport):
    deadline = time.monotonic() + DEADLINE_SEC
    while time.monotonic() < deadline:
        try:
            if (await transport.call("healthz")).status == 200:
                return True
        except Unreachable:
            pass
        await asyncio.sleep(0.05)
    return False


def test_tls_is_checked_by_both_sides_and_cannot_be_talked_away(tmp_path):
    async def check():
        cert, key, _ = certificate(tmp_path, "localhost")
        other, _, _ = certificate(tmp_path, "other.example")
        tls = f'tls {{ cert_file: "{cert}", key_file: "{key}" }}'
        with nats_server(tmp_path / "nats", more=tls) as server:
            url = f"nats://localhost:{server.port}"
            async with hub_by("nats", None, tmp_path / "hub", nats__url=url, nats__ca_file=cert) as hub:
                async with transport_by("nats", None, hub, ca_file=cert) as transport:
                    assert (await transport.call("healthz")).status == 200
                async with transport_by("nats", None, hub, ca_file=other) as transport:
                    with pytest.raises(CertificateUnverified):
                        await transport.call("healthz")
            with pytest.raises(ConfigError, match="refuses"):
                async with hub_by("nats", None, tmp_path / "hub", nats__url=url, nats__ca_file=other):
                    pass
        with nats_server(tmp_path / "plain") as server:  # somebody in the place of a server with TLS
            url = f"nats+tls://127.0.0.1:{server.port}"
            with pytest.raises(ConfigError, match="TLS"):
                async with hub_by("nats", None, tmp_path / "hub", nats__url=url):
                    pass
            transport = open_transport(f"{url}/?hub={'0' * 16}")
            with pytest.raises(BrokerRefused, match="TLS"):
                await transport.call("healthz")
            await transport.aclose()

    run(check())


# --- strangers -------------------------------------------------------------------------------------------------


def test_garbage_and_parts_without_end_leave_the_hub_as_it_was(tmp_path):
    async def check(hub, world, link):
        subject = hub_subject(hub, "version")
        for data in (b"", b"\xff", bytes(1 << 20), RequestFrame("x" * 2000).to_bytes()):
            reply = await link.request(subject, data, timeout=60)
            assert ResponseFrame.from_bytes(reply.data).status in (400, 403, 404)
        for mark in ("0/2", "2/2", "1/0", "999/999", "x", "1/300"):
            reply = await link.request(subject, b"x", timeout=60, headers={"VEEN-Part": mark})
            assert ResponseFrame.from_bytes(reply.data).status == 400
        inbox = link.new_inbox()
        for number in range(100):  # first parts, whose others never come
            headers = {"VEEN-Part": "1/2"}
            await link.publish(subject, bytes(1 << 20), reply=f"{inbox}.{number}", headers=headers)
            if number % 8 == 0:  # the server would cut off whoever does not keep up
                await link.request(subject, b"x", timeout=60)
        async with transport_by("nats", world, hub) as transport:
            assert (await transport.call("healthz")).status == 200
        listener = hub._transports._listening[0]
        assert len(listener._assembling) <= 64
        assert listener._door.bodies.in_use <= listener._door.bodies.total
        listener._forget_parts(float("inf"))
        assert listener._door.bodies.in_use == 0

    run(connected(check)(tmp_path))


def test_a_client_that_does_not_read_its_answers_harms_nobody_else(tmp_path):
    async def check(hub, world, link):
        async with transport_by("nats", world, hub, timeout=60) as transport:
            for seq in range(1, 4):
                raw = message_for(hub, seq=seq, ack=seq - 1, size=900_000).to_bytes()
                assert (await transport.call("v1/submit", SUBMIT_PREFIX + raw)).status == 200
            deaf = socket.create_connection(("127.0.0.1", world.nats.port))
            try:
                label = message_for(hub).label
                body = b"\xa4\x01\x01\x02\x58\x20" + label + b"\x03\x01\x04\x00"
                frame = RequestFrame("tooling/tail", body).to_bytes()
                head = b'CONNECT {"verbose":false}\r\nSUB _INBOX.deaf 1\r\n'
                subject = hub_subject(hub, "tooling/tail").encode()
                ask = b"PUB %b _INBOX.deaf %d\r\n%b\r\n" % (subject, len(frame), frame)
                await asyncio.get_running_loop().run_in_executor(None, deaf.sendall, head + ask * 100)
                raw = message_for(hub, seq=4, ack=3).to_bytes()
                assert (await transport.call("v1/submit", SUBMIT_PREFIX + raw)).status == 200
                assert (await transport.call("healthz")).status == 200
                await eventually(lambda: not hub._transports._listening[0]._calls)
                assert hub._server.answers.in_use == 0
            finally:
                deaf.close()

    run(connected(check)(tmp_path))


def test_more_calls_than_may_run_are_told_to_come_back(tmp_path):
    async def check(hub, world, link):
        label = message_for(hub).label
        body = b"\xa4\x01\x01\x02\x58\x20" + label + b"\x03\x01\x04\x0a"  # waits for 10 s
        async with transport_by("nats", world, hub) as transport:
            calls = [asyncio.create_task(transport.call("tooling/tail", body)) for _ in range(3)]
            await eventually(lambda: hub._transports._listening[0]._door.calls == 2)
            first, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            assert [task.result().status for task in first] == [503]
            for call in calls:
                call.cancel()
            await asyncio.wait(calls)

    run(connected(check, nats__max_calls=2)(tmp_path))


@given(st.binary(max_size=300), st.integers(4097, 4200))
def test_a_frame_in_parts_is_put_together_again(data, max_payload):
    parts, whole = FrameParts(300), None
    for piece, headers in split(data, max_payload):
        assert whole is None
        assert len(piece) <= max_payload - 4096
        whole = parts.add(piece, headers)
    assert whole == data


@given(st.lists(st.tuples(st.binary(max_size=40), st.text(max_size=8) | st.sampled_from(["1/2", "2/2", "1/1", "1/3"]))))
def test_parts_of_a_stranger_are_bounded_or_refused(pieces):
    parts = FrameParts(64)
    for piece, mark in pieces:
        try:
            whole = parts.add(piece, {"VEEN-Part": mark})
        except PartsFault:
            return
        assert parts.size <= 64
        if whole is not None:
            return


@pytest.mark.parametrize("url", ["http://a", "nats://", "nats://u:p@host", "nats"])
def test_an_address_that_is_no_server_is_refused(url, tmp_path):
    with pytest.raises(ValueError, match="expected"):
        NatsAddress.of(url)
    with pytest.raises(ConfigError, match=r"nats\.url"):
        load(None, {}, {"data_dir": str(tmp_path), "nats.url": url})
