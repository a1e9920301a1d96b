"""Cursors on demand: what is in memory makes no difference to what is decided, and it is bounded."""

import errno
import random
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.examples import examples
from tests.hub import builders as w

from veen.core.hashing import H
from veen.core.limits import DEFAULT_LIMITS
from veen.core.objects.captoken import CapToken, Rate
from veen.core.objects.control import ControlRecord
from veen.core.objects.receipt import issue_bytes
from veen.hub.admission.decide import Refuse, decide
from veen.hub.admission.policy import Kex1
from veen.io.local import OsFs
from veen.storage import journal as wal
from veen.storage import layout
from veen.storage.state import Capacity, CursorCache, KeyFilter, Presence
from veen.storage.store import Group, Store
from veen.testing.memfs import MemFs

KEYS = [w.ALICE, w.BOB, w.STRANGER]
LABELS = [H(b"label %d" % number) for number in range(4)]
TOKENS = [CapToken.issue(w.ISSUER, key.public, [w.STREAM], ttl=10**9, rate=Rate(per_sec=2, burst=12)) for key in KEYS]
POLICY = w.policy(
    stream_scope="open",
    preloaded={token.auth_ref(): token for token in TOKENS},
    kex1=Kex1(max_client_id_lifetime_sec=60, max_msgs_per_client_id_per_label=12),
)
OPEN = w.policy(stream_scope="open", capability_gating=False)
LIMITS = replace(DEFAULT_LIMITS, max_checkpoint_interval=3)
TINY = Capacity(labels=1, clients=1, caps=1)
HUGE = Capacity(labels=10**6, clients=10**6, caps=10**6)


class Hub:
    """A store and its admission, without threads; nothing in it depends on a clock."""

    def __init__(self, capacity, policy=POLICY, fs=None):
        self.fs, self.capacity, self.policy, self.now = fs or MemFs(), capacity, policy, w.NOW
        self.answers = []
        self.open()

    def open(self):
        self.store = Store.open(self.fs, LIMITS, w.seal, segment_bytes=1 << 20, capacity=self.capacity)

    def find(self, label, client_row, client_seq):
        stream_seq, files = self.store.stream_seq_of(client_row, client_seq), self.store.files(label.label)
        if stream_seq is None or files is None or stream_seq > files.size:
            return None
        return stream_seq, files.node_at(0, stream_seq - 1)

    def submit(self, messages, group=None):
        store, group = self.store, Group() if group is None else group
        state = store.state
        for message in messages:
            decision = decide(state, self.policy, w.resolver(), message, self.now, self.find)
            if isinstance(decision, Refuse):
                self.answers.append((decision.refusal, decision.detail))
                continue
            for body in decision.records:
                record = ControlRecord.issue(w.HUB, state.control, body, hub_ts=self.now)
                store.stage_control(record)
                group.add_control(record)
            admitted = state.admit(
                state.labels[message.label],
                client_id=message.client_id,
                client_seq=message.client_seq,
                prev_ack=message.prev_ack,
                auth_ref=message.auth_ref,
                leaf_hash=message.leaf_hash(),
                hub_ts=self.now,
            )
            receipt = issue_bytes(
                w.HUB, message.label, admitted.stream_seq, admitted.leaf_hash, admitted.mmr_root, self.now
            )
            group.add_entry(admitted, message.to_bytes(), receipt)
            self.answers.append(receipt)
        return group

    def commit(self, group):
        if group.done:
            self.store.journal.write(group.payload())
            self.store.apply(group)

    def restart(self):
        self.store.close()
        self.open()

    def crash(self, seed):
        self.fs = self.fs.after_crash(random.Random(seed))
        self.open()

    def learn(self):
        for _ in self.store.learn_keys():
            pass

    def log(self):
        self.store.close()
        return {path: data for path, data in self.fs.files().items() if not path.startswith("journal/")}, [
            row for row in self.fs.database(layout.INDEX).iterdump() if "'check'" not in row and "'segment'" not in row
        ]


