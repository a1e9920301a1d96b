"""The time a hub gives out (D-28, D-167).

hub_ts never goes back, and a wrong one cannot be taken back. So of the wall clock only what is plausible is believed:

    set back                       hub_ts goes on with the monotonic clock, so that rates, lifetimes and revocations do
    forward by `max_step` or less  hub_ts follows
    forward by more                hub_ts goes on with the monotonic clock and nothing is admitted, until the clock is
                                   back or an operator restarts the hub with --accept-clock

While the hub runs, the monotonic clock tells how much time has passed. While it does not, nothing does: a start
compares the wall clock with the newest time that the directory shows.
"""

import math
import time
from collections.abc import Callable
from typing import Final

from veen.core.errors import VeenError
from veen.io.local import Fs
from veen.storage import layout

_CLOCK_BYTES: Final = 20


def monotonic() -> float:
    """Return seconds on the monotonic clock; the one that counts sleep, where the system has it."""
    return time.clock_gettime(_CLOCK)


_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class ClockStepError(VeenError, code="E.CLOCK"):
    """The clock is far ahead of the newest time in the data directory. A wrong hub_ts could never be corrected."""

    def __init__(self, wall: int, last: int, max_step: int) -> None:
        super().__init__(wall, last, max_step)
        self.wall, self.last, self.max_step = wall, last, max_step

    def __str__(self) -> str:
        ahead = self.wall - self.last
        return (
            f"the clock says {_utc(self.wall)}, {ahead} s after the last sign of life of this hub ({_utc(self.last)});"
            f" more than {self.max_step} s (engine.max_clock_step) require the operator's consent"
        )


def _utc(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


class HubClock:
    """The source of hub_ts. Owned by the sequencer's thread. A rotation may hold it: hub_ts then stays before a new
    key is valid."""

    def __init__(self, wall: Callable[[], float], ticks: Callable[[], float] = monotonic, *, max_step: int = 0) -> None:
        """Set the greatest accepted forward step to `max_step` seconds; 0 accepts any."""
        self._wall, self._ticks, self._max_step = wall, ticks, max_step
        # The last answer and the ticks at that moment; None before the first one, unless `begin` set the end of the
        # log.
        self._last: tuple[float, float] | None = None
        self._floor = 0  # set by `at_least`
        self._most = math.inf
        self.step = 0.0  # seconds by which the wall clock went too far forward; 0: it is believed

    @property
    def begun(self) -> bool:
        return self._last is not None

    def begin(self, hub_ts: int, seen: int = 0, *, accept: bool = False) -> None:
        """Continue a log that ends at `hub_ts` and whose hub last noted the time `seen`. Raise ClockStepError if the
        wall clock is too far ahead of both."""
        last, wall = max(hub_ts, seen), int(self._wall())
        if self._max_step and hub_ts and wall - last > self._max_step and not accept:
            raise ClockStepError(wall, last, self._max_step)
        self._last = (max(hub_ts, wall), self._ticks())

    def __call__(self) -> float:
        wall, now = self._wall(), self._ticks()
        answer, step = wall, 0.0
        if self._last is not None:
            before, at = self._last
            expected = before + (now - at)
            if int(wall) < int(before):
                answer = expected
            elif self._max_step and wall - expected > self._max_step:
                answer, step = expected, wall - expected
        self._last, self.step = (answer, now), step
        return min(max(answer, self._floor), self._most)

    def at_least(self, hub_ts: int) -> None:
        """Return no time before `hub_ts` from now on."""
        self._floor = max(self._floor, hub_ts)

    def hold(self, most: int) -> None:
        """Return no time after `most` until `release`."""
        self._most = most

    def release(self) -> None:
        self._most = math.inf


def read_clock(fs: Fs) -> int:
    """Read the time at which the hub of this directory last noted that it is alive; 0 if it never did."""
    if not fs.exists(layout.CLOCK):
        return 0
    file = fs.open(layout.CLOCK)
    try:
        text = file.read_at(0, _CLOCK_BYTES).strip()
    finally:
        file.close()
    return int(text) if text.isdigit() else 0


def write_clock(fs: Fs, seconds: int) -> None:
    """Write the time at which the hub is alive. Losing it is harmless: it only lets a quiet hub start without a
    question."""
    fs.replace(layout.CLOCK, b"%d\n" % seconds)
