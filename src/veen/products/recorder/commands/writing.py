"""`veen recorder emit`: records one event, or lines of standard input. Exit code 0 if all have receipts.

`veen recorder map`: assigns event types to streams; renames and splits streams by records (SDR-02, SDR-04).

`veen recorder checkpoint`: writes one root over all streams, now or when it is due by time or volume (SDR-06).
"""

import sys
import time
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import click

from veen.cli.shared.authority import token_store
from veen.cli.shared.command import CliSession, client_options
from veen.cli.shared.entries import when
from veen.cli.shared.names import STREAM
from veen.cli.shared.output import Exit, Output

if TYPE_CHECKING:
    from veen.client.client import Client
    from veen.client.send.writing import Outcome
    from veen.core.objects.control import AnchorPublish
    from veen.overlays.recorder.config import Configuration
    from veen.products.recorder.events import SourceRecord
    from veen.products.recorder.setup import RecordedHead

_BATCH: Final = 256
_MAX_LINE: Final = 16 * 1024 * 1024


@click.command()
@click.argument("stream", type=STREAM)
@click.argument("payload", required=False)
@click.option("--type", "event_type", help="Event type; with -, also a path such as .event.")
@click.option("--subject", help="Subject of the event; with -, also a path such as .user.name.")
@click.option("--origin", help="Service or host. Default: name of this host.")
@click.option("--time", "moment", help="Time of the event: ISO 8601 or seconds; with -, also a path. Default: now.")
@client_options
def emit(
    output: Output,
    session: CliSession,
    stream: str,
    payload: str | None,
    event_type: str | None,
    subject: str | None,
    origin: str | None,
    moment: str | None,
) -> None:
    """Record PAYLOAD (JSON or text) as one event in STREAM; "-" records each line of standard input.

    Every event is signed by the producer's key and returns with a verified receipt. With "-", a line that is a JSON
    object is the payload and any other line is {"message": …}; a member is chosen by its path. Exit code 0 means that
    every line has a receipt.

    \b
    veen recorder emit record/app/web --type login --subject alice '{"ip":"10.0.0.7"}'
    tail -n 100 app.log | veen recorder emit record/app/web - --subject .user --type .event
    """
    from socket import gethostname

    from veen.cli.shared.wire_tree import to_named
    from veen.products.recorder.emitting import line_records
    from veen.products.recorder.events import Selectors

    lines = payload == "-"
    if not lines and not (event_type and subject):
        raise click.UsageError("give --type and --subject, or - to take them from the lines of standard input")
    host = origin or gethostname()
    defaults = Selectors()
    selectors = Selectors(
        subject=subject or defaults.subject,
        event_type=event_type or defaults.event_type,
        origin=origin or defaults.origin,
        time=moment or defaults.time,
    )
    source = sys.stdin.buffer if lines else iter([(payload or "{}").encode("utf-8", "surrogateescape")])
    session.make_stream_keys(stream)
    keys = session.keystore.secrets.keyring.for_stream(stream)
    tokens, client = token_store(session), session.client()
    read, first, last, faults = 0, None, None, []

    def send(records: "list[SourceRecord]") -> "list[Outcome]":
        from veen.api.token_authority import TokenAuthority
        from veen.products.recorder.emitting import emit as record

        async def work(opened: "Client") -> "list[Outcome]":
            return await record(TokenAuthority(opened, tokens), keys, records, source=host)

        return client.run(work)

    receipt: dict[str, Any] | None = None
    started = time.time_ns()  # tells the lines of this run from those of others
    with output.progress("recording"):
        while batch := list(islice(_lines(source), _BATCH)):
            records = line_records(batch, selectors, origin=host)
            records = [_renumber(record, started, read) for record in records]
            read += len(batch)
            for record, outcome in zip(records, send(records), strict=True):
                if isinstance(outcome, Exception):
                    faults.append(
                        {
                            "line": int(record.position.rpartition(":")[2]),
                            "code": getattr(outcome, "code", "E.BUG"),
                            "message": str(outcome),
                        }
                    )
                    continue
                first, last = first if first is not None else outcome.seq, outcome.seq
                receipt = to_named(outcome.receipt) if not lines else None
    session.remember_stream(stream)
    recorded = read - len(faults)
    data = {"stream": stream, "lines": read, "recorded": recorded, "first_seq": first, "last_seq": last,
            "faults": faults, "receipt": receipt}  # fmt: skip

    def human() -> None:
        output.fields((name, value) for name, value in data.items() if name not in ("faults", "receipt"))
        for fault in faults:
            output.line(f"line {fault['line']}: {fault['code']} {fault['message']}", "bad")

    output.result(data, human)
    if faults:
        raise click.exceptions.Exit(Exit.REFUSED)


def _lines(source: Any) -> Any:
    """Yield lines of standard input. A line above the size limit comes in pieces, none of which is lost."""
    if not hasattr(source, "readline"):
        yield from source
        return
    while line := source.readline(_MAX_LINE):
        yield line


def _renumber(record: "SourceRecord", started: int, before: int) -> "SourceRecord":
    from dataclasses import replace

    return replace(record, position=f"{started}:{int(record.position) + before}")


