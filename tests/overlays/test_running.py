"""A fold that goes on with every event has the state that a fold from the start has."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veen.overlays import crud, kv
from veen.overlays.framework.state import state_hash
from veen.overlays.framework.stream import RunningFold, fold_events
from veen.testing.events import FakeLog

WRITES = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 4), st.integers(0, 3), st.booleans()), max_size=40)


def drafts(fold, key, value):
    return crud.create("user", str(key), {"v": value}) if isinstance(fold, crud.CrudFold) else kv.put(str(key), value)


@pytest.mark.parametrize("fold", [crud.CrudFold(), kv.KvFold()], ids=lambda fold: fold.name)
@given(writes=WRITES)
def test_going_on_equals_starting_anew_in_whatever_order_labels_come(fold, writes):
    """Labels are read one after another, so an event may belong before others that were folded already."""
    log, running = FakeLog(), RunningFold(fold)
    for stream, key, step, ask in writes:
        event = log.append(drafts(fold, key, step), stream=stream, ts=log.now + step - 1)
        running.add(event)
        if ask:
            whole = fold_events(fold, log.all())
            assert state_hash(fold.name, running.view()) == state_hash(fold.name, fold.view(whole))
            assert running.issues() == fold.issues(whole)


@pytest.mark.parametrize("size", [64, 256])
def test_an_ordered_fold_that_is_asked_after_every_event_steps_each_once_and_keeps_few_marks(size, monkeypatch):
    fold, log = crud.CrudFold(), FakeLog()
    running, steps = RunningFold(fold), 0
    step = crud.CrudFold.step

    def counted(self, state, event):
        nonlocal steps
        steps += 1
        step(self, state, event)

    monkeypatch.setattr(crud.CrudFold, "step", counted)
    for number in range(size):
        running.add(log.append(crud.create("user", str(number), {}), ts=log.now + 1))
        running.summary()
    assert steps == size
    assert len(running._marks) <= 4 + 2 * size.bit_length()