sends = st.tuples(
    st.just("send"),
    st.lists(
        st.tuples(
            st.integers(0, len(KEYS) - 1), st.integers(0, len(LABELS) - 1), st.sampled_from([1, 1, 1, 1, 0, 2]),
            st.sampled_from([0, 0, 0, 1, 3]),
        ),
        min_size=1,
        max_size=5,
    ),
)  # fmt: skip
steps = st.lists(
    st.one_of(
        sends,
        sends,
        st.tuples(st.just("roll"), st.just(0)),
        st.tuples(st.just("persist"), st.just(0)),
        st.tuples(st.sampled_from(["commit", "restart", "learn"]), st.just(0)),
        st.tuples(st.just("wait"), st.integers(1, 8)),
        st.tuples(st.just("crash"), st.integers(0, 999)),
        st.tuples(st.just("read"), st.integers(0, len(LABELS) - 1)),
    ),
    min_size=10,
    max_size=60,
)


def play(plan, capacity):
    """The answers, the files and the index after a plan. Each client goes on from what was acknowledged.

    As in a hub, a group may be staged before the one before it is applied, and a retirement becomes durable later.
    """
    hub, sent, late, staged = Hub(capacity), dict[tuple[int, int], int](), None, list[Group]()

    def persist():
        nonlocal late
        if late is not None:
            hub.store.persist(late)
            hub.store.finish_retirement()
            late = None

    def commit(but=0):
        while len(staged) > but:
            hub.commit(staged.pop(0))

    for what, detail in plan:
        if what == "send":
            group = Group()
            for who, where, step, ack in detail:
                seq = max(1, sent.get((who, where), 0) + step)
                hub.submit([w.msg(KEYS[who], seq=seq, ack=ack, token=TOKENS[who], label=LABELS[where])], group)
                if isinstance(hub.answers[-1], bytes):
                    sent[who, where] = seq
            staged.append(group)
            commit(but=2)
        elif what == "wait":
            hub.now += detail
        elif what == "commit":
            commit()
        elif what == "persist":
            persist()
        elif what == "read":
            files = hub.store.files(LABELS[detail])
            if files is not None and files.size:
                hub.answers.append(hub.store.reader.frames(files, 1, files.size, 1 << 20))
        elif what == "learn":
            hub.learn()
        elif what == "crash":
            late = None
            staged.clear()
            hub.crash(detail)
            state = hub.store.state
            for who, where in sent:  # a client resyncs
                label = state.labels.get(LABELS[where])
                cursor = state.client(label, KEYS[who].public) if label else None
                sent[who, where] = cursor.client_seq if cursor else 0
        elif what == "roll":
            persist()
            hub.store.journal.roll()
            late = hub.store.capture()
        else:
            persist()
            commit()
            hub.restart()
    persist()
    commit()
    return hub.answers, *hub.log()


EACH = [(0, where, 1, 0) for where in range(len(LABELS))]
# Cursors that were saved while a later change of them was staged, and were then not the last in use.
OVERTAKEN = [("send", EACH), ("commit", 0), ("roll", 0), ("send", EACH), ("persist", 0), ("send", EACH)]


@pytest.mark.req("GEN-16", "RES-01", "GEN-27")
@example(plan=OVERTAKEN)
@examples(150, deadline=None)
@given(plan=steps)
def test_a_hub_that_keeps_one_cursor_decides_as_one_that_keeps_all(plan):
    """I13, D-56: evicting, reloading, restarting and a full filter change no answer, no receipt and no byte on disk."""
    tiny, huge = play(plan, TINY), play(plan, HUGE)
    assert tiny[0] == huge[0]
    assert tiny[1] == huge[1]
    assert tiny[2] == huge[2]


def append(hub, count, *, retire_every=50):
    """One message of one client into each of `count` new labels."""
    first = hub.store.label_count
    for number in range(first, first + count):
        message = w.msg(KEYS[0], seq=1, token=None, label=H(b"many %d" % number))
        hub.commit(hub.submit([message]))
        if number % retire_every == retire_every - 1:
            hub.store.retire()


