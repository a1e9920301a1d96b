"""Plan to use a service: hub, overlay, service, capability and streams (001 spec-5 §7).

Pure: the directory and what the caller wants go in, a plan with the reason of every exclusion comes out. Everything in
it is a hint (§8.1): whoever follows it checks the hub's identity and has its key confirmed before anything is sent.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from veen.overlays.discovery.bodies import HubAdvert, OverlayAdvert, ServiceAdvert
from veen.overlays.discovery.directory import Directory

_USABLE: Final = ("https", "http")  # the transports that a client has, the better first

A = TypeVar("A", HubAdvert, ServiceAdvert)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectWish:
    """Requirements and means of the caller."""

    overlay_id: bytes
    schemas: frozenset[bytes]  # that the caller's implementation of the overlay uses
    profiles: frozenset[bytes]  # profile_ids that the caller supports
    method: str | None = None
    region: str | None = None
    tags: frozenset[str] = frozenset()
    service: str | None = None  # a name
    pinned: frozenset[bytes] = frozenset()  # keys of hubs that the caller trusts already
    publishers: frozenset[bytes] | None = None  # of services; None: any


@dataclass(frozen=True, slots=True)
class Excluded:
    """A descriptor that the plan does not use."""

    kind: str
    id: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class ConnectPlan:
    """Candidates of each phase, the best first."""

    hubs: tuple[HubAdvert, ...]
    services: tuple[ServiceAdvert, ...]
    excluded: tuple[Excluded, ...]

    @property
    def hub(self) -> HubAdvert | None:
        return self.hubs[0] if self.hubs else None

    @property
    def service(self) -> ServiceAdvert | None:
        return self.services[0] if self.services else None

    @property
    def needs_token(self) -> bool:
        """True if the service requires a cap_token (phase 3)."""
        policy = None if self.service is None else self.service.auth_policy
        return policy is not None and policy.mode == "cap_token"


def usable_url(hub: HubAdvert) -> str | None:
    """Return the URL of an endpoint that this client supports; None if there is none."""
    urls = {endpoint.kind: endpoint.url for endpoint in reversed(hub.endpoints)}
    return next((urls[kind] for kind in _USABLE if kind in urls), None)


def plan_connection(directory: Directory, wish: ConnectWish) -> ConnectPlan:
    """Choose hub and service. Deterministic: equal directories and wishes give equal plans."""
    excluded: list[Excluded] = []
    hubs = _usable("hub", _adverts(directory.hubs), lambda hub: _hub_reason(hub, wish), excluded)
    hubs.sort(
        key=lambda hub: (
            hub.hub_pk not in wish.pinned,
            wish.region is not None and hub.region != wish.region,
            wish.overlay_id not in hub.overlays,
            hub.hub_id,
        )
    )
    overlay: Any = directory.overlays.get(wish.overlay_id)
    problem = _overlay_reason(None if overlay is None else overlay.descriptor, wish)
    if problem is not None:
        excluded.append(Excluded("overlay", wish.overlay_id, problem))
    publishers = {ident: listing.publisher for ident, listing in directory.services.items()}
    services = _usable(
        "service",
        _adverts(directory.services),
        lambda service: problem or _service_reason(service, publishers[service.service_id], wish),
        excluded,
    )
    services.sort(
        key=lambda service: (wish.region is not None and wish.region not in service.regions, service.service_id)
    )
    return ConnectPlan(tuple(hubs), tuple(services), tuple(excluded))


def _adverts(listings: Mapping[bytes, Any]) -> list[Any]:
    return [listing.descriptor for listing in listings.values()]


def _usable(kind: str, adverts: Collection[A], reason_of: Any, excluded: list[Excluded]) -> list[A]:
    usable = []
    for advert in adverts:
        reason = reason_of(advert)
        if reason is None:
            usable.append(advert)
        else:
            excluded.append(Excluded(kind, advert.id, reason))
    return usable


def _hub_reason(hub: HubAdvert, wish: ConnectWish) -> str | None:
    """Return the reason why a hub cannot be used (§7.1); None if it can."""
    if hub.profile_id not in wish.profiles:
        return "its profile is not supported"
    if usable_url(hub) is None:
        return "it has no endpoint of a kind that is spoken here"
    if wish.tags and wish.tags.isdisjoint(hub.tags):
        return "it has none of the tags"
    return None


def _overlay_reason(overlay: OverlayAdvert | None, wish: ConnectWish) -> str | None:
    """Return the reason why no service over the overlay can be used (§7.2); None if one can."""
    if overlay is None:
        return "the overlay is not in the directory"
    if not wish.schemas <= set(overlay.schemas):
        return "the overlay has other schemas than the ones spoken here"
    return None


def _service_reason(service: ServiceAdvert, publisher: bytes, wish: ConnectWish) -> str | None:
    if service.overlay_id != wish.overlay_id:
        return "it speaks another overlay"
    if wish.method is not None and wish.method not in service.methods:
        return "it has not the method"
    if wish.service is not None and service.name != wish.service:
        return "it has another name"
    if wish.publishers is not None and publisher not in wish.publishers:
        return "its publisher is not trusted"
    if wish.tags and wish.tags.isdisjoint(service.tags):
        return "it has none of the tags"
    if not service.stream_ids:
        return "it names no stream"
    return None
