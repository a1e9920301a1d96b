"""Requests and responses of the data plane: spec §10.4, §10.6, D-54."""

import cbor2
import pytest
from hypothesis import given
from tests.core import strategies

from veen.core import cbor
from veen.core.errors import ApiCode, FieldSizeError, FormatError, MalformedError, Refusal, VersionError
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.envelopes import (
    MAX_PAGE_ITEMS,
    CheckpointRequest,
    CheckpointResponse,
    ErrorEnvelope,
    ProofRequest,
    ProofResponse,
    ReceiptRequest,
    ReceiptResponse,
    StreamItem,
    StreamRequest,
    StreamResponse,
    SubmitRequest,
    SubmitResponse,
)
from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt
from veen.core.tree.proof import MmrProof, PathStep

LABEL, Z32, Z64 = b"\x0a" * 32, bytes(32), bytes(64)
MSG_TREE = [1, Z32, LABEL, Z32, 1, 0, None, Z32, b"ct", Z64]
RECEIPT_TREE = [1, LABEL, 1, Z32, Z32, 0, Z64]
CHECKPOINT_TREE = [1, LABEL, LABEL, 1, Z32, 0, Z64]
PROOF_TREE = {1: 1, 2: Z32, 3: [{1: 0, 2: Z32}], 4: [Z32]}
MSG, RECEIPT = Msg.from_tree(MSG_TREE), Receipt.from_tree(RECEIPT_TREE)
CHECKPOINT = Checkpoint.from_tree(CHECKPOINT_TREE)
PROOF = MmrProof(leaf_hash=Z32, path=(PathStep(dir=0, sib=Z32),), peaks_after=(Z32,))

SHAPES = [
    pytest.param(SubmitRequest(msg=MSG), {1: 1, 2: MSG_TREE}, marks=pytest.mark.req("API-05"), id="submit"),
    pytest.param(
        SubmitResponse(receipt=RECEIPT, server_version="0.0.1"),
        {1: 1, 2: RECEIPT_TREE, 3: "0.0.1"},
        marks=pytest.mark.req("API-05"),
        id="submit-answer",
    ),
    pytest.param(
        StreamRequest(
            label=LABEL, from_seq=0, to_seq=100, max_items=1000, cursor=42, with_receipts=True, with_mmr_proof=False
        ),
        {1: 1, 2: LABEL, 3: 0, 4: 100, 5: 1000, 6: 42, 7: True, 8: False},
        marks=pytest.mark.req("API-06"),
        id="stream",
    ),
    pytest.param(
        StreamRequest(label=LABEL, from_seq=1),
        {1: 1, 2: LABEL, 3: 1},
        marks=pytest.mark.req("API-06"),
        id="stream-least",
    ),
    pytest.param(
        StreamResponse(
            label=LABEL,
            from_seq=1,
            to_seq=9,
            items=(StreamItem(stream_seq=1, msg=MSG, receipt=RECEIPT), StreamItem(stream_seq=2, msg=MSG)),
            next_cursor=3,
            mmr_proof=PROOF,
            server_version="0.0.1",
        ),
        {
            1: 1,
            2: LABEL,
            3: 1,
            4: 9,
            5: [{1: 1, 2: MSG_TREE, 3: RECEIPT_TREE}, {1: 2, 2: MSG_TREE}],
            6: 3,
            7: PROOF_TREE,
            8: "0.0.1",
        },
        marks=pytest.mark.req("API-07"),
        id="stream-answer",
    ),
    pytest.param(
        StreamResponse(label=LABEL, from_seq=1, items=()),
        {1: 1, 2: LABEL, 3: 1, 5: []},
        marks=pytest.mark.req("API-07"),
        id="stream-answer-least",
    ),
    pytest.param(
        ReceiptRequest(label=LABEL, stream_seq=7), {1: 1, 2: LABEL, 3: 7}, marks=pytest.mark.req("API-10"), id="receipt"
    ),
    pytest.param(
        ReceiptResponse(receipt=RECEIPT), {1: 1, 2: RECEIPT_TREE}, marks=pytest.mark.req("API-10"), id="receipt-answer"
    ),
    pytest.param(
        ProofRequest(label=LABEL, stream_seq=7), {1: 1, 2: LABEL, 3: 7}, marks=pytest.mark.req("API-11"), id="proof"
    ),
    pytest.param(
        ProofResponse(mmr_proof=PROOF, server_version="0.0.1"),
        {1: 1, 2: PROOF_TREE, 3: "0.0.1"},
        marks=pytest.mark.req("API-11"),
        id="proof-answer",
    ),
    pytest.param(
        CheckpointRequest(label=LABEL, upto_seq=7),
        {1: 1, 2: LABEL, 3: 7},
        marks=pytest.mark.req("API-12"),
        id="checkpoint",
    ),
    pytest.param(
        CheckpointResponse(checkpoint=CHECKPOINT, server_version="0.0.1"),
        {1: 1, 2: CHECKPOINT_TREE, 3: "0.0.1"},
        marks=pytest.mark.req("API-12"),
        id="checkpoint-answer",
    ),
    pytest.param(
        ErrorEnvelope(code="E.RATE", message="slow down", detail={"stage": "auth"}, retry_after=3, request_id="id"),
        {1: 1, 2: "E.RATE", 3: "slow down", 4: {"stage": "auth"}, 5: 3, 6: "id"},
        marks=pytest.mark.req("ERR-03"),
        id="error",
    ),
    pytest.param(
        ErrorEnvelope(code="E.SIG", message=""),
        {1: 1, 2: "E.SIG", 3: ""},
        marks=pytest.mark.req("ERR-03"),
        id="error-least",
    ),
]


