"""Queries over real logs by the reference engine: rows, order, evidence, coverage, and what damage does to them."""

import hashlib
import json
import random
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cli.tree import check_line, command_lines
from tests.damage import flipped
from tests.lake.query_builders import (
    KEYRING,
    KEYS,
    ORIGINS,
    STREAMS,
    SUBJECTS,
    TYPES,
    Recorder,
    descriptor,
    filled,
)
from tests.storage.builders import HUB_ID
from tests.storage.driver import START

from veen.client.identity.keyring import Keyring, StreamKeys
from veen.core import canonical
from veen.core.errors import VeenError
from veen.core.labels import label_of, routing_key_of, stream_id_of
from veen.core.objects.identity import HubIdentity
from veen.core.objects.msg import Msg
from veen.core.objects.receipt import Receipt
from veen.core.sealing.ciphertext import open_msg
from veen.lake.log.decryption import reader_of
from veen.lake.query import api
from veen.lake.query.descriptor import normalise
from veen.lake.query.engine import plan_query
from veen.lake.query.errors import EvidenceFailed, ExecutionFailed, ForbiddenScope, http_status_of
from veen.lake.query.fields import payload_of, timestamp
from veen.overlays.recorder import events as sdr
from veen.storage import frame as framing

MODES = [{"mode": "none"}, {"mode": "spot", "sample_rate": 0.3}, {"mode": "full"}]


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    """A directory that no test changes, and the frames in it."""
    path = tmp_path_factory.mktemp("query") / "hub"
    path.mkdir()
    world = filled(path, 120)
    world.done()
    return world


@pytest.fixture
def copy(log, tmp_path):
    shutil.copytree(log.path, tmp_path / "hub")
    return tmp_path / "hub"


def ask(path, given=None, **more):
    return api.run(str(path), given or descriptor(), keys=more.pop("keys", KEYRING), **more)


def labels_in(stream):
    """The labels of a stream in these logs, which have two epochs, and their epochs."""
    return {label_of(routing_key_of(HUB_ID), stream_id_of(stream), epoch): epoch for epoch in (0, 1)}


def oracle(world, scope=STREAMS):
    """Every event by the plainest of means: all frames, every key, one sort."""
    places = []
    for stream in scope:
        epochs = labels_in(stream)
        for frame in world.frames:
            if frame.label not in epochs:
                continue
            msg, receipt = Msg.from_bytes(frame.msg), Receipt.from_bytes(frame.receipt)
            try:
                opened = open_msg(KEYS[stream].secret(), msg)
                body = sdr.RecorderEvent.from_bytes(opened.body)
            except VeenError:
                continue
            if opened.hdr.schema != sdr.EVENT.id:
                continue
            order = (receipt.hub_ts, stream_id_of(stream), epochs[frame.label], receipt.stream_seq)
            places.append((order, stream, body, receipt))
    return sorted(places, key=lambda one: one[0])


@pytest.mark.req("QRY-05", "QRY-08", "QRY-13", "QRY-15", "SDR-01", "SDR-12")
def test_rows_are_those_of_the_plainest_reading_in_logical_order(log):
    result = ask(log.path)
    expected = [
        {
            "subject_id": body.subject_id,
            "principal_id": body.principal_id.hex(),
            "event_type": body.event_type,
            "event_time": timestamp(body.event_time),
            "origin": body.origin,
            "payload": payload_of(body.payload),
            "stream": stream,
            "hub_commit_seq": receipt.stream_seq,
            "hub_commit_time": timestamp(receipt.hub_ts),
            "receipt_id": f"rcpt-{receipt.leaf_hash.hex()}",
        }
        for _, stream, body, receipt in oracle(log)
    ]
    assert list(result.rows()) == expected
    assert result.digest.row_count == len(expected) > 80
    assert result.digest.rows_hash == hashlib.sha256(canonical.encode(expected)).hexdigest()


FILTERS = [
    {"subject_id": SUBJECTS[2]},
    {"event_type": [TYPES[0], TYPES[2]]},
    {"event_type": ["never"]},
    {"time": {"from": timestamp(START + 30), "to": timestamp(START + 60)}},
    {"time": {"to": timestamp(START + 40)}, "subject_id": SUBJECTS[0]},
    {"time": {"from": timestamp(START + 10_000)}},
]


