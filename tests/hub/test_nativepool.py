"""Python and the native module give the same answers and the same bytes, whatever arrives and in whatever order."""

import asyncio
import random
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from tests.damage import flipped
from tests.hub import builders as w

from veen import native
from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import Refusal
from veen.core.limits import Limits
from veen.core.objects.captoken import CapToken
from veen.core.objects.control import LimitsSet, StreamRegister
from veen.core.objects.msg import end_of
from veen.hub.admission.decide import Refuse
from veen.hub.sequencer.clock import HubClock
from veen.hub.sequencer.sequencer import NotDurable, Sequencer, Stopped
from veen.io.errors import StorageError
from veen.io.local import OsFs
from veen.storage.store import Store

LIMITS = Limits(max_checkpoint_interval=7)
SMALLER = replace(LIMITS, max_msg_bytes=2_000)
LABELS = (w.LABEL, bytes(32), bytes([7]) * 32)
KEYS = (w.ALICE, w.BOB)
TOKENS = {key.public: CapToken.issue(w.ISSUER, key.public, [w.STREAM], ttl=10**9) for key in (*KEYS, w.STRANGER)}
POLICY = w.policy(preloaded={token.auth_ref(): token for token in TOKENS.values()}, stream_scope="open")
NEXT = SigningKey(bytes([42]) * 32)


@pytest.fixture(scope="module")
def module():
    if native.LOADED.module is None:
        pytest.skip(native.LOADED.what)
    return native.LOADED.module


class TwoKeys:
    """A hub that signs with another key from a second on, as after a rotation."""

    def signing_key_at(self, hub_ts):
        return w.HUB if hub_ts < w.NOW + 3 else NEXT


def random_message(rng, sent):
    """A message, good or wrong in one way. Only good ones count as sent, so that most of the following fit."""
    label, what = rng.choice(LABELS), rng.randrange(24)
    key = w.STRANGER if what == 0 else rng.choice(KEYS)  # who sends what may be too large is never followed
    seq = sent.get((key.public, label), 0) + {1: 0, 2: 2}.get(what, 1)
    ciphertext = w.CIPHERTEXT + {0: bytes(3_000), 3: b"\1"}.get(what, bytes(rng.choice([0, 300])))
    changes = {4: {"profile_id": bytes(32)}, 5: {"ct_hash": bytes(32)}}.get(what, {})
    raw = w.msg(key, seq=seq, token=TOKENS[key.public], label=label, ciphertext=ciphertext, **changes).to_bytes()
    match what:
        case 6:
            return flipped(raw, rng.randrange(len(raw)))
        case 7:
            return raw[: rng.randrange(len(raw))]
        case 8:
            return flipped(raw, len(raw) - 1)
    if what > 5:
        sent[key.public, label] = seq
    return raw


def steps(seed):
    """What happens to a hub, in order: batches of messages, control records, seconds that pass."""
    rng = random.Random(seed)
    sent: dict[tuple[bytes, bytes], int] = {}
    plan: list[tuple[str, Any]] = [("second", 0)]
    for _ in range(12):
        plan.append(("batch", [random_message(rng, sent) for _ in range(rng.randrange(1, 40))]))
        match rng.randrange(5):
            case 0:
                plan.append(("second", rng.randrange(3)))
            case 1:
                plan.append(("limits", rng.choice([SMALLER, LIMITS])))
            case 2:
                plan.append(("register", rng.randbytes(32)))
    return plan


def registration(stream_id, hub_ts):
    return StreamRegister(stream_id=stream_id)


def limitation(limits, hub_ts):
    return LimitsSet(limits=limits.to_json())


def drive(directory, plan, module, workers):
    """All answers in order of a hub that goes through `plan`."""
    answers: list[object] = []
    now = w.NOW

    async def scenario():
        nonlocal now
        store = Store.open(OsFs(directory), LIMITS, w.seal)
        clock = HubClock(lambda: now, ticks=lambda: 0.0)
        line = Sequencer(
            store, TwoKeys(), POLICY, w.resolver(), workers=workers, clock=clock, not_before=w.NOW, module=module
        )
        for what, value in plan:
            if what == "second":
                now += value
            elif what == "register":
                await line.control(partial(registration, value))
            elif what == "limits":
                await line.control(partial(limitation, value), new_second=True)
            else:
                answers.extend(await asyncio.gather(*(line.submit(raw) for raw in value)))
        await line.close()

    asyncio.run(asyncio.wait_for(scenario(), 120))
    return answers


def log_of(directory):
    """All files but the journal, whose groups depend on who was fast, and the index, which is a database."""
    files = {path.relative_to(directory).as_posix(): path for path in directory.rglob("*") if path.is_file()}
    return {
        name: path.read_bytes() for name, path in files.items() if not name.startswith(("journal/", "index", "lock"))
    }


class AllDoubtful:
    """The native module, but it leaves every message to Python: what it says must never decide anything."""

    def __init__(self, module):
        self._module = module

    def __getattr__(self, name):
        return getattr(self._module, name)

    def Pool(self, *args):  # noqa: N802 - a class of the module
        return Doubtful(self._module.Pool(*args))


class Doubtful:
    def __init__(self, pool):
        self._pool = pool

    def __getattr__(self, name):
        return getattr(self._pool, name)

    def take(self):
        return [None for _ in self._pool.take()]


