"""Reading from a running hub: heads and ranges on the driver, entries paged over HTTP by the tasks themselves.

The rows equal those of the hub's directory and are checked in the same way (`veen.lake.log.remote`). `path` is the URL,
and `frame_offset` is null: only the hub knows the place of an entry in its files. An erased entry has its receipt only.

Blocking calls to a hub for planners and tasks, with errors that say what to do.

Spark shows only the text of an error, so the text includes the hint. Requests without an answer are retried with
growing pauses (`veen.client.transport.calls`), so a hub may restart in the middle of a task.

Entries over HTTP, on the executor: pages become frames, and an entry that the hub does not serve becomes a row.

An answer is put into frames and read like a chunk, so that an invented entry is detected as damage on a disk would be.
Only the frames are trusted, not the envelope.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar

import pyarrow as pa

from veen.client.errors import BadAnswer, CertificateUnverified, ClientError, Divergence, HubRefused, NetworkError
from veen.client.read.streams import seek
from veen.client.session import HubSession
from veen.client.transport.calls import NOTHING, Calls, Retry, is_not_found
from veen.client.transport.hubapi import label_pages
from veen.client.transport.opening import open_transport
from veen.client.verify.pin import HubPin
from veen.core import cbor
from veen.core.errors import ApiCode, FormatError
from veen.core.labels import label_of
from veen.core.limits import DEFAULT_LIMITS
from veen.core.objects.envelopes import MAX_PAGE_ITEMS, ReceiptRequest, ReceiptResponse, StreamRequest
from veen.core.objects.identity import IdentityError
from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt
from veen.core.objects.tooling import IdentityResponse, LabelInfo, StreamsResponse
from veen.core.verdict import StatedBy
from veen.lake.log.entries import ReadSpec, Row, from_frames, from_rows
from veen.lake.log.errors import PipelineError
from veen.lake.log.options import HubAddress
from veen.lake.log.slices import Selection, Slice
from veen.storage import frame
from veen.storage.pinned import ChunkRef, LabelPin, LogView

T = TypeVar("T")


class HubFailed(PipelineError):
    """A failure between client and hub. Its text ends with the hint."""

    def __str__(self) -> str:
        return f"{self.what}. {self.hint}"


class HubUnreachable(HubFailed):
    """No answer within the option `patience`."""

    hint = "Check that the hub runs and can be reached from executors, too (veen hub status); `patience` waits longer."


class HubCertificate(HubFailed, code="E.NET.CERTIFICATE"):
    """A hub certificate that cannot be verified."""

    hint = "Name the authority that signed it: caFile (in Spark options) or --ca-file, a file on every executor, too."


class HubSaysNo(HubFailed):
    """A request that the hub refused."""

    hint = "Give a token or a certificate with tokenFile or clientCert; `veen explain CODE` explains a code."


class HubDiverged(HubFailed):
    """Another hub than the pinned one, or one that contradicts what it signed before."""

    hint = "Compare hubKey with what the operator published before going on."


class HubLink:
    """A connection to a hub, opened on first use: `with HubLink(address) as link:`. Not for use in an event loop."""

    def __init__(self, address: HubAddress) -> None:
        self.address = address
        self._runner = asyncio.Runner()
        self._calls: Calls | None = None
        self._session: HubSession | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None) -> None:
        if self._calls is not None:
            self._runner.run(self._calls.transport.aclose())
        self._runner.close()

    def run(self, work: Callable[[Calls], Coroutine[Any, Any, T]]) -> T:
        """Run work that needs only calls; the hub's identity is not checked."""
        return self._run(self._with_calls(work))

    def session(self, work: Callable[[HubSession], Coroutine[Any, Any, T]]) -> T:
        """Run work that needs the pinned hub. Raise HubDiverged if another one answers."""
        return self._run(self._with_session(work))

    def bound(self) -> HubAddress:
        """Return the address with the hub_id that the pinned key signed, so that tasks reach no other hub (D-174)."""

        async def hub_id(session: HubSession) -> str:
            return session.hub_id.hex()

        return self.address if self.address.pin is None else replace(self.address, hub_id=self.session(hub_id))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return self._runner.run(work)
        except BadAnswer as exc:
            raise HubFailed(f"{self.address.url}: {exc}") from exc
        except CertificateUnverified as exc:
            raise HubCertificate(f"{self.address.url}: {exc}") from exc
        except NetworkError as exc:
            raise HubUnreachable(f"{self.address.url}: {exc}") from exc
        except HubRefused as exc:
            raise HubSaysNo(f"{self.address.url}: {exc}") from exc
        except Divergence as exc:
            raise HubDiverged(f"{self.address.url}: {exc}") from exc
        except ClientError as exc:
            raise HubFailed(f"{self.address.url}: {exc}") from exc

    async def _with_calls(self, work: Callable[[Calls], Coroutine[Any, Any, T]]) -> T:
        return await work(self._open_calls())

    async def _with_session(self, work: Callable[[HubSession], Coroutine[Any, Any, T]]) -> T:
        if self._session is None:
            calls = self._open_calls()
            at = self.address
            pin = HubPin.parse(at.pin, at.hub_id) if at.pin else await _pin_claimed_identity(calls)
            session = HubSession(calls, pin)
            await session.open()
            self._session = session
        return await work(self._session)

    def _open_calls(self) -> Calls:
        if self._calls is None:
            at = self.address
            transport = open_transport(
                at.url,
                ca_file=_path(at.ca_file),
                client_cert=_path(at.client_cert),
                client_key=_path(at.client_key),
                token_file=_path(at.token_file),
                insecure_http=at.insecure_http,
                timeout=float(at.timeout),
            )
            self._calls = Calls(transport, Retry(seconds=float(at.patience)))
        return self._calls


