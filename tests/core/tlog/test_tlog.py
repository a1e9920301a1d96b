"""C2SP notes, policies and proofs, RFC 6962 trees, RFC 9942 receipts: laws, published examples, and every refusal."""

import contextlib
from dataclasses import replace
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veen.core import cbor
from veen.core.crypto.ed25519 import SigningKey
from veen.core.tlog import proof as receipts
from veen.core.tlog.note import (
    COSIGNATURE,
    ED25519,
    LogCheckpoint,
    Note,
    NoteSignature,
    VerifierKey,
    cosign,
    sign_note,
    verify_signatures,
)
from veen.core.tlog.policy import WitnessPolicy
from veen.core.tlog.proof import AddCheckpoint, CoseReceipt, OuterLeaf, TlogProof
from veen.core.tlog.tree import (
    EMPTY_ROOT,
    NoteError,
    NoteSignatureError,
    QuorumError,
    TlogError,
    TlogProofError,
    TlogReceiptError,
    TlogTree,
    TreeCursor,
    WitnessPolicyError,
    check_consistency,
    check_inclusion,
    leaf_hash,
    node_hash,
    prove_consistency,
    prove_inclusion,
)

LOG, W1, W2, W3 = (SigningKey(bytes([n]) * 32) for n in (1, 2, 3, 4))
ORIGIN = "hub.example/veen"
LOG_KEY = VerifierKey(ORIGIN, ED25519, LOG.public)
WITNESSES = {f"w{n}": VerifierKey(f"w{n}.example", COSIGNATURE, key.public) for n, key in enumerate((W1, W2, W3), 1)}
TREE = TlogTree(b"leaf %d" % number for number in range(1000))
HEAD = LogCheckpoint(ORIGIN, 1000, TREE.root())
NOTE = HEAD.sign(LOG)
EXAMPLE_KEY = "example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k"
EXAMPLE = (
    "This is an example message.\n\n\u2014 example.com/foo "
    "Uw2QOkn8srV1yJGh2VYRlL1Tnagv1YEq6TfXppzi2ONncAlTgK7Ztg1ERYNZXsYjOBH3mFXmRKuwHjG1Yu72IneyaQM=\n"
)


def cosigned(*keys, time=1_700_000_000):
    names = {key.public: f"w{n}.example" for n, key in enumerate((W1, W2, W3), 1)}
    return NOTE.with_signatures(cosign(key, names[key.public], NOTE.text, time) for key in keys)


# --- trees ---------------------------------------------------------------------------------------------------


def test_the_hashes_are_those_of_rfc_6962():
    assert EMPTY_ROOT.hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert leaf_hash(b"").hex() == "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"
    assert node_hash(b"l" * 32, b"r" * 32) == sha256(b"\x01" + b"l" * 32 + b"r" * 32).digest()
    # The eight leaves of the test vectors of Certificate Transparency.
    leaves = [b"", b"\0", b"\x10", b" !", b"01", b"@ABC", b"PQRSTUVW", b"`abcdefghijklmno"]
    tree = TlogTree(leaves)
    assert tree.root(8).hex() == "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328"
    assert tree.root(7).hex() == "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c"


@given(st.integers(1, 300), st.data())
def test_every_leaf_has_a_proof_and_no_other_place(size, data):
    tree = TlogTree(b"%d" % number for number in range(size))
    pos = data.draw(st.integers(0, size - 1))
    path = prove_inclusion(tree.node_at, pos, size)
    check_inclusion(leaf_hash(b"%d" % pos), pos, size, path, tree.root())
    wrong = data.draw(st.integers(0, size + 3).filter(lambda number: number != pos))
    with pytest.raises(TlogProofError):
        check_inclusion(leaf_hash(b"%d" % pos), wrong, size, path, tree.root())
    for other in (path[:-1] if path else (b"x" * 32,), (*path, b"x" * 32)):
        with pytest.raises(TlogProofError):
            check_inclusion(leaf_hash(b"%d" % pos), pos, size, other, tree.root())


