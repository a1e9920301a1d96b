"""The data plane over a real socket: five operations, two forms, and everything that can be wrong (spec §10)."""

import json
import time
from dataclasses import replace

import cbor2
import pytest
from tests.hub import builders as w
from tests.hub.servers import ADMIN, READER, VERSION, LiveHub, detail_of

from veen.core.labels import label_of
from veen.core.limits import Limits
from veen.core.objects.captoken import CapToken, Rate
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.envelopes import (
    CheckpointRequest,
    CheckpointResponse,
    ErrorEnvelope,
    ProofRequest,
    ProofResponse,
    ReceiptRequest,
    ReceiptResponse,
    StreamRequest,
    StreamResponse,
    SubmitRequest,
    SubmitResponse,
)
from veen.core.objects.profile import PRESETS
from veen.core.objects.receipt import Receipt
from veen.core.pow import solve
from veen.hub.admission.pow import HEADER
from veen.hub.api.access import Access
from veen.io.local import OsFs
from veen.storage.keys.identity import MissingKeyError
from veen.storage.maintenance import retention

FORMS = ["cbor", "json"]
COUNT = 12


def message(seq=1, **changes):
    return w.msg(token=w.FREE_TOKEN, seq=seq, **changes)


def submit(hub, msg, form="cbor", **options):
    return hub.call("/v1/submit", SubmitRequest(msg=msg), SubmitResponse, form=form, **options).receipt


def error(hub, path, body, *, form="cbor", headers=None):
    """The status and the error envelope that a body gets."""
    status, heads, data = hub.request("POST", path, body, {"Content-Type": f"application/{form}", **(headers or {})})
    assert heads["Content-Type"] == f"application/{form}", data
    envelope = ErrorEnvelope.from_bytes(data) if form == "cbor" else ErrorEnvelope.from_json(json.loads(data))
    return status, envelope


def refusal(hub, msg, form="cbor", **options):
    request = SubmitRequest(msg=msg)
    body = request.to_bytes() if form == "cbor" else json.dumps(request.to_json()).encode()
    status, envelope = error(hub, "/v1/submit", body, form=form, **options)
    return status, envelope.code, envelope.detail["stage"], envelope.detail["detail_enum"]


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """A hub with COUNT entries in one label; nobody writes to it."""
    with LiveHub(tmp_path_factory.mktemp("log"), limits=Limits(max_checkpoint_interval=5)) as hub:
        hub.messages = [message(seq) for seq in range(1, COUNT + 1)]
        hub.receipts = [submit(hub, msg) for msg in hub.messages]
        yield hub


@pytest.fixture
def hub(tmp_path):
    with LiveHub(tmp_path) as live:
        yield live


# --- the five operations ----------------------------------------------------------------------------------


@pytest.mark.req("API-01", "API-02", "API-05", "GEN-02")
@pytest.mark.parametrize("form", FORMS)
def test_submit_answers_with_a_receipt_of_the_hub(hub, form):
    msg = message()
    answer = hub.call("/v1/submit", SubmitRequest(msg=msg), SubmitResponse, form=form)
    answer.receipt.verify(w.HUB.public)
    assert answer.receipt.leaf_hash == msg.leaf_hash()
    assert (answer.receipt.stream_seq, answer.server_version) == (1, VERSION)


@pytest.mark.req("API-02")
@pytest.mark.parametrize("form", FORMS)
def test_the_form_of_the_answer_follows_accept(hub, form):
    body = SubmitRequest(msg=message()).to_bytes()
    headers = {"Content-Type": "application/cbor", "Accept": f"application/{form}"}
    status, heads, data = hub.request("POST", "/v1/submit", body, headers)
    assert (status, heads["Content-Type"]) == (200, f"application/{form}")
    assert (cbor2.loads(data)[1] if form == "cbor" else json.loads(data)["ver"]) == 1


@pytest.mark.req("API-06", "API-07", "API-08", "API-09", "API-01")
@pytest.mark.parametrize("form", FORMS)
def test_stream_reads_what_was_submitted(log, form):
    request = StreamRequest(label=w.LABEL, from_seq=1, with_receipts=True, with_mmr_proof=True)
    page = log.call("/v1/stream", request, StreamResponse, form=form)
    assert [item.msg for item in page.items] == log.messages
    assert [item.receipt for item in page.items] == log.receipts
    assert [item.stream_seq for item in page.items] == list(range(1, COUNT + 1))
    assert page.next_cursor is None
    last = log.receipts[-1]
    page.mmr_proof.verify(leaf_hash=last.leaf_hash, stream_seq=COUNT, expected_root=last.mmr_root)
    plain = log.call("/v1/stream", StreamRequest(label=w.LABEL, from_seq=1), StreamResponse, form=form)
    assert all(item.receipt is None for item in plain.items)
    assert plain.mmr_proof is None


