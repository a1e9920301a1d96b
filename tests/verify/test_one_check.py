"""Every verifier of a run of entries, over every damage that needs no directory (HOUSE §3, D-189).

tests/verify/verdicts.json has the verdict of each caller on each damage, so that a change to the rules shows what it
changes, and for whom. `VEEN_WRITE_REPORTS=1` writes it again.
"""

import json
import os
from functools import cache
from pathlib import Path

import pytest
from tests.verify.damages import DAMAGES
from tests.verify.run_callers import CALLERS, DIRECTORY_LIES, RUN_DAMAGES, RUN_LIES, verdicts_of

VERDICTS = Path(__file__).with_name("verdicts.json")


@cache
def frozen():
    return json.loads(VERDICTS.read_text("utf-8"))


@pytest.mark.parametrize("name", RUN_DAMAGES)
def test_the_verdict_of_each_caller_is_the_frozen_one(name, tmp_path):
    verdicts = verdicts_of(RUN_DAMAGES[name], tmp_path)
    if os.environ.get("VEEN_WRITE_REPORTS"):
        text = VERDICTS.read_text("utf-8") if VERDICTS.exists() else "{}"
        table = json.loads(text) | {name: verdicts}
        VERDICTS.write_text(json.dumps(dict(sorted(table.items())), indent=1) + "\n", "utf-8")
        frozen.cache_clear()
    assert verdicts == frozen()[name]


def test_the_table_has_every_damage_and_every_caller():
    assert set(frozen()) == set(RUN_DAMAGES)
    assert all(tuple(row) == CALLERS for row in frozen().values())


def test_every_lie_about_entries_is_in_the_table():
    """Lies that are left out are about labels and limits of a directory."""
    lies = {name for name, damage in DAMAGES.items() if name.startswith((*RUN_LIES, *DIRECTORY_LIES))}
    assert {name for name in lies if name not in RUN_DAMAGES} == {
        name for name in DAMAGES if name.startswith(DIRECTORY_LIES)
    }


@pytest.mark.parametrize("caller", CALLERS)
def test_every_caller_accepts_honest_runs(caller):
    assert all(frozen()[name][caller] == "good" for name in RUN_DAMAGES if name.startswith("none"))
