"""`veen shell` and `veen --batch FILE`: several commands, with one opening of the keystore."""

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from veen.cli.shared.output import Exit, Fail, Output, output_options

_FILE: Final = click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)
_MAX_SCRIPT: Final = 16 * 1024 * 1024


@click.command()
@click.argument("file", type=_FILE, required=False)
@click.option("--keep-going", is_flag=True, help="Continue after a command that fails.")
@output_options
def shell(output: Output, file: Path | None, keep_going: bool) -> None:
    """Run commands, one a line, with or without the word veen: from FILE, from standard input, or as you type them.

    The keystore is opened once, by the first command that needs it. Lines are split as a shell splits words, but
    there are no variables, pipes or loops; # begins a comment. The first command that fails ends the script with its
    exit code, unless --keep-going is there. With --json or --ndjson every command prints that form.

    \b
    veen shell nightly.veen
    printf 'send orders hello\\nstream orders --last 1\\n' | veen shell
    veen --batch nightly.veen
    """
    interactive = file is None and sys.stdin.isatty() and not output.as_json
    if interactive:
        code = _run(output, _read_typed(), is_stdin=True, keep_going=True, typed=True)
    else:
        code = run_script(output, file or Path("-"), keep_going=keep_going)
    raise click.exceptions.Exit(code)


def run_script(output: Output, file: Path, *, keep_going: bool) -> int:
    """Run the commands of a file; return the exit code of the first that failed, or 0."""
    is_stdin = str(file) == "-"
    data = sys.stdin.buffer.read(_MAX_SCRIPT + 1) if is_stdin else file.read_bytes()
    if len(data) > _MAX_SCRIPT:
        raise Fail(
            "E.USAGE", f"{file}: too long for a script", f"over {_MAX_SCRIPT} bytes", "cut it into several files"
        )
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError as exc:
        raise Fail("E.USAGE", f"{file}: no script", "it is not UTF-8 text", "give commands, one a line") from exc
    return _run(output, iter(lines), is_stdin=is_stdin, keep_going=keep_going, typed=False)


def _read_typed() -> Iterator[str]:
    import readline  # noqa: F401 - gives the lines that are typed a history and keys to edit them

    while True:
        try:
            line = input("veen> ")
        except EOFError:
            return
        if line.strip() in ("exit", "quit"):
            return
        yield line


def _run(output: Output, lines: Iterator[str], *, is_stdin: bool, keep_going: bool, typed: bool) -> int:
    from veen.cli.app import run_line
    from veen.cli.shared.batch import batch

    first_code = int(Exit.OK)
    with batch():
        for number, line in enumerate(lines, start=1):
            try:
                words = shlex.split(line, comments=True)
            except ValueError as exc:
                raise Fail(
                    "E.USAGE", f"line {number}: cannot be split into words", str(exc), "close the quotes"
                ) from exc
            if words[:1] == ["veen"]:
                words = words[1:]
            if not words:
                continue
            _check(words, number, is_stdin=is_stdin and not typed)
            code = run_line([*words, *_form(output, words)])
            first_code = first_code or code
            if code and not keep_going:
                output.note(f"line {number} failed with exit code {code}; the lines after it were not run")
                return code
    return int(Exit.OK) if typed else first_code


def _form(output: Output, words: list[str]) -> list[str]:
    from veen.cli.shared.output import sniff_mode

    return [f"--{output.mode.value}"] if output.as_json and sniff_mode(words) is None else []


def _check(words: list[str], number: int, *, is_stdin: bool) -> None:
    if words[0] == "shell" or "--batch" in words:
        raise Fail("E.USAGE", f"line {number}: a script runs no other script", " ".join(words[:2]), "run it by itself")
    if is_stdin and "-" in words:
        raise Fail(
            "E.USAGE",
            f"line {number}: standard input is the script",
            "a command of it cannot read its body from there",
            "give the script as a file: veen shell FILE",
        )
