"""Compression of sealed chunks, if the limit registry enables it (spec §4.8.4).

Only chunk files are compressed, only when they are sealed and retired, and each is replaced atomically: readers see one
form or the other, and both contain the same frames. Offsets, sizes and hashes are those of the plain chunk.
"""

import zlib
from typing import Final

from veen.core.tree.mmr import Mmr
from veen.io.errors import CorruptError
from veen.io.local import Fs
from veen.storage import layout
from veen.storage.index import ChunkRow
from veen.storage.reader import inflate
from veen.storage.scan import chunk_frames, is_compressed, read_file

_LEVEL: Final = 6  # fixed: the algorithm and its parameters are part of the deterministic configuration


def is_chunk_compressed(fs: Fs, path: str) -> bool:
    file = fs.open(path)
    try:
        return is_compressed(file.read_at(0, 1))
    finally:
        file.close()


def compress_chunk(fs: Fs, label: bytes, chunk: ChunkRow) -> int | None:
    """Compress one sealed and retired chunk of a hub at rest; return the bytes saved, None if it was compressed.

    CorruptError is raised for a damaged chunk, because compressed damage would be harder to locate.
    """
    path = layout.chunk(label, chunk.start_seq, chunk.end_seq)
    if (packed := pack_chunk(fs, label, chunk)) is None:
        return None
    data, saved = packed
    return saved if replace_chunk(fs, path, data) else None


def pack_chunk(fs: Fs, label: bytes, chunk: ChunkRow) -> tuple[bytes, int] | None:
    """Return the compressed bytes of a chunk and the bytes saved; None if it is compressed already.

    Raise FileNotFoundError if it is missing, CorruptError if it is damaged.
    """
    path = layout.chunk(label, chunk.start_seq, chunk.end_seq)
    if is_chunk_compressed(fs, path):
        return None
    hashes = Mmr()
    for _, entry in chunk_frames(fs, path):
        hashes.append(entry.entry_hash)
    if not hashes.size or hashes.root() != chunk.entry_hashes_root:
        raise CorruptError(path, 0, "its entries are not those that were sealed")
    plain = read_file(fs, path)
    data = zlib.compress(plain, _LEVEL)
    if inflate(data, len(plain), path) != plain:
        raise CorruptError(path, 0, "compression does not give the same bytes back")
    return data, len(plain) - len(data)


def replace_chunk(fs: Fs, path: str, data: bytes) -> bool:
    """Replace a chunk by its compressed form; return False if it was erased meanwhile, because it must not come back.

    Nothing may remove the chunk while this runs: beside a running hub it runs between two retirements.
    """
    if not fs.exists(path):
        return False
    fs.replace(path, data)
    return True
