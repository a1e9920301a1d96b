"""`veen selftest core` and `authority`: they pass at honest hubs, and name the check that a dishonest one fails."""

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from tests.cli.homes import Cli
from tests.cli.hubprocess import veen
from tests.client.hubs import GATED, ISSUER, OPEN, hub_at, pin_of

from veen.cli.shared.output import Exit
from veen.client.transport.http import HttpTransport
from veen.core.crypto.ed25519 import SigningKey
from veen.core.objects.envelopes import CheckpointResponse, ErrorEnvelope, SubmitResponse
from veen.core.objects.tooling import HealthResponse, ReadyResponse, StatusResponse
from veen.hub.process.config import load
from veen.hub.process.runtime import Hub
from veen.products.selftest import suite_named
from veen.products.selftest.suite import HubAt, run
from veen.testing.hostile import (
    Equivocates,
    Forges,
    HostileHub,
    InventsFirstKey,
    Replaces,
    SignsWith,
    SwapsReceipts,
    Truncates,
    serve,
)

STREAM = "veen/selftest/7"
FOREIGN = SigningKey(b"\x55" * 32)
ADMIN_ONLY = ("policy: a revoked", "policy: its records")


@asynccontextmanager
async def scoped_hub(tmp_path, **settings):
    """A hub that trusts the issuer of self-tests for one stream, as `veen kube` sets it up."""
    config = tmp_path / "hub.yaml"
    issuers = [{"issuer": ISSUER.public.hex(), "streams": [STREAM]}]
    config.write_text(json.dumps({"admission": {"trusted_issuers": issuers}}))
    flags = {"data_dir": str(tmp_path / "hub"), "listen.port": "0", "engine.workers": "0", "log.level": "error"}
    async with Hub.serve(load(config, {}, {**flags, **settings})) as hub:
        yield hub


@asynccontextmanager
async def hostile_hub(path, settings):
    """A hub behind a socket whose answers pass through `lies`."""
    async with hub_at(path, settings=settings) as hub:
        wire = HostileHub(HttpTransport(hub.url))
        try:
            async with serve(wire) as url:
                yield hub, wire, url
        finally:
            await wire.aclose()


async def outcomes_of(name, at):
    return {outcome.check: outcome async for outcome in run(suite_named(name), hub=at)}


def failed(outcomes):
    return [check for check, outcome in outcomes.items() if outcome.ok is False]


def not_checked(outcomes):
    return [check for check, outcome in outcomes.items() if outcome.ok is None]


def visit(tmp_path, name, *, settings=OPEN, lies=lambda hub: (), **access):
    async def work():
        async with hostile_hub(tmp_path / "hub", settings) as (hub, wire, url):
            wire.lies.extend(lies(hub))
            at = HubAt(url=url, pin=pin_of(hub), wait_seconds=0.0)
            return await outcomes_of(name, replace(at, **access))

    return asyncio.run(work())


# --- honest hubs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [OPEN, GATED], ids=["open", "gated"])
def test_core_passes_at_an_honest_hub(tmp_path, settings):
    outcomes = visit(tmp_path, "core", settings=settings, issuer=ISSUER)
    assert {check: outcome.detail for check, outcome in outcomes.items() if not outcome.ok} == {}


def test_core_passes_where_labels_rotate(tmp_path):
    settings = {**GATED, "admission.profiles": "messaging", "admission.stream_scope": "enforced"}
    outcomes = visit(tmp_path, "core", settings=settings, issuer=ISSUER)
    assert failed(outcomes) == not_checked(outcomes) == []


def test_core_passes_where_work_must_be_proven(tmp_path):
    outcomes = visit(tmp_path, "core", settings={**OPEN, "admission.pow_difficulty": "4"})
    assert {check: outcome.detail for check, outcome in outcomes.items() if not outcome.ok} == {}


def test_authority_says_what_it_could_not_check_without_an_administrator(tmp_path):
    outcomes = visit(tmp_path, "authority", settings=GATED, issuer=ISSUER)
    assert failed(outcomes) == []
    assert [check.startswith(ADMIN_ONLY) for check in not_checked(outcomes)] == [False, True, True]
    for check in not_checked(outcomes):
        if check.startswith(ADMIN_ONLY):
            assert outcomes[check].detail == "not checked: no admin token (--admin-token-file FILE)"


def test_a_run_leaves_few_messages_in_one_stream(tmp_path):
    async def work():
        async with scoped_hub(tmp_path) as hub:
            at = HubAt(url=hub.url, pin=pin_of(hub), issuer=ISSUER, stream=STREAM)
            for name in ("core", "authority"):
                assert failed(await outcomes_of(name, at)) == []
            labels = list(hub.sequencer.store.state.labels.values())
            return [label.mmr.size for label in labels]

    (count,) = asyncio.run(work())
    assert 10 < count < 40


