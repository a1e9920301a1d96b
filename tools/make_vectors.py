"""Writes tests/vectors/veen-v0.0.1.json, the conformance vectors of the protocol (spec-1 §20 and TS0.1; D-118), and
veen-beyond-v0.0.1.json beside it, the vectors of what no seed document defines (D-168; tools/beyond_vectors.py).

    python tools/make_vectors.py           write the files
    python tools/make_vectors.py --check   exit 1 if a file on disk is not what this program writes

Every input is fixed: keys come from one-byte seeds, times are given, and the HPKE ephemeral of message n is derived
from 0x04×24 || u64be(n). The protocol draws no other randomness, so the file is a function of this program and the
core. docs/vectors.md explains each member; tools/veen_verify_vectors.py checks the file without any of our code.

Receipts, roots and proofs are computed. Which messages a hub refuses, and why, is written down here by hand from the
admission table: the file is meant to judge implementations, so none of them may write it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from veen.core import cbor
from veen.core.crypto import ed25519, hpke, x25519
from veen.core.errors import Refusal
from veen.core.hashing import H, Ht, trunc_24, u32be, u64be
from veen.core.labels import hub_id_of, label_of, routing_key_of, stream_id_of
from veen.core.limits import DEFAULT_LIMITS
from veen.core.objects.captoken import CapToken, Rate
from veen.core.objects.card import Prekey
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import (
    AnchorPublish,
    CapAuthorize,
    ControlRecord,
    KeyRotate,
    LabelOpen,
    LimitsSet,
    PolicyAuthority,
    PolicyRevocation,
    RetentionDrop,
    StreamRegister,
)
from veen.core.objects.envelopes import (
    CheckpointRequest,
    CheckpointResponse,
    ErrorEnvelope,
    ProofRequest,
    ProofResponse,
    ReceiptRequest,
    ReceiptResponse,
    StreamItem,
    StreamRequest,
    StreamResponse,
    SubmitRequest,
    SubmitResponse,
)
from veen.core.objects.evidence import Equivocation
from veen.core.objects.msg import Msg
from veen.core.objects.payload_hdr import PayloadHdr
from veen.core.objects.policies import Authority, Revocation, realm_id_of
from veen.core.objects.profile import PRESETS, Profile
from veen.core.objects.receipt import Receipt
from veen.core.sealing.ciphertext import (
    ATTACHED_SCHEMA,
    Attached,
    Attachment,
    Binding,
    Parts,
    SealedAttachments,
    att_root_of,
    seal,
)
from veen.core.tree.mmr import MmrTree
from veen.core.tree.proof import MmrProof, PathStep, prove_consistency, prove_inclusion, prove_range
from veen.core.wire import Json, Wire

OUTPUT: Final = Path(__file__).resolve().parent.parent / "tests" / "vectors" / "veen-v0.0.1.json"
BEYOND: Final = OUTPUT.with_name("veen-beyond-v0.0.1.json")

SEEDS: Final = {"client": 1, "hub": 2, "client_b": 5, "hub_next": 6, "issuer": 7, "witness": 8, "stranger": 9}
KEYS: Final = {name: ed25519.SigningKey(bytes([seed]) * 32) for name, seed in SEEDS.items()}
READER_IKM: Final = b"\x03" * 32
READER_SK, READER_PK = hpke.derive_key_pair(READER_IKM)
CHAT: Final = H(b"chat.v1")
NOON: Final = 1_700_000_040  # a multiple of 60, so that an epoch of the profile `ref` begins here
EPOCH: Final = NOON // 60


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write the conformance vectors.")
    parser.add_argument("--check", action="store_true", help="compare with the file instead of writing it")
    args = parser.parse_args(argv)
    faults = 0
    for path, text in ((OUTPUT, render()), (BEYOND, render_beyond())):
        if not args.check:
            path.write_text(text, "utf-8")
        elif not path.exists() or path.read_text("utf-8") != text:
            sys.stderr.write(f"{path.name} is not what tools/make_vectors.py writes\n")
            faults = 1
    return faults


def render() -> str:
    """Return the whole file: members in a fixed order, byte strings in lower-case hex, one value a line."""
    return json.dumps(_to_hex(build()), indent=1, ensure_ascii=False) + "\n"


def render_beyond() -> str:
    """Return the other file, in the same form."""
    import beyond_vectors  # which uses the worlds of this module

    return json.dumps(_to_hex(beyond_vectors.build(scenario_a().world)), indent=1, ensure_ascii=False) + "\n"


def build() -> dict[str, Any]:
    a, b, c, d = scenario_a(), scenario_b(), scenario_c(), scenario_d()
    records = control_records(a.world, object_token())
    return {
        "format": "veen-vectors",
        "format_version": 1,
        "spec": "v0.0.1",
        "keys": keys(),
        "constants": constants(),
        "objects": [_object_json(name, obj) for name, obj in objects(a.world, c.world, d.world) + records[:1]],
        "other_objects": [_object_json(name, obj) for name, obj in [*records[1:], *envelopes(a.world), prekey()]],
        "scenarios": {"A": a.json, "B": b.json, "C": c.json, "D": d.json},
        "equivocation": equivocations(a.world),
        "malformed": list_malformed(a.world, d.world),
    }


def _to_hex(value: Any) -> Json:
    """Byte strings become hex, wire objects the hex of their one encoding."""
    if isinstance(value, Wire):
        return value.to_bytes().hex()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {key: _to_hex(element) for key, element in value.items()}
    if isinstance(value, (list, tuple)):
        return [_to_hex(element) for element in value]
    return value


def keys() -> dict[str, Any]:
    signing = {name: {"seed": key.seed, "public": key.public} for name, key in KEYS.items()}
    return {**signing, "reader": {"ikm": READER_IKM, "secret": READER_SK, "public": READER_PK}}


# --- constants ----------------------------------------------------------------------------------------------


def constants() -> dict[str, Any]:
    leaves = [bytes([n]) * 32 for n in range(1, 9)]
    tree = MmrTree(leaves)
    return {
        "hashes": [
            {"name": name, "tag": tag, "parts": parts, "hash": Ht(tag, b"".join(parts)) if tag else H(b"".join(parts))}
            for name, tag, parts in hash_inputs()
        ],
        "mmr": [
            {
                "leaf": leaves[size - 1],
                "peaks": tree.peaks(size),
                "root": tree.root(size),
                "att_root": att_root_of(leaves[:size]),
            }
            for size in range(1, 9)
        ],
    }


def hash_inputs() -> list[tuple[str, str, list[bytes]]]:
    """Name, tag (empty for plain H) and the parts that are hashed one after the other."""
    profiles = [Profile(epoch_sec=es, pad_block=pb) for es, pb in ((60, 256), (0, 256), (60, 0), (0, 0), (3600, 256))]
    hub_id = hub_id_of(bytes(32))
    routing_key = routing_key_of(hub_id)
    places = [("test", 0), ("test", 1), ("test", EPOCH), ("ab" * 32, 0)]
    texts = ["test", "chat.v1", "rpc.v1", "veen/schema:paid.operation.v1", "veen.attached.v1"]
    return [
        *((f"profile_id {p.epoch_sec} {p.pad_block}", "veen/profile", [p.to_bytes()]) for p in profiles),
        ("hub_id of the zero key", "veen/hub-id", [bytes(32)]),
        ("routing_key of the zero key", "veen/routing_key", [hub_id]),
        *(
            (f"label {name} {epoch}", "veen/label", [routing_key, stream_id_of(name), u64be(epoch)])
            for name, epoch in places
        ),
        *((f"id of {text}", "", [text.encode()]) for text in texts),
        ("att_root without attachments", "veen/att-root", []),
    ]


# --- a world: one hub, its log, and the steps taken in it ---------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class HubKey:
    name: str
    valid_from: int = 0
    valid_until: int | None = None

    def holds(self, time: int) -> bool:
        return self.valid_from <= time and (self.valid_until is None or time < self.valid_until)


@dataclass(frozen=True)
class Draft:
    """A message, and how it was made."""

    msg: Msg
    fields: dict[str, Any]


@dataclass(kw_only=True)
class World:
    """Setup of a scenario's hub, and its events."""

    profiles: Sequence[str]
    streams: Sequence[str]
    hub_keys: Sequence[HubKey] = (HubKey(name="hub"),)
    gating: bool = False
    preloaded: Sequence[CapToken] = ()
    first_ephemeral: int
    steps: list[dict[str, Any]] = field(default_factory=list)
    trees: dict[bytes, MmrTree] = field(default_factory=dict)
    entries: dict[bytes, list[tuple[Msg, Receipt]]] = field(default_factory=dict)
    record: ControlRecord | None = None
    drafted: int = 0

    @property
    def routing_key(self) -> bytes:
        return routing_key_of(hub_id_of(KEYS[self.hub_keys[0].name].public))

    def label(self, stream: str, epoch: int = 0) -> bytes:
        return label_of(self.routing_key, stream_id_of(stream), epoch)

    def hub_json(self) -> dict[str, Any]:
        return {
            "hub_keys": [
                {"key": key.name, "valid_from": key.valid_from}
                | ({} if key.valid_until is None else {"valid_until": key.valid_until})
                for key in self.hub_keys
            ],
            "hub_id": hub_id_of(KEYS[self.hub_keys[0].name].public),
            "routing_key": self.routing_key,
            "epoch_sec": PRESETS[self.profiles[0]].epoch_sec,
            "profile_ids": [PRESETS[name].profile_id() for name in self.profiles],
            "streams": self.streams,
            "capability_gating": self.gating,
            "trusted_issuers": ["issuer"] if self.gating else [],
            "preloaded_tokens": self.preloaded,
            "max_epoch_skew_sec": DEFAULT_LIMITS.max_epoch_skew_sec,
            "max_cap_rate_per_sec": DEFAULT_LIMITS.max_cap_rate_per_sec,
            "max_cap_rate_burst": DEFAULT_LIMITS.max_cap_rate_burst,
        }

    def draft(
        self,
        signer: str,
        client_seq: int,
        prev_ack: int,
        *,
        stream: str | None = None,
        epoch: int = 0,
        token: CapToken | bytes | None = None,
        profile: Profile | None = None,
        hdr: PayloadHdr | None = None,
        body: bytes | Callable[[SealedAttachments], bytes] | None = None,
        attachments: Sequence[bytes] = (),
    ) -> Draft:
        """Seal and sign a message, keeping every value on the way (spec §4.2)."""
        ikm = b"\x04" * 24 + u64be(self.first_ephemeral + self.drafted)
        self.drafted += 1
        stream = stream or self.streams[0]
        profile = profile or PRESETS[self.profiles[0]]
        binding = Binding(
            profile_id=profile.profile_id(),
            label=self.label(stream, epoch),
            client_id=KEYS[signer].public,
            client_seq=client_seq,
            prev_ack=prev_ack,
            auth_ref=token.auth_ref() if isinstance(token, CapToken) else token,
        )
        hdr = hdr or PayloadHdr(schema=CHAT, cap_ref=binding.auth_ref)
        body = f"{signer} says {client_seq}".encode() if body is None else body
        sealed = seal(READER_PK, binding, hdr, body, ikm=ikm, pad_block=profile.pad_block, attachments=attachments)
        hdr = sealed.attachments.bind(hdr)
        plain_body = body(sealed.attachments) if callable(body) else body
        parts = Parts.split(sealed.ciphertext)
        sk_e, _ = hpke.derive_key_pair(ikm)
        _, context = hpke.setup_sender(READER_PK, ikm)
        msg = Msg.compose(
            KEYS[signer],
            profile_id=binding.profile_id,
            label=binding.label,
            client_seq=client_seq,
            prev_ack=prev_ack,
            auth_ref=binding.auth_ref,
            ciphertext=sealed.ciphertext,
        )
        fields = {
            "signer": signer,
            "stream": stream,
            "epoch": epoch,
            "seal": {
                "profile": profile,
                "ikm_e": ikm,
                "sk_e": sk_e,
                "enc": parts.enc,
                "dh": x25519.exchange(sk_e, READER_PK),
                "aad": binding.aad(),
                "payload_hdr": hdr,
                "hpke_ct_hdr": parts.hpke_ct_hdr,
                "k_body": context.export(b"veen/body-k", 32),
                "nonce": binding.nonce(),
                "body": plain_body,
                "aead_ct_body": parts.aead_ct_body,
                "padding_bytes": len(parts.padding),
                "attachments": [
                    {
                        "plaintext": plain,
                        "k_att": context.export(b"veen/att-k" + u64be(index), 32),
                        "n_att": trunc_24(Ht("veen/att-nonce", binding.aad() + u64be(index))),
                        "ciphertext": ciphertext,
                        "coid": coid,
                    }
                    for index, (plain, ciphertext, coid) in enumerate(
                        zip(attachments, sealed.attachments.ciphertexts, sealed.attachments.coids, strict=True)
                    )
                ],
            },
        }
        return Draft(msg, fields)

    def accept(self, note: str, draft: Draft, hub_ts: int) -> Receipt:
        msg = draft.msg
        tree = self.trees.setdefault(msg.label, MmrTree())
        tree.append(msg.leaf_hash())
        signer = max((key for key in self.hub_keys if key.holds(hub_ts)), key=lambda key: key.valid_from).name
        receipt = Receipt.issue(
            KEYS[signer],
            label=msg.label,
            stream_seq=tree.size,
            leaf_hash=msg.leaf_hash(),
            mmr_root=tree.root(),
            hub_ts=hub_ts,
        )
        self.entries.setdefault(msg.label, []).append((msg, receipt))
        self._submit(note, draft, hub_ts, {"receipt": receipt})
        return receipt

    def refuse(
        self,
        note: str,
        draft: Draft | Msg,
        hub_ts: int,
        refusal: Refusal,
        *,
        retry_after: int | None = None,
        original_seq: int | None = None,
    ) -> None:
        """`draft` is a bare Msg where the bytes were altered after signing, or were sent before."""
        refused: dict[str, Any] = _refusal_json(refusal)
        if retry_after is not None:
            refused["retry_after"] = retry_after
        if original_seq is not None:
            refused["stream_seq"] = original_seq
        self._submit(note, draft if isinstance(draft, Draft) else Draft(draft, {}), hub_ts, {"refused": refused})

    def _submit(self, note: str, draft: Draft, hub_ts: int, expect: dict[str, Any]) -> None:
        msg = draft.msg
        derived = {"signing_digest": msg.signing_digest(), "leaf_hash": msg.leaf_hash()}
        step = {"op": "submit", "note": note, "hub_ts": hub_ts, **draft.fields, "msg": msg, **derived, "expect": expect}
        self.steps.append(step)

    def authorize(
        self, note: str, token: CapToken, hub_ts: int, *, again: ControlRecord | None = None
    ) -> ControlRecord:
        record = again or ControlRecord.issue(KEYS["hub"], self.record, CapAuthorize.of(token), hub_ts=hub_ts)
        self.record = self.record if again else record
        self._authorize(note, token, hub_ts, {"record": record})
        return record

    def refuse_token(self, note: str, token: CapToken, hub_ts: int) -> None:
        self._authorize(note, token, hub_ts, {"refused": _refusal_json(Refusal.CAP_INVALID)})

    def _authorize(self, note: str, token: CapToken, hub_ts: int, expect: dict[str, Any]) -> None:
        self.steps.append(
            {
                "op": "authorize",
                "note": note,
                "hub_ts": hub_ts,
                "token": token,
                "auth_ref": token.auth_ref(),
                "expect": expect,
            }
        )


