"""The core beside the primitives it is made of.

`test_operation` gives pytest-benchmark's statistics for each operation. `test_table` measures all of them in turns, a
few milliseconds each, and derives the ratios: pytest-benchmark runs one operation after the other, and on a shared
machine a ratio of two figures taken a minute apart says little.
"""

import gc
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import sha256
from hmac import digest
from statistics import median
from typing import Any, Final, TypeVar
from unittest import mock

import cbor2
import pytest
from benchmarks import report
from nacl.bindings import (
    crypto_aead_chacha20poly1305_ietf_decrypt,
    crypto_aead_chacha20poly1305_ietf_encrypt,
    crypto_aead_xchacha20poly1305_ietf_decrypt,
    crypto_aead_xchacha20poly1305_ietf_encrypt,
    crypto_scalarmult,
    crypto_scalarmult_base,
    crypto_sign,
    crypto_sign_open,
    crypto_sign_seed_keypair,
)
from pytest_benchmark.fixture import BenchmarkFixture

from veen.core.crypto import aead, hkdf, hpke, x25519
from veen.core.crypto.ed25519 import SigningKey
from veen.core.hashing import H
from veen.core.objects import msg
from veen.core.objects.captoken import CapToken
from veen.core.objects.msg import Msg
from veen.core.objects.payload_hdr import PayloadHdr
from veen.core.objects.receipt import Receipt
from veen.core.objects.recognise import recognise
from veen.core.sealing import ciphertext
from veen.core.sealing.ciphertext import Binding, Parts, open_msg, seal
from veen.core.tree.mmr import LABEL_TAGS, Mmr, peak_nodes, root_of
from veen.core.tree.proof import MmrProof, PathStep

Call = Callable[[], object]
T = TypeVar("T")

ROUNDS: Final = 60
BATCH_SECONDS: Final = 0.003
LEAVES: Final = 1 << 16

# --- what the operations work on --------------------------------------------------------------------------------

CLIENT: Final = SigningKey(H(b"client"))
READER_SK: Final = H(b"reader")
READER_PK: Final = x25519.public_key(READER_SK)
BINDING: Final = Binding(
    profile_id=H(b"profile"), label=H(b"label"), client_id=CLIENT.public, client_seq=7, prev_ack=5, auth_ref=None
)
HDR: Final = PayloadHdr(schema=H(b"schema"))
IKM: Final = H(b"ikm")
BODY: Final = bytes(512)


def _message(body: bytes, pad_block: int) -> Msg:
    sealed = seal(READER_PK, BINDING, HDR, body, ikm=IKM, pad_block=pad_block)
    return Msg.compose(
        CLIENT,
        profile_id=BINDING.profile_id,
        label=BINDING.label,
        client_seq=BINDING.client_seq,
        prev_ack=BINDING.prev_ack,
        auth_ref=None,
        ciphertext=sealed.ciphertext,
    )


MSG: Final = _message(bytes(300), pad_block=480)
RAW_MSG: Final = MSG.to_bytes()
assert (len(RAW_MSG), len(MSG.ciphertext)) == (690, 480)
LONG_MSG: Final = _message(BODY, pad_block=0)

_PUBLIC, _SECRET = crypto_sign_seed_keypair(H(b"client"))
DIGEST: Final = MSG.signing_digest()
SIGNED: Final = crypto_sign(DIGEST, _SECRET)
RECEIPT: Final = Receipt.issue(
    CLIENT, label=MSG.label, stream_seq=1_000_000, leaf_hash=MSG.leaf_hash(), mmr_root=H(b"root"), hub_ts=1_700_000_000
)
RAW_RECEIPT: Final = RECEIPT.to_bytes()
TOKEN: Final = CapToken.issue(CLIENT, CLIENT.public, [H(b"stream")], ttl=3600)
LEAF_HASHES: Final = [H(b"leaf %d" % pos) for pos in range(LEAVES)]
BYTES_65: Final = bytes(65)


