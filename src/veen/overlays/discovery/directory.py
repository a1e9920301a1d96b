"""The directory: hubs, overlays and services, as a fold over the discovery streams (001 spec-5 §5, D-112, D-151).

An advertise record inserts or replaces the descriptor of its id, a retire record hides it until it is advertised again,
and its time hides it as well: payload_hdr.expires_at, else hub_ts + ttl_sec, that second included. Nothing else changes
the directory, so its view at any position is a function of the log.

Who may speak for an id is the reader's choice (`Publishers`): by default its first publisher, until he retires it.

    DISC.STREAM     the record does not stand on the stream of its kind
    DISC.PUBLISHER  the id belongs to another publisher, or the publisher is none of those that count
    DISC.UNKNOWN    a retire record for an id that was never advertised

Queries of a directory: one function answers locally and over RPC (001 spec-5 §6, D-112, D-152, CONN-07).

DISC.KIND    a kind that is none of hub, overlay, service
DISC.FILTER  a key that no filter of the kind has, or a value of another type
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from veen.core import cbor
from veen.core.errors import VeenError
from veen.core.event import Order
from veen.overlays.discovery.bodies import (
    ADVERTS,
    KINDS,
    RETIRES,
    STREAMS,
    Advert,
    DiscoveryFault,
    DiscoveryQuery,
    DiscoveryResult,
)
from veen.overlays.framework.fold import NO_MIRRORS, Mirrors
from veen.overlays.framework.ordered import Ordered, Table
from veen.overlays.framework.schema import SchemaSet, Typed, Violation
from veen.overlays.framework.typed_table import StateTable

_KIND_OF: Final = {schema.body: kind for schemas in (ADVERTS, RETIRES) for kind, schema in schemas.items()}
_ADVERT_BODIES: Final = tuple(schema.body for schema in ADVERTS.values())

_Key = tuple[str, bytes]  # kind, id


@dataclass(frozen=True, slots=True)
class Publishers:
    """Rule for valid publishers (D-151): `pinned` ones only, or everyone; `open` lets anyone replace any id."""

    pinned: frozenset[bytes] | None = None
    is_open: bool = False

    @classmethod
    def of(cls, pinned: Collection[bytes]) -> "Publishers":
        return cls(frozenset(pinned))

    def check(self, client_id: bytes, owner: bytes | None) -> None:
        if self.pinned is not None and client_id not in self.pinned:
            raise Violation("DISC.PUBLISHER", "the publisher is not accepted by the reader")
        if not self.is_open and owner not in (None, client_id):
            raise Violation("DISC.PUBLISHER", "the id belongs to another publisher")


FIRST_WRITER: Final = Publishers()


@dataclass(frozen=True, slots=True)
class Listing:
    """A descriptor, its publisher and its position in the log."""

    kind: str
    id: bytes
    body: bytes
    publisher: bytes  # client_id
    owner: bytes | None  # who may replace it; None once it was retired
    expires_at: int
    hub_ts: int
    msg_id: bytes
    order: Order
    is_retired: bool = False
    reason: str | None = None

    @property
    def descriptor(self) -> Advert:
        advert: Advert = ADVERTS[self.kind].body.from_tree(self.tree)
        return advert

    @property
    def tree(self) -> Any:
        """The body as sent."""
        return cbor.decode(self.body, what=ADVERTS[self.kind].name)

    def is_visible(self, as_of: int) -> bool:
        return not self.is_retired and as_of <= self.expires_at


@dataclass(frozen=True, slots=True)
class Directory:
    """Descriptors at `as_of`, by id; `hidden` are those retired or expired."""

    as_of: int
    hubs: Mapping[bytes, Listing]
    overlays: Mapping[bytes, Listing]
    services: Mapping[bytes, Listing]
    hidden: tuple[Listing, ...]

    def of(self, kind: str) -> Mapping[bytes, Listing]:
        return {"hub": self.hubs, "overlay": self.overlays, "service": self.services}[kind]


class DirectoryFold(Ordered[_Key, Listing, Directory]):
    """Fold of the directory of one fabric. `streams` are those of hubs, overlays and services; None: any stream."""

    name = "discovery"
    schemas = SchemaSet([*ADVERTS.values(), *RETIRES.values()])
    TABLE = dict[_Key, Listing]

    def __init__(
        self,
        *,
        publishers: Publishers = FIRST_WRITER,
        streams: Mapping[str, bytes] | None = None,
        any_stream: bool = False,
        mirrors: Mirrors = NO_MIRRORS,
    ) -> None:
        super().__init__(mirrors=mirrors)
        self._publishers = publishers
        self._streams = None if any_stream else dict(streams or STREAMS)

    def settings(self) -> Any:
        pinned = None if self._publishers.pinned is None else sorted(self._publishers.pinned)
        streams = None if self._streams is None else [self._streams[kind] for kind in KINDS]
        return [pinned, self._publishers.is_open, streams]

    def step(self, state: Table[_Key, Listing], event: Typed[Any]) -> None:
        e, body = event
        kind = _KIND_OF[type(body)]
        if self._streams is not None and e.stream_id != self._streams[kind]:
            raise Violation("DISC.STREAM", f"the record is not on the stream of {kind}s")
        listing = state.get((kind, body.id))
        self._publishers.check(e.client_id, None if listing is None else listing.owner)
        if isinstance(body, _ADVERT_BODIES):
            ends = e.hub_ts + body.ttl_sec if e.hdr.expires_at is None else e.hdr.expires_at
            state[kind, body.id] = Listing(
                kind=kind,
                id=body.id,
                body=e.body,
                publisher=e.client_id,
                owner=e.client_id,
                expires_at=ends,
                hub_ts=e.hub_ts,
                msg_id=e.leaf_hash,
                order=e.order,
            )
        elif listing is None:
            raise Violation("DISC.UNKNOWN", f"no {kind} of this id was advertised")
        else:
            state[kind, body.id] = replace(
                listing, owner=None, is_retired=True, reason=body.reason, order=e.order, msg_id=e.leaf_hash
            )

    def show(self, state: Table[_Key, Listing], as_of: int) -> Directory:
        listings = [listing for _, listing in sorted(state.items())]

        def visible(kind: str) -> Iterator[tuple[bytes, Listing]]:
            return ((item.id, item) for item in listings if item.kind == kind and item.is_visible(as_of))

        hidden = tuple(listing for listing in listings if not listing.is_visible(as_of))
        return Directory(as_of, dict(visible("hub")), dict(visible("overlay")), dict(visible("service")), hidden)


def _listings(view: Directory) -> Iterator[tuple[tuple[str, bytes, bool], Listing]]:
    for kind in ("hub", "overlay", "service"):
        yield from (((kind, id_, True), listing) for id_, listing in view.of(kind).items())
    yield from (((listing.kind, listing.id, False), listing) for listing in view.hidden)


STATES: Final = (
    StateTable.of(
        DirectoryFold.name,
        Listing,
        {"kind": "text", "id": "hex", "is_visible": "boolean"},
        _listings,
        about="hubs, overlays and services; those that were retired or have expired are not visible",
        times=("expires_at", "hub_ts"),
    ),
)


DEFAULT_LIMIT: Final = 100
MAX_LIMIT: Final = 1_000

Test = Callable[[Any, Any], bool]  # the descriptor, the value of the filter


class QueryRefused(VeenError, code="DISC.FILTER"):
    """An invalid query."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(code, detail)
        self.code, self.detail = code, detail

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}"


