"""Suites, checks and their outcomes."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass

from veen.products.selftest.world import HubAt, World

Check = Callable[[World], Awaitable[None]]


class CheckFailed(Exception):
    """A promise is broken."""


class NotChecked(Exception):
    """A check could not be made; the text names its requirement."""


def expect(promise: bool, what: str) -> None:
    """Raise CheckFailed unless the promise holds; `what` is the promise."""
    if not promise:
        raise CheckFailed(what)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """Checks by their titles, in order."""

    name: str
    about: str
    checks: Mapping[str, Check]
    first_decides: bool = False  # whether nothing else is tried if the first check fails


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOutcome:
    """Result of one check; `detail` is the reason if it failed or was not made (`ok` is None)."""

    suite: str
    check: str
    ok: bool | None
    seconds: float
    detail: str | None = None


async def run(suite: Suite, *, hub: HubAt | None = None, peer: HubAt | None = None) -> AsyncIterator[CheckOutcome]:
    """Run each check in turn, in one world; a failed check does not keep the others from running."""
    async with World.create(hub, peer) as world:
        blocked_by: str | None = None
        for what, check in suite.checks.items():
            began = time.perf_counter()
            ok: bool | None = True
            detail: str | None = None
            try:
                if blocked_by is not None:
                    raise NotChecked(f"not checked: {blocked_by!r} failed")
                async with world.part():
                    await check(world)
            except NotChecked as exc:
                ok, detail = None, str(exc)
            except Exception as exc:  # any error is a failed check
                ok, detail = False, str(exc) if isinstance(exc, CheckFailed) else f"{type(exc).__name__}: {exc}"
                if suite.first_decides and what == next(iter(suite.checks)):
                    blocked_by = what
            seconds = time.perf_counter() - began
            yield CheckOutcome(suite=suite.name, check=what, ok=ok, seconds=seconds, detail=detail)
