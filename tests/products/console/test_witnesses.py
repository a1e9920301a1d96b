"""Cosignatures on the page of anchors and witnesses: verified by the keys of the policy, and who verified is named."""

import asyncio
import contextlib

import pytest
from tests.client.hubs import OPEN
from tests.hub.test_outer import ORIGIN, VKEY, WITNESS, published
from tests.products.console.consoles import world_at

from veen.client.transport.calls import Answer
from veen.client.transport.http import HttpTransport
from veen.core.crypto.ed25519 import SigningKey
from veen.core.objects.checkpoint import Checkpoint
from veen.core.tlog.note import COSIGNATURE, VerifierKey, cosign
from veen.core.tlog.policy import WitnessPolicy
from veen.products.console.views import LocalFiles, witnesses_of

SETTINGS = {**OPEN, "outer.origin": ORIGIN, "outer.every": "3600"}
STRANGER = VerifierKey("s.example", COSIGNATURE, SigningKey(b"\x22" * 32).public)


def policy_of(hub, quorum="w1"):
    lines = (f"log {hub.outer.vkey}", f"witness w1 {VKEY}", f"witness w2 {STRANGER}", f"quorum {quorum}")
    return WitnessPolicy.parse("\n".join(lines) + "\n")


class Cosigned:
    """The wire to a hub whose note has one more line: of a witness, or one that is not by its key."""

    def __init__(self, inner, key):
        self._inner, self._key = inner, key

    async def call(self, operation, body=b"", **options):
        answer = await self._inner.call(operation, body, **options)
        if operation != "outer/checkpoint":
            return answer
        text = answer.body.decode().split("\n\n")[0] + "\n"
        line = cosign(self._key, VKEY.name, text, 1_800_000_000)
        return Answer(answer.status, answer.body + line.line().encode(), answer.headers)

    async def aclose(self):
        await self._inner.aclose()


@contextlib.asynccontextmanager
async def cosigned_world(tmp_path, key=WITNESS, **more):
    async with world_at(tmp_path, count=3, settings=SETTINGS, **more) as world:
        await published(world.hub)
        transport = HttpTransport(world.hub.url)
        world.client.session.calls.transport = Cosigned(transport, key)
        yield world
        await transport.aclose()


def look(tmp_path, work, **options):
    async def main():
        async with cosigned_world(tmp_path, **options) as world:
            await work(world)

    asyncio.run(main())


def test_cosignatures_are_verified_by_the_keys_of_the_policy_and_named(tmp_path):
    async def work(world):
        world.console.local = LocalFiles(witness_policy=policy_of(world.hub))
        page, twin = await world.page("/anchors"), await world.twin("/anchors.json")
        outer = twin["outer"]
        assert outer["accepted"] is True
        assert [(row["name"], row["time"]) for row in outer["witnesses"]] == [("w1", 1_800_000_000), ("w2", None)]
        assert "✓ this console: the quorum of the policy cosigned it" in page
        assert "no cosignature" in page  # of w2
        (log,) = [log for log in twin["logs"] if log["stream"] == "orders"]
        assert log["in_outer_log"] is True

    look(tmp_path, work)


def test_without_a_policy_nobody_verified_and_the_page_says_so(tmp_path):
    async def work(world):
        page = await world.page("/anchors")
        assert "its cosignatures were not verified" in page
        assert "? nobody verified: 1" in page
        assert (await world.twin("/anchors.json"))["outer"]["accepted"] is None
        assert "nobody verified them" in await world.page("/checkpoints")

    look(tmp_path, work)


def test_too_few_witnesses_are_no_quorum(tmp_path):
    async def work(world):
        world.console.local = LocalFiles(witness_policy=policy_of(world.hub, "w2"))
        page = await world.page("/anchors")
        assert (await world.twin("/anchors.json"))["outer"]["accepted"] is False
        assert "not a quorum" in page
        assert "✓ this console: the quorum" not in page

    look(tmp_path, work)


def test_a_cosignature_that_is_not_by_its_key_turns_the_page_red(tmp_path):
    async def work(world):
        world.console.local = LocalFiles(witness_policy=policy_of(world.hub))
        calls = world.client.session.calls
        inner = calls.transport._inner

        class Forged(Cosigned):
            async def call(self, operation, body=b"", **options):
                answer = await super().call(operation, body, **options)
                if operation != "outer/checkpoint":
                    return answer
                data = bytearray(answer.body)
                data[-10] = ord("A") if data[-10] != ord("A") else ord("B")
                return Answer(answer.status, bytes(data), answer.headers)

        calls.transport = Forged(inner, WITNESS)
        page = await world.page("/anchors", status=502)
        assert "E.TLOG.SIGNATURE" in page
        assert "Verification FAILED" in page

    look(tmp_path, work)


def test_a_hub_without_an_outer_log_has_nothing_to_cosign(tmp_path):
    async def main():
        async with world_at(tmp_path, count=1) as world:
            assert "publishes no outer log" in await world.page("/anchors")
            assert (await world.twin("/anchors.json"))["outer"] is None

    asyncio.run(main())


@pytest.mark.parametrize(("signers", "names"), [((), []), ((WITNESS,), ["w1"]), ((SigningKey(b"\x33" * 32),), [])])
def test_signatures_on_a_checkpoint_itself_are_verified_by_the_same_keys(signers, names):
    hub_key = SigningKey(b"\x44" * 32)
    policy = WitnessPolicy.parse(f"witness w1 {VKEY}\nquorum none\n")
    checkpoint = Checkpoint.issue(
        hub_key, label_prev=bytes(32), label_curr=bytes(32), upto_seq=1, mmr_root=bytes(32), epoch=0, witnesses=signers
    )
    assert witnesses_of(checkpoint, policy) == {"witnesses": len(signers), "witnesses_verified": names}
    assert witnesses_of(checkpoint, None)["witnesses_verified"] == []
