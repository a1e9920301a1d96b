"""The files of a label as one sequence from entry 1 on, which verification and rebuilding read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from veen.storage import layout


@dataclass(frozen=True, slots=True)
class LabelRun:
    """A range of a label and its file."""

    kind: Literal["chunk", "active", "dropped", "missing"]
    start_seq: int
    end_seq: int | None  # None: as far as the file goes


def runs_of(
    label: bytes, files: Sequence[layout.LogFile], drops: Mapping[tuple[bytes, int], int]
) -> tuple[list[LabelRun], list[str]]:
    """Return the files of a label as one sequence from entry 1 on, and the paths that are not part of it.

    `drops` has the last entry of each erased chunk, by label and first entry.
    """
    sealed: dict[int, list[int]] = {}
    for file in files:
        if file.kind == "chunk":
            sealed.setdefault(file.start_seq, []).append(file.end_seq)
    active = {file.start_seq for file in files if file.kind == "active"}
    summaries = {file.start_seq: file.end_seq for file in files if file.kind == "summary"}
    runs: list[LabelRun] = []
    place = 1
    while True:
        if place in sealed:
            run = LabelRun("chunk", place, sealed[place].pop(0))
        elif (label, place) in drops:
            run = LabelRun("dropped", place, drops[label, place])
        elif place in active:
            runs.append(LabelRun("active", place, None))
            active.discard(place)
            break
        elif place in summaries:  # the summary tells of a chunk that is not there
            run = LabelRun("missing", place, summaries[place])
        else:
            break
        if run.end_seq is None or run.end_seq < place:
            break
        runs.append(run)
        place = run.end_seq + 1
    extra = [layout.chunk(label, start, end) for start, ends in sealed.items() for end in ends]
    return runs, extra + [layout.active(label, start) for start in sorted(active)]


def run_path(label: bytes, run: LabelRun) -> str:
    """Return the file that contains a range, or contained it."""
    if run.kind == "active" or run.end_seq is None:
        return layout.active(label, run.start_seq)
    if run.kind == "dropped":
        return layout.heads_archive(label, run.start_seq, run.end_seq)
    return layout.chunk(label, run.start_seq, run.end_seq)
