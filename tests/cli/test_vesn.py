"""`veen vesn`: verify, inspect, import, mirror; against real directories and a real hub."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests import shell
from tests.cli.homes import Cli
from tests.examples import spread
from tests.products.vesn import log_builders as w

from veen.cli.shared.output import Exit
from veen.core.catalogue import catalogue
from veen.core.hashing import H
from veen.products.vesn.errors import Problem
from veen.products.vesn.files import export_set
from veen.products.vesn.ledger import Ledger
from veen.products.vesn.lines import StreamEntry
from veen.products.vesn.mirror import MirrorRecord
from veen.products.vesn.objects import Equivocation, Profile, Receipt
from veen.products.vesn.portability import encode_set

KEYS = ("--hub-pk", w.HUB.public.hex(), "--witness", w.WITNESS.public.hex())
PAGE = (Path(__file__).parents[2] / "docs" / "vesn.md").read_text("utf-8")


@pytest.fixture
def veen(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    export_set(w.small_set(), tmp_path / "old-log")
    return Cli(tmp_path / "home")


def test_every_code_of_a_finding_is_explained():
    for problem in Problem:
        assert problem.value in catalogue()


def test_verify_says_what_it_checked(veen):
    said = veen.json("vesn", "verify", "old-log", *KEYS)
    assert (said["verdict"], said["receipts"], said["messages"]) == ("verified", 3, 3)
    assert said["findings"] == said["missing"] == []
    assert "verified" in veen.run("vesn", "verify", "old-log", *KEYS).stdout


def test_verify_names_the_fault_and_ends_with_1(veen, tmp_path):
    path = tmp_path / "old-log" / "payloads.cborl"
    path.write_bytes(path.read_bytes()[:-1])
    report = veen.run("vesn", "verify", "old-log", *KEYS, "--json", code=Exit.BAD_EVIDENCE)
    assert json.loads(report.stdout)["findings"][0]["code"] == "VESN.FORMAT"
    assert json.loads(report.stderr)["code"] == "VESN.FORMAT"


def test_what_was_not_judged_ends_with_2(veen):
    report = veen.run("vesn", "verify", "old-log", *KEYS[:2], "--json", code=Exit.USAGE)
    assert json.loads(report.stdout)["verdict"] == "incomplete"
    assert json.loads(report.stderr)["code"] == "VESN.INCOMPLETE"
    veen.run("vesn", "verify", "old-log", code=Exit.USAGE)  # --hub-pk is needed


@pytest.mark.req("VESN-16")
def test_two_stories_are_kept_as_evidence(veen, tmp_path):
    export_set(w.small_set(seed=9), tmp_path / "other")
    proof = tmp_path / "proof.cbor"
    result = veen.run(
        "vesn", "verify", "old-log", *KEYS, "--against", "other", "--evidence", proof, "--json", code=Exit.BAD_EVIDENCE
    )
    assert json.loads(result.stderr)["code"] == "VESN.EQUIVOCATION"
    Equivocation.from_bytes(proof.read_bytes()).verify()
    assert len(json.loads(result.stdout)["equivocations"]) == 3
    shown = veen.json("vesn", "inspect", proof)
    assert shown["records"][0]["kind"] == "VESN equivocation"


@pytest.mark.req("VESN-18")
def test_a_stream_of_lines_is_verified_too(veen, tmp_path):
    log = w.log((3,))
    lines = [
        StreamEntry(receipt=receipt, msg=msg).to_line()
        for receipt, msg in zip(log["receipts"], log["payloads"], strict=True)
    ]
    (tmp_path / "stream.ndjson").write_bytes(b"".join(lines))
    assert veen.json("vesn", "verify", "stream.ndjson", *KEYS)["receipts"] == 3
    (tmp_path / "stream.ndjson").write_bytes(b"".join([lines[0], lines[2]]))
    veen.run("vesn", "verify", "stream.ndjson", *KEYS, code=Exit.BAD_EVIDENCE)
    veen.run("vesn", "verify", "stream.ndjson", *KEYS, "--against", "old-log", code=Exit.USAGE)


@pytest.mark.req("VESN-02", "VESN-18")
def test_other_profiles_are_named_by_their_parameters(veen, tmp_path):
    profile = Profile(epoch_sec=3600, pad_block=256)
    at = w.label(7)
    msg, _ = w.message(w.CLIENT, 1, at=at, profile=profile)
    receipt = Ledger(w.HUB, profiles=[profile.profile_id()]).accept(msg, hub_ts=7 * 3600)
    export_set(encode_set(receipts=[receipt], payloads=[msg], **w.COMMON), tmp_path / "hourly")
    veen.run("vesn", "verify", "hourly", *KEYS, code=Exit.BAD_EVIDENCE)
    veen.run("vesn", "verify", "hourly", *KEYS, "--epoch-sec", 3600, "--pad-block", 256)


def test_inspect_needs_no_keys_and_hides_the_secret(veen):
    shown = veen.json("vesn", "inspect", "old-log")
    assert {file["name"]: file["records"] for file in shown["files"]}["receipts.cborl"] == 3
    assert [(log["first_seq"], log["last_seq"]) for log in shown["logs"]] == [(1, 2), (3, 3)]
    lines = veen.run("vesn", "inspect", "old-log/receipts.cborl", "--ndjson").stdout.splitlines()
    assert [json.loads(line)["stream_seq"] for line in lines] == [1, 2, 3]
    for form in ("--json", "--ndjson", "--output=human"):
        assert w.ROUTING_KEY.hex()[:16] not in veen.run("vesn", "inspect", "old-log/routing_secret", form).stdout


def test_inspect_survives_what_verify_would_refuse(veen, tmp_path):
    (tmp_path / "old-log" / "receipts.cborl").write_bytes(b"\xff\xff")
    (tmp_path / "old-log" / "strange").write_bytes(b"?")
    shown = veen.json("vesn", "inspect", "old-log")
    assert "receipts.cborl" in shown["problems"][0]
    veen.run("vesn", "inspect", "old-log/receipts.cborl", code=Exit.BAD_EVIDENCE)


@pytest.mark.req("VESN-15")
def test_import_makes_an_archive_once(veen, tmp_path):
    first = veen.json("vesn", "import", "old-log", "--to", "archive", *KEYS)
    assert (first["imported"], first["existed"], first["verdict"]) == (True, False, "verified")
    assert veen.json("vesn", "import", "old-log", "--to", "archive", *KEYS)["existed"]
    assert json.loads((tmp_path / "archive" / "report.json").read_text("utf-8"))["receipts"] == 3
    veen.json("vesn", "verify", "archive/set", *KEYS)
    refused = veen.run("vesn", "import", "old-log", "--to", "second", *KEYS[:2], "--json", code=Exit.USAGE)
    assert json.loads(refused.stdout)["imported"] is False
    veen.json("vesn", "import", "old-log", "--to", "second", *KEYS[:2], "--allow-incomplete")
    (tmp_path / "old-log" / "sync_state").unlink()
    refused = veen.run("vesn", "import", "old-log", "--to", "third", *KEYS, "--json", code=Exit.BAD_EVIDENCE)
    assert json.loads(refused.stderr)["code"] == "VESN.FILE"
    assert not (tmp_path / "third").exists()


# --- mirror ---------------------------------------------------------------------------------------------------------

DYING = """
import os, sys
from veen.client.transport import http
whole, left = http.HttpTransport.call, int(sys.argv.pop(1))
async def call(self, operation, body=b"", **options):
    global left
    answer = await whole(self, operation, body, **options)
    if "submit" in operation:
        left -= 1
        if not left:  # the hub has accepted them; this side never hears of it
            os.kill(os.getpid(), 9)
    return answer
