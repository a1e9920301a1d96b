"""Verification of the seals of a label: summary, peaks, checkpoint, boundary, checkpoint index (spec §4.8.3)."""

from collections.abc import Container, Sequence

from veen.core import cbor
from veen.core.errors import FormatError, VeenError, VerifyError
from veen.core.labels import routing_key_of
from veen.core.limits import Limits
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.identity import HubIdentity
from veen.core.tree.mmr import Mmr, root_of
from veen.io.local import Fs
from veen.storage import layout
from veen.storage.findings import Code
from veen.storage.keys.identity import CheckpointBinding
from veen.storage.label_files import index_entry, map_head, map_head_bytes
from veen.storage.scan import LabelRun, Seal, read_file
from veen.verify.entry import LogScope
from veen.verify.files import compare_file

Peaks = tuple[bytes, ...]


def read_signed_peaks(fs: Fs, identity: HubIdentity | None, label: bytes, size: int) -> Peaks | None:
    """Return the peaks of the seal at `size`, if they have a root that the hub signed: the tree continues from them."""
    if size == 0:
        return ()
    try:
        peaks = tuple(cbor.decode(read_file(fs, layout.peaks(label, size))))
        checkpoint = Checkpoint.from_bytes(read_file(fs, layout.checkpoint(label, size)))
        if identity is not None:
            identity.verify_checkpoint(checkpoint, 0)
        Mmr(size, peaks)  # the right number of hashes
        good = (checkpoint.label_curr, checkpoint.upto_seq, checkpoint.mmr_root) == (label, size, root_of(peaks))
    except (VeenError, OSError, TypeError):
        return None
    return peaks if good else None


def index_fault(data: bytes | None, entries: bytes, count: int, *, extended: bool) -> str | None:
    """Return the fault of a checkpoint index (None: missing), given its `count` entries; later ones may follow them."""
    if data is None:
        return "the file is missing" if count else None
    width = map_head_bytes(data[:1]) if data else 0
    good = data[width : width + len(entries)] == entries if extended else data == map_head(count) + entries
    return None if good else "not what the seals of the label give"


def stray_fault(
    file: layout.LogFile, sealed: Container[tuple[int, int]], ends: Container[int], *, archived: bool
) -> tuple[Code, str] | None:
    """Return code and text for an artifact without a seal; `archived`: True if an archive belongs here."""
    if file.kind in ("heads", "receipts"):
        return None if archived else ("leftover", "the archive of an erasure that was cut off")
    if file.kind in ("peaks", "checkpoint"):
        belongs = file.end_seq in ends
    else:
        belongs = file.kind != "summary" or (file.start_seq, file.end_seq) in sealed
    return None if belongs else ("unknown", "belongs to no chunk of this label")


def ends_rightly(total_bytes: int, count: int, next_length: int | None, limits: Sequence[Limits | None]) -> bool:
    """Return True if one of the possible limits ends a chunk here; `next_length` is that of the following entry."""
    for limit in limits:
        if limit is None:
            return True  # no record says which limits applied
        fits = total_bytes <= limit.max_chunk_bytes and count <= limit.max_checkpoint_interval
        full = next_length is not None and total_bytes + next_length > limit.max_chunk_bytes
        if fits and (full or count == limit.max_checkpoint_interval):
            return True
    return False


