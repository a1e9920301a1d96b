"""Signatures of the OpenTelemetry collector on log records, and gaps in the numbers of senders."""

import asyncio
import base64
import hashlib
import hmac
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from tests.client.hubs import run
from tests.products.recorder.agents import FAST, connector, spool_of
from tests.products.recorder.recorders import recorder_at
from tests.products.recorder.sources import Taken
from tests.products.recorder.sources import running as listening
from tests.products.recorder.test_agent import own_events
from tests.products.recorder.test_evidence import judged
from tests.products.recorder.test_http_sources import JSON, sent

from veen.client.errors import LocalError
from veen.core.canonical import parse
from veen.core.labels import stream_id_of
from veen.core.verdict import Outcome
from veen.products.recorder.adapters.otlp import Otlp, records_of_request
from veen.products.recorder.agent import Agent, AgentSource
from veen.products.recorder.events import fit_record
from veen.products.recorder.integrity import IntegrityKeys, SequenceNumbers, canonical_json, check_integrity
from veen.products.recorder.sink import Sinks

KEYS: dict[str, Any] = {
    "EdDSA": ed25519.Ed25519PrivateKey.from_private_bytes(b"\x07" * 32),
    "ES256": ec.derive_private_key(7, ec.SECP256R1()),
    "RS256": rsa.generate_private_key(65537, 2048),
}
KEYS["RS512"] = KEYS["RS256"]
SHARED = b"shared key of a test"


def certificate_of(key):
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "collector")])
    now = datetime(2026, 1, 1, tzinfo=UTC)
    built = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    built = built.serial_number(7).not_valid_before(now).not_valid_after(now + timedelta(days=9))
    return built.sign(key, None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256())


CERTIFICATES = {algorithm: certificate_of(key) for algorithm, key in KEYS.items()}
ATTRIBUTES = [
    {"key": "enduser.id", "value": {"stringValue": "alice"}},
    {"key": "count", "value": {"intValue": "9007199254740993"}},
    {"key": "ratio", "value": {"doubleValue": 1.0}},
    {"key": "raw", "value": {"bytesValue": "AP8="}},
    {"key": "ok", "value": {"boolValue": True}},
    {"key": "list", "value": {"arrayValue": {"values": [{"stringValue": "a"}, {"intValue": "1"}]}}},
    {"key": "map", "value": {"kvlistValue": {"values": [{"key": "k", "value": {"doubleValue": 0.1}}]}}},
]
# The object that the processor signs for them, written by hand from its documentation.
SIGNED = {
    "attributes": {
        "count": {"intValue": "9007199254740993"},
        "enduser.id": {"stringValue": "alice"},
        "list": [{"stringValue": "a"}, {"intValue": "1"}],
        "map": {"k": {"doubleValue": 0.1}},
        "ok": {"boolValue": True},
        "ratio": {"doubleValue": 1},
        "raw": {"bytesValue": "AP8="},
    },
    "body": "paid",
    "timestamp": "1794823200123456789",
    "trace_id": "5b8efff798038103d269b633813fc60c",
}


def sign(algorithm, data):
    if algorithm == "HMAC-SHA256":
        return hmac.digest(SHARED, data, "sha256")
    key = KEYS[algorithm]
    if algorithm == "EdDSA":
        return key.sign(data)
    if algorithm == "ES256":
        return key.sign(data, ec.ECDSA(hashes.SHA256()))
    return key.sign(data, padding.PKCS1v15(), hashes.SHA256() if algorithm == "RS256" else hashes.SHA512())


