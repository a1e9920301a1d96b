"""Verification of many entries of a chunk at once, for chunks without faults.

The native module (docs/native.md) checks everything that `label` checks of an entry by itself and of its place in the
tree, with its signatures, on any number of threads. It reports nothing about a chunk with a fault: `label` then reads
it entry by entry and names the fault. Reports are therefore the same with and without the module.
"""

from typing import Final

from veen.core.limits import DEFAULT_LIMITS
from veen.io.local import Fs
from veen.native import LOADED, ScannedChunk
from veen.storage.scan import LabelFold, is_compressed
from veen.verify.entry import DirectoryRules

# Of a file that is read as a whole. In larger ones messages are so large that hashing takes most of the time.
_MAX_BYTES: Final = 1 << 24
_ALL: Final = 1 << 32


def clean_bytes(fs: Fs, path: str) -> bytes | None:
    """Return a chunk for `scan_chunk`; None if it is missing, compressed, empty or large."""
    if LOADED.module is None:
        return None
    try:
        file = fs.open(path)
    except FileNotFoundError:
        return None
    try:
        size = file.size()
        data = file.read_at(0, size) if size <= _MAX_BYTES else b""
    finally:
        file.close()
    return None if not data or is_compressed(data) else data


def scan_chunk(
    data: bytes, rules: DirectoryRules, label: bytes, fold: LabelFold, most: int | None
) -> ScannedChunk | None:
    """Scan the first `most` entries after those of `fold`, or all; return None if one of them has a fault."""
    if LOADED.module is None or (most is not None and most < 1):
        return None
    identity = rules.identity
    hub_keys = None if identity is None else [(key.hub_pk, key.valid_from, key.valid_until) for key in identity.keys]
    return LOADED.module.scan_chunk(
        data,
        label,
        fold.size + 1,
        _ALL if most is None else most,
        DEFAULT_LIMITS.max_msg_bytes,
        b"".join(fold.mmr.peaks()),
        hub_keys,
        rules.level == "full",
        rules.jobs,
    )
