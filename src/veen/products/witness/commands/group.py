"""`veen witness`: runs a witness of transparency logs; shows policies, notes and stored evidence."""

import contextlib
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from veen.cli.lazy import LazyGroup
from veen.cli.shared.command import CliSession, client_options
from veen.cli.shared.connecting import POLICY, read_policy_file, run_with_session
from veen.cli.shared.output import Output, output_options

if TYPE_CHECKING:
    from veen.core.tlog.note import LogCheckpoint, Note, VerifierKey
    from veen.core.tlog.policy import WitnessPolicy

_DIRECTORY: Final = click.Path(file_okay=False, path_type=Path)
_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)

witness = LazyGroup(
    "witness",
    help="Witnesses of transparency logs (C2SP): cosign checkpoints that continue a log's cosigned history.",
    table={
        "policy": (
            "veen.products.witness.commands.group:policy",
            "Policies: which logs, which witnesses, how many of them.",
        )
    },
)
policy = LazyGroup("policy", help="Policies in the language of C2SP: logs, witnesses, groups of k of n, one quorum.")


def _fs(directory: Path, *, create: bool) -> Any:
    from veen.io.local import OsFs
    from veen.products.witness.service import WitnessStateError

    if create:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    elif not directory.is_dir():
        raise WitnessStateError(f"{directory}: no such directory")
    return OsFs(directory.absolute())


@witness.verb("key", "The name and key of a witness, as policies list it.")
@click.argument("directory", type=_DIRECTORY)
@click.option("--name", help="Name of a new witness, such as witness.example/w1. It never changes.")
@click.option("--url", help="URL for logs; part of the line.")
@output_options
def key(output: Output, directory: Path, name: str | None, url: str | None) -> None:
    """Make the key of a witness in DIRECTORY, or show it, as a line for policies.

    \b
    veen witness key ./w1 --name witness.example/w1 --url http://127.0.0.1:8081
    """
    from veen.products.witness.service import witness_key

    _, vkey = witness_key(_fs(directory, create=name is not None), name)
    line = f"witness {vkey.name} {vkey}" + (f" {url}" if url else "")
    output.result({"name": vkey.name, "vkey": str(vkey), "line": line}, lambda: output.line(line))


@witness.verb("run", "Be a witness of the logs that a policy lists.")
@click.argument("directory", type=_DIRECTORY)
@click.option("--logs", "logs", type=POLICY, required=True, help="Policy file with the logs to witness.")
@click.option("--name", help="Name of a new witness.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8081,
    show_default=True,
    help="Port to listen on; 0 picks a free one.",
)
@output_options
def run(output: Output, directory: Path, logs: Path, name: str | None, host: str, port: int) -> None:
    """Cosign checkpoints of the logs in --logs until stopped. DIRECTORY stores each cosigned note durably before the
    answer; one witness at a time uses a directory, and it must never be restored from an old copy.

    Plain HTTP: notes are public and signed. Put a TLS proxy before it to serve others.

    \b
    veen witness run ./w1 --name witness.example/w1 --logs logs.policy --port 8081
    """
    import asyncio

    asyncio.run(_run(output, directory, read_policy_file(logs), name, host, port))


