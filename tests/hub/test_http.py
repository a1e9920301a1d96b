"""HTTP itself: order, bounds, time, odd and hostile clients, TLS, going away (D-54, D-67, DESIGN §9.6)."""

import asyncio
import contextlib
import datetime
import http.client
import ipaddress
import socket
import ssl
import time

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.hub import builders as w
from tests.hub.servers import LiveHub, detail_of, post, split_answers
from tests.waiting import DEADLINE_SEC, until

from veen.core.limits import Limits
from veen.core.objects.envelopes import ErrorEnvelope, StreamRequest, SubmitRequest, SubmitResponse
from veen.core.objects.tooling import TailRequest
from veen.hub.api.access import Access
from veen.hub.http.server import HttpSettings
from veen.io.tls import PlainHttpError, Tls, TlsError, check_plain

QUICK = HttpSettings(header_sec=0.4, body_idle_sec=0.4, keep_alive_sec=0.8, write_sec=0.6, request_sec=1.2)


def submit_body(seq, **changes):
    return SubmitRequest(msg=w.msg(token=w.FREE_TOKEN, seq=seq, **changes)).to_bytes()


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with LiveHub(tmp_path_factory.mktemp("http")) as live:
        yield live


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    with LiveHub(tmp_path_factory.mktemp("quick"), settings=QUICK) as live:
        yield live


# --- order ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 1])
def test_pipelined_answers_come_in_the_order_of_the_requests(tmp_path, workers):
    """An error that is known at once must not overtake a receipt that is not."""
    with LiveHub(tmp_path, workers=workers) as hub:
        requests, expected = [], []
        for seq in range(1, 41):
            requests.append(post("/v1/submit", submit_body(seq)))
            expected.append(200)
            if seq % 3 == 0:
                requests.append(post("/v1/submit", b"\xff"))
                expected.append(400)
            if seq % 5 == 0:
                requests.append(post("/v1/stream", StreamRequest(label=w.LABEL, from_seq=seq).to_bytes()))
                expected.append(200)
            if seq % 7 == 0:
                requests.append(post("/nowhere", b""))
                expected.append(404)
        answers = split_answers(hub.raw(b"".join(requests), expect=len(requests)))
        assert [status for status, _, _ in answers] == expected
        bodies = [body for _, _, body in answers if body.startswith(b"\xa3\x01\x01\x02")]
        receipts = [SubmitResponse.from_bytes(body).receipt for body in bodies]
        assert [receipt.stream_seq for receipt in receipts] == list(range(1, 41))


def test_a_pipelined_read_sees_the_write_before_it(tmp_path):
    with LiveHub(tmp_path, workers=1) as hub:
        read = post("/v1/stream", StreamRequest(label=w.LABEL, from_seq=1).to_bytes())
        answers = split_answers(hub.raw(post("/v1/submit", submit_body(1)) + read, expect=2))
        assert [status for status, _, _ in answers] == [200, 200]


def test_more_requests_than_may_be_due_are_all_answered(tmp_path):
    """Reading pauses and goes on; nothing is lost."""
    with LiveHub(tmp_path, workers=1) as hub:
        count = 500
        data = b"".join(post("/v1/submit", submit_body(seq)) for seq in range(1, count + 1))
        answers = split_answers(hub.raw(data, expect=count, timeout=30))
        assert [status for status, _, _ in answers] == [200] * count


def test_thousands_of_requests_behind_a_waiting_one_are_answered_in_turn(tmp_path):
    """What is known at once is answered in a loop; however many, the stack does not grow."""
    with LiveHub(tmp_path) as hub:
        hub.request("POST", "/v1/submit", submit_body(1))
        wait = TailRequest(label=w.LABEL, from_seq=2, wait_sec=1).to_bytes()
        count = 2000
        data = post("/tooling/tail", wait) + b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n" * count
        answers = split_answers(hub.raw(data, shutdown=True))
        assert [status for status, _, _ in answers] == [200] + [404] * count


