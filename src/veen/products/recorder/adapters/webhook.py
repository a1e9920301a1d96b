"""CloudEvents 1.0 (binary, structured, batch), plain JSON webhooks, and the audit webhook of Kubernetes.

The answer is 204 when the records are on disk: these senders have short timeouts, and the API server of Kubernetes
drops events when its buffer is full. While the spool is full the answer is 503 with Retry-After.

A repetition is detected by a hash of the whole event (D-184). The id that the sender chose hides nothing: (source, id)
of a CloudEvent, auditID and stage of a Kubernetes event, the delivery id of GitHub. An event with the id of another one
and different content is recorded and marked (`_src.repeat`); `veen recorder verify` reports it as SDR.REPEAT. Webhooks
without an id are recorded each time.

With a secret a webhook accepts only requests with a valid X-Hub-Signature-256; `_src.signature` shows the check.

Base class of sources that receive records over HTTP.
"""

import asyncio
import base64
import hashlib
import hmac
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from veen.client.errors import LocalError
from veen.core.canonical import InvalidJson, Json, encode, parse
from veen.io.web_listener import Tokens, WebAnswer, WebListener, WebRequest, is_authorized, token_of
from veen.products.recorder.events import Selectors, SourceRecord, seconds_of, text_of, words_of
from veen.products.recorder.redaction import Redactor, redact
from veen.products.recorder.sink import SpoolSink


class PushSource(ABC):
    """A source that receives records over HTTP. Subclasses answer the requests."""

    def __init__(self, host: str, port: int, *, token: Tokens, tls: ssl.SSLContext | None) -> None:
        self._token = token
        self._listener = WebListener(host, port, self._handle, unavailable=(LocalError,), tls=tls)
        self._sink: SpoolSink | None = None

    @property
    def port(self) -> int:
        return self._listener.port

    @property
    def ready(self) -> asyncio.Event:
        return self._listener.ready

    async def run(self, sink: SpoolSink) -> None:
        self._sink = sink
        await self._listener.run()

    async def _handle(self, request: WebRequest) -> WebAnswer:
        assert self._sink is not None  # noqa: S101 - set before the listener runs
        return await self._answer(request, self._sink)

    def _about(self, request: WebRequest, sink: SpoolSink) -> dict[str, Json]:
        """Return the known facts about a sender: its address, and the certificate or token that it presented."""
        about: dict[str, Json] = {}
        if (peer := request.peer if sink.redactor is None else sink.redactor.name(request.peer)) is not None:
            about["peer"] = peer
        token = token_of(request, self._token)
        if request.certificate is not None:
            about["sender"] = f"cert:{hashlib.sha256(request.certificate).hexdigest()[:16]}"
        elif token is not None:
            about["sender"] = f"token:{sink.digest(token.encode())[:16]}"
        return about

    @abstractmethod
    async def _answer(self, request: WebRequest, sink: SpoolSink) -> WebAnswer: ...


Form = Literal["cloudevents", "webhook", "kubernetes"]

_STRUCTURED: Final = "application/cloudevents+json"
_BATCH: Final = "application/cloudevents-batch+json"
_REQUIRED: Final = ("id", "source", "specversion", "type")
_SIGNATURE: Final = "x-hub-signature-256"
_ROOM_SECONDS: Final = 10.0
_MAX_BATCH: Final = 10_000


@dataclass(frozen=True, slots=True)
class Arrival:
    """Values that all events of a request share."""

    now: int
    digest: Callable[[bytes], str]
    redactor: Redactor | None = None
    about: Mapping[str, Json] = field(default_factory=dict)


def cloud_event(event: Mapping[str, Json], arrival: Arrival) -> SourceRecord:
    """Return a CloudEvent in its JSON form as a record. Raise ValueError if a required attribute is missing."""
    for name in _REQUIRED:
        if not isinstance(event.get(name), str) or not event[name]:
            raise ValueError(f"a CloudEvent has {', '.join(_REQUIRED)}; {name} is missing")
    payload, openings = redact(arrival.redactor, dict(event))
    when = seconds_of(payload.get("time"))
    source = words_of(payload.get("source")) or "unknown"
    key = arrival.digest(encode(dict(event)))
    return SourceRecord(
        subject=words_of(payload.get("subject")) or source,
        event_type=words_of(payload.get("type")) or "unknown",
        origin=source,
        time=arrival.now if when is None else when[0],
        payload=payload,
        position=words_of(payload.get("id")) or key,
        key=key,
        sender_id=f"id:{arrival.digest(encode([event['source'], event['id']]))}",
        source_time=words_of(payload.get("time")),
        about=arrival.about,
        openings=openings,
    )


def _binary(request: WebRequest) -> dict[str, Json]:
    """Return a CloudEvent in binary form as JSON: headers are attributes, the body is the data."""
    attributes: dict[str, Json] = {
        name.removeprefix("ce-"): value for name, value in request.headers.items() if name.startswith("ce-")
    }
    kind = request.headers.get("content-type", "")
    if kind:
        attributes["datacontenttype"] = kind
    if kind.partition(";")[0].strip().endswith("json"):
        attributes["data"] = parse(request.body, max_depth=50)
    elif request.body:
        attributes["data_base64"] = base64.b64encode(request.body).decode()
    return attributes


