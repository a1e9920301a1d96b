"""Random histories of every overlay, with all that can be wrong with an entry, for the tests of folds.

A history is a function of its seed. Besides events it has copies by a bridge, some of them false or without their
original, bodies that do not decode, schemas that nobody counts, times that run backwards on another label, values that
expire, and entries that could not be read.
"""

import random
from dataclasses import replace
from typing import Any

import pyarrow as pa
from tests.lake.query_builders import KEYRING, STREAMS, Recorder
from tests.overlays.wallet_reference import WALLETS, opened

from veen.core.hashing import H, Ht
from veen.core.tree.mmr import Mmr
from veen.lake.log.columns import arrow_schema
from veen.lake.log.events import SILVER, Unread, rows_of
from veen.overlays import crdt, crud, kv, queue
from veen.overlays.framework.fold import NO_MIRRORS, Mirrors
from veen.overlays.framework.schema import Draft
from veen.overlays.framework.snapshot import Cut, Snapshot
from veen.overlays.rpc import messages as rpc
from veen.overlays.wallet import LedgerFold, WalletPolicy, drafts
from veen.testing.events import FakeLog

BRIDGE = H(b"bridge")
BY_BRIDGE = Mirrors.by([BRIDGE])
REASONS = ("damaged", "erased", "missing", "sealed", "malformed")

__all__ = ["BRIDGE", "BY_BRIDGE", "FOLDS", "KEYRING", "cuts_of", "folds", "frame_of", "history", "outcome", "real_log"]


def _kv(rng, _log):
    if rng.random() < 0.2:
        return kv.delete(rng.choice("abc"), ts=rng.choice((None, 1_003)))
    value = rng.choice((0, -1, "x", 2**64 - 1, {"b": 1, "a": [True, None]}, b"\x00"))
    ts = rng.choice((None, None, 0, 1_003, 2**64 - 1))
    return kv.put(
        rng.choice(("a", "b", "ключ", "")), value, ts=ts, expires_at=rng.choice((None, None, 1_020, 2**64 - 1))
    )


def _lww(rng, _log):
    key, value = rng.choice((b"", b"\x7f", b"\x80", b"\xff")), rng.randbytes(rng.randrange(3))
    return crdt.lww_set(key, value, ts=rng.choice((0, 1, 2**64 - 1)), expires_at=rng.choice((None, 1_020)))


def _orset(rng, _log):
    ids = [bytes([n]) * 32 for n in range(12)]
    if rng.random() < 0.3:
        return crdt.orset_remove(rng.sample(ids, rng.randrange(3)))
    return crdt.orset_add(rng.randbytes(1)[:1], add_id=rng.choice(ids), expires_at=rng.choice((None, 1_020)))


def _counter(rng, _log):
    return crdt.counter_add(bytes([rng.randrange(3)]) * 32, rng.choice((0, 1, 7, 2**64 - 1)))


def _crud(rng, _log):
    entity, id_, if_rev = rng.choice(("user", "team")), str(rng.randrange(3)), rng.choice((None, None, 0, 1, 2))
    fields = {name: rng.choice((None, 1, "x")) for name in rng.sample(("name", "age"), rng.randrange(3))}
    match rng.choice(("create", "update", "delete")):
        case "create":
            return replace(crud.create(entity, id_, fields, if_rev=if_rev), expires_at=rng.choice((None, None, 1_010)))
        case "update":
            return crud.update(entity, id_, fields, if_rev=if_rev)
        case _:
            return crud.delete(entity, id_, if_rev=if_rev)


def _queue(rng, log):
    items = [event.msg_id for events in log.by_label.values() for event in events]
    if not items or rng.random() < 0.5:
        return queue.enqueue({"n": rng.randrange(9)}, expires_at=rng.choice((None, 1_020)))
    return rng.choice((queue.ack, queue.nack))(rng.choice(items), group=rng.choice(("", "a")))


def _rpc(rng, log):
    calls = [event.msg_id for events in log.by_label.values() for event in events]
    if not calls or rng.random() < 0.5:
        return rpc.call(rng.choice("ab"), None, timeout_ms=rng.choice((None, 5_000)), idem=rng.choice((None, 1)))
    return rpc.answer(rng.choice(calls), rng.randrange(3))


def _wallet(rng, _log):
    name = rng.choice(sorted(WALLETS))
    wallet, ts = WALLETS[name], rng.choice((0, 10, 90_000))
    amount, ref = rng.choice((0, 1, 5, 50, 2**64 - 1)), rng.choice((None, b"", b"r1"))
    match rng.choice(("open", "deposit", "deposit", "withdraw", "transfer", "transfer", "transfer", "rare")):
        case "open":
            return opened(name, ts)
        case "deposit":
            return drafts.deposit(wallet, amount, ts=ts, ref=ref)
        case "withdraw":
            return drafts.withdraw(wallet, amount, ts=ts, ref=ref)
        case "transfer":
            to, transfer_id = WALLETS[rng.choice(sorted(WALLETS))], bytes([rng.randrange(60)]) * 32
            return drafts.transfer(wallet, to, amount, ts=ts, transfer_id=transfer_id)
        case _:
            rare = (
                drafts.close(wallet, ts=ts),
                drafts.freeze(wallet, ts=ts),
                drafts.unfreeze(wallet, ts=ts),
                drafts.limit(wallet, rng.choice((None, 0, 60)), ts=ts),
                drafts.adjust(wallet, rng.choice((-7, 0, 7)), ts=ts, reason="fix", ref=ref),
            )
            return rng.choice(rare)


