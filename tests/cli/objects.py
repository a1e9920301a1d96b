"""A small log with fixed keys, and one of every object about it."""

import json
from dataclasses import replace

from veen.core.crypto import x25519
from veen.core.crypto.ed25519 import SigningKey
from veen.core.objects.captoken import CapToken
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import CapAuthorize, ControlRecord
from veen.core.objects.envelopes import StreamItem, StreamResponse, SubmitRequest, SubmitResponse
from veen.core.objects.evidence import Equivocation
from veen.core.objects.msg import Msg
from veen.core.objects.payload_hdr import PayloadHdr
from veen.core.objects.profile import PRESETS
from veen.core.objects.receipt import Receipt
from veen.core.sealing.ciphertext import Binding, seal
from veen.core.tree.mmr import MmrTree
from veen.core.tree.proof import prove_consistency, prove_inclusion, prove_range

ALICE, HUB, WITNESS = (SigningKey(bytes([n]) * 32) for n in (1, 2, 5))
READER_PK = x25519.public_key(b"\x03" * 32)
LABEL = b"L" * 32
PROFILE = PRESETS["messaging"]


def send(client_seq, body):
    binding = Binding(
        profile_id=PROFILE.profile_id(),
        label=LABEL,
        client_id=ALICE.public,
        client_seq=client_seq,
        prev_ack=client_seq - 1,
        auth_ref=None,
    )
    ikm = bytes([client_seq]) * 32
    sealed = seal(READER_PK, binding, PayloadHdr(schema=b"s" * 32), body, ikm=ikm, pad_block=PROFILE.pad_block)
    return Msg.compose(
        ALICE,
        profile_id=binding.profile_id,
        label=LABEL,
        client_seq=client_seq,
        prev_ack=client_seq - 1,
        auth_ref=None,
        ciphertext=sealed.ciphertext,
    )


TREE = MmrTree()
MSGS, RECEIPTS = [], []
for number in range(1, 6):
    MSGS.append(send(number, b"hello"))
    TREE.append(MSGS[-1].leaf_hash())
    RECEIPTS.append(
        Receipt.issue(
            HUB,
            label=LABEL,
            stream_seq=number,
            leaf_hash=MSGS[-1].leaf_hash(),
            mmr_root=TREE.root(),
            hub_ts=1_700_000_000,
        )
    )
MSG, OTHER_MSG = MSGS[0], MSGS[1]
CHECKPOINT = Checkpoint.issue(
    HUB, label_prev=LABEL, label_curr=LABEL, upto_seq=5, mmr_root=TREE.root(), epoch=0, witnesses=[WITNESS]
)
TOKEN = CapToken.issue(ALICE, ALICE.public, [b"1" * 32], ttl=60)
FORKED = Receipt.issue(HUB, label=LABEL, stream_seq=1, leaf_hash=b"f" * 32, mmr_root=b"f" * 32, hub_ts=1_700_000_000)


def page(*, with_receipts=True, with_proof=True):
    items = tuple(
        StreamItem(stream_seq=seq, msg=msg, receipt=receipt if with_receipts else None)
        for seq, (msg, receipt) in enumerate(zip(MSGS, RECEIPTS, strict=True), start=1)
    )
    proof = prove_inclusion(TREE.node_at, 5) if with_proof else None
    return StreamResponse(label=LABEL, from_seq=1, items=items, mmr_proof=proof)


def bad_pages():
    good = page()
    first, second, *rest = good.items
    yield replace(good, items=(second, first, *rest))
    yield replace(good, items=(replace(first, receipt=second.receipt), second, *rest))
    yield replace(good, items=(replace(first, msg=second.msg), second, *rest))
    yield replace(good, label=b"M" * 32)
    yield replace(good, items=good.items[:-1])


OBJECTS = {
    "msg": MSG,
    "receipt": RECEIPTS[0],
    "checkpoint": CHECKPOINT,
    "proof": prove_inclusion(TREE.node_at, 1, 5),
    "consistency": prove_consistency(TREE.node_at, 2, 5),
    "range": prove_range(TREE.node_at, 2, 3, 5),
    "token": TOKEN,
    "control": ControlRecord.issue(HUB, None, CapAuthorize.of(TOKEN), hub_ts=1_700_000_000),
    "equivocation": Equivocation.of(RECEIPTS[0], FORKED, one_pk=HUB.public),
    "page": page(),
    "submit": SubmitRequest(msg=MSG),
    "submitted": SubmitResponse(receipt=RECEIPTS[0], server_version="0.0.1"),
    "profile": PROFILE,
}


def encoded(obj, form):
    if isinstance(obj, bytes):
        return obj
    if form == "json":
        return json.dumps(obj.to_json()).encode()
    data = obj.to_bytes()
    return data.hex().encode() + b"\n" if form == "hex" else data


def flipped(obj, position):
    data = bytearray(obj.to_bytes())
    data[position] ^= 0x01
    return bytes(data)
