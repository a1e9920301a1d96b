"""`veen evidence` and `veen verify` of evidence files: one exports, somebody else checks without hub and keys."""

import json

import pytest
from tests.browser import Browser
from tests.cli.homes import Cli
from tests.cli.test_receipt import flip
from tests.evidence_builders import OLD, STRANGER, World, resealed

from veen.cli.shared.output import Exit
from veen.core import canonical
from veen.lake.query.descriptor import normalise
from veen.lake.query.digest import EvidenceHash, RowsHash
from veen.lake.query.store import ResultStore

SECRET = "the valve is open"


@pytest.fixture
def stream(talk, request):
    name = talk.new_stream(f"evidence/{request.node.name}")  # of this test alone: the hub serves all of them
    talk.say(name, "one", SECRET, "three", "four", "five")
    return name


@pytest.fixture
def stranger(tmp_path):
    """An auditor: a home without keys, contexts or hub."""
    return Cli(tmp_path / "elsewhere")


@pytest.mark.parametrize("options", [(), ("--open",), ("--plaintext",)], ids=["sealed", "opened", "stated"])
def test_an_outsider_verifies_a_range_with_nothing_but_the_key_of_the_hub(talk, stream, stranger, tmp_path, options):
    file = tmp_path / "e.veen-evidence"
    exported = talk.json("evidence", "export", stream, "--from-seq", 2, "--to-seq", 4, *options, "--out", file)
    assert (exported["entry_count"], exported["logs"][0]["ranges"]) == (3, ["2..4"])
    pin = talk.hub.about["hub_pk"]
    verified = stranger.json("verify", file, "--hub-pk", pin)
    assert verified["ok"]
    assert verified["keys"] == "pinned"
    assert verified["stream"] == stream
    assert verified["sha256"] == exported["sha256"]
    assert any("Completeness: 2 to 4" in line for line in verified["proves"])
    assert any("clock is not" in line for line in verified["does_not_prove"])
    shown = stranger.json("evidence", "show", file, "--hub-pk", pin)
    assert [row["seq"] for row in shown["entries"]] == [2, 3, 4]
    assert shown["entries"][0]["body"] == (SECRET if options else None)
    assert (SECRET.encode() in file.read_bytes()) == (options == ("--plaintext",))
    assert f"hub key {pin}" in stranger.run("evidence", "show", file).stdout
    human = stranger.run("verify", file, "--hub-pk", pin).stdout
    assert "evidence verified" in human
    assert "it does not prove:" in human


def test_the_same_range_gives_the_same_bytes_and_files_are_not_replaced_unasked(talk, stream, tmp_path):
    first, second = tmp_path / "1", tmp_path / "2"
    talk.json("evidence", "export", stream, "--to-seq", 3, "--open", "--out", first)
    talk.say(stream, "later")
    talk.json("evidence", "export", stream, "--to-seq", 3, "--open", "--out", second)
    assert first.read_bytes() == second.read_bytes()
    talk.json("evidence", "export", stream, "--out", first, code=Exit.LOCAL)
    assert first.read_bytes() == second.read_bytes()
    talk.json("evidence", "export", stream, "--out", first, "--force", "--head")
    assert first.read_bytes() != second.read_bytes()


def test_whose_it_is_must_be_said(talk, stream, stranger, tmp_path):
    file = tmp_path / "e"
    talk.json("evidence", "export", stream, "--out", file)
    assert talk.json("verify", file)["keys"] == "pinned"  # by the context
    assert stranger.json("verify", file)["keys"] == "not pinned"
    assert stranger.run("verify", file).stdout.startswith("keys not pinned")
    error = stranger.json("verify", file, "--hub-pk", STRANGER.public.hex(), code=Exit.BAD_EVIDENCE)
    assert error["code"] == "E.EVIDENCE.HUB"


def test_entries_that_the_exporter_cannot_open_stay_sealed_and_that_is_said(talk, stream, tmp_path):
    talk.run("id", "keyring", "remove", stream, "--yes")
    talk.new_stream(stream)  # another key for the same stream
    done = talk.run("evidence", "export", stream, "--open", "--out", tmp_path / "e")
    assert "5 of 5 entries stay sealed" in done.stderr


