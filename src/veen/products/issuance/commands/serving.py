"""`veen cap serve`: issues capability tokens over RPC by a policy (001 spec-5 §7.3)."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from veen.cli.shared.authority import CAP, authority
from veen.cli.shared.command import CliSession, client_options
from veen.cli.shared.names import STREAM
from veen.cli.shared.output import Output
from veen.cli.shared.overlay_commands import HEX32
from veen.cli.shared.values import SPAN

if TYPE_CHECKING:
    from veen.client.client import Client
    from veen.overlays.rpc.ends import CallContext

_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)


def _identity_of(client: "Client", stream: str, client_id: bytes) -> bytes | None:
    proof = client.author(stream, client_id)
    return proof.id_sign_pk if proof is not None and proof.covers(int(time.time())) else None


@click.command()
@click.argument("stream", type=STREAM)
@click.option("--policy", "policy_file", type=_FILE, required=True, help="TOML file with the grants.")
@click.option("--for", "span", type=SPAN, help="Stop after this time. Default: run until interrupted.")
@click.option(
    "--server", "servers", type=HEX32, multiple=True, help="Client id of another server of this stream. Repeatable."
)
@CAP
@client_options
def serve(
    output: Output,
    session: CliSession,
    stream: str,
    policy_file: Path,
    span: int | None,
    servers: tuple[bytes, ...],
    cap: Path | None,
) -> None:
    """Answer requests for capability tokens in STREAM by a policy; the identity in use signs the tokens.

    A caller gets a token for its own key only. Requests and answers stay in the log; an answered request is not
    answered again. `connect apply` sends requests, if the service was advertised with --issuer STREAM.

    \b
    veen cap serve admin/tokens --policy tokens.toml --identity operator
    """
    import asyncio

    from veen.overlays.rpc.ends import RpcFailed, Server
    from veen.products.issuance.service import METHOD, IssuancePolicy, TokenIssuer

    policy = IssuancePolicy.from_toml(policy_file.read_text("utf-8"))
    identity = session.keystore.identity
    authority(session, stream, cap)

    def note_failure(what: str, exc: BaseException) -> None:
        output.note(f"{what}: {exc}")

    with output.records("requests", ("client_id", "msg_id", "result")) as records:

        async def work(client: "Client") -> None:
            issuer = TokenIssuer(
                policy,
                identity.id_sign,
                clock=time.time,
                identity_of=lambda client_id: _identity_of(client, stream, client_id),
            )

            async def handle(args: Any, context: "CallContext") -> Any:
                result, answer = "issued", None
                try:
                    answer = await issuer.handle(args, context)
                except RpcFailed as exc:
                    result = exc.code
                    raise
                finally:
                    cells = (context.client_id.hex(), context.msg_id.hex(), result)
                    records.add(dict(zip(("client_id", "msg_id", "result"), cells, strict=True)), cells)
                return answer

            believed = {*servers, client.client_id}
            server = Server(client, stream, {METHOD: handle}, servers=believed, clock=time.time, report=note_failure)
            try:
                async with asyncio.timeout(span):
                    await server.run()
            except TimeoutError:
                if span is None:
                    raise

        session.client().run(work)