def test_a_late_request_does_not_cost_the_answers_before_it(quick):
    wait = TailRequest(label=bytes(32), from_seq=1, wait_sec=2).to_bytes()
    answers = split_answers(quick.raw(post("/tooling/tail", wait) + b"POST /v1/submit HT"))
    assert [status for status, _, _ in answers] == [404, 408]


def test_a_refused_client_may_not_stay(quick):
    with socket.create_connection((quick.host, quick.port), timeout=5) as connection:
        connection.sendall(b"not HTTP at all\r\n\r\n")
        received = b""
        while part := connection.recv(4096):
            received += part
        assert received.startswith(b"HTTP/1.1 400")
        gone = time.monotonic() + 5
        while time.monotonic() < gone:
            try:
                connection.sendall(b"x" * 1000)
            except ConnectionError:
                return
        pytest.fail("still there")


def test_a_client_may_close_its_half_and_still_read(hub):
    data = hub.raw(post("/v1/stream", b"\xff") * 3, shutdown=True)
    assert [status for status, _, _ in split_answers(data)] == [400] * 3


# --- forms of requests ------------------------------------------------------------------------------------


def test_chunked_bodies_are_taken(tmp_path):
    with LiveHub(tmp_path) as hub:
        body = submit_body(1)
        parts = [body[:5], body[5:90], body[90:]]
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\nTrailer: x\r\n\r\n"
        head = b"POST /v1/submit HTTP/1.1\r\nHost: hub\r\nTransfer-Encoding: chunked\r\n\r\n"
        ((status, _, data),) = split_answers(hub.raw(head + chunks, expect=1))
        assert status == 200
        assert SubmitResponse.from_bytes(data).receipt.stream_seq == 1


def test_a_request_may_arrive_byte_by_byte(tmp_path):
    with LiveHub(tmp_path) as hub, socket.create_connection((hub.host, hub.port), timeout=10) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in post("/v1/submit", submit_body(1)):
            connection.sendall(bytes((byte,)))
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(("header", "stays"), [((), False), (("Connection: keep-alive",), True)])
def test_http_1_0_closes_unless_asked_to_stay(hub, header, stays):
    request = post("/v1/stream", b"\xff", *header, version="1.0")
    with socket.create_connection((hub.host, hub.port), timeout=10) as connection:
        connection.sendall(request)
        data = connection.recv(4096)
        assert (b"connection: keep-alive" in data) == stays
        if stays:
            connection.sendall(request)
            assert connection.recv(4096).startswith(b"HTTP/1.1 400")
        else:
            assert connection.recv(4096) == b""


def test_connection_close_is_honoured(tmp_path):
    with LiveHub(tmp_path) as hub:
        data = hub.raw(post("/v1/submit", submit_body(1), "Connection: close"))
        ((status, headers, _),) = split_answers(data)
        assert (status, headers["connection"]) == (200, "close")


def test_head_and_options_are_sane(hub):
    status, heads, data = hub.request("HEAD", "/healthz")
    assert (status, data) == (200, b"")
    assert int(heads["Content-Length"]) > 0
    status, heads, data = hub.request("OPTIONS", "/v1/submit")
    assert (status, heads["Allow"], data) == (204, "POST, OPTIONS", b"")
    assert hub.request("OPTIONS", "*")[0] == 204
    assert hub.request("OPTIONS", "/nowhere")[0] == 404


def test_expect_100_continue_gets_its_answer_before_the_body(tmp_path):
    with LiveHub(tmp_path) as hub, socket.create_connection((hub.host, hub.port), timeout=10) as connection:
        body = submit_body(1)
        head, _, _ = post("/v1/submit", body, "Expect: 100-continue").partition(b"\r\n\r\n")
        connection.sendall(head + b"\r\n\r\n")
        assert connection.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")


