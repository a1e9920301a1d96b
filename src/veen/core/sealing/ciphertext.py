"""The sealed part of a message: header under HPKE, body under XChaCha20-Poly1305 (spec §4.2).

    ciphertext = enc(32) || hdr_len(4) || body_len(4) || hpke_ct_hdr || aead_ct_body || zero padding

The associated data binds both parts to the place of the message in its stream, so a ciphertext cannot be
moved to another label, client or sequence number. Each seal sets up a fresh HPKE context from randomness that
the caller passes in; a retry that changes any input must pass new randomness (D-09).

Attachments: sealed beside the message, bound to it by att_root (spec §4.6, D-12 … D-16).

veen.attached.v1, the general body that declares its attachments (D-16).

Schemas without fields for attachments wrap their body in this one. Count and plaintext sizes are declared inside the
encrypted body, so nobody can add, drop or swap an attachment undetected (spec §4.6).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from struct import Struct
from typing import Annotated, ClassVar, Final, Self

from veen.core import cbor
from veen.core.crypto import aead, hpke
from veen.core.errors import (
    AmbiguousError,
    FieldSizeError,
    FormatError,
    LimitError,
    MalformedError,
    OpenError,
    PaddingError,
    VeenError,
    VerifyError,
)
from veen.core.hashing import H, Ht, tag_prefix, trunc_24, u32be, u64be
from veen.core.limits import DEFAULT_LIMITS, Limits
from veen.core.objects.msg import Msg
from veen.core.objects.payload_hdr import PayloadHdr
from veen.core.tree.mmr import Mmr, Tags
from veen.core.wire import Bytes32, Form, Length, Uint, Wire

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


ATTACHED_SCHEMA: Final = H(b"veen.attached.v1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment(Wire, kind="attachment"):
    """One declared attachment; `size` is that of the plaintext."""

    FORM: ClassVar[Form] = "body"

    coid: Bytes32
    size: Uint
    name: str | None = None
    media_type: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attached(Wire, kind="veen.attached.v1"):
    """A body together with the list of its attachments, by index from 0 (D-14)."""

    FORM: ClassVar[Form] = "body"

    body: bytes
    attachments: Annotated[tuple[Attachment, ...], Length(0, DEFAULT_LIMITS.max_attachments_per_msg)]

    def check(self, coids: Sequence[bytes], plaintexts: Sequence[bytes]) -> None:
        """Raise VerifyError unless these are exactly the declared attachments."""
        if not len(self.attachments) == len(coids) == len(plaintexts):
            raise VerifyError(f"{len(self.attachments)} attachments are declared, {len(plaintexts)} were supplied")
        for index, declared in enumerate(self.attachments):
            if declared.coid != coids[index]:
                raise VerifyError(f"attachment {index} is not the declared one: its coid differs")
            if declared.size != len(plaintexts[index]):
                raise VerifyError(f"attachment {index}: {declared.size} bytes declared, {len(plaintexts[index])} found")


TAG_BYTES: Final = 16
OPENING_BYTES: Final = 32
_PREFIX: Final = Struct(">32xII")  # enc, hdr_len, body_len
_AAD_TAG: Final = tag_prefix("veen/aad")
_NONCE_TAG: Final = tag_prefix("veen/nonce")
_ZERO_REF: Final = bytes(32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """The place of a message in its stream: everything its ciphertext is bound to."""

    profile_id: bytes
    label: bytes
    client_id: bytes
    client_seq: int
    prev_ack: int
    auth_ref: bytes | None

    @classmethod
    def of(cls, msg: Msg) -> Self:
        return cls(
            profile_id=msg.profile_id,
            label=msg.label,
            client_id=msg.client_id,
            client_seq=msg.client_seq,
            prev_ack=msg.prev_ack,
            auth_ref=msg.auth_ref,
        )

    def aad(self) -> bytes:
        """Return the associated data of step 3; attachment nonces use it instead of msg_id, which would be circular
        (D-12).
        """
        return sha256(
            b"".join(
                (
                    _AAD_TAG,
                    self.profile_id,
                    self.label,
                    self.client_id,
                    u64be(self.client_seq),
                    u64be(self.prev_ack),
                    self.auth_ref or _ZERO_REF,
                )
            )
        ).digest()

    def nonce(self) -> bytes:
        """Return the nonce of step 6. It is unique with its key: k_body comes from a context that is never reused."""
        seed = b"".join((_NONCE_TAG, self.label, u64be(self.prev_ack), self.client_id, u64be(self.client_seq)))
        return trunc_24(sha256(seed).digest())


@dataclass(frozen=True, slots=True)
class Parts:
    """A ciphertext split by its own length fields. No key is needed: hubs check this much (D-18)."""

    enc: bytes
    hpke_ct_hdr: bytes
    aead_ct_body: bytes
    padding: bytes

    @classmethod
    def split(cls, ciphertext: bytes, limits: Limits = DEFAULT_LIMITS) -> Self:
        """Split and check against the limits; raise FieldSizeError, LimitError or PaddingError."""
        body_start, end = cls.check(ciphertext, limits)
        return cls(ciphertext[:32], ciphertext[_PREFIX.size : body_start], ciphertext[body_start:end], ciphertext[end:])

    @staticmethod
    def check(ciphertext: bytes, limits: Limits) -> tuple[int, int]:
        """Check as `split` does; return the start and end of the body."""
        if len(ciphertext) < _PREFIX.size:
            raise FieldSizeError("ciphertext", f"at least {_PREFIX.size} bytes", len(ciphertext))
        hdr_len, body_len = _PREFIX.unpack_from(ciphertext)
        if hdr_len > limits.max_hdr_bytes:
            raise LimitError("max_hdr_bytes", hdr_len, limits.max_hdr_bytes)
        if body_len > limits.max_body_bytes:
            raise LimitError("max_body_bytes", body_len, limits.max_body_bytes)
        body_start = _PREFIX.size + hdr_len
        end = body_start + body_len
        if len(ciphertext) < end:
            raise FieldSizeError("ciphertext", f"at least {end} bytes by its own length fields", len(ciphertext))
        if ciphertext.count(0, end) != len(ciphertext) - end:
            raise PaddingError
        return body_start, end


@dataclass(frozen=True, slots=True)
class Sealed:
    """A ciphertext ready to be signed, and its attachments ready to be stored by coid."""

    ciphertext: bytes
    attachments: SealedAttachments


@dataclass(frozen=True, slots=True, repr=False)
class Opened:
    """Header, body and attachments of an opened message. `repr` hides the plaintext, because values end up in logs."""

    hdr: PayloadHdr
    body: bytes
    attachments: tuple[bytes, ...]

    def __repr__(self) -> str:
        return f"Opened(schema={self.hdr.schema.hex()}, {len(self.body)} body bytes)"


def seal(
    reader_pk: bytes,
    binding: Binding,
    hdr: PayloadHdr,
    body: bytes | Callable[[SealedAttachments], bytes],
    *,
    ikm: bytes,
    pad_block: int,
    attachments: Sequence[bytes] = (),
    limits: Limits = DEFAULT_LIMITS,
) -> Sealed:
    """Seal header, body and attachments to the holder of the reader key.

    `ikm` is 32 bytes of fresh randomness. With attachments, `hdr.att_root` is filled in; a caller that
    already set it must have set the right one. A body that names its attachments by coid is given as a
    function, since coids exist only once the attachments are sealed.
    """
    enc, context = hpke.setup_sender(reader_pk, ikm)
    aad = binding.aad()
    sealed_attachments = seal_attachments(context, aad, attachments, limits)
    body = body(sealed_attachments) if callable(body) else body
    if len(body) + TAG_BYTES > limits.max_body_bytes:
        raise LimitError("max_body_bytes", len(body) + TAG_BYTES, limits.max_body_bytes)
    hdr = sealed_attachments.bind(hdr)
    hpke_ct_hdr = context.seal(aad, cbor.encode(hdr.to_tree()))
    if len(hpke_ct_hdr) > limits.max_hdr_bytes:
        raise LimitError("max_hdr_bytes", len(hpke_ct_hdr), limits.max_hdr_bytes)
    aead_ct_body = aead.seal(context.export(b"veen/body-k", 32), binding.nonce(), aad, body)
    ciphertext = b"".join((enc, u32be(len(hpke_ct_hdr)), u32be(len(aead_ct_body)), hpke_ct_hdr, aead_ct_body))
    padding = -len(ciphertext) % pad_block if pad_block else 0
    if len(ciphertext) + padding > limits.max_msg_bytes:
        raise LimitError("max_msg_bytes", len(ciphertext) + padding, limits.max_msg_bytes)
    return Sealed(ciphertext + bytes(padding), sealed_attachments)


def open_msg(
    reader_sk: bytes,
    msg: Msg,
    *,
    reader_pk: bytes | None = None,
    attachments: Sequence[bytes] = (),
    limits: Limits = DEFAULT_LIMITS,
) -> Opened:
    """Open what `seal` sealed: check I1, cut, decrypt, and check the attachments against att_root (I5).

    `attachments` are the ciphertexts fetched by coid, in order; pass none to read header and body only.
    """
    msg.check_ct_hash()
    parts = Parts.split(msg.ciphertext, limits)
    return _open(hpke.setup_receiver(parts.enc, reader_sk, pk_r=reader_pk), parts, msg, attachments, limits)


def opening_of(reader_sk: bytes, msg: Msg, *, reader_pk: bytes | None = None) -> bytes:
    """Return the secret that opens this message and no other, for a reader that keeps the key of the stream to itself.

    Every message is sealed in an HPKE context of its own; the opening is the shared secret of that context.
    """
    return hpke.receiver_secret(Parts.split(msg.ciphertext).enc, reader_sk, reader_pk)


def open_with_opening(opening: bytes, msg: Msg, *, limits: Limits = DEFAULT_LIMITS) -> Opened:
    """Open header and body with the result of `opening_of`; raise OpenError if it is that of another message."""
    msg.check_ct_hash()
    return _open(hpke.receiver_of_secret(opening), Parts.split(msg.ciphertext, limits), msg, (), limits)


def _open(context: hpke.Context, parts: Parts, msg: Msg, attachments: Sequence[bytes], limits: Limits) -> Opened:
    binding = Binding.of(msg)
    aad = binding.aad()
    header = context.open(aad, parts.hpke_ct_hdr)
    body = aead.open_(context.export(b"veen/body-k", 32), binding.nonce(), aad, parts.aead_ct_body)
    hdr = _read_hdr(header)
    if hdr is None:  # raised out here, with no cause attached: the cause would quote what was decrypted
        raise MalformedError("what the sender sealed is not a payload_hdr", PayloadHdr.KIND)
    opened = open_attachments(context, aad, hdr, attachments, limits) if attachments else ()
    return Opened(hdr, body, opened)


def open_with_one(
    keys: Sequence[tuple[bytes, bytes]], msg: Msg, *, limits: Limits = DEFAULT_LIMITS
) -> tuple[int, Opened]:
    """Open with the one of `keys` (pairs of reader_sk and reader_pk) that fits; return its index and the content.

    The ciphers do not commit to a key, so a sender can make a ciphertext that opens under two keys, to two contents
    (D-170). Every key is tried in the given order. Two keys that open it raise AmbiguousError, even if one of the
    contents is not a valid payload. No key raises OpenError. Any other error of the one fitting key is raised.
    """
    if len(keys) == 1:
        return 0, open_msg(keys[0][0], msg, reader_pk=keys[0][1], limits=limits)
    msg.check_ct_hash()
    Parts.check(msg.ciphertext, limits)  # what is wrong before any key is used
    fits: list[tuple[int, Opened | VeenError]] = []
    for number, (reader_sk, reader_pk) in enumerate(keys):
        try:
            fits.append((number, open_msg(reader_sk, msg, reader_pk=reader_pk, limits=limits)))
        except OpenError:
            continue
        except VeenError as exc:  # opened, and sealed by a writer who breaks the rules
            fits.append((number, exc))
    if not fits:
        raise OpenError
    if len(fits) > 1:
        raise AmbiguousError
    number, opened = fits[0]
    if isinstance(opened, VeenError):
        raise opened
    return number, opened


def open_attachment(
    reader_sk: bytes, msg: Msg, index: int, ciphertext: bytes, *, limits: Limits = DEFAULT_LIMITS
) -> bytes:
    """Open one attachment of a message whose list of coids was checked against att_root; the others need not be in
    memory.
    """
    context = hpke.setup_receiver(Parts.split(msg.ciphertext, limits).enc, reader_sk)
    return open_one(context, Binding.of(msg).aad(), index, ciphertext, limits)


def _read_hdr(header: bytes) -> PayloadHdr | None:
    try:
        return PayloadHdr.from_bytes(header)
    except FormatError:
        return None
