"""A hub as a process: signals, the service manager, and the exit code.

SIGTERM, SIGINT   stop listening, finish, leave the directory at rest, exit 0; a second one waits for no client
SIGHUP            read the configuration again and take over what may change
SIGUSR1           write a summary of the state to the log

They may come to the whole process group or control group, and at any moment: verifier processes ignore
them (`sequencer.verifier`), a signal during the start is remembered, a signal during the exit
is ignored.
"""

import asyncio
import contextlib
import gc
import logging
import signal
import sys
from collections.abc import Callable
from typing import Final

from veen.core.errors import VeenError
from veen.hub.process.config import HubConfig
from veen.hub.process.logs import EventLog
from veen.hub.process.runtime import Hub
from veen.io.descriptors import SPARES, raise_limit
from veen.io.notify import Notifier

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
EXIT_FAILED: Final = 5  # the hub failed; the last line of its log has the reason
_FAILED_STOP_SECONDS: Final = 5.0
# The event loop may keep the interpreter for this long while the writer thread, with a group that everybody waits for,
# asks for it. Python's own 5 ms are longer than the sync itself; a switch takes some microseconds.
_SWITCH_SEC: Final = 0.0005
# New objects before the collector looks for cycles among them. A message makes about ten, none of them in a cycle; with
# Python's own 700 those that are on their way are looked at again and again.
_YOUNG_OBJECTS: Final = 10_000


class _LogHandler(logging.Handler):
    """Log handler that writes messages of libraries and of the API to the hub's own log."""

    def __init__(self, log: EventLog) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        level = "error" if record.levelno >= logging.ERROR else "warning"
        message = record.getMessage()
        if record.exc_info and record.exc_info[0] is not None:  # the kind and the place, never the values
            frame = record.exc_info[2]
            while frame is not None and frame.tb_next is not None:
                frame = frame.tb_next
            place = f" in {frame.tb_frame.f_code.co_qualname}" if frame is not None and _HAS_QUALNAME else ""
            message = f"{message}: {record.exc_info[0].__name__}{place}"
        self._log.event(level, "log", message)


_HAS_QUALNAME: Final = hasattr((lambda: None).__code__, "co_qualname")


def run(
    config: HubConfig, reread: Callable[[], HubConfig], ready: Callable[[Hub], None], *, accept_clock: bool = False
) -> int:
    """Run a hub until it is told to stop; call `ready` once it listens. Return the exit code of the process."""
    raise_limit()
    SPARES.fill()
    sys.setswitchinterval(_SWITCH_SEC)
    with asyncio.Runner(loop_factory=_fast_loop()) as runner:
        return runner.run(_run(config, reread, ready, accept_clock))


def _fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the factory of uvloop if it is installed; the hub works without it, a little slower (decisions.md 318)."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def _run(
    config: HubConfig, reread: Callable[[], HubConfig], ready: Callable[[Hub], None], accept_clock: bool
) -> int:
    loop, notifier = asyncio.get_running_loop(), Notifier()
    stop = asyncio.Event()
    early: set[int] = set()  # signals that arrived before the hub could handle them
    for number in _SIGNALS:
        loop.add_signal_handler(number, early.add, number)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        return await _serve(config, reread, ready, notifier, stop, early, accept_clock)
    finally:
        await _ignore_signals(loop)


async def _serve(
    config: HubConfig,
    reread: Callable[[], HubConfig],
    ready: Callable[[Hub], None],
    notifier: Notifier,
    stop: asyncio.Event,
    early: set[int],
    accept_clock: bool,
) -> int:
    loop = asyncio.get_running_loop()
    hub = Hub(config, accept_clock=accept_clock)
    handler = _LogHandler(hub.log)
    logging.getLogger().addHandler(handler)

    def stop_now() -> None:
        if stop.is_set():
            hub.hurry()
        stop.set()

    def reload() -> None:
        if not stop.is_set():
            _reload(hub, reread, notifier)

    def summarize() -> None:
        if not stop.is_set():
            hub.log.event("info", "state", "summary", **hub.summary())

    try:
        await hub.start()
        gc.collect()
        gc.freeze()  # modules, settings and what was read of the directory stay: nobody needs to look at them again
        gc.set_threshold(_YOUNG_OBJECTS)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop_now)
        for number, answer in ((signal.SIGHUP, reload), (signal.SIGUSR1, summarize)):
            loop.add_signal_handler(number, answer)
            if number in early:
                answer()
        notifier.send_ready(f"listening on {hub.url}")
        ready(hub)
        watchdog = asyncio.create_task(_watchdog(notifier))
        try:
            return await _until_stopped(hub, stop)
        finally:
            watchdog.cancel()
            notifier.send_stopping("draining")
            await _stop(hub)
    finally:
        logging.getLogger().removeHandler(handler)


async def _ignore_signals(loop: asyncio.AbstractEventLoop) -> None:
    """Ignore signals from now on, so that a signal during the exit does not kill the process.

    When the loop removes its handler, it restores the default action, which kills. So the signal is blocked until it
    is ignored: in this thread, which is the only one left.
    """
    await loop.shutdown_default_executor()
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    for number in _SIGNALS:
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)


async def _until_stopped(hub: Hub, stop: asyncio.Event) -> int:
    waiting = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((waiting, hub.failure), return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    return EXIT_FAILED if hub.failure.done() else 0


async def _stop(hub: Hub) -> None:
    if not hub.failure.done():
        await hub.stop()
        return
    # After a failed sync nothing may be written any more; recovery on the next start is the safe way.
    with contextlib.suppress(VeenError, OSError, TimeoutError):
        await asyncio.wait_for(hub.stop(), _FAILED_STOP_SECONDS)


def _reload(hub: Hub, reread: Callable[[], HubConfig], notifier: Notifier) -> None:
    """Reload the configuration; one that cannot be read changes nothing."""
    notifier.send_reloading()
    try:
        hub.reload(reread())
    except (VeenError, OSError) as exc:
        hub.on_reload_failed(exc)
    notifier.send_ready(f"listening on {hub.url}")


async def _watchdog(notifier: Notifier) -> None:
    """Notify the service manager as long as the event loop runs."""
    while notifier.watchdog_seconds:
        notifier.send_alive()
        await asyncio.sleep(notifier.watchdog_seconds)
