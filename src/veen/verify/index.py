"""Verification of the index: each row follows from the log, and there are no others.

A damaged database may contain anything in any column, so a lookup that fails is a wrong row.
"""

from collections.abc import Mapping
from typing import Any

from veen.core.errors import FormatError, LimitError
from veen.core.limits import Limits
from veen.io.errors import CorruptError
from veen.native import ScannedChunk
from veen.storage import layout
from veen.storage.index import META, ClientRow, Index, LabelRow
from veen.storage.scan import LabelFold, ScannedEntry, Seal
from veen.verify.control import ControlCheck
from veen.verify.entry import DirectoryRules
from veen.verify.files import limits_of


class LabelIndexCheck:
    """The rows of one label. Only the first wrong row is reported."""

    def __init__(self, rules: DirectoryRules, label: bytes, row: LabelRow | None) -> None:
        self._rules, self._label, self._row = rules, label, row
        self._clients: dict[bytes, ClientRow] = {}
        self._fault: str | None = None
        self._seen = row is None  # whether the cursor was compared
        if row is not None and rules.index is not None:
            try:
                self._clients = {client.client_id: client for client in rules.index.clients(row.row)}
            except CorruptError as exc:
                self._fault = exc.what

    @property
    def clients(self) -> int:
        return len(self._clients)

    def chunk(self, seal: Seal) -> None:
        index, row = self._rules.index, self._row
        if index is None or row is None or row.active_start <= seal.row.end_seq:
            return
        try:
            good = index.chunk_at(row.row, seal.row.start_seq) == seal.row
        except (CorruptError, TypeError):
            good = False
        if not good:
            self._fault = self._fault or f"the row of chunk {seal.row.start_seq} is wrong"

    def entry(self, item: ScannedEntry) -> None:
        if item.auth_ref is not None:
            self._rules.spending.add(item.auth_ref, item.hub_ts)
        if item.client_seq == 1:
            self._rules.writer(item.client_id, item.hub_ts)
        if self._fault is not None or self._rules.index is None:
            return
        client = self._clients.get(item.client_id)
        try:
            place = self._rules.index.stream_seq(client.row, item.client_seq) if client else None
        except (CorruptError, TypeError, ValueError):
            place = None
        if place != item.stream_seq:
            self._fault = f"entry {item.stream_seq} of label {self._label.hex()} is not listed"

    def lists(self, chunk: ScannedChunk) -> bool:
        """Return True if all entries of a chunk have the rows that `entry` looks for, as far as it still would."""
        if self._fault is not None or self._rules.index is None:
            return True
        for client_id, _, first_seq, _, last_seq, _, places in chunk.writers:
            client = self._clients.get(client_id)
            try:
                rows = self._rules.index.stream_seqs(client.row, first_seq, last_seq) if client else []
            except CorruptError:
                return False
            if rows != places:
                return False
        return True

    def chunk_entries(self, chunk: ScannedChunk) -> None:
        """Count all entries of a chunk that the index lists, as `entry` does."""
        for auth_ref, _, hub_ts, count in chunk.uses:
            self._rules.spending.add(auth_ref, hub_ts, count)
        for client_id, first_ts, first_seq, *_ in chunk.writers:
            if first_seq == 1:
                self._rules.writer(client_id, first_ts)

    def cursors(self, fold: LabelFold, row: LabelRow, limits: list[Limits | None]) -> None:
        """Check the cursors of the label and of its clients, at the point of the last retirement."""
        self._seen = True
        if fold.to_row(row.active_max_bytes, row.active_max_entries) != row:
            self._fault = self._fault or f"the cursor of label {self._label.hex()} is wrong"
        cursors = {client.client_id: (client.client_seq, client.prev_ack) for client in self._clients.values()}
        if cursors != fold.clients:
            self._fault = self._fault or f"a client of label {self._label.hex()} is wrong"
        bounds = [(limit.max_chunk_bytes, limit.max_checkpoint_interval) for limit in limits if limit]
        if None not in limits and (row.active_max_bytes, row.active_max_entries) not in bounds:
            self._fault = self._fault or f"the limits of label {self._label.hex()} are wrong"

    def forget(self) -> None:
        """Skip a chunk that cannot be read: its rows are unknown."""
        self._fault, self._seen = None, True

    def finish(self) -> None:
        if self._fault is None and not self._seen:
            self._fault = f"the cursor of label {self._label.hex()} is wrong"
        if self._fault is not None:
            self._rules.findings.error(layout.INDEX, 0, "rebuildable", self._fault)


