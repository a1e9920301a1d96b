"""A TCP proxy that remembers every byte it passes on, in a thread of its own; where it leads may change."""

import asyncio
import contextlib
import threading


class RecordingProxy:
    """`with RecordingProxy() as proxy:` listens on `proxy.url`; set `proxy.target` to the port of the hub."""

    def __init__(self):
        self.target = 0
        self.recorded = bytearray()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._tasks = set()

    def __enter__(self):
        self._thread.start()
        self._server = self._run(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, *_):
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _stop(self):
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader, writer):
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            await self._connect(reader, writer)
        finally:
            self._tasks.discard(task)

    async def _connect(self, reader, writer):
        with contextlib.closing(writer):
            try:
                hub_reader, hub_writer = await asyncio.open_connection("127.0.0.1", self.target)
            except OSError:
                return
            with contextlib.closing(hub_writer):
                ways = [
                    asyncio.ensure_future(self._pass(reader, hub_writer)),
                    asyncio.ensure_future(self._pass(hub_reader, writer)),
                ]
                try:
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for way in ways:
                        way.cancel()
                    await asyncio.gather(*ways, return_exceptions=True)

    async def _pass(self, reader, writer):
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                self.recorded += data
                writer.write(data)
                await writer.drain()
