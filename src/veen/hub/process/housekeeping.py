"""Background work of a hub: scrubbing, retention, compression (D-74, spec §4.8.4).

Damage found here does not stop the hub, because undamaged data is still answered correctly. Damage is logged,
counted, and never erased or compressed away. The index lists candidates. It is as old as the last retirement, so
the store is asked again before anything is done.
"""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from veen.core.objects.control import RetentionDrop
from veen.hub.process.config import Retention
from veen.hub.process.logs import EventLog
from veen.hub.process.observe import HubObserver
from veen.hub.sequencer.sequencer import NotDurable, NotPrimary, Overloaded, Sequencer, Stopped
from veen.io.errors import CorruptError, is_disk_full
from veen.io.local import Fs
from veen.storage import layout
from veen.storage.attachments import AttachmentFiles, make_is_erased
from veen.storage.findings import LogFinding
from veen.storage.index import ChunkRow, Index
from veen.storage.maintenance.retention import Erasure, Periods, RetentionPolicy, plan, prepare
from veen.storage.maintenance.scrub import Scrubber, ScrubState, is_chunk_compressed, pack_chunk, replace_chunk

_EVERY_SECONDS: Final = 60.0

T = TypeVar("T")


class Housekeeping:
    """The background work of one hub. Retention and compression take turns, as both replace chunks."""

    def __init__(
        self, fs: Fs, sequencer: Sequencer, log: EventLog, observer: HubObserver, attachments: AttachmentFiles
    ) -> None:
        self._fs, self._sequencer, self._log, self._observer = fs, sequencer, log, observer
        self._attachments = attachments

    def scrubber(self, bytes_per_second: int) -> Scrubber:
        return Scrubber(self._fs, bytes_per_second, self._on_scrubbed)

    def _on_scrubbed(self, state: ScrubState, findings: list[LogFinding]) -> None:
        """Count and log the progress of the scrubber, in its thread."""
        self._observer.scrubbed_bytes = state.bytes
        self._observer.scrub_findings += len(findings)
        if state.rounds != self._observer.scrub_rounds:
            self._observer.scrub_rounds = state.rounds
            self._observer.last_scrub_round = time.monotonic()
        for finding in findings:
            self._log.event("error", "scrub", f"damage found: {finding.message}", path=finding.path)

    async def scrub(self, scrubber: Scrubber) -> None:
        """Run the scrubber in its own thread until cancelled, and raise its error here."""
        with ThreadPoolExecutor(1, thread_name_prefix="veen-scrubber") as thread:
            running = asyncio.get_running_loop().run_in_executor(thread, scrubber.run)
            try:
                await asyncio.shield(running)
            except asyncio.CancelledError:
                scrubber.halt()
                await asyncio.wait((running,))
                raise

    async def run(self, retention: Callable[[], Retention]) -> None:
        """Run until cancelled. Read the periods on each pass: a reload may change them."""
        while True:
            await asyncio.sleep(_EVERY_SECONDS)
            try:
                follows = self._sequencer.not_primary == "replica"  # a replica erases entries by the primary's records
                if not follows:
                    await self.erase(retention())
                if follows or retention().payloads:
                    await self.erase_attachments()
                await self.compress()
            except CorruptError as exc:
                self._log.event("error", "housekeeping", f"damage found: {exc}")
            except Exception as exc:
                if not is_disk_full(exc) and not isinstance(exc, (NotDurable, NotPrimary, Overloaded, Stopped)):
                    raise
                self._log.event("warning", "housekeeping", f"put off: {exc}")

    async def erase(self, retention: Retention) -> int:
        """Erase chunks that are old enough, and return their number. The next retirement removes the files."""
        if not retention.payloads:
            return 0
        policy = RetentionPolicy(Periods(payload_sec=retention.payloads, receipt_sec=retention.receipts))
        count = 0
        for step in await in_thread(self._plan, policy):
            if self._record(step) is None:
                continue
            await in_thread(prepare, self._fs, step)
            if await self._sequencer.control(partial(self._record, step)) is None:
                continue
            count += 1
            label, upto_seq = step.label.hex(), step.chunk.end_seq
            self._log.event("info", "retention", f"{step.what} erased", label=label, upto_seq=upto_seq)
        return count

    def _record(self, step: Erasure, hub_ts: int = 0) -> RetentionDrop | None:
        """Return the record of a step, None if it was done since it was planned."""
        return step.record(self._sequencer.store.drop_level(step.label, step.chunk.start_seq))

    async def erase_attachments(self) -> int:
        """Erase attachments of erased entries and return their number. An entry counts as erased once its chunk is
        removed."""
        count = await in_thread(self._sweep)
        if count:
            self._log.event("info", "retention", "attachments of erased entries erased", count=count)
        return count

    def _sweep(self) -> int:
        index = Index(self._fs)
        try:
            return self._attachments.sweep(make_is_erased(index))
        finally:
            index.close()

    def _plan(self, policy: RetentionPolicy) -> list[Erasure]:
        index = Index(self._fs)
        try:
            return plan(index, policy, self._sequencer.now())
        finally:
            index.close()

    async def compress(self) -> int:
        """Compress sealed chunks where the limits say so; return how many were."""
        if self._sequencer.store.state.limits.compression == "none":
            return 0
        count = 0
        for label, chunk in await in_thread(self._plain_chunks):
            if self._sequencer.store.drop_level(label, chunk.start_seq) != 0:  # erased since the index was written
                continue
            path = layout.chunk(label, chunk.start_seq, chunk.end_seq)
            try:
                packed = await in_thread(pack_chunk, self._fs, label, chunk)
            except FileNotFoundError as exc:
                if self._sequencer.store.drop_level(label, chunk.start_seq) != 0:
                    continue
                raise CorruptError(path, 0, "the file is missing") from exc
            if packed is None:
                continue
            # A retirement may have removed the chunk meanwhile: what was erased must not come back.
            count += await self._sequencer.run_between_retirements(partial(replace_chunk, self._fs, path, packed[0]))
        return count

    def _plain_chunks(self) -> list[tuple[bytes, ChunkRow]]:
        index = Index(self._fs)
        try:
            return [
                (label, chunk) for label, chunk in index.list_sealed(dropped=0) if not self._is_packed(label, chunk)
            ]
        finally:
            index.close()

    def _is_packed(self, label: bytes, chunk: ChunkRow) -> bool:
        try:
            return is_chunk_compressed(self._fs, layout.chunk(label, chunk.start_seq, chunk.end_seq))
        except FileNotFoundError:  # erased since the index was written, or lost: the store knows
            return False


async def in_thread(work: Callable[..., T], *args: Any) -> T:
    """Run blocking work in a thread. When cancelled, wait for it: nothing may run after the directory is unlocked."""
    task = asyncio.get_running_loop().run_in_executor(None, work, *args)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait((task,))
        raise
