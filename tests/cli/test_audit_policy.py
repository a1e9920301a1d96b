"""`veen audit run --policy`: the log must be the one of the list that witnesses cosigned."""

import re
import shutil

import pytest
from tests.cli.homes import Cli
from tests.cli.hubprocess import DEV, running
from tests.waiting import until

from veen.cli.shared.output import Exit

OPEN = (*DEV, "--port", "0", "--set", "admission.stream_scope=open", "--set", "admission.capability_gating=false")
OUTER = (*OPEN, "--set", "outer.origin=hub.example/veen", "--set", "outer.every=1")


@pytest.fixture(scope="module")
def audited(tmp_path_factory):
    """A hub at rest whose outer log lists two entries of three, an older copy of it, and policies."""
    root = tmp_path_factory.mktemp("audited")
    cli = Cli(root / "home")
    with running(root / "hub", *OUTER) as hub:
        pin = ("--hub", hub.url, "--pin", hub.about["hub_pk"])
        hub.submit(seq=1)
        until(lambda: listed(cli, pin) >= 3)
        log = cli.json("witness", "show", *pin, "--line")["line"]
        hub.stop()
    shutil.copytree(root / "hub", root / "older", ignore=shutil.ignore_patterns("local"))
    with running(root / "hub", *OUTER) as hub:
        pin = ("--hub", hub.url, "--pin", hub.about["hub_pk"])
        before = listed(cli, pin)
        hub.submit(seq=2)
        until(lambda: listed(cli, pin) > before)
        hub.stop()
    with running(root / "hub", *OPEN) as hub:  # without an outer log: nothing lists the last entry
        hub.submit(seq=3)
        hub.stop()
    witness = cli.json("witness", "key", root / "w", "--name", "w.example")["line"].replace("w.example ", "w ", 1)
    (root / "none.policy").write_text(f"{log}\nquorum none\n")
    (root / "one.policy").write_text(f"{log}\n{witness}\nquorum w\n")
    (root / "other.policy").write_text("quorum none\n")
    return root, cli


def listed(cli, pin):
    done = cli.invoke("witness", "show", *pin, "--json")
    return 0 if done.exit_code else cli.json("witness", "show", *pin)["size"]


def audit(audited, directory, policy="none.policy", code=0):
    root, cli = audited
    done = cli.run("audit", "run", directory, "--engine", "python", "--no-pin", "--policy", root / policy, code=code)
    return done.stdout


def copied(audited, tmp_path, name="hub"):
    shutil.copytree(audited[0] / name, tmp_path / "copy", ignore=shutil.ignore_patterns("local"))
    return tmp_path / "copy"


def test_a_log_that_is_in_the_cosigned_list_passes_and_coverage_is_told(audited):
    root, cli = audited
    shown = cli.json("audit", "run", root / "hub", "--engine", "python", "--no-pin", "--policy", root / "none.policy")
    assert shown["ok"]
    assert (shown["witnesses"]["entries_covered"], shown["witnesses"]["entries_behind"]) == (2, 1)
    assert "2 entries in the list" in audit(audited, root / "hub")
    assert "witnesses" not in cli.json("audit", "run", root / "hub", "--engine", "python", "--no-pin")


@pytest.mark.parametrize("policy", ["one.policy", "other.policy"])
def test_a_note_without_the_quorum_does_not_meet_the_policy_and_is_no_bad_evidence(audited, policy):
    """walk A15, for an audit."""
    output = audit(audited, audited[0] / "hub", policy, code=Exit.POLICY)
    assert "does not satisfy the witness policy" in output
    assert "verdict: incomplete" in output


def test_a_directory_without_an_outer_log_does_not_meet_a_policy(audited, tmp_path):
    path = copied(audited, tmp_path)
    shutil.rmtree(path / "outer")
    assert "no witness has cosigned" in audit(audited, path, code=Exit.POLICY)


def audited_fault(audited, directory, policy="none.policy"):
    return audit(audited, directory, policy, code=Exit.BAD_EVIDENCE)


def test_a_log_that_was_set_back_is_found_by_the_list(audited, tmp_path):
    """The older directory passes every other check: only the list knows of the second entry."""
    older = copied(audited, tmp_path, "older")
    assert "the evidence is good" in audit(audited, older)
    shutil.rmtree(older / "outer")
    shutil.copytree(audited[0] / "hub" / "outer", older / "outer")
    # From the inside it cannot be told from a copy that is not whole, so nobody is accused.
    assert "counts entry 2; the log here ends with 1" in audit(audited, older, code=Exit.POLICY)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: (path / "outer" / "leaves").write_bytes(b""), "cut off"),
        (lambda path: flip(path / "outer" / "leaves"), "leaf|root that the witnesses cosigned"),
    ],
)
def test_damage_of_the_list_is_named(audited, tmp_path, damage, words):
    path = copied(audited, tmp_path)
    damage(path)
    assert re.search(words, audited_fault(audited, path))


def test_a_list_that_is_absent_makes_the_verdict_incomplete(audited, tmp_path):
    path = copied(audited, tmp_path)
    (path / "outer" / "leaves").unlink()
    assert "the list that the witnesses cosigned is not here" in audit(audited, path, code=Exit.POLICY)


def flip(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
