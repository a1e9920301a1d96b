"""Where the records of the control journal lie that the API answers with.

The journal only grows, so the index follows it: each record is looked at once, when it is first asked for after
it was written. What is kept per capability is an offset; the records themselves stay on disk.
"""

from typing import Final

from veen.core import cbor
from veen.core.control import CapAuthorize, ControlRecord, StreamRegister
from veen.core.errors import MalformedError
from veen.storage.store import Store

__all__ = ["ControlIndex"]

_SLICE: Final = 1 << 20
_RECORD: Final = b"\x87\x01"  # an array of 7 items, ver = 1


class ControlIndex:
    """First records by auth_ref and by stream_id: later ones never count (D-47)."""

    def __init__(self) -> None:
        self._store: Store | None = None
        self._seen = 0
        self._caps: dict[bytes, tuple[int, int]] = {}
        self._streams: dict[bytes, tuple[int, int]] = {}

    def follow(self, store: Store) -> None:
        """Look at what was written since the last time; start over if the store was reopened."""
        if store is not self._store:
            self._store, self._seen, self._caps, self._streams = store, 0, {}, {}
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
        if _kind(raw) not in (CapAuthorize.KIND, StreamRegister.KIND):
            return
        body = ControlRecord.from_bytes(raw).body
        if isinstance(body, CapAuthorize):
            self._caps.setdefault(body.auth_ref, (offset, len(raw)))
        elif isinstance(body, StreamRegister):
            self._streams.setdefault(body.stream_id, (offset, len(raw)))

    def cap(self, auth_ref: bytes) -> ControlRecord | None:
        """The record that fixed the issued_at of a capability."""
        return self._record(self._caps.get(auth_ref))

    def stream(self, stream_id: bytes) -> ControlRecord | None:
        return self._record(self._streams.get(stream_id))

    def stream_ids(self) -> tuple[bytes, ...]:
        return tuple(sorted(self._streams))

    def _record(self, place: tuple[int, int] | None) -> ControlRecord | None:
        if place is None or self._store is None:
            return None
        return ControlRecord.from_bytes(self._store.read_control(*place))


def _kind(raw: bytes) -> str:
    """The third item of a record, without decoding the rest."""
    start = cbor.item_end(raw, len(_RECORD))
    return raw[start + 1 : cbor.item_end(raw, start)].decode(errors="replace")
