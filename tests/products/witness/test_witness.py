"""A witness: what it cosigns, what it refuses, what it keeps, and what survives a restart."""

import asyncio
import sqlite3
import threading

import pytest

from veen.core.crypto.ed25519 import SigningKey
from veen.core.tlog.note import COSIGNATURE, ED25519, LogCheckpoint, Note, NoteSignature, VerifierKey, origin_hash
from veen.core.tlog.policy import PolicyKey
from veen.core.tlog.proof import AddCheckpoint
from veen.core.tlog.tree import TlogTree, prove_consistency
from veen.hub.process.outer import (
    WitnessAheadError,
    WitnessAnswerError,
    WitnessConfigError,
    WitnessForkError,
    WitnessOfflineError,
    ask_cosignatures,
    read_stored_checkpoint,
)
from veen.io.local import OsFs
from veen.io.web_listener import WebAnswer, WebListener
from veen.products.witness.service import WitnessService, WitnessStateError, WitnessStore, witness_key

LOG, OTHER, WITNESS = (SigningKey(bytes([n]) * 32) for n in (1, 2, 3))
ORIGIN = "hub.example/veen"
LOG_KEY = VerifierKey(ORIGIN, ED25519, LOG.public)
VKEY = VerifierKey("w.example", COSIGNATURE, WITNESS.public)
TREE = TlogTree(b"leaf %d" % number for number in range(300))
FORK = TlogTree(b"fork %d" % number for number in range(300))
NOW = 1_700_000_000


def note(size, tree=TREE, key=LOG, origin=ORIGIN):
    return LogCheckpoint(origin, size, tree.root(size)).sign(key)


def request(old, size, tree=TREE, **options):
    return AddCheckpoint(old, prove_consistency(tree.node_at, old, size), note(size, tree, **options)).to_bytes()


@pytest.fixture
def store(tmp_path):
    opened = WitnessStore(OsFs(tmp_path))
    yield opened
    opened.close()


def service(store, clock=lambda: NOW):
    return WitnessService(store, WITNESS, VKEY, {ORIGIN: LOG_KEY}, clock)


def test_a_checkpoint_that_continues_is_cosigned(store):
    witness = service(store)
    for old, size in ((0, 5), (5, 5), (5, 9), (9, 300)):
        answer = witness.add_checkpoint(request(old, size))
        assert answer.status == 200, answer.body
        line = NoteSignature.parse(answer.body.decode().removesuffix("\n"))
        assert line.verify(VKEY, note(size).text) == NOW
    answer = witness.answer("GET", f"/{origin_hash(ORIGIN)}/checkpoint", b"")
    stored = Note.from_bytes(answer.body)
    assert LogCheckpoint.parse(stored.text).size == 300
    assert [line.name for line in stored.signatures] == [ORIGIN, "w.example"]


@pytest.mark.parametrize(
    ("name", "body", "status"),
    [
        ("rubbish", b"\xff\xfe", 400),
        ("no note", b"old 0\n\n", 400),
        ("a proof of 64 lines", AddCheckpoint(5, (b"x" * 32,) * 64, note(9)).to_bytes(), 400),
        ("an old size above the new one", AddCheckpoint(9, (), note(7)).to_bytes(), 400),
        ("too many bytes", b"old 0\n" + b"x" * 200_000, 400),
        ("an unknown log", request(0, 5, origin="else.example"), 404),
        ("another key", request(5, 9, key=OTHER), 403),
        ("a bad signature", AddCheckpoint(5, (), Note(note(9).text, note(8).signatures)).to_bytes(), 403),
        ("another old size", request(4, 9), 409),
        ("first contact again", request(0, 9), 409),
        ("another root at the same size", request(5, 5, FORK), 422),
        ("a wrong proof", AddCheckpoint(5, (b"x" * 32,) * 3, note(9)).to_bytes(), 422),
        ("another history", request(5, 9, FORK), 422),
    ],
)
def test_what_does_not_continue_is_refused_and_changes_nothing(store, name, body, status):
    """INTEROP §2.4, §9."""
    witness = service(store)
    assert witness.add_checkpoint(request(0, 5)).status == 200
    answer = witness.add_checkpoint(body)
    assert answer.status == status
    if status == 409:
        assert (answer.content_type, answer.body) == ("text/x.tlog.size", b"5\n")
    newest = store.newest(ORIGIN)
    assert newest.checkpoint.size == 5
    assert newest.note == note(5)


