"""Console page of the recorder: producers over time with losses and silences, and the state of every period (SDR0).

`veen.products.recorder.verify` checks the evidence, as in `veen recorder verify`.
"""

from dataclasses import dataclass, field
from typing import Any, Final

from veen.cli.shared.entries import when
from veen.client.errors import NoReaderKey, UnknownStream
from veen.core.labels import stream_id_of
from veen.core.verdict import Outcome
from veen.overlays.framework.schema import Issue
from veen.overlays.recorder import events as sdr
from veen.products.console.charts import GridCell, grid
from veen.products.console.events import MAX_EVENTS, StreamEvents
from veen.products.console.pages import Page
from veen.products.console.pages.common import now
from veen.products.console.views import (
    CONSOLE,
    Console,
    DigestCell,
    LinkCell,
    MarkCell,
    MomentCell,
    PageView,
    Query,
    Section,
)
from veen.products.recorder.events import LOSS, OWN_STREAM
from veen.products.recorder.roles import record_streams
from veen.products.recorder.verify import Agents, RecorderReport, verify

_COLUMNS: Final = 36
_MAX_PRODUCERS: Final = 40
_NOTHING: Final = "no stream of your keyring has events of a recorder."


@dataclass(slots=True)
class Producer:
    """One client key: times of its events, losses that it reported, and intervals without a heartbeat."""

    client_id: bytes
    times: list[int] = field(default_factory=list)
    losses: list[int] = field(default_factory=list)
    silences: list[tuple[int, int]] = field(default_factory=list)
    streams: set[str] = field(default_factory=set)


async def recorder(console: Console, query: Query) -> PageView:
    streams = record_streams(console.keyring)
    recorded = [stream for keys in streams if (stream := await console.events.of(keys)).events]
    too_long = [str(stream.keys) for stream in recorded if stream.is_cut]
    if not recorded:
        return _page(None, {}, [], too_long, [])
    producers = _producers(recorded)
    report, unjudged = None, ""
    if too_long:
        unjudged = (
            f"A stream has more than {MAX_EVENTS} entries ({', '.join(too_long)}); the picture shows the first of "
            "them. veen recorder verify judges all of it."
        )
    else:
        try:
            report = await verify(console.client, streams, admins=None, now=now())
        except (UnknownStream, NoReaderKey) as exc:
            unjudged = f"The configuration of the recorder and its checkpoints cannot be read: {exc}."
    sections = [_grid(producers)]
    if report is not None:
        sections += _sections(report)
    else:
        sections.append(Section(title="Periods are not judged here", note=unjudged))
    return _page(report, producers, sections, too_long, recorded)


def _producers(streams: list[StreamEvents]) -> dict[bytes, Producer]:
    """Collect the producers by client key, in the order of their first events, with losses and silences."""
    producers: dict[bytes, Producer] = {}
    own = stream_id_of(OWN_STREAM)
    agents = Agents()
    for stream in streams:
        for event in stream.events:
            typed = None if event.hdr.schema != sdr.EVENT.id else sdr.read(event)
            if typed is None or isinstance(typed, Issue):
                continue
            producer = producers.setdefault(event.client_id, Producer(event.client_id))
            producer.streams.add(str(stream.keys))
            if stream.keys.stream_id != own:
                producer.times.append(event.hub_ts)
                continue
            before, count = agents.last.get(event.client_id), len(agents.findings)
            agents.note(typed.body, event.stream_seq, event.hub_ts)
            if typed.body.event_type == LOSS:
                producer.losses.append(event.hub_ts)
            elif before is not None and any(finding.code == "SDR.SILENCE" for finding in agents.findings[count:]):
                producer.silences.append((before[1], event.hub_ts))
    return producers


