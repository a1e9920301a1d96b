"""One damaged run of (MSG, RECEIPT) pairs, shown to every verifier of such runs, and the verdict of each.

A run is a directory of a hub that signs whatever it is told to (`Liar`), and a change to the entries of its first label
on their way to the verifier. Reading, resync and replica get them from a real hub through a wire that changes them;
an evidence file and a bundle are made of them; verify-data and audit read the directory with its chunks framed again.
"""

import asyncio
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from tests.client.hubs import Clock, hub_at
from tests.damage import flipped
from tests.lake.audit_builders import Liar, dump, run
from tests.products.bridge.signer import EXPORTER, packed
from tests.products.federation.replicas import caught_up, replica_at
from tests.storage.builders import LABELS, LIMITS, copy_of
from tests.storage.driver import CLIENTS, HUB, START, STREAMS
from tests.verify.damages import DAMAGES, FORGED_ENTRIES, NEXT, at_rest, control_items, lie, rotated, tell

from veen.client.read.reading import LabelReader, replay
from veen.client.session import HubSession
from veen.client.transport.calls import NO_RETRY, Answer, Calls
from veen.client.transport.inprocess import InProcess
from veen.client.verify.pin import HubPin
from veen.client.verify.view import LabelView
from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import VeenError
from veen.core.evidence_check import check_evidence
from veen.core.evidence_file import EntryEvidence, EvidenceFile, LogEvidence, RunEvidence
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import ControlRecord, KeyRotate, LimitsSet
from veen.core.objects.envelopes import StreamItem, StreamRequest, StreamResponse
from veen.core.objects.identity import HubIdentity
from veen.core.objects.msg import Msg
from veen.core.objects.profile import PRESETS, Profile
from veen.core.objects.receipt import Receipt
from veen.core.objects.trusted_root import TrustedKeys
from veen.core.tree.mmr import MmrTree
from veen.core.tree.proof import prove_range
from veen.products.bridge.bundle import BundleEvent, ExportCheckpoint, Header, bridge_id_of
from veen.products.bridge.trust import TrustList
from veen.products.bridge.verify import ChainHead, verify
from veen.storage import frame, layout
from veen.storage.keys import identity as identities
from veen.testing.memfs import MemFs
from veen.verify.directory import verify_data

LABEL: Final = LABELS[0]
NOW: Final = START + 1_000
BRIDGE: Final = "plant-a"
MIDDLE: Final = 3  # where callers begin that do not begin with the first entry
AT: Final = 3  # the place, from 0, of the entry that is changed: the first of the second chunk
PROFILES: Final = (*PRESETS.values(), Profile(epoch_sec=0, pad_block=77))


@dataclass(frozen=True)
class Item:
    """An entry as it is shown: under a number, with MSG and RECEIPT."""

    seq: int
    msg: Msg
    receipt: Receipt


Change = Callable[[list[Item]], list[Item]]


@dataclass(frozen=True)
class RunDamage:
    """A log, and how its entries are changed on their way."""

    build: Callable[[], MemFs]
    change: Change = list


# --- the damages ----------------------------------------------------------------------------------------------


@cache
def honest_run() -> MemFs:
    """Seven entries by three authors: two sealed chunks and one that grows."""
    world = Liar()
    world.control(LimitsSet(limits=LIMITS.to_json()))
    for client in (0, 0, 1, 0, 2, 1, 0):
        world.now += 1
        world.tell(client=client)
    return at_rest(world)


def _told(*steps: Callable[[Liar], object]) -> Callable[[], MemFs]:
    return cache(lie(*steps))


def _at(change: Callable[[Msg, Receipt], tuple[Msg, Receipt]]) -> Change:
    def changed(items: list[Item]) -> list[Item]:
        item = items[AT]
        msg, receipt = change(item.msg, item.receipt)
        return [*items[:AT], Item(item.seq, msg, receipt), *items[AT + 1 :]]

    return changed


