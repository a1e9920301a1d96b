"""Following the generations of a stream: writers switch when they see an announcement, readers learn new keys.

Before a writer seals, the log is read for messages about keys, up to its verified head and at most a second behind
its end. While a reader reads, it learns from each such message before it opens the next entry. The position and the
result are stored with the state of the identity and can be made again from the log.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from veen.client.generations.fold import KeyFold, KeyState, is_stale, learn, record_of
from veen.client.generations.records import KEY_SCHEMAS, control_keys
from veen.client.identity.identity import Identity
from veen.client.identity.keyring import Keyring, Stream, StreamKeys
from veen.client.session import HubSession
from veen.client.state import StateStore
from veen.client.verify.labels import Labels, Target
from veen.core.errors import FormatError
from veen.core.event import Event

if TYPE_CHECKING:
    from veen.client.send.writing import Outcome

_AGAIN_SECONDS: Final = 1.0  # between two reads of the end of a log, unless something else shows that it grew


@dataclass
class StreamFollow:
    """The state of one followed stream. Owned by the event loop's thread, like the client."""

    follower: "KeyFollower"
    fold: KeyFold
    control: StreamKeys
    # Time by the loop's clock at which the end of the log was read last.
    looked_at: float = field(default=float("-inf"))
    saved: tuple[int, int] | None = None  # changes and steps of the fold that are on disk
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # one reading of the log at a time

    def keys(self) -> tuple[StreamKeys, ...]:
        """Return all keys of the stream by now, the newest first."""
        return self.follower.ring.readers(self.fold.stream_id)

    def observe(self, event: Event) -> bool:
        """Apply the message about keys in an event; return True if the keyring changed."""
        if event.hdr.schema not in KEY_SCHEMAS:
            return False
        record = record_of(self.fold, event)
        if record is None or not self.fold.apply(event, record):
            return False
        return self.follower.take(learn(self.follower.ring, self.fold, record, self.follower.identity))

    def pass_entry(self, label: bytes, stream_seq: int) -> bool:
        """Note an entry that was read or sent. Return True if it is the next one, so that its record may count."""
        if stream_seq != self.cursor(label) + 1:
            return False
        self.fold.read_to(label, stream_seq)
        return True

    def cursor(self, label: bytes) -> int:
        """Return the position up to which a label was read for messages about keys."""
        return self.fold.cursors.get(label, 0)

    def is_stale(self, gen: int, ts: int) -> bool:
        """Return True if an entry sealed to `gen` came too late."""
        return is_stale(self.fold.generations, gen, ts)

    def why_sealed(self) -> str:
        """Return the reason why an entry does not open. Its bytes are those that were signed, so the key is missing."""
        readable = [keys.generation for keys in self.keys() if keys.can_read]
        text = "no read key for this stream"
        if self.fold.shredded:
            text += " (keys of earlier generations were shredded by its owner)"
        elif readable and self.fold.gen > max(readable):
            text += f" (it is at generation {self.fold.gen}, your keys end with {max(readable)}: ask its owner)"
        return text


