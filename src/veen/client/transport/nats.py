"""Calls over NATS (D-113, D-148): `nats://HOST/?hub=HEX`, or `nats+tls://…` if TLS is required.

One connection carries all calls; each has its own inbox below a common one. If no hub listens the server reports it,
and the call gets the answer of an unavailable hub at once. A broken connection leaves it unknown if the
hub acted: the calls on it fail, and the next call opens another one.

`credentials=FILE` in the address names a file with `USER:PASSWORD` or NATS credentials, for the server's accounts.
"""

import asyncio
import secrets
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlsplit

from veen.client.errors import (
    BadAnswer,
    BrokerRefused,
    CertificateUnverified,
    ExtraMissing,
    InsecureHttp,
    LocalError,
    NetworkError,
    Unreachable,
)
from veen.client.transport.addresses import credentials_of
from veen.client.transport.calls import CAP_HEADER, POW_HEADER, Answer
from veen.client.transport.framed import FramedTransport
from veen.client.transport.http import CALL_SECONDS, is_loopback, tls_of
from veen.core.errors import ApiCode
from veen.core.objects.envelopes import ErrorEnvelope
from veen.io.nats_link import (
    BrokerFault,
    CredentialsFault,
    FrameParts,
    NatsAddress,
    PartsFault,
    close_link,
    open_link,
    split,
    subject_of,
)

if TYPE_CHECKING:
    from nats.aio.client import Client as NatsClient
    from nats.aio.msg import Msg as NatsMessage

_OWN: Final = (POW_HEADER, CAP_HEADER)  # travel as headers of the message
_NO_RESPONDERS: Final = "503"


@dataclass(slots=True)
class _Waiting:
    """A call whose answer is awaited."""

    subject: str
    parts: FrameParts
    answer: asyncio.Future[bytes | None] = field(repr=False)  # None: no hub listens


class NatsTransport(FramedTransport):
    """One hub behind one NATS server. Use it inside one event loop; `aclose` closes its connection."""

    def __init__(
        self,
        url: str,
        *,
        ca_file: Path | None = None,
        client_cert: Path | None = None,
        client_key: Path | None = None,
        token_file: Path | None = None,
        insecure_http: bool = False,
        timeout: float = CALL_SECONDS,
    ) -> None:
        super().__init__(url, token_file=token_file, timeout=timeout)
        self._hub = dict(parse_qsl(urlsplit(url).query))["hub"]
        self._address = NatsAddress.of(url, ca_file=ca_file)
        credentials = credentials_of(url)
        self._credentials = None if credentials is None else Path(credentials).expanduser()
        self._tls: ssl.SSLContext | None = None
        if self._address.demands_tls:
            self._tls = tls_of(ca_file, client_cert, client_key)
        elif (token_file or self._credentials) and not insecure_http and not is_loopback(self._address.host):
            raise InsecureHttp(url)
        # Of the event loop's thread, from the first call on.
        self._link: NatsClient | None = None
        self._opening = asyncio.Lock()
        self._inbox = ""
        self._waiting: dict[str, _Waiting] = {}  # by the last word of the inbox

    async def _exchange(self, operation: str, body: bytes, headers: Mapping[str, str], limit: float) -> Answer:
        own = {name: headers[name] for name in _OWN if name in headers}
        others = {name: value for name, value in headers.items() if name not in own}
        frame = self._request(operation, body, others)
        async with asyncio.timeout(limit):
            data = await self._ask(subject_of(self._hub, operation), frame, own)
        return _no_hub() if data is None else self._answer(data)

    async def _ask(self, subject: str, frame: bytes, own: dict[str, str]) -> bytes | None:
        link = await self._connect()
        word = secrets.token_hex(11)
        answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        parts = FrameParts(self._max_frame)
        self._waiting[word] = _Waiting(subject, parts, answer)
        try:
            for piece, mark in split(frame, link.max_payload):
                every = {**own, **(mark or {})} or None
                await link.publish(subject, piece, reply=f"{self._inbox}.{word}", headers=every)
            return await answer
        except NetworkError:
            raise
        except Exception as exc:
            raise Unreachable(f"{self.url}: {str(exc).removeprefix('nats: ') or type(exc).__name__}") from exc
        finally:
            del self._waiting[word]

    async def _connect(self) -> "NatsClient":
        async with self._opening:
            if self._link is not None:
                return self._link
            try:
                link = await open_link(
                    self._address,
                    name="veen",
                    closed=self._on_closed,
                    faulted=self._on_fault,
                    tls=self._tls,
                    credentials_file=self._credentials,
                )
            except ImportError as exc:
                raise ExtraMissing("nats", "a hub behind NATS") from exc
            except CredentialsFault as exc:
                raise LocalError(str(exc)) from exc
            except BrokerFault as exc:
                kind = CertificateUnverified if exc.is_certificate else BrokerRefused if exc.is_final else Unreachable
                raise kind(f"{self.url}: {exc}") from exc
            try:
                self._inbox = link.new_inbox()
                await link.subscribe(f"{self._inbox}.*", cb=self._on_answer)
                await link.flush()
            except Exception as exc:
                await close_link(link)
                raise Unreachable(f"{self.url}: {str(exc) or type(exc).__name__}") from exc
            except BaseException:
                await close_link(link)
                raise
            self._link = link
            return link

    async def _on_answer(self, message: "NatsMessage") -> None:
        waiting = self._waiting.get(message.subject.rpartition(".")[2])
        if waiting is None or waiting.answer.done():
            return  # nobody waits for it any longer
        headers: Mapping[str, Any] = message.headers or {}
        if headers.get("Status") == _NO_RESPONDERS:
            waiting.answer.set_result(None)
            return
        try:
            data = waiting.parts.add(message.data, headers)
        except PartsFault as exc:
            waiting.answer.set_exception(BadAnswer(f"{self.url}: {exc.args[0]}"))
            return
        if data is not None:
            waiting.answer.set_result(data)

    async def _on_closed(self) -> None:
        self._link = None
        self._fail(Unreachable(f"{self.url}: the connection to the NATS server was lost"))

    async def _on_fault(self, error: Exception) -> None:
        text = str(error)
        if "permissions violation" in text.lower():
            refused = BrokerRefused(f"{self.url}: {text.removeprefix('nats: ')}")
            self._fail(refused, lambda waiting: waiting.subject.lower() in text.lower() or "subscription" in text)

    def _fail(self, error: NetworkError, concerns: Any = lambda waiting: True) -> None:
        for waiting in self._waiting.values():
            if not waiting.answer.done() and concerns(waiting):
                waiting.answer.set_exception(error)

    async def aclose(self) -> None:
        if self._link is not None:
            await close_link(self._link)


def _no_hub() -> Answer:
    """Return the answer of an unavailable hub: its subject has no subscriber."""
    envelope = ErrorEnvelope(code=ApiCode.UNAVAILABLE.code, message="no hub listens to this subject", retry_after=1)
    return Answer(ApiCode.UNAVAILABLE.http_status, envelope.to_bytes(), {"retry-after": "1"})
