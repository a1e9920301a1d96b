"""A second failover, and an old primary that cannot tell whether it was replaced."""

import asyncio
import shutil
from dataclasses import replace

import pytest
from tests.client.hubs import hub_at, run
from tests.hub.test_http import certificate
from tests.products.federation.replicas import SMALL, caught_up, following, write
from tests.products.federation.test_cutover import control, now, reconfigured, started
from tests.waiting import eventually

from veen.core.crypto.ed25519 import SigningKey
from veen.core.objects.control import ControlRecord, HubPromote
from veen.hub.process import watches as replicas
from veen.hub.process.config import ConfigError, load
from veen.hub.process.watches import ReplacedError
from veen.io.local import OsFs
from veen.products.federation.promotion import LossNotAccepted, PrimaryAlive, promote, replica_state
from veen.storage import journal as wal
from veen.storage.copies.replica import read_mark, write_mark


def named(hub):
    """The address of a hub of this machine, by the name that its certificate has."""
    return hub.url.replace("127.0.0.1", "localhost")


async def promoted(tmp_path):
    """A primary `a`, whose replica `b` took its place."""
    async with hub_at(tmp_path / "a") as a:
        await write(a, tmp_path / "alice", 2)
        async with following(tmp_path / "b", a) as (_, follower):
            await caught_up(follower)
    await asyncio.to_thread(promote, OsFs(tmp_path / "b"), tmp_path / "a", now(), accept_loss=True)


def test_a_second_failover_asks_about_losses_and_writes_its_own_record(tmp_path):
    """A replica of a promoted hub counted as promoted itself, and entries were lost without a word."""

    async def before():
        await promoted(tmp_path)
        async with hub_at(tmp_path / "b") as b, following(tmp_path / "c", b) as (_, follower):
            await caught_up(follower)
            await write(b, tmp_path / "alice", 2, first=3)  # they never reach c

    run(before())
    fs = OsFs(tmp_path / "c")
    assert isinstance(control(tmp_path / "c")[-1].body, HubPromote)
    assert not replica_state(fs).promoted
    with pytest.raises(LossNotAccepted):
        promote(fs, tmp_path / "b", now())
    promote(fs, tmp_path / "b", now(), accept_loss=True)
    records = [record for record in control(tmp_path / "c") if isinstance(record.body, HubPromote)]
    assert len(records) == 2
    assert records[-1].body.upto == 2

    async def after():
        async with hub_at(tmp_path / "c") as c:
            with pytest.raises(ReplacedError):
                await started(tmp_path / "b", replicas=c.url)

    run(after())


def test_a_promotion_is_refused_beside_a_primary_whose_certificate_is_not_trusted(tmp_path):
    """Any error counted as "gone", so --accept-loss succeeded beside a living primary."""
    cert, key = certificate(tmp_path, "localhost")[:2]

    async def scenario():
        async with hub_at(tmp_path / "a", tls__cert=cert, tls__key=key) as a:
            await write(a, tmp_path / "alice", 2)
            async with following(tmp_path / "r", a, source=named(a)) as (_, follower):
                await caught_up(follower)
            await write(a, tmp_path / "alice", 1, first=3)
            fs = OsFs(tmp_path / "r")
            with pytest.raises(PrimaryAlive, match="something answers there"):
                await asyncio.to_thread(promote, fs, tmp_path / "a", now(), accept_loss=True)
            mark = read_mark(fs)
            assert mark is not None
            write_mark(fs, replace(mark, ca_file=str(cert)))  # as `veen replica run --ca-file` keeps it
            with pytest.raises(PrimaryAlive, match="3 entries, 2 are here"):
                await asyncio.to_thread(promote, fs, tmp_path / "a", now(), accept_loss=True)
        await asyncio.to_thread(promote, fs, tmp_path / "a", now(), accept_loss=True)  # now it is gone

    run(scenario())


