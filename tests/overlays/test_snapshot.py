"""Snapshots are bound to the log, the schemas and the settings they were made from (spec §11.3, CRDT0.3)."""

from dataclasses import replace

import pytest

from veen.core.objects.checkpoint import Checkpoint
from veen.overlays import crdt, kv, queue
from veen.overlays.framework.fold import Mirrors
from veen.overlays.framework.snapshot import Cut, Snapshot, SnapshotRefused
from veen.testing.events import FakeLog, label_of

ROOT = b"\x07" * 32
LABEL = label_of("main")


def root_at(label: bytes, upto_seq: int) -> bytes | None:
    return ROOT if (label, upto_seq) == (LABEL, 2) else None


@pytest.fixture
def log():
    log = FakeLog()
    log.extend([kv.put("a", 1), kv.put("b", {"x": [b"\xff", None]}), kv.put("a", 2)])
    return log


def take(log: FakeLog, cut: Cut | None = None) -> Snapshot:
    cut = cut or Cut(label=LABEL, upto_seq=2, mmr_root=ROOT)
    fold = kv.KvFold()
    return Snapshot.take(fold, fold.summarize(log.events(LABEL, 1, cut.upto_seq)), [cut])


@pytest.mark.req("OVL-07")
def test_a_snapshot_and_the_rest_of_the_log_give_the_state(log):
    fold = kv.KvFold()
    summary = Snapshot.from_bytes(take(log).to_bytes()).restore(fold, root_at)
    later = fold.merge(summary, fold.summarize(log.events(LABEL, 3, 3)))
    assert fold.view(later) == fold.view(fold.summarize(log.all()))


@pytest.mark.req("OVL-11")
@pytest.mark.parametrize("answer", [None, b"\x08" * 32])
def test_another_root_at_the_cut_is_refused(log, answer):
    with pytest.raises(SnapshotRefused, match="another root at 2"):
        take(log).restore(kv.KvFold(), lambda label, upto_seq: answer)


@pytest.mark.req("OVL-11")
@pytest.mark.parametrize(
    "fold", [crdt.LwwFold(), kv.KvFold(mirrors=Mirrors.by([bytes(32)])), kv.KvFold(mirrors=Mirrors.by((), [bytes(32)]))]
)
def test_another_fold_or_other_mirrors_are_refused(log, fold):
    with pytest.raises(SnapshotRefused, match="another fold"):
        take(log).restore(fold, root_at)


def test_other_settings_are_refused():
    first, two = queue.QueueFold(groups=["a"]), queue.QueueFold(groups=["a", "b"])
    with pytest.raises(SnapshotRefused, match="settings differs"):
        Snapshot.take(first, first.identity(), []).restore(two, root_at)


def test_a_damaged_snapshot_is_refused(log):
    good = take(log)
    with pytest.raises(SnapshotRefused, match="another hash"):
        replace(good, state_hash=bytes(32)).restore(kv.KvFold(), root_at)
    for summary in (b"", b"\x80", good.summary[:-1], good.summary + b"\x00", b"\x85\x80\x00\x80\x80\x81\x00"):
        with pytest.raises(SnapshotRefused, match="damaged"):
            replace(good, summary=summary).restore(kv.KvFold(), root_at)


@pytest.mark.req("CRDT-04")
def test_a_snapshot_of_a_crdt_is_the_fold_up_to_the_checkpoint():
    """CRDT0.3: later entries, and only they, are not in it."""
    log = FakeLog()
    log.extend([crdt.counter_add(bytes(32), 5), crdt.counter_add(bytes(32), 7), crdt.counter_add(bytes(32), 100)])
    checkpoint = Checkpoint(label_prev=LABEL, label_curr=LABEL, upto_seq=2, mmr_root=ROOT, epoch=0, hub_sig=bytes(64))
    cut, fold = Cut.at(checkpoint), crdt.CounterFold()
    snapshot = Snapshot.take(fold, fold.summarize(log.events(cut.label, 1, cut.upto_seq)), [cut])
    assert fold.view(snapshot.restore(fold, root_at)) == {bytes(32): 12}


def test_cuts_are_listed_by_label_so_that_equal_snapshots_have_equal_bytes():
    fold = kv.KvFold()
    cuts = [Cut(label=bytes([n]) * 32, upto_seq=1, mmr_root=ROOT) for n in (3, 1, 2)]
    first, second = (Snapshot.take(fold, fold.identity(), order) for order in (cuts, cuts[::-1]))
    assert first.to_bytes() == second.to_bytes()
