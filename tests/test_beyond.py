"""What goes beyond the seed documents is specified, has vectors, and the code agrees with them (D-168, docs/spec)."""

import ast
import copy
import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import make_spec
import make_vectors
import veen_verify_beyond
from tests.cases import every
from tests.hub import builders as w
from tests.hub.servers import ADMIN, READER, LiveHub
from veen.client.errors import CardInvalid, ForeignKey, KeyTextInvalid, PortableSetInvalid
from veen.client.identity import bech32
from veen.client.identity.card import IdentityCard
from veen.client.identity.keyring import StreamKeys
from veen.client.identity.keystore import Keystore
from veen.client.portable import portability
from veen.client.verify.pin import HubPin
from veen.core import cbor
from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import ApiCode, FormatError, ProofError, Refusal, SignatureError, VerifyError
from veen.core.evidence_check import check_evidence
from veen.core.evidence_file import EvidenceFault, EvidenceFile
from veen.core.hashing import H
from veen.core.limits import Limits
from veen.core.objects.captoken import CapToken, Rate
from veen.core.objects.control import ControlRecord, PolicyRevocation
from veen.core.objects.envelopes import ErrorEnvelope, SubmitRequest, SubmitResponse
from veen.core.objects.evidence import Equivocation
from veen.core.objects.identity import BirthCertificate, HubIdentity
from veen.core.objects.policies import Authority, Revocation, realm_id_of
from veen.core.objects.receipt import Receipt
from veen.core.objects.tooling import (
    AnchorRequest,
    AttachmentGrant,
    AttachmentsRequest,
    CapStatusRequest,
    ClientCursorRequest,
    ConsistencyRequest,
    DeriveRequest,
    FeedRequest,
    IdentityResponse,
    InspectRequest,
    LabelRequest,
    PolicyRequest,
    ProofAtRequest,
    RotateKeyRequest,
    TailRequest,
    VersionRequest,
)
from veen.core.objects.trusted_root import TrustedKeys
from veen.core.pow import PowCookie
from veen.core.tree.proof import ConsistencyProof, RangeProof
from veen.hub.admission.policy import Auth1, Kex1
from veen.hub.api import routes
from veen.hub.api.access import Access, Role
from veen.hub.api.attachments import GRANT_HEADER
from veen.hub.process.config import AttachmentPolicy
from veen.io.local import OsFs
from veen.storage import layout
from veen.storage.anchors import AnchorError
from veen.storage.attachments import AttachmentFiles
from veen.storage.copies.copying import read_fork_origin
from veen.storage.keys import identity as identities
from veen.testing.memfs import MemFs

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "tools" / "veen_verify_beyond.py"
VECTORS = json.loads(make_vectors.BEYOND.read_text("utf-8"))
KINDS = make_spec.kinds()
KEYS = {name: bytes.fromhex(key["public"]) for name, key in VECTORS["keys"].items()}
# Objects that a seed document defines: wire-format.md and veen-v0.0.1.json have them.
SEED_KINDS = {
    *("MSG", "RECEIPT", "CHECKPOINT", "mmr_proof", "path step", "cap_token", "allow", "rate", "profile", "payload_hdr"),
    *("veen.attached.v1", "attachment", "error", "stream item"),
    *(
        f"{name} {way}"
        for name in ("submit", "stream", "receipt", "proof", "checkpoint")
        for way in ("request", "response")
    ),
}


def unhex(text):
    return bytes.fromhex(text)


def named(rows):
    return every(rows, lambda row: row["name"])


# --- nothing is missing ---------------------------------------------------------------------------------------


def test_the_file_and_the_pages_are_what_the_generators_write():
    assert make_vectors.BEYOND.read_text("utf-8") == make_vectors.render_beyond()
    assert make_spec.main(["--check"]) == 0


def test_the_generators_notice_what_is_not_their_own(tmp_path, monkeypatch, capsys):
    tables = make_spec.WIRE_FORMAT.read_text("utf-8").replace("| MSG |", "| another |")
    (tmp_path / "WIRE_FORMAT").write_text(tables, "utf-8")
    for name in ("OBJECTS", "METHOD_PAGE", "WIRE_FORMAT"):
        monkeypatch.setattr(make_spec, name, tmp_path / name)
    monkeypatch.setattr(make_vectors, "BEYOND", tmp_path / "beyond.json")
    assert make_vectors.main(["--check"]) == make_vectors.main([]) + 1
    assert make_spec.main(["--check"]) == make_spec.main([]) + 1
    assert make_spec.main(["--check"]) == make_vectors.main(["--check"]) == 0
    reported = capsys.readouterr().err
    assert all(name in reported for name in ("beyond.json", "OBJECTS", "METHOD_PAGE", "WIRE_FORMAT"))


def test_every_object_is_specified():
    """Whoever adds a wire object says what it is (tools/make_spec.py) and gives a vector (tools/beyond_vectors.py)."""
    assert set(KINDS) - SEED_KINDS == set(make_spec.MEANINGS)
    assert {row["kind"] for row in VECTORS["objects"]} >= set(make_spec.MEANINGS)


