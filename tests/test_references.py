"""Whatever code, tests and documents cite can be looked up in docs/: decisions, sections, notes, pages, tests."""

import re
import subprocess
import tokenize
from functools import cache
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
SPEC = ROOT / "docs" / "spec"
# Not searched: these two name the source of each requirement as its own document does.
GENERATED = {"requirements.md", "conformance.md"}
SECTION = r"§([0-9]+(?:\.[0-9]+)*)"
LIST = rf"{SECTION}(?:(?:, | and | … | to |–){SECTION})*"
DOCUMENTS = ("spec", "spec-1", "spec-2", "spec-3", "spec-4", "spec-5", "products", "query", "ID", "WAL", "002")


@cache
def texts() -> dict[Path, str]:
    """Every tracked source, test, tool, document and configuration, by path."""
    python = [
        path for part in ("src", "tests", "tools", "benchmarks", "examples") for path in (ROOT / part).rglob("*.py")
    ]
    python += (ROOT / "src").rglob("*.toml")
    pages = [path for path in (ROOT / "docs").rglob("*.md") if path.name not in GENERATED]
    others = [ROOT / name for name in ("README.md", "CHANGELOG.md", "Makefile", "pyproject.toml")]
    return {path: path.read_text("utf-8") for path in sorted([*python, *pages, *others])}


@cache
def lines_with_sections() -> dict[Path, str]:
    """The lines of `texts` that cite a section, which are few."""
    return {path: "\n".join(line for line in text.split("\n") if "§" in line) for path, text in texts().items()}


def citations(pattern: str, paths: dict[Path, str] | None = None) -> set[tuple[str, str]]:
    """What matches, with the file in which it stands."""
    hits = set()
    for path, text in (texts() if paths is None else paths).items():
        for match in re.finditer(pattern, text):
            hits.add((match[1], str(path.relative_to(ROOT))))
    return hits


def unresolved(cited: set[tuple[str, str]], known: set[str]) -> list[str]:
    return sorted(f"{name} in {place}" for name, place in cited if name not in known)


def sections_of(page: str) -> dict[str, set[str]]:
    """The sections that docs/spec/sections.md explains, by document."""
    parts = re.split(r"^## (\S+).*$", page, flags=re.MULTILINE)
    return {
        name: set(re.findall(rf"^\| {SECTION} \|", body, re.MULTILINE))
        for name, body in zip(parts[1::2], parts[2::2], strict=True)
    }


def test_every_decision_that_is_cited_is_in_the_repository():
    defined = set(re.findall(r"\*\*(D-\d+[a-z]?)[ *]", (SPEC / "decisions.md").read_text("utf-8")))
    assert {f"D-{number:02}" for number in range(1, 179)} <= defined
    assert not unresolved(citations(r"\b(D-\d{2,3}[a-z]?)\b"), defined)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_section_that_is_cited_is_explained(document):
    explained = sections_of((SPEC / "sections.md").read_text("utf-8"))[document]
    assert explained
    explained |= {section.rpartition(".")[0] for section in explained}  # a chapter stands for its sections
    cited = set()
    for whole, place in citations(rf"(?<![\w-]){re.escape(document)} ({LIST})", lines_with_sections()):
        cited |= {(section, place) for section in re.findall(SECTION, whole)}
    assert not unresolved(cited, explained)


def test_sections_name_requirements_that_exist():
    page = (SPEC / "sections.md").read_text("utf-8")
    inventory = (ROOT / "docs" / "requirements.md").read_text("utf-8")
    requirements = set(re.findall(r"^- (\S+) \|", inventory, re.MULTILINE))
    assert (
        not {name for name in re.findall(r"\b[A-Z][A-Z0-9]+-\d+[a-z]?\b", page) if not name.startswith("D-")}
        - requirements
        - {"SHA-256"}
    )


@pytest.mark.parametrize(("name", "page"), [("DESIGN", "design.md"), ("decisions", "decisions.md")])
def test_every_section_of_our_own_notes_exists(name, page):
    headings = set(re.findall(r"^## (\d+)\.", (SPEC / page).read_text("utf-8"), re.MULTILINE))
    if name == "DESIGN":  # the laws of §9 are a numbered list
        headings |= {f"9.{number}" for number in range(1, 7)}
    assert not unresolved(citations(rf"\b{name} §(\d+(?:\.\d+)?)", lines_with_sections()), headings)


