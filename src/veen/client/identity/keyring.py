"""The keyring: for every stream the key its messages are sealed to, and for readers the key that opens them (D-10).

Writing requires `reader_pk`, reading `reader_sk`; the hub has neither and can grant neither. Both travel as one word of
text, `veen-stream1…`: a write key (public half only) or a read key. Stream ids are hashes, so names and patterns such
as `record/*` exist only here (D-22).

The keys of a stream have generations (D-171): the newest one seals, older ones open what was sealed before. `owner_pk`
is the owner, whose announcements of new generations count; `veen.client.generations` follows them.

Keys that came by an invitation are bound to its hub, or to the root of its hubs, and are used at no other (D-183): a
stream of the same name at another hub is another stream. Keys that were made here, or by an earlier release, are
bound to no hub.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from hmac import compare_digest
from typing import Final, Self

from veen.client.errors import KeyTextInvalid, NoReaderKey, UnknownStream
from veen.client.identity import bech32
from veen.client.identity.identity import Random
from veen.core.crypto import x25519
from veen.core.errors import FormatError, MalformedError
from veen.core.labels import label_of, stream_id_of
from veen.core.wire import Bytes32, Map, Uint

MAX_NAME_BYTES: Final = 480  # with the keys still one word of text
_MAX_NEW_NAME_BYTES: Final = 464  # with owner and generation as well
_PREFIX: Final = "veen-stream"
_ID_CHARS: Final = 64
_MOST_COMPARED: Final = 500  # names, and characters of a name, when one was mistyped


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRef:
    """A stream as a person writes it: a name, 64 hex digits or `hex:…` for its id, `label:…` for one label."""

    stream_id: bytes | None
    label: bytes | None = None
    name: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        for scheme in ("hex", "label"):
            if text.startswith(f"{scheme}:"):
                value = _hex_id(text.removeprefix(f"{scheme}:"), scheme)
                return cls(stream_id=value) if scheme == "hex" else cls(stream_id=None, label=value)
        stream_id = stream_id_of(text)
        return cls(stream_id=stream_id, name=None if text.lower() == stream_id.hex() else text)

    def __str__(self) -> str:
        if self.name is not None:
            return self.name
        return f"hex:{self.stream_id.hex()}" if self.stream_id is not None else f"label:{(self.label or b'').hex()}"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StreamKeys(Map, kind="stream keys"):
    """The keys of one stream, with the wire form that the keystore holds and that is shared."""

    stream_id: Bytes32
    reader_pk: Bytes32
    reader_sk: Bytes32 | None = None
    name: str | None = None
    gen: Uint | None = None  # generation, from 0; None in keys of earlier releases, where it is 0 as well
    owner_pk: Bytes32 | None = None  # id_sign_pk that may announce the next generation; None: unknown
    bound_to: Bytes32 | None = None  # hub_id or root key of the hub to use them at; None: any hub

    def _check(self) -> None:
        """Check that the name is that of the stream and that the halves of the key match; sizes are checked
        elsewhere."""
        if self.name is not None:
            if len(self.name.encode(errors="replace")) > MAX_NAME_BYTES:
                raise MalformedError(f"a stream name has at most {MAX_NAME_BYTES} bytes", "stream keys.name")
            if stream_id_of(self.name) != self.stream_id:
                raise MalformedError("the name is not that of the stream (D-22)", "stream keys.name")
        sk = self.reader_sk
        if sk is not None and len(sk) == x25519.KEY_BYTES and not _belong_together(sk, self.reader_pk):
            raise MalformedError("the two halves of the key do not belong together", "stream keys.reader_sk")

    @classmethod
    def create(cls, stream: str, *, owner_pk: bytes | None = None, random: Random = os.urandom) -> Self:
        """Make a new pair for a stream, by name or id: generation 0 if there is an owner who may announce another."""
        ref = StreamRef.parse(stream)
        if ref.stream_id is None:
            raise UnknownStream(stream)  # a label does not tell its stream
        if owner_pk is not None and ref.name is not None and len(ref.name.encode()) > _MAX_NEW_NAME_BYTES:
            raise MalformedError(f"a stream name has at most {_MAX_NEW_NAME_BYTES} bytes", "stream keys.name")
        reader_sk = random(x25519.KEY_BYTES)
        keys = cls(
            stream_id=ref.stream_id,
            reader_pk=x25519.public_key(reader_sk),
            reader_sk=reader_sk,
            name=ref.name,
            gen=None if owner_pk is None else 0,
            owner_pk=owner_pk,
        )
        keys._check()
        return keys

    @property
    def can_read(self) -> bool:
        """True if these keys open the stream; without, they only seal."""
        return self.reader_sk is not None

    @property
    def generation(self) -> int:
        """The number of the key generation; 0 for the first keys."""
        return self.gen or 0

    def secret(self) -> bytes:
        """Return reader_sk; raise NoReaderKey without it."""
        if self.reader_sk is None:
            raise NoReaderKey(str(self))
        return self.reader_sk

    def for_writers(self) -> Self:
        """Return the public half: its holder can write and cannot read."""
        return replace(self, reader_sk=None)

    def to_text(self) -> str:
        """Encode the keys as one word. With `reader_sk` this word is the right to read; `for_writers().to_text()` is
        not.

        A very long name leaves no room for the owner.
        """
        long_name = self.name is not None and len(self.name.encode()) > _MAX_NEW_NAME_BYTES
        keys = replace(self, gen=None, owner_pk=None) if long_name else self
        keys = replace(keys, bound_to=None)  # a word is not bound to a hub
        return bech32.to_text(_PREFIX, keys.to_bytes())

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Read what `to_text` wrote."""
        data = bech32.from_text(_PREFIX, text)
        try:
            return cls.from_bytes(data)
        except FormatError as exc:
            raise KeyTextInvalid(f"these are not stream keys: {exc}") from exc

    def __str__(self) -> str:
        return self.name if self.name is not None else f"hex:{self.stream_id.hex()}"

    def __repr__(self) -> str:
        return f"StreamKeys({str(self)!r}, {'read' if self.can_read else 'write'})"


