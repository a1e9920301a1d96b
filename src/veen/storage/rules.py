"""Rules for entries that rebuilding holds a log to, as well as every verification (I1, I2, I3, I6, I8, I9).

Each rule is written here once and says what is wrong; whoever asks decides whether the first fault ends the reading
(rebuild, `veen hub verify-data`) or all of them are collected (`veen audit run`). Rules that only a verification
needs are in `veen.verify.entry`.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from veen.core.errors import VerifyError
from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt
from veen.storage.findings import Severity

OTHER_LABEL: Final = "it belongs to another label"
ROOT_FAULT: Final = "mmr_root is not the root after this entry (I3)"


class EntryFault(NamedTuple):
    """A rule that an entry breaks. `code` and `message` are those of an audit."""

    code: str
    message: str
    severity: Severity = "error"
    short: str = ""  # the words of verify-data, where they differ

    @property
    def what(self) -> str:
        return self.short or self.message


def contradictions(msg: Msg | None, receipt: Receipt | None, label: bytes, stream_seq: int) -> Iterator[EntryFault]:
    """What MSG and RECEIPT of one entry say against each other and against their position; None: not readable."""
    if msg is not None:
        try:
            msg.check_ct_hash()  # I1
        except VerifyError as exc:
            yield EntryFault("ct_hash", str(exc))
        if msg.label != label:
            yield EntryFault("place", f"its MSG is for label {msg.label.hex()}", short=OTHER_LABEL)
    if receipt is not None and (receipt.label, receipt.stream_seq) != (label, stream_seq):
        what = f"its RECEIPT is for entry {receipt.stream_seq} of label {receipt.label.hex()}"
        short = OTHER_LABEL if receipt.label != label else "its RECEIPT is for another position"
        yield EntryFault("place", what, short=short)
    if msg is not None and receipt is not None and msg.leaf_hash() != receipt.leaf_hash:
        yield EntryFault("leaf_hash", "leaf_hash is not that of the message (I2)")


def prev_ack_fault(prev_ack: int, stream_seq: int) -> EntryFault | None:
    """I6: a writer acknowledges entries that exist."""
    if prev_ack < stream_seq:
        return None
    return EntryFault("prev_ack", f"prev_ack {prev_ack} names an entry that did not exist yet (I6)")


def client_seq_fault(last_seq: int, client_seq: int, slack: int = 0) -> EntryFault | None:
    """I8 and I9: a writer's entries are counted; `slack` entries since the last one may have been the writer's own."""
    if last_seq < client_seq <= last_seq + 1 + slack:
        return None
    return EntryFault("client_seq", f"client_seq is {client_seq}, {last_seq + 1} follows (I8, I9)")
