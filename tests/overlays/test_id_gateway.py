"""External logins: tokens as a provider signs them, tokens as an attacker would, and the accounts they lead to."""

import base64
import hashlib
import hmac
import json
import sys
from importlib import import_module
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given
from hypothesis import strategies as st
from tests.overlays.id_builders import ACME_ID, ALICE, ALICE_APP, APP, BOB, BOB_APP, SHOP, IdLog

from veen.core.errors import FormatError, MalformedError
from veen.core.hashing import H
from veen.overlays.id import drafts
from veen.overlays.id.gateway import (
    KeySet,
    LoginRefused,
    OidcMissing,
    Provider,
    TokenRefused,
    check_token,
    custodial_principal,
    login,
)
from veen.overlays.id.ids import ctx_id_of

jwt: Any = import_module("jwt")  # its types know less than it can do

NOW = 1_700_000_000
ISSUER, AUDIENCE = "https://idp.example.com", "veen-app"
GATEWAY = H(b"gateway")

# The provider's secrets. RSA is slow to make, so once for all tests.
SECRETS: dict[str, Any] = {
    "rsa": rsa.generate_private_key(65537, 2048),
    "ec": ec.generate_private_key(ec.SECP256R1()),
    "ed": ed25519.Ed25519PrivateKey.generate(),
}
ALGORITHMS = {"rsa": "RS256", "ec": "ES256", "ed": "EdDSA"}
ADAPTERS = {"rsa": jwt.algorithms.RSAAlgorithm, "ec": jwt.algorithms.ECAlgorithm, "ed": jwt.algorithms.OKPAlgorithm}


def jwk(kid: str, **changes: Any) -> dict[str, Any]:
    public = ADAPTERS[kid].to_jwk(SECRETS[kid].public_key(), as_dict=True)
    return {**public, "kid": kid, **changes}


def key_set(*keys: dict[str, Any]) -> KeySet:
    return KeySet.from_json(json.dumps({"keys": keys}))


PROVIDER = Provider(
    name="corp",
    issuer=ISSUER,
    audience=AUDIENCE,
    keys=key_set(jwk("rsa"), jwk("ec"), jwk("ed")),
    mirror=("email", "groups", "score"),
    display_name="name",
)


def claims(**changes: Any) -> dict[str, Any]:
    claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "user-1", "iat": NOW - 5, "exp": NOW + 300} | changes
    return {name: value for name, value in claims.items() if value is not None}


def sign(payload: dict[str, Any] | None = None, *, kid: str = "ed", **header: Any) -> str:
    return str(jwt.encode(payload or claims(), SECRETS[kid], ALGORITHMS[kid], headers={"kid": kid, **header}))


def b64(data: bytes | dict[str, Any]) -> str:
    raw = json.dumps(data).encode() if isinstance(data, dict) else data
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def compact(header: bytes | dict[str, Any], payload: bytes | dict[str, Any]) -> str:
    """Signed with the Ed25519 key whatever the header says: for what a library would not sign."""
    signing_input = f"{b64(header)}.{b64(payload)}"
    return f"{signing_input}.{b64(SECRETS['ed'].sign(signing_input.encode()))}"


def code(token: str, provider: Provider = PROVIDER, now: int = NOW, nonce: str | None = None) -> str:
    with pytest.raises(TokenRefused) as refused:
        check_token(token, provider, now=now, nonce=nonce)
    assert not token or token not in str(refused.value) + repr(refused.value)
    assert str(refused.value).startswith(refused.value.code)
    return refused.value.code


# --- tokens -------------------------------------------------------------------------------------------------


@pytest.mark.req("ID-21")
@pytest.mark.parametrize("kid", SECRETS)
def test_a_token_of_the_provider_proves_its_subject(kid):
    identity = check_token(sign(kid=kid), PROVIDER, now=NOW)
    assert (identity.provider, identity.external_sub) == ("corp", "user-1")


