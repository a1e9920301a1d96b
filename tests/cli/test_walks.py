"""The walks of docs/policy.md, docs/anchors.md and docs/discovery.md run as they stand there."""

import re
from pathlib import Path

import pytest
from tests import shell
from tests.cli.hubprocess import running
from tests.cli.talk import DEV
from tests.cli.tree import check_line, command_lines, exists
from tests.examples import spread

from veen.core.catalogue import catalogue

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("policy", "anchors", "discovery")


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    root = tmp_path_factory.mktemp("hub")
    token = root / "token"
    token.write_text("an-administrator-token-of-this-test")
    token.chmod(0o600)
    settings = ("admission.kex1_plus=true", "admission.auth1=true", f"auth.admin_token_files={token}")
    with running(root / "data", *DEV, *(word for text in settings for word in ("--set", text))) as process:
        process.token = token
        yield process


@pytest.mark.parametrize("page", spread(PAGES, 1))
def test_every_line_of_the_walk_works(hub, tmp_path, page):
    (block,) = re.findall(r"```console\n(.*?)```", (DOCS / f"{page}.md").read_text("utf-8"), re.DOTALL)
    env = shell.environment(tmp_path / "home", URL=hub.url, PIN=hub.about["hub_pk"], TOKEN=str(hub.token))
    for command in re.findall(r"^\$ (.*)$", block, re.MULTILINE):
        shell.works(command, env, tmp_path)


@pytest.mark.parametrize("page", PAGES)
def test_every_command_that_is_named_parses_and_every_code_exists(page):
    text = (DOCS / f"{page}.md").read_text("utf-8")
    for line in command_lines(text):
        if not exists(" ".join(line)):
            check_line(line)
    codes = set(re.findall(r"\b(?:ANCHOR|DISC|CONNECT|REALM|POLICY)\.[A-Z_]+", text))
    assert codes <= set(catalogue())
