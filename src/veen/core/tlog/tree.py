"""The Merkle tree of RFC 6962 §2.1: leaf = SHA-256(0x00 ‖ data), node = SHA-256(0x01 ‖ left ‖ right).

Its perfect subtrees are addressed as those of `veen.core.tree.mmr`, by (height, index), and lie in a file in the order
of `mmr.node_position`; only the hash of a node and the way a root follows from the peaks differ.

Errors of notes, proofs, policies and receipts. Each kind has its own code.
"""

from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import Final

from veen.core.errors import StatedError, VerifyError
from veen.core.tree.mmr import peak_nodes


class TlogError(VerifyError, code="E.TLOG"):
    """Base of the errors about transparency logs."""


class NoteError(TlogError, code="E.TLOG.NOTE"):
    """Bytes that are not a signed note, vkey, checkpoint, leaf or request."""


class NoteSignatureError(TlogError, code="E.TLOG.SIGNATURE"):
    """A signature line of a known key that does not verify, or a missing signature of a required key."""


class TlogProofError(TlogError, code="E.TLOG.PROOF"):
    """An invalid inclusion or consistency proof of an RFC 6962 tree."""


class WitnessPolicyError(StatedError, code="E.TLOG.POLICY"):
    """A policy file that cannot be used. It is a local file, not evidence."""


class QuorumError(TlogError, code="E.TLOG.QUORUM"):
    """A signed note with fewer witnesses than the policy requires, or of a log that the policy does not list."""


class TlogReceiptError(TlogError, code="E.TLOG.RECEIPT"):
    """An invalid COSE receipt."""


NodeAt = Callable[[int, int], bytes]  # the hash of the perfect subtree of a height and an index

HASH_BYTES: Final = 32
MAX_PATH: Final = 63
EMPTY_ROOT: Final = sha256(b"").digest()


def leaf_hash(data: bytes) -> bytes:
    return sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    return sha256(b"\x01" + left + right).digest()


def _split(count: int) -> int:
    """Return the largest power of two below `count`."""
    return 1 << (count - 1).bit_length() - 1


def _subtree(node_at: NodeAt, start: int, end: int) -> bytes:
    """Return the hash of the leaves start … end - 1; `start` is aligned to the size of the subtree."""
    count = end - start
    if count & (count - 1) == 0:
        height = count.bit_length() - 1
        return node_at(height, start >> height)
    middle = start + _split(count)
    return node_hash(_subtree(node_at, start, middle), _subtree(node_at, middle, end))


def root_at(node_at: NodeAt, size: int) -> bytes:
    """Return the root of the first `size` leaves."""
    return _subtree(node_at, 0, size) if size else EMPTY_ROOT


def prove_inclusion(node_at: NodeAt, pos: int, size: int) -> tuple[bytes, ...]:
    """Return the path of leaf `pos`, counted from 0, in the tree of `size` leaves; from the leaf to the root."""
    if not 0 <= pos < size:
        raise TlogProofError(f"leaf {pos} is not in a tree of {size} leaves")
    path: list[bytes] = []
    start, end = 0, size
    while end - start > 1:
        middle = start + _split(end - start)
        if pos < middle:
            path.append(_subtree(node_at, middle, end))
            end = middle
        else:
            path.append(_subtree(node_at, start, middle))
            start = middle
    return tuple(reversed(path))


def prove_consistency(node_at: NodeAt, old: int, new: int) -> tuple[bytes, ...]:
    """Prove that the first `old` leaves are a prefix of `new` (RFC 6962 §2.1.2); empty for equal sizes and for 0."""
    if not 0 <= old <= new:
        raise TlogProofError(f"a log cannot shrink from {old} to {new} leaves")
    if old in (0, new):
        return ()
    path: list[bytes] = []
    start, end, whole = 0, new, True
    while old != end:
        middle = start + _split(end - start)
        if old <= middle:
            path.append(_subtree(node_at, middle, end))
            end = middle
        else:
            path.append(_subtree(node_at, start, middle))
            start, whole = middle, False
    if not whole:
        path.append(_subtree(node_at, start, end))
    return tuple(reversed(path))


def _check_path(path: Sequence[bytes]) -> None:
    if len(path) > MAX_PATH:
        raise TlogProofError(f"a proof has at most {MAX_PATH} hashes, this one has {len(path)}")
    if any(len(node) != HASH_BYTES for node in path):
        raise TlogProofError(f"a hash has {HASH_BYTES} bytes")


