"""`veen table`: bronze, silver and gold tables of a log, in Parquet."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import click

from veen.cli.clictx import FILE, Session, identity_options
from veen.cli.lazy import LazyGroup, Table
from veen.cli.names import STREAM
from veen.cli.output import Output, output_options
from veen.cli.sparkwork import spark_at_work

if TYPE_CHECKING:
    from veen.client.keyring import Keyring
    from veen.pipeline.progress import Tell
    from veen.pipeline.query.keys import KeyFile
    from veen.pipeline.tables import Rewritten

__all__ = ["compact", "erase", "load", "show", "table", "vacuum"]

_SHOWN: Final = 20  # labels that people see before they are told of the others


class _Table(LazyGroup):
    table: ClassVar[Table] = {
        "compact": ("veen.cli.table:compact", "Merge small files; rows stay as they are."),
        "erase": ("veen.cli.table:erase", "Let go what the hub has erased under its retention policy."),
        "load": ("veen.cli.table:load", "Bring tables up to a log; with nothing new, nothing is written."),
        "show": ("veen.cli.table:show", "What is in the tables, from their manifest."),
        "vacuum": ("veen.cli.table:vacuum", "Remove files that were replaced or never committed."),
    }


@click.group(cls=_Table)
def table() -> None:
    """Tables of a log: bronze (entries), silver (opened events), gold (states of folds)."""


_TO: Final = click.argument("to", metavar="TABLES")
_DATA_DIR: Final = click.option(
    "--data-dir", required=True, help="The data directory: a path, or a URL that Arrow can read."
)


def _engine(command: Any) -> Any:
    for option in (
        click.option("--master", help="The Spark master; default: all cores of this machine."),
        click.option("--engine", type=click.Choice(["spark", "python"]), default="spark", show_default=True,
                     help="python: one process, neither Spark nor Java; the same rows."),
    ):  # fmt: skip
        command = option(command)
    return command


@contextmanager
def _spark(engine: str, master: str | None, progress: "Tell") -> Iterator[Any]:
    """A session, if the engine needs one; its jobs name their phases themselves."""
    if engine != "spark":
        yield None
        return
    with spark_at_work("veen table", master, progress) as (session, _):
        yield session


def _keys(session: Session, key_file: str | None) -> "KeyFile | Keyring":
    from veen.pipeline.query.keys import KeyFile

    return session.keystore.secrets.keyring if key_file is None else KeyFile(str(Path(key_file).absolute()))


@click.command()
@_TO
@_DATA_DIR
@click.option("--stream", "streams", type=STREAM, multiple=True, help="Only this stream. Repeatable.")
@click.option("--fold", "folds", metavar="NAME", multiple=True, help="Keep the state of this fold in gold. Repeatable.")
@click.option("--verify", type=click.Choice(["none", "hash", "receipt", "full"]), default="hash", show_default=True,
              help="How far entries are checked; one that fails is a row with the reason `damaged`.")  # fmt: skip
@click.option("--key-file", type=FILE, help="Read keys (veen-stream1…), one per line; default: your keyring.")
@click.option("--partitions", type=click.IntRange(min=1), help="How many tasks; default: by size.")
@_engine
@output_options
@identity_options
def load(
    output: Output,
    session: Session,
    to: str,
    data_dir: str,
    streams: Sequence[str],
    folds: Sequence[str],
    verify: Any,
    key_file: str | None,
    partitions: int | None,
    engine: Any,
    master: str | None,
) -> None:
    """Load what is new in a log into TABLES, a directory or a URL. Interrupted, it is simply run again.

    Entries that cannot be opened are rows with a reason. A hub may write to the data directory meanwhile.

    \b
    veen table load ./tables --data-dir ./hub
    veen table load ./tables --data-dir ./hub --fold kv --engine python
    """
    from veen.client.keyring import StreamRef
    from veen.pipeline import tables
    from veen.pipeline.query.keys import keys_on_disk

    ids = [found for one in streams if (found := StreamRef.parse(one).stream_id) is not None] or None
    with (
        keys_on_disk(_keys(session, key_file)) as keys,
        output.progress("loading") as progress,
        _spark(engine, master, progress) as spark,
    ):
        loaded = tables.load(
            data_dir, to, keys=keys, engine=engine, spark=spark, parts=partitions, streams=ids, verify=verify
        )
        states = [tables.refresh(to, fold, spark=spark, path=data_dir, keys=keys) for fold in folds]
    version = states[-1].version if states else loaded.version
    facts = [("version", version), ("entries", loaded.entries), ("files", loaded.files)]
    data = {**dict(facts), "commits": loaded.commits, "states": [asdict(one) for one in states]}

    def human() -> None:
        output.fields(facts)
        output.fields((one.fold, one.state_hash) for one in states)

    output.result(data, human)
    output.next(f"veen table show {to}")


@click.command()
@_TO
@click.option("--version", "version", type=click.IntRange(min=1), help="As they were at this version.")
@click.option("--digest", is_flag=True, help="Read every row: verifies all files, and shows what equal tables share.")
@output_options
def show(output: Output, to: str, version: int | None, digest: bool) -> None:
    """What is in TABLES: how many rows and files, how far labels are loaded, and the states in gold.

    \b
    veen table show ./tables
    veen table show ./tables --digest --json
    """
    from veen.pipeline import tables

    with output.progress("reading"):
        shown = tables.show(to, version=version, digests=digest)
    data = {
        "version": shown.version,
        "hub_id": shown.hub,
        "tables": [asdict(one) for one in shown.tables],
        "heads": {label: head._asdict() for label, head in shown.heads.items()},
        "states": dict(shown.states),
        "replaced": shown.replaced,
    }

    def human() -> None:
        output.fields([("version", shown.version), ("hub_id", shown.hub or "not known"), ("replaced", shown.replaced)])
        columns = ("table", "rows", "files", "bytes", *(("digest",) if digest else ()))
        rows = [(one.table, one.rows, one.files, one.size, *((one.digest,) if digest else ())) for one in shown.tables]
        output.table(columns, rows)
        output.fields((label, head.upto_seq) for label, head in list(shown.heads.items())[:_SHOWN])
        output.fields(shown.states.items())

    output.result(data, human)
    if len(shown.heads) > _SHOWN:
        output.note(f"{len(shown.heads) - _SHOWN} more labels; --json has all of them")


def _rewritten(output: Output, done: "Rewritten", *, rows: bool) -> None:
    facts = [("version", done.version), ("files before", done.files_before), ("files after", done.files_after)]
    if rows:
        facts.append(("rows erased", done.rows))
    output.result(asdict(done), lambda: output.fields(facts))


@click.command()
@_TO
@click.option("--target-mib", type=click.IntRange(min=1), default=64, show_default=True, help="How large files become.")
@_engine
@output_options
def compact(output: Output, to: str, target_mib: int, engine: str, master: str | None) -> None:
    """Merge small files of TABLES. No row changes, and readers are not disturbed; a vacuum frees the space.

    \b
    veen table compact ./tables
    """
    from veen.pipeline import tables

    with output.progress("merging") as progress, _spark(engine, master, progress) as spark:
        done = tables.compact(to, spark=spark, target_bytes=target_mib << 20)
    _rewritten(output, done, rows=False)


@click.command()
@_TO
@_DATA_DIR
@_engine
@output_options
def erase(output: Output, to: str, data_dir: str, engine: str, master: str | None) -> None:
    """Let TABLES follow the retention policy of the hub: payloads that are gone there go here, and old files with them.

    Rows stay, without a body and with the reason `erased`; states in gold are made anew from what is left.

    \b
    veen table erase ./tables --data-dir ./hub
    """
    from veen.pipeline import tables

    with output.progress("erasing") as progress, _spark(engine, master, progress) as spark:
        done = tables.erase(data_dir, to, spark=spark)
    _rewritten(output, done, rows=True)


@click.command()
@_TO
@click.option("--keep-hours", type=click.IntRange(min=0), default=24, show_default=True,
              help="Spare what is younger: readers of older versions, and a load that runs.")  # fmt: skip
@output_options
def vacuum(output: Output, to: str, keep_hours: int) -> None:
    """Remove files of TABLES that a newer version has replaced, or that no version names.

    \b
    veen table vacuum ./tables --keep-hours 48
    """
    from veen.pipeline import tables

    with output.progress("removing"):
        done = tables.vacuum(to, keep_sec=keep_hours * 3600)
    facts = [("version", done.version), ("replaced", done.replaced), ("orphans", done.orphans)]
    output.result(asdict(done), lambda: output.fields([*facts, ("manifests", done.manifests)]))
