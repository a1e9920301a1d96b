"""`veen bridge export`, `import`, `run` and `anchor`: the commands that connect to hubs."""

import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import click

from veen.cli.shared.command import CliSession, client_options
from veen.cli.shared.names import IDENTITY, STREAM
from veen.cli.shared.output import Output
from veen.cli.shared.verifying import end_by, show_verdict, verdict_json
from veen.core.verdict import Because, Coverage, Reason, StatedBy, Verdict

if TYPE_CHECKING:
    from veen.client.client import Client
    from veen.core.objects.captoken import CapToken
    from veen.products.bridge.bundle import WrittenBundle
    from veen.products.bridge.exporting import Exporter, Withhold
    from veen.products.bridge.importing import ChainProgress, Importer, ImportOutcome
    from veen.products.bridge.trust import TrustList

T = TypeVar("T")

_DIR: Final = click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Directory of bundles and state.",
)
_LOG_IDENTITY: Final = click.option(
    "--log-identity",
    type=IDENTITY,
    required=True,
    help="Identity that writes the audit records, used for nothing else.",
)
_BRIDGE: Final = click.option(
    "--bridge", "bridge_name", required=True, help="Name of the bridge, the same in both zones."
)
_TRUST: Final = click.option(
    "--trust",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help="File with the trust list.",
)
_OPENINGS: Final = click.option(
    "--with-openings", is_flag=True, help="Add the secret of each message, so that the other zone can open the events."
)
_ATTACHMENTS: Final = click.option(
    "--with-attachments", is_flag=True, help="Add sealed attachments to their events, up to 256 MiB for each event."
)
_NO_HEARTBEAT: Final = click.option("--no-heartbeat", is_flag=True, help="Write no bundle if there is nothing new.")
_COMPRESS: Final = click.option("--compress", is_flag=True, help="Compress the files with zlib.")
_MAX_EVENTS: Final = click.option(
    "--max-events", type=click.IntRange(1, 1_000_000), default=50_000, help="Largest number of events in a bundle."
)
_WITHHOLD: Final = click.option(
    "--withhold-type",
    "withheld",
    multiple=True,
    help="Type of recorder events to withhold; * and ? are wildcards. Repeatable.",
)


@asynccontextmanager
async def _connect(session: CliSession) -> "AsyncIterator[Client]":
    """Connect inside this event loop. Bridge keys are not rotated by number or age: see docs/bridge.md."""
    from veen.client.client import Client
    from veen.client.transport.calls import Retry

    client = await Client.connect(
        session.hub_url,
        pin=session.pin,
        identity=session.keystore.identity,
        keyring=session.keystore.secrets.keyring,
        home=session.home,
        ca_file=session.settings.path("ca_file"),
        token_file=session.settings.path("token_file"),
        insecure_http=bool(session.settings.insecure_http.value),
        retry=Retry(seconds=session.settings.wait.value),
        call_seconds=session.settings.timeout.value,
        bounds=None,
    )
    async with client:
        yield client


async def _tokens(session: CliSession, client: "Client") -> "Callable[[str], CapToken | None]":
    """Return the function that selects the token for a stream: the best one of the identity, None at an open hub."""
    from veen.client.send.captokens import TokenStore
    from veen.core.labels import stream_id_of

    gated = (await client.status()).capability_gating
    store = TokenStore(session.home.tokens_fs(session.identity_name))

    def token_for(stream: str) -> "CapToken | None":
        if not gated:
            return None
        return store.usable(client.hub_id, client.client_id, stream_id_of(stream), int(time.time())).token

    return token_for


def _run(work: "Coroutine[Any, Any, T]") -> "T":
    import asyncio

    return asyncio.run(work)


def _log_session(session: CliSession, log_identity: str) -> CliSession:
    from veen.products.bridge.bundle import BridgeMisconfigured

    other = session.as_identity(log_identity)
    if (other.home, other.identity_name) == (session.home, session.identity_name):
        raise BridgeMisconfigured("the bridge and its audit log are written by one identity; they must be two (D-106)")
    return other


