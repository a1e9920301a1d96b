"""Signed notes, verifier keys, checkpoints and cosignatures of C2SP (signed-note, tlog-checkpoint, tlog-cosignature).

    text, ends with LF
    (an empty line)
    — NAME BASE64(key_id 4 ‖ signature)                    one or more such lines

One form is accepted: UTF-8 without control characters but LF, base64 with its padding, numbers without leading zeros.
"""

import base64
import binascii
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final, Self

from veen.core.crypto import ed25519
from veen.core.hashing import u64be
from veen.core.tlog.tree import HASH_BYTES, NoteError, NoteSignatureError

ED25519: Final = 0x01  # a signature over the text of a note
COSIGNATURE: Final = 0x04  # a signature over the time and the text
_SUPPORTED: Final = (ED25519, COSIGNATURE)
MAX_NOTE_BYTES: Final = 128 * 1024
MAX_SIGNATURES: Final = 64
MAX_NAME_BYTES: Final = 255
MAX_SIZE: Final = 2**63 - 1
_DASH: Final = "\u2014 "
_KEY_ID_BYTES: Final = 4
_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,18}")


def encode_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def decode_base64(text: str, what: str) -> bytes:
    """Decode base64 with padding; raise NoteError for any other form."""
    try:
        data = base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError, ValueError) as exc:
        raise NoteError(f"{what}: not base64 with its padding") from exc
    if encode_base64(data) != text:
        raise NoteError(f"{what}: not the one base64 form of its bytes")
    return data


def parse_number(text: str, what: str) -> int:
    """Parse a decimal number without leading zeros."""
    if _NUMBER.fullmatch(text) is None or int(text) > MAX_SIZE:
        raise NoteError(f"{what}: expected a decimal number without leading zeros")
    return int(text)


def check_name(name: str) -> str:
    """Return the name of a key or log; raise NoteError for a space, a plus sign or a control character."""
    if not name or "+" in name or any(char.isspace() or ord(char) < 0x20 or ord(char) == 0x7F for char in name):
        raise NoteError("a name is not empty and has no space, no plus sign and no control character")
    try:
        size = len(name.encode())
    except UnicodeEncodeError as exc:
        raise NoteError("a name is valid Unicode") from exc
    if size > MAX_NAME_BYTES:
        raise NoteError(f"a name has at most {MAX_NAME_BYTES} bytes")
    return name


def origin_hash(origin: str) -> str:
    """Return the name of a log in the monitoring paths of witnesses."""
    return sha256(origin.encode()).hexdigest()