def _refusal_json(refusal: Refusal) -> dict[str, Any]:
    return {"code": refusal.code, "stage": refusal.stage.value, "detail_enum": refusal.detail_enum}


@dataclass(frozen=True)
class Scenario:
    world: World
    json: dict[str, Any]


def _scenario(title: str, world: World, **more: Any) -> Scenario:
    shared = {"title": title, "hub": world.hub_json(), "steps": world.steps}
    return Scenario(world, {**shared, **more})


# --- A: one writer ------------------------------------------------------------------------------------------


def scenario_a() -> Scenario:
    world = World(profiles=("messaging", "bulk"), streams=("test",), first_ephemeral=1)
    bulk = PRESETS["bulk"]
    files = (b"", b"one byte more than nothing"[:1], bytes(range(256)) + b"and then some")
    empty = world.draft("client", 1, 0, profile=bulk, body=b"")
    first = world.accept("an empty body, without padding (the recipe of 002 §20)", empty, 1000)
    world.accept("a padded text", world.draft("client", 2, 1, body="grüße, 世界".encode()), 1000)
    reply = PayloadHdr(schema=CHAT, parent_id=first.leaf_hash, expires_at=2_000_000_000)
    world.accept("a header with parent_id and expires_at", world.draft("client", 3, 2, hdr=reply), 1001)
    world.accept("three attachments, the first of them empty", _with_files(world, 4, 3, files), 1002)
    world.accept("prev_ack may stay behind the head", world.draft("client", 5, 3, profile=bulk), 1002)
    world.accept(
        "one attachment: its att_root is hashed all the same (D-13)", _with_files(world, 6, 5, files[1:2]), 1060
    )
    exact = world.draft("client", 7, 6, body=bytes(256 - 40 - (36 + 16) - 16))
    world.accept("a ciphertext that fills its block exactly needs no padding", exact, 2000)
    label = world.label("test")
    tree = world.trees[label]
    node_at, size = tree.node_at, tree.size
    inclusions = [(seq, seq) for seq in range(1, size + 1)] + [(seq, size) for seq in range(1, size)]
    proofs = {
        "inclusion": [
            {"stream_seq": seq, "tree_size": at, "root": tree.root(at), "cbor": prove_inclusion(node_at, seq, at)}
            for seq, at in inclusions
        ],
        "consistency": [
            {
                "from_size": old,
                "from_root": tree.root(old),
                "to_size": new,
                "to_root": tree.root(new),
                "cbor": prove_consistency(node_at, old, new),
            }
            for old, new in ((3, 7), (4, 7), (1, 6), (6, 7), (7, 7))
        ],
        "range": [
            {
                "first_seq": first_seq,
                "last_seq": last_seq,
                "tree_size": size,
                "root": tree.root(),
                "cbor": prove_range(node_at, first_seq, last_seq, size),
            }
            for first_seq, last_seq in ((2, 5), (1, 7), (4, 4), (6, 7))
        ],
        "refused": list_refused_proofs(tree),
    }
    checkpoints = [
        _checkpoint_json(f"upto_{upto}", _checkpoint_a(world, upto), "hub", stream="test") for upto in (4, size)
    ]
    return _scenario("A: one writer per label", world, proofs=proofs, checkpoints=checkpoints)


