"""`veen op`, `veen label-class` and `veen schema` against a real hub."""

import json

import pytest
from tests.cli.homes import Cli
from tests.cli.hubprocess import running
from tests.cli.overlay_people import Person
from tests.cli.talk import DEV

from veen.cli.shared.output import Exit
from veen.core.hashing import H
from veen.core.objects.captoken import CapToken
from veen.overlays.operations.common import account_id_of

STREAMS = ("shop", "market", "access", "contracts", "models", "recovery", "audit", "side")


class Issuer(Person):
    """Somebody whose key a hub trusts from its start on."""

    def __init__(self, root):
        Cli.__init__(self, root)
        self.me = self.keygen("alice")
        self.client_id, self.principal, self.card = self.me["client_id"], self.me["id_sign_pk"], self.me["card"]


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    root = tmp_path_factory.mktemp("operations")
    alice = Issuer(root / "alice")
    trusted = ("--set", f"admission.trusted_issuers={alice.me['id_sign_pk']}")
    with running(root / "hub", *DEV, *trusted) as hub:
        alice.point_at(hub)
        bob = Person(root / "bob", hub, "bob")
        for stream in STREAMS:
            bob.join(alice, alice.new_stream(stream))
        yield alice, bob


@pytest.fixture
def policy(tmp_path):
    def write(**members):
        path = tmp_path / "policy.json"
        path.write_text(json.dumps(members))
        return path

    return write


def account(person):
    return account_id_of(bytes.fromhex(person.principal)).hex()


@pytest.mark.req("PAID-02", "PAID-04", "OPC-05")
def test_payments_count_or_say_by_which_code_they_do_not(people, policy):
    alice, bob = people
    path = policy(issuing=[alice.principal], default_currency="EUR")
    paid = alice.json("op", "paid", "pay", "market", "issue", bob.card, 100, "--policy", path, "--ttl-seconds", "10m")
    assert paid["counted"]
    bob.json(
        "op", "paid", "pay", "market", "translate", alice.card, 30, "--policy", path, "--operation-args", '{"n":1}'
    )
    poor = bob.json("op", "paid", "pay", "market", "x", alice.card, 71, "--policy", path, code=Exit.POLICY)
    assert poor["code"] == "PAID.FUNDS"
    theft = bob.json(
        *("op", "paid", "pay", "market", "x", bob.card, 1, "--payer-account", alice.card, "--policy", path),
        code=Exit.POLICY,
    )
    assert theft["code"] == "PAID.RIGHTS"
    listed = alice.json("op", "paid", "list", "market", "--policy", path)
    balances = {balance_row["account"]: balance_row["balance"] for balance_row in listed["balances"]}
    assert balances == {account(alice): -70, account(bob): 70}
    assert listed["sums"] == {"EUR": 0}
    assert paid["operation_id"] in listed["operations"]
    before = alice.json("op", "paid", "list", "market", "--policy", path, "--as-of", paid["seq"])
    assert len(before["operations"]) == 1
    assert "EUR" in alice.run("op", "paid", "list", "market", "--policy", path).stdout


@pytest.mark.req("PAID-04", "OPC-04")
def test_a_payment_that_the_hub_refuses_is_not_executed(people, policy, tmp_path):
    """Receipt means committed, any error means not executed."""
    alice, bob = people
    path = policy(issuing=[alice.principal], default_currency="EUR")
    before = bob.json("op", "paid", "list", "shop", "--policy", path)
    other = alice.json(
        "cap", "issue", "--subject", "ab" * 32, "--stream", "shop", "--ttl", "1h", "--out", tmp_path / "t"
    )
    assert other["auth_ref"]
    refused = alice.json(
        *("op", "paid", "pay", "shop", "issue", bob.card, 9, "--policy", path, "--cap", tmp_path / "t"),
        code=Exit.REFUSED,
    )
    assert refused["code"] in ("E.AUTH", "E.CAP")
    after = bob.json("op", "paid", "list", "shop", "--policy", path)
    assert after["state_hash"] == before["state_hash"]


@pytest.mark.req("PAID-08")
def test_an_owner_lets_another_debit_up_to_an_amount(people, policy):
    alice, bob = people
    path = policy(issuing=[alice.principal], default_currency="EUR")
    debit = ("op", "paid", "pay", "shop", "x", bob.card, 5, "--payer-account", alice.card, "--policy", path)
    alice.json(
        *("op", "paid", "allow", "shop", bob.card, "--allowed-stream-ids", "shop", "--expiry-time", "+1h"),
        *("--maximum-amount", 5, "--no-token", "--policy", path),
    )
    bob.json(*debit)
    assert bob.json(*debit, code=Exit.POLICY)["code"] == "PAID.AMOUNT"
    alice.json("op", "paid", "disallow", "shop", bob.card, "--policy", path)
    assert bob.json(*debit, code=Exit.POLICY)["code"] == "PAID.RIGHTS"


