"""The fixture `veen_hub` for suites that use VEEN: a real hub for each test, started when a test asks for it."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from veen.testing.hubs import RunningHub


@pytest.fixture
def veen_hub(tmp_path: Path) -> "Iterator[RunningHub]":
    """A hub on a free port, with a home of its own: `veen_hub.connect()`, `veen_hub.url`, `veen_hub.pin`."""
    from veen.testing.hubs import hub

    with hub(tmp_path / "veen") as running:
        yield running
