"""The walk of docs/replication.md runs as it stands there, with two hubs."""

import re
from pathlib import Path

import pytest
from tests import shell
from tests.cli.hubprocess import DEV, running
from tests.cli.tree import check_line, command_lines, exists

PAGE = (Path(__file__).parents[2] / "docs" / "replication.md").read_text("utf-8")


@pytest.mark.slow
def test_every_line_of_the_walk_works(tmp_path):
    block = "".join(re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL))
    options = (*DEV, "--port", "0")
    with running(tmp_path / "a", *options) as source, running(tmp_path / "b", *options) as target:
        env = shell.environment(tmp_path / "home", URL=target.url, PIN=target.about["hub_pk"])
        env |= {"SOURCE": source.url, "SOURCE_PIN": source.about["hub_pk"], "SOURCE_DIR": str(source.data_dir)}
        shown = ""
        for command in re.findall(r"^\$ (.*)$", block, re.MULTILINE):
            shown += shell.works(command, env, tmp_path)
        assert "copied 1 entries" in shown
        assert re.search(r"^complete\s+(yes|true)", shown, re.MULTILINE | re.IGNORECASE)


def test_every_command_that_is_named_parses():
    for line in command_lines(PAGE):
        if not exists(" ".join(line)):
            check_line(line)
