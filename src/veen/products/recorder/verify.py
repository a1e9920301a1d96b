"""Verification of a recorder: the state of every period of every stream; then policy and continuity.

A period is the part of a label that one checkpoint adds. It is valid if the log, read and verified now, has at its end
exactly the root that the checkpoint names; invalid if the root differs; missing if the log ends before it; erased if
retention erased its payloads. Entries that no checkpoint covers yet are one more period.

The report ends in a `Verdict` (D-181). It has a row for each label of each stream: how far it was read, and the head
that the hub states or that the newest checkpoint names, whichever is greater. Evidence that is wrong or missing makes
it bad; findings about policy, and a stream for which nobody states a head, make it incomplete.

    SDR.MAPPING         an event stands on another stream than its type is mapped to, or its type is not mapped
    SDR.PRODUCER        an event is by a client that is no producer of its stream
    SPEAKS.…            a statement about who speaks for a producer is void, or the key of an event speaks for nobody
    SDR.PRINCIPAL       an event names another client than the one that signed it
    SDR.FOREIGN_SCHEMA  an entry is no event of a recorder
    SDR.OVERSIZE        a payload is above the bound
    SDR.UNREADABLE      an entry cannot be opened
    SDR.LOSS            an agent says that records were lost before they reached the log
    SDR.SILENCE         an agent sent no heartbeat for three times its interval, and did not stop
    SDR.GAP             numbers of a source are missing, and no loss accounts for them
    SDR.REPEAT          a position of a source was recorded twice, or a sender used an id for two different records
    SDR.ROTATION        a client key is past its bounds
    SDR.CHAIN           a checkpoint does not name the one before it
    SDR.INTEGRITY       the signature that a collector put on a record does not hold (only if keys for it are given)
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from veen.client.client import Client
from veen.client.errors import Divergence, HubRefused
from veen.client.generations.records import KEY_SCHEMAS
from veen.client.identity.keyring import StreamKeys
from veen.client.read.reading import Entry
from veen.client.transport.calls import is_not_found
from veen.core.canonical import Json
from veen.core.errors import VeenError, VerifyError
from veen.core.event import Event
from veen.core.labels import stream_id_of
from veen.core.verdict import Because, Coverage, Reason, StatedBy, Verdict
from veen.overlays.framework.ordered import Table
from veen.overlays.framework.schema import Issue, Violation, decode
from veen.overlays.framework.speaking import Voice
from veen.overlays.recorder import events as sdr
from veen.overlays.recorder.config import CONFIG, History
from veen.overlays.speaks import SpeaksFold
from veen.products.recorder.events import (
    CHANGES_STREAM,
    CHECKPOINTS_STREAM,
    HEARTBEAT,
    LOSS,
    OWN_STREAM,
    ROTATE,
    START,
    STOP,
    payload_json,
)
from veen.products.recorder.integrity import (
    SEQUENCE,
    IntegrityKeys,
    SequenceNumbers,
    check_integrity,
    is_signed,
    sequence_of,
)
from veen.products.recorder.rules import find_mapping_fault, find_size_fault, payload_size
from veen.products.recorder.setup import Chain, identity_of, read_chain, read_history, select_covered

_COUNTED: Final = ("syslog", "logging")  # adapters whose positions end in a number that grows by one
Report = Callable[[str, str], None]  # of a code and its words, for the entry at hand
_HEX: Final = re.compile(r"[0-9a-f]{64}")
_SILENT: Final = 3  # heartbeats that may be late before it counts as silence
_MAX_FINDINGS: Final = 1_000
_ALWAYS: Final = frozenset((CHANGES_STREAM, CHECKPOINTS_STREAM))


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A deviation from the configured policy, or a gap."""

    code: str
    stream: str
    seq: int | None
    what: str

    @property
    def place(self) -> str:
        return f"{self.stream} {self.seq}" if self.seq is not None else self.stream

    def to_json(self) -> dict[str, Any]:
        return {"code": self.code, "stream": self.stream, "seq": self.seq, "what": self.what}


