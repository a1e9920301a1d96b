"""`veen bench`: the rate at which a hub takes messages from here, with everything verified."""

import time
from pathlib import Path

import click

from veen.cli.lazy import LazyGroup
from veen.cli.shared.authority import CAP, authority
from veen.cli.shared.command import CliSession, client_options
from veen.cli.shared.names import STREAM
from veen.cli.shared.output import Fail, Output
from veen.cli.shared.values import SIZE

bench = LazyGroup("bench", help="Throughput of a hub from here, with everything verified.")


@bench.verb("submit", "Send many messages, and count.")
@click.option("--stream", type=STREAM, help="Stream to send to. Default: a new one that nobody can read.")
@click.option("--count", type=click.IntRange(1, 50_000), default=1_000, show_default=True, help="Number of messages.")
@click.option("--batch", type=click.IntRange(1, 1_024), default=64, show_default=True, help="Messages in one request.")
@click.option("--size", type=SIZE, default=336, show_default=True, help="Bytes of each body.")
@CAP
@client_options
def submit(
    output: Output, session: CliSession, stream: str | None, count: int, batch: int, size: int, cap: Path | None
) -> None:
    """Seal --count messages, send them in batches, and verify every receipt. They stay in the log for good.

    Sealing is timed apart from sending. One writer on one label: a hub takes more from many.
    """
    from veen.client.identity.keyring import StreamKeys
    from veen.client.send.writing import Sent
    from veen.core.errors import VeenError

    client = session.client()
    token = None if stream is None and cap is None else authority(session, stream or "", cap)
    target = stream if stream is not None else StreamKeys.create(f"bench/{time.time_ns():x}")
    auth_ref = None if token is None else token.auth_ref()
    body = bytes(size)
    with output.progress(f"sealing {count} messages"):
        started = time.perf_counter()
        prepared = client.prepare(target, [body] * count, auth_ref=auth_ref)
        sealing = time.perf_counter() - started
    with output.progress(f"sending {count} messages"):
        started = time.perf_counter()
        outcomes = client.submit_prepared(target, prepared, batch=batch)
        sending = time.perf_counter() - started
    refused = [outcome for outcome in outcomes if isinstance(outcome, VeenError)]
    sent = [outcome for outcome in outcomes if isinstance(outcome, Sent)]
    if refused:
        raise refused[0]
    if len(sent) != count:
        raise Fail("E.LOCAL", "not every message got a receipt", f"{len(sent)} of {count}", "run it again")
    data = {
        "messages": count,
        "batch": batch,
        "body_bytes": size,
        "msg_bytes": len(prepared[0].raw),
        "seal_us_each": round(sealing / count * 1e6, 1),
        "send_seconds": round(sending, 4),
        "messages_per_second": round(count / sending, 1),
        "verified": True,
    }
    output.result(data)
