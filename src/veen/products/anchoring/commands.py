"""`veen anchor`: publishes and verifies roots outside of the log (ANCHOR0, docs/anchors.md)."""

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from veen.cli.lazy import LazyGroup
from veen.cli.shared.command import CliSession, client_options
from veen.cli.shared.connecting import hubs_of
from veen.cli.shared.names import CONTEXT, STREAM
from veen.cli.shared.output import Fail, Output
from veen.cli.shared.overlay_commands import HEX32
from veen.cli.shared.text import short
from veen.cli.shared.verifying import end_by, show_verdict, verdict_json
from veen.core.verdict import Because, Coverage, Reason, StatedBy, Verdict

if TYPE_CHECKING:
    from veen.client.client import Client
    from veen.core.objects.checkpoint import Checkpoint
    from veen.products.anchoring.listing import ListedAnchor
    from veen.storage.anchors import AnchorBackend, AnchorFile
    from veen.storage.timestamps import TimestampTrust

anchor = LazyGroup("anchor", help="Publish and verify roots: in a file, at a timestamp authority, at another hub.")

_DIRECTORY: Final = click.Path(file_okay=False, path_type=Path)
_PEM: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
_UPTO: Final = click.option("--upto", type=click.IntRange(min=1), help="Position to anchor. Default: end of the log.")
_FILE: Final = click.option("--file", "directory", type=_DIRECTORY, help="Directory with a hash-chained file.")
_CERTIFICATES: Final = click.option(
    "--certificates", type=_PEM, help="PEM file with the root and own certificate of the timestamp authority."
)


