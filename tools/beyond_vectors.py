"""Builds tests/vectors/veen-beyond-v0.0.1.json: the bytes of everything that goes beyond the seed documents (D-168).

Run by tools/make_vectors.py. Keys, times and draws are fixed, so the file is a function of this program and the code.
docs/spec/ says what each member means; tools/veen_verify_beyond.py checks the file without any of our code.

Verdicts and statuses are written down here by hand: the file judges implementations, so none of them may write those.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from typing import Any, Final, NamedTuple

from make_vectors import KEYS, SEEDS, World, _checkpoint_a, _reissue, _two_receipts, control_records, object_token
from make_vectors import READER_SK as STREAM_SK
from veen.client.generations.fold import Announced, KeyState, LabelCursor, OpenInvite, Replaced, ShreddedGeneration
from veen.client.generations.records import (
    AuthorCard,
    Enrolment,
    HandOver,
    KeyGeneration,
    KeyShred,
    OwnerChange,
    seal_back,
)
from veen.client.identity import bech32
from veen.client.identity.card import IdentityCard
from veen.client.identity.contacts import Contact, ContactBook
from veen.client.identity.identity import PrekeySecret
from veen.client.identity.keyring import Keyring, StreamKeys
from veen.client.identity.keystore import Keystore, RecoverySlot, SealedKeystore, Secrets, _Stored, _StoredFormer
from veen.client.identity.passphrases import Kdf
from veen.client.invites import Invitation, SealedInvite
from veen.client.portable.portability import HubRecord, export_set
from veen.client.portable.set_files import Listed, Manifest
from veen.client.send.captokens import Grant, HeldToken
from veen.client.verify.label_state import LabelState, Pending
from veen.core import cbor
from veen.core.crypto import ed25519, x25519
from veen.core.event import CopiedEvent
from veen.core.evidence_file import EntryEvidence, EvidenceFile, LogEvidence, OutsideProof, Plaintext, RunEvidence
from veen.core.hashing import H, Ht, u64be
from veen.core.labels import hub_id_of, stream_id_of
from veen.core.limits import DEFAULT_LIMITS
from veen.core.objects.captoken import CapToken
from veen.core.objects.card import Prekey
from veen.core.objects.control import (
    CapDerive,
    ControlRecord,
    HubFence,
    HubPromote,
    OuterKey,
    PolicyBounds,
    RequestDone,
    root_of_heads,
)
from veen.core.objects.envelopes import ProofResponse
from veen.core.objects.identity import BirthCertificate, HubIdentity, canonical_json, key_id_of
from veen.core.objects.msg import Msg
from veen.core.objects.payload_hdr import PayloadHdr
from veen.core.objects.policies import Authority, Revocation, SizeBound, realm_id_of
from veen.core.objects.profile import PRESETS
from veen.core.objects.speaking import AuthorKey, EndOfKey, PrincipalNext, SpeaksBinding, SpeaksEnd
from veen.core.objects.tooling import (
    AnchoredCheckpoint,
    AnchorRequest,
    AnchorResponse,
    AnchorsResponse,
    AttachedEntry,
    AttachmentGrant,
    AttachmentsRequest,
    AttachmentsResponse,
    AuthorizeResponse,
    CapStatusRequest,
    CapStatusResponse,
    CheckpointRangeRequest,
    ClientCursorRequest,
    ClientCursorResponse,
    ConsistencyRequest,
    ConsistencyResponse,
    DeriveRequest,
    FeedRequest,
    FeedResponse,
    HealthResponse,
    HubKey,
    IdentityResponse,
    InspectRequest,
    InspectResponse,
    LabelInfo,
    LabelRequest,
    LegacyItem,
    OkResponse,
    PolicyRecordsResponse,
    PolicyRequest,
    PolicyResponse,
    ProofAtRequest,
    ReadyResponse,
    RecordResponse,
    RotateKeyRequest,
    StatusResponse,
    StoredAttachment,
    StreamRegisterRequest,
    StreamsResponse,
    TailRequest,
    VersionRequest,
    VersionResponse,
)
from veen.core.pow import PowCookie, solve
from veen.core.sealing.ciphertext import opening_of
from veen.core.tlog.note import ED25519, VerifierKey
from veen.core.tree.mmr import MmrTree
from veen.core.tree.proof import ConsistencyProof, RangeProof, prove_consistency, prove_inclusion, prove_range
from veen.core.wire import Wire
from veen.storage.copies.copying import ForkOrigin, Head
from veen.testing.memfs import MemFs

NOW: Final = 1_700_000_000
PASSPHRASE: Final = "correct horse battery staple"  # noqa: S105 - of a vector
ID_SIGN: Final = ed25519.SigningKey(b"\x0a" * 32)
DH_SK: Final = b"\x0b" * 32
READER_SK: Final = b"\x0c" * 32
COID: Final = H(b"the ciphertext of an attachment")


def build(a: World) -> dict[str, Any]:
    label = a.label("test")
    return {
        "format": "veen-beyond-vectors",
        "format_version": 1,
        "spec": "v0.0.1",
        "keys": {name: {"seed": KEYS[name].seed, "public": KEYS[name].public} for name in SEEDS}
        | {"id_sign": {"seed": ID_SIGN.seed, "public": ID_SIGN.public}},
        "words": words(),
        "fields": fields_of([obj for _, obj in objects(a)]),
        "objects": [_row(name, obj) for name, obj in objects(a)],
        "proofs": proofs(),
        "control": control(a),
        "evidence": evidence(a, label),
        "evidence_files": evidence_files(a),
        "pow": pow_cookies(),
        "keystore": keystore(),
        "portable_set": portable_set(a),
        "fork_origin": fork_origin(a),
        "hub_identity": hub_identity(),
        "birth": birth(),
        "methods": [method._asdict() for method in METHODS],
        "common_statuses": [{"who": who, "status": s, "code": c, "when": when} for who, s, c, when in COMMON],
    }


# --- signatures of objects ----------------------------------------------------------------------------------


def _signature(obj: Wire) -> dict[str, Any]:
    """Return the signed bytes, the tag and the key of objects that are not signed as MSG and RECEIPT are."""
    for kind, tag, key, signer in (
        (IdentityCard, "veen/card", 6, "id_sign_pk"),
        (Manifest, "veen/portable-set", 5, "id_sign_pk"),
        (Prekey, "veen/prekey", 5, "id_sign_pk"),
        (ClientCursorRequest, "veen/cursor", 6, "client_id"),
    ):
        if isinstance(obj, kind):
            tree = obj.to_tree()
            data = cbor.encode({number: value for number, value in tree.items() if number != key})
            return {"tag": tag, "data": data, "digest": Ht(tag, data), "public": getattr(obj, signer), "sig": tree[key]}
    if isinstance(obj, AttachmentGrant):
        data = obj.auth_ref + COID
        tag = "veen/attachment-grant"
        return {"tag": tag, "data": data, "digest": Ht(tag, data), "public": KEYS["client"].public, "sig": obj.sig}
    if isinstance(obj, ControlRecord):
        data = cbor.encode(obj.to_tree()[:-1])
        tag = "veen/control"
        return {"tag": tag, "data": data, "digest": Ht(tag, data), "public": KEYS["hub"].public, "sig": obj.hub_sig}
    if isinstance(obj, SpeaksBinding | SpeaksEnd | PrincipalNext):
        data, digest = cbor.encode(obj._fields_to_sign()), obj.signing_digest()
        if isinstance(obj, PrincipalNext):
            public, sig = obj.new, obj.sig_new
        else:
            public, sig = obj.principal_pk, obj.sig_principal
        return {"tag": obj.TAG, "data": data, "digest": digest, "public": public, "sig": sig}
    return {}


def _countersignature(obj: Wire) -> dict[str, Any]:
    """Return the second key that signs the same bytes, for statements that need two."""
    if isinstance(obj, SpeaksBinding):
        return _signature(obj) | {"public": obj.client_id, "sig": obj.sig_client}
    if isinstance(obj, PrincipalNext):
        return _signature(obj) | {"public": obj.old, "sig": obj.sig_old}
    return {}


def _row(name: str, obj: Wire) -> dict[str, Any]:
    row = {"name": name, "kind": obj.KIND, "form": obj.FORM, "cbor": obj, "json": obj.to_json()}
    if signed := _signature(obj):
        row["signed"] = signed
    if signed := _countersignature(obj):
        row["countersigned"] = signed
    return row


def fields_of(objs: Iterable[Wire]) -> dict[str, list[str]]:
    """Return the fields of every kind that occurs, in order: the n-th has the key n in a map."""
    names: dict[str, list[str]] = {}

    def walk(value: Any) -> None:
        if isinstance(value, Wire):
            written = value._write()
            names.setdefault(value.KIND, list(written))
            for part in written.values():
                walk(part)
        elif isinstance(value, (list, tuple)):
            for part in value:
                walk(part)

    walk(list(objs))
    return dict(sorted(names.items()))


# --- evidence files -----------------------------------------------------------------------------------------


def evidence_file(a: World, contents: str, *runs: tuple[int, int]) -> EvidenceFile:
    """Entries of the log of scenario A under its checkpoint at 5, and the proof that it only grew from there to 7."""
    label, hub = a.label("test"), KEYS["hub"]
    tree, entries = a.trees[label], a.entries[label]
    identity = HubIdentity.first(hub.public, valid_from=0)
    hdr = PayloadHdr(schema=H(b"chat.v1")).to_bytes()

    def content(msg: Msg) -> bytes | Plaintext | None:
        if contents == "plaintext":
            return Plaintext(payload_hdr=hdr, body=b"stated")
        return opening_of(STREAM_SK, msg) if contents == "openings" else None

    def run(first: int, last: int) -> RunEvidence:
        return RunEvidence(
            proof=prove_range(tree.node_at, first, last, 5).to_bytes(),
            entries=tuple(
                EntryEvidence(msg=msg.to_bytes(), receipt=receipt.to_bytes(), content=content(msg))
                for msg, receipt in entries[first - 1 : last]
            ),
        )

    chosen = [msg for first, last in runs for msg, _ in entries[first - 1 : last]]
    used = {msg.profile_id for msg in chosen}
    profiles = sorted(
        (profile for profile in PRESETS.values() if profile.profile_id() in used),
        key=lambda profile: profile.profile_id(),
    )
    log = LogEvidence(
        label=label,
        epoch=0,
        checkpoints=(_checkpoint_a(a, 5).to_bytes(), _checkpoint_a(a, 7).to_bytes()),
        consistency=(prove_consistency(tree.node_at, 5, 7).to_bytes(),),
        runs=tuple(run(first, last) for first, last in runs),
    )
    return EvidenceFile(
        identity=identity.to_bytes(),
        identity_sig=identity.sign(hub),
        rotations=(),
        stream_id=stream_id_of("test"),
        stream_name="test",
        profiles=tuple(profile.to_bytes() for profile in profiles),
        logs=(log,),
    )


def evidence_objects(a: World) -> list[tuple[str, Wire]]:
    sealed, opened = evidence_file(a, "sealed", (1, 2), (4, 5)), evidence_file(a, "openings", (2, 3))
    stated = evidence_file(a, "plaintext", (2, 3))
    [log] = sealed.logs
    outside = OutsideProof(kind="rfc3161", checkpoint_hash=H(log.checkpoints[0]), data=b"a TimeStampResp")
    plain = stated.logs[0].runs[0].entries[0]
    assert isinstance(plain.content, Plaintext)  # noqa: S101 - made above
    return [
        ("evidence_body", replace(sealed, outside=(outside,))),
        ("evidence_body_without_a_name", replace(opened, stream_id=None, stream_name=None)),
        ("evidence_log", log),
        ("evidence_run", log.runs[0]),
        ("evidence_entry_with_plaintext", plain),
        ("evidence_entry_with_opening", opened.logs[0].runs[0].entries[0]),
        ("evidence_plaintext", plain.content),
        ("outside_proof", outside),
    ]


def evidence_files(a: World) -> dict[str, Any]:
    """Whole files, the key of the hub that verifies them, and files that must be refused."""
    good = evidence_file(a, "openings", (2, 5)).to_file()
    swapped = evidence_file(a, "sealed", (2, 5))
    [log] = swapped.logs
    [run] = log.runs
    gap = replace(swapped, logs=(replace(log, runs=(replace(run, entries=run.entries[::2]),)),))
    return {
        "hub_pk": KEYS["hub"].public,
        "good": [
            {"name": "openings", "entries": 4, "file": good},
            {"name": "plaintext", "entries": 1, "file": evidence_file(a, "plaintext", (5, 5)).to_file()},
            {"name": "selection", "entries": 3, "file": evidence_file(a, "sealed", (1, 1), (3, 4)).to_file()},
        ],
        "refused": [
            {"name": "cut_off", "error": "E.EVIDENCE.TRUNCATED", "file": good[:-1]},
            {"name": "damaged", "error": "E.EVIDENCE.DAMAGED", "file": good[:-1] + bytes([good[-1] ^ 1])},
            {"name": "entry_left_out", "error": "E.EVIDENCE.GAP", "file": gap.to_file()},
            {
                "name": "another_name",
                "error": "E.EVIDENCE.STREAM",
                "file": replace(swapped, stream_name="other").to_file(),
            },
        ],
    }


# --- words ----------------------------------------------------------------------------------------------------


def stream_keys() -> StreamKeys:
    pk = x25519.public_key(READER_SK)
    return StreamKeys(stream_id=stream_id_of("orders"), reader_pk=pk, reader_sk=READER_SK, name="orders")


def card() -> IdentityCard:
    return IdentityCard.issue(ID_SIGN, dh_pk=x25519.public_key(DH_SK), client_id=KEYS["client"].public, name="alice")


def words() -> dict[str, Any]:
    keys = stream_keys()
    good: list[tuple[str, str, Wire, str]] = [
        ("read_key", "veen-stream", keys, keys.to_text()),
        ("write_key", "veen-stream", keys.for_writers(), keys.for_writers().to_text()),
        (
            "write_key_without_a_name",
            "veen-stream",
            no_name := replace(keys.for_writers(), name=None),
            no_name.to_text(),
        ),
        ("card", "veen", card(), card().to_text()),
    ]
    word = keys.to_text()
    other = bech32.to_text("veen", keys.to_bytes())
    wrong_pair = {**keys.to_tree(), 4: b"\x0d" * 32}
    wrong_name = {**keys.to_tree(), 5: "another"}
    unsigned = replace(card(), name="mallory")
    refused: list[tuple[str, str, str, str]] = [
        ("one_letter_changed", "veen-stream", word[:-9] + ("q" if word[-9] != "q" else "p") + word[-8:], "checksum"),
        ("two_letters_exchanged", "veen-stream", word[:20] + word[21] + word[20] + word[22:], "checksum"),
        ("cut_off", "veen-stream", word[:-1], "checksum"),
        ("mixed_case", "veen-stream", word[:20] + word[20:].upper(), "case"),
        ("a_letter_that_does_not_occur", "veen-stream", word[:-7] + "b" + word[-6:], "alphabet"),
        ("another_prefix", "veen-stream", other, "prefix"),
        ("bech32_instead_of_bech32m", "veen-stream", _bech32("veen-stream", keys.to_bytes()), "checksum"),
        ("no_whole_number_of_bytes", "veen-stream", _with_bits("veen-stream", keys.to_bytes()), "bits"),
        ("trailing_byte", "veen-stream", bech32.to_text("veen-stream", keys.to_bytes() + b"\0"), "object"),
        ("halves_of_different_keys", "veen-stream", bech32.to_text("veen-stream", cbor.encode(wrong_pair)), "object"),
        ("name_of_another_stream", "veen-stream", bech32.to_text("veen-stream", cbor.encode(wrong_name)), "object"),
        ("card_that_was_altered", "veen", bech32.to_text("veen", unsigned.to_bytes()), "signature"),
    ]
    return {
        "good": [
            {"name": name, "prefix": prefix, "kind": obj.KIND, "cbor": obj, "word": text, "capitals": text.upper()}
            for name, prefix, obj, text in good
        ],
        "refused": [{"name": n, "prefix": p, "word": text, "error": error} for n, p, text, error in refused],
    }


def _bech32(prefix: str, data: bytes) -> str:
    """With the checksum constant of BIP 173, which BIP 350 replaced."""
    return _encode_words(prefix, bech32._regroup(data), 1)


def _with_bits(prefix: str, data: bytes) -> str:
    """Return base64 with non-zero bits that fill up the last letter."""
    values = bech32._regroup(data)
    spare = len(values) * 5 - len(data) * 8
    assert spare  # noqa: S101 - the vector needs bits to spoil
    values[-1] |= 1
    return _encode_words(prefix, values, bech32._BECH32M)


def _encode_words(prefix: str, values: list[int], constant: int) -> str:
    remainder = bech32._polymod([*bech32._expand_prefix(prefix), *values, *[0] * 6]) ^ constant
    letters = [*values, *(remainder >> 5 * (5 - place) & 31 for place in range(6))]
    return f"{prefix}1{''.join(bech32._ALPHABET[value] for value in letters)}"


def _make_derived_token() -> CapToken:
    """Of a principal, for one of its client keys."""
    return CapToken.issue(KEYS["client"], KEYS["stranger"].public, [stream_id_of("room")], ttl=600)


def _derive_record(hub: ed25519.SigningKey) -> ControlRecord:
    body = CapDerive.from_parent(_make_derived_token(), object_token().auth_ref())
    return ControlRecord.issue(hub, None, body, hub_ts=1_700_000_000)


# --- objects --------------------------------------------------------------------------------------------------


def objects(a: World) -> list[tuple[str, Wire]]:
    """At least one of every kind that no seed document defines, with and without what is optional."""
    label, token = a.label("test"), object_token()
    tree, entries = a.trees[label], a.entries[label]
    (msg, receipt), client, hub = entries[0], KEYS["client"], KEYS["hub"]
    records = [record for _, record in control_records(a, token)]
    authorized, registered, rotated, anchored, revoked = (records[n] for n in (0, 1, 4, 6, 7))
    point = _checkpoint_a(a, 7)
    inclusion = prove_inclusion(tree.node_at, 3, 7)
    held_token = HeldToken(token=token, grants=(grant := Grant(hub_id=hub_id_of(hub.public), issued_at=3000),))
    state = label_state(a)
    revocation = Revocation(kind="client-id", target=client.public, ts=3000, ttl=60)
    authority = Authority(
        realm_id=realm_id_of("default"),
        stream_id=stream_id_of("test"),
        primary_hub=hub_id_of(hub.public),
        replica_hubs=(),
        policy="multi-primary",
        ts=3000,
        ttl=600,
    )
    bound = SizeBound(kind="stream", target=stream_id_of("test"), max_msg_bytes=65_536)
    key = HubKey(key_id=key_id_of(hub.public), hub_pk=hub.public, valid_from=0, valid_until=100)
    info = LabelInfo(label=label, epoch=0, last_stream_seq=7, last_mmr_root=tree.root(), last_hub_ts=2000)
    item = LegacyItem(receipt=receipt, msg=msg, mmr_proof=prove_inclusion(tree.node_at, 1))
    secrets, listed = _secrets(), Listed(path="hubs", size=3, hash=H(b"abc"))
    stored = _Stored.from_bytes(secrets.to_bytes())
    cursor = ClientCursorRequest.issue(client, label, ts=NOW, client_seq=3)
    return [
        ("stream_keys", stream_keys()),
        ("stream_keys_for_writers", stream_keys().for_writers()),
        ("identity_card", card()),
        ("prekey", Prekey.issue(ID_SIGN, x25519.public_key(DH_SK), expires_at=NOW)),
        *(
            (f"record_{body.KIND}", body)
            for body in (record.body for record in records if isinstance(record, ControlRecord))
        ),
        *(("control_record_" + record.body.KIND, record) for record in records if isinstance(record, ControlRecord)),
        ("request.done", RequestDone(request_id=bytes(range(32)), record=3)),
        (
            "control_record_request.done",
            ControlRecord.issue(hub, None, RequestDone(request_id=bytes(range(32)), record=3), hub_ts=1_700_000_000),
        ),
        ("outer.key", _outer_key()),
        ("control_record_outer.key", ControlRecord.issue(hub, None, _outer_key(), hub_ts=1_700_000_000)),
        *_cutover(hub, label, tree.root()),
        ("revocation", revocation),
        ("authority", authority),
        ("size_bound", bound),
        ("record_policy.bounds", PolicyBounds(bounds=(bound,))),
        (
            "control_record_policy.bounds",
            ControlRecord.issue(hub, None, PolicyBounds(bounds=(bound,)), hub_ts=1_700_000_000),
        ),
        (
            "policy_request_bounds",
            PolicyRequest(bounds=(bound, SizeBound(kind="label", target=label, max_msg_bytes=0))),
        ),
        ("consistency_proof", prove_consistency(tree.node_at, 3, 7)),
        ("range_proof", prove_range(tree.node_at, 2, 5, 7)),
        ("equivocation", _two_receipts(receipt)),
        ("pow_cookie", solve(b"a request", 8)),
        ("attachment_grant", AttachmentGrant.issue(client, token.auth_ref(), COID)),
        ("client_cursor_request", cursor),
        ("client_cursor_request_without_a_number", ClientCursorRequest.issue(client, label, ts=NOW)),
        (
            "client_cursor_response",
            ClientCursorResponse(last_client_seq=7, last_prev_ack=6, stream_seq=3, leaf=entries[2][1].leaf_hash),
        ),
        ("client_cursor_response_of_a_stranger", ClientCursorResponse(last_client_seq=0, last_prev_ack=0)),
        ("grant", grant),
        ("held_token", held_token),
        ("label_state", state),
        ("label_state_light", replace(state, mode="light", peaks=())),
        ("hub_record", HubRecord(hub_id=hub_id_of(hub.public), record=_identity().to_bytes())),
        ("listed_file", listed),
        ("manifest", Manifest.issue(ID_SIGN, created_at=NOW, files=[listed])),
        ("client_key", stored.client_keys[0]),
        ("prekey_secret", stored.prekeys[0]),
        ("secrets", stored),
        ("keystore", SealedKeystore.from_bytes(_keystore(secrets).file_bytes())),
        ("recovery_slot", RecoverySlot.for_key(bytes(range(32)), bytes(16), _draws())[0]),
        ("former_keys", _StoredFormer(id_sign=bytes(range(32)), dh_sk=DH_SK, generation=3, replaced_at=NOW)),
        *_list_shared_keys(token),
        ("version_request", VersionRequest()),
        ("label_request", LabelRequest(label=label)),
        ("ok_response", OkResponse(ok=True)),
        (
            "authorize_response",
            AuthorizeResponse(auth_ref=token.auth_ref(), expires_at=3600, record=_record(authorized)),
        ),
        ("cap_status_request", CapStatusRequest(auth_ref=token.auth_ref())),
        ("cap_status_response", CapStatusResponse(token=token.to_bytes(), issued_at=3000, expires_at=3600)),
        ("streams_request", StreamRegisterRequest(stream_id=stream_id_of("room"))),
        ("streams_response", StreamsResponse(stream_ids=(stream_id_of("room"),))),
        ("record_response", RecordResponse(record=_record(registered))),
        ("rotate_key_request", RotateKeyRequest(overlap_sec=30)),
        ("rotate_key_request_with_id", RotateKeyRequest(overlap_sec=30, request_id=bytes(range(32)))),
        ("record_response_rotation", RecordResponse(record=_record(rotated))),
        ("policy_request", PolicyRequest(revocations=(revocation,), authorities=(authority,))),
        ("policy_response", PolicyResponse(records=(_record(revoked),))),
        (
            "policy_records_response",
            PolicyRecordsResponse(kex1_plus=True, auth1=False, records=(_record(revoked),), more=False),
        ),
        ("anchor_request", AnchorRequest(label=label)),
        (
            "anchor_request_of_what_is_done",
            AnchorRequest(label=label, upto_seq=7, backend="file", anchor_ref=b"line 1"),
        ),
        ("anchor_response", AnchorResponse(checkpoint=point, record=_record(anchored))),
        ("anchored_checkpoint", AnchoredCheckpoint(record=_record(anchored), checkpoint=point)),
        ("anchors_response", AnchorsResponse(anchors=(AnchoredCheckpoint(record=_record(anchored)),), more=False)),
        ("proof_at_request", ProofAtRequest(label=label, stream_seq=3, tree_size=7)),
        ("proof_response", ProofResponse(mmr_proof=inclusion, server_version="0.0.1")),
        ("consistency_request", ConsistencyRequest(label=label, from_size=3, to_size=7)),
        (
            "consistency_response",
            ConsistencyResponse(consistency_proof=prove_consistency(tree.node_at, 3, 7), server_version="0.0.1"),
        ),
        ("checkpoint_range_request", CheckpointRangeRequest(epoch_min=0, epoch_max=9, label=None, after=label)),
        ("inspect_request", InspectRequest(label=label)),
        ("inspect_request_of_all", InspectRequest(after_epoch=0, after=label)),
        ("label_info", info),
        ("inspect_response", InspectResponse(label_count=1, labels=(info,), more=False)),
        ("tail_request", TailRequest(label=label, from_seq=8, wait_sec=30, max_items=10, with_receipts=True)),
        ("legacy_item", item),
        *evidence_objects(a),
        (
            "status_response",
            StatusResponse(
                hub_id=hub_id_of(hub.public),
                hub_pk=hub.public,
                hub_ts=NOW,
                epoch=0,
                profiles=(PRESETS["messaging"],),
                stream_scope="enforced",
                capability_gating=True,
                pow_difficulty=0,
                limits=dict(DEFAULT_LIMITS.to_json()),
                server_version="0.0.1",
            ),
        ),
        ("hub_key", key),
        (
            "identity_response",
            IdentityResponse.of(_identity(), _identity().sign(KEYS["hub_next"]), "0.0.1"),
        ),
        (
            "health_response",
            HealthResponse(
                ok=True,
                profile_id=PRESETS["messaging"].profile_id(),
                peaks_count=3,
                last_stream_seq=7,
                last_mmr_root=tree.root(),
            ),
        ),
        ("readiness_response", ReadyResponse(ready=False, reason="the hub is stopping")),
        ("version_response", VersionResponse(server_version="0.0.1", api_version="v1")),
    ]


def _list_shared_keys(token: CapToken) -> list[tuple[str, Wire]]:
    """Keys that pass from person to person: generations, invitations, contacts (D-171)."""
    draws, alice, owner, invite = _draws(), card(), ID_SIGN, KEYS["client"]
    old = replace(stream_keys(), gen=0, owner_pk=owner.public)
    new_sk = b"\x0c" * 32
    new = replace(old, gen=1, reader_sk=new_sk, reader_pk=x25519.public_key(new_sk))
    back = seal_back(new, old, random=draws)  # as releases before D-182 wrote it
    generation = KeyGeneration.issue(owner, new, [alice], history=True, back=back, reason="rotated", random=draws)
    announced = Announced(gen=1, pk=new.reader_pk, ts=NOW, epoch=0, stream_seq=7, back=generation.back)
    state = KeyState(
        stream_id=old.stream_id,
        owner_pk=owner.public,
        generations=(announced,),
        members=(alice,),
        invites=(opened := OpenInvite(invite_pk=invite.public, gen=1, expires_at=NOW + 60),),
        shredded=(shredded := ShreddedGeneration(gen=0),),
        authors=(author := AuthorKey(client_id=invite.public, id_sign_pk=owner.public),),
        cursors=(cursor := LabelCursor(label=bytes(32), stream_seq=7),),
    )
    contact = Contact(name="alice", card=alice, client_ids=(alice.client_id,), added_at=NOW, tokens=(token,))
    unsigned = Invitation(
        hub="https://hub.example",
        pin=f"ed25519:{KEYS['hub'].public.hex()}",
        hub_id=hub_id_of(KEYS["hub"].public),
        keys=(new,),
        inviter=alice,
        context="acme",
        expires_at=NOW + 60,
    )
    invitation = replace(unsigned, sig=owner.sign(unsigned.signing_digest()))
    limited = replace(unsigned, rights="read")
    end = EndOfKey(ts=NOW + 30, epoch=0, stream_seq=9)
    ended = replace(author, not_before=NOW, not_after=NOW + 60, ended=end)
    following = Replaced(old=owner.public, new=KEYS["stranger"].public)
    return [
        ("key_generation", generation),
        ("key_generation_without_history", KeyGeneration.issue(owner, new, [alice], random=draws)),
        ("key_wrap", generation.wraps[0]),
        ("wrapped_key", generation.wraps[0].key),
        ("key_hand_over", HandOver.issue(owner, new, [alice], random=draws)),
        ("key_hand_over_by_code", HandOver.issue(owner, new, invite_pk=invite.public, expires_at=NOW + 60)),
        (
            "key_generation_with_a_number",
            KeyGeneration.issue(owner, new, [alice], number=3, history=True, reason="rotated", random=_draws()),
        ),
        (
            "key_hand_over_with_earlier_generations",
            numbered := HandOver.issue(owner, new, [alice], number=4, earlier=[old], random=_draws()),
        ),
        ("earlier_generation", numbered.earlier[0]),
        ("key_shredding_with_a_number", KeyShred.issue(owner, old.stream_id, 0, number=5, reason="asked for")),
        ("invitation_with_rights", replace(limited, sig=owner.sign(limited.signing_digest()))),
        ("key_enrolment", Enrolment.issue(invite, old.stream_id, alice)),
        ("key_shredding", KeyShred.issue(owner, old.stream_id, 0, reason="asked for")),
        ("key_owner", OwnerChange.issue(owner, KEYS["stranger"], old.stream_id, number=6)),
        ("key_state_with_another_owner", replace(state, number=6, new_owner_pk=KEYS["stranger"].public)),
        ("author_card", AuthorCard(card=alice)),
        (
            "copied_event",
            CopiedEvent(
                origin_hub_id=H(b"hub"), origin_hub_ts=NOW, schema=H(b"example.v1"), body=b"body", via=(H(b"other"),)
            ),
        ),
        ("announced_generation", announced),
        ("open_invitation", opened),
        ("shredded_generation", shredded),
        ("author_key", author),
        ("author_key_that_ended", ended),
        ("end_of_an_author_key", end),
        ("replaced_principal", following),
        ("key_state_with_ends", replace(state, authors=(ended,), ends=(H(b"an end"),), replaced=(following,))),
        ("label_cursor", cursor),
        ("key_state", state),
        *_list_speaking(),
        ("contact", contact),
        ("contact_book", ContactBook(contacts=(contact,))),
        ("invitation", invitation),
        ("sealed_invitation", SealedInvite.for_card(invitation, alice, random=draws)),
        (
            "sealed_invitation_by_code",
            SealedInvite.for_code(invitation, "0123-4567-89AB-CDEF", kdf=Kdf(memory_kib=8, passes=1), random=draws),
        ),
    ]


def _list_speaking() -> list[tuple[str, Wire]]:
    """Return a client key that is bound to a principal, the ends of bindings, and the principal's next key (D-179)."""
    stream_id, client, following = stream_id_of("orders"), KEYS["client"], KEYS["stranger"]
    end = SpeaksEnd.issue(ID_SIGN, stream_id=stream_id, client_id=client.public, reason="lost", ended_at=NOW + 60)
    return [
        (
            "speaks",
            SpeaksBinding.issue(ID_SIGN, client, stream_id=stream_id, not_before=NOW - 600, not_after=NOW + 86_400),
        ),
        ("speaks_end", end),
        ("speaks_end_of_all", SpeaksEnd.issue(ID_SIGN, stream_id=stream_id)),
        ("principal_next", PrincipalNext.issue(ID_SIGN, following, stream_id=stream_id)),
    ]


