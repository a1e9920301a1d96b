"""The MMR of spec §5.1 written the slow and obvious way, to judge the fast one by. Imports nothing from veen."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from hashlib import sha256

Node = tuple[int, int]  # (height, index)


def ht(tag: str, data: bytes) -> bytes:
    return sha256(tag.encode() + b"\x00" + data).digest()


def leaves(count: int, salt: str = "") -> list[bytes]:
    """As many different leaves."""
    return [sha256(f"{salt}{pos}".encode()).digest() for pos in range(count)]


def fold(run: Sequence[bytes], tag: str = "veen/mmr-node") -> bytes:
    """A perfect tree over 2^k leaves: Ht(tag, left || right), down to the leaves."""
    if len(run) == 1:
        return run[0]
    half = len(run) // 2
    assert 2 * half == len(run)
    return ht(tag, fold(run[:half], tag) + fold(run[half:], tag))


def peaks(log: Sequence[bytes], tag: str = "veen/mmr-node") -> list[bytes]:
    """The largest perfect tree that fits comes first in the log, and last in the list: increasing height."""
    if not log:
        return []
    largest = 1
    while 2 * largest <= len(log):
        largest *= 2
    return [*peaks(log[largest:], tag), fold(log[:largest], tag)]


def root(log: Sequence[bytes]) -> bytes:
    """The single peak, or the hash over all of them."""
    heads = peaks(log)
    return heads[0] if len(heads) == 1 else ht("veen/mmr-root", b"".join(heads))


def subtrees(start: int, end: int, height: int = 64, index: int = 0) -> list[Node]:
    """Top down: a node all of whose leaves are in the run stands for itself, one with some is split."""
    first, after = index << height, (index + 1) << height
    if after <= start or end <= first:
        return []
    if start <= first and after <= end:
        return [(height, index)]
    return subtrees(start, end, height - 1, 2 * index) + subtrees(start, end, height - 1, 2 * index + 1)


def nodes_of(log: Sequence[bytes]) -> Callable[[int, int], bytes]:
    """node_at over a log of few leaves."""

    @cache
    def node_at(height: int, index: int) -> bytes:
        if height == 0:
            return log[index]
        return ht("veen/mmr-node", node_at(height - 1, 2 * index) + node_at(height - 1, 2 * index + 1))

    return node_at


def sparse_nodes(marked: Mapping[int, bytes]) -> Callable[[int, int], bytes]:
    """node_at over 2^64 leaves that are all zero but for the marked ones: what lets tests reach huge sizes."""

    @cache
    def blank(height: int) -> bytes:
        return ht("veen/mmr-node", blank(height - 1) * 2) if height else bytes(32)

    @cache
    def node_at(height: int, index: int) -> bytes:
        if not any(pos >> height == index for pos in marked):
            return blank(height)
        if height == 0:
            return marked[index]
        return ht("veen/mmr-node", node_at(height - 1, 2 * index) + node_at(height - 1, 2 * index + 1))

    return node_at


def root_at(node_at: Callable[[int, int], bytes], size: int) -> bytes:
    """The root of the first `size` leaves of a log given by its nodes."""
    nodes = [node_at(*node) for node in reversed(subtrees(0, size))]
    return nodes[0] if len(nodes) == 1 else ht("veen/mmr-root", b"".join(nodes))