def root_of_inclusion(leaf: bytes, pos: int, size: int, path: Sequence[bytes]) -> bytes:
    """Return the root that a path leads to; raise TlogProofError if its length does not fit `pos` and `size`."""
    _check_path(path)
    if not 0 <= pos < size:
        raise TlogProofError(f"leaf {pos} is not in a tree of {size} leaves")
    node, index, last = leaf, pos, size - 1
    for sibling in path:
        if not last:
            raise TlogProofError("the path is too long")
        if index & 1 or index == last:
            node = node_hash(sibling, node)
            while not index & 1:
                index, last = index >> 1, last >> 1
        else:
            node = node_hash(node, sibling)
        index, last = index >> 1, last >> 1
    if last:
        raise TlogProofError("the path is too short")
    return node


def check_inclusion(leaf: bytes, pos: int, size: int, path: Sequence[bytes], root: bytes) -> None:
    """Raise TlogProofError unless the path leads from the leaf to the root."""
    if root_of_inclusion(leaf, pos, size, path) != root:
        raise TlogProofError("the path does not lead to the root")


def check_consistency(old: int, new: int, path: Sequence[bytes], old_root: bytes, new_root: bytes) -> None:
    """Raise TlogProofError unless the tree of `old` leaves is a prefix of that of `new` leaves (RFC 9162 §2.1.4.2)."""
    _check_path(path)
    if not 0 <= old <= new:
        raise TlogProofError(f"a log cannot shrink from {old} to {new} leaves")
    if old in (0, new):
        if path:
            raise TlogProofError("a proof from size 0, or between equal sizes, must be empty")
        if old == new and old_root != new_root:
            raise TlogProofError(f"two roots for {old} leaves")
        if old == 0 and old_root != EMPTY_ROOT:
            raise TlogProofError("wrong root for a tree without leaves")
        return
    nodes = [old_root, *path] if old & (old - 1) == 0 else list(path)
    if not nodes:
        raise TlogProofError("the proof is empty")
    index, last = old - 1, new - 1
    while index & 1:
        index, last = index >> 1, last >> 1
    old_node = new_node = nodes[0]
    for sibling in nodes[1:]:
        if not last:
            raise TlogProofError("the proof is too long")
        if index & 1 or index == last:
            old_node, new_node = node_hash(sibling, old_node), node_hash(sibling, new_node)
            while index and not index & 1:
                index, last = index >> 1, last >> 1
        else:
            new_node = node_hash(new_node, sibling)
        index, last = index >> 1, last >> 1
    if last or old_node != old_root or new_node != new_root:
        raise TlogProofError(f"the tree of {old} leaves is not a prefix of that of {new} leaves")


class TreeCursor:
    """The append cursor of a tree: its size and its perfect subtrees, the largest first. O(log n) memory."""

    __slots__ = ("_stack", "size")

    def __init__(self, size: int = 0, peaks: Sequence[bytes] = ()) -> None:
        """Resume from the perfect subtrees of `size` leaves, the largest first."""
        if size < 0 or len(peaks) != size.bit_count() or any(len(peak) != HASH_BYTES for peak in peaks):
            raise TlogProofError(f"{size} leaves have {size.bit_count()} perfect subtrees")
        self.size = size
        self._stack = list(peaks)

    @classmethod
    def at(cls, node_at: NodeAt, size: int) -> "TreeCursor":
        return cls(size, [node_at(*node) for node in reversed(peak_nodes(size))])

    @property
    def peaks(self) -> tuple[bytes, ...]:
        return tuple(self._stack)

    def append(self, leaf: bytes) -> list[bytes]:
        """Append the hash of a leaf; return the nodes that this created, in the order of `mmr.node_position`."""
        created, node, carry = [leaf], leaf, self.size
        while carry & 1:
            node = node_hash(self._stack.pop(), node)
            created.append(node)
            carry >>= 1
        self._stack.append(node)
        self.size += 1
        return created

    def root(self) -> bytes:
        if not self._stack:
            return EMPTY_ROOT
        node = self._stack[-1]
        for left in reversed(self._stack[:-1]):
            node = node_hash(left, node)
        return node


class TlogTree:
    """A whole tree in memory, for tests and small logs."""

    def __init__(self, leaves: Iterable[bytes] = ()) -> None:
        self._levels: list[list[bytes]] = [[]]
        for data in leaves:
            self.append(data)

    @property
    def size(self) -> int:
        return len(self._levels[0])

    def append(self, data: bytes) -> None:
        node, height = leaf_hash(data), 0
        self._levels[0].append(node)
        while len(self._levels[height]) % 2 == 0:
            node = node_hash(*self._levels[height][-2:])
            height += 1
            if height == len(self._levels):
                self._levels.append([])
            self._levels[height].append(node)

    def node_at(self, height: int, index: int) -> bytes:
        return self._levels[height][index]

    def root(self, size: int | None = None) -> bytes:
        return root_at(self.node_at, self.size if size is None else size)