@dataclass(frozen=True, slots=True)
class Cut:
    """The end of a label as a checkpoint names it."""

    last_seq: int
    root: bytes
    number: int  # of the checkpoint in the chain


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """The part of a label that one checkpoint adds; `checkpoint` is its number in the chain, None if none covers it
    yet.
    """

    epoch: int
    from_seq: int
    to_seq: int
    state: str  # "valid", "invalid", "missing" or "erased"
    checkpoint: int | None
    ts_from: int | None = None  # hub time of the first and last entry, where they were read
    ts_to: int | None = None
    why: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class StreamReport:
    """Result of reading one stream."""

    stream: str
    stream_id: bytes
    entries: int = 0
    periods: list[Period] = field(default_factory=list)
    compared: list[Coverage] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {
            "stream": self.stream,
            "entries": self.entries,
            "periods": [period.to_json() for period in self.periods],
        }


@dataclass(slots=True)
class Agents:
    """State of agents as they report it, by the client key that signs."""

    last: dict[bytes, tuple[str, int, Json]] = field(default_factory=dict)  # (type, hub_ts, payload)
    successors: dict[bytes, bytes] = field(default_factory=dict)  # next -> previous, as the previous key says
    lost: Counter[tuple[str, str]] = field(default_factory=Counter)  # (source, reason)
    findings: list[Finding] = field(default_factory=list)

    def note(self, event: sdr.RecorderEvent, seq: int, hub_ts: int) -> None:
        payload = payload_json(event)
        who, kind = event.principal_id, event.event_type
        if not isinstance(payload, dict):
            return
        if kind == ROTATE:
            if payload.get("previous") == who.hex() and _HEX.fullmatch(str(payload.get("next"))):
                self.successors[bytes.fromhex(payload["next"])] = who
                self.last.pop(who, None)
            return
        if kind == LOSS:
            count = payload.get("count")
            self.lost[str(payload.get("source")), str(payload.get("reason"))] += count if isinstance(count, int) else 0
            return
        if kind not in (START, HEARTBEAT, STOP):
            return
        before = self.last.get(who)
        every = _heartbeat_interval(payload) or (_heartbeat_interval(before[2]) if before else 0)
        if before and before[0] != STOP and every and hub_ts - before[1] > _SILENT * every:
            self._silence(who, seq, before[1], hub_ts)
        if kind == HEARTBEAT and payload.get("rotation_due"):
            self._find("SDR.ROTATION", seq, f"the client key {who.hex()[:16]}… is past its bounds")
        self.last[who] = (kind, hub_ts, payload)

    def finish(self, now: int) -> None:
        for who, (kind, hub_ts, payload) in self.last.items():
            every = _heartbeat_interval(payload)
            if kind == HEARTBEAT and every and now - hub_ts > _SILENT * every:
                self._silence(who, None, hub_ts, now)
        for (source, reason), count in sorted(self.lost.items()):
            self._find("SDR.LOSS", None, f"{count} records of {source} were lost: {reason}")

    def _silence(self, who: bytes, seq: int | None, since: int, until: int) -> None:
        self._find("SDR.SILENCE", seq, f"{who.hex()[:16]}… sent no heartbeat from {since} to {until}")

    def _find(self, code: str, seq: int | None, what: str) -> None:
        self.findings.append(Finding(code=code, stream=OWN_STREAM, seq=seq, what=what))


def _heartbeat_interval(payload: Json) -> int:
    value = payload.get("every") if isinstance(payload, dict) else None
    return value if isinstance(value, int) else 0


