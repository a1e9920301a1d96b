"""`veen vesn`: verifies, shows, archives and mirrors logs of VESN, the predecessor of VEEN (002)."""

import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from veen.cli.lazy import LazyGroup
from veen.cli.shared.authority import CAP, authority
from veen.cli.shared.command import CliSession, client_options
from veen.cli.shared.files import hex32
from veen.cli.shared.names import STREAM
from veen.cli.shared.output import Exit, Fail, Output, output_options

if TYPE_CHECKING:
    from veen.products.vesn.logcheck import Trust
    from veen.products.vesn.objects import Equivocation
    from veen.products.vesn.portability import Report

_SET: Final = click.Path(exists=True, file_okay=False, path_type=Path)
_ANY: Final = click.Path(exists=True, path_type=Path)
_OTHER_COPY: Final = "compare with another copy of the set; keep this one as evidence"
_MAX_SHOWN: Final = 10
_HIDDEN: Final = ("routing_key",)  # a secret: the file contains it anyway, but terminals may be recorded

vesn = LazyGroup("vesn", help="Verify, archive and mirror logs of VESN, the predecessor of VEEN.")


def _trust_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of trusted keys and profiles to a command, as `trust`."""

    @wraps(command)
    def run(
        *args: Any,
        vesn_hub_pk: tuple[bytes, ...],  # `hub_pk` is the pin of the VEEN hub
        witness: tuple[bytes, ...],
        epoch_sec: tuple[int, ...],
        pad_block: tuple[int, ...],
        ignore: tuple[str, ...],
        **options: Any,
    ) -> Any:
        from veen.products.vesn.logcheck import SUPPORTED, Trust
        from veen.products.vesn.objects import Profile

        lengths = {profile.epoch_sec for profile in SUPPORTED} | set(epoch_sec)
        profiles = tuple(Profile(epoch_sec=length, pad_block=block) for length in lengths for block in {0, *pad_block})
        trust = Trust(hub_pks=vesn_hub_pk, witness_pks=witness, profiles=profiles, ignore=frozenset(ignore))
        return command(*args, trust=trust, **options)

    decorated: Callable[..., Any] = run
    for option in (
        click.option("--ignore", multiple=True, metavar="NAME", help="File to exclude from verification. Repeatable."),
        click.option(
            "--pad-block",
            type=click.IntRange(min=1, max=2**20),
            multiple=True,
            help="Padding block in bytes of another supported profile. Repeatable.",
        ),
        click.option(
            "--epoch-sec",
            type=click.IntRange(min=1),
            multiple=True,
            help="Epoch length in seconds of another supported profile; 0 and 60 are built in. Repeatable.",
        ),
        click.option(
            "--witness", type=hex32, multiple=True, help="Key of a witness of checkpoints, in hex. Repeatable."
        ),
        click.option(
            "--hub-pk",
            "vesn_hub_pk",
            type=hex32,
            multiple=True,
            required=True,
            help="Key of the VESN hub, in hex. Repeatable.",
        ),
    ):
        decorated = option(decorated)
    return decorated


@vesn.verb("verify", "Check a set or a stream of VESN: every file, every entry.")
@click.argument("path", type=_ANY)
@_trust_options
@click.option("--against", type=_SET, help="Another set of the same hub, to find contradicting signatures.")
@click.option(
    "--evidence",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the proof of a contradiction to this file.",
)
@output_options
def verify(output: Output, path: Path, trust: "Trust", against: Path | None, evidence: Path | None) -> None:
    """Verify the portability set in the directory PATH, or the NDJSON stream in the file PATH.

    Every record must have its canonical encoding, every signature must verify, and the receipts must fold into their
    roots. Exit code 1 means that something is wrong, 2 that something could not be checked.

    \b
    veen vesn verify ./old-log --hub-pk 8a88e3dd…
    veen vesn verify ./old-log --hub-pk 8a88e3dd… --against ./other-copy --evidence proof.cbor
    """
    from veen.products.vesn.files import DirectorySource, lines_of
    from veen.products.vesn.lines import verify_stream
    from veen.products.vesn.portability import conflicts, verify_set

    if against is not None and not path.is_dir():
        raise click.UsageError("--against compares two sets: PATH must be a directory")
    proofs: list[Equivocation] = []
    with output.progress("verifying"):
        if path.is_dir():
            with DirectorySource(path) as source:
                report = verify_set(source, trust)
                proofs += report.evidence
                if against is not None:
                    with DirectorySource(against) as other:
                        proofs += conflicts(source, other, trust.hub_pks)
        else:
            report = verify_stream(lines_of(path), trust)
    if proofs and evidence is not None:
        evidence.write_bytes(proofs[0].to_bytes())
    _show(output, path, report, {"equivocations": [proof.to_json() for proof in proofs]})
    if proofs:
        first = proofs[0].first
        raise Fail(
            "VESN.EQUIVOCATION",
            f"{path}: the hub signed two stories",
            f"label {first.label.hex()[:16]}…, stream_seq {first.stream_seq} has two different receipts",
            f"publish {evidence}" if evidence else "run it again with --evidence FILE, and publish the file",
        )
    _judge(path, report)


@vesn.verb("import", "Verify a set and keep it in an archive, with a report.")
@click.argument("directory", type=_SET)
@click.option("--to", "archive", type=click.Path(path_type=Path), required=True, help="Directory of the new archive.")
@_trust_options
@click.option("--allow-incomplete", is_flag=True, help="Import although some checks could not be made.")
@output_options
def import_(output: Output, directory: Path, archive: Path, trust: "Trust", allow_incomplete: bool) -> None:
    """Copy the set in DIRECTORY into an archive, verify the copy, and write a report beside it.

    Nothing is left behind if the set fails. Importing the same set again changes nothing.

    \b
    veen vesn import ./old-log --to ./archive --hub-pk 8a88e3dd…
    """
    from veen.products.vesn.files import SetRefused, import_set

    try:
        with output.progress("importing"):
            imported = import_set(directory, archive, trust, allow_incomplete=allow_incomplete)
    except SetRefused as exc:
        _show(output, directory, exc.report, {"imported": False})
        _judge(directory, exc.report, "nothing was imported")
        raise
    done = "has this set already" if imported.existed else "imported"
    _show(output, archive, imported.report, {"imported": True, "existed": imported.existed}, done)


@vesn.verb("inspect", "Show the contents of a set or a file. No keys needed.")
@click.argument("path", type=_ANY)
@output_options
def inspect(output: Output, path: Path) -> None:
    """Show the contents of the set in the directory PATH, or every record of the file PATH. Nothing is verified.

    \b
    veen vesn inspect ./old-log
    veen vesn inspect ./old-log/receipts.cborl --ndjson
    """
    from veen.products.vesn.files import DirectorySource
    from veen.products.vesn.lines import records_of, summary_of

    if not path.is_dir():
        with DirectorySource(path.parent) as source, output.records("records", ("kind", "fields")) as records:
            for record in records_of(source, path.name):
                shown = {name: value for name, value in record.to_json().items() if name not in _HIDDEN}
                fields = "  ".join(f"{name} {str(value)[:16]}" for name, value in shown.items())
                records.add({"kind": record.KIND, **shown}, (record.KIND, fields))
        return
    with DirectorySource(path) as source, output.progress("reading"):
        summary = summary_of(source)

    def human() -> None:
        output.table(("file", "bytes", "records", "kinds"), summary.rows())
        for log in summary.logs:
            output.line(f"label {log['label']}  entries {log['first_seq']} to {log['last_seq']}")
        for problem in summary.problems:
            output.line(problem)

    output.result(summary.to_json(), human)


@vesn.verb("mirror", "Write a record of every entry of a set into a stream.")
@click.argument("directory", type=_SET)
@click.argument("stream", type=STREAM)
@_trust_options
@CAP
@client_options
def mirror(output: Output, session: CliSession, directory: Path, stream: str, trust: "Trust", cap: Path | None) -> None:
    """Verify the set in DIRECTORY, then write a federation.mirror.v1 record of each of its entries into STREAM.

    Entries that the stream has already are left out, so a run that was stopped is simply started again. Needs the read
    key of STREAM. Nothing is sent unless the whole set verifies.

    \b
    veen vesn mirror ./old-log mirrors --hub-pk 8a88e3dd…
    """
    from veen.products.vesn.files import DirectorySource, Spool
    from veen.products.vesn.mirror import mirror as run_mirror
    from veen.products.vesn.mirror import source_identifier
    from veen.products.vesn.portability import verify_set

    with Spool() as spool:
        with output.progress("verifying"), DirectorySource(directory) as source:
            report = verify_set(source, trust, on_receipt=spool.write)
        _judge(directory, report, "nothing was sent")
        token = authority(session, stream, cap)
        with output.progress("sending"):
            mirrored = session.client().run(
                lambda client: run_mirror(
                    client,
                    stream,
                    spool,
                    hub_pks=trust.hub_pks,
                    now=lambda: int(time.time()),
                    capability=token,
                )
            )
    session.remember_stream(stream)
    data = {
        "source_hub_identifier": source_identifier(trust.hub_pks[0]),
        "stream": stream,
        "entries": report.receipts,
        "sent": mirrored.sent,
        "existed": mirrored.existed,
        "unreadable": mirrored.unreadable,
        "first_seq": mirrored.first_seq,
        "last_seq": mirrored.last_seq,
    }

    def human() -> None:
        output.line(f"mirrored {mirrored.sent} entries into {stream}; {mirrored.existed} were there already")
        output.fields((name, value) for name, value in data.items() if value is not None)

    if mirrored.unreadable:
        output.note(f"{mirrored.unreadable} entries of {stream} could not be opened, and were not taken for records")
    output.result(data, human)


def _show(output: Output, path: Path, report: "Report", more: dict[str, Any], done: str = "") -> None:
    """Print the report, whatever the verdict."""
    document = {**report.to_json(), **more}

    def human() -> None:
        output.line(f"{path}: {', '.join(filter(None, (done, report.verdict)))}")
        output.fields(
            (name, document[name]) for name in ("receipts", "messages", "checkpoints", "tokens", "attachments")
        )
        for log in report.logs:
            output.line(f"  label {log.label.hex()[:16]}…  entries {log.first_seq} to {log.last_seq}")
        for finding in report.findings[:_MAX_SHOWN]:
            output.line(f"  finding  {finding}")
        if len(report.findings) > _MAX_SHOWN:
            output.line(f"  and {len(report.findings) - _MAX_SHOWN} more findings: --json lists them")
        for text in report.missing:
            output.line(f"  not judged  {text}")
        for text in report.notes:
            output.line(f"  note  {text}")

    output.result(document, human)


def _judge(path: Path, report: "Report", consequence: str = "") -> None:
    """Raise Fail unless the verdict is good."""
    then = f"; {consequence}" if consequence else ""
    if report.verdict == "failed":
        first = report.findings[0]
        raise Fail(
            first.code, f"{path}: verification FAILED{then}", str(first), _OTHER_COPY, exit_code=Exit.BAD_EVIDENCE
        )
    if report.verdict == "incomplete":
        raise Fail(
            "VESN.INCOMPLETE",
            f"{path}: not everything could be judged{then}",
            report.missing[0],
            "give what is missing, or name with --ignore what shall not be judged",
        )
