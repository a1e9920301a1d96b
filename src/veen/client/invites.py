"""Invitations: everything that somebody needs to use a stream, as one line of text (`*.veen-invite`).

    veen-invite1.BASE64URL      magic, length, SealedInvite, SHA-256 of all before it

Inside: the address of the hub with its pin, hub_id and certificates, the keys of streams, a capability token, and the
card of the inviter, who signs everything. It is sealed for the card of one person (HPKE), or with a key that argon2id
makes from a one-time code of 80 bits, like a keystore. The time of expiry is outside, where it is bound to the seal,
and inside. A fault of an invitation is reported before anything of it is stored.
"""

import base64
import binascii
import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from hashlib import sha256
from hmac import compare_digest
from typing import Annotated, ClassVar, Final, Self

from nacl.bindings import crypto_pwhash_SALTBYTES

from veen.client.errors import (
    CardInvalid,
    InviteConflict,
    InviteDamaged,
    InviteExpired,
    InviteForAnother,
    InviteTruncated,
    KeystoreDamaged,
    NotAnInvite,
    WrongCode,
)
from veen.client.identity.card import IdentityCard
from veen.client.identity.identity import Identity, Random
from veen.client.identity.keyring import Keyring, StreamKeys
from veen.client.identity.passphrases import Kdf
from veen.client.transport.addresses import credentials_of
from veen.core import cbor
from veen.core.crypto import aead, ed25519, hkdf, hpke
from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import FormatError, OpenError, VerifyError
from veen.core.hashing import Ht
from veen.core.objects.captoken import CapToken
from veen.core.objects.trusted_root import PinnedKey
from veen.core.wire import Bytes32, Bytes64, Choice, Length, Map, Size, Uint

SUFFIX: Final = ".veen-invite"
PREFIX: Final = "veen-invite1."
CODE_BITS: Final = 80
MAX_INVITE_CHARS: Final = 256 * 1024
_MAGIC: Final = b"VEENINV1"
_LENGTH_BYTES: Final = 4
_SUM_BYTES: Final = 32
_CHECK_BYTES: Final = 16
_MAX_STREAMS: Final = 256
_MAX_CA_BYTES: Final = 64 * 1024
_CARD_ID_BYTES: Final = 8
_INFO: Final = b"veen/invite"
_CODE_CHARS: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's base 32: no two characters look alike
_LOOKALIKES: Final = str.maketrans("OIL", "011")
_GROUP: Final = 4


