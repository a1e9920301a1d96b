"""Counts of names and docstrings that say too little, against the numbers in tools/words.toml, which may only fall.

    python tools/words.py           exit 1 if a number has risen; say which lines are new
    python tools/words.py --list    every line that counts
    python tools/words.py --lower   write the numbers of today where they are lower

Rules:
    locals_src, locals_tests   a participle or pronoun as the name of a variable, where a noun would say what it holds
    doubles_src                a public class whose name another module of src defines as well, VESN apart
    questions_src              a docstring that begins with a question word: "What …", "Whether …"
    participles_src            a function named by a participle, where a verb would say what it does
    moods_src                  a docstring of a function that begins with no imperative verb (ruff D401)
"""

from __future__ import annotations

import argparse
import ast
import gc
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMITS = Path("tools/words.toml")
BANNED = frozenset({"found", "one", "made", "told", "seen", "known", "held", "kept", "given", "taken"})
QUESTION = re.compile(r"(what|whether|how|which|who|whose|where|why|when|that)\b", re.IGNORECASE)
_PARTICIPLE = re.compile(r"\w+(ed|en|ing)")
_IRREGULAR = BANNED | {"said", "sent", "left", "built"}
# First words of names that end like a participle but are verbs, or nouns of the specification.
NOT_PARTICIPLES = frozenset(
    [
        "anything",
        "binding",
        "bring",
        "children",
        "embed",
        "encoding",
        "even",
        "exceed",
        "feed",
        "greeting",
        "heading",
        "len",
        "listen",
        "listening",
        "mapping",
        "need",
        "open",
        "opening",
        "padding",
        "ping",
        "proceed",
        "reopen",
        "ring",
        "routing",
        "screen",
        "seed",
        "setting",
        "shed",
        "shorten",
        "signing",
        "speed",
        "spring",
        "string",
        "then",
        "thing",
        "tighten",
        "token",
        "veen",
        "warning",
        "when",
        "widen",
    ]
)
HEADER = "# How often each rule of tools/words.py is broken today. Numbers may only fall: make format lowers them.\n"


@dataclass(frozen=True, slots=True, order=True)
class Offence:
    """A line that counts."""

    path: str  # from the root of the repository
    line: int
    name: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.name}"


def find_banned(path: str, tree: ast.Module) -> Iterator[Offence]:
    """Yield targets of assignments, loops, comprehensions and `with`, of any scope; parameters are not variables."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in BANNED:
            yield Offence(path, node.lineno, node.id)


def doubles(trees: Mapping[str, ast.Module]) -> Iterator[Offence]:
    """Yield public classes of modules whose name occurs more than once; the first by path does not count."""
    seats: dict[str, list[Offence]] = {}
    for path, tree in sorted(trees.items()):
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                seats.setdefault(node.name, []).append(Offence(path, node.lineno, node.name))
    for offences in seats.values():
        yield from offences[1:]


def questions(path: str, tree: ast.Module) -> Iterator[Offence]:
    """Yield modules, classes and functions whose docstring begins with a question word."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text and QUESTION.match(text):
                yield Offence(path, node.body[0].lineno, f'"{text.split()[0]} …"')


def participles(path: str, tree: ast.Module) -> Iterator[Offence]:
    """Yield functions whose name begins with a participle; a property is a noun, and a test a sentence."""
    for node in ast.walk(tree):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or node.name.startswith("test_"):
            continue
        if any("property" in ast.unparse(mark) or isinstance(mark, ast.Attribute) for mark in node.decorator_list):
            continue
        word = node.name.lstrip("_").split("_")[0]
        if word in _IRREGULAR or (_PARTICIPLE.fullmatch(word) and word not in NOT_PARTICIPLES):
            yield Offence(path, node.lineno, node.name)


def moods(root: Path, folder: str) -> Iterator[Offence]:
    """Yield the lines of a folder that ruff reports under D401."""
    command = (
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--isolated",
        "--no-cache",
        "--select=D401",
        "--output-format=json",
    )
    done = subprocess.run((*command, folder), cwd=root, capture_output=True, text=True, check=False)
    if done.returncode > 1:
        raise RuntimeError(f"ruff: {done.stderr}")
    for row in json.loads(done.stdout):
        path = Path(row["filename"]).resolve().relative_to(root.resolve()).as_posix()
        yield Offence(path, row["location"]["row"], row["message"].partition("mood: ")[2])


