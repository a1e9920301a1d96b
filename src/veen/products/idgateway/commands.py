"""`veen id gateway serve`: records external logins as links in the log (001 ID §10.2)."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from veen.cli.lazy import LazyGroup
from veen.cli.shared.authority import token_store
from veen.cli.shared.command import CliSession, client_options
from veen.cli.shared.names import STREAM
from veen.cli.shared.output import Fail, Output
from veen.cli.shared.overlay_commands import HEX32
from veen.cli.shared.values import SPAN

if TYPE_CHECKING:
    from veen.client.client import Client

_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
_MIN_SECRET: Final = 32

gateway = LazyGroup("gateway", help="External logins: map accounts of an OpenID provider to accounts of a realm.")


@gateway.verb("serve", "Log people in at an OpenID provider, and write links.")
@click.argument("stream", type=STREAM)
@click.option("--issuer", required=True, metavar="URL", help="Issuer URL of the provider, exactly as in its tokens.")
@click.option("--provider", "provider_name", required=True, help="Name of the provider in links.")
@click.option("--oidc-client", "client_id", required=True, help="Client id of the gateway at the provider.")
@click.option("--oidc-secret-file", "secret_file", type=_FILE, required=True, help="File with the client secret.")
@click.option(
    "--custody-file", type=_FILE, required=True, help="File with a secret of 32 bytes or more, for new accounts."
)
@click.option("--url", required=True, help="Public URL of the gateway, without a path.")
@click.option("--realm", "realm_name", default="default", help="Realm of the accounts. Default: default.")
@click.option("--mirror", multiple=True, help="Claim to copy into links. Repeatable.")
@click.option("--display-name", help="Claim with the name of a new account.")
@click.option("--scope", default="openid", help="Scopes requested from the provider. Default: openid.")
@click.option("--introspection-url", metavar="URL", help="URL for token introspection. Default: from the metadata.")
@click.option("--gateway-id", "gateways", type=HEX32, multiple=True, help="Client id of another gateway. Repeatable.")
@click.option("--read", "also", type=STREAM, multiple=True, help="Stream with revocations. Repeatable.")
@click.option(
    "--trusted-org",
    "orgs",
    type=HEX32,
    multiple=True,
    help="Organization that may disable accounts of the realm. Repeatable.",
)
@click.option("--session-time", type=SPAN, default="8h", help="Lifetime of a session. Default: 8h.")
@click.option("--host", default="127.0.0.1", help="Address to listen on. Default: 127.0.0.1.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8448, help="Port to listen on; 0 picks a free one. Default: 8448."
)
@click.option("--tls-cert", type=_FILE, help="Certificate (PEM). Required beyond loopback.")
@click.option("--tls-key", type=_FILE, help="Private key of --tls-cert (PEM).")
@click.option("--provider-ca", type=_FILE, help="CA certificates for the provider (PEM). Default: the system's.")
@click.option("--for", "span", type=SPAN, help="Stop after this time. Default: run until stopped.")
@client_options
def serve(
    output: Output,
    session: CliSession,
    stream: str,
    issuer: str,
    provider_name: str,
    client_id: str,
    secret_file: Path,
    custody_file: Path,
    url: str,
    realm_name: str,
    mirror: tuple[str, ...],
    display_name: str | None,
    scope: str,
    introspection_url: str | None,
    gateways: tuple[bytes, ...],
    also: tuple[str, ...],
    orgs: tuple[bytes, ...],
    session_time: int,
    host: str,
    port: int,
    tls_cert: Path | None,
    tls_key: Path | None,
    provider_ca: Path | None,
    span: int | None,
) -> None:
    """Serve /login, /callback, /session and /logout over HTTP until stopped.

    A login is answered when its link is in STREAM with a verified receipt. The gateway needs only the keys of STREAM
    and a token for it: give it a separate identity. Readers merge STREAM (--stream of `veen id`) and name the client_id
    of the gateway. Register URL/callback at the provider. A session ends at /logout, when the provider's introspection
    reports its token as inactive, and when the account is revoked.
    """
    import asyncio

    from veen.core.objects.policies import realm_id_of
    from veen.io.asgi_server import ListenAddress
    from veen.products.idgateway.gateway import ProviderSettings, check_url

    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("give --tls-cert and --tls-key together")
    if tls_cert is None and host not in _LOOPBACK:
        raise Fail(
            "E.LOCAL.PLAIN_HTTP",
            f"the gateway is not started on {host} without TLS",
            "codes and sessions would cross the network in the clear",
            "give --tls-cert FILE and --tls-key FILE, or listen on 127.0.0.1 behind a proxy",
        )
    custody = custody_file.read_bytes().strip()
    if len(custody) < _MIN_SECRET:
        raise click.UsageError(f"--custody-file has fewer than {_MIN_SECRET} bytes")
    settings = ProviderSettings(
        name=provider_name,
        issuer=issuer,
        client_id=client_id,
        client_secret=secret_file.read_text("utf-8").strip(),
        scope=scope,
        mirror=mirror,
        display_name=display_name,
        introspection_url=introspection_url,
    )
    base = check_url(url, "--url").rstrip("/")
    at = ListenAddress(host=host, port=port, tls_cert=tls_cert, tls_key=tls_key)
    at.tls()  # files that cannot be used are named before anything is asked
    ring = session.keystore.secrets.keyring
    stream_id = ring.for_stream(stream).stream_id
    revocations = [ring.for_stream(name).stream_id for name in also]
    tokens = token_store(session)

    async def work(client: "Client") -> None:
        import ssl

        import httpx2

        from veen.api.token_authority import TokenAuthority
        from veen.io.asgi_server import listening, make_server
        from veen.products.idgateway.gateway import IdGateway, ProviderClient
        from veen.products.idgateway.http import make_app

        context = ssl.create_default_context(cafile=None if provider_ca is None else str(provider_ca))
        async with httpx2.AsyncClient(verify=context, trust_env=False) as http:
            provider = ProviderClient(settings, http)
            await provider.open()
            service = IdGateway(
                TokenAuthority(client, tokens),
                provider,
                stream_id=stream_id,
                realm_id=realm_id_of(realm_name),
                secret=custody,
                redirect_uri=f"{base}/callback",
                gateways=gateways,
                also=revocations,
                trusted_orgs=orgs,
                session_sec=session_time,
            )
            app = make_app(service, is_tls=base.startswith("https:"))
            async with listening(make_server(app, at), at) as (address, serving):
                output.notice(f"logging people in at {address}", url=address, client_id=client.client_id.hex())
                async with asyncio.timeout(span):
                    await serving

    try:
        session.client().run(work)
    except TimeoutError:
        if span is None:
            raise
    output.result({"stream": stream, "provider": provider_name})