@pytest.mark.req("QRY-07", "SDR-08")
@pytest.mark.parametrize("chosen", FILTERS, ids=range(len(FILTERS)))
@pytest.mark.parametrize("scope", [STREAMS, STREAMS[1:2]], ids=["all", "one"])
def test_filters_take_what_fits_and_time_is_that_of_the_hub(log, chosen, scope):
    result = ask(log.path, descriptor(scope=list(scope), filter=chosen, projection=["receipt_id"]))
    times = chosen.get("time", {})
    expected = [
        f"rcpt-{receipt.leaf_hash.hex()}"
        for _, _, body, receipt in oracle(log, scope)
        if chosen.get("subject_id") in (None, body.subject_id)
        and (not chosen.get("event_type") or body.event_type in chosen["event_type"])
        and times.get("from", "0") <= timestamp(receipt.hub_ts) <= times.get("to", "9")
    ]
    assert [row["receipt_id"] for row in result.rows()] == expected


def test_both_ends_of_a_time_are_included(log):
    exact = timestamp(oracle(log)[50][3].hub_ts)
    result = ask(log.path, descriptor(filter={"time": {"from": exact, "to": exact}}, projection=["hub_commit_time"]))
    rows = list(result.rows())
    assert rows
    assert {row["hub_commit_time"] for row in rows} == {exact}


@pytest.mark.req("QRY-10")
def test_aggregates_are_those_of_the_rows_and_sorted_by_group_key(log):
    asked = {"group_by": ["stream", "origin"], "metrics": ["count", "min(event_time)", "max(event_time)"]}
    rows = list(ask(log.path, descriptor(aggregate=asked, projection=["origin"])).rows())
    groups: dict[tuple[str, str], list[str]] = {}
    for _, stream, body, _ in oracle(log):
        groups.setdefault((stream, body.origin), []).append(timestamp(body.event_time))
    expected = [
        {"stream": stream, "origin": origin, "count": len(times), "min(event_time)": min(times),
         "max(event_time)": max(times)}
        for (stream, origin), times in groups.items()
    ]  # fmt: skip
    expected.sort(key=lambda row: canonical.encode([row["origin"], row["stream"]]))  # fields sorted by name
    assert rows == expected
    assert {row["origin"] for row in rows} == set(ORIGINS)


@pytest.mark.req("QRY-10")
def test_an_aggregate_without_groups_has_one_row_even_over_nothing(log):
    asked = descriptor(aggregate={"metrics": ["count"]}, filter={"subject_id": "nobody"}, projection=["origin"])
    assert list(ask(log.path, asked).rows()) == [{"count": 0}]
    grouped = descriptor(
        aggregate={"metrics": ["count"], "group_by": ["origin"]}, filter={"subject_id": "nobody"}, projection=["origin"]
    )
    assert list(ask(log.path, grouped).rows()) == []


def test_an_aggregate_row_names_its_receipts_by_one_id(log):
    asked = descriptor(aggregate={"metrics": ["count"], "group_by": ["origin"]}, projection=["receipt_id"])
    rows = list(ask(log.path, asked).rows())
    for row in rows:
        leaves = [receipt.leaf_hash for _, _, body, receipt in oracle(log) if body.origin == row["origin"]]
        digest = hashlib.sha256(b"veen/query-group\x00" + b"".join(leaves)).hexdigest()
        assert row["receipt_id"] == f"rcpt-{digest}"


# --- what can be no row -------------------------------------------------------------------------------------------


