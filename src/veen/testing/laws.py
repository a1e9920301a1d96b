# ruff: noqa: S101 - assert is how a law speaks
"""The laws of folds, once for every overlay (spec §11.1, §11.3; D-80 … D-85, D-93).

An overlay registers how random histories of it look: a function that draws the next message, given what was sent so
far. `check_laws` then cuts, shuffles, repeats, copies, pickles and restores, and demands byte-identical state.

    def write(draw, log):
        return kv.put(draw(st.sampled_from("abc")), draw(st.integers(0, 9)))

    @given(st.data())
    def test_kv_keeps_the_laws(data):
        check_laws(data, KvFold, write)
"""

import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise
from typing import Any

from hypothesis import strategies as st

from veen.core.event import Event, Order
from veen.core.hashing import H, Ht
from veen.overlays.framework.fold import AnyFold, Mirrors, copy_draft
from veen.overlays.framework.runner import Runner
from veen.overlays.framework.schema import Draft
from veen.overlays.framework.snapshot import Cut, Snapshot
from veen.overlays.framework.state import state_bytes, to_tree
from veen.testing.events import FakeLog

Draw = Callable[[st.SearchStrategy[Any]], Any]
Writer = Callable[[Draw, FakeLog], Draft]
MakeFold = Callable[..., AnyFold]  # takes mirrors=

BRIDGE = "bridge"
STREAMS = ("north", "south")
CLIENTS = ("alice", "bob")


def outcome(fold: AnyFold, summary: Any, as_of: int | None = None) -> tuple[bytes, list[tuple[bytes, int, str]]]:
    """Return what every reader must agree on: the bytes of the state, and the codes with their places."""
    issues = [(issue.label, issue.stream_seq, issue.code) for issue in fold.issues(summary)]
    return state_bytes(fold.view(summary, as_of)), issues


def check_laws(data: st.DataObject, make: MakeFold, write: Writer, *, max_events: int = 16) -> None:
    """Draw one random history of the overlay and check it against every law."""
    log = _history(data.draw, write, max_events)
    fold = make(mirrors=Mirrors.by([H(BRIDGE.encode())]))
    events = log.all()
    before = deepcopy(events)
    whole = fold.summarize(events)
    expected = outcome(fold, whole)

    assert outcome(fold, fold.merge(fold.identity(), whole)) == expected, "identity is neutral"
    assert outcome(fold, fold.combine(map(fold.lift, events))) == expected, "summarize is the merge of lifts"
    _check_cuts(data, fold, events, expected)
    _check_prefix(data, fold, events, expected)
    _check_kept(fold, whole, log, expected)
    _check_runner(data, fold, log, expected)
    _check_mirror_alone(data, make, log)
    _check_mirrors(data, make, log)
    later = max((event.ts for event in events), default=0) + data.draw(st.integers(0, 2_000), "later")
    assert outcome(fold, fold.seal(whole), later) == outcome(fold, whole, later), "sealing changes no view"
    assert events == before, "a fold changes no event (spec §11.2)"


def _history(draw: Draw, write: Writer, max_events: int) -> FakeLog:
    log = FakeLog()
    for _ in range(draw(st.integers(0, max_events))):
        if draw(st.integers(0, 9)) == 0:
            draft = write(draw, log)
            body = draw(st.sampled_from([b"", b"\xff", b"\xa0", draft.body[:-1], draft.body + b"\x00"]))
            draft = Draft(schema=draft.schema, body=body, parent_id=draft.parent_id)
        elif draw(st.integers(0, 9)) == 0:
            draft = Draft(schema=H(b"unrelated.v1"), body=b"anything")
        else:
            draft = write(draw, log)
        log.append(
            draft,
            stream=draw(st.sampled_from(STREAMS)),
            epoch=draw(st.integers(0, 1)),
            client=draw(st.sampled_from(CLIENTS)),
            ts=log.now + draw(st.integers(0, 2)),
        )
    return log


def _check_cuts(data: st.DataObject, fold: AnyFold, events: Sequence[Event], expected: object) -> None:
    """Check any interleaving, repetition, cut, association and order of merging."""
    repeated = list(events)
    if events:
        repeated += data.draw(st.lists(st.sampled_from(events), max_size=8), "replayed")
    shuffled = data.draw(st.permutations(repeated), "interleaving")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(shuffled)), max_size=5), "cuts"))
    bounds = [0, *cuts, len(shuffled)]
    parts = [fold.summarize(shuffled[a:b]) for a, b in pairwise(bounds)]
    before = [outcome(fold, part) for part in parts]
    pool = list(parts)
    while len(pool) > 1:
        left = pool.pop(data.draw(st.integers(0, len(pool) - 1), "left"))
        right = pool.pop(data.draw(st.integers(0, len(pool) - 1), "right"))
        pool.append(fold.merge(left, right))
    assert outcome(fold, pool[0]) == expected, "any cut, any association, replays and interleaving"
    assert [outcome(fold, part) for part in parts] == before, "a summary is a value: merging it changes nothing in it"


def _check_prefix(data: st.DataObject, fold: AnyFold, events: Sequence[Event], expected: object) -> None:
    """Check that a sealed prefix of the logical order continues as the whole log does, also with an overlap (D-82)."""
    cut = data.draw(st.integers(0, len(events)), "prefix")
    overlap = data.draw(st.integers(0, cut), "overlap")
    prefix = fold.seal(fold.summarize(events[:cut]))
    tail = fold.summarize(events[overlap:])
    assert outcome(fold, fold.merge(prefix, tail)) == expected
    assert outcome(fold, fold.seal(fold.merge(tail, prefix))) == expected
    assert outcome(fold, fold.merge(fold.seal(fold.summarize(events)), prefix)) == expected


