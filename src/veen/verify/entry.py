"""Rules for one entry: bytes, hashes, signatures, authority, sizes, epoch (I1, I2, I4, I6, I7, I10 to I12).

`veen hub verify-data`, `veen audit run` and the load of tables use these rules. A damaged entry is decoded as far as
possible, so that its faults are named and the tree can continue.

Rules and findings of verify-data for all labels of a directory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from veen.core.entry import FRAME_BYTES, FRAME_HASH_AT, FRAME_LENGTHS, FRAME_LENGTHS_AT
from veen.core.errors import FormatError, LimitError
from veen.core.labels import epoch_at, epoch_window
from veen.core.limits import Limits
from veen.core.objects.identity import HubIdentity, key_id_of
from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt
from veen.core.run_check import Pair, Rule, check_signatures, signature_jobs
from veen.core.sealing.ciphertext import Parts
from veen.io.errors import CorruptError
from veen.io.local import Fs
from veen.native import ScannedChunk
from veen.storage import frame, layout
from veen.storage.control_state import Authorised, ControlFold, Spending
from veen.storage.findings import Code, Findings, Level
from veen.storage.frame import Frame
from veen.storage.index import Index
from veen.storage.keys.identity import CheckpointBinding
from veen.storage.label_files import HASH_BYTES
from veen.storage.pinned import ChunkRef
from veen.storage.scan import EntryFault, LabelFold, ScannedEntry, contradictions, entry_fault, item_of
from veen.verify.signatures import SignaturePool

_NOT_VALID: Final = "its token was not valid at this time"


@dataclass(frozen=True, slots=True)
class EntryReading:
    """The readable parts of one position. Without `item` only its possible leaves are used."""

    stream_seq: int
    offset: int
    length: int
    item: ScannedEntry | None
    raw_msg: bytes = b""
    leaves: tuple[bytes, ...] = ()  # what a damaged entry says about its leaf; the tree tells which was true
    root: bytes | None = None  # what its receipt says, damaged or not
    faults: tuple[EntryFault, ...] = ()


def read_entry(data: bytes, pos: int, ref: ChunkRef, stream_seq: int) -> EntryReading | None:
    """Return the entry at `pos`; None if not even its length is known: `frame_fault` returns the reason."""
    length = frame.bytes_needed(data, pos)
    if length == FRAME_BYTES or pos + length > len(data):
        return None
    try:
        entry, _ = frame.read(data, pos, path=ref.path)
        return _whole(entry, ref, stream_seq, pos)
    except CorruptError:
        return _take_apart(data, pos, length, ref, stream_seq)


def frame_fault(data: bytes, pos: int, path: str) -> CorruptError:
    """Return the reason why no entry can be read at `pos`."""
    try:
        frame.read(data, pos, path=path)
    except CorruptError as exc:
        return exc
    return CorruptError(path, pos, "the file ends before this entry")


def _whole(entry: Frame, ref: ChunkRef, stream_seq: int, pos: int) -> EntryReading:
    if entry.stream_seq != stream_seq or entry.label != ref.label:
        what = f"entry {entry.stream_seq} is where entry {stream_seq} belongs"
        if entry.label != ref.label:
            what = f"an entry of label {entry.label.hex()} is here"
        return EntryReading(stream_seq, pos, entry.size, None, faults=(EntryFault("place", what),))
    item = item_of(entry, ref.label, ref.path, pos)
    root = item.receipt.mmr_root if item.receipt else None
    return EntryReading(stream_seq, pos, entry.size, item, entry.msg, (item.leaf_hash,), root)


def _take_apart(data: bytes, pos: int, length: int, ref: ChunkRef, stream_seq: int) -> EntryReading:
    """Return a damaged entry with all of its faults, by name."""
    msg_len, _ = FRAME_LENGTHS.unpack_from(data, pos + FRAME_LENGTHS_AT)
    body = pos + FRAME_BYTES
    raw, raw_receipt = data[body : body + msg_len], data[body + msg_len : pos + length]
    header = data[pos : pos + FRAME_LENGTHS_AT]
    faults: list[EntryFault] = []
    if header[:2] != b"\x01\x00":
        faults.append(EntryFault("frame", f"no frame begins here (version {header[0]}, flags {header[1]})"))
    entry_hash = data[pos + FRAME_HASH_AT : pos + FRAME_BYTES]
    if frame.entry_hash_of(raw, raw_receipt) != entry_hash:
        faults.append(EntryFault("entry_hash", "entry_hash does not match its bytes"))
    if header[2:34] != ref.label or int.from_bytes(header[34:42], "big") != stream_seq:
        faults.append(EntryFault("place", f"its frame names another place than entry {stream_seq} of this label"))
    msg: Msg | None = None
    receipt: Receipt | None = None
    try:
        msg = Msg.from_bytes(raw)
    except FormatError as exc:
        faults.append(EntryFault("format", f"{exc} (I10)"))
    try:
        receipt = Receipt.from_bytes(raw_receipt)
    except FormatError as exc:
        faults.append(EntryFault("format", f"{exc} (I10)"))
    faults += contradictions(msg, receipt, ref.label, stream_seq)
    leaves = [leaf for leaf in (receipt and receipt.leaf_hash, msg and msg.leaf_hash()) if leaf]
    root = receipt.mmr_root if receipt else None
    return EntryReading(stream_seq, pos, length, None, raw, tuple(dict.fromkeys(leaves)), root, tuple(faults))


# --- entries that are whole ----------------------------------------------------------------------------------


def signature_count(item: ScannedEntry, identity: HubIdentity | None) -> int:
    """Return the number of signatures that `signature_faults` verifies."""
    return (item.msg is not None) + (item.receipt is not None and identity is not None)


def signature_faults(item: ScannedEntry, identity: HubIdentity | None) -> Iterator[EntryFault]:
    """Check the signatures of the author and of the hub, with the key that was valid then (D-41)."""
    receipt = item.receipt
    if receipt is None:
        return
    for fault in check_signatures([Pair(item.msg, receipt)], identity)[0][0]:
        if fault.rule is Rule.AUTHOR_SIG:
            yield entry_fault(fault)
            continue
        what = f"{receipt.KIND}: hub_sig is by no key of this hub that is valid at {receipt.hub_ts}"
        if isinstance(fault.actual, bytes):  # a signature by a key that was not valid then is told from one by nobody
            said = f"hub_sig is by key {key_id_of(fault.actual)}, which was not valid at {receipt.hub_ts}"
            yield EntryFault("hub_key", said, short=what)
        else:
            yield EntryFault("hub_sig", what)


def token_faults(item: ScannedEntry, grant: Authorised | None, stream_id: bytes | None) -> Iterator[EntryFault]:
    """Check the authority by which the entry was accepted (I7), except the rate, which concerns all labels together."""
    return use_faults(item.client_id, item.hub_ts, grant, stream_id)


def use_faults(
    client_id: bytes, hub_ts: int, grant: Authorised | None, stream_id: bytes | None
) -> Iterator[EntryFault]:
    """Yield `token_faults` of an entry by this client at this time."""
    if grant is None:
        yield EntryFault("capability", "no record authorises its token")
        return
    if grant.token.subject_pk != client_id:
        other = "its token is for another client"
        yield EntryFault("capability", f"{other} (D-49)", short=other)
    if hub_ts < grant.issued_at:
        yield EntryFault("capability", f"its token was authorised later, at {grant.issued_at}", short=_NOT_VALID)
    elif hub_ts > grant.ends_at:
        yield EntryFault("capability", f"its token ended at {grant.ends_at} (D-48)", short=_NOT_VALID)
    if stream_id is not None and stream_id not in grant.token.allow.stream_ids:
        yield EntryFault("capability", "its token is not for this stream (D-49)")


def size_faults(msg: Msg, size: int, limits: Sequence[Limits]) -> Iterator[EntryFault]:
    """Yield a fault unless a MSG of `size` bytes is within some of the limits that may have applied (I11)."""
    if all(size > limit.max_msg_bytes for limit in limits):
        yield EntryFault("size", f"a MSG of {size} bytes is larger than the limits of its time allow (I11)")
    reason = None
    for limit in limits:
        try:
            Parts.check(msg.ciphertext, limit)
        except (FormatError, LimitError) as exc:
            reason = reason or str(exc)
        else:
            return
    yield EntryFault("size", f"{reason} (I11)")


def epoch_fault(epoch: int, epoch_sec: int, hub_ts: int, limits: Sequence[Limits]) -> EntryFault | None:
    """Return a fault unless the time of an entry is in the epoch of its label, or within the allowed skew (I12)."""
    window = max(epoch_window(epoch_sec, limit.max_epoch_skew_sec) for limit in limits)
    now = epoch_at(hub_ts, epoch_sec)
    if abs(epoch - now) <= window:
        return None
    return EntryFault("epoch", f"its label is of epoch {epoch}, but hub_ts lies in epoch {now} (I12)")


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