def _flip_msg(name: str) -> Change:
    return _at(lambda msg, receipt: (replace(msg, **{name: _flip(getattr(msg, name))}), receipt))


def _flip_receipt(name: str) -> Change:
    return _at(lambda msg, receipt: (msg, replace(receipt, **{name: _flip(getattr(receipt, name))})))


def _flip(value: Any) -> Any:
    return flipped(value) if isinstance(value, bytes) else value ^ 1


def _swap_pairs(items: list[Item]) -> list[Item]:
    """Two entries change places, and their numbers stay."""
    first, second = items[AT], items[AT + 1]
    return [*items[:AT], replace(second, seq=first.seq), replace(first, seq=second.seq), *items[AT + 2 :]]


def _retire(world: Liar) -> None:
    rotated(world)
    world.now += 25


_MSG_FIELDS: Final = ("profile_id", "label", "client_id", "client_seq", "prev_ack", "auth_ref", "ct_hash", "ciphertext",
                      "sig")  # fmt: skip
_RECEIPT_FIELDS: Final = ("label", "stream_seq", "leaf_hash", "mmr_root", "hub_ts", "hub_sig")
# Lies of tests/verify/damages.py that are about a label in a directory and not about a run of its entries.
DIRECTORY_LIES: Final = ("limits: ", "control: ", "epoch: ")
RUN_LIES: Final = ("client_seq: ", "prev_ack: ", "profile", "size: ", "token: ", "time: ", "hub key: ")


def _run_damages() -> Mapping[str, RunDamage]:
    damages = {f"forged entry: {name}": RunDamage(honest_run, _at(change)) for name, change in FORGED_ENTRIES.items()}
    damages |= {f"flipped: MSG {name}": RunDamage(honest_run, _flip_msg(name)) for name in _MSG_FIELDS}
    damages |= {f"flipped: RECEIPT {name}": RunDamage(honest_run, _flip_receipt(name)) for name in _RECEIPT_FIELDS}
    damages |= {name: RunDamage(cache(damage.build)) for name, damage in DAMAGES.items() if name.startswith(RUN_LIES)}
    return damages | {
        "none": RunDamage(honest_run),
        "none: keys rotated": RunDamage(_told(_retire, tell())),
        "entries: one missing": RunDamage(honest_run, lambda items: [*items[:AT], *items[AT + 1 :]]),
        "entries: last missing": RunDamage(honest_run, lambda items: items[:-1]),
        "entries: one twice": RunDamage(honest_run, lambda items: [*items[: AT + 1], *items[AT:]]),
        "entries: swapped": RunDamage(
            honest_run, lambda items: [*items[:AT], items[AT + 1], items[AT], *items[AT + 2 :]]
        ),
        "entries: swapped under their numbers": RunDamage(honest_run, _swap_pairs),
        "client_seq: a new author begins with 2": RunDamage(_told(tell(client=1, client_seq=2))),
        "client_seq: a new author begins with 9": RunDamage(_told(tell(client=1, client_seq=9))),
        "client_seq: an author again, a new one begins with 2": RunDamage(
            _told(tell(), tell(client=1), tell(), tell(client=2, client_seq=2))
        ),
        "client_seq: one left out": RunDamage(_told(tell(client=1), tell(client_seq=4))),
        "prev_ack: of the entry itself": RunDamage(_told(tell(prev_ack=3))),
        "prev_ack: of the future": RunDamage(_told(tell(prev_ack=9))),
    }


RUN_DAMAGES: Final = _run_damages()


# --- the run ----------------------------------------------------------------------------------------------------


