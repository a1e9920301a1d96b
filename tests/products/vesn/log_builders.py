"""VESN logs for tests: fixed keys, a small set with one of every file, and random sets."""

from dataclasses import replace
from random import Random
from typing import Any

from veen.core.crypto import x25519
from veen.core.crypto.ed25519 import SigningKey
from veen.core.hashing import H
from veen.products.vesn.ledger import Ledger, Tree, att_root_of, prove
from veen.products.vesn.lines import StreamEntry
from veen.products.vesn.logcheck import Trust
from veen.products.vesn.objects import (
    Allow,
    CapToken,
    Equivocation,
    ErrorReply,
    IdentityCard,
    Msg,
    Pair,
    PayloadHdr,
    Profile,
    Rate,
    Receipt,
    RoutingSecret,
    SyncState,
    label_of,
)
from veen.products.vesn.portability import encode_set
from veen.products.vesn.sealing import Keystore, Secrets, seal_attachments, seal_payload

CLIENT, HUB, OTHER_HUB, WITNESS, OWNER, ISSUER = (SigningKey(bytes([n]) * 32) for n in (1, 2, 12, 5, 6, 7))
READER_SK = bytes([3]) * 32
READER_PK = x25519.public_key(READER_SK)
STREAM_ID, ROUTING_KEY = H(b"test"), bytes([9]) * 32
EPOCHS = Profile(epoch_sec=60)
EPOCH_0 = 28_000_000
HUB_TS = EPOCH_0 * 60
TRUST = Trust(hub_pks=(HUB.public,), witness_pks=(WITNESS.public,))
PASSPHRASE = "old horse"


def label(epoch):
    return label_of(ROUTING_KEY, STREAM_ID, epoch)


def message(key, client_seq, *, at, prev_ack=0, body=b"", attachments=(), cap_ref=None, profile=EPOCHS, ikm=None):
    """A signed message to the label `at`, and its sealed attachments."""
    ikm = H(at + key.public + bytes([client_seq % 256])) if ikm is None else ikm
    sealed = seal_attachments(READER_PK, ikm, attachments)
    root = att_root_of([H(blob) for blob in sealed]) if sealed else None
    hdr = PayloadHdr(schema=H(b"chat.v1"), att_root=root, cap_ref=cap_ref)
    ciphertext, again = seal_payload(
        READER_PK,
        hdr,
        body,
        label=at,
        client_id=key.public,
        client_seq=client_seq,
        prev_ack=prev_ack,
        ikm=ikm,
        pad_block=profile.pad_block,
        attachments=attachments,
    )
    assert again == sealed
    msg = Msg.compose(
        key,
        profile_id=profile.profile_id(),
        label=at,
        client_seq=client_seq,
        prev_ack=prev_ack,
        ciphertext=ciphertext,
    )
    return msg, sealed


TOKEN = CapToken.issue(
    ISSUER, CLIENT.public, Allow(ttl=3600, rate=Rate(per_sec=1, burst=2), stream_ids=(STREAM_ID,))
).extend(ISSUER)
KEYSTORE = Keystore.seal(
    Secrets(id_dh_sk=READER_SK, id_sign_sk=OWNER.seed, prekey_seed=bytes(32)),
    PASSPHRASE,
    salt=bytes(32),
    nonce=bytes(24),
)
COMMON: dict[str, Any] = {
    "card": IdentityCard.issue(OWNER, READER_PK),
    "keystore": KEYSTORE,
    "routing": RoutingSecret(stream_id=STREAM_ID, routing_key=ROUTING_KEY),
    "tokens": [TOKEN],
}


def log(counts=(2, 1), *, hub=HUB, seed=0, messages=None):
    """Receipts, messages, checkpoints and attachments of a stream over `len(counts)` epochs."""
    rng = Random(seed)
    ledger = Ledger(hub)
    receipts: list[Receipt] = []
    attachments: list[bytes] = []
    msgs, checkpoints = [], []
    for number, count in enumerate(counts):
        epoch = EPOCH_0 + number
        if number:
            checkpoints.append(ledger.rotate(label(epoch - 1), label(epoch), epoch=epoch, witnesses=[WITNESS]))
        key = SigningKey(rng.randbytes(32)) if seed else SigningKey(bytes([20 + number]) * 32)
        for client_seq in range(1, count + 1):
            files = [b"a file", b"another"] if not attachments else []
            msg, sealed = message(
                key,
                client_seq,
                at=label(epoch),
                prev_ack=max(len(receipts) - rng.randrange(2), 0),
                body=rng.randbytes(rng.randrange(40)) if seed else b"hello",
                attachments=files,
            )
            attachments += sealed
            msgs.append(msg)
            receipts.append(ledger.accept(msg, hub_ts=HUB_TS + 60 * number))
    return {"receipts": receipts, "payloads": msgs, "checkpoints": checkpoints, "attachments": attachments}


def small_set(counts=(2, 1), **options):
    """The files of a small set, by path."""
    return encode_set(**log(counts, **options), **COMMON)


def lines(counts=(3,)):
    """A stream as NDJSON, with proofs."""
    parts, tree, written = log(counts), Tree(), []
    for receipt, msg in zip(parts["receipts"], parts["payloads"], strict=True):
        tree.append(receipt.leaf_hash)
        proof = prove(tree.node_at, receipt.stream_seq)
        written.append(StreamEntry(receipt=receipt, msg=msg, mmr_proof=proof).to_line())
    return written


def samples(kind):
    """The bytes of valid records of a kind."""
    parts = log((4, 2))
    tree = Tree()
    for receipt in parts["receipts"]:
        tree.append(receipt.leaf_hash)
    first = parts["receipts"][0]
    forked = Receipt.issue(HUB, label=first.label, stream_seq=1, leaf_hash=bytes(32), mmr_root=bytes(32), hub_ts=0)
    records = [
        *parts["payloads"][:2],
        *parts["receipts"][:2],
        parts["checkpoints"][0],
        replace(parts["checkpoints"][0], witness_sigs=None),
        Pair(ct_hash=H(b"x"), ciphertext=b"x"),
        TOKEN,
        CapToken.issue(ISSUER, CLIENT.public, Allow(ttl=0, stream_ids=(bytes(32),))),
        SyncState(last_mmr_root=bytes(32), last_stream_seq=24),
        COMMON["card"],
        COMMON["routing"],
        KEYSTORE,
        Profile(),
        ErrorReply(code="E.SIG"),
        ErrorReply(code="E.SIG", detail="no"),
        Equivocation.of(first, forked, hub_pk=HUB.public),
        prove(tree.node_at, 3, 6),
        prove(tree.node_at, 1, 1),
    ]
    return [record.to_bytes() for record in records if type(record) is kind]
