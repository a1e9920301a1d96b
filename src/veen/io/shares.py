"""Shares of a hub's resources: a total for all clients, and a share of it for each address.

Without the share one address could take every connection, or all the memory for answers, and nobody else would be
served. Addresses are those of `network_of`: an IPv4 address, or the /64 network of an IPv6 address.
"""

from typing import Final

LARGE: Final = 64 * 1024  # bytes of one body or answer from which on it counts against what all may hold
_MAX_TURNED_AWAY: Final = 64  # connections that wait for their client to read why it was turned away


class Shares:
    """Amounts in use, by address.

    Owned by the event loop's thread. Memory is bounded by the addresses that use something.
    """

    def __init__(self, total: int, percent: int = 100, *, least: int = 1) -> None:
        """Give each address `percent` of `total`, but at least `least`, which a single request may need."""
        self._least = least
        self.resize(total, percent)
        self.in_use = 0
        self._by_address: dict[str, int] = {}

    def resize(self, total: int, percent: int) -> None:
        """Set new bounds; amounts in use beyond them stay until they are given back."""
        self.total = total
        self.share = min(total, max(total * percent // 100, self._least))

    def has_room(self, address: str, amount: int) -> bool:
        """Return True if `amount` can be taken. Any amount can if nothing is in use."""
        used = self._by_address.get(address, 0) if address else 0
        return (self.in_use + amount <= self.total or not self.in_use) and (used + amount <= self.share or not used)

    def take(self, address: str, amount: int, *, always: bool = False) -> bool:
        """Take an amount; return False if there is no room.

        A caller without an address is limited by the total alone.
        """
        used = self._by_address.get(address, 0) + amount
        if not always and (self.in_use + amount > self.total or (address and used > self.share)):
            return False
        self.in_use += amount
        if address:
            self._by_address[address] = used
        return True

    def give_back(self, address: str, amount: int) -> None:
        self.in_use -= amount
        if address:
            left = self._by_address[address] - amount
            if left:
                self._by_address[address] = left
            else:
                del self._by_address[address]


class ConnectionMemory:
    """Memory of one connection, counted against the server's shares. Owned by the event loop's thread.

    Each field is an amount that was taken from a share and not given back; `release_all` sets all of them to 0, and
    none is taken after that. Amounts up to `LARGE` are not counted, so that small requests cost nothing.
    """

    __slots__ = ("_address", "_answers", "_bodies", "body_bytes", "unparsed_bytes", "unread_bytes")

    def __init__(self, address: str, bodies: Shares, answers: Shares) -> None:
        self._address, self._bodies, self._answers = address, bodies, answers
        self.body_bytes = 0  # of `bodies`: the body that is being read
        self.unparsed_bytes = 0  # of `bodies`: input that waits to be parsed
        self.unread_bytes = 0  # of `answers`: answers that the client has not read

    def reserve_body(self, size: int) -> bool:
        """Reserve room for a body of `size`; return False if there is none. A body of unknown length grows in steps."""
        if size > self.body_bytes:
            size = max(size, 2 * self.body_bytes)
            if not self._bodies.take(self._address, size - self.body_bytes):
                return False
            self.body_bytes = size
        return True

    def release_body(self) -> None:
        if self.body_bytes:
            self._bodies.give_back(self._address, self.body_bytes)
            self.body_bytes = 0

    def take_unparsed(self, size: int) -> bool:
        """Reserve room for `size` bytes of waiting input; return False if there is none. Earlier input was released."""
        if size > LARGE:
            if not self._bodies.take(self._address, size):
                return False
            self.unparsed_bytes = size
        return True

    def release_unparsed(self) -> None:
        if self.unparsed_bytes:
            self._bodies.give_back(self._address, self.unparsed_bytes)
            self.unparsed_bytes = 0

    def has_answer_room(self, size: int) -> bool:
        return self._answers.has_room(self._address, size)

    def take_answer(self, size: int, *, always: bool = False) -> bool:
        """Reserve room for an answer until `release_answers`; return False if there is none."""
        if size > LARGE:
            if not self._answers.take(self._address, size, always=always):
                return False
            self.unread_bytes += size
        return True

    def release_answers(self) -> None:
        if self.unread_bytes:
            self._answers.give_back(self._address, self.unread_bytes)
            self.unread_bytes = 0

    def release_all(self) -> None:
        self.release_body()
        self.release_unparsed()
        self.release_answers()


class ConnectionSlot:
    """One of the connections that a server may have, from accept until it is lost. Owned by the event loop's thread.

    `refusal` is the reason if the client is turned away.
    """

    __slots__ = ("_address", "_all", "refusal")

    def __init__(self, slots: "ConnectionSlots", address: str, refusal: str | None) -> None:
        self._all: ConnectionSlots | None = slots  # None: given back
        self._address, self.refusal = address, refusal

    def release(self) -> None:
        """Give the slot back; a second call changes nothing."""
        slots, self._all = self._all, None
        if slots is not None:
            slots.leave(self._address, granted=self.refusal is None)


class ConnectionSlots:
    """All connections of a server. Each holds a file descriptor, so refused connections are limited, too.

    Owned by the event loop's thread.
    """

    def __init__(self, shares: Shares) -> None:
        self.shares = shares
        self._max_turned_away = min(_MAX_TURNED_AWAY, shares.total // 4 + 1)
        self._turned_away = 0

    def enter(self, address: str) -> ConnectionSlot | None:
        """Return a slot, with or without a refusal; None if the connection must be closed without an answer."""
        if self.shares.take(address, 1):
            return ConnectionSlot(self, address, None)
        if self._turned_away >= self._max_turned_away:
            return None
        self._turned_away += 1
        full = self.shares.in_use >= self.shares.total
        return ConnectionSlot(
            self, address, "too many connections" if full else "too many connections from this address"
        )

    def leave(self, address: str, *, granted: bool) -> None:
        if granted:
            self.shares.give_back(address, 1)
        else:
            self._turned_away -= 1
