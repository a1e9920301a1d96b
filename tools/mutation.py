"""Mutation testing by groups: each group changes some modules and runs the tests that are meant to notice.

    python tools/mutation.py                       all groups, all mutants
    python tools/mutation.py admission view        these groups
    python tools/mutation.py --sample 200 state    at most 200 mutants a group, always the same ones
    python tools/mutation.py --again view          only what survived the last run, with the tests as they are now

mutmut knows one selection of tests for all modules, and the tests of the hub would run for each mutant of the core. So
each group has a directory of its own, `mutants/GROUP`, with links to the sources and a configuration made from
[tool.mutmut] of pyproject.toml and the table below.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
WORK: Final = ROOT / "mutants"
LINKS: Final = ("src", "tests", "tools", "docs")
SEED: Final = 1  # of the sample
NICENESS: Final = 10
# Exit codes of a mutant's tests as mutmut stores them; every other code means that a test failed.
OUTCOMES: Final[Mapping[int | None, str]] = {
    None: "not run", 0: "survived", 5: "no tests", 33: "no tests", 34: "skipped",
    24: "timeout", 36: "timeout", -24: "timeout", 152: "timeout", 255: "timeout",
}  # fmt: skip
# Makes the mutants without running a test, so that a sample can be drawn from their names.
GENERATE: Final = """
from mutmut import __main__ as mutmut
mutmut.copy_src_dir()
mutmut.copy_also_copy_files()
mutmut.setup_source_paths()
mutmut.create_mutants(1)
"""


@dataclass(frozen=True, slots=True)
class Group:
    """Modules that are changed, and the tests that run for each change."""

    modules: tuple[str, ...]  # below src/veen
    tests: tuple[str, ...]  # below tests
    without: tuple[str, ...] = ()  # parts of names of tests that take too long to run for each mutant


GROUPS: Final[Mapping[str, Group]] = {
    "core": Group(("core/tree/mmr", "core/tree/proof", "core/cbor", "core/objects/captoken"), ("core",)),
    "trusted": Group(
        ("core/objects/trusted_root",), ("core/test_trusted.py", "core/test_msg.py", "core/test_receipt.py")
    ),
    "admission": Group(("hub/admission/decide",), ("hub/test_admission.py", "hub/test_admission_policy.py")),
    "state": Group(
        ("storage/state",),
        ("hub/test_admission.py", "hub/test_admission_policy.py", "storage/test_store.py", "storage/test_cursors.py"),
        without=("decides_as_one_that_keeps_all",),
    ),
    "sequencer": Group(("hub/sequencer/sequencer",), ("hub/test_sequencer.py",), without=("full_from_any_operation",)),
    "run_check": Group(("core/run_check",), ("core/test_run_check.py",)),
    "view": Group(("client/verify/view",), ("client/test_view.py",)),
    "pin": Group(("client/verify/pin",), ("client/test_pin.py",)),
    "labelstate": Group(
        ("client/verify/label_state",),
        ("client/test_state.py",),
        without=("killed_process", "flipped_bits", "after_a_crash"),
    ),
    "verify": Group(
        ("storage/scan", "verify/entry", "verify/label", "verify/seals"),
        ("storage/test_fsck.py", "storage/test_retention.py", "storage/test_anchors.py"),
        without=("meanwhile", "at_every_moment", "any_crash"),
    ),
}


def configure(name: str, group: Group) -> Path:
    """Create the working directory of a group: links to the sources, and its own pyproject.toml."""
    work = WORK / name
    work.mkdir(parents=True, exist_ok=True)
    for link in LINKS:
        if not (work / link).is_symlink():
            (work / link).symlink_to(ROOT / link, target_is_directory=True)
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]
    mutmut: dict[str, Any] = dict(settings["mutmut"])
    mutmut["only_mutate"] = [f"src/veen/{module}.py" for module in group.modules]
    selection = [*(f"tests/{test}" for test in group.tests), "-m", "not slow"]
    if group.without:
        selection += ["-k", " and ".join(f"not {part}" for part in group.without)]
    mutmut["pytest_add_cli_args_test_selection"] = selection
    # JSON writes strings, lists of strings, numbers and booleans as TOML does.
    lines = ["[tool.mutmut]", *(f"{key} = {json.dumps(value)}" for key, value in mutmut.items())]
    lines += ["[tool.pytest.ini_options]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in settings["pytest"]["ini_options"].items()]
    (work / "pyproject.toml").write_text("\n".join(lines) + "\n", "utf-8")
    return work


def outcomes(work: Path, group: Group) -> Iterator[tuple[str, str]]:
    """Each mutant of a group and what became of it."""
    for module in group.modules:
        meta = json.loads((work / f"mutants/src/veen/{module}.py.meta").read_text("utf-8"))
        for mutant, code in meta["exit_code_by_key"].items():
            yield mutant, OUTCOMES.get(code, "killed")


def draw(mutants: Sequence[str], size: int | None) -> list[str]:
    """Return the mutants to run: all of them, or a sample that depends only on their names."""
    if size is None or len(mutants) <= size:
        return list(mutants)
    return sorted(random.Random(SEED).sample(sorted(mutants), size))  # noqa: S311 - a sample, not a secret


def run(name: str, group: Group, sample: int | None, *, again: bool) -> Counter[str]:
    """Run a group, print what no test noticed, and count the outcomes of its mutants."""
    work = configure(name, group)
    subprocess.run([sys.executable, "-c", GENERATE], cwd=work, check=True, stdout=subprocess.DEVNULL)
    before = dict(outcomes(work, group))
    ran = [mutant for mutant, outcome in before.items() if outcome != "not run"]
    chosen = draw(list(before), sample)
    if again:
        chosen = [mutant for mutant in ran if before[mutant] not in ("killed", "timeout")]
    print(f"{name}: {len(chosen)} mutants", flush=True)
    command = [sys.executable, "-m", "mutmut", "run", "--max-children", "1", *chosen]
    if chosen:  # without a name mutmut would run them all
        with (work / "log").open("w", encoding="utf-8") as log:
            subprocess.run(command, cwd=work, check=True, stdout=log, stderr=subprocess.STDOUT)
    counted = set(ran if again else chosen)
    results = {mutant: outcome for mutant, outcome in outcomes(work, group) if mutant in counted}
    for mutant, outcome in results.items():
        if outcome != "killed":
            print(f"  {outcome:9} {mutant}")
    return Counter(results.values())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Change the code in one place at a time; see whether a test notices.")
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)}; all by default")
    parser.add_argument("--sample", type=int, metavar="N", help="at most N mutants a group, always the same ones")
    parser.add_argument("--again", action="store_true", help="only what survived the last run")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.groups if name not in GROUPS]
    if unknown:
        parser.error(f"no group {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    os.nice(NICENESS)
    for name in options.groups or GROUPS:
        counts = run(name, GROUPS[name], options.sample, again=options.again)
        print(f"{name}: " + ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
