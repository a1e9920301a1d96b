"""The paths of a client: the only place that spells them (UX: config).

    config/config.toml                          contexts: hub, pinned key, identity
    data/identities/NAME/keystore.enc           secret keys; an identity exists if this file exists
    data/identities/NAME/identity_card          the public card, one line
    data/identities/NAME/tokens/AUTH_REF.cbor   capability tokens
    data/identities/NAME/archive/               entries and attachments of an imported set (D-72)
    data/contacts/book.cbor                     identity cards of others, under names
    data/authorities/NAME.pem                   certificates that came with an invitation
    state/identities/NAME/state.db, lock        states of labels; the process that uses the identity
    cache/folds/NAME/                           summaries of folded streams, sealed

The four directories are those of the XDG base directory specification (or of the platform); VEEN_HOME puts all below
one. Everything is for the owner only: directories 0700, files 0600.
"""

import contextlib
import os
import sqlite3
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Self

from platformdirs import PlatformDirs

from veen.client.errors import IdentityInUse, IdentityMissing, LocalError, OpenPermissions
from veen.client.identity.identity import check_name
from veen.io.errors import LockedError, StorageError
from veen.io.local import File, OsFs, mode_of, read_exposed_mode

KEYSTORE: Final = "keystore.enc"
CARD: Final = "identity_card"
TOKENS: Final = "tokens"
EVIDENCE: Final = "evidence"
FOLDS: Final = "folds"
COPIES: Final = "copies"
ARCHIVE: Final = "archive"
CONTACTS: Final = "contacts"
AUTHORITIES: Final = "authorities"
_IDENTITIES: Final = "identities"
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


class PrivateFs(OsFs):
    """A directory that only its owner can access. Made with its first file."""

    file_mode = 0o600
    directory_mode = 0o700

    def make_dir(self, directory: str) -> None:
        missing = []
        path = self.root
        while not path.exists():
            missing.append(path)
            path = path.parent
        for path in reversed(missing):
            path.mkdir(mode=self.directory_mode, exist_ok=True)
            _sync(path.parent)  # otherwise a crash could lose the directory and keep references to it
        super().make_dir(directory)

    def open(self, path: str, *, create: bool = False) -> File:
        if create:
            self.make_dir(os.path.dirname(path))  # noqa: PTH120 - a relative path as text
        return super().open(path, create=create)

    def replace(self, path: str, data: bytes, *, private: bool = True) -> None:
        self.make_dir(os.path.dirname(path))  # noqa: PTH120 - a relative path as text
        super().replace(path, data, private=True)

    def database(self, path: str) -> sqlite3.Connection:
        self.open(path, create=True).close()  # SQLite gives its other files the mode of this one
        _sync(self.root)
        return super().database(path)


def read_secret(path: Path, most: int) -> bytes:
    """Read at most `most` bytes of a file with a secret. Raise OpenPermissions if other users may access it."""
    with path.open("rb") as file:
        if (mode := read_exposed_mode(os.fstat(file.fileno()))) is not None:
            raise OpenPermissions(str(path), mode)
        return file.read(most)