def test_the_page_lists_the_fields_that_the_vectors_have():
    page = make_spec.OBJECTS.read_text("utf-8")
    for row in (row for row in VECTORS["objects"] if row["kind"] in make_spec.MEANINGS):
        section = page.split(f"\n## {row['kind']}\n", 1)[1].split("\n## ", 1)[0]
        listed = re.findall(r"^\| (\S+) \| (\w+) \|", section, re.MULTILINE)[1:]
        form, tree = KINDS[row["kind"]].FORM, cbor.decode(unhex(row["cbor"]))
        keys = range(1, len(tree) + 1) if form == "array" else tree
        assert {str(key) for key in keys} <= {key for key, _ in listed}
        if form == "map":
            assert [int(key) for key, _ in listed] == list(range(1, len(listed) + 1))


def test_every_tooling_method_is_specified():
    served = {
        (method, path): route.operation
        for path, methods in routes._ROUTES.items()
        for method, route in methods.items()
        if path.startswith("/tooling/")
    }
    served |= {(method, "/tooling/attachment/<coid>"): route.operation for method, route in routes._ATTACHMENTS.items()}
    assert {(m["http"], m["path"]): m["operation"] for m in VECTORS["methods"]} == served


def test_the_callers_of_every_method_are_those_that_the_hub_lets_in(tmp_path):
    role = {"reader": Role.READ, "administrator": Role.ADMIN, "status": Role.STATUS, "metrics": Role.METRICS}
    with LiveHub(tmp_path) as hub:
        for method in VECTORS["methods"]:
            assert hub.api._operations[method["operation"]][0] is role.get(method["who"], Role.ANY), method["path"]


def test_every_status_has_a_code_that_exists():
    api = {(code.http_status, code.code) for code in ApiCode}
    refusals = {(refusal.http_status, refusal.detail_enum) for refusal in Refusal}
    other = {(200, "ok"), (201, "ok"), (413, "ATTACHMENT_QUOTA"), (503, "not ready")}
    for method in VECTORS["methods"]:
        assert {(status, code) for status, code, _ in method["statuses"]} <= api | refusals | other, method["path"]


# --- the code agrees ------------------------------------------------------------------------------------------


@named(VECTORS["objects"])
def test_objects_are_read_and_written_as_listed(row):
    kind, data = KINDS[row["kind"]], unhex(row["cbor"])
    assert kind.from_bytes(data).to_bytes() == data
    assert kind.from_bytes(data).to_json() == row["json"]
    assert kind.from_json(row["json"]).to_bytes() == data


@named(VECTORS["evidence_files"]["good"])
def test_evidence_files_are_accepted_and_written_as_listed(row):
    file = EvidenceFile.from_file(unhex(row["file"]))
    assert file.to_file().hex() == row["file"]
    trusted = TrustedKeys(hub_pks=(unhex(VECTORS["evidence_files"]["hub_pk"]),))
    assert len(check_evidence(file, trusted).entries) == row["entries"]


@named(VECTORS["evidence_files"]["refused"])
def test_evidence_files_are_refused_with_their_codes(row):
    trusted = TrustedKeys(hub_pks=(unhex(VECTORS["evidence_files"]["hub_pk"]),))
    with pytest.raises(EvidenceFault) as refused:
        check_evidence(EvidenceFile.from_file(unhex(row["file"])), trusted)
    assert refused.value.code == row["error"]


@named(VECTORS["words"]["good"])
def test_good_words(row):
    read = StreamKeys if row["prefix"] == "veen-stream" else IdentityCard
    for text in (row["word"], row["capitals"], f"  {row['word']}\n"):
        assert read.from_text(text).to_bytes().hex() == row["cbor"]
    assert read.from_bytes(unhex(row["cbor"])).to_text() == row["word"]


@named(VECTORS["words"]["refused"])
def test_bad_words(row):
    read = StreamKeys if row["prefix"] == "veen-stream" else IdentityCard
    with pytest.raises((KeyTextInvalid, CardInvalid)):
        read.from_text(row["word"])
    if row["error"] in ("object", "signature"):  # the word is whole, what it says is not
        bech32.from_text(row["prefix"], row["word"])


def test_proofs():
    listed = VECTORS["proofs"]
    leaves, roots = [unhex(leaf) for leaf in listed["leaves"]], [unhex(root) for root in listed["roots"]]

    def consistency(row):
        old, new = row["from_size"], row["to_size"]
        proof = ConsistencyProof.from_bytes(unhex(row["cbor"]))
        proof.verify(from_size=old, from_root=roots[old - 1], to_size=new, to_root=roots[new - 1])

    def run(row):
        first, last, size = row["first_seq"], row["last_seq"], row["tree_size"]
        proof = RangeProof.from_bytes(unhex(row["cbor"]))
        proof.verify(leaves=leaves[first - 1 : last], first_seq=first, tree_size=size, expected_root=roots[size - 1])

    for row in listed["consistency"]:
        consistency(row)
    for row in listed["range"]:
        run(row)
    for row in listed["refused"]:
        with pytest.raises(ProofError):
            (consistency if row["kind"] == "consistency_proof" else run)(row)