def _with_files(world: World, client_seq: int, prev_ack: int, files: Sequence[bytes]) -> Draft:
    def body(sealed: SealedAttachments) -> bytes:
        named = [
            Attachment(coid=coid, size=len(data), name=f"file-{index}", media_type="application/octet-stream")
            for index, (coid, data) in enumerate(zip(sealed.coids, files, strict=True))
        ]
        return Attached(body=b"see attached", attachments=tuple(named)).to_bytes()

    hdr = PayloadHdr(schema=ATTACHED_SCHEMA)
    return world.draft("client", client_seq, prev_ack, hdr=hdr, body=body, attachments=files)


def _checkpoint_a(world: World, upto_seq: int) -> Checkpoint:
    label = world.label("test")
    root = world.trees[label].root(upto_seq)
    return Checkpoint.issue(KEYS["hub"], label_prev=label, label_curr=label, upto_seq=upto_seq, mmr_root=root, epoch=0)


def list_refused_proofs(tree: MmrTree) -> list[dict[str, Any]]:
    """Inclusion proofs that decode, and must not pass verification (spec §5.4)."""
    size = tree.size
    good = prove_inclusion(tree.node_at, 3, size)
    step, *rest = good.path
    low, high = good.peaks_after
    leaf = good.leaf_hash
    bad: list[tuple[str, MmrProof, int, int]] = [
        ("another_leaf", replace(good, leaf_hash=tree.node_at(0, 3)), 3, size),
        ("another_position", good, 4, size),
        ("position_zero", good, 0, size),
        ("position_beyond_the_tree", good, size + 1, size),
        ("another_size", good, 3, 6),
        ("dir_flipped", replace(good, path=(replace(step, dir=1 - step.dir), *rest)), 3, size),
        ("dir_two", replace(good, path=(replace(step, dir=2), *rest)), 3, size),
        ("sibling_altered", replace(good, path=(replace(step, sib=H(step.sib)), *rest)), 3, size),
        ("path_reversed", replace(good, path=(*rest, step)), 3, size),
        ("path_too_short", replace(good, path=(step,)), 3, size),
        ("redundant_sibling", replace(good, path=(*good.path, PathStep(dir=0, sib=bytes(32)))), 3, size),
        ("peaks_swapped", replace(good, peaks_after=(high, low)), 3, size),
        ("peak_missing", replace(good, peaks_after=(low,)), 3, size),
        ("peak_repeated", replace(good, peaks_after=(low, low)), 3, size),
        ("peak_too_many", replace(good, peaks_after=(low, high, H(b""))), 3, size),
    ]
    return [
        {
            "name": name,
            "cbor": proof,
            "leaf_hash": leaf,
            "stream_seq": stream_seq,
            "tree_size": tree_size,
            "root": tree.root(),
        }
        for name, proof, stream_seq, tree_size in bad
    ]


def _checkpoint_json(
    name: str, checkpoint: Checkpoint, signer: str, *, stream: str, witnesses: Sequence[str] = (), refused: str = ""
) -> dict[str, Any]:
    return {
        "name": name,
        "stream": stream,
        "cbor": checkpoint,
        "signing_digest": checkpoint.signing_digest(),
        "signer": signer,
        "witnesses": list(witnesses),
        "verdict": f"refused: {refused}" if refused else "accepted",
    }


# --- B: several writers -------------------------------------------------------------------------------------


