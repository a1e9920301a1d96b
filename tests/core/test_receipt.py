"""RECEIPT: spec §4.3."""

from dataclasses import replace
from hashlib import sha256

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.signing import VerifyKey
from tests.core import strategies
from tests.core.strategies import single_bit_flips

from veen.core import cbor
from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import FieldSizeError, FormatError, MalformedError, SignatureError, VeenError
from veen.core.objects.receipt import Receipt, issue_bytes

HUB = SigningKey(b"\x02" * 32)
LABEL, LEAF, ROOT = b"\x0a" * 32, b"\x0b" * 32, b"\x0c" * 32


def issue(key=HUB):
    return Receipt.issue(key, label=LABEL, stream_seq=5, leaf_hash=LEAF, mmr_root=ROOT, hub_ts=1_700_000_000)


@pytest.mark.req("TS0-02")
@given(strategies.RECEIPT)
def test_the_fast_writer_agrees_with_the_general_one(receipt):
    """I10"""
    data = receipt.to_bytes()
    assert data == cbor.encode(receipt.to_tree()) == cbor2.dumps(receipt.to_tree())
    assert Receipt.from_bytes(data) == receipt


@pytest.mark.req("RCPT-01", "CBOR-01", "CBOR-07")
def test_a_receipt_is_an_array_of_seven_items():
    """spec §4.3"""
    receipt = issue()
    items = [1, LABEL, 5, LEAF, ROOT, 1_700_000_000, receipt.hub_sig]
    assert receipt.to_bytes() == cbor2.dumps(items)
    assert Receipt.from_bytes(cbor2.dumps(items)) == receipt
    for wrong in (items[:6], [*items, 0], [*items[:6], None]):
        with pytest.raises(MalformedError):
            Receipt.from_bytes(cbor2.dumps(wrong))


@pytest.mark.req("RCPT-02")
def test_hub_sig_is_over_the_tagged_hash_of_the_first_six_items():
    """spec §4.3: computed here from the words of the spec, and verified with another library."""
    receipt = issue()
    digest = sha256(b"veen/sig\x00" + cbor2.dumps(receipt.to_tree()[:6])).digest()
    assert receipt.signing_digest() == digest
    VerifyKey(HUB.public).verify(digest, receipt.hub_sig)
    receipt.verify(HUB.public)


def test_a_receipt_of_another_hub_is_refused():
    """spec §4.3, §9: the key that was pinned, no other."""
    with pytest.raises(SignatureError, match="RECEIPT 5"):
        issue(SigningKey(b"\x03" * 32)).verify(HUB.public)
    for key in (b"", bytes(32), bytes(31), b"\xff" * 32):
        with pytest.raises(SignatureError):
            issue().verify(key)


def test_every_single_bit_flip_is_refused():
    """spec §4.3: by the reader or by `verify`; all bits of one receipt."""
    data = issue().to_bytes()
    Receipt.from_bytes(data).verify(HUB.public)
    for flipped in single_bit_flips(data):
        with pytest.raises(VeenError):
            Receipt.from_bytes(flipped).verify(HUB.public)


@pytest.mark.req("CBOR-09")
@pytest.mark.parametrize("field", ["label", "leaf_hash", "mmr_root", "hub_sig"])
def test_a_wrong_size_is_neither_written_nor_read(field):
    """spec §4.3"""
    receipt = replace(issue(), **{field: b"short"})
    with pytest.raises(FieldSizeError, match=f"RECEIPT.{field}"):
        receipt.to_bytes()
    with pytest.raises(FieldSizeError, match=f"RECEIPT.{field}"):
        Receipt.from_bytes(cbor2.dumps(receipt.to_tree()))


@pytest.mark.parametrize("field", ["stream_seq", "hub_ts"])
@pytest.mark.parametrize("value", [-1, 2**64])
def test_an_integer_outside_64_bits_is_not_written(field, value):
    """D-07"""
    with pytest.raises(MalformedError):
        replace(issue(), **{field: value}).to_bytes()


@given(strategies.RECEIPT, st.data())
def test_the_reader_by_layout_agrees_with_the_general_one(receipt, data):
    """Every byte changed, inserted, dropped or cut: the same value or the same kind of error."""
    raw = bytearray(receipt.to_bytes())
    for _ in range(data.draw(st.integers(0, 2))):
        position = data.draw(st.integers(0, len(raw) - 1))
        change = data.draw(st.sampled_from(["set", "insert", "drop", "cut"]))
        if change == "set":
            raw[position] = data.draw(st.integers(0, 255))
        elif change == "insert":
            raw.insert(position, data.draw(st.integers(0, 255)))
        elif change == "drop":
            del raw[position]
        else:
            del raw[position + 1 :]
    outcomes: list[object] = []
    for read in (Receipt.from_bytes, super(Receipt, Receipt).from_bytes):
        try:
            outcomes.append(read(bytes(raw)))
        except FormatError as exc:
            outcomes.append((type(exc), str(exc)))
    assert outcomes[0] == outcomes[1]


def test_a_hub_that_needs_only_the_bytes_gets_the_same_ones():
    key = SigningKey(b"\x02" * 32)
    issued = Receipt.issue(key, label=b"L" * 32, stream_seq=300, leaf_hash=b"l" * 32, mmr_root=b"r" * 32, hub_ts=17)
    assert issue_bytes(key, b"L" * 32, 300, b"l" * 32, b"r" * 32, 17) == issued.to_bytes()
