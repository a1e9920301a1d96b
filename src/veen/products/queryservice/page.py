"""Console page of queries: a form, the descriptor as JSON and as SQL; the answer with evidence, coverage and digest.

Form and JSON are equivalent: a query sent in either is shown in both. Answers need the data directory of the hub
(`--data-dir`), because the engine reads logs, not hubs. The history is the log itself: record/query/*.
"""

import asyncio
import shlex
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

import click

from veen.cli.lake.where import condition_of
from veen.cli.shared.text import compact, pretty
from veen.cli.shared.values import MOMENT
from veen.core import canonical
from veen.lake.query import api
from veen.lake.query.descriptor import QueryDescriptor, normalise
from veen.lake.query.errors import QUERY_REFUSALS, EvidenceFailed
from veen.lake.query.fields import timestamp
from veen.lake.query.recording import AUDIT, REQUESTS, RESULTS
from veen.products.console.charts import NumberRun, ranges
from veen.products.console.errors import BadAddress
from veen.products.console.pages import Page
from veen.products.console.views import CONSOLE, Console, DigestCell, LinkCell, MarkCell, PageView, Query, Section
from veen.products.queryservice.history import QueryHistory

_MAX_DESCRIPTOR: Final = 16_384
_SHOWN: Final = 100
_CELL_CHARS: Final = 160  # of a value in the table; the twin has all of it
_FIELDS: Final = (
    "hub_commit_time", "stream", "hub_commit_seq", "event_type", "subject_id", "origin", "payload", "receipt_id",
)  # fmt: skip
_FORM: Final = ("scope", "type", "subject", "from", "to", "where", "limit", "evidence")
_TABLE: Final = "typed_sdr_event_v1"
_SQL_NAMES: Final = {"hub_commit_time": "hub_time", "hub_commit_seq": "stream_seq"}
_SQL_TIMES: Final = ("hub_time", "event_time")


async def query(console: Console, asked: Query) -> PageView:
    scopes = [str(keys) for keys in console.shown_streams() if keys.can_read and str(keys).startswith("record/")]
    refusal: str | None = None
    descriptor: QueryDescriptor | None = None
    values = {name: asked.get(name, "").strip()[:1024] for name in _FORM}
    try:
        question = _question(asked, values, scopes)
        if question is not None:
            descriptor, _ = normalise(question)
            values = _form_values(descriptor)
    except (*QUERY_REFUSALS, BadAddress, click.ClickException, ValueError) as exc:
        refusal = exc.format_message() if isinstance(exc, click.ClickException) else str(exc)
    result: api.Result | None = None
    rows: list[dict[str, Any]] = []
    if descriptor is not None and console.local.data_dir is not None and asked.get("run", "yes") == "yes":
        try:
            result, rows = await asyncio.to_thread(_answer, console, descriptor)
        except EvidenceFailed:
            raise
        except QUERY_REFUSALS as exc:
            refusal = f"{exc.error_code}: {exc}"
    history = await _history(console)
    sections = _sections(console, descriptor, result, rows, refusal)
    sections.append(_history_section(history))
    return PageView(
        template="report.html",
        title="Query",
        command=_command(descriptor, values),
        data={
            "descriptor": None if descriptor is None else _json(descriptor),
            "sql": None if descriptor is None else sql_of(descriptor),
            "refusal": refusal,
            "digest": None if result is None else result.digest.to_json(),
            "coverage": None if result is None else _plain(result.coverage),
            "rows": [_plain(row) for row in rows],
            "history": history,
            "form": {
                "values": values,
                "scopes": scopes,
                "descriptor": "" if descriptor is None else pretty(_json(descriptor)),
            },
        },
        verified_by=CONSOLE if result is not None and result.digest.evidence_policy.mode == "full" else None,
        verified_what=_describe_verification(result, descriptor, console),
        sections=tuple(sections),
        form="query_form.html",
    )


