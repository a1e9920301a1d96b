"""Agreements and other operations, each by its own fold, under no policy: nobody has special rights (001 spec-3).

The nouns of overlays that other packages bring follow them.

The directory: hubs, overlays and services that can be found, and what was retired or has expired (001 spec-5).

Wallets with streams of their own, as `veen wallet` has them: balances of all, and the steps of one (WAL).
"""

from functools import cache
from typing import Any, Final

from veen.overlays.discovery.bodies import HubAdvert, ServiceAdvert
from veen.overlays.discovery.directory import DirectoryFold, Listing
from veen.overlays.framework.nouns import Noun
from veen.overlays.framework.plain import plain
from veen.overlays.framework.registry import BUILTIN
from veen.overlays.operations.nouns import NOUNS
from veen.overlays.wallet.ledger import LedgerFold
from veen.overlays.wallet.statements import Statement, statement
from veen.products.console.charts import steps
from veen.products.console.errors import BadAddress
from veen.products.console.events import FoldedStreams
from veen.products.console.pages.common import basis, digest, entry_link, fold_page, now
from veen.products.console.views import (
    CONSOLE,
    Console,
    DigestCell,
    LinkCell,
    MarkCell,
    MomentCell,
    PageView,
    Query,
    Section,
    stream_word,
)

_GROUP: Final = "veen op"
_ORDER: Final = ("agreement", "access", "delegation", "paid", "publication", "recovery", "audit", "mirror")


@cache
def _nouns() -> dict[str, tuple[str, Noun]]:
    """Return the nouns of the page by name, with the commands of their groups."""
    nouns = {name: (f"{_GROUP} {name}", NOUNS[name]) for name in _ORDER}
    for overlay in BUILTIN.with_installed().values():
        if overlay.name not in BUILTIN:
            for noun in overlay.nouns:
                group = overlay.name if noun.name == overlay.name else f"{overlay.name} {noun.name}"
                nouns[group] = (f"veen {group}", noun)
    return nouns


async def operations(console: Console, query: Query) -> PageView:
    sections: list[Section] = []
    data: dict[str, Any] = {}
    streams: dict[bytes, FoldedStreams] = {}
    command = "veen op agreement list STREAM"
    for name, (group, noun) in _nouns().items():
        folded = await console.events.fold(noun.fold(), now=now())
        facts, columns, listed = noun.list(folded.state, folded.as_of)
        rows = [tuple(map(_cell, columns, row)) for row in listed]
        data[name] = {**plain(facts), **folded.about()}
        if not rows and not folded.issues:
            continue
        if not streams:
            command = f"{group} list {stream_word(folded.streams[0].keys)}"
        for stream in folded.streams:
            streams[stream.keys.stream_id] = folded
        sections.append(Section(title=name.capitalize(), note=noun.about, columns=tuple(columns), rows=tuple(rows)))
        sections += [part for part in basis(folded) if part.title != "What this rests on"]
    what = (
        "every entry was read and verified, and each state was folded here."
        if streams
        else ("no stream of your keyring has operations.")
    )
    return PageView(
        template="report.html",
        title="Agreements and operations",
        command=command,
        data=data,
        verified_by=CONSOLE if streams else None,
        verified_what=what,
        sections=tuple(sections),
    )


def _cell(column: str, value: Any) -> Any:
    value = plain(value)
    if column in ("hub_ts", "expires") and isinstance(value, int):
        return MomentCell(value)
    return DigestCell(value) if isinstance(value, str) and len(value) == 64 else value


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


async def wallet(console: Console, query: Query) -> PageView:
    fold = LedgerFold()
    folded = await console.events.fold(fold, now=now(), only=lambda keys: keys.name is None)
    wallets = folded.state.wallets
    wallet_id = _select_wallet(wallets, query)
    account = None if wallet_id is None else statement(fold, folded.events(), wallet_id)
    if account is not None:
        account.check()
    supply = folded.state.supply()
    sections = [
        Section(
            title="Wallets",
            columns=("Wallet", "Currency", "Balance", "State", "Daily limit"),
            rows=tuple(
                (
                    LinkCell(f"{key.hex()[:8]}…{key.hex()[-4:]}", f"/wallet?wallet={key.hex()}"),
                    record.currency,
                    record.balance,
                    MarkCell("frozen", "partly")
                    if record.frozen
                    else MarkCell("closed", "muted")
                    if record.closed
                    else MarkCell("open", "good"),
                    record.daily_limit,
                )
                for key, record in wallets.items()
            ),
        ),
        Section(
            title="All money",
            note="The balance of all wallets is what came in less what went out, or money appeared or disappeared.",
            columns=("Currency", "Balance", "Deposited", "Withdrawn", "Adjusted", ""),
            rows=tuple(
                (
                    currency,
                    sums.balance,
                    sums.deposited,
                    sums.withdrawn,
                    sums.adjusted,
                    MarkCell("adds up", "good")
                    if sums.balance == sums.deposited - sums.withdrawn + sums.adjusted
                    else MarkCell("DOES NOT ADD UP", "bad"),
                )
                for currency, sums in supply.items()
            ),
        ),
    ]
    if account is not None:
        sections.insert(0, _steps(account, folded, wallets[account.wallet_id].daily_limit))
    return fold_page(
        folded,
        title="Wallets",
        command="veen wallet balance"
        if account is None
        else f"veen wallet statement {account.wallet_id.hex()} --with-proofs",
        data={
            "wallets": plain(wallets),
            "supply": plain(supply),
            "statement": None if account is None else plain(account),
        },
        sections=sections,
        nothing="no stream of your keyring has events of wallets.",
    )


def _select_wallet(wallets: Any, query: Query) -> bytes | None:
    text = query.get("wallet", "").strip()
    if not text:
        return max(wallets, key=lambda key: (wallets[key].deposited, key), default=None)
    try:
        wallet_id = bytes.fromhex(text[:128])
    except ValueError:
        wallet_id = b""
    if wallet_id not in wallets:
        raise BadAddress("no stream of the keyring has a wallet of this id")
    return wallet_id


def _steps(account: Statement, folded: FoldedStreams, limit: int | None) -> Section:
    """Draw the balance as a step chart, with bands while the wallet was frozen."""
    bands, since = [], None
    for number, line in enumerate(account.lines):
        if line.operation == "freeze":
            since = number
        elif line.operation == "unfreeze" and since is not None:
            bands.append((since, number))
            since = None
    if since is not None:
        bands.append((since, len(account.lines)))
    return Section(
        title=f"Balance of {account.wallet_id.hex()[:8]}…, in the smallest unit of {account.currency}",
        note="One step for each event that counted. Bands: while it was frozen. Dashed line: the daily limit.",
        picture=steps(
            "Balance in steps", [(line.hub_ts, line.balance) for line in account.lines], bands=bands, limit=limit
        ),
        columns=("Time", "Event", "Change", "Balance", "Other wallet", "Where"),
        rows=tuple(
            (
                MomentCell(line.hub_ts),
                line.operation,
                line.delta,
                line.balance,
                digest(line.other),
                entry_link(folded, line.label, line.stream_seq),
            )
            for line in account.lines
        ),
    )
