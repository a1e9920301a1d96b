"""tlog-proof (c2sp.org/tlog-proof): proof that a leaf is in a log, with the signed note, in one text.

Also the body of `add-checkpoint`, the request by which a log asks a witness for a cosignature (c2sp.org/tlog-witness).
"""

from dataclasses import dataclass
from typing import Final, Self

from veen.core.tlog.errors import NoteError
from veen.core.tlog.note import (
    MAX_NOTE_BYTES,
    LogCheckpoint,
    Note,
    decode_base64,
    decode_text,
    encode_base64,
    parse_number,
)
from veen.core.tlog.tree import HASH_BYTES, MAX_PATH, check_inclusion, leaf_hash

_HEADER: Final = "c2sp.org/tlog-proof@v1"
MAX_REQUEST_BYTES: Final = MAX_NOTE_BYTES + 8 * 1024
_MAX_EXTRA_BYTES: Final = 16 * 1024


def _hashes(lines: list[str], what: str) -> tuple[bytes, ...]:
    if len(lines) > MAX_PATH:
        raise NoteError(f"{what}: at most {MAX_PATH} hashes")
    hashes = tuple(decode_base64(line, what) for line in lines)
    if any(len(node) != HASH_BYTES for node in hashes):
        raise NoteError(f"{what}: a hash has {HASH_BYTES} bytes")
    return hashes


def _before_note(text: str, what: str) -> tuple[list[str], Note]:
    head, empty, rest = text.partition("\n\n")
    if not empty:
        raise NoteError(f"{what}: no empty line before the note")
    return head.split("\n"), Note.from_bytes(rest.encode())


@dataclass(frozen=True, slots=True)
class TlogProof:
    """An inclusion proof with its note, not verified. Nothing authenticates `extra`."""

    index: int  # of the leaf, from 0
    path: tuple[bytes, ...]
    note: Note
    extra: bytes | None = None

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        lines, note = _before_note(decode_text(data, "tlog-proof", MAX_REQUEST_BYTES), "tlog-proof")
        if lines.pop(0) != _HEADER:
            raise NoteError(f"tlog-proof: the first line is not {_HEADER}")
        extra = None
        if lines and lines[0].startswith("extra "):
            extra = decode_base64(lines.pop(0).removeprefix("extra "), "tlog-proof: extra")
            if len(extra) > _MAX_EXTRA_BYTES:
                raise NoteError(f"tlog-proof: extra has at most {_MAX_EXTRA_BYTES} bytes")
        if not lines or not lines[0].startswith("index "):
            raise NoteError("tlog-proof: the index is missing")
        index = parse_number(lines.pop(0).removeprefix("index "), "tlog-proof: index")
        return cls(index, _hashes(lines, "tlog-proof"), note, extra)

    def to_bytes(self) -> bytes:
        lines = [_HEADER]
        if self.extra is not None:
            lines.append(f"extra {encode_base64(self.extra)}")
        lines += [f"index {self.index}", *map(encode_base64, self.path), ""]
        return "".join(f"{line}\n" for line in lines).encode() + self.note.to_bytes()

    def check(self, leaf_data: bytes) -> LogCheckpoint:
        """Return the checkpoint that includes the leaf; raise TlogProofError if it does not. Signatures are left to a
        policy.
        """
        checkpoint = LogCheckpoint.parse(self.note.text)
        check_inclusion(leaf_hash(leaf_data), self.index, checkpoint.size, self.path, checkpoint.root)
        return checkpoint


@dataclass(frozen=True, slots=True)
class AddCheckpoint:
    """The body of `POST add-checkpoint`: the old size, the consistency proof from it, and the note."""

    old: int
    path: tuple[bytes, ...]
    note: Note

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        text = decode_text(data, "add-checkpoint", MAX_REQUEST_BYTES)
        lines, note = _before_note(text, "add-checkpoint")
        if not lines[0].startswith("old "):
            raise NoteError("add-checkpoint: the old size is missing")
        old = parse_number(lines.pop(0).removeprefix("old "), "add-checkpoint: old")
        return cls(old, _hashes(lines, "add-checkpoint"), note)

    def to_bytes(self) -> bytes:
        lines = [f"old {self.old}", *map(encode_base64, self.path), ""]
        return "".join(f"{line}\n" for line in lines).encode() + self.note.to_bytes()