def test_the_stream_is_not_named_unless_that_is_wanted(talk, stream, stranger, tmp_path):
    talk.json("evidence", "export", stream, "--no-name", "--out", tmp_path / "e")
    assert stream.encode() not in (tmp_path / "e").read_bytes()
    assert stranger.json("verify", tmp_path / "e", "--hub-pk", talk.hub.about["hub_pk"])["stream_id"] is None


def test_times_choose_entries(talk, stream, tmp_path):
    entries = talk.entries(stream)
    until = entries[2]["hub_ts"]
    file = tmp_path / "e"
    exported = talk.json("evidence", "export", stream, "--since", "-1h", "--until", until, "--out", file)
    assert exported["entry_count"] == sum(entry["hub_ts"] <= until for entry in entries)
    error = talk.json("evidence", "export", stream, "--since", "+1h", "--out", tmp_path / "f", code=Exit.LOCAL)
    assert error["code"] == "E.LOCAL.NO_ENTRIES"
    assert not (tmp_path / "f").exists()


def test_the_entries_behind_a_query_result_are_chosen(talk, stream, tmp_path):
    """The store of results keeps which entries were verified; those of other streams stay out."""
    label = talk.entries(stream)[0]["label"]
    rows = [{"label": label, "stream_seq": 1}, {"label": label, "stream_seq": 4}, {"label": "ab" * 32, "stream_seq": 9}]
    asked = normalise(
        {"scope": [stream], "projection": ["*"], "query_id": "q1", "evidence": {"mode": "full"}}
    ).descriptor
    store, evidence = ResultStore(tmp_path / "queries"), EvidenceHash(asked, "r1")
    store.submit(asked, "r1")
    with store.start("r1") as writer:
        for row in map(canonical.encode, rows):
            writer.evidence(row)
            evidence.add(row)
    digest = {
        "query_id": "q1", "result_id": "r1", "version": 1, "row_count": 0, "evidence_policy": {"mode": "full"},
        "rows_hash": RowsHash().hexdigest(), "evidence_hash": evidence.hexdigest(), "coverage_hash": "",
        "executed_at": "", "hub_id": "",
    }  # fmt: skip
    final = {"digest": digest, "state": "completed"}
    (tmp_path / "queries" / "results" / "r1" / "final.json").write_bytes(canonical.encode(final))
    options = ("--query", "r1", "--store", tmp_path / "queries")
    exported = talk.json("evidence", "export", stream, *options, "--out", tmp_path / "e")
    assert exported["logs"][0]["ranges"] == ["1..1", "4..4"]
    talk.run("evidence", "export", stream, *options, "--from-seq", 1, "--out", tmp_path / "f", code=Exit.USAGE)


def test_a_page_carries_the_same_evidence(talk, stream, tmp_path):
    file, html = tmp_path / "e", tmp_path / "e.html"
    exported = talk.json("evidence", "export", stream, "--open", "--out", file, "--html", html)
    page = html.read_text()
    assert exported["html"] == str(html)
    assert "Not verified by anybody yet" in page
    assert SECRET in page
    assert talk.hub.about["hub_pk"].removeprefix("ed25519:") in page


@pytest.mark.system
def test_what_a_user_exported_from_a_hub_is_verified_by_a_browser(talk, stream, tmp_path):
    html = tmp_path / "orders.html"
    talk.json("evidence", "export", stream, "--from-seq", 2, "--open", "--head", "--html", html)
    with Browser.started() as browser:
        tab = browser.open(html.as_uri())
        tab.wait('["good", "partly", "bad", "unknown"].includes(document.body.dataset.state)')
        assert tab.evaluate("document.body.dataset.state") == "partly"
        assert SECRET in tab.text("#entries")
        assert talk.hub.about["hub_pk"].removeprefix("ed25519:") in tab.text("#facts")
        assert len(tab.requests()) == 1
        assert tab.complaints() == []


