"""The command tree as tests see it: walking it, and parsing a command line without running it."""

import inspect
import re
import shlex
from dataclasses import dataclass

import click

from veen.cli.app import cli
from veen.cli.directories import DIR_ARGUMENT
from veen.cli.examples import EXAMPLES


def commands(group=cli, prefix=""):
    """Every command of the tree that does something, by its full name."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def groups(group=cli, prefix=""):
    """Every group, by its full name; the root is ""."""
    yield prefix.strip(), group
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from groups(command, f"{prefix}{name} ")


def signature(name, command):
    """A command in one line: its arguments, then its options by name, former names included, but for those of all."""
    usual = {"--json", "--json-schema", "--ndjson", "--output", "-o", "--quiet", "-q", "--no-input"}
    arguments = [
        parameter.name.upper()
        for parameter in command.params
        if isinstance(parameter, click.Argument) and parameter.name != DIR_ARGUMENT
    ]
    named = {
        option
        for parameter in command.params
        if isinstance(parameter, click.Option) and (not parameter.hidden or parameter.name.startswith("former_"))
        for option in (*parameter.opts, *parameter.secondary_opts)
    }
    return " ".join([name, *arguments, *sorted(named - usual)])


class DoesNotParse(AssertionError):
    pass


@dataclass(frozen=True)
class Missing:
    """The command line names a command that does not exist (yet)."""

    name: str


def parse(words):
    """The command a line stands for, its options and arguments checked by name and number; or `Missing`.

    Values are not converted: lines in texts hold placeholders and paths of other machines.
    """
    context, rest, path = click.Context(cli, info_name="veen"), list(words), []
    command: click.Command = cli
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        path.append(rest.pop(0))
        subcommand = command.get_command(context, path[-1])
        if subcommand is None:
            return Missing(" ".join(path))
        context, command = click.Context(subcommand, info_name=path[-1], parent=context), subcommand
    try:
        values, left, _ = command.make_parser(context).parse_args(list(rest))
    except click.UsageError as exc:
        raise DoesNotParse(f"veen {' '.join(words)}: {exc.format_message()}") from exc
    if {"--help", "-h"} & set(rest) or isinstance(command, click.Group):
        return command
    if left:
        raise DoesNotParse(f"veen {' '.join(words)}: too many arguments: {left}")
    for parameter in command.params:
        value = values.get(parameter.name)
        if parameter.required and (value is None or value == () or type(value).__name__ == "Sentinel"):
            raise DoesNotParse(f"veen {' '.join(words)}: {parameter.name} is missing")
    return command


# Commands that texts may name already although they come later: of the client, and whole nouns of other layers. A test
# fails for those that exist: then they leave the list, and every line that names them must parse.
COMING = {
    "fed",
    "retention",
}


def announced(words):
    return any(" ".join(words[:count]) in COMING for count in (1, 2))


def exists(name):
    """Whether the tree has this command."""
    context = click.Context(cli)
    command: click.Command | None = cli
    for word in name.split():
        command = command.get_command(context, word) if isinstance(command, click.Group) else None
    return command is not None


def check_line(words):
    """Fail unless the line parses, or its command is one that is announced."""
    parsed = parse(words)
    if isinstance(parsed, Missing):
        assert announced(words), f"veen {' '.join(words)}: there is no command {parsed.name!r}"


_QUOTED = re.compile(r"`(veen(?:-cli)? [^`]+)`")
_BARE = re.compile(r"(?:^|[Rr]uns?: |: |, or: )(veen [a-z](?:'[^'\n]*'|[^,;'])*?)(?=$|,|;|\. |  |\n)", re.MULTILINE)


def command_lines(text):
    """The commands that a text for people names: in backquotes, at the start of a line, or after "run:"."""
    for quoted in [*_QUOTED.findall(text), *_BARE.findall(_QUOTED.sub("", text))]:
        line = re.split(r" [>|&]", quoted)[0].strip().rstrip(".")
        yield shlex.split(line)[1:]


def example_lines(name, command):
    """The commands that stand in a help text as examples, without what a shell does around them."""
    text = inspect.cleandoc(command.help or "").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if re.match(r"\s*(?:[^`]*\| )?veen ", line)]
    for line in [*lines, *EXAMPLES.get(name, ())]:
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|;<>&")
        lexer.whitespace_split = True
        lexer.commenters = "#"
        words = list(lexer)
        for part in _simple_commands(words):
            if part[:1] == ["veen"]:
                yield part[1:]


def _simple_commands(words):
    part: list[str] = []
    for word in words:
        if word and set(word) <= set("|;<>&"):
            yield part
            part = [] if word in ("|", "|&", ";", "&", "&&", "||") else [""]  # a file comes after < and >
        else:
            part.append(word)
    yield part
