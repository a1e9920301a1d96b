"""The bundle that crosses from zone to zone: a CBOR sequence of a header, events and a trailer (docs/bridge.md).

Both sides stream: a writer collects events in a file, because the header names the last of them; a reader holds one
item at a time. Decoding is strict, so a bundle has one encoding. zlib may wrap the file; hashes cover the plain items.

Reasons for rejecting a bundle, in the order of the checks (PRODUCTS 3.4), and other errors of a bridge.
"""

import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import IO, Annotated, ClassVar, Final

from veen.core import cbor
from veen.core.crypto.ed25519 import SigningKey, verify
from veen.core.errors import FormatError, MalformedError, StatedError, VerifyError, VersionError
from veen.core.hashing import Ht, tag_prefix
from veen.core.limits import DEFAULT_LIMITS
from veen.core.wire import LEFT_OUT_EMPTY, VERSION, Bytes32, Bytes64, Fixed, Form, Length, Uint, Version, Wire

# The first failure is reported. FORMAT to RANGE concern the bundle, the next six one event, the others the bundle.
ORDER: Final = (
    "AGB.FORMAT",
    "AGB.VERSION",
    "AGB.ID",
    "AGB.SIG_EXPORTER",
    "AGB.SOURCE",
    "AGB.CHAIN",
    "AGB.RANGE",
    "AGB.RECEIPT_SIG",
    "AGB.LABEL_SEQ",
    "AGB.MSG_SIG",
    "AGB.CT_HASH",
    "AGB.LEAF",
    "AGB.ROOT",
    "AGB.CHECKPOINT",
    "AGB.OPENING",
    "AGB.ATTACHMENT",
    "AGB.SCHEMA",
    "AGB.MAPPING",
)


class BridgeError(StatedError, code="AGB.BRIDGE"):
    """A bridge cannot continue."""


class BridgeMisconfigured(BridgeError, code="AGB.ROLES"):
    """Roles, rights or files of a bridge contradict each other (AGB-02)."""


class ReportRefused(BridgeError, code="AGB.REPORT"):
    """A file is not a signed report of a reconciliation."""


class VerifierFailed(BridgeError, code="AGB.VERIFIER"):
    """The verifier process ended without a verdict."""


class LinkLost(BridgeError, code="AGB.LINK"):
    """Datagrams of a one-way link are lost beyond repair."""


class Rejected(VerifyError, code="AGB.FORMAT"):
    """A bundle is rejected as a whole; `position` is the index of the faulty event, from 0."""

    def __init__(self, code: str, detail: str, position: int | None = None) -> None:
        super(StatedError, self).__init__(code, detail, position)
        self.code, self.detail, self.position = code, detail, position
        self.what = str(self)

    def __str__(self) -> str:
        place = "" if self.position is None else f" at event {self.position}"
        return f"{self.code}{place}: {self.detail}"


KIND: Final = "veen.bundle"
SUFFIX: Final = ".veenb"
MAX_ITEM_BYTES: Final = 2 << 20  # a MSG of 1 MiB, its receipt, and room
MAX_BUNDLE_BYTES: Final = 1 << 30  # of items; a compressed file must not become more
MAX_EVENTS: Final = 1 << 24
MAX_ATTACHED_BYTES: Final = 256 << 20  # the attachments of one event; with more they stay behind
_MAX_ATTACHMENTS: Final = DEFAULT_LIMITS.max_attachments_per_msg
_MAX_ITEMS: Final = 4_096  # CBOR items inside one item: a header with rotations has the most
_MAX_PEAKS: Final = 64
_MAX_ROTATIONS: Final = 1_024
_WINDOW: Final = 4 << 20
_ZLIB: Final = 0x78  # a bundle begins with a map, which no zlib stream does
_ID_TAG: Final = tag_prefix("veen/bundle")
_SIG_TAG: Final = "veen/bundle-sig"
_REASON_BYTES: Final = 256