@given(st.integers(0, 300), st.integers(0, 300), st.data())
def test_a_log_is_consistent_with_its_prefixes_only(old, more, data):
    new = old + more
    tree = TlogTree(b"%d" % number for number in range(new))
    path = prove_consistency(tree.node_at, old, new)
    check_consistency(old, new, path, tree.root(old), tree.root())
    other = TlogTree(b"other %d" % number for number in range(new))
    if new and old:
        with pytest.raises(TlogProofError):
            check_consistency(old, new, path, other.root(old), tree.root())
        with pytest.raises(TlogProofError):
            check_consistency(old, new, path, tree.root(old), other.root())
    if path:
        spoiled = list(path)
        spoiled[data.draw(st.integers(0, len(path) - 1))] = b"x" * 32
        with pytest.raises(TlogProofError):
            check_consistency(old, new, spoiled, tree.root(old), tree.root())
    with pytest.raises(TlogProofError):
        check_consistency(old, new, (*path, b"x" * 32), tree.root(old), tree.root())


@given(st.integers(0, 200), st.integers(0, 200))
def test_a_cursor_resumes_from_the_nodes_of_a_tree(first, more):
    tree = TlogTree(b"%d" % number for number in range(first + more))
    cursor = TreeCursor.at(tree.node_at, first)
    for number in range(first, first + more):
        cursor.append(leaf_hash(b"%d" % number))
    assert cursor.root() == tree.root()


def test_a_proof_of_64_hashes_is_refused():
    with pytest.raises(TlogProofError):
        check_inclusion(b"l" * 32, 0, 2**62, (b"x" * 32,) * 64, b"r" * 32)
    with pytest.raises(TlogProofError):
        check_consistency(1, 2**62, (b"x" * 32,) * 64, b"r" * 32, b"r" * 32)


# --- notes ---------------------------------------------------------------------------------------------------


def test_the_example_of_c2sp_verifies():
    key = VerifierKey.parse(EXAMPLE_KEY)
    note = Note.from_bytes(EXAMPLE.encode())
    assert str(key) == EXAMPLE_KEY
    assert note.to_bytes() == EXAMPLE.encode()
    assert verify_signatures(note, (key,)) == {key: 0}
    with pytest.raises(NoteSignatureError):
        verify_signatures(replace(note, text="This is another message.\n"), (key,))


GOOD = NOTE.to_bytes()


@pytest.mark.parametrize(
    ("name", "data"),
    {
        "lines that end with CR LF": GOOD.replace(b"\n", b"\r\n"),
        "no LF at the end": GOOD[:-1],
        "a size with a leading zero": GOOD.replace(b"\n1000\n", b"\n01000\n"),
        "base64 without padding": GOOD.replace(b"=\n", b"\n"),
        "two empty lines": GOOD.replace(b"\n\n", b"\n\n\n"),
        "a name with a plus sign": GOOD.replace("\u2014 hub".encode(), "\u2014 h+b".encode()),
        "an empty name": GOOD.replace("\u2014 hub.example/veen".encode(), "\u2014 ".encode()),
        "a hyphen in place of the dash": GOOD.replace("\u2014".encode(), b"-"),
        "no signature": NOTE.text.encode() + b"\n",
        "no empty line": NOTE.text.encode(),
        "not UTF-8": b"\xff" + GOOD,
        "a control character": b"\x07" + GOOD,
        "a negative size": GOOD.replace(b"\n1000\n", b"\n-1\n"),
        "a size beyond 63 bits": GOOD.replace(b"\n1000\n", b"\n9999999999999999999\n"),
        "a short root": GOOD.replace(NOTE.text.split("\n")[2].encode(), b"AAAA"),
        "an empty line inside": GOOD.replace(b"\n1000\n", b"\n\n1000\n"),
        "nothing": b"",
    }.items(),
)
def test_a_checkpoint_note_has_one_form(name, data):
    """INTEROP §9."""
    with pytest.raises(NoteError):
        LogCheckpoint.parse(Note.from_bytes(data).text)


