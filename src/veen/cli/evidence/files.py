"""`veen evidence`: entries of a stream as one file or page that an outsider can check without hub and keys."""

from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from veen.cli.lazy import LazyGroup
from veen.cli.shared import options
from veen.cli.shared.command import CliSession, client_options, home_options
from veen.cli.shared.entries import when
from veen.cli.shared.files import hex32
from veen.cli.shared.output import Fail, Mode, Output
from veen.cli.shared.stream_args import EPOCH, SEQ, stream_argument
from veen.cli.shared.text import short
from veen.cli.shared.values import MOMENT, RANGE
from veen.cli.shared.verifying import end_by, show_verdict, verdict_json
from veen.core.verdict import Because, Coverage, Reason, StatedBy, Verdict

if TYPE_CHECKING:
    from veen.cli.shared.pinning import PinnedKeys
    from veen.client.evidence_file import Contents
    from veen.client.sync import SyncClient
    from veen.client.verify.pin import HubPin
    from veen.core.evidence_check import CheckedEntry, EvidenceReport
    from veen.core.tlog.policy import WitnessPolicy

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_TARGET = click.Path(dir_okay=False, path_type=Path)
_KEY_HINT: Final = "give the key of the hub that it is from: --hub-pk HEX"


evidence = LazyGroup(
    "evidence",
    help="""Evidence for outsiders: one file that anyone can check, without the hub and without your keys.

    `veen verify FILE --hub-pk KEY` checks it.
    """,
)


@evidence.verb("export", "Write entries and all their proofs into one file or page.")
@stream_argument()
@click.option("--from-seq", "--from", "first", type=SEQ, help=options.FIRST)
@click.option("--to-seq", "--to", "last", type=SEQ, help=options.LAST)
@click.option("--range", "span", type=RANGE, help=options.RANGE)
@click.option("--since", type=MOMENT, help=options.SINCE)
@click.option("--until", type=MOMENT, help=options.UNTIL)
@EPOCH
@click.option("--query", "result_id", help="Query result whose entries are exported (veen query run).")
@click.option("--store", type=click.Path(file_okay=False), help=options.STORE)
@click.option("--open", "opened", is_flag=True, help="Add the opening of each entry: outsiders can read exactly these.")
@click.option("--plaintext", is_flag=True, help="Add the plaintext as you state it. Nothing in the file proves it.")
@click.option("--head", is_flag=True, help="Add the newest checkpoint, and the proof that the log only grew.")
@click.option("--outside", is_flag=True, help="Add proofs by others: tlog-proof and COSE receipt of the outer log.")
@click.option("--no-name", is_flag=True, help="Leave out the name of the stream.")
@click.option("--out", type=_TARGET, help="Evidence file to write.")
@click.option("--html", type=_TARGET, help="HTML page to write, which checks itself in a browser without a network.")
@options.keep_former("--replace", "force", former="--force", is_flag=True, help=options.REPLACE)
@client_options
def export(
    output: Output,
    session: CliSession,
    stream: str,
    first: int | None,
    last: int | None,
    span: tuple[int | None, int | None] | None,
    since: int | None,
    until: int | None,
    epoch: int | None,
    result_id: str | None,
    store: str | None,
    opened: bool,
    plaintext: bool,
    head: bool,
    outside: bool,
    no_name: bool,
    out: Path | None,
    html: Path | None,
    force: bool,
) -> None:
    """Write entries of STREAM into an evidence file: messages, receipts, proofs, checkpoints, identity of the hub.

    Everything is verified before it is written. Keys of streams and identities are never part of it. Without --open
    and --plaintext the contents stay sealed.

    \b
    veen evidence export orders --range 10..20 --out orders.veen-evidence
    veen evidence export orders --since -1h --open --out orders.veen-evidence --html orders.html
    veen verify orders.veen-evidence --hub-pk 8a88e3dd…
    """
    if out is None and html is None:
        raise click.UsageError("give --out FILE, --html FILE, or both")
    if opened and plaintext:
        raise click.UsageError("give one of --open and --plaintext")
    if span is not None:
        if first is not None or last is not None:
            raise click.UsageError("give --range, or --from-seq and --to-seq")
        first, last = span
    if first is not None and last is not None and last < first:
        raise click.UsageError(f"the range {first} to {last} ends before it begins")
    ranged = [value for value in (first, last, since, until, epoch) if value is not None]
    if result_id is not None and ranged:
        raise click.UsageError("--query names the entries: leave out ranges, times and --epoch")
    for path in (out, html):
        if path is not None and path.exists() and not force:
            raise Fail("E.LOCAL", f"{path}: it exists already", "nothing was written", "add --replace to overwrite it")
    contents: Contents = "openings" if opened else "plaintext" if plaintext else "sealed"
    selection = None if result_id is None else list(_select_entries(session, result_id, store))
    client = session.client()
    if selection is not None:
        selection = _of_stream(output, client, stream, selection)
    with output.progress("reading and verifying"):
        file = client.evidence(
            stream,
            from_seq=first,
            to_seq=last,
            since=since,
            until=until,
            epoch=epoch,
            selection=selection,
            contents=contents,
            with_head=head,
            with_outside=outside,
            named=not no_name,
        )
        data = file.to_file()
    session.remember_stream(stream)
    from veen.core.evidence_check import check_evidence

    report = check_evidence(file, None)
    if out is not None:
        out.write_bytes(data)
    if html is not None:
        from veen.client.evidence_page import page

        html.write_bytes(page(data, report, exporter_pin=client.pin.origin_text()))
    facts = {
        "out": None if out is None else str(out),
        "html": None if html is None else str(html),
        "bytes": len(data),
        "sha256": _sha256(data),
        **_facts(report),
    }

    def human() -> None:
        output.line(f"{len(report.entries)} entries exported, verified before they were written", "good")
        output.fields((name, value) for name, value in facts.items() if value not in (None, [], {}))

    output.result(facts, human)
    if contents != "sealed" and (sealed := report.contents()["sealed"]):
        output.note(f"{sealed} of {len(report.entries)} entries stay sealed: your keys do not open them")
    if out is not None:
        output.next(f"veen verify {out}{_key_option(client.pin)}")


