"""The context that all operations of the API share: the services of the hub, and the reading of requests.

`RecentProofs` caches inclusion proofs (spec §3.4.1, GEN-21). A proof under the root of an entry's own receipt never
changes (D-33), and writers and followers ask mostly for the newest entries. Losing a cached proof costs a few reads.
`LabelOrder` lists all labels by (epoch, label), for answers in pages (D-65). Parameters of GET requests are few, short
and strict.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from veen.core import cbor
from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import ApiCode, FormatError, VersionError
from veen.core.limits import MAX_CAP_STREAMS, Limits
from veen.core.lru import Lru
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import ControlRecord
from veen.core.objects.evidence import Equivocation
from veen.core.objects.identity import HubIdentity
from veen.core.objects.receipt import Receipt
from veen.core.objects.recognise import parse_json
from veen.core.tree.mmr import peak_nodes, root_of
from veen.core.tree.proof import MmrProof, prove_inclusion
from veen.core.wire import VERSION, Wire
from veen.hub.admission.control_index import ControlIndex
from veen.hub.admission.decide import Resolver
from veen.hub.admission.policy import Policy
from veen.hub.api.access import ANYBODY, Access, Denied, Principal, Role
from veen.hub.api.read_worker import ReadWorker
from veen.hub.api.reply import ApiError, Form
from veen.hub.process.config import AttachmentPolicy
from veen.hub.process.observe import Observer
from veen.hub.sequencer.sequencer import Sequencer
from veen.hub.sequencer.writer_priority import WriterPriority
from veen.storage.anchors import AnchorBackend
from veen.storage.attachments import ChangedAttachments, EntryRef
from veen.storage.keys.identity import MissingKeyError
from veen.storage.label_files import LabelFiles, LabelHead
from veen.storage.store import Store

_CAPACITY: Final = 2_048


class RecentProofs:
    """Recent proofs; the least recently used one is dropped first."""

    def __init__(self, capacity: int = _CAPACITY) -> None:
        self._proofs: Lru[tuple[bytes, int], MmrProof] = Lru(capacity)

    def __len__(self) -> int:
        return len(self._proofs)

    def prove(self, files: LabelFiles, stream_seq: int) -> MmrProof:
        """Return the proof of an entry under the root in its own receipt."""
        key = (files.label, stream_seq)
        proof = self._proofs.get(key)
        if proof is None:
            proof = prove_inclusion(files.node_at, stream_seq)
            self._proofs.put(key, proof)
        return proof


W = TypeVar("W", bound=Wire)

_MAP_MAJOR: Final = 5
_SMALL: Final = 1024
_LARGE_PAGES: Final = 4  # large pages read and encoded at a time: each takes tens of MiB
_MAX_ITEMS: Final = MAX_CAP_STREAMS + 64  # a token with the greatest number of streams


class HubKeyInfo(Protocol):
    """One key of the identity (D-42)."""

    @property
    def key_id(self) -> str: ...
    @property
    def hub_pk(self) -> bytes: ...
    @property
    def valid_from(self) -> int: ...
    @property
    def valid_until(self) -> int | None: ...


class IdentitySource(Protocol):
    """The identity of the hub (spec §8.4)."""

    @property
    def hub_id(self) -> bytes: ...
    @property
    def keys(self) -> Sequence[HubKeyInfo]: ...
    @property
    def signed_identity(self) -> tuple[HubIdentity, bytes]:
        """Contents of hub-identity.json with the matching hub-identity.sig."""

    def signing_key_at(self, hub_ts: int) -> SigningKey: ...


class AttachmentStore(Protocol):
    """Ciphertexts of attachments by coid (D-15). Methods may wait for a disk and are called in a thread."""

    def get(self, coid: bytes) -> bytes | None: ...
    def put(
        self, coid: bytes, data: bytes, *, owner: bytes = ..., max_bytes: int = ..., entry: EntryRef | None = ...
    ) -> bool: ...
    def changes_after(self, instance: bytes | None, after: int, limit: int) -> ChangedAttachments: ...


class Services(Protocol):
    """The parts of a running hub that the API uses."""

    @property
    def sequencer(self) -> Sequencer: ...
    @property
    def policy(self) -> Policy: ...
    @property
    def resolver(self) -> Resolver: ...
    @property
    def identity(self) -> IdentitySource: ...
    @property
    def access(self) -> Access: ...
    @property
    def observer(self) -> Observer: ...
    @property
    def server_version(self) -> str: ...
    @property
    def attachments(self) -> AttachmentStore | None: ...
    @property
    def attachment_policy(self) -> AttachmentPolicy: ...
    @property
    def anchors(self) -> AnchorBackend: ...
    @property
    def not_admitting(self) -> str | None:
        """Reason why no message is admitted now (low disk, draining), else None. Read before every submit, so it
        must be cheap."""

    def seal(self, files: LabelFiles | LabelHead, upto_seq: int, mmr_root: bytes, hub_ts: int) -> Checkpoint:
        """Sign a checkpoint, witnesses included, by the same function that seals chunks."""

    def not_ready(self) -> str | None:
        """Return the reason why the hub is not ready (readyz); None if it is."""

    def metrics_text(self) -> str | bytes: ...
    async def rotate_key(self, overlap_seconds: int, request_id: bytes | None = None) -> ControlRecord:
        """Give the hub its next key; return the record that introduces it, once in force. Raise IdentityError if it
        cannot be now."""

    def keep_evidence(self, evidence: Equivocation) -> None:
        """Store verified proof that this hub equivocated, in bounded space."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request, as a transport hands it over."""

    operation: str
    body: bytes = b""
    form: Form = "cbor"  # of the body
    answer: Form = "cbor"  # wanted
    pow_header: str | None = None
    cap_header: str | None = None
    last_event_id: str | None = None
    principal: Principal = ANYBODY
    query: Mapping[str, str] = field(default_factory=dict)


