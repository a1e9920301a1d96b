"""`veen-bridge --source-url … --target-url …`: streams from one running hub to another (001 spec-4 §6)."""

import json
import os
import signal
import subprocess
import sys

import pytest
from tests.cli import shapecheck
from tests.cli.homes import Cli
from tests.cli.hubprocess import running
from tests.waiting import until

from veen.cli.shared.output import Exit

PROGRAM = [sys.executable, "-c", "from veen.products.bridge.commands.group import veen_bridge_main; veen_bridge_main()"]


class Bridge:
    """Two hubs, somebody who writes to the first, and a bridge with keys of its own."""

    def __init__(self, root, source, target):
        self.root, self.source, self.target = root, source, target
        self.cli = Cli(root / "home")
        self.cli.keygen()
        self.cli.run("id", "keyring", "new", "core/main")
        self.cli.run("id", "keyring", "share", "core/main", "--read", "--out", root / "key")
        self.cli.run("keygen", "--out", root / "bridge", "--insecure-plain-keystore")
        self.cli.run("id", "keyring", "add", f"@{root / 'key'}", "--identity", root / "bridge")
        (self.keys,) = (root / "bridge" / "identities").iterdir()

    def words(self, *options, streams="core/*", keys=None):
        urls = (f"--source-url={self.source.url}", f"--target-url={self.target.url}")
        pins = (f"--source-pin={self.source.about['pin']}", f"--target-pin={self.target.about['pin']}")
        return [*PROGRAM, *urls, *pins, f"--streams={streams}", f"--keys={keys or self.keys}", *options, "--json"]

    def run(self, *options, home="state", **rest):
        env = os.environ | self.cli.env | {"VEEN_HOME": str(self.root / home)}
        words = self.words(*options, **rest)
        done = subprocess.run(words, env=env, capture_output=True, check=False, timeout=120)
        line = ["bridge", "copy", *words[len(PROGRAM) :]]
        shapecheck.check(line, done.returncode, done.stdout.decode(), done.stderr.decode())
        return done

    def at(self, hub):
        return ("--hub", hub.url, "--pin", hub.about["pin"])

    def send(self, text):
        self.cli.json("send", "core/main", text, *self.at(self.source))

    def copies(self):
        return [entry["body"] for entry in self.cli.json("stream", "core/main", *self.at(self.target))["entries"]]


@pytest.fixture
def bridge(tmp_path):
    with running(tmp_path / "a") as source, running(tmp_path / "b") as target:
        yield Bridge(tmp_path, source, target)


@pytest.mark.req("K8S-11", "K8S-12")
def test_each_event_arrives_once_with_and_without_what_was_remembered(bridge):
    bridge.send("one")
    bridge.send("two")
    first = bridge.run("--times", "2", "--every", "0s")
    assert json.loads(first.stdout) == {"passes": 2, "sent": 2, "gaps": 0, "failed": 0}, first.stderr
    bridge.send("three")
    again = bridge.run("--times", "1", home="another-state")
    assert json.loads(again.stdout)["sent"] == 1, again.stderr
    assert bridge.copies() == ["one", "two", "three"]
    lines = [json.loads(line) for line in again.stderr.decode().splitlines() if line.startswith("{")]
    assert lines[-1]["stream"] == "core/main"
    assert (lines[-1]["component"], lines[-1]["role"], lines[-1]["sent"]) == ("bridge", "bridge", 1)


@pytest.mark.slow
def test_a_hub_that_is_away_is_asked_again_and_sigterm_ends_the_bridge(bridge):
    env = os.environ | bridge.cli.env | {"VEEN_HOME": str(bridge.root / "state")}
    bridge.target.stop()
    log = bridge.root / "log"
    with log.open("wb") as file, subprocess.Popen(bridge.words("--every", "0s"), env=env, stderr=file) as process:
        try:
            until(lambda: log.read_text().count('"level": "error"') > 1)
            assert process.poll() is None
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"streams": "wallet/*"}, b"no stream of the keyring matches"),
        ({"streams": " , "}, b"--streams names no stream"),
        ({"keys": "/nowhere"}, b"keystore.enc is not there"),
    ],
)
def test_what_cannot_be_bridged_is_said_before_a_hub_is_asked(bridge, options, words):
    done = bridge.run("--times", "1", **options)
    assert done.returncode in (Exit.LOCAL, Exit.USAGE)
    assert words in done.stderr


def test_another_key_than_the_pinned_one_ends_the_bridge(bridge):
    pin = bridge.target.about["pin"]
    done = bridge.run("--times", "3", "--every", "0s", f"--source-pin={pin}")
    assert done.returncode == Exit.BAD_EVIDENCE, done.stderr
