"""The log of a hub: one JSON object a line, written by its own thread (OBS-03, spec-4 §10.3).

A line about a submit is a tuple until the writer thread formats it, so the path of a message pays only for an append
to a deque. A line names a key by its first eight hex digits and an entry by the first eight of its hash. Keys,
bodies, names and whole client ids are never given to the log.

A line about a refusal has the request_id of the answer, so that an operator finds it by what a user reports.

Strangers cause lines, too, with requests that are cheaper for them than the line is for the disk. `LineBudget`
bounds those lines: the rest is counted, and one line per kind reports the number left out.
"""

import json
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, Self

from veen.core.errors import ApiCode, Refusal
from veen.hub.admission.decide import Refuse
from veen.hub.api.reply import Failure
from veen.hub.process.config import ConfigError, HubConfig
from veen.storage.state import Admitted

LEVELS: Final = ("debug", "info", "warning", "error")
_WAIT_S: Final = 0.1
_BATCH: Final = 256  # lines formatted in one go; the interpreter lock is free between batches
_MAX_WAITING: Final = 65_536
_SAMPLE: Final = 100
_PREFIX: Final = 4  # bytes; eight hex digits
_REFUSED: Final = "refused"
_MAX_WORDS: Final = 160  # characters of a field or a reason in a line

# Lines in one window. All refusals together write 200 lines of some 210 bytes in ten seconds, whoever sends them.
WINDOW_SEC: Final = 10.0
MAX_REFUSED: Final = 200  # refused submits, of all codes together
MAX_PER_KIND: Final = 100  # of one code; or events of one operation
MAX_PER_CALLER: Final = 20  # of one code and one address

_ACCEPTED: Final = (
    '{"ts": "%s", "level": "info", %s, "operation": "submit", "label": "%s", "client_id_prefix": "%s", '
    '"stream_seq": %d, "leaf_hash_prefix": "%s", "bytes_in": %d, "bytes_out": %d, '
    '"verify_ms": %.3f, "commit_ms": %.3f}\n'
)


class RefusalNote(NamedTuple):
    """Details of a refusal in a line, beside its code. `field` and `reason` are the hub's own words, never those of
    a message."""

    request_id: str = ""  # the one in the answer
    detail: str = ""  # the check that failed
    field: str = ""
    reason: str = ""

    @classmethod
    def of(cls, refused: Refuse | Refusal | ApiCode, reason: str) -> Self:
        if isinstance(refused, Refuse):
            detail = refused.detail
            field, why = (str(detail.get(name, ""))[:_MAX_WORDS] for name in ("field", "reason"))
            return cls(refused.request_id, refused.refusal.detail_enum, field, reason or why)
        return cls(detail=refused.detail_enum if isinstance(refused, Refusal) else "", reason=reason[:_MAX_WORDS])


# moment, label, client_id, stream_seq, leaf_hash, code, bytes_in, bytes_out, verify_s, commit_s, about the refusal
Submit = tuple[
    float, bytes | None, bytes | None, int | None, bytes | None, str | None, int, int, float, float, RefusalNote | None
]
Event = tuple[float, str, str, dict[str, Any]]


