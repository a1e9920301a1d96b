"""OpenTelemetry logs over HTTP: POST /v1/logs, protobuf or JSON, gzip.

200 is answered when every record of the request has a receipt. While the spool is full or the hub is away the answer is
503 with Retry-After, never 429, which some exporters take as final. A sender that repeats a request after 503, or after
a lost answer, sends the same bytes: they are recognised by their hash, so nothing is recorded twice.

Attributes keep their names and types; `audit.integrity.*` values are kept byte-true, as every other, and what they sign
once more with its types (`_typed`), so that `veen recorder verify` can check it. A jump of `audit.sequence.number` is
recorded as a loss at once: those between never came, or come late and are recorded as well. A request that is
no OTLP gets 400 and is recorded as a loss, since its sender will not repeat it.
"""

import asyncio
import base64
import hashlib
import json
import ssl
from collections.abc import Iterator
from typing import Any, Final

from veen.products.recorder.adapters.http import PushSource, WebAnswer, WebRequest, is_authorized
from veen.products.recorder.events import SourceRecord
from veen.products.recorder.integrity import SEQUENCE, is_signed, sequence_of, typed
from veen.products.recorder.sink import SpoolSink
from veen.query.canonical import Json, parse
from veen.query.errors import InvalidJson

_RECEIPT_SECONDS: Final = 20.0  # exporters give up after 10 to 30 s; a repeated request then finds its receipts
_RETRY_SECONDS: Final = "2"
_PROTOBUF: Final = "application/x-protobuf"
_DEPTH: Final = 120  # twice what a payload may have: each level of a value is two of its encoding
_NANOS: Final = 10**9
_MAX_SENDERS: Final = 1_024  # whose numbers are followed


def _any(value: Any) -> Json:
    """AnyValue of the JSON encoding of OTLP. Integers are written as text there, and bytes as base64."""
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
        return [_any(element) for element in inner.get("values", [])]
    if kind == "kvlistValue":
        return _attributes(inner.get("values", []))
    return None


def _attributes(pairs: Any) -> dict[str, Json]:
    return {str(pair.get("key", "")): _any(pair.get("value")) for pair in pairs or []}


def _seconds(value: Any) -> int:
    return int(value or 0) // _NANOS


def records_of_request(tree: dict[str, Any], *, key: str, now: int, host: str) -> Iterator[SourceRecord]:
    """The log records of an ExportLogsServiceRequest in its JSON form."""
    number = 0
    for resource_logs in tree.get("resourceLogs", []):
        resource = _attributes(resource_logs.get("resource", {}).get("attributes"))
        for scope_logs in resource_logs.get("scopeLogs", []):
            scope = scope_logs.get("scope", {})
            for log in scope_logs.get("logRecords", []):
                attributes = _attributes(log.get("attributes"))
                payload: dict[str, Json] = {"body": _any(log.get("body")), "attributes": attributes}
                payload["resource"] = resource
                if is_signed(payload):
                    payload["_typed"] = {
                        "body": typed(log.get("body")),
                        "attributes": {
                            str(pair.get("key", "")): typed(pair.get("value")) for pair in log.get("attributes") or []
                        },
                    }
                for name in ("name", "version"):
                    if scope.get(name):
                        payload[f"scope_{name}"] = scope[name]
                for name in ("severityText", "severityNumber", "traceId", "spanId", "eventName", "flags"):
                    if log.get(name):
                        payload[name] = log[name]
                for name in ("timeUnixNano", "observedTimeUnixNano"):
                    if log.get(name):
                        payload[name] = str(log[name])
                stamp = log.get("timeUnixNano") or log.get("observedTimeUnixNano")
                kind = log.get("eventName") or attributes.get("event.name") or log.get("severityText") or "log"
                subject = attributes.get("enduser.id") or attributes.get("user.id") or resource.get("service.name")
                number += 1
                yield SourceRecord(
                    subject=str(subject or "unknown"),
                    event_type=str(kind),
                    origin=str(resource.get("service.name") or host),
                    time=_seconds(stamp) or now,
                    payload=payload,
                    position=f"{key[:32]}:{number}",
                    key=f"{key}:{number}",
                    source_time=str(stamp) if stamp else None,
                )


