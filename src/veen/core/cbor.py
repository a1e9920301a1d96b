"""Deterministic CBOR, strict on both sides (spec §3.1, D-01 … D-07).

cbor2 does the parsing, because it is fast and bounded; it is never trusted with strictness. `decode` accepts
an input only if it holds one item, of whitelisted types, that encodes back to exactly the same bytes. That
refuses non-minimal integers and lengths, trailing bytes, indefinite lengths, tags, floats and simple values.
Key order is not checked here: `wire.Fields` requires the exact key sequence of the object at hand, and
`is_sorted` serves free-form subtrees (D-03).
"""

from collections.abc import Iterator
from typing import Any, Final, NoReturn

import cbor2

from veen.core.errors import FieldSizeError, MalformedError

# One decoded item: int, bytes, str, bool, None, list of items, dict of items. Any, because a recursive alias
# would make every caller cast; `wire.Fields` narrows each value as it is read.
Item = Any

MAX_DEPTH: Final = 32  # D-06
MAX_ITEM_BYTES: Final = 16 * 1024 * 1024  # above the largest legal page (8 MiB, D-63) in its hex JSON form
U64_MAX: Final = 2**64 - 1
# Integers are their own hash in Python, so chosen keys collide and a large map takes quadratic time to build. No
# object has a map near this size.
MAX_MAP_ENTRIES: Final = 1_024
_SMALL_BYTES: Final = 4_096  # holds no map large enough to hurt


class _NoTags(dict[int, Any]):
    """A table of semantic decoders in which every tag is present and refused.

    Tags must die before cbor2 acts on them: shared references could build a cyclic or exponentially large
    value, others compile regular expressions or parse dates.
    """

    def __getitem__(self, tag: int) -> Any:
        return _refuse_tag


def _refuse_tag(*_: object) -> NoReturn:
    raise cbor2.CBORDecodeError("tags are not allowed")


_NO_TAGS: Final = _NoTags()


def encode(item: Item) -> bytes:
    """Return the encoding of `item`; map keys keep the order in which the caller put them."""
    check(item, "item")
    return cbor2.dumps(item)


def encode_unchecked(item: Item) -> bytes:
    """Encode an item that was checked before. Hot paths encode what they have read."""
    return cbor2.dumps(item)


def encode_sorted(item: Item) -> bytes:
    """Return the encoding of a free-form subtree, with map keys sorted bytewise by their encoding (D-03)."""
    return encode(sort_keys(item))


def decode(
    data: bytes, *, what: str = "item", max_bytes: int = MAX_ITEM_BYTES, max_items: int = MAX_ITEM_BYTES
) -> Item:
    """Decode exactly one deterministic item, or raise a FormatError; linear in `len(data)`."""
    if len(data) > max_bytes:
        raise FieldSizeError(what, f"at most {max_bytes} bytes", len(data))
    if len(data) > _SMALL_BYTES:
        item_end(data, what=what, max_items=max_items)  # refuses too much of anything before cbor2 builds it
    try:
        item = cbor2.loads(
            data,
            allow_indefinite=False,
            allow_duplicate_keys=False,
            max_depth=MAX_DEPTH,
            semantic_decoders=_NO_TAGS,
            tag_hook=_refuse_tag,
        )
    except cbor2.CBORDecodeEOF as exc:
        raise MalformedError("CBOR ends in the middle of an item", what) from exc
    except (cbor2.CBORDecodeError, ValueError, TypeError, OverflowError) as exc:
        raise MalformedError(f"not deterministic CBOR: {_reason(exc)}", what) from exc
    check(item, what)
    if cbor2.dumps(item) != data:
        raise MalformedError("not the shortest encoding, or bytes follow the item", what)
    return item


def decode_unchecked(data: bytes) -> Item:
    """Decode bytes that `decode` has accepted before."""
    return cbor2.loads(data)


def _reason(exc: BaseException) -> str:
    """Return the innermost message: cbor2 wraps it in general ones."""
    while exc.__cause__ is not None:
        exc = exc.__cause__
    return str(exc)


def check(item: Item, what: str, depth: int = 0) -> None:
    """Raise MalformedError unless `item` may be encoded: allowed types, 64-bit integers, valid text, bounded depth."""
    kind = type(item)
    if kind is bytes or kind is bool or item is None:
        return
    if kind is str:
        if not item.isascii():
            _check_text(item, what)
    elif kind is int:
        if not -U64_MAX - 1 <= item <= U64_MAX:
            raise MalformedError("integer outside 64 bits", what)
    elif kind is list or kind is dict:
        # An item lies in at most 32 containers; an empty one may stand where the 33rd would begin (D-06).
        if depth >= MAX_DEPTH and item:
            raise MalformedError(f"nested deeper than {MAX_DEPTH}", what)
        if kind is dict:
            for key in item:
                if type(key) not in (int, str, bytes):
                    raise MalformedError(f"map key of type {type(key).__name__}", what)
                check(key, what)
            item = item.values()
        for element in item:
            check(element, what, depth + 1)
    else:
        raise MalformedError(f"type {kind.__name__} is not allowed", what)


