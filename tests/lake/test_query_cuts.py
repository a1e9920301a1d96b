"""The tasks of a parallel execution give the bytes of one process, however the log is cut (D-120). No Spark here."""

import pickle
import random
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from tests.examples import spread
from tests.lake.query_builders import KEYRING, KEYS, STREAMS, SUBJECTS, TYPES, Recorder, descriptor, filled
from tests.storage.driver import START

from veen.core import canonical
from veen.core.objects.receipt import Receipt
from veen.lake.log.columns import arrow_schema, to_batches
from veen.lake.log.decryption import Skips
from veen.lake.log.errors import OptionError
from veen.lake.log.keys import KeyFile, write_keys
from veen.lake.log.prefix import survey_batches, times_by_slice, with_times
from veen.lake.log.slices import divide
from veen.lake.query.aggregate import Partial
from veen.lake.query.descriptor import normalise
from veen.lake.query.engine import LocalSource, execute, plan_query, skip_missing
from veen.lake.query.errors import EvidenceFailed
from veen.lake.query.evidence import Prover
from veen.lake.query.fields import timestamp
from veen.lake.query.matches import MatchTally, Witness
from veen.lake.query.tasks import (
    GROUPS,
    MATCHES,
    ORDER_KEYS,
    QueryJob,
    add_note,
    boundaries,
    group_batches,
    limit_batches,
    match_batches,
    matches_in,
    merge_batches,
    pack_batches,
    pairs_in,
    with_evidence,
)

CUTS = (1, 2, 7, 64)


class Collected:
    def __init__(self):
        self.rows, self.entries = [], []

    def row(self, row):
        self.rows.append(row)

    def evidence(self, entry):
        self.entries.append(entry)


class Cut:
    """A source that works like a cluster: tasks one by one in any order, some of them twice, then a sort."""

    def __init__(self, plan, asked, keys, parts, rng):
        self.plan, self.asked, self.keys, self.parts, self.rng = plan, asked, keys, parts, rng

    def prepared(self):
        tasks = divide(skip_missing(self.plan.slices), self.parts)
        slices = [part for task in tasks for part in task]
        rows = [row for batch in survey_batches(self.plan.uri, 0, slices) for row in batch.to_pylist()]
        times = times_by_slice(rows, len(slices))
        tasks = with_times(tasks, times)
        bounds = boundaries(tasks, times, 5)
        assert list(bounds) == sorted(bounds)
        job = QueryJob(
            uri=self.plan.uri, descriptor=self.asked, identity=self.plan.identity, keys=self.keys, bounds=bounds
        )
        parts = with_evidence(self.asked, self.plan, tasks)
        return pickle.loads(pickle.dumps((job, parts)))  # noqa: S301 - as Spark does to tasks

    def shuffled(self, run):
        job, tasks = self.prepared()
        self.rng.shuffle(tasks)
        for task in tasks:
            if self.rng.random() < 0.3:
                list(run(job, task))  # an attempt whose result is thrown away
            for batch in run(job, task):
                yield from batch.to_pylist()

    def matches(self, tally):
        rows = list(self.shuffled(match_batches))
        keyed = sorted(
            rows, key=lambda row: tuple(row[key] or b"" if key == "leaf_hash" else row[key] for key in ORDER_KEYS)
        )
        buckets = [row["bucket"] for row in keyed]
        assert buckets == sorted(buckets)  # buckets follow the order, so sorting inside of each is enough
        limit = None if self.asked.order or self.asked.aggregate else self.asked.limit
        for bucket in range(max(buckets, default=-1) + 1):
            batches = to_batches((row for row in keyed if row["bucket"] == bucket), arrow_schema(MATCHES))
            for packed in pack_batches(limit_batches(batches, limit), MATCHES):
                yield from matches_in(packed.column(0)[0].as_py(), sorted(self.asked.stream_names), tally)

    def groups(self, tally):
        pairs = sorted((row["key"], row["partial"]) for row in self.shuffled(group_batches))
        for packed in pack_batches(merge_batches(self.asked, pairs), GROUPS):
            for key, data in pairs_in(packed.column(0)[0].as_py()):
                if key:
                    yield key, Partial.from_bytes(data)
                else:
                    add_note(data, tally)


def answer(plan, asked, source):
    sink = Collected()
    outcome = execute(plan, asked, "r-1", source, sink, now=lambda: 0)
    return outcome.digest, outcome.coverage, sink.rows, sink.entries


