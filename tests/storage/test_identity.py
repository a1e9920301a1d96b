"""The identity of a hub in its directory: spec §8.4, D-42."""

import os
import random
import stat
from dataclasses import replace
from itertools import permutations

import pytest
from tests.storage.builders import LABELS, World, copy_of, fill, small
from tests.storage.driver import START
from tests.storage.oracle import assert_clean

from veen.core.crypto.ed25519 import SigningKey
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import KeyRotate
from veen.core.objects.identity import HubIdentity, key_id_of
from veen.core.objects.receipt import Receipt
from veen.io.errors import CorruptError, StorageError
from veen.io.local import OsFs
from veen.storage import layout
from veen.storage.index import Index
from veen.storage.keys import identity
from veen.storage.keys import rotation as keyrotation
from veen.storage.keys.identity import MissingIdentityError, MissingKeyError
from veen.storage.scan import read_file
from veen.testing.memfs import Crash, Fault, MemFs
from veen.verify.directory import verify_data

SEED, NEXT, ROOT = b"\x02" * 32, b"\x07" * 32, SigningKey(b"\x08" * 32)
KEY = SigningKey(SEED)


@pytest.mark.req("HID-08", "HID-09", "HID-10")
def test_a_new_directory_gets_all_identity_files(tmp_path):
    """spec §8.4: required metadata artifacts; private keys are for the owner only."""
    fs = OsFs(tmp_path)
    created = identity.create(fs, SEED, START)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "hub-identity.json",
        "hub-identity.sig",
        "hub-key-map.json",
        "keys",
    ]
    key_file = tmp_path / "keys" / f"{key_id_of(KEY.public)}.key"
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    assert key_file.read_text() == SEED.hex() + "\n"
    loaded = identity.load(fs)
    assert loaded == created
    assert loaded.signing_key_at(START) == KEY
    assert identity.read_identity(fs) == HubIdentity.first(KEY.public, valid_from=START)


def test_an_identity_is_never_replaced():
    fs = MemFs()
    identity.create(fs, SEED, START)
    with pytest.raises(StorageError, match="has an identity already"):
        identity.create(fs, NEXT, START)


@pytest.mark.req("HID-01")
def test_a_hub_never_invents_an_identity_or_a_key():
    """D-42: a configured identity whose private key is missing refuses."""
    fs = MemFs()
    with pytest.raises(MissingIdentityError):
        identity.load(fs)
    identity.create(fs, SEED, START)
    fs.remove(layout.key(key_id_of(KEY.public)))
    with pytest.raises(MissingKeyError, match=key_id_of(KEY.public)):
        identity.load(fs)
    assert identity.read_identity(fs).hub_id  # a verifier's copy is readable


@pytest.mark.parametrize("path", [layout.IDENTITY_SIG, layout.KEY_MAP])
def test_a_lost_file_is_named(path):
    fs = MemFs()
    identity.create(fs, SEED, START)
    fs.remove(path)
    with pytest.raises(CorruptError, match="missing") as caught:
        identity.load(fs)
    assert caught.value.path == path


@pytest.mark.parametrize(
    ("path", "data"),
    [
        (layout.IDENTITY, b"{}"),
        (layout.IDENTITY_SIG, bytes(63)),
        (layout.IDENTITY_SIG, bytes(64)),
        (layout.KEY_MAP, b"{}"),
        (layout.KEY_MAP, b"[]"),
        (layout.KEY_MAP, b'{"a":1}'),
        (layout.KEY_MAP, b"{"),
        (layout.key(key_id_of(KEY.public)), NEXT.hex().encode() + b"\n"),
        (layout.key(key_id_of(KEY.public)), SEED.hex().encode()),
        (layout.key(key_id_of(KEY.public)), b"zz\n"),
        (layout.key(key_id_of(KEY.public)), b"\xff\n"),
        (layout.key(key_id_of(KEY.public)), b""),
    ],
)
def test_damage_is_named(path, data):
    fs = MemFs()
    identity.create(fs, SEED, START)
    with pytest.raises(CorruptError) as caught:
        identity.load(copy_of(fs, **{path: data}))
    assert caught.value.path == path


