"""Verification beside the hub: verdicts come back in the order of submission, whoever found them."""

import asyncio

import pytest

from veen.core.crypto.ed25519 import SigningKey, verify_many
from veen.core.hashing import H
from veen.hub.sequencer import verifier
from veen.hub.sequencer.verifier import WorkerVerifier

KEY = SigningKey(H(b"a writer"))


def job(number: int, *, good: bool) -> bytes:
    digest = H(number.to_bytes(4, "big"))
    return KEY.sign(digest if good else H(digest)) + digest + KEY.public


@pytest.fixture
def helped(monkeypatch):
    """How many jobs this process verified itself, each time it did."""
    counts: list[int] = []

    def counted(jobs):
        verdicts = verify_many(jobs)
        counts.append(len(verdicts))
        return verdicts

    monkeypatch.setattr(verifier, "verify_many", counted)
    return counts


def verdicts_of(jobs, workers):
    async def scenario():
        loop, results = asyncio.get_running_loop(), bytearray()
        all_done = loop.create_future()

        def done(verdicts):
            results.extend(verdicts)
            if len(results) == len(jobs):
                all_done.set_result(None)

        verifier = WorkerVerifier(loop, workers, done, lambda: all_done.set_exception(RuntimeError("a worker died")))
        try:
            for each in jobs:
                verifier.submit(each)
            await asyncio.wait_for(all_done, 30)
        finally:
            verifier.close()
        return list(results)

    return asyncio.run(scenario())


@pytest.mark.parametrize("workers", [1, 3])
def test_a_hub_whose_workers_are_behind_helps_and_keeps_the_order(helped, workers):
    wanted = [number % 5 != 0 for number in range(1000)]
    verdicts = verdicts_of([job(number, good=good) for number, good in enumerate(wanted)], workers)
    assert verdicts == wanted
    assert sum(helped) > 0
    assert max(helped) <= 4  # no turn of the loop gets long


def test_a_hub_whose_workers_keep_up_leaves_it_to_them(helped):
    assert verdicts_of([job(number, good=True) for number in range(64)], 1) == [1] * 64
    assert not helped
