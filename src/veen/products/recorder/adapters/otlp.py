"""OpenTelemetry logs over HTTP: POST /v1/logs, protobuf or JSON, gzip.

200 is answered when every record of the request has a receipt. While the spool is full or the hub is away the answer is
503 with Retry-After, never 429, which some exporters take as final.

OTLP has no id of a request, so equal bytes are either a retry or the same records once more. They are a retry

    if they come on a connection on which these bytes were not answered with 200 yet, or
    if they come on another connection within 10 to 20 minutes: the answer to the first request may have been lost, or
    if they have the same Idempotency-Key, at any time

and are recorded once. They are recorded again if the sender got 200 for them on the same connection, if they come
later, or if they have another Idempotency-Key.

Attributes keep their names and types; `audit.integrity.*` values are kept byte-true, as every other, and what they sign
once more with its types (`_typed`), so that `veen recorder verify` can check it. A signed record from which a rule took
a value has no `_typed`, and says so (`_unverifiable`).

A jump of `audit.sequence.number` is recorded as a loss at once: those between never came, or come late and are recorded
as well. Numbers belong to the credential that sent them: a sender cannot move on the numbers of another token or
certificate. A jump by more than a million is refused with 400. A request that is no OTLP gets 400 and is recorded as a
loss, since its sender will not repeat it.
"""

import asyncio
import base64
import json
import ssl
from collections.abc import Iterator, Mapping
from typing import Any, Final

from veen.core.canonical import InvalidJson, Json, parse
from veen.io.web_listener import Tokens, WebAnswer, WebRequest, is_authorized
from veen.products.recorder.adapters.webhook import PushSource
from veen.products.recorder.events import SourceRecord, value_at, words_of
from veen.products.recorder.integrity import SEQUENCE, is_signed, sequence_of, to_typed
from veen.products.recorder.redaction import Opening, Redactor, redact
from veen.products.recorder.sink import SpoolSink

_RECEIPT_SECONDS: Final = 20.0  # exporters give up after 10 to 30 s; a repeated request then finds its receipts
_RETRY_SECONDS: Final = "2"
_PROTOBUF: Final = "application/x-protobuf"
_DEPTH: Final = 120  # twice what a payload may have: each level of a value is two of its encoding
_NANOS: Final = 10**9
_MAX_SENDERS: Final = 1_024  # whose numbers are followed
_MAX_JUMP: Final = 1_000_000  # numbers that a sender may leave out at once
_RETRY_WINDOW: Final = 600  # seconds: equal bytes of another connection are a retry for this long, and up to twice it
_MAX_ANSWERED: Final = 64  # requests of a connection that are remembered
UNVERIFIABLE: Final = "redacted: the signature of this record can no longer be checked"


def _json_of_any(value: Any) -> Json:
    """Convert an AnyValue of OTLP/JSON, which has integers as text and bytes as base64."""
    if not isinstance(value, dict) or len(value) != 1:
        return None
    (kind, inner), *_ = value.items()
    if kind in ("stringValue", "boolValue", "bytesValue"):
        return {"base64": inner} if kind == "bytesValue" else inner
    if kind == "intValue":
        return int(inner)
    if kind == "doubleValue":
        number = float(inner)
        return number if number == number and abs(number) != float("inf") else str(inner)
    if kind == "arrayValue":
        return [_json_of_any(element) for element in inner.get("values", [])]
    if kind == "kvlistValue":
        return _attributes(inner.get("values", []))
    return None


def _attributes(pairs: Any) -> dict[str, Json]:
    return {str(pair.get("key", "")): _json_of_any(pair.get("value")) for pair in pairs or []}


def _seconds(value: Any) -> int:
    return int(value or 0) // _NANOS