class Run:
    """The entries of a damage, before and after the change, and what a verifier needs to know about their hub."""

    def __init__(self, damage: RunDamage, directory: Path) -> None:
        self.fs, self.directory = damage.build(), directory
        chunks = {
            path: [entry for _, entry in frame.frames(data)]
            for path, data in self.fs.files().items()
            if path.startswith((f"log/chunk-{LABEL.hex()}", f"log/active-{LABEL.hex()}")) and path.endswith(".log")
        }
        self.chunks = dict(sorted(chunks.items(), key=lambda chunk: [entry.stream_seq for entry in chunk[1]][:1]))
        self.original = [
            Item(entry.stream_seq, Msg.from_bytes(entry.msg), Receipt.from_bytes(entry.receipt))
            for entries in self.chunks.values()
            for entry in entries
        ]
        self.items = damage.change(list(self.original))
        self.tree = MmrTree(item.receipt.leaf_hash for item in self.original)
        self.identity: HubIdentity = identities.load(self.fs).identity
        self.keys = {HUB.public: HUB, SigningKey(NEXT).public: SigningKey(NEXT)}
        self.pin = HubPin.of_key(HUB.public)

    @property
    def newest(self) -> SigningKey:
        return self.keys[self.identity.current.hub_pk]

    def rotations(self) -> tuple[bytes, ...]:
        records = _control_records(self.fs.files()[layout.CONTROL])
        return tuple(record.to_bytes() for record in records if isinstance(record.body, KeyRotate))

    def checkpoint(self) -> Checkpoint:
        last = self.original[-1].receipt
        return Checkpoint.issue(
            self.keys[self.identity.signing_key_at(last.hub_ts).hub_pk],
            label_prev=LABEL,
            label_curr=LABEL,
            upto_seq=self.tree.size,
            mmr_root=self.tree.root(),
            epoch=0,
            witnesses=[self.keys[key.hub_pk] for key in self.identity.witnesses_at(last.hub_ts)],
        )

    def damaged_directory(self) -> MemFs:
        """The directory with its chunks framed again; a chunk that has the same entries stays as it is."""
        if self.items == self.original:
            return copy_of(self.fs)
        rest = [
            frame.encode(LABEL, item.seq, item.msg.to_bytes(), item.receipt.to_bytes()).to_bytes()
            for item in self.items
        ]
        changed: dict[str, bytes | None] = {}
        for number, (path, entries) in enumerate(self.chunks.items(), start=1):
            count = len(rest) if number == len(self.chunks) else len(entries)
            changed[path], rest = b"".join(rest[:count]), rest[count:]
        return copy_of(self.fs, **changed)

    def on_disk(self) -> Path:
        """The directory before the change, for a hub that serves it."""
        path = self.directory / "hub"
        for name, data in self.fs.files().items():
            (path / name).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            (path / name).write_bytes(data)
            (path / name).chmod(0o600)
        (path / layout.INDEX).write_bytes(self.fs.database_bytes())
        return path


def _control_records(data: bytes) -> Sequence[Any]:
    return [ControlRecord.from_bytes(item) for item in control_items(data)]


class ChangedPages:
    """A wire to a hub on which the entries of a run are changed."""

    def __init__(self, inner: InProcess, run: Run) -> None:
        self._inner, self._run = inner, run

    async def call(
        self,
        operation: str,
        body: bytes = b"",
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the interface
        headers: Mapping[str, str] | None = None,
        again: bool = True,
    ) -> Answer:
        answer = await self._inner.call(operation, body, timeout=timeout, headers=headers or {}, again=again)
        if operation != "v1/stream" or not answer.ok or StreamRequest.from_bytes(body).label != LABEL:
            return answer
        page = StreamResponse.from_bytes(answer.body)
        first, last = page.items[0].stream_seq, page.items[-1].stream_seq
        assert last == len(self._run.original)  # a page to the end
        items = tuple(
            StreamItem(stream_seq=item.seq, msg=item.msg, receipt=item.receipt)
            for item in self._run.items
            if item.seq >= first
        )
        return Answer(answer.status, replace(page, items=items).to_bytes(), answer.headers)

    async def aclose(self) -> None:
        pass


# --- the verifiers ------------------------------------------------------------------------------------------------


def _caught(error: VeenError) -> str:
    """The code and the words of an error, with short names for labels and keys."""
    words = str(error).replace(LABEL.hex(), "LABEL").replace(LABEL.hex()[:16] + "…", "LABEL")
    words = re.sub(r"\b[0-9a-f]{64}\b", "HASH", words)
    return words if words.startswith(error.code) else f"{error.code}: {words}"


