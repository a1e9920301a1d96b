"""`veen selftest federated`: two hubs with each other's logs, tested end to end (FED1, D-78, D-149).

All checks use new streams, by people of this run. Checks that would copy a whole hub, or change the primary of a log,
use only hubs of the run.
"""

import time
from typing import Final

from veen.client.client import Client
from veen.client.errors import Divergence, ForeignKey, HubRefused
from veen.client.identity.keyring import StreamKeys
from veen.client.send.sealing import Draft
from veen.client.session import HubSession
from veen.client.transport.calls import NO_RETRY, Calls
from veen.client.transport.http import HttpTransport
from veen.core.errors import VeenError, VerifyError
from veen.core.labels import schema_id
from veen.core.objects.evidence import Equivocation
from veen.hub.process.config import load
from veen.hub.process.replica import ReplicaHub
from veen.io.local import OsFs
from veen.overlays import kv
from veen.overlays.framework.link import send
from veen.overlays.framework.state import state_hash
from veen.products.federation.mirroring import attest_stream, check_mirror, copy_stream
from veen.products.federation.replica import ReplicaFollower, open_replica
from veen.products.selftest.suite import NotChecked, Suite, World, expect, fold_over
from veen.verify.directory import verify_data

_NOTE: Final = schema_id("veen.selftest.note.v1")
_ENTRIES: Final = 5
_STEPS: Final = 100


def _now() -> int:
    return int(time.time())


async def _two_hubs(world: World) -> None:
    hub, peer = await world.hub(0), await world.hub(1)
    keys = world.keys("two")
    first, second = await world.client("ann", keys), await world.client("ben", keys, hub=1)
    expect(first.hub_id != second.hub_id, f"{hub.url} and {peer.url} are one hub, or have one identity")
    expect(
        first.label(keys.stream_id) != second.label(keys.stream_id),
        "one stream has the same label at both hubs: an entry of one could pass for an entry of the other",
    )
    for at, pin in ((hub, peer.pin), (peer, hub.pin)):
        transport = at.transport(at.token_file)
        try:
            session = HubSession(Calls(transport, NO_RETRY), pin)
            try:
                await session.open()
            except ForeignKey:
                continue
            expect(False, f"{at.url} answers for the identity of the other hub")
        finally:
            await transport.aclose()


async def _pair(world: World, source: int) -> tuple[Client, Client, StreamKeys, StreamKeys]:
    """Return a client at each hub, a stream at each, and some entries in that of the source."""
    origin, target = world.keys(f"origin-{source}"), world.keys(f"target-{source}")
    writer = await world.client("ann", origin, hub=source)
    for number in range(_ENTRIES):
        await writer.send_many(origin, [Draft(body=b"note %d" % number, schema=_NOTE)])
    mirror = world.person(f"mirror-of-{source}")
    reader = await world.client(mirror, origin, target, hub=source)
    return reader, await world.client(mirror, origin, target, hub=1 - source), origin, target


async def _attest(world: World) -> None:
    for source in (0, 1):
        reader, writer, origin, target = await _pair(world, source)
        report = await attest_stream(reader, writer, origin.stream_id, target.stream_id, now=_now)
        expect(report.sent == _ENTRIES and not report.gaps, f"of {_ENTRIES} entries {report.sent} were attested")
        again = await attest_stream(reader, writer, origin.stream_id, target.stream_id, now=_now)
        expect(again.sent == 0, f"a second run attests {again.sent} entries again")
        checked = await check_mirror(reader, writer, origin.stream_id, target.stream_id)
        expect(checked.compared == _ENTRIES and not checked.missing, f"the records do not cover the source: {checked}")


async def _copy(world: World) -> None:
    reader, writer, origin, target = await _pair(world, 0)
    report = await copy_stream(reader, writer, origin.stream_id, target.stream_id, now=_now)
    expect(report.sent == _ENTRIES and not report.gaps, f"of {_ENTRIES} events {report.sent} were copied")
    again = await copy_stream(reader, writer, origin.stream_id, target.stream_id, now=_now)
    expect(again.sent == 0, f"a second run copies {again.sent} events again")
    origins = [entry async for entry in reader.read(origin.stream_id)]
    copies = [entry async for entry in writer.read(target.stream_id)]
    expect([entry.body for entry in copies] == [entry.body for entry in origins], "a copy has another body")
    parents = [entry.event.hdr.parent_id for entry in copies if entry.event is not None]
    expect(parents == [entry.msg_id for entry in origins], "a copy does not name the message that it comes from")


async def _same_state(world: World) -> None:
    """Check that an overlay has the same state over the original and over the copy."""
    origin, target = world.keys("state"), world.keys("state-copy")
    writer = await world.client("ann", origin)
    for number in range(_ENTRIES):
        await send(writer, origin.stream_id, kv.put(f"key {number % 2}", number))
    mirror = world.person("mirror")
    reader = await world.client(mirror, origin, target)
    copier = await world.client(mirror, origin, target, hub=1)
    await copy_stream(reader, copier, origin.stream_id, target.stream_id, now=_now)
    here, there = await fold_over(reader, kv.KvFold(), origin), await fold_over(copier, kv.KvFold(), target)
    values = [{key: entry.value.value for key, entry in view.state.items()} for view in (here, there)]
    expect(values[0] == values[1] == {"key 0": 4, "key 1": 3}, f"the states differ: {values}")
    again = await fold_over(await world.client("eve", origin), kv.KvFold(), origin)
    expect(state_hash("kv", here.state) == state_hash("kv", again.state), "two readers of one hub disagree")


