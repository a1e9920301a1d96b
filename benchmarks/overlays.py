"""Folding beside decoding: how much of the time that reading bodies takes is left when a state is made of them.

    python -m benchmarks.overlays            prints the table and writes it to docs/benchmarks.md
    python -m benchmarks.overlays --quick    fewer events, for a first look

Decoding reads every body of the same events and does nothing else: no fold can be faster. Both take turns, and medians
of CPU time are reported. Memory is that of a process of its own which makes the events one by one, folds them and keeps
the state: what it holds more than one that only makes them, at the end and at the peak.
"""

import argparse
import gc
import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks import report

from veen.core.event import Event
from veen.core.hashing import H, u64be
from veen.core.objects.payload_hdr import PayloadHdr
from veen.overlays import crdt, kv
from veen.overlays.framework.body import Draft
from veen.overlays.framework.decode import decode
from veen.overlays.framework.fold import AnyFold
from veen.overlays.framework.stream import fold_events
from veen.overlays.id import drafts as ids
from veen.overlays.id.fold import IdFold
from veen.overlays.id.ids import ctx_id_of, org_id_of, realm_id_of
from veen.overlays.wallet import LedgerFold
from veen.overlays.wallet import drafts as wallets
from veen.overlays.wallet.ids import wallet_id_of, wallet_stream

EVENTS: Final = 200_000
MEMORY_EVENTS: Final = 300_000
ROUNDS: Final = 5
TARGET: Final = 0.5
KEYS: Final = 10_000  # keys, elements, wallets, principals: what a state is about

Sent = tuple[bytes, Draft]  # stream_id


# --- logs ------------------------------------------------------------------------------------------------


def _kv(count: int, rng: random.Random) -> Iterator[Sent]:
    stream = H(b"kv")
    for n in range(count):
        key = f"key/{rng.randrange(KEYS)}"
        yield stream, kv.delete(key) if n % 10 == 9 else kv.put(key, {"n": n, "by": "bench"})


def _orset(count: int, rng: random.Random) -> Iterator[Sent]:
    stream = H(b"orset")
    present: list[bytes] = []
    for n in range(count):
        if n % 5 == 4:
            removed = [present.pop(rng.randrange(len(present))) for _ in range(min(2, len(present)))]
            yield stream, crdt.orset_remove(removed)
        else:
            present.append(H(u64be(n)))
            yield stream, crdt.orset_add(b"element %d" % rng.randrange(KEYS), add_id=present[-1])


