"""Mutations that know CBOR and JSON, so that damaged inputs get past the first byte.

`mutate` changes one value of the tree, and writes the tree with an encoder that now and then breaks a rule of
deterministic encoding: over-long integers and lengths, indefinite lengths, tags, repeated keys (TS0.3). What is no tree
is changed bytewise. The parsing here is cbor2's and json's own: code under test must not choose its own inputs.
"""

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

import cbor2

__all__ = ["mutate"]

# How often the encoder breaks a rule, per item. Most mutants should be canonical, or nothing behind the codec is seen.
_WARP: Final = 0.004
_HEADS: Final = (0x00, 0x01, 0x18, 0x1B, 0x58, 0x80, 0x9F, 0xA0, 0xF6, 0xFF)
_INTS: Final = (0, 1, 2, 23, 24, 255, 256, 2**16, 2**32 - 1, 2**32, 2**53, 2**63, 2**64 - 1, -1, -(2**63), -(2**64))
_TEXTS: Final = ("", "ver", "a", "é", "\x00", "\ud800", "A" * 64, "0" * 63, " " * 64, "limits.set", "x" * 300)


class _Pairs(list[tuple[Any, Any]]):
    """A map as it is written: order kept, keys possibly repeated."""


def mutate(data: bytes, rng: Random, *, head: int = 0) -> bytes:
    """A neighbour of `data`. The first `head` bytes steer a target and are changed apart from the rest."""
    steer, body = data[:head], data[head:]
    if head and rng.random() < 0.2:
        steer = bytes(rng.randrange(256) if rng.random() < 0.5 else byte for byte in steer)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        body = _mutate_body(body, rng)
    return steer + body


def _mutate_body(data: bytes, rng: Random) -> bytes:
    if rng.random() < 0.3:
        return _mutate_raw(data, rng)
    if data[:1] in (b"{", b"["):
        try:
            tree = _thaw(json.loads(data))
        except (ValueError, RecursionError):
            return _mutate_raw(data, rng)
        return _write_json(_mutate_tree(tree, rng, _json_leaf), rng).encode("utf-8", "replace")
    try:
        tree = _thaw(cbor2.loads(data, max_depth=64))
        return _write(_mutate_tree(tree, rng, _cbor_leaf), rng)
    except (cbor2.CBORDecodeError, ValueError, TypeError, OverflowError, RecursionError):
        return _mutate_raw(data, rng)


def _mutate_raw(data: bytes, rng: Random) -> bytes:
    """Bytes, not knowing what they mean."""
    at = rng.randrange(len(data) + 1)
    match rng.randrange(6):
        case 0:
            return data[:at]
        case 1:
            return data + rng.randbytes(rng.randrange(1, 5))
        case 2:
            return data[:at] + rng.randbytes(rng.randrange(1, 9)) + data[at:]
        case 3:
            return data[:at] + data[at + rng.randrange(1, 9) :]
        case 4 if data:
            at = rng.randrange(len(data))
            return data[:at] + bytes((data[at] ^ 1 << rng.randrange(8),)) + data[at + 1 :]
        case _:
            return data[:at] + bytes((rng.choice(_HEADS),)) + data[at + 1 :]


def _thaw(item: Any) -> Any:
    """A copy in which every map is a list of pairs, and everything can be changed."""
    if isinstance(item, dict):
        return _Pairs((key, _thaw(value)) for key, value in item.items())
    if isinstance(item, (list, tuple)):
        return [_thaw(element) for element in item]
    return item


def _nodes(item: Any) -> list[Any]:
    """Every container, the outermost first."""
    nodes: list[Any] = []
    if isinstance(item, _Pairs):
        nodes.append(item)
        for _, value in item:
            nodes += _nodes(value)
    elif isinstance(item, list):
        nodes.append(item)
        for value in item:
            nodes += _nodes(value)
    return nodes


def _mutate_tree(tree: Any, rng: Random, leaf: Callable[[Any, Random], Any]) -> Any:
    containers = _nodes(tree)
    if not containers or rng.random() < 0.02:
        return leaf(tree, rng)
    node = rng.choice(containers)
    if not node:
        node.append((1, 1) if isinstance(node, _Pairs) else leaf(0, rng))
        return tree
    at = rng.randrange(len(node))
    match rng.randrange(10):
        case 0:
            del node[at]
        case 1:
            node.insert(rng.randrange(len(node) + 1), node[at])
        case 2:
            other = rng.randrange(len(node))
            node[at], node[other] = node[other], node[at]
        case 3 if isinstance(node, _Pairs):
            node[at] = (leaf(node[at][0], rng), node[at][1])
        case 4:  # a value from elsewhere in the tree
            _put(node, at, _copy(rng.choice(containers)))
        case _:
            _put(node, at, leaf(node[at][1] if isinstance(node, _Pairs) else node[at], rng))
    return tree


