"""The one check of a run (HOUSE §3, D-189): the law of authors first, then every rule, alone and after a fault."""

from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import pairwise, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veen.core.crypto.ed25519 import SigningKey
from veen.core.labels import label_of
from veen.core.objects.identity import HubIdentity
from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt
from veen.core.run_check import (
    Authors,
    Fault,
    Pair,
    Rule,
    RunCheck,
    RunSummary,
    check_pair,
    check_signatures,
    signature_jobs,
    warning_of,
)
from veen.core.tree.mmr import Mmr

ALICE, BOB, CAROL = (SigningKey(bytes([n]) * 32) for n in (1, 2, 3))
HUB, NEXT, STRANGER = (SigningKey(bytes([n]) * 32) for n in (7, 8, 9))
LABEL, OTHER = (label_of(b"r" * 32, bytes([n]) * 32, 0) for n in (1, 2))
PROFILE = b"p" * 32
START = 1_000


# --- the law of authors -------------------------------------------------------------------------------------------


@st.composite
def entries(draw):
    """A log of up to 30 entries by up to 4 authors: None is not shown, others are author, client_seq, prev_ack.

    About half of them are as a hub admits them; the rest has numbers that are repeated, left out or too far ahead.
    """
    faulty = draw(st.booleans())
    log: list[tuple[bytes, int, int] | None] = []
    last: dict[bytes, tuple[int, int]] = {}
    for seq in range(1, draw(st.integers(0, 30)) + 1):
        author = bytes([draw(st.integers(0, 3))])
        client_seq, prev_ack = last.get(author, (0, 0))
        client_seq, prev_ack = client_seq + 1, draw(st.integers(prev_ack, max(prev_ack, seq - 1)))
        if faulty and draw(st.integers(0, 3)) == 0:
            client_seq = max(0, client_seq + draw(st.integers(-3, 3)))
            prev_ack = max(0, prev_ack + draw(st.integers(-3, 3)))
        last[author] = client_seq, prev_ack
        log.append(None if draw(st.integers(0, 4)) == 0 else (author, client_seq, prev_ack))
    return log


def rule_of_authors(log, unseen=0):
    """D-189 as a sentence: each entry of an author against the one before, with the unseen entries in between."""
    faults = []
    authors: dict[bytes, tuple[int, int, int]] = {}
    for seq, entry in enumerate(log, start=1):
        if entry is None:
            continue
        author, client_seq, prev_ack = entry
        before, last, ack = authors.get(author, (0, 0, 0))
        between = sum(other is None for other in log[before : seq - 1]) + (0 if before else unseen)
        if not last < client_seq <= last + 1 + between:
            faults.append(Fault(Rule.CLIENT_SEQ, seq, last + 1, client_seq))
        if prev_ack < ack:
            faults.append(Fault(Rule.ACK_BACK, seq, ack, prev_ack))
        authors[author] = seq, client_seq, prev_ack
    return faults


def summarized(log, first=1, **options):
    """Authors of a part of a log, and the faults inside."""
    authors, faults = Authors(**options), []
    for seq, entry in enumerate(log, start=first):
        if entry is None:
            authors.skip()
        else:
            faults += authors.see(entry[0], seq, *entry[1:])
    return authors, faults


def value(authors):
    return dict(authors.spans), authors.unseen, authors.is_anchored


def ordered(faults):
    return sorted(faults, key=lambda fault: (fault.seq, fault.rule.name))


@given(entries(), st.integers(0, 3))
def test_authors_follow_the_rule_entry_by_entry(log, unseen):
    """D-189: last < client_seq <= last + 1 + unseen; prev_ack never goes back (I6)."""
    assert summarized(log, unseen=unseen)[1] == rule_of_authors(log, unseen)


@given(entries(), st.lists(st.integers(0, 30), max_size=5), st.integers(0, 3))
def test_runs_cut_anywhere_and_joined_are_the_whole_run(log, cuts, unseen):
    """HOUSE §3, the monoid law: the joined summary equals the whole, and its faults are those of the sequential
    check."""
    whole, faults = summarized(log, unseen=unseen)
    bounds = [0, *sorted(min(cut, len(log)) for cut in cuts), len(log)]
    joined, faults_joined = Authors(unseen), []
    for start, end in pairwise(bounds):
        part, inside = summarized(log[start:end], start + 1, is_anchored=False)
        faults_joined += inside + joined.merge(part)
    assert value(joined) == value(whole)
    assert ordered(faults_joined) == ordered(faults) == ordered(rule_of_authors(log, unseen))


