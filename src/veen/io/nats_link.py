"""NATS, as hub and client use it: subjects, frames in parts, one connection (D-113, D-148).

    submit.LABEL                  a bare MSG; the reply is a bare RECEIPT, or an error map
    veen.HUB.OPERATION            a frame (`veen.core.call_frames`); HUB: the first 16 hex digits of hub_id
    tail.LABEL                    [RECEIPT, MSG] of each new entry, best effort

A frame that is larger than the server lets pass goes in parts, in order, each with the header `VEEN-Part: 2/5`.

A connection that breaks is not mended behind our back: it ends, and its owner opens another one. So nothing is sent
twice unless the caller says so, and the server's limits are looked at again.
"""

import asyncio
import re
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from veen.core.errors import VeenError
from veen.io.local import mode_of

if TYPE_CHECKING:
    from nats.aio.client import Client as NatsClient

PART_HEADER: Final = "VEEN-Part"
MARGIN_BYTES: Final = 4 * 1024  # of the server's max_payload, for a frame and headers around the largest MSG
_MAX_PARTS: Final = 256
_MAX_CREDENTIALS: Final = 64 * 1024
_PORT: Final = 4222
_CONNECT_SEC: Final = 5.0
_CLOSE_SEC: Final = 1.0
_PENDING_BYTES: Final = 8 * 1024 * 1024  # that wait to be written before a publisher waits
_PART: Final = re.compile(r"([1-9][0-9]{0,2})/([1-9][0-9]{0,2})")
_PLAIN: Final = re.compile(r"[^A-Za-z0-9_-]")
_ALONE: Final = {"outer": 1, "tooling/attachment": 2}  # operations with a path behind, by how many words they have
_MAX_WORDS: Final = 8
_MAX_WORD: Final = 64


class BrokerFault(VeenError):
    """A NATS server that is unreachable or refuses. `is_final`: a retry would fail in the same way."""

    def __init__(self, what: str, *, is_final: bool = False, is_certificate: bool = False) -> None:
        super().__init__(what)
        self.what, self.is_final, self.is_certificate = what, is_final, is_certificate

    def __str__(self) -> str:
        return self.what


