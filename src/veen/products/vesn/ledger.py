"""A VESN hub as a pure state machine: admission, receipts, checkpoints (002 §7, §11, §13).

It writes logs for tests, examples and the golden vector. State is in memory; there is no transport and no disk, and
`hub_ts` is the only clock. New hubs should use VEEN, not VESN.

The Merkle mountain range of VESN: append, root, attachments, inclusion proofs (002 §7, §8, §10).

The append of 002 §7 breaks at four leaves if read to the letter; D-115 reads it as ordinary binary carry. Two things
differ from VEEN: the root is hashed also with a single peak, and `dir` 0 of a proof means that the sibling is on the
left (D-31).
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import FieldSizeError, FormatError, MalformedError
from veen.core.hashing import Ht
from veen.core.tree.mmr import Mmr, MmrTree, Tags, peak_nodes, root_of
from veen.core.wire import Bytes32, Length, Uint, Version
from veen.products.vesn.errors import Problem, Refusal, Refused, Violation
from veen.products.vesn.objects import DEFAULT_PROFILE, CapToken, Checkpoint, Msg, Rate, Receipt, Record

MMR_TAGS: Final = Tags(node="vesn/mmr-node", root="vesn/mmr-root", hash_single_peak=True)
_ATT_TAGS: Final = Tags(node="vesn/att-node", root="vesn/att-root", hash_single_peak=True)
_MAX_PATH: Final = 64

NodeAt = Callable[[int, int], bytes]  # (height, index) -> hash


def new_mmr(size: int = 0, peaks: Sequence[bytes] = ()) -> Mmr:
    """Return the append cursor of a stream: S = (seq, peaks) of 002 §7."""
    return Mmr(size, peaks, tags=MMR_TAGS)


def att_root_of(coids: Sequence[bytes]) -> bytes:
    """Return the root over the coids of a message, in the order of the attachments (002 §10)."""
    tree = Mmr(tags=_ATT_TAGS)
    for coid in coids:
        tree.append(coid)
    return tree.root() if coids else Ht("vesn/att-root", b"")


class Tree(MmrTree):
    """A tree with all of its nodes in memory, for making proofs."""

    def __init__(self) -> None:
        super().__init__(tags=MMR_TAGS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(Record, kind="VESN path step"):
    """A sibling on the way up. `dir` 0: the sibling is on the left; 1: on the right (002 §8)."""

    dir: Uint
    sib: Bytes32

    def _check(self) -> None:
        if self.dir > 1:
            raise MalformedError("expected 0 or 1", "VESN mmr_proof.path.dir")


@dataclass(frozen=True, slots=True, kw_only=True)
class MmrProof(Record, kind="VESN mmr_proof"):
    """mmr_proof (002 §8): `path` leads from the leaf to its peak, `peaks_after` are the other peaks (as D-32)."""

    ver: ClassVar[Version] = 1
    path: Annotated[tuple[Step, ...], Length(0, _MAX_PATH)]
    leaf_hash: Bytes32
    peaks_after: Annotated[tuple[Bytes32, ...], Length(0, _MAX_PATH)]

    def verify(self, *, leaf_hash: bytes, stream_seq: int, mmr_root: bytes, tree_size: int | None = None) -> None:
        """Raise Violation unless the leaf is number `stream_seq` of the tree of `tree_size` leaves with this root.

        The size of the tree is the stream_seq of the RECEIPT whose root is checked, by default that of the leaf itself.
        With the size known, there is one valid proof for each leaf.
        """
        size = stream_seq if tree_size is None else tree_size
        if not 1 <= stream_seq <= size:
            raise Violation(Problem.I3, f"stream_seq {stream_seq} is not inside a tree of {size} leaves")
        if self.leaf_hash != leaf_hash:
            raise Violation(Problem.I3, "the proof is for another leaf")
        pos, node = stream_seq - 1, leaf_hash
        height = _peak_height(pos, size)
        heights = [peak for peak, _ in peak_nodes(size)]
        if len(self.path) != height or len(self.peaks_after) != len(heights) - 1:
            raise Violation(Problem.I3, f"the proof does not have the shape of leaf {stream_seq} of {size}")
        for level, step in enumerate(self.path):
            is_right = pos >> level & 1
            if step.dir != 1 - is_right:
                raise Violation(Problem.I3, f"step {level + 1} of the path has the wrong direction")
            node = Ht("vesn/mmr-node", step.sib + node if is_right else node + step.sib)
        peaks = list(self.peaks_after)
        peaks.insert(heights.index(height), node)
        if root_of(peaks, MMR_TAGS) != mmr_root:
            raise Violation(Problem.I3, "the proof does not lead to mmr_root")


def prove(node_at: NodeAt, stream_seq: int, tree_size: int | None = None) -> MmrProof:
    """Return the proof of a leaf at a tree size; reads O(log n) nodes."""
    size = stream_seq if tree_size is None else tree_size
    if not 1 <= stream_seq <= size:
        raise Violation(Problem.I3, f"stream_seq {stream_seq} is not inside a tree of {size} leaves")
    pos = stream_seq - 1
    height = _peak_height(pos, size)
    path = tuple(Step(dir=1 - (pos >> level & 1), sib=node_at(level, pos >> level ^ 1)) for level in range(height))
    others = tuple(node_at(*peak) for peak in peak_nodes(size) if peak[0] != height)
    return MmrProof(path=path, leaf_hash=node_at(0, pos), peaks_after=others)


def _peak_height(pos: int, size: int) -> int:
    """Return the height of the peak above leaf `pos`: the highest bit in which pos and size differ."""
    return (pos ^ size).bit_length() - 1


@dataclass(slots=True)
class Bucket:
    """A token bucket over the seconds of the hub's clock (002 §11)."""

    rate: Rate
    level: int = -1  # tokens left; -1 before the first use, when the bucket is full
    at: int = 0  # hub_ts of the last use

    def take(self, hub_ts: int) -> bool:
        """Take a token; return True if there was one."""
        if self.level < 0:
            self.level = self.rate.burst
        else:
            self.level = min(self.rate.burst, self.level + self.rate.per_sec * max(hub_ts - self.at, 0))
        self.at = max(self.at, hub_ts)
        if self.level < 1:
            return False
        self.level -= 1
        return True


