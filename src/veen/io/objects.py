"""Objects of an object store (s3://, gs://), with the one operation that writers need: create if absent.

`put_new` is a conditional put (`If-None-Match: *`), decided by the store: of two writers of one name exactly one learns
that it was first, before either continues. `put_over` replaces an object only if it is still the one that was read
(`If-Match`). Credentials and endpoint come from the environment (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, …), or from the
query of the URL as Arrow has it (endpoint_override, scheme, region); they are never pickled.
"""

import os
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from veen.io.errors import PlaceMissing
from veen.io.inside import FileRefused, check_name, check_size

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
