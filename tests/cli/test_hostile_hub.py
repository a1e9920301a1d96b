"""What a hub says is hostile to the command line too: every command that asks a hub, against one that lies.

Whatever it answers, a command ends, blames the hub by a code of its own, and nothing that steers a terminal gets
through.
"""

import json
import os
import subprocess
import sys

import pytest
from tests.cli import objects as world_of_objects
from tests.cli.homes import Cli
from tests.cli.hubprocess import running
from tests.cli.liar import ESCAPES, GREETINGS, HEAVY, QUICK, SLOW, STEERING, Liar, answer, refuses
from tests.cli.terminal import in_terminal
from tests.cli.tree import commands
from tests.examples import spread

from veen.cli.shared.output import Exit
from veen.client.identity.identity import Identity
from veen.core.crypto.ed25519 import SigningKey
from veen.core.hashing import Ht
from veen.core.objects.captoken import CapToken
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.envelopes import CheckpointResponse
from veen.core.objects.policies import realm_id_of
from veen.core.objects.profile import PRESETS
from veen.core.objects.tooling import HealthResponse, InspectResponse, LabelInfo, ReadyResponse, StatusResponse

HEX = "ab" * 32
ONE = "--stream=orders"  # one stream for all identities and wallets

# A command line for each command that can be told a hub. {token}, {file}, {dir} are paths.
LINES = {
    "attachment get": "orders 1",
    "attachment put": "orders {file}",
    "attachment verify": "orders 1",
    "authorize": "{token}",
    "bench submit": "--count 2 --stream orders",
    "bridge doctor": "--exporter alice --zone online",
    "bridge export": "orders --dir {dir}/bridge --bridge b --log-identity {dir}/log",
    "bridge import": "--dir {dir}/bridge --trust {dir}/trust --log-identity {dir}/log",
    "bridge run": "online orders --dir {dir}/bridge --bridge b --log-identity {dir}/log --times 1",
    "cap authorize": "{token}",
    "cap serve": "orders --policy {dir}/grants --for 5s",
    "cap status": HEX,
    "checkpoint list": "orders",
    "checkpoint show": "orders",
    "crdt counter add": "orders 1",
    "crdt counter get": "orders",
    "crdt lww get": "orders",
    "crdt lww set": "orders k v",
    "crdt orset add": "orders e",
    "crdt orset list": "orders",
    "crdt orset remove": "orders e",
    "crdt snapshot": "orders --kind lww --out {dir}/snapshot",
    "crud create": 'orders e i {{"n":1}}',
    "crud delete": "orders e i",
    "crud get": "orders e i",
    "crud list": "orders",
    "crud update": 'orders e i {{"n":1}}',
    "equivocation report": "{evidence}",
    "evidence export": "orders --out {dir}/evidence --force",
    "fold run": "orders --overlay kv",
    "fold show": "orders --overlay kv",
    "contacts announce": "orders",
    "contacts who": f"{HEX} --stream orders",
    "id bind": "orders",
    "id bindings": "orders",
    "id revoke-key": f"{HEX} --stream orders",
    "policy bound": "orders 2KiB",
    "inbox": "",
    "invite": "orders --for bob --out {dir}/bob.veen-invite",
    "keys check": "orders",
    "keys list": "orders",
    "keys rotate": "orders",
    "keys shred": "orders --generation 0 --yes",
    "revoke reader": "bob orders",
    "revoke writer": "bob",
    "hub admission": "",
    "hub checkpoint": "",
    "hub fence": "",
    "hub health": "",
    "hub key rotate": "",
    "hub limits": "",
    "hub metrics": "",
    "hub status": "",
    "id context add": ONE,
    "id context list": ONE,
    "id context revoke": ONE,
    "id context show": f"{HEX} {ONE}",
    "id delegate": f"{HEX} --out {{dir}}/token {ONE}",
    "id device add": ONE,
    "id device list": ONE,
    "id device revoke": f"{HEX} {ONE}",
    "id device show": f"{HEX} {ONE}",
    "id export": "{dir}/export --stream orders",
    "id external add": f"https://p.example s {ONE}",
    "id external list": ONE,
    "id external revoke": f"https://p.example s {ONE}",
    "id external show": f"{HEX} {ONE}",
    "id graph": ONE,
    "id group add": f"staff {HEX} {ONE}",
    "id group list": ONE,
    "id group revoke": f"staff {HEX} {ONE}",
    "id group show": f"{HEX} {ONE}",
    "id handle add": f"@ann {ONE}",
    "id handle list": ONE,
    "id handle revoke": f"@ann {ONE}",
    "id handle show": f"@ann {ONE}",
    "id org add": ONE,
    "id org list": ONE,
    "id org revoke": ONE,
    "id org show": f"{HEX} {ONE}",
    "id principal add": ONE,
    "id principal list": ONE,
    "id principal revoke": f"{HEX} {ONE}",
    "id principal show": f"{HEX} {ONE}",
    "id resolve": f"@ann {ONE}",
    "id role add": f"clerk --ctx me {ONE}",
    "id role list": ONE,
    "id role revoke": f"{HEX} {ONE}",
    "id role show": f"{HEX} {ONE}",
    "kv del": "orders k",
    "kv get": "orders k",
    "kv list": "orders",
    "kv put": "orders k v",
    "label-class list": "--realm shop",
    "label-class set": "orders user",
    "label-class show": "orders",
    "op access grant": f"orders {HEX} --allowed-stream-ids orders --expiry-time +1h",
    "op access list": "orders",
    "op access revoke": f"orders {HEX}",
    "op agreement confirm": "orders lease 1 accept",
    "op agreement define": f"orders lease 1 --terms-hash {{file}} --parties {HEX}",
    "op agreement list": "orders",
    "op audit list": "orders",
    "op audit missing": "orders {accesses}",
    "op audit record": f"orders {HEX} r c",
    "op delegation list": "orders",
    "op mirror list": "orders",
    "op paid allow": f"orders {HEX} --allowed-stream-ids orders --expiry-time +1h",
    "op paid disallow": f"orders {HEX}",
    "op paid list": "orders",
    "op paid pay": f"orders t {HEX} 1",
    "op publication list": "orders",
    "op publication publish": "orders p v1 {file} --content-class c",
    "op publication verify": "orders p {file}",
    "op recovery approve": f"orders {HEX} {'cd' * 32} approve",
    "op recovery execute": f"orders {HEX} {'cd' * 32} {HEX}",
    "op recovery list": "orders",
    "op recovery request": f"orders {HEX} {'cd' * 32}",
    "pow request": "",
    "proof get": "orders 1",
    "proof show": "orders 1",
    "query run": "--scope orders",
    "query sql": "--tables {dir}/tables --refresh select",
    "queue ack": f"orders {HEX}",
    "anchor list": "orders",
    "anchor verify": "orders",
    "hub key show": "",
    "monitor": "--once",
    "witness show": "",
    "queue nack": f"orders {HEX}",
    "queue pull": "orders",
    "queue push": "orders item",
    "queue show": "orders",
    "receipt get": "orders 1",
    "recorder checkpoint": "",
    "recorder emit": "orders --type t --subject s",
    "recorder init": "--admin alice --insecure-plain-keystore",
    "recorder map": "",
    "recorder replay": "--stream orders --from 1 --to 1",
    "recorder status": "",
    "recorder verify": "",
    "resync": "orders",
    "rpc call": "orders double",
    "rpc serve": "orders --exec double=/bin/true",
    "rpc trace": "orders",
    "schema check": "orders",
    "schema list": "--realm shop",
    "schema register": "a.v1 --realm shop",
    "schema show": "a.v1 --realm shop",
    "send": "orders hello",
    "stream": "orders",
    "table load": "{dir}/tables --engine python",
    "tail": "orders",
    "verify-state": "",
    "wallet adjust": f"me:EUR 1 --reason r {ONE}",
    "wallet balance": ONE,
    "wallet bridge": f"--to-context other {ONE}",
    "wallet close": f"me:EUR {ONE}",
    "wallet deposit": f"me:EUR 1 {ONE}",
    "wallet freeze": f"me:EUR {ONE}",
    "wallet history": f"me:EUR {ONE}",
    "wallet limit": f"me:EUR 10 {ONE}",
    "wallet open": f"EUR {ONE}",
    "wallet statement": f"me:EUR {ONE}",
    "wallet transfer": f"me:EUR {HEX} 1 {ONE}",
    "wallet unfreeze": f"me:EUR {ONE}",
    "wallet verify": ONE,
    "wallet withdraw": f"me:EUR 1 {ONE}",
}
# They take the options of a hub for its pin and its files, and ask nobody.
OFFLINE = {
    *("checkpoint verify", "config show", "equivocation show", "label derive", "proof verify", "receipt verify"),
    "audit copy",  # asks only for a copy that is there: tests/cli/test_audit_beside_hub.py
    "keys bind",  # asks no hub: it writes down the pinned one
    "id gateway serve",  # asks its provider before it asks the hub: tests/products/idgateway
    "id stolen",  # goes on with the next hub, and says which did not answer: tests/cli/test_theft_command.py
    "context add",  # asks for a key on a terminal only: below
    *("pending send", "pending drop"),  # ask nothing while no message waits: tests/cli/test_pending.py
    "recorder agent",  # waits for its hub, whatever that answers: tests/products/recorder/test_agent.py
    *(
        "selftest bridge",
        "selftest federated",
        "selftest overlays",
        "selftest recorder",
    ),  # bring hubs and people of their own
    "vesn mirror",  # asks only with a set that verified: tests/cli/test_vesn.py
    *("anchor publish", "hub anchor", "bridge anchor"),  # read by verified clients first: tests/cli/test_anchor.py
    *("selftest authority", "selftest core"),  # meet liars of their own: tests/products/selftest/test_probes.py
    *("mirror attest", "mirror copy", "mirror verify"),  # talk to two hubs: tests/products/federation
    *("policy assign", "policy drop", "policy push", "policy revoke", "policy run", "policy show", "revoke publish"),
    *("disc advertise hub", "disc advertise overlay", "disc advertise service", "disc list", "disc query"),
    *("disc retire", "disc serve", "disc watch", "connect apply", "connect plan"),  # verified reads: test_connect.py
    "query serve",  # reads and records through a verified client: tests/products/queryservice
    *("console open", "console serve"),  # pages turn red: tests/products/console
}
ONLY_GREETING = {
    "bridge doctor",
    "bridge import",
    "hub admission",
    "hub key show",
    "hub limits",
    "pow request",
}  # what they ask for is part of the greeting


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with running(tmp_path_factory.mktemp("hub") / "data") as hub:
        yield hub


