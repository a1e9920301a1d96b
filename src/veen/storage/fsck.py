"""`verify_data`: everything in a data directory, re-derived from frames and control records alone (DESIGN §4).

Truth is what the hub signed: identity, chunks, control journal, checkpoints, and what the write-ahead journal still
holds. All else follows from it and can be made again; such a file that is wrong is a finding with the code
`rebuildable`. The directory may belong to a running hub, or to one that was cut off: files are held to what was
synced by the last retirement, the journal to all whole groups. Nothing is written.

    1  identity       hub-identity.json, its signature, the key map, private keys if they are there
    2  journal        chain of groups; what it holds of each label and of the control journal
    3  index          is it usable, and from which point of the journal on would a hub go on
    4  control        chain, signatures and bodies of all control records
    5  labels         `fscklabel`: every entry and every artifact
    6  journal        its entries, as the continuation of the labels
    7  index          cursors, tokens and counts; limits, bindings, unknown files
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from veen.core.control import ControlRecord
from veen.core.ed25519 import SIGNATURE_BYTES
from veen.core.errors import FormatError, LimitError, MalformedError, SignatureError, VerifyError
from veen.core.hubkeys import HubIdentity, canonical_json
from veen.core.labels import label_of, routing_key_of
from veen.core.limits import Limits
from veen.storage import identity as identities
from veen.storage import journal as wal
from veen.storage import layout
from veen.storage.controlfold import ControlFold, Spending, control_records
from veen.storage.errors import CorruptError
from veen.storage.findings import Code, Finding, Findings, LabelSummary, Level
from veen.storage.frame import Frame
from veen.storage.fs import Fs
from veen.storage.fscklabel import Judge, LabelCheck
from veen.storage.index import META, Index, LabelRow
from veen.storage.journal import Placed
from veen.storage.scan import LabelFold, inventory, item_of, read_file

__all__ = ["Finding", "Report", "verify_data"]

_HASH_BYTES: Final = 32
_ROOT_NAMES: Final = {
    layout.IDENTITY,
    layout.IDENTITY_SIG,
    layout.KEY_MAP,
    layout.CHECKPOINT_BINDING,
    layout.LIMITS,
    layout.LOCK,
    layout.INDEX,
    f"{layout.INDEX}-wal",
    f"{layout.INDEX}-shm",
    layout.FORK_ORIGIN,
    layout.FORK_ORIGIN_SIG,
    # Directories. Attachments are named by their hash, evidence is no part of the log, an origin is checked by itself.
    *layout.DIRECTORIES,
    layout.ATTACHMENTS,
    layout.EVIDENCE,
    layout.ORIGIN,
}

Progress = Callable[[str], None]  # is told the path that is read next


@dataclass(frozen=True, slots=True)
class Report:
    """The verdict, and how much it covers."""

    findings: tuple[Finding, ...]
    labels: dict[bytes, LabelSummary]
    counts: dict[str, int]
    level: Level

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity == "error")

    @property
    def ok(self) -> bool:
        return not self.errors


@dataclass(slots=True)
class _Journaled:
    """What the journal holds of one label: the entries first … first + count - 1."""

    first: int
    hashes: bytearray = field(default_factory=bytearray)

    @property
    def last(self) -> int:
        return self.first + len(self.hashes) // _HASH_BYTES - 1


def verify_data(
    fs: Fs,
    *,
    level: Level = "full",
    identity: HubIdentity | None = None,
    root_pk: bytes | None = None,
    progress: Progress | None = None,
) -> Report:
    """Check a whole data directory. `structure` leaves out the signatures, nothing else.

    `identity` is one known from elsewhere (HID-01): the directory's own must then be the same hub, and may be absent.
    """
    check = _Check(fs, level, progress)
    try:
        check.run(identity, root_pk)
    finally:
        check.close()
    return Report(tuple(check.findings.all), check.summaries, dict(check.findings.counts), level)


class _Check:
    """One run of `verify_data`."""

    def __init__(self, fs: Fs, level: Level, progress: Progress | None) -> None:
        self.fs, self.level, self.progress = fs, level, progress
        self.findings = Findings()
        self.summaries: dict[bytes, LabelSummary] = {}
        self.identity: HubIdentity | None = None
        self.control = ControlFold()
        self.index: Index | None = None
        self.meta: dict[str, Any] = {}
        self.rows: dict[bytes, LabelRow] = {}
        self.segments: list[wal.Segment] = []
        self.journaled: dict[bytes, _Journaled] = {}
        self.journal_controls: list[tuple[Placed, ControlRecord]] = []
        self.folds: dict[bytes, LabelFold] = {}
        self.spending = Spending()
        # As of the last retirement, which is what the index must show.
        self.retired_control: ControlRecord | None = None
        self.retired_limits: Limits | None = None
        self.retired_ts = 0
        self.control_bytes = 0
        self.clients = 0

    def close(self) -> None:
        wal.close_segments(self.segments)
        self.spending.close()
        if self.index is not None:
            self.index.close()

    def run(self, given: HubIdentity | None, root_pk: bytes | None) -> None:
        self._identity(given, root_pk)
        self._open()
        self._read_journal()
        self._control()
        judge = Judge(self.fs, self.level, self.identity, self.control, self.findings, self.spending, self.index)
        judge.retired_control = self.retired_control.seq if self.retired_control else 0
        self._read_binding(judge)
        self._labels(judge)
        self._journal_entries(judge)
        self._index()
        self._other_files()
        self._binding(judge)
        self._settle()

    # --- 1 ---------------------------------------------------------------------------------------------

    def _identity(self, given: HubIdentity | None, root_pk: bytes | None) -> None:
        self.identity = given
        if not identities.exists(self.fs):
            if given is None:
                self.findings.error(layout.IDENTITY, 0, "missing", "the file is missing: nobody vouches for this log")
            return
        try:
            found = identities.read_identity(self.fs, root_pk, key_map=False)
        except CorruptError as exc:
            self.findings.error(exc.path, exc.offset, "identity", exc.what)
            self._private_keys(None)
            return
        try:
            identities.read_identity(self.fs, root_pk)
        except CorruptError as exc:
            self.findings.error(exc.path, exc.offset, "rebuildable", exc.what)
        if given is not None and given.hub_id != found.hub_id:
            self.findings.error(layout.IDENTITY, 0, "identity", f"this is hub {found.hub_id.hex()}, not the given one")
        elif given is None or len(given.keys) < len(found.keys):
            self.identity = found
        if len(read_file(self.fs, layout.IDENTITY_SIG)) != SIGNATURE_BYTES:
            self.findings.warning(layout.IDENTITY_SIG, SIGNATURE_BYTES, "leftover", "a key rotation was cut off")
        elif not self.findings.has(layout.KEY_MAP) and (
            read_file(self.fs, layout.KEY_MAP) != canonical_json(found.key_map())
        ):
            self.findings.warning(layout.KEY_MAP, 0, "leftover", "lists a key that the identity does not have")
        self._private_keys(found)

    def _private_keys(self, identity: HubIdentity | None) -> None:
        """They prove nothing, but a damaged one should be known before it is needed."""
        names = self.fs.list(layout.KEYS)
        for name in names:
            path = f"{layout.KEYS}/{name}"
            key_id, dot, suffix = name.partition(".")
            if not dot or suffix != "key" or len(key_id) != 16:
                self._unknown(path)
                continue
            try:
                key = identities.read_key(self.fs, key_id)
            except CorruptError as exc:
                self.findings.error(exc.path, exc.offset, "identity", exc.what)
                continue
            if identity is not None and key.public not in {known.hub_pk for known in identity.keys}:
                self.findings.warning(path, 0, "unknown", "a private key that the identity does not list")
        if names and identity is not None and f"{identity.current.key_id}.key" not in names:
            path = layout.key(identity.current.key_id)
            self.findings.error(path, 0, "missing", "the private key of the current hub key is missing")

    # --- 2 ---------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Journal and index, as they belong together: a running hub may retire a segment at any moment."""
        while True:
            numbers = wal.segments(self.fs)
            # A first segment that a crash cut off while it began holds nothing.
            run = [] if wal.is_empty(self.fs) else _newest_run(numbers)
            try:
                self.segments = wal.open_segments(self.fs, run)
            except FileNotFoundError:
                continue
            self._open_index()
            if not run or self.meta.get("segment", 0) <= run[-1] or wal.segments(self.fs) == numbers:
                break
            wal.close_segments(self.segments)
            self._drop_index()
        for number in numbers if run else ():
            if number not in run:
                self.findings.warning(layout.journal_segment(number), 0, "leftover", "a segment that was retired")

    def _open_index(self) -> None:
        self.index, self.meta, self.rows = None, {}, {}
        try:
            index = Index(self.fs, read_only=True)
        except FileNotFoundError:
            return
        try:
            if fault := index.fault():
                raise CorruptError(layout.INDEX, 0, fault)
            meta = {key: index.meta(key) for key in META}
            kinds = {"limits": str, "control": bytes}
            if meta["segment"] is not None and any(type(meta[key]) is not kinds.get(key, int) for key in META):
                raise CorruptError(layout.INDEX, 0, "its cursors are not readable")
            if meta["segment"] is not None:
                index.check_meta()
            rows = {row.label: row for row in index.labels()}
        except CorruptError as exc:
            self.findings.error(layout.INDEX, 0, "rebuildable", exc.what)
            index.close()
            return
        if meta["segment"] is None:  # no retirement yet
            index.close()
        else:
            self.index, self.meta, self.rows = index, meta, rows

    def _read_journal(self) -> None:
        segment = self.meta.get("segment")
        oldest = self.segments[0].number if self.segments else None
        newest = self.segments[-1].number if self.segments else None
        if oldest is None or newest is None:
            if segment is not None or self.fs.list(layout.LOG):
                path = layout.journal_segment(segment or 1)
                self.findings.error(path, 0, "missing", "the journal is missing: its last entries may be lost")
        elif segment is None:
            if oldest > 1 and not self.findings.has(layout.INDEX):
                self.findings.error(layout.INDEX, 0, "rebuildable", "the index is missing")
            self._drop_index()
        elif segment > newest:
            path = layout.journal_segment(segment)
            self.findings.error(path, 0, "missing", "the segment is missing: its entries may be lost")
        elif segment < oldest:
            self.findings.error(layout.INDEX, 0, "rebuildable", f"older than the journal, which begins at {oldest}")
            self._drop_index()
        try:
            for item in wal.walk(self.segments):
                if isinstance(item, Placed):
                    self._note(item)
                elif item.offset < self.segments[-1].size and item.segment == self.segments[-1].number:
                    what = "a write that was interrupted, or is under way"
                    self.findings.warning(self.segments[-1].path, item.offset, "leftover", what)
        except CorruptError as exc:
            self.findings.error(exc.path, exc.offset, "journal", exc.what)

    def _drop_index(self) -> None:
        if self.index is not None:
            self.index.close()
        self.index, self.meta, self.rows = None, {}, {}

    def _note(self, placed: Placed) -> None:
        record = placed.record
        retired = placed.segment < self.meta.get("segment", 0)
        if isinstance(record, ControlRecord):
            self.journal_controls.append((placed, record))
            return
        row = self.rows.get(record.label)
        if retired != (record.stream_seq <= (row.size if row else 0)) and self.index is not None:
            self.findings.error(layout.INDEX, 0, "rebuildable", "its cursors are not those of its journal segment")
        held = self.journaled.setdefault(record.label, _Journaled(record.stream_seq))
        if record.stream_seq != held.last + 1:
            what = f"entry {held.last + 1} of label {record.label.hex()} belongs here, found {record.stream_seq}"
            self.findings.error(placed.path, placed.offset, "journal", what)
            return
        held.hashes += record.entry_hash

    # --- 4 ---------------------------------------------------------------------------------------------

    def _control(self) -> None:
        """Held to the file up to the last retirement, then to what the journal adds."""
        if self.progress:
            self.progress(layout.CONTROL)
        journal = {record.seq: (placed, record) for placed, record in self.journal_controls}
        first = min(journal, default=None)
        strict = self.meta.get("control_bytes")
        end = 0
        try:
            for offset, record in control_records(self.fs, strict, first if strict is None else None):
                self._control_record(record, layout.CONTROL, offset)
                end = offset + len(record.to_bytes())
                if (twin := journal.get(record.seq)) is not None and twin[1] != record:
                    what = f"another control record {record.seq} than {layout.CONTROL} has"
                    self.findings.error(twin[0].path, twin[0].offset, "journal", what)
        except CorruptError as exc:
            self.findings.error(exc.path, exc.offset, "control", exc.what)
            end = exc.offset
        size = self._size(layout.CONTROL)
        soft = max(journal, default=0) > self.control.seq
        if strict is not None and end < strict:
            self.findings.error(layout.CONTROL, end, "cut", f"{strict - end} bytes are missing at its end")
        elif size > end and not soft and not self.findings.has(layout.CONTROL):
            self.findings.late_error(layout.CONTROL, end, "control", "bytes behind the last record")
        self.retired_ts, self.retired_control = self.control.hub_ts, self.control.last
        self.control_bytes, self.retired_limits = end, self.control.limits
        for seq in sorted(journal):
            if seq > self.control.seq:
                placed, record = journal[seq]
                self._control_record(record, placed.path, placed.offset)
        self._rotations()

    def _control_record(self, record: ControlRecord, path: str, offset: int) -> None:
        try:
            self.control.add(record)
            self.findings.count("control_records")
            if self.level == "full" and self.identity is not None:
                self.identity.verify_control(record)
                self.findings.count("signatures")
        except (VerifyError, FormatError, LimitError) as exc:
            code: Code = "signature" if isinstance(exc, SignatureError) else "control"
            self.findings.error(path, offset, code, f"control record {record.seq}: {exc}")

    def _rotations(self) -> None:
        """Each key after the first was announced by a record that an earlier key signed (HID-12)."""
        if self.identity is None:
            return
        listed, said = self.identity.rotations(), self.control.rotations
        if said[: len(listed)] != listed[: len(said)] or len(listed) > len(said):
            self.findings.error(layout.IDENTITY, 0, "identity", "its keys are not those that the control journal tells")
        elif len(said) > len(listed):
            self.findings.warning(layout.IDENTITY, 0, "leftover", "a key rotation was cut off")

    # --- 5 ---------------------------------------------------------------------------------------------

    def _labels(self, judge: Judge) -> None:
        files = inventory(self.fs)
        for label in sorted({*files, *self.rows, *self.control.labels}):
            if self.progress:
                self.progress(f"{layout.LOG}: label {label.hex()}")
            held = self.journaled.get(label)
            row = self.rows.get(label)
            opened = self.control.labels.get(label)
            if opened is None:
                what = f"no record opens label {label.hex()}"
                self.findings.late_error(layout.CONTROL, self.control_bytes, "control", what)
                if row is None and held is None:
                    continue
            elif opened.stream_id is not None and self.identity is not None:
                routing_key = routing_key_of(self.identity.hub_id)
                if label_of(routing_key, opened.stream_id, opened.epoch) != label:
                    what = f"record {opened.seq} opens a label that is not that of its stream and epoch"
                    self.findings.error(layout.CONTROL, 0, "control", what)
            strict = row.size if row is not None else self._strict(label, held)
            check = LabelCheck(judge, label, opened, files.get(label, []), row)
            fold = check.run(strict, held.first if held else None, bytes(held.hashes) if held else b"")
            if row is not None:
                self.retired_ts = max(self.retired_ts, row.last_ts)
                self.clients += check.index_clients
            if fold is not None and held is not None:
                self.folds[label] = fold
            size = check.fold.size
            root = check.fold.mmr.root() if size else None
            self.summaries[label] = LabelSummary(size, root, complete=fold is not None)

    def _strict(self, label: bytes, held: _Journaled | None) -> int | None:
        """How much of a label that has no cursor was retired; None: all that its files show, so all must be good."""
        opened = self.control.labels.get(label)
        retired = self.retired_control.seq if self.retired_control else 0
        if self.index is not None:
            if opened is not None and opened.seq > retired:
                return 0
            self.findings.error(layout.INDEX, 0, "rebuildable", f"label {label.hex()} is missing")
        return held.first - 1 if held is not None else None

    # --- 6 ---------------------------------------------------------------------------------------------

    def _journal_entries(self, judge: Judge) -> None:
        if not self.journaled:
            return
        try:
            for placed in wal.walk(self.segments):
                if isinstance(placed, Placed) and isinstance(placed.record, Frame):
                    self._journal_entry(judge, placed, placed.record)
        except CorruptError as exc:
            self.findings.error(exc.path, exc.offset, "journal", exc.what)

    def _journal_entry(self, judge: Judge, placed: Placed, record: Frame) -> None:
        fold = self.folds.get(record.label)
        if fold is None:
            if record.label not in self.summaries:
                what = f"no record opens label {record.label.hex()}"
                self.findings.error(placed.path, placed.offset, "journal", what)
                self.summaries[record.label] = LabelSummary(0, None)
            return
        if record.stream_seq <= fold.size:
            return
        try:
            item = item_of(record, record.label, placed.path, placed.offset)
            judge.order(item, fold.last_ts)
            fold.add_journaled(item)
        except CorruptError as exc:
            self.findings.error(exc.path, exc.offset, "entry", exc.what)
            del self.folds[record.label]  # nothing after it can be judged
            self.summaries[record.label] = LabelSummary(fold.size, fold.mmr.root(), complete=False)
            return
        judge.signatures(item)
        self.summaries[record.label] = LabelSummary(fold.size, fold.mmr.root())

    # --- 7 ---------------------------------------------------------------------------------------------

    def _index(self) -> None:
        index, meta = self.index, self.meta
        if index is None or not self.findings.truth_is_whole:
            return  # what it must say is known only if the truth is whole
        record = self.retired_control
        retired = record.seq if record else 0
        caps = {ref: given for ref, given in self.control.caps.items() if given.seq <= retired}
        rows = self.rows.values()
        try:
            expected = {
                "meta": len(META) + 1,
                "labels": sum(opened.seq <= retired for opened in self.control.labels.values()),
                "clients": self.clients,
                "entries": sum(row.size for row in rows),
                "chunks": sum(row.checkpoints for row in rows),
                "caps": len(caps),
            }
            if (counts := index.counts()) != expected:
                raise CorruptError(layout.INDEX, 0, f"it has {counts} rows, expected {expected}")
            default = Limits.from_json(read_json(meta["limits"].encode()))
            if self.retired_limits is not None and default != self.retired_limits:
                raise CorruptError(layout.INDEX, 0, "its limits are not those of the control journal")
            if meta["control"] != (record.to_bytes() if record else b""):
                raise CorruptError(layout.INDEX, 0, "its last control record is not that of the control journal")
            straight = all(finding.code != "time" for finding in self.findings.all)
            if (straight and meta["hub_ts"] != self.retired_ts) or meta["next_client_row"] != self.clients + 1:
                raise CorruptError(layout.INDEX, 0, "its time or its count of clients is wrong")
            for cap in index.caps():
                if cap.auth_ref not in caps:
                    raise CorruptError(layout.INDEX, 0, f"nothing authorises token {cap.auth_ref.hex()}")
                row = self.spending.cap_row(cap.auth_ref, caps[cap.auth_ref], self.control, default)
                if row != cap:
                    raise CorruptError(layout.INDEX, 0, f"the bucket of token {cap.auth_ref.hex()} is wrong")
        except (CorruptError, FormatError, LimitError) as exc:
            what = exc.what if isinstance(exc, CorruptError) else str(exc)
            self.findings.error(layout.INDEX, 0, "rebuildable", what)

    def _other_files(self) -> None:
        for name in self.fs.list(""):
            if name not in _ROOT_NAMES:
                self._unknown(name)
        for name in self.fs.list(layout.LOG):
            path = f"{layout.LOG}/{name}"
            if layout.log_file(name) is None and path != layout.CONTROL:
                self._unknown(path)
        for name in self.fs.list(layout.JOURNAL):
            if layout.segment_number(name) is None:
                self._unknown(f"{layout.JOURNAL}/{name}")
        for directory, suffix in ((layout.NODES, "nodes"), (layout.OFFSETS, "loc")):
            for name in self.fs.list(directory):
                label = layout.label_of_array(name, suffix)
                if label is None or label not in self.summaries:
                    self._unknown(f"{directory}/{name}")
        self._limits_file()

    def _unknown(self, path: str) -> None:
        if path.endswith(".tmp"):
            self.findings.warning(path, 0, "leftover", "a replacement that was cut off; may be removed")
        else:
            self.findings.warning(path, 0, "unknown", "no file of a data directory has this name")

    def _limits_file(self) -> None:
        if not self.fs.exists(layout.LIMITS):
            return
        try:
            limits = Limits.from_json(read_json(read_file(self.fs, layout.LIMITS)))
        except (FormatError, LimitError) as exc:
            self.findings.error(layout.LIMITS, 0, "limits", str(exc))
            return
        if self.control.limits is not None and limits != self.control.limits:
            what = "not the limits that the control journal set last: they take effect when the hub starts"
            self.findings.warning(layout.LIMITS, 0, "limits", what)

    def _read_binding(self, judge: Judge) -> None:
        if self.identity is None or not self.fs.exists(layout.CHECKPOINT_BINDING):
            return
        try:
            judge.bound = {bound.label: bound for bound in identities.read_binding(self.fs, self.identity)}
        except CorruptError as exc:
            self.findings.error(exc.path, exc.offset, "rebuildable", exc.what)

    def _binding(self, judge: Judge) -> None:
        """What is bound must have been seen; it may lag behind, as it is written from time to time."""
        if (
            self.identity is not None
            and not self.fs.exists(layout.CHECKPOINT_BINDING)
            and self.findings.counts["chunks"]
        ):
            self.findings.warning(layout.CHECKPOINT_BINDING, 0, "missing", "the file is missing; the hub writes it")
        for label in sorted(judge.bound):
            what = f"no checkpoint of label {label.hex()} is as bound here"
            self.findings.error(layout.CHECKPOINT_BINDING, 0, "rebuildable", what)

    def _settle(self) -> None:
        """Files that are ahead of the journal: a hub wrote on meanwhile, or the journal was cut."""
        newest, now = self.segments[-1] if self.segments else None, wal.segments(self.fs)
        same = now[-1:] == ([newest.number] if newest else []) and (
            newest is None or self._size(newest.path) == newest.size
        )
        self.findings.settle(written_on=not same)

    def _size(self, path: str) -> int:
        try:
            file = self.fs.open(path)
        except FileNotFoundError:
            return 0
        try:
            return file.size()
        finally:
            file.close()


def _newest_run(numbers: list[int]) -> list[int]:
    """The consecutive segments up to the newest; those before a gap were retired and came back by a crash."""
    run = numbers[-1:]
    for number in reversed(numbers[:-1]):
        if number != run[0] - 1:
            break
        run.insert(0, number)
    return run


def read_json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise MalformedError("not JSON", "limits") from exc