CONDITIONS = (
    {"field": "payload.amount", "op": ">=", "value": 20},
    {"field": "payload.amount", "op": "in", "value": ["text", True, 3]},
    {"field": "payload.price", "op": "<", "value": 12},
    {"field": "payload.where.rack", "op": "in", "value": [0, 1, 2]},
    {"field": "origin", "op": "^=", "value": "gw-"},
    {"field": "subject_id", "op": "^=", "value": "user:"},
    {"field": "event_time", "op": ">", "value": timestamp(START - 40)},
    {"field": "hub_commit_time", "op": "<=", "value": timestamp(START + 90)},
    {"field": "event_type", "op": "in", "value": ["login", "read"]},
)


def random_query(rng, number):
    asked = descriptor(query_id=f"q-{number}", scope=rng.sample(STREAMS, rng.randint(1, 3)))
    asked["projection"] = rng.choice((["*"], ["payload.where.rack", "receipt_id"], ["subject_id", "payload.price"]))
    if rng.random() < 0.4:
        asked["filter"]["subject_id"] = rng.choice(SUBJECTS)
    if rng.random() < 0.4:
        asked["filter"]["event_type"] = rng.sample(TYPES, rng.randint(1, 2))
    if rng.random() < 0.4:
        first = START + rng.randrange(60)
        asked["filter"]["time"] = {"from": timestamp(first), "to": timestamp(first + rng.randrange(60))}
    asked["evidence"] = rng.choice(
        (
            {"mode": "none"},
            {"mode": "none"},
            {"mode": "full"},
            {"mode": "spot", "sample_rate": rng.choice((0.1, 0.5, 1))},
        )
    )
    if rng.random() < 0.5:
        metrics = [
            "count",
            "sum(payload.price)",
            "avg(payload.price)",
            "max(payload.amount)",
            "min(event_time)",
            "sum(payload.amount)",
        ]
        groups = ["origin", "payload.where.rack", "stream", "event_type"]
        asked["aggregate"] = {
            "group_by": rng.sample(groups, rng.randint(0, 2)),
            "metrics": rng.sample(metrics, rng.randint(1, 4)),
        }
    if rng.random() < 0.5:
        asked["filter"]["where"] = rng.sample(CONDITIONS, rng.randint(1, 3))
    if rng.random() < 0.4:
        asked["limit"] = rng.choice((1, 3, 20, 1000))
        plain = normalise(asked).descriptor
        columns = [path.name for path in plain.projection]
        if plain.aggregate is not None:
            columns = [path.name for path in plain.aggregate.group_by]
            columns += [metric.name for metric in plain.aggregate.metrics]
        asked["order"] = [
            {"field": name, "direction": rng.choice(("asc", "desc"))}
            for name in rng.sample(columns, rng.randint(0, min(2, len(columns))))
        ]
    return normalise(asked).descriptor


@pytest.mark.req("QRY-10", "QRY-15", "QRY-16")
@pytest.mark.parametrize("seed", spread([0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3))], 1))
def test_any_cut_gives_the_bytes_of_one_process(tmp_path, seed):
    path = filled(tmp_path, 70, seed).done()
    keys = write_keys(tmp_path / "keys", KEYS.values())
    rng = random.Random(seed)
    for number in range(13):  # with two of the four cuts in turn, 26 executions for each log
        asked = random_query(rng, number)
        plan = plan_query(path, asked)
        expected = answer(plan, asked, LocalSource(plan, asked, KEYRING))
        for parts in CUTS[number % 2 :: 2]:
            assert answer(plan, asked, Cut(plan, asked, keys, parts, rng)) == expected


def test_time_that_runs_backwards_does_not_let_a_cut_change_the_order(tmp_path):
    """ts* is the running maximum of the label (D-27): a task must know what came before it."""
    world = Recorder(tmp_path)
    steps = (0, 9, -5, 1, 1, -3, 8, -2, 0, 1)
    for step in steps:
        world.now += step
        world.emit(STREAMS[0])
        world.emit(STREAMS[1])
    path = world.done()
    keys = write_keys(tmp_path / "keys", KEYS.values())
    asked = normalise(descriptor(query_id="q-1", scope=list(STREAMS[:2]))).descriptor
    plan = plan_query(path, asked)
    expected = answer(plan, asked, LocalSource(plan, asked, KEYRING))
    assert len(expected[2]) == 2 * len(steps)
    for parts in (*CUTS, 20):
        assert answer(plan, asked, Cut(plan, asked, keys, parts, random.Random(parts))) == expected