def _grid(producers: dict[bytes, Producer]) -> Section:
    """Return the section with the picture: producers over time."""
    shown = list(producers.values())[:_MAX_PRODUCERS]
    times = [time for producer in shown for time in (*producer.times, *producer.losses)]
    times += [end for producer in shown for span in producer.silences for end in span]
    first, last = min(times, default=0), max(times, default=0)
    span = -(-(last - first + 1) // _COLUMNS)
    count = (last - first) // span + 1
    most = 1
    counts: dict[bytes, list[int]] = {}
    for producer in shown:
        row = counts[producer.client_id] = [0] * count
        for time in producer.times:
            row[(time - first) // span] += 1
        most = max(most, *row)
    rows = {
        f"{producer.client_id.hex()[:8]}…": [
            _cell(producer, counts[producer.client_id][column], most, first + column * span, span)
            for column in range(count)
        ]
        for producer in shown
    }
    about = f"{len(shown)} producers over {count} spans of {span} s; ! is a loss, – a silence, the shade says how many."
    return Section(
        title="Producers over time",
        note="One row for each client key. The darker, the more events; ! marks a loss that an agent reported, – a "
        "span in which an agent that runs sent no heartbeat.",
        picture=grid("Producers over time", about, rows, (when(first), when(last))) if times else "",
        columns=("Producer", "Events", "First", "Last", "Losses", "Silences", "Streams"),
        rows=tuple(
            (
                DigestCell(producer.client_id.hex()),
                len(producer.times),
                MomentCell(min(producer.times)) if producer.times else None,
                MomentCell(max(producer.times)) if producer.times else None,
                MarkCell(str(len(producer.losses)), "bad") if producer.losses else 0,
                MarkCell(str(len(producer.silences)), "partly") if producer.silences else 0,
                ", ".join(sorted(producer.streams)),
            )
            for producer in shown
        ),
    )


def _cell(producer: Producer, count: int, most: int, start: int, span: int) -> GridCell:
    end = start + span - 1
    words = f"{when(start)}: {count} events"
    if any(start <= time <= end for time in producer.losses):
        return GridCell(count / most, f"{words}, a loss was reported", "bad", "!")
    if any(since < end and start < until for since, until in producer.silences):
        return GridCell(count / most, f"{words}, no heartbeat", "partly", "–")
    return GridCell(count / most, words)


def _sections(report: RecorderReport) -> list[Section]:
    states = {"valid": "good", "missing": "partly", "erased": "partly", "invalid": "bad"}
    return [
        Section(
            title="Periods",
            note="A period is what one checkpoint of the recorder adds to a stream. It is valid if the log has exactly "
            "the root that the checkpoint names.",
            kind="bad" if report.verdict.value is Outcome.BAD else "",
            columns=("Stream", "Entries", "From", "To", "Checkpoint", "State", "Why"),
            rows=tuple(
                (
                    LinkCell(stream.stream, f"/stream/{stream.stream_id.hex()}?from={period.from_seq}"),
                    f"{period.from_seq} to {period.to_seq}",
                    None if period.ts_from is None else MomentCell(period.ts_from),
                    None if period.ts_to is None else MomentCell(period.ts_to),
                    "none yet" if period.checkpoint is None else period.checkpoint,
                    MarkCell(period.state, states[period.state]),
                    period.why,
                )
                for stream in report.streams
                for period in stream.periods
            ),
        ),
        Section(
            title="Findings",
            note="About policy and continuity; evidence is not touched by them.",
            columns=("Code", "Stream", "Entry", "What"),
            rows=tuple(
                (
                    MarkCell(finding.code, "bad" if finding.code == "SDR.LOSS" else "partly"),
                    finding.stream,
                    finding.seq,
                    finding.what,
                )
                for finding in report.findings
            ),
            empty="None: nothing is lost, silent, unmapped or by a stranger.",
        ),
    ]


def _page(
    report: RecorderReport | None,
    producers: dict[bytes, Producer],
    sections: list[Section],
    too_long: list[str],
    recorded: list[StreamEvents],
) -> PageView:
    data: dict[str, Any] = {
        "report": None if report is None else report.to_json(),
        "producers": [
            {
                "client_id": producer.client_id.hex(),
                "events": len(producer.times),
                "losses": producer.losses,
                "silences": [list(span) for span in producer.silences],
                "streams": sorted(producer.streams),
            }
            for producer in producers.values()
        ],
        "too_long": too_long,
    }
    if not recorded:
        what = _NOTHING
    elif report is None:
        what = "every entry that is shown; periods are not judged here."
    else:
        unit = "checkpoint" if report.checkpoints == 1 else "checkpoints"
        what = f"{report.checkpoints} {unit}, every entry of every stream, and each period against its checkpoint."
    failed = report is not None and report.verdict.value is Outcome.BAD
    return PageView(
        template="report.html",
        title="Recorder",
        command="veen recorder verify",
        data=data,
        verified_by=CONSOLE if recorded and not failed else None,
        verified_what="a period does NOT verify; it is marked below." if failed else what,
        sections=tuple(sections),
        failed=failed,
    )


PAGES: Final = (Page(path="/recorder", title="Recorder", report=recorder),)