def test_a_damaged_file_and_an_altered_one_have_different_codes(stranger, tmp_path):
    file = tmp_path / "e"
    key = ("--hub-pk", OLD.public.hex())
    data = World().evidence().to_file()
    file.write_bytes(data)
    assert stranger.json("verify", file, *key)["ok"]
    flip(file, len(data) - 400)
    error = stranger.json("verify", file, *key, code=Exit.BAD_EVIDENCE)
    assert error["code"] == "E.EVIDENCE.DAMAGED"
    file.write_bytes(resealed(file.read_bytes()))
    assert stranger.json("verify", file, *key, code=Exit.BAD_EVIDENCE)["code"] != "E.EVIDENCE.DAMAGED"
    file.write_bytes(data[:-10])
    assert stranger.json("verify", file, *key, code=Exit.BAD_EVIDENCE)["code"] == "E.EVIDENCE.TRUNCATED"
    assert stranger.json("evidence", "show", file, code=Exit.BAD_EVIDENCE)["code"] == "E.EVIDENCE.TRUNCATED"


def test_other_files_and_wrong_words_are_told_apart(talk, stranger, stream, tmp_path):
    receipt = tmp_path / "receipt.cbor"
    talk.run("receipt", "get", stream, 1, "--out", receipt)
    assert stranger.json("evidence", "show", receipt, code=Exit.BAD_EVIDENCE)["code"] == "E.EVIDENCE.KIND"
    talk.run("evidence", "export", stream, code=Exit.USAGE)
    talk.run("evidence", "export", stream, "--open", "--plaintext", "--out", tmp_path / "x", code=Exit.USAGE)
    talk.run("evidence", "export", stream, "--from-seq", 4, "--to-seq", 2, "--out", tmp_path / "x", code=Exit.USAGE)
    talk.run("evidence", "export", stream, "--from-seq", 99, "--out", tmp_path / "x", code=Exit.LOCAL)
    file = tmp_path / "e"
    talk.json("evidence", "export", stream, "--out", file)
    stranger.run("verify", file, "--with", receipt, code=Exit.USAGE)
    assert stranger.json("inspect", file, code=Exit.USAGE)["hint"] == f"veen verify {file}"
    assert not (tmp_path / "x").exists()


def test_a_file_of_another_hub_than_that_of_the_context_is_not_accused(talk, stream, stranger, tmp_path):
    """walk A7: the pin of a context that nobody named is for another hub; the verdict is incomplete and says so."""
    file = tmp_path / "e.veen-evidence"
    talk.run("evidence", "export", stream, "--out", file)
    stranger.run("context", "add", "acme", "--hub", "http://acme.example", "--pin", f"ed25519:{'bb' * 32}", "--use")
    for words in (("verify", file), ("evidence", "show", file)):
        report = stranger.json(*words, code=Exit.POLICY)
        assert (report["ok"], report["verdict"]["value"]) == (False, "incomplete")
        (reason,) = report["verdict"]["reasons"]
        assert reason["because"] == "coverage"
        assert "[context.acme]" in reason["text"]
        error = json.loads(stranger.run(*words, "--json", "--context", "acme", code=Exit.BAD_EVIDENCE).stderr)
        assert error["code"] == "E.EVIDENCE.HUB"
        assert stranger.json(*words, "--hub-pk", talk.hub.about["hub_pk"])["verdict"]["value"] == "good"


def test_evidence_without_the_quorum_of_a_policy_is_exit_6(talk, stream, tmp_path):
    """walk A15: nothing in the file is bad, so exit 1 would accuse somebody."""
    file, policy = tmp_path / "e.veen-evidence", tmp_path / "witnesses.policy"
    policy.write_text("quorum none\n")
    talk.run("evidence", "export", stream, "--out", file)
    done = talk.run("verify", file, "--policy", policy, "--json", code=Exit.POLICY)
    report, error = json.loads(done.stdout), json.loads(done.stderr)
    assert (report["ok"], report["verdict"]["value"], error["code"]) == (False, "incomplete", "E.EVIDENCE.QUORUM")
    assert [reason["because"] for reason in report["verdict"]["reasons"]] == ["policy"]
    assert [(row["first"], row["read"], row["head"]) for row in report["verdict"]["compared"]] == [(1, 5, 5)]
