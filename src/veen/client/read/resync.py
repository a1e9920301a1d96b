"""Resync: read a label from the verified view to its end, verify every step, find the client's own messages (spec
§9, RESYNC0.2).

The log decides which messages were admitted; local state is a cache of it. Entries under this client's key are
trusted for client_seq because the key signed them. Nothing is accepted that contradicts earlier proofs: a resync
that finds a contradiction fails, and leaves the state as it was.
"""

from dataclasses import dataclass, field, replace

from veen.client.errors import Divergence, Dropped, HubRefused, Rewound, StaleCheckpoint
from veen.client.session import HubSession
from veen.client.state import LabelState
from veen.client.transport.calls import is_not_found
from veen.client.verify.advance import accuse, append_item, authors_after, receipt_of, run
from veen.client.verify.view import Forged, LabelView, contradiction
from veen.core.errors import VerifyError
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt
from veen.core.run_check import MAX_WARNINGS, Authors, warning_of


@dataclass(slots=True)
class Replay:
    """The findings of one run through the log."""

    view: LabelView
    authors: Authors
    read: int = 0
    last_ts: int = 0  # hub_ts of the last entry that was read
    warnings: list[str] = field(default_factory=list)
    client_seq: int = 0  # the highest one of this client key
    own: dict[bytes, Receipt] = field(default_factory=dict)  # by leaf_hash


@dataclass(frozen=True, slots=True, kw_only=True)
class Resynced:
    """The outcome of a resync, for people and programs."""

    label: bytes
    read: int  # entries that were read and verified
    stream_seq: int  # the last verified entry
    mmr_root: bytes | None
    client_seq: int  # the last one of this client key, in the log or pending
    confirmed: int = 0  # messages without a receipt that turned out to be in the log
    dropped: int = 0  # messages without a receipt that can no longer be admitted
    warnings: tuple[str, ...] = ()  # where hub_ts goes back (D-28)


async def replay(session: HubSession, known: LabelView, client_id: bytes, epoch: int) -> Replay:
    """Read from a verified view to the end of the log. The given view is not changed."""
    done = Replay(known.copy(), authors_after(known.size))
    try:
        if done.view.peaks is None:
            done.view.skip_to(known.size, await session.consistency(known.label, known.size, known.size))
        while await _read_to_end(session, done, client_id, epoch) > done.view.size:
            behind = done.view.size
            await _read_to_end(session, done, client_id, epoch)  # others wrote meanwhile
            if done.view.size == behind:
                raise Dropped("the hub signs entries that it does not serve", label=known.label, seq=behind + 1)
    except HubRefused as exc:
        if is_not_found(exc) and known.size and exc.detail.get("reason") != "pruned":
            raise Rewound(
                "the hub no longer has the label",
                label=known.label,
                seq=known.size,
                expected=known.size,
                found=0,
            ) from exc
        raise
    except Divergence as exc:
        raise await accuse(session, known, exc) from exc
    return done


async def _read_to_end(session: HubSession, done: Replay, client_id: bytes, epoch: int) -> int:
    """Read to the end; return the end of the log that the hub signs."""
    view = done.view
    try:
        async for items in run(session, view.label, view.size + 1, None):
            for item in items:
                receipt = receipt_of(item)
                warnings = append_item(view, item, done.authors, done.last_ts)
                done.warnings += [f"entry {fault.seq}: {warning_of(fault)}" for fault in warnings]
                del done.warnings[MAX_WARNINGS:]
                done.last_ts = receipt.hub_ts
                session.check_epoch(receipt, epoch)
                done.read += 1
                if item.msg.client_id == client_id:
                    _note_own(done, item.msg, receipt)
            assert view.last is not None  # noqa: S101 - a page has entries
            await session.check_receipt(view.last)  # its root covers the page
    except HubRefused as exc:
        if is_not_found(exc) and not view.size:
            return 0  # nobody wrote to this label yet
        raise
    if not view.size:
        return 0
    checkpoint = await session.checkpoint(None, view.label)
    check_checkpoint(session, view, checkpoint)
    return checkpoint.upto_seq


def check_checkpoint(session: HubSession, view: LabelView, checkpoint: Checkpoint) -> None:
    """Check that a latest checkpoint is not behind the view, and agrees with it at the same size (CKPT-11, D-40)."""
    if checkpoint.upto_seq < view.size:
        raise StaleCheckpoint(
            "the latest checkpoint ends before what the hub already proved",
            label=view.label,
            seq=checkpoint.upto_seq,
            expected=view.size,
            found=checkpoint.upto_seq,
        )
    if view.last is not None:
        contradiction(view.last, checkpoint, session.pin, session.epoch_sec)


def _note_own(done: Replay, msg: Msg, receipt: Receipt) -> None:
    try:
        msg.verify()
    except VerifyError as exc:
        raise Forged("an entry in our name that we did not sign", label=msg.label, seq=receipt.stream_seq) from exc
    done.client_seq = max(done.client_seq, msg.client_seq)
    done.own[msg.leaf_hash()] = receipt


def apply_replay(state: LabelState, done: Replay) -> tuple[LabelState, int, int]:
    """Return the state after a replay, and the numbers of pending messages that it confirmed and dropped."""
    waiting = [pending for pending in state.pending if Msg.from_bytes(pending.msg).leaf_hash() not in done.own]
    confirmed = len(state.pending) - len(waiting)
    base = max(state.client_seq - len(state.pending), done.client_seq)
    remaining = tuple(pending for number, pending in enumerate(waiting, start=base + 1) if pending.client_seq == number)
    fresh = replace(
        state, client_seq=base + len(remaining), prev_ack=max(state.prev_ack, done.view.size), pending=remaining
    )
    return fresh, confirmed, len(waiting) - len(remaining)
