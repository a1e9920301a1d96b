"""Hub and storage against a model that fits on one screen.

Hypothesis submits good and bad messages, retires, restarts, cuts the power, and reads; the model is a list of what
was acknowledged. Whatever the order of events, both must agree on every answer.
"""

import random

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.examples import examples
from tests.hub import builders as w

from veen.core.labels import label_of
from veen.core.limits import Limits
from veen.core.objects.captoken import CapToken
from veen.core.objects.control import ControlRecord, PolicyRevocation
from veen.core.objects.policies import Revocation
from veen.core.objects.receipt import Receipt, issue_bytes
from veen.core.tree.mmr import MmrTree
from veen.core.tree.proof import prove_consistency, prove_inclusion
from veen.hub.admission.decide import Refuse, check_structure, decide
from veen.hub.admission.policy import Kex1
from veen.storage.state import Capacity
from veen.storage.store import Group, Store
from veen.testing.memfs import MemFs

KEYS = [w.ALICE, w.BOB]
STREAMS = [w.STREAM, w.OTHER_STREAM]
LABELS = [label_of(w.ROUTING_KEY, stream, 0) for stream in STREAMS]
TOKENS = [CapToken.issue(w.ISSUER, key.public, STREAMS, ttl=10**9) for key in KEYS]
KEX1 = Kex1(max_client_id_lifetime_sec=40, max_msgs_per_client_id_per_label=20)
POLICY = w.policy(preloaded={token.auth_ref(): token for token in TOKENS}, kex1=KEX1)
PROFILES = frozenset((w.BULK.profile_id(),))
LIMITS = Limits(max_checkpoint_interval=3)
TINY = Capacity(labels=1, clients=1, caps=1)


class HubMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        self.fs = MemFs()
        self.resolver = w.resolver(*STREAMS)
        self.log: dict[bytes, list[tuple[bytes, bytes]]] = {
            label: [] for label in LABELS
        }  # what was acknowledged: (msg, receipt)
        self.sent = {}  # (label, client) -> last client_seq
        self.began = {}  # client -> when its first message was acknowledged
        self.revoked = []  # (client, from, until)
        self.now = w.NOW
        self.open()

    def open(self):
        self.store = Store.open(self.fs, LIMITS, w.seal, segment_bytes=5_000, capacity=TINY)

    def submit_group(self, messages):
        """The sequencer without its threads: decide, stage, write, apply."""
        group, answers = Group(), list[str | bytes]()
        for message in messages:
            raw = message.to_bytes()
            assert check_structure(raw, PROFILES, LIMITS) == message
            decision = decide(self.store.state, POLICY, self.resolver, message, self.now, lambda *_: None)
            if isinstance(decision, Refuse):
                answers.append(decision.refusal.name)
                continue
            for body in decision.records:
                record = ControlRecord.issue(w.HUB, self.store.state.control, body, hub_ts=self.now)
                self.store.stage_control(record)
                group.add_control(record)
            state = self.store.state
            admitted = state.admit(
                state.labels[message.label],
                client_id=message.client_id,
                client_seq=message.client_seq,
                prev_ack=message.prev_ack,
                auth_ref=message.auth_ref,
                leaf_hash=message.leaf_hash(),
                hub_ts=self.now,
            )
            seq, root = admitted.stream_seq, admitted.mmr_root
            receipt = issue_bytes(w.HUB, message.label, seq, message.leaf_hash(), root, self.now)
            group.add_entry(admitted, raw, receipt)
            answers.append(receipt)
        if group.done:
            self.store.journal.write(group.payload())
            self.store.apply(group)
        return answers

    @rule(
        plan=st.lists(
            st.tuples(st.integers(0, 1), st.integers(0, 1), st.sampled_from([0, 1, 1, 1, 1, 2, -1])),
            min_size=1,
            max_size=6,
        ),
        seconds=st.integers(0, 3),
    )
    def submit(self, plan, seconds):
        self.now += seconds
        messages, expected = [], []
        last = dict(self.sent)
        for who, where, step in plan:
            key = (LABELS[where], KEYS[who].public)
            seq = max(0, last.get(key, 0) + step)
            messages.append(w.msg(KEYS[who], seq=seq, token=TOKENS[who], label=LABELS[where]))
            if (bound := self.bound(key, last.get(key, 0))) is not None:
                expected.append(bound)
            elif seq == last.get(key, 0) + 1:
                last[key] = seq
                expected.append("accepted")
            else:
                expected.append("DUPLICATE" if 1 <= seq <= last.get(key, 0) else "CLIENT_SEQ")
        answers = self.submit_group(messages)
        for message, answer, want in zip(messages, answers, expected, strict=True):
            if want != "accepted":
                assert answer == want
                continue
            receipt = Receipt.from_bytes(answer)
            self.log[message.label].append((message.to_bytes(), answer))
            self.sent[message.label, message.client_id] = message.client_seq
            self.began.setdefault(message.client_id, self.now)
            assert receipt.stream_seq == len(self.log[message.label])

    def bound(self, key, sent):
        """Why a client may send nothing to a label now, whatever the message."""
        client = key[1]
        if any(who == client and start <= self.now < until for who, start, until in self.revoked):
            return "CLIENT_REVOKED"
        if self.now - self.began.get(client, self.now) > KEX1.max_client_id_lifetime_sec:
            return "CLIENT_LIFETIME"
        return "CLIENT_QUOTA" if sent >= KEX1.max_msgs_per_client_id_per_label else None

    @rule(who=st.integers(0, 1), begins=st.integers(-5, 5), ttl=st.integers(0, 10))
    def revoke(self, who, begins, ttl):
        revocation = Revocation(kind="client-id", target=KEYS[who].public, ts=self.now + begins, ttl=ttl)
        body = PolicyRevocation(revocations=(revocation,))
        record, group = ControlRecord.issue(w.HUB, self.store.state.control, body, hub_ts=self.now), Group()
        self.store.stage_control(record)
        group.add_control(record)
        self.store.journal.write(group.payload())
        self.store.apply(group)
        self.revoked.append((KEYS[who].public, max(self.now + begins, self.now + 1), self.now + begins + ttl))

    @rule()
    def retire(self):
        self.store.retire()

    @rule()
    def restart(self):
        self.store.close()
        self.open()

    @rule(seed=st.integers(0, 2**16))
    def cut_the_power(self, seed):
        self.fs = self.fs.after_crash(random.Random(seed))
        self.open()

    @rule(where=st.integers(0, 1), first=st.integers(1, 30), count=st.integers(0, 10))
    def read(self, where, first, count):
        log = self.log[LABELS[where]]
        files = self.store.files(LABELS[where])
        if files is None or first > len(log):
            return
        frames = self.store.reader.frames(files, first, first + count, 10**6)
        assert [(item.msg, item.receipt) for item in frames] == log[first - 1 : first + count]

    @rule(where=st.integers(0, 1), data=st.data())
    def prove(self, where, data):
        log = self.log[LABELS[where]]
        if not log:
            return
        files = self.store.files(LABELS[where])
        assert files is not None
        size = data.draw(st.integers(1, len(log)))
        seq = data.draw(st.integers(1, size))
        leaves = [Receipt.from_bytes(receipt).leaf_hash for _, receipt in log]
        roots = [Receipt.from_bytes(receipt).mmr_root for _, receipt in log]
        tree = MmrTree(leaves)
        assert prove_inclusion(files.node_at, seq, size) == prove_inclusion(tree.node_at, seq, size)
        prove_consistency(files.node_at, seq, size).verify(
            from_size=seq, from_root=roots[seq - 1], to_size=size, to_root=roots[size - 1]
        )

    @invariant()
    def heads_agree(self):
        for label, log in self.log.items():
            files = self.store.files(label)
            assert (files.size if files else 0) == len(log)
            if log:
                assert files is not None
                assert files.root() == Receipt.from_bytes(log[-1][1]).mmr_root


HubMachine.TestCase.settings = examples(120, stateful_step_count=30)
TestHubAgainstModel = HubMachine.TestCase
