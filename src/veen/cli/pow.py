"""`veen pow`: what a hub asks for each request, and paying it (001 SH1+ §5.2, D-59)."""

import sys
import time
from pathlib import Path
from typing import ClassVar

import click

from veen.cli.files import OBJECT_FILE
from veen.cli.hubclient import HubClient, hub_options
from veen.cli.lazy import LazyGroup, Table
from veen.cli.output import Output, output_options

__all__ = ["pow_", "request", "solve"]

_MAX_REQUEST_BYTES = 64 * 1024 * 1024


class _PowGroup(LazyGroup):
    table: ClassVar[Table] = {
        "request": ("veen.cli.pow:request", "How much a hub asks for."),
        "solve": ("veen.cli.pow:solve", "Pay for one request."),
    }


@click.group("pow", cls=_PowGroup)
def pow_() -> None:
    """The price that a hub puts on requests."""


@click.command()
@output_options
@hub_options
def request(output: Output, client: HubClient) -> None:
    """How many zero bits the hub asks for. `veen send --pow` pays by itself."""
    difficulty = int(client.get("/tooling/status")["pow_difficulty"])
    data = {"url": client.url, "difficulty": difficulty, "expected_hashes": 1 << difficulty if difficulty else 0}
    output.result(data, lambda: output.fields(data.items()))


@click.command()
@click.argument("file", type=OBJECT_FILE)
@click.option("--difficulty", type=click.IntRange(1, 64), required=True, help="Zero bits: see `veen pow request`.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the cookie here, as CBOR.")
@output_options
def solve(output: Output, file: Path, difficulty: int, out: Path | None) -> None:
    """Find the cookie for the request body in FILE ("-": standard input). It fits this body only.

    The value goes into the header VEEN-PoW. Each bit doubles the work: 20 take about a second.
    """
    from veen.core.errors import LimitError
    from veen.core.pow import solve as solve_pow

    with sys.stdin.buffer if str(file) == "-" else file.open("rb") as source:
        body = source.read(_MAX_REQUEST_BYTES + 1)
    if len(body) > _MAX_REQUEST_BYTES:
        raise LimitError("request bytes", len(body), _MAX_REQUEST_BYTES)
    started = time.perf_counter()
    with output.progress(f"looking for {difficulty} zero bits"):
        cookie = solve_pow(body, difficulty)
    if out is not None:
        out.write_bytes(cookie.to_bytes())
    data = {
        "header": f"VEEN-PoW: {cookie.to_bytes().hex()}",
        "challenge": cookie.challenge.hex(),
        "nonce": cookie.nonce,
        "difficulty": cookie.difficulty,
        "hashes": cookie.nonce + 1,
        "seconds": round(time.perf_counter() - started, 3),
    }
    output.result(data, lambda: output.fields(data.items()))