def test_every_page_that_is_mentioned_exists():
    mentioned = citations(r"\b(docs/[\w./-]+\.(?:md|json|html|svg|png))\b")
    assert not sorted(f"{name} in {place}" for name, place in mentioned if not (ROOT / name).exists())


def test_every_link_between_documents_leads_somewhere():
    broken = []
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text("utf-8")):
            if "://" not in target and not (path.parent / target).exists():
                broken.append(f"{target} in {path.relative_to(ROOT)}")
    assert not broken


def test_every_test_that_the_threat_model_names_exists():
    page = (ROOT / "docs" / "threat-model.md").read_text("utf-8")
    names = set(re.findall(r"`(test_\w+)`", page))
    assert len(names) >= 10
    sources = "\n".join(text for path, text in texts().items() if "tests" in path.parts)
    assert not {name for name in names if f"def {name}(" not in sources}


def test_comments_cite_no_document_that_is_not_in_the_repository():
    """Working notes of the team have other names than the pages of docs/."""
    foreign = re.compile(
        r"\b(SPEC-DECISIONS|NOTES-[A-Z]+|HOUSE\.md|UX\.md|UX-WALK|PRODUCTS\.md|INTEROP\.md|REQUIREMENTS\.md|API\.md)\b"
        r"|\bUX §"
    )
    hits = []
    for path in texts():
        if path.suffix != ".py" or path == Path(__file__).resolve() or not foreign.search(texts()[path]):
            continue
        with tokenize.open(path) as source:
            for number, line in enumerate(source, 1):
                if foreign.search(line):
                    hits.append(f"{path.relative_to(ROOT)}:{number}")
    assert not hits


def test_no_tracked_file_names_a_registry_or_a_path_of_one_machine():
    """Names of hosts are in pieces here, so that this file does not find itself."""
    hosts = [
        ".".join(parts)
        for parts in (("pypi", "org"), ("pythonhosted", "org"), ("npmjs", "org"), ("docker", "io"), ("quay", "io"),
                      ("ghcr", "io"), ("gcr", "io"), ("anaconda", "org"), ("deb", "debian", "org"), ("maven", "org"))
    ]  # fmt: skip
    # Texts of the specification have keys in /work; examples of ours live in the homes of `me` and `u`.
    work, root, home = r"work/(?!client|admin|cap\.cbor|veen\.toml)\w", r"root/\w", r"home/(?!me/|u/)\w"
    foreign = re.compile(rf"\b(?:{'|'.join(map(re.escape, hosts))})\b|(?<![\w.*}}])/(?:{work}|{root}|{home})")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("not a checkout of git")
    hits = []
    for name in listed.stdout.decode().split("\0"):
        path = ROOT / name
        if name and path.is_file() and path.suffix not in (".png", ".gz"):
            lines = path.read_text("utf-8", errors="replace").splitlines()
            hits += [
                f"{name}:{number}: {line.strip()[:100]}" for number, line in enumerate(lines, 1) if foreign.search(line)
            ]
    assert hits == []
    assert foreign.search("see /" + "root/x")
    assert foreign.search("https://" + hosts[0])


def test_a_build_server_and_hooks_run_our_own_check_and_nothing_from_elsewhere():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "check.yml").read_text("utf-8"))
    (job,) = workflow["jobs"].values()
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    assert [step["uses"].partition("@")[0] for step in job["steps"] if "uses" in step] == ["actions/checkout"]
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))
    assert [repo["repo"] for repo in hooks["repos"]] == ["local"]


def test_every_decision_stands_once_in_a_section_in_at_most_three_lines():
    page = (ROOT / "docs" / "decisions.md").read_text("utf-8").partition("\n## ")[2]
    items = re.findall(r"^- \*\*(\d+)\.\*\* \S.*\n((?:  \S.*\n)*)", page, re.MULTILINE)
    assert len(items) > 400
    assert len({number for number, _ in items}) == len(items)
    assert [number for number, more in items if more.count("\n") > 2] == []
    assert not re.findall(r"^(?!- \*\*\d+\.\*\* |  \S|## |$).+", page.partition("\n")[2], re.MULTILINE)
