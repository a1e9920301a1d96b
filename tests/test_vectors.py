"""The frozen conformance vectors, read by the core that is to agree with every one of them (docs/vectors.md)."""

import json
from collections import Counter
from typing import Any

import pytest

import make_vectors
from tests.cases import every
from veen.core.crypto import hpke
from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import (
    CapabilityError,
    EvidenceError,
    FieldSizeError,
    FormatError,
    LimitError,
    MalformedError,
    PaddingError,
    ProofError,
    Refusal,
    SignatureError,
    VerifyError,
    VersionError,
)
from veen.core.hashing import H, Ht, u64be
from veen.core.labels import epoch_at, epoch_window, hub_id_of, label_of, routing_key_of, stream_id_of
from veen.core.objects import recognise as objects
from veen.core.objects.captoken import CapToken
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import BODIES, CapAuthorize, ControlRecord
from veen.core.objects.evidence import Equivocation
from veen.core.objects.msg import Msg
from veen.core.objects.payload_hdr import PayloadHdr
from veen.core.objects.profile import Profile
from veen.core.objects.receipt import Receipt
from veen.core.sealing.ciphertext import ATTACHED_SCHEMA, Attached, Binding, Parts, att_root_of, open_msg, seal
from veen.core.tree.mmr import Mmr, MmrTree
from veen.core.tree.proof import ConsistencyProof, MmrProof, RangeProof, prove_consistency, prove_inclusion, prove_range

VECTORS = json.loads(make_vectors.OUTPUT.read_text("utf-8"))
SCENARIOS = VECTORS["scenarios"]
KEYS = {name: SigningKey(bytes.fromhex(key["seed"])) for name, key in VECTORS["keys"].items() if "seed" in key}
READER_SK = bytes.fromhex(VECTORS["keys"]["reader"]["secret"])
READER_PK = bytes.fromhex(VECTORS["keys"]["reader"]["public"])
KINDS: dict[str, Any] = {kind.KIND: kind for kind in objects.KINDS} | {Attached.KIND: Attached}
ERRORS: dict[str, type[FormatError]] = {
    "CBOR_INVALID": MalformedError,
    "FIELD_SIZE": FieldSizeError,
    "VERSION": VersionError,
}

# decisions §18, written here once more: neither the generator nor the core may move them.
GOLDEN = {
    "profile_id 60 256": "1db91032b4bf4cd8b9f56a782b299458e6f782d3a1276f04c50c7b02651038ca",
    "profile_id 0 256": "97cc14b67f5d900b91289748f05ecabc3e4b898dcee3698aa3d1f1a9697b72b9",
    "profile_id 60 0": "d0b01ec0b591c1678c64f2bd6cd9e7d8b3e56f6cd839cb66c0d099299a961281",
    "profile_id 0 0": "7b6d324dfa79bdc2928558b784ca937eae43f94534dbe8ad2693ae2033240be1",
    "att_root without attachments": "d8502e2b7365f07d065ff0ef5d1237b733d31554ac4b5e7dd806b6e15552d311",
    "hub_id of the zero key": "bbffb7fed5790a1b6f45545c11492bed154eee4d8395d0790faabca7dfed2054",
    "routing_key of the zero key": "56585d9211977ba66b6a4d775fecb880d616d623488d4e17a1454a77c3b7acef",
    "label test 0": "41d2c94ec1a80d20a69ed8765ceaeebc67c0a19b39474534b93adad0f607c12a",
    "id of rpc.v1": "e540b27949990e8a4a957b0b9e40d6331f14243a9a92046f40c7bb78c361cf39",
    "id of veen/schema:paid.operation.v1": "e7ca17e7da0f5539e02fb89a234c58e8808d84e832a97e7c70d95fa4376469a5",
}
GOLDEN_ROOTS = {
    2: "fb9a1da1f46ed778af6d75756f52189e45367d04d9e4912c5beea6af79ca29b8",
    3: "3cf59a0f4e91a1502b10b04316f65e9127a54eec69432cdb5822a20a144f443e",
    5: "5da0c7d345ca78dac85d4d266fd0d94f4912dedf6115699df3f7c886ceceb672",
}


def unhex(text):
    return bytes.fromhex(text)


