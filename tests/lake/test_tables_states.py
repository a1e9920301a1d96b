"""States of folds as tables with columns: declared by the overlay, equal however the log was cut. No Spark here."""

import json
import random
import sys
from datetime import UTC, datetime
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import examples
from tests.lake.query_builders import KEYS, Recorder
from tests.lake.table_builders import DAY, erase
from tests.overlays import (
    test_anchoring,
    test_discovery,
    test_id_laws,
    test_laws,
    test_operations_laws,
    test_statecheckpoint,
    test_wallet_laws,
)
from tests.overlays.wallet_reference import drafts_of_wallets

from veen.io.stores import open_store
from veen.lake import folds, tables
from veen.lake.log.keys import write_keys
from veen.lake.tables.errors import NoTable, TableDamaged
from veen.lake.tables.manifest import TableLog
from veen.lake.tables.schema import load_declarations, state_columns, state_declarations, state_tables
from veen.lake.tables.sql import run_sql
from veen.overlays import crdt, crud, kv, queue
from veen.overlays.anchoring import AnchorFold
from veen.overlays.discovery.bodies import advertise, retire
from veen.overlays.discovery.directory import DirectoryFold
from veen.overlays.framework import registry
from veen.overlays.framework.fold import Joined
from veen.overlays.framework.registry import BUILTIN, Overlay, Registry
from veen.overlays.framework.schema import SchemaClash
from veen.overlays.framework.typed_table import StateTable, TypedColumn
from veen.overlays.operations.delegation import ReferencesFold
from veen.overlays.operations.state_checkpoint import StateCheckpointFold
from veen.testing.events import FakeLog
from veen.testing.laws import MakeFold, Writer


@pytest.fixture
def keys(tmp_path_factory):
    return write_keys(tmp_path_factory.mktemp("keys"), KEYS.values())


@pytest.fixture
def to(tmp_path):
    return str(tmp_path / "tables")


def load(path, to, keys):
    if isinstance(path, Recorder):
        path.store.retire()
        path = path.path
    return tables.load(str(path), to, keys=keys, engine="python")


def emit(world, *drafts):
    return [world.emit(schema=draft.schema, body=draft.body, expires_at=draft.expires_at) for draft in drafts]


DRAFTS = (
    kv.put("colour", {"name": "red"}),
    kv.put("size", 7, ts=1_700_000_000),
    kv.put("colour", {"name": "blue", "raw": b"\x01"}, expires_at=4_000_000_000),
    crud.create("user", "1", {"a": [1]}),
    crud.create("order", "1", {"a": 2}),
    crud.update("order", "1", {"b": 3}),
    crdt.counter_add(b"\x01" * 32, 5),
    crdt.counter_add(b"\x01" * 32, 6),
    queue.enqueue({"job": 1}),
)


# --- declarations ----------------------------------------------------------------------------------------------------


def test_every_fold_of_a_built_in_overlay_declares_the_columns_of_its_state():
    assert {table.fold for table in BUILTIN.states.values()} == set(BUILTIN.folds)


def _write_discovery(draw, _log):
    advert = draw(test_discovery.adverts)
    if draw(st.integers(0, 3)) == 0:
        return retire(test_discovery.KIND[type(advert)], advert.id)
    return advertise(advert)


def _write_anchor(draw, _log):
    return test_anchoring.statement(draw(st.sampled_from([b"a", b"b"])), draw(st.integers(1, 3)))


def _write_checkpoint(draw, _log):
    ids = st.sampled_from(test_statecheckpoint.IDS)
    return test_statecheckpoint.stated(state_id=draw(ids), state_hash=draw(ids))


HISTORIES: dict[str, tuple[MakeFold, Writer]] = {
    **test_laws.OVERLAYS,
    **test_operations_laws.OVERLAYS,
    "id": (test_id_laws.merged_fold, test_id_laws.write),
    "wallet": (test_wallet_laws.wallets_anywhere, lambda draw, log: draw(drafts_of_wallets())),
    "discovery": (lambda: DirectoryFold(any_stream=True), _write_discovery),
    "anchor": (AnchorFold, _write_anchor),
    "state checkpoint": (StateCheckpointFold, _write_checkpoint),
}
del HISTORIES["references"]  # no fold of an overlay: readers use it to find tokens


