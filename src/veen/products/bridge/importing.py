"""Import: verifies a bundle in a separate process, then writes all of it or nothing (001 products §4.5).

    incoming → (verified) → importing → imported
       ↘ waiting (an earlier bundle is missing)    ↘ rejected

Exactly once without a right to read: the importer writes each import stream with a client key that nothing else uses.
Before the first event of a bundle it stores the hub's cursor of that key (D-162); after a crash it asks again, and the
difference is the number of committed events. `state.json` and the hub's answer about this one key decide; nothing is
read back.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from veen.client.client import Client
from veen.client.send.sealing import Draft
from veen.client.send.writing import Sent
from veen.core.labels import stream_id_of
from veen.core.objects.captoken import CapToken
from veen.overlays.airgap.bodies import IMPORT, OFFLINE, WITHHELD, ImportedEvent, ImportTarget, OfflineRecord
from veen.products.bridge.audit import AuditEntry, Auditor
from veen.products.bridge.bundle import BridgeError, BundleReader, Header, Rejected
from veen.products.bridge.files import REJECTED_BOUNDS, BridgeFiles
from veen.products.bridge.link import link_note, read_link_note
from veen.products.bridge.trust import TrustList
from veen.products.bridge.verifier import BundleRefusal, read_items, verify_apart
from veen.products.bridge.verify import BundleVerdict, ChainHead, Chains, Crossing

INCOMING: Final = "incoming"
WAITING: Final = "waiting"
IMPORTING: Final = "importing"
IMPORTED: Final = "imported"
REJECTED: Final = "rejected"
FOLDERS: Final = (INCOMING, WAITING, IMPORTING, IMPORTED, REJECTED)
_BATCH: Final = 64
_SPOOL: Final = ".verified"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions:
    operator: str
    clock: Callable[[], float] = time.time
    capability: Callable[[str], CapToken | None] = lambda stream: None  # the token for an import stream
    verify: Callable[[Path, Path, TrustList, Chains], BundleVerdict | BundleRefusal] = verify_apart


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOutcome:
    """The outcome for one file: imported, already imported, resumed, waiting or rejected."""

    name: str
    result: str
    bundle_id: bytes | None
    count: int = 0
    target: str | None = None
    code: str | None = None
    position: int | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainProgress:
    """Progress of one label of one bridge: the last position imported, and the last one in a signed bundle here."""

    bridge_id: bytes
    label: bytes
    imported: int
    stated: int
    waiting: int  # bundles that cannot be imported yet


class Importer:
    """Takes bundles from `incoming` to the import streams of one hub. Owned by one task, its directory by one process.

    State on disk: `chains` (the last imported bundle per bridge and label), `current` (the bundle that is being
    imported, with the cursors before its first event, or null), `audit` (a record that may not be written yet, or
    null).
    """

    def __init__(
        self, client: Client, auditor: Auditor, files: BridgeFiles, trust: TrustList, options: ImportOptions
    ) -> None:
        self._client, self._auditor, self._files = client, auditor, files
        self._trust, self._options = trust, options
        self._state: dict[str, Any] = files.load() or {"chains": {}, "current": None, "audit": None}
        self._headers: dict[str, Header | None] = {}  # of bundles that wait, by name

    async def run(self) -> list[ImportOutcome]:
        """Import everything possible: a bundle in progress first, then `incoming`, then `waiting` until nothing
        changes.
        """
        outcomes = await self._resume()
        outcomes += [await self._take(INCOMING, name) for name in self._files.bundles(INCOMING)]
        while ready := [name for name in self._files.bundles(WAITING) if self._is_next(name)]:
            results = [await self._take(WAITING, name) for name in ready]
            outcomes += [outcome for outcome in results if outcome.result != "waiting"]
            if all(outcome.result == "waiting" for outcome in results):
                break
        return outcomes

    def progress(self) -> "list[ChainProgress]":
        """Return the last imported bundle of each chain, and the last one that waits."""
        reached = {key: head.seq for key, head in self._chains().items()}
        stated, waiting = dict(reached), Counter[tuple[bytes, bytes]]()
        for name in self._files.bundles(WAITING):
            header = self._header(name)
            if header is not None:
                key = (header.bridge_id, header.label)
                stated[key] = max(stated.get(key, 0), header.export_seq_to)
                waiting[key] += 1
        return [
            ChainProgress(
                bridge_id=key[0],
                label=key[1],
                imported=reached.get(key, 0),
                stated=stated[key],
                waiting=waiting[key],
            )
            for key in sorted(stated)
        ]

    def _is_next(self, name: str) -> bool:
        """Return True if a waiting bundle may be the next one of its chain; reads its header, once."""
        header = self._header(name)
        if header is None:
            return True  # its verification reports the fault
        head = self._chains().get((header.bridge_id, header.label))
        return header.bundle_seq <= (1 if head is None else head.bundle_seq + 1)

    def _header(self, name: str) -> Header | None:
        if name not in self._headers:
            try:
                with self._files.path(WAITING, name).open("rb") as file:
                    self._headers[name] = BundleReader(file).header
            except (Rejected, OSError):
                self._headers[name] = None
        return self._headers[name]

    async def audit(self, record: OfflineRecord) -> None:
        """Write a record to the audit stream, once."""
        entry = await self._auditor.prepare(OFFLINE, record)
        self._save(audit=entry.to_json())
        await self._settle_audit()

    # --- one bundle ----------------------------------------------------------------------------------------------

    async def _resume(self) -> list[ImportOutcome]:
        """Finish the work that a crash interrupted: first the bundle, whose audit record may be the stored one."""
        current = self._state["current"]
        if current is None:
            await self._settle_audit()
            return []
        name = current["name"]
        self._files.move(name, INCOMING, IMPORTING)
        self._files.move(name, WAITING, IMPORTING)
        if current["audited"]:
            await self._settle_audit()
            return [self._finish(current, "resumed")]
        verdict = await self._verify(self._files.path(IMPORTING, name))
        if isinstance(verdict, BundleRefusal):  # it was valid when its import began
            raise BridgeError(
                f"{name}: the import had begun, and the bundle no longer verifies ({verdict.code}: {verdict.detail})."
                f" Put an intact copy into {self._files.path(IMPORTING)}"
            )
        return [await self._import(name, verdict, resumed=True)]

    async def _take(self, folder: str, name: str) -> ImportOutcome:
        path = self._files.path(folder, name)
        verdict = await self._verify(path)
        if isinstance(verdict, BundleVerdict):
            current = {
                "name": name,
                "bundle_id": verdict.trailer.bundle_id.hex(),
                "bundle_hash": (await asyncio.to_thread(_file_hash, path)).hex(),
                "chain": _chain_key(verdict),
                "head": _head_to_json(verdict.head),
                "target": verdict.target,
                "count": verdict.trailer.count,
                "detail": read_link_note(path),
                "cursors": {},
                "audited": False,
            }
            self._save(current=current)  # before the move: after a crash `_resume` finds the file in either folder
            self._files.move(name, folder, IMPORTING)
            return await self._import(name, verdict, resumed=False)
        if verdict.is_early:
            self._files.move(name, folder, WAITING)
            return ImportOutcome(name=name, result="waiting", bundle_id=verdict.bundle_id, detail=verdict.detail)
        if verdict.code == "AGB.CHAIN" and await asyncio.to_thread(self._is_imported, path):
            self._files.remove(name, folder)
            return ImportOutcome(name=name, result="already imported", bundle_id=verdict.bundle_id)
        record = OfflineRecord(
            bundle_id=verdict.bundle_id,
            bundle_hash=await asyncio.to_thread(_file_hash, path),
            result="rejected",
            code=verdict.code,
            position=verdict.position,
            detail=verdict.detail[:256],
            count=0,
            operator=self._options.operator,
            ts=self._now(),
        )
        await self.audit(record)
        self._files.move(name, folder, REJECTED)
        self._files.trim(REJECTED, REJECTED_BOUNDS)
        return ImportOutcome(
            name=name,
            result="rejected",
            bundle_id=verdict.bundle_id,
            code=verdict.code,
            position=verdict.position,
            detail=verdict.detail,
        )

    def _is_imported(self, path: Path) -> bool:
        """Return True if a file with the same bytes was imported before."""
        size, digest = path.stat().st_size, b""
        for name in self._files.bundles(IMPORTED):
            other = self._files.path(IMPORTED, name)
            if other.stat().st_size == size:
                digest = digest or _file_hash(path)
                if _file_hash(other) == digest:
                    return True
        return False

    async def _verify(self, path: Path) -> BundleVerdict | BundleRefusal:
        spool = self._files.root / _SPOOL
        return await asyncio.to_thread(self._options.verify, path, spool, self._trust, self._chains())

    async def _import(self, name: str, verdict: BundleVerdict, *, resumed: bool) -> ImportOutcome:
        """Send the events that the hub does not have yet, then audit, then advance the chain."""
        await self._send(verdict)
        self._check_complete(verdict, await self._count_committed(verdict.target))
        result = "resumed" if resumed else "imported"
        current = self._state["current"]
        record = OfflineRecord(
            bundle_id=verdict.trailer.bundle_id,
            bundle_hash=bytes.fromhex(current["bundle_hash"]),
            result=result,
            detail=current["detail"],
            targets=await self._targets(verdict.target),
            count=verdict.trailer.count,
            operator=self._options.operator,
            ts=self._now(),
        )
        entry = await self._auditor.prepare(OFFLINE, record)
        # One write for both: a crash must not leave a bundle without its audit record, nor write the record twice.
        self._save(current={**current, "audited": True}, audit=entry.to_json())
        await self._settle_audit()
        return self._finish(self._state["current"], result)

    def _finish(self, current: Mapping[str, Any], result: str) -> ImportOutcome:
        self._files.move(current["name"], IMPORTING, IMPORTED)
        (self._files.root / _SPOOL).unlink(missing_ok=True)
        link_note(self._files.path(INCOMING, current["name"])).unlink(missing_ok=True)
        self._save(chains={**self._state["chains"], current["chain"]: current["head"]}, current=None)
        return ImportOutcome(
            name=current["name"],
            result=result,
            bundle_id=bytes.fromhex(current["bundle_id"]),
            count=current["count"],
            target=current["target"],
        )

    async def _send(self, verdict: BundleVerdict) -> None:
        target, token = verdict.target, self._options.capability(verdict.target)
        if self._state["current"]["cursors"]:
            await self._client.recover(target)
        done = await self._count_committed(target)
        batch: list[Crossing] = []
        number, is_authorized = 0, token is None
        for item in read_items(self._files.root / _SPOOL):
            if isinstance(item, bytes):  # stored before its event is sent, which the next event or the end does
                if number > done:
                    if token is not None and not is_authorized:
                        await self._client.authorize(token)
                        is_authorized = True
                    await self._client.attachments.put(item, None if token is None else token.auth_ref())
                continue
            if len(batch) == _BATCH:
                await self._send_batch(target, batch, token)
                batch = []
            number += 1
            if number > done:
                batch.append(item)
        if batch:
            await self._send_batch(target, batch, token)

    async def _send_batch(self, target: str, batch: Sequence[Crossing], token: CapToken | None) -> None:
        await self._keep_cursors(target)
        drafts = [self._draft(crossing) for crossing in batch]
        for outcome in await self._client.send_many(target, drafts, capability=token, batch=_BATCH):
            if not isinstance(outcome, Sent):
                raise outcome

    def _draft(self, crossing: Crossing) -> Draft:
        body = replace(crossing, import_time=self._now())
        schema = IMPORT.id if isinstance(body, ImportedEvent) else WITHHELD.id
        return Draft(body=body.to_bytes(), schema=schema, parent=body.receipt.leaf_hash)

    # --- progress -----------------------------------------------------------------------------------------------

    async def _keep_cursors(self, target: str) -> None:
        """Store the cursors before anything is sent: of the current epoch and, if the hub has epochs, of its
        neighbours.
        """
        status = await self._client.status()
        now = status.epoch  # by the hub's clock: the local one may be an epoch away
        epochs = [now - 1, now, now + 1] if status.profiles[0].epoch_sec else [0]
        cursors = dict(self._state["current"]["cursors"])
        for epoch in epochs:
            if epoch >= 0 and str(epoch) not in cursors:
                cursors[str(epoch)] = await self._cursor(target, epoch)
        if cursors != self._state["current"]["cursors"]:
            self._save(current={**self._state["current"], "cursors": cursors})

    async def _cursor(self, target: str, epoch: int) -> int:
        answer = await self._client.cursor(target, epoch=epoch)
        if answer is None:
            raise BridgeError("the hub does not tell a client its own cursor (/tooling/client_cursor): update the hub")
        return answer.last_client_seq

    async def _count_committed(self, target: str) -> int:
        """Return the number of events of the current bundle that the hub has."""
        cursors = self._state["current"]["cursors"]
        return sum([await self._cursor(target, int(epoch)) - before for epoch, before in cursors.items()])

    async def _targets(self, target: str) -> tuple[ImportTarget, ...]:
        """Return the places of the events, by the receipts of the first and the last of each epoch."""
        targets = []
        for epoch, before in self._state["current"]["cursors"].items():
            number = int(epoch)
            last = await self._cursor(target, number)
            if last == before:
                continue
            first_place = await self._client.cursor(target, before + 1, epoch=number)
            last_place = await self._client.cursor(target, last, epoch=number)
            targets.append(
                ImportTarget(
                    stream_id=stream_id_of(target),
                    epoch=number,
                    seq_from=(first_place.stream_seq or 0) if first_place else 0,
                    seq_to=(last_place.stream_seq or 0) if last_place else 0,
                )
            )
        return tuple(targets)

    @staticmethod
    def _check_complete(verdict: BundleVerdict, committed: int) -> None:
        if committed != verdict.trailer.count:
            raise BridgeError(
                f"the hub has {committed} of {verdict.trailer.count} events of bundle"
                f" {verdict.trailer.bundle_id.hex()}: something else writes under the importer's key"
            )

    # --- state ---------------------------------------------------------------------------------------------------

    async def _settle_audit(self) -> None:
        if self._state["audit"] is not None:
            await self._auditor.submit(AuditEntry.from_json(self._state["audit"]))
            self._save(audit=None)

    def _chains(self) -> dict[tuple[bytes, bytes], ChainHead]:
        return {_key_of(key): _head_from_json(head) for key, head in self._state["chains"].items()}

    def _save(self, **changes: Any) -> None:
        state = {**self._state, **changes}
        self._files.save(state)
        self._state = state

    def _now(self) -> int:
        return int(self._options.clock())


def _chain_key(verdict: BundleVerdict) -> str:
    return f"{verdict.header.bridge_id.hex()}:{verdict.header.label.hex()}"


def _key_of(text: str) -> tuple[bytes, bytes]:
    bridge_id, _, label = text.partition(":")
    return bytes.fromhex(bridge_id), bytes.fromhex(label)


def _head_to_json(head: ChainHead) -> dict[str, Any]:
    return {
        "bundle_seq": head.bundle_seq,
        "bundle_id": head.bundle_id.hex(),
        "seq": head.seq,
        "root": head.root.hex(),
    }


def _head_from_json(value: Mapping[str, Any]) -> ChainHead:
    return ChainHead(
        bundle_seq=value["bundle_seq"],
        bundle_id=bytes.fromhex(value["bundle_id"]),
        seq=value["seq"],
        root=bytes.fromhex(value["root"]),
    )


def _file_hash(path: Path) -> bytes:
    digest = sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.digest()
