"""`veen recorder status`: shows streams, checkpoints and agents.

`veen recorder verify`: verifies the whole recorder, stream by stream and period by period (SDR-12).

`veen recorder replay`: prints events of a range or a time window with receipts, and a trailer with the coverage.
"""

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from veen.cli.shared.command import CliSession, client_options
from veen.cli.shared.entries import when
from veen.cli.shared.files import hex32
from veen.cli.shared.names import STREAM
from veen.cli.shared.output import Exit, Output
from veen.cli.shared.values import MOMENT
from veen.cli.shared.verifying import end_by, show_verdict

if TYPE_CHECKING:
    from veen.client.client import Client
    from veen.client.identity.keyring import StreamKeys
    from veen.products.recorder.replay import ReplayCoverage, Row
    from veen.products.recorder.verify import RecorderReport


@click.command()
@client_options
def status(output: Output, session: CliSession) -> None:
    """Show the streams and their heads, the last checkpoint, a due checkpoint, and the last report of each agent.

    \b
    veen recorder status --identity recorder-admin
    """
    ring = session.keystore.secrets.keyring

    async def work(opened: "Client") -> dict[str, Any]:
        from veen.overlays.framework.schema import Issue
        from veen.overlays.recorder import events as sdr
        from veen.products.recorder.events import OWN_STREAM
        from veen.products.recorder.roles import record_streams
        from veen.products.recorder.setup import events_of, heads_of, is_due, read_chain, read_history, select_covered
        from veen.products.recorder.verify import Agents

        admins = {key.client_id for key in session.keystore.identity.client_keys}
        configuration = (await read_history(opened, admins)).now
        last = (await read_chain(opened, admins)).last
        readable = select_covered(record_streams(ring))
        heads = await heads_of(opened, readable)
        names = {keys.stream_id: str(keys) for keys in readable}
        events, now = sum(head.last_seq for head in heads), int(time.time())
        agents = Agents()
        for event in await events_of(opened, OWN_STREAM):
            if event.hdr.schema == sdr.EVENT.id and not isinstance(typed := sdr.read(event), Issue):
                agents.note(typed.body, event.stream_seq, event.hub_ts)
        return {
            "streams": [
                {"stream": names[head.stream_id], "epoch": head.epoch, "last_seq": head.last_seq}
                for head in sorted(heads, key=lambda head: (names[head.stream_id], head.epoch))
            ],
            "events": events,
            "checkpoint": last and {"seq": last.seq, "time": when(last.body.ts), "events": last.body.events,
                                    "log_root": last.body.log_root.hex()},
            "checkpoint_due": is_due(last, events, now, configuration),
            "every_sec": configuration.every_sec,
            "every_events": configuration.every_events,
            "sdr_profile_id": configuration.profile_id().hex(),
            "agents": [
                {"client_id": who.hex(), "said": kind, "at": when(ts), "seconds_ago": max(now - ts, 0),
                 "counts": payload}
                for who, (kind, ts, payload) in agents.last.items()
            ],
            "lost": sum(agents.lost.values()),
        }  # fmt: skip

    with output.progress("asking the hub"):
        data = session.client().run(work)

    def human() -> None:
        rows = [(entry["stream"], entry["epoch"], entry["last_seq"]) for entry in data["streams"]]
        output.table(("stream", "epoch", "last_seq"), rows)
        shown = ("events", "checkpoint", "checkpoint_due", "every_sec", "every_events", "lost")
        output.fields((name, data[name]) for name in shown)
        agents = [(entry["client_id"][:16], entry["said"], entry["at"]) for entry in data["agents"]]
        output.table(("agent", "said", "at"), agents)

    output.result(data, human)
    output.next("veen recorder checkpoint" if data["checkpoint_due"] else "veen recorder verify")


_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.option(
    "--admin",
    "admins",
    type=hex32,
    multiple=True,
    metavar="CLIENT_ID",
    help="Client id of the admin. Default: --identity. Repeatable.",
)
@click.option(
    "--continuity/--no-continuity", default=True, help="Check the positions of sources for gaps and repeats, or do not."
)
@click.option(
    "--report",
    "report_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the report to this file as JSON.",
)
@click.option(
    "--integrity-cert", "certificates", type=_FILE, multiple=True,
    help="Certificate (PEM) of an OpenTelemetry collector: check its audit.integrity.* signatures. Repeatable.",
)  # fmt: skip
@click.option(
    "--integrity-key-file", type=_FILE, help="Shared key (HMAC-SHA256, base64) for audit.integrity.* signatures."
)
@client_options
def verify(
    output: Output,
    session: CliSession,
    admins: tuple[bytes, ...],
    continuity: bool,
    report_file: Path | None,
    certificates: tuple[Path, ...],
    integrity_key_file: Path | None,
) -> None:
    """Read every stream of the recorder and compare it with every checkpoint; then check policy and continuity.

    Each period between two checkpoints is valid, invalid, missing or erased. Exit code 0 if everything up to the heads
    of the hub or the newest checkpoint was read and is valid; 1 if evidence is wrong or missing; 6 if there are
    findings about policy (mapping, producers, losses, silence), or if entries could not be read.

    \b
    veen recorder verify --identity recorder-admin
    """
    admin_ids = set(admins) or {key.client_id for key in session.keystore.identity.client_keys}
    ring = session.keystore.secrets.keyring
    integrity = None
    if certificates or integrity_key_file is not None:
        from veen.products.recorder.integrity import IntegrityKeys

        shared = None if integrity_key_file is None else integrity_key_file.read_bytes()
        integrity = IntegrityKeys.read([path.read_bytes() for path in certificates], shared)

    async def work(opened: "Client") -> "RecorderReport":
        from veen.products.recorder.roles import record_streams
        from veen.products.recorder.verify import verify as judge

        return await judge(
            opened,
            record_streams(ring),
            admins=admin_ids,
            now=int(time.time()),
            continuity=continuity,
            integrity=integrity,
        )

    with output.progress("reading all streams"):
        report = session.client().run(work)
    data, verdict = report.to_json(), report.verdict
    if report_file is not None:
        from json import dumps

        report_file.write_text(dumps(data, indent=2) + "\n")

    def human() -> None:
        rows = [
            (
                stream.stream, period.from_seq, period.to_seq,
                "-" if period.ts_from is None else when(period.ts_from),
                "-" if period.ts_to is None else when(period.ts_to),
                "open" if period.checkpoint is None else period.checkpoint, period.state, period.why or "",
            )
            for stream in report.streams
            for period in stream.periods
        ]  # fmt: skip
        output.table(("stream", "from", "to", "since", "until", "checkpoint", "state", "why"), rows)
        for finding in report.findings:
            output.line(f"{finding.code}  {finding.place}  {finding.what}", "warn")
        states = [period.state for stream in report.streams for period in stream.periods]
        counted = ", ".join(f"{states.count(state)} {state}" for state in ("valid", "invalid", "missing"))
        output.line(
            f"{counted} of {len(states)} periods; {len(report.findings)} findings; {report.checkpoints} checkpoints;"
            f" {report.signatures} signatures checked"
        )
        show_verdict(output, verdict)

    output.result(data, human)
    end_by(verdict, "the recorder")


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
        from veen.products.recorder.replay import ocsf_event

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
