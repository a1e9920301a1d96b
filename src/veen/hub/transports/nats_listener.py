"""Calls over NATS (D-113, D-148). The subjects are in `veen.io.nats_link`.

The server's accounts decide who may publish where; the hub checks that a subject matches its message: a frame must be
of the operation that its subject names, and a MSG of the label in its subject. A reply goes to an inbox, never to a
subject of a hub: otherwise a caller could make the hub publish where the caller may not.

While the server is away the hub serves its other transports and tries to connect again.
"""

import asyncio
import contextlib
import re
import ssl
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from veen.core.call_frames import MAX_OVERHEAD_BYTES, RequestFrame
from veen.core.catalogue import install_hint
from veen.core.entry import MSG_CLIENT_AT, MSG_LABEL_AT
from veen.core.errors import ApiCode, FormatError, VeenError
from veen.core.objects.envelopes import SUBMIT_PREFIX, SubmitResponse
from veen.hub.api.access import Principal
from veen.hub.api.pages import open_page
from veen.hub.api.reply import ApiError, Reply
from veen.hub.process.config import ConfigError, NatsConfig
from veen.hub.process.supervisor import Supervisor
from veen.hub.transports.door import CallDoor, frame_of
from veen.io.nats_link import (
    MARGIN_BYTES,
    PART_HEADER,
    BrokerFault,
    CredentialsFault,
    FrameParts,
    NatsAddress,
    PartsFault,
    close_link,
    hub_id16,
    open_link,
    split,
    subject_of,
)
from veen.io.shares import LARGE

if TYPE_CHECKING:
    from nats.aio.client import Client as NatsClient
    from nats.aio.msg import Msg as NatsMessage

_CALLER: Final = Principal(address="nats")  # the server does not identify callers
_HEADERS: Final = ("veen-pow", "veen-cap")  # that may come as headers of the message
_RESERVED: Final = ("veen.", "submit.", "tail.", "$")
_LABEL: Final = re.compile(r"submit\.([0-9a-f]{64})")
_MAX_ASSEMBLING: Final = 64  # frames in parts at a time
_ASSEMBLE_SEC: Final = 30.0
_PENDING_MESSAGES: Final = 16_384  # of a subscription, before the library drops messages
_PENDING_BYTES: Final = 128 * 1024 * 1024
_LOOP: Final = "nats"
_TAIL_LOOP: Final = "nats tail"
_RETRY_SEC: Final = 1.0
_STOP_SEC: Final = 10.0
_MAX_TAILED: Final = 4_096  # labels with entries that are not published yet; more are left out
_TAIL_PAGE: Final = 64


class _PayloadTooSmall(VeenError):
    """The NATS server does not accept a message of the greatest size."""

    def __init__(self, actual: int, wanted: int) -> None:
        super().__init__(actual, wanted)
        self.actual, self.wanted = actual, wanted

    def __str__(self) -> str:
        return f"max_payload of the NATS server is {self.actual}, and a message may need {self.wanted}"