@pytest.mark.req("GRANT-03", "GRANT-05")
def test_a_grant_that_counts_comes_with_a_token_that_the_hub_knows(people, policy, tmp_path):
    alice, bob = people
    path = policy(granters=[alice.principal])
    grant = ("--allowed-stream-ids", "shop", "--expiry-time", "+1h", "--policy", path)
    refused = bob.json("op", "access", "grant", "access", bob.card, *grant, code=Exit.POLICY)
    assert refused["code"] == "GRANT.AUTHORITY"
    granted = alice.json("op", "access", "grant", "access", bob.card, *grant, "--token-out", tmp_path / "token")
    token = CapToken.from_bytes((tmp_path / "token").read_bytes())
    token.verify()
    assert token.auth_ref().hex() == granted["auth_ref"]
    assert token.subject_pk.hex() == bob.principal
    assert alice.json("cap", "status", granted["auth_ref"])["live"]
    listed = bob.json("op", "access", "list", "access", "--policy", path)
    assert [row["live"] for row in listed["grants"]] == [True]
    assert [issue["code"] for issue in listed["issues"]] == ["GRANT.AUTHORITY"]
    alice.json(
        *("op", "access", "revoke", "access", bob.card, "--policy", path),
        *("--target-capability-reference", granted["operation_id"]),
    )
    listed = bob.json("op", "access", "list", "access", "--policy", path)
    assert [row["live"] for row in listed["grants"]] == [False]
    assert listed["revoked_refs"] == [granted["operation_id"]]


@pytest.mark.req("DELEG-02", "DELEG-03")
def test_an_agent_acts_for_a_principal_by_a_chain_of_tokens(people, tmp_path):
    alice, bob = people
    principal = alice.me["id_sign_pk"]
    for subject, name in ((principal, "first"), (bob.card, "second")):
        alice.run(
            "cap", "issue", "--subject", subject, "--stream", "contracts", "--ttl", "1h", "--out", tmp_path / name
        )
    (tmp_path / "terms").write_text("we agree")
    alice.json(
        *("op", "agreement", "define", "contracts", "lease", 1, "--terms-hash", tmp_path / "terms"),
        *("--parties", principal),
    )
    decide = ("op", "agreement", "confirm", "contracts", "lease", 1, "accept", "--principal", principal)
    bad = bob.json(*decide, "--chain", tmp_path / "second", code=Exit.POLICY)
    assert bad["code"] == "DELEG.CHAIN"
    direct = bob.json(*decide[:-2], "--party-identity", principal, code=Exit.POLICY)
    assert direct["code"] == "AGREE.SPEAKER"
    done = bob.json(*decide, "--chain", tmp_path / "first", "--chain", tmp_path / "second")
    assert done["counted"]
    listed = alice.json("op", "agreement", "list", "contracts")
    assert listed["active"] == {H(b"lease").hex(): 1}
    chains = alice.json("op", "delegation", "list", "contracts")["executions"]
    assert list(chains) == [done["operation_id"]]
    assert len(chains[done["operation_id"]]["chain"]) == 2
    bob.run(*decide[:-2], "--chain", tmp_path / "second", code=Exit.USAGE)