@pytest.mark.req("CBOR-08")
@pytest.mark.parametrize(("envelope", "tree"), SHAPES)
def test_an_envelope_is_the_integer_key_map_of_the_spec(envelope, tree):
    """spec §10.4, §10.6"""
    assert envelope.to_bytes() == cbor2.dumps(tree)
    assert type(envelope).from_bytes(cbor2.dumps(tree)) == envelope


@pytest.mark.req("API-04", "CBOR-06")
@pytest.mark.parametrize(("envelope", "tree"), SHAPES)
def test_unknown_keys_null_and_other_versions_are_refused(envelope, tree):
    """spec §10.4: optional fields are omitted, never null."""
    cls = type(envelope)
    for key in tree:
        with pytest.raises(MalformedError):
            cls.from_bytes(cbor2.dumps({**tree, key: None}))
    for unknown in (0, 9, "ver"):
        with pytest.raises(MalformedError):
            cls.from_bytes(cbor2.dumps({**tree, unknown: 0}))
    with pytest.raises(VersionError):
        cls.from_bytes(cbor2.dumps({**tree, 1: 2}))
    with pytest.raises(MalformedError):
        cls.from_bytes(cbor2.dumps(tree) + b"\x00")


def test_the_json_form_is_that_of_the_spec():
    """spec §10.4: string keys with the same names; D-62: MSG as an array, bytes as hex."""
    assert SubmitRequest(msg=MSG).to_json() == {"ver": 1, "msg": MSG.to_json()}
    assert StreamRequest(
        label=LABEL, from_seq=0, to_seq=100, max_items=1000, cursor=42, with_receipts=True, with_mmr_proof=False
    ).to_json() == {
        "ver": 1,
        "label": LABEL.hex(),
        "from_seq": 0,
        "to_seq": 100,
        "max_items": 1000,
        "cursor": 42,
        "with_receipts": True,
        "with_mmr_proof": False,
    }


def test_a_page_has_at_most_1000_items():
    """D-63"""
    item = StreamItem(stream_seq=1, msg=MSG)
    assert MAX_PAGE_ITEMS == 1000
    page = StreamResponse(label=LABEL, from_seq=1, items=(item,) * 1000)
    assert StreamResponse.from_bytes(page.to_bytes()) == page
    with pytest.raises(FieldSizeError, match="0 to 1000"):
        StreamResponse(label=LABEL, from_seq=1, items=(item,) * 1001).to_bytes()


# --- submit: envelope and MSG are judged apart --------------------------------------------------------------


@given(strategies.MSG)
def test_a_submit_request_splits_into_the_bytes_of_its_msg(msg):
    """D-54"""
    data = SubmitRequest(msg=msg).to_bytes()
    assert data == cbor.encode({1: 1, 2: msg.to_tree()})
    assert SubmitRequest.split(data) == msg.to_bytes()
    assert SubmitRequest.from_bytes(data).msg == msg


