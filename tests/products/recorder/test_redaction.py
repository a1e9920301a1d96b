"""Redaction comes first: what a rule names is in nothing that is sealed, in no encoding."""

import base64
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.client.hubs import run
from tests.products.recorder.sources import STREAM, Taken

from veen.core import cbor
from veen.core.canonical import parse
from veen.products.recorder.adapters.journald import JournaldSource
from veen.products.recorder.adapters.lines import record_of_line
from veen.products.recorder.adapters.otlp import records_of_request
from veen.products.recorder.adapters.syslog import parse_syslog
from veen.products.recorder.adapters.webhook import Arrival, cloud_event, kubernetes_event
from veen.products.recorder.events import Selectors, SourceRecord
from veen.products.recorder.integrity import IntegrityKeys, check_integrity, is_signed
from veen.products.recorder.redaction import Redactor
from veen.products.recorder.sink import SpoolSink

SECRET = "4111222233334444"  # a number as well as a text
PATTERN = rf"re:{SECRET[:4]}\d{{12}}"


class Source:
    kind, id = "test", "test"

    async def run(self, sink):
        raise NotImplementedError  # the tests put records into the sink themselves


def sealed(make, rules):
    """The bytes of all events that the spool holds for a record, without the openings, which are for another reader."""
    intake = Taken()
    sink = SpoolSink(intake.shared, Source(), STREAM, Redactor.of(rules))
    records = make(sink)
    run(sink.put(records))
    batch = intake.spool.next_batch(1_000, 1 << 30)
    assert batch is not None
    return b"".join(waiting.data for waiting in batch[1]) + json.dumps(intake.spool.positions()).encode()