async def _of_hub(run: Run) -> dict[str, str]:
    """Reading, resync and replica, at one hub."""
    verdicts = {}
    async with hub_at(run.on_disk(), clock=Clock(NOW), limits__max_checkpoint_interval=3) as hub:
        wire = ChangedPages(InProcess(hub.api), run)

        async def session() -> HubSession:
            opened = HubSession(Calls(wire, NO_RETRY), run.pin, clock=Clock(NOW))
            await opened.open()
            return opened

        async def read(first: int) -> str:
            try:
                reader = LabelReader(await session(), LabelView(LABEL), 0)
                return _read([entry async for entry in reader.entries(first, None)])
            except VeenError as exc:
                return _caught(exc)

        verdicts["reading"] = await read(1)
        verdicts["reading, from the middle"] = await read(MIDDLE)
        try:
            done = await replay(await session(), LabelView(LABEL), CLIENTS[1].public, 0)
            verdicts["resync"] = _resynced(done)
        except VeenError as exc:
            verdicts["resync"] = _caught(exc)
        async with replica_at(run.directory / "replica", wire, run.pin.to_text()) as (replica, follower):
            try:
                await caught_up(follower)
                verdicts["replica"] = _replicated(run, replica, follower)
            except VeenError as exc:
                verdicts["replica"] = _caught(exc)
    return verdicts


def _read(entries: Sequence[Any]) -> str:
    warnings = [f"entry {entry.seq}: {entry.warning}" for entry in entries if entry.warning is not None]
    return _good(warnings) if entries else "nothing"


def _good(warnings: Sequence[str]) -> str:
    return "; ".join(["good", *(f"warning: {warning}" for warning in warnings)])


def _resynced(done: Any) -> str:
    return _good(done.warnings) if done.read else "nothing"


def _replicated(run: Run, replica: Any, follower: Any) -> str:
    warnings = [warning.replace(f" of label {LABEL.hex()}", "") for warning in follower.warnings]
    roots = {files.label: files.root() for files in replica.sequencer.store.labels() if files.size}
    return _good(warnings) if roots.get(LABEL) == run.tree.root() else "another log"


def _evidence(run: Run, *gaps: int) -> str:
    """An evidence file of the run, without the entries at `gaps`."""
    bounds = [0, *gaps, run.tree.size + 1]
    runs = tuple(
        RunEvidence(
            proof=prove_range(run.tree.node_at, before + 1, after - 1, run.tree.size).to_bytes(),
            entries=tuple(
                EntryEvidence(msg=item.msg.to_bytes(), receipt=item.receipt.to_bytes())
                for item in run.items
                if before < item.seq < after
            ),
        )
        for before, after in pairwise(bounds)
        if before + 1 < after
    )
    used = {item.msg.profile_id for item in run.original}
    profiles = sorted((profile for profile in PROFILES if profile.profile_id() in used), key=lambda p: p.profile_id())
    log = LogEvidence(
        label=LABEL, epoch=0, checkpoints=(run.checkpoint().to_bytes(),), consistency=(), runs=runs
    )  # fmt: skip
    file = EvidenceFile(
        identity=run.identity.to_bytes(),
        identity_sig=run.identity.sign(run.newest),
        rotations=run.rotations(),
        stream_id=STREAMS[0],
        stream_name="a",
        profiles=tuple(profile.to_bytes() for profile in profiles),
        logs=(log,),
    )
    try:
        report = check_evidence(file, TrustedKeys(hub_pks=(HUB.public,)))
    except VeenError as exc:
        return _caught(exc)
    return _reported(report)


def _reported(report: Any) -> str:
    return _good(report.warnings) if report.entries else "nothing"