@dataclass(slots=True)
class RecorderReport:
    """The result of a verification; `verdict` follows from the other fields."""

    hub_id: bytes
    streams: list[StreamReport]
    findings: list[Finding]
    checkpoints: int
    last_checkpoint: int | None  # its hub-independent time
    sdr_profile_id: bytes
    agents: Agents
    omitted: int = 0  # findings beyond the bound
    collector_signatures: int = 0  # of collectors on their records, that hold
    checkpoint_entries: int = 0  # of the stream of checkpoints, that were read
    checkpoint_coverage: list[Coverage] = field(default_factory=list)

    @property
    def signatures(self) -> int:
        """Number of signatures that were verified: of author and hub for each entry, and of collectors."""
        entries = sum(stream.entries for stream in self.streams) + self.checkpoint_entries
        return 2 * entries + self.collector_signatures

    @property
    def verdict(self) -> Verdict:
        reasons = []
        for stream in self.streams:
            for period in stream.periods:
                if period.state != "valid":
                    because = Because.COVERAGE if period.state == "erased" else Because.EVIDENCE
                    place = f"{stream.stream} {period.from_seq} to {period.to_seq}"
                    reasons.append(Reason(because, f"{place} is {period.state}: {period.why}"))
        by_code: dict[str, list[Finding]] = {}
        for finding in self.findings:
            by_code.setdefault(finding.code, []).append(finding)
        for code, findings in by_code.items():
            because = Because.COVERAGE if code == "SDR.UNREADABLE" else Because.POLICY
            more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
            reasons.append(Reason(because, f"{code}: {findings[0].place} {findings[0].what}{more}".replace("  ", " ")))
        compared = [row for stream in self.streams for row in stream.compared]
        return Verdict.of([*compared, *self.checkpoint_coverage], reasons)

    @property
    def ok(self) -> bool:
        return self.verdict.is_good

    def to_json(self) -> dict[str, Any]:
        verdict = self.verdict
        return {
            "ok": verdict.is_good,
            "verdict": verdict.to_json(),
            "hub_id": self.hub_id.hex(),
            "sdr_profile_id": self.sdr_profile_id.hex(),
            "checkpoints": self.checkpoints,
            "last_checkpoint": self.last_checkpoint,
            "streams": [stream.to_json() for stream in self.streams],
            "findings": [finding.to_json() for finding in self.findings],
            "findings_omitted": self.omitted,
            "signatures": self.signatures,
            "collector_signatures": self.collector_signatures,
        }


async def verify(
    client: Client,
    streams: Sequence[StreamKeys],
    *,
    admins: Collection[bytes] | None,
    now: int,
    continuity: bool = True,
    integrity: IntegrityKeys | None = None,
) -> RecorderReport:
    """Read and check everything. `admins`: client_ids of the recorder's admin; None accepts every author.

    `integrity`: keys for signatures of OpenTelemetry collectors; None does not check them.
    """
    history = await read_history(client, admins)
    chain = await read_chain(client, admins)
    return await judge_streams(
        client, select_covered(streams), history, chain, now=now, continuity=continuity, integrity=integrity
    )


async def judge_streams(
    client: Client,
    streams: Sequence[StreamKeys],
    history: History,
    chain: Chain,
    *,
    now: int,
    continuity: bool = True,
    integrity: IntegrityKeys | None = None,
) -> RecorderReport:
    """Verify streams as `verify` does, with a configuration and checkpoints from any source."""
    judge = _Judge(history, continuity, integrity)
    reports = []
    own = stream_id_of(OWN_STREAM)
    for keys in sorted(streams, key=lambda keys: (keys.stream_id != own, str(keys))):  # rotations come first
        reports.append(await _stream(client, keys, chain, judge))
    judge.finish(now)
    issues = [
        *(
            Finding(code=issue.code, stream=CHANGES_STREAM, seq=issue.stream_seq, what=issue.what)
            for issue in history.issues
        ),
        *(
            Finding(code=issue.code, stream=CHECKPOINTS_STREAM, seq=issue.stream_seq, what=issue.what)
            for issue in chain.issues
        ),
    ]
    findings = [*issues, *judge.findings, *judge.agents.findings]
    last = chain.last
    return RecorderReport(
        hub_id=client.hub_id,
        streams=sorted(reports, key=lambda report: report.stream),
        findings=findings[:_MAX_FINDINGS],
        checkpoints=len(chain.records),
        last_checkpoint=None if last is None else last.body.ts,
        sdr_profile_id=history.now.profile_id(),
        agents=judge.agents,
        omitted=max(0, len(findings) - _MAX_FINDINGS),
        collector_signatures=judge.signatures,
        checkpoint_entries=sum(row.read for row in chain.compared),
        checkpoint_coverage=list(chain.compared),
    )


# --- evidence -----------------------------------------------------------------------------------------------------