def _cutover(hub: ed25519.SigningKey, label: bytes, root: bytes) -> list[tuple[str, Wire]]:
    """Return a fenced primary, the replica that continues, and the earlier requests of the replica."""
    heads = root_of_heads([(label, 7, root), (bytes(32), 1, bytes(32))])
    fence = HubFence(upto=8, root=heads)
    promote = HubPromote(source="http://127.0.0.1:8080", upto=8, root=heads, complete=True)
    fenced = ControlRecord.issue(hub, None, fence, hub_ts=1_700_000_000)
    info = LabelInfo(label=label, epoch=0, last_stream_seq=7, last_mmr_root=root, last_hub_ts=2000)
    attached = AttachedEntry(label=label, client_id=KEYS["client"].public, client_seq=3)
    stored = StoredAttachment(number=10, coid=root, size=48, owner=b"", pinned=False, entries=(attached,))
    return [
        ("hub.fence", fence),
        ("hub.promote", promote),
        ("control_record_hub.fence", fenced),
        ("cap.derive", _derive_record(hub).body),
        ("control_record_cap.derive", _derive_record(hub)),
        ("derive_request", DeriveRequest(token=_make_derived_token(), parent_ref=object_token().auth_ref())),
        ("control_record_hub.promote", ControlRecord.issue(hub, fenced, promote, hub_ts=1_700_000_060)),
        ("attached_entry", attached),
        ("stored_attachment", stored),
        ("attachments_request", AttachmentsRequest(after=0)),
        ("attachments_request_that_goes_on", AttachmentsRequest(after=9, instance=bytes(32))),
        ("attachments_response", AttachmentsResponse(instance=bytes(32), last=12, attachments=(stored,))),
        ("feed_request", FeedRequest(control_bytes=0, wait_sec=0)),
        ("feed_request_that_goes_on", FeedRequest(control_bytes=512, wait_sec=30, instance=bytes(32), after=9)),
        (
            "feed_response",
            FeedResponse(
                instance=bytes(32),
                commit=10,
                hub_ts=2000,
                entries=8,
                control_bytes=len(fenced.to_bytes()),
                control=fenced.to_bytes(),
                labels=(info,),
                complete=True,
            ),
        ),
    ]


