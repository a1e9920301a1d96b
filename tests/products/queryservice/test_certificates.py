"""Client certificates name principals: real certificates, a real TLS server (QRY-20)."""

import datetime
import json
import ssl
import subprocess

import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from starlette.requests import Request
from tests.lake.query_builders import STREAMS, descriptor
from tests.products.queryservice.services import TOKENS, log_at, served, table

from veen.client.errors import LocalError
from veen.io.asgi_server import ClientCertificate, ListenAddress, make_server
from veen.io.tls import ExposedKeyError, TlsError
from veen.lake import query
from veen.lake.query.errors import ServiceRefused, ServiceUnreachable
from veen.products.queryservice.http import Unauthorized, authenticate
from veen.products.queryservice.principals import Principals

WORKLOAD = "spiffe://example/ns/audit/sa/reader"


def principal(name, **members):
    about = table("alice", **members) | {"client_id": name.encode().ljust(32).hex(), "subject_id": f"user:{name}"}
    return {key: value for key, value in about.items() if value is not None}


PRINCIPALS = Principals.of(
    {
        "principal": {
            "alice": principal("alice", certificate_names=["alice"]),
            "bob": principal("bob", token_sha256=None, certificate_names=["bob.example"], scopes=[STREAMS[0]]),
            "reader": principal("reader", token_sha256=None, certificate_names=[WORKLOAD]),
        }
    }
)


class Authority:
    """A certificate authority in a directory."""

    def __init__(self, directory, name):
        directory.mkdir()
        self.directory, self._key = directory, ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.file = directory / "ca.pem"
        self.file.write_bytes(_pem(self._sign(self._name, self._key.public_key(), 3650, [], is_ca=True)))

    def certificate(self, common, *alternatives, days=1):
        """Files of a certificate and its key."""
        key, name = (
            ec.generate_private_key(ec.SECP256R1()),
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)] if common else []),
        )
        stem = f"{len(list(self.directory.iterdir()))}"
        cert, private = self.directory / f"{stem}.pem", self.directory / f"{stem}.key"
        cert.write_bytes(_pem(self._sign(name, key.public_key(), days, alternatives)))
        private.touch(mode=0o600)
        private.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return cert, private

    def _sign(self, name, public, days, alternatives, *, is_ca=False):
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=30))
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        )
        if alternatives:
            builder = builder.add_extension(x509.SubjectAlternativeName(list(alternatives)), critical=not name.rdns)
        return builder.sign(self._key, hashes.SHA256())


def _pem(certificate):
    return certificate.public_bytes(serialization.Encoding.PEM)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("pki") / "clients", "clients of the query service")


@pytest.fixture(scope="module")
def web(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("pki") / "web", "servers")


@pytest.fixture(scope="module")
def service(tmp_path_factory, authority, web):
    path = tmp_path_factory.mktemp("service")
    cert, key = web.certificate("localhost", x509.DNSName("localhost"))
    at = ListenAddress(host="localhost", tls_cert=cert, tls_key=key, client_ca=authority.file)
    with served(path, log_at(path / "log"), principals=PRINCIPALS, at=at) as url:
        yield url


def connected(service, web, files):
    return query.connect(service, client_cert=files[0], client_key=files[1], ca_file=web.file)


def status_of(service, web, files=(None, None), *, token=None):
    """What a caller with these credentials is told of a result that there is not: 404 if the service knows them."""
    context = ssl.create_default_context(cafile=web.file)
    if files[0] is not None:
        context.load_cert_chain(*files)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    answer = httpx2.get(f"{service}/api/query/status/r-none", headers=headers, verify=context, timeout=60)
    return answer.status_code, json.loads(answer.content)["message"]


@pytest.mark.req("QRY-20")
def test_a_certificate_answers_for_its_principal_and_its_scopes(service, web, authority):
    files = authority.certificate("somebody", x509.DNSName("bob.example"))
    with connected(service, web, files) as bob:
        answer = bob.ask(descriptor(query_id="q-bob", scope=[STREAMS[0]]))
        assert len(list(answer.rows())) == answer.digest.row_count > 0
        with pytest.raises(ServiceRefused, match="forbidden_scope"):
            bob.ask(descriptor(query_id="q-bob-2", scope=[STREAMS[1]]))
    alice = connected(service, web, authority.certificate("alice"))
    with alice, pytest.raises(ServiceRefused, match="query_not_found"):  # bob's
        alice.status(answer.digest.result_id)