async def _stream(client: Client, keys: StreamKeys, chain: Chain, judge: "_Judge") -> StreamReport:
    report = StreamReport(str(keys), keys.stream_id)
    wanted = _cuts(chain, keys.stream_id)
    heads = await _heads(client, keys)  # before the entries are read, so that growth shows as read beyond the head
    for epoch in sorted({*wanted, *heads}):
        cuts = wanted.get(epoch, [])
        log = _Log(epoch, cuts)
        try:
            async for entry in client.read(keys, epoch=epoch):
                log.note(entry)
                judge.entry(report.stream, keys.stream_id, entry)
        except HubRefused as exc:
            if not (is_not_found(exc) and log.size == 0):
                refused = await _first_refused(client, keys, epoch, log.size + 1)
                log.fault = f"the hub refuses entry {refused}: {exc}"
                log.is_erased = exc.detail.get("reason") == "pruned"
        except (Divergence, VerifyError) as exc:
            log.fault = f"{exc.code}: {exc}"
        report.entries += log.size
        report.periods += _periods(log)
        report.compared.append(_coverage(client, report.stream, log, heads.get(epoch)))
    if not report.compared:
        report.compared.append(_coverage_of_nothing(client, report.stream, keys.stream_id, chain))
    return report


class _Log:
    """One label as it was read."""

    def __init__(self, epoch: int, cuts: Sequence[Cut]) -> None:
        self.epoch, self.cuts = epoch, cuts
        self.size = 0
        self.roots: dict[int, tuple[bytes, int]] = {}  # where a checkpoint ends: root and hub time
        self.first_ts: dict[int, int] = {}  # where a period begins: hub time
        self.last_ts: int | None = None
        self.fault: str | None = None  # why reading ended before the end of the log
        self.is_erased = False  # retention erased what the fault is about
        self._starts = {1, *(cut.last_seq + 1 for cut in cuts)}
        self._ends = {cut.last_seq for cut in cuts}

    def note(self, entry: Entry) -> None:
        self.size, self.last_ts = entry.seq, entry.receipt.hub_ts
        if entry.seq in self._ends:
            self.roots[entry.seq] = (entry.receipt.mmr_root, self.last_ts)
        if entry.seq in self._starts:
            self.first_ts[entry.seq] = self.last_ts

    @property
    def fault_state(self) -> str:
        return "erased" if self.is_erased else "invalid"


def _coverage(client: Client, stream: str, log: _Log, hub_head: int | None) -> Coverage:
    """Return the coverage of a label; its head is the greater one of the hub's and the newest checkpoint's."""
    named = max((cut.last_seq for cut in log.cuts), default=None)
    is_by_hub = hub_head is not None and hub_head >= (named or 0)
    head = hub_head if is_by_hub else named
    stated_by = StatedBy.NOBODY if head is None else StatedBy.HUB if is_by_hub else StatedBy.CHECKPOINT
    name = stream if log.epoch == 0 else f"{stream} epoch {log.epoch}"
    return Coverage(log=name, read=log.size, head=head, stated_by=stated_by, identity=identity_of(client))


def _coverage_of_nothing(client: Client, stream: str, stream_id: bytes, chain: Chain) -> Coverage:
    """Return the coverage of a stream without entries: good only if a checkpoint says that it is empty."""
    last = chain.last
    is_empty = last is not None and any(
        head.stream_id == stream_id and head.last_seq == 0 for head in last.body.streams
    )
    stated_by = StatedBy.CHECKPOINT if is_empty else StatedBy.NOBODY
    return Coverage(log=stream, read=0, head=0 if is_empty else None, stated_by=stated_by, identity=identity_of(client))


async def _first_refused(client: Client, keys: StreamKeys, epoch: int, start: int) -> int:
    """Find the first entry from `start` on that the hub refuses. It refuses whole pages of many entries."""

    async def is_readable(last: int) -> bool:
        try:
            return [entry.seq async for entry in client.read(keys, epoch=epoch, from_seq=start, to_seq=last)][-1:] == [
                last
            ]
        except VeenError:
            return False

    readable, step = start - 1, 1
    while await is_readable(readable + step):
        readable, step = readable + step, step * 2
    refused = readable + step
    while refused - readable > 1:
        middle = (readable + refused) // 2
        readable, refused = (middle, refused) if await is_readable(middle) else (readable, middle)
    return refused


async def _heads(client: Client, keys: StreamKeys) -> dict[int, int | None]:
    """Return the head of each label of a stream, as the hub signs it; None where it contradicts an earlier proof."""
    try:
        return {signed.epoch: signed.upto_seq for signed in await client.checkpoints(keys)}
    except HubRefused as exc:
        if is_not_found(exc):
            return {}
        raise
    except VeenError:
        return {0: None}  # the hub contradicts what it proved before: reading says how


