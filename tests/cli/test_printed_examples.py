"""The command lines that 001 spec-4 §6, §7 and §8 print, run as they are printed."""

import json
import os
import subprocess
import sys
import time
from urllib.parse import urlsplit

import pytest
from tests.cli.homes import Cli
from tests.cli.hubprocess import DEV, running

from veen.cli.shared.output import Exit

PROGRAMS = {
    "veen-bridge": "from veen.products.bridge.commands.group import veen_bridge_main as run",
    "veen-selftest": "from veen.products.selftest.commands import veen_selftest_main as run",
    "veen-cli": "from veen.cli import main as run",
}
PASSPHRASE = "correct horse battery staple of a test"


class Container:
    """A place to run a printed line in: what differs from the text is in the environment and in mounted files."""

    def __init__(self, root):
        self.root = root
        self.work = root / "work"
        self.work.mkdir()
        passphrase = self.file("passphrase", PASSPHRASE)
        self.env = {"VEEN_HOME": str(root / "home"), "VEEN_PASSPHRASE_FILE": str(passphrase)}

    def file(self, name, text):
        path = self.root / name
        path.write_text(text + "\n")
        path.chmod(0o600)
        return path

    def run(self, line, urls=(), code=0, **environ):
        """`line` with /work and the names of Services where they are here, and nothing added."""
        for name, url in urls:
            line = line.replace(name, url)
        program, *words = line.replace("/work", str(self.work)).split()
        done = subprocess.run(
            [sys.executable, "-c", f"{PROGRAMS[program]}; run()", *words],
            capture_output=True, check=False, env={**os.environ, **self.env, **environ}, timeout=120,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        return done


def said(done):
    """The key, and the ground, of each hub that the output says is trusted."""
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    return [(line["hub_pk"], line["ground"]) for line in lines if "ground" in line]


LOG = {"VEEN_LOG_FORMAT": "json"}


@pytest.fixture
def box(tmp_path):
    return Container(tmp_path)


@pytest.mark.req("K8S-13")
def test_the_commands_of_the_cli_container(box, tmp_path):
    """§7; the keys of the stream are in the keystore that a Job copies to /work."""
    box.run("veen-cli keygen --out /work/client")
    box.run("veen-cli keygen --out /work/admin")
    box.run(
        "veen-cli cap issue --issuer /work/admin --subject /work/client --stream core/quota --ttl 600"
        " --rate 100,100 --out /work/cap.cbor"
    )
    assert (box.work / "cap.cbor").exists()
    box.run("veen-cli id keyring new core/main --identity /work/client")
    with running(tmp_path / "hub") as hub:
        urls, key = [("http://veen-hub:8080", hub.url)], hub.about["pin"]
        pin = box.file("pin", key)
        line = "veen-cli stream --hub http://veen-hub:8080 --client /work/client --stream core/main --from 0"
        sent = "veen-cli send --hub http://veen-hub:8080 --client /work/client --stream core/main --body text"
        box.run(line, urls, code=Exit.LOCAL)  # nobody said whose key to believe
        box.run(sent, urls, VEEN_PIN=key)
        assert said(box.run(line, urls, VEEN_PIN=key, **LOG)) == [(key, "VEEN_PIN says so")]
        by_file = box.run(line, urls, VEEN_PIN_FILE=str(pin), **LOG)
        assert said(by_file) == [(key, f"VEEN_PIN_FILE, {pin} says so")]
        assert json.loads(by_file.stdout.splitlines()[0])["record"]["body"] == "text"
        first = box.run(line, urls, VEEN_TRUST_ON_FIRST_USE="1", **LOG)
        assert said(first) == [(key, "first use, and nobody has confirmed it")]
        again = box.run(line, urls, VEEN_TRUST_ON_FIRST_USE="1", **LOG)
        assert said(again) == [(key, "it was the key at the first use from here")]
    with running(tmp_path / "other", *DEV, "--port", urlsplit(hub.url).port) as other:  # another hub at that address
        assert other.url == hub.url
        refused = box.run(line, urls, code=Exit.BAD_EVIDENCE, VEEN_TRUST_ON_FIRST_USE="1", **LOG)
        assert json.loads(refused.stderr.splitlines()[-1])["code"].startswith("E.DIVERGED")
    box.run(line, urls, code=Exit.USAGE, VEEN_PIN_FILE=str(tmp_path / "none"))


@pytest.mark.req("K8S-14")
def test_the_self_test_of_a_tenant(box, tmp_path):
    """§8: with VEEN_ROLE and VEEN_TENANT_ID."""
    environ = {"VEEN_ROLE": "selftest", "VEEN_TENANT_ID": "acme", **LOG}
    line = "veen-selftest core --hub http://veen-hub:8080"
    with running(tmp_path / "hub") as hub:
        urls, key = [("http://veen-hub:8080", hub.url)], hub.about["pin"]
        box.run(line, urls, code=Exit.LOCAL, **environ)
        done = box.run(line, urls, VEEN_PIN_FILE=str(box.file("pin", key)), **environ)
        assert said(done)[0][0] == key
        done = box.run(f"{line} --trust-on-first-use", urls, **environ)
        assert said(done) == [(key, "first use, and nobody has confirmed it")]


@pytest.mark.req("K8S-11")
def test_the_bridge_between_two_hubs(box, tmp_path):
    """§6; it runs until it is stopped, so here --times ends it, and --every its pause."""
    cli = Cli(tmp_path / "alice")
    cli.keygen()
    cli.run("id", "keyring", "new", "core/main")
    cli.run("id", "keyring", "share", "core/main", "--read", "--out", tmp_path / "key")
    cli.run("keygen", "--out", tmp_path / "bridge", "--insecure-plain-keystore")
    cli.run("id", "keyring", "add", f"@{tmp_path / 'key'}", "--identity", tmp_path / "bridge")
    (keys,) = (tmp_path / "bridge" / "identities").iterdir()
    line = "veen-bridge --source-url=http://a:8080 --target-url=http://b:8080 --streams=core/*"
    ends = " --times 1"
    with running(tmp_path / "a") as a, running(tmp_path / "b") as b:
        cli.json("send", "core/main", "one", "--hub", a.url, "--pin", a.about["pin"])
        urls = [("http://a:8080", a.url), ("http://b:8080", b.url)]
        environ = {"VEEN_ROLE": "bridge", "VEEN_BRIDGE_KEYS": str(keys), **LOG}
        missing = box.run(line + ends, urls, code=Exit.LOCAL, **environ)
        assert "VEEN_SOURCE_PIN_FILE" in json.loads(missing.stderr.splitlines()[-1])["hint"]
        files = {
            f"VEEN_{side}_PIN_FILE": str(box.file(f"{side}.pin", hub.about["pin"]))
            for side, hub in (("SOURCE", a), ("TARGET", b))
        }
        done = box.run(line + ends, urls, **files, **environ)
        assert [key for key, _ in said(done)] == [a.about["pin"], b.about["pin"]]
        assert json.loads(done.stdout.splitlines()[-1])["record"]["sent"] == 1
        again = box.run(line + " --trust-on-first-use" + ends, urls, **environ)
        assert {ground for _, ground in said(again)} == {"first use, and nobody has confirmed it"}
        assert json.loads(again.stdout.splitlines()[-1])["record"]["sent"] == 0


def test_a_first_use_waits_for_a_hub_that_is_starting(box, tmp_path):
    started = time.monotonic()
    box.run("veen-selftest core --hub http://127.0.0.1:1 --wait 2 --trust-on-first-use", code=Exit.NETWORK)
    assert time.monotonic() - started > 2
