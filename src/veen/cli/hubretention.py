"""`veen hub retention`: what is kept, what a policy would let go, and letting it go (COMP0, D-74)."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from veen.cli.app import LazyGroup
from veen.cli.failures import told
from veen.cli.hubcommon import DATA_DIR, existing
from veen.cli.output import Output, output_options

if TYPE_CHECKING:
    from veen.storage.retention import Erasure, Policy

__all__ = ["apply", "plan", "retention", "show"]


class _RetentionGroup(LazyGroup):
    table: ClassVar = {
        "apply": ("veen.cli.hubretention:apply", "Erase what a policy lets go. The hub must be stopped."),
        "plan": ("veen.cli.hubretention:plan", "What a policy would erase now; nothing is changed."),
        "show": ("veen.cli.hubretention:show", "What is kept of each label."),
    }


@click.group(cls=_RetentionGroup)
def retention() -> None:
    """Erase old payloads; receipts and proofs stay. A running hub does it by itself if retention.payloads is set."""


def _periods(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--receipts", default="0", help="Age after which archived receipts go too; default: never."),
        click.option("--payloads", required=True, help="Age after which payloads go, such as 90d."),
        click.option("--data-dir", type=DATA_DIR, required=True, help="The data directory."),
    ):
        command = option(command)
    return command


def _policy(payloads: str, receipts: str) -> "Policy":
    from veen.hub.settings import DURATION
    from veen.storage.retention import Periods, Policy

    try:
        seconds = [DURATION.read(text, True, Path()) for text in (payloads, receipts)]
    except ValueError as exc:
        raise click.UsageError(str(exc)) from exc
    return Policy(Periods(payload_sec=seconds[0], receipt_sec=seconds[1]))


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


def _tell(output: Output, done: str, rows: list[dict[str, Any]]) -> None:
    def human() -> None:
        output.fields((row["label"], f"{row['what']} of {row['start_seq']}..{row['end_seq']}") for row in rows)
        click.echo(f"{len(rows)} chunks {done}")

    output.result({"erasures": rows}, human)


@click.command()
@_periods
@output_options
def plan(output: Output, data_dir: Path, payloads: str, receipts: str) -> None:
    """What a policy would erase now. Whole sealed chunks only; the hub may run."""
    from veen.storage.index import Index
    from veen.storage.retention import plan as plan_of

    with told("no plan can be made"):
        policy = _policy(payloads, receipts)
        index = Index(existing(data_dir), read_only=True)
        try:
            steps = plan_of(index, policy, int(time.time()))
        finally:
            index.close()
    _tell(output, "would be erased", _rows(steps))


@click.command()
@_periods
@output_options
def apply(output: Output, data_dir: Path, payloads: str, receipts: str) -> None:
    """Erase what a policy lets go. Each step is recorded in the control journal; receipts and proofs stay."""
    from veen.hub.atrest import at_rest
    from veen.storage import retention as storage
    from veen.storage.index import Index

    with told("nothing more can be erased"):
        policy = _policy(payloads, receipts)
        fs = existing(data_dir)
        with at_rest(fs, int(time.time())) as hub:
            index = Index(fs)
            try:
                steps = storage.plan(index, policy, hub.hub_ts)
            finally:
                index.close()
            storage.apply(fs, steps, hub.journal)
    _tell(output, "erased", _rows(steps))


@click.command()
@click.option("--data-dir", type=DATA_DIR, required=True, help="The data directory.")
@output_options
def show(output: Output, data_dir: Path) -> None:
    """How many chunks of each label there are, and how many of them have lost payloads or receipts."""
    from veen.storage import retention as storage
    from veen.storage.index import Index

    with told("retention cannot be shown"):
        index = Index(existing(data_dir), read_only=True)
        try:
            labels = storage.show(index)
        finally:
            index.close()
    rows = [
        {
            "label": found.label.hex(),
            "chunks": found.chunks,
            "payloads_erased": found.payloads_erased,
            "receipts_erased": found.receipts_erased,
            "oldest_payload_ts": found.oldest_payload_ts,
        }
        for found in labels
    ]

    def human() -> None:
        output.fields(
            (found.label.hex(), f"{found.chunks} chunks, {found.payloads_erased} without payloads") for found in labels
        )

    output.result({"labels": rows}, human)
