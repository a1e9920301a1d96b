"""The examples of docs/cli.md, docs/client.md and docs/evidence.md run as they stand there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.tree import check_line, command_lines, exists

DOCS = Path(__file__).parents[2] / "docs"
README = (DOCS.parent / "README.md").read_text("utf-8")
CLI, CLIENT, EVIDENCE = ((DOCS / name).read_text("utf-8") for name in ("cli.md", "client.md", "evidence.md"))


@pytest.mark.parametrize("page", [CLI, EVIDENCE], ids=["cli.md", "evidence.md"])
def test_every_line_of_the_walk_works_and_prints_what_is_shown(hub, tmp_path, page):
    (block,) = re.findall(r"```console\n(.*?)```", page, re.DOTALL)
    env = {name: value for name, value in os.environ.items() if not name.startswith("VEEN_")}
    env |= {"URL": hub.url, "PIN": hub.about["hub_pk"], "VEEN_HOME": str(tmp_path / "home")}
    veen = Path(sys.executable).with_name("veen")
    for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, shown = step.partition("\n")
        script = f'veen() {{ "{veen}" "$@"; }}\n{command}'
        done = subprocess.run(
            ["bash", "-c", script], capture_output=True, text=True, check=False, timeout=60, env=env, cwd=tmp_path
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        if shown.strip():
            assert done.stdout == shown


def test_every_line_of_the_readme_works(hub, tmp_path):
    """As a reader would type them, with what the hub printed in place of URL and KEY."""
    lines = re.findall(
        r"^\$ (veen .*?)(?:  #.*)?$", README.partition("## Try it")[2].partition("```python")[0], re.MULTILINE
    )
    assert lines[0].startswith("veen hub start")
    env = {name: value for name, value in os.environ.items() if not name.startswith("VEEN_")}
    env |= {"VEEN_HOME": str(tmp_path / "home"), "PATH": f"{Path(sys.executable).parent}:{env['PATH']}"}
    for line in lines[1:]:
        command = line.replace(" URL ", f" {hub.url} ").replace(" KEY ", f" {hub.about['hub_pk']} ")
        command = command.replace("./hub", hub.about["data_dir"]).replace(" orders", " readme")  # others write orders
        if command.startswith("veen keygen"):
            command += " --insecure-plain-keystore"  # nobody is here to be asked for a passphrase
        done = subprocess.run(
            ["bash", "-c", command], capture_output=True, text=True, check=False, timeout=60, env=env, cwd=tmp_path
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"


def test_the_examples_of_the_library_run(hub, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("VEEN_HOME", str(tmp_path))
    examples = re.findall(r"```python\n(.*?)```", CLIENT, re.DOTALL)
    assert len(examples) >= 5
    names = {"__name__": "docs_client", "url": hub.url, "hub_pk": hub.about["hub_pk"]}
    exec(compile("\n".join(examples), "docs/client.md", "exec"), names)  # noqa: S102 - our own documentation
    assert "1 [b'hello']" in capsys.readouterr().out


def test_the_first_example_is_about_ten_lines():
    first = re.findall(r"```python\n(.*?)```", CLIENT, re.DOTALL)[0]
    assert len([line for line in first.splitlines() if line.strip()]) <= 10


@pytest.mark.parametrize("page", [CLI, CLIENT, EVIDENCE], ids=["cli.md", "client.md", "evidence.md"])
def test_every_command_that_is_named_parses(page):
    for line in command_lines(page):
        if not exists(" ".join(line)):  # to name a command is one thing, to tell how to call it another
            check_line(line)
