"""The labels of a client: the present label of a stream, and one writer for each (spec §2, D-23, D-26).

There is exactly one writer per label and client key, so numbers are given once. Readers start from its verified view
and return what they verified.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from veen.client.errors import LocalError, NoReaderKey, UnknownStream
from veen.client.identity.identity import Identity, Random
from veen.client.identity.keyring import Keyring, Stream, StreamKeys, StreamRef
from veen.client.read.attachments import Attachments
from veen.client.read.reading import LabelReader
from veen.client.send.sealing import LabelAdvice, Sealer
from veen.client.send.writing import Sent, Writer
from veen.client.session import HubSession
from veen.client.state import RK_BYTES, LabelState, Mode, StateStore
from veen.client.verify.view import LabelView
from veen.core.crypto.ed25519 import SigningKey
from veen.core.objects.profile import Profile

if TYPE_CHECKING:
    from veen.client.generations.following import StreamFollow

_MAX_WRITERS: Final = 256  # beyond this number idle writers are dropped; their state is on disk


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One label: that of a stream in an epoch, with the held keys; or a bare label without keys."""

    label: bytes
    epoch: int
    stream_id: bytes | None
    keys: tuple[StreamKeys, ...] = ()

    @property
    def seal_to(self) -> bytes | None:
        """Key of the newest generation; None for a bare label."""
        return self.keys[0].reader_pk if self.keys else None

    def readable(self) -> tuple[StreamKeys, ...]:
        """Return the keys that can read; raise NoReaderKey if there are none."""
        able = tuple(key for key in self.keys if key.can_read)
        if not able:
            raise NoReaderKey(str(self.keys[0]) if self.keys else f"label:{self.label.hex()}")
        return able


