"""The directory of one side of a bridge: folders of bundles, and one small file that says how far things are.

Moves are renames inside one file system, and the state file is replaced as a whole, so that a crash leaves either the
step before or the step after.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

from veen.client.home import PrivateFs
from veen.products.airgap.bundle import SUFFIX
from veen.products.airgap.errors import BridgeError

_STATE: Final = "state.json"
_FORM: Final = 1


def is_bundle_name(name: str) -> bool:
    """Whether a folder's entry is a finished bundle: names with a dot at the start are being written."""
    return name.endswith(SUFFIX) and not name.startswith(".") and "/" not in name


class BridgeFiles:
    """Folders below one directory. Used by one process at a time: `held` makes sure of it."""

    def __init__(self, root: Path, folders: tuple[str, ...]) -> None:
        self.root = root
        self._fs = PrivateFs(root)
        for folder in folders:
            self._fs.make_dir(folder)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """StorageError if another process works in this directory."""
        with self._fs.lock():
            yield

    def path(self, folder: str, name: str = "") -> Path:
        return self.root / folder / name if name else self.root / folder

    def bundles(self, folder: str) -> list[str]:
        """Finished bundles of a folder, by name."""
        return sorted(path.name for path in self.path(folder).iterdir() if is_bundle_name(path.name))

    def move(self, name: str, old: str, new: str) -> None:
        """From folder to folder; nothing if a crash came after the move."""
        if self.path(old, name).exists():
            self._fs.rename(f"{old}/{name}", f"{new}/{name}")
            self._fs.sync_dir(new)
            self._fs.sync_dir(old)

    def remove(self, name: str, folder: str) -> None:
        """Remove a bundle of which an identical one is kept elsewhere."""
        self.path(folder, name).unlink(missing_ok=True)
        self._fs.sync_dir(folder)

    @contextlib.contextmanager
    def temporary(self, folder: str, name: str) -> Iterator[IO[bytes]]:
        """A file that gets its name when `publish` is called; a crash leaves at most a file with a dot."""
        with self.path(folder, f".{name}").open("w+b") as file:
            yield file

    def publish(self, folder: str, name: str) -> None:
        if self.path(folder, f".{name}").exists():
            self._fs.rename(f"{folder}/.{name}", f"{folder}/{name}")
            self._fs.sync_dir(folder)

    def load(self) -> dict[str, Any]:
        try:
            data = (self.root / _STATE).read_bytes()
        except FileNotFoundError:
            return {}
        try:
            state = json.loads(data)
        except ValueError as exc:
            raise BridgeError(f"{self.root / _STATE} is damaged: {exc}. Restore it from a backup") from exc
        if type(state) is not dict or state.get("form") != _FORM:
            raise BridgeError(f"{self.root / _STATE} is of another release")
        return state

    def save(self, state: dict[str, Any]) -> None:
        self._fs.replace(_STATE, json.dumps({**state, "form": _FORM}, indent=1, sort_keys=True).encode())
