"""Keys of a VESN endpoint: the sealed payload, attachments, the rekey chain, rotation, keystore.enc.

002 does not define the framing of a ciphertext. This module uses the framing of 001: empty associated data, and the
tags vesn/body-k, vesn/nonce, vesn/att-k (D-116). An import never needs it: there a ciphertext is opaque. Callers
provide all randomness.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import scrypt
from struct import Struct
from typing import Annotated, ClassVar, Final, NamedTuple, Self

from veen.core.crypto import aead, ed25519, hpke
from veen.core.crypto.hkdf import hkdf
from veen.core.errors import FormatError, OpenError
from veen.core.hashing import Ht, trunc_24, u64be
from veen.core.wire import Bytes32, Bytes64, Size, Version
from veen.products.vesn.errors import Problem, Violation
from veen.products.vesn.objects import Msg, PayloadHdr, Record

ROTATE_AFTER: Final = 256  # M of 002 §3
_PREFIX: Final = Struct(">32sII")  # enc, hdr_len, body_len
_MAX_HDR: Final = 16 * 1024
_KEY_BYTES: Final = 32


class Opened(NamedTuple):
    """Contents of a ciphertext."""

    hdr: PayloadHdr
    body: bytes


def seal_payload(
    reader_pk: bytes,
    hdr: PayloadHdr,
    body: bytes,
    *,
    label: bytes,
    client_id: bytes,
    client_seq: int,
    prev_ack: int,
    ikm: bytes,
    pad_block: int = 0,
    attachments: Sequence[bytes] = (),
) -> tuple[bytes, tuple[bytes, ...]]:
    """Return the ciphertext of a message and those of its attachments. `ikm` is 32 bytes of fresh randomness.

    The caller sets `hdr.att_root`, which needs the coids; `seal_attachments` returns them beforehand.
    """
    enc, context = hpke.setup_sender(reader_pk, ikm)
    sealed_attachments = _seal_attachments(context, attachments)
    sealed_hdr = context.seal(b"", hdr.to_bytes())
    nonce = _nonce(label, prev_ack, client_id, client_seq)
    sealed_body = aead.seal(context.export(b"vesn/body-k", _KEY_BYTES), nonce, b"", body)
    ciphertext = _PREFIX.pack(enc, len(sealed_hdr), len(sealed_body)) + sealed_hdr + sealed_body
    padding = -len(ciphertext) % pad_block if pad_block else 0
    return ciphertext + bytes(padding), sealed_attachments


def open_payload(reader_sk: bytes, msg: Msg) -> Opened:
    """Return header and body of a message sealed by `seal_payload`. Raise OpenError for any other message or reader."""
    enc, sealed_hdr, sealed_body = _split(msg.ciphertext)
    context = hpke.setup_receiver(enc, reader_sk)
    header = context.open(b"", sealed_hdr)
    nonce = _nonce(msg.label, msg.prev_ack, msg.client_id, msg.client_seq)
    body = aead.open_(context.export(b"vesn/body-k", _KEY_BYTES), nonce, b"", sealed_body)
    try:
        return Opened(PayloadHdr.from_bytes(header), body)
    except FormatError:
        raise OpenError from None  # no cause attached: it would quote what was decrypted


def seal_attachments(reader_pk: bytes, ikm: bytes, attachments: Sequence[bytes]) -> tuple[bytes, ...]:
    """Return the attachments as `seal_payload` will seal them with the same `ikm`: their hashes form att_root."""
    return _seal_attachments(hpke.setup_sender(reader_pk, ikm)[1], attachments)


def open_attachment(reader_sk: bytes, msg: Msg, index: int, sealed: bytes) -> bytes:
    """Return one attachment of a message, by its index from 0."""
    context = hpke.setup_receiver(_split(msg.ciphertext)[0], reader_sk)
    return aead.open_(*_attachment_key(context, index), b"", sealed)


def _seal_attachments(context: hpke.Context, attachments: Sequence[bytes]) -> tuple[bytes, ...]:
    return tuple(aead.seal(*_attachment_key(context, index), b"", data) for index, data in enumerate(attachments))


def _attachment_key(context: hpke.Context, index: int) -> tuple[bytes, bytes]:
    """Return key and nonce of an attachment. The key has no other use, so its nonce may be fixed."""
    return context.export(b"vesn/att-k" + u64be(index), _KEY_BYTES), trunc_24(Ht("vesn/att-nonce", u64be(index)))


def _split(ciphertext: bytes) -> tuple[bytes, bytes, bytes]:
    if len(ciphertext) < _PREFIX.size:
        raise OpenError
    enc, hdr_len, body_len = _PREFIX.unpack_from(ciphertext)
    body_start = _PREFIX.size + hdr_len
    end = body_start + body_len
    if hdr_len > _MAX_HDR or end > len(ciphertext) or ciphertext.count(0, end) != len(ciphertext) - end:
        raise OpenError
    return enc, ciphertext[_PREFIX.size : body_start], ciphertext[body_start:end]


def _nonce(label: bytes, prev_ack: int, client_id: bytes, client_seq: int) -> bytes:
    return trunc_24(Ht("vesn/nonce", label + u64be(prev_ack) + client_id + u64be(client_seq)))


# --- the rekey chain and rotation (002 §3, §9.1) ----------------------------------------------------------------


class DirectionKeys(NamedTuple):
    send: bytes
    recv: bytes


def next_rk(rk: bytes, stream_seq: int) -> bytes:
    """Return rk' after the receipt with `stream_seq` was accepted."""
    return hkdf(rk, b"", b"vesn/rk" + u64be(stream_seq), _KEY_BYTES)


