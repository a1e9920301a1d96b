"""The messages of discovery: descriptors, retirements, queries and answers (001 spec-5 §4, §6, D-87, D-150).

A descriptor is a hint, never a statement to rely on: who uses it pins the hub's key and checks receipts (§8.1).

    DISC.ENDPOINT  the url of an endpoint has not the scheme of its kind
    DISC.NAME      a descriptor without a name
    DISC.ANSWER    an answer with both results and an error, or with neither

Place of issuance: where a service has its tokens issued, in the details of its auth_policy (001 spec-5 §7.3).
"""

from dataclasses import dataclass
from typing import Annotated, Any, Final, Self
from urllib.parse import urlsplit

from veen.core.hashing import Ht
from veen.core.labels import hub_id_of, stream_id_of
from veen.core.wire import Anything, Bytes32, Length, Uint
from veen.overlays.framework.schema import AnySchema, Body, Draft, InvalidBody, Schema

KINDS: Final = ("hub", "overlay", "service")
STREAMS: Final = {
    "hub": stream_id_of("disc.hubs.v1"),
    "overlay": stream_id_of("disc.overlays.v1"),
    "service": stream_id_of("disc.services.v1"),
}
_SCHEMES: Final = {"http": ("http",), "https": ("https",), "quic": ("quic", "https"), "nats": ("nats", "tls")}
_MANY: Final = 1_024

Texts = Annotated[tuple[str, ...], Length(0, _MANY)]
Ids = Annotated[tuple[Bytes32, ...], Length(0, _MANY)]


def overlay_id_of(name: str) -> bytes:
    """Return the id of an overlay (D-150). Its version is a field."""
    return Ht("disc/overlay", name.encode())