def request(algorithm="EdDSA", *, full=False, body=None, signed=SIGNED, more=()):
    """One signed record, as a collector exports it."""
    data = json.dumps(signed, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    value = base64.b64encode(sign(algorithm, data)).decode()
    resource = [
        {"key": "service.name", "value": {"stringValue": "shop"}},
        {"key": "audit.integrity.algorithm", "value": {"stringValue": algorithm}},
    ]
    if algorithm in KEYS:
        der = CERTIFICATES[algorithm].public_bytes(Encoding.DER)
        reference = base64.b64encode(der).decode() if full else f"sha256:{hashlib.sha256(der).hexdigest()}"
        resource.append({"key": "audit.integrity.certificate", "value": {"stringValue": reference}})
    record = {
        "timeUnixNano": "1794823200123456789",
        "traceId": "5b8efff798038103d269b633813fc60c",
        "body": body or {"stringValue": "paid"},
        "attributes": [*ATTRIBUTES, *more, {"key": "audit.integrity.value", "value": {"stringValue": value}}],
    }
    return {"resourceLogs": [{"resource": {"attributes": resource}, "scopeLogs": [{"logRecords": [record]}]}]}


def payload_of(tree):
    """As it stands in the log: shaped, encoded, and read again."""
    (record,) = records_of_request(tree, key="k" * 64, now=1, host="h")
    return parse(fit_record(record, adapter="otlp", source="otel").payload)


def trusted(algorithm):
    if algorithm == "HMAC-SHA256":
        return IntegrityKeys.read([], base64.b64encode(SHARED))
    return IntegrityKeys.read([CERTIFICATES[algorithm].public_bytes(Encoding.PEM)])


@pytest.mark.parametrize("algorithm", ["EdDSA", "ES256", "RS256", "RS512", "HMAC-SHA256"])
@pytest.mark.parametrize("full", [False, True])
def test_a_signature_holds_after_storage_and_not_after_a_change(algorithm, full):
    payload = payload_of(request(algorithm, full=full))
    keys = trusted(algorithm)
    assert check_integrity(payload, keys) is None
    for change in (
        {"body": "unpaid"},
        {"attributes": {**payload["attributes"], "count": 1}},
        {"_typed": {**payload["_typed"], "body": {"stringValue": "unpaid"}}},
    ):
        assert "types" in str(check_integrity({**payload, **change}, keys))
    later = {**payload, "timeUnixNano": "1794823200123456790"}
    assert check_integrity(later, keys) == "the signature does not match the record"
    other = trusted("HMAC-SHA256" if algorithm != "HMAC-SHA256" else "EdDSA")
    assert check_integrity(payload, other) == "no key is named for its certificate"


def test_bodies_that_are_no_text_verify_in_both_forms_of_the_processor():
    body = {"kvlistValue": {"values": [{"key": "a", "value": {"intValue": "1"}}]}}
    without = {name: value for name, value in SIGNED.items() if name != "body"}
    for signed in (without, SIGNED | {"body": {"a": {"intValue": "1"}}}):
        payload = payload_of(request(body=body, signed=signed))
        assert check_integrity(payload, trusted("EdDSA")) is None


@pytest.mark.parametrize("hurt", ["resource", "_typed", "attributes"])
def test_a_record_that_lacks_something_is_named_and_stops_nothing(hurt):
    payload = payload_of(request())
    assert check_integrity({**payload, hurt: None}, trusted("EdDSA"))


def test_keys_that_are_none_are_refused():
    for certificates, shared in (([b"no pem"], None), ([], b"***")):
        with pytest.raises(LocalError):
            IntegrityKeys.read(certificates, shared)
    assert "shared key" not in repr(trusted("HMAC-SHA256"))


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0"), (-0.0, "0"), (1.0, "1"), (-1.5, "-1.5"), (0.1, "0.1"), (1e21, "1e+21"), (1e17, "1" + "0" * 17),
        (1e-6, "0.000001"), (1e-7, "1e-7"), (1.5e-9, "1.5e-9"), (123456.789, "123456.789"), (5e-324, "5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e+308"), (9007199254740992.0, "9007199254740992"),
    ],
)  # fmt: skip
def test_numbers_are_written_as_rfc_8785_has_them(number, text):
    assert canonical_json(number) == text


