"""A queue of the messages that many tasks send to one stream: those that wait go together in one batch.

A writer has one message on its way, because each names the one before it, so a second sender would wait for a round
trip, and the hundredth for a hundred. With the queue they wait for one: all waiting messages become one batch. Each
caller gets its own outcome, and returns when its own receipt is verified; the order is that of the calls.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from veen.client.send.sealing import Draft
from veen.client.send.writing import Outcome

_MOST: Final = 64  # messages in one batch


class SendQueue:
    """The messages of one writer to one stream. Owned by the event loop's thread.

    A call that is cancelled while it waits sends nothing. Once its message is on its way with others it arrives, which
    may also happen when a single call is cancelled.
    """

    def __init__(self, send: Callable[[Sequence[Draft]], Awaitable[list[Outcome]]]) -> None:
        self._send = send
        self._waiting: deque[tuple[Draft, asyncio.Future[Outcome]]] = deque()
        self._draining: asyncio.Task[None] | None = None
        self.is_busy = (
            False  # whether something is on its way; then `_drain` or a caller of `send` goes on with the rest
        )

    async def send(self, draft: Draft) -> Outcome:
        if self.is_busy:
            answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
            self._waiting.append((draft, answer))
            return await answer
        self.is_busy = True
        try:
            return (await self._send([draft]))[0]
        finally:
            if self._waiting:
                self._draining = asyncio.create_task(self._drain())
            else:
                self.is_busy = False

    async def _drain(self) -> None:
        try:
            while self._waiting:
                turn = [self._waiting.popleft() for _ in range(min(len(self._waiting), _MOST))]
                turn = [(draft, answer) for draft, answer in turn if not answer.done()]
                if turn:
                    await self._send_turn(turn)
        finally:
            self.is_busy = False
            while self._waiting:  # the task was cancelled
                self._waiting.popleft()[1].cancel()

    async def _send_turn(self, turn: Sequence[tuple[Draft, "asyncio.Future[Outcome]"]]) -> None:
        try:
            outcomes = await self._send([draft for draft, _ in turn])
        except asyncio.CancelledError:
            for _, answer in turn:
                answer.cancel()
            raise
        except Exception as exc:
            for _, answer in turn:
                if not answer.done():
                    answer.set_exception(exc)
            return
        for (_, answer), outcome in zip(turn, outcomes, strict=True):
            if not answer.done():
                answer.set_result(outcome)

    async def aclose(self) -> None:
        """Wait for messages on their way."""
        if self._draining is not None:
            await asyncio.gather(self._draining, return_exceptions=True)