def bridge_id_of(name: str) -> bytes:
    """Return the id of a bridge. Both zones configure the same name."""
    return Ht("veen/bridge-id", name.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Header(Wire, kind="bundle header"):
    """Contents of the bundle, and the tree before its first event."""

    FORM: ClassVar[Form] = "body"
    MAX_BYTES: ClassVar[int] = MAX_ITEM_BYTES
    MAX_ITEMS: ClassVar[int] = _MAX_ITEMS

    ver: ClassVar[Version] = VERSION
    kind: ClassVar[Fixed] = KIND
    source_hub_id: Bytes32
    source_hub_pk: Bytes32  # that signs when the bundle is made
    identity: bytes  # hub-identity.json
    identity_sig: Bytes64
    rotations: Annotated[tuple[bytes, ...], Length(0, _MAX_ROTATIONS)] = ()  # key.rotate records, from an older key on
    source_profile_id: Bytes32
    source_sdr_profile_id: Bytes32 | None = None
    export_stream_id: Bytes32
    stream_name: str | None = None
    label: Bytes32
    epoch: Uint
    export_seq_from: Uint
    export_seq_to: Uint  # export_seq_from - 1 in a heartbeat
    export_time_from: Uint
    export_time_to: Uint
    size_before: Uint
    peaks_before: Annotated[tuple[Bytes32, ...], Length(0, _MAX_PEAKS)]
    bridge_id: Bytes32
    bundle_seq: Uint  # of this bridge and label, from 1
    prev_bundle_id: Bytes32 | None = None
    created_at: Uint


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BundleEvent(Wire, kind="bundle event"):
    """One entry of the label. A withheld entry has no `msg`: its receipt alone keeps the tree complete."""

    FORM: ClassVar[Form] = "body"
    MAX_BYTES: ClassVar[int] = MAX_ITEM_BYTES
    MAX_ITEMS: ClassVar[int] = _MAX_ITEMS

    seq: Uint
    receipt: bytes
    msg: bytes | None = None
    withheld_reason: str | None = None
    opening: Bytes32 | None = None
    # coids by index; a BundleAttachment of each follows the event
    attachments: Annotated[tuple[Bytes32, ...], Length(1, _MAX_ATTACHMENTS), LEFT_OUT_EMPTY] = ()

    def _check(self) -> None:
        if self.attachments and self.msg is None:
            raise MalformedError("an event that is withheld has no attachments", self.KIND)
        if (self.msg is None) != (self.withheld_reason is not None) or (self.opening and self.msg is None):
            raise MalformedError("an event has a message, or a reason why it is withheld", self.KIND)
        if len(self.withheld_reason or "") > _REASON_BYTES:
            raise MalformedError(f"a reason has at most {_REASON_BYTES} characters", self.KIND)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BundleAttachment(Wire, kind="bundle attachment"):
    """The ciphertext of an attachment, placed behind its event."""

    FORM: ClassVar[Form] = "body"
    MAX_BYTES: ClassVar[int] = MAX_ITEM_BYTES

    att: Uint  # its index
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportCheckpoint(Wire, kind="export checkpoint"):
    """The source hub's checkpoint of the log up to the last event."""

    FORM: ClassVar[Form] = "body"

    checkpoint: bytes
    sdr_checkpoint: bytes | None = None
    timestamp: Uint  # hub_ts of the last entry that the checkpoint covers
    hub_public: Bytes32  # the key that signed it


@dataclass(frozen=True, slots=True, kw_only=True)
class Trailer(Wire, kind="bundle trailer"):
    """The checkpoint, the counts, the id of the bundle, and the exporter's signature over the id."""

    FORM: ClassVar[Form] = "body"
    MAX_BYTES: ClassVar[int] = 1 << 16
    MAX_ITEMS: ClassVar[int] = _MAX_ITEMS

    export_checkpoint: ExportCheckpoint
    count: Uint
    withheld: Uint
    bundle_id: Bytes32 = b""
    exporter_pk: Bytes32 = b""
    signature: Bytes64 = b""

    def bytes_to_hash(self) -> bytes:
        """Return the part of the trailer that bundle_id covers: its first three members."""
        checkpoint = self.export_checkpoint.to_tree()
        return cbor.encode({"export_checkpoint": checkpoint, "count": self.count, "withheld": self.withheld})

    def sign(self, bundle_id: bytes, key: SigningKey) -> "Trailer":
        """Return the trailer with id, key and signature."""
        return replace(self, bundle_id=bundle_id, exporter_pk=key.public, signature=key.sign(Ht(_SIG_TAG, bundle_id)))

    def is_signed(self) -> bool:
        """Return True if exporter_pk signed bundle_id. Trust in that key is checked elsewhere."""
        return verify(self.exporter_pk, Ht(_SIG_TAG, self.bundle_id), self.signature)


# --- writing -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenBundle:
    """A finished bundle."""

    header: Header
    trailer: Trailer
    bundle_hash: bytes  # SHA-256 of the file
    file_bytes: int


class BundleWriter:
    """Collects events in a separate file; `finish` writes header, events and trailer to the target.

    Owned by one thread. Its counters only grow, except by `go_back`; after `finish` the object cannot be used again.
    """

    def __init__(self, spool: IO[bytes]) -> None:
        self._spool = spool
        self.count = 0
        self.withheld = 0
        self.attachments = 0
        self.item_bytes = 0

    def add(self, event: BundleEvent) -> None:
        data = event.to_bytes()
        self._spool.write(data)
        self.item_bytes += len(data)
        self.count += 1
        self.withheld += event.msg is None

    def mark(self) -> tuple[int, int, int, int, int]:
        """Return the state that `go_back` restores."""
        return self._spool.tell(), self.count, self.withheld, self.attachments, self.item_bytes

    def go_back(self, mark: tuple[int, int, int, int, int]) -> None:
        """Remove everything added since `mark`."""
        position, self.count, self.withheld, self.attachments, self.item_bytes = mark
        self._spool.seek(position)
        self._spool.truncate()

    def attach(self, index: int, ciphertext: bytes) -> None:
        """Add the next attachment of the event added last."""
        data = BundleAttachment(att=index, data=ciphertext).to_bytes()
        self._spool.write(data)
        self.item_bytes += len(data)
        self.attachments += 1

    def finish(
        self,
        header: Header,
        checkpoint: ExportCheckpoint,
        key: SigningKey,
        target: IO[bytes],
        *,
        compress: bool = False,
    ) -> WrittenBundle:
        """Write the file. It is complete and on disk when this returns."""
        digest, out = sha256(_ID_TAG), _Output(target, compress=compress)

        def put(data: bytes) -> None:
            digest.update(data)
            out.write(data)

        put(header.to_bytes())
        self._spool.flush()
        self._spool.seek(0)
        while piece := self._spool.read(_WINDOW):
            put(piece)
        trailer = Trailer(export_checkpoint=checkpoint, count=self.count, withheld=self.withheld)
        digest.update(trailer.bytes_to_hash())
        trailer = trailer.sign(digest.digest(), key)
        out.write(trailer.to_bytes())
        out.close()
        target.flush()
        os.fsync(target.fileno())
        return WrittenBundle(header=header, trailer=trailer, bundle_hash=out.digest.digest(), file_bytes=out.size)


class _Output:
    """The file with its hash; compressed with zlib if requested."""

    def __init__(self, target: IO[bytes], *, compress: bool) -> None:
        self._target = target
        self._packer = zlib.compressobj(6) if compress else None
        self.digest = sha256()
        self.size = 0

    def write(self, data: bytes) -> None:
        self._write_raw(data if self._packer is None else self._packer.compress(data))

    def close(self) -> None:
        if self._packer is not None:
            self._write_raw(self._packer.flush())

    def _write_raw(self, data: bytes) -> None:
        self.digest.update(data)
        self.size += len(data)
        self._target.write(data)


# --- reading -----------------------------------------------------------------------------------------------------


class BundleReader:
    """Reads a bundle once from its beginning. `Rejected` with AGB.FORMAT or AGB.VERSION names the first fault.

    Owned by one thread. `header` is set from the start; `trailer`, `bundle_id` and `file_hash` after `events` has
    ended. `bundle_id` is computed, `trailer.bundle_id` is the claim of the bundle.
    """

    def __init__(self, file: IO[bytes]) -> None:
        file.seek(0)
        self._items = _items(_Input(file))
        self._digest = sha256(_ID_TAG)
        self.trailer: Trailer | None = None
        self.bundle_id = b""
        raw = next(self._items, b"")
        if not raw:
            raise Rejected("AGB.FORMAT", "the file is empty")
        try:
            self.header = Header.from_bytes(raw)
        except VersionError as exc:
            raise Rejected("AGB.VERSION", str(exc)) from exc
        except FormatError as exc:
            raise Rejected("AGB.FORMAT", str(exc)) from exc
        self._digest.update(raw)

    def events(self) -> Iterator[BundleEvent]:
        """Return an iterator over the events, without attachments."""
        return (item for item in self.contents() if isinstance(item, BundleEvent))

    def contents(self) -> Iterator[BundleEvent | BundleAttachment]:
        """Yield every event, each followed by its attachments; then read the trailer, which must be last.

        The caller checks the hashes of attachments against those that the event names.
        """
        count = withheld = 0
        awaited, attached = range(0), 0  # indices of attachments that must follow, bytes of those that did
        for raw in self._items:
            event = _item_of(raw, count)
            if isinstance(event, BundleAttachment):
                attached += len(event.data)
                if not awaited or event.att != awaited[0] or attached > MAX_ATTACHED_BYTES:
                    raise Rejected("AGB.FORMAT", "an attachment that its event does not name", count - 1)
                awaited = awaited[1:]
                self._digest.update(raw)
                yield event
                continue
            if awaited:
                raise Rejected("AGB.FORMAT", f"attachment {awaited[0]} of the event is not there", count - 1)
            if isinstance(event, Trailer):
                if (event.count, event.withheld) != (count, withheld):
                    raise Rejected("AGB.FORMAT", f"the trailer counts {event.count} events, found {count}")
                self._digest.update(event.bytes_to_hash())
                self.bundle_id, self.trailer = self._digest.digest(), event
                break
            self._digest.update(raw)
            count, withheld = count + 1, withheld + (event.msg is None)
            awaited, attached = range(len(event.attachments)), 0
            if count > MAX_EVENTS:
                raise Rejected("AGB.FORMAT", f"more than {MAX_EVENTS} events")
            yield event
        if self.trailer is None:
            raise Rejected("AGB.FORMAT", "the bundle ends without a trailer: it is truncated")
        if next(self._items, None) is not None:
            raise Rejected("AGB.FORMAT", "bytes follow the trailer")


def _item_of(raw: bytes, position: int) -> BundleEvent | BundleAttachment | Trailer:
    # The first key tells them apart: "seq" is an event, "att" an attachment.
    try:
        if raw[1:5] == b"\x63att":
            return BundleAttachment.from_bytes(raw)
        return BundleEvent.from_bytes(raw) if raw[1:5] == b"\x63seq" else Trailer.from_bytes(raw)
    except FormatError as exc:
        raise Rejected("AGB.FORMAT", str(exc), position) from exc


class _Input:
    """The bytes of the items, a window at a time; decompressed if necessary, up to the size limit."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._room = MAX_BUNDLE_BYTES
        first = file.read(1)
        file.seek(0)
        self._unpacker = zlib.decompressobj() if first[:1] == bytes((_ZLIB,)) else None
        self._packed = b""

    def read(self, size: int) -> bytes:
        """Return about `size` bytes; none at the end."""
        data = self._file.read(size) if self._unpacker is None else self._unpack(size)
        self._room -= len(data)
        if self._room < 0:
            raise Rejected("AGB.FORMAT", f"the bundle has more than {MAX_BUNDLE_BYTES} bytes")
        return data

    def _unpack(self, size: int) -> bytes:
        assert self._unpacker is not None  # noqa: S101 - the caller looked
        while not self._unpacker.eof:
            packed = self._packed or self._file.read(1 << 16)
            if not packed:
                raise Rejected("AGB.FORMAT", "the compressed file is truncated")
            try:
                data = self._unpacker.decompress(packed, size)
            except zlib.error as exc:
                raise Rejected("AGB.FORMAT", f"the compressed file is damaged: {exc}") from exc
            self._packed = self._unpacker.unconsumed_tail
            if data:
                return data
        if self._unpacker.unused_data or self._file.read(1):
            raise Rejected("AGB.FORMAT", "bytes follow the compressed bundle")
        return b""


def _items(source: _Input) -> Iterator[bytes]:
    """Yield the raw items of the sequence; at most a window and one item are in memory."""
    window, pos, ended, number = b"", 0, False, 0
    while True:
        while not ended and len(window) - pos < MAX_ITEM_BYTES:
            data = source.read(_WINDOW)
            ended = not data
            window, pos = window[pos:] + data, 0
        if pos >= len(window):
            return
        try:
            end = cbor.item_end(window, pos, what="bundle", max_items=_MAX_ITEMS)
        except FormatError as exc:
            raise Rejected("AGB.FORMAT", str(exc), max(number - 1, 0) if number else None) from exc
        if end - pos > MAX_ITEM_BYTES:
            raise Rejected("AGB.FORMAT", f"an item of more than {MAX_ITEM_BYTES} bytes", max(number - 1, 0))
        yield window[pos:end]
        pos = end
        number += 1
