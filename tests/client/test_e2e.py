"""Real processes over real sockets: hubs and writers are killed midway; nothing is lost, doubled or shown (D-56)."""

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from tests.cli.hubprocess import HubProcess, running
from tests.client.hubs import ISSUER, QUICK, RING, person, run, token_for
from tests.client.proxy import RecordingProxy
from tests.client.writer import body_of

from veen.client.client import Client
from veen.client.errors import IdentityInUse
from veen.client.home import Home
from veen.client.identity.keyring import Keyring, StreamKeys
from veen.client.send.sealing import Attach
from veen.client.verify.pin import HubPin

SETTINGS = ("--port", "0", "--set", "engine.workers=0", "--set", f"admission.trusted_issuers={ISSUER.public.hex()}")
NAME = "ledger-of-the-secret-society"
LEDGER = StreamKeys.create(NAME)
ATTACHED = b"PLAINTEXT of an attachment " * 40


def port_of(hub):
    return int(hub.url.rsplit(":", 1)[1])


def everything_in(directory):
    return {path: path.read_bytes() for path in sorted(Path(directory).rglob("*")) if path.is_file()}


@pytest.mark.req("CLNT-01", "CLNT-02", "GEN-06", "PHDR-03", "GEN-35")
def test_a_hub_that_is_killed_and_restarted_loses_and_doubles_nothing_and_learns_nothing(tmp_path):
    count, kills = 60, (12, 31, 44)

    async def story(proxy, hubs):
        pin = HubPin.parse(hubs[-1].about["hub_pk"])
        ring = Keyring().with_keys(LEDGER)
        alice, bob = person("alice"), person("bob")
        writing = Client.connect(
            proxy.url, pin=pin, identity=alice, keyring=ring, home=Home.at(tmp_path / "alice"), retry=QUICK
        )
        reading = Client.connect(
            proxy.url, pin=pin, identity=bob, keyring=ring, home=Home.at(tmp_path / "bob"), retry=QUICK
        )
        async with await writing as writer, await reading as reader:
            await writer.authorize(token_for(alice.client_id, LEDGER.stream_id))
            followed = []

            async def follow():
                async for entry in reader.follow(NAME, from_seq=1):
                    followed.append(entry)
                    if len(followed) == count:
                        return

            follower = asyncio.create_task(follow())
            sent = []
            for number in range(count):
                killing = asyncio.gather(
                    *[asyncio.to_thread(restart, proxy, hubs, tmp_path / "hub") for kill in kills if kill == number]
                )
                attachments = [Attach(data=ATTACHED, name="PLAINTEXT.txt")] if number % 10 == 0 else []
                sent.append(await writer.send(NAME, body_of(number), attachments=attachments))
                await killing
            await follower
            assert [message.receipt.stream_seq for message in sent] == list(range(1, count + 1))
            assert [message.msg.prev_ack for message in sent] == list(range(count))
            assert [entry.msg_id for entry in followed] == [message.msg_id for message in sent]
            assert [entry.body for entry in followed] == [body_of(number) for number in range(count)]
            read = [entry async for entry in reader.read(NAME)]
            assert [entry.msg_id for entry in read] == [message.msg_id for message in sent]
            assert await reader.attachments.get(read[0], 0) == ATTACHED
            return writer.client_id, [message.msg_id for message in sent]

    hubs = [HubProcess(tmp_path / "hub", *SETTINGS)]
    try:
        with RecordingProxy() as proxy:
            proxy.target = port_of(hubs[-1])
            run(story(proxy, hubs))
            traffic = bytes(proxy.recorded)
    finally:
        hubs[-1].stop(signal.SIGKILL)
    assert len(traffic) > 60 * 500
    secrets = [b"PLAINTEXT", b"somebody", NAME.encode(), LEDGER.secret(), person("alice").client_key.key.seed]
    for where, data in {
        "traffic": traffic,
        **everything_in(tmp_path / "hub"),
        "log": hubs[-1].log.read_bytes(),
    }.items():
        for secret in secrets:
            assert secret not in data, where
            assert secret.hex().encode() not in data, where


def restart(proxy, hubs, data_dir):
    """kill -9, and a new process on the same directory and another port."""
    hubs[-1].stop(signal.SIGKILL)
    hubs.append(HubProcess(data_dir, *SETTINGS))
    proxy.target = port_of(hubs[-1])


def writer_process(url, hub_pk, home, total):
    return subprocess.Popen(
        [sys.executable, "-m", "tests.client.writer", url, hub_pk, str(home), str(total)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
    )


@pytest.mark.slow
def test_a_writer_that_is_killed_goes_on_where_it_was(tmp_path):
    """kill -9 at every stage of a message; what was written down is finished by the next process."""
    total = 40
    with running(tmp_path / "hub", *SETTINGS) as hub:
        for kill_after in (3, 4, 6, 7, None):
            writer = writer_process(hub.url, hub.about["hub_pk"], tmp_path / "home", total)
            try:
                assert writer.stdout is not None
                lines = 0
                for line in writer.stdout:
                    lines += not line.startswith("ready")
                    if kill_after is not None and lines == kill_after:
                        writer.kill()
                        break
                _, errors = writer.communicate(timeout=60)
                assert kill_after is not None or writer.returncode == 0, errors
            finally:
                writer.kill()
                writer.communicate()

        async def read():
            pin = HubPin.parse(hub.about["hub_pk"])
            async with await Client.connect(
                hub.url, pin=pin, identity=person("bob"), keyring=RING, home=Home.at(tmp_path / "bob"), mode="light"
            ) as reader:
                return [entry async for entry in reader.read("orders")]

        entries = run(read())
    assert Counter(entry.body for entry in entries) == Counter(body_of(number) for number in range(total))
    assert [entry.body for entry in entries] == [body_of(number) for number in range(total)]
    assert all(left.msg.client_seq + 1 == right.msg.client_seq for left, right in pairwise(entries))


@pytest.mark.slow
def test_two_processes_with_one_identity_get_a_clear_error(tmp_path):
    with running(tmp_path / "hub", *SETTINGS) as hub:
        first = writer_process(hub.url, hub.about["hub_pk"], tmp_path / "home", 10**6)
        try:
            assert first.stdout is not None
            assert first.stdout.readline().startswith("ready")

            async def second():
                pin = HubPin.parse(hub.about["hub_pk"])
                await Client.connect(hub.url, pin=pin, identity=person("alice"), home=Home.at(tmp_path / "home"))

            with pytest.raises(IdentityInUse) as caught:
                run(second())
            assert caught.value.pid == first.pid
        finally:
            first.kill()
            first.communicate()
