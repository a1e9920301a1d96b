"""The OpenAPI document: current, true to what the hub answers, and a source of requests nobody thought of."""

import json
from contextlib import contextmanager
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from jsonschema_rs import Draft202012Validator
from schemathesis.checks import CHECKS
from tests.examples import examples
from tests.hub import builders as w
from tests.hub.servers import ADMIN, LiveHub

from veen.core.objects.envelopes import StreamRequest, SubmitRequest
from veen.hub.admission.policy import Auth1, Kex1
from veen.hub.api import routes
from veen.hub.api.access import Access
from veen.hub.api.openapi import document, document_bytes

ROOT = Path(__file__).parents[2]
SCHEMA = schemathesis.openapi.from_dict(document())
# What the answer to a good request says depends on what is in the log, so only its form is judged.
WANTED = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")
CHOSEN = [check for check in CHECKS.get_all() if check.__name__ in WANTED]


@contextmanager
def running_hub(place):
    """Open scope and no gating, so that more requests get far."""
    policy = w.policy(
        capability_gating=False,
        stream_scope="open",
        kex1=Kex1(),
        auth1=Auth1(hub_id=bytes(32), realm_id=bytes(32)),
    )
    access = Access.of(admin_tokens=[ADMIN])
    with LiveHub(place, policy=policy, access=access) as live:
        for seq in (1, 2, 3):
            live.call("/v1/submit", SubmitRequest(msg=w.msg(token=None, seq=seq)))
        yield live


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with running_hub(tmp_path_factory.mktemp("openapi")) as live:
        yield live


@pytest.fixture(scope="module")
def fenced_hub(tmp_path_factory):
    """For the request after which a hub admits nothing any more: other tests need theirs."""
    with running_hub(tmp_path_factory.mktemp("fenced")) as live:
        yield live


def test_the_committed_document_is_current():
    assert (ROOT / "docs" / "openapi.json").read_bytes() == document_bytes(), (
        "run: python -m veen.hub.api.openapi > docs/openapi.json"
    )


def test_every_path_of_the_document_is_served_and_the_other_way_round():
    named = {(path, method.upper()) for path, item in document()["paths"].items() for method in item}
    served = {(path, method) for path, methods in routes._ROUTES.items() for method in methods}
    aliases = {(f"/tooling/{name}", "GET") for name in ("healthz", "readyz", "version", "metrics")}
    not_json = {("/metrics", "GET"), ("/tooling/events", "GET"), ("/tooling/openapi.json", "GET")}
    assert served - named == aliases | not_json
    assert named <= served


@pytest.mark.req("API-02")
def test_answers_fit_the_schemas_of_the_document(hub):
    schemas = document()
    page = StreamRequest(label=w.LABEL, from_seq=1, with_receipts=True, with_mmr_proof=True).to_json()
    for method, path, body in (
        ("POST", "/v1/stream", page),
        ("POST", "/v1/proof", {"ver": 1, "label": w.LABEL.hex(), "stream_seq": 2}),
        ("POST", "/v1/checkpoint", {"ver": 1, "label": w.LABEL.hex(), "upto_seq": 3}),
        ("POST", "/tooling/checkpoint_range", {"ver": 1, "epoch_min": 0, "epoch_max": 9}),
        ("POST", "/tooling/authorize", w.TOKEN.to_json()),
        ("POST", "/tooling/inspect", {"ver": 1}),
        ("GET", "/tooling/status", None),
        ("GET", "/tooling/identity", None),
        ("GET", "/healthz", None),
    ):
        data = json.dumps(body).encode() if body is not None else b""
        status, _, answer = hub.request(method, path, data, {"Content-Type": "application/json"})
        assert status == 200, (path, answer)
        content = schemas["paths"][path][method.lower()]["responses"]["200"]["content"]["application/json"]
        validator = Draft202012Validator({**content["schema"], "components": schemas["components"]})
        assert list(validator.iter_errors(json.loads(answer))) == [], path


def test_the_hub_serves_the_document(hub):
    status, heads, data = hub.request("GET", "/tooling/openapi.json")
    assert (status, heads["Content-Type"], data) == (200, "application/json", document_bytes())


@SCHEMA.parametrize()
@settings(
    examples(24),
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@pytest.mark.filterwarnings("ignore")
def test_whatever_the_document_allows_gets_an_answer_it_describes(case, hub, fenced_hub):
    live = fenced_hub if case.path == "/tooling/fence" else hub
    if case.path.endswith("/tail") and isinstance(case.body, dict):
        case.body["wait_sec"] = 0
    case.headers = {**(case.headers or {}), "Authorization": f"Bearer {ADMIN.decode()}", "Accept": "application/json"}
    response = case.call(base_url=f"http://{live.host}:{live.port}")
    case.validate_response(response, checks=CHOSEN)
