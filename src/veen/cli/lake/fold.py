"""`veen fold`: the state that any overlay makes of streams, also an overlay of another package.

From a hub, as a client reads it; or from a data directory, in bulk (`veen.cli.lake.fold_data`).
"""

from typing import TYPE_CHECKING, Any

import click

from veen.cli.lake.fold_data import Bulk, bulk_options
from veen.cli.lazy import LazyGroup
from veen.cli.shared import options
from veen.cli.shared.as_of import AS_OF, AsOf, View, view_options
from veen.cli.shared.command import CliSession, client_options
from veen.cli.shared.names import STREAM
from veen.cli.shared.output import Output, output_options
from veen.cli.shared.overlay_commands import show_folded
from veen.overlays.framework.plain import plain

if TYPE_CHECKING:
    from veen.overlays.framework.fold import AnyFold
    from veen.overlays.framework.runner import Runner

fold = LazyGroup(
    "fold",
    help="States of streams: any overlay, folded from the log, at any moment of it.",
    table={
        "repair": ("veen.cli.lake.fold_data:repair", "Fold states again that other keys may have read."),
        "verify": (
            "veen.cli.lake.fold_data:verify",
            "Fold the same prefix again and compare with a state or checkpoint.",
        ),
    },
)


_OVERLAY = click.option("--overlay", required=True, metavar="NAME", help=options.OVERLAY)


def fold_named(name: str) -> "AnyFold":
    """Return the fold of an overlay by name, or all of them if it has several; also by the name of a single fold."""
    from veen.overlays.framework.registry import BUILTIN

    registry = BUILTIN.with_installed()
    if (overlay_fold := registry.make_fold(name)) is not None:
        return overlay_fold
    if (why := registry.why_not(name)) is not None:
        raise click.UsageError(f"the overlay {name!r} cannot be used: {why}")
    raise click.UsageError(f"there is no overlay {name!r}: `veen fold list` shows which there are")


def _with_owners(session: CliSession, fold: "AnyFold") -> "AnyFold":
    """Give a fold of policy the client keys of the owner of each of its streams (D-186)."""
    from veen.cli.label.realm import AdminRealm
    from veen.lake.folds.owners import by_owner, streams_without_owner

    realm = AdminRealm("default")
    named = {stream: realm.emitters(session, f"hex:{stream.hex()}") for stream in streams_without_owner(fold)}
    return by_owner(fold, named) if named else fold


@fold.verb("list", "The overlays that are installed.")
@output_options
def list_(output: Output) -> None:
    """List the overlays that are built in or installed, and those that cannot be used."""
    from veen.overlays.framework.registry import BUILTIN

    registry = BUILTIN.with_installed()
    overlays = [
        {
            "name": overlay.name,
            "about": overlay.about,
            "schemas": {schema.name: schema.id for schema in overlay.schemas},
            "folds": list(overlay.folds),
            "builtin": overlay.name in BUILTIN,
        }
        for overlay in registry.values()
    ]
    broken = [{"name": package.name, "reason": package.reason} for package in registry.broken]
    columns = ("name", "about", "folds")
    rows = [(row["name"], row["about"], ", ".join(row["folds"])) for row in overlays]  # type: ignore[arg-type]  # a list
    output.result({"overlays": plain(overlays), "broken": broken}, lambda: output.table(columns, rows))
    for row in broken:
        output.note(f"{row['name']} cannot be used: {row['reason']}")


@fold.verb("show", "The state that an overlay makes of streams, or one that was written.")
@click.argument("streams", metavar="[STREAM]...", type=STREAM, nargs=-1)
@click.option("--overlay", metavar="NAME", help=options.OVERLAY)
@click.option("--state", metavar="DIR", help="State that `veen fold run` wrote with --out, instead of a stream.")
@view_options
@client_options
def show(
    output: Output, session: CliSession, streams: tuple[str, ...], overlay: str | None, state: str | None, view: View
) -> None:
    """Show the state that an overlay makes of STREAM, its state_hash, and the messages without effect.

    Expiry is evaluated at the time of the last entry, so that everyone with the same log gets the same state_hash.

    \b
    veen fold show app/settings --overlay kv
    veen fold show app/settings --overlay kv --as-of 120
    veen fold show --state ./state
    """
    if state is not None:
        from veen.cli.lake.fold_data import show_written

        if streams or overlay is not None or view.moment is not None:
            raise click.UsageError("a written state has its overlay, streams and moment: give --state alone")
        show_written(output, state)
        return
    if not streams or overlay is None:
        raise click.UsageError("give streams and --overlay, or --state")
    _show_streams(output, session, streams, overlay, view)