def _outer_key() -> OuterKey:
    vkey = VerifierKey("hub.example/veen", ED25519, KEYS["client"].public)
    return OuterKey(origin=vkey.name, vkey=str(vkey))


def _record(record: Wire) -> ControlRecord:
    assert isinstance(record, ControlRecord)  # noqa: S101 - all of control_records are
    return record


# --- proofs ---------------------------------------------------------------------------------------------------


def proofs() -> dict[str, Any]:
    """Every consistency and range proof over up to eight leaves, and what must be refused."""
    leaves = [bytes([n]) * 32 for n in range(1, 9)]
    tree = MmrTree(leaves)
    consistency = [
        {"from_size": old, "to_size": new, "cbor": prove_consistency(tree.node_at, old, new)}
        for new in range(1, 9)
        for old in range(1, new + 1)
    ]
    ranges = [
        {"first_seq": first, "last_seq": last, "tree_size": 8, "cbor": prove_range(tree.node_at, first, last, 8)}
        for first in range(1, 9)
        for last in range(first, 9)
    ] + [
        {"first_seq": first, "last_seq": last, "tree_size": 7, "cbor": prove_range(tree.node_at, first, last, 7)}
        for first, last in ((1, 1), (1, 7), (4, 5), (7, 7))
    ]
    return {
        "leaves": leaves,
        "roots": [tree.root(size) for size in range(1, 9)],
        "consistency": consistency,
        "range": ranges,
        "refused": _list_refused_proofs(tree),
    }


