"""`veen audit`: checks that a log is the one its hub signed, from the first entry to the last."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from veen.cli.lazy import LazyGroup
from veen.cli.shared import options
from veen.cli.shared.bulk import ENGINE, MASTER, PARTITIONS, LogPlace, log_options, spark_at_work
from veen.cli.shared.command import CliSession, client_options, home_options
from veen.cli.shared.connecting import POLICY, read_policy_file
from veen.cli.shared.failures import failing_as
from veen.cli.shared.files import hex32
from veen.cli.shared.output import Fail, Output, output_options
from veen.cli.shared.pinning import PinnedKeys, bad_directory, pin_options, resolve_pin
from veen.cli.shared.verifying import end_by, show_verdict, verdict_json
from veen.core.verdict import Because, Outcome, Reason

if TYPE_CHECKING:
    from veen.core.objects.identity import HubIdentity
    from veen.core.objects.profile import Profile
    from veen.core.objects.trusted_root import TrustedKeys
    from veen.lake.spark.progress import Tell
    from veen.verify.audit.engine import AuditEngine
    from veen.verify.audit.report import ReportContext
    from veen.verify.audit.run import LabelResult

_DIRECTORY = click.Path(path_type=Path, file_okay=False)
_IDENTITY = click.Path(path_type=Path, exists=True)
_KEEP: Final = "keep the directory as evidence and compare it with a replica or a clone: `veen audit diff A B`"

_COMPARE: Final = "bring the shorter copy up to date, or repair what cannot be read (veen audit run), and compare again"

audit = LazyGroup(
    "audit",
    help="""Audit a log: on one machine or on a Spark cluster, with the same result to the byte.

    Exit code 1 means that the evidence is bad, and nothing else. 6: the verdict is incomplete. Less was compared than
    there is, a policy asks for more, or files that follow from the log are damaged; the verdict says which.
    """,
)


_ENGINE: Final = log_options(
    PARTITIONS,
    MASTER,
    click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True,
                 help=f"{options.JOBS} For the python engine."),
    ENGINE,
)  # fmt: skip


@audit.verb("run", "Check every entry of a log, and the hub's records about it.")
@click.argument("data_dir", required=False)
@click.option("--data-dir", "named", help="DATA_DIR, by name.")
@_ENGINE
@click.option(
    "--level",
    type=click.Choice(["full", "sampled", "structure"]),
    default="full",
    show_default=True,
    help="Signatures to verify: all, a sample, or none.",
)
@click.option("--sample", type=click.IntRange(0, 1_000_000), help="Entries of a million to sample. Default: 62500.")
@click.option("--seed", default="", help="Seed of the sample.")
@click.option("--label", "labels", type=hex32, multiple=True, help="Only this label. Repeatable.")
@click.option(
    "--profile", "profiles", multiple=True, help="Profile of the hub: a name, or EPOCH_SEC,PAD_BLOCK. Repeatable."
)
@options.keep_former("--hub-identity", "identity", former="--identity", type=_IDENTITY, help=options.HUB_IDENTITY)
@click.option("--root-pk", type=hex32, help="Offline key that signed the identity, in hex.")
@pin_options
@click.option("--chunks-only", is_flag=True, help="DATA_DIR has only chunks. Do not check authority.")
@options.keep_former(
    "--witness-policy", "policy", former="--policy", type=POLICY, metavar="FILE", help=options.WITNESS_POLICY
)
@options.keep_former(
    "--earlier",
    "since",
    former="--since",
    type=_DIRECTORY,
    help=options.EARLIER,
)
@click.option("--out", type=_DIRECTORY, help="Directory to write verdict, tables and report.html to.")
@home_options
def run(
    output: Output,
    session: CliSession,
    data_dir: str | None,
    named: str | None,
    place: LogPlace,
    level: str,
    sample: int | None,
    seed: str,
    labels: tuple[bytes, ...],
    profiles: tuple[str, ...],
    identity: Path | None,
    root_pk: bytes | None,
    pin: str | None,
    no_pin: bool,
    chunks_only: bool,
    policy: Path | None,
    since: Path | None,
    out: Path | None,
) -> None:
    """Check the log in DATA_DIR, a path or a URL such as s3://bucket/hub. A hub may write to it meanwhile.

    Whose log it is shows the pinned key: by default that of the context in use; without one the report begins with
    "keys not pinned".

    Every hash and every root is checked. Of the signatures, full verifies all, sampled a sample, structure none.

    \b
    veen audit run ./hub --out ./audit-1
    veen audit run ./hub --earlier ./audit-1 --out ./audit-2
    veen audit run ./hub --engine python --jobs 4 --json
    veen audit run ./hub --engine python --witness-policy witnesses.policy
    """
    from veen.verify.audit import AuditOptions, Previous
    from veen.verify.audit import audit as judge
    from veen.verify.audit.report import document, lines, write

    if (data_dir is None) == (named is None):
        raise click.UsageError("give DATA_DIR, once")
    path = data_dir or named or ""
    if "://" not in path and not Path(path).is_dir():
        raise click.UsageError(f"{path}: there is no such directory")
    with failing_as(f"{path}: the audit cannot be made"), output.progress("auditing") as progress:
        keys, reservations = _resolve_keys(path, resolve_pin(session, pin, no_pin))
        options = AuditOptions(
            level=level,  # type: ignore[arg-type]  # click.Choice allows no other
            sample_per_million=62_500 if sample is None else sample,
            seed=seed,
            labels=frozenset(labels) or None,
            profiles=tuple(map(_profile, profiles)) or None,
            identity=_identity(identity),
            root_pk=root_pk,
            pin=keys,
            chunks_only=chunks_only,
            policy=None if policy is None else read_policy_file(policy),
        )
        earlier = Previous.read(since) if since else None
        with _engine(place.choose_engine(output, path), progress) as (chosen, tell):
            result = judge(path, options, engine=chosen, since=earlier, progress=tell)
        result = replace(result, reservations=reservations)
        verdict = write(result, out, _report_context(result.hub_id, result.labels)) if out else document(result)
    _show(output, verdict, lines)
    if out:
        output.next(f"veen audit summary {out}")
    _end(path, verdict)


def _resolve_keys(uri: str, pinned: PinnedKeys) -> "tuple[TrustedKeys | None, tuple[Reason, ...]]":
    """Return the keys that a directory is verified under, and reservations for the verdict.

    A pin that the context in use implies is meant for its hub. The directory of another hub is verified under the keys
    that it names itself, and the verdict says so.
    """
    from veen.core.errors import VeenError
    from veen.io.places import open_place
    from veen.storage.keys.identity import read_identity

    if pinned.keys is None or pinned.is_given or pinned.keys.root_pk is not None:  # a root signs any number of hubs
        return pinned.keys, ()
    try:
        identity = read_identity(open_place(uri), key_map=False)
    except (VeenError, OSError):
        return pinned.keys, ()
    if (fault := pinned.keys.fault(identity, ())) is None:
        return pinned.keys, ()
    reason = pinned.reason(fault, identity)
    return (None, (reason,)) if reason.because is Because.COVERAGE else (pinned.keys, ())


def _report_context(hub_id: bytes | None, labels: "Sequence[LabelResult]") -> "ReportContext":
    """Return time, version and command of the audit, and names of streams that were used on this machine."""
    import shlex
    import sys
    from datetime import UTC, datetime

    from veen import __version__
    from veen.cli.shared.names import streams
    from veen.client.errors import ClientError
    from veen.client.identity.keyring import StreamRef
    from veen.core.labels import label_of, routing_key_of
    from veen.verify.audit.report import ReportContext

    names: dict[bytes, str] = {}
    epochs = {label.epoch or 0 for label in labels}
    for name in streams() if hub_id is not None else ():
        try:
            stream_id = StreamRef.parse(name).stream_id
        except ClientError:
            continue
        if stream_id is not None and hub_id is not None:
            names |= {label_of(routing_key_of(hub_id), stream_id, epoch): name for epoch in epochs}
    return ReportContext(
        made_at=datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        version=f"veen {__version__}",
        command=shlex.join(["veen", *sys.argv[1:]]),
        names=names,
    )


def _show(output: Output, summary: dict[str, Any], lines: Any) -> None:
    from veen.verify.audit.report import verdict_of

    verdict = verdict_of(summary)

    def human() -> None:
        for line in lines(summary):
            output.line(line, good="the evidence is good", bad="the evidence is BAD")
        show_verdict(output, verdict)

    output.result({**summary, **verdict_json(verdict)}, human)


def _end(what: str, summary: dict[str, Any]) -> None:
    from veen.verify.audit.report import verdict_of

    verdict, findings = verdict_of(summary), summary["findings"]
    if verdict.value is Outcome.BAD and findings["first"]:
        first = findings["first"][0]
        entry = "" if first["stream_seq"] is None else f"entry {first['stream_seq']}: "
        cause = f"{first['path']}, byte {first['offset']}: {entry}{first['message']}"
        raise bad_directory(first["code"], f"{what}: the evidence is BAD", cause, _KEEP)
    derived = verdict.first is not None and verdict.first.because is Because.DERIVED
    end_by(verdict, what, hint=f"veen hub rebuild-index {what}" if derived else None)


@contextmanager
def _engine(place: LogPlace, progress: "Tell") -> Iterator[tuple["AuditEngine", "Tell"]]:
    """Provide the engine, and a function for its progress."""
    if place.engine == "python":
        from veen.verify.audit import ProcessesEngine

        yield ProcessesEngine(place.jobs), progress
        return
    with spark_at_work("veen audit", place.master, progress, log_bytes=place.log_bytes) as (session, tell):
        from veen.lake.spark.audit import SparkEngine

        yield SparkEngine(session, place.partitions), tell


def _identity(path: Path | None) -> "HubIdentity | None":
    from veen.core.errors import VeenError
    from veen.core.objects.identity import HubIdentity

    try:
        return None if path is None else HubIdentity.from_bytes(path.read_bytes())
    except VeenError as exc:
        raise click.UsageError(f"--hub-identity {path}: {exc}") from exc


def _profile(text: str) -> "Profile":
    from veen.core.objects.profile import PRESETS, Profile

    if text in PRESETS:
        return PRESETS[text]
    epoch_sec, _, pad_block = text.partition(",")
    if not epoch_sec.isdecimal() or not pad_block.isdecimal():
        raise click.UsageError(f"--profile {text}: expected {', '.join(PRESETS)}, or two numbers such as 3600,256")
    return Profile(epoch_sec=int(epoch_sec), pad_block=int(pad_block))


@audit.verb("summary", "Show the verdict of an earlier audit.")
@click.argument("audit_dir", type=_DIRECTORY)
@output_options
def summary(output: Output, audit_dir: Path) -> None:
    """Show the verdict that `veen audit run --out AUDIT_DIR` left; exit code 1 if it was bad, 6 if incomplete.

    A verdict by an earlier version does not say what was compared. Unless it was bad it is shown as incomplete.
    """
    from veen.verify.audit import Previous
    from veen.verify.audit.report import lines

    with failing_as(f"{audit_dir}: cannot be shown"):
        verdict = dict(Previous.read(audit_dir).verdict)
    _show(output, verdict, lines)
    _end(str(audit_dir), verdict)


@audit.verb("copy", "Check the copy of a hub that queries and tables read, and repair it.")
@click.option("--repair", is_flag=True, help="Fetch missing and damaged entries from the hub again.")
@client_options
def copy(output: Output, session: CliSession, repair: bool) -> None:
    """Check the copy of the hub's entries in your home, which tables and queries of a hub by its address read.

    Every entry must be as the hub signed it, and none may be missing up to the head that the hub names now, except
    those that the hub has erased. Copies by earlier versions may have holes: --repair asks for them. Tables that were
    loaded from a copy with holes are to be loaded again.

    \b
    veen audit copy --hub https://hub.example
    veen audit copy --hub https://hub.example --repair
    """
    from veen.cli.shared.bulk import copies_of, hub_address, unwrap_failures
    from veen.lake.log.hub_copy import check_copy

    with output.progress("checking the copy"), unwrap_failures():
        check = check_copy(hub_address(session), copies_of(session), repair=repair)
    data = {
        **verdict_json(check.verdict),
        "directory": check.directory,
        "holes": [
            {"label": label.hex(), "first": first, "last": last}
            for label, spans in sorted(check.holes.items())
            for first, last in spans
        ],
        "damaged": [{"path": path, "reason": reason} for path, reason in sorted(check.damaged.items())],
    }

    def human() -> None:
        output.line(f"copy\t{check.directory}")
        for hole in data["holes"]:
            output.line(f"missing\tentries {hole['first']} to {hole['last']} of label {hole['label']}", "bad")
        for file in data["damaged"]:
            output.line(f"damaged\t{file['path']}: {file['reason']}", "bad")
        show_verdict(output, check.verdict)

    output.result(data, human)
    end_by(check.verdict, check.directory, hint=None if repair else "veen audit copy --repair")


@audit.verb("diff", "Compare two directories of one hub for equivocation.")
@click.argument("one")
@click.argument("other")
@options.keep_former("--hub-identity", "identity", former="--identity", type=_IDENTITY, help=options.HUB_IDENTITY)
@click.option("--out", type=_DIRECTORY, help="Directory to write the evidence to.")
@pin_options
@home_options
def diff(
    output: Output,
    session: CliSession,
    one: str,
    other: str,
    identity: Path | None,
    out: Path | None,
    pin: str | None,
    no_pin: bool,
) -> None:
    """Compare the directories ONE and OTHER of one hub, as far as both go; hubs may write to them meanwhile.

    The verdict is good if both have the same history up to the greatest head that either speaks of. What only one of
    them has, or what cannot be read, was not compared: then the verdict is incomplete, exit code 6.

    Two receipts by the hub for one position prove that it told two stories; anybody can check the evidence:
    veen verify EVIDENCE.
    """
    from veen.verify.audit.equivocation import compare

    pinned = resolve_pin(session, pin, no_pin)
    with failing_as("the directories cannot be compared"), output.progress("comparing"):
        keys, reservations = _resolve_keys(one, pinned)
        comparison = compare(one, other, _identity(identity), trusted=keys)
        comparison = replace(comparison, reservations=reservations)
        names = []
        for proof in comparison.proven:
            if out is not None:
                from veen.io.local import OsFs

                out.mkdir(parents=True, exist_ok=True)
                OsFs(out).replace(proof.file_name, proof.evidence.to_bytes())
                names.append(str(out / proof.file_name))
    data = {
        **pinned.to_json(),
        **verdict_json(comparison.verdict),
        "hub_id": comparison.hub_id.hex(),
        "common": {label.hex(): size for label, size in comparison.common.items()},
        "equivocations": [
            {"label": proof.label.hex(), "stream_seq": proof.stream_seq, "evidence": proof.evidence.to_bytes().hex()}
            for proof in comparison.proven
        ],
        "evidence": names,
        "findings": [str(finding) for finding in comparison.findings],
    }

    def human() -> None:
        output.line(pinned.line(), "warn" if pinned.keys is None else None)
        compared = sum(comparison.common.values())
        output.line(f"{compared} positions of {len(comparison.common)} labels are the same in both directories")
        for proof in comparison.proven:
            output.line(f"EQUIVOCATION at entry {proof.stream_seq} of label {proof.label.hex()}", "bad")
        for name in names:
            output.line(f"evidence\t{name}")
        for finding in comparison.findings:
            output.line(str(finding))
        show_verdict(output, comparison.verdict)

    output.result(data, human)
    if faults := [finding.message for finding in comparison.findings if finding.code == "pin"]:
        raise bad_directory("pin", "the directories are another hub's", faults[0], _KEEP)
    if comparison.verdict.value is Outcome.BAD:
        raise Fail(
            "E.VERIFY",
            "the directories tell two stories",
            f"{len(comparison.proven)} proven equivocations, {len(comparison.findings)} other differences",
            "keep both directories; anybody can check the evidence: `veen verify EVIDENCE.cbor`",
        )
    end_by(comparison.verdict, "the directories", hint=_COMPARE)
