"""`veen query sql`: one SELECT over typed tables, with a digest that others can compute again."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from veen.cli.lake.query import show_rows
from veen.cli.shared import options
from veen.cli.shared.bulk import fetch_copy
from veen.cli.shared.command import CliSession, client_options
from veen.cli.shared.output import Fail, Mode, Output

if TYPE_CHECKING:
    from veen.lake.tables.sql import SqlDigest

_MAX_DIGEST_BYTES: Final = 1 << 20


@click.command()
@click.argument("statement", metavar="SELECT", required=False)
@click.option("--tables", "place", required=True, metavar="TABLES", help="Tables that `veen table load` made.")
@click.option("--version", "at_version", type=click.IntRange(min=1), help=options.TABLE_VERSION)
@click.option(
    "--again", metavar="RESULT_ID", help="Result to execute again over its version of the tables, and to compare."
)
@click.option("--store", "store_dir", type=click.Path(file_okay=False), help=options.STORE)
@click.option("--refresh", is_flag=True, help="Load new entries of the hub (--hub, --context) into the tables first.")
@client_options
def sql(
    output: Output,
    session: CliSession,
    statement: str | None,
    place: str,
    at_version: int | None,
    again: str | None,
    store_dir: str | None,
    refresh: bool,
) -> None:
    """Answer one SELECT over typed tables, by DuckDB. Nothing but the tables can be read, and nothing written.

    The digest names the version of the tables, so that anybody who has them gets the same rows_hash. Without ORDER BY
    rows are sorted by their canonical JSON.

    \b
    veen query sql "SELECT count(*) AS n FROM typed_sdr_event_v1" --tables ./tables
    veen query sql --again r-… --tables ./tables
    veen query sql "SELECT max(hub_time) AS last FROM typed_sdr_event_v1" --tables ./tables --refresh --hub https://hub.example
    """
    from veen.core import canonical
    from veen.lake.query.descriptor import check_id
    from veen.lake.tables.sql import run_sql

    root = (Path(store_dir) if store_dir is not None else session.user_home.data / "queries") / "sql"
    if (statement is None) == (again is None) or (again is not None and at_version is not None):
        raise click.UsageError("give a SELECT, or --again RESULT_ID alone")
    if refresh:
        if at_version is not None or again is not None:
            raise click.UsageError("--refresh makes a new version: give it without --version and --again")
        _refresh(output, session, place)
    if again is not None:
        _compare(output, _load(root, check_id(again, "result_id")), place)
        return
    with output.progress("answering"):
        result = run_sql(place, statement or "", version=at_version)
    digest = result.digest
    _save(root, digest)
    rows = (canonical.parse(row) for row in result.rows)
    show_rows(output, rows, {"sql_digest": digest.to_json()}, result.columns)
    facts = [(name, value) for name, value in digest.to_json().items() if name not in ("sql", "version")]
    if output.mode is Mode.HUMAN:
        output.fields(facts)
    elif output.mode is Mode.PLAIN:
        output.note("; ".join(f"{name} {value}" for name, value in facts))
    output.next(f"veen query sql --again {digest.result_id} --tables {place}")


def _refresh(output: Output, session: CliSession, place: str) -> None:
    from veen.lake import tables
    from veen.lake.log.keys import keys_for_tasks

    directory = fetch_copy(session, output)
    with keys_for_tasks(session.keystore.secrets.keyring) as keys, output.progress("loading"):
        tables.load(directory, place, keys=keys, engine="python")


def _save(root: Path, digest: "SqlDigest") -> None:
    from veen.lake.query.store import create_once

    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    create_once(root / f"{digest.result_id}.json", digest.to_bytes())


def _load(root: Path, result_id: str) -> "SqlDigest":
    from veen.io.inside import check_inside, read_path
    from veen.lake.query.errors import QueryNotFound
    from veen.lake.tables.sql import SqlDigest

    path = root / f"{result_id}.json"
    if not path.exists():
        raise QueryNotFound(f"there is no SQL result {result_id}")
    check_inside(root, path.name)
    return SqlDigest.from_bytes(read_path(path, _MAX_DIGEST_BYTES))


def _compare(output: Output, before: "SqlDigest", place: str) -> None:
    from veen.lake.tables.sql import run_sql

    with output.progress("answering again"):
        after = run_sql(place, before.sql, version=before.manifest_version, result_id=before.result_id).digest
    names = ("manifest_digest", "row_count", "rows_hash")
    differences = [name for name in names if getattr(before, name) != getattr(after, name)]
    data = {"ok": not differences, "differences": differences, "before": before.to_json(), "after": after.to_json()}
    rows = [(name, "DIFFERENT" if name in differences else "equal", getattr(after, name)) for name in names]
    output.result(data, lambda: output.table(("what", "", "now"), rows))
    if differences:
        name = differences[0]
        raise Fail(
            "E.VERIFY",
            f"result {before.result_id}: the answer differs",
            f"{name} was {getattr(before, name)} and is {getattr(after, name)} ({before.engine}, now {after.engine})",
            "check that the tables are the same; load them again from the log: veen table load TABLES --data-dir DIR",
        )
