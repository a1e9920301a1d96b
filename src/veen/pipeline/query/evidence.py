"""Receipts and proofs behind rows, really verified (QRY-18, QRY-19, SDR-09).

For an entry: its author's signature, the hub's signature on its receipt under a key valid at that time, a proof that it
stands under the root of its own receipt, and a proof that it stands under the root at the head that the result names,
whose receipt is verified as well. The first failure in logical order ends the query.

Proofs need nodes of the tree. The node file of a hub is used where there is one: it need not be trusted, since every
proof is checked against signed roots. Elsewhere, or if a proof fails, the tree is made again from the leaves.
"""

import os
import tempfile
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from types import TracebackType
from typing import IO, Final, Self

from veen.core import ed25519
from veen.core.errors import FormatError, ProofError, VerifyError
from veen.core.hubkeys import HubIdentity
from veen.core.mmr import Mmr, NodeAt, node_count, node_position
from veen.core.proof import prove_inclusion
from veen.core.receipt import Receipt
from veen.pipeline import bronze
from veen.pipeline.columns import ENTRIES, chosen
from veen.pipeline.files import open_fs
from veen.pipeline.query.digest import Verified
from veen.pipeline.query.errors import EvidenceFailed
from veen.pipeline.query.fields import receipt_id_of
from veen.pipeline.query.opening import Witness
from veen.pipeline.query.planning import LabelPlan, Plan
from veen.storage import layout
from veen.storage.fs import Fs

__all__ = ["Prover", "signature_fault"]

_HASH_BYTES: Final = 32
_OPEN_TREES: Final = 32
_WRITE_BYTES: Final = 1 << 20
_LEAVES: Final = chosen(["stream_seq", "leaf_hash"], ENTRIES)


def signature_fault(identity: HubIdentity | None, witness: Witness) -> str | None:
    """Why the signatures of author and hub do not hold; None if they do."""
    if identity is None:
        return "there is no identity of the hub to hold its receipt to"
    if not ed25519.verify(witness.client_id, witness.msg_digest, witness.msg_sig):
        return "sig does not verify under client_id"
    try:
        identity.verify_receipt(Receipt.from_bytes(witness.receipt))
    except (VerifyError, FormatError) as exc:
        return str(exc)
    return None


class _Tree:
    """The nodes of one label's tree in a file."""

    def __init__(self, read: Callable[[int, int], bytes], close: Callable[[], None], *, rebuilt: bool) -> None:
        self.close, self.rebuilt = close, rebuilt

        @lru_cache(maxsize=4096)
        def node_at(height: int, index: int) -> bytes:
            node = read(node_position(height, index) * _HASH_BYTES, _HASH_BYTES)
            if len(node) != _HASH_BYTES:
                raise ProofError("a node of the tree is not there")
            return node

        self.node_at: NodeAt = node_at


def _kept_tree(fs: Fs, plan: LabelPlan) -> _Tree | None:
    """The node file of the hub, if it reaches as far as the head."""
    try:
        file = fs.open(layout.nodes(plan.label))
    except OSError:
        return None
    if file.size() < node_count(plan.head) * _HASH_BYTES:
        file.close()
        return None
    return _Tree(lambda at, size: file.read_at(at, size), file.close, rebuilt=False)


def _rebuilt_tree(fs: Fs, plan: LabelPlan) -> _Tree:
    """From all leaves up to the head, into a file of its own: memory does not grow with the log."""
    file: IO[bytes] = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed with the tree
    try:
        mmr, pending = Mmr(), bytearray()
        for ref in plan.chunks:
            for batch in bronze.batches(fs, ref, _LEAVES, level="none", last=plan.head):
                for seq, leaf in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
                    if seq > plan.head:
                        continue
                    if leaf is None or seq != mmr.size + 1:
                        raise EvidenceFailed(f"label {plan.label.hex()}: entry {mmr.size + 1} is damaged or missing")
                    pending += b"".join(mmr.append(leaf))
            if len(pending) >= _WRITE_BYTES:
                _write_all(file, pending)
        _write_all(file, pending)
        if mmr.size != plan.head:
            raise EvidenceFailed(f"label {plan.label.hex()}: entry {mmr.size + 1} is missing")
    except BaseException:
        file.close()
        raise
    return _Tree(lambda at, size: os.pread(file.fileno(), size, at), file.close, rebuilt=True)


