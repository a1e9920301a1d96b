"""`veen fold` over data directories: in bulk, on Spark or in one process, with states that are stored and verified."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from veen.cli.shared import options
from veen.cli.shared.as_of import AsOf
from veen.cli.shared.bulk import DATA_DIR, ENGINE, HUB_IDENTITY, KEY_FILE, MASTER, PARTITIONS, LogPlace, log_options
from veen.cli.shared.command import FILE, CliSession, identity_options
from veen.cli.shared.names import STREAM
from veen.cli.shared.output import Output
from veen.cli.shared.overlay_commands import send_draft
from veen.cli.shared.verifying import end_by, show_verdict, verdict_json
from veen.core.verdict import Because, Outcome, Reason, Verdict
from veen.overlays.framework.plain import plain

if TYPE_CHECKING:
    from veen.lake.folds import FoldResult, StateCheck, StateClaim, WrittenState
    from veen.overlays.framework.fold import AnyFold

F = TypeVar("F", bound=Callable[..., Any])
_SHOWN: Final = 20  # issues that people see before they are told of the others


@dataclass(frozen=True, slots=True, kw_only=True)
class Bulk:
    """A fold over a log on disk."""

    place: LogPlace
    since: str | None
    out: str | None
    checkpoint: str | None  # a stream


_PLACE: Final = log_options(
    KEY_FILE,
    ENGINE,
    MASTER,
    PARTITIONS,
    click.option("--plan", type=click.Choice(["auto", "generic", "native"]), default="auto", show_default=True,
                 help="Plan of Spark. The state is the same."),
)  # fmt: skip


def bulk_options(command: F) -> F:
    """Give a command its `bulk`: the values of --data-dir and the options beside it, or None."""

    @click.option("--data-dir", help=f"{options.LOG_DIR} Instead of a hub.")
    @_PLACE
    @options.keep_former("--earlier", "since", former="--since", metavar="DIR", help=options.EARLIER)
    @click.option("--out", metavar="DIR", help="Directory to write the state to, or a URL that Arrow can write.")
    @click.option("--checkpoint", type=STREAM, help="Stream to send a state.checkpoint.v1 about the state to.")
    @wraps(command)
    def run(*args: Any, data_dir: str | None, place: LogPlace, **kwargs: Any) -> Any:
        asked = {name: kwargs.pop(name) for name in ("since", "out", "checkpoint")}
        if data_dir is None and any(value is not None for value in asked.values()):
            raise click.UsageError("--earlier, --out and --checkpoint require --data-dir")
        bulk = None if data_dir is None else Bulk(place=replace(place, data_dir=data_dir), **asked)
        return command(*args, bulk=bulk, **kwargs)

    decorated: F = run
    return decorated


# --- run -----------------------------------------------------------------------------------------------------------


def run_bulk(
    output: Output, session: CliSession, bulk: Bulk, fold: "AnyFold", streams: Sequence[str], moment: AsOf | None
) -> None:
    """Run `veen fold run --data-dir`."""
    from veen.lake import folds

    if moment is not None and moment.position is not None:
        raise click.UsageError("a directory has many labels, and positions count within one: give a time")
    place = bulk.place.choose_engine(output)
    with output.progress("folding") as progress, place.spark("veen fold", progress) as spark:
        result = folds.run(
            place.data_dir, fold, keys=place.keys(session), engine=place.engine, spark=spark, parts=place.partitions,
            plan=place.plan, streams=streams or None, since=bulk.since, upto=None if moment is None else moment.time,
        )  # fmt: skip
        if bulk.out is not None:
            progress("writing the state")
            result.write(bulk.out)
    if result.refused is not None:
        output.note(f"the earlier state was not used, and the whole log was folded: {result.refused}")
    for group in result.unopened:
        output.note(f"label {group.label.hex()}: {group.count} entries {group.reason}, the first at {group.first_seq}")
    for label in result.unproven:
        output.note(f"label {label.hex()}: not every leaf is known, so its root could not be recomputed")
    document, facts, state = _document(result), _facts(result), plain(result.view)
    if bulk.checkpoint is not None:
        sent = send_draft(session, bulk.checkpoint, result.checkpoint())
        document["checkpoint"] = {"stream": bulk.checkpoint, "seq": sent.seq, "msg_id": sent.msg_id.hex()}
        facts.append(("checkpoint", f"{bulk.checkpoint} {sent.seq}, receipt verified"))
    if bulk.out is None:
        document["state"] = state

    def human() -> None:
        output.fields(facts)
        _show_issues(output, result.issues)
        if bulk.out is None:
            output.document(state)

    output.result(document, human)
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
        output.line(f"and {len(issues) - _SHOWN} more messages that had no effect", "warn")


def _document(result: "FoldResult") -> dict[str, Any]:
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
    """Run `veen fold show --state`."""
    from veen.lake import folds

    written = folds.load(path)
    state = plain(_view(written))
    document = {
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
        output.document(state)

    output.result(document, human)


def _view(written: "WrittenState") -> Any:
    """Return the state as its overlay shows it; its canonical form if that overlay is absent or has other settings."""
    from veen.core import cbor
    from veen.lake import folds
    from veen.lake.folds.errors import NoSuchFold
    from veen.overlays.framework.snapshot import SnapshotRefused

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
@DATA_DIR
@click.option("--checkpoint", type=FILE, help="File with the body of a state.checkpoint.v1, instead of STATE.")
@click.option("--label", help="Label, in hex, of a checkpoint that names none.")
@HUB_IDENTITY
@_PLACE
@identity_options
def verify(
    output: Output,
    session: CliSession,
    state: str | None,
    data_dir: str,
    checkpoint: str | None,
    label: str | None,
    hub_identity: str | None,
    place: LogPlace,
) -> None:
    """Fold the log of STATE again, from the first entry on, and compare: roots, receipts, state_hash.

    Without STATE and --checkpoint, every state.checkpoint.v1 that the log itself has is verified. Exit code 1 means
    that one of them is not true, and every difference is named. Exit code 6 means that the verdict is incomplete: the
    log ends before the state does, your keys do not open what the state was made of, or there is no state to verify.

    \b
    veen fold verify ./state --data-dir ./hub
    veen fold verify --data-dir ./hub --engine python
    """
    from veen.lake import folds

    if state is not None and checkpoint is not None:
        raise click.UsageError("give a written state or a checkpoint, not both")
    keys, identity = place.keys(session), replace(place, hub_identity=hub_identity).identity()
    place = place.choose_engine(output, data_dir)
    with output.progress("folding again") as progress, place.spark("veen fold", progress) as spark:
        claims: Sequence[StateClaim]
        if state is not None:
            claims = [folds.StateClaim.of(folds.load(state))]
        elif checkpoint is not None:
            claims = [_claim(Path(checkpoint), label)]
        else:
            claims = list(folds.claims_in(data_dir, keys=keys, engine=place.engine, spark=spark))
        checks = [
            folds.verify(
                data_dir, claim, keys=keys, engine=place.engine, spark=spark, parts=place.partitions,
                plan=place.plan, identity=identity,
            )
            for claim in claims
        ]  # fmt: skip
    _show_verdicts(output, checks)


def _claim(path: Path, label: str | None) -> "StateClaim":
    from veen.cli.shared.files import hex32
    from veen.lake import folds
    from veen.overlays.operations.state_checkpoint import StateCheckpoint

    body = StateCheckpoint.from_bytes(path.read_bytes())
    return folds.StateClaim.of(body, label=None if label is None else hex32(label))


def _show_verdicts(output: Output, checks: "Sequence[StateCheck]") -> None:
    verdict = Verdict.of((), ())
    if checks:
        verdict = Verdict.of(
            [row for check in checks for row in check.compared],
            [reason for check in checks for reason in _reasons(check)],
        )
    rows = [
        {
            "state_class": check.claim.state_class,
            "state_hash": check.claim.state_hash.hex(),
            "upto": [cut.to_json() for cut in check.claim.cuts],
            "msg_id": plain(check.claim.msg_id),
            "ok": check.ok,
            "differences": [str(difference) for difference in check.differences],
            "codes": [difference.code for difference in check.differences],
        }
        for check in checks
    ]

    def human() -> None:
        for check in checks:
            word = {Outcome.GOOD: "true", Outcome.BAD: "FALSE", Outcome.INCOMPLETE: "not known"}[check.verdict.value]
            output.line(f"{word}  {check.claim.state_class} {check.claim.state_hash.hex()}")
            for difference in check.differences:
                output.line(f"  {difference}", "warn")
        if not checks:
            output.line("the log has no state.checkpoint.v1 that could be verified")
        show_verdict(output, verdict)

    output.result({**verdict_json(verdict), "states": rows}, human)
    bad = sum(check.verdict.value is Outcome.BAD for check in checks)
    what = f"{bad} of {len(checks)} states are NOT what the log says" if bad else f"{len(checks)} states"
    hint = "trust the log, not the state; `veen audit run` checks the log itself"
    end_by(verdict, what, hint=hint if bad else None)


def _reasons(check: "StateCheck") -> "list[Reason]":
    """Return the reasons against one state; a state without labels is not verified by that."""
    nothing = [] if check.compared else [Reason(Because.COVERAGE, "a state names no label: nothing was compared")]
    return [*(Reason(different.because, str(different)) for different in check.differences), *nothing]


# --- repair --------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("states", metavar="STATE...", nargs=-1, required=True)
@DATA_DIR
@click.option("--dry-run", is_flag=True, help=options.DRY_RUN)
@_PLACE
@identity_options
def repair(
    output: Output, session: CliSession, states: tuple[str, ...], data_dir: str, dry_run: bool, place: LogPlace
) -> None:
    """Find written states that other keys than yours may have read, and fold them again.

    Earlier releases went on from a state whatever keys it was read with, so entries that were sealed to the first
    reader stayed left out. STATE is a directory that --out of fold run has written. States in gold tables are
    made anew by the next table load --fold NAME.

    \b
    veen fold repair ./state --data-dir ./hub
    veen fold repair ./state ./other-state --data-dir ./hub --dry-run
    """
    from veen.lake import folds

    keys = place.keys(session)
    place = place.choose_engine(output, data_dir)
    with output.progress("folding again") as progress, place.spark("veen fold", progress) as spark:
        done = [
            folds.repair(state, data_dir, keys=keys, engine=place.engine, spark=spark, dry_run=dry_run)
            for state in states
        ]
    rows = [
        {
            "state": state.path,
            "overlay": state.fold,
            "why": state.why,
            "before": state.before.hex(),
            "after": state.after.hex(),
            "changed": state.is_changed,
            "written": state.is_written,
        }
        for state in done
    ]

    def human() -> None:
        for state in done:
            word = "left alone" if state.why is None else "changed" if state.is_changed else "as it was"
            output.line(f"{word}  {state.path} {state.fold} {state.after.hex()}")
            if state.why is not None:
                output.line(f"  {state.why}")

    output.result({"states": rows, "changed": sum(state.is_changed for state in done)}, human)
