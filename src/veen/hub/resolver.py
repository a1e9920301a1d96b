"""Which stream and epoch a label stands for (D-23).

A label hides its stream from everyone without the routing key, and the hub has that key: it derives the labels of
all streams it knows for the epochs around the current one, and looks labels up. Labels that have entries are
known for ever, by their `label.open` record.
"""

from collections.abc import Iterable

from veen.core.labels import epoch_at, epoch_window, label_of

__all__ = ["Resolver"]

_MAX_WINDOW = 16


class Resolver:
    """An index from label to (stream_id, epoch), rebuilt when the epoch or the set of streams changes."""

    def __init__(self, routing_key: bytes, epoch_sec: int, max_epoch_skew_sec: int) -> None:
        self._routing_key, self._epoch_sec = routing_key, epoch_sec
        self.window = min(epoch_window(epoch_sec, max_epoch_skew_sec), _MAX_WINDOW)
        self._streams: set[bytes] = set()
        self._epochs: range = range(0)
        self._known: dict[bytes, tuple[bytes, int]] = {}

    def add(self, stream_ids: Iterable[bytes]) -> None:
        """Streams that a token or a registration names."""
        for stream_id in stream_ids:
            if stream_id not in self._streams:
                self._streams.add(stream_id)
                self._derive(stream_id, self._epochs)

    def current_epoch(self, hub_ts: int) -> int:
        return epoch_at(hub_ts, self._epoch_sec)

    def resolve(self, label: bytes, hub_ts: int) -> tuple[bytes, int] | None:
        """The stream and epoch of a label around the current epoch, or None."""
        epochs = self._around(self.current_epoch(hub_ts))
        if epochs != self._epochs:
            self._epochs, self._known = epochs, {}
            for stream_id in self._streams:
                self._derive(stream_id, epochs)
        return self._known.get(label)

    def _around(self, epoch: int) -> range:
        """One epoch more than is accepted on each side, so that a near miss is told as what it is (D-24)."""
        if not self._epoch_sec:
            return range(1)
        return range(max(0, epoch - self.window - 1), epoch + self.window + 2)

    def _derive(self, stream_id: bytes, epochs: range) -> None:
        for epoch in epochs:
            self._known[label_of(self._routing_key, stream_id, epoch)] = (stream_id, epoch)