@pytest.mark.parametrize("name", HISTORIES)
@examples(25)
@given(data=st.data())
def test_the_rows_of_a_state_are_equal_however_its_log_was_cut_and_values_fit(name, data):
    make, write = HISTORIES[name]
    log = FakeLog()
    for _ in range(data.draw(st.integers(0, 12))):
        stream, client = data.draw(st.sampled_from(["north", "south"])), data.draw(st.sampled_from(["alice", "bob"]))
        log.append(write(data.draw, log), stream=stream, client=client, ts=log.now + data.draw(st.integers(0, 2)))
    events, fold = log.all(), make()
    whole = fold.summarize(events)
    cut = data.draw(st.integers(0, len(events)))
    halves = fold.combine([fold.summarize(events[cut:]), fold.summarize(events[:cut])])
    expected = state_tables("f", fold, fold.view(whole), bytes(32))
    assert expected
    assert state_tables("f", fold, fold.view(halves), bytes(32)) == expected
    for table, rows in expected.items():
        unfit = "".join(filter(None, rows.column("unfit").to_pylist()))
        assert not unfit or "no whole number of 64 bits" in unfit, (table, unfit)  # a sum may be any number
        key = state_declarations()[table].key
        assert len({tuple(row[column] for column in key) for row in rows.to_pylist()}) == rows.num_rows


def test_a_declaration_that_cannot_be_is_refused_where_it_is_made():
    columns = (TypedColumn("key", "text", ""),)
    arguments: dict[str, Any] = {"fold": "kv", "about": "", "columns": columns, "key": (), "rows": list}
    for wrong in ({"columns": (TypedColumn("fold", "text", ""),)}, {"key": ("other",)}, {"columns": columns * 2}):
        with pytest.raises(ValueError, match="state_kv"):
            StateTable(**{**arguments, **wrong})
    table = StateTable(fold="kv", about="", columns=columns, key=(), rows=list)
    with pytest.raises(ValueError, match="does not have"):
        Overlay(name="x", about="", schemas=(), folds={}, states=(table,))
    overlay = Overlay(name="x", about="", schemas=(), folds={"kv": kv.KvFold}, states=(table, table))
    with pytest.raises(SchemaClash):
        Registry([overlay])
    assert not hasattr(ReferencesFold, "states")


# --- tables ----------------------------------------------------------------------------------------------------------


def test_states_are_columns_for_sql_duckdb_and_polars(tmp_path, keys, to):
    world = Recorder(tmp_path)
    receipts = emit(world, *DRAFTS)
    load(world.done(), to, keys)
    for fold in ("kv", "crud", "queue", "crdt", "wallet"):
        tables.refresh(to, fold)
    rows = {row["key"]: row for row in tables.rows(to, "state_kv")}
    assert list(rows) == ["colour", "size"]
    assert json.loads(rows["colour"]["value"]) == {"name": "blue", "raw": "01"}
    assert rows["colour"]["expires_at"] == datetime.fromtimestamp(4_000_000_000, UTC)
    assert rows["colour"]["msg_id"] == receipts[2].leaf_hash.hex()
    assert (rows["size"]["value"], rows["size"]["ts"], rows["size"]["expires_at"]) == ("7", 1_700_000_000, None)
    (bound,) = {row["state_hash"] for row in tables.rows(to, "gold") if row["fold"] == "kv"}
    assert {row["state_hash"] for row in rows.values()} == {bound}

    connection = duckdb.connect(config={"autoinstall_known_extensions": False})
    assert {"state_kv", "state_crud", "state_crdt_gcnt", "state_wallet_ledger"} <= set(
        tables.register_duckdb(connection, to)
    )
    query = "SELECT entity, id, rev, fields ->> '$.b' FROM state_crud ORDER BY entity"
    assert connection.execute(query).fetchall() == [("order", "1", 2, "3"), ("user", "1", 1, None)]
    assert tables.to_polars(to, "state_crdt_gcnt").select("shard", "count").rows() == [("01" * 32, 11)]
    assert tables.to_arrow(to, "state_wallet_ledger").num_rows == 0  # complete, and empty
    sql = run_sql(to, "SELECT s.count, k.value FROM state_crdt_gcnt s, state_kv k WHERE k.key = 'size'")
    assert [json.loads(row) for row in sql.rows] == [{"count": 11, "value": "7"}]
    with pytest.raises(NoTable, match="--fold rpc"):
        tables.to_arrow(to, "state_rpc_calls")


