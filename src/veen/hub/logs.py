"""The log of a hub: one JSON object a line, written by a thread of its own (OBS-03, spec-4 §10.3).

A line about a submit is a tuple until the writer formats it, so the path of a message pays for an append to a deque
only. A line says who by the first eight hex digits of a key and what by the first eight of a hash; keys, bodies,
names and whole client ids are never given to the log.
"""

import json
import os
import threading
import time
from collections import deque
from datetime import UTC, datetime
from typing import Any, Final

from veen.hub.config import HubConfig
from veen.storage.state import Admitted

__all__ = ["LEVELS", "Log", "Submit"]

LEVELS: Final = ("debug", "info", "warning", "error")
_WAIT_S: Final = 0.1
_BATCH: Final = 256  # lines formatted in one go; the interpreter lock is free between batches
_MAX_WAITING: Final = 65_536
_SAMPLE: Final = 100
_PREFIX: Final = 4  # bytes; eight hex digits

_ACCEPTED: Final = (
    '{"ts": "%s", "level": "info", %s, "operation": "submit", "label": "%s", "client_id_prefix": "%s", '
    '"stream_seq": %d, "leaf_hash_prefix": "%s", "bytes_in": %d, "bytes_out": %d, '
    '"verify_ms": %.3f, "commit_ms": %.3f}\n'
)

# moment, label, client_id, stream_seq, leaf_hash, code, bytes_in, bytes_out, verify_s, commit_s
Submit = tuple[float, bytes | None, bytes | None, int | None, bytes | None, str | None, int, int, float, float]
Event = tuple[float, str, str, dict[str, Any]]


class Log:
    """Where a hub's lines go. `close` waits until all are written."""

    def __init__(self, config: HubConfig, fd: int | None = None) -> None:
        self._own_fd = fd is None and config.log.file is not None
        if self._own_fd:
            assert config.log.file is not None  # noqa: S101 - just looked
            fd = os.open(config.log.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        self._fd = 2 if fd is None else fd
        self._as_json = config.log.format == "json" or (config.log.format == "auto" and not os.isatty(self._fd))
        self._common = {"component": "hub", "role": config.role}
        if config.tenant_id:
            self._common["tenant_id"] = config.tenant_id
        self._fixed = json.dumps(self._common)[1:-1]
        self._waiting: deque[Submit | Event] = deque()
        self._count = 0
        self.dropped = 0
        self._second, self._stamp = -1, ""
        self._stop = threading.Event()
        self.configure(config)
        self._writer = threading.Thread(target=self._run, name="veen-log", daemon=True)
        self._writer.start()

    def configure(self, config: HubConfig) -> None:
        """Take over what a reload may change."""
        self._level = LEVELS.index(config.log.level)
        mode = config.log.submits if self._level <= LEVELS.index("info") else "errors"
        self._accepted = {"all": 1, "sampled": _SAMPLE}.get(mode, 0)  # one in so many
        self._refused = mode != "off" and self._level <= LEVELS.index("info")

    # --- in --------------------------------------------------------------------------------------------

    def accepted(self, admitted: Admitted, bytes_in: int, bytes_out: int, verify_s: float, commit_s: float) -> None:
        """A message is in the log."""
        if not self._accepted:
            return
        self._count += 1
        if self._count % self._accepted == 0:
            label, client_id, place = admitted.label.label, admitted.client_id, admitted.stream_seq
            leaf = admitted.leaf_hash
            self._keep((time.time(), label, client_id, place, leaf, None, bytes_in, bytes_out, verify_s, commit_s))

    def refused(
        self, code: str, bytes_in: int, verify_s: float, commit_s: float, label: bytes | None, client_id: bytes | None
    ) -> None:
        """A message is not in the log, for `code`."""
        if self._refused:
            self._keep((time.time(), label, client_id, None, None, code, bytes_in, 0, verify_s, commit_s))

    def _keep(self, submit: Submit) -> None:
        if len(self._waiting) >= _MAX_WAITING:
            self.dropped += 1
        else:
            self._waiting.append(submit)

    def event(self, level: str, operation: str, message: str, **more: Any) -> None:
        """Something that happened to the hub. `more` holds values of ours, never of a message."""
        if LEVELS.index(level) >= self._level:
            self._waiting.append((time.time(), level, operation, {"message": message, **more}))

    # --- out -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.wait(_WAIT_S):
            self._drain()
        self._drain()

    def _drain(self) -> None:
        waiting = self._waiting
        while waiting:
            lines = [self._format(waiting.popleft()) for _ in range(min(_BATCH, len(waiting)))]
            self._write("".join(lines).encode())

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
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
        if not self._as_json:
            message = more.pop("message")
            values = "".join(f" {name}={value}" for name, value in more.items())
            return f"{self._time(moment)[11:19]} {level:<7} {operation}: {message}{values}\n"
        fields = {"ts": self._time(moment), "level": level, **self._common, "operation": operation, **more}
        return json.dumps(fields, ensure_ascii=False) + "\n"

    def _format_submit(self, submit: Submit) -> str:
        moment, label, client_id, stream_seq, leaf_hash, code, bytes_in, bytes_out, verify_s, commit_s = submit
        if not self._as_json:
            where = f" {label.hex()[:8]}… seq {stream_seq}" if label and stream_seq else ""
            verdict = f"refused {code}" if code else "accepted"
            took = f"verify {verify_s * 1000:.2f} ms, commit {commit_s * 1000:.2f} ms"
            return f"{self._time(moment)[11:19]} info    submit: {verdict}{where}, {bytes_in} bytes, {took}\n"
        # Not json.dumps: every value is a number or hex, and this runs for each message. Accepted ones go fast.
        if label is not None and client_id is not None and leaf_hash is not None and code is None:
            return _ACCEPTED % (
                self._time(moment),
                self._fixed,
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
        head = f'{{"ts": "{self._time(moment)}", "level": "info", {self._fixed}, "operation": "submit", '
        if label is not None:
            head += f'"label": "{label.hex()}", '
        if client_id is not None:
            head += f'"client_id_prefix": "{client_id[:_PREFIX].hex()}", '
        if code is not None:
            head += f'"code": "{code}", '
        return f'{head}"bytes_in": {bytes_in}, "bytes_out": {bytes_out}, {took}'

    def close(self) -> None:
        self._stop.set()
        self._writer.join()
        if self._own_fd:
            os.close(self._fd)