@given(entries(), st.integers(0, 30), st.integers(0, 30))
def test_it_does_not_matter_in_which_order_runs_are_joined(log, one, other):
    """(a ⊕ b) ⊕ c = a ⊕ (b ⊕ c), faults included; a run of nothing changes nothing."""
    first, second = sorted((min(one, len(log)), min(other, len(log))))

    def parts():
        bounds = pairwise((0, first, second, len(log)))
        return [summarized(log[start:end], start + 1, is_anchored=False)[0] for start, end in bounds]

    a, b, c = parts()
    left = a.merge(b) + a.merge(c) + a.merge(Authors(is_anchored=False))
    d, e, f = parts()
    right = e.merge(f) + d.merge(e)
    assert value(a) == value(d)
    assert ordered(left) == ordered(right)


def test_a_new_author_after_a_repeated_one_cannot_begin_anywhere():
    """HOUSE §3: the fault of the first draft."""
    log = [(b"a", 1, 0), (b"a", 2, 0), (b"a", 3, 0), (b"b", 4, 0)]
    assert summarized(log)[1] == [Fault(Rule.CLIENT_SEQ, 4, 1, 4)]
    for cut in range(5):
        joined, _ = summarized(log[:cut])
        part, _ = summarized(log[cut:], cut + 1, is_anchored=False)
        faults = summarized(log[:cut])[1] + joined.merge(part)
        assert [fault.rule for fault in faults] == [Rule.CLIENT_SEQ]


@given(entries(), st.integers(1, 3), st.integers(0, 3))
def test_forgetting_authors_causes_no_fault(log, limit, unseen):
    """HOUSE §3: forgetting an author widens the range, never closes it."""
    authors, faults = summarized(log, unseen=unseen, limit=limit)
    assert len(authors.spans) <= limit
    assert {(fault.rule, fault.seq) for fault in faults} <= {
        (fault.rule, fault.seq) for fault in rule_of_authors(log, unseen)
    }


def test_forgetting_an_author_opens_the_range_no_wider_than_its_numbers():
    authors, _ = summarized([(b"a", 1, 0), (b"a", 2, 0), (b"b", 1, 0), (b"c", 1, 0)], limit=2)
    assert set(authors.spans) == {b"b", b"c"}
    assert authors.see(b"a", 5, 3, 0) == []
    assert authors.see(b"d", 6, 4, 0) == [Fault(Rule.CLIENT_SEQ, 6, 1, 4)]


def test_a_forgotten_author_widens_the_range_by_what_was_unseen_since():
    """Nobody showed the first entry, which may have been anybody's; the numbers of the author before it are known."""
    authors, _ = summarized([None, (b"a", 1, 0), (b"b", 1, 0), (b"c", 1, 0)], limit=2)
    assert authors.see(b"d", 5, 2, 0) == []
    assert authors.see(b"e", 6, 3, 0) == [Fault(Rule.CLIENT_SEQ, 6, 1, 3)]


def test_the_greatest_number_that_was_forgotten_counts():
    authors, _ = summarized([*((b"a", number, 0) for number in (1, 2, 3)), (b"b", 1, 0), (b"c", 1, 0)], limit=1)
    assert authors.see(b"d", 6, 4, 0) == []
    assert authors.see(b"e", 7, 6, 0) == [Fault(Rule.CLIENT_SEQ, 7, 1, 6)]


def test_a_run_that_follows_is_compared_with_the_authors_that_are_looked_up():
    cursors = {b"a": (4, 2)}
    for client_seq, follows in ((5, True), (4, False), (6, False)):
        part, _ = summarized([(b"a", client_seq, 2)], 9, is_anchored=False)
        assert Authors(lookup=cursors.get).is_followed_by(part) == follows
        assert (Authors(lookup=cursors.get).merge(part) == []) == follows


