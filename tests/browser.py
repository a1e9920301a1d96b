"""Debian's Chromium, driven by its DevTools protocol over a pipe: no driver program, no port, no other package.

with Browser.started() as browser:
    page = browser.open(path.as_uri())
    assert page.evaluate("1 + 1") == 2
"""

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

PROGRAM = "chromium"
SECONDS = 120.0  # a loaded machine takes long to start a browser


class Browser:
    """One headless browser with a profile of its own."""

    def __init__(self, process, to_browser, from_browser):
        self._process, self._write, self._read = process, to_browser, from_browser
        self._pending = b""
        self._number = 0
        self.events = []

    @classmethod
    @contextlib.contextmanager
    def started(cls, *options):
        if shutil.which(PROGRAM) is None:
            pytest.skip(f"{PROGRAM} is not installed")
        profile = tempfile.mkdtemp(prefix="veen-browser-")
        child_read, to_browser = os.pipe()
        from_browser, child_write = os.pipe()
        words = [
            PROGRAM, "--headless=new", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu", "--no-sandbox",
            "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update",
            "--disable-sync", "--hide-scrollbars", f"--user-data-dir={profile}", *options, "about:blank",
        ]  # fmt: skip
        process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{child_read} 4>&{child_write}', "bash", *words],
            pass_fds=(child_read, child_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": profile, "XDG_CONFIG_HOME": profile, "XDG_CACHE_HOME": profile},
        )
        os.close(child_read)
        os.close(child_write)
        browser = cls(process, to_browser, from_browser)
        try:
            yield browser
        finally:
            with contextlib.suppress(OSError, TimeoutError):
                browser.call("Browser.close")
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()
            process.wait()
            os.close(to_browser)
            os.close(from_browser)
            shutil.rmtree(profile, ignore_errors=True)

    def call(self, method, session=None, **params):
        """The result of one command; what the browser reports meanwhile is kept in `events`."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        while True:
            answer = self.next_message()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def next_message(self):
        deadline = time.monotonic() + SECONDS
        while b"\0" not in self._pending:
            ready, _, _ = select.select([self._read], [], [], max(deadline - time.monotonic(), 0))
            if not ready:
                raise TimeoutError("the browser does not answer")
            chunk = os.read(self._read, 1 << 20)
            if not chunk:
                raise OSError("the browser has ended")
            self._pending += chunk
        message, _, self._pending = self._pending.partition(b"\0")
        return json.loads(message)

    def open(self, url, *, scripts=True, dark=False, width=1100, height=900):
        """A new page that has loaded `url`; every request and every complaint of the browser is recorded."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session, target)
        for domain in ("Page", "Runtime", "Network", "Log", "Audits"):
            page.call(f"{domain}.enable")
        page.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        page.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        page.scheme(dark=dark)
        page.call("Page.navigate", url=url)
        page.wait_for_event("Page.loadEventFired")
        return page


class Page:
    """One tab."""

    def __init__(self, browser, session, target):
        self._browser, self._session, self._target = browser, session, target

    def call(self, method, **params):
        return self._browser.call(method, self._session, **params)

    def close(self):
        """Close the tab, and forget what it reported."""
        self._browser.call("Target.closeTarget", targetId=self._target)
        self._browser.events = [event for event in self._browser.events if event.get("sessionId") != self._session]

    def scheme(self, *, dark):
        """What the user prefers, light or dark."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def press(self, key):
        """A key of the keyboard, such as Tab."""
        code = {"Tab": 9, "Enter": 13}[key]
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def events(self, *methods):
        mine = (event for event in self._browser.events if event.get("sessionId") == self._session)
        return [event["params"] for event in mine if event["method"] in methods]

    def wait_for_event(self, method):
        while not self.events(method):
            self._browser.events.append(self._browser.next_message())

    def evaluate(self, expression):
        """The value of an expression, awaited if it is a promise."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise AssertionError(answer["exceptionDetails"])
        return answer["result"].get("value")

    def wait(self, condition):
        """Until an expression is true; the browser asks it again with every frame."""
        self.evaluate(
            "new Promise((done) => { const look = () => (" + condition + ") ? done(true) : setTimeout(look, 20);"
            " look(); })"
        )

    def text(self, selector):
        return self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")

    def requests(self):
        """The URLs that the page asked for."""
        return [event["request"]["url"] for event in self.events("Network.requestWillBeSent")]

    def complaints(self):
        """Errors of scripts, refused content, and other things that the browser reports."""
        logged = [event["entry"]["text"] for event in self.events("Log.entryAdded")]
        thrown = [event["exceptionDetails"]["text"] for event in self.events("Runtime.exceptionThrown")]
        issues = [event["issue"]["code"] for event in self.events("Audits.issueAdded")]
        return logged + thrown + issues

    def screenshot(self, path, *, height=6000, scale=1):
        """The page as a picture, from its top to a height."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], height), "scale": scale}
        data = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)["data"]
        Path(path).write_bytes(base64.b64decode(data))
