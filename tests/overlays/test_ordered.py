"""Order-dependent folds: tables in layers, prefixes and segments (D-82)."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veen.overlays import crud
from veen.overlays.framework.ordered import LateEvent, Table
from veen.testing.events import FakeLog

STEPS = st.lists(st.tuples(st.sampled_from(["set", "del", "fork"]), st.integers(0, 5), st.integers(1, 99)), max_size=40)


@given(STEPS)
def test_a_table_in_layers_is_a_dictionary(steps):
    table: Table[int, int] = Table()
    model: dict[int, int] = {}
    for op, key, value in steps:
        if op == "set":
            table[key] = model[key] = value
        elif op == "del" and key in model:
            del table[key], model[key]
        elif op == "del":
            with pytest.raises(KeyError):
                del table[key]
        else:
            before, copy = table, dict(model)
            table = table.fork()
            table[99] = 1
            assert dict(before.items()) == copy
            del table[99]
        assert dict(table.items()) == model
        assert {key: table.get(key) for key in range(6)} == {key: model.get(key) for key in range(6)}
        assert (key in table, table.get(key, 0)) == (key in model, model.get(key, 0))
    assert dict(pickle.loads(pickle.dumps(table)).items()) == model  # noqa: S301 - our own bytes


def test_a_table_stays_shallow_however_often_it_is_forked():
    table: Table[int, int] = Table()
    for n in range(2_000):
        table[n] = n
        table = table.fork()
    assert len(table._below) <= 12
    assert dict(table.items()) == {n: n for n in range(2_000)}


def test_none_is_no_record():
    with pytest.raises(TypeError, match="delete the key"):
        Table[int, object]()[1] = None
    with pytest.raises(KeyError):
        Table[int, int]()[1]


@pytest.mark.req("OVL-09", "OVL-15")
def test_an_event_that_belongs_into_a_finished_prefix_is_told_apart_from_one_that_is_in_it():
    log = FakeLog()
    event = log.append(crud.create("user", "1", {}), stream="a", ts=10)
    log.append(crud.create("user", "2", {}), stream="a", ts=30)
    late = log.append(crud.create("user", "2", {}), stream="b", ts=20)
    fold = crud.CrudFold()
    prefix = fold.seal(fold.summarize([*log.events(event.label, 1, 2)]))
    assert fold.view(fold.merge(prefix, fold.lift(event))) == fold.view(prefix)
    with pytest.raises(LateEvent, match=f"event 1 of label {late.label.hex()}"):
        fold.merge(prefix, fold.lift(late))


def test_prefixes_of_different_labels_cannot_be_merged():
    log = FakeLog()
    a = log.append(crud.create("user", "1", {}), stream="a", ts=10)
    b = log.append(crud.create("user", "2", {}), stream="b", ts=20)
    fold = crud.CrudFold()
    with pytest.raises(LateEvent):
        fold.merge(fold.seal(fold.lift(a)), fold.seal(fold.lift(b)))
