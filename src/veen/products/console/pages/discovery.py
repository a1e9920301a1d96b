"""The directory: hubs, overlays and services that can be found, and what was retired or has expired (001 spec-5)."""

from typing import Any

from veen.overlays.discovery.bodies import HubAdvert, ServiceAdvert
from veen.overlays.discovery.directory import DirectoryFold, Listing
from veen.overlays.framework.plain import plain
from veen.products.console.pages.common import digest, entry_link, fold_page, now
from veen.products.console.report import DigestCell, MarkCell, MomentCell, Section
from veen.products.console.views import Console, PageView, Query


async def discovery(console: Console, query: Query) -> PageView:
    folded = await console.events.fold(DirectoryFold(), now=now())
    directory = folded.state
    listings = [*directory.hubs.values(), *directory.overlays.values(), *directory.services.values()]
    sections = [
        Section(
            title="What can be found",
            note="The first publisher of an id may replace it. Whether a service works is not shown here.",
            columns=("Kind", "Name", "Where", "Id", "Publisher", "Until", "Entry"),
            rows=tuple(
                (
                    listing.kind,
                    _name(listing),
                    _where(listing),
                    DigestCell(listing.id.hex()),
                    digest(listing.publisher),
                    MomentCell(listing.expires_at),
                    _entry(folded, listing),
                )
                for listing in listings
            ),
            empty="Nothing can be found at this moment.",
        ),
        Section(
            title="Retired or expired",
            columns=("Kind", "Name", "State", "Why", "Entry"),
            rows=tuple(
                (
                    listing.kind,
                    _name(listing),
                    MarkCell("retired", "partly") if listing.is_retired else MarkCell("expired", "muted"),
                    listing.reason,
                    _entry(folded, listing),
                )
                for listing in directory.hidden
            ),
        ),
    ]
    return fold_page(
        folded,
        title="Discovery",
        command="veen disc list --all",
        data={
            "listings": [_data(listing) for listing in listings],
            "hidden": [_data(listing) for listing in directory.hidden],
        },
        sections=sections,
        nothing="no stream of your keyring has a directory.",
    )


def _data(listing: Listing) -> dict[str, Any]:
    return {
        "kind": listing.kind,
        "id": listing.id.hex(),
        "name": _name(listing),
        "publisher": listing.publisher.hex(),
        "expires_at": listing.expires_at,
        "is_retired": listing.is_retired,
        "reason": listing.reason,
        "descriptor": plain(listing.descriptor),
    }


def _name(listing: Listing) -> str:
    advert = listing.descriptor
    return advert.region if isinstance(advert, HubAdvert) else advert.name


def _where(listing: Listing) -> str:
    advert = listing.descriptor
    if isinstance(advert, HubAdvert):
        return ", ".join(endpoint.url for endpoint in advert.endpoints)
    return ", ".join(advert.methods) if isinstance(advert, ServiceAdvert) else f"version {advert.version}"


def _entry(folded: Any, listing: Listing) -> Any:
    place = next(
        (
            (event.label, event.stream_seq)
            for stream in folded.streams
            for event in stream.events
            if event.leaf_hash == listing.msg_id
        ),
        None,
    )
    return None if place is None else entry_link(folded, *place)
