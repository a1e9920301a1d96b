"""The canonical form of states and their hash (D-93)."""

from dataclasses import dataclass
from typing import NamedTuple

import cbor2
import pytest

from veen.core.errors import MalformedError
from veen.core.hashing import Ht
from veen.core.objects.payload_hdr import PayloadHdr
from veen.overlays.framework.state import Free, from_tree, state_bytes, state_hash, to_tree


class Pair(NamedTuple):
    left: int
    right: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    zeta: int
    alpha: str | None = None
    pairs: dict[tuple[str, int], Pair] | None = None


def test_equal_states_have_equal_bytes_however_they_were_built():
    state = {"b": {2, 1}, "a": Part(zeta=1)}
    other = {"a": Part(alpha=None, zeta=1), "b": {1, 2}}
    assert state_bytes(state) == state_bytes(other) == cbor2.dumps({"a": {"zeta": 1}, "b": [1, 2]})


def test_keys_are_sorted_by_their_encoding_also_of_dataclasses():
    assert list(to_tree(Part(zeta=1, alpha="x"))) == ["zeta", "alpha"]  # shorter keys encode lower
    assert list(to_tree({b"\x01": 1, "a": 2, 300: 3, 7: 4})) == [7, 300, b"\x01", "a"]


@pytest.mark.req("SNAP-03")
def test_the_hash_names_the_class_of_the_state():
    assert state_hash("kv", {}) == Ht("veen/state-kv", b"\xa0")
    assert state_hash("kv", {}) != state_hash("crud", {})


@pytest.mark.parametrize("number", [2**64, -(2**64) - 1, 2**200, -(2**127), 2**63, -(2**63)])
def test_numbers_have_no_bound(number):
    assert from_tree(int, to_tree(number)) == number


def test_what_was_written_is_read_again_by_its_type():
    part = Part(zeta=2**70, pairs={("b", 1): Pair(1, None), ("a", 2): Pair(2, b"x")})
    assert from_tree(Part, to_tree(part, pairs=True)) == part
    kind = tuple[set[bytes], frozenset[int], list[bool], tuple[str, ...], PayloadHdr | None, Free]
    value = ({b"a"}, frozenset({1}), [True], ("x", "y"), PayloadHdr(schema=bytes(32)), Free({"b": 1, "a": None}))
    assert from_tree(kind, to_tree(value, pairs=True)) == value


@pytest.mark.parametrize(
    ("kind", "tree"),
    [
        (int, "1"),
        (bool, 1),
        (Part, {"zeta": 1, "more": 2}),
        (Part, {"alpha": "x"}),
        (Pair, [1]),
        (dict[str, int], {"a": 1}),
        (dict[str, int], [["a"]]),
        (tuple[int, int], [1]),
        (int | str, []),
        (PayloadHdr, b"\x00"),
        (object, 1),
    ],
)
def test_another_shape_is_refused(kind, tree):
    with pytest.raises((MalformedError, ValueError)):
        from_tree(kind, tree)


def test_what_has_no_canonical_form_is_a_mistake():
    with pytest.raises(TypeError, match="float"):
        to_tree(1.5)


def test_free_values_are_equal_by_their_encoding():
    assert Free({"a": 1, "b": 2}) == Free({"b": 2, "a": 1}) != Free({"a": 1})
    assert hash(Free([1])) == hash(Free([1]))
    assert Free([1]) != [1]
    assert Free.from_bytes(Free({"b": 1, "a": 2}).data).value == {"a": 2, "b": 1}
    assert repr(Free(1)) == "Free(1)"