class KeyFollower:
    """The streams of one client whose owner is known. `ring` is the newest keyring; `learned` is called with each
    change."""

    def __init__(
        self,
        session: HubSession,
        labels: Labels,
        store: StateStore,
        identity: Identity,
        learned: Callable[[Keyring], None] | None = None,
    ) -> None:
        self._session, self._labels, self._store = session, labels, store
        self.identity, self._learned = identity, learned
        self._streams: dict[bytes, StreamFollow] = {}

    @property
    def ring(self) -> Keyring:
        return self._labels.keyring

    def take(self, ring: Keyring) -> bool:
        """Use this keyring from now on, and have it stored; return True if it is another one."""
        ring = self.at_hub(ring)
        if ring == self.ring:
            return False
        self._labels.keyring = ring
        if self._learned is not None:
            self._learned(ring.at())
        return True

    def at_hub(self, ring: Keyring) -> Keyring:
        """Return the keyring as used at the hub of this connection (D-183)."""
        return ring.at(self._session.hub_id, self._session.pin.root_pk)

    def of(self, stream: Stream) -> StreamFollow | None:
        """Return the state of a followed stream; None if it has no known owner."""
        keys = self._labels.keys(stream)
        owner_pk = keys[0].owner_pk
        if owner_pk is None:
            return None
        stream_id = keys[0].stream_id
        follow = self._streams.get(stream_id)
        if follow is None or follow.fold.owner_pk != owner_pk:
            fold = KeyFold.of(self._load(stream_id, owner_pk))
            follow = StreamFollow(self, fold, control_keys(stream_id, owner_pk), saved=(0, 0))
            self._streams[stream_id] = follow
        return follow

    async def before_sealing(self, stream: Stream, epoch: int) -> None:
        """Make sure that the newest generation at the verified head of the label is known."""
        follow = self.of(stream)
        if follow is None:
            return
        label = self._session.label(follow.fold.stream_id, epoch)
        head = self._labels.size_verified(label)
        if head > follow.cursor(label) or asyncio.get_running_loop().time() >= follow.looked_at + _AGAIN_SECONDS:
            await self.sync(stream)

    async def sync(self, stream: Stream) -> KeyState | None:
        """Read the log to its end for messages about keys, from the last position."""
        follow = self.of(stream)
        if follow is None:
            return None
        async with follow.lock:
            follow.looked_at = asyncio.get_running_loop().time()
            stream_id = follow.fold.stream_id
            for epoch in await self._epochs(follow):
                label = self._session.label(stream_id, epoch)
                target = Target(label=label, epoch=epoch, stream_id=stream_id, keys=(follow.control,))
                reader = await self._labels.reader(target, opened=True, follow=follow, only_keys=True)
                async for _ in reader.entries(follow.cursor(label) + 1, None):
                    pass
                await self._labels.saw(target, reader.view)
            if follow.saved is None or follow.saved[0] != follow.fold.changes:
                self._save(follow)  # a change of the position alone is saved at the end
        return follow.fold.state()

    async def _epochs(self, follow: StreamFollow) -> Iterable[int]:
        if not self._session.epoch_sec:
            return (0,)
        rows = follow.fold.generations
        first = max(rows[-1].epoch - self._session.window, 0) if rows else 0
        return await self._session.epochs_of(follow.fold.stream_id, first)

    def note_sent(self, stream: Stream, outcomes: "Iterable[Outcome]") -> None:
        """Note own messages, which announce nothing: directly after the read position they need not be read."""
        from veen.client.send.writing import Sent

        follow = self.of(stream)
        if follow is not None and self._labels.keys(stream)[0].reader_pk != follow.control.reader_pk:
            for outcome in outcomes:
                if isinstance(outcome, Sent):
                    follow.pass_entry(outcome.label, outcome.seq)

    def save(self) -> None:
        for follow in self._streams.values():
            self._save(follow)

    # --- between two runs ------------------------------------------------------------------------------

    def _load(self, stream_id: bytes, owner_pk: bytes) -> KeyState:
        blank = KeyState(stream_id=stream_id, owner_pk=owner_pk)
        data = self._store.read_note(_note(self._session.hub_id, stream_id))
        try:
            state = blank if data is None else KeyState.from_bytes(data)
        except FormatError:
            return blank  # the log has everything
        keys = {keys.reader_pk for keys in self.ring.readers(stream_id)}
        complete = all(row.pk in keys for row in state.generations)  # false if the keyring is an older copy
        return state if (state.stream_id, state.owner_pk) == (stream_id, owner_pk) and complete else blank

    def _save(self, follow: StreamFollow) -> None:
        fold = follow.fold
        if follow.saved != (fold.changes, fold.steps):
            self._store.write_note(_note(self._session.hub_id, fold.stream_id), fold.state().to_bytes())
            follow.saved = fold.changes, fold.steps

    def forget(self, stream: Stream) -> None:
        """Read the log from its beginning the next time."""
        follow = self.of(stream)
        if follow is not None:
            follow.fold = KeyFold(follow.fold.stream_id, follow.fold.owner_pk)
            follow.saved = None
            follow.looked_at = float("-inf")


def _note(hub_id: bytes, stream_id: bytes) -> str:
    # "keys-", "keys2-" and "keys3-" are the names of earlier releases, in whose states a repeated record may have
    # counted, or no change of owner, no binding and no end of one: read the log again.
    return f"keys4-{hub_id.hex()[:16]}-{stream_id.hex()}"
