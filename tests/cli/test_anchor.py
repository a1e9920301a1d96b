"""`veen anchor`: a root leaves the machine, and a changed history is found by it."""

import contextlib
import shutil
from pathlib import Path

import pytest
from tests.authority import Authority, serving
from tests.cli.hubprocess import running
from tests.cli.overlay_people import Person
from tests.cli.talk import DEV

from veen.cli.shared.output import Exit
from veen.io.local import OsFs
from veen.storage.anchors import AnchorFile

ADMIN = "an-administrator-token-of-this-test"
TRUSTED = Path(__file__).parents[1] / "vectors" / "timestamp" / "trusted.pem"


@pytest.fixture
def token(tmp_path):
    path = tmp_path / "admin.token"
    path.write_text(ADMIN)
    path.chmod(0o600)
    return path


@pytest.fixture
def start(tmp_path, token):
    def hub(name, *options):
        return running(tmp_path / name, *DEV, "--set", f"auth.admin_token_files={token}", *options)

    return hub


def auditor(root, hub, token, name="alice"):
    person = Person(root, hub, name)
    person.run("context", "add", "here", "--hub", hub.url, "--pin", hub.about["hub_pk"], "--token-file", token, "--use")
    return person


@pytest.mark.req("ANC-01", "ANC-04")
def test_goals_audit_anchor(start, tmp_path, token):
    """Checkpoint, anchor, verify; then the operator rewrites history under the same key, and the anchor shows it."""
    chain = tmp_path / "worm"
    with start("hub") as hub:
        pass  # makes the keys
    shutil.copytree(tmp_path / "hub", tmp_path / "rewritten", ignore=shutil.ignore_patterns("*.sock"))
    with start("hub") as hub:
        alice = auditor(tmp_path / "alice", hub, token)
        alice.new_stream("orders")
        alice.say("orders", "one", "two")
        anchored = alice.json("anchor", "publish", "orders", "--file", chain)
        assert (anchored["upto_seq"], anchored["backend"]) == (2, f"file:{chain}"[:64])
        alice.say("orders", "three")
        (listed,) = alice.json("anchor", "list", "orders")["anchors"]
        assert listed["root"] == anchored["root"]
        report = alice.json("anchor", "verify", "orders", "--file", chain)
        (verified,) = report["anchors"]
        assert verified["verified"]
        assert [(row["read"], row["stated_by"]) for row in report["verdict"]["compared"]] == [(2, "the running hub")]
        alice.run("anchor", "list", "orders")
        unchecked = alice.json("anchor", "verify", "orders", code=Exit.POLICY)  # nothing was given to check by
        assert (unchecked["ok"], unchecked["verdict"]["reasons"][0]["because"]) == (False, "coverage")
        ring = tmp_path / "key"
        alice.run("id", "keyring", "share", "orders", "--read", "--out", ring)
    with start("rewritten") as hub:  # the same key, another history; a new auditor remembers nothing
        bob = auditor(tmp_path / "bob", hub, token, "bob")
        bob.run("id", "keyring", "add", f"@{ring}")
        bob.say("orders", "one", "forged")
        now = bob.json("anchor", "publish", "orders", "--file", tmp_path / "other", "--no-record")["root"]
        assert now != anchored["root"]
        chained = AnchorFile(OsFs(chain))
        assert chained.verify(bytes.fromhex(anchored["root"]), bytes.fromhex(anchored["anchor_ref"]))
        assert not chained.verify(bytes.fromhex(now), bytes.fromhex(anchored["anchor_ref"]))  # the forgery is found
        bob.json("anchor", "publish", "orders", "--file", chain)
        bob.run("anchor", "verify", "orders", "--file", chain)
        (file,) = chain.iterdir()
        data = file.read_bytes()
        file.write_bytes(
            data.replace(bytes.fromhex(now), bytes.fromhex(anchored["root"]))
        )  # the chain is tampered with
        error = bob.json("anchor", "verify", "orders", "--file", chain, code=Exit.BAD_EVIDENCE)
        assert error["code"] == "ANCHOR.INVALID"