@pytest.fixture(scope="module")
def world(tmp_path_factory, hub):
    """A home with keys, and the files that command lines name."""
    root = tmp_path_factory.mktemp("world")
    cli = Cli(root / "home")
    cli.env |= {"VEEN_WAIT": "0", "VEEN_PIN": hub.about["hub_pk"], "VEEN_IDENTITY": "alice"}
    cli.keygen()
    cli.run("id", "keyring", "new", "orders")
    cli.run("contacts", "add", "bob", Identity.create("bob", now=0).card().to_text())
    for stream in ("changes", "checkpoints", "recorder"):
        cli.run("id", "keyring", "new", f"record/infrastructure/{stream}")
    cli.run("send", "orders", "first", "--hub", hub.url)  # so that something is remembered of the hub
    cli.run("context", "add", "other", "--hub", "http://127.0.0.1:1", "--pin", hub.about["hub_pk"], "--no-use")
    issuer = SigningKey(b"\x09" * 32)
    (root / "token").write_bytes(CapToken.issue(issuer, b"\x01" * 32, (b"\x02" * 32,), ttl=10**6).to_bytes())
    (root / "evidence").write_bytes(world_of_objects.OBJECTS["equivocation"].to_bytes())
    (root / "file").write_text("content")
    (root / "grants").write_text('[[grant]]\nstreams = ["orders"]\nclients = ["*"]\nttl_sec = 60\n')
    Cli(root / "log").keygen()
    source = f'zone = "z1"\nbridge = "b"\nhub = "{hub.about["hub_pk"]}"\nexporters = ["{HEX}"]\n'
    (root / "trust").write_text(f"[[source]]\n{source}")
    (root / "accesses").write_text(f'{{"requester":"{HEX}","resource":"r"}}\n')
    for name in ("label-class", "meta-schema"):
        for realm in (realm_id_of("default"), realm_id_of("shop")):
            cli.run("id", "keyring", "new", f"hex:{Ht(f'veen/{name}', realm).hex()}")
    return cli, root


