"""`veen selftest recorder` passes, on a hub of its own."""

import json

import pytest
from tests.cli.homes import Cli
from tests.cli.hubprocess import veen


@pytest.mark.slow
@pytest.mark.req("SDR-14")
def test_the_recorder_passes_its_own_test(tmp_path):
    done = veen("selftest", "recorder", "--json", env=Cli(tmp_path / "home").env)
    outcome = json.loads(done.stdout)
    assert [check for check in outcome["checks"] if not check["ok"]] == []
    assert len(outcome["checks"]) == 2
    assert done.returncode == 0