def _check_text(text: str, what: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as exc:  # a lone surrogate, which JSON can write and UTF-8 cannot
        raise MalformedError("text is not valid Unicode", what) from exc


def sort_keys(item: Item) -> Item:
    """Return a copy of `item` with the keys of every map sorted bytewise by their encoding (D-03)."""
    if type(item) is dict:
        return {key: sort_keys(item[key]) for key in sorted(item, key=cbor2.dumps)}
    if type(item) is list:
        return [sort_keys(element) for element in item]
    return item


def is_sorted(item: Item) -> bool:
    """Return True if every map in `item` has its keys in the order that `encode_sorted` writes."""
    if type(item) is dict:
        if len(item) > 1:
            keys = [cbor2.dumps(key) for key in item]
            if keys != sorted(keys):
                return False
        return all(map(is_sorted, item.values()))
    if type(item) is list:
        return all(map(is_sorted, item))
    return True


def uint(value: int) -> bytes:
    """Return the shortest encoding of an unsigned integer. Hot paths build objects from such pieces."""
    if value < 24:
        if value < 0:
            raise MalformedError("expected an unsigned integer")
        return bytes((value,))
    if value < 0x100:
        return bytes((0x18, value))
    if value < 0x10000:
        return b"\x19" + value.to_bytes(2, "big")
    if value < 0x100000000:
        return b"\x1a" + value.to_bytes(4, "big")
    if value > U64_MAX:
        raise MalformedError("integer outside 64 bits")
    return b"\x1b" + value.to_bytes(8, "big")


def bstr_head(length: int) -> bytes:
    """Return the head of a byte string of `length` bytes."""
    head = uint(length)
    return bytes((head[0] | 0x40,)) + head[1:]


_WIDTH_FLOOR: Final = {1: 24, 2: 0x100, 4: 0x10000, 8: 0x100000000}


def uint_at(data: bytes, pos: int, major: int = 0x00) -> tuple[int, int]:
    """Read a minimal integer at `pos`, or a length of type `major`; return it and the position behind it.

    For readers of a fixed layout: IndexError or ValueError mean that the bytes do not follow it.
    """
    first = data[pos] - major
    if 0 <= first < 24:
        return first, pos + 1
    if not 24 <= first < 28:
        raise ValueError
    width = 1 << (first - 24)
    value = int.from_bytes(data[pos + 1 : pos + 1 + width], "big")
    if value < _WIDTH_FLOOR[width]:  # also what a cut-off input leads to, or a length check at the end does
        raise ValueError
    return value, pos + 1 + width


def item_end(data: bytes, start: int = 0, *, what: str = "item", max_items: int = MAX_ITEM_BYTES) -> int:
    """Return the position behind the item that begins at `start`.

    Only the structure is followed; the slice still has to pass `decode`. CBOR sequences (RFC 8742) use this, and
    requests whose inner item is checked apart from its envelope (D-54). `max_items` bounds the items inside and so the
    time: a reader of a small object need not walk through a million numbers.
    """
    pos, size = start, len(data)
    open_items = [1]  # how many items each open container still lacks
    while open_items:
        max_items -= 1
        if max_items < 0:
            raise MalformedError("more items than there may be", what)
        if len(open_items) > MAX_DEPTH + 1:
            raise MalformedError(f"nested deeper than {MAX_DEPTH}", what)
        if pos >= size:
            raise MalformedError("CBOR ends in the middle of an item", what)
        major, info = data[pos] >> 5, data[pos] & 0x1F
        pos += 1
        if info < 24:
            value = info
        elif info < 28:
            width = 1 << (info - 24)
            value = int.from_bytes(data[pos : pos + width], "big")
            pos += width
        else:
            raise MalformedError("not deterministic CBOR: indefinite or reserved length", what)
        if major in (2, 3):
            pos += value
        elif major == 5 and value > MAX_MAP_ENTRIES:
            raise MalformedError(f"a map of more than {MAX_MAP_ENTRIES} entries", what)
        elif major == 6:
            raise MalformedError("not deterministic CBOR: tags are not allowed", what)
        if pos > size:
            raise MalformedError("CBOR ends in the middle of an item", what)
        open_items[-1] -= 1
        if major in (4, 5) and value:
            open_items.append(value * (major - 3))
        while open_items and open_items[-1] == 0:
            open_items.pop()
    return pos


def sequence(data: bytes, *, what: str = "sequence", max_items: int = MAX_ITEM_BYTES) -> Iterator[bytes]:
    """Yield the raw items of a CBOR sequence (RFC 8742), not decoded; `max_items` bounds each of them."""
    pos = 0
    while pos < len(data):
        end = item_end(data, pos, what=what, max_items=max_items)
        yield data[pos:end]
        pos = end
