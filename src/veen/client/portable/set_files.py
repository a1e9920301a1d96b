"""The files of a portable set: a signed manifest, and CBOR sequences that are written and read piece by piece (D-72).

The manifest lists every other file with its size and hash. It is written last: a set without one is incomplete.

Checks of the entries, checkpoints and attachments of a portable set (D-72).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Annotated, Final, Self

from veen.client.errors import PortableSetInvalid
from veen.core import cbor
from veen.core.crypto import ed25519
from veen.core.errors import FormatError, MalformedError, VerifyError
from veen.core.hashing import Ht
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.identity import HubIdentity
from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt
from veen.core.run_check import Fault, Pair, Rule, RunCheck, check_signatures
from veen.core.tree.mmr import Mmr
from veen.core.wire import Bytes32, Bytes64, Length, Map, Part, Uint
from veen.io.inside import FileRefused, open_inside
from veen.io.local import Fs

MANIFEST: Final = "manifest.cbor"
ATTACHMENTS: Final = "attachments"
_MAX_FILES: Final = 65_536
_PIECE: Final = 1 << 20
_MAX_ITEM_BYTES: Final = 2 * 1024 * 1024  # a MSG has at most half of that


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed(Part, kind="listed file"):
    """One file of the set."""

    path: str
    size: Uint
    hash: Bytes32


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest(Map, kind="manifest"):
    """All files of the set, by path, signed by the identity of the set."""

    id_sign_pk: Bytes32
    created_at: Uint
    files: Annotated[tuple[Listed, ...], Length(0, _MAX_FILES)]
    sig: Bytes64

    def _check(self) -> None:
        paths = [listed.path for listed in self.files]
        if paths != sorted(set(paths)):
            raise MalformedError("the files are not listed by path, each once", "manifest.files")

    @classmethod
    def issue(cls, id_sign: ed25519.SigningKey, *, created_at: int, files: Iterable[Listed]) -> Self:
        listed = tuple(sorted(files, key=lambda one: one.path))
        unsigned = cls(id_sign_pk=id_sign.public, created_at=created_at, files=listed, sig=b"")
        return replace(unsigned, sig=id_sign.sign(unsigned._digest()))

    def verify(self) -> None:
        """Raise PortableSetInvalid unless the identity it names signed this list."""
        if not ed25519.verify(self.id_sign_pk, self._digest(), self.sig):
            raise PortableSetInvalid(MANIFEST, "it is not signed by the identity of the set")

    def _digest(self) -> bytes:
        tree = self.to_tree()
        del tree[5]  # the manifest without sig
        return Ht("veen/portable-set", cbor.encode(tree))


class FileWriter:
    """A new file, written in pieces of any size. Memory does not grow with it; `finish` makes it durable."""

    def __init__(self, fs: Fs, path: str) -> None:
        self._fs, self._path = fs, path
        self._digest, self._size, self._buffer = sha256(), 0, bytearray()
        self._file = fs.open(path, create=True)

    def write(self, piece: bytes) -> None:
        self._digest.update(piece)
        self._buffer += piece
        if len(self._buffer) >= _PIECE:
            self._flush()

    def finish(self) -> Listed:
        self._flush()
        self._file.truncate(self._size)  # removes the rest of an earlier attempt
        self._file.sync()
        self._fs.sync_dir(self._path.rpartition("/")[0])
        return Listed(path=self._path, size=self._size, hash=self._digest.digest())

    def _flush(self) -> None:
        self._file.write_at(self._size, bytes(self._buffer))
        self._size += len(self._buffer)
        self._buffer.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def write_file(fs: Fs, path: str, pieces: Iterable[bytes]) -> Listed:
    """Write a whole file, durably."""
    with FileWriter(fs, path) as writer:
        for piece in pieces:
            writer.write(piece)
        return writer.finish()


def _pieces(fs: Fs, path: str) -> Iterator[bytes]:
    """Yield the bytes of a file, a megabyte at a time."""
    try:
        file = open_inside(fs, path)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as exc:
        raise PortableSetInvalid(path, "the file is missing") from exc
    except FileRefused as exc:
        raise PortableSetInvalid(path, str(exc)) from exc
    try:
        offset = 0
        while piece := file.read_at(offset, _PIECE):
            offset += len(piece)
            yield piece
    finally:
        file.close()


def check_file(fs: Fs, listed: Listed) -> None:
    """Raise PortableSetInvalid unless the file is the listed one."""
    for _ in _read_listed(fs, listed):
        pass


def copy_file(source: Fs, listed: Listed, target: Fs) -> None:
    """Copy a file, and raise PortableSetInvalid unless it is the listed one."""
    write_file(target, listed.path, _read_listed(source, listed))


def _read_listed(fs: Fs, listed: Listed) -> Iterator[bytes]:
    digest, size = sha256(), 0
    for piece in _pieces(fs, listed.path):
        digest.update(piece)
        size += len(piece)
        if size > listed.size:
            break  # too long: no need to read on
        yield piece
    if size != listed.size:
        what = "longer" if size > listed.size else f"{listed.size - size} bytes shorter"
        raise PortableSetInvalid(listed.path, f"the file is {what} than what was exported")
    if digest.digest() != listed.hash:
        raise PortableSetInvalid(listed.path, "the file was altered: its hash is not that of what was exported")


def items(fs: Fs, path: str) -> Iterator[bytes]:
    """Yield the raw items of a CBOR sequence (RFC 8742), in a window that does not grow with the file."""
    window = bytearray()
    pieces = _pieces(fs, path)
    more = True
    while more or window:
        while more and len(window) < _MAX_ITEM_BYTES:
            piece = next(pieces, b"")
            more = bool(piece)
            window += piece
        if not window:
            return
        data = bytes(window)
        pos = 0
        # Items that are certainly complete in the window, or all of them once the file has ended.
        while pos < len(data) and (not more or len(data) - pos >= _MAX_ITEM_BYTES):
            try:
                end = cbor.item_end(data, pos, what=path)
            except FormatError as exc:
                raise PortableSetInvalid(path, str(exc)) from exc
            yield data[pos:end]
            pos = end
        del window[:pos]


_RECEIPT: Final = {  # messages for faults of a RECEIPT; the first rule is reported first
    Rule.HUB_SIG: "hub_sig is by none of the hub keys",
    Rule.ROOT: "the entries do not fold into its root (I3)",
}
_MESSAGE: Final = {  # and of its MSG
    Rule.CT_HASH: "MSG: ct_hash is not the hash of the ciphertext (I1)",
    Rule.AUTHOR_SIG: "MSG: sig does not verify under client_id",
    Rule.LABEL: "the message is not the one of the receipt (I2)",
    Rule.LEAF: "the message is not the one of the receipt (I2)",
    Rule.ACK_AHEAD: "prev_ack {0.actual} names an entry that did not exist yet (I6)",
    Rule.ACK_BACK: "prev_ack goes back from {0.expected} to {0.actual} (I6)",
    Rule.CLIENT_SEQ: "client_seq is {0.actual}, {0.expected} follows (I8, I9)",
}


class EntryCheck:
    """The check of receipts and their messages, one after another: sorted, signed, and each label one run."""

    def __init__(self, hubs: Sequence[HubIdentity]) -> None:
        self.count = 0
        self._hubs = list(hubs)
        self._check = RunCheck(bytes(32), Mmr())

    def add(self, path: str, receipt: Receipt, payloads: str, msg: Msg | None) -> None:
        """Check the next entry. PortableSetInvalid names the file of the RECEIPT or of the MSG."""
        if (receipt.label, receipt.stream_seq) <= (self._check.label, self._check.size):
            raise PortableSetInvalid(path, f"{_place(receipt)}: not sorted by label and stream_seq")
        if receipt.label != self._check.label:
            self._check = RunCheck(receipt.label, Mmr())
        self._check.skip(receipt.stream_seq - self._check.size - 1)
        faults = {
            fault.rule: fault for fault in (*self._check.append(msg, receipt), *self._check_signatures(msg, receipt))
        }
        for where, words in ((path, _RECEIPT), (payloads, _MESSAGE)):
            for rule in words:
                if rule in faults:
                    raise PortableSetInvalid(where, f"{_place(receipt)}: {words[rule].format(faults[rule])}")
        self.count += 1

    def _check_signatures(self, msg: Msg | None, receipt: Receipt) -> list[Fault]:
        """Return faults of the signatures. The hub that signed the last receipt is tried first."""
        faults = check_signatures([Pair(msg, receipt)], None)[0][0]
        for place, hub in enumerate(self._hubs):
            if not check_signatures([Pair(None, receipt)], hub)[0][0]:
                self._hubs.insert(0, self._hubs.pop(place))
                return faults
        return [*faults, Fault(Rule.HUB_SIG, receipt.stream_seq)] if self._hubs else faults


def check_checkpoints(path: str, checkpoints: Iterable[Checkpoint], hubs: Sequence[HubIdentity]) -> int:
    """Check that checkpoints are sorted and signed by one of the hubs, if any is known; return their number."""
    count, last = 0, None
    for checkpoint in checkpoints:
        place = (checkpoint.label_curr, checkpoint.upto_seq)
        where = f"label {checkpoint.label_curr.hex()[:16]}…, upto_seq {checkpoint.upto_seq}"
        if last is not None and place <= last:
            raise PortableSetInvalid(path, f"{where}: not sorted by label and upto_seq")
        if hubs and not any(_has_signed(hub, checkpoint) for hub in hubs):
            raise PortableSetInvalid(path, f"{where}: hub_sig is by none of the hub keys")
        last = place
        count += 1
    return count


def check_attachment(listed: Listed) -> None:
    """Check that the name is the hash of the bytes, which `check_file` has compared with the list."""
    if listed.path.rpartition("/")[2] != listed.hash.hex():
        raise PortableSetInvalid(listed.path, "the attachment is not what its name says")


def _has_signed(hub: HubIdentity, checkpoint: Checkpoint) -> bool:
    try:
        hub.verify_checkpoint(checkpoint, 0)  # the set has no epoch_sec, so any key of the hub may have signed
    except VerifyError:
        return False
    return True


def _place(receipt: Receipt) -> str:
    return f"label {receipt.label.hex()[:16]}…, stream_seq {receipt.stream_seq}"
