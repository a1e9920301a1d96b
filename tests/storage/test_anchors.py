"""The local chain of anchors, and what verification makes of anchors (ANCHOR0, D-104)."""

import random
from dataclasses import replace

import pytest
from tests.damage import flipped
from tests.storage.builders import LABELS, World, copy_of, fill

from veen.core.hashing import H
from veen.core.objects.control import AnchorPublish
from veen.io.local import OsFs
from veen.storage import layout
from veen.storage.anchors import NONCE_BYTES, AnchorError, AnchorFile, check_anchors
from veen.storage.copies.copying import clone
from veen.testing.memfs import Crash, Fault, MemFs
from veen.verify.directory import verify_data

NONCE = bytes(NONCE_BYTES)
ROOTS = [H(bytes([number])) for number in range(4)]


def publish_all(anchors, refs, count=3):
    """`refs` grows with what was returned."""
    for number in range(count):
        refs.append(anchors.publish(ROOTS[number], number, 1_700_000_000 + number, NONCE))


def chain(fs, count=3):
    anchors, refs = AnchorFile(fs), list[bytes]()
    publish_all(anchors, refs, count)
    return anchors, refs


@pytest.mark.req("ANC-01")
def test_what_was_published_verifies_and_nothing_else_does():
    anchors, refs = chain(MemFs())
    assert all(anchors.verify(root, ref) for root, ref in zip(ROOTS, refs, strict=False))
    assert not any(anchors.verify(root, ref) for root, ref in zip(ROOTS[1:], refs, strict=True))
    assert len(set(refs)) == 3
    for wrong in (b"", refs[0][:-1], bytes(40), b"\x00" * 7 + b"\x02" + refs[0][8:], b"\xff" * 40):
        assert not anchors.verify(ROOTS[0], wrong)
    assert not AnchorFile(MemFs()).verify(ROOTS[0], refs[0])


def test_only_roots_and_nonces_are_taken():
    for root, nonce in ((b"", NONCE), (ROOTS[0], b"")):
        with pytest.raises(AnchorError):
            AnchorFile(MemFs()).publish(root, 0, 0, nonce)


def test_another_process_continues_the_chain(tmp_path):
    _, refs = chain(OsFs(tmp_path), 2)
    anchors = AnchorFile(OsFs(tmp_path))
    refs.append(anchors.publish(ROOTS[2], 2, 1_700_000_002, NONCE))
    assert refs == chain(MemFs())[1]
    assert list(check_anchors(OsFs(tmp_path))) == []


def test_every_changed_bit_breaks_the_chain_at_its_entry():
    fs = MemFs()
    chain(fs)
    good = fs.files()[layout.ANCHORS]
    size = len(good) // 3
    for place in range(len(good)):
        bad = good[:place] + bytes((good[place] ^ 1 << place % 8,)) + good[place + 1 :]
        (broken,) = check_anchors(MemFs({layout.ANCHORS: bad}))
        assert broken.offset == place // size * size
    with pytest.raises(AnchorError, match="not what it was"):
        AnchorFile(MemFs({layout.ANCHORS: flipped(good)})).publish(ROOTS[3], 3, 0, NONCE)
    swapped = good[size : 2 * size] + good[:size] + good[2 * size :]
    assert [broken.offset for broken in check_anchors(MemFs({layout.ANCHORS: swapped}))] == [0]
    first, _ = chain(other := MemFs(), 1)
    first.publish(ROOTS[3], 1, 1_700_000_001, NONCE)
    spliced = other.files()[layout.ANCHORS] + good[2 * size :]
    (broken,) = check_anchors(MemFs({layout.ANCHORS: spliced}))
    assert "continue" in broken.what


def test_what_was_returned_outlives_any_crash():
    operations = (fs := MemFs()).operations
    chain(fs)
    for at in range(operations + 1, fs.operations + 1):
        for kind in ("lost", "torn", "done"):
            cut, refs = MemFs(fault=Fault(at, kind)), list[bytes]()
            with pytest.raises(Crash):
                publish_all(AnchorFile(cut), refs)
            healed = cut.after_crash(random.Random(at))
            anchors = AnchorFile(healed)
            assert all(anchors.verify(root, ref) for root, ref in zip(ROOTS, refs, strict=False)), (at, kind)
            refs.append(anchors.publish(ROOTS[3], 3, 0, NONCE))
            assert list(check_anchors(healed)) == [], (at, kind)
            assert anchors.verify(ROOTS[3], refs[-1])


# --- verification ----------------------------------------------------------------------------------------


def anchored(retire=False, fs=None):
    """A hub and a record of an anchor that it may journal."""
    world = World(fs)
    fill(world, 9)
    files = world.store.files(LABELS[0])
    assert files is not None
    body = AnchorPublish(
        label=LABELS[0],
        upto_seq=files.size,
        mmr_root=files.root(),
        backend="file",
        anchor_ref=AnchorFile(world.fs).publish(files.root(), 0, world.now, NONCE),
    )
    if retire:
        world.store.retire()
        world.bind()
    return world, body


@pytest.mark.req("ANC-04")
@pytest.mark.parametrize("retire", [False, True])
def test_an_anchor_of_another_root_is_found(retire):
    world, body = anchored(retire)
    world.control(body)
    assert not verify_data(world.fs).findings
    world.control(replace(body, mmr_root=H(b"another"), backend="ledger"))
    errors = verify_data(world.fs).errors
    assert [(finding.path, finding.code) for finding in errors] == [(layout.CONTROL, "control")]


def test_an_anchor_of_what_is_not_there_is_mentioned():
    """A log that was cut back: an origin section does that on purpose, so it is no error by itself."""
    world, body = anchored()
    world.control(replace(body, upto_seq=body.upto_seq + 5, backend="ledger"))
    assert [(finding.code, finding.severity) for finding in verify_data(world.fs).findings] == [("cut", "warning")]


def test_a_damaged_or_missing_chain_is_found():
    world, body = anchored()
    world.control(body)
    world.store.close()
    world.bind()
    data = bytearray(world.fs.files()[layout.ANCHORS])
    data[50] ^= 1
    report = verify_data(copy_of(world.fs, **{layout.ANCHORS: bytes(data)}))
    assert [(finding.path, finding.code) for finding in report.errors] == [(layout.ANCHORS, "anchor")]
    report = verify_data(copy_of(world.fs, **{layout.ANCHORS: None}))
    assert [(finding.path, finding.severity) for finding in report.findings] == [(layout.ANCHORS, "warning")]


def test_a_clone_has_its_anchors(tmp_path):
    for name in ("source", "target"):
        (tmp_path / name).mkdir()
    world, body = anchored(fs=OsFs(tmp_path / "source"))
    world.control(body)
    world.store.close()
    world.bind()
    clone(world.fs, target := OsFs(tmp_path / "target"), with_keys=True)
    assert AnchorFile(target).verify(body.mmr_root, body.anchor_ref)
    assert not verify_data(target).findings
