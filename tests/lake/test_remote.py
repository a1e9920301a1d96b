"""Reading a hub by its URL: the rows of its directory, or rows that say what is wrong."""

import asyncio
import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from tests.cli.hubprocess import running
from tests.client.hubs import bodies, connected, pin_of
from tests.examples import spread
from tests.lake.hub_builders import TRADES, hub_with_entries, restarted, settings, write

from veen.client.transport.calls import Answer
from veen.core.crypto.ed25519 import SigningKey
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.envelopes import ErrorEnvelope, StreamRequest
from veen.core.objects.tooling import IdentityResponse, InspectResponse
from veen.lake.log.columns import CHECKPOINTS, ENTRIES
from veen.lake.log.entries import DirectorySource, ReadSpec
from veen.lake.log.errors import OptionError, SourceDamaged
from veen.lake.log.options import Options
from veen.lake.log.remote import HubDiverged, HubFailed, HubLink, HubSaysNo, HubUnreachable, RemoteHub, split_page
from veen.lake.spark.checkpoints import CheckpointReader
from veen.lake.spark.source import EntryStream
from veen.testing import hostile

pytestmark = pytest.mark.xdist_group("spark")  # the last tests need the session

OTHER = SigningKey(b"\x66" * 32)
HERE = ("path", "frame_offset")  # where a file has an entry: a hub does not tell


def place_of(url, **given):
    options = Options.of({"hub": url, "patience": "10", **given})
    assert options.hub is not None
    return RemoteHub(options.hub, options.partition_bytes), options


def rows_at(place, options, level=None):
    pinned = place.pin(options.selection)
    spec = ReadSpec(
        columns=ENTRIES,
        level=level or options.level,
        identity=pinned.identity,
        first_ts=options.selection.first_ts,
        last_ts=options.selection.last_ts,
        fail_fast=options.fail_fast,
    )
    read = place.read(list(place.slices(pinned, options.selection)), spec)
    return sorted((r for b in read for r in b.to_pylist()), key=lambda row: (row["label"], row["stream_seq"]))


def full_spec(pinned, **more):
    return ReadSpec(columns=ENTRIES, level="full", identity=pinned.identity, **more)


def bare(rows):
    return [{name: value for name, value in row.items() if name not in HERE} for row in rows]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("hub")
    with hub_with_entries(tmp_path, 61) as hub:
        yield hub, tmp_path


def test_the_url_and_the_directory_of_a_hub_give_the_same_rows(tmp_path):
    with hub_with_entries(tmp_path, 61) as hub:
        answers = {
            (level, size): rows_at(*place_of(hub.url, hubKey=hub.about["hub_pk"], verify=level, partitionBytes=size))
            for level, size in (("none", "1"), ("hash", "5000"), ("receipt", "20000"), ("full", "100000000"))
        }
        hub.stop()
    for (level, _), rows in answers.items():
        path = str(tmp_path / "hub")
        there = rows_at(DirectorySource(path), Options.of({"path": path, "verify": level}))
        assert bare(rows) == bare(there)
        assert len(rows) == 61
        assert all(row["ok"] and row["stream_id"] and row["path"] == hub.url for row in rows)


def test_selections_choose_the_same_rows_as_from_a_directory(tmp_path):
    with hub_with_entries(tmp_path, 40) as hub:
        everything = rows_at(*place_of(hub.url))
        rng = random.Random(6)
        asked = [{"stream": "trades"}, {"label": everything[0]["label"].hex()}, {"stream": "nobody"}]
        times = sorted({row["hub_ts"] for row in everything})
        asked += [{"fromTime": str(times[0]), "toTime": str(times[0])}, {"fromTime": str(times[-1] + 1)}]
        asked += [{"fromSeq": str(rng.randrange(22)), "toSeq": str(rng.randrange(22))} for _ in range(5)]
        results = [rows_at(*place_of(hub.url, partitionBytes="3000", **options)) for options in asked]
        hub.stop()
    for options, rows in zip(asked, results, strict=True):
        path = str(tmp_path / "hub")
        assert bare(rows) == bare(rows_at(DirectorySource(path), Options.of({"path": path, **options}))), options
    assert {row["stream_id"] for row in results[0]} == {TRADES.stream_id}


