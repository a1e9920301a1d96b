"""Replay: the events of a range of numbers or of a time window, with receipts and proven edges (SDR-07 … SDR-09).

Ranges are inclusive at both ends (D-126). Within a label hub_ts never decreases (D-28), so the first and the last entry
of a window are found by binary search over receipts, and the receipts of their neighbours prove that the answer has all
entries of the window. An entry that cannot be opened, or whose payload was erased, is a separate row.

An event that an air-gap bridge imported (import/*) is a row like any other, with the receipt of its origin zone beside
the one of this hub, so that both zones are replayed together (AGB-20).

Events in OCSF with record_integrity, for a SIEM whose users want to check them.

`raw_data` has the whole payload as text; numbers of the event are integers, so the canonical form of RFC 8785 (JCS) is
that of Python's json with sorted names. The fingerprint covers the whole event except itself. OCSF has no field for the
bytes of a signature yet, so the hub's receipt is in `unmapped.veen`.
"""

import hashlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from veen.client.client import Client
from veen.client.errors import HubRefused, LocalError
from veen.client.generations.records import KEY_SCHEMAS, describe
from veen.client.identity.keyring import StreamKeys
from veen.client.read.reading import Entry
from veen.client.transport.calls import is_not_found
from veen.core.canonical import encode
from veen.core.errors import VerifyError
from veen.core.event import Event
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.receipt import Receipt
from veen.overlays.airgap.bodies import ImportedEvent, WithheldEvent, origin_event, read_crossed
from veen.overlays.framework.schema import Issue
from veen.overlays.recorder import events as sdr
from veen.products.recorder.events import payload_json


class EdgeUnproven(VerifyError, code="SDR.EDGE"):
    """The receipts beside a window do not prove its beginning or its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One entry of the answer: its receipt, and its event or the reason why it cannot be shown."""

    stream: str
    epoch: int
    receipt: Receipt
    client_id: bytes | None = None
    event: sdr.RecorderEvent | None = None
    error: str | None = None
    crossed: ImportedEvent | WithheldEvent | None = None  # how a bridge brought it, if one did
    about_keys: str | None = None  # what a message about keys says, which is no event and no fault

    def to_json(self) -> dict[str, Any]:
        event = self.event
        return {
            "stream": self.stream,
            "label": self.receipt.label.hex(),
            "epoch": self.epoch,
            "hub_commit_seq": self.receipt.stream_seq,
            "hub_commit_time": self.receipt.hub_ts,
            "msg_id": self.receipt.leaf_hash.hex(),
            "subject_id": event and event.subject_id,
            "principal_id": event and event.principal_id.hex(),
            "event_type": event and event.event_type,
            "event_time": event and event.event_time,
            "origin": event and event.origin,
            "payload": None if event is None else _plain(payload_json(event)),
            "error": self.error,
            "receipt": self.receipt.to_json(),
            **({} if self.crossed is None else {"imported": _import_json(self.crossed)}),
            **({} if self.about_keys is None else {"about_keys": self.about_keys}),
        }


