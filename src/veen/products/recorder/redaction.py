r"""Redaction with commitments: a value leaves the event and can be disclosed and verified later.

A rule names a member of the payload (`.password`, `.user.email`) or a pattern of text (`re:\\d{16}`). The value becomes
{"_commit": hex(Ht("sdr/redact", salt ‖ canonical value))}; salt and value go to record/security/openings, whose only
reader is the disclosure role. A salt has 32 random bytes, so a commitment does not reveal which of a few values it
hides.

Rules apply to the source record before anything is derived from it (D-185). An adapter calls `redact` with all fields
that it read and takes subject, type, origin and time from the result. A pattern is compared with

    every scalar as text, including numbers, and with what a text decodes to as base64, hex or JSON escapes
    the names of members
    bytes that are not UTF-8, before they become base64
    the record as a whole, so that a pattern across two fields is found: it then hides the whole payload

A record that cannot be parsed has no members. Its text is hidden as a whole if it contains the name of a member that a
rule hides.
"""

import base64
import binascii
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Self

from veen.client.errors import LocalError
from veen.core.canonical import InvalidJson, Json, encode, exact
from veen.core.hashing import Ht

_SALT_BYTES: Final = 32
_MAX_PATTERN: Final = 500
_SHORTEST_ENCODED: Final = 4  # characters of a text from which on it is also read as base64 or hex
_BASE64: Final = re.compile(r"[A-Za-z0-9+/_\-\s]+={0,2}\s*")
_HEX: Final = re.compile(r"(?:[0-9A-Fa-f]{2})+")
_ESCAPE: Final = re.compile(r"\\u([0-9A-Fa-f]{4})")
_COMMITMENT: Final = re.compile(r'"_commit"?:"?[0-9a-f]{64}"')
_UNCLEAN: Final = (InvalidJson, RecursionError)


class RuleInvalid(LocalError, code="SDR.REDACT"):
    """An invalid redaction rule."""


@dataclass(frozen=True, slots=True, repr=False)
class Opening:
    """The value behind a commitment, with its salt."""

    commit: str
    salt: bytes
    value: Json
    path: str

    def payload(self) -> dict[str, Json]:
        return {"commit": self.commit, "salt": self.salt.hex(), "value": self.value, "path": self.path}


def commitment(salt: bytes, value: Json) -> str:
    return Ht("sdr/redact", salt + encode(value)).hex()


class Redactor:
    """Applies redaction rules to source records."""

    def __init__(
        self, paths: Sequence[str], patterns: Sequence[re.Pattern[str]], random: Callable[[int], bytes] = os.urandom
    ) -> None:
        self._paths, self._patterns, self._random = frozenset(paths), tuple(patterns), random
        self._names = tuple({f'"{path.rpartition(".")[2]}"' for path in paths})

    @classmethod
    def of(cls, rules: Sequence[str], random: Callable[[int], bytes] = os.urandom) -> Self:
        """Parse rules. Raise RuleInvalid for one that is neither a path nor a pattern."""
        paths, patterns = [], []
        for rule in rules:
            if rule.startswith("re:"):
                try:
                    patterns.append(re.compile(rule[3 : 3 + _MAX_PATTERN]))
                except re.error as exc:
                    raise RuleInvalid(f"{rule!r}: {exc}") from exc
            elif rule.startswith(".") and len(rule) > 1:
                paths.append(rule)
            else:
                raise RuleInvalid(f"{rule!r} is neither a path such as .password nor re:PATTERN")
        return cls(paths, patterns, random)

    def __bool__(self) -> bool:
        return bool(self._paths or self._patterns)

    def apply(self, payload: Json, raw: bytes = b"", *, is_parsed: bool = True) -> tuple[Json, list[Opening]]:
        """Return the payload without the values that the rules name, and the openings of these values.

        `raw`: the record as the source wrote it. `is_parsed`: False if its members are not known.
        """
        openings: list[Opening] = []
        redacted = self._walk(payload, "", openings)
        if self._is_left(redacted, openings, raw) or (not is_parsed and self._spells_a_name(raw)):
            openings = []
            redacted = self._hide(payload, "", openings)
        return redacted, openings

    def name(self, text: str | None) -> str | None:
        """Return a text outside of the payload, or None if a pattern hides it."""
        return None if text is None or self._matches(text) else text

    def _walk(self, value: Json, path: str, openings: list[Opening]) -> Json:
        if path in self._paths:
            return self._hide(value, path, openings)
        if isinstance(value, dict):
            if self._patterns and isinstance(data := value.get("base64"), str) and set(value) <= {"base64", "text"}:
                is_hidden = any(map(self._matches, (data, str(value.get("text", "")))))
                return self._hide(value, path, openings) if is_hidden else value
            return {
                self._member(key, path, openings): self._walk(element, f"{path}.{key}", openings)
                for key, element in value.items()
            }
        if isinstance(value, (list, tuple)):
            if self._patterns and _is_bytes(value) and any(map(self._matches, _byte_texts(bytes(value)))):
                return self._hide(list(value), path, openings)
            return [self._walk(element, path, openings) for element in value]
        if self._patterns and any(map(self._matches, _texts(value))):
            return self._hide(value, path, openings)
        return value

    def _member(self, name: str, path: str, openings: list[Opening]) -> str:
        """Return the name of a member, or a commitment in its place."""
        if not self._patterns or not self._matches(str(name)):
            return name
        return f"_commit:{self._hide(str(name), path, openings)['_commit']}"

    def _matches(self, text: str) -> bool:
        return any(pattern.search(form) for form in _decodings(text) for pattern in self._patterns)

    def _is_left(self, redacted: Json, openings: list[Opening], raw: bytes) -> bool:
        """Return True if a pattern matches the record as a whole, and not only the values that were removed."""
        if not self._patterns:
            return False
        try:
            text = _COMMITMENT.sub("", encode(redacted).decode())
        except _UNCLEAN:
            text = repr(redacted) if not openings else ""
        hidden = [form for opening in openings for form in texts_of(opening.value)]
        written = [form for form in _byte_texts(raw) if form] if raw else []
        return any(
            pattern.search(text) or (any(map(pattern.search, written)) and not any(map(pattern.search, hidden)))
            for pattern in self._patterns
        )

    def _spells_a_name(self, raw: bytes) -> bool:
        return any(name in form for text in _byte_texts(raw) for form in _unescape(text) for name in self._names)

    def _hide(self, value: Json, path: str, openings: list[Opening]) -> dict[str, Json]:
        salt = self._random(_SALT_BYTES)
        value = _clean(value)
        commit = commitment(salt, value)
        openings.append(Opening(commit, salt, value, path))
        return {"_commit": commit}