def steps(op, names="ABCD"):
    steps = [(name, step) for name in names for step in SCENARIOS[name]["steps"] if step["op"] == op]
    return pytest.mark.parametrize(("scenario", "step"), steps, ids=[f"{name}: {step['note']}" for name, step in steps])


def rows(listed):
    return every(listed, lambda row: f"{row.get('kind', '')} {row['name']}".strip())


def accepted(scenario):
    """(Msg, Receipt, step) in log order, over all labels."""
    for step in SCENARIOS[scenario]["steps"]:
        if "receipt" in step["expect"]:
            yield Msg.from_bytes(unhex(step["msg"])), Receipt.from_bytes(unhex(step["expect"]["receipt"])), step


def hub_key_at(scenario, time):
    """The name of the signing key (D-41)."""
    tokens = [
        key
        for key in SCENARIOS[scenario]["hub"]["hub_keys"]
        if key["valid_from"] <= time < key.get("valid_until", 2**64)
    ]
    return max(tokens, key=lambda key: key["valid_from"])["key"]


# The file


@pytest.mark.req("GEN-08")
def test_the_file_is_what_the_generator_writes_byte_for_byte():
    """D-118: fixed seeds, fixed times, so a fixed file"""
    assert make_vectors.OUTPUT.read_text("utf-8") == make_vectors.render()
    assert make_vectors.main(["--check"]) == 0


def test_the_generator_notices_a_file_that_is_not_its_own(tmp_path, monkeypatch, capsys):
    stray = tmp_path / "vectors.json"
    monkeypatch.setattr(make_vectors, "OUTPUT", stray)
    assert make_vectors.main(["--check"]) == 1
    assert make_vectors.main([]) == 0
    assert make_vectors.main(["--check"]) == 0
    stray.write_text(stray.read_text("utf-8") + "\n", "utf-8")
    assert make_vectors.main(["--check"]) == 1
    assert capsys.readouterr().err.count("vectors.json is not what") == 2


def test_the_keys_are_those_of_d_118():
    assert KEYS["client"].seed == b"\x01" * 32
    assert KEYS["hub"].seed == b"\x02" * 32
    assert unhex(VECTORS["keys"]["reader"]["ikm"]) == b"\x03" * 32
    assert hpke.derive_key_pair(b"\x03" * 32) == (READER_SK, READER_PK)
    assert unhex(SCENARIOS["A"]["steps"][0]["seal"]["ikm_e"]) == b"\x04" * 24 + u64be(1)
    assert all(key.public.hex() == VECTORS["keys"][name]["public"] for name, key in KEYS.items())


# Constants


@pytest.mark.req("CRY-01", "CRY-08")
def test_the_hashes_are_those_of_spec_decisions_18():
    listed = {row["name"]: row for row in VECTORS["constants"]["hashes"]}
    assert {name: listed[name]["hash"] for name in GOLDEN} == GOLDEN
    for row in listed.values():
        parts = b"".join(map(unhex, row["parts"]))
        assert (Ht(row["tag"], parts) if row["tag"] else H(parts)).hex() == row["hash"]


@pytest.mark.req("MMR-06", "ATT-05")
def test_equal_leaves_give_equal_roots():
    """TS0.4, and D-13 for attachments"""
    tree = Mmr()
    leaves: list[bytes] = []
    for size, row in enumerate(VECTORS["constants"]["mmr"], start=1):
        leaves.append(bytes([size]) * 32)
        tree.append(leaves[-1])
        assert [peak.hex() for peak in tree.peaks()] == row["peaks"]
        assert (tree.root().hex(), att_root_of(leaves).hex()) == (row["root"], row["att_root"])
        assert GOLDEN_ROOTS.get(size, row["root"]) == row["root"]


# Objects


@pytest.mark.req("TS0-02", "CBOR-01")
@rows(VECTORS["objects"] + VECTORS["other_objects"])
def test_every_object_has_one_cbor_and_one_json_form(row):
    """D-06, D-62"""
    cls, data = KINDS[row["kind"]], unhex(row["cbor"])
    obj = cls.from_bytes(data)
    assert obj.to_bytes() == data
    assert obj.to_json() == row["json"]
    assert cls.from_json(row["json"]) == obj
    computed = {
        "profile_id": lambda: obj.profile_id(),
        "signing_digest": lambda: obj.signing_digest(),
        "leaf_hash": lambda: obj.leaf_hash(),
        "auth_ref": lambda: obj.auth_ref(),
        "token_hash": lambda: H(data),
        "link_digests": lambda: row["derived"]["link_digests"],  # see the test of the chain below
    }
    for name, value in row["derived"].items():
        actual = computed[name]()
        assert (actual.hex() if isinstance(actual, bytes) else actual) == value, name