async def _run(output: Output, directory: Path, logs: "WitnessPolicy", name: str | None, host: str, port: int) -> None:
    import asyncio

    from veen.client.errors import LocalError
    from veen.io.web_listener import WebListener
    from veen.products.witness.service import WitnessService, WitnessStore, witness_key

    fs = _fs(directory, create=True)
    signing, vkey = witness_key(fs, name)
    store = WitnessStore(fs)
    try:
        service = WitnessService(store, signing, vkey, {log.vkey.name: log.vkey for log in logs.logs}, time.time)
        listener = WebListener(host, port, service.handle, unavailable=(LocalError,))
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        serving = asyncio.create_task(listener.run())
        ready, stopping = asyncio.create_task(listener.ready.wait()), asyncio.create_task(stop.wait())
        await asyncio.wait((ready, serving), return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            await serving
        shown_host = f"[{host}]" if ":" in host else host
        url = f"http://{shown_host}:{listener.port}"
        output.notice(f"witness {vkey.name} listens on {url}", url=url, vkey=str(vkey), logs=sorted(service.logs))
        await asyncio.wait((stopping, serving), return_when=asyncio.FIRST_COMPLETED)
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving
        counts = {"cosigned": service.cosigned, "refused": service.refused}
        output.result(counts)
    finally:
        store.close()


@witness.verb("evidence", "Requests that a witness kept because they may prove a fork.")
@click.argument("directory", type=_DIRECTORY)
@click.option("--out", type=_DIRECTORY, help="Write the evidence as files into this directory.")
@output_options
def evidence(output: Output, directory: Path, out: Path | None) -> None:
    """Show the evidence that the witness in DIRECTORY stored: requests with a valid signature of the log that did not
    continue the cosigned history. `fork`: two roots for one size, a proof. `inconsistent`: an invalid consistency
    proof; it may be a fork or a mistake. The witness must be stopped.

    \b
    veen witness evidence ./w1 --out forks
    """
    from veen.core.hashing import H
    from veen.products.witness.service import WitnessStore

    store = WitnessStore(_fs(directory, create=False))
    try:
        rows = store.evidence()
    finally:
        store.close()
    listed = []
    for origin, kind, at, cosigned, data in rows:
        digest = H(data).hex()[:16]
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            (out / f"{kind}-{digest}.request").write_bytes(data)
            if cosigned is not None:
                (out / f"{kind}-{digest}.seen").write_bytes(cosigned)
        listed.append({"origin": origin, "kind": kind, "time": at, "digest": digest, "bytes": len(data)})
    columns = ("kind", "origin", "time", "digest", "bytes")
    output.result(
        {"evidence": listed}, lambda: output.table(columns, ([row[name] for name in columns] for row in listed))
    )


@witness.verb("show", "Show the outer log of a hub: key, newest note and cosignatures.")
@click.option("--policy", "policy_file", type=POLICY, help="Policy that the note must satisfy.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the note to this file.")
@click.option("--line", "only_line", is_flag=True, help="Print only the line of the log for policies.")
@client_options
def show(output: Output, session: CliSession, policy_file: Path | None, out: Path | None, only_line: bool) -> None:
    """Show the outer log of the hub, its key verified by the pin: the line for policies and witnesses, and the newest
    note. With --policy, exit code 1 unless the note satisfies it.

    \b
    veen witness show
    veen witness show --line
    veen witness show --policy witnesses.policy --out hub.note
    """
    from veen.client.session import HubSession
    from veen.client.verify.outer import OuterReader

    rules = None if policy_file is None else read_policy_file(policy_file)

    async def read(hub: HubSession) -> "tuple[VerifierKey, Note, LogCheckpoint]":
        reader = OuterReader(hub)
        return await reader.vkey(), *await reader.note()

    with output.progress("asking the hub"):
        vkey, note, head = run_with_session(session, session.hub_url, read)
    accepted = None if rules is None else rules.check(note)
    if out is not None:
        out.write_bytes(note.to_bytes())
    data = {
        "line": f"log {vkey} {session.hub_url}",
        "origin": vkey.name,
        "vkey": str(vkey),
        "size": head.size,
        "root": head.root.hex(),
        "cosignatures": len(note.signatures) - 1,
        "cosigned_by": None if accepted is None else dict(accepted.cosigned),
    }
    if only_line:
        output.result({"line": data["line"]}, lambda: output.line(str(data["line"])))
        return
    output.result(data)


@policy.verb("check", "Check a policy, and optionally a note under it.")
@click.argument("file", type=POLICY)
@click.option("--note", "note_file", type=_FILE, help="Note, or tlog-proof, that must satisfy the policy.")
@output_options
def check(output: Output, file: Path, note_file: Path | None) -> None:
    """Parse a policy FILE strictly, and show its rules. With --note, exit code 1 unless the note satisfies it.

    \b
    veen witness policy check witnesses.policy
    veen witness policy check witnesses.policy --note hub.note
    """
    from veen.core.tlog.note import MAX_NOTE_BYTES, Note
    from veen.core.tlog.proof import TlogProof

    rules = read_policy_file(file)

    data: dict[str, Any] = {
        "ok": True,
        "logs": [log.vkey.name for log in rules.logs],
        "witnesses": list(rules.witnesses),
        "groups": {name: f"{group.threshold} of {len(group.members)}" for name, group in rules.groups.items()},
        "quorum": rules.quorum or "none",
    }
    if note_file is not None:
        with note_file.open("rb") as opened:
            content = opened.read(MAX_NOTE_BYTES + 16_384)
        is_proof = content.startswith(b"c2sp.org/tlog-proof")
        accepted = rules.check(TlogProof.from_bytes(content).note if is_proof else Note.from_bytes(content))
        data |= {
            "origin": accepted.checkpoint.origin,
            "size": accepted.checkpoint.size,
            "cosigned_by": dict(accepted.cosigned),
        }
    output.result(data)