@anchor.verb("publish", "Anchor the root of a log.")
@click.argument("stream", type=STREAM)
@_UPTO
@_FILE
@click.option("--tsa", metavar="URL", help="URL of a timestamp authority (RFC 3161). Requires --certificates.")
@_CERTIFICATES
@click.option("--to", "target", type=CONTEXT, help="Context of a hub: state the root in its log. Requires --on.")
@click.option("--on", "on_stream", type=STREAM, help="Stream at the hub of --to.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="File for the token or evidence.")
@click.option(
    "--no-record", is_flag=True, help="Do not have the hub record the anchor. Requires no administrator token."
)
@client_options
def publish(
    output: Output,
    session: CliSession,
    stream: str,
    upto: int | None,
    directory: Path | None,
    tsa: str | None,
    certificates: Path | None,
    target: str | None,
    on_stream: str | None,
    out: Path | None,
    no_record: bool,
) -> None:
    """Anchor the root of STREAM: at the backend in the hub's configuration, or at one that you name.

    A named backend gets the root of a checkpoint that was verified here; then the hub records the reference, which
    requires its administrator token. A failure changes nothing in the log: run the command again. With --out the
    position is written beside the file, to OUT.position.json: keep both together.

    \b
    veen anchor publish orders
    veen anchor publish orders --file /mnt/worm/anchors
    veen anchor publish orders --tsa http://tsa.example.com --certificates tsa.pem --out orders.tsr
    veen anchor publish orders --to partner --on anchors --out orders.veen-evidence
    """
    if sum(place is not None for place in (directory, tsa, target)) > 1:
        raise click.UsageError("give one of --file, --tsa and --to")
    if (target is None) != (on_stream is None):
        raise click.UsageError("--to and --on go together")
    if tsa is not None and certificates is None:
        raise click.UsageError("--tsa requires --certificates: without them the timestamp cannot be verified")
    if directory is None and tsa is None and target is None:
        _tell(output, _at_hub(session, stream, upto), None)
        return
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
    client = session.client()
    hub_id, checkpoint = client.hub_id, client.checkpoint(stream, upto)
    label = checkpoint.label_curr
    session.close()  # the identity may be needed for another hub
    if target is not None and on_stream is not None:
        backend, anchor_ref, data = _state_at(session, target, on_stream, hub_id, checkpoint)
    else:
        chosen: AnchorBackend = _chain(directory) if directory is not None else _authority(str(tsa), certificates)
        with output.progress("anchoring"):
            anchor_ref = _publish(chosen, checkpoint)
        backend, data = chosen.name if tsa else f"file:{directory}"[:64], anchor_ref
    if out is not None:
        out.write_bytes(data)
        position = {"label": label.hex(), "upto_seq": checkpoint.upto_seq, "root": checkpoint.mmr_root.hex()}
        _position_file(out).write_text(json.dumps(position) + "\n", "utf-8")
    if no_record:
        facts = {"label": label.hex(), "upto_seq": checkpoint.upto_seq, "root": checkpoint.mmr_root.hex()}
        output.result({**facts, "backend": backend, "anchor_ref": anchor_ref.hex(), "recorded": False})
        return
    _tell(output, _record(session, checkpoint, backend, anchor_ref), out)


# The spelling of 001 products §3.5.
hub_anchor = click.Command("anchor", params=list(publish.params), callback=publish.callback, help=publish.help)


def _publish(backend: "AnchorBackend", checkpoint: "Checkpoint") -> bytes:
    from veen.storage.anchors import NONCE_BYTES, AnchorError

    try:
        return backend.publish(checkpoint.mmr_root, checkpoint.epoch, int(time.time()), os.urandom(NONCE_BYTES))
    except (AnchorError, OSError) as exc:
        raise Fail(
            "ANCHOR.FAILED",
            "the backend did not accept the anchor",
            str(exc),
            "check the backend, then run the command again",
        ) from exc


def _chain(directory: Path) -> "AnchorFile":
    from veen.io.local import OsFs
    from veen.storage.anchors import AnchorFile

    return AnchorFile(OsFs(directory))


def _trust(certificates: Path) -> "TimestampTrust":
    from veen.storage.anchors import AnchorError
    from veen.storage.timestamps import TimestampTrust

    try:
        return TimestampTrust.read(certificates)
    except AnchorError as exc:
        raise Fail("E.LOCAL.INPUT", "the certificates cannot be used", str(exc), "give the root in PEM") from exc


def _authority(url: str, certificates: Path | None) -> "AnchorBackend":
    from veen.storage.anchors import AnchorError
    from veen.storage.timestamps import TimestampAuthority

    assert certificates is not None  # noqa: S101 - checked by the command
    trust = _trust(certificates)
    try:
        return TimestampAuthority(url, trust)
    except AnchorError as exc:
        raise Fail("ANCHOR.FAILED", "the timestamp authority cannot be used", str(exc), "give its URL") from exc


def _state_at(
    session: CliSession, target: str, stream: str, hub_id: bytes, checkpoint: "Checkpoint"
) -> tuple[str, bytes, bytes]:
    from veen.cli.shared.authority import authority
    from veen.products.anchoring.listing import BACKEND, publish_statement

    there = session.in_context(target)
    try:
        authority(there, stream, None)

        async def work(client: "Client") -> tuple[bytes, bytes]:
            anchor_ref, evidence = await publish_statement(client, stream, hub_id, checkpoint)
            return anchor_ref, evidence.to_file()

        with session.output.progress(f"stating the root at {target}"):
            return (BACKEND, *there.client().run(work))
    finally:
        there.close()


def _at_hub(session: CliSession, stream: str, upto: int | None) -> "ListedAnchor":
    import asyncio

    from veen.products.anchoring.listing import publish_at_hub

    label = session.client().label(stream)

    async def work() -> "ListedAnchor":
        async with hubs_of(session)[0].session() as at:
            return await publish_at_hub(at, label, upto)

    return asyncio.run(work())


def _record(session: CliSession, checkpoint: "Checkpoint", backend: str, anchor_ref: bytes) -> "ListedAnchor":
    import asyncio

    from veen.products.anchoring.listing import record_at_hub

    async def work() -> "ListedAnchor":
        async with hubs_of(session)[0].session() as at:
            return await record_at_hub(at, checkpoint, backend, anchor_ref)

    return asyncio.run(work())


def _row(anchored: "ListedAnchor") -> dict[str, Any]:
    body = anchored.body
    return {
        "upto_seq": body.upto_seq,
        "root": body.mmr_root.hex(),
        "backend": body.backend,
        "hub_ts": anchored.record.hub_ts,
        "anchor_ref": body.anchor_ref.hex(),
    }


def _tell(output: Output, anchored: "ListedAnchor", out: Path | None) -> None:
    data = {"label": anchored.body.label.hex(), **_row(anchored), "recorded": True, "out": str(out) if out else None}
    output.result(data)


@anchor.verb("list", "The anchors of a log.")
@click.argument("stream", type=STREAM)
@client_options
def list_(output: Output, session: CliSession, stream: str) -> None:
    """List the anchors of STREAM by position; the hub's signature and the checkpoint of each are verified.

    \b
    veen anchor list orders --json
    """
    rows = [_row(anchored) for anchored in _list_anchors(session, stream)]
    cells = [(row["upto_seq"], short(bytes.fromhex(row["root"])), row["backend"], row["hub_ts"]) for row in rows]
    output.result({"stream": stream, "anchors": rows}, lambda: output.table(("upto", "root", "backend", "at"), cells))


def _list_anchors(session: CliSession, stream: str) -> "list[ListedAnchor]":
    import asyncio

    from veen.products.anchoring.listing import anchors_of

    label = session.client().label(stream)

    async def work() -> "list[ListedAnchor]":
        async with hubs_of(session)[0].session() as at:
            return [anchored async for anchored in anchors_of(at, label)]

    return asyncio.run(work())


@anchor.verb("verify", "Check anchors against the log, or a token against a root.")
@click.argument("stream", type=STREAM, required=False)
@_UPTO
@click.option("--root", type=HEX32, help="Root to verify --ref against, without a hub.")
@click.option("--ref", "reference", type=_PEM, help="Token or evidence file of `anchor publish --out`.")
@_FILE
@_CERTIFICATES
@click.option("--from", "stated_by", type=CONTEXT, help="Context of the hub that issued the evidence file.")
@client_options
def verify(
    output: Output,
    session: CliSession,
    stream: str | None,
    upto: int | None,
    root: bytes | None,
    reference: Path | None,
    directory: Path | None,
    certificates: Path | None,
    stated_by: str | None,
) -> None:
    """Verify the anchors of STREAM, each against the hub's present root at its position, and at its backend.

    You provide the means to verify a backend: --file for a chain in a directory, --certificates for timestamps. An
    anchor without them is listed as unchecked and makes the verdict incomplete (exit code 6). With --ref, one token or
    evidence file is verified, against the checkpoint of STREAM at its position, or offline against --root. The position
    comes from --upto, from the file that `anchor publish --out` wrote beside the token, or from the hub's list. Exit
    code 1 and ANCHOR.INVALID if an anchor does not match.

    \b
    veen anchor verify orders --file /mnt/worm/anchors --certificates tsa.pem
    veen anchor verify --root 5d1f… --ref orders.tsr --certificates tsa.pem
    veen anchor verify orders --upto 40 --ref orders.veen-evidence --from partner
    """
    if (stream is None) == (root is None):
        raise click.UsageError("give STREAM, or --root and --ref")
    if root is not None and reference is None and directory is None:
        raise click.UsageError("--root needs --ref or --file")
    if reference is not None:
        _verify_reference(output, session, stream, upto, root, reference, certificates, stated_by)
        return
    if root is not None:
        raise click.UsageError("--root needs --ref")
    listed = [anchored for anchored in _list_anchors(session, str(stream)) if upto in (None, anchored.body.upto_seq)]
    if not listed:
        raise Fail(
            "ANCHOR.NONE", "there is no anchor to check", "the log was not anchored", "veen anchor publish STREAM"
        )
    results = [_check_listed(anchored, directory, certificates) for anchored in listed]
    rows = [{**_row(anchored), "verified": result} for anchored, result in zip(listed, results, strict=True)]
    checked = {_claim(anchored) for anchored, result in zip(listed, results, strict=True) if result}
    reasons = [
        Reason(Because.COVERAGE, reason) for anchored, result in zip(listed, results, strict=True)
        if (reason := _gap_of(anchored, result or (_claim(anchored) in checked or None))) is not None
    ]  # fmt: skip
    identity = session.settings.hub_pk.value
    compared = [
        Coverage(
            log=anchored.body.label.hex(),
            first=anchored.body.upto_seq,
            read=anchored.body.upto_seq,
            head=anchored.body.upto_seq,
            stated_by=StatedBy.HUB,
            identity=identity,
        )
        for anchored in listed
    ]
    verdict = Verdict.of(compared, reasons)
    cells = [
        (row["upto_seq"], short(bytes.fromhex(row["root"])), row["backend"], _WORDS[row["verified"]]) for row in rows
    ]

    def human() -> None:
        output.table(("upto", "root", "backend", "verified"), cells)
        show_verdict(output, verdict)

    output.result({"stream": stream, **verdict_json(verdict), "anchors": rows}, human)
    end_by(verdict, str(stream), hint="give the means to verify the backend: --file DIRECTORY or --certificates FILE")


def _claim(anchored: "ListedAnchor") -> tuple[int, bytes]:
    """Return the claim of an anchor. A second anchor with the same claim needs no check."""
    return anchored.body.upto_seq, anchored.body.mmr_root


def _gap_of(anchored: "ListedAnchor", result: bool | None) -> str | None:
    """Return the reason why an anchor is not verified; None if it is."""
    position = anchored.body.upto_seq
    if result is None:
        return f"position {position}: nothing was given to check the backend {anchored.body.backend}"
    if anchored.checkpoint is None:
        return f"position {position}: the hub has no checkpoint of that time, so its root was not compared"
    return None


def _position_file(token: Path) -> Path:
    return token.with_name(f"{token.name}.position.json")


def _verify_reference(
    output: Output,
    session: CliSession,
    stream: str | None,
    upto: int | None,
    root: bytes | None,
    reference: Path,
    certificates: Path | None,
    stated_by: str | None,
) -> None:
    """Check one token or evidence file against a root: the given one, or that of the position it is about."""
    if root is None:
        label = session.client().label(str(stream))
        position = _position_of(session, str(stream), label, reference) if upto is None else upto
        expected = session.client().checkpoint(str(stream), position).mmr_root
        log, stated, identity = label.hex(), StatedBy.HUB, session.settings.hub_pk.value
    else:
        expected, position, log, stated, identity = root, 1, f"root {root.hex()}", StatedBy.CALLER, None
    facts = _check_reference(session, expected, reference, certificates, stated_by)
    verdict = Verdict.of(
        [Coverage(log=log, first=position, read=position, head=position, stated_by=stated, identity=identity)]
    )

    def human() -> None:
        output.fields({"root": expected.hex(), "verified": True, **facts}.items())
        show_verdict(output, verdict)

    output.result({"root": expected.hex(), "verified": True, **verdict_json(verdict), **facts}, human)


def _position_of(session: CliSession, stream: str, label: bytes, reference: Path) -> int:
    """Return the position that a token or an evidence file is about.

    It is in the file beside the token, in the statement of an evidence file, or in the list of the hub. The position
    only says which root to compare with. Without it a root of today would accuse an anchor of yesterday.
    """
    from veen.core.evidence_file import is_evidence
    from veen.products.anchoring.listing import read_position

    beside = _position_file(reference)
    if beside.is_file():
        try:
            stored = json.loads(beside.read_text("utf-8"))
            if stored["label"] == label.hex() and isinstance(stored["upto_seq"], int) and stored["upto_seq"] > 0:
                return int(stored["upto_seq"])
        except (ValueError, KeyError, TypeError):
            pass  # damaged: the position is searched for as if the file were not there
    data = reference.read_bytes()
    if is_evidence(data):
        position = read_position(data, label)
    else:
        listed = (anchored.body for anchored in _list_anchors(session, stream))
        position = next((body.upto_seq for body in listed if body.anchor_ref == data), None)
    if position is None:
        raise Fail(
            "E.USAGE",
            f"{reference}: the position in {stream} is unknown",
            f"neither {beside.name} nor the list of the hub names the position",
            "give the position: --upto N",
        )
    return position


_WORDS: Final = {True: "yes", None: "unchecked"}


def _check_listed(anchored: "ListedAnchor", directory: Path | None, certificates: Path | None) -> bool | None:
    """Return True, or None if no means to check it was given. Raise AnchorInvalid if it does not verify."""
    from veen.products.anchoring.listing import AnchorInvalid

    body = anchored.body
    backend: Any = None
    if body.backend.partition(":")[0] == "file" and directory is not None:
        backend = _chain(directory)
    elif body.backend == "rfc3161" and certificates is not None:
        from veen.storage.timestamps import TimestampAuthority

        backend = TimestampAuthority("http://offline", _trust(certificates))
    if backend is None:
        return None
    if not backend.verify(body.mmr_root, body.anchor_ref):
        if body.backend.startswith("file") and body.backend != f"file:{directory}"[:64]:
            return None  # of a chain in another directory, such as the hub's own
        raise AnchorInvalid(f"the anchor of position {body.upto_seq} does not verify at its backend ({body.backend})")
    return True


def _check_reference(
    session: CliSession, root: bytes, path: Path, certificates: Path | None, stated_by: str | None
) -> dict[str, Any]:
    from veen.products.anchoring.listing import AnchorInvalid
    from veen.storage.anchors import AnchorError

    data = path.read_bytes()
    if certificates is not None:
        try:
            stamped = _trust(certificates).read_time(root, data)
        except AnchorError as exc:
            raise AnchorInvalid(str(exc)) from exc
        return {"backend": "rfc3161", "time": stamped.isoformat()}
    from veen.core.evidence_file import EvidenceFault
    from veen.core.objects.trusted_root import TrustedKeys
    from veen.products.anchoring.listing import BACKEND, check_statement

    there = session if stated_by is None else session.in_context(stated_by)
    pinned = there.pinned
    trusted = TrustedKeys(root_pk=pinned.public) if pinned.is_root else TrustedKeys(hub_pks=(pinned.public,))
    try:
        entry = check_statement(data, trusted, root)
    except EvidenceFault as exc:
        if stated_by is not None or exc.code != "E.EVIDENCE.HUB":
            raise
        raise Fail(
            "E.INCOMPLETE",
            f"{path}: the keys of the hub that issued it are not pinned",
            f"{exc}; the pin is that of the context in use",
            "name the context of the hub that it is from: --from CONTEXT",
        ) from exc
    return {"backend": BACKEND, "time": entry.hub_ts, "stream_seq": entry.seq, "stated_by": entry.author.hex()}
