"""Commands on a data directory: verify-data, rebuild-index, clone, fork."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from veen.cli.failures import told
from veen.cli.hubcommon import DATA_DIR, existing
from veen.cli.output import Exit, Fail, Output, output_options

if TYPE_CHECKING:
    from veen.storage.findings import Level
    from veen.storage.fsck import Report

__all__ = ["check_data", "clone", "fork", "rebuild_index", "verify_data"]


@click.command("verify-data")
@click.argument("data_dir", type=DATA_DIR)
@click.option("--structure", is_flag=True, help="Leave out the signatures: much faster, but proves less.")
@click.option("--jobs", type=click.IntRange(min=1), help="Processes that verify signatures (default: one per core).")
@output_options
def verify_data(output: Output, data_dir: Path, structure: bool, jobs: int | None) -> None:
    """Check every byte of DATA_DIR against what the hub signed; a fork together with its origin.

    The hub may run meanwhile, and no key is needed. Exit code 1 means that evidence is bad and names where. What can
    be made again from the log (index, node store) is told, and is exit code 6.
    """
    check_data(output, data_dir, structure=structure, jobs=jobs)


def check_data(output: Output, data_dir: Path, *, structure: bool = False, jobs: int | None = None) -> None:
    """What `hub verify-data` does, and `verify` on a data directory."""
    from veen.hub.forking import verify_all

    with told(f"{data_dir}: verification FAILED"), output.progress("verifying") as progress:
        level: Level = "structure" if structure else "full"
        reports = verify_all(existing(data_dir), level=level, progress=progress, jobs=jobs or os.cpu_count() or 1)
    findings = [finding for report in reports for finding in report.findings]
    bad = [finding for finding in findings if finding.severity == "error" and finding.code != "rebuildable"]
    repairable = [finding for finding in findings if finding.code == "rebuildable"]
    data = {
        "ok": not bad and not repairable,
        "level": reports[0].level,
        "sections": [_section(report) for report in reports],
    }

    def human() -> None:
        for finding in findings:
            click.echo(str(finding))
        for number, report in enumerate(reports):
            where = "origin: " if number else ""
            entries, labels = sum(label.size for label in report.labels.values()), len(report.labels)
            click.echo(f"{where}{labels} labels, {entries} entries, {report.counts.get('signatures', 0)} signatures")
        if data["ok"]:
            click.echo(f"{data_dir}: verified")

    output.result(data, human)
    if bad:
        raise Fail(
            Exit.BAD_EVIDENCE,
            f"{data_dir}: verification FAILED",
            f"{bad[0].path}, byte {bad[0].offset}: {bad[0].message}",
            "keep the directory as evidence and restore from a replica or a clone",
            "E.VERIFY",
        )
    if repairable:
        raise Fail(
            Exit.POLICY,
            f"{data_dir}: the log is good, but what is derived from it is not",
            f"{repairable[0].path}: {repairable[0].message}",
            f"veen hub rebuild-index {data_dir}",
            "E.INDEX",
        )


def _section(report: "Report") -> dict[str, Any]:
    return {
        "findings": [
            {
                "severity": finding.severity,
                "code": finding.code,
                "path": finding.path,
                "offset": finding.offset,
                "message": finding.message,
            }
            for finding in report.findings
        ],
        "labels": {
            label.hex(): {"size": found.size, "mmr_root": found.root.hex() if found.root else None}
            for label, found in sorted(report.labels.items())
        },
        "counts": dict(sorted(report.counts.items())),
    }


@click.command("rebuild-index")
@click.argument("data_dir", type=DATA_DIR)
@output_options
def rebuild_index(output: Output, data_dir: Path) -> None:
    """Make index, node store and locations of DATA_DIR again from its log alone. The hub must be stopped.

    Checkpoints that are missing are signed again if the private keys are there.
    """
    from veen.hub.opening import Sealing
    from veen.storage import identity as identities
    from veen.storage.identity import MissingKeyError
    from veen.storage.rebuild import rebuild_index as rebuild

    with told(f"{data_dir}: the index cannot be rebuilt"), output.progress("rebuilding") as progress:
        fs = existing(data_dir)
        with fs.lock():
            try:
                reseal = Sealing(identities.load(fs)).checkpoint
            except MissingKeyError:  # a verifier's copy
                reseal = None
            rebuilt = rebuild(fs, reseal=reseal, progress=progress)
    data = {
        "labels": rebuilt.labels,
        "entries": rebuilt.entries,
        "repaired": rebuilt.repaired,
        "missing": rebuilt.missing,
    }

    def human() -> None:
        click.echo(f"{data_dir}: made again from {rebuilt.entries} entries of {rebuilt.labels} labels")
        output.fields([("repaired", path) for path in rebuilt.repaired])
        output.fields([("missing", path) for path in rebuilt.missing])

    output.result(data, human)


@click.command()
@click.argument("source", type=DATA_DIR)
@click.argument("target", type=DATA_DIR)
@click.option("--with-keys/--without-keys", default=False, help="Copy the private keys too: needed to run the copy.")
@click.option("--verify/--no-verify", default=True, help="Check the copy afterwards.")
@output_options
def clone(output: Output, source: Path, target: Path, with_keys: bool, verify: bool) -> None:
    """Copy the hub in SOURCE to TARGET, also while it runs. Without keys the copy can be verified and read.

    A copy with keys is the same hub. Never run both: each would sign another history, and anyone who sees two
    receipts for one position can prove it.
    """
    from veen.hub.forking import verify_all
    from veen.hub.opening import data_fs
    from veen.storage import outcomes

    with told("the hub cannot be cloned"):
        copy = data_fs(target)
        at_rest = outcomes.clone(existing(source), copy, with_keys=with_keys)
    data: dict[str, Any] = {"source_was_running": not at_rest, "with_keys": with_keys, "verified": verify}
    if verify:
        with told(f"{target}: the copy does not verify"):
            reports = verify_all(copy)
        if errors := [finding for report in reports for finding in report.errors]:
            raise Fail(
                Exit.BAD_EVIDENCE,
                f"{target}: the copy does not verify",
                str(errors[0]),
                f"veen hub verify-data {source}",
                "E.VERIFY",
            )
        data["entries"] = sum(label.size for label in reports[0].labels.values())

    def human() -> None:
        click.echo(f"cloned {source} to {target}{' (verified)' if verify else ''}")
        if with_keys:
            click.echo("Both are the same hub now. Never run both: each would prove the other dishonest.", err=True)

    output.result(data, human)


@click.command()
@click.argument("source", type=DATA_DIR)
@click.argument("target", type=DATA_DIR)
@click.option("--upto", multiple=True, metavar="LABEL=SEQ", help="Keep only so much of a label; default: all of it.")
@click.option("--same-identity", is_flag=True, help="Disaster recovery only: go on under the keys of SOURCE.")
@output_options
def fork(output: Output, source: Path, target: Path, upto: tuple[str, ...], same_identity: bool) -> None:
    """Begin a new hub in TARGET from the log of SOURCE, whose hub must be stopped. Both verify afterwards.

    The new hub has keys and labels of its own; what it began with lies read-only beside its log and verifies under the
    old keys. Tokens must be authorised anew.
    """
    from veen.hub.forking import fork as fork_hub
    from veen.hub.opening import data_fs
    from veen.storage.identity import read_identity

    cuts = dict(_cut(text) for text in upto)
    with told("the hub cannot be forked"):
        fs = data_fs(target)
        origin = fork_hub(existing(source), fs, int(time.time()), cuts=cuts, same_identity=same_identity)
        identity = read_identity(fs)
    data = {
        "hub_pk": f"ed25519:{identity.current.hub_pk.hex()}",
        "hub_id": identity.hub_id.hex(),
        "origin_hub_id": origin.hub_id.hex(),
        "same_identity": same_identity,
        "labels": [head.to_json() for head in origin.heads],
    }

    def human() -> None:
        kept = sum(head.upto_seq for head in origin.heads)
        click.echo(f"forked {source} to {target}: kept {kept} entries of {len(origin.heads)} labels")
        output.fields([("hub_pk", str(data["hub_pk"])), ("hub_id", str(data["hub_id"]))])
        if same_identity:
            click.echo("SOURCE must never run again: its receipts beyond the prefix prove equivocation.", err=True)

    output.result(data, human)


def _cut(text: str) -> tuple[bytes, int]:
    label, _, seq = text.partition("=")
    try:
        found = bytes.fromhex(label)
        if len(found) != 32 or not seq.isdecimal():
            raise ValueError
    except ValueError as exc:
        raise click.UsageError(f"--upto {text}: expected a label in 64 hex digits, '=', and a number") from exc
    return found, int(seq)
