"""`veen id export --stream`: the streams of an identity, read from the hub and verified, as parts of its set (D-72).

The client has to let go of the identity before it can be exported, so what it read waits in files; memory does not
grow with a stream.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from veen.client.portable.set_files import FileWriter, items
from veen.client.read.reading import Entry
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt
from veen.io.local import Fs
from veen.storage.scan import read_file

if TYPE_CHECKING:
    from veen.client.sync import SyncClient

_RECEIPTS, _MESSAGES, _ATTACHMENTS = "receipts", "messages", "attachments"


class Gathered:
    """Streams read from the hub: entries by label and number, their checkpoints, their sealed attachments."""

    def __init__(self, fs: Fs) -> None:
        self._fs = fs
        self._coids: dict[bytes, None] = {}
        self.checkpoints: list[Checkpoint] = []

    def gather(self, client: "SyncClient", streams: Sequence[str]) -> None:
        """Read up to what the hub has signed now, label by label in the order of a set."""
        heads = {head.label_curr: (stream, head) for stream in streams for head in client.checkpoints(stream)}
        self._fs.make_dir(_ATTACHMENTS)
        with FileWriter(self._fs, _RECEIPTS) as receipts, FileWriter(self._fs, _MESSAGES) as messages:
            for label in sorted(heads):
                stream, checkpoint = heads[label]
                for entry in client.read(stream, to_seq=checkpoint.upto_seq, epoch=checkpoint.epoch):
                    receipts.write(entry.receipt.to_bytes())
                    messages.write(entry.msg.to_bytes())
                    self._fetch(client, entry)
                self.checkpoints.append(checkpoint)
            receipts.finish()
            messages.finish()

    def _fetch(self, client: "SyncClient", entry: Entry) -> None:
        for declared in entry.attachments:
            if declared.coid not in self._coids:
                self._fs.replace(f"{_ATTACHMENTS}/{declared.coid.hex()}", client.fetch_attachment(declared.coid))
                self._coids[declared.coid] = None

    def entries(self) -> Iterator[tuple[Msg | None, Receipt]]:
        messages = items(self._fs, _MESSAGES)
        for raw in items(self._fs, _RECEIPTS):
            yield Msg.from_bytes(next(messages)), Receipt.from_bytes(raw)

    def attachments(self) -> Iterator[bytes]:
        return (read_file(self._fs, f"{_ATTACHMENTS}/{coid.hex()}") for coid in self._coids)