def _tags(advert: Any, tags: list[str]) -> bool:
    return not tags or not set(tags).isdisjoint(advert.tags)


_FILTERS: Final[Mapping[str, Mapping[str, tuple[type, Test]]]] = {
    "hub": {
        "region": (str, lambda hub, region: hub.region == region),
        "tags_any": (list, _tags),
        "overlay_id": (bytes, lambda hub, ident: ident in hub.overlays),
    },
    "service": {
        "name_prefix": (str, lambda service, prefix: service.name.startswith(prefix)),
        "method": (str, lambda service, method: method in service.methods),
        "overlay_id": (bytes, lambda service, ident: service.overlay_id == ident),
        "region": (str, lambda service, region: region in service.regions),
        "tags_any": (list, _tags),
    },
    "overlay": {
        "name_prefix": (str, lambda overlay, prefix: overlay.name.startswith(prefix)),
        "schema": (bytes, lambda overlay, schema: schema in overlay.schemas),
        "tags_any": (list, _tags),
    },
}


def answer(directory: Directory, query: DiscoveryQuery) -> DiscoveryResult:
    """Return descriptors by id. A limit above MAX_LIMIT is MAX_LIMIT; 0 asks only if there is one."""
    try:
        tests = _tests(query)
    except QueryRefused as exc:
        return DiscoveryResult(ok=False, results=[], more=False, error=DiscoveryFault(code=exc.code, detail=exc.detail))
    limit = DEFAULT_LIMIT if query.limit is None else min(query.limit, MAX_LIMIT)
    offset = query.offset or 0
    results: list[Any] = []
    matches = 0
    for listing in directory.of(query.kind).values():  # by id
        descriptor = listing.descriptor
        if all(test(descriptor, value) for test, value in tests):
            if offset <= matches < offset + limit:
                results.append(listing.tree)
            matches += 1
    return DiscoveryResult(ok=True, results=results, more=matches > offset + limit)


def _tests(query: DiscoveryQuery) -> list[tuple[Test, Any]]:
    if query.kind not in _FILTERS:
        raise QueryRefused("DISC.KIND", f"there is no kind {query.kind[:64]!r}")
    filters = _FILTERS[query.kind]
    if not isinstance(query.filter, dict):
        raise QueryRefused("DISC.FILTER", "a filter is a map")
    tests = []
    for key, value in query.filter.items():
        if key not in filters:
            raise QueryRefused("DISC.FILTER", f"no filter for {query.kind}s has the key {str(key)[:64]!r}")
        kind, test = filters[key]
        if type(value) is not kind or (isinstance(value, list) and not all(type(tag) is str for tag in value)):
            raise QueryRefused("DISC.FILTER", f"{key} is of another type")
        tests.append((test, value))
    return tests
