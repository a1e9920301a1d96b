"""The desktop keyring: GNOME Keyring, KWallet, the macOS Keychain, by the `keyring` library (extra `keyring`).

It is used for a keystore only after its user said so (`veen keystore remember`). What is kept there is what the
passphrase was stretched to, as the agent keeps it, never the passphrase: the entry opens this keystore and nothing
else, and with a new passphrase, which has a new salt, it opens nothing any more.

`state/desktop-keyring/SALT` holds the name of each keystore that is remembered, so that commands ask the keyring for no
other one. A keyring that keeps secrets in the clear is used only if the user chose it by name for the library
(PYTHON_KEYRING_BACKEND, keyringrc.cfg).
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar

from veen.client.errors import ExtraMissing, LocalError
from veen.client.home import Home, PrivateFs

T = TypeVar("T")

_SERVICE: Final = "veen keystore"
_MARKS: Final = "desktop-keyring"
_MAX_NAME_BYTES: Final = 256


class KeyringUnusable(LocalError, code="E.LOCAL.DESKTOP_KEYRING"):
    """There is no keyring on this machine, it is locked, or it failed."""


# --- which keystores -------------------------------------------------------------------------------------------


def is_remembered(home: Home, salt: bytes) -> bool:
    """Whether the user asked to have the keystore with this salt opened by the keyring."""
    return (home.state / _MARKS / salt.hex()).is_file()


def remembered(home: Home) -> list[tuple[str, bytes]]:
    """The name and the salt of each keystore that the keyring is to open, by name."""
    directory = home.state / _MARKS
    if not directory.is_dir():
        return []
    rows = []
    for path in directory.iterdir():
        try:
            salt = bytes.fromhex(path.name)
        except ValueError:  # no mark of ours
            continue
        rows.append((path.read_bytes()[:_MAX_NAME_BYTES].decode(errors="replace"), salt))
    return sorted(rows)


# --- what the keyring keeps ---------------------------------------------------------------------------------------


def remember_key(home: Home, name: str, salt: bytes, key: bytes) -> None:
    """Put the key of a keystore into the keyring, read it back, and note that it is there."""
    backend = _backend()
    _called(lambda: backend.set_password(_SERVICE, salt.hex(), key.hex()))
    if _called(lambda: backend.get_password(_SERVICE, salt.hex())) != key.hex():
        raise KeyringUnusable("it does not return what was put into it")
    PrivateFs(home.state / _MARKS).replace(salt.hex(), name.encode())


def remembered_key(home: Home, salt: bytes) -> bytes | None:
    """The key of a keystore; None if the keyring is not to be asked for it, or has no such entry any more."""
    if not is_remembered(home, salt):
        return None
    backend = _backend()
    text = _called(lambda: backend.get_password(_SERVICE, salt.hex()))
    try:
        return bytes.fromhex(text) if isinstance(text, str) and len(text) == 64 else None
    except ValueError:
        return None


def forget_key(home: Home, salt: bytes) -> bool:
    """Delete the entry of a keystore, and the note of it; False if there was none."""
    if not is_remembered(home, salt):
        return False
    backend = _backend()
    if _called(lambda: backend.get_password(_SERVICE, salt.hex())) is not None:
        _called(lambda: backend.delete_password(_SERVICE, salt.hex()))
    PrivateFs(home.state / _MARKS).remove(salt.hex())
    return True


def backend_name() -> str:
    """The keyring that is used here, by the name that the library gives it."""
    return str(_called(lambda: _backend().name))


# --- the library ----------------------------------------------------------------------------------------------------


def _backend() -> Any:
    """The keyring that the user chose for the library, or else the best of those that keep secrets sealed."""
    try:
        from keyring import backend, core
        from keyring.backends.chainer import ChainerBackend
    except ImportError as exc:
        raise ExtraMissing("keyring", "the desktop keyring") from exc
    chosen = _called(lambda: core.load_env() or core.load_config())
    if chosen is not None:
        return chosen
    sealed = [
        candidate
        for candidate in _called(backend.get_all_keyring)
        if core.recommended(candidate) and not isinstance(candidate, ChainerBackend)
    ]
    if not sealed:
        raise KeyringUnusable("no keyring of a desktop can be reached from here")
    return max(sealed, key=backend.by_priority)


def _called(function: Callable[[], T]) -> T:
    """Call the library. Its backends pass on whatever D-Bus and the system throw, so any failure is the keyring's."""
    try:
        return function()
    except LocalError:
        raise
    except Exception as exc:
        raise KeyringUnusable(str(exc) or type(exc).__name__) from exc
