"""Digests and samples: streamed hashes are those of the whole, samples are exact (QRY-14 … QRY-16, D-109)."""

import hashlib
import json
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.lake.query_builders import descriptor

from veen.core import canonical
from veen.core.hashing import Ht, u64be
from veen.lake.query.descriptor import EvidencePolicy, normalise
from veen.lake.query.digest import EvidenceHash, ResultDigest, RowsHash, Verified
from veen.lake.query.engine import sampler, threshold
from veen.lake.query.errors import QueryError, UnsupportedVersion


def hexdigest(data):
    return hashlib.sha256(data).hexdigest()


@pytest.mark.req("QRY-15")
@given(st.lists(st.dictionaries(st.text("abc", min_size=1), st.integers() | st.none(), max_size=3), max_size=6))
def test_rows_hashed_one_by_one_are_the_hash_of_the_array(rows):
    streamed = RowsHash()
    for row in rows:
        streamed.add(canonical.encode(row))
    whole = json.dumps(rows, sort_keys=True, separators=(",", ":")).encode()
    assert streamed.hexdigest() == hexdigest(whole)
    assert streamed.hexdigest() == streamed.hexdigest()
    assert streamed.count == len(rows)


ENTRY = Verified(receipt_id="rcpt-aa", mmr_root="bb", hub_id="cc", label="dd", stream_seq=7)


@pytest.mark.req("QRY-16")
@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("evidence", [{"mode": "full"}, {"mode": "spot", "sample_rate": 0.25}])
def test_evidence_hashed_one_by_one_is_the_hash_of_the_summary(evidence, count):
    asked = normalise(descriptor(query_id="q-1", evidence=evidence)).descriptor
    streamed = EvidenceHash(asked, "r-1")
    for _ in range(count):
        streamed.add(ENTRY.to_bytes())
    entry = {"receipt_id": "rcpt-aa", "mmr_root": "bb", "hub_id": "cc", "label": "dd", "stream_seq": 7}
    summary = {"query_id": "q-1", "result_id": "r-1", **evidence, "verified": [entry] * count}
    assert streamed.hexdigest() == hexdigest(json.dumps(summary, sort_keys=True, separators=(",", ":")).encode())


@pytest.mark.req("QRY-16")
def test_without_evidence_the_summary_is_the_mode_alone():
    asked = normalise(descriptor()).descriptor
    assert EvidenceHash(asked, "r-1").hexdigest() == hexdigest(b'{"mode":"none"}')


@pytest.mark.req("QRY-18")
@given(st.decimals("1e-30", 1, allow_nan=False).filter(lambda rate: rate > 0))
def test_the_threshold_is_the_floor_of_the_exact_product(rate):
    bound = threshold(rate)
    assert bound <= Fraction(rate) * 2**64 < bound + 1


def test_thresholds_where_floats_would_be_wrong():
    assert threshold(1) == 2**64
    assert threshold(Decimal("0.1")) == 2**64 // 10
    assert threshold(Decimal("0.1")) != int(0.1 * 2**64)
    assert threshold(Decimal("0." + "9" * 40)) == 2**64 - 1


@pytest.mark.req("QRY-18")
def test_a_sample_is_a_function_of_query_id_and_row_and_has_row_0():
    rate = Decimal("0.3")
    is_sampled = sampler(EvidencePolicy(mode="spot", sample_rate=rate), "q-1")
    for row in range(2000):
        draw = int.from_bytes(Ht("veen/query-spot", b"q-1\x00" + u64be(row))[:8], "big")
        assert is_sampled(row) == (row == 0 or draw < threshold(rate))
    count = sum(map(is_sampled, range(2000)))
    assert 500 < count < 700
    other = sampler(EvidencePolicy(mode="spot", sample_rate=rate), "q-2")
    assert [other(row) for row in range(64)] != [is_sampled(row) for row in range(64)]


def test_none_samples_nothing_and_full_and_rate_1_sample_everything():
    assert not any(map(sampler(EvidencePolicy(mode="none"), "q"), range(50)))
    assert all(map(sampler(EvidencePolicy(mode="full"), "q"), range(50)))
    assert all(map(sampler(EvidencePolicy(mode="spot", sample_rate=1), "q"), range(50)))


DIGEST = ResultDigest(
    query_id="q-1", result_id="r-1", row_count=3,
    evidence_policy=EvidencePolicy(mode="spot", sample_rate=Decimal("0.1")),
    rows_hash="aa", evidence_hash="bb", coverage_hash="cc", executed_at="2025-11-19T03:20:00Z", hub_id="dd",
)  # fmt: skip


@pytest.mark.req("QRY-14")
def test_a_digest_has_every_field_and_goes_there_and_back():
    value = DIGEST.to_json()
    assert {"query_id", "result_id", "version", "row_count", "evidence_policy", "rows_hash", "evidence_hash",
            "executed_at", "hub_id"} <= set(value)  # fmt: skip
    assert value["version"] == 1
    assert ResultDigest.from_bytes(DIGEST.to_bytes()) == DIGEST


@pytest.mark.req("QRY-31")
def test_a_digest_of_a_later_release_is_read_as_far_as_it_is_known():
    assert ResultDigest.from_bytes(canonical.encode({**DIGEST.to_json(), "more": 1})) == DIGEST
    with pytest.raises(UnsupportedVersion):
        ResultDigest.from_bytes(canonical.encode({**DIGEST.to_json(), "version": 2}))


@pytest.mark.parametrize("name", ["query_id", "row_count", "rows_hash", "evidence_policy", "hub_id"])
@pytest.mark.parametrize("value", [None, [], True])
def test_a_digest_with_a_member_of_the_wrong_type_is_refused(name, value):
    with pytest.raises(QueryError):
        ResultDigest.from_bytes(canonical.encode({**DIGEST.to_json(), name: value}))
    with pytest.raises(QueryError):
        ResultDigest.from_bytes(canonical.encode({k: v for k, v in DIGEST.to_json().items() if k != name}))
