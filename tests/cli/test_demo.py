"""`veen demo`: short, true, and the same facts in both forms."""

import json

import pytest
from click.testing import CliRunner
from tests.cli import world

from veen.cli.app import cli
from veen.cli.tree import proof_tree
from veen.core.proof import prove_inclusion


def test_the_demo_catches_every_attempt():
    result = CliRunner().invoke(cli, ["demo", "--json"])
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert facts["plaintext_at_hub"] == 0
    assert len(facts["caught"]) == 4
    assert all(reason.startswith("caught: ") for reason in facts["caught"].values())
    assert facts["evidence_bytes"] <= 512


def test_the_demo_tells_each_step():
    lines = CliRunner().invoke(cli, ["demo"]).stdout.splitlines()
    assert [line[:3] for line in lines if line[1:2] == "/"] == [f"{step}/6" for step in range(1, 7)]


@pytest.mark.parametrize("size", range(1, 6))
def test_the_drawn_tree_shows_exactly_the_hashes_of_the_proof(size):
    for seq in range(1, size + 1):
        proof = prove_inclusion(world.TREE.node_at, seq, size)
        lines = proof_tree(seq, size)
        assert sum("in the proof" in line for line in lines) == len(proof.path) + len(proof.peaks_after)
        assert sum("your message" in line for line in lines) == 1
