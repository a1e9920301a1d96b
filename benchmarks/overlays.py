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
from typing import Any, Final, NamedTuple

from benchmarks import report

from veen.core.crypto.ed25519 import SigningKey
from veen.core.event import Event
from veen.core.hashing import H, u64be
from veen.core.labels import schema_id
from veen.core.objects.captoken import CapToken
from veen.core.objects.payload_hdr import PayloadHdr
from veen.core.objects.policies import Authority
from veen.overlays import crdt, kv
from veen.overlays.discovery import bodies as discovery
from veen.overlays.discovery.directory import DirectoryFold
from veen.overlays.federation import realm
from veen.overlays.federation.realm import RealmFold, admin_streams
from veen.overlays.framework.fold import AnyFold
from veen.overlays.framework.schema import Draft, decode
from veen.overlays.framework.snapshot import Cut
from veen.overlays.framework.stream import fold_events
from veen.overlays.id import drafts as ids
from veen.overlays.id.fold import IdFold
from veen.overlays.id.ids import ctx_id_of, org_id_of, realm_id_of
from veen.overlays.naming.label_class import KNOWN_CLASSES, LabelClassFold, classify
from veen.overlays.naming.schema_registry import SchemaRegistryFold, register
from veen.overlays.operations import access, agreement, queryaudit, recovery, state_checkpoint
from veen.overlays.operations.access import AccessFold
from veen.overlays.operations.agreement import AgreementFold
from veen.overlays.operations.common import account_id_of, operation_id_of
from veen.overlays.operations.delegation import Caps, DelegationFold, KnownCap, delegate
from veen.overlays.operations.mirror import MIRROR, FederationMirror, MirrorFold, hub_identifier
from veen.overlays.operations.paid import PaidFold, PaidOperation, pay
from veen.overlays.operations.publication import PublicationFold, publish
from veen.overlays.operations.queryaudit import QueryAuditFold
from veen.overlays.operations.recovery import Guards, RecoveryFold
from veen.overlays.operations.state_checkpoint import StateCheckpointFold
from veen.overlays.wallet import LedgerFold
from veen.overlays.wallet import drafts as wallets
from veen.overlays.wallet.bodies import wallet_id_of, wallet_stream

EVENTS: Final = 200_000
MEMORY_EVENTS: Final = 300_000
ROUNDS: Final = 5
TARGET: Final = 0.5
KEYS: Final = 10_000  # keys, elements, wallets, principals: what a state is about

WRITER: Final = H(b"writer")


class Sent(NamedTuple):
    """A message of a log; its msg_id follows from its number."""

    stream_id: bytes
    draft: Draft
    client_id: bytes = WRITER


def _msg_id(number: int) -> bytes:
    return H(u64be(number))


# --- logs ------------------------------------------------------------------------------------------------


def _kv(count: int, rng: random.Random) -> Iterator[Sent]:
    stream = H(b"kv")
    for n in range(count):
        key = f"key/{rng.randrange(KEYS)}"
        yield Sent(stream, kv.delete(key) if n % 10 == 9 else kv.put(key, {"n": n, "by": "bench"}))


def _orset(count: int, rng: random.Random) -> Iterator[Sent]:
    stream = H(b"orset")
    present: list[bytes] = []
    for n in range(count):
        if n % 5 == 4:
            removed = [present.pop(rng.randrange(len(present))) for _ in range(min(2, len(present)))]
            yield Sent(stream, crdt.orset_remove(removed))
        else:
            present.append(H(u64be(n)))
            yield Sent(stream, crdt.orset_add(b"element %d" % rng.randrange(KEYS), add_id=present[-1]))


