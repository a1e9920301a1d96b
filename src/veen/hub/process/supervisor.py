"""The supervisor of everything that runs beside the log: housekeeping, scrubber, outer log, watches, anchors,
and the loops of the transports that are no servers of connections.

A task that ends is logged, counted, shown in the metrics and started again, after a pause that doubles with each
failure up to a bound. None of them may stop the hub, and none may end unnoticed.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final

from veen.hub.process.logs import EventLog

FIRST_PAUSE: Final = 1.0  # seconds before the first restart
LONGEST_PAUSE: Final = 300.0  # seconds; a task that ran as long as this begins with the first pause again

_log: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class TaskState:
    """The state of one task. Owned by the event loop's thread."""

    running: bool = True
    restarts: int = 0
    error: str = ""  # why it ended last; empty if it never did


class Supervisor:
    """Supervisor of tasks until `stop`. Create it inside a running event loop."""

    def __init__(
        self, log: EventLog, *, first_pause: float = FIRST_PAUSE, longest_pause: float = LONGEST_PAUSE
    ) -> None:
        self._log, self._first, self._longest = log, first_pause, longest_pause
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._states: dict[str, TaskState] = {}

    @property
    def states(self) -> Mapping[str, TaskState]:
        """The tasks by name, in the order in which they were started."""
        return self._states

    @property
    def restarts(self) -> Mapping[str, int]:
        return {name: state.restarts for name, state in self._states.items()}

    def fault(self) -> str | None:
        """Return the first task that waits for its restart and why it ended, None if all of them run."""
        for name, state in self._states.items():
            if not state.running:
                return f"{name}: {state.error}"
        return None

    def start(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `work()`, which is not expected to return, and run it again whenever it ends."""
        self._states[name] = TaskState()
        self._tasks[name] = asyncio.create_task(self._supervise(name, work), name=f"veen-{name}")

    async def end(self, name: str) -> None:
        """Cancel one task and wait until it has ended; it is not started again."""
        if (task := self._tasks.pop(name, None)) is not None:
            task.cancel()
            await asyncio.wait((task,))
            del self._states[name]

    async def _supervise(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        state, pause, clock = self._states[name], self._first, asyncio.get_running_loop().time
        while True:
            began = clock()
            state.running = True
            try:
                await work()
                state.error = "it ended"
            except asyncio.CancelledError:
                if (task := asyncio.current_task()) is not None and task.cancelling():
                    raise
                state.error = "something that it waited for was cancelled"
            except Exception as exc:
                state.error = f"{type(exc).__name__}: {exc}"
                _log.warning("the task %s of the hub ended", name, exc_info=exc)
            if clock() - began >= self._longest:
                pause = self._first
            state.running = False
            state.restarts += 1
            self._log.event(
                "error", "background", f"{name} ended: {state.error}", task=name, restart_seconds=round(pause, 3)
            )
            await asyncio.sleep(pause)
            pause = min(2 * pause, self._longest)

    async def stop(self) -> None:
        """Cancel all tasks, the newest first, and wait until each has ended."""
        while self._tasks:
            _, task = self._tasks.popitem()
            task.cancel()
            await asyncio.wait((task,))