def _proof(size: int, pos: int) -> tuple[MmrProof, bytes]:
    """A proof with made-up siblings and the root it leads to: verifying it costs what a real one costs."""
    height = (pos ^ size).bit_length() - 1
    path = tuple(PathStep(dir=pos >> level & 1, sib=H(b"sibling %d" % level)) for level in range(height))
    node = H(b"leaf")
    for step in path:
        node = H(LABEL_TAGS.node_prefix + (step.sib + node if step.dir else node + step.sib))
    heights = [peak for peak, _ in peak_nodes(size)]
    peaks = [node if peak == height else H(b"peak %d" % peak) for peak in heights]
    others = tuple(peak for peak in peaks if peak != node)
    return MmrProof(leaf_hash=H(b"leaf"), path=path, peaks_after=others), root_of(peaks)


MILLION: Final = 1_000_000
PROOF, PROOF_ROOT = _proof(MILLION, 123_456)

# --- our operations -----------------------------------------------------------------------------------------------


def check_msg() -> None:
    """What a hub does with a MSG before and after the signature."""
    message = Msg.from_bytes(RAW_MSG)
    message.check_ct_hash()
    message.signing_digest()
    message.leaf_hash()
    Parts.split(message.ciphertext)


def check_and_verify_msg() -> None:
    message = Msg.from_bytes(RAW_MSG)
    Parts.split(message.ciphertext)
    message.verify()
    message.leaf_hash()


def general_msg() -> Msg:
    """Past the reader that Msg has of its own."""
    return super(Msg, Msg).from_bytes(RAW_MSG)


def append_leaves() -> None:
    mmr = Mmr()
    for leaf in LEAF_HASHES:
        mmr.append(leaf)


def append_leaves_with_roots() -> None:
    mmr = Mmr()
    for leaf in LEAF_HASHES:
        mmr.append(leaf)
        mmr.root()


def seal_body() -> None:
    seal(READER_PK, BINDING, HDR, BODY, ikm=IKM, pad_block=0)


def open_body() -> None:
    open_msg(READER_SK, LONG_MSG, reader_pk=READER_PK)


def issue_receipt() -> None:
    Receipt.issue(
        CLIENT, label=MSG.label, stream_seq=MILLION, leaf_hash=DIGEST, mmr_root=PROOF_ROOT, hub_ts=1_700_000_000
    ).to_bytes()


def verify_proof() -> None:
    PROOF.verify(leaf_hash=PROOF.leaf_hash, stream_seq=123_457, tree_size=MILLION, expected_root=PROOF_ROOT)


# --- the primitives alone -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Recorded:
    """Every primitive that one operation called, with its arguments."""

    hmacs: list[tuple[Any, ...]]
    hashes: list[bytes]
    others: list[tuple[Callable[..., object], tuple[Any, ...]]]

    def replay(self) -> None:
        for args in self.hmacs:
            digest(*args)
        for data in self.hashes:
            sha256(data).digest()
        for primitive, args in self.others:
            primitive(*args)

    def counts(self) -> str:
        names: dict[Callable[..., object], str] = {
            crypto_scalarmult_base: "X25519 of the base point",
            crypto_scalarmult: "X25519",
            crypto_aead_chacha20poly1305_ietf_encrypt: "ChaCha20-Poly1305 of the header",
            crypto_aead_chacha20poly1305_ietf_decrypt: "ChaCha20-Poly1305 of the header",
            crypto_aead_xchacha20poly1305_ietf_encrypt: "XChaCha20-Poly1305 of the body",
            crypto_aead_xchacha20poly1305_ietf_decrypt: "XChaCha20-Poly1305 of the body",
        }
        used = Counter(names[call] for call, _ in self.others)
        used.update({"HMAC-SHA256": len(self.hmacs), "SHA-256": len(self.hashes)})
        return ", ".join(f"{count} {name}" for name, count in used.items())


def record(operation: Call) -> Recorded:
    """Run an operation once and note which primitives it calls, so that the counts cannot go stale."""
    recorded = Recorded([], [], [])

    def spy_digest(*args: Any) -> bytes:
        recorded.hmacs.append(args)
        return digest(*args)

    def spy_sha256(data: bytes) -> Any:
        recorded.hashes.append(data)
        return sha256(data)

    def spy(primitive: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any) -> Any:
            recorded.others.append((primitive, args))
            return primitive(*args)

        return called

    with ExitStack() as patches:
        for module in (hpke, hkdf):
            patches.enter_context(mock.patch.object(module, "digest", spy_digest))
        for module in (ciphertext, msg):
            patches.enter_context(mock.patch.object(module, "sha256", spy_sha256))
        for module in (x25519, aead):
            for name in [name for name in vars(module) if name.startswith("crypto_")]:
                patches.enter_context(mock.patch.object(module, name, spy(getattr(module, name))))
        operation()
    return recorded


