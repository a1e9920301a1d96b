"""`veen cap`: from the issuer's key to a message that a gated hub admits."""

import errno
import os

import pytest
from tests.cli import objects as world
from tests.cli.homes import Cli
from tests.cli.hubprocess import running
from tests.cli.talk import Talk
from tests.waiting import until

from veen.cli.shared.output import Exit
from veen.client.home import Home
from veen.client.send.captokens import TokenStore
from veen.core.objects.captoken import CapToken

STREAM = "core/quota"


@pytest.fixture(scope="module")
def issuer(tmp_path_factory):
    """An issuer in a home of its own."""
    home = Cli(tmp_path_factory.mktemp("issuer") / "home")
    home.keygen("admin")
    return home


@pytest.fixture(scope="module")
def gated(tmp_path_factory, issuer):
    """A hub that admits nothing without a token of that issuer."""
    options = ["--set", "engine.workers=0", "--set", "log.level=error", "--port", "0", "--set"]
    with running(
        tmp_path_factory.mktemp("gated") / "data",
        *options,
        f"admission.trusted_issuers={issuer.json('id', 'show')['id_sign_pk']}",
    ) as hub:
        yield hub


@pytest.fixture
def member(tmp_path, monkeypatch, gated):
    monkeypatch.chdir(tmp_path)
    talk = Talk(tmp_path / "home", gated)
    talk.new_stream(STREAM)
    return talk


def issue(issuer, subject, out, *more, ttl="10m", code=0):
    line = ["--subject", subject, "--stream", STREAM, "--ttl", ttl, "--out", out]
    return issuer.json("cap", "issue", *line, *more, code=code)


@pytest.mark.req("CAP-15")
def test_equal_inputs_give_equal_tokens_whatever_names_the_subject(issuer, member, tmp_path):
    """And the spelling of 001 spec-4 §7 is understood."""
    tokens = [
        issue(issuer, subject, tmp_path / "cap.cbor")["auth_ref"]
        for subject in (member.me["card"], member.me["client_id"], f"ed25519:{member.me['client_id']}", member.root)
    ]
    assert len(set(tokens)) == 1
    quoted = ["--issuer", issuer.root, "--subject", member.root, "--stream", STREAM, "--ttl", 600, "--rate", "100,100"]
    token = member.json("cap", "issue", *quoted, "--out", tmp_path / "quoted.cbor")
    assert token["rate"] == {"per_sec": 100, "burst": 100}
    CapToken.from_bytes((tmp_path / "quoted.cbor").read_bytes()).verify()


@pytest.mark.req("CAP-10", "CAP-17")
def test_a_token_is_authorised_kept_used_and_renewed(issuer, member, tmp_path):
    file = tmp_path / "cap.cbor"
    error = member.json("send", STREAM, "too early", code=Exit.LOCAL)
    assert error["code"] == "E.LOCAL.TOKEN"
    result = issue(issuer, member.me["card"], file)
    assert member.json("cap", "status", file, code=Exit.REFUSED)["code"] == "E.NOT_FOUND"
    granted = member.json("authorize", file)
    assert (granted["auth_ref"], granted["kept"], granted["live"]) == (result["auth_ref"], True, True)
    assert member.json("cap", "authorize", file)["issued_at"] == granted["issued_at"]  # D-47: never moved
    assert member.json("cap", "status", file)["expires_at"] == granted["expires_at"]
    assert member.json("cap", "status", result["auth_ref"])["auth_ref"] == result["auth_ref"]
    assert member.json("send", STREAM, "with what is held")["seq"]
    assert member.json("send", STREAM, "with a file", "--cap", file)["seq"]
    entry = member.entries(STREAM)[-1]
    assert entry["auth_ref"] == result["auth_ref"]
    (token,) = member.json("cap", "status")["tokens"]
    assert token["expires_at"] == granted["expires_at"]
    renewed = issuer.json("cap", "renew", file, "--out", tmp_path / "renewed.cbor")
    assert (renewed["links"], renewed["subject_pk"]) == (2, result["subject_pk"])
    assert renewed["auth_ref"] != result["auth_ref"]
    assert member.json("authorize", tmp_path / "renewed.cbor")["kept"]
    error = member.json("cap", "renew", file, code=Exit.LOCAL)
    assert "only the issuer" in error["cause"]


def test_a_token_is_shown_to_the_hub_by_the_first_message_that_needs_it(issuer, member, tmp_path):
    issue(issuer, member.me["card"], tmp_path / "cap.cbor")
    assert member.json("send", STREAM, "hello", "--cap", tmp_path / "cap.cbor")["seq"]
    assert len(member.json("cap", "status")["tokens"]) == 1
    assert member.json("send", STREAM, "again")["client_seq"] == 2
    dry = member.json("send", STREAM, "dry", "--dry-run")
    assert dry["fields"]["auth_ref"] == member.json("cap", "status")["tokens"][0]["auth_ref"]


def test_a_token_that_this_hub_has_not_seen_is_shown_to_it_when_it_is_needed(issuer, member, tmp_path):
    issue(issuer, member.me["card"], tmp_path / "cap.cbor")
    store = TokenStore(Home.at(member.root).tokens_fs("alice"))
    store.put(CapToken.from_bytes((tmp_path / "cap.cbor").read_bytes()))
    (token,) = member.json("cap", "status")["tokens"]
    assert (token["hub_id"], token["expires_at"]) == (None, None)
    assert member.json("send", STREAM, "hello")["seq"]
    (token,) = member.json("cap", "status")["tokens"]
    assert token["hub_id"] == member.hub.about["hub_id"]