class Exposed(NamedTuple):
    """A file or directory with secrets that other users may access."""

    path: Path
    mode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """The four directories of a user."""

    config: Path
    data: Path
    state: Path
    cache: Path

    @classmethod
    def at(cls, root: Path) -> Self:
        """Return the home with everything below one directory."""
        return cls(config=root, data=root, state=root / "state", cache=root / "cache")

    @classmethod
    def default(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """Return the home at VEEN_HOME if set, else at the directories of the platform."""
        if root := environ.get("VEEN_HOME"):
            return cls.at(Path(root).expanduser().absolute())
        dirs = PlatformDirs("veen", appauthor=False)
        return cls(
            config=dirs.user_config_path,
            data=dirs.user_data_path,
            state=dirs.user_state_path,
            cache=dirs.user_cache_path,
        )

    @property
    def config_file(self) -> Path:
        """The file with contexts and settings."""
        return self.config / "config.toml"

    def identity_dir(self, name: str) -> Path:
        """Return the directory of an identity: keystore, keys, tokens."""
        return self.data / _IDENTITIES / check_name(name)

    def identity_fs(self, name: str) -> PrivateFs:
        """Return the directory of an identity, for files that only its user may read."""
        return PrivateFs(self.identity_dir(name))

    def tokens_fs(self, name: str) -> PrivateFs:
        """Return the directory of an identity's capability tokens."""
        return PrivateFs(self.identity_dir(name) / TOKENS)

    def archive_fs(self, name: str) -> PrivateFs:
        """Return the directory of what an identity no longer uses."""
        return PrivateFs(self.identity_dir(name) / ARCHIVE)

    def contacts_fs(self) -> PrivateFs:
        """Return the directory of contacts."""
        return PrivateFs(self.data / CONTACTS)

    def authorities_fs(self) -> PrivateFs:
        """Return the directory of certificates of hubs that were joined by invitation."""
        return PrivateFs(self.data / AUTHORITIES)

    def state_dir(self, name: str) -> Path:
        """Return the directory of what an identity has verified."""
        return self.state / _IDENTITIES / check_name(name)

    def state_fs(self, name: str) -> PrivateFs:
        """Return the directory of what an identity has verified, for private files."""
        return PrivateFs(self.state_dir(name))

    def evidence_fs(self) -> PrivateFs:
        """Return the directory of proofs against hubs."""
        return PrivateFs(self.state / EVIDENCE)

    def folds_fs(self, name: str) -> PrivateFs:
        """Return the directory of folded streams' summaries, sealed. It may be deleted: the log has their source."""
        return PrivateFs(self.cache / FOLDS / check_name(name))

    def copies_fs(self, name: str) -> PrivateFs:
        """Return the directory of indexes of copied streams. It may be deleted: both logs have the source."""
        return PrivateFs(self.cache / COPIES / check_name(name))

    def identities(self) -> list[str]:
        """Return the names of the existing identities."""
        try:
            names = [path.name for path in (self.data / _IDENTITIES).iterdir() if (path / KEYSTORE).is_file()]
        except FileNotFoundError:
            return []
        return sorted(names)

    def has_identity(self, name: str) -> bool:
        """Return True if there is a keystore of this name."""
        return (self.identity_dir(name) / KEYSTORE).is_file()

    def require(self, name: str) -> None:
        """Raise IdentityMissing if there is no such identity, OpenPermissions if other users may read its keys."""
        if not self.has_identity(name):
            raise IdentityMissing(name)
        self.check_private(name)

    def check_private(self, name: str) -> None:
        """Raise OpenPermissions if other users can read the keystore."""
        path = self.identity_dir(name) / KEYSTORE
        if (mode := mode_of(path)) is not None:
            raise OpenPermissions(str(path), mode)

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Take the exclusive right to use an identity. IdentityInUse names the holder. The kernel releases it with
        the process."""
        fs = self.state_fs(name)
        with contextlib.ExitStack() as stack:
            try:
                fs.make_dir("")
                stack.enter_context(fs.lock())
            except LockedError as exc:
                raise IdentityInUse(name, _pid(exc.holder)) from exc
            except (StorageError, OSError) as exc:
                raise LocalError(f"{self.state_dir(name)}: the directory cannot be written: {exc}") from exc
            yield

    def find_exposed(self) -> list[Exposed]:
        """Return secret files that other users can read."""
        roots = (self.data / _IDENTITIES, self.state / _IDENTITIES)
        paths = (path for root in roots if root.is_dir() for path in (root, *root.rglob("*")))
        modes = ((path, path.lstat().st_mode) for path in paths if not path.is_symlink())
        secret = ((path, mode) for path, mode in modes if path.name not in (CARD, "lock"))
        return sorted(Exposed(path, stat.S_IMODE(mode)) for path, mode in secret if mode & _OTHERS)


def _pid(holder: str) -> int | None:
    digits = holder.removeprefix("pid ")
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 20 else None


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
