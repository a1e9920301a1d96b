"""Writing through Spark: every row once, in order, whatever happens to its task."""

import asyncio
import json
import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import StructType
from tests.cli.hubprocess import running
from tests.client.builders import seeded
from tests.client.hubs import QUICK, person
from tests.examples import spread
from tests.lake.hub_builders import ORDERS, RING, identity_at, register, restarted, settings

from veen.client.client import Client
from veen.client.home import Home
from veen.client.identity.keyring import StreamKeys
from veen.client.send.sealing import Draft
from veen.client.verify.pin import HubPin
from veen.core.hashing import H
from veen.core.limits import DEFAULT_LIMITS
from veen.core.objects.msg import Msg
from veen.core.objects.profile import PRESETS
from veen.core.objects.receipt import Receipt
from veen.lake.log.columns import SENT
from veen.lake.log.errors import OptionError
from veen.lake.log.options import HUB, WRITING, WriteOptions
from veen.lake.spark.writer import INPUT, BatchWriter, check_columns, write_rows
from veen.lake.spark.writing import RowRefused, RowsChanged, WritePlan, _Lane, complete

pytestmark = pytest.mark.xdist_group("spark")

OPEN = ("admission.capability_gating=false",)
PHRASE = "correct horse battery staple"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("writer")
    identity, _ = identity_at(tmp_path / "home")
    with running(tmp_path / "hub", *settings(tmp_path, *OPEN)) as hub:
        register(hub, ORDERS.stream_id)
        yield hub, identity, tmp_path


def asked(hub, identity, **more):
    options = {"hub": hub.url, "hubKey": hub.about["hub_pk"], "stream": "orders", "identity": str(identity), **more}
    return WriteOptions.of({"patience": "10", **options})


def plan_of(hub, identity, write_id, epoch=0, **more):
    return WritePlan(options=asked(hub, identity, **more), write_id=write_id, epoch=epoch)


def rows_of(bodies, size=7, **columns):
    table = pa.table({"body": bodies, **columns})
    return iter(table.to_batches(max_chunksize=size))


def log_of(hub, tmp_path, name="reader"):
    """The stream as a reader who believes nothing finds it."""

    async def read():
        pin = HubPin.parse(hub.about["hub_pk"])
        home = Home.at(Path(tmp_path) / name)
        async with await Client.connect(
            hub.url, pin=pin, identity=person(name), keyring=RING, home=home, retry=QUICK
        ) as client:
            return [entry async for entry in client.read("orders")]

    return asyncio.run(read())


def bodies_at(hub, tmp_path, prefix):
    return [entry.body for entry in log_of(hub, tmp_path) if entry.body.startswith(prefix)]


def numbered(prefix, count):
    return [prefix + b"%04d" % number for number in range(count)]


# --- a task -----------------------------------------------------------------------------------------------------


def test_rows_are_sent_in_order_with_what_they_say(world, tmp_path):
    hub, identity, _ = world
    batches = rows_of(
        ["say-0", "say-1", "say-2"],
        schema=["billing.v1", None, None],
        parent_id=pa.array([None, b"p" * 32, None], pa.binary()),
        expires_at=pa.array([None, None, 1_900_000_000], pa.int64()),
        key=["a", "b", "c"],
    )
    plan = plan_of(hub, identity, "say", schema="letters.v1", receipts=str(tmp_path / "receipts"))
    done = write_rows(plan, 3, batches)
    assert (done.partition, done.rows) == (3, 3)
    entries = [entry for entry in log_of(hub, tmp_path) if entry.body.startswith(b"say-")]
    assert [entry.body for entry in entries] == [b"say-0", b"say-1", b"say-2"]
    assert [entry.event.hdr.schema for entry in entries] == [H(b"billing.v1"), H(b"letters.v1"), H(b"letters.v1")]
    assert [entry.event.hdr.parent_id for entry in entries] == [None, b"p" * 32, None]
    assert [entry.event.hdr.expires_at for entry in entries] == [None, None, 1_900_000_000]
    complete(plan.options.receipts, "orders", [done])
    receipts = pq.read_table(tmp_path / "receipts").to_pylist()
    assert list(receipts[0]) == [column.name for column in SENT]
    assert [(row["partition"], row["row"], row["key"]) for row in receipts] == [(3, 0, "a"), (3, 1, "b"), (3, 2, "c")]
    assert [row["leaf_hash"] for row in receipts] == [entry.msg_id for entry in entries]
    for row, entry in zip(receipts, entries, strict=True):
        assert Receipt.from_bytes(row["receipt"]) == entry.receipt
    (record,) = (tmp_path / "receipts" / "_writes").iterdir()
    assert json.loads(record.read_text())["rows"] == 3


