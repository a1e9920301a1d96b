"""Sinks of adapters: when `put` returns, a record is durable in the spool; otherwise it is counted as lost."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

from veen.core.labels import stream_id_of
from veen.products.recorder.events import (
    MAX_PAYLOAD,
    OPENING,
    OPENINGS_STREAM,
    OWN_STREAM,
    UNKNOWN,
    SourceRecord,
    fit_record,
    own,
    to_bytes,
)
from veen.products.recorder.redaction import Redactor, redact, texts_of
from veen.products.recorder.spool import Spool, SpoolFull, SpoolItem

_BATCH: Final = 256  # records in one transaction
_ROOM_SECONDS: Final = 0.25
_TELLING: Final = 4  # characters of a redacted text from which on a name must not contain it
_OWN_ID: Final = stream_id_of(OWN_STREAM)
_OPENINGS_ID: Final = stream_id_of(OPENINGS_STREAM)


class Adapter(Protocol):
    """One source. `run` puts its records into the sink, from `sink.position` on, until the source ends."""

    kind: str  # the name of the adapter, as configurations spell it
    id: str  # the name of this source, unique in an agent

    async def run(self, sink: "SpoolSink") -> None:
        """Put records into the sink, from `sink.position` on, until the source ends."""


@dataclass(slots=True)
class Sinks:
    """State that all sinks of an agent share. Used from the agent's event loop only."""

    spool: Spool
    host: str
    max_payload: int = MAX_PAYLOAD
    clock: Callable[[], float] = time.time
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # records came in: wakes the sender
    freed: asyncio.Condition = field(default_factory=asyncio.Condition)  # records left: wakes sources that wait

    async def add_own(self, event_type: str, payload: dict[str, object]) -> None:
        """Record an event of the recorder about itself, also while the spool is full."""
        await asyncio.to_thread(self.spool.append, [self.own_record(event_type, payload)], force=True)
        self.changed.set()

    def own_record(self, event_type: str, payload: dict[str, object]) -> SpoolItem:
        now = int(self.clock())
        record = own(event_type, payload, origin=self.host, position=str(now), now=now)
        data = to_bytes(fit_record(record, adapter="recorder", source=self.host))
        return SpoolItem(_OWN_ID, data, "recorder")


