"""Summaries of folded streams in the home: sealed for those who can read the streams, bound to the log.

A summary holds decrypted contents, so it is sealed too: under a key derived from the read keys of its streams. Anyone
who can open it could also read the log. It is a cache: deleting it costs time and nothing else.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from veen.client.home import PrivateFs
from veen.client.identity.keyring import StreamKeys
from veen.core import cbor
from veen.core.crypto import aead
from veen.core.crypto.hkdf import hkdf
from veen.core.errors import FormatError, OpenError
from veen.core.hashing import H
from veen.overlays.framework.fold import AnyFold
from veen.overlays.framework.snapshot import Snapshot, SnapshotRefused
from veen.overlays.framework.state import state_bytes

MAX_BYTES: Final = 256 * 1024 * 1024  # a larger state is folded anew: reading it back would take as long
_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedFold:
    """A snapshot with the greatest ts* in it: a view of an earlier time must not use it."""

    snapshot: Snapshot
    ts: int
    unopened: int  # entries that could not be opened, and so are not in it


class FoldCache:
    """The stored summary of a fold over some streams of a hub."""

    def __init__(
        self, fs: PrivateFs, hub_id: bytes, fold: AnyFold, keys: Sequence[StreamKeys], *, purpose: str | None = None
    ) -> None:
        """Derive path and key. `purpose` separates summaries made by other rules about unreadable entries."""
        what: tuple[Any, ...] = (
            fold.name,
            fold.mirrors,
            fold.settings(),
            [(stream_keys.stream_id, stream_keys.reader_pk) for stream_keys in keys],
        )
        if purpose is not None:
            what = (*what, purpose)
        self._fs, self._aad = fs, b"veen/fold-cache" + hub_id + state_bytes(what)
        self._path = f"{fold.name}-{H(self._aad).hex()[:32]}"
        self._key = hkdf(
            b"".join(stream_keys.secret() for stream_keys in keys), b"veen/fold-cache", self._aad, aead.KEY_BYTES
        )

    def load(self) -> CachedFold | None:
        """Return the stored summary, if any. Raise SnapshotRefused if it is damaged.

        `restore` checks it against the log.
        """
        if not self._fs.exists(self._path):
            return None
        file = self._fs.open(self._path)
        try:
            data = file.read_at(0, min(file.size(), MAX_BYTES))
        finally:
            file.close()
        nonce, sealed = data[: aead.NONCE_BYTES], data[aead.NONCE_BYTES :]
        try:
            ver, ts, unopened, snapshot = _parts(
                aead.open_(self._key, nonce.ljust(aead.NONCE_BYTES, b"\0"), self._aad, sealed)
            )
            if ver != _VERSION:
                return None  # written by another version of this program
            return CachedFold(snapshot=Snapshot.from_bytes(snapshot), ts=ts, unopened=unopened)
        except (OpenError, FormatError) as exc:
            raise SnapshotRefused(f"the snapshot is damaged: {exc}") from exc

    def save(self, entry: CachedFold) -> None:
        """Replace the stored summary atomically."""
        data = cbor.encode([_VERSION, entry.ts, entry.unopened, entry.snapshot.to_bytes()])
        if len(data) > MAX_BYTES - aead.NONCE_BYTES - aead.TAG_BYTES:
            return
        nonce = os.urandom(aead.NONCE_BYTES)
        self._fs.replace(self._path, nonce + aead.seal(self._key, nonce, self._aad, data))

    def forget(self) -> None:
        if self._fs.exists(self._path):
            self._fs.remove(self._path)


def _parts(data: bytes) -> tuple[int, int, int, bytes]:
    parts = cbor.decode(data, what="fold cache", max_bytes=MAX_BYTES)
    match parts:
        case [int(ver), int(ts), int(unopened), bytes(snapshot)]:
            return ver, ts, unopened, snapshot
    raise SnapshotRefused("the snapshot is damaged: it has another form")