def test_entries_that_can_be_no_row_are_counted_with_their_place(tmp_path):
    world = Recorder(tmp_path)
    stream, other = STREAMS[0], StreamKeys.create(STREAMS[0])
    world.emit(stream)
    world.emit(stream, keys=other)  # 2: sealed to somebody else
    world.emit(stream, body=b"\x01")  # 3: not a recorder event's body
    world.emit(stream, schema=bytes(32))  # 4
    world.emit(stream, principal_id=bytes(32))  # 5: in another's name (SDR0 I3)
    world.emit(stream, keys=other)  # 6
    world.emit(stream, cap_ref=bytes(32))  # 7: a cap_ref that is not its auth_ref
    result = ask(world.done(), descriptor(scope=[stream]))
    assert result.digest.row_count == 1
    assert result.skipped == {"sealed": 2, "malformed": 3, "schema": 1}
    (label,) = result.coverage["streams"][0]["labels"]
    assert label["skipped"] == {
        "sealed": {"count": 2, "first_seq": 2},
        "malformed": {"count": 3, "first_seq": 3},
        "schema": {"count": 1, "first_seq": 4},
    }


def test_older_keys_open_older_entries(tmp_path):
    world = Recorder(tmp_path)
    new = StreamKeys.create(STREAMS[0])
    world.emit()
    world.emit(keys=new)
    path = world.done()
    assert ask(path, descriptor(scope=[STREAMS[0]]), keys=KEYRING.with_keys(new)).digest.row_count == 2
    assert ask(path, descriptor(scope=[STREAMS[0]])).skipped == {"sealed": 1}


def test_values_that_a_metric_cannot_take_are_told(log):
    asked = descriptor(aggregate={"metrics": ["sum(payload.amount)"]}, projection=["origin"])
    result = ask(log.path, asked)
    amounts = [payload_of(body.payload)["amount"] for _, _, body, _ in oracle(log)]
    bad = [amount for amount in amounts if amount == "text" or amount is True]
    assert bad
    assert result.coverage["values_ignored"] == {"sum(payload.amount)": len(bad)}


@pytest.mark.req("QRY-06", "QRY-25")
def test_a_stream_without_a_read_key_is_forbidden_whether_it_exists_or_not(log):
    writers = Keyring.of([KEYS[STREAMS[0]].for_writers()])
    for scope in ([STREAMS[0]], ["record/unknown"]):
        with pytest.raises(ForbiddenScope) as caught:
            ask(log.path, descriptor(scope=scope), keys=writers)
        assert (caught.value.error_code, http_status_of(caught.value)) == ("forbidden_scope", 403)
        assert str(caught.value) == f"stream {scope[0]!r} is not known or may not be read"


def test_a_stream_without_entries_has_no_rows_and_says_so(log):
    keys = StreamKeys.create("record/new")
    result = ask(log.path, descriptor(scope=["record/new"]), keys=KEYRING.with_keys(keys))
    assert list(result.rows()) == []
    assert result.coverage["streams"] == [{"stream": "record/new", "labels": []}]


def test_a_directory_without_a_log_is_named(tmp_path):
    with pytest.raises(ExecutionFailed, match="no log"):
        ask(tmp_path)


# --- evidence ----------------------------------------------------------------------------------------------------


@pytest.mark.req("QRY-16", "QRY-19")
def test_full_evidence_names_every_receipt_in_order(log):
    asked = descriptor(query_id="q-1", evidence={"mode": "full"})
    result = ask(log.path, asked, result_id="r-1")
    hub_id = log.keys.identity.hub_id.hex()
    verified = [
        {"receipt_id": f"rcpt-{receipt.leaf_hash.hex()}", "mmr_root": receipt.mmr_root.hex(), "hub_id": hub_id,
         "label": receipt.label.hex(), "stream_seq": receipt.stream_seq}
        for _, _, _, receipt in oracle(log)
    ]  # fmt: skip
    summary = {"query_id": "q-1", "result_id": "r-1", "mode": "full", "verified": verified}
    encoded = json.dumps(summary, sort_keys=True, separators=(",", ":")).encode()
    assert result.digest.evidence_hash == hashlib.sha256(encoded).hexdigest()
    assert result.digest.hub_id == hub_id


