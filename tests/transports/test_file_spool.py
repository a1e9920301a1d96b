"""The spool against whoever may write to it: bounds, modes, leftovers of processes that were killed."""

import asyncio
import contextlib
import os
import stat
import time

import pytest
from tests.client.hubs import run
from tests.transports.builders import hub_by, message_for, transport_by
from tests.waiting import eventually

from veen.client.errors import BadAnswer, LocalError, TimedOut, Unreachable
from veen.client.transport.framed import FileTransport
from veen.core.call_frames import RequestFrame, ResponseFrame
from veen.core.objects.envelopes import SUBMIT_PREFIX, ErrorEnvelope
from veen.core.objects.tooling import RotateKeyRequest
from veen.hub.api.access import Role
from veen.hub.api.reply import Reply
from veen.hub.process.config import ConfigError
from veen.hub.process.supervisor import Supervisor
from veen.hub.transports.file_spool import FileSpool
from veen.io.spool_files import NotPlainFile, TooLargeFile, put_file, read_plain


def name_at(seconds, number=0):
    return f"{int(seconds * 1000):013d}-{number:032x}"


def bytes_in(folder):
    total = 0
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            total += path.stat().st_size
    return total


async def response(spool, name):
    path = spool / "out" / f"{name}.res"
    await eventually(path.exists)
    return ResponseFrame.from_bytes(path.read_bytes())


@pytest.mark.req("DR0-04")
def test_a_request_is_a_file_and_its_response_another(tmp_path):
    """001 spec-1 §0: the transport is abstract. Any program that writes files calls a hub."""

    async def check():
        async with hub_by("file", None, tmp_path / "hub") as hub:
            spool, name = tmp_path / "hub-spool", name_at(time.time())
            body = SUBMIT_PREFIX + message_for(hub).to_bytes()
            put_file(spool / "in" / f"{name}.req", RequestFrame("v1/submit", body).to_bytes(), 0o600)
            answer = await response(spool, name)
            assert answer.status == 200
            await eventually(lambda: not list((spool / "taken").iterdir()))
            assert not list((spool / "in").iterdir())

    run(check())


def test_a_defect_in_the_loop_of_the_spool_is_logged_counted_and_the_spool_goes_on(tmp_path, monkeypatch):
    """It is under the one supervisor of everything beside the log: an error that nobody expected ended it silently."""
    monkeypatch.setattr(Supervisor.__init__, "__kwdefaults__", {"first_pause": 0.01, "longest_pause": 0.02})

    async def check():
        async with hub_by("file", None, tmp_path / "hub") as hub:
            take, failures = FileSpool._take, iter([ValueError("a defect")] * 2)

            def failing(spool, limit):
                for failure in failures:
                    raise failure
                return take(spool, limit)

            monkeypatch.setattr(FileSpool, "_take", failing)
            spool, name = tmp_path / "hub-spool", name_at(time.time())
            put_file(spool / "in" / f"{name}.req", RequestFrame("version").to_bytes(), 0o600)
            assert (await response(spool, name)).status == 200
            text = hub.metrics_text().decode()
            assert 'veen_background_restarts_total{task="spool"} 2' in text
            assert 'veen_background_running{task="spool"} 1' in text

    run(check())


def test_the_directory_and_its_files_are_private(tmp_path):
    async def check():
        async with hub_by("file", None, tmp_path / "hub") as hub, transport_by("file", None, hub) as transport:
            spool, name = tmp_path / "hub-spool", name_at(time.time())
            put_file(spool / "in" / f"{name}.req", RequestFrame("version").to_bytes(), 0o600)
            await response(spool, name)
            for path in (spool, *spool.rglob("*")):
                assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
            assert (await transport.call("version")).status == 200
            assert [path.name for path in (spool / "out").iterdir()] == [f"{name}.res"]  # ours was removed

    run(check())


def test_a_directory_of_a_group_is_for_the_group_and_one_for_all_is_refused(tmp_path):
    async def check():
        spool = tmp_path / "shared"
        spool.mkdir()
        spool.chmod(0o770)
        name = name_at(time.time())
        async with hub_by("file", None, tmp_path / "hub", spool__directory=spool):
            put_file(spool / "in" / f"{name}.req", RequestFrame("version").to_bytes(), 0o660)
            await response(spool, name)
            assert stat.S_IMODE((spool / "out" / f"{name}.res").stat().st_mode) == 0o660
            assert stat.S_IMODE((spool / "in").stat().st_mode) == 0o770
        spool.chmod(0o777)
        with pytest.raises(ConfigError, match="0777"):
            async with hub_by("file", None, tmp_path / "hub", spool__directory=spool):
                pass

    run(check())