def new_code(random: Random = os.urandom) -> str:
    """Return 80 random bits as four groups of four characters."""
    number = int.from_bytes(random(CODE_BITS // 8), "big")
    chars = [_CODE_CHARS[number >> 5 * place & 31] for place in range(CODE_BITS // 5)]
    return "-".join("".join(chars[start : start + _GROUP]) for start in range(0, len(chars), _GROUP))


def normal_code(text: str) -> str:
    """Return the normal form of a code, however it was typed."""
    return "".join(char for char in text.upper().translate(_LOOKALIKES) if char in _CODE_CHARS)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Invitation(Map, kind="invitation"):
    """Decrypted contents of an invitation. `repr` hides the keys."""

    MAX_BYTES: ClassVar[int] = MAX_INVITE_CHARS

    hub: str  # URL
    pin: str  # ed25519:HEX or root:ed25519:HEX
    hub_id: Bytes32 | None = None
    ca_pem: bytes | None = None
    keys: Annotated[tuple[StreamKeys, ...], Length(0, _MAX_STREAMS)]
    token: CapToken | None = None
    inviter: IdentityCard
    context: str  # the name that is proposed for the hub
    invite_seed: Bytes32 | None = None  # signs the enrolment of the holder of the code
    expires_at: Uint
    sig: Bytes64 = bytes(64)
    rights: Annotated[str, Choice("read", "write", "read and write")] | None = None  # None in those of earlier releases

    def signing_digest(self) -> bytes:
        tree = self.to_tree()
        del tree[_SIG]
        return Ht("veen/invite", cbor.encode(tree))

    @property
    def rights_text(self) -> str:
        """Rights as the inviter gave them; those of the keys if an earlier release wrote the invitation."""
        return self.rights or ("read and write" if any(keys.can_read for keys in self.keys) else "write")

    def sign(self, inviter: Identity) -> Self:
        return replace(self, sig=inviter.id_sign.sign(self.signing_digest()))

    def check(self, now: int) -> None:
        """Check that it is signed by the inviter on the card, in time, and has a valid pin."""
        try:
            self.inviter.verify()
            PinnedKey.parse(self.pin)
            if self.token is not None:
                self.token.verify()
        except (CardInvalid, FormatError, VerifyError, ValueError) as exc:
            raise InviteDamaged(f"its contents do not verify: {exc}") from exc
        if not ed25519.verify(self.inviter.id_sign_pk, self.signing_digest(), self.sig):
            raise InviteDamaged("it is not signed by the inviter that it names")
        if len(self.ca_pem or b"") > _MAX_CA_BYTES:
            raise InviteDamaged(f"its certificates have more than {_MAX_CA_BYTES} bytes")
        if credentials_of(self.hub) is not None:  # the inviter must not choose a local file to be sent to a server
            raise InviteDamaged("its address names a file with credentials, and files are for you to choose")
        if now > self.expires_at:
            raise InviteExpired(self.expires_at, now)

    def add_to(self, ring: Keyring, hub_id: bytes) -> Keyring:
        """Return the keyring with the keys of the invitation, bound to the contacted hub, or to its root.

        Raise InviteConflict if the keyring has another key of a stream for this hub, unless its known owner signed this
        invitation or announced the key; and if it follows another owner (D-183).
        """
        pinned = PinnedKey.parse(self.pin)
        place = pinned.public if pinned.is_root else hub_id
        here = ring.at(hub_id, place)
        for keys in self.keys:
            own = here.readers(keys.stream_id) if here.has(keys.stream_id) else ()
            owner_pk = next((entry.owner_pk for entry in own if entry.owner_pk is not None), None)
            if owner_pk is not None and keys.owner_pk is not None and owner_pk != keys.owner_pk:
                raise InviteConflict(f"{keys}: you follow the owner {owner_pk.hex()[:16]}…")
            is_proven = owner_pk is not None and owner_pk == keys.owner_pk == self.inviter.id_sign_pk
            if own and not is_proven and all(entry.reader_pk != keys.reader_pk for entry in own):
                raise InviteConflict(
                    f"{keys}: you have other keys of this stream, and its owner did not announce this one"
                )
            ring = ring.with_keys(replace(keys, bound_to=place))
        return ring

    @property
    def enrolling(self) -> SigningKey | None:
        return None if self.invite_seed is None else SigningKey(self.invite_seed)

    def __repr__(self) -> str:
        return f"Invitation({self.hub!r}, {len(self.keys)} keys, expires_at={self.expires_at})"


_SIG: Final = next(key for key, field in enumerate(Invitation.wire_fields(), start=1) if field.name == "sig")


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedInvite(Map, kind="sealed invitation"):
    """The sealed form. Everything before `sealed` is its associated data."""

    MAX_BYTES: ClassVar[int] = MAX_INVITE_CHARS

    mode: Annotated[str, Choice("card", "code")]
    expires_at: Uint
    card_id: Annotated[bytes, Size(_CARD_ID_BYTES)] | None = None
    enc: Bytes32 | None = None
    memory_kib: Uint | None = None
    passes: Uint | None = None
    salt: Annotated[bytes, Size(crypto_pwhash_SALTBYTES)] | None = None
    key_check: Annotated[bytes, Size(_CHECK_BYTES)] | None = None
    nonce: Annotated[bytes, Size(aead.NONCE_BYTES)] | None = None
    sealed: bytes = b""

    def _check(self) -> None:
        wanted = {"card": ("card_id", "enc"), "code": ("memory_kib", "passes", "salt", "key_check", "nonce")}
        for mode, names in wanted.items():
            for name in names:
                if (getattr(self, name) is None) == (mode == self.mode):
                    raise InviteDamaged(f"the field {name} does not fit an invitation by {self.mode}")

    def header(self) -> bytes:
        tree = self.to_tree()
        del tree[max(tree)]
        return cbor.encode(tree)

    # --- sealing ---------------------------------------------------------------------------------------

    @classmethod
    def for_card(cls, invitation: Invitation, card: IdentityCard, *, random: Random = os.urandom) -> Self:
        enc, context = hpke.setup_sender(card.dh_pk, random(hpke.IKM_BYTES), _INFO)
        outside = cls(
            mode="card", expires_at=invitation.expires_at, card_id=bytes.fromhex(card.card_id), enc=enc, sealed=b"x"
        )
        return replace(outside, sealed=context.seal(outside.header(), invitation.to_bytes()))

    @classmethod
    def for_code(
        cls, invitation: Invitation, code: str, *, kdf: Kdf | None = None, random: Random = os.urandom
    ) -> Self:
        kdf = kdf or Kdf()
        salt = random(crypto_pwhash_SALTBYTES)
        root = kdf.key(normal_code(code), salt)
        outside = cls(
            mode="code",
            expires_at=invitation.expires_at,
            memory_kib=kdf.memory_kib,
            passes=kdf.passes,
            salt=salt,
            key_check=_key_check(root),
            nonce=random(aead.NONCE_BYTES),
            sealed=b"x",
        )
        nonce = outside.nonce or b""
        return replace(outside, sealed=aead.seal(_seal_key(root), nonce, outside.header(), invitation.to_bytes()))

    # --- opening ---------------------------------------------------------------------------------------

    def open(self, now: int, *, identities: Iterable[Identity] = (), code: str | None = None) -> Invitation:
        """Open and check an invitation. A code costs half a second, so everything else is checked before."""
        if now > self.expires_at:
            raise InviteExpired(self.expires_at, now)
        data = self._open_code(code) if self.mode == "code" else self._open_card(identities)
        try:
            invitation = Invitation.from_bytes(data)
        except FormatError as exc:
            raise InviteDamaged(f"its contents are not an invitation: {exc}") from exc
        if invitation.expires_at != self.expires_at:
            raise InviteDamaged("its two times of expiry differ")
        invitation.check(now)
        return invitation

    def _open_card(self, identities: Iterable[Identity]) -> bytes:
        openings = (opening for own in identities for opening in own.openings)
        dh_sk = next((sk for card_id, sk in openings if bytes.fromhex(card_id) == self.card_id), None)
        if dh_sk is None:
            raise InviteForAnother(f"it is sealed for the card {(self.card_id or b'').hex()}")
        try:
            return hpke.setup_receiver(self.enc or b"", dh_sk, _INFO).open(self.header(), self.sealed)
        except OpenError:
            raise InviteDamaged("its seal does not fit your card: bytes of it were altered") from None

    def _open_code(self, code: str | None) -> bytes:
        if code is None or len(normal_code(code)) != CODE_BITS // 5:
            raise WrongCode
        try:
            kdf = Kdf(memory_kib=self.memory_kib or 0, passes=self.passes or 0)
            root = kdf.key(normal_code(code), self.salt or b"")
        except KeystoreDamaged as exc:
            raise InviteDamaged(str(exc)) from exc
        if not compare_digest(_key_check(root), self.key_check or b""):
            raise WrongCode
        try:
            return aead.open_(_seal_key(root), self.nonce or b"", self.header(), self.sealed)
        except OpenError:
            raise InviteDamaged("the code is right, but bytes were altered") from None

    # --- as text ---------------------------------------------------------------------------------------

    def to_text(self) -> str:
        body = self.to_bytes()
        framed = _MAGIC + len(body).to_bytes(_LENGTH_BYTES, "big") + body
        return PREFIX + _to_base64(framed + sha256(framed).digest())

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Decode an invitation. Raise NotAnInvite, InviteTruncated or InviteDamaged for other text."""
        text = text.strip()
        if not text.startswith(PREFIX):
            if text and PREFIX.startswith(text):
                raise InviteTruncated("it ends within its first characters")
            raise NotAnInvite(f"it does not begin with {PREFIX}")
        if len(text) > MAX_INVITE_CHARS:
            raise InviteDamaged(f"it has more than {MAX_INVITE_CHARS} characters")
        body = text.removeprefix(PREFIX)
        data = _from_base64(body)
        head = len(_MAGIC) + _LENGTH_BYTES
        if not data.startswith(_MAGIC[: len(data)]):
            raise NotAnInvite("its contents are something else")
        if len(data) < head:
            raise InviteTruncated("it ends before its length")
        end = head + int.from_bytes(data[len(_MAGIC) : head], "big")
        if len(data) < end + _SUM_BYTES:
            raise InviteTruncated(f"{end + _SUM_BYTES - len(data)} bytes are missing")
        is_whole = len(data) == end + _SUM_BYTES and compare_digest(sha256(data[:end]).digest(), data[end:])
        if not is_whole or _to_base64(data) != body:  # the last character has bits that no byte uses
            raise InviteDamaged("its checksum is wrong: characters were changed or added")
        try:
            return cls.from_bytes(data[head:end])
        except FormatError as exc:
            raise InviteDamaged(str(exc)) from exc


def _to_base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _from_base64(text: str) -> bytes:
    if len(text) % 4 == 1:
        text = text[:-1]  # cut within a character: the missing bytes are reported below
    with contextlib.suppress(binascii.Error, ValueError):
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    raise InviteDamaged("it has a character that does not occur in an invitation")


def _seal_key(root: bytes) -> bytes:
    return hkdf.hkdf(root, b"", b"veen/invite-key", aead.KEY_BYTES)


def _key_check(root: bytes) -> bytes:
    """Return the check value that distinguishes a wrong code from altered bytes; it helps an attacker no more than
    the seal."""
    return hkdf.hkdf(root, b"", b"veen/invite-check", _CHECK_BYTES)