@click.command("map")
@click.argument("event_type", required=False)
@click.argument("stream", type=STREAM, required=False)
@click.option("--rename", "renamed", type=STREAM, metavar="OLD", help="STREAM replaces OLD for all its event types.")
@click.option("--split", "split", type=STREAM, metavar="OLD", help="Split OLD: STREAM takes over EVENT_TYPE.")
@click.option("--reason", help="Reason, stored in the log.")
@client_options
def map_(
    output: Output,
    session: CliSession,
    event_type: str | None,
    stream: str | None,
    renamed: str | None,
    split: str | None,
    reason: str | None,
) -> None:
    """Record that EVENT_TYPE belongs to STREAM; without arguments, show the mapping.

    From the first mapping on every event type must be mapped; `veen recorder verify` reports the others.

    \b
    veen recorder map --identity recorder-admin
    veen recorder map login record/security/gate --identity recorder-admin
    """
    from veen.core.labels import stream_id_of
    from veen.overlays.recorder.config import change
    from veen.products.recorder.events import CHANGES_STREAM

    if (event_type is None) != (stream is None) or (renamed and split):
        raise click.UsageError("give EVENT_TYPE and STREAM, and at most one of --rename and --split")
    drafts = []
    now = int(time.time())
    if event_type is not None and stream is not None:
        old = renamed or split
        if old is not None:
            kind = "rename" if renamed else "split"
            drafts.append(
                change(
                    kind, ts=now, stream_id=stream_id_of(old), stream=old, to=(stream_id_of(stream),),
                    to_names=(stream,), reason=reason,
                )
            )  # fmt: skip
        drafts.append(
            change("map", ts=now, event_type=event_type, stream_id=stream_id_of(stream), stream=stream, reason=reason)
        )
    tokens = token_store(session)

    async def work(opened: "Client") -> "Configuration":
        from veen.api.token_authority import TokenAuthority
        from veen.products.recorder.setup import read_history

        for draft in drafts:
            await TokenAuthority(opened, tokens).send(stream_id_of(CHANGES_STREAM), draft)
        admins = {key.client_id for key in session.keystore.identity.client_keys}
        return (await read_history(opened, admins)).now

    with output.progress("reading the configuration"):
        current = session.client().run(work)
    rows = [
        {"event_type": kind, "stream": current.streams.get(stream_id, stream_id.hex())}
        for kind, stream_id in sorted(current.mapping.items())
    ]
    data = {"written": len(drafts), "closed": current.is_closed, "mapping": rows}
    output.result(data, lambda: output.table(("event_type", "stream"), [tuple(row.values()) for row in rows]))


@click.command()
@click.option("--if-due", is_flag=True, help="Write only if the configured interval or number of events has passed.")
@click.option("--follow", is_flag=True, help="Run until stopped; write a checkpoint whenever one is due.")
@click.option("--look-every", type=click.FloatRange(0.1), default=5.0, help="Seconds between two checks with --follow.")
@click.option(
    "--anchor", is_flag=True, help="Have the hub anchor the checkpoint outside of its log. Requires --token-file."
)
@client_options
def checkpoint(
    output: Output, session: CliSession, if_due: bool, follow: bool, look_every: float, anchor: bool
) -> None:
    """Write a checkpoint of all record/* streams, as the admin --identity.

    It names the last entry and the root of every stream, each under the hub's signature, and one log_root over all;
    and it names the checkpoint before it. An anchor of it covers every entry of every stream up to there.

    \b
    veen recorder checkpoint --identity recorder-admin
    veen recorder checkpoint --identity recorder-admin --follow
    veen recorder checkpoint --identity recorder-admin --anchor --token-file hub-admin.token
    """
    client, tokens = session.client(), token_store(session)
    streams = session.keystore.secrets.keyring

    async def work(opened: "Client") -> "tuple[RecordedHead, AnchorPublish | None] | None":
        from veen.api.token_authority import TokenAuthority
        from veen.core.objects.control import AnchorPublish
        from veen.products.recorder.events import CHECKPOINTS_STREAM
        from veen.products.recorder.roles import record_streams
        from veen.products.recorder.setup import heads_of, is_due, read_chain, read_history, select_covered, take

        admins = {key.client_id for key in session.keystore.identity.client_keys}
        configuration = (await read_history(opened, admins)).now
        last = (await read_chain(opened, admins)).last
        readable = record_streams(streams)
        now = int(time.time())
        if if_due or follow:
            heads = await heads_of(opened, select_covered(readable))
            if not is_due(last, sum(head.last_seq for head in heads), now, configuration):
                return None
        recorded = await take(TokenAuthority(opened, tokens), readable, configuration, last, now=now)
        if not anchor:
            return recorded, None
        record = await opened.anchor(CHECKPOINTS_STREAM, recorded.seq)
        assert isinstance(record.body, AnchorPublish)  # noqa: S101 - `anchor` has verified it
        return recorded, record.body

    while True:
        with output.progress("reading the heads of all streams"):
            written = client.run(work)
        if written is not None or not follow:
            _show(output, *(written or (None, None)))
        if not follow:
            return
        time.sleep(look_every)


def _show(output: Output, written: "RecordedHead | None", anchored: "AnchorPublish | None") -> None:
    if written is None:
        data: dict[str, Any] = {"written": False, "why": "none is due"}
        return output.result(data, lambda: output.line("no checkpoint is due"))
    body = written.body
    data = {
        "written": True,
        "seq": written.seq,
        "msg_id": written.msg_id.hex(),
        "log_root": body.log_root.hex(),
        "streams": len(body.streams),
        "events": body.events,
        "hub_pk": f"ed25519:{body.hub_pk.hex()}",
        "profile_id": body.profile_id.hex(),
        "sdr_profile_id": body.sdr_profile_id.hex(),
        "time": when(body.ts),
        "prev": body.prev and body.prev.hex(),
    }
    if anchored is not None:
        data |= {"anchor": anchored.backend, "anchor_ref": anchored.anchor_ref.hex(), "root": anchored.mmr_root.hex()}
    return output.result(data)