def _list_refused_proofs(tree: MmrTree) -> list[dict[str, Any]]:
    old = prove_consistency(tree.node_at, 3, 7)
    part = prove_range(tree.node_at, 3, 5, 7)
    other = H(b"another node")
    bad_consistency: list[tuple[str, ConsistencyProof]] = [
        ("a_peak_changed", replace(old, peaks=(other, *old.peaks[1:]))),
        ("peaks_misordered", replace(old, peaks=old.peaks[::-1])),
        ("a_peak_missing", replace(old, peaks=old.peaks[:-1])),
        ("a_peak_too_many", replace(old, peaks=(*old.peaks, other))),
        ("a_subtree_changed", replace(old, added=(other, *old.added[1:]))),
        ("a_subtree_missing", replace(old, added=old.added[:-1])),
        ("a_subtree_too_many", replace(old, added=(*old.added, other))),
        ("subtrees_misordered", replace(old, added=old.added[::-1])),
        ("of_other_sizes", prove_consistency(tree.node_at, 3, 8)),
        ("of_another_old_size", prove_consistency(tree.node_at, 2, 7)),
    ]
    bad_range: list[tuple[str, RangeProof]] = [
        ("before_changed", replace(part, before=(other,))),
        ("before_missing", replace(part, before=())),
        ("after_changed", replace(part, after=(other, *part.after[1:]))),
        ("after_misordered", replace(part, after=part.after[::-1])),
        ("after_missing", replace(part, after=part.after[:-1])),
        ("of_another_range", prove_range(tree.node_at, 4, 6, 7)),
        ("of_another_size", prove_range(tree.node_at, 3, 5, 8)),
    ]
    return [
        {"name": name, "kind": "consistency_proof", "from_size": 3, "to_size": 7, "cbor": proof}
        for name, proof in bad_consistency
    ] + [
        {"name": name, "kind": "range_proof", "first_seq": 3, "last_seq": 5, "tree_size": 7, "cbor": proof}
        for name, proof in bad_range
    ]