def test_no_kind_of_object_is_left_out():
    listed = VECTORS["objects"] + VECTORS["other_objects"]
    assert {row["kind"] for row in listed} == set(KINDS)
    # veen-beyond-v0.0.1.json has these
    later = {"outer.key", "hub.fence", "hub.promote", "request.done", "policy.bounds", "cap.derive"}
    assert {row["json"][2] for row in listed if row["kind"] == "control record"} == set(BODIES) - later


@pytest.mark.req("CAP-05", "CAP-06")
@rows([row for row in VECTORS["objects"] if row["kind"] == "cap_token"])
def test_every_link_signs_the_token_and_the_link_before(row):
    """Spec §6, D-43"""
    token = CapToken.from_bytes(unhex(row["cbor"]))
    token.verify()
    assert [KEYS["issuer"].sign(unhex(digest)) for digest in row["derived"]["link_digests"]] == list(token.sig_chain)


# Scenarios: each message on its own


@pytest.mark.req("TS0-01", "TS0-06", "CT-02", "CT-03", "CT-04", "CT-05", "CT-06", "CT-07", "CT-08", "MSG-04", "GEN-08")
@steps("submit")
def test_a_message_can_be_sealed_again_to_the_same_bytes(scenario, step):
    """TS0.4: byte-for-byte equality, from the inputs that the file lists"""
    msg = Msg.from_bytes(unhex(step["msg"]))
    assert msg.to_bytes() == unhex(step["msg"])
    assert (msg.signing_digest().hex(), msg.leaf_hash().hex()) == (step["signing_digest"], step["leaf_hash"])
    if "seal" not in step:
        return  # altered after signing, or sent before
    sealing, signer = step["seal"], KEYS[step["signer"]]
    profile = Profile.from_bytes(unhex(sealing["profile"]))
    binding, plain = Binding.of(msg), [unhex(row["plaintext"]) for row in sealing["attachments"]]
    hdr, body = PayloadHdr.from_bytes(unhex(sealing["payload_hdr"])), unhex(sealing["body"])
    sealed = seal(
        READER_PK, binding, hdr, body, ikm=unhex(sealing["ikm_e"]), pad_block=profile.pad_block, attachments=plain
    )
    assert sealed.ciphertext == msg.ciphertext
    assert [c.hex() for c in sealed.attachments.ciphertexts] == [row["ciphertext"] for row in sealing["attachments"]]
    assert [c.hex() for c in sealed.attachments.coids] == [row["coid"] for row in sealing["attachments"]]
    again = Msg.compose(
        signer,
        profile_id=profile.profile_id(),
        label=label_of(unhex(SCENARIOS[scenario]["hub"]["routing_key"]), stream_id_of(step["stream"]), step["epoch"]),
        client_seq=msg.client_seq,
        prev_ack=msg.prev_ack,
        auth_ref=msg.auth_ref,
        ciphertext=sealed.ciphertext,
    )
    assert again == msg
    parts = Parts.split(msg.ciphertext)
    assert (binding.aad().hex(), binding.nonce().hex()) == (sealing["aad"], sealing["nonce"])
    assert (parts.enc.hex(), parts.hpke_ct_hdr.hex()) == (sealing["enc"], sealing["hpke_ct_hdr"])
    assert (parts.aead_ct_body.hex(), len(parts.padding)) == (sealing["aead_ct_body"], sealing["padding_bytes"])
    context = hpke.setup_receiver(parts.enc, READER_SK)
    assert context.export(b"veen/body-k", 32).hex() == sealing["k_body"]


