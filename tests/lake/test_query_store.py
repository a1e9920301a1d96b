"""Results that stay: states, pages, and what a crash or a second writer cannot do (QRY-02, QRY-23, QRY-26)."""

import hashlib
from typing import Any

import pytest
from tests.lake.query_builders import CLIENTS_PUBLIC, KEYRING, STREAMS, Recorder, descriptor, filled

from veen.client.identity.keyring import StreamKeys
from veen.core import canonical
from veen.lake.query import api
from veen.lake.query.descriptor import EvidencePolicy, normalise
from veen.lake.query.digest import Coverage, ResultDigest
from veen.lake.query.errors import (
    DuplicateQuery,
    EvidenceFailed,
    InvalidDescriptor,
    NotReady,
    QueryError,
    QueryNotFound,
    ResultDamaged,
    http_status_of,
)
from veen.lake.query.recording import REQUESTS, RESULTS, make_result, make_submitted
from veen.lake.query.store import ResultStore

DIGEST = ResultDigest(
    query_id="q-1", result_id="r-1", row_count=0, evidence_policy=EvidencePolicy(mode="none"), rows_hash="a",
    evidence_hash="b", coverage_hash="c", executed_at="2025-11-19T03:20:00Z", hub_id="d",
)  # fmt: skip
EMPTY = Coverage({"streams": []}, {})


@pytest.fixture
def store(tmp_path):
    return ResultStore(tmp_path / "store")


@pytest.fixture
def asked():
    return normalise(descriptor(query_id="q-1")).descriptor


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return filled(tmp_path_factory.mktemp("log"), 60).done()


@pytest.mark.req("QRY-26")
def test_an_execution_goes_from_pending_over_running_to_completed(store, asked):
    store.submit(asked, "r-1")
    assert store.status("r-1").to_json() == {
        "query_id": "q-1", "result_id": "r-1", "status": "pending", "error_code": None, "message": None,
        "progress": None,
    }  # fmt: skip
    with store.start("r-1") as writer:
        assert store.status("r-1").state == "running"
        writer.row(b"{}")
    store.complete("r-1", DIGEST, EMPTY)
    assert store.status("r-1").state == "completed"
    assert store.digest("r-1") == DIGEST
    assert store.descriptor("q-1") == asked


@pytest.mark.req("QRY-26")
def test_what_has_ended_does_not_change_any_more(store, asked):
    store.submit(asked, "r-1")
    with store.start("r-1"):
        pass
    store.fail("r-1", "execution_failed", "why")
    for again in (
        lambda: store.complete("r-1", DIGEST, EMPTY),
        lambda: store.fail("r-1", "internal_error", "other"),
        lambda: store.start("r-1"),
    ):
        with pytest.raises(NotReady):
            again()
    assert store.status("r-1").message == "why"
    with pytest.raises(NotReady, match="why"):
        store.digest("r-1")  # a failed execution has none


@pytest.mark.req("QRY-26")
def test_the_steps_have_an_order(store, asked):
    store.submit(asked, "r-1")
    with pytest.raises(NotReady, match="pending"):
        store.complete("r-1", DIGEST, EMPTY)
    store.start("r-1").__exit__(None)
    with pytest.raises(NotReady, match="running"):
        store.start("r-1")
    other = normalise(descriptor(query_id="q-2")).descriptor
    store.submit(other, "r-2")
    store.fail("r-2", "execution_failed", "early")  # a failure of planning
    assert store.status("r-2").state == "failed"


@pytest.mark.req("QRY-02", "QRY-25")
def test_ids_are_used_once(store, asked):
    store.submit(asked, "r-1")
    with pytest.raises(DuplicateQuery) as caught:
        store.submit(asked, "r-2")
    assert (caught.value.error_code, http_status_of(caught.value)) == ("duplicate_query_id", 409)
    with pytest.raises(DuplicateQuery):
        store.submit(normalise(descriptor(query_id="q-2")).descriptor, "r-1")


@pytest.mark.req("QRY-25")
def test_what_is_not_there_or_not_ready_says_so(store, asked):
    for call in (store.status, store.digest, store.page, store.coverage, store.descriptor):
        with pytest.raises(QueryNotFound) as caught:
            call("nothing")
        assert (caught.value.error_code, http_status_of(caught.value)) == ("query_not_found", 404)
    store.submit(asked, "r-1")
    with pytest.raises(NotReady) as early:
        store.page("r-1")
    assert (early.value.error_code, http_status_of(early.value)) == ("result_not_ready", 425)


@pytest.mark.parametrize("name", ["../x", "", "a/b", ".hidden", "a\x00b"])
def test_an_id_is_never_a_path(store, asked, name):
    store.submit(asked, "r-1")
    for call in (store.status, store.descriptor, store.page):
        with pytest.raises(InvalidDescriptor):
            call(name)


@pytest.mark.req("QRY-23")
@pytest.mark.parametrize("limit", [1, 7, 1000])
def test_pages_join_to_the_one_result_whatever_their_size(store, log, limit):
    result = api.run(log, descriptor(), keys=KEYRING, store=store)
    result_id, rows, offset = result.digest.result_id, [], 0
    while True:
        page = store.page(result_id, offset, limit)
        assert page.digest == result.digest  # of the whole, on every page
        rows += page.rows
        offset += len(page.rows)
        shown = page.to_json()
        assert shown["page"]["total"] == result.digest.row_count
        assert shown["page"]["has_more"] == (offset < result.digest.row_count)
        if not page.has_more:
            break
    assert rows == list(result.rows())
    assert result.digest.rows_hash == hashlib.sha256(canonical.encode(rows)).hexdigest()
    assert store.page(result_id, offset).rows == ()