def _bundle(run: Run, first: int = 1, *, withheld: Sequence[int] = ()) -> str:
    """A bundle of the run from `first` on; the messages of `withheld` stay behind."""
    last = run.original[-1].receipt
    events = [
        BundleEvent(seq=item.seq, receipt=item.receipt.to_bytes(), withheld_reason="personal")
        if item.seq in withheld
        else BundleEvent(seq=item.seq, receipt=item.receipt.to_bytes(), msg=item.msg.to_bytes())
        for item in run.items
        if item.seq >= first
    ]
    before = None
    if first > 1:
        before = ChainHead(bundle_seq=1, bundle_id=b"b" * 32, seq=first - 1, root=run.tree.root(first - 1))
    header = Header(
        source_hub_id=run.identity.hub_id,
        source_hub_pk=run.newest.public,
        identity=run.identity.to_bytes(),
        identity_sig=run.identity.sign(run.newest),
        rotations=run.rotations(),
        source_profile_id=PRESETS["bulk"].profile_id(),
        export_stream_id=STREAMS[0],
        stream_name="a",
        label=LABEL,
        epoch=0,
        export_seq_from=first,
        export_seq_to=len(run.original),
        export_time_from=run.original[first - 1].receipt.hub_ts,
        export_time_to=last.hub_ts,
        size_before=first - 1,
        peaks_before=run.tree.peaks(first - 1),
        bridge_id=bridge_id_of(BRIDGE),
        bundle_seq=1 if before is None else 2,
        prev_bundle_id=None if before is None else before.bundle_id,
        created_at=NOW,
    )
    checkpoint = run.checkpoint()
    signer = run.identity.signing_key_at(last.hub_ts).hub_pk
    export = ExportCheckpoint(checkpoint=checkpoint.to_bytes(), timestamp=last.hub_ts, hub_public=signer)
    source = {
        "zone": "z1",
        "bridge": BRIDGE,
        "hub": f"ed25519:{HUB.public.hex()}",
        "exporters": [EXPORTER.public.hex()],
        "map": {"*": "import/z1/*"},
    }
    chains = {} if before is None else {(header.bridge_id, LABEL): before}
    try:
        verdict = verify(io.BytesIO(packed(header, events, export)), TrustList.from_json([source]), chains)
    except VeenError as exc:
        return _caught(exc)
    return _bundled(verdict)


def _bundled(verdict: Any) -> str:
    return _good(verdict.warnings) if verdict.trailer.count else "nothing"


def _directory(run: Run) -> str:
    return _found(verify_data(run.damaged_directory()).findings)


def _audit(damaged: Run) -> str:
    path = damaged.directory / "audited"
    path.mkdir()
    return _found(run(dump(damaged.damaged_directory(), path)).findings)


def _found(findings: Sequence[Any]) -> str:
    """Findings of entries, once each; derived files that are wrong as well are left out."""
    lines = [
        f"{finding.severity} {finding.code}: {re.sub(r'[0-9a-f]{64}', 'HASH', finding.message)}"
        for finding in findings
        if finding.path.startswith(("log/chunk-", "log/active-")) or finding.code == "cut"
    ]
    return "; ".join(dict.fromkeys(lines)) or "good"


CALLERS: Final = (
    "reading", "reading, from the middle", "resync", "evidence file", "evidence file, one entry left out", "bundle",
    "bundle, from the middle", "bundle, one entry withheld", "replica", "verify-data", "audit",
)  # fmt: skip


def verdicts_of(damage: RunDamage, directory: Path) -> dict[str, str]:
    """The verdicts of all callers on one damage."""
    shown = Run(damage, directory)
    verdicts = asyncio.run(_of_hub(shown))
    verdicts |= {
        "evidence file": _evidence(shown),
        "evidence file, one entry left out": _evidence(shown, MIDDLE - 1),
        "bundle": _bundle(shown),
        "bundle, from the middle": _bundle(shown, MIDDLE),
        "bundle, one entry withheld": _bundle(shown, withheld=(MIDDLE - 1,)),
        "verify-data": _directory(shown),
        "audit": _audit(shown),
    }
    return {caller: verdicts[caller] for caller in CALLERS}
