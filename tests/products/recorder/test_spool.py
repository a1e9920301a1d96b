"""The spool: every change is whole or absent after a crash at any write, and no record is there twice."""

import random

import pytest
from tests.client.hubs import person

from veen.client.errors import LocalError
from veen.products.recorder.spool import (
    Flight,
    InFlight,
    Loss,
    Spool,
    SpoolDamaged,
    SpoolFull,
    SpoolItem,
    spool_key,
)
from veen.testing.memfs import Crash, Fault, MemFs

KEY = spool_key(person("web"))
STREAM, OTHER = b"\x01" * 32, b"\x02" * 32


def pending(n, *, stream=STREAM, key=None):
    return SpoolItem(stream, f"record {n}".encode(), "file", str(n), key)


def spool_on(fs, **options):
    return Spool(fs, KEY, **{"max_bytes": 1_000_000, **options})


def waiting(spool):
    """Everything in the spool, in order, taken out stream by stream."""
    data = []
    while (batch := spool.next_batch(10, 1_000_000)) is not None:
        data += [record.data for record in batch[1]]
        spool.mark_sent([record.n for record in batch[1]])
    return data


def test_records_come_out_in_their_order_and_stay_until_they_have_landed():
    with spool_on(MemFs()) as spool:
        spool.append([pending(1), pending(2, stream=OTHER), pending(3)])
        stream, batch = spool.next_batch(10, 1_000_000)
        assert (stream, [record.data for record in batch]) == (STREAM, [b"record 1", b"record 3"])
        spool.mark_sent([record.n for record in batch])
        assert waiting(spool) == [b"record 2"]
        assert spool.size == 0
        assert spool.counts() == {"in": 3, "sent": 3, "lost": 0, "waiting": 0, "in_flight": 0, "refused": 0}
        assert spool.position("file") == "3"


def test_a_record_with_a_known_key_is_not_taken_twice():
    with spool_on(MemFs()) as spool:
        first = spool.append([pending(1, key="a"), pending(2, key="b"), pending(3, key="a")])
        assert first == [1, 2, 1]
        spool.mark_sent([1, 2])
        assert spool.append([pending(4, key="b"), pending(5, key="c")]) == [2, 3]
        assert waiting(spool) == [b"record 5"]


def test_a_full_spool_takes_all_of_a_batch_or_none_and_says_so():
    with spool_on(MemFs(), max_bytes=200) as spool:
        spool.append([pending(1), pending(2)])
        with pytest.raises(SpoolFull):
            spool.append([pending(3), pending(4), pending(5)])
        assert spool.position("file") == "2"
        spool.append([pending(9)], force=True)
        assert waiting(spool) == [b"record 1", b"record 2", b"record 9"]
        spool.append([pending(3), pending(4)])


def test_losses_are_counted_and_reported_once():
    with spool_on(MemFs()) as spool:
        spool.lose("udp", "spool full", 3, 10)
        spool.lose("udp", "spool full", 4, 12)
        reported: list[Loss] = []

        def noted(loss):
            reported.append(loss)
            return pending(1)

        spool.report(noted)
        assert reported == [Loss("udp", "spool full", 7, 10, 12)]
        assert spool.report(lambda loss: pending(2)) == 0
        assert spool.counts()["lost"] == 7


def test_a_refused_record_is_put_aside_and_counts_as_lost():
    with spool_on(MemFs()) as spool:
        spool.append([pending(1), pending(2)])
        spool.fly(Flight(STREAM, 0, (InFlight(1, 1, b"m"),)))
        spool.refuse(1, "E.SIZE", 5)
        assert spool.flight() is None
        assert spool.counts()["refused"] == 1
        assert waiting(spool) == [b"record 2"]


def test_the_file_shows_nothing_without_the_identity(tmp_path):
    from veen.client.home import PrivateFs

    fs = PrivateFs(tmp_path / "spool")
    with spool_on(fs) as spool:
        spool.append([SpoolItem(STREAM, b"the password is swordfish", "file", "1")])
        with pytest.raises(LocalError, match="another agent"):
            spool_on(fs)
    data = b"".join(path.read_bytes() for path in (tmp_path / "spool").iterdir())
    assert b"swordfish" not in data
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "spool").iterdir() if path.name != "lock")
    with Spool(fs, spool_key(person("eve")), max_bytes=1000) as spool, pytest.raises(SpoolDamaged):
        spool.next_batch(1, 1000)


def story(spool, done):
    """What an agent does; `done` gets each step that returned."""
    for n in range(1, 7, 2):
        spool.append([pending(n, key=str(n)), pending(n + 1, key=str(n + 1))])
        done.append(("append", n + 1))
    while (batch := spool.next_batch(2, 1_000_000)) is not None:
        flight = spool.flight()
        if flight is None:
            flight = Flight(STREAM, 0, tuple(InFlight(r.n, r.n, b"msg %d" % r.n) for r in batch[1]))
            spool.fly(flight)
            done.append(("fly", flight.messages[-1].n))
        spool.mark_sent([message.n for message in flight.messages])
        done.append(("landed", flight.messages[-1].n))


@pytest.mark.parametrize("kind", ["lost", "done", "error"])
def test_a_crash_at_every_write_leaves_the_state_before_or_after_it(kind):
    """Whatever returned is there; what did not is whole or absent; going on from the position gives each once."""
    at = 1
    while True:
        fs = MemFs(fault=Fault(at, kind))
        done: list[tuple[str, int]] = []
        crashed = True
        try:
            with spool_on(fs) as spool:
                story(spool, done)
            crashed = False
        except (Crash, OSError, LocalError):
            pass
        after = fs.after_crash(random.Random(at))
        with spool_on(after) as spool:
            position = int(spool.position("file") or 0)
            assert position >= max([n for what, n in done if what == "append"], default=0)
            landed = max([n for what, n in done if what == "landed"], default=0)
            flight = spool.flight()
            if flight is not None:
                assert [message.msg for message in flight.messages] == [b"msg %d" % m.n for m in flight.messages]
            for n in range(position + 1, 7):
                spool.append([pending(n, key=str(n))])
            left = [int(data.split()[1]) for data in waiting(spool)]
            assert left == list(range(7 - len(left), 7))  # no gap, no double, in order
            assert 6 - len(left) >= landed
        if not crashed:
            assert at > 8
            return
        at += 1
