"""The query API over real HTTP: every status, the OpenAPI document, odd requests (QRY-20 … QRY-25, QRY-31)."""

import json
from pathlib import Path

import httpx2
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from prometheus_client.parser import text_string_to_metric_families
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.examples import spread
from tests.lake.query_builders import STREAMS, descriptor
from tests.products.queryservice.services import TOKENS, log_at, served
from tests.products.queryservice.test_cancel import paused
from tests.waiting import until

from veen.core import canonical
from veen.lake import query
from veen.lake.query.descriptor import MAX_BYTES
from veen.products.queryservice.openapi import document, document_bytes

ROOT = Path(__file__).parents[3]
CHECKS = [
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
]
SCHEMA = schemathesis.openapi.from_dict(document())


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    path = tmp_path_factory.mktemp("service")
    with served(path, log_at(path / "log")) as url:
        yield url


def call(url, method, path, body=None, *, name="alice", **options):
    headers = {} if name is None else {"Authorization": f"Bearer {TOKENS.get(name, name)}"}
    answer = httpx2.request(method, url + path, content=body, headers=headers, timeout=60, **options)
    return answer.status_code, json.loads(answer.content), answer.headers


def asked(**changes):
    return canonical.encode(descriptor(**changes))


def test_the_committed_document_is_current():
    assert (ROOT / "docs" / "query-openapi.json").read_bytes() == document_bytes(), (
        "run: python -m veen.products.queryservice.openapi > docs/query-openapi.json"
    )


@pytest.mark.req("QRY-21", "QRY-22", "QRY-23", "QRY-24", "QRY-31")
@pytest.mark.parametrize("prefix", ["/api/query", "/api/v1/query"])
def test_a_query_is_submitted_and_fetched_under_both_paths(service, prefix):
    query_id = f"q{prefix.count('v1')}"
    status, answer, headers = call(service, "POST", f"{prefix}/submit", asked(query_id=query_id, scope=[STREAMS[0]]))
    assert (status, headers["content-type"], headers["cache-control"]) == (200, "application/json", "no-store")
    digest = answer["result_digest"]
    result_id = digest["result_id"]
    status, state, _ = call(service, "GET", f"{prefix}/status/{result_id}")
    assert (status, state["status"], state["error_code"]) == (200, "completed", None)
    status, page, _ = call(service, "GET", f"{prefix}/result/{result_id}?offset=1&limit=2")
    assert (status, page["rows"], page["result_digest"]) == (200, answer["rows"][1:3], digest)
    status, about, _ = call(service, "GET", f"{prefix}/descriptor/{query_id}")
    assert (status, about["descriptor"]["query_id"]) == (200, query_id)
    status, coverage, _ = call(service, "GET", f"{prefix}/coverage/{result_id}")
    assert (status, [stream["stream"] for stream in coverage["streams"]]) == (200, [STREAMS[0]])


@pytest.mark.req("QRY-11", "QRY-20", "QRY-25")
@pytest.mark.parametrize(
    ("method", "path", "body", "name", "status", "error_code"),
    [
        ("POST", "/submit", b"{", "alice", 400, "invalid_json"),
        ("POST", "/submit", b"\xff", "alice", 400, "invalid_json"),
        ("POST", "/submit", b"[]", "alice", 400, "invalid_query_descriptor"),
        ("POST", "/submit", b"{}", "alice", 400, "invalid_query_descriptor"),
        ("POST", "/submit", b"x" * (MAX_BYTES + 1), "alice", 400, "invalid_json"),
        ("POST", "/submit", asked(version=2), "alice", 400, "unsupported_version"),
        ("POST", "/submit", asked(), None, 401, "unauthorized"),
        ("POST", "/submit", asked(), "not-a-token", 401, "unauthorized"),
        ("GET", "/status/r-1", None, None, 401, "unauthorized"),
        ("POST", "/submit", asked(scope=["record/nowhere"]), "alice", 403, "forbidden_scope"),
        ("POST", "/submit", asked(scope=[STREAMS[1]]), "bob", 403, "forbidden_scope"),
        ("POST", "/cancel/r-1", None, None, 401, "unauthorized"),
        ("POST", "/cancel/r-1", None, "alice", 404, "query_not_found"),
        ("GET", "/cancel/r-1", None, "alice", 405, "invalid_request"),
        ("GET", "/status/r-1", None, "alice", 404, "query_not_found"),
        ("GET", "/result/r-1", None, "alice", 404, "query_not_found"),
        ("GET", "/descriptor/q-none", None, "alice", 404, "query_not_found"),
        ("GET", "/coverage/..%2f..%2fetc", None, "alice", 404, "query_not_found"),
        ("GET", "/nothing", None, "alice", 404, "query_not_found"),
        ("DELETE", "/status/r-1", None, "alice", 405, "invalid_request"),
        ("GET", "/result/r-1?limit=0", None, "alice", 400, "invalid_query_descriptor"),
        ("GET", "/result/r-1?limit=10001", None, "alice", 400, "invalid_query_descriptor"),
        ("GET", "/result/r-1?offset=-1", None, "alice", 400, "invalid_query_descriptor"),
        ("GET", "/result/r-1?offset=1&offset=2", None, "alice", 400, "invalid_query_descriptor"),
        ("GET", "/result/r-1?offset=%D9%A1", None, "alice", 400, "invalid_query_descriptor"),
    ],
)
def test_every_refusal_has_its_code_and_status(service, method, path, body, name, status, error_code):
    answer = call(service, method, f"/api/query{path}", body, name=name)
    assert (answer[0], answer[1]["error_code"]) == (status, error_code), answer
    assert answer[1]["message"]
    assert ("www-authenticate" in answer[2]) is (status == 401)


