"""Reading from a running hub: heads and ranges on the driver, entries paged over HTTP by the tasks themselves.

The rows equal those of the hub's directory and are checked in the same way (`veen.lake.log.pages`). `path` is the URL,
and `frame_offset` is null: only the hub knows the place of an entry in its files. An erased entry has its receipt only.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from veen.client.errors import HubRefused
from veen.client.read.streams import seek
from veen.client.session import HubSession
from veen.client.transport.hubapi import label_pages
from veen.core.errors import ApiCode, FormatError
from veen.core.labels import label_of
from veen.core.objects.msg import Msg
from veen.core.objects.tooling import LabelInfo, StreamsResponse
from veen.core.verdict import StatedBy
from veen.lake.log.entries import ReadSpec
from veen.lake.log.hub_link import HubFailed, HubLink
from veen.lake.log.options import HubAddress
from veen.lake.log.pages import TOGETHER, PageRefused, fetch_page, runs, tables
from veen.lake.log.slices import Selection, Slice
from veen.storage.pinned import ChunkRef, LabelPin, LogView

_ENTRY_BYTES: Final = 1024  # about what an entry has: a hub does not tell sizes
_MAX_RUNS: Final = 1 << 20  # of one label: a hub that claims 2^60 entries must not fill the driver with them
_DENIED: Final = frozenset((ApiCode.UNAUTHORIZED.code, ApiCode.FORBIDDEN.code))


@dataclass(frozen=True, slots=True)
class RemoteHub:
    """A hub at a URL, as a source of entries."""

    address: HubAddress
    partition_bytes: int

    # --- on the driver ---------------------------------------------------------------------------------

    def pin(self, selection: Selection, after: Mapping[bytes, int] | None = None) -> LogView:
        """Pin all of each label; the hub tells its length. `after` is not needed."""
        with HubLink(self.address) as link:
            return link.session(lambda session: self._pin(session, selection))

    async def _pin(self, session: HubSession, selection: Selection) -> LogView:
        listed = await _list_labels(session, selection)
        names = await _stream_names(session, listed, {*(selection.streams or ()), *await _list_streams(session)})
        labels: dict[bytes, LabelPin] = {}
        for info in listed:
            label_pin = LabelPin(label=info.label, epoch=info.epoch, stream_id=names.get(info.label), chunks=())
            labels[info.label] = replace(label_pin, chunks=tuple(self._ranges(label_pin, info.last_stream_seq)))
        return LogView(uri=self.address.url, identity=session.pin.identity, labels=labels, stated_by=StatedBy.HUB)

    def _ranges(self, label_pin: LabelPin, size: int) -> Iterator[ChunkRef]:
        """Yield the ranges of a label, about a task each. A label that grows keeps its earlier ranges."""
        count = max(1, self.partition_bytes // _ENTRY_BYTES)
        if size // count > _MAX_RUNS:
            raise HubFailed(f"{self.address.url}: label {label_pin.label.hex()} would be {size // count} tasks")
        for start in range(1, size + 1, count):
            end = min(start + count - 1, size)
            yield ChunkRef(
                label=label_pin.label,
                epoch=label_pin.epoch,
                stream_id=label_pin.stream_id,
                start_seq=start,
                end_seq=end,
                path=self.address.url,
                kind="hub",
                size=(end - start + 1) * _ENTRY_BYTES,
            )

    def slices(self, pinned: LogView, selection: Selection) -> Iterator[Slice]:
        timed = selection.first_ts is not None or selection.last_ts is not None
        with HubLink(self.address) as link:
            for label in sorted(pinned.labels):
                refs = pinned.labels[label].chunks
                chosen = link.session(lambda session: _in_time(session, refs, selection)) if timed else selection  # noqa: B023 - called at once
                yield from (chosen.slice_of(ref) for ref in refs if chosen.takes(ref))

    # --- on executors ----------------------------------------------------------------------------------

    def read(self, slices: Iterable[Slice], spec: ReadSpec) -> Iterator[pa.RecordBatch]:
        with HubLink(self.address) as link:
            for part in slices:
                for run in runs(link, part):
                    for table in tables(run, part.chunk, spec):
                        yield from spec.batches(table, part.first, part.last)


# --- heads ------------------------------------------------------------------------------------------------------


async def _list_streams(session: HubSession) -> tuple[bytes, ...]:
    """Return the streams that the hub knows by id; none if this caller is not an administrator."""
    try:
        return (await session.calls.ask("tooling/streams", None, StreamsResponse)).stream_ids
    except HubRefused as exc:
        if exc.code in _DENIED:
            return ()
        raise


async def _list_labels(session: HubSession, selection: Selection) -> list[LabelInfo]:
    """Return the labels and their ends as the hub states them, unsigned.

    An entry that it does not serve up to there is reported later.
    """
    if selection.labels is not None:
        named = [await session.label_info(label) for label in sorted(selection.labels)]
        return [info for info in named if info is not None]
    return [info async for fetch_page in label_pages(session.calls) for info in fetch_page]


async def _stream_names(session: HubSession, listed: Sequence[LabelInfo], known: set[bytes]) -> dict[bytes, bytes]:
    """Map labels to stream ids. A label follows from stream and epoch, so a matching id is proven (D-23)."""
    by_label = {info.label: info.epoch for info in listed}

    def match_streams(streams: Iterable[bytes]) -> dict[bytes, bytes]:
        epochs = set(by_label.values())
        by_name = {
            label_of(session.routing_key, stream_id, epoch): stream_id for stream_id in streams for epoch in epochs
        }
        return {label: stream_id for label, stream_id in by_name.items() if label in by_label}

    names = match_streams(known)
    unnamed = [label for label in by_label if label not in names]
    for at in range(0, len(unnamed), TOGETHER):
        group = [label for label in unnamed[at : at + TOGETHER] if label not in names]
        answers = await asyncio.gather(*[_first_streams(session, label) for label in group])
        names |= match_streams({stream_id for streams in answers for stream_id in streams} - known)
    return names


async def _first_streams(session: HubSession, label: bytes) -> tuple[bytes, ...]:
    """Return the streams of the capability under which a label was opened; the label's stream is among them."""
    try:
        items = await fetch_page(session.calls, label, 1, 1)
        auth_ref = Msg.from_bytes(items[0].msg).auth_ref if items else None
    except (PageRefused, FormatError):
        return ()  # erased or damaged: the row will say so
    token = await session.token(auth_ref) if auth_ref is not None else None
    return token.allow.stream_ids if token is not None else ()


async def _in_time(session: HubSession, refs: Sequence[ChunkRef], selection: Selection) -> Selection:
    """Replace bounds of time by positions: hub_ts never decreases in a label (D-28), so a few receipts suffice."""
    if not any(selection.takes(ref) for ref in refs):
        return selection
    first = last = None
    try:
        if selection.first_ts is not None:
            first = await seek(session, refs[0].label, selection.first_ts)
        if selection.last_ts is not None:
            last = await seek(session, refs[0].label, selection.last_ts + 1) - 1
    except HubRefused:  # a receipt that it cannot read: then all are read, and the rows say which
        return selection
    return selection.narrow(first_seq=first, last_seq=last)
