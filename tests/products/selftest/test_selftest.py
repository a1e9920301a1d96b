"""`veen selftest`: it passes where all is well, and says so in words and exit code where it is not."""

import asyncio
import json
import os
import subprocess
import sys

import pytest
from tests.cli.homes import Cli
from tests.cli.hubprocess import running, veen

from veen.cli.shared.output import Exit
from veen.products.selftest import SUITES, suite_named
from veen.products.selftest.suite import Suite, expect, run


@pytest.fixture
def env(tmp_path):
    return {**Cli(tmp_path / "home").env}


@pytest.mark.slow
def test_every_overlay_passes_against_hubs_of_its_own(env):
    done = veen("selftest", "overlays", "--json", env=env)
    report = json.loads(done.stdout)
    assert [check for check in report["checks"] if not check["ok"]] == []
    assert done.returncode == Exit.OK
    assert len(report["checks"]) == len(suite_named("overlays").checks)
    assert report["failed"] == 0


@pytest.mark.slow
def test_it_uses_the_hub_that_is_named_and_can_be_run_again(env, tmp_path):
    with running(tmp_path / "hub") as hub:
        at = ("--hub", hub.url, "--pin", hub.about["hub_pk"])
        for _ in range(2):
            done = veen("selftest", "overlays", "--json", *at, env=env)
            assert done.returncode == Exit.OK, done.stdout
            assert json.loads(done.stdout)["hub"] == hub.url


@pytest.mark.slow
def test_a_hub_that_refuses_fails_the_test_with_its_own_exit_code(env, tmp_path):
    with running(tmp_path / "hub", "--port", 0, "--set", "engine.workers=0") as hub:  # asks for capabilities
        done = veen("selftest", "overlays", "--json", "--hub", hub.url, "--pin", hub.about["hub_pk"], env=env)
    assert done.returncode == Exit.SELFTEST
    report = json.loads(done.stdout)
    kv = next(check for check in report["checks"] if check["check"].startswith("kv"))
    assert not kv["ok"]
    assert kv["detail"]
    assert json.loads(done.stderr.splitlines()[-1])["code"] == "E.SELFTEST"


def test_a_check_that_fails_does_not_keep_the_others_from_running():
    async def good(world):
        expect(True, "all is well")

    async def bad(world):
        expect(False, "something is promised")

    async def worse(world):
        raise ValueError("boom")

    suite = Suite(name="x", about="x", checks={"bad": bad, "worse": worse, "good": good})

    async def outcomes():
        return [outcome async for outcome in run(suite)]

    report = {row.check: (row.ok, row.detail) for row in asyncio.run(outcomes())}
    assert report == {
        "bad": (False, "something is promised"),
        "worse": (False, "ValueError: boom"),
        "good": (True, None),
    }


def test_the_program_of_its_own_is_the_same_command(env):
    """001 spec-4 §8: veen-selftest core --hub URL."""
    code = "from veen.products.selftest.commands import veen_selftest_main; veen_selftest_main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "overlays", "--help"], capture_output=True, check=True, env={**os.environ, **env}
    )
    assert b"--hub" in done.stdout


def test_suites_are_found_by_name():
    for name in SUITES:
        assert suite_named(name).name == name
    with pytest.raises(KeyError):
        suite_named("nothing")


@pytest.mark.req("AGB-16")
def test_the_bridge_passes_between_two_hubs_of_its_own(env):
    done = veen("selftest", "bridge", "--json", env=env)
    assert done.returncode == Exit.OK, done.stdout
    assert json.loads(done.stdout)["failed"] == 0
