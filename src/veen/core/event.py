"""Event: one opened entry of a log, with all an overlay may depend on and nothing else (spec §11, D-79).

Whoever reads a log makes events; overlays fold them. Everything here is a function of the log and the reader's key, so
two readers of one prefix hold equal events.
"""

from dataclasses import dataclass
from typing import Any, Self

from veen.core.copies import Origin, open_copy
from veen.core.objects.payload_hdr import PayloadHdr

Order = tuple[int, bytes, int, int, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One message at its place in the log, opened."""

    stream_id: bytes
    label: bytes
    epoch: int
    stream_seq: int
    leaf_hash: bytes
    client_id: bytes
    auth_ref: bytes | None
    hub_ts: int
    ts: int  # ts*: the greatest hub_ts of the label so far, so that time never runs against stream_seq (D-27)
    hdr: PayloadHdr
    body: bytes  # as it was sealed: hashes and bridges need the very bytes (D-03)
    origin: Origin | None = None  # of a copy that states where it comes from (D-187, D-193)
    placed: int | None = None  # ts* of its own label, where `hub_ts` and `ts` are those of its original

    @classmethod
    def from_message(cls, hdr: PayloadHdr, body: bytes, **place: Any) -> Self:
        """Return the event of a message with this header and body; of a copy, the event that it carries."""
        hdr, body, origin = open_copy(hdr, body)
        return cls(**place, hdr=hdr, body=body, origin=origin)

    @property
    def msg_id(self) -> bytes:
        """The name by which messages are referred to (spec §2): leaf_hash."""
        return self.leaf_hash

    @property
    def order(self) -> Order:
        """The place in the one logical order of all streams and labels (D-27).

        Two hubs may give a stream the same epoch, position and time; leaf_hash then decides, so that no two events tie.
        """
        ts = self.ts if self.placed is None else self.placed
        return ts, self.stream_id, self.epoch, self.stream_seq, self.leaf_hash