def redact(
    redactor: Redactor | None, payload: Json, raw: bytes = b"", *, is_parsed: bool = True
) -> tuple[Json, tuple[Opening, ...]]:
    """Apply the rules to a source record before anything is derived from it."""
    if not redactor:
        return payload, ()
    redacted, openings = redactor.apply(payload, raw, is_parsed=is_parsed)
    return redacted, tuple(openings)


def _clean(value: Json) -> Json:
    """Return a value that has a canonical encoding; any other value as text."""
    try:
        encode(value)
    except _UNCLEAN:
        return repr(value).encode(errors="backslashreplace").decode()
    return value


# --- the forms of a value ---------------------------------------------------------------------------------------------


def _texts(value: Json) -> Iterator[str]:
    """Yield every text form of a scalar."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, bool):
        yield "true" if value else "false"
    elif isinstance(value, (int, float, Decimal)):
        yield str(value)
        try:
            yield format(Decimal(exact(value)), "f")
        except InvalidJson:
            return
    elif isinstance(value, bytes):
        yield from _byte_texts(value)
    elif value is not None:
        yield repr(value)


def texts_of(value: Json) -> Iterator[str]:
    """Yield every text inside a value, and the texts that they decode to."""
    if isinstance(value, dict):
        for name, element in value.items():
            yield from _decodings(str(name))
            yield from texts_of(element)
    elif isinstance(value, (list, tuple)):
        if _is_bytes(value):
            yield from _byte_texts(bytes(value))
        for element in value:
            yield from texts_of(element)
    else:
        for text in _texts(value):
            yield from _decodings(text)


def _is_bytes(value: Sequence[Json]) -> bool:
    """Return True for a list of byte values, which is journalctl's form of bytes."""
    return bool(value) and all(type(number) is int and 0 <= number < 256 for number in value)


def _byte_texts(data: bytes) -> list[str]:
    try:
        return [data.decode()]
    except UnicodeDecodeError:
        return [data.decode(errors="backslashreplace"), data.decode("latin-1")]


def _unescape(text: str) -> Iterator[str]:
    yield text
    if "\\u" in text:
        yield _ESCAPE.sub(lambda match: chr(int(match[1], 16)), text)


def _decodings(text: str) -> Iterator[str]:
    """Yield a text, and its decoded forms: JSON escapes, hex and base64."""
    yield from _unescape(text)
    if len(text) < _SHORTEST_ENCODED:
        return
    if _HEX.fullmatch(text):
        yield from _byte_texts(bytes.fromhex(text))
    if _BASE64.fullmatch(text):
        packed = "".join(text.split()).rstrip("=").replace("-", "+").replace("_", "/")
        try:
            yield from _byte_texts(base64.b64decode(packed + "=" * (-len(packed) % 4), validate=True))
        except binascii.Error:
            return