SEAL_PARTS: Final = record(seal_body)
OPEN_PARTS: Final = record(open_body)


def bare_path() -> None:
    """The hashes of an inclusion proof: 19 nodes and the root over 7 peaks."""
    for _ in PROOF.path:
        sha256(NODE_INPUT).digest()
    sha256(ROOT_INPUT).digest()


NODE_INPUT: Final = LABEL_TAGS.node_prefix + bytes(64)
ROOT_INPUT: Final = LABEL_TAGS.root_prefix + bytes(32 * MILLION.bit_count())

# Name, call, and how many units of work one call does.
OPERATIONS: Final[dict[str, tuple[Call, int]]] = {
    "Ed25519 verify, bare": (lambda: crypto_sign_open(SIGNED, _PUBLIC), 1),
    "Ed25519 sign, bare": (lambda: crypto_sign(DIGEST, _SECRET), 1),
    "SHA-256 of 65 B, bare": (lambda: sha256(BYTES_65).digest(), 1),
    "cbor2.loads of a MSG, bare": (lambda: cbor2.loads(RAW_MSG), 1),
    "cbor2.loads of a RECEIPT, bare": (lambda: cbor2.loads(RAW_RECEIPT), 1),
    "primitives of seal": (SEAL_PARTS.replay, 1),
    "primitives of open": (OPEN_PARTS.replay, 1),
    "hashes of a proof at 10⁶": (bare_path, 1),
    "MSG checks without signature": (check_msg, 1),
    "MSG checks with signature": (check_and_verify_msg, 1),
    "MMR append, per leaf": (append_leaves, LEAVES),
    "MMR append and root, per leaf": (append_leaves_with_roots, LEAVES),
    "seal 512 B": (seal_body, 1),
    "open 512 B": (open_body, 1),
    "MSG decode, own reader": (lambda: Msg.from_bytes(RAW_MSG), 1),
    "MSG decode, general reader": (general_msg, 1),
    "RECEIPT decode": (lambda: Receipt.from_bytes(RAW_RECEIPT), 1),
    "RECEIPT issue and encode": (issue_receipt, 1),
    "RECEIPT verify": (lambda: RECEIPT.verify(_PUBLIC), 1),
    "inclusion proof verify at 10⁶": (verify_proof, 1),
    "CapToken.verify, one link": (TOKEN.verify, 1),
    "recognise a MSG": (lambda: recognise(RAW_MSG), 1),
}


@dataclass(frozen=True, slots=True)
class Row:
    """An operation beside its limit; `target` is the highest ratio we allow ourselves, if there is one."""

    what: str
    operation: str
    limit: str
    target: float | None = None


ROWS: Final = (
    Row("MSG of 690 B: decode, ct_hash, signing digest, leaf hash, split", "MSG checks without signature",
        "Ed25519 verify, bare", 0.25),
    Row("the same with its signature", "MSG checks with signature", "Ed25519 verify, bare"),
    Row("MMR append, per leaf over 2¹⁶", "MMR append, per leaf", "SHA-256 of 65 B, bare", 6),
    Row("MMR append and root, per leaf over 2¹⁶", "MMR append and root, per leaf", "SHA-256 of 65 B, bare", 6),
    Row("seal a body of 512 B", "seal 512 B", "primitives of seal", 1.5),
    Row("open a body of 512 B", "open 512 B", "primitives of open", 1.5),
    Row("MSG decode, own reader", "MSG decode, own reader", "cbor2.loads of a MSG, bare"),
    Row("MSG decode, general reader", "MSG decode, general reader", "cbor2.loads of a MSG, bare"),
    Row("RECEIPT decode", "RECEIPT decode", "cbor2.loads of a RECEIPT, bare"),
    Row("RECEIPT issue and encode", "RECEIPT issue and encode", "Ed25519 sign, bare"),
    Row("RECEIPT verify", "RECEIPT verify", "Ed25519 verify, bare"),
    Row("inclusion proof verify, 10⁶ leaves", "inclusion proof verify at 10⁶", "hashes of a proof at 10⁶"),
    Row("CapToken.verify, one link", "CapToken.verify, one link", "Ed25519 verify, bare"),
    Row("recognise a MSG among all kinds", "recognise a MSG", "MSG decode, general reader"),
)  # fmt: skip
MMR_ABSOLUTE_US: Final = 6.0


