"""The commands of `veen op` that read: a fold under the reader's policy, and what it shows."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from veen.cli.op.args import Reading, identity_of, op_options
from veen.cli.op.verbs import NOUNS, OpNoun
from veen.cli.op.write import add_verb, content_root_of, id_of
from veen.cli.shared.as_of import View, view_options
from veen.cli.shared.command import FILE, CliSession
from veen.cli.shared.names import STREAM
from veen.cli.shared.nouns import Noun
from veen.cli.shared.output import Exit, Fail, Output, output_options
from veen.cli.shared.overlay_commands import absent, show_folded, state_of
from veen.cli.shared.overlay_values import plain
from veen.cli.shared.text import short

if TYPE_CHECKING:
    from veen.cli.shared.folding import Folded

Rows = Iterable[Sequence[Any]]
Shown = Callable[[Any, int], tuple[Mapping[str, Any], Sequence[str], Rows]]  # state, as_of → data, columns, rows

_PATH = click.Path(exists=True, path_type=Path)


def _folded(session: CliSession, noun: str, stream: str, reading: Reading, view: View) -> "Folded":
    streams = reading.streams(stream)
    return state_of(session, reading.fold(session, NOUNS[noun].fold, streams), streams, view)


def noun_of(noun: OpNoun) -> Noun:
    """The group of a noun of the table."""
    root = {"root": ("veen.cli.op.views:publication_root", noun.reads.get("root", ""))}
    group = Noun(
        noun.name,
        noun.about,
        takes=[click.argument("stream", type=STREAM)],
        writes=[op_options],
        reads=[op_options, view_options],
        others=root if "root" in noun.reads else None,
    )
    for name, verb in noun.writes.items():
        add_verb(group, noun, name, verb)
    _add_list(group, noun, LISTS[noun.name])
    if noun.name == "publication":
        group.read("verify", noun.reads["verify"], *_VERIFY)(_publication_verify)
    if noun.name == "audit":
        group.read("missing", noun.reads["missing"], click.argument("file", type=FILE))(_audit_missing)
    return group


def _add_list(group: Noun, noun: OpNoun, shown: Shown) -> None:
    text = f"{noun.reads['list']}\n\nNow, or at another moment: --as-of takes a position (120) or a time (-1d)."

    @group.read("list", noun.reads["list"], text=text)
    def _list(session: CliSession, stream: str, reading: Reading, view: View) -> None:
        folded = _folded(session, noun.name, stream, reading, view)
        data, columns, rows = shown(folded.state, folded.as_of)
        show_folded(session, folded, data, lambda: session.output.table(columns, rows))


def _paid(state: Any, as_of: int) -> tuple[Mapping[str, Any], Sequence[str], Rows]:
    balances = [
        {"account": account, "currency": currency, "balance": balance}
        for (account, currency), balance in state.balances.items()
    ]
    data = {"balances": balances, "operations": state.operations, "sums": state.sums()}
    return data, ("account", "currency", "balance"), [[plain(cell) for cell in row.values()] for row in balances]


def _access(state: Any, as_of: int) -> tuple[Mapping[str, Any], Sequence[str], Rows]:
    grants = [{**plain(grant), "live": grant.is_live(as_of)} for grant in state.grants.values()]
    rows = [
        (
            grant["operation_id"],
            short(bytes.fromhex(grant["subject"])),
            grant["expiry_time"],
            "live" if grant["live"] else "ended",
        )
        for grant in grants
    ]
    data = {"grants": grants, "revocations": state.revocations, "revoked_refs": state.revoked_refs}
    return data, ("grant", "subject", "expires", "state"), rows


def _delegation(state: Any, as_of: int) -> tuple[Mapping[str, Any], Sequence[str], Rows]:
    rows = [
        (key.hex(), short(execution.principal), short(execution.agent), len(execution.chain))
        for key, execution in state.items()
    ]
    return {"executions": state}, ("operation", "principal", "agent", "links"), rows


def _agreement(state: Any, as_of: int) -> tuple[Mapping[str, Any], Sequence[str], Rows]:
    rows = [
        (
            agreement_id.hex(),
            version,
            "accepted" if state.is_accepted(agreement_id, version) else "open",
            "active" if state.active.get(agreement_id) == version else "",
        )
        for agreement_id, version in state.definitions
    ]
    data = {"definitions": state.definitions, "decisions": state.decisions, "active": state.active}
    return data, ("agreement", "version", "decisions", "now"), rows


def _publication(state: Any, as_of: int) -> tuple[Mapping[str, Any], Sequence[str], Rows]:
    rows = [
        (publication_id.hex(), version, entry.content_class, entry.content_root.hex())
        for (publication_id, version), entry in state.versions.items()
    ]
    return {"versions": state.versions}, ("publication", "version", "class", "content_root"), rows


def _recovery(state: Any, as_of: int) -> tuple[Mapping[str, Any], Sequence[str], Rows]:
    rows = [
        (target.hex(), new.hex(), "open" if request.is_open else "closed", _decisions(state, target, new))
        for (target, new), request in state.requests.items()
    ]
    data = {"requests": state.requests, "decisions": state.decisions, "remapped": state.remapped}
    return data, ("target", "new", "request", "decisions"), rows


def _decisions(state: Any, target: bytes, new: bytes) -> str:
    decisions = [entry.decision for (of, to, _), entry in state.decisions.items() if (of, to) == (target, new)]
    return f"{decisions.count('approve')} approve, {decisions.count('reject')} reject"


def _audit(state: Any, as_of: int) -> tuple[Mapping[str, Any], Sequence[str], Rows]:
    rows = [
        (access.hub_ts, short(access.requester), access.resource, access.resource_class, access.purpose_code or "")
        for access in state.values()
    ]
    return {"accesses": state}, ("hub_ts", "requester", "resource", "class", "purpose"), rows


def _mirror(state: Any, as_of: int) -> tuple[Mapping[str, Any], Sequence[str], Rows]:
    sources = [
        {"source": source, "label": label, "upto": entry.upto, "gaps": entry.gaps(), "positions": entry.positions}
        for (source, label), entry in state.items()
    ]
    rows = [(entry["source"], entry["label"].hex(), entry["upto"], len(entry["gaps"])) for entry in sources]
    return {"sources": sources}, ("source", "label", "upto", "gaps"), rows


LISTS: Final[Mapping[str, Shown]] = {
    "paid": _paid,
    "access": _access,
    "delegation": _delegation,
    "agreement": _agreement,
    "publication": _publication,
    "recovery": _recovery,
    "audit": _audit,
    "mirror": _mirror,
}


@click.command("root")
@click.argument("paths", type=_PATH, nargs=-1, required=True)
@output_options
def publication_root(output: Output, paths: tuple[Path, ...]) -> None:
    """The content root of PATHS: one directory, or files in their order. No hub is asked."""
    form, root = content_root_of(paths)
    output.result({"content_form": form, "content_root": root.hex()})


_VERIFY: Final = (
    click.argument("publication_id", metavar="ID"),
    click.argument("paths", type=_PATH, nargs=-1, required=True),
    click.option("--version", help="The version; default: the one that survives."),
    click.option(
        "--rule",
        type=click.Choice(["latest", "highest"]),
        default="latest",
        show_default=True,
        help="Which version survives: the latest in the log, or the highest semantic version.",
    ),
)


def _publication_verify(
    session: CliSession,
    stream: str,
    publication_id: str,
    paths: tuple[Path, ...],
    version: str | None,
    rule: Any,
    reading: Reading,
    view: View,
) -> None:
    """Check that PATHS are what was published as ID: every receipt on the way is verified. Exit code 1 if they are not.

    \b
    veen op publication verify models llama ./llama --version v1.2.0
    """
    from veen.overlays.framework.decode import Violation
    from veen.overlays.operations.publication import check_content

    folded = _folded(session, "publication", stream, reading, view)
    ident = id_of(publication_id)
    if version is None:
        current = folded.state.current(ident, rule)
    else:
        entry = folded.state.versions.get((ident, version))
        current = None if entry is None else (version, entry)
    if current is None:
        raise absent(f"publication {publication_id} {version or ''}".rstrip(), f"veen op publication list {stream}")
    form, root = content_root_of(paths)
    name, published = current
    try:
        check_content(published, root)
    except Violation as exc:
        raise Fail(
            exc.code,
            f"this is NOT version {name} of {publication_id}",
            exc.what,
            "get the content from its publisher again; a directory is given alone, files in the order of publishing",
            exit_code=Exit.BAD_EVIDENCE,
        ) from exc
    data = {"publication_id": ident, "version": name, "content_form": form, "content_root": root, "verified": True}
    facts = [("version", name), ("content_root", root.hex()), ("entry", f"{published.stream_seq}, receipt verified")]
    show_folded(session, folded, {**data, "msg_id": published.msg_id}, lambda: session.output.fields(facts))


def _audit_missing(session: CliSession, stream: str, file: str, reading: Reading, view: View) -> None:
    """Accesses in FILE of which no audit message tells; exit code 6 if there are any (QAUD.MISSING).

    FILE has a JSON object in each line: requester (an identity), resource, and request_time where it must match.

    \b
    veen op audit missing audit accesses.ndjson
    """
    from veen.overlays.operations.queryaudit import missing

    accesses = [_access_of(session, line, number) for number, line in enumerate(_lines(file), start=1)]
    folded = _folded(session, "audit", stream, reading, view)
    unaudited = missing(accesses, folded.state.values())
    rows = [(access.requester.hex(), access.resource, access.request_time) for access in unaudited]
    data = {"missing": unaudited, "accesses": len(accesses)}
    show_folded(session, folded, data, lambda: session.output.table(("requester", "resource", "request_time"), rows))
    if unaudited:
        raise Fail(
            "QAUD.MISSING",
            f"{len(unaudited)} of {len(accesses)} accesses have no audit message",
            "the domain demands a message for every access",
            "ask the service that served them; veen explain QAUD.MISSING",
        )


def _lines(path: str) -> list[str]:
    try:
        return [line for line in Path(path).read_text("utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError as exc:
        raise click.UsageError(f"{path} is not UTF-8 text") from exc


def _access_of(session: CliSession, line: str, number: int) -> Any:
    from veen.overlays.operations.queryaudit import AuditedAccess

    try:
        access = json.loads(line)
        at = access.get("request_time")
        if (
            not isinstance(access["requester"], str)
            or not isinstance(access["resource"], str)
            or type(at) not in _TIMES
        ):
            raise TypeError
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
        raise click.UsageError(f"line {number} is no JSON object with requester, resource and request_time") from exc
    return AuditedAccess(identity_of(session, access["requester"]), access["resource"], at)


_TIMES = (int, type(None))