def scenario_b() -> Scenario:
    world = World(profiles=("messaging",), streams=("room",), first_ephemeral=101)
    time = 5000
    c1 = world.draft("client", 1, 0)
    world.accept("the first writer begins with client_seq 1 and prev_ack 0", c1, time)
    world.accept("a second writer has its own sequence", world.draft("client_b", 1, 1), time)
    world.refuse("the same bytes again", c1.msg, time, Refusal.DUPLICATE, original_seq=1)
    other = world.draft("client", 1, 2, body=b"something else")
    world.refuse("another message under a used client_seq (I8)", other, time, Refusal.DUPLICATE)
    world.refuse("a gap in client_seq (I9)", world.draft("client", 3, 2), time, Refusal.CLIENT_SEQ)
    world.refuse(
        "client_seq 0 was never valid, so it is no duplicate", world.draft("client", 0, 2), time, Refusal.CLIENT_SEQ
    )
    late = world.draft("stranger", 2, 0)
    world.refuse("a new writer must begin with 1", late, time, Refusal.CLIENT_SEQ)
    world.refuse("prev_ack beyond the head (I6)", world.draft("client", 2, 3), time, Refusal.PREV_ACK)
    both = world.draft("client", 7, 9)
    world.refuse("prev_ack is judged before client_seq", both, time, Refusal.PREV_ACK)
    c2 = world.draft("client", 2, 2)
    world.accept("the refusals changed nothing", c2, time + 1)
    world.refuse("prev_ack below this writer's last one", world.draft("client", 3, 1), time + 1, Refusal.PREV_ACK)
    world.refuse("so an old message is refused for its prev_ack first", c1.msg, time + 1, Refusal.PREV_ACK)
    world.refuse("the latest message again", c2.msg, time + 1, Refusal.DUPLICATE, original_seq=3)
    b2 = world.draft("client_b", 2, 1)
    world.accept("prev_ack may repeat, and is per writer", b2, time + 2)
    unsigned = replace(world.draft("client", 9, 9).msg, sig=bytes(64))
    world.refuse("a bad signature is found before a bad sequence", unsigned, time + 2, Refusal.SIG_INVALID)
    signed = world.draft("client", 3, 4).msg
    moved = replace(signed, client_id=KEYS["client_b"].public)
    world.refuse("another writer's message claimed as one's own", moved, time + 2, Refusal.SIG_INVALID)
    swapped = replace(signed, ciphertext=b2.msg.ciphertext)
    world.refuse("a ciphertext under another ct_hash (I1)", swapped, time + 2, Refusal.CT_HASH)
    whole = signed.ciphertext
    for note, altered, refusal in (
        ("padding that is not zero", whole[:-1] + b"\x01", Refusal.CT_PADDING),
        ("a byte after the padding", whole + b"\x80", Refusal.CT_PADDING),
        ("a ciphertext without its length fields", whole[:39], Refusal.FIELD_SIZE),
        ("a ciphertext shorter than its parts", whole[:100], Refusal.FIELD_SIZE),
        ("a header above the limit", whole[:32] + u32be(16_385) + whole[36:], Refusal.FIELD_SIZE),
        ("a body above the limit", whole[:36] + u32be(1_048_321) + whole[40:], Refusal.FIELD_SIZE),
    ):
        world.refuse(note, _recompose(signed, altered), time + 2, refusal)
    unknown = world.draft("client", 3, 4, profile=PRESETS["bulk"])
    world.refuse("a profile this hub does not support (I4)", unknown, time + 2, Refusal.PROFILE)
    world.accept("and the log goes on", world.draft("client", 3, 4), time + 3)
    world.accept("one behind the head", world.draft("client_b", 3, 4), time + 3)
    return _scenario("B: several writers, replays and gaps", world)


def _recompose(msg: Msg, ciphertext: bytes) -> Msg:
    """Return a message with the client's own signature over another ciphertext."""
    return Msg.compose(
        KEYS["client"],
        profile_id=msg.profile_id,
        label=msg.label,
        client_seq=msg.client_seq,
        prev_ack=msg.prev_ack,
        auth_ref=msg.auth_ref,
        ciphertext=ciphertext,
    )


# --- C: epochs, checkpoints, key rotation -------------------------------------------------------------------


def scenario_c() -> Scenario:
    hub_keys = (HubKey(name="hub", valid_until=NOON + 100), HubKey(name="hub_next", valid_from=NOON + 70))
    world = World(profiles=("ref",), streams=("test",), hub_keys=hub_keys, first_ephemeral=201)

    def at(epoch: int, client_seq: int, prev_ack: int) -> Draft:
        return world.draft("client", client_seq, prev_ack, epoch=EPOCH + epoch)

    world.accept("the first epoch", at(0, 1, 0), NOON + 1)
    world.accept("the first epoch goes on", at(0, 2, 1), NOON + 5)
    world.accept("one epoch ahead is inside the window; sequences begin anew", at(1, 1, 0), NOON + 30)
    world.accept("the epoch rolls", at(1, 2, 1), NOON + 60)
    world.accept("one epoch behind is inside the window", at(0, 3, 2), NOON + 65)
    world.accept("two hub keys are valid, the newer signs", at(1, 3, 2), NOON + 75)
    world.refuse("two epochs behind", at(-1, 1, 0), NOON + 80, Refusal.EPOCH)
    world.refuse("two epochs ahead", at(3, 1, 0), NOON + 80, Refusal.EPOCH)
    world.refuse("so far off that the label is unknown", at(9, 1, 0), NOON + 80, Refusal.CAP_SCOPE)
    world.refuse("client_seq does not continue over a label change", at(2, 4, 0), NOON + 80, Refusal.CLIENT_SEQ)
    world.refuse("nor does prev_ack", at(2, 1, 3), NOON + 80, Refusal.PREV_ACK)
    world.accept("the next epoch, under the new key alone", at(2, 1, 0), NOON + 125)
    world.refuse("a label of old that has entries is known, yet too old", at(0, 4, 3), NOON + 185, Refusal.EPOCH)
    world.accept("a late one", at(2, 2, 1), NOON + 185)
    return _scenario("C: epoch roll and checkpoint chaining", world, checkpoints=_checkpoints_c(world))


def _checkpoints_c(world: World) -> list[dict[str, Any]]:
    """In the order in which a verifier is shown them; each accepted one advances its head."""

    def label(epoch: int) -> bytes:
        return world.label("test", EPOCH + epoch)

    def one(
        name: str,
        signer: str,
        epoch: int,
        upto_seq: int,
        *,
        witnesses: Sequence[str] = (),
        prev: bytes | None = None,
        root: bytes | None = None,
        epoch_field: int | None = None,
        refused: str = "",
    ) -> dict[str, Any]:
        checkpoint = Checkpoint.issue(
            KEYS[signer],
            label_prev=label(epoch - 1) if prev is None else prev,
            label_curr=label(epoch),
            upto_seq=upto_seq,
            mmr_root=root or world.trees[label(epoch)].root(min(upto_seq, world.trees[label(epoch)].size)),
            epoch=EPOCH + (epoch if epoch_field is None else epoch_field),
            witnesses=[KEYS[witness] for witness in witnesses],
        )
        return _checkpoint_json(name, checkpoint, signer, stream="test", witnesses=witnesses, refused=refused)

    both = ("hub", "hub_next")
    return [
        one("first_epoch", "hub", 0, 2),
        one("no_rotation_form", "hub", 0, 2, prev=label(0)),
        one("first_epoch_whole", "hub", 0, 3),
        one("behind_the_head", "hub", 0, 2, refused="upto_seq"),
        one("second_epoch_before_the_overlap", "hub_next", 1, 2),
        one("overlap_without_the_old_key", "hub_next", 1, 3, witnesses=["hub_next"], refused="witness_sigs"),
        one("overlap_without_witnesses", "hub_next", 1, 3, refused="witness_sigs"),
        one("overlap_with_both_keys", "hub_next", 1, 3, witnesses=both),
        one("overlap_and_an_outside_witness", "hub_next", 1, 3, witnesses=[*both, "witness"]),
        one("third_epoch", "hub_next", 2, 1),
        one("retired_key", "hub", 2, 2, refused="hub_sig"),
        one("stranger", "stranger", 2, 2, refused="hub_sig"),
        one("label_prev_of_two_epochs_ago", "hub_next", 2, 2, prev=label(0), refused="label_prev"),
        one("label_prev_of_the_next_epoch", "hub_next", 2, 2, prev=label(3), refused="label_prev"),
        one("epoch_of_another_label", "hub_next", 2, 2, epoch_field=3, refused="label_curr"),
        one("beyond_the_log", "hub_next", 2, 3, refused="upto_seq"),
        one("another_root", "hub_next", 2, 2, root=H(b"another log"), refused="mmr_root"),
        one("third_epoch_whole", "hub_next", 2, 2),
    ]


