"""Console page of the air-gap bridge: exported and imported ranges, gaps, and the seven links of one event (AGB0).

The console connects to one hub. In the sending zone that has bridge/online/log, in the receiving zone
bridge/offline/log and the import streams; the page marks the other zone as not checked. `veen bridge reconcile` and
`evidence` read both.
"""

from dataclasses import dataclass, field
from typing import Any, Final

from veen.core.crypto.ed25519 import verify
from veen.core.errors import VerifyError
from veen.core.event import Event
from veen.overlays.airgap.bodies import (
    IMPORT,
    OFFLINE,
    ONLINE,
    WITHHELD,
    ImportedEvent,
    OfflineRecord,
    OnlineRecord,
    read_crossed,
)
from veen.overlays.framework.plain import plain
from veen.overlays.framework.schema import Typed, decode
from veen.products.bridge.evidence import LINKS
from veen.products.bridge.runs import Positions, gaps_of
from veen.products.console.charts import ChainBox, NumberRun, chain, ranges, row_name
from veen.products.console.errors import BadAddress
from veen.products.console.events import StreamEvents
from veen.products.console.pages import Page
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

_GAP_AFTER: Final = 5  # the bundle crosses between the online and the offline log
_MAX_ROWS: Final = 200


@dataclass(slots=True)
class Crossing:
    """Records of bridges at this hub."""

    online: list[tuple[Event, OnlineRecord]] = field(default_factory=list)
    offline: list[tuple[Event, OfflineRecord]] = field(default_factory=list)
    crossed: list[tuple[Event, Any]] = field(default_factory=list)  # ImportedEvent or WithheldEvent
    streams: list[StreamEvents] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


async def bridge(console: Console, query: Query) -> PageView:
    crossing = await _read(console)
    logs = _logs(crossing)
    chosen = _select_event(crossing, query)
    links = [] if chosen is None else _links(console, crossing, *chosen)
    sections = [section for log in logs for section in _log_sections(console, log)]
    if chosen is not None:
        sections.insert(0, _links_section(chosen[1], links))
    if crossing.offline:
        sections.append(_offline_section(crossing))
    some = bool(crossing.streams)
    if not some:
        sections.append(
            Section(
                title="Nothing crossed here",
                note="A bridge records what leaves and what arrives in streams of both zones. With their read keys in "
                "your keyring this page shows ranges, gaps and the seven links of one event: docs/bridge.md.",
            )
        )
    gaps = sum(len(log["gaps"]) for log in logs)
    return PageView(
        template="report.html",
        title="Air-gap bridge",
        command="veen bridge reconcile --offline DIR --online DIR --trust FILE",
        data={
            "logs": logs,
            "links": links,
            "offline_records": [plain(record) for _, record in crossing.offline[-_MAX_ROWS:]],
            "streams_left_out": crossing.left_out,
        },
        verified_by=CONSOLE if some else None,
        verified_what=f"every entry of the streams of bridges at this hub (streams: {len(crossing.streams)}, "
        f"gaps: {gaps}). The other zone is not looked at."
        if some
        else "no stream of your keyring has records of a bridge.",
        sections=tuple(sections),
    )


async def _read(console: Console) -> Crossing:
    streams, left_out = await console.events.with_schemas([ONLINE.id, OFFLINE.id, IMPORT.id, WITHHELD.id])
    crossing = Crossing(streams=streams, left_out=[str(keys) for keys in left_out])
    for stream in streams:
        for event in stream.events:
            if event.hdr.schema == ONLINE.id and isinstance(record := decode(event, ONLINE), Typed):
                crossing.online.append((event, record.body))
            elif event.hdr.schema == OFFLINE.id and isinstance(result := decode(event, OFFLINE), Typed):
                crossing.offline.append((event, result.body))
            elif isinstance(body := read_crossed(event), Typed):
                crossing.crossed.append((event, body.body))
    return crossing


def _logs(crossing: Crossing) -> list[dict[str, Any]]:
    """Return, by label of the sending zone, the ranges exported, imported, missing and imported twice."""
    labels: dict[bytes, dict[str, Any]] = {}

    def log(label: bytes, stream_id: bytes) -> dict[str, Any]:
        return labels.setdefault(
            label, {"label": label.hex(), "stream_id": stream_id.hex(), "exported": [], "numbers": [], "withheld": []}
        )

    for _, record in crossing.online:
        if record.seq_to >= record.seq_from:
            row = log(record.label, record.export_stream_id)
            row["exported"].append([record.seq_from, record.seq_to, record.bundle_seq])
    for _, body in crossing.crossed:
        receipt = body.receipt
        row = log(receipt.label, body.origin_stream_id)
        row["numbers"].append(receipt.stream_seq)
        if not isinstance(body, ImportedEvent):
            row["withheld"].append(receipt.stream_seq)
    for row in labels.values():
        positions = Positions.of(row.pop("numbers"))
        row["withheld"] = [list(run) for run in Positions.of(row["withheld"]).once]
        row["imported"] = [list(run) for run in positions.once]
        row["twice"] = [list(run) for run in positions.twice]
        ends = [run[1] for run in row["exported"]] + [run[1] for run in row["imported"]]
        has = row["imported"] if row["imported"] else [run[:2] for run in row["exported"]]
        row["gaps"] = [list(run) for run in gaps_of(sorted(map(tuple, has)), 1, max(ends, default=0))]
    return list(labels.values())


