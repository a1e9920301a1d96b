"""Writes of a console: send a message, anchor a root, revoke a token. Each form takes effect once.

A form has a number (`BrowserAdmission.form_token`). The first time it is sent, the write is done and its outcome is
stored; the same form again, by a reload or a second click, gets the same outcome. A failed write may be retried with
the same form.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol
from urllib.parse import parse_qsl

from starlette.requests import Request

from veen.client.identity.keyring import StreamKeys
from veen.client.send.writing import Sent
from veen.core.objects.control import ControlRecord
from veen.core.objects.policies import Revocation
from veen.products.console.errors import CrossSiteRequest, FormInvalid
from veen.products.console.uploads import read_body

MAX_FORM_BYTES: Final = 1024 * 1024
_MAX_FIELDS: Final = 16
_REMEMBERED: Final = 10_000  # outcomes


class ConsoleWriter(Protocol):
    """The writer of a console: the identity of the context, as in a command."""

    async def send(self, keys: StreamKeys, body: bytes) -> Sent:
        """Send a message and return its verified receipt. An equal message without a receipt is the same one."""

    async def anchor(self, keys: StreamKeys) -> ControlRecord:
        """Have the hub anchor the newest root of a stream; return the verified record."""

    async def revoke(self, revocations: Sequence[Revocation]) -> tuple[ControlRecord, ...]:
        """Have the hub refuse tokens; return the verified records of new revocations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOutcome:
    """A completed write: the page that shows it, and the message there."""

    path: str
    what: str
    verified: str  # the facts verified by the console


class WriteLog:
    """Outcomes by the number of the form. Used on the loop of the console only."""

    def __init__(self, most: int = _REMEMBERED) -> None:
        self._most = most
        self._tasks: OrderedDict[int, asyncio.Task[WriteOutcome]] = OrderedDict()
        self._contents: dict[int, bytes] = {}  # digests of the same forms
        self._floor = 0  # forms up to this number were dropped and are refused
        self._writing = asyncio.Lock()  # one write at a time: an identity has one user

    async def once(self, serial: int, content: bytes, work: Callable[[], Awaitable[WriteOutcome]]) -> WriteOutcome:
        """Return the outcome of `work`, which runs for the first request with this number.

        Raise FormInvalid if the form was sent before with other content: from a page that the browser went back to.
        """
        task = self._tasks.get(serial)
        if task is not None and self._contents.get(serial) != content:
            raise FormInvalid("this form was sent before with another content; nothing was done")
        if task is None:
            if serial <= self._floor:
                raise CrossSiteRequest("the form is too old: many others were sent since")
            task = self._tasks[serial] = asyncio.create_task(self._alone(work))
            self._contents[serial] = content
        try:
            # A browser that disconnects does not stop a write in progress.
            outcome = await asyncio.shield(task)
        except BaseException:
            if task.done() and self._tasks.get(serial) is task:
                self._forget(serial)  # it failed: the same form may try again
            raise
        while len(self._tasks) > self._most:
            oldest = next(iter(self._tasks))
            if not self._tasks[oldest].done():
                break
            self._forget(oldest)
            self._floor = max(self._floor, oldest)
        return outcome

    def outcome(self, serial: int) -> WriteOutcome | None:
        """Return the outcome of a completed form, or None."""
        task = self._tasks.get(serial)
        return task.result() if task is not None and task.done() and not task.exception() else None

    def _forget(self, serial: int) -> None:
        del self._tasks[serial], self._contents[serial]

    async def _alone(self, work: Callable[[], Awaitable[WriteOutcome]]) -> WriteOutcome:
        async with self._writing:
            return await work()


async def read_fields(request: Request, *, most: int = MAX_FORM_BYTES) -> dict[str, str]:
    """Return the fields of a form without files. Raise FormInvalid if it is too large, or repeats a field."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/x-www-form-urlencoded":
        raise FormInvalid("the request is not a form")
    body = await read_body(request, most, FormInvalid)
    try:
        pairs = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, strict_parsing=bool(body), errors="strict",
            max_num_fields=_MAX_FIELDS,
        )  # fmt: skip
    except ValueError as exc:
        raise FormInvalid("the fields of the form cannot be read") from exc
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise FormInvalid("the form has a field twice")
    return fields