def _check_record(record, before):
    record.check_follows(before)
    record.verify(KEYS["hub"])


def test_the_control_journal():
    before = None
    for row in VECTORS["control"]["chain"]:
        record = ControlRecord.from_bytes(unhex(row["cbor"]))
        _check_record(record, before)
        assert (record.record_hash().hex(), record.signing_digest().hex()) == (
            row["record_hash"],
            row["signing_digest"],
        )
        before = record
    first = ControlRecord.from_bytes(unhex(VECTORS["control"]["chain"][0]["cbor"]))
    for row in VECTORS["control"]["refused_after_the_first"]:
        record = ControlRecord.from_bytes(unhex(row["cbor"]))
        with pytest.raises(VerifyError):
            _check_record(record, first)


def test_evidence_is_made_of_two_statements():
    for row in VECTORS["evidence"]:
        first, other = (Receipt.from_bytes(unhex(statement)) for statement in row["statements"])
        evidence = Equivocation.of(other, first, one_pk=unhex(row["hub_pks"][0]))
        assert evidence.to_bytes().hex() == row["cbor"]


@named(VECTORS["pow"])
def test_proof_of_work(row):
    cookie = PowCookie.from_bytes(unhex(row["header"]))
    if row["verdict"] == "good":
        cookie.verify(unhex(row["request"]), row["difficulty"])
    else:
        with pytest.raises(VerifyError):
            cookie.verify(unhex(row["request"]), row["difficulty"])


@named(VECTORS["keystore"])
def test_keystores_open(row):
    fs = MemFs()
    fs.replace("keystore.enc", unhex(row["cbor"]))
    assert Keystore.open(fs, row["passphrase"]).secrets.to_bytes().hex() == row["secrets"]


def directory(files):
    fs = MemFs()
    for path, data in files.items():
        if data is not None:
            fs.make_dir(path.rpartition("/")[0])
            fs.replace(path, unhex(data))
    return fs


def test_a_portable_set_is_good():
    listed = VECTORS["portable_set"]
    checked = portability.check_set(directory(listed["files"]))
    assert (checked.entries, checked.checkpoints, checked.attachments, len(checked.tokens)) == (
        listed["entries"],
        1,
        1,
        1,
    )
    assert checked.hub_sigs_checked
    assert len(checked.states[0].pending) == 1


@named(VECTORS["portable_set"]["refused"])
def test_a_portable_set_that_was_changed_names_the_file(row):
    with pytest.raises(PortableSetInvalid) as refused:
        portability.check_set(directory({**VECTORS["portable_set"]["files"], **row["change"]}))
    assert refused.value.path == row["path"]


@named(VECTORS["fork_origin"])
def test_fork_origins(row):
    fs = MemFs()
    fs.replace(layout.FORK_ORIGIN, unhex(row["fork-origin.json"]))
    fs.replace(layout.FORK_ORIGIN_SIG, unhex(row["fork-origin.sig"]))
    origin = read_fork_origin(fs, (KEYS[row["signer"]],))
    assert origin is not None
    assert (origin.hub_id.hex(), origin.signing_digest().hex()) == (row["origin_hub_id"], row["digest"])
    with pytest.raises(VerifyError):
        read_fork_origin(fs, (KEYS["stranger"],))


def test_the_identity_of_a_hub():
    row = VECTORS["hub_identity"]
    identity = HubIdentity.from_bytes(unhex(row["hub-identity.json"]))
    identity.verify(unhex(row["hub-identity.sig"]))
    assert identity.current.hub_pk == KEYS[row["signer"]]


def test_an_identity_that_a_root_signed():
    row = VECTORS["hub_identity"]
    root = row["ephemeral"]
    fs = MemFs()
    fs.replace(layout.ROOT, unhex(root["hub-root.pk"]))
    fs.replace(layout.IDENTITY, unhex(row["hub-identity.json"]))
    fs.replace(layout.IDENTITY_SIG, unhex(root["hub-identity.sig"]))
    identity = identities.read_identity(fs, key_map=False)
    assert identities.read_root(fs) == KEYS[root["root"]]
    pin, other = HubPin.parse(root["pin"]), HubPin.of_root(KEYS["stranger"])
    answer = IdentityResponse.of(identity, unhex(root["hub-identity.sig"]))
    assert pin.to_text() == root["pin"]
    assert pin.learn(answer).keys == identity.keys
    for wrong, said in ((other, answer), (pin, IdentityResponse.of(identity, unhex(row["hub-identity.sig"])))):
        with pytest.raises(ForeignKey):
            wrong.learn(said)


# --- birth certificates -----------------------------------------------------------------------------------


def born(row):
    fs = MemFs()
    fs.make_dir(layout.KEYS)
    fs.replace(layout.BIRTH, unhex(row["birth.json"]))
    identities.check_birth(fs, KEYS["hub"], row["now"])


