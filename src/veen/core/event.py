"""Event: one opened entry of a log, with all an overlay may depend on and nothing else (spec §11, D-79).

Whoever reads a log makes events; overlays fold them. Everything here is a function of the log and the reader's key, so
two readers of one prefix hold equal events.

veen.mirror.copy.v1, the body in which a bridge carries an event of another hub (D-85, D-187, D-193).

Schema and body of the original are inside, byte for byte, with the hub it comes from and the times of that hub. The
payload header of the copy has the original's msg_id as parent_id and its expires_at. Readers open a copy to the event
that it carries; a reader that does not know this schema passes over it. Copies that have the original's schema
in their own header, as bridges made them before, stay what they are and carry no origin.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Final, Self

from veen.core import cbor
from veen.core.errors import FormatError, MalformedError
from veen.core.labels import schema_id
from veen.core.objects.payload_hdr import PayloadHdr
from veen.core.wire import LEFT_OUT_EMPTY, Bytes32, Form, Length, Uint, Wire

MAX_VIA: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Origin of a copied event, stated by the sender of the copy; readers believe only a registered bridge."""

    hub_id: bytes
    msg_id: bytes
    hub_ts: int
    ts: int  # ts* of the original at its place: the greatest hub_ts of its label so far
    via: tuple[bytes, ...] = ()  # further hubs that it has passed

    @property
    def hubs(self) -> frozenset[bytes]:
        """All hubs that the event has passed: it is copied to none of them again (D-187)."""
        return frozenset((self.hub_id, *self.via))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CopiedEvent(Wire, kind="veen.mirror.copy.v1"):
    """The event of another hub. Its msg_id there is the parent_id of the message that carries it."""

    FORM: ClassVar[Form] = "body"

    origin_hub_id: Bytes32
    origin_hub_ts: Uint
    origin_ts: Uint | None = None  # where it differs from origin_hub_ts: the clock of that hub had gone back
    schema: Bytes32
    body: bytes
    via: Annotated[tuple[Bytes32, ...], Length(0, MAX_VIA), LEFT_OUT_EMPTY] = ()

    def _check(self) -> None:
        if self.schema == COPY_SCHEMA:
            raise MalformedError("a copy of a copy carries the first original", self.KIND)
        if self.origin_ts is not None and self.origin_ts <= self.origin_hub_ts:
            raise MalformedError("origin_ts is given where it is greater than origin_hub_ts", self.KIND)


COPY_SCHEMA: Final = schema_id("veen.mirror.copy.v1")


def copy_body(schema: bytes, body: bytes, origin: Origin) -> bytes:
    """Return the body of a message with COPY_SCHEMA that carries an event; its parent_id is `origin.msg_id`."""
    return CopiedEvent(
        origin_hub_id=origin.hub_id,
        origin_hub_ts=origin.hub_ts,
        origin_ts=origin.ts if origin.ts > origin.hub_ts else None,
        schema=schema,
        body=body,
        via=origin.via,
    ).to_bytes()


def open_copy(hdr: PayloadHdr, body: bytes) -> tuple[PayloadHdr, bytes, Origin | None]:
    """Return header and body of the event that a message carries, and its origin.

    A message that is not a copy is returned as it is, without origin; so is one that names COPY_SCHEMA but has no valid
    body: its schema is one that nobody folds.
    """
    if hdr.schema != COPY_SCHEMA or hdr.parent_id is None:
        return hdr, body, None
    try:
        copied = CopiedEvent.from_bytes(body)
    except FormatError:
        return hdr, body, None
    ts = copied.origin_hub_ts if copied.origin_ts is None else copied.origin_ts
    origin = Origin(
        hub_id=copied.origin_hub_id, msg_id=hdr.parent_id, hub_ts=copied.origin_hub_ts, ts=ts, via=copied.via
    )
    return replace(hdr, schema=copied.schema), copied.body, origin


