"""The fixture `veen_hub` for suites that use VEEN: a real hub for each test, started when a test asks for it."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from veen.testing.hubs import RunningHub


@pytest.fixture
def veen_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "Iterator[RunningHub]":
    """Start a hub on a free port, with its own home: `veen_hub.connect()`, `veen_hub.url`, `veen_hub.pin`.

    The environment of the process points at it while the test runs, so that an application under test that calls
    `veen.connect()` or `veen.aconnect()` writes there, and never to a hub of the user.
    """
    from veen.testing.hubs import hub

    with hub(tmp_path / "veen") as running:
        for name, value in running.environment().items():
            if value is None:
                monkeypatch.delenv(name, raising=False)
            else:
                monkeypatch.setenv(name, value)
        yield running