def offences(root: Path) -> Mapping[str, Sequence[Offence]]:
    """Return the offences against each rule, in the order of the files."""
    src, tests = _trees(root, ["src"]), _trees(root, ["tests", "tools", "benchmarks", "examples"])
    return {
        "locals_src": sorted(offence for path, tree in src.items() for offence in find_banned(path, tree)),
        "locals_tests": sorted(offence for path, tree in tests.items() for offence in find_banned(path, tree)),
        "doubles_src": sorted(doubles({path: tree for path, tree in src.items() if "/vesn/" not in path})),
        "questions_src": sorted(offence for path, tree in src.items() for offence in questions(path, tree)),
        "participles_src": sorted(offence for path, tree in src.items() for offence in participles(path, tree)),
        "moods_src": sorted(moods(root, "src")),
    }


def report(
    today: Mapping[str, Sequence[Offence]], limits: Mapping[str, int], changed: Mapping[str, set[int]] | None
) -> list[str]:
    """Return the lines to print for rules above their limit; without `changed` lines, all offences of such a rule."""
    lines: list[str] = []
    for rule, broken in today.items():
        limit = limits.get(rule, 0)
        if len(broken) <= limit:
            continue
        new = [offence for offence in broken if changed is None or offence.line in changed.get(offence.path, ())]
        lines.append(f"{rule}: {len(broken)}, but tools/words.toml allows {limit}. Reword what is new:")
        lines += [f"  {offence}" for offence in new or broken]
    return lines


def parse_diff(diff: str) -> Mapping[str, set[int]]:
    """Return the lines that `git diff --unified=0` adds, by path."""
    added: dict[str, set[int]] = {}
    path = ""
    for line in diff.splitlines():
        if line.startswith("+++ "):
            path = line.removeprefix("+++ ").removeprefix("b/")
        elif match := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            start, count = int(match[1]), int(match[2] or 1)
            added.setdefault(path, set()).update(range(start, start + count))
    return added


def find_new_lines(root: Path) -> Mapping[str, set[int]] | None:
    """Return the lines that were added since the numbers were last written; None if git cannot tell."""
    commit = _git(root, "log", "-1", "--format=%H", "--", str(LIMITS))
    diff = commit and _git(root, "diff", "--unified=0", commit.strip(), "--", "*.py")
    untracked = _git(root, "ls-files", "--others", "--exclude-standard", "--", "*.py")
    if diff is None or not commit or untracked is None:
        return None
    added = dict(parse_diff(diff))
    for path in untracked.splitlines():
        added[path] = set(range(1, len((root / path).read_text("utf-8").splitlines()) + 1))
    return added


def _git(root: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)  # noqa: S607
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def _trees(root: Path, folders: Iterable[str]) -> Mapping[str, ast.Module]:
    paths = sorted(path for folder in folders for path in (root / folder).rglob("*.py"))
    return {path.relative_to(root).as_posix(): ast.parse(path.read_text("utf-8")) for path in paths}


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Count names and docstrings that say too little.")
    parser.add_argument("--list", action="store_true", help="print every line that counts")
    parser.add_argument("--lower", action="store_true", help="write the numbers of today where they are lower")
    options = parser.parse_args(words)
    today = offences(ROOT)
    limits: dict[str, int] = tomllib.loads((ROOT / LIMITS).read_text("utf-8"))
    if options.list:
        for rule, broken in today.items():
            print(f"{rule}: {len(broken)}", *(f"  {offence}" for offence in broken), sep="\n")
        return 0
    if options.lower:
        lowered = {rule: min(len(broken), limits.get(rule, len(broken))) for rule, broken in today.items()}
        if lowered != limits:
            text = "".join(f"{rule} = {number}\n" for rule, number in lowered.items())
            (ROOT / LIMITS).write_text(HEADER + text, "utf-8")
        return 0
    problems = report(today, limits, find_new_lines(ROOT))
    print(*problems, sep="\n", end="\n" if problems else "", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    gc.disable()  # the trees live until the end; looking for garbage takes longer than parsing them
    sys.exit(main())
