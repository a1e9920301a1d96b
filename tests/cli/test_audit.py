"""`veen audit` on directories: verdicts, exit codes, what it leaves, and what it says about bad input."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
from click.testing import CliRunner
from tests.lake.audit_builders import chunks, dump, log, reframed
from tests.lake.test_audit_equivocation import branches

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


# --- what an audit goes on from -----------------------------------------------------------------


def without_signatures(hub):
    """No seal covers the growing chunk: the signatures in it are all that shows who wrote it."""
    for chunk in (hub / "log").glob("active-*"):
        reframed(chunk, 0, lambda msg, receipt: (msg, replace(receipt, hub_sig=bytes(64))))


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (("--level", "structure"), ()),
        (("--level", "sampled"), ()),
        (("--level", "sampled", "--seed", "a"), ("--level", "sampled", "--seed", "b")),
        (("--level", "sampled", "--sample", "1"), ("--level", "sampled")),
        (("--profile", "bulk"), ()),
        (("--chunks-only",), ()),
        ((), ("--level", "structure")),
    ],
)
def test_an_audit_goes_on_only_from_one_with_equal_inputs(hub, tmp_path, before, now):
    """`--level full --since` of an audit without signatures said that the evidence is good."""
    if "structure" in before:
        without_signatures(hub)
    assert veen("run", hub, "--engine", "python", "--out", tmp_path / "out", *before).exit_code == Exit.OK
    again = veen("run", hub, "--engine", "python", "--since", tmp_path / "out", *now)
    assert again.exit_code == Exit.LOCAL
    assert "a whole audit is needed" in again.stderr
    same = veen("run", hub, "--engine", "python", "--since", tmp_path / "out", *before)
    assert same.exit_code == Exit.OK, same.output


def test_the_verdict_of_an_earlier_version_is_shown_as_incomplete_and_nothing_goes_on_from_it(hub, tmp_path):
    """Stored verdicts stay readable; they do not say what was compared, nor under which options."""
    out = tmp_path / "out"
    assert veen("run", hub, "--engine", "python", "--out", out).exit_code == Exit.OK
    stored = json.loads((out / "audit.json").read_text())
    old = {name: value for name, value in stored.items() if name not in ("verdict", "inputs")}
    (out / "audit.json").write_text(json.dumps(old))
    shown = veen("summary", out, "--json")
    assert shown.exit_code == Exit.POLICY
    report = json.loads(shown.stdout)
    assert (report["ok"], report["verdict"]["value"]) == (False, "incomplete")
    assert "does not say what was compared" in report["verdict"]["reasons"][0]["text"]
    assert veen("run", hub, "--engine", "python", "--since", out).exit_code == Exit.LOCAL
    (out / "audit.json").write_text(json.dumps(old | {"ok": False}))
    assert veen("summary", out).exit_code == Exit.BAD_EVIDENCE
    (out / "audit.json").write_text(json.dumps(stored | {"verdict": {"compared": 7}}))
    assert veen("summary", out).exit_code == Exit.LOCAL


def test_a_stored_verdict_that_calls_itself_good_is_what_its_rows_say(hub, tmp_path):
    out = tmp_path / "out"
    veen("run", hub, "--engine", "python", "--out", out)
    stored = json.loads((out / "audit.json").read_text())
    stored["verdict"]["compared"][0]["head"] += 1
    (out / "audit.json").write_text(json.dumps(stored))
    shown = veen("summary", out, "--json")
    assert shown.exit_code == Exit.POLICY
    assert json.loads(shown.stdout)["verdict"]["value"] == "incomplete"


# --- what a verdict covers (D-181) ----------------------------------------------------------------------------


def test_a_report_says_what_was_compared(hub, tmp_path):
    result = veen("run", hub, "--engine", "python", "--out", tmp_path / "out", "--json")
    report = json.loads(result.stdout)
    rows = {row["label"]: row["size"] for row in report["labels"]}
    assert {row["log"]: row["read"] for row in report["verdict"]["compared"]} == rows
    assert {row["stated_by"] for row in report["verdict"]["compared"]} == {"its own files"}
    page = (tmp_path / "out" / "report.html").read_text()
    assert "What was compared" in page
    assert "its own files" in page


def test_an_audit_of_nothing_is_incomplete(hub, tmp_path):
    """A directory of a hub without entries, and one without labels that were asked for."""
    for name in ("log", "nodes", "offsets"):
        for path in (hub / name).iterdir():
            path.unlink()
    empty = veen("run", hub, "--engine", "python", "--chunks-only", "--out", tmp_path / "out")
    assert empty.exit_code == Exit.POLICY, empty.output
    assert "nothing was compared" in empty.output
    assert "The verdict is incomplete" in (tmp_path / "out" / "report.html").read_text()


def test_a_label_that_is_not_here_was_not_audited(hub):
    result = veen("run", hub, "--engine", "python", "--label", "00" * 32)
    assert result.exit_code == Exit.POLICY
    assert "nothing was compared" in result.output


def test_a_half_copy_is_not_the_same_log(hub, tmp_path):
    shutil.copytree(hub, tmp_path / "half")
    for chunk in chunks(tmp_path / "half")[1:]:
        chunk.unlink()
    result = veen("diff", hub, tmp_path / "half", "--json")
    assert result.exit_code == Exit.POLICY
    report = json.loads(result.stdout)
    assert (report["ok"], report["verdict"]["value"]) == (False, "incomplete")
    assert sorted(row["behind"] for row in report["verdict"]["compared"])[0] == 0
