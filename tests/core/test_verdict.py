"""The verdict type: it cannot say good about what was not compared (D-181)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veen.core.verdict import Because, Coverage, Outcome, Reason, StatedBy, Verdict

_STATED = [by for by in StatedBy if by is not StatedBy.NOBODY]


@st.composite
def coverages(draw) -> Coverage:
    head = draw(st.none() | st.integers(0, 20))
    return Coverage(
        log=draw(st.sampled_from(("a", "b", "c"))),
        read=draw(st.integers(0, 20)),
        head=head,
        stated_by=StatedBy.NOBODY if head is None else draw(st.sampled_from(_STATED)),
        identity=draw(st.none() | st.just("ed25519:00")),
    )


reasons = st.lists(st.builds(Reason, st.sampled_from(Because), st.text(max_size=5)), max_size=3)
verdicts = st.builds(Verdict.of, st.lists(coverages(), max_size=4), reasons)


@given(st.lists(coverages(), max_size=4), reasons)
def test_a_verdict_is_good_only_if_every_log_was_read_up_to_a_stated_head(rows, given_reasons):
    verdict = Verdict.of(rows, given_reasons)
    whole = bool(rows) and all(row.head is not None and row.read >= row.head for row in rows)
    assert verdict.is_good == (whole and not given_reasons)
    bad = any(reason.because is Because.EVIDENCE for reason in given_reasons)
    assert (verdict.value is Outcome.BAD) == bad
    assert verdict.value.exit_status == (1 if bad else 0 if verdict.is_good else 6)


@given(verdicts, verdicts)
def test_the_sum_of_two_verdicts_is_good_only_if_both_are(one, other):
    assert (one + other).is_good == (one.is_good and other.is_good)
    assert ((one + other).value is Outcome.BAD) == (Outcome.BAD in (one.value, other.value))


@given(verdicts)
def test_a_verdict_is_read_back_from_its_json_and_its_stated_value_is_not_believed(verdict):
    document = verdict.to_json()
    assert Verdict.from_json(document) == verdict
    assert Verdict.from_json({**document, "value": "good"}).value is verdict.value
    assert not Verdict.from_json({**document, "compared": []}).is_good


def test_a_verdict_over_nothing_cannot_be_made_without_saying_so():
    assert Verdict.of(()).value is Outcome.INCOMPLETE
    with pytest.raises(ValueError, match="less than stated heads"):
        Verdict(())
    half = Coverage(log="a", read=1, head=2, stated_by=StatedBy.OWN_FILES, identity=None)
    with pytest.raises(ValueError, match="less than stated heads"):
        Verdict((half,))


def test_a_head_that_nobody_states_and_a_negative_position_are_refused():
    with pytest.raises(ValueError, match="states"):
        Coverage(log="a", read=0, head=3, stated_by=StatedBy.NOBODY, identity=None)
    with pytest.raises(ValueError, match="states"):
        Coverage(log="a", read=0, head=None, stated_by=StatedBy.HUB, identity=None)
    with pytest.raises(ValueError, match="negative"):
        Coverage(log="a", read=-1, head=None, stated_by=StatedBy.NOBODY, identity=None)


def test_bad_evidence_is_the_first_reason():
    row = Coverage(log="a", read=1, head=2, stated_by=StatedBy.HUB, identity=None)
    verdict = Verdict.of([row], [Reason(Because.POLICY, "p"), Reason(Because.EVIDENCE, "e")])
    assert verdict.first == Reason(Because.EVIDENCE, "e")
    assert Verdict.of([Coverage(log="a", read=2, head=2, stated_by=StatedBy.HUB, identity=None)]).first is None
