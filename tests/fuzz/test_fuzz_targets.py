"""The fuzz targets without a fuzzer: their seeds, a few hundred mutants each, and inputs that try to exhaust us."""

import contextlib
import gc
import json
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from random import Random

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples, spread
from tests.fuzz import mutate, run, seeds, targets

from veen.core import cbor
from veen.core.errors import FormatError, MalformedError
from veen.core.objects.control import BODIES, ControlRecord, LimitsSet
from veen.core.objects.envelopes import ErrorEnvelope, StreamItem
from veen.core.objects.msg import Msg
from veen.core.objects.recognise import KINDS, recognise
from veen.core.sealing.ciphertext import Attached

MUTANTS_PER_EXAMPLE = 5
# Peak of Python's allocations while reading, per byte of input. An empty array is one byte on the wire and 64 in
# memory, so no reader that builds a tree stays far below these; what matters is that the size does not change them.
DECODE_BYTES_PER_BYTE = 128
READ_BYTES_PER_BYTE = 256
RECOGNISE_BYTES_PER_BYTE = 1024
FIXED_BYTES = 128 * 1024  # exceptions, buffers of the decoder, caches filled by the first call


@pytest.mark.parametrize("name", spread(targets.TARGETS, 80))
def test_every_target_holds_on_its_seeds(name):
    """Seeds are valid, so this also shows that the checks are reached at all."""
    target = targets.TARGETS[name]
    assert target.seeds
    for seed in target.seeds:
        target(seed)


def test_there_is_a_target_for_every_decoder():
    """Kinds are found by looking through the modules; this shows that the look is thorough."""
    assert {*KINDS, *BODIES.values(), StreamItem, Attached} <= set(targets.WIRE_KINDS)
    assert len({target.checks for target in targets.TARGETS.values()}) == len(targets.TARGETS)
    for kind in KINDS:
        assert kind in seeds.OBJECTS, f"{kind.__name__} has only guessed seeds"


def test_every_target_runs_in_exactly_one_group():
    checks = [check for group in targets.GROUPS.values() for check in group.checks]
    assert len(checks) == len(set(checks)) == len(targets.TARGETS)
    assert set(checks) == {check for target in targets.TARGETS.values() for check in target.checks}


@pytest.mark.req("TS0-05")
@pytest.mark.parametrize("name", targets.GROUPS)
@examples(60)
@given(data=st.data(), rng=st.randoms(use_true_random=False))
def test_no_mutant_gets_anything_but_a_value_or_a_veen_error(name, data, rng):
    """TS0.3: malformed maps, over-long integers, indefinite lengths, truncation; and the laws of `targets`."""
    target = targets.GROUPS[name]
    mutant = data.draw(st.sampled_from(target.seeds), label="seed")
    for _ in range(MUTANTS_PER_EXAMPLE):
        mutant = mutate.mutate(mutant, rng, head=target.head)
        target(mutant)


@pytest.mark.req("TS0-05")
def test_the_mutants_break_every_rule_of_deterministic_encoding():
    """A fuzzer that never writes an over-long integer would show nothing."""
    rng = Random(5)
    seed = cbor2.dumps({1: [2**16, b"bytes", "text"], 2: {3: -1}})
    refusals = set()
    for _ in range(10_000):
        try:
            cbor.decode(mutate.mutate(seed, rng))
        except FormatError as exc:
            refusals.add(str(exc))
    said = "\n".join(refusals)
    for reason in ("shortest encoding", "indefinite", "middle of an item", "tags", "uplicate", "map key of type"):
        assert reason in said


# --- memory and depth -------------------------------------------------------------------------------------------


def _head(major: int, count: int) -> bytes:
    encoded = cbor.uint(count)
    return bytes((encoded[0] | major << 5,)) + encoded[1:]


def _array(item: bytes, size: int) -> bytes:
    count = size // len(item)
    return _head(4, count) + item * count