def with_admin(tmp_path, **settings):
    """The outcomes of `authority` with the token of an administrator."""
    token = tmp_path / "admin.token"
    token.write_text("a-token-of-an-administrator\n")
    token.chmod(0o600)

    async def work():
        async with scoped_hub(tmp_path, **{"auth.admin_token_files": str(token), **settings}) as hub:
            at = HubAt(url=hub.url, pin=pin_of(hub), issuer=ISSUER, stream=STREAM, admin_token_file=token)
            return await outcomes_of("authority", at)

    return asyncio.run(work())


def test_authority_checks_everything_with_an_administrator(tmp_path):
    settings = {"admission.kex1_plus": "true", "admission.auth1": "true", "admission.realm": "selftest"}
    outcomes = with_admin(tmp_path, **settings)
    assert {check: outcome.detail for check, outcome in outcomes.items() if not outcome.ok} == {}


def test_authority_says_which_policy_the_hub_does_not_enforce(tmp_path):
    outcomes = with_admin(tmp_path)
    assert failed(outcomes) == []
    details = [outcomes[check].detail for check in not_checked(outcomes)]
    assert ["admission.kex1_plus" in details[0], "admission.auth1" in details[1]] == [True, True]
    assert len(details) == 2


# --- dishonest hubs ----------------------------------------------------------------------------------------------


class AdmitsAll:
    """What the hub refused is answered with the receipt of an earlier message."""

    def __init__(self):
        self.last = None

    def __call__(self, operation, body, answer):
        if operation != "v1/submit":
            return answer
        if answer.ok:
            self.last = answer
            return answer
        return self.last or answer


class ForgetsPlaces:
    """A duplicate is refused without saying where the message stands."""

    def __call__(self, operation, body, answer):
        if operation != "v1/submit" or answer.ok:
            return answer
        envelope = ErrorEnvelope.from_bytes(answer.body)
        detail = {name: value for name, value in (envelope.detail or {}).items() if name != "stream_seq"}
        return replace(answer, body=replace(envelope, detail=detail).to_bytes())


class ChangesStatus:
    def __init__(self, **changes):
        self.changes = changes

    def __call__(self, operation, body, answer):
        if operation != "tooling/status" or not answer.ok:
            return answer
        return replace(answer, body=replace(StatusResponse.from_bytes(answer.body), **self.changes).to_bytes())


class ForgesCheckpoints:
    """Checkpoints tell another root, under a signature that is not theirs."""

    def __call__(self, operation, body, answer):
        if operation not in ("v1/checkpoint", "tooling/checkpoint_latest") or not answer.ok:
            return answer
        response = CheckpointResponse.from_bytes(answer.body)
        forged = replace(response.checkpoint, mmr_root=bytes(32))
        return replace(answer, body=replace(response, checkpoint=forged).to_bytes())


class ChangesReceipts:
    """A second answer about an entry tells another time."""

    def __call__(self, operation, body, answer):
        if operation != "v1/submit" or not answer.ok:
            return answer
        response = SubmitResponse.from_bytes(answer.body)
        later = replace(response.receipt, hub_ts=response.receipt.hub_ts + 1)
        return replace(answer, body=replace(response, receipt=later).to_bytes())


def current_key(hub):
    return hub.identity.signing_key_at(hub.sequencer.now())


LIES = {
    "an invented first key": (lambda: InventsFirstKey(FOREIGN), "identity:"),
    "unwell": (lambda: Replaces("healthz", HealthResponse(ok=False).to_bytes()), "health:"),
    "not ready": (lambda: Replaces("readyz", ReadyResponse(ready=False).to_bytes(), status=503), "health:"),
    "limits beyond the specification": (lambda: ChangesStatus(limits={"max_msg_bytes": 1 << 30}), "status:"),
    "a foreign key in the status": (lambda: ChangesStatus(hub_pk=FOREIGN.public), "status:"),
    "receipts of a foreign key": (lambda: SignsWith(FOREIGN), "submit: a message gets"),
    "receipts of another message": (SwapsReceipts, "submit: the same bytes"),
    "receipts with another time": (ChangesReceipts, "submit: a message gets"),
    "no place for a duplicate": (ForgetsPlaces, "submit: the same bytes"),
    "wrong numbers admitted": (AdmitsAll, "submit: a wrong client_seq"),
    "bad signatures admitted": (AdmitsAll, "submit: a bad signature"),
    "oversize admitted": (AdmitsAll, "submit: a message over"),
    "no proofs": (lambda: Replaces("v1/proof", b"\xa0"), "proof:"),
    "no consistency": (lambda: Replaces("tooling/consistency", b"\xa0"), "proof:"),
    "forged checkpoints": (ForgesCheckpoints, "checkpoint:"),
    "a forged entry": (lambda: _EachPage(), "read:"),
    "an empty log": (lambda: Truncates(1), "read:"),
    "another attachment": (lambda: _OnlyGet(), "attachment:"),
}


class _EachPage:
    """The author's signature of every entry is not the author's."""

    def __call__(self, operation, body, answer):
        for seq in range(1, 60):
            answer = Forges(seq)(operation, body, answer)
        return answer


