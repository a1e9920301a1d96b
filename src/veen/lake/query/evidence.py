"""Verification of the receipts and proofs behind rows (QRY-18, QRY-19, SDR-09).

For an entry: its author's signature, the hub's signature on its receipt under a key valid at that time, a proof that it
is under the root of its own receipt, and a proof that it is under the root at the head that the result names, whose
receipt is verified as well. The first failure in logical order ends the query.

Proofs need nodes of the tree. The node file of a hub is used where there is one: it need not be trusted, since every
proof is checked against signed roots. Elsewhere, or if a proof fails, the tree is rebuilt from the leaves.

Tasks of a parallel execution verify the entries that they open, by the node file. An entry that a task cannot verify
goes to the driver unchanged, and is verified there: so a tree is rebuilt once and not by every task, and a failure is
reported in the same words and at the same place in the order as by one process.
"""

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from types import TracebackType
from typing import IO, Final, Self

from veen.core.errors import FormatError, ProofError, VerifyError
from veen.core.lru import Lru
from veen.core.objects.receipt import Receipt
from veen.core.tree.mmr import Mmr, NodeAt, node_count, node_position
from veen.core.tree.proof import prove_inclusion
from veen.io.local import Fs
from veen.io.places import open_fs
from veen.lake.log.columns import ENTRIES, select_columns
from veen.lake.log.entries import ReadSpec, batches
from veen.lake.log.prefix import LabelRange, Prefix
from veen.lake.log.slices import Slice
from veen.lake.query.descriptor import QueryDescriptor
from veen.lake.query.digest import Verified
from veen.lake.query.errors import EvidenceFailed
from veen.lake.query.fields import receipt_id_of
from veen.lake.query.matches import Match, signature_fault
from veen.storage import layout

Leaves = Callable[[LabelRange], Iterator[tuple[int, bytes | None]]]  # positions and leaves of a label, in order

_HASH_BYTES: Final = 32
_OPEN_TREES: Final = 32
_WRITE_BYTES: Final = 1 << 20
_LEAVES: Final = ReadSpec(columns=select_columns(["stream_seq", "leaf_hash"], ENTRIES), level="none")


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


def _open_tree(fs: Fs, label_range: LabelRange) -> _Tree | None:
    """Open the node file of the hub, if it reaches the head."""
    try:
        file = fs.open(layout.nodes(label_range.label))
    except OSError:
        return None
    if file.size() < node_count(label_range.head) * _HASH_BYTES:
        file.close()
        return None
    return _Tree(lambda at, size: file.read_at(at, size), file.close, rebuilt=False)


def _leaves_of(fs: Fs, label_range: LabelRange) -> Iterator[tuple[int, bytes | None]]:
    for chunk in label_range.chunks:
        for batch in batches(fs, Slice.whole(chunk), _LEAVES):
            yield from zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)


def _rebuild_tree(leaves: Iterator[tuple[int, bytes | None]], label_range: LabelRange) -> _Tree:
    """Rebuild the tree from all leaves up to the head in a temporary file: memory does not grow with the log."""
    file: IO[bytes] = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - closed with the tree
    try:
        mmr, pending = Mmr(), bytearray()
        for seq, leaf in leaves:
            if seq > label_range.head:
                continue
            if leaf is None or seq != mmr.size + 1:
                raise EvidenceFailed(f"label {label_range.label.hex()}: entry {mmr.size + 1} is damaged or missing")
            pending += b"".join(mmr.append(leaf))
            if len(pending) >= _WRITE_BYTES:
                _write_all(file, pending)
        _write_all(file, pending)
        if mmr.size != label_range.head:
            raise EvidenceFailed(f"label {label_range.label.hex()}: entry {mmr.size + 1} is missing")
    except BaseException:
        file.close()
        raise
    return _Tree(lambda at, size: os.pread(file.fileno(), size, at), file.close, rebuilt=True)


def _write_all(file: IO[bytes], pending: bytearray) -> None:
    view = memoryview(bytes(pending))
    while view:
        view = view[file.write(view) :]
    pending.clear()


class NoNodes(Exception):
    """A node file that is missing or does not prove an entry, where the prover must not rebuild the tree."""


