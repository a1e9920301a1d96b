"""How commands speak: data on stdout, everything else on stderr, one format for people and one for programs."""

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from functools import wraps
from typing import Any, TypeVar

import click

__all__ = ["Exit", "Fail", "Output", "json_option", "report"]

F = TypeVar("F", bound=Callable[..., Any])


class Exit(IntEnum):
    """Exit codes. 1 means that evidence is bad, and nothing else."""

    OK = 0
    BAD_EVIDENCE = 1
    USAGE = 2
    NETWORK = 3
    REFUSED = 4
    LOCAL = 5
    POLICY = 6
    SELFTEST = 7
    INTERRUPTED = 130


class Output:
    """Where the results of one command go."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json

    def result(self, data: Mapping[str, Any], human: Callable[[], None]) -> None:
        """The one result of a command: `data` as JSON, or whatever `human` prints."""
        if self.as_json:
            click.echo(json.dumps(data, indent=2, ensure_ascii=False))
        else:
            human()

    def fields(self, rows: Iterable[tuple[str, str]]) -> None:
        """Names and values: aligned for people, separated by a tab when piped. The same data in both."""
        rows = list(rows)
        if sys.stdout.isatty():
            width = max((len(name) for name, _ in rows), default=0)
            for name, value in rows:
                click.echo(f"  {name:<{width}}  {value}")
        else:
            for name, value in rows:
                click.echo(f"{name}\t{value}")


def report(output: Output, what: str, cause: str, hint: str, *, code: str = "E.USAGE") -> None:
    """Tell a person what happened, why, and what to do next."""
    if output.as_json:
        click.echo(json.dumps({"code": code, "message": what, "cause": cause, "hint": hint}), err=True)
        return
    click.echo(f"error: {what}\ncause: {cause}\nhint:  {hint}", err=True)


class Fail(Exception):
    """Ends a command: an exit code and the three parts of a message."""

    def __init__(self, exit_code: Exit, what: str, cause: str, hint: str, code: str) -> None:
        super().__init__(exit_code, what, cause, hint, code)
        self.exit_code, self.what, self.cause, self.hint, self.code = exit_code, what, cause, hint, code


def json_option(command: F) -> F:
    """Give a command `--json` and an `Output` as its first argument; turn `Fail` into text and exit code."""

    @click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
    @wraps(command)
    def run(*args: Any, as_json: bool, **kwargs: Any) -> Any:
        output = Output(as_json=as_json)
        try:
            return command(output, *args, **kwargs)
        except Fail as fail:
            report(output, fail.what, fail.cause, fail.hint, code=fail.code)
            raise click.exceptions.Exit(int(fail.exit_code)) from fail

    return run  # type: ignore[return-value]  # wraps keeps the name, click keeps the parameters