@pytest.mark.req("API-10", "API-01")
@pytest.mark.parametrize("form", FORMS)
def test_receipt_finds_each_one_again(log, form):
    for seq in (1, 5, 6, COUNT):
        request = ReceiptRequest(label=w.LABEL, stream_seq=seq)
        assert log.call("/v1/receipt", request, ReceiptResponse, form=form).receipt == log.receipts[seq - 1]


@pytest.mark.req("API-11", "PROOF-01", "API-01")
@pytest.mark.parametrize("form", FORMS)
def test_proof_leads_to_the_root_in_the_entrys_own_receipt(log, form):
    for receipt in log.receipts:
        request = ProofRequest(label=w.LABEL, stream_seq=receipt.stream_seq)
        proof = log.call("/v1/proof", request, ProofResponse, form=form).mmr_proof
        proof.verify(leaf_hash=receipt.leaf_hash, stream_seq=receipt.stream_seq, expected_root=receipt.mmr_root)
        version, leaf_hash, path, peaks = (cbor2.loads(proof.to_bytes())[key] for key in (1, 2, 3, 4))
        assert (version, leaf_hash, peaks) == (1, receipt.leaf_hash, list(proof.peaks_after))
        assert path == [{1: step.dir, 2: step.sib} for step in proof.path]


@pytest.mark.req("API-12", "API-01")
@pytest.mark.parametrize("form", FORMS)
def test_checkpoint_is_signed_for_any_prefix(log, form):
    for upto in (1, 4, 5, COUNT):
        request = CheckpointRequest(label=w.LABEL, upto_seq=upto)
        checkpoint = log.call("/v1/checkpoint", request, CheckpointResponse, form=form).checkpoint
        checkpoint.verify(w.HUB.public)
        assert (checkpoint.upto_seq, checkpoint.mmr_root) == (upto, log.receipts[upto - 1].mmr_root)


def test_a_checkpoint_on_demand_has_the_bytes_of_the_one_that_sealed_the_chunk(log):
    """D-39: the directory stays a function of log and limits."""
    stored = next(log.directory.glob("log/checkpoint-*-00000000000000000005.cbor")).read_bytes()
    request = CheckpointRequest(label=w.LABEL, upto_seq=5)
    assert log.call("/v1/checkpoint", request, CheckpointResponse).checkpoint == Checkpoint.from_bytes(stored)


# --- pages (D-63) -----------------------------------------------------------------------------------------


def page(hub, form="cbor", **fields):
    fields = {"label": w.LABEL, "from_seq": 1, **fields}
    response = hub.call("/v1/stream", StreamRequest(**fields), StreamResponse, form=form)
    return [item.stream_seq for item in response.items], response


@pytest.mark.req("API-13", "API-14", "API-15")
def test_pages_follow_each_other_by_cursor(log):
    all_seqs, cursor = [], None
    while True:
        seqs, response = page(log, max_items=5, cursor=cursor)
        all_seqs += seqs
        cursor = response.next_cursor
        if cursor is None:
            break
        assert cursor == seqs[-1] + 1
    assert all_seqs == list(range(1, COUNT + 1))


@pytest.mark.req("API-13", "API-14", "API-15", "API-16")
@pytest.mark.parametrize(
    ("asked", "seqs", "effective", "following"),
    [
        ({"from_seq": 0}, range(1, 13), 1, None),
        ({"from_seq": 3, "to_seq": 6}, range(3, 7), 3, None),
        ({"from_seq": 3, "to_seq": 6, "max_items": 2}, range(3, 5), 3, 5),
        ({"from_seq": 3, "to_seq": 4, "max_items": 2}, range(3, 5), 3, None),
        ({"from_seq": 1, "cursor": 11}, range(11, 13), 11, None),
        ({"from_seq": 9, "cursor": 0}, range(1, 13), 1, None),
        ({"from_seq": 1, "cursor": 5, "to_seq": 6}, range(5, 7), 5, None),
        ({"from_seq": 7, "to_seq": 6}, (), 7, None),
        ({"from_seq": 13}, (), 13, None),
        ({"from_seq": 2**64 - 1}, (), 2**64 - 1, None),
        ({"from_seq": 12, "to_seq": 2**64 - 1}, (12,), 12, None),
        ({"from_seq": 1, "max_items": 10**6}, range(1, 13), 1, None),
    ],
)
def test_a_page_has_exactly_what_the_request_bounds(log, asked, seqs, effective, following):
    returned, response = page(log, with_mmr_proof=True, **asked)
    assert returned == list(seqs)
    assert (response.from_seq, response.to_seq, response.next_cursor) == (effective, asked.get("to_seq"), following)
    assert (response.mmr_proof is None) == (not returned)
    if returned:
        last = log.receipts[returned[-1] - 1]
        response.mmr_proof.verify(leaf_hash=last.leaf_hash, stream_seq=returned[-1], expected_root=last.mmr_root)