@pytest.mark.req("TS0-01", "INV-01", "INV-05", "ATT-01", "ATT-02", "ATT-03", "ATT-08")
@steps("submit")
def test_the_reader_opens_what_was_sealed(scenario, step):
    """Spec §4.2, §4.6"""
    if "seal" not in step:
        return
    seal, msg = step["seal"], Msg.from_bytes(unhex(step["msg"]))
    sealed = [unhex(row["ciphertext"]) for row in seal["attachments"]]
    opened = open_msg(READER_SK, msg, reader_pk=READER_PK, attachments=sealed)
    assert opened.hdr.to_bytes().hex() == seal["payload_hdr"]
    assert opened.body.hex() == seal["body"]
    assert [data.hex() for data in opened.attachments] == [row["plaintext"] for row in seal["attachments"]]
    assert opened.hdr.cap_ref in (None, msg.auth_ref)
    if opened.hdr.schema == ATTACHED_SCHEMA:
        declared = Attached.from_bytes(opened.body)
        declared.check([H(data) for data in sealed], opened.attachments)
        with pytest.raises(VerifyError):
            declared.check([bytes(32) for _ in sealed], opened.attachments)


@pytest.mark.req("TS0-03", "CT-12")
def test_repeated_sends_never_share_a_key_and_a_nonce():
    """TS0.1: B and D seal several messages for one place, so their nonces repeat; their keys must not (D-09)"""
    seals = [step["seal"] for _, scenario in SCENARIOS.items() for step in scenario["steps"] if "seal" in step]
    pairs = Counter((seal["k_body"], seal["nonce"]) for seal in seals)
    assert max(pairs.values()) == 1
    assert max(Counter(seal["nonce"] for seal in seals).values()) > 1
    assert len({seal["ikm_e"] for seal in seals}) == len({seal["enc"] for seal in seals}) == len(seals)


@pytest.mark.req("ERR-02")
@steps("submit")
def test_a_refusal_names_a_row_of_the_admission_table(scenario, step):
    """Spec §8.2"""
    if "refused" not in step["expect"]:
        return
    refused = step["expect"]["refused"]
    refusal = Refusal[refused["detail_enum"]]
    assert (refusal.code, refusal.stage.value) == (refused["code"], refused["stage"])
    msg = Msg.from_bytes(unhex(step["msg"]))
    if refusal is Refusal.FIELD_SIZE:
        with pytest.raises((FieldSizeError, LimitError)):
            Parts.split(msg.ciphertext)
    elif refusal is Refusal.CT_PADDING:
        with pytest.raises(PaddingError):
            Parts.split(msg.ciphertext)
    elif refusal is Refusal.CT_HASH:
        with pytest.raises(VerifyError, match="ct_hash"):
            msg.verify()
    elif refusal is Refusal.SIG_INVALID:
        with pytest.raises(SignatureError):
            msg.verify()
    elif refusal is Refusal.PROFILE:
        assert msg.profile_id.hex() not in SCENARIOS[scenario]["hub"]["profile_ids"]
    else:
        msg.verify()
        Parts.split(msg.ciphertext)


# Scenarios: the log


@pytest.mark.req("TS0-01", "TS0-06", "INV-02", "INV-03", "RCPT-02", "RCPT-03", "RCPT-04", "MSG-09", "GEN-09")
@pytest.mark.parametrize("scenario", "ABCD")
def test_the_receipts_are_those_of_the_log(scenario):
    """A fold over the accepted messages gives every receipt, byte for byte"""
    trees: dict[bytes, Mmr] = {}
    for msg, receipt, step in accepted(scenario):
        msg.verify()
        tree = trees.setdefault(msg.label, Mmr())
        tree.append(msg.leaf_hash())
        issued = Receipt.issue(
            KEYS[hub_key_at(scenario, step["hub_ts"])],
            label=msg.label,
            stream_seq=tree.size,
            leaf_hash=msg.leaf_hash(),
            mmr_root=tree.root(),
            hub_ts=step["hub_ts"],
        )
        assert issued == receipt
        assert issued.to_bytes().hex() == step["expect"]["receipt"]
    hub = SCENARIOS[scenario]["hub"]
    hub_id = hub_id_of(KEYS[hub["hub_keys"][0]["key"]].public)
    assert (hub_id.hex(), routing_key_of(hub_id).hex()) == (hub["hub_id"], hub["routing_key"])