def _withhold(patterns: Sequence[str]) -> "Withhold":
    from veen.overlays.recorder import events as sdr

    def withhold(entry: Any, opened: Any) -> str | None:
        if not patterns:
            return None
        if opened is None or opened.hdr.schema != sdr.EVENT.id:
            return None
        event_type = sdr.RecorderEvent.from_bytes(opened.body).event_type
        return next((f"type: {pattern}" for pattern in patterns if fnmatchcase(event_type, pattern)), None)

    return withhold


@asynccontextmanager
async def _exporter(
    session: CliSession, log_identity: str, directory: Path, **chosen: Any
) -> "AsyncIterator[Exporter]":
    from veen.products.bridge.audit import ONLINE_LOG, Auditor
    from veen.products.bridge.exporting import OUTGOING, Exporter, ExportOptions
    from veen.products.bridge.files import BridgeFiles

    logger = _log_session(session, log_identity)
    files = BridgeFiles(directory, (OUTGOING,))
    with files.lock():
        async with _connect(session) as reader, _connect(logger) as writer:
            auditor = Auditor(writer, ONLINE_LOG, (await _tokens(logger, writer))(ONLINE_LOG))
            keys = session.keystore
            options = ExportOptions(operator=logger.identity_name, **chosen)
            yield Exporter(reader, keys.secrets.keyring, keys.identity.id_sign, auditor, files, options)


@asynccontextmanager
async def _importer(
    session: CliSession, log_identity: str, directory: Path, trusted: "TrustList"
) -> "AsyncIterator[Importer]":
    from veen.products.bridge.audit import OFFLINE_LOG, Auditor
    from veen.products.bridge.files import BridgeFiles
    from veen.products.bridge.importing import FOLDERS, Importer, ImportOptions

    logger = _log_session(session, log_identity)
    files = BridgeFiles(directory, FOLDERS)
    with files.lock():
        async with _connect(session) as writer, _connect(logger) as audit_writer:
            auditor = Auditor(audit_writer, OFFLINE_LOG, (await _tokens(logger, audit_writer))(OFFLINE_LOG))
            options = ImportOptions(operator=logger.identity_name, capability=await _tokens(session, writer))
            yield Importer(writer, auditor, files, trusted, options)


def _read_trust(path: Path) -> "TrustList":
    from veen.products.bridge.trust import TrustList

    return TrustList.from_toml(path.read_text("utf-8"))


def _export_row(stream: str, written: "WrittenBundle") -> dict[str, Any]:
    header, trailer = written.header, written.trailer
    return {
        "stream": stream,
        "bundle_seq": header.bundle_seq,
        "seq_from": header.export_seq_from,
        "seq_to": header.export_seq_to,
        "count": trailer.count,
        "withheld": trailer.withheld,
        "bundle_id": trailer.bundle_id.hex(),
        "bundle_hash": written.bundle_hash.hex(),
        "label": header.label.hex(),
        "epoch": header.epoch,
        "bytes": written.file_bytes,
    }


def _import_row(outcome: "ImportOutcome") -> dict[str, Any]:
    return {
        "file": outcome.name,
        "result": outcome.result,
        "count": outcome.count,
        "target": outcome.target,
        "code": outcome.code,
        "position": outcome.position,
        "detail": outcome.detail,
        "bundle_id": outcome.bundle_id.hex() if outcome.bundle_id else None,
    }


_EXPORT_COLUMNS: Final = ("stream", "bundle", "from", "to", "count", "withheld", "bundle_id")
_IMPORT_COLUMNS: Final = ("file", "result", "count", "target", "code", "detail")