@pytest.mark.req("QRY-18", "QRY-19", "SDR-09")
@pytest.mark.parametrize("mode", ["full", "spot"])
def test_a_receipt_that_does_not_hold_fails_the_query(log, copy, mode):
    """The entry is re-framed so that hashes hold; only the signature tells."""
    victim = next(receipt for _, _, _, receipt in oracle(log))  # row 0 is in every sample
    for path in (copy / "log").glob("*.log"):
        data = path.read_bytes()
        raw = victim.to_bytes()
        if raw not in data:
            continue
        old = next(frame for frame in log.frames if frame.receipt == raw)
        forged = flipped(raw)
        new = framing.encode(old.label, old.stream_seq, old.msg, forged)
        path.write_bytes(data.replace(old.to_bytes(), new.to_bytes()))
    evidence = {"mode": mode} if mode == "full" else {"mode": "spot", "sample_rate": 0.0001}
    with pytest.raises(EvidenceFailed, match="hub_sig") as caught:
        ask(copy, descriptor(evidence=evidence))
    assert caught.value.error_code == "execution_failed"
    assert ask(copy).digest.row_count == len(oracle(log))  # without evidence nobody looks


@pytest.mark.req("QRY-19", "SDR-09")
@pytest.mark.parametrize("mode", ["full", "spot"])
def test_the_receipt_of_the_head_must_hold_though_its_entry_is_no_row(tmp_path, mode):
    """Every proof ends at the root of the last entry: unless that receipt is the hub's, it proves nothing."""
    (tmp_path / "hub").mkdir()
    world = Recorder(tmp_path / "hub")
    rows = [world.emit() for _ in range(3)]
    head = world.emit(schema=hashlib.sha256(b"other").digest())  # covered by the result, but no row of it
    world.done()
    evidence = {"mode": mode} if mode == "full" else {"mode": "spot", "sample_rate": 1}
    assert ask(tmp_path / "hub", descriptor(evidence=evidence)).digest.row_count == len(rows)
    old, forged = world.frames[-1], flipped(head.to_bytes())
    assert Receipt.from_bytes(forged).mmr_root == head.mmr_root
    (path,) = [path for path in (tmp_path / "hub" / "log").glob("*.log") if head.to_bytes() in path.read_bytes()]
    new = framing.encode(old.label, old.stream_seq, old.msg, forged)
    path.write_bytes(path.read_bytes().replace(old.to_bytes(), new.to_bytes()))
    with pytest.raises(EvidenceFailed, match="hub_sig"):
        ask(tmp_path / "hub", descriptor(evidence=evidence))


def test_proofs_are_made_from_leaves_where_the_node_file_is_gone_or_wrong(log, copy):
    asked = descriptor(query_id="q-1", evidence={"mode": "full"})
    expected = ask(log.path, asked, result_id="r-1", now=lambda: 0).digest
    for path in (copy / "nodes").iterdir():
        data = bytearray(path.read_bytes())
        data[5] ^= 1
        path.write_bytes(data)
    assert ask(copy, asked, result_id="r-1", now=lambda: 0).digest == expected
    shutil.rmtree(copy / "nodes")
    assert ask(copy, asked, result_id="r-1", now=lambda: 0).digest == expected


@pytest.mark.req("SDR-09")
def test_evidence_needs_to_know_the_hub(log, copy):
    for name in ("hub-identity.json", "hub-identity.sig"):
        (copy / name).unlink(missing_ok=True)
    with pytest.raises(EvidenceFailed, match="identity"):
        ask(copy, descriptor(evidence={"mode": "full"}))
    assert ask(copy).digest.hub_id == "unidentified"
    identity = log.keys.identity
    assert ask(copy, descriptor(evidence={"mode": "full"}), identity=identity).digest.hub_id == identity.hub_id.hex()


def test_a_directory_of_another_hub_is_refused(log):
    with pytest.raises(EvidenceFailed, match="is of hub"):
        ask(log.path, identity=HubIdentity.first(bytes(31) + b"\x01", valid_from=0))


def test_labels_whose_stream_the_journal_does_not_name_prove_it_themselves(log, copy):
    """A bucket of chunks and the identity are enough."""
    shutil.rmtree(copy / "journal")
    (copy / "log" / "control.cborseq").unlink()
    expected = ask(log.path)
    assert {label["epoch"] for stream in expected.coverage["streams"] for label in stream["labels"]} == {0, 1}
    assert ask(copy).coverage == expected.coverage
    assert ask(copy).digest.rows_hash == expected.digest.rows_hash