class SpoolSink:
    """The sink of one source, whose records go to one stream. Used from the agent's event loop only."""

    def __init__(self, shared: Sinks, adapter: Adapter, stream_id: bytes, redactor: Redactor | None = None) -> None:
        self._shared, self._adapter, self._stream_id, self.redactor = shared, adapter, stream_id, redactor
        self.position = shared.spool.position(adapter.id)
        self.has_worked = False  # records were taken from the source

    @property
    def host(self) -> str:
        """Name of the machine, as events state it."""
        return self._shared.host

    def now(self) -> int:
        """Return the time of the agent in seconds."""
        return int(self._shared.clock())

    def digest(self, data: bytes) -> str:
        """Return a keyed hash of a source record, for `key`, `sender_id` and positions that must reveal nothing."""
        return self._shared.spool.digest(data)

    async def put(self, records: Sequence[SourceRecord]) -> list[int]:
        """Return the spool numbers of the records when all are on disk; wait while the spool is full."""
        numbers: list[int] = []
        for start in range(0, len(records), _BATCH):
            batch = records[start : start + _BATCH]
            while True:
                try:
                    numbers += await self._append(batch)
                    break
                except SpoolFull:
                    if len(batch) > 1:  # what fits goes in, so that a large batch does not wait for an empty spool
                        half = len(batch) // 2
                        numbers += await self.put(batch[:half])
                        batch = batch[half:]
                        continue
                    await self._room()
        return numbers

    async def offer(self, records: Sequence[SourceRecord]) -> bool:
        """Store all records and return True, or count all of them as lost and return False.

        For sources that cannot wait.
        """
        try:
            await self._append(records)
        except SpoolFull:
            await self.lost("spool full", len(records))
            return False
        return True

    async def lost(self, reason: str, count: int = 1) -> None:
        """Count records that the source had and that are not in the spool."""
        await asyncio.to_thread(self._shared.spool.lose, self._adapter.id, reason, count, self.now())

    async def skip_to(self, position: str) -> None:
        """Store a position without a record: the next run continues there."""
        await asyncio.to_thread(self._shared.spool.set_position, self._adapter.id, position)

    async def recall(self, name: str) -> str | None:
        """Return a value stored by `remember`, also before a restart."""
        return await asyncio.to_thread(self._shared.spool.note, f"source:{self._adapter.id}:{name}")

    async def remember(self, name: str, value: str) -> None:
        """Store a value under a name of this source, durably."""
        await asyncio.to_thread(self._shared.spool.set_note, f"source:{self._adapter.id}:{name}", value)

    async def wait_for_receipts(self, numbers: Sequence[int]) -> None:
        """Return when all of these records have receipts."""
        spool = self._shared.spool
        async with self._shared.freed:
            for n in numbers:
                while await asyncio.to_thread(spool.is_waiting, n):
                    await self._shared.freed.wait()

    async def _append(self, records: Sequence[SourceRecord]) -> list[int]:
        pending: list[SpoolItem] = []
        wanted: list[int] = []
        for record in records:
            entries = self._items_of(record)
            wanted.append(len(pending))
            pending += entries
        numbers = await asyncio.to_thread(self._shared.spool.append, pending)
        self._shared.changed.set()
        self.has_worked = self.has_worked or bool(numbers)
        return [numbers[at] for at in wanted]

    def _items_of(self, record: SourceRecord) -> list[SpoolItem]:
        """Return the spool items of a record: the record itself, and the openings of redacted values."""
        adapter = self._adapter
        if record.openings is None:
            record = _redact_record(record, self.redactor, self.digest)
        within = self._bytes_of(record)
        entries = [
            SpoolItem(
                self._stream_id, within, adapter.id, record.position or None, record.key, record.earlier_keys,
                record.sender_id, lambda: self._bytes_of(replace(record, about={**record.about, "repeat": True})),
            )
        ]  # fmt: skip
        for number, opening in enumerate(record.openings or ()):
            value = own(OPENING, opening.payload(), origin=self.host, position=record.position, now=record.time)
            key = None if record.key is None else f"{record.key}#{number}"
            earlier_keys = tuple(f"{earlier}#{number}" for earlier in record.earlier_keys)
            data = to_bytes(fit_record(value, adapter=adapter.kind, source=adapter.id))
            entries.append(SpoolItem(_OPENINGS_ID, data, adapter.id, None, key, earlier_keys))
        return entries

    def _bytes_of(self, record: SourceRecord) -> bytes:
        adapter = self._adapter
        within = fit_record(record, adapter=adapter.kind, source=adapter.id, max_payload=self._shared.max_payload)
        return to_bytes(within)

    async def _room(self) -> None:
        """Wait briefly for records to leave: the spool may have been emptied before the wait began."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ROOM_SECONDS), self._shared.freed:
                await self._shared.freed.wait()


def _redact_record(record: SourceRecord, redactor: Redactor | None, digest: Callable[[bytes], str]) -> SourceRecord:
    """Apply the rules to a record whose names the adapter derived before.

    A name or position that contains a redacted text is removed, or replaced by a hash.
    """
    payload, openings = redact(redactor, record.payload)
    hidden = [text for opening in openings for text in texts_of(opening.value) if text]

    def is_shown(text: str | None) -> bool:
        is_allowed = text is None or redactor is None or redactor.name(text) is not None
        return is_allowed and not any(
            part == text or (len(part) >= _TELLING and part in (text or "")) for part in hidden
        )

    def name(text: str) -> str:
        return text if is_shown(text) else UNKNOWN

    return replace(
        record,
        subject=name(record.subject),
        event_type=name(record.event_type),
        origin=name(record.origin),
        source_time=record.source_time if is_shown(record.source_time) else None,
        shown_position=None if is_shown(record.position) else digest(record.position.encode()),
        payload=payload,
        openings=openings,
    )