@pytest.mark.req("QRY-25")
def test_a_duplicate_and_a_failure_have_their_codes(service):
    assert call(service, "POST", "/api/query/submit", asked(query_id="twice", scope=[STREAMS[0]]))[0] == 200
    status, answer, _ = call(service, "POST", "/api/query/submit", asked(query_id="twice"))
    assert (status, answer["error_code"]) == (409, "duplicate_query_id")
    status, answer, _ = call(
        service, "POST", "/api/query/submit", asked(query_id="many", scope=[STREAMS[0]]), name="bob"
    )
    assert (status, answer["error_code"]) == (500, "execution_failed")
    assert call(service, "GET", "/api/query/descriptor/many", name="carol")[0] == 200
    result_id = next(part for part in answer["message"].replace(":", " ").split() if part.startswith("r-"))
    status, answer, _ = call(service, "GET", f"/api/query/result/{result_id}", name="bob")
    assert (status, answer["error_code"]) == (425, "result_not_ready")


@pytest.mark.req("QRY-22", "QRY-26")
@pytest.mark.parametrize("prefix", spread(["/api/query", "/api/v1/query"], 1))
def test_a_query_is_cancelled_by_a_call_and_every_later_call_says_so(tmp_path, prefix):
    kind = paused()
    with served(tmp_path, log_at(tmp_path / "log"), kind, sync_entries=0) as url:
        status, accepted, _ = call(url, "POST", f"{prefix}/submit", asked(query_id="q-1"))
        assert status == 202
        result_id = accepted["result_id"]
        until(lambda: call(url, "GET", f"{prefix}/status/{result_id}")[1]["progress"])
        status, answer, _ = call(url, "GET", f"{prefix}/status/{result_id}")
        assert answer["progress"].keys() == {"done", "total"}
        assert call(url, "POST", f"{prefix}/cancel/{result_id}", name="bob")[0] == 404
        status, answer, _ = call(url, "POST", f"{prefix}/cancel/{result_id}", name="carol")
        assert (status, answer["error_code"]) == (403, "forbidden_scope")
        for _ in range(2):
            status, answer, _ = call(url, "POST", f"{prefix}/cancel/{result_id}")
            assert (status, answer["status"], answer["error_code"]) == (200, "failed", "cancelled")
        status, answer, _ = call(url, "GET", f"{prefix}/result/{result_id}")
        assert (status, answer["error_code"]) == (425, "result_not_ready")
        status, answer, _ = call(url, "POST", f"{prefix}/submit", asked(query_id="q-1"))
        assert (status, answer["error_code"]) == (409, "cancelled")
        with query.connect(url, token=TOKENS["alice"]) as connection:
            accepted = connection.submit(asked(query_id="q-2"))
            assert connection.cancel(accepted["result_id"])["error_code"] == "cancelled"
            kind.gate.set()
            result_id = connection.ask(asked(query_id="q-3")).digest.result_id
            assert connection.cancel(result_id)["status"] == "completed"
        text = httpx2.get(f"{url}/metrics").text
        assert "\nveen_query_cancelled_total 2\n" in text


def test_a_client_that_goes_away_in_the_middle_leaves_a_query_that_ends(tmp_path):
    """Its request is recorded, so its state stays to be asked for; nothing waits for the client."""
    kind = paused()
    with served(tmp_path, log_at(tmp_path / "log"), kind) as url:
        with pytest.raises(httpx2.TimeoutException):
            httpx2.post(
                f"{url}/api/query/submit",
                content=asked(query_id="q-1"),
                headers={"Authorization": f"Bearer {TOKENS['alice']}"},
                timeout=httpx2.Timeout(60, read=0.5),
            )
        until(lambda: call(url, "GET", "/api/query/descriptor/q-1")[0] == 200)
        kind.gate.set()
        status, answer, _ = call(url, "POST", "/api/query/submit", asked(query_id="q-1"))
        assert (status, answer["result_digest"]["query_id"]) == (200, "q-1")


def test_counts_and_health_need_no_token_and_name_nobody(service):
    assert httpx2.get(f"{service}/healthz").json() == {"ok": True}
    assert call(service, "GET", "/api/query/status/r-1", name="nobody")[0] == 401
    answer = httpx2.get(f"{service}/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    text = answer.text
    families = {family.name for family in text_string_to_metric_families(text)}
    assert families >= {f"veen_query_{name}" for name in ("submitted", "running", "refusals", "execution_seconds")}
    assert 'veen_query_refusals_total{code="unauthorized"} ' in text
    assert not any(name in text for name in (*TOKENS, *STREAMS))
    assert httpx2.get(f"{service}/openapi.json").content == document_bytes()


@SCHEMA.parametrize()
@settings(
    max_examples=15, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck), derandomize=True
)
@pytest.mark.filterwarnings("ignore")
def test_whatever_the_document_allows_gets_an_answer_it_describes(case, service):
    case.headers = {**(case.headers or {}), "Authorization": f"Bearer {TOKENS['alice']}"}
    response = case.call(base_url=service)
    assert response.status_code in (200, 202, 400, 401, 403, 404, 405, 409, 425, 500, 503), response.status_code
    assert response.status_code != 500 or json.loads(response.content)["error_code"] == "execution_failed"
    assert isinstance(json.loads(response.content), dict)
    case.validate_response(response, checks=CHECKS)
