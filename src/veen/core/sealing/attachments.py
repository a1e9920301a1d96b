"""Attachments: sealed beside the message, bound to it by att_root (spec §4.6, D-12 … D-16)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from veen.core.crypto import aead, hpke
from veen.core.errors import LimitError, VerifyError
from veen.core.hashing import H, Ht, trunc_24, u64be
from veen.core.limits import Limits
from veen.core.objects.payload_hdr import PayloadHdr
from veen.core.tree.mmr import Mmr, Tags

_TAGS: Final = Tags(node="veen/att-node", root="veen/att-root", hash_single_peak=True)  # D-13
EMPTY_ATT_ROOT: Final = Ht("veen/att-root", b"")


def att_root_of(coids: Sequence[bytes]) -> bytes:
    """Return the Merkle root over the coids in index order; always hashed, also for one peak or none (D-13)."""
    if not coids:
        return EMPTY_ATT_ROOT
    tree = Mmr(tags=_TAGS)
    for coid in coids:
        tree.append(coid)
    return tree.root()


@dataclass(frozen=True, slots=True)
class SealedAttachments:
    """Ciphertexts and their content ids, by index from 0."""

    ciphertexts: tuple[bytes, ...]
    coids: tuple[bytes, ...]

    def bind(self, hdr: PayloadHdr) -> PayloadHdr:
        """Return `hdr` with att_root set; without attachments, leave it absent (spec §4.6 SHOULD)."""
        root = att_root_of(self.coids)
        if hdr.att_root not in (None, root):
            raise VerifyError("payload_hdr.att_root does not match the attachments (I5)")
        return replace(hdr, att_root=root) if self.coids else hdr


def seal_attachments(context: hpke.Context, aad: bytes, plain: Sequence[bytes], limits: Limits) -> SealedAttachments:
    """Seal each attachment under its own exported key. Limits first, then crypto (spec §14.2)."""
    _check_limits(plain, limits, overhead=0)
    ciphertexts = tuple(aead.seal(*_key_and_nonce(context, aad, i), b"", data) for i, data in enumerate(plain))
    return SealedAttachments(ciphertexts, tuple(H(ciphertext) for ciphertext in ciphertexts))


def open_attachments(
    context: hpke.Context, aad: bytes, hdr: PayloadHdr, ciphertexts: Sequence[bytes], limits: Limits
) -> tuple[bytes, ...]:
    """Check att_root over what was supplied, then open each."""
    _check_limits(ciphertexts, limits, overhead=16)
    if att_root_of([H(ciphertext) for ciphertext in ciphertexts]) != hdr.att_root:
        raise VerifyError("the attachments supplied are not those of this message: att_root differs (I5)")
    return tuple(aead.open_(*_key_and_nonce(context, aad, i), b"", data) for i, data in enumerate(ciphertexts))


def open_one(context: hpke.Context, aad: bytes, index: int, ciphertext: bytes, limits: Limits) -> bytes:
    """Open one attachment by its index. The caller checks by the coid that it belongs to the message."""
    _check_limits([ciphertext], limits, overhead=16)
    return aead.open_(*_key_and_nonce(context, aad, index), b"", ciphertext)


def _check_limits(attachments: Sequence[bytes], limits: Limits, *, overhead: int) -> None:
    if len(attachments) > limits.max_attachments_per_msg:
        raise LimitError("max_attachments_per_msg", len(attachments), limits.max_attachments_per_msg)
    largest = max(map(len, attachments), default=0)
    if largest > limits.max_attachment_bytes + overhead:
        raise LimitError("max_attachment_bytes", largest - overhead, limits.max_attachment_bytes)


def _key_and_nonce(context: hpke.Context, aad: bytes, index: int) -> tuple[bytes, bytes]:
    key = context.export(b"veen/att-k" + u64be(index), 32)
    return key, trunc_24(Ht("veen/att-nonce", aad + u64be(index)))
