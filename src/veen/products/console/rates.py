"""Throughput and latency of a hub: samples of its metrics, as accepted messages per second and latency over time.

A sample is the hub's own statement (docs/metrics.md), which cannot be verified. The response time of the hub is
measured here. Where a sample failed, or the counters restarted, there is a gap.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from veen.client.client import Client
from veen.client.errors import BadAnswer
from veen.client.transport.hubapi import metric_samples
from veen.core.errors import VeenError

EVERY_SECONDS: Final = 10.0
_SAMPLE_SECONDS: Final = 5.0
_MAX_SAMPLES: Final = 361  # an hour
_MAX_METRIC_BYTES: Final = 1 << 20
_ACCEPTED: Final = "veen_submit_ok_total"
_LATENCY: Final = "veen_end_to_end_seconds"


@dataclass(frozen=True, slots=True)
class MetricSample:
    """The metrics at a time: the counter of accepted messages, and messages by upper limit of their latency."""

    time: float
    accepted: float
    buckets: tuple[tuple[float, float], ...]  # (upper bound in seconds, messages up to it), ascending
    answered_seconds: float  # measured by this console

    @classmethod
    def of(cls, moment: float, samples: Mapping[str, float | None], answered_seconds: float) -> "MetricSample":
        """Build a sample. Raise BadAnswer if the metrics are incomplete."""
        accepted = samples.get(_ACCEPTED)
        buckets = sorted(
            (float(name.removeprefix(f'{_LATENCY}_bucket{{le="').removesuffix('"}')), count)
            for name, count in samples.items()
            if name.startswith(f'{_LATENCY}_bucket{{le="') and count is not None
        )
        if accepted is None or not buckets:
            raise BadAnswer("metrics: no counter of accepted messages, or no latencies")
        return cls(moment, accepted, tuple(buckets), answered_seconds)


@dataclass(frozen=True, slots=True)
class RatePoint:
    """Rate and latencies between two samples. Latencies are upper limits, None without messages."""

    start: float
    end: float
    per_second: float
    p50_ms: float | None
    p99_ms: float | None


def rate_points(samples: Sequence[MetricSample | None]) -> list[RatePoint | None]:
    """Return a point for each pair of successive samples; None if one is missing or the hub was restarted."""
    points: list[RatePoint | None] = []
    for before, after in pairwise(samples):
        if before is None or after is None or after.time <= before.time or after.accepted < before.accepted:
            points.append(None)
            continue
        earlier = dict(before.buckets)
        counts = [(bound, count - earlier.get(bound, 0)) for bound, count in after.buckets]
        rate = (after.accepted - before.accepted) / (after.time - before.time)
        points.append(RatePoint(before.time, after.time, rate, _quantile(counts, 0.5), _quantile(counts, 0.99)))
    return points


def _quantile(counts: Sequence[tuple[float, float]], share: float) -> float | None:
    """Return the upper limit of the quantile's bucket in milliseconds; of the one before it if it is infinite."""
    total = counts[-1][1]
    if total <= 0:
        return None
    bounds = [bound for bound, count in counts if count >= total * share]
    finite = [bound for bound, _ in counts if bound != float("inf")]
    bound = bounds[0] if bounds and bounds[0] != float("inf") else finite[-1] if finite else 0.0
    return round(bound * 1000, 3)


class HubRates:
    """The samples of one hub. Used on the loop of the console only."""

    def __init__(self, client: Client, *, clock: Callable[[], float] = time.time) -> None:
        self._client, self._clock = client, clock
        self.samples: deque[MetricSample | None] = deque(maxlen=_MAX_SAMPLES)
        self.failure: VeenError | None = None  # of the last sample
        self._last = float("-inf")

    async def sample(self, *, least_seconds: float = 0) -> None:
        """Take one more sample, unless the last one is newer than `least_seconds`."""
        now = self._clock()
        if now - self._last < least_seconds:
            return
        self._last = now
        started = time.perf_counter()
        try:
            answer = await self._client.session.calls.send("metrics", b"", timeout=_SAMPLE_SECONDS, again=False)
            if len(answer.body) > _MAX_METRIC_BYTES:
                raise BadAnswer(f"metrics: more than {_MAX_METRIC_BYTES} bytes")
            samples = metric_samples(answer.body.decode("utf-8", "replace"))
            self.samples.append(MetricSample.of(now, samples, time.perf_counter() - started))
            self.failure = None
        except (VeenError, ValueError) as exc:
            self.failure = exc if isinstance(exc, VeenError) else BadAnswer("metrics: a limit that is not a number")
            if self.samples and self.samples[-1] is not None:
                self.samples.append(None)

    @contextlib.asynccontextmanager
    async def sampling(self, seconds: float = EVERY_SECONDS) -> AsyncIterator[None]:
        """Take samples while the console runs."""

        async def run() -> None:
            while True:
                await self.sample(least_seconds=1)
                await asyncio.sleep(seconds)

        task = asyncio.create_task(run())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def data(self) -> dict[str, Any]:
        """Return the samples for the twin of a page."""
        answered = [sample.answered_seconds * 1000 for sample in self.samples if sample is not None]
        return {
            "stated_by": "the hub",
            "points": [
                None
                if point is None
                else {
                    "start": round(point.start, 1),
                    "end": round(point.end, 1),
                    "per_second": round(point.per_second, 3),
                    "p50_ms": point.p50_ms,
                    "p99_ms": point.p99_ms,
                }
                for point in rate_points(list(self.samples))
            ],
            "answered_ms": None if not answered else round(sorted(answered)[len(answered) // 2], 3),
        }
