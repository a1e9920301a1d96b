"""Every verifier of a run of entries, over every damage that needs no directory (HOUSE §3, D-189).

tests/verify/verdicts.json has the verdict of each caller on each damage, so that a change to the rules shows what it
changes, and for whom. `VEEN_WRITE_REPORTS=1` writes it again.
"""

import json
import os
from functools import cache
from pathlib import Path

import pytest
from tests.examples import first_of_each
from tests.verify.damages import DAMAGES
from tests.verify.run_callers import CALLERS, DIRECTORY_LIES, RUN_DAMAGES, RUN_LIES, verdicts_of

VERDICTS = Path(__file__).with_name("verdicts.json")
# Decisions that change verdicts, and the rows in which they do. A cell that they change has both verdicts.
CHANGED = {
    "D-189: client_seq": [
        "client_seq: 1 in the next chunk",
        "client_seq: 1 instead of 3",
        "client_seq: 2 in the next chunk",
        "client_seq: 2 instead of 3",
        "client_seq: 9 in the next chunk",
        "client_seq: 9 instead of 3",
        "client_seq: a new author begins with 2",
        "client_seq: a new author begins with 9",
        "client_seq: an author again, a new one begins with 2",
        "client_seq: one left out",
    ],
    "D-189: one check": [
        "entries: one missing",
        "entries: one twice",
        "flipped: MSG ciphertext",
        "flipped: MSG label",
        "flipped: RECEIPT label",
        "forged entry: label of MSG",
        "forged entry: label of RECEIPT",
    ],
    "D-189: prev_ack": [
        "forged entry: prev_ack of the future",
        "prev_ack: goes back",
        "prev_ack: of the entry itself",
        "prev_ack: of the future",
    ],
    "D-28: time": ["time: backwards", "token: authorised later"],
}


@cache
def frozen():
    return json.loads(VERDICTS.read_text("utf-8"))


def now(cell):
    return cell if isinstance(cell, str) else cell["now"]


def decision_of(name):
    """The decision by which a row changes."""
    if "client_seq" in name:
        return "D-189: client_seq"
    if "prev_ack" in name:
        return "D-189: prev_ack"
    if "time" in name or "later" in name:
        return "D-28: time"
    return "D-189: one check"


def rewritten(name, verdicts, table):
    """The row as it is written again: a verdict that is another one is beside the one before."""
    row = table.get(name, verdicts)
    was = {caller: cell if isinstance(cell, str) else cell["was"] for caller, cell in row.items()}
    return {
        caller: verdict if verdict == was[caller] else {"was": was[caller], "now": verdict, "by": decision_of(name)}
        for caller, verdict in verdicts.items()
    }


@pytest.mark.parametrize("name", first_of_each(RUN_DAMAGES))
def test_the_verdict_of_each_caller_is_the_frozen_one(name, tmp_path):
    verdicts = verdicts_of(RUN_DAMAGES[name], tmp_path)
    if os.environ.get("VEEN_WRITE_REPORTS"):
        table = json.loads(VERDICTS.read_text("utf-8")) if VERDICTS.exists() else {}
        table[name] = rewritten(name, verdicts, table)
        VERDICTS.write_text(json.dumps(dict(sorted(table.items())), indent=1) + "\n", "utf-8")
        frozen.cache_clear()
    assert verdicts == {caller: now(cell) for caller, cell in frozen()[name].items()}


def test_the_rows_that_changed_did_so_on_purpose():
    """D-189: one rule for authors, prev_ack as I6, and hub_ts going back as a warning, in every verifier."""
    changed: dict[str, dict[str, list[str]]] = {}
    for name, row in frozen().items():
        for caller, cell in row.items():
            if not isinstance(cell, str):
                assert cell["was"] != cell["now"]
                changed.setdefault(cell["by"], {}).setdefault(name, []).append(caller)
    assert {by: sorted(rows) for by, rows in changed.items()} == CHANGED


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
    assert all(now(frozen()[name][caller]) == "good" for name in RUN_DAMAGES if name.startswith("none"))