@pytest.mark.req("INV-06", "INV-08", "INV-09", "MSG-06")
@pytest.mark.parametrize("scenario", "ABCD")
def test_commit_depends_on_cursors_alone(scenario):
    """Spec §8.2, stage commit: prev_ack, then duplicates, then gaps"""
    heads: Counter[bytes] = Counter()
    cursors: dict[tuple[bytes, bytes], tuple[int, int]] = {}
    originals: dict[bytes, int] = {}
    for step in SCENARIOS[scenario]["steps"]:
        refused = step["expect"].get("refused")
        if (
            step["op"] != "submit"
            or (refused and refused["stage"] != "commit")
            or (refused or {}).get("code") == "E.TIME"
        ):
            continue
        msg = Msg.from_bytes(unhex(step["msg"]))
        last_seq, last_ack = cursors.get((msg.label, msg.client_id), (0, 0))
        if not last_ack <= msg.prev_ack <= heads[msg.label]:
            detail = "PREV_ACK"
        elif 1 <= msg.client_seq <= last_seq:
            detail = "DUPLICATE"
            assert refused.get("stream_seq") == originals.get(msg.leaf_hash())  # D-56
        elif msg.client_seq != last_seq + 1:
            detail = "CLIENT_SEQ"
        else:
            detail = None
            heads[msg.label] += 1
            cursors[msg.label, msg.client_id] = (msg.client_seq, msg.prev_ack)
            originals[msg.leaf_hash()] = heads[msg.label]
        assert detail == (refused and refused["detail_enum"]), step["note"]


@pytest.mark.req("INV-12", "CRY-11", "CRY-12", "ADM-10")
def test_c_accepts_the_epochs_of_the_window():
    """Spec §12: current ± floor(skew / epoch_sec)"""
    hub = SCENARIOS["C"]["hub"]
    window = epoch_window(hub["epoch_sec"], hub["max_epoch_skew_sec"])
    for step in SCENARIOS["C"]["steps"]:
        off = abs(step["epoch"] - epoch_at(step["hub_ts"], hub["epoch_sec"]))
        out = step["expect"].get("refused", {}).get("detail_enum") in ("EPOCH", "CAP_SCOPE")
        assert (off > window) == out, step["note"]


# A: proofs


@pytest.fixture(scope="module")
def tree():
    return MmrTree(msg.leaf_hash() for msg, _, _ in accepted("A"))


@pytest.mark.req("PROOF-01", "PROOF-03", "PROOF-04", "PROOF-11", "PROOF-12", "INV-03")
@pytest.mark.parametrize(
    "row", SCENARIOS["A"]["proofs"]["inclusion"], ids=lambda row: f"{row['stream_seq']} of {row['tree_size']}"
)
def test_inclusion_proofs_are_made_and_verified(tree, row):
    """Spec §5.2 … §5.4, D-34"""
    seq, size, root = row["stream_seq"], row["tree_size"], unhex(row["root"])
    proof = MmrProof.from_bytes(unhex(row["cbor"]))
    assert proof == prove_inclusion(tree.node_at, seq, size)
    assert tree.root(size) == root
    proof.verify(leaf_hash=tree.node_at(0, seq - 1), stream_seq=seq, expected_root=root, tree_size=size)
    with pytest.raises(ProofError):
        proof.verify(leaf_hash=tree.node_at(0, seq - 1), stream_seq=seq, expected_root=H(root), tree_size=size)


@pytest.mark.req("PROOF-02", "PROOF-07", "PROOF-08", "PROOF-09")
@rows(SCENARIOS["A"]["proofs"]["refused"])
def test_a_proof_that_was_changed_proves_nothing(row):
    """Spec §5.4, the rejection conditions"""
    proof = MmrProof.from_bytes(unhex(row["cbor"]))
    with pytest.raises(ProofError):
        proof.verify(
            leaf_hash=unhex(row["leaf_hash"]),
            stream_seq=row["stream_seq"],
            expected_root=unhex(row["root"]),
            tree_size=row["tree_size"],
        )


@pytest.mark.parametrize(
    "row", SCENARIOS["A"]["proofs"]["consistency"], ids=lambda row: f"{row['from_size']} to {row['to_size']}"
)
def test_consistency_proofs_are_made_and_verified(tree, row):
    """One log is a prefix of the other"""
    proof = ConsistencyProof.from_bytes(unhex(row["cbor"]))
    old, new = row["from_size"], row["to_size"]
    assert proof == prove_consistency(tree.node_at, old, new)
    assert (tree.root(old).hex(), tree.root(new).hex()) == (row["from_root"], row["to_root"])
    proof.verify(from_size=old, from_root=tree.root(old), to_size=new, to_root=tree.root(new))


