"""`veen table` end to end, by the engine of one process."""

import pytest
from tests.cli.homes import Cli
from tests.lake.query_builders import KEYS, STREAMS, Recorder
from tests.lake.table_builders import erase, made

from veen.cli.shared.output import Exit
from veen.lake import tables
from veen.overlays import kv

HERE = ("--engine", "python")


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    path = tmp_path_factory.mktemp("tables") / "hub"
    made(path, 30).done()
    return path


@pytest.fixture
def cli(tmp_path):
    (tmp_path / "keys").write_text("".join(f"{keys.to_text()}\n" for keys in KEYS.values()))
    return Cli(tmp_path / "home")


@pytest.fixture
def keys(tmp_path):
    return ("--key-file", tmp_path / "keys")


def test_tables_are_loaded_shown_compacted_and_cleaned(cli, keys, log, tmp_path):
    to = tmp_path / "tables"
    loaded = cli.json("table", "load", to, "--data-dir", log, *keys, *HERE, "--partitions", 9)
    assert (loaded["version"], loaded["entries"], loaded["commits"]) == (1, 30, 1)
    assert cli.json("table", "load", to, "--data-dir", log, *keys, *HERE)["entries"] == 0
    shown = cli.json("table", "show", to, "--digest")
    silver = next(table for table in shown["tables"] if table["table"] == "silver")
    assert silver["rows"] == 30
    assert silver["digest"] == tables.digest(str(to), "silver")
    assert sum(head["upto_seq"] for head in shown["heads"].values()) == 30
    done = cli.json("table", "compact", to, *HERE)
    assert done["files_before"] > done["files_after"] > 0
    assert cli.json("table", "vacuum", to, "--keep-hours", 0)["replaced"] == done["files_before"]
    after = cli.json("table", "show", to, "--digest")
    assert [table["digest"] for table in after["tables"]] == [table["digest"] for table in shown["tables"]]
    assert cli.json("table", "show", to, "--version", 1)["version"] == 1


def test_facts_are_tabs_in_a_pipe(cli, keys, log, tmp_path):
    to = tmp_path / "tables"
    text = cli.run("table", "load", to, "--data-dir", log, *keys, *HERE).stdout
    assert text.splitlines()[:2] == ["version\t1", "entries\t30"]
    lines = cli.run("table", "show", to).stdout.splitlines()
    assert any(line.startswith("silver\t30\t") for line in lines)
    assert "files before\t" in cli.run("table", "compact", to, *HERE).stdout
    assert "orphans\t0" in cli.run("table", "vacuum", to).stdout


def test_one_stream_can_be_loaded(cli, keys, log, tmp_path):
    to = tmp_path / "tables"
    cli.json("table", "load", to, "--data-dir", log, *keys, *HERE, "--stream", STREAMS[0])
    assert {row["stream"] for row in tables.rows(str(to), "silver")} == {STREAMS[0]}


def test_states_of_folds_are_kept_and_follow_erasure(cli, keys, tmp_path):
    (tmp_path / "hub").mkdir()
    world = Recorder(tmp_path / "hub")
    for number in range(10):
        draft = kv.put(f"key-{number % 4}", number)
        world.now += 1
        world.emit(schema=draft.schema, body=draft.body)
    world.store.retire()
    to = tmp_path / "tables"
    (state,) = cli.json("table", "load", to, "--data-dir", tmp_path / "hub", *keys, *HERE, "--fold", "kv")["states"]
    assert state["changed"]
    assert cli.json("table", "show", to)["states"] == {"kv": state["state_hash"]}
    erase(world)
    world.done()
    erased = cli.json("table", "erase", to, "--data-dir", tmp_path / "hub", *HERE)
    assert erased["rows"] > 0
    assert cli.json("table", "show", to)["states"] != {"kv": state["state_hash"]}
    assert "rows erased\t0" in cli.run("table", "erase", to, "--data-dir", tmp_path / "hub", *HERE).stdout
    left = {row["body"] for row in tables.rows(str(to), "silver")} - {None}
    gone = kv.put("key-0", 0).body
    assert gone not in left
    assert not any(gone in path.read_bytes() for path in to.rglob("*.parquet"))


def test_what_is_not_there_is_said_in_three_parts(cli, keys, log, tmp_path):
    failed = cli.run("table", "show", tmp_path / "nowhere", code=Exit.LOCAL)
    assert "there are no tables" in failed.stderr
    assert "veen table load" in failed.stderr
    to = tmp_path / "tables"
    cli.run("table", "load", to, "--data-dir", log, *keys, *HERE)
    assert "no version 9" in cli.run("table", "show", to, "--version", 9, code=Exit.LOCAL).stderr


@pytest.mark.slow
def test_tables_are_published_as_delta_and_iceberg(cli, keys, log, tmp_path):
    to = tmp_path / "tables"
    loaded = cli.run("table", "load", to, "--data-dir", log, *keys)  # by the engine auto, which says what it took
    assert "engine: one process, 0.0 MiB of log; Spark from 32 MiB on" in loaded.stderr
    done = cli.json("table", "publish", to, "--delta", "--iceberg")["published"]
    assert {(table["format"], table["table"]) for table in done} >= {("delta", "silver"), ("iceberg", "silver")}
    assert all(table["commits"] == table["manifest"] == 1 for table in done)
    (again,) = cli.json("table", "publish", to, "--delta", "--table", "silver")["published"]
    assert (again["commits"], again["location"]) == (0, str(to / "silver"))
    assert "delta\tsilver\t1\t0\t0\t0\t" in cli.run("table", "publish", to, "--delta").stdout
    assert "give --delta" in cli.run("table", "publish", to, code=Exit.USAGE).stderr
    assert "no such table" in cli.run("table", "publish", to, "--delta", "--table", "x", code=Exit.LOCAL).stderr
