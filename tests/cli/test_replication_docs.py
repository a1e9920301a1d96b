"""The walk of docs/replication.md runs as it stands there, with two hubs."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.cli.hubprocess import DEV, running
from tests.cli.tree import check_line, command_lines, exists

PAGE = (Path(__file__).parents[2] / "docs" / "replication.md").read_text("utf-8")


def test_every_line_of_the_walk_works(tmp_path):
    block = "".join(re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL))
    options = (*DEV, "--port", "0")
    with running(tmp_path / "a", *options) as source, running(tmp_path / "b", *options) as target:
        env = {name: value for name, value in os.environ.items() if not name.startswith("VEEN_")}
        env |= {"URL": target.url, "PIN": target.about["hub_pk"], "VEEN_HOME": str(tmp_path / "home")}
        env |= {"SOURCE": source.url, "SOURCE_PIN": source.about["hub_pk"], "SOURCE_DIR": str(source.data_dir)}
        env |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        shown = ""
        for command in re.findall(r"^\$ (.*)$", block, re.MULTILINE):
            done = subprocess.run(
                ["bash", "-c", command], capture_output=True, text=True, check=False, timeout=120, env=env, cwd=tmp_path
            )
            assert done.returncode == 0, f"{command}\n{done.stderr}"
            shown += done.stdout
        assert "copied 1 entries" in shown
        assert re.search(r"^complete\s+(yes|true)", shown, re.MULTILINE | re.IGNORECASE)


def test_every_command_that_is_named_parses():
    for line in command_lines(PAGE):
        if not exists(" ".join(line)):
            check_line(line)
