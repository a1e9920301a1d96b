"""Commands that find what earlier releases damaged: erased receipts, erased chunks that came back, two rotations."""

from tests.cli.hubprocess import report
from tests.hub.test_rotation import Machine
from tests.hub.test_rotation_repair import FIRST, SECOND, damaged
from tests.storage.builders import World, fill

from veen.cli.shared.output import Exit
from veen.io.local import OsFs
from veen.storage.index import Index
from veen.storage.maintenance.retention import Periods, RetentionPolicy, apply, plan

FAR = 10_000


class DiskFs(OsFs):
    """A directory for `Machine`, which may be told to fail."""

    fault = None


def erase(world, periods, *, after):
    world.store.retire()
    world.now += after
    index = Index(world.fs)
    steps = apply(
        world.fs, plan(index, RetentionPolicy(periods), world.now), world.control, dropped=world.store.drop_level
    )
    index.close()
    return steps


def check(path, *options, code=0):
    return report("hub", "retention", "check", "--data-dir", path, "--accept-clock", *options, code=code)


def test_receipts_that_were_erased_although_the_policy_keeps_them_are_named(tmp_path):
    """They cannot be restored, so the command says which they are."""
    world = World(OsFs(tmp_path / "hub"))
    fill(world, 12)
    steps = erase(world, Periods(payload_sec=1), after=FAR)
    assert not check_at(world, tmp_path, "--receipts", "0")["erased_receipts"]
    world = World(OsFs(tmp_path / "hub"))
    for step in steps:  # as the second look of an earlier release did
        world.control(step.record(step.chunk.dropped))
    damage = check_at(world, tmp_path, "--receipts", "0", code=Exit.POLICY)
    assert (damage["ok"], damage["verdict"]["value"]) == (False, "incomplete")
    assert [(row["label"], row["start_seq"], row["early"]) for row in damage["erased_receipts"]] == [
        (step.label.hex(), step.chunk.start_seq, True) for step in steps
    ]
    assert {reason["because"] for reason in damage["verdict"]["reasons"]} == {"policy"}
    assert check(tmp_path / "hub", code=Exit.POLICY)["erased_receipts"] == damage["erased_receipts"]  # suspicious
    lawful = check(tmp_path / "hub", "--receipts", "1h")  # a policy that lets them go after an hour
    assert [row["early"] for row in lawful["erased_receipts"]] == [False] * len(steps)


def check_at(world, tmp_path, *options, code=0):
    world.store.close()
    return check(tmp_path / "hub", *options, code=code)


def test_an_erased_chunk_that_came_back_is_named_and_removed(tmp_path):
    world = World(OsFs(tmp_path / "hub"))
    fill(world, 12)
    world.store.retire()
    log = tmp_path / "hub" / "log"
    chunk = sorted(log.glob("chunk-*.log"))[0]
    payloads = chunk.read_bytes()
    erase(world, Periods(payload_sec=1), after=FAR)
    world.store.close()
    assert not chunk.exists()
    chunk.write_bytes(payloads)
    assert check(tmp_path / "hub", code=Exit.POLICY)["leftovers"] == [f"log/{chunk.name}"]
    assert check(tmp_path / "hub", "--remove-leftovers")["leftovers_removed"]
    assert not chunk.exists()
    assert check(tmp_path / "hub")["leftovers"] == []


def test_two_rotations_at_once_are_reported_and_repaired(tmp_path):
    machine = Machine(DiskFs(tmp_path / "hub"))
    damaged(machine)
    command = ("hub", "key", "repair", "--data-dir", tmp_path / "hub")
    (conflict,) = report(*command, "--dry-run")["conflicts"]
    assert [(key["hub_pk"], key["chosen"]) for key in conflict["keys"]] == [
        (f"ed25519:{FIRST.public.hex()}", True),
        (f"ed25519:{SECOND.public.hex()}", False),
    ]
    assert report(*command)["repaired"]
    again = report(*command)
    assert (again["conflicts"], again["repaired"]) == ([], False)
    assert report("hub", "key", "verify-rotation", "--data-dir", tmp_path / "hub")["ok"]


def test_keys_that_both_signed_entries_cannot_be_repaired(tmp_path):
    machine = Machine(DiskFs(tmp_path / "hub"))
    damaged(machine, signs=(FIRST, SECOND))
    error = report("hub", "key", "repair", "--data-dir", tmp_path / "hub", code=Exit.LOCAL)
    assert error["code"] == "E.STORAGE.ROTATIONS"
