"""`veen fold` over data directories: in bulk, on Spark or in one process, with states that are kept and verified."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from veen.cli.asof import AsOf
from veen.cli.clictx import FILE, Session, identity_options
from veen.cli.names import STREAM
from veen.cli.output import Exit, Fail, Output, output_options
from veen.cli.overlaycmd import send_draft
from veen.cli.overlayvalues import plain
from veen.cli.sparkwork import spark_at_work
from veen.cli.text import pretty

if TYPE_CHECKING:
    from veen.core.hubkeys import HubIdentity
    from veen.overlays.fold import AnyFold
    from veen.pipeline.folds import Claim, FoldResult, Verdict, WrittenState
    from veen.pipeline.folds.api import Keys
    from veen.pipeline.progress import Tell

__all__ = ["Bulk", "bulk_options", "run_bulk", "show_written", "verify"]

F = TypeVar("F", bound=Callable[..., Any])
_SHOWN: Final = 20  # issues that people see before they are told of the others


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A log on disk, and who is to read it."""

    data_dir: str
    key_file: str | None
    engine: str
    master: str | None
    partitions: int | None
    plan: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bulk:
    """A fold over a log on disk."""

    place: Place
    since: str | None
    out: str | None
    checkpoint: str | None  # a stream


_PLACE: Final = (
    click.option("--key-file", type=FILE, help="Read keys (veen-stream1…), one per line; default: your keyring."),
    click.option("--engine", type=click.Choice(["spark", "python"]), default="spark", show_default=True,
                 help="python: one process, neither Spark nor Java; the same bytes."),
    click.option("--master", help="The Spark master; default: all cores of this machine."),
    click.option("--partitions", type=click.IntRange(min=1), help="How many tasks; default: by size."),
    click.option("--plan", type=click.Choice(["auto", "generic", "native"]), default="auto", show_default=True,
                 help="How Spark goes about it; the state is the same."),
)  # fmt: skip
_DATA_DIR: Final = "The data directory: a path, or a URL that Arrow can read."


def bulk_options(command: F) -> F:
    """Give a command its `bulk`: what --data-dir and the options beside it say, or None."""

    @click.option("--data-dir", help=f"Instead of a hub. {_DATA_DIR}")
    @_decorated(_PLACE)
    @click.option("--since", metavar="DIR", help="Go on from a state that --out has kept.")
    @click.option("--out", metavar="DIR", help="Keep the state here: a directory, or a URL that Arrow can write.")
    @click.option("--checkpoint", type=STREAM, help="Say so in this stream: send a state.checkpoint.v1 to the hub.")
    @wraps(command)
    def run(*args: Any, data_dir: str | None, **kwargs: Any) -> Any:
        place = _taken(kwargs, data_dir or "")
        asked = {name: kwargs.pop(name) for name in ("since", "out", "checkpoint")}
        if data_dir is None and any(value is not None for value in asked.values()):
            raise click.UsageError("--since, --out and --checkpoint are for a --data-dir")
        return command(*args, bulk=None if data_dir is None else Bulk(place=place, **asked), **kwargs)

    decorated: F = run
    return decorated


