"""Python's logging: a log call returns when its event is on disk, and a killed program loses none of them."""

import json
import logging
import os
import subprocess
import sys
from typing import Any

import pytest
from tests.cli.homes import Cli
from tests.cli.hubprocess import running

from veen.client.errors import LocalError
from veen.client.home import Home
from veen.products.recorder.agent import Pace
from veen.products.recorder.logging_handler import RecorderHandler, record_of_log
from veen.products.recorder.spool import SpoolFull

WEB = "record/app/web"
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def world(tmp_path):
    cli = Cli(tmp_path / "home")
    with running(tmp_path / "hub") as hub:
        at = ("--hub", hub.url, "--pin", hub.about["hub_pk"])
        cli.run("recorder", "init", "--producer", f"web={WEB}", "--insecure-plain-keystore", *at)
        yield cli, hub, at


def handler_of(cli, hub, **options):
    options = {"url": hub.url, "pin": hub.about["hub_pk"], "identity": "web", "home": Home.at(cli.root)} | options
    return RecorderHandler(WEB, **options)


def payloads(cli, at):
    replay = cli.json("recorder", "replay", "--stream", WEB, "--since", "0", "--identity", "recorder-admin", *at)
    return [(row["subject_id"], row["event_type"], row["payload"]) for row in replay["rows"][:-1]]


def test_a_program_that_ends_without_closing_the_handler_has_sent_everything(world):
    """logging closes handlers when the interpreter ends; threads of the usual pool do not work any more then."""
    cli, hub, at = world
    program = (
        "import logging\n"
        "from veen.products.recorder.logging_handler import RecorderHandler\n"
        f"logging.getLogger('shop').addHandler(RecorderHandler({WEB!r}, identity='web'))\n"
        "logging.getLogger('shop').warning('last words')\n"
    )
    env = {**os.environ, **cli.env, "VEEN_HUB": hub.url, "VEEN_PIN": hub.about["hub_pk"]}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    ((_, _, payload),) = payloads(cli, at)
    assert payload["message"] == "last words"


def test_a_handler_that_cannot_be_made_leaves_nothing_behind(tmp_path, monkeypatch):
    for name in ("VEEN_HUB", "VEEN_PIN", "VEEN_IDENTITY", "VEEN_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    handlers: Any = getattr(logging, "_handlerList")  # noqa: B009 - what logging.shutdown will close
    before = len(handlers)
    with pytest.raises(LocalError, match="needs identity, url and pin"):
        RecorderHandler(WEB, home=Home.at(tmp_path))
    assert len(handlers) == before


def test_log_calls_become_events(world):
    cli, hub, at = world
    logger = logging.Logger("shop")
    handler = handler_of(cli, hub)
    logger.addHandler(handler)
    logger.warning("order %d", 7, extra={"subject": "alice", "event": "order.paid", "amount": 12.5, "odd": object})
    try:
        raise ValueError("no stock")
    except ValueError:
        logger.exception("failed")
    handler.close()
    handler.close()
    (first, second) = payloads(cli, at)
    assert first[:2] == ("alice", "order.paid")
    assert (first[2]["message"], first[2]["amount"], first[2]["level"]) == ("order 7", 12.5, "WARNING")
    assert second[:2] == ("shop", "error")
    assert "ValueError: no stock" in second[2]["exception"]


KILLED = """
import logging, os, signal, sys
from pathlib import Path
from veen.client.home import Home
from veen.products.recorder.logging_handler import RecorderHandler

root, url, pin = sys.argv[1:]
logging.getLogger().addHandler(
    RecorderHandler("record/app/web", identity="web", url=url, pin=pin, home=Home.at(Path(root))))
for n in range(40):
    logging.warning("line %d", n)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.req("SDR-12")
def test_a_killed_program_loses_no_log_call_that_returned(world):
    cli, hub, at = world
    command = [sys.executable, "-c", KILLED, str(cli.root), hub.url, hub.about["hub_pk"]]
    done = subprocess.run(command, env={**os.environ, **cli.env}, check=False, timeout=120)
    assert done.returncode < 0
    handler_of(cli, hub).close()  # the next run sends what was left
    assert [payload["message"] for _, _, payload in payloads(cli, at)] == [f"line {n}" for n in range(40)]


def test_a_full_spool_drops_and_counts_or_raises(world):
    cli, hub, at = world
    quick = Pace(heartbeat=3600.0, losses=0.05, drain=0.1)
    handler = handler_of(cli, hub, url=NOWHERE, spool_bytes=1500, when_full="drop", pace=quick)
    logger = logging.Logger("shop")
    logger.addHandler(handler)
    for n in range(10):
        logger.warning("line %d", n)
    handler.close()
    handler_of(cli, hub).close()
    replay = cli.json(
        "recorder", "replay", "--stream", "record/infrastructure/recorder", "--since", "0", "--identity",
        "recorder-admin", *at,
    )  # fmt: skip
    lost = [row["payload"]["count"] for row in replay["rows"][:-1] if row["event_type"] == "recorder.loss"]
    assert sum(lost) + len(payloads(cli, at)) == 10
    assert sum(lost) > 0

    raising = handler_of(cli, hub, url=NOWHERE, spool_bytes=10, when_full="raise", pace=quick)
    errors = []
    raising.handleError = lambda record: errors.append(sys.exc_info()[0])
    for _ in range(2):  # an empty spool takes one record, whatever its size
        raising.handle(logging.makeLogRecord({"msg": "x"}))
    raising.close()
    assert set(errors) == {SpoolFull}


def test_what_is_missing_is_named(monkeypatch):
    for name in ("VEEN_HUB", "VEEN_PIN", "VEEN_IDENTITY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(LocalError, match="VEEN_PIN"):
        RecorderHandler(WEB, identity="web")


def test_standard_fields_of_logging_stay_out_of_the_extra():
    entry = logging.makeLogRecord({"msg": "a %s", "args": ("b",), "user": {"id": 1}})
    record = record_of_log(entry, host="h", position="1")
    assert record.payload["message"] == "a b"
    assert record.payload["user"] == {"id": 1}
    assert "args" not in record.payload
    assert json.dumps(record.payload)