def test_authors_of_a_summary_are_those_that_it_has():
    authors, _ = summarized([None, (b"a", 1, 0)], is_anchored=False)
    for is_anchored in (True, False):
        again = Authors.of(authors.spans, authors.unseen, is_anchored=is_anchored)
        assert value(again) == (authors.spans, 1, is_anchored)
    assert value(RunSummary(2, authors.spans, 1).span()) == value(authors)


def test_an_author_that_was_met_again_is_not_the_one_to_forget():
    authors, _ = summarized([(b"a", 1, 0), (b"b", 1, 0), (b"a", 2, 0), (b"c", 1, 0)], limit=2)
    assert set(authors.spans) == {b"a", b"c"}


def test_authors_from_before_the_run_are_looked_up_once():
    cursors = {b"a": (4, 2)}
    authors = Authors(lookup=cursors.get)
    assert authors.see(b"a", 9, 5, 2) == []
    assert authors.see(b"a", 10, 6, 2) == []
    assert Authors(lookup=cursors.get).see(b"a", 9, 6, 1) == [
        Fault(Rule.CLIENT_SEQ, 9, 5, 6),
        Fault(Rule.ACK_BACK, 9, 2, 1),
    ]
    assert Authors(lookup=cursors.get).see(b"b", 9, 2, 0) == [Fault(Rule.CLIENT_SEQ, 9, 1, 2)]


def test_a_run_that_knows_its_beginning_cannot_follow_another():
    with pytest.raises(ValueError, match=r"^only a run that leaves unknown authors open can follow another one$"):
        Authors().merge(Authors())


# --- one run -------------------------------------------------------------------------------------------------------


def message(key=ALICE, client_seq=1, prev_ack=0, ciphertext=b"sealed", label=LABEL):
    return Msg.compose(
        key,
        profile_id=PROFILE,
        label=label,
        client_seq=client_seq,
        prev_ack=prev_ack,
        auth_ref=None,
        ciphertext=ciphertext,
    )


def signed(receipt, key=HUB):
    return replace(receipt, hub_sig=key.sign(receipt.signing_digest()))


def receipts_of(messages, *, times=None):
    tree = Mmr()
    for seq, msg in enumerate(messages, start=1):
        tree.append(msg.leaf_hash())
        hub_ts = START + seq if times is None else times[seq - 1]
        yield Receipt.issue(
            HUB, label=LABEL, stream_seq=seq, leaf_hash=msg.leaf_hash(), mmr_root=tree.root(), hub_ts=hub_ts
        )


MESSAGES = (
    message(),
    message(BOB, 1, 1),
    message(ALICE, 2, 2),
    message(ALICE, 3, 2),
    message(BOB, 2, 4),
    message(CAROL, 1, 5),
)
PAIRS = tuple(map(Pair, MESSAGES, receipts_of(MESSAGES)))


def tree_of(size):
    tree = Mmr()
    for pair in PAIRS[:size]:
        tree.append(pair.receipt.leaf_hash)
    return tree


def faults_of(pairs, first=1, **options):
    check = RunCheck(LABEL, tree_of(first - 1), **options)
    return [fault for msg, receipt in pairs for fault in check.append(msg, receipt)]


def told(*messages, times=None):
    """Faults of a log that a hub signed, in which everything fits but what its authors and its clock say."""
    return faults_of(zip(messages, receipts_of(messages, times=times), strict=True))


def changed(number, msg=None, receipt=None):
    """The run with changes to the fields of one entry, from 1."""
    pair = PAIRS[number - 1]
    pair = Pair(replace(pair.msg, **msg or {}), replace(pair.receipt, **receipt or {}))
    return (*PAIRS[: number - 1], pair, *PAIRS[number:])


@pytest.mark.parametrize("first", range(1, 7))
def test_an_honest_run_has_no_fault_wherever_it_begins(first):
    assert faults_of(PAIRS[first - 1 :], first) == []


@pytest.mark.parametrize("withheld", range(1, 7))
def test_a_withheld_entry_keeps_the_tree_whole_and_may_have_been_anybodys(withheld):
    pairs = [Pair(None, pair.receipt) if pair.receipt.stream_seq == withheld else pair for pair in PAIRS]
    assert faults_of(pairs) == []


