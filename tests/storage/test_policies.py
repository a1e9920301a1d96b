"""Policy views and the age of clients: kept through crashes, restarts and the loss of the index (D-51, D-102)."""

import random

import pytest
from tests.storage import driver
from tests.storage.builders import World, copy_of, fill, small
from tests.storage.oracle import assert_clean
from tests.storage.test_rebuild import rows, without_derived

from veen.core.objects.control import PolicyRevocation
from veen.core.objects.msg import Msg
from veen.core.objects.policies import Revocation
from veen.core.objects.receipt import Receipt
from veen.io.errors import CorruptError
from veen.storage import layout
from veen.storage.frame import Frame
from veen.storage.index import Index, WriterRow
from veen.storage.maintenance.rebuild import rebuild_index
from veen.storage.store import Store
from veen.testing.memfs import Crash, Fault, MemFs
from veen.verify.directory import verify_data

JUDGED = 7  # every so many cuts are judged by fsck too
REBUILT = 5  # and so many lose their index


def run(fs, released):
    store = driver.open_store(fs)
    driver.drive(store, released, policies=True)
    memory = driver.remembered(store)
    store.close()
    return memory


REFERENCE = MemFs()
REMEMBERED = run(REFERENCE, [])


def truth(fs):
    return {path: data for path, data in fs.files().items() if not path.startswith("journal/")}


def test_the_script_leaves_something_to_remember():
    view, writers = REMEMBERED
    assert len(view) == 4  # a revocation and an authority in force, one of each to come; one is over
    assert None not in writers.values()


KINDS = ("lost", "torn", "done")
STRIDE = 4  # of each kind one cut in so many is tried by `make test`, and the others by `make test-slow`


@pytest.mark.long
@pytest.mark.req("STOR-21", "STOR-22", "KEX1-07")
@pytest.mark.parametrize(
    ("first", "kind"),
    [
        pytest.param(first, kind, marks=() if first <= len(KINDS) else pytest.mark.slow)
        for first, kind in enumerate(KINDS * STRIDE, start=1)
    ],
)
def test_no_cut_of_the_write_path_changes_what_is_remembered(first, kind):
    """At every operation, in one of three ways: the view and the age of each client are as without the crash, also
    from a rebuilt index."""
    for at in range(first, REFERENCE.operations + 1, len(KINDS) * STRIDE):
        fs, released = MemFs(fault=Fault(at, kind)), list[Frame]()
        with pytest.raises(Crash):
            run(fs, released)
        fs = fs.after_crash(random.Random(at))
        if at % JUDGED == 0:
            assert_clean(fs)
        if at % REBUILT == 0:
            fs = MemFs(fs.files())
            rebuild_index(fs, driver.LIMITS)
        assert run(fs, released) == REMEMBERED, (at, kind)
        assert truth(fs) == truth(REFERENCE), (at, kind)
        store = driver.open_store(fs)
        assert driver.remembered(store) == REMEMBERED, (at, kind)
        driver.check_released(store, released)
        store.close()
        if at % JUDGED == 0:
            assert_clean(fs)


@pytest.mark.req("KEX1-03")
def test_a_client_began_with_its_first_message_on_any_label():
    """D-102"""
    world = World()
    fill(world, 23, retire_every=5)
    first: dict[bytes, int] = {}
    for framed in world.frames:
        client_id = Msg.from_bytes(framed.msg).client_id
        first.setdefault(client_id, Receipt.from_bytes(framed.receipt).hub_ts)
    assert {client: world.store.state.first_ts(client) for client in first} == first
    assert world.store.state.first_ts(b"\xff" * 32) is None
    world.store.close()
    index = Index(world.fs)
    assert sorted(index.writers(), key=lambda row: row.client_id) == [
        WriterRow(client, first[client]) for client in sorted(first)
    ]
    index.close()


@pytest.mark.req("STOR-20")
def test_views_and_ages_are_made_again_with_the_index():
    world = small(14)
    lost = without_derived(world.fs)
    rebuild_index(lost)
    assert rows(lost) == rows(world.fs)
    assert len(rows(lost)["policies"]) == len(driver.POLICIES)


def test_records_that_are_over_are_not_loaded_and_not_lost():
    world = World()
    revocation = Revocation(kind="client-id", target=bytes(32), ts=world.now, ttl=5)
    ended = PolicyRevocation(revocations=(revocation,))
    world.control(ended)
    world.now += 10
    world.send()
    world.store.close()
    store = Store.open(world.fs, world.limits, world.seal)
    assert list(store.state.policies.in_force(0)) == []
    store.close()
    index = Index(world.fs)
    assert [row.body for row in index.policies()] == [ended.to_bytes()]
    assert index.policies(world.now) == []
    index.close()
    assert_clean(world.fs)


def test_an_index_of_another_version_is_made_again():
    """It would lack the age of every client, and nobody would notice."""
    fs = copy_of(small().fs)
    database = fs.database(layout.INDEX)
    database.execute("PRAGMA user_version = 1")
    fs.on_commit(layout.INDEX, database)
    with pytest.raises(CorruptError, match="rebuild-index"):
        Index(fs)
    assert [(finding.path, finding.code) for finding in verify_data(fs).errors] == [(layout.INDEX, "rebuildable")]
    rebuild_index(fs)
    assert verify_data(fs).ok
