"""`veen hub retention`: contents, effects of a policy, and erasure (COMP0, D-74)."""

import time
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import click

from veen.cli.app import LazyGroup
from veen.cli.hub.common import ACCEPT_CLOCK, DATA_DIR, open_directory
from veen.cli.shared import options
from veen.cli.shared.command import CliSession, identity_options, several
from veen.cli.shared.failures import failing_as
from veen.cli.shared.output import Output, output_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from veen.storage.maintenance.retention import Erasure, RetentionPolicy

retention = LazyGroup(
    "retention",
    help="Erase old payloads; receipts and proofs stay. A running hub does so if retention.payloads is set.",
)


_PERIODS: Final = several(
    click.option("--data-dir", type=DATA_DIR, required=True, help=options.HUB_DIR),
    click.option("--payloads", required=True, help="Age after which payloads are erased, such as 90d."),
    click.option("--receipts", default="0", help=f"{options.RECEIPT_AGE} Default: never."),
    click.option("--classes", is_flag=True, help="Use the retention hint of a label's class, if it has one."),
    identity_options,
)


def _policy(payloads: str, receipts: str, hints: "Mapping[bytes, int]" = MappingProxyType({})) -> "RetentionPolicy":
    from veen.hub.process.settings import DURATION
    from veen.storage.maintenance.retention import Periods, RetentionPolicy

    try:
        seconds = [DURATION.read(text, True, Path()) for text in (payloads, receipts)]
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc
    receipt_sec = seconds[1]
    return RetentionPolicy(
        Periods(payload_sec=seconds[0], receipt_sec=receipt_sec),
        {
            label: Periods(payload_sec=hint, receipt_sec=max(receipt_sec, hint) if receipt_sec else 0)
            for label, hint in hints.items()
        },
    )


def _hints(session: CliSession, data_dir: Path, *, classes: bool) -> "Mapping[bytes, int]":
    """Return seconds by label, with --classes."""
    if not classes:
        return {}
    from veen.lake.folds.label_retention import read_periods

    return read_periods(str(data_dir), session.keystore.secrets.keyring)


def _rows(steps: "list[Erasure]") -> list[dict[str, Any]]:
    return [
        {
            "label": step.label.hex(),
            "what": step.what,
            "start_seq": step.chunk.start_seq,
            "end_seq": step.chunk.end_seq,
            "last_ts": step.chunk.last_ts,
        }
        for step in steps
    ]


def _tell(output: Output, done: str, rows: list[dict[str, Any]], attachments: int | None = None) -> None:
    def human() -> None:
        output.fields((row["label"], f"{row['what']} of {row['start_seq']}..{row['end_seq']}") for row in rows)
        output.line(f"{len(rows)} chunks {done}")
        if attachments:
            output.line(f"{attachments} attachments {done}")

    output.result({"erasures": rows} if attachments is None else {"erasures": rows, "attachments": attachments}, human)


@retention.verb("plan", "Show the effect of a policy; change nothing.")
@_PERIODS
def plan(output: Output, session: CliSession, data_dir: Path, payloads: str, receipts: str, classes: bool) -> None:
    """Show what a policy would erase now. Whole sealed chunks only; the hub may run.

    With --classes the retention hints of label classes take precedence over --payloads. They are in an encrypted
    stream, so the identity needs its read key.

    \b
    veen hub retention plan --data-dir ./hub --payloads 90d
    veen hub retention plan --data-dir ./hub --payloads 90d --classes --identity operator
    """
    from veen.storage.index import Index
    from veen.storage.maintenance.retention import plan as plan_of

    with failing_as("no plan can be made"):
        policy = _policy(payloads, receipts, _hints(session, data_dir, classes=classes))
        index = Index(open_directory(data_dir), read_only=True)
        try:
            steps = plan_of(index, policy, int(time.time()))
        finally:
            index.close()
    _tell(output, "would be erased", _rows(steps))


@retention.verb("apply", "Erase by a policy. The hub must be stopped.")
@ACCEPT_CLOCK
@_PERIODS
def apply(
    output: Output,
    session: CliSession,
    data_dir: Path,
    payloads: str,
    receipts: str,
    classes: bool,
    accept_clock: bool,
) -> None:
    """Erase the payloads and receipts that a policy gives up. Each step is recorded in the control journal.

    Receipts that the policy keeps, and all proofs, stay.
    """
    from veen.hub.process.startup import at_rest
    from veen.storage.attachments import erase_attachments
    from veen.storage.index import Index
    from veen.storage.maintenance import retention as storage

    with failing_as("nothing more can be erased"):
        policy = _policy(payloads, receipts, _hints(session, data_dir, classes=classes))
        fs = open_directory(data_dir)
        with at_rest(fs, int(time.time()), accept_clock=accept_clock) as hub:
            hub.store.retire()  # what a crash left in the journal is in the index then, and so in the plan
            index = Index(fs)
            try:
                steps = storage.plan(index, policy, hub.hub_ts)
            finally:
                index.close()
            steps = storage.apply(fs, steps, hub.journal, dropped=hub.store.drop_level)
            hub.store.retire()  # the chunks go, and the index says so
            attachments = erase_attachments(fs)
    _tell(output, "erased", _rows(steps), attachments)