@click.command()
@click.argument("streams", type=STREAM, nargs=-1, required=True)
@_DIR
@_BRIDGE
@_LOG_IDENTITY
@_OPENINGS
@_ATTACHMENTS
@_WITHHOLD
@_NO_HEARTBEAT
@_COMPRESS
@_MAX_EVENTS
@click.option(
    "--select", "select_from", type=STREAM, help="Stream whose new events are first copied to STREAM (derived export)."
)
@click.option(
    "--selector", type=IDENTITY, help="Identity that copies for --select: neither the bridge's nor the log's."
)
@client_options
def export(
    output: Output,
    session: CliSession,
    streams: tuple[str, ...],
    directory: Path,
    bridge_name: str,
    log_identity: str,
    with_openings: bool,
    with_attachments: bool,
    withheld: tuple[str, ...],
    no_heartbeat: bool,
    compress: bool,
    max_events: int,
    select_from: str | None,
    selector: str | None,
) -> None:
    """Write everything new in STREAMS as bundles into the folder outgoing of --dir.

    The identity in use reads; it needs no token. --log-identity records each bundle on bridge/online/log. A stream
    without new entries gets a heartbeat bundle. Run the command again at any time: it continues where it stopped.

    \b
    veen bridge export record/security/auth --dir /srv/bridge --bridge plant-a --identity exporter \\
        --log-identity online-log --with-openings
    """
    if (select_from is None) != (selector is None) or (select_from is not None and len(streams) != 1):
        raise click.UsageError("--select and --selector go together, with one STREAM to copy to")

    async def work() -> None:
        if select_from is not None and selector is not None:
            await _select(output, session, selector, select_from, streams[0], directory, withheld)
        chosen = {
            "bridge": bridge_name,
            "with_openings": with_openings,
            "with_attachments": with_attachments,
            "heartbeat": not no_heartbeat,
            "compress": compress,
            "max_events": max_events,
            "withhold": _withhold(withheld),
        }
        async with _exporter(session, log_identity, directory, **chosen) as exporter:
            with output.records("bundles", _EXPORT_COLUMNS) as records:
                total = events = 0
                for stream in streams:
                    for written in await exporter.export(stream):
                        row = _export_row(stream, written)
                        records.add(
                            row,
                            [
                                row[name]
                                for name in (
                                    "stream",
                                    "bundle_seq",
                                    "seq_from",
                                    "seq_to",
                                    "count",
                                    "withheld",
                                    "bundle_id",
                                )
                            ],
                        )
                        total, events = total + 1, events + row["count"]
                records.summary({"bundles": total, "events": events})

    _run(work())
    output.next(f"veen bridge send --dir {directory} --to MEDIUM")


async def _select(
    output: Output,
    session: CliSession,
    selector: str,
    source: str,
    target: str,
    directory: Path,
    withheld: Sequence[str],
) -> None:
    from veen.products.bridge.exporting import Selector

    chooser = session.as_identity(selector)
    async with _connect(chooser) as client, _connect(session) as reader:
        token = (await _tokens(chooser, client))(target)
        done = await Selector(client, directory, _withhold(withheld), token).select(source, target, reader)
    output.note(f"{done.copied} events copied from {source} to {target}")
    if done.left_out:
        output.note(f"{done.left_out} of them had been left out by exports of an earlier version")


