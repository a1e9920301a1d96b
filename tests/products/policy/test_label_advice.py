"""Senders follow the class of a label: padding, expiry, rate (LCLASS0, 001 spec-2 §6.2)."""

import time

import pytest
from tests.cli.hubprocess import running
from tests.cli.overlay_people import Person
from tests.cli.talk import DEV
from tests.client.hubs import OPEN, RING, client_at, hub_at, person, pin_of, run

from veen.cli.shared.output import Exit
from veen.client.send.sealing import LabelAdvice
from veen.client.send.writing import Sent
from veen.client.transport.inprocess import InProcess
from veen.core.objects.msg import Msg
from veen.core.objects.profile import PRESETS


def size_of(person, stream, text, *options):
    data = bytes.fromhex(person.json("send", stream, text, *options, "--dry-run")["cbor"])
    return len(Msg.from_bytes(data).ciphertext)


class Fixed:
    """Advises the same for every label, and counts how often it was asked."""

    def __init__(self, **advice):
        self.asked, self._advice = 0, LabelAdvice(**advice)

    async def advice(self, client, keys, label):
        self.asked += 1
        return self._advice


@pytest.mark.req("LCL-02", "LCL-03")
def test_messages_are_padded_and_expire_as_the_class_of_their_label_says(tmp_path):
    async def story():
        async with hub_at(tmp_path / "hub", settings={**OPEN, "admission.profiles": "messaging,bulk"}) as hub:

            async def sent_with(name, **advice):
                advisor = Fixed(**advice) if advice else None
                who = person(name)
                async with client_at(
                    InProcess(hub.api), pin_of(hub), who, tmp_path / name, ring=RING, advisor=advisor
                ) as client:
                    sent = await client.send("orders", b"body")
                    await client.send("orders", b"another")
                    assert advisor is None or advisor.asked == 1
                    (entry,) = [e async for e in client.read("orders", from_seq=sent.seq, to_seq=sent.seq)]
                    return sent.msg, entry.event.hdr.expires_at, sent.receipt.hub_ts

            plain, expires_at, _ = await sent_with("plain")
            assert plain.profile_id == PRESETS["messaging"].profile_id()
            assert (len(plain.ciphertext) % 256, expires_at) == (0, None)
            log, _, _ = await sent_with("log", pad_blocks=(0,))
            assert log.profile_id == PRESETS["bulk"].profile_id()
            assert len(log.ciphertext) < len(plain.ciphertext)
            either, _, _ = await sent_with("either", pad_blocks=(1024, 0))  # the first that a profile of the hub has
            assert either.profile_id == PRESETS["bulk"].profile_id()
            other, _, _ = await sent_with("other", pad_blocks=(512,))  # no profile of the hub has it
            assert other.profile_id == PRESETS["messaging"].profile_id()
            _, expires_at, hub_ts = await sent_with("kept", retention_sec=600)
            assert abs(expires_at - hub_ts - 600) <= 2

    run(story())


@pytest.mark.req("LCL-02")
def test_a_sender_of_a_bulk_label_keeps_to_its_rate(tmp_path):
    async def story():
        async with hub_at(tmp_path / "hub") as hub:
            import asyncio

            async with client_at(
                InProcess(hub.api), pin_of(hub), person("bulk"), tmp_path / "bulk", ring=RING, advisor=Fixed(per_sec=20)
            ) as client:
                loop = asyncio.get_running_loop()
                began = loop.time()
                outcomes = await client.send_many("orders", [b"%d" % n for n in range(50)])
                assert all(isinstance(outcome, Sent) for outcome in outcomes)
                assert loop.time() - began >= 2.0  # 20 at once, 20 after a second, 10 after another

    run(story())


@pytest.mark.req("LCL-02", "LCL-03")
def test_the_class_that_the_owner_of_the_realm_set_decides_for_veen_send(tmp_path):
    with running(tmp_path / "hub", *DEV, "--set", "admission.profiles=bulk,messaging") as hub:
        alice = Person(tmp_path / "alice", hub, "alice")
        alice.new_stream("orders")
        before = size_of(alice, "orders", "one")
        assert before % 256
        alice.json("label-class", "set", "orders", "user", "--make-keys")
        after = size_of(alice, "orders", "one")
        assert (after % 256, after > before) == (0, True)
        alice.json("label-class", "set", "orders", "log")
        assert size_of(alice, "orders", "one") == before


@pytest.mark.req("LCL-02", "LCL-03")
def test_retention_goes_by_the_hints_of_classes_where_it_is_asked_to(tmp_path):
    data = tmp_path / "hub"
    with running(data, *DEV, "--set", "limits.max_checkpoint_interval=2") as hub:
        alice = Person(tmp_path / "alice", hub, "alice")
        for stream in ("long", "short", "none"):
            alice.new_stream(stream)
            for number in range(3):
                alice.run("send", stream, f"message {number}")
        alice.run("label-class", "set", "long", "log", "--retention", "30d", "--make-keys")
        alice.run("label-class", "set", "short", "log", "--retention", "1s")
        labels = {name: alice.json("stream", name)["entries"][0]["label"] for name in ("long", "short", "none")}
        stranger = Person(tmp_path / "stranger", hub, "stranger")
        hub.stop()
    time.sleep(1.1)

    def planned(*options, command="plan"):
        steps = alice.json("hub", "retention", command, "--data-dir", data, *options)["erasures"]
        return {name for name, label in labels.items() if label in {step["label"] for step in steps}}

    assert planned("--payloads", "1s") == {"long", "short", "none"}
    assert planned("--payloads", "1s", "--classes") == {"short", "none"}
    assert planned("--payloads", "90d", "--classes") == {"short"}
    refused = stranger.json(
        *("hub", "retention", "plan", "--data-dir", data, "--payloads", "90d", "--classes"), code=Exit.LOCAL
    )
    assert refused["code"] == "E.LOCAL.STREAM"
    assert planned("--payloads", "90d", "--classes", command="apply") == {"short"}
