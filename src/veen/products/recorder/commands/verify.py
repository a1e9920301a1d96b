"""`veen recorder verify`: verifies the whole recorder, stream by stream and period by period (SDR-12)."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from veen.cli.shared.command import CliSession, client_options
from veen.cli.shared.entries import when
from veen.cli.shared.files import hex32
from veen.cli.shared.output import Output
from veen.cli.shared.verdicts import end_by, show_verdict

if TYPE_CHECKING:
    from veen.client.client import Client
    from veen.products.recorder.verify import RecorderReport

_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.option(
    "--admin",
    "admins",
    type=hex32,
    multiple=True,
    metavar="CLIENT_ID",
    help="Client id of the admin. Default: --identity. Repeatable.",
)
@click.option(
    "--continuity/--no-continuity", default=True, help="Check the positions of sources for gaps and repeats, or do not."
)
@click.option(
    "--report",
    "report_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the report to this file as JSON.",
)
@click.option(
    "--integrity-cert", "certificates", type=_FILE, multiple=True,
    help="Certificate (PEM) of an OpenTelemetry collector: check its audit.integrity.* signatures. Repeatable.",
)  # fmt: skip
@click.option(
    "--integrity-key-file", type=_FILE, help="Shared key (HMAC-SHA256, base64) for audit.integrity.* signatures."
)
@client_options
def verify(
    output: Output,
    session: CliSession,
    admins: tuple[bytes, ...],
    continuity: bool,
    report_file: Path | None,
    certificates: tuple[Path, ...],
    integrity_key_file: Path | None,
) -> None:
    """Read every stream of the recorder and compare it with every checkpoint; then check policy and continuity.

    Each period between two checkpoints is valid, invalid, missing or erased. Exit code 0 if everything up to the heads
    of the hub or the newest checkpoint was read and is valid; 1 if evidence is wrong or missing; 6 if there are
    findings about policy (mapping, producers, losses, silence), or if entries could not be read.

    \b
    veen recorder verify --identity recorder-admin
    """
    admin_ids = set(admins) or {key.client_id for key in session.keystore.identity.client_keys}
    ring = session.keystore.secrets.keyring
    integrity = None
    if certificates or integrity_key_file is not None:
        from veen.products.recorder.integrity import IntegrityKeys

        shared = None if integrity_key_file is None else integrity_key_file.read_bytes()
        integrity = IntegrityKeys.read([path.read_bytes() for path in certificates], shared)

    async def work(opened: "Client") -> "RecorderReport":
        from veen.products.recorder.roles import record_streams
        from veen.products.recorder.verify import verify as judge

        return await judge(
            opened,
            record_streams(ring),
            admins=admin_ids,
            now=int(time.time()),
            continuity=continuity,
            integrity=integrity,
        )

    with output.progress("reading all streams"):
        report = session.client().run(work)
    data, verdict = report.to_json(), report.verdict
    if report_file is not None:
        from json import dumps

        report_file.write_text(dumps(data, indent=2) + "\n")

    def human() -> None:
        rows = [
            (
                stream.stream, period.from_seq, period.to_seq,
                "-" if period.ts_from is None else when(period.ts_from),
                "-" if period.ts_to is None else when(period.ts_to),
                "open" if period.checkpoint is None else period.checkpoint, period.state, period.why or "",
            )
            for stream in report.streams
            for period in stream.periods
        ]  # fmt: skip
        output.table(("stream", "from", "to", "since", "until", "checkpoint", "state", "why"), rows)
        for finding in report.findings:
            output.line(f"{finding.code}  {finding.place}  {finding.what}", "warn")
        states = [period.state for stream in report.streams for period in stream.periods]
        counted = ", ".join(f"{states.count(state)} {state}" for state in ("valid", "invalid", "missing"))
        output.line(
            f"{counted} of {len(states)} periods; {len(report.findings)} findings; {report.checkpoints} checkpoints;"
            f" {report.signatures} signatures checked"
        )
        show_verdict(output, verdict)

    output.result(data, human)
    end_by(verdict, "the recorder")
