"""`veen query serve`, `submit`, `cancel` and `token`: the query API over HTTP, and its client."""

import logging
import secrets
import signal
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from veen.cli.lake.query import SERVICE, ServiceOptions, query_connection
from veen.cli.shared.bulk import DATA_DIR, HUB_IDENTITY, KEY_FILE, MASTER, LogPlace, log_options
from veen.cli.shared.command import CliSession, client_options, identity_options
from veen.cli.shared.connecting import connector
from veen.cli.shared.output import Fail, Output
from veen.cli.shared.values import SIZE, SPAN
from veen.core.errors import VeenError

if TYPE_CHECKING:
    from veen.io.asgi_server import ListenAddress
    from veen.products.queryservice.principals import Principals
    from veen.products.queryservice.service import QueryService

_log = logging.getLogger(__name__)
_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
_PLACE: Final = log_options(
    HUB_IDENTITY,
    KEY_FILE,
    MASTER,
    click.option("--engine", type=click.Choice(["python", "spark"]), default="python", show_default=True,
                 help="python: threads of this process, no Java. spark: all cores or a cluster, the same bytes."),
    DATA_DIR,
)  # fmt: skip


@click.command()
@click.option("--principals", "principals_file", type=_FILE, required=True, help="TOML file of principals.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8447,
    show_default=True,
    help="Port to listen on; 0 picks a free one.",
)
@click.option("--tls-cert", type=_FILE, help="Certificate (PEM). Required beyond loopback.")
@click.option("--tls-key", type=_FILE, help="Private key of --tls-cert (PEM).")
@click.option(
    "--client-ca", type=_FILE, help="CA certificates (PEM) of client certificates, accepted instead of tokens."
)
@click.option(
    "--store", "store_dir", type=click.Path(file_okay=False), help="Directory for results. Default: in your home."
)
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=4,
    show_default=True,
    help="Queries executed at a time; one fewer for a single principal.",
)
@click.option(
    "--max-seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=3600.0,
    show_default=True,
    help="Time limit of an execution.",
)
@click.option("--keep-for", type=SPAN, default="30d", show_default=True, help="Retention of result rows.")
@click.option("--keep-bytes", type=SIZE, default="10GiB", show_default=True,
              help="Size limit of all result rows; the oldest are removed first, the newest never.")  # fmt: skip
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Lowest level of lines written to standard error.",
)
@click.option("--sync-entries", type=click.IntRange(min=0), default=50_000, show_default=True,
              help="Largest number of entries of a query that is answered at once.")  # fmt: skip
@_PLACE
@client_options
def serve(
    output: Output,
    session: CliSession,
    principals_file: Path,
    host: str,
    port: int,
    tls_cert: Path | None,
    tls_key: Path | None,
    client_ca: Path | None,
    store_dir: str | None,
    workers: int,
    max_seconds: float,
    keep_for: int,
    keep_bytes: int,
    log_level: str,
    sync_entries: int,
    place: LogPlace,
) -> None:
    """Serve the query API over HTTP until stopped. Requests, results and deliveries are recorded in the log first.

    The service reads DIR with the keys of --identity and writes its records to the hub of the context. Its identity
    needs keys of the four streams below record/query/: make them once with `veen id keyring new`. SIGHUP: read the file
    of principals and the certificate again.

    \b
    veen query token --out alice.token
    veen query serve --data-dir ./hub --principals principals.toml
    """
    import asyncio

    from veen.products.queryservice.principals import Principals

    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("--tls-cert and --tls-key belong together")
    if client_ca is not None and tls_cert is None:
        raise click.UsageError("--client-ca needs --tls-cert and --tls-key: certificates are shown over TLS")
    if tls_cert is None and host not in _LOOPBACK:
        raise Fail(
            "E.LOCAL.PLAIN_HTTP",
            f"the service is not started on {host} without TLS",
            "tokens and rows would cross the network in the clear",
            "give --tls-cert FILE and --tls-key FILE, or listen on 127.0.0.1 behind a proxy",
        )

    def read_principals() -> Principals:
        principals = Principals.read(principals_file)
        if client_ca is None and (name := principals.need_certificates) is not None:
            raise click.UsageError(f"[principal.{name}] has certificate_names: name their CA with --client-ca")
        return principals

    read_principals()  # a file that cannot be used is named before anything starts
    try:
        from veen.io.asgi_server import ListenAddress
        from veen.products.queryservice.observe import lines_to
    except ImportError as exc:
        raise Fail(
            "E.EXTRA",
            "the query service needs more packages",
            f"{exc.name} is not installed",
            "install the extra `query`",
        ) from exc
    at = ListenAddress(host=host, port=port, tls_cert=tls_cert, tls_key=tls_key, client_ca=client_ca)
    at.tls()  # files that cannot be used are named before Spark starts
    with output.progress("starting") as progress, _spark(place, progress) as spark:
        bounds = {
            "workers": workers,
            "sync_entries": sync_entries,
            "max_seconds": max_seconds,
            "keep_seconds": keep_for,
            "keep_bytes": keep_bytes,
        }
        opened = _Opened(session, read_principals, place, spark, store_dir, bounds)
        with lines_to(sys.stderr, log_level) as begin_lines:
            asyncio.run(_serve(output, opened, at, begin_lines))