async def _pin_claimed_identity(calls: Calls) -> HubPin:
    """Return a pin of the identity that the hub claims. Only for levels that check no signature."""
    answer = await calls.ask("tooling/identity", NOTHING, IdentityResponse)
    try:
        return HubPin.of_identity(answer.to_identity())
    except IdentityError as exc:
        raise BadAnswer(f"tooling/identity: {exc}") from exc


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


TOGETHER: Final = 32  # requests for single entries under way at once
_STREAM: Final = "v1/stream"
_MAX_RECEIPT_BYTES: Final = 256
_ITEMS: Final = 5  # of a stream response, by its key
_LABEL: Final = 2


class Item(NamedTuple):
    """An entry as the hub sent it, byte for byte."""

    stream_seq: int
    msg: bytes
    receipt: bytes

    @property
    def is_plausible(self) -> bool:
        """True if a frame can hold it."""
        return len(self.msg) <= DEFAULT_LIMITS.max_msg_bytes and len(self.receipt) <= _MAX_RECEIPT_BYTES


class Run(NamedTuple):
    """Consecutive entries: their bytes, or a row for each with the reason why it was not served."""

    first: int
    items: Sequence[Item]
    rows: Sequence[Row] = ()
    erased: bool = False  # the hub says that the payloads of `rows` were erased under its retention policy


def runs(link: HubLink, part: Slice) -> Iterator[Run]:
    """Yield every entry of a slice, in order: as the hub sends it, or with the reason why it does not."""
    label, pos = part.label, part.first
    while pos <= part.last:
        last = min(part.last, pos + MAX_PAGE_ITEMS - 1)
        try:
            items = link.run(lambda calls: fetch_page(calls, label, pos, last))  # noqa: B023 - called at once
        except PageRefused as exc:
            if exc.singly:
                for first in range(pos, last + 1, TOGETHER):
                    seqs = range(first, min(first + TOGETHER, last + 1))
                    yield from link.run(lambda calls: _fetch_singly(calls, label, seqs))  # noqa: B023 - called at once
            else:
                yield Run(pos, (), [_bad_row(seq, exc.reason) for seq in range(pos, last + 1)])
            pos = last + 1
            continue
        if not items:
            yield _withheld_run(pos, last)
            pos = last + 1
            continue
        for run in _align(pos, last, items):
            yield run
            pos = run.first + len(run.items or run.rows)


def _align(first: int, last: int, items: Sequence[Item]) -> Iterator[Run]:
    """Yield entries at their own positions, and rows for those left out in between.

    If the numbers do not ascend, each entry is checked at the position where the hub put it.
    """
    numbers = [first - 1, *(item.stream_seq for item in items), last + 1]
    if any(a >= b for a, b in pairwise(numbers)):
        yield Run(first, items)
        return
    begin = 0
    for at, item in enumerate(items):
        expected = numbers[at] + 1
        if item.stream_seq != expected:
            if begin < at:
                yield Run(items[begin].stream_seq, items[begin:at])
            yield _withheld_run(expected, item.stream_seq - 1)
            begin = at
    yield Run(items[begin].stream_seq, items[begin:])


def _withheld_run(first: int, last: int) -> Run:
    return Run(first, (), [_bad_row(seq, "the hub does not give this entry") for seq in range(first, last + 1)])


class PageRefused(Exception):
    """A page that the hub does not serve; `singly` if single entries of it may be served."""

    def __init__(self, reason: str, *, singly: bool) -> None:
        super().__init__(reason)
        self.reason, self.singly = reason, singly


async def fetch_page(calls: Calls, label: bytes, first: int, last: int) -> list[Item]:
    """Request the entries from `first` on, as many as the hub puts into one answer.

    Raise PageRefused if it serves none of them together.
    """
    request = StreamRequest(label=label, from_seq=first, to_seq=last, max_items=last - first + 1, with_receipts=True)
    try:
        items = split_page((await calls.send(_STREAM, request.to_bytes())).body, label)
    except HubRefused as exc:
        if exc.detail.get("reason") in ("pruned", "corrupt"):
            raise PageRefused(str(exc), singly=True) from exc
        if is_not_found(exc):
            raise PageRefused(str(exc), singly=False) from exc
        raise
    except BadAnswer as exc:
        raise PageRefused(str(exc), singly=False) from exc
    if len(items) > last - first + 1:
        raise PageRefused("the hub gives more entries than it was asked for", singly=False)
    return items


