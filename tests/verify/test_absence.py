"""Absent files make a verdict incomplete, and absence alone never makes it bad: less of a log never looks better."""

import random
import re
from itertools import combinations

import pytest
from tests.examples import spread
from tests.lake.audit_builders import dump, run
from tests.storage.builders import LABELS
from tests.verify.damages import HONEST

from veen.cli.hub.data import verdict_of
from veen.core.verdict import Outcome, Verdict
from veen.storage import layout
from veen.testing.memfs import MemFs
from veen.verify.directory import verify_data

RANK = {Outcome.GOOD: 0, Outcome.INCOMPLETE: 1, Outcome.BAD: 2}
A, B = (label.hex() for label in LABELS[:2])
GROUPS = {  # files that somebody may forget to copy
    "index": (layout.INDEX,),
    "journal": (f"{layout.JOURNAL}/",),
    "control": (layout.CONTROL,),
    "label A": (f"-{A}", f"/{A}"),
    "growing chunk of B": (f"active-{B}",),
    "locations": (f"{layout.OFFSETS}/",),
    "identity": (layout.IDENTITY,),
}


def without(fs, gone):
    """A copy of a directory without the files in whose paths one of these strings is."""
    files = {path: data for path, data in fs.files().items() if not any(part in path for part in gone)}
    copy = MemFs(files)
    if layout.INDEX not in gone:
        fs.database(layout.INDEX).backup(copy.database(layout.INDEX))
    return copy


def verdicts(fs, path):
    path.mkdir(exist_ok=True)
    return verdict_of([verify_data(fs)], None), run(dump(fs, path)).verdict


def check_text(verdict):
    """The head of a label is nowhere below the entries that are said to be missing."""
    for reason in verdict.reasons:
        for last in re.findall(r"entries \d+ to (\d+)", reason.text):
            for row in verdict.compared:
                if row.log in reason.text:
                    assert row.head is not None
                    assert row.head >= int(last), reason.text
    for row in verdict.compared:
        assert row.head is None or row.read <= row.head


@pytest.mark.parametrize("name", ["at rest", "in use"])
def test_less_of_a_directory_never_looks_better(name, tmp_path):
    base = HONEST[name]()
    by_gone: dict[frozenset[str], tuple[Verdict, ...]] = {}
    for count in range(len(GROUPS) + 1):
        for gone in combinations(GROUPS, count):
            files = without(base, [part for group in gone for part in GROUPS[group]])
            by_gone[frozenset(gone)] = verdicts(files, tmp_path / str(len(by_gone)))
            for at, verdict in enumerate(by_gone[frozenset(gone)]):
                assert verdict.value is not Outcome.BAD, (at, gone, verdict.reasons)
                check_text(verdict)
                for group in gone:
                    fuller = by_gone[frozenset(gone) - {group}][at]
                    assert RANK[verdict.value] >= RANK[fuller.value], (at, gone, group)
    assert [verdict.value for verdict in by_gone[frozenset()]] == [Outcome.GOOD] * 2


@pytest.mark.parametrize("name", spread(HONEST, 2))
def test_a_directory_that_loses_file_after_file_never_looks_better(name, tmp_path):
    base = HONEST[name]()
    paths = [*base.files(), layout.INDEX]
    random.Random(1).shuffle(paths)
    ranks = [0, 0]
    for count in range(0, len(paths) + 1, 3):
        result = verdicts(without(base, paths[:count]), tmp_path / str(count))
        for at, verdict in enumerate(result):
            assert RANK[verdict.value] in (ranks[at], 1), (at, paths[:count], verdict.reasons)
            check_text(verdict)
        ranks = [RANK[verdict.value] for verdict in result]
    assert ranks == [1, 1]


def test_a_copy_without_a_label_states_the_head_that_its_index_has(tmp_path):
    """The report said "head 0 stated by its own files" beside "entries 1 to 17 are missing"."""
    verdict, _ = verdicts(without(HONEST["at rest"](), GROUPS["label A"]), tmp_path)
    [row] = [row for row in verdict.compared if row.log == A]
    assert (verdict.value, row.read, row.head, row.behind) == (Outcome.INCOMPLETE, 0, 17, 17)


def test_a_hole_ends_what_was_read(tmp_path):
    """What lies behind a chunk that is gone is verified from a checkpoint; the verdict does not count it as read."""
    for verdict in verdicts(without(HONEST["at rest"](), [layout.chunk(LABELS[0], 4, 6)]), tmp_path):
        [row] = [row for row in verdict.compared if row.log == A]
        assert (verdict.value, row.read, row.head) == (Outcome.INCOMPLETE, 3, 17)