# --- coverage and executing again --------------------------------------------------------------------------------


@pytest.mark.req("QRY-28")
@pytest.mark.parametrize("evidence", MODES, ids=["none", "spot", "full"])
def test_executing_again_over_the_same_ranges_gives_the_same_digest(tmp_path, evidence):
    world = filled(tmp_path, 40)
    world.store.retire()
    result = ask(tmp_path, descriptor(evidence=evidence))
    assert api.verify(str(tmp_path), result, keys=KEYRING).ok
    for _ in range(10):
        world.emit()
    path = world.done()  # grown, and sealed otherwise
    again = api.verify(path, result, keys=KEYRING)
    assert again.ok
    assert again.after.result_id == result.digest.result_id
    grown = api.replay(path, result, keys=KEYRING)
    assert {"row_count", "rows_hash"} <= set(grown.differences)


@pytest.mark.req("QRY-28")
def test_a_replica_replays_to_the_same_digest(log, copy):
    for evidence in MODES:
        result = ask(log.path, descriptor(evidence=evidence))
        replayed = api.replay(str(copy), result, keys=KEYRING)
        assert replayed.ok
        assert replayed.compared == ("query_id", "row_count", "rows_hash", "evidence_hash")


@pytest.mark.req("SDR-12")
def test_a_left_out_row_shows(log):
    """Whoever claims a result without one of its rows cannot make the hashes agree."""
    result = ask(log.path)
    rows = [canonical.encode(row) for row in result.rows()]
    forged = hashlib.sha256(b"[" + b",".join(rows[1:]) + b"]").hexdigest()
    assert forged != result.digest.rows_hash
    lying = replace(result, digest=replace(result.digest, rows_hash=forged, row_count=len(rows) - 1))
    assert api.verify(str(log.path), lying, keys=KEYRING).differences == ("row_count", "rows_hash")


@pytest.mark.req("SDR-12")
def test_a_log_that_was_cut_or_rewritten_does_not_verify(log, copy, tmp_path):
    rewritten = tmp_path / "rewritten"
    rewritten.mkdir()
    filled(rewritten, 120).done()  # the same events, sealed anew: the rows agree and the roots do not
    of_events = ask(log.path, descriptor(projection=["event_type", "subject_id"]))
    assert api.verify(str(rewritten), of_events, keys=KEYRING).differences == ("coverage_hash",)
    result = ask(log.path)
    label = result.coverage["streams"][0]["labels"][0]
    last = max((copy / "log").glob(f"*-{label['label']}-*.log"), key=lambda path: path.name.split("-")[2])
    last.unlink()
    with pytest.raises(EvidenceFailed, match="the log was cut"):
        api.verify(str(copy), result, keys=KEYRING)
    for path in (copy / "log").glob(f"*{label['label']}*"):
        path.unlink()
    with pytest.raises(EvidenceFailed, match="missing in the directory now"):
        api.verify(str(copy), result, keys=KEYRING)


def test_damage_is_counted_and_takes_no_other_row_with_it(log, copy):
    expected = ask(log.path)
    rng = random.Random(3)
    for _ in range(10):
        path = rng.choice(sorted((copy / "log").glob("chunk-*.log")))
        good = path.read_bytes()
        bad = bytearray(good)
        bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
        path.write_bytes(bad)
        result = ask(copy)
        lost = result.skipped.get("damaged", 0)
        assert lost
        total = result.digest.row_count + sum(result.skipped.values())
        assert total == expected.digest.row_count + sum(expected.skipped.values())
        assert result.digest.coverage_hash != expected.digest.coverage_hash
        path.write_bytes(good)


@pytest.mark.req("SDR-12")
def test_a_missing_chunk_is_counted(log, copy):
    expected = ask(log.path)
    label = expected.coverage["streams"][0]["labels"][0]["label"]
    first = min((copy / "log").glob(f"chunk-{label}-*.log"))
    first.unlink()
    result = ask(copy)
    assert result.skipped["missing"] == 3
    shutil.rmtree(copy / "nodes")
    with pytest.raises(EvidenceFailed, match="entry 1 is damaged or missing"):
        ask(copy, descriptor(evidence={"mode": "full"}))