def test_what_is_in_memory_is_bounded_by_the_capacity_and_what_is_not_saved():
    hub = Hub(Capacity(labels=10, clients=20, caps=10), OPEN)
    append(hub, 200)
    state = hub.store.state
    assert (len(state.labels), len(state.clients)) == (10, 20)
    append(hub, 30)  # not saved yet: these stay
    assert (len(state.labels), len(state.clients)) == (40, 50)
    assert not any(isinstance(answer, tuple) for answer in hub.answers)
    assert hub.store.label_count == hub.store.entry_count == 230
    assert len(state.writers) == 1
    hub.store.retire()
    assert len(state.writers) == 0
    assert state.first_ts(KEYS[0].public) == w.NOW


def queries(hub):
    asked: list[str] = []
    hub.fs.database(layout.INDEX).set_trace_callback(asked.append)
    return asked


def test_a_start_reads_no_cursor():
    """What it costs does not depend on the number of labels."""
    hub = Hub(HUGE, OPEN)
    append(hub, 150)
    hub.store.close()
    asked = queries(hub)
    hub.open()
    assert len(hub.store.state.labels) == len(hub.store.state.clients) == 0
    assert hub.store.newest is not None
    rows = [query for query in asked if "FROM labels" in query or "FROM clients" in query or "FROM caps" in query]
    assert len(rows) == 1, rows  # the label of the newest entry
    assert hub.store.newest.label == H(b"many 149")


@pytest.mark.req("RES-01")
def test_a_new_label_and_a_new_client_cost_no_look_up_once_the_keys_are_known():
    hub = Hub(TINY, OPEN)
    append(hub, 100)
    hub.restart()
    asked = queries(hub)

    def looked_up(number):
        asked.clear()
        hub.commit(hub.submit([w.msg(KEYS[0], seq=1, token=None, label=H(b"new %d" % number))]))
        return [query for query in asked if query.startswith("SELECT")]

    assert len(looked_up(0)) == 2  # label and client: who knows?
    hub.learn()
    new = [looked_up(number) for number in range(1, 201)]
    assert sum(not queries for queries in new) > 150
    message = w.msg(KEYS[0], seq=2, token=None, label=H(b"many 7"))  # not in memory, but there
    hub.commit(hub.submit([message]))
    assert isinstance(hub.answers[-1], bytes)


def test_a_filter_contains_every_key_that_was_added():
    some, others = [H(b"%d" % number) for number in range(5_000)], [H(b"other %d" % number) for number in range(5_000)]
    keys = KeyFilter(5_000)
    for key in some:
        keys.add(key)
    assert all(key in keys for key in some)
    assert sum(key in keys for key in others) < 500


def test_presence_excludes_nothing_before_it_knows_all_keys():
    presence = Presence(keys_before=1)
    assert not presence.excludes(b"new")
    before = KeyFilter(1)
    before.add(b"old")
    presence.add(b"since")
    presence.complete(before)
    assert not presence.excludes(b"old")
    assert not presence.excludes(b"since")
    assert presence.excludes(b"new")
    for number in range(10_000):  # its parts grow, and lose nothing
        presence.add(number)
    assert not any(presence.excludes(number) for number in range(10_000))


def test_a_cursor_that_somebody_holds_is_the_one_that_is_found_again():
    """A reader holds the files of a label across turns; a second object would not see what the first one seals."""
    hub = Hub(TINY, OPEN)
    append(hub, 60)
    first = hub.store.files(H(b"many 0"))
    for number in range(1, 20):
        hub.store.files(H(b"many %d" % number))
    hub.commit(hub.submit([w.msg(KEYS[0], seq=seq, token=None, label=H(b"many 0")) for seq in (2, 3, 4)]))
    assert hub.store.files(H(b"many 0")) is first
    assert first is not None
    assert first.size == 4
    assert [frame.stream_seq for frame in hub.store.reader.frames(first, 1, 4, 1 << 20)] == [1, 2, 3, 4]


def test_the_least_recently_used_saved_cursor_goes_first():
    loads = []

    def load(key):
        loads.append(key)
        return [key]

    cache = CursorCache(load, 2)
    cursor = cache["a"]
    cache["a"] = cursor  # changed: it stays
    assert [cache.get(key) for key in "bcbd"] == [["b"], ["c"], ["b"], ["d"]]
    assert loads == ["a", "b", "c", "d"]
    assert cache.get("b") == ["b"]
    assert cache.get("a") is cursor
    assert loads == ["a", "b", "c", "d"]
    cache.get("c")
    assert loads[-1] == "c"
    cache.mark_saved("a")
    assert cache.get("a") is cursor