def _put(node: Any, at: int, value: Any) -> None:
    node[at] = (node[at][0], value) if isinstance(node, _Pairs) else value


def _copy(item: Any) -> Any:
    if isinstance(item, _Pairs):
        return _Pairs((key, _copy(value)) for key, value in item)
    return [_copy(element) for element in item] if isinstance(item, list) else item


def _common_leaf(value: Any, rng: Random) -> Any:
    """A value near `value`, or one of a type that may be a surprise there."""
    if isinstance(value, int) and not isinstance(value, bool) and rng.random() < 0.6:
        return rng.choice((*_INTS, value + 1, value - 1, value ^ 1 << rng.randrange(64)))
    if isinstance(value, list) and rng.random() < 0.5:
        return _grow(value, rng)
    return rng.choice((None, True, False, 0, 1, [], _Pairs(), [[]], rng.choice(_INTS), rng.choice(_TEXTS)))


def _grow(value: list[Any], rng: Random) -> Any:
    times = rng.choice((2, 3, 20))
    return type(value)(value * times) if rng.random() < 0.5 else [value]


def _cbor_leaf(value: Any, rng: Random) -> Any:
    if isinstance(value, bytes) and rng.random() < 0.8:
        return _mutate_raw(value, rng) if rng.random() < 0.6 else bytes(rng.choice((0, 31, 32, 33, 63, 64, 65, 300)))
    if isinstance(value, str) and rng.random() < 0.7:
        return rng.choice((*_TEXTS, value + "a", value[:-1]))
    if rng.random() < 0.05:
        return rng.choice((1.5, float("nan"), cbor2.undefined, cbor2.CBORSimpleValue(7), 2**64, -(2**64) - 1))
    return rng.choice((b"", bytes(32), _common_leaf(value, rng)))


def _json_leaf(value: Any, rng: Random) -> Any:
    if isinstance(value, str) and rng.random() < 0.8:
        at = rng.randrange(len(value) + 1)
        swaps = (value[:at] + rng.choice("0aA g\ud800é") + value[at + 1 :], value.upper(), value[:-1], value + "0")
        return rng.choice((*swaps, rng.choice(_TEXTS), "0" * (2 * rng.choice((0, 1, 31, 32, 33, 64)))))
    if rng.random() < 0.05:
        return rng.choice((1.5, 2**64, -(2**64), 10**19, 10**30, float("inf")))
    return _common_leaf(value, rng)


def _write(item: Any, rng: Random) -> bytes:
    """CBOR, nearly always in its one canonical form."""
    warped = rng.random() < _WARP
    if isinstance(item, _Pairs):
        return _container(5, [part for pair in item for part in pair], len(item), rng, indefinite=warped)
    if isinstance(item, list):
        return _container(4, item, len(item), rng, indefinite=warped)
    if isinstance(item, (bytes, str)):
        major, raw = (2, item) if isinstance(item, bytes) else (3, item.encode("utf-8", "surrogatepass"))
        if warped and rng.random() < 0.5:  # the same string in chunks
            return bytes((major << 5 | 31,)) + _head(major, len(raw)) + raw + b"\xff"
        return _head(major, len(raw), rng.choice((1, 2, 4, 8)) if warped else 0) + raw
    if isinstance(item, int) and not isinstance(item, bool) and -(2**64) <= item < 2**64:
        width = rng.choice((1, 2, 4, 8)) if warped else 0
        return _head(0, item, width) if item >= 0 else _head(1, -1 - item, width)
    return (bytes((0xC0 | rng.randrange(24),)) if warped else b"") + cbor2.dumps(item)


def _container(major: int, parts: Sequence[Any], count: int, rng: Random, *, indefinite: bool) -> bytes:
    inner = b"".join(_write(part, rng) for part in parts)
    if indefinite:
        return bytes((major << 5 | 31,)) + inner + b"\xff"
    if rng.random() < _WARP:
        count += rng.choice((-1, 1, 2**31))
    return _head(major, max(count, 0), rng.choice((1, 2, 4, 8)) if rng.random() < _WARP else 0) + inner


def _head(major: int, value: int, width: int = 0) -> bytes:
    """The head of an item: minimal, or padded to `width` bytes of argument where that is wider."""
    if value < 24 and not width:
        return bytes((major << 5 | value,))
    least = next(size for size in (1, 2, 4, 8) if value < 1 << 8 * size)
    size = max(width, least)
    return bytes((major << 5 | 24 + size.bit_length() - 1,)) + value.to_bytes(size, "big")


def _write_json(item: Any, rng: Random) -> str:
    if isinstance(item, _Pairs):
        inner = (f"{json.dumps(str(key))}:{_write_json(value, rng)}" for key, value in item)
        return "{" + ",".join(inner) + "}"
    if isinstance(item, list):
        return "[" + ",".join(_write_json(element, rng) for element in item) + "]"
    return json.dumps(item)
