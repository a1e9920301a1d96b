"""Compression of sealed chunks: spec §4.8.4."""

import random
import zlib

import pytest
from tests.examples import spread
from tests.storage.builders import LABELS, World, copy_of, fill
from tests.storage.oracle import assert_clean
from tests.storage.test_rebuild import rows, without_derived

from veen.core.limits import Limits
from veen.io.errors import CorruptError
from veen.storage import layout
from veen.storage.index import Index
from veen.storage.maintenance import retention
from veen.storage.maintenance.rebuild import rebuild_index
from veen.storage.maintenance.scrub import compress_chunk, is_chunk_compressed
from veen.testing.memfs import Crash, Fault
from veen.verify.directory import verify_data

ZLIB = Limits(max_checkpoint_interval=3, compression="zlib")


def filled(count=20):
    world = World(limits=ZLIB)
    fill(world, count)
    world.store.retire()
    return world


def compress(world, limits=ZLIB):
    index = Index(world.fs)
    chunks = index.list_sealed(dropped=0) if limits.compression == "zlib" else ()
    sizes = [(label, chunk, compress_chunk(world.fs, label, chunk)) for label, chunk in chunks]
    done = [(label, chunk, saved) for label, chunk, saved in sizes if saved is not None]
    index.close()
    return done


def chunk_files(fs):
    return [path for path in fs.files() if path.startswith("log/chunk-") and path.endswith(".log")]


@pytest.mark.req("STOR-17")
def test_compressed_chunks_stand_for_the_same_entries():
    """spec §4.8.4: byte-exact, chunk files only; entry boundaries do not change."""
    world = filled()
    before = world.fs.files()
    done = compress(world)
    assert len(done) == len(chunk_files(world.fs))
    assert sum(saved for _, _, saved in done) > 0
    after = world.fs.files()
    changed = {path for path in after if after[path] != before[path]}
    assert changed == set(chunk_files(world.fs))
    for path in changed:
        assert zlib.decompress(after[path]) == before[path]
    for framed in world.frames:
        files = world.store.files(framed.label)
        assert world.store.reader.frames(files, framed.stream_seq, framed.stream_seq, 0) == [framed]
    assert_clean(world.fs)
    assert compress(world) == []


@pytest.mark.req("STOR-17")
def test_compression_is_off_unless_the_registry_names_it():
    world = filled()
    assert compress(world, Limits()) == []
    assert not any(is_chunk_compressed(world.fs, path) for path in chunk_files(world.fs))


def test_a_hub_reads_and_goes_on_after_compression():
    world = filled()
    compress(world)
    world.store.close()
    again = world.reopen()
    for framed in world.frames:
        assert again.store.reader.frames(again.store.files(framed.label), framed.stream_seq, framed.stream_seq, 0) == [
            framed
        ]
    fill(again, 6)
    again.store.close()
    compress(again)
    assert_clean(again.fs)


def test_what_follows_from_the_log_is_rebuilt_from_compressed_chunks():
    world = filled()
    compress(world)
    world.store.close()
    world.bind()
    lost = without_derived(world.fs)
    rebuild_index(lost, ZLIB)
    assert rows(lost) == rows(world.fs)
    assert lost.files() == world.fs.files()


def test_compressed_chunks_can_be_erased():
    world = filled()
    compress(world)
    index = Index(world.fs)
    policy = retention.RetentionPolicy(retention.Periods(payload_sec=1))
    assert retention.apply(
        world.fs, retention.plan(index, policy, world.now + 100), world.control, dropped=world.store.drop_level
    )
    world.store.close()
    assert not chunk_files(world.fs)
    assert_clean(world.fs)


def test_a_damaged_chunk_is_left_as_it_is():
    world = filled()
    index = Index(world.fs)
    chunk = index.chunk_at(1, 1)
    assert chunk is not None
    label = index.label_of(1)
    path = layout.chunk(label, chunk.start_seq, chunk.end_seq)
    data = bytearray(world.fs.files()[path])
    data[90] ^= 1
    for bad in (bytes(data), b"", world.fs.files()[layout.chunk(label, 4, 6)]):
        fs = copy_of(world.fs, **{path: bad})
        with pytest.raises(CorruptError):
            compress_chunk(fs, label, chunk)
        assert fs.files()[path] == bad


@pytest.mark.parametrize("kind", ["lost", "torn", "done"])
def test_a_compression_that_is_cut_off_leaves_one_form_or_the_other(kind):
    for at in range(1, 7):
        world = filled()
        world.fs.fault, world.fs.operations = Fault(at, kind), 0
        with pytest.raises(Crash):
            compress(world)
        fs = world.fs.after_crash(random.Random(at))
        assert_clean(fs)


@pytest.mark.req("STOR-17")
@pytest.mark.parametrize("part", spread(range(5), 1))
def test_any_decoding_error_voids_the_chunk(part):
    """Each flipped bit of a compressed chunk is found, or changes nothing of what the chunk stands for."""
    world = filled(8)
    plain = world.fs.files()
    compress(world)
    world.store.close()
    path = layout.chunk(LABELS[0], 1, 3)
    data = world.fs.files()[path]
    silent = 0
    for bit in (*range(part * 29, len(data) * 8, 5 * 29), *range(len(data) * 8 - 48, len(data) * 8)):
        damaged = bytearray(data)
        damaged[bit >> 3] ^= 1 << (bit & 7)
        if verify_data(copy_of(world.fs, **{path: bytes(damaged)})).ok:
            # Bits that pad the last byte of a deflate stream mean nothing.
            assert zlib.decompress(bytes(damaged)) == plain[path]
            silent += 1
    assert silent <= 7
    for bad in (data[:-1], data + b"\x00", data[:2], data + data):
        report = verify_data(copy_of(world.fs, **{path: bad}))
        assert [finding.path for finding in report.errors] == [path]
