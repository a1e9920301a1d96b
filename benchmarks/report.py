"""Where benchmarks put their figures: sections of docs/benchmarks.md, each between two marker comments."""

import os
import platform
import re
import subprocess
from importlib.metadata import metadata, version
from pathlib import Path
from typing import Final

__all__ = ["PAGE", "commit_of", "machine", "write_section"]

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"

_OPENING: Final = """\
# Benchmarks

`make bench` measures and rewrites the sections below. What counts are the ratios: each operation is measured in the
same run as the limit it cannot beat, in turns, so that a busy or slow machine changes both. No test asserts a time.
Every section names the commit that it was made at.
"""


def write_section(name: str, text: str) -> None:
    """Replace one section; what others wrote stays as it is."""
    begin, end = f"<!-- {name}: begin, written by a benchmark -->", f"<!-- {name}: end -->"
    section = f"{begin}\n{text.strip()}\n{end}\n"
    page = PAGE.read_text("utf-8") if PAGE.exists() else _OPENING
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end) + "\n", re.DOTALL)
    has_section = pattern.search(page) is not None
    PAGE.write_text(pattern.sub(lambda _: section, page) if has_section else f"{page}\n{section}", "utf-8")


def machine() -> str:
    """What the figures were measured on, and at which commit."""
    software = (
        f"{platform.python_implementation()} {platform.python_version()}",
        f"PyNaCl {version('pynacl')} with libsodium {_libsodium()}",
        f"cbor2 {version('cbor2')}",
    )
    return f"{_cpu()}, {os.cpu_count()} cores; {', '.join(software)}; commit {commit_of(PAGE.parents[1])}."


def commit_of(directory: Path) -> str:
    """Return the commit of a checkout; with a note if files of the program differ from it."""
    git = ("git", "-C", str(directory))
    commit = subprocess.run([*git, "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True, check=False)
    if commit.returncode:
        return "unknown"
    changes = subprocess.run(
        [*git, "status", "--porcelain", "src", "native"], capture_output=True, text=True, check=False
    )
    return commit.stdout.strip() + (" with changes" if changes.stdout.strip() else "")


def _libsodium() -> str:
    """The wheel does not export libsodium's version function; its changelog, newest first, tells."""
    match = re.search(r"Updated ``libsodium`` to (\S+)", str(metadata("pynacl").json["description"]))
    return match[1].rstrip(".") if match else "of unknown version"


def _cpu() -> str:
    try:
        info = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        info = ""
    match = re.search(r"model name\s*:\s*(.+)", info)
    return match[1].strip() if match else platform.processor() or platform.machine()
