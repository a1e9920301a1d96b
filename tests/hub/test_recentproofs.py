"""Inclusion proofs that are kept for a while: bounded, and never noticed but by their speed."""

import random

import pytest
from tests.storage import driver

from veen.core.tree.proof import prove_inclusion
from veen.hub.api.calls import RecentProofs
from veen.storage.label_files import LabelFiles
from veen.testing.memfs import MemFs


@pytest.fixture
def labels():
    store = driver.open_store(MemFs())
    driver.drive(store, [])
    yield [store.files(label) for label in driver.LABELS]
    store.close()


class Counted(LabelFiles):
    """A label's files that count how often a node is read."""

    def __init__(self, files):
        self._files, self.label, self.reads = files, files.label, 0

    def node_at(self, height, index):
        self.reads += 1
        return self._files.node_at(height, index)


@pytest.mark.req("GEN-21", "GEN-26")
@pytest.mark.parametrize("capacity", [1, 3, 1000])
def test_whatever_is_kept_or_forgotten_the_proofs_are_the_same(labels, capacity):
    proofs, rng = RecentProofs(capacity), random.Random(3)
    for _ in range(300):
        files = rng.choice(labels)
        seq = rng.randint(1, files.size)
        assert proofs.prove(files, seq) == prove_inclusion(files.node_at, seq)
        assert len(proofs) <= capacity


@pytest.mark.req("GEN-21")
def test_a_proof_that_was_asked_for_lately_is_not_read_again(labels):
    files, proofs = Counted(labels[0]), RecentProofs(2)
    for seq in (5, 6, 5):
        proofs.prove(files, seq)
    before = files.reads
    proofs.prove(files, 5)
    assert files.reads == before
    proofs.prove(files, 7)  # 6 has waited longest
    after = files.reads
    proofs.prove(files, 5)
    assert files.reads == after
    proofs.prove(files, 6)
    assert files.reads > after


@pytest.mark.req("GEN-21")
def test_labels_do_not_share_proofs(labels):
    proofs = RecentProofs()
    first, other = (proofs.prove(files, 1) for files in labels[:2])
    assert first.leaf_hash != other.leaf_hash
