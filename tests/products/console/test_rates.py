"""Rate and latency of a hub: what follows from its metrics, and what becomes a gap."""

import asyncio
import itertools
import re

import pytest
from tests.products.console.consoles import fill, world_at
from tests.waiting import eventually

from veen.client.errors import BadAnswer
from veen.products.console.charts import rates
from veen.products.console.rates import HubRates, MetricSample, rate_points

INFINITY = float("inf")


def sample(time, accepted, *counts, bounds=(0.01, 0.1, INFINITY)):
    return MetricSample(time, accepted, tuple(zip(bounds, counts, strict=True)), 0.002)


def test_a_point_is_the_difference_of_two_samples():
    first, second = sample(0, 100, 90, 99, 100), sample(10, 150, 130, 149, 150)
    (point,) = rate_points([first, second])
    assert point is not None
    assert (point.per_second, point.p50_ms, point.p99_ms) == (5.0, 10.0, 100.0)
    (quiet,) = rate_points([second, sample(20, 150, 130, 149, 150)])
    assert quiet is not None
    assert (quiet.per_second, quiet.p50_ms, quiet.p99_ms) == (0.0, None, None)
    (slow,) = rate_points([second, sample(20, 160, 130, 149, 160)])
    assert slow is not None
    assert slow.p99_ms == 100.0  # the last bound that there is


def test_what_is_missing_or_began_anew_is_a_gap():
    first, later = sample(0, 100, 90, 99, 100), sample(20, 5, 5, 5, 5)
    assert rate_points([first, None, later]) == [None, None]
    assert rate_points([first, later]) == [None]  # the counter fell: another process
    assert rate_points([first]) == []
    assert rate_points([]) == []


@pytest.mark.parametrize("samples", [{}, {"veen_submit_ok_total": 1.0}, {"veen_submit_ok_total": None}])
def test_metrics_without_counters_are_no_sample(samples):
    with pytest.raises(BadAnswer):
        MetricSample.of(0, samples, 0.1)


def test_the_picture_has_a_title_a_description_and_gaps():
    points = [(0, 10, 5.0, 10.0, 100.0), None, (20, 30, 0.0, None, None), (30, 40, 1.0, 10.0, 10.0)]
    svg = rates("Rate and latency", points)
    assert "<title>Rate and latency</title>" in svg
    assert "3 spans" in svg
    assert "1 gaps" in svg
    (path,) = re.findall(r'class="line p99" d="(M[^"]*L?[^"]*)"', svg)[:1]
    assert path.count("M") == 2  # the line is not drawn across the gap
    assert rates("Rate and latency", []) == ""
    assert rates("Rate and latency", [None]) == ""


def test_the_overview_shows_what_the_hub_states_with_a_table_beside_it(tmp_path):
    async def main():
        async with world_at(tmp_path, count=2) as world:
            page = await world.page("/overview")
            assert "A picture needs two samples" in page
            await fill(world.client, 3)
            await world.console.rates.sample()
            twin = await world.twin("/overview.json")
            (point,) = [point for point in twin["rates"]["points"] if point["per_second"]][:1]
            assert point["per_second"] > 0
            assert point["p50_ms"] <= point["p99_ms"]
            assert twin["rates"]["stated_by"] == "the hub"
            page = await world.page("/overview")
            assert '<svg xmlns="http://www.w3.org/2000/svg" class="chart rates" role="img"' in page
            assert "stated by the hub, verified by nobody" in page
            assert page.count("<tr>") > 3

    asyncio.run(main())


def test_a_hub_that_does_not_show_its_metrics_leaves_a_gap_and_the_page_says_so(tmp_path):
    async def main():
        async with world_at(tmp_path, count=1) as world:
            rates_of_hub = HubRates(world.client)
            await rates_of_hub.sample()
            send = world.client.session.calls.send

            async def refused(operation, *args, **options):
                if operation == "metrics":
                    raise BadAnswer("metrics: no sample in the answer")
                return await send(operation, *args, **options)

            world.client.session.calls.send = refused
            for _ in range(3):
                await rates_of_hub.sample()
            assert [entry is None for entry in rates_of_hub.samples] == [False, True]
            assert "The hub does not show its metrics" in await world.page("/overview")
            world.client.session.calls.send = send
            await rates_of_hub.sample()
            assert rates_of_hub.data()["points"] == [None, None]

    asyncio.run(main())


def test_samples_are_taken_while_the_console_runs_and_only_so_often(tmp_path):
    async def main():
        async with world_at(tmp_path, count=1) as world:
            moments = itertools.count(1000.0, 2.0)
            rates_of_hub = HubRates(world.client, clock=lambda: next(moments))
            async with rates_of_hub.sampling(seconds=0.001):
                await eventually(lambda: len(rates_of_hub.samples) >= 3)
            count = len(rates_of_hub.samples)
            await rates_of_hub.sample(least_seconds=100)
            assert len(rates_of_hub.samples) == count

    asyncio.run(main())
