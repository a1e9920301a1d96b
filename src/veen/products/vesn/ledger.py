"""A VESN hub as a pure state machine: admission, receipts, checkpoints (002 §7, §11, §13).

It writes logs for tests, examples and the golden vector. State is in memory; there is no transport and no disk, and
`hub_ts` is the only clock. New hubs should use VEEN, not VESN.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import FieldSizeError, FormatError
from veen.products.vesn.errors import Problem, Refusal, Refused, Violation
from veen.products.vesn.merkle import Tree
from veen.products.vesn.objects import DEFAULT_PROFILE, CapToken, Checkpoint, Msg, Rate, Receipt


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