# --- control journal, evidence, proof of work ------------------------------------------------------------------


def control(a: World) -> dict[str, Any]:
    chain = [_record(record) for _, record in control_records(a, object_token())]
    second = chain[1]

    def reissue(**changes: Any) -> ControlRecord:
        changed = replace(second, **changes)
        return replace(changed, hub_sig=KEYS["hub"].sign(changed.signing_digest()))

    refused = [
        ("missing_record", chain[2], "seq"),
        ("another_predecessor", reissue(prev_hash=H(b"another record")), "prev_hash"),
        ("time_runs_back", reissue(hub_ts=chain[0].hub_ts - 1), "hub_ts"),
        ("another_key", replace(second, hub_sig=KEYS["stranger"].sign(second.signing_digest())), "hub_sig"),
    ]
    return {
        "chain": [
            {"cbor": record, "record_hash": record.record_hash(), "signing_digest": record.signing_digest()}
            for record in chain
        ],
        "refused_after_the_first": [{"name": name, "cbor": record, "error": error} for name, record, error in refused],
    }


def evidence(a: World, label: bytes) -> list[dict[str, Any]]:
    """Evidence is in the first file; here the two statements stand apart, as two people hold them."""
    receipt = a.entries[label][3][1]
    other = _reissue(receipt, leaf_hash=H(b"another message"), mmr_root=H(b"another root"))
    from veen.core.objects.evidence import Equivocation

    packed = Equivocation.of(receipt, other, one_pk=KEYS["hub"].public)
    return [{"name": "two_receipts", "statements": [receipt, other], "hub_pks": [KEYS["hub"].public], "cbor": packed}]


