"""Where the records of the control journal lie that the API answers with.

The journal only grows, so the index follows it: each record is looked at once, when it is first asked for after
it was written. What is kept per capability is an offset; the records themselves stay on disk.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from typing import Final

from veen.core import cbor
from veen.core.control import (
    AnchorPublish,
    CapAuthorize,
    ControlRecord,
    KeyRotate,
    PolicyAuthority,
    PolicyRevocation,
    StreamRegister,
)
from veen.core.errors import MalformedError
from veen.storage.store import Store

__all__ = ["ControlIndex"]

_SLICE: Final = 1 << 20
_POLICIES: Final = (PolicyRevocation.KIND, PolicyAuthority.KIND)
_NOTED: Final = (CapAuthorize.KIND, StreamRegister.KIND, AnchorPublish.KIND, KeyRotate.KIND, *_POLICIES)
_RECORD: Final = b"\x87\x01"  # an array of 7 items, ver = 1


class ControlIndex:
    """First records by auth_ref and by stream_id, as later ones never count (D-47); all others that are asked for."""

    def __init__(self) -> None:
        self._forget(None)

    def _forget(self, store: Store | None) -> None:
        self._store = store
        self._seen = 0
        # Each place is (offset, length).
        self._caps: dict[bytes, tuple[int, int]] = {}
        self._streams: dict[bytes, tuple[int, int]] = {}
        self._rotations: list[tuple[int, int]] = []
        self._policies: list[tuple[int, tuple[int, int]]] = []  # by seq
        self._anchors: dict[bytes, list[tuple[int, str, tuple[int, int]]]] = {}  # by label: upto_seq, backend

    def follow(self, store: Store) -> None:
        """Look at what was written since the last time; start over if the store was reopened."""
        if store is not self._store:
            self._forget(store)
        while self._seen < store.control_size:
            data = store.read_control(self._seen, _SLICE)
            pos = 0
            while pos < len(data):
                try:
                    end = cbor.item_end(data, pos)
                except MalformedError:
                    break  # it goes on in the next slice
                self._note(data[pos:end], self._seen + pos)
                pos = end
            if not pos:  # a record larger than a slice cannot be: tokens are bounded
                break
            self._seen += pos

    def _note(self, raw: bytes, offset: int) -> None:
        if _kind(raw) not in _NOTED:
            return
        record = ControlRecord.from_bytes(raw)
        body = record.body
        if isinstance(body, CapAuthorize):
            self._caps.setdefault(body.auth_ref, (offset, len(raw)))
        elif isinstance(body, StreamRegister):
            self._streams.setdefault(body.stream_id, (offset, len(raw)))
        elif isinstance(body, AnchorPublish):
            insort(self._anchors.setdefault(body.label, []), (body.upto_seq, body.backend, (offset, len(raw))))
        elif isinstance(body, KeyRotate):
            self._rotations.append((offset, len(raw)))
        else:
            self._policies.append((record.seq, (offset, len(raw))))

    def cap(self, auth_ref: bytes) -> ControlRecord | None:
        """The record that fixed the issued_at of a capability."""
        return self._record(self._caps.get(auth_ref))

    def stream(self, stream_id: bytes) -> ControlRecord | None:
        return self._record(self._streams.get(stream_id))

    def stream_ids(self) -> tuple[bytes, ...]:
        return tuple(sorted(self._streams))

    def rotations(self) -> Iterator[ControlRecord]:
        """By which key each key was introduced, from the first one on."""
        return map(self._present, self._rotations)

    def policies(self, after_seq: int) -> Iterator[ControlRecord]:
        """The policy records behind one of the control journal, in order."""
        start = bisect_right(self._policies, after_seq, key=lambda noted: noted[0])
        for _, place in self._policies[start:]:
            yield self._present(place)

    def anchors(self, label: bytes, from_seq: int) -> Iterator[ControlRecord]:
        """The anchors of a label from an upto_seq on, by upto_seq."""
        anchors = self._anchors.get(label, [])
        for _, _, place in anchors[bisect_left(anchors, from_seq, key=lambda noted: noted[0]) :]:
            yield self._present(place)

    def anchor(self, label: bytes, upto_seq: int, backend: str) -> ControlRecord | None:
        """The first anchor of a checkpoint in a backend."""
        for upto, name, place in self._anchors.get(label, []):
            if (upto, name) == (upto_seq, backend):
                return self._present(place)
        return None

    def anchored_upto(self, label: bytes) -> int:
        anchors = self._anchors.get(label)
        return anchors[-1][0] if anchors else 0

    def _present(self, place: tuple[int, int]) -> ControlRecord:
        record = self._record(place)
        assert record is not None  # noqa: S101 - a place was noted, so it is there
        return record

    def _record(self, place: tuple[int, int] | None) -> ControlRecord | None:
        if place is None or self._store is None:
            return None
        return ControlRecord.from_bytes(self._store.read_control(*place))


def _kind(raw: bytes) -> str:
    """The third item of a record, without decoding the rest."""
    start = cbor.item_end(raw, len(_RECORD))
    return raw[start + 1 : cbor.item_end(raw, start)].decode(errors="replace")