@click.command("import")
@_DIR
@_TRUST
@_LOG_IDENTITY
@client_options
def import_(output: Output, session: CliSession, directory: Path, trust: Path, log_identity: str) -> None:
    """Verify the bundles in the folder incoming of --dir and write their events into import streams.

    A bundle is imported as a whole or not at all; each event once, also if this command is killed and run again. Exit
    code 6 while bundles wait for one that did not arrive. An identical bundle that arrives again is skipped. The
    identity in use only writes: it needs write keys and tokens of the import streams, and no read key.

    \b
    veen bridge import --dir /srv/bridge --trust trust.toml --identity importer --log-identity offline-log
    """

    trusted = _read_trust(trust)

    async def work() -> "tuple[list[ImportOutcome], list[ChainProgress]]":
        async with _importer(session, log_identity, directory, trusted) as importer:
            return await importer.run(), importer.progress()

    outcomes, progress = _run(work())
    verdict = _import_verdict(outcomes, progress)
    with output.records("bundles", _IMPORT_COLUMNS) as records:
        for outcome in outcomes:
            row = _import_row(outcome)
            records.add(row, [row[name] if row[name] is not None else "" for name in _IMPORT_COLUMNS])
        records.summary(
            {
                "imported": sum(outcome.result in ("imported", "resumed") for outcome in outcomes),
                "waiting": sum(outcome.result == "waiting" for outcome in outcomes),
                "rejected": sum(outcome.result == "rejected" for outcome in outcomes),
                **verdict_json(verdict),
            }
        )
    show_verdict(output, verdict)
    _fail_if_rejected(outcomes)
    if verdict.compared:
        end_by(verdict, "the import", code="AGB.WAITING", hint="carry the bundle that is missing, then import again")
    end_by(verdict, "the import", hint="carry bundles into the folder incoming, then import again")


def _import_verdict(outcomes: "Sequence[ImportOutcome]", progress: "Sequence[ChainProgress]") -> Verdict:
    """Return the verdict: good if all entries up to the end of the last signed bundle were imported."""
    reasons = [
        Reason(Because.EVIDENCE, f"{outcome.name}: {outcome.code}: {outcome.detail}")
        for outcome in outcomes
        if outcome.result == "rejected"
    ]
    reasons += [
        Reason(Because.COVERAGE, f"{chain.waiting} bundles of label {chain.label.hex()[:16]}… wait for one before them")
        for chain in progress
        if chain.waiting
    ]
    rows = [
        Coverage(
            log=f"label {chain.label.hex()[:16]}… by bridge {chain.bridge_id.hex()[:16]}…",
            read=chain.imported,
            head=chain.stated,
            stated_by=StatedBy.FILE,
            identity=None,
        )
        for chain in progress
    ]
    return Verdict.of(rows, reasons)


def _fail_if_rejected(outcomes: "Sequence[ImportOutcome]") -> None:
    from veen.products.bridge.bundle import Rejected

    for outcome in outcomes:
        if outcome.result == "rejected" and outcome.code is not None:
            raise Rejected(outcome.code, f"{outcome.name}: {outcome.detail}", outcome.position)


