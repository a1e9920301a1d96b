"""Receipts, proofs and checkpoints on demand, verified against what was proven before (spec §4.4.1, §5, D-33, D-40)."""

from dataclasses import dataclass

from veen.client.errors import BadAnswer, Divergence, HubRefused, ProofInvalid, Rewound
from veen.client.identity.keyring import Stream
from veen.client.read.resync import check_checkpoint
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
    """An entry, and the proof that it stands under a root that the hub signed."""

    receipt: Receipt
    proof: MmrProof
    tree_size: int
    root: bytes

    def _repr_html_(self) -> str:
        """For notebooks: the picture of the proof."""
        from veen.client.read.notebook import proof_html

        return proof_html(self)


class Evidence:
    """What a client can show to others."""

    def __init__(self, session: HubSession, labels: Labels) -> None:
        self._session, self._labels = session, labels

    async def receipt(self, stream: Stream, seq: int, *, epoch: int | None = None) -> Receipt:
        """The receipt of an entry; if the log was proven up to there before, it must be that log's."""
        target, view = await self._known(stream, epoch)
        return await self._receipt(target, view, seq)

    async def proof(
        self, stream: Stream, seq: int, *, tree_size: int | None = None, epoch: int | None = None
    ) -> Proven:
        """The inclusion proof of an entry under the root of its own receipt, or under that of a later one (D-34)."""
        target, view = await self._known(stream, epoch)
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
        """Proof that the log only grew between two sizes, under the roots that the hub signed for them."""
        target, view = await self._known(stream, epoch)
        older = await self._receipt(target, view, from_size)
        newer = await self._receipt(target, view, to_size)
        return await self._grown(target.label, from_size, older.mmr_root, to_size, newer.mmr_root)

    async def checkpoint(self, stream: Stream, upto_seq: int | None = None, *, epoch: int | None = None) -> Checkpoint:
        """The latest checkpoint, or one of an earlier prefix; it must be one log with what was proven before."""
        target, view = await self._known(stream, epoch)
        try:
            checkpoint = await self._session.checkpoint(target.stream_id, target.label, upto_seq)
            if upto_seq is None:
                check_checkpoint(self._session, view, checkpoint)
            else:
                view.check_known(checkpoint, self._session.pin, self._session.epoch_sec)
            await self._fits(view, checkpoint.upto_seq, checkpoint.mmr_root)
        except Divergence as exc:
            raise await accuse(self._session, view, exc) from exc
        except HubRefused as exc:
            raise _missing(exc, view, upto_seq or 1) from exc
        return checkpoint

    async def checkpoints(self, stream: Stream) -> list[Checkpoint]:
        """The latest checkpoint of every label of a stream, by epoch, each verified as `checkpoint` does."""
        target = await self._labels.find(stream)
        epochs = [target.epoch] if target.stream_id is None else await self._session.epochs_of(target.stream_id)
        return [await self.checkpoint(stream, epoch=epoch) for epoch in epochs]

    async def anchor(self, stream: Stream, upto_seq: int | None = None, *, epoch: int | None = None) -> ControlRecord:
        """Have the hub anchor a checkpoint outside of its log (D-104), which needs its admin token.

        The record of the anchor, verified: signed by the hub, and about the root of a checkpoint that fits the log.
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
        """Tell the hub that there is proof against it; its operator may not know."""
        evidence.verify()
        await self._session.calls.ask("tooling/report_equivocation", evidence, OkResponse)

    async def _known(self, stream: Stream, epoch: int | None) -> tuple[Target, LabelView]:
        target = await self._labels.find(stream, epoch)
        return target, (await self._labels.writer(target)).view.copy()

    async def _receipt(self, target: Target, view: LabelView, seq: int) -> Receipt:
        try:
            receipt = await self._session.receipt(target.label, seq)
            view.check_known(receipt, self._session.pin)
            if seq < view.size:
                await self._fits(view, seq, receipt.mmr_root)
        except Divergence as exc:
            raise await accuse(self._session, view, exc) from exc
        except HubRefused as exc:
            raise _missing(exc, view, seq) from exc
        self._session.check_epoch(receipt, target.epoch)
        return receipt

    async def _fits(self, view: LabelView, size: int, root: bytes) -> None:
        """A signed root and what is known must be of one log that only grew."""
        if view.root is None or size == view.size:
            return
        older, newer = sorted(((size, root), (view.size, view.root)))
        await self._grown(view.label, *older, *newer)

    async def _grown(
        self, label: bytes, from_size: int, from_root: bytes, to_size: int, to_root: bytes
    ) -> ConsistencyProof:
        proof = await self._session.consistency(label, from_size, to_size)
        try:
            proof.verify(from_size=from_size, from_root=from_root, to_size=to_size, to_root=to_root)
        except ProofError as exc:
            raise ProofInvalid(str(exc), label=label, seq=to_size) from exc
        return proof


def _missing(error: HubRefused, view: LabelView, seq: int) -> HubRefused | Rewound:
    """NOT_FOUND for an entry that was proven to be there is a divergence, not a refusal."""
    if not is_not_found(error) or seq > view.size or error.detail.get("reason") in ("pruned", "key_retired"):
        return error
    return Rewound("the hub does not know what it proved before", label=view.label, seq=seq, expected=view.size)