def test_every_command_that_can_be_told_a_hub_is_here():
    walked = {name for name, command in commands() if any("--hub" in parameter.opts for parameter in command.params)}
    assert walked == LINES.keys() | OFFLINE


def words_of(name, root):
    files = {file_name: root / file_name for file_name in ("token", "file", "evidence", "accesses")}
    text = LINES[name].format(dir=root, **files)
    return [*name.split(), *text.split()]


def told_of(done, name):
    """The error of a command that failed; everything else is a mistake of ours."""
    assert done.exception is None or isinstance(done.exception, SystemExit), (name, done.exception)
    assert done.exit_code not in (Exit.OK, Exit.USAGE, Exit.INTERRUPTED), (name, done.output)
    assert not any(mark in done.output for mark in STEERING), (name, done.output)
    error = json.loads(done.stderr.splitlines()[-1])
    assert error["code"] != "E.BUG", (name, error)
    return error


def attempts(cli, root, lie, *, real=None, truths=(), names=LINES, **env):
    """Run every command against a liar: the errors by name."""
    errors = {}
    with Liar(lie, real=real, truths=truths) as liar:
        for name in names:
            liar.requests.clear()
            done = cli.invoke(*words_of(name, root), "--hub", liar.url, "--json", **env)
            errors[name] = told_of(done, name)
            assert liar.requests, (name, errors[name])
    return errors