def _import_json(crossed: ImportedEvent | WithheldEvent) -> dict[str, Any]:
    return {
        "origin_hub_id": crossed.origin_hub_id.hex(),
        "origin_stream_id": crossed.origin_stream_id.hex(),
        "origin_epoch": crossed.origin_epoch,
        "origin_receipt": crossed.receipt.to_json(),
        "bundle_id": crossed.bundle_id.hex(),
        "bridge_id": crossed.bridge_id.hex(),
        "import_time": crossed.import_time,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayCoverage:
    """Coverage of one label, with the evidence that it is complete.

    `before` and `after` are the receipts beside the range; None where the log begins, or ends under `signed`.
    """

    stream: str
    label: bytes
    epoch: int
    from_seq: int
    to_seq: int  # from_seq - 1 if nothing lies in the window
    before: Receipt | None
    after: Receipt | None
    signed: Checkpoint  # of the hub, over the whole label at the time of the answer

    def to_json(self) -> dict[str, Any]:
        return {
            "stream": self.stream,
            "label": self.label.hex(),
            "epoch": self.epoch,
            "from": self.from_seq,
            "to": self.to_seq,
            "last_seq": self.signed.upto_seq,
            "root": self.signed.mmr_root.hex(),
            "before": self.before and self.before.to_json(),
            "after": self.after and self.after.to_json(),
            "checkpoint": self.signed.to_json(),
        }


def check_edges(coverage: ReplayCoverage, since: int, until: int) -> None:
    """Raise EdgeUnproven unless the neighbours prove that the range contains the whole window.

    Signatures are not checked.
    """
    before, after = coverage.before, coverage.after
    if before is None:
        begins = coverage.from_seq == 1
    else:
        begins = before.stream_seq == coverage.from_seq - 1 and before.hub_ts < since and before.label == coverage.label
    if after is None:
        ends = coverage.to_seq == coverage.signed.upto_seq
    else:
        ends = after.stream_seq == coverage.to_seq + 1 and after.hub_ts > until and after.label == coverage.label
    if not (begins and ends and coverage.signed.label_curr == coverage.label):
        raise EdgeUnproven(
            f"{coverage.stream}: the receipts beside the window do not prove its {'end' if begins else 'beginning'}"
        )


async def replay_range(
    client: Client, keys: StreamKeys, first: int, last: int, *, epoch: int | None = None
) -> tuple[AsyncIterator[Row], ReplayCoverage]:
    """Return the entries first … last of one label. Raise LocalError if the log has fewer."""
    signed = await client.checkpoint(keys, epoch=epoch)
    if not 1 <= first <= last <= signed.upto_seq:
        raise LocalError(f"{keys}: the log has entries 1 to {signed.upto_seq}, and {first} to {last} was asked for")
    coverage = await _coverage(client, keys, signed, first, last)
    return _rows(client, keys, coverage), coverage


async def replay_window(
    client: Client, keys: StreamKeys, since: int, until: int
) -> AsyncIterator[tuple[AsyncIterator[Row], ReplayCoverage]]:
    """Yield, for each label of a stream, the entries with hub_ts in since … until and the proof that these are all."""
    try:
        signed = await client.checkpoints(keys)
    except HubRefused as exc:
        if not is_not_found(exc):
            raise
        return  # nothing was written to it yet
    for entry in signed:
        first = await _first_at(client, keys, entry, since)
        last = await _first_at(client, keys, entry, until + 1) - 1
        coverage = await _coverage(client, keys, entry, first, last)
        check_edges(coverage, since, until)
        yield _rows(client, keys, coverage), coverage


async def _coverage(client: Client, keys: StreamKeys, signed: Checkpoint, first: int, last: int) -> ReplayCoverage:
    """Return the coverage of entries first … last of the label of `signed`, with the receipts beside them."""
    return ReplayCoverage(
        stream=str(keys),
        label=signed.label_curr,
        epoch=signed.epoch,
        from_seq=first,
        to_seq=last,
        before=await client.receipt(keys, first - 1, epoch=signed.epoch) if first > 1 else None,
        after=await client.receipt(keys, last + 1, epoch=signed.epoch) if last < signed.upto_seq else None,
        signed=signed,
    )


async def _first_at(client: Client, keys: StreamKeys, signed: Checkpoint, ts: int) -> int:
    """Return the first entry whose hub_ts is at least `ts`; the number after the last entry if there is none."""
    low, high = 1, signed.upto_seq + 1
    while low < high:
        middle = (low + high) // 2
        receipt = await client.receipt(keys, middle, epoch=signed.epoch)
        low, high = (middle + 1, high) if receipt.hub_ts < ts else (low, middle)
    return low


async def _rows(client: Client, keys: StreamKeys, coverage: ReplayCoverage) -> AsyncIterator[Row]:
    """Yield every entry of the range, in order."""
    at = coverage.from_seq
    while at <= coverage.to_seq:
        try:
            async for entry in client.read(keys, from_seq=at, to_seq=coverage.to_seq, epoch=coverage.epoch):
                yield row_of(str(keys), entry)
                at = entry.seq + 1
            return
        except HubRefused as exc:
            if _reason(exc.detail) != "pruned":
                raise
            receipt = await client.receipt(keys, at, epoch=coverage.epoch)
            yield Row(
                stream=str(keys), epoch=coverage.epoch, receipt=receipt, error="the payload was erased (retention)"
            )
            at += 1


def _plain(value: Any) -> Any:
    """Return a value with Decimal numbers as floats, for JSON encoders without Decimal."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, dict):
        return {key: _plain(element) for key, element in value.items()}
    return [_plain(element) for element in value] if isinstance(value, list) else value


def _reason(detail: Mapping[str, Any]) -> object:
    return detail.get("reason")


def row_of(stream: str, entry: Entry) -> Row:
    """Return an entry as a row; an entry without an event of a recorder carries the reason."""
    client_id, event, error, crossed, about_keys = entry.msg.client_id, None, entry.error, None, None
    if entry.event is not None and entry.event.hdr.schema in KEY_SCHEMAS:
        about_keys = describe(entry.event.hdr.schema, entry.event.body)
    elif entry.event is not None:
        brought = read_crossed(entry.event)
        if brought is None:
            event, error = _event_or_error(entry.event)
        elif isinstance(brought, Issue):
            error = f"{brought.code}: {brought.what}"
        else:
            crossed = brought.body
            event, error = _origin_event_or_error(crossed)
    return Row(
        stream=stream,
        epoch=entry.epoch,
        receipt=entry.receipt,
        client_id=client_id,
        event=event,
        error=error,
        crossed=crossed,
        about_keys=about_keys,
    )


def _event_or_error(event: Event) -> tuple[sdr.RecorderEvent | None, str | None]:
    """Return the recorder event of an entry, or the reason why there is none."""
    if event.hdr.schema != sdr.EVENT.id:
        return None, "SDR.FOREIGN_SCHEMA: not a recorder event"
    typed = sdr.read(event)
    return (None, f"{typed.code}: {typed.what}") if isinstance(typed, Issue) else (typed.body, None)


def _origin_event_or_error(body: ImportedEvent | WithheldEvent) -> tuple[sdr.RecorderEvent | None, str | None]:
    if isinstance(body, WithheldEvent):
        return None, f"withheld in the sending zone: {body.reason}"
    origin = origin_event(body, body.receipt.hub_ts)
    return (None, "crossed the bridge sealed: no opening came with it") if origin is None else _event_or_error(origin)


OCSF_VERSION: Final = "1.9.0"
_BASE_EVENT: Final = 0
_OTHER: Final = 99
_SHA_256: Final = 3
_HEX: Final = 1
_JCS: Final = 2


def canonical(value: Any) -> bytes:
    """Encode a value by RFC 8785: text, integers below 2^53, booleans, lists, and objects with ASCII names."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def fingerprint_of(event: dict[str, Any]) -> str:
    """Return the SHA-256 of an event's canonical form without the fingerprint itself."""
    attestation = {
        name: value
        for name, value in event["record_integrity"]["attestation_list"][0].items()
        if name not in ("fingerprint", "signatures")
    }
    bare = {**event, "record_integrity": {"attestation_list": [attestation]}}
    return hashlib.sha256(canonical(bare)).hexdigest()


def ocsf_event(row: Row, hub_id: bytes, previous: tuple[int, str] | None = None) -> dict[str, Any]:
    """Return one row as an OCSF base event. `previous`: number and fingerprint of the preceding entry of the label."""
    receipt, event = row.receipt, row.event
    label = receipt.label.hex()
    attestation: dict[str, Any] = {
        "uid": f"{label}:{receipt.stream_seq}",
        "authority_uid": hub_id.hex(),
        "chain_uid": label,
    }
    if receipt.stream_seq > 1:
        before: dict[str, Any] = {"uid": f"{label}:{receipt.stream_seq - 1}", "type_uid": _OTHER}
        if previous is not None and previous[0] == receipt.stream_seq - 1:
            before["fingerprint"] = _fingerprint(previous[1])
        attestation["prev_event"] = before
    data: dict[str, Any] = {
        "class_uid": _BASE_EVENT,
        "category_uid": 0,
        "activity_id": _OTHER,
        "type_uid": _OTHER,
        "severity_id": 0,
        "time": (event.event_time if event else receipt.hub_ts) * 1000,
        "message": event.event_type if event else (row.about_keys or row.error or "unreadable"),
        "metadata": {
            "version": OCSF_VERSION,
            "uid": receipt.leaf_hash.hex(),
            "log_name": row.stream,
            "logged_time": receipt.hub_ts * 1000,
            "product": {"name": "VEEN recorder", "vendor_name": "VEEN"},
        },
        "record_integrity": {"attestation_list": [attestation]},
        "unmapped": {"veen": {"receipt": receipt.to_bytes().hex(), "hub_commit_seq": receipt.stream_seq}},
    }
    if event is not None:
        data["activity_name"] = event.event_type
        data["actor"] = {"user": {"uid": event.subject_id}}
        data["device"] = {"hostname": event.origin, "type_id": 0}
        data["raw_data"] = encode(payload_json(event)).decode()
        data["unmapped"]["veen"]["principal_id"] = event.principal_id.hex()
    attestation["fingerprint"] = _fingerprint(fingerprint_of(data))
    return data


def _fingerprint(value: str) -> dict[str, Any]:
    return {"algorithm_id": _SHA_256, "encoding_id": _HEX, "serialization_id": _JCS, "value": value}