Stream = str | bytes | StreamRef | StreamKeys  # argument of the client's verbs: text, a stream_id, or a value of these


@dataclass(frozen=True)
class Keyring:
    """All keys, the newest of a stream first. A value: `with_keys` and `without` return a new one.

    `at` returns the keyring as used at one hub: keys that are bound to other hubs stay in `entries`, so that they
    are kept, and no lookup returns them.
    """

    entries: tuple[StreamKeys, ...] = ()
    places: frozenset[bytes] | None = None  # of the hub it is used at; None: keys of all hubs

    @classmethod
    def of(cls, keys: Iterable[StreamKeys]) -> Self:
        """Return a keyring to which the given keys were added one after another."""
        ring = cls()
        for stream_keys in keys:
            ring = ring.with_keys(stream_keys)
        return ring

    def at(self, *places: bytes | None) -> Self:
        """Return the keyring as used at a hub: by its hub_id, and the key of its root if that is pinned."""
        bound = frozenset(place for place in places if place is not None)
        return replace(self, places=bound or None)

    def _is_used(self, keys: StreamKeys) -> bool:
        return self.places is None or keys.bound_to is None or keys.bound_to in self.places

    def for_stream(self, stream: Stream) -> StreamKeys:
        """Return the keys to write with, and to read with if they can. Raise UnknownStream if there are none."""
        return self.readers(stream)[0]

    def readers(self, stream: Stream) -> tuple[StreamKeys, ...]:
        """Return all keys of a stream, the newest generation first: older ones open older messages.

        Given keys come before those of the keyring, unless they are a generation that the keyring has.
        """
        if isinstance(stream, StreamKeys):
            ring = self._of(stream.stream_id)
            if stream.owner_pk is not None and any(keys.reader_pk == stream.reader_pk for keys in ring):
                return ring
            return (stream, *(keys for keys in ring if keys.reader_pk != stream.reader_pk))
        ref = _ref(stream)
        candidates = self._of(ref.stream_id) if ref.stream_id is not None else ()
        if not candidates:
            raise UnknownStream(str(ref), self._near(str(ref)))
        return candidates

    def _near(self, name: str) -> tuple[str, ...]:
        """Return names of this keyring that are similar to a mistyped one."""
        from difflib import get_close_matches  # only when a command fails: it would slow down the start

        entries = filter(self._is_used, self.entries[:_MOST_COMPARED])
        names = sorted({keys.name for keys in entries if keys.name is not None})
        return tuple(get_close_matches(name[:_MOST_COMPARED], names, n=3, cutoff=0.75))

    def for_label(self, label: bytes, routing_key: bytes, epoch: int) -> StreamKeys:
        """Return the keys of the stream that has this label in this epoch; a label alone does not show its stream."""
        for keys in filter(self._is_used, self.entries):
            if label_of(routing_key, keys.stream_id, epoch) == label:
                return keys
        raise UnknownStream(f"label:{label.hex()}")

    def find_matching(self, pattern: str) -> tuple[StreamKeys, ...]:
        """Return the newest keys of every stream whose name matches a pattern such as `record/*`, by name."""
        newest = (keys[0] for keys in self._by_id.values())
        named = ((keys.name, keys) for keys in newest if keys.name is not None)
        return tuple(keys for name, keys in sorted(named, key=lambda pair: pair[0]) if fnmatchcase(name, pattern))

    def with_keys(self, keys: StreamKeys) -> Self:
        """Add keys without losing others: a read key stays beside its own write key, and a name beside none."""
        same = next((old for old in self._of(keys.stream_id) if _is_same(old, keys)), None)
        if same is not None:
            keys = replace(
                keys,
                bound_to=same.bound_to,
                reader_sk=keys.reader_sk or same.reader_sk,
                name=keys.name or same.name,
                gen=same.gen if keys.gen is None else keys.gen,
                owner_pk=same.owner_pk or keys.owner_pk,  # a repeated hand-over does not change the owner
            )
        keys.to_bytes()  # refuse what the keystore could not hold
        return replace(self, entries=(keys, *(old for old in self.entries if old is not same)))

    def has(self, stream_id: bytes) -> bool:
        """Return True if there are keys of a stream."""
        return bool(self._of(stream_id))

    def owner_of(self, stream: Stream) -> bytes | None:
        """Return the id_sign_pk that may announce the next generation of a stream; None if it is unknown."""
        return next((keys.owner_pk for keys in self.readers(stream) if keys.owner_pk is not None), None)

    def with_owner(self, stream: Stream, owner_pk: bytes) -> Self:
        """Return the keyring that follows the announcements of this owner."""
        stream_id = self.for_stream(stream).stream_id
        return replace(
            self,
            entries=tuple(
                replace(keys, owner_pk=owner_pk, gen=keys.generation)
                if keys.stream_id == stream_id and self._is_used(keys)
                else keys
                for keys in self.entries
            ),
        )

    def without_secret(self, stream: Stream, generation: int) -> Self:
        """Return the keyring without the secret half of a generation, so that it opens nothing that was sealed to
        it."""
        stream_id = self.for_stream(stream).stream_id
        return replace(
            self,
            entries=tuple(
                replace(keys, reader_sk=None)
                if (keys.stream_id, keys.generation) == (stream_id, generation) and self._is_used(keys)
                else keys
                for keys in self.entries
            ),
        )

    def without(self, stream: Stream) -> Self:
        """Return the keyring without the keys of a stream."""
        gone = self.for_stream(stream).stream_id
        return replace(
            self,
            entries=tuple(keys for keys in self.entries if keys.stream_id != gone or not self._is_used(keys)),
        )

    def bind(self, stream: Stream, place: bytes) -> Self:
        """Bind the unbound keys of a stream to this hub."""
        stream_id = self.for_stream(stream).stream_id
        return replace(
            self,
            entries=tuple(
                replace(keys, bound_to=place) if keys.stream_id == stream_id and keys.bound_to is None else keys
                for keys in self.entries
            ),
        )

    def _of(self, stream_id: bytes) -> tuple[StreamKeys, ...]:
        return self._by_id.get(stream_id, ())

    @cached_property
    def _by_id(self) -> dict[bytes, tuple[StreamKeys, ...]]:
        """Keys by stream_id: every message looks them up, which must not cost more with many streams (CLNT-12)."""
        by_stream: dict[bytes, tuple[StreamKeys, ...]] = {}
        for keys in filter(self._is_used, self.entries):
            by_stream[keys.stream_id] = (*by_stream.get(keys.stream_id, ()), keys)
        return {stream_id: tuple(sorted(keys, key=self._rank)) for stream_id, keys in by_stream.items()}

    def _rank(self, keys: StreamKeys) -> tuple[bool, int]:
        """Return the sort key: at a hub, keys bound to it before unbound ones; the newest generation first."""
        return self.places is not None and keys.bound_to is None, -keys.generation


def _is_same(old: StreamKeys, keys: StreamKeys) -> bool:
    """Return True if `keys` add to `old`: the same key, and not that of another hub."""
    return old.reader_pk == keys.reader_pk and (old.bound_to is None or old.bound_to == keys.bound_to)


def _belong_together(sk: bytes, pk: bytes) -> bool:
    return compare_digest(x25519.public_key(sk), pk)


def _ref(stream: str | bytes | StreamRef) -> StreamRef:
    if isinstance(stream, StreamRef):
        return stream
    return StreamRef.parse(stream) if isinstance(stream, str) else StreamRef(stream_id=stream)


def _hex_id(text: str, scheme: str) -> bytes:
    try:
        value = bytes.fromhex(text)
    except ValueError:
        value = b""
    if len(value) * 2 != _ID_CHARS or len(text) != _ID_CHARS:
        raise MalformedError(f"expected {_ID_CHARS} hex digits after {scheme}:", "stream")
    return value