def test_the_number_that_follows():
    """SEQ."""
    assert faults_of(changed(3, receipt={"stream_seq": 4})) == [Fault(Rule.SEQ, 3, 3, 4)]
    assert faults_of(PAIRS[1:2], 1)[0] == Fault(Rule.SEQ, 1, 1, 2)


def test_the_label_of_a_receipt():
    """LABEL."""
    assert faults_of(changed(3, receipt={"label": OTHER})) == [Fault(Rule.LABEL, 3, LABEL, OTHER)]


def test_the_label_of_a_message():
    """LABEL: also if the leaf in the RECEIPT is that of the message."""
    foreign = message(ALICE, 2, 2, label=OTHER)
    assert told(*MESSAGES[:2], foreign, *MESSAGES[3:]) == [Fault(Rule.LABEL, 3, LABEL, OTHER)]


def test_the_hash_of_the_ciphertext():
    """CT_HASH (I1): the leaf does not cover the ciphertext, only its hash."""
    assert faults_of(changed(3, msg={"ciphertext": b"others"})) == [Fault(Rule.CT_HASH, 3)]


def test_the_leaf_of_the_message():
    """LEAF (I2)."""
    expected, other = MESSAGES[2].leaf_hash(), MESSAGES[4].leaf_hash()
    faults = faults_of(changed(3, receipt={"leaf_hash": other}))
    assert faults[0] == Fault(Rule.LEAF, 3, expected, other)
    assert [(fault.rule, fault.seq) for fault in faults[1:]] == [(Rule.ROOT, seq) for seq in (3, 4, 5, 6)]


@pytest.mark.req("INV-03")
def test_the_root_after_the_entry():
    """ROOT (I3); the entries after it are judged by the leaves."""
    expected = PAIRS[2].receipt.mmr_root
    assert faults_of(changed(3, receipt={"mmr_root": b"r" * 32})) == [Fault(Rule.ROOT, 3, expected, b"r" * 32)]


def test_a_time_before_that_of_the_entry_before():
    """TIME (D-28): once, where it goes back."""
    times = [START, START + 9, START + 4, START + 4, START + 8, START + 9]
    assert told(*MESSAGES, times=times) == [Fault(Rule.TIME, 3, START + 9, START + 4)]
    assert faults_of(PAIRS[:1], last_ts=START + 2) == [Fault(Rule.TIME, 1, START + 2, START + 1)]


def test_prev_ack_ahead():
    """ACK_AHEAD (I6): not even the entry itself."""
    for prev_ack in (3, 4, 99):
        faults = told(*MESSAGES[:2], message(CAROL, 1, prev_ack))
        assert faults == [Fault(Rule.ACK_AHEAD, 3, 2, prev_ack)]
    assert told(*MESSAGES[:2], message(CAROL, 1, 2)) == []


def test_prev_ack_goes_back():
    """ACK_BACK (I6), per author."""
    assert told(*MESSAGES[:3], message(ALICE, 3, 1)) == [Fault(Rule.ACK_BACK, 4, 2, 1)]
    assert told(*MESSAGES[:3], message(BOB, 2, 1)) == []


@pytest.mark.parametrize("client_seq", [0, 1, 2, 4, 9])
def test_an_authors_numbers_follow_each_other(client_seq):
    """CLIENT_SEQ (I8, I9)."""
    assert told(*MESSAGES[:3], message(ALICE, client_seq, 2)) == [Fault(Rule.CLIENT_SEQ, 4, 3, client_seq)]


@pytest.mark.parametrize(("client_seq", "good"), [(0, False), (1, True), (4, True), (5, False)])
def test_an_author_from_before_the_run_has_numbered_no_more_than_was_there(client_seq, good):
    """CLIENT_SEQ (D-189): three entries that were not shown."""
    messages = (*MESSAGES[:3], message(CAROL, client_seq, 3))
    pair = Pair(messages[3], list(receipts_of(messages))[3])
    assert faults_of([pair], 4) == ([] if good else [Fault(Rule.CLIENT_SEQ, 4, 1, client_seq)])


def test_the_clock_may_begin_with_zero():
    check = RunCheck(LABEL, Mmr())
    assert (check.last_ts, check.unread) == (0, 0)
    assert check.check_time(0) == []