def _wal(count: int, rng: random.Random) -> Iterator[Sent]:
    realm = realm_id_of("bench")
    owners = [H(b"owner %d" % n) for n in range(min(KEYS, max(count // 20, 2)))]
    owned = [wallet_id_of(realm, owner, "EUR") for owner in owners]
    for n, owner in enumerate(owners):
        yield wallet_stream(owned[n]), wallets.open_wallet(realm_id=realm, ctx_id=owner, currency="EUR", created_at=n)
    for n, wallet_id in enumerate(owned, start=len(owned)):
        yield wallet_stream(wallet_id), wallets.deposit(wallet_id, 10**9, ts=n)
    for n in range(2 * len(owned), count):
        source, target = rng.sample(owned, 2)
        draft = wallets.transfer(source, target, rng.randrange(100), ts=n, transfer_id=H(u64be(n)))
        yield wallet_stream(source), draft


def _id(count: int, rng: random.Random) -> Iterator[Sent]:
    realm, org_id = realm_id_of("bench"), org_id_of(H(b"org"))
    people = [H(b"principal %d" % n) for n in range(KEYS)]
    for n in range(count):
        pk = people[rng.randrange(KEYS)]
        account, kind = ctx_id_of(pk, realm), n % 6
        if kind == 0:
            draft = ids.device(pk, device_pk=H(pk + bytes([n % 3])), dh_pk=H(b"dh"), label="phone", created_at=n)
        elif kind == 1:
            draft = ids.ctx_profile(account, realm, display_name="somebody", updated_at=n)
        elif kind == 2:
            draft = ids.change_group(org_id, f"group {n % 50}", add=[account], updated_at=n)
        elif kind == 3:
            draft = ids.handle(realm, f"@{rng.randrange(KEYS)}", target_type="ctx", target_id=account, ts=n)
        elif kind == 4:
            draft = ids.bind_role(org_id, f"role {n % 20}", ctx=[account], ts=n)
        else:
            draft = ids.principal(pk, created_at=n)
        yield draft.stream_id, draft.draft


LOGS: Final[dict[str, tuple[Callable[[int, random.Random], Iterator[Sent]], Callable[[], AnyFold]]]] = {
    "KV": (_kv, kv.KvFold),
    "OR-set": (_orset, crdt.OrSetFold),
    "WAL": (_wal, LedgerFold),
    "ID": (_id, IdFold),
}


def events_of(name: str, count: int) -> Iterator[Event]:
    """A log as a reader holds it: a message a second, positions by stream."""
    heads: dict[bytes, int] = {}
    writer = H(b"writer")
    for n, (stream_id, draft) in enumerate(LOGS[name][0](count, random.Random(0))):
        seq = heads[stream_id] = heads.get(stream_id, 0) + 1
        yield Event(
            stream_id=stream_id,
            label=stream_id,
            epoch=0,
            stream_seq=seq,
            leaf_hash=H(u64be(n)),
            client_id=writer,
            auth_ref=None,
            hub_ts=n,
            ts=n,
            hdr=PayloadHdr(schema=draft.schema),
            body=draft.body,
        )


# --- time ------------------------------------------------------------------------------------------------


def _seconds(work: Callable[[], Any]) -> float:
    gc.collect()
    gc.disable()
    try:
        began = time.process_time()
        work()
        return time.process_time() - began
    finally:
        gc.enable()


def speed(name: str, count: int, rounds: int) -> dict[str, float]:
    """Events a second, decoded and folded, and the ratio of the two."""
    events = list(events_of(name, count))
    make = LOGS[name][1]
    fold = make()
    schemas = dict(fold.schemas)

    def decode_all() -> None:
        for event in events:
            decode(event, schemas[event.hdr.schema])

    def fold_all() -> None:
        fold.view(fold_events(make(), iter(events)))

    if fold.issues(fold_events(fold, iter(events))):
        raise RuntimeError(f"{name}: the log breaks the rules of its overlay")
    turns = [(_seconds(decode_all), _seconds(fold_all)) for _ in range(rounds)]
    return {
        "decoded": count / median(decoded for decoded, _ in turns),
        "folded": count / median(folded for _, folded in turns),
        "ratio": median(decoded / folded for decoded, folded in turns),
    }


# --- memory ----------------------------------------------------------------------------------------------


def _status(field: str) -> int:
    """Bytes, of one line of what the kernel tells about this process."""
    match = re.search(rf"^{field}:\s+(\d+) kB$", Path("/proc/self/status").read_text("ascii"), re.MULTILINE)
    assert match is not None
    return int(match[1]) * 1024


def hold(name: str, count: int, *, fold_them: bool) -> dict[str, int]:
    """In a process of its own: make the events one by one, and fold them or let them go."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5", "ascii")  # the peak counts from here
    before = _status("VmRSS")
    fold, state = LOGS[name][1](), None
    if fold_them:
        state = fold_events(fold, events_of(name, count))
    else:
        for _ in events_of(name, count):
            pass
    gc.collect()
    resident, peak = _status("VmRSS") - before, _status("VmHWM") - before
    del state  # not before it was measured
    return {"held": resident, "peak": peak}


def memory(name: str, count: int) -> dict[str, float]:
    """MB for a million events: held by the state, and at the peak."""
    command = [sys.executable, "-m", "benchmarks.overlays", "--hold", name, "--events", str(count)]
    folding, idle = (
        json.loads(subprocess.run([*command, *more], capture_output=True, text=True, check=True).stdout)
        for more in ((), ("--idle",))
    )
    scale = 1_000_000 / count / 1e6
    return {what: max(folding[what] - idle[what], 0) * scale for what in ("held", "peak")}


# --- the table -------------------------------------------------------------------------------------------


def table(count: int, memory_count: int, rounds: int) -> str:
    rows = []
    for name in LOGS:
        figures = {**speed(name, count, rounds), **memory(name, memory_count)}
        met = "yes" if figures["ratio"] >= TARGET else "NO"
        rows.append(
            f"| {name} | {figures['folded']:,.0f} | {figures['decoded']:,.0f} | {figures['ratio']:.2f} | ≥ {TARGET} "
            f"| {met} | {figures['held']:,.0f} | {figures['peak']:,.0f} |"
        )
    return "\n".join(
        [
            "## Overlays",
            "",
            report.machine(),
            "",
            f"{count:,} events about {KEYS:,} keys, elements, wallets or principals (WAL: a wallet for 20 events at "
            f"least), medians of {rounds} rounds of CPU time. Folding includes decoding and the view at the end; the "
            "ratio is folded / decoded, the limit being a reader that decodes the same bodies and forgets them. "
            f"Memory is measured over {memory_count:,} events and scaled to a million.",
            "",
            "| overlay | folded/s | decoded/s | ratio | target | met | MB for a million events | at the peak |",
            "|---|---:|---:|---:|---:|---|---:|---:|",
            *rows,
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--hold", choices=LOGS)
    parser.add_argument("--idle", action="store_true")
    parser.add_argument("--events", type=int, default=MEMORY_EVENTS)
    chosen = parser.parse_args()
    if chosen.hold is not None:
        print(json.dumps(hold(chosen.hold, chosen.events, fold_them=not chosen.idle)))
        return
    text = table(20_000, 100_000, 3) if chosen.quick else table(EVENTS, MEMORY_EVENTS, ROUNDS)
    print(text)
    if not chosen.quick:
        report.write_section("overlays", text)


if __name__ == "__main__":
    main()
