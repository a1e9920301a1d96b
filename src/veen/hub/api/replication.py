"""Operations for replicas: changes, the control journal, fencing and promotion (D-78, docs/replication.md)."""

import asyncio
import os
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from veen.core.objects.control import ControlRecord, HubFence, HubPromote
from veen.core.objects.tooling import (
    MAX_LISTED,
    MAX_WAIT_SEC,
    FeedRequest,
    FeedResponse,
    RecordResponse,
    VersionRequest,
)
from veen.hub.api.access import Role
from veen.hub.api.calls import Call, bad_request, not_found
from veen.hub.api.operations import Api, Handler
from veen.hub.api.reply import ApiError, Reply
from veen.hub.api.tooling import label_info

_MAX_CHANGED: Final = 65_536  # labels whose last commit is remembered
_CONTROL_BYTES: Final = 256 * 1024  # of the control journal in one answer
_MAX_WAITING: Final = 64  # replicas that wait at a time


class _Changes:
    """The labels that got entries, by commit number. Owned by the event loop's thread."""

    def __init__(self) -> None:
        self.commit = 0
        self._commits: OrderedDict[bytes, int] = OrderedDict()  # label -> its last commit, oldest first
        self._since = 0  # all changes after this commit are in `_commits`

    def add(self, labels: Sequence[bytes]) -> None:
        self.commit += 1
        for label in labels:
            self._commits[label] = self.commit
            self._commits.move_to_end(label)
        while len(self._commits) > _MAX_CHANGED:
            _, self._since = self._commits.popitem(last=False)

    def after(self, commit: int) -> list[bytes] | None:
        """Return the labels with entries after a commit; None if they are no longer known, or too many."""
        if not self._since <= commit <= self.commit:
            return None
        labels: list[bytes] = []
        for label, changed in reversed(self._commits.items()):
            if changed <= commit:
                break
            labels.append(label)
            if len(labels) > MAX_LISTED:
                return None
        return labels


class Replication:
    """The operations `feed`, `fence` and `promotion`."""

    def __init__(self, api: Api) -> None:
        self._api, self._context, self._services = api, api.context, api.services
        self._instance = os.urandom(32)
        self._changes = _Changes()
        self._waiting: set[asyncio.Future[None]] = set()
        self._closed = False
        self._services.sequencer.on_applied(self._on_applied)
        api.on_close(self._close)

    def operations(self) -> dict[str, tuple[Role, Handler]]:
        return {
            "feed": (Role.READ, self._feed),
            "fence": (Role.ADMIN, self._fence),
            "promotion": (Role.ANY, self._promotion),
        }

    def _on_applied(self, labels: Sequence[bytes]) -> None:
        self._changes.add(labels)
        self._wake()

    def _close(self) -> None:
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def _feed(self, call: Call) -> Reply:
        request = self._context.read(call, FeedRequest)
        if request.wait_sec > MAX_WAIT_SEC:
            raise bad_request("the wait is too long", "wait_sec", max_allowed=MAX_WAIT_SEC, actual=request.wait_sec)
        if request.control_bytes > self._context.store.control_size:
            raise bad_request("the control journal is shorter", "control_bytes")
        clock = asyncio.get_running_loop().time
        deadline = clock() + request.wait_sec
        while self._is_current(request) and not self._closed and (left := deadline - clock()) > 0:
            await self._wait(left)
            self._context.check_role(Role.READ, call.principal)  # the token may have been withdrawn meanwhile
        return self._api.replies.ok(self._answer(request), call.answer)

    def _is_current(self, request: FeedRequest) -> bool:
        """Return True if nothing changed since the answer that the caller continues from."""
        if request.instance != self._instance or request.after != self._changes.commit:
            return False
        return request.control_bytes == self._context.store.control_size

    async def _wait(self, seconds: float) -> None:
        if len(self._waiting) >= _MAX_WAITING:
            raise ApiError.unavailable("too many replicas are waiting")
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            await asyncio.wait((waiter,), timeout=seconds)
        finally:
            self._waiting.discard(waiter)

    def _answer(self, request: FeedRequest) -> FeedResponse:
        """Build the answer without awaiting anything, so that all of it is of one moment (decisions.md 220)."""
        store, changes = self._context.store, self._changes
        labels = None
        if request.instance == self._instance and request.after is not None:
            labels = changes.after(request.after)
        files = [store.files(label) for label in labels or ()]
        size = store.control_size
        wanted = min(_CONTROL_BYTES, size - request.control_bytes)
        return FeedResponse(
            instance=self._instance,
            commit=changes.commit,
            hub_ts=store.applied_ts,
            entries=store.entry_count,
            control_bytes=size,
            control=store.read_control(request.control_bytes, wanted) if wanted else b"",
            labels=tuple(label_info(label_files.head()) for label_files in files if label_files is not None),
            complete=labels is not None,
        )

    async def _fence(self, call: Call) -> Reply:
        """Fence this hub and return the record; a repeated request gets the first one."""
        self._context.read(call, VersionRequest)
        record = self._newest(HubFence.KIND) if self._context.store.state.fenced else None
        return self._api.replies.ok(
            RecordResponse(record=record or await self._services.sequencer.fence()), call.answer
        )

    async def _promotion(self, call: Call) -> Reply:
        """Return the newest record by which this hub became the primary, for the former primary."""
        self._context.read(call, VersionRequest)
        record = self._newest(HubPromote.KIND)
        if record is None:
            raise not_found("this hub was never promoted from a replica")
        return self._api.replies.ok(RecordResponse(record=record), call.answer)

    def _newest(self, kind: str) -> ControlRecord | None:
        return self._context.control.newest(kind)