# --- D: capabilities ----------------------------------------------------------------------------------------


def scenario_d() -> Scenario:
    client, client_b, issuer = KEYS["client"].public, KEYS["client_b"].public, KEYS["issuer"]
    board = stream_id_of("board")
    minted = CapToken.issue(issuer, client, [board], ttl=60, rate=Rate(per_sec=1, burst=2))
    token = minted.renew(issuer)  # two links
    forged = replace(token, sig_chain=(token.sig_chain[0], KEYS["stranger"].sign(bytes(32))))
    untrusted = CapToken.issue(KEYS["stranger"], client, [board], ttl=60)
    moment = CapToken.issue(issuer, client_b, [board, stream_id_of("other")], ttl=0)
    world = World(
        profiles=("messaging",),
        streams=("board", "other"),
        gating=True,
        preloaded=(forged, untrusted, moment),
        first_ephemeral=301,
    )
    start = 10_000
    record = world.authorize("the hub_ts of this record is issued_at; the bucket is full", token, start)

    def send(client_seq: int, prev_ack: int = 0, cap: CapToken | bytes | None = token, **more: Any) -> Draft:
        return world.draft("client", client_seq, prev_ack, token=cap, **more)

    world.accept("bucket 2, then 1", send(1), start)
    world.accept("bucket 1, then 0", send(2, 1), start)
    third = send(3, 2)
    world.refuse("the bucket is empty", third, start, Refusal.CAP_RATE, retry_after=1)
    world.accept("the same bytes a second later: refusals cost nothing", Draft(third.msg, {}), start + 1)
    world.refuse("empty again", send(4, 2), start + 1, Refusal.CAP_RATE, retry_after=1)
    world.accept("eight seconds refill no more than burst", send(4, 3), start + 9)
    world.accept("the second of two", send(5, 4), start + 9)
    world.refuse("and no third", send(6, 5), start + 9, Refusal.CAP_RATE, retry_after=1)
    world.refuse("rate is judged before the sequence", send(99, 99), start + 9, Refusal.CAP_RATE, retry_after=1)
    world.refuse("another subject", world.draft("client_b", 1, 0, token=token), start + 10, Refusal.AUTH_REF)
    world.refuse("no token under gating", send(6, 5, None), start + 10, Refusal.CAP_MISSING)
    world.refuse("an auth_ref nobody authorised", send(6, 5, minted), start + 10, Refusal.CAP_MISSING)
    world.refuse("a forged link", send(6, 5, forged), start + 10, Refusal.CAP_INVALID)
    world.refuse_token("a forged link, shown to the hub", forged, start + 10)
    world.refuse("an issuer nobody trusts", send(6, 5, untrusted), start + 10, Refusal.CAP_INVALID)
    world.refuse_token("an issuer nobody trusts, shown to the hub", untrusted, start + 10)
    world.refuse("a stream the token does not name", send(1, 0, stream="other"), start + 10, Refusal.CAP_SCOPE)
    world.accept("the last second of the TTL counts", send(6, 5), start + 60)
    world.refuse("one second too late", send(7, 6), start + 61, Refusal.CAP_TTL)
    world.authorize("authorising again returns the first record and extends nothing", token, start + 61, again=record)
    world.refuse("so the token stays expired", send(7, 6), start + 61, Refusal.CAP_TTL)
    renewed = token.renew(issuer)
    world.authorize("a re-signature is a new auth_ref with a TTL of its own", renewed, start + 61)
    world.accept("under the renewed token", send(7, 6, renewed), start + 62)
    world.accept(
        "a preloaded token is issued by its first message", world.draft("client_b", 1, 0, token=moment), start + 70
    )
    other = world.draft("client_b", 1, 0, token=moment, stream="other")
    world.accept("ttl 0 lasts that second, on every stream it names", other, start + 70)
    world.refuse("and no longer", world.draft("client_b", 2, 0, token=moment), start + 71, Refusal.CAP_TTL)
    return _scenario("D: admission by capability", world)


def _token_derived(token: CapToken) -> dict[str, Any]:
    unsigned = dict(token.to_tree())
    del unsigned[5]
    links = accumulate(token.sig_chain[:-1], lambda _, signature: signature, initial=bytes(64))
    return {
        "auth_ref": token.auth_ref(),
        "token_hash": H(token.to_bytes()),
        "link_digests": [Ht("veen/cap-link", cbor.encode(unsigned) + prev_sig) for prev_sig in links],
    }


# --- one of every object ------------------------------------------------------------------------------------


def objects(a: World, c: World, d: World) -> list[tuple[str, Wire]]:
    label = a.label("test")
    tree = a.trees[label]
    msg, receipt = a.entries[label][0]
    capped, _ = d.entries[d.label("board")][0]
    c_label = c.label("test", EPOCH + 1)
    witnessed = Checkpoint.issue(
        KEYS["hub_next"],
        label_prev=c.label("test", EPOCH),
        label_curr=c_label,
        upto_seq=3,
        mmr_root=c.trees[c_label].root(),
        epoch=EPOCH + 1,
        witnesses=[KEYS["hub"], KEYS["hub_next"], KEYS["witness"]],
    )
    token = object_token()
    endless = CapToken.issue(KEYS["issuer"], KEYS["client"].public, [stream_id_of("room")], ttl=2**64 - 1)
    attachment = Attachment(coid=H(b"sealed"), size=6, name="file-0", media_type="text/plain")
    full_hdr = PayloadHdr(
        schema=CHAT, parent_id=msg.leaf_hash(), att_root=att_root_of([]), cap_ref=token.auth_ref(), expires_at=2**63
    )
    return [
        *((f"profile_{name}", profile) for name, profile in PRESETS.items()),
        ("payload_hdr_least", PayloadHdr(schema=CHAT)),
        ("payload_hdr_full", full_hdr),
        ("attached", Attached(body=b"see attached", attachments=(attachment, replace(attachment, name=None)))),
        ("msg", msg),
        ("msg_with_auth_ref", capped),
        ("receipt", receipt),
        ("checkpoint", _checkpoint_a(a, tree.size)),
        ("checkpoint_witnessed", witnessed),
        ("mmr_proof", prove_inclusion(tree.node_at, 3, tree.size)),
        ("mmr_proof_of_a_single_leaf", prove_inclusion(tree.node_at, 1)),
        ("consistency_proof", prove_consistency(tree.node_at, 3, 7)),
        ("range_proof", prove_range(tree.node_at, 2, 5, 7)),
        ("cap_token", token),
        ("cap_token_without_rate", endless),
        ("equivocation", _two_receipts(receipt)),
    ]


def prekey() -> tuple[str, Wire]:
    return "prekey", Prekey.issue(KEYS["client"], READER_PK, expires_at=86_400)


def object_token() -> CapToken:
    """Two streams, two links."""
    issuer, streams = KEYS["issuer"], [stream_id_of("board"), stream_id_of("room")]
    return CapToken.issue(issuer, KEYS["client"].public, streams, ttl=60, rate=Rate(per_sec=1, burst=2)).renew(issuer)