def interrupted(batches, after):
    """Rows that end in the middle, as when a task is killed."""
    for number, batch in enumerate(batches):
        if number == after:
            raise KeyboardInterrupt
        yield batch


@pytest.mark.parametrize("after", spread([0, 1, 3], 1))
def test_a_task_that_is_killed_and_run_again_loses_and_doubles_nothing(world, tmp_path, after):
    hub, identity, _ = world
    wanted = numbered(b"kill-%d-" % after, 30)
    plan = plan_of(hub, identity, f"kill-{after}", receipts=str(tmp_path / "receipts"), batch="2")
    with pytest.raises(KeyboardInterrupt):
        write_rows(plan, 0, interrupted(rows_of(wanted), after))
    assert len(bodies_at(hub, tmp_path, b"kill-%d-" % after)) < 30
    first = write_rows(plan, 0, rows_of(wanted, size=30))
    assert bodies_at(hub, tmp_path, b"kill-%d-" % after) == wanted
    receipts = pq.read_table(tmp_path / "receipts").to_pylist()
    assert write_rows(plan, 0, rows_of(wanted)) == first
    assert pq.read_table(tmp_path / "receipts").to_pylist() == receipts
    assert [row["row"] for row in receipts] == list(range(30))
    assert bodies_at(hub, tmp_path, b"kill-%d-" % after) == wanted


