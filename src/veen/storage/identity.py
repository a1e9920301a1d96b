"""The identity of a hub in its data directory: who it is, and the keys it signs with (spec §8.4, D-42).

    hub-identity.json         all keys over time, canonical; its existence is what makes a directory a hub's
    hub-identity.sig          signature over it by the current key, or by an offline root key
    hub-key-map.json          key_id -> hub_pk
    keys/<key_id>.key         private keys as hex, readable by the owner only; absent from a verifier's copy
    checkpoint-binding.json   the newest checkpoint of each label, with the key that signed it

A hub never invents an identity: if one is configured and its key is not there, it does not start. Each step of
creation and rotation leaves, when cut off, either the old identity or the new one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from veen.core.ed25519 import SEED_BYTES, SIGNATURE_BYTES, SigningKey
from veen.core.errors import FormatError, SignatureError
from veen.core.hubkeys import (
    Anchoring,
    HubIdentity,
    IdentityError,
    canonical_json,
    key_id_of,
    read_canonical_json,
)
from veen.storage import layout
from veen.storage.errors import CorruptError, StorageError
from veen.storage.fs import Fs
from veen.storage.index import ChunkRow, Index, LabelRow
from veen.storage.scan import read_file

__all__ = [
    "Binding",
    "HubKeys",
    "MissingIdentityError",
    "MissingKeyError",
    "bindings",
    "create",
    "exists",
    "load",
    "read_binding",
    "read_identity",
    "read_key",
    "repair",
    "write_binding",
    "write_key",
]

_KEY_FILE_BYTES: Final = 2 * SEED_BYTES + 1


class MissingIdentityError(StorageError):
    """The data directory has no identity."""

    hint = "Create one with `veen hub key create`, or restore hub-identity.json and keys/ from a copy of this hub."


class MissingKeyError(StorageError):
    """A private key that the hub must sign with is not there (D-41, D-42)."""

    hint = "Restore the file from a backup. A new key would be another hub, or needs the old one to rotate."

    def __init__(self, key_id: str) -> None:
        super(StorageError, self).__init__(key_id)
        self.key_id = key_id

    def __str__(self) -> str:
        return f"{layout.key(self.key_id)}: the private key is missing"


@dataclass(frozen=True, slots=True)
class HubKeys:
    """An identity with those of its private keys that are there."""

    identity: HubIdentity
    private: Mapping[bytes, SigningKey]  # by hub_pk

    def signing_key_at(self, hub_ts: int) -> SigningKey:
        """The key that signs at a time; MissingKeyError if it is retired and was taken away (key_retired)."""
        return self._private(self.identity.signing_key_at(hub_ts).hub_pk)

    def witnesses_at(self, hub_ts: int) -> list[SigningKey]:
        """The keys that witness a checkpoint during a rotation, old before new (D-37)."""
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
    """The identity, with its signature and, unless told otherwise, its key map checked; no private key is touched."""
    identity = _read_file(fs)
    _check_signature(fs, identity, root_pk)
    if key_map:
        _check_key_map(fs, identity)
    return identity


def _read_file(fs: Fs) -> HubIdentity:
    if not exists(fs):
        raise MissingIdentityError(f"{layout.IDENTITY}: the file is missing")
    try:
        return HubIdentity.from_bytes(read_file(fs, layout.IDENTITY))
    except (FormatError, IdentityError) as exc:
        raise CorruptError(layout.IDENTITY, 0, str(exc)) from exc


def _check_signature(fs: Fs, identity: HubIdentity, root_pk: bytes | None) -> None:
    data = _read_or_missing(fs, layout.IDENTITY_SIG)
    # Two signatures while a rotation is under way: for the file as it was and as it will be.
    if len(data) not in (SIGNATURE_BYTES, 2 * SIGNATURE_BYTES):
        raise CorruptError(layout.IDENTITY_SIG, 0, f"a signature has {SIGNATURE_BYTES} bytes, found {len(data)}")
    fault: SignatureError | None = None
    for start in range(0, len(data), SIGNATURE_BYTES):
        try:
            identity.verify(data[start : start + SIGNATURE_BYTES], root_pk)
        except SignatureError as exc:
            fault = exc
        else:
            return
    raise CorruptError(layout.IDENTITY_SIG, 0, str(fault))


def _check_key_map(fs: Fs, identity: HubIdentity) -> None:
    """Every key of the identity is in the map; more may be, while a rotation is under way."""
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
    """A private key file; MissingKeyError, or CorruptError if it is not the key that its name says."""
    path = layout.key(key_id)
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
    """What a hub needs to start. Refuses if a key that it must sign with, now or later, is missing."""
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
    fs: Fs, seed: bytes, now: int, *, anchoring: Anchoring = "data-directory", root: SigningKey | None = None
) -> HubKeys:
    """Give a directory its identity. Refuses if it has one."""
    if exists(fs):
        raise StorageError(f"{layout.IDENTITY}: this directory has an identity already")
    key = SigningKey(seed)
    identity = HubIdentity.first(key.public, valid_from=now, anchoring=anchoring)
    fs.make_dir(layout.KEYS)
    write_key(fs, key)
    fs.replace(layout.KEY_MAP, canonical_json(identity.key_map()))
    fs.replace(layout.IDENTITY_SIG, identity.sign(root or key))
    fs.replace(layout.IDENTITY, identity.to_bytes())  # from here on the directory has an identity
    return HubKeys(identity, {key.public: key})


def repair(fs: Fs) -> bool:
    """Make hub-key-map.json again from the identity; tells whether that was needed."""
    identity = _read_file(fs)
    wanted = canonical_json(identity.key_map())
    if fs.exists(layout.KEY_MAP) and read_file(fs, layout.KEY_MAP) == wanted:
        return False
    fs.replace(layout.KEY_MAP, wanted)
    return True


def _key_file(seed: bytes) -> bytes:
    return f"{seed.hex()}\n".encode()


def write_key(fs: Fs, key: SigningKey) -> None:
    """A private key, durable when this returns."""
    fs.replace(layout.key(key_id_of(key.public)), _key_file(key.seed), private=True)


# --- checkpoint-binding.json -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Binding:
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


def bindings(identity: HubIdentity, index: Index) -> list[Binding]:
    """From the last retirement: a checkpoint is persisted once its chunk is sealed and durable (D-39)."""
    return [
        Binding(row.label, row.epoch, chunk.end_seq, chunk.mmr_root, identity.signing_key_at(chunk.last_ts).key_id)
        for row, chunk in _last_chunks(index)
    ]


def _last_chunks(index: Index) -> Iterable[tuple[LabelRow, ChunkRow]]:
    for row in index.labels():
        chunk = index.chunk_at(row.row, row.active_start - 1)
        if chunk is not None:
            yield row, chunk


def write_binding(fs: Fs, identity: HubIdentity, index: Index) -> None:
    """Write checkpoint-binding.json; rebuildable, so when to do it is a matter of taste."""
    fs.replace(layout.CHECKPOINT_BINDING, _binding_bytes(identity, bindings(identity, index)))


def _binding_bytes(identity: HubIdentity, rows: Iterable[Binding]) -> bytes:
    checkpoints = [row.to_json() for row in sorted(rows, key=lambda row: row.label)]
    return canonical_json({"ver": 1, "hub_id": identity.hub_id.hex(), "checkpoints": checkpoints})


def read_binding(fs: Fs, identity: HubIdentity) -> list[Binding]:
    """Accept the canonical form only, bound to this identity; CorruptError otherwise."""
    data = read_file(fs, layout.CHECKPOINT_BINDING)
    try:
        # Its size grows with the labels of the hub; it is our own file, so memory is the only bound.
        value = read_canonical_json(data, "checkpoint-binding", max_bytes=len(data))
        rows = [
            Binding(
                bytes.fromhex(row["label"]),
                row["epoch"],
                row["upto_seq"],
                bytes.fromhex(row["mmr_root"]),
                row["key_id"],
            )
            for row in value["checkpoints"]
        ]
        canonical = _binding_bytes(identity, rows)
    except (FormatError, KeyError, TypeError, ValueError) as exc:
        raise CorruptError(layout.CHECKPOINT_BINDING, 0, f"not a checkpoint binding: {exc}") from exc
    if canonical != data:
        raise CorruptError(layout.CHECKPOINT_BINDING, 0, "not the canonical binding of this hub")
    return rows