def envelopes(a: World) -> list[tuple[str, Wire]]:
    """Return requests and responses of the data plane (spec §10.4, §10.6)."""
    label = a.label("test")
    tree = a.trees[label]
    (msg, receipt), (next_msg, next_receipt) = a.entries[label][:2]
    refusal = ErrorEnvelope.refusal(Refusal.CAP_RATE, "slow down", retry_after=1, request_id="r-1")
    return [
        ("submit_request", SubmitRequest(msg=msg)),
        ("submit_response", SubmitResponse(receipt=receipt, server_version="0.0.1")),
        ("stream_request", StreamRequest(label=label, from_seq=1, to_seq=2, with_receipts=True, with_mmr_proof=False)),
        (
            "stream_response",
            StreamResponse(
                label=label,
                from_seq=1,
                items=(
                    StreamItem(stream_seq=1, msg=msg, receipt=receipt),
                    StreamItem(stream_seq=2, msg=next_msg, receipt=next_receipt),
                ),
                next_cursor=3,
                mmr_proof=prove_inclusion(tree.node_at, 2),
            ),
        ),
        ("receipt_request", ReceiptRequest(label=label, stream_seq=1)),
        ("receipt_response", ReceiptResponse(receipt=receipt)),
        ("proof_request", ProofRequest(label=label, stream_seq=1)),
        ("proof_response", ProofResponse(mmr_proof=prove_inclusion(tree.node_at, 6), server_version="0.0.1")),
        ("checkpoint_request", CheckpointRequest(label=label, upto_seq=7)),
        ("checkpoint_response", CheckpointResponse(checkpoint=_checkpoint_a(a, tree.size))),
        ("error", refusal),
    ]


def control_records(a: World, token: CapToken) -> list[tuple[str, Wire]]:
    """Return a journal with one record of every kind, in one chain."""
    label = a.label("test")
    root = a.trees[label].root()
    bodies: list[Wire] = [
        CapAuthorize.of(token),
        StreamRegister(stream_id=stream_id_of("room")),
        LabelOpen(label=label, epoch=0, stream_id=stream_id_of("test")),
        LimitsSet(limits=dict(DEFAULT_LIMITS.to_json())),
        KeyRotate(hub_pk=KEYS["hub_next"].public, valid_from=70, retired_pk=KEYS["hub"].public, retired_until=100),
        RetentionDrop(label=label, start_seq=1, end_seq=4, entry_hashes_root=H(b"entry hashes")),
        AnchorPublish(label=label, upto_seq=7, mmr_root=root, backend="file", anchor_ref=b"line 1"),
        PolicyRevocation(
            revocations=(
                Revocation(kind="client-id", target=KEYS["client"].public, ts=3000),
                Revocation(kind="auth-ref", target=token.auth_ref(), ts=3000, ttl=60),
                Revocation(kind="cap-token", target=H(token.to_bytes()), ts=0, ttl=0),
            )
        ),
        PolicyAuthority(
            authorities=(
                Authority(
                    realm_id=realm_id_of("default"),
                    stream_id=stream_id_of("test"),
                    primary_hub=hub_id_of(KEYS["hub"].public),
                    replica_hubs=(hub_id_of(KEYS["hub_next"].public),),
                    policy="single-primary",
                    ts=3000,
                    ttl=600,
                ),
            )
        ),
    ]
    chain: list[tuple[str, Wire]] = []
    previous: ControlRecord | None = None
    for number, body in enumerate(bodies):
        previous = ControlRecord.issue(KEYS["hub"], previous, body, hub_ts=3000 + number)
        chain.append(("control_record_" + body.KIND.replace(".", "_"), previous))
    return chain


def _object_json(name: str, obj: Wire) -> dict[str, Any]:
    derived: dict[str, Any] = {}
    if isinstance(obj, Profile):
        derived = {"profile_id": obj.profile_id()}
    elif isinstance(obj, Msg):
        derived = {"signing_digest": obj.signing_digest(), "leaf_hash": obj.leaf_hash()}
    elif isinstance(obj, (Receipt, Checkpoint, ControlRecord, Prekey)):
        derived = {"signing_digest": obj.signing_digest()}
    elif isinstance(obj, CapToken):
        derived = _token_derived(obj)
    return {"name": name, "kind": obj.KIND, "cbor": obj, "json": obj.to_json(), "derived": derived}


# --- equivocation -------------------------------------------------------------------------------------------


def _reissue(receipt: Receipt, key: str = "hub", **changes: Any) -> Receipt:
    changed = replace(receipt, **changes)
    return replace(changed, hub_sig=KEYS[key].sign(changed.signing_digest()))


def _two_receipts(receipt: Receipt) -> Equivocation:
    other = _reissue(receipt, leaf_hash=H(b"another message"), mmr_root=H(b"another message"))
    return Equivocation.of(receipt, other, one_pk=KEYS["hub"].public)


def equivocations(a: World) -> list[dict[str, Any]]:
    label = a.label("test")
    receipt = a.entries[label][3][1]
    hub, hub_next = KEYS["hub"].public, KEYS["hub_next"].public
    other = _reissue(receipt, leaf_hash=H(b"another message"), mmr_root=H(b"another root"))
    checkpoint = Checkpoint.issue(
        KEYS["hub"], label_prev=label, label_curr=label, upto_seq=4, mmr_root=H(b"another root"), epoch=0
    )
    honest = _checkpoint_a(a, 4)
    two = Equivocation.of(receipt, other, one_pk=hub)
    true: list[tuple[str, Equivocation]] = [
        ("two_receipts", two),
        ("two_receipts_same_leaf", Equivocation.of(receipt, _reissue(receipt, mmr_root=H(b"x")), one_pk=hub)),
        ("two_receipts_same_root", Equivocation.of(receipt, _reissue(receipt, leaf_hash=H(b"x")), one_pk=hub)),
        ("receipt_and_checkpoint", Equivocation.of(receipt, checkpoint, one_pk=hub)),
        ("two_checkpoints", Equivocation.of(honest, checkpoint, one_pk=hub)),
        (
            "two_keys_of_one_hub",
            Equivocation.of(receipt, _reissue(other, "hub_next"), one_pk=hub, other_pk=hub_next),
        ),
    ]
    later = a.entries[label][4][1]
    altered = replace(other, hub_ts=other.hub_ts + 1)
    false: list[tuple[str, Equivocation, str]] = [
        ("misordered", replace(two, first=two.second, second=two.first), "order"),
        ("same_statement_twice", replace(two, second=two.first), "order"),
        ("one_key_listed_twice", replace(two, hub_pks=(hub, hub)), "hub_pks"),
        ("another_key", replace(two, hub_pks=(hub_next,)), "hub_sig"),
        ("altered_statement", _sort_pair(hub, receipt, altered), "hub_sig"),
        ("different_positions", _sort_pair(hub, receipt, later), "position"),
        ("receipts_that_agree", _sort_pair(hub, receipt, _reissue(receipt, hub_ts=9)), "agree"),
        ("receipt_and_checkpoint_that_agree", _sort_pair(hub, receipt, honest), "agree"),
    ]
    proven = [{"name": name, "cbor": e, "json": e.to_json(), "verdict": "proven"} for name, e in true]
    refused = [{"name": name, "cbor": e, "json": e.to_json(), "verdict": f"refused: {why}"} for name, e, why in false]
    return proven + refused


def _sort_pair(hub_pk: bytes, one: Receipt | Checkpoint, other: Receipt | Checkpoint) -> Equivocation:
    first, second = sorted((one, other), key=lambda statement: statement.to_bytes())
    return Equivocation(hub_pks=(hub_pk,), first=first, second=second)


# --- malformed ----------------------------------------------------------------------------------------------

_Case = tuple[str, Any, str]  # name, bytes (or a JSON value), detail_enum
_INVALID: Final = Refusal.CBOR_INVALID.detail_enum
_SIZE: Final = Refusal.FIELD_SIZE.detail_enum
_VERSION: Final = Refusal.VERSION.detail_enum