def test_a_wrong_signature_of_a_known_key_counts_beside_a_right_one():
    line = NOTE.signatures[0]
    wrong = NoteSignature(line.name, line.key_id, bytes(64))
    for lines in ((line, wrong), (wrong, line)):
        with pytest.raises(NoteSignatureError):
            verify_signatures(Note(NOTE.text, lines), (LOG_KEY,))


def test_lines_of_unknown_keys_are_ignored():
    note = NOTE.with_signatures(NoteSignature("else.example", bytes([n]) * 4, b"x" * 20) for n in range(16))
    assert verify_signatures(Note.from_bytes(note.to_bytes()), (LOG_KEY,)) == {LOG_KEY: 0}


def test_a_key_id_of_another_type_is_another_key():
    """INTEROP §9: the key id of type 0x01 used for 0x04."""
    plain = VerifierKey("w1.example", ED25519, W1.public)
    line = cosign(W1, "w1.example", NOTE.text, 7)
    note = NOTE.with_signatures((NoteSignature(line.name, plain.key_id, line.signature),))
    assert WITNESSES["w1"] not in verify_signatures(note, (LOG_KEY, WITNESSES["w1"]))
    with pytest.raises(NoteSignatureError):
        verify_signatures(note, (plain,))


def test_a_cosignature_has_a_time_and_covers_it():
    with pytest.raises(NoteError):
        cosign(W1, "w1.example", NOTE.text, 0)
    line = cosign(W1, "w1.example", NOTE.text, 5)
    assert line.verify(WITNESSES["w1"], NOTE.text) == 5
    for signature in (bytes(8) + line.signature[8:], b"\0" * 7 + b"\x06" + line.signature[8:], line.signature[:-1]):
        with pytest.raises(NoteSignatureError):
            NoteSignature(line.name, line.key_id, signature).verify(WITNESSES["w1"], NOTE.text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "example.com/foo",
        EXAMPLE_KEY.replace("530d903a", "530d903b"),
        EXAMPLE_KEY.replace("530d903a", "530D903A"),
        EXAMPLE_KEY[:-1],
        EXAMPLE_KEY.replace("example.com", "exa mple.com"),
        "example.com/foo+530d903a+CA==",
    ],
)
def test_a_vkey_has_one_form(text):
    with pytest.raises(NoteError):
        VerifierKey.parse(text)


@given(st.binary(max_size=400))
def test_any_bytes_end_in_a_value_or_a_named_error(data):
    for read in (Note.from_bytes, AddCheckpoint.from_bytes, TlogProof.from_bytes, CoseReceipt.from_bytes):
        try:
            value = read(data)
        except TlogError:
            continue
        assert value.to_bytes() == data
    with contextlib.suppress(TlogError):
        OuterLeaf.from_bytes(data)


@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255))
def test_a_note_with_one_changed_byte_is_refused_or_reads_back(pos, byte):
    data = GOOD[:pos] + bytes([byte]) + GOOD[pos + 1 :]
    try:
        note = Note.from_bytes(data)
        verified = verify_signatures(note, (LOG_KEY,))
    except TlogError:
        return
    assert note.to_bytes() == data
    assert data == GOOD or LOG_KEY not in verified


# --- policies ------------------------------------------------------------------------------------------------

LINES = [f"log {LOG_KEY}"] + [f"witness {name} {key} http://127.0.0.1:1/{name}" for name, key in WITNESSES.items()]


def policy(*lines):
    return WitnessPolicy.parse("\n".join(["# logs and witnesses", *LINES, *lines, ""]))


def test_k_of_n_is_counted():
    rules = policy("group g 2 w1 w2 w3", "quorum g")
    assert rules.check(cosigned(W1, W3)).cosigned == {"w1": 1_700_000_000, "w3": 1_700_000_000}
    with pytest.raises(QuorumError):
        rules.check(cosigned(W1))
    with pytest.raises(QuorumError):
        rules.check(NOTE)
    assert policy("quorum none").check(NOTE).cosigned == {}