def test_an_erased_entry_has_no_root_to_compare():
    check = RunCheck(LABEL, Mmr())
    assert check.check_author(ALICE.public, 1, 0) == []
    assert check.add_leaf(MESSAGES[0].leaf_hash(), START, None) == []
    assert check.nodes == [MESSAGES[0].leaf_hash()]
    assert (check.tree.size, check.last_ts) == (1, START)


def test_all_faults_of_an_entry_are_named_and_the_check_goes_on():
    pair = Pair(replace(message(CAROL, 9, 99, label=OTHER), ciphertext=b""), replace(PAIRS[2].receipt, label=OTHER))
    pair = pair._replace(receipt=replace(pair.receipt, stream_seq=8, hub_ts=1, mmr_root=b"r" * 32))
    faults = faults_of((*PAIRS[:2], pair))
    assert {fault.rule for fault in faults} == set(Rule) - {Rule.ACK_BACK, Rule.AUTHOR_SIG, Rule.HUB_SIG, Rule.UNREAD}
    assert {fault.seq for fault in faults} == {3}


def test_an_entry_of_which_a_part_cannot_be_read_is_judged_by_the_rest():
    msg, receipt = PAIRS[2]
    assert check_pair(None, None, LABEL, 3) == []
    assert check_pair(msg, None, OTHER, 3) == [Fault(Rule.LABEL, 3, OTHER, LABEL)]
    assert check_pair(None, receipt, LABEL, 4) == [Fault(Rule.SEQ, 4, 4, 3)]


# --- entries that cannot be read, and runs that are checked apart ---------------------------------------------------


@dataclass(frozen=True)
class Read:
    """An entry that was read; without `root` its RECEIPT is erased."""

    author: bytes
    client_seq: int
    prev_ack: int
    leaf: bytes
    hub_ts: int
    root: bytes | None


@dataclass(frozen=True)
class Unread:
    """An entry that cannot be read: the leaves that its bytes name, and their root."""

    leaves: tuple[bytes, ...]
    root: bytes | None


def leaf_of(seq):
    return sha256(b"leaf %d" % seq).digest()


FALSE, FALSE_ROOT = (
    st.sampled_from([sha256(b"false %s %d" % (kind, number)).digest() for number in range(3)])
    for kind in (b"leaf", b"root")
)


def root_after(seq):
    tree = Mmr()
    for number in range(1, seq + 1):
        tree.append(leaf_of(number))
    return tree.root()


ROOTS = [b"", *(root_after(seq) for seq in range(1, 13))]


@st.composite
def unread(draw, seq):
    """What a damaged entry may still say: its true leaf and root, others, or none."""
    leaves = st.lists(st.one_of(st.just(leaf_of(seq)), FALSE), max_size=2, unique=True)
    return Unread(tuple(draw(leaves)), draw(st.one_of(st.just(ROOTS[seq]), st.none(), FALSE_ROOT)))


@st.composite
def steps(draw, *, faulty=True):
    """A run of up to 12 entries: read, damaged, or (None) lost; with `faulty`, hub and authors may lie as well."""
    run: list[Read | Unread | None] = []
    numbers: dict[bytes, int] = {}
    for seq in range(1, draw(st.integers(0, 12)) + 1):
        kind = draw(st.sampled_from(["read", "read", "read", "unread", "lost"] if faulty else ["read", "unread"]))
        author = bytes([draw(st.integers(0, 2))])
        numbers[author] = numbers.get(author, 0) + 1 + (draw(st.sampled_from([0, 0, 0, 1, -1])) if faulty else 0)
        if kind == "read":
            hub_ts = START + (draw(st.integers(0, 5)) if faulty else seq)
            roots = [ROOTS[seq]] * 4 + ([draw(FALSE_ROOT), None] if faulty else [])
            prev_ack = draw(st.integers(0, seq)) if faulty else 0
            run.append(Read(author, numbers[author], prev_ack, leaf_of(seq), hub_ts, draw(st.sampled_from(roots))))
        else:
            run.append(draw(unread(seq)) if kind == "unread" else None)
    return run