def _question(asked: Query, values: Mapping[str, str], scopes: list[str]) -> Any:
    """Return the descriptor as sent, or built from the form; None without a query."""
    text = asked.get("descriptor", "").strip()
    if text:
        if len(text) > _MAX_DESCRIPTOR:
            raise BadAddress(f"the descriptor has more than {_MAX_DESCRIPTOR} characters")
        return text.encode()
    return descriptor_of(values) if values["scope"] else None


def descriptor_of(values: Mapping[str, str]) -> dict[str, Any]:
    """Build a descriptor from the fields of the form. Raise click.UsageError or BadParameter for invalid values."""

    def moment(name: str) -> str | None:
        return timestamp(MOMENT.convert(values[name], None, None)) if values[name] else None

    question: dict[str, Any] = {
        "scope": values["scope"].split(),
        "filter": {
            "subject_id": values["subject"] or None,
            "event_type": values["type"].split() or None,
            "time": {"from": moment("from"), "to": moment("to")},
        },
        "projection": list(_FIELDS),
        "evidence": {"mode": values["evidence"] or "full"},
        "limit": int(values["limit"]) if values["limit"].isascii() and values["limit"].isdigit() else None,
    }
    if values["where"]:
        question["filter"]["where"] = [condition_of(text) for text in values["where"].split(" and ")]
    return question


def _form_values(descriptor: QueryDescriptor) -> dict[str, str]:
    """Return the form for a descriptor; members without a field stay in the JSON."""
    value = _json(descriptor)
    where = [f"{item['field']} {item['op']} {compact(item['value'])}" for item in value["filter"].get("where", ())]
    time = value["filter"]["time"]
    return {
        "scope": " ".join(value["scope"]),
        "type": " ".join(value["filter"]["event_type"] or ()),
        "subject": value["filter"]["subject_id"] or "",
        "from": time["from"] or "",
        "to": time["to"] or "",
        "where": " and ".join(where),
        "limit": str(value.get("limit") or ""),
        "evidence": value["evidence"]["mode"],
    }


def _json(descriptor: QueryDescriptor) -> dict[str, Any]:
    value: dict[str, Any] = _plain(canonical.parse(descriptor.to_bytes()))
    return value


def _plain(value: Any) -> Any:
    """Return a value with exact decimals as text, for a page."""
    if isinstance(value, dict):
        return {name: _plain(element) for name, element in value.items()}
    if isinstance(value, list):
        return [_plain(element) for element in value]
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


# --- SQL -----------------------------------------------------------------------------------------------------------


def sql_of(descriptor: QueryDescriptor) -> str:
    """Return the same query over the typed table of `veen table load`, for `veen query sql`."""
    value = _json(descriptor)
    aggregate = value.get("aggregate")
    columns = [_select_column(name) for name in value["projection"]]
    if aggregate:
        columns = [_select_column(name) for name in aggregate["group_by"] or ()] + [
            _metric(name) for name in aggregate["metrics"]
        ]
    conditions = ["issue IS NULL", f"stream IN ({', '.join(map(_quote_sql, descriptor.scope))})"]
    filters = value["filter"]
    if filters["subject_id"] is not None:
        conditions.append(f"subject_id = {_quote_sql(filters['subject_id'])}")
    if filters["event_type"] is not None:
        conditions.append(f"event_type IN ({', '.join(map(_quote_sql, filters['event_type']))})")
    for name, operator in (("from", ">="), ("to", "<=")):
        if filters["time"][name] is not None:
            conditions.append(f"hub_time {operator} TIMESTAMPTZ {_quote_sql(filters['time'][name])}")
    conditions += [_condition(item) for item in filters.get("where", ())]
    lines = [f"SELECT {', '.join(columns) or '*'}", f"FROM {_TABLE}", f"WHERE {' AND '.join(conditions)}"]
    if aggregate and aggregate["group_by"]:
        lines.append(f"GROUP BY {', '.join(_column(name) for name in aggregate['group_by'])}")
    order = [f"{_column(item['field'])} {item.get('direction', 'asc').upper()}" for item in value.get("order") or ()]
    if order or not aggregate:
        lines.append(f"ORDER BY {', '.join(order) or 'hub_time, stream, stream_seq'}")
    if value.get("limit"):
        lines.append(f"LIMIT {value['limit']}")
    return "\n".join(lines)