def check_index(
    rules: DirectoryRules,
    control: ControlCheck,
    meta: Mapping[str, Any],
    rows: Mapping[bytes, LabelRow],
    *,
    clients: int,
    retired_ts: int,
) -> None:
    """Check the parts of the index that are not of one label, if the log has no fault."""
    if rules.index is None or not rules.findings.truth_is_whole:
        return
    try:
        _check_counts(rules, rules.index, control, rows, clients)
        default = limits_of(meta["limits"].encode())
        if control.retired_limits is not None and default != control.retired_limits:
            raise CorruptError(layout.INDEX, 0, "its limits are not those of the control journal")
        if meta["control"] != (control.retired.to_bytes() if control.retired else b""):
            raise CorruptError(layout.INDEX, 0, "its last control record is not that of the control journal")
        straight = all(finding.code != "time" for finding in rules.findings.all)
        if (straight and meta["hub_ts"] != retired_ts) or meta["next_client_row"] != clients + 1:
            raise CorruptError(layout.INDEX, 0, "its time or its count of clients is wrong")
        _check_caps(rules, rules.index, default)
        if straight and any(rules.writers.get(row.client_id) != row.first_ts for row in rules.index.writers()):
            raise CorruptError(layout.INDEX, 0, "the first time of a client is wrong")
        if rules.index.policies() != [row for row in control.fold.policies if row.seq <= control.retired_seq]:
            raise CorruptError(layout.INDEX, 0, "its policy records are not those of the control journal")
        if list(rules.index.all_records()) != control.records:
            raise CorruptError(layout.INDEX, 0, "the places of its control records are wrong")
        newest = max(((row.last_ts, row.row, row.label) for row in rows.values() if row.size), default=(0, 0, b""))
        counts = rules.index.counts()
        counted = (counts["labels"], counts["entries"], counts["caps"], newest[2])
        if (meta["label_count"], meta["entry_count"], meta["cap_count"], meta["newest"]) != counted:
            raise CorruptError(layout.INDEX, 0, "its count of labels, entries or tokens, or its newest label, is wrong")
    except (CorruptError, FormatError, LimitError) as exc:
        what = exc.what if isinstance(exc, CorruptError) else str(exc)
        rules.findings.error(layout.INDEX, 0, "rebuildable", what)


def _check_counts(
    rules: DirectoryRules, index: Index, control: ControlCheck, rows: Mapping[bytes, LabelRow], clients: int
) -> None:
    """Compare the counts: every required row was looked up, so equal counts mean that there are no others."""
    retired = control.retired_seq
    expected = {
        "meta": len(META) + 1,
        "labels": sum(opened.seq <= retired for opened in control.fold.labels.values()),
        "clients": clients,
        "entries": sum(row.size for row in rows.values()),
        "chunks": sum(row.checkpoints for row in rows.values()),
        "caps": sum(grant.seq <= retired for grant in control.fold.caps.values()),
        "writers": len(rules.writers),
        "policies": sum(row.seq <= retired for row in control.fold.policies),
        "records": len(control.records),
    }
    if (counts := index.counts()) != expected:
        raise CorruptError(layout.INDEX, 0, f"it has {counts} rows, expected {expected}")


def _check_caps(rules: DirectoryRules, index: Index, default: Limits) -> None:
    control = rules.control
    for cap in index.caps():
        grant = control.caps.get(cap.auth_ref)
        if grant is None or grant.seq > rules.retired_control:
            raise CorruptError(layout.INDEX, 0, f"nothing authorises token {cap.auth_ref.hex()}")
        if rules.spending.cap_row(cap.auth_ref, grant, control, default) != cap:
            raise CorruptError(layout.INDEX, 0, f"the bucket of token {cap.auth_ref.hex()} is wrong")