def test_an_offline_root_key_may_sign_the_identity():
    """spec §8.4: or an offline root key if configured"""
    fs = MemFs()
    identity.create(fs, SEED, START, root=ROOT, anchoring="fingerprint")
    assert identity.load(fs, root_pk=ROOT.public).identity.anchoring == "fingerprint"
    assert identity.load(fs).identity.anchoring == "fingerprint"  # hub-root.pk names the key that signed
    with pytest.raises(CorruptError, match="signature"):
        identity.load(fs, root_pk=KEY.public)
    for other in (KEY.public.hex().encode() + b"\n", b"", b"zz\n", ROOT.public.hex().encode()):
        with pytest.raises(CorruptError):
            identity.load(copy_of(fs, **{layout.ROOT: other}))
    keys = identity.load(fs)
    with pytest.raises(StorageError, match="a root key signs this identity"):
        rotate(fs, keys)  # the root is not at hand: a signature by the new key would not verify
    rotated, _ = rotate(fs, replace(keys, root=ROOT))
    assert identity.load(fs, root_pk=ROOT.public).identity == rotated.identity


def rotate(fs, keys, journal=lambda body: None, at=START + 100, until=START + 200, seed=NEXT):
    return keyrotation.rotate(
        fs, keys, seed, hub_ts=at - 1, lead_seconds=1, overlap_seconds=until - at, journal=journal
    )


@pytest.mark.req("HID-05")
def test_a_rotation_is_journaled_before_anything_tells_of_it():
    """The private key, the record, the identity: in this order."""
    fs = MemFs()
    keys = identity.create(fs, SEED, START)
    rotations: list[KeyRotate] = []

    def journal(body):
        assert fs.exists(layout.key(key_id_of(body.hub_pk)))
        assert identity.load(fs) == keys
        rotations.append(body)

    rotated, body = rotate(fs, keys, journal)
    assert rotations == [body]
    assert identity.load(fs) == rotated
    assert rotated.signing_key_at(START + 100) == SigningKey(NEXT)
    assert [key.public for key in rotated.witnesses_at(START + 150)] == [KEY.public, SigningKey(NEXT).public]


def test_a_retired_key_may_be_taken_away_when_it_no_longer_signs():
    """D-41: missing retired private key"""
    fs = MemFs()
    rotated, _ = rotate(fs, identity.create(fs, SEED, START))
    fs.remove(layout.key(key_id_of(KEY.public)))
    with pytest.raises(MissingKeyError):
        identity.load(fs, now=START + 150)
    later = identity.load(fs, now=START + 200)
    assert later.identity == rotated.identity
    with pytest.raises(MissingKeyError, match=key_id_of(KEY.public)):
        later.signing_key_at(START)


def test_creation_and_rotation_are_whole_or_not_at_all():
    """Cut at every operation: the identity before or the one after, and a rotation that was journaled is completed."""

    def run(fs, journaled):
        keys = identity.load(fs) if identity.exists(fs) else identity.create(fs, SEED, START)
        if len(keys.identity.keys) == 1:
            rotate(fs, keys, journaled.append)

    count = MemFs()
    run(count, [])
    for at in range(1, count.operations + 1):
        for kind in ("lost", "torn", "done"):
            fs, journaled = MemFs(fault=Fault(at, kind)), list[KeyRotate]()
            with pytest.raises(Crash):
                run(fs, journaled)
            fs = fs.after_crash(random.Random(at))
            if identity.exists(fs):
                keys = keyrotation.finish_rotation(fs, identity.load(fs), journaled)
                assert len(keys.identity.keys) == 1 + len(journaled)
                assert identity.load(fs).identity == keys.identity
                assert len(read_file(fs, layout.IDENTITY_SIG)) == 64
            if not journaled:
                run(fs, journaled)
            assert identity.load(fs).identity.current.hub_pk == SigningKey(NEXT).public


@pytest.mark.req("HID-06", "HID-07", "GEN-09")
def test_a_log_over_a_rotation_verifies_from_the_directory_alone():
    """spec §8.4: a complete, verifiable chain from the anchored identity to every signature."""
    world = World()
    fill(world, 8)
    world.keys, _ = keyrotation.rotate(
        world.fs,
        world.keys,
        NEXT,
        hub_ts=world.now,
        lead_seconds=1,
        overlap_seconds=3,
        journal=world.control,
    )
    world.now += 1
    fill(world, 12)
    world.store.close()
    assert_clean(world.fs)
    paths = [path for path in world.fs.files() if path.startswith("log/checkpoint-") and "index" not in path]
    checkpoints = [Checkpoint.from_bytes(read_file(world.fs, path)) for path in paths]
    assert {len(checkpoint.witness_sigs or ()) for checkpoint in checkpoints} == {0, 2}
    signers = {world.keys.identity.verify_receipt(Receipt.from_bytes(framed.receipt)).hub_pk for framed in world.frames}
    assert signers == {KEY.public, SigningKey(NEXT).public}
    reopened = world.reopen()
    assert reopened.keys == world.keys
    fill(reopened, 3)
    assert_clean(reopened.fs)


