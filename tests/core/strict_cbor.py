"""A second reader of our CBOR: written from RFC 8949 §3 and D-01 … D-07 alone, to judge `veen.core.cbor` by.

It shares no code with VEEN or with cbor2, is as plain as it can be, and says in one word why it refuses.
"""

from dataclasses import dataclass
from typing import Any, NoReturn

MAX_ENCLOSING = 32  # an item may lie inside at most 32 arrays and maps (D-06)


class RefusedError(Exception):
    """Not an item that VEEN accepts; `reason` is one of the words below."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Head:
    """The initial byte of an item and the argument that follows it (RFC 8949 §3)."""

    start: int
    end: int  # where the argument ends and content begins
    major: int
    info: int
    argument: int


def head_at(data: bytes, pos: int) -> Head:
    """The head at `pos`; its argument need not be the shortest."""
    if pos >= len(data):
        raise RefusedError("truncated")
    major, info = data[pos] >> 5, data[pos] & 0b11111
    if info < 24:
        return Head(pos, pos + 1, major, info, info)
    if info in (28, 29, 30):
        raise RefusedError("reserved")
    if info == 31:
        raise RefusedError("indefinite")  # or a break, which only indefinite lengths need
    end = pos + 1 + {24: 1, 25: 2, 26: 4, 27: 8}[info]
    if end > len(data):
        raise RefusedError("truncated")
    return Head(pos, end, major, info, int.from_bytes(data[pos + 1 : end], "big"))


def heads(data: bytes) -> list[Head]:
    """Every head from the start on, as far as the bytes make sense: where a mutation can aim."""
    items: list[Head] = []
    pos = 0
    while True:
        try:
            head = head_at(data, pos)
        except RefusedError:
            return items
        items.append(head)
        pos = head.end + (head.argument if head.major in (2, 3) else 0)


def decode(data: bytes) -> Any:
    """The one item in `data`: int, bytes, str, bool, None, list or dict; RefusedError if it is anything else."""
    value, end = _item(data, 0, 0)
    if end != len(data):
        raise RefusedError("trailing")
    return value


def _item(data: bytes, pos: int, enclosing: int) -> tuple[Any, int]:
    if enclosing > MAX_ENCLOSING:
        raise RefusedError("depth")
    head = head_at(data, pos)
    if head.major == 7:
        return _simple(head), head.end
    if head.major == 6:
        raise RefusedError("tag")
    if head.info >= 24 and head.argument < {24: 24, 25: 1 << 8, 26: 1 << 16, 27: 1 << 32}[head.info]:
        raise RefusedError("not minimal")
    if head.major == 0:
        return head.argument, head.end
    if head.major == 1:
        return -1 - head.argument, head.end
    if head.major in (2, 3):
        return _string(data, head)
    if head.major == 4:
        return _array(data, head, enclosing + 1)
    return _map(data, head, enclosing + 1)


def _simple(head: Head) -> bool | None:
    if head.info in (25, 26, 27):
        raise RefusedError("float")
    if head.info == 24 or head.argument not in (20, 21, 22):
        raise RefusedError("simple")
    return {20: False, 21: True, 22: None}[head.argument]


def _string(data: bytes, head: Head) -> tuple[bytes | str, int]:
    end = head.end + head.argument
    if end > len(data):
        raise RefusedError("truncated")
    content = data[head.end : end]
    if head.major == 2:
        return content, end
    try:
        return content.decode("utf-8"), end
    except UnicodeDecodeError:
        raise RefusedError("utf-8") from None


def _array(data: bytes, head: Head, enclosing: int) -> tuple[list[Any], int]:
    values, pos = [], head.end
    for _ in range(head.argument):
        value, pos = _item(data, pos, enclosing)
        values.append(value)
    return values, pos


def _map(data: bytes, head: Head, enclosing: int) -> tuple[dict[Any, Any], int]:
    pairs: dict[Any, Any] = {}
    pos = head.end
    for _ in range(head.argument):
        key, pos = _item(data, pos, enclosing)
        if type(key) not in (int, bytes, str):
            _refuse_key()
        if key in pairs:
            raise RefusedError("duplicate key")
        pairs[key], pos = _item(data, pos, enclosing)
    return pairs, pos


def _refuse_key() -> NoReturn:
    raise RefusedError("key type")


def same(one: Any, other: Any) -> bool:
    """Equal in value, type and key order; Python itself would call True and 1 equal."""
    return repr(one) == repr(other)