class Ledger:
    """The log of one stream at one hub. Not safe for use by several threads."""

    def __init__(
        self,
        key: SigningKey,
        *,
        profiles: Collection[bytes] = (DEFAULT_PROFILE.profile_id(),),
        stream_ids: Mapping[bytes, bytes] | None = None,
        max_msg_bytes: int = 1024 * 1024,
        max_client_gap: int | None = None,
    ) -> None:
        """Set up a hub. `stream_ids` (label -> stream_id) enables capability admission for those labels."""
        self._key, self._profiles, self._max_msg_bytes = key, frozenset(profiles), max_msg_bytes
        self._stream_ids, self._max_gap = dict(stream_ids or {}), max_client_gap
        self._trees: dict[bytes, Tree] = {}  # by the present label of each log
        self._client_seqs: dict[tuple[int, bytes], int] = {}  # (id of the tree, client_id) -> last client_seq
        self._leaves: set[tuple[int, bytes]] = set()
        self._first_use: dict[bytes, int] = {}  # cap_ref -> hub_ts
        self._buckets: dict[bytes, Bucket] = {}  # by cap_ref

    def tree(self, label: bytes) -> Tree:
        return self._trees.setdefault(label, Tree())

    def submit(self, raw: bytes, *, hub_ts: int, token: CapToken | None = None) -> Receipt:
        """Accept the bytes of a MSG, or raise Refused."""
        if len(raw) > self._max_msg_bytes:
            raise Refused(Refusal.SIZE, f"{len(raw)} bytes, at most {self._max_msg_bytes} are accepted")
        try:
            msg = Msg.from_bytes(raw)
        except FieldSizeError as exc:
            raise Refused(Refusal.SIZE, str(exc)) from exc
        except FormatError as exc:  # 002 §13 has no code for unreadable bytes, which have no valid signature
            raise Refused(Refusal.SIG, str(exc)) from exc
        return self.accept(msg, hub_ts=hub_ts, token=token)

    def accept(self, msg: Msg, *, hub_ts: int, token: CapToken | None = None) -> Receipt:
        """Append the message and sign its receipt, or raise Refused and change nothing."""
        if msg.profile_id not in self._profiles:
            raise Refused(Refusal.PROFILE, "profile_id is unknown")
        try:
            msg.verify()
        except Violation as exc:
            raise Refused(Refusal.SIG, exc.what) from exc
        tree = self.tree(msg.label)
        author, leaf = (id(tree), msg.client_id), msg.leaf_hash()
        if (id(tree), leaf) in self._leaves:
            raise Refused(Refusal.DUP, "this leaf_hash was accepted before")
        last = self._client_seqs.get(author, 0)
        if msg.client_seq <= last:
            raise Refused(Refusal.SEQ, f"client_seq {msg.client_seq} does not follow {last}")
        if self._max_gap is not None and msg.client_seq > last + self._max_gap:
            raise Refused(Refusal.SEQ, f"client_seq jumps from {last} to {msg.client_seq}")
        self._admit(msg.label, hub_ts, token)
        tree.append(leaf)
        self._leaves.add((id(tree), leaf))
        self._client_seqs[author] = msg.client_seq
        return Receipt.issue(
            self._key, label=msg.label, stream_seq=tree.size, leaf_hash=leaf, mmr_root=tree.root(), hub_ts=hub_ts
        )

    def _admit(self, label: bytes, hub_ts: int, token: CapToken | None) -> None:
        """Check capability and rate, last: a refused message takes no token from the bucket."""
        stream_id = self._stream_ids.get(label)
        if stream_id is None:
            return
        if token is None:
            raise Refused(Refusal.CAP, "this stream needs a cap_token")
        cap_ref = token.cap_ref()
        try:
            token.check(stream_id=stream_id, first_used_at=self._first_use.get(cap_ref, hub_ts), now=hub_ts)
        except Violation as exc:
            raise Refused(Refusal.CAP, exc.what) from exc
        rate = token.allow.rate
        if rate is not None and not self._buckets.setdefault(cap_ref, Bucket(rate)).take(hub_ts):
            raise Refused(Refusal.RATE, f"more than {rate.per_sec} a second with bursts of {rate.burst}")
        self._first_use.setdefault(cap_ref, hub_ts)

    def checkpoint(
        self, label: bytes, *, epoch: int, label_prev: bytes | None = None, witnesses: Iterable[SigningKey] = ()
    ) -> Checkpoint:
        """Sign the present root of a label."""
        tree = self.tree(label)
        if not tree.size:
            raise Violation(Problem.CHECKPOINT, "the label has no entry to sign a checkpoint for")
        return Checkpoint.issue(
            self._key,
            label_prev=label if label_prev is None else label_prev,
            label_curr=label,
            upto_seq=tree.size,
            mmr_root=tree.root(),
            epoch=epoch,
            witnesses=witnesses,
        )

    def rotate(
        self, label_prev: bytes, label_curr: bytes, *, epoch: int, witnesses: Iterable[SigningKey] = ()
    ) -> Checkpoint:
        """Continue under the label of the next epoch: stream_seq and tree go on, and a CHECKPOINT links the labels."""
        if label_curr in self._trees or label_prev not in self._trees:
            raise Violation(Problem.CHECKPOINT, "the old label has no entries, or the new label has some already")
        self._trees[label_curr] = self._trees.pop(label_prev)
        if label_prev in self._stream_ids:
            self._stream_ids[label_curr] = self._stream_ids[label_prev]
        return self.checkpoint(label_curr, epoch=epoch, label_prev=label_prev, witnesses=witnesses)
