"""`veen mirror`: attests or copies the entries of another hub in a stream of this one."""

import contextlib
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from veen.cli.lazy import LazyGroup
from veen.cli.shared.authority import CAP, authority
from veen.cli.shared.command import FILE, CliSession, client_options, several
from veen.cli.shared.files import hex32
from veen.cli.shared.names import STREAM
from veen.cli.shared.output import Output
from veen.cli.shared.verifying import end_by, show_verdict, verdict_json

if TYPE_CHECKING:
    from veen.client.client import Client
    from veen.products.federation.mirroring import CopyIndex, MirrorCheck, MirrorReport

T = TypeVar("T")

mirror = LazyGroup(
    "mirror",
    help="""Attest, copy and verify entries of another hub in a stream of this one.

    `attest` states what the source signed, without any key of it; `copy` sends its events again.
    """,
)
_SOURCE: Final = several(
    click.argument("source_stream", type=STREAM),
    click.argument("target_stream", type=STREAM),
    click.option("--source-hub", required=True, help="URL of the source hub."),
    click.option("--source-pin", required=True, help="Key of the source hub, ed25519:HEX."),
    click.option("--source-token-file", type=FILE, help="File with the bearer token for the source hub."),
    click.option("--source-ca-file", type=FILE, help="CA certificates for the source, instead of the system's (PEM)."),
)


def _with_source(session: CliSession, source: dict[str, Any], work: "Callable[[Client, Client], Awaitable[T]]") -> T:
    """Do work with the clients of both hubs, which use the same keys."""
    from veen.client.client import Client
    from veen.client.home import Home

    keystore = session.keystore
    # Verified state of sources has its own directory: the state of an identity has one user at a time.
    home = Home.at(session.home.state / "mirror")

    async def both(target: Client) -> T:
        connected = await Client.connect(
            source["source_hub"],
            pin=source["source_pin"],
            identity=keystore.identity,
            keyring=keystore.secrets.keyring,
            home=home,
            ca_file=_path(source["source_ca_file"]),
            token_file=_path(source["source_token_file"]),
            insecure_http=bool(session.settings.insecure_http.value),
        )
        try:
            return await work(connected, target)
        finally:
            await connected.aclose()

    return session.client().run(both)


def _resolve_stream(session: CliSession, source: "Client", name: str) -> str:
    """Return a stream of the keyring, or its label: attesting needs no key."""
    from veen.client.errors import UnknownStream
    from veen.products.federation.mirroring import without_keys

    try:
        session.keystore.secrets.keyring.for_stream(name)
    except UnknownStream:
        return without_keys(source, name)
    return name


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _mirror(
    output: Output,
    session: CliSession,
    streams: tuple[str, str],
    cap: Path | None,
    source: dict[str, Any],
    verb: str,
    bridges: tuple[str, ...] = (),
) -> None:
    from functools import partial

    from veen.products.federation import mirroring

    run: Any = mirroring.attest_stream
    if verb == "copied":
        run = partial(mirroring.copy_stream, bridges=[hex32(key) for key in bridges])
    capability = authority(session, streams[1], cap)

    async def work(source_client: "Client", target: "Client") -> "tuple[bytes, MirrorReport]":
        stream = _resolve_stream(session, source_client, streams[0])
        with contextlib.ExitStack() as stack:
            more: dict[str, Any] = {}
            if verb == "copied":
                more["index"] = stack.enter_context(contextlib.closing(_index(session, source_client, target, streams)))
            report = await run(
                source_client, target, stream, streams[1], now=lambda: int(time.time()), capability=capability, **more
            )
        return source_client.hub_id, report

    with output.progress("reading and verifying the source"):
        hub_id, report = _with_source(session, source, work)
    session.remember_stream(streams[1])
    gaps = [
        {"label": label.hex(), "first_seq": first, "last_seq": last, "reason": reason}
        for label, first, last, reason in report.gaps
    ]
    data = {
        "source_hub_identifier": f"hub:{hub_id.hex()}",
        "source_stream": streams[0],
        "target_stream": streams[1],
        "sent": report.sent,
        "existed": report.existed,
        "returned": report.returned,
        "gaps": gaps,
    }

    def human() -> None:
        output.line(f"{verb} {report.sent - len(gaps)} entries of {streams[0]}; {report.existed} were there already")
        if report.returned:
            output.line(f"  {report.returned} come from this hub or have passed it, and were not sent again")
        for gap in gaps:
            output.line(f"  gap from {gap['first_seq']} to {gap['last_seq']}: {gap['reason']}", "warn")

    output.result(data, human)


