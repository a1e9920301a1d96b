"""What verification holds every entry of every label to, beyond its own bytes: order, signatures, authority."""

from dataclasses import dataclass, field

from veen.core import ed25519
from veen.core.errors import VerifyError
from veen.core.hubkeys import HubIdentity
from veen.storage import layout
from veen.storage.controlfold import ControlFold, Spending
from veen.storage.findings import Findings, Level
from veen.storage.fs import Fs
from veen.storage.fsckpool import SignaturePool
from veen.storage.identity import Binding
from veen.storage.index import Index
from veen.storage.labelfiles import HASH_BYTES
from veen.storage.scan import Item, LabelFold

__all__ = ["Journaled", "Judge"]


@dataclass(slots=True)
class Journaled:
    """What the journal holds of one label: the entries first … last, by their hashes."""

    first: int
    hashes: bytearray = field(default_factory=bytearray)

    @property
    def last(self) -> int:
        return self.first + len(self.hashes) // HASH_BYTES - 1

    def agrees(self, item: Item) -> bool:
        """Whether the journal, if it holds an entry at this position, holds the same."""
        if not self.first <= item.stream_seq <= self.last:
            return True
        start = (item.stream_seq - self.first) * HASH_BYTES
        return self.hashes[start : start + HASH_BYTES] == item.entry_hash


@dataclass(slots=True)
class Judge:
    """What all labels are judged by."""

    fs: Fs
    level: Level
    identity: HubIdentity | None
    control: ControlFold
    findings: Findings
    spending: Spending
    index: Index | None
    pool: SignaturePool | None = None  # verifies beside this process; without it each signature is verified at once
    retired_control: int = 0  # seq of the last control record that the index knows
    bound: dict[bytes, Binding] = field(default_factory=dict)
    writers: dict[bytes, int] = field(default_factory=dict)  # retired: when each client was first accepted (D-102)
    _anchored: set[tuple[bytes, int]] = field(default_factory=set)  # anchors that were compared

    def order(self, item: Item, last_ts: int) -> None:
        if item.hub_ts < last_ts:
            what = f"entry {item.stream_seq}: hub_ts is before that of the entry before it (D-28)"
            self.findings.warning(item.path, item.at, "time", what)

    def writer(self, item: Item) -> None:
        """A client's first entry of a label; labels are read one after the other."""
        self.writers[item.client_id] = min(self.writers.get(item.client_id, item.hub_ts), item.hub_ts)

    def anchor(self, label: bytes, fold: LabelFold) -> None:
        """What was anchored after the last entry that was added must be the root after it (D-104)."""
        published = self.control.anchors.get((label, fold.size))
        if published is None:
            return
        self._anchored.add((label, fold.size))
        if any(body.mmr_root != fold.mmr.root() for body in published):
            what = f"the root that was anchored for entry {fold.size} of label {label.hex()} is not the log's"
            self.findings.error(layout.CONTROL, 0, "control", what)

    def anchors_left(self) -> None:
        """An anchor beyond the head of its label: entries were cut off, as in a fork, or the log was rolled back."""
        if self.findings.truth_is_whole:
            for label, upto_seq in sorted(self.control.anchors.keys() - self._anchored):
                what = f"entry {upto_seq} of label {label.hex()} was anchored and is not here"
                self.findings.warning(layout.CONTROL, 0, "cut", what)

    def signatures(self, item: Item) -> None:
        """Who wrote it, who received it, and by what right (I7)."""
        self.findings.count("entries")
        self.findings.count("bytes", item.length)
        if self.level == "full":
            self._count_signatures(item)
            if self.pool is None or (work := self._work_of(item)) is None:
                self.verify(item)
            else:
                self.pool.add(item, work)
        if item.auth_ref is not None and (what := self._capability_fault(item, item.auth_ref)):
            self.findings.error(item.path, item.at, "capability", f"entry {item.stream_seq}: {what}")

    def _count_signatures(self, item: Item) -> None:
        self.findings.count("signatures", (item.msg is not None) + (item.receipt is not None and bool(self.identity)))

    def _work_of(self, item: Item) -> bytes | None:
        """The signatures of an entry for `ed25519.verify_many`; None where more than one hub key may have signed."""
        work = b""
        if (msg := item.msg) is not None:
            work = msg.sig + msg.signing_digest() + msg.client_id
        if (receipt := item.receipt) is not None and self.identity is not None:
            keys = self.identity.keys_valid_at(receipt.hub_ts)
            if len(keys) != 1:
                return None
            work += receipt.hub_sig + receipt.signing_digest() + keys[0].hub_pk
        return work

    def verify(self, item: Item) -> None:
        """The signatures of one entry."""
        what = None
        if item.msg is not None and not ed25519.verify(item.client_id, item.msg.signing_digest(), item.msg.sig):
            what = "sig does not verify under client_id"
        elif item.receipt is not None and self.identity is not None:
            try:
                self.identity.verify_receipt(item.receipt)
            except VerifyError as exc:
                what = str(exc)
        if what is not None:
            self.findings.error(item.path, item.at, "signature", f"entry {item.stream_seq}: {what}")

    def _capability_fault(self, item: Item, auth_ref: bytes) -> str | None:
        given = self.control.caps.get(auth_ref)
        if given is None:
            return "no record authorises its token"
        if given.token.subject_pk != item.client_id:
            return "its token is for another client"
        if not given.issued_at <= item.hub_ts or not given.token.is_live(issued_at=given.issued_at, hub_ts=item.hub_ts):
            return "its token was not valid at this time"
        return None
