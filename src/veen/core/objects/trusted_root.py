"""Trusted keys: hub keys that are trusted independently of the log at hand, and keys that these introduce (D-42).

A log names its own hub. That proves nothing, because a forger of a log forges its identity as well. Trust starts from
pinned keys and extends to a key that a `key.rotate` record introduces, if the key which that record retires is trusted
and signed it. Trust never extends backwards: anybody can create a key and sign a record with it that introduces a
trusted key. A pinned hub_id is a pin of the first key, of which it is the hash. A pinned root is trusted for all keys
of an identity that it signed (D-121).

Text form of a pin: `ed25519:HEX` is a key of a hub, `root:ed25519:HEX` a root key that signs identities (D-121).

HEX are the 64 digits of the public key. `ed25519:` may be omitted in input.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self

from veen.core.errors import SignatureError
from veen.core.objects.control import ControlRecord, KeyRotate
from veen.core.objects.identity import HubIdentity, key_id_of

_ROOT: Final = "root:"
_PREFIX: Final = "ed25519:"
_DIGITS: Final = re.compile(r"[0-9A-Fa-f]{64}")


@dataclass(frozen=True, slots=True)
class PinnedKey:
    """The key of a pin, and its kind."""

    public: bytes
    is_root: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a pin; raise ValueError with the expected form."""
        rest = text.strip()
        is_root = rest.startswith(_ROOT)
        digits = rest.removeprefix(_ROOT).removeprefix(_PREFIX)
        if not _DIGITS.fullmatch(digits):
            raise ValueError(
                f"expected ed25519: and 64 hex digits, or root:ed25519: and 64 hex digits for the root key of an"
                f" ephemeral hub, found {text[:100]!r}"
            )
        return cls(bytes.fromhex(digits), is_root)

    def to_text(self) -> str:
        return f"{_ROOT if self.is_root else ''}{_PREFIX}{self.public.hex()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedKeys:
    """At least one pinned key, or a root; the hub_id as well, if it is known."""

    hub_pks: tuple[bytes, ...] = ()  # empty if and only if a root is pinned
    hub_id: bytes | None = None
    root_pk: bytes | None = None

    def __post_init__(self) -> None:
        assert bool(self.hub_pks) == (self.root_pk is None)  # noqa: S101 - otherwise everything would be trusted

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `ed25519:HUB_PK` or `root:ed25519:ROOT_PK`, optionally followed by `:HUB_ID`; each 64 hex digits."""
        key, _, hub_id = text.strip().rpartition(":")
        whole = key in ("", "root", "ed25519", "root:ed25519")  # the last part is the key itself
        try:
            pinned = PinnedKey.parse(text if whole else key)
            fixed = None if whole else bytes.fromhex(hub_id)
            if fixed is not None and len(fixed) != 32:
                raise ValueError("a hub_id has 32 bytes")
        except ValueError:
            raise ValueError(
                "expected ed25519:HUB_PK or root:ed25519:ROOT_PK, each perhaps with :HUB_ID, of 64 hex digits each,"
                f" found {text[:200]!r}"
            ) from None
        if pinned.is_root:
            return cls(root_pk=pinned.public, hub_id=fixed)
        return cls(hub_pks=(pinned.public,), hub_id=fixed)

    def to_text(self) -> str:
        """Return the form that `parse` reads, if there is one key."""
        pinned = [PinnedKey(hub_pk) for hub_pk in self.hub_pks]
        if self.root_pk is not None:
            pinned = [PinnedKey(self.root_pk, is_root=True)]
        keys = ", ".join(key.to_text() for key in pinned)
        return keys if self.hub_id is None else f"{keys}:{self.hub_id.hex()}"

    def fault(
        self,
        identity: HubIdentity | None,
        records: Iterable[ControlRecord],
        signatures: Iterable[bytes] = (),
    ) -> str | None:
        """Return the reason why not all keys of `identity` are trusted; None if they are.

        `records` are those of its control journal, `signatures` those that its directory has over the identity.
        """
        if identity is None:
            return "the log does not name its hub"
        if self.hub_id is not None and identity.hub_id != self.hub_id:
            return f"this is the log of hub {identity.hub_id.hex()}, not of the pinned {self.hub_id.hex()}"
        if self.root_pk is not None:
            if any(_vouches(self.root_pk, identity, signature) for signature in signatures):
                return None
            root = PinnedKey(self.root_pk, is_root=True).to_text()
            return f"the pinned root {root} did not sign the identity of this hub, {identity.hub_id.hex()}"
        listed = {key.hub_pk for key in identity.keys}
        if missing := [hub_pk for hub_pk in self.hub_pks if hub_pk not in listed]:
            return (
                f"the pinned key {PinnedKey(missing[0]).to_text()} is not a key of this hub, "
                f"whose current key is {PinnedKey(identity.current.hub_pk).to_text()}"
            )
        trusted = self.follow_rotations(identity, records)
        for hub_pk in self.hub_pks:
            if hub_pk not in trusted:
                return f"no chain of rotations leads from the pinned hub_id to the pinned key {key_id_of(hub_pk)}"
        for key in identity.keys:
            if key.hub_pk not in trusted:
                return (
                    f"no pinned key introduced key {key.key_id} of this hub; if it is an older one, pin the first key "
                    "of the hub, or its hub_id as well"
                )
        return None

    def follow_rotations(self, identity: HubIdentity, records: Iterable[ControlRecord]) -> set[bytes]:
        """Return the keys that trust extends to; `identity` has the pinned hub_id, if one is pinned."""
        # A pinned hub_id leads to the first key, and the pinned key must then be reached from there as well.
        trusted = set(self.hub_pks) if self.hub_id is None else {identity.keys[0].hub_pk}
        for record in records:
            rotation = record.body
            if isinstance(rotation, KeyRotate) and rotation.retired_pk in trusted and _is_signed(record, rotation):
                trusted.add(rotation.hub_pk)
        return trusted


def _is_signed(record: ControlRecord, rotation: KeyRotate) -> bool:
    try:
        record.verify(rotation.retired_pk or b"")
    except SignatureError:
        return False
    return True


def _vouches(root_pk: bytes, identity: HubIdentity, signature: bytes) -> bool:
    try:
        identity.verify(signature, root_pk)
    except SignatureError:
        return False
    return True