@pytest.mark.req("ID-21")
@pytest.mark.parametrize("kid", SECRETS)
def test_no_byte_of_a_token_may_change(kid):
    token = sign(kid=kid)
    head, payload, signature = token.split(".")
    raw = bytearray(base64.urlsafe_b64decode(signature + "=="))
    for index in (0, len(raw) // 2, len(raw) - 1):
        bad = bytes(raw[:index]) + bytes([raw[index] ^ 1]) + bytes(raw[index + 1 :])
        assert code(f"{head}.{payload}.{b64(bad)}") == "ID.JWT_SIGNATURE"
    assert code(f"{head}.{b64(claims(sub='admin'))}.{signature}") == "ID.JWT_SIGNATURE"
    assert code(f"{head}.{payload}.{b64(b'')}") == "ID.JWT_FORMAT"
    assert code(f"{head}.{payload}.{b64(b'short')}") == "ID.JWT_SIGNATURE"


@pytest.mark.req("ID-21")
def test_the_algorithm_is_the_keys_and_not_the_tokens():
    """RFC 8725 §3.1: no `none`, and no public key as the secret of an HMAC."""
    unsigned = f"{b64({'alg': 'none', 'kid': 'rsa'})}.{b64(claims())}."
    assert code(unsigned) == "ID.JWT_FORMAT"
    assert code(unsigned + b64(b"x")) == "ID.JWT_ALG"
    pem = (
        SECRETS["rsa"]
        .public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    for secret in (pem, pem.strip(), json.dumps(jwk("rsa")).encode()):
        signing_input = f"{b64({'alg': 'HS256', 'typ': 'JWT', 'kid': 'rsa'})}.{b64(claims())}"
        mac = hmac.digest(secret, signing_input.encode(), hashlib.sha256)
        assert code(f"{signing_input}.{b64(mac)}") == "ID.JWT_ALG"
    stronger = jwt.encode(claims(), SECRETS["rsa"], "RS512", headers={"kid": "rsa"})  # fine elsewhere, not agreed here
    assert code(stronger) == "ID.JWT_ALG"
    for alg in (None, 1, "", "none", "None", "ES256", ["EdDSA"]):
        assert code(compact({"alg": alg, "kid": "ed"}, claims())) == "ID.JWT_ALG"


@pytest.mark.req("ID-21")
def test_the_key_is_the_deployments_and_not_the_tokens():
    mine = ed25519.Ed25519PrivateKey.generate()
    own = ADAPTERS["ed"].to_jwk(mine.public_key(), as_dict=True)
    brought = jwt.encode(claims(), mine, "EdDSA", headers={"kid": "ed", "jwk": own, "jku": "https://evil.example"})
    assert code(brought) == "ID.JWT_SIGNATURE"
    assert code(jwt.encode(claims(), SECRETS["rsa"], "RS256", headers={"kid": "ed"})) == "ID.JWT_ALG"
    for kid in ("unknown", "", None, 7, ["ed"]):
        assert code(compact({"alg": "EdDSA", "kid": kid}, claims())) == "ID.JWT_KEY"
    assert code(compact({"alg": "EdDSA"}, claims())) == "ID.JWT_KEY"


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ({"crit": ["exp"]}, "ID.JWT_HEADER"),
        ({"b64": False, "crit": ["b64"]}, "ID.JWT_HEADER"),
        ({"b64": True}, "ID.JWT_HEADER"),
        ({"typ": "at+jwt"}, "ID.JWT_HEADER"),
        ({"typ": 1}, "ID.JWT_HEADER"),
    ],
)
def test_extensions_and_other_types_are_refused(header, expected):
    assert code(compact({"alg": "EdDSA", "kid": "ed", **header}, claims())) == expected


def test_a_type_in_other_letters_is_the_same_type():
    check_token(compact({"alg": "EdDSA", "kid": "ed", "typ": "jwt"}, claims()), PROVIDER, now=NOW)


