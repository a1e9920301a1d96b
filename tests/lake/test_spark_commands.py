"""`veen spark` with a session that runs already."""

import json

import pytest
from click.testing import CliRunner
from tests.lake.audit_builders import dump, log

from veen.cli.app import cli
from veen.cli.shared.output import Exit
from veen.lake.log.columns import ddl
from veen.lake.log.schemas import SCHEMAS

pytestmark = pytest.mark.xdist_group("spark")


def veen(*words, **more):
    return CliRunner().invoke(cli, ["spark", *map(str, words)], **more)


@pytest.mark.slow
def test_check_asks_executors(spark, tmp_path):
    done = veen("check", "--master", "local[2]", "--json")
    assert done.exit_code == Exit.OK, done.output
    assert [executor["lacking"] for executor in json.loads(done.stdout)["executors"]] == [[]]
    done = veen("check", "--master", "local[2]", "--key-file", tmp_path / "gone")
    assert done.exit_code == Exit.LOCAL
    assert "cannot read the key file" in done.stderr


def test_the_shell_runs_what_it_is_given(spark, tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))  # its history belongs to the user
    (tmp_path / "hub").mkdir()
    path = dump(log(20), tmp_path / "hub")
    done = veen("shell", "--execute", f"print(reader(spark).load({str(path)!r}).count(), audit({str(path)!r}).ok)")
    assert (done.exit_code, done.stdout) == (Exit.OK, "20 True\n"), done.output
    script = tmp_path / "script.py"
    script.write_text("print(spark.range(5).count())")
    assert veen("shell", "--script", script).stdout == "5\n"
    typed = veen("shell", input="print(spark.range(4).count())\n")
    assert "4\n" in typed.output
    assert spark.range(2).count() == 2  # it did not stop a session that it had not started


def test_schemas_are_in_the_words_of_spark(spark):
    for columns in SCHEMAS.values():
        assert spark.createDataFrame([], ddl(columns)).schema.fieldNames() == [column.name for column in columns]
