"""`veen console serve` and `open` as processes, over a real hub."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from tests.cli.hubprocess import DEV, running
from tests.cli.interrupts import interruptible
from tests.cli.talk import Talk
from tests.cli.tree import check_line, command_lines, exists

from veen.cli.shared.output import Exit

PAGE = Path(__file__).parents[2] / "docs" / "console.md"


@contextlib.contextmanager
def serving(talk, verb, *words, **env):
    process = subprocess.Popen(
        [sys.executable, "-m", "veen", "console", verb, "--json", *words],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **talk.env, **env},
        preexec_fn=interruptible,
    )
    try:
        assert process.stderr is not None
        yield json.loads(process.stderr.readline())
    finally:
        process.send_signal(signal.SIGINT)
        with process:
            process.communicate(timeout=120)


def test_a_console_shows_the_log_while_the_terminal_goes_on(tmp_path):
    with running(tmp_path / "hub", *DEV, "--set", "log.level=error") as hub:
        talk = Talk(tmp_path / "home", hub)
        talk.new_stream("orders")
        talk.run("send", "orders", "hello from the terminal")
        with serving(talk, "serve", "--root-path", "/ops", "--data-dir", str(tmp_path / "hub")) as notice:
            assert notice["url"].endswith("/ops")
            with httpx2.Client() as browser:
                assert browser.get(notice["address"]).status_code == 200
                settings = browser.get(notice["url"] + "/settings.json").json()["settings"]
                assert settings["data_dir"] == str(tmp_path / "hub")
        with serving(talk, "serve") as notice, httpx2.Client() as browser:
            assert notice["url"].startswith("http://127.0.0.1:")
            assert browser.get(notice["url"] + "/overview").status_code == 401
            assert browser.get(notice["address"]).status_code == 200
            overview = browser.get(notice["url"] + "/overview.json").json()
            (row,) = overview["streams"]
            assert (row["stream"], row["head"]) == ("orders", 1)
            talk.run("send", "orders", "and again")  # the identity is free
            stream = browser.get(f"{notice['url']}/stream/{row['stream_id']}.json").json()
            assert [entry["body"] for entry in stream["entries"]] == ["hello from the terminal", "and again"]
            foreign = browser.get(notice["url"] + "/overview", headers={"Host": "attacker.example"})
            assert foreign.status_code == 421
        browser = tmp_path / "browser"  # one that writes down what it was asked to open
        browser.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/opened\n')
        browser.chmod(0o755)
        with serving(talk, "open", BROWSER=f"{browser} %s") as notice:
            page = Path(notice["file"])
            assert page.stat().st_mode & 0o077 == 0
            (address,) = re.findall(r'href="([^"]+)"', page.read_text())
            assert "token=" not in json.dumps(notice)
            with httpx2.Client() as visitor:
                assert visitor.get(address).status_code == 200
                assert visitor.get(notice["url"] + "/streams").status_code == 200
        assert not page.exists()
        assert "token=" not in (tmp_path / "opened").read_text()


def test_other_addresses_need_tls(tmp_path):
    with running(tmp_path / "hub", *DEV, "--set", "log.level=error") as hub:
        talk = Talk(tmp_path / "home", hub)
        talk.new_stream("orders")
        refused = talk.run("console", "serve", "--host", "0.0.0.0", code=Exit.LOCAL)  # noqa: S104 - it is refused
        assert "E.LOCAL.PLAIN_HTTP" in refused.stderr
        for prefix in ("ops", "/ops/", "/a b", "//x"):
            assert "--root-path" in talk.run("console", "serve", "--root-path", prefix, code=Exit.USAGE).stderr


@pytest.mark.parametrize("line", list(command_lines(PAGE.read_text("utf-8"))), ids=" ".join)
def test_every_command_of_the_page_parses(line):
    if not exists(" ".join(line)):
        check_line(line)