class LineBudget:
    """The number of lines of each kind that may still be written in the present window. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # guards everything below
        self._until = clock() + WINDOW_SEC
        self._lines: Counter[tuple[str, ...]] = Counter()  # of this window; grows by a written line only, so bounded
        self._left_out: Counter[str] = Counter()  # of this window, by kind
        self.suppressed: Counter[str] = Counter()  # of all windows before and this one, by kind

    def allows_event(self, operation: str) -> bool:
        return self._allows(operation, (((operation,), MAX_PER_KIND),))

    def allows_refusal(self, code: str, address: str) -> bool:
        bounds = (
            ((_REFUSED,), MAX_REFUSED),
            ((_REFUSED, code), MAX_PER_KIND),
            ((_REFUSED, code, address), MAX_PER_CALLER),
        )
        return self._allows(code, bounds)

    def _allows(self, kind: str, bounds: tuple[tuple[tuple[str, ...], int], ...]) -> bool:
        with self._lock:
            if any(self._lines[name] >= most for name, most in bounds):
                self._left_out[kind] += 1
                self.suppressed[kind] += 1
                return False
            self._lines.update(name for name, _ in bounds)
            return True

    def turn(self, *, end: bool = False) -> dict[str, int]:
        """Begin another window once this one is over, or at the `end`. Return the number of lines left out, by kind."""
        now = self._clock()
        with self._lock:
            if now < self._until and not end:
                return {}
            left_out, self._left_out = self._left_out, Counter()
            self._lines.clear()
            self._until = now + WINDOW_SEC
            return dict(left_out)


class EventLog:
    """The log of one hub. `close` waits until all lines are written."""

    def __init__(self, config: HubConfig, fd: int | None = None) -> None:
        self._sink = LogSink.open(config) if fd is None else LogSink(config, fd, own=False)  # the writer thread's
        self._waiting: deque[Submit | Event | LogSink] = deque()
        self._count = 0
        self.dropped = 0
        self.budget = LineBudget()
        self._second, self._stamp = -1, ""
        self._wake = threading.Event()  # set: the writer thread writes now, and not after _WAIT_S
        self._stopping = False
        self._choose(config)
        self._writer = threading.Thread(target=self._run, name="veen-log", daemon=True)
        self._writer.start()

    def configure(self, config: HubConfig, sink: "LogSink") -> None:
        """Apply another configuration. Lines that wait already still go to the sink before."""
        self._choose(config)
        self._waiting.append(sink)

    def _choose(self, config: HubConfig) -> None:
        self._level = LEVELS.index(config.log.level)
        mode = config.log.submits if self._level <= LEVELS.index("info") else "errors"
        self._accepted = {"all": 1, "sampled": _SAMPLE}.get(mode, 0)  # one in so many
        self._refused = mode != "off" and self._level <= LEVELS.index("info")

    # --- in --------------------------------------------------------------------------------------------

    def log_accepted(self, admitted: Admitted, bytes_in: int, bytes_out: int, verify_s: float, commit_s: float) -> None:
        """Log a message that is in the log of entries."""
        if not self._accepted:
            return
        self._count += 1
        if self._count % self._accepted == 0:
            label, client_id, place = admitted.label.label, admitted.client_id, admitted.stream_seq
            leaf = admitted.leaf_hash
            now = time.time()
            self._keep((now, label, client_id, place, leaf, None, bytes_in, bytes_out, verify_s, commit_s, None))

    def log_refused(
        self,
        code: str,
        bytes_in: int,
        verify_s: float,
        commit_s: float,
        label: bytes | None,
        client_id: bytes | None,
        address: str = "",
        refused: Refuse | Refusal | ApiCode | None = None,
        reason: str = "",
    ) -> None:
        """Log a refused message. The line counts against the budget of `address`, which is not written."""
        if self._refused and self.budget.allows_refusal(code, address):
            note = None if refused is None else RefusalNote.of(refused, reason)
            self._keep((time.time(), label, client_id, None, None, code, bytes_in, 0, verify_s, commit_s, note))
            self._wake.set()  # people look for the reason right after a refusal

    def log_failure(self, failure: Failure) -> None:
        """Log a failed request other than a message. The line counts against the same budget as refusals."""
        if not self._refused or not self.budget.allows_refusal(failure.code, failure.address):
            return
        more = {
            "message": "request failed",
            "request": failure.operation,
            "code": failure.code,
            "detail": failure.detail,
            "field": failure.field[:_MAX_WORDS],
            "reason": failure.reason[:_MAX_WORDS],
            "status": failure.status,
            "request_id": failure.request_id,
        }
        if len(self._waiting) >= _MAX_WAITING:
            self.dropped += 1
            return
        written = {name: value for name, value in more.items() if value != ""}
        self._waiting.append((time.time(), "info", "request", written))
        self._wake.set()

    def _keep(self, submit: Submit) -> None:
        if len(self._waiting) >= _MAX_WAITING:
            self.dropped += 1
        else:
            self._waiting.append(submit)

    def event(self, level: str, operation: str, message: str, **more: Any) -> None:
        """Log an event of the hub. `more` holds values of the hub, never of a message."""
        if LEVELS.index(level) >= self._level and self.budget.allows_event(operation):
            self._waiting.append((time.time(), level, operation, {"message": message, **more}))

    def log_suppressed(self, *, end: bool = False) -> None:
        """Log the number of lines that the budget left out, once per window. Called regularly, on any thread."""
        for kind, lines in self.budget.turn(end=end).items():
            more = {"message": "lines of this kind were left out", "kind": kind, "lines": lines}
            self._waiting.append((time.time(), "warning", "suppressed", more))

    # --- out -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping:
            self._wake.wait(_WAIT_S)
            self._wake.clear()
            self._drain()
        self._drain()

    def _drain(self) -> None:
        waiting = self._waiting
        while waiting:
            lines: list[str] = []
            for _ in range(min(_BATCH, len(waiting))):
                if isinstance(line := waiting.popleft(), LogSink):
                    self._write("".join(lines).encode())
                    lines = []
                    self._sink.close()
                    self._sink = line
                else:
                    lines.append(self._format(line))
            self._write("".join(lines).encode())

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._sink.fd, view) :]
        except OSError:  # a log that cannot be written must not stop the hub
            self.dropped += 1

    def _time(self, moment: float) -> str:
        second = int(moment)
        if second != self._second:
            self._second, self._stamp = second, datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return f"{self._stamp}.{int((moment - second) * 1000):03d}Z"

    def _format(self, line: Submit | Event) -> str:
        if len(line) != 4:
            return self._format_submit(line)
        moment, level, operation, more = line
        if not self._sink.as_json:
            message = more.pop("message")
            values = "".join(f" {name}={value}" for name, value in more.items())
            return f"{self._time(moment)[11:19]} {level:<7} {operation}: {message}{values}\n"
        word = "warn" if level == "warning" else level  # spec-4 §10.3
        fields = {"ts": self._time(moment), "level": word, **self._sink.common, "operation": operation, **more}
        return json.dumps(fields, ensure_ascii=False) + "\n"

    def _format_submit(self, submit: Submit) -> str:
        moment, label, client_id, stream_seq, leaf_hash, code, bytes_in, bytes_out, verify_s, commit_s, note = submit
        if not self._sink.as_json:
            where = f" {label.hex()[:8]}… seq {stream_seq}" if label and stream_seq else ""
            verdict = f"refused {code}{_words(note, client_id)}" if code else "accepted"
            took = f"verify {verify_s * 1000:.2f} ms, commit {commit_s * 1000:.2f} ms"
            return f"{self._time(moment)[11:19]} info    submit: {verdict}{where}, {bytes_in} bytes, {took}\n"
        # Not json.dumps: every value is a number or hex, and this runs for each message. Accepted ones go fast.
        if label is not None and client_id is not None and leaf_hash is not None and code is None:
            return _ACCEPTED % (
                self._time(moment),
                self._sink.fixed,
                label.hex(),
                client_id[:_PREFIX].hex(),
                stream_seq,
                leaf_hash[:_PREFIX].hex(),
                bytes_in,
                bytes_out,
                verify_s * 1000,
                commit_s * 1000,
            )
        took = f'"verify_ms": {verify_s * 1000:.3f}, "commit_ms": {commit_s * 1000:.3f}}}\n'
        head = f'{{"ts": "{self._time(moment)}", "level": "info", {self._sink.fixed}, "operation": "submit", '
        if label is not None:
            head += f'"label": "{label.hex()}", '
        if client_id is not None:
            head += f'"client_id_prefix": "{client_id[:_PREFIX].hex()}", '
        if code is not None:
            head += f'"code": "{code}", '
        if note is not None:
            said = {name: value for name, value in note._asdict().items() if value}
            head += "".join(f'"{name}": {json.dumps(value)}, ' for name, value in said.items())
        return f'{head}"bytes_in": {bytes_in}, "bytes_out": {bytes_out}, {took}'

    def close(self) -> None:
        self.log_suppressed(end=True)
        self._stopping = True
        self._wake.set()
        self._writer.join()
        self._sink.close()


def _words(note: RefusalNote | None, client_id: bytes | None) -> str:
    """Return the details of a refusal for a line of text."""
    words = [] if note is None else [note.detail, note.field, note.reason]
    words += [f"client {client_id[:_PREFIX].hex()}"] if client_id is not None else []
    words += [f"request {note.request_id}"] if note is not None and note.request_id else []
    return "".join(f" {word}" for word in words if word)


class LogSink:
    """A file for lines, and the fields that all lines in it share. Fixed; a reload opens another one."""

    def __init__(self, config: HubConfig, fd: int, *, own: bool) -> None:
        self.fd, self._own = fd, own
        self.as_json = config.log.format == "json" or (config.log.format == "auto" and not os.isatty(fd))
        self.common = {"component": "hub", "role": config.role}
        if config.tenant_id:
            self.common["tenant_id"] = config.tenant_id
        self.fixed = json.dumps(self.common)[1:-1]

    @classmethod
    def open(cls, config: HubConfig) -> Self:
        """Open the configured file. Each reload opens it again, to let go of a file that a log rotation renamed."""
        file = config.log.file
        if file is None:
            return cls(config, 2, own=False)
        try:
            fd = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as exc:
            remedy = "Check the path and its permissions."
            raise ConfigError(str(file), "log.file", f"cannot be opened: {exc.strerror}", remedy) from exc
        return cls(config, fd, own=True)

    def close(self) -> None:
        if self._own:
            os.close(self.fd)
