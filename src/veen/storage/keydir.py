"""A data directory whose private keys lie elsewhere, as in a mounted Secret (D-42, spec-4 §4.2)."""

import os
from pathlib import Path

from veen.core.ed25519 import SigningKey
from veen.core.hubkeys import key_id_of
from veen.storage import layout
from veen.storage.errors import StorageError
from veen.storage.fs import File, OsFs

__all__ = ["KeyDirFs", "write_private_key"]

_PREFIX = f"{layout.KEYS}/"


class KeyDirFs(OsFs):
    """Like `OsFs`, but the files below `keys/` are those of another directory, which is never written to."""

    def __init__(self, root: Path, keys: Path) -> None:
        super().__init__(root)
        self._keys = OsFs(keys)

    def open(self, path: str, *, create: bool = False) -> File:
        if path.startswith(_PREFIX):
            return self._keys.open(path.removeprefix(_PREFIX))
        return super().open(path, create=create)

    def exists(self, path: str) -> bool:
        return self._keys.exists(path.removeprefix(_PREFIX)) if path.startswith(_PREFIX) else super().exists(path)

    def list(self, directory: str) -> list[str]:
        if directory == layout.KEYS:  # a Secret is mounted through links whose names begin with two dots
            return [name for name in self._keys.list("") if not name.startswith("..")]
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
        name = path.removeprefix(_PREFIX)
        if not self._keys.exists(name) or (self._keys.root / name).read_bytes() != data:
            raise StorageError(f"{self._keys.root / name}: the key is not there, and no key is written there")


def write_private_key(directory: Path, key: SigningKey) -> Path:
    """Put a private key where a hub with `keys_dir` finds it; never over another one."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / layout.key(key_id_of(key.public)).removeprefix(_PREFIX)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, f"{key.seed.hex()}\n".encode())
        os.fsync(fd)
    finally:
        os.close(fd)
    return path