@pytest.mark.req("API-15")
def test_a_page_is_capped_by_bytes_and_by_items(tmp_path):
    """D-63: 1,000 items and 8 MiB; one entry is returned however large it is."""
    big = bytes(32) + (0).to_bytes(4, "big") + (1_000_000).to_bytes(4, "big") + bytes(1_000_000)
    with LiveHub(tmp_path) as hub:
        for seq in range(1, 11):
            submit(hub, message(seq, ciphertext=big))
        seqs, response = page(hub)
        assert seqs == list(range(1, 9))
        assert response.next_cursor == 9
        assert page(hub, "json")[0] == seqs
        batch = b"".join(message(seq).to_bytes() for seq in range(11, 1011))
        status, _, _ = hub.request("POST", "/tooling/submit_batch", batch)
        assert status == 200
        seqs, response = page(hub, from_seq=11)
        assert (len(seqs), response.next_cursor) == (1_000, None)
        assert len(page(hub, from_seq=10)[0]) == 1_000


# --- what is gone (D-41, D-64, D-74) ----------------------------------------------------------------------


def test_an_erased_payload_is_not_found_but_receipt_and_proof_are(tmp_path):
    with LiveHub(tmp_path, limits=Limits(max_checkpoint_interval=4)) as hub:
        receipts = [submit(hub, message(seq)) for seq in range(1, 7)]

        def erase_first_chunk():
            store = hub.services.sequencer.store
            chunk = store.chunk_at(store.files(w.LABEL), 1)
            erasure = retention.Erasure(w.LABEL, chunk, "payloads")
            retention.prepare(OsFs(tmp_path), erasure)
            return erasure.record(0)

        record = hub.on_loop(erase_first_chunk)
        hub.run(hub.services.sequencer.control(lambda _: record))
        status, envelope = error(hub, "/v1/stream", StreamRequest(label=w.LABEL, from_seq=2).to_bytes())
        assert (status, envelope.code) == (404, "E.NOT_FOUND")
        assert (envelope.detail["reason"], envelope.detail["stream_seq"]) == ("pruned", 2)
        assert page(hub, from_seq=5)[0] == [5, 6]
        receipt = hub.call("/v1/receipt", ReceiptRequest(label=w.LABEL, stream_seq=2), ReceiptResponse).receipt
        assert receipt == receipts[1]
        proof = hub.call("/v1/proof", ProofRequest(label=w.LABEL, stream_seq=2), ProofResponse).mmr_proof
        proof.verify(leaf_hash=receipt.leaf_hash, stream_seq=2, expected_root=receipt.mmr_root)


def test_a_checkpoint_of_a_time_whose_key_is_gone_is_not_found(log, monkeypatch):
    """D-41."""

    def gone(files, upto_seq, mmr_root, hub_ts):
        raise MissingKeyError("0011223344556677")

    monkeypatch.setattr(log.services, "seal", gone, raising=False)
    status, envelope = error(log, "/v1/checkpoint", CheckpointRequest(label=w.LABEL, upto_seq=1).to_bytes())
    assert (status, envelope.code, envelope.detail["reason"]) == (404, "E.NOT_FOUND", "key_retired")


# --- refusals of the envelope (D-54) ----------------------------------------------------------------------

GOOD = {
    "/v1/submit": SubmitRequest(msg=message()),
    "/v1/stream": StreamRequest(label=w.LABEL, from_seq=1),
    "/v1/receipt": ReceiptRequest(label=w.LABEL, stream_seq=1),
    "/v1/proof": ProofRequest(label=w.LABEL, stream_seq=1),
    "/v1/checkpoint": CheckpointRequest(label=w.LABEL, upto_seq=1),
}
ENVELOPE_FAULTS = {
    "nothing": lambda tree: b"",
    "garbage": lambda tree: b"\xff\x00\xff",
    "an array": lambda tree: cbor2.dumps([1, 2]),
    "an unknown key": lambda tree: cbor2.dumps({**tree, 99: 1}),
    "a missing key": lambda tree: cbor2.dumps({1: 1}),
    "text keys": lambda tree: cbor2.dumps({"ver": 1}),
    "null": lambda tree: cbor2.dumps({**tree, 1: None}),
    "bytes behind it": lambda tree: cbor2.dumps(tree) + b"\x00",
    "an indefinite map": lambda tree: b"\xbf\x01\x01\xff",
    "a longer integer": lambda tree: b"\xa2\x01\x18\x01\x02\x00",
    "deep nesting": lambda tree: b"\x81" * 100 + b"\x00",
}