def test_hub_anchor_is_anchor_publish(start, tmp_path, token):
    """001 products §3.5 and §4.9 name it so."""
    chain = tmp_path / "worm"
    with start("hub", "--set", "anchor.backend=file", "--set", f"anchor.directory={chain}") as hub:
        alice = auditor(tmp_path / "alice", hub, token)
        alice.say(alice.new_stream("orders"), "one")
        anchored = alice.json("hub", "anchor", "orders")
        assert AnchorFile(OsFs(chain)).verify(bytes.fromhex(anchored["root"]), bytes.fromhex(anchored["anchor_ref"]))
        assert alice.json("anchor", "publish", "orders") == anchored  # the same record again


def test_the_hub_anchors_the_audit_log_of_a_bridge(start, tmp_path, token):
    chain = tmp_path / "worm"
    with start("hub", "--set", "anchor.backend=file", "--set", f"anchor.directory={chain}") as hub:
        alice = auditor(tmp_path / "alice", hub, token)
        alice.say(alice.new_stream("bridge/online/log"), "a record of a bundle")
        done = alice.json("bridge", "anchor", "online")
        assert (done["stream"], done["upto_seq"]) == ("bridge/online/log", 1)
        assert AnchorFile(OsFs(chain)).verify(bytes.fromhex(done["root"]), bytes.fromhex(done["anchor_ref"]))
        alice.run("bridge", "anchor", "report", code=Exit.USAGE)
        (tmp_path / "no-report").write_text("{}")
        error = alice.json("bridge", "anchor", "report", "--report", tmp_path / "no-report", code=Exit.REFUSED)
        assert error["code"] == "AGB.REPORT"


@pytest.mark.req("ANC-02")
def test_a_root_is_stated_in_the_log_of_another_hub_and_verifies_offline(start, tmp_path, token):
    evidence = tmp_path / "orders.veen-evidence"
    with start("a") as first, start("b") as second:
        alice = auditor(tmp_path / "alice", first, token)
        alice.run("context", "add", "partner", "--hub", second.url, "--pin", second.about["hub_pk"])
        for stream in ("orders", "anchors"):
            alice.new_stream(stream)
        alice.say("orders", "one")
        anchored = alice.json("anchor", "publish", "orders", "--to", "partner", "--on", "anchors", "--out", evidence)
        assert anchored["backend"] == "hub"
        folded = alice.json("fold", "run", "anchors", "--overlay", "anchor", "--context", "partner")
        assert [(moment["events"], moment["issues"]) for moment in folded["moments"]] == [(1, 0)]
        alice.say("orders", "two", "three")
        for keep_position in (True, False):  # walk A4: the log grew, and the statement is still about position 1
            checked = alice.json("anchor", "verify", "orders", "--ref", evidence, "--from", "partner")
            assert checked["verified"]
            assert checked["verdict"]["compared"][0]["read"] == 1
            position = tmp_path / "orders.veen-evidence.position.json"
            assert position.exists() == keep_position
            position.unlink(missing_ok=True)
    offline = alice.json("anchor", "verify", "--root", anchored["root"], "--ref", evidence, "--from", "partner")
    assert offline["stated_by"] == alice.client_id
    wrong = alice.json(
        "anchor", "verify", "--root", "ab" * 32, "--ref", evidence, "--from", "partner", code=Exit.BAD_EVIDENCE
    )
    assert wrong["code"] == "ANCHOR.INVALID"
    command = ("anchor", "verify", "--root", anchored["root"], "--ref", evidence)
    assert alice.json(*command, code=Exit.POLICY)["code"] == "E.INCOMPLETE"  # the context in use is of another hub
    alice.run(*command, "--from", "here", code=Exit.BAD_EVIDENCE)


