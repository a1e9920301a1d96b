"""Commands on a data directory: verify-data, rebuild-index, cut-tail, clone, fork."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from veen.cli.hub.common import ACCEPT_CLOCK, DATA_DIR, open_directory
from veen.cli.shared import options
from veen.cli.shared.command import CliSession, home_options
from veen.cli.shared.failures import failing_as
from veen.cli.shared.output import Output, output_options
from veen.cli.shared.pinning import PIN_HINT, PinnedKeys, pin_options, resolve_pin
from veen.cli.shared.verifying import end_by, show_verdict, verdict_json
from veen.core.verdict import Because, Coverage, Outcome, Reason, Signatures, StatedBy, Verdict

if TYPE_CHECKING:
    from veen.core.objects.identity import HubIdentity
    from veen.storage.findings import Level
    from veen.verify.directory import Report


@click.command("verify-data")
@click.argument("data_dir", type=DATA_DIR)
@click.option("--structure", is_flag=True, help="Do not verify signatures: much faster, but proves less.")
@click.option("--jobs", type=click.IntRange(min=1), help=f"{options.JOBS} Default: one per core.")
@pin_options
@home_options
def verify_data(
    output: Output,
    session: CliSession,
    data_dir: Path,
    structure: bool,
    jobs: int | None,
    pin: str | None,
    no_pin: bool,
) -> None:
    """Check every byte of DATA_DIR against what the hub signed; a fork together with its origin.

    The hub may run meanwhile, and no private key is needed. Whose log it is shows the pinned key: by default that of
    the context in use; without one the report begins with "keys not pinned".

    Exit code 1 means that evidence is bad; the output names where. Exit code 6 means that the verdict is incomplete:
    files are absent, the directory has no entries, files that are derived from the log (index, node store) are damaged,
    or the pin of the context in use is that of another hub. docs/verdicts.md explains what a verdict covers. With
    --structure no signature is verified, and the verdict says so: "good (structure only)".
    """
    check_data(output, data_dir, resolve_pin(session, pin, no_pin), structure=structure, jobs=jobs)


def check_data(
    output: Output, data_dir: Path, pinned: PinnedKeys, *, structure: bool = False, jobs: int | None = None
) -> None:
    """Run `hub verify-data`, and `verify` on a data directory."""
    from veen.hub.process.forking import verify_all

    with failing_as(f"{data_dir}: verification FAILED"), output.progress("verifying") as progress:
        level: Level = "structure" if structure else "full"
        reports = verify_all(
            open_directory(data_dir), level=level, pin=pinned.keys, progress=progress, jobs=jobs or os.cpu_count() or 1
        )
    findings = [finding for report in reports for finding in report.findings]
    verdict = verdict_of(reports, pinned, _read_identity(data_dir))
    data = {
        **pinned.to_json(),
        **verdict_json(verdict),
        "level": reports[0].level,
        "sections": [_section(report) for report in reports],
    }

    def human() -> None:
        output.line(pinned.line(), "warn" if pinned.keys is None else None)
        for finding in findings:
            output.line(str(finding))
        for number, report in enumerate(reports):
            where = "origin: " if number else ""
            entries, labels = sum(label.size for label in report.labels.values()), len(report.labels)
            output.line(f"{where}{labels} labels, {entries} entries, {report.counts.get('signatures', 0)} signatures")
        if structure:
            output.line("signatures were not verified: --structure", "warn")
        show_verdict(output, verdict)
        if verdict.is_good:
            output.line(f"{data_dir}: verified{verdict.level}", good=f": verified{verdict.level}")

    output.result(data, human)
    is_pin = any(finding.code == "pin" for finding in findings)
    hints = {
        Because.EVIDENCE: "keep the directory as evidence and restore from a replica or a clone",
        Because.DERIVED: f"veen hub rebuild-index {data_dir}",
    }
    if findings:
        hints[Because.COVERAGE] = (
            "copy the whole directory with `veen hub clone`, or bring what is absent; verify again"
        )
    first = verdict.first
    end_by(
        verdict,
        f"{data_dir}: verification FAILED" if verdict.value is Outcome.BAD else str(data_dir),
        code="E.VERIFY.PIN" if is_pin and verdict.value is Outcome.BAD else None,
        hint=PIN_HINT if is_pin else hints.get(first.because) if first else None,
    )


def verdict_of(
    reports: "Sequence[Report]", pinned: PinnedKeys | None, identity: "HubIdentity | None" = None
) -> Verdict:
    """Return the verdict over a directory and, in a fork, its origin. Their own files state their heads.

    `identity` is the one that the directory claims.
    """
    compared = [
        Coverage(
            log=f"origin {label.hex()}" if number else label.hex(),
            read=summary.read,
            head=summary.read if number else summary.head,  # a fork signs how far its origin goes
            stated_by=StatedBy.OWN_FILES,
            identity=None if number or pinned is None else pinned.identity,
            signatures=Signatures.ALL if report.level == "full" else Signatures.NONE,
        )
        for number, report in enumerate(reports)
        for label, summary in sorted(report.labels.items())
    ]
    errors = [finding for report in reports for finding in report.findings if finding.severity == "error"]
    errors.sort(key=lambda finding: finding.code != "pin")  # whose log it is comes before what is wrong with it
    reasons = []
    for finding in errors:
        text = f"{finding.path}, byte {finding.offset}: {finding.message}"
        if finding.code == "pin" and pinned is not None:
            reasons.append(pinned.reason(text, identity))
        else:
            reasons.append(Reason(finding.because, text))
    return Verdict.of(compared, reasons)


def _read_identity(data_dir: Path) -> "HubIdentity | None":
    from veen.core.errors import VeenError
    from veen.storage.keys.identity import read_identity

    try:
        return read_identity(open_directory(data_dir))
    except (VeenError, OSError):
        return None


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
            label.hex(): {"size": head.size, "mmr_root": head.root.hex() if head.root else None}
            for label, head in sorted(report.labels.items())
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
    from veen.hub.process.startup import Sealing
    from veen.storage.keys import identity as identities
    from veen.storage.keys.identity import MissingKeyError
    from veen.storage.maintenance.rebuild import rebuild_index as rebuild

    with failing_as(f"{data_dir}: the index cannot be rebuilt"), output.progress("rebuilding") as progress:
        fs = open_directory(data_dir)
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
        output.line(f"{data_dir}: made again from {rebuilt.entries} entries of {rebuilt.labels} labels")
        output.fields([("repaired", path) for path in rebuilt.repaired])
        output.fields([("missing", path) for path in rebuilt.missing])

    output.result(data, human)


@click.command("cut-tail")
@click.argument("data_dir", type=DATA_DIR)
@click.option("--yes", is_flag=True, help="Cut it. Default: only show what would be cut.")
@click.option("--no-receipt-left", is_flag=True, help="Confirm that no client got a receipt for an entry of the group.")
@click.option(
    "--compare",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    metavar="PATH",
    help="Replica or clone to compare with, or a file with a RECEIPT or CHECKPOINT. Repeatable.",
)
@output_options
def cut_tail(output: Output, data_dir: Path, yes: bool, no_receipt_left: bool, compare: tuple[Path, ...]) -> None:
    """Cut the last group of the journal of DATA_DIR after a power failure tore it. The hub must be stopped.

    Such a group stops a start. From the directory alone it cannot be told from a group that was acknowledged and
    damaged later, so the command shows for which entries receipts may exist. It cuts if you say --no-receipt-left, or
    if you --compare it with a replica, a clone, or what witnesses or clients kept, and nothing there is newer. If
    something is, the group was acknowledged and nothing is cut. What it cuts is kept in DATA_DIR/cut with a record.

    \b
    veen hub cut-tail ./hub
    veen hub cut-tail ./hub --yes --compare ./replica
    veen hub cut-tail ./hub --yes --no-receipt-left
    """
    from veen.storage.maintenance import cut_tail as cuttail

    with failing_as(f"{data_dir}: the end of the journal cannot be cut"):
        fs = open_directory(data_dir)
        with fs.lock():
            tail = cuttail.find_tail(fs)
            statements = [cuttail.read_statement(path) for path in compare]
            record = None
            if tail is not None and yes:
                now = int(time.time())
                record = cuttail.cut_tail(fs, tail, now, no_receipt_left=no_receipt_left, statements=statements)
    if tail is None:
        output.result({"torn": False, "cut": False}, lambda: output.line(f"{data_dir}: the journal is not torn"))
        return
    contradictions = [fault for statement in statements if (fault := tail.contradiction(statement)) is not None]
    data = {"torn": True, "cut": yes, "record": record, "contradictions": contradictions, **tail.to_json()}

    def human() -> None:
        what = "cut" if yes else "torn"
        output.line(
            f"{what}: the last {len(tail.data)} bytes of journal segment {tail.segment}, from byte {tail.offset} on"
        )
        output.line(f"{tail.unwritten} bytes of them read as zeros: they never reached the disk, or were damaged later")
        output.line("these two cannot be told apart; if they were damaged later, receipts exist for:", "warn")
        output.fields([("entry", f"{label.hex()} {seq}") for label, seq in tail.entries])
        output.line("  and for entries of any label that can no longer be read")
        for fault in contradictions:
            output.line(fault, "bad")
        if record is not None:
            output.fields([("record", str(data_dir / record)), ("bytes", str(data_dir / tail.name("bin")))])

    output.result(data, human)
    output.next(f"veen hub verify-data {data_dir}" if yes else f"veen hub cut-tail {data_dir} --yes --compare REPLICA")


@click.command()
@click.argument("source", type=DATA_DIR)
@click.argument("target", type=DATA_DIR)
@click.option("--with-keys/--without-keys", default=False, help="Copy the private keys, too. Required to run the copy.")
@click.option("--verify/--no-verify", default=True, help="Verify the copy afterwards.")
@pin_options
@home_options
def clone(
    output: Output,
    session: CliSession,
    source: Path,
    target: Path,
    with_keys: bool,
    verify: bool,
    pin: str | None,
    no_pin: bool,
) -> None:
    """Copy the hub in SOURCE to TARGET, also while it runs. Without keys the copy can be verified and read.

    The copy is checked against the pinned key: by default that of the context in use; without one the report begins
    with "keys not pinned".

    A copy with keys is the same hub. Never run both: each would sign another history, and anyone who sees two
    receipts for one position can prove it.
    """
    from veen.hub.process.forking import verify_all
    from veen.hub.process.startup import data_fs
    from veen.storage.copies import copying as outcomes

    pinned = resolve_pin(session, pin, no_pin)
    with failing_as("the hub cannot be cloned"):
        original = open_directory(source)
        outcomes.check_apart(source, target)
        copy = data_fs(target)
        at_rest = outcomes.clone(original, copy, with_keys=with_keys)
    data: dict[str, Any] = {"source_was_running": not at_rest, "with_keys": with_keys, "verified": verify}
    verdict = Verdict.of(())
    if verify:
        with failing_as(f"{target}: the copy does not verify"):
            reports = verify_all(copy, pin=pinned.keys)
        data.update(pinned.to_json())
        verdict = verdict_of(reports, pinned, _read_identity(target))
        if verdict.value is Outcome.BAD:
            end_by(verdict, f"{target}: the copy does not verify", hint=f"veen hub verify-data {source}")
        data |= {"verified": verdict.is_good, "verdict": verdict.to_json()}
        data["entries"] = sum(label.size for label in reports[0].labels.values())

    def human() -> None:
        if verify:
            output.line(pinned.line(), "warn" if pinned.keys is None else None)
            show_verdict(output, verdict)
        output.line(f"cloned {source} to {target}{' (verified)' if data['verified'] else ''}")
        if with_keys:
            output.say("Both are the same hub now. Never run both: each would prove the other dishonest.")

    output.result(data, human)


class _Cut(click.ParamType["tuple[bytes, int]"]):
    """A label in hex and the last position to keep of it: LABEL=SEQ."""

    name = "cut"

    def convert(
        self, value: "str | tuple[bytes, int]", param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[bytes, int]:
        if isinstance(value, tuple):
            return value
        label, _, seq = value.partition("=")
        try:
            label_bytes = bytes.fromhex(label)
        except ValueError:
            label_bytes = b""
        if len(label_bytes) != 32 or not seq.isdecimal():
            self.fail(f"{value}: expected a label in 64 hex digits, '=', and a number", param, ctx)
        return label_bytes, int(seq)


@click.command()
@click.argument("source", type=DATA_DIR)
@click.argument("target", type=DATA_DIR)
@click.option(
    "--upto", type=_Cut(), multiple=True, metavar="LABEL=SEQ", help="Last entry to keep of a label. Default: all."
)
@click.option("--same-identity", is_flag=True, help="Continue under the keys of SOURCE. For disaster recovery only.")
@ACCEPT_CLOCK
@output_options
def fork(
    output: Output,
    source: Path,
    target: Path,
    upto: tuple[tuple[bytes, int], ...],
    same_identity: bool,
    accept_clock: bool,
) -> None:
    """Begin a new hub in TARGET from the log of SOURCE, whose hub must be stopped. Both verify afterwards.

    The new hub has keys and labels of its own; what it began with lies read-only beside its log and verifies under the
    old keys. Tokens must be authorised anew.
    """
    from veen.hub.process.forking import fork as fork_hub
    from veen.hub.process.startup import data_fs
    from veen.storage.copies.copying import check_apart
    from veen.storage.keys.identity import read_identity

    cuts = dict(upto)
    with failing_as("the hub cannot be forked"):
        original = open_directory(source)
        check_apart(source, target)
        fs = data_fs(target)
        origin = fork_hub(
            original, fs, int(time.time()), cuts=cuts, same_identity=same_identity, accept_clock=accept_clock
        )
        identity = read_identity(fs)
    data = {
        "hub_pk": f"ed25519:{identity.current.hub_pk.hex()}",
        "hub_id": identity.hub_id.hex(),
        "origin_hub_id": origin.hub_id.hex(),
        "same_identity": same_identity,
        "labels": [head.to_json() for head in origin.heads],
    }

    def human() -> None:
        entries = sum(head.upto_seq for head in origin.heads)
        output.line(f"forked {source} to {target}: kept {entries} entries of {len(origin.heads)} labels")
        output.fields([("hub_pk", str(data["hub_pk"])), ("hub_id", str(data["hub_id"]))])
        if same_identity:
            output.say("SOURCE must never run again: its receipts beyond the prefix prove equivocation.")

    output.result(data, human)
