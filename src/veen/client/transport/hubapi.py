"""Unsigned statements of a hub about itself and its labels: typed, bounded, and not trusted.

All such requests go through here: sessions, the pipeline and the command line. The other side may be hostile, so
each answer is checked for its form, lists must make progress and end, and numbers that would break arithmetic are
refused. Such a fault is a BadAnswer, which blames only the hub. Size, number of items and time of an answer are
bounded below (`veen.client.transport.calls`, `veen.client.transport.http`).

Signatures are checked by `veen.client.session`, under a pin.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from veen.client.errors import BadAnswer
from veen.client.transport.calls import NO_RETRY, NOTHING, Calls, Retry, Transport, error_of, read
from veen.client.transport.http import CALL_SECONDS
from veen.client.transport.opening import open_transport
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import ControlRecord, HubFence, KeyRotate
from veen.core.objects.envelopes import CheckpointRequest, CheckpointResponse
from veen.core.objects.tooling import (
    HealthResponse,
    IdentityResponse,
    InspectRequest,
    InspectResponse,
    LabelInfo,
    ReadyResponse,
    RecordResponse,
    RotateKeyRequest,
    StatusResponse,
)

T = TypeVar("T")

MAX_LABELS: Final = 4_000_000  # bound for a list of labels, several times the design size of a hub
_MAX_TIME: Final = 1 << 48  # seconds; bound below which no arithmetic overflows
_MAX_POW_BITS: Final = 256  # the bits of a hash
_STATUS: Final = "tooling/status"
_INSPECT: Final = "tooling/inspect"


async def status_of(calls: Calls) -> StatusResponse:
    """Return the status of the hub, with all numbers within bounds."""
    status = await calls.ask(_STATUS, NOTHING, StatusResponse)
    if status.hub_ts > _MAX_TIME or any(profile.epoch_sec > _MAX_TIME for profile in status.profiles):
        raise BadAnswer(f"{_STATUS}: a time that no hub has")
    if status.pow_difficulty > _MAX_POW_BITS:
        raise BadAnswer(f"{_STATUS}: a proof of work of {status.pow_difficulty} bits")
    return status


async def label_pages(calls: Calls, epoch_min: int = 0) -> AsyncIterator[tuple[LabelInfo, ...]]:
    """Yield all labels from an epoch on, by (epoch, label), page by page.

    Raise BadAnswer if they do not ascend, if a page is empty, or if there are more labels than the hub states.
    """
    request = InspectRequest(after_epoch=epoch_min) if epoch_min else InspectRequest()
    last: tuple[int, bytes] | None = None
    count = 0
    while True:
        answer = await calls.ask(_INSPECT, request, InspectResponse)
        for info in answer.labels:
            if last is not None and (info.epoch, info.label) <= last:
                raise BadAnswer(f"{_INSPECT}: labels that do not ascend")
            last = info.epoch, info.label
        count += len(answer.labels)
        if count > min(answer.label_count, MAX_LABELS):
            raise BadAnswer(f"{_INSPECT}: a list of more labels than there are ({count} by now)")
        yield answer.labels
        if not answer.more:
            return
        if last is None or not answer.labels:
            raise BadAnswer(f"{_INSPECT}: the list goes on, and nothing is listed")
        request = InspectRequest(after_epoch=last[0], after=last[1])


def metric_samples(text: str) -> dict[str, float | None]:
    """Return the samples of a Prometheus text by name and labels; None for a value that is not a finite number."""
    samples: dict[str, float | None] = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        name, _, value = line.rpartition(" ")
        try:
            number = float(value)
        except ValueError as exc:
            raise BadAnswer(f"metrics: not a sample: {line[:80]!r}") from exc
        samples[name] = number if math.isfinite(number) else None
    if not samples:
        raise BadAnswer("metrics: no sample in the answer")
    return samples


class HubApi:
    """A hub behind a URL, for callers that block: `with HubApi(url) as hub: hub.status()`.

    Not for use inside an event loop. Each call ends after `timeout` seconds at the latest, whatever the hub does.
    """

    def __init__(
        self,
        url: str,
        *,
        ca_file: Path | None = None,
        token_file: Path | None = None,
        insecure_http: bool = False,
        timeout: float = CALL_SECONDS,
        retry: Retry = NO_RETRY,
        socket_path: Path | None = None,
    ) -> None:
        """Open the transport. With `socket_path` the hub is called through that Unix socket of this machine."""
        self.url = url
        # The event loop of this object and of its connections; used by the calling thread only.
        self._runner = asyncio.Runner()
        try:
            transport = self._runner.run(
                _open(url, ca_file, token_file, timeout, insecure_http=insecure_http, socket_path=socket_path)
            )
        except BaseException:
            self._runner.close()
            raise
        self._calls = Calls(transport, retry)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._runner.run(self._calls.transport.aclose())
        self._runner.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    # --- what it says of itself ---------------------------------------------------------------------------

    def status(self) -> StatusResponse:
        return self._run(status_of(self._calls))

    def identity(self) -> IdentityResponse:
        """Return the identity that the hub claims; nothing of it is proven."""
        return self._run(self._calls.ask("tooling/identity", NOTHING, IdentityResponse))

    def health(self) -> HealthResponse:
        return self._run(self._calls.ask("healthz", None, HealthResponse))

    def ready(self) -> ReadyResponse:
        """Return the readiness of the hub, also if it is not ready."""
        return self._run(self._ready())

    async def _ready(self) -> ReadyResponse:
        answer = await self._calls.transport.call("readyz")
        if not answer.ok and answer.status != 503:
            raise error_of("readyz", answer)
        return read("readyz", answer.body, ReadyResponse)

    def metrics(self) -> str:
        """Return the metrics in the text form of Prometheus."""
        answer = self._run(self._calls.send("metrics", b""))
        try:
            return answer.body.decode()
        except UnicodeDecodeError as exc:
            raise BadAnswer("metrics: not text") from exc

    # --- labels ---------------------------------------------------------------------------------------------

    def label_count(self) -> int:
        return self._run(self._calls.ask(_INSPECT, InspectRequest(), InspectResponse)).label_count

    def label(self, label: bytes) -> LabelInfo:
        answer = self._run(self._calls.ask(_INSPECT, InspectRequest(label=label), InspectResponse))
        if [info.label for info in answer.labels] != [label]:
            raise BadAnswer(f"{_INSPECT}: another label than the one asked for")
        return answer.labels[0]

    def labels(self) -> Iterator[LabelInfo]:
        """Yield all labels, a page at a time."""
        pages = label_pages(self._calls)
        while True:
            try:
                yield from self._run(_next(pages))
            except StopAsyncIteration:
                return

    def checkpoint(self, label: bytes, upto_seq: int) -> Checkpoint:
        """Return the checkpoint of a label at a length. The caller checks its signature."""
        request = CheckpointRequest(label=label, upto_seq=upto_seq)
        checkpoint = self._run(self._calls.ask("v1/checkpoint", request, CheckpointResponse)).checkpoint
        if (checkpoint.label_curr, checkpoint.upto_seq) != (label, upto_seq):
            raise BadAnswer("v1/checkpoint: another checkpoint than the one asked for")
        return checkpoint

    # --- administration -------------------------------------------------------------------------------------

    def fence(self) -> ControlRecord:
        """Fence the hub; return the record, also if it was fenced before."""
        record = self._run(self._calls.ask("tooling/fence", NOTHING, RecordResponse)).record
        if not isinstance(record.body, HubFence):
            raise BadAnswer("tooling/fence: a record that fences nothing")
        return record

    def rotate_key(self, overlap_sec: int, *, request_id: bytes | None = None) -> tuple[ControlRecord, KeyRotate]:
        """Have the hub introduce its next key; return the record and its body.

        Each call adds a key, unless `request_id` is that of an earlier call: then the record of that call is returned.
        """
        request = RotateKeyRequest(overlap_sec=overlap_sec)
        asking = self._calls.ask_once("tooling/rotate_key", request, RecordResponse, request_id=request_id)
        record = self._run(asking).record
        if not isinstance(record.body, KeyRotate):
            raise BadAnswer("tooling/rotate_key: a record that introduces no key")
        return record, record.body


async def _open(
    url: str,
    ca_file: Path | None,
    token_file: Path | None,
    seconds: float,
    *,
    insecure_http: bool,
    socket_path: Path | None,
) -> Transport:
    """Open the transport inside the event loop of its connections."""
    return open_transport(
        url,
        ca_file=ca_file,
        token_file=token_file,
        insecure_http=insecure_http,
        timeout=seconds,
        socket_path=socket_path,
    )


async def _next(pages: AsyncIterator[tuple[LabelInfo, ...]]) -> tuple[LabelInfo, ...]:
    return await anext(pages)
