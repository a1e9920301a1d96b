"""Names and bodies of the wallet layer, byte for byte."""

from hashlib import sha256

import cbor2
import pytest
from tests.overlays.wallet_reference import ANN, BOB, OWNERS, REALM, World, opened, xfer

from veen.core.catalogue import catalogue
from veen.core.errors import FieldSizeError, FormatError
from veen.overlays.framework.schema import Draft, InvalidBody, Issue, decode
from veen.overlays.wallet import drafts
from veen.overlays.wallet.bodies import (
    OPERATIONS,
    SCHEMAS,
    Limit,
    Open,
    Transfer,
    approval_hash,
    transfer_id_of,
    wallet_id_of,
    wallet_stream,
)
from veen.overlays.wallet.codes import CODES
from veen.overlays.wallet.conformance import CLAIMED, Conformance, claims_of


def ht(tag: str, data: bytes) -> bytes:
    return sha256(tag.encode() + b"\0" + data).digest()


@pytest.mark.req("WAL-01")
def test_a_wallet_is_named_by_realm_context_and_currency():
    assert wallet_id_of(b"r" * 32, b"c" * 32, "USD") == ht("wallet/id", b"r" * 32 + b"c" * 32 + b"USD")
    assert wallet_id_of(b"r" * 32, b"c" * 32, "USD") != wallet_id_of(b"r" * 32, b"c" * 32, "JPY")
    with pytest.raises(FieldSizeError):
        wallet_id_of(b"r" * 31, b"c" * 32, "USD")


@pytest.mark.parametrize("currency", ["", "€", "US\n", "日本円"])
def test_a_currency_is_printable_ascii(currency):
    """D-94"""
    with pytest.raises(InvalidBody, match=r"WAL\.INVALID_CURRENCY"):
        wallet_id_of(REALM, OWNERS["ann"], currency)


@pytest.mark.req("WAL-02")
def test_a_wallet_has_a_stream_of_its_own():
    assert wallet_stream(ANN) == ht("wallet/stream", ANN)


def test_the_default_transfer_id_is_bound_to_the_transfer_and_to_chance():
    """D-97"""
    fields = ANN + BOB + (5).to_bytes(8, "big") + (7).to_bytes(8, "big")
    transfer_id = transfer_id_of(wallet_id=ANN, to_wallet_id=BOB, amount=5, ts=7, nonce=b"n" * 16)
    assert transfer_id == ht("wallet/xfer", fields + b"n" * 16)
    draft = drafts.transfer(ANN, BOB, 5, ts=7, nonce=b"n" * 16)
    assert Transfer.from_bytes(draft.body).transfer_id == transfer_id
    with pytest.raises(FieldSizeError):
        transfer_id_of(wallet_id=ANN, to_wallet_id=BOB, amount=5, ts=7, nonce=b"")
    with pytest.raises(ValueError, match="either"):
        drafts.transfer(ANN, BOB, 5, ts=7)


@pytest.mark.req("WAL-18")
def test_the_approval_hash_is_that_of_the_core_fields():
    """D-100: ts as u64be."""
    digest = approval_hash(wallet_id=ANN, to_wallet_id=BOB, amount=5, ts=7, transfer_id=xfer(1))
    assert digest == ht("wallet/approval", ANN + BOB + (5).to_bytes(8, "big") + (7).to_bytes(8, "big") + xfer(1))


@pytest.mark.req("WAL-04")
def test_the_nine_schemas_have_the_hashes_of_their_names():
    names = ["open", "close", "deposit", "withdraw", "transfer", "adjust", "limit", "freeze", "unfreeze"]
    assert {s.name: s.id for s in SCHEMAS.values()} == {
        f"wallet.{n}.v1": sha256(f"wallet.{n}.v1".encode()).digest() for n in names
    }
    assert sorted(OPERATIONS.values()) == sorted(names)


BODIES = [
    (opened("ann", 3), ["wallet_id", "realm_id", "ctx_id", "currency", "created_at"]),
    (drafts.close(ANN, ts=1), ["wallet_id", "ts"]),
    (drafts.deposit(ANN, 1, ts=1, ref=b"x"), ["wallet_id", "amount", "ts", "ref"]),
    (drafts.deposit(ANN, 1, ts=1), ["wallet_id", "amount", "ts"]),
    (drafts.withdraw(ANN, 1, ts=1, ref=b""), ["wallet_id", "amount", "ts", "ref"]),
    (
        drafts.transfer(ANN, BOB, 1, ts=1, transfer_id=xfer(1), metadata={"z": 1, "aa": 2}),
        ["wallet_id", "to_wallet_id", "amount", "ts", "transfer_id", "metadata"],
    ),
    (drafts.adjust(ANN, -(2**64), ts=1, reason="fix", ref=b"x"), ["wallet_id", "delta", "ts", "reason", "ref"]),
    (drafts.limit(ANN, 5, ts=1), ["wallet_id", "daily_limit", "ts"]),
    (drafts.limit(ANN, None, ts=1), ["wallet_id", "daily_limit", "ts"]),
    (drafts.freeze(ANN, ts=1, reason="why"), ["wallet_id", "ts", "reason"]),
    (drafts.unfreeze(ANN, ts=1), ["wallet_id", "ts"]),
]