def test_first_contact_with_a_proof_is_refused(store):
    witness = service(store)
    answer = witness.add_checkpoint(AddCheckpoint(0, (b"x" * 32,), note(5)).to_bytes())
    assert answer.status == 422
    assert store.newest(ORIGIN) is None


def test_a_fork_is_kept_with_both_notes_and_two_of_them_prove_it(store):
    witness = service(store)
    witness.add_checkpoint(request(0, 5))
    witness.add_checkpoint(request(5, 9))
    assert witness.add_checkpoint(request(0, 5, FORK)).status == 422  # of a size that was passed long ago
    ((origin, kind, at, cosigned, data),) = store.evidence()
    assert (origin, kind, at) == (ORIGIN, "fork", NOW)
    stored, other = Note.from_bytes(cosigned), AddCheckpoint.from_bytes(data).note
    first, second = LogCheckpoint.parse(stored.text), LogCheckpoint.parse(other.text)
    assert first.size == second.size
    assert first.root != second.root
    for signed in (stored, other):
        signed.signatures[0].verify(LOG_KEY, signed.text)
    assert len(stored.to_bytes()) + len(other.to_bytes()) <= 512


def test_an_inconsistent_request_is_kept_once(store):
    witness = service(store)
    witness.add_checkpoint(request(0, 5))
    for _ in range(3):
        witness.add_checkpoint(request(5, 9, FORK))
    assert [row[1] for row in store.evidence()] == ["inconsistent"]


def test_requests_that_anybody_can_make_leave_room_for_a_fork(store, monkeypatch):
    """One row for each note of the log, and forks have room of their own."""
    monkeypatch.setattr("veen.products.witness.service._MAX_EVIDENCE", 4)
    witness = service(store)
    witness.add_checkpoint(request(0, 5))
    for number in range(40):  # a genuine note with paths that anybody makes up
        path = (number.to_bytes(32),) * 3
        assert witness.add_checkpoint(AddCheckpoint(5, path, note(9)).to_bytes()).status == 422
    assert [row[1] for row in store.evidence()] == ["inconsistent"]
    for size in range(10, 30):  # and many genuine notes
        assert witness.add_checkpoint(AddCheckpoint(5, (), note(size)).to_bytes()).status == 422
    assert [row[1] for row in store.evidence()] == ["inconsistent"] * 4
    assert witness.add_checkpoint(request(5, 5, FORK)).status == 422
    assert [row[1] for row in store.evidence()].count("fork") == 1
    for number in range(30, 40):
        witness.add_checkpoint(AddCheckpoint(5, (), note(number)).to_bytes())
    assert [row[1] for row in store.evidence()].count("fork") == 1


def test_a_commit_that_fails_is_rolled_back_and_the_next_transaction_begins(store):
    """A deferred constraint fails at the COMMIT, which leaves the transaction open."""
    store._db.execute("PRAGMA foreign_keys = ON")
    store._db.execute("CREATE TABLE a (id INTEGER PRIMARY KEY)")
    store._db.execute("CREATE TABLE b (id INTEGER REFERENCES a (id) DEFERRABLE INITIALLY DEFERRED)")
    with pytest.raises(sqlite3.IntegrityError), store.transaction():
        store._db.execute("INSERT INTO b VALUES (7)")
    with store.transaction():
        store._db.execute("INSERT INTO a VALUES (7)")
    assert store._db.execute("SELECT count(*) FROM b").fetchone() == (0,)


def test_a_restart_remembers_and_a_second_witness_is_refused(tmp_path):
    fs = OsFs(tmp_path)
    first = WitnessStore(fs)
    service(first).add_checkpoint(request(0, 5))
    with pytest.raises(WitnessStateError):
        WitnessStore(fs)
    first.close()
    again = WitnessStore(fs)
    assert service(again).add_checkpoint(request(0, 5, FORK)).status == 422
    assert service(again).add_checkpoint(request(0, 9)).body == b"5\n"
    again.close()