def records_of_request(
    tree: dict[str, Any],
    *,
    key: str,
    now: int,
    host: str,
    redactor: Redactor | None = None,
    key_suffixes: tuple[str, ...] = ("",),
    about: Mapping[str, Json] | None = None,
) -> Iterator[SourceRecord]:
    """Yield the log records of an ExportLogsServiceRequest in its JSON form.

    `key` identifies the request. A record is a repetition if its key with any of the suffixes was recorded; it is
    recorded under the first one.
    """
    number = 0
    for resource_logs in tree.get("resourceLogs", []):
        resource = _attributes(resource_logs.get("resource", {}).get("attributes"))
        for scope_logs in resource_logs.get("scopeLogs", []):
            scope = scope_logs.get("scope", {})
            for log in scope_logs.get("logRecords", []):
                payload, openings = _payload(resource, scope, log, redactor)
                stamp = payload.get("timeUnixNano") or payload.get("observedTimeUnixNano")
                number += 1
                yield SourceRecord(
                    subject=_first_words(payload, "attributes.enduser.id", "attributes.user.id", _SERVICE) or "unknown",
                    event_type=_first_words(payload, "eventName", "attributes.event.name", "severityText") or "log",
                    origin=_first_words(payload, _SERVICE) or host,
                    time=(_seconds(stamp) if isinstance(stamp, str) else 0) or now,
                    payload=payload,
                    position=f"{key[:32]}:{number}",
                    key=f"{key}:{number}{key_suffixes[0]}",
                    earlier_keys=tuple(f"{key}:{number}{suffix}" for suffix in key_suffixes[1:]),
                    source_time=stamp if isinstance(stamp, str) else None,
                    about=about or {},
                    openings=openings,
                )


_SERVICE: Final = "resource.service.name"


def _first_words(payload: Json, *paths: str) -> str | None:
    """Return the first of these members that is a scalar, as text."""
    for path in paths:
        if name := words_of(value_at(payload, path)):
            return name
    return None


def _payload(
    resource: dict[str, Json], scope: dict[str, Any], log: dict[str, Any], redactor: Redactor | None
) -> tuple[dict[str, Json], tuple[Opening, ...]]:
    """Return all fields of a log record after redaction, and the openings of the redacted values."""
    payload: dict[str, Json] = {"body": _json_of_any(log.get("body")), "attributes": _attributes(log.get("attributes"))}
    payload["resource"] = resource
    for name in ("name", "version"):
        if scope.get(name):
            payload[f"scope_{name}"] = scope[name]
    for name in ("severityText", "severityNumber", "traceId", "spanId", "eventName", "flags"):
        if log.get(name):
            payload[name] = log[name]
    for name in ("timeUnixNano", "observedTimeUnixNano"):
        if log.get(name):
            payload[name] = str(log[name])
            _seconds(log[name])  # ValueError if it is no number
    has_signature = is_signed(payload)
    redacted, openings = redact(redactor, payload)
    if has_signature and openings:
        redacted = {**redacted, "_unverifiable": UNVERIFIABLE}
    elif has_signature:
        redacted["_typed"] = {
            "body": to_typed(log.get("body")),
            "attributes": {
                str(pair.get("key", "")): to_typed(pair.get("value")) for pair in log.get("attributes") or []
            },
        }
    return redacted, openings


def _decode_request(request: WebRequest) -> dict[str, Any]:
    """Decode the body. Raise ValueError if it is not an ExportLogsServiceRequest."""
    if request.headers.get("content-type", "").partition(";")[0].strip() == _PROTOBUF:
        from google.protobuf.json_format import MessageToDict
        from google.protobuf.message import DecodeError
        from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

        message = ExportLogsServiceRequest()
        try:
            message.ParseFromString(request.body)
        except DecodeError as exc:
            raise ValueError(str(exc)) from exc
        tree: dict[str, Any] = MessageToDict(message)
        return _set_hex_ids(tree)
    value = parse(request.body, max_depth=_DEPTH)
    if not isinstance(value, dict):
        raise ValueError("expected a JSON object")
    return value


def _set_hex_ids(tree: dict[str, Any]) -> dict[str, Any]:
    """Replace trace and span ids by hex, as OTLP/JSON has them; protobuf's own JSON has base64."""
    for resource_logs in tree.get("resourceLogs", []):
        for scope_logs in resource_logs.get("scopeLogs", []):
            for log in scope_logs.get("logRecords", []):
                for name in ("traceId", "spanId"):
                    if name in log:
                        log[name] = base64.b64decode(log[name]).hex()
    return tree


class TooFar(ValueError):
    """A sequence number is too far above the previous one."""