def test_what_is_no_request_is_answered_where_that_is_possible_and_lies_in_rejected(tmp_path):
    async def check():
        async with hub_by("file", None, tmp_path / "hub", spool__max_age="1h") as hub:
            spool, now = tmp_path / "hub-spool", time.time()
            late, garbage, large, link, pipe = (name_at(now, number) for number in range(5))
            late = name_at(now - 7200)
            (spool / "in" / f"{late}.req").write_bytes(RequestFrame("version").to_bytes())
            (spool / "in" / f"{garbage}.req").write_bytes(b"no frame")
            with (spool / "in" / f"{large}.req").open("wb") as file:
                file.truncate(1 << 40)  # a hole: nothing of it may be read
            (tmp_path / "secret").write_bytes(RequestFrame("version").to_bytes())
            (spool / "in" / f"{link}.req").symlink_to(tmp_path / "secret")
            os.mkfifo(spool / "in" / f"{pipe}.req")
            (spool / "in" / "README").write_text("hello")
            (spool / "in" / "a directory").mkdir()
            expected = {late: 408, garbage: 400, large: 413, link: 400, pipe: 400}
            for name, status in expected.items():
                answer = await response(spool, name)
                assert answer.status == status
                assert ErrorEnvelope.from_bytes(answer.body).code in ("E.BAD_REQUEST", "E.LIMIT")
            await eventually(lambda: not list((spool / "taken").iterdir()))
            assert {path.name for path in (spool / "rejected").iterdir()} == {
                "README",
                *(f"{name}.req" for name in expected),
            }
            assert (spool / "in" / "a directory").is_dir()
            async with transport_by("file", None, hub) as transport:
                assert (await transport.call("healthz")).status == 200

    run(check())


def test_responses_that_nobody_reads_and_rejected_files_are_bounded(tmp_path):
    async def check():
        async with hub_by("file", None, tmp_path / "hub", spool__max_bytes="8KiB") as hub:
            spool, now = tmp_path / "hub-spool", time.time()
            names = [name_at(now, number) for number in range(200)]
            for name in names:
                put_file(spool / "in" / f"{name}.req", RequestFrame("tooling/identity").to_bytes(), 0o600)
            for number in range(200):
                (spool / "in" / f"junk-{number}").write_bytes(b"x")
            await eventually(lambda: not list((spool / "in").iterdir()) and not list((spool / "taken").iterdir()))
            await eventually(lambda: bytes_in(spool / "out") <= 8 << 10)
            async with transport_by("file", None, hub) as transport:
                assert (await transport.call("healthz")).status == 200
        async with hub_by("file", None, tmp_path / "hub", spool__max_bytes="8KiB"):  # tidies when it starts
            assert len(list((spool / "rejected").iterdir())) <= 100

    run(check())


def test_no_more_large_requests_are_taken_at_a_time_than_memory_is_meant_for(tmp_path, monkeypatch):
    monkeypatch.setattr("veen.hub.transports.file_spool._MAX_BODY_BYTES", 1 << 20)

    async def check():
        async with hub_by("file", None, tmp_path / "hub") as hub:
            spool, now = tmp_path / "hub-spool", time.time()
            server, release, most = hub._transports._listening[0], asyncio.Event(), 0

            async def slow(call):
                nonlocal most
                most = max(most, server._body_bytes)
                await release.wait()
                return Reply(200, b"")

            hub.api.add({"submit_batch": (Role.ANY, slow)})
            names = [name_at(now, number) for number in range(20)]
            for name in names:
                frame = RequestFrame("tooling/submit_batch", bytes(300_000)).to_bytes()
                put_file(spool / "in" / f"{name}.req", frame, 0o600)
            await eventually(lambda: most >= 1 << 20)
            assert len(list((spool / "in").iterdir())) >= 10
            release.set()
            for name in names:
                assert (await response(spool, name)).status == 200
            assert most < 3 << 20
            await eventually(lambda: server._body_bytes == 0)

    run(check())


