"""Pictures of every page of the console, light and dark.

    python tools/make_screenshots.py DIR [PAGE …]   all pages, or some, whole, in both themes
    python tools/make_screenshots.py --docs         those of docs/console.md, small

A hub with the demo's story and a console are started (`veen demo --console`), Debian's Chromium opens each page, and
the pictures are kept in DIR as PAGE-light.png and PAGE-dark.png. Look at them before they go into the docs.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.browser import Browser
from tests.products.console.tour import pages_of, visited

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
MAX_BYTES = 120_000
# By name: the page, dark or not, and how much of its height is shown.
SHOWN = {
    "overview": ("overview", False, 900),
    "fold": ("fold", True, 1180),
    "message": ("message", False, 900),
    "wallet": ("wallet", False, 860),
    "identity": ("identity", True, 700),
    "audit": ("audit", True, 900),
    "equivocation": ("equivocation", False, 780),
    "capabilities": ("capabilities", True, 820),
}


@contextmanager
def demo() -> Iterator[Any]:
    """Start the demo; yield the address that a running console prints."""
    process = subprocess.Popen(
        [sys.executable, "-m", "veen", "demo", "--console", "--json"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "BROWSER": "true"},
    )
    try:
        assert process.stderr is not None  # noqa: S101 - it is a pipe
        yield json.loads(process.stderr.readline())
    finally:
        process.send_signal(signal.SIGINT)
        with process:
            process.communicate(timeout=60)


def main(out: Path, names: list[str]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with tour() as (browser, url, pages):
        for name in names or pages:
            for dark in (False, True):
                shoot(browser, url + pages[name], out / f"{name}-{'dark' if dark else 'light'}.png", dark=dark)


def docs() -> None:
    with tour() as (browser, url, pages):
        for name, (page, dark, height) in SHOWN.items():
            path = FOLDER / f"console-{name}.png"
            shoot(browser, url + pages[page], path, dark=dark, width=1000, height=height, scale=0.72)
            if path.stat().st_size > MAX_BYTES:
                sys.exit(f"{path.name} is too large for the docs")


@contextmanager
def tour() -> Iterator[tuple[Any, str, Any]]:
    """Yield a browser with a session, the URL of the console, and its pages."""
    with demo() as notice, Browser.started() as browser:
        yield browser, notice["url"], pages_of(visited(browser, notice["address"]))


def shoot(
    browser: Any, url: str, path: Path, *, dark: bool, width: int = 1100, height: int = 6000, scale: float = 1
) -> None:
    page = browser.open(url, dark=dark, width=width)
    page.screenshot(path, height=height, scale=scale)
    print(f"{path} {path.stat().st_size} bytes", *page.complaints())
    page.close()


if __name__ == "__main__":
    if sys.argv[1:] == ["--docs"]:
        docs()
    else:
        main(Path(sys.argv[1]), sys.argv[2:])