def _log_sections(console: Console, log: dict[str, Any]) -> list[Section]:
    runs = [
        NumberRun("exported", first, last, "good", f"bundle {number}: {first} to {last}")
        for first, last, number in log["exported"]
    ]
    runs += [NumberRun("imported", run[0], run[1], "good", f"imported {run[0]} to {run[1]}") for run in log["imported"]]
    runs += [
        NumberRun("imported", run[0], run[1], "partly", f"withheld {run[0]} to {run[1]}") for run in log["withheld"]
    ]
    runs += [NumberRun("imported", run[0], run[1], "bad", f"came twice: {run[0]} to {run[1]}") for run in log["twice"]]
    runs += [NumberRun("missing", run[0], run[1], "bad", f"missing {run[0]} to {run[1]}") for run in log["gaps"]]
    name = console.name_of(bytes.fromhex(log["stream_id"]))
    rows = [
        *((MarkCell("exported", "good"), f"{run[0]} to {run[1]}", f"bundle {run[2]}") for run in log["exported"]),
        *((MarkCell("imported", "good"), f"{run[0]} to {run[1]}", "") for run in log["imported"]),
        *(
            (MarkCell("withheld", "partly"), f"{run[0]} to {run[1]}", "only its receipt crossed")
            for run in log["withheld"]
        ),
        *((MarkCell("twice", "bad"), f"{run[0]} to {run[1]}", "") for run in log["twice"]),
        *((MarkCell("missing", "bad"), f"{run[0]} to {run[1]}", "no bundle brought it") for run in log["gaps"]),
    ]
    return [
        Section(
            title=f"Ranges of {row_name(name)}",
            note="Numbers of entries in the sending zone.",
            kind="bad" if log["gaps"] or log["twice"] else "",
            facts=(("Label of the sending zone", DigestCell(log["label"])),),
            picture=ranges("Exported and imported ranges", runs),
            columns=("State", "Entries", "Note"),
            rows=tuple(rows[:_MAX_ROWS]),
        )
    ]


def _select_event(crossing: Crossing, query: Query) -> tuple[Event, Any] | None:
    text = query.get("msg", "").strip()
    if not text:
        return crossing.crossed[-1] if crossing.crossed else None
    for event, body in crossing.crossed:
        if event.hdr.parent_id is not None and event.hdr.parent_id.hex() == text:
            return event, body
    raise BadAddress("no import stream has an event of this msg_id")


def _links(console: Console, crossing: Crossing, event: Event, body: Any) -> list[dict[str, Any]]:
    """Return the links in the order of LINKS; those whose data this hub does not have are marked as not checked."""
    opened = isinstance(body, ImportedEvent)
    author = verify(body.origin_client, body.origin_digest, body.origin_sig) if opened else None
    receipt: bool | None = None
    if body.origin_hub_id == console.client.hub_id:
        try:
            console.pin.check_receipt(body.receipt)
            receipt = True
        except VerifyError:
            receipt = False
    online = any(record.bundle_id == body.bundle_id for _, record in crossing.online) if crossing.online else None
    offline = (
        any(record.bundle_id == body.bundle_id for _, record in crossing.offline if record.result != "rejected")
        if crossing.offline
        else None
    )
    states = {
        "author": (author, "the signature of the author over the message"),
        "receipt": (receipt, "the signature of the source hub over its place; needs the key of that hub"),
        "checkpoint": (None, "the way to the root of the export checkpoint is in the bundle"),
        "bundle": (None, f"bundle {body.bundle_id.hex()[:16]}…; the file is not given here"),
        "online log": (online, "bridge/online/log has the bundle"),
        "offline log": (offline, "bridge/offline/log has the bundle as imported"),
        "import": (True, f"entry {event.stream_seq} of this hub, read and verified by this console"),
    }
    return [{"link": name, "holds": states[name][0], "what": states[name][1]} for name in LINKS]


def _links_section(body: Any, links: list[dict[str, Any]]) -> Section:
    msg_id = body.receipt.leaf_hash.hex()
    words = {
        True: MarkCell("holds", "good"),
        False: MarkCell("BROKEN", "bad"),
        None: MarkCell("not looked at", "muted"),
    }
    return Section(
        title="Seven links of one event",
        note="From its author to its place in the receiving zone; the dashed line is the air gap.",
        kind="bad" if any(link["holds"] is False for link in links) else "",
        facts=(("msg_id", DigestCell(msg_id)), ("Entry of the sending zone", body.receipt.stream_seq)),
        picture=chain(
            "Seven links", [ChainBox(link["link"], link["holds"], link["what"]) for link in links], _GAP_AFTER
        ),
        columns=("Link", "State", "What it shows"),
        rows=tuple((link["link"], words[link["holds"]], link["what"]) for link in links),
    )


def _offline_section(crossing: Crossing) -> Section:
    kinds = {"rejected": "bad", "received": "muted"}
    stream = {event.stream_id for event, _ in crossing.offline}.pop().hex()
    return Section(
        title="What became of bundles",
        columns=("Time", "Result", "Bundle", "Events", "Code", "Operator", "Entry"),
        rows=tuple(
            (
                MomentCell(record.ts),
                MarkCell(record.result, kinds.get(record.result, "good")),
                None if record.bundle_id is None else DigestCell(record.bundle_id.hex()),
                record.count,
                record.code,
                record.operator,
                LinkCell(f"entry {event.stream_seq}", f"/stream/{stream}/{event.stream_seq}"),
            )
            for event, record in crossing.offline[-_MAX_ROWS:]
        ),
    )


PAGES: Final = (Page(path="/bridge", title="Bridge", report=bridge),)