def direction_keys(rk: bytes) -> DirectionKeys:
    return DirectionKeys(hkdf(rk, b"", b"vesn/send", _KEY_BYTES), hkdf(rk, b"", b"vesn/recv", _KEY_BYTES))


def needs_rotation(*, epoch_sec: int, key_epoch: int, epoch: int, messages: int) -> bool:
    """Return True if a client needs a new client_id before its next message (002 §3)."""
    return epoch > key_epoch if epoch_sec else messages >= ROTATE_AFTER


# --- keystore.enc (002 §15, decision 85) ------------------------------------------------------------------------

_SCRYPT_N: Final = 2**15
_SCRYPT_R: Final = 8
_SCRYPT_MEMORY: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Secrets(Record, kind="VESN secrets"):
    """Plaintext of keystore.enc."""

    id_dh_sk: Bytes32
    id_sign_sk: Bytes32
    prekey_seed: Bytes32

    def __repr__(self) -> str:
        return "Secrets(…)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Keystore(Record, kind="VESN keystore"):
    """keystore.enc: scrypt and XChaCha20-Poly1305; signed by id_sign, so damage shows without the passphrase."""

    sig: Bytes64
    ver: ClassVar[Version] = 1
    salt: Bytes32
    nonce: Annotated[bytes, Size(24)]
    sealed: bytes

    @classmethod
    def seal(cls, secrets: Secrets, passphrase: str, *, salt: bytes, nonce: bytes) -> Self:
        """Encrypt and sign secrets. `salt` (32 bytes) and `nonce` (24 bytes) are fresh randomness."""
        sealed = aead.seal(_passphrase_key(passphrase, salt), nonce, b"", secrets.to_bytes())
        unsigned = cls(sig=b"", salt=salt, nonce=nonce, sealed=sealed)
        id_sign = ed25519.SigningKey(secrets.id_sign_sk)
        return replace(unsigned, sig=id_sign.sign(unsigned.digest_without("sig")))

    def verify(self, id_sign_pk: bytes) -> None:
        if not ed25519.verify(id_sign_pk, self.digest_without("sig"), self.sig):
            raise Violation(Problem.SIG, "sig does not verify under the id_sign_pk of identity_card")

    def open(self, passphrase: str) -> Secrets:
        """Decrypt the secrets. Raise OpenError for a wrong passphrase and for altered bytes alike."""
        plain = aead.open_(_passphrase_key(passphrase, self.salt), self.nonce, b"", self.sealed)
        try:
            return Secrets.from_bytes(plain)
        except FormatError:
            raise OpenError from None  # no cause attached: it would quote what was decrypted


def _passphrase_key(passphrase: str, salt: bytes) -> bytes:
    secret = passphrase.encode("utf-8", "surrogateescape")
    return scrypt(secret, salt=salt, n=_SCRYPT_N, r=_SCRYPT_R, p=1, maxmem=_SCRYPT_MEMORY, dklen=_KEY_BYTES)
