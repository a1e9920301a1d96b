"""`veen table verify`, end to end."""

import json

import pytest
from tests.cli.homes import Cli
from tests.lake.query_builders import KEYS
from tests.lake.table_builders import made
from tests.lake.test_tables_verify import foreign_commit

from veen.lake import tables
from veen.lake.log.keys import write_keys
from veen.lake.tables.publishing import publish


@pytest.fixture
def log(tmp_path):
    return made(tmp_path / "hub", 30).done()


@pytest.fixture
def to(log, tmp_path):
    place = str(tmp_path / "tables")
    tables.load(log, place, keys=write_keys(tmp_path / "keys", KEYS.values()), engine="python")
    publish(place, ["delta"], tables=["bronze"])
    return place


def test_the_command_ends_with_the_verdict(to, log, tmp_path):
    cli = Cli(tmp_path / "home")
    good = cli.json("table", "verify", to, "--data-dir", log)
    assert (good["ok"], good["verdict"]["value"]) == (True, "good")
    foreign_commit(to)
    report = json.loads(cli.run("table", "verify", to, "--json", code=6).stdout)
    assert (report["ok"], report["verdict"]["value"]) == (False, "incomplete")
    assert "somebody else" in cli.run("table", "publish", to, "--delta", "--table", "bronze").stderr
    assert cli.json("table", "publish", to, "--delta", "--table", "bronze")["published"][0]["foreign"] == 0
    assert "verdict: good" in cli.run("table", "verify", to).stdout
    other = made(tmp_path / "other", 80, 5).done()
    report = json.loads(cli.run("table", "verify", to, "--data-dir", other, "--json", code=1).stdout)
    assert report["verdict"]["value"] == "bad"
