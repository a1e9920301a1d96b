"""The one LRU: what was used least recently leaves first, and whoever needs to know is told."""

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from veen.core.lru import Lru

steps = st.lists(st.tuples(st.sampled_from(["get", "put", "pop", "peek"]), st.integers(0, 9), st.integers(1, 5)))


@given(st.integers(0, 12), st.booleans(), steps)
def test_it_is_the_last_used_that_fit(capacity, weighed, played):
    """Compared with a model that keeps the whole history of uses."""
    left: list[int] = []
    cache: Lru[int, int] = Lru(capacity, weigh=(lambda value: value) if weighed else None, leave=left.append)
    model: OrderedDict[int, int] = OrderedDict()
    gone: list[int] = []
    for step, key, value in played:
        if step == "put":
            if key in model and model[key] is not value:
                gone.append(model[key])
            model.pop(key, None)
            model[key] = value
            while (sum(model.values()) if weighed else len(model)) > capacity and len(model) > 1:
                gone.append(model.popitem(last=False)[1])
        elif step == "pop":
            assert cache.pop(key) == model.pop(key, None)
            continue
        else:
            assert getattr(cache, step)(key) == model.get(key)
            if step == "get" and key in model:
                model.move_to_end(key)
            continue
        cache.put(key, value)
    assert list(cache.values()) == list(model.values())
    assert (len(cache), left) == (len(model), gone)
    assert all(key in cache for key in model)


def test_everything_leaves_when_it_is_cleared():
    left: list[str] = []
    cache: Lru[int, str] = Lru(3, leave=left.append)
    for number, value in enumerate("abc"):
        cache.put(number, value)
    cache.get(0)
    cache.shed()
    assert left == ["b"]
    cache.clear()
    assert left == ["b", "c", "a"]
    assert len(cache) == 0


def test_the_last_one_stays_however_heavy():
    cache: Lru[str, bytes] = Lru(10, weigh=len)
    cache.put("small", bytes(4))
    cache.put("large", bytes(40))
    assert "small" not in cache
    assert cache.peek("large") == bytes(40)