@pytest.mark.req("ANC-02", "OBS-01")
def test_an_authority_that_answers_rubbish_is_counted_and_the_log_goes_on(start, tmp_path, token):
    with serving(lambda query: b"rubbish") as url:
        options = ("anchor.backend=rfc3161", f"anchor.url={url}", f"anchor.certificates={TRUSTED}")
        with start("hub", *(word for option in options for word in ("--set", option))) as hub:
            alice = auditor(tmp_path / "alice", hub, token)
            alice.new_stream("orders")
            alice.say("orders", "one")
            assert alice.json("anchor", "publish", "orders", code=Exit.REFUSED)["code"] == "E.UNAVAILABLE"
            alice.say("orders", "two")
            by_hand = ("anchor", "publish", "orders", "--tsa", url, "--certificates", TRUSTED)
            assert alice.json(*by_hand, code=Exit.NETWORK)["code"] == "ANCHOR.FAILED"
            assert alice.json("anchor", "list", "orders")["anchors"] == []
            assert alice.json("anchor", "verify", "orders", code=Exit.LOCAL)["code"] == "ANCHOR.NONE"
            with contextlib.closing(hub.client.connect()) as connection:
                connection.request("GET", "/metrics")
                assert b"\nveen_anchor_fail_total 1\n" in connection.getresponse().read()


@pytest.mark.system
@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the Debian package openssl")
@pytest.mark.req("ANC-02", "ANC-03")
def test_a_timestamp_authority_anchors_for_the_hub_and_for_a_client(start, tmp_path, token):
    authority = Authority(tmp_path / "tsa")
    out = tmp_path / "orders.tsr"
    with serving(authority.answer) as url:
        options = ("anchor.backend=rfc3161", f"anchor.url={url}", f"anchor.certificates={authority.bundle}")
        with start("hub", *(word for option in options for word in ("--set", option))) as hub:
            alice = auditor(tmp_path / "alice", hub, token)
            alice.new_stream("orders")
            alice.say("orders", "one")
            assert alice.json("anchor", "publish", "orders")["backend"] == "rfc3161"
            alice.say("orders", "two")
            command = ("anchor", "publish", "orders", "--tsa", url, "--certificates", authority.bundle)
            root = alice.json(*command, "--out", out, "--no-record")["root"]
            (row,) = alice.json("anchor", "verify", "orders", "--certificates", authority.bundle)["anchors"]
            assert row["verified"]
            alice.say("orders", "three")  # walk A4: the log grows, and the token is about position 2
            by_token = ("anchor", "verify", "orders", "--ref", out, "--certificates", authority.bundle)
            assert alice.json(*by_token)["verdict"]["compared"][0]["read"] == 2
            (tmp_path / "orders.tsr.position.json").unlink()
            assert "--upto" in alice.json(*by_token, code=Exit.USAGE)["hint"]
            assert alice.json(*by_token, "--upto", 2)["verified"]
    offline = alice.json("anchor", "verify", "--root", root, "--ref", out, "--certificates", authority.bundle)
    assert offline["time"].startswith("20")
    alice.run(
        "anchor",
        "verify",
        "--root",
        "cd" * 32,
        "--ref",
        out,
        "--certificates",
        authority.bundle,
        code=Exit.BAD_EVIDENCE,
    )


def test_options_that_do_not_go_together_are_usage_errors(tmp_path, start, token):
    with start("hub") as hub:
        alice = auditor(tmp_path / "alice", hub, token)
        alice.new_stream("orders")
        for options in (
            ("publish", "orders", "--file", tmp_path, "--tsa", "http://x"),
            ("publish", "orders", "--to", "here"),
            ("publish", "orders", "--tsa", "http://x"),
            ("verify",),
            ("verify", "--root", "ab" * 32),
        ):
            alice.run("anchor", *options, code=Exit.USAGE)
