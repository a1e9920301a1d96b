"""Debian's Firefox, driven by WebDriver BiDi over a websocket on loopback: no driver program, no other package.

with Firefox.started() as browser:
    page = browser.open(path.as_uri())
    assert page.evaluate("1 + 1") == 2

The interface is that of `tests.browser`, as far as tests need it here. Whether pages are light or dark is chosen when
the browser starts. Requests to other machines go to a closed port of this one.
"""

import base64
import contextlib
import json
import os
import secrets
import shutil
import socket
import struct
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from tests.waiting import until

PROGRAM = "firefox-esr"
SECONDS = 120.0  # a loaded machine takes long to start a browser
_PREFERENCES = {
    "app.update.enabled": False,
    "browser.aboutwelcome.enabled": False,
    "browser.newtabpage.enabled": False,
    "browser.safebrowsing.downloads.enabled": False,
    "browser.safebrowsing.malware.enabled": False,
    "browser.safebrowsing.phishing.enabled": False,
    "browser.sessionstore.resume_from_crash": False,
    "browser.shell.checkDefaultBrowser": False,
    "browser.startup.page": 0,
    "datareporting.healthreport.uploadEnabled": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    "extensions.update.enabled": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "network.proxy.http": "127.0.0.1",
    "network.proxy.http_port": 9,
    "network.proxy.no_proxies_on": "127.0.0.1, localhost",
    "network.proxy.ssl": "127.0.0.1",
    "network.proxy.ssl_port": 9,
    "network.proxy.type": 1,
    "services.settings.server": "http://127.0.0.1:9",
    "toolkit.telemetry.enabled": False,
}
_EVENTS = ("log.entryAdded", "network.beforeRequestSent", "browsingContext.userPromptOpened")
# What the content policy refuses is an event of the page, not a line of the console.
_WATCH = """() => {
  window.refusals = [];
  document.addEventListener("securitypolicyviolation", (event) =>
    window.refusals.push(`${event.violatedDirective} ${event.blockedURI}`));
}"""


