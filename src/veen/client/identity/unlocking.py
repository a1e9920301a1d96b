"""Opening of a keystore without a prompt: no passphrase, one in a file, a key in the agent or the desktop keyring.

The identity of a dev context is also made here: its passphrase is random and stored in a file (decisions.md 151).
"""

import contextlib
import os
import re
import secrets
import tempfile
import time
from pathlib import Path
from typing import Final

from veen.client import agent, desktop_keyring
from veen.client.errors import IdentityExists, IdentityInUse, KeystoreDamaged, SettingsError, WrongPassphrase
from veen.client.home import Home, PrivateFs, read_secret
from veen.client.identity.keystore import Keystore, SealedKeystore, create_identity, open_identity
from veen.client.identity.passphrases import Kdf

_MAX_PASSPHRASE_BYTES: Final = 4096
_OTHERS_SECONDS: Final = 30  # wait for another process that makes the identity
_RANDOM_PREFIX: Final = "veen-random-"
_RANDOM_TEXT: Final = re.compile(rf"{_RANDOM_PREFIX}[0-9a-f]{{64}}")
_RANDOM_KDF: Final = Kdf(memory_kib=Kdf.MIN_MEMORY_KIB, passes=1)  # 256 random bits need no stretching


def open_without_asking(
    home: Home, name: str, *, passphrase_file: Path | None = None, agent_home: Home | None = None
) -> Keystore | None:
    """Open the keystore of an identity; return None if its passphrase has to be entered.

    Raise KeyringUnusable or ExtraMissing if the desktop keyring is to open it (`veen keystore remember`) and cannot.
    Raise KeystoreDamaged if there is a passphrase file and the keystore needs none: somebody without the passphrase
    may have replaced it (decisions.md 509).
    """
    home.require(name)
    sealed = SealedKeystore.read(home.identity_fs(name))
    if sealed.is_plain:
        if passphrase_file is not None:
            raise KeystoreDamaged(
                f"it is not sealed, but {passphrase_file} has a passphrase for it, so somebody may have replaced it"
            )
        return open_identity(home, name, None)
    if passphrase_file is not None:
        return open_identity(home, name, read_passphrase(passphrase_file))
    key = agent.find_key(agent_home or home, sealed.salt)
    if key is None:
        key = desktop_keyring.find_key(agent_home or home, sealed.salt)
    if key is None:
        return None
    try:
        return open_identity(home, name, None, key=key)
    except WrongPassphrase:  # the key is not that of this file: the passphrase is required
        return None


def read_passphrase(path: Path) -> str:
    """Return the first line of a file, without its end."""
    data = read_secret(path, _MAX_PASSPHRASE_BYTES + 1)
    line = data.split(b"\n", 1)[0].removesuffix(b"\r")
    if not line or len(line) > _MAX_PASSPHRASE_BYTES:
        raise SettingsError(
            "E.LOCAL.INPUT",
            f"{path}: holds no passphrase",
            "its first line is empty" if not line else "its first line is too long",
            "put the passphrase into the first line",
        )
    try:
        return line.decode()
    except UnicodeDecodeError as exc:
        raise SettingsError(
            "E.LOCAL.INPUT", f"{path}: holds no passphrase", "it is not UTF-8 text", "save it as UTF-8"
        ) from exc


def make_passphrase_file(path: Path) -> None:
    """Write a random passphrase to a file that only its owner can read; an existing file stays."""
    if path.exists():
        return
    PrivateFs(path.parent).make_dir("")
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}-") as file:  # 0600
        file.write(f"{_RANDOM_PREFIX}{secrets.token_hex(32)}\n")
        file.flush()
        os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):  # another process was first; a link never shows a half-written file
            os.link(file.name, path)


def make_identity(home: Home, name: str, passphrase_file: Path) -> Keystore:
    """Make an identity whose passphrase is the one in the file, which is made if it is missing."""
    make_passphrase_file(passphrase_file)
    passphrase = read_passphrase(passphrase_file)
    deadline = time.monotonic() + _OTHERS_SECONDS
    while True:
        try:
            return create_identity(home, name, passphrase, now=int(time.time()), kdf=_kdf_for(passphrase))
        except IdentityExists:  # another process was first
            return open_identity(home, name, passphrase)
        except IdentityInUse:  # another process makes it now, or has made it and uses it
            if home.has_identity(name):
                return open_identity(home, name, passphrase)
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _kdf_for(passphrase: str) -> Kdf:
    return _RANDOM_KDF if _RANDOM_TEXT.fullmatch(passphrase) else Kdf()