@pytest.mark.parametrize("parts", CUTS)
def test_tasks_cover_every_entry_once_and_are_of_similar_size(tmp_path, parts):
    path = filled(tmp_path, 50).done()
    plan = plan_query(path, normalise(descriptor()).descriptor)
    tasks = divide(plan.slices, parts)
    assert len(tasks) <= parts
    places = [(part.label, seq) for task in tasks for part in task for seq in range(part.first, part.last + 1)]
    assert sorted(places) == sorted((label, seq) for label, head in plan.heads.items() for seq in range(1, head + 1))
    sizes = [sum(part.entries for part in task) for task in tasks]
    assert max(sizes) == -(-50 // parts)


def test_no_key_travels_with_a_task(tmp_path):
    path = filled(tmp_path, 20).done()
    keys = write_keys(tmp_path / "keys", KEYS.values())
    asked = normalise(descriptor()).descriptor
    plan = plan_query(path, asked)
    job, tasks = Cut(plan, asked, keys, 3, random.Random(0)).prepared()
    travelling = pickle.dumps((job, tasks)) + repr((job, tasks)).encode()
    for stream_keys in KEYS.values():
        for secret in (stream_keys.secret(), stream_keys.secret().hex().encode(), stream_keys.to_text().encode()):
            assert secret not in travelling
    assert (tmp_path / "keys" / "reader.keys").stat().st_mode & 0o777 == 0o600


def test_a_key_file_that_cannot_be_used_is_named_without_its_contents(tmp_path):
    path = tmp_path / "keys"
    with pytest.raises(OptionError, match="No such file"):
        KeyFile(str(path)).load()
    text = KEYS[STREAMS[0]].to_text()
    path.write_text(f"{text}\n{text[:-1]}\n")
    with pytest.raises(OptionError, match="word 2 is not a stream key") as caught:
        KeyFile(str(path)).load()
    assert text[12:-1] not in str(caught.value)
    assert caught.value.__cause__ is None
    path.write_text(f"{text}\n\n")
    assert KeyFile(str(path)).load().entries == (KEYS[STREAMS[0]],)
    path.write_bytes(b"\xff")
    with pytest.raises(OptionError, match="cannot be read"):
        KeyFile(str(path)).load()


def test_skips_merge_in_any_order():
    parts = [(b"l", "sealed", 5, 2), (b"l", "sealed", 3, 1), (b"m", "erased", 9, 4)]
    left, other = Skips(), Skips()
    for part in parts:
        left.add(*part)
    for part in reversed(parts):
        other.add(*part)
    assert left == other
    assert left.totals() == {"erased": 4, "sealed": 3}


# --- the way to the driver ------------------------------------------------------------------------------------------


def match_row(number, size=0, **columns):
    place = {"bucket": 0, "ts": number, "stream": number % 2, "epoch": 0, "stream_seq": number, "label": bytes(32)}
    return place | {"leaf_hash": bytes([number % 251]) * 32, "row": bytes([number % 251]) * size} | columns


def packed(rows, limit=None, batch=7):
    table = pa.Table.from_pylist(rows, arrow_schema(MATCHES))
    batches = table.to_batches(max_chunksize=batch)
    return [blob.column(0)[0].as_py() for blob in pack_batches(limit_batches(batches, limit), MATCHES)]


def unpacked(blobs):
    tally = MatchTally()
    return [match for blob in blobs for match in matches_in(blob, [b"a", b"b"], tally)], tally


@pytest.mark.parametrize("sizes", [[], [0], [0, 1, 0], [3 << 20], [1 << 19] * 9, [2 << 20, 0, 2 << 20, 1]], ids=str)
def test_rows_come_out_of_blobs_as_they_went_in_and_no_blob_holds_much_more_than_a_mebibyte(sizes):
    rows = [match_row(number, size) for number, size in enumerate(sizes)]
    blobs = packed(rows)
    matches, tally = unpacked(blobs)
    assert [(match.order, match.row) for match in matches] == [
        ((row["ts"], [b"a", b"b"][row["stream"]], 0, row["stream_seq"], row["leaf_hash"]), row["row"]) for row in rows
    ]
    assert all(match.witness is None and match.partial is None and match.fault is None for match in matches)
    assert tally == MatchTally()
    assert all(len(blob) < (1 << 20) + max(sizes) + 10_000 for blob in blobs)


def test_evidence_and_faults_of_some_rows_keep_to_their_rows():
    fields = {"receipt": b"r", "client_id": b"c", "msg_digest": b"", "msg_sig": b"s"}
    rows = [match_row(0), match_row(1, **fields), match_row(2, fault="wrong", **fields), match_row(3)]
    matches, _ = unpacked(packed(rows))
    witness = Witness(b"r", b"c", b"", b"s")
    assert [(match.witness, match.fault) for match in matches] == [
        (None, None), (witness, None), (witness, "wrong"), (None, None),
    ]  # fmt: skip


@pytest.mark.parametrize("limit", [None, 1, 5, 6, 7, 8, 20, 100])
@pytest.mark.parametrize("notes", [0, 3, 9])
def test_a_limit_leaves_out_matches_and_no_note_and_counts_what_it_left_out(limit, notes):
    data = canonical.encode([bytes(32).hex(), "sealed", 4, 1])
    rows = [match_row(number, ts=-1, row=data) for number in range(notes)]
    matches, tally = unpacked(packed([*rows, *(match_row(number) for number in range(20))], limit))
    kept_rows = 20 if limit is None else min(limit, 20)
    assert [match.stream_seq for match in matches] == list(range(kept_rows))
    assert tally.left_out == 20 - kept_rows
    assert tally.totals() == ({"sealed": notes} if notes else {})


# --- evidence --------------------------------------------------------------------------------------------------------


@pytest.fixture
def keys(tmp_path_factory):
    return write_keys(tmp_path_factory.mktemp("keys"), KEYS.values())


def node_files(path):
    return sorted(Path(path).rglob("*.nodes"))


@pytest.fixture
def proven_here(monkeypatch):
    """How many entries the driver verifies itself, one for each."""
    entries = []
    verify = Prover.verify

    def counted(self, match, *, signed=False):
        if self._rebuilds:
            entries.append(match.stream_seq)
        return verify(self, match, signed=signed)

    monkeypatch.setattr(Prover, "verify", counted)
    return entries


@pytest.mark.parametrize("aggregate", spread([None, {"group_by": ["origin"], "metrics": ["count"]}], 1))
def test_tasks_verify_what_they_open_and_the_driver_verifies_nothing(tmp_path, keys, proven_here, aggregate):
    path = filled(tmp_path, 60).done()
    assert node_files(path)
    more = {} if aggregate is None else {"aggregate": aggregate, "projection": ["origin"]}
    asked = normalise(descriptor(query_id="q-1", evidence={"mode": "full"}, **more)).descriptor
    plan = plan_query(path, asked)
    expected = answer(plan, asked, LocalSource(plan, asked, KEYRING))
    assert len(expected[3]) == len(proven_here) > 0
    for parts in CUTS:
        proven_here.clear()
        assert answer(plan, asked, Cut(plan, asked, keys, parts, random.Random(parts))) == expected
        assert not proven_here


@pytest.mark.parametrize("damage", ["no file", "short file", "other nodes"])
def test_what_the_node_file_does_not_prove_in_a_task_is_proven_on_the_driver(tmp_path, keys, proven_here, damage):
    path = filled(tmp_path, 40).done()
    for file in node_files(path):
        data = file.read_bytes()
        if damage == "no file":
            file.unlink()
        else:
            file.write_bytes(data[:-32] if damage == "short file" else bytes(len(data)))
    asked = normalise(descriptor(query_id="q-1", evidence={"mode": "full"})).descriptor
    plan = plan_query(path, asked)
    expected = answer(plan, asked, LocalSource(plan, asked, KEYRING))
    proven_here.clear()
    assert answer(plan, asked, Cut(plan, asked, keys, 3, random.Random(3))) == expected
    assert proven_here


def test_a_log_whose_tree_was_changed_fails_in_the_words_of_one_process(tmp_path, keys):
    """The last receipt of a label is one that its hub signed for another tree."""
    world = filled(tmp_path, 40)
    path = world.done()
    asked = normalise(descriptor(query_id="q-1", evidence={"mode": "full"})).descriptor
    plan = plan_query(path, asked)
    wrong = []
    for label_range in plan.labels:
        receipt = label_range.head_receipt
        assert receipt is not None
        fields = {name: getattr(receipt, name) for name in ("label", "stream_seq", "leaf_hash", "hub_ts")}
        forged = Receipt.issue(world.keys.signing_key_at(receipt.hub_ts), mmr_root=bytes(32), **fields)
        wrong.append(replace(label_range, head_receipt=forged))
    plan = replace(plan, labels=tuple(wrong))
    words = []
    for source in (LocalSource(plan, asked, KEYRING), Cut(plan, asked, keys, 3, random.Random(3))):
        with pytest.raises(EvidenceFailed) as caught:
            answer(plan, asked, source)
        words.append(str(caught.value))
    assert words[0] == words[1]
