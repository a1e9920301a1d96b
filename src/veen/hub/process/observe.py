"""Observation of a hub: the metrics of OBS0 and one log line per submit (OBS-01 … OBS-03, spec §12).

The sequencer calls `Observer` for every message, so an observer only counts and hands the numbers on; lines are
formatted by the log's own thread. Bodies, keys and whole client ids never get here, and of stream names only those
that the operator configured to be counted.
"""

import os
import resource
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from veen import __version__
from veen.core.errors import ApiCode, Refusal
from veen.core.labels import stream_id_of
from veen.hub.admission.decide import Refuse
from veen.hub.api.reply import Failure
from veen.hub.process.logs import EventLog
from veen.hub.process.supervisor import TaskState
from veen.io.metrics_text import Family, Histogram, Value, exposition
from veen.storage.state import Admitted

RefusalReason = Refuse | Refusal | ApiCode  # a Refuse also has the details

_LATENCY_S: Final = tuple(
    ms / 1000 for ms in (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 10_000)
)
_INTERVAL: Final = (1, 4, 16, 64, 256, 512, 1_024, 4_096, 16_384, 65_536)
_GROUP: Final = (1, 2, 4, 8, 16, 32, 64, 100, 200)
_RETIRE_S: Final = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

_LAG_S: Final = (1, 2, 5, 10, 30, 60, 300, 900, 3_600, 86_400)

# Gauges that the runtime reads on each scrape: name -> description.
GAUGES: Final = {
    "veen_connections": "Connections that are open, TLS handshakes included.",
    "veen_max_connections": "How many connections may be open: as configured, or fewer if files are short.",
    "veen_unread_answer_bytes": "Bytes of large answers that their clients have not read yet.",
    "veen_queue_depth": "Messages taken in and not answered yet.",
    "veen_free_bytes": "Free bytes on the disk of the data directory.",
    "veen_used_bytes": "Bytes in use on the disk of the data directory, whoever uses them.",
    "veen_journal_bytes": "Bytes in the write-ahead journal, which a restart would read.",
    "veen_labels": "Labels with entries.",
    "veen_entries": "Entries in all labels.",
    "veen_capabilities": "Capabilities this hub knows.",
    "veen_cached_labels": "Labels whose cursor is in memory.",
    "veen_cached_clients": "Clients whose cursor is in memory, one for each label they write to.",
    "veen_cached_capabilities": "Capabilities that are in memory.",
    "veen_revocations": "Client keys and capabilities that are revoked now.",
    "veen_multi_primary_streams": "Streams that several hubs are primaries of now.",
    "veen_ready": "1 if the hub admits messages, 0 if it refuses them for now.",
    "veen_checkpoint_age_seconds": "Since a chunk was last sealed by a checkpoint, or the start; 0 without entries.",
    "veen_scrub_round_age_seconds": "Since the scrubber was last through all sealed chunks, or since the start.",
    "veen_anchor_age_seconds": "Since the last anchor, or since the start; 0 if anchor.every is 0.",
    "veen_evidence_files": "Proofs that this hub signed two histories, kept in evidence/; alert when above 0.",
    "veen_clock_behind_seconds": "How far the clock is behind the hub's own time, which never runs backwards.",
    "veen_clock_step_seconds": "Seconds by which the clock jumped forward and is not believed; alert when above 0.",
    "veen_outer_leaves": "Leaves of the outer log under its last signed note; 0 without an outer log.",
    "veen_outer_cosignatures": "Cosignatures on the published note of the outer log.",
    "veen_outer_witness_failures": "How often a witness gave no cosignature since the hub started.",
    "veen_outer_halted": "1 if the outer log signs nothing any more, as a witness saw another history of it.",
    "veen_primary": "1 if this hub writes its log; 0 if it is a replica, is fenced, or was replaced.",
    "veen_replicas_unknown": "Addresses of `replicas` that cannot be asked if they were promoted; alert when above 0.",
    "veen_replica_attachments_missing": "Attachments that the primary lists and does not hand out; 0 at a primary.",
    "veen_replica_lag_entries": "Entries that the primary has and this replica does not have; 0 at a primary.",
    "veen_replica_lag_seconds": "Since this replica last had all that its primary had; 0 at a primary.",
}
_CAP_RESULTS: Final = ("CAP_MISSING", "CAP_INVALID", "AUTH_REF", "CAP_SCOPE", "CAP_REVOKED", "CAP_TTL", "CAP_RATE")