@pytest.mark.req("ID-21")
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"iss": None}, "ID.JWT_ISSUER"),
        ({"iss": ISSUER + "/"}, "ID.JWT_ISSUER"),
        ({"iss": [ISSUER]}, "ID.JWT_ISSUER"),
        ({"aud": None}, "ID.JWT_AUDIENCE"),
        ({"aud": "another-app"}, "ID.JWT_AUDIENCE"),
        ({"aud": []}, "ID.JWT_AUDIENCE"),
        ({"aud": {AUDIENCE: 1}}, "ID.JWT_AUDIENCE"),
        ({"aud": [AUDIENCE, "another-app"]}, "ID.JWT_AUDIENCE"),
        ({"azp": "another-app"}, "ID.JWT_AUDIENCE"),
        ({"exp": None}, "ID.JWT_EXPIRED"),
        ({"exp": str(NOW + 300)}, "ID.JWT_EXPIRED"),
        ({"exp": True}, "ID.JWT_EXPIRED"),
        ({"exp": NOW - 60}, "ID.JWT_EXPIRED"),
        ({"nbf": NOW + 61}, "ID.JWT_EARLY"),
        ({"nbf": "soon"}, "ID.JWT_EARLY"),
        ({"iat": NOW + 61}, "ID.JWT_EARLY"),
        ({"sub": None}, "ID.JWT_SUBJECT"),
        ({"sub": ""}, "ID.JWT_SUBJECT"),
        ({"sub": 7}, "ID.JWT_SUBJECT"),
        ({"sub": "x" * 256}, "ID.JWT_SUBJECT"),
        ({"sub": "\ud800"}, "ID.JWT_SUBJECT"),
    ],
)
def test_a_token_is_for_us_and_for_now(changes, expected):
    assert code(compact({"alg": "EdDSA", "kid": "ed"}, claims(**changes))) == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"aud": [AUDIENCE]},
        {"aud": [AUDIENCE, "another-app"], "azp": AUDIENCE},
        {"exp": NOW - 59},
        {"exp": NOW + 0.5},
        {"nbf": NOW + 60},
        {"iat": None},
    ],
)
def test_the_edges_that_still_count(changes):
    check_token(compact({"alg": "EdDSA", "kid": "ed"}, claims(**changes)), PROVIDER, now=NOW)


def test_time_is_an_argument():
    token = sign()
    check_token(token, PROVIDER, now=NOW + 359)
    assert code(token, now=NOW + 360) == "ID.JWT_EXPIRED"
    assert code(token, now=NOW - 66) == "ID.JWT_EARLY"


def test_a_nonce_ties_a_token_to_its_login():
    token = sign(claims(nonce="n-1"))
    check_token(token, PROVIDER, now=NOW, nonce="n-1")
    check_token(token, PROVIDER, now=NOW)
    assert code(token, nonce="n-2") == "ID.JWT_NONCE"
    assert code(sign(), nonce="n-1") == "ID.JWT_NONCE"


@pytest.mark.parametrize(
    "token",
    [
        "",
        "a.b",
        "a.b.c.d",
        "a.b.c\n",
        "é.b.c",
        "!.b.c",
        "a" * 20_000,
        f"{b64(b'not json')}.{b64(b'{}')}.{b64(b'x')}",
        f"{b64(b'[]')}.{b64(b'{}')}.{b64(b'x')}",
        f"{b64(bytes([255]))}.{b64(b'{}')}.{b64(b'x')}",
        f"a.{b64(b'{}')}.{b64(b'x')}",
    ],
)
def test_what_is_no_token_is_refused_by_its_form(token):
    assert code(token) == "ID.JWT_FORMAT"


@pytest.mark.parametrize(
    "payload",
    [
        b"not json",
        b"[]",
        b'{"exp": NaN}',
        b'{"sub": "user-1", "sub": "admin"}',  # read by one as this, by another as that
        b"[" * 5_000,
    ],
)
def test_signed_claims_must_be_one_plain_object(payload):
    assert code(compact({"alg": "EdDSA", "kid": "ed"}, payload)) == "ID.JWT_FORMAT"


@given(st.text(max_size=200) | st.binary(max_size=150).map(lambda raw: f"{b64(raw)}.{b64(raw)}.{b64(raw)}"))
def test_whatever_comes_in_is_judged(text):
    with pytest.raises(TokenRefused):
        check_token(text, PROVIDER, now=NOW)


# --- key sets -----------------------------------------------------------------------------------------------