@click.command()
@click.argument("side", type=click.Choice(["online", "offline"]))
@click.argument("streams", type=STREAM, nargs=-1)
@_DIR
@_LOG_IDENTITY
@click.option("--bridge", "bridge_name", help="Name of the bridge. Online only.")
@click.option(
    "--trust",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File with the trust list. Offline only.",
)
@_OPENINGS
@_ATTACHMENTS
@_WITHHOLD
@_NO_HEARTBEAT
@_COMPRESS
@_MAX_EVENTS
@click.option("--every", type=click.FloatRange(0.1), default=60.0, help="Seconds between two rounds.")
@click.option("--times", type=click.IntRange(1), help="Stop after N rounds. Default: run forever.")
@client_options
def run(
    output: Output,
    session: CliSession,
    side: Literal["online", "offline"],
    streams: tuple[str, ...],
    directory: Path,
    log_identity: str,
    bridge_name: str | None,
    trust: Path | None,
    with_openings: bool,
    with_attachments: bool,
    withheld: tuple[str, ...],
    no_heartbeat: bool,
    compress: bool,
    max_events: int,
    every: float,
    times: int | None,
) -> None:
    """Run one side of a bridge as a service: export STREAMS, or import new bundles, at an interval.

    A round that fails because a hub is unreachable is reported and retried. A rejected bundle is reported and set
    aside.

    \b
    veen bridge run online record/security/auth --dir /srv/bridge --bridge plant-a --log-identity online-log
    veen bridge run offline --dir /srv/bridge --trust trust.toml --log-identity offline-log
    """
    if side == "online" and (not streams or bridge_name is None):
        raise click.UsageError("online needs STREAMS and --bridge")
    if side == "offline" and (streams or trust is None):
        raise click.UsageError("offline needs --trust, and no STREAMS")
    if side == "offline" and (withheld or no_heartbeat or compress):
        raise click.UsageError("--withhold-type, --no-heartbeat and --compress are for the online side")

    trusted = None if trust is None else _read_trust(trust)

    async def one_round() -> list[dict[str, Any]]:
        if side == "online":
            chosen = {
                "bridge": bridge_name,
                "with_openings": with_openings,
                "with_attachments": with_attachments,
                "heartbeat": not no_heartbeat,
                "compress": compress,
                "max_events": max_events,
                "withhold": _withhold(withheld),
            }
            async with _exporter(session, log_identity, directory, **chosen) as exporter:
                return [_export_row(stream, done) for stream in streams for done in await exporter.export(stream)]
        assert trusted is not None  # noqa: S101 - judged above
        async with _importer(session, log_identity, directory, trusted) as importer:
            return [_import_row(outcome) for outcome in await importer.run()]

    async def work() -> None:
        from asyncio import sleep

        from veen.client.errors import NetworkError

        number, failure = 0, None
        with output.records("rounds", ("round", "result")) as records:
            while times is None or number < times:
                number, failure = number + 1, None
                try:
                    rows = await one_round()
                    records.add({"round": number, "bundles": rows}, [number, f"{len(rows)} bundles"])
                except NetworkError as exc:
                    failure = exc
                    records.add({"round": number, "error": exc.code}, [number, f"{exc.code}: {exc}"])
                if times is None or number < times:
                    await sleep(every)
            records.summary({"count": number})
        if failure is not None:
            raise failure

    _run(work())


@click.command()
@click.argument("what", type=click.Choice(["online", "offline", "report"]))
@click.option(
    "--report", "report_file", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Report of `veen bridge reconcile`: its hash is recorded on bridge/reports first.",
)  # fmt: skip
@client_options
def anchor(
    output: Output, session: CliSession, what: Literal["online", "offline", "report"], report_file: Path | None
) -> None:
    """Have the hub anchor records of the bridge outside of its log. Requires the hub's admin token.

    The audit log of a zone lists every bundle by its id, so its anchor covers them. The identity in use needs a key of
    the stream: bridge/online/log, bridge/offline/log, or for a report bridge/reports and the right to write there.

    \b
    veen bridge anchor online --identity online-log --token-file hub-admin.token
    veen bridge anchor report --report report.json --identity auditor --token-file hub-admin.token
    """
    from veen.products.bridge.audit import OFFLINE_LOG, ONLINE_LOG, REPORTS, SignedReport, anchor_stream, record_report

    if (what == "report") != (report_file is not None):
        raise click.UsageError("`report` and --report FILE go together")
    report = None if report_file is None else SignedReport.read(report_file.read_bytes())

    async def work() -> dict[str, Any]:
        facts: dict[str, Any] = {"stream": {"online": ONLINE_LOG, "offline": OFFLINE_LOG, "report": REPORTS}[what]}
        async with _connect(session) as client:
            seq = None
            if report is not None:
                token = (await _tokens(session, client))(REPORTS)
                sent = await record_report(client, report, operator=session.identity_name, capability=token)
                seq = sent.seq
                facts |= {"report_hash": report.report_hash.hex(), "clean": report.is_clean, "seq": seq}
            done = await anchor_stream(client, facts["stream"], seq)
        return facts | {
            "upto_seq": done.upto_seq,
            "root": done.mmr_root.hex(),
            "backend": done.backend,
            "anchor_ref": done.anchor_ref.hex(),
        }

    facts = _run(work())
    output.result(facts)
