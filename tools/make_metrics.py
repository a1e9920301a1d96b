"""Writes the table of docs/metrics.md from what a hub exposes: python tools/make_metrics.py"""

import re
from pathlib import Path

from veen.hub.process.observe import GAUGES, HubObserver

PAGE = Path(__file__).resolve().parents[1] / "docs" / "metrics.md"
BEGIN, END = "<!-- metrics -->", "<!-- end -->"


def table() -> str:
    """Name, kind, labels and meaning of each metric, by name."""
    text = HubObserver().render(dict.fromkeys(GAUGES, 0)).decode()
    about = dict(re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE))
    kinds = dict(re.findall(r"^# TYPE (\S+) (.*)$", text, re.MULTILINE))
    labels: dict[str, str] = {}
    for name, label in re.findall(r"^([a-z_]+)\{([a-z]+)=", text, re.MULTILINE):
        if label != "le":
            labels[name] = label
    rows = [f"| `{name}` | {kinds[name]} | {labels.get(name, '')} | {about[name]} |" for name in sorted(about)]
    return "\n".join(["| metric | kind | label | what it is |", "|---|---|---|---|", *rows])


def page(text: str) -> str:
    """`text` with the table as it must be now."""
    head, _, rest = text.partition(BEGIN)
    return f"{head}{BEGIN}\n\n{table()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