class CredentialsFault(VeenError):
    """A file of NATS credentials that cannot be used."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(path, what)
        self.path, self.what = path, what

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


class PartsFault(VeenError):
    """Parts that do not form one frame."""


def hub_id16(hub_id: bytes) -> str:
    return hub_id.hex()[:16]


def subject_of(hub: str, operation: str) -> str:
    """Return the subject of an operation: its name with dots. The path behind an attachment or a tile is left out."""
    words = [word for word in re.split(r"[/.]", operation.partition("?")[0]) if word]
    for name, count in _ALONE.items():
        if operation.startswith(f"{name}/"):
            words = words[:count]
    plain = [_PLAIN.sub("_", word)[:_MAX_WORD] for word in words[:_MAX_WORDS]]
    return ".".join(("veen", hub, *(plain or ["_"])))


@dataclass(frozen=True, slots=True)
class NatsAddress:
    """Address of a NATS server; `demands_tls` if it must use TLS."""

    host: str
    port: int
    demands_tls: bool

    @classmethod
    def of(cls, url: str, *, ca_file: Path | None = None) -> "NatsAddress":
        """Parse `nats://HOST:PORT` or `nats+tls://…`, else raise ValueError. A `ca_file` implies TLS."""
        parts = urlsplit(url)
        if parts.scheme not in ("nats", "nats+tls") or not parts.hostname or parts.username or parts.password:
            raise ValueError(f"expected nats://HOST:PORT or nats+tls://HOST:PORT without credentials, found {url!r}")
        return cls(parts.hostname, parts.port or _PORT, parts.scheme == "nats+tls" or ca_file is not None)

    @property
    def server(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls' if self.demands_tls else 'nats'}://{host}:{self.port}"


def split(data: bytes, max_payload: int) -> list[tuple[bytes, dict[str, str] | None]]:
    """Return the messages that carry `data`: one, or several with part numbers."""
    room = max_payload - MARGIN_BYTES
    if len(data) <= room:
        return [(data, None)]
    pieces = [data[start : start + room] for start in range(0, len(data), room)]
    return [(piece, {PART_HEADER: f"{number}/{len(pieces)}"}) for number, piece in enumerate(pieces, start=1)]


@dataclass(slots=True)
class FrameParts:
    """One frame as its parts arrive. A part out of order or beyond the limit raises PartsFault and is dropped."""

    max_bytes: int
    size: int = 0
    pieces: list[bytes] = field(default_factory=list)
    _count: int = 0  # of the parts that there will be; 0: none has come

    def add(self, piece: bytes, headers: Mapping[str, str] | None) -> bytes | None:
        """Add a part; return the whole frame, or None if more parts are to come."""
        mark = (headers or {}).get(PART_HEADER, "1/1")
        match = _PART.fullmatch(mark)
        if match is None:
            raise PartsFault("the number of a part is not valid")
        number, count = int(match[1]), int(match[2])
        if count > _MAX_PARTS or number != len(self.pieces) + 1 or (self._count and count != self._count):
            raise PartsFault("a part is missing, or does not belong to the others")
        if self.size + len(piece) > self.max_bytes:
            raise PartsFault(f"more than {self.max_bytes} bytes in parts")
        self._count = count
        self.size += len(piece)
        self.pieces.append(piece)
        return b"".join(self.pieces) if number == count else None


async def open_link(
    address: NatsAddress,
    *,
    name: str,
    closed: Callable[[], Awaitable[None]],
    faulted: Callable[[Exception], Awaitable[None]],
    tls: ssl.SSLContext | None = None,
    credentials_file: Path | None = None,
) -> "NatsClient":
    """Open a connection; raise BrokerFault if it fails, ImportError without the extra `nats`."""
    import nats.errors
    from nats.aio.client import Client

    class Link(Client):  # type: ignore[misc]  # its types come with an extra
        async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
            """Insist on TLS before credentials are sent, whatever the server offers."""
            if initial_connection and address.demands_tls and not info.get("tls_required"):
                raise nats.errors.Error("nats: the server does not offer TLS, which is required")
            await super()._process_info(info, initial_connection)

    options: dict[str, Any] = {}
    if tls is not None:
        options |= {"tls": tls, "tls_hostname": address.host}
    if credentials_file is not None:
        options |= _credentials(credentials_file)
    link, last = Link(), list[Exception]()  # the library says why in a callback, and then that no server is left

    async def on_error(error: Exception) -> None:
        last[:] = [error]
        await faulted(error)

    try:
        await asyncio.wait_for(
            link.connect(
                servers=[address.server],
                name=name,
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=_CONNECT_SEC,
                closed_cb=closed,
                error_cb=on_error,
                pending_size=_PENDING_BYTES,
                **options,
            ),
            2 * _CONNECT_SEC,
        )
    except ssl.SSLCertVerificationError as exc:
        await close_link(link)
        raise BrokerFault(exc.verify_message or "the certificate cannot be verified", is_certificate=True) from exc
    except nats.errors.Error as exc:
        await close_link(link)
        cause = last[0] if last and isinstance(exc, nats.errors.NoServersError) else exc
        text = str(cause).removeprefix("nats: ") or type(cause).__name__
        refused = "authorization" in text.lower() or "authentication" in text.lower() or "TLS" in text
        raise BrokerFault(text, is_final=refused) from exc
    except (TimeoutError, OSError, ssl.SSLError) as exc:
        await close_link(link)
        raise BrokerFault(str(exc) or "no answer") from exc
    except BaseException:
        await close_link(link)
        raise
    return link


async def close_link(link: "NatsClient") -> None:
    """Close a connection, also a half-open one; the library may wait for a socket forever."""
    closing = asyncio.ensure_future(link.close())
    await asyncio.wait((closing,), timeout=_CLOSE_SEC)
    closing.cancel()
    await asyncio.wait((closing,))
    writer = getattr(link._transport, "_bare_io_writer", None)
    if writer is not None:
        writer.transport.abort()


def _credentials(path: Path) -> dict[str, Any]:
    """Read `user:password` in one line, or a file that `nsc` wrote."""
    if (mode := mode_of(path)) is not None:
        raise CredentialsFault(path, f"other users can access these credentials (mode {mode:04o}): run chmod 600")
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_CREDENTIALS + 1)
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise CredentialsFault(path, "the credentials cannot be read") from exc
    if "BEGIN NATS USER JWT" in text:
        return {"user_credentials": str(path)}
    user, separator, password = text.strip().partition(":")
    if not separator or not user or not password or "\n" in text.strip():
        raise CredentialsFault(path, "expected one line USER:PASSWORD, or a file of NATS credentials")
    return {"user": user, "password": password}