def _write_all(file: IO[bytes], pending: bytearray) -> None:
    view = memoryview(bytes(pending))
    while view:
        view = view[file.write(view) :]
    pending.clear()


class Prover:
    """Verifies entries of one plan. Use it as a context: it holds files."""

    def __init__(self, plan: Plan) -> None:
        self._fs = open_fs(plan.uri)
        self._identity = plan.identity
        self._labels = {one.label: one for one in plan.labels}
        self._trees: OrderedDict[bytes, _Tree] = OrderedDict()
        self._heads: dict[bytes, Receipt] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: tuple[type[BaseException] | None, BaseException | None, TracebackType | None]) -> None:
        for tree in self._trees.values():
            tree.close()
        self._trees.clear()

    def verify(
        self, label: bytes, stream_seq: int, leaf_hash: bytes, witness: Witness, *, signed: bool = False
    ) -> Verified:
        """EvidenceFailed unless everything holds. `signed` if an executor has verified the signatures already."""
        plan = self._labels[label]
        try:
            if not signed and (fault := signature_fault(self._identity, witness)):
                raise EvidenceFailed(fault)
            receipt = Receipt.from_bytes(witness.receipt)
            if (receipt.label, receipt.stream_seq, receipt.leaf_hash) != (label, stream_seq, leaf_hash):
                raise EvidenceFailed("the receipt is for another entry")
            self._prove(plan, receipt)
        except (VerifyError, FormatError) as exc:
            place = f"stream {plan.stream}, label {label.hex()}, entry {stream_seq}"
            raise EvidenceFailed(f"{place}: {exc}") from exc
        assert self._identity is not None  # noqa: S101 - without it no receipt verifies
        return Verified(
            receipt_id=receipt_id_of(leaf_hash),
            mmr_root=receipt.mmr_root.hex(),
            hub_id=self._identity.hub_id.hex(),
            label=label.hex(),
            stream_seq=stream_seq,
        )

    def _prove(self, plan: LabelPlan, receipt: Receipt) -> None:
        head = self._head(plan)
        tree = self._tree(plan)
        try:
            _check_proofs(tree.node_at, receipt, head)
        except ProofError:
            if tree.rebuilt:
                raise
            # The node file follows from the log and may be damaged while the log is whole.
            self._trees.pop(plan.label).close()
            tree = self._trees[plan.label] = _rebuilt_tree(self._fs, plan)
            _check_proofs(tree.node_at, receipt, head)

    def _head(self, plan: LabelPlan) -> Receipt:
        found = self._heads.get(plan.label)
        if found is None:
            found = plan.head_receipt
            if found is None or (found.label, found.stream_seq) != (plan.label, plan.head):
                raise EvidenceFailed(f"the receipt of the last entry, {plan.head}, cannot be read")
            if self._identity is None:
                raise EvidenceFailed("there is no identity of the hub to hold receipts to")
            self._identity.verify_receipt(found)
            self._heads[plan.label] = found
        return found

    def _tree(self, plan: LabelPlan) -> _Tree:
        tree = self._trees.get(plan.label)
        if tree is None:
            tree = self._trees[plan.label] = _kept_tree(self._fs, plan) or _rebuilt_tree(self._fs, plan)
            if len(self._trees) > _OPEN_TREES:
                self._trees.popitem(last=False)[1].close()
        else:
            self._trees.move_to_end(plan.label)
        return tree


def _check_proofs(node_at: NodeAt, receipt: Receipt, head: Receipt) -> None:
    seq, leaf = receipt.stream_seq, receipt.leaf_hash
    prove_inclusion(node_at, seq).verify(leaf_hash=leaf, stream_seq=seq, expected_root=receipt.mmr_root)
    prove_inclusion(node_at, seq, head.stream_seq).verify(
        leaf_hash=leaf, stream_seq=seq, expected_root=head.mmr_root, tree_size=head.stream_seq
    )
