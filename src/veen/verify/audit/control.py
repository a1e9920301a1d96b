"""The control journal as an audit reads it: every record, also after a broken one (D-46).

A hub may write while the audit reads: an incomplete record at the end of the file is then in the write-ahead journal.
If the journal does not have it, the file was cut or damaged.
"""

from dataclasses import dataclass, field
from typing import Final

from veen.core.errors import FormatError, LimitError, SignatureError, VeenError, VerifyError
from veen.core.objects.control import ControlRecord
from veen.core.objects.identity import HubIdentity
from veen.io.errors import CorruptError, StorageError
from veen.io.local import Fs
from veen.storage import journal, layout
from veen.storage.control_state import ControlFold, control_records
from veen.verify.audit.findings import LogFinding, reason_of
from veen.verify.control import label_open_fault

_LOOKS: Final = 3  # a running hub may let go of a segment between two looks


@dataclass(slots=True)
class Control:
    """State of the control records, and the entries of the write-ahead journal that no file has."""

    fold: ControlFold = field(default_factory=ControlFold)
    whole: bool = True
    findings: list[LogFinding] = field(default_factory=list)
    records: int = 0
    signatures: int = 0
    journaled: dict[bytes, int] = field(default_factory=dict)  # the last entry of each label in the journal
    segments: list[int] = field(default_factory=list)  # of the write-ahead journal, when it was read
    last: ControlRecord | None = None

    def error(self, offset: int, code: str, message: str, path: str = layout.CONTROL) -> None:
        self.findings.append(LogFinding(path, offset, code, message))

    def add(self, record: ControlRecord, path: str, offset: int, identity: HubIdentity | None) -> None:
        """Apply a record if the hub signed it, even if the chain before it is broken."""
        if path != layout.CONTROL and record.seq > (behind := self.last.seq if self.last else 0) + 1:
            self.whole = False
            self.error(offset, "gap", f"control records {behind + 1} to {record.seq - 1} are missing before it", path)
        else:
            try:
                record.check_follows(self.last)
            except VerifyError as exc:
                self.whole = False
                self.error(offset, "control", str(exc), path)
        self.last = record
        self.records += 1
        try:
            if identity is not None:
                self.signatures += 1
                identity.verify_rotation(record)
            self.fold.apply(record)
        except (VerifyError, FormatError, LimitError) as exc:
            self.whole = False
            said = f"control record {record.seq}: {exc}"
            self.error(offset, "hub_sig" if isinstance(exc, SignatureError) else "control", said, path)


def read_control(fs: Fs, identity: HubIdentity | None, *, verify: bool) -> Control:
    """Read all records of file and journal; with `verify`, check their signatures."""
    control = _read(fs, identity if verify else None)
    for _ in range(_LOOKS):
        if journal.segments(fs) == control.segments:
            break
        control = _read(fs, identity if verify else None)
    if not control.records or not control.segments:  # the newest records are in the journal alone
        control.whole = False
    for label, opened in control.fold.labels.items():
        if (fault := label_open_fault(label, opened, identity)) is not None:
            control.error(0, "control", fault)
    return control


def _read(fs: Fs, identity: HubIdentity | None) -> Control:
    control = Control(segments=journal.segments(fs))
    stopped: CorruptError | None = None
    try:
        for offset, record in control_records(fs):
            control.add(record, layout.CONTROL, offset, identity)
    except CorruptError as exc:
        stopped = exc
    except (StorageError, OSError) as exc:
        stopped = CorruptError(layout.CONTROL, 0, f"it cannot be opened: {reason_of(exc)}")
    last = control.last.seq if control.last else 0
    waiting = _read_journal(fs, control)
    for placed in waiting:
        if isinstance(placed.record, ControlRecord) and placed.record.seq > last:
            if stopped is not None and placed.record.seq == last + 1:
                stopped = None  # under way, or cut off by a crash: the journal has it
            control.add(placed.record, placed.path, placed.offset, identity)
    if stopped is not None:
        control.whole = False
        control.error(stopped.offset, "control", stopped.what)
    return control


def _read_journal(fs: Fs, control: Control) -> list[journal.Placed]:
    """Return the control records of the write-ahead journal; note the last entry that it has of each label."""
    records: list[journal.Placed] = []
    numbers = journal.segments(fs)
    try:
        if not numbers or journal.is_empty(fs):
            return records
        opened = journal.open_segments(fs, journal.newest_run(numbers))
    except FileNotFoundError:
        return records  # let go by a running hub: the caller looks again
    except (StorageError, OSError) as exc:
        control.error(0, "journal", f"it cannot be opened: {reason_of(exc)}", layout.journal_segment(numbers[0]))
        return records
    try:
        for item in journal.walk(opened):
            if not isinstance(item, journal.Placed):
                continue
            if isinstance(item.record, ControlRecord):
                records.append(item)
            else:
                control.journaled[item.record.label] = item.record.stream_seq
    except CorruptError as exc:
        control.error(exc.offset, "journal", exc.what, exc.path)
    except VeenError as exc:
        control.error(0, "journal", str(exc), layout.journal_segment(numbers[0]))
    finally:
        journal.close_segments(opened)
    return records
