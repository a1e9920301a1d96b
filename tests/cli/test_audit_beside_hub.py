"""Audits and comparisons beside a hub that is running: its newest entries are only in its journal."""

import re
import shutil
import threading
from functools import partial
from pathlib import Path

import pytest
from tests.cli.homes import Cli
from tests.cli.hubprocess import DEV, running
from tests.hub.builders import LABEL
from tests.waiting import until

from veen.cli.shared.output import Exit
from veen.lake.log.hub_copy import fetch
from veen.lake.log.options import HubAddress
from veen.storage.pinned import pin

OPEN = (*DEV, "--port", "0", "--set", "admission.stream_scope=open", "--set", "admission.capability_gating=false")
SMALL = (*OPEN, "--set", "limits.max_checkpoint_interval=3")
OUTER = (*SMALL, "--set", "outer.origin=hub.example/veen", "--set", "outer.every=1")
RUN = ("audit", "run", "--engine", "python", "--no-pin")


@pytest.fixture
def cli(tmp_path):
    return Cli(tmp_path / "home")


def audit(cli, hub, *words, code=0):
    return cli.json(*RUN, hub.data_dir, *words, code=code)


def test_a_hub_without_entries_is_no_good_log(tmp_path, cli):
    """An audit over nothing was good."""
    with running(tmp_path / "hub", *OPEN) as hub:
        result = cli.run(*RUN, hub.data_dir, code=Exit.POLICY)
        assert "nothing was compared" in result.output
        assert cli.run("audit", "diff", hub.data_dir, hub.data_dir, "--no-pin", code=Exit.POLICY)


def test_entries_that_only_the_journal_has_are_audited_and_compared(tmp_path, cli):
    """Good, 0 entries, exit 0."""
    with running(tmp_path / "hub", *OPEN) as hub:
        for seq in range(1, 6):
            hub.submit(seq=seq)
        assert {ref.kind for ref in pin(str(hub.data_dir)).chunks()} == {"journal"}
        report = audit(cli, hub, "--out", tmp_path / "out")
        assert (report["verdict"]["value"], report["counts"]["entries"]) == ("good", 5)
        (row,) = report["verdict"]["compared"]
        assert (row["log"], row["read"], row["head"]) == (LABEL.hex(), 5, 5)
        hub.submit(seq=6)
        again = audit(cli, hub, "--since", tmp_path / "out")
        assert (again["verdict"]["value"], again["counts"]["entries"]) == ("good", 6)
        shutil.copytree(hub.data_dir, tmp_path / "copy", ignore=shutil.ignore_patterns("local"))
        same = cli.json("audit", "diff", hub.data_dir, tmp_path / "copy", "--no-pin")
        assert same["common"] == {LABEL.hex(): 6}
        hub.submit(seq=7)
        behind = cli.json("audit", "diff", hub.data_dir, tmp_path / "copy", "--no-pin", code=Exit.POLICY)
        (row,) = behind["verdict"]["compared"]
        assert (row["read"], row["head"], row["behind"]) == (6, 7, 1)


def test_audits_of_a_growing_log_never_accuse_it(tmp_path, cli):
    """Chunks are sealed and renamed while the audit reads."""
    with running(tmp_path / "hub", *SMALL) as hub:
        hub.submit(seq=1)
        ended = threading.Event()
        sent = [1]

        def write():
            while not ended.is_set():
                sent[0] += 1
                hub.submit(seq=sent[0])

        def has_sent(number):
            return sent[0] > number

        writer = threading.Thread(target=write)
        writer.start()
        try:
            earlier: tuple[str | Path, ...] = ()
            for number in range(4):
                before = sent[0] - 1
                out = tmp_path / f"audit-{number}"
                result = cli.invoke(*RUN, hub.data_dir, *earlier, "--out", out)
                assert result.exit_code == Exit.OK, result.output
                assert pin(str(hub.data_dir)).heads[LABEL] >= before
                earlier = ("--since", out)
                until(partial(has_sent, before + 4))
        finally:
            ended.set()
            writer.join()
        assert audit(cli, hub, *earlier)["counts"]["entries"] == sent[0]


def test_a_policy_beside_a_running_hub_accuses_nobody(tmp_path, cli):
    """The outer log lists heads that are only in the journal: "the evidence is BAD"."""
    with running(tmp_path / "hub", *OUTER) as hub:
        pinned = ("--hub", hub.url, "--pin", hub.about["hub_pk"])

        def listed():
            done = cli.invoke("witness", "show", *pinned, "--json")
            return 0 if done.exit_code else cli.json("witness", "show", *pinned)["size"]

        def has_listed(number):
            return listed() > number

        hub.submit(seq=1)
        until(lambda: listed() >= 3)
        (tmp_path / "none.policy").write_text(
            f"{cli.json('witness', 'show', *pinned, '--line')['line']}\nquorum none\n"
        )
        assert {ref.kind for ref in pin(str(hub.data_dir)).chunks()} == {"journal"}
        for seq in range(2, 8):
            before = listed()
            hub.submit(seq=seq)
            until(partial(has_listed, before))
            report = audit(cli, hub, "--policy", tmp_path / "none.policy")
            assert report["verdict"]["value"] == "good"
            assert report["witnesses"]["entries_covered"] == seq
            assert report["verdict"]["compared"][0]["stated_by"] == "witnesses"


def test_the_copy_of_a_hub_is_checked_and_repaired(tmp_path, cli):
    """A command finds holes in existing copies, and repairs them."""
    with running(tmp_path / "hub", *SMALL) as hub:
        for seq in range(1, 6):
            hub.submit(seq=seq)
        where = ("--hub", hub.url, "--pin", hub.about["hub_pk"], "--json")
        none = cli.invoke("audit", "copy", *where)
        assert none.exit_code not in (Exit.OK, Exit.BAD_EVIDENCE)
        assert "there is no copy of this hub" in none.stderr
        said = re.search(r"in (\S+/copies)", none.stderr)
        assert said is not None
        session_home = Path(said[1])
        copy = Path(fetch(HubAddress(url=hub.url, pin=hub.about["hub_pk"]), session_home))
        good = cli.json("audit", "copy", *where[:-1])
        assert (good["verdict"]["value"], good["holes"], good["damaged"]) == ("good", [], [])
        assert [row["stated_by"] for row in good["verdict"]["compared"]] == ["the running hub"]
        hub.submit(seq=6)
        assert cli.json("audit", "copy", *where[:-1], code=Exit.POLICY)["verdict"]["compared"][0]["behind"] == 1
        (chunk,) = (copy / "log").iterdir()
        chunk.write_bytes(chunk.read_bytes()[:-1])
        bad = cli.json("audit", "copy", *where[:-1], code=Exit.POLICY)
        assert [file["path"] for file in bad["damaged"]] == [f"log/{chunk.name}"]
        again = cli.json("audit", "copy", *where[:-1], "--repair")
        assert (again["verdict"]["value"], again["verdict"]["compared"][0]["read"]) == ("good", 6)
