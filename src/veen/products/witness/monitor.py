"""A monitor of outer logs: reads every leaf, recomputes every root, and compares the statements of all sources.

A cosigned note shows that everybody sees one list of checkpoints. It does not show that the list is free of
contradictions: two CHECKPOINTs of one label and one upto_seq may both be in it, or in the lists of two copies of a hub.
Each such pair, signed by the hub, is a conviction of at most 512 bytes.

Checks of one source: the note is signed by the bound key; sizes never fall; the leaves have the signed root; each
CHECKPOINT is signed by the hub, and upto_seq rises in its label. Between sources and over time: one root for one size
of the outer log, one root for one position of a label. If two sources list different positions of a label, the other
one is asked for its CHECKPOINT at the listed position.
"""

import sqlite3
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from veen.client.errors import BadAnswer, ClientError, HubRefused
from veen.client.session import HubSession
from veen.client.verify.outer import OuterReader
from veen.core.errors import FormatError, VeenError, VerifyError
from veen.core.hashing import H
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import ControlRecord
from veen.core.objects.evidence import Equivocation
from veen.core.tlog.note import LogCheckpoint, Note
from veen.core.tlog.policy import WitnessPolicy
from veen.core.tlog.proof import CONTROL_LEAF, OuterLeaf
from veen.core.tlog.tree import HASH_BYTES, QuorumError, TlogError, TreeCursor, leaf_hash

