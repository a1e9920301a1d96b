"""Output of a container: one JSON object a line on both streams, from the first line on (spec-4 §10.3).

`VEEN_LOG_FORMAT=json` selects it, which images and manifests set. A terminal is not changed, and standard output keeps
a form that the command line names (`--json`). All output passes here, also that of libraries.
"""

import io
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, TextIO

_COMPONENTS: Final = ("hub", "bridge", "selftest")  # groups of commands that have an image of their own
_OF_ROLE: Final = {"authority": "hub", "tenant": "hub", "bridge": "bridge", "selftest": "selftest", "cli": "cli"}
_ALWAYS: Final = ("ts", "level", "component", "role")
_ROLES: Final = ("--profile", "--role")


def is_asked_for(environ: Mapping[str, str]) -> bool:
    """Return True if the environment selects JSON lines."""
    return environ.get("VEEN_LOG_FORMAT", "").lower() == "json"


def install(arguments: Sequence[str], operation: str, *, keep_stdout: bool) -> None:
    """Replace both standard streams; except terminals, and with `keep_stdout` standard output."""
    common = common_fields(arguments, operation, os.environ)
    if not keep_stdout and not sys.stdout.isatty():
        sys.stdout = LogLines(sys.stdout, "info", common)
    if not sys.stderr.isatty():
        sys.stderr = LogLines(sys.stderr, "warn", common)


def common_fields(arguments: Sequence[str], operation: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the fields of all lines of a command: component, role, tenant_id if there is one, operation."""
    group = operation.partition(" ")[0]
    role = environ.get("VEEN_ROLE", "")
    component = _OF_ROLE.get(role) or (group if group in _COMPONENTS else "cli")
    if operation == "hub start":
        role = _option(arguments, _ROLES) or role or "tenant"
    common = {"component": component, "role": role or component}
    if tenant := environ.get("VEEN_TENANT_ID"):
        common["tenant_id"] = tenant
    common["operation"] = operation or component
    return common


def _option(arguments: Sequence[str], names: Sequence[str]) -> str | None:
    for word, following in zip(arguments, [*arguments, ""][1:], strict=True):
        name, equals, value = word.partition("=")
        if name in names:
            return value if equals else following
    return None


class LogLines(io.TextIOBase):
    """A text stream that turns each line into a JSON object: `record` if it is one already, else `message`."""

    def __init__(self, stream: TextIO, level: str, common: Mapping[str, str]) -> None:
        self._stream, self._level, self._common = stream, level, dict(common)
        self._rest = ""  # of a line that is not complete

    @property
    def buffer(self) -> Any:
        """Underlying byte stream: files that a command writes to standard output pass unchanged."""
        return self._stream.buffer

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a property, as of every text stream
        return "utf-8"

    @property
    def errors(self) -> str:  # type: ignore[override]
        return "backslashreplace"

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError("expected text")
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._write_line(line)
        return len(text)

    def flush(self) -> None:
        """Flush complete lines. An incomplete one waits for its end."""
        self._stream.flush()

    def finish(self) -> None:
        """Write also a last line without end."""
        rest, self._rest = self._rest, ""
        self._write_line(rest)
        self.flush()

    def _write_line(self, line: str) -> None:
        if line.strip():
            import json  # no command but one that is asked for lines needs it: help must stay fast

            self._stream.write(json.dumps(self._fields(line), ensure_ascii=False) + "\n")

    def _fields(self, line: str) -> dict[str, Any]:
        import json

        now = time.time()
        fields: dict[str, Any] = {
            "ts": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}.{int(now % 1 * 1000):03d}Z",
            "level": self._level,
            **self._common,
        }
        try:
            value = json.loads(line)
        except ValueError:
            return fields | {"message": line.rstrip()}
        if not isinstance(value, dict):
            return fields | {"message": line.rstrip()}
        if {"ts", "level", "component"} <= value.keys():  # a line of a log already
            return {name: value.get(name, fields[name]) for name in _ALWAYS} | value
        if {"code", "message", "exit"} <= value.keys():  # how a command ended
            return fields | {"level": "error"} | value
        if "notice" in value or value.keys() == {"summary", "of"}:
            return fields | value
        return fields | {"record": value}