EVERYWHERE = ("no_map", "an_error_with_a_strange_code", "half_an_answer")  # one for each way to fail, at every command
SOME = ("hub status", "hub checkpoint", "hub metrics", "hub key rotate", "send", "stream", "kv list", "wallet balance")


def slow_elsewhere(lies, quick):
    return [pytest.param(lie, marks=() if lie in quick else pytest.mark.slow) for lie in lies]


@pytest.mark.parametrize("lie", spread(slow_elsewhere(QUICK, EVERYWHERE), 1))
def test_whatever_a_hub_answers_every_command_ends_and_blames_it(world, lie):
    cli, root = world
    for name, error in attempts(cli, root, QUICK[lie]).items():
        assert error["exit"] in (Exit.NETWORK, Exit.REFUSED), (name, error)


@pytest.mark.slow
@pytest.mark.parametrize("lie", slow_elsewhere(QUICK, ["an_empty_map"]))
def test_a_hub_that_knows_its_name_and_lies_about_the_rest_is_blamed(world, hub, lie):
    """The pinned hub itself, or whoever sits before it, turns hostile after the greeting."""
    cli, root = world
    asking = [name for name in LINES if name not in ONLY_GREETING]
    for name, error in attempts(cli, root, QUICK[lie], real=hub.url, truths=GREETINGS, names=asking).items():
        assert error["exit"] in (Exit.NETWORK, Exit.REFUSED), (name, error)


@pytest.mark.parametrize("lie", QUICK)
def test_each_lie_is_caught(world, lie):
    cli, root = world
    for name, error in attempts(cli, root, QUICK[lie], names=SOME).items():
        assert error["exit"] in (Exit.NETWORK, Exit.REFUSED), (name, error)


# --- time ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lie", SLOW)
def test_a_hub_that_never_finishes_is_left_at_the_deadline(world, lie):
    """One byte at a time: the limit is for the whole call. The liar itself would go on for a minute."""
    cli, root = world
    for name, error in attempts(cli, root, SLOW[lie], names=SOME[:5:4], VEEN_TIMEOUT="1").items():
        assert error["code"] == "E.NET.TIMEOUT", (name, error)


@pytest.mark.slow
def test_every_command_leaves_a_hub_that_never_finishes(world, hub):
    cli, root = world
    for name, error in attempts(cli, root, SLOW["a_dripping_body"], VEEN_TIMEOUT="1").items():
        assert error["code"] == "E.NET.TIMEOUT", (name, error)