class Observer(Protocol):
    """Callbacks of the sequencer. All of them are called on the event loop's thread."""

    def on_refused(
        self,
        refused: RefusalReason,
        bytes_in: int,
        verify_s: float = 0.0,
        total_s: float = 0.0,
        label: bytes | None = None,
        client_id: bytes | None = None,
        address: str = "",
        reason: str = "",
    ) -> None:
        """Note that a message of `address` was refused. A value not known yet is None; `client_id` may be a claim."""
        ...

    def on_accepted(
        self, bytes_in: int, bytes_out: int, verify_s: float, commit_s: float, total_s: float, admitted: Admitted
    ) -> None:
        """Note that a message is durable and answered."""
        ...

    def on_group(self, size: int, sync_s: float) -> None:
        """Note that a group of `size` entries became durable by a sync of `sync_s`."""
        ...

    def on_sealed(self, entries: int) -> None:
        """Note that a checkpoint was written, `entries` after the one before."""
        ...

    def on_retired(self, seconds: float) -> None:
        """Note that the journal was moved into chunks and index."""
        ...

    def on_proved(self, seconds: float) -> None:
        """Note that a proof was made."""
        ...

    def on_anchored(self) -> None:
        """Note that a checkpoint was anchored."""
        ...

    def on_anchor_failed(self) -> None:
        """Note that an anchor backend did not accept a checkpoint (D-104)."""
        ...

    def on_failed(self, failure: Failure) -> None:
        """Note that a request other than a submit failed, not counting answers that something was not found."""
        ...

    def on_connection_refused(self) -> None:
        """Note that a client was refused because it, or all clients together, hold too many connections."""
        ...

    def on_revoked(self, lag_s: int) -> None:
        """Note that a revocation is in force, `lag_s` after the time from which on it should be."""
        ...


class NullObserver:
    """An observer that does nothing."""

    def on_refused(
        self,
        refused: RefusalReason,
        bytes_in: int,
        verify_s: float = 0.0,
        total_s: float = 0.0,
        label: bytes | None = None,
        client_id: bytes | None = None,
        address: str = "",
        reason: str = "",
    ) -> None: ...
    def on_accepted(
        self, bytes_in: int, bytes_out: int, verify_s: float, commit_s: float, total_s: float, admitted: Admitted
    ) -> None: ...
    def on_group(self, size: int, sync_s: float) -> None: ...
    def on_sealed(self, entries: int) -> None: ...
    def on_retired(self, seconds: float) -> None: ...
    def on_proved(self, seconds: float) -> None: ...
    def on_anchored(self) -> None: ...
    def on_anchor_failed(self) -> None: ...
    def on_failed(self, failure: Failure) -> None: ...
    def on_connection_refused(self) -> None: ...
    def on_revoked(self, lag_s: int) -> None: ...


