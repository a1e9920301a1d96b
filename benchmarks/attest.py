"""What it costs to attest an entry at another hub, beside what the entry itself cost.

    python -m benchmarks.attest             prints the table and writes it to docs/benchmarks.md
    python -m benchmarks.attest --quick     fewer entries, for a first look; nothing is written

Two hubs and the mirror run in one process, so its CPU time is all there is to count. An entry costs sealing, signing,
admission and the check of its receipt. Its attestation costs reading and verifying it at the source, and a statement
that is itself an entry of the target, with the receipt of the source in it. The same is measured for a reader who
verifies every entry and forwards nothing. Rounds are interleaved and medians reported.
"""

import argparse
import asyncio
import contextlib
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks import report

from veen.client.client import Client
from veen.client.home import Home
from veen.client.identity.identity import Identity
from veen.client.identity.keyring import Keyring, StreamKeys
from veen.client.send.sealing import Draft
from veen.client.state import StateStore
from veen.client.transport.inprocess import InProcess
from veen.client.verify.pin import HubPin
from veen.hub.process.config import load
from veen.hub.process.runtime import Hub
from veen.products.federation.mirroring import attest_stream

ENTRIES: Final = 5_000
ROUNDS: Final = 5
BODY: Final = bytes(336)
_SETTINGS: Final = {
    "listen.port": "0",
    "log.level": "error",
    "engine.workers": "0",  # all work is that of this process
    "admission.capability_gating": "false",
    "admission.stream_scope": "open",
}


@contextlib.asynccontextmanager
async def _client(hub: Hub, root: Path, name: str, ring: Keyring) -> AsyncIterator[Client]:
    who = Identity.create(name, now=int(time.time()))
    with StateStore.open(Home.at(root / name), name) as state:
        async with Client(InProcess(hub.api), HubPin.of_key(hub.identity.current_pk), who, ring, state) as client:
            await client.open()
            yield client


async def _cpu_us(work: Awaitable[Any], count: int) -> float:
    began = time.process_time()
    await work
    return (time.process_time() - began) / count * 1e6


async def _read_all(client: Client, stream: str) -> None:
    async for _ in client.read(stream, open=False):
        pass


async def measure(count: int) -> dict[str, float]:
    """µs of CPU for an entry: to write it, to read and verify it, to attest it."""
    root = Path(tempfile.mkdtemp(prefix="veen-bench-"))
    try:
        async with contextlib.AsyncExitStack() as stack:
            hubs = [
                await stack.enter_async_context(Hub.serve(load(None, {}, {**_SETTINGS, "data_dir": str(root / name)})))
                for name in ("source", "target")
            ]
            orders, mirrors = StreamKeys.create("orders"), StreamKeys.create("mirrors")
            writer = await stack.enter_async_context(_client(hubs[0], root, "writer", Keyring().with_keys(orders)))
            reader = await stack.enter_async_context(_client(hubs[0], root, "reader", Keyring().with_keys(orders)))
            source = await stack.enter_async_context(_client(hubs[0], root, "source", Keyring().with_keys(orders)))
            target = await stack.enter_async_context(_client(hubs[1], root, "target", Keyring().with_keys(mirrors)))
            drafts = [Draft(body=BODY) for _ in range(count)]
            written = await _cpu_us(writer.send_many("orders", drafts), count)
            verified = await _cpu_us(_read_all(reader, "orders"), count)
            mirroring = attest_stream(source, target, "orders", "mirrors", now=lambda: int(time.time()))
            attested = await _cpu_us(mirroring, count)
        return {"written": written, "verified": verified, "attested": attested}
    finally:
        shutil.rmtree(root, ignore_errors=True)


def table(rounds: list[dict[str, float]], count: int) -> str:
    def middle(key: str) -> float:
        return median(measured[key] for measured in rounds)

    ratio = median(measured["attested"] / measured["written"] for measured in rounds)
    return "\n".join(
        [
            "## Attesting",
            "",
            report.machine(),
            "",
            f"{count:,} entries of {len(BODY)} bytes, written, read and attested in batches; hubs and clients in one "
            f"process, whose CPU time is counted. Medians of {len(rounds)} rounds.",
            "",
            "| for each entry | µs of CPU | to its own cost |",
            "|---|---:|---:|",
            f"| the entry itself: seal, sign, admit, check the receipt | {middle('written'):.0f} | 1.00 |",
            f"| read and verify it | {middle('verified'):.0f} | {middle('verified') / middle('written'):.2f} |",
            f"| attest it: read, verify, and a statement at another hub | {middle('attested'):.0f} | {ratio:.2f} |",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--entries", type=int, default=ENTRIES)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    count, rounds = (1_000, 2) if options.quick else (options.entries, options.rounds)
    section = table([asyncio.run(measure(count)) for _ in range(rounds)], count)
    print(section)
    if not options.quick:
        report.write_section("attest", section)


if __name__ == "__main__":
    main()
