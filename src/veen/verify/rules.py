"""Rules and findings of verify-data for all labels of a directory."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from veen.core.objects.identity import HubIdentity
from veen.core.run_check import signature_jobs
from veen.io.local import Fs
from veen.native import ScannedChunk
from veen.storage import layout
from veen.storage.control_state import ControlFold, Spending
from veen.storage.findings import Code, Findings, Level
from veen.storage.index import Index
from veen.storage.keys.identity import CheckpointBinding
from veen.storage.label_files import HASH_BYTES
from veen.storage.rules import EntryFault
from veen.storage.scan import LabelFold, ScannedEntry
from veen.verify.entry import signature_count, signature_faults, token_faults, use_faults
from veen.verify.signatures import SignaturePool


@dataclass(slots=True)
class Journaled:
    """The entries first … last of one label in the journal, by their hashes."""

    first: int
    hashes: bytearray = field(default_factory=bytearray)

    @property
    def last(self) -> int:
        return self.first + len(self.hashes) // HASH_BYTES - 1

    def agree(self, first_seq: int, hashes: bytes) -> bool:
        """Return True if the journal has the same hashes for those of these entries that it contains."""
        first, last = max(first_seq, self.first), min(first_seq + len(hashes) // HASH_BYTES - 1, self.last)
        if first > last:
            return True
        start, own = (first - first_seq) * HASH_BYTES, (first - self.first) * HASH_BYTES
        size = (last - first + 1) * HASH_BYTES
        return self.hashes[own : own + size] == hashes[start : start + size]

    def agrees(self, item: ScannedEntry) -> bool:
        """Return True if the journal has no other entry at this position."""
        if not self.first <= item.stream_seq <= self.last:
            return True
        start = (item.stream_seq - self.first) * HASH_BYTES
        return self.hashes[start : start + HASH_BYTES] == item.entry_hash


@dataclass(slots=True)
class LogScope:
    """Inputs of the verification of any part of a log: place, level and identity."""

    fs: Fs
    level: Level
    identity: HubIdentity | None
    control: ControlFold
    findings: Findings
    bound: dict[bytes, CheckpointBinding] = field(
        default_factory=dict
    )  # of checkpoint-binding.json, until a seal confirms it


@dataclass(slots=True, kw_only=True)
class DirectoryRules(LogScope):
    """Rules for all labels of a data directory, with the state that they share."""

    spending: Spending
    index: Index | None
    pool: SignaturePool | None = None  # verifies many signatures together; None where none are verified
    jobs: int = 1  # threads of the native module, where it is there
    journal_missing: bool = False
    retired_control: int = 0  # seq of the last control record that the index knows
    writers: dict[bytes, int] = field(default_factory=dict)  # retired: when each client was first accepted (D-102)
    _anchored: set[tuple[bytes, int]] = field(default_factory=set)  # anchors that were compared

    def warn(self, item: ScannedEntry, fault: EntryFault) -> None:
        """Report a time that goes back, which is a warning (D-28)."""
        self.findings.warning(item.path, item.at, "time", f"entry {item.stream_seq}: {fault.what}")

    def writer(self, client_id: bytes, hub_ts: int) -> None:
        """Note a client's first entry of a label; labels are read one after the other."""
        self.writers[client_id] = min(self.writers.get(client_id, hub_ts), hub_ts)

    def anchor(self, label: bytes, fold: LabelFold) -> None:
        """Check that an anchored root for the last added entry is the root after it (D-104)."""
        published = self.control.anchors.get((label, fold.size))
        if published is None:
            return
        self._anchored.add((label, fold.size))
        if any(body.mmr_root != fold.mmr.root() for body in published):
            what = f"the root that was anchored for entry {fold.size} of label {label.hex()} is not the log's"
            self.findings.error(layout.CONTROL, 0, "control", what)

    def anchors_hold(self, label: bytes, first_seq: int, roots: bytes) -> bool:
        """Call `anchor` after each of several entries; return False if it would find a fault."""
        anchors = self.control.anchors
        places = [
            (label, first_seq + number)
            for number in range(len(roots) // HASH_BYTES if anchors else 0)
            if (label, first_seq + number) in anchors
        ]
        for place in places:
            start = (place[1] - first_seq) * HASH_BYTES
            if any(body.mmr_root != roots[start : start + HASH_BYTES] for body in anchors[place]):
                return False
        self._anchored.update(places)
        return True

    def tokens_hold(self, chunk: ScannedChunk) -> bool:
        """Return True if all entries of a chunk that name a token were allowed to."""
        caps = self.control.caps
        uses = (
            use_faults(client_id, hub_ts, caps.get(auth_ref), None) for auth_ref, client_id, hub_ts, _ in chunk.uses
        )
        return not any(fault for faults in uses for fault in faults)

    def chunk_entries(self, chunk: ScannedChunk) -> None:
        """Count the entries of a chunk whose signatures are good."""
        self.findings.count("entries", chunk.entries)
        self.findings.count("bytes", chunk.end)
        if self.level == "full":
            self.findings.count("signatures", chunk.entries * (1 if self.identity is None else 2))

    def anchors_left(self) -> None:
        """Report anchors beyond the head of their label: entries were cut off, or the log was rolled back."""
        if self.findings.truth_is_whole:
            for label, upto_seq in sorted(self.control.anchors.keys() - self._anchored):
                what = f"entry {upto_seq} of label {label.hex()} was anchored and is not here"
                self.findings.warning(layout.CONTROL, 0, "cut", what)

    def signatures(self, item: ScannedEntry) -> None:
        """Check the author, the hub and the authority of an entry (I7)."""
        self.findings.count("entries")
        self.findings.count("bytes", item.length)
        if self.level == "full" and item.receipt is not None:
            self.findings.count("signatures", signature_count(item, self.identity))
            work, hub_pk = signature_jobs(item.msg, item.receipt, self.identity)
            if self.pool is None or (hub_pk is None and self.identity is not None):
                self.verify(item)
            else:
                self.pool.add(item, work)
        if item.auth_ref is not None:
            # Whether the token is for this stream is a rule of admission, which an audit holds the hub to.
            self._first_error(item, "capability", token_faults(item, self.control.caps.get(item.auth_ref), None))

    def verify(self, item: ScannedEntry) -> None:
        """Verify the signatures of one entry."""
        self._first_error(item, "signature", signature_faults(item, self.identity))

    def _first_error(self, item: ScannedEntry, code: Code, faults: Iterator[EntryFault]) -> None:
        for fault in faults:
            self.findings.error(item.path, item.at, code, f"entry {item.stream_seq}: {fault.what}")
            return
