"""Places of tables: a directory, or an object store (s3://, gs://). Other places of Arrow (hdfs://) are read-only.

Nothing here relies on rename. Files are written once, under unique names, and have no meaning until a manifest names
them; the last line of a manifest shows that it is complete. A place that exposes half-written files, or that copies
instead of renaming, is therefore as good as a directory.

A manifest is created by `put_new`, and the place decides which of two writers was first: a directory by link(2), an
object store by a conditional put. A place that cannot decide it refuses to be written to.

Objects of an object store (s3://, gs://), with the one operation that writers need: create if absent.

`put_new` is a conditional put (`If-None-Match: *`), decided by the store: of two writers of one name exactly one learns
that it was first, before either continues. `put_over` replaces an object only if it is still the one that was read
(`If-Match`). Credentials and endpoint come from the environment (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, …), or from the
query of the URL as Arrow has it (endpoint_override, scheme, region); they are never pickled.
"""

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import parse_qsl, urlsplit

from veen.io.errors import NoConditionalPut, PlaceMissing
from veen.io.inside import FileRefused, check_inside, check_name, check_size, read_inside
from veen.io.local import OsFs
from veen.io.places import open_arrow_fs

SCHEMES: Final = ("s3", "s3a", "s3n", "gs")


class Stored(NamedTuple):
    path: str  # relative to the place
    age_sec: float


class ObjectPlace:
    """One prefix of a bucket. `store` is an obstore store for tests. Default: the store of the URL."""

    def __init__(self, uri: str, store: Any = None) -> None:
        self.uri = uri
        self._store = _connect(uri) if store is None else store

    def get(self, path: str, at_most: int) -> bytes:
        """Return an object; raise FileNotFoundError if it is missing, FileRefused above `at_most` bytes."""
        return self._get(path, at_most)[0]

    def _get(self, path: str, at_most: int) -> tuple[bytes, dict[str, Any]]:
        import obstore
        from obstore.exceptions import BaseError

        try:
            answer = obstore.get(self._store, check_name(path))
            check_size(answer.meta["size"], at_most, path)
            marks = {name: answer.meta.get(name) for name in ("e_tag", "version")}
            return bytes(answer.bytes()), {name: mark for name, mark in marks.items() if mark is not None}
        except BaseError as exc:
            raise _error_of(self.uri, path, exc) from exc

    def has(self, path: str) -> bool:
        import obstore
        from obstore.exceptions import BaseError

        try:
            obstore.head(self._store, check_name(path))
        except FileNotFoundError:
            return False
        except BaseError as exc:
            raise _error_of(self.uri, path, exc) from exc
        return True

    def put(self, path: str, data: bytes) -> None:
        """Store an object, replacing an existing one; durable on return."""
        self._put(path, data, "overwrite")

    def put_new(self, path: str, data: bytes) -> bool:
        """Store an object unless it exists; return False, and change nothing, if it does."""
        return self._put(path, data, "create")

    def put_over(self, path: str, before: bytes, data: bytes) -> bool:
        """Replace an object whose bytes are `before`; return False if it has changed."""
        try:
            content, mark = self._get(path, len(before))
        except (FileNotFoundError, FileRefused):  # gone, or larger
            return False
        return content == before and self._put(path, data, mark)

    def _put(self, path: str, data: bytes, mode: Any) -> bool:
        import obstore
        from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

        try:
            # In one request: parts of a multipart upload have no condition.
            obstore.put(self._store, check_name(path), data, mode=mode, use_multipart=False)
        except (AlreadyExistsError, PreconditionError):
            return False
        except BaseError as exc:
            raise _error_of(self.uri, path, exc) from exc
        return True

    def remove(self, path: str) -> None:
        import obstore
        from obstore.exceptions import BaseError

        try:
            obstore.delete(self._store, check_name(path))
        except FileNotFoundError:
            return
        except BaseError as exc:
            raise _error_of(self.uri, path, exc) from exc

    def walk(self, directory: str) -> Iterator[Stored]:
        """Yield all objects below a directory."""
        import obstore

        now = datetime.now(UTC)
        for page in obstore.list(self._store, prefix=directory):
            for meta in page:
                yield Stored(meta["path"], (now - meta["last_modified"]).total_seconds())


