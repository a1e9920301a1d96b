"""`veen demo`: shows the main properties with a real hub, real keys and real files."""

import importlib
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click

from veen.cli.shared.output import Fail, Output, output_options

_POLL_SECONDS: Final = 0.1


@click.command()
@click.option("--keep", type=click.Path(file_okay=False, path_type=Path), help="Run in this new directory and keep it.")
@click.option(
    "--spark", is_flag=True, help="Also audit, query and fold a longer log on Spark. Requires the extra spark and Java."
)
@click.option(
    "--console",
    is_flag=True,
    help="Then serve the result in a browser until Ctrl-C. Requires the extra console.",
)
@click.option("--wait-for", "ready_file", type=click.Path(dir_okay=False, path_type=Path), hidden=True)
@output_options
def demo(output: Output, keep: Path | None, spark: bool, console: bool, ready_file: Path | None) -> None:
    """Send, prove, tamper, detect: a hub, two people, five sealed messages, a log of a service, three who are caught.

    Everything is done for real, on loopback and in a directory of its own; every line is computed. With --keep the
    directory stays, and the commands to explore it are printed.

    \b
    veen demo
    veen demo --console
    """
    from veen.products.demo.story import play

    if console:
        from veen.products.console.commands.group import console_parts

        console_parts()  # before anything is played
    if keep is not None and keep.exists() and any(keep.iterdir()):
        raise Fail("E.LOCAL", f"{keep}: not empty", "the demo needs a new directory", "veen demo --keep DIR")
    if spark:
        _check_spark(is_coming=ready_file is not None)
    started = time.perf_counter()
    root = Path(tempfile.mkdtemp(prefix="veen-demo-")) if keep is None else keep.absolute()
    try:
        with output.progress("playing") as tell:
            story = play(root, output, tell, spark=spark, before_spark=lambda: _await_spark(ready_file, tell))
        facts = story.facts
        seconds = time.perf_counter() - started
        facts["seconds"] = round(seconds, 3)
        facts["directory"] = None if keep is None else str(root)
        facts["next"] = _next(root, facts) if keep is not None else _more(spark)

        def human() -> None:
            output.line(f"done in {seconds:.1f} s; next:")
            for command in facts["next"]:
                output.line(f"  {command}")

        output.result(facts, human)
        if console:
            from veen.products.demo.showing import show

            show(story)
    finally:
        if keep is None:
            shutil.rmtree(root, ignore_errors=True)


def _await_spark(ready_file: Path | None, tell: Callable[[str], None]) -> None:
    """Wait until `make demo` has installed Spark, which it does during the first part."""
    if ready_file is None:
        return
    from veen.lake.log.errors import SparkMissing

    tell("Spark is being installed, half a gigabyte")
    failed = ready_file.with_name(f"{ready_file.name}.failed")
    while not ready_file.exists():
        if failed.exists():
            raise SparkMissing("Spark could not be installed")
        time.sleep(_POLL_SECONDS)
    importlib.invalidate_caches()


def _check_spark(*, is_coming: bool) -> None:
    """Check for Spark before the story begins, so that it does not end in the middle."""
    from importlib.util import find_spec

    from veen.lake.log.errors import SparkMissing
    from veen.lake.spark.session import find_java

    if not is_coming and find_spec("pyspark") is None:
        raise SparkMissing("pyspark is not installed")
    find_java()


def _more(spark: bool) -> list[str]:
    return ["veen demo --keep DIR", *([] if spark else ["veen demo --spark"]), "veen help tour"]


def _next(root: Path, facts: dict[str, object]) -> list[str]:
    """Return commands that work as printed, in this order."""
    from veen.products.demo.story import DOORS, STREAM

    def at(name: str) -> str:
        return shlex.quote(str(root / name))

    ask = f"veen query run --data-dir {at('hub')} --scope {DOORS} --type door.refused --evidence full --identity bob"

    return [
        f"export VEEN_HOME={at('home')} VEEN_PASSPHRASE_FILE={at('passphrase')}",
        f"veen hub start --dev --data-dir {at('hub')} --port {facts['port']} --detach",
        f"veen stream {STREAM} --identity bob",
        f"veen attachment get {STREAM} 2 --identity bob --out {at('files')}",
        f"veen proof show {STREAM} 3 --size 5 --identity bob",
        f'veen send {STREAM} "the valve is open again" --identity alice',
        f"veen equivocation show {at('evidence.cbor')}",
        f"veen verify {at('hub')}",
        *([ask] if "recorded" in facts else []),
        f"veen hub stop --data-dir {at('hub')}",
    ]