@pytest.mark.benchmark(group="core", max_time=0.2)
@pytest.mark.parametrize("name", OPERATIONS)
def test_operation(benchmark: BenchmarkFixture, name: str) -> None:
    call, units = OPERATIONS[name]
    if units > 1:  # long by itself: no calibration, a few rounds
        _pedantic(benchmark, call, rounds=3)
    else:
        benchmark(call)


def test_table(benchmark: BenchmarkFixture, capsys: pytest.CaptureFixture[str]) -> None:
    """All operations in turns; then the ratios, on the screen and in docs/benchmarks.md."""
    micros = _pedantic(benchmark, measure_in_turns, rounds=1)
    text = table(micros)
    with capsys.disabled():
        print(f"\n\n{text}")
    if not benchmark.disabled:
        report.write_section("core", text)


def _pedantic(benchmark: BenchmarkFixture, call: Callable[[], T], *, rounds: int) -> T:
    pedantic: Callable[..., T] = benchmark.pedantic  # has no annotations
    return pedantic(call, rounds=rounds)


def measure_in_turns() -> dict[str, float]:
    """The median of each operation in microseconds per unit of work.

    CPU time: on a busy machine, a call of 100 ms is interrupted far more often than one of 10 µs.
    """
    batches = {name: (call, units, _calls_per_batch(call)) for name, (call, units) in OPERATIONS.items()}
    samples: dict[str, list[float]] = {name: [] for name in OPERATIONS}
    gc.collect()
    gc.disable()
    try:
        for number in range(ROUNDS):
            for name, (call, units, calls) in batches.items():
                if units > 1 and number % 4:  # long by itself: fewer rounds do
                    continue
                repeat = range(calls)
                start = time.thread_time()
                for _ in repeat:
                    call()
                samples[name].append((time.thread_time() - start) / calls / units * 1e6)
    finally:
        gc.enable()
    return {name: median(values) for name, values in samples.items()}


def _calls_per_batch(call: Call) -> int:
    call()
    start = time.perf_counter()
    call()
    return max(1, int(BATCH_SECONDS / (time.perf_counter() - start)))


def table(micros: dict[str, float]) -> str:
    lines = [
        "## Core",
        "",
        report.machine(),
        "",
        f"CPU time, medians of up to {ROUNDS} rounds in which all operations take turns. A ratio is measured / limit.",
        "",
        "| what | measured µs (median) | limit | ratio | target | met |",
        "|---|---:|---|---:|---:|---|",
    ]
    for row in ROWS:
        ours, limit = micros[row.operation], micros[row.limit]
        target = "–" if row.target is None else f"≤ {row.target:g}"
        met = "–" if row.target is None else "yes" if ours <= row.target * limit else "no"
        lines.append(f"| {row.what} | {ours:.2f} | {row.limit}: {limit:.2f} | {ours / limit:.2f} | {target} | {met} |")
    for row in (ROWS[2], ROWS[3]):
        ours = micros[row.operation]
        ratio, met = ours / MMR_ABSOLUTE_US, "yes" if ours <= MMR_ABSOLUTE_US else "no"
        lines.append(f"| {row.what}, absolute | {ours:.2f} | {MMR_ABSOLUTE_US:g} µs | {ratio:.2f} | ≤ 1 | {met} |")
    return "\n".join((*lines, "", *notes()))


def notes() -> list[str]:
    return [
        "- The primitives of seal and open are those that one run of the operation really calls, replayed with the",
        "  same arguments and nothing around them.",
        f"  - seal: {SEAL_PARTS.counts()}.",
        f"  - open, with the reader's public key at hand: {OPEN_PARTS.counts()}.",
        '- The target for the MMR, "6 µs-equivalents of SHA-256(65 B) per leaf", can be read as six such hashes or as',
        "  six microseconds. The table gives both. One append makes one node hash on average, of 78 B with its tag; a",
        "  root after every append adds one hash over all peaks, of 8 · 32 B on average here.",
        f"- A proof at 10⁶ leaves has {len(PROOF.path)} steps and {len(PROOF.peaks_after)} other peaks.",
        "- `cbor2.loads` alone accepts much that is not canonical; it is the limit of any reader that goes through it.",
    ]
