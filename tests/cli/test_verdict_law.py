"""The law of verdicts: no verifying command says good over an empty, a half, a foreign or a grown input (D-181).

Directories are tried here, beside a running hub. The table names the tests of commands that need more than that. A
command that prints a verdict and is in no row fails.
"""

import ast
import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.cli.hubprocess import running
from tests.cli.talk import DEV

from veen.cli.app import cli
from veen.cli.shared.output import Exit
from veen.cli.shared.shapes import VERDICT, shapes

ROOT = Path(__file__).parents[2]
INPUTS = ("empty", "half", "foreign", "grown", "running")
DIRECTORY = {
    "hub verify-data": ("hub", "verify-data"),
    "verify": ("verify",),
    "audit run": ("audit", "run", "--engine", "python"),
}
_HERE = "tests/cli/test_verdict_law.py"
_OBJECT = "one object: it has no head, and its keys are given or pinned"
_OBJECTS = (
    *("receipt verify", "checkpoint verify", "proof verify", "cap verify", "equivocation verify", "attachment verify"),
)
# What each other command is tried over: a test, or why an input cannot be given to it.
ELSEWHERE = {
    "anchor verify": (
        "tests/cli/test_anchor.py",
        ("test_goals_audit_anchor", "test_a_root_is_stated_in_the_log_of_another_hub_and_verifies_offline"),
    ),
    "audit copy": ("tests/cli/test_audit_beside_hub.py", ("test_the_copy_of_a_hub_is_checked_and_repaired",)),
    "audit diff": ("tests/cli/test_audit.py", ("test_a_half_copy_is_not_the_same_log",)),
    "audit summary": (
        "tests/cli/test_audit.py",
        ("test_a_stored_verdict_that_calls_itself_good_is_what_its_rows_say",),
    ),
    "evidence show": (
        "tests/cli/test_evidence_files.py",
        ("test_a_file_of_another_hub_than_that_of_the_context_is_not_accused",),
    ),
    "hub clone": (
        "tests/cli/test_hub.py",
        ("test_a_clone_is_checked_against_the_pinned_key", "test_a_clone_of_a_busy_hub_verifies"),
    ),
    "monitor": ("tests/hub/test_outer.py", ("test_a_monitor_names_a_source_that_refuses_its_checkpoint",)),
    "op publication verify": (
        "tests/cli/test_op_commands.py",
        ("test_published_directories_are_verified_against_the_log",),
    ),
    "recorder verify": ("tests/products/recorder/test_recorder_verdicts.py", ()),
    "bridge reconcile": (
        "tests/products/bridge/test_reconciling.py",
        (
            "test_beside_running_hubs_the_journal_is_read_and_growth_is_beyond",
            "test_nothing_exported_is_not_clean",
            "test_half_of_the_bundles_and_a_foreign_hub_are_not_clean",
        ),
    ),
    "bridge import": (
        "tests/products/bridge/test_zones.py",
        ("test_a_bundle_that_comes_twice_is_already_imported_and_one_that_waits_is_in_the_progress",),
    ),
    "bridge evidence": ("tests/products/bridge/test_walk.py", ("test_every_line_of_the_walk_works",)),
    "mirror verify": ("tests/cli/test_mirror.py", ()),
    "fold verify": ("tests/lake/test_folds_resume.py", ("test_a_state_is_verified_up_to_its_cuts",)),
    "table verify": ("tests/cli/test_table_verify.py", ()),
    "query result": ("tests/cli/test_query.py", ("test_forged_rows_are_not_printed",)),
    "query verify": ("tests/cli/test_query.py", ("test_forged_rows_are_not_verified",)),
    "query run": ("tests/cli/test_query.py", ("test_a_misspelt_field_is_reported_and_proves_no_absence",)),
    "hub retention check": ("tests/cli/test_hub_damage.py", ()),
    "keys check": ("tests/cli/test_together.py", ()),
    **dict.fromkeys(_OBJECTS, (_OBJECT, ())),
}


def ask(words, *more):
    """The exit status of a command, and what it prints as JSON."""
    result = CliRunner().invoke(cli, [*words, *map(str, more), "--json"])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, json.loads(result.stdout or result.stderr)


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """A hub that runs, with three entries in its journal; a copy of two of them; and the directory of another hub."""
    root = tmp_path_factory.mktemp("law")
    with running(root / "foreign", *DEV) as other:
        other.submit()
        other.stop()
    with running(root / "hub", *DEV) as live:
        live.submit(client_seq=1)
        live.submit(client_seq=2)
        CliRunner().invoke(cli, ["hub", "clone", str(root / "hub"), str(root / "older"), "--no-pin"])
        live.submit(client_seq=3)
        yield root, live


