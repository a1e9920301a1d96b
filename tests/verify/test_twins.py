"""The fast paths are twins of the one check of a run (HOUSE §3): the native scan of a chunk and the vectorised audit.

Chunks in which any rule may be broken anywhere: each path takes a chunk where `RunCheck` and `check_signatures` find no
fault, and no other, with the same sums. Logs that a hub signed, in which authors number and acknowledge as they like:
each path says nothing else than reading entry by entry says.
"""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lake.audit_builders import SEALED, Liar, SlowEngine, dump, run
from tests.storage.builders import LABELS, LIMITS
from tests.storage.driver import CLIENTS, HUB
from tests.verify.damages import STRANGER, at_rest

from veen import native
from veen.core.limits import DEFAULT_LIMITS
from veen.core.objects.control import LimitsSet
from veen.core.objects.identity import HubIdentity
from veen.core.objects.msg import Msg
from veen.core.objects.profile import PRESETS
from veen.core.objects.receipt import Receipt
from veen.core.run_check import Authors, Pair, Rule, RunCheck, RunSummary, check_signatures
from veen.core.tree.mmr import Mmr
from veen.storage import frame
from veen.storage.control_state import ControlFold
from veen.storage.pinned import ChunkRef
from veen.storage.scan import run_of
from veen.verify import chunk_scan
from veen.verify.audit.context import AuditContext
from veen.verify.audit.fast import fast_check
from veen.verify.directory import verify_data

# --- a chunk, with any rule broken ----------------------------------------------------------------------------------

START = 1_000
FIRST = HubIdentity.first(HUB.public, valid_from=0)
NEXT = CLIENTS[2]  # any other key
ROTATED = FIRST.with_rotation(NEXT.public, valid_from=START + 2, overlap_until=START + 4)
PROFILE = PRESETS["bulk"].profile_id()
RULES = [rule for rule in Rule if rule is not Rule.UNREAD]  # a whole chunk has no unreadable entry


def chunk_of(faults, first_seq, count, identity, signer=HUB):
    """Pairs of a chunk that begins with `first_seq`, and the tree before it; `faults` has broken rules by place."""
    tree = Mmr()
    for seq in range(1, first_seq):
        tree.append(bytes([seq]) * 32)
    before, pairs = tree.copy(), []
    last: dict[int, tuple[int, int]] = {}
    for place in range(count):
        seq, broken = first_seq + place, faults.get(place, ())
        client = place % 2
        number, ack = last.get(client, (first_seq, 1))
        number += 2 if Rule.CLIENT_SEQ in broken else 1
        ack = 0 if Rule.ACK_BACK in broken else seq if Rule.ACK_AHEAD in broken else min(ack + 1, seq - 1)
        last[client] = number, max(ack, 1)
        msg = Msg.compose(
            CLIENTS[client],
            profile_id=PROFILE,
            label=LABELS[1] if Rule.LABEL in broken else LABELS[0],
            client_seq=number,
            prev_ack=ack,
            auth_ref=None,
            ciphertext=SEALED + bytes(place),
        )
        leaf = bytes(32) if Rule.LEAF in broken else msg.leaf_hash()
        tree.append(leaf)
        receipt = Receipt.issue(
            STRANGER if Rule.HUB_SIG in broken else signer,
            label=LABELS[0],
            stream_seq=seq + (Rule.SEQ in broken),
            leaf_hash=leaf,
            mmr_root=bytes(32) if Rule.ROOT in broken else tree.root(),
            hub_ts=START + place - 9 * (Rule.TIME in broken),
        )
        if Rule.CT_HASH in broken:
            msg = replace(msg, ciphertext=SEALED[:-1] + b"\x01")
        if Rule.AUTHOR_SIG in broken:
            msg = replace(msg, sig=bytes(64))
        pairs.append(Pair(msg, receipt))
    return before, pairs


def judged(before, pairs, identity):
    """What the one check says: the broken rules, and the sums of the run."""
    check = RunCheck(LABELS[0], before.copy(), Authors(is_anchored=False))
    faults = [fault for pair in pairs for fault in check.append(*pair)]
    faults += [fault for unsigned in check_signatures(pairs, identity)[0] for fault in unsigned]
    times = pairs[0].receipt.hub_ts, pairs[-1].receipt.hub_ts
    summary = RunSummary(len(pairs), dict(check.authors.spans), 0, before.size + 1, *times, check.tree.peaks())
    return {fault.rule for fault in faults}, summary


def native_run(data, before, identity):
    """The sums of the native scan, or None."""
    assert native.LOADED.module is not None
    keys = [(key.hub_pk, key.valid_from, key.valid_until) for key in identity.keys]
    size, most = DEFAULT_LIMITS.max_msg_bytes, 1 << 32
    chunk = native.LOADED.module.scan_chunk(
        data, LABELS[0], before.size + 1, most, size, b"".join(before.peaks()), keys, True, 1
    )
    return None if chunk is None else run_of(chunk, before.size + 1)


