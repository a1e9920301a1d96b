"""veen.attached.v1: spec §4.6, D-16."""

from hashlib import sha256
from typing import Any

import cbor2
import pytest
from hypothesis import given
from tests.core import strategies

from veen.core.errors import FieldSizeError, MalformedError, VerifyError
from veen.core.sealing.ciphertext import ATTACHED_SCHEMA, Attached, Attachment

COIDS = [bytes((n,)) * 32 for n in range(3)]
PLAIN = [b"", b"one", b"twotwo"]
BODY = Attached(
    body=b"body",
    attachments=(
        Attachment(coid=COIDS[0], size=0),
        Attachment(coid=COIDS[1], size=3, name="one.txt"),
        Attachment(coid=COIDS[2], size=6, media_type="text/plain"),
    ),
)


def test_the_schema_is_the_hash_of_its_name():
    """D-83"""
    assert sha256(b"veen.attached.v1").digest() == ATTACHED_SCHEMA


def test_the_body_is_a_text_key_map_in_listed_order():
    """D-02, D-16"""
    tree: dict[str, Any] = {
        "body": b"body",
        "attachments": [
            {"coid": COIDS[0], "size": 0},
            {"coid": COIDS[1], "size": 3, "name": "one.txt"},
            {"coid": COIDS[2], "size": 6, "media_type": "text/plain"},
        ],
    }
    assert BODY.to_bytes() == cbor2.dumps(tree)
    assert Attached.from_bytes(cbor2.dumps(tree)) == BODY
    wrong: Any
    for wrong in (dict(reversed(tree.items())), {**tree, "x": 0}, {"body": b""}, {"attachments": []}, {}, [b"", []]):
        with pytest.raises(MalformedError):
            Attached.from_bytes(cbor2.dumps(wrong))


@given(strategies.ATTACHED)
def test_null_for_an_absent_field_reads_as_absent(attached):
    """D-04: encode by omission, decode null as absent; all spellings are one value."""
    tree = attached.to_tree()
    names = ("coid", "size", "name", "media_type")
    tree["attachments"] = [{name: item.get(name) for name in names} for item in tree["attachments"]]
    assert Attached.from_bytes(cbor2.dumps(tree)) == attached


def test_what_was_declared_must_be_what_was_supplied():
    """spec §4.6: count, order, identity and plaintext sizes."""
    BODY.check(COIDS, PLAIN)
    Attached(body=b"", attachments=()).check([], [])
    for coids, plain in (
        (COIDS[:2], PLAIN[:2]),
        ([*COIDS, COIDS[0]], [*PLAIN, b""]),
        (COIDS, PLAIN[:2]),
        (COIDS[:2], PLAIN),
        ([], []),
    ):
        with pytest.raises(VerifyError, match="attachments are declared"):
            BODY.check(coids, plain)
    with pytest.raises(VerifyError, match="attachment 0 is not the declared one"):
        BODY.check(COIDS[::-1], PLAIN[::-1])
    with pytest.raises(VerifyError, match="attachment 2: 6 bytes declared, 7 found"):
        BODY.check(COIDS, [b"", b"one", b"twotwo!"])


@pytest.mark.req("LIM-04")
def test_at_most_1024_attachments_are_declared():
    """spec §14"""
    item = {"coid": bytes(32), "size": 0}
    assert len(Attached.from_bytes(cbor2.dumps({"body": b"", "attachments": [item] * 1024})).attachments) == 1024
    with pytest.raises(FieldSizeError, match="0 to 1024"):
        Attached.from_bytes(cbor2.dumps({"body": b"", "attachments": [item] * 1025}))
