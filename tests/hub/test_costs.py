"""What operations cost as the log grows: reads of files and queries of the index, counted (spec §3.4)."""

import asyncio
from collections import Counter

import pytest
from tests.hub import builders as w
from tests.hub.servers import LiveHub

from veen.core.limits import Limits
from veen.core.objects.envelopes import CheckpointRequest, ProofRequest, ReceiptRequest, StreamRequest, SubmitRequest
from veen.core.objects.tooling import (
    CapStatusRequest,
    CheckpointRangeRequest,
    ConsistencyRequest,
    InspectRequest,
    LabelRequest,
    ProofAtRequest,
    VersionRequest,
)
from veen.io.local import OsFs

INTERVAL = 64
SMALL, LARGE = 2 * INTERVAL, 32 * INTERVAL
LIMITS = Limits(max_checkpoint_interval=INTERVAL)


class CountedFile:
    def __init__(self, file, path, counts):
        self._file, self._path, self._counts = file, path, counts

    def read_at(self, offset, size):
        data = self._file.read_at(offset, size)
        self._counts["reads"] += 1
        self._counts["bytes"] += len(data)
        self._counts[self._path.partition("/")[0]] += 1
        return data

    def __getattr__(self, name):
        return getattr(self._file, name)


class CountedFs(OsFs):
    """A real directory that counts what is read, and remembers what the index was asked."""

    def __init__(self, root):
        super().__init__(root)
        self.counts: Counter[str] = Counter()
        self.asked: list[str] = []

    def open(self, path, *, create=False):
        return CountedFile(super().open(path, create=create), path, self.counts)

    def database(self, path):
        connection = super().database(path)
        connection.set_trace_callback(self.asked.append)
        return connection


def operations(size):
    middle, msg = size // 2 + 7, w.msg(token=w.FREE_TOKEN, seq=size + 1)
    return {
        "/v1/submit": SubmitRequest(msg=msg),
        "/v1/stream": StreamRequest(
            label=w.LABEL, from_seq=middle, max_items=10, with_receipts=True, with_mmr_proof=True
        ),
        "/v1/receipt": ReceiptRequest(label=w.LABEL, stream_seq=middle),
        "/v1/proof": ProofRequest(label=w.LABEL, stream_seq=middle),
        "/v1/checkpoint": CheckpointRequest(label=w.LABEL, upto_seq=middle),
        "/tooling/proof_at": ProofAtRequest(label=w.LABEL, stream_seq=middle, tree_size=size),
        "/tooling/consistency": ConsistencyRequest(label=w.LABEL, from_size=middle, to_size=size),
        "/tooling/checkpoint_latest": LabelRequest(label=w.LABEL),
        "/tooling/checkpoint_range": CheckpointRangeRequest(epoch_min=0, epoch_max=0),
        "/tooling/inspect": InspectRequest(),
        "/tooling/cap_status": CapStatusRequest(auth_ref=w.FREE_TOKEN.auth_ref()),
        "/tooling/status": VersionRequest(),
    }


def measured(directory, size):
    """What each operation costs on a hub that was just started on a log of `size` entries."""

    async def fill(line):
        messages = [w.msg(token=w.FREE_TOKEN, seq=seq).to_bytes() for seq in range(1, size + 1)]
        await asyncio.gather(*(line.submit(message) for message in messages))

    with LiveHub(directory, limits=LIMITS) as hub:
        hub.run(fill(hub.services.sequencer), timeout=60)
    fs = CountedFs(directory)
    costs, plans = {}, {}
    with LiveHub(directory, limits=LIMITS, open_fs=lambda _: fs) as hub:
        for path, request in operations(size).items():
            fs.counts.clear()
            fs.asked.clear()
            hub.call(path, request)
            costs[path] = Counter(fs.counts)
            plans[path] = hub.on_loop(explain, fs)
        assert (
            hub.request("POST", "/v1/submit", SubmitRequest(msg=w.msg(token=w.FREE_TOKEN, seq=3)).to_bytes())[0] == 409
        )
        costs["a duplicate"], plans["a duplicate"] = Counter(fs.counts), hub.on_loop(explain, fs)
    return costs, plans


def explain(fs):
    """How SQLite goes about each query that was asked."""
    with OsFs(fs.root).peek("index.db") as database:
        plans = {
            query: [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {query}")]
            for query in {query for query in fs.asked if query.startswith("SELECT")}
        }
    database.close()
    return plans


@pytest.fixture(scope="module")
def costs(tmp_path_factory):
    return {size: measured(tmp_path_factory.mktemp("hub"), size) for size in (SMALL, LARGE)}


@pytest.mark.req("GEN-14", "GEN-15", "API-16", "GEN-18")
def test_no_operation_reads_more_because_the_log_is_sixteen_times_as_long(costs):
    """Four more levels of the tree are four more nodes and, for both ends of a proof, their siblings; never a scan."""
    small, large = costs[SMALL][0], costs[LARGE][0]
    for path, cost in large.items():
        assert cost["reads"] <= small[path]["reads"] + 12, path
        assert cost["bytes"] <= small[path]["bytes"] + 12 * 32 + 1024, path
    assert large["/v1/submit"]["log"] == large["/v1/proof"]["log"] == 0  # neither ordering nor proving reads entries


@pytest.mark.req("GEN-23")
def test_every_query_of_an_operation_is_answered_by_a_key(costs):
    asked = {query: plan for plans in costs[LARGE][1].values() for query, plan in plans.items()}
    assert any("FROM chunks" in query for query in asked)
    assert any("FROM entries" in query for query in asked)
    for query, plan in asked.items():
        if "sqlite_master" in query:
            continue  # housekeeping opened the index meanwhile; the schema does not grow with the log
        assert all(step.startswith("SEARCH") for step in plan), (query, plan)


@pytest.mark.req("GEN-24")
def test_looking_at_a_hub_reads_no_entry_at_all(costs):
    for path in ("/tooling/inspect", "/tooling/status"):
        assert costs[LARGE][0][path]["reads"] == 0, path
