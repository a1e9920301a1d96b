"""CloudEvents 1.0 (binary, structured, batch), plain JSON webhooks, and the audit webhook of Kubernetes.

The answer is 204 when the records are on disk: these senders have short patience, and the API server of Kubernetes
drops events when its buffer is full. What a sender repeats is recognised: (source, id) of a CloudEvent, auditID and
stage of a Kubernetes event, the delivery id of GitHub; other webhooks have no such mark, so what they repeat is
recorded again. While the spool is full the answer is 503 with Retry-After.
"""

import asyncio
import base64
import hashlib
import ssl
from collections.abc import Mapping
from typing import Any, Final, Literal

from veen.products.recorder.adapters.http import PushSource, WebAnswer, WebRequest, is_authorized
from veen.products.recorder.events import SourceRecord, text_of
from veen.products.recorder.fields import Selectors, seconds_of, words_of
from veen.products.recorder.sink import SpoolSink
from veen.query.canonical import Json, encode, parse
from veen.query.errors import InvalidJson

Form = Literal["cloudevents", "webhook", "kubernetes"]

_STRUCTURED: Final = "application/cloudevents+json"
_BATCH: Final = "application/cloudevents-batch+json"
_REQUIRED: Final = ("id", "source", "specversion", "type")
_ROOM_SECONDS: Final = 10.0
_MAX_BATCH: Final = 10_000


def cloud_event(event: Mapping[str, Json], *, now: int) -> SourceRecord:
    """A CloudEvent in its JSON form; ValueError names a required attribute that is missing."""
    for name in _REQUIRED:
        if not isinstance(event.get(name), str) or not event[name]:
            raise ValueError(f"a CloudEvent has {', '.join(_REQUIRED)}; {name} is missing")
    when = seconds_of(event.get("time"))
    key = hashlib.sha256(encode([event["source"], event["id"]])).hexdigest()
    return SourceRecord(
        subject=words_of(event.get("subject")) or str(event["source"]),
        event_type=str(event["type"]),
        origin=str(event["source"]),
        time=now if when is None else when[0],
        payload=dict(event),
        position=str(event["id"]),
        key=key,
        source_time=words_of(event.get("time")),
    )


def _binary(request: WebRequest) -> dict[str, Json]:
    """The binary form: attributes are headers, the body is data."""
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


def kubernetes_event(event: Mapping[str, Any], *, now: int) -> SourceRecord:
    """One event of an audit.k8s.io EventList."""
    user = (event.get("user") or {}).get("username")
    target = event.get("objectRef") or {}
    resource = "/".join(str(target[name]) for name in ("resource", "subresource") if target.get(name))
    stamp = event.get("stageTimestamp") or event.get("requestReceivedTimestamp")
    when = seconds_of(stamp)
    audit_id, stage = str(event.get("auditID", "")), str(event.get("stage", ""))
    return SourceRecord(
        subject=str(user or "unknown"),
        event_type=f"{event.get('verb', 'unknown')}:{resource or event.get('requestURI', 'unknown')}",
        origin=str(target.get("namespace") or "kubernetes"),
        time=now if when is None else when[0],
        payload=dict(event),
        position=f"{audit_id}:{stage}",
        key=f"{audit_id}:{stage}" if audit_id else None,
        source_time=words_of(stamp),
    )


class Webhook(PushSource):
    """A listener for one form of requests. With `form="cloudevents"` any path is taken, as senders choose theirs."""

    def __init__(
        self,
        id: str,
        host: str,
        port: int,
        form: Form,
        selectors: Selectors | None = None,
        *,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.id, self.kind, self._form = id, str(form), form
        self._selectors = selectors or Selectors(
            subject=".user|.actor|.sender.login|unknown", event_type=".event|.rule|webhook"
        )
        super().__init__(host, port, token=token, tls=tls)

    async def _answer(self, request: WebRequest, sink: SpoolSink) -> WebAnswer:
        if not is_authorized(request, self._token):
            return WebAnswer(401, b"a bearer token is needed\n", "text/plain")
        if request.method != "POST":
            return WebAnswer(405, b"POST only\n", "text/plain", {"allow": "POST"})
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

    def _records(self, request: WebRequest, sink: SpoolSink) -> list[SourceRecord]:
        now = sink.now()
        kind = request.headers.get("content-type", "").partition(";")[0].strip()
        if self._form == "cloudevents":
            if kind == _BATCH:
                events = parse(request.body, max_depth=55)
                if not isinstance(events, list) or len(events) > _MAX_BATCH:
                    raise ValueError(f"a batch is an array of at most {_MAX_BATCH} events")
                return [cloud_event(event, now=now) for event in events]
            event = parse(request.body, max_depth=55) if kind == _STRUCTURED else _binary(request)
            return [cloud_event(event, now=now)]
        if self._form == "kubernetes":
            value = parse(request.body, max_depth=55)
            if value.get("kind") != "EventList" or not str(value.get("apiVersion", "")).startswith("audit.k8s.io/"):
                raise ValueError("expected an EventList of audit.k8s.io")
            return [kubernetes_event(event, now=now) for event in value.get("items") or []]
        return [self._plain(request, sink, now)]

    def _plain(self, request: WebRequest, sink: SpoolSink, now: int) -> SourceRecord:
        """Any JSON, or any bytes: the body is the payload."""
        try:
            value: Json = parse(request.body, max_depth=55)
        except InvalidJson:
            value = {"message": text_of(request.body)}
        payload = value if isinstance(value, dict) else {"value": value}
        when, stamp = self._selectors.when(payload, now)
        event_name = request.headers.get("x-github-event")
        delivery = request.headers.get("x-github-delivery")
        return SourceRecord(
            subject=self._selectors.pick(self._selectors.subject, payload, "unknown"),
            event_type=event_name or self._selectors.pick(self._selectors.event_type, payload, "webhook"),
            origin=self._selectors.pick(self._selectors.origin, payload, sink.host),
            time=when,
            payload=payload,
            position=delivery or hashlib.sha256(request.body).hexdigest(),
            key=delivery,
            source_time=stamp,
        )