def test_groups_may_hold_groups():
    rules = policy("group pair all w1 w2", "group either any pair w3", "quorum either")
    rules.check(cosigned(W3))
    rules.check(cosigned(W1, W2))
    with pytest.raises(QuorumError):
        rules.check(cosigned(W1))


def test_a_note_of_an_unlisted_log_satisfies_no_policy():
    other = LogCheckpoint("other.example", 3, b"r" * 32).sign(LOG)
    with pytest.raises(QuorumError):
        policy("quorum none").check(other)
    with pytest.raises(QuorumError):
        policy("quorum none").check(Note(NOTE.text, (sign_note(W1, ORIGIN, NOTE.text),)))


def test_a_cosignature_over_another_note_counts_for_nothing():
    other = LogCheckpoint(ORIGIN, 999, TREE.root(999))
    note = NOTE.with_signatures((cosign(W1, "w1.example", other.text, 5),))
    with pytest.raises(NoteSignatureError):
        policy("quorum w1").check(note)


@pytest.mark.parametrize(
    "lines",
    [
        ("quorum nobody",),
        ("group g 2 w1 nobody", "quorum g"),
        ("group g 4 w1 w2 w3", "quorum g"),
        ("group g 0 w1 w2 w3", "quorum g"),
        ("group g 02 w1 w2 w3", "quorum g"),
        ("group g some w1 w2", "quorum g"),
        ("group w1 any w2 w3", "quorum w1"),
        ("group g any w1 w1", "quorum g"),
        ("group g any w1 w2", "group h any w2 w3", "quorum g"),
        ("group none any w1", "quorum none"),
        (),
        ("quorum w1", "quorum w2"),
        ("quorum",),
        ("frobnicate",),
        (f"witness w9 {WITNESSES['w1']}", "quorum w1"),
        (f"log {WITNESSES['w1']}", "quorum w1"),
        (f"witness w9 {LOG_KEY}", "quorum w1"),
        ("witness w9 broken+00000000+AAAA", "quorum w1"),
    ],
)
def test_a_bad_policy_is_refused(lines):
    """INTEROP §9: undefined or duplicate names, k above the members, no quorum line."""
    with pytest.raises(WitnessPolicyError):
        policy(*lines)


# --- tlog-proof and add-checkpoint ---------------------------------------------------------------------------


def test_a_tlog_proof_carries_a_leaf_to_a_cosigned_note():
    note = cosigned(W1, W2, W3)
    proof = TlogProof(7, prove_inclusion(TREE.node_at, 7, 1000), note)
    data = proof.to_bytes()
    assert TlogProof.from_bytes(data) == proof
    assert len(data) < 1200
    assert proof.check(b"leaf 7") == HEAD
    with pytest.raises(TlogProofError):
        proof.check(b"leaf 8")
    with pytest.raises(NoteError):
        TlogProof.from_bytes(data.replace(b"index 7", b"index 07"))
    with pytest.raises(NoteError):
        TlogProof.from_bytes(data.replace(b"@v1", b"@v2"))
    assert TlogProof.from_bytes(replace(proof, extra=b"x").to_bytes()).extra == b"x"


def test_a_request_has_at_most_63_hashes():
    request = AddCheckpoint(3, prove_consistency(TREE.node_at, 3, 1000), NOTE)
    assert AddCheckpoint.from_bytes(request.to_bytes()) == request
    AddCheckpoint.from_bytes(AddCheckpoint(3, (b"x" * 32,) * 63, NOTE).to_bytes())
    with pytest.raises(NoteError):
        AddCheckpoint.from_bytes(AddCheckpoint(3, (b"x" * 32,) * 64, NOTE).to_bytes())
    for spoiled in (b"old 03\n", b"odl 3\n", b"old -1\n", b"old 3 \n"):
        with pytest.raises(NoteError):
            AddCheckpoint.from_bytes(request.to_bytes().replace(b"old 3\n", spoiled))


# --- receipts ------------------------------------------------------------------------------------------------