def _column(name: str) -> str:
    if name.startswith("payload.") and name != "payload.*":
        return f"json_extract_string(payload, {_quote_sql('$.' + name.removeprefix('payload.'))})"
    return _SQL_NAMES.get(name, name.removesuffix(".*"))


def _select_column(name: str) -> str:
    column = _column(name)
    return column if column == name else f'{column} AS "{name.removesuffix(".*")}"'


def _metric(name: str) -> str:
    if name == "count":
        return "count(*)"
    function, _, rest = name.partition("(")
    return f"{function}({_column(rest.removesuffix(')'))})"


def _condition(item: Mapping[str, Any]) -> str:
    column, value = _column(item["field"]), item["value"]
    if column in _SQL_TIMES and item["op"] != "^=":
        return f"{column} {item['op']} TIMESTAMPTZ {_quote_sql(value)}"
    if isinstance(value, int) and not isinstance(value, bool):
        column = f"TRY_CAST({column} AS DECIMAL(38, 9))"
    if item["op"] == "in":
        return f"{column} IN ({', '.join(map(_quote_sql, value))})"
    if item["op"] == "^=":
        return f"starts_with({column}, {_quote_sql(value)})"
    return f"{column} {item['op']} {_quote_sql(value)}"


def _quote_sql(value: Any) -> str:
    if isinstance(value, bool):
        return "'true'" if value else "'false'"  # as JSON has them
    return str(value) if isinstance(value, int) else "'" + str(value).replace("'", "''") + "'"


# --- the answer ----------------------------------------------------------------------------------------------------


def _answer(console: Console, descriptor: QueryDescriptor) -> tuple[api.Result, list[dict[str, Any]]]:
    result = api.run(
        str(console.local.data_dir), descriptor.to_bytes(), keys=console.keyring, identity=console.pin.identity
    )
    rows = []
    for row in result.rows():
        rows.append(dict(row))
        if len(rows) >= _SHOWN:
            break
    return result, rows


def _describe_verification(result: api.Result | None, descriptor: QueryDescriptor | None, console: Console) -> str:
    if result is None:
        if descriptor is not None and console.local.data_dir is None:
            return (
                "the query is not answered: this console was started without --data-dir. The command below answers it."
            )
        return "nothing was asked."
    if result.digest.evidence_policy.mode == "full":
        return "every row, down to the author's signature, the receipt and the proof, by the pinned key."
    return "the rows are as the log in the data directory has them; ask with evidence full to have each verified."


def _sections(
    console: Console,
    descriptor: QueryDescriptor | None,
    result: api.Result | None,
    rows: list[dict[str, Any]],
    refusal: str | None,
) -> list[Section]:
    sections = []
    if refusal is not None:
        sections.append(Section(title="The query is refused", note=refusal, kind="bad"))
    if result is not None:
        sections += [_rows_section(result, rows), _coverage_section(result), _digest_section(result)]
    if descriptor is not None:
        sections.append(
            Section(
                title="The same as SQL",
                note=f"Over the table {_TABLE} of veen table load; veen query sql answers it.",
                text=sql_of(descriptor),
            )
        )
    return sections


def _rows_section(result: api.Result, rows: list[dict[str, Any]]) -> Section:
    mode = result.digest.evidence_policy.mode
    mark = {"full": MarkCell("✓ this console", "good"), "spot": MarkCell("? a sample", "partly")}.get(
        mode, MarkCell("? nobody", "muted")
    )
    names = sorted(rows[0], key=lambda name: _FIELDS.index(name) if name in _FIELDS else len(_FIELDS)) if rows else []
    return Section(
        title=f"Rows: {result.digest.row_count}",
        note=f"The first {len(rows)} are shown." if result.digest.row_count > len(rows) else "",
        columns=(*names, "Verified by"),
        rows=tuple((*(_value(row[name]) for name in names), mark) for row in rows),
        empty="No entry of the scope fits.",
    )


