"""Marks of readers: hashes of the keys that opened the entries of a state or table.

Two readers with equal marks open the same entries. A reading leaves out entries that it cannot open, so its result is
valid only for readers with the same mark.
"""

from collections.abc import Iterable
from hashlib import sha256

from veen.client.identity.keyring import Keyring
from veen.lake.log.decryption import reader_of
from veen.lake.log.entries import Level


def reader_mark(keyring: Keyring, stream_id: bytes, level: Level) -> str:
    """Return a hash of the public read keys of a stream and of how entries are checked."""
    public = sorted(keys.reader_pk for keys in reader_of(keyring, stream_id).keys)
    return sha256(b"".join((level.encode(), b"\0", *public))).hexdigest()


def reader_marks(keyring: Keyring, stream_ids: Iterable[bytes], level: Level) -> dict[bytes, str]:
    """Return the mark of each of the streams that the keyring has."""
    names = {keys.stream_id for keys in keyring.entries}
    return {stream_id: reader_mark(keyring, stream_id, level) for stream_id in stream_ids if stream_id in names}
