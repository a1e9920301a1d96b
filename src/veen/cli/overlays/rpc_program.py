"""Handler that runs a local program for a call: arguments as JSON on standard input, the result on its output."""

import asyncio
import contextlib
import json
import os
import shlex
from typing import Any, Final

from veen.overlays.framework.plain import plain
from veen.overlays.rpc.ends import CallContext, Handler, RpcFailed

FAILED: Final = "RPC.PROGRAM"
MAX_RESULT_BYTES: Final = 1024 * 1024


def program(command: str) -> Handler:
    """Run `command`, split as a shell would but without one, for every call. Its standard error is the server's own."""
    words = shlex.split(command)

    async def run(args: Any, context: CallContext) -> Any:
        about = {
            "VEEN_RPC_METHOD": context.method,
            "VEEN_RPC_CLIENT_ID": context.client_id.hex(),
            "VEEN_RPC_MSG_ID": context.msg_id.hex(),
        }
        try:
            process = await asyncio.create_subprocess_exec(
                *words,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, **about},
                limit=MAX_RESULT_BYTES,
            )
        except OSError as exc:
            raise RpcFailed(FAILED, "the program of this method cannot be started") from exc
        try:
            said = await _talk(process, json.dumps(plain(args)).encode())
            code = await process.wait()
        finally:
            if process.returncode is None:  # the caller stopped waiting, or it said too much
                process.kill()
                await process.wait()
        if code:
            raise RpcFailed(FAILED, f"the program of this method ended with exit code {code}")
        try:
            return json.loads(said) if said.strip() else None
        except (ValueError, RecursionError) as exc:
            raise RpcFailed(FAILED, "the program of this method printed no JSON") from exc

    return run


async def _talk(process: asyncio.subprocess.Process, arguments: bytes) -> bytes:
    """Write and read at the same time: a program may print before it has read all."""
    stdin, stdout = process.stdin, process.stdout
    assert stdin is not None and stdout is not None  # noqa: S101, PT018 - both are pipes

    async def feed() -> None:
        with contextlib.suppress(ConnectionError):  # it need not read at all
            stdin.write(arguments)
            await stdin.drain()
        stdin.close()

    async def drink() -> bytes:
        data = b""
        while part := await stdout.read(65_536):
            data += part
            if len(data) > MAX_RESULT_BYTES:
                raise RpcFailed(FAILED, f"the program of this method printed more than {MAX_RESULT_BYTES} bytes")
        return data

    _, said = await asyncio.gather(feed(), drink())
    return said