def list_malformed(a: World, d: World) -> list[dict[str, Any]]:
    label = a.label("test")
    tree = a.trees[label]
    msg, receipt = a.entries[label][0]
    capped, _ = d.entries[d.label("board")][0]
    checkpoint = _checkpoint_a(a, 7)
    issuer = KEYS["issuer"]
    streams = [stream_id_of("board"), stream_id_of("room")]
    token = CapToken.issue(issuer, KEYS["client"].public, streams, ttl=60, rate=Rate(per_sec=1, burst=2))
    proof = prove_inclusion(tree.node_at, 3, 7)
    hdr = PayloadHdr(schema=CHAT, parent_id=msg.leaf_hash())
    record = ControlRecord.issue(KEYS["hub"], None, CapAuthorize.of(token), hub_ts=3000)
    evidence = _two_receipts(receipt)
    attached = Attached(body=b"x", attachments=(Attachment(coid=H(b"x"), size=1),))
    rows: list[dict[str, Any]] = []
    for obj, special in (
        (msg, _bad_msgs(msg, capped)),
        (receipt, _bad_receipts(receipt)),
        (checkpoint, _bad_checkpoints(checkpoint)),
        (proof, _bad_proofs(proof)),
        (token, _bad_tokens(token)),
        (hdr, _bad_headers(hdr)),
        (PRESETS["ref"], _bad_profiles(PRESETS["ref"])),
        (record, _bad_records(record)),
        (evidence, _bad_evidence(evidence, msg)),
        (attached, _bad_attached(attached)),
    ):
        for name, data, error in [*_generic(obj), *special]:
            rows.append({"name": name, "kind": obj.KIND, "cbor": data, "error": error})
    for obj, cases in ((receipt, _bad_receipt_json(receipt)), (token, _bad_token_json(token))):
        rows += [{"name": name, "kind": obj.KIND, "json": value, "error": error} for name, value, error in cases]
    return rows


def _generic(obj: Wire) -> list[_Case]:
    """Yield faults that apply to every object. The first item is `ver` in most."""
    data, tree = obj.to_bytes(), obj.to_tree()
    count = data[0] & 0x1F
    wide, endless = (0x98, 0x9F) if obj.FORM == "array" else (0xB8, 0xBF)
    cases: list[_Case] = [
        ("empty", b"", _INVALID),
        ("null", b"\xf6", _INVALID),
        ("trailing_byte", data + b"\x00", _INVALID),
        ("truncated", data[:-1], _INVALID),
        ("count_too_high", bytes([data[0] + 1]) + data[1:], _INVALID),
        ("count_too_low", bytes([data[0] - 1]) + data[1:], _INVALID),
        ("count_not_minimal", bytes([wide, count]) + data[1:], _INVALID),
        ("indefinite_length", bytes([endless]) + data[1:] + b"\xff", _INVALID),
        ("tagged", b"\xd9\xd9\xf7" + data, _INVALID),
        ("wrapped_in_bytes", cbor.encode(data), _INVALID),
        ("nested_too_deep", b"\x81" * 40 + b"\x00", _INVALID),
    ]
    if obj.FORM == "array":
        cases += [
            ("item_missing", cbor.encode(tree[:-1] if len(tree) != 8 else tree[:-2]), _INVALID),
            ("item_too_many", cbor.encode([*tree, 0, 0]), _INVALID),
            ("as_a_map", cbor.encode(dict(enumerate(tree, start=1))), _INVALID),
        ]
    else:
        first, second, *others = tree.items()
        unknown, other_key = (99, "1") if obj.FORM == "map" else ("zzz", 1)
        cases += [
            ("unknown_key", cbor.encode({**tree, unknown: 0}), _INVALID),
            ("misordered_keys", cbor.encode(dict([second, first, *others])), _INVALID),
            ("missing_key", cbor.encode(dict([second, *others])), _INVALID),
            ("duplicate_key", _pairs([first, *tree.items()]), _INVALID),
            ("key_of_another_type", _pairs([(other_key, first[1]), second, *others]), _INVALID),
            ("as_an_array", cbor.encode(list(tree.values())), _INVALID),
        ]
    at = 1 if obj.FORM == "array" else 2
    if data[at] == 1 and obj.KIND not in ("profile", "payload_hdr", "veen.attached.v1"):
        for name, ver, error in (
            ("ver_two", b"\x02", _VERSION),
            ("ver_zero", b"\x00", _VERSION),
            ("ver_not_minimal", b"\x18\x01", _INVALID),
            ("ver_in_eight_bytes", b"\x1b" + u64be(1), _INVALID),
            ("ver_negative", b"\x20", _INVALID),
            ("ver_float", b"\xf9\x3c\x00", _INVALID),
            ("ver_true", b"\xf5", _INVALID),
            ("ver_null", b"\xf6", _INVALID),
            ("ver_undefined", b"\xf7", _INVALID),
            ("ver_simple", b"\xe1", _INVALID),
            ("ver_text", b"\x61\x31", _INVALID),
            ("ver_bignum", b"\xc2\x41\x01", _INVALID),
        ):
            cases.append((name, data[:at] + ver + data[at + 1 :], error))
    return cases


def _pairs(pairs: Sequence[tuple[Any, Any]]) -> bytes:
    """Return a map of these pairs, also if keys repeat."""
    return bytes([0xA0 + len(pairs)]) + b"".join(cbor.encode(key) + cbor.encode(value) for key, value in pairs)


def _with(tree: Any, changes: Mapping[Any, Any]) -> bytes:
    """Return the encoding of a copy of `tree` with other values in some places."""
    copy = list(tree) if type(tree) is list else dict(tree)
    for key, value in changes.items():
        copy[key] = value
    return cbor.encode(copy)


def _bad_msgs(msg: Msg, capped: Msg) -> list[_Case]:
    tree, data = msg.to_tree(), msg.to_bytes()
    head = data.index(b"\x58\x20" + msg.label)
    return [
        ("label_short", _with(tree, {2: msg.label[:31]}), _SIZE),
        ("label_long", _with(tree, {2: msg.label + b"\x00"}), _SIZE),
        ("label_text", _with(tree, {2: "a" * 32}), _INVALID),
        ("label_length_not_minimal", data[:head] + b"\x59\x00\x20" + data[head + 2 :], _INVALID),
        ("label_in_pieces", data[:head] + b"\x5f\x58\x20" + msg.label + b"\xff" + data[head + 34 :], _INVALID),
        ("sig_short", _with(tree, {9: msg.sig[:63]}), _SIZE),
        ("client_seq_negative", _with(tree, {4: -1}), _INVALID),
        ("client_seq_as_bytes", _with(tree, {4: b"\x01"}), _INVALID),
        ("auth_ref_left_out", cbor.encode(tree[:6] + tree[7:]), _INVALID),
        ("auth_ref_false", _with(tree, {6: False}), _INVALID),
        ("auth_ref_empty", _with(tree, {6: b""}), _SIZE),
        ("auth_ref_short", _with(capped.to_tree(), {6: b"\x01" * 31}), _SIZE),
        ("ct_hash_null", _with(tree, {7: None}), _INVALID),
        ("ciphertext_text", _with(tree, {8: "text"}), _INVALID),
        ("size_before_version", _with(tree, {0: 2, 2: b""}), _SIZE),
        ("type_before_size", _with(tree, {0: 2, 2: b"", 9: None}), _INVALID),
    ]


def _bad_receipts(receipt: Receipt) -> list[_Case]:
    tree = receipt.to_tree()
    return [
        ("label_short", _with(tree, {1: receipt.label[:31]}), _SIZE),
        ("mmr_root_null", _with(tree, {4: None}), _INVALID),
        ("hub_ts_negative", _with(tree, {5: -1}), _INVALID),
        ("hub_ts_float", receipt.to_bytes().replace(b"\x19\x03\xe8", b"\xf9\x63\xd0"), _INVALID),
        ("hub_sig_long", _with(tree, {6: receipt.hub_sig + b"\x00"}), _SIZE),
    ]


