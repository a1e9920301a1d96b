"""Sampling of a spot check: a function of query_id and the number of the row (D-109, QRY-18)."""

from collections.abc import Callable
from decimal import Decimal
from hashlib import sha256
from typing import Final

from veen.core.hashing import tag_prefix, u64be
from veen.lake.query.descriptor import EvidencePolicy

_TAG: Final = tag_prefix("veen/query-spot")


def threshold(rate: int | Decimal) -> int:
    """Return floor(rate · 2^64), without any rounding."""
    over, under = rate.as_integer_ratio()
    return (over << 64) // under


def sampler(evidence: EvidencePolicy, query_id: str) -> Callable[[int], bool]:
    """Return a function that is True for row numbers, from 0, to verify. A spot check always has row 0."""
    if evidence.sample_rate is None:
        return lambda _: evidence.mode == "full"
    below = threshold(evidence.sample_rate)
    seed = _TAG + query_id.encode() + b"\x00"

    def is_sampled(row: int) -> bool:
        return row == 0 or int.from_bytes(sha256(seed + u64be(row)).digest()[:8], "big") < below

    return is_sampled