@pytest.mark.req("CBOR-11")
@pytest.mark.parametrize(
    ("draft", "keys"), BODIES, ids=lambda value: SCHEMAS[value.schema].name if isinstance(value, Draft) else ""
)
def test_a_body_has_exactly_its_keys_in_the_listed_order(draft, keys):
    tree = cbor2.loads(draft.body)
    assert list(tree) == keys
    schema = SCHEMAS[draft.schema]
    body = schema.body.from_bytes(draft.body)
    assert body.to_bytes() == draft.body
    assert schema.body.from_json(body.to_json()).to_bytes() == draft.body
    with pytest.raises(FormatError):
        schema.body.from_bytes(cbor2.dumps({**tree, "extra": 1}))
    with pytest.raises(FormatError):
        schema.body.from_bytes(cbor2.dumps(dict(reversed(tree.items()))))
    with pytest.raises(FormatError):
        schema.body.from_bytes(cbor2.dumps({key: tree[key] for key in keys[1:]}))


@pytest.mark.req("CBOR-12")
def test_metadata_is_written_sorted_and_read_in_any_order():
    """D-03"""
    draft = drafts.transfer(ANN, BOB, 1, ts=1, transfer_id=xfer(1), metadata={"zz": 1, "a": {"y": 1, "b": 2}})
    tree = cbor2.loads(draft.body)
    assert list(tree["metadata"]) == ["a", "zz"]
    assert list(tree["metadata"]["a"]) == ["b", "y"]
    tree["metadata"] = {"zz": 1, "a": 1}
    assert Transfer.from_bytes(cbor2.dumps(tree)).metadata == {"zz": 1, "a": 1}


@pytest.mark.req("WAL-13")
def test_a_cleared_limit_is_null_and_absent_clears_too():
    """D-04"""
    tree = cbor2.loads(drafts.limit(ANN, None, ts=1).body)
    assert tree["daily_limit"] is None
    absent = cbor2.dumps({"wallet_id": ANN, "ts": 1})
    assert (
        Limit.from_bytes(absent) == Limit.from_bytes(cbor2.dumps(tree)) == Limit(wallet_id=ANN, daily_limit=None, ts=1)
    )


@pytest.mark.req("WAL-06")
def test_an_open_with_another_id_cannot_be_written_and_is_reported_when_read():
    wrong = Open(wallet_id=BOB, realm_id=REALM, ctx_id=OWNERS["ann"], currency="USD", created_at=0)
    with pytest.raises(InvalidBody, match=r"WAL\.WALLET_ID"):
        wrong.to_bytes()
    raw = cbor2.dumps({**cbor2.loads(opened("ann").body), "wallet_id": BOB})
    event = World().send(Draft(schema=opened("ann").schema, body=raw), stream_id=wallet_stream(BOB))
    issue = decode(event, SCHEMAS[event.hdr.schema])
    assert isinstance(issue, Issue)
    assert issue.code == "WAL.WALLET_ID"


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"wallet_id": b"short"}, "OVL.SIZE"),
        ({"realm_id": b"short"}, "OVL.SIZE"),
        ({"currency": "€"}, "WAL.INVALID_CURRENCY"),
        ({"currency": 5}, "OVL.BODY"),
        ({"created_at": -1}, "OVL.BODY"),
    ],
)
def test_faults_of_an_open_have_stable_codes(changed, code):
    raw = cbor2.dumps({**cbor2.loads(opened("ann").body), **changed})
    event = World().send(Draft(schema=opened("ann").schema, body=raw), stream_id=wallet_stream(ANN))
    issue = decode(event, SCHEMAS[event.hdr.schema])
    assert isinstance(issue, Issue)
    assert issue.code == code


@pytest.mark.parametrize("amount", [-1, 2**64, True, 1.5])
def test_an_amount_is_an_unsigned_integer_of_64_bits(amount):
    with pytest.raises(FormatError):
        drafts.deposit(ANN, amount, ts=1)


@pytest.mark.req("WAL-20")
def test_every_code_has_a_meaning_and_the_six_of_the_document_are_among_them():
    of_funds = {"WAL.INSUFFICIENT_FUNDS", "WAL.FROZEN", "WAL.CLOSED", "WAL.DAILY_LIMIT_EXCEEDED"}
    assert of_funds | {"WAL.INVALID_CURRENCY", "WAL.UNAUTHORIZED_OPERATION"} <= set(CODES)
    assert [code for code in CODES if code not in catalogue()] == []


@pytest.mark.req("WAL-22")
def test_all_four_conformance_sets_are_claimed_and_each_holds_the_one_before():
    assert tuple(Conformance) == CLAIMED
    for smaller, larger in zip(Conformance, list(Conformance)[1:], strict=False):
        assert smaller.operations <= larger.operations
    assert claims_of(frozenset(("open", "deposit", "withdraw", "transfer")), bridges=True) == (Conformance.CORE,)
    assert claims_of(Conformance.CONTROL.operations, bridges=False)[-1] is Conformance.CONTROL
    assert claims_of(frozenset(), bridges=True) == ()