def test_the_name_of_a_witness_never_changes(tmp_path):
    fs = OsFs(tmp_path)
    with pytest.raises(WitnessStateError):
        witness_key(fs, None)
    _, vkey = witness_key(fs, "w.example")
    assert witness_key(fs, None)[1] == vkey
    assert witness_key(fs, "w.example")[1] == vkey
    with pytest.raises(WitnessStateError):
        witness_key(fs, "v.example")


def test_check_and_store_are_one_step_for_two_at_once(store):
    """Two histories of one log at the same time: one of them is cosigned."""
    witness = service(store)

    async def both():
        from veen.io.web_listener import WebRequest

        bodies = (request(0, 5), request(0, 5, FORK))
        return await asyncio.gather(
            *(witness.handle(WebRequest("POST", "/add-checkpoint", {}, body)) for body in bodies for _ in range(4))
        )

    statuses = sorted(answer.status for answer in asyncio.run(both()))
    assert statuses in ([200, 409, 409, 409, 422, 422, 422, 422],)


# --- the client side -----------------------------------------------------------------------------------------


class Served:
    """A witness, or something that answers in its place, behind a port of this process."""

    def __init__(self, handle):
        self._handle = handle
        self._ready = threading.Event()

    def __enter__(self):
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()
        self._ready.wait(60)
        return PolicyKey(VKEY, f"http://127.0.0.1:{self.port}")

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)

    async def _run(self):
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        listener = WebListener("127.0.0.1", 0, self._handle)
        serving = asyncio.create_task(listener.run())
        await listener.ready.wait()
        self.port = listener.port
        self._ready.set()
        await self._stop.wait()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


def saying(status, body=b"", content_type="text/plain"):
    async def handle(request):
        return WebAnswer(status, body, content_type)

    return handle


def ask(witness, size=9, old=0, tree=TREE):
    return ask_cosignatures(
        witness, LOG_KEY, note(size, tree), old, lambda a, b: prove_consistency(tree.node_at, a, b), 20
    )


def test_a_hub_learns_the_size_that_a_witness_has_and_proves_from_there(store):
    with Served(service(store).handle) as witness:
        assert read_stored_checkpoint(witness, LOG_KEY, 20) is None
        assert len(ask(witness, 5)) == 1
        assert len(ask(witness, 9, old=0)) == 1  # 409 first
        checkpoint = read_stored_checkpoint(witness, LOG_KEY, 20)
        assert checkpoint is not None
        assert checkpoint.size == 9
        with pytest.raises(WitnessAheadError):
            ask(witness, 7, old=7)
        with pytest.raises(WitnessForkError):
            ask(witness, 9, old=9, tree=FORK)


@pytest.mark.parametrize(
    ("handle", "error"),
    [
        (saying(404), WitnessConfigError),
        (saying(403), WitnessConfigError),
        (saying(503), WitnessOfflineError),
        (saying(422), WitnessForkError),
        (saying(400), WitnessForkError),
        (saying(302), WitnessAnswerError),
        (saying(200, b""), WitnessAnswerError),
        (saying(200, b"rubbish\n"), WitnessAnswerError),
        (saying(200, note(9).signatures[0].line().encode()), WitnessAnswerError),
        (saying(409, b"3\n"), WitnessAnswerError),
        (saying(409, b"99\n", "text/x.tlog.size"), WitnessAnswerError),
        (saying(409, b"03\n", "text/x.tlog.size"), WitnessAnswerError),
        (saying(409, b"3\n", "text/x.tlog.size"), WitnessAnswerError),
    ],
)
def test_each_answer_of_a_witness_has_its_meaning(handle, error):
    with Served(handle) as witness, pytest.raises(error):
        ask(witness)


def test_a_cosignature_over_another_note_or_without_a_time_is_refused(store):
    from veen.core.tlog.note import cosign

    other = cosign(WITNESS, "w.example", note(8).text, NOW)
    timeless = NoteSignature("w.example", VKEY.key_id, bytes(8) + other.signature[8:])
    for line in (other, timeless):
        with Served(saying(200, line.line().encode())) as witness, pytest.raises(WitnessAnswerError):
            ask(witness)


def test_a_witness_that_is_offline_is_named():
    with pytest.raises(WitnessOfflineError) as caught:
        ask(PolicyKey(VKEY, "http://127.0.0.1:1"))
    assert caught.value.code == "E.WITNESS.OFFLINE"