def ledger(**settings):
    """Several wallets on one stream."""
    return LedgerFold(policy=WalletPolicy(own_streams=False, trust_every_writer=True, max_skew_sec=None), **settings)


WRITERS = {
    "kv": _kv,
    "crdt.lww": _lww,
    "crdt.orset": _orset,
    "crdt.gcnt": _counter,
    "crud": _crud,
    "queue": _queue,
    "rpc": _rpc,
    "wallet.ledger": _wallet,
}
FOLDS: dict[str, Any] = {
    "kv": kv.KvFold,
    "crdt.lww": crdt.LwwFold,
    "crdt.orset": crdt.OrSetFold,
    "crdt.gcnt": crdt.CounterFold,
    "crud": crud.CrudFold,
    "queue": queue.QueueFold,
    "rpc": rpc.RpcFold,
    "wallet.ledger": ledger,
}


def folds(*, mirrors=NO_MIRRORS):
    """One of every kind."""
    return [make(mirrors=mirrors) for make in FOLDS.values()]


def history(seed, count=60, *, kinds=tuple(WRITERS), copies=True, unread=True):
    """Events and what could not be read, in logical order."""
    rng = random.Random(seed)
    log = FakeLog()
    for number in range(rng.randrange(count + 1) if count < 100 else count):
        draft = WRITERS[rng.choice(kinds)](rng, log)
        events_before = [event for events in log.by_label.values() for event in events]
        chance, client = rng.random(), rng.choice(("alice", "bob"))
        if chance < 0.07:
            body = rng.choice((b"", b"\xff", b"\xa0", draft.body[:-1], draft.body + b"\x00"))
            draft = Draft(schema=draft.schema, body=body, parent_id=draft.parent_id)
        elif chance < 0.12:
            draft = Draft(schema=H(b"unrelated.v1"), body=b"anything")
        elif copies and events_before and chance < 0.3:
            original, client = rng.choice(events_before), "bridge"
            parent_id = rng.choice((original.msg_id, original.msg_id, H(b"elsewhere")))
            body = rng.choice((original.body, original.body, draft.body))  # a bridge may lie
            draft = Draft(schema=original.hdr.schema, body=body, parent_id=parent_id)
        stream, epoch = rng.choice(("north", "south")), rng.choice((0, 0, 1))
        log.append(draft, stream=stream, epoch=epoch, client=client, ts=log.now + rng.choice((0, 0, 1, 3, -2)))
        del number
    return [_perhaps_unread(rng, event) if unread else event for event in log.all()]


def _perhaps_unread(rng, event):
    if rng.random() > 0.06:
        return event
    reason = rng.choice(REASONS)
    is_placed = reason not in ("damaged", "missing")
    return Unread(
        stream_id=event.stream_id,
        label=event.label,
        epoch=event.epoch,
        stream_seq=event.stream_seq,
        leaf_hash=event.leaf_hash if is_placed else None,
        client_id=event.client_id if is_placed else None,
        auth_ref=None,
        hub_ts=event.hub_ts if is_placed else None,
        ts=event.ts,
        reason=reason,
    )


def cuts_of(found):
    """By label: where it ends and the root there; of a label with an unknown leaf any root."""
    by_label: dict[bytes, dict[int, bytes | None]] = {}
    for entry in found:
        by_label.setdefault(entry.label, {})[entry.stream_seq] = entry.leaf_hash
    cuts = []
    for label, leaves in sorted(by_label.items()):
        tree, root = Mmr(), Ht("test/root", label)
        if all(leaf is not None for leaf in leaves.values()):
            for seq in sorted(leaves):
                tree.append(leaves[seq] or b"")
            root = tree.root()
        cuts.append(Cut(label=label, upto_seq=max(leaves), mmr_root=root))
    return cuts


def outcome(fold, summary, cuts):
    """All that must be equal: summary, state, issues."""
    return Snapshot.take(fold, summary, cuts).to_bytes(), fold.issues(summary)


def reference(fold, found):
    """One process, in the plainest way there is."""
    from veen.lake.folds.coverage import FoldCoverage

    return fold.summarize(list(FoldCoverage().events(found)))


def frame_of(spark, found, parts=None, seed=0):
    """A DataFrame of SILVER, its rows in disorder."""
    rows = list(rows_of(found))
    random.Random(seed).shuffle(rows)
    frame = spark.createDataFrame(pa.Table.from_pylist(rows, schema=arrow_schema(SILVER)))
    return frame if parts is None else frame.repartition(parts)


def real_log(path, drafts_to_send, *, seed=0, foreign=0.0):
    """A data directory with these messages, really sealed and signed, on several streams and epochs."""
    rng = random.Random(seed)
    path.mkdir(parents=True, exist_ok=True)
    world = Recorder(path)
    send(world, drafts_to_send, rng, foreign=foreign)
    return world


def send(world, drafts_to_send, rng, *, foreign=0.0):
    from veen.client.identity.keyring import StreamKeys

    for draft in drafts_to_send:
        world.now += rng.choice((0, 1, 5))
        keys = StreamKeys.create(STREAMS[0]) if rng.random() < foreign else None
        stream, epoch = rng.choice(STREAMS[:2]), rng.choice((0, 0, 1))
        world.emit(stream, client=rng.randrange(3), epoch=epoch, schema=draft.schema, body=draft.body, keys=keys)
    world.store.retire()  # what is in the journal goes into chunks