def _bad_checkpoints(checkpoint: Checkpoint) -> list[_Case]:
    tree = checkpoint.to_tree()
    return [
        ("witness_sigs_null", cbor.encode([*tree, None]), _INVALID),
        ("witness_sigs_empty", cbor.encode([*tree, []]), _SIZE),
        ("witness_sigs_bare", cbor.encode([*tree, bytes(64)]), _INVALID),
        ("witness_sigs_short", cbor.encode([*tree, [bytes(63)]]), _SIZE),
        ("witness_sigs_seventeen", cbor.encode([*tree, [bytes(64)] * 17]), _SIZE),
        ("label_prev_null", _with(tree, {1: None}), _INVALID),
    ]


def _bad_proofs(proof: MmrProof) -> list[_Case]:
    tree = proof.to_tree()
    step = tree[3][0]
    return [
        ("path_null", _with(tree, {3: None}), _INVALID),
        ("path_of_65", _with(tree, {3: [step] * 65}), _SIZE),
        ("step_unknown_key", _with(tree, {3: [{**step, 3: 0}]}), _INVALID),
        ("step_misordered", _with(tree, {3: [{2: step[2], 1: step[1]}]}), _INVALID),
        ("step_as_array", _with(tree, {3: [[step[1], step[2]]]}), _INVALID),
        ("step_sibling_short", _with(tree, {3: [{1: 0, 2: b""}]}), _SIZE),
        ("step_dir_true", _with(tree, {3: [{1: True, 2: step[2]}]}), _INVALID),
        ("peak_short", _with(tree, {4: [bytes(31)]}), _SIZE),
        ("peaks_of_65", _with(tree, {4: [bytes(32)] * 65}), _SIZE),
    ]


def _bad_tokens(token: CapToken) -> list[_Case]:
    tree = token.to_tree()
    allow = tree[4]
    first, two = allow[1]
    return [
        ("stream_ids_empty", _with(tree, {4: {**allow, 1: []}}), _SIZE),
        ("stream_ids_unsorted", _with(tree, {4: {**allow, 1: [two, first]}}), _INVALID),
        ("stream_ids_duplicate", _with(tree, {4: {**allow, 1: [first, first]}}), _INVALID),
        ("stream_id_short", _with(tree, {4: {**allow, 1: [first[:31]]}}), _SIZE),
        ("rate_null", _with(tree, {4: {**allow, 3: None}}), _INVALID),
        ("allow_unknown_key", _with(tree, {4: {**allow, 4: 0}}), _INVALID),
        ("allow_misordered", _with(tree, {4: {2: 60, 1: [first], 3: allow[3]}}), _INVALID),
        ("rate_unknown_key", _with(tree, {4: {**allow, 3: {1: 1, 2: 2, 3: 3}}}), _INVALID),
        ("rate_without_burst", _with(tree, {4: {**allow, 3: {1: 1}}}), _INVALID),
        ("sig_chain_empty", _with(tree, {5: []}), _SIZE),
        ("sig_chain_of_nine", _with(tree, {5: [bytes(64)] * 9}), _SIZE),
        ("link_short", _with(tree, {5: [bytes(63)]}), _SIZE),
    ]


def _bad_headers(hdr: PayloadHdr) -> list[_Case]:
    tree = hdr.to_tree()
    return [
        ("parent_id_null", _with(tree, {2: None}), _INVALID),
        ("parent_id_short", _with(tree, {2: b""}), _SIZE),
        ("schema_null", _with(tree, {1: None}), _INVALID),
        ("expires_at_negative", _with(tree, {5: -1}), _INVALID),
        ("key_six", _with(tree, {6: 0}), _INVALID),
    ]


def _bad_profiles(profile: Profile) -> list[_Case]:
    tree = profile.to_tree()
    return [
        ("another_aead", _with(tree, {1: "aes-256-gcm"}), _INVALID),
        ("aead_in_capitals", _with(tree, {1: "XChaCha20Poly1305"}), _INVALID),
        ("aead_not_utf8", profile.to_bytes().replace(b"xchacha20", b"\xffchacha20"), _INVALID),
        ("epoch_sec_null", _with(tree, {6: None}), _INVALID),
        ("pad_block_negative", _with(tree, {7: -1}), _INVALID),
    ]


def _bad_records(record: ControlRecord) -> list[_Case]:
    tree = record.to_tree()
    return [
        ("unknown_kind", _with(tree, {2: "cap.revoke"}), _INVALID),
        ("body_of_another_kind", _with(tree, {2: "stream.register"}), _INVALID),
        ("body_unknown_key", _with(tree, {5: {**tree[5], 4: 0}}), _INVALID),
        ("prev_hash_short", _with(tree, {4: b""}), _SIZE),
    ]


def _bad_evidence(evidence: Equivocation, msg: Msg) -> list[_Case]:
    tree = evidence.to_tree()
    return [
        ("no_key", _with(tree, {2: []}), _SIZE),
        ("three_keys", _with(tree, {2: [bytes(32)] * 3}), _SIZE),
        ("statement_is_a_msg", _with(tree, {3: msg.to_tree()}), _INVALID),
        ("statement_null", _with(tree, {3: None}), _INVALID),
        ("statement_version", _with(tree, {3: [2, *tree[3][1:]]}), _VERSION),
        ("statement_label_short", _with(tree, {3: [1, b"", *tree[3][2:]]}), _SIZE),
    ]


def _bad_attached(attached: Attached) -> list[_Case]:
    tree = attached.to_tree()
    attachment = tree["attachments"][0]
    misordered = {"size": attachment["size"], "coid": attachment["coid"]}
    return [
        ("attachment_misordered", _with(tree, {"attachments": [misordered]}), _INVALID),
        ("attachment_without_size", _with(tree, {"attachments": [{"coid": attachment["coid"]}]}), _INVALID),
        ("attachment_coid_short", _with(tree, {"attachments": [{**attachment, "coid": b""}]}), _SIZE),
        ("attachments_null", _with(tree, {"attachments": None}), _INVALID),
    ]


def _bad_receipt_json(receipt: Receipt) -> list[_Case]:
    good: list[Any] = receipt.to_json()
    ver, label, *rest = good
    return [
        ("json_hex_in_capitals", [ver, label.upper(), *rest], _INVALID),
        ("json_hex_with_a_space", [ver, label[:2] + " " + label[2:], *rest], _INVALID),
        ("json_hex_of_odd_length", [ver, label[:-1], *rest], _INVALID),
        ("json_hex_too_short", [ver, label[:-2], *rest], _SIZE),
        ("json_number_as_text", ["1", label, *rest], _INVALID),
        ("json_fraction", [1.5, label, *rest], _INVALID),
        ("json_true", [True, label, *rest], _INVALID),
        ("json_version", [2, label, *rest], _VERSION),
        ("json_item_missing", good[:-1], _INVALID),
        ("json_above_64_bits", [2**64, label, *rest], _INVALID),
    ]


def _bad_token_json(token: CapToken) -> list[_Case]:
    good: dict[str, Any] = token.to_json()
    return [
        ("json_unknown_name", {**good, "note": "hello"}, _INVALID),
        ("json_number_for_name", {"1": 1, **{name: value for name, value in good.items() if name != "ver"}}, _INVALID),
        ("json_null_for_an_option", {**good, "allow": {**good["allow"], "rate": None}}, _INVALID),
        ("json_list_too_long", {**good, "sig_chain": good["sig_chain"] * 9}, _SIZE),
    ]


if __name__ == "__main__":
    sys.exit(main())