class HubObserver:
    """An observer that counts everything and, with a log, writes submits to it. `streams` are counted one by one."""

    def __init__(self, log: EventLog | None = None, streams: Iterable[str] = ()) -> None:
        self._log = log
        self._ok = 0
        self._streams = {stream: stream_id_of(stream) for stream in streams}
        self._appends: dict[bytes, int] = dict.fromkeys(self._streams.values(), 0)
        self._errors: dict[str, int] = dict.fromkeys(
            sorted({refusal.code for refusal in Refusal} | {ApiCode.UNAVAILABLE.code}), 0
        )
        self._refusals: dict[str, int] = {refusal.detail_enum: 0 for refusal in Refusal}
        self._request_errors: dict[str, int] = {code.code: 0 for code in ApiCode}
        self._bytes_in = 0
        self._verify, self._commit, self._total = (Histogram(_LATENCY_S) for _ in range(3))
        self._fsync, self._proof = Histogram(_LATENCY_S), Histogram(_LATENCY_S)
        self._interval, self._group = Histogram(_INTERVAL), Histogram(_GROUP)
        self._retire, self._revocation = Histogram(_RETIRE_S), Histogram(_LAG_S)
        self._anchor_failures = self._connections_refused = 0
        self.scrubbed_bytes = 0
        self.scrub_findings = 0
        self.scrub_rounds = 0
        self.anchors = 0
        self.equivocation_reports = 0
        self.background: Callable[[], Mapping[str, TaskState]] = lambda: {}  # the tasks beside the log, by name
        # By the monotonic clock, from the start of the hub on; the scrubber's thread writes the second.
        self.last_checkpoint = self.last_scrub_round = self.last_anchor = time.monotonic()

    def on_refused(
        self,
        refused: RefusalReason,
        bytes_in: int,
        verify_s: float = 0.0,
        total_s: float = 0.0,
        label: bytes | None = None,
        client_id: bytes | None = None,
        address: str = "",
        reason: str = "",
    ) -> None:
        outcome = refused.refusal if isinstance(refused, Refuse) else refused
        code = outcome.code
        self._errors[code] = self._errors.get(code, 0) + 1
        if isinstance(outcome, Refusal):
            self._refusals[outcome.detail_enum] += 1
        self._bytes_in += bytes_in
        if verify_s:  # a message that failed before was never verified
            self._verify.observe(verify_s)
        self._total.observe(total_s)
        if self._log is not None:
            commit_s = total_s - verify_s if verify_s else 0.0
            self._log.log_refused(code, bytes_in, verify_s, commit_s, label, client_id, address, refused, reason)

    def on_failed(self, failure: Failure) -> None:
        code = failure.code
        self._request_errors[code] = self._request_errors.get(code, 0) + 1
        if self._log is not None:
            self._log.log_failure(failure)

    def on_accepted(
        self, bytes_in: int, bytes_out: int, verify_s: float, commit_s: float, total_s: float, admitted: Admitted
    ) -> None:
        self._ok += 1
        if self._appends:
            key = admitted.label.stream_id or admitted.label.label  # a hub that takes any label knows no streams (D-24)
            if key in self._appends:
                self._appends[key] += 1
        self._bytes_in += bytes_in
        self._verify.observe(verify_s)
        self._commit.observe(commit_s)
        self._total.observe(total_s)
        if self._log is not None:
            self._log.log_accepted(admitted, bytes_in, bytes_out, verify_s, commit_s)

    def on_group(self, size: int, sync_s: float) -> None:
        self._group.observe(size)
        self._fsync.observe(sync_s)

    def on_sealed(self, entries: int) -> None:
        self._interval.observe(entries)
        self.last_checkpoint = time.monotonic()

    def on_retired(self, seconds: float) -> None:
        self._retire.observe(seconds)

    def on_proved(self, seconds: float) -> None:
        self._proof.observe(seconds)

    def on_anchored(self) -> None:
        self.anchors += 1
        self.last_anchor = time.monotonic()

    def on_anchor_failed(self) -> None:
        self._anchor_failures += 1

    def on_connection_refused(self) -> None:
        self._connections_refused += 1

    def on_revoked(self, lag_s: int) -> None:
        self._revocation.observe(lag_s)

    # --- text ------------------------------------------------------------------------------------------

    def render(self, gauges: Mapping[str, Value], *, openmetrics: bool = False) -> bytes:
        """Return all metrics as text; `gauges` has the present values for names in GAUGES."""
        return exposition([*self._families(), *_gauges(gauges), *_process()], openmetrics=openmetrics)

    def _families(self) -> list[Family]:
        accepted = {"OK": self._ok, **{name: self._refusals[name] for name in _CAP_RESULTS}}
        appends = {stream: self._appends[key] for stream, key in self._streams.items()}
        appends[""] = self._ok - sum(appends.values())  # no stream has an empty name
        dropped = self._log.dropped if self._log else 0
        suppressed = dict(self._log.budget.suppressed) if self._log else {}
        background = self.background()
        return [
            Family.single("veen_submit_ok_total", "counter", "Messages accepted and durable.", self._ok),
            Family.by(
                "veen_appends_total",
                "counter",
                "Messages accepted and durable, by streams that metrics.streams names; without a stream: all others.",
                "stream",
                appends,
            ),
            Family.by("veen_submit_err_total", "counter", "Messages refused, by error code.", "code", self._errors),
            Family.single(
                "veen_rate_limited_total", "counter", "Messages refused by a rate.", self._refusals["CAP_RATE"]
            ),
            Family.single(
                "veen_anchor_fail_total", "counter", "Anchorings that failed; commits go on.", self._anchor_failures
            ),
            Family.single(
                "veen_connections_refused_total",
                "counter",
                "Connections turned away because there were too many.",
                self._connections_refused,
            ),
            Family.by(
                "veen_admission_refusals_total", "counter", "Messages refused, by check.", "detail", self._refusals
            ),
            Family.by(
                "veen_request_errors_total",
                "counter",
                "Requests other than messages that failed, by error code; what is not found does not count.",
                "code",
                self._request_errors,
            ),
            Family.by("veen_capability_checks_total", "counter", "What capability checks found.", "result", accepted),
            Family.single("veen_submit_bytes_total", "counter", "Bytes of messages taken in.", self._bytes_in),
            Family.single("veen_scrub_bytes_total", "counter", "Bytes the scrubber has read.", self.scrubbed_bytes),
            Family.single("veen_scrub_findings_total", "counter", "Damage the scrubber found.", self.scrub_findings),
            Family.single(
                "veen_scrub_rounds_total", "counter", "Times the scrubber went through all chunks.", self.scrub_rounds
            ),
            Family.by(
                "veen_background_restarts_total",
                "counter",
                "Times a task beside the log ended and was started again; alert when it grows.",
                "task",
                {name: state.restarts for name, state in background.items()},
            ),
            Family.by(
                "veen_background_running",
                "gauge",
                "1 if a task beside the log runs, 0 while it waits to be started again.",
                "task",
                {name: int(state.running) for name, state in background.items()},
            ),
            Family.single("veen_anchors_total", "counter", "Checkpoints that were anchored.", self.anchors),
            Family.single(
                "veen_equivocation_reports_total",
                "counter",
                "Valid proofs that this hub signed two histories, repeated ones included.",
                self.equivocation_reports,
            ),
            Family.single("veen_log_lines_dropped_total", "counter", "Log lines given up under load.", dropped),
            Family.by(
                "veen_log_lines_suppressed_total",
                "counter",
                "Log lines beyond the budget of their kind: the code of a refusal, or an operation.",
                "kind",
                {**dict.fromkeys(self._errors, 0), **suppressed},
            ),
            Family.of("veen_verify_latency_ms", "Signature check, waiting included.", self._verify, 1000),
            Family.of("veen_verify_seconds", "Signature check, waiting included.", self._verify),
            Family.of("veen_commit_latency_ms", "From verified to durable.", self._commit, 1000),
            Family.of("veen_commit_seconds", "From verified to durable.", self._commit),
            Family.of("veen_end_to_end_latency_ms", "From taken in to answered.", self._total, 1000),
            Family.of("veen_end_to_end_seconds", "From taken in to answered.", self._total),
            Family.of("veen_checkpoint_interval", "Entries between the checkpoints of a label.", self._interval),
            Family.of("veen_commit_group_entries", "Messages made durable by one sync.", self._group),
            Family.of("veen_fsync_seconds", "Writing and syncing one group.", self._fsync),
            Family.of("veen_proof_seconds", "Making one proof.", self._proof),
            Family.of("veen_retire_seconds", "Emptying the journal into chunks and index.", self._retire),
            Family.of(
                "veen_revocation_lag_seconds",
                "From the time from which on a revocation was to count until this hub enforced it.",
                self._revocation,
            ),
        ]


def _gauges(values: Mapping[str, Value]) -> list[Family]:
    return [Family.single(name, "gauge", about, values[name]) for name, about in GAUGES.items() if name in values]


_STARTED: Final = time.time()


def _process() -> list[Family]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    families = [
        Family(
            "veen_build_info", "gauge", "The release that runs.", [(f'veen_build_info{{version="{__version__}"}}', 1)]
        ),
        Family.single("process_start_time_seconds", "gauge", "When the process started.", _STARTED),
        Family.single(
            "process_cpu_seconds_total", "counter", "CPU time of the process.", usage.ru_utime + usage.ru_stime
        ),
        Family.single("process_max_fds", "gauge", "How many files may be open.", soft_limit),
    ]
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 - a file of the kernel, read on each scrape
            resident = int(file.read().split()[1]) * resource.getpagesize()
        families.append(Family.single("process_resident_memory_bytes", "gauge", "Memory in use.", resident))
        open_files = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - as above
        families.append(Family.single("process_open_fds", "gauge", "Files that are open.", open_files))
    except OSError:  # only Linux has these
        pass
    return families