@pytest.mark.req("PUB-03", "PUB-04")
def test_published_directories_are_verified_against_the_log(people, tmp_path):
    alice, bob = people
    (tmp_path / "model" / "sub").mkdir(parents=True)
    (tmp_path / "model" / "sub" / "weights").write_bytes(b"w" * 5000)
    (tmp_path / "model" / "config").write_text("{}")
    publish = (
        "op",
        "publication",
        "publish",
        "models",
        "llama",
        "v1.0.0",
        tmp_path / "model",
        "--content-class",
        "model",
    )
    published = alice.json(*publish)
    assert published["counted"]
    assert alice.json(*publish, code=Exit.POLICY)["code"] == "PUB.DUPLICATE"
    hijack = (
        "op",
        "publication",
        "publish",
        "models",
        "llama",
        "v2.0.0",
        tmp_path / "model",
        "--content-class",
        "model",
    )
    assert bob.json(*hijack, code=Exit.POLICY)["code"] == "PUB.OWNER"
    verified = bob.json("op", "publication", "verify", "models", "llama", tmp_path / "model")
    assert verified["verified"]
    root = bob.json("op", "publication", "root", tmp_path / "model")
    assert root == {"content_form": "tree", "content_root": verified["content_root"]}
    manifest = tmp_path / "model.manifest"
    listed = alice.json("op", "publication", "manifest", tmp_path / "model", "--out", manifest)
    assert (listed["content_root"], listed["files"]) == (verified["content_root"], 2)
    weights = tmp_path / "model" / "sub" / "weights"
    part = ("op", "publication", "verify", "models", "llama", weights)
    alone = bob.json(*part, code=Exit.POLICY)  # walk A9: a genuine file of a published directory is not accused
    assert (alone["verdict"]["value"], alone["verdict"]["reasons"][0]["because"]) == ("incomplete", "coverage")
    assert bob.json(*part, "--manifest", manifest)["verified"]
    (tmp_path / "model" / "config").write_text("{} ")
    whole = ("op", "publication", "verify", "models", "llama", tmp_path / "model", "--manifest", manifest)
    changed = bob.json(*whole, code=Exit.BAD_EVIDENCE)
    assert changed["verdict"]["reasons"] == [{"because": "evidence", "text": "changed: config"}]
    assert bob.json(*part, "--manifest", manifest)["verified"]  # the others are as they were
    other = (*part[:-1], tmp_path / "model" / "config", "--manifest", manifest)
    assert bob.json(*other, code=Exit.BAD_EVIDENCE)["verdict"]["value"] == "bad"
    foreign = tmp_path / "foreign.manifest"
    bob.run("op", "publication", "manifest", tmp_path / "model", "--out", foreign)
    assert bob.json(*part, "--manifest", foreign, code=Exit.POLICY)["verdict"]["value"] == "incomplete"
    false = bob.json("op", "publication", "verify", "models", "llama", tmp_path / "model", code=Exit.BAD_EVIDENCE)
    assert false["verdict"]["value"] == "bad"
    (tmp_path / "model" / "link").symlink_to(tmp_path / "model" / "config")
    bob.run("op", "publication", "root", tmp_path / "model", code=Exit.LOCAL)
    bob.run("op", "publication", "verify", "models", "other", tmp_path / "model" / "config", code=Exit.LOCAL)
    assert "v1.0.0" in bob.run("op", "publication", "list", "models").stdout
    assert "v1.0.0" in json.dumps(bob.json("op", "publication", "list", "models"))


@pytest.mark.req("RECOV-04", "RECOV-06")
def test_guardians_recover_an_identity(people, policy):
    alice, bob = people
    lost, new = "aa" * 32, "bb" * 32
    path = policy(guardians=[alice.principal, bob.principal], threshold=2)
    policy_ = ("--policy", path)
    early = alice.json("op", "recovery", "approve", "recovery", lost, new, "approve", *policy_, code=Exit.POLICY)
    assert early["code"] == "RECOV.NO_REQUEST"
    bob.json("op", "recovery", "request", "recovery", lost, new, *policy_)
    first = alice.json("op", "recovery", "approve", "recovery", lost, new, "approve", *policy_)
    alone = bob.json(
        "op", "recovery", "execute", "recovery", lost, new, first["operation_id"], *policy_, code=Exit.POLICY
    )
    assert alone["code"] == "RECOV.THRESHOLD"
    second = bob.json("op", "recovery", "approve", "recovery", lost, new, "approve", *policy_)
    both = (first["operation_id"], second["msg_id"])
    bob.json("op", "recovery", "execute", "recovery", lost, new, *both, *policy_)
    listed = alice.json("op", "recovery", "list", "recovery", *policy_)
    assert listed["remapped"][lost]["new_identity"] == new
    late = alice.json("op", "recovery", "approve", "recovery", lost, new, "approve", *policy_, code=Exit.POLICY)
    assert late["code"] == "RECOV.LATE"


@pytest.mark.req("QAUD-02", "QAUD-04")
def test_accesses_are_audited_and_missing_ones_found(people, policy, tmp_path):
    alice, bob = people
    path = policy(services=[alice.principal])
    record = ("op", "audit", "record", "audit", bob.card, "patient:1", "personal-data", "--policy", path)
    alice.json(*record, "--purpose-code", "billing")
    assert bob.json(*record, code=Exit.POLICY)["code"] == "QAUD.SERVICE"
    listed = bob.json("op", "audit", "list", "audit", "--policy", path)["accesses"]
    assert [row["resource"] for row in listed.values()] == ["patient:1"]
    accesses = tmp_path / "accesses"
    accesses.write_text(json.dumps({"requester": bob.principal, "resource": "patient:1"}) + "\n")
    alice.json("op", "audit", "missing", "audit", accesses, "--policy", path)
    accesses.write_text((json.dumps({"requester": bob.principal, "resource": "patient:1"}) + "\n") * 2)
    twice = alice.invoke("op", "audit", "missing", "audit", accesses, "--policy", path, "--json")
    assert len(json.loads(twice.stdout)["missing"]) == 1  # a message for each access
    accesses.write_text(json.dumps({"requester": bob.principal, "resource": "patient:2"}) + "\n")
    result = alice.invoke("op", "audit", "missing", "audit", accesses, "--policy", path, "--json")
    assert result.exit_code == Exit.POLICY
    assert json.loads(result.stdout)["missing"][0]["resource"] == "patient:2"
    accesses.write_text("[]\n")
    alice.run("op", "audit", "missing", "audit", accesses, code=Exit.USAGE)