def step(check, entry):
    if entry is None:
        check.skip(1)
        return []
    if isinstance(entry, Unread):
        check.append_unread(entry.leaves, entry.root)
        return []
    faults = check.check_author(entry.author, entry.client_seq, entry.prev_ack)
    return faults + check.add_leaf(entry.leaf, entry.hub_ts, entry.root)


def checked(check, run):
    return [fault for entry in run for fault in step(check, entry)]


def summary_of(check, run):
    start = check.size - len(run)
    read = [(start + place, entry.hub_ts) for place, entry in enumerate(run, start=1) if isinstance(entry, Read)]
    seq, hub_ts = read[0] if read else (0, 0)
    peaks = check.tree.peaks() if check.is_followed else None
    return RunSummary(len(run), check.authors.spans, check.authors.unseen, seq, hub_ts, check.last_ts, peaks)


def state_of(check):
    tree = check.tree.root() if check.is_followed and check.size else None
    return check.size, check.is_followed, tree, check.last_ts, value(check.authors)


@given(steps(), st.lists(st.integers(0, 12), max_size=4))
def test_chunks_checked_apart_and_joined_are_the_whole_run(run, cuts):
    """The law of a run: cut anywhere but behind a leaf that no root has confirmed, each part is checked from the tree
    before it, or from its size where nobody knows that, and joined. Faults and state are those of the whole."""
    whole, joined = RunCheck(LABEL, Mmr()), RunCheck(LABEL, Mmr())
    faults, faults_joined, part = [], [], RunCheck(LABEL, Mmr(), Authors(is_anchored=False))
    start = 0
    for end, entry in enumerate(run, start=1):
        faults += step(whole, entry)
        faults_joined += step(part, entry)
        if end == len(run) or (end in cuts and not whole.unread):
            summary = summary_of(part, run[start:end])
            is_followed_by = joined.is_followed_by(summary)
            border = joined.merge(summary)
            assert is_followed_by == (not border)
            faults_joined += border
            tree = whole.tree.copy() if whole.is_followed else whole.size
            start, part = end, RunCheck(LABEL, tree, Authors(is_anchored=False))
    assert ordered(faults_joined) == ordered(faults)
    assert state_of(joined) == state_of(whole)


@given(steps(), st.integers(0, 12))
def test_a_check_goes_on_from_its_state_wherever_it_is_cut(run, cut):
    """Also behind a leaf that no root has confirmed: tree, time and the unread entry are all that matters."""
    whole, first = RunCheck(LABEL, Mmr()), RunCheck(LABEL, Mmr())
    faults = checked(whole, run) + whole.finish()
    before = checked(first, run[:cut])
    tree = first.tree.copy() if first.is_followed else first.size
    second = RunCheck(LABEL, tree, first.authors, last_ts=first.last_ts)
    second.unread = first.unread
    assert before + checked(second, run[cut:]) + second.finish() == faults
    assert state_of(second) == state_of(whole)


@given(steps(faulty=False))
def test_an_unread_entry_that_a_later_root_confirms_has_no_fault(run):
    """Nothing beyond that it cannot be read, if it names its leaf and either its root or nothing else behind it."""
    run = [
        Unread((*(leaf for leaf in entry.leaves if leaf != leaf_of(seq)), leaf_of(seq)), entry.root)
        if isinstance(entry, Unread)
        else entry
        for seq, entry in enumerate(run, start=1)
    ]
    check = RunCheck(LABEL, Mmr())
    first = 0  # that no root has confirmed
    for seq, entry in enumerate(run, start=1):
        assert [fault for fault in step(check, entry) if fault.rule is not Rule.CLIENT_SEQ] == []
        is_confirmed = entry.root == ROOTS[seq]
        first = 0 if is_confirmed else first or seq
        assert (check.unread, check.tree.root()) == (first, ROOTS[seq])
    assert check.finish() == ([Fault(Rule.UNREAD, len(run), actual=first)] if first else [])
    assert check.is_followed == (not first)


