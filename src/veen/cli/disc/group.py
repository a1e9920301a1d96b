"""`veen disc`: hubs, overlays and services that say where they are (001 spec-5, docs/discovery.md)."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import click
from click import argument, option

from veen.cli.disc.sources import NAMES, DiscoverySource, discovery_options, fold_directory
from veen.cli.shared.as_of import View, view_options
from veen.cli.shared.authority import CAP, authority
from veen.cli.shared.command import CliSession, client_options
from veen.cli.shared.connecting import hubs_of
from veen.cli.shared.names import CONTEXT, STREAM
from veen.cli.shared.nouns import NounGroup, Outgoing
from veen.cli.shared.output import Output
from veen.cli.shared.overlay_commands import HEX32, make_keys, show_folded
from veen.cli.shared.values import SPAN
from veen.overlays.framework.plain import plain

if TYPE_CHECKING:
    from pathlib import Path

    from veen.client.client import Client
    from veen.overlays.discovery.bodies import DiscoveryQuery, DiscoveryResult
    from veen.overlays.discovery.directory import DirectoryFold, Listing

_KIND: Final = argument("kind", type=click.Choice(tuple(NAMES)))
_TTL: Final = option("--ttl", type=SPAN, default="1d", show_default=True, help="For how long it can be found.")
_TAGS: Final = option("--tag", "tags", multiple=True, help="A word to find it by. Repeatable.")
_KEYS: Final = option(
    "--make-keys", "keys", is_flag=True, help="Make the keys of the discovery stream, if there are none."
)

disc: Final = NounGroup(
    "disc",
    "A directory of hubs, overlays and services: published, found and verified by the log.",
    others={"advertise": ("veen.cli.disc.group:advertise", "Publish a hub, an overlay or a service.")},
)
advertise: Final = NounGroup("advertise", "Publish a descriptor, so that others find a hub, an overlay or a service.")


def _fold() -> "DirectoryFold":
    from veen.overlays.discovery.directory import DirectoryFold

    return DirectoryFold()


def _outgoing(session: CliSession, kind: str, make: Callable[[], Any], keys: bool, facts: dict[str, Any]) -> Outgoing:
    from veen.overlays.discovery.bodies import advertise as drafted

    if keys:
        make_keys(session, NAMES[kind])
    return Outgoing(NAMES[kind], lambda: drafted(make()), {"kind": kind, **facts}, fold=_fold)


@advertise.write(
    "hub",
    "Publish this hub.",
    option("--region", default="", help="Where it is."),
    option("--overlay", "overlays", multiple=True, help="An overlay that it takes part in, by name. Repeatable."),
    option("--of", "of_context", type=CONTEXT, help="The context of the hub to publish; default: this hub."),
    option("--url", help="Where it can be reached; default: the URL of the context."),
    _TAGS,
    _TTL,
    _KEYS,
)
def _hub(
    session: CliSession,
    region: str,
    overlays: tuple[str, ...],
    of_context: str | None,
    url: str | None,
    tags: tuple[str, ...],
    ttl: int,
    keys: bool,
) -> Outgoing:
    """Publish this hub, or the hub of another context in the directory of this one, under the key that is pinned.

    \b
    veen disc advertise hub --region north --overlay rpc --make-keys
    veen disc advertise hub --of orders-hub --region north --context directory
    """
    import asyncio

    from veen.overlays.discovery.bodies import Endpoint, HubAdvert, overlay_id_of

    if keys:
        make_keys(session, NAMES["hub"])  # before the identity is in use for reading the hub
    (hub,) = hubs_of(session, [of_context] if of_context else [])

    async def look() -> tuple[bytes, bytes, Any]:
        async with hub.session() as at:
            return at.hub_id, at.pin.newest.hub_pk, at.status

    hub_id, newest, status = asyncio.run(look())
    address = url or hub.url

    def make() -> HubAdvert:
        return HubAdvert(
            hub_id=hub_id,
            hub_pk=newest,
            profile_id=status.profiles[0].profile_id(),
            region=region,
            tags=tags,
            endpoints=(Endpoint(kind=address.partition(":")[0], url=address),),
            overlays=tuple(sorted({overlay_id_of(name) for name in overlays})),
            ttl_sec=ttl,
            version=status.server_version,
        )

    return _outgoing(session, "hub", make, False, {"id": hub_id, "hub_pk": f"ed25519:{newest.hex()}", "url": address})


@advertise.write(
    "overlay",
    "Publish an overlay.",
    argument("name"),
    option("--version", "version", default="1", show_default=True, help="Its version."),
    option("--schema", "schemas", multiple=True, help="A schema of it, by name or id. Repeatable."),
    option("--docs", "docs_url", help="Where it is documented."),
    _TAGS,
    _TTL,
    _KEYS,
)
def _overlay(
    session: CliSession,
    name: str,
    version: str,
    schemas: tuple[str, ...],
    docs_url: str | None,
    tags: tuple[str, ...],
    ttl: int,
    keys: bool,
) -> Outgoing:
    """Publish the overlay NAME. An overlay that VEEN has brings its schemas along.

    \b
    veen disc advertise overlay rpc --make-keys
    """
    from veen.core.labels import schema_id
    from veen.overlays.discovery.bodies import OverlayAdvert, overlay_id_of
    from veen.overlays.framework.registry import BUILTIN

    builtin = [schema.id for schema in BUILTIN[name].schemas] if name in BUILTIN else []
    ids = tuple(sorted({*builtin, *map(schema_id, schemas)}))

    def make() -> OverlayAdvert:
        return OverlayAdvert(
            overlay_id=overlay_id_of(name),
            name=name,
            version=version,
            schemas=ids,
            docs_url=docs_url,
            tags=tags,
            ttl_sec=ttl,
        )

    return _outgoing(session, "overlay", make, keys, {"id": overlay_id_of(name), "name": name})


@advertise.write(
    "service",
    "Publish a service.",
    argument("name"),
    option("--overlay", default="rpc", show_default=True, help="The overlay that it speaks, by name."),
    option("--method", "methods", multiple=True, help="A method of it. Repeatable."),
    option("--stream", "streams", type=STREAM, multiple=True, help="Requests, then answers if apart. Repeatable."),
    option("--region", "regions", multiple=True, help="Where it is best used. Repeatable."),
    option("--needs", "caps", multiple=True, help="A capability that callers need, as a word. Repeatable."),
    option(
        "--auth", "mode", type=click.Choice(("cap_token", "mtls", "none", "other")), help="How callers are admitted."
    ),
    option("--org", help="Who runs it."),
    option("--issuer", type=STREAM, help="Where `cap serve` issues its tokens. Requires --auth cap_token."),
    option("--issuer-id", "issuer_ids", type=HEX32, multiple=True, help="Whose answers count there. Repeatable."),
    _TAGS,
    _TTL,
    _KEYS,
)
def _service(
    session: CliSession,
    name: str,
    overlay: str,
    methods: tuple[str, ...],
    streams: tuple[str, ...],
    regions: tuple[str, ...],
    caps: tuple[str, ...],
    mode: str | None,
    org: str | None,
    issuer: str | None,
    issuer_ids: tuple[bytes, ...],
    tags: tuple[str, ...],
    ttl: int,
    keys: bool,
) -> Outgoing:
    """Publish the service NAME, by default one that is called over the streams that you name.

    \b
    veen disc advertise service calc --method add --stream app/calls --region north --make-keys
    """
    from veen.client.identity.keyring import StreamRef
    from veen.overlays.discovery.bodies import AuthPolicy, ServiceAdvert, ServiceOperator, overlay_id_of, service_id_of

    ids = [StreamRef.parse(stream).stream_id for stream in streams]
    if not ids or None in ids or len(ids) > 2:
        raise click.UsageError("give --stream once, for requests, or twice, for requests and answers")
    details = None
    if issuer is not None:
        from veen.overlays.discovery.bodies import IssuancePlace

        issuing = StreamRef.parse(issuer).stream_id
        if mode != "cap_token" or issuing is None:
            raise click.UsageError("--issuer names a stream, and needs --auth cap_token")
        details = IssuancePlace(stream_id=issuing, servers=issuer_ids).to_details()
    ident = service_id_of(session.keystore.identity.id_sign.public, name)

    def make() -> ServiceAdvert:
        return ServiceAdvert(
            service_id=ident,
            name=name,
            overlay_id=overlay_id_of(overlay),
            methods=methods,
            stream_ids=tuple(stream_id for stream_id in ids if stream_id is not None),
            regions=regions,
            required_caps=caps,
            auth_policy=None if mode is None else AuthPolicy(mode=mode, details=details),
            operator=None if org is None else ServiceOperator(org=org),
            tags=tags,
            ttl_sec=ttl,
        )

    return _outgoing(session, "service", make, keys, {"id": ident, "name": name})


@disc.write(
    "retire",
    "Hide what you published.",
    _KIND,
    argument("ident", metavar="ID", type=HEX32),
    option("--reason", help="Why, for those who look for it."),
)
def _retire(session: CliSession, kind: str, ident: bytes, reason: str | None) -> Outgoing:
    """Hide the descriptor ID of a KIND; only its publisher can. Advertising it again shows it again.

    \b
    veen disc retire service 4f1c… --reason "moved to the south"
    """
    from veen.overlays.discovery.bodies import retire

    return Outgoing(NAMES[kind], lambda: retire(kind, ident, reason), {"kind": kind, "id": ident}, fold=_fold)


# --- reading -----------------------------------------------------------------------------------------------------


def _row(listing: "Listing") -> dict[str, Any]:
    return {
        "kind": listing.kind,
        "id": listing.id.hex(),
        "publisher": listing.publisher.hex(),
        "expires_at": listing.expires_at,
        "hub_ts": listing.hub_ts,
        "msg_id": listing.msg_id.hex(),
        "retired": listing.is_retired,
        "descriptor": plain(listing.tree),
    }


def _words(row: dict[str, Any]) -> tuple[Any, ...]:
    about = row["descriptor"]
    text = about.get("name") or ", ".join(endpoint["url"] for endpoint in about.get("endpoints", ()))
    return row["kind"], row["id"], text, row["expires_at"]


@disc.read(
    "list",
    "What is in the directory.",
    option("--all", "everything", is_flag=True, help="Also what was retired or has expired."),
    discovery_options,
)
def _list(session: CliSession, everything: bool, source: DiscoverySource, view: View) -> None:
    """Every descriptor, now or --as-of a moment; --all also shows what was retired or has expired.

    \b
    veen disc list --as-of -7d
    """
    folded = fold_directory(session, source, view)
    state = folded.state
    listings = [item for kind in NAMES for item in state.of(kind).values()]
    rows = [_row(listing) for listing in (*listings, *(state.hidden if everything else ()))]
    output = session.output
    columns = ("kind", "id", "what", "until")
    show_folded(session, folded, {"listings": rows}, lambda: output.table(columns, map(_words, rows)))


def _filters(values: dict[str, Any]) -> dict[str, Any]:
    from veen.overlays.discovery.bodies import overlay_id_of

    filters = {key: value for key, value in values.items() if value not in (None, ())}
    if "tags_any" in filters:
        filters["tags_any"] = list(filters["tags_any"])
    if "overlay_id" in filters:
        filters["overlay_id"] = overlay_id_of(filters["overlay_id"])
    return filters


_FILTERS: Final = (
    option("--region", help="hub, service: in this region."),
    option("--tag", "tags_any", multiple=True, help="With at least one of these tags. Repeatable."),
    option("--overlay", "overlay_id", help="hub, service: over this overlay, by name."),
    option("--method", help="service: with this method."),
    option("--name", "name_prefix", help="overlay, service: whose name begins so."),
    option("--schema", type=HEX32, help="overlay: with this schema id."),
)


@disc.verb("query", "Ask the directory, here or at a server.")
@_KIND
@_FILTERS[0]
@_FILTERS[1]
@_FILTERS[2]
@_FILTERS[3]
@_FILTERS[4]
@_FILTERS[5]
@option("--limit", type=click.IntRange(min=0), help="How many descriptors; default 100, at most 1000.")
@option("--offset", type=click.IntRange(min=0), help="How many to skip.")
@option("--at", "questions", type=STREAM, help="Ask over this stream (`disc serve`), instead of folding here.")
@option("--server", "servers", type=HEX32, multiple=True, help="Whose answers count. Repeatable; default: all.")
@option("--timeout", type=SPAN, default="30s", show_default=True, help="How long to wait for a server.")
@discovery_options
@view_options
@client_options
def query(
    output: Output,
    session: CliSession,
    kind: str,
    limit: int | None,
    offset: int | None,
    questions: str | None,
    servers: tuple[bytes, ...],
    timeout: int,
    source: DiscoverySource,
    view: View,
    **values: Any,
) -> None:
    """Descriptors of a KIND that match every filter, by id. The same question folded here or asked elsewhere has the
    same answer. Descriptors are hints: pin a hub's key before you send it anything.

    \b
    veen disc query service --method add --region north
    veen disc query hub --overlay rpc --at disc/questions
    """
    from veen.cli.shared.output import Fail
    from veen.overlays.discovery.bodies import DiscoveryQuery
    from veen.overlays.discovery.directory import answer
    from veen.overlays.discovery.server import ask

    asked = DiscoveryQuery(kind=kind, filter=_filters(values), limit=limit, offset=offset)
    if questions is None:
        result = answer(fold_directory(session, source, view).state, asked)
    else:
        authority(session, questions, None)

        async def work(client: "Client") -> "DiscoveryResult":
            return await ask(client, questions, asked, servers=servers or None, timeout=max(timeout, 1))

        with output.progress("waiting for the answer"):
            result = session.client().run(work)
    if result.error is not None:
        raise Fail(
            result.error.code, "the directory refuses the question", result.error.detail or "", "veen disc query --help"
        )
    rows = [plain(entry) for entry in result.results]
    data = {"kind": kind, "results": rows, "more": result.more}
    idents = [(row[f"{kind}_id"], row.get("name") or row.get("region", "")) for row in rows]
    output.result(data, lambda: output.table(("id", "what"), idents))


@disc.verb("serve", "Answer questions to the directory.")
@argument("questions", type=STREAM)
@option("--for", "span", type=SPAN, help="End after this time; default: when interrupted.")
@discovery_options
@CAP
@client_options
def serve(
    output: Output,
    session: CliSession,
    questions: str,
    span: int | None,
    source: DiscoverySource,
    cap: "Path | None",
) -> None:
    """Answer the questions of a stream (disc.query.v1), from the discovery streams as they are at that moment.

    \b
    veen disc serve disc/questions
    """
    import asyncio

    from veen.overlays.discovery.server import DiscoveryServer, FoldedDirectory

    authority(session, questions, cap)
    names = {kind: name for kind, name in NAMES.items() if name in source.streams(session)}
    rotating = bool(session.client().status().profiles[0].epoch_sec)
    with output.records("questions", ("kind", "ok", "results")) as records:

        def report(asked: "DiscoveryQuery | None", result: "DiscoveryResult") -> None:
            cells = ("" if asked is None else asked.kind, result.ok, len(result.results))
            records.add(dict(zip(("kind", "ok", "results"), cells, strict=True)), cells)

        async def work(client: "Client") -> None:
            folded = FoldedDirectory(client, source.fold(), names, rotating=rotating)
            server = DiscoveryServer(client, questions, folded, servers=[client.client_id], report=report)
            try:
                async with asyncio.timeout(span):
                    await server.run()
            except TimeoutError:
                if span is None:
                    raise

        session.client().run(work)


@disc.verb("watch", "Show what is published from now on.")
@option("--for", "span", type=SPAN, help="End after this time; default: when interrupted.")
@client_options
def watch(output: Output, session: CliSession, span: int | None) -> None:
    """Show records of the discovery streams as they arrive: who advertises or retires what. Whether one counts is for
    `disc list` to say.

    \b
    veen disc watch --for 10m
    """
    import asyncio

    columns = ("schema", "id", "publisher", "seq")
    with output.records("records", columns) as records:

        async def follow(client: "Client", stream: str) -> None:
            async for entry in client.follow(stream):
                for row in _watched(entry.event):
                    records.add(row, tuple(row[column] for column in columns))

        async def work(client: "Client") -> None:
            try:
                async with asyncio.timeout(span):
                    await asyncio.gather(*(follow(client, name) for name in DiscoverySource.streams(session)))
            except TimeoutError:
                if span is None:
                    raise

        session.client().run(work)


def _watched(event: Any) -> Iterator[dict[str, Any]]:
    from veen.overlays.discovery.directory import DirectoryFold
    from veen.overlays.framework.schema import Issue, decode

    schema = None if event is None else DirectoryFold.schemas.get(event.hdr.schema)
    if schema is None:
        return
    typed = decode(event, schema)
    row = {"schema": schema.name, "publisher": event.client_id.hex(), "seq": event.stream_seq}
    if isinstance(typed, Issue):
        yield {**row, "id": typed.code}
    else:
        yield {**row, "id": typed.body.id.hex()}
