"""A data directory with its private keys elsewhere, as in a mounted Secret (D-42, spec-4 §4.2)."""

import os
from pathlib import Path

from veen.core.crypto.ed25519 import SigningKey
from veen.core.objects.birth import BirthCertificate
from veen.core.objects.identity import key_id_of
from veen.io.errors import StorageError
from veen.io.local import File, OsFs, open_mounted
from veen.io.secret_files import mode_of
from veen.storage import layout

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