def test_a_hub_tells_the_checkpoint_of_every_label(world):
    hub, _ = world
    reader = CheckpointReader(Options.of({"hub": hub.url}), CHECKPOINTS)
    (batch,) = [batch for part in reader.partitions() for batch in reader.read(part)]
    rows = batch.to_pylist()
    assert sorted(row["upto_seq"] for row in rows) == [30, 31]
    for row in rows:
        assert row["ok"]
        Checkpoint.from_bytes(row["checkpoint"]).verify(bytes.fromhex(hub.about["hub_pk"].removeprefix("ed25519:")))


# --- a hub that lies --------------------------------------------------------------------------------------------


def listening(tmp_path, work):
    """`work(url, pin, wire)` in a thread of its own, while a hub with seven entries and a hostile wire answers."""

    async def story():
        async with connected(tmp_path) as (hub, wire, client):
            for number in range(7):
                await client.send("orders", b"order %d" % number)
            assert len(await bodies(client)) == 7
            wire.key = hub.identity.held.private[hub.identity.current_pk]
            async with hostile.serve(wire) as url:
                return await asyncio.to_thread(work, url, pin_of(hub).to_text(), wire)

    return asyncio.run(story())


def pruned(operation, body, answer):
    """As a hub answers that has erased the first three entries."""
    if operation != "v1/stream" or StreamRequest.from_bytes(body).from_seq > 3:
        return answer
    refusal = ErrorEnvelope(code="E.NOT_FOUND", message="gone", detail={"reason": "pruned", "stream_seq": 1})
    return Answer(404, refusal.to_bytes())


def corrupt(operation, body, answer):
    """As a hub answers that cannot read its fifth entry."""
    if operation != "v1/stream":
        return answer
    asked = StreamRequest.from_bytes(body)
    if not asked.from_seq <= 5 <= (asked.to_seq or 5):
        return answer
    refusal = ErrorEnvelope(code="E.UNAVAILABLE", message="damaged", detail={"reason": "corrupt"})
    return Answer(503, refusal.to_bytes())


LIES: dict[str, tuple[Callable[..., Answer], set[int], str]] = {
    "reorders": (hostile.Reorders(), {1, 2}, "is where entry"),
    "misplaces": (hostile.Misplaces(), {1, 2}, ""),
    "drops": (hostile.Drops(3), {3}, "does not give"),
    "truncates": (hostile.Truncates(5), {5, 6, 7}, "does not give"),
    "forges": (hostile.Forges(4), {4}, "sig does not verify|leaf|signature"),
    "signs with another key": (hostile.SignsWith(SigningKey(b"\x07" * 32)), set(range(1, 8)), "verif|signed|key"),
    "talks nonsense": (hostile.Replaces("v1/stream", b"\x01"), set(range(1, 8)), "v1/stream"),
    "erased": (pruned, {1, 2, 3}, "erased"),
    "damaged": (corrupt, {5}, "damaged"),
}


@pytest.mark.parametrize("name", spread(LIES, 4))
def test_what_a_hub_makes_up_is_a_row_with_its_reason(tmp_path, name):
    lie, bad, words = LIES[name]

    def work(url, pin, wire):
        place, options = place_of(url, hubKey=pin, verify="full")
        pinned = place.pin(options.selection)
        wire.lies.append(lie)
        slices = list(place.slices(pinned, options.selection))
        rows = [r for b in place.read(slices, full_spec(pinned)) for r in b.to_pylist()]
        assert [row["stream_seq"] for row in rows] == list(range(1, 8))
        assert {row["stream_seq"] for row in rows if not row["ok"]} == bad
        for row in rows:
            assert row["ok"] == (row["reason"] is None)
            assert row["ok"] or not words or any(word in row["reason"] for word in words.split("|")), row["reason"]
        with pytest.raises(SourceDamaged, match=f"entry {min(bad)}"):
            list(place.read(slices, full_spec(pinned, fail_fast=True)))
        return rows

    rows = listening(tmp_path, work)
    if name == "erased":
        assert all(row["receipt"] and row["leaf_hash"] and row["msg"] is None for row in rows[:3])