def decode_text(data: bytes, what: str, max_bytes: int = MAX_NOTE_BYTES) -> str:
    """Decode UTF-8 of bounded size that ends with LF and has no other control character."""
    if len(data) > max_bytes:
        raise NoteError(f"{what}: more than {max_bytes} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError as exc:
        raise NoteError(f"{what}: not UTF-8") from exc
    if any(char < " " and char != "\n" for char in text) or "\x7f" in text:
        raise NoteError(f"{what}: has a control character; lines end with LF alone")
    if not text.endswith("\n"):
        raise NoteError(f"{what}: the last line does not end")
    return text


@dataclass(frozen=True, slots=True)
class VerifierKey:
    """A public key with the name and the type that its signatures have: `NAME+KEYID+BASE64`."""

    name: str
    key_type: int
    public: bytes

    @classmethod
    def parse(cls, text: str) -> Self:
        parts = text.split("+", 2)  # base64 may have more of them
        if len(parts) != 3:
            raise NoteError("a vkey has the form NAME+KEYID+BASE64")
        name = check_name(parts[0])
        data = decode_base64(parts[2], "vkey")
        if not data or data[0] not in _SUPPORTED or len(data) != 1 + ed25519.PUBLIC_BYTES:
            raise NoteError("vkey: expected a key of type 1 (Ed25519) or 4 (Ed25519 cosignature)")
        key = cls(name, data[0], data[1:])
        if key.key_id.hex() != parts[1]:
            raise NoteError("vkey: the key id is not that of name and key")
        return key

    @property
    def key_id(self) -> bytes:
        data = self.name.encode() + b"\n" + bytes([self.key_type]) + self.public
        return sha256(data).digest()[:_KEY_ID_BYTES]

    def __str__(self) -> str:
        return f"{self.name}+{self.key_id.hex()}+{encode_base64(bytes([self.key_type]) + self.public)}"


@dataclass(frozen=True, slots=True)
class NoteSignature:
    """One signature line."""

    name: str
    key_id: bytes
    signature: bytes  # of a cosignature: the time as u64, then the signature

    @classmethod
    def parse(cls, line: str) -> Self:
        if not line.startswith(_DASH):
            raise NoteError("a signature line begins with an em dash and a space")
        name, space, encoded = line.removeprefix(_DASH).partition(" ")
        if not space:
            raise NoteError("a signature line has a name and a signature")
        data = decode_base64(encoded, "signature line")
        if len(data) <= _KEY_ID_BYTES:
            raise NoteError("a signature line has a key id and a signature")
        return cls(check_name(name), data[:_KEY_ID_BYTES], data[_KEY_ID_BYTES:])

    def line(self) -> str:
        return f"{_DASH}{self.name} {encode_base64(self.key_id + self.signature)}\n"

    def is_by(self, key: VerifierKey) -> bool:
        """Return True if the line names this key; `verify` checks the signature."""
        return (self.name, self.key_id) == (key.name, key.key_id)

    def verify(self, key: VerifierKey, text: str) -> int:
        """Return the time of a cosignature, 0 for another signature; raise NoteSignatureError unless `key` signed
        `text`.
        """
        time, message, signature = 0, text.encode(), self.signature
        if key.key_type == COSIGNATURE:
            if len(signature) != 8 + ed25519.SIGNATURE_BYTES:
                raise NoteSignatureError(f"the cosignature of {key.name} has another length")
            time, signature = int.from_bytes(signature[:8], "big"), signature[8:]
            if not 0 < time <= MAX_SIZE:
                raise NoteSignatureError(f"the cosignature of {key.name} has no time")
            message = _cosignature_text(time, text)
        if not self.is_by(key) or not ed25519.verify(key.public, message, signature):
            raise NoteSignatureError(f"the signature of {key.name} does not verify")
        return time


def _cosignature_text(time: int, text: str) -> bytes:
    return f"cosignature/v1\ntime {time}\n{text}".encode()


@dataclass(frozen=True, slots=True)
class Note:
    """A text with its signature lines, not verified."""

    text: str
    signatures: tuple[NoteSignature, ...]

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        whole = decode_text(data, "note")
        end = whole.rfind("\n\n")
        if end < 0:
            raise NoteError("a note has an empty line before its signatures")
        text, lines = whole[: end + 1], whole[end + 2 :].split("\n")[:-1]
        if text == "\n" or text.endswith("\n\n"):
            raise NoteError("a note has one empty line before its signatures, not several")
        if not 1 <= len(lines) <= MAX_SIGNATURES:
            raise NoteError(f"a note has 1 to {MAX_SIGNATURES} signatures")
        return cls(text, tuple(NoteSignature.parse(line) for line in lines))

    def to_bytes(self) -> bytes:
        return (self.text + "\n" + "".join(signature.line() for signature in self.signatures)).encode()

    def with_signatures(self, signatures: Iterable[NoteSignature]) -> "Note":
        """Return the note with further lines; a new line of a key replaces its older one."""
        lines = {(line.name, line.key_id): line for line in self.signatures}
        lines.update({(line.name, line.key_id): line for line in signatures})
        return replace(self, signatures=tuple(lines.values()))


def verify_signatures(note: Note, keys: Iterable[VerifierKey]) -> Mapping[VerifierKey, int]:
    """Return those of `keys` that signed, with the time of each cosignature; raise NoteSignatureError for an invalid
    line.

    Lines of unknown keys are ignored. Every line of a known key must verify, also an invalid one beside a valid one.
    """
    verified: dict[VerifierKey, int] = {}
    for key in keys:
        for line in note.signatures:
            if line.is_by(key):
                verified[key] = max(verified.get(key, 0), line.verify(key, note.text))
    return verified


def sign_note(key: ed25519.SigningKey, name: str, text: str) -> NoteSignature:
    """Return the signature of a log over a text."""
    verifier = VerifierKey(check_name(name), ED25519, key.public)
    return NoteSignature(name, verifier.key_id, key.sign(text.encode()))


def cosign(key: ed25519.SigningKey, name: str, text: str, time: int) -> NoteSignature:
    """Return the signature of a witness over a checkpoint at a time, in seconds."""
    if not 0 < time <= MAX_SIZE:
        raise NoteError("a cosignature has a time")
    verifier = VerifierKey(check_name(name), COSIGNATURE, key.public)
    return NoteSignature(name, verifier.key_id, u64be(time) + key.sign(_cosignature_text(time, text)))


@dataclass(frozen=True, slots=True)
class LogCheckpoint:
    """Text of a checkpoint note: origin, size and root of a log. Extension lines are preserved."""

    origin: str
    size: int
    root: bytes
    extensions: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        if not text.endswith("\n"):
            raise NoteError("checkpoint: the last line does not end")
        lines = text.split("\n")[:-1]
        if len(lines) < 3 or not all(lines):
            raise NoteError("a checkpoint has three lines or more, none of them empty")
        root = decode_base64(lines[2], "checkpoint: root")
        if len(root) != HASH_BYTES:
            raise NoteError(f"checkpoint: a root has {HASH_BYTES} bytes")
        return cls(check_name(lines[0]), parse_number(lines[1], "checkpoint: size"), root, tuple(lines[3:]))

    @property
    def text(self) -> str:
        lines: Sequence[str] = (self.origin, str(self.size), encode_base64(self.root), *self.extensions)
        return "".join(f"{line}\n" for line in lines)

    def sign(self, key: ed25519.SigningKey) -> Note:
        return Note(self.text, (sign_note(key, self.origin, self.text),))