class NatsListener:
    """One connection to one NATS server. Every field is owned by the event loop's thread."""

    def __init__(
        self,
        door: CallDoor,
        config: NatsConfig,
        hub_id: bytes,
        *,
        report: Callable[[str, str], None],
        beside: Supervisor,
    ) -> None:
        """Prepare the listener. `beside` runs the loops that connect again and that publish new entries."""
        self._beside = beside
        self._door, self._config, self._hub, self._report = door, config, hub_id16(hub_id), report
        self._address = NatsAddress.of(config.url, ca_file=config.ca_file)
        self._link: NatsClient | None = None  # while it is connected
        self._lost = asyncio.Event()
        self._draining = False
        self._calls: set[asyncio.Task[None]] = set()
        self._assembling: dict[str, tuple[FrameParts, float]] = {}  # by reply subject: parts so far, and the deadline
        self._tailed: dict[bytes, int] = {}  # labels with new entries, and the first of them
        self._news = asyncio.Event()  # set while `_tailed` is not empty
        self._trouble = ""

    @property
    def url(self) -> str:
        scheme = self._config.url.partition(":")[0]
        host = f"[{self._address.host}]" if ":" in self._address.host else self._address.host
        return f"{scheme}://{host}:{self._address.port}/?hub={self._hub}"

    # --- life ------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect. Raise ConfigError for faults that a retry would not mend; wait for a server that is away."""
        try:
            await self._connect()
        except ImportError as exc:
            raise ConfigError("", "nats.url", "needs a package that is not installed", install_hint("nats")) from exc
        except CredentialsFault as exc:
            raise ConfigError(str(exc.path), "nats.credentials_file", exc.what, "Give a private file.") from exc
        except _PayloadTooSmall as exc:
            remedy = f"Set max_payload: {2 << 20} in the configuration of the NATS server (docs/transports.md)."
            raise ConfigError("", "nats.url", str(exc), remedy) from exc
        except BrokerFault as exc:
            if exc.is_final or exc.is_certificate:
                remedy = "Check nats.url, nats.ca_file and nats.credentials_file."
                raise ConfigError("", "nats.url", f"the NATS server refuses: {exc}", remedy) from exc
            self._tell(f"cannot be reached: {exc}")
        if self._config.tail:
            self._door.api.services.sequencer.on_applied(self._on_applied)
            self._beside.start(_TAIL_LOOP, self._publish_news)
        self._beside.start(_LOOP, self._keep)

    async def drain(self) -> None:
        """Accept no more calls; later callers learn at once that no hub listens."""
        self._draining = True
        await self._beside.end(_LOOP)
        if self._link is not None:
            for subscription in list(self._link._subs.values()):
                with contextlib.suppress(Exception):  # the connection may be gone
                    await subscription.unsubscribe()

    async def stop(self) -> None:
        """Finish accepted calls."""
        await self._beside.end(_LOOP)
        if self._calls:
            await asyncio.wait(self._calls, timeout=_STOP_SEC)
        await self._beside.end(_TAIL_LOOP)
        for call in self._calls:
            call.cancel()
        if self._calls:
            await asyncio.wait(self._calls)
        if self._link is not None:
            with contextlib.suppress(Exception):  # nothing is lost by an error here
                await asyncio.wait_for(self._link.flush(), 1)
            await close_link(self._link)
        self._forget_parts(float("inf"))

    def _tell(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            self._report("warning", f"{self._address.server}: {trouble}")

    async def _keep(self) -> None:
        while True:
            if self._link is not None:
                await self._lost.wait()
                self._link = None
                self._tell("the connection was lost")
            await asyncio.sleep(_RETRY_SEC)
            self._forget_parts(asyncio.get_running_loop().time())
            try:
                await self._connect()
            except (BrokerFault, CredentialsFault, _PayloadTooSmall) as exc:
                self._tell(str(exc))

    async def _connect(self) -> None:
        self._lost.clear()
        link = await open_link(
            self._address,
            name=f"veen-hub-{self._hub}",
            closed=self._on_closed,
            faulted=self._on_fault,
            tls=_tls(self._config.ca_file) if self._address.demands_tls else None,
            credentials_file=self._config.credentials_file,
        )
        try:
            wanted = self._door.api.context.limits.max_msg_bytes + MARGIN_BYTES
            if link.max_payload < wanted:
                raise _PayloadTooSmall(link.max_payload, wanted)
            bounds = {"pending_msgs_limit": _PENDING_MESSAGES, "pending_bytes_limit": _PENDING_BYTES}
            await link.subscribe(f"veen.{self._hub}.>", cb=self._on_call, **bounds)
            if self._config.submit:
                await link.subscribe("submit.*", cb=self._on_submit, **bounds)
            await link.flush()
        except BaseException as exc:
            await close_link(link)
            if isinstance(exc, (VeenError, asyncio.CancelledError)):
                raise
            raise BrokerFault(str(exc) or type(exc).__name__) from exc
        self._link = link
        if self._trouble:
            self._trouble = ""
            self._report("info", f"{self._address.server}: connected again")

    async def _on_closed(self) -> None:
        self._lost.set()

    async def _on_fault(self, error: Exception) -> None:
        """Log a fault of the connection: a missing permission, dropped messages."""
        if self._link is not None:
            self._tell(str(error) or type(error).__name__)

    # --- calls -----------------------------------------------------------------------------------------

    async def _on_call(self, message: "NatsMessage") -> None:
        if not message.reply or message.reply.startswith(_RESERVED):
            return  # there is no reply subject
        try:
            data = self._assemble(message)
        except PartsFault as exc:
            await self._send(message.reply, frame_of(self._bad(str(exc))).to_bytes())
            return
        if data is not None:
            self._begin(self._serve(message, data))

    def _begin(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _serve(self, message: "NatsMessage", data: bytes) -> None:
        operation = ""
        try:
            request = RequestFrame.from_bytes(data)
            operation = request.operation
            if subject_of(self._hub, operation) != message.subject:
                error = ApiError(ApiCode.FORBIDDEN, "the subject is that of another operation")
                reply = self._door.of_error(error, _CALLER)
            else:
                headers = {**_headers_of(message), **request.headers}
                reply = await self._door.call(RequestFrame(operation, request.body, headers), _CALLER)
                if reply.stream is not None:
                    await reply.stream.aclose()
                    reply = self._door.endless(_CALLER)
        except FormatError as exc:
            reply = self._door.of_fault(exc, _CALLER)
        if not self._door.take_answer(_CALLER, reply, operation):
            reply = self._door.unread(_CALLER)
        try:
            await self._send(message.reply, frame_of(reply).to_bytes())
        finally:
            self._door.release_answer(_CALLER, reply)

    async def _on_submit(self, message: "NatsMessage") -> None:
        if not message.reply.startswith(_RESERVED):
            self._begin(self._submit(message))

    async def _submit(self, message: "NatsMessage") -> None:
        """Answer a bare MSG with a bare RECEIPT or an error map (DR0-03)."""
        raw = message.data
        label = _LABEL.fullmatch(message.subject)
        if label is None or (len(raw) > MSG_CLIENT_AT and raw[MSG_LABEL_AT:][:32].hex() != label[1]):
            reply = self._bad("the subject names another label than the message")
        else:
            request = RequestFrame("v1/submit", SUBMIT_PREFIX + raw, _headers_of(message))
            reply = await self._door.call(request, _CALLER)
        if message.reply:
            body = reply.body if reply.status != 200 else SubmitResponse.from_bytes(reply.body).receipt.to_bytes()
            await self._send(message.reply, body)

    def _bad(self, what: str) -> Reply:
        return self._door.of_error(ApiError(ApiCode.BAD_REQUEST, what), _CALLER)

    async def _send(self, subject: str, data: bytes) -> None:
        link = self._link
        if link is None:
            return  # the client will retry
        try:
            for piece, headers in split(data, link.max_payload):
                await link.publish(subject, piece, headers=headers)
        except Exception as exc:  # of the library: a lost connection, an invalid subject
            self._tell(f"an answer could not be sent: {str(exc) or type(exc).__name__}")

    # --- parts -----------------------------------------------------------------------------------------

    def _assemble(self, message: "NatsMessage") -> bytes | None:
        """Return the frame that this message is, or completes; None if parts are missing. Raise PartsFault if parts
        do not fit."""
        if not (message.headers and PART_HEADER in message.headers):
            return bytes(message.data)
        now = asyncio.get_running_loop().time()
        self._forget_parts(now)
        begun = self._assembling.pop(message.reply, None)
        if begun is None and len(self._assembling) >= _MAX_ASSEMBLING:
            raise PartsFault("too many requests in parts at once")
        parts, end = begun or (FrameParts(self._door.max_request_bytes() + MAX_OVERHEAD_BYTES), now + _ASSEMBLE_SEC)
        size = len(message.data)
        if size > LARGE and not self._door.bodies.take(_CALLER.address, size):
            self._release(parts)
            raise PartsFault("too much is being sent at once")
        whole = None
        try:
            whole = parts.add(message.data, message.headers)
        except PartsFault:
            if size > LARGE:
                self._door.bodies.give_back(_CALLER.address, size)
            self._release(parts)
            raise
        if whole is None:
            self._assembling[message.reply] = parts, end
        else:
            self._release(parts)
        return whole

    def _release(self, parts: FrameParts) -> None:
        for piece in parts.pieces:
            if len(piece) > LARGE:
                self._door.bodies.give_back(_CALLER.address, len(piece))

    def _forget_parts(self, now: float) -> None:
        for reply in [reply for reply, (_, end) in self._assembling.items() if end <= now]:
            self._release(self._assembling.pop(reply)[0])

    # --- news ------------------------------------------------------------------------------------------

    def _on_applied(self, labels: Sequence[bytes]) -> None:
        """Note the new entries of these labels, one for each time that a label is named."""
        if self._link is None or self._draining:
            return
        for label in set(labels):
            if label in self._tailed or len(self._tailed) >= _MAX_TAILED:
                continue
            files = self._door.api.context.store.files(label)
            if files is not None:
                self._tailed[label] = files.size - labels.count(label) + 1
        if self._tailed:
            self._news.set()

    async def _publish_news(self) -> None:
        context = self._door.api.context
        while True:
            await self._news.wait()
            label = next(iter(self._tailed))
            first = self._tailed.pop(label)
            if not self._tailed:
                self._news.clear()
            await context.services.sequencer.wait_settled()  # see decisions.md 498
            try:
                files, link = context.store.files(label), self._link
                if files is None or link is None:
                    continue  # best effort: readers fill the gap by `stream`
                while first <= (last := files.size):
                    async with open_page(context, files, first, last, _TAIL_PAGE) as page:
                        for frame in page.frames:
                            await link.publish(f"tail.{label.hex()}", b"\x82" + frame.receipt + frame.msg)
                    first += len(page.frames)
                    if not page.frames:
                        break
            except asyncio.CancelledError:
                raise
            except Exception as exc:
                self._tell(f"new entries could not be published: {str(exc) or type(exc).__name__}")


def _headers_of(message: "NatsMessage") -> Mapping[str, str]:
    headers = {name.lower(): value for name, value in (message.headers or {}).items()}
    return {name: headers[name] for name in _HEADERS if name in headers}


def _tls(ca_file: Path | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))
    except (OSError, ssl.SSLError) as exc:
        raise ConfigError(str(ca_file), "nats.ca_file", f"not usable for TLS: {exc}", "Give a PEM file.") from exc
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
