"""`veen spark`: running commands on a cluster, and showing its environment."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from veen.cli.lazy import LazyGroup
from veen.cli.shared import options
from veen.cli.shared.bulk import MASTER, spark_at_work
from veen.cli.shared.command import FILE
from veen.cli.shared.output import Fail, Mode, Output, output_options

if TYPE_CHECKING:
    from veen.lake.spark.executor_check import Executor

_CONFS: Final = click.option(
    "--conf", "confs", multiple=True, metavar="NAME=VALUE", help="Setting of Spark. Repeatable."
)

spark = LazyGroup("spark", help="Spark: on this machine or on a cluster, with the same results to the byte.")


# --- submit ------------------------------------------------------------------------------------------------------


class _Submit(click.Command):
    allow_interspersed_args = False  # what follows the first word of the command is the command's


@spark.verb("submit", "Run a command on a cluster; the package travels along.", cls=_Submit)
@click.argument("words", nargs=-1, required=True, metavar="COMMAND...", type=click.UNPROCESSED)
@click.option(
    "--master", required=True, help="Spark master: spark://HOST:PORT, yarn, k8s://https://HOST:PORT, or local[N]."
)
@click.option("--deploy-mode", type=click.Choice(["client", "cluster"]), default="client", show_default=True,
              help="Place of the driver: here, or on the cluster.")  # fmt: skip
@click.option("--ship", type=click.Choice(["code", "all", "nothing"]), default="code", show_default=True,
              help="Files to ship: the package, all that it needs, or nothing if it is installed.")  # fmt: skip
@click.option("--python", help="Python of the executors. Default: PYSPARK_PYTHON, or the path of this one.")
@_CONFS
@click.option("--spark-option", "options", multiple=True, metavar="WORD",
              help="Further argument for spark-submit, such as --queue=audits. Repeatable.")  # fmt: skip
@click.option("--staging", type=click.Path(path_type=Path, file_okay=False),
              help="Directory for the shipped files, which remain. Default: a temporary directory.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help=options.DRY_RUN)
@output_options
def submit(
    output: Output,
    words: tuple[str, ...],
    master: str,
    deploy_mode: str,
    ship: str,
    python: str | None,
    confs: tuple[str, ...],
    options: tuple[str, ...],
    staging: Path | None,
    dry_run: bool,
) -> None:
    """Run COMMAND as a Spark application. It is any veen command that knows --engine; the exit code is its own.

    Options of submit come first, then the command with its own.

    \b
    veen spark submit --master spark://head:7077 audit run s3://bucket/hub --out ./audit-1
    veen spark submit --master yarn --ship all audit run hdfs://name/hub --json
    """
    import tempfile

    from veen.lake.spark.submit import Submission, plan
    from veen.lake.spark.submit import submit as run

    asked = Submission(
        command=_application(words),
        master=master,
        deploy_mode=deploy_mode,  # type: ignore[arg-type]  # click.Choice allows no other
        ship=ship,  # type: ignore[arg-type]  # as above
        python=python,
        confs=dict(map(_conf, confs)),
        options=options,
    )
    if dry_run:
        call = plan(asked, (staging or Path("STAGING")).absolute())
        data = {"command": list(call.words), "environment": dict(call.environment)}
        output.result(data, lambda: _show_plan(output, call.words, call.environment))
        return
    output.note("spark-submit starts a Java virtual machine, and then the command")
    with ExitStack() as stack:
        if staging is None:
            staging = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="veen-submit-")))
        staging.mkdir(parents=True, exist_ok=True)
        code = run(asked, staging.absolute())
    raise click.exceptions.Exit(code)


def _show_plan(output: Output, words: Sequence[str], environment: Mapping[str, str]) -> None:
    import shlex

    for name, value in environment.items():
        output.line(f"{name}={shlex.quote(value)} \\")
    output.line(shlex.join(words))


def _application(words: Sequence[str]) -> tuple[str, ...]:
    """Return the command with --engine spark. Refuse one without --engine: it would run on the driver alone."""
    from veen.cli.app import cli

    command: click.Command = cli
    rest = list(words)
    path: list[str] = []
    while isinstance(command, click.Group) and rest:
        subcommand = command.get_command(click.Context(command), rest[0])
        if subcommand is None:
            raise click.UsageError(f"there is no command {' '.join([*path, rest[0]])!r}")
        path.append(rest.pop(0))
        command = subcommand
    options = {name for parameter in command.params for name in parameter.opts}
    if isinstance(command, click.Group) or "--engine" not in options:
        raise click.UsageError(f"{' '.join(path)} does not run on Spark: it knows no --engine")
    flags = [word.partition("=")[0] for word in rest]
    if "--master" in flags:
        raise click.UsageError("--master is for submit: give it before the command")
    if "--engine" in flags:
        raise click.UsageError("--engine is spark here: leave it out")
    return (*path, "--engine", "spark", *rest)


def _conf(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.UsageError(f"--conf {text}: expected NAME=VALUE")
    return name, value


# --- check -------------------------------------------------------------------------------------------------------


@spark.verb("check", "Check Java, Spark and, with --master, its executors.")
@click.option("--master", help="Spark master whose executors are checked as well. Default: none.")
@click.option("--key-file", type=click.Path(), help="File of read keys that executors must be able to read.")
@_CONFS
@output_options
def check(output: Output, master: str | None, key_file: str | None, confs: tuple[str, ...]) -> None:
    """Show the environment of Spark; with --master start it, and check every executor.

    \b
    veen spark check
    veen spark check --master spark://head:7077 --key-file /etc/veen/reader.keys
    """
    import platform
    import sys

    from veen import __version__
    from veen.lake.spark.session import find_java
    from veen.lake.spark.submit import spark_home, spark_version

    facts: list[tuple[str, Any]] = [
        ("veen", __version__),
        ("python", f"{platform.python_version()} {sys.executable}"),
        ("spark", f"{spark_version()} {spark_home()}"),
        ("java", find_java()),
    ]
    executors: list[Executor] = []
    wrong: list[str] = []
    if master is not None:
        from veen.lake.spark.executor_check import ask_executors, find_faults

        with (
            output.progress("asking") as progress,
            spark_at_work("veen spark check", master, progress, dict(map(_conf, confs))) as (session, _),
        ):
            executors = ask_executors(session, key_file=key_file)
        wrong = [fault for executor in executors for fault in find_faults(executor)]
    rows = [
        {"host": row.host, "python": row.python, "veen": row.veen, "lacking": list(row.lacking)} for row in executors
    ]
    data = dict(facts) | {"executors": rows, "faults": wrong}

    def human() -> None:
        output.fields(facts)
        for row in executors:
            output.fields([("executor", f"{row.host}, Python {row.python}, veen {row.veen or 'missing'}")])

    output.result(data, human)
    if wrong:
        from veen.lake.log.errors import ExecutorUnfit

        raise Fail("E.EXTRA", f"{master}: executors cannot do the work", wrong[0], ExecutorUnfit.hint)


# --- schema ------------------------------------------------------------------------------------------------------


@spark.verb("schema", "The columns of every format and table.")
@click.argument("name", required=False)
@output_options
def schema(output: Output, name: str | None) -> None:
    """Show the columns of the format or table NAME, or of all.

    \b
    veen spark schema
    veen spark schema veen.receipts
    """
    from veen.lake.log.columns import ddl
    from veen.lake.log.schemas import SCHEMAS

    if name is not None and name not in SCHEMAS:
        raise click.UsageError(f"there is no {name!r}; there are {', '.join(SCHEMAS)}")
    chosen = {schema_name: columns for schema_name, columns in SCHEMAS.items() if name in (None, schema_name)}
    data = {
        "schemas": [
            {"name": schema_name, "ddl": ddl(columns), "columns": [{"name": it.name, "type": it.sql} for it in columns]}
            for schema_name, columns in chosen.items()
        ]
    }

    def human() -> None:
        if output.mode is Mode.HUMAN:
            for schema_name, columns in chosen.items():
                output.line(schema_name, "head")
                output.line(f"  {ddl(columns)}")
        else:
            output.table(("schema", "ddl"), [(schema_name, ddl(columns)) for schema_name, columns in chosen.items()])

    output.result(data, human)


# --- shell -------------------------------------------------------------------------------------------------------


@spark.verb("shell", "Python with a Spark session that reads logs.")
@MASTER
@_CONFS
@click.option("--execute", "code", help="Python code to run instead of a prompt.")
@click.option("--script", type=FILE, help="File of Python code to run instead of a prompt.")
@output_options
def shell(output: Output, master: str | None, confs: tuple[str, ...], code: str | None, script: str | None) -> None:
    """Python with `spark`, a session that reads logs; `reader`, `audit` and `query` are at hand.

    \b
    veen spark shell --master 'local[2]'
    veen spark shell --execute "reader(spark).load('./hub').show()"
    """
    with ExitStack() as stack:
        with output.progress("starting") as progress:
            settings = dict(map(_conf, confs))
            session, _ = stack.enter_context(
                spark_at_work("veen spark shell", master, progress, settings, register=True)
            )
        from veen.lake.query import api
        from veen.lake.spark.settings import reader
        from veen.verify.audit import audit

        names = {"__name__": "__main__", "spark": session, "reader": reader, "audit": audit, "query": api}
        if script is not None:
            code = Path(script).read_text("utf-8")
        if code is not None:
            exec(compile(code, script or "--execute", "exec"), names)  # noqa: S102 - what the user typed
        else:
            _interact(names)


def _interact(names: dict[str, Any]) -> None:
    banner = "spark: the session; reader(spark).load(DIR): a log; audit(DIR): a verdict; query: ask recorder events"
    try:
        from IPython import start_ipython  # type: ignore[import-not-found, unused-ignore]  # if somebody has it
    except ImportError:
        import code

        code.interact(banner=banner, local=names, exitmsg="")
        return
    click.echo(banner, err=True)
    start_ipython(argv=["--no-banner"], user_ns=names)
