"""Ed25519: RFC 8032, and the one acceptance rule in each of its implementations (I13)."""

import json
import re
from hashlib import sha512
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.bindings import crypto_core_ed25519_add, crypto_scalarmult_ed25519_base_noclamp, crypto_sign
from tests.cases import every

import veen
from veen.core.crypto import ed25519
from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import InvalidKeyError

VECTORS = Path(__file__).parents[1] / "vectors"
RFC8032, SIGN_INPUT, SPECCHECK, WYCHEPROOF = (
    json.loads((VECTORS / f"{name}.json").read_text("utf-8"))
    for name in ("ed25519-rfc8032", "ed25519-sign-input-256", "ed25519-speccheck", "wycheproof-ed25519")
)
WYCHEPROOF_TESTS = [(group["publicKey"]["pk"], test) for group in WYCHEPROOF["testGroups"] for test in group["tests"]]

L = 2**252 + 27742317777372353535851937790883648493  # the order of the base point
P = 2**255 - 19
SIGN_BIT = 2**255
ORDER_8_Y = int.from_bytes(bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little")
# Every encoding of the 8 torsion points: y of each, y + p where that fits into 255 bits, and both signs of x.
SMALL_ORDER = [
    (y | sign).to_bytes(32, "little")
    for y in (0, 1, P - 1, P, P + 1, ORDER_8_Y, P - ORDER_8_Y)
    for sign in (0, SIGN_BIT)
]

KEY = SigningKey(bytes(range(32)))
seeds = st.binary(min_size=32, max_size=32)


def verify(public: bytes, message: bytes, signature: bytes) -> bool:
    """The verdict of `verify`, and of libsodium where another implementation is in use."""
    verdict = ed25519.verify(public, message, signature)
    if all(type(part) is bytes for part in (public, message, signature)):
        assert ed25519.libsodium_verify(public, message, signature) is verdict
    return verdict


def challenge(r: bytes, public: bytes, message: bytes) -> int:
    """h of RFC 8032 §5.1.7, reduced"""
    return int.from_bytes(sha512(r + public + message).digest(), "little") % L


def flips(data: bytes) -> list[bytes]:
    """Every way to turn one bit."""
    number = int.from_bytes(data, "big")
    return [(number ^ 1 << bit).to_bytes(len(data), "big") for bit in range(8 * len(data))]


# Laws


@pytest.mark.req("CRY-03")
@given(seeds, st.binary())
def test_what_a_key_signs_verifies_under_its_public_key(seed, message):
    """spec §3.2"""
    key = SigningKey(seed)
    signature = key.sign(message)
    assert len(signature) == 64
    assert verify(key.public, message, signature)
    assert key.sign(message) == signature  # deterministic (RFC 8032 §5.1.6)


@given(seeds, seeds, st.binary(), st.binary())
def test_a_signature_verifies_for_no_other_message_and_no_other_key(seed, other_seed, message, other_message):
    """spec §3.2"""
    key, other = SigningKey(seed), SigningKey(other_seed)
    signature = key.sign(message)
    assert verify(key.public, other_message, signature) == (message == other_message)
    assert verify(other.public, message, signature) == (seed == other_seed)


@pytest.mark.req("CRY-03")
def test_no_single_bit_of_key_message_or_signature_can_change():
    """spec §3.2"""
    message = sha512(b"veen").digest()[:32]
    signature = KEY.sign(message)
    assert not any(verify(public, message, signature) for public in flips(KEY.public))
    assert not any(verify(KEY.public, other, signature) for other in flips(message))
    assert not any(verify(KEY.public, message, other) for other in flips(signature))


# Vectors


@pytest.mark.req("CRY-03")
@pytest.mark.parametrize("case", RFC8032["vectors"], ids=lambda case: case["name"])
def test_the_vectors_of_rfc_8032_hold(case):
    """RFC 8032 §7.1"""
    key = SigningKey(bytes.fromhex(case["seed"]))
    message, signature = bytes.fromhex(case["msg"]), bytes.fromhex(case["sig"])
    assert key.public.hex() == case["pk"]
    assert key.sign(message) == signature
    assert verify(key.public, message, signature)


@pytest.mark.req("CRY-03")
def test_the_sign_input_vectors_of_ed25519_hold():
    """RFC 8032 §7.1, from the authors' sign.input: message lengths 0 to 255"""
    assert len(SIGN_INPUT["vectors"]) == 256
    for case in SIGN_INPUT["vectors"]:
        key = SigningKey(bytes.fromhex(case["seed"]))
        message, signature = bytes.fromhex(case["msg"]), bytes.fromhex(case["sig"])
        assert key.public.hex() == case["pk"]
        assert key.sign(message) == signature
        assert verify(key.public, message, signature)


@pytest.mark.req("CRY-03")
@every(WYCHEPROOF_TESTS, lambda case: case[1]["tcId"])
def test_wycheproof_signatures_are_judged_as_wycheproof_judges_them(case):
    """D-19: canonical S, exact lengths, no malleability"""
    public, test = case
    accepted = verify(bytes.fromhex(public), bytes.fromhex(test["msg"]), bytes.fromhex(test["sig"]))
    assert accepted == (test["result"] == "valid")


def test_all_of_wycheproof_is_there():
    """A vector file cut short would make the test above say less than it seems to."""
    assert len(WYCHEPROOF_TESTS) == WYCHEPROOF["numberOfTests"] == 151


def test_of_the_speccheck_cases_exactly_the_ones_libsodium_accepts_are_accepted():
    """I13, D-19: the accept set is the fingerprint of a verification rule (ePrint 2020/1244)."""
    accepted = [
        case["index"]
        for case in SPECCHECK["cases"]
        if verify(*(bytes.fromhex(case[name]) for name in ("pub_key", "message", "signature")))
    ]
    assert accepted == SPECCHECK["expect_libsodium_accept"] == [3]
    assert len(SPECCHECK["cases"]) == 12


# The acceptance rule, clause by clause


def test_s_plus_the_group_order_is_refused():
    """D-19: non-canonical S. Without this anyone could turn a signature into a second one."""
    signature = KEY.sign(b"m")
    s = int.from_bytes(signature[32:], "little")
    assert not verify(KEY.public, b"m", signature[:32] + (s + L).to_bytes(32, "little"))


@pytest.mark.parametrize("public", SMALL_ORDER, ids=bytes.hex)
def test_a_small_order_public_key_is_refused_even_where_the_equation_holds(public):
    """I13: with A of small order anyone can sign: R = s*B, S = s, and a message for which h*A vanishes."""
    s = (12345).to_bytes(32, "little")
    r = crypto_scalarmult_ed25519_base_noclamp(s)
    messages = [m for m in map(str.encode, map(str, range(200))) if challenge(r, public, m) % 8 == 0]
    assert messages
    assert not any(verify(public, message, r + s) for message in messages)


@pytest.mark.parametrize("r", SMALL_ORDER, ids=bytes.hex)
def test_a_small_order_r_is_refused_even_where_the_equation_holds(r):
    """I13: S = h*a satisfies the equation for the neutral R, and the cofactored equation for the others."""
    scalar = bytearray(sha512(KEY.seed).digest()[:32])
    scalar[0] &= 248
    scalar[31] = scalar[31] & 127 | 64
    s = challenge(r, KEY.public, b"m") * int.from_bytes(scalar, "little") % L
    assert not verify(KEY.public, b"m", r + s.to_bytes(32, "little"))


@pytest.mark.parametrize("order", [2, 4, 8])
def test_a_mixed_order_key_is_judged_by_the_cofactorless_equation(order):
    """I13: a libsodium with the cofactored equation accepts all of these, and must not slip in as an update."""
    torsion = {2: P - 1, 4: 0, 8: ORDER_8_Y}[order].to_bytes(32, "little")
    public = crypto_core_ed25519_add(KEY.public, torsion)
    verdicts = set()
    for message in map(str.encode, map(str, range(100))):
        signature = crypto_sign(message, KEY.seed + public)[:64]  # signs with the honest scalar, hashes the mixed key
        cancels = challenge(signature[:32], public, message) % order == 0
        assert verify(public, message, signature) == cancels
        verdicts.add(cancels)
    assert verdicts == {True, False}


def test_every_part_judges_signatures_through_the_same_door():
    """I13: libsodium is asked in one module, the native implementation of the same rule is loaded in one."""
    root = Path(veen.__file__).parent
    sources = {path.relative_to(root).as_posix(): path.read_text("utf-8") for path in root.rglob("*.py")}

    def using(pattern: str) -> set[str]:
        return {name for name, text in sources.items() if re.search(pattern, text)}

    # Signatures of OpenTelemetry, by keys of X.509 certificates, follow the rule of their own world.
    foreign = {"products/recorder/integrity.py"}
    assert using(r"crypto_sign|nacl\.signing|Ed25519PublicKey|libsodium_verify") - foreign == {"core/crypto/ed25519.py"}
    assert using(r"import veen_native|[\"']veen_native[\"']") == {"native.py"}
    assert using(r"module\.verify") == {"core/crypto/ed25519.py"}


@pytest.mark.parametrize("function", [ed25519.verify_many, ed25519.libsodium_verify_many])
def test_many_signatures_get_the_verdicts_of_each(function):
    """I13"""
    good, bad = KEY.sign(b"d" * 32), KEY.sign(b"e" * 32)
    jobs = b"".join(signature + b"d" * 32 + KEY.public for signature in (good, bad, good))
    assert function(jobs) == b"\1\0\1"
    assert function(b"") == b""
    with pytest.raises(ValueError, match="multiple of 128"):
        function(jobs[:-1])


# Awkward input


@pytest.mark.parametrize("length", [0, 1, 31, 33, 64])
def test_a_seed_of_another_length_is_an_invalid_key(length):
    """spec §3.2"""
    with pytest.raises(InvalidKeyError, match=f"expected 32 bytes, found {length}"):
        SigningKey(bytes(length))


def test_keys_and_signatures_of_another_length_are_refused():
    """spec §3.2: and never reach libsodium, which would read past their end."""
    signature = KEY.sign(b"m")
    for length in (0, 1, 31, 33, 64):
        assert not verify((KEY.public * 2)[:length], b"m", signature)
    for length in (0, 1, 32, 63, 65, 128):
        assert not verify(KEY.public, b"m", (signature * 2)[:length])
    assert not verify(KEY.public, b"", signature + b"m")  # the same bytes, cut elsewhere


@pytest.mark.parametrize(
    "wrong", [None, 7, "x" * 32, "x" * 64, [1] * 32, [300] * 64, bytearray(32), memoryview(bytes(64))]
)
def test_what_is_not_bytes_is_refused_without_an_exception(wrong):
    """I13: callers branch on the answer alone."""
    signature = KEY.sign(b"m")
    assert verify(wrong, b"m", signature) is False
    assert verify(KEY.public, wrong, signature) is False
    assert verify(KEY.public, b"m", wrong) is False


@given(st.binary(max_size=80), st.binary(), st.binary(max_size=80))
def test_verify_answers_false_to_noise(public, message, signature):
    """I13"""
    assert verify(public, message, signature) is False


# The key as a value


def test_a_key_gives_its_seed_back_and_shows_only_its_public_half():
    """A key may end up in a log line or a traceback; its seed must not."""
    seed = bytes(range(32))
    key = SigningKey(seed)
    assert key.seed == seed
    assert repr(key) == f"SigningKey(public={key.public.hex()[:16]}…)"
    assert seed.hex()[:8] not in repr(key)
    assert not hasattr(key, "__dict__")


@given(seeds, seeds)
def test_keys_are_equal_exactly_when_their_public_keys_are(a, b):
    """D-19: no comparison looks at a secret."""
    assert SigningKey(a) == SigningKey(bytes(a))
    assert hash(SigningKey(a)) == hash(SigningKey(bytes(a)))
    assert (SigningKey(a) == SigningKey(b)) == (SigningKey(a).public == SigningKey(b).public)
    assert SigningKey(a) != a