class Prover:
    """Verifier of the matches of one query. Use it as a context: it holds files.

    `leaves` has the positions and leaves of a label, for a log whose files are not in the directory of the prefix.
    Without `rebuilds` only the node file is used, and NoNodes raised if it does not suffice.
    """

    def __init__(
        self, prefix: Prefix, descriptor: QueryDescriptor, leaves: Leaves | None = None, *, rebuilds: bool = True
    ) -> None:
        self._fs = open_fs(prefix.uri)
        self._leaves, self._rebuilds = leaves, rebuilds
        self._identity = prefix.identity
        self._names = descriptor.stream_names
        self._labels = {label_range.label: label_range for label_range in prefix.labels}
        self._trees: Lru[bytes, _Tree] = Lru(_OPEN_TREES, leave=lambda tree: tree.close())
        self._heads: dict[bytes, Receipt] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: tuple[type[BaseException] | None, BaseException | None, TracebackType | None]) -> None:
        self._trees.clear()

    def verify_signed(self, matches: Iterable[Match]) -> Iterator[Match]:
        """Verify matches in a task, their signatures excepted; replace the witness of each by its evidence.

        A match that cannot be verified here stays as it is.
        """
        for match in matches:
            try:
                verified = None if match.fault is not None else self.verify(match, signed=True).to_bytes()
            except (NoNodes, EvidenceFailed):
                verified = None
            yield match if verified is None else match._replace(witness=None, verified=verified)

    def verify(self, match: Match, *, signed: bool = False) -> Verified:
        """Verify a match. Raise EvidenceFailed if a check fails. `signed`: its signatures were verified already."""
        label, stream_seq, leaf_hash, witness = match.label, match.stream_seq, match.leaf_hash, match.witness
        label_range = self._labels[label]
        assert witness is not None  # noqa: S101 - only a query that asks for evidence comes here
        try:
            if not signed and (fault := signature_fault(self._identity, witness)):
                raise EvidenceFailed(fault)
            receipt = Receipt.from_bytes(witness.receipt)
            if (receipt.label, receipt.stream_seq, receipt.leaf_hash) != (label, stream_seq, leaf_hash):
                raise EvidenceFailed("the receipt is for another entry")
            self._prove(label_range, receipt)
        except (VerifyError, FormatError) as exc:
            place = (
                f"stream {self._names[label_range.stream.stream_id or b'']}, label {label.hex()}, entry {stream_seq}"
            )
            raise EvidenceFailed(f"{place}: {exc}") from exc
        assert self._identity is not None  # noqa: S101 - without it no receipt verifies
        return Verified(
            receipt_id=receipt_id_of(leaf_hash),
            mmr_root=receipt.mmr_root.hex(),
            hub_id=self._identity.hub_id.hex(),
            label=label.hex(),
            stream_seq=stream_seq,
        )

    def _prove(self, label_range: LabelRange, receipt: Receipt) -> None:
        head = self._head(label_range)
        tree = self._tree(label_range)
        try:
            _check_proofs(tree.node_at, receipt, head)
        except ProofError:
            if tree.rebuilt:
                raise
            # The node file follows from the log and may be damaged while the log is whole.
            tree = self._rebuild(label_range)
            self._trees.put(label_range.label, tree)
            _check_proofs(tree.node_at, receipt, head)

    def _head(self, label_range: LabelRange) -> Receipt:
        receipt = self._heads.get(label_range.label)
        if receipt is None:
            receipt = label_range.head_receipt
            if receipt is None or (receipt.label, receipt.stream_seq) != (label_range.label, label_range.head):
                raise EvidenceFailed(f"the receipt of the last entry, {label_range.head}, cannot be read")
            if self._identity is None:
                raise EvidenceFailed("there is no identity of the hub to hold receipts to")
            self._identity.verify_receipt(receipt)
            self._heads[label_range.label] = receipt
        return receipt

    def _tree(self, label_range: LabelRange) -> _Tree:
        tree = self._trees.get(label_range.label)
        if tree is None:
            tree = (None if self._leaves else _open_tree(self._fs, label_range)) or self._rebuild(label_range)
            self._trees.put(label_range.label, tree)
        return tree

    def _rebuild(self, label_range: LabelRange) -> _Tree:
        if not self._rebuilds:
            raise NoNodes
        leaves = self._leaves(label_range) if self._leaves else _leaves_of(self._fs, label_range)
        return _rebuild_tree(leaves, label_range)


def _check_proofs(node_at: NodeAt, receipt: Receipt, head: Receipt) -> None:
    seq, leaf = receipt.stream_seq, receipt.leaf_hash
    prove_inclusion(node_at, seq).verify(leaf_hash=leaf, stream_seq=seq, expected_root=receipt.mmr_root)
    prove_inclusion(node_at, seq, head.stream_seq).verify(
        leaf_hash=leaf, stream_seq=seq, expected_root=head.mmr_root, tree_size=head.stream_seq
    )
