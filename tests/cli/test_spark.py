"""`veen spark`: submitting, checking, schemas and the shell."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.cli.terminal import in_terminal
from tests.lake.audit_builders import chunks, dump, log

from veen.cli.app import cli
from veen.cli.shared.output import Exit
from veen.lake.log.errors import SubmitFailed
from veen.lake.spark.submit import SHIPS, Submission, pack_all, pack_code, plan, submit

pytestmark = pytest.mark.xdist_group("jvm")


def veen(*words, **env):
    return CliRunner().invoke(cli, ["spark", *map(str, words)], env=env)


def shipped(**given):
    return Submission(**{"command": ("audit", "run", "x"), "master": "yarn"} | given)


def confs_of(made):
    words = list(made.words)
    return dict(words[at + 1].split("=", 1) for at, word in enumerate(words) if word == "--conf")


# --- submit ------------------------------------------------------------------------------------------------------


def test_a_plan_shows_what_would_be_done_and_where(tmp_path):
    options = ["--conf", "spark.executor.instances=4", "--spark-option", "--queue=audits", "--staging", tmp_path]
    report = veen(
        "submit", "--master", "yarn", *options, "--dry-run", "--json", "audit", "run", "hdfs://n/hub", "--json"
    )
    assert report.exit_code == Exit.OK, report.output
    words = json.loads(report.stdout)["command"]
    assert words[-6:] == ["audit", "run", "--engine", "spark", "hdfs://n/hub", "--json"]
    assert words[words.index("--py-files") + 1] == str(tmp_path / "veen.zip")
    assert "spark.executor.instances=4" in words
    assert "--queue=audits" in words
    assert Path(words[0]).name == "spark-submit"
    assert not list(tmp_path.iterdir())
    human = veen("submit", "--master", "yarn", "--staging", tmp_path, "--dry-run", "audit", "run", "x")
    assert "PYSPARK_PYTHON=" in human.stdout


@pytest.mark.parametrize(
    "words", ["audit run x", "query run --data-dir x", "query verify r", "fold run", "table load x"]
)
def test_every_command_that_can_run_on_spark_can_be_submitted(words):
    report = veen("submit", "--master", "yarn", "--dry-run", "--json", *words.split())
    assert report.exit_code == Exit.OK, report.output
    name = words.split()[:2]
    assert json.loads(report.stdout)["command"][-len(words.split()) - 2 :][:4] == [*name, "--engine", "spark"]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["send", "a", "b"], "knows no --engine"),
        (["audit"], "knows no --engine"),
        (["audit", "nonsense"], "there is no command"),
        (["audit", "run", "x", "--master", "yarn"], "give it before the command"),
        (["audit", "run", "x", "--engine=python"], "leave it out"),
        ([], "COMMAND"),
    ],
)
def test_what_does_not_run_on_spark_is_refused(words, why):
    report = veen("submit", "--master", "yarn", *words)
    assert report.exit_code == Exit.USAGE
    assert why in report.output
    assert veen("submit", "--master", "yarn", "--conf", "nonsense", "audit", "run", "x").exit_code == Exit.USAGE


def test_the_code_travels_whole_and_the_same_each_time(tmp_path):
    first, second = pack_code(tmp_path / "1.zip"), pack_code(tmp_path / "2.zip")
    assert first.read_bytes() == second.read_bytes()
    imports = "import veen.lake.spark.source as m, pyspark_veen"
    code = f"import sys; sys.path.insert(0, sys.argv[1]); {imports}; print(m.__file__)"
    report = subprocess.run([sys.executable, "-c", code, first], capture_output=True, text=True, check=True, cwd="/")
    assert report.stdout.startswith(str(first))


@pytest.mark.slow
def test_everything_travels_but_spark(tmp_path):
    with zipfile.ZipFile(pack_all(tmp_path / "all.zip")) as archive:
        names = archive.namelist()
    tops = {name.split("/")[0] for name in names}
    assert {"veen", "pyspark_veen", "nacl", "cbor2", "pyarrow", "numpy", "click"} <= tops
    assert not {"pyspark", "py4j", "pytest", "bin", ".."} & tops
    assert len(names) == len(set(names))
    assert any(name.startswith("nacl/") and name.endswith(".so") for name in names)


@pytest.mark.parametrize("ship", SHIPS)
@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_every_way_of_shipping_tells_executors_where_to_look(tmp_path, ship, mode):
    submission = plan(shipped(ship=ship, deploy_mode=mode, python="/opt/python"), tmp_path)
    confs = confs_of(submission)
    assert (ship == "all") == ("spark.executorEnv.PYTHONPATH" in confs)
    assert (ship == "all") == any(word.endswith("veen-site.zip#veen-site") for word in submission.words)
    assert (ship == "code") == ("--py-files" in submission.words)
    if mode == "client":
        assert submission.environment["PYSPARK_PYTHON"] == "/opt/python"
        assert submission.environment["PYSPARK_DRIVER_PYTHON"] == sys.executable
    else:
        assert confs["spark.pyspark.python"] == "/opt/python"
        assert not any("log4j" in value for value in confs.values())  # a file of this machine


def test_a_cluster_that_is_not_there_is_no_bad_evidence(tmp_path, monkeypatch):
    """spark-submit ends with 1 as well, where 1 is our word for something else."""
    home = tmp_path / "spark"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "spark-submit").write_text("#!/bin/sh\nexit 1\n")
    (home / "bin" / "spark-submit").chmod(0o755)
    report = veen("submit", "--master", "yarn", "--ship", "nothing", "audit", "run", "x", SPARK_HOME=str(home))
    assert report.exit_code == Exit.LOCAL
    assert "spark-submit ended with 1" in report.stderr
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "gone"))
    with pytest.raises(SubmitFailed, match="No such file"):
        submit(shipped(ship="nothing"), tmp_path)


# As Spark does: a child whose two outputs are one pipe, copied to the parent's stdout; and 1 whatever happened.
SPARK_SUBMIT = """#!{python}
import subprocess, sys
at = next(number for number, word in enumerate(sys.argv) if word.endswith("veen_submitted.py"))
child = subprocess.run([sys.executable, *sys.argv[at:]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
sys.stdout.buffer.write(child.stdout)
sys.exit(1)
"""
SUBMIT = """
import sys
from pathlib import Path
from veen.lake.spark.submit import Submission, submit
words, staging = sys.argv[2:], Path(sys.argv[1])
sys.exit(submit(Submission(command=tuple(words), master="local", ship="nothing"), staging))
"""


def test_outputs_and_exit_code_of_a_submitted_command_are_its_own(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "spark-submit").write_text(SPARK_SUBMIT.format(python=sys.executable))
    (tmp_path / "bin" / "spark-submit").chmod(0o755)
    path = tmp_path / "hub"
    path.mkdir()
    dump(log(20), path)
    words = ["audit", "run", str(path), "--engine", "python", "--json"]
    for expected in (Exit.OK, Exit.BAD_EVIDENCE):
        report = subprocess.run(
            [sys.executable, "-c", SUBMIT, str(tmp_path), *words],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "SPARK_HOME": str(tmp_path)},
        )
        assert report.returncode == expected, report.stderr
        assert json.loads(report.stdout)["ok"] == (expected is Exit.OK)
        assert ('"code":"E.VERIFY"' in report.stderr) == (expected is Exit.BAD_EVIDENCE)
        data = bytearray(chunks(path)[0].read_bytes())
        data[400] ^= 1
        chunks(path)[0].write_bytes(data)


@pytest.mark.slow
def test_a_submitted_audit_ends_with_its_own_verdict_and_exit_code(tmp_path):
    path = tmp_path / "hub"
    path.mkdir()
    dump(log(20), path)
    data = bytearray(chunks(path)[0].read_bytes())
    data[400] ^= 1
    chunks(path)[0].write_bytes(data)
    (tmp_path / "away").mkdir()
    words = ["spark", "submit", "--master", "local[1]", "--conf", "spark.ui.enabled=false"]
    out = tmp_path / "out"
    code, screen = in_terminal(*words, "audit", "run", path, "--out", out, cwd=tmp_path / "away", timeout=240,
                               env={"SPARK_LOCAL_IP": "127.0.0.1"})  # fmt: skip
    assert code == Exit.BAD_EVIDENCE, screen
    assert "a Java virtual machine" in screen
    assert "auditing…" in screen
    alone = CliRunner().invoke(cli, ["audit", "run", str(path), "--engine", "python", "--json"])
    assert json.loads((out / "audit.json").read_text()) == json.loads(alone.stdout)


# --- the others --------------------------------------------------------------------------------------------------


def test_check_shows_what_there_is():
    report = json.loads(veen("check", "--json").stdout)
    assert report["spark"].startswith("4.3")
    assert report["executors"] == []


def test_schemas_are_shown_in_every_form():
    report = json.loads(veen("schema", "--json").stdout)["schemas"]
    assert {"veen", "veen.receipts", "veen.checkpoints", "events"} <= {row["name"] for row in report}
    assert all(row["ddl"].startswith(row["columns"][0]["name"]) for row in report)
    assert veen("schema", "veen").stdout.startswith("veen\tlabel BINARY")
    assert "veen.receipts\n  label" in veen("schema", "-o", "human").stdout
    assert veen("schema", "nonsense").exit_code == Exit.USAGE