@pytest.mark.req("HID-12")
def test_a_key_that_no_record_announces_is_found():
    """Whoever holds the directory could list a key of his own; only an older key can announce it."""
    world = small()
    keys = identity.load(world.fs)
    rotate(world.fs, keys)
    report = identity_errors(world.fs)
    assert report == [(layout.IDENTITY, "identity")]


def identity_errors(fs):
    return [(finding.path, finding.code) for finding in verify_data(fs).errors]


@pytest.mark.req("HID-11")
def test_the_binding_ties_checkpoints_to_hub_key_and_root():
    """spec §8.4: checkpoint-binding"""
    world = small()
    index = Index(world.fs)
    rows = identity.bindings(world.keys.identity, index)
    assert {row.label for row in rows} == set(LABELS)
    assert identity.read_binding(world.fs, world.keys.identity) == sorted(rows, key=lambda row: row.label)
    for row in rows:
        checkpoint = Checkpoint.from_bytes(read_file(world.fs, layout.checkpoint(row.label, row.upto_seq)))
        assert (checkpoint.mmr_root, checkpoint.epoch) == (row.mmr_root, row.epoch)
        checkpoint.verify(bytes.fromhex(world.keys.identity.key_map()[row.key_id]))
    other = HubIdentity.first(SigningKey(NEXT).public, valid_from=0)
    with pytest.raises(CorruptError, match="of this hub"):
        identity.read_binding(world.fs, other)


@pytest.mark.req("HID-11")
def test_the_binding_names_the_key_that_signed_also_after_a_rotation():
    """One label was sealed last by the old key, the other by the new one."""
    world = World()
    fill(world, 16)
    world.keys, _ = keyrotation.rotate(
        world.fs, world.keys, NEXT, hub_ts=world.now, lead_seconds=1, overlap_seconds=0, journal=world.control
    )
    world.now += 2
    files = world.store.files(LABELS[0])
    assert files is not None
    before = files.size
    while files.active_start <= before + 1:  # until a seal ends behind the rotation
        fill(world, 1)
    world.store.close()
    index = Index(world.fs)
    identity.write_binding(world.fs, world.keys.identity, index)
    rows = identity.read_binding(world.fs, world.keys.identity)
    key_ids = {row.key_id for row in rows}
    assert key_ids == set(world.keys.identity.key_map())
    for row in rows:
        checkpoint = Checkpoint.from_bytes(read_file(world.fs, layout.checkpoint(row.label, row.upto_seq)))
        checkpoint.verify(bytes.fromhex(world.keys.identity.key_map()[row.key_id]))
    assert_clean(world.fs)
    data = read_file(world.fs, layout.CHECKPOINT_BINDING)
    for old, new in permutations(key_id.encode() for key_id in key_ids):
        fs = copy_of(world.fs, **{layout.CHECKPOINT_BINDING: data.replace(old, new)})
        assert (layout.CHECKPOINT_BINDING, "rebuildable") in identity_errors(fs)


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"checkpoints":[{}]}', b'{"checkpoints":1}'])
def test_what_is_no_binding_is_refused(data):
    world = small()
    with pytest.raises(CorruptError):
        identity.read_binding(copy_of(world.fs, **{layout.CHECKPOINT_BINDING: data}), world.keys.identity)


def test_the_key_map_can_be_made_again():
    fs = MemFs()
    identity.create(fs, SEED, START)
    assert not identity.repair(fs)
    good = read_file(fs, layout.KEY_MAP)
    fs.replace(layout.KEY_MAP, b"{}")
    assert identity.repair(fs)
    assert read_file(fs, layout.KEY_MAP) == good


def test_a_private_key_is_nowhere_but_in_its_file(tmp_path):
    """DESIGN §9.4"""
    fs = OsFs(tmp_path)
    identity.create(fs, SEED, START)
    for directory, _, names in os.walk(tmp_path):
        for name in names:
            data = (tmp_path / directory / name).read_bytes()
            assert (SEED.hex().encode() in data or SEED in data) == name.endswith(".key")