class ApiContext:
    """Lookups for operations, and the errors of spec §10.6."""

    def __init__(self, services: Services) -> None:
        self.services = services
        self.page_turns = asyncio.Semaphore(_LARGE_PAGES)  # for pages of several slices (`pages.open_page`)
        self.priority = WriterPriority()
        services.sequencer.on_applied(self._on_applied)
        self.proofs = RecentProofs()
        self.read_worker = ReadWorker(self.priority)

    def close(self) -> None:
        self.read_worker.close()

    def _on_applied(self, labels: Sequence[bytes]) -> None:
        if labels:
            self.priority.note_write()

    @property
    def control(self) -> ControlIndex:
        """The durable records of the control journal."""
        return ControlIndex(self.store)

    @property
    def store(self) -> Store:
        """The store, for this step only: the sequencer may open it again. ApiError (503) while it does (decisions.md
        498)."""
        sequencer = self.services.sequencer
        if sequencer.is_recovering:
            raise ApiError.unavailable("the hub is reading its journal again, because its disk was full")
        return sequencer.store

    @property
    def limits(self) -> Limits:
        """The limits in force. They are in memory, so they are available while the store is opened again."""
        return self.services.sequencer.store.state.limits

    async def journal(
        self, make: Callable[[int], Wire | None], request_id: bytes | None = None
    ) -> ControlRecord | None:
        """Append a control record by `Sequencer.control`; it is durable on return."""
        return await self.services.sequencer.control(make, request_id=request_id)

    def check_role(self, role: Role, principal: Principal) -> None:
        """Raise the ApiError of D-163 unless `principal` has the role now."""
        denied = self.services.access.check(role, principal)
        if denied is None:
            return
        if denied in (Denied.UNAUTHORIZED, Denied.UNKNOWN):
            challenge = "Bearer" if denied is Denied.UNAUTHORIZED else 'Bearer error="invalid_token"'
            raise ApiError(ApiCode.UNAUTHORIZED, denied.value, headers=(("WWW-Authenticate", challenge),))
        hint = {"hint": "configure auth.admin_token_files"} if denied is Denied.CLOSED else None
        raise ApiError(ApiCode.FORBIDDEN, denied.value, detail=hint)

    def read(self, call: Call, kind: type[W], max_items: int = _MAX_ITEMS) -> W:
        """Decode the request as `kind`, the only kind that this operation accepts."""
        try:
            if call.form == "cbor":
                if is_other_version(call.body):
                    raise VersionError(kind.KIND, 0)
                if len(call.body) > _SMALL:  # strict decoding is slow: first check that this can be a request
                    cbor.item_end(call.body, what=kind.KIND, max_items=max_items)
                return kind.from_bytes(call.body)
            tree = parse_json(call.body)
            # Another version may have other fields, so its number is checked before them.
            if kind.FORM == "map" and type(tree) is dict and type(ver := tree.get("ver")) is int and ver != VERSION:
                raise VersionError(kind.KIND, ver)
            return kind.from_json(tree)
        except FormatError as exc:
            raise ApiError.of_format(exc) from exc

    def files(self, label: bytes) -> LabelFiles:
        """Return the readable files of a label that has entries; raise ApiError (404) for any other."""
        files = self.store.files(label)
        if files is None or not files.size:
            raise not_found("no entry has this label", label=label.hex())
        return files

    def entry(self, label: bytes, stream_seq: int, field_name: str = "stream_seq") -> LabelFiles:
        """Return the files of the label of one entry; raise ApiError (404) if the entry does not exist (D-64)."""
        if stream_seq == 0:
            raise bad_request("numbers of entries begin with 1", field_name)
        files = self.files(label)
        if stream_seq > files.size:
            raise not_found("the label has no such entry yet", label=label.hex(), stream_seq=stream_seq)
        return files

    async def unpack(self, files: LabelFiles, stream_seq: int) -> None:
        """Unpack, in another thread, the file that an entry is read from. Read the entry then without awaiting
        anything."""
        packed = self.store.reader.find_packed(files, stream_seq)
        if packed is None:
            return
        try:
            unpacked = await self.read_worker.unpack(packed)
        except FileNotFoundError:  # erased a moment ago: the reader raises the error
            return
        self.store.reader.keep(packed, unpacked)

    async def receipt(self, files: LabelFiles, stream_seq: int) -> bytes:
        """Read one RECEIPT, from a growing, sealed or compressed chunk."""
        await self.unpack(files, stream_seq)
        return self.store.reader.receipt(files, stream_seq)

    async def checkpoint(self, files: LabelFiles, upto_seq: int) -> Checkpoint:
        """Return a checkpoint that is computed on demand and not stored; only those that seal chunks are (D-39)."""
        if upto_seq == files.size:
            return self.latest_checkpoint(files.head())
        root = root_of([files.node_at(*node) for node in peak_nodes(upto_seq)])
        receipt = Receipt.from_bytes(await self.receipt(files, upto_seq))
        return self._seal(files, upto_seq, root, receipt.hub_ts)

    def latest_checkpoint(self, head: LabelHead) -> Checkpoint:
        """Return the checkpoint of the whole label, whose root and last time are in memory."""
        return self._seal(head, head.size, head.root(), head.last_ts)

    def _seal(self, files: LabelFiles | LabelHead, upto_seq: int, root: bytes, hub_ts: int) -> Checkpoint:
        try:
            return self.services.seal(files, upto_seq, root, hub_ts)
        except MissingKeyError as exc:  # D-41
            raise not_found("the key of that time was retired and removed", reason="key_retired") from exc


