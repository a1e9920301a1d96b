"""Reading a stream: every entry is verified, then opened (spec §9, §11.3, D-27, D-79, D-102b).

For each entry: the author's signature, the hub's signature under a key valid at hub_ts, the leaf, the place in the
tree, the epoch of its label, and that its author's numbers run without a gap. Only then is it opened (CLNT-05). An
entry that cannot be opened is yielded with the reason: any holder of the write key can seal invalid content, which is
not the hub's fault.

Resync: read a label from the verified view to its end, verify every step, find the client's own messages (spec
§9, RESYNC0.2).

The log decides which messages were admitted; local state is a cache of it. Entries under this client's key are
trusted for client_seq because the key signed them. Nothing is accepted that contradicts earlier proofs: a resync
that finds a contradiction fails, and leaves the state as it was.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from hmac import compare_digest
from typing import TYPE_CHECKING

from veen.client.errors import Divergence, Dropped, HubRefused, Rewound, RootMismatch, StaleCheckpoint
from veen.client.identity.keyring import StreamKeys
from veen.client.session import HubSession
from veen.client.state import LabelState
from veen.client.transport.calls import is_not_found
from veen.client.verify.advance import accuse, append_item, authors_after, receipt_of, run
from veen.client.verify.view import Forged, LabelView, contradiction, divergence
from veen.core.errors import AmbiguousError, FormatError, OpenError, VeenError, VerifyError
from veen.core.event import Event
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.envelopes import StreamItem
from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt
from veen.core.run_check import MAX_WARNINGS, Authors, Fault, Pair, Rule, check_signatures, warning_of
from veen.core.sealing.ciphertext import ATTACHED_SCHEMA, Attached, Attachment, Opened, att_root_of, open_with_one
from veen.core.tree.proof import MmrProof

if TYPE_CHECKING:
    from veen.client.generations.following import StreamFollow


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


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Entry:
    """One verified entry. `event` is set if it was opened; otherwise `error` has the reason."""

    msg: Msg
    receipt: Receipt
    epoch: int
    ts: int  # ts* (D-27)
    proof: MmrProof | None = None
    event: Event | None = None
    error: str | None = None
    warning: str | None = None  # hub_ts goes back: no reason to refuse an entry (D-28)
    _attached: Attached | None = None
    _reader_sk: bytes | None = field(default=None, repr=False)

    @property
    def seq(self) -> int:
        return self.receipt.stream_seq

    @property
    def msg_id(self) -> bytes:
        return self.receipt.leaf_hash

    @property
    def order(self) -> tuple[int, int, int]:
        """Place in the stream, over all its labels (D-27)."""
        return self.ts, self.epoch, self.seq

    @property
    def body(self) -> bytes:
        """Body without the list of attachments around it; OpenError if it was not opened."""
        if self.event is None:
            raise OpenError
        return self.event.body if self._attached is None else self._attached.body

    @property
    def attachments(self) -> tuple[Attachment, ...]:
        """Attachments that the body declares, checked against att_root when it was opened."""
        return () if self._attached is None else self._attached.attachments

    @property
    def opened_with(self) -> bytes:
        """Reader key that opened this entry, for its attachments."""
        if self._reader_sk is None:
            raise OpenError
        return self._reader_sk

    def __repr__(self) -> str:
        state = "opened" if self.event is not None else self.error or "sealed"
        return f"Entry(seq={self.seq}, epoch={self.epoch}, {state})"

    def _repr_html_(self) -> str:
        """Return the card for notebooks; like `repr`, without the body."""
        from veen.client.read.picture import entry_html

        return entry_html(self)


class LabelReader:
    """The reader of one label, in order. `known` is the view proven before; `view` grows with the entries read."""

    def __init__(
        self,
        session: HubSession,
        known: LabelView,
        epoch: int,
        *,
        stream_id: bytes = b"",
        keys: Sequence[StreamKeys] = (),
        with_proofs: bool = False,
        follow: "StreamFollow | None" = None,
        only_keys: bool = False,
    ) -> None:
        """Set up a reader. `follow` brings keys of generations announced on the way; `only_keys` opens nothing else."""
        self._session, self._known, self._epoch = session, known, epoch
        self._stream_id, self._with_proofs = stream_id, with_proofs
        self._follow, self._only_keys = follow, only_keys
        # The newest first, as in the keyring; a message that opens under two of them counts as not opened (D-170).
        self._keys: tuple[StreamKeys, ...] = ()  # keys that open, including the control key; changes with the keyring
        self._secrets: tuple[tuple[bytes, bytes], ...] = ()  # of `_keys`
        self._use(keys)
        self.view = LabelView(known.label)
        self._ts = 0
        self._authors = authors_after(0)
        self._last_ts = 0  # hub_ts of the entry before

    def _use(self, keys: Sequence[StreamKeys]) -> None:
        control = () if self._follow is None or self._only_keys else (self._follow.control,)
        able = [key for key in keys if key.can_read]
        self._keys = (*able, *control) if able else ()
        self._secrets = tuple((key.secret(), key.reader_pk) for key in self._keys)

    @property
    def label(self) -> bytes:
        return self._known.label

    async def entries(self, first: int, last: int | None) -> AsyncGenerator[Entry, None]:
        """Yield the entries `first` … `last`, or to the end of the label."""
        first = max(first, 1)
        try:
            await self._start(first)
            async for items in run(self._session, self._known.label, first, last):
                for entry in await self.verify(items):
                    yield entry
            await self._finish(first, last)
        except HubRefused as exc:
            if not is_not_found(exc) or exc.detail.get("reason") == "pruned":
                raise
            if self._known.size:
                raise self._rewound(0) from exc  # else nobody wrote to this label yet
        except Divergence as exc:
            raise await accuse(self._session, self._known, exc) from exc

    async def _start(self, first: int) -> None:
        """Set the first peaks: the known ones, or those in the proof of the first entry (D-33)."""
        self._authors = authors_after(first - 1)
        if first == 1:
            return
        if first == self._known.size + 1 and self._known.peaks is not None:
            self.view = self._known.copy()
            return
        info = await self._session.label_info(self._known.label)
        if info is None or info.last_stream_seq < first:
            return  # nothing to read there; `_finish` checks if there should be
        receipt = await self._session.receipt(self._known.label, first)
        self.view.start_before(receipt, await self._session.proof(receipt))

    async def resume(self, first: int) -> None:
        """Prepare for entry `first`, which comes next. Only a label that had no entries needs it."""
        if self.view.size != first - 1:
            await self._start(first)

    async def verify_next(self, items: Sequence[StreamItem]) -> list[Entry]:
        """Verify entries that arrive live, as `verify` does."""
        before = self.view.copy()
        try:
            return await self.verify(items)
        except Divergence as exc:
            raise await accuse(self._session, before, exc) from exc

    async def check_end(self) -> None:
        """Check that the hub still has and signs everything that was read, after it was away."""
        if not self.view.size:
            return
        try:
            check_checkpoint(self._session, self.view, await self._session.checkpoint(None, self.label))
        except Divergence as exc:
            raise await accuse(self._session, self.view, exc) from exc
        except HubRefused as exc:
            if is_not_found(exc):
                raise self._rewound(0) from exc
            raise

    async def verify(self, items: Sequence[StreamItem]) -> list[Entry]:
        """Run all checks of a page. Signatures are checked in another thread: libsodium needs no interpreter."""
        pairs = [Pair(item.msg, receipt_of(item)) for item in items]
        appended = [self._append(item.msg, receipt_of(item)) for item in items]
        await self._check_signatures(pairs, [fault for _, faults in appended for fault in faults])
        entries = []
        for item, (proof, faults) in zip(items, appended, strict=True):
            receipt = receipt_of(item)
            self._session.check_epoch(receipt, self._epoch)
            warnings = [warning_of(fault) for fault in faults if fault.rule is Rule.TIME]
            if len(warnings) < len(faults):
                raise divergence(next(fault for fault in faults if fault.rule is not Rule.TIME), self.label)
            self._ts = max(self._ts, receipt.hub_ts)
            entry = self._open(item.msg, receipt, proof)
            entries.append(await self._check_scope(replace(entry, warning=warnings[0]) if warnings else entry))
            self._learn(entries[-1])
        return entries

    def _learn(self, entry: Entry) -> None:
        """Learn keys that this entry announces, before the next one is opened."""
        follow = self._follow
        if follow is None:
            return
        is_next = follow.pass_entry(self.label, entry.seq)
        if is_next and entry.event is not None and follow.observe(entry.event) and not self._only_keys:
            self._use(follow.keys())

    async def _check_scope(self, entry: Entry) -> Entry:
        """Check the capability where the hub cannot bind tokens to streams (CLNT-13, D-24); return the entry,
        perhaps closed."""
        auth_ref = entry.msg.auth_ref
        if entry.event is None or auth_ref is None or self._session.status.stream_scope != "open":
            return entry
        token = await self._session.token(auth_ref)
        if token is not None and self._stream_id in token.allow.stream_ids and token.subject_pk == entry.msg.client_id:
            return entry
        return replace(entry, event=None, error="E.CAP: the capability does not cover this stream and author")

    def _append(self, msg: Msg, receipt: Receipt) -> tuple[MmrProof | None, list[Fault]]:
        proof = self.view.proof_of_next(msg.leaf_hash()) if self._with_proofs else None
        faults = self.view.append_entry(msg, receipt, self._authors, self._last_ts)
        self._last_ts = receipt.hub_ts
        if self.view.size == self._known.size:
            if self._known.last is not None:
                contradiction(self._known.last, receipt, self._session.pin)
            if receipt.mmr_root != self._known.root:
                raise RootMismatch(
                    "the log does not lead to the root that was proven before",
                    label=msg.label,
                    seq=receipt.stream_seq,
                    expected=self._known.root,
                    found=receipt.mmr_root,
                )
        return proof, faults

    async def _check_signatures(self, pairs: Sequence[Pair], faults: Sequence[Fault]) -> None:
        """Check both signatures of a page; a forged message is reported before a hub key that is not known yet."""
        unsigned, _ = await asyncio.to_thread(check_signatures, pairs, self._session.pin.identity)
        signatures = [fault for of_pair in unsigned for fault in of_pair]
        for fault in sorted((*faults, *signatures), key=lambda fault: fault.seq):
            if fault.rule in (Rule.CT_HASH, Rule.AUTHOR_SIG):
                raise divergence(fault, self.label)
        if signatures:  # the hub may have rotated its key: this requests the identity
            for _, receipt in pairs:
                if receipt.stream_seq >= signatures[0].seq:
                    await self._session.check_receipt(receipt)

    def _open(self, msg: Msg, receipt: Receipt, proof: MmrProof | None) -> Entry:
        opened: Opened | None = None
        reader_sk, error = None, None
        if self._secrets:
            try:
                number, opened = open_with_one(self._secrets, msg, limits=self._session.limits)
                reader_sk = self._secrets[number][0]
                error = self._stale(self._keys[number])
            except AmbiguousError as exc:
                error = f"OVL.AMBIGUOUS: {exc}"
            except OpenError:  # the bytes are those that the author signed, so the key is missing
                error = f"E.OPEN: {self._follow.why_sealed() if self._follow else 'no read key for this stream'}"
            except VeenError as exc:  # sealed against the rules by the writer
                error = f"E.OPEN: {exc}"
        event, attached = None, None
        if opened is not None and error is None:
            attached, error = _check_payload(msg, opened)
            if error is None:
                event = self._event(msg, receipt, opened)
        return Entry(
            msg=msg,
            receipt=receipt,
            epoch=self._epoch,
            ts=self._ts,
            proof=proof,
            event=event,
            error=error,
            _attached=attached,
            _reader_sk=reader_sk if event is not None else None,
        )

    def _stale(self, key: StreamKeys) -> str | None:
        """Return the error of an entry that was sealed to an earlier generation long after a newer one was announced
        (D-171)."""
        follow = self._follow
        if follow is None or key is follow.control or not follow.is_stale(key.generation, self._ts):
            return None
        return f"OVL.STALE_KEY: sealed to generation {key.generation} after its time: the author must read the stream"

    def _event(self, msg: Msg, receipt: Receipt, opened: Opened) -> Event:
        return Event.from_message(
            opened.hdr,
            opened.body,
            stream_id=self._stream_id,
            label=msg.label,
            epoch=self._epoch,
            stream_seq=receipt.stream_seq,
            leaf_hash=receipt.leaf_hash,
            client_id=msg.client_id,
            auth_ref=msg.auth_ref,
            hub_ts=receipt.hub_ts,
            ts=self._ts,
        )

    async def _finish(self, first: int, last: int | None) -> None:
        """Check that the end of the served log reaches the proven one, and that one is a prefix of the other."""
        start_view = self._known
        wanted = start_view.size if last is None else min(last, start_view.size)
        reached = self.view.size
        if first <= wanted and reached < wanted:
            raise self._rewound(reached)
        if start_view.root is None or self.view.last is None or first <= start_view.size + 1 <= reached + 1:
            return  # nothing was proven before, nothing was read, or the check was made on the way
        shorter, longer = (start_view, self.view) if start_view.size < reached else (self.view, start_view)
        grown = shorter.copy()
        grown.skip_to(longer.size, await self._session.consistency(start_view.label, shorter.size, longer.size))
        if grown.root != longer.root:
            raise RootMismatch(
                "the entries read are not part of the log that was proven before",
                label=start_view.label,
                seq=longer.size,
                expected=longer.root,
                found=grown.root,
            )

    def _rewound(self, reached: int) -> Rewound:
        return Rewound(
            "the hub serves fewer entries than it proved to have",
            label=self._known.label,
            seq=reached + 1,
            expected=self._known.size,
            found=reached,
        )


def _check_payload(msg: Msg, opened: Opened) -> tuple[Attached | None, str | None]:
    """Return the declared attachments (ATT-08), or the fault of them or of cap_ref (CLNT-13), which only a reader
    can check."""
    if opened.hdr.cap_ref is not None and not compare_digest(opened.hdr.cap_ref, msg.auth_ref or b""):
        return None, "E.CAP: cap_ref is not the auth_ref of the message"
    if opened.hdr.schema != ATTACHED_SCHEMA:
        return None, None
    try:
        attached = Attached.from_bytes(opened.body)
    except FormatError as exc:
        return None, f"E.FORMAT: {exc}"
    declared = attached.attachments
    if declared and att_root_of([attachment.coid for attachment in declared]) != opened.hdr.att_root:
        return None, "E.FORMAT: att_root is not that of the declared attachments"
    return attached, None
