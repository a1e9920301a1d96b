"""Pictures of every page of the console, light and dark: python tools/make_screenshots.py DIR [PAGE …]

A hub with the demo's story and a console are started (`veen demo --console`), Debian's Chromium opens each page, and
the pictures are kept in DIR as PAGE-light.png and PAGE-dark.png. Look at them before they go into the docs.
"""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.browser import Browser
from tests.console.tour import pages_of, visited


@contextmanager
def demo():
    """The notice of a console that runs: its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "veen", "demo", "--console", "--json"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "BROWSER": "true"},
    )
    try:
        yield json.loads(process.stderr.readline())
    finally:
        process.send_signal(signal.SIGINT)
        with process:
            process.communicate(timeout=60)


def main(out: Path, names: list[str]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with demo() as notice, Browser.started() as browser:
        url = notice["url"]
        entrance = visited(browser, notice["address"])
        pages = pages_of(entrance)
        for name in names or pages:
            for dark in (False, True):
                page = browser.open(url + pages[name], dark=dark, width=1100)
                path = out / f"{name}-{'dark' if dark else 'light'}.png"
                page.screenshot(path)
                print(f"{path} {path.stat().st_size} bytes", *page.complaints())


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