@pytest.mark.req("API-04", "ERR-03", "ERR-05")
@pytest.mark.parametrize("path", GOOD)
@pytest.mark.parametrize("fault", ENVELOPE_FAULTS)
def test_a_fault_of_the_envelope_is_a_bad_request(log, path, fault):
    body = ENVELOPE_FAULTS[fault](GOOD[path].to_tree())
    status, envelope = error(log, path, body)
    assert (status, envelope.code) == (400, "E.BAD_REQUEST")
    assert envelope.request_id


@pytest.mark.req("API-03", "ERR-05")
@pytest.mark.parametrize("path", GOOD)
@pytest.mark.parametrize("form", FORMS)
def test_another_version_in_the_body_is_told_as_such(log, path, form):
    tree = GOOD[path].to_tree()
    body = cbor2.dumps({**tree, 1: 2}) if form == "cbor" else json.dumps({"ver": 2, "more": []}).encode()
    status, envelope = error(log, path, body, form=form)
    assert (status, envelope.code) == (400, "E.VERSION")


JSON_FAULTS = [
    *(b"", b"{", b"[]", b'{"ver":1}', b'{"ver":true}', b'{"ver":1,"ver":1}', b"1e3", b'{"ver":1,"x":1.5}', b"\xff"),
    b'{"ver":1,"msg":1,"more":1}',
]


@pytest.mark.parametrize("path", GOOD)
@pytest.mark.parametrize("body", JSON_FAULTS)
def test_a_fault_of_the_json_envelope_is_a_bad_request(log, path, body):
    status, envelope = error(log, path, body, form="json")
    assert (status, envelope.code) == (400, "E.BAD_REQUEST")


@pytest.mark.req("ERR-06")
def test_errors_name_the_field_and_never_echo_the_body(log):
    short = json.dumps({"ver": 1, "label": "00", "from_seq": 1}).encode()
    status, envelope = error(log, "/v1/stream", short, form="json")
    assert (status, envelope.detail["field"]) == (400, "label")
    strange = json.dumps({**GOOD["/v1/stream"].to_json(), "x" * 3000: 1}).encode()
    _, envelope = error(log, "/v1/stream", strange, form="json")
    assert len(envelope.message) < 200


@pytest.mark.req("API-03", "ERR-05")
@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("POST", "/v2/submit", 400, "E.VERSION"),
        ("POST", "/v0/stream", 400, "E.VERSION"),
        ("GET", "/v17", 400, "E.VERSION"),
        ("POST", "/v1/unknown", 404, "E.NOT_FOUND"),
        ("POST", "/version1/submit", 404, "E.NOT_FOUND"),
        ("POST", "/", 404, "E.NOT_FOUND"),
        ("GET", "/v1/submit", 405, "E.BAD_REQUEST"),
        ("DELETE", "/v1/stream", 405, "E.BAD_REQUEST"),
        ("POST", "/healthz", 405, "E.BAD_REQUEST"),
    ],
)
def test_paths_and_methods_outside_the_api_are_refused(log, method, path, status, code):
    got, heads, data = log.request(method, path, b"")
    assert (got, ErrorEnvelope.from_bytes(data).code) == (status, code)
    assert ("Allow" in heads) == (status == 405)


@pytest.mark.req("ERR-05")
@pytest.mark.parametrize(
    ("path", "request_", "status", "code"),
    [
        ("/v1/receipt", ReceiptRequest(label=w.LABEL, stream_seq=0), 400, "E.BAD_REQUEST"),
        ("/v1/proof", ProofRequest(label=w.LABEL, stream_seq=0), 400, "E.BAD_REQUEST"),
        ("/v1/checkpoint", CheckpointRequest(label=w.LABEL, upto_seq=0), 400, "E.BAD_REQUEST"),
        ("/v1/stream", StreamRequest(label=w.LABEL, from_seq=1, max_items=0), 400, "E.BAD_REQUEST"),
        ("/v1/receipt", ReceiptRequest(label=w.LABEL, stream_seq=COUNT + 1), 404, "E.NOT_FOUND"),
        ("/v1/proof", ProofRequest(label=w.LABEL, stream_seq=2**64 - 1), 404, "E.NOT_FOUND"),
        ("/v1/checkpoint", CheckpointRequest(label=w.LABEL, upto_seq=COUNT + 1), 404, "E.NOT_FOUND"),
        ("/v1/receipt", ReceiptRequest(label=bytes(32), stream_seq=1), 404, "E.NOT_FOUND"),
        ("/v1/proof", ProofRequest(label=bytes(32), stream_seq=1), 404, "E.NOT_FOUND"),
        ("/v1/checkpoint", CheckpointRequest(label=bytes(32), upto_seq=1), 404, "E.NOT_FOUND"),
        ("/v1/stream", StreamRequest(label=bytes(32), from_seq=1), 404, "E.NOT_FOUND"),
    ],
)
@pytest.mark.parametrize("form", FORMS)
def test_what_is_not_there_is_not_found(log, path, request_, status, code, form):
    """D-39, D-63, D-64."""
    body = request_.to_bytes() if form == "cbor" else json.dumps(request_.to_json()).encode()
    got, envelope = error(log, path, body, form=form)
    assert (got, envelope.code) == (status, code)


