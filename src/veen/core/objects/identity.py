"""Identity of a hub: its keys over time, and the statements that each may sign (spec §8.4, D-21, D-37, D-41, D-42).

An identity begins with one key, which fixes hub_id permanently. Rotation adds keys; none is ever removed, so that old
receipts stay verifiable. A key is valid in [valid_from, valid_until). All rules here are pure functions of the identity
and of the time that a statement itself carries.

The birth certificate: permission for a hub key to begin a log in an empty data directory, until a time (D-121).

A key that already signed position 1 of a log must not sign it again, so a hub with a configured key does not begin in
an empty directory by itself. The certificate is made with the key and says until when a first start may take place.

    sig = Ed25519 by hub_pk over Ht("veen/birth", hub_pk ‖ u64be(not_after))
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Self

from veen.core.crypto import ed25519
from veen.core.errors import FieldSizeError, MalformedError, SignatureError, VerifyError, VersionError
from veen.core.hashing import H, Ht, u64be
from veen.core.labels import hub_id_of
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import ControlRecord, KeyRotate
from veen.core.objects.receipt import Receipt

Anchoring = Literal["data-directory", "fingerprint", "certificate"]
ANCHORINGS: Final[tuple[Anchoring, ...]] = ("data-directory", "fingerprint", "certificate")  # spec §8.4

_WHAT: Final = "hub-identity"
_MAX_BYTES: Final = 1024 * 1024
_MAX_KEYS: Final = 1024
_SIG_TAG: Final = "veen/hub-identity"


class IdentityError(VerifyError):
    """The keys of a hub do not form one identity, or none of them covers a statement."""

    hint = "Compare hub_id with what the hub's operator published; restore the identity files from a good copy."


def key_id_of(hub_pk: bytes) -> str:
    """Return the short name of a key in files and messages (D-42)."""
    return H(hub_pk).hex()[:16]


def canonical_json(value: Any) -> bytes:
    """Return the one encoding of our JSON artifacts: sorted keys, no spaces, UTF-8 (D-42)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def read_canonical_json(data: bytes, what: str, *, max_bytes: int = _MAX_BYTES) -> Any:
    """Return the value in `data`; raise FormatError unless the bytes are those that `canonical_json` writes."""
    if len(data) > max_bytes:
        raise FieldSizeError(what, f"at most {max_bytes} bytes", len(data))
    try:
        value = json.loads(data)
        canonical = canonical_json(value)
    except (ValueError, RecursionError) as exc:
        raise MalformedError("not JSON", what) from exc
    if canonical != data:
        raise MalformedError("not the canonical JSON form: sorted keys, no spaces, no repeated names", what)
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class HubKey:
    """One key and the time in which it may sign."""

    hub_pk: bytes
    valid_from: int
    valid_until: int | None = None  # the first second in which it may not sign any more

    @property
    def key_id(self) -> str:
        return key_id_of(self.hub_pk)

    def is_valid_at(self, hub_ts: int) -> bool:
        return self.valid_from <= hub_ts and (self.valid_until is None or hub_ts < self.valid_until)

    def is_valid_within(self, start: int, end: int) -> bool:
        """Return True if it is valid at any second of [start, end)."""
        return self.valid_from < end and (self.valid_until is None or start < self.valid_until)

    def to_json(self) -> dict[str, Any]:
        fields = {"key_id": self.key_id, "hub_pk": self.hub_pk.hex(), "valid_from": self.valid_from}
        return fields if self.valid_until is None else {**fields, "valid_until": self.valid_until}

    @classmethod
    def from_json(cls, value: Any) -> Self:
        field = _Members(value, f"{_WHAT}: hub_keys", ("hub_pk", "key_id", "valid_from"), ("valid_until",))
        key = cls(
            hub_pk=field.hex32("hub_pk"),
            valid_from=field.uint("valid_from"),
            valid_until=field.uint("valid_until") if "valid_until" in field.value else None,
        )
        if field.value["key_id"] != key.key_id:
            raise MalformedError(f"key_id is not that of hub_pk, which is {key.key_id}", _WHAT)
        return key


