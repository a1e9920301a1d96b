"""Batches: several commands in one process share opened keystores.

A keystore stays open from one command to the next as long as its file is unchanged. Outside a batch nothing is kept.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from veen.client.identity.keystore import Keystore


class _Opened:
    """The open keystores of this process; `is_active` only inside `batch`, on the main thread."""

    def __init__(self) -> None:
        self.is_active = False
        self.keystores: dict[tuple[Path, str], Keystore] = {}


_OPENED: Final = _Opened()


@contextmanager
def batch() -> Iterator[None]:
    """Keep keystores open inside."""
    _OPENED.is_active = True
    try:
        yield
    finally:
        _OPENED.is_active = False
        _OPENED.keystores.clear()


def open_once(home: Path, name: str, open_keystore: "Callable[[], Keystore]") -> "Keystore":
    """Return the keystore that an earlier command of the batch opened, or open it."""
    keystore = _OPENED.keystores.get((home, name))
    if keystore is not None and keystore.is_current():
        return keystore
    keystore = open_keystore()
    if _OPENED.is_active:
        _OPENED.keystores[home, name] = keystore
    return keystore
