"""Codes and texts of the rules for a run of entries, for rebuild, verify-data and audit.

The rules themselves are in `veen.core.run_check`. The caller decides if the first fault ends the reading (rebuild,
`veen hub verify-data`) or all of them are collected (`veen audit run`). Rules that need more than the run (tokens,
sizes, epochs) are in `veen.verify.entry`.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt
from veen.core.run_check import Fault, Rule, check_pair
from veen.storage.findings import Severity

OTHER_LABEL: Final = "it belongs to another label"
ROOT_FAULT: Final = "mmr_root is not the root after this entry (I3)"
_WORDS: Final = {
    Rule.CT_HASH: ("ct_hash", "MSG: ct_hash is not the hash of the ciphertext (I1)"),
    Rule.LEAF: ("leaf_hash", "leaf_hash is not that of the message (I2)"),
    Rule.ROOT: ("mmr_root", ROOT_FAULT),
    Rule.ACK_AHEAD: ("prev_ack", "prev_ack {0.actual} names an entry that did not exist yet (I6)"),
    Rule.ACK_BACK: ("prev_ack", "prev_ack is {0.actual}, the entry before by this writer had {0.expected} (I6)"),
    Rule.CLIENT_SEQ: ("client_seq", "client_seq is {0.actual}, {0.expected} follows (I8, I9)"),
    Rule.AUTHOR_SIG: ("msg_sig", "sig does not verify under client_id"),
    Rule.TIME: ("time", "hub_ts {0.actual} is before {0.expected}, that of an entry before it (D-28)"),
    Rule.UNREAD: (
        "unverified",
        "roots cannot be checked up to the end of this chunk, since entry {0.actual} is damaged",
    ),
}
_SHORT: Final = {Rule.TIME: "hub_ts is before that of the entry before it (D-28)"}


class EntryFault(NamedTuple):
    """A rule that an entry breaks. `code` and `message` are those of an audit."""

    code: str
    message: str
    severity: Severity = "error"
    short: str = ""  # the words of verify-data, where they differ

    @property
    def what(self) -> str:
        return self.short or self.message


def entry_fault(fault: Fault) -> EntryFault:
    """Return the code and the text of a broken rule that is not about the place of an entry."""
    code, words = _WORDS[fault.rule]
    severity: Severity = "warning" if fault.rule in (Rule.TIME, Rule.UNREAD) else "error"
    return EntryFault(code, words.format(fault), severity, _SHORT.get(fault.rule, ""))


def contradictions(msg: Msg | None, receipt: Receipt | None, label: bytes, stream_seq: int) -> Iterator[EntryFault]:
    """Yield contradictions between MSG and RECEIPT of one entry and with their place; None: not readable."""
    faults = check_pair(msg, receipt, label, stream_seq)
    yield from (entry_fault(fault) for fault in faults if fault.rule is Rule.CT_HASH)
    if msg is not None and msg.label != label:
        yield EntryFault("place", f"its MSG is for label {msg.label.hex()}", short=OTHER_LABEL)
    if receipt is not None and (receipt.label, receipt.stream_seq) != (label, stream_seq):
        what = f"its RECEIPT is for entry {receipt.stream_seq} of label {receipt.label.hex()}"
        short = OTHER_LABEL if receipt.label != label else "its RECEIPT is for another position"
        yield EntryFault("place", what, short=short)
    yield from (entry_fault(fault) for fault in faults if fault.rule is Rule.LEAF)
