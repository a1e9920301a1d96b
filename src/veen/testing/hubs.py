"""A real hub for a test suite: in this process, on a free port of loopback, with a directory and a home of its own.

    with veen.testing.hub() as hub, hub.connect() as alice:
        alice.stream("orders").send({"event": "login"})

As a fixture of pytest it is `veen_hub`, which an installed VEEN brings along.
"""

import contextlib
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

from veen.api.blocking import HubConnection, connect
from veen.api.hubs import PendingConnection, aconnect
from veen.client.config.settings import ENVIRONMENT
from veen.client.home import Home
from veen.client.sync import LoopThread
from veen.core.objects.trusted_root import PinnedKey
from veen.hub.process.config import load
from veen.hub.process.runtime import Hub

_SETTINGS: Final = {
    "dev": "true",
    "listen.port": "0",
    "engine.workers": "0",
    "log.level": "error",
    "admission.capability_gating": "false",
    "admission.stream_scope": "open",
}


class RunningHub:
    """A hub that runs in a thread of this process until it is closed."""

    def __init__(self, directory: Path, settings: Mapping[str, str]) -> None:
        self.data_dir, self._root = directory / "hub", directory / "home"
        self.home = Home.at(self._root)
        self._loop = LoopThread()
        self.url: str
        self.pin: str
        try:
            self._loop.run(self._start({**_SETTINGS, **settings, "data_dir": str(self.data_dir)}))
        except BaseException:
            self._loop.close()
            raise

    async def _start(self, settings: Mapping[str, str]) -> None:
        self._stack = contextlib.AsyncExitStack()
        running = await self._stack.enter_async_context(Hub.serve(load(None, {}, dict(settings))))
        self.url, self.pin = running.url, PinnedKey(running.identity.held.identity.keys[0].hub_pk).to_text()

    def connect(self, identity: str = "tester", **options: Any) -> HubConnection:
        """Connect as `veen.connect` does; the identity is in the home of this hub and is created if it is missing."""
        return connect(self.url, pin=self.pin, identity=identity, **self._defaults(options))

    def aconnect(self, identity: str = "tester", **options: Any) -> PendingConnection:
        """Connect as `veen.aconnect` does."""
        return aconnect(self.url, pin=self.pin, identity=identity, **self._defaults(options))

    def _defaults(self, options: Mapping[str, Any]) -> dict[str, Any]:
        return {"home": self.home, "make_keys": True, **options}

    def environment(self, identity: str = "tester") -> dict[str, str | None]:
        """Return the variables that point a process at this hub and its home; None: a variable that must not be set."""
        return {
            **dict.fromkeys(ENVIRONMENT.values()),
            "VEEN_HOME": str(self._root),
            "VEEN_HUB": self.url,
            "VEEN_PIN": self.pin,
            "VEEN_IDENTITY": identity,
            "VEEN_MAKE_KEYS": "true",
            "VEEN_PASSPHRASE_FILE": str(self.home.config / f"{identity}.passphrase"),
        }

    def close(self) -> None:
        """Stop the hub. The context manager does this on exit."""
        if not self._loop.is_closed:
            try:
                self._loop.run(self._stack.aclose())
            finally:
                self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"RunningHub({self.url!r}, {self.pin!r})"


class _TemporaryHub(RunningHub):
    """A hub whose directory is removed when it is closed."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="veen-test-")
        try:
            super().__init__(Path(self._directory.name), settings)
        except BaseException:
            self._directory.cleanup()
            raise

    def close(self) -> None:
        super().close()
        self._directory.cleanup()


def hub(directory: str | Path | None = None, **settings: str) -> RunningHub:
    """Start a hub; close it, or use it as a context manager.

    `directory` keeps its data and its home; without one they are removed when it is closed. `settings` are keys of a
    hub's configuration with "__" for the dot: `hub(admission__capability_gating="true")`.
    """
    keys = {name.replace("__", "."): value for name, value in settings.items()}
    return _TemporaryHub(keys) if directory is None else RunningHub(Path(directory), keys)