_MAX_FINDINGS: Final = 1000  # of one poll of one source
_MAX_QUESTIONS: Final = 1000  # checkpoints that a source is asked for in one poll
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS sources (
    source TEXT PRIMARY KEY, size INTEGER NOT NULL, peaks BLOB NOT NULL, note BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS notes (
    origin TEXT NOT NULL, size INTEGER NOT NULL, note BLOB NOT NULL, PRIMARY KEY (origin, size)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS checkpoints (
    label BLOB NOT NULL, upto_seq INTEGER NOT NULL, hub_pk BLOB NOT NULL, data BLOB NOT NULL,
    PRIMARY KEY (label, upto_seq)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS listed (
    source TEXT NOT NULL, label BLOB NOT NULL, upto_seq INTEGER NOT NULL, PRIMARY KEY (source, label)) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class MonitorFinding:
    """A violation. `evidence` convinces others, where it exists."""

    code: str
    source: str
    what: str
    evidence: bytes | None = None
    label: bytes | None = None
    upto_seq: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "source": self.source,
            "what": self.what,
            "label": None if self.label is None else self.label.hex(),
            "upto_seq": self.upto_seq,
            "evidence_bytes": None if self.evidence is None else len(self.evidence),
        }

    @property
    def file_name(self) -> str | None:
        """Name of the evidence file in a directory."""
        if self.evidence is None:
            return None
        kind = "conviction" if self.code == "E.MONITOR.SPLIT" else "notes"
        suffix = "cbor" if self.code == "E.MONITOR.SPLIT" else "txt"
        return f"{kind}-{H(self.evidence).hex()[:16]}.{suffix}"


class MonitorState:
    """Everything read so far, in a file or in memory. One thread."""

    def __init__(self, path: Path | None = None) -> None:
        self.db = sqlite3.connect(":memory:" if path is None else path, isolation_level=None)
        self.db.executescript(_SCHEMA)

    def close(self) -> None:
        self.db.close()

    def place(self, source: str) -> tuple[TreeCursor, Note | None]:
        row = self.db.execute("SELECT size, peaks, note FROM sources WHERE source = ?", (source,)).fetchone()
        if row is None:
            return TreeCursor(), None
        size, peaks, note = row
        cut = [peaks[start : start + HASH_BYTES] for start in range(0, len(peaks), HASH_BYTES)]
        return TreeCursor(size, cut), Note.from_bytes(note)

    def note_at(self, origin: str, size: int) -> Note | None:
        row = self.db.execute("SELECT note FROM notes WHERE origin = ? AND size = ?", (origin, size)).fetchone()
        return None if row is None else Note.from_bytes(row[0])

    def checkpoint(self, label: bytes, upto_seq: int) -> tuple[Checkpoint, bytes] | None:
        query = "SELECT data, hub_pk FROM checkpoints WHERE label = ? AND upto_seq = ?"
        row = self.db.execute(query, (label, upto_seq)).fetchone()
        return None if row is None else (Checkpoint.from_bytes(row[0]), row[1])

    def last_listed(self, source: str, label: bytes) -> int:
        query = "SELECT upto_seq FROM listed WHERE source = ? AND label = ?"
        row = self.db.execute(query, (source, label)).fetchone()
        return 0 if row is None else int(row[0])

    def save(
        self,
        source: str,
        cursor: TreeCursor,
        note: Note,
        origin: str,
        rows: Iterable[tuple[bytes, int, bytes, bytes]],
        listed: Mapping[bytes, int],
    ) -> None:
        """Store everything that a poll has read in one transaction: after a kill the poll is repeated."""
        self.db.execute("BEGIN")
        try:
            peaks = b"".join(cursor.peaks)
            self.db.execute(
                "INSERT OR REPLACE INTO sources VALUES (?, ?, ?, ?)", (source, cursor.size, peaks, note.to_bytes())
            )
            self.db.execute("INSERT OR IGNORE INTO notes VALUES (?, ?, ?)", (origin, cursor.size, note.to_bytes()))
            self.db.executemany("INSERT OR IGNORE INTO checkpoints VALUES (?, ?, ?, ?)", rows)
            self.db.executemany(
                "INSERT OR REPLACE INTO listed VALUES (?, ?, ?)",
                [(source, label, upto_seq) for label, upto_seq in listed.items()],
            )
        except BaseException:
            self.db.execute("ROLLBACK")
            raise
        self.db.execute("COMMIT")

    def of_other_sources(self, source: str) -> list[tuple[bytes, int]]:
        """Return the newest listed positions of labels in other sources that this source has reached as well."""
        query = (
            "SELECT DISTINCT other.label, other.upto_seq FROM listed other JOIN listed own"
            " ON own.label = other.label AND own.source = ? AND own.upto_seq > other.upto_seq"
            " WHERE other.source <> ? ORDER BY other.label LIMIT ?"
        )
        return [(row[0], row[1]) for row in self.db.execute(query, (source, source, _MAX_QUESTIONS))]


class Monitor:
    """Polls sources, each a session with a hub, and reports contradictions with earlier signatures."""

    def __init__(self, state: MonitorState, policy: WitnessPolicy | None = None) -> None:
        self._state, self._policy = state, policy
        self._asked: set[tuple[str, bytes, int]] = set()  # questions that were answered well
        self.leaves = 0  # that were read
        self.heads: dict[str, tuple[int, int]] = {}  # source → leaves read, and leaves that its newest note states
        self.unanswered: dict[tuple[str, bytes, int], str] = {}  # questions that a source did not answer, and its words

    async def poll(self, source: str, session: HubSession) -> list[MonitorFinding]:
        """Read the new leaves of one source; return the findings. Raise ClientError if it does not answer."""
        reader = OuterReader(session)
        note, head = await reader.note()
        findings = [*self._check_policy(source, note), *self._check_note(source, note, head)]
        cursor, last = self._state.place(source)
        # A source that contradicts itself: read all of its other history, whose checkpoints may convict the hub.
        forked = last is not None and _contradicts(LogCheckpoint.parse(last.text), head)
        if forked:
            cursor = TreeCursor()
        rows: list[tuple[bytes, int, bytes, bytes]] = []
        listed: dict[bytes, int] = {}
        new: dict[tuple[bytes, int], tuple[Checkpoint, bytes]] = {}
        async for data in _leaves(reader, cursor.size, head.size):
            cursor.append(leaf_hash(data))
            self.leaves += 1
            before = None if forked else source
            finding, checkpoint, hub_pk = self._check_leaf(source, before, session, data, listed, new)
            if checkpoint is not None:
                place = checkpoint.label_curr, checkpoint.upto_seq
                listed[place[0]] = max(place[1], listed.get(place[0], 0))
                if place not in new:
                    new[place] = checkpoint, hub_pk
                    rows.append((*place, hub_pk, checkpoint.to_bytes()))
            if finding is not None and len(findings) < _MAX_FINDINGS:
                findings.append(finding)
        self.heads[source] = cursor.size, head.size
        if cursor.root() != head.root:
            what = f"the leaves do not have the root that was signed for {head.size} of them"
            return [*findings, MonitorFinding("E.MONITOR.FORKED", source, what, note.to_bytes())]
        if forked:
            return findings
        self._state.save(source, cursor, note, head.origin, rows, listed)
        return findings

    def _check_policy(self, source: str, note: Note) -> list[MonitorFinding]:
        if self._policy is None:
            return []
        try:
            self._policy.check(note)
        except TlogError as exc:
            return [MonitorFinding(QuorumError.code, source, str(exc))]
        return []

    def _check_note(self, source: str, note: Note, head: LogCheckpoint) -> list[MonitorFinding]:
        """Compare a note with the last one of this source, and with any note of this size."""
        _, last = self._state.place(source)
        for earlier in (last, self._state.note_at(head.origin, head.size)):
            if earlier is None:
                continue
            before = LogCheckpoint.parse(earlier.text)
            if _contradicts(before, head):
                what = (
                    f"the outer log has {head.size} leaves, after a note of {before.size}"
                    if head.size < before.size
                    else f"two roots are signed for {head.size} leaves of the outer log"
                )
                both = earlier.to_bytes() + b"\n" + note.to_bytes()
                return [MonitorFinding("E.MONITOR.FORKED", source, what, both)]
        return []

    def _check_leaf(
        self,
        source: str,
        before: str | None,
        session: HubSession,
        data: bytes,
        listed: Mapping[bytes, int],
        new: Mapping[tuple[bytes, int], tuple[Checkpoint, bytes]],
    ) -> tuple[MonitorFinding | None, Checkpoint | None, bytes]:
        """Return the fault of a leaf, and the CHECKPOINT in it with the key that signed it.

        `before`: the source whose positions this leaf must continue; None while a history is read again.
        """
        try:
            leaf = OuterLeaf.from_bytes(data)
            checkpoint = leaf.checkpoint()
            if checkpoint is None:
                if leaf.kind == CONTROL_LEAF:
                    session.pin.check_control(ControlRecord.from_bytes(leaf.data))
                return None, None, b""
            hub_pk = session.pin.check_checkpoint(checkpoint, session.epoch_sec).hub_pk
        except (TlogError, FormatError, VeenError) as exc:
            return MonitorFinding("E.MONITOR.LEAF", source, f"a leaf is not a statement of the hub: {exc}"), None, b""
        label, upto_seq = checkpoint.label_curr, checkpoint.upto_seq
        other = new.get((label, upto_seq)) or self._state.checkpoint(label, upto_seq)
        if (finding := _conflict(source, checkpoint, hub_pk, other)) is not None:
            return finding, checkpoint, hub_pk
        last = listed.get(label) or (0 if before is None else self._state.last_listed(before, label))
        if upto_seq <= last:
            what = f"label {label.hex()}: {upto_seq} is listed after {last}"
            return MonitorFinding("E.MONITOR.LEAF", source, what, None, label, upto_seq), checkpoint, hub_pk
        return None, checkpoint, hub_pk

    async def compare(self, source: str, session: HubSession) -> list[MonitorFinding]:
        """Ask a source for its CHECKPOINTs at positions that other sources list: equal logs give equal roots.

        A question without an answer stays in `unanswered` until a later poll gets one.
        """
        findings: list[MonitorFinding] = []
        for label, upto_seq in self._state.of_other_sources(source):
            question = source, label, upto_seq
            if question in self._asked:
                continue
            try:
                checkpoint = await session.checkpoint(None, label, upto_seq)
                hub_pk = session.pin.check_checkpoint(checkpoint, session.epoch_sec).hub_pk
            except (HubRefused, BadAnswer, ClientError) as exc:
                self.unanswered[question] = str(exc)
                continue  # asked again with the next poll
            self.unanswered.pop(question, None)
            finding = _conflict(source, checkpoint, hub_pk, self._state.checkpoint(label, upto_seq))
            if finding is not None:
                findings.append(finding)
            else:
                self._asked.add(question)
        return findings


def _contradicts(before: LogCheckpoint, head: LogCheckpoint) -> bool:
    """Return True if one source cannot honestly publish both heads in this order."""
    return head.size < before.size or (head.size == before.size and head.root != before.root)


async def _leaves(reader: OuterReader, start: int, end: int) -> AsyncIterator[bytes]:
    async for data in reader.leaves(start, end):
        yield data


def _conflict(
    source: str, checkpoint: Checkpoint, hub_pk: bytes, other: tuple[Checkpoint, bytes] | None
) -> MonitorFinding | None:
    """Return the conviction by two CHECKPOINTs of one position, if they contradict each other."""
    if other is None or other[0].mmr_root == checkpoint.mmr_root:
        return None
    label, upto_seq = checkpoint.label_curr, checkpoint.upto_seq
    bare = [Checkpoint.from_bytes(OuterLeaf.of_checkpoint(signed).data) for signed in (checkpoint, other[0])]
    try:
        evidence = Equivocation.of(bare[0], bare[1], one_pk=hub_pk, other_pk=other[1]).to_bytes()
    except VerifyError as exc:
        return MonitorFinding("E.MONITOR.LEAF", source, str(exc), None, label, upto_seq)
    what = f"label {label.hex()}: two roots are signed for {upto_seq} entries"
    return MonitorFinding("E.MONITOR.SPLIT", source, what, evidence, label, upto_seq)