@pytest.mark.parametrize("words", DIRECTORY.values(), ids=DIRECTORY)
def test_a_directory_is_good_only_up_to_its_head_and_under_its_key(hub, words, tmp_path):
    root, live = hub
    key = (
        "--hub-pk" if words == ("verify",) else "--pin",
        live.about["hub_pk"].removeprefix("ed25519:" if words == ("verify",) else ""),
    )

    status, report = ask(words, root / "hub", *key)  # beside the running hub, whose entries only the journal has
    assert (status, report["ok"], report["verdict"]["value"]) == (Exit.OK, True, "good"), report
    assert [(row["read"], row["head"], row["behind"]) for row in report["verdict"]["compared"]] == [(3, 3, 0)]

    status, report = ask(words, root / "older", *key)  # the hub has grown; this directory states its own head
    assert [(row["read"], row["stated_by"]) for row in report["verdict"]["compared"]] == [(2, "its own files")]

    status, report = ask(words, root / "foreign", *key)
    assert status == Exit.BAD_EVIDENCE
    status, report = ask(words, root / "foreign")  # no key: whose log it is stays open, and the verdict says so
    assert all(row["identity"] is None for row in report["verdict"]["compared"])

    empty = tmp_path / "empty"
    CliRunner().invoke(cli, ["hub", "key", "create", "--data-dir", str(empty)])
    status, report = ask(words, empty)
    assert (status, report["verdict"]["value"], report["ok"]) == (Exit.POLICY, "incomplete", False), report

    half = tmp_path / "half"
    shutil.copytree(root / "foreign", half, ignore=shutil.ignore_patterns("*.sock"))
    cut = max((half / "log").glob("*chunk*"), key=lambda path: path.stat().st_size, default=None) or max(
        (path for path in (half / "log").iterdir() if path.name.startswith("active")),
        key=lambda path: path.stat().st_size,
    )
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size // 2])
    status, report = ask(words, half)
    assert status in (Exit.BAD_EVIDENCE, Exit.POLICY), report
    assert not report.get("ok", False)


def _names_in(path):
    return {node.name for node in ast.walk(ast.parse((ROOT / path).read_text())) if isinstance(node, ast.FunctionDef)}


def test_every_command_that_prints_a_verdict_is_tried():
    printing = {
        command
        for command, row in shapes().items()
        if row.get("schema", {}).get("properties", {}).get("verdict") == VERDICT
    }
    assert printing - set(DIRECTORY) - set(ELSEWHERE) == set(), "add a row: over which inputs is it tested?"
    missing = [
        (command, name)
        for command, (path, names) in ELSEWHERE.items()
        if path != _OBJECT
        for name in names
        if name not in _names_in(path)
    ]
    assert missing == []


LEVELS = {
    ("hub", "verify-data", "--structure"): ("not checked", "good (structure only)"),
    ("audit", "run", "--engine", "python", "--level", "structure"): ("not checked", "good (structure only)"),
    ("audit", "run", "--engine", "python", "--level", "sampled"): ("sampled", "good (a sample of the signatures)"),
    ("hub", "verify-data"): ("all", "good"),
    ("audit", "run", "--engine", "python"): ("all", "good"),
}


@pytest.mark.parametrize("words", LEVELS, ids=" ".join)
def test_a_verdict_that_verified_fewer_signatures_is_not_plainly_good(hub, words, tmp_path):
    """D-181: a verdict says what it covered. At a level that was asked for it is good at that level, and says so."""
    root, live = hub
    signatures, headline = LEVELS[words]
    key = ("--pin", live.about["hub_pk"])
    status, report = ask(words, root / "older", *key)
    assert (status, report["verdict"]["headline"]) == (Exit.OK, headline)
    assert {row["signatures"] for row in report["verdict"]["compared"]} == {signatures}
    people = CliRunner().invoke(cli, [*words, str(root / "older"), *key, "-o", "human"])
    level = headline.removeprefix("good")
    assert headline in people.stdout
    assert f"verified{level}" in people.stdout or f"the evidence is good{level}:" in people.stdout
    if words[0] == "audit":  # the verdict that was stored says the same
        out = tmp_path / "audit"
        ask((*words, "--out", str(out)), root / "older", *key)
        stored = json.loads((out / "audit.json").read_text())
        for row in stored["verdict"]["compared"]:
            del row["signatures"]  # as earlier releases left it
        (out / "audit.json").write_text(json.dumps(stored))
        assert ask(("audit", "summary"), out)[1]["verdict"]["headline"] == headline
