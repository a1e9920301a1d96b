"""Archives of a chunk whose payloads were erased (D-74).

    receipts-…  its RECEIPTs, one after the other: signed, so they need no other protection
    heads-…     one array per entry of what cursors, locations and the tree follow from, then H of all before it

    head = [hub_ts, frame bytes, entry_hash, profile_id, client_id, client_seq, prev_ack, auth_ref / null, ct_hash]

With the heads, every index and every tree can still be made from the log (STOR-20, STOR-22), and whoever kept a
payload can prove it to be the erased one: leaf_hash follows from the head, entry_hashes_root from all of them, and
the hub signed both. The heads stay when receipts go as well.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from veen.core import cbor
from veen.core.entry import leaf_hash_of
from veen.core.errors import FormatError
from veen.core.hashing import H
from veen.core.objects.receipt import Receipt
from veen.io.errors import CorruptError
from veen.io.local import Fs
from veen.storage import layout
from veen.storage.scan import ScannedEntry, read_file

_SHAPE: Final = (int, int, 32, 32, 32, int, int, 32, 32)  # what each field of a head is: an integer, or so many bytes
_AUTH_REF: Final = 7  # the one field that may be null
_DIGEST_BYTES: Final = 34  # a CBOR byte string of 32


def make(entries: Sequence[ScannedEntry]) -> tuple[bytes, bytes]:
    """Return the receipts and the heads of a whole chunk."""
    receipts, heads = bytearray(), bytearray()
    for item in entries:
        assert item.msg is not None  # noqa: S101 - the caller read them from the chunk itself
        assert item.receipt is not None  # noqa: S101 - as above
        receipts += item.receipt.to_bytes()
        heads += cbor.encode(
            [
                item.hub_ts,
                item.length,
                item.entry_hash,
                item.msg.profile_id,
                item.client_id,
                item.client_seq,
                item.prev_ack,
                item.auth_ref,
                item.msg.ct_hash,
            ]
        )
    return bytes(receipts), bytes(heads) + cbor.encode(H(bytes(heads)))


def items(fs: Fs, label: bytes, start_seq: int, end_seq: int, *, receipts: bool) -> Iterator[ScannedEntry]:
    """Yield the entries of an erased chunk; without `receipts` if those were erased as well."""
    heads_path = layout.heads_archive(label, start_seq, end_seq)
    data = _read(fs, heads_path)
    body = data[:-_DIGEST_BYTES]
    if len(data) < _DIGEST_BYTES or data[-_DIGEST_BYTES:] != cbor.encode(H(body)):
        raise CorruptError(heads_path, 0, "the heads do not match the hash behind them")
    receipts_path = layout.receipts_archive(label, start_seq, end_seq)
    receipts_left = _receipts(fs, receipts_path) if receipts else None
    offset, at, seq = 0, 0, start_seq
    for raw in _sequence(body, heads_path):
        try:
            item = _item(raw, label, seq, heads_path, at, offset)
        except FormatError as exc:
            raise CorruptError(heads_path, at, f"entry {seq}: {exc}") from exc
        if receipts_left is not None:
            if (receipt := next(receipts_left, None)) is None:
                raise CorruptError(receipts_path, 0, f"the receipt of entry {seq} is missing")
            item = _with_receipt(item, *receipt, receipts_path, label)
        yield item
        offset, at, seq = offset + item.length, at + len(raw), seq + 1
    if seq != end_seq + 1:
        raise CorruptError(heads_path, at, f"holds {seq - start_seq} entries, its name says {end_seq - start_seq + 1}")
    if receipts_left is not None and (extra := next(receipts_left, None)) is not None:
        raise CorruptError(receipts_path, extra[0], "more receipts than entries")


def _read(fs: Fs, path: str) -> bytes:
    try:
        return read_file(fs, path)
    except FileNotFoundError as exc:
        raise CorruptError(path, 0, "the file is missing") from exc


def _sequence(data: bytes, path: str) -> Iterator[bytes]:
    pos = 0
    while pos < len(data):
        try:
            end = cbor.item_end(data, pos)
        except FormatError as exc:
            raise CorruptError(path, pos, str(exc)) from exc
        yield data[pos:end]
        pos = end


def _item(raw: bytes, label: bytes, seq: int, path: str, at: int, offset: int) -> ScannedEntry:
    values = cbor.decode(raw, what="head")
    if type(values) is not list or len(values) != len(_SHAPE) or not all(map(_fits, range(len(_SHAPE)), values)):
        raise CorruptError(path, at, f"entry {seq}: not a head")
    hub_ts, length, entry_hash, profile_id, client_id, client_seq, prev_ack, auth_ref, ct_hash = values
    leaf_hash = leaf_hash_of(
        label=label, profile_id=profile_id, ct_hash=ct_hash, client_id=client_id, client_seq=client_seq
    )
    return ScannedEntry(
        path, at, offset, length, seq, entry_hash, leaf_hash, client_id, client_seq, prev_ack, auth_ref, hub_ts,
        None, None,
    )  # fmt: skip


def _fits(field: int, value: Any) -> bool:
    size = _SHAPE[field]
    if size is int:
        return type(value) is int and value >= 0
    return (value is None and field == _AUTH_REF) or (type(value) is bytes and len(value) == size)


def _receipts(fs: Fs, path: str) -> Iterator[tuple[int, Receipt]]:
    at = 0
    for raw in _sequence(_read(fs, path), path):
        try:
            yield at, Receipt.from_bytes(raw)
        except FormatError as exc:
            raise CorruptError(path, at, str(exc)) from exc
        at += len(raw)


def _with_receipt(item: ScannedEntry, at: int, receipt: Receipt, path: str, label: bytes) -> ScannedEntry:
    full = replace(item, path=path, at=at, receipt=receipt)
    if receipt.label != label or receipt.stream_seq != item.stream_seq:
        raise full.fault("this receipt is for another position")
    if receipt.leaf_hash != item.leaf_hash:
        raise full.fault("leaf_hash is not that of the head (I2)")
    if receipt.hub_ts != item.hub_ts:
        raise full.fault("hub_ts is not that of the head")
    return full
