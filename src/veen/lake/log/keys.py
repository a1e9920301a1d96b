"""Reader keys for tasks: passed by a path, never by value (D-120).

Tasks are pickled, shown in plans and logged; so a task carries the path of a key file, and the file is read where the
task runs. One line per key, as `veen id keyring` prints them: `veen-stream1…`.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from veen.client.errors import ClientError
from veen.client.home import PrivateFs
from veen.client.identity.keyring import Keyring, StreamKeys
from veen.lake.log.errors import OptionError
from veen.lake.log.scratch import secret_file

_MAX_BYTES: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class KeyFile:
    """A file of stream keys on a path that every executor can read."""

    path: str

    def absolute(self) -> "KeyFile":
        """Return the same file by its absolute path, for a task, which runs in another directory."""
        return KeyFile(str(Path(self.path).absolute()))

    def load(self) -> Keyring:
        """Read the keys; once per process and version of the file."""
        try:
            stat = Path(self.path).stat()
        except OSError as exc:
            raise OptionError(f"key file {self.path}: {exc.strerror}") from exc
        return _load(self.path, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=4)
def _load(path: str, _changed: int, size: int) -> Keyring:
    if size > _MAX_BYTES:
        raise OptionError(f"key file {path}: {size} bytes are more than a key file has")
    try:
        lines = Path(path).read_text("ascii").split()
    except (OSError, UnicodeDecodeError) as exc:
        raise OptionError(f"key file {path}: cannot be read") from exc
    keys = []
    for number, line in enumerate(lines, start=1):
        try:
            keys.append(StreamKeys.from_text(line))
        except ClientError:
            raise OptionError(f"key file {path}: word {number} is not a stream key") from None  # its text is a secret
    return Keyring(tuple(keys))


def write_keys(directory: Path, keys: Iterable[StreamKeys]) -> KeyFile:
    """Write keys to a permanent file that only its owner can read."""
    PrivateFs(directory).replace("reader.keys", _text_of(keys))
    return KeyFile(str(directory / "reader.keys"))


@contextmanager
def keys_for_tasks(keys: "KeyFile | Keyring | Iterable[StreamKeys]") -> Iterator[KeyFile]:
    """Provide a key file for the executors of this machine, and remove it afterwards.

    A KeyFile is passed on as it is; a cluster needs one.
    """
    if isinstance(keys, KeyFile):
        yield keys
        return
    entries = keys.entries if isinstance(keys, Keyring) else keys
    with secret_file(_text_of(key for key in entries if key.can_read)) as path:
        yield KeyFile(path)


def _text_of(keys: Iterable[StreamKeys]) -> bytes:
    return "".join(f"{key.to_text()}\n" for key in keys).encode("ascii")