class _OnlyGet:
    def __call__(self, operation, body, answer):
        is_get = operation.startswith("tooling/attachment/") and not body
        return replace(answer, body=b"something else") if is_get and answer.ok else answer


@pytest.mark.req("K8S-14")
@pytest.mark.parametrize(("lie", "check"), LIES.values(), ids=list(LIES))
def test_core_names_the_check_that_a_lying_hub_fails(tmp_path, lie, check):
    outcomes = visit(tmp_path, "core", lies=lambda hub: [lie()])
    assert any(name.startswith(check) for name in failed(outcomes)), {n: o.detail for n, o in outcomes.items()}
    for name in failed(outcomes):
        assert outcomes[name].detail


def test_an_equivocation_fails_the_receipts(tmp_path):
    outcomes = visit(tmp_path, "core", lies=lambda hub: [_EquivocatesLater(current_key(hub))])
    assert any(name.startswith("submit: a message gets") for name in failed(outcomes))


class _EquivocatesLater:
    """Asked for a receipt by number, the hub signs another root than the one it told the writer."""

    def __init__(self, key):
        self.key = key

    def __call__(self, operation, body, answer):
        return Equivocates(self.key, 1)(operation, body, answer) if operation == "v1/receipt" else answer


@pytest.mark.req("K8S-14")
def test_authority_fails_at_a_hub_that_asks_for_no_capabilities(tmp_path):
    settings = {**OPEN, "admission.trusted_issuers": "*"}
    outcomes = visit(tmp_path, "authority", settings=settings, issuer=ISSUER)
    names = failed(outcomes)
    assert any(name.startswith("capability: a message without") for name in names)
    assert any(name.startswith("capability: an issuer that nobody trusts") for name in names)


def test_authority_fails_where_the_issuer_may_give_away_more_than_its_stream(tmp_path):
    outcomes = visit(tmp_path, "authority", settings=GATED, issuer=ISSUER, stream=STREAM)
    assert failed(outcomes) == ["capability: an issuer gives away its own streams alone"]


@pytest.mark.parametrize("name", ["core", "authority"])
def test_a_hub_that_asks_for_capabilities_is_not_passed_without_an_issuer(tmp_path, name):
    outcomes = visit(tmp_path, name, settings=GATED)
    assert failed(outcomes)
    assert any("--issuer-key" in (outcomes[check].detail or "") for check in failed(outcomes))


@pytest.mark.parametrize("name", ["core", "authority"])
def test_nothing_is_tried_at_a_hub_that_is_not_the_pinned_one(tmp_path, name):
    from veen.client.verify.pin import HubPin

    outcomes = visit(tmp_path, name, pin=HubPin.of_key(FOREIGN.public))
    assert failed(outcomes) == [next(iter(outcomes))]
    assert not_checked(outcomes) == list(outcomes)[1:]


# --- the command -------------------------------------------------------------------------------------------------


def with_command(tmp_path, settings, *arguments, lies=()):
    """The report and exit code of the command, at a hub in this process."""

    async def work():
        async with hostile_hub(tmp_path / "hub", settings) as (hub, wire, url):
            wire.lies.extend(lies)
            at = ("--hub", url, "--pin", pin_of(hub).to_text(), "--json")
            return await asyncio.to_thread(veen, "selftest", *arguments, *at, env=Cli(tmp_path / "home").env)

    return asyncio.run(work())


@pytest.mark.req("K8S-14")
def test_a_lying_hub_ends_the_command_with_exit_code_7_and_one_report(tmp_path):
    done = with_command(tmp_path, OPEN, "core", lies=[ForgesCheckpoints()])
    assert done.returncode == Exit.SELFTEST
    report = json.loads(done.stdout)
    wrong = [check["check"] for check in report["checks"] if check["result"] == "failed"]
    assert wrong
    assert all(name.startswith(("checkpoint:", "client:")) for name in wrong)
    assert report["failed"] == len(wrong)
    error = json.loads(done.stderr.splitlines()[-1])
    assert error["code"] == "E.SELFTEST"


@pytest.mark.parametrize("content", [b"", b"zz" * 32, b"00" * 31, b"00" * 200, b"\xff\xfe"])
def test_a_file_without_a_key_is_named_and_not_shown(tmp_path, content):
    path = tmp_path / "issuer.key"
    path.write_bytes(content)
    path.chmod(0o600)
    cli = Cli(tmp_path / "home")
    result = cli.run(
        "selftest", "core", "--hub", "http://127.0.0.1:1", "--pin", FOREIGN.public.hex(), "--issuer-key", path, code=5
    )
    assert "issuer.key" in result.output
    assert "00" * 31 not in result.output


def test_authority_needs_a_hub_to_be_named(tmp_path):
    assert Cli(tmp_path / "home").json("selftest", "authority", code=5)["code"] == "E.LOCAL.CONTEXT"