def test_an_empty_mirror_list_is_no_fault(people):
    alice, _ = people
    assert alice.json("op", "mirror", "list", "side")["sources"] == []


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        '{"grantors": []}',
        '{"granters": "x"}',
        '{"granters": ["zz"]}',
        '{"speakers": [{}]}',
        '{"guardians": [], "threshold": -1}',
        '{"guardians_of": {"me": {}}}',
        '{"default_currency": 1}',
        '{"owners": []}',
    ],
)
def test_a_policy_that_cannot_be_used_is_a_usage_error(people, tmp_path, text):
    alice, _ = people
    path = tmp_path / "policy.json"
    path.write_text(text)
    for noun in ("paid", "access", "recovery"):
        done = alice.invoke("op", noun, "list", "side", "--policy", path, "--json")
        if done.exit_code:
            assert done.exit_code == Exit.USAGE, done.output
            return
    pytest.fail("no command refuses it")


@pytest.mark.req("LCL-01", "LCL-02", "LCL-03")
def test_classes_of_labels_are_set_shown_and_advise(people):
    alice, _ = people
    result = alice.json("label-class", "set", "shop", "wallet", "--retention", "30d", "--make-keys")
    assert result["counted"]
    shown = alice.json("label-class", "show", "shop")["labels"]
    assert [(row["class"], row["advice"]["pad_blocks"]) for row in shown] == [("wallet", [256, 1024])]
    assert shown[0]["advice"]["retention_sec"] == 30 * 86_400
    alice.run("label-class", "set", "s*", "bulk", "--sensitivity", "high")
    listed = alice.json("label-class", "list")["labels"]
    assert [row["class"] for row in listed] == ["bulk", "bulk"]  # shop and side
    assert alice.json("label-class", "show", f"label:{'ab' * 32}")["labels"][0]["class"] is None
    alice.run("label-class", "set", "nothing-*", "bulk", code=Exit.LOCAL)
    alice.run("label-class", "show", "shop")


@pytest.mark.req("META-01", "META-02", "META-03")
def test_schemas_are_registered_and_unregistered_ones_in_use_are_named(people):
    alice, _ = people
    alice.json("kv", "put", "side", "k", "v")
    result = alice.json("schema", "register", "example.thing.v1", "--doc-url", "https://example.com", "--make-keys")
    assert (result["version"], result["counted"]) == ("v1", True)
    report = alice.invoke("schema", "check", "side", "--json")
    assert report.exit_code == Exit.POLICY
    assert json.loads(report.stdout)["schemas"][0]["name"] == "veen.kv.v1"
    alice.json("schema", "register", "veen.kv.v1")
    assert alice.json("schema", "check", "side")["unregistered"] == []
    shown = alice.json("schema", "show", "example.thing.v1")
    assert (shown["doc_url"], shown["unbound"], shown["contested"]) == ("https://example.com", False, False)
    alice.json("schema", "register", "odd.v1", "--schema-id", "ab" * 32)
    assert alice.json("schema", "show", "ab" * 32)["unbound"]
    assert "| veen.kv.v1 | v1 |" in alice.run("schema", "list", "--emit-docs").stdout
    alice.run("schema", "show", "nothing.v1", code=Exit.LOCAL)
    alice.run("schema", "list")
    assert {row["name"] for row in alice.json("schema", "list")["schemas"]} >= {"veen.kv.v1", "example.thing.v1"}


def test_a_policy_says_whether_keys_speak_for_principals():
    """D-179"""
    from veen.cli.op.args import _Policy
    from veen.cli.shared.output import Fail

    assert [_Policy(policy)._is_speaking() for policy in ({}, {"speaks": "on"}, {"speaks": "off"})] == [
        True,
        True,
        False,
    ]
    with pytest.raises(Fail):
        _Policy({"speaks": False})._is_speaking()
