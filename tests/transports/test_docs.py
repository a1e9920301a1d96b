"""docs/transports.md: its programs run, its commands parse, its settings exist."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.homes import Cli
from tests.cli.hubprocess import running
from tests.cli.tree import check_line, command_lines
from tests.client.hubs import run
from tests.transports.builders import hub_by, message_for, world_of
from tests.transports.test_end_to_end import OPEN, QUIET

from veen.core.objects.receipt import Receipt
from veen.hub.process.config import SETTINGS

PAGE = (Path(__file__).parents[2] / "docs" / "transports.md").read_text("utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.slow
def test_the_programs_that_use_a_spool_run_as_they_stand(tmp_path):
    by_library, by_hand, _ = PROGRAMS
    cli = Cli(tmp_path / "home")
    cli.keygen("alice")
    with running(tmp_path / "hub", *OPEN, *QUIET, "--set", f"spool.directory={tmp_path / 'spool'}") as hub:
        for program, expected in ((by_library, "1"), (by_hand, "200 application/cbor")):
            text = program.replace("/srv/veen-spool", str(tmp_path / "spool"))
            text = text.replace("pin=PIN", f"pin={hub.about['hub_pk']!r}")
            done = subprocess.run(
                [sys.executable, "-c", text],
                capture_output=True,
                text=True,
                check=False,
                timeout=120,
                env={**os.environ, **cli.env},
            )
            assert done.stdout.strip() == expected, done.stderr


def test_the_program_that_submits_over_nats_runs_as_it_stands(tmp_path):
    async def check():
        async with world_of("nats", tmp_path) as world, hub_by("nats", world, tmp_path / "hub") as hub:
            names: dict[str, Any] = {}
            exec(PROGRAMS[2].replace("nats://127.0.0.1:4222", world.nats.url), names)  # noqa: S102 - our own page
            message = message_for(hub)
            receipt = await names["submit"](message.label.hex(), message.to_bytes())
            assert Receipt.from_bytes(receipt).leaf_hash == message.leaf_hash()

    run(check())


def test_every_command_of_the_page_can_be_typed_and_every_setting_exists():
    lines = list(command_lines(PAGE))
    assert lines
    for line in lines:
        check_line(line)
    keys = {setting.key for setting in SETTINGS}
    named = re.findall(r"`((?:spool|nats|quic|listen|tls|auth)\.[a-z_]+)", PAGE)
    assert named
    assert set(named) <= keys
