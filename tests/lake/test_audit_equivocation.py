"""Two directories of one identity: what the hub signed twice is proof, what it did not sign is damage."""

import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.lake.audit_builders import Liar, chunks, dump, grow, log, reframed, run, signed
from tests.lake.query_builders import Recorder
from tests.storage.builders import LABELS, LIMITS, copy_of
from tests.storage.driver import HUB

from veen.core.crypto.ed25519 import SigningKey
from veen.core.limits import Limits
from veen.core.objects.control import LimitsSet
from veen.core.objects.evidence import Equivocation
from veen.core.objects.identity import HubIdentity
from veen.core.verdict import Outcome
from veen.io.local import OsFs
from veen.storage import pinned
from veen.storage.pinned import pin
from veen.verify.audit import equivocation
from veen.verify.audit.equivocation import NotComparable, compare


def branches(tmp_path):
    """One hub up to some point, then two of it."""
    world = Liar()
    world.control(LimitsSet(limits=LIMITS.to_json()))
    grow(world, 14)
    world.store.close()
    paths = []
    for name, seed in (("left", 1), ("right", 2)):
        branch = Liar(copy_of(world.fs))
        grow(branch, 10, random.Random(seed))
        branch.store.close()
        (tmp_path / name).mkdir()
        paths.append(str(dump(branch, tmp_path / name)))
    return paths


@pytest.mark.req("RCPT-07")
def test_a_hub_that_told_two_stories_is_proven_to(tmp_path):
    left, right = branches(tmp_path)
    assert run(left).ok  # each by itself is a good log
    assert run(right).ok
    comparison = compare(left, right)
    assert not comparison.ok
    assert {proof.label for proof in comparison.proven} == set(LABELS)
    for proof in comparison.proven:
        again = Equivocation.from_bytes(proof.evidence.to_bytes())
        again.verify()
        assert again.hub_pks == (HUB.public,)
    assert compare(right, left).proven == comparison.proven  # evidence has one form
    assert compare(left, left).ok


def test_a_prefix_agrees_as_far_as_it_goes_and_the_verdict_is_incomplete(tmp_path):
    """D-181: what only one directory has was not compared."""
    world = Liar()
    grow(world, 10)
    world.store.retire()
    for name in ("early", "late"):
        (tmp_path / name).mkdir()
    early = dump(world, tmp_path / "early")
    grow(world, 10)
    world.store.close()
    late = dump(world, tmp_path / "late")
    comparison = compare(str(early), str(late))
    assert comparison.verdict.value is Outcome.INCOMPLETE
    assert sum(comparison.common.values()) == 10
    assert {(row.read, row.head) for row in comparison.compared} == {
        (pin(str(early)).heads[label], head) for label, head in pin(str(late)).heads.items()
    }
    assert compare(str(late), str(late)).ok


def test_a_copy_of_a_hub_with_nothing_in_it_is_not_the_same_log(tmp_path):
    """An empty directory has no entry that differs."""
    full = dump(log(20), tmp_path / "full")
    empty = tmp_path / "empty"
    (empty / "log").mkdir(parents=True)
    shutil.copy(full / "hub-identity.json", empty)
    shutil.copy(full / "hub-identity.sig", empty)
    for left, right in ((full, empty), (empty, full), (empty, empty)):
        comparison = compare(str(left), str(right))
        assert comparison.verdict.value is Outcome.INCOMPLETE
        assert sum(comparison.common.values()) == 0
    assert {row.read for row in compare(str(full), str(empty)).compared} == {0}


def test_chunks_that_are_noise_are_not_compared(tmp_path):
    """40 positions in both directories, none of which can be read in one of them."""
    left, right = (dump(log(40), tmp_path / name) for name in ("left", "right"))
    for chunk in (right / "log").glob("*.log"):
        chunk.write_bytes(random.Random(chunk.name).randbytes(chunk.stat().st_size))
    for seal in (right / "log").glob("checkpoint-*"):
        seal.write_bytes(b"noise")
    comparison = compare(str(left), str(right))
    assert comparison.verdict.value is Outcome.INCOMPLETE
    assert sum(comparison.common.values()) == 0