class Labels:
    """The targets of a client and their writers."""

    def __init__(
        self,
        session: HubSession,
        store: StateStore,
        identity: Identity,
        keyring: Keyring,
        *,
        mode: Mode,
        random: Random,
        profile: Profile | None = None,
    ) -> None:
        self._session, self._store, self._identity = session, store, identity
        self.keyring = keyring  # replaced when a new generation is learned (veen.client.generations)
        # By stream_id: keys of an inbox, which are in no keyring.
        self.personal: dict[bytes, tuple[StreamKeys, ...]] = {}
        self._mode, self._random, self._profile = mode, random, profile
        self.advice: dict[bytes, LabelAdvice | None] = {}  # by label; requested before its writer is made
        self.attachments = Attachments(session, identity.client_key.key)
        self._writers: OrderedDict[bytes, Writer] = OrderedDict()
        self._opening = asyncio.Lock()
        self._retired: set[bytes] | None = None  # labels with messages of retired keys; None: not looked up yet
        self._late: list[Sent] = []  # messages delivered for retired client keys; see `take_recovered`

    # --- names -----------------------------------------------------------------------------------------

    def keys(self, stream: Stream) -> tuple[StreamKeys, ...]:
        if isinstance(stream, bytes) and stream in self.personal:
            return self.personal[stream]
        return self.keyring.readers(stream)

    def at(self, stream: Stream, epoch: int) -> Target:
        """Return the label of a stream in an epoch."""
        keys = self.keys(stream)
        stream_id = keys[0].stream_id
        return Target(label=self._session.label(stream_id, epoch), epoch=epoch, stream_id=stream_id, keys=keys)

    async def find(self, stream: Stream, epoch: int | None = None) -> Target:
        """Return the label of a stream, in an epoch or now; `label:<hex>` names a label itself."""
        ref = StreamRef.parse(stream) if isinstance(stream, str) else stream
        if not isinstance(ref, StreamRef) or ref.label is None:
            return self.at(stream, self._session.epoch_now() if epoch is None else epoch)
        info = await self._session.label_info(ref.label)
        found_epoch = (info.epoch if info else 0) if epoch is None else epoch
        try:
            keys = self.keyring.for_label(ref.label, self._session.routing_key, found_epoch)
        except UnknownStream:
            return Target(label=ref.label, epoch=found_epoch, stream_id=None)
        target = self.at(keys, found_epoch)
        return replace(target, keys=self.keys(keys))

    def epoch_of(self, stream: Stream, label: bytes) -> int:
        """Return the epoch of a label that was made for a stream a moment ago."""
        now, reach = self._session.epoch_now(), self._session.window + 2
        for epoch in range(max(now - reach, 0), now + reach + 1):
            if self.at(stream, epoch).label == label:
                return epoch
        raise LocalError("the message was prepared for another stream, or too long ago: prepare it again")

    def labels_with_pending(self) -> list[bytes]:
        """Return the labels of this hub on which messages of this identity wait for their receipts."""
        own = {key.client_id for key in self._identity.client_keys}
        states = self._store.states_with_pending(self._session.hub_id)
        return list(dict.fromkeys(state.label for state in states if state.client_id in own))

    # --- client keys -----------------------------------------------------------------------------------

    def use(self, identity: Identity) -> None:
        """Continue with another client key of the identity: writers are opened again, at client_seq 1."""
        for writer in self._writers.values():
            self.keep_late(writer)
        self._identity = identity
        self._writers.clear()
        self._retired = None
        self.attachments = Attachments(self._session, identity.client_key.key)

    async def writers_of_retired(self, label: bytes) -> list[Writer]:
        """Return writers for messages that retired client keys of this identity left pending on a label."""
        if self._retired is None:
            states = await asyncio.to_thread(self._store.states_with_pending, self._session.hub_id)
            self._retired = {state.label for state in states if state.client_id != self._identity.client_id}
        if label not in self._retired:
            return []
        states = await asyncio.to_thread(lambda: list(self._store.states(self._session.hub_id, label)))
        waiting = [state for state in states if state.pending and state.client_id != self._identity.client_id]
        return [await self._writer_of_retired(state) for state in waiting]

    def note_settled(self, label: bytes) -> None:
        """Note that nothing of a retired client key is pending on a label any more."""
        if self._retired is not None:
            self._retired.discard(label)

    async def _writer_of_retired(self, state: LabelState) -> Writer:
        target, key = self.target_of(state), self._identity.client_key_of(state.client_id)
        state = await self._in_mode(state)
        if key is None:  # no longer known: its messages can only be sent as they are
            return Writer(self._session, self._store, None, state, epoch=target.epoch)
        return self._writer_for(key.key, target, state)

    # --- writers ---------------------------------------------------------------------------------------

    async def writer(self, target: Target) -> Writer:
        """Return the one writer of a label."""
        async with self._opening:
            writer = self._writers.get(target.label)
            if writer is None:
                writer = await self._open(target)
                self._writers[target.label] = writer
                self._shed()
            self._writers.move_to_end(target.label)
            return writer

    async def _open(self, target: Target) -> Writer:
        session = self._session
        key = self._identity.client_key.key
        advice = self.advice.get(target.label)
        profile = self._profile or self._profile_by_advice(advice) or session.profile()
        state = await asyncio.to_thread(self._store.load, session.hub_id, target.label, key.public)
        if state is None:
            state = LabelState(
                hub_id=session.hub_id,
                label=target.label,
                client_id=key.public,
                profile_id=profile.profile_id(),
                mode=self._mode,
                rk=self._random(RK_BYTES),
            )
        state = replace(await self._in_mode(state), profile_id=profile.profile_id())
        return self._writer_for(key, target, state)

    def _writer_for(self, key: SigningKey, target: Target, state: LabelState) -> Writer:
        session, advice = self._session, self.advice.get(target.label)
        profile = self._profile or self._profile_by_advice(advice) or session.profile()
        sealer = None
        if target.keys:
            reader_pk = target.keys[0].reader_pk
            sealer = Sealer(
                key, target.label, reader_pk, profile, limits=session.limits, random=self._random,
                expiry=None if advice is None or advice.retention_sec is None else self._expiry(advice.retention_sec),
            )  # fmt: skip
        return Writer(
            session,
            self._store,
            sealer,
            state,
            epoch=target.epoch,
            upload=self.attachments.put_all,
            cursor=partial(session.client_cursor, key, target.label),
        )

    def _profile_by_advice(self, advice: LabelAdvice | None) -> Profile | None:
        """Return the hub's profile that pads as advised; None if it has none, or nothing is advised."""
        by_block = {profile.pad_block: profile for profile in reversed(self._session.status.profiles)}
        blocks = () if advice is None else advice.pad_blocks
        return next((by_block[block] for block in blocks if block in by_block), None)

    def _expiry(self, retention_sec: int) -> Callable[[], int]:
        return lambda: self._session.hub_now() + retention_sec

    def take_recovered(self) -> list[Sent]:
        """Return messages that any writer delivered late since the last call, in the order of their labels."""
        late, self._late = self._late, []
        for writer in self._writers.values():
            late += writer.recovered
            writer.recovered.clear()
        return late

    def take_late(self, label: bytes) -> list[Sent]:
        """Return the late messages of one label, like `take_recovered`."""
        if (writer := self._writers.get(label)) is not None:
            self.keep_late(writer)
        late = [sent for sent in self._late if sent.label == label]
        self._late = [sent for sent in self._late if sent.label != label]
        return late

    def pending(self) -> list[LabelState]:
        """Return the states of this hub that have messages without a receipt."""
        return self._store.states_with_pending(self._session.hub_id)

    def keep_late(self, writer: Writer) -> None:
        """Keep the late messages of a writer that is dropped; see `take_recovered`."""
        self._late += writer.recovered
        writer.recovered.clear()

    async def drop_pending(self, state: LabelState) -> tuple[int, int]:
        """Drop the pending messages of the client key in use, by `Writer.drop`."""
        writer = await self.writer(self.target_of(state))
        async with writer.lock:
            return await writer.drop()

    def target_of(self, state: LabelState) -> Target:
        """Return the stream and the epoch of a label, if the keyring has them."""
        now, reach = self._session.epoch_now(), self._session.window + 2
        for epoch in range(max(now - reach, 0), now + reach + 1) if self._session.epoch_sec else (0,):
            try:
                keys = self.keyring.for_label(state.label, self._session.routing_key, epoch)
            except UnknownStream:
                continue
            return replace(self.at(keys, epoch), keys=self.keys(keys))
        return Target(label=state.label, epoch=0, stream_id=None)

    async def _in_mode(self, state: LabelState) -> LabelState:
        """Convert a state to the mode of this client. A light client has no peaks, so one that turns full requests
        them (D-66)."""
        if state.mode == self._mode:
            return state
        if self._mode == "light" or not state.last_stream_seq:
            return replace(state, mode=self._mode, peaks=())
        view = LabelView(state.label, state.last_stream_seq, state.last_mmr_root, peaks=None)
        view.skip_to(view.size, await self._session.consistency(state.label, view.size, view.size))
        return replace(state, mode=self._mode, peaks=view.peaks or ())

    def _shed(self) -> None:
        for label in [idle for idle, writer in self._writers.items() if not writer.is_busy][: -_MAX_WRITERS or None]:
            if len(self._writers) <= _MAX_WRITERS:
                return
            del self._writers[label]

    async def forget(self, target: Target) -> None:
        """Drop everything that is remembered of a label."""
        async with self._opening:
            self._writers.pop(target.label, None)
            await asyncio.to_thread(self._store.forget, self._session.hub_id, target.label)

    # --- readers ---------------------------------------------------------------------------------------

    def size_verified(self, label: bytes) -> int:
        """Return the last verified entry of a label, 0 if its writer is not in memory."""
        writer = self._writers.get(label)
        return 0 if writer is None else writer.view.size

    async def reader(
        self,
        target: Target,
        *,
        opened: bool,
        with_proofs: bool = False,
        follow: "StreamFollow | None" = None,
        only_keys: bool = False,
    ) -> LabelReader:
        """Return a reader that starts from the verified view; with `only_keys` it only searches for new generations."""
        keys: Sequence[StreamKeys] = target.readable() if opened else ()
        view = (await self.writer(target)).view
        return LabelReader(
            self._session,
            view.copy(),
            target.epoch,
            stream_id=target.stream_id or b"",
            keys=keys,
            with_proofs=with_proofs,
            follow=follow,
            only_keys=only_keys,
        )

    async def saw(self, target: Target, view: LabelView) -> None:
        """Keep the view of a reader if it goes beyond the known one."""
        writer = await self.writer(target)
        if view.last is None or view.size <= writer.view.size:
            return
        async with writer.lock:
            if view.size > writer.view.size:
                await writer.save_seen(writer.state, view.copy())
