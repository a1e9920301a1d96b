"""The documentation as a whole: tutorials and how-to pages run as they stand there, the index names every page, the
site is built without a warning, and `veen docs` shows it all in the terminal."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tests import shell
from tests.cli.homes import Cli
from tests.cli.tree import check_line, command_lines, exists
from tests.examples import spread

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GUIDES = sorted([*(DOCS / "tutorials").glob("*.md"), *(DOCS / "howto").glob("*.md")])
BLOCK = re.compile(r'^```(\w+)(?: title="([\w.-]+)")?\n(.*?)^```', re.MULTILINE | re.DOTALL)
SYSTEM = {"record-rsyslog": ("rsyslogd", "logger")}  # pages that run programs of Debian packages
PORT = re.compile(r"\b74\d\d\b")  # ports that the pages name; each gets a free one


@pytest.fixture(scope="module")
def ports():
    """One free port for each that pages name, the same within a page."""
    numbers: dict[str, str] = {}

    def free(match):
        if match[0] not in numbers:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                numbers[match[0]] = str(probe.getsockname()[1])
        return numbers[match[0]]

    return free


def guide(page):
    """A page as a parameter; one that needs programs of a package is a system test."""
    missing = [program for program in SYSTEM.get(page.stem, ()) if shutil.which(program) is None]
    skip = pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")
    return pytest.param(page, id=page.stem, marks=[pytest.mark.system, skip] if page.stem in SYSTEM else [])


@pytest.mark.parametrize("page", spread([guide(page) for page in GUIDES], 2))
def test_every_command_of_a_guide_works_and_prints_what_is_shown(page, tmp_path, ports):
    """In a fresh home and directory, from top to bottom; "…" in the output stands for anything."""
    env = shell.environment(tmp_path / "home", NO_COLOR="1")
    directory = tmp_path / "work"
    directory.mkdir()
    try:
        for kind, title, text in BLOCK.findall(page.read_text("utf-8")):
            text = PORT.sub(ports, text)
            if title:  # a block of the same title is the next cell
                with (directory / title).open("a") as file:
                    file.write(text)
            if kind == "console":
                run_block(text, directory, env)
    finally:
        for file in directory.glob("*.pid"):  # what the page started and, if it failed, did not end
            with contextlib.suppress(ProcessLookupError, ValueError):
                os.kill(int(file.read_text()), signal.SIGKILL)
        for lock in directory.glob("*/lock"):
            shell.typed(f"veen hub stop {lock.parent}", env, directory)


def run_block(text, directory, env):
    for step in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, shown = step.partition("\n")
        stdout = shell.works(command, env, directory)
        if shown.strip():
            pattern = ".*".join(re.escape(part) for part in shown.strip("\n").split("…"))
            assert re.fullmatch(pattern, stdout.strip("\n"), re.DOTALL), f"{command}\n{stdout}\n{shown}"


def test_there_are_guides_for_what_operators_ask():
    names = {page.stem for page in GUIDES}
    assert {"first-receipt", "audit-log-fastapi", "backup-and-restore", "limit-who-writes", "revoke"} <= names
    assert {"rotate-keys", "retention", "upgrade", "reverse-proxy", "container", "monitor", "private-ca"} <= names


@pytest.mark.parametrize("page", [*GUIDES, DOCS / "index.md", DOCS / "glossary.md", DOCS / "why-not.md"])
def test_every_command_that_a_guide_names_parses(page):
    text = BLOCK.sub("", page.read_text("utf-8"))
    for line in command_lines(text):
        if not exists(" ".join(line)):
            check_line(line)


def test_the_index_names_every_page():
    """A new page gets a line in docs/index.md; the navigation of the site and `veen docs` follow from it."""
    index = (DOCS / "index.md").read_text("utf-8")
    linked = set(re.findall(r"^- \[[^\]]+\]\(([^)#]+\.md)\)", index, re.MULTILINE))
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")} - {"index.md"}
    assert sorted(pages - linked) == []
    assert sorted(linked - pages) == []
    assert re.findall(r"^## (.+)$", index, re.MULTILINE)[:4] == ["Tutorials", "How-to", "Reference", "Explanation"]


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path):
    """Broken links, missing anchors and pages outside the navigation are warnings; --strict makes them errors."""
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "mkdocs",
            "build",
            "--strict",
            "--quiet",
            "--site-dir",
            tmp_path / "site",
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tools"), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    front = (tmp_path / "site" / "index.html").read_text("utf-8")
    assert "Your first receipt" in front
    pages = [path.read_text("utf-8") for path in (tmp_path / "site").rglob("*.html")]
    assert not [text for text in pages if re.search(r'<(?:script|link)[^>]+(?:src|href)="https?://', text)]


def test_the_table_of_metrics_is_what_a_hub_exposes():
    """python tools/make_metrics.py writes it."""
    import make_metrics

    text = make_metrics.PAGE.read_text("utf-8")
    assert text == make_metrics.page(text)
    assert text.count("| `veen_") > 40


@pytest.mark.parametrize("name", ["commands.md", "errors.md", "python.md"])
def test_the_generated_reference_is_what_the_code_says(name):
    """make generated writes it."""
    import make_reference

    text = make_reference.pages()[name]
    assert (make_reference.FOLDER / name).read_text("utf-8") == text


def test_every_public_name_of_python_has_a_sentence():
    import make_reference

    text = make_reference.python_page()
    empty = re.findall(r"^#{3,4} (`[^\n]+`)\n\n(?:```python\n(?:[^`]*)```\n\n)?(?=#|\Z|\n)", text, re.MULTILINE)
    assert not empty


def test_the_nginx_configuration_of_the_page_is_the_one_that_is_shipped():
    shown = re.findall(r"```nginx\n(.*?)```", (DOCS / "howto" / "reverse-proxy.md").read_text("utf-8"), re.DOTALL)
    shipped = (ROOT / "deploy" / "nginx" / "veen-hub.conf").read_text("utf-8")
    assert shipped.partition("\n")[2] == shown[0]


# --- veen docs -------------------------------------------------------------------------------------------------


@pytest.fixture
def cli(tmp_path):
    return Cli(tmp_path / "home")


def test_docs_lists_all_pages_by_section(cli):
    answer = cli.json("docs")
    assert answer["path"] == str(DOCS)
    tutorials = [row["page"] for row in answer["pages"] if row["section"] == "Tutorials"]
    assert "tutorials/first-receipt" in tutorials
    assert len(answer["pages"]) > 40
    assert cli.run("docs", "--path").stdout.strip() == str(DOCS)


@pytest.mark.parametrize("name", ["operations", "operations.md", "docs/operations.md"])
def test_docs_shows_a_page(cli, name):
    assert cli.run("docs", name).stdout == (DOCS / "operations.md").read_text("utf-8")
    assert cli.run("docs", name, "--path").stdout.strip() == str(DOCS / "operations.md")


def test_docs_finds_a_page_by_its_last_part_and_suggests_the_nearest(cli):
    assert cli.run("docs", "first-receipt").stdout.startswith("# Your first receipt")
    assert "Did you mean revoke" in cli.run("docs", "revok", code=2).output
    cli.run("docs", "../README", code=2)  # only pages of the index can be named
    cli.run("docs", "operations", "--search", "x", code=2)


def test_docs_searches_all_pages(cli):
    lines = cli.json("docs", "--search", "TRUSTED_ISSUERS")["lines"]
    assert {"configuration", "howto/limit-who-writes"} <= {line["page"] for line in lines}
    assert cli.json("docs", "--search", "no page says this")["lines"] == []


def test_the_wheel_brings_the_pages(tmp_path):
    """And finds them there: `veen docs` works in an installation without a checkout."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path / "site-packages")
    assert {f"veen/_docs/{path.relative_to(DOCS)}" for path in DOCS.rglob("*.md")} <= names
    done = subprocess.run(
        [sys.executable, "-m", "veen", "docs", "glossary", "--path", "--json"],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site-packages"), "VEEN_HOME": str(tmp_path / "home")},
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    assert json.loads(done.stdout)["path"] == str(tmp_path / "site-packages" / "veen" / "_docs" / "glossary.md")
