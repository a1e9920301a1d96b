"""Checks of the entries, checkpoints and attachments of a portable set (D-72)."""

from collections.abc import Iterable, Sequence
from typing import Final

from veen.client.errors import PortableSetInvalid
from veen.client.portable.set_files import Listed
from veen.core.errors import VerifyError
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.identity import HubIdentity
from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt
from veen.core.run_check import Fault, Pair, Rule, RunCheck, check_signatures
from veen.core.tree.mmr import Mmr

_RECEIPT: Final = {  # messages for faults of a RECEIPT; the first rule is reported first
    Rule.HUB_SIG: "hub_sig is by none of the hub keys",
    Rule.ROOT: "the entries do not fold into its root (I3)",
}
_MESSAGE: Final = {  # and of its MSG
    Rule.CT_HASH: "MSG: ct_hash is not the hash of the ciphertext (I1)",
    Rule.AUTHOR_SIG: "MSG: sig does not verify under client_id",
    Rule.LABEL: "the message is not the one of the receipt (I2)",
    Rule.LEAF: "the message is not the one of the receipt (I2)",
    Rule.ACK_AHEAD: "prev_ack {0.actual} names an entry that did not exist yet (I6)",
    Rule.ACK_BACK: "prev_ack goes back from {0.expected} to {0.actual} (I6)",
    Rule.CLIENT_SEQ: "client_seq is {0.actual}, {0.expected} follows (I8, I9)",
}


class EntryCheck:
    """The check of receipts and their messages, one after another: sorted, signed, and each label one run."""

    def __init__(self, hubs: Sequence[HubIdentity]) -> None:
        self.count = 0
        self._hubs = list(hubs)
        self._check = RunCheck(bytes(32), Mmr())

    def add(self, path: str, receipt: Receipt, payloads: str, msg: Msg | None) -> None:
        """Check the next entry. PortableSetInvalid names the file of the RECEIPT or of the MSG."""
        if (receipt.label, receipt.stream_seq) <= (self._check.label, self._check.size):
            raise PortableSetInvalid(path, f"{_place(receipt)}: not sorted by label and stream_seq")
        if receipt.label != self._check.label:
            self._check = RunCheck(receipt.label, Mmr())
        self._check.skip(receipt.stream_seq - self._check.size - 1)
        faults = {
            fault.rule: fault for fault in (*self._check.append(msg, receipt), *self._check_signatures(msg, receipt))
        }
        for where, words in ((path, _RECEIPT), (payloads, _MESSAGE)):
            for rule in words:
                if rule in faults:
                    raise PortableSetInvalid(where, f"{_place(receipt)}: {words[rule].format(faults[rule])}")
        self.count += 1

    def _check_signatures(self, msg: Msg | None, receipt: Receipt) -> list[Fault]:
        """Return faults of the signatures. The hub that signed the last receipt is tried first."""
        faults = check_signatures([Pair(msg, receipt)], None)[0][0]
        for place, hub in enumerate(self._hubs):
            if not check_signatures([Pair(None, receipt)], hub)[0][0]:
                self._hubs.insert(0, self._hubs.pop(place))
                return faults
        return [*faults, Fault(Rule.HUB_SIG, receipt.stream_seq)] if self._hubs else faults


def check_checkpoints(path: str, checkpoints: Iterable[Checkpoint], hubs: Sequence[HubIdentity]) -> int:
    """Check that checkpoints are sorted and signed by one of the hubs, if any is known; return their number."""
    count, last = 0, None
    for checkpoint in checkpoints:
        place = (checkpoint.label_curr, checkpoint.upto_seq)
        where = f"label {checkpoint.label_curr.hex()[:16]}…, upto_seq {checkpoint.upto_seq}"
        if last is not None and place <= last:
            raise PortableSetInvalid(path, f"{where}: not sorted by label and upto_seq")
        if hubs and not any(_has_signed(hub, checkpoint) for hub in hubs):
            raise PortableSetInvalid(path, f"{where}: hub_sig is by none of the hub keys")
        last = place
        count += 1
    return count


def check_attachment(listed: Listed) -> None:
    """Check that the name is the hash of the bytes, which `check_file` has compared with the list."""
    if listed.path.rpartition("/")[2] != listed.hash.hex():
        raise PortableSetInvalid(listed.path, "the attachment is not what its name says")


def _has_signed(hub: HubIdentity, checkpoint: Checkpoint) -> bool:
    try:
        hub.verify_checkpoint(checkpoint, 0)  # the set has no epoch_sec, so any key of the hub may have signed
    except VerifyError:
        return False
    return True


def _place(receipt: Receipt) -> str:
    return f"label {receipt.label.hex()[:16]}…, stream_seq {receipt.stream_seq}"
