"""The commands of docs/selftest.md run as they stand there, and its table has every suite."""

import re
import shlex
from pathlib import Path

import pytest
from tests.cli.homes import Cli
from tests.cli.hubprocess import running, veen

from veen.core.crypto.ed25519 import SigningKey
from veen.products.selftest import SUITES

PAGE = (Path(__file__).parents[3] / "docs" / "selftest.md").read_text("utf-8")


@pytest.mark.slow
def test_the_examples_run_against_a_hub_that_asks_for_capabilities(tmp_path):
    issuer = SigningKey(b"\x21" * 32)
    key = tmp_path / "issuer.key"
    key.write_text(f"{issuer.seed.hex()}\n")
    key.chmod(0o600)
    (block,) = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    lines = [line.removeprefix("$ ") for line in block.splitlines()]
    assert len(lines) == 2
    trusted = f"admission.trusted_issuers={issuer.public.hex()}"
    with running(tmp_path / "hub", "--port", 0, "--set", "engine.workers=0", "--set", trusted) as hub:
        for line in lines:
            words = shlex.split(line.replace("$URL", hub.url).replace("$PIN", hub.about["pin"]))
            words = [str(key) if word == key.name else word for word in words]
            done = veen(*words[1:], env=Cli(tmp_path / "home").env)
            assert done.returncode == 0, done.stdout


def test_every_suite_has_a_row():
    assert set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == set(SUITES)