def test_one_damaged_entry_ends_what_was_compared(tmp_path):
    left, right = (dump(log(40), tmp_path / name) for name in ("left", "right"))
    chunk = chunks(right)[1]
    data = bytearray(chunk.read_bytes())
    data[200] ^= 1
    chunk.write_bytes(bytes(data))
    comparison = compare(str(left), str(right))
    assert comparison.verdict.value is Outcome.INCOMPLETE
    start = int(chunk.name.split("-")[2])
    assert comparison.common[LABELS[0]] == start - 1
    assert comparison.common[LABELS[1]] == pin(str(left)).heads[LABELS[1]]


def test_directories_that_agree_on_what_the_hub_did_not_sign_are_no_evidence(tmp_path):
    left, right = (dump(log(20), tmp_path / name) for name in ("left", "right"))
    for path in (left, right):
        for label in range(2):
            for chunk in chunks(path, label):
                for number in range(3):
                    reframed(chunk, number, lambda msg, receipt: (msg, replace(receipt, hub_sig=bytes(64))))
        for file in (*(path / "log").glob("active-*"), *(path / "log").glob("checkpoint-*")):
            file.unlink()
    comparison = compare(str(left), str(right))
    assert comparison.verdict.value is Outcome.BAD
    assert {finding.code for finding in comparison.findings} == {"hub_sig"}


def test_entries_that_only_journals_have_are_compared(tmp_path):
    """Both hubs are running, and nothing is in a file yet."""
    worlds = []
    for name in ("left", "right"):
        worlds.append(Liar(OsFs(tmp_path / name)))
        grow(worlds[-1], 2, random.Random(7))
    left, right = str(tmp_path / "left"), str(tmp_path / "right")
    assert not list((tmp_path / "left" / "log").glob("chunk-*")) + list((tmp_path / "left" / "log").glob("active-*"))
    comparison = compare(left, right)
    assert comparison.ok
    assert sum(comparison.common.values()) == 2
    for number, world in enumerate(worlds):
        grow(world, 4, random.Random(number))
    assert compare(left, right).proven
    for world in worlds:
        world.store.close()


def test_twice_the_labels_are_at_most_about_twice_the_work(tmp_path):
    """Each label listed the whole directory. Operations on files are counted, not timed."""
    counts = [_operations(tmp_path / str(number), number) for number in (8, 16, 32)]
    assert counts[1] < 2.5 * counts[0]
    assert counts[2] < 2.5 * counts[1]


def _operations(path, labels):
    """The names that are listed and the files that are opened by a comparison of two copies."""
    world = Recorder(path / "one", limits=Limits(max_checkpoint_interval=2))
    for epoch in range(labels):
        for _ in range(5):
            world.emit(epoch=epoch)
    world.done()
    shutil.copytree(path / "one", path / "two", ignore=shutil.ignore_patterns("local"))
    counted = 0

    class Counting(OsFs):
        def open(self, name, *, create=False):
            nonlocal counted
            counted += 1
            return super().open(name, create=create)

        def list(self, directory):
            nonlocal counted
            names = super().list(directory)
            counted += len(names)
            return names

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(equivocation, "open_fs", lambda uri: Counting(Path(uri)))
        patch.setattr(pinned, "open_place", lambda uri: Counting(Path(uri)))
        assert compare(str(path / "one"), str(path / "two")).ok
    return counted


def test_what_the_hub_did_not_sign_is_damage_and_no_proof(tmp_path):
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    left, right = (dump(log(20), tmp_path / name) for name in ("one", "other"))
    stranger = SigningKey(b"\x77" * 32)
    reframed(chunks(right)[0], 1, lambda msg, receipt: (msg, signed(replace(receipt, mmr_root=bytes(32)), stranger)))
    comparison = compare(str(left), str(right))
    assert comparison.proven == ()
    assert [(finding.code, finding.stream_seq) for finding in comparison.findings] == [("hub_sig", 2)]
    reframed(chunks(right)[0], 1, lambda msg, receipt: (msg, signed(replace(receipt, mmr_root=bytes(32)))))
    assert [proof.stream_seq for proof in compare(str(left), str(right)).proven] == [2]


def test_directories_of_different_hubs_are_not_compared(tmp_path):
    path = str(dump(log(5), tmp_path))
    other = HubIdentity.first(SigningKey(b"\x77" * 32).public, valid_from=0)
    with pytest.raises(NotComparable, match="different hubs"):
        compare(path, path, other)
    (tmp_path / "hub-identity.json").unlink()
    with pytest.raises(NotComparable, match="which hub"):
        compare(path, path)
