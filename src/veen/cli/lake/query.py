"""`veen query`: ask recorder events, and get an answer that others can check (001 query API)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from veen.cli.lake.where import condition_of, order_of
from veen.cli.lazy import LazyGroup
from veen.cli.shared import options
from veen.cli.shared.bulk import DATA_DIR, DIR_OR_HUB, ENGINE, HUB_IDENTITY, KEY_FILE, MASTER, LogPlace, log_options
from veen.cli.shared.command import FILE, CliSession, client_options, identity_options, several
from veen.cli.shared.output import Fail, Mode, Output
from veen.cli.shared.text import harmless
from veen.cli.shared.values import MOMENT
from veen.cli.shared.verifying import end_by, show_verdict, verdict_json

if TYPE_CHECKING:
    from veen.client.identity.keyring import Keyring
    from veen.lake.query.api import Comparison, Keys, Recorded, Result
    from veen.lake.query.digest import ResultDigest
    from veen.lake.query.remote import QueryConnection
    from veen.lake.query.store import ResultStore
    from veen.lake.query.table_plan import PlanReport
    from veen.lake.query.verdicts import ResultCheck

_FIELDS: Final = (
    "hub_commit_time", "stream", "hub_commit_seq", "event_type", "subject_id", "origin", "payload", "receipt_id",
)  # fmt: skip
_MAX_TOKEN: Final = 4096
_REASONS: Final = 3  # likewise, why the log was read
_SHOWN: Final = 40  # rows that people see before they are told of the others

query = LazyGroup(
    "query",
    help="""Queries over recorder events, with results that anyone can check.

    Exit code 1 means that a receipt, a proof or a digest does not hold.
    """,
    table={
        "cancel": ("veen.products.queryservice.commands:cancel", "End a query of a query service."),
        "serve": ("veen.products.queryservice.commands:serve", "Serve the query API over HTTP, recorded and audited."),
        "sql": ("veen.cli.lake.query_sql:sql", "Answer one SELECT over typed tables."),
        "submit": ("veen.products.queryservice.commands:submit", "Submit a descriptor to a query service."),
        "token": ("veen.products.queryservice.commands:token", "Make a bearer token for a query service."),
    },
)


_READING: Final = (HUB_IDENTITY, KEY_FILE, MASTER, ENGINE)
_PLACE: Final = log_options(*_READING, DATA_DIR)
_STORE: Final = click.option("--store", "store_dir", type=click.Path(file_okay=False), help=options.STORE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """Options of a query service: its URL and the credentials of the caller."""

    url: str | None
    token_file: Path | None
    cert: Path | None
    key: Path | None
    ca_file: Path | None


_PATH: Final = click.Path(path_type=Path)
_SERVICE: Final = several(
    click.option("--service", "url", envvar="VEEN_QUERY_SERVICE", metavar="URL", help="URL of a query service to ask."),
    click.option("--service-token", "token_file", envvar="VEEN_QUERY_TOKEN_FILE", type=_PATH,
                 help="File with the bearer token for --service."),
    click.option("--service-cert", "cert", envvar="VEEN_QUERY_CERT_FILE", type=_PATH,
                 help="Your certificate for --service, in PEM, instead of a token."),
    click.option("--service-key", "key", envvar="VEEN_QUERY_KEY_FILE", type=_PATH,
                 help="Key of --service-cert, in PEM."),
    click.option("--service-ca", "ca_file", envvar="VEEN_QUERY_CA_FILE", type=_PATH,
                 help="Certificates to trust for --service instead of the system's (PEM)."),
)  # fmt: skip


def SERVICE(command: Callable[..., Any]) -> Any:  # noqa: N802 - used like the constants above
    """Give a command its `service`, a ServiceOptions."""

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        service = ServiceOptions(**{name: kwargs.pop(name) for name in ServiceOptions.__slots__})
        return command(*args, service=service, **kwargs)

    return _SERVICE(run)


def query_connection(service: ServiceOptions) -> "QueryConnection":
    from veen.client.home import read_secret
    from veen.lake.query.remote import connect

    if service.url is None:
        raise click.UsageError("Missing option '--service'.")
    if service.token_file is None and service.cert is None:
        raise click.UsageError("--service needs --service-token FILE, or --service-cert FILE and --service-key FILE")
    if (service.cert is None) != (service.key is None):
        raise click.UsageError("--service-cert and --service-key belong together")
    return connect(
        service.url,
        token=None if service.token_file is None else read_secret(service.token_file, _MAX_TOKEN),
        client_cert=service.cert,
        client_key=service.key,
        ca_file=service.ca_file,
    )


@query.verb("run", "Answer a query from a data directory or a hub.")
@click.option("--scope", "scopes", multiple=True, help="Stream, or pattern of names in your keyring. Repeatable.")
@click.option("--type", "types", multiple=True, help="Only events of this type. Repeatable.")
@click.option("--subject", help="Only events of this subject.")
@options.keep_former("--since", "first", former="--from", type=MOMENT, help=options.SINCE)
@options.keep_former("--until", "last", former="--to", type=MOMENT, help=options.UNTIL)
@click.option(
    "--where",
    "conditions",
    multiple=True,
    metavar="FIELD OP VALUE",
    help="Only events that satisfy this condition: = in < <= > >= ^= (prefix). Repeatable.",
)
@click.option("--field", "fields", multiple=True, help="Field of the rows, such as payload.a.b, or '*'. Repeatable.")
@click.option(
    "--order",
    "orders",
    multiple=True,
    metavar="FIELD [desc]",
    help="Field to order rows by. Requires --limit. Repeatable. Default: order of the log.",
)
@click.option("--limit", type=click.IntRange(min=1), help=options.LIMIT)
@click.option("--group-by", "groups", multiple=True, help="Field to aggregate by. Repeatable.")
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    help="Metric: count, or min, max, sum, avg of a field, such as avg(payload.ms). Repeatable.",
)
@click.option("--evidence", type=click.Choice(["none", "spot", "full"]), default="none", show_default=True,
              help="Rows to verify down to receipts and proofs: none, a sample, or all.")  # fmt: skip
@click.option("--sample-rate", help="Proportion of rows to verify with --evidence spot, such as 0.1.")
@click.option("--descriptor", "file", type=click.File("rb"), help=f"{options.DESCRIPTOR} Instead of the options.")
@click.option(
    "--tables", metavar="TABLES", help="Tables to answer from, as far as they are proven to cover the log. Same result."
)
@log_options(*_READING, DIR_OR_HUB)
@_STORE
@client_options
def run(
    output: Output,
    session: CliSession,
    file: Any,
    tables: str | None,
    place: LogPlace,
    store_dir: str | None,
    **asked: Any,
) -> None:
    """Answer a query, store the result, and print its coverage. A hub may write to the directory meanwhile.

    Entries that a running hub has in its journal only are answered, too. Without --data-dir the hub of --hub or of the
    context is asked for new entries of the scope, which are kept in your home; they are sealed.

    In --where a value is a number, true, false or a text; quotes make a text of a number: payload.code="42".

    \b
    veen query run --data-dir ./hub --scope 'record/app/*' --type login --evidence full
    veen query run --data-dir ./hub --scope record/app/http --where payload.level=error --where 'payload.ms>=100'
    veen query run --data-dir ./hub --scope record/app/http --field payload.ms --order 'payload.ms desc' --limit 10
    veen query run --data-dir ./hub --scope record/app/http --group-by origin --metric count --since -1h
    veen query run --data-dir ./hub --tables ./tables --scope record/app/http --subject alice
    veen query run --hub https://hub.example --scope record/app/http --limit 10
    """
    from veen.lake.query import api
    from veen.lake.query.descriptor import normalise

    keys = place.keys(session)
    question = file.read() if file is not None else _descriptor(asked, keys)
    store = _store(session, store_dir)
    directory = place.data_dir
    if not directory:
        scope = normalise(question).descriptor
        api.check_scope(scope, keys)
        directory = place.locate(session, output, scope.stream_names.keys())
    place = place.choose_engine(output, directory)
    with output.progress("answering") as progress, place.spark("veen query", progress) as spark:
        answer = api.run(
            directory,
            question,
            keys=keys,
            engine=place.engine,
            store=store,
            identity=place.identity(),
            spark=spark,
            tables=tables,
        )
    for name in answer.ignored_filters:
        output.note(f"the filter {name!r} is not known and has no effect")
    _show(output, answer, _columns(question, asked))
    _tell_plan(output, answer.plan)
    _tell_skipped(output, answer.skipped)
    _tell_empty(output, answer)
    for path in answer.unknown_fields:
        output.note(f"no event in scope has a field {path}: check its name; the empty result proves nothing")
    output.next(f"veen query verify {answer.digest.result_id} --data-dir {directory}")


def _descriptor(asked: Mapping[str, Any], keys: "Keys") -> dict[str, Any]:
    from decimal import Decimal, InvalidOperation

    from veen.lake.log.keys import KeyFile
    from veen.lake.query.fields import timestamp

    if not asked["scopes"]:
        raise click.UsageError("Missing option '--scope'.")
    keyring = keys.load() if isinstance(keys, KeyFile) else keys
    first, last, rate = asked["first"], asked["last"], asked["sample_rate"]
    try:
        evidence: dict[str, Any] = {"mode": asked["evidence"], "sample_rate": None if rate is None else Decimal(rate)}
        time = {"from": None if first is None else timestamp(first), "to": None if last is None else timestamp(last)}
    except (InvalidOperation, ValueError) as exc:
        raise click.UsageError(f"{rate!r} is not a sample rate such as 0.1" if rate else str(exc)) from exc
    question: dict[str, Any] = {
        "scope": [name for pattern in asked["scopes"] for name in _expand(pattern, keyring)],
        "filter": {"subject_id": asked["subject"], "event_type": list(asked["types"]) or None, "time": time},
        "projection": list(asked["fields"]) or list(_FIELDS),
        "evidence": evidence,
        "order": [order_of(text) for text in asked["orders"]],
        "limit": asked["limit"],
    }
    if asked["conditions"]:
        question["filter"]["where"] = [condition_of(text) for text in asked["conditions"]]
    if asked["groups"] or asked["metrics"]:
        question["aggregate"] = {"group_by": list(asked["groups"]), "metrics": list(asked["metrics"]) or ["count"]}
        question["projection"] = list(asked["fields"]) or list(asked["groups"]) or ["event_type"]
    return question


def _expand(pattern: str, keyring: "Keyring") -> Iterable[str]:
    """Expand a pattern to the names that the keyring knows: streams are hashes (D-22)."""
    if not any(character in pattern for character in "*?["):
        return [pattern]
    names = [keys.name for keys in keyring.find_matching(pattern) if keys.name is not None]
    if not names:
        raise click.UsageError(f"no stream in the keyring has a name like {pattern!r}")
    return names


def _store(session: CliSession, store_dir: str | None) -> "ResultStore":
    from veen.lake.query.store import ResultStore

    return ResultStore(Path(store_dir) if store_dir is not None else session.user_home.data / "queries")


# --- results -----------------------------------------------------------------------------------------------------


def _columns(question: Any, asked: Mapping[str, Any]) -> Sequence[str]:
    """Return the columns in the order of the request: a descriptor has them sorted."""
    from veen.core import canonical

    if isinstance(question, bytes):
        question = canonical.parse(question)  # it was answered, so it is a descriptor
        aggregate = question.get("aggregate") or {}
        return (*(aggregate.get("group_by") or ()), *aggregate.get("metrics", ()), *question["projection"])
    return (*asked["groups"], *asked["metrics"], *(asked["fields"] or _FIELDS))


def _show(output: Output, answer: "Result", order: Sequence[str]) -> None:
    digest = answer.digest
    beside = {
        "result_digest": digest.to_json(),
        "coverage": answer.coverage,
        "skipped": dict(answer.skipped),
        "plan": answer.plan.to_json(),
        "unknown_fields": list(answer.unknown_fields),
    }
    show_rows(output, answer.rows(), beside, order)
    facts = [*_facts(digest, answer.coverage), ("answered from", _plan_words(answer.plan))]
    if output.mode is Mode.HUMAN:
        if digest.row_count > _SHOWN:
            output.note(f"{_SHOWN} of {digest.row_count} rows; all of them: veen query result {digest.result_id}")
        output.fields(facts)
    elif output.mode is Mode.PLAIN:  # stdout has the rows, and nothing that could be taken for one
        output.note("; ".join(f"{name} {value}" for name, value in facts))


def _text(value: Any) -> str:
    """Return JSON from the canonical form: every digit of a number stays."""
    from veen.core import canonical

    return harmless(canonical.encode(value).decode())


def show_rows(
    output: Output, rows: Iterable[Mapping[str, Any]], beside: Mapping[str, Any], order: Sequence[str] = _FIELDS
) -> None:
    """Print rows as they come; columns in this order, then the others."""
    if output.mode is Mode.NDJSON:
        for row in rows:
            click.echo(_text(row))
        return
    if output.mode is Mode.JSON:
        click.echo('{"rows":[', nl=False)
        for number, row in enumerate(rows):
            click.echo(("," if number else "") + "\n" + _text(row), nl=False)
        click.echo("\n]" + "".join(f',"{name}":{_text(value)}' for name, value in beside.items()) + "}")
        return
    remaining = iter(rows)
    first = next(remaining, None)
    if first is None:
        return
    names = dict.fromkeys("payload" if name == "payload.*" else name for name in order)
    columns = [name for name in names if name in first] + [name for name in first if name not in names]
    with output.records("rows", columns) as records:
        for number, row in enumerate(chain((first,), remaining)):
            if number >= _SHOWN and output.mode is Mode.HUMAN:
                break
            records.add(row, [cell if isinstance(cell := row[name], str) else _text(cell) for name in columns])


def _facts(digest: "ResultDigest", coverage: Any) -> list[tuple[str, Any]]:
    labels = [label for stream in coverage["streams"] for label in stream["labels"]]
    covered = f"{sum(label['to_seq'] for label in labels)} entries of {len(labels)} labels"
    return [
        ("result_id", digest.result_id),
        ("query_id", digest.query_id),
        ("rows", digest.row_count),
        ("rows_hash", digest.rows_hash),
        ("evidence", digest.evidence_policy.mode),
        ("evidence_hash", digest.evidence_hash),
        ("covers", covered),
        ("coverage_hash", digest.coverage_hash),
        ("hub_id", digest.hub_id),
    ]


def _plan_words(plan: "PlanReport") -> str:
    if plan.tables is None:
        return plan.source
    opened = f"{plan.files} of {plan.files_total} files of version {plan.version}"
    return f"{plan.source}: {opened}, {plan.entries_log} entries of the log"


def _tell_plan(output: Output, plan: "PlanReport") -> None:
    """Note why the given tables did not answer everything."""
    for reason in plan.reasons[:_REASONS]:
        output.note(f"from the log: {reason}")
    if len(plan.reasons) > _REASONS:
        output.note(f"from the log: {len(plan.reasons) - _REASONS} more labels; --json has all of them")


def _tell_skipped(output: Output, skipped: Mapping[str, int]) -> None:
    for kind, count in skipped.items():
        output.note(f"{count} entries in range are no rows: {kind}; the coverage says where")


def _tell_empty(output: Output, answer: "Result") -> None:
    """Note a reason for no rows: the streams have other bodies than recorder events."""
    others = answer.skipped.get("schema", 0)
    if others and not answer.digest.row_count:
        output.note(
            f"0 rows: {others} entries are no recorder events (schema sdr.event.v1), and queries read no others. "
            "Write events with: veen recorder emit STREAM --type TYPE --subject SUBJECT JSON; "
            "read other bodies with: veen stream STREAM"
        )


@query.verb("result", "Fetch a stored result, page by page.")
@click.argument("result_id")
@click.option("--offset", type=click.IntRange(min=0), default=0, show_default=True, help=options.OFFSET)
@click.option("--limit", type=click.IntRange(1, 10_000), default=1000, show_default=True, help=options.LIMIT)
@_STORE
@SERVICE
@identity_options
def result(
    output: Output,
    session: CliSession,
    result_id: str,
    offset: int,
    limit: int,
    store_dir: str | None,
    service: ServiceOptions,
) -> None:
    """Fetch rows of a stored result. Order and digest are those of the whole result, whatever the page.

    Rows are checked against the digest before they are printed: exit code 1 and no row if they are others. The verdict
    is about the rows of the page; query verify checks the digest itself by the log.

    \b
    veen query result r-… --offset 1000
    veen query result r-… --service https://query.example --service-token alice.token
    """
    from veen.core import canonical
    from veen.core.verdict import Because, Reason, Verdict
    from veen.lake.query.digest import ResultDigest
    from veen.lake.query.errors import ResultForged
    from veen.lake.query.verdicts import page_verdict

    try:
        if service.url is not None:
            with query_connection(service) as connection:
                page = connection.page(result_id, offset, limit)
        else:
            page = _store(session, store_dir).page(result_id, offset, limit).to_json()
    except ResultForged as exc:
        page, verdict = {"rows": []}, Verdict.of([], [Reason(Because.EVIDENCE, str(exc))])
    else:
        digest = ResultDigest.from_bytes(canonical.encode(page["result_digest"]))
        verdict = page_verdict(digest, offset, limit, len(page["rows"]))
    beside = {name: value for name, value in page.items() if name != "rows"} | verdict_json(verdict)
    show_rows(output, page["rows"], beside)
    if output.mode is Mode.HUMAN:
        show_verdict(output, verdict)
    elif output.mode is Mode.PLAIN:
        output.note(f"verdict: {verdict.value.value}")
    end_by(verdict, f"result {result_id}", hint="do not use the rows; answer the query again: veen query run")
    if page["page"]["has_more"]:
        output.next(f"veen query result {result_id} --offset {offset + len(page['rows'])}")


@query.verb("status", "Progress of a query.")
@click.argument("result_id")
@_STORE
@SERVICE
@identity_options
def status(
    output: Output,
    session: CliSession,
    result_id: str,
    store_dir: str | None,
    service: ServiceOptions,
) -> None:
    """Show the progress of a query, and why it failed if it did.

    \b
    veen query status r-… --service https://query.example --service-token alice.token
    """
    if service.url is not None:
        with query_connection(service) as connection:
            state = connection.status(result_id)
    else:
        state = _store(session, store_dir).status(result_id).to_json()
    output.result(state)


@query.verb("descriptor", "Show what a query asked, as it is recorded.")
@click.argument("query_id")
@_STORE
@SERVICE
@identity_options
def descriptor(
    output: Output,
    session: CliSession,
    query_id: str,
    store_dir: str | None,
    service: ServiceOptions,
) -> None:
    """Show the normalised descriptor of a query in canonical JSON: the bytes that are recorded and hashed.

    \b
    veen query descriptor q-…
    """
    if service.url is not None:
        with query_connection(service) as connection:
            click.echo(_text(connection.descriptor(query_id)["descriptor"]))
        return
    click.echo(_text(_store(session, store_dir).descriptor(query_id).to_json()))


# --- again ---------------------------------------------------------------------------------------------------------


@query.verb("verify", "Answer a stored query again over the same entries, and compare.")
@click.argument("result_id")
@_PLACE
@_STORE
@SERVICE
@identity_options
def verify(
    output: Output,
    session: CliSession,
    result_id: str,
    place: LogPlace,
    store_dir: str | None,
    service: ServiceOptions,
) -> None:
    """Answer a query again over exactly the entries it covered, under the same roots, and compare.

    The rows of the result are checked against its digest, and the digest by the log. A row that was left out, added or
    changed shows, and so does a log that was rewritten since: exit code 1. If the directory does not have all entries
    that the result covers, the verdict is incomplete: exit code 6.

    With --service the result of a query service is fetched and checked in the same way, and also that it left out no
    entry that stood in the log a minute before it was executed, and that it was executed after it was asked for.

    \b
    veen query verify r-… --data-dir ./hub
    veen query verify r-… --data-dir ./replica --service https://query.example --service-token alice.token
    """
    from veen.core.errors import VerifyError
    from veen.core.verdict import Because, Reason, Verdict
    from veen.lake.query import api
    from veen.lake.query.verdicts import ResultCheck, check_result

    keys = place.keys(session)
    try:
        recorded = _fetch(output, result_id, place, service) if service.url is not None else None
        if recorded is None:
            recorded = api.load_stored(_store(session, store_dir), result_id)
    except VerifyError as exc:
        verdict = Verdict.of([], [Reason(Because.EVIDENCE, str(exc))])
        _show_check(output, result_id, ResultCheck(verdict=verdict, comparison=None))
        return
    place = place.choose_engine(output)
    with output.progress("answering again") as progress, place.spark("veen query", progress) as spark:
        check = check_result(
            place.data_dir, recorded, keys=keys, engine=place.engine, identity=place.identity(), spark=spark
        )
    _show_check(output, result_id, check)


def _fetch(output: Output, result_id: str, place: LogPlace, service: ServiceOptions) -> "Recorded":
    """Fetch a result of a service, and check its rows and its times."""
    from veen.lake.query import api

    with query_connection(service) as connection:
        remote = connection.result(result_id)
        for _ in remote.rows():  # hashed as they come
            pass
    api.check_fresh(place.data_dir, remote, identity=place.identity())
    if not api.check_requested(place.data_dir, remote, remote.record_event):
        output.note("not checked that the result is younger than its request: this log does not have the request")
    return remote


@query.verb("replay", "Answer a recorded query from another directory, and compare.")
@click.argument("result_id", required=False)
@click.option("--descriptor", "descriptor_file", type=FILE, help=f"{options.DESCRIPTOR} Instead of RESULT_ID.")
@click.option("--digest", "digest_file", type=FILE, help="File with the ResultDigest of --descriptor.")
@_PLACE
@_STORE
@identity_options
def replay(
    output: Output,
    session: CliSession,
    result_id: str | None,
    descriptor_file: str | None,
    digest_file: str | None,
    place: LogPlace,
    store_dir: str | None,
) -> None:
    """Answer a recorded query from all that another directory has, as another zone does, and compare.

    \b
    veen query replay r-… --data-dir ./replica
    veen query replay --descriptor descriptor.json --digest digest.json --data-dir ./replica
    """
    from veen.lake.query import api

    if (result_id is None) == (descriptor_file is None) or (descriptor_file is None) != (digest_file is None):
        raise click.UsageError("give RESULT_ID, or --descriptor and --digest")
    recorded = (
        api.load_stored(_store(session, store_dir), result_id)
        if result_id is not None
        else _read_recorded(str(descriptor_file), str(digest_file))
    )
    keys = place.keys(session)
    place = place.choose_engine(output)
    with output.progress("answering again") as progress, place.spark("veen query", progress) as spark:
        comparison = api.replay(
            place.data_dir, recorded, keys=keys, engine=place.engine, identity=place.identity(), spark=spark
        )
    _compare(output, comparison)


def _read_recorded(descriptor_file: str, digest_file: str) -> "Recorded":
    from veen.lake.query.api import make_recorded
    from veen.lake.query.descriptor import QueryDescriptor
    from veen.lake.query.digest import ResultDigest

    return make_recorded(
        QueryDescriptor.from_bytes(Path(descriptor_file).read_bytes().rstrip(b"\n")),
        ResultDigest.from_bytes(Path(digest_file).read_bytes()),
    )


def _comparison_json(comparison: "Comparison") -> dict[str, Any]:
    before, after = comparison.before.to_json(), comparison.after.to_json()
    return {"ok": comparison.ok, "differences": list(comparison.differences), "before": before, "after": after}


def _comparison_table(output: Output, comparison: "Comparison") -> None:
    before, after = comparison.before.to_json(), comparison.after.to_json()
    rows = [
        (name, "equal" if before[name] == after[name] else "DIFFERENT", after[name]) for name in comparison.compared
    ]
    output.table(("what", "", "now"), rows)


def _show_check(output: Output, result_id: str, check: "ResultCheck") -> None:
    comparison, verdict = check.comparison, check.verdict
    data = {} if comparison is None else _comparison_json(comparison)
    if output.as_json:
        click.echo(_text(data | verdict_json(verdict)))
    else:
        if comparison is not None:
            _comparison_table(output, comparison)
        show_verdict(output, verdict)
    end_by(verdict, f"result {result_id}")


def _compare(output: Output, comparison: "Comparison") -> None:
    if output.as_json:
        click.echo(_text(_comparison_json(comparison)))
    else:
        _comparison_table(output, comparison)
    if not comparison.ok:
        before, after = comparison.before.to_json(), comparison.after.to_json()
        name = comparison.differences[0]
        raise Fail(
            "E.VERIFY",
            f"result {comparison.before.result_id}: the answer differs",
            f"{name} was {before[name]} and is {after[name]}",
            "check that directory and keys are the same; then: veen audit run DIR",
        )
