"""The command tree and the one place where errors become text and exit codes."""

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import ClassVar, NoReturn

import click

from veen import __version__
from veen.cli.output import Exit, Output, report

__all__ = ["COMMANDS", "LazyGroup", "cli", "main"]

# name -> (module:attribute, short help). The help is repeated here so that listing imports nothing.
COMMANDS = {
    "demo": ("veen.cli.demo:demo", "Watch the whole idea at work: seal, order, prove, tamper, detect."),
    "hub": ("veen.cli.hub:hub", "Run a hub and look after its data directory."),
    "inspect": ("veen.cli.inspect:inspect", "Show what any wire object holds; no keys needed."),
    "verify": ("veen.cli.verify:verify", "Check any wire object: signatures, hashes, proofs."),
    "version": ("veen.cli.version:version", "Print the version."),
}


class LazyGroup(click.Group):
    """A group that knows its commands by name and imports one when it is called."""

    table: ClassVar[Mapping[str, tuple[str, str]]] = COMMANDS

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.table:
            return None
        module, _, attribute = self.table[cmd_name][0].partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command), f"{module}:{attribute} is not a command"  # noqa: S101 - our own table
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.table[name][1]) for name in self.list_commands(ctx)])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="veen")
def cli() -> None:
    """VEEN: a verifiable, end-to-end encrypted log that nobody has to trust."""


def main() -> NoReturn:
    """Run the command line. Ends the process with one of the exit codes of `Exit`."""
    # Errors follow the command's own choice of format, also when its options cannot be parsed.
    output = Output(as_json="--json" in sys.argv[1:])
    try:
        code = cli.main(prog_name="veen", standalone_mode=False)
    except click.exceptions.Exit as exc:
        code = exc.exit_code
    except (click.Abort, KeyboardInterrupt):
        report(output, "interrupted", "the command was stopped before it finished", "run it again")
        code = Exit.INTERRUPTED
    except BrokenPipeError:  # the reader of our output went away, as `head` does
        sys.stderr.close()
        code = Exit.OK
    except click.UsageError as exc:
        command = exc.ctx.command_path if exc.ctx else "veen"
        report(output, "usage", exc.format_message(), f"{command} --help")
        code = Exit.USAGE
    except click.ClickException as exc:
        report(output, "usage", exc.format_message(), "veen --help")
        code = Exit.USAGE
    sys.exit(int(code or 0))