def _error_of(uri: str, path: str, exc: Exception) -> OSError:
    """Convert an error of a store to OSError, with its first line only: the rest may quote requests."""
    return OSError(f"{uri}: {path}: {(str(exc) or type(exc).__name__).splitlines()[0]}")


def _connect(uri: str) -> Any:
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    parts = urlsplit(re.sub(r"^s3[an]://", "s3://", uri))  # as Hadoop calls it
    config = _s3_config(dict(parse_qsl(parts.query))) if parts.scheme == "s3" else {}
    options: Any = {
        "config": config,
        "client_options": {"allow_http": config.get("endpoint", "").startswith("http://")},
    }
    try:
        return from_url(f"{parts.scheme}://{parts.netloc}{parts.path}", **options)
    except (BaseError, ValueError) as exc:
        raise PlaceMissing(f"{uri}: {(str(exc) or type(exc).__name__).splitlines()[0]}") from exc


def _s3_config(query: Mapping[str, str]) -> dict[str, str]:
    endpoint = query.get("endpoint_override") or os.environ.get("AWS_ENDPOINT_URL", "")
    if endpoint and "://" not in endpoint:
        endpoint = f"{query.get('scheme', 'https')}://{endpoint}"
    config = {"endpoint": endpoint, "region": query.get("region", "")}
    return {name: value for name, value in config.items() if value}


MAX_STORED_BYTES: Final = 4 << 30
_LOCK: Final = ".lock"  # of a directory, while what is left of a write that was cut off is replaced


class TableStore(Protocol):
    """Operations that tables need of a place."""

    @property
    def uri(self) -> str: ...

    def get(self, path: str, at_most: int) -> bytes:
        """Return a file; raise FileNotFoundError if it is missing, FileRefused above `at_most` bytes."""

    def has(self, path: str) -> bool:
        """Return True if the file exists."""

    def put(self, path: str, data: bytes) -> None:
        """Write a file, replacing an existing one; durable on return."""

    def put_new(self, path: str, data: bytes) -> bool:
        """Write a file unless it exists; return False if it does.

        Of several concurrent writers exactly one gets True.
        """

    def put_over(self, path: str, before: bytes, data: bytes) -> bool:
        """Replace a file whose bytes are `before`; return False if it has changed. Exactly one writer gets True."""

    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""

    def walk(self, directory: str) -> Iterator[Stored]:
        """Yield all files below a directory; used only to find files that no manifest names."""


def open_store(place: str | TableStore) -> TableStore:
    """Return the store at a path or URL; a store is returned unchanged."""
    if not isinstance(place, str):
        return place
    uri = place
    parts = urlsplit(uri)
    if len(parts.scheme) <= 1:  # none, or the letter of a drive
        return LocalStore(Path(uri))
    if parts.scheme == "file":
        return LocalStore(Path(parts.path))
    return ObjectStore(uri) if parts.scheme in SCHEMES and find_spec("obstore") is not None else ArrowStore(uri)


