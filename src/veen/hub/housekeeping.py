"""What a hub does when nobody asks: read old chunks again, erase by policy, compress (D-74, spec §4.8.4).

Damage that is found here does not stop the hub, as it still answers truthfully from what is good; it is logged,
counted, and never erased or compressed away.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeVar

from veen.core.control import RetentionDrop
from veen.hub.config import Retention
from veen.hub.logs import Log
from veen.hub.observe import HubObserver
from veen.hub.pipeline import Pipeline
from veen.storage import layout
from veen.storage.compress import compress_chunk, is_compressed
from veen.storage.errors import CorruptError
from veen.storage.findings import Finding
from veen.storage.fs import Fs
from veen.storage.index import ChunkRow, Index
from veen.storage.retention import Erasure, Periods, Policy, plan, prepare
from veen.storage.scrub import Scrubber, ScrubState

__all__ = ["Housekeeping"]

_EVERY_SECONDS: Final = 60.0

T = TypeVar("T")


class Housekeeping:
    """The helpers of one hub. Retention and compression take turns, as both replace chunks."""

    def __init__(self, fs: Fs, pipeline: Pipeline, log: Log, observer: HubObserver) -> None:
        self._fs, self._pipeline, self._log, self._observer = fs, pipeline, log, observer

    def scrubber(self, bytes_per_second: int) -> Scrubber:
        return Scrubber(self._fs, bytes_per_second, self._scrubbed)

    def _scrubbed(self, state: ScrubState, findings: list[Finding]) -> None:
        """In the scrubber's thread."""
        self._observer.scrubbed_bytes = state.bytes
        self._observer.scrub_findings += len(findings)
        for finding in findings:
            self._log.event("error", "scrub", f"damage found: {finding.message}", path=finding.path)

    async def run(self, retention: Callable[[], Retention]) -> None:
        """For ever; the periods are asked for each time, as a reload may change them."""
        while True:
            await asyncio.sleep(_EVERY_SECONDS)
            try:
                await self.erase(retention())
                await self.compress()
            except CorruptError as exc:
                self._log.event("error", "housekeeping", f"damage found: {exc}")

    async def erase(self, retention: Retention) -> int:
        """Let go what is old enough; how many chunks were recorded. The next retirement removes the files."""
        if not retention.payloads:
            return 0
        policy = Policy(Periods(payload_sec=retention.payloads, receipt_sec=retention.receipts))
        steps = await in_thread(self._plan, policy)
        for step in steps:
            record = await in_thread(prepare, self._fs, step)
            await self._pipeline.control(_given(record))
            label = step.label.hex()
            self._log.event("info", "retention", f"{step.what} erased", label=label, upto_seq=record.end_seq)
        return len(steps)

    def _plan(self, policy: Policy) -> list[Erasure]:
        index = Index(self._fs)
        try:
            return plan(index, policy, self._pipeline.now())
        finally:
            index.close()

    async def compress(self) -> int:
        """Compress sealed chunks where the limits say so; how many were."""
        if self._pipeline.store.state.limits.compression == "none":
            return 0
        chunks = await in_thread(self._plain_chunks)
        for label, chunk in chunks:
            await in_thread(compress_chunk, self._fs, label, chunk)
        return len(chunks)

    def _plain_chunks(self) -> list[tuple[bytes, ChunkRow]]:
        index = Index(self._fs)
        try:
            chunks = [(row.label, chunk) for row in index.labels() for chunk in index.chunks(row.row)]
        finally:
            index.close()
        return [
            (label, chunk)
            for label, chunk in chunks
            if not chunk.dropped and not is_compressed(self._fs, layout.chunk(label, chunk.start_seq, chunk.end_seq))
        ]


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