# Bytes of about the given size that cost as much as possible to read.
ADVERSARIES: dict[str, Callable[[int], bytes]] = {
    "empty arrays": lambda size: _array(b"\x80", size),
    "empty maps": lambda size: _array(b"\xa0", size),
    "small maps": lambda size: _array(b"\xa1\x00\x80", size),
    "towers of arrays": lambda size: _array(b"\x81" * 31 + b"\x80", size),
    "towers of maps": lambda size: _array(b"\xa1\x00" * 30 + b"\xa0", size),
    "small integers": lambda size: _array(b"\x00", size),
    "wide integers": lambda size: _array(b"\x1b" + b"\xff" * 8, size),
    "negative integers": lambda size: _array(b"\x3b" + b"\xff" * 8, size),
    "short texts": lambda size: _array(b"\x62\xc3\xa9", size),
    "short byte strings": lambda size: _array(b"\x41\x00", size),
    "one long text": lambda size: _head(3, size) + b"a" * size,
    "one wide text": lambda size: _head(3, size // 4 * 4) + "😀".encode() * (size // 4),
    "one byte string": lambda size: _head(2, size) + bytes(size),
    "a map of texts": lambda size: _head(5, size // 6) + b"".join(b"\x64%04x\x80" % n for n in range(size // 6)),
    "a map of integers": lambda size: _head(5, size // 4) + b"".join(cbor.uint(n) + b"\x80" for n in range(size // 4)),
    "an array without its items": lambda size: b"\x9b" + b"\xff" * 8 + b"\x80" * size,
    "a text without its bytes": lambda size: b"\x7b" + b"\x7f" * 8 + b"a" * size,
    "a map without its items": lambda size: b"\xbb" + b"\x7f" * 8 + b"\x00" * size,
    "zeros": bytes,
    "ones": lambda size: b"\xff" * size,
    "JSON arrays": lambda size: b"[" + b",".join([b"[]"] * (size // 3)) + b"]",
    "JSON objects": lambda size: b"[" + b",".join([b'{"a":[]}'] * (size // 9)) + b"]",
    "JSON text": lambda size: b'{"message":"' + b"a" * size + b'"}',
    "JSON names": lambda size: b"{" + b",".join(b'"%04x":[]' % n for n in range(size // 10)) + b"}",
    "JSON digits": lambda size: b"[" + b"9" * size + b"]",
}


def _peak_bytes(read: Callable[[bytes], object], data: bytes) -> int:
    gc.disable()  # or the peak would depend on when it runs
    tracemalloc.start()
    try:
        with contextlib.suppress(FormatError):
            read(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        gc.enable()


@pytest.mark.parametrize("size", spread([2_000, 12_000], 1))
@pytest.mark.parametrize("name", ADVERSARIES)
def test_memory_is_linear_in_the_input(name, size):
    """Design §9.6: bytes from outside never end in unbounded memory."""
    data = ADVERSARIES[name](size)
    readers: list[tuple[Callable[[bytes], object], int]] = [
        (cbor.item_end, 1),
        (cbor.decode, DECODE_BYTES_PER_BYTE),
        (recognise, RECOGNISE_BYTES_PER_BYTE),
        # One of each form: arrays, maps, bodies, and one that chooses its body by name.
        *((kind.from_bytes, READ_BYTES_PER_BYTE) for kind in (Msg, ErrorEnvelope, Attached, ControlRecord)),
    ]
    for read, bytes_per_byte in readers:
        peak = _peak_bytes(read, data)
        assert peak <= FIXED_BYTES + bytes_per_byte * len(data), f"{read}: {peak / len(data):.0f} bytes per byte"


NESTED: dict[str, Callable[[int], bytes]] = {
    "arrays": lambda depth: b"\x81" * depth + b"\x80",
    "maps": lambda depth: b"\xa1\x00" * depth + b"\xa0",
    "maps in keys": lambda depth: b"\xa1" * depth + b"\x00" * (depth + 1),
    "indefinite arrays": lambda depth: b"\x9f" * depth + b"\xff" * depth,
    "tags": lambda depth: b"\xc1" * depth + b"\x00",
    "JSON arrays": lambda depth: b"[" * depth + b"]" * depth,
    "JSON objects": lambda depth: b'{"a":' * depth + b"0" + b"}" * depth,
    "JSON detail": lambda depth: b'{"ver":1,"code":"","message":"","detail":{"a":%b%b}}' % (b"[" * depth, b"]" * depth),
    "unclosed": lambda depth: b"\x81" * depth,
    "JSON unclosed": lambda depth: b"[" * depth,
}


@pytest.mark.parametrize("depth", [31, 32, 33, 34, 100, 300, 400, 600, sys.getrecursionlimit() + 50, 100_000])
@pytest.mark.parametrize("name", NESTED)
def test_depth_never_overflows_the_stack(name, depth):
    """D-06: deeper than 32 is refused, by name, and not by Python running out of stack."""
    data = NESTED[name](depth)
    for target in ("cbor.decode", "cbor.sequence", "recognise", "control-record", "error-envelope", "attached"):
        targets.named(target)(data)


def test_what_json_can_say_cbor_can_carry():
    """The deepest JSON that is accepted has a CBOR form that is accepted."""
    for depth in range(1, 40):
        data = json.dumps({"ver": 1, "code": "", "message": "", "detail": {"a": _nested(depth)}}).encode()
        targets.TARGETS["error-envelope.json"](data)


def _nested(depth: int) -> object:
    return [_nested(depth - 1)] if depth else []


# --- inputs that once broke a law -----------------------------------------------------------------------------

_ERROR = '{"ver":1,"code":"","message":"%s","detail":{"a":%s}}'


def _limits_of_depth(depth: int) -> bytes:
    record = next(obj for obj in seeds.OBJECTS[ControlRecord] if isinstance(getattr(obj, "body", None), LimitsSet))
    tree = record.to_json()
    tree[5] = {"limits": {"a": _nested(depth)}}
    return json.dumps(tree).encode()


FOUND = {
    "a lone surrogate in a text": ("error-envelope.json", (_ERROR % (r"\ud800", "1")).encode()),
    "a lone surrogate in a name": ("error-envelope.json", (_ERROR % ("", r'{"\ud800":1}')).encode()),
    "an integer of 65 bits": ("error-envelope.json", (_ERROR % ("", 2**64)).encode()),
    "JSON deeper than CBOR may be": ("error-envelope.json", (_ERROR % ("", "[" * 40 + "]" * 40)).encode()),
    "limits deeper than CBOR may be": ("control-record.json", _limits_of_depth(30)),
    "JSON too deep for recursion": ("error-envelope.json", (_ERROR % ("", "[" * 400 + "]" * 400)).encode()),
    "a stream name of 64 blanks": ("stream-name", b" " * 64),
    "hex with blanks between": ("stream-name", b"ab " * 21 + b" "),
    "a stream name that is not UTF-8": ("stream-name", b"\xff"),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_fuzzing_found_stays_fixed(name):
    target, data = FOUND[name]
    targets.TARGETS[target](data)


def test_the_fast_reader_of_msg_has_the_size_limit_of_the_general_one():
    msg = seeds.PLAIN_MSG
    over = cbor.MAX_ITEM_BYTES - len(msg.to_bytes()) + len(msg.ciphertext)
    data = replace(msg, ciphertext=bytes(over)).to_bytes()
    assert len(data) > cbor.MAX_ITEM_BYTES
    targets.TARGETS["msg.paths"](data)


def _colliding(bits: int) -> bytes:
    """A map whose integer keys all start their search for a free slot in one long run of taken ones.

    An integer is its own hash, so whoever knows CPython's dict can choose keys that make each insertion walk
    through half of the table: quadratic work. Text and byte strings are hashed with a secret and cannot do this.
    """
    size = 1 << bits
    mask = size - 1
    order = [0]  # the order in which a search visits the slots once the hash is used up
    for _ in range(mask):
        order.append((order[-1] * 5 + 1) & mask)
    chosen = set(order[: size // 2])
    early = set(order[: size // 8])
    keys, candidate = order[: size // 2], size
    while len(keys) < size * 2 // 3 - 2:
        candidate += 1
        slot, rest = candidate & mask, candidate
        while slot in chosen and rest:
            rest >>= 5
            slot = (slot * 5 + rest + 1) & mask
        if not rest and slot in early:
            keys.append(candidate)
    return _head(5, len(keys)) + b"".join(cbor.uint(key) + b"\x00" for key in keys)


def test_keys_that_collide_are_refused_before_a_map_is_built_of_them():
    """Design §9.6: half a megabyte of chosen keys would take quadratic time."""
    with pytest.raises(MalformedError, match="map of more than"):
        cbor.decode(_colliding(17))


# --- the runner -------------------------------------------------------------------------------------------------


def _run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, run.__file__, *args], capture_output=True, text=True, check=False)


def test_the_runner_lists_every_target():
    assert set(_run("--list").stdout.split()) == {*targets.GROUPS, *targets.TARGETS}


def test_the_runner_replays_an_input_without_atheris(tmp_path):
    hexfile = tmp_path / "input.hex"
    hexfile.write_text(seeds.PLAIN_MSG.to_bytes().hex() + "\n", "ascii")
    replayed = _run("--replay", "msg.bytes", str(hexfile))
    assert (replayed.returncode, replayed.stdout) == (0, "msg.bytes: ok\n")


def test_the_runner_names_a_target_that_does_not_exist():
    refused = _run("--targets", "nothing")
    assert refused.returncode == 2
    assert "no target 'nothing'" in refused.stderr