@pytest.mark.parametrize(
    "row", SCENARIOS["A"]["proofs"]["range"], ids=lambda row: f"{row['first_seq']} to {row['last_seq']}"
)
def test_range_proofs_are_made_and_verified(tree, row):
    """A run of leaves under one root"""
    proof = RangeProof.from_bytes(unhex(row["cbor"]))
    first, last, size = row["first_seq"], row["last_seq"], row["tree_size"]
    assert proof == prove_range(tree.node_at, first, last, size)
    leaves = [tree.node_at(0, pos) for pos in range(first - 1, last)]
    proof.verify(leaves=leaves, first_seq=first, tree_size=size, expected_root=unhex(row["root"]))


# A and C: checkpoints


@pytest.mark.req("TS0-01", "CKPT-01", "CKPT-03", "CKPT-08", "CKPT-09", "CKPT-10", "CKPT-12")
@rows([{**row, "scenario": name} for name in "AC" for row in SCENARIOS[name]["checkpoints"]])
def test_checkpoints_chain_labels_and_refuse_what_does_not(row):
    """Spec §4.4.1, D-36 … D-38"""
    hub, point = SCENARIOS[row["scenario"]]["hub"], Checkpoint.from_bytes(unhex(row["cbor"]))
    stream_id, routing_key = stream_id_of(row["stream"]), unhex(hub["routing_key"])
    assert point.to_bytes().hex() == row["cbor"]
    assert point.signing_digest().hex() == row["signing_digest"]
    point.verify(KEYS[row["signer"]].public)
    witnesses = [KEYS[name].public for name in row["witnesses"]]
    assert point.verify_witnesses(witnesses) == tuple(witnesses)
    assert point.verify_witnesses([KEYS["stranger"].public]) == ()
    reason = row["verdict"].removeprefix("refused: ")
    if reason in ("label_prev", "label_curr"):
        with pytest.raises(VerifyError, match=reason):
            point.check_labels(routing_key, stream_id)
    else:
        point.check_labels(routing_key, stream_id)
    log = [receipt for _, receipt, _ in accepted(row["scenario"]) if receipt.label == point.label_curr]
    at_upto = log[: point.upto_seq][-1]
    if reason not in ("mmr_root", "upto_seq"):
        assert (point.upto_seq, point.mmr_root) == (at_upto.stream_seq, at_upto.mmr_root)
    assert (reason == "mmr_root") == (point.mmr_root != at_upto.mmr_root)
    start, length = point.epoch * hub["epoch_sec"], hub["epoch_sec"] or 2**64
    active = [
        key["key"]
        for key in hub["hub_keys"]
        if key["valid_from"] < start + length and start < key.get("valid_until", 2**64)
    ]
    assert (row["signer"] in active) == (reason != "hub_sig")
    in_overlap = sum(k["valid_from"] <= at_upto.hub_ts < k.get("valid_until", 2**64) for k in hub["hub_keys"]) == 2
    if in_overlap:
        assert (row["witnesses"][:2] == ["hub", "hub_next"]) == (reason != "witness_sigs")


# D: capabilities


