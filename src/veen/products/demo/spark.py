"""The Spark part of the demo: all cores audit, query and fold the log of a shift, and a flipped bit is named.

Each answer is compared with that of one process without Spark: the same bytes, or the demo fails.
"""

import asyncio
import random
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from veen.cli.shared.bulk import spark_at_work
from veen.cli.shared.text import short
from veen.client.client import Client
from veen.client.home import PrivateFs
from veen.client.identity.keyring import StreamKeys
from veen.client.send.sealing import Draft
from veen.client.send.writing import Sent
from veen.lake.folds import run as fold
from veen.lake.log.keys import KeyFile, write_keys
from veen.lake.query import api
from veen.lake.spark.audit import SparkEngine
from veen.overlays import kv
from veen.overlays.framework import schema as body
from veen.overlays.recorder import events as sdr
from veen.products.demo.story import DOORS, STEPS, Story, connect, expect, flip, place_of, run_hub, shorten
from veen.verify.audit import AuditResult, audit
from veen.verify.audit.report import document

T = TypeVar("T")

SETTINGS: Final = "demo/settings"
EVENTS: Final = 400
WRITES: Final = 100
TARGET: Final = 77  # the event that is tampered with
_SHOWN: Final = 3
_QUESTION: Final = {
    "scope": [DOORS],
    "filter": {"event_type": ["door.refused"]},
    "projection": ["subject_id", "origin", "payload.reason", "hub_commit_seq"],
    "evidence": {"mode": "full"},
}


# --- a shift, recorded -------------------------------------------------------------------------------------


async def _record(story: Story) -> None:
    """Run the hub once more, and record events by alice."""
    keys = [StreamKeys.create(name) for name in (DOORS, SETTINGS)]
    for name, granted in (("alice", [stream_keys.for_writers() for stream_keys in keys]), ("bob", keys)):
        _give(story, name, granted)
    rng = random.Random(7)  # noqa: S311 - the same shift every time
    async with run_hub(story.root / "hub") as hub, await connect(story, hub.url, "alice") as writer:
        now = int(time.time())
        events = [_event(rng, writer.client_id, now) for _ in range(EVENTS)]
        await _send(story, writer, DOORS, events)
        await _send(story, writer, SETTINGS, [_setting(rng, number) for number in range(WRITES)])
    story.step(
        STEPS + 1, "record", f"alice records a shift: {EVENTS} events at the doors, {WRITES} changes of settings"
    )
    story.facts["recorded"] = {"events": EVENTS, "writes": WRITES}


def _give(story: Story, name: str, keys: Sequence[StreamKeys]) -> None:
    keystore = story.people[name]
    ring = keystore.secrets.keyring
    for stream_keys in keys:
        ring = ring.with_keys(stream_keys)
    with story.home.lock(name):
        keystore.save(replace(keystore.secrets, keyring=ring))


async def _send(story: Story, writer: Client, stream: str, drafts: Sequence[body.Draft]) -> None:
    sent = await writer.send_many(stream, [Draft(body=item.body, schema=item.schema) for item in drafts])
    expect(all(isinstance(item, Sent) for item in sent), "the hub refused a message")
    target = sent[TARGET - 1]
    if stream == DOORS and isinstance(target, Sent):
        story.ciphertext = target.msg.ciphertext


def _event(rng: random.Random, principal_id: bytes, now: int) -> body.Draft:
    refused = rng.random() < 0.02
    return sdr.event(
        subject_id=f"badge:{rng.randrange(40)}",
        principal_id=principal_id,
        event_type="door.refused" if refused else "door.opened",
        event_time=now - rng.randrange(8 * 3600),
        origin=f"door-{rng.randrange(1, 10)}",
        payload={"reason": rng.choice(("expired", "unknown", "locked"))} if refused else {"ms": rng.randrange(900)},
    )


def _setting(rng: random.Random, number: int) -> body.Draft:
    key = f"valve/{rng.randrange(12)}"
    return kv.delete(key) if rng.random() < 0.1 else kv.put(key, {"open": rng.random() < 0.5, "by": f"order {number}"})


# --- on Spark ----------------------------------------------------------------------------------------------


def on_spark(story: Story) -> None:
    """Run steps 9 to 14."""
    asyncio.run(_record(story))
    directory = PrivateFs(story.root / "spark")
    directory.make_dir("")
    ring = story.people["bob"].secrets.keyring
    keys = write_keys(directory.root, [ring.for_stream(name) for name in (DOORS, SETTINGS)])
    began = time.perf_counter()
    try:
        with spark_at_work("veen demo", None, story.tell, log_bytes=0) as (session, tell):
            _tell_start(story, session, time.perf_counter() - began)
            _audit(story, session, tell)
            _query(story, session, tell, keys)
            _fold(story, session, tell, keys)
            _tamper(story, session, tell)
    finally:
        shutil.rmtree(directory.root)