@pytest.mark.req("QRY-20")
def test_common_names_dns_names_and_uris_name_principals_and_other_names_nobody(service, web, authority):
    for files in (
        authority.certificate("alice"),
        authority.certificate("x", x509.DNSName("y.example"), x509.DNSName("bob.example")),
        authority.certificate("", x509.UniformResourceIdentifier(WORKLOAD)),
    ):
        assert status_of(service, web, files)[0] == 404
    for files in (
        authority.certificate("mallory"),
        authority.certificate("Alice"),
        authority.certificate("alice.example", x509.DNSName("alice.bob.example")),
        authority.certificate("x", x509.RFC822Name("alice")),
        authority.certificate("alice", x509.DNSName("bob.example")),  # two principals
    ):
        status, message = status_of(service, web, files)
        assert (status, "no name in the client certificate" in message) == (401, True)


@pytest.mark.req("QRY-20")
def test_tokens_still_count_and_must_not_contradict_a_certificate(service, web, authority):
    alice, token = authority.certificate("alice"), TOKENS["alice"]
    assert status_of(service, web, token=token)[0] == 404
    assert status_of(service, web, alice, token=token)[0] == 404
    assert status_of(service, web, authority.certificate("a machine of the same CA"), token=token)[0] == 404
    status, message = status_of(service, web, authority.certificate("bob.example"), token=token)
    assert (status, "two principals" in message) == (401, True)
    assert status_of(service, web, alice, token="wrong")[0] == 401
    status, message = status_of(service, web)
    assert (status, "a bearer token or a client certificate" in message) == (401, True)


def test_certificates_of_others_and_expired_ones_do_not_get_through_the_handshake(service, web, authority, tmp_path):
    stranger = Authority(tmp_path / "other", "clients of the query service")
    for files in (stranger.certificate("alice"), web.certificate("alice"), authority.certificate("alice", days=-1)):
        with connected(service, web, files) as connection, pytest.raises(ServiceUnreachable):
            connection.status("r-none")


def test_a_header_is_no_certificate(service, web):
    context = ssl.create_default_context(cafile=web.file)
    headers = {"X-Client-Cert": "alice", "X-SSL-Client-S-DN": "CN=alice", "X-Forwarded-Client-Cert": "Subject=alice"}
    answer = httpx2.get(f"{service}/api/query/status/r-none", headers=headers, verify=context, timeout=60)
    assert answer.status_code == 401


def test_the_server_is_verified_and_speaks_new_tls_only(service, web, authority, tmp_path):
    files = authority.certificate("alice")
    other = Authority(tmp_path / "other", "another authority")
    with connected(service, other, files) as connection, pytest.raises(ServiceUnreachable):
        connection.status("r-none")
    host = service.removeprefix("https://")
    old = subprocess.run(
        ["openssl", "s_client", "-connect", host, "-tls1_1"], input=b"", capture_output=True, timeout=60, check=False
    )
    assert old.returncode != 0
    assert httpx2.get(f"{service}/healthz", verify=ssl.create_default_context(cafile=web.file)).json() == {"ok": True}


def test_files_that_cannot_be_used_are_named(web, authority, tmp_path):
    cert, key = web.certificate("localhost", x509.DNSName("localhost"))
    (tmp_path / "no.pem").write_text("no certificate\n")
    with pytest.raises(TlsError, match="contains no certificate"):
        make_server(None, ListenAddress(tls_cert=cert, tls_key=key, client_ca=tmp_path / "no.pem"))
    with pytest.raises(TlsError):
        make_server(None, ListenAddress(tls_cert=cert, tls_key=authority.certificate("x")[1]))
    exposed = web.certificate("x")[1]
    exposed.chmod(0o644)
    with pytest.raises(ExposedKeyError):
        make_server(None, ListenAddress(tls_cert=cert, tls_key=exposed))


def test_a_client_certificate_goes_over_tls_only_and_somebody_must_ask(authority, tmp_path):
    cert, key = authority.certificate("alice")
    with pytest.raises(ServiceUnreachable, match="https"):
        query.connect("http://127.0.0.1:1", client_cert=cert, client_key=key)
    with pytest.raises(ServiceUnreachable, match="a token or a client certificate is required"):
        query.connect("https://127.0.0.1:1")
    with pytest.raises(LocalError, match="not usable for TLS"):
        query.connect("https://127.0.0.1:1", client_cert=tmp_path / "none.pem", client_key=key)


def test_a_certificate_that_expired_while_its_connection_was_open_is_refused():
    certificate = ClientCertificate(names=("alice",), expires_at=1_700_000_000.0)
    scope = {"type": "http", "headers": [], "extensions": {"veen.client_certificate": certificate}}
    with pytest.raises(Unauthorized, match="expired"):
        authenticate(Request(scope), PRINCIPALS)
