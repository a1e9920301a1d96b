"""One fuzz target per decoder and verifier of the core.

The law of all of them: whatever the bytes, the outcome is a value or a VeenError. A value that came from CBOR encodes
back to the same bytes (I10); one that came from JSON has a CBOR form that reads back as the same value. Verifiers must
moreover accept nothing but what was really signed, sealed or appended in `seeds`.

Time is watched: an input of n bytes may use BASE_SECONDS + n * SECONDS_PER_BYTE of CPU, instrumented code included.
That is far above what decoding takes, so only super-linear work comes near it.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import count
from pkgutil import walk_packages
from typing import Any, Final, TypeVar

import cbor2
from tests.core import strict_cbor
from tests.fuzz import seeds
from tests.products.vesn import log_builders as vesn_logs

from veen import core
from veen.core import cbor, labels
from veen.core.crypto import aead, hpke
from veen.core.errors import VeenError
from veen.core.hashing import H, u32be
from veen.core.limits import DEFAULT_LIMITS, Limits
from veen.core.objects.captoken import CapToken
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import ControlRecord
from veen.core.objects.envelopes import (
    CheckpointRequest,
    CheckpointResponse,
    ErrorEnvelope,
    ProofRequest,
    ProofResponse,
    ReceiptRequest,
    ReceiptResponse,
    StreamItem,
    StreamRequest,
    StreamResponse,
    SubmitRequest,
    SubmitResponse,
)
from veen.core.objects.evidence import Equivocation, Statement
from veen.core.objects.msg import Msg
from veen.core.objects.payload_hdr import PayloadHdr
from veen.core.objects.profile import Profile
from veen.core.objects.receipt import Receipt
from veen.core.objects.recognise import KINDS, parse_json, recognise
from veen.core.sealing.ciphertext import Attached, Attachment, Binding, Opened, Parts, open_msg
from veen.core.tree.proof import ConsistencyProof, MmrProof, RangeProof, prove_consistency, prove_inclusion, prove_range
from veen.core.wire import Wire
from veen.products.vesn.ledger import MmrProof as VesnProof
from veen.products.vesn.lines import StreamEntry, verify_stream
from veen.products.vesn.objects import RECORDS as VESN_RECORDS
from veen.products.vesn.objects import CapToken as VesnToken
from veen.products.vesn.objects import Checkpoint as VesnCheckpoint
from veen.products.vesn.portability import MemorySource, verify_set
from veen.products.vesn.sealing import Keystore as VesnKeystore

__all__ = ["BASE_SECONDS", "GROUPS", "SECONDS_PER_BYTE", "TARGETS", "WIRE_KINDS", "Target", "named"]

BASE_SECONDS: Final = 0.25
SECONDS_PER_BYTE: Final = 5e-6


def _all_kinds() -> tuple[type[Wire], ...]:
    """Every wire object that a module of the core defines: whoever adds one has it fuzzed."""
    modules = (import_module(module.name) for module in walk_packages(core.__path__, f"{core.__name__}."))
    return tuple(
        kind
        for module in modules
        for name, kind in vars(module).items()
        if isinstance(kind, type) and issubclass(kind, Wire) and hasattr(kind, "KIND")
        if kind.__module__ == module.__name__ and not name.startswith("_")
    )


WIRE_KINDS: Final = _all_kinds()

T = TypeVar("T")


class BrokenLawError(AssertionError):
    """A decoder or verifier did what it must never do."""


@dataclass(frozen=True, slots=True)
class Target:
    """A check of any bytes; raises nothing unless a law is broken."""

    name: str
    checks: tuple[Callable[[bytes], None], ...]
    seeds: tuple[bytes, ...]
    head: int = 0  # how many leading bytes steer the check and are not part of what is decoded

    def __call__(self, data: bytes) -> None:
        for check in self.checks:
            check(data)

    def watched(self, data: bytes) -> None:
        """The same under the bound on CPU time: for the fuzzer. Tests never judge by a clock."""
        for check in self.checks:
            start = time.thread_time()
            check(data)
            spent = time.thread_time() - start
            if spent > BASE_SECONDS + SECONDS_PER_BYTE * len(data):
                raise BrokenLawError(f"{self.name}: {spent:.2f} s of CPU for {len(data)} bytes")


def attempt(call: Callable[..., T], *args: Any, **kwargs: Any) -> T | VeenError:
    """The outcome of a call; every exception but a VeenError is a finding."""
    try:
        return call(*args, **kwargs)
    except VeenError as exc:
        if not str(exc) or not exc.hint:
            raise BrokenLawError(f"{type(exc).__name__} has nothing to say") from exc
        return exc


def require(holds: bool, law: str) -> None:
    if not holds:
        raise BrokenLawError(law)


# --- CBOR -----------------------------------------------------------------------------------------------------


def check_decode(data: bytes) -> None:
    """`cbor.decode` accepts exactly what the oracle accepts, and reads the same value."""
    ours = attempt(cbor.decode, data)
    try:
        oracle = strict_cbor.decode(data)
    except strict_cbor.RefusedError as exc:
        require(isinstance(ours, VeenError), f"accepted, but the oracle says {exc.reason}")
        return
    if isinstance(ours, VeenError):
        raise BrokenLawError("refused, but the oracle accepts") from ours
    require(strict_cbor.same(ours, oracle), "another value than the oracle's")
    require(cbor.encode(ours) == data, "encodes to other bytes (I10)")
    require(cbor.item_end(data) == len(data), "item_end does not see the one item")
    ordered = cbor.sort_keys(ours)
    require(cbor.is_sorted(ordered) and ordered == ours, "sort_keys does not sort, or changes a value")
    require(cbor.is_sorted(ours) == (cbor.encode(ordered) == data), "is_sorted and encode_sorted disagree")


def check_sequence(data: bytes) -> None:
    """`sequence` cuts its input and invents nothing; each cut is where `item_end` says."""
    ends = attempt(cbor.item_end, data)
    if not isinstance(ends, VeenError):
        require(0 < ends <= len(data), "an item ends outside of the data")
        require(attempt(cbor.item_end, data[:ends]) == ends, "an item depends on the bytes after it")
    items = attempt(lambda: list(cbor.sequence(data)))
    if not isinstance(items, VeenError):
        require(all(items) and b"".join(items) == data, "the items of a sequence are not its bytes")


# --- wire objects ---------------------------------------------------------------------------------------------


def from_bytes_of(kind: type[Wire]) -> Callable[[bytes], None]:
    """Value or FormatError; a value gives its bytes back and survives its JSON form."""

    def check(data: bytes) -> None:
        value = attempt(kind.from_bytes, data)
        if isinstance(value, VeenError):
            return
        require(value.to_bytes() == _canonical(kind, data), f"{kind.KIND}: encodes to other bytes (I10)")
        require(kind.from_json(parse_json(_json(value))) == value, f"{kind.KIND}: JSON form reads back differently")

    return check


def from_json_of(kind: type[Wire]) -> Callable[[bytes], None]:
    """Value or FormatError; a value can be written in both forms and is the same when read back."""

    def check(data: bytes) -> None:
        tree = attempt(parse_json, data)
        if isinstance(tree, VeenError):
            return
        value = attempt(kind.from_json, tree)
        if isinstance(value, VeenError):
            return
        require(kind.from_bytes(value.to_bytes()) == value, f"{kind.KIND}: CBOR form reads back differently")
        require(kind.from_json(parse_json(_json(value))) == value, f"{kind.KIND}: JSON form reads back differently")

    return check


def _json(value: Wire) -> bytes:
    return json.dumps(value.to_json()).encode()


def _canonical(kind: type[Wire], data: bytes) -> bytes:
    """The bytes themselves; in bodies alone, null on an optional field is read as absent (D-04)."""
    return cbor2.dumps(_without_nulls(cbor2.loads(data))) if kind.FORM == "body" else data


def _without_nulls(item: Any) -> Any:
    if isinstance(item, dict):
        return {key: _without_nulls(value) for key, value in item.items() if value is not None}
    return [_without_nulls(element) for element in item] if isinstance(item, list) else item


def check_msg_paths(data: bytes) -> None:
    """The fast reader of MSG and the general one agree on value and on fault."""
    fast = attempt(Msg.from_bytes, data)
    # Wire.from_bytes, bound to Msg but past its own from_bytes.
    general: Msg | VeenError = attempt(super(Msg, Msg).from_bytes, data)
    if isinstance(fast, VeenError) or isinstance(general, VeenError):
        require(repr(fast) == repr(general), f"two readers, two verdicts: {fast!s:.200} and {general!s:.200}")
        return
    require(fast == general, "two readers, two values")
    require(fast.to_bytes() == cbor.encode(fast.to_tree()) == data, "two writers, two encodings")
    require(fast.signing_digest() == H(b"veen/sig\x00" + cbor.encode(fast.to_tree()[:-1])), "two signing digests")


def check_submit_split(data: bytes) -> None:
    """`split` finds the MSG that the general reader finds."""
    msg = attempt(SubmitRequest.split, data)
    whole = attempt(SubmitRequest.from_bytes, data)
    if isinstance(whole, SubmitRequest):
        require(msg == whole.msg.to_bytes(), "split cuts out something else than the MSG")
    elif isinstance(msg, bytes):
        require(data[4:] == msg, "split changes the bytes of the MSG")
        require(isinstance(attempt(Msg.from_bytes, msg), VeenError), "the MSG is good but the request is not")


def check_recognise(data: bytes) -> None:
    """What is recognised is of all the kinds it is said to be."""
    result = attempt(recognise, data)
    if isinstance(result, VeenError):
        return
    encoded = result.obj.to_bytes()
    kinds = {kind.KIND: kind for kind in KINDS}
    if result.encoding == "cbor":
        require(encoded == data, "encodes to other bytes (I10)")
        for kind in result.also:
            require(kinds[kind].from_bytes(data).to_bytes() == data, "also another kind, but with other bytes")
    else:
        again = recognise(encoded)
        require(result.obj.KIND in (again.obj.KIND, *again.also), "another kind in CBOR than in JSON")


def check_limits(data: bytes) -> None:
    tree = attempt(parse_json, data)
    if isinstance(tree, VeenError):
        return
    limits = attempt(Limits.from_json, tree)
    if isinstance(limits, Limits):
        require(Limits.from_json(limits.to_json()) == limits, "limits read back differently")


def check_stream_name(data: bytes) -> None:
    """Any text a command line can hold names a stream of 32 bytes, or is refused."""
    stream_id = attempt(labels.stream_id_of, data.decode("utf-8", "surrogateescape"))
    require(isinstance(stream_id, VeenError) or len(stream_id) == 32, "a stream id is not 32 bytes")


# --- ciphertexts ----------------------------------------------------------------------------------------------

_SMALL_LIMITS: Final = replace(DEFAULT_LIMITS, max_hdr_bytes=64, max_body_bytes=128)
_GENUINE: Final = {Parts.split(msg.ciphertext).aead_ct_body for msg in seeds.MESSAGES if msg.ciphertext}


def check_split(data: bytes) -> None:
    """The parts are the ciphertext, and within the limits."""
    for limits in (DEFAULT_LIMITS, _SMALL_LIMITS):
        parts = attempt(Parts.split, data, limits)
        if isinstance(parts, VeenError):
            continue
        lengths = u32be(len(parts.hpke_ct_hdr)) + u32be(len(parts.aead_ct_body))
        whole = parts.enc + lengths + parts.hpke_ct_hdr + parts.aead_ct_body + parts.padding
        require(whole == data, "the parts are not the ciphertext")
        require(not parts.padding.strip(b"\x00"), "padding that is not zero")
        require(len(parts.hpke_ct_hdr) <= limits.max_hdr_bytes, "a header above its limit")
        require(len(parts.aead_ct_body) <= limits.max_body_bytes, "a body above its limit")


def check_open(data: bytes) -> None:
    """A reader opens genuine ciphertexts only, and survives whatever a malicious sender seals for it.

    The first byte steers: 0 the rest is the ciphertext, 1 it is the header that a sender sealed, 2 it is an attachment.
    """
    mode, rest = data[:1], data[1:]
    if mode == b"\x01":
        _check_open_sealed_header(rest)
    elif mode == b"\x02":
        opened = attempt(open_msg, seeds.READER_SK, seeds.PLAIN_MSG, attachments=[rest, b""])
        require(isinstance(opened, VeenError), "opened an attachment that no one sealed")
    else:
        msg = replace(seeds.PLAIN_MSG, ciphertext=rest, ct_hash=H(rest))
        for place in (msg, replace(msg, client_seq=24, prev_ack=12)):
            opened = attempt(open_msg, seeds.READER_SK, place, reader_pk=seeds.READER_PK)
            if isinstance(opened, Opened):
                require(Parts.split(rest).aead_ct_body in _GENUINE, "opened a ciphertext that no one sealed")


def _check_open_sealed_header(header: bytes) -> None:
    enc, context = hpke.setup_sender(seeds.READER_PK, H(header))
    binding = Binding.of(seeds.PLAIN_MSG)
    sealed = context.seal(binding.aad(), header)
    body = aead.seal(context.export(b"veen/body-k", 32), binding.nonce(), binding.aad(), b"body")
    ciphertext = enc + u32be(len(sealed)) + u32be(len(body)) + sealed + body
    msg = replace(seeds.PLAIN_MSG, ciphertext=ciphertext, ct_hash=H(ciphertext))
    opened = attempt(open_msg, seeds.READER_SK, msg, reader_pk=seeds.READER_PK)
    if isinstance(opened, Opened):
        require(opened.hdr.to_bytes() == header and opened.body == b"body", "opened something else than was sealed")


# --- verifiers ------------------------------------------------------------------------------------------------


def _sizes(data: bytes) -> tuple[list[int], bytes]:
    """Three numbers and the rest. Mostly numbers within the tree, now and then any of 64 bits."""
    rest = data[3:]
    numbers = [byte if byte < 64 else int.from_bytes(H(bytes((byte,)))[: byte % 9], "big") for byte in data[:3]]
    return numbers, rest


def _root(size: int) -> bytes:
    """The real root where there is one; past the end of the tree, one that nobody can reach."""
    return seeds.TREE.root(size) if 1 <= size <= seeds.TREE.size else H(b"nothing hashes to this")


def check_inclusion(data: bytes) -> None:
    """A proof that passes is the one minimal proof of a leaf that is there (spec §5.4)."""
    (seq, size, claim), rest = _sizes(data.ljust(3, b"\x00"))
    proof = attempt(MmrProof.from_bytes, rest)
    if isinstance(proof, VeenError):
        return
    leaves = {proof.leaf_hash, seeds.LEAVES[claim % len(seeds.LEAVES)]}
    for leaf in leaves:
        verdict = attempt(proof.verify, leaf_hash=leaf, stream_seq=seq, tree_size=size, expected_root=_root(size))
        if verdict is None:
            require(leaf == seeds.LEAVES[seq - 1], "proved a leaf that is elsewhere")
            require(proof == prove_inclusion(seeds.TREE.node_at, seq, size), "a second proof of the same leaf")


def check_consistency(data: bytes) -> None:
    """A proof that passes is the one minimal proof between two sizes."""
    (small, large, own), rest = _sizes(data.ljust(3, b"\x00"))
    proof = attempt(ConsistencyProof.from_bytes, rest)
    if isinstance(proof, VeenError):
        return
    if own & 1:  # the sizes that the proof itself names
        small, large = proof.from_size, proof.to_size
    roots = {"from_root": _root(small), "to_root": _root(large)}
    if attempt(proof.verify, from_size=small, to_size=large, **roots) is None:
        require(proof == prove_consistency(seeds.TREE.node_at, small, large), "a second proof between two sizes")


def check_range(data: bytes) -> None:
    """A proof that passes is the one minimal proof of these leaves at this place."""
    (first, count, size), rest = _sizes(data.ljust(3, b"\x00"))
    proof = attempt(RangeProof.from_bytes, rest)
    if isinstance(proof, VeenError):
        return
    if size == 0:  # the place that the proof itself names
        first, count, size = proof.first_seq, proof.last_seq - proof.first_seq + 1, proof.tree_size
    leaves = seeds.LEAVES[max(first - 1, 0) :][: max(min(count, 50), 0)]
    verdict = attempt(proof.verify, leaves=leaves, first_seq=first, tree_size=size, expected_root=_root(size))
    if verdict is None:
        require(leaves == seeds.LEAVES[first - 1 : proof.last_seq], "proved other leaves")
        expected = prove_range(seeds.TREE.node_at, first, proof.last_seq, size)
        require(proof == expected, "a second proof of the same range")


def check_token(data: bytes) -> None:
    """Only tokens that were issued verify."""
    token = attempt(CapToken.from_bytes, data)
    if isinstance(token, CapToken) and attempt(token.verify) is None:
        require(token in seeds.TOKENS, "a forged cap_token verifies")


def _without_witnesses(statement: Statement) -> Statement:
    return replace(statement, witness_sigs=None) if isinstance(statement, Checkpoint) else statement


_SIGNED: Final = {_without_witnesses(statement).to_bytes() for statement in (*seeds.RECEIPTS, *seeds.CHECKPOINTS)}


def check_evidence(data: bytes) -> None:
    """Only what a hub signed convicts it, and only of two things about one position."""
    evidence = attempt(Equivocation.from_bytes, data)
    if isinstance(evidence, VeenError) or attempt(evidence.verify) is not None:
        return
    # Witness signatures are no part of what the hub says, so they may differ.
    first, second = (_without_witnesses(statement).to_bytes() for statement in (evidence.first, evidence.second))
    require({first, second} <= _SIGNED, "convicted by a statement that no hub made")
    require(first != second, "convicted by one statement")


# --- VESN -----------------------------------------------------------------------------------------------------

VESN_KINDS: Final[tuple[type[Wire], ...]] = (*VESN_RECORDS, VesnKeystore, VesnProof)
_VESN_FILES: Final = vesn_logs.small_set()
_VESN_NAMES: Final = sorted(_VESN_FILES)
_VESN_LINES: Final = vesn_logs.lines((3,))
_VESN_ENTRIES: Final = [(entry.receipt, entry.msg) for entry in map(StreamEntry.from_line, _VESN_LINES)]


def check_vesn_set(data: bytes) -> None:
    """Whatever a file of a set holds, there is a verdict, and it is good for genuine records alone.

    The first byte chooses the file.
    """
    name = _VESN_NAMES[data[0] % len(_VESN_NAMES)] if data else "receipts.cborl"
    report = verify_set(MemorySource({**_VESN_FILES, name: data[1:]}), vesn_logs.TRUST)
    require(report.verdict != "verified" or _is_genuine(name, data[1:]), f"an altered {name} verifies")
    json.dumps(report.to_json())


def _is_genuine(name: str, data: bytes) -> bool:
    """Checkpoints without co-signatures, and tokens as they were before a link was added, are genuine too."""
    if name == "checkpoints.cborl":
        statements = {replace(VesnCheckpoint.from_bytes(raw), witness_sigs=None) for raw in cbor.sequence(data)}
        signed = {
            replace(VesnCheckpoint.from_bytes(raw), witness_sigs=None) for raw in cbor.sequence(_VESN_FILES[name])
        }
        return statements == signed
    if name == "cap_tokens.cborl":
        tokens = [VesnToken.from_bytes(raw) for raw in cbor.sequence(data)]
        return all(
            replace(vesn_logs.TOKEN, sig_chain=vesn_logs.TOKEN.sig_chain[: len(token.sig_chain)]) == token
            for token in tokens
        )
    return bool(data == _VESN_FILES[name])


def check_vesn_line(data: bytes) -> None:
    """A line is an entry or a FormatError; an entry reads back as the same, and only genuine ones verify."""
    entry = attempt(StreamEntry.from_line, data)
    if isinstance(entry, VeenError):
        return
    require(StreamEntry.from_line(entry.to_line()) == entry, "an entry reads back differently")
    if verify_stream([data], vesn_logs.TRUST).verdict == "verified":
        require((entry.receipt, entry.msg) in _VESN_ENTRIES, "a made-up entry verifies")


# --- the table ------------------------------------------------------------------------------------------------


def _slug(kind: type[Wire]) -> str:
    return "".join("-" + char.lower() if char.isupper() else char for char in kind.__name__).lstrip("-")


def _target(name: str, check: Callable[[bytes], None], corpus: Sequence[bytes], head: int = 0) -> Target:
    return Target(name, (check,), tuple(corpus), head)


_EVERY_BYTES: Final = seeds.bytes_seeds(*seeds.OBJECTS)
_EVERY_JSON: Final = seeds.json_seeds(*seeds.OBJECTS)
_CIPHERTEXTS: Final = tuple(msg.ciphertext for msg in seeds.MESSAGES)


def _steered(head: Sequence[int], kind: type[Wire]) -> tuple[bytes, ...]:
    return tuple(bytes(head) + data for data in seeds.bytes_seeds(kind))


TARGETS: Final[dict[str, Target]] = {
    target.name: target
    for target in (
        _target("cbor.decode", check_decode, _EVERY_BYTES),
        _target("cbor.sequence", check_sequence, (*_EVERY_BYTES, b"".join(_EVERY_BYTES[:4]))),
        *(_target(f"{_slug(kind)}.bytes", from_bytes_of(kind), seeds.bytes_seeds(kind)) for kind in WIRE_KINDS),
        *(_target(f"{_slug(kind)}.json", from_json_of(kind), seeds.json_seeds(kind)) for kind in WIRE_KINDS),
        _target("msg.paths", check_msg_paths, seeds.bytes_seeds(Msg)),
        _target("submit-request.split", check_submit_split, seeds.bytes_seeds(SubmitRequest)),
        _target("recognise", check_recognise, (*_EVERY_BYTES, *_EVERY_JSON)),
        _target("ciphertext.split", check_split, _CIPHERTEXTS),
        _target(
            "ciphertext.open",
            check_open,
            (
                *(b"\x00" + ciphertext for ciphertext in _CIPHERTEXTS),
                *_steered((1,), PayloadHdr),
                b"\x02an attachment",
            ),
            head=1,
        ),
        _target(
            "mmr-proof.verify",
            check_inclusion,
            [
                bytes((seq, size, seq - 1)) + prove_inclusion(seeds.TREE.node_at, seq, size).to_bytes()
                for seq, size in ((1, 1), (1, 2), (17, 43), (43, 43), (32, 32))
            ],
            head=3,
        ),
        _target("consistency-proof.verify", check_consistency, _steered((5, 43, 1), ConsistencyProof), head=3),
        _target("range-proof.verify", check_range, _steered((6, 8, 0), RangeProof), head=3),
        _target("cap-token.verify", check_token, seeds.bytes_seeds(CapToken)),
        _target("equivocation.verify", check_evidence, seeds.bytes_seeds(Equivocation)),
        *(_target(f"vesn-{_slug(kind)}.bytes", from_bytes_of(kind), vesn_logs.samples(kind)) for kind in VESN_KINDS),
        *(
            _target(
                f"vesn-{_slug(kind)}.json",
                from_json_of(kind),
                [json.dumps(kind.from_bytes(data).to_json()).encode() for data in vesn_logs.samples(kind)],
            )
            for kind in VESN_KINDS
        ),
        _target(
            "vesn.set",
            check_vesn_set,
            [bytes((number,)) + _VESN_FILES[name] for number, name in enumerate(_VESN_NAMES)],
            head=1,
        ),
        _target("vesn.line", check_vesn_line, _VESN_LINES),
        _target("limits.json", check_limits, (json.dumps(DEFAULT_LIMITS.to_json()).encode(), b"{}")),
        _target("stream-name", check_stream_name, (b"orders", b"0" * 64, "größe".encode(), H(b"id").hex().encode())),
    )
}


def _group(name: str, *kinds: type[Wire], more: Sequence[str] = ()) -> Target:
    """Targets that fit one run: all see every input."""
    names = [f"{_slug(kind)}.{form}" for kind in kinds for form in ("bytes", "json")]
    members = [TARGETS[member] for member in (*names, *more)]
    corpus = dict.fromkeys(seed for member in members for seed in member.seeds)
    return Target(name, tuple(check for member in members for check in member.checks), tuple(corpus))


_GROUPED: Final = (
    TARGETS["cbor.decode"],
    TARGETS["cbor.sequence"],
    _group("msg", Msg, more=["msg.paths"]),
    _group("receipt", Receipt),
    _group("checkpoint", Checkpoint),
    _group("control-record", ControlRecord),
    _group("proofs", MmrProof, ConsistencyProof, RangeProof),
    _group("cap-token", CapToken),
    _group("equivocation", Equivocation),
    _group("headers", Profile, PayloadHdr),
    _group("submit", SubmitRequest, SubmitResponse, more=["submit-request.split"]),
    _group("requests", StreamRequest, ReceiptRequest, ProofRequest, CheckpointRequest),
    _group("responses", ReceiptResponse, ProofResponse, CheckpointResponse),
    _group("stream-page", StreamItem, StreamResponse),
    _group("error-envelope", ErrorEnvelope),
    _group("attached", Attached, Attachment),
    TARGETS["recognise"],
    TARGETS["ciphertext.split"],
    TARGETS["ciphertext.open"],
    TARGETS["mmr-proof.verify"],
    TARGETS["consistency-proof.verify"],
    TARGETS["range-proof.verify"],
    TARGETS["cap-token.verify"],
    TARGETS["equivocation.verify"],
    _group("names-and-limits", more=["limits.json", "stream-name"]),
    _group("vesn-records", more=[f"vesn-{_slug(kind)}.{form}" for kind in VESN_KINDS for form in ("bytes", "json")]),
    TARGETS["vesn.set"],
    TARGETS["vesn.line"],
)


def _further() -> list[Target]:
    """Groups for the kinds that no group names: parts of other objects, and newcomers."""
    grouped = {check for group in _GROUPED for check in group.checks}
    rest = [kind for kind in WIRE_KINDS if grouped.isdisjoint(TARGETS[f"{_slug(kind)}.bytes"].checks)]
    return [
        _group(f"further-{number}", *rest[start : start + _KINDS_PER_GROUP])
        for number, start in zip(count(1), range(0, len(rest), _KINDS_PER_GROUP), strict=False)
    ]


_KINDS_PER_GROUP: Final = 12

# What `run.py` runs: every target is in exactly one group.
GROUPS: Final[dict[str, Target]] = {group.name: group for group in (*_GROUPED, *_further())}


def named(name: str) -> Target:
    """A group or a single target; KeyError if there is no such name."""
    return GROUPS[name] if name in GROUPS else TARGETS[name]
