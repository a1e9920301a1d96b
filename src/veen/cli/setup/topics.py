"""`veen help`: help on any command, and on topics that belong to none.

`veen explain CODE`: the meaning of an error code, and what to do about it.

`veen docs`: the documentation that came with this release, in the terminal and without a network.
"""

import difflib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from veen.cli.shared.output import Exit, Fail, Output, output_options
from veen.core.catalogue import ErrorRow, catalogue, details_of, row_of

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class _Code(click.ParamType[str]):
    name = "code"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        wanted = incomplete.upper()
        return [CompletionItem(code) for code in catalogue() if code.startswith(wanted)]


@click.command()
@click.argument("code", type=_Code(), required=False)
@output_options
def explain(output: Output, code: str | None) -> None:
    """Explain CODE: its meaning, the clause of the specification, and what to do. Without a code list all of them.

    \b
    veen explain E.SEQ
    veen explain CLIENT_SEQ
    """
    if code is None:
        rows = list(catalogue().values())
        output.result(
            {"codes": [_data(row) for row in rows]},
            lambda: output.table(("code", "means"), [(row.code, row.means) for row in rows]),
        )
        return
    row = row_of(code)
    if row is None:
        raise click.UsageError(f"{code!r} is not a code that VEEN uses.{_near(code)}")
    output.result(_data(row), lambda: _show(output, row))


def _show(output: Output, row: ErrorRow) -> None:
    output.line(f"{row.code}: {row.means}", "head")
    if row.part_of:
        output.line(f"  a detail of {row.part_of}")
    output.line(f"  {row.because}")
    output.line(f"  see {row.spec}")
    output.line("what to do")
    for fix in row.fixes:
        output.line(f"  - {fix}")
    if details := details_of(row.code):
        output.line("details")
        output.fields((detail.code, detail.means) for detail in details)


def _data(row: ErrorRow) -> dict[str, Any]:
    return {
        "code": row.code,
        "means": row.means,
        "because": row.because,
        "spec": row.spec,
        "fixes": list(row.fixes),
        "part_of": row.part_of,
        "details": [detail.code for detail in details_of(row.code)],
    }


def _near(code: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(code.upper(), catalogue(), n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(near)}?" if near else ""


_LINK: Final = re.compile(r"^[-*] \[(?P<title>[^\]]+)\]\((?P<path>[^)#]+\.md)\)(?:: (?P<about>.*))?$")
_HEADING: Final = re.compile(r"^#+ ")


@dataclass(frozen=True, slots=True)
class DocsPage:
    """A page as docs/index.md lists it."""

    section: str
    name: str  # the path without .md
    title: str
    about: str


def docs_directory() -> Path:
    """Return the directory of the pages: in the package, or in the checkout that it runs from."""
    package = Path(__file__).resolve().parents[2]
    for directory in (package / "_docs", package.parents[1] / "docs"):
        if (directory / "index.md").is_file():
            return directory
    raise Fail(
        "E.LOCAL",
        "the documentation is not here",
        f"{package / '_docs'} is missing: this installation was made without it",
        "install the wheel that `make dist` or `pip wheel .` makes in a checkout",
    )


@cache
def sections() -> tuple[DocsPage, ...]:
    """Return all pages of the index, in its order."""
    pages: list[DocsPage] = []
    section = ""
    for line in (docs_directory() / "index.md").read_text("utf-8").splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif match := _LINK.match(line):
            name = match["path"].removesuffix(".md")
            pages.append(DocsPage(section, name, match["title"], match["about"] or ""))
    return tuple(pages)


class _PageName(click.ParamType[str]):
    name = "page"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        return [CompletionItem(page.name, help=page.title) for page in sections() if page.name.startswith(incomplete)]


@click.command()
@click.argument("page", type=_PageName(), required=False)
@click.option("--search", metavar="WORDS", help="Words to search all pages for, in any case.")
@click.option("--path", "show_path", is_flag=True, help="Print only the path of the page, or of all pages.")
@output_options
def docs(output: Output, page: str | None, search: str | None, show_path: bool) -> None:
    """Read the documentation of this release: tutorials, how-to pages, reference, explanation.

    Without PAGE all pages are listed. PAGE is a name of that list, or its last part if no other page has it.

    \b
    veen docs
    veen docs first-receipt
    veen docs --search "trusted_issuers"
    veen docs operations --path
    """
    if search is not None:
        if page is not None or show_path:
            raise click.UsageError("--search looks through all pages")
        _search(output, search)
        return
    if page is None:
        _list(output, show_path)
        return
    name = _resolve(page)
    file = docs_directory() / f"{name}.md"
    if show_path:
        output.result({"page": name, "path": str(file)}, lambda: output.line(str(file)))
        return
    text = file.read_text("utf-8")
    output.result({"page": name, "path": str(file), "text": text}, lambda: output.text(text))


def _list(output: Output, show_path: bool) -> None:
    directory = docs_directory()
    rows = [
        {"section": page.section, "page": page.name, "title": page.title, "about": page.about} for page in sections()
    ]

    def human() -> None:
        if show_path:
            output.line(str(directory))
            return
        output.table(("section", "page", "about"), [(row["section"], row["page"], row["about"]) for row in rows])

    output.result({"path": str(directory), "pages": rows}, human)
    if not show_path:
        output.next("veen docs first-receipt")


def _search(output: Output, words: str) -> None:
    wanted, directory = words.casefold(), docs_directory()
    with output.records("lines", ("page", "line", "text")) as records:
        for page in sections():
            lines = (directory / f"{page.name}.md").read_text("utf-8").splitlines()
            for number, line in enumerate(lines, start=1):
                if wanted in line.casefold():
                    text = _HEADING.sub("", line.strip())
                    records.add({"page": page.name, "line": number, "text": text}, (page.name, number, text))


def _resolve(page: str) -> str:
    """Return the name of one page. Name the nearest ones in the error for an unknown one."""
    wanted = page.removesuffix(".md").removeprefix("docs/")
    names = [entry.name for entry in sections()]
    if wanted in [*names, "index"]:
        return wanted
    matching = [name for name in names if name.rpartition("/")[2] == wanted]
    if len(matching) == 1:
        return matching[0]
    near = matching or difflib.get_close_matches(wanted, [*names, *(name.rpartition("/")[2] for name in names)])
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    raise click.UsageError(f"there is no page {page!r}.{hint} `veen docs` lists them")


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
