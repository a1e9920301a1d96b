"""Following the generations of a stream: writers switch when they see an announcement, readers take over new keys.

Before a writer seals, the log is read for messages about keys, up to its verified head and at most a second behind its
end; while a reader reads, it learns from each such message before it opens the next entry. How far a log was read, and
what came of it, is kept with the state of the identity and can be made again from the log.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from veen.client.generations.fold import KeyState, apply, learn, record_of
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

_AGAIN_SECONDS: Final = 1.0  # between two looks at the end of a log, while nothing else says that it grew


@dataclass
class StreamFollow:
    """What one client follows of one stream. Belongs to the event loop's thread, like the client."""

    follower: "KeyFollower"
    state: KeyState
    control: StreamKeys
    looked_at: float = field(default=float("-inf"))  # by the clock of the loop; when the end of the log was read last
    saved: KeyState | None = None  # what the disk has
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # one reading of the log at a time

    def keys(self) -> tuple[StreamKeys, ...]:
        """All keys of the stream by now, the newest first."""
        return self.follower.ring.readers(self.state.stream_id)

    def observe(self, event: Event) -> bool:
        """Take over what an event says about keys; whether the keyring changed."""
        if event.hdr.schema not in KEY_SCHEMAS:
            return False
        record = record_of(self.state, event)
        if record is None:
            return False
        self.state = apply(self.state, event, record)
        return self.follower.take(learn(self.follower.ring, self.state, record, self.follower.identity))

    def passed(self, label: bytes, stream_seq: int) -> bool:
        """An entry was read, or is our own; whether it is the next one, and counts: those before it did already."""
        if stream_seq != self.state.cursor(label) + 1:
            return False
        self.state = self.state.read_to(label, stream_seq)
        return True

    def why_sealed(self) -> str:
        """Why an entry does not open: its bytes are those that were signed, so it is the key."""
        readable = [keys.generation for keys in self.keys() if keys.can_read]
        text = "no read key for this stream"
        if self.state.shredded:
            text += " (keys of earlier generations were shredded by its owner)"
        elif readable and self.state.gen > max(readable):
            text += f" (it is at generation {self.state.gen}, your keys end with {max(readable)}: ask its owner)"
        return text


class KeyFollower:
    """The streams of one client whose owner is known. `ring` is the newest keyring; `learned` hears of each change."""

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
        """Use this keyring from now on, and have it kept; whether it is another one."""
        if ring == self.ring:
            return False
        self._labels.keyring = ring
        if self._learned is not None:
            self._learned(ring)
        return True

    def of(self, stream: Stream) -> StreamFollow | None:
        """What is followed of a stream; None if nobody's announcements count there."""
        keys = self._labels.keys(stream)
        owner_pk = keys[0].owner_pk
        if owner_pk is None:
            return None
        stream_id = keys[0].stream_id
        follow = self._streams.get(stream_id)
        if follow is None or follow.state.owner_pk != owner_pk:
            state = self._load(stream_id, owner_pk)
            follow = StreamFollow(self, state, control_keys(stream_id, owner_pk), saved=state)
            self._streams[stream_id] = follow
        return follow

    async def before_sealing(self, stream: Stream, epoch: int) -> None:
        """See to it that the newest generation at the verified head of the label is known."""
        follow = self.of(stream)
        if follow is None:
            return
        label = self._session.label(follow.state.stream_id, epoch)
        head = self._labels.verified_size(label)
        if head > follow.state.cursor(label) or asyncio.get_running_loop().time() >= follow.looked_at + _AGAIN_SECONDS:
            await self.sync(stream)

    async def sync(self, stream: Stream) -> KeyState | None:
        """Read the log to its end for messages about keys, from where this was done before."""
        follow = self.of(stream)
        if follow is None:
            return None
        async with follow.lock:
            follow.looked_at = asyncio.get_running_loop().time()
            stream_id = follow.state.stream_id
            for epoch in await self._epochs(follow):
                label = self._session.label(stream_id, epoch)
                target = Target(label=label, epoch=epoch, stream_id=stream_id, keys=(follow.control,))
                reader = await self._labels.reader(target, opened=True, follow=follow, only_keys=True)
                async for _ in reader.entries(follow.state.cursor(label) + 1, None):
                    pass
                await self._labels.saw(target, reader.view)
            if follow.saved is None or replace(follow.state, cursors=follow.saved.cursors) != follow.saved:
                self._save(follow)  # how far it was read alone is saved at the end
        return follow.state

    async def _epochs(self, follow: StreamFollow) -> Iterable[int]:
        if not self._session.epoch_sec:
            return (0,)
        newest = follow.state.newest
        first = 0 if newest is None else max(newest.epoch - self._session.window, 0)
        return await self._session.epochs_of(follow.state.stream_id, first)

    def sent(self, stream: Stream, outcomes: "Iterable[Outcome]") -> None:
        """Our own messages announce nothing: where they follow what was read, they need not be read."""
        from veen.client.send.writing import Sent

        follow = self.of(stream)
        if follow is not None and self._labels.keys(stream)[0].reader_pk != follow.control.reader_pk:
            for outcome in outcomes:
                if isinstance(outcome, Sent):
                    follow.passed(outcome.label, outcome.seq)

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
            return blank  # the log has it all
        keys = {keys.reader_pk for keys in self.ring.readers(stream_id)}
        complete = all(row.pk in keys for row in state.generations)  # not so if the keyring is an older copy
        return state if (state.stream_id, state.owner_pk) == (stream_id, owner_pk) and complete else blank

    def _save(self, follow: StreamFollow) -> None:
        if follow.state != follow.saved:
            self._store.write_note(_note(self._session.hub_id, follow.state.stream_id), follow.state.to_bytes())
            follow.saved = follow.state

    def forget(self, stream: Stream) -> None:
        """Read the log from its beginning the next time."""
        follow = self.of(stream)
        if follow is not None:
            follow.state = replace(KeyState(stream_id=follow.state.stream_id, owner_pk=follow.state.owner_pk))
            follow.looked_at = float("-inf")


def _note(hub_id: bytes, stream_id: bytes) -> str:
    return f"keys-{hub_id.hex()[:16]}-{stream_id.hex()}"
