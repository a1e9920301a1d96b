"""`veen selftest federated`: it passes at two honest hubs, and fails where an invariant between them is broken."""

import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from tests.cli.homes import Cli
from tests.cli.hubprocess import running, veen
from tests.client.hubs import GATED, OPEN, hub_at, pin_of
from tests.examples import spread

from veen.cli.shared.output import Exit
from veen.client.transport.http import HttpTransport
from veen.products.selftest import suite_named
from veen.products.selftest.suite import HubAt, run
from veen.testing.hostile import Drops, Equivocates, Forges, HostileHub, Truncates, serve


@pytest.fixture
def env(tmp_path):
    return {**Cli(tmp_path / "home").env}


@asynccontextmanager
async def two_hubs(tmp_path, lies=lambda hub: (), settings=OPEN):
    """Two hubs; what the second one answers passes through `lies`."""
    async with AsyncExitStack() as stack:
        hub = await stack.enter_async_context(hub_at(tmp_path / "a"))
        other = await stack.enter_async_context(hub_at(tmp_path / "b", settings=settings))
        wire = HostileHub(HttpTransport(other.url))
        stack.push_async_callback(wire.aclose)
        url = await stack.enter_async_context(serve(wire))
        wire.lies.extend(lies(other))
        yield (
            HubAt(url=hub.url, pin=pin_of(hub), wait_seconds=0.0),
            HubAt(url=url, pin=pin_of(other), wait_seconds=0.0),
        )


def outcomes(tmp_path, **options):
    async def work():
        async with two_hubs(tmp_path, **options) as (hub, peer):
            return [outcome async for outcome in run(suite_named("federated"), hub=hub, peer=peer)]

    return asyncio.run(work())


def test_two_honest_hubs_pass_and_what_would_copy_a_hub_is_not_tried(tmp_path):
    rows = outcomes(tmp_path)
    assert [(row.check, row.detail) for row in rows if row.ok is False] == []
    assert [row.check for row in rows if row.ok is None] == ["replica: the same log, verified, and read-only"]


@pytest.mark.parametrize(
    "lies",
    spread(
        [
            lambda hub: [Truncates(3)],
            lambda hub: [Drops(2)],
            lambda hub: [Forges(2)],
            lambda hub: [Equivocates(hub.identity.signing_key_at(hub.sequencer.now()), 2)],
        ],
        2,
    ),
    ids=["truncates", "drops", "forges", "equivocates"],
)
def test_a_hub_that_lies_fails(tmp_path, lies):
    rows = outcomes(tmp_path, lies=lies)
    failed = [row for row in rows if row.ok is False]
    assert failed
    assert all(row.detail for row in failed)


def test_a_hub_that_refuses_fails(tmp_path):
    assert any(row.ok is False for row in outcomes(tmp_path, settings=GATED))


def test_one_hub_twice_fails_at_once_and_nothing_else_is_tried(tmp_path):
    async def work():
        async with hub_at(tmp_path / "a") as hub:
            at = HubAt(url=hub.url, pin=pin_of(hub), wait_seconds=0.0)
            return [outcome async for outcome in run(suite_named("federated"), hub=at, peer=at)]

    rows = asyncio.run(work())
    assert rows[0].ok is False
    assert "one identity" in rows[0].detail
    assert all(row.ok is None for row in rows[1:])


@pytest.mark.req("K8S-14")
def test_the_command_starts_hubs_of_its_own_beside_a_default_context(tmp_path):
    """A context that no option names is not one of the two hubs: this one does not even answer."""
    cli = Cli(tmp_path / "home")
    cli.run(
        "context", "add", "dev", "--hub", "http://127.0.0.1:1", "--pin", f"ed25519:{'5b' * 32}", "--no-check", "--use"
    )
    done = veen("selftest", "federated", "--json", env=cli.env | {"VEEN_ROLE": "selftest"})
    assert (done.returncode, json.loads(done.stdout)["hub"]) == (Exit.OK, None), done.stderr
    assert veen("selftest", "federated", "--context", "dev", env=cli.env).returncode == Exit.USAGE


@pytest.mark.slow
def test_the_command_passes_with_hubs_of_its_own(env):
    done = veen("selftest", "federated", "--json", env=env)
    report = json.loads(done.stdout)
    assert [check for check in report["checks"] if check["ok"] is not True] == []
    assert done.returncode == Exit.OK


def test_the_command_fails_with_its_own_exit_code_where_a_check_fails(env, tmp_path):
    with running(tmp_path / "hub") as hub:
        at = ("--hub", hub.url, "--pin", hub.about["hub_pk"])
        peer = ("--peer-hub", hub.url, "--peer-pin", hub.about["hub_pk"])
        assert veen("selftest", "federated", *at, env=env).returncode == Exit.USAGE
        done = veen("selftest", "federated", "--json", *at, *peer, env=env)
    assert done.returncode == Exit.SELFTEST
    assert json.loads(done.stderr.splitlines()[-1])["code"] == "E.SELFTEST"
