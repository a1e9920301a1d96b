"""Sources that push over HTTP: OTLP from the real SDK, CloudEvents, webhooks, the audit webhook of Kubernetes."""

import asyncio
import gzip
import http.client
import json
from typing import Any

import pytest
from tests.client.hubs import run
from tests.products.recorder.sources import Taken, running
from tests.waiting import eventually

from veen.client.errors import LocalError
from veen.products.recorder.adapters.otlp import Otlp
from veen.products.recorder.adapters.webhook import Webhook
from veen.products.recorder.spool import SpoolItem


def post(port, path, body, headers=None, method="POST"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read(), dict(answer.getheaders())
    finally:
        connection.close()


async def sent(port, path, body, headers=None, **more):
    return await asyncio.to_thread(post, port, path, body, headers, **more)


JSON = {"content-type": "application/json"}
LOGS = {
    "resourceLogs": [
        {
            "resource": {"attributes": [
                {"key": "service.name", "value": {"stringValue": "checkout"}},
                {"key": "audit.integrity.algorithm", "value": {"stringValue": "EdDSA"}},
            ]},
            "scopeLogs": [{"logRecords": [
                {
                    "timeUnixNano": "1794823200123456789", "severityText": "INFO",
                    "body": {"stringValue": "paid"}, "traceId": "5b8efff798038103d269b633813fc60c",
                    "attributes": [
                        {"key": "enduser.id", "value": {"stringValue": "alice"}},
                        {"key": "amount", "value": {"intValue": "12"}},
                        {"key": "audit.integrity.value", "value": {"stringValue": "c2lnbmF0dXJl+/=="}},
                    ],
                },
            ]}],
        }
    ]
}  # fmt: skip


def test_otlp_json_is_answered_after_receipts_and_recorded_once():
    async def story():
        intake = Taken()
        async with running(Otlp("otel", "127.0.0.1", 0), intake) as adapter:
            body = json.dumps(LOGS).encode()
            answer = asyncio.create_task(sent(adapter.port, "/v1/logs", body, JSON))
            await eventually(intake.records)
            ((subject, kind, origin, when, payload),) = intake.records()
            assert not answer.done()  # on disk, and without a receipt yet
            hub = asyncio.create_task(intake.drain())
            assert (await answer)[0] == 200
            assert (await sent(adapter.port, "/v1/logs", body, JSON))[0] == 200
            packed = {**JSON, "content-encoding": "gzip"}
            assert (await sent(adapter.port, "/v1/logs", gzip.compress(body), packed))[0] == 200
            hub.cancel()
        assert intake.spool.counts()["in"] == 1
        assert (subject, kind, origin, when) == ("alice", "INFO", "checkout", 1_794_823_200)
        assert payload["attributes"]["audit.integrity.value"] == "c2lnbmF0dXJl+/=="
        assert payload["attributes"]["amount"] == 12
        assert payload["traceId"] == "5b8efff798038103d269b633813fc60c"
        assert payload["_src"]["time"] == "1794823200123456789"

    run(story())


def test_the_opentelemetry_sdk_delivers_its_records():
    otlp = pytest.importorskip("opentelemetry.exporter.otlp.proto.http._log_exporter")
    from opentelemetry._logs import LogRecord, SeverityNumber
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
    from opentelemetry.sdk.resources import Resource

    def send(port):
        provider = LoggerProvider(resource=Resource.create({"service.name": "shop"}))
        exporter = otlp.OTLPLogExporter(endpoint=f"http://127.0.0.1:{port}/v1/logs")
        provider.add_log_record_processor(BatchLogRecordProcessor(exporter))
        logger = provider.get_logger("shop")
        for number in range(25):
            logger.emit(
                LogRecord(
                    timestamp=1_794_823_200_000_000_000, severity_text="WARN", severity_number=SeverityNumber.WARN,
                    body=f"order {number}", attributes={"enduser.id": "bob", "n": number},
                )
            )  # fmt: skip
        provider.shutdown()

    async def story():
        intake = Taken()
        async with running(Otlp("otel", "127.0.0.1", 0, wait_receipt=False), intake) as adapter:
            await asyncio.to_thread(send, adapter.port)
        assert [payload["body"] for payload in intake.payloads()] == [f"order {n}" for n in range(25)]
        assert {record[:3] for record in intake.records()} == {("bob", "WARN", "shop")}
        assert [payload["attributes"]["n"] for payload in intake.payloads()] == list(range(25))

    run(story())


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{", JSON, 400),
        (b"[]", JSON, 400),
        (b"[" * 200_000, JSON, 400),
        (b'{"resourceLogs":' + b'{"a":' * 3000 + b"1" + b"}" * 3001, JSON, 400),
        (b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":7,"timeUnixNano":"x"}]}]}]}', JSON, 400),
        (b"\xff\xff", {"content-type": "application/x-protobuf"}, 400),
        (b"x", {**JSON, "content-encoding": "gzip"}, 400),
        (b"x", {**JSON, "content-encoding": "br"}, 415),
        (gzip.compress(bytes(20_000_000)), {**JSON, "content-encoding": "gzip"}, 413),
    ],
    ids=["cut", "list", "deep list", "deep map", "types", "protobuf", "no gzip", "br", "bomb"],
)
def test_what_is_no_otlp_is_refused_by_name(body, headers, status):
    async def story():
        intake = Taken()
        async with running(Otlp("otel", "127.0.0.1", 0), intake) as adapter:
            assert (await sent(adapter.port, "/v1/logs", body, headers))[0] == status
        assert intake.records() == []
        assert [count for _, count in intake.losses()] == ([1] if status == 400 and body != b"x" else [])

    run(story())


def test_wrong_paths_methods_and_tokens_are_refused():
    async def story():
        intake = Taken()
        async with running(Otlp("otel", "127.0.0.1", 0, token="secret"), intake) as adapter:
            assert (await sent(adapter.port, "/v1/logs", b"{}", JSON))[0] == 401
            good = {**JSON, "authorization": "Bearer secret"}
            assert (await sent(adapter.port, "/other", b"{}", good))[0] == 404
            assert (await sent(adapter.port, "/v1/logs", b"", good, method="GET"))[0] == 405
            assert (await sent(adapter.port, "/v1/logs", b"{}", good))[0] == 200

    run(story())


EVENT = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "order.paid", "subject": "alice",
         "time": "2026-11-16T10:00:00Z", "data": {"amount": 12.5}}  # fmt: skip


