"""Giving a hub its next key, so that a cut at any point leaves the old identity or the new one (spec §8.4, D-41, D-42).

    1  the private key       cut off before the record, nothing happened: a key nobody knows of is left
    2  the key.rotate record in the control journal, signed by the key of its time; from here on it has happened
    3  key map, identity, signature; cut off in between, `finish_rotation` completes it

The new key is valid from a time that no entry has before all three are durable: whoever rotates sees to that. So no
signature by it can exist that the identity files do not account for.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from veen.core.crypto.ed25519 import SIGNATURE_BYTES, SigningKey
from veen.core.errors import StatedError
from veen.core.objects.control import KeyRotate
from veen.core.objects.identity import HubIdentity, IdentityError, canonical_json, key_id_of
from veen.io.errors import StorageError
from veen.io.local import Fs
from veen.storage import layout
from veen.storage.keys.identity import HubKeys, read_key, write_key
from veen.storage.scan import read_file

_KEY_SUFFIX: Final = ".key"
_MAX_TIME: Final = 2**63 - 1


class RotationUnderWayError(IdentityError):
    """The previous rotation has not ended: the chain of keys would break, or three keys would overlap."""

    hint = "Try again after that time; a key signs the record that names its successor, so it must be valid itself."

    def __init__(self, what: str, until: int) -> None:
        super(StatedError, self).__init__(what, until)  # args mirror __init__, so the error survives pickling
        self.what, self.until = what, until

    def __str__(self) -> str:
        return f"{self.what} {self.until}"


class TwoRotationsError(IdentityError, code="E.STORAGE.ROTATIONS"):
    """Two key.rotate records retire one key, and the private keys of both exist."""


def validity_of_next(identity: HubIdentity, hub_ts: int, lead_seconds: int, overlap_seconds: int) -> tuple[int, int]:
    """Return the time from which a key introduced at hub_ts signs, and until which the present one does.

    RotationUnderWayError is raised until the present key is valid, since it must sign the record that retires it
    (D-174), and while it overlaps with the previous one: checkpoints are witnessed by one old and one new key (D-37).
    """
    if identity.current.valid_from > hub_ts:
        raise RotationUnderWayError("the present key signs only from", identity.current.valid_from)
    begins = hub_ts + lead_seconds
    if busy := identity.witnesses_at(begins):
        until = min(key.valid_until for key in busy if key.valid_until is not None)
        raise RotationUnderWayError("the rotation before this one lasts until", until)
    if overlap_seconds > _MAX_TIME - begins:
        raise IdentityError(f"an overlap of {overlap_seconds} seconds never ends")
    return begins, begins + overlap_seconds


def next_identity(
    identity: HubIdentity, hub_pk: bytes, *, hub_ts: int, lead_seconds: int, overlap_seconds: int
) -> HubIdentity:
    """Return the identity with one more key, introduced at hub_ts."""
    begins, until = validity_of_next(identity, hub_ts, lead_seconds, overlap_seconds)
    return identity.with_rotation(hub_pk, valid_from=begins, overlap_until=until)


def read_given_key(fs: Fs, identity: HubIdentity) -> SigningKey:
    """Read the one private key that was put beside those of the identity, for hubs that write none themselves."""
    own_names = {f"{key.key_id}{_KEY_SUFFIX}" for key in identity.keys}
    names = [name for name in fs.list(layout.KEYS) if name.endswith(_KEY_SUFFIX) and name not in own_names]
    if len(names) != 1:
        raise StorageError(
            f"{layout.KEYS}: {len(names)} private keys found besides those in use, expected exactly one;"
            " create one with `veen hub key create --keys-dir DIR`"
        )
    return read_key(fs, names[0].removesuffix(_KEY_SUFFIX))


def rotate(
    fs: Fs,
    keys: HubKeys,
    new_seed: bytes,
    *,
    hub_ts: int,
    lead_seconds: int,
    overlap_seconds: int,
    journal: Callable[[KeyRotate], object],
    root: SigningKey | None = None,
) -> tuple[HubKeys, KeyRotate]:
    """Carry out all steps. `journal` must return only after the record is durable, signed by the key of the time."""
    new = SigningKey(new_seed)
    root = root or keys.root
    check_signer(fs, root or new)
    identity = next_identity(
        keys.identity, new.public, hub_ts=hub_ts, lead_seconds=lead_seconds, overlap_seconds=overlap_seconds
    )
    body = identity.rotations()[-1]
    write_key(fs, new)
    journal(body)
    publish(fs, identity, root or new)
    return replace(keys, identity=identity, private={**keys.private, new.public: new}), body


def check_signer(fs: Fs, signer: SigningKey) -> None:
    """Raise StorageError if a root key signs the identity and is not available."""
    if fs.exists(layout.ROOT) and read_file(fs, layout.ROOT) != f"{signer.public.hex()}\n".encode():
        raise StorageError(
            f"{layout.ROOT}: a root key signs this identity and is missing; rotate while the hub runs with it"
        )


def publish(fs: Fs, identity: HubIdentity, signer: SigningKey) -> None:
    """Write map, both signatures, file and signature, so that the files verify after each step."""
    check_signer(fs, signer)
    signature = identity.sign(signer)
    before = read_file(fs, layout.IDENTITY_SIG)[:SIGNATURE_BYTES]
    fs.replace(layout.KEY_MAP, canonical_json(identity.key_map()))
    fs.replace(layout.IDENTITY_SIG, before + signature)
    fs.replace(layout.IDENTITY, identity.to_bytes())
    fs.replace(layout.IDENTITY_SIG, signature)


def is_settled(fs: Fs, identity: HubIdentity) -> bool:
    """Return True if no rotation was interrupted: each private key is listed, and the identity has one signature."""
    own_names = {f"{key.key_id}{_KEY_SUFFIX}" for key in identity.keys}
    names = (name for name in fs.list(layout.KEYS) if name.endswith(_KEY_SUFFIX))
    return own_names.issuperset(names) and len(read_file(fs, layout.IDENTITY_SIG)) == SIGNATURE_BYTES


def finish_rotation(fs: Fs, keys: HubKeys, journaled: Iterable[KeyRotate], root: SigningKey | None = None) -> HubKeys:
    """Apply the key.rotate records of the control journal to the identity, and complete an interrupted rotation."""
    identity, private = keys.identity, dict(keys.private)
    public_keys = {key.hub_pk for key in identity.keys}
    signer = root = root or keys.root
    for body in journaled:
        if body.hub_pk not in public_keys:
            if body.retired_pk not in (None, identity.current.hub_pk) and body.retired_pk in public_keys:
                if fs.exists(layout.key(key_id_of(body.hub_pk))):
                    raise TwoRotationsError(
                        f"the control journal introduces key {key_id_of(body.hub_pk)} in the place of a key that"
                        " another record retires: two rotations ran at once; `veen hub key repair DIR` repairs it"
                    )
                continue  # void: a repair removed its key
            identity = identity.with_rotation(
                body.hub_pk, valid_from=body.valid_from, overlap_until=body.retired_until or body.valid_from
            )
            signer = private[body.hub_pk] = read_key(fs, key_id_of(body.hub_pk))
    if identity is not keys.identity:
        publish(fs, identity, root or signer or private[identity.current.hub_pk])
    elif len(read_file(fs, layout.IDENTITY_SIG)) != SIGNATURE_BYTES:  # or the next rotation would keep a wrong one
        fs.replace(layout.IDENTITY_SIG, identity.sign(root or private[identity.current.hub_pk]))
    return replace(keys, identity=identity, private=private)
