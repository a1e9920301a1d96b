"""Waiting for what another thread, process or task does.

A test that sleeps for as long as something usually takes fails on a busy machine. These functions return as soon as the
condition holds; the deadline only ends a test that would hang.
"""

import asyncio
import time
from collections.abc import Callable

DEADLINE_SEC = 120.0
_PAUSE_SEC = 0.01


def until(condition: Callable[[], object], seconds: float = DEADLINE_SEC) -> None:
    """Return when `condition` holds, which is asked again and again."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {seconds:.0f} s"
        time.sleep(_PAUSE_SEC)


async def eventually(condition: Callable[[], object], seconds: float = DEADLINE_SEC) -> None:
    """`until` for coroutines: the loop goes on meanwhile."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {seconds:.0f} s"
        await asyncio.sleep(_PAUSE_SEC)
