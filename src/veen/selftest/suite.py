"""Suites, checks and their outcomes."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass

from veen.selftest.world import HubAt, World

__all__ = ["Check", "CheckFailed", "CheckOutcome", "Suite", "expect", "run"]

Check = Callable[[World], Awaitable[None]]


class CheckFailed(Exception):
    """Something is not as it was promised."""


def expect(promise: bool, what: str) -> None:
    """CheckFailed unless the promise holds; `what` says what was promised."""
    if not promise:
        raise CheckFailed(what)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Checks by what they show, in the order in which they run."""

    name: str
    about: str
    checks: Mapping[str, Check]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOutcome:
    """How one check went; `detail` says why it failed."""

    suite: str
    check: str
    ok: bool
    seconds: float
    detail: str | None = None


async def run(suite: Suite, *, hub: HubAt | None = None) -> AsyncIterator[CheckOutcome]:
    """Each check in turn, in one world; a check that fails does not keep the others from running."""
    async with World.made(hub) as world:
        for what, check in suite.checks.items():
            began, detail = time.perf_counter(), None
            try:
                async with world.part():
                    await check(world)
            except Exception as exc:  # whatever goes wrong is the finding
                detail = str(exc) if isinstance(exc, CheckFailed) else f"{type(exc).__name__}: {exc}"
            seconds = time.perf_counter() - began
            yield CheckOutcome(suite=suite.name, check=what, ok=detail is None, seconds=seconds, detail=detail)