def _key_option(pin: "HubPin") -> str:
    """Return the option by which an outsider gives the key of the page; none for a root, which needs a context."""
    return "" if pin.root_pk is not None else f" --hub-pk {pin.keys[0].hub_pk.hex()}"


def _select_entries(session: CliSession, result_id: str, store: str | None) -> Iterator[tuple[bytes, int]]:
    """Yield label and number of each entry that a query result has verified."""
    from veen.core import canonical
    from veen.lake.query.store import ResultStore

    results = ResultStore(Path(store) if store is not None else session.user_home.data / "queries")
    for line in results.evidence(result_id):
        row = canonical.parse(line)
        yield bytes.fromhex(row["label"]), int(row["stream_seq"])


def _of_stream(
    output: Output, client: "SyncClient", stream: str, entries: Sequence[tuple[bytes, int]]
) -> list[tuple[bytes, int]]:
    """Return the entries that are in the stream: a query may cover several, a file has one."""
    if not entries:
        raise Fail(
            "E.USAGE",
            "the result names no entries",
            "it was made with --evidence none, or it has no rows",
            "run the query again with --evidence full",
        )
    labels = set(client.run(lambda inner: inner.labels_of(stream)))
    chosen = [entry for entry in entries if entry[0] in labels]
    if left := len(entries) - len(chosen):
        output.note(
            f"{left} of {len(entries)} entries of the result are in other streams: export those by their stream"
        )
    return chosen


