"""`veen audit`: is this log what its hub signed, from the first entry to the last?"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click

from veen.cli.failures import told as telling
from veen.cli.files import hex32
from veen.cli.lazy import LazyGroup, Table
from veen.cli.output import Exit, Fail, Output, output_options
from veen.cli.sparkwork import spark_at_work

if TYPE_CHECKING:
    from veen.core.hubkeys import HubIdentity
    from veen.core.profile import Profile
    from veen.pipeline.audit.engine import Engine
    from veen.pipeline.progress import Tell

__all__ = ["audit", "diff", "run", "summary"]

_DIRECTORY = click.Path(path_type=Path, file_okay=False)


class _Audit(LazyGroup):
    table: ClassVar[Table] = {
        "run": ("veen.cli.audit:run", "Check every entry of a log, and what the hub left about it."),
        "summary": ("veen.cli.audit:summary", "Show the verdict of an earlier audit."),
        "diff": ("veen.cli.audit:diff", "Compare two directories of one hub: did it tell two stories?"),
    }


@click.group(cls=_Audit)
def audit() -> None:
    """Audit a log: on one machine or on a Spark cluster, with the same result to the byte.

    Exit code 1 means that the evidence is bad, and nothing else. 6: the log is good, but files that follow from it
    are not.
    """


def _engine_options(command: Any) -> Any:
    for option in (
        click.option(
            "--engine", type=click.Choice(["spark", "python"]), default="spark", show_default=True,
            help="python: one process, neither Spark nor Java.",
        ),
        click.option("--master", help="The Spark master; default: all cores of this machine."),
        click.option("--partitions", type=click.IntRange(min=1), help="How many tasks; default: by size."),
    ):  # fmt: skip
        command = option(command)
    return command


@click.command("run")
@click.argument("data_dir", required=False)
@click.option("--data-dir", "named", help="The same, by name.")
@_engine_options
@click.option(
    "--level",
    type=click.Choice(["full", "sampled", "structure"]),
    default="full",
    show_default=True,
    help="How many signatures are verified: all, a sample, none.",
)
@click.option("--sample", type=click.IntRange(0, 1_000_000), help="Of a million entries, how many are in a sample.")
@click.option("--seed", default="", help="Chooses another sample.")
@click.option("--label", "labels", type=hex32, multiple=True, help="Only this label. Repeatable.")
@click.option(
    "--profile", "profiles", multiple=True, help="A profile the hub supports: a name, or EPOCH_SEC,PAD_BLOCK."
)
@click.option("--identity", type=click.Path(path_type=Path, exists=True), help="hub-identity.json from elsewhere.")
@click.option("--root-pk", type=hex32, help="The offline key that signed the identity.")
@click.option("--chunks-only", is_flag=True, help="DATA_DIR was given nothing but chunks; authority is not checked.")
@click.option("--since", type=_DIRECTORY, help="Go on from what an earlier audit left by --out.")
@click.option("--out", type=_DIRECTORY, help="Leave verdict, tables and report.html in this directory.")
@output_options
def run(
    output: Output,
    data_dir: str | None,
    named: str | None,
    engine: str,
    master: str | None,
    partitions: int | None,
    level: str,
    sample: int | None,
    seed: str,
    labels: tuple[bytes, ...],
    profiles: tuple[str, ...],
    identity: Path | None,
    root_pk: bytes | None,
    chunks_only: bool,
    since: Path | None,
    out: Path | None,
) -> None:
    """Check the log in DATA_DIR, a path or a URL such as s3://bucket/hub. A hub may write to it meanwhile.

    Every hash and every root is checked. Of the signatures, full verifies all, sampled a sample, structure none.

    \b
    veen audit run ./hub --out ./audit-1
    veen audit run ./hub --since ./audit-1 --out ./audit-2
    veen audit run ./hub --engine python --json
    """
    from veen.pipeline.audit import AuditOptions, Previous
    from veen.pipeline.audit import audit as judge
    from veen.pipeline.audit.report import document, lines, write

    if (data_dir is None) == (named is None):
        raise click.UsageError("give DATA_DIR, once")
    place = data_dir or named or ""
    if "://" not in place and not Path(place).is_dir():
        raise click.UsageError(f"{place}: there is no such directory")
    with telling(f"{place}: the audit cannot be made"), output.progress("auditing") as progress:
        options = AuditOptions(
            level=level,  # type: ignore[arg-type]  # click.Choice allows no other
            sample_per_million=62_500 if sample is None else sample,
            seed=seed,
            labels=frozenset(labels) or None,
            profiles=tuple(map(_profile, profiles)) or None,
            identity=_identity(identity),
            root_pk=root_pk,
            chunks_only=chunks_only,
        )
        earlier = Previous.read(since) if since else None
        with _engine(engine, master, partitions, progress) as (chosen, tell):
            result = judge(place, options, engine=chosen, since=earlier, progress=tell)
        told = write(result, out) if out else document(result)
    _show(output, told, lines)
    if out:
        output.next(f"veen audit summary {out}")
    _end(place, told)


def _show(output: Output, told: dict[str, Any], lines: Any) -> None:
    def human() -> None:
        for line in lines(told):
            output.line(line)

    output.result(told, human)


def _end(what: str, told: dict[str, Any]) -> None:
    found = told["findings"]
    if not told["ok"]:
        first = found["first"][0]
        entry = "" if first["stream_seq"] is None else f"entry {first['stream_seq']}: "
        raise Fail(
            Exit.BAD_EVIDENCE,
            f"{what}: the evidence is BAD",
            f"{first['path']}, byte {first['offset']}: {entry}{first['message']}",
            "keep the directory as evidence and compare it with a replica or a clone: `veen audit diff A B`",
            "E.VERIFY",
        )
    if found["codes"].get("rebuildable"):
        raise Fail(
            Exit.POLICY,
            f"{what}: the log is good, but what is derived from it is not",
            next(one["message"] for one in found["first"] if one["code"] == "rebuildable"),
            f"veen hub rebuild-index {what}",
            "E.INDEX",
        )


@contextmanager
def _engine(
    name: str, master: str | None, partitions: int | None, progress: "Tell"
) -> Iterator[tuple["Engine", "Tell"]]:
    """Who does the work, and whom to tell about it."""
    if name == "python":
        from veen.pipeline.audit import PythonEngine

        yield PythonEngine(), progress
        return
    with spark_at_work("veen audit", master, progress) as (session, tell):
        from veen.pipeline.audit.spark import SparkEngine

        yield SparkEngine(session, partitions), tell


def _identity(path: Path | None) -> "HubIdentity | None":
    from veen.core.errors import VeenError
    from veen.core.hubkeys import HubIdentity

    try:
        return None if path is None else HubIdentity.from_bytes(path.read_bytes())
    except VeenError as exc:
        raise click.UsageError(f"--identity {path}: {exc}") from exc


def _profile(text: str) -> "Profile":
    from veen.core.profile import PRESETS, Profile

    if text in PRESETS:
        return PRESETS[text]
    epoch_sec, _, pad_block = text.partition(",")
    if not epoch_sec.isdecimal() or not pad_block.isdecimal():
        raise click.UsageError(f"--profile {text}: expected {', '.join(PRESETS)}, or two numbers such as 3600,256")
    return Profile(epoch_sec=int(epoch_sec), pad_block=int(pad_block))


@click.command()
@click.argument("audit_dir", type=_DIRECTORY)
@output_options
def summary(output: Output, audit_dir: Path) -> None:
    """Show the verdict that `veen audit run --out AUDIT_DIR` left; exit code 1 if it was bad."""
    from veen.pipeline.audit import Previous
    from veen.pipeline.audit.report import lines

    with telling(f"{audit_dir}: cannot be shown"):
        told = dict(Previous.read(audit_dir).verdict)
    _show(output, told, lines)
    _end(str(audit_dir), told)


@click.command()
@click.argument("one")
@click.argument("other")
@click.option("--identity", type=click.Path(path_type=Path, exists=True), help="hub-identity.json from elsewhere.")
@click.option("--out", type=_DIRECTORY, help="Leave the evidence in this directory.")
@output_options
def diff(output: Output, one: str, other: str, identity: Path | None, out: Path | None) -> None:
    """Compare the directories ONE and OTHER of one hub, as far as both go.

    Two receipts by the hub for one position prove that it told two stories; anybody can check the evidence:
    veen verify EVIDENCE.
    """
    from veen.pipeline.audit.equivocation import compare

    with telling("the directories cannot be compared"), output.progress("comparing"):
        made = compare(one, other, _identity(identity))
        names = []
        for proof in made.proven:
            if out is not None:
                from veen.storage.fs import OsFs

                out.mkdir(parents=True, exist_ok=True)
                OsFs(out).replace(proof.file_name, proof.evidence.to_bytes())
                names.append(str(out / proof.file_name))
    data = {
        "ok": made.ok,
        "hub_id": made.hub_id.hex(),
        "common": {label.hex(): size for label, size in made.common.items()},
        "equivocations": [
            {"label": proof.label.hex(), "stream_seq": proof.stream_seq, "evidence": proof.evidence.to_bytes().hex()}
            for proof in made.proven
        ],
        "evidence": names,
        "findings": [str(found) for found in made.findings],
    }

    def human() -> None:
        output.line(f"{len(made.common)} labels and {sum(made.common.values())} positions are in both directories")
        for proof in made.proven:
            output.line(f"EQUIVOCATION at entry {proof.stream_seq} of label {proof.label.hex()}", "bad")
        for name in names:
            output.line(f"evidence\t{name}")
        for found in made.findings:
            output.line(str(found))

    output.result(data, human)
    if not made.ok:
        raise Fail(
            Exit.BAD_EVIDENCE,
            "the directories tell two stories",
            f"{len(made.proven)} proven equivocations, {len(made.findings)} other differences",
            "keep both directories; anybody can check the evidence: `veen verify EVIDENCE.cbor`",
            "E.VERIFY",
        )
