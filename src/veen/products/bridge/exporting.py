"""Export: cuts bundles from a stream, chains them, and audits each (001 products §4.4, D-106, D-131, D-132).

The order of steps keeps a crash at any point from making a second bundle with the same number: write the file under a
hidden name, store the sealed audit record and the new head of the chain, rename, audit, advance. After a restart the
exporter first finishes the stored step.

Derived export: an identity that is neither bridge nor log copies selected events to an export stream (D-132).

A copy has the schema and the identical bytes of the body, and the original as parent_id. Exactly once without reading
back: before a batch is sent, the positions of its events and the hub's cursor of the selector's client key are stored.
After a crash the cursor tells how many of them the hub has. If the state is lost, the copies are read back once. The
same happens if an earlier version wrote the state: it could leave out events where several streams went to one.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from veen.client.client import Client
from veen.client.errors import Dropped, NoReaderKey
from veen.client.home import PrivateFs
from veen.client.identity.keyring import Keyring, StreamKeys
from veen.client.read.reading import Entry
from veen.client.send.sealing import Draft
from veen.client.send.writing import Sent
from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import FormatError, OpenError, VeenError
from veen.core.hashing import H
from veen.core.labels import stream_id_of
from veen.core.objects.captoken import CapToken
from veen.core.objects.checkpoint import Checkpoint
from veen.core.sealing.ciphertext import ATTACHED_SCHEMA, Attached, Opened, att_root_of, open_with_one, opening_of
from veen.core.tree.mmr import Mmr
from veen.overlays.airgap.bodies import ONLINE, OnlineRecord
from veen.overlays.recorder import events as sdr
from veen.products.bridge.audit import AuditEntry, Auditor
from veen.products.bridge.bundle import (
    MAX_ATTACHED_BYTES,
    SUFFIX,
    BridgeError,
    BundleEvent,
    BundleWriter,
    ExportCheckpoint,
    Header,
    WrittenBundle,
    bridge_id_of,
)
from veen.products.bridge.files import BridgeFiles
from veen.products.bridge.verify import MAX_CARRIED_BYTES

OUTGOING: Final = "outgoing"
_MANIFEST: Final = "MANIFEST.txt"

# Returns the reason to keep an event in the zone, or None. `opened` is None if the exporter cannot open it.
Withhold = Callable[[Entry, Opened | None], str | None]


def _withhold_nothing(entry: Entry, opened: Opened | None) -> str | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    bridge: str
    operator: str
    with_openings: bool = False
    with_attachments: bool = False
    heartbeat: bool = True  # a bundle without events if there is nothing new
    compress: bool = False
    max_events: int = 50_000
    max_bytes: int = 64 << 20
    withhold: Withhold = _withhold_nothing
    clock: Callable[[], float] = time.time


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    """The end of the chain of a label on this side."""

    bundle_seq: int = 0
    bundle_id: bytes | None = None
    seq: int = 0
    peaks: tuple[bytes, ...] = ()
    ts: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "bundle_seq": self.bundle_seq,
            "bundle_id": self.bundle_id.hex() if self.bundle_id else None,
            "seq": self.seq,
            "peaks": [peak.hex() for peak in self.peaks],
            "ts": self.ts,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "_Head":
        return cls(
            bundle_seq=value["bundle_seq"],
            bundle_id=bytes.fromhex(value["bundle_id"]) if value["bundle_id"] else None,
            seq=value["seq"],
            peaks=tuple(map(bytes.fromhex, value["peaks"])),
            ts=value["ts"],
        )


@dataclass(slots=True)
class _Collection:
    """Events in the spool of a bundle, and the tree after them."""

    mmr: Mmr
    first_ts: int = 0
    last_ts: int = 0


class Exporter:
    """Cuts bundles from streams of one hub. Owned by one task; its directory by one process."""

    def __init__(
        self,
        client: Client,
        keyring: Keyring,
        key: SigningKey,
        auditor: Auditor,
        files: BridgeFiles,
        options: ExportOptions,
    ) -> None:
        self._client, self._keyring, self._key, self._auditor = client, keyring, key, auditor
        self._files, self._options = files, options
        self._bridge_id = bridge_id_of(options.bridge)
        self._state = files.load() or {"chains": {}, "pending": None}

    async def export(self, stream: str) -> list[WrittenBundle]:
        """Export everything new in a stream as bundles; if there is nothing new, write a heartbeat."""
        await self.finish()  # before anything new: its number and its place in the chain are taken
        bundles: list[WrittenBundle] = []
        checkpoints = await self._client.checkpoints(stream)
        for checkpoint in checkpoints:
            head = self._head(checkpoint.label_curr)
            while head.seq < checkpoint.upto_seq:
                bundles.append(await self._bundle(stream, checkpoint, head))
                head = self._head(checkpoint.label_curr)
        if not bundles and checkpoints and self._options.heartbeat:
            bundles.append(await self._bundle(stream, checkpoints[-1], self._head(checkpoints[-1].label_curr)))
        return bundles

    async def finish(self) -> None:
        """Complete the bundle that an earlier run wrote and did not publish or audit."""
        pending = self._state["pending"]
        if pending is None:
            return
        self._files.publish(OUTGOING, pending["name"])
        await self._auditor.submit(AuditEntry.from_json(pending["audit"]))
        self._note(pending["note"])
        chains = {**self._state["chains"], pending["label"]: pending["head"]}
        self._save({"chains": chains, "pending": None})

    def _head(self, label: bytes) -> _Head:
        chain = self._state["chains"].get(label.hex())
        return _Head() if chain is None else _Head.from_json(chain)

    async def _bundle(self, stream: str, latest: Checkpoint, head: _Head) -> WrittenBundle:
        label, epoch = latest.label_curr, latest.epoch
        name = f"{self._options.bridge}-{label.hex()[:8]}-{head.bundle_seq + 1:08d}{SUFFIX}"
        with self._files.temporary(OUTGOING, f"{name}.events") as spool:
            writer = BundleWriter(spool)
            last = min(latest.upto_seq, head.seq + self._options.max_events)
            collected = _Collection(Mmr(head.seq, head.peaks))
            if last > head.seq:
                await self._collect(stream, epoch, head.seq + 1, last, writer, collected)
            upto = collected.mmr.size
            checkpoint = latest
            if upto != latest.upto_seq:
                checkpoint = await self._client.checkpoint(stream, upto, epoch=epoch)
            header = await self._header(stream, label, epoch, head, collected, writer.count)
            identity = self._client.pin.identity
            export = ExportCheckpoint(
                checkpoint=checkpoint.to_bytes(),
                timestamp=collected.last_ts or head.ts,
                hub_public=identity.verify_checkpoint(checkpoint, 0).hub_pk,
            )
            with self._files.temporary(OUTGOING, name) as target:
                written = writer.finish(header, export, self._key, target, compress=self._options.compress)
        self._files.path(OUTGOING, f".{name}.events").unlink()
        entry = await self._auditor.prepare(ONLINE, self._record(written, checkpoint))
        new_head = _Head(
            bundle_seq=header.bundle_seq,
            bundle_id=written.trailer.bundle_id,
            seq=upto,
            peaks=collected.mmr.peaks(),
            ts=export.timestamp,
        )
        note = f"{name} {written.bundle_hash.hex()} {stream} {header.export_seq_from}-{header.export_seq_to}"
        self._save(
            {
                "chains": self._state["chains"],
                "pending": {
                    "name": name,
                    "label": label.hex(),
                    "head": new_head.to_json(),
                    "audit": entry.to_json(),
                    "note": note,
                },
            }
        )
        await self.finish()
        return written

    async def _collect(
        self, stream: str, epoch: int, first: int, last: int, writer: BundleWriter, collected: _Collection
    ) -> None:
        keys = tuple(keys for keys in self._keyring.readers(stream) if keys.can_read)
        async for entry in self._client.read(stream, from_seq=first, to_seq=last, epoch=epoch, open=False):
            event = self._event(entry, keys)
            mark = writer.mark()
            writer.add(event)
            if not await self._add_attachments(event, writer):
                writer.go_back(mark)
                writer.add(replace(event, attachments=()))
            collected.mmr.append(entry.receipt.leaf_hash)
            collected.first_ts = collected.first_ts or entry.receipt.hub_ts
            collected.last_ts = entry.receipt.hub_ts
            if writer.item_bytes >= self._options.max_bytes:
                return

    async def _add_attachments(self, event: BundleEvent, writer: BundleWriter) -> bool:
        """Add the attachments of an event one by one; return False if one is missing or they are too large together."""
        size = 0
        for index, coid in enumerate(event.attachments):
            try:
                ciphertext = await self._client.attachments.fetch(coid)
            except Dropped:  # erased by retention: att_root names what stayed behind
                return False
            size += len(ciphertext)
            if size > MAX_ATTACHED_BYTES:
                return False
            writer.attach(index, ciphertext)
        return True

    def _event(self, entry: Entry, keys: Sequence[StreamKeys]) -> BundleEvent:
        raw, receipt = entry.msg.to_bytes(), entry.receipt.to_bytes()
        opened, opening = _open_entry(entry, keys)
        reason = self._options.withhold(entry, opened)
        carried = len(opened.body) if opened is not None and self._options.with_openings else len(raw)
        if reason is None and carried > MAX_CARRIED_BYTES:
            reason = f"size: {carried} bytes are more than an imported event can hold"
        if reason is not None:
            return BundleEvent(seq=entry.seq, receipt=receipt, withheld_reason=reason[:256])
        return BundleEvent(
            seq=entry.seq,
            receipt=receipt,
            msg=raw,
            opening=opening if self._options.with_openings else None,
            attachments=_coids(opened) if self._options.with_attachments else (),
        )

    async def _header(
        self, stream: str, label: bytes, epoch: int, head: _Head, collected: _Collection, count: int
    ) -> Header:
        answer = await self._client.identity()
        identity = answer.to_identity()
        stream_id = stream_id_of(stream)
        return Header(
            source_hub_id=self._client.hub_id,
            source_hub_pk=identity.current.hub_pk,
            identity=identity.to_bytes(),
            identity_sig=answer.sig,
            rotations=tuple(record.to_bytes() for record in await self._client.rotations()),
            source_profile_id=(await self._client.status()).profiles[0].profile_id(),
            export_stream_id=stream_id,
            stream_name=None if stream.lower() == stream_id.hex() else stream,
            label=label,
            epoch=epoch,
            export_seq_from=head.seq + 1,
            export_seq_to=head.seq + count,
            export_time_from=collected.first_ts or head.ts,
            export_time_to=collected.last_ts or head.ts,
            size_before=head.seq,
            peaks_before=head.peaks,
            bridge_id=self._bridge_id,
            bundle_seq=head.bundle_seq + 1,
            prev_bundle_id=head.bundle_id,
            created_at=int(self._options.clock()),
        )

    def _record(self, written: WrittenBundle, checkpoint: Checkpoint) -> OnlineRecord:
        header, trailer = written.header, written.trailer
        return OnlineRecord(
            bundle_id=trailer.bundle_id,
            bundle_hash=written.bundle_hash,
            bridge_id=header.bridge_id,
            bundle_seq=header.bundle_seq,
            export_stream_id=header.export_stream_id,
            label=header.label,
            epoch=header.epoch,
            seq_from=header.export_seq_from,
            seq_to=header.export_seq_to,
            count=trailer.count,
            withheld=trailer.withheld,
            checkpoint_id=H(checkpoint.to_bytes()),
            operator=self._options.operator,
            ts=header.created_at,
        )

    def _note(self, note: str) -> None:
        """Add a line to the manifest, for people who carry the bundles: file names and contents."""
        with Path(self._files.path(OUTGOING, _MANIFEST)).open("a", encoding="utf-8") as manifest:
            manifest.write(f"{note}\n")

    def _save(self, state: dict[str, Any]) -> None:
        self._files.save(state)
        self._state = state


def _coids(opened: Opened | None) -> tuple[bytes, ...]:
    """Return the attachments that an event declares; none if the list does not match att_root."""
    if opened is None or opened.hdr.att_root is None or opened.hdr.schema != ATTACHED_SCHEMA:
        return ()
    try:
        coids = tuple(attachment.coid for attachment in Attached.from_bytes(opened.body).attachments)
    except FormatError:
        return ()
    return coids if coids and att_root_of(coids) == opened.hdr.att_root else ()


def _open_entry(entry: Entry, keys: Sequence[StreamKeys]) -> tuple[Opened | None, bytes | None]:
    """Return the opened event and its opening; neither if no key fits, or if the plaintext breaks the rules.

    Anybody with the right to write can seal nonsense. Such an event crosses sealed: a bundle must not fail because of
    it.
    """
    if not keys:
        return None, None
    try:
        number, opened = open_with_one([(key.secret(), key.reader_pk) for key in keys], entry.msg)
        if opened.hdr.schema == sdr.EVENT.id:
            sdr.RecorderEvent.from_bytes(opened.body)
    except (OpenError, FormatError, VeenError):
        return None, None
    key = keys[number]
    return opened, opening_of(key.secret(), entry.msg, reader_pk=key.reader_pk)


_BATCH: Final = 64
_FILE: Final = "selected.json"
_FORM: Final = 2


@dataclass(frozen=True, slots=True)
class Selected:
    """The events that one run copied; an earlier version had left out `left_out` of them."""

    copied: int
    left_out: int = 0


class Selector:
    """Copies from one stream to another at one hub. Owned by one task.

    State on disk, per hub, client key, source and target: the last entry read of the source (`seq`), the number of
    copies (`copies`), and the batch in progress. It may lag behind the hub by that batch, never lead.
    """

    def __init__(self, client: Client, directory: Path, withhold: Withhold, capability: CapToken | None = None) -> None:
        self._client, self._withhold, self._capability = client, withhold, capability
        self._fs = PrivateFs(directory)
        self._path = directory / _FILE

    async def copy(self, source: str, target: str, reader: Client | None = None) -> int:
        """Copy everything new; return the number of copies. For streams of hubs without epochs."""
        return (await self.select(source, target, reader)).copied

    async def select(self, source: str, target: str, reader: Client | None = None) -> Selected:
        """Copy everything new. `reader` reads the target if the selector's own keys cannot."""
        file = self._load()
        await self._client.recover(target)
        await self._settle(file)
        cursor = await self._cursor(target)
        prefix = [self._client.hub_id.hex(), self._client.client_id.hex(), target]
        key = " ".join((*prefix, source))
        if file["states"].get(key, {}).get("is_open"):
            del file["states"][key]  # a run that read back was cut off: what is there is read back again
        earlier = file["states"].get(key)
        accounted = sum(
            state["copies"] for name, state in file["states"].items() if name.startswith(" ".join(prefix) + " ")
        )
        present: set[bytes] = set()
        state = earlier or {"seq": 0, "copies": 0}
        if earlier is None and cursor > accounted:
            present = await self._read_back(target, reader or self._client)
            state["is_open"] = True
        file["states"][key] = state
        run = _Run(self, file, key, target, cursor)
        last, left_out = 0, 0
        waiting: list[int] = []  # chosen events that are not in the target, before one that is
        async for entry in self._client.read(source, from_seq=state["seq"] + 1, epoch=0):
            last = entry.seq
            if not self._is_chosen(entry):
                continue
            if entry.msg_id in present:
                state["copies"] += 1
                left_out += len(waiting)
                waiting.clear()
                continue
            if present:
                waiting.append(entry.seq)
            await run.add(entry)
        await run.flush()
        state["seq"] = max(state["seq"], last)
        state.pop("is_open", None)
        self._save(file)
        return Selected(run.copied, left_out)

    def _is_chosen(self, entry: Entry) -> bool:
        if entry.event is None:
            return False
        return self._withhold(entry, Opened(entry.event.hdr, entry.event.body, ())) is None

    async def _settle(self, file: dict[str, Any]) -> None:
        """Find the number of events of the interrupted batch that the hub has."""
        pending = file["pending"]
        if pending is None:
            return
        if pending["client"] != self._client.client_id.hex() or pending["hub"] != self._client.hub_id.hex():
            raise BridgeError(
                f"{self._path}: another client key was copying to {pending['target']}. Run the export once more with it"
            )
        await self._client.recover(pending["target"])
        done = await self._cursor(pending["target"]) - pending["before"]
        if not 0 <= done <= len(pending["seqs"]):
            raise BridgeError(f"something else writes to {pending['target']} under the selector's key")
        state = file["states"][pending["key"]]
        if done:
            state["seq"] = pending["seqs"][done - 1]
        state["copies"] += done
        file["pending"] = None
        self._save(file)

    async def _cursor(self, target: str) -> int:
        cursor = await self._client.cursor(target, epoch=0)
        if cursor is None:
            raise BridgeError("the hub does not tell a client its own cursor (/tooling/client_cursor): update the hub")
        return cursor.last_client_seq

    async def _read_back(self, target: str, reader: Client) -> set[bytes]:
        """Return the originals of all copies that the selector's keys have made."""
        originals = set()
        unread = BridgeError(
            f"the earlier copies on {target} are unknown, and no key here can read them."
            " Export with an identity that can read the stream"
        )
        try:
            async for entry in reader.read(target, epoch=0):
                if entry.msg.client_id not in self._client.client_ids:
                    continue
                if entry.event is None:
                    raise unread
                if entry.event.hdr.parent_id is not None:
                    originals.add(entry.event.hdr.parent_id)
        except NoReaderKey as exc:
            raise unread from exc
        return originals

    def _load(self) -> dict[str, Any]:
        empty: dict[str, Any] = {"form": _FORM, "states": {}, "pending": None}
        try:
            file: Any = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return empty
        except ValueError as exc:
            raise BridgeError(f"{self._path} is damaged: {exc}. Remove it: the selector then reads all again") from exc
        # An earlier form counted copies by source and target alone: what it says is read back instead.
        return file if isinstance(file, dict) and file.get("form") == _FORM else empty

    def _save(self, file: dict[str, Any]) -> None:
        self._fs.replace(_FILE, json.dumps(file).encode())

    async def send(self, target: str, drafts: list[Draft]) -> None:
        """Send a complete batch, or raise the hub's error."""
        for outcome in await self._client.send_many(target, drafts, capability=self._capability, batch=_BATCH):
            if not isinstance(outcome, Sent):
                raise outcome

    def store_batch(self, file: dict[str, Any], key: str, target: str, cursor: int, seqs: list[int]) -> None:
        """Store the batch that is about to be sent."""
        file["pending"] = {
            "key": key,
            "hub": self._client.hub_id.hex(),
            "client": self._client.client_id.hex(),
            "target": target,
            "before": cursor,
            "seqs": seqs,
        }
        self._save(file)


class _Run:
    """The batches of one run."""

    def __init__(self, selector: Selector, file: dict[str, Any], key: str, target: str, cursor: int) -> None:
        self._selector, self._file, self._key, self._target, self._cursor = selector, file, key, target, cursor
        self._drafts: list[Draft] = []
        self._seqs: list[int] = []
        self.copied = 0

    async def add(self, entry: Entry) -> None:
        event = entry.event
        assert event is not None  # noqa: S101 - it was chosen by its body
        self._drafts.append(
            Draft(body=event.body, schema=event.hdr.schema, parent=entry.msg_id, expires_at=event.hdr.expires_at)
        )
        self._seqs.append(entry.seq)
        if len(self._drafts) == _BATCH:
            await self.flush()

    async def flush(self) -> None:
        if not self._drafts:
            return
        self._selector.store_batch(self._file, self._key, self._target, self._cursor, list(self._seqs))
        await self._selector.send(self._target, self._drafts)
        state = self._file["states"][self._key]
        state["seq"], state["copies"] = self._seqs[-1], state["copies"] + len(self._drafts)
        self._file["pending"] = None
        self._cursor += len(self._drafts)
        self.copied += len(self._drafts)
        self._drafts.clear()
        self._seqs.clear()