async def _replay(world: World) -> None:
    """Check that a message is bound to its hub: the other one cannot hold it under the first one's label."""
    keys = world.keys("bound")
    writer = await world.client("ann", keys)
    sent = await writer.send(keys, b"for this hub only")
    elsewhere = await world.client("ben", keys, hub=1)
    others = [entry.msg_id async for entry in elsewhere.read(keys.stream_id)]
    expect(sent.msg.leaf_hash() not in others, "a message of one hub stands in the stream of the other")
    for key in elsewhere.pin.keys:
        try:
            sent.receipt.verify(key.hub_pk)
        except VerifyError:
            continue
        expect(False, "a key of the other hub signed the receipt of this one")


async def _equivocation(world: World) -> None:
    """Check that two receipts of one position convict; those of two hubs, or of one entry, do not."""
    keys = world.keys("positions")
    here = await (await world.client("ann", keys)).send(keys, b"here")
    there = await (await world.client("ben", keys, hub=1)).send(keys, b"there")
    hub_pk = (await world.client("eve", keys)).pin.newest.hub_pk
    peer_pk = (await world.client("eve", keys, hub=1)).pin.newest.hub_pk
    expect(hub_pk != peer_pk, "both hubs sign with one key")
    for second, second_pk in ((there.receipt, peer_pk), (here.receipt, hub_pk)):
        try:
            Equivocation.of(here.receipt, second, one_pk=hub_pk, other_pk=second_pk)
        except VeenError:
            continue
        expect(False, "honest receipts pass for a contradiction")


async def _replica(world: World) -> None:
    if not world.owns_hubs:
        raise NotChecked("not checked: it would copy the whole hub; try `veen replica run URL DIR --once`")
    at, keys = await world.hub(), world.keys("followed")
    writer = await world.client("ann", keys)
    for number in range(_ENTRIES):
        await writer.send(keys, b"entry %d" % number)
    directory = world.root / "replica"
    transport = at.transport(at.token_file)
    try:
        pin = await open_replica(directory, at.url, at.pin.to_text(), transport)
        settings = load(None, {}, {"data_dir": str(directory), "listen.port": "0", "log.level": "error"})
        async with ReplicaHub.serve(settings, accept_clock=True) as replica:
            follower = ReplicaFollower(replica, transport, pin)
            for _ in range(_STEPS):
                if await follower.step():
                    break
            label = writer.label(keys.stream_id)
            files = replica.sequencer.store.files(label)
            expect(files is not None and files.size == _ENTRIES, "the replica does not have the entries of its primary")
            expect(follower.lag()[0] == 0, f"the replica is behind: {follower.lag()}")
            serving = HttpTransport(replica.url)
            try:
                client = await world.client_over(serving, at.pin, world.person("rob"), keys)
                bodies = [entry.body async for entry in client.read(keys.stream_id)]
                expect(len(bodies) == _ENTRIES, "a reader of the replica does not get what is there")
                await client.send(keys, b"to a replica")
            except HubRefused as exc:
                expect(exc.detail_enum == "NOT_PRIMARY", f"a replica refuses a message with {exc.detail_enum}")
            else:
                expect(False, "a replica admits a message")
            finally:
                await serving.aclose()
    finally:
        await transport.aclose()
    expect(verify_data(OsFs(directory)).ok, "`veen hub verify-data` finds faults in the directory of the replica")


async def _check_replaced_source(world: World) -> None:
    """Check that a mirror stops if another hub replaces its source."""
    reader, writer, origin, target = await _pair(world, 0)
    await attest_stream(reader, writer, origin.stream_id, target.stream_id, now=_now)
    other = await world.client("stand-in", origin, target, hub=1)
    try:
        checked = await check_mirror(other, writer, origin.stream_id, target.stream_id)
    except (Divergence, VerifyError, HubRefused):
        return
    expect(checked.compared == 0, "the records of one hub compare with another hub")


SUITE: Final = Suite(
    name="federated",
    about="two hubs that hold each other's logs",
    checks={
        "identity: two hubs, neither answers for the other": _two_hubs,
        "attest: each hub states the entries of the other, once": _attest,
        "copy: events arrive once and name their origin": _copy,
        "folds: a copy has the state of its original": _same_state,
        "binding: messages and receipts belong to one hub": _replay,
        "evidence: honest receipts of two hubs contradict nothing": _equivocation,
        "mirror: another hub cannot stand in for the source": _check_replaced_source,
        "replica: the same log, verified, and read-only": _replica,
    },
    first_decides=True,
)