def _tell_start(story: Story, session: Any, seconds: float) -> None:
    cores = session.sparkContext.defaultParallelism
    story.step(
        STEPS + 2, "spark", f"a Java virtual machine and a session on {cores} cores: {seconds:.1f} s to start, once"
    )
    story.facts["spark"] = {"cores": cores, "start_seconds": round(seconds, 3)}


def _measure(work: Callable[[], T]) -> tuple[T, float]:
    began = time.perf_counter()
    return work(), time.perf_counter() - began


def _audit_both(story: Story, session: Any, tell: Callable[[str], None]) -> tuple[AuditResult, float]:
    """Audit on Spark and return the verdict and the time; one process must give the same verdict."""
    hub = str(story.root / "hub")
    verdict, seconds = _measure(lambda: audit(hub, engine=SparkEngine(session), progress=tell))
    expect(document(verdict) == document(audit(hub)), "Spark and one process do not agree about the log")
    return verdict, seconds


def _audit(story: Story, session: Any, tell: Callable[[str], None]) -> None:
    verdict, seconds = _audit_both(story, session, tell)
    expect(verdict.ok and not verdict.findings, "the audit found something in a good log")
    entries, signatures = verdict.counts["entries"], verdict.counts["signatures"]
    story.step(STEPS + 3, "audit", f"every hash, root and signature of the log again: {seconds:.1f} s")
    story.more(
        f"{entries} entries, {verdict.counts['labels']} labels, {signatures} signatures: all good, nothing found"
    )
    story.facts["audit"] = {"entries": entries, "signatures": signatures, "ok": verdict.ok}


def _query(story: Story, session: Any, tell: Callable[[str], None], keys: KeyFile) -> None:
    hub = str(story.root / "hub")
    tell("asking who was refused at a door")
    answer, seconds = _measure(lambda: api.run(hub, _QUESTION, keys=keys, engine="spark", spark=session))
    rows = list(answer.rows())
    expect(rows, "nobody was refused")
    expect(api.verify(hub, answer, keys=keys).ok, "one process gives another answer")
    digest = answer.digest
    story.step(
        STEPS + 4, "query", f"who was refused at a door? {len(rows)} rows, each with receipt and proof: {seconds:.1f} s"
    )
    for row in rows[:_SHOWN]:
        seq, reason = row["hub_commit_seq"], row["payload.reason"]
        story.more(f"{row['subject_id']!s:<8}  {row['origin']!s:<6}  {reason!s:<7}  entry {seq}: verified")
    if len(rows) > _SHOWN:
        story.more(f"… and {len(rows) - _SHOWN} more; none was left out, says coverage {_short(digest.coverage_hash)}")
    story.more(f"rows {_short(digest.rows_hash)}, evidence {_short(digest.evidence_hash)}: one process gives the same")
    story.facts["query"] = {"rows": len(rows), "digest": digest.to_json()}


def _short(digest: str) -> str:
    return short(bytes.fromhex(digest.rpartition(":")[2]))


def _fold(story: Story, session: Any, tell: Callable[[str], None], keys: KeyFile) -> None:
    hub = str(story.root / "hub")
    tell("folding the settings")
    state, seconds = _measure(lambda: fold(hub, "kv", keys=keys, streams=[SETTINGS], spark=session))
    alone = fold(hub, "kv", keys=keys, streams=[SETTINGS], engine="python")
    expect(state.state_hash == alone.state_hash, "one process folds to another state")
    story.step(STEPS + 5, "fold", f"{WRITES} changes become the state of {len(state.view)} valves: {seconds:.1f} s")
    story.more(f"state {short(state.state_hash)}, a function of the log: one process folds to the same")
    story.facts["fold"] = {"state_hash": state.state_hash.hex(), "keys": len(state.view)}


def _tamper(story: Story, session: Any, tell: Callable[[str], None]) -> None:
    """Flip a bit, find and name it, and put it back."""
    hub = story.root / "hub"
    path, offset = place_of(hub, story.ciphertext)
    name, at = str(path.relative_to(hub)), offset + 10
    flip(path, at)
    verdict, seconds = _audit_both(story, session, tell)
    expect(not verdict.ok, "the flipped bit was not found")
    first = next(
        (finding for finding in verdict.findings if finding.path == name and finding.stream_seq == TARGET), None
    )
    expect(first, "the flipped bit was found elsewhere")
    assert first is not None  # noqa: S101 - just seen
    story.step(
        STEPS + 6,
        "tamper",
        f"one bit of event {TARGET} is flipped in the hub's files, and the audit says: {seconds:.1f} s",
    )
    story.more(f"{shorten(first.path)}, byte {first.offset}:")
    story.more(f"entry {first.stream_seq}: {first.message}")
    flip(path, at)
    expect(audit(str(hub)).ok, "the log is not good again")
    story.more("the bit is put back, and the log is good again")
    story.facts["named"] = {
        "path": name, "flipped": at, "offset": first.offset, "seq": first.stream_seq, "code": first.code,
        "message": first.message,
    }  # fmt: skip
