"""What a hub says about itself and its labels: typed, bounded, and not believed."""

import asyncio
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest
from tests.client.hubs import hub_at, run

from veen.client.errors import BadAnswer, HubRefused
from veen.client.transport.calls import NO_RETRY, Answer, Calls, sequence
from veen.client.transport.http import _LibraryHttp
from veen.client.transport.hubapi import MAX_LABELS, label_pages, metric_samples, status_of
from veen.client.transport.inprocess import InProcess
from veen.core.errors import MalformedError
from veen.core.objects.envelopes import ErrorEnvelope
from veen.core.objects.profile import PRESETS, Profile
from veen.core.objects.tooling import MAX_LISTED, InspectResponse, LabelInfo, StatusResponse

STATUS = StatusResponse(
    hub_id=b"\x01" * 32,
    hub_pk=b"\x02" * 32,
    hub_ts=1,
    epoch=0,
    profiles=(PRESETS["rotating"],),
    stream_scope="open",
    capability_gating=False,
    pow_difficulty=0,
    limits={},
    server_version="1",
)


class Says:
    """A transport whose hub gives one answer after another, and the last one for ever."""

    def __init__(self, *bodies):
        self._bodies = list(bodies)
        self.calls = 0

    async def call(self, operation, body=b"", *, timeout=None, headers=None, again=True):  # noqa: ASYNC109 - as every transport
        self.calls += 1
        return Answer(200, self._bodies.pop(0) if len(self._bodies) > 1 else self._bodies[0])

    async def aclose(self):
        pass


def calls_to(*bodies):
    return Calls(Says(*bodies), NO_RETRY)


def page(first, count, *, label_count=MAX_LABELS, more=True, epoch=7):
    labels = tuple(
        LabelInfo(
            label=number.to_bytes(32, "big"), epoch=epoch, last_stream_seq=1, last_mmr_root=b"\x01" * 32, last_hub_ts=1
        )
        for number in range(first, first + count)
    )
    return InspectResponse(label_count=label_count, labels=labels, more=more).to_bytes()


async def listed(calls):
    return [info async for page in label_pages(calls) for info in page]


def test_a_list_goes_over_its_pages():
    infos = run(listed(calls_to(page(0, 3, label_count=5), page(3, 2, label_count=5, more=False))))
    assert [int.from_bytes(info.label, "big") for info in infos] == [0, 1, 2, 3, 4]
    assert run(listed(calls_to(page(0, 0, label_count=0, more=False)))) == []


@pytest.mark.parametrize(
    ("bodies", "fault"),
    [
        ([page(0, 3)], "do not ascend"),
        ([page(0, 3), page(2, 3)], "do not ascend"),
        ([page(0, 3), page(9, 3, epoch=6)], "do not ascend"),
        ([page(0, 3), page(3, 0)], "nothing is listed"),
        ([page(0, 0)], "nothing is listed"),
        ([page(0, 3, label_count=2)], "more labels than there are"),
    ],
)
def test_a_list_that_leads_nowhere_is_the_fault_of_the_hub(bodies, fault):
    with pytest.raises(BadAnswer, match=fault):
        run(listed(calls_to(*bodies)))


def test_a_list_has_an_end_whatever_the_hub_says(monkeypatch):
    monkeypatch.setattr("veen.client.transport.hubapi.MAX_LABELS", 5)
    with pytest.raises(BadAnswer, match="more labels than there are"):
        run(listed(calls_to(page(0, 3, label_count=2**60), page(3, 3, label_count=2**60))))


def test_the_epochs_of_a_stream_are_not_looked_for_in_a_list_without_an_end(tmp_path):
    """`veen stream` on labels that rotate asks for the list, too."""
    from veen.client.session import HubSession
    from veen.client.verify.pin import HubPin

    async def check():
        settings = {"admission.capability_gating": "false"}
        async with hub_at(tmp_path / "hub", settings=settings, admission__profiles="rotating") as hub:
            session = HubSession(Calls(InProcess(hub.api)), HubPin.of_key(hub.identity.current_pk))
            await session.open()
            assert await session.epochs_of(b"\x05" * 32) == []
            session.calls.transport = Says(page(0, MAX_LISTED))
            with pytest.raises(BadAnswer, match="do not ascend"):
                await session.epochs_of(b"\x05" * 32)

    run(check())


@pytest.mark.parametrize(
    "change",
    [
        {"hub_ts": 2**63},
        {"profiles": (Profile(epoch_sec=2**63, pad_block=0),)},
        {"pow_difficulty": 2**40},
    ],
)
def test_numbers_that_break_arithmetic_are_the_fault_of_the_hub(change):
    assert run(status_of(calls_to(STATUS.to_bytes()))) == STATUS
    with pytest.raises(BadAnswer):
        run(status_of(calls_to(replace(STATUS, **change).to_bytes())))


def test_a_sequence_has_no_more_items_than_a_list():
    assert len(sequence("x", b"\x00" * MAX_LISTED)) == MAX_LISTED
    with pytest.raises(BadAnswer, match="more than 1000 items"):
        sequence("x", b"\x00" * (MAX_LISTED + 1))


def test_the_words_of_a_refusal_are_words():
    refusal = HubRefused.from_envelope(
        ErrorEnvelope(
            code="E.RATE", message="m" * 5_000, request_id="\x1b", detail={"stage": "\x1b", "detail_enum": "A"}
        )
    )
    assert (refusal.code, refusal.stage, refusal.detail_enum, refusal.request_id) == ("E.RATE", None, "A", None)
    assert len(refusal.message) < 1_100
    for code in ("", "\x1b[31m", "E RATE", "E" * 200):
        with pytest.raises(MalformedError):
            HubRefused.from_envelope(ErrorEnvelope(code=code, message=""))


def test_metrics_are_numbers():
    assert metric_samples('# HELP a b\na{b="c d"} 1\n\nc NaN\n') == {'a{b="c d"}': 1.0, "c": None}
    for text in ("", "# nothing\n", "a\n", "a b\n"):
        with pytest.raises(BadAnswer):
            metric_samples(text)


def test_an_answer_in_tiny_parts_takes_no_more_memory_than_its_bytes():
    class Parts:
        async def aiter_raw(self):
            for number in range(200_000):
                yield number.to_bytes(3, "big")[1:]

    parts: Any = Parts()
    carrier = object.__new__(_LibraryHttp)
    carrier._base, carrier._max_answer = "https://h", 1 << 20
    tracemalloc.start()
    try:
        assert len(asyncio.run(carrier._read(parts))) == 400_000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4_000_000  # a list of the parts takes more than twice as much