def _decoded(request: WebRequest) -> dict[str, Any]:
    """ValueError if the body is no ExportLogsServiceRequest."""
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
        return _with_hex_ids(tree)
    value = parse(request.body, max_depth=_DEPTH)
    if not isinstance(value, dict):
        raise ValueError("expected a JSON object")
    return value


def _with_hex_ids(tree: dict[str, Any]) -> dict[str, Any]:
    """The JSON encoding of OTLP has trace and span ids as hex; protobuf's own has base64."""
    for resource_logs in tree.get("resourceLogs", []):
        for scope_logs in resource_logs.get("scopeLogs", []):
            for log in scope_logs.get("logRecords", []):
                for name in ("traceId", "spanId"):
                    if name in log:
                        log[name] = base64.b64decode(log[name]).hex()
    return tree


class Otlp(PushSource):
    """A listener for exporters. `wait_receipt=False` answers when the records are on disk."""

    kind = "otlp"

    def __init__(
        self,
        id: str,
        host: str,
        port: int,
        *,
        path: str = "/v1/logs",
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        wait_receipt: bool = True,
    ) -> None:
        self.id, self._path, self._wait_receipt = id, path, wait_receipt
        super().__init__(host, port, token=token, tls=tls)
        self._sequences: dict[str, int] = {}  # sender -> its last audit.sequence.number; on the agent's event loop

    async def _note_gaps(self, sink: SpoolSink, records: list[SourceRecord]) -> None:
        """Numbers of a sender that are left out, once each: a request that is repeated leaves out nothing new."""
        numbered = (sequence_of(record.payload) for record in records)
        for sender, number in sorted(pair for pair in numbered if pair is not None):
            last = self._sequences.get(sender)
            if last is None and len(self._sequences) >= _MAX_SENDERS:
                continue  # `veen recorder verify` still sees the gap
            if last is None:
                last = int(await sink.recall(sender) or number - 1)
            if number > last + 1:
                await sink.lost(f"{SEQUENCE} of {sender}: {last + 1} to {number - 1} did not come", number - last - 1)
            if number > last or sender not in self._sequences:
                self._sequences[sender] = max(number, last)
                await sink.remember(sender, str(max(number, last)))

    async def _answer(self, request: WebRequest, sink: SpoolSink) -> WebAnswer:
        if not is_authorized(request, self._token):
            return WebAnswer(401, b'{"message":"a bearer token is needed"}')
        if request.path != self._path:
            return WebAnswer(404, b'{"message":"logs go to %s"}' % self._path.encode())
        if request.method != "POST":
            return WebAnswer(405, b'{"message":"POST only"}', headers={"allow": "POST"})
        key = hashlib.sha256(request.body).hexdigest()
        try:
            tree = _decoded(request)
            records = list(records_of_request(tree, key=key, now=sink.now(), host=sink.host))
        except (InvalidJson, ValueError, TypeError, AttributeError, KeyError) as exc:
            await sink.lost("a request that is no OTLP: its sender does not repeat it", 1)
            return WebAnswer(400, json.dumps({"message": f"not an ExportLogsServiceRequest: {exc}"[:300]}).encode())
        try:
            async with asyncio.timeout(_RECEIPT_SECONDS):
                await self._note_gaps(sink, records)
                numbers = await sink.put(records)
                if self._wait_receipt:
                    await sink.receipted(numbers)
        except TimeoutError:
            return WebAnswer(503, b'{"message":"not recorded yet"}', headers={"retry-after": _RETRY_SECONDS})
        is_protobuf = request.headers.get("content-type", "").startswith(_PROTOBUF)
        return WebAnswer(200, b"" if is_protobuf else b"{}", _PROTOBUF if is_protobuf else "application/json")
