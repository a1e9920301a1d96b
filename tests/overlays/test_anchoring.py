"""veen.anchor.v1: roots of other hubs, stated in a log."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veen.core.hashing import H
from veen.overlays.anchoring import ANCHOR, AnchorFold, AnchorStatement
from veen.testing.events import FakeLog
from veen.testing.laws import check_laws

HUB, LABEL = H(b"hub"), H(b"label")


def statement(root=b"r", upto=3):
    return ANCHOR.draft(AnchorStatement(hub_id=HUB, label=LABEL, upto_seq=upto, mmr_root=H(root), epoch=0))


@pytest.mark.req("ANC-02")
def test_the_first_root_of_a_position_counts_and_another_one_contradicts():
    log = FakeLog()
    first = log.append(statement(), ts=100)
    log.append(statement(), ts=200)  # said again
    log.append(statement(b"another"), client="mallory")
    log.append(statement(b"another", upto=4))
    fold = AnchorFold()
    summary = fold.summarize(log.all())
    state = fold.view(summary)
    assert [(place[2], root.mmr_root) for place, root in state.items()] == [(3, H(b"r")), (4, H(b"another"))]
    assert (state[HUB, LABEL, 3].hub_ts, state[HUB, LABEL, 3].msg_id) == (100, first.msg_id)
    assert [(issue.code, issue.stream_seq) for issue in fold.issues(summary)] == [("ANCHOR.CONTRADICTION", 3)]


@given(st.data())
def test_the_fold_obeys_the_laws(data):
    def write(draw, now):
        return statement(draw(st.sampled_from([b"a", b"b"])), draw(st.integers(1, 3)))

    check_laws(data, AnchorFold, write)