def kubernetes_event(event: Mapping[str, Any], arrival: Arrival) -> SourceRecord:
    """Return one event of an audit.k8s.io EventList as a record."""
    payload, openings = redact(arrival.redactor, dict(event))
    target = payload.get("objectRef") or {}
    names = [words_of(target.get(name)) for name in ("resource", "subresource")]
    resource = "/".join(name for name in names if name)
    stamp = payload.get("stageTimestamp") or payload.get("requestReceivedTimestamp")
    when = seconds_of(stamp)
    key = arrival.digest(encode(dict(event)))
    audit_id, stage = (words_of(payload.get(name)) or "" for name in ("auditID", "stage"))
    sender_id = arrival.digest(encode([event.get("auditID"), event.get("stage")]))
    return SourceRecord(
        subject=words_of((payload.get("user") or {}).get("username")) or "unknown",
        event_type=f"{words_of(payload.get('verb')) or 'unknown'}:"
        f"{resource or words_of(payload.get('requestURI')) or 'unknown'}",
        origin=words_of(target.get("namespace")) or "kubernetes",
        time=arrival.now if when is None else when[0],
        payload=payload,
        position=f"{audit_id}:{stage}" if audit_id else key,
        key=key,
        sender_id=f"id:{sender_id}" if event.get("auditID") else None,
        source_time=words_of(stamp),
        about=arrival.about,
        openings=openings,
    )


class Webhook(PushSource):
    """A listener for one form of requests. With `form="cloudevents"` any path is accepted: senders choose theirs."""

    def __init__(
        self,
        id: str,
        host: str,
        port: int,
        form: Form,
        selectors: Selectors | None = None,
        *,
        token: Tokens = None,
        tls: ssl.SSLContext | None = None,
        secret: bytes | None = None,
    ) -> None:
        """Create the listener. `secret`: key of X-Hub-Signature-256, checked on each request."""
        self.id, self.kind, self._form, self._secret = id, str(form), form, secret
        self._selectors = selectors or Selectors(
            subject=".user|.actor|.sender.login|unknown", event_type=".event|.rule|webhook"
        )
        super().__init__(host, port, token=token, tls=tls)

    async def _answer(self, request: WebRequest, sink: SpoolSink) -> WebAnswer:
        if not is_authorized(request, self._token):
            return WebAnswer(401, b"a bearer token is needed\n", "text/plain")
        if request.method != "POST":
            return WebAnswer(405, b"POST only\n", "text/plain", {"allow": "POST"})
        if self._secret is not None and not self._is_signed(request, self._secret):
            return WebAnswer(401, b"X-Hub-Signature-256 is missing or wrong\n", "text/plain")
        try:
            records = self._records(request, sink)
        except (ValueError, InvalidJson, TypeError, AttributeError) as exc:
            await sink.lost(f"a request that is no {self._form}", 1)
            return WebAnswer(400, f"not recorded: {exc}\n"[:300].encode(), "text/plain")
        try:
            async with asyncio.timeout(_ROOM_SECONDS):
                await sink.put(records)
        except TimeoutError:
            return WebAnswer(503, b"the spool is full\n", "text/plain", {"retry-after": "2"})
        return WebAnswer(204)

    @staticmethod
    def _is_signed(request: WebRequest, secret: bytes) -> bool:
        expected = f"sha256={hmac.digest(secret, request.body, 'sha256').hex()}"
        return hmac.compare_digest(request.headers.get(_SIGNATURE, "").encode(), expected.encode())

    def _records(self, request: WebRequest, sink: SpoolSink) -> list[SourceRecord]:
        about = self._about(request, sink)
        if _SIGNATURE in request.headers:
            about["signature"] = "not checked" if self._secret is None else "checked"
        arrival = Arrival(sink.now(), sink.digest, sink.redactor, about)
        kind = request.headers.get("content-type", "").partition(";")[0].strip()
        if self._form == "cloudevents":
            if kind == _BATCH:
                events = parse(request.body, max_depth=55)
                if not isinstance(events, list) or len(events) > _MAX_BATCH:
                    raise ValueError(f"a batch is an array of at most {_MAX_BATCH} events")
                return [cloud_event(event, arrival) for event in events]
            event = parse(request.body, max_depth=55) if kind == _STRUCTURED else _binary(request)
            return [cloud_event(event, arrival)]
        if self._form == "kubernetes":
            value = parse(request.body, max_depth=55)
            if value.get("kind") != "EventList" or not str(value.get("apiVersion", "")).startswith("audit.k8s.io/"):
                raise ValueError("expected an EventList of audit.k8s.io")
            return [kubernetes_event(event, arrival) for event in value.get("items") or []]
        return [self._plain(request, sink.host, arrival)]

    def _plain(self, request: WebRequest, host: str, arrival: Arrival) -> SourceRecord:
        """Return any JSON, or any bytes, as a record: the body is the payload."""
        try:
            value: Json = parse(request.body, max_depth=55)
            is_parsed = True
        except InvalidJson:
            value, is_parsed = {"message": text_of(request.body)}, False
        fields = value if isinstance(value, dict) else {"value": value}
        payload, openings = redact(arrival.redactor, fields, request.body, is_parsed=is_parsed)
        when, stamp = self._selectors.when(payload, arrival.now)
        event_name, delivery = (
            name if arrival.redactor is None else arrival.redactor.name(name)
            for name in map(request.headers.get, ("x-github-event", "x-github-delivery"))
        )
        content = arrival.digest("\0".join((event_name or "", delivery or "")).encode() + b"\0" + request.body)
        return SourceRecord(
            subject=self._selectors.pick(self._selectors.subject, payload, "unknown"),
            event_type=event_name or self._selectors.pick(self._selectors.event_type, payload, "webhook"),
            origin=self._selectors.pick(self._selectors.origin, payload, host),
            time=when,
            payload=payload,
            position=delivery or content,
            key=content if delivery else None,
            sender_id=f"id:{arrival.digest(delivery.encode())}" if delivery else None,
            source_time=stamp,
            about=arrival.about,
            openings=openings,
        )