def _wal(count: int, rng: random.Random) -> Iterator[Sent]:
    realm = realm_id_of("bench")
    owners = [H(b"owner %d" % n) for n in range(min(KEYS, max(count // 20, 2)))]
    owned = [wallet_id_of(realm, owner, "EUR") for owner in owners]
    for n, owner in enumerate(owners):
        draft = wallets.open_wallet(realm_id=realm, ctx_id=owner, currency="EUR", created_at=n)
        yield Sent(wallet_stream(owned[n]), draft)
    for n, wallet_id in enumerate(owned, start=len(owned)):
        yield Sent(wallet_stream(wallet_id), wallets.deposit(wallet_id, 10**9, ts=n))
    for n in range(2 * len(owned), count):
        source, target = rng.sample(owned, 2)
        draft = wallets.transfer(source, target, rng.randrange(100), ts=n, transfer_id=H(u64be(n)))
        yield Sent(wallet_stream(source), draft)


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
        yield Sent(draft.stream_id, draft.draft)


def _paid(count: int, rng: random.Random) -> Iterator[Sent]:
    """An issuing account pays everybody once; then everybody pays everybody."""
    stream, people = H(b"paid"), [H(b"person %d" % n) for n in range(min(KEYS, max(count // 20, 2)))]
    for n in range(count):
        if n < len(people):
            payer, payee, amount = WRITER, people[n], 10**9
        else:
            (payer, payee), amount = rng.sample(people, 2), rng.randrange(100)
        body = PaidOperation(
            operation_type="storage.write",
            operation_args={"bytes": n},
            payer_account=account_id_of(payer),
            payee_account=account_id_of(payee),
            amount=amount,
            currency_code="EUR",
            operation_reference=_msg_id(n),
        )
        yield Sent(stream, pay(body), payer)


def _access(count: int, rng: random.Random) -> Iterator[Sent]:
    stream, granted = H(b"access"), [H(b"stream %d" % n) for n in range(50)]
    live: list[tuple[bytes, int]] = []  # subject, number of the message
    for n in range(count):
        if n % 4 == 3:
            subject, number = live.pop(rng.randrange(len(live)))
            yield Sent(stream, access.revoke(subject, operation_id_of(_msg_id(number)), reason="left"))
        else:
            subject = H(b"subject %d" % rng.randrange(KEYS))
            live.append((subject, n))
            yield Sent(stream, access.grant(subject, rng.sample(granted, 2), expiry_time=n + 10**6, maximum_amount=50))


def _delegated(count: int, rng: random.Random) -> Iterator[Sent]:
    """An agent confirms agreements for its principal, by a chain of two tokens."""
    stream, ids = H(b"delegated"), [H(b"agreement %d" % n) for n in range(KEYS)]
    chain = [cap.token.auth_ref() for cap in _CHAIN]
    for _ in range(count):
        inner = agreement.confirm(rng.choice(ids), 1, PRINCIPAL.public, "accept")
        yield Sent(stream, delegate(inner, principal=PRINCIPAL.public, agent=AGENT, chain=chain), AGENT)


def _agreement(count: int, rng: random.Random) -> Iterator[Sent]:
    """A definition for ten decisions of its three parties."""
    stream, parties = H(b"agreement"), [H(b"party %d" % n) for n in range(3)]
    defined = 0
    for n in range(count):
        if n % 11 == 0:
            defined += 1
            ident = H(b"agreement %d" % defined)
            yield Sent(stream, agreement.define(ident, 1, terms_hash=_msg_id(n), parties=parties, effective_time=n))
        else:
            party, ident = rng.choice(parties), H(b"agreement %d" % rng.randint(1, defined))
            decision = rng.choice(("accept", "reject"))
            yield Sent(stream, agreement.confirm(ident, 1, party, decision, decision_time=n), party)


def _publication(count: int, rng: random.Random) -> Iterator[Sent]:
    stream = H(b"publication")
    for n in range(count):
        draft = publish(
            H(b"data set %d" % (n % KEYS)),
            WRITER,
            content_root=_msg_id(n),
            content_form="veen/tree",
            content_class="table",
            version=f"1.{n // KEYS}.0",
            labels=("public", "daily"),
        )
        yield Sent(stream, draft)


def _recovery(count: int, rng: random.Random) -> Iterator[Sent]:
    """A request, the approvals of two of three guardians, the execution; of each identity once."""
    stream = H(b"recovery")
    for n in range(count):
        turn, step = divmod(n, 4)
        target, new = H(b"lost %d" % turn), H(b"new %d" % turn)
        if step == 0:
            yield Sent(stream, recovery.request(target, new, reason="the phone is lost"), new)
        elif step < 3:
            guardian = GUARDIANS[(turn + step) % len(GUARDIANS)]
            yield Sent(stream, recovery.approve(target, new, guardian, decision_time=n), guardian)
        else:
            references = [operation_id_of(_msg_id(n - 2)), operation_id_of(_msg_id(n - 1))]
            yield Sent(stream, recovery.execute(target, new, references), new)


def _query_audit(count: int, rng: random.Random) -> Iterator[Sent]:
    stream = H(b"audit")
    for n in range(count):
        requester, table = H(b"requester %d" % rng.randrange(KEYS)), rng.randrange(100)
        draft = queryaudit.audit(
            requester,
            f"table/{table}",
            "table",
            query_parameters={"from": n, "limit": 100},
            purpose_code="support",
            result_digest=_msg_id(n),
            request_time=n,
        )
        yield Sent(stream, draft)


def _mirror(count: int, rng: random.Random) -> Iterator[Sent]:
    source, target = hub_identifier(H(b"hub")), H(b"mirrors")
    heads: dict[bytes, int] = {}
    for n in range(count):
        label = H(b"label %d" % rng.randrange(100))
        heads[label] = heads.get(label, 0) + 1
        body = FederationMirror(
            source_hub_identifier=source,
            source_label=label,
            source_stream_seq=heads[label],
            source_leaf_hash=_msg_id(n),
            source_receipt_root=H(_msg_id(n)),
            target_label=target,
            mirror_time=n,
        )
        yield Sent(target, MIRROR.draft(body, parent_id=_msg_id(n)))


def _state_checkpoint(count: int, rng: random.Random) -> Iterator[Sent]:
    stream, states = H(b"states"), [H(b"state %d" % n) for n in range(100)]
    for n in range(count):
        cuts = [Cut(label=H(b"label %d" % number), upto_seq=n + 1, mmr_root=_msg_id(n)) for number in range(2)]
        draft = state_checkpoint.checkpoint(
            state_id=states[n % 100], state_class="kv", state_hash=H(_msg_id(n)), cuts=cuts
        )
        yield Sent(stream, draft)


def _label_class(count: int, rng: random.Random) -> Iterator[Sent]:
    stream = admin_streams().label_class
    for n in range(count):
        label = H(b"label %d" % rng.randrange(KEYS))
        yield Sent(stream, classify(label, KNOWN_CLASSES[n % len(KNOWN_CLASSES)], retention_hint=n))


def _meta(count: int, rng: random.Random) -> Iterator[Sent]:
    stream = admin_streams().schema_meta
    for n in range(count):
        name = f"example.schema{rng.randrange(KEYS)}.v1"
        yield Sent(stream, register(schema_id(name), name, f"1.{n}", owner=WRITER, ts=n))


def _realm(count: int, rng: random.Random) -> Iterator[Sent]:
    """Which hub is primary of which stream, and what is revoked."""
    streams, hubs = admin_streams(), [H(b"hub %d" % n) for n in range(8)]
    for n in range(count):
        target = H(b"stream %d" % rng.randrange(KEYS))
        if n % 5 == 4:
            yield Sent(streams.revocation, realm.revoke("client-id", target, ts=n, reason="left"))
        else:
            primary, *replicas = rng.sample(hubs, 3)
            authority = Authority(
                realm_id=realm.DEFAULT_REALM,
                stream_id=target,
                primary_hub=primary,
                replica_hubs=tuple(sorted(replicas)),
                policy="single-primary",
                ts=n,
                ttl=3600,
            )
            yield Sent(streams.fed_admin, realm.assign(authority))


def _discovery(count: int, rng: random.Random) -> Iterator[Sent]:
    overlay_id = discovery.overlay_id_of("rpc")
    for _ in range(count):
        name = f"service {rng.randrange(KEYS)}"
        advert = discovery.ServiceAdvert(
            service_id=discovery.service_id_of(WRITER, name),
            name=name,
            overlay_id=overlay_id,
            methods=("lookup", "update"),
            stream_ids=(H(b"requests"), H(b"answers")),
            regions=("eu",),
            required_caps=(),
            tags=("bench",),
            ttl_sec=3600,
        )
        yield Sent(discovery.STREAMS["service"], discovery.advertise(advert))


PRINCIPAL: Final = SigningKey(H(b"principal"))
AGENT: Final = H(b"agent")
GUARDIANS: Final = [H(b"guardian %d" % n) for n in range(3)]
_ROOT: Final = SigningKey(H(b"root"))
_CHAIN: Final = [
    KnownCap(CapToken.issue(issuer, subject, (H(b"delegated"),), ttl=10**9), 0)
    for issuer, subject in ((_ROOT, PRINCIPAL.public), (PRINCIPAL, AGENT))
]

LOGS: Final[dict[str, tuple[Callable[[int, random.Random], Iterator[Sent]], Callable[[], AnyFold]]]] = {
    "KV": (_kv, kv.KvFold),
    "OR-set": (_orset, crdt.OrSetFold),
    "WAL": (_wal, LedgerFold),
    "ID": (_id, IdFold),
    "paid operation": (_paid, lambda: PaidFold(issuing=(account_id_of(WRITER),))),
    "access": (_access, lambda: AccessFold(granters=(WRITER,))),
    "delegated execution": (_delegated, lambda: DelegationFold(caps=Caps(_CHAIN))),
    "agreement": (_agreement, AgreementFold),
    "publication": (_publication, PublicationFold),
    "recovery": (_recovery, lambda: RecoveryFold(guards=Guards.of(GUARDIANS, 2))),
    "query audit": (_query_audit, QueryAuditFold),
    "federation mirror": (_mirror, MirrorFold),
    "state checkpoint": (_state_checkpoint, StateCheckpointFold),
    "LCLASS0": (_label_class, LabelClassFold),
    "META0+": (_meta, SchemaRegistryFold),
    "FED1, AUTH1": (_realm, RealmFold),
    "discovery": (_discovery, DirectoryFold),
}


def events_of(name: str, count: int) -> Iterator[Event]:
    """A log as a reader holds it: a message a second, positions by stream."""
    heads: dict[bytes, int] = {}
    for n, (stream_id, draft, client_id) in enumerate(LOGS[name][0](count, random.Random(0))):
        seq = heads[stream_id] = heads.get(stream_id, 0) + 1
        yield Event(
            stream_id=stream_id,
            label=stream_id,
            epoch=0,
            stream_seq=seq,
            leaf_hash=_msg_id(n),
            client_id=client_id,
            auth_ref=None,
            hub_ts=n,
            ts=n,
            hdr=PayloadHdr(schema=draft.schema, parent_id=draft.parent_id, expires_at=draft.expires_at),
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
            f"{count:,} events about {KEYS:,} keys, elements, wallets or principals (WAL and paid operations: an "
            f"account for 20 events at least), medians of {rounds} rounds of CPU time. Folding includes decoding and "
            "the view at the end; the ratio is folded / decoded, the limit being a reader that decodes the same bodies "
            "and forgets them. "
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
