"""`veen rpc`: calls and answers as messages of a stream (RPC0, D-86)."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from veen.cli.lazy import LazyGroup
from veen.cli.shared.as_of import View, view_options
from veen.cli.shared.authority import CAP, authority
from veen.cli.shared.command import CliSession, client_options
from veen.cli.shared.names import STREAM
from veen.cli.shared.output import Output
from veen.cli.shared.overlay_commands import HEX32, json_value, show_folded, state_of
from veen.cli.shared.text import compact
from veen.cli.shared.values import SPAN
from veen.overlays.framework.plain import plain

if TYPE_CHECKING:
    from veen.client.client import Client
    from veen.overlays.rpc.ends import CallContext, Handler

rpc = LazyGroup("rpc", help="Calls and answers as messages of a stream: sealed, receipted, auditable.")


_SERVERS = click.option(
    "--server",
    "servers",
    type=HEX32,
    multiple=True,
    help="client_id of an accepted server. Repeatable. Default: all.",
)


@rpc.verb("call", "Call a method and wait for the answer.")
@click.argument("stream", type=STREAM)
@click.argument("method")
@click.argument("args", required=False)
@click.option("--timeout", type=SPAN, default="30s", show_default=True, help="Time to wait for the answer.")
@click.option(
    "--idem",
    type=click.IntRange(0, (1 << 64) - 1),
    help="Number of the call: calls with an equal number are carried out once.",
)
@click.option("--retry", is_flag=True, help="Retry until an answer arrives. Requires --idem.")
@_SERVERS
@CAP
@client_options
def call(
    output: Output,
    session: CliSession,
    stream: str,
    method: str,
    args: str | None,
    timeout: int,
    idem: int | None,
    retry: bool,
    servers: tuple[bytes, ...],
    cap: Path | None,
) -> None:
    """Call METHOD over STREAM with ARGS, JSON, and print the result.

    Exit code 3 and RPC.NO_ANSWER if nobody answers in time, 4 and the code of the server if it refuses. Anyone with
    the write key can answer: name the servers you believe.

    \b
    veen rpc call app/calls add '[1, 2]' --timeout 10s
    veen rpc call app/calls pay '{"amount": 4000}' --idem 17 --retry
    """
    from veen.overlays.rpc.ends import Backoff, Caller

    arguments = None if args is None else json_value(args)
    if retry and idem is None:
        raise click.UsageError("--retry requires --idem: without it the call may be carried out twice")

    async def work(client: "Client") -> Any:
        async with Caller(client, stream, servers=servers or None) as caller:
            backoff = Backoff() if retry else None
            return await caller.call(method, arguments, timeout=max(timeout, 1), idem=idem, backoff=backoff)

    authority(session, stream, cap)  # from here on the client knows by which token it writes
    began = time.perf_counter()
    with output.progress(f"waiting for the answer to {method}"):
        result = plain(session.client().run(work))
    session.remember_stream(stream)
    data = {"stream": stream, "method": method, "result": result, "seconds": round(time.perf_counter() - began, 4)}
    output.result(data, lambda: output.line(result if isinstance(result, str) else compact(result)))


@rpc.verb("serve", "Carry out calls with local programs.")
@click.argument("stream", type=STREAM)
@click.option(
    "--exec", "programs", multiple=True, metavar="METHOD=COMMAND", help="Program that carries out a method. Repeatable."
)
@click.option("--echo", is_flag=True, help="Serve the method echo, which answers with its arguments, for tests.")
@click.option("--for", "span", type=SPAN, help="Stop after this time. Default: run until interrupted.")
@click.option("--from", "first", type=click.IntRange(min=1), default=1, help="First position to serve.")
@_SERVERS
@CAP
@client_options
def serve(
    output: Output,
    session: CliSession,
    stream: str,
    programs: tuple[str, ...],
    echo: bool,
    span: int | None,
    first: int,
    servers: tuple[bytes, ...],
    cap: Path | None,
) -> None:
    """Carry out the calls of STREAM, one after another in the order of the log, each once.

    A program gets the arguments as JSON on standard input and prints the result as JSON; if it fails, the caller is
    told RPC.PROGRAM. It finds VEEN_RPC_METHOD, VEEN_RPC_CLIENT_ID and VEEN_RPC_MSG_ID in its environment. Whoever may
    write to the stream may call: check the client_id where that matters.

    \b
    veen rpc serve app/calls --exec add=./add.py --exec 'now=date +%s'
    """
    import asyncio

    from veen.cli.overlays.rpc_program import program
    from veen.overlays.rpc.ends import Server

    handlers: dict[str, Handler] = {}
    for text in programs:
        method, equals, command = text.partition("=")
        if not (method and equals and command):
            raise click.UsageError(f"{text!r} is not of the form METHOD=COMMAND")
        handlers[method] = program(command)
    if echo:
        handlers["echo"] = _echo
    if not handlers:
        raise click.UsageError("nothing to serve: give --exec METHOD=COMMAND or --echo")

    authority(session, stream, cap)

    def note_failure(what: str, exc: BaseException) -> None:
        output.note(f"{what}: {exc}")

    with output.records("calls", ("method", "client_id", "msg_id")) as records:

        def report_calls(handler: "Handler") -> "Handler":
            async def run(args: Any, context: "CallContext") -> Any:
                cells = (context.method, context.client_id.hex(), context.msg_id.hex())
                records.add(
                    {**dict(zip(("method", "client_id", "msg_id"), cells, strict=True)), "args": plain(args)}, cells
                )
                return await handler(args, context)

            return run

        async def work(client: "Client") -> None:
            believed = {*servers, client.client_id} if servers else None
            shown = {method: report_calls(handler) for method, handler in handlers.items()}
            server = Server(client, stream, shown, servers=believed, clock=time.time, report=note_failure)
            try:
                async with asyncio.timeout(span):
                    await server.run(from_seq=first)
            except TimeoutError:
                if span is None:
                    raise

        session.client().run(work)


async def _echo(args: Any, context: "CallContext") -> Any:
    return args


@rpc.verb("trace", "List the calls of a stream and their results.")
@click.argument("stream", type=STREAM)
@click.option("--open", "only_open", is_flag=True, help="List only calls without an answer.")
@_SERVERS
@view_options
@client_options
def trace(
    output: Output, session: CliSession, stream: str, only_open: bool, servers: tuple[bytes, ...], view: View
) -> None:
    """List the calls of STREAM by the log: open, answered, failed or timed out, and contradicting answers."""
    from veen.overlays.rpc.messages import RpcFold

    folded = state_of(session, RpcFold(servers=servers or None), [stream], view)
    calls = [
        {"msg_id": msg_id.hex(), **_to_row(entry)}
        for msg_id, entry in folded.state.calls.items()
        if not only_open or entry.status in ("open", "timed_out")
    ]
    data = {"stream": stream, "calls": calls, "orphans": plain(folded.state.orphans)}
    columns = ("msg_id", "method", "status", "answer")
    rows = [
        (entry["msg_id"], entry["method"], entry["status"], entry["result"] if entry["ok"] else entry["error"])
        for entry in calls
    ]
    show_folded(session, folded, data, lambda: output.table(columns, rows))


def _to_row(entry: Any) -> dict[str, Any]:
    reply = None if entry.answer is None else entry.answer.reply
    return {
        "method": entry.method,
        "client_id": entry.client_id.hex(),
        "status": entry.status,
        "same_as": plain(entry.same_as),
        "answered_by": None if entry.answer is None else entry.answer.client_id.hex(),
        "ok": None if reply is None else reply.ok,
        "result": None if reply is None else plain(reply.result),
        "error": None
        if reply is None or reply.error is None
        else {"code": reply.error.code, "detail": reply.error.detail},
        "conflicts": plain(entry.conflicts),
    }
