"""The NDJSON form of a stream (002 §16, D-154)."""

import json
from base64 import urlsafe_b64encode
from dataclasses import replace

import pytest
from tests.products.vesn import log_builders as w

from veen.core.errors import FormatError
from veen.products.vesn.errors import Problem
from veen.products.vesn.ledger import Tree, prove
from veen.products.vesn.lines import MAX_LINE_BYTES, StreamEntry, verify_stream

LOG = w.log((5,))
TREE = Tree()
for receipt_ in LOG["receipts"]:
    TREE.append(receipt_.leaf_hash)
ENTRIES = [
    StreamEntry(receipt=receipt, msg=msg, mmr_proof=prove(TREE.node_at, receipt.stream_seq))
    for receipt, msg in zip(LOG["receipts"], LOG["payloads"], strict=True)
]
LINES = [entry.to_line() for entry in ENTRIES]


def base64(tree):
    """The same tree with base64url for hex."""
    if isinstance(tree, dict):
        return {key: value if key in ("code", "detail") else base64(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [base64(value) for value in tree]
    return urlsafe_b64encode(bytes.fromhex(tree)).decode().rstrip("=") if isinstance(tree, str) else tree


@pytest.mark.req("VESN-18")
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: str(entry.receipt.stream_seq))
def test_a_line_is_one_object_in_hex_and_base64url_is_understood(entry):
    line = entry.to_line()
    assert line.count(b"\n") == 1
    tree = json.loads(line)
    assert set(tree) == {"receipt", "msg", "mmr_proof"}
    assert tree["receipt"]["leaf_hash"] == entry.receipt.leaf_hash.hex()
    assert StreamEntry.from_line(line) == entry
    assert StreamEntry.from_line(json.dumps(base64(tree)).encode()) == entry
    del tree["mmr_proof"]
    assert StreamEntry.from_line(json.dumps(tree).encode()) == replace(entry, mmr_proof=None)


@pytest.mark.req("VESN-18")
def test_a_stream_verifies_from_its_beginning_or_by_its_proofs():
    whole = verify_stream(LINES, w.TRUST)
    assert (whole.verdict, whole.receipts, whole.messages) == ("verified", 5, 5)
    assert verify_stream(LINES[2:], w.TRUST).verdict == "verified"
    unproven = [replace(entry, mmr_proof=None).to_line() for entry in ENTRIES]
    assert verify_stream(unproven, w.TRUST).verdict == "verified"
    assert verify_stream(unproven[2:], w.TRUST).verdict == "incomplete"


@pytest.mark.req("VESN-18", "VESN-09")
def test_faults_of_a_stream_are_found():
    wrong_proof = replace(ENTRIES[2], mmr_proof=ENTRIES[1].mmr_proof).to_line()
    wrong_msg = replace(ENTRIES[2], msg=ENTRIES[1].msg).to_line()
    unsigned = replace(ENTRIES[2], msg=replace(ENTRIES[2].msg, sig=bytes(64))).to_line()
    for line, problem in ((wrong_proof, Problem.I3), (wrong_msg, Problem.I2), (unsigned, Problem.SIG)):
        report = verify_stream([*LINES[:2], line, *LINES[3:]], w.TRUST)
        assert problem in {finding.problem for finding in report.findings}
        assert all(finding.where == "line 3" for finding in report.findings if finding.problem is problem)
    assert verify_stream([LINES[0], LINES[2]], w.TRUST).findings[0].problem is Problem.GAP


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"{",
        b"[" * 100_000,
        b'{"receipt":1,"msg":2}',
        b'{"receipt":' + b"[" * 900 + b"]" * 900 + b',"msg":1}',
        b'{"receipt":{"label":' + b'{"a":' * 300 + b"1" + b"}" * 300 + b'},"msg":{}}',
        b'{"receipt":{},"msg":{}}',
        LINES[0].replace(b'"receipt"', b'"receipts"'),
        LINES[0][:-2] + b',"more":1}',
        LINES[0].replace(b'"label":"', b'"label":"!'),
        b" " * (MAX_LINE_BYTES + 1),
        b"\xff\xfe",
    ],
)
def test_what_is_no_entry_is_a_format_error(line):
    with pytest.raises(FormatError):
        StreamEntry.from_line(line)
    assert verify_stream([line], w.TRUST).findings[0].problem is Problem.FORMAT


def test_a_stream_of_nonsense_is_not_read_to_its_end():
    def endless():
        while True:
            yield b"{}\n"

    assert verify_stream(endless(), w.TRUST).stopped