@pytest.mark.req("ERR-05")
@pytest.mark.parametrize("path", [path for path in GOOD if path != "/v1/submit"])
def test_a_request_that_is_too_large_exceeds_a_limit(log, path):
    status, envelope = error(log, path, bytes(70_000))
    assert (status, envelope.code) == (413, "E.LIMIT")
    assert envelope.detail["max_allowed"] < envelope.detail["actual"]


# --- refusals of admission (decisions §7) ------------------------------------------------------------

EXPIRED = CapToken.issue(w.ISSUER, w.ALICE.public, [w.STREAM], ttl=0)
FOREIGN = CapToken.issue(w.STRANGER, w.ALICE.public, [w.STREAM], ttl=10**6)
SLOW = CapToken.issue(w.ISSUER, w.ALICE.public, [w.STREAM], ttl=10**6, rate=Rate(per_sec=1, burst=1))
ELSEWHERE = CapToken.issue(w.ISSUER, w.ALICE.public, [w.OTHER_STREAM], ttl=10**6)


def body_of(*, hdr_len=20, body_len=24, tail=b""):
    return bytes(32) + hdr_len.to_bytes(4, "big") + body_len.to_bytes(4, "big") + bytes(hdr_len + body_len) + tail


REFUSALS = {
    "FIELD_SIZE": (lambda: message(ciphertext=body_of(hdr_len=17_000)), 413, "E.SIZE", "structural"),
    "VERSION": (message, 400, "E.FORMAT", "structural"),  # changed below: no Msg can hold it
    "PROFILE": (lambda: message(profile=PRESETS["ref"]), 400, "E.FORMAT", "structural"),
    "CT_HASH": (lambda: message(ct_hash=bytes(32)), 400, "E.FORMAT", "structural"),
    "CT_PADDING": (lambda: message(ciphertext=body_of(tail=b"\x00\x01")), 400, "E.FORMAT", "structural"),
    "SIG_INVALID": (lambda: replace(message(), sig=bytes(64)), 409, "E.SIG", "auth"),
    "CAP_MISSING": (lambda: w.msg(token=None), 403, "E.CAP", "auth"),
    "CAP_INVALID": (lambda: w.msg(token=FOREIGN), 403, "E.CAP", "auth"),
    "AUTH_REF": (lambda: message(key=w.BOB), 403, "E.AUTH", "auth"),
    "CAP_SCOPE": (lambda: w.msg(token=ELSEWHERE), 403, "E.CAP", "auth"),
    "CAP_TTL": (lambda: w.msg(token=EXPIRED), 400, "E.TIME", "auth"),
    "PREV_ACK": (lambda: message(ack=5), 409, "E.SEQ", "commit"),
    "CLIENT_SEQ": (lambda: message(7), 409, "E.SEQ", "commit"),
}


@pytest.fixture(scope="module")
def strict(tmp_path_factory):
    """A hub that knows a token of every kind; its clock has moved on since the first of them was used."""
    tokens = (w.FREE_TOKEN, EXPIRED, FOREIGN, SLOW, ELSEWHERE)
    now = [w.NOW]
    policy = w.policy(preloaded={token.auth_ref(): token for token in tokens})
    label = label_of(w.ROUTING_KEY, w.OTHER_STREAM, 0)
    with LiveHub(
        tmp_path_factory.mktemp("strict"),
        policy=policy,
        resolver=w.resolver(w.STREAM, w.OTHER_STREAM),
        clock=lambda: now[0],
    ) as hub:
        submit(hub, w.msg(token=EXPIRED, label=w.LABEL, key=w.ALICE, seq=1))  # begins its TTL of 0 seconds
        now[0] += 10
        hub.other_label = label
        yield hub