@pytest.mark.req("TS0-01", "CAP-04", "CAP-09", "CAP-10", "CAP-12", "CAP-20", "INV-07")
def test_d_admits_by_token_bucket_and_ttl():
    """D-46 … D-50, replayed with what the core knows of tokens"""
    hub = SCENARIOS["D"]["hub"]
    trusted = {KEYS[name].public for name in hub["trusted_issuers"]}
    tokens = {token.auth_ref(): token for token in map(CapToken.from_bytes, map(unhex, hub["preloaded_tokens"]))}
    issued: dict[bytes, int] = {}
    buckets: dict[bytes, tuple[int, int]] = {}
    journal: list[ControlRecord | None] = [None]
    for step in SCENARIOS["D"]["steps"]:
        refused, now = step["expect"].get("refused", {}), step["hub_ts"]
        if step["op"] == "authorize":
            token = CapToken.from_bytes(unhex(step["token"]))
            assert token.auth_ref().hex() == step["auth_ref"]
            if refused:
                assert refused["detail_enum"] == "CAP_INVALID"
                assert not _is_valid(token, trusted)
                continue
            record = ControlRecord.from_bytes(unhex(step["expect"]["record"]))
            record.verify(KEYS["hub"].public)
            assert isinstance(record.body, CapAuthorize)
            assert record.body.check() == token
            if token.auth_ref() not in issued:
                record.check_follows(journal[-1])
                assert record == ControlRecord.issue(KEYS["hub"], journal[-1], CapAuthorize.of(token), hub_ts=now)
                journal.append(record)
            tokens[token.auth_ref()] = token
            assert issued.setdefault(token.auth_ref(), now) == record.hub_ts
            continue
        msg = Msg.from_bytes(unhex(step["msg"]))
        refusal = _cap_refusal(msg, step, tokens, trusted, issued, buckets)
        assert refusal == refused.get("detail_enum"), step["note"]
        assert (refusal == "CAP_RATE") == ("retry_after" in refused)
    assert len(journal) == 3


def _is_valid(token, trusted):
    try:
        token.verify()
    except CapabilityError:
        return False
    return token.issuer_pk in trusted


def _cap_refusal(msg, step, tokens, trusted, issued, buckets):
    """The auth stage for scenario D, none of whose messages fails later; acceptance moves the bucket."""
    token = tokens.get(msg.auth_ref)
    if token is None:
        return "CAP_MISSING"
    if not _is_valid(token, trusted):
        return "CAP_INVALID"
    if token.subject_pk != msg.client_id:
        return "AUTH_REF"
    if stream_id_of(step.get("stream", "board")) not in token.allow.stream_ids:
        return "CAP_SCOPE"
    now, rate, most = step["hub_ts"], token.allow.rate, SCENARIOS["D"]["hub"]
    per_sec = min(rate.per_sec if rate else 2**64, most["max_cap_rate_per_sec"])
    burst = min(rate.burst if rate else 2**64, most["max_cap_rate_burst"])
    issued_at = issued.get(msg.auth_ref, now)
    if not token.is_live(issued_at=issued_at, hub_ts=now):
        return "CAP_TTL"
    level, filled_at = buckets.get(msg.auth_ref, (burst, issued_at))
    level = min(burst, level + per_sec * (now - filled_at))
    if level < 1:
        return "CAP_RATE"
    issued.setdefault(msg.auth_ref, now)
    buckets[msg.auth_ref] = (level - 1, now)
    return None


# Evidence, and bytes that are not


@pytest.mark.req("RCPT-07")
@rows(VECTORS["equivocation"])
def test_equivocation_is_proven_or_refused(row):
    evidence = Equivocation.from_bytes(unhex(row["cbor"]))
    assert evidence.to_bytes().hex() == row["cbor"]
    assert evidence.to_json() == row["json"]
    if row["verdict"] == "proven":
        evidence.verify()
        assert all(key in {k.public for k in KEYS.values()} for key in evidence.hub_pks)
    else:
        with pytest.raises(SignatureError if row["verdict"] == "refused: hub_sig" else EvidenceError):
            evidence.verify()


@pytest.mark.req(
    "TS0-02", "CBOR-02", "CBOR-03", "CBOR-04", "CBOR-05", "CBOR-06", "CBOR-08", "CBOR-09", "CBOR-10", "INV-10"
)
@rows(VECTORS["malformed"])
def test_malformed_bytes_raise_the_error_that_the_file_names(row):
    """Spec §3.1, §8.2: a wrong type outranks a wrong size, and that an unknown version"""
    cls = KINDS[row["kind"]]
    with pytest.raises(ERRORS[row["error"]]) as caught:
        cls.from_json(row["json"]) if "json" in row else cls.from_bytes(unhex(row["cbor"]))
    assert type(caught.value) is ERRORS[row["error"]]


def test_every_name_is_used_once():
    """So that a failing implementation can say which vector it means"""
    for listed in (VECTORS["objects"] + VECTORS["other_objects"], VECTORS["equivocation"], VECTORS["malformed"]):
        names = Counter((row.get("kind"), row["name"]) for row in listed)
        assert [name for name, uses in names.items() if uses > 1] == []