def test_an_upgrade_is_ignored(hub):
    data = hub.raw(b"GET /healthz HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
    assert split_answers(data)[0][0] == 200


def test_another_content_type_is_told_so(hub):
    status, _, data = hub.request("POST", "/v1/submit", b"a=b", {"Content-Type": "application/x-www-form-urlencoded"})
    assert (status, ErrorEnvelope.from_bytes(data).code) == (415, "E.BAD_REQUEST")


# --- bounds -----------------------------------------------------------------------------------------------


@pytest.mark.req("SH1-01", "SH0-04")
def test_an_oversized_submit_is_refused_before_its_body_is_read(hub):
    size = Limits().max_msg_bytes + 5
    head = f"POST /v1/submit HTTP/1.1\r\nHost: h\r\nContent-Length: {size}\r\n\r\n".encode()
    ((status, headers, data),) = split_answers(hub.raw(head + bytes(1000)))
    envelope = ErrorEnvelope.from_bytes(data)
    assert (status, envelope.code, detail_of(data)["detail_enum"]) == (413, "E.SIZE", "SIZE_PREFILTER")
    assert (detail_of(data)["actual"], headers["connection"]) == (size - 4, "close")


@pytest.mark.parametrize(("path", "code"), [("/v1/submit", "E.SIZE"), ("/v1/stream", "E.LIMIT")])
def test_an_endless_chunked_body_ends(hub, path, code):
    head = f"POST {path} HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    chunk = b"10000\r\n" + bytes(0x10000) + b"\r\n"
    with socket.create_connection((hub.host, hub.port), timeout=10) as connection:
        connection.sendall(head)
        received = _send_until_answered(connection, chunk)
    ((status, _, data),) = split_answers(received)
    assert (status, ErrorEnvelope.from_bytes(data).code) == (413, code)


def _send_until_answered(connection, data):
    received = b""
    connection.settimeout(0.05)
    for _ in range(10_000):
        with contextlib.suppress(TimeoutError, ConnectionError):
            connection.sendall(data)
        with contextlib.suppress(TimeoutError):
            received += connection.recv(65536)
        if split_answers(received):
            return received
    raise AssertionError("it would take everything")


CHUNKED = b"POST /v1/stream HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
TOO_LONG = {
    "url": (b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: h\r\n\r\n", 414),
    "path": (b"GET /" + b"x" * 3000 + b" HTTP/1.1\r\nHost: h\r\n\r\n", 414),
    "header": (b"GET / HTTP/1.1\r\nHost: h\r\nX: " + b"x" * 200_000, 431),
    "headers": (b"GET / HTTP/1.1\r\nHost: h\r\n" + b"X: y\r\n" * 30_000, 431),
    "trailer": (CHUNKED + b"T: " + b"y" * 300_000, 431),
    "trailers": (CHUNKED + b"T: y\r\n" * 30_000, 413),
}


@pytest.mark.parametrize("what", TOO_LONG)
def test_url_and_headers_have_bounds(hub, what):
    data, status = TOO_LONG[what]
    assert split_answers(hub.raw(data, expect=1))[0][0] == status


@pytest.mark.parametrize(
    ("method", "length", "accept", "form"),
    [
        ("GET", 3_000, "application/json", "json"),
        ("GET", 6_000, "application/cbor", "cbor"),  # read whole, so Accept is known
        ("GET", 15_000, "application/json", "json"),
        ("POST", 6_000, "application/json", "json"),
        ("GET", 40_000, "application/cbor", "json"),  # refused before the headers: the default of a GET
        ("POST", 40_000, "application/json", "cbor"),
    ],
)
def test_a_url_that_is_too_long_is_refused_in_the_form_that_was_asked_for(hub, method, length, accept, form):
    head = f"{method} /tooling/stream?label={'0' * length} HTTP/1.1\r\nHost: h\r\nAccept: {accept}\r\n\r\n"
    (answer, *_) = split_answers(hub.raw(head.encode(), expect=1))
    assert answer[0] == 414
    assert answer[1]["content-type"] == f"application/{form}"


@pytest.mark.req("SH1-03")
def test_bodies_of_all_connections_together_are_bounded(tmp_path):
    """A body that would not fit is refused; room comes back when a connection goes."""
    settings = HttpSettings(max_buffered_bytes=1_500_000)
    with LiveHub(tmp_path, settings=settings) as hub:
        head = b"POST /v1/submit HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n"
        with socket.create_connection((hub.host, hub.port)) as first:
            first.sendall(head)
            until(lambda: hub.on_loop(lambda: hub.server.bodies.in_use))
            ((status, headers, _),) = split_answers(hub.raw(head))
            assert (status, headers["retry-after"]) == (503, "1")
        until(lambda: not hub.on_loop(lambda: hub.server.bodies.in_use))
        body = submit_body(1, ciphertext=bytes(36) + (900_000).to_bytes(4, "big") + bytes(900_000))
        assert split_answers(hub.raw(post("/v1/submit", body), expect=1))[0][0] == 200


@pytest.mark.req("SH1-03")
def test_connections_are_bounded(tmp_path):
    with LiveHub(tmp_path, settings=HttpSettings(max_connections=2)) as hub:
        connections = [socket.create_connection((hub.host, hub.port)) for _ in range(2)]
        until(lambda: hub.on_loop(lambda: hub.server.slots.shares.in_use) == 2)
        ((status, headers, _),) = split_answers(hub.raw(b""))
        assert (status, headers["retry-after"]) == (503, "1")
        for connection in connections:
            connection.close()
        until(lambda: not hub.on_loop(lambda: hub.server.slots.shares.in_use))
        assert hub.request("GET", "/healthz")[0] == 200


@pytest.mark.req("SH1-01")
def test_an_address_on_the_deny_list_is_refused(tmp_path):
    """001 SH1+ §5.1: a static filter, before anything is decoded."""
    networks = (ipaddress.ip_network("127.0.0.0/8"),)
    with LiveHub(tmp_path, settings=HttpSettings(denied_networks=networks)) as hub:
        _, _, data = hub.request("POST", "/v1/submit", submit_body(1))
        assert detail_of(data)["detail_enum"] == "PREFILTER_REJECT"
        status, _, _ = hub.request("POST", "/v1/stream", StreamRequest(label=w.LABEL, from_seq=1).to_bytes())
        assert status == 403


# --- time -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "begin",
    [
        b"POST /v1/submit HT",
        b"POST /v1/submit HTTP/1.1\r\nHost: h\r\nX-",
        b"POST /v1/submit HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\nabc",
    ],
)
def test_a_slow_request_is_told_so_and_let_go(quick, begin):
    ((status, headers, data),) = split_answers(quick.raw(begin, timeout=9))  # a second less than without `quick`
    assert (status, headers["connection"], ErrorEnvelope.from_bytes(data).code) == (408, "close", "E.BAD_REQUEST")


@pytest.mark.parametrize(
    ("head", "drop"),
    [
        (b"POST /v1/submit HTTP/1.1\r\nHost: h\r\n", b"X: y\r\n"),
        (b"POST /v1/submit HTTP/1.1\r\nHost: h\r\nContent-Length: 10000\r\n\r\n", b"x"),
    ],
    ids=["headers", "body"],
)
def test_trickling_does_not_buy_time(quick, head, drop):
    """A header a moment keeps no connection; a body has a time for all of it."""
    with socket.create_connection((quick.host, quick.port), timeout=0.05) as connection:
        connection.sendall(head)
        answer = b""
        for _ in range(100):
            with contextlib.suppress(TimeoutError):
                answer = connection.recv(4096)
                break
            connection.sendall(drop)
        assert answer.startswith(b"HTTP/1.1 408")


def test_an_idle_connection_is_closed(quick):
    assert quick.raw(b"", timeout=9) == b""
    with socket.create_connection((quick.host, quick.port), timeout=5) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        assert connection.recv(4096) == b""


def test_a_client_that_does_not_read_is_let_go(tmp_path):
    """Answers wait in bounded space: reading stops, and after a while the connection ends."""
    with LiveHub(tmp_path, settings=QUICK) as hub:
        size = 500_000
        hub.request("POST", "/v1/submit", submit_body(1, ciphertext=bytes(36) + size.to_bytes(4, "big") + bytes(size)))
        request = post("/v1/stream", StreamRequest(label=w.LABEL, from_seq=1).to_bytes())
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect((hub.host, hub.port))
            connection.settimeout(10)
            with pytest.raises(ConnectionError):
                connection.sendall(request * 100_000)
        assert hub.request("GET", "/healthz")[0] == 200


# --- hostile bytes ----------------------------------------------------------------------------------------


@given(st.binary(min_size=1, max_size=300))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_garbage_gets_an_answer_or_a_closed_connection(hub, data):
    for status, _, _ in split_answers(hub.raw(data, shutdown=True)):
        assert 400 <= status < 500


@given(st.integers(0, 250), st.integers(0, 255))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_changed_byte_of_a_request_never_breaks_the_hub(hub, place, value):
    data = bytearray(post("/v1/stream", StreamRequest(label=bytes(32), from_seq=1).to_bytes(), "Accept: */*"))
    data[place % len(data)] = value
    for status, _, _ in split_answers(hub.raw(bytes(data), shutdown=True)):
        assert status < 500 or status == 505  # the byte may be one of the version
    assert hub.request("GET", "/healthz")[0] == 200


AMBIGUOUS = [
    b"POST /v1/submit HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /v1/submit HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
    b"POST /v1/submit HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n",
    b"POST /v1/submit HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999999999999999\r\n\r\n",
    b"POST /v1/submit HTTP/1.1\r\n\r\n",
    b"CONNECT hub:80 HTTP/1.1\r\nHost: h\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET /tooling/stream?" + b"a=1&" * 40 + b" HTTP/1.1\r\nHost: h\r\n\r\n",
    b"GET /\xff\xfe HTTP/1.1\r\nHost: h\r\n\r\n",
]


@pytest.mark.parametrize("number", range(len(AMBIGUOUS)))
def test_ambiguous_requests_are_refused(hub, number):
    data = AMBIGUOUS[number]
    answers = split_answers(hub.raw(data, shutdown=True))
    assert len(answers) == 1
    assert 400 <= answers[0][0] < 500


# --- TLS --------------------------------------------------------------------------------------------------


def certificate(directory, name, issuer=None):
    """A key and a certificate in files; self-signed, or signed by `issuer`."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issuer_name, issuer_key = issuer or (subject, key)
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer_name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .sign(issuer_key, hashes.SHA256())
    )
    cert, private = directory / f"{name}.pem", directory / f"{name}.key"
    cert.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    private.touch(mode=0o600)
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return cert, private, (subject, key)


def trusting(cert):
    context = ssl.create_default_context(cafile=cert)
    context.check_hostname = False
    return context


def over_tls(hub, context, method="GET", path="/healthz", body=None, headers=None):
    connection = http.client.HTTPSConnection(hub.host, hub.port, context=context, timeout=10)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read(), connection.sock.cipher() if connection.sock else None
    finally:
        connection.close()


@pytest.mark.req("SH0-03", "API-02")
def test_tls_is_new_and_authenticated_and_certificates_can_be_replaced(tmp_path):
    cert, key, _ = certificate(tmp_path, "hub")
    with LiveHub(tmp_path / "data", tls=Tls(cert, key)) as hub:
        assert over_tls(hub, trusting(cert))[0] == 200
        assert over_tls(hub, trusting(cert), "POST", "/v1/submit", submit_body(1))[0] == 200
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        old.set_ciphers("ECDHE-ECDSA-AES128-SHA256:ECDHE-ECDSA-AES256-SHA:@SECLEVEL=0")
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(ssl.SSLError):
            over_tls(hub, old)  # TLS 1.2, but no AEAD
        fresh = trusting(cert)
        fresh.maximum_version = ssl.TLSVersion.TLSv1_2
        assert over_tls(hub, fresh)[0] == 200
        assert hub.raw(b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n")[:4] != b"HTTP"
        certificate(tmp_path, "hub")  # other key and certificate, same files
        hub.on_loop(lambda: hub.server.reload(hub.server.settings, Tls(cert, key), trust_removed=False))
        with pytest.raises(ssl.SSLError):
            over_tls(hub, fresh)  # the one it trusts is gone
        assert over_tls(hub, trusting(cert))[0] == 200
        key.write_bytes(b"not a key")
        with pytest.raises(TlsError):
            Tls(cert, key)
        assert over_tls(hub, trusting(cert))[0] == 200


@pytest.mark.req("SH0-03")
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602, 0o600, 0o400])
def test_a_private_key_that_others_may_access_is_not_used(tmp_path, mode):
    """As for tokens and the keys of the hub: the error says the mode and what to do, and nothing of the key."""
    cert, key, _ = certificate(tmp_path, "hub")
    key.chmod(mode)
    if not mode & 0o077:
        Tls(cert, key)
        return
    with pytest.raises(TlsError, match=f"mode {mode:04o}") as refused:
        Tls(cert, key)
    assert "chmod 600" in refused.value.hint
    assert "PRIVATE" not in str(refused.value)


def test_no_old_protocol_and_no_weak_suite_is_offered(tmp_path):
    context = Tls(*certificate(tmp_path, "hub")[:2]).context
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.options & ssl.OP_NO_COMPRESSION
    assert all(suite["aead"] for suite in context.get_ciphers())


def test_client_certificates_name_administrators(tmp_path):
    ca_cert, _, ca = certificate(tmp_path, "ca")
    cert, key, _ = certificate(tmp_path, "hub")
    client_cert, client_key, _ = certificate(tmp_path, "operator", issuer=ca)
    other_cert, other_key, _ = certificate(tmp_path, "visitor", issuer=ca)
    access = Access.of(admin_names=["operator"])
    with LiveHub(tmp_path / "data", tls=Tls(cert, key, ca_cert), access=access) as hub:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            over_tls(hub, trusting(cert))
        for files, expected in (((client_cert, client_key), 200), ((other_cert, other_key), 403)):
            context = trusting(cert)
            context.load_cert_chain(*files)
            assert over_tls(hub, context, path="/tooling/streams")[0] == expected


@pytest.mark.parametrize(
    ("host", "plain"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("hub", False)],  # noqa: S104 - a name
)
def test_plain_http_stays_on_this_machine(host, plain):
    """D-67."""
    if plain:
        check_plain(host)
    else:
        with pytest.raises(PlainHttpError):
            check_plain(host)


# --- going away -------------------------------------------------------------------------------------------


def test_stopping_answers_what_was_begun(tmp_path):
    """Pending submits get their receipts, idle connections are closed, new ones are not taken."""
    with LiveHub(tmp_path, workers=1) as hub:
        idle = socket.create_connection((hub.host, hub.port), timeout=DEADLINE_SEC)
        busy = socket.create_connection((hub.host, hub.port), timeout=DEADLINE_SEC)
        count = 30
        busy.sendall(b"".join(post("/v1/submit", submit_body(seq)) for seq in range(1, count + 1)))
        received = busy.recv(65536)
        stopping = asyncio.run_coroutine_threadsafe(hub.server.stop(DEADLINE_SEC), hub.loop)
        while part := busy.recv(65536):
            received += part
        stopping.result(DEADLINE_SEC)
        answers = split_answers(received)
        assert all(status == 200 for status, _, _ in answers)
        assert len(answers) == hub.on_loop(lambda: hub.services.sequencer.store.files(w.LABEL).size)
        assert idle.recv(10) == b""
        idle.close()
        busy.close()
        with pytest.raises(OSError):  # noqa: PT011 - refused or reset, by chance
            socket.create_connection((hub.host, hub.port), timeout=1).recv(1)


def test_uvloop_serves_as_well(tmp_path):
    with LiveHub(tmp_path, new_loop=uvloop.new_event_loop) as hub:
        data = b"".join(post("/v1/submit", submit_body(seq)) for seq in range(1, 6)) + post("/nowhere", b"")
        assert [status for status, _, _ in split_answers(hub.raw(data, expect=6))] == [200] * 5 + [404]
        assert split_answers(hub.raw(b"\xff\xff\xff\xff\r\n\r\n"))[0][0] == 400
