"""One-way link: bundles as UDP datagrams, repaired by an erasure code, paced by the sender (AGB-03, PRODUCTS 3.6).

Nothing comes back, so the sender adds redundancy: each block of k symbols is sent as n (zfec), blocks are interleaved,
and the whole is repeated in rounds. Every datagram has all fields needed to place it:

    magic 4 · session 16 · file size 8 · block 4 · index 2 · k 2 · n 2 · symbol bytes 2 · check 8 · symbol

All integers are big-endian; session is the first half of the file's SHA-256, check the first 8 bytes of
SHA-256(datagram without check). Block b begins at b·k·symbol bytes; the last block has as many symbols as the rest of
the file fills, the last of them padded with zeros, and n is the number of symbols of the block. A receiver accepts a
file as a bundle only if it hashes to its session. A forged datagram can make a bundle fail but never change one: id and
signature are verified after it arrived.
"""

import hashlib
import json
import os
import socket
import struct
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from veen.products.bridge.bundle import MAX_BUNDLE_BYTES, SUFFIX, BridgeMisconfigured, BundleReader, LinkLost, Rejected
from veen.products.bridge.files import INCOMING_BOUNDS, FolderBounds, publish_new

_MAGIC: Final = b"VEB1"
_HEAD: Final = struct.Struct(">4s16sQIHHHH")
_CHECK_BYTES: Final = 8
_SESSION_BYTES: Final = 16
_MAX_SESSIONS: Final = 16
_MAX_WAITING_BYTES: Final = 64 << 20  # symbols of unfinished blocks; the oldest session goes first
_SYMBOL_COST: Final = 160  # overhead of a waiting symbol in bytes
_MAX_BLOCKS: Final = 1 << 20  # of a file: larger ones are refused
_INTERLEAVE: Final = 8
_MAX_DATAGRAM: Final = 2_048
_RECEIVE_BUFFER: Final = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkOptions:
    """Settings of a sender; the receiver learns all of them from the datagrams."""

    symbol_bytes: int = 1_300
    k: int = 64
    redundancy: float = 0.25  # parity symbols per data symbol
    rounds: int = 2
    rate: int = 8_000_000  # bytes a second, on the wire without IP and UDP headers

    def __post_init__(self) -> None:
        if not (16 <= self.symbol_bytes <= 1_400 and 1 <= self.k <= 128 and 0 <= self.redundancy <= 1):
            raise BridgeMisconfigured("a symbol has 16 to 1400 bytes, k is 1 to 128, redundancy 0 to 1")
        if self.rounds < 1 or self.rate < 1_000:
            raise BridgeMisconfigured("rounds is at least 1, rate at least 1000 bytes per second")

    def total(self, data_symbols: int) -> int:
        return min(255, data_symbols + -int(-data_symbols * self.redundancy // 1))


def parse_address(text: str) -> tuple[str, int]:
    """Parse HOST:PORT, or [HOST]:PORT for IPv6."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or not 0 <= int(port) < 65_536 or not host:
        raise BridgeMisconfigured(f"{text[:80]!r} is not an address: expected HOST:PORT")
    return host.strip("[]"), int(port)


# --- sending -------------------------------------------------------------------------------------------------------


class LinkSender:
    """Sends files to one address. Owned by one thread."""

    def __init__(
        self,
        address: tuple[str, int],
        options: LinkOptions,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._options, self._clock, self._sleep = options, clock, sleep
        family, kind, protocol, _, place = socket.getaddrinfo(*address, type=socket.SOCK_DGRAM)[0]
        self._socket = socket.socket(family, kind, protocol)
        self._socket.connect(place)  # only errors of this peer can come back then, and they are ignored

    def close(self) -> None:
        self._socket.close()

    def send(self, path: Path) -> int:
        """Send the file in all rounds; return the number of datagrams. Takes at least size / rate seconds."""
        size = path.stat().st_size
        if size > _MAX_BLOCKS * self._options.k * self._options.symbol_bytes:
            raise BridgeMisconfigured(
                f"{path.name} has more than {_MAX_BLOCKS} blocks: send larger symbols, or a larger k"
            )
        session = _session_of(path)
        began, sent_bytes, count = self._clock(), 0, 0
        for _ in range(self._options.rounds):
            with path.open("rb") as file:
                for datagram in _datagrams(file, session, size, self._options):
                    self._send_datagram(datagram)
                    count += 1
                    sent_bytes += len(datagram)
                    ahead = sent_bytes / self._options.rate - (self._clock() - began)
                    if ahead > 0.002:
                        self._sleep(ahead)
        return count

    def _send_datagram(self, datagram: bytes) -> None:
        try:
            self._socket.send(datagram)
        except ConnectionRefusedError:
            pass  # an ICMP answer to an earlier datagram: a one-way link has none, and a test machine may
        except BlockingIOError as exc:
            raise LinkLost(f"the network interface does not take datagrams: {exc.strerror}") from exc


def _session_of(path: Path) -> bytes:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.digest()[:_SESSION_BYTES]


def _datagrams(file: IO[bytes], session: bytes, size: int, options: LinkOptions) -> Iterator[bytes]:
    """Yield blocks in groups: all first symbols of a group, then all second ones, so that many blocks share a burst
    of loss.
    """
    import zfec

    block, left = 0, size
    while left > 0:
        group: list[tuple[int, list[bytes]]] = []
        while left > 0 and len(group) < _INTERLEAVE:
            data = file.read(min(left, options.k * options.symbol_bytes))
            k = -(-len(data) // options.symbol_bytes)
            padded = data.ljust(k * options.symbol_bytes, b"\0")
            symbols = [padded[at : at + options.symbol_bytes] for at in range(0, len(padded), options.symbol_bytes)]
            n = options.total(k)
            group.append((block, [bytes(symbol) for symbol in zfec.Encoder(k, n).encode(symbols)]))
            left -= len(data)
            block += 1
        for index in range(max(len(symbols) for _, symbols in group)):
            for number, symbols in group:
                if index < len(symbols):
                    head = _HEAD.pack(
                        _MAGIC, session, size, number, index, options.k, len(symbols), options.symbol_bytes
                    )
                    yield head + _check(head, symbols[index]) + symbols[index]


def _check(head: bytes, symbol: bytes) -> bytes:
    return hashlib.sha256(head + symbol).digest()[:_CHECK_BYTES]


# --- receiving -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A bundle that arrived, or a session that ended without one (`path` is None)."""

    path: Path | None
    session: bytes
    datagrams: int
    missing: int  # symbols of the first round's worth that did not arrive
    repaired: int  # blocks that needed parity symbols
    blocks_lost: int

    def describe(self) -> str:
        what = f"udp: {self.datagrams} datagrams, {self.missing} symbols missing, {self.repaired} blocks repaired"
        return what if self.path is not None else f"{what}, {self.blocks_lost} blocks lost"


@dataclass(frozen=True, slots=True)
class _Shape:
    """Division of a file into blocks and symbols."""

    size: int
    k: int
    symbol_bytes: int

    @property
    def block_bytes(self) -> int:
        return self.k * self.symbol_bytes

    @property
    def block_count(self) -> int:
        return -(-self.size // self.block_bytes)

    def symbols_of(self, block: int) -> int:
        """Return the number of symbols of a block before parity is added."""
        return -(-min(self.block_bytes, self.size - block * self.block_bytes) // self.symbol_bytes)


@dataclass(slots=True)
class _Block:
    n: int
    symbols: dict[int, bytes] = field(default_factory=dict)


@dataclass(slots=True)
class _Session:
    """One file in transfer. `shape` (size, k, symbol bytes) is that of its first datagram; others must agree."""

    shape: "_Shape"
    file: IO[bytes]
    path: Path
    blocks: dict[int, _Block] = field(default_factory=dict)  # unfinished
    done: bytearray = field(default_factory=bytearray)  # by block: 1 if it is in the file
    done_count: int = 0
    waiting_bytes: int = 0  # what the symbols of unfinished blocks take
    datagrams: int = 0
    missing: int = 0
    repaired: int = 0
    last: float = 0.0

    @property
    def symbol_cost(self) -> int:
        return self.shape.symbol_bytes + _SYMBOL_COST


class LinkReceiver:
    """Receives datagrams at one address into a folder. Owned by one thread.

    Memory: at most _MAX_SESSIONS files and _MAX_WAITING_BYTES of symbols, counted as they arrive and leave. `finished`
    remembers sessions that arrived, so that their further rounds are ignored. The folder has limits as well: a bundle
    that does not fit is lost and reported. An existing file is never replaced, as nobody signs a datagram.
    """

    def __init__(
        self,
        address: tuple[str, int],
        folder: Path,
        *,
        clock: Callable[[], float] = time.monotonic,
        bounds: FolderBounds = INCOMING_BOUNDS,
    ) -> None:
        family, kind, protocol, _, place = socket.getaddrinfo(*address, type=socket.SOCK_DGRAM)[0]
        self._socket = socket.socket(family, kind, protocol)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
        self._socket.bind(place)
        self._folder, self._clock, self._bounds = folder, clock, bounds
        self._waiting_bytes = 0  # of all sessions
        self._sessions: OrderedDict[bytes, _Session] = OrderedDict()
        self._finished: OrderedDict[bytes, None] = OrderedDict()
        self.strangers = 0  # datagrams of another protocol, or damaged

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._socket.getsockname()[:2]
        return host, port

    def close(self) -> None:
        """Remove unfinished files; a later transmission brings all of them again."""
        for session in self._sessions.values():
            session.file.close()
            session.path.unlink(missing_ok=True)
        self._sessions.clear()
        self._socket.close()

    def receive(self, *, wait: float, patience: float = 30.0) -> Iterator[Received]:
        """Yield bundles as they complete, until nothing arrived for `wait` seconds; sessions that stalled are lost."""
        while True:
            self._socket.settimeout(wait)
            try:
                datagram = self._socket.recv(_MAX_DATAGRAM)
            except TimeoutError:
                yield from self._drop_stalled(0.0)
                return
            received = self._take(datagram)
            if received is not None:
                yield received
            yield from self._drop_stalled(patience)

    def _drop_stalled(self, patience: float) -> Iterator[Received]:
        limit = self._clock() - patience
        while self._sessions and next(iter(self._sessions.values())).last <= limit:
            yield self._drop(next(iter(self._sessions)))

    def _drop(self, key: bytes) -> Received:
        session = self._sessions.pop(key)
        self._waiting_bytes -= session.waiting_bytes
        session.file.close()
        session.path.unlink(missing_ok=True)
        return _outcome(None, key, session, session.shape.block_count - session.done_count)

    def _take(self, datagram: bytes) -> Received | None:
        fields = _parse(datagram)
        if fields is None:
            self.strangers += 1
            return None
        key, shape, number, index, n, symbol = fields
        if key in self._finished:
            return None
        session = self._sessions.get(key) or self._begin(key, shape)
        block = session.blocks.get(number)
        if session.shape != shape or (block is not None and block.n != n):
            self.strangers += 1
            return None
        session.datagrams += 1
        session.last = self._clock()
        self._sessions.move_to_end(key)
        if session.done[number]:  # a parity symbol, or one of a later round
            return None
        if block is None:
            block = session.blocks[number] = _Block(n)
        if index not in block.symbols:
            block.symbols[index] = symbol
            session.waiting_bytes += session.symbol_cost
            self._waiting_bytes += session.symbol_cost
        if len(block.symbols) == shape.symbols_of(number):
            self._decode(session, number, session.blocks.pop(number))
        if session.done_count == shape.block_count:
            return self._complete(key)
        if self._waiting_bytes > _MAX_WAITING_BYTES:  # the session without datagrams for the longest time goes first
            return self._drop(next(iter(self._sessions)))
        return None

    def _begin(self, key: bytes, shape: _Shape) -> _Session:
        if len(self._sessions) >= _MAX_SESSIONS:
            self._drop(next(iter(self._sessions)))
        path = self._folder / f".{key.hex()}.part"
        path.unlink(missing_ok=True)  # of a receiver that was killed
        session = _Session(shape=shape, file=path.open("x+b"), path=path, done=bytearray(shape.block_count))
        self._sessions[key] = session
        return session

    def _decode(self, session: _Session, number: int, block: _Block) -> None:
        import zfec

        shape = session.shape
        k, indexes = shape.symbols_of(number), sorted(block.symbols)
        session.missing += sum(index >= k for index in indexes)
        session.repaired += indexes[-1] >= k
        data = b"".join(zfec.Decoder(k, block.n).decode([block.symbols[index] for index in indexes], indexes))
        start = number * shape.block_bytes
        session.file.seek(start)
        session.file.write(data[: shape.size - start])
        freed = len(indexes) * session.symbol_cost
        session.waiting_bytes -= freed
        self._waiting_bytes -= freed
        session.done[number] = 1
        session.done_count += 1

    def _complete(self, key: bytes) -> Received:
        session = self._sessions.pop(key)
        session.file.flush()
        os.fsync(session.file.fileno())
        session.file.close()
        if _session_of(session.path) != key:
            session.path.unlink()
            return _outcome(None, key, session, session.shape.block_count)
        if not self._bounds.has_room(self._folder, session.shape.size):
            session.path.unlink()
            return _outcome(None, key, session, session.shape.block_count)  # it may be sent again, when there is room
        path = publish_new(session.path, self._folder / _name_of(session.path, key))
        received = _outcome(path, key, session, 0)
        link_note(path).write_text(json.dumps({"detail": received.describe()}))
        self._finished[key] = None
        while len(self._finished) > 4 * _MAX_SESSIONS:
            self._finished.popitem(last=False)
        return received


def _outcome(path: Path | None, key: bytes, session: _Session, lost: int) -> Received:
    return Received(
        path=path,
        session=key,
        datagrams=session.datagrams,
        missing=session.missing,
        repaired=session.repaired,
        blocks_lost=lost,
    )


def _parse(datagram: bytes) -> tuple[bytes, _Shape, int, int, int, bytes] | None:
    """Return the fields of a datagram; None if it is damaged, of another protocol, or out of limits."""
    start = _HEAD.size + _CHECK_BYTES
    if len(datagram) <= start:
        return None
    head, symbol = datagram[: _HEAD.size], datagram[start:]
    magic, key, size, number, index, k, n, symbol_bytes = _HEAD.unpack(head)
    if magic != _MAGIC or len(symbol) != symbol_bytes or _check(head, symbol) != datagram[_HEAD.size : start]:
        return None
    if not (0 < size <= MAX_BUNDLE_BYTES and 1 <= k <= 255 and symbol_bytes >= 16):
        return None
    shape = _Shape(size, k, symbol_bytes)
    if shape.block_count > _MAX_BLOCKS:
        return None
    if number >= shape.block_count or not shape.symbols_of(number) <= n <= 255 or index >= n:
        return None
    return key, shape, number, index, n, symbol


def _name_of(path: Path, key: bytes) -> str:
    """Return the file name: bridge, label and number, which sort in the order of the chain; or the session."""
    try:
        with path.open("rb") as file:
            header = BundleReader(file).header
    except Rejected:
        return f"unreadable-{key.hex()}{SUFFIX}"
    return f"{header.bridge_id.hex()[:8]}-{header.label.hex()[:8]}-{header.bundle_seq:08d}{SUFFIX}"


def link_note(path: Path) -> Path:
    """Return the file with the statistics of a received bundle, used until it is audited."""
    return path.with_name(f".{path.name}.link")


def read_link_note(path: Path) -> str | None:
    try:
        value: Any = json.loads(link_note(path).read_text())
    except (OSError, ValueError):
        return None
    detail = value.get("detail") if type(value) is dict else None
    return detail if type(detail) is str else None