def test_an_expired_token_is_told_apart_from_none(issuer, member, tmp_path):
    file = tmp_path / "cap.cbor"
    issue(issuer, member.me["card"], file, ttl="0s")
    member.json("authorize", file)
    until(lambda: member.invoke("cap", "status", file).exit_code == Exit.POLICY)
    assert member.json("send", STREAM, "late", code=Exit.LOCAL)["code"] == "E.LOCAL.TOKEN_EXPIRED"
    member.json("cap", "status", file, code=Exit.POLICY)


def test_a_token_of_an_unknown_issuer_is_refused(member, tmp_path):
    issue(member, member.me["card"], tmp_path / "own.cbor")
    assert member.json("authorize", tmp_path / "own.cbor", code=Exit.REFUSED)["code"] == "E.CAP"
    assert member.json("cap", "status")["tokens"] == []


@pytest.mark.req("CAP-06")
def test_a_forged_token_is_shown_with_its_fault_and_does_not_verify(issuer, member, tmp_path):
    file = tmp_path / "cap.cbor"
    issue(issuer, member.me["card"], file)
    assert member.json("cap", "verify", file)["ok"]
    assert member.json("cap", "show", file)["fault"] is None
    shown = member.run("cap", "show", file, "-o", "human").stdout
    assert "from its first use at a hub" in shown
    assert "fault" not in shown
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(bytes(data))
    assert "does not verify" in member.json("cap", "show", file)["fault"]
    assert member.json("cap", "verify", file, code=Exit.BAD_EVIDENCE)["code"] == "E.VERIFY"
    member.json("authorize", file, code=Exit.BAD_EVIDENCE)


def test_nonsense_is_a_usage_error(issuer, member, tmp_path):
    for line in (["--ttl", "soon"], ["--rate", "1"], ["--stream", ""]):
        issuer.run("cap", "issue", "--subject", "0" * 64, "--stream", "x", "--ttl", "1", *line, code=Exit.USAGE)
    member.run("cap", "status", "no-such-file", code=Exit.USAGE)
    (tmp_path / "receipt").write_bytes(world.RECEIPTS[0].to_bytes())
    assert member.json("cap", "show", tmp_path / "receipt", code=Exit.USAGE)["cause"] == "it is a RECEIPT"
    assert issuer.json("cap", "issue", "--subject", "nobody", "--stream", "x", "--ttl", "1", code=Exit.LOCAL)
    assert issuer.json("cap", "issue", "--subject", "veen1x", "--stream", "x", "--ttl", "1", code=Exit.LOCAL)
    assert issuer.json("cap", "issue", "--subject", "0" * 64, "--stream", f"label:{'0' * 64}", "--ttl", 1, code=5)


def test_a_token_is_used_without_being_kept_where_the_keystore_is_read_only(issuer, member, tmp_path, monkeypatch):
    """As in a Job of Kubernetes, whose keystore is a Secret."""
    issue(issuer, member.me["card"], tmp_path / "cap.cbor")

    def refuse(number):
        def put(store, token):
            raise OSError(number, os.strerror(number), "tokens")

        monkeypatch.setattr(TokenStore, "put", put)

    refuse(errno.EROFS)
    for text in ("one", "two"):
        assert member.json("send", STREAM, text, "--cap", tmp_path / "cap.cbor")["verified"]
    assert member.json("cap", "status")["tokens"] == []
    refuse(errno.ENOSPC)  # any other failure is one
    assert member.json("send", STREAM, "three", "--cap", tmp_path / "cap.cbor", code=Exit.LOCAL)


@pytest.mark.req("KEX1-02")
def test_an_issuer_gives_herself_a_token_that_outlives_her_client_keys(tmp_path, monkeypatch):
    """One command, which the refusal names; whoever is no issuer is refused by the hub."""
    monkeypatch.chdir(tmp_path)
    home = Cli(tmp_path / "home")
    issuer_pk = home.keygen("owner")["id_sign_pk"]
    options = ("--set", "engine.workers=0", "--set", "log.level=error", "--port", "0")
    with running(tmp_path / "data", *options, "--set", f"admission.trusted_issuers={issuer_pk}") as hub:
        owner = Talk.__new__(Talk)
        owner.root, owner.env, owner.hub = home.root, home.env, hub
        owner.point_at(hub)
        stream = owner.new_stream(STREAM)
        refused = owner.json("send", stream, "one", code=Exit.LOCAL)
        assert refused["code"] == "E.LOCAL.TOKEN"
        assert f"veen authorize --stream {stream}" in refused["hint"]
        granted = owner.json("authorize", "--stream", stream, "--ttl", "7d")
        assert (granted["subject_pk"], granted["kept"]) == (issuer_pk, True)
        assert owner.json("cap", "authorize", "--stream", stream, "--ttl", "7d")["auth_ref"] == granted["auth_ref"]
        for text in ("one", "two"):
            owner.run("send", stream, text)
            owner.run("id", "rotate")
        owner.run("authorize", code=Exit.USAGE)
        other = Talk(tmp_path / "other", hub)
        other.new_stream("other")
        assert other.json("authorize", "--stream", "other", code=Exit.REFUSED)["code"] == "E.CAP"