def audited_run(data, before, identity, count):
    """The sums of the vectorised audit, or None."""
    context = AuditContext(
        uri="",
        level="full",
        sample_per_million=0,
        seed="",
        identity=identity,
        control=ControlFold(),
        control_whole=False,
        chunks_only=True,
        profiles={PROFILE: 0},
        profiles_given=True,
    )
    ref = ChunkRef(
        label=LABELS[0],
        epoch=0,
        stream_id=None,
        start_seq=before.size + 1,
        end_seq=before.size + count,
        path="log/chunk",
        kind="sealed",
        size=len(data),
    )
    clean = fast_check(data, ref, context, before.peaks())
    return None if clean is None else clean.run


def bytes_of(pairs, first_seq):
    frames = (
        frame.encode(LABELS[0], seq, pair.msg.to_bytes(), pair.receipt.to_bytes())
        for seq, pair in enumerate(pairs, start=first_seq)
    )
    return b"".join(entry.to_bytes() for entry in frames)


def check_twins(faults, first_seq, count, identity, signer=HUB):
    """The rules that are broken; both fast paths agree with the one check."""
    before, pairs = chunk_of(faults, first_seq, count, identity, signer)
    broken, summary = judged(before, pairs, identity)
    data, expected = bytes_of(pairs, first_seq), None if broken else summary
    assert audited_run(data, before, identity, count) == expected
    if native.LOADED.module is not None:
        summed = native_run(data, before, identity)
        overlap = any(len(identity.keys_valid_at(pair.receipt.hub_ts)) > 1 for pair in pairs)
        assert summed == expected or (summed is None and overlap)  # it leaves entries with two keys to the slow path
    return broken


@pytest.mark.parametrize("place", [0, 2, 5])
@pytest.mark.parametrize("rule", RULES)
def test_each_rule_is_one_of_the_fast_paths(rule, place):
    """But for what only the entries before the chunk show: the time and the author of its first entries."""
    broken = check_twins({place: {rule}}, 4, 6, FIRST)
    assert (rule in broken) == (place > 0 or rule not in (Rule.TIME, Rule.CLIENT_SEQ, Rule.ACK_BACK))


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(st.integers(0, 5), st.sets(st.sampled_from(RULES), min_size=1, max_size=3), max_size=2),
    st.integers(1, 9),
    st.integers(1, 6),
    st.sampled_from([FIRST, ROTATED]),
    st.sampled_from([HUB, NEXT]),
)
def test_the_fast_paths_take_what_the_one_check_takes(faults, first_seq, count, identity, signer):
    check_twins(faults, first_seq, count, identity, signer)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_the_fast_paths_take_no_chunk_with_a_flipped_bit(data):
    before, pairs = chunk_of({}, 4, 3, FIRST)
    raw = bytearray(bytes_of(pairs, 4))
    bit = data.draw(st.integers(0, 8 * len(raw) - 1))
    raw[bit // 8] ^= 1 << bit % 8
    assert audited_run(bytes(raw), before, FIRST, 3) is None
    if native.LOADED.module is not None:
        chunk = native_run(bytes(raw), before, FIRST)
        assert chunk is None or chunk.entries < 3  # of a file that ends inside an entry it takes those before


# --- logs whose authors lie -----------------------------------------------------------------------------------------

steps = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from([0, 0, 0, 0, -1, 1]), st.sampled_from([0, 0, 0, -1, -3, 1])),
    max_size=9,
)


def told(log):
    """A hub that signs these entries: by which author, and how far off client_seq and prev_ack are."""
    world = Liar()
    last: dict[int, int] = {}
    world.control(LimitsSet(limits=LIMITS.to_json()))
    for size, (client, seq_off, ack_off) in enumerate(log):
        number = max(1, last.get(client, 0) + 1 + seq_off)
        last[client] = number
        world.tell(client=client, client_seq=number, prev_ack=max(0, size + ack_off))
    return world


def find_broken_rules(frames):
    check = RunCheck(LABELS[0], Mmr())
    pairs = [(Msg.from_bytes(entry.msg), Receipt.from_bytes(entry.receipt)) for entry in frames]
    return {fault.rule for pair in pairs for fault in check.append(*pair)}


@settings(max_examples=20, deadline=None)
@given(steps)
def test_the_fast_paths_find_a_fault_where_the_one_check_finds_one(log):
    world = told(log)
    broken = find_broken_rules(world.frames)
    assert broken <= {Rule.CLIENT_SEQ, Rule.ACK_AHEAD, Rule.ACK_BACK}
    fs = at_rest(world)
    findings = verify_data(fs).findings
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk_scan, "LOADED", native.Loaded(None, "absent", ""))
        assert verify_data(fs).findings == findings
    assert {finding.code for finding in findings if finding.path.startswith("log/")} == ({"entry"} if broken else set())
    with TemporaryDirectory() as directory:
        path = dump(fs, Path(directory))
        result = run(path)
        assert run(path, engine=SlowEngine()).findings == result.findings
    codes = {Rule.CLIENT_SEQ: "client_seq", Rule.ACK_AHEAD: "prev_ack", Rule.ACK_BACK: "prev_ack"}
    assert {finding.code for finding in result.findings} == {codes[rule] for rule in broken}
