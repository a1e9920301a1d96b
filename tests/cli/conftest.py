"""What the tests of commands that need a hub share: one hub process for each file of tests."""

import pytest
from tests.cli.hubprocess import running
from tests.cli.talk import DEV, Talk


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with running(tmp_path_factory.mktemp("hub") / "data", *DEV) as process:
        yield process


@pytest.fixture
def talk(tmp_path, monkeypatch, hub):
    """Alice in a fresh home, with a context for the hub."""
    monkeypatch.chdir(tmp_path)
    return Talk(tmp_path / "home", hub)
