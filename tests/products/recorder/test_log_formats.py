"""Logs in four public formats through file tail, agent, hub, query and table: every line once, every character there.

The samples are written in the grammars of the formats (OpenSSH's auth log, Apache's combined log, HDFS, Windows CBS).
Larger corpora run the same way: `veen recorder agent --source file:PATH --stream record/app/web --once`.
"""

import base64
import json
from pathlib import Path

import pytest
from tests.client.hubs import run
from tests.products.recorder.agents import recorded, run_agent
from tests.products.recorder.recorders import ADMIN, recorder_at

from veen.core.labels import stream_id_of
from veen.lake import tables
from veen.lake.log.keys import write_keys
from veen.lake.query import api
from veen.products.recorder.adapters.tail import TailSource
from veen.products.recorder.agent import AgentSource
from veen.products.recorder.events import Selectors

SAMPLES = sorted((Path(__file__).parent / "samples").glob("*.log"))
WEB = "record/app/web"


def lines_of(path):
    return [line.removesuffix(b"\r") for line in path.read_bytes().split(b"\n") if line.removesuffix(b"\r")]


def bytes_of(message):
    """A line as its source wrote it: text, or base64 where it was not UTF-8."""
    return message.encode() if isinstance(message, str) else base64.b64decode(message["base64"])


@pytest.mark.req("SDR-01", "QRY-08")
def test_every_line_of_four_formats_is_recorded_once_and_found_by_query_and_table(tmp_path):
    assert [path.stem for path in SAMPLES] == ["apache-access", "hdfs", "openssh", "windows"]

    async def story():
        async with recorder_at(tmp_path, gated=False) as world:
            sources = [
                AgentSource(
                    TailSource(
                        path.stem, path, Selectors(subject=path.stem, event_type=f"log.{path.stem}"), follow=False
                    ),
                    stream_id_of(WEB),
                )
                for path in SAMPLES
            ]
            await run_agent(world, sources)
            await run_agent(world, sources)  # a restart doubles nothing
            by_source: dict[str, list[bytes]] = {}
            for event, payload in await recorded(world):
                by_source.setdefault(event.subject_id, []).append(bytes_of(payload["message"]))
            assert by_source == {path.stem: lines_of(path) for path in SAMPLES}
            return world.role(ADMIN).keystore.secrets.keyring

    ring = run(story())
    hub = str(tmp_path / "hub")
    for path in SAMPLES:
        asked = {
            "scope": [WEB],
            "filter": {"event_type": [f"log.{path.stem}"]},
            "projection": ["subject_id", "payload.message", "receipt_id"],
            "evidence": {"mode": "full"},
        }
        result = api.run(hub, asked, keys=ring)
        assert [bytes_of(row["payload.message"]) for row in result.rows()] == lines_of(path)
    to = str(tmp_path / "tables")
    tables.load(hub, to, keys=write_keys(tmp_path, ring.entries), engine="python")
    rows = [row for row in tables.rows(to, "typed_sdr_event_v1") if row["subject_id"] == "windows"]
    assert [bytes_of(json.loads(row["payload"])["message"]) for row in rows] == lines_of(SAMPLES[-1])