def forms(secret=SECRET):
    """The secret as text, hex, base64 at each of its three places, and as a list of numbers."""
    data = secret.encode()
    yield data
    yield data.hex().encode()
    for pad in range(3):
        text = base64.b64encode(b"\0" * pad + data)
        yield text[4 if pad else 0 : len(text) // 4 * 4 - 4]
    yield ",".join(map(str, data)).encode()


def assert_hidden(make, rules, secret=SECRET):
    data = sealed(make, rules)
    assert b"_commit" in data
    for form in forms(secret):
        assert form not in data, (form, data)


def line(data):
    return lambda sink: [record_of_line(data, Selectors(), origin="o", position="1", now=1, redactor=sink.redactor)]


def arrival(sink):
    return Arrival(1, sink.digest, sink.redactor, {})


HOLDERS = st.sampled_from(
    [
        SECRET, int(SECRET), float(SECRET), f"card {SECRET} used", {SECRET: 1}, {"a": {f"x{SECRET}": None}}, [[SECRET]],
        base64.b64encode(f"card {SECRET}".encode()).decode(), SECRET.encode().hex(), list(f"card {SECRET}".encode()),
        {"base64": base64.b64encode(b"\xff" + SECRET.encode()).decode(), "text": "x"},
    ]
)  # fmt: skip


@given(HOLDERS, st.sampled_from(["user", "event", "origin", "time", "message", "nested"]))
def test_a_pattern_hides_a_value_wherever_a_json_line_has_it(value, name):
    data = json.dumps({"n": 1, name: {"deep": [value]} if name == "nested" else value}).encode()
    assert_hidden(line(data), [PATTERN])


@given(st.binary(max_size=30), st.binary(max_size=30))
@example(b"\xff ", b"")
@example(b'{"user":"', b'"')
def test_a_pattern_hides_a_value_in_any_bytes(before, after):
    data = (before + b" " + SECRET.encode() + b" " + after).replace(b"\n", b"")
    assert_hidden(line(data), [PATTERN])
    assert_hidden(lambda sink: [parse_syslog(data, now=1, peer="p", redactor=sink.redactor)], [PATTERN])


@pytest.mark.parametrize(
    "data",
    [
        b'{"password":"%s"}', b'{"password":%s}', b'{"password":{"a":["%s"]}}', b'{"pass\\u0077ord":"%s"}',
        b'{"password":"%s","password":"x"}', b'{"password":"%s"', b'[{"password":"%s"}]',
        b'{"password":{"_commit":"%s"}}', b'{"password":"%s","user":' + b"[" * 200 + b"]" * 200 + b"}",
    ],
)  # fmt: skip
def test_a_path_hides_its_member_also_where_the_record_cannot_be_parsed(data):
    assert_hidden(line(data % SECRET.encode()), [".password"])


@pytest.mark.parametrize("name", ["user", "event", "origin", "time"])
def test_what_is_derived_from_a_hidden_member_does_not_show_it(name):
    """Subject, type, origin and time."""
    assert_hidden(line(json.dumps({name: SECRET}).encode()), [f".{name}"])
    assert_hidden(line(json.dumps({name: int(SECRET)}).encode()), [f".{name}"])


def test_a_pattern_across_two_fields_hides_the_whole_record():
    data = json.dumps({"card": SECRET[:8], "rest": SECRET[8:]}).encode()
    assert_hidden(line(data), [rf're:{SECRET[:8]}", "rest": "{SECRET[8:]}'], SECRET[:8])


@pytest.mark.parametrize(
    ("frame", "rule"),
    [
        (f'<13>1 2026-11-16T10:00:00Z host app - - [a user="{SECRET}"] x', PATTERN),
        (f'<13>1 2026-11-16T10:00:00Z host app - - [a user="{SECRET}"] x', ".structured.a.user"),
        (f"<13>1 2026-11-16T10:00:00Z {SECRET} app - - - x", ".host"),
        (f"<13>1 2026-11-16T10:00:00Z host {SECRET} - - - x", ".app"),
        (f"<13>1 2026-11-16T10:00:00Z host app - {SECRET} - x", ".msgid"),
        (f"<13>Nov 16 10:00:00 host {SECRET}[1]: x", ".app"),
        (f"<13>1 {SECRET} host app - - - x", PATTERN),
        (f"<13>1 2026-11-16T10:00:00Z host app - - - \udcff{SECRET}", PATTERN),
    ],
)
def test_syslog_fields_are_hidden_before_names_are_derived(frame, rule):
    data = frame.encode(errors="surrogateescape")
    assert_hidden(lambda sink: [parse_syslog(data, now=1, peer="10.0.0.1", redactor=sink.redactor)], [rule])


def test_the_address_of_a_sender_is_hidden_by_a_pattern():
    def make(sink):
        return [parse_syslog(b"<13>from 10.9.8.7", now=1, peer="10.9.8.7", redactor=sink.redactor)]

    assert_hidden(make, [r"re:\d+\.\d+\.\d+\.\d+"], "10.9.8.7")


@given(HOLDERS, st.sampled_from(["MESSAGE", "_UID", "SYSLOG_IDENTIFIER", "_HOSTNAME", "_SYSTEMD_UNIT", "_COMM"]))
def test_journal_fields_are_hidden_before_names_are_derived(value, name):
    entry = json.dumps({"__CURSOR": "c", name: value}).encode()
    for rule in (PATTERN, f".{name}"):
        assert_hidden(lambda sink: [JournaldSource._record(entry, len(entry), sink)], [rule])


ANY = st.sampled_from(
    [
        {"stringValue": SECRET}, {"stringValue": f"card {SECRET}"}, {"intValue": SECRET},
        {"doubleValue": float(SECRET)},
        {"bytesValue": base64.b64encode(f"\xff{SECRET}".encode("latin-1")).decode()},
        {"arrayValue": {"values": [{"intValue": SECRET}]}},
        {"kvlistValue": {"values": [{"key": SECRET, "value": {"boolValue": True}}]}},
    ]
)  # fmt: skip


def otlp(value, name, *, is_signed_record=True):
    attributes = [{"key": "audit.integrity.value", "value": {"stringValue": "c2ln"}}] if is_signed_record else []
    log = {"body": {"stringValue": "x"}, "attributes": attributes}
    resource = []
    if name == "body":
        log["body"] = value
    elif name == "resource":
        resource.append({"key": "service.name", "value": value})
    else:
        attributes.append({"key": name, "value": value})
    return {"resourceLogs": [{"resource": {"attributes": resource}, "scopeLogs": [{"logRecords": [log]}]}]}


@given(ANY, st.sampled_from(["body", "resource", "enduser.id", "event.name", "card"]), st.booleans())
def test_otlp_values_are_hidden_also_in_their_typed_copy(value, name, is_signed_record):
    """`_typed`, base64 of bytes, and JSON numbers."""
    tree = otlp(value, name, is_signed_record=is_signed_record)
    path = {"body": ".body", "resource": ".resource.service.name"}.get(name, f".attributes.{name}")
    for rule in (PATTERN, path):
        assert_hidden(
            lambda sink: list(records_of_request(tree, key="k" * 40, now=1, host="h", redactor=sink.redactor)), [rule]
        )


def test_a_signed_record_that_was_redacted_says_that_its_signature_cannot_be_checked():
    """D-185."""
    tree = otlp({"stringValue": SECRET}, "card")
    (record,) = records_of_request(tree, key="k", now=1, host="h", redactor=Redactor.of([PATTERN]))
    assert is_signed(record.payload)
    assert "can no longer be checked" in record.payload["_unverifiable"]
    assert "can no longer be checked" in str(check_integrity(record.payload, IntegrityKeys()))
    (whole,) = records_of_request(tree, key="k", now=1, host="h", redactor=Redactor.of([".other"]))
    assert "_typed" in whole.payload


@given(
    HOLDERS.filter(lambda value: isinstance(value, str)), st.sampled_from(["id", "source", "type", "subject", "time"])
)
def test_cloud_events_are_hidden_before_names_are_derived(value, name):
    event = {"specversion": "1.0", "id": "1", "source": "s", "type": "t", name: value}
    for rule in (PATTERN, f".{name}"):
        assert_hidden(lambda sink: [cloud_event(event, arrival(sink))], [rule])
    data = {**event, name: "x", "data_base64": base64.b64encode(b"\xff" + SECRET.encode()).decode()}
    assert_hidden(lambda sink: [cloud_event(data, arrival(sink))], [PATTERN])


@given(HOLDERS, st.sampled_from(["auditID", "stage", "verb", "requestURI", "user", "objectRef", "requestObject"]))
def test_kubernetes_events_are_hidden_before_names_are_derived(value, name):
    content = {"user": {"username": value}, "objectRef": {"resource": value, "namespace": value}}.get(name, value)
    event = parse(json.dumps({"auditID": "a", "stage": "s", "verb": "get", name: content}))
    for rule in (PATTERN, f".{name}"):
        assert_hidden(lambda sink: [kubernetes_event(event, arrival(sink))], [rule])


def test_an_adapter_that_derives_names_itself_leaks_nothing():
    """Adapters of other packages give finished records to the sink."""

    def make(sink):
        return [
            SourceRecord(
                subject=SECRET, event_type=f"t {SECRET}", origin=SECRET, time=1, source_time=SECRET,
                position="1", payload={"password": SECRET, "n": int(SECRET)},
            )
        ]  # fmt: skip

    assert_hidden(make, [PATTERN])
    data = sealed(make, [".password", ".n"])
    subject, kind, origin, *_ = cbor.decode(data[: data.rindex(b"}{") + 1])
    assert (subject, kind, origin) == ("unknown", "unknown", "unknown")


def test_a_position_and_a_key_do_not_let_anybody_try_values():
    """A hash without a key of a record with few possible values would show which one it is."""
    import hashlib

    data = b'{"pin":"1234"}'
    intake = Taken()
    digest = intake.sink(Source()).digest(data)
    for name in ("sha256", "blake2b", "sha1"):
        assert digest not in hashlib.new(name, data).hexdigest()
    assert digest == intake.sink(Source()).digest(data)
