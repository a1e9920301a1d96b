"""The desktop keyring: GNOME Keyring, KWallet, the macOS Keychain, by the `keyring` library (extra `keyring`).

It is used for a keystore only after its user enabled it (`veen keystore remember`). It stores the key that the
passphrase was stretched to, like the agent, never the passphrase: the entry opens this keystore and nothing
else, and after a change of the passphrase, which has a new salt, it opens nothing.

`state/desktop-keyring/SALT` has the name of each remembered keystore, so that commands ask the keyring for no
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
    """Return True if the user enabled the keyring for the keystore with this salt."""
    return (home.state / _MARKS / salt.hex()).is_file()


def list_remembered(home: Home) -> list[tuple[str, bytes]]:
    """Return name and salt of each keystore that the keyring is to open, by name."""
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
    """Store the key of a keystore in the keyring, read it back, and note that it is there."""
    backend = _backend()
    _call(lambda: backend.set_password(_SERVICE, salt.hex(), key.hex()))
    if _call(lambda: backend.get_password(_SERVICE, salt.hex())) != key.hex():
        raise KeyringUnusable("it does not return what was put into it")
    PrivateFs(home.state / _MARKS).replace(salt.hex(), name.encode())


def find_key(home: Home, salt: bytes) -> bytes | None:
    """Return the key of a keystore; None if the keyring is not enabled for it, or no longer has the entry."""
    if not is_remembered(home, salt):
        return None
    backend = _backend()
    text = _call(lambda: backend.get_password(_SERVICE, salt.hex()))
    try:
        return bytes.fromhex(text) if isinstance(text, str) and len(text) == 64 else None
    except ValueError:
        return None


def forget_key(home: Home, salt: bytes) -> bool:
    """Delete the entry of a keystore, and the note of it; return False if there was none."""
    if not is_remembered(home, salt):
        return False
    backend = _backend()
    if _call(lambda: backend.get_password(_SERVICE, salt.hex())) is not None:
        _call(lambda: backend.delete_password(_SERVICE, salt.hex()))
    PrivateFs(home.state / _MARKS).remove(salt.hex())
    return True


def backend_name() -> str:
    """Return the library's name of the keyring in use."""
    return str(_call(lambda: _backend().name))


# --- the library ----------------------------------------------------------------------------------------------------


def _backend() -> Any:
    """Return the keyring that the user chose for the library, or else the best one that seals its secrets."""
    try:
        from keyring import backend, core
        from keyring.backends.chainer import ChainerBackend
    except ImportError as exc:
        raise ExtraMissing("keyring", "the desktop keyring") from exc
    chosen = _call(lambda: core.load_env() or core.load_config())
    if chosen is not None:
        return chosen
    sealed = [
        candidate
        for candidate in _call(backend.get_all_keyring)
        if core.recommended(candidate) and not isinstance(candidate, ChainerBackend)
    ]
    if not sealed:
        raise KeyringUnusable("no keyring of a desktop can be reached from here")
    return max(sealed, key=backend.by_priority)


def _call(function: Callable[[], T]) -> T:
    """Call the library. Its backends raise any error of D-Bus and the system, so every failure counts as the
    keyring's."""
    try:
        return function()
    except LocalError:
        raise
    except Exception as exc:
        raise KeyringUnusable(str(exc) or type(exc).__name__) from exc