@pytest.mark.req("ERR-01", "ERR-02", "ERR-04", "ERR-07", "GEN-28", "ADM-04", "INV-14")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("detail_enum", REFUSALS)
def test_every_refusal_has_its_code_stage_and_status(strict, detail_enum, form):
    make, status, code, stage = REFUSALS[detail_enum]
    if detail_enum == "VERSION":
        tree = SubmitRequest(msg=message()).to_tree()
        tree[2][0] = 2
        shown = SubmitRequest(msg=message()).to_json()
        shown["msg"][0] = 2
        body = cbor2.dumps(tree) if form == "cbor" else json.dumps(shown).encode()
        got, envelope = error(strict, "/v1/submit", body, form=form)
        assert (got, envelope.code, envelope.detail["detail_enum"]) == (status, code, "VERSION")
        return
    assert refusal(strict, make(), form) == (status, code, stage, detail_enum)


@pytest.mark.req("ERR-02", "ERR-04")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("place", range(10))
def test_a_fault_inside_the_message_has_an_admission_code(strict, place, form):
    """D-54: the envelope is whole, the MSG is not."""
    request = SubmitRequest(msg=message())
    tree = request.to_tree() if form == "cbor" else request.to_json()
    (tree[2] if form == "cbor" else tree["msg"])[place] = []
    body = cbor2.dumps(tree) if form == "cbor" else json.dumps(tree).encode()
    got, envelope = error(strict, "/v1/submit", body, form=form)
    assert (got, envelope.code, envelope.detail["stage"]) == (400, "E.FORMAT", "structural")
    assert envelope.detail["detail_enum"] == "CBOR_INVALID"


@pytest.mark.parametrize("msg", [None, 1, "text", {}, [], [1] * 11])
@pytest.mark.parametrize("form", FORMS)
def test_a_message_of_another_shape_is_invalid_cbor(strict, msg, form):
    body = cbor2.dumps({1: 1, 2: msg}) if form == "cbor" else json.dumps({"ver": 1, "msg": msg}).encode()
    got, envelope = error(strict, "/v1/submit", body, form=form)
    assert (got, envelope.code, envelope.detail["detail_enum"]) == (400, "E.FORMAT", "CBOR_INVALID")


NO_CBOR = ["1.5", "1e3", "-0.0", "1" * 21, '{"a":1,"a":2}', "[[0.5]]"]


@pytest.mark.parametrize("place", [0, 4, 8])
@pytest.mark.parametrize("value", NO_CBOR)
def test_json_that_no_cbor_item_equals_is_a_fault_of_the_message_that_holds_it(strict, value, place):
    """D-164: as its CBOR twin, a float or a bignum; E.BAD_REQUEST is for the envelope."""
    items = [json.dumps(item) for item in message().to_json()]
    items[place] = value
    body = f'{{"ver":1,"msg":[{",".join(items)}]}}'.encode()
    got, envelope = error(strict, "/v1/submit", body, form="json")
    assert (got, envelope.code, envelope.detail["stage"]) == (400, "E.FORMAT", "structural")
    assert envelope.detail["detail_enum"] == "CBOR_INVALID"


@pytest.mark.parametrize("value", NO_CBOR)
def test_json_that_no_cbor_item_equals_is_a_fault_of_the_envelope_elsewhere(strict, value):
    msg = json.dumps(message().to_json())
    for body in (f'{{"ver":{value},"msg":{msg}}}', f'{{"ver":1,"msg":{msg},"x":{value}}}', value):
        got, envelope = error(strict, "/v1/submit", body.encode(), form="json")
        assert (got, envelope.code) == (400, "E.BAD_REQUEST")


def test_a_fraction_in_one_message_of_a_batch_refuses_that_message_alone(hub):
    broken = message(2).to_json()
    broken[4] = 2.5
    body = json.dumps([message(1).to_json(), broken, message(2).to_json()]).encode()
    status, _, data = hub.request("POST", "/tooling/submit_batch", body, {"Content-Type": "application/json"})
    first, second, third = json.loads(data)
    assert (status, second["detail"]["detail_enum"]) == (200, "CBOR_INVALID")
    assert [Receipt.from_json(tree).stream_seq for tree in (first, third)] == [1, 2]


def test_a_message_that_is_cut_off_is_invalid_cbor(strict):
    """D-54: inside the value of key 2, so a fault of the MSG."""
    body = SubmitRequest(msg=message()).to_bytes()[:-1]
    got, envelope = error(strict, "/v1/submit", body)
    assert (got, envelope.detail["detail_enum"]) == (400, "CBOR_INVALID")


@pytest.mark.req("ERR-02")
@pytest.mark.parametrize("form", FORMS)
def test_a_duplicate_tells_where_the_first_one_is(hub, form):
    """D-56."""
    msg = message()
    submit(hub, msg)
    request = SubmitRequest(msg=msg)
    body = request.to_bytes() if form == "cbor" else json.dumps(request.to_json()).encode()
    status, envelope = error(hub, "/v1/submit", body, form=form)
    assert (status, envelope.code) == (409, "E.SEQ")
    assert envelope.detail["detail_enum"] == "DUPLICATE"
    assert (envelope.detail["label"], envelope.detail["stream_seq"]) == (w.LABEL.hex(), 1)