def test_two_attempts_at_once_write_every_row_once(world, tmp_path):
    """Speculative execution: the same task, side by side."""
    hub, identity, _ = world
    wanted = numbered(b"twin-", 60)
    plan = plan_of(hub, identity, "twin", batch="4")
    failed = []

    def attempt(size):
        try:
            write_rows(plan, 1, rows_of(wanted, size=size))
        except BaseException as exc:
            failed.append(exc)

    threads = [threading.Thread(target=attempt, args=(size,)) for size in (7, 60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert bodies_at(hub, tmp_path, b"twin-") == wanted


def test_other_partitions_and_other_writes_are_other_messages(world, tmp_path):
    hub, identity, _ = world
    for write_id, partition in (("one", 0), ("one", 1), ("two", 0)):
        write_rows(plan_of(hub, identity, f"other-{write_id}"), partition, rows_of([b"other"]))
    entries = [entry for entry in log_of(hub, tmp_path) if entry.body == b"other"]
    assert len({entry.msg.client_id for entry in entries}) == len({entry.msg.ciphertext for entry in entries}) == 3


def _ciphertext(raw):
    return Msg.from_bytes(raw).ciphertext


def test_a_row_has_another_key_stream_for_everything_that_it_is_bound_to():
    """With and without a token, and for two readers, the seals of a row have nothing in common."""

    class Session:
        hub_id, limits = b"h" * 32, DEFAULT_LIMITS

        def label(self, stream_id, epoch):
            return H(stream_id)

        def profile(self):
            return next(iter(PRESETS.values()))

    readers = [StreamKeys.create("orders", random=seeded(name)) for name in ("one", "other")]
    session: Any = Session()
    readers[1] = replace(readers[0], reader_pk=readers[1].reader_pk, reader_sk=None)
    sealed = [
        _ciphertext(_Lane(b"s" * 32, keys, session, 0, auth_ref).seal(Draft(body=b"row"), 1).raw)
        for keys in readers
        for auth_ref in (None, b"a" * 32, b"b" * 32)
    ]
    assert len({ciphertext[:32] for ciphertext in sealed}) == len(sealed)  # the HPKE enc: one key each
    again = _ciphertext(_Lane(b"s" * 32, readers[0], session, 0, None).seal(Draft(body=b"row"), 1).raw)
    assert again == sealed[0]


def test_rows_that_changed_between_two_attempts_are_named(world, tmp_path):
    hub, identity, _ = world
    plan = plan_of(hub, identity, "changed")
    write_rows(plan, 0, rows_of(numbered(b"changed-", 5)))
    with pytest.raises(RowsChanged, match=r"row 3 of partition 0 \(writeId changed\).*persist or checkpoint"):
        write_rows(plan, 0, rows_of([*numbered(b"changed-", 3), b"changed-other", b"changed-0004"]))
    assert bodies_at(hub, tmp_path, b"changed-") == numbered(b"changed-", 5)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"body": pa.array([b"bad-0", None], pa.binary())}, "row 1 of partition 0.*body is null"),
        ({"body": [b"bad-0", bytes(5000)]}, "row 1 of partition 0.*max_body_bytes"),
        ({"body": ["bad-0", "bad-1"], "parent_id": [None, b"short"]}, "row 1 .*parent_id has 5 bytes"),
        ({"body": ["bad-0", "bad-1"], "schema": [None, b"short"]}, "row 1 .*schema has 5 bytes"),
        ({"body": ["bad-0", "bad-1"], "expires_at": [None, -1]}, "row 1 .*negative"),
        ({"body": [{"n": 0.5}, {"n": float("nan")}]}, "row 1 .*JSON"),
    ],
)
def test_a_row_that_cannot_be_sent_is_named_by_its_position(world, columns, words):
    hub, identity, _ = world
    with pytest.raises(RowRefused, match=words):
        write_rows(plan_of(hub, identity, f"bad-{words}"), 0, rows_of(columns.pop("body"), **columns))


def test_a_hub_that_restarts_in_the_middle_is_waited_for(tmp_path):
    identity, _ = identity_at(tmp_path / "home", passphrase=None)
    options = settings(tmp_path, *OPEN)
    with running(tmp_path / "hub", *options) as hub:
        register(hub, ORDERS.stream_id)
        again = []

        def rows():
            for number, batch in enumerate(rows_of(numbered(b"wait-", 20), size=5)):
                if number == 2:
                    again.append(restarted(hub, *options))
                yield batch

        try:
            assert write_rows(plan_of(hub, identity, "wait", batch="1"), 0, rows()).rows == 20
            assert bodies_at(hub, tmp_path, b"wait-") == numbered(b"wait-", 20)
        finally:
            for row in again:
                row.stop()


def test_where_the_hub_asks_for_capabilities_the_identity_issues_them(tmp_path):
    identity, who = identity_at(tmp_path / "home", passphrase=PHRASE)
    (tmp_path / "phrase").write_text(f"{PHRASE}\n")
    (tmp_path / "phrase").chmod(0o600)
    stranger, _ = identity_at(tmp_path / "other", name="stranger")
    with running(tmp_path / "hub", *settings(tmp_path, f"admission.trusted_issuers={who.id_sign_pk.hex()}")) as hub:
        plan = plan_of(hub, identity, "cap", passphraseFile=str(tmp_path / "phrase"))
        for _ in range(2):
            write_rows(plan, 0, rows_of(numbered(b"cap-", 5)))
        assert bodies_at(hub, tmp_path, b"cap-") == numbered(b"cap-", 5)
        with pytest.raises(OptionError, match="trusted_issuers"):
            write_rows(plan_of(hub, stranger, "cap"), 0, rows_of([b"no"]))
        assert PHRASE not in repr(plan)