def test_waiting_as_long_as_a_hub_says_has_an_end(world):
    cli, root = world
    lie = refuses(code="E.UNAVAILABLE", message="later", status=503, retry_after=10**9)
    for name, error in attempts(cli, root, lie, names=("hub status", "send")).items():
        assert error["code"] == "E.UNAVAILABLE", (name, error)


# --- memory --------------------------------------------------------------------------------------------------

_MEASURED = """\
import atexit, sys
path = sys.argv.pop(1)
def note():
    with open("/proc/self/status") as status, open(path, "w") as file:
        file.write(next(line for line in status if line.startswith("VmHWM")).split()[1])
atexit.register(note)
from veen.cli import main
main()
"""


def peak_mib(cli, tmp_path, *words):
    """How much memory a command had at most, and its error, if it had one."""
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, tmp_path / "peak", *words, "--json"],
        capture_output=True,
        check=False,
        timeout=120,
        env={**os.environ, **cli.env},
    )
    error = json.loads(done.stderr.splitlines()[-1]) if done.returncode else None
    return int((tmp_path / "peak").read_text()) / 1024, error


@pytest.fixture(scope="module")
def usual_mib(world, hub, tmp_path_factory):
    """What a command needs that gets an honest answer."""
    cli, root = world
    place = tmp_path_factory.mktemp("usual")
    return {name: peak_mib(cli, place, *words_of(name, root), "--hub", hub.url)[0] for name in ("hub status", "send")}


@pytest.mark.parametrize("lie", spread(HEAVY, 2))
def test_an_answer_is_bounded_before_anything_is_made_of_it(world, usual_mib, lie, tmp_path):
    """12 MiB of empty maps would be 800 MiB of objects."""
    cli, root = world
    for name, usual in usual_mib.items():
        with Liar(HEAVY[lie]) as liar:
            peak, report = peak_mib(cli, tmp_path, *words_of(name, root), "--hub", liar.url)
        assert report["code"] == "E.NET.ANSWER", (name, report)
        assert peak - usual < 150, (name, peak, usual)


# --- lists without an end --------------------------------------------------------------------------------------


def label_at(number):
    return number.to_bytes(32, "big")


def page(first, count, *, label_count, more=True):
    labels = tuple(
        LabelInfo(label=label_at(number), epoch=0, last_stream_seq=1, last_mmr_root=b"\x01" * 32, last_hub_ts=1)
        for number in range(first, first + count)
    )
    return InspectResponse(label_count=label_count, labels=labels, more=more).to_bytes()


class Lists:
    """A hub whose list of labels has no end."""

    def __init__(self, *pages):
        self._pages = pages
        self._asked = 0
        self._signed = 0

    def __call__(self, wire, path):
        if path == "/tooling/inspect":
            body = self._pages[min(self._asked, len(self._pages) - 1)]
            self._asked += 1
        else:
            signed = Checkpoint.issue(
                SigningKey(b"\x07" * 32),
                label_prev=label_at(self._signed),
                label_curr=label_at(self._signed),
                upto_seq=1,
                mmr_root=b"\x01" * 32,
                epoch=0,
            )
            body = CheckpointResponse(checkpoint=signed).to_bytes()
            self._signed += 1
        wire.send(answer(body))
        return True


@pytest.mark.parametrize(
    ("pages", "cause"),
    [
        ([page(0, 3, label_count=9)], "do not ascend"),
        ([page(0, 3, label_count=5), page(3, 3, label_count=5)], "more labels than there are"),
        ([page(0, 3, label_count=9), page(3, 0, label_count=9)], "nothing is listed"),
    ],
    ids=["the_same_again", "more_than_said", "nothing_more"],
)
def test_a_list_of_labels_makes_progress_and_has_an_end(world, pages, cause):
    cli, _ = world
    with Liar(Lists(*pages)) as liar:
        done = cli.invoke("hub", "checkpoint", "--hub", liar.url, "--json")
    report = told_of(done, "hub checkpoint")
    assert report["code"] == "E.NET.ANSWER"
    assert cause in report["cause"]
    assert len(json.loads(done.stdout)["checkpoints"]) >= 3  # what came before the lie was shown as it came


