"""Verification of the index: each row is what the log gives, and there are no others.

A damaged database may hold anything in any column, so a lookup that fails is a wrong row.
"""

from collections.abc import Mapping
from typing import Any

from veen.core.errors import FormatError, LimitError
from veen.core.limits import Limits
from veen.storage import layout
from veen.storage.errors import CorruptError
from veen.storage.fsckcontrol import ControlCheck
from veen.storage.fsckfiles import limits_of
from veen.storage.fsckjudge import Judge
from veen.storage.index import META, ClientRow, Index, LabelRow
from veen.storage.scan import Item, LabelFold, Seal

__all__ = ["LabelIndexCheck", "check_index"]


class LabelIndexCheck:
    """The rows of one label. Only the first that is wrong is told."""

    def __init__(self, judge: Judge, label: bytes, row: LabelRow | None) -> None:
        self._judge, self._label, self._row = judge, label, row
        self._clients: dict[bytes, ClientRow] = {}
        self._fault: str | None = None
        self._seen = row is None  # whether the cursor was compared
        if row is not None and judge.index is not None:
            try:
                self._clients = {client.client_id: client for client in judge.index.clients(row.row)}
            except CorruptError as exc:
                self._fault = exc.what

    @property
    def clients(self) -> int:
        return len(self._clients)

    def chunk(self, seal: Seal) -> None:
        index, row = self._judge.index, self._row
        if index is None or row is None or row.active_start <= seal.row.end_seq:
            return
        try:
            good = index.chunk_at(row.row, seal.row.start_seq) == seal.row
        except (CorruptError, TypeError):
            good = False
        if not good:
            self._fault = self._fault or f"the row of chunk {seal.row.start_seq} is wrong"

    def entry(self, item: Item) -> None:
        if item.auth_ref is not None:
            self._judge.spending.add(item.auth_ref, item.hub_ts)
        if item.client_seq == 1:
            self._judge.writer(item)
        if self._fault is not None or self._judge.index is None:
            return
        client = self._clients.get(item.client_id)
        try:
            place = self._judge.index.stream_seq(client.row, item.client_seq) if client else None
        except (CorruptError, TypeError, ValueError):
            place = None
        if place != item.stream_seq:
            self._fault = f"entry {item.stream_seq} of label {self._label.hex()} is not listed"

    def cursors(self, fold: LabelFold, row: LabelRow, limits: list[Limits | None]) -> None:
        """The cursors of the label and of its clients, at the point of the last retirement."""
        self._seen = True
        if fold.to_row(row.active_max_bytes, row.active_max_entries) != row:
            self._fault = self._fault or f"the cursor of label {self._label.hex()} is wrong"
        found = {client.client_id: (client.client_seq, client.prev_ack) for client in self._clients.values()}
        if found != fold.clients:
            self._fault = self._fault or f"a client of label {self._label.hex()} is wrong"
        bounds = [(known.max_chunk_bytes, known.max_checkpoint_interval) for known in limits if known]
        if None not in limits and (row.active_max_bytes, row.active_max_entries) not in bounds:
            self._fault = self._fault or f"the limits of label {self._label.hex()} are wrong"

    def forget(self) -> None:
        """A chunk cannot be read: what its rows must say is not known."""
        self._fault, self._seen = None, True

    def finish(self) -> None:
        if self._fault is None and not self._seen:
            self._fault = f"the cursor of label {self._label.hex()} is wrong"
        if self._fault is not None:
            self._judge.findings.error(layout.INDEX, 0, "rebuildable", self._fault)


def check_index(
    judge: Judge,
    control: ControlCheck,
    meta: Mapping[str, Any],
    rows: Mapping[bytes, LabelRow],
    *,
    clients: int,
    retired_ts: int,
) -> None:
    """What is not a matter of one label. What it must say is known only if the truth is whole."""
    if judge.index is None or not judge.findings.truth_is_whole:
        return
    try:
        _check_counts(judge, judge.index, control, rows, clients)
        default = limits_of(meta["limits"].encode())
        if control.retired_limits is not None and default != control.retired_limits:
            raise CorruptError(layout.INDEX, 0, "its limits are not those of the control journal")
        if meta["control"] != (control.retired.to_bytes() if control.retired else b""):
            raise CorruptError(layout.INDEX, 0, "its last control record is not that of the control journal")
        straight = all(finding.code != "time" for finding in judge.findings.all)
        if (straight and meta["hub_ts"] != retired_ts) or meta["next_client_row"] != clients + 1:
            raise CorruptError(layout.INDEX, 0, "its time or its count of clients is wrong")
        _check_caps(judge, judge.index, default)
        if straight and any(judge.writers.get(row.client_id) != row.first_ts for row in judge.index.writers()):
            raise CorruptError(layout.INDEX, 0, "the first time of a client is wrong")
        if judge.index.policies() != [row for row in control.fold.policies if row.seq <= control.retired_seq]:
            raise CorruptError(layout.INDEX, 0, "its policy records are not those of the control journal")
    except (CorruptError, FormatError, LimitError) as exc:
        what = exc.what if isinstance(exc, CorruptError) else str(exc)
        judge.findings.error(layout.INDEX, 0, "rebuildable", what)


def _check_counts(
    judge: Judge, index: Index, control: ControlCheck, rows: Mapping[bytes, LabelRow], clients: int
) -> None:
    """Every row that must be there was looked up, so equal counts mean that there are no others."""
    retired = control.retired_seq
    expected = {
        "meta": len(META) + 1,
        "labels": sum(opened.seq <= retired for opened in control.fold.labels.values()),
        "clients": clients,
        "entries": sum(row.size for row in rows.values()),
        "chunks": sum(row.checkpoints for row in rows.values()),
        "caps": sum(given.seq <= retired for given in control.fold.caps.values()),
        "writers": len(judge.writers),
        "policies": sum(row.seq <= retired for row in control.fold.policies),
    }
    if (counts := index.counts()) != expected:
        raise CorruptError(layout.INDEX, 0, f"it has {counts} rows, expected {expected}")


def _check_caps(judge: Judge, index: Index, default: Limits) -> None:
    control = judge.control
    for cap in index.caps():
        given = control.caps.get(cap.auth_ref)
        if given is None or given.seq > judge.retired_control:
            raise CorruptError(layout.INDEX, 0, f"nothing authorises token {cap.auth_ref.hex()}")
        if judge.spending.cap_row(cap.auth_ref, given, control, default) != cap:
            raise CorruptError(layout.INDEX, 0, f"the bucket of token {cap.auth_ref.hex()} is wrong")
