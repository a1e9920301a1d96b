"""The identity of a hub in its data directory, and the keys it signs with (spec §8.4, D-42).

    hub-identity.json         all keys over time, canonical; its existence is what makes a directory a hub's
    hub-identity.sig          signature over it by the current key, or by an offline root key
    hub-root.pk               that root key, if there is one
    hub-key-map.json          key_id -> hub_pk
    keys/<key_id>.key         private keys as hex, readable by the owner only; absent from a verifier's copy
    keys/birth.json           until when an empty directory may begin with the key beside it (D-121)
    checkpoint-binding.json   the newest checkpoint of each label, with the key that signed it

A hub never invents an identity: if one is configured and its key is not there, it does not start. Each step of
creation and rotation leaves, when cut off, either the old identity or the new one.

A data directory with its private keys elsewhere, as in a mounted Secret (D-42, spec-4 §4.2).
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from veen.core.crypto.ed25519 import SEED_BYTES, SIGNATURE_BYTES, SigningKey
from veen.core.errors import FormatError, SignatureError, StatedError
from veen.core.objects.identity import (
    BIRTH_SECONDS,
    Anchoring,
    BirthCertificate,
    HubIdentity,
    IdentityError,
    canonical_json,
    key_id_of,
    read_canonical_json,
)
from veen.io.errors import CorruptError, StorageError
from veen.io.local import File, Fs, OsFs, mode_of, open_mounted
from veen.storage import layout
from veen.storage.copies.unfinished import check_finished
from veen.storage.index import Index
from veen.storage.scan import read_file


class MissingIdentityError(StorageError):
    """The data directory has no identity."""

    hint = "Create one with `veen hub key create`, or restore hub-identity.json and keys/ from a copy of this hub."


class BlankLogError(StorageError, code="E.STORAGE.BLANK_LOG"):
    """A configured key in a data directory without a log: the key may have signed a log already (D-121)."""


class MissingKeyError(StorageError):
    """A private key that the hub must sign with is missing (D-41, D-42)."""

    hint = "Restore the file from a backup. A new key would be another hub, or needs the old one to rotate."

    def __init__(self, key_id: str) -> None:
        super(StatedError, self).__init__(key_id)
        self.key_id = key_id

    def __str__(self) -> str:
        return f"{layout.key(self.key_id)}: the private key is missing"


class KeyExposedError(StorageError):
    """A private key that other users of the machine can read or replace."""

    hint = "Run `chmod 600` on the file. If others could read it for some time, rotate: veen hub key rotate."

    def __init__(self, path: str, mode: int) -> None:
        super(StatedError, self).__init__(path, mode)
        self.path, self.mode = path, mode

    def __str__(self) -> str:
        return f"{self.path}: other users may access this private key (mode {self.mode:04o}), so it is not used"


@dataclass(frozen=True, slots=True)
class HubKeys:
    """An identity with its available private keys."""

    identity: HubIdentity
    private: Mapping[bytes, SigningKey]  # by hub_pk
    root: SigningKey | None = None  # signs the identity in the place of its current key, if it is there

    def signing_key_at(self, hub_ts: int) -> SigningKey:
        """Return the key that signs at a time; raise MissingKeyError if it was retired and removed (key_retired)."""
        return self._private(self.identity.signing_key_at(hub_ts).hub_pk)

    def witnesses_at(self, hub_ts: int) -> list[SigningKey]:
        """Return the keys that witness a checkpoint during a rotation, old before new (D-37)."""
        return [self._private(key.hub_pk) for key in self.identity.witnesses_at(hub_ts)]

    def _private(self, hub_pk: bytes) -> SigningKey:
        try:
            return self.private[hub_pk]
        except KeyError:
            raise MissingKeyError(key_id_of(hub_pk)) from None


# --- reading -----------------------------------------------------------------------------------------------


def exists(fs: Fs) -> bool:
    return fs.exists(layout.IDENTITY)


def read_identity(fs: Fs, root_pk: bytes | None = None, *, key_map: bool = True) -> HubIdentity:
    """Read the identity and check its signature and, by default, its key map. Private keys are not read."""
    identity = _read_file(fs)
    _check_signature(fs, identity, root_pk or read_root(fs))
    if key_map:
        _check_key_map(fs, identity)
    return identity


def _read_file(fs: Fs) -> HubIdentity:
    check_finished(fs)
    if not exists(fs):
        raise MissingIdentityError(f"{layout.IDENTITY}: the file is missing")
    try:
        return HubIdentity.from_bytes(read_file(fs, layout.IDENTITY))
    except (FormatError, IdentityError) as exc:
        raise CorruptError(layout.IDENTITY, 0, str(exc)) from exc


def read_root(fs: Fs) -> bytes | None:
    """Return the root key that the directory itself names; it proves no more than the current key does."""
    if not fs.exists(layout.ROOT):
        return None
    data = read_file(fs, layout.ROOT)
    try:
        root_pk = bytes.fromhex(data.decode("ascii"))
    except ValueError:
        root_pk = b""
    if len(root_pk) != SEED_BYTES or _key_file(root_pk) != data:
        raise CorruptError(layout.ROOT, 0, "not a public key")
    return root_pk


def check_birth(fs: Fs, hub_pk: bytes, now: int) -> None:
    """Raise BlankLogError unless the certificate beside a key allows it to begin a log now."""
    where = f"key {key_id_of(hub_pk)} is configured, but the data directory has no log"
    if not fs.exists(layout.BIRTH):
        raise BlankLogError(f"{where}, and no birth certificate lies beside the key")
    try:
        certificate = BirthCertificate.from_bytes(read_file(fs, layout.BIRTH))
        certificate.verify()
    except (FormatError, SignatureError) as exc:
        raise BlankLogError(f"{where}, and {layout.BIRTH} cannot be used: {exc}") from exc
    if certificate.hub_pk != hub_pk:
        raise BlankLogError(f"{where}, and {layout.BIRTH} is for key {key_id_of(certificate.hub_pk)}")
    if now > certificate.not_after:
        raise BlankLogError(f"{where}, and {layout.BIRTH} was valid until {certificate.not_after}, it is {now} now")


def read_signatures(fs: Fs) -> tuple[bytes, ...]:
    """Return the signatures in hub-identity.sig; raise CorruptError if it is missing or of another size."""
    data = _read_or_missing(fs, layout.IDENTITY_SIG)
    # Two signatures while a rotation is under way: for the file as it was and as it will be.
    if len(data) not in (SIGNATURE_BYTES, 2 * SIGNATURE_BYTES):
        raise CorruptError(layout.IDENTITY_SIG, 0, f"a signature has {SIGNATURE_BYTES} bytes, found {len(data)}")
    return tuple(data[start : start + SIGNATURE_BYTES] for start in range(0, len(data), SIGNATURE_BYTES))


def _check_signature(fs: Fs, identity: HubIdentity, root_pk: bytes | None) -> None:
    fault: SignatureError | None = None
    for signature in read_signatures(fs):
        try:
            identity.verify(signature, root_pk)
        except SignatureError as exc:
            fault = exc
        else:
            return
    raise CorruptError(layout.IDENTITY_SIG, 0, str(fault))


def _check_key_map(fs: Fs, identity: HubIdentity) -> None:
    """Check that every key of the identity is in the map; it may have more during a rotation."""
    try:
        mapped = read_canonical_json(_read_or_missing(fs, layout.KEY_MAP), "hub-key-map")
    except FormatError as exc:
        raise CorruptError(layout.KEY_MAP, 0, str(exc)) from exc
    if type(mapped) is not dict or any(_bad_mapping(*pair) for pair in mapped.items()):
        raise CorruptError(layout.KEY_MAP, 0, "a key_id is not that of its hub_pk")
    for key_id, hub_pk in identity.key_map().items():
        if mapped.get(key_id) != hub_pk:
            raise CorruptError(layout.KEY_MAP, 0, f"key {key_id} is missing")


def _bad_mapping(key_id: str, hub_pk: Any) -> bool:
    try:
        return key_id_of(bytes.fromhex(hub_pk)) != key_id or hub_pk != hub_pk.lower()
    except (TypeError, ValueError):
        return True


def _read_or_missing(fs: Fs, path: str) -> bytes:
    try:
        return read_file(fs, path)
    except FileNotFoundError as exc:
        raise CorruptError(path, 0, "the file is missing") from exc


def read_key(fs: Fs, key_id: str) -> SigningKey:
    """Read a private key file; raise MissingKeyError, KeyExposedError, or CorruptError if it is another key."""
    path = layout.key(key_id)
    if (mode := fs.read_exposed_mode(path)) is not None:
        raise KeyExposedError(path, mode)
    try:
        data = read_file(fs, path)
    except FileNotFoundError as exc:
        raise MissingKeyError(key_id) from exc
    try:
        seed = bytes.fromhex(data[:-1].decode("ascii"))
        key = SigningKey(seed) if _key_file(seed) == data else None
    except ValueError:
        key = None
    if key is None or key_id_of(key.public) != key_id:
        raise CorruptError(path, 0, "not the private key that this name stands for")
    return key


def load(fs: Fs, *, now: int | None = None, root_pk: bytes | None = None) -> HubKeys:
    """Read identity and keys for a start; raise if a key that it must sign with, now or later, is missing."""
    identity = read_identity(fs, root_pk)
    private: dict[bytes, SigningKey] = {}
    for key in identity.keys:
        needed = key.valid_until is None or (now is not None and now < key.valid_until)
        try:
            private[key.hub_pk] = read_key(fs, key.key_id)
        except MissingKeyError:
            if needed:
                raise
    return HubKeys(identity, private)


# --- writing -----------------------------------------------------------------------------------------------


def create(
    fs: Fs,
    seed: bytes,
    now: int,
    *,
    anchoring: Anchoring = "data-directory",
    root: SigningKey | None = None,
    given_key: bool = False,
) -> HubKeys:
    """Create the identity of a directory that has none. An interrupted call may be repeated with the same key.

    With `given_key` the key and its certificate exist already, in a directory that is not written to.
    """
    if exists(fs):
        raise StorageError(f"{layout.IDENTITY}: this directory has an identity already")
    key = SigningKey(seed)
    identity = HubIdentity.first(key.public, valid_from=now, anchoring=anchoring)
    if not given_key:
        fs.make_dir(layout.KEYS)
        fs.replace(layout.BIRTH, BirthCertificate.issue(key, now + BIRTH_SECONDS).to_bytes())
        write_key(fs, key)
    fs.replace(layout.KEY_MAP, canonical_json(identity.key_map()))
    if root is not None:
        fs.replace(layout.ROOT, _key_file(root.public))
    fs.replace(layout.IDENTITY_SIG, identity.sign(root or key))
    fs.replace(layout.IDENTITY, identity.to_bytes())  # from here on the directory has an identity
    if not given_key:  # a copy of the keys alone must not begin a second log
        remove_birth(fs)
    return HubKeys(identity, {key.public: key}, root)


def remove_birth(fs: Fs) -> None:
    fs.remove(layout.BIRTH)
    fs.sync_dir(layout.KEYS)


def repair(fs: Fs) -> bool:
    """Write hub-key-map.json again from the identity; return True if that was necessary."""
    identity = _read_file(fs)
    wanted = canonical_json(identity.key_map())
    if fs.exists(layout.KEY_MAP) and read_file(fs, layout.KEY_MAP) == wanted:
        return False
    fs.replace(layout.KEY_MAP, wanted)
    return True


def _key_file(seed: bytes) -> bytes:
    return f"{seed.hex()}\n".encode()


def write_key(fs: Fs, key: SigningKey) -> None:
    """Write a private key; durable on return."""
    fs.replace(layout.key(key_id_of(key.public)), _key_file(key.seed), private=True)


def remove_key(fs: Fs, key: SigningKey) -> None:
    """Remove a private key that no record and no identity names; durable on return."""
    fs.remove(layout.key(key_id_of(key.public)))
    fs.sync_dir(layout.KEYS)


# --- checkpoint-binding.json -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CheckpointBinding:
    """The newest persisted checkpoint of a label, and with it of a stream in an epoch (HID-11)."""

    label: bytes
    epoch: int
    upto_seq: int
    mmr_root: bytes
    key_id: str

    def to_json(self) -> dict[str, Any]:
        return {
            "label": self.label.hex(),
            "epoch": self.epoch,
            "upto_seq": self.upto_seq,
            "mmr_root": self.mmr_root.hex(),
            "key_id": self.key_id,
            "file": layout.checkpoint(self.label, self.upto_seq),
        }


def bindings(identity: HubIdentity, index: Index) -> list[CheckpointBinding]:
    """Return the bindings as of the last retirement: a checkpoint is saved once its chunk is durable (D-39)."""
    return [
        CheckpointBinding(
            row.label, row.epoch, chunk.end_seq, chunk.mmr_root, identity.signing_key_at(chunk.last_ts).key_id
        )
        for row, chunk in index.last_sealed()
    ]


def write_binding(fs: Fs, identity: HubIdentity, index: Index) -> None:
    """Write checkpoint-binding.json. It is rebuildable, so it may be written at any time."""
    fs.replace(layout.CHECKPOINT_BINDING, _encode_binding(identity, bindings(identity, index)))


def _encode_binding(identity: HubIdentity, rows: Iterable[CheckpointBinding]) -> bytes:
    checkpoints = [row.to_json() for row in sorted(rows, key=lambda row: row.label)]
    return canonical_json({"ver": 1, "hub_id": identity.hub_id.hex(), "checkpoints": checkpoints})


def read_binding(fs: Fs, identity: HubIdentity) -> list[CheckpointBinding]:
    """Accept the canonical form only, bound to this identity; raise CorruptError otherwise."""
    data = read_file(fs, layout.CHECKPOINT_BINDING)
    try:
        # Its size grows with the labels of the hub; it is our own file, so memory is the only bound.
        value = read_canonical_json(data, "checkpoint-binding", max_bytes=len(data))
        rows = [
            CheckpointBinding(
                bytes.fromhex(row["label"]),
                row["epoch"],
                row["upto_seq"],
                bytes.fromhex(row["mmr_root"]),
                row["key_id"],
            )
            for row in value["checkpoints"]
        ]
        canonical = _encode_binding(identity, rows)
    except (FormatError, KeyError, TypeError, ValueError) as exc:
        raise CorruptError(layout.CHECKPOINT_BINDING, 0, f"not a checkpoint binding: {exc}") from exc
    if canonical != data:
        raise CorruptError(layout.CHECKPOINT_BINDING, 0, "not the canonical binding of this hub")
    return rows


_PREFIX = f"{layout.KEYS}/"


class KeyDirFs(OsFs):
    """An `OsFs` that reads the files below `keys/` from another directory, which is never written to."""

    def __init__(self, root: Path, keys: Path) -> None:
        super().__init__(root)
        self._keys = keys

    def open(self, path: str, *, create: bool = False) -> File:
        if path.startswith(_PREFIX):
            return open_mounted(self._keys / path.removeprefix(_PREFIX))
        return super().open(path, create=create)

    def exists(self, path: str) -> bool:
        return (self._keys / path.removeprefix(_PREFIX)).exists() if path.startswith(_PREFIX) else super().exists(path)

    def read_exposed_mode(self, path: str) -> int | None:
        inside = path.startswith(_PREFIX)
        return mode_of(self._keys / path.removeprefix(_PREFIX)) if inside else super().read_exposed_mode(path)

    def list(self, directory: str) -> list[str]:
        if directory == layout.KEYS:  # a Secret is mounted through links whose names begin with two dots
            return sorted(path.name for path in self._keys.iterdir() if not path.name.startswith(".."))
        return super().list(directory)

    def make_dir(self, directory: str) -> None:
        if directory != layout.KEYS:
            super().make_dir(directory)

    def sync_dir(self, directory: str) -> None:
        if directory != layout.KEYS:
            super().sync_dir(directory)

    def replace(self, path: str, data: bytes, *, private: bool = False) -> None:
        if not path.startswith(_PREFIX):
            super().replace(path, data, private=private)
            return
        mounted = self._keys / path.removeprefix(_PREFIX)
        if not mounted.exists() or mounted.read_bytes() != data:
            raise StorageError(f"{mounted}: the key is missing, and keys are not written to this directory")


def write_private_key(directory: Path, key: SigningKey) -> Path:
    """Write a private key where a hub with `keys_dir` finds it; never replace one."""
    return _write_new(directory, key_file_name(key.public), f"{key.seed.hex()}\n".encode())


def key_file_name(hub_pk: bytes) -> str:
    """Return the name of the file of a private key, by its public half."""
    return layout.key(key_id_of(hub_pk)).removeprefix(_PREFIX)


def write_birth(directory: Path, key: SigningKey, not_after: int) -> Path:
    """Write the certificate with which the key beside it may begin a log; replace an older one."""
    name = layout.BIRTH.removeprefix(_PREFIX)
    (directory / name).unlink(missing_ok=True)
    return _write_new(directory, name, BirthCertificate.issue(key, not_after).to_bytes())


def _write_new(directory: Path, name: str, data: bytes) -> Path:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / name
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)
    return path
