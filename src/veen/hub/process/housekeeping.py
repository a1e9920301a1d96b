"""What a hub does when nobody asks: read old chunks again, erase by policy, compress (D-74, spec §4.8.4).

Damage that is found here does not stop the hub, as it still answers truthfully from what is good; it is logged,
counted, and never erased or compressed away.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from veen.core.objects.control import RetentionDrop
from veen.fs.errors import CorruptError, is_disk_full
from veen.fs.local import Fs
from veen.hub.process.config import Retention
from veen.hub.process.logs import EventLog
from veen.hub.process.observe import HubObserver
from veen.hub.sequencer.sequencer import NotPrimary, Overloaded, Sequencer, Stopped
from veen.storage import layout
from veen.storage.attachments import AttachmentFiles, erased_in
from veen.storage.findings import LogFinding
from veen.storage.index import ChunkRow, Index
from veen.storage.maintenance.compress import compress_chunk, is_compressed
from veen.storage.maintenance.retention import Erasure, Periods, RetentionPolicy, plan, prepare
from veen.storage.maintenance.scrub import Scrubber, ScrubState

_EVERY_SECONDS: Final = 60.0

T = TypeVar("T")


class Housekeeping:
    """The helpers of one hub. Retention and compression take turns, as both replace chunks."""

    def __init__(
        self, fs: Fs, sequencer: Sequencer, log: EventLog, observer: HubObserver, attachments: AttachmentFiles
    ) -> None:
        self._fs, self._sequencer, self._log, self._observer = fs, sequencer, log, observer
        self._attachments = attachments

    def scrubber(self, bytes_per_second: int) -> Scrubber:
        return Scrubber(self._fs, bytes_per_second, self._scrubbed)

    def _scrubbed(self, state: ScrubState, findings: list[LogFinding]) -> None:
        """In the scrubber's thread."""
        self._observer.scrubbed_bytes = state.bytes
        self._observer.scrub_findings += len(findings)
        if state.rounds != self._observer.scrub_rounds:
            self._observer.scrub_rounds = state.rounds
            self._observer.last_scrub_round = time.monotonic()
        for finding in findings:
            self._log.event("error", "scrub", f"damage found: {finding.message}", path=finding.path)

    async def run(self, retention: Callable[[], Retention]) -> None:
        """For ever; the periods are asked for each time, as a reload may change them."""
        while True:
            await asyncio.sleep(_EVERY_SECONDS)
            try:
                follows = self._sequencer.not_primary == "replica"  # then entries go when the primary says so
                if not follows:
                    await self.erase(retention())
                if follows or retention().payloads:
                    await self.erase_attachments()
                await self.compress()
            except CorruptError as exc:
                self._log.event("error", "housekeeping", f"damage found: {exc}")
            except Exception as exc:
                if not is_disk_full(exc) and not isinstance(exc, (NotPrimary, Overloaded, Stopped)):
                    raise
                self._log.event("warning", "housekeeping", f"put off: {exc}")
            except asyncio.CancelledError:  # of the record that was journaled, not of this task: the disk is full
                if (task := asyncio.current_task()) is not None and task.cancelling():
                    raise

    async def erase(self, retention: Retention) -> int:
        """Let go what is old enough; how many chunks were recorded. The next retirement removes the files."""
        if not retention.payloads:
            return 0
        policy = RetentionPolicy(Periods(payload_sec=retention.payloads, receipt_sec=retention.receipts))
        steps = await in_thread(self._plan, policy)
        for step in steps:
            record = await in_thread(prepare, self._fs, step)
            await self._sequencer.control(_given(record))
            label = step.label.hex()
            self._log.event("info", "retention", f"{step.what} erased", label=label, upto_seq=record.end_seq)
        return len(steps)

    async def erase_attachments(self) -> int:
        """Let go the attachments of erased entries; how many. An entry counts as erased once its chunk was removed."""
        count = await in_thread(self._sweep)
        if count:
            self._log.event("info", "retention", "attachments of erased entries erased", count=count)
        return count

    def _sweep(self) -> int:
        index = Index(self._fs)
        try:
            return self._attachments.sweep(erased_in(index))
        finally:
            index.close()

    def _plan(self, policy: RetentionPolicy) -> list[Erasure]:
        index = Index(self._fs)
        try:
            return plan(index, policy, self._sequencer.now())
        finally:
            index.close()

    async def compress(self) -> int:
        """Compress sealed chunks where the limits say so; how many were."""
        if self._sequencer.store.state.limits.compression == "none":
            return 0
        chunks = await in_thread(self._plain_chunks)
        for label, chunk in chunks:
            await in_thread(compress_chunk, self._fs, label, chunk)
        return len(chunks)

    def _plain_chunks(self) -> list[tuple[bytes, ChunkRow]]:
        index = Index(self._fs)
        try:
            return [
                (label, chunk)
                for label, chunk in index.sealed(dropped=0)
                if not is_compressed(self._fs, layout.chunk(label, chunk.start_seq, chunk.end_seq))
            ]
        finally:
            index.close()


def _given(record: RetentionDrop) -> Callable[[int], RetentionDrop]:
    return lambda hub_ts: record


async def in_thread(work: Callable[..., T], *args: Any) -> T:
    """Run blocking work; when cancelled, wait for it: nothing may go on after the directory is unlocked."""
    task = asyncio.get_running_loop().run_in_executor(None, work, *args)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait((task,))
        raise