def test_the_first_failure_in_logical_order_is_reported(log, copy):
    shutil.rmtree(copy / "nodes")
    label = oracle(log)[0][3].label.hex()
    min((copy / "log").glob(f"chunk-{label}-*.log")).unlink()
    messages = set()
    for _ in range(2):
        with pytest.raises(EvidenceFailed) as caught:
            ask(copy, descriptor(evidence={"mode": "full"}))
        messages.add(str(caught.value))
    assert len(messages) == 1


@pytest.mark.req("QRY-30")
def test_a_query_about_a_time_reads_the_chunks_of_that_time_only(log):
    every = plan_query(str(log.path), normalise(descriptor()).descriptor)
    narrow = {"time": {"from": timestamp(START + 30), "to": timestamp(START + 33)}}
    some = plan_query(str(log.path), normalise(descriptor(filter=narrow)).descriptor)
    counts = [len(list(plan.slices)) for plan in (every, some)]
    assert counts[1] * 4 < counts[0]
    assert [label.head for label in some.labels] == [label.head for label in every.labels]  # but covers all of it


@pytest.mark.req("QRY-30")
def test_of_chunks_of_other_times_and_streams_at_most_the_first_entry_is_read(log, copy):
    """All but their first entry, which tells their time, is destroyed: who read the rest would count it as damaged."""
    begin, end = START + 30, START + 33
    asked = descriptor(scope=[STREAMS[1]], filter={"time": {"from": timestamp(begin), "to": timestamp(end)}})
    expected = ask(log.path, asked)
    assert expected.digest.row_count > 0
    in_scope = {label.hex() for label in labels_in(STREAMS[1])}
    chunks = sorted((copy / "log").glob("chunk-*.log"))
    firsts = [next(iter(framing.frames(path.read_bytes())))[1] for path in chunks]
    times = [Receipt.from_bytes(first.receipt).hub_ts for first in firsts]
    destroyed = 0
    for number, (path, first) in enumerate(zip(chunks, firsts, strict=True)):
        is_last = number + 1 == len(chunks) or firsts[number + 1].label != first.label
        ends_before = not is_last and times[number + 1] < begin
        if first.label.hex() in in_scope and times[number] <= end and not ends_before:
            continue
        data = path.read_bytes()
        path.write_bytes(data[: first.size] + bytes(len(data) - first.size))
        destroyed += 1
    assert destroyed > 20
    result = ask(copy, asked)
    assert list(result.rows()) == list(expected.rows())
    assert "damaged" not in result.skipped


def test_no_key_and_no_content_shows_in_values_that_are_logged(log):
    secret = KEYS[STREAMS[0]].secret()
    shown = repr(reader_of(KEYRING, KEYS[STREAMS[0]].stream_id)) + repr(ask(log.path).digest)
    assert secret.hex() not in shown
    assert str(secret)[2:-1] not in shown


def test_the_reference_engine_does_not_load_spark(log):
    """Nothing of pyspark, and so no Java: a person without either can verify a result."""
    script = (
        "import sys\n"
        "from tests.lake.query_builders import KEYRING, descriptor\n"
        "from veen.lake.query import api\n"
        f"assert api.run({str(log.path)!r}, descriptor(), keys=KEYRING).digest.row_count\n"
        "assert not [name for name in sys.modules if name.startswith('pyspark')]\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).parents[2], timeout=120)


def test_the_example_of_the_documentation_runs(log):
    page = (Path(__file__).parents[2] / "docs" / "query.md").read_text("utf-8")
    examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names = {"__name__": "docs_query", "data_dir": str(log.path), "keyring": KEYRING}
    exec(compile("\n".join(examples), "docs/query.md", "exec"), names)  # noqa: S102 - our own documentation
    assert names["rows"]
    lines = [line for block in re.findall(r"```\n(veen .*?)```", page, re.DOTALL) for line in command_lines(block)]
    assert len(lines) == 16
    for line in lines:
        check_line(line)
