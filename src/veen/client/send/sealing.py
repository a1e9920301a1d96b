"""From a body to the bytes of a MSG: seal, sign, and note the leaf of its receipt (spec §4.1, §4.2, D-09, D-16).

Sealing is separate from sending, so it may run ahead, elsewhere, or in a thread. Each seal draws fresh randomness;
bytes that were sealed once are only ever sent again as they are.

Rules and advice about messages, applied before a message is sealed.
"""

import hashlib
import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from veen.client.errors import LocalError
from veen.client.identity.identity import Random
from veen.client.identity.keyring import StreamKeys
from veen.core import cbor
from veen.core.crypto import aead, hkdf
from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import LimitError, OpenError
from veen.core.hashing import H
from veen.core.limits import Limits
from veen.core.objects.msg import Msg
from veen.core.objects.payload_hdr import PayloadHdr
from veen.core.objects.profile import Profile
from veen.core.sealing.ciphertext import ATTACHED_SCHEMA, Attached, Attachment, Binding, SealedAttachments, seal

if TYPE_CHECKING:
    from veen.client.client import Client

BYTES_SCHEMA: Final = H(b"veen.bytes.v1")  # the default schema: any bytes
_IKM_BYTES: Final = 32
MAX_KEPT_BYTES: Final = 4 * 1024 * 1024  # attachments of a message that is kept to be sealed again


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Attach:
    """A file to send with a message."""

    data: bytes
    name: str | None = None
    media_type: str | None = None

    def __repr__(self) -> str:
        return f"Attach({len(self.data)} bytes)"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Draft:
    """The content of a message before it has a place. `repr` shows none of it."""

    body: bytes
    schema: bytes | None = None
    parent: bytes | None = None
    expires_at: int | None = None
    attachments: Sequence[Attach] = ()
    reader_pk: bytes | None = None  # the key to seal to; None: that of the stream

    def header(self, auth_ref: bytes | None) -> PayloadHdr:
        default = ATTACHED_SCHEMA if self.attachments else BYTES_SCHEMA
        return PayloadHdr(
            schema=self.schema or default, parent_id=self.parent, cap_ref=auth_ref, expires_at=self.expires_at
        )

    def body_to_seal(self) -> bytes | Callable[[SealedAttachments], bytes]:
        """Return the body, with its attachments declared (spec §4.6): by the given schema, or else by wrapping it."""
        if not self.attachments or self.schema is not None:
            return self.body

        def declare(sealed: SealedAttachments) -> bytes:
            declared = tuple(
                Attachment(coid=coid, size=len(attachment.data), name=attachment.name, media_type=attachment.media_type)
                for coid, attachment in zip(sealed.coids, self.attachments, strict=True)
            )
            return Attached(body=self.body, attachments=declared).to_bytes()

        return declare

    def __repr__(self) -> str:
        return f"Draft({len(self.body)} bytes, {len(self.attachments)} attachments)"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A MSG ready to be sent, and the leaf that its receipt must have."""

    raw: bytes
    label: bytes
    client_seq: int
    leaf_hash: bytes
    attachments: SealedAttachments | None = None
    auth_ref: bytes | None = None

    @classmethod
    def of(cls, raw: bytes) -> "Prepared":
        """Decode the bytes of a MSG that was stored or made elsewhere."""
        msg = Msg.from_bytes(raw)
        return cls(raw, msg.label, msg.client_seq, msg.leaf_hash(), auth_ref=msg.auth_ref)

    @property
    def msg(self) -> Msg:
        return Msg.from_bytes(self.raw)


class Sealer:
    """The sealing of one writer's messages for one label."""

    __slots__ = ("_expiry", "_key", "_limits", "_profile", "_profile_id", "_random", "_reader_pk", "label")

    def __init__(
        self,
        key: SigningKey,
        label: bytes,
        reader_pk: bytes,
        profile: Profile,
        *,
        limits: Limits,
        random: Random,
        expiry: Callable[[], int] | None = None,
    ) -> None:
        """Set up the sealing. `expiry` returns `expires_at` for messages without one; the tag of a draft does not
        include it."""
        self._expiry = expiry
        self.label = label
        self._key, self._reader_pk, self._limits, self._random = key, reader_pk, limits, random
        self._profile, self._profile_id = profile, profile.profile_id()

    def tag(self, draft: Draft) -> bytes:
        """Return a tag that is equal for equal drafts to this label by this key: an HMAC with the secret key."""
        mac = hmac.new(self._key.seed, b"veen/draft-tag", hashlib.sha256)
        parts: list[bytes | None] = [self.label, self._reader_pk, draft.body, draft.schema, draft.parent]
        parts.append(None if draft.expires_at is None else str(draft.expires_at).encode())
        for attachment in draft.attachments:
            parts += [attachment.data, (attachment.name or "").encode(), (attachment.media_type or "").encode()]
        for part in parts:
            mac.update(b"-" if part is None else b"%d:" % len(part) + part)
        return mac.digest()

    def keep(self, draft: Draft, raw: bytes) -> bytes:
        """Seal a draft for this identity, in case the hub refuses its message `raw`; b"" if it is too large."""
        if sum(len(attachment.data) for attachment in draft.attachments) > MAX_KEPT_BYTES:
            return b""
        attached: list[cbor.Item] = [[item.data, item.name, item.media_type] for item in draft.attachments]
        tree = [draft.body, draft.schema, draft.parent, draft.expires_at, attached, draft.reader_pk]
        nonce = self._random(aead.NONCE_BYTES)
        return nonce + aead.seal(self._own_key(), nonce, H(raw), cbor.encode(tree))

    def restore(self, sealed: bytes, raw: bytes) -> Draft | None:
        """Return the draft that `keep` sealed with the message `raw`; None if it is another one, or was altered."""
        try:
            data = aead.open_(self._own_key(), sealed[: aead.NONCE_BYTES], H(raw), sealed[aead.NONCE_BYTES :])
        except (OpenError, ValueError):
            return None
        body, schema, parent, expires_at, attached, reader_pk = cast("list[Any]", cbor.decode(data))
        return Draft(
            body=body,
            schema=schema,
            parent=parent,
            expires_at=expires_at,
            attachments=tuple(Attach(data=data, name=name, media_type=media) for data, name, media in attached),
            reader_pk=reader_pk,
        )

    def _own_key(self) -> bytes:
        return hkdf.hkdf(self._key.seed, b"", b"veen/waiting-draft", aead.KEY_BYTES)

    def seal(
        self, draft: Draft, *, client_seq: int, prev_ack: int, auth_ref: bytes | None, reader_pk: bytes | None = None
    ) -> Prepared:
        """Seal a draft. A LimitError names the field that is too large. `reader_pk` overrides the usual key."""
        binding = Binding(
            profile_id=self._profile_id,
            label=self.label,
            client_id=self._key.public,
            client_seq=client_seq,
            prev_ack=prev_ack,
            auth_ref=auth_ref,
        )
        if draft.expires_at is None and self._expiry is not None:
            draft = replace(draft, expires_at=self._expiry())
        sealed = seal(
            draft.reader_pk or reader_pk or self._reader_pk,
            binding,
            draft.header(auth_ref),
            draft.body_to_seal(),
            ikm=self._random(_IKM_BYTES),
            pad_block=self._profile.pad_block,
            attachments=[attachment.data for attachment in draft.attachments],
            limits=self._limits,
        )
        msg = Msg.compose(
            self._key,
            profile_id=self._profile_id,
            label=self.label,
            client_seq=client_seq,
            prev_ack=prev_ack,
            auth_ref=auth_ref,
            ciphertext=sealed.ciphertext,
        )
        raw = msg.to_bytes()
        if len(raw) > self._limits.max_msg_bytes:
            raise LimitError("max_msg_bytes", len(raw), self._limits.max_msg_bytes)
        attachments = sealed.attachments if draft.attachments else None
        return Prepared(raw, self.label, client_seq, msg.leaf_hash(), attachments, auth_ref)


class SendRule(Protocol):
    """A rule that layers above the client pass to `Client.connect`; the client itself has none."""

    async def check(
        self, client: "Client", keys: StreamKeys, drafts: Sequence[Draft]
    ) -> Sequence[LocalError | None] | None:
        """Return a refusal or None for each draft; None for all of them at once if the rule is not about the stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelAdvice:
    """The advice of a deployment for one label. The profiles of the hub limit what is possible."""

    pad_blocks: tuple[int, ...] = ()  # the first one that a profile of the hub has is used
    retention_sec: int | None = None  # time after which readers may forget a message without an expiry
    per_sec: int | None = None  # the greatest number of messages per second of this sender


class SendAdvisor(Protocol):
    """A source of advice, asked once for each label of a connection."""

    async def advice(self, client: "Client", keys: StreamKeys, label: bytes) -> LabelAdvice | None: ...
