"""`veen audit` on directories: verdicts, exit codes, what it leaves, and what it says about bad input."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner
from tests.pipeline.audit_builders import chunks, dump, log
from tests.pipeline.test_audit_equivocation import branches

from veen.cli.app import cli
from veen.cli.shared.output import Exit


def veen(*words):
    return CliRunner().invoke(cli, ["audit", *map(str, words)])


@pytest.fixture
def hub(tmp_path):
    path = tmp_path / "hub"
    path.mkdir()
    return dump(log(20), path)


def flip(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def test_a_good_log_is_exit_code_0_and_leaves_a_report(hub, tmp_path):
    result = veen("run", hub, "--engine", "python", "--out", tmp_path / "out")
    assert result.exit_code == Exit.OK, result.output
    assert "the evidence is good: 2 labels, 20 entries" in result.stdout
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "audit.json",
        "findings.parquet",
        "commitments.parquet",
        "cursors.parquet",
        "report.html",
    }
    shown = veen("summary", tmp_path / "out", "--json")
    assert shown.exit_code == Exit.OK
    assert json.loads(shown.stdout) == json.loads((tmp_path / "out" / "audit.json").read_text())
    again = veen("run", "--data-dir", hub, "--engine", "python", "--since", tmp_path / "out", "--json")
    assert again.exit_code == Exit.OK
    assert json.loads(again.stdout)["counts"]["entries_read"] < 20


def test_a_flipped_bit_is_exit_code_1_and_is_named(hub, tmp_path):
    flip(chunks(hub)[0], 400)
    result = veen("run", hub, "--engine", "python", "--out", tmp_path / "out")
    assert result.exit_code == Exit.BAD_EVIDENCE
    assert "entry 1" in result.stderr
    assert chunks(hub)[0].name in result.stderr
    assert veen("summary", tmp_path / "out").exit_code == Exit.BAD_EVIDENCE
    findings = json.loads(veen("run", hub, "--engine", "python", "--json").stdout)["findings"]
    assert findings["codes"]["entry_hash"] == 1


def test_what_can_be_made_again_is_exit_code_6(hub):
    flip(next((hub / "log").glob("*.summary")), -1)
    result = veen("run", hub, "--engine", "python")
    assert result.exit_code == Exit.POLICY
    assert "rebuild-index" in result.stderr


def test_bad_input_is_no_bad_evidence(hub, tmp_path):
    assert veen("run", tmp_path / "nowhere", "--engine", "python").exit_code == Exit.USAGE
    assert veen("run", "--engine", "python").exit_code == Exit.USAGE
    assert veen("run", hub, "--engine", "python", "--profile", "nonsense").exit_code == Exit.USAGE
    assert veen("run", hub, "--engine", "python", "--identity", chunks(hub)[0]).exit_code == Exit.USAGE
    assert veen("run", hub, "--engine", "python", "--since", tmp_path).exit_code == Exit.LOCAL
    assert veen("summary", tmp_path).exit_code == Exit.LOCAL


def test_options_reach_the_audit(hub):
    label = chunks(hub)[0].name.split("-")[1]
    report = json.loads(
        veen("run", hub, "--engine", "python", "--label", label, "--level", "structure", "--json").stdout
    )
    assert [label_row["label"] for label_row in report["labels"]] == [label]
    assert (report["level"], report["counts"]["signatures"]) == ("structure", 0)
    words = ("--profile", "bulk", "--profile", "0,7", "--identity", hub / "hub-identity.json", "--level", "sampled")
    assert veen("run", hub, "--engine", "python", *words, "--sample", 10, "--seed", "s").exit_code == Exit.OK


def test_two_stories_are_exit_code_1_and_leave_evidence_that_anybody_can_check(tmp_path):
    left, right = branches(tmp_path)
    result = veen("diff", left, right, "--out", tmp_path / "proofs")
    assert result.exit_code == Exit.BAD_EVIDENCE
    assert "EQUIVOCATION" in result.stdout
    for file in (tmp_path / "proofs").iterdir():
        hub_pk = json.loads((tmp_path / "left" / "hub-identity.json").read_text())["hub_keys"][0]["hub_pk"]
        assert CliRunner().invoke(cli, ["verify", str(file), "--hub-pk", hub_pk]).exit_code == Exit.OK
    same = veen("diff", left, left, "--json")
    assert same.exit_code == Exit.OK
    assert json.loads(same.stdout)["ok"]


def test_the_python_engine_needs_no_spark(hub):
    """A machine without Spark and Java can audit."""
    code = (
        "import sys; sys.modules['pyspark'] = None\n"
        "from veen.verify.audit import audit\n"
        f"assert audit({str(hub)!r}).ok\n"
        "assert not [name for name in sys.modules if name.startswith('pyspark.')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
