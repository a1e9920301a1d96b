"""The ledger in parallel: assume that every event is valid, and replay only wallets for which that may be wrong.

A window of events is summarized per wallet: how its balance moves and how low it gets on the way. Windows merge
(associative), so many machines can summarize many cuts of the log. `settle` then compares with the state before the
window. A wallet is calm if nothing in the window could be refused: it is open or the window opens it before all else,
it is unfrozen and without limit, no event changes that, no id is used twice, and its lowest balance is not negative. A
wallet that is not calm draws in all that it trades with, and they draw in others. What remains is settled by addition;
the events of the others are replayed in order, by the same rules. The result is byte for byte that of folding one event
after another, because an event reads and writes only the wallets that it names and its own mark.

Events must have passed `LedgerFold.screen` and been freed of copies before: neither depends on the state. Whose a
wallet is does: a window names the senders, and a wallet is calm only if each of them acts for its owner.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from veen.overlays.wallet.bodies import Adjust, Deposit, Open, Transfer, WalletBody, Withdraw
from veen.overlays.wallet.rules import Changes, LedgerState, Wallet, apply, mark_of


class Flow(NamedTuple):
    """Changes of one wallet in a window, if nothing is refused."""

    net: int = 0
    low: int = 0  # the lowest sum on the way, at most 0: the balance before must not be less than -low
    deposited: int = 0
    withdrawn: int = 0
    adjusted: int = 0
    received: int = 0
    sent: int = 0

    def then(self, later: "Flow") -> "Flow":
        return Flow(
            self.net + later.net,
            min(self.low, self.net + later.low),
            self.deposited + later.deposited,
            self.withdrawn + later.withdrawn,
            self.adjusted + later.adjusted,
            self.received + later.received,
            self.sent + later.sent,
        )


_STILL: Final = Flow()

Mark = tuple[bytes, bytes]  # what an id was used for, and by which wallet


@dataclass(frozen=True, slots=True)
class Window:
    """Summary of a run of events, if nothing is refused."""

    flows: Mapping[bytes, Flow] = field(default_factory=dict)  # by wallet_id
    trades: frozenset[tuple[bytes, bytes]] = frozenset()  # who sends to whom
    marks: Mapping[bytes, Mark] = field(default_factory=dict)  # by key, the first in order
    uneasy: frozenset[bytes] = frozenset()  # wallets of which the window alone cannot tell
    opened: Mapping[bytes, Open] = field(default_factory=dict)  # by wallet_id: opened before anything moves it
    senders: frozenset[tuple[bytes, bytes]] = frozenset()  # wallet_id, and a key that must act for its owner

    def then(self, later: "Window") -> "Window":
        flows, marks, uneasy = dict(self.flows), dict(self.marks), set(self.uneasy | later.uneasy)
        opened = dict(self.opened)
        for body in later.opened.values():
            _open(opened, self.flows, body)
        for wallet_id, flow in later.flows.items():
            flows[wallet_id] = flows.get(wallet_id, _STILL).then(flow)
        for key, mark in later.marks.items():
            _note(marks, uneasy, key, mark)
        senders = self.senders | later.senders
        return Window(flows, self.trades | later.trades, marks, frozenset(uneasy), opened, senders)


def summarize(bodies: Iterable[WalletBody]) -> Window:
    """Return the window of `bodies`, which are sorted in logical order."""
    flows: dict[bytes, Flow] = {}
    trades: set[tuple[bytes, bytes]] = set()
    marks: dict[bytes, Mark] = {}
    uneasy: set[bytes] = set()
    opened: dict[bytes, Open] = {}
    for body in bodies:
        if type(body) is Open:
            _open(opened, flows, body)
            continue
        moves = _moves(body)
        if not moves:
            uneasy.add(body.wallet_id)
        for wallet_id, flow in moves:
            flows[wallet_id] = flows.get(wallet_id, _STILL).then(flow)
        if type(body) is Transfer:
            trades.add((body.wallet_id, body.to_wallet_id))
        mark = mark_of(body)
        if mark is not None:
            _note(marks, uneasy, mark[0], (mark[1], body.wallet_id))
    return Window(flows, frozenset(trades), marks, frozenset(uneasy), opened)


def _open(opened: dict[bytes, Open], flows: Mapping[bytes, Flow], body: Open) -> None:
    """Record an opening. Only the first is valid (D-99). After a move it proves that the wallet was not open."""
    if body.wallet_id not in flows:
        opened.setdefault(body.wallet_id, body)


def _note(marks: dict[bytes, Mark], uneasy: set[bytes], key: bytes, mark: Mark) -> None:
    if key in marks:
        uneasy |= {marks[key][1], mark[1]}
    else:
        marks[key] = mark


def _moves(body: WalletBody) -> tuple[tuple[bytes, Flow], ...]:
    """Return the flows of a payment; none if the event does more than move money, or moves nothing (D-99)."""
    match body:
        case Deposit(wallet_id=wallet_id, amount=amount):
            return ((wallet_id, Flow(net=amount, deposited=amount)),)
        case Withdraw(wallet_id=wallet_id, amount=amount):
            return ((wallet_id, Flow(net=-amount, low=-amount, withdrawn=amount)),)
        case Adjust(wallet_id=wallet_id, delta=delta):
            return ((wallet_id, Flow(net=delta, low=min(0, delta), adjusted=delta)),)
        case Transfer(wallet_id=wallet_id, to_wallet_id=to, amount=amount) if wallet_id != to:
            sent = Flow(net=-amount, low=-amount, sent=amount)
            return (wallet_id, sent), (to, Flow(net=amount, received=amount))
        case _:
            return ()


@dataclass(frozen=True, slots=True)
class Settled:
    """Result of a window: records settled by addition, and the wallets to replay.

    Either both wallets of a transfer are to be replayed or neither is.
    """

    changes: Changes
    replay: frozenset[bytes]

    def is_done(self, body: WalletBody) -> bool:
        return body.wallet_id not in self.replay


def settle(state: LedgerState, window: Window, owns: Callable[[Wallet | None, bytes], bool] | None = None) -> Settled:
    """Apply the window to the state before it. `owns` checks the senders of the window (`Policy.owns`)."""
    before = {wallet_id: _before(state, window, wallet_id) for wallet_id in {*window.flows, *window.opened}}
    uneasy = set(window.uneasy)
    for key, (_, wallet_id) in window.marks.items():
        if state.get(key) is not None:
            uneasy.add(wallet_id)
    uneasy |= {wallet_id for wallet_id, flow in window.flows.items() if not _is_calm(before[wallet_id], flow)}
    if owns is not None:
        uneasy |= {wallet_id for wallet_id, key in window.senders if not owns(before.get(wallet_id), key)}
    for source, to in window.trades:
        if _currency(before.get(source)) != _currency(before.get(to)):
            uneasy.add(source)
    replay = _closure(uneasy, window.trades)
    changes: Changes = {key: use for key, (use, wallet_id) in window.marks.items() if wallet_id not in replay}
    for wallet_id, wallet in before.items():
        if wallet_id not in replay and wallet is not None:
            flow = window.flows.get(wallet_id, _STILL)
            changes[wallet_id] = wallet._replace(
                balance=wallet.balance + flow.net,
                deposited=wallet.deposited + flow.deposited,
                withdrawn=wallet.withdrawn + flow.withdrawn,
                adjusted=wallet.adjusted + flow.adjusted,
                received=wallet.received + flow.received,
                sent=wallet.sent + flow.sent,
            )
    return Settled(changes, replay)


def _before(state: LedgerState, window: Window, wallet_id: bytes) -> Wallet | None:
    """Return the wallet as the first move of the window meets it; None if it does not exist."""
    record = state.get(wallet_id)
    wallet = record if isinstance(record, Wallet) else None
    body = window.opened.get(wallet_id)
    if body is None or (wallet is not None and wallet.exists):
        return wallet
    opened = apply(state, body)[wallet_id]
    return opened if isinstance(opened, Wallet) else None


def _is_calm(wallet: Wallet | None, flow: Flow) -> bool:
    return (
        wallet is not None
        and wallet.exists
        and not wallet.closed
        and not wallet.frozen
        and wallet.daily_limit is None
        and wallet.balance + flow.low >= 0
    )


def _currency(wallet: Wallet | None) -> str | None:
    return None if wallet is None else wallet.currency


def _closure(uneasy: Iterable[bytes], trades: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    """Return all wallets that trades connect with an uneasy one."""
    partners: dict[bytes, set[bytes]] = {}
    for source, to in trades:
        partners.setdefault(source, set()).add(to)
        partners.setdefault(to, set()).add(source)
    tainted, waiting = set(uneasy), list(uneasy)
    while waiting:
        for partner in partners.get(waiting.pop(), ()):
            if partner not in tainted:
                tainted.add(partner)
                waiting.append(partner)
    return frozenset(tainted)