def _show_streams(output: Output, session: CliSession, streams: tuple[str, ...], overlay: str, view: View) -> None:
    from veen.cli.shared.folding import fold_streams

    if len(streams) > 1 and view.moment is not None and view.moment.position is not None:
        raise click.UsageError("a position is one of a single stream: give a time instead")
    folded = fold_streams(
        session, _with_owners(session, fold_named(overlay)), streams, moment=view.moment, keep=view.keep
    )
    state = plain(folded.state)

    def human() -> None:
        output.fields([("overlay", folded.name), ("state_hash", folded.state_hash), ("as_of", folded.as_of)])
        output.fields(("upto", f"{cut.label.hex()} {cut.upto_seq} {cut.mmr_root.hex()}") for cut in folded.cuts)
        for issue in folded.issues:
            output.line(f"{issue.code} at {issue.stream_seq}: {issue.what}", "warn")
        output.document(state)

    show_folded(session, folded, {"state": state}, human)


@fold.verb("run", "Fold a stream at many moments, or a data directory in bulk.")
@click.argument("streams", metavar="[STREAM]...", type=STREAM, nargs=-1)
@_OVERLAY
@click.option("--every", type=click.IntRange(min=1), help="Entries between two results; one more at the end.")
@click.option("--as-of", "moments", type=AS_OF, multiple=True, help=f"{options.AS_OF} Repeatable.")
@click.option("--interval", type=click.IntRange(min=1), default=1024, show_default=True, help="Entries in a block.")
@bulk_options
@client_options
def run(
    output: Output,
    session: CliSession,
    streams: tuple[str, ...],
    overlay: str,
    every: int | None,
    moments: tuple[AsOf, ...],
    interval: int,
    bulk: Bulk | None,
) -> None:
    """Fold STREAM once and print the state_hash at many moments, for two readers to compare.

    The log is read once; each further moment costs a few summaries and at most one block of entries.

    With --data-dir, fold a directory or bucket instead, without its hub: all streams that the keys can open, or those
    named, on Spark or in one process, with the same state to the byte. The state is bound to the roots of what was
    folded; --out keeps it, and --earlier resumes from it.

    \b
    veen fold run app/settings --overlay kv --every 1000
    veen fold run app/settings --overlay kv --as-of 120 --as-of -15m
    veen fold run --data-dir ./hub --overlay kv --out ./state
    veen fold run --data-dir ./hub --overlay kv --earlier ./state --engine python
    """
    if bulk is not None:
        from veen.cli.lake.fold_data import run_bulk

        if every is not None or len(moments) > 1:
            raise click.UsageError("a directory is folded to one moment: at most one --as-of, and no --every")
        run_bulk(output, session, bulk, fold_named(overlay), streams, moments[0] if moments else None)
        return
    if len(streams) != 1:
        raise click.UsageError("give one stream, or --data-dir")
    _run_stream(output, session, streams[0], overlay, every, moments, interval)


def _run_stream(
    output: Output,
    session: CliSession,
    stream: str,
    overlay: str,
    every: int | None,
    moments: tuple[AsOf, ...],
    interval: int,
) -> None:
    from veen.cli.shared.folding import events_of
    from veen.overlays.framework.runner import MemorySource, Runner

    with output.progress("reading and folding"):
        runner = Runner(
            _with_owners(session, fold_named(overlay)), MemorySource(events_of(session, [stream])), interval=interval
        )
        runner.refresh()
    session.remember_stream(stream)
    columns = ("upto", "as_of", "state_hash", "issues", "summaries", "events")
    with output.records("moments", columns, widths=(8, 10, 64)) as records:
        for heads, as_of in _cuts(runner, every, moments):
            document = _document(runner, heads, as_of)
            records.add(document, [document[column] for column in columns])
        records.summary({"stream": stream, "overlay": runner.fold.name, "entries": _size(runner)})


def _size(runner: "Runner[Any, Any]") -> int:
    return sum(runner.source.heads().values())


def _cuts(
    runner: "Runner[Any, Any]", every: int | None, moments: tuple[AsOf, ...]
) -> "list[tuple[dict[bytes, int], int | None]]":
    from veen.overlays.framework.runner import cut_at

    heads = dict(runner.source.heads())
    stops: list[tuple[dict[bytes, int], int | None]] = []
    positions = [moment.position for moment in moments if moment.position is not None]
    if (positions or every is not None) and len(heads) > 1:
        raise click.UsageError("the labels of this stream rotate, and positions count within one: give times")
    if every is not None:
        positions += range(every, max(heads.values(), default=0), every)
    for position in sorted(positions):
        stops.append(({label: min(position, head) for label, head in heads.items()}, None))
    for moment in moments:
        if moment.time is not None:
            stops.append((cut_at(runner.source, moment.time), moment.time))
    if every is not None or not stops:
        stops.append((heads, None))
    return stops


def _document(runner: "Runner[Any, Any]", heads: dict[bytes, int], as_of: int | None) -> dict[str, Any]:
    from veen.overlays.framework.state import state_hash

    summary = runner.summary(heads)
    cost = runner.cost
    return {
        "upto": sum(heads.values()),
        "as_of": as_of,
        "state_hash": state_hash(runner.fold.name, runner.fold.view(summary, as_of)).hex(),
        "issues": len(runner.fold.issues(summary)),
        "summaries": cost.summaries,
        "events": cost.events,
    }
