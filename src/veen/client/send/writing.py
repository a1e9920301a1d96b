"""The writer of one label: it numbers messages, sends them, and accepts a receipt only with its proof (spec §9,
D-56, D-66).

The order of steps, so that a crash at any point loses nothing and doubles nothing: seal, save, send, verify, advance
the view, save. Saved messages without a receipt are sent again byte for byte before anything new: a message is durable
at the client from `_save` in `send` on, and in the log from its verified receipt on.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from veen.client.errors import Divergence, HubRefused, NetworkError, ReceiptMismatch, RotationDue, UnknownStream
from veen.client.read.reading import Resynced, apply_replay, replay
from veen.client.send.sealing import Draft, Prepared, Sealer
from veen.client.send.submitting import Delivered, Submitter
from veen.client.session import HubSession
from veen.client.state import LabelState, Mode, PendingNote, StateStore
from veen.client.transport.calls import place_of, refusal_of
from veen.client.verify.advance import accuse, advance
from veen.client.verify.pin import HubPin
from veen.client.verify.view import LabelView
from veen.core.errors import Refusal, VeenError
from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt
from veen.core.objects.speaking import SPEAKS_SCHEMA
from veen.core.objects.tooling import ClientCursorResponse

_MAX_RECOVERED: Final = 65_536
_MAX_ASKED: Final = 16  # messages that are looked up one by one; more are found faster by reading the log
_SAVE_SECONDS: Final = 0.25  # between two saves during a long run of prepared messages
# Refusals of a client key: its pending messages are sealed again by the next one, if the log does not have them.
KEY_ENDED: Final = frozenset((Refusal.CLIENT_LIFETIME, Refusal.CLIENT_QUOTA))
_RETIRED: Final = KEY_ENDED | {Refusal.CAP_TTL}
# Refusals after which the same message may be sealed again: order or time differ between client and hub.
_RESEAL: Final = frozenset((Refusal.DUPLICATE, Refusal.CLIENT_SEQ, Refusal.PREV_ACK, Refusal.EPOCH))


class Sent:
    """An admitted message whose place is proven, under a root that the hub signed.

    In a batch one signature, that of the last receipt, covers the receipts before it; each of those has its own
    signature checked on first access, so no unchecked receipt is ever returned.
    """

    __slots__ = ("_checked", "_pin", "_receipt", "is_late", "mode", "raw")

    def __init__(self, raw: bytes, receipt: Receipt, pin: HubPin, mode: Mode, *, checked: bool) -> None:
        self.raw, self.mode = raw, mode
        self.is_late = False  # True if an earlier call sealed it and got no answer
        self._receipt, self._pin, self._checked = receipt, pin, checked

    @property
    def receipt(self) -> Receipt:
        if not self._checked:
            self._pin.check_receipt(self._receipt)
            self._checked = True
        return self._receipt

    @property
    def msg(self) -> Msg:
        return Msg.from_bytes(self.raw)

    @property
    def seq(self) -> int:
        return self._receipt.stream_seq

    @property
    def root(self) -> bytes:
        return self._receipt.mmr_root

    @property
    def msg_id(self) -> bytes:
        return self._receipt.leaf_hash

    @property
    def label(self) -> bytes:
        return self._receipt.label

    def __repr__(self) -> str:
        return f"Sent(seq={self.seq}, msg_id={self.msg_id.hex()[:16]}…, mode={self.mode!r})"

    def _repr_html_(self) -> str:
        """Return the card for notebooks."""
        from veen.client.read.picture import message_html

        return message_html(self)


@dataclass(slots=True)
class Heir:
    """The writer of the next client key on the same label, the keys to seal with, and the messages to send first."""

    writer: "Writer"
    auth_ref: bytes | None
    reader_pk: bytes | None
    first: tuple[Draft, ...] = ()  # empty once it is saved


Outcome = Sent | VeenError  # a refusal of the hub, or a message that is too large


class Writer:
    """The state of one client key on one label, in memory and on disk.

    Fields are owned by the event loop's thread and changed under `lock`, except by `prepare`, which does not await.
    `state` is saved before it is replaced here; only between two batches of one call it is ahead of the disk
    (`_advance`), and a crash then loses nothing that the log does not have. `view` ends at the newest verified entry.
    `_prepared_seq` is `state.client_seq` unless messages were prepared that are not sent yet.
    """

    def __init__(
        self,
        session: HubSession,
        store: StateStore,
        sealer: Sealer | None,
        state: LabelState,
        *,
        epoch: int,
        upload: Callable[[Prepared], Awaitable[None]] | None = None,
        cursor: Callable[[int], Awaitable[ClientCursorResponse | None]] | None = None,
    ) -> None:
        self.session, self.epoch, self.state = session, epoch, state
        self._store, self._sealer, self._upload, self._cursor = store, sealer, upload, cursor
        self._submitter = Submitter(session)
        self.view = _view_of(state)
        self.lock = asyncio.Lock()
        self.heir: Heir | None = None  # of a retired client key: the writer that takes over refused messages
        self.refusal: HubRefused | None = None  # of the last message that must be sealed again
        self.recovered: deque[Sent] = deque(maxlen=_MAX_RECOVERED)  # accepted after their senders had got an error
        self._prepared_seq = state.client_seq  # client_seq of the last prepared message

    @property
    def label(self) -> bytes:
        return self.state.label

    @property
    def next_seq(self) -> int:
        return self._prepared_seq + 1

    @property
    def is_busy(self) -> bool:
        """True while something exists only in this object and not on disk."""
        return self.lock.locked() or bool(self.recovered) or self._prepared_seq != self.state.client_seq

    # --- preparing -------------------------------------------------------------------------------------

    def prepare(
        self, drafts: Sequence[Draft], auth_ref: bytes | None, reader_pk: bytes | None = None
    ) -> list[Prepared]:
        """Seal ahead. Send the results in this order and before anything else; unsent ones leave no trace."""
        messages = []
        for draft in drafts:
            self._prepared_seq += 1
            messages.append(self._seal(draft, self._prepared_seq, auth_ref, reader_pk))
        return messages

    def withdraw_prepared(self) -> None:
        """Free the numbers of prepared messages: the next message follows the last accepted one."""
        self._prepared_seq = self.state.client_seq

    def _seal(self, draft: Draft, client_seq: int, auth_ref: bytes | None, reader_pk: bytes | None) -> Prepared:
        if self._sealer is None:
            raise UnknownStream(f"label:{self.label.hex()}")  # a bare label: the reader key is not known
        return self._sealer.seal(
            draft, client_seq=client_seq, prev_ack=self.state.prev_ack, auth_ref=auth_ref, reader_pk=reader_pk
        )

    # --- sending ---------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """Send pending messages of an earlier run or a lost answer again. The results are added to `recovered`."""
        if not self.state.pending:
            return
        waiting = [Prepared.of(pending.msg) for pending in self.state.pending]
        outcomes = await self._confirm(waiting, unsure=True)
        self.recovered.extend(outcome for outcome in outcomes if isinstance(outcome, Sent))

    def find_retried(self, drafts: Sequence[Draft]) -> dict[int, int]:
        """Return the number of each draft that equals a pending message, with the client_seq of that message, each
        once."""
        if self._sealer is None or not self.state.pending:
            return {}
        waiting: dict[bytes, list[int]] = {}
        for client_seq, note in sorted(self._store.notes(self.state).items()):
            waiting.setdefault(note.tag, []).append(client_seq)
        same: dict[int, int] = {}
        for number, draft in enumerate(drafts):
            if candidates := waiting.get(self._sealer.tag(draft)):
                same[number] = candidates.pop(0)
        return same

    def take_recovered(self, client_seqs: set[int]) -> dict[int, Sent]:
        """Remove the requested messages from `recovered` and return them by client_seq."""
        recovered = {sent.msg.client_seq: sent for sent in self.recovered} if client_seqs else {}
        asked = {client_seq: sent for client_seq, sent in recovered.items() if client_seq in client_seqs}
        for sent in asked.values():
            self.recovered.remove(sent)
        return asked

    async def drop(self) -> tuple[int, int]:
        """Drop pending messages; return the number that the log turned out to have, and the number dropped."""
        if not self.state.pending:
            return 0, 0
        done = await self.resync()
        waiting = self.state.pending
        if waiting:
            await self._save(self.state.withdraw(waiting[0].client_seq))
            self._prepared_seq = self.state.client_seq
        return done.confirmed, done.dropped + len(waiting)

    async def send(
        self,
        drafts: Sequence[Draft],
        auth_ref: bytes | None,
        reader_pk: bytes | None = None,
        *,
        once: bool = False,
    ) -> list[Outcome | None]:
        """Return one outcome per draft; None where the message must be sealed again (see `refusal`).

        They are sealed to `reader_pk`: the key of a stream changes with its generations, the writer stays. With
        `once`, a draft that equals a pending message of an earlier call is that message, and is not sent a second
        time.
        """
        retried = await asyncio.to_thread(self.find_retried, drafts) if once else {}
        await self.settle()
        late = self.take_recovered(set(retried.values()))
        outcomes: list[Outcome | None] = [None] * len(drafts)
        sealed: list[tuple[int, Prepared]] = []
        for number, draft in enumerate(drafts):
            if (sent := late.get(retried.get(number, 0))) is not None:
                sent.is_late = True
                outcomes[number] = sent
                continue
            try:
                prepared = self._seal(draft, self.state.client_seq + len(sealed) + 1, auth_ref, reader_pk)
            except VeenError as exc:  # too large: it uses no number
                outcomes[number] = exc
                continue
            if prepared.attachments is not None and self._upload is not None:
                await self._upload(prepared)  # first: readers of the message must be able to fetch them
            sealed.append((number, prepared))
        if sealed:
            messages = [prepared for _, prepared in sealed]
            # Saved before the first byte leaves: after a crash the same bytes are sent again, and never other bytes
            # under the same client_seq, which would be equivocation of this client (D-76).
            await self._save(
                self.state.with_pending(*[message.raw for message in messages]),
                {message.client_seq: self._note(drafts[number], message.raw) for number, message in sealed},
            )
            self._prepared_seq = self.state.client_seq
            for (number, _), outcome in zip(sealed, await self._confirm(messages), strict=True):
                outcomes[number] = outcome
        return outcomes

    async def send_prepared(self, batches: Sequence[Sequence[Prepared]]) -> list[Outcome]:
        """Send prepared messages batch by batch; while one is on its way, the one before is verified and saved.

        The caller keeps the messages until this returns, so they are not saved here; sending them again is safe.
        """
        await self.settle()
        outcomes: list[Outcome] = []
        saved = time.monotonic()
        flight = self._launch(batches, 0)
        try:
            for number, batch in enumerate(batches):
                assert flight is not None  # noqa: S101 - there is one for each batch
                delivered = await flight
                clean = all(isinstance(answer, Receipt) for answer in delivered.answers)
                flight = self._launch(batches, number + 1) if clean else None
                accepted, answers = await self._match_receipts(batch, delivered.answers)
                await self._absorb(accepted)
                self._advance(accepted)
                outcomes += self._outcomes(list(zip(batch, answers, strict=True)))
                if time.monotonic() - saved > _SAVE_SECONDS:
                    await self._save(self.state)
                    saved = time.monotonic()
                flight = flight or self._launch(batches, number + 1)
        finally:
            if flight is not None:
                flight.cancel()
                await asyncio.gather(flight, return_exceptions=True)
            await self._save(self.state)
        self._prepared_seq = max(self._prepared_seq, self.state.client_seq)
        return outcomes

    def _advance(self, accepted: Sequence[tuple[Prepared, Receipt]]) -> None:
        """Apply these receipts in memory: the log has everything that a crash would lose."""
        if accepted:
            last = max(message.client_seq for message, _ in accepted)
            state = self._apply_receipts(accepted)
            self.state = replace(state, client_seq=max(state.client_seq, last))

    def _launch(self, batches: Sequence[Sequence[Prepared]], number: int) -> "asyncio.Task[Delivered] | None":
        if number >= len(batches):
            return None
        batch = batches[number]
        return asyncio.create_task(self._submitter.deliver(batch, batched=len(batch) > 1))

    async def resync(self) -> Resynced:
        """Read the log to its end and apply what it shows about this client key."""
        done = await replay(self.session, self.view, self.state.client_id, self.epoch)
        state, confirmed, dropped = apply_replay(self.state, done)
        await self.save_seen(state, done.view)
        return Resynced(
            label=self.label,
            read=done.read,
            stream_seq=self.view.size,
            mmr_root=self.view.root,
            client_seq=self.state.client_seq,
            confirmed=confirmed,
            dropped=dropped,
            warnings=tuple(done.warnings),
        )

    async def _confirm(self, messages: Sequence[Prepared], *, unsure: bool = False) -> list[Outcome | None]:
        """Send messages that are saved as pending, and settle each: confirmed, or withdrawn with all that follow.

        `unsure`: they were sent before, so a refusal does not prove that they are not in the log.
        """
        try:
            delivered = await self._submitter.deliver(messages, batched=len(messages) > 1)
        except HubRefused:
            # The hub accepts nothing now, but it may have accepted these before: an earlier answer was lost (D-162).
            receipts = await self._ask_for(messages)
            if len(receipts) < len(messages):
                raise
            delivered = Delivered(len(messages))
            delivered.answers = [receipts[message.leaf_hash] for message in messages]
        accepted, answers = await self._match_receipts(messages, delivered.answers)
        if (unsure or delivered.unsure) and len(accepted) < len(messages):
            # A refusal after a lost answer does not prove that the first attempt failed, so the log decides.
            logged = await self._look_for(messages)
            answers = [logged.get(message.leaf_hash, answer) for message, answer in zip(messages, answers, strict=True)]
            accepted = [(m, a) for m, a in zip(messages, answers, strict=True) if isinstance(a, Receipt)]
        await self._absorb(accepted)
        state = self._apply_receipts(accepted)
        outcomes: list[Outcome | None] = list(self._outcomes(list(zip(messages, answers, strict=True))))
        first_refused = next((n for n, answer in enumerate(answers) if isinstance(answer, HubRefused)), None)
        if first_refused is None:
            await self._save(state)
            return outcomes
        refusal = answers[first_refused]
        if self.heir is not None and isinstance(refusal, HubRefused) and refusal_of(refusal) in _RETIRED:
            await self._hand_over(self.heir, state, messages[first_refused:])
            return outcomes
        await self._save(state.withdraw(messages[first_refused].client_seq))
        self._prepared_seq = self.state.client_seq
        return await self._mark_for_resealing(outcomes, first_refused)

    async def _hand_over(self, heir: "Heir", state: LabelState, refused: Sequence[Prepared]) -> None:
        """Have the next client key seal messages that the hub refused from this one and the log does not have.

        Both states are saved in one step: after a crash before it the old messages are sent again, after a crash
        behind it the new ones. Raise RotationDue if the draft of a message was not kept: then all of them stay as
        they are.
        """
        drafts = await asyncio.to_thread(self._restore_drafts, state, refused)
        if drafts:
            drafts = [*heir.first, *drafts]
        async with heir.writer.lock:
            state_after, notes = await heir.writer.take_over(drafts, heir.auth_ref, heir.reader_pk)
            withdrawn = state.withdraw(refused[0].client_seq)
            await asyncio.to_thread(partial(self._store.save, state_after, withdrawn, notes=notes))
            self.state = withdrawn
            heir.writer.use_taken_over(state_after)
            if drafts:
                heir.first = ()

    def _restore_drafts(self, state: LabelState, refused: Sequence[Prepared]) -> list[Draft]:
        sealed_drafts, drafts = self._store.drafts(state), []
        for message in refused:
            sealed = sealed_drafts.get(message.client_seq)
            draft = self._sealer.restore(sealed, message.raw) if self._sealer and sealed else None
            if draft is None:
                raise RotationDue(
                    f"message {message.client_seq} of a retired client key is pending, the hub refuses this key, and"
                    " its content was not kept: drop it with `veen pending drop`, then send it again"
                )
            if draft.schema != SPEAKS_SCHEMA:  # bindings of the retired key are dropped
                drafts.append(draft)
        return drafts

    async def take_over(
        self, drafts: Sequence[Draft], auth_ref: bytes | None, reader_pk: bytes | None
    ) -> tuple[LabelState, dict[int, PendingNote]]:
        """Seal messages that another client key could not deliver; return the state to save, and notes about its
        pending messages."""
        start = self.state.client_seq + 1
        sealed = [
            self._seal(draft, client_seq, auth_ref, reader_pk) for client_seq, draft in enumerate(drafts, start=start)
        ]
        for message in sealed:
            if message.attachments is not None and self._upload is not None:
                await self._upload(message)
        notes = {
            message.client_seq: self._note(draft, message.raw) for message, draft in zip(sealed, drafts, strict=True)
        }
        return self.state.with_pending(*[message.raw for message in sealed]), notes

    def use_taken_over(self, state: LabelState) -> None:
        """Continue with the saved state that `take_over` returned."""
        self.state = state
        self._prepared_seq = state.client_seq

    async def _mark_for_resealing(self, outcomes: list[Outcome | None], first: int) -> list[Outcome | None]:
        """Mark messages to be sealed again: those after a refused one, refused only for their number, and perhaps
        that one."""
        refusal = outcomes[first]
        assert isinstance(refusal, HubRefused)  # noqa: S101 - the caller checked it
        self.refusal = refusal
        reason = refusal_of(refusal)
        for number in range(first if reason in _RESEAL else first + 1, len(outcomes)):
            outcomes[number] = None
        if reason is Refusal.EPOCH:
            await self.session.refresh_status()
        elif reason in _RESEAL:
            await self.resync()
        return outcomes

    # --- believing -------------------------------------------------------------------------------------

    async def _match_receipts(
        self, messages: Sequence[Prepared], answers: Sequence[Receipt | HubRefused | None]
    ) -> tuple[list[tuple[Prepared, Receipt]], list[Receipt | HubRefused]]:
        """Return pairs of messages and receipts, and all answers.

        A refusal that names the place of the message counts as the receipt there, whatever the reason (D-56, D-161).
        """
        verified: list[Receipt | HubRefused] = []
        for message, answer in zip(messages, answers, strict=True):
            assert answer is not None  # noqa: S101 - `deliver` answers every message
            if isinstance(answer, HubRefused) and (seq := place_of(answer)) is not None:
                answer = await self._original(message, seq) or answer
            verified.append(answer)
        return [(m, a) for m, a in zip(messages, verified, strict=True) if isinstance(a, Receipt)], verified

    async def _original(self, message: Prepared, seq: int) -> Receipt | None:
        """Return the receipt at a place that the hub named, if its leaf is that of the message, else None."""
        receipt = await self.session.receipt(self.label, seq)
        return receipt if receipt.leaf_hash == message.leaf_hash else None

    async def _look_for(self, messages: Sequence[Prepared]) -> dict[bytes, Receipt]:
        """Return the receipts of messages in the log. A message counts as missing only after the log was read."""
        receipts = await self._ask_for(messages)
        if len(receipts) == len(messages):
            return receipts
        wanted = {message.leaf_hash for message in messages}
        own = (await replay(self.session, self.view, self.state.client_id, self.epoch)).own
        return {leaf_hash: receipt for leaf_hash, receipt in own.items() if leaf_hash in wanted}

    async def _ask_for(self, messages: Sequence[Prepared]) -> dict[bytes, Receipt]:
        """Return the receipts of messages that the hub claims to have. The receipts prove it, so a wrong claim adds
        nothing."""
        receipts: dict[bytes, Receipt] = {}
        if self._cursor is None or len(messages) > _MAX_ASKED:
            return receipts
        try:
            for message in messages:
                place = await self._cursor(message.client_seq)
                if place is None or place.stream_seq is None or place.leaf != message.leaf_hash:
                    break  # numbers have no gaps: later ones are missing, too
                if (receipt := await self._original(message, place.stream_seq)) is None:
                    break
                receipts[message.leaf_hash] = receipt
        except (HubRefused, NetworkError):
            pass  # no answer proves nothing: the caller continues with the known receipts
        return receipts

    async def _absorb(self, accepted: Sequence[tuple[Prepared, Receipt]]) -> None:
        """Advance the view over these receipts, in the order of the log; keep it once the last signature is
        verified."""
        if not accepted:
            return
        view = self.view.copy()
        last: Receipt | None = None
        try:
            for message, receipt in sorted(accepted, key=_place):
                if receipt.label != message.label or receipt.leaf_hash != message.leaf_hash:
                    raise ReceiptMismatch(
                        "the receipt is not for the message that was sent",
                        label=message.label,
                        seq=receipt.stream_seq,
                        expected=message.leaf_hash,
                        found=receipt.leaf_hash,
                    )
                self.session.check_epoch(receipt, self.epoch)
                ahead = receipt.stream_seq - view.size
                if ahead == 1 and view.is_whole:
                    view.append(message.leaf_hash, receipt)
                elif ahead >= 1:
                    await self._check_signed(receipt)  # before anything is fetched for it
                    await advance(self.session, view, receipt, message.leaf_hash, self.state.mode)
                else:
                    await self._check_within(view, receipt)
                    continue
                last = receipt
            if last is not None:
                await self._check_signed(last)
        except Divergence as exc:
            raise await accuse(self.session, self.view, exc) from exc
        self.view = view

    async def _check_signed(self, receipt: Receipt) -> None:
        await self.session.check_receipt(receipt, self.epoch)

    async def _check_within(self, view: LabelView, receipt: Receipt) -> None:
        """Check a receipt for a place that the view already covers: a retry, or a hub that gives one place twice."""
        await self._check_signed(receipt)
        self.view.check_known(receipt, self.session.pin)
        assert view.root is not None  # noqa: S101 - it covers at least one entry
        await self.session.proof_at(receipt, view.size, view.root)

    def _apply_receipts(self, accepted: Sequence[tuple[Prepared, Receipt]]) -> LabelState:
        """Return the state after these receipts, in one step."""
        receipts = {message.client_seq: receipt for message, receipt in accepted}
        return _with_view(self.state.with_receipts(receipts), self.view)

    def _outcomes(self, told: Sequence[tuple[Prepared, Receipt | HubRefused]]) -> list[Outcome]:
        pin, mode = self.session.pin, self.state.mode
        signed = self.view.last
        return [
            Sent(message.raw, answer, pin, mode, checked=answer is signed) if isinstance(answer, Receipt) else answer
            for message, answer in told
        ]

    # --- remembering -----------------------------------------------------------------------------------

    def _note(self, draft: Draft, raw: bytes) -> PendingNote:
        assert self._sealer is not None  # noqa: S101 - it sealed the draft
        return PendingNote(self._sealer.tag(draft), int(time.time()), self._sealer.keep(draft, raw))

    async def _save(self, state: LabelState, notes: Mapping[int, PendingNote] | None = None) -> None:
        await asyncio.to_thread(partial(self._store.save, state, notes=notes))
        self.state = state

    async def save_seen(self, state: LabelState, view: LabelView) -> None:
        """Save the view of a resync or a reader."""
        self.view = view
        await self._save(_with_view(state, view))
        self._prepared_seq = self.state.client_seq


def _place(pair: tuple[Prepared, Receipt]) -> int:
    return pair[1].stream_seq


def _view_of(state: LabelState) -> LabelView:
    last_receipt = state.last_receipt
    last = last_receipt if last_receipt is not None and last_receipt.stream_seq == state.last_stream_seq else None
    peaks = state.peaks if state.peaks or not state.last_stream_seq else None
    return LabelView(state.label, state.last_stream_seq, state.last_mmr_root, peaks=peaks, last=last)


def _with_view(state: LabelState, view: LabelView) -> LabelState:
    peaks = view.peaks if state.mode == "full" else ()
    return replace(
        state,
        last_stream_seq=view.size,
        last_mmr_root=view.root,
        peaks=peaks or (),
        last_receipt=view.last or state.last_receipt,
    )