def test_a_client_key_signs_no_more_than_it_may(world, tmp_path):
    hub, identity, _ = world
    for _ in range(2):
        write_rows(replace(plan_of(hub, identity, "keys"), per_key=4), 0, rows_of(numbered(b"keys-", 10)))
    entries = [entry for entry in log_of(hub, tmp_path) if entry.body.startswith(b"keys-")]
    assert [entry.body for entry in entries] == numbered(b"keys-", 10)
    assert [entry.msg.client_seq for entry in entries] == [1, 2, 3, 4, 1, 2, 3, 4, 1, 2]
    assert len({entry.msg.client_id for entry in entries}) == 3


def test_where_labels_rotate_a_write_goes_on_in_the_next_one(tmp_path):
    """An epoch of two seconds: a write that began three epochs ago, and is taken up again later."""
    identity, _ = identity_at(tmp_path / "home")
    config = tmp_path / "hub.toml"
    config.write_text("[admission]\nprofiles = [{ epoch_sec = 2, pad_block = 0 }]\n")
    with running(
        tmp_path / "hub", "--config", config, *settings(tmp_path, *OPEN, "limits.max_epoch_skew_sec=1")
    ) as hub:
        register(hub, ORDERS.stream_id)
        schema = StructType().add("body", "binary")
        with pytest.raises(OptionError, match="writeTime"):
            BatchWriter(asked(hub, identity, writeId="turn"), schema, overwrite=False)
        epoch = BatchWriter(asked(hub, identity), schema, overwrite=False)._plan.epoch
        plan = plan_of(hub, identity, "turn", epoch=epoch - 3, batch="1")

        def slowly():
            for number, batch in enumerate(rows_of(numbered(b"turn-", 6), size=2)):
                if number == 2:
                    threading.Event().wait(2.5)
                yield batch

        first = write_rows(replace(plan, options=replace(plan.options, receipts=str(tmp_path / "r"))), 0, slowly())
        assert first.rows == 6
        for _ in range(2):
            write_rows(plan, 0, rows_of(numbered(b"turn-", 6)))
        entries = log_of(hub, tmp_path)
        assert [entry.body for entry in entries] == numbered(b"turn-", 6)
        assert len({entry.epoch for entry in entries}) > 1
        assert entries[0].epoch > plan.epoch


# --- at the door ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ddl", "words"),
    [
        ("text STRING", "unknown column text"),
        ("key STRING", "needs a column body"),
        ("body INT", "column body is int"),
        ("body STRUCT<at: TIMESTAMP>", "column body is struct"),
        ("body BINARY, expires_at STRING", "column expires_at is string"),
    ],
)
def test_columns_that_are_no_message_are_named(spark, ddl, words):
    with pytest.raises(OptionError, match=words):
        check_columns(spark.createDataFrame([], ddl).schema)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"stream": None}, "writing needs .option..stream"),
        ({"hubKey": None}, "writing needs .option..hubKey"),
        ({"identity": "/nowhere"}, "identity /nowhere"),
        ({"stream": "unknown"}, "no key|unknown|not"),
        ({"passphraseFile": "/nowhere"}, "passphraseFile /nowhere"),
        ({"colour": "red"}, "unknown option colour"),
        ({"writeId": "x" * 300}, "writeId"),
    ],
)
def test_a_wrong_option_of_a_write_is_named_before_anything_begins(world, change, words):
    hub, identity, _ = world
    options = {"hub": hub.url, "hubKey": hub.about["hub_pk"], "stream": "orders", "identity": str(identity), **change}
    with pytest.raises(OptionError, match=words):
        BatchWriter(
            WriteOptions.of({name: value for name, value in options.items() if value is not None}),
            StructType().add("body", "binary"),
            overwrite=False,
        )


