"""Check of a run: do these entries continue their log? (I1, I2, I3, I6, I8, I9, D-28, D-41, D-189)

Readers, resync, evidence files, bundles, replicas, verify-data and audits ask this question; the rules are here, once.
The check has two halves. `RunCheck` is cheap and goes in order: places, hashes, the tree, times and the numbers of
authors. A run may be checked apart from the entries before it, and is joined to them by its `RunSummary`.
`check_signatures` is expensive and needs no order: it may run in a thread, or over entries of many labels.

Both return every fault as data and go on. A caller has a table from `Rule` to its codes and words, and decides which
fault it reports; `Rule.TIME` is a warning for all of them (D-28). Pure: no clock, no disk, no network.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from hashlib import sha256
from typing import Final, NamedTuple

from veen.core.crypto import ed25519
from veen.core.objects.identity import HubIdentity
from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt
from veen.core.tree.mmr import Mmr


class Rule(Enum):
    """Rules for an entry of a run, each with its sentence."""

    SEQ = "The RECEIPT has the number that follows (spec §2)."
    LABEL = "MSG and RECEIPT are of the label of the run."
    CT_HASH = "ct_hash is the hash of the ciphertext (I1)."
    LEAF = "leaf_hash is that of the MSG (I2)."
    ROOT = "mmr_root is the root after the entry (I3)."
    TIME = "hub_ts is not before that of the entry before; a warning (D-28)."
    ACK_BACK = "prev_ack is not below that of the author's entry before (I6)."
    ACK_AHEAD = "prev_ack names an entry before this one (I6)."
    CLIENT_SEQ = "The author's numbers follow each other (I8, I9, D-189)."
    AUTHOR_SIG = "client_id signed the MSG."
    HUB_SIG = "A key of the hub that was valid at hub_ts signed the RECEIPT (D-41)."
    UNREAD = "A root confirms the leaf that an unreadable entry names; if none does, later roots are not compared."


MAX_WARNINGS: Final = 16  # that a report of a run lists; one hub can cause any number


class Fault(NamedTuple):
    """A broken rule: the entry, the expected value, the actual value.

    Of `HUB_SIG`, `actual` is the key of the hub that signed outside of its validity, if one did. Of `UNREAD`, `actual`
    is the unreadable entry, and `seq` the entry from which roots are not compared.
    """

    rule: Rule
    seq: int
    expected: bytes | int | None = None
    actual: bytes | int | None = None


def warning_of(fault: Fault) -> str:
    """Return the words of the one rule that is a warning in every verifier (D-28)."""
    return f"hub_ts {fault.actual!r} is before {fault.expected!r}, that of the entry before it (D-28)"


# --- the numbers of authors -------------------------------------------------------------------------------------


class AuthorSpan(NamedTuple):
    """First and last entry of one author in a run. `*_unseen` counts the entries of the run before it that nobody
    showed."""

    seq: int  # of the first entry
    first_seq: int  # client_seq
    first_ack: int
    first_unseen: int
    last_seq: int
    last_ack: int
    last_unseen: int


_UNKNOWN: Final = (0, 0, 0)
Lookup = Callable[[bytes], "tuple[int, int] | None"]  # author -> client_seq and prev_ack of the last entry


class Authors:
    """The numbers of the authors of a run: `last < client_seq <= last + 1 + unseen` (I8, I9), prev_ack never back (I6).

    `unseen` counts the entries since the author's last one that nobody showed: withheld, lost, outside of the run, or
    before its first entry. Any of them may have been the author's own.

    A monoid: the run of two adjacent runs is `merge` of theirs, which checks the border. A run with `is_anchored` knows
    the log from its first entry on, if only as unseen, and checks authors that it has not met; any other leaves
    them to `merge`. At most `limit` authors are remembered. Forgetting one widens the range for authors that are not
    remembered, so it never causes a fault. `lookup` knows authors from before the run. Owned by one thread.
    """

    __slots__ = ("_forgotten", "_limit", "_lookup", "_spans", "_start", "is_anchored", "unseen")

    def __init__(
        self, unseen: int = 0, *, is_anchored: bool = True, limit: int | None = None, lookup: Lookup | None = None
    ) -> None:
        self._spans: OrderedDict[bytes, AuthorSpan] = OrderedDict()  # by client_id; with `limit` the latest last
        self._start = self.unseen = unseen
        self._forgotten: int | None = None  # greatest last_seq - last_unseen of those that were forgotten
        self._limit, self._lookup, self.is_anchored = limit, lookup, is_anchored

    @classmethod
    def of(cls, spans: Mapping[bytes, AuthorSpan], unseen: int, *, is_anchored: bool = False) -> "Authors":
        """Return the authors of a run from its summary."""
        authors = cls(unseen, is_anchored=is_anchored)
        authors._spans.update(spans)
        return authors

    @property
    def spans(self) -> Mapping[bytes, AuthorSpan]:
        return self._spans

    def skip(self, count: int = 1) -> None:
        """Count entries that nobody shows."""
        self.unseen += count

    def see(self, author: bytes, seq: int, client_seq: int, prev_ack: int) -> list[Fault]:
        """Check and note the next entry, which has the number `seq`."""
        span = AuthorSpan(seq, client_seq, prev_ack, self.unseen, client_seq, prev_ack, self.unseen)
        return self._join(author, span)

    def merge(self, other: "Authors") -> list[Fault]:
        """Append a run that begins where this one ends; return the faults at the border."""
        faults = []
        for author, span in self._shift_spans(other):
            faults += self._join(author, span)
        self.unseen += other.unseen
        return faults

    def is_followed_by(self, other: "Authors") -> bool:
        """Return True if `merge` would find no fault. The cost is that of the authors of `other`."""
        return not any(self._border(self._spans.get(author), author, span) for author, span in self._shift_spans(other))

    def _shift_spans(self, other: "Authors") -> Iterator[tuple[bytes, AuthorSpan]]:
        """Yield the authors of a run that follows, counted from the beginning of this one."""
        if other.is_anchored:
            raise ValueError("only a run that leaves unknown authors open can follow another one")
        for author, span in other.spans.items():
            first, last = self.unseen + span.first_unseen, self.unseen + span.last_unseen
            yield author, span._replace(first_unseen=first, last_unseen=last)

    def _join(self, author: bytes, span: AuthorSpan) -> list[Fault]:
        before = self._spans.get(author)
        faults = self._border(before, author, span)
        self._spans[author] = span if before is None else AuthorSpan._make(before[:4] + span[4:])
        if self._limit is not None:
            self._spans.move_to_end(author)
            self._forget(self._limit)
        return faults

    def _border(self, before: AuthorSpan | None, author: bytes, span: AuthorSpan) -> list[Fault]:
        """Check the first entry of a span against the last one before it."""
        if before is not None:
            last_seq, last_ack, last_unseen = before[4:]
            top = last_seq
        elif self.is_anchored:
            last_seq, last_ack, last_unseen, top = self._unmet(author)
        else:
            return []
        faults = []
        if not last_seq < span.first_seq <= top + 1 + span.first_unseen - last_unseen:
            faults.append(Fault(Rule.CLIENT_SEQ, span.seq, last_seq + 1, span.first_seq))
        if span.first_ack < last_ack:
            faults.append(Fault(Rule.ACK_BACK, span.seq, last_ack, span.first_ack))
        return faults

    def _forget(self, limit: int) -> None:
        """Forget the author that was not met for longest, if there are too many."""
        if len(self._spans) > limit:
            _, forgotten = self._spans.popitem(last=False)
            reached = forgotten.last_seq - forgotten.last_unseen
            self._forgotten = reached if self._forgotten is None else max(self._forgotten, reached)

    def _unmet(self, author: bytes) -> tuple[int, int, int, int]:
        """Numbers of an author that is not remembered: last client_seq, prev_ack, unseen, and the highest last."""
        if self._lookup is not None and (cursor := self._lookup(author)) is not None:
            return *cursor, self._start, cursor[0]
        return *_UNKNOWN, max(0, self._forgotten or 0)


# --- places, hashes, tree and time ------------------------------------------------------------------------------


class RunSummary(NamedTuple):
    """A run that was checked apart: all that the entries before it need to be joined to it."""

    entries: int
    authors: Mapping[bytes, AuthorSpan]
    unseen: int = 0  # entries whose author is not known
    first_seq: int = 0  # the first entry that could be read; 0 if there is none
    first_ts: int = 0
    last_ts: int = 0  # of the last one
    peaks: tuple[bytes, ...] | None = None  # after its last entry; None if they are not known

    def span(self) -> Authors:
        return Authors.of(self.authors, self.unseen)


class RunCheck:
    """The check of one label, entry by entry. Owned by one thread.

    `tree` is the tree before the first entry, and grows; what the run does not begin with counts as unseen. If only
    its size is known, roots are not compared. `is_followed` is False from there on, and behind an entry of which not
    even the leaf is known. `unread` is the first entry whose leaf was taken on its own word, until a root confirms it.
    """

    __slots__ = ("authors", "is_followed", "label", "last_ts", "nodes", "size", "tree", "unread")

    def __init__(self, label: bytes, tree: Mmr | int, authors: Authors | None = None, *, last_ts: int = 0) -> None:
        self.label, self.last_ts = label, last_ts
        self.is_followed = isinstance(tree, Mmr)
        self.tree = tree if isinstance(tree, Mmr) else Mmr()
        self.size = tree.size if isinstance(tree, Mmr) else tree
        self.authors = Authors(self.size) if authors is None else authors
        self.nodes: list[bytes] = []  # nodes of the tree that the last entry created
        self.unread = 0

    def append(self, msg: Msg | None, receipt: Receipt) -> list[Fault]:
        """Check the next entry but for its signatures, and add its leaf to the tree. Go on after a fault.

        Without MSG the entry is withheld: its author is not known.
        """
        faults = check_pair(msg, receipt, self.label, self.size + 1)
        if msg is None:
            self.authors.skip()
        else:
            faults += self.check_author(msg.client_id, msg.client_seq, msg.prev_ack)
        faults += self.add_leaf(receipt.leaf_hash, receipt.hub_ts, receipt.mmr_root)
        return faults

    def append_unread(self, leaves: Sequence[bytes], root: bytes | None) -> None:
        """Go on behind an entry that cannot be read, with one of the leaves that its bytes name.

        The one that leads to the root it names is taken, else the last one, until a later root confirms it or not.
        """
        self.authors.skip()
        self.size += 1
        if not leaves:
            self.is_followed = False
        if not self.is_followed:
            return
        for leaf in leaves:
            tree = self.tree.copy()
            tree.append(leaf)
            if tree.root() == root:
                self.tree, self.unread = tree, 0
                return
        self.tree.append(leaves[-1])
        self.unread = self.unread or self.size

    def skip(self, count: int) -> None:
        """Go on behind entries of which nothing is known."""
        self.authors.skip(count)
        self.size += count
        if count:
            self.is_followed = False

    def merge(self, run: RunSummary) -> list[Fault]:
        """Append a run that was checked apart; return the faults at the border. Its faults inside are known."""
        faults = self._time_border(run) + self.authors.merge(run.span())
        self.size += run.entries
        self.is_followed = run.peaks is not None
        if run.peaks is not None:
            self.tree = Mmr(self.size, run.peaks)
        if run.first_seq:
            self.last_ts = run.last_ts
        return faults

    def is_followed_by(self, run: RunSummary) -> bool:
        """Return True if `merge` would find no fault. The cost is that of the authors of the run."""
        return not self._time_border(run) and self.authors.is_followed_by(run.span())

    def _time_border(self, run: RunSummary) -> list[Fault]:
        if not run.first_seq or run.first_ts >= self.last_ts:
            return []
        return [Fault(Rule.TIME, run.first_seq, self.last_ts, run.first_ts)]

    def finish(self) -> list[Fault]:
        """End the run: no root follows that could confirm the leaf of an unreadable entry."""
        return self._leave_tree() if self.unread and self.is_followed else []

    def check_author(self, client_id: bytes, client_seq: int, prev_ack: int) -> list[Fault]:
        """Check the author's numbers of the next entry."""
        seq = self.size + 1
        return check_ack(prev_ack, seq) + self.authors.see(client_id, seq, client_seq, prev_ack)

    def check_time(self, hub_ts: int) -> list[Fault]:
        """Check the time of the next entry."""
        return [Fault(Rule.TIME, self.size + 1, self.last_ts, hub_ts)] if hub_ts < self.last_ts else []

    def add_leaf(self, leaf_hash: bytes, hub_ts: int, root: bytes | None) -> list[Fault]:
        """Add the next leaf; check the time, and the root if the RECEIPT still exists."""
        faults = self.check_time(hub_ts)
        self.last_ts = hub_ts
        self.size += 1
        if not self.is_followed:
            return faults
        self.nodes = self.tree.append(leaf_hash)
        if root is None:
            return faults
        if (reached := self.tree.root()) == root:
            self.unread = 0
        elif self.unread:
            faults += self._leave_tree()
        else:
            faults.append(Fault(Rule.ROOT, self.size, reached, root))
        return faults

    def _leave_tree(self) -> list[Fault]:
        self.is_followed = False
        return [Fault(Rule.UNREAD, self.size, actual=self.unread)]