@dataclass(frozen=True, slots=True)
class HubIdentity:
    """All keys a hub ever had, by valid_from and then by hub_pk."""

    keys: tuple[HubKey, ...]
    anchoring: Anchoring = "data-directory"
    # Set where `keys` begin later than the hub: what a pin on a later key believes. Such a value is never written.
    pinned_hub_id: bytes | None = None

    def __post_init__(self) -> None:
        if not 1 <= len(self.keys) <= _MAX_KEYS:
            raise IdentityError(f"a hub has 1 to {_MAX_KEYS} keys, found {len(self.keys)}")
        if self.anchoring not in ANCHORINGS:
            raise IdentityError(f"anchoring is one of {', '.join(ANCHORINGS)}, found {self.anchoring!r}")
        if list(self.keys) != sorted(self.keys, key=lambda key: (key.valid_from, key.hub_pk)):
            raise IdentityError("hub keys are not sorted by valid_from, then hub_pk")
        if len({key.hub_pk for key in self.keys}) != len(self.keys):
            raise IdentityError("a hub key is listed twice")
        for key in self.keys:
            if key.valid_until is not None and key.valid_until <= key.valid_from:
                raise IdentityError(f"key {key.key_id}: its validity ends before it begins")

    @classmethod
    def first(cls, hub_pk: bytes, *, valid_from: int, anchoring: Anchoring = "data-directory") -> Self:
        """Return the identity of a new hub."""
        return cls((HubKey(hub_pk=hub_pk, valid_from=valid_from),), anchoring)

    @property
    def hub_id(self) -> bytes:
        """The hash of the first key: rotation never changes it, another hub_id is another hub (HID-13)."""
        return self.pinned_hub_id or hub_id_of(self.keys[0].hub_pk)

    @property
    def current(self) -> HubKey:
        """The key that joined last; it signs the identity file."""
        return _select_newest(self.keys)

    def key_map(self) -> dict[str, str]:
        """Return hub_pk by key_id, as in hub-key-map.json (HID-10)."""
        return {key.key_id: key.hub_pk.hex() for key in self.keys}

    # --- bytes -----------------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        return canonical_json(
            {
                "ver": 1,
                "hub_id": self.hub_id.hex(),
                "anchoring": self.anchoring,
                "hub_keys": [key.to_json() for key in self.keys],
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Accept the one canonical form; raise FormatError for its form, IdentityError for its content."""
        field = _Members(read_canonical_json(data, _WHAT), _WHAT, ("anchoring", "hub_id", "hub_keys", "ver"))
        if type(ver := field.value["ver"]) is not int or ver != 1:
            raise VersionError(_WHAT, ver) if type(ver) is int else MalformedError("ver is not an integer", _WHAT)
        if type(field.value["hub_keys"]) is not list:
            raise MalformedError("hub_keys is not an array", _WHAT)
        anchoring: Any = field.text("anchoring")  # one of ANCHORINGS: the identity itself refuses others
        hub_id = field.hex32("hub_id")
        identity = cls(tuple(map(HubKey.from_json, field.value["hub_keys"])), anchoring)
        if identity.hub_id != hub_id:
            raise IdentityError("hub_id is not that of the first key (D-21)")
        return identity

    def sign(self, key: ed25519.SigningKey) -> bytes:
        """Return hub-identity.sig, made with the current key or an offline root key (D-42)."""
        return key.sign(Ht(_SIG_TAG, self.to_bytes()))

    def verify(self, signature: bytes, root_pk: bytes | None = None) -> None:
        """Raise SignatureError unless the current key, or the given root key, signed this identity."""
        if not ed25519.verify(root_pk or self.current.hub_pk, Ht(_SIG_TAG, self.to_bytes()), signature):
            signer = "the configured root key" if root_pk else f"its current key {self.current.key_id}"
            raise SignatureError(f"{_WHAT}: the signature is not by {signer}")

    # --- which key, when (D-41) ------------------------------------------------------------------------

    def keys_valid_at(self, hub_ts: int) -> tuple[HubKey, ...]:
        return tuple(key for key in self.keys if key.is_valid_at(hub_ts))

    def keys_valid_in_epoch(self, epoch: int, epoch_sec: int) -> tuple[HubKey, ...]:
        """Return the keys whose validity meets the epoch; all keys where labels do not rotate."""
        if not epoch_sec:
            return self.keys
        return tuple(key for key in self.keys if key.is_valid_within(epoch * epoch_sec, (epoch + 1) * epoch_sec))

    def signing_key_at(self, hub_ts: int) -> HubKey:
        """Return the one key that signs at a time: the greatest valid_from, then the smallest hub_pk (HID-03)."""
        valid = self.keys_valid_at(hub_ts)
        if not valid:
            raise IdentityError(f"no hub key is valid at {hub_ts}")
        return _select_newest(valid)

    def witnesses_at(self, hub_ts: int) -> tuple[HubKey, ...]:
        """Return the keys that witness a checkpoint whose last entry has this time: all that overlap then (D-37)."""
        valid = self.keys_valid_at(hub_ts)
        return valid if len(valid) > 1 else ()

    def verify_receipt(self, receipt: Receipt) -> HubKey:
        """Return the key that signed a receipt and is valid at its hub_ts; raise SignatureError if none is (HID-06)."""
        return self._signer(receipt, self.keys_valid_at(receipt.hub_ts), f"at {receipt.hub_ts}")

    def verify_control(self, record: ControlRecord) -> HubKey:
        return self._signer(record, self.keys_valid_at(record.hub_ts), f"at {record.hub_ts}")

    def verify_rotation(self, record: ControlRecord) -> HubKey:
        """Return the key that signed a key.rotate record; it must be the retired key, which pins can follow (D-174)."""
        signer = self.verify_control(record)
        if isinstance(record.body, KeyRotate) and record.body.retired_pk not in (None, signer.hub_pk):
            raise SignatureError(
                f"{record.KIND}: key {signer.key_id} signed a rotation that retires another key:"
                " clients that pinned an older key do not follow it and must pin the present one (D-174)"
            )
        return signer

    def verify_checkpoint(self, checkpoint: Checkpoint, epoch_sec: int) -> HubKey:
        """Return the key that signed a checkpoint and is valid in its epoch (D-41)."""
        keys = self.keys_valid_in_epoch(checkpoint.epoch, epoch_sec)
        return self._signer(checkpoint, keys, f"in epoch {checkpoint.epoch}")

    def verify_seal(self, checkpoint: Checkpoint, last_ts: int) -> HubKey:
        """Return the key of a persisted checkpoint, a function of log and keys: the time of its last entry fixes it
        (CKPT-06).
        """
        key = self.signing_key_at(last_ts)
        checkpoint.verify(key.hub_pk)
        witnesses = self.witnesses_at(last_ts)
        signatures = checkpoint.witness_sigs or ()
        digest = checkpoint.signing_digest()
        for number, witness in enumerate(witnesses):
            if number >= len(signatures) or not ed25519.verify(witness.hub_pk, digest, signatures[number]):
                raise SignatureError(
                    f"CHECKPOINT {checkpoint.upto_seq}: key {witness.key_id} must witness it during the rotation (D-37)"
                )
        return key

    @staticmethod
    def _signer(signed: Receipt | Checkpoint | ControlRecord, keys: Sequence[HubKey], when: str) -> HubKey:
        for key in reversed(keys):  # the newest first: it is the one that signs while keys overlap
            try:
                signed.verify(key.hub_pk)
            except SignatureError:
                continue
            return key
        raise SignatureError(f"{signed.KIND}: hub_sig is by no key of this hub that is valid {when}")

    # --- rotation (spec §8.4) --------------------------------------------------------------------------

    def with_rotation(self, hub_pk: bytes, *, valid_from: int, overlap_until: int) -> "HubIdentity":
        """Return the identity with a new key from `valid_from` on; the key before it may sign until `overlap_until`."""
        old = self.current
        if valid_from <= old.valid_from:
            raise IdentityError(f"the new key must become valid after {old.valid_from}, when the current one did")
        if overlap_until < valid_from:
            raise IdentityError("the old key would end before the new one begins: no key could sign in between")
        if old.valid_until is not None:
            raise IdentityError(f"key {old.key_id} is already being retired")
        keys = [key if key is not old else replace(key, valid_until=overlap_until) for key in self.keys]
        keys.append(HubKey(hub_pk=hub_pk, valid_from=valid_from))
        return HubIdentity(tuple(sorted(keys, key=lambda key: (key.valid_from, key.hub_pk))), self.anchoring)

    def in_force(self, said: Sequence[KeyRotate]) -> list[KeyRotate]:
        """Return the rotations without those that retire a key which a listed rotation retires.

        Such a record is void: `veen hub key repair` made sure that its key signed nothing.
        """
        listed = self.rotations()
        retired = {body.retired_pk for body in listed}
        return [body for body in said if body in listed or body.retired_pk not in retired]

    def rotations(self) -> list[KeyRotate]:
        """Return the rotations that the control journal must have for the keys after the first, in order."""
        return [
            KeyRotate(
                hub_pk=new.hub_pk, valid_from=new.valid_from, retired_pk=old.hub_pk, retired_until=old.valid_until
            )
            for old, new in zip(self.keys, self.keys[1:], strict=False)
        ]


def _select_newest(keys: Sequence[HubKey]) -> HubKey:
    return min(keys, key=lambda key: (-key.valid_from, key.hub_pk))


class _Members:
    """The members of a JSON object, each of the type it must have."""

    def __init__(self, value: Any, what: str, required: Sequence[str], optional: Sequence[str] = ()) -> None:
        if type(value) is not dict:
            raise MalformedError("expected an object", what)
        for name in required:
            if name not in value:
                raise MalformedError(f"{name} is missing", what)
        for name in value:
            if name not in required and name not in optional:
                raise MalformedError(f"unknown member {name!r}", what)
        self.value: Mapping[str, Any] = value
        self._what = what

    def uint(self, name: str) -> int:
        value = self.value[name]
        if type(value) is not int or not 0 <= value < 2**63:
            raise MalformedError(f"{name} is not an unsigned 63-bit integer", self._what)
        return value

    def text(self, name: str) -> str:
        value = self.value[name]
        if type(value) is not str:
            raise MalformedError(f"{name} is not a text", self._what)
        return value

    def hex32(self, name: str) -> bytes:
        value = self.text(name)
        try:
            data = bytes.fromhex(value)
        except ValueError as exc:
            raise MalformedError(f"{name} is not hex", self._what) from exc
        if data.hex() != value or len(data) != 32:
            raise MalformedError(f"{name} is not 64 lower-case hex digits", self._what)
        return data


BIRTH_SECONDS: Final = 24 * 3600
_CERTIFICATE: Final = "birth certificate"
_MAX_CERTIFICATE_BYTES: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class BirthCertificate:
    hub_pk: bytes
    not_after: int  # the last second in which a blank directory may become this hub's
    sig: bytes

    @classmethod
    def issue(cls, key: ed25519.SigningKey, not_after: int) -> Self:
        return cls(hub_pk=key.public, not_after=not_after, sig=key.sign(_digest(key.public, not_after)))

    def verify(self) -> None:
        if not ed25519.verify(self.hub_pk, _digest(self.hub_pk, self.not_after), self.sig):
            raise SignatureError(f"{_CERTIFICATE}: the signature is not by its key")

    def to_bytes(self) -> bytes:
        return canonical_json(
            {"ver": 1, "hub_pk": self.hub_pk.hex(), "not_after": self.not_after, "sig": self.sig.hex()}
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Accept the one canonical form; raise FormatError otherwise. A final line feed is allowed: people edit
        Secrets.
        """
        value: Any = read_canonical_json(data.removesuffix(b"\n"), _CERTIFICATE, max_bytes=_MAX_CERTIFICATE_BYTES)
        try:
            certificate = cls(
                hub_pk=bytes.fromhex(value["hub_pk"]), not_after=value["not_after"], sig=bytes.fromhex(value["sig"])
            )
            sizes = (len(certificate.hub_pk), len(certificate.sig)) == (32, 64)
            if not sizes or type(certificate.not_after) is not int or not 0 <= certificate.not_after < 2**63:
                raise ValueError
            if certificate.to_bytes() != data.removesuffix(b"\n"):
                raise ValueError
        except (KeyError, TypeError, ValueError) as exc:
            raise MalformedError("expected ver 1, hub_pk, not_after and sig", _CERTIFICATE) from exc
        return certificate


def _digest(hub_pk: bytes, not_after: int) -> bytes:
    return Ht("veen/birth", hub_pk + u64be(not_after))
