"""Receipts, proofs and checkpoints on demand, verified against earlier proofs (spec §4.4.1, §5, D-33, D-40)."""

from dataclasses import dataclass

from veen.client.errors import BadAnswer, Divergence, HubRefused, ProofInvalid, Rewound
from veen.client.identity.keyring import Stream
from veen.client.read.reading import check_checkpoint
from veen.client.session import HubSession
from veen.client.transport.calls import is_not_found
from veen.client.verify.advance import accuse
from veen.client.verify.labels import Labels, Target
from veen.client.verify.view import LabelView
from veen.core.errors import ProofError
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import AnchorPublish, ControlRecord
from veen.core.objects.evidence import Equivocation
from veen.core.objects.receipt import Receipt
from veen.core.objects.tooling import AnchorRequest, AnchorResponse, OkResponse
from veen.core.tree.proof import ConsistencyProof, MmrProof


@dataclass(frozen=True, slots=True, kw_only=True)
class Proven:
    """An entry, and the proof of it under a root that the hub signed."""

    receipt: Receipt
    proof: MmrProof
    tree_size: int
    root: bytes

    def _repr_html_(self) -> str:
        """Return the picture of the proof, for notebooks."""
        from veen.client.read.picture import proof_html

        return proof_html(self)


class Evidence:
    """The evidence that a client can show to others."""

    def __init__(self, session: HubSession, labels: Labels) -> None:
        self._session, self._labels = session, labels

    async def receipt(self, stream: Stream, seq: int, *, epoch: int | None = None) -> Receipt:
        """Return the receipt of an entry. If the log was verified up to there before, it must be of that log."""
        target, view = await self._find_view(stream, epoch)
        return await self._receipt(target, view, seq)

    async def proof(
        self, stream: Stream, seq: int, *, tree_size: int | None = None, epoch: int | None = None
    ) -> Proven:
        """Return the inclusion proof of an entry under the root of its own receipt, or of a later one (D-34)."""
        target, view = await self._find_view(stream, epoch)
        receipt = await self._receipt(target, view, seq)
        if tree_size is None or tree_size == seq:
            proof = await self._session.proof(receipt)
            return Proven(receipt=receipt, proof=proof, tree_size=seq, root=receipt.mmr_root)
        later = await self._receipt(target, view, tree_size)
        proof = await self._session.proof_at(receipt, tree_size, later.mmr_root)
        return Proven(receipt=receipt, proof=proof, tree_size=tree_size, root=later.mmr_root)

    async def consistency(
        self, stream: Stream, from_size: int, to_size: int, *, epoch: int | None = None
    ) -> ConsistencyProof:
        """Prove that the log only grew between two sizes, under the roots that the hub signed for them."""
        target, view = await self._find_view(stream, epoch)
        older = await self._receipt(target, view, from_size)
        newer = await self._receipt(target, view, to_size)
        return await self._prove_growth(target.label, from_size, older.mmr_root, to_size, newer.mmr_root)

    async def checkpoint(self, stream: Stream, upto_seq: int | None = None, *, epoch: int | None = None) -> Checkpoint:
        """Return the latest checkpoint, or one of an earlier prefix. It must be of the log that was verified before."""
        target, view = await self._find_view(stream, epoch)
        try:
            checkpoint = await self._session.checkpoint(target.stream_id, target.label, upto_seq)
            if upto_seq is None:
                check_checkpoint(self._session, view, checkpoint)
            else:
                view.check_known(checkpoint, self._session.pin, self._session.epoch_sec)
            await self._check_fits(view, checkpoint.upto_seq, checkpoint.mmr_root)
        except Divergence as exc:
            raise await accuse(self._session, view, exc) from exc
        except HubRefused as exc:
            raise _divergence_if_proven(exc, view, upto_seq or 1) from exc
        return checkpoint

    async def checkpoints(self, stream: Stream) -> list[Checkpoint]:
        """Return the latest checkpoint of every label of a stream, by epoch, each verified like `checkpoint`."""
        target = await self._labels.find(stream)
        epochs = [target.epoch] if target.stream_id is None else await self._session.epochs_of(target.stream_id)
        return [await self.checkpoint(stream, epoch=epoch) for epoch in epochs]

    async def anchor(self, stream: Stream, upto_seq: int | None = None, *, epoch: int | None = None) -> ControlRecord:
        """Have the hub anchor a checkpoint outside of its log (D-104), which requires its admin token.

        Return the verified record: signed by the hub, and about the root of a checkpoint of this log.
        """
        checkpoint = await self.checkpoint(stream, upto_seq, epoch=epoch)
        request = AnchorRequest(label=checkpoint.label_curr, upto_seq=checkpoint.upto_seq)
        record = (await self._session.calls.ask("tooling/anchor", request, AnchorResponse)).record
        body, wanted = record.body, (checkpoint.label_curr, checkpoint.upto_seq, checkpoint.mmr_root)
        if not isinstance(body, AnchorPublish) or (body.label, body.upto_seq, body.mmr_root) != wanted:
            raise BadAnswer("tooling/anchor: the record is not of the checkpoint that was to be anchored")
        self._session.pin.check_control(record)
        return record

    async def report(self, evidence: Equivocation) -> None:
        """Report proof against the hub to it; its operator may not know."""
        evidence.verify()
        await self._session.calls.ask("tooling/report_equivocation", evidence, OkResponse)

    async def _find_view(self, stream: Stream, epoch: int | None) -> tuple[Target, LabelView]:
        target = await self._labels.find(stream, epoch)
        return target, (await self._labels.writer(target)).view.copy()

    async def _receipt(self, target: Target, view: LabelView, seq: int) -> Receipt:
        try:
            receipt = await self._session.receipt(target.label, seq)
            view.check_known(receipt, self._session.pin)
            if seq < view.size:
                await self._check_fits(view, seq, receipt.mmr_root)
        except Divergence as exc:
            raise await accuse(self._session, view, exc) from exc
        except HubRefused as exc:
            raise _divergence_if_proven(exc, view, seq) from exc
        self._session.check_epoch(receipt, target.epoch)
        return receipt

    async def _check_fits(self, view: LabelView, size: int, root: bytes) -> None:
        """Check that a signed root and the known view are of one log that only grew."""
        if view.root is None or size == view.size:
            return
        older, newer = sorted(((size, root), (view.size, view.root)))
        await self._prove_growth(view.label, *older, *newer)

    async def _prove_growth(
        self, label: bytes, from_size: int, from_root: bytes, to_size: int, to_root: bytes
    ) -> ConsistencyProof:
        proof = await self._session.consistency(label, from_size, to_size)
        try:
            proof.verify(from_size=from_size, from_root=from_root, to_size=to_size, to_root=to_root)
        except ProofError as exc:
            raise ProofInvalid(str(exc), label=label, seq=to_size) from exc
        return proof


def _divergence_if_proven(error: HubRefused, view: LabelView, seq: int) -> HubRefused | Rewound:
    """Return a divergence for NOT_FOUND about an entry that was proven to exist, else the refusal itself."""
    if not is_not_found(error) or seq > view.size or error.detail.get("reason") in ("pruned", "key_retired"):
        return error
    return Rewound("the hub does not know what it proved before", label=view.label, seq=seq, expected=view.size)
