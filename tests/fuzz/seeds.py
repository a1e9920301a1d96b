"""Valid objects of every kind: where the fuzzers start, and the only signed statements that exist in their world.

Everything is made from fixed keys and fixed randomness, so a failing input means the same on every machine.
"""

import json
from collections.abc import Iterable
from dataclasses import fields, replace
from types import NoneType
from typing import Any, Final, cast, get_args, get_origin, get_type_hints

from veen.core import cbor, labels
from veen.core.crypto.ed25519 import SigningKey
from veen.core.crypto.x25519 import public_key
from veen.core.errors import ApiCode, Refusal
from veen.core.hashing import H
from veen.core.limits import DEFAULT_LIMITS
from veen.core.objects.captoken import CapToken, Rate
from veen.core.objects.card import Prekey
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import (
    AnchorPublish,
    CapAuthorize,
    CapDerive,
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
from veen.core.objects.policies import Authority, Revocation
from veen.core.objects.profile import PRESETS
from veen.core.objects.receipt import Receipt
from veen.core.objects.speaking import PrincipalNext, SpeaksBinding, SpeaksEnd
from veen.core.sealing.ciphertext import ATTACHED_SCHEMA, Attached, Attachment, Binding, seal
from veen.core.tree.mmr import MmrTree
from veen.core.tree.proof import prove_consistency, prove_inclusion, prove_range
from veen.core.wire import Wire

__all__ = [
    "CHECKPOINTS",
    "EVIDENCE",
    "LEAVES",
    "MESSAGES",
    "OBJECTS",
    "PLAIN_MSG",
    "READER_PK",
    "READER_SK",
    "RECEIPTS",
    "TOKENS",
    "TREE",
    "bytes_seeds",
    "json_seeds",
]

HUB: Final = SigningKey(H(b"hub"))
NEXT_HUB: Final = SigningKey(H(b"the hub after a key rotation"))
CLIENT: Final = SigningKey(H(b"client"))
WITNESSES: Final = (SigningKey(H(b"witness 1")), SigningKey(H(b"witness 2")))
READER_SK: Final = H(b"reader")
READER_PK: Final = public_key(READER_SK)
PROFILE_ID: Final = PRESETS["messaging"].profile_id()
STREAM: Final = labels.stream_id_of("fuzz")
LABEL: Final = labels.label_of(labels.routing_key_of(labels.hub_id_of(HUB.public)), STREAM, 0)

LEAVES: Final = tuple(H(b"leaf %d" % pos) for pos in range(43))
TREE: Final = MmrTree(LEAVES)

_TOKEN: Final = CapToken.issue(CLIENT, CLIENT.public, [STREAM, H(b"other")], ttl=3600, rate=Rate(per_sec=5, burst=9))
# A token with fewer links is a token too: every prefix of a chain is genuine.
TOKENS: Final = (
    CapToken.issue(HUB, CLIENT.public, [STREAM], ttl=0),
    _TOKEN,
    _TOKEN.renew(CLIENT),
    _TOKEN.renew(CLIENT).renew(CLIENT),
)


def _message(number: int, body: bytes, *, hdr: PayloadHdr, pad_block: int, auth_ref: bytes | None = None) -> Msg:
    binding = Binding(
        profile_id=PROFILE_ID,
        label=LABEL,
        client_id=CLIENT.public,
        client_seq=number,
        prev_ack=number >> 1,
        auth_ref=auth_ref,
    )
    sealed = seal(READER_PK, binding, hdr, body, ikm=H(b"ikm %d" % number), pad_block=pad_block)
    return Msg.compose(
        CLIENT,
        profile_id=PROFILE_ID,
        label=LABEL,
        client_seq=number,
        prev_ack=number >> 1,
        auth_ref=auth_ref,
        ciphertext=sealed.ciphertext,
    )


_SCHEMA: Final = H(b"text.v1")
PLAIN_MSG: Final = _message(1, b"hello", hdr=PayloadHdr(schema=_SCHEMA), pad_block=0)
MESSAGES: Final = (
    PLAIN_MSG,
    _message(24, b"", hdr=PayloadHdr(schema=_SCHEMA), pad_block=256),
    _message(
        2**32,
        b"x" * 100,
        hdr=PayloadHdr(
            schema=ATTACHED_SCHEMA,
            parent_id=PLAIN_MSG.leaf_hash(),
            cap_ref=_TOKEN.auth_ref(),
            expires_at=2**40,
        ),
        pad_block=64,
        auth_ref=_TOKEN.auth_ref(),
    ),
    replace(PLAIN_MSG, ciphertext=b"", ct_hash=H(b"")),
)


def _receipt(key: SigningKey, seq: int, leaf: bytes, root: bytes) -> Receipt:
    return Receipt.issue(key, label=LABEL, stream_seq=seq, leaf_hash=leaf, mmr_root=root, hub_ts=1_700_000_000 + seq)


def _checkpoint(key: SigningKey, upto: int, root: bytes, witnesses: Iterable[SigningKey] = ()) -> Checkpoint:
    return Checkpoint.issue(
        key, label_prev=LABEL, label_curr=LABEL, upto_seq=upto, mmr_root=root, epoch=0, witnesses=tuple(witnesses)
    )


RECEIPTS: Final = (
    _receipt(HUB, 1, LEAVES[0], TREE.root(1)),
    _receipt(HUB, 1, LEAVES[1], LEAVES[1]),
    _receipt(NEXT_HUB, 1, LEAVES[2], LEAVES[2]),
    _receipt(HUB, 300, LEAVES[3], TREE.root()),
)
CHECKPOINTS: Final = (
    _checkpoint(HUB, 1, H(b"another root")),
    _checkpoint(HUB, 43, TREE.root()),
    _checkpoint(HUB, 43, TREE.root(42), WITNESSES),
)
EVIDENCE: Final = (
    Equivocation.of(RECEIPTS[0], RECEIPTS[1], one_pk=HUB.public),
    Equivocation.of(RECEIPTS[0], RECEIPTS[2], one_pk=HUB.public, other_pk=NEXT_HUB.public),
    Equivocation.of(RECEIPTS[1], CHECKPOINTS[0], one_pk=HUB.public),
    Equivocation.of(CHECKPOINTS[1], CHECKPOINTS[2], one_pk=HUB.public),
)

_INCLUSION: Final = (
    prove_inclusion(TREE.node_at, 1),
    prove_inclusion(TREE.node_at, 17, 43),
    prove_inclusion(TREE.node_at, 43, 43),
)


def _journal() -> tuple[ControlRecord, ...]:
    bodies: tuple[Wire, ...] = (
        CapAuthorize.of(_TOKEN),
        CapDerive.from_parent(_TOKEN, bytes(32)),
        StreamRegister(stream_id=STREAM),
        LabelOpen(label=LABEL, epoch=0),
        LabelOpen(label=LABEL, epoch=2**40, stream_id=STREAM),
        LimitsSet(limits=dict(DEFAULT_LIMITS.to_json())),
        KeyRotate(hub_pk=NEXT_HUB.public, valid_from=1_700_000_100, retired_pk=HUB.public, retired_until=2**33),
        KeyRotate(hub_pk=NEXT_HUB.public, valid_from=0),
        RetentionDrop(label=LABEL, start_seq=1, end_seq=1024, entry_hashes_root=H(b"chunk")),
        AnchorPublish(label=LABEL, upto_seq=43, mmr_root=TREE.root(), backend="rfc3161", anchor_ref=b"token"),
        PolicyRevocation(
            revocations=(
                Revocation(kind="client-id", target=CLIENT.public, ts=1_700_000_000),
                Revocation(kind="cap-token", target=H(_TOKEN.to_bytes()), ts=0, ttl=2**63),
            )
        ),
        PolicyAuthority(
            authorities=(
                Authority(
                    realm_id=H(b"realm"),
                    stream_id=STREAM,
                    primary_hub=H(b"one hub"),
                    replica_hubs=(H(b"another hub"),),
                    policy="single-primary",
                    ts=1_700_000_000,
                    ttl=3600,
                ),
            )
        ),
    )
    records: list[ControlRecord] = []
    for body in bodies:
        records.append(ControlRecord.issue(HUB, records[-1] if records else None, body, hub_ts=1_700_000_000))
    return tuple(records)


_ATTACHMENTS: Final = (
    Attachment(coid=H(b"coid"), size=0),
    Attachment(coid=H(b"coid"), size=2**20, name="photo – 1.jpg", media_type="image/jpeg"),
)
_ITEMS: Final = (
    StreamItem(stream_seq=1, msg=PLAIN_MSG),
    StreamItem(stream_seq=300, msg=MESSAGES[2], receipt=RECEIPTS[3]),
)
_DETAIL: Final = {"limit": -1, "nested": {"list": ["a", 2**64 - 1, True, [], {}]}}

_ALL: Final[tuple[Wire, ...]] = (
    *MESSAGES,
    *RECEIPTS,
    *CHECKPOINTS,
    *_journal(),
    *_INCLUSION,
    *(prove_consistency(TREE.node_at, small, large) for small, large in ((1, 1), (5, 43), (32, 33))),
    *(prove_range(TREE.node_at, first, last, 43) for first, last in ((1, 43), (6, 13), (43, 43))),
    *TOKENS,
    *EVIDENCE,
    *PRESETS.values(),
    PayloadHdr(schema=_SCHEMA),
    PayloadHdr(schema=_SCHEMA, parent_id=H(b"p"), att_root=H(b"a"), cap_ref=H(b"c"), expires_at=2**63),
    *(SubmitRequest(msg=msg) for msg in MESSAGES),
    SubmitResponse(receipt=RECEIPTS[0]),
    SubmitResponse(receipt=RECEIPTS[3], server_version="veen 0.0.1"),
    StreamRequest(label=LABEL, from_seq=0),
    StreamRequest(
        label=LABEL, from_seq=1, to_seq=9, max_items=100, cursor=2**32, with_receipts=True, with_mmr_proof=False
    ),
    *_ITEMS,
    StreamResponse(label=LABEL, from_seq=1, items=()),
    StreamResponse(
        label=LABEL,
        from_seq=1,
        to_seq=300,
        items=_ITEMS,
        next_cursor=301,
        mmr_proof=_INCLUSION[1],
        server_version="veen 0.0.1",
    ),
    ReceiptRequest(label=LABEL, stream_seq=1),
    ReceiptResponse(receipt=RECEIPTS[0], server_version=""),
    ProofRequest(label=LABEL, stream_seq=2**64 - 1),
    ProofResponse(mmr_proof=_INCLUSION[1], server_version="veen 0.0.1"),
    CheckpointRequest(label=LABEL, upto_seq=0),
    CheckpointResponse(checkpoint=CHECKPOINTS[2], server_version="veen 0.0.1"),
    ErrorEnvelope.refusal(Refusal.CAP_RATE, "slow down", detail=_DETAIL, retry_after=1, request_id="r-1"),
    ErrorEnvelope.api(ApiCode.NOT_FOUND, "no such label: ⊕"),
    Prekey.issue(CLIENT, bytes(range(32)), expires_at=2**32),
    SpeaksBinding.issue(CLIENT, CLIENT, stream_id=bytes(32), not_before=0, not_after=87_000),
    SpeaksEnd.issue(CLIENT, stream_id=bytes(32)),
    SpeaksEnd.issue(CLIENT, stream_id=bytes(32), client_id=CLIENT.public, reason="⊕", ended_at=2**63),
    PrincipalNext.issue(CLIENT, CLIENT, stream_id=bytes(32)),
    *_ATTACHMENTS,
    Attached(body=b"", attachments=()),
    Attached(body=b"hello", attachments=_ATTACHMENTS),
)

OBJECTS: Final[dict[type[Wire], tuple[Wire, ...]]] = {
    kind: tuple(obj for obj in _ALL if type(obj) is kind) for kind in {type(obj): None for obj in _ALL}
}


def bytes_seeds(*kinds: type[Wire]) -> tuple[bytes, ...]:
    return tuple(cbor.encode(obj.to_tree()) for kind in kinds for obj in _of(kind))


def json_seeds(*kinds: type[Wire]) -> tuple[bytes, ...]:
    return tuple(json.dumps(obj.to_json()).encode() for kind in kinds for obj in _of(kind))


def _of(kind: type[Wire]) -> tuple[Wire, ...]:
    """The objects above; for a kind that nobody listed, two that its annotations suggest."""
    return OBJECTS.get(kind) or (_guess(kind, full=False), _guess(kind, full=True))


def _guess(kind: type[Wire], *, full: bool) -> Wire:
    """An object with or without its optional fields. Near enough to a valid one for mutations to go on from."""
    hints = get_type_hints(kind)
    return kind(**{field.name: _value(hints[field.name], full=full) for field in fields(cast(Any, kind))})


def _value(hint: Any, *, full: bool) -> Any:
    choices = get_args(hint)
    if NoneType in choices:
        return _value(choices[0], full=full) if full else None
    if get_origin(hint) in (tuple, list):
        return (_value(choices[0], full=full),) if full else ()
    if isinstance(hint, type) and issubclass(hint, Wire):
        return _of(hint)[0] if hint is not Wire else PayloadHdr(schema=_SCHEMA)
    values: dict[Any, Any] = {bytes: bytes(32), int: 1, str: "text", bool: True}
    return values.get(hint, {})