def test_the_bytes_of_the_files_are_the_same_from_the_log_from_silver_and_in_steps(tmp_path, keys):
    path = tmp_path / "hub"
    path.mkdir()
    world, rng = Recorder(path), random.Random(5)
    stepped = str(tmp_path / "stepped")
    for _ in range(4):
        emit(world, *(rng.choice(DRAFTS) for _ in range(9)))
        load(world, stepped, keys)
        for fold in ("kv", "crdt+crud"):
            tables.refresh(stepped, fold, path=str(path), keys=keys)
    world.done()
    at_once = str(tmp_path / "once")
    load(path, at_once, keys)
    for fold in ("kv", "crdt+crud"):
        tables.refresh(at_once, fold)

    def files(to):
        state = TableLog(to).state()
        names = [name for name in state.files if name.startswith("state_")]
        return {(name, file.group): file.sha256 for name in names for file in state.of(name)}

    assert files(stepped) == files(at_once)
    assert ("state_crud", "crdt+crud") in files(at_once)


def test_a_value_that_does_not_fit_is_kept_with_the_reason(tmp_path, keys, to):
    world = Recorder(tmp_path)
    emit(world, kv.put("big", 1, ts=(1 << 64) - 1), kv.put("late", 2, expires_at=1 << 62), kv.put("plain", 3))
    load(world.done(), to, keys)
    tables.refresh(to, "kv")
    rows = {row["key"]: row for row in tables.rows(to, "state_kv")}
    assert (rows["big"]["ts"], rows["big"]["value"]) == (None, "1")
    assert json.loads(rows["big"]["unfit"]) == {
        "ts": {"value": (1 << 64) - 1, "why": "ValueError: no whole number of 64 bits"}
    }
    assert rows["late"]["expires_at"] is None
    assert json.loads(rows["late"]["unfit"])["expires_at"]["value"] == 1 << 62
    assert rows["plain"]["unfit"] is None


def test_the_view_of_a_nested_join_gives_the_tables_of_all_its_parts():
    fold = Joined([Joined([kv.KvFold(), crud.CrudFold()]), queue.QueueFold()])
    log = FakeLog()
    log.append(kv.put("a", 1))
    contents = state_tables("x", fold, fold.view(fold.summarize(log.all())), bytes(32))
    assert sorted(contents) == ["state_crud", "state_kv", "state_queue_deliveries", "state_queue_items"]
    assert contents["state_kv"].column("key").to_pylist() == ["a"]


def test_a_result_of_a_fold_gives_its_tables_without_a_place_for_them():
    log = FakeLog()
    log.append(kv.put("a", 1))
    result = folds.run(log.all(), "kv", engine="python")
    (content,) = tables.tables_of(result).values()
    assert content.column("key").to_pylist() == ["a"]
    assert content.column("state_hash").to_pylist() == [result.state_hash]


def test_an_erased_value_leaves_the_tables_of_the_state(tmp_path, keys, to):
    path = tmp_path / "hub"
    path.mkdir()
    world = Recorder(path)
    for number in range(12):
        emit(world, kv.put(f"key-{number}", "word-of-the-day"))
        world.now += DAY if number == 5 else 0
    load(world, to, keys)
    tables.refresh(to, "kv")
    assert tables.to_arrow(to, "state_kv").num_rows == 12
    erase(world, after=10 * DAY)
    world.done()
    tables.erase(str(path), to)
    erased = sum(row["reason"] == "erased" for row in tables.rows(to, "silver"))
    assert 0 < erased == 12 - tables.to_arrow(to, "state_kv").num_rows
    files = [file.path for file in TableLog(to).state().of("state_kv")]
    assert files == [name for name, *_ in open_store(to).walk("state_kv")]


# --- an overlay of somebody else -------------------------------------------------------------------------------------


class TallyFold(kv.KvFold):
    """Somebody's own fold of kv."""

    name = "tally"