def _value(value: Any) -> Any:
    value = _plain(value)
    if isinstance(value, str) and len(value) == 64:
        return DigestCell(value)
    if isinstance(value, (dict, list)):
        text = compact(value)
        return MarkCell(text if len(text) <= _CELL_CHARS else f"{text[:_CELL_CHARS]}…", "json")
    return value


def _coverage_section(result: api.Result) -> Section:
    coverage = _plain(result.coverage)
    labels = [(stream["stream"], label) for stream in coverage["streams"] for label in stream["labels"]]
    runs = [
        NumberRun(name, label["from_seq"], label["to_seq"], "good", f"{name}: {label['from_seq']} to {label['to_seq']}")
        for name, label in labels
        if label["to_seq"]
    ]
    return Section(
        title="What the answer covers",
        note="Whoever executes the query over these ranges, under these roots, gets the same rows.",
        picture=ranges("Coverage", runs),
        columns=("Stream", "Entries", "Root", "Could be no row"),
        rows=tuple(
            (
                name,
                f"{label['from_seq']} to {label['to_seq']}",
                None if label["mmr_root"] is None else DigestCell(label["mmr_root"]),
                ", ".join(f"{kind}: {skip['count']}" for kind, skip in label["skipped"].items()) or "nothing",
            )
            for name, label in labels
        ),
    )


def _digest_section(result: api.Result) -> Section:
    digest = _plain(result.digest.to_json())
    facts = tuple((name, compact(value) if isinstance(value, dict) else value) for name, value in digest.items())
    return Section(title="Digest", note="Anyone who answers the query again can compare it.", facts=facts)


async def _history(console: Console) -> list[dict[str, Any]]:
    history = QueryHistory(None)
    for keys in console.shown_streams():
        if keys.can_read and (str(keys) in (REQUESTS, RESULTS) or str(keys).startswith(AUDIT)):
            for event in (await console.events.of(keys)).events:
                history.add(event)
    return [
        {
            "query_id": request.descriptor.query_id,
            "result_id": result_id,
            "by": request.subject_id,
            "state": "completed"
            if result_id in history.digests
            else f"failed: {history.failures[result_id]}"
            if result_id in history.failures
            else "pending",
            "rows": history.digests[result_id].row_count if result_id in history.digests else None,
            "descriptor": compact(_json(request.descriptor)),
        }
        for result_id, request in history.results.items()
    ]


def _history_section(history: list[dict[str, Any]]) -> Section:
    return Section(
        title="History",
        note="Queries that were recorded in the log of this hub: record/query/requests and record/query/results.",
        columns=("Query", "By", "State", "Rows", "Ask again"),
        rows=tuple(
            (row["query_id"], row["by"], MarkCell(row["state"], "good" if row["state"] == "completed" else "partly"),
             row["rows"], LinkCell("as a form", f"/query?descriptor={_escape(row['descriptor'])}&run=no"))
            for row in history
        ),
        empty="No query is recorded in the streams of your keyring.",
    )  # fmt: skip


def _escape(text: str) -> str:
    return quote(text, safe="")


def _command(descriptor: QueryDescriptor | None, values: Mapping[str, str]) -> str:
    if descriptor is None:
        return "veen query run --data-dir DIR --scope record/app/http"
    words = ["veen", "query", "run", "--data-dir", "DIR"]
    for name in descriptor.scope:
        words += ["--scope", name]
    for kind in values["type"].split():
        words += ["--type", kind]
    if values["subject"]:
        words += ["--subject", values["subject"]]
    words += ["--evidence", values["evidence"]]
    return shlex.join(words)


PAGES: Final = (Page(path="/query", title="Query", report=query),)
