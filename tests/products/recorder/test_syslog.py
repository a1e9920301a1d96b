"""Syslog: both formats, both framings, TCP, TLS and UDP; nothing that arrives is dropped for its form."""

import asyncio
import socket
import ssl
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.hubs import run
from tests.products.recorder.sources import Taken, running
from tests.waiting import eventually

from veen.client.errors import LocalError
from veen.products.recorder.adapters.syslog import SyslogTcp, SyslogUdp, frames, parse_syslog

NOW = 1_794_823_200  # 2026-11-16T10:00:00Z


def parsed(frame):
    return parse_syslog(frame, now=NOW, peer="10.0.0.1")


def test_rfc_5424_with_structured_data_and_escapes():
    """The second example of RFC 5424 §6.5, with escapes."""
    record = parsed(
        b'<165>1 2003-10-11T22:14:15.003Z mymachine.example.com evntslog - ID47 '
        b'[exampleSDID@32473 iut="3" eventSource="App\\"li\\]cation" user="alice"] \xef\xbb\xbfAn entry'
    )  # fmt: skip
    assert (record.subject, record.event_type, record.origin) == ("alice", "ID47", "mymachine.example.com")
    assert record.time == 1_065_910_455
    assert record.source_time == "2003-10-11T22:14:15.003Z"
    assert record.payload["structured"] == {
        "exampleSDID@32473": {"iut": "3", "eventSource": 'App"li]cation', "user": "alice"}
    }
    assert (record.payload["facility"], record.payload["severity"]) == ("local4", "notice")
    assert record.payload["message"] == "An entry"


def test_rfc_3164_takes_the_year_nearest_to_now():
    record = parsed(b"<34>Oct 11 22:14:15 mymachine su[231]: 'su root' failed for lonvick on /dev/pts/8")
    assert (record.subject, record.event_type, record.origin) == ("su", "su", "mymachine")
    assert record.payload["procid"] == "231"
    assert record.payload["message"].startswith("'su root' failed")
    assert record.time == 1_791_756_855  # 2026
    assert parsed(b"<34>Dec 31 23:59:59 h a: b").time < NOW + 180 * 86_400


SAMPLES = {
    "OpenSSH": b"<86>Nov 16 09:59:58 gw sshd[4711]: Failed password for invalid user admin from 192.0.2.7 port 42 ssh2",
    "Apache": b"<134>1 2026-11-16T09:59:59Z web apache - access - 192.0.2.9 - - [16/Nov/2026:09:59:59 +0000]"
    b' "GET / HTTP/1.1" 200 12',
    "HDFS": b"<14>Nov 16 09:59:59 dn1 hdfs: 081109 203518 143 INFO dfs.DataNode$DataXceiver: Receiving block"
    b" blk_-1608999687919862906 src: /10.250.19.102:54106",
    "Windows": b'<13>1 2026-11-16T09:59:59.123+01:00 DC1 Security 624 4625 [win@32473 user="CORP\\\\bob"] An account'
    b" failed to log on.",
}


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_of_public_formats_keep_every_character(name):
    record = parsed(SAMPLES[name])
    assert "malformed" not in record.payload
    assert record.payload["message"].encode() in SAMPLES[name]
    assert record.origin in ("gw", "web", "dn1", "DC1")


@given(st.binary(max_size=300))
def test_any_frame_gives_a_record(frame):
    record = parsed(frame)
    assert record.payload["message"] is not None


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=10), st.lists(st.integers(1, 40)), st.booleans())
def test_both_framings_survive_any_fragmentation(messages, cuts, counted):
    if counted:
        messages = [b"<" + message for message in messages]
        data = b"".join(b"%d %s" % (len(message), message) for message in messages)
    else:
        messages = [b"<1>" + message.translate(None, b"\r\n\0 ") for message in messages]
        data = b"".join(message + b"\n" for message in messages)

    async def story():
        reader = asyncio.StreamReader()
        rest = data
        for cut in cuts:
            if rest[:cut]:
                reader.feed_data(rest[:cut])
            rest = rest[cut:]
        reader.feed_data(rest)
        reader.feed_eof()
        return [frame async for batch in frames(reader) for frame in batch]

    assert run(story()) == messages


async def connected(port, data, **options):
    _, writer = await asyncio.open_connection("127.0.0.1", port, **options)
    writer.write(data)
    await writer.drain()
    writer.close()


def test_tcp_records_frames_of_many_connections():
    async def story():
        intake = Taken()
        async with running(SyslogTcp("net", "127.0.0.1", 0), intake) as adapter:
            await connected(adapter.port, b"<13>one\n<13>two\n")
            await connected(adapter.port, b"9 <13>three8 <13>four")
            await connected(adapter.port, b"<13>cut off in the midd")
            await eventually(lambda: len(intake.records()) == 5)
        assert set(intake.messages()) == {"one", "two", "three", "four", "cut off in the midd"}

    run(story())


def test_tls_takes_frames_as_rfc_5425(tmp_path):
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout",
         key, "-out", cert, "-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip

    async def story():
        intake = Taken()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        trust = ssl.create_default_context(cafile=cert)
        async with running(SyslogTcp("tls", "127.0.0.1", 0, tls=context), intake) as adapter:
            await connected(adapter.port, b"7 <13>one", ssl=trust)
            await connected(adapter.port, b"7 <13>two")  # without TLS: nothing to record
            await eventually(lambda: intake.records())
        assert intake.messages() == ["one"]

    run(story())


def test_a_udp_flood_is_recorded_or_counted():
    """lost + recorded = sent, with a spool that is too small and a socket buffer that may overflow."""
    sent = 3000

    async def story():
        intake = Taken(max_bytes=200_000)
        async with running(SyslogUdp("net", "127.0.0.1", 0), intake) as adapter:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                for number in range(sent):
                    sock.sendto(b"<13>flood %d" % number, ("127.0.0.1", adapter.port))
                    if number % 500 == 0:
                        await asyncio.sleep(0)

                def counted():
                    counts = intake.spool.counts()
                    return counts["in"] + counts["lost"]

                # The kernel says what it dropped with the next datagram that it delivers.
                extra = 0
                while counted() < sent + extra:
                    sock.sendto(b"<13>after", ("127.0.0.1", adapter.port))
                    extra += 1
                    await asyncio.sleep(0.01)
                await eventually(lambda: counted() == sent + extra)
        assert intake.spool.counts()["lost"] > 0
        assert intake.spool.counts()["in"] == len(intake.records())

    run(story())


def test_a_full_disk_ends_the_source_with_its_reason(monkeypatch):
    """Nothing would hold a TCP sender back, so the agent must not go on as if it recorded."""

    async def story():
        intake, adapter = Taken(), SyslogTcp("net", "127.0.0.1", 0)

        def full(*_, **__):
            raise LocalError("the spool cannot be used: database or disk is full")

        monkeypatch.setattr(intake.spool, "append", full)
        task = asyncio.create_task(adapter.run(intake.sink(adapter)))
        await adapter.ready.wait()
        await connected(adapter.port, b"<13>one\n")
        with pytest.raises(LocalError, match="disk is full"):
            await task

    run(story())