def _decorated(options: Sequence[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    def decorate(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _taken(kwargs: dict[str, Any], data_dir: str) -> Place:
    names = ("key_file", "engine", "master", "partitions", "plan")
    return Place(data_dir=data_dir, **{name: kwargs.pop(name) for name in names})


def _keys(session: Session, key_file: str | None) -> "Keys":
    from veen.pipeline.query.keys import KeyFile

    return session.keystore.secrets.keyring if key_file is None else KeyFile(str(Path(key_file).absolute()))


@contextmanager
def _spark(place: Place, progress: "Tell") -> Iterator[Any]:
    """A session, if the engine needs one; its jobs name their phases themselves."""
    if place.engine != "spark":
        yield None
        return
    with spark_at_work("veen fold", place.master, progress) as (session, _):
        yield session


# --- run -----------------------------------------------------------------------------------------------------------


def run_bulk(
    output: Output, session: Session, bulk: Bulk, fold: "AnyFold", streams: Sequence[str], moment: AsOf | None
) -> None:
    """`veen fold run --data-dir`."""
    from veen.pipeline import folds

    if moment is not None and moment.position is not None:
        raise click.UsageError("a directory has many labels, and positions count within one: give a time")
    place = bulk.place
    with output.progress("folding") as progress, _spark(place, progress) as spark:
        result = folds.run(
            place.data_dir, fold, keys=_keys(session, place.key_file), engine=place.engine,  # type: ignore[arg-type]  # click.Choice
            spark=spark, parts=place.partitions, plan=place.plan,  # type: ignore[arg-type]  # as above
            streams=streams or None, since=bulk.since, upto=None if moment is None else moment.time,
        )  # fmt: skip
        if bulk.out is not None:
            progress("writing the state")
            result.write(bulk.out)
    if result.refused is not None:
        output.note(f"the earlier state was not used, and the whole log was folded: {result.refused}")
    for one in result.unopened:
        output.note(f"label {one.label.hex()}: {one.count} entries {one.reason}, the first at {one.first_seq}")
    for label in result.unproven:
        output.note(f"label {label.hex()}: not every leaf is known, so its root could not be recomputed")
    told, facts, state = _told(result), _facts(result), plain(result.view)
    if bulk.checkpoint is not None:
        sent = send_draft(session, bulk.checkpoint, result.checkpoint())
        told["checkpoint"] = {"stream": bulk.checkpoint, "seq": sent.seq, "msg_id": sent.msg_id.hex()}
        facts.append(("checkpoint", f"{bulk.checkpoint} {sent.seq}, receipt verified"))
    if bulk.out is None:
        told["state"] = state

    def human() -> None:
        output.fields(facts)
        _show_issues(output, result.issues)
        if bulk.out is None:
            click.echo(pretty(state))

    output.result(told, human)
    if bulk.out is not None:
        output.next(f"veen fold verify {bulk.out} --data-dir {place.data_dir}")


def _facts(result: "FoldResult") -> list[tuple[str, Any]]:
    upto = [("upto", f"{cut.label.hex()} {cut.upto_seq} {cut.mmr_root.hex()}") for cut in result.cuts]
    read = f"{result.entries} after the earlier state" if result.resumed else result.entries
    return [
        ("overlay", result.fold.name),
        ("state_hash", result.state_hash),
        ("as_of", result.as_of),
        *upto,
        ("entries", read),
        ("plan", result.plan),
    ]


def _show_issues(output: Output, issues: Sequence[Any]) -> None:
    for issue in issues[:_SHOWN]:
        output.line(f"{issue.code} at {issue.stream_seq}: {issue.what}", "warn")
    if len(issues) > _SHOWN:
        output.line(f"and {len(issues) - _SHOWN} more messages that counted for nothing", "warn")


def _told(result: "FoldResult") -> dict[str, Any]:
    return {
        "overlay": result.fold.name,
        "as_of": result.as_of,
        "state_hash": result.state_hash.hex(),
        "upto": [cut.to_json() for cut in result.cuts],
        "unproven": [label.hex() for label in result.unproven],
        "issues": plain(result.issues),
        "unopened": plain(result.unopened),
        "entries": result.entries,
        "plan": result.plan,
        "resumed": result.resumed,
        "refused": result.refused,
    }


# --- show ----------------------------------------------------------------------------------------------------------


def show_written(output: Output, path: str) -> None:
    """`veen fold show --state`."""
    from veen.pipeline import folds

    written = folds.load(path)
    state = plain(_view(written))
    told = {
        "overlay": written.fold,
        "as_of": written.as_of,
        "state_hash": written.state_hash.hex(),
        "upto": [cut.to_json() for cut in written.snapshot.cuts],
        "issues": written.issues,
        "unopened": plain(written.unopened),
        "state": state,
    }

    def human() -> None:
        output.fields([("overlay", written.fold), ("state_hash", written.state_hash), ("as_of", written.as_of)])
        output.fields(
            ("upto", f"{cut.label.hex()} {cut.upto_seq} {cut.mmr_root.hex()}") for cut in written.snapshot.cuts
        )
        output.fields([("issues", written.issues)])
        click.echo(pretty(state))

    output.result(told, human)


def _view(written: "WrittenState") -> Any:
    """The state as its overlay shows it; its canonical form, if that overlay is not here or has other settings."""
    from veen.core import cbor
    from veen.overlays.snapshot import SnapshotRefused
    from veen.pipeline import folds
    from veen.pipeline.folds.errors import NoSuchFold

    roots = {(cut.label, cut.upto_seq): cut.mmr_root for cut in written.snapshot.cuts}
    try:
        fold = folds.fold_named(written.fold)
        return fold.view(written.snapshot.restore(fold, lambda label, seq: roots[label, seq]), written.as_of)
    except (NoSuchFold, SnapshotRefused):
        size = len(written.state)
        return cbor.decode(written.state, what="state", max_bytes=size, max_items=size + 1)


# --- verify --------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("state", metavar="[STATE]", required=False)
@click.option("--data-dir", required=True, help=_DATA_DIR)
@click.option("--checkpoint", type=FILE, help="Instead of a written state: the body of a state.checkpoint.v1.")
@click.option("--label", help="Of a checkpoint that names no labels: the one it is about, in hex.")
@click.option("--hub-identity", type=FILE, help="hub-identity.json from elsewhere, to judge receipts by.")
@_decorated(_PLACE)
@output_options
@identity_options
def verify(
    output: Output,
    session: Session,
    state: str | None,
    data_dir: str,
    checkpoint: str | None,
    label: str | None,
    hub_identity: str | None,
    **place: Any,
) -> None:
    """Fold what STATE was made of once more, from the first entry on, and compare: roots, receipts, state_hash.

    Without STATE and --checkpoint, every state.checkpoint.v1 that the log itself has is verified. Exit code 1 means
    that one of them is not true, and every difference is named.

    \\b
    veen fold verify ./state --data-dir ./hub
    veen fold verify --data-dir ./hub --engine python
    """
    from veen.pipeline import folds

    if state is not None and checkpoint is not None:
        raise click.UsageError("give a written state or a checkpoint, not both")
    where = _taken(place, data_dir)
    keys = _keys(session, where.key_file)
    with output.progress("folding again") as progress, _spark(where, progress) as spark:
        claims: Sequence[Claim]
        if state is not None:
            claims = [folds.Claim.of(folds.load(state))]
        elif checkpoint is not None:
            claims = [_claim(Path(checkpoint), label)]
        else:
            claims = list(folds.claims_in(data_dir, keys=keys, engine=where.engine, spark=spark))  # type: ignore[arg-type]  # click.Choice
        verdicts = [
            folds.verify(
                data_dir, claim, keys=keys, engine=where.engine, spark=spark, parts=where.partitions,  # type: ignore[arg-type]  # as above
                plan=where.plan, identity=_identity(hub_identity),  # type: ignore[arg-type]  # as above
            )
            for claim in claims
        ]  # fmt: skip
    _show_verdicts(output, verdicts)


def _claim(path: Path, label: str | None) -> "Claim":
    from veen.cli.files import hex32
    from veen.overlays.statecheckpoint import StateCheckpoint
    from veen.pipeline import folds

    body = StateCheckpoint.from_bytes(path.read_bytes())
    return folds.Claim.of(body, label=None if label is None else hex32(label))


def _identity(path: str | None) -> "HubIdentity | None":
    from veen.core.hubkeys import HubIdentity

    return None if path is None else HubIdentity.from_bytes(Path(path).read_bytes())


def _show_verdicts(output: Output, verdicts: "Sequence[Verdict]") -> None:
    told = [
        {
            "state_class": one.claim.state_class,
            "state_hash": one.claim.state_hash.hex(),
            "upto": [cut.to_json() for cut in one.claim.cuts],
            "msg_id": plain(one.claim.msg_id),
            "ok": one.ok,
            "differences": [str(difference) for difference in one.differences],
        }
        for one in verdicts
    ]

    def human() -> None:
        for one in verdicts:
            output.line(f"{'true' if one.ok else 'FALSE'}  {one.claim.state_class} {one.claim.state_hash.hex()}")
            for difference in one.differences:
                output.line(f"  {difference}", "warn")
        if not verdicts:
            output.line("the log has no state.checkpoint.v1 that could be verified")

    output.result({"ok": all(one.ok for one in verdicts), "states": told}, human)
    bad = [one for one in verdicts if not one.ok]
    if bad:
        raise Fail(
            Exit.BAD_EVIDENCE,
            f"{len(bad)} of {len(verdicts)} states are NOT what the log says",
            str(bad[0].differences[0]),
            "believe the log, not the state; `veen audit run` tells whether the log itself is whole",
            "E.VERIFY",
        )
