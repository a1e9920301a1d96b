"""The conformance vector of 002 §20 with the fixed seeds of D-118; its bytes are frozen in tests/vectors/."""

from typing import Final

from veen.core.crypto import x25519
from veen.core.crypto.ed25519 import SigningKey
from veen.core.hashing import H
from veen.products.vesn.ledger import Ledger
from veen.products.vesn.objects import Msg, PayloadHdr, Profile, label_of
from veen.products.vesn.sealing import seal_payload

PROFILE: Final = Profile(epoch_sec=0)
RECEIVER_SK: Final = b"\x03" * 32
_CLIENT: Final = SigningKey(b"\x01" * 32)
_HUB: Final = SigningKey(b"\x02" * 32)
_IKM: Final = b"\x04" * 32
HUB_PK: Final = _HUB.public


def section_20() -> dict[str, bytes]:
    """Every value of the recipe by name: one message, empty body, epoch_sec 0, routing_key of zeros."""
    routing_key, stream_id = bytes(32), H(b"test")
    label = label_of(routing_key, stream_id, 0)
    hdr = PayloadHdr(schema=H(b"chat.v1"))
    ciphertext, _ = seal_payload(
        x25519.public_key(RECEIVER_SK),
        hdr,
        b"",
        label=label,
        client_id=_CLIENT.public,
        client_seq=1,
        prev_ack=0,
        ikm=_IKM,
    )
    msg = Msg.compose(
        _CLIENT, profile_id=PROFILE.profile_id(), label=label, client_seq=1, prev_ack=0, ciphertext=ciphertext
    )
    receipt = Ledger(_HUB, profiles=[PROFILE.profile_id()]).accept(msg, hub_ts=0)
    return {
        "routing_key": routing_key,
        "stream_id": stream_id,
        "label": label,
        "profile": PROFILE.to_bytes(),
        "profile_id": PROFILE.profile_id(),
        "client_id": _CLIENT.public,
        "hub_pk": HUB_PK,
        "payload_hdr": hdr.to_bytes(),
        "ciphertext": ciphertext,
        "ct_hash": msg.ct_hash,
        "msg_signing_digest": msg.digest_without("sig"),
        "msg": msg.to_bytes(),
        "msg_id": msg.leaf_hash(),
        "leaf_hash": receipt.leaf_hash,
        "mmr_root": receipt.mmr_root,
        "receipt_signing_digest": receipt.digest_without("hub_sig"),
        "receipt": receipt.to_bytes(),
    }