@pytest.mark.req("ERR-08", "OP0-04")
def test_a_used_up_rate_says_when_to_come_back(tmp_path):
    policy = w.policy(preloaded={SLOW.auth_ref(): SLOW})
    with LiveHub(tmp_path, policy=policy) as hub:
        submit(hub, w.msg(token=SLOW))
        body = SubmitRequest(msg=w.msg(token=SLOW, seq=2)).to_bytes()
        status, heads, data = hub.request("POST", "/v1/submit", body)
        envelope = ErrorEnvelope.from_bytes(data)
        assert (status, envelope.code, detail_of(data)["detail_enum"]) == (429, "E.RATE", "CAP_RATE")
        assert (heads["Retry-After"], envelope.retry_after) == ("1", 1)


@pytest.mark.req("ERR-02")
def test_an_epoch_outside_the_window_is_refused(tmp_path):
    profile = PRESETS["rotating"]
    epoch = w.NOW // 3600
    resolver = w.resolver(w.STREAM, epoch_sec=3600)
    policy = w.policy(profiles=(profile,), preloaded={w.FREE_TOKEN.auth_ref(): w.FREE_TOKEN})
    with LiveHub(tmp_path, policy=policy, resolver=resolver) as hub:

        def labelled(offset):
            return message(profile=profile, label=label_of(w.ROUTING_KEY, w.STREAM, epoch + offset))

        submit(hub, labelled(0))
        assert refusal(hub, labelled(1)) == (400, "E.TIME", "commit", "EPOCH")
        assert refusal(hub, labelled(5)) == (403, "E.CAP", "auth", "CAP_SCOPE")


# --- the first stage, and what is no admission at all -----------------------------------------------------


@pytest.mark.req("SH0-04", "SH1-01", "SH1-06", "ERR-02", "ADM-02", "ADM-07")
@pytest.mark.parametrize("form", FORMS)
def test_a_message_above_the_limit_is_refused_by_its_size_alone(tmp_path, form):
    with LiveHub(tmp_path, limits=Limits(max_msg_bytes=1000)) as hub:
        around = len(message(ciphertext=body_of(body_len=300)).to_bytes()) - 300
        exact = message(ciphertext=body_of(body_len=1000 - around))
        assert len(exact.to_bytes()) == 1000
        assert submit(hub, exact, form).stream_seq == 1
        above = replace(message(2, ciphertext=body_of(body_len=1200)), sig=bytes(64))
        assert refusal(hub, above, form) == (413, "E.SIZE", "prefilter", "SIZE_PREFILTER")


@pytest.mark.req("SH0-01", "SH1-01", "SH1-04")
@pytest.mark.parametrize("form", FORMS)
def test_proof_of_work_is_asked_for_before_anything_else(tmp_path, form):
    policy = w.policy(pow_difficulty=6, preloaded={w.FREE_TOKEN.auth_ref(): w.FREE_TOKEN})
    with LiveHub(tmp_path, policy=policy) as hub:
        expected = (403, "E.AUTH", "prefilter", "PREFILTER_REJECT")
        request = SubmitRequest(msg=message())
        body = request.to_bytes() if form == "cbor" else json.dumps(request.to_json()).encode()
        cookie = solve(body, 6).to_bytes().hex()
        assert refusal(hub, message(), form) == expected
        assert refusal(hub, message(), form, headers={HEADER: "zz"}) == expected
        assert refusal(hub, message(), form, headers={HEADER: solve(b"another body", 6).to_bytes().hex()}) == expected
        assert refusal(hub, message(), form, headers={HEADER: solve(body, 5).to_bytes().hex()}) == expected
        assert submit(hub, message(), form, headers={HEADER: cookie}).stream_seq == 1


@pytest.mark.req("SH1-01", "ADM-02")
@pytest.mark.parametrize("form", FORMS)
def test_a_client_on_the_deny_list_is_refused_before_its_signature_is_looked_at(tmp_path, form):
    policy = w.policy(denied_clients=frozenset((w.ALICE.public,)))
    with LiveHub(tmp_path, policy=policy) as hub:
        unsigned = replace(message(), sig=bytes(64))
        assert refusal(hub, unsigned, form) == (403, "E.AUTH", "prefilter", "PREFILTER_REJECT")
        assert refusal(hub, message(key=w.BOB), form)[3] != "PREFILTER_REJECT"