class WebSocket:
    """A websocket to a server of this machine (RFC 6455), text messages only."""

    def __init__(self, port, path):
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
        key = base64.b64encode(secrets.token_bytes(16)).decode()
        self._socket.sendall(
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        self._reader = self._socket.makefile("rb")
        status = self._reader.readline()
        assert b" 101 " in status, status
        while self._reader.readline().strip():
            pass

    def send(self, data, opcode=1):
        length = len(data)
        if length < 126:
            head = struct.pack("!BB", 0x80 | opcode, 0x80 | length)
        elif length < 1 << 16:
            head = struct.pack("!BBH", 0x80 | opcode, 0x80 | 126, length)
        else:
            head = struct.pack("!BBQ", 0x80 | opcode, 0x80 | 127, length)
        mask = secrets.token_bytes(4)  # one of zeros ends the connection
        pattern = (mask * (length // 4 + 1))[:length]
        masked = int.from_bytes(data, "big") ^ int.from_bytes(pattern, "big")
        self._socket.sendall(head + mask + masked.to_bytes(length, "big"))

    def receive(self):
        message = b""
        while True:
            first, second = self._exactly(2)
            length = second & 0x7F
            if length >= 126:
                length = int.from_bytes(self._exactly(2 if length == 126 else 8), "big")
            data = self._exactly(length)
            opcode = first & 0x0F
            if opcode == 9:
                self.send(data, opcode=10)
            elif opcode == 8:
                raise OSError("the browser closed the connection")
            elif opcode in (0, 1, 2):
                message += data
                if first & 0x80:
                    return message

    def _exactly(self, count):
        data = self._reader.read(count)
        if len(data) != count:
            raise OSError("the browser has ended")
        return data

    def close(self):
        self._reader.close()
        self._socket.close()


class Firefox:
    """One headless browser with a profile of its own."""

    def __init__(self, web_socket):
        self._web_socket = web_socket
        self._number = 0
        self.events = []

    @classmethod
    @contextlib.contextmanager
    def started(cls, *, dark=False, **preferences):
        if shutil.which(PROGRAM) is None:
            pytest.skip(f"{PROGRAM} is not installed")
        profile = Path(tempfile.mkdtemp(prefix="veen-firefox-"))
        scheme = {"layout.css.prefers-color-scheme.content-override": 0 if dark else 1}
        lines = [
            f"user_pref({json.dumps(name)}, {json.dumps(value)});"
            for name, value in {**_PREFERENCES, **scheme, **preferences}.items()
        ]
        (profile / "user.js").write_text("\n".join(lines))
        words = [PROGRAM, "--headless", "--no-remote", "--profile", str(profile), "--remote-debugging-port", "0"]
        process = subprocess.Popen(
            [*words, "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": str(profile), "XDG_CONFIG_HOME": str(profile), "MOZ_CRASHREPORTER_DISABLE": "1"},
        )
        web_socket = None
        try:
            place = profile / "WebDriverBiDiServer.json"
            until(lambda: process.poll() is not None or (place.exists() and place.read_text().endswith("}")), SECONDS)
            assert process.poll() is None, "the browser has ended"
            web_socket = WebSocket(json.loads(place.read_text())["ws_port"], "/session")
            browser = cls(web_socket)
            browser.call("session.new", capabilities={"alwaysMatch": {"acceptInsecureCerts": True}})
            browser.call("session.subscribe", events=list(_EVENTS))
            browser.call("script.addPreloadScript", functionDeclaration=_WATCH)
            yield browser
        finally:
            if web_socket is not None:
                with contextlib.suppress(OSError, AssertionError):
                    browser.call("browser.close")
                web_socket.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()
            process.wait()
            shutil.rmtree(profile, ignore_errors=True)

    def call(self, method, **params):
        """The result of one command; what the browser reports meanwhile is kept in `events`."""
        self._number += 1
        self._web_socket.send(json.dumps({"id": self._number, "method": method, "params": params}).encode())
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            answer = json.loads(self._web_socket.receive())
            if answer.get("type") == "event":
                self.events.append(answer)
            elif answer.get("id") == self._number:
                if answer["type"] == "error":
                    raise AssertionError(f"{method}: {answer['error']}: {answer['message']}")
                return answer["result"]
        raise TimeoutError("the browser does not answer")

    def open(self, url, *, width=1100, height=900):
        """A new page that has loaded `url`; every request and every complaint of the browser is recorded."""
        context = self.call("browsingContext.create", type="tab")["context"]
        page = Tab(self, context)
        self.call("browsingContext.setViewport", context=context, viewport={"width": width, "height": height})
        self.call("browsingContext.navigate", context=context, url=url, wait="complete")
        return page


class Tab:
    """One tab."""

    def __init__(self, browser, context):
        self._browser, self._context = browser, context

    def close(self):
        """Close the tab, and forget what it reported."""
        self._browser.call("browsingContext.close", context=self._context)
        self._browser.events = [event for event in self._browser.events if self._context_of(event) != self._context]

    def _context_of(self, event):
        params = event["params"]
        return params.get("context") or params.get("source", {}).get("context")

    def events(self, *methods):
        mine = (event for event in self._browser.events if self._context_of(event) == self._context)
        return [event["params"] for event in mine if event["method"] in methods]

    def evaluate(self, expression):
        """The value of an expression, awaited if it is a promise."""
        target = {"context": self._context}
        answer = self._browser.call("script.evaluate", expression=expression, target=target, awaitPromise=True)
        if answer["type"] == "exception":
            raise AssertionError(answer["exceptionDetails"]["text"])
        return _value_of(answer["result"])

    def wait(self, condition):
        """Until an expression is true; the browser asks it again and again."""
        self.evaluate(
            "new Promise((done) => { const look = () => (" + condition + ") ? done(true) : setTimeout(look, 20);"
            " look(); })"
        )

    def text(self, selector):
        return self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")

    def requests(self):
        """The URLs that the page asked for, but for the empty page of a new tab and Firefox's own fonts."""
        urls = [event["request"]["url"] for event in self.events("network.beforeRequestSent")]
        return [url for url in urls if not url.startswith(("about:", "data:"))]

    def dialogs(self):
        return self.events("browsingContext.userPromptOpened")

    def complaints(self):
        """Errors of scripts, refused content, and warnings."""
        logged = [
            event["text"] for event in self.events("log.entryAdded") if event["level"] in ("error", "warn", "warning")
        ]
        return logged + self.evaluate("window.refusals")

    def screenshot(self, path):
        data = self._browser.call("browsingContext.captureScreenshot", context=self._context, origin="document")["data"]
        Path(path).write_bytes(base64.b64decode(data))


def _value_of(remote):
    """A value of the browser (BiDi's RemoteValue) as one of Python."""
    match remote["type"]:
        case "undefined" | "null":
            return None
        case "string" | "boolean":
            return remote["value"]
        case "number":
            value = remote["value"]
            return value if isinstance(value, (int, float)) else float(value.replace("Infinity", "inf"))
        case "bigint":
            return int(remote["value"])
        case "array":
            return [_value_of(value) for value in remote["value"]]
        case "object":
            return {name: _value_of(value) for name, value in remote["value"]}
        case kind:
            raise AssertionError(f"a value of type {kind} was not asked for")