def _index(session: CliSession, source: "Client", target: "Client", streams: tuple[str, str]) -> "CopyIndex":
    """Open the index that earlier runs of this copy have left in the cache."""
    from veen.core.hashing import Ht
    from veen.products.federation.mirroring import CopyIndex

    name = Ht("veen/copy-index", "\0".join((source.hub_id.hex(), target.hub_id.hex(), *streams)).encode()).hex()
    return CopyIndex(session.home.copies_fs(session.identity_name).database(f"{name[:32]}.sqlite"))


@mirror.verb("attest", "Record the source hub's signed entries, one by one.")
@_SOURCE
@CAP
@client_options
def attest(
    output: Output, session: CliSession, source_stream: str, target_stream: str, cap: Path | None, **source: Any
) -> None:
    """Write a federation.mirror.v1 record of each entry of SOURCE_STREAM at the source hub into TARGET_STREAM here.

    Every entry is verified first. Two hubs that attest each other cannot show two histories without both logs showing
    it. No key of SOURCE_STREAM is needed, but the read key of TARGET_STREAM, which is the state: a run that was killed
    is simply started again. A source that contradicts what was attested stops the run, with both receipts as evidence.

    \b
    veen mirror attest orders mirrors/b --source-hub https://b.example --source-pin ed25519:HEX
    """
    _mirror(output, session, (source_stream, target_stream), cap, source, "attested")


@mirror.verb("copy", "Send the events of a stream of the source hub again.")
@_SOURCE
@click.option(
    "--known-bridge",
    "bridges",
    multiple=True,
    help="Client id of another bridge, 64 hex digits: its copies keep their origin. Repeatable.",
)
@CAP
@client_options
def copy(
    output: Output,
    session: CliSession,
    source_stream: str,
    target_stream: str,
    bridges: tuple[str, ...],
    cap: Path | None,
    **source: Any,
) -> None:
    """Send each event of SOURCE_STREAM at the source hub into TARGET_STREAM here, with the same schema and body, and
    the message at the source as its parent. Each is verified and opened first, and sent once, also after a kill.

    A copy states the hub that it comes from and the time of that hub, by which folds judge it if the copying key is
    registered as a bridge. An event that comes from this hub, or has passed it, is not sent here again.

    What the source has erased, or no key here opens, becomes a record of a gap. Needs the read keys of both streams.

    \b
    veen mirror copy orders orders --source-hub https://b.example --source-pin ed25519:HEX
    """
    _mirror(output, session, (source_stream, target_stream), cap, source, "copied", bridges)


@mirror.verb("verify", "Compare attested entries with the receipts of the source.")
@_SOURCE
@click.option(
    "--by",
    "writers",
    multiple=True,
    help="Client id of an accepted mirror, 64 hex digits. Default: those of the identity in use. Repeatable.",
)
@client_options
def verify(
    output: Output,
    session: CliSession,
    source_stream: str,
    target_stream: str,
    writers: tuple[str, ...],
    **source: Any,
) -> None:
    """Compare every record of TARGET_STREAM with the receipt of the source hub, and show which entries are not covered.
    Exit code 1 if one differs, 6 if entries up to the source's head are not covered or could not be compared.

    \b
    veen mirror verify orders mirrors/b --source-hub https://b.example --source-pin ed25519:HEX
    """
    from veen.products.federation.mirroring import check_mirror

    keys = [hex32(key) for key in writers]

    async def work(client: "Client", target: "Client") -> "MirrorCheck":
        stream = _resolve_stream(session, client, source_stream)
        return await check_mirror(client, target, stream, target_stream, writers=keys)

    with output.progress("comparing"):
        checked = _with_source(session, source, work)
    verdict = checked.verdict
    data = {
        "compared": checked.compared,
        "erased_at_the_source": checked.erased,
        "not_covered": [
            {"label": label.hex(), "first_seq": first, "last_seq": last} for label, first, last in checked.missing
        ],
        **verdict_json(verdict),
    }

    def human() -> None:
        output.fields((name, value) for name, value in data.items() if name != "verdict")
        show_verdict(output, verdict)

    output.result(data, human)
    end_by(verdict, "the mirror", hint="run `veen mirror attest` again, then verify once more")