@pytest.mark.req("OP0-06")
@pytest.mark.parametrize("form", FORMS)
def test_overload_and_a_full_disk_are_no_admission_decisions(tmp_path, form):
    """D-58: 503 with Retry-After, before admission starts."""
    with LiveHub(tmp_path, max_queue=0) as hub:
        request = SubmitRequest(msg=message())
        body = request.to_bytes() if form == "cbor" else json.dumps(request.to_json()).encode()
        headers = {"Content-Type": f"application/{form}"}
        for hub.services.not_admitting in (None, "low disk"):
            status, heads, data = hub.request("POST", "/v1/submit", body, headers)
            tree = cbor2.loads(data) if form == "cbor" else json.loads(data)
            assert (status, tree[2 if form == "cbor" else "code"]) == (503, "E.UNAVAILABLE")
            assert heads["Retry-After"] == "1"


def test_reading_may_need_a_bearer_token(tmp_path):
    """D-53, D-54, D-163: 401 without credentials and with unknown ones, and an administrator reads too."""
    access = Access.of(read_tokens=[READER], admin_tokens=[ADMIN])
    with LiveHub(tmp_path, access=access) as hub:
        submit(hub, message())  # writing is a matter of capabilities
        body = StreamRequest(label=w.LABEL, from_seq=1).to_bytes()
        status, heads, data = hub.request("POST", "/v1/stream", body)
        assert (status, ErrorEnvelope.from_bytes(data).code) == (401, "E.UNAUTHORIZED")
        assert heads["WWW-Authenticate"] == "Bearer"
        for unknown in ("Bearer wrong", "Bearer", "Bearer ", "Basic d3Jvbmc=", READER.decode(), ""):
            status, heads, data = hub.request("POST", "/v1/stream", body, {"Authorization": unknown})
            assert (status, ErrorEnvelope.from_bytes(data).code) == (401, "E.UNAUTHORIZED"), unknown
            assert heads["WWW-Authenticate"] == 'Bearer error="invalid_token"'
        for token in (READER, ADMIN):
            status, _, _ = hub.request("POST", "/v1/stream", body, {"Authorization": f"Bearer {token.decode()}"})
            assert status == 200


def test_the_two_forms_say_the_same(log):
    """spec §10.3: JSON is semantically equal."""
    requests = {**GOOD, "/v1/stream": StreamRequest(label=w.LABEL, from_seq=2, max_items=3, with_receipts=True)}
    responses = {
        "/v1/stream": StreamResponse,
        "/v1/receipt": ReceiptResponse,
        "/v1/proof": ProofResponse,
        "/v1/checkpoint": CheckpointResponse,
    }
    for path, response in responses.items():
        assert log.call(path, requests[path], response) == log.call(path, requests[path], response, form="json")


def test_the_bytes_of_a_page_are_canonical(log):
    data = log.call("/v1/stream", StreamRequest(label=w.LABEL, from_seq=1, with_receipts=True, with_mmr_proof=True))
    assert StreamResponse.from_bytes(data).to_bytes() == data


@pytest.mark.req("API-21")
def test_a_transport_needs_no_http(log):
    """The same operations by name."""
    body = ReceiptRequest(label=w.LABEL, stream_seq=2).to_bytes()
    reply = log.run(log.api.call("receipt", body))
    assert ReceiptResponse.from_bytes(reply.body).receipt == log.receipts[1]
    assert log.run(log.api.call("no such thing")).status == 404
    submitted = log.run(log.api.call("submit", SubmitRequest(msg=log.messages[0]).to_bytes(), answer="json"))
    assert json.loads(submitted.body)["detail"]["detail_enum"] == "DUPLICATE"


ARRAY = b"\x9a\x00\x0f\x00\x00" + bytes(0xF0000)
SLOW_TO_DECODE = {
    "a message of a million items": (b"\xa2\x01\x01\x02" + ARRAY, 400, "E.FORMAT"),
    "a million items inside it": (b"\xa2\x01\x01\x02\x8a" + ARRAY, 400, "E.FORMAT"),
    "no envelope": (ARRAY, 400, "E.BAD_REQUEST"),
    "a million items as version": (b"\xa2\x01" + ARRAY, 400, "E.BAD_REQUEST"),
    "a batch of a million items": (ARRAY, 400, "E.BAD_REQUEST"),
    "a batch of a million messages": (bytes(0xF0000), 413, "E.LIMIT"),
}


@pytest.mark.parametrize("what", SLOW_TO_DECODE)
def test_what_would_take_long_to_decode_is_refused_at_once(log, what):
    """DESIGN §9.6: the event loop also orders messages; nobody may hold it up without a signature."""
    body, status, code = SLOW_TO_DECODE[what]
    path = "/tooling/submit_batch" if "batch" in what else "/v1/submit"
    started = log.on_loop(time.thread_time)
    got, envelope = error(log, path, body)
    assert (got, envelope.code) == (status, code)
    assert log.on_loop(time.thread_time) - started < 0.05
