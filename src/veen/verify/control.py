"""Verification of the control journal: the file up to the last retirement, then what the write-ahead journal adds."""

from veen.core.errors import FormatError, LimitError, SignatureError, VerifyError
from veen.core.labels import label_of, routing_key_of
from veen.core.limits import Limits
from veen.core.objects.control import ControlRecord
from veen.core.objects.identity import HubIdentity
from veen.io.errors import CorruptError
from veen.io.local import Fs
from veen.storage import layout
from veen.storage.control_state import ControlFold, OpenedLabel, control_records
from veen.storage.findings import Code, Findings, Level
from veen.storage.index import RecordRow, record_row
from veen.verify.files import file_size
from veen.verify.journal import JournalCheck


def label_open_fault(label: bytes, opened: OpenedLabel, identity: HubIdentity | None) -> str | None:
    """Return a fault unless a label that is opened for a stream is that of the stream and its epoch."""
    if opened.stream_id is None or identity is None:
        return None
    if label_of(routing_key_of(identity.hub_id), opened.stream_id, opened.epoch) == label:
        return None
    return f"record {opened.seq} opens a label that is not that of its stream and epoch"


class ControlCheck:
    """Check of the chain, signatures and bodies of all control records; `fold` is their state."""

    def __init__(self, fs: Fs, findings: Findings, level: Level, identity: HubIdentity | None) -> None:
        self._fs, self._findings, self._level, self._identity = fs, findings, level, identity
        self.fold = ControlFold()
        self.file_bytes = 0  # how much of the file is good
        # As of the last retirement, which is what the index must show.
        self.retired: ControlRecord | None = None
        self.retired_limits: Limits | None = None
        self.retired_ts = 0
        self.records: list[RecordRow] = []

    @property
    def retired_seq(self) -> int:
        return self.retired.seq if self.retired else 0

    def run(self, journal: JournalCheck) -> None:
        controls, strict = journal.controls, journal.meta.get("control_bytes")
        first = min(controls, default=None)
        end = 0
        try:
            for offset, record in control_records(self._fs, strict, first if strict is None else None):
                self._record(record, layout.CONTROL, offset)
                end = offset + len(record.to_bytes())
                if (row := record_row(record, offset, end - offset)) is not None:
                    self.records.append(row)
                if (twin := controls.get(record.seq)) is not None and twin[1] != record:
                    what = f"another control record {record.seq} than {layout.CONTROL} has"
                    self._findings.error(twin[0].path, twin[0].offset, "journal", what)
        except CorruptError as exc:
            self._findings.error(exc.path, exc.offset, "control", exc.what)
            end = exc.offset
        soft = max(controls, default=0) > self.fold.seq
        self._note_missing(journal, end, strict, first)
        if strict is not None and end < strict:
            self._findings.error(layout.CONTROL, end, "cut", f"{strict - end} bytes are missing at its end")
        elif self._findings.lacks_control and not self._fs.exists(layout.CONTROL):
            self._findings.error(layout.CONTROL, 0, "missing", "the control journal is missing")
        elif file_size(self._fs, layout.CONTROL) > end and not soft and not self._findings.has(layout.CONTROL):
            self._findings.late_error(layout.CONTROL, end, "control", "bytes behind the last record")
        self.retired, self.retired_ts, self.retired_limits = self.fold.last, self.fold.hub_ts, self.fold.limits
        self.file_bytes = end
        for seq in sorted(controls):
            if seq > self.fold.seq:
                placed, record = controls[seq]
                if seq > self.fold.seq + 1:
                    what = f"control records {self.fold.seq + 1} to {seq - 1} are missing before it"
                    self._findings.error(placed.path, placed.offset, "gap", what)
                    self.fold.last = None  # the chain begins anew
                self._record(record, placed.path, placed.offset)

    def _note_missing(self, journal: JournalCheck, end: int, strict: int | None, first: int | None) -> None:
        """Note missing records: at the end of the file, between file and journal, or with the journal."""
        is_short = strict is not None and end < strict
        is_apart = first is not None and first > self.fold.seq + 1
        is_gone = not self._fs.exists(layout.CONTROL) and first != 1 and bool(self._fs.list(layout.LOG) or journal.rows)
        self._findings.lacks_control = is_short or is_apart or is_gone or journal.is_missing

    def _record(self, record: ControlRecord, path: str, offset: int) -> None:
        try:
            if self.fold.last is None and record.seq > 1 and self._findings.lacks_control:
                self.fold.apply(record)
            else:
                self.fold.add(record)
            self._findings.count("control_records")
            if self._level == "full" and self._identity is not None:
                self._identity.verify_rotation(record)
                self._findings.count("signatures")
        except (VerifyError, FormatError, LimitError) as exc:
            code: Code = "signature" if isinstance(exc, SignatureError) else "control"
            self._findings.error(path, offset, code, f"control record {record.seq}: {exc}")