class LocalStore:
    """A directory of this machine, or one that all machines of a cluster have mounted."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self._fs = OsFs(self._root)

    @property
    def uri(self) -> str:
        return str(self._root)

    def get(self, path: str, at_most: int) -> bytes:
        return read_inside(self._fs, path, at_most)

    def has(self, path: str) -> bool:
        return check_inside(self._root, path).is_file()

    def put(self, path: str, data: bytes) -> None:
        """Write a file that only its owner can read: tables hold the decrypted contents of the log."""
        check_inside(self._root, path)
        self._make_parent(path)
        self._fs.replace(path, data, private=True)

    def put_new(self, path: str, data: bytes) -> bool:
        """Create a file by link(2): it appears complete or not at all, and never replaces another file."""
        draft = f"{path}.{os.getpid()}-{time.monotonic_ns()}"
        self.put(draft, data)
        try:
            os.link(self._root / draft, self._root / path)
        except FileExistsError:
            return False
        finally:
            self._fs.remove(draft)
        self._fs.sync_dir(os.path.dirname(path))  # noqa: PTH120 - a relative path as text
        return True

    def put_over(self, path: str, before: bytes, data: bytes) -> bool:
        """Replace a file under a lock, which keeps two writers from removing each other's new file."""
        parent = check_inside(self._root, path).parent
        with (parent / _LOCK).open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                if self.get(path, len(before)) != before:
                    return False
            except (FileNotFoundError, FileRefused):
                return False
            self._fs.remove(path)
            return self.put_new(path, data)

    def _make_parent(self, path: str) -> None:
        """Create missing directories and sync them from the top down: a file in a lost directory is lost."""
        parent = Path(path).parent
        missing = []
        while not (self._root / parent).is_dir() and str(parent) != ".":
            missing.append(parent)
            parent = parent.parent
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for directory in reversed(missing):
            (self._root / directory).mkdir(mode=0o700, exist_ok=True)
            self._fs.sync_dir(os.path.dirname(str(directory)))  # noqa: PTH120 - "" is the root, "." would be refused

    def remove(self, path: str) -> None:
        check_inside(self._root, path)
        self._fs.remove(path)

    def walk(self, directory: str) -> Iterator[Stored]:
        now = time.time()
        for folder, _, names in os.walk(self._root / directory):
            for name in sorted(names):
                full = Path(folder) / name
                with contextlib.suppress(FileNotFoundError):
                    yield Stored(str(full.relative_to(self._root)), now - full.stat().st_mtime)


class ObjectStore(ObjectPlace):
    """A prefix of a bucket."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the address alone: a task finds credentials where it runs, and carries none."""
        return open_store, (self.uri,)


class ArrowStore:
    """A place behind pyarrow's file systems. Arrow has no "create if absent", so tables are only read here."""

    def __init__(self, uri: str, arrow: Any = None, root: str = "") -> None:
        self._uri = uri
        self._fs, self._root = open_arrow_fs(uri) if arrow is None else (arrow, root)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the address alone: a task finds credentials where it runs, and carries none."""
        return open_store, (self._uri,)

    @property
    def uri(self) -> str:
        return self._uri

    def _path(self, path: str) -> str:
        return f"{self._root.rstrip('/')}/{check_name(path)}"

    def get(self, path: str, at_most: int) -> bytes:
        with self._fs.open_input_file(self._path(path)) as handle:
            check_size(handle.size(), at_most, path)
            data: bytes = handle.read()
            return data

    def has(self, path: str) -> bool:
        from pyarrow import fs

        return bool(self._fs.get_file_info(self._path(path)).type == fs.FileType.File)

    def put(self, path: str, data: bytes) -> None:
        where = self._path(path)
        self._fs.create_dir(where.rpartition("/")[0], recursive=True)
        with self._fs.open_output_stream(where) as handle:
            handle.write(data)

    def put_new(self, path: str, data: bytes) -> bool:
        raise NoConditionalPut(self._uri)

    def put_over(self, path: str, before: bytes, data: bytes) -> bool:
        raise NoConditionalPut(self._uri)

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.delete_file(self._path(path))

    def walk(self, directory: str) -> Iterator[Stored]:
        from pyarrow import fs

        now = time.time()
        prefix = f"{self._root.rstrip('/')}/"
        entries = self._fs.get_file_info(
            fs.FileSelector(f"{prefix}{directory}".rstrip("/"), recursive=True, allow_not_found=True)
        )
        for info in entries:
            if info.type == fs.FileType.File:
                age = now - info.mtime_ns / 1e9 if info.mtime_ns is not None else 0.0
                yield Stored(info.path.removeprefix(prefix), age)