def _cuts(chain: Chain, stream_id: bytes) -> dict[int, list[Cut]]:
    """Return, by epoch, the ends that the checkpoints name for a stream, in the order of the checkpoints."""
    cuts: dict[int, list[Cut]] = {}
    for number, record in enumerate(chain.records, start=1):
        for head in record.body.streams:
            if head.stream_id == stream_id and head.last_seq:
                cuts.setdefault(head.epoch, []).append(Cut(head.last_seq, head.mmr_root, number))
    return cuts


def _periods(log: _Log) -> list[Period]:
    periods: list[Period] = []
    start = 1
    for cut in log.cuts:
        state, why, ts_to = "valid", None, None
        if cut.last_seq in log.roots:
            read_root, ts_to = log.roots[cut.last_seq]
            if read_root != cut.root:
                state, why = "invalid", f"the checkpoint names another root at entry {cut.last_seq}"
        elif log.fault is not None:
            state, why = log.fault_state, log.fault
        else:
            state, why = "missing", f"the log ends at entry {log.size}, and the checkpoint covers {cut.last_seq}"
        if cut.last_seq < start and state != "invalid":
            continue  # the stream did not grow between two checkpoints, and both name the same root
        from_seq = min(start, cut.last_seq)
        periods.append(
            Period(
                epoch=log.epoch, from_seq=from_seq, to_seq=cut.last_seq, state=state, checkpoint=cut.number,
                ts_from=log.first_ts.get(from_seq), ts_to=ts_to, why=why,
            )
        )  # fmt: skip
        start = max(start, cut.last_seq + 1)
    is_told = log.fault is None or (periods and periods[-1].state == log.fault_state)
    if log.size >= start or not is_told:
        state = "valid" if log.fault is None else log.fault_state
        periods.append(
            Period(
                epoch=log.epoch, from_seq=start, to_seq=max(log.size, start), state=state, checkpoint=None,
                ts_from=log.first_ts.get(start), ts_to=log.last_ts, why=log.fault,
            )
        )  # fmt: skip
    return periods


# --- policy -------------------------------------------------------------------------------------------------------


