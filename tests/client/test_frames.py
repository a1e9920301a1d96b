"""Ranges as Arrow tables and pandas frames: the same entries, typed, whole."""

import sys

import pytest
from tests.client.hubs import all_of, connected, run

from veen.client.errors import ExtraMissing
from veen.client.read import frames
from veen.client.send.sealing import Attach


async def filled(client):
    parent = await client.send("orders", b"one", schema="a.v1", expires_at=2_000_000_000)
    await client.send("orders", b"\xff\x00 two", parent=parent.msg_id, attachments=[Attach(data=b"x", name="x.txt")])
    await client.send("orders", b"three")


def test_a_range_becomes_a_table_with_one_row_for_each_entry(tmp_path, monkeypatch):
    monkeypatch.setattr(frames, "_BATCH", 2)  # so that three entries make two batches

    async def scenario():
        async with connected(tmp_path) as (_, _, client):
            await filled(client)
            table = await client.to_arrow("orders")
            entries = await all_of(client.read("orders"))
            assert table.column_names == [name for name, _ in frames.COLUMNS]
            assert table.to_pylist() == [frames.row_of(entry) for entry in entries]
            assert table["body"].to_pylist() == [b"one", b"\xff\x00 two", b"three"]
            assert table["parent_id"].to_pylist() == [None, entries[0].msg_id, None]
            assert table["attachments"].to_pylist() == [[], ["x.txt"], []]
            assert (await client.to_arrow("orders", from_seq=2, to_seq=2)).num_rows == 1
            sealed = await client.to_arrow("orders", open=False)
            assert sealed["body"].null_count == 3
            assert sealed.schema == table.schema == (await client.to_arrow("orders", since=2**40)).schema

    run(scenario())


def test_a_frame_keeps_whole_numbers_whole(tmp_path):
    async def scenario():
        async with connected(tmp_path) as (_, _, client):
            await filled(client)
            frame = await client.to_pandas("orders")
            assert list(frame["seq"]) == [1, 2, 3]
            assert str(frame["expires_at"].dtype) == "UInt64"
            assert frame["expires_at"][0] == 2_000_000_000
            assert frame["expires_at"].isna().sum() == 2
            assert frame["body"][2] == b"three"
            assert len(await client.to_pandas("orders", from_seq=3)) == 1

    run(scenario())


def test_numbers_of_64_bits_fit(tmp_path):
    async def scenario():
        async with connected(tmp_path) as (_, _, client):
            await client.send("orders", b"far", expires_at=2**64 - 1)
            assert (await client.to_arrow("orders"))["expires_at"].to_pylist() == [2**64 - 1]

    run(scenario())


@pytest.mark.parametrize(("name", "convert"), [("pyarrow", frames.to_arrow), ("pandas", frames.to_pandas)])
def test_without_the_library_the_extra_is_named(monkeypatch, name, convert):
    monkeypatch.setitem(sys.modules, name, None)  # how an import of something absent ends
    with pytest.raises(ExtraMissing, match="requires the extra 'notebook'"):
        convert([])


def test_nothing_is_loaded_before_it_is_asked_for(tmp_path):
    """A client must not cost the time of pandas."""
    import subprocess

    code = "import sys, veen.client.client, veen.client.read.frames; print({'pandas', 'pyarrow'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
