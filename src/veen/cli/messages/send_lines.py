"""`veen send --lines`: many messages from one source, in batches, with one opening of the keystore."""

import contextlib
import json
import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Final

from veen.cli.shared.command import CliSession
from veen.cli.shared.output import Exit, Fail, Mode, Output

if TYPE_CHECKING:
    from veen.client.send.sealing import Draft
    from veen.client.send.writing import Outcome
    from veen.core.objects.captoken import CapToken

_GROUP: Final = 512  # lines that are handed to the client together
_GROUP_BYTES: Final = 4 * 1024 * 1024
_MAX_LINE: Final = 16 * 1024 * 1024  # longer than any hub takes
_AHEAD: Final = 4 * _GROUP  # lines that are read while others are being sent


class BadLine(Exception):
    """A line that cannot be converted to a message."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(number, why)
        self.number, self.why = number, why


@dataclass(frozen=True, slots=True, kw_only=True)
class LineSource:
    """Source and form of lines."""

    file: IO[bytes]
    name: str  # of a file, or "-"
    ndjson: bool
    skip: int = 0
    schema: bytes | None = None
    expires_at: int | None = None

    def draft(self, number: int, line: bytes) -> "Draft":
        """Return the message of a line. Raise BadLine for an invalid one."""
        from veen.client.send.sealing import Draft

        if not self.ndjson:
            return Draft(body=line, schema=self.schema, expires_at=self.expires_at)
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as exc:
            raise BadLine(number, f"it is not JSON: {type(exc).__name__}") from exc
        if not isinstance(fields, dict):
            raise BadLine(number, "it is not a JSON object")
        return Draft(
            body=_body(number, fields),
            schema=_schema(number, fields) or self.schema,
            parent=_hex(number, fields, "parent_id"),
            expires_at=_whole(number, fields, "expires_at") or self.expires_at,
        )

    def groups(self) -> Iterator[list[tuple[int, bytes]]]:
        """Yield numbered lines, as many as are available: do not wait for a slow source."""
        lines: queue.Queue[tuple[int, bytes] | Exception | None] = queue.Queue(_AHEAD)

        def read() -> None:
            try:
                number = 0
                while line := self.file.readline(_MAX_LINE + 1):
                    number += 1
                    if len(line) > _MAX_LINE:
                        raise BadLine(number, f"it is longer than {_MAX_LINE} bytes")
                    line = line.removesuffix(b"\n").removesuffix(b"\r")
                    if line and number > self.skip:
                        lines.put((number, line))
                lines.put(None)
            except Exception as exc:
                lines.put(exc)

        threading.Thread(target=read, name="lines", daemon=True).start()
        while True:
            group: list[tuple[int, bytes]] = []
            size, item = 0, lines.get()
            while isinstance(item, tuple):
                group.append(item)
                size += len(item[1])
                if len(group) >= _GROUP or size >= _GROUP_BYTES:
                    break
                try:
                    item = lines.get_nowait()
                except queue.Empty:
                    break
            if group:
                yield group
            if isinstance(item, Exception):
                raise item
            if item is None:
                return


def _body(number: int, fields: dict[str, Any]) -> bytes:
    body, digits = fields.get("body"), fields.get("body_hex")
    if isinstance(body, str):
        return body.encode("utf-8", "surrogatepass")
    if body is not None:
        return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    if isinstance(digits, str):
        with contextlib.suppress(ValueError):
            return bytes.fromhex(digits)
    raise BadLine(number, "it has neither body nor body_hex; --lines sends the line itself")


def _schema(number: int, fields: dict[str, Any]) -> bytes | None:
    from veen.core.labels import schema_id

    name = fields.get("schema")
    if name is None:
        return None
    if not isinstance(name, str):
        raise BadLine(number, "schema is not a text")
    return schema_id(name)


def _hex(number: int, fields: dict[str, Any], name: str) -> bytes | None:
    text = fields.get(name)
    if text is None:
        return None
    with contextlib.suppress(ValueError, TypeError):
        data = bytes.fromhex(text)
        if len(data) == 32:
            return data
    raise BadLine(number, f"{name} is not 32 bytes in hex")


def _whole(number: int, fields: dict[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if value is not None and (type(value) is not int or not 0 <= value < 2**63):
        raise BadLine(number, f"{name} is not a time in seconds")
    return value


class _Tally:
    """Outcomes of the lines so far."""

    def __init__(self) -> None:
        self.lines = self.accepted = self.failed = self.late = 0
        self.first_seq: int | None = None
        self.last_seq: int | None = None
        self.last_line = 0
        self.first_error: dict[str, Any] | None = None


def send_lines(
    output: Output, session: CliSession, stream: str, source: LineSource, token: "CapToken | None", *, once: bool
) -> None:
    """Send every line. Stop after the batch in which the first one fails, and print the line to resume from."""
    tally, started = _Tally(), time.perf_counter()
    tally.last_line = source.skip
    try:
        with (
            output.progress("sending lines") as progress,
            output.records("messages", ("line", "seq", "msg_id"), (6, 6, 9)) as records,
        ):
            for group in source.groups():
                try:
                    drafts, bad = _drafts(source, group)
                    outcomes = session.client().send_many(stream, drafts, capability=token, once=once) if drafts else []
                    for (number, _), outcome in zip(group, outcomes, strict=False):
                        data, cells = _record_outcome(number, outcome, tally)
                        if output.mode is not Mode.HUMAN:
                            records.add(data, cells)
                    if bad is not None:
                        raise bad
                finally:
                    seconds = round(time.perf_counter() - started, 4)
                    records.summary({"stream": stream, **_summary(tally), "seconds": seconds})
                progress(f"{tally.accepted} accepted")
                if tally.failed:
                    break
    except BadLine as exc:
        what = f"line {exc.number} of {source.name} is no message"
        raise Fail("E.USAGE", what, exc.why, _go_on(stream, source, exc.number - 1)) from exc
    except Exception as exc:
        _explain(session, exc, stream, source, tally)
        raise
    session.remember_stream(stream)
    _show_summary(output, tally, time.perf_counter() - started)
    if tally.first_error is not None:
        error = tally.first_error
        raise Fail(
            error["code"],
            f"{tally.failed} of {tally.lines} lines were not accepted",
            f"line {error['line']}: {error['message']}",
            _go_on(stream, source, tally.last_line),
            exit_code=Exit(error["exit"]),
        )


def _drafts(source: LineSource, group: list[tuple[int, bytes]]) -> "tuple[list[Draft], BadLine | None]":
    """Return the messages up to the first invalid line, and that line."""
    drafts: list[Draft] = []
    for number, line in group:
        try:
            drafts.append(source.draft(number, line))
        except BadLine as exc:
            return drafts, exc
    return drafts, None


def _record_outcome(number: int, outcome: "Outcome", tally: _Tally) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """Count the outcome of a line; return it for programs and for pipes."""
    from veen.client.send.writing import Sent

    tally.lines += 1
    tally.last_line = number
    if isinstance(outcome, Sent):
        tally.accepted += 1
        tally.late += outcome.is_late
        tally.first_seq = outcome.seq if tally.first_seq is None else tally.first_seq
        tally.last_seq = outcome.seq
        data = {
            "line": number,
            "seq": outcome.seq,
            "msg_id": outcome.msg_id.hex(),
            "mmr_root": outcome.root.hex(),
            "late": outcome.is_late,
            "verified": True,
            "error": None,
        }
        return data, (number, outcome.seq, outcome.msg_id.hex())
    from veen.cli.shared.failures import failure_of

    fail = failure_of(outcome)
    tally.failed += 1
    error = {"line": number, "code": fail.code, "message": fail.cause, "exit": int(fail.exit_code)}
    tally.first_error = tally.first_error or error
    data = {"line": number, "seq": None, "msg_id": None, "mmr_root": None, "late": False, "verified": False}
    return {**data, "error": {"code": fail.code, "message": fail.cause}}, (number, "", f"[{fail.code}] {fail.cause}")


def _summary(tally: _Tally) -> dict[str, Any]:
    return {
        "lines": tally.lines,
        "accepted": tally.accepted,
        "late": tally.late,
        "failed": tally.failed,
        "first_seq": tally.first_seq,
        "last_seq": tally.last_seq,
        "last_line": tally.last_line,
    }


def _show_summary(output: Output, tally: _Tally, seconds: float) -> None:
    if output.mode is not Mode.HUMAN:
        return
    if not tally.accepted:
        output.line("no line was sent")
        return
    rate = f"{tally.accepted / max(seconds, 1e-9):,.0f}/s"
    late = f"  {tally.late} of them from an earlier command" if tally.late else ""
    output.line(
        f"accepted  {tally.accepted} messages  seq {tally.first_seq} to {tally.last_seq}  receipts verified"
        f"  ({seconds:.2f} s, {rate}){late}",
        good="receipts verified",
    )


def _explain(session: CliSession, exc: Exception, stream: str, source: LineSource, tally: _Tally) -> None:
    """Add the progress to an error: lines kept as pending messages count as done."""
    session.note_waiting(exc)
    waiting = getattr(exc, "waiting", None)
    if waiting is not None:
        done = tally.last_line
        exc.remedy = (  # type: ignore[attr-defined]  # read by `failures`
            f"{tally.accepted} lines were accepted, up to line {done}. Run the same command with --skip {done}:"
            " what is kept is recognised, and not sent twice"
        )


def _go_on(stream: str, source: LineSource, line: int) -> str:
    how = "--from-ndjson" if source.ndjson else "--lines"
    file = "" if source.name == "-" else f" --file {source.name}"
    return f"mend the line, then go on: veen send {stream} {how}{file} --skip {line}"
