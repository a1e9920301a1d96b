"""`veen monitor`: reads the outer logs of hubs and finds contradictions."""

import contextlib
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from veen.cli.shared.command import CliSession, client_options
from veen.cli.shared.connecting import POLICY, open_session, read_policy_file
from veen.cli.shared.output import Fail, Output
from veen.cli.shared.verifying import end_by, show_verdict, verdict_json
from veen.core.verdict import Because, Coverage, Reason, StatedBy, Verdict

if TYPE_CHECKING:
    from veen.client.session import HubSession
    from veen.core.tlog.policy import WitnessPolicy
    from veen.products.witness.monitor import Monitor, MonitorFinding

_DIRECTORY: Final = click.Path(file_okay=False, path_type=Path)


@click.command()
@click.argument("urls", nargs=-1, metavar="[URL]...")
@click.option(
    "--state", type=_DIRECTORY, help="Directory for state between runs. Default: none; each run reads from the start."
)
@click.option("--every", type=click.IntRange(min=1), default=60, show_default=True, help="Seconds between two polls.")
@click.option("--once", is_flag=True, help="Poll once and exit.")
@click.option("--policy", type=POLICY, help="Witness policy that notes must satisfy.")
@click.option(
    "--evidence", type=_DIRECTORY, help="Directory for convictions. Default: --state, or the current directory."
)
@client_options
def monitor(
    output: Output,
    session: CliSession,
    urls: tuple[str, ...],
    state: Path | None,
    every: int,
    once: bool,
    policy: Path | None,
    evidence: Path | None,
) -> None:
    """Read every leaf of the outer log of the hub, or of all copies of it at the URLs, and compare them: two
    checkpoints of one label and position with different roots, both signed by the hub, are written as a conviction
    of at most 512 bytes. All URLs are held to one pin. Ends with exit code 1 when something was found. With --once a
    source that does not answer a question about a position of another source is exit code 6.

    \b
    veen monitor --once
    veen monitor https://hub.example https://copy.example --state ./monitor --every 60 --policy witnesses.policy
    """
    import asyncio

    for url in urls:
        if not url.startswith(("http://", "https://")):
            raise click.UsageError(f"{url!r} is not the URL of a hub, such as https://hub.example")
    rules = None if policy is None else read_policy_file(policy)
    sources = list(dict.fromkeys(url.rstrip("/") for url in urls or (session.hub_url,)))
    if state is not None:
        state.mkdir(parents=True, exist_ok=True)
    findings, watcher = asyncio.run(_run(output, session, sources, state, every, once, rules))
    leaves, verdict = watcher.leaves, _verdict_of(watcher, sources, findings, session.settings.hub_pk.value)
    where = evidence or state or Path()
    files = []
    for finding in findings:
        if finding.evidence is not None and finding.file_name is not None:
            where.mkdir(parents=True, exist_ok=True)
            (where / finding.file_name).write_bytes(finding.evidence)
            files.append(str(where / finding.file_name))
    data: dict[str, Any] = {
        **verdict_json(verdict),
        "sources": sources,
        "leaves": leaves,
        "findings": [finding.to_json() for finding in findings],
        "files": files,
    }

    def human() -> None:
        output.line(f"{leaves} leaves read from {len(sources)} sources, {len(findings)} findings")
        for finding in findings:
            output.line(f"  {finding.code}  {finding.what}", "bad")
        for file in files:
            output.line(f"  written: {file}")
        show_verdict(output, verdict)

    output.result(data, human)
    if findings:
        worst = min(findings, key=lambda finding: (finding.evidence is None, finding.code != "E.MONITOR.SPLIT"))
        file = files[0] if files else "the output above"
        raise Fail(worst.code, f"{worst.source}: contradictions were found", worst.what, f"keep and publish {file}")
    if once:
        end_by(verdict, ", ".join(sources), hint="poll again; a source that never answers hides what it signed")


def _verdict_of(
    watcher: "Monitor", sources: Sequence[str], findings: "Sequence[MonitorFinding]", identity: str | None
) -> Verdict:
    """Return the verdict over the outer logs of all sources. A question without an answer makes it incomplete."""
    compared = []
    for source in sources:
        read, head = watcher.heads.get(source, (0, None))
        stated = StatedBy.NOBODY if head is None else StatedBy.HUB
        compared.append(Coverage(log=source, read=read, head=head, stated_by=stated, identity=identity))
    reasons = [
        Reason(Because.POLICY if finding.code == "E.TLOG.QUORUM" else Because.EVIDENCE, finding.what)
        for finding in findings
    ]
    for (source, label, upto_seq), answer in watcher.unanswered.items():
        what = f"{source} did not give its checkpoint of label {label.hex()} at {upto_seq}: {answer}"
        reasons.append(Reason(Because.COVERAGE, what))
    return Verdict.of(compared, reasons)


async def _run(
    output: Output,
    session: CliSession,
    sources: list[str],
    state: Path | None,
    every: int,
    once: bool,
    policy: "WitnessPolicy | None",
) -> "tuple[list[MonitorFinding], Monitor]":
    import asyncio

    from veen.products.witness.monitor import Monitor, MonitorState

    stored = MonitorState(None if state is None else state / "monitor.db")
    watcher = Monitor(stored, policy)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    try:
        while True:
            findings = await _poll_all(output, session, watcher, sources, strict=once)
            if findings or once or stop.is_set():
                return findings, watcher
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), every)
            if stop.is_set():
                return [], watcher
    finally:
        stored.close()


async def _poll_all(
    output: Output, session: CliSession, watcher: "Monitor", sources: list[str], *, strict: bool
) -> "list[MonitorFinding]":
    """Poll each source once. Skip a source that does not answer; with `strict` raise its error."""
    from veen.client.errors import ClientError

    findings: list[MonitorFinding] = []
    hubs: dict[str, HubSession] = {}
    try:
        for url in sources:
            try:
                hubs[url] = await open_session(session, url)
                findings += await watcher.poll(url, hubs[url])
            except ClientError as exc:
                if strict:
                    raise
                output.notice(f"{url}: not read: {exc}", source=url, code=exc.code)
        for url, hub in hubs.items():
            before = set(watcher.unanswered)
            findings += await watcher.compare(url, hub)
            if new := watcher.unanswered.keys() - before:
                what = f"{url}: gave no checkpoint at {len(new)} positions that other sources list"
                output.notice(what, source=url, unanswered=len(new))
    finally:
        for hub in hubs.values():
            await hub.calls.transport.aclose()
    return findings
