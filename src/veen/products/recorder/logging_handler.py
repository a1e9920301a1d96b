"""Handler for Python's `logging`: a log call returns when its event is on disk; it is sent in the background.

    handler = RecorderHandler("record/app/web", identity="web", url="http://127.0.0.1:8080", pin="ed25519:…")
    logging.getLogger().addHandler(handler)

Each event costs one write to disk. A program that logs faster puts `logging.handlers.QueueHandler` in front.
`when_full` selects the behaviour while the spool is full: "block" waits, "drop" counts the event as lost, "raise" lets
logging report the error.
"""

import asyncio
import contextlib
import logging
import os
import socket
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, Literal

from veen.client.client import Client
from veen.client.config.projects import read_both
from veen.client.config.settings import resolve_with_files
from veen.client.errors import LocalError
from veen.client.home import Home, PrivateFs
from veen.client.identity.identity import Identity
from veen.client.identity.keyring import Keyring
from veen.client.identity.keystore import open_identity
from veen.client.send.captokens import TokenStore
from veen.client.transport.calls import Retry
from veen.core.canonical import Json
from veen.products.recorder.agent import Agent, AgentSource, Pace
from veen.products.recorder.events import SourceRecord, fit_record, to_bytes, words_of
from veen.products.recorder.sink import Sinks, SpoolSink
from veen.products.recorder.spool import Spool, SpoolFull, SpoolItem, spool_key

WhenFull = Literal["block", "drop", "raise"]

_SPOOL_BYTES: Final = 64 * 1024 * 1024
_PAUSE_SECONDS: Final = 0.02
_THREADS: Final = 4
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def record_of_log(entry: logging.LogRecord, *, host: str, position: str) -> SourceRecord:
    """Return a record of `logging`. `extra` becomes members of the payload; its `subject` and `event` name it."""
    payload: dict[str, Json] = {
        "message": entry.getMessage(),
        "level": entry.levelname,
        "logger": entry.name,
        "file": f"{entry.pathname}:{entry.lineno}",
        "thread": entry.threadName,
    }
    if entry.exc_info:
        payload["exception"] = "".join(traceback.format_exception(*entry.exc_info))
    for name, value in vars(entry).items():
        if name not in _STANDARD:
            payload[name] = value if isinstance(value, (str, int, float, bool, dict, list, type(None))) else repr(value)
    return SourceRecord(
        subject=words_of(payload.get("subject")) or str(entry.name),
        event_type=words_of(payload.get("event")) or str(entry.levelname).lower(),
        origin=f"{host}/{entry.processName}" if entry.processName else host,
        time=int(entry.created),
        payload=payload,
        position=position,
        source_time=repr(entry.created),
    )


class _Workers(ThreadPoolExecutor):
    """Threads for the event loop that also work while the interpreter shuts down.

    `logging` closes its handlers after the default executor has stopped accepting work; without these threads, records
    still in the spool would wait for the next run.
    """

    def __init__(self) -> None:
        super().__init__(max_workers=_THREADS)  # starts none: `submit` is another
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        for number in range(_THREADS):
            threading.Thread(target=self._work, name=f"veen-recorder-{number}", daemon=True).start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def job() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **options)
            except BaseException as exc:
                future.set_exception(exc)
            else:
                future.set_result(result)

        self._jobs.put(job)
        return future

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        for _ in range(_THREADS):
            self._jobs.put(None)


class RecorderHandler(logging.Handler):
    """One producer of one stream. The agent runs in its own thread, which owns the event loop and the client."""

    kind = "logging"

    def __init__(
        self,
        stream: str,
        *,
        identity: str | None = None,
        url: str | None = None,
        pin: str | None = None,
        passphrase: str | None = None,
        home: Home | None = None,
        ca_file: Path | None = None,
        token_file: Path | None = None,
        when_full: WhenFull = "block",
        spool_bytes: int = _SPOOL_BYTES,
        pace: Pace | None = None,
    ) -> None:
        """Start the agent.

        Missing arguments come from VEEN_IDENTITY, VEEN_HUB and VEEN_PIN, or from the current context.
        """
        place = home or Home.default()
        flags = {"identity": identity, "hub": url, "hub_pk": pin}
        settings = resolve_with_files(flags, os.environ, *read_both(Path.cwd(), place.config_file))
        name, address, pinned = settings.identity.value, settings.hub.value, settings.hub_pk.value
        if not (name and address and pinned):
            raise LocalError(
                "RecorderHandler needs identity, url and pin: as arguments, as VEEN_IDENTITY, VEEN_HUB and VEEN_PIN, or"
                " by a context"
            )
        ca_file, token_file = ca_file or settings.path("ca_file"), token_file or settings.path("token_file")
        self.id, self._when_full, self._host = "logging", when_full, socket.gethostname()
        keystore = open_identity(place, name, passphrase)
        self._stream_id = keystore.secrets.keyring.for_stream(stream).stream_id
        fs = PrivateFs(place.state / "recorder" / name)
        self._spool = Spool(fs, spool_key(keystore.identity), max_bytes=spool_bytes)
        self._began, self._count = int(time.time()), 0  # guarded by the handler's lock
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(_Workers())

        @contextlib.asynccontextmanager
        async def connect(who: Identity, ring: Keyring) -> AsyncIterator[Client]:
            client = await Client.connect(
                address, pin=pinned, identity=who, keyring=ring, home=place, ca_file=ca_file, token_file=token_file,
                bounds=None, retry=Retry(seconds=5.0),
            )  # fmt: skip
            async with client:
                yield client

        tokens = TokenStore(place.tokens_fs(name))
        self._shared = Sinks(self._spool, self._host)
        self._agent = Agent(
            keystore, tokens, self._shared, [AgentSource(_Forever(), self._stream_id)], connect, pace=pace
        )
        self._stop = asyncio.Event()
        self.error: BaseException | None = None  # why the agent ended before `close`
        super().__init__()  # from now on the end of the interpreter closes it
        self._thread = threading.Thread(target=self._run, name="veen-recorder", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._agent.run(self._stop))
        except BaseException as exc:
            self.error = exc

    def emit(self, record: logging.LogRecord) -> None:
        """Return when the event is on disk. Log messages of the recorder itself are not recorded."""
        if record.thread == self._thread.ident or str(record.name).partition(".")[0] == "veen":
            return
        try:
            self._count += 1
            event = record_of_log(record, host=self._host, position=f"{os.getpid()}:{self._began}:{self._count}")
            data = to_bytes(fit_record(event, adapter=self.kind, source=self.id))
            self._store(SpoolItem(self._stream_id, data, self.id, event.position))
        except Exception:  # a handler must not raise into the program that logs; logging.raiseExceptions decides
            self.handleError(record)

    def _store(self, pending: SpoolItem) -> None:
        while True:
            try:
                self._spool.append([pending])
                break
            except SpoolFull:
                if self._when_full == "raise" or (self.error is not None and self._when_full == "block"):
                    raise
                if self._when_full == "drop":
                    self._spool.lose(self.id, "spool full", 1, int(time.time()))
                    return
                time.sleep(_PAUSE_SECONDS)
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._shared.changed.set)

    def flush(self) -> None:
        """Do nothing: events are on disk already."""

    def close(self) -> None:
        """Send the spooled events for at most the drain time; the next run sends the rest."""
        super().close()
        if self._loop.is_closed():
            return
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
        self._loop.close()
        self._spool.close()


class _Forever:
    """A source without records that never ends: the handler writes to the spool from the thread that logs."""

    kind, id = "logging", "logging"

    async def run(self, sink: SpoolSink) -> None:
        await asyncio.Event().wait()
