"""Stream and epoch of a label (D-23).

A label hides its stream from everyone without the routing key. The hub has that key: it derives the labels of the
candidate streams for the epochs around the current one, and compares. Candidates are the registered and configured
streams, and those of the message's own token. Labels with entries are known forever, by their `label.open` record,
and are not looked up here.
"""

from collections.abc import Iterable
from typing import Final

from veen.core.labels import epoch_at, epoch_window, label_of
from veen.core.lru import Lru
from veen.core.objects.captoken import CapToken

_MAX_WINDOW = 16
_TOKEN_LABELS: Final = 65_536  # labels of recently used tokens; a token may name 1,024 streams

_Places = dict[bytes, tuple[bytes, int]]  # label -> (stream_id, epoch)


class Resolver:
    """Indexes from label to (stream_id, epoch), rebuilt when the epoch or the set of streams changes."""

    def __init__(self, routing_key: bytes, epoch_sec: int, max_epoch_skew_sec: int) -> None:
        self._routing_key, self._epoch_sec = routing_key, epoch_sec
        self.window = min(epoch_window(epoch_sec, max_epoch_skew_sec), _MAX_WINDOW)
        self._streams: set[bytes] = set()
        self._epochs: range = range(0)
        self._known: _Places = {}
        self._tokens: Lru[bytes, _Places] = Lru(_TOKEN_LABELS, weigh=len)  # by auth_ref

    def add(self, stream_ids: Iterable[bytes]) -> None:
        """Add streams that a registration or the configuration names."""
        for stream_id in stream_ids:
            if stream_id not in self._streams:
                self._streams.add(stream_id)
                self._known |= self._derive(stream_id)

    def current_epoch(self, hub_ts: int) -> int:
        return epoch_at(hub_ts, self._epoch_sec)

    def resolve(
        self, label: bytes, hub_ts: int, auth_ref: bytes | None = None, token: CapToken | None = None
    ) -> tuple[bytes, int] | None:
        """Return the stream and epoch of a label around the current epoch, or None. `token` is the message's own."""
        epochs = self._around(self.current_epoch(hub_ts))
        if epochs != self._epochs:
            self._epochs, self._known = epochs, {}
            self._tokens.clear()
            for stream_id in self._streams:
                self._known |= self._derive(stream_id)
        place = self._known.get(label)
        if place is not None or auth_ref is None or token is None:
            return place
        return self._of_token(auth_ref, token).get(label)

    def _of_token(self, auth_ref: bytes, token: CapToken) -> _Places:
        """Return the labels of a token's streams, derived once and not for each message that names none of them."""
        places = self._tokens.get(auth_ref)
        if places is None:
            places = {}
            for stream_id in token.allow.stream_ids:
                places |= self._derive(stream_id)
            self._tokens.put(auth_ref, places)
        return places

    def _around(self, epoch: int) -> range:
        """Return the accepted epochs and one more on each side, so that a near miss is refused as EPOCH (D-24)."""
        if not self._epoch_sec:
            return range(1)
        return range(max(0, epoch - self.window - 1), epoch + self.window + 2)

    def _derive(self, stream_id: bytes) -> _Places:
        return {label_of(self._routing_key, stream_id, epoch): (stream_id, epoch) for epoch in self._epochs}
