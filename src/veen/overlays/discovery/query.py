"""Queries of a directory: one function answers locally and over RPC (001 spec-5 §6, D-112, D-152, CONN-07).

DISC.KIND    a kind that is none of hub, overlay, service
DISC.FILTER  a key that no filter of the kind has, or a value of another type
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from veen.core.errors import VeenError
from veen.overlays.discovery.bodies import DiscoveryFault, DiscoveryQuery, DiscoveryResult
from veen.overlays.discovery.directory import Directory

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