def test_a_request_that_a_killed_hub_had_taken_is_answered_by_the_next_one(tmp_path):
    """The same bytes mean the same again; the one operation of which that is not true is not carried out twice."""

    async def check():
        async with hub_by("file", None, tmp_path / "hub") as hub:
            body = SUBMIT_PREFIX + message_for(hub).to_bytes()
            keys = len(hub.identity.keys)
        spool, now = tmp_path / "hub-spool", time.time()
        sent, rotated = name_at(now, 1), name_at(now, 2)
        (spool / "taken" / f"{sent}.req").write_bytes(RequestFrame("v1/submit", body).to_bytes())
        rotation = RotateKeyRequest(overlap_sec=60).to_bytes()
        (spool / "taken" / f"{rotated}.req").write_bytes(RequestFrame("tooling/rotate_key", rotation).to_bytes())
        async with hub_by("file", None, tmp_path / "hub") as hub:
            assert (await response(spool, sent)).status == 200
            assert (await response(spool, rotated)).status == 503
            assert len(hub.identity.keys) == keys

    run(check())


def test_without_a_hub_the_client_takes_its_request_back_and_says_so(tmp_path):
    async def check():
        async with hub_by("file", None, tmp_path / "hub") as hub:
            url = hub.transport_urls[0]
        transport = FileTransport(url, timeout=0.2)
        with pytest.raises(Unreachable, match="no hub took"):
            await transport.call("version")
        assert not list((tmp_path / "hub-spool" / "in").iterdir())
        waiting = asyncio.create_task(transport.call("version", timeout=60))
        await eventually(lambda: list((tmp_path / "hub-spool" / "in").glob("*.req")))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not list((tmp_path / "hub-spool" / "in").iterdir())
        with pytest.raises(Unreachable):
            await FileTransport((tmp_path / "nowhere").as_uri()).call("version")

    run(check())


def test_a_client_reads_nothing_but_a_frame_in_a_plain_file_within_bounds(tmp_path):
    async def check():
        spool = tmp_path / "spool"
        for folder in ("in", "out"):
            (spool / folder).mkdir(parents=True)
        transport = FileTransport(spool.as_uri(), timeout=30.0, max_answer_bytes=1000)

        async def answered_with(put):
            calling = asyncio.create_task(transport.call("version"))
            await eventually(lambda: list((spool / "in").glob("*.req")))
            (request,) = (spool / "in").glob("*.req")
            put(spool / "out" / f"{request.stem}.res")
            request.unlink()
            return await calling

        assert (await answered_with(lambda path: put_file(path, ResponseFrame(200, b"x").to_bytes(), 0o600))).ok
        for put in (
            lambda path: put_file(path, b"garbage", 0o600),
            lambda path: put_file(path, bytes(1 << 20), 0o600),
            lambda path: path.symlink_to("/etc/hostname"),
        ):
            with pytest.raises(BadAnswer):
                await answered_with(put)

    run(check())


def test_a_file_is_put_whole_over_the_leftover_of_a_writer_that_was_killed(tmp_path):
    (tmp_path / ".a.req.part").write_bytes(b"half")
    put_file(tmp_path / "a.req", b"whole", 0o600)
    assert (tmp_path / "a.req").read_bytes() == b"whole"
    assert [path.name for path in tmp_path.iterdir()] == ["a.req"]
    with pytest.raises(TooLargeFile):
        read_plain(tmp_path / "a.req", 4)
    with pytest.raises(NotPlainFile):
        read_plain(tmp_path, 4)


@pytest.mark.parametrize(
    "url", ["file://host/spool", "file:///", "file:spool", "file:///a?b=1", "file:///a#b", "file:///%00"]
)
def test_an_address_that_names_no_directory_is_refused(url):
    with pytest.raises(LocalError):
        FileTransport(url)


def test_a_call_that_was_taken_and_not_answered_is_of_unknown_outcome(tmp_path):
    async def check():
        spool = tmp_path / "spool"
        for folder in ("in", "out"):
            (spool / folder).mkdir(parents=True)
        calling = asyncio.create_task(FileTransport(spool.as_uri(), timeout=3.0).call("version"))
        await eventually(lambda: list((spool / "in").glob("*.req")))
        next((spool / "in").glob("*.req")).unlink()  # a hub took it, and died
        with pytest.raises(TimedOut):
            await calling

    run(check())