def test_another_hub_is_not_read(tmp_path):
    def work(url, pin, wire):
        place, options = place_of(url, hubKey=f"ed25519:{SigningKey(bytes(32)).public.hex()}")
        with pytest.raises(HubDiverged, match="hubKey"):
            place.pin(options.selection)
        wire.lies.append(hostile.Replaces("tooling/identity", b"<html>"))
        with pytest.raises(HubFailed, match="identity"):
            RemoteHub(place_of(url, hubKey=pin)[1].hub, 1000).pin(options.selection)

    listening(tmp_path, work)


def test_the_hub_id_of_a_pinned_key_is_not_for_whoever_answers_to_choose(tmp_path):
    """D-174: an invented older first key would make the planner find an empty log."""

    def work(url, pin, wire):
        place, options = place_of(url, hubKey=pin)
        hub_id = place.pin(options.selection).identity.hub_id
        bound, _ = place_of(url, hubKey=pin, hubId=hub_id.hex())
        assert bound.pin(options.selection).identity.hub_id == hub_id
        with HubLink(place.address) as link:
            assert link.bound() == bound.address  # what a driver hands to the tasks of a write
        stream = EntryStream(options, ENTRIES)
        start = stream.initialOffset()
        offset = stream.latestOffset(start, stream.getDefaultReadLimit())
        assert start["hub_id"] == offset["hub_id"] == hub_id.hex()
        wire.lies.append(hostile.InventsFirstKey(OTHER))  # a stranger
        for planner in (place, bound):
            with pytest.raises(HubDiverged):
                planner.pin(options.selection)
        wire.lies[:] = [hostile.InventsFirstKey(OTHER, wire.key), nothing_there]  # the hub itself
        with pytest.raises(HubDiverged, match="hub_id"):
            bound.pin(options.selection)
        for asked in (
            lambda: stream.latestOffset(offset, stream.getDefaultReadLimit()),
            lambda: stream.partitions(start, offset),
        ):
            with pytest.raises(HubDiverged, match="answers now"):
                asked()

    listening(tmp_path, work)


def test_a_root_is_pinned_for_the_planner_and_the_hub_id_for_its_tasks(tmp_path):
    """D-121: hubKey may be a root; what a driver learned binds the tasks and the offsets of a stream."""
    root, evil = SigningKey(b"\x07" * 32), SigningKey(b"\x66" * 32)
    signer, moved, wire_key = root, False, root

    def signs(operation, body, answer):
        if moved:
            answer = hostile.InventsFirstKey(OTHER, wire_key)(operation, body, answer)
        if operation != "tooling/identity":
            return answer
        identity = IdentityResponse.from_bytes(answer.body).to_identity()
        return replace(answer, body=IdentityResponse.of(identity, identity.sign(signer)).to_bytes())

    def work(url, pin, wire):
        nonlocal signer, moved, wire_key
        wire_key = wire.key
        wire.lies.append(signs)
        place, options = place_of(url, hubKey=f"root:ed25519:{root.public.hex()}", verify="full")
        pinned = place.pin(options.selection)
        slices = list(place.slices(pinned, options.selection))
        rows = [r for b in place.read(slices, full_spec(pinned)) for r in b.to_pylist()]
        assert [row["ok"] for row in rows] == [True] * 7
        with HubLink(place.address) as link:
            bound = link.bound()
        assert (bound.pin, bound.hub_id) == (place.address.pin, pinned.identity.hub_id.hex())
        stream = EntryStream(options, ENTRIES)
        start = stream.initialOffset()
        with pytest.raises(HubDiverged):
            place_of(url, hubKey=pin)[0].pin(options.selection)
        moved = True  # another hub of the same root
        assert place.pin(options.selection).identity.hub_id != pinned.identity.hub_id
        with pytest.raises(HubDiverged, match="another hub of the pinned root"):
            RemoteHub(bound, 1000).pin(options.selection)
        with pytest.raises(HubDiverged, match="answers now"):
            stream.latestOffset(start, stream.getDefaultReadLimit())
        moved, signer = False, evil
        for address in (place.address, bound):
            with pytest.raises(HubDiverged, match="root key did not sign"):
                RemoteHub(address, 1000).pin(options.selection)

    listening(tmp_path, work)


