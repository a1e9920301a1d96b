"""`veen table`: bronze, silver and gold tables of a log, in Parquet."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from veen.cli.lazy import LazyGroup
from veen.cli.shared import options
from veen.cli.shared.bulk import (
    DATA_DIR,
    DIR_OR_HUB,
    ENGINE,
    HUB_IDENTITY,
    KEY_FILE,
    MASTER,
    PARTITIONS,
    LogPlace,
    log_options,
)
from veen.cli.shared.command import CliSession, client_options
from veen.cli.shared.names import STREAM
from veen.cli.shared.output import Output, output_options
from veen.cli.shared.verifying import end_by, show_verdict, verdict_json

if TYPE_CHECKING:
    from veen.lake.tables import Rewritten

_SHOWN: Final = 20  # labels that people see before they are told of the others

table = LazyGroup("table", help="Tables of a log: bronze (entries), silver (opened events), gold (states of folds).")


_TO: Final = click.argument("to", metavar="TABLES")
_ENGINE: Final = (ENGINE, MASTER)
_HINT: Final = "load what is new with veen table load, publish again with veen table publish, or load into a new place"


@table.verb("load", "Load new entries of a log.")
@_TO
@click.option("--stream", "streams", type=STREAM, multiple=True, help="Only this stream. Repeatable.")
@click.option("--fold", "folds", metavar="NAME", multiple=True, help="Fold whose state is kept in gold. Repeatable.")
@click.option("--index", "indexes", metavar="PATH", multiple=True,
              help="Path of payloads to index from now on, such as payload.amount. Repeatable.")  # fmt: skip
@click.option(
    "--drop-index", "drop_indexes", metavar="PATH", multiple=True, help="Path whose index is dropped. Repeatable."
)
@click.option("--verify", type=click.Choice(["none", "hash", "receipt", "full"]), default="hash", show_default=True,
              help="Checks of each entry. One that fails becomes a row with the reason `damaged`.")  # fmt: skip
@log_options(DIR_OR_HUB, KEY_FILE, PARTITIONS, *_ENGINE)
@client_options
def load(
    output: Output,
    session: CliSession,
    to: str,
    streams: Sequence[str],
    folds: Sequence[str],
    indexes: Sequence[str],
    drop_indexes: Sequence[str],
    verify: Any,
    place: LogPlace,
) -> None:
    """Load the new entries of a log into TABLES, a directory or a URL. After an interruption run it again.

    Entries that cannot be opened are rows with a reason. A hub may write to the data directory meanwhile. Without
    --data-dir the hub of --hub or of the context is asked for its new entries, which are kept in your home.

    \b
    veen table load ./tables --data-dir ./hub
    veen table load ./tables --data-dir ./hub --fold kv --engine python
    veen table load ./tables --data-dir ./hub --index payload.amount
    veen table load ./tables --hub https://hub.example --engine python
    """
    from veen.client.identity.keyring import StreamRef
    from veen.lake import tables
    from veen.lake.log.keys import keys_for_tasks

    ids = [stream_id for stream in streams if (stream_id := StreamRef.parse(stream).stream_id) is not None] or None
    data_dir = place.locate(session, output, ids)
    place = place.choose_engine(output, data_dir)
    with (
        keys_for_tasks(place.keys(session)) as keys,
        output.progress("loading") as progress,
        place.spark("veen table", progress) as spark,
    ):
        loaded = tables.load(
            data_dir,
            to,
            keys=keys,
            engine=place.engine,
            spark=spark,
            parts=place.partitions,
            streams=ids,
            verify=verify,
            indexes=indexes,
            drop_indexes=drop_indexes,
        )
        states = [tables.refresh(to, fold, spark=spark, path=data_dir, keys=keys) for fold in folds]
    version = states[-1].version if states else loaded.version
    facts = [("version", version), ("entries", loaded.entries), ("files", loaded.files)]
    data = {**dict(facts), "commits": loaded.commits, "states": [asdict(state) for state in states]}

    def human() -> None:
        output.fields(facts)
        output.fields((state.fold, state.state_hash) for state in states)

    output.result(data, human)
    output.next(f"veen table show {to}")


@table.verb("show", "Summary of the tables, from their manifest.")
@_TO
@click.option("--version", "version", type=click.IntRange(min=1), help=options.TABLE_VERSION)
@click.option("--digest", is_flag=True, help="Read every row: verify all files, and show the digest of each table.")
@output_options
def show(output: Output, to: str, version: int | None, digest: bool) -> None:
    """Show the contents of TABLES: rows and files, the position up to which labels are loaded, and the states in gold.

    \b
    veen table show ./tables
    veen table show ./tables --digest --json
    """
    from veen.lake import tables

    with output.progress("reading"):
        shown = tables.show(to, version=version, digests=digest)
    data = {
        "version": shown.version,
        "hub_id": shown.hub,
        "tables": [asdict(summary) for summary in shown.tables],
        "heads": {label: head._asdict() for label, head in shown.heads.items()},
        "states": dict(shown.states),
        "replaced": shown.replaced,
        "indexes": list(shown.indexes),
    }

    def human() -> None:
        output.fields([("version", shown.version), ("hub_id", shown.hub or "not known"), ("replaced", shown.replaced)])
        output.fields([("indexes", ", ".join(shown.indexes))] if shown.indexes else [])
        columns = ("table", "rows", "files", "bytes", *(("digest",) if digest else ()))
        rows = [
            (summary.table, summary.rows, summary.files, summary.size, *((summary.digest,) if digest else ()))
            for summary in shown.tables
        ]
        output.table(columns, rows)
        output.fields((label, head.upto_seq) for label, head in list(shown.heads.items())[:_SHOWN])
        output.fields(shown.states.items())

    output.result(data, human)
    if len(shown.heads) > _SHOWN:
        output.note(f"{len(shown.heads) - _SHOWN} more labels; --json has all of them")


def _tell_rewritten(output: Output, done: "Rewritten", *, rows: bool) -> None:
    facts = [("version", done.version), ("files before", done.files_before), ("files after", done.files_after)]
    if rows:
        facts.append(("rows erased", done.rows))
    output.result(asdict(done), lambda: output.fields(facts))


@table.verb("compact", "Merge small files; rows stay as they are.")
@_TO
@click.option(
    "--target-mib", type=click.IntRange(min=1), default=64, show_default=True, help="Size of the merged files, in MiB."
)
@log_options(*_ENGINE)
@output_options
def compact(output: Output, to: str, target_mib: int, place: LogPlace) -> None:
    """Merge small files of TABLES. No row changes, and readers are not disturbed; a vacuum frees the space.

    \b
    veen table compact ./tables
    """
    from veen.lake import tables

    sizes = (summary.size for summary in tables.show(to).tables)
    place = place.choose_engine(output, size=sum(sizes))
    with output.progress("merging") as progress, place.spark("veen table", progress) as spark:
        done = tables.compact(to, spark=spark, target_bytes=target_mib << 20)
    _tell_rewritten(output, done, rows=False)


@table.verb("erase", "Erase payloads that the hub erased.")
@_TO
@DATA_DIR
@log_options(*_ENGINE)
@output_options
def erase(output: Output, to: str, data_dir: str, place: LogPlace) -> None:
    """Erase payloads in TABLES that the hub erased under its retention policy, and old files with them.

    Rows stay, without a body and with the reason `erased`; states in gold are made anew from what is left.

    \b
    veen table erase ./tables --data-dir ./hub
    """
    from veen.lake import tables

    place = place.choose_engine(output, data_dir)
    with output.progress("erasing") as progress, place.spark("veen table", progress) as spark:
        done = tables.erase(data_dir, to, spark=spark)
    _tell_rewritten(output, done, rows=True)


@table.verb("vacuum", "Remove files that were replaced or never committed.")
@_TO
@click.option("--keep-hours", type=click.IntRange(min=0), default=24, show_default=True,
              help="Age of the files to remove, in hours. Younger ones may be in use.")  # fmt: skip
@output_options
def vacuum(output: Output, to: str, keep_hours: int) -> None:
    """Remove files of TABLES that a newer version has replaced, or that no version names.

    \b
    veen table vacuum ./tables --keep-hours 48
    """
    from veen.lake import tables

    with output.progress("removing"):
        done = tables.vacuum(to, keep_sec=keep_hours * 3600)
    facts = [("version", done.version), ("replaced", done.replaced), ("orphans", done.orphans)]
    output.result(asdict(done), lambda: output.fields([*facts, ("manifests", done.manifests)]))


@table.verb("verify", "Compare the tables with their manifest, with the log and with lake tables.")
@_TO
@click.option("--data-dir", help=f"{options.LOG_DIR} Compare its heads and roots, too.")
@HUB_IDENTITY
@output_options
def verify(output: Output, to: str, data_dir: str | None, hub_identity: str | None) -> None:
    """Read every file of TABLES and compare it with its manifest, its rows with the roots of their labels.

    Delta and Iceberg tables beside them are compared as well: a file that somebody else has added to one, or removed
    from it, is named, and table publish repairs it. With --data-dir the log must have the same roots, and the
    verdict says how far behind it the tables are. Exit code 6: tables are damaged or behind; the log has everything.
    Exit code 1: the log has another root than the tables were made under.

    \b
    veen table verify ./tables
    veen table verify ./tables --data-dir ./hub
    """
    from veen.lake import tables

    identity = LogPlace(engine="python", master=None, hub_identity=hub_identity).identity()
    with output.progress("reading"):
        check = tables.verify(to, path=data_dir, identity=identity)
    facts = [("version", check.version), ("files", check.files), ("rows", check.rows)]

    def human() -> None:
        output.fields([*facts, ("lake tables", ", ".join(check.lakes) or "none")])
        show_verdict(output, check.verdict)

    output.result({**verdict_json(check.verdict), **dict(facts), "lakes": list(check.lakes)}, human)
    end_by(check.verdict, to, hint=_HINT)


@table.verb("publish", "Show the tables as Delta or Iceberg tables; no file is copied.")
@_TO
@click.option(
    "--delta",
    "formats",
    flag_value="delta",
    multiple=True,
    help="Publish Delta tables, in the directories of the tables.",
)
@click.option(
    "--iceberg", "formats", flag_value="iceberg", multiple=True, help="Publish Iceberg tables, in a SQLite catalog."
)
@click.option("--table", "names", metavar="NAME", multiple=True, help="Only this table. Repeatable. Default: all.")
@output_options
def publish(output: Output, to: str, formats: Sequence[Any], names: Sequence[str]) -> None:
    """Register the Parquet files of TABLES where they lie, for engines that read Delta or Iceberg.

    One manifest is one commit; run it again after each load, compact or erase.

    \b
    veen table publish ./tables --delta
    veen table publish ./tables --iceberg --table silver
    veen table publish s3://bucket/tables --delta
    """
    from veen.lake import tables

    if not formats:
        raise click.UsageError("give --delta, --iceberg or both")
    with output.progress("publishing"):
        done = tables.publish(to, tuple(dict.fromkeys(formats)), tables=names or None)
    columns = ("format", "table", "manifest", "commits", "added", "removed", "location")
    rows = [[getattr(published, column) for column in columns] for published in done]
    output.result({"published": [asdict(published) for published in done]}, lambda: output.table(columns, rows))
    for published in done:
        if published.foreign:
            what = f"{published.foreign} files were added or removed by somebody else, and are as in the manifest again"
            output.note(f"{published.format} {published.table}: {what}")
