"""The manifest: the entries of each label and epoch in sealed chunks, by keys alone (spec §3.4.1, STOR-19).

Its leaves are the rows of the index with the key (epoch, label, start_seq, end_seq). The key has everything that
completeness depends on, so no segment is opened, however large the log is.
"""

from collections.abc import Iterator
from itertools import groupby

from veen.storage import layout
from veen.storage.findings import LogFinding
from veen.storage.index import Index


def check_manifest(index: Index) -> Iterator[LogFinding]:
    """Yield ranges in no chunk, or in two, up to the start of each label's active chunk."""
    for (label, active_start), leaves in groupby(index.manifest(), key=lambda leaf: leaf[:2]):
        following = 1
        for _, _, start_seq, end_seq in leaves:
            if start_seq is None or end_seq is None:  # a label without sealed chunks
                break
            if start_seq != following:
                yield _gap(label, following, start_seq)
            following = end_seq + 1
        if following != active_start:
            yield _gap(label, following, active_start)


def _gap(label: bytes, expected: int, next_seq: int) -> LogFinding:
    what = (
        f"entries {expected} to {next_seq - 1} are in no chunk"
        if next_seq > expected
        else f"entry {next_seq} is in two chunks"
    )
    return LogFinding(layout.INDEX, 0, "gap", f"label {label.hex()}: {what}")