def test_names_are_sorted_by_utf_16_and_text_is_escaped_as_little_as_possible():
    """The example of RFC 8785 §3.2.3 for names beyond the first plane."""
    names = {"\u20ac": 1, "\r": 2, "\ufb33": 3, "1": 4, "\U0001f600": 5, "\x80": 6, "\xf6": 7}
    assert list(json.loads(canonical_json(names))) == ["\r", "1", "\x80", "\xf6", "\u20ac", "\U0001f600", "\ufb33"]
    assert canonical_json("\u20ac$\x0f\nA'B\"\\/") == '"\u20ac$\\u000f\\nA\'B\\"\\\\/"'


# --- sequence numbers -------------------------------------------------------------------------------------------------


def numbered(*numbers):
    records = [
        {
            "timeUnixNano": str(1_794_823_200_000_000_000 + number),
            "body": {"stringValue": str(number)},
            "attributes": [{"key": "audit.sequence.number", "value": {"intValue": str(number)}}],
        }
        for number in numbers
    ]
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "shop"}}]}
    return json.dumps({"resourceLogs": [{"resource": resource, "scopeLogs": [{"logRecords": records}]}]}).encode()


def test_gaps_of_a_sender_are_recorded_as_losses_once_also_across_a_restart():
    async def story():
        source = Taken()
        drain = asyncio.create_task(source.drain())
        for bodies in ([numbered(5, 6), numbered(9), numbered(9)], [numbered(9), numbered(12, 11)]):
            async with listening(Otlp("otel", "127.0.0.1", 0), source) as adapter:  # each round is a restart
                for body in bodies:
                    assert (await sent(adapter.port, "/v1/logs", body, JSON))[0] == 200
        drain.cancel()
        assert sorted(source.losses()) == [
            ("audit.sequence.number of shop/None: 10 to 10 did not come", 1),
            ("audit.sequence.number of shop/None: 7 to 8 did not come", 2),
        ]

    run(story())


def test_numbers_that_come_late_are_not_missing():
    numbers = SequenceNumbers(3)
    for number in (4, 9, 7, 3):
        numbers.add(number)
    assert (numbers.upto, numbers.missing) == (4, 3)
    for number in (5, 6, 8):
        numbers.add(number)
    assert (numbers.upto, numbers.missing) == (9, 0)


@pytest.mark.req("SDR-12")
def test_verify_names_records_whose_signature_does_not_hold_and_numbers_that_are_missing(tmp_path):
    async def story():
        async with recorder_at(tmp_path) as world:
            spool, stop = spool_of(world, "web"), asyncio.Event()
            adapter, role = Otlp("otel", "127.0.0.1", 0), world.role("web")
            source = AgentSource(adapter, stream_id_of("record/app/web"))
            agent = Agent(role.keystore, role.tokens, Sinks(spool, "h"), [source], connector(world), pace=FAST)
            running = asyncio.create_task(agent.run(stop))
            await adapter.ready.wait()
            good, bad = json.dumps(request()).encode(), json.dumps(request(signed=SIGNED | {"body": "other"})).encode()
            for body in (good, bad, numbered(1, 2), numbered(5)):
                assert (await sent(adapter.port, "/v1/logs", body, JSON))[0] == 200
            stop.set()
            await running
            spool.close()
            report = await judged(world, integrity=trusted("EdDSA"))
            assert report.verdict.value is Outcome.INCOMPLETE
            codes = [(finding.code, finding.seq) for finding in report.findings]
            assert ("SDR.INTEGRITY", 2) in codes
            assert [code for code, _ in codes].count("SDR.INTEGRITY") == 1
            assert report.collector_signatures == 1
            assert any(finding.code == "SDR.GAP" and "the first is 3" in finding.what for finding in report.findings)
            losses = [payload for kind, payload in await own_events(world) if kind == "recorder.loss"]
            assert [payload["count"] for payload in losses] == [2]
            assert not [f for f in (await judged(world)).findings if f.code == "SDR.INTEGRITY"]  # only on request

    run(story())