def test_an_old_primary_that_cannot_ask_says_so_and_is_not_ready_if_that_is_configured(tmp_path, monkeypatch):
    """It was ready and silent."""
    monkeypatch.setattr(replicas, "_EVERY_SECONDS", 0.02)

    async def scenario():
        async with hub_at(tmp_path / "a", replicas="http://127.0.0.1:9") as a:
            assert list(a._replicas.unknown) == ["http://127.0.0.1:9"]
            assert a.gauges()["veen_replicas_unknown"] == 1
            assert a.not_ready() is None
            a.reload(reconfigured(a, replicas_required=True))
            assert "cannot be asked whether it was promoted" in a.not_ready()
            async with hub_at(tmp_path / "other") as other:  # it answers that it was not promoted
                a.reload(reconfigured(a, replicas=(other.url,)))
                await eventually(lambda: a.not_ready() is None)
                assert a.gauges()["veen_replicas_unknown"] == 0
            await eventually(lambda: a.not_ready() is not None)

    run(scenario())


def test_a_replica_behind_a_private_authority_is_heard(tmp_path):
    """Only the certificates of the system were used, and every error counted as "not promoted"."""
    cert, key = certificate(tmp_path, "localhost")[:2]

    async def scenario():
        await promoted(tmp_path)
        async with hub_at(tmp_path / "b", tls__cert=cert, tls__key=key) as b:
            await started(tmp_path / "a", replicas=named(b))  # unknown: it starts, and warns
            with pytest.raises(ReplacedError):
                await started(tmp_path / "a", replicas=named(b), replicas_ca_file=cert)

    run(scenario())


def test_the_watch_of_an_old_primary_follows_its_rotations(tmp_path):
    """It verified records under the identity of its start."""

    async def scenario():
        async with hub_at(tmp_path / "a") as a:
            await write(a, tmp_path / "alice", 1)
            rotation = await a.rotate_key(0)
            new = a.identity.held.private[a.identity.current_pk]
            assert isinstance(new, SigningKey)
            body = HubPromote(source="http://a", upto=1, root=bytes(32), complete=False)
            record = ControlRecord.issue(new, rotation, body, hub_ts=rotation.body.valid_from)
            assert a._replicas._replaces(record)

    run(scenario())


@pytest.mark.parametrize(
    "value", ['["http://replica.example:8080"]', "replica.example", "ftp://replica.example", "http://", "http://a:b"]
)
def test_a_value_of_replicas_that_is_not_an_address_is_refused(tmp_path, value):
    """walk A3."""
    with pytest.raises(ConfigError, match="the address of a hub"):
        load(None, {}, {"data_dir": str(tmp_path), "replicas": value})
    good = load(None, {}, {"data_dir": str(tmp_path), "replicas": "http://a:8080, https://[::1]:8443/hub"})
    assert good.replicas == ("http://a:8080", "https://[::1]:8443/hub")


def test_checkpoints_for_seals_to_come_outlive_a_retirement_between_them_and_their_entries(tmp_path):
    """They were noted with the segment before the batch, and went before recovery could need them."""

    async def scenario():
        async with hub_at(tmp_path / "a", **SMALL) as a:
            await write(a, tmp_path / "alice", 10)
            async with following(tmp_path / "r", a, engine__retire_seconds="0") as (replica, follower):
                sequencer = replica.sequencer
                replicate = sequencer.replicate

                async def retire_first(items):
                    """As if the segment was full: what is written next goes to a new one."""
                    await sequencer.drain()
                    assert sequencer.retire_idle()
                    await sequencer.drain()
                    await sequencer._retired.wait()
                    await replicate(items)

                sequencer.replicate = retire_first
                await caught_up(follower)
                await follower._drop_seals()
                waiting = {path for segment, path in follower._seals}
                assert waiting
                assert all(replica.fs.exists(path) for path in waiting)
                segments = wal.segments(replica.fs)
                assert all(segment in segments for segment, _ in follower._seals)
                shutil.copytree(  # the power fails: the chunks are sealed again from the journal
                    tmp_path / "r", tmp_path / "cut", ignore=shutil.ignore_patterns("local")
                )

    run(scenario())
    assert replica_state(OsFs(tmp_path / "cut")).entries == 10