@evidence.verb("show", "The entries of an evidence file, and what it proves.")
@click.argument("file", type=_FILE)
@click.option("--hub-pk", type=hex32, multiple=True, help=options.HUB_PK)
@click.option("--no-pin", is_flag=True, help=options.NO_PIN)
@home_options
def show(output: Output, session: CliSession, file: Path, hub_pk: tuple[bytes, ...], no_pin: bool) -> None:
    """Show the entries of an evidence FILE, and what it proves. A file that does not verify is not shown.

    \b
    veen evidence show orders.veen-evidence
    """
    pinned = _resolve_keys(session, hub_pk, no_pin)
    report, reasons = _check_file(read_evidence(file), file, pinned)
    verdict = _verdict_of(report, pinned, reasons)
    rows = [_entry_data(entry) for entry in report.entries]
    data = {**pinned.to_json(), **verdict_json(verdict), **_facts(report), "entries": rows}

    def human() -> None:
        output.line(_pin_line(pinned), None if pinned.keys else "warn")
        output.line(f"hub {report.identity.hub_id.hex()}")
        for key in report.identity.keys:
            output.line(f"hub key ed25519:{key.hub_pk.hex()}, from {when(key.valid_from)} on")
        columns = ("seq", "time", "author", "content")
        author = (
            (lambda row: short(bytes.fromhex(row["author"]))) if output.mode is Mode.HUMAN else itemgetter("author")
        )
        output.table(columns, ([row["seq"], row["time"], author(row), _shown(row)] for row in rows))
        show_verdict(output, verdict)
        _tell_claims(output, report)

    output.result(data, human)
    end_by(verdict, str(file), hint=_KEY_HINT)


def read_evidence(path: Path) -> bytes:
    """Read a file, up to the maximal size of an evidence file."""
    from veen.core.evidence_file import MAX_FILE_BYTES

    with path.open("rb") as opened:
        return opened.read(MAX_FILE_BYTES + 1)


def verify_evidence_file(
    output: Output,
    session: CliSession,
    file: Path,
    data: bytes,
    hub_pk: tuple[bytes, ...],
    no_pin: bool,
    policy: "WitnessPolicy | None" = None,
) -> None:
    """Verify an evidence file for `veen verify`, print the verdict and end the command by it."""
    pinned = _resolve_keys(session, hub_pk, no_pin)
    report, reasons = _check_file(data, file, pinned, policy)
    verdict = _verdict_of(report, pinned, reasons)
    facts = {**verdict_json(verdict), "kind": "evidence", "bytes": len(data), "sha256": _sha256(data)}
    facts |= {**pinned.to_json(), **_facts(report), "checks": list(report.checks)}

    def human() -> None:
        output.line(_pin_line(pinned), None if pinned.keys else "warn")
        if verdict.is_good:
            output.line(f"evidence verified: {file}", "good" if pinned.keys else None)
        for line in report.checks:
            output.line(f"  ok  {line}")
        show_verdict(output, verdict)
        _tell_claims(output, report)

    output.result(facts, human)
    unmet = any(reason.because is Because.POLICY for reason in reasons)
    end_by(verdict, str(file), code="E.EVIDENCE.QUORUM" if unmet else None, hint=None if unmet else _KEY_HINT)


def _verdict_of(report: "EvidenceReport", pinned: "PinnedKeys", reasons: "Sequence[Reason]") -> Verdict:
    """Return the verdict over the ranges of the file. The file itself states them, under signed roots."""
    identity = None if any(reason.because is Because.COVERAGE for reason in reasons) else pinned.identity
    compared = [
        Coverage(log=log.label.hex(), first=first, read=last, head=last, stated_by=StatedBy.FILE, identity=identity)
        for log in report.logs
        for first, last in log.runs
    ]
    return Verdict.of(compared, reasons)


def _resolve_keys(session: CliSession, hub_pk: tuple[bytes, ...], no_pin: bool) -> "PinnedKeys":
    """Return the keys that a file is verified under: those given, or else the pin of the context in use."""
    from veen.cli.shared.pinning import PinnedKeys, resolve_pin
    from veen.client.evidence_file import TrustedKeys

    if hub_pk and no_pin:
        raise click.UsageError("give one of --hub-pk and --no-pin")
    return PinnedKeys(TrustedKeys(hub_pks=hub_pk), "--hub-pk") if hub_pk else resolve_pin(session, None, no_pin)


