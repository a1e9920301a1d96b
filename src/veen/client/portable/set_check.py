"""What the entries, checkpoints and attachments of a portable set must fulfil (D-72)."""

from collections.abc import Iterable, Sequence

from veen.client.errors import PortableSetInvalid
from veen.client.portable.set_files import Listed
from veen.core.errors import VerifyError
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.identity import HubIdentity
from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt
from veen.core.tree.mmr import Mmr


class EntryCheck:
    """Receipts and their messages, one after another: order, signatures, and the tree where it begins at entry 1."""

    def __init__(self, hubs: Sequence[HubIdentity]) -> None:
        self.count = 0
        self._hubs = list(hubs)
        self._last: Receipt | None = None
        self._tree: Mmr | None = None  # of the current label, as long as no entry is missing

    def receipt(self, path: str, receipt: Receipt) -> None:
        last = self._last
        if last is not None and (receipt.label, receipt.stream_seq) <= (last.label, last.stream_seq):
            raise PortableSetInvalid(path, f"{_place(receipt)}: not sorted by label and stream_seq")
        self._check_signature(path, receipt)
        if last is None or last.label != receipt.label:
            self._tree = Mmr()
        if self._tree is not None and self._tree.size + 1 == receipt.stream_seq:
            self._tree.append(receipt.leaf_hash)
            if self._tree.root() != receipt.mmr_root:
                raise PortableSetInvalid(path, f"{_place(receipt)}: the entries do not fold into its root (I3)")
        else:
            self._tree = None
        self._last = receipt
        self.count += 1

    def payload(self, path: str, msg: Msg | None, receipt: Receipt) -> None:
        if msg is None:
            raise PortableSetInvalid(path, f"{_place(receipt)}: the message is missing")
        try:
            msg.verify()
        except VerifyError as exc:
            raise PortableSetInvalid(path, f"{_place(receipt)}: {exc}") from exc
        if msg.label != receipt.label or msg.leaf_hash() != receipt.leaf_hash:
            raise PortableSetInvalid(path, f"{_place(receipt)}: the message is not the one of the receipt (I2)")

    def _check_signature(self, path: str, receipt: Receipt) -> None:
        """By one of the hubs. The one that signed the last receipt is asked first."""
        for place, hub in enumerate(self._hubs):
            try:
                hub.verify_receipt(receipt)
            except VerifyError:
                continue
            self._hubs.insert(0, self._hubs.pop(place))
            return
        if self._hubs:
            raise PortableSetInvalid(path, f"{_place(receipt)}: hub_sig is by none of the hub keys")


def check_checkpoints(path: str, checkpoints: Iterable[Checkpoint], hubs: Sequence[HubIdentity]) -> int:
    """How many there are; each signed by one of the hubs, if any is known, and sorted."""
    count, last = 0, None
    for checkpoint in checkpoints:
        place = (checkpoint.label_curr, checkpoint.upto_seq)
        where = f"label {checkpoint.label_curr.hex()[:16]}…, upto_seq {checkpoint.upto_seq}"
        if last is not None and place <= last:
            raise PortableSetInvalid(path, f"{where}: not sorted by label and upto_seq")
        if hubs and not any(_signed(hub, checkpoint) for hub in hubs):
            raise PortableSetInvalid(path, f"{where}: hub_sig is by none of the hub keys")
        last = place
        count += 1
    return count


def check_attachment(listed: Listed) -> None:
    """Its name is the hash of its bytes, which `check_file` has compared with the list."""
    if listed.path.rpartition("/")[2] != listed.hash.hex():
        raise PortableSetInvalid(listed.path, "the attachment is not what its name says")


def _signed(hub: HubIdentity, checkpoint: Checkpoint) -> bool:
    try:
        hub.verify_checkpoint(checkpoint, 0)  # the set does not tell epoch_sec, so any key of the hub may have signed
    except VerifyError:
        return False
    return True


def _place(receipt: Receipt) -> str:
    return f"label {receipt.label.hex()[:16]}…, stream_seq {receipt.stream_seq}"
