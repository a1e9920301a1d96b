"""`veen_native` and its oracle: the same verdicts, the same bytes."""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.damage import flipped
from tests.examples import spread
from tests.hub import builders
from tests.native.signatures import TORSION, Claim, claims

from veen.core.crypto.ed25519 import SigningKey
from veen.core.crypto.ed25519 import libsodium_verify as verify
from veen.core.crypto.ed25519 import libsodium_verify_many as verify_many
from veen.core.limits import DEFAULT_LIMITS
from veen.core.objects.msg import Msg
from veen.core.objects.receipt import issue_bytes
from veen.hub.admission.decide import Refuse, check_structure
from veen.storage.frame import pack

VECTORS = Path(__file__).parents[1] / "vectors"
PROFILES = frozenset({builders.BULK.profile_id()})
SIZES = (DEFAULT_LIMITS.max_msg_bytes, DEFAULT_LIMITS.max_hdr_bytes, DEFAULT_LIMITS.max_body_bytes)


def jobs_of(some: list[Claim]) -> bytes:
    return b"".join(claim.signature + claim.message + claim.public for claim in some)


# --- Ed25519 --------------------------------------------------------------------------------------------------


def test_published_cases_get_the_verdicts_of_libsodium(native):
    """ed25519-speccheck and Wycheproof, where libraries differ."""
    speccheck = json.loads((VECTORS / "ed25519-speccheck.json").read_text("utf-8"))
    wycheproof = json.loads((VECTORS / "wycheproof-ed25519.json").read_text("utf-8"))
    cases = [(row["pub_key"], row["message"], row["signature"]) for row in speccheck["cases"]]
    for group in wycheproof["testGroups"]:
        cases += [(group["publicKey"]["pk"], test["msg"], test["sig"]) for test in group["tests"]]
    verdicts: Counter[bool] = Counter()
    for case in cases:
        public, message, signature = map(bytes.fromhex, case)
        verdict = native.verify(public, message, signature)
        assert verdict == verify(public, message, signature), case
        verdicts[verdict] += 1
    assert verdicts[True] > 50
    assert verdicts[False] > 50


def test_small_order_in_every_encoding_is_refused(native):
    key = SigningKey(bytes(32))
    for point in TORSION:
        for signature in (point + bytes(32), key.sign(b"m"), point + key.sign(b"m")[32:]):
            for public in (point, key.public):
                expected = verify(public, b"m", signature)
                assert native.verify(public, b"m", signature) == expected


@pytest.mark.parametrize("seed", spread(range(4), 1))
def test_mutated_signatures_get_the_verdicts_of_libsodium(native, seed):
    """`python -m benchmarks.signatures` compares ten million; mixed order is good for some messages only."""
    some = claims(seed, 2_000)
    expected = verify_many(jobs_of(some))
    assert native.verify_many(jobs_of(some)) == expected
    assert [native.verify(*claim) for claim in some] == [bool(verdict) for verdict in expected]
    assert 0 < expected.count(1) < len(expected)
    mixed = expected[::4]
    assert 0 < mixed.count(1) < len(mixed), "both verdicts occur among keys of mixed order"


def test_signatures_are_the_bytes_of_libsodium(native):
    rng = random.Random(1)
    for _ in range(200):
        seed, message = rng.randbytes(32), rng.randbytes(rng.randrange(200))
        key = SigningKey(seed)
        signer = native.Signer(seed)
        assert signer.public == key.public
        assert signer.sign(message) == key.sign(message)


def test_wrong_lengths_are_false_or_an_error_and_never_a_crash(native):
    key = SigningKey(bytes(32))
    good = key.sign(b"m")
    assert not native.verify(key.public[:31], b"m", good)
    assert not native.verify(key.public, b"m", good + b"\0")
    with pytest.raises(ValueError, match="expected 32 bytes"):
        native.Signer(b"short")
    with pytest.raises(ValueError, match="multiple of 128"):
        native.verify_many(bytes(127))


