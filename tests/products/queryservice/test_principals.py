"""Who may ask a query service: the file, tokens, scopes (QRY-20)."""

import pytest
from tests.lake.query_builders import STREAMS, descriptor
from tests.products.queryservice.services import ALICE, BOB, CAROL, DORA, PRINCIPALS, TOKENS, table

from veen.lake.query.descriptor import normalise
from veen.lake.query.errors import ForbiddenScope, InvalidDescriptor
from veen.products.queryservice.principals import Principals, PrincipalsInvalid


@pytest.mark.req("QRY-20")
def test_a_token_names_its_principal_and_no_other_text_names_anybody():
    for name, token in TOKENS.items():
        principal = PRINCIPALS.by_token(token.encode())
        assert principal is not None
        assert principal.name == name
    assert ALICE.token_hash is not None
    for wrong in (b"", b"token-of-alic", b"token-of-alice ", b"\x00" * 32, ALICE.token_hash):
        assert PRINCIPALS.by_token(wrong) is None


@pytest.mark.req("QRY-06", "QRY-20")
def test_a_scope_is_checked_by_patterns_and_what_is_not_allowed_looks_like_what_is_not_there():
    BOB.check(normalise(descriptor(scope=[STREAMS[0]])).descriptor)
    with pytest.raises(ForbiddenScope) as forbidden:
        BOB.check(normalise(descriptor(scope=[STREAMS[1]])).descriptor)
    with pytest.raises(ForbiddenScope) as unknown:
        BOB.check(normalise(descriptor(scope=["nowhere"])).descriptor)
    assert str(forbidden.value).replace(STREAMS[1], "nowhere") == str(unknown.value)


def test_a_principal_may_have_to_ask_for_evidence():
    with pytest.raises(InvalidDescriptor, match="mode full"):
        DORA.check(normalise(descriptor(evidence={"mode": "spot", "sample_rate": 1})).descriptor)
    DORA.check(normalise(descriptor(evidence={"mode": "full"})).descriptor)


def test_results_are_seen_by_who_asked_and_by_auditors():
    assert ALICE.may_see(ALICE.subject_id)
    assert not ALICE.may_see(BOB.subject_id)
    assert CAROL.may_see(ALICE.subject_id)


def test_the_class_of_a_scope_is_the_first_that_fits_any_of_its_streams():
    assert PRINCIPALS.class_of((STREAMS[1],)) == "internal"
    assert PRINCIPALS.class_of((STREAMS[1], STREAMS[0])) == "confidential"
    assert PRINCIPALS.class_of(("elsewhere",)) == "unclassified"


@pytest.mark.parametrize(
    ("file", "why"),
    [
        ({}, "nobody could use"),
        ({"principal": {}, "other": {}}, "unknown table"),
        ({"principal": {"a": 1}}, "is not a table"),
        ({"principal": {"a": table("alice") | {"colour": 1}}}, "unknown key 'colour'"),
        ({"principal": {"a": table("alice") | {"scopes": []}}}, "scopes is a list"),
        ({"principal": {"a": table("alice") | {"scopes": ["x", 1]}}}, "scopes is a list"),
        ({"principal": {"a": table("alice") | {"evidence_min": "some"}}}, "evidence_min"),
        ({"principal": {"a": table("alice") | {"max_rows": True}}}, "max_rows"),
        ({"principal": {"a": table("alice") | {"auditor": 1}}}, "auditor"),
        ({"principal": {"a": table("alice") | {"token_sha256": "zz"}}}, "token_sha256 is 64 hex digits"),
        ({"principal": {"a": table("alice") | {"certificate_names": "alice"}}}, "certificate_names is a list"),
        ({"principal": {"a": table("alice") | {"certificate_names": [""]}}}, "certificate_names is a list"),
        ({"principal": {"a": {"scopes": ["x"], "client_id": "5b" * 32}}}, "token_sha256 or certificate_names"),
        (
            {"principal": {name: table(name, certificate_names=["same"]) for name in ("alice", "bob")}},
            "must belong to one principal",
        ),
        ({"principal": {"a": table("alice") | {"client_id": 7}}}, "client_id is 64 hex digits"),
        ({"principal": {"a": table("alice"), "b": table("alice")}}, "the same token"),
        ({"principal": {"a": table("alice", subject_id="x"), "b": table("bob", subject_id="x")}}, "told apart"),
        ({"principal": {"a": table("alice")}, "classes": {"x": 1}}, "classes"),
    ],
)
def test_a_file_that_cannot_be_used_says_what_is_wrong(file, why):
    with pytest.raises(PrincipalsInvalid, match=why):
        Principals.of(file)


def test_the_file_is_toml_of_bounded_size(tmp_path):
    path = tmp_path / "principals.toml"
    path.write_bytes(b"[principal.\xff]")
    with pytest.raises(PrincipalsInvalid, match=r"principals\.toml"):
        Principals.read(path)
    path.write_bytes(b"#" * (2 << 20))
    with pytest.raises(PrincipalsInvalid, match="more than"):
        Principals.read(path)