def test_cloud_events_in_all_three_forms_are_recorded_once():
    async def story():
        intake = Taken()
        async with running(Webhook("ce", "127.0.0.1", 0, "cloudevents"), intake) as adapter:
            structured = {"content-type": "application/cloudevents+json"}
            batch = {"content-type": "application/cloudevents-batch+json"}
            binary = {"ce-specversion": "1.0", "ce-id": "3", "ce-source": "/shop", "ce-type": "order.sent", **JSON}
            assert (await sent(adapter.port, "/", json.dumps(EVENT).encode(), structured))[0] == 204
            assert (await sent(adapter.port, "/", json.dumps(EVENT).encode(), structured))[0] == 204
            both = json.dumps([EVENT, {**EVENT, "id": "2"}]).encode()
            assert (await sent(adapter.port, "/", both, batch))[0] == 204
            assert (await sent(adapter.port, "/", b'{"n":3}', binary))[0] == 204
            wrong = json.dumps({**EVENT, "source": ""}).encode()
            status, text, _ = await sent(adapter.port, "/", wrong, structured)
            assert (status, b"source is missing" in text) == (400, True)
        assert [payload["id"] for payload in intake.payloads()] == ["1", "2", "3"]
        assert intake.records()[0][:4] == ("alice", "order.paid", "/shop", 1_794_823_200)
        assert intake.payloads()[2]["data"] == {"n": 3}
        assert intake.losses() == [("a request that is no cloudevents", 1)]

    run(story())


AUDIT: dict[str, Any] = {
    "kind": "EventList", "apiVersion": "audit.k8s.io/v1",
    "items": [
        {"auditID": "a", "stage": "ResponseComplete", "verb": "create", "user": {"username": "kube:admin"},
         "objectRef": {"resource": "pods", "subresource": "exec", "namespace": "prod"},
         "stageTimestamp": "2026-11-16T10:00:00.000001Z"},
        {"auditID": "a", "stage": "RequestReceived", "verb": "get", "requestURI": "/healthz"},
    ],
}  # fmt: skip


def test_kubernetes_audit_events_are_recorded_once_per_stage():
    async def story():
        intake = Taken()
        async with running(Webhook("k8s", "127.0.0.1", 0, "kubernetes"), intake) as adapter:
            for _ in range(2):
                assert (await sent(adapter.port, "/audit", json.dumps(AUDIT).encode(), JSON))[0] == 204
            assert (await sent(adapter.port, "/audit", b'{"kind":"Pod"}', JSON))[0] == 400
        assert [record[:3] for record in intake.records()] == [
            ("kube:admin", "create:pods/exec", "prod"), ("unknown", "get:/healthz", "kubernetes"),
        ]  # fmt: skip

    run(story())


def test_a_plain_webhook_takes_any_body_and_knows_deliveries_of_github():
    async def story():
        intake = Taken()
        async with running(Webhook("hook", "127.0.0.1", 0, "webhook"), intake) as adapter:
            github = {**JSON, "x-github-event": "push", "x-github-delivery": "d-1"}
            for _ in range(2):
                await sent(adapter.port, "/", b'{"sender":{"login":"octocat"}}', github)
            await sent(adapter.port, "/", b'{"rule":"shell in container","priority":"Warning"}', JSON)
            await sent(adapter.port, "/", b"\xff not json", {})
        assert [record[:2] for record in intake.records()] == [
            ("octocat", "push"), ("unknown", "shell in container"), ("unknown", "webhook"),
        ]  # fmt: skip

    run(story())


def test_a_full_spool_answers_503_with_retry_after(monkeypatch):
    monkeypatch.setattr("veen.products.recorder.adapters.webhook._ROOM_SECONDS", 0.05)

    async def story():
        intake = Taken(max_bytes=10)
        intake.spool.append([SpoolItem(b"\x02" * 32, b"waits", "x")])
        async with running(Webhook("hook", "127.0.0.1", 0, "webhook"), intake) as adapter:
            status, _, headers = await sent(adapter.port, "/", b'{"a":1}', JSON)
            assert (status, headers["retry-after"]) == (503, "2")
        assert intake.losses() == []

    run(story())


def test_a_full_disk_answers_503_so_that_the_sender_keeps_its_records(monkeypatch):
    async def story():
        intake = Taken()

        def full(*_, **__):
            raise LocalError("the spool cannot be used: disk I/O error")

        monkeypatch.setattr(intake.spool, "append", full)
        async with running(Webhook("hook", "127.0.0.1", 0, "webhook"), intake) as adapter:
            status, text, headers = await sent(adapter.port, "/", b"{}", JSON)
            assert (status, headers["retry-after"], b"disk I/O" in text) == (503, "5", True)

    run(story())