async def _fetch_singly(calls: Calls, label: bytes, seqs: Iterable[int]) -> list[Run]:
    return list(await asyncio.gather(*[_fetch_single(calls, label, seq) for seq in seqs]))


async def _fetch_single(calls: Calls, label: bytes, seq: int) -> Run:
    """Fetch one entry of a page in which one is damaged or erased."""
    try:
        items = await fetch_page(calls, label, seq, seq)
    except PageRefused as exc:
        refused = exc.__cause__
        if isinstance(refused, HubRefused) and refused.detail.get("reason") == "pruned":
            return Run(seq, (), [await _row_of_erased(calls, label, seq)], erased=True)
        return Run(seq, (), [_bad_row(seq, exc.reason)])
    return Run(seq, items) if items else _withheld_run(seq, seq)


async def _row_of_erased(calls: Calls, label: bytes, seq: int) -> Row:
    """Return the row of an erased entry, with the fields of its receipt if the hub serves it (D-74)."""
    row = _bad_row(seq, "erased under the retention policy")
    try:
        receipt = (await calls.ask("v1/receipt", ReceiptRequest(label=label, stream_seq=seq), ReceiptResponse)).receipt
    except (HubRefused, BadAnswer):
        return row
    if (receipt.label, receipt.stream_seq) != (label, seq):
        return row | {"reason": "erased, and the hub answers with the receipt of another entry"}
    return row | _of_receipt(receipt)


def _of_receipt(receipt: Receipt) -> Row:
    return {
        "hub_ts": receipt.hub_ts,
        "leaf_hash": receipt.leaf_hash,
        "mmr_root": receipt.mmr_root,
        "hub_sig": receipt.hub_sig,
        "receipt": receipt.to_bytes(),
    }


def _bad_row(seq: int, reason: str) -> Row:
    return {"stream_seq": seq, "ok": False, "reason": reason}


def tables(run: Run, ref: ChunkRef, spec: ReadSpec) -> Iterator[pa.Table]:
    """Yield the rows of a run as tables, in the columns of `spec`."""
    if run.rows:
        yield from_rows(run.rows, ref, spec)
        return
    # One entry that no frame can hold must not hide those behind it.
    whole = all(item.is_plausible for item in run.items)
    groups = [run.items] if whole else [[item] for item in run.items]
    first = run.first
    for group in groups:
        data = b"".join(frame.encode(ref.label, *item).to_bytes() for item in group)
        part = replace(ref, start_seq=first, end_seq=first + len(group) - 1, size=len(data))
        yield _without_offsets(from_frames(data, part, spec))
        first += len(group)


def _without_offsets(table: pa.Table) -> pa.Table:
    at = table.schema.get_field_index("frame_offset")
    return table if at < 0 else table.set_column(at, "frame_offset", pa.nulls(table.num_rows, pa.int64()))


def split_page(body: bytes, label: bytes) -> list[Item]:
    """Split a stream response into its entries, undecoded. Raise BadAnswer for a malformed one or another label."""
    items: list[Item] = []
    try:
        count, pos = _read_head(body, 0, major=5)
        for _ in range(count):
            key, start = _read_head(body, pos, major=0)
            if key == _ITEMS:
                items, pos = _split_items(body, start)
                continue
            pos = cbor.item_end(body, start, what=_STREAM)
            if key == _LABEL and cbor.decode(body[start:pos], what=_STREAM) != label:
                raise BadAnswer(f"{_STREAM}: a page of another label than the one asked for")
    except FormatError as exc:
        raise BadAnswer(f"{_STREAM}: not a page: {exc}") from exc
    return items


def _split_items(body: bytes, start: int) -> tuple[list[Item], int]:
    """Split an array of entries; return them and the position behind it."""
    count, pos = _read_head(body, start, major=4)
    items = []
    for _ in range(count):
        members, pos = _read_head(body, pos, major=5)
        spans: dict[int, tuple[int, int]] = {}
        for _ in range(members):
            key, value = _read_head(body, pos, major=0)
            pos = cbor.item_end(body, value, what=_STREAM)
            spans[key] = (value, pos)
        if set(spans) != {1, 2, 3}:
            raise BadAnswer(f"{_STREAM}: an entry comes without its number, its message or its receipt")
        seq, _ = _read_head(body, spans[1][0], major=0)
        items.append(Item(seq, body[slice(*spans[2])], body[slice(*spans[3])]))
    return items, pos


def _read_head(body: bytes, pos: int, *, major: int) -> tuple[int, int]:
    try:
        return cbor.uint_at(body, pos, major << 5)
    except (IndexError, ValueError) as exc:
        raise BadAnswer(f"{_STREAM}: not a page of entries") from exc


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