@pytest.mark.parametrize(("offset", "limit"), [(-1, 1), (0, 0), (0, 10_001)])
def test_a_page_has_bounds(store, log, offset, limit):
    result = api.run(log, descriptor(), keys=KEYRING, store=store)
    with pytest.raises(InvalidDescriptor):
        store.page(result.digest.result_id, offset, limit)


@pytest.mark.req("QRY-16", "QRY-28")
def test_a_stored_result_has_all_that_its_hashes_are_made_of_and_verifies(store, log):
    result = api.run(log, descriptor(evidence={"mode": "spot", "sample_rate": 0.4}), keys=KEYRING, store=store)
    stored = api.load_stored(ResultStore(store._results.parent), result.digest.result_id)
    assert (stored.descriptor, stored.digest, stored.coverage) == (result.descriptor, result.digest, result.coverage)
    assert api.verify(log, stored, keys=KEYRING).ok
    verified = b",".join(store.evidence(result.digest.result_id))
    head = canonical.encode(
        {"query_id": stored.digest.query_id, "result_id": stored.digest.result_id,
         **stored.descriptor.evidence.to_json(), "verified": []}
    )  # fmt: skip
    assert hashlib.sha256(head[:-2] + verified + b"]}").hexdigest() == stored.digest.evidence_hash
    rows = b",".join(store.rows(result.digest.result_id))
    assert hashlib.sha256(b"[" + rows + b"]").hexdigest() == stored.digest.rows_hash
    assert hashlib.sha256(canonical.encode(stored.coverage)).hexdigest() == stored.digest.coverage_hash


@pytest.mark.req("QRY-19", "QRY-26")
def test_a_query_whose_evidence_fails_has_no_digest(store, tmp_path):
    (tmp_path / "log").mkdir()
    path = filled(tmp_path / "log", 20).done()
    (tmp_path / "log" / "hub-identity.json").unlink()
    with pytest.raises(EvidenceFailed):
        api.run(path, descriptor(query_id="q-1", evidence={"mode": "full"}), keys=KEYRING, store=store, result_id="r-1")
    status = store.status("r-1")
    assert (status.state, status.error_code) == ("failed", "execution_failed")
    with pytest.raises(NotReady):
        store.digest("r-1")


def test_a_failure_of_ours_is_told_and_foreign_words_are_not(store, log):
    def broken():
        raise RuntimeError("secret words")

    with pytest.raises(RuntimeError):
        api.run(log, descriptor(), keys=KEYRING, store=store, result_id="r-1", now=broken)
    assert store.status("r-1").message == "RuntimeError"
    with pytest.raises(QueryError):
        api.run("/nowhere", descriptor(), keys=KEYRING, store=store, result_id="r-2")
    assert "no log" in str(store.status("r-2").message)


def test_files_of_results_are_for_their_owner(store, log):
    result = api.run(log, descriptor(), keys=KEYRING, store=store)
    directory = store._results / result.digest.result_id
    assert {path.stat().st_mode & 0o077 for path in [directory, *directory.iterdir()]} == {0}
    assert not [path.name for path in directory.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("name", ["query", "final.json", "coverage.json", "rows.ndjson"])
def test_a_stored_result_of_any_size_is_not_read(store, log, name):
    result = api.run(log, descriptor(), keys=KEYRING, store=store).digest.result_id
    place = store._results / result / name
    place.write_bytes(b"")
    with place.open("r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(ResultDamaged):
        (store.status(result), store.coverage(result), list(store.rows(result)))
    place.unlink()
    place.symlink_to("/dev/zero")
    with pytest.raises(ResultDamaged):
        (store.status(result), store.coverage(result), list(store.rows(result)))


@pytest.mark.req("QRY-01")
def test_queries_and_results_are_recorder_events_and_can_be_queried(log, tmp_path):
    assert (REQUESTS, RESULTS) == ("record/query/requests", "record/query/results")
    result = api.run(log, descriptor(query_id="q-77", scope=list(STREAMS)), keys=KEYRING)
    keys = {name: StreamKeys.create(name) for name in (REQUESTS, RESULTS)}
    world = Recorder(tmp_path)
    who: dict[str, Any] = {"subject_id": "auditor:1", "principal_id": CLIENTS_PUBLIC[0], "origin": "query-engine"}
    asked = make_submitted(result.descriptor, received_at=world.now, **who)
    answered = make_result(result.digest, answered_at=world.now, **who)
    world.emit(REQUESTS, body=asked.body, keys=keys[REQUESTS])
    world.emit(RESULTS, body=answered.body, keys=keys[RESULTS])
    ring = KEYRING
    for stream_keys in keys.values():
        ring = ring.with_keys(stream_keys)
    records_query = descriptor(
        scope=[REQUESTS, RESULTS], projection=["event_type", "payload.query_id", "payload.rows_hash", "subject_id"]
    )
    rows = {row["event_type"]: row for row in api.run(world.done(), records_query, keys=ring).rows()}
    assert set(rows) == {"query.submitted", "query.result"}
    assert {row["payload.query_id"] for row in rows.values()} == {"q-77"}
    assert rows["query.result"]["payload.rows_hash"] == result.digest.rows_hash
