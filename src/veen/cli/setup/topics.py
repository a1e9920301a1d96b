"""`veen help`: help on any command, and on topics that belong to none."""

from typing import TYPE_CHECKING, Final

import click

from veen.cli.shared.output import Exit, Output, output_options

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


def _exit_codes() -> str:
    meanings = {
        Exit.OK: "done",
        Exit.BAD_EVIDENCE: "evidence is bad: verification failed, tampering or equivocation found; nothing else",
        Exit.USAGE: "the command line cannot be understood",
        Exit.NETWORK: "the hub was not reached, or did not answer in time",
        Exit.REFUSED: "the hub answered and said no (any E.* of the protocol)",
        Exit.LOCAL: "keys, configuration, state or files on this machine",
        Exit.POLICY: "a policy is not met, or a reconciliation has a gap",
        Exit.SELFTEST: "a self-test failed",
        Exit.INTERRUPTED: "interrupted; what was begun can be resumed",
    }
    rows = "\n".join(f"  {int(code):>3}  {words}" for code, words in meanings.items())
    return f"Exit codes\n\n{rows}\n\nEvery error also has a code in words: `veen explain CODE` tells more."


_ENVIRONMENT: Final = """Environment

Each variable stands for a flag, which outranks it. Secrets are never values of variables; give the path of a file.

  VEEN_CONTEXT           the context to use                              --context
  VEEN_HUB               the URL of the hub                              --hub
  VEEN_PIN               the key of the hub, ed25519:HEX                 --pin
  VEEN_PIN_FILE          a file with that key, a mounted Secret say
  VEEN_TRUST_ON_FIRST_USE  1: without a pin, believe the key that the hub shows first, and remember it
  VEEN_HUB_ID            the hub_id that goes with that key, in hex
  VEEN_IDENTITY          whose keys: a name, or a directory              --identity
  VEEN_WITNESS_POLICY    a policy that the newest note of the hub must satisfy
  VEEN_WITNESSES         if it does not: require, warn, off
  VEEN_MAKE_KEYS         make a missing identity and keys of new streams
  VEEN_PASSPHRASE_FILE   a file with the passphrase of the keystore      --passphrase-file
  VEEN_CA_FILE           certificates to trust instead of the system's   --ca-file
  VEEN_TOKEN_FILE        a file with the hub's bearer token              --token-file
  VEEN_INSECURE_HTTP     the token may go over plain http://             --insecure-http
  VEEN_PROFILE_ID        the profile to send with
  VEEN_MODE              full or light
  VEEN_REMEMBER_STREAMS  whether stream names are kept for completion
  VEEN_WAIT              seconds to keep trying a hub that does not answer   --wait
  VEEN_TIMEOUT           seconds that one call to a hub may take
  VEEN_HOME              one directory for configuration, keys, state and cache
  VEEN_LOG_FORMAT        json: lines of JSON on stdout and stderr, as containers write them; terminals stay
  VEEN_FORCE_TTY         behave as if stdout and stderr were terminals
  VEEN_DEBUG             print the traceback of every error as well
  NO_COLOR               no colour
  CLICOLOR_FORCE         colour also in a pipe; JSON is never coloured
  XDG_CONFIG_HOME, XDG_DATA_HOME, XDG_STATE_HOME, XDG_CACHE_HOME

A hub reads more of them, one for each key of its configuration: `veen hub config`.
A token of VEEN_TOKEN_FILE goes to hubs that you chose, never to one that a project's veen.toml chose.
`veen config show --origin` tells which value is in force and who set it."""

_FORMATS: Final = """Formats

Output
  human    on a terminal: aligned, with headings
  plain    in a pipe: tab-separated, no headings, nothing shortened
  json     --json: one object; errors are one JSON object on stderr
  ndjson   --ndjson: one object per line, as the results come
  --output forces one of them. The facts are the same in all; binary values are hex.

Input
  stream   a name, 64 hex digits, hex:<64 digits>, or label:<64 digits>
  key      ed25519:<64 hex digits>
  range    10..20, both included
  time     2026-11-16T10:00:00Z, or -15m for a quarter of an hour ago
  span     90s, 10m, 2h, 7d
  size     512, 64KiB, 1MiB
  file     CBOR, its JSON form, or hex; "-" is standard input

Texts that are one word
  veen1…         an identity card: public
  veen-stream1…  the key of a stream: `veen id keyring show STREAM` tells whether it can read"""

_TOUR: Final = """Tour

See all of it at once:
  veen demo

By hand. A hub, here and for trying only; it registers itself as the context `dev`:
  veen hub start --dev

For a hub elsewhere: keys, the hub under a name with its key pinned, and a stream whose read key stays with you:
  veen keygen --name alice
  veen context add prod --hub URL --pin ed25519:HEX
  veen id keyring new record/app/http

Send, read, and see why the message cannot be taken away any more (with `dev`, keys are made on the way):
  veen send record/app/http "the valve is open"
  veen stream record/app/http
  veen proof show record/app/http 1 --tree

What the hub makes of that name, and what it never sees:
  veen label derive record/app/http

Look at the hub, have it sign what its log is now, and check that without it:
  veen hub status
  veen hub checkpoint --out ./checkpoints
  veen verify FILE --hub-pk ed25519:HEX

Check every byte of its data directory:
  veen hub verify-data ./hub

When something goes wrong, the error names a code:
  veen explain E.SEQ
  veen doctor"""

TOPICS: Final = ("commands", "exit-codes", "environment", "formats", "tour")


def _commands() -> str:
    """Return every command of the first page with its short help."""
    from veen.cli.app import COMMANDS, SECTIONS

    width = max(map(len, COMMANDS))
    lines = ["Commands"]
    for title, names in SECTIONS:
        lines += ["", title, *(f"  {name:<{width}}  {COMMANDS[name][1]}" for name in names if name in COMMANDS)]
    return "\n".join(lines)


def _topic(name: str) -> str:
    if name == "commands":
        return _commands()
    return {"environment": _ENVIRONMENT, "formats": _FORMATS, "tour": _TOUR}.get(name) or _exit_codes()


class _Words(click.ParamType[str]):
    name = "words"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        from veen.cli.app import COMMANDS

        return [CompletionItem(word) for word in (*TOPICS, *sorted(COMMANDS)) if word.startswith(incomplete)]


@click.command("help")
@click.argument("words", nargs=-1, type=_Words())
@output_options
@click.pass_context
def help_(ctx: click.Context, output: Output, words: tuple[str, ...]) -> None:
    """Help on a command, or on a topic: commands, exit-codes, environment, formats, tour.

    \b
    veen help hub start
    veen help exit-codes
    """
    root = ctx.find_root()
    if len(words) == 1 and words[0] in TOPICS:
        text = _topic(words[0])
    else:
        text = _command_help(root, list(words))
        if not words:
            text += f"\n\nTopics: {', '.join(TOPICS)}"
    output.result({"help": list(words), "text": text}, lambda: click.echo(text))


def _command_help(root: click.Context, words: list[str]) -> str:
    context, command = root, root.command
    for word in words:
        subcommand = command.get_command(context, word) if isinstance(command, click.Group) else None
        if subcommand is None:
            raise click.UsageError(f"there is no command or topic {' '.join(words)!r}; topics: {', '.join(TOPICS)}")
        context, command = click.Context(subcommand, info_name=word, parent=context), subcommand
    return command.get_help(context)