http.HttpTransport.call = call
from veen.cli import main
main()
"""


def mirrored(talk, stream):
    """(label, seq) of every record of a stream, with all that must agree checked."""
    places = []
    for entry in records(talk, stream):
        record = MirrorRecord.from_bytes(entry.body)
        receipt = record.receipt()
        receipt.verify([w.HUB.public])
        assert record.source_hub_identifier == f"vesn:{w.HUB.public.hex()}"
        assert record.target_label == entry.receipt.label
        assert entry.event.hdr.parent_id == receipt.leaf_hash
        assert entry.event.hdr.schema == H(b"veen/schema:federation.mirror.v1")
        places.append((receipt.label, receipt.stream_seq))
    return places


def records(talk, stream):
    from veen.client import Home, SyncClient, open_identity

    home = Home.at(talk.root)
    keystore = open_identity(home, "alice", None)
    with SyncClient.connect(
        talk.hub.url,
        pin=talk.hub.about["hub_pk"],
        identity=keystore.identity,
        keyring=keystore.secrets.keyring,
        home=home,
    ) as client:
        return list(client.read(stream))


def places_of(log):
    return [(receipt.label, receipt.stream_seq) for receipt in log["receipts"]]


def test_a_mirror_has_one_record_of_each_entry_however_often_it_runs(talk, tmp_path):
    """D-117, D-149; spec-3 §10: F1, F2"""
    export_set(w.small_set(), tmp_path / "old-log")
    stream = talk.new_stream("mirror/once")
    first = talk.json("vesn", "mirror", "old-log", stream, *KEYS)
    assert (first["sent"], first["existed"], first["entries"]) == (3, 0, 3)
    again = talk.json("vesn", "mirror", "old-log", stream, *KEYS)
    assert (again["sent"], again["existed"]) == (0, 3)
    assert mirrored(talk, stream) == places_of(w.log())
    export_set(w.small_set((2, 4)), tmp_path / "longer")
    grown = talk.json("vesn", "mirror", "longer", stream, *KEYS)
    assert (grown["sent"], grown["existed"], grown["first_seq"]) == (3, 3, 4)


def test_nothing_is_sent_of_a_set_that_does_not_verify(talk, tmp_path):
    """F1"""
    files = w.small_set()
    export_set({**files, "sync_state": files["sync_state"][:-1] + b"\x09"}, tmp_path / "bad")
    stream = talk.new_stream("mirror/none")
    refused = talk.json("vesn", "mirror", "bad", stream, *KEYS, code=Exit.BAD_EVIDENCE)
    assert refused["code"] == "VESN.SYNC_STATE"
    talk.run("vesn", "mirror", "bad", stream, *KEYS[:2], code=Exit.BAD_EVIDENCE)
    assert records(talk, stream) == []


@pytest.mark.parametrize("submits", spread([1, 2], 1))
def test_a_mirror_that_was_killed_goes_on_and_doubles_nothing(talk, tmp_path, submits):
    """Killed after the hub accepted a batch and before this side learned of it"""
    log = w.log((100, 60))
    export_set(encode_set(**log, **w.COMMON), tmp_path / "long")
    stream = talk.new_stream(f"mirror/killed-{submits}")
    done = subprocess.run(
        [sys.executable, "-c", DYING, str(submits), "vesn", "mirror", str(tmp_path / "long"), stream, *KEYS],
        env={**os.environ, **talk.env},
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == -9, done.stderr.decode()
    rest = talk.json("vesn", "mirror", "long", stream, *KEYS)
    assert rest["sent"] + rest["existed"] == 160
    assert 0 < rest["existed"] <= 64 * submits
    assert mirrored(talk, stream) == places_of(log)


def test_a_record_that_somebody_made_up_blocks_nothing(talk, tmp_path):
    log = w.log((1,))
    export_set(encode_set(**log, **w.COMMON), tmp_path / "one")
    stream = talk.new_stream("mirror/forged")
    receipt = log["receipts"][0]
    real = MirrorRecord.of(receipt, hub_pk=w.HUB.public, target_label=bytes(32), now=0)
    forged = Receipt.issue(
        w.OTHER_HUB, label=receipt.label, stream_seq=1, leaf_hash=receipt.leaf_hash, mmr_root=receipt.mmr_root, hub_ts=0
    )
    bodies = [
        MirrorRecord.of(forged, hub_pk=w.HUB.public, target_label=bytes(32), now=0).to_bytes(),
        b"nonsense",
        real.to_bytes()[:-1],
        replace(real, metadata=None).to_bytes(),
    ]
    for number, body in enumerate(bodies):
        (tmp_path / f"body-{number}").write_bytes(body)
        talk.run("send", stream, "--file", tmp_path / f"body-{number}", "--schema", "federation.mirror.v1")
    assert talk.json("vesn", "mirror", "one", stream, *KEYS)["sent"] == 1
    assert talk.json("vesn", "mirror", "one", stream, *KEYS)["sent"] == 0


def test_a_mirror_needs_the_read_key(talk, tmp_path):
    export_set(w.small_set(), tmp_path / "old-log")
    stream = talk.new_stream("mirror/blind")
    talk.let_write("bob", stream)
    refused = talk.json("vesn", "mirror", "old-log", stream, *KEYS, "--identity", "bob", code=Exit.LOCAL)
    assert refused["code"] == "E.LOCAL.READER"


# --- the page -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_line_of_the_page_works_and_prints_what_is_shown(hub, tmp_path):
    """docs/vesn.md"""
    export_set(w.small_set(), tmp_path / "old-log")
    env = shell.environment(
        tmp_path / "home",
        KEY=w.HUB.public.hex(),
        WITNESS=w.WITNESS.public.hex(),
        URL=hub.url,
        PIN=hub.about["hub_pk"],
        VEEN_FORCE_TTY="1",  # as a person sees it
        NO_COLOR="1",
        COLUMNS="120",
        TOOLS=str(Path(__file__).parents[2] / "tools"),
    )
    blocks = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    steps = [step for block in blocks for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    assert len(steps) >= 6
    for step in steps:
        command, _, shown = step.partition("\n")
        assert shell.works(command, env, tmp_path) == shown, command
