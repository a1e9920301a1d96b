"""Logs for the audit: honest ones, and ones by a hub that signs whatever it is told to."""

import pickle
import random
from dataclasses import replace
from typing import Any, ClassVar

from tests.storage.builders import LABELS, LIMITS, World
from tests.storage.driver import CLIENTS, HUB, STREAMS, TOKENS

from veen.core.objects.control import CapAuthorize, LabelOpen, LimitsSet
from veen.core.objects.msg import Msg
from veen.core.objects.profile import PRESETS
from veen.core.objects.receipt import Receipt
from veen.io.places import open_fs
from veen.storage import frame
from veen.storage.store import Group
from veen.verify.audit import AuditOptions, PythonEngine, audit
from veen.verify.audit.chunk import check_chunk, check_chunk_slowly, check_claimed, fold_only
from veen.verify.audit.engine import cut

SEALED = bytes(40)  # empty header and body, by their length fields


class Liar(World):
    """A hub without a conscience: whatever is told becomes a consistent, signed log."""

    def tell(self, *, label=0, client=0, opened=None, authorised=True, key=None, label_name=None, **changes):
        group, state = Group(), self.store.state
        name, stream = label_name or LABELS[label], STREAMS[label]
        epoch, stream = opened or (0, stream)
        token = changes.pop("token", TOKENS[client])
        if token is not None and authorised and token.auth_ref() not in state.caps:
            self.control(CapAuthorize.of(token), group)
        if name not in state.labels:
            self.control(LabelOpen(label=name, epoch=epoch, stream_id=stream), group)
        cursor = state.client(state.labels[name], CLIENTS[client].public)
        size = state.labels[name].size
        msg = Msg.compose(
            CLIENTS[client],
            profile_id=changes.get("profile", PRESETS["bulk"]).profile_id(),
            label=name,
            client_seq=changes.get("client_seq", cursor.client_seq + 1 if cursor else 1),
            prev_ack=changes.get("prev_ack", size),
            auth_ref=token.auth_ref() if token else None,
            ciphertext=changes.get("ciphertext", SEALED + bytes(size % 5)),
        )
        admitted = state.admit(
            state.labels[name],
            client_id=msg.client_id,
            client_seq=msg.client_seq,
            prev_ack=msg.prev_ack,
            auth_ref=msg.auth_ref if authorised else None,
            leaf_hash=msg.leaf_hash(),
            hub_ts=self.now,
        )
        receipt = Receipt.issue(
            key or self.keys.signing_key_at(self.now),
            label=name,
            stream_seq=admitted.stream_seq,
            leaf_hash=admitted.leaf_hash,
            mmr_root=admitted.mmr_root,
            hub_ts=self.now,
        )
        framed = frame.encode(name, admitted.stream_seq, msg.to_bytes(), receipt.to_bytes())
        group.add_entry(admitted, framed.msg, framed.receipt)
        self.commit(group)
        self.frames.append(framed)


def grow(world, count, rng=None):
    """Honest entries of three writers into two labels."""
    rng = rng or random.Random(count)
    for _ in range(count):
        world.now += rng.randrange(3)
        world.tell(label=rng.randrange(2), client=rng.randrange(3), ciphertext=SEALED + bytes(rng.randrange(300)),
                   **({"token": None} if rng.randrange(4) == 0 else {}))  # fmt: skip


def log(count, seed=0):
    """A directory at rest, in memory."""
    world = Liar()
    world.control(LimitsSet(limits=LIMITS.to_json()))
    grow(world, count, random.Random(seed))
    world.store.close()
    world.bind()
    return world


def dump(source, path):
    """Onto the disk, without private keys and without an index: the audit needs neither. A world, its disk or files."""
    files = source if isinstance(source, dict) else getattr(source, "fs", source).files()
    for name, data in files.items():
        if not name.startswith("keys/"):
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(data)
    return path


def chunks(path, label=0):
    return sorted((path / "log").glob(f"chunk-{LABELS[label].hex()}-*.log"))


def run(path, engine=None, since=None, **options):
    return audit(str(path), AuditOptions(**options), engine=engine, since=since)


def codes(path, **options):
    return {finding.code for finding in run(path, **options).findings}


def tables(result):
    """Every byte that must not depend on how the work was dealt out."""
    return [
        table.schema.to_string().encode() + b"".join(batch.serialize().to_pybytes() for batch in table.to_batches())
        for table in (result.findings_table, result.commitments_table, result.cursors_table)
    ]


def reframed(chunk, number, change):
    """The same file, with one entry changed and framed again, as by somebody who knows how."""
    chunk.write_bytes(reframed_bytes(chunk.read_bytes(), number, change))


def reframed_bytes(data, number, change):
    entries = [entry for _, entry in frame.frames(data)]
    entry = entries[number]
    msg, receipt = change(Msg.from_bytes(entry.msg), Receipt.from_bytes(entry.receipt))
    entries[number] = frame.encode(entry.label, entry.stream_seq, msg.to_bytes(), receipt.to_bytes())
    return b"".join(entry.to_bytes() for entry in entries)


def signed(receipt, key=HUB):
    return replace(receipt, hub_sig=key.sign(receipt.signing_digest()))


def resigned(msg):
    (key,) = [key for key in CLIENTS if key.public == msg.client_id]
    return replace(msg, sig=key.sign(msg.signing_digest()))


class ShuffledEngine:
    """As a cluster would: parts in any order, everything pickled on the way there and back."""

    def __init__(self, parts, seed=0):
        self._parts, self._rng = parts, random.Random(seed)

    def map(self, step, context, tasks, *, weight, what):
        parts = list(enumerate(cut(tasks, self._parts, weight)))
        self._rng.shuffle(parts)
        results = {}
        for number, part in parts:
            call, judged_by, own_tasks = pickle.loads(pickle.dumps((step, context, part)))  # noqa: S301 - our own
            fs = open_fs(judged_by.uri)
            results[number] = pickle.loads(pickle.dumps([call(fs, judged_by, task) for task in own_tasks]))  # noqa: S301 - our own
        for number in sorted(results):
            yield from results[number]


class TwoPassEngine(PythonEngine):
    """No claim is read: pass 1 folds every chunk, pass 2 checks it from the peaks before it."""

    STEPS: ClassVar[dict[Any, Any]] = {check_claimed: fold_only}

    def map(self, step, context, tasks, *, weight, what):
        return super().map(self.STEPS.get(step, step), context, tasks, weight=weight, what=what)


class SlowEngine(TwoPassEngine):
    """In two passes, and every chunk entry by entry, also those in which nothing is wrong."""

    STEPS: ClassVar[dict[Any, Any]] = {check_claimed: fold_only, check_chunk: check_chunk_slowly}


class CountingEngine(PythonEngine):
    """Counts the chunks that each pass checks."""

    def __init__(self):
        self.chunks = {"pass 1": 0, "pass 2": 0}

    def map(self, step, context, tasks, *, weight, what):
        self.chunks[what] += len(tasks)
        return super().map(step, context, tasks, weight=weight, what=what)