# --- checking and sealing -------------------------------------------------------------------------------------


def verdicts_of(native, raws: list[bytes], workers: int = 2) -> list[Any]:
    pool = native.Pool(workers, sorted(PROFILES), SIZES)
    queued = [pool.submit(raw) for raw in raws]
    pool.close()  # ends when all are checked
    verdicts = iter(pool.take())
    return [next(verdicts) if fits else None for fits in queued]


def damaged(rng: random.Random, raw: bytes) -> bytes:
    match rng.randrange(5):
        case 0:
            return raw
        case 1:
            return flipped(raw, rng.randrange(len(raw)))
        case 2:
            return raw[: rng.randrange(len(raw))]
        case 3:
            return raw + rng.randbytes(rng.randrange(1, 3))
        case _:
            start = rng.randrange(100, 140)
            return raw[:start] + rng.randbytes(rng.randrange(4)) + raw[start + rng.randrange(4) :]


@pytest.mark.parametrize("seed", range(4))
def test_messages_are_judged_as_python_judges_them(native, seed):
    """None: Python must refuse its structure. False: only its signature is bad. Otherwise all fields are equal."""
    rng = random.Random(seed)
    raws = []
    for _ in range(800):
        raw = builders.msg(
            seq=rng.choice([1, 23, 24, 255, 256, 65_536, 2**32]),
            ack=rng.choice([0, 24, 70_000]),
            token=rng.choice([builders.TOKEN, None]),
            ciphertext=bytes(40) + bytes(rng.choice([0, 1, 24, 255, 256, 70_000 if rng.random() < 0.05 else 300])),
        ).to_bytes()
        raws.append(damaged(rng, raw))
    outcomes: Counter[str] = Counter()
    for raw, verdict in zip(raws, verdicts_of(native, raws), strict=True):
        expected = check_structure(raw, PROFILES, DEFAULT_LIMITS)
        if isinstance(expected, Refuse):
            assert verdict is None
        elif not verify(expected.client_id, Msg.digest_of(raw), expected.sig):
            assert verdict is False
        else:
            fields = ("profile_id", "label", "client_id", "client_seq", "prev_ack", "auth_ref")
            assert [getattr(verdict, name) for name in fields] == [getattr(expected, name) for name in fields]
            assert verdict.leaf_hash() == expected.leaf_hash()
        outcomes[type(verdict).__name__] += 1
    assert min(outcomes[name] for name in ("NoneType", "bool", "CheckedMsg")) > 20, outcomes


def test_entries_are_sealed_with_the_bytes_of_python(native):
    rng = random.Random(3)
    pool = native.Pool(3, sorted(PROFILES), SIZES)
    group = native.Group()
    expected: list[tuple[bytes, bytes | None, bytes | None]] = []
    for number in range(300):
        seed = rng.randbytes(32)
        place = (rng.randbytes(32), rng.choice([1, 24, 300, 2**33 + number]), rng.randbytes(32), rng.randbytes(32))
        raw, hub_ts = rng.randbytes(rng.randrange(1, 900)), rng.choice([0, 1_700_000_000, 2**40])
        if number % 7 == 0:
            group.add_record(b"record %d" % number)
            expected.append((b"record %d" % number, None, None))
        pool.seal(group, native.Signer(seed), raw, *place, hub_ts)
        receipt = issue_bytes(SigningKey(seed), *place, hub_ts)
        expected.append((*pack(place[0], place[1], raw, receipt), receipt))
    assert group.parts() == expected
    pool.close()


def test_rules_hold_for_what_is_submitted_after_them(native):
    raw = builders.msg().to_bytes()
    pool = native.Pool(1, sorted(PROFILES), SIZES)
    assert pool.submit(raw)
    pool.set_rules([], SIZES)
    assert not pool.submit(raw)
    pool.set_rules(sorted(PROFILES), (len(raw) - 1, *SIZES[1:]))
    assert not pool.submit(raw)
    pool.close()
    assert [verdict is None for verdict in pool.take()] == [False]
