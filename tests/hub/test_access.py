"""Who may call what: every role against every kind of credentials (D-53, D-163)."""

import json

import pytest
from tests.hub.servers import ADMIN, READER, LiveHub

from veen.core.objects.envelopes import ErrorEnvelope, StreamRequest
from veen.core.objects.tooling import HealthResponse, StreamRegisterRequest, VersionRequest
from veen.hub.api.access import Access, Denied, Principal, Role

WATCHER = b"a-metrics-token-000"
LABEL = bytes(32)

NOBODY = Principal()
CALLERS = {
    "nobody": NOBODY,
    "unknown": Principal(bearer=b"guess"),
    "malformed": Principal(bearer=b""),
    "watcher": Principal(bearer=WATCHER),
    "reader": Principal(bearer=READER),
    "admin": Principal(bearer=ADMIN),
    "certificate": Principal(names=("somebody",)),
    "reading certificate": Principal(names=("auditor",)),
    "certificate, unknown token": Principal(names=("somebody",), bearer=b"guess"),
}
NAMED = Access.of(read_tokens=[READER], admin_tokens=[ADMIN], metrics_tokens=[WATCHER], read_names=["auditor"])
GOOD = {
    Role.ANY: set(CALLERS),
    Role.STATUS: {"watcher", "reader", "admin", "reading certificate"},
    Role.METRICS: {"watcher", "reader", "admin", "reading certificate"},
    Role.READ: {"reader", "admin", "reading certificate"},
    Role.ADMIN: {"admin"},
}
WHY_NOT = {
    "nobody": Denied.UNAUTHORIZED,
    "unknown": Denied.UNKNOWN,
    "malformed": Denied.UNKNOWN,
    "certificate, unknown token": Denied.UNKNOWN,
}


@pytest.mark.parametrize("role", Role, ids=lambda role: role.value)
@pytest.mark.parametrize("caller", CALLERS)
def test_every_role_against_every_caller(role, caller):
    expected = None if caller in GOOD[role] else WHY_NOT.get(caller, Denied.FORBIDDEN)
    assert NAMED.check(role, CALLERS[caller]) is expected


def test_what_nobody_was_named_for_is_open_but_administration():
    for role in (Role.ANY, Role.STATUS, Role.METRICS, Role.READ):
        assert Access().check(role, NOBODY) is None
    assert Access().check(Role.ADMIN, NOBODY) is Denied.CLOSED
    only_admins = Access.of(admin_tokens=[ADMIN])
    assert only_admins.check(Role.METRICS, NOBODY) is None


@pytest.mark.parametrize("access", [Access.of(read_tokens=[READER]), Access.of(metrics_tokens=[WATCHER])])
def test_metrics_and_status_close_with_the_first_name(access):
    assert access.check(Role.METRICS, NOBODY) is Denied.UNAUTHORIZED
    assert access.check(Role.STATUS, NOBODY) is Denied.UNAUTHORIZED
    assert access.check(Role.READ, CALLERS["watcher"]) is (None if not access.readers else Denied.UNKNOWN)


def test_the_status_can_be_opened_for_writers_without_the_metrics():
    access = Access.of(read_tokens=[READER], open_status=True)
    assert access.check(Role.STATUS, NOBODY) is None
    assert access.check(Role.METRICS, NOBODY) is Denied.UNAUTHORIZED
    assert access.check(Role.READ, NOBODY) is Denied.UNAUTHORIZED


def bearer(token):
    return {"Authorization": f"Bearer {token.decode()}"}


@pytest.fixture(scope="module")
def closed(tmp_path_factory):
    with LiveHub(tmp_path_factory.mktemp("hub"), access=NAMED) as hub:
        yield hub


@pytest.mark.parametrize("path", ["/metrics", "/tooling/metrics", "/tooling/status"])
def test_what_tells_about_the_hub_is_closed_where_readers_are_named(closed, path):
    status, heads, data = closed.request("GET", path)
    assert (status, json.loads(data)["code"]) == (401, "E.UNAUTHORIZED")
    assert heads["WWW-Authenticate"] == "Bearer"
    for token in (WATCHER, READER, ADMIN):
        assert closed.request("GET", path, headers=bearer(token))[0] == 200
    status, heads, _ = closed.request("GET", path, headers=bearer(b"guess"))
    assert (status, heads["WWW-Authenticate"]) == (401, 'Bearer error="invalid_token"')


def test_the_status_is_closed_to_a_post_as_well(closed):
    assert closed.request("POST", "/tooling/status", VersionRequest().to_bytes())[0] == 401


def test_known_credentials_without_the_right_are_forbidden(closed):
    """D-163: 403, and no challenge to show others."""
    request = StreamRequest(label=LABEL, from_seq=1).to_bytes()
    status, heads, data = closed.request("POST", "/v1/stream", request, bearer(WATCHER))
    assert (status, ErrorEnvelope.from_bytes(data).code) == (403, "E.FORBIDDEN")
    assert "WWW-Authenticate" not in heads
    register = StreamRegisterRequest(stream_id=bytes(32)).to_bytes()
    assert closed.request("POST", "/tooling/streams", register, bearer(READER))[0] == 403


@pytest.mark.parametrize("prefix", ["", "/tooling"])
def test_probes_learn_whether_and_not_why(closed, prefix):
    closed.services.reason = "the authority hub cannot be reached"
    try:
        status, _, data = closed.request("GET", f"{prefix}/readyz")
        assert (status, json.loads(data)) == (503, {"ver": 1, "ready": False})
        status, _, data = closed.request("GET", f"{prefix}/readyz", headers=bearer(WATCHER))
        assert (status, json.loads(data)["reason"]) == (503, closed.services.reason)
    finally:
        closed.services.reason = None
    status, _, data = closed.request("GET", f"{prefix}/healthz")
    assert (status, json.loads(data)) == (200, {"ver": 1, "ok": True})
    _, _, data = closed.request("GET", f"{prefix}/healthz", headers=bearer(WATCHER))
    assert HealthResponse.from_json(json.loads(data)).last_stream_seq == 0