def pow_cookies() -> list[dict[str, Any]]:
    request = b"the body of a request"
    paid = solve(request, 12)
    rows: list[tuple[str, bytes, int, PowCookie, str]] = [
        ("paid", request, 12, paid, "good"),
        ("paid_more_than_asked", request, 8, paid, "good"),
        ("nothing_is_asked", request, 0, solve(request, 0), "good"),
        ("another_request", request + b"!", 12, paid, "refused: challenge"),
        ("too_little_is_offered", request, 13, paid, "refused: difficulty"),
        ("more_is_claimed_than_done", request, 12, replace(paid, difficulty=60), "refused: nonce"),
        ("another_nonce", request, 12, replace(paid, nonce=paid.nonce + 1), "refused: nonce"),
    ]
    return [
        {
            "name": name,
            "request": body,
            "difficulty": difficulty,
            "cbor": cookie,
            "header": cookie.to_bytes().hex(),
            "value": Ht("veen/pow", cookie.challenge + u64be(cookie.nonce)),
            "verdict": verdict,
        }
        for name, body, difficulty, cookie, verdict in rows
    ]


# --- keystore and portable set ----------------------------------------------------------------------------------


def _draws() -> Callable[[int], bytes]:
    """Return a source of draws: the n-th is H("veen/vector-draw" || u64be(n)), cut or repeated to the size."""
    numbers: Iterator[int] = count(1)

    def draw(size: int) -> bytes:
        return (H(b"veen/vector-draw" + u64be(next(numbers))) * (size // 32 + 1))[:size]

    return draw


def _secrets() -> Secrets:
    from veen.client.identity.identity import ClientKey, Identity

    client = ClientKey(key=KEYS["client"], created_at=NOW - 100, generation=1)
    identity = Identity(name="alice", id_sign=ID_SIGN, dh_sk=DH_SK, client_keys=(client,))
    prekey = PrekeySecret(prekey=Prekey.issue(ID_SIGN, x25519.public_key(READER_SK), expires_at=NOW + 60), sk=READER_SK)
    return Secrets(identity=identity, keyring=Keyring((stream_keys(),)), prekeys=(prekey,))


def _keystore(secrets: Secrets, passphrase: str | None = PASSPHRASE) -> Keystore:
    return Keystore.create(MemFs(), secrets, passphrase, kdf=Kdf(memory_kib=8, passes=1), random=_draws())


def keystore() -> list[dict[str, Any]]:
    from veen.client.identity.keystore import _plain_root, _seal_key

    rows = []
    for name, passphrase in (("sealed", PASSPHRASE), ("plain", None)):
        store = _keystore(_secrets(), passphrase)
        header = SealedKeystore.from_bytes(store.file_bytes())
        root = (
            _plain_root(header.salt) if passphrase is None else Kdf(memory_kib=8, passes=1).key(passphrase, header.salt)
        )
        rows.append(
            {
                "name": name,
                "passphrase": passphrase,
                "cbor": header,
                "root": root,
                "seal_key": _seal_key(root),
                "header": header.header(),
                "secrets": _secrets().to_bytes(),
            }
        )
    return rows


def _identity() -> HubIdentity:
    return HubIdentity.first(KEYS["hub"].public, valid_from=0).with_rotation(
        KEYS["hub_next"].public, valid_from=5000, overlap_until=5030
    )


def label_state(a: World) -> LabelState:
    label = a.label("test")
    tree, entries = a.trees[label], a.entries[label]
    return LabelState(
        hub_id=hub_id_of(KEYS["hub"].public),
        label=label,
        client_id=KEYS["client"].public,
        profile_id=PRESETS["messaging"].profile_id(),
        mode="full",
        client_seq=7,
        prev_ack=6,
        last_stream_seq=7,
        last_mmr_root=tree.root(),
        peaks=tuple(tree.peaks(7)),
        rk=bytes(32),
        last_receipt=entries[6][1],
    )


def portable_set(a: World) -> dict[str, Any]:
    label, token = a.label("test"), object_token()
    waiting = a.draft("client", 8, 7).msg
    state = replace(label_state(a), client_seq=8, pending=(Pending(8, waiting.to_bytes()),))
    fs = MemFs()
    export_set(
        fs,
        _keystore(_secrets()),
        now=NOW,
        tokens=[HeldToken(token=token, grants=(Grant(hub_id=hub_id_of(KEYS["hub"].public), issued_at=3000),))],
        states=[state],
        hubs={hub_id_of(KEYS["hub"].public): _identity().to_bytes()},
        entries=a.entries[label],
        checkpoints=[_checkpoint_a(a, 7)],
        attachments=[b"the ciphertext of an attachment"],
    )
    files = {path: bytes(data) for path, data in sorted(fs.files().items())}
    manifest = Manifest.from_bytes(files["manifest.cbor"])
    receipts = files["receipts.cborseq"]
    forged = replace(manifest, created_at=manifest.created_at + 1)
    refused: list[tuple[str, Mapping[str, bytes | None], str]] = [
        ("a_byte_of_a_file_changed", {"hubs": files["hubs"][:-1] + b"!"}, "hubs"),
        ("a_file_cut_off", {"receipts.cborseq": receipts[:-1]}, "receipts.cborseq"),
        ("a_file_grown", {"receipts.cborseq": receipts + b"\0"}, "receipts.cborseq"),
        ("a_file_missing", {"sync_state": None}, "sync_state"),
        ("a_file_too_many", {"notes.txt": b"hello"}, "notes.txt"),
        ("not_finished", {"manifest.cbor": None}, "manifest.cbor"),
        ("manifest_altered", {"manifest.cbor": forged.to_bytes()}, "manifest.cbor"),
        ("an_attachment_under_another_name", {f"attachments/{'00' * 32}": b"x"}, f"attachments/{'00' * 32}"),
    ]
    return {
        "files": files,
        "entries": len(a.entries[label]),
        "refused": [{"name": name, "change": dict(change), "path": path} for name, change, path in refused],
    }


# --- files of a hub -------------------------------------------------------------------------------------------


def fork_origin(a: World) -> list[dict[str, Any]]:
    label = a.label("test")
    rows = []
    for name, same, stream_id, signer in (
        ("another_identity", False, stream_id_of("test"), "hub_next"),
        ("the_same_identity", True, None, "hub"),
    ):
        head = Head(label, 0, stream_id, 4, a.trees[label].root(4))
        origin = ForkOrigin(hub_id_of(KEYS["hub"].public), NOW, same, (head,))
        sig = KEYS[signer].sign(origin.signing_digest())
        rows.append(
            {
                "name": name,
                "fork-origin.json": origin.to_bytes(),
                "fork-origin.sig": sig,
                "digest": origin.signing_digest(),
                "signer": signer,
                "origin_hub_id": origin.hub_id,
                "labels": [{"label": label, "upto_seq": 4, "mmr_root": head.mmr_root}],
            }
        )
    return rows


def hub_identity() -> dict[str, Any]:
    identity = _identity()
    data = identity.to_bytes()
    return {
        "hub-identity.json": data,
        "digest": Ht("veen/hub-identity", data),
        "signer": "hub_next",
        "hub-identity.sig": identity.sign(KEYS["hub_next"]),
        "ephemeral": _ephemeral(identity),
    }


def _ephemeral(identity: HubIdentity) -> dict[str, Any]:
    """Return the same identity signed by a root: `witness` is the root."""
    root_pk = KEYS["witness"].public
    return {
        "root": "witness",
        "hub-root.pk": f"{root_pk.hex()}\n".encode(),
        "hub-identity.sig": identity.sign(KEYS["witness"]),
        "pin": f"root:ed25519:{root_pk.hex()}",
    }


def birth() -> dict[str, Any]:
    """birth.json of the key `hub`: when a blank directory may begin with it."""
    key, end = KEYS["hub"], NOW + 86_400
    certificate = BirthCertificate.issue(key, end)
    data = certificate.to_bytes()
    value = json.loads(data)
    stranger = BirthCertificate.issue(KEYS["stranger"], end).to_bytes()

    def with_members(**members: Any) -> bytes:
        return canonical_json({**value, **members})

    good = (("as_written", data, NOW), ("a_line_feed_at_the_end", data + b"\n", NOW), ("the_last_second", data, end))
    refused = (
        ("two_line_feeds", data + b"\n\n", NOW, "format"),
        ("a_space", data.replace(b":", b": ", 1), NOW, "format"),
        ("a_member_too_many", with_members(note=""), NOW, "format"),
        ("a_member_missing", canonical_json({name: value[name] for name in value if name != "ver"}), NOW, "format"),
        ("another_version", with_members(ver=2), NOW, "format"),
        ("capital_digits", with_members(hub_pk=value["hub_pk"].upper()), NOW, "format"),
        ("a_short_key", with_members(hub_pk=value["hub_pk"][2:]), NOW, "format"),
        ("a_short_signature", with_members(sig=value["sig"][2:]), NOW, "format"),
        ("a_time_below_zero", with_members(not_after=-1), NOW, "format"),
        ("a_time_with_a_fraction", with_members(not_after=end + 0.5), NOW, "format"),
        ("a_time_that_is_a_truth", with_members(not_after=True), NOW, "format"),
        ("not_an_object", canonical_json([value]), NOW, "format"),
        ("more_than_1024_bytes", b" " * 1025, NOW, "format"),
        ("another_time_than_was_signed", with_members(not_after=end + 1), NOW, "signature"),
        ("signed_by_another_key", with_members(sig=json.loads(stranger)["sig"]), NOW, "signature"),
        ("of_another_key", stranger, NOW, "key"),
        ("a_second_too_late", data, end + 1, "time"),
    )
    return {
        "signer": "hub",
        "hub_pk": key.public,
        "not_after": end,
        "digest": Ht("veen/birth", key.public + u64be(end)),
        "sig": certificate.sig,
        "good": [{"name": name, "birth.json": file, "now": now} for name, file, now in good],
        "refused": [{"name": name, "birth.json": file, "now": now, "error": why} for name, file, now, why in refused],
    }


# --- methods --------------------------------------------------------------------------------------------------


class Method(NamedTuple):
    """One tooling method. `statuses` are those beside `COMMON`, each with what causes it."""

    http: str
    path: str
    operation: str
    # anybody, reader, administrator, client (the signature of the request), writer (a grant); status and metrics: a
    # reader or a holder of a metrics token, where any of them is named
    who: str
    request: str  # kind; "-" for none
    response: str  # kind; "seq: kind" for a sequence
    statuses: tuple[tuple[int, str, str], ...]  # status, code or kind of answer, when


_OK: Final = (200, "ok", "the answer")
_NO_LABEL: Final = (404, "E.NOT_FOUND", "the label has no entry, or not so many")
_ZERO: Final = (400, "E.BAD_REQUEST", "a number of an entry is 0")
METHODS: Final = (
    Method("POST", "/tooling/submit_batch", "submit_batch", "anybody", "seq: MSG", "seq: RECEIPT | error", (
        _OK,
        (403, "PREFILTER_REJECT", "proof of work is asked for and missing"),
        (413, "E.LIMIT", "more than 1,000 messages"),
    )),
    Method("POST", "/tooling/authorize", "authorize", "anybody", "cap_token", "authorize response", (
        _OK,
        (403, "CAP_INVALID", "the issuer is not trusted, or a link of the chain is not signed by it"),
        (413, "FIELD_SIZE", "too many links or streams, or a key of another size"),
    )),
    Method("POST", "/tooling/derive", "derive", "anybody", "derive request", "authorize response", (
        _OK,
        (400, "CAP_TTL", "the token of the principal has ended"),
        (403, "CAP_MISSING", "the hub has not authorised `parent_ref`"),
        (403, "CAP_INVALID", "`parent_ref` is derived itself or not trusted, or its subject did not issue the token"),
        (403, "CAP_SCOPE", "the token is for streams that `parent_ref` does not allow"),
        (409, "E.CONFLICT", "the hub takes no derived tokens"),
        (429, "CAP_RATE", "1,024 new tokens were derived from `parent_ref` within a day"),
    )),
    Method("POST", "/tooling/cap_status", "cap_status", "reader", "cap_status request", "cap_status response", (
        _OK,
        (404, "E.NOT_FOUND", "no such token was authorised"),
    )),
    Method("POST", "/tooling/streams", "streams", "administrator", "streams request", "record response", (_OK,)),
    Method("GET", "/tooling/streams", "streams_list", "administrator", "-", "streams response", (_OK,)),
    Method("POST", "/tooling/rotate_key", "rotate_key", "administrator", "rotate_key request", "record response", (
        _OK,
        (409, "E.CONFLICT", "the rotation before is not over, or no key is there to take"),
        (503, "E.UNAVAILABLE", "the hub admits nothing now"),
    )),
    Method("POST", "/tooling/key_rotations", "key_rotations", "anybody", "request", "seq: control record", (_OK,)),
    Method("POST", "/tooling/policy", "policy", "administrator", "policy request", "policy response", (
        _OK,
        (400, "E.BAD_REQUEST", "an authority is of another realm"),
        (409, "E.CONFLICT", "the hub is not configured to enforce it"),
    )),
    Method("GET", "/tooling/policy", "policy_list", "administrator", "?after", "policy records response", (
        _OK,
        (400, "E.BAD_REQUEST", "`after` is no number"),
    )),
    Method("POST", "/tooling/anchor", "anchor", "administrator", "anchor request", "anchor response", (
        _OK,
        (400, "E.BAD_REQUEST", "upto_seq is 0, or one of backend and anchor_ref is missing"),
        _NO_LABEL,
        (503, "E.UNAVAILABLE", "the backend failed"),
    )),
    Method("GET", "/tooling/anchor", "anchor_list", "reader", "?label&from", "anchors response", (
        _OK,
        (400, "E.BAD_REQUEST", "`label` is missing or no label"),
    )),
    Method("POST", "/tooling/proof_at", "proof_at", "reader", "proof_at request", "proof response", (
        _OK,
        _ZERO,
        (400, "E.BAD_REQUEST", "tree_size is less than stream_seq"),
        _NO_LABEL,
    )),
    Method("POST", "/tooling/consistency", "consistency", "reader", "consistency request", "consistency response", (
        _OK,
        _ZERO,
        (400, "E.BAD_REQUEST", "to_size is less than from_size"),
        _NO_LABEL,
    )),
    Method("POST", "/tooling/checkpoint_latest", "checkpoint_latest", "reader", "label request",
           "checkpoint response", (
        _OK,
        _NO_LABEL,
    )),
    Method("POST", "/tooling/checkpoint_range", "checkpoint_range", "reader", "checkpoint_range request",
           "seq: CHECKPOINT", (
        _OK,
    )),
    Method("POST", "/tooling/client_cursor", "client_cursor", "client", "client_cursor request",
           "client_cursor response", (
        _OK,
        (400, "E.BAD_REQUEST", "`ts` is further than max_epoch_skew_sec from the hub's time"),
        (409, "SIG_INVALID", "client_id did not sign the request"),
    )),
    Method("POST", "/tooling/attachments", "attachments", "reader", "attachments request", "attachments response", (
        _OK,
        (400, "E.BAD_REQUEST", "`after` is above 2^63 - 1"),
    )),
    Method("POST", "/tooling/feed", "feed", "reader", "feed request", "feed response", (
        _OK,
        (400, "E.BAD_REQUEST", "wait_sec is above 60, or control_bytes is more than the hub has"),
    )),
    Method("POST", "/tooling/fence", "fence", "administrator", "request", "record response", (_OK,)),
    Method("POST", "/tooling/promotion", "promotion", "anybody", "request", "record response", (
        _OK,
        (404, "E.NOT_FOUND", "this hub was never a replica"),
    )),
    Method("POST", "/tooling/inspect", "inspect", "reader", "inspect request", "inspect response", (_OK, _NO_LABEL)),
    Method("POST", "/tooling/report_equivocation", "report_equivocation", "anybody", "equivocation", "ok response", (
        _OK,
        (400, "E.BAD_REQUEST", "it proves nothing, or nothing against this hub"),
    )),
    Method("POST", "/tooling/tail", "tail", "reader", "tail request", "stream response", (
        _OK,
        (400, "E.BAD_REQUEST", "wait_sec is above 60, or max_items is 0"),
        (404, "E.NOT_FOUND", "the label has no entry when the wait is over, or a payload was erased"),
        (503, "E.UNAVAILABLE", "too many readers wait"),
    )),
    Method("GET", "/tooling/events", "events", "reader", "?label&from", "text/event-stream", (
        _OK,
        (400, "E.BAD_REQUEST", "`label`, `from` or Last-Event-ID is none"),
    )),
    Method("GET", "/tooling/stream", "legacy_stream", "reader", "?label&from&with_proof", "seq: legacy stream item", (
        _OK,
        (400, "E.BAD_REQUEST", "`label`, `from` or `with_proof` is none"),
        _NO_LABEL,
    )),
    Method("PUT", "/tooling/attachment/<coid>", "attachment_put", "writer", "?label&client_id&client_seq, bytes",
           "ok response", (
        (200, "ok", "the bytes were there, whole"),
        (201, "ok", "the bytes are kept"),
        (400, "E.BAD_REQUEST", "H(body) is not the coid, or the entry is not named whole"),
        (400, "CAP_TTL", "the capability has outlived its ttl"),
        (403, "AUTH_REF", "its subject did not sign the grant, or is not `client_id`"),
        (403, "CAP_INVALID", "its issuer is not trusted any more"),
        (403, "CAP_MISSING", "no grant, or of a capability that was not authorised"),
        (403, "CAP_REVOKED", "the capability was revoked (KEX1+)"),
        (403, "CLIENT_REVOKED", "its subject was revoked (KEX1+)"),
        (404, "E.NOT_FOUND", "the hub keeps no attachments"),
        (413, "ATTACHMENT_QUOTA", "the owner's quota is used up"),
        (413, "E.LIMIT", "above max_attachment_bytes + 16"),
        (429, "CAP_RATE", "the bucket of uploads is empty"),
        (503, "E.UNAVAILABLE", "too little free space"),
    )),
    Method("GET", "/tooling/attachment/<coid>", "attachment_get", "reader", "-", "bytes", (
        _OK,
        (400, "E.BAD_REQUEST", "the coid is none"),
        (404, "E.NOT_FOUND", "there is no such attachment"),
        (503, "E.UNAVAILABLE", "the copy is damaged (`detail.reason` is `corrupt`)"),
    )),
    Method("POST", "/tooling/status", "status", "status", "request", "status response", (_OK,)),
    Method("GET", "/tooling/status", "status", "status", "-", "status response", (_OK,)),
    Method("POST", "/tooling/identity", "identity", "anybody", "request", "identity response", (_OK,)),
    Method("GET", "/tooling/identity", "identity", "anybody", "-", "identity response", (_OK,)),
    Method("GET", "/tooling/healthz", "healthz", "anybody", "-", "health response", (_OK,)),
    Method("GET", "/tooling/readyz", "readyz", "anybody", "-", "readiness response", (
        _OK,
        (503, "not ready", "the same answer, with a reason"),
    )),
    Method("GET", "/tooling/version", "version", "anybody", "-", "version response", (_OK,)),
    Method("GET", "/tooling/metrics", "metrics", "metrics", "-", "text/plain", (_OK,)),
    Method("GET", "/tooling/openapi.json", "openapi", "anybody", "-", "application/json", (_OK,)),
    Method("GET", "/tooling/checkpoint_latest", "checkpoint_latest_get", "reader", "?label", "CHECKPOINT", (
        _OK,
        (400, "E.BAD_REQUEST", "`label` is missing or no label"),
        _NO_LABEL,
    )),
    Method("GET", "/tooling/checkpoint_range", "checkpoint_range_get", "reader",
           "?epoch_min&epoch_max&label&after", "seq: CHECKPOINT", (
        _OK,
        (400, "E.BAD_REQUEST", "a parameter is no number or no label"),
    )),
)  # fmt: skip

# who, status, code, when; for every method, or for those with this caller.
COMMON: Final = (
    ("everybody", 400, "E.BAD_REQUEST", "the body is not the request, or bytes follow it"),
    ("everybody", 400, "E.VERSION", "the body says another `ver`"),
    ("everybody", 403, "E.FORBIDDEN", "the caller's network is refused"),
    ("everybody", 404, "E.NOT_FOUND", "no such path"),
    ("everybody", 405, "E.BAD_REQUEST", "another method; `Allow` lists those there are"),
    ("everybody", 408, "E.BAD_REQUEST", "headers or body took too long to arrive"),
    ("everybody", 413, "E.LIMIT", "the body is above the bound of the method"),
    ("everybody", 414, "E.LIMIT", "the URL is above 2 KiB"),
    ("everybody", 415, "E.BAD_REQUEST", "a Content-Type other than application/cbor and application/json"),
    ("everybody", 431, "E.LIMIT", "the headers are above 16 KiB"),
    ("everybody", 500, "E.UNAVAILABLE", "a defect of the hub"),
    ("everybody", 503, "E.UNAVAILABLE", "not now: too much to do, stopping, or a damaged file"),
    ("reader", 401, "E.UNAUTHORIZED", "readers are configured and no credentials came"),
    ("reader", 429, "E.RATE", "the reader is more than a second ahead of its rate"),
    ("status", 401, "E.UNAUTHORIZED", "somebody is named for reading or metrics, and no credentials came"),
    ("metrics", 401, "E.UNAUTHORIZED", "somebody is named for reading or metrics, and no credentials came"),
    ("administrator", 401, "E.UNAUTHORIZED", "no credentials came"),
    ("administrator", 403, "E.FORBIDDEN", "no administrator is configured, or the credentials are not one's"),
)