def bad_request(message: str, field_name: str, **detail: Any) -> ApiError:
    return ApiError(ApiCode.BAD_REQUEST, message, detail={"field": field_name, **detail})


def not_found(message: str, **detail: Any) -> ApiError:
    return ApiError(ApiCode.NOT_FOUND, message, detail=detail)


def is_other_version(data: bytes) -> bool:
    """Return True if the bytes begin a request of another version: a map whose key 1 has an integer other than 1."""
    if len(data) < 3 or data[0] >> 5 != _MAP_MAJOR or data[0] & 0x1F > 23 or data[1] != 1:
        return False
    if data[2] >> 5 != 0:
        return False
    try:
        return bool(cbor.decode(data[2 : cbor.item_end(data, 2)]) != VERSION)
    except FormatError:
        return False


_FLAGS: Final = {"1": True, "true": True, "0": False, "false": False}
_U64_DIGITS: Final = 20


def hex_field(query: Mapping[str, str], name: str, size: int) -> bytes:
    text = query.get(name, "")
    if len(text) == 2 * size and text == text.lower():
        try:
            value = bytes.fromhex(text)
        except ValueError:
            value = b""
        if len(value) == size:  # fromhex also skips white space
            return value
    raise bad_request(f"expected {size} bytes in lower-case hex", name)


def uint_field(query: Mapping[str, str], name: str, default: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= _U64_DIGITS and int(text) < 2**64):
        raise bad_request("expected an unsigned 64-bit integer", name)
    return int(text)


def flag_field(query: Mapping[str, str], name: str) -> bool:
    text = query.get(name, "0")
    if text not in _FLAGS:
        raise bad_request("expected 1 or 0", name)
    return _FLAGS[text]


_PAGE: Final = 64  # labels that are looked up in one turn of the event loop


class LabelOrder:
    """All labels in the order of the index; the store adds labels that the index does not have yet."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    def __len__(self) -> int:
        return self._context.store.label_count

    def last(self) -> LabelFiles | None:
        """Return the label of the newest entry."""
        return self._context.store.newest

    async def iterate(
        self, epoch_min: int, epoch_max: int, after: bytes | None, limit: int | None = None
    ) -> AsyncIterator[LabelHead]:
        """Yield labels of these epochs in order, after label `after` of the first one; at most `limit`."""
        epoch, left = epoch_min, limit
        while left is None or left > 0:
            page = self._context.store.heads(epoch, after, _PAGE if left is None else min(left, _PAGE))
            for head in page:
                if head.epoch > epoch_max:
                    return
                yield head
            if len(page) < _PAGE:
                return
            epoch, after = page[-1].epoch, page[-1].label
            left = None if left is None else left - len(page)
            await asyncio.sleep(0)