@retention.verb("show", "Contents of each label.")
@click.option("--data-dir", type=DATA_DIR, required=True, help=options.HUB_DIR)
@output_options
def show(output: Output, data_dir: Path) -> None:
    """Show the number of chunks of each label, and of those without payloads or receipts."""
    from veen.storage.index import Index
    from veen.storage.maintenance import retention as storage

    with failing_as("retention cannot be shown"):
        index = Index(open_directory(data_dir), read_only=True)
        try:
            labels = storage.show(index)
        finally:
            index.close()
    rows = [
        {
            "label": state.label.hex(),
            "chunks": state.chunks,
            "payloads_erased": state.payloads_erased,
            "receipts_erased": state.receipts_erased,
            "oldest_payload_ts": state.oldest_payload_ts,
        }
        for state in labels
    ]

    def human() -> None:
        output.fields(
            (state.label.hex(), f"{state.chunks} chunks, {state.payloads_erased} without payloads") for state in labels
        )

    output.result({"labels": rows}, human)


@retention.verb("check", "Find receipts that were erased too early, and erased files that came back.")
@click.option("--data-dir", type=DATA_DIR, required=True, help=options.HUB_DIR)
@click.option("--receipts", help=f"{options.RECEIPT_AGE} Default: not known.")
@click.option("--remove-leftovers", is_flag=True, help="Remove erased files that came back.")
@ACCEPT_CLOCK
@output_options
def check(output: Output, data_dir: Path, receipts: str | None, remove_leftovers: bool, accept_clock: bool) -> None:
    """Find what earlier releases damaged. The hub must be stopped.

    They could erase receipts together with payloads although the policy keeps them, and compression could write an
    erased chunk back. Without --receipts, a chunk is suspicious if payloads and receipts went within an hour.

    Erased receipts cannot be restored here: the control journal says that they were erased, and that is signed. Copies
    that senders kept stay valid, and a clone or replica made before has them still. Proofs can still be made. Files
    that came back are removed with --remove-leftovers.

    \b
    veen hub retention check --data-dir ./hub --receipts 0
    """
    from veen.cli.shared.verifying import end_by, show_verdict, verdict_json
    from veen.core.verdict import Because, Coverage, Reason, StatedBy, Verdict
    from veen.hub.process.startup import at_rest
    from veen.storage.index import Index
    from veen.storage.maintenance import retention as storage

    with failing_as("the directory cannot be checked"):
        periods = None if receipts is None else _policy(receipts if receipts != "0" else "1s", receipts).periods
        fs = open_directory(data_dir)
        with at_rest(fs, int(time.time()), accept_clock=accept_clock) as hub:
            hub.store.retire()  # what a crash left in the journal is in the index then
            index = Index(fs)
            try:
                erased = storage.find_erased_receipts(fs, index)
                leftovers = storage.find_leftovers(fs, index)
                sizes = {row.label: row.size for row in index.labels()}
            finally:
                index.close()
            if remove_leftovers:
                for path in leftovers:
                    fs.remove(path)
    early = [chunk for chunk in erased if chunk.is_early(periods)]
    why = "within an hour of the payloads" if periods is None else "although the policy keeps them"
    reasons = [
        Reason(
            Because.POLICY,
            f"{chunk.label.hex()}: the receipts of entries {chunk.start_seq} to {chunk.end_seq} were erased {why}",
        )
        for chunk in early
    ]
    if not remove_leftovers:
        reasons += [Reason(Because.POLICY, f"{path}: was erased and is here again") for path in leftovers]
    verdict = Verdict.of(
        [
            Coverage(log=label.hex(), read=size, head=size, stated_by=StatedBy.OWN_FILES, identity=None)
            for label, size in sorted(sizes.items())
        ],
        reasons,
    )
    rows = [
        {
            "label": chunk.label.hex(),
            "start_seq": chunk.start_seq,
            "end_seq": chunk.end_seq,
            "payloads_erased_at": chunk.payloads_at,
            "receipts_erased_at": chunk.receipts_at,
            "early": chunk in early,
        }
        for chunk in erased
    ]
    data = {
        **verdict_json(verdict),
        "erased_receipts": rows,
        "leftovers": leftovers,
        "leftovers_removed": remove_leftovers and bool(leftovers),
    }
    output.result(data, lambda: show_verdict(output, verdict))
    end_by(
        verdict,
        "retention",
        hint="erased receipts cannot be restored here; ask senders, or a clone or replica made before, for theirs",
    )
