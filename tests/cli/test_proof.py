"""`veen proof`: the way from a message to a signed root, checked, and drawn."""

from xml.etree import ElementTree

import pytest
from tests.cli.homes import Cli
from tests.cli.test_receipt import flip

from veen.cli.shared.output import Exit
from veen.core.tree.proof import MmrProof


@pytest.fixture
def stream(talk, request):
    name = talk.new_stream(f"proof/{request.node.name[:60]}")
    talk.say(name, *"abcde")
    return name


@pytest.mark.req("PROOF-03")
@pytest.mark.parametrize(("seq", "size"), [(1, 5), (3, 5), (5, 5), (3, 3), (2, 4)])
def test_a_proof_verifies_by_itself_elsewhere(talk, stream, tmp_path, seq, size):
    proof, receipt, last = (tmp_path / name for name in ("p.cbor", "r.cbor", "last.cbor"))
    result = talk.json("proof", "get", stream, seq, "--size", size, "--out", proof, "--receipt", receipt)
    talk.run("receipt", "get", stream, size, "--out", last)
    MmrProof.from_bytes(proof.read_bytes()).verify(
        leaf_hash=bytes.fromhex(result["msg_id"]),
        stream_seq=seq,
        tree_size=size,
        expected_root=bytes.fromhex(result["root"]),
    )
    stranger = Cli(tmp_path / "elsewhere")
    trusted = ["--hub-pk", talk.hub.about["hub_pk"], "--seq", seq]
    assert stranger.json("proof", "verify", proof, "--with", receipt, "--with", last, *trusted)["ok"]
    by_root = ["--root", result["root"], "--size", size, "--seq", seq]
    assert stranger.json("proof", "verify", proof, *by_root)["ok"]
    stranger.json("proof", "verify", proof, "--root", "0" * 64, "--size", size, "--seq", seq, code=Exit.BAD_EVIDENCE)
    flip(proof, 20)
    stranger.json("proof", "verify", proof, "--with", receipt, "--with", last, *trusted, code=Exit.BAD_EVIDENCE)


def test_the_picture_names_every_hash_and_ends_in_the_root(talk, stream, tmp_path):
    result = talk.json("proof", "show", stream, 3, "--size", 5)
    assert (result["hashes"], len(result["steps"]), len(result["peaks"])) == (3, 2, 2)
    drawn = talk.run("proof", "show", stream, 3, "--size", 5, "--tree").stdout
    assert "<- this message" in drawn
    assert result["root"] in drawn
    assert drawn == talk.run("proof", "show", stream, 3, "--size", 5).stdout
    svg = tmp_path / "proof.svg"
    talk.run("proof", "show", stream, 3, "--size", 5, "--svg", svg)
    assert ElementTree.fromstring(svg.read_text()).tag.endswith("svg")  # noqa: S314 - our own file


def test_a_position_that_cannot_be_is_refused(talk, stream):
    talk.run("proof", "get", stream, 5, "--size", 4, code=Exit.USAGE)
    assert talk.json("proof", "get", stream, 6, code=Exit.REFUSED)["code"] == "E.NOT_FOUND"
    talk.run("proof", "verify", stream, code=Exit.USAGE)