def test_a_birth_certificate_is_made_as_listed():
    listed = VECTORS["birth"]
    certificate = BirthCertificate.issue(SigningKey(unhex(VECTORS["keys"]["hub"]["seed"])), listed["not_after"])
    assert (certificate.hub_pk.hex(), certificate.sig.hex()) == (listed["hub_pk"], listed["sig"])
    assert certificate.to_bytes().hex() == listed["good"][0]["birth.json"]


@named(VECTORS["birth"]["good"])
def test_good_birth_certificates(row):
    born(row)


@named(VECTORS["birth"]["refused"])
def test_bad_birth_certificates(row):
    why = {"format": "birth certificate", "signature": "not by its key", "key": "is for key", "time": "was valid until"}
    with pytest.raises(identities.BlankLogError, match=why[row["error"]]) as refused:
        born(row)
    cause = {"format": FormatError, "signature": SignatureError}.get(row["error"], type(None))
    assert isinstance(refused.value.__cause__, cause)


# --- a second implementation agrees ---------------------------------------------------------------------------


def test_the_second_implementation_agrees_in_a_process_of_its_own():
    command = [sys.executable, "-I", str(PROGRAM), str(make_vectors.BEYOND)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout[:3]) == (0, "OK:"), done


def test_the_second_implementation_has_none_of_our_code():
    tree = ast.parse(PROGRAM.read_text("utf-8"))
    modules = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    modules |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not [name for name in modules if name == "veen" or name.startswith("veen.")]