def test_a_checkpoint_of_another_label_is_not_shown_as_the_one_asked_for(world):
    cli, _ = world
    with Liar(Lists(page(5, 1, label_count=1, more=False))) as liar:
        report = told_of(cli.invoke("hub", "checkpoint", "--hub", liar.url, "--json"), "hub checkpoint")
    assert "another checkpoint" in report["cause"]


# --- terminals -----------------------------------------------------------------------------------------------

STATUS = StatusResponse(
    hub_id=b"\x01" * 32,
    hub_pk=b"\x02" * 32,
    hub_ts=1,
    epoch=0,
    profiles=(PRESETS["messaging"],),
    stream_scope=ESCAPES,
    capability_gating=False,
    pow_difficulty=0,
    limits={ESCAPES: ESCAPES, "list": [ESCAPES]},
    server_version=ESCAPES,
)
ABOUT = {
    "/tooling/status": STATUS.to_bytes(),
    "/tooling/inspect": page(0, 0, label_count=0, more=False),
    "/readyz": ReadyResponse(ready=False, reason=ESCAPES).to_bytes(),
    "/healthz": HealthResponse(ok=True, profile_id=b"\x01" * 32, peaks_count=0, last_stream_seq=0).to_bytes(),
    "/metrics": f'# HELP a {ESCAPES}\na{{b="{ESCAPES}"}} 1\nc NaN\n'.replace("\u2028", "").encode(),
}


def about(wire, path):
    wire.send(answer(ABOUT[path]))
    return True


@pytest.mark.parametrize("form", ["human", "plain", "json", "ndjson"])
@pytest.mark.parametrize("name", ["status", "health", "limits", "admission", "metrics"])
def test_no_text_of_a_hub_steers_the_terminal(world, name, form):
    cli, _ = world
    with Liar(about) as liar:
        done = cli.invoke("hub", name, "--hub", liar.url, "--output", form)
    assert done.exit_code in (Exit.OK, Exit.POLICY), done.output
    assert not any(mark in done.output for mark in STEERING)
    if form == "json":
        json.loads(done.stdout, parse_constant=pytest.fail)  # NaN is not JSON
    assert name == "health" or "x1b" in done.output or "u001b" in done.output  # it is spelled out, not lost


def test_metrics_that_are_none_are_an_error(world):
    cli, _ = world
    for body in (b"a b c\n", b"\xff\xfe 1\n", b"<html>\n"):
        with Liar(lambda wire, _, body=body: wire.send(answer(body)) or True) as liar:
            report = told_of(cli.invoke("hub", "metrics", "--hub", liar.url, "--json"), "hub metrics")
        assert report["code"] == "E.NET.ANSWER"


def test_a_proof_of_work_that_nobody_can_pay_is_an_error(world):
    cli, _ = world
    status = StatusResponse(**{name: getattr(STATUS, name) for name in STATUS.__slots__} | {"pow_difficulty": 2**60})
    with Liar(lambda wire, _: wire.send(answer(status.to_bytes())) or True) as liar:
        report = told_of(cli.invoke("pow", "request", "--hub", liar.url, "--json"), "pow request")
    assert report["code"] == "E.NET.ANSWER"


def test_the_first_contact_and_the_doctor_survive_a_liar(tmp_path, hub):
    cli = Cli(tmp_path / "home")
    for lie in ("an_empty_map", "an_error_with_a_strange_code", "not_http"):
        with Liar(QUICK[lie]) as liar:
            code, screen = in_terminal("context", "add", "dev", "--hub", liar.url, "--replace", env=cli.env)
            assert code in (Exit.NETWORK, Exit.REFUSED), screen
            assert "owned\x07" not in screen
            cli.run("context", "add", "dev", "--hub", liar.url, "--pin", hub.about["hub_pk"], "--replace")
            done = cli.invoke("doctor")
            assert done.exit_code in (Exit.NETWORK, Exit.REFUSED), done.output
            assert not any(mark in done.output for mark in STEERING)
