"""`veen recorder replay`: prints events of a range or a time window with receipts, and a trailer with the coverage."""

import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import click

from veen.cli.shared.command import CliSession, client_options
from veen.cli.shared.entries import when
from veen.cli.shared.names import STREAM
from veen.cli.shared.output import Exit, Output
from veen.cli.shared.values import MOMENT

if TYPE_CHECKING:
    from veen.client.client import Client
    from veen.client.identity.keyring import StreamKeys
    from veen.products.recorder.replay import ReplayCoverage, Row


@click.command()
@click.option(
    "--stream",
    "streams",
    type=STREAM,
    multiple=True,
    help="Stream to read. Repeatable. Default: all readable streams with events.",
)
@click.option("--from", "first", type=click.IntRange(1), help="Number of the first entry, inclusive.")
@click.option("--to", "last", type=click.IntRange(1), help="Number of the last entry, inclusive.")
@click.option("--epoch", type=click.IntRange(0), help="Epoch of the label for --from and --to. Default: current epoch.")
@click.option("--since", type=MOMENT, help="Earliest hub time, inclusive: ISO 8601, seconds, or -15m.")
@click.option("--until", type=MOMENT, help="Latest hub time, inclusive. Default: now.")
@click.option("--ocsf", is_flag=True, help="Print rows as OCSF events with record_integrity.")
@client_options
def replay(
    output: Output,
    session: CliSession,
    streams: tuple[str, ...],
    first: int | None,
    last: int | None,
    epoch: int | None,
    since: int | None,
    until: int | None,
    ocsf: bool,
) -> None:
    """Print the events of a range of one stream, or of a time window over many, each one verified.

    The last row is a trailer: for each label the range covered, its root, and the receipts beside both edges, which
    prove that the window is complete. Entries that cannot be shown are rows with an error. Events that a bridge
    imported from another zone (import/*) are included.

    \b
    veen recorder replay --stream record/app/web --from 1 --to 100 --ndjson
    veen recorder replay --since -1h --ndjson --identity recorder-admin
    """
    by_number = first is not None or last is not None
    if by_number == (since is not None or until is not None):
        raise click.UsageError("give --from and --to, or --since and --until")
    if by_number and (len(streams) != 1 or first is None or last is None):
        raise click.UsageError("--from and --to count within one stream: give both, and one --stream")
    ring = session.keystore.secrets.keyring
    client = session.client()
    from veen.products.recorder.roles import ADMIN_STREAMS, record_streams

    wanted = [ring.for_stream(name) for name in streams] or [
        *(keys for keys in record_streams(ring) if str(keys) not in ADMIN_STREAMS),
        *(keys for keys in ring.find_matching("import/*") if keys.can_read),
    ]
    coverage: list[ReplayCoverage] = []
    counts = {"rows": 0, "skipped": 0}
    previous: dict[bytes, tuple[int, str]] = {}

    def row_data(row: "Row") -> dict[str, Any]:
        if not ocsf:
            return row.to_json()
        from veen.products.recorder.ocsf import ocsf_event

        event = ocsf_event(row, client.hub_id, previous.get(row.receipt.label))
        value = event["record_integrity"]["attestation_list"][0]["fingerprint"]["value"]
        previous[row.receipt.label] = (row.receipt.stream_seq, value)
        return event

    with output.records("rows", ("stream", "seq", "time", "type", "subject", "error"), (28, 6, 20, 20, 16)) as records:

        def add(row: "Row") -> None:
            counts["rows"] += 1
            counts["skipped"] += row.event is None and row.about_keys is None
            event = row.event
            cells = (
                row.stream, row.receipt.stream_seq, when(row.receipt.hub_ts), event.event_type if event else "-",
                event.subject_id if event else "-", row.about_keys or row.error or "",
            )  # fmt: skip
            records.add(row_data(row), cells)

        async def work(opened: "Client") -> None:
            for keys in wanted:
                async for rows, covered in _parts(opened, keys, first, last, epoch, since, until):
                    async for row in rows:
                        add(row)
                    coverage.append(covered)

        client.run(work)
        trailer = {"coverage": [part.to_json() for part in coverage], **counts, "verified_by": "this client"}
        if output.as_json:
            records.add({"trailer": trailer}, ())
    if not output.as_json:
        output.table(
            ("stream", "from", "to", "of"), [(p.stream, p.from_seq, p.to_seq, p.signed.upto_seq) for p in coverage]
        )
    if counts["skipped"]:
        raise click.exceptions.Exit(Exit.POLICY)


async def _parts(
    client: "Client",
    keys: "StreamKeys",
    first: int | None,
    last: int | None,
    epoch: int | None,
    since: int | None,
    until: int | None,
) -> "AsyncIterator[tuple[AsyncIterator[Row], ReplayCoverage]]":
    from veen.products.recorder.replay import replay_range, replay_window

    if first is not None and last is not None:
        yield await replay_range(client, keys, first, last, epoch=epoch)
        return
    async for part in replay_window(client, keys, since or 0, int(time.time()) if until is None else until):
        yield part
