"""What clients may hold of a hub: an amount for all of them together, and a share of it for each address.

Without the share one address could take every connection, or all the memory for answers, and nobody else would be
served. Addresses are those of `access.network_of`: an IPv4 address, or the /64 network of an IPv6 address.
"""

from typing import Final

LARGE: Final = 64 * 1024  # bytes of one body or answer from which on it counts against what all may hold
_MAX_TURNED_AWAY: Final = 64  # connections that wait for their client to read why it was turned away


class Shares:
    """Owned by the event loop's thread. Memory follows the addresses that hold something now."""

    def __init__(self, total: int, percent: int = 100, *, least: int = 1) -> None:
        """One address may hold `percent` of `total`, but always `least`, which is what a single request may need."""
        self._least = least
        self.resize(total, percent)
        self.in_use = 0
        self._by_address: dict[str, int] = {}

    def resize(self, total: int, percent: int) -> None:
        """Other bounds from now on; what is held beyond them stays until it is given back."""
        self.total = total
        self.share = min(total, max(total * percent // 100, self._least))

    def has_room(self, address: str, amount: int) -> bool:
        """Whether `amount` can be taken; whatever it is, if nothing is in use."""
        used = self._by_address.get(address, 0) if address else 0
        return (self.in_use + amount <= self.total or not self.in_use) and (used + amount <= self.share or not used)

    def take(self, address: str, amount: int, *, always: bool = False) -> bool:
        """Whether there was room. A caller without an address is bounded by the total alone."""
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
    """What one connection holds of the server's shares of bytes. Owned by the event loop's thread.

    Each field is what was taken from a share and not given back; `release_all` makes all of them 0, and none is taken
    after that. Amounts up to `LARGE` are not counted, so that small requests cost nothing.
    """

    __slots__ = ("_address", "_answers", "_bodies", "body_bytes", "unparsed_bytes", "unread_bytes")

    def __init__(self, address: str, bodies: Shares, answers: Shares) -> None:
        self._address, self._bodies, self._answers = address, bodies, answers
        self.body_bytes = 0  # of `bodies`: the body that is being read
        self.unparsed_bytes = 0  # of `bodies`: input that waits to be parsed
        self.unread_bytes = 0  # of `answers`: answers that the client has not read

    def reserve_body(self, size: int) -> bool:
        """Whether there is room for a body of `size`. One of unknown length grows in steps."""
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
        """Whether there is room for `size` bytes of input that waits; what waited before was released."""
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
        """Whether there is room for an answer; it counts until `release_answers`."""
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

    `refusal` says why the client is turned away.
    """

    __slots__ = ("_address", "_all", "refusal")

    def __init__(self, slots: "ConnectionSlots", address: str, refusal: str | None) -> None:
        self._all: ConnectionSlots | None = slots  # None: given back
        self._address, self.refusal = address, refusal

    def release(self) -> None:
        """Give it back; a second call changes nothing."""
        slots, self._all = self._all, None
        if slots is not None:
            slots.leave(self._address, granted=self.refusal is None)


class ConnectionSlots:
    """All connections of a server. Each holds a file descriptor, so those that are turned away are bounded, too.

    Owned by the event loop's thread.
    """

    def __init__(self, shares: Shares) -> None:
        self.shares = shares
        self._max_turned_away = min(_MAX_TURNED_AWAY, shares.total // 4 + 1)
        self._turned_away = 0

    def enter(self, address: str) -> ConnectionSlot | None:
        """A slot, with or without a refusal; None if the connection must be closed without an answer."""
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
