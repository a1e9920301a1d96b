"""`veen pow`: the proof of work that a hub asks for, and its computation (001 SH1+ §5.2, D-59)."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from veen.cli.hub.client import hub_options
from veen.cli.lazy import LazyGroup
from veen.cli.shared import options
from veen.cli.shared.files import OBJECT_FILE
from veen.cli.shared.output import Output, output_options

if TYPE_CHECKING:
    from veen.client.transport.hubapi import HubApi

_MAX_REQUEST_BYTES = 64 * 1024 * 1024

pow_ = LazyGroup("pow", help="Proof of work that a hub asks for.")


@pow_.verb("request", "Number of zero bits that a hub asks for.")
@hub_options
def request(output: Output, hub: "HubApi") -> None:
    """Show the number of zero bits that the hub asks for. `veen send --pow` pays by itself."""
    difficulty = hub.status().pow_difficulty
    output.result({"url": hub.url, "difficulty": difficulty, "expected_hashes": 1 << difficulty if difficulty else 0})


@pow_.verb("solve", "Compute the cookie for one request.")
@click.argument("file", type=OBJECT_FILE)
@click.option(
    "--difficulty", type=click.IntRange(1, 64), required=True, help="Number of zero bits. `veen pow request` shows it."
)
@click.option(
    "--start", type=click.IntRange(0, 2**63), default=0, help="First nonce to try. Another one gives another cookie."
)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help=options.CBOR_OUT)
@output_options
def solve(output: Output, file: Path, difficulty: int, start: int, out: Path | None) -> None:
    """Find a cookie for the request body in FILE ("-": standard input). It fits this body only, and passes once.

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
        cookie = solve_pow(body, difficulty, start)
    if out is not None:
        out.write_bytes(cookie.to_bytes())
    data = {
        "header": f"VEEN-PoW: {cookie.to_bytes().hex()}",
        "challenge": cookie.challenge.hex(),
        "nonce": cookie.nonce,
        "difficulty": cookie.difficulty,
        "hashes": cookie.nonce - start + 1,
        "seconds": round(time.perf_counter() - started, 3),
    }
    output.result(data)