class Otlp(PushSource):
    """A listener for exporters. With `wait_receipt=False` it answers when the records are on disk."""

    kind = "otlp"

    def __init__(
        self,
        id: str,
        host: str,
        port: int,
        *,
        path: str = "/v1/logs",
        token: Tokens = None,
        tls: ssl.SSLContext | None = None,
        wait_receipt: bool = True,
    ) -> None:
        self.id, self._path, self._wait_receipt = id, path, wait_receipt
        super().__init__(host, port, token=token, tls=tls)
        self._sequences: dict[str, int] = {}  # sender -> its last audit.sequence.number; on the agent's event loop
        self._occasions = 0  # requests that were sent once more after an answer; on the agent's event loop

    async def _jumps(self, sink: SpoolSink, numbered: list[tuple[str, int]]) -> dict[str, tuple[int, list[int]]]:
        """Return the last number of each sender, and its numbers in this request. Raise TooFar if they jump too far."""
        senders: dict[str, tuple[int, list[int]]] = {}
        for sender, number in sorted(numbered):
            if sender not in senders:
                last = self._sequences.get(sender)
                if last is None and len(self._sequences) >= _MAX_SENDERS:
                    continue  # `veen recorder verify` still sees the gap
                senders[sender] = (int(await sink.recall(sender) or number - 1) if last is None else last, [])
            last, numbers = senders[sender]
            if number - max([last, *numbers[-1:]]) > _MAX_JUMP:
                raise TooFar(f"{SEQUENCE} jumps from {max([last, *numbers[-1:]])} to {number}, above {_MAX_JUMP}")
            numbers.append(number)
        return senders

    async def _note_gaps(self, sink: SpoolSink, senders: dict[str, tuple[int, list[int]]]) -> None:
        """Count the numbers that a sender left out, once each: a repeated request leaves out nothing new."""
        for sender, (before, numbers) in senders.items():
            last = before
            for number in numbers:
                if number > last + 1:
                    what = f"{SEQUENCE} of {sender}: {last + 1} to {number - 1} did not come"
                    await sink.lost(what, number - last - 1)
                last = max(number, last)
            if last > before or sender not in self._sequences:
                self._sequences[sender] = max(last, self._sequences.get(sender, last))
                await sink.remember(sender, str(self._sequences[sender]))

    def _key(self, request: WebRequest, sink: SpoolSink) -> tuple[str, tuple[str, ...]]:
        """Return the key of this request, and the suffixes under which a retry of it may have been recorded."""
        wanted = request.headers.get("idempotency-key", "")
        digest = sink.digest(wanted.encode("latin-1") + b"\0" + request.body)
        if wanted:
            return digest, ("",)
        occasion, is_answered = request.notes.get(digest, ("", False))
        if is_answered:  # the sender has its answer, so these are the same records once more
            self._occasions += 1
            occasion = f"+{sink.now()}.{self._occasions}"
        request.notes[digest] = (occasion, False)
        while len(request.notes) > _MAX_ANSWERED:
            del request.notes[next(iter(request.notes))]
        window = sink.now() // _RETRY_WINDOW
        return digest + occasion, tuple(f"@{window + step}" for step in (0, -1, 1))

    async def _answer(self, request: WebRequest, sink: SpoolSink) -> WebAnswer:
        if not is_authorized(request, self._token):
            return WebAnswer(401, b'{"message":"a bearer token is needed"}')
        if request.path != self._path:
            return WebAnswer(404, b'{"message":"logs go to %s"}' % self._path.encode())
        if request.method != "POST":
            return WebAnswer(405, b'{"message":"POST only"}', headers={"allow": "POST"})
        key, suffixes = self._key(request, sink)
        about = self._about(request, sink)
        try:
            records = list(
                records_of_request(
                    _decode_request(request), key=key, now=sink.now(), host=sink.host, redactor=sink.redactor,
                    key_suffixes=suffixes, about=about,
                )
            )  # fmt: skip
            numbered = [pair for record in records if (pair := sequence_of(record.payload, about)) is not None]
            senders = await self._jumps(sink, numbered)
        except TooFar as exc:
            await sink.lost(f"a request whose {SEQUENCE} jumps above the bound: its sender does not repeat it", 1)
            return WebAnswer(400, json.dumps({"message": str(exc)}).encode())
        except (InvalidJson, ValueError, TypeError, AttributeError, KeyError) as exc:
            await sink.lost("a request that is no OTLP: its sender does not repeat it", 1)
            return WebAnswer(400, json.dumps({"message": f"not an ExportLogsServiceRequest: {exc}"[:300]}).encode())
        try:
            async with asyncio.timeout(_RECEIPT_SECONDS):
                await self._note_gaps(sink, senders)
                numbers = await sink.put(records)
                if self._wait_receipt:
                    await sink.wait_for_receipts(numbers)
        except TimeoutError:
            return WebAnswer(503, b'{"message":"not recorded yet"}', headers={"retry-after": _RETRY_SECONDS})
        for digest, (occasion, _) in request.notes.items():
            if digest + occasion == key:
                request.notes[digest] = (occasion, True)
        is_protobuf = request.headers.get("content-type", "").startswith(_PROTOBUF)
        return WebAnswer(200, b"" if is_protobuf else b"{}", _PROTOBUF if is_protobuf else "application/json")