def check_ack(prev_ack: int, seq: int) -> list[Fault]:
    """Check that prev_ack of entry `seq` names an entry before it."""
    return [Fault(Rule.ACK_AHEAD, seq, seq - 1, prev_ack)] if prev_ack >= seq else []


def check_pair(msg: Msg | None, receipt: Receipt | None, label: bytes, seq: int) -> list[Fault]:
    """Check MSG and RECEIPT of one entry against each other and against their place; None: withheld or unreadable."""
    faults = []
    if receipt is not None:
        if receipt.stream_seq != seq:
            faults.append(Fault(Rule.SEQ, seq, seq, receipt.stream_seq))
        if receipt.label != label:
            faults.append(Fault(Rule.LABEL, seq, label, receipt.label))
    if msg is None:
        return faults
    if msg.label != label:
        faults.append(Fault(Rule.LABEL, seq, label, msg.label))
    if sha256(msg.ciphertext).digest() != msg.ct_hash:
        faults.append(Fault(Rule.CT_HASH, seq))
    if receipt is not None and (leaf_hash := msg.leaf_hash()) != receipt.leaf_hash:
        faults.append(Fault(Rule.LEAF, seq, leaf_hash, receipt.leaf_hash))
    return faults


# --- signatures -------------------------------------------------------------------------------------------------