def test_docs_list_the_options_and_the_columns_of_a_write():
    page = (Path(__file__).parents[2] / "docs" / "pipeline.md").read_text("utf-8")
    table = page.partition("| option of a write | what |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = {name.lower() for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named == set(WRITING) - set(HUB)
    table = page.partition("| column of a message | what |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == set(INPUT)
    (listed,) = re.findall(r"Receipts have the columns `([^`]*)`", page.replace("\n", " "))
    assert [name.strip() for name in listed.split(",")] == [column.name for column in SENT]


# --- in Spark ---------------------------------------------------------------------------------------------------


def options_of(hub, identity, **more):
    return {"hub": hub.url, "hubKey": hub.about["hub_pk"], "stream": "orders", "identity": str(identity), **more}


def test_a_dataframe_becomes_messages_and_a_table_of_receipts(spark, world, tmp_path):
    hub, identity, _ = world
    frame = spark.range(0, 40, 1, 3).selectExpr(
        "struct(id AS n, concat('spark-', id) AS text) AS body", "cast(id AS STRING) AS key"
    )
    receipts = str(tmp_path / "receipts")
    write = (
        frame.write.format("veen").mode("append").options(**options_of(hub, identity, receipts=receipts, writeId="df"))
    )
    write.save()
    write.save()  # the same write again
    entries = [entry for entry in log_of(hub, tmp_path) if b"spark-" in entry.body]
    assert sorted(json.loads(entry.body)["n"] for entry in entries) == list(range(40))
    rows = {row.key: row for row in spark.read.parquet(receipts).collect()}
    assert len(rows) == spark.read.parquet(receipts).count() == 40
    for entry in entries:
        row = rows[str(json.loads(entry.body)["n"])]
        assert (bytes(row.leaf_hash), row.stream_seq) == (entry.msg_id, entry.seq)
    for partition in range(3):
        places = [(row.row, row.stream_seq) for row in rows.values() if row.partition == partition]
        assert sorted(places) == sorted(places, key=lambda place: place[1])
    with pytest.raises(Exception, match="never overwritten"):
        frame.write.format("veen").mode("overwrite").options(**options_of(hub, identity)).save()


@pytest.mark.slow
def test_a_write_whose_worker_is_killed_is_taken_up_again(spark, world, tmp_path):
    hub, identity, _ = world
    flag = tmp_path / "flag"

    def dies_once(batches):
        import os
        import signal

        for batch in batches:
            if not flag.exists() and batch["id"][0].as_py() >= 40:
                flag.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
    frame = (
        spark.range(0, 80, 1, 1)
        .mapInArrow(dies_once, "id BIGINT")
        .selectExpr("concat('dies-', lpad(id, 4, '0')) AS body")
    )
    write = frame.write.format("veen").mode("append").options(**options_of(hub, identity, writeId="dies"))
    try:
        with pytest.raises(Exception, match=r"crashed|exited|failed"):
            write.save()
        write.save()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert bodies_at(hub, tmp_path, b"dies-") == numbered(b"dies-", 80)


@pytest.mark.slow
def test_a_stream_writes_every_row_once_also_when_a_batch_is_run_again(spark, world, tmp_path):
    hub, identity, _ = world
    source, state = tmp_path / "in", tmp_path / "state"
    wanted = []
    for number in range(2):
        wanted += [f"flow-{number}-{row}" for row in range(5)]
        spark.createDataFrame([(text,) for text in wanted[-5:]], "body STRING").coalesce(1).write.mode(
            "append"
        ).parquet(str(source))
        stream = spark.readStream.schema("body STRING").parquet(str(source))
        query = (
            stream.writeStream.format("veen").options(**options_of(hub, identity, receipts=str(tmp_path / "receipts")))
            .option("checkpointLocation", str(state)).trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
        if number == 0:  # as if the driver had died before it could note that the batch was done
            (state / "commits" / "0").unlink()
            (state / "commits" / ".0.crc").unlink(missing_ok=True)
    assert sorted(bodies_at(hub, tmp_path, b"flow-")) == sorted(text.encode() for text in wanted)
    assert spark.read.parquet(str(tmp_path / "receipts")).count() == 10