def nothing_there(operation, _body, answer):
    if operation != "tooling/inspect":
        return answer
    return replace(answer, body=InspectResponse(label_count=0, labels=(), more=False).to_bytes())


def test_a_token_stays_here_over_plain_http(tmp_path):
    token = tmp_path / "token"
    token.write_text("open-sesame-to-readers")
    token.chmod(0o600)
    place, options = place_of("http://hub.invalid", tokenFile=str(token), patience="0")
    with pytest.raises(HubFailed, match="plain HTTP"):
        place.pin(options.selection)
    place, options = place_of("http://hub.invalid", tokenFile=str(token), patience="0", insecureHttp="true")
    with pytest.raises(HubUnreachable):
        place.pin(options.selection)


@dataclass
class Boasts:
    """A label has more entries than there can be, and is listed twice."""

    size: int
    times: int

    def __call__(self, operation, body, answer):
        if operation != "tooling/inspect":
            return answer
        inspection = InspectResponse.from_bytes(answer.body)
        labels = tuple(replace(label, last_stream_seq=self.size) for label in inspection.labels) * self.times
        return replace(answer, body=replace(inspection, labels=labels).to_bytes())


@pytest.mark.parametrize(("lie", "words"), [(Boasts(2**60, 1), "tasks"), (Boasts(7, 2), "do not ascend")])
def test_a_hub_that_boasts_does_not_exhaust_the_driver(tmp_path, lie, words):
    def work(url, pin, wire):
        wire.lies.append(lie)
        place, options = place_of(url, hubKey=pin)
        with pytest.raises(HubFailed, match=words):
            place.pin(options.selection)

    listening(tmp_path, work)


@pytest.mark.parametrize(
    "body", [b"", b"\xa1", b"\xa1\x05\x81\xa1\x01\x01", b"\xa1\x05\x9b" + b"\xff" * 8, b"\x80", b"\xa1\x02\x41\x00"]
)
def test_an_answer_that_is_no_page_is_named(body):
    with pytest.raises(Exception, match="v1/stream"):
        split_page(body, bytes(32))


# --- a hub that is away -----------------------------------------------------------------------------------------


def test_a_restart_in_the_middle_of_a_read_goes_unnoticed(tmp_path):
    options = settings(tmp_path)
    with contextlib.ExitStack() as hubs, running(tmp_path / "hub", *options) as hub:
        write(hub, tmp_path / "home", 40)
        place, asked = place_of(hub.url, partitionBytes="4096")
        pinned = place.pin(asked.selection)
        reading = place.read(place.slices(pinned, asked.selection), full_spec(pinned))
        rows = next(reading).num_rows
        again = restarted(hub, *options)
        hubs.callback(again.stop)
        assert rows + sum(batch.num_rows for batch in reading) == 40


def test_a_hub_that_is_not_there_is_named_with_what_to_do():
    place, options = place_of("http://127.0.0.1:9", patience="0")
    with pytest.raises(HubUnreachable, match=r"127\.0\.0\.1:9.*veen hub status"):
        place.pin(options.selection)