@pytest.mark.req("ADM-05", "RCPT-03")
@pytest.mark.parametrize("seed", range(4))
def test_the_native_module_gives_the_answers_and_the_log_of_python(tmp_path, module, seed):
    """I13: refusals within a batch, records between entries, other limits, other keys, other seconds."""
    plan = steps(seed)
    reference = drive(tmp_path / "python", plan, None, 0)
    log = log_of(tmp_path / "python")
    assert len(log) > 5
    for number, (other, workers) in enumerate([(module, 1), (module, 3), (AllDoubtful(module), 2)]):
        assert drive(tmp_path / str(number), plan, other, workers) == reference
        assert log_of(tmp_path / str(number)) == log
    kinds = Counter(answer.refusal if isinstance(answer, Refuse) else "accepted" for answer in reference)
    assert kinds["accepted"] > 50
    assert len(kinds) > 5, kinds


def test_the_plans_together_meet_every_kind_of_answer(tmp_path):
    kinds = set()
    for seed in range(4):
        for answer in drive(tmp_path / str(seed), steps(seed), None, 0):
            kinds.add(answer.refusal if isinstance(answer, Refuse) else "accepted")
    wanted = {"accepted", Refusal.CBOR_INVALID, Refusal.PROFILE, Refusal.CT_HASH, Refusal.CT_PADDING}
    wanted |= {Refusal.SIG_INVALID, Refusal.DUPLICATE, Refusal.CLIENT_SEQ, Refusal.SIZE_PREFILTER}
    assert wanted <= kinds


def test_refusals_by_structure_are_answered_even_when_the_hub_stops(tmp_path, module):
    """As in Python, where they are answered before anything waits; the others never became durable."""

    async def scenario():
        line = Sequencer(Store.open(OsFs(tmp_path), LIMITS, w.seal), w.Signer(), POLICY, w.resolver(), module=module)
        token = TOKENS[w.ALICE.public]
        malformed = line.submit(w.msg(token=token, ct_hash=bytes(32)).to_bytes())
        good = line.submit(w.msg(token=token).to_bytes())
        line._stop(StorageError("test"))
        refused = await malformed
        with pytest.raises(NotDurable):
            await good
        with pytest.raises(Stopped):
            line.submit(b"")
        await line.close()
        return refused

    assert asyncio.run(asyncio.wait_for(scenario(), 60)).refusal is Refusal.CT_HASH


def test_a_worker_that_fails_stops_the_hub(tmp_path, module):
    """A defect of the module: nothing that it worked on counts."""
    failures: list[BaseException] = []

    class Broken(Doubtful):
        broken = False

        def take(self):
            if self.broken:
                raise RuntimeError("a worker thread of veen_native failed")
            return self._pool.take()

    async def scenario():
        stopped = asyncio.Event()

        def failed(error):
            failures.append(error)
            stopped.set()

        line = Sequencer(
            Store.open(OsFs(tmp_path), LIMITS, w.seal), w.Signer(), POLICY, w.resolver(), failed=failed, module=module
        )
        token = TOKENS[w.ALICE.public]
        assert isinstance(await line.submit(w.msg(token=token).to_bytes()), bytes)
        assert line._pool is not None
        line._pool._pool = Broken(line._pool._pool)
        Broken.broken = True
        answer = line.submit(w.msg(token=token, seq=2).to_bytes())
        await stopped.wait()
        with pytest.raises(Stopped):
            line.submit(b"")
        assert not answer.done()  # it gets none: whether it is in the log is for a resync to say
        await line.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))
    assert "veen_native" in str(failures[0])


def test_many_verdicts_at_once_leave_the_loop_free_in_between(tmp_path, module):
    """Others wait for the event loop too: a turn acts on a bounded number of verdicts."""
    sizes = []

    async def scenario():
        line = Sequencer(Store.open(OsFs(tmp_path), LIMITS, w.seal), w.Signer(), POLICY, w.resolver(), module=module)
        assert line._pool is not None
        act = line._pool._done

        def counted(verdicts):
            sizes.append(len(verdicts))
            act(verdicts)

        line._pool._done = counted
        token = TOKENS[w.ALICE.public]
        answers = [line.submit(w.msg(token=token, seq=seq).to_bytes()) for seq in range(1, 301)]
        assert all(isinstance(answer, bytes) for answer in await asyncio.gather(*answers))
        await line.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))
    assert sum(sizes) == 300
    assert max(sizes) <= 64


def test_a_batch_is_split_at_the_same_places(module):
    """What has not the outline of a MSG is left to Python, wherever it stands."""
    rng = random.Random(7)
    good = [
        w.msg(w.ALICE, seq=seq, token=token, ciphertext=w.CIPHERTEXT + bytes(size)).to_bytes()
        for seq in (1, 30, 300, 70_000, 2**33)
        for token in (None, TOKENS[w.ALICE.public])
        for size in (0, 300)
    ]
    strange = [b"\x01", b"\x8a\x01", b"\x82\x01\x02", b"\xf6", good[0][:-1], flipped(good[0], 0), flipped(good[0], 70)]
    for _ in range(300):
        items = rng.choices(good, k=rng.randrange(6))
        items.insert(rng.randrange(len(items) + 1), rng.choice([*good, *strange]))
        data = b"".join(items)
        messages: list[bytes] = []
        start = 0
        while (end := end_of(data, start)) is not None and len(messages) < 4:
            messages.append(data[start:end])
            start = end
        assert module.split(data, 0, 4) == (messages, start)
    assert module.split(b"", 0, 4) == ([], 0)
    assert module.split(good[0], len(good[0]) + 5, 4) == ([], len(good[0]) + 5)