def tally(**more):
    columns = (TypedColumn("key", "text", "which"), TypedColumn("size", "integer", "of the value"))
    rows = lambda view: ({"key": key, "size": len(str(entry.value.value))} for key, entry in view.items())  # noqa: E731
    return StateTable(**{"fold": "tally", "about": "sizes", "columns": columns, "key": ("key",), "rows": rows, **more})


@pytest.fixture
def with_tally(monkeypatch):
    """A package with a fold and the table of its state is installed, with the declaration that is given."""

    def install(*states):
        module = ModuleType("veen_test_tally")
        module.OVERLAY = Overlay(  # type: ignore[attr-defined]
            name="tallies", about="sizes", schemas=(), folds={"tally": TallyFold}, states=states
        )
        monkeypatch.setitem(sys.modules, "veen_test_tally", module)
        points = [EntryPoint("tallies", "veen_test_tally:OVERLAY", "veen.overlays")]
        monkeypatch.setattr(registry, "entry_points", lambda group: points)
        load_declarations.cache_clear()
        state_declarations.cache_clear()

    yield install
    monkeypatch.undo()
    load_declarations.cache_clear()
    state_declarations.cache_clear()


def test_another_overlay_declares_the_table_of_its_state_and_may_change_it(tmp_path, keys, to, with_tally):
    world = Recorder(tmp_path)
    emit(world, kv.put("a", "four"), kv.put("b", "seventy"))
    load(world.done(), to, keys)
    with_tally()
    first = tables.refresh(to, "tally")
    with_tally(tally())
    with pytest.raises(NoTable, match="--fold tally"):
        tables.to_arrow(to, "state_tally")
    second = tables.refresh(to, "tally")  # from silver, without keys
    assert (second.changed, second.state_hash) == (True, first.state_hash)
    assert tables.to_arrow(to, "state_tally").select(["key", "size"]).to_pylist() == [
        {"key": "a", "size": 4},
        {"key": "b", "size": 7},
    ]
    assert not tables.refresh(to, "tally").changed
    text = (TypedColumn("key", "text", "which"), TypedColumn("size", "text", "of the value"))
    with_tally(tally(columns=text))
    with pytest.raises(NoTable, match="not complete"):
        tables.to_arrow(to, "state_tally")
    tables.refresh(to, "tally")
    rows = tables.to_arrow(to, "state_tally").to_pylist()
    assert [row["size"] for row in rows] == [None, None]
    assert json.loads(rows[0]["unfit"]) == {"size": {"value": 4, "why": "TypeError: no text"}}
    with_tally()
    tables.refresh(to, "tally")
    assert not TableLog(to).state().of("state_tally")  # nobody declares it any more
    tables.vacuum(to, keep_sec=0)
    assert not list(open_store(to).walk("state_tally"))


def test_a_declaration_that_fails_stops_nobody_else(tmp_path, keys, to, with_tally):
    world = Recorder(tmp_path)
    emit(world, kv.put("a", "four"))
    load(world.done(), to, keys)
    with_tally(tally(rows=lambda view: [{"key": view["none"]}]))
    tables.refresh(to, "tally+kv")
    (row,) = tables.rows(to, "state_tally")
    assert (row["key"], json.loads(row["unfit"])) == (None, {"": "KeyError: 'none'"})
    assert [row["key"] for row in tables.rows(to, "state_kv")] == ["a"]


def test_a_file_of_a_state_that_was_changed_is_refused(tmp_path, keys, to):
    world = Recorder(tmp_path)
    emit(world, kv.put("a", 1))
    load(world.done(), to, keys)
    tables.refresh(to, "kv")
    (file,) = TableLog(to).state().of("state_kv")
    data = bytearray((tmp_path / "tables" / file.path).read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "tables" / file.path).write_bytes(bytes(data))
    with pytest.raises(TableDamaged):
        list(tables.rows(to, "state_kv"))


def test_the_columns_of_a_state_have_the_names_that_every_table_has():
    for table in BUILTIN.states.values():
        names = [column.name for column in state_columns(table)]
        assert (names[:2], names[-1]) == (["fold", "state_hash"], "unfit")
        assert len(set(names)) == len(names)