def _check_file(
    data: bytes, file: Path, pinned: "PinnedKeys", policy: "WitnessPolicy | None" = None
) -> "tuple[EvidenceReport, list[Reason]]":
    """Check a file; return its report and the reasons why the verdict is incomplete. Bad evidence is a Fail.

    A file of another hub than that of the context in use is checked under the keys that it names itself.
    """
    from veen.cli.shared.failures import failure_of
    from veen.client.evidence_file import verify_evidence
    from veen.core.evidence_file import EvidenceFault, EvidenceFile, QuorumUnmet
    from veen.core.objects.identity import HubIdentity

    keys, reasons = pinned.keys, list[Reason]()
    while True:
        try:
            return verify_evidence(data, keys, policy), reasons
        except QuorumUnmet as exc:
            reasons.append(Reason(Because.POLICY, str(exc)))
            policy = None
        except EvidenceFault as exc:
            identity = EvidenceFile.from_file(data).identity if exc.code == "E.EVIDENCE.HUB" else None
            reason = pinned.reason(str(exc), None if identity is None else HubIdentity.from_bytes(identity))
            if keys is None or identity is None or reason.because is Because.EVIDENCE:
                raise failure_of(exc, f"{file}: verification FAILED") from exc
            reasons.append(reason)
            keys = None


def _pin_line(pinned: "PinnedKeys") -> str:
    if pinned.keys is None:
        return "keys not pinned: the file itself says which keys are the hub's, so this may be any hub's log"
    return pinned.line()


def _tell_claims(output: Output, report: "EvidenceReport") -> None:
    output.line("it proves:", "head")
    for line in report.proves():
        output.line(f"  {line}")
    output.line("it does not prove:", "head")
    for line in report.limits():
        output.line(f"  {line}")


def _facts(report: "EvidenceReport") -> dict[str, Any]:
    return {
        "hub_id": report.identity.hub_id.hex(),
        "hub_pks": [f"ed25519:{hub_pk.hex()}" for hub_pk in report.signers],
        "stream": report.stream_name,
        "stream_id": None if report.stream_id is None else report.stream_id.hex(),
        "entry_count": len(report.entries),
        "contents": report.contents(),
        "authors": [author.hex() for author in report.authors],
        "logs": [
            {
                "label": log.label.hex(),
                "epoch": log.epoch,
                "ranges": [f"{first}..{last}" for first, last in log.runs],
                "complete": log.is_whole,
                "tree_size": log.checkpoint.upto_seq,
                "root": log.checkpoint.mmr_root.hex(),
                "latest_size": log.latest.upto_seq,
            }
            for log in report.logs
        ],
        "proves": report.proves(),
        "does_not_prove": report.limits(),
    }


def _entry_data(entry: "CheckedEntry") -> dict[str, Any]:
    body, body_hex = None, None
    if entry.body is not None:
        try:
            body = entry.body.decode()
        except UnicodeDecodeError:
            body_hex = entry.body.hex()
    return {
        "seq": entry.seq,
        "label": entry.label.hex(),
        "msg_id": entry.msg_id.hex(),
        "author": entry.author.hex(),
        "client_seq": entry.client_seq,
        "hub_ts": entry.hub_ts,
        "time": when(entry.hub_ts),
        "hub_pk": f"ed25519:{entry.hub_pk.hex()}",
        "content": entry.content,
        "schema": None if entry.hdr is None else entry.hdr.schema.hex(),
        "body": body,
        "body_hex": body_hex,
    }


def _shown(row: dict[str, Any]) -> str:
    if row["content"] == "sealed":
        return "[sealed]"
    text = row["body"] if row["body"] is not None else f"hex:{row['body_hex']}"
    return str(text) if row["content"] == "opened" else f"[stated] {text}"


def _sha256(data: bytes) -> str:
    from hashlib import sha256

    return sha256(data).hexdigest()
