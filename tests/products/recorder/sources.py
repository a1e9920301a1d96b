"""Sources without a hub: what an adapter puts into a spool, and what it counts as lost."""

import asyncio
import contextlib

from tests.client.hubs import person

from veen.core import cbor
from veen.core.canonical import parse
from veen.products.recorder.sink import Sinks, SpoolSink
from veen.products.recorder.spool import Loss, Spool, SpoolItem, spool_key
from veen.testing.memfs import MemFs

STREAM = b"\x01" * 32
KEY = spool_key(person("web"))


class Taken:
    """A spool in memory, and what reached it."""

    def __init__(self, max_bytes=1 << 26):
        self.spool = Spool(MemFs(), KEY, max_bytes=max_bytes)
        self.shared = Sinks(self.spool, "test-host", clock=lambda: 1_794_823_200.0)

    def sink(self, adapter):
        return SpoolSink(self.shared, adapter, STREAM)

    def records(self):
        """(subject, type, origin, time, payload) of everything in the spool, in order; it stays there."""
        batch = self.spool.next_batch(1_000_000, 1 << 30)
        result = []
        for waiting in batch[1] if batch else []:
            *fields, payload = cbor.decode(waiting.data)
            result.append((*fields, parse(payload)))
        return result

    def payloads(self):
        return [record[-1] for record in self.records()]

    def messages(self):
        return [payload.get("message") for payload in self.payloads()]

    def losses(self):
        result: list[Loss] = []

        def noted(loss):
            result.append(loss)
            return SpoolItem(b"\x02" * 32, b"", "x")

        self.spool.report(noted)
        return [(loss.reason, loss.count) for loss in result]

    async def drain(self, *, landed=True):
        """Play the hub: take what is there, and wake whoever waits for room or receipts."""
        while True:
            batch = self.spool.next_batch(1_000_000, 1 << 30)
            if batch is not None and landed:
                self.spool.mark_sent([waiting.n for waiting in batch[1]])
                async with self.shared.freed:
                    self.shared.freed.notify_all()
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def running(adapter, taken):
    """A listener while it listens."""
    task = asyncio.create_task(adapter.run(taken.sink(adapter)))
    waiting = asyncio.create_task(adapter.ready.wait())
    await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
    try:
        yield adapter
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