@given(strategies.mutated(strategies.MSG.map(lambda msg: SubmitRequest(msg=msg).to_bytes())))
def test_splitting_and_reading_agree_about_every_request(data):
    """D-54, I10: a request is accepted in two steps exactly when it is accepted in one."""
    try:
        whole = SubmitRequest.from_bytes(data)
    except FormatError:
        with pytest.raises(FormatError):
            Msg.from_bytes(SubmitRequest.split(data))
    else:
        assert Msg.from_bytes(SubmitRequest.split(data)) == whole.msg


@pytest.mark.parametrize(
    "inner",
    [
        b"\x00",
        b"\xf6",
        cbor2.dumps(MSG_TREE[:9]),
        cbor2.dumps([2, *MSG_TREE[1:]]),
        b"\x8a\x18\x01" + cbor2.dumps(MSG_TREE)[2:],  # ver 1 in two bytes
        b"\xc1" + cbor2.dumps(MSG_TREE),  # a tag
        cbor2.dumps(MSG_TREE).replace(b"\x42ct", b"\xc2\x42ct"),  # a tag inside
        cbor2.dumps(MSG_TREE).replace(b"\x42ct", b"\x5f\x42ct\xff"),  # an indefinite byte string
        cbor2.dumps(MSG_TREE).replace(b"\x42ct", b"\xfb" + bytes(8)),  # a float
    ],
    ids=["integer", "null", "short", "version", "wide", "tagged", "tag", "indefinite", "float"],
)
def test_a_fault_inside_the_msg_is_not_a_fault_of_the_request(inner):
    """D-54: the request is taken apart, and the MSG gets its admission code from its own reader."""
    assert SubmitRequest.split(b"\xa2\x01\x01\x02" + inner) == inner
    with pytest.raises(FormatError):
        Msg.from_bytes(inner)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", MalformedError),
        (b"\x00", MalformedError),
        (cbor2.dumps([1, MSG_TREE]), MalformedError),
        (cbor2.dumps({1: 1}), MalformedError),
        (cbor2.dumps({2: MSG_TREE, 1: 1}), MalformedError),
        (cbor2.dumps({1: 1, 2: MSG_TREE, 3: 0}), MalformedError),
        (cbor2.dumps({1: 1, 2: MSG_TREE}) + b"\x00", MalformedError),
        (b"\xbf\x01\x01\x02" + cbor2.dumps(MSG_TREE) + b"\xff", MalformedError),
        (cbor2.dumps({1: 2, 2: MSG_TREE}), VersionError),
        (cbor2.dumps({1: 0, 2: MSG_TREE}), VersionError),
    ],
    ids=["nothing", "integer", "array", "no msg", "order", "unknown", "trailing", "indefinite", "ver 2", "ver 0"],
)
def test_a_fault_of_the_request_is_found_before_the_msg_is_read(data, fault):
    """D-54: E.BAD_REQUEST or E.VERSION."""
    with pytest.raises(fault):
        SubmitRequest.split(data)


# --- errors -------------------------------------------------------------------------------------------------


@pytest.mark.req("ERR-03", "ERR-04")
@pytest.mark.parametrize("refusal", Refusal)
def test_an_admission_error_carries_stage_and_detail_enum(refusal):
    """spec §8.2: in `detail`, whatever else stands there."""
    envelope = ErrorEnvelope.refusal(
        refusal, "words", detail={"stage": "forged", "stream_seq": 7}, retry_after=2, request_id="id"
    )
    tree = cbor2.loads(envelope.to_bytes())
    assert tree[2] == refusal.code
    assert tree[4] == {"stage": refusal.stage.value, "detail_enum": refusal.detail_enum, "stream_seq": 7}
    assert (tree[5], tree[6]) == (2, "id")
    least = ErrorEnvelope.refusal(refusal, "words")
    assert least.detail == {"stage": refusal.stage.value, "detail_enum": refusal.detail_enum}
    assert set(cbor2.loads(least.to_bytes())) == {1, 2, 3, 4}


@pytest.mark.req("ERR-03", "ERR-05")
@pytest.mark.parametrize("code", ApiCode)
def test_a_fault_of_the_request_carries_its_api_code(code):
    """spec §10.6"""
    envelope = ErrorEnvelope.api(code, "words", detail={"field": "label", "max_allowed": 1}, request_id="id")
    expected = {1: 1, 2: code.code, 3: "words", 4: {"field": "label", "max_allowed": 1}, 6: "id"}
    assert cbor2.loads(envelope.to_bytes()) == expected