def _check_kept(fold: AnyFold, whole: Any, log: FakeLog, expected: object) -> None:
    """Check that summaries survive pickling, and snapshots with the cuts of their log."""
    assert outcome(fold, pickle.loads(pickle.dumps(whole))) == expected  # noqa: S301 - our own bytes
    cuts = [Cut(label=label, upto_seq=upto, mmr_root=Ht("test/root", label)) for label, upto in log.heads().items()]
    snapshot = Snapshot.take(fold, whole, cuts)
    assert Snapshot.take(fold, fold.combine(map(fold.lift, log.all())), cuts).to_bytes() == snapshot.to_bytes()
    again = Snapshot.from_bytes(snapshot.to_bytes())
    assert outcome(fold, again.restore(fold, lambda label, _: Ht("test/root", label))) == expected


def _check_runner(data: st.DataObject, fold: AnyFold, log: FakeLog, expected: object) -> None:
    """Check that cached summaries give the same state as the events, at any cut and order of arrival (OVL-10)."""
    heads = log.heads()
    source = _Growing(log, {label: data.draw(st.integers(0, head), "known first") for label, head in heads.items()})
    runner = Runner(fold, source, interval=data.draw(st.integers(1, 4), "interval"), fanout=2)
    runner.refresh()
    source.known = heads
    upto = {label: data.draw(st.integers(0, head), "cut at") for label, head in heads.items()}
    events = [event for event in log.all() if event.stream_seq <= upto[event.label]]
    assert outcome(fold, runner.summary(upto)) == outcome(fold, fold.summarize(events))
    assert outcome(fold, runner.summary()) == expected


class _Growing:
    """A source that has only the beginning of each label at first."""

    def __init__(self, log: FakeLog, known: dict[bytes, int]) -> None:
        self._log, self.known = log, known

    def heads(self) -> dict[bytes, int]:
        return self.known

    def events(self, label: bytes, from_seq: int, to_seq: int) -> Iterable[Event]:
        return self._log.events(label, from_seq, to_seq)


def _check_mirror_alone(data: st.DataObject, make: MakeFold, log: FakeLog) -> None:
    """Check that the fold of a mirror equals that of its original, however late the copies were made (D-193).

    Here the bridge sends everything, as a copy does not show the sender of its original; parents are dropped (D-85).
    """
    originals = [replace(event, client_id=H(BRIDGE.encode())) for event in log.all() if event.hdr.parent_id is None]
    mirror, lag = FakeLog(now=log.now), data.draw(st.integers(0, 2_000), "lag of the mirror")
    names = {H(stream.encode()): stream for stream in STREAMS}
    copies = []
    for event in originals:
        copy = mirror.append(
            copy_draft(event, hub_id=H(b"hub")),
            stream=names[event.stream_id],
            epoch=event.epoch,
            client=BRIDGE,
            ts=mirror.now + 1 + lag,
        )
        copies.append(replace(copy, leaf_hash=event.leaf_hash, stream_seq=event.stream_seq))
    here, there = make(), make(mirrors=Mirrors.by([H(BRIDGE.encode())]))
    as_of = log.now + data.draw(st.integers(-5, 2_000), "as of")
    left, right = here.summarize(originals), there.summarize(copies)
    orders = {copy.order: event.order for copy, event in zip(copies, originals, strict=True)}
    assert to_tree(here.view(left, as_of)) == _view_at(there.view(right, as_of), orders), "a mirror tells the same"
    codes = [
        [(issue.place, issue.code) for issue in fold.issues(part)] for fold, part in ((here, left), (there, right))
    ]
    assert codes[0] == codes[1], "what has no effect has none in a mirror"


def _view_at(view: Any, orders: Mapping[Order, Order]) -> Any:
    """Return the view with other places in the logical order, as a mirror assigns them."""

    def place(tree: Any) -> Any:
        if isinstance(tree, dict):
            return {key: place(value) for key, value in tree.items()}
        if not isinstance(tree, list):
            return tree
        order = orders.get(tuple(tree)) if len(tree) == 5 and isinstance(tree[0], int) else None
        return [place(element) for element in tree] if order is None else list(order)

    return place(to_tree(view))


def _check_mirrors(data: st.DataObject, make: MakeFold, log: FakeLog) -> None:
    """Check that copies by a bridge change nothing, whichever of them a reader sees in whichever cut (D-85)."""
    fold = make(mirrors=Mirrors.by([H(BRIDGE.encode())]))
    events = log.all()
    if not events:
        return
    expected = state_bytes(fold.view(fold.summarize(events), 0))
    for event in data.draw(st.lists(st.sampled_from(events), max_size=6), "copied"):
        log.now = max(log.now, event.ts) + 1  # a copy is made after its original
        log.mirror(event, stream=data.draw(st.sampled_from(("east", "west")), "onto"))
    shuffled = data.draw(st.permutations(log.all()), "with copies")
    cut = data.draw(st.integers(0, len(shuffled)), "cut")
    merged = fold.merge(fold.summarize(shuffled[:cut]), fold.summarize(shuffled[cut:]))
    assert state_bytes(fold.view(merged, 0)) == expected, "a copy of what is in the log changes nothing"