class _Judge:
    """Checks entries one by one; streams come whole, the recorder's own stream first."""

    def __init__(self, history: History, continuity: bool, integrity: IntegrityKeys | None = None) -> None:
        self._history, self._continuity, self._integrity = history, continuity, integrity
        self._sequences: dict[tuple[bytes, str], SequenceNumbers] = {}  # (client, sender)
        self.signatures = 0  # of collectors, that hold
        self.agents = Agents()
        self.findings: list[Finding] = []
        self._numbers: dict[tuple[bytes, str, str], int] = {}  # (client, source, prefix) -> last number
        self._positions: dict[tuple[bytes, str], str] = {}
        self._missing: Counter[str] = Counter()  # source -> numbers that are not there
        self._speaks, self._bindings = SpeaksFold(), Table[Any, Any]()  # who speaks for producers, by stream

    def entry(self, stream: str, stream_id: bytes, entry: Entry) -> None:
        def report(code: str, what: str) -> None:
            self.findings.append(Finding(code=code, stream=stream, seq=entry.seq, what=what))

        event = entry.event
        if event is None:
            return report("SDR.UNREADABLE", entry.error or "it cannot be opened")
        if stream in _ALWAYS and event.hdr.schema == CONFIG.id:
            return None  # judged by the history
        if event.hdr.schema in self._speaks.schemas:
            return self._take_statement(event, report)
        if event.hdr.schema in KEY_SCHEMAS:
            return None  # judged by the client
        if event.hdr.schema != sdr.EVENT.id:
            return report("SDR.FOREIGN_SCHEMA", "not an event of a recorder")
        typed = sdr.read(event)
        if isinstance(typed, Issue):
            return report(typed.code, typed.what)
        body, configuration = typed.body, self._history.at(event.ts)
        if stream == OWN_STREAM:
            self.agents.note(body, entry.seq, event.hub_ts)
        if (what := find_mapping_fault(configuration, body.event_type, stream_id)) is not None:
            report("SDR.MAPPING", what)
        if configuration.producers and stream != OWN_STREAM:
            self._check_producer(event, stream_id, report)
        if (what := find_size_fault(configuration, payload_size(body))) is not None:
            report("SDR.OVERSIZE", what)
        if self._continuity:
            self._follow(stream, entry.seq, body)
        payload = payload_json(body) if self._integrity is not None else None
        if self._integrity is not None and isinstance(payload, dict) and is_signed(payload):
            if (why := check_integrity(payload, self._integrity)) is not None:
                report("SDR.INTEGRITY", why)
            else:
                self.signatures += 1
        return None

    def _take_statement(self, event: Event, report: Report) -> None:
        """Record a statement about keys: a producer that is a principal names its client keys by it (D-179)."""
        typed = decode(event, self._speaks.schemas[event.hdr.schema])
        if isinstance(typed, Issue):
            return report(typed.code, typed.what)
        try:
            self._speaks.take_statement(self._bindings, typed)
        except Violation as exc:
            report(exc.code, exc.what)
        return None

    def _check_producer(self, event: Event, stream_id: bytes, report: Report) -> None:
        try:
            voice = self._speaks.voice(self._bindings, event)
        except Violation as exc:
            return report(exc.code, exc.what)
        if not self._may(voice, stream_id, event.ts):
            report("SDR.PRODUCER", f"{event.client_id.hex()[:16]}… is no producer of this stream")
        return None

    def _may(self, voice: Voice, stream_id: bytes, ts: int) -> bool:
        """Return True if a client, a principal it speaks for, or a client it succeeds (by that one's record) is a
        producer.

        A withdrawn client is not a producer, whatever it succeeds, and neither are its successors; the same holds for
        the keys of a withdrawn principal.
        """
        configuration = self._history.at(ts)
        withdrawn, producers = configuration.withdrawn, configuration.producers
        if any(stream_id in withdrawn.get(identity, ()) for identity in (voice.client_id, *voice.principals)):
            return False
        if any(stream_id in producers.get(identity, ()) for identity in (voice.client_id, *voice.principals)):
            return True
        if voice.principal is not None and voice.any_of([who for who, ids in producers.items() if stream_id in ids]):
            return True
        client_id = voice.client_id
        for _ in range(len(self.agents.successors)):
            if (previous := self.agents.successors.get(client_id)) is None:
                return False
            client_id = previous
            if stream_id in withdrawn.get(client_id, ()):
                return False
            if stream_id in producers.get(client_id, ()):
                return True
        return False

    def _follow(self, stream: str, seq: int, body: sdr.RecorderEvent) -> None:
        payload = payload_json(body)
        src = payload.get("_src") if isinstance(payload, dict) else None
        if not isinstance(src, dict) or not isinstance(src.get("pos"), str) or src.get("adapter") == "recorder":
            return
        source, position, who = str(src.get("id")), src["pos"], body.principal_id
        if (numbered := sequence_of(payload)) is not None:
            sender, sequence_number = numbered
            self._sequences.setdefault((who, sender), SequenceNumbers(sequence_number)).add(sequence_number)
        if src.get("repeat") is True:
            what = f"{source}: the id {position} was used before for another record; both are recorded"
            self.findings.append(Finding(code="SDR.REPEAT", stream=stream, seq=seq, what=what))
        elif self._positions.get((who, f"{stream} {source}")) == position:
            self.findings.append(
                Finding(code="SDR.REPEAT", stream=stream, seq=seq, what=f"{source} at {position} was recorded twice")
            )
        self._positions[who, f"{stream} {source}"] = position
        prefix, _, number = position.rpartition(":")
        if src.get("adapter") in _COUNTED and number.isdecimal():
            key = (b"", source, prefix)
            last = self._numbers.get(key, 0)
            if int(number) > last + 1:
                self._missing[source] += int(number) - last - 1
            self._numbers[key] = max(int(number), last)

    def finish(self, now: int) -> None:
        accounted: Counter[str] = Counter()
        for (source, reason), count in self.agents.lost.items():
            accounted[source] += 0 if reason.startswith("dropped by the kernel") else count
        for source, count in sorted(self._missing.items()):
            if count > accounted[source]:
                what = f"{count - accounted[source]} numbers of {source} are missing, and no loss accounts for them"
                self.findings.append(Finding(code="SDR.GAP", stream="", seq=None, what=what))
        for (_, sender), numbers in sorted(self._sequences.items()):
            if numbers.missing:
                what = f"{numbers.missing} of {SEQUENCE} of {sender} are missing, the first is {numbers.first_missing}"
                self.findings.append(Finding(code="SDR.GAP", stream="", seq=None, what=what))
        self.agents.finish(now)