def a_receipt(pos=7):
    path = prove_inclusion(TREE.node_at, pos, 1000)
    return CoseReceipt.issue(LOG, HEAD, pos, path, subject="veen:checkpoint:x", issued_at=1_700_000_000)


def test_a_receipt_shows_that_a_leaf_is_in_the_log():
    receipt = a_receipt()
    data = receipt.to_bytes()
    assert CoseReceipt.from_bytes(data) == receipt
    assert len(data) < 600
    receipt.verify(LOG_KEY, b"leaf 7", HEAD)
    with pytest.raises(TlogReceiptError):
        receipt.verify(LOG_KEY, b"leaf 8", HEAD)
    with pytest.raises(TlogReceiptError):
        receipt.verify(VerifierKey(ORIGIN, ED25519, W1.public), b"leaf 7", HEAD)


def test_the_tree_size_of_a_receipt_comes_from_the_note():
    """INTEROP §3.2: the signature does not cover it."""
    receipt = a_receipt()
    with pytest.raises(TlogReceiptError):
        receipt.verify(LOG_KEY, b"leaf 7", LogCheckpoint(ORIGIN, 999, TREE.root()))
    with pytest.raises(TlogReceiptError):
        replace(receipt, tree_size=999).verify(LOG_KEY, b"leaf 7", HEAD)


def rewritten(**changes):
    receipt = a_receipt()
    header = cbor.decode(receipt.protected)
    header.update(changes.pop("header", {}))
    protected = changes.pop("protected", cbor.encode_sorted(header))
    proof = changes.pop("proof", cbor.encode([1000, 7, list(receipt.path)]))
    payload = changes.pop("payload", None)
    unprotected = changes.pop("unprotected", {396: {-1: [proof]}})
    return b"\xd2" + cbor.encode([protected, unprotected, payload, receipt.signature])


@pytest.mark.parametrize(
    ("name", "data"),
    {
        "an attached payload": rewritten(payload=HEAD.root),
        "vds 3": rewritten(header={395: 3}),
        "another algorithm": rewritten(header={1: -7}),
        "a protected header in another order": rewritten(
            protected=cbor.encode(dict(reversed(list(cbor.decode(a_receipt().protected).items()))))
        ),
        "a protected header that is not the shortest": rewritten(protected=b"\xa1\x18\x01\x32"),
        "trailing bytes": a_receipt().to_bytes() + b"\0",
        "an empty path": rewritten(proof=cbor.encode([1000, 7, []])),
        "a path of 64 hashes": rewritten(proof=cbor.encode([1000, 7, [b"x" * 32] * 64])),
        "a short hash": rewritten(proof=cbor.encode([1000, 7, [b"x" * 31]])),
        "an index that is no leaf": rewritten(proof=cbor.encode([7, 7, [b"x" * 32]])),
        "two proofs": rewritten(unprotected={396: {-1: [b"", b""]}}),
        "a consistency proof": rewritten(unprotected={396: {-2: [b""]}}),
        "no tag": a_receipt().to_bytes()[1:],
        "nothing": b"",
    }.items(),
)
def test_a_receipt_has_one_form(name, data):
    """INTEROP §9."""
    with pytest.raises(TlogReceiptError):
        CoseReceipt.from_bytes(data)


def test_a_receipt_with_a_path_of_the_wrong_length_is_refused():
    receipt = a_receipt()
    for path in (receipt.path[:-1], (*receipt.path, b"x" * 32)):
        with pytest.raises(TlogReceiptError):
            replace(receipt, path=path).verify(LOG_KEY, b"leaf 7", HEAD)


def test_the_deprecated_number_of_eddsa_is_read():
    receipt = a_receipt()
    header = cbor.decode(receipt.protected)
    header[1] = -8
    protected = cbor.encode_sorted(header)
    signed = receipts._to_be_signed(protected, HEAD.root)
    old = replace(receipt, protected=protected, signature=LOG.sign(signed))
    CoseReceipt.from_bytes(old.to_bytes()).verify(LOG_KEY, b"leaf 7", HEAD)
