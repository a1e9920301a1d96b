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
from tests.cli import shapecheck
from tests.cli.hubprocess import DEV, running
from tests.cli.interrupts import interruptible
from tests.cli.talk import Talk
from tests.cli.tree import check_line, command_lines, exists
from tests.hub.test_http import certificate, trusting

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
        yield shapecheck.check_start(["console", verb], process.stderr.readline())
    finally:
        process.send_signal(signal.SIGINT)
        with process:
            process.communicate(timeout=120)


@pytest.mark.slow
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


def test_other_addresses_need_tls_and_a_login(tmp_path):
    cert, key, _ = certificate(tmp_path, "localhost")
    passwords = tmp_path / "console.passwords"
    word = tmp_path / "word"
    word.write_text("correct horse battery staple\n")
    word.chmod(0o600)
    tls = ("--tls-cert", str(cert), "--tls-key", str(key))
    with running(tmp_path / "hub", *DEV, "--set", "log.level=error") as hub:
        talk = Talk(tmp_path / "home", hub)
        talk.new_stream("orders")
        for option in ("--host", "--listen"):
            refused = talk.run("console", "serve", option, "0.0.0.0", code=Exit.LOCAL)  # noqa: S104 - it is refused
            assert "E.LOCAL.PLAIN_HTTP" in refused.stderr
        refused = talk.run("console", "serve", "--listen", "0.0.0.0", *tls, code=Exit.LOCAL)  # noqa: S104 - as above
        assert "E.CONSOLE.LOGIN" in refused.stderr
        talk.run("console", "password", "alice", "--out", str(passwords), "--password-file", str(word))
        listed = talk.json("console", "password", "bob", "--out", str(passwords), "--password-file", str(word))
        assert listed["names"] == ["alice", "bob"]
        assert passwords.stat().st_mode & 0o077 == 0
        assert "horse" not in passwords.read_text()
        removed = talk.json("console", "password", "bob", "--out", str(passwords), "--remove")
        assert removed["names"] == ["alice"]
        talk.run("console", "password", "bob", "--out", str(passwords), "--remove", code=Exit.USAGE)
        weak = tmp_path / "weak"
        weak.write_text("password\n")
        weak.chmod(0o600)
        talk.run("console", "password", "eve", "--out", str(passwords), "--password-file", str(weak), code=Exit.LOCAL)
        nobody = talk.run("console", "password", "eve", "--out", str(passwords), code=Exit.LOCAL)
        assert "E.LOCAL.INPUT" in nobody.stderr
        bad = tmp_path / "bad.passwords"
        bad.write_text("alice:secret\n")
        bad.chmod(0o600)
        assert "E.CONSOLE.PASSWORDS" in talk.run("console", "serve", "--login", str(bad), code=Exit.LOCAL).stderr
        with (
            serving(talk, "serve", *tls, "--login", str(passwords), "--allow-write") as notice,
            httpx2.Client(verify=trusting(cert)) as browser,
        ):
            url = notice["url"]
            assert url.startswith("https://127.0.0.1:")
            assert "token" not in json.dumps(notice)
            url = url.replace("127.0.0.1", "localhost")  # the name in the certificate
            assert browser.get(url + "/overview").status_code == 401
            data = {"name": "alice", "password": "correct horse battery staple"}
            assert browser.post(url + "/login", data=data).status_code == 403
            answer = browser.post(url + "/login", data=data, headers={"Origin": url})
            assert answer.status_code == 303
            assert "secure" in answer.headers["set-cookie"].lower()
            (row,) = browser.get(url + "/overview.json").json()["streams"]
            path = f"/stream/{row['stream_id']}"
            form = re.findall(rf'action="{path}/send".*?value="([^"]+)"', browser.get(url + path).text, re.DOTALL)[0]
            answers = [
                browser.post(f"{url}{path}/send", data={"form": form, "body": "from the page"}, headers={"Origin": url})
                for _ in range(2)
            ]
            assert [answer.status_code for answer in answers] == [303, 303]
            assert "entry 1 of orders" in browser.get(url + answers[-1].headers["location"]).text
            talk.run("send", "orders", "from the terminal")  # the identity is free in between
            entries = browser.get(f"{url}{path}.json").json()["entries"]
            assert [entry["body"] for entry in entries] == ["from the page", "from the terminal"]
            assert len({entry["client_id"] for entry in entries}) == 1  # one identity, one client key
        for prefix in ("ops", "/ops/", "/a b", "//x"):
            assert "--root-path" in talk.run("console", "serve", "--root-path", prefix, code=Exit.USAGE).stderr


@pytest.mark.parametrize("line", list(command_lines(PAGE.read_text("utf-8"))), ids=" ".join)
def test_every_command_of_the_page_parses(line):
    if not exists(" ".join(line)):
        check_line(line)
