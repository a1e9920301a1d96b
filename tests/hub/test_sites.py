"""Requests of web pages: a hub that a browser can reach takes no orders from other people's pages."""

import pytest
from tests.examples import spread
from tests.hub import builders as w
from tests.hub.servers import LiveHub

from veen.core.objects.envelopes import ErrorEnvelope
from veen.hub.http.server import HttpSettings

BODY = b"\xa2\x01\x01\x02"


@pytest.fixture(params=[False, True], ids=["any hub", "dev"])
def hub(request, tmp_path):
    policy = w.policy(capability_gating=False)
    with LiveHub(tmp_path, policy=policy, settings=HttpSettings(loopback_only=request.param)) as hub:
        yield hub


def submit(hub, headers, seq=1):
    body = BODY + w.msg(seq=seq, token=None).to_bytes()
    return hub.request("POST", "/v1/submit", body, headers)


FOREIGN = {
    "origin": ({"Origin": "https://evil.example"}, "Origin"),
    "opaque origin": ({"Origin": "null"}, "Origin"),
    "origin of another port": ({"Origin": "http://127.0.0.1:1"}, "Origin"),
    "cross-site": ({"Sec-Fetch-Site": "cross-site"}, "Sec-Fetch-Site"),
    "same site, other origin": ({"Sec-Fetch-Site": "same-site"}, "Sec-Fetch-Site"),
    "cross-site of a page that claims our origin": (
        {"Sec-Fetch-Site": "cross-site", "Origin": "ours"},
        "Sec-Fetch-Site",
    ),
}


@pytest.mark.parametrize("content_type", spread([None, "application/cbor"], 6))
@pytest.mark.parametrize("kind", FOREIGN)
def test_a_submit_of_another_sites_page_is_refused(hub, kind, content_type):
    """Without a content type a browser asks nobody before it sends."""
    headers, field = FOREIGN[kind]
    headers = {name: f"http://{hub.host}:{hub.port}" if value == "ours" else value for name, value in headers.items()}
    if content_type is not None:
        headers["Content-Type"] = content_type
    status, _, data = submit(hub, headers)
    envelope = ErrorEnvelope.from_bytes(data)
    assert (status, envelope.code, envelope.detail) == (403, "E.FORBIDDEN", {"field": field})
    assert hub.services.sequencer.depth == 0
    assert hub.services.sequencer.store.files(w.LABEL) is None


def test_every_path_that_changes_something_is_closed_to_pages(hub):
    page = {"Origin": "https://evil.example"}
    for method, path in (
        ("POST", "/tooling/submit_batch"),
        ("POST", "/tooling/authorize"),
        ("POST", "/tooling/rotate_key"),
        ("PUT", f"/tooling/attachment/{'00' * 32}"),
    ):
        assert hub.request(method, path, b"x", page)[0] == 403, path


def test_a_refused_page_teaches_the_hub_no_head(hub):
    """The same bytes again are refused again, and the honest head beside it is taken."""
    for seq in range(1, 4):
        assert submit(hub, {"Origin": "https://evil.example", "Content-Type": "application/cbor"}, seq)[0] == 403
        assert submit(hub, {"Content-Type": "application/cbor"}, seq)[0] == 200


def test_other_programs_and_the_hubs_own_page_are_let_in(hub):
    own = f"http://{hub.host}:{hub.port}"
    for seq, headers in enumerate(
        ({}, {"Origin": own}, {"Sec-Fetch-Site": "same-origin", "Origin": own}, {"Sec-Fetch-Site": "none"}), start=1
    ):
        assert submit(hub, headers, seq)[0] == 200
    assert hub.request("GET", "/healthz", headers={"Origin": "https://evil.example"})[0] == 200


HOSTS = {
    "127.0.0.1:80": True,
    "localhost:8080": True,
    "LOCALHOST.": True,
    "hub.localhost": True,
    "[::1]:80": True,
    "127.1.2.3": True,
    "evil.example": False,
    "evil.example:80": False,
    "127.0.0.1.evil.example": False,
    "localhost.evil.example": False,
    "10.0.0.1": False,
    "[::1": False,
    "user@evil.example": False,
    "\xe9vil": False,
}


@pytest.mark.parametrize("host", HOSTS)
def test_a_hub_for_trying_things_answers_to_names_of_loopback_only(tmp_path, host):
    """DNS rebinding: the page and the hub have the same origin then, and only its name tells."""
    with LiveHub(tmp_path, settings=HttpSettings(loopback_only=True)) as hub:
        for path in ("/healthz", "/tooling/status", "/v1/submit"):
            method = "POST" if path == "/v1/submit" else "GET"
            data = hub.raw(f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode("latin-1"), expect=1)
            assert (b" 403 " not in data.partition(b"\r\n")[0]) is HOSTS[host]
    with LiveHub(tmp_path) as hub:  # a hub on a network is called by whatever name it has
        data = hub.raw(f"GET /healthz HTTP/1.1\r\nHost: {host}\r\n\r\n".encode("latin-1"), expect=1)
        assert data.startswith(b"HTTP/1.1 200")
