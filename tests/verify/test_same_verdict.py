"""`veen hub verify-data` and `veen audit run` judge by the same rules: what one of them finds, the other finds.

tests/verify/reports.json has every finding of both over every damage, so that a change to the rules shows what it
changes for users. `VEEN_WRITE_REPORTS=1` writes it again.
"""

import json
import os
import re
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from tests.examples import first_of_each, spread
from tests.lake.audit_builders import CountingEngine, SlowEngine, TwoPassEngine, dump, run, tables
from tests.storage.builders import LABELS
from tests.verify.damages import DAMAGES, HONEST

from veen import native
from veen.storage.pinned import pin
from veen.verify import chunk_scan, label
from veen.verify.audit.report import document
from veen.verify.directory import verify_data

REPORTS = Path(__file__).with_name("reports.json")


@cache
def reports():
    return json.loads(REPORTS.read_text("utf-8"))


def judged(fs, path):
    """What both say about one directory, line by line; the audit in one pass and in two, on both of its paths."""
    result = run(dump(fs, path))
    for engine in (TwoPassEngine(), SlowEngine()):
        other = run(path, engine=engine)
        assert tables(other) == tables(result)
        assert document(other) == document(result)
    findings = verify_data(fs).findings
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk_scan, "LOADED", native.Loaded(None, "absent", ""))
        assert verify_data(fs).findings == findings
    return {"directory": shortened(findings), "audit": shortened(result.findings)}


def shortened(findings):
    """Findings as lines, with short names for labels and without the zeros that fill numbers in file names."""
    lines = [re.sub(r"\b0{10,}(?=\d)", "", str(finding)) for finding in findings]
    return [line.replace(LABELS[0].hex(), "LABEL-A").replace(LABELS[1].hex(), "LABEL-B") for line in lines]


@pytest.mark.parametrize("name", spread(HONEST, 3))
def test_neither_finds_anything_in_a_good_directory(name, tmp_path):
    assert judged(HONEST[name](), tmp_path) == {"directory": [], "audit": []}


@pytest.mark.skipif(native.LOADED.module is None, reason=native.LOADED.what)
@pytest.mark.parametrize("name", HONEST)
def test_the_native_module_judges_chunks_of_a_good_directory(name, monkeypatch):
    """Or the tests of this file would compare reading in Python with itself."""
    entries = []

    def counted(*args):
        chunk = chunk_scan.scan_chunk(*args)
        entries.append(0 if chunk is None else chunk.entries)
        return chunk

    monkeypatch.setattr(label, "scan_chunk", counted)
    assert not verify_data(HONEST[name]()).findings
    assert sum(entries) > 0


@pytest.mark.parametrize("name", HONEST)
def test_an_audit_of_a_good_directory_checks_each_chunk_once(name, tmp_path):
    engine = CountingEngine()
    result = run(dump(HONEST[name](), tmp_path), engine=engine)
    kinds = [(chunk.kind, before.kind) for before, chunk in pairwise(pin(str(tmp_path)).chunks())]
    unclaimed = kinds.count(("journal", "active"))  # no seal claims the peaks inside of a growing chunk
    assert engine.chunks == {"pass 1": result.counts["chunks"], "pass 2": unclaimed}
    assert result.counts["chunks"] > 2


@pytest.mark.parametrize("name", first_of_each(DAMAGES))
def test_both_find_what_is_damaged(name, tmp_path):
    """Or the list of damages says why one of them cannot see it; then it must not."""
    damage = DAMAGES[name]
    report = judged(damage.build(), tmp_path)
    for verifier, findings in report.items():
        assert bool(findings) == (verifier not in damage.unseen), (verifier, findings)
    if os.environ.get("VEEN_WRITE_REPORTS"):
        text = REPORTS.read_text("utf-8") if REPORTS.exists() else "{}"
        REPORTS.write_text(json.dumps(json.loads(text) | {name: report}, indent=1, sort_keys=True) + "\n", "utf-8")
        reports.cache_clear()
    assert report == reports()[name]


def test_every_report_is_of_a_damage_in_the_list():
    assert set(reports()) == set(DAMAGES)