def test_labels_are_listed_in_order_wherever_they_are():
    hub = Hub(TINY, OPEN)
    append(hub, 120)  # some retired, some not
    labels = sorted(H(b"many %d" % number) for number in range(120))
    assert [files.label for files in hub.store.labels()] == labels
    assert [head.label for head in hub.store.heads(0, labels[9], 5)] == labels[10:15]
    assert [head.size for head in hub.store.heads(0, None, 200)] == [1] * 120
    assert hub.store.heads(1, None, 5) == []
    hub.store.journal.roll()
    retirement = hub.store.capture()
    hub.store.persist(retirement)  # the index has them now, and so has the store
    assert [head.label for head in hub.store.heads(0, None, 200)] == labels


def test_a_retirement_is_due_before_too_many_labels_wait_for_it(monkeypatch):
    """Their cursors cannot leave memory before; a journal segment alone would hold some hundred thousand labels."""
    monkeypatch.setattr("veen.storage.store._MOST_LABELS", 40)
    hub = Hub(TINY, OPEN)
    append(hub, 39)
    assert not hub.store.journal_is_full
    append(hub, 1)
    assert hub.store.journal_is_full
    hub.store.retire()
    assert not hub.store.journal_is_full


def test_a_store_with_very_many_labels_stops_without_writing_their_files_and_goes_on(monkeypatch):
    """The time of a stop would be that of three files for each label; the journal has all of it."""
    monkeypatch.setattr("veen.storage.store._MOST_LABELS_AT_STOP", 20)
    fs = MemFs()
    hub = Hub(HUGE, OPEN, fs)
    append(hub, 40)
    heads = hub.store.heads(0, None, 100)
    files, operations = fs.list("log"), fs.operations
    hub.store.close()
    assert fs.list("log") == files
    assert fs.operations == operations
    again = Hub(HUGE, OPEN, fs.after_crash(random.Random(1)))
    assert again.store.heads(0, None, 100) == heads
    again.store.retire()
    again.store.close()
    assert len(again.fs.list("log")) >= 40


def test_files_are_written_ahead_of_a_retirement_in_pieces(monkeypatch):
    monkeypatch.setattr("veen.storage.store._MOST_LABELS", 40)
    monkeypatch.setattr("veen.storage.store._SYNCED_ONE_BY_ONE", 10)
    hub = Hub(HUGE, OPEN)
    append(hub, 40)
    assert hub.store.journal_is_full
    assert not hub.store.can_retire
    pieces = 1
    while hub.store.flush_some(8):
        pieces += 1
    assert pieces == 5
    assert hub.store.can_retire
    written = hub.fs.operations
    hub.store.capture()
    assert hub.fs.operations == written + 2  # the control journal is created and written


def test_a_retirement_of_many_labels_syncs_the_file_system_once(tmp_path, monkeypatch):
    fs = OsFs(tmp_path)
    hub = Hub(HUGE, OPEN, fs)
    append(hub, 40)
    disk = hub.store._disk
    if disk is None:
        pytest.skip("this machine has no syncfs that tells of failed writes")
    hub.store.journal.roll()
    retirement = hub.store.capture()
    synced = []
    monkeypatch.setattr("veen.io.local._OsFile.sync", lambda file: synced.append(file))
    hub.store.persist(retirement)
    assert len(retirement.paths) > 100
    assert not synced
    hub.store.abandon()


def test_a_failed_sync_of_the_file_system_is_an_error_and_not_a_retirement(tmp_path, monkeypatch):
    hub = Hub(HUGE, OPEN, OsFs(tmp_path))
    append(hub, 40)

    def fail(disk):
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr("veen.io.local._FileSystems.sync", fail)
    if hub.store._disk is None:
        pytest.skip("this machine has no syncfs that tells of failed writes")
    segments = wal.segments(hub.fs)
    with pytest.raises(OSError, match="input/output"):
        hub.store.retire()
    assert set(segments) <= set(wal.segments(hub.fs))
    hub.store.abandon()
