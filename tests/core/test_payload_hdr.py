"""payload_hdr: spec §4.5."""

from typing import Any

import cbor2
import pytest

from veen.core.errors import FieldSizeError, MalformedError
from veen.core.objects.payload_hdr import PayloadHdr

SCHEMA, PARENT, ATT_ROOT, CAP_REF = (bytes((n,)) * 32 for n in range(1, 5))
FULL: dict[Any, Any] = {1: SCHEMA, 2: PARENT, 3: ATT_ROOT, 4: CAP_REF, 5: 1_700_000_000}


@pytest.mark.req("PHDR-01", "CBOR-08")
def test_the_header_is_a_map_of_five_integer_keys():
    """spec §4.5"""
    hdr = PayloadHdr(schema=SCHEMA, parent_id=PARENT, att_root=ATT_ROOT, cap_ref=CAP_REF, expires_at=1_700_000_000)
    assert hdr.to_bytes() == cbor2.dumps(FULL)
    assert PayloadHdr.from_bytes(cbor2.dumps(FULL)) == hdr


@pytest.mark.req("PHDR-01", "PHDR-02")
@pytest.mark.parametrize("present", range(16))
def test_each_optional_field_is_omitted_when_absent(present):
    """spec §4.5: all sixteen combinations, and null for none of them."""
    tree = {1: SCHEMA, **{key: FULL[key] for key in range(2, 6) if present >> (key - 2) & 1}}
    hdr = PayloadHdr.from_bytes(cbor2.dumps(tree))
    assert hdr.to_tree() == tree
    assert hdr.to_bytes() == cbor2.dumps(tree)


@pytest.mark.req("PHDR-02", "CBOR-05", "CBOR-06")
def test_null_unknown_keys_and_a_missing_schema_are_refused():
    """spec §4.5"""
    for key in FULL:
        with pytest.raises(MalformedError):
            PayloadHdr.from_bytes(cbor2.dumps({**FULL, key: None}))
    for unknown in (0, 6, 255, "schema"):
        with pytest.raises(MalformedError):
            PayloadHdr.from_bytes(cbor2.dumps({**FULL, unknown: 0}))
    with pytest.raises(MalformedError):
        PayloadHdr.from_bytes(cbor2.dumps({2: PARENT}))
    with pytest.raises(MalformedError):
        PayloadHdr.from_bytes(cbor2.dumps({}))


@pytest.mark.req("PHDR-01", "CBOR-09")
@pytest.mark.parametrize("key", [1, 2, 3, 4])
def test_references_have_32_bytes(key):
    """spec §4.5: bstr32"""
    for size in (0, 31, 33):
        with pytest.raises(FieldSizeError):
            PayloadHdr.from_bytes(cbor2.dumps({**FULL, key: bytes(size)}))
