"""What the tests of commands that need a hub share: one hub process for each file of tests."""

import functools

import pytest
from click.testing import CliRunner
from tests.cli import shapecheck
from tests.cli.hubprocess import running
from tests.cli.talk import DEV, Talk

from veen.cli.app import cli


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    with running(tmp_path_factory.mktemp("hub") / "data", *DEV) as process:
        yield process


@pytest.fixture
def talk(tmp_path, monkeypatch, hub):
    """Alice in a fresh home, with a context for the hub."""
    monkeypatch.chdir(tmp_path)
    return Talk(tmp_path / "home", hub)


def _checked(usual):
    @functools.wraps(usual)
    def invoke(self, command, args=None, *more, **options):
        result = usual(self, command, args, *more, **options)
        if command is cli and isinstance(args, (list, tuple)):
            shapecheck.check(args, result.exit_code, result.stdout, result.stderr)
        return result

    return invoke


# Every command that a test runs is compared with the documented shape of its JSON.
setattr(CliRunner, "invoke", _checked(CliRunner.invoke))  # noqa: B010 - a method, which mypy lets nobody assign
