"""Lookup of control records for the API; the records themselves stay on disk."""

from collections.abc import Iterator

from veen.core.objects.control import (
    AnchorPublish,
    CapAuthorize,
    CapDerive,
    ControlRecord,
    KeyRotate,
    OuterKey,
    RequestDone,
    StreamRegister,
)
from veen.core.objects.policies import POLICY_BODIES
from veen.storage.index import RecordRow
from veen.storage.store import Store


class ControlIndex:
    """Control records by kind and key. Of records by auth_ref and by stream_id only the first one counts (D-47)."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def cap(self, auth_ref: bytes) -> ControlRecord | None:
        """Return the record that fixed the issued_at of a capability."""
        records = [self._first(kind, auth_ref) for kind in (CapAuthorize.KIND, CapDerive.KIND)]
        return min((record for record in records if record is not None), key=lambda record: record.seq, default=None)

    def stream(self, stream_id: bytes) -> ControlRecord | None:
        return self._first(StreamRegister.KIND, stream_id)

    def stream_ids(self) -> tuple[bytes, ...]:
        return tuple(dict.fromkeys(row.key for row in self._store.control_rows(StreamRegister.KIND)))

    def rotations(self) -> Iterator[ControlRecord]:
        """Return the records that introduced the keys, from the first one on."""
        return map(self._record, self._store.control_rows(KeyRotate.KIND, b""))

    def outer_key(self) -> ControlRecord | None:
        """Return the newest record that binds the key of the outer log."""
        return self.newest(OuterKey.KIND)

    def newest(self, kind: str) -> ControlRecord | None:
        """Return the newest record of a kind whose records have no key."""
        rows = self._store.control_rows(kind, b"", limit=1, last=True)
        return self._record(rows[0]) if rows else None

    def policies(self, after_seq: int, limit: int) -> Iterator[ControlRecord]:
        """Return policy records after a seq of the control journal, in order; at most `limit`."""
        rows = [
            row
            for kind in (body.KIND for body in POLICY_BODIES)
            for row in self._store.control_rows(kind, b"", after_seq=after_seq, limit=limit)
        ]
        return map(self._record, sorted(rows, key=lambda row: row.seq)[:limit])

    def anchors(self, label: bytes, from_seq: int, limit: int = -1) -> Iterator[ControlRecord]:
        """Return the anchors of a label from an upto_seq on, in order; at most `limit`."""
        return map(self._record, self._store.control_rows(AnchorPublish.KIND, label, number=from_seq, limit=limit))

    def anchor(self, label: bytes, upto_seq: int, backend: str) -> ControlRecord | None:
        """Return the first anchor of a checkpoint in a backend."""
        for record in self.anchors_at(label, upto_seq):
            if isinstance(record.body, AnchorPublish) and record.body.backend == backend:
                return record
        return None

    def anchors_at(self, label: bytes, upto_seq: int) -> Iterator[ControlRecord]:
        """Yield all anchors of one checkpoint, in the order in which they were recorded."""
        for record in self.anchors(label, upto_seq):
            if not isinstance(record.body, AnchorPublish) or record.body.upto_seq != upto_seq:
                return
            yield record

    def last_anchored_seq(self, label: bytes) -> int:
        rows = self._store.control_rows(AnchorPublish.KIND, label, limit=1, last=True)
        return rows[0].number if rows else 0

    def outcome(self, request_id: bytes, kind: str, key: bytes = b"") -> ControlRecord | None:
        """Return the record of a kind that an administrative request caused; None if there is none under this id."""
        done = self._first(RequestDone.KIND, request_id)
        if done is None or not isinstance(done.body, RequestDone):
            return None
        seq = done.body.record
        rows = self._store.control_rows(kind, key, after_seq=seq - 1)
        return next((self._record(row) for row in rows if row.seq == seq), None)

    def _first(self, kind: str, key: bytes) -> ControlRecord | None:
        rows = self._store.control_rows(kind, key, limit=1)
        return self._record(rows[0]) if rows else None

    def _record(self, row: RecordRow) -> ControlRecord:
        return ControlRecord.from_bytes(self._store.read_control(row.offset, row.length))