def service_id_of(operator_pk: bytes, name: str) -> bytes:
    """Return the id of a service (D-150). It derives from the operator's key, so no other operator has the same."""
    return Ht("disc/service", operator_pk + name.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint(Body, kind="disc.hub.advertise.v1 endpoint"):
    """Address of a hub. Unknown kinds are kept and not used."""

    kind: str
    url: str

    def _check(self) -> None:
        schemes = _SCHEMES.get(self.kind)
        try:
            scheme = urlsplit(self.url).scheme
        except ValueError:
            scheme = ""
        if schemes is not None and scheme not in schemes:
            raise InvalidBody("DISC.ENDPOINT", f"the url of a {self.kind} endpoint begins with {schemes[0]}://")


@dataclass(frozen=True, slots=True, kw_only=True)
class HubAdvert(Body, kind="disc.hub.advertise.v1"):
    """Descriptor of a hub (§4.1)."""

    hub_id: Bytes32
    hub_pk: Bytes32
    profile_id: Bytes32
    region: str
    tags: Texts
    endpoints: Annotated[tuple[Endpoint, ...], Length(0, _MANY)]
    overlays: Ids
    ttl_sec: Uint
    version: str

    @property
    def id(self) -> bytes:
        return self.hub_id

    @property
    def is_rotated(self) -> bool:
        """True if hub_id does not derive from hub_pk: then only the hub's identity proves that they belong together."""
        return hub_id_of(self.hub_pk) != self.hub_id


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayAdvert(Body, kind="disc.overlay.advertise.v1"):
    """Descriptor of an overlay (§4.2)."""

    overlay_id: Bytes32
    name: str
    version: str
    schemas: Ids
    docs_url: str | None = None
    tags: Texts
    ttl_sec: Uint

    def _check(self) -> None:
        _check_name(self.name)

    @property
    def id(self) -> bytes:
        return self.overlay_id


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthPolicy(Body, kind="disc.service.advertise.v1 auth_policy"):
    """Requirement of a service for its callers: cap_token, mtls, none, other."""

    mode: str
    details: Anything | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOperator(Body, kind="disc.service.advertise.v1 operator"):
    """The operator of a service, for people."""

    org: str | None = None
    contact: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAdvert(Body, kind="disc.service.advertise.v1"):
    """Descriptor of an application service (§4.3). The first stream takes requests, the second answers."""

    service_id: Bytes32
    name: str
    overlay_id: Bytes32
    methods: Texts
    stream_ids: Ids
    regions: Texts
    required_caps: Texts
    auth_policy: AuthPolicy | None = None
    operator: ServiceOperator | None = None
    tags: Texts
    ttl_sec: Uint

    def _check(self) -> None:
        _check_name(self.name)

    @property
    def id(self) -> bytes:
        return self.service_id


@dataclass(frozen=True, slots=True, kw_only=True)
class HubRetire(Body, kind="disc.hub.retire.v1"):
    """Retirement of the descriptor of a hub."""

    hub_id: Bytes32
    reason: str | None = None

    @property
    def id(self) -> bytes:
        return self.hub_id


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayRetire(Body, kind="disc.overlay.retire.v1"):
    """Retirement of the descriptor of an overlay."""

    overlay_id: Bytes32
    reason: str | None = None

    @property
    def id(self) -> bytes:
        return self.overlay_id


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRetire(Body, kind="disc.service.retire.v1"):
    """Retirement of the descriptor of a service."""

    service_id: Bytes32
    reason: str | None = None

    @property
    def id(self) -> bytes:
        return self.service_id


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryQuery(Body, kind="disc.query.v1"):
    """A query for descriptors (§6.1). The reply has the msg_id of the question as its parent_id (D-87)."""

    kind: str
    filter: Anything
    limit: Uint | None = None
    offset: Uint | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryFault(Body, kind="disc.query.res.v1 error"):
    """The error of a query without an answer."""

    code: str
    detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryResult(Body, kind="disc.query.res.v1"):
    """Descriptors by id with a flag for more; or an error and no descriptor."""

    ok: bool
    results: Anything  # a list of descriptors, free-form: their keys are sorted here (D-03)
    more: bool
    error: DiscoveryFault | None = None

    def _check(self) -> None:
        if not isinstance(self.results, list) or len(self.results) > _MANY:
            raise InvalidBody("DISC.ANSWER", f"results are a list of at most {_MANY} descriptors")
        if self.ok != (self.error is None) or (not self.ok and (self.results or self.more)):
            raise InvalidBody("DISC.ANSWER", "an answer has results or an error")


Advert = HubAdvert | OverlayAdvert | ServiceAdvert

ADVERTS: Final[dict[str, AnySchema]] = {
    "hub": Schema(HubAdvert.KIND, HubAdvert),
    "overlay": Schema(OverlayAdvert.KIND, OverlayAdvert),
    "service": Schema(ServiceAdvert.KIND, ServiceAdvert),
}
RETIRES: Final[dict[str, AnySchema]] = {
    "hub": Schema(HubRetire.KIND, HubRetire),
    "overlay": Schema(OverlayRetire.KIND, OverlayRetire),
    "service": Schema(ServiceRetire.KIND, ServiceRetire),
}
QUERY: Final = Schema(DiscoveryQuery.KIND, DiscoveryQuery)
RESULT: Final = Schema(DiscoveryResult.KIND, DiscoveryResult, needs_parent=True)
SCHEMAS: Final = (*ADVERTS.values(), *RETIRES.values(), QUERY, RESULT)

_FIELDS: Final = {"hub": "hub_id", "overlay": "overlay_id", "service": "service_id"}


def advertise(advert: Advert, *, expires_at: int | None = None) -> Draft:
    """Build an advertisement, to be sent to the stream of its kind (`STREAMS`)."""
    schema = next(schema for schema in ADVERTS.values() if isinstance(advert, schema.body))
    return schema.draft(advert, expires_at=expires_at)


def retire(kind: str, ident: bytes, reason: str | None = None) -> Draft:
    """Build the retirement of a descriptor. Only its publisher can send it."""
    schema = RETIRES[kind]
    return schema.draft(schema.body(**{_FIELDS[kind]: ident, "reason": reason}))


def _check_name(name: str) -> None:
    if not name:
        raise InvalidBody("DISC.NAME", "name must not be empty")


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuancePlace:
    """The stream and the keys of a service that issues tokens."""

    stream_id: bytes  # of requests, at the hub of the directory
    servers: tuple[bytes, ...]  # client_ids whose answers count; empty: anybody who may write there

    def to_details(self) -> dict[str, Any]:
        """Return the details to be published; keys in the order of deterministic CBOR."""
        return {"issue": {"stream_id": self.stream_id, "servers": list(self.servers)}}

    @classmethod
    def of_details(cls, details: Any) -> Self | None:
        """Return the place; None if the details name none, or have an unknown form."""
        place = details.get("issue") if isinstance(details, dict) else None
        if not isinstance(place, dict):
            return None
        stream_id, servers = place.get("stream_id"), place.get("servers", [])
        if not isinstance(servers, list) or not all(isinstance(key, bytes) and len(key) == 32 for key in servers):
            return None
        if not isinstance(stream_id, bytes) or len(stream_id) != 32:
            return None
        return cls(stream_id=stream_id, servers=tuple(servers))