class Pair(NamedTuple):
    """An entry; without MSG it is withheld."""

    msg: Msg | None
    receipt: Receipt


def signature_jobs(msg: Msg | None, receipt: Receipt, identity: HubIdentity | None) -> tuple[bytes, bytes | None]:
    """Return the signatures of an entry as `ed25519.verify_many` takes them, and the hub key they are held to.

    That is the newest key that was valid then. Without one, the signature of the RECEIPT is not among them.
    """
    work = b"" if msg is None else msg.sig + msg.signing_digest() + msg.client_id
    keys = () if identity is None else identity.keys_valid_at(receipt.hub_ts)
    if not keys:
        return work, None
    return work + receipt.hub_sig + receipt.signing_digest() + keys[-1].hub_pk, keys[-1].hub_pk


def check_signatures(
    pairs: Sequence[Pair], identity: HubIdentity | None
) -> tuple[list[list[Fault]], list[bytes | None]]:
    """Verify both signatures of many pairs by one call; return the faults of each pair and the hub key that signed it.

    The pairs may be of many labels and in any order. Without an identity only authors are checked.
    """
    jobs = [(*pair, *signature_jobs(*pair, identity)) for pair in pairs]
    verdicts = iter(ed25519.verify_many(b"".join(work for _, _, work, _ in jobs)))
    unsigned: list[list[Fault]] = []
    signers: list[bytes | None] = []
    for msg, receipt, _, hub_pk in jobs:
        faults = []
        if msg is not None and not next(verdicts):
            faults.append(Fault(Rule.AUTHOR_SIG, receipt.stream_seq))
        signer = hub_pk if hub_pk is not None and next(verdicts) else None
        if signer is None and identity is not None:
            signer, stale = _other_signer(receipt, identity)
            if signer is None:
                faults.append(Fault(Rule.HUB_SIG, receipt.stream_seq, actual=stale))
        unsigned.append(faults)
        signers.append(signer)
    return unsigned, signers


def _other_signer(receipt: Receipt, identity: HubIdentity) -> tuple[bytes | None, bytes | None]:
    """Return the key that signed a RECEIPT and was valid then, and one that signed and was not."""
    digest = receipt.signing_digest()
    stale = None
    for key in reversed(identity.keys):
        if ed25519.verify(key.hub_pk, digest, receipt.hub_sig):
            if key.is_valid_at(receipt.hub_ts):
                return key.hub_pk, None
            stale = stale or key.hub_pk
    return None, stale
