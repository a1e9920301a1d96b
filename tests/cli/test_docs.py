"""The examples of docs/cli.md, client.md, evidence.md and services.md run as they stand there."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests import shell
from tests.cli.tree import check_line, command_lines, exists

DOCS = Path(__file__).parents[2] / "docs"
README = (DOCS.parent / "README.md").read_text("utf-8")
CLI, CLIENT, EVIDENCE, SERVICES = (
    (DOCS / name).read_text("utf-8") for name in ("cli.md", "client.md", "evidence.md", "services.md")
)


@pytest.mark.parametrize("page", [CLI, EVIDENCE], ids=["cli.md", "evidence.md"])
def test_every_line_of_the_walk_works_and_prints_what_is_shown(hub, tmp_path, page):
    (block,) = re.findall(r"```console\n(.*?)```", page, re.DOTALL)
    env = shell.environment(tmp_path / "home", URL=hub.url, PIN=hub.about["hub_pk"])
    for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, shown = step.partition("\n")
        stdout = shell.works(command, env, tmp_path)
        if shown.strip():
            assert stdout == shown


@pytest.fixture
def dev(tmp_path):
    """A fresh home in which somebody has typed `veen hub start --dev`: what commands and programs need to know."""
    env = shell.environment(tmp_path / "home")

    def works(line):
        return shell.works(line, env, tmp_path)

    works("veen hub start --dev --detach --set engine.workers=0")
    yield works
    works("veen hub stop")


def test_every_line_of_the_readme_works(dev):
    """As a reader types them, after the first one."""
    block = README.partition("## Try it")[2].partition("```python")[0]
    lines = re.findall(r"^\$ (veen .*?)(?: +#.*)?$", block, re.MULTILINE)
    assert lines[0] == "veen hub start --dev"
    assert len(lines) > 5
    for line in lines[1:]:
        dev(line)


def test_the_python_block_of_the_readme_runs_again_and_again(dev, tmp_path):
    """Twice in a fresh home, and in one that has been used from the command line and has other identities."""
    (block,) = re.findall(r"```python\n(import veen\n.*?)```", README, re.DOTALL)
    (tmp_path / "block.py").write_text(block)
    assert '{"event":"login"}' in dev("python block.py")
    dev("python block.py")
    dev('veen send orders "by hand"')
    for name in ("alice", "bob"):
        dev(f"veen keygen --name {name} --insecure-plain-keystore")
    assert "by hand" in dev("python block.py")


def test_the_examples_of_services_run(hub, tmp_path, monkeypatch):
    """One after another, as in the page; then a request goes to the application."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text(
        f'current_context = "dev"\n[context.dev]\nhub = "{hub.url}"\nhub_pk = "{hub.about["hub_pk"]}"\n'
        'make_keys = true\nidentity = "dev"\npassphrase_file = "dev.passphrase"\n'
    )
    monkeypatch.setenv("VEEN_HOME", str(home))
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"```python\n(.*?)```", SERVICES, re.DOTALL)
    assert len(examples) >= 4
    text = "\n".join(examples).replace('"orders"', '"services/orders"')  # others write orders at this hub
    names: dict[str, Any] = {"__name__": "docs_services"}
    exec(compile(text, "docs/services.md", "exec"), names)  # noqa: S102 - our own documentation
    status, answer = asyncio.run(asked(names["app"], "/login/ann"))
    assert (status, answer["seq"]) == (200, 1)


async def asked(app, path):
    """One request to an ASGI application, with its lifespan around it: no server, no port."""
    incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    started, ended = asyncio.Event(), asyncio.Event()
    state: dict[str, Any] = {}

    async def lifespan_send(message):
        assert not message["type"].endswith("failed"), message
        (started if message["type"] == "lifespan.startup.complete" else ended).set()

    scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": state}
    life = asyncio.create_task(app(scope, incoming.get, lifespan_send))
    await incoming.put({"type": "lifespan.startup"})
    await asyncio.wait([life, asyncio.create_task(started.wait())], return_when=asyncio.FIRST_COMPLETED)
    assert started.is_set()
    sent = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    request = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "path": path}
    request |= {"raw_path": path.encode(), "query_string": b"", "headers": [], "scheme": "http", "root_path": ""}
    await app({**request, "client": None, "server": ("test", 80), "state": state.copy()}, receive, send)
    await incoming.put({"type": "lifespan.shutdown"})
    await ended.wait()
    await life
    body = b"".join(message.get("body", b"") for message in sent)
    return sent[0]["status"], json.loads(body)


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


@pytest.mark.parametrize(
    "page", [CLI, CLIENT, EVIDENCE, SERVICES], ids=["cli.md", "client.md", "evidence.md", "services.md"]
)
def test_every_command_that_is_named_parses(page):
    for line in command_lines(page):
        if not exists(" ".join(line)):  # to name a command is one thing, to tell how to call it another
            check_line(line)
