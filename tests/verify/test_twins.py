"""The fast paths are twins of the one check of a run (HOUSE §3): the native scan of a chunk and the vectorised audit.

Logs that a hub signed, in which authors number and acknowledge as they like: each path finds a fault where `RunCheck`
finds one, and says nothing else than reading entry by entry says.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pipeline.audit_builders import Liar, SlowEngine, dump, run
from tests.storage.builders import LABELS, LIMITS
from tests.verify.damages import at_rest

from veen import native
from veen.core.objects.control import LimitsSet
from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt
from veen.core.run_check import Rule, RunCheck
from veen.core.tree.mmr import Mmr
from veen.verify import chunk_scan
from veen.verify.directory import verify_data

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


def broken_rules(frames):
    check = RunCheck(LABELS[0], Mmr())
    pairs = [(Msg.from_bytes(entry.msg), Receipt.from_bytes(entry.receipt)) for entry in frames]
    return {fault.rule for pair in pairs for fault in check.append(*pair)}


@settings(max_examples=20, deadline=None)
@given(steps)
def test_the_fast_paths_find_a_fault_where_the_one_check_finds_one(log):
    world = told(log)
    broken = broken_rules(world.frames)
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