def _spark(place: LogPlace, progress: Any) -> Any:
    """Return one session for all queries; each principal has a separate pool in it."""
    if place.engine != "spark":
        return place.spark("veen query serve", progress)
    from veen.lake.spark.progress import FAIR

    return place.spark("veen query serve", progress, settings=FAIR)


class _Opened:
    """Parts of the service, set once its loop runs."""

    def __init__(
        self,
        session: CliSession,
        read_principals: "Callable[[], Principals]",
        place: LogPlace,
        spark: Any,
        store_dir: str | None,
        bounds: dict[str, Any],
    ) -> None:
        from veen.lake.query.store import ResultStore
        from veen.products.queryservice.service import ServiceSettings

        keystore = session.keystore
        self.read_principals, self._keystore = read_principals, keystore
        self._connect = connector(session, session.home)
        self._store = ResultStore(
            Path(store_dir) if store_dir else session.home.state / "query" / session.identity_name
        )
        self._settings = ServiceSettings(
            data_dir=place.data_dir,
            keys=place.keys(session),
            engine=place.engine,
            identity=place.identity(),
            subject_id=f"service:{session.identity_name}",
            authors=frozenset(key.client_id for key in keystore.identity.client_keys),
            spark=spark,
            **bounds,
        )

    def client(self) -> Any:
        return self._connect(self._keystore.identity, self._keystore.secrets.keyring)

    async def service(self, client: Any) -> "QueryService":
        from veen.products.queryservice.service import QueryService

        return await QueryService.open(client, self._store, self.read_principals(), self._settings)


async def _serve(output: Output, opened: _Opened, at: "ListenAddress", begin_lines: Callable[[], None]) -> None:
    import asyncio

    from veen.io.asgi_server import listening, make_server
    from veen.products.queryservice.http import make_app

    async with opened.client() as client:  # which holds the identity, and so the store, for itself
        app = make_app(lambda: opened.service(client))
        server = make_server(app, at)
        async with listening(server, at) as (url, serving):
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGHUP, _reload, app.state.service, opened, server, at)
            output.notice(f"answering queries at {url}", url=url)
            begin_lines()
            await asyncio.wait([serving])


def _reload(service: "QueryService", opened: _Opened, server: Any, at: "ListenAddress") -> None:
    """Take over the file of principals and the certificate, or neither of them."""
    from veen.io.asgi_server import renew_certificate
    from veen.products.queryservice.observe import line

    try:
        principals = opened.read_principals()
        renew_certificate(server, at)
    except (VeenError, OSError, click.UsageError) as exc:
        why = exc.format_message() if isinstance(exc, click.UsageError) else str(exc)
        line(_log, "reload", f"nothing was taken over: {why}", level=logging.ERROR)
        return
    service.replace_principals(principals)
    line(_log, "reload", "taken over", principals=len(principals.members))


@click.command()
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="New file for the token.")
@identity_options
def token(output: Output, session: CliSession, out: Path) -> None:
    """Create a bearer token for a user of a query service. The file of principals gets only its hash.

    \b
    veen query token --out alice.token
    """
    import os

    text = secrets.token_urlsafe(32)
    try:
        descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except FileExistsError as exc:
        raise Fail("E.LOCAL", "the token is not made", f"{out} exists", "name a new file with --out") from exc
    with os.fdopen(descriptor, "w") as file:
        file.write(text + "\n")
    facts = {"file": str(out), "token_sha256": sha256(text.encode()).hexdigest()}
    output.result(facts, lambda: output.fields(facts.items()))


@click.command()
@click.argument("descriptor_file", type=click.File("rb"), default="-", metavar="[FILE]")
@SERVICE
@identity_options
def submit(output: Output, session: CliSession, descriptor_file: Any, service: ServiceOptions) -> None:
    """Submit a QueryDescriptor in JSON, from a file or from standard input, to a query service.

    \b
    veen query submit descriptor.json --service https://query.example --service-token alice.token
    """
    with query_connection(service) as connection:
        accepted = connection.submit(descriptor_file.read())
    output.result(accepted, lambda: output.fields(accepted.items()))
    output.next(f"veen query result {accepted['result_id']} --service {service.url}")


@click.command()
@click.argument("result_id")
@SERVICE
@identity_options
def cancel(output: Output, session: CliSession, result_id: str, service: ServiceOptions) -> None:
    """Cancel a query that you submitted to a query service. Its execution stops, and its final state is failed.

    The log records the error_code cancelled. A query that has already ended is not changed; the answer shows its
    state.

    \b
    veen query cancel r-… --service https://query.example --service-token alice.token
    """
    with query_connection(service) as connection:
        state = connection.cancel(result_id)
    output.result(state, lambda: output.fields(state.items()))
    if state.get("error_code") != "cancelled":
        output.note(f"result {result_id} had ended before: {state.get('status')}")