def places(tree, path=()):
    """Where hex strings are that something is computed from."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            # What is refused may change and be refused all the same.
            refused = ("refused", "refused_after_the_first", "error", "change", "request")
            if key not in ("methods", "common_statuses", "json", "name", *refused):
                yield from places(value, (*path, key))
    elif isinstance(tree, list):
        for number, value in enumerate(tree):
            yield from places(value, (*path, number))
    elif isinstance(tree, str) and len(tree) >= 16 and re.fullmatch("([0-9a-f]{2})+", tree):
        yield path


@pytest.mark.parametrize("further", [5, pytest.param(40, marks=pytest.mark.slow)])
def test_a_changed_digit_is_noticed(tmp_path, capsys, further):
    """One digit in each part of the file, and in further places everywhere in it."""
    rng = random.Random(12)
    every = [path for path in places(VECTORS) if path[-1] != "capitals"]
    chosen = [rng.choice([path for path in every if path[0] == name]) for name in {path[0] for path in every}]
    for path in [*chosen, *rng.sample(every, further)]:
        damaged = copy.deepcopy(VECTORS)
        *outer, last = path
        into = damaged
        for key in outer:
            into = into[key]
        at = rng.randrange(len(into[last]))
        into[last] = into[last][:at] + ("0" if into[last][at] != "0" else "1") + into[last][at + 1 :]
        file = tmp_path / "damaged.json"
        file.write_text(json.dumps(damaged), "utf-8")
        assert veen_verify_beyond.main([str(file)]) == 1, path
    assert "OK" not in capsys.readouterr().out


# --- every status is what a hub answers -----------------------------------------------------------------------

ADMIN_HEADER = {"Authorization": f"Bearer {ADMIN.decode()}"}
READ_HEADER = {"Authorization": f"Bearer {READER.decode()}"}
SLOW = CapToken.issue(w.ISSUER, w.ALICE.public, [w.STREAM], ttl=100, rate=Rate(per_sec=1, burst=1))
FOREIGN = CapToken.issue(w.STRANGER, w.ALICE.public, [w.STREAM], ttl=100)


def derive(parent=SLOW, *, issuer=w.ALICE, stream_id=w.STREAM):
    token = CapToken.issue(issuer, w.BOB.public, [stream_id], ttl=10)
    return DeriveRequest(token=token, parent_ref=parent.auth_ref())


DATA = b"an attachment"
PUT = f"/tooling/attachment/{H(DATA).hex()}"


def post(path, request, headers=None):
    body = request if isinstance(request, bytes) else request.to_bytes()
    return lambda hub: hub.request("POST", f"/tooling/{path}", body, {**ADMIN_HEADER, **(headers or {})})


def get(path):
    return lambda hub: hub.request("GET", path, headers=ADMIN_HEADER)


def put(data=DATA, *, path=PUT, token=w.FREE_TOKEN, key=w.ALICE, query=""):
    headers = {GRANT_HEADER: AttachmentGrant.issue(key, token.auth_ref(), H(DATA)).to_bytes().hex()} if token else {}
    return lambda hub: hub.request("PUT", path + query, data, headers)


def after(change, ask):
    """Change the hub, ask, and give the answer."""

    def work(hub):
        change(hub)
        return ask(hub)

    return work


def set_service(name, value):
    return lambda hub: setattr(hub.services, name, value)


def revoke(kind, target):
    def change(hub):
        record = PolicyRevocation(revocations=(Revocation(kind=kind, target=target, ts=0),))
        hub.run(hub.services.sequencer.control(lambda _: record, new_second=True))
        hub.now += 5

    return change


def distrust(hub):
    hub.services.policy = w.policy(trusted_issuers={})


def damage(hub):
    (hub.directory / layout.attachment(H(DATA))).write_bytes(b"damaged")


class BrokenBackend:
    name = "file"

    def publish(self, *_):
        raise AnchorError("no")


ANCHOR = AnchorRequest(label=w.LABEL)
NOWHERE = b"\x77" * 32
EVIDENCE = Equivocation.from_bytes(
    unhex(next(row["cbor"] for row in VECTORS["objects"] if row["kind"] == "equivocation"))
)
OWN_EVIDENCE = Equivocation.of(
    Receipt.issue(w.HUB, label=w.LABEL, stream_seq=1, leaf_hash=NOWHERE, mmr_root=NOWHERE, hub_ts=1),
    Receipt.issue(w.HUB, label=w.LABEL, stream_seq=1, leaf_hash=w.LABEL, mmr_root=w.LABEL, hub_ts=1),
    one_pk=w.HUB.public,
)


def authority(realm):
    return Authority(
        realm_id=realm_id_of(realm), stream_id=w.STREAM, primary_hub=NOWHERE, replica_hubs=(),
        policy="single-primary", ts=w.NOW, ttl=60,
    )  # fmt: skip


def batch(count):
    return b"".join([w.msg(token=None, key=w.BOB).to_bytes()] * count)


def cursor(**changes):
    return ClientCursorRequest.issue(w.ALICE, **{"label": w.LABEL, "ts": w.NOW, **changes})


SHORT_STREAM = SLOW.to_bytes().replace(b"\x58\x20" + w.STREAM, b"\x58\x1f" + w.STREAM[:-1])


# (method, path, status, code) -> how to get that answer from a hub with one label of three entries
RECIPES = {
    ("POST", "submit_batch", 200, "ok"): [post("submit_batch", batch(1))],
    ("POST", "submit_batch", 403, "PREFILTER_REJECT"): [
        after(set_service("policy", w.policy(pow_difficulty=8)), post("submit_batch", batch(1)))
    ],
    ("POST", "submit_batch", 413, "E.LIMIT"): [post("submit_batch", batch(1001))],
    ("POST", "authorize", 200, "ok"): [post("authorize", SLOW)],
    ("POST", "authorize", 403, "CAP_INVALID"): [post("authorize", FOREIGN), post("authorize", w.forged(SLOW))],
    ("POST", "derive", 200, "ok"): [after(post("authorize", SLOW), post("derive", derive()))],
    ("POST", "derive", 400, "CAP_TTL"): [
        after(post("authorize", SLOW), after(lambda hub: setattr(hub, "now", w.NOW + 101), post("derive", derive())))
    ],
    ("POST", "derive", 403, "CAP_MISSING"): [post("derive", derive(FOREIGN))],
    ("POST", "derive", 403, "CAP_INVALID"): [after(post("authorize", SLOW), post("derive", derive(issuer=w.STRANGER)))],
    ("POST", "derive", 403, "CAP_SCOPE"): [after(post("authorize", SLOW), post("derive", derive(stream_id=bytes(32))))],
    ("POST", "derive", 409, "E.CONFLICT"): [
        after(set_service("policy", w.policy(principal_grants=False)), post("derive", derive()))
    ],
    ("POST", "authorize", 413, "FIELD_SIZE"): [post("authorize", SHORT_STREAM)],
    ("POST", "cap_status", 200, "ok"): [post("cap_status", CapStatusRequest(auth_ref=w.FREE_TOKEN.auth_ref()))],
    ("POST", "cap_status", 404, "E.NOT_FOUND"): [post("cap_status", CapStatusRequest(auth_ref=NOWHERE))],
    ("POST", "streams", 200, "ok"): [post("streams", unhex(next(
        row["cbor"] for row in VECTORS["objects"] if row["kind"] == "streams request")))],
    ("GET", "streams", 200, "ok"): [get("/tooling/streams")],
    ("POST", "rotate_key", 409, "E.CONFLICT"): [post("rotate_key", RotateKeyRequest(overlap_sec=1))],
    ("POST", "rotate_key", 503, "E.UNAVAILABLE"): [
        after(set_service("not_admitting", "full"), post("rotate_key", RotateKeyRequest(overlap_sec=1)))
    ],
    ("POST", "key_rotations", 200, "ok"): [post("key_rotations", VersionRequest())],
    ("POST", "policy", 200, "ok"): [post("policy", PolicyRequest(authorities=(authority("default"),)))],
    ("POST", "policy", 400, "E.BAD_REQUEST"): [post("policy", PolicyRequest(authorities=(authority("another"),)))],
    ("POST", "policy", 409, "E.CONFLICT"): [
        after(set_service("policy", w.policy()), post("policy", PolicyRequest(authorities=(authority("default"),))))
    ],
    ("GET", "policy", 200, "ok"): [get("/tooling/policy")],
    ("GET", "policy", 400, "E.BAD_REQUEST"): [get("/tooling/policy?after=x")],
    ("POST", "anchor", 200, "ok"): [post("anchor", ANCHOR)],
    ("POST", "anchor", 400, "E.BAD_REQUEST"): [
        post("anchor", AnchorRequest(label=w.LABEL, upto_seq=0)),
        post("anchor", AnchorRequest(label=w.LABEL, backend="x")),
    ],
    ("POST", "anchor", 404, "E.NOT_FOUND"): [
        post("anchor", AnchorRequest(label=NOWHERE)),
        post("anchor", AnchorRequest(label=w.LABEL, upto_seq=9)),
    ],
    ("POST", "anchor", 503, "E.UNAVAILABLE"): [
        after(set_service("anchor_backend", BrokenBackend()), post("anchor", ANCHOR))
    ],
    ("GET", "anchor", 200, "ok"): [get(f"/tooling/anchor?label={w.LABEL.hex()}")],
    ("GET", "anchor", 400, "E.BAD_REQUEST"): [get("/tooling/anchor")],
    ("POST", "proof_at", 200, "ok"): [post("proof_at", ProofAtRequest(label=w.LABEL, stream_seq=1, tree_size=3))],
    ("POST", "proof_at", 400, "E.BAD_REQUEST"): [
        post("proof_at", ProofAtRequest(label=w.LABEL, stream_seq=0, tree_size=3)),
        post("proof_at", ProofAtRequest(label=w.LABEL, stream_seq=3, tree_size=2)),
    ],
    ("POST", "proof_at", 404, "E.NOT_FOUND"): [
        post("proof_at", ProofAtRequest(label=w.LABEL, stream_seq=1, tree_size=4)),
        post("proof_at", ProofAtRequest(label=NOWHERE, stream_seq=1, tree_size=1)),
    ],
    ("POST", "consistency", 200, "ok"): [
        post("consistency", ConsistencyRequest(label=w.LABEL, from_size=1, to_size=3))
    ],
    ("POST", "consistency", 400, "E.BAD_REQUEST"): [
        post("consistency", ConsistencyRequest(label=w.LABEL, from_size=0, to_size=3)),
        post("consistency", ConsistencyRequest(label=w.LABEL, from_size=3, to_size=2)),
    ],
    ("POST", "consistency", 404, "E.NOT_FOUND"): [
        post("consistency", ConsistencyRequest(label=w.LABEL, from_size=1, to_size=4))
    ],
    ("POST", "checkpoint_latest", 200, "ok"): [post("checkpoint_latest", LabelRequest(label=w.LABEL))],
    ("POST", "checkpoint_latest", 404, "E.NOT_FOUND"): [post("checkpoint_latest", LabelRequest(label=NOWHERE))],
    ("POST", "checkpoint_range", 200, "ok"): [post("checkpoint_range", unhex(next(
        row["cbor"] for row in VECTORS["objects"] if row["kind"] == "checkpoint_range request")))],
    ("GET", "checkpoint_latest", 200, "ok"): [get(f"/tooling/checkpoint_latest?label={w.LABEL.hex()}")],
    ("GET", "checkpoint_latest", 400, "E.BAD_REQUEST"): [get("/tooling/checkpoint_latest?label=00")],
    ("GET", "checkpoint_latest", 404, "E.NOT_FOUND"): [get(f"/tooling/checkpoint_latest?label={NOWHERE.hex()}")],
    ("GET", "checkpoint_range", 200, "ok"): [get("/tooling/checkpoint_range?epoch_min=0")],
    ("GET", "checkpoint_range", 400, "E.BAD_REQUEST"): [
        get("/tooling/checkpoint_range?epoch_min=x"),
        get("/tooling/checkpoint_range?label=00"),
    ],
    ("POST", "client_cursor", 200, "ok"): [post("client_cursor", cursor())],
    ("POST", "client_cursor", 400, "E.BAD_REQUEST"): [post("client_cursor", cursor(ts=w.NOW - 61))],
    ("POST", "client_cursor", 409, "SIG_INVALID"): [post("client_cursor", cursor().to_bytes()[:-1] + b"\0")],
    ("POST", "attachments", 200, "ok"): [post("attachments", AttachmentsRequest(after=0))],
    ("POST", "attachments", 400, "E.BAD_REQUEST"): [post("attachments", AttachmentsRequest(after=2**63))],
    ("POST", "feed", 200, "ok"): [post("feed", FeedRequest(control_bytes=0, wait_sec=0))],
    ("POST", "feed", 400, "E.BAD_REQUEST"): [
        post("feed", FeedRequest(control_bytes=0, wait_sec=61)),
        post("feed", FeedRequest(control_bytes=10**9, wait_sec=0)),
    ],
    ("POST", "fence", 200, "ok"): [
        post("fence", VersionRequest()), after(post("fence", VersionRequest()), post("fence", VersionRequest()))
    ],
    ("POST", "promotion", 404, "E.NOT_FOUND"): [post("promotion", VersionRequest())],
    ("POST", "inspect", 200, "ok"): [post("inspect", InspectRequest())],
    ("POST", "inspect", 404, "E.NOT_FOUND"): [post("inspect", InspectRequest(label=NOWHERE))],
    ("POST", "report_equivocation", 200, "ok"): [post("report_equivocation", OWN_EVIDENCE)],
    ("POST", "report_equivocation", 400, "E.BAD_REQUEST"): [
        post("report_equivocation", OWN_EVIDENCE.to_bytes()[:-1] + b"\0"),
        after(lambda hub: setattr(hub.services.identity, "keys", ()), post("report_equivocation", EVIDENCE)),
    ],
    ("POST", "tail", 200, "ok"): [post("tail", TailRequest(label=w.LABEL, from_seq=1, wait_sec=0))],
    ("POST", "tail", 400, "E.BAD_REQUEST"): [
        post("tail", TailRequest(label=w.LABEL, from_seq=1, wait_sec=61)),
        post("tail", TailRequest(label=w.LABEL, from_seq=1, wait_sec=0, max_items=0)),
    ],
    ("POST", "tail", 404, "E.NOT_FOUND"): [post("tail", TailRequest(label=NOWHERE, from_seq=1, wait_sec=0))],
    ("POST", "tail", 503, "E.UNAVAILABLE"): [
        after(lambda hub: hub.no_waiting(), post("tail", TailRequest(label=w.LABEL, from_seq=4, wait_sec=9)))
    ],
    ("GET", "events", 400, "E.BAD_REQUEST"): [
        get("/tooling/events"),
        get(f"/tooling/events?label={w.LABEL.hex()}&from=x"),
        lambda hub: hub.request(
            "GET", f"/tooling/events?label={w.LABEL.hex()}", headers={**ADMIN_HEADER, "Last-Event-ID": "x"}
        ),
    ],
    ("GET", "stream", 200, "ok"): [get(f"/tooling/stream?label={w.LABEL.hex()}")],
    ("GET", "stream", 400, "E.BAD_REQUEST"): [
        get("/tooling/stream?label=00"),
        get(f"/tooling/stream?label={w.LABEL.hex()}&with_proof=7"),
    ],
    ("GET", "stream", 404, "E.NOT_FOUND"): [get(f"/tooling/stream?label={NOWHERE.hex()}")],
    ("PUT", "attachment/<coid>", 201, "ok"): [put()],
    ("PUT", "attachment/<coid>", 200, "ok"): [after(put(), put())],
    ("PUT", "attachment/<coid>", 400, "E.BAD_REQUEST"): [put(DATA + b"!"), put(query="?client_seq=1")],
    ("PUT", "attachment/<coid>", 400, "CAP_TTL"): [
        after(lambda hub: hub.advance(10**9 + 1), put())
    ],
    ("PUT", "attachment/<coid>", 403, "AUTH_REF"): [
        put(key=w.BOB),
        put(query=f"?label={w.LABEL.hex()}&client_id={w.BOB.public.hex()}&client_seq=1"),
    ],
    ("PUT", "attachment/<coid>", 403, "CAP_INVALID"): [after(distrust, put())],
    ("PUT", "attachment/<coid>", 403, "CAP_MISSING"): [put(token=None), put(token=FOREIGN)],
    ("PUT", "attachment/<coid>", 403, "CAP_REVOKED"): [after(revoke("auth-ref", w.FREE_TOKEN.auth_ref()), put())],
    ("PUT", "attachment/<coid>", 403, "CLIENT_REVOKED"): [after(revoke("client-id", w.ALICE.public), put())],
    ("PUT", "attachment/<coid>", 404, "E.NOT_FOUND"): [after(set_service("attachments", None), put())],
    ("PUT", "attachment/<coid>", 413, "ATTACHMENT_QUOTA"): [
        after(set_service("attachment_policy", AttachmentPolicy(client_bytes=1)), put())
    ],
    ("PUT", "attachment/<coid>", 413, "E.LIMIT"): [put(bytes(1017))],
    ("PUT", "attachment/<coid>", 429, "CAP_RATE"): [
        after(post("authorize", SLOW), after(put(token=SLOW), put(token=SLOW)))
    ],
    ("PUT", "attachment/<coid>", 503, "E.UNAVAILABLE"): [
        after(lambda hub: hub.no_space(), put())
    ],
    ("GET", "attachment/<coid>", 200, "ok"): [after(put(), get(PUT))],
    ("GET", "attachment/<coid>", 400, "E.BAD_REQUEST"): [get("/tooling/attachment/00")],
    ("GET", "attachment/<coid>", 404, "E.NOT_FOUND"): [get(PUT)],
    ("GET", "attachment/<coid>", 503, "E.UNAVAILABLE"): [after(put(), after(damage, get(PUT)))],
    ("POST", "status", 200, "ok"): [post("status", VersionRequest())],
    ("POST", "identity", 200, "ok"): [post("identity", VersionRequest())],
    ("GET", "readyz", 503, "not ready"): [after(set_service("reason", "no"), get("/tooling/readyz"))],
    **{
        ("GET", name, 200, "ok"): [get(f"/tooling/{name}")]
        for name in ("status", "identity", "healthz", "readyz", "version", "metrics", "openapi.json")
    },
}  # fmt: skip
# An event stream does not end, and a rotation and a promotion need a whole runtime: tests/hub/test_tooling.py,
# test_rotation.py, tests/products/federation/test_cutover.py.
ELSEWHERE = {
    ("POST", "derive", 429, "CAP_RATE"),
    ("GET", "events", 200, "ok"),
    ("POST", "rotate_key", 200, "ok"),
    ("POST", "promotion", 200, "ok"),
}


class Hub(LiveHub):
    """A hub whose clock and resources tests change."""

    now = w.NOW

    def advance(self, seconds):
        self.now += seconds

    def no_waiting(self):
        self.run(self._fill())

    async def _fill(self):
        handler: Any = self.api._operations["tail"][1]
        handler.__self__._count = 10**6

    def no_space(self):
        self.services.attachments = AttachmentFiles(OsFs(self.directory), 1 << 62)


@pytest.fixture
def hub(tmp_path):
    policy = w.policy(
        capability_gating=True,
        preloaded={w.FREE_TOKEN.auth_ref(): w.FREE_TOKEN},
        kex1=Kex1(max_client_id_lifetime_sec=86_400, max_msgs_per_client_id_per_label=65_536),
        auth1=Auth1(hub_id=NOWHERE, realm_id=realm_id_of("default")),
    )
    hub = Hub(
        tmp_path,
        policy=policy,
        limits=Limits(max_attachment_bytes=1000),
        access=Access.of(admin_tokens=[ADMIN], read_tokens=[READER]),
    )
    hub.clock = lambda: hub.now
    with hub:
        for seq in (1, 2, 3):
            hub.call("/v1/submit", SubmitRequest(msg=w.msg(token=w.FREE_TOKEN, seq=seq)), SubmitResponse)
        yield hub


def test_every_listed_status_has_a_recipe():
    listed = {
        (method["http"], method["path"].removeprefix("/tooling/"), status, code)
        for method in VECTORS["methods"]
        for status, code, _ in method["statuses"]
    }
    assert listed == set(RECIPES) | ELSEWHERE


@pytest.mark.parametrize("listed", RECIPES, ids=[" ".join(map(str, key)) for key in RECIPES])
def test_a_hub_answers_with_the_listed_status(hub, listed):
    _, _, status, code = listed
    for ask in RECIPES[listed]:
        got, heads, data = ask(hub)
        assert got == status, data
        if code not in ("ok", "not ready"):
            envelope = (
                ErrorEnvelope.from_json(json.loads(data))
                if heads["Content-Type"].startswith("application/json")
                else ErrorEnvelope.from_bytes(data)
            )
            assert code in (envelope.code, (envelope.detail or {}).get("detail_enum")), envelope


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    with LiveHub(tmp_path_factory.mktemp("hub"), access=Access.of(admin_tokens=[ADMIN], read_tokens=[READER])) as live:
        yield live


POSTED = [m for m in VECTORS["methods"] if m["http"] == "POST"]
POSTS = pytest.mark.parametrize("method", POSTED, ids=[m["operation"] for m in POSTED])


@POSTS
def test_every_method_refuses_what_it_cannot_read(guarded, method):
    def ask(body=b"\xff", http="POST", **headers):
        status, _, data = guarded.request(http, method["path"], body, {**ADMIN_HEADER, **headers})
        return status, ErrorEnvelope.from_bytes(data).code if status != 405 else None

    assert ask() == (400, "E.BAD_REQUEST")
    assert ask(http="DELETE")[0] == 405
    status, _, data = guarded.request("POST", method["path"], b"x", {**ADMIN_HEADER, "Content-Type": "text/plain"})
    assert status == 415, data
    if method["operation"] != "submit_batch":  # a sequence has no version of its own
        assert ask(b"\xa1\x01\x02") == (400, "E.VERSION")
        assert ask(bytes(200 * 1024)) == (413, "E.LIMIT")


@pytest.mark.parametrize(
    "method", VECTORS["methods"], ids=[f"{m['http']} {m['operation']}" for m in VECTORS["methods"]]
)
def test_every_method_asks_for_the_credentials_that_it_needs(guarded, method):
    path = method["path"].replace("<coid>", "00" * 32)
    if method["operation"] == "events":
        path += "?label=00"  # else it would not end
    bare, _, _ = guarded.request(method["http"], path, b"" if method["http"] == "GET" else b"\xff")
    reading, _, _ = guarded.request(method["http"], path, b"" if method["http"] == "GET" else b"\xff", READ_HEADER)
    assert (bare == 401) is (method["who"] in ("reader", "administrator", "status", "metrics"))
    assert (reading == 403) is (method["who"] == "administrator" or (method["who"] == "writer" and bare == 403))
