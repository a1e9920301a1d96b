"""`veen docs`: the documentation that came with this release, in the terminal and without a network."""

import difflib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from veen.cli.shared.output import Fail, Output, output_options

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

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
