"""`veen demo`."""

import time

import click

from veen.cli.output import Output, output_options

__all__ = ["demo"]


@click.command()
@output_options
def demo(output: Output) -> None:
    """Seal, sign, order, prove and verify five messages; then tamper with them and watch each attempt fail."""
    from veen.cli.demoplay import play

    started = time.perf_counter()
    facts = play(quiet=output.as_json)
    seconds = time.perf_counter() - started
    facts["seconds"] = round(seconds, 3)
    output.result(facts, lambda: click.echo(f"done in {seconds * 1000:.0f} ms; next: veen verify --help"))
