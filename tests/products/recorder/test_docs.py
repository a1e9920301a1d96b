"""docs/recorder.md: the quick start runs, and its configurations are accepted."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from tests import shell
from tests.cli.homes import Cli
from tests.cli.hubprocess import running
from tests.cli.tree import check_line, command_lines

from veen.client.home import Home
from veen.products.recorder.adapters.registry import BUILTIN, kinds
from veen.products.recorder.agent import AgentConfig
from veen.products.recorder.logging_handler import RecorderHandler

PAGE = (Path(__file__).parents[3] / "docs" / "recorder.md").read_text("utf-8")


@pytest.mark.slow
@pytest.mark.req("SDR-10")
def test_the_quick_start_runs_as_it_stands(tmp_path):
    (block,) = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    cli = Cli(tmp_path / "home")
    with running(tmp_path / "hub") as hub:
        env = shell.environment(cli.root, **cli.env, URL=hub.url, PIN=hub.about["hub_pk"])
        stdout = ""
        for line in re.findall(r"^\$ (.*)$", block, re.MULTILINE):
            stdout = shell.works(line, env, tmp_path)
        rows = [json.loads(row) for row in stdout.splitlines()]
        assert [row["event_type"] for row in rows[:2]] == ["login", "logout"]
        assert rows[-1]["trailer"]["coverage"][0]["to"] == 2

        # The example for Python logging, against the same hub.
        (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
        code = example.replace("pin=PIN)", "pin=PIN, home=HOME)")
        names = {"URL": hub.url, "PIN": hub.about["hub_pk"], "HOME": Home.at(cli.root)}
        exec(compile(code, "docs/recorder.md", "exec"), names)  # noqa: S102 - our own documentation
        assert isinstance(names["handler"], RecorderHandler)
        at = ("--hub", hub.url, "--pin", hub.about["hub_pk"], "--identity", "recorder-admin")
        replay = cli.json("recorder", "replay", "--stream", "record/app/web", "--since", "0", *at)
        assert replay["rows"][-2]["event_type"] == "order.paid"


def test_the_configuration_is_accepted():
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    config = AgentConfig.of(tomllib.loads(example))
    assert [source.id for source, _, _ in config.sources] == ["access-log", "net"]
    for source, _, _ in config.sources:
        assert set(source.options) <= set(BUILTIN[source.kind][1])


def test_every_kind_of_source_is_described():
    for kind in kinds([]):
        assert f"| `{kind}`" in PAGE


def test_every_command_line_parses():
    for line in command_lines(PAGE):
        check_line(line)