@pytest.mark.req("ID-21")
def test_a_key_set_holds_public_keys_for_signatures_only():
    small = rsa.generate_private_key(65537, 1024)  # noqa: S505 - weak on purpose
    weak = {**ADAPTERS["rsa"].to_jwk(small.public_key(), as_dict=True), "kid": "weak"}
    secret = {**ADAPTERS["ed"].to_jwk(SECRETS["ed"], as_dict=True), "kid": "secret"}
    shared = {"kty": "oct", "k": b64(b"secret"), "kid": "shared"}
    for document, words in [
        ("nonsense", "not JSON"),
        ("[]", "list of keys"),
        ('{"keys": {}}', "list of keys"),
        ('{"keys": []}', "no key"),
        ('{"keys": [1]}', "an object"),
        (json.dumps({"keys": [jwk("ec", use="enc"), jwk("ed", key_ops=["sign"])]}), "no key"),
        (json.dumps({"keys": [weak]}), "2048 bits"),
        (json.dumps({"keys": [jwk("ec"), secret]}), "secret key"),
        (json.dumps({"keys": [jwk("ec"), shared]}), "secret key"),
        (json.dumps({"keys": [jwk("ec"), jwk("ec")]}), "two keys"),
        (json.dumps({"keys": [{k: v for k, v in jwk("ec").items() if k != "kid"}]}), "without a kid"),
        (json.dumps({"keys": [jwk("ec", x="AA")]}), "cannot be read"),
        (json.dumps({"keys": [jwk("rsa", n=None)]}), "cannot be read"),
    ]:
        with pytest.raises(MalformedError, match=words) as refused:
            KeySet.from_json(document)
        assert isinstance(refused.value, FormatError)


@pytest.mark.parametrize(
    "changes",
    [{"use": "enc"}, {"alg": "RS512"}, {"key_ops": ["sign"]}, {"key_ops": 1}, {"crv": "P-521"}, {"kty": ["RSA"]}],
)
def test_keys_for_something_else_are_left_out(changes):
    """RFC 7517 §5."""
    kid = "ec" if "crv" in changes else "rsa"
    provider = Provider(name="corp", issuer=ISSUER, audience=AUDIENCE, keys=key_set(jwk(kid, **changes), jwk("ed")))
    assert code(sign(kid=kid), provider) == "ID.JWT_KEY"
    check_token(sign(), provider, now=NOW)


def test_the_library_is_an_extra_and_its_absence_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "jwt", None)
    with pytest.raises(OidcMissing, match="not installed") as missing:
        check_token("a.b.c", PROVIDER, now=NOW)
    assert ".[oidc]" in missing.value.hint


# --- logins -------------------------------------------------------------------------------------------------


def enter(log: IdLog, token: str | None = None, **asked: Any):
    options: dict[str, Any] = {"realm_id": APP, "writers": [GATEWAY], "now": NOW} | asked
    return login(log.state(NOW), token or sign(), PROVIDER, **options)


@pytest.mark.req("ID-21")
def test_the_first_login_makes_an_account_and_the_next_one_finds_it():
    log = IdLog()
    token = sign(claims(name="Ann", email="ann@example.com", groups=["a", "b"], score=1.5, phone="+1"))
    first = enter(log, token, principal_pk=ALICE.public)
    assert (first.ctx_id, first.created) == (ALICE_APP, True)
    assert len(first.messages) == 2
    for message in first.messages:
        log.send(message, client="gateway")
    assert log.codes() == []
    state = log.state(NOW)
    link = state.link(APP, "corp", "user-1", as_of=NOW)
    assert link is not None
    assert link.attributes is not None
    assert link.attributes.value == {"email": "ann@example.com", "groups": ["a", "b"]}  # no float, nothing unasked
    assert state.contexts[ALICE_APP, APP].display_name == "Ann"
    again = enter(log, token)
    assert (again.ctx_id, again.created, again.messages) == (ALICE_APP, False, ())
    assert enter(log, token, principal_pk=BOB.public).ctx_id == ALICE_APP  # found comes before made