class SealCheck:
    """Check of the sealed chunks of a label, in order. `upto`: the last control record that was in force for all."""

    def __init__(
        self, scope: LogScope, label: bytes, stream_id: bytes | None, limits: Limits | None, upto: int | None
    ) -> None:
        self._scope, self._label, self._stream_id, self._upto = scope, label, stream_id, upto
        self._findings = scope.findings
        self._sealed: set[tuple[int, int]] = set()
        self._index_entries = bytearray()
        self._limits: list[Limits | None] = [limits]
        self._unjudged: Seal | None = None  # the last seal, until it is known what came after it

    def drop_level(self, start_seq: int) -> int:
        """Return the erased part of the chunk that begins here."""
        return self._scope.control.drop_level(self._label, start_seq, self._upto)

    def add(self, seal: Seal, run: LabelRun) -> None:
        """Check the seal of the next chunk, all of whose entries are valid."""
        label, row, control = self._label, seal.row, self._scope.control
        self._sealed.add((row.start_seq, row.end_seq))
        self._index_entries += seal.entry
        self._findings.count("chunks")
        fs = self._scope.fs
        compare_file(fs, self._findings, layout.summary(label, row.start_seq, row.end_seq), seal.summary)
        compare_file(fs, self._findings, layout.peaks(label, row.end_seq), seal.peaks)
        self._check_checkpoint(seal)
        for drop in control.drops.get((label, run.start_seq), ()):
            if drop.end_seq != row.end_seq or drop.entry_hashes_root != row.entry_hashes_root:
                what = f"control record {drop.seq} drops another chunk than {row.start_seq} to {row.end_seq}"
                self._findings.error(layout.CONTROL, 0, "retention", what)
        if run.kind == "chunk" and self.drop_level(run.start_seq):
            path = layout.chunk(label, row.start_seq, row.end_seq)
            self._findings.warning(path, 0, "leftover", "its payloads should have been erased")
        self._unjudged = seal
        self._check_binding(seal)

    def skip(self, start_seq: int, end_seq: int, mmr_root: bytes) -> None:
        """Skip an unreadable chunk that has a checkpoint."""
        self._index_entries += index_entry(self._label, start_seq, end_seq, mmr_root)

    def forget(self) -> None:
        """Forget the last chunk, because its correct end is no longer known."""
        self._unjudged = None

    # --- where chunks end ------------------------------------------------------------------------------

    def first_entry(self, length: int, hub_ts: int) -> None:
        """Check with the first entry of a chunk that the previous chunk ended in the right place."""
        if self._unjudged is None:
            return
        self._check_boundary(self._unjudged, length)
        self._limits = self._scope.control.limits_between(self._unjudged.row.last_ts, hub_ts)
        self._unjudged = None

    def no_entry_follows(self) -> None:
        if self._unjudged is not None:
            self._check_boundary(self._unjudged, None)

    def active_limits(self) -> list[Limits | None]:
        """Return the limits that the active chunk may have been opened under."""
        if self._unjudged is None:
            return self._limits
        last_ts = self._unjudged.row.last_ts  # the active chunk is empty
        return self._scope.control.limits_between(last_ts, last_ts)

    def _check_boundary(self, seal: Seal, next_length: int | None) -> None:
        """Check that the chunk ends where the limits of its time require (D-70)."""
        row = seal.row
        count = row.end_seq - row.start_seq + 1
        if ends_rightly(row.total_bytes, count, next_length, self._limits):
            return
        path = layout.chunk(self._label, row.start_seq, row.end_seq)
        self._findings.error(path, row.total_bytes, "limits", "the chunk does not end where its limits demand")

    # --- what a seal leaves ----------------------------------------------------------------------------

    def _check_checkpoint(self, seal: Seal) -> None:
        """Check root, labels, epoch and signature of the checkpoint (spec §4.4.1)."""
        row = seal.row
        path = layout.checkpoint(self._label, row.end_seq)
        try:
            checkpoint = Checkpoint.from_bytes(read_file(self._scope.fs, path))
            if (checkpoint.label_curr, checkpoint.upto_seq) != (self._label, row.end_seq):
                raise VerifyError("CHECKPOINT: it is for another position")
            if checkpoint.mmr_root != row.mmr_root:
                raise VerifyError("CHECKPOINT: mmr_root is not the root of the log prefix")
            if checkpoint.epoch != row.epoch:
                raise VerifyError("CHECKPOINT: epoch is not that of the label")
            identity = self._scope.identity
            if identity is not None:
                if self._stream_id is not None:
                    checkpoint.check_labels(routing_key_of(identity.hub_id), self._stream_id)
                if self._scope.level == "full":
                    self._findings.count("signatures")
                    identity.verify_seal(checkpoint, row.last_ts)
                    self._unknown_witnesses(path, checkpoint, len(identity.witnesses_at(row.last_ts)))
        except FileNotFoundError:
            self._findings.error(path, 0, "missing", "the file is missing")
        except OSError as exc:
            self._findings.error(path, 0, "missing", f"the file cannot be opened: {exc.strerror}")
        except (FormatError, VerifyError) as exc:
            self._findings.error(path, 0, "seal", str(exc))

    def _unknown_witnesses(self, path: str, checkpoint: Checkpoint, expected: int) -> None:
        if (count := len(checkpoint.witness_sigs or ()) - expected) > 0:
            self._findings.warning(path, 0, "unknown", f"{count} witness signatures by keys that are not known here")

    def _check_binding(self, seal: Seal) -> None:
        """Check that checkpoint-binding.json names this checkpoint with its root and key, or another one."""
        row, bound, identity = seal.row, self._scope.bound.get(self._label), self._scope.identity
        if bound is None or identity is None or bound.upto_seq != row.end_seq:
            return
        if not identity.keys_valid_at(row.last_ts):
            return
        key_id = identity.signing_key_at(row.last_ts).key_id  # D-166: the time of the last entry names it
        if bound == CheckpointBinding(self._label, row.epoch, row.end_seq, row.mmr_root, key_id):
            del self._scope.bound[self._label]

    # --- all of them -----------------------------------------------------------------------------------

    def check_index(self, count: int, *, extended: bool) -> None:
        """Check all entries of the checkpoint index against the seals; later seals may have `extended` it."""
        path = layout.checkpoint_index(self._label)
        try:
            data = read_file(self._scope.fs, path)
        except FileNotFoundError:
            data = None
        what = index_fault(data, bytes(self._index_entries), count, extended=extended)
        if what is not None and data is None:
            self._findings.error(path, 0, "rebuildable", what)
        elif what is not None:
            self._findings.late_error(path, 0, "rebuildable", what)

    def check_strays(self, files: Sequence[layout.LogFile]) -> None:
        """Check for artifacts without a seal."""
        ends = {end for _, end in self._sealed}
        for file in files:
            fault = stray_fault(file, self._sealed, ends, archived=self._is_archived(file))
            if fault is not None:
                self._findings.warning(file.path, 0, *fault)

    def _is_archived(self, file: layout.LogFile) -> bool:
        """Return True if an erasure left this archive; the second erasure of a chunk removes its receipts."""
        if (file.start_seq, file.end_seq) not in self._sealed:
            return False
        if file.kind == "receipts" and self.drop_level(file.start_seq) > 1:
            return False
        return self._scope.control.drop_level(self._label, file.start_seq) > 0