@given(st.integers(1, 6), st.lists(FALSE, min_size=1, max_size=2, unique=True), st.booleans(), st.data())
def test_a_wrong_leaf_is_never_confirmed(seq, leaves, names_root, data):
    """The first root behind it tells, once; later roots are not compared, so they cause no fault either."""
    check = RunCheck(LABEL, Mmr())
    run = [Read(b"a", number, 0, leaf_of(number), START, ROOTS[number]) for number in range(1, 13)]
    assert checked(check, run[: seq - 1]) == []
    check.append_unread(leaves, ROOTS[seq] if names_root else None)
    erased = data.draw(st.integers(0, 3))
    assert checked(check, [replace(entry, root=None) for entry in run[seq : seq + erased]]) == []
    assert (check.unread, check.is_followed) == (seq, True)
    behind = run[seq + erased :]
    assert checked(check, behind) == [Fault(Rule.UNREAD, seq + erased + 1, actual=seq)]
    assert (check.unread, check.is_followed, check.size) == (seq, False, 12)
    assert check.finish() == []


def test_the_leaf_that_leads_to_the_root_is_taken_wherever_it_is_named():
    for leaves in permutations([leaf_of(1), *(sha256(b"false %d" % number).digest() for number in range(2))]):
        check = RunCheck(LABEL, Mmr())
        check.append_unread(leaves, ROOTS[1])
        assert (check.tree.root(), check.unread, check.authors.unseen) == (ROOTS[1], 0, 1)


def test_without_any_leaf_the_tree_ends():
    check = RunCheck(LABEL, Mmr())
    check.append_unread((), ROOTS[1])
    assert (check.is_followed, check.size, check.authors.unseen) == (False, 1, 1)
    assert check.finish() == []
    check.append_unread((leaf_of(2),), ROOTS[2])
    assert (check.is_followed, check.size, check.authors.unseen) == (False, 2, 2)
    assert step(check, Read(b"a", 3, 2, leaf_of(3), START, b"any")) == []
    assert check.nodes == []


def test_the_first_of_several_unread_entries_is_named():
    check = RunCheck(LABEL, Mmr())
    for seq in (1, 2):
        check.append_unread((leaf_of(seq),), None)
    assert check.unread == 1
    assert check.finish() == [Fault(Rule.UNREAD, 2, actual=1)]
    assert check.finish() == []


def test_the_time_is_compared_where_the_roots_end():
    check = RunCheck(LABEL, Mmr(), last_ts=START)
    check.append_unread((sha256(b"false").digest(),), None)
    assert step(check, Read(b"a", 1, 0, leaf_of(2), START - 1, ROOTS[2])) == [
        Fault(Rule.TIME, 2, START, START - 1),
        Fault(Rule.UNREAD, 2, actual=1),
    ]


def test_nothing_is_lost_by_skipping_nothing():
    check = RunCheck(LABEL, Mmr())
    check.skip(0)
    assert (check.is_followed, check.size) == (True, 0)
    check.skip(2)
    assert (check.is_followed, check.size, check.authors.unseen) == (False, 2, 2)


def test_of_a_tree_only_the_size_may_be_known():
    """The roots are not compared; what was before counts as unseen."""
    check = RunCheck(LABEL, 3)
    assert step(check, Read(b"a", 5, 4, leaf_of(4), START, b"any")) == [
        Fault(Rule.ACK_AHEAD, 4, 3, 4),
        Fault(Rule.CLIENT_SEQ, 4, 1, 5),
    ]
    assert (check.size, check.is_followed, check.authors.unseen) == (4, False, 3)
    assert check.tree.size == 0


# --- signatures ----------------------------------------------------------------------------------------------------


def signature_faults(pairs, identity):
    """All faults in one list; `check_signatures` has them by pair."""
    unsigned, signers = check_signatures(pairs, identity)
    assert len(unsigned) == len(signers) == len(pairs)
    return [fault for of_pair in unsigned for fault in of_pair], signers


FIRST = HubIdentity.first(HUB.public, valid_from=0)
ROTATED = FIRST.with_rotation(NEXT.public, valid_from=START + 3, overlap_until=START + 5)


@pytest.mark.parametrize("identity", [FIRST, None])
def test_good_signatures_have_no_fault_and_name_the_key(identity):
    pairs = [*PAIRS[:5], Pair(None, PAIRS[5].receipt)]
    signers = [HUB.public if identity else None] * 6
    assert signature_faults(pairs, identity) == ([], signers)
    assert signature_faults([], identity) == ([], [])


