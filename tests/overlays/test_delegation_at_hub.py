"""Delegated executions at a real hub: it orders what it cannot read, and whoever reads judges the chain."""

import pytest
from tests.client.hubs import ORDERS, client_at, hub_at, person, pin_of, run
from tests.overlays.operation_builders import BANK, BOB, ROOT, cap, refs

from veen.client.transport.inprocess import InProcess
from veen.core import cbor
from veen.core.event import Event
from veen.overlays.framework.schema import Draft
from veen.overlays.operations import access, delegation

STREAM = ORDERS.stream_id


@pytest.mark.req("DELEG-05")
def test_a_hub_admits_executions_that_readers_void(tmp_path):
    """Checking at the hub is optional, and ours does none: a bad chain gets a receipt, and counts for nobody."""
    agent = person("agent")
    links = cap(ROOT, BANK.public, (STREAM,), ttl=2**40), cap(BANK, agent.client_id, (STREAM,), ttl=2**40)
    good = delegation.delegate(access.revoke(BOB), principal=BANK.public, agent=agent.client_id, chain=refs(*links))
    tree = cbor.decode(good.body)
    drafts = {
        None: good,
        "DELEG.EMPTY": _changed(tree, delegation_chain=[]),
        "DELEG.CHAIN": _changed(tree, delegation_chain=refs(links[1])),
        "DELEG.UNRESOLVED": _changed(tree, delegation_chain=[bytes(32)]),
        "DELEG.SPEAKER": _changed(tree, agent_identity=BOB),
    }

    async def sent_and_read() -> list[Event]:
        async with (
            hub_at(tmp_path / "hub") as hub,
            client_at(InProcess(hub.api), pin_of(hub), agent, tmp_path / "home") as client,
        ):
            for number, draft in enumerate(drafts.values(), 1):
                receipt = (
                    await client.send("orders", draft.body, schema=draft.schema)
                ).receipt  # verified by the client
                assert receipt.stream_seq == number
            return [entry.event async for entry in client.read("orders") if entry.event is not None]

    events = run(sent_and_read())
    fold = delegation.DelegationFold(caps=delegation.Caps(links))
    summary = fold.summarize(events)
    issues = {issue.stream_seq: issue.code for issue in fold.issues(summary)}
    assert [issues.get(number) for number in range(1, len(drafts) + 1)] == list(drafts)
    (execution,) = fold.view(summary, None).values()
    assert execution.chain == tuple(refs(*links))


def _changed(tree, **members):
    return Draft(schema=delegation.DELEGATED.id, body=cbor.encode({**tree, **members}))
