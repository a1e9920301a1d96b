"""Statements that bind a client key to a principal (D-179)."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core import strategies
from tests.examples import examples

from veen.core import cbor
from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import FieldSizeError, FormatError, MalformedError, SignatureError
from veen.core.hashing import Ht
from veen.core.labels import schema_id
from veen.core.objects.card import Card, CardRecord
from veen.core.objects.speaking import (
    MAX_REASON_BYTES,
    MAX_SPEAKS_SEC,
    PRINCIPAL_NEXT_SCHEMA,
    SPEAKING_SCHEMAS,
    SPEAKS_END_SCHEMA,
    SPEAKS_SCHEMA,
    PrincipalNext,
    SpeaksBinding,
    SpeaksEnd,
)

PRINCIPAL, CLIENT, OTHER = (SigningKey(bytes((n,)) * 32) for n in (7, 8, 9))
STREAM = b"\x01" * 32
BINDING = SpeaksBinding.issue(PRINCIPAL, CLIENT, stream_id=STREAM, not_before=1_000, not_after=87_400)
END = SpeaksEnd.issue(PRINCIPAL, stream_id=STREAM, client_id=CLIENT.public, reason="lost", ended_at=2_000)
END_OF_ALL = SpeaksEnd.issue(PRINCIPAL, stream_id=STREAM)
NEXT = PrincipalNext.issue(PRINCIPAL, OTHER, stream_id=STREAM)
STATEMENTS = (BINDING, END, END_OF_ALL, NEXT)


def test_the_wire_form_of_a_binding_is_the_one_that_was_decided():
    """D-179: a body with text keys, and both keys sign Ht("veen/speaks", CBOR of the list of the first five)."""
    digest = Ht("veen/speaks", cbor.encode([PRINCIPAL.public, CLIENT.public, STREAM, 1_000, 87_400]))
    assert BINDING.signing_digest() == digest
    assert BINDING.to_bytes() == cbor.encode(
        {
            "principal_pk": PRINCIPAL.public,
            "client_id": CLIENT.public,
            "stream_id": STREAM,
            "not_before": 1_000,
            "not_after": 87_400,
            "sig_client": CLIENT.sign(digest),
            "sig_principal": PRINCIPAL.sign(digest),
        }
    )


def test_the_wire_form_of_an_end_and_of_a_next_key():
    """D-179: what is absent is null in what is signed, and left out of the body."""
    digest = Ht("veen/speaks-end", cbor.encode([PRINCIPAL.public, None, STREAM, None, None]))
    assert END_OF_ALL.to_bytes() == cbor.encode(
        {"principal_pk": PRINCIPAL.public, "stream_id": STREAM, "sig_principal": PRINCIPAL.sign(digest)}
    )
    assert END.signing_digest() == Ht(
        "veen/speaks-end", cbor.encode([PRINCIPAL.public, CLIENT.public, STREAM, "lost", 2_000])
    )
    digest = Ht("veen/principal-next", cbor.encode([PRINCIPAL.public, OTHER.public, STREAM]))
    assert NEXT.to_bytes() == cbor.encode(
        {
            "old": PRINCIPAL.public,
            "new": OTHER.public,
            "stream_id": STREAM,
            "sig_old": PRINCIPAL.sign(digest),
            "sig_new": OTHER.sign(digest),
        }
    )


def test_the_schemas_are_named_after_the_kinds():
    for kind, schema in (
        (SpeaksBinding, SPEAKS_SCHEMA),
        (SpeaksEnd, SPEAKS_END_SCHEMA),
        (PrincipalNext, PRINCIPAL_NEXT_SCHEMA),
    ):
        assert schema_id(kind.KIND) == schema in SPEAKING_SCHEMAS


@pytest.mark.parametrize(
    "forged",
    [
        replace(BINDING, principal_pk=OTHER.public),
        replace(BINDING, client_id=OTHER.public),
        replace(BINDING, stream_id=bytes(32)),
        replace(BINDING, not_before=999),
        replace(BINDING, not_after=87_401),
        replace(BINDING, sig_client=BINDING.sig_principal),
        replace(BINDING, sig_principal=BINDING.sig_client),
        replace(BINDING, sig_client=OTHER.sign(BINDING.signing_digest())),
        replace(BINDING, sig_principal=OTHER.sign(BINDING.signing_digest())),
        replace(END, principal_pk=OTHER.public),
        replace(END, client_id=None),
        replace(END, client_id=OTHER.public),
        replace(END, stream_id=bytes(32)),
        replace(END, reason=None),
        replace(END, ended_at=None),
        replace(END, sig_principal=CLIENT.sign(END.signing_digest())),
        replace(END_OF_ALL, client_id=CLIENT.public),
        replace(NEXT, old=OTHER.public),
        replace(NEXT, new=CLIENT.public),
        replace(NEXT, stream_id=bytes(32)),
        replace(NEXT, sig_old=NEXT.sig_new),
        replace(NEXT, sig_new=NEXT.sig_old),
    ],
)
def test_only_what_all_named_keys_signed_verifies(forged):
    for statement in STATEMENTS:
        statement.verify()
    with pytest.raises(SignatureError):
        forged.verify()


def test_no_statement_verifies_as_another_one():
    """Each has a tag of its own, so a signature over one means nothing under another."""
    assert len({statement.signing_digest() for statement in STATEMENTS}) == len(STATEMENTS)
    assert len({type(statement).TAG for statement in STATEMENTS}) == 3


@pytest.mark.parametrize(
    ("not_before", "not_after", "legal"),
    [(5, 5, False), (5, 4, False), (5, 6, True), (0, MAX_SPEAKS_SEC, True), (0, MAX_SPEAKS_SEC + 1, False)],
)
def test_a_binding_lives_for_a_day_and_ten_minutes_at_most(not_before, not_after, legal):
    """D-179, KEX1+ §4.1"""
    assert replace(BINDING, not_before=not_before, not_after=not_after).has_legal_lifetime is legal


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda statement: type(statement).__name__)
@examples(200)
@given(data=st.data())
def test_no_single_bit_can_change(statement, data):
    raw = bytearray(statement.to_bytes())
    bit = data.draw(st.integers(0, 8 * len(raw) - 1))
    raw[bit // 8] ^= 1 << bit % 8
    with pytest.raises((FormatError, SignatureError)):
        type(statement).from_bytes(bytes(raw)).verify()


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda statement: type(statement).__name__)
@examples(200)
@given(data=st.data())
def test_damaged_statements_end_in_a_statement_or_in_a_format_error(statement, data):
    """No other exception. In a body null says the same as a field that is left out (D-04), also to what is signed."""
    damaged = data.draw(strategies.mutated(st.just(statement.to_bytes())))
    try:
        read = type(statement).from_bytes(damaged)
    except FormatError:
        return
    again = type(statement).from_bytes(read.to_bytes())
    assert (again, again.signing_digest()) == (read, read.signing_digest())


def test_bounds_of_what_is_read_and_written():
    with pytest.raises(FieldSizeError, match=r"reason"):
        SpeaksEnd.issue(PRINCIPAL, stream_id=STREAM, reason="x" * (MAX_REASON_BYTES + 1))
    tree = END.to_tree()
    with pytest.raises(FieldSizeError, match=r"reason"):
        SpeaksEnd.from_tree({**tree, "reason": "é" * (MAX_REASON_BYTES // 2 + 1)})
    with pytest.raises(FieldSizeError, match=r"client_id"):
        SpeaksEnd.from_tree({**tree, "client_id": b"short"})
    with pytest.raises(FormatError):
        SpeaksBinding.from_bytes(BINDING.to_bytes() + b"\x00")
    with pytest.raises(MalformedError):
        SpeaksBinding.from_tree({**BINDING.to_tree(), "not_before": -1})
    with pytest.raises(MalformedError, match="unknown"):
        SpeaksBinding.from_tree({**BINDING.to_tree(), "more": 0})
    with pytest.raises(FormatError):
        SpeaksEnd.from_bytes(bytes(SpeaksEnd.MAX_BYTES + 1))


def test_a_card_says_itself_whether_its_identity_signed_it():
    card = Card.issue(PRINCIPAL, dh_pk=bytes(32), client_id=CLIENT.public, name="alice")
    record = CardRecord.from_bytes(CardRecord(card=card).to_bytes())
    assert record.card == card
    assert record.card.is_signed
    assert not replace(card, client_id=OTHER.public).is_signed
    assert not replace(card, id_sign_pk=OTHER.public).is_signed