def encode_stored_header(hdr: PayloadHdr, origin: Origin | None) -> bytes:
    """Return header and origin of an event in one byte string, for tables; without origin, the header alone."""
    if origin is None:
        return hdr.to_bytes()
    return cbor.encode([hdr.to_bytes(), origin.hub_id, origin.hub_ts, origin.ts, list(origin.via)])


def read_stored_header(data: bytes) -> tuple[PayloadHdr, Origin | None]:
    """Read what `encode_stored_header` wrote; raise FormatError for other bytes."""
    tree = cbor.decode(data, what="stored header")
    if not isinstance(tree, list):
        return PayloadHdr.from_bytes(data), None
    try:
        raw, hub_id, hub_ts, ts, via = tree
        hdr = PayloadHdr.from_bytes(raw)
        body = CopiedEvent(
            origin_hub_id=hub_id,
            origin_hub_ts=hub_ts,
            origin_ts=ts if ts > hub_ts else None,
            schema=hdr.schema,
            body=b"",
            via=tuple(via),
        ).to_bytes()
        _, _, origin = open_copy(replace(hdr, schema=COPY_SCHEMA), body)
    except (TypeError, ValueError) as exc:
        raise MalformedError("the header of a copy has five parts", "stored header") from exc
    if origin is None:
        raise MalformedError("the origin of a copy is not well formed", "stored header")
    return hdr, origin


def origin_passed_on(
    origin: Origin | None, *, hub_id: bytes, msg_id: bytes, hub_ts: int, ts: int, is_bridge: bool
) -> Origin:
    """Return the origin that a copy of an entry carries.

    `hub_id`, `msg_id` and the times are those of the entry that is copied. If it is itself a copy by a bridge that the
    caller believes (`is_bridge`), its origin is kept; else the entry is the original, and what it states of its way is
    kept as hubs that it must not be sent to again.
    """
    if origin is None:
        return Origin(hub_id=hub_id, msg_id=msg_id, hub_ts=hub_ts, ts=ts)
    if is_bridge:
        return replace(origin, via=_way((*origin.via, hub_id), origin.hub_id))
    return Origin(hub_id=hub_id, msg_id=msg_id, hub_ts=hub_ts, ts=ts, via=_way((origin.hub_id, *origin.via), hub_id))


def _way(hubs: Iterable[bytes], but: bytes) -> tuple[bytes, ...]:
    return tuple(dict.fromkeys(hub_id for hub_id in hubs if hub_id != but))


Order = tuple[int, bytes, int, int, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One message at its place in the log, opened."""

    stream_id: bytes
    label: bytes
    epoch: int
    stream_seq: int
    leaf_hash: bytes
    client_id: bytes
    auth_ref: bytes | None
    hub_ts: int
    ts: int  # ts*: the greatest hub_ts of the label so far, so that time never runs against stream_seq (D-27)
    hdr: PayloadHdr
    body: bytes  # as it was sealed: hashes and bridges need the very bytes (D-03)
    origin: Origin | None = None  # of a copy that states where it comes from (D-187, D-193)
    placed: int | None = None  # ts* of its own label, where `hub_ts` and `ts` are those of its original

    @classmethod
    def from_message(cls, hdr: PayloadHdr, body: bytes, **place: Any) -> Self:
        """Return the event of a message with this header and body; of a copy, the event that it carries."""
        hdr, body, origin = open_copy(hdr, body)
        return cls(**place, hdr=hdr, body=body, origin=origin)

    @property
    def msg_id(self) -> bytes:
        """The name by which messages are referred to (spec §2): leaf_hash."""
        return self.leaf_hash

    @property
    def order(self) -> Order:
        """The place in the one logical order of all streams and labels (D-27).

        Two hubs may give a stream the same epoch, position and time; leaf_hash then decides, so that no two events tie.
        """
        ts = self.ts if self.placed is None else self.placed
        return ts, self.stream_id, self.epoch, self.stream_seq, self.leaf_hash
