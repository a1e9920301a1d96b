"""The control journal as an audit reads it: every record, also behind a broken one (D-46).

A running hub writes while we read: a record at the end of the file that is not whole yet is in the write-ahead
journal. Where no journal has it, the file was cut or damaged.
"""

from dataclasses import dataclass, field
from typing import Final

from veen.core.control import ControlRecord
from veen.core.errors import FormatError, LimitError, SignatureError, VeenError, VerifyError
from veen.core.hubkeys import HubIdentity
from veen.core.labels import label_of, routing_key_of
from veen.pipeline.audit.findings import Finding
from veen.storage import journal, layout
from veen.storage.controlfold import ControlFold, control_records
from veen.storage.errors import CorruptError
from veen.storage.fs import Fs

__all__ = ["Control", "read_control"]

_LOOKS: Final = 3  # a running hub may let go of a segment between two looks


@dataclass(slots=True)
class Control:
    """What the records add up to, and what the write-ahead journal holds beyond the files."""

    fold: ControlFold = field(default_factory=ControlFold)
    whole: bool = True
    findings: list[Finding] = field(default_factory=list)
    records: int = 0
    signatures: int = 0
    journaled: dict[bytes, int] = field(default_factory=dict)  # the last entry of each label in the journal
    segments: list[int] = field(default_factory=list)  # of the write-ahead journal, when it was read
    last: ControlRecord | None = None

    def error(self, offset: int, code: str, message: str, path: str = layout.CONTROL) -> None:
        self.findings.append(Finding(path=path, offset=offset, code=code, message=message))

    def add(self, record: ControlRecord, path: str, offset: int, identity: HubIdentity | None) -> None:
        """A record counts if the hub signed it, also where the chain before it is broken."""
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
                identity.verify_control(record)
            self.fold.apply(record)
        except (VerifyError, FormatError, LimitError) as exc:
            self.whole = False
            said = f"control record {record.seq}: {exc}"
            self.error(offset, "hub_sig" if isinstance(exc, SignatureError) else "control", said, path)


def read_control(fs: Fs, identity: HubIdentity | None, *, verify: bool) -> Control:
    """All records that file and journal hold. `verify`: their signatures as well."""
    made = _read(fs, identity if verify else None)
    for _ in range(_LOOKS):
        if journal.segments(fs) == made.segments:
            break
        made = _read(fs, identity if verify else None)
    if identity is not None:
        _check_labels(made, routing_key_of(identity.hub_id))
    return made


def _read(fs: Fs, identity: HubIdentity | None) -> Control:
    made = Control(segments=journal.segments(fs))
    stopped: CorruptError | None = None
    try:
        for offset, record in control_records(fs):
            made.add(record, layout.CONTROL, offset, identity)
    except CorruptError as exc:
        stopped = exc
    last = made.last.seq if made.last else 0
    waiting = _journaled(fs, made)
    for placed in waiting:
        if isinstance(placed.record, ControlRecord) and placed.record.seq > last:
            if stopped is not None and placed.record.seq == last + 1:
                stopped = None  # under way, or cut off by a crash: the journal has it
            made.add(placed.record, placed.path, placed.offset, identity)
    if stopped is not None:
        made.whole = False
        made.error(stopped.offset, "control", stopped.what)
    return made


def _journaled(fs: Fs, made: Control) -> list[journal.Placed]:
    """The control records of the write-ahead journal; notes what it holds of each label."""
    found: list[journal.Placed] = []
    numbers = journal.segments(fs)
    if not numbers or journal.is_empty(fs):
        return found
    try:
        opened = journal.open_segments(fs, numbers)
    except OSError:
        return found
    try:
        for item in journal.walk(opened):
            if not isinstance(item, journal.Placed):
                continue
            if isinstance(item.record, ControlRecord):
                found.append(item)
            else:
                made.journaled[item.record.label] = item.record.stream_seq
    except CorruptError as exc:
        made.error(exc.offset, "journal", exc.what, exc.path)
    except VeenError as exc:
        made.error(0, "journal", str(exc), layout.journal_segment(numbers[0]))
    finally:
        journal.close_segments(opened)
    return found


def _check_labels(made: Control, routing_key: bytes) -> None:
    for label, opened in made.fold.labels.items():
        if opened.stream_id is not None and label_of(routing_key, opened.stream_id, opened.epoch) != label:
            what = f"record {opened.seq} opens a label that is not that of its stream and epoch"
            made.error(0, "control", what)