@pytest.mark.req("ID-21")
def test_changed_claims_update_the_link():
    log = IdLog()
    for message in enter(log, principal_pk=ALICE.public).messages:
        log.send(message, client="gateway")
    changed = enter(log, sign(claims(email="new@example.com")), now=NOW - 3)  # another gateway's clock may be behind
    (message,) = changed.messages
    log.send(message, client="gateway")
    link = log.state(NOW).link(APP, "corp", "user-1", as_of=NOW, writers=[GATEWAY])
    assert link is not None
    assert link.attributes is not None
    assert link.attributes.value == {"email": "new@example.com"}


def test_an_account_that_exists_is_linked_and_not_made_again():
    log = IdLog()
    log.send(drafts.ctx_profile(ALICE_APP, APP, updated_at=1, display_name="Ann"))
    entered = enter(log, principal_pk=ALICE.public)
    assert not entered.created
    assert len(entered.messages) == 1


@pytest.mark.req("ID-20", "ID-21")
def test_a_link_that_no_gateway_wrote_leads_nowhere():
    """Bob may write into his own stream that Ann's external account is his."""
    log = IdLog()
    log.send(
        drafts.external_link(APP, provider="corp", external_sub="user-1", ctx_id=BOB_APP, ts=NOW + 9), client="bob"
    )
    with pytest.raises(LoginRefused) as refused:
        enter(log)
    assert refused.value.code == "ID.LOGIN_UNKNOWN"
    assert enter(log, principal_pk=ALICE.public).ctx_id == ALICE_APP


def test_another_realm_has_other_accounts():
    log = IdLog()
    for message in enter(log, principal_pk=ALICE.public).messages:
        log.send(message, client="gateway")
    elsewhere = enter(log, realm_id=SHOP, principal_pk=ALICE.public)
    assert elsewhere.created
    assert elsewhere.ctx_id == ctx_id_of(ALICE.public, SHOP)


@pytest.mark.req("ID-23")
def test_a_disabled_account_cannot_log_in_and_gets_no_successor():
    log = IdLog()
    for message in enter(log, principal_pk=ALICE.public).messages:
        log.send(message, client="gateway")
    log.send(drafts.revoke_by_org(ACME_ID, ctx_id=ALICE_APP, ts=1))
    assert enter(log, principal_pk=BOB.public).ctx_id == ALICE_APP
    with pytest.raises(LoginRefused, match="disabled") as refused:
        enter(log, principal_pk=BOB.public, trusted_orgs=[ACME_ID])
    assert refused.value.code == "ID.LOGIN_REVOKED"
    log.send(drafts.revoke_by_principal(ALICE.public, ctx_id=ALICE_APP, realm_id=APP, ts=1))
    with pytest.raises(LoginRefused, match=r"ID\.LOGIN_REVOKED"):
        enter(log, principal_pk=BOB.public)


def test_an_organization_does_not_log_in():
    log = IdLog()
    link = drafts.external_link(APP, provider="corp", external_sub="user-1", org_id=ACME_ID, ts=1)
    log.send(link, client="gateway")
    with pytest.raises(LoginRefused) as refused:
        enter(log, principal_pk=ALICE.public)
    assert refused.value.code == "ID.LOGIN_TARGET"


def test_a_bad_token_never_reaches_the_accounts():
    with pytest.raises(TokenRefused, match=r"ID\.JWT_EXPIRED"):
        enter(IdLog(), now=NOW + 10_000, principal_pk=ALICE.public)


def test_a_gateway_keeps_principals_for_users_without_keys():
    def principal(**changes: Any) -> bytes:
        options: dict[str, Any] = {"realm_id": APP, "provider": "corp", "external_sub": "user-1"} | changes
        return custodial_principal(bytes(32), **options).public

    assert principal() == principal()
    others = [
        principal(realm_id=SHOP),
        principal(provider="corpu", external_sub="ser-1"),
        principal(external_sub="user-2"),
        custodial_principal(bytes([1]) * 32, realm_id=APP, provider="corp", external_sub="user-1").public,
    ]
    assert len({principal(), *others}) == 5
    with pytest.raises(ValueError, match="at least 32"):
        custodial_principal(b"short", realm_id=APP, provider="corp", external_sub="1")