def test_readers_show_the_token_that_a_file_holds(tmp_path):
    token = tmp_path / "read.token"
    token.write_text("open-sesame-to-readers")
    token.chmod(0o600)
    with running(tmp_path / "hub", *settings(tmp_path, f"auth.read_token_files={token}")) as hub:
        place, options = place_of(hub.url)
        with pytest.raises(HubSaysNo, match="tokenFile"):
            place.pin(options.selection)
        place, options = place_of(hub.url, tokenFile=str(token))
        assert place.pin(options.selection).labels == {}
        assert "sesame" not in repr(place)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "data directory"),
        ({"hub": "http://h", "path": "/d"}, "not both"),
        ({"path": "/d", "hubKey": "ed25519:00"}, "only for reading from a hub"),
        ({"hub": "http://h", "verify": "full"}, "hubKey"),
        ({"hub": "http://user:word@h"}, "credentials"),
        ({"hub": "http://h", "timeout": "soon"}, "not a count"),
        ({"hub": "http://h", "hubId": "00" * 32}, "hubKey"),
        ({"hub": "http://h", "insecureHttp": "perhaps"}, "true or false"),
    ],
)
def test_options_that_contradict_each_other_are_named(given, words):
    with pytest.raises(OptionError, match=words):
        Options.of(given)


# --- in Spark ---------------------------------------------------------------------------------------------------


def places(rows):
    return sorted((bytes(row.label), row.stream_seq) for row in rows)


@pytest.mark.slow
def test_spark_reads_a_hub_with_any_settings_of_the_session(spark, world):
    hub, _ = world
    user = spark.newSession()  # whose settings are Spark's own
    rows = {}
    for pushed in ("true", "false"):
        user.conf.set("spark.sql.python.filterPushdown.enabled", pushed)
        frame = (
            user.read.format("veen").option("hub", hub.url).option("hubKey", hub.about["hub_pk"])
            .option("verify", "full").option("partitionBytes", 8192).load()
        )  # fmt: skip
        chosen = frame.where("stream_seq between 4 and 9").where("ok")
        rows[pushed] = places(chosen.select("label", "stream_seq").collect())
        assert frame.count() == 61
    assert rows["true"] == rows["false"]
    assert [seq for _, seq in rows["true"]] == [*range(4, 10)] * 2
    narrowed = spark.read.format("veen").option("hub", hub.url).option("partitionBytes", 8192)
    chosen = narrowed.option("pushFilters", "true").load().where("stream_seq between 4 and 9")
    assert places(chosen.select("label", "stream_seq").collect()) == rows["true"]
    assert chosen.rdd.getNumPartitions() < narrowed.load().rdd.getNumPartitions()


@pytest.mark.slow
def test_a_stream_from_a_hub_reads_every_entry_once_across_restarts(spark, tmp_path):
    with hub_with_entries(tmp_path, 8) as hub:
        for total in (8, 20):
            if total == 20:
                write(hub, tmp_path / "home", 12)
            stream = spark.readStream.format("veen").option("hub", hub.url).option("maxEntriesPerTrigger", 5).load()
            query = (
                stream.select("label", "stream_seq").writeStream.format("parquet").trigger(availableNow=True)
                .option("checkpointLocation", str(tmp_path / "state")).start(str(tmp_path / "out"))
            )  # fmt: skip
            query.awaitTermination()
            rows = places(spark.read.parquet(str(tmp_path / "out")).collect())
            assert len(set(rows)) == len(rows) == total


def test_spark_tells_that_a_hub_is_away_and_what_to_do(spark):
    frame = spark.read.format("veen").option("hub", "http://127.0.0.1:9").option("patience", 0)
    with pytest.raises(Exception, match=r"HubUnreachable.*veen hub status"):
        frame.load().count()
