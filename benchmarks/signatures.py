"""Verdicts of `veen_native` beside libsodium's on ten million signatures that no honest signer makes.

    python -m benchmarks.signatures     goes on where the last run stopped; at ten million it writes docs/benchmarks.md

Each seed gives a thousand claims (`tests/native/signatures.py`): flipped bits, S + L, small-order and non-canonical
keys and points, keys of mixed order. Both verifiers must agree on each.
"""

import sys
import time
from typing import Final

import veen_native
from benchmarks import report, resumable
from tests.native.signatures import claims

from veen.core.crypto.ed25519 import libsodium_verify_many

CLAIMS: Final = 1_000  # of one seed


def run_block(first: int, size: int) -> tuple[int, float]:
    """The signatures of the seeds from `first` on, `size` of them, and the CPU seconds they took."""
    began = time.process_time()
    for seed in range(first, first + size):
        jobs = b"".join(claim.signature + claim.message + claim.public for claim in claims(seed, CLAIMS))
        expected, verdicts = libsodium_verify_many(jobs), veen_native.verify_many(jobs)
        if verdicts != expected:
            place = next(place for place in range(CLAIMS) if verdicts[place] != expected[place])
            raise AssertionError(f"seed {seed}, claim {place}: libsodium {expected[place]}, native {verdicts[place]}")
    return size * CLAIMS, time.process_time() - began


RUN: Final = resumable.Run(
    name="signatures",
    unit="signatures",
    points=10_000_000,
    block=run_block,
    code=("native/src", "native/Cargo.toml", "src/veen/core/crypto/ed25519.py", "tests/native/signatures.py"),
    size=10,
)


def publish(progress: resumable.Progress) -> None:
    text = f"""## Verdicts of the native module

Written by `python -m benchmarks.signatures` at {resumable.commit_name()}. {report.machine()}

{progress.points:,} signatures from {progress.seeds:,} seeds: flipped bits of key, message, R and S; S + kL; keys and R
of small order and in non-canonical encodings; random keys; edge values of S; keys and R of mixed order, whose verdict
depends on the message. `veen_native` and libsodium agreed on every one.
{progress.seconds / 3600:.1f} hours of CPU time.
"""
    report.write_section("signatures", text)


if __name__ == "__main__":
    sys.exit(resumable.main(RUN, publish))