def test_good_signatures_are_verified_by_one_call(monkeypatch):
    monkeypatch.delattr("veen.core.run_check.ed25519.verify")
    assert signature_faults(PAIRS, FIRST) == ([], [HUB.public] * 6)


def test_the_jobs_of_an_entry_are_both_signatures_by_the_newest_key():
    msg, receipt = MESSAGES[2], PAIRS[2].receipt
    author = msg.sig + msg.signing_digest() + ALICE.public
    hub = receipt.hub_sig + receipt.signing_digest()
    assert signature_jobs(msg, receipt, None) == (author, None)
    assert signature_jobs(msg, receipt, FIRST) == (author + hub + HUB.public, HUB.public)
    assert signature_jobs(None, receipt, ROTATED) == (hub + NEXT.public, NEXT.public)
    assert signature_jobs(None, receipt, HubIdentity.first(HUB.public, valid_from=receipt.hub_ts + 1)) == (b"", None)


def test_a_message_that_its_author_did_not_sign():
    """AUTHOR_SIG."""
    pairs = changed(3, msg={"sig": MESSAGES[0].sig})
    assert signature_faults(pairs, FIRST) == ([Fault(Rule.AUTHOR_SIG, 3)], [HUB.public] * 6)
    assert signature_faults(pairs, None)[0] == [Fault(Rule.AUTHOR_SIG, 3)]


def test_a_receipt_by_a_stranger():
    """HUB_SIG."""
    receipt = signed(PAIRS[2].receipt, STRANGER)
    faults, signers = signature_faults([*PAIRS[:2], Pair(PAIRS[2].msg, receipt), *PAIRS[3:]], FIRST)
    assert faults == [Fault(Rule.HUB_SIG, 3)]
    assert signers == [HUB.public] * 2 + [None] + [HUB.public] * 3


def test_a_receipt_is_signed_by_a_key_that_was_valid_then():
    """HUB_SIG (D-41): both keys while they overlap, and the fault names a key that signed outside of its time."""
    receipts = [pair.receipt for pair in PAIRS]
    by_next = [Pair(None, signed(receipt, NEXT)) for receipt in receipts]
    faults, signers = signature_faults(by_next, ROTATED)
    assert faults == [Fault(Rule.HUB_SIG, seq, actual=NEXT.public) for seq in (1, 2)]
    assert signers == [None] * 2 + [NEXT.public] * 4
    faults, signers = signature_faults([Pair(None, receipt) for receipt in receipts], ROTATED)
    assert faults == [Fault(Rule.HUB_SIG, seq, actual=HUB.public) for seq in (5, 6)]
    assert signers == [HUB.public] * 4 + [None] * 2


def test_a_receipt_from_before_the_first_key():
    late = HubIdentity.first(HUB.public, valid_from=START + 2)
    faults, signers = signature_faults(PAIRS[:2], late)
    assert faults == [Fault(Rule.HUB_SIG, 1, actual=HUB.public)]
    assert signers == [None, HUB.public]


def test_both_signatures_of_an_entry_may_be_bad():
    pair = Pair(replace(MESSAGES[0], sig=bytes(64)), replace(PAIRS[0].receipt, hub_sig=bytes(64)))
    assert signature_faults([pair], FIRST) == ([Fault(Rule.AUTHOR_SIG, 1), Fault(Rule.HUB_SIG, 1)], [None])


def test_every_rule_has_its_sentence():
    assert all(rule.value.endswith(".") for rule in Rule)
    assert len({rule.value for rule in Rule}) == len(Rule) == 12


def test_faults_are_told_by_pair_even_if_two_have_one_number():
    """A batch may mix labels, and a hostile one may repeat a number."""
    bad = Pair(replace(MESSAGES[0], sig=bytes(64)), PAIRS[0].receipt)
    assert check_signatures([PAIRS[0], bad, PAIRS[0]], FIRST)[0] == [[], [Fault(Rule.AUTHOR_SIG, 1)], []]


def test_a_warning_names_both_times():
    assert warning_of(Fault(Rule.TIME, 3, 9, 4)) == "hub_ts 4 is before 9, that of the entry before it (D-28)"
