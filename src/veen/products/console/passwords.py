"""Passwords of a console: a file of names, each with an argon2id hash of a password.

    alice:$argon2id$v=19$m=65536,t=3,p=1$…

`veen console password` writes the file, which only its owner can read. The parameters in it are checked before anything
is computed with them.
"""

import re
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from nacl.exceptions import CryptoError, InvalidkeyError
from nacl.pwhash import argon2id

from veen.client.errors import LocalError
from veen.client.home import PrivateFs, read_secret
from veen.products.console.errors import LoginRefused, PasswordFileInvalid

MAX_PASSWORD_BYTES: Final = 1024
_MAX_BYTES: Final = 64 * 1024
_MAX_NAMES: Final = 100
_NAME: Final = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_HASH: Final = re.compile(r"\$argon2id\$v=19\$m=([0-9]{1,7}),t=([0-9]{1,3}),p=1\$[A-Za-z0-9+/]{22}\$[A-Za-z0-9+/]{43}")
_MAX_MEMORY_KIB: Final = 256 * 1024
_MAX_PASSES: Final = 16
_MEMORY_BYTES: Final = 64 * 1024 * 1024
_PASSES: Final = 3


def check_login_name(name: str) -> str:
    """Return a valid login name. Raise PasswordFileInvalid otherwise."""
    if not _NAME.fullmatch(name):
        raise PasswordFileInvalid("a login name has 1 to 64 letters, digits, dots, dashes, underscores or @")
    return name


def hash_password(password: str, *, memory_bytes: int = _MEMORY_BYTES, passes: int = _PASSES) -> str:
    """Return the hash of a password with a new salt, in the format of the file."""
    try:
        return argon2id.str(_secret(password), opslimit=passes, memlimit=memory_bytes).decode("ascii")
    except CryptoError as exc:
        raise LocalError(f"argon2id could not run with {memory_bytes // 1024} KiB of memory") from exc


class PasswordFile:
    """Names and the hashes of their passwords."""

    def __init__(self, hashes: Mapping[str, str]) -> None:
        self._hashes = dict(hashes)
        # A name that is not in the file costs as much time as one that is.
        self._nobody = next(iter(self._hashes.values()), "")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the file. Raise PasswordFileInvalid for an invalid line, a repeated name, or an empty file."""
        hashes: dict[str, str] = {}
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip() or line.startswith("#"):
                continue
            name, _, digest = line.partition(":")
            match = _HASH.fullmatch(digest)
            if not _NAME.fullmatch(name) or match is None:
                raise PasswordFileInvalid(f"line {number} is not a name and an argon2id hash")
            if not 8 <= int(match[1]) <= _MAX_MEMORY_KIB or not 1 <= int(match[2]) <= _MAX_PASSES:
                raise PasswordFileInvalid(
                    f"line {number} asks for {match[1]} KiB and {match[2]} passes of argon2id;"
                    f" at most {_MAX_MEMORY_KIB} KiB and {_MAX_PASSES} passes are done"
                )
            if name in hashes:
                raise PasswordFileInvalid(f"line {number} repeats a name")
            hashes[name] = digest
        if not 1 <= len(hashes) <= _MAX_NAMES:
            raise PasswordFileInvalid(f"the file has {len(hashes)} names; it has 1 to {_MAX_NAMES}")
        return cls(hashes)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the file. Raise OpenPermissions if other users of this machine can read it."""
        try:
            data = read_secret(path, _MAX_BYTES + 1)
        except OSError as exc:
            raise PasswordFileInvalid(f"{path} cannot be read: {exc.strerror}") from exc
        if len(data) > _MAX_BYTES:
            raise PasswordFileInvalid(f"{path} has more than {_MAX_BYTES} bytes")
        try:
            return cls.parse(data.decode("ascii"))
        except UnicodeDecodeError as exc:
            raise PasswordFileInvalid(f"{path} is not a password file: it is not ASCII") from exc
        except PasswordFileInvalid as exc:
            raise PasswordFileInvalid(f"{path}: {exc.what}") from exc

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._hashes)

    def with_password(self, name: str, digest: str) -> "PasswordFile":
        """Return the file with the password of a name added or replaced."""
        return PasswordFile({**self._hashes, check_login_name(name): digest})

    def without(self, name: str) -> "PasswordFile":
        return PasswordFile({other: digest for other, digest in self._hashes.items() if other != name})

    def write(self, path: Path) -> None:
        text = "".join(f"{name}:{digest}\n" for name, digest in sorted(self._hashes.items()))
        PrivateFs(path.absolute().parent).replace(path.name, text.encode("ascii"))

    def check(self, name: str, password: str) -> None:
        """Raise LoginRefused unless name and password match.

        Takes the time of one hash in every case; call it in a thread.
        """
        digest = self._hashes.get(name)
        secret = _secret(password)
        is_right = False
        if len(secret) <= MAX_PASSWORD_BYTES:
            try:
                is_right = argon2id.verify((digest or self._nobody).encode("ascii"), secret)
            except InvalidkeyError:
                is_right = False
        if digest is None or not is_right:
            raise LoginRefused("the name and the password do not belong together")


def _secret(password: str) -> bytes:
    # The same characters typed on another system may arrive composed otherwise.
    return unicodedata.normalize("NFC", password).encode(errors="surrogatepass")
