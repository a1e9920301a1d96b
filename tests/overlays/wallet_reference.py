"""Wallets on a log without a hub, random histories of them, and a second ledger to compare with.

The second ledger is written from the pseudocode of WAL §6 and D-98 … D-100, on its own: it shares neither bodies nor
rules with `veen.overlays.wallet`, keeps plain dicts and folds one event after another.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

import cbor2
from hypothesis import strategies as st

from veen.core.event import Event
from veen.core.hashing import H, Ht, u64be
from veen.core.objects.payload_hdr import PayloadHdr
from veen.overlays.framework.schema import Draft
from veen.overlays.wallet import WalletPolicy, drafts
from veen.overlays.wallet.bodies import wallet_id_of, wallet_stream
from veen.overlays.wallet.drafts import body_of

DAY = 86_400
REALM = H(b"realm")
OWNERS = {name: H(name.encode()) for name in ("ann", "bob", "cat", "dan")}
CURRENCIES = {"ann": "USD", "bob": "USD", "cat": "USD", "dan": "JPY"}
WALLETS = {name: wallet_id_of(REALM, ctx_id, CURRENCIES[name]) for name, ctx_id in OWNERS.items()}
ANN, BOB, CAT, DAN = WALLETS.values()
BRIDGE = H(b"bridge")
ANY_TIME = WalletPolicy(max_skew_sec=None)  # most histories here are not dated by the time of the hub


def opened(name: str, created_at: int = 0) -> Draft:
    return drafts.open_wallet(realm_id=REALM, ctx_id=OWNERS[name], currency=CURRENCIES[name], created_at=created_at)


def xfer(number: int) -> bytes:
    return bytes([number]) * 32


@dataclass
class World:
    """Two hubs, each with a label for every stream and epoch. Both count epochs alike, so places may tie."""

    now: int = 1_000
    by_label: dict[bytes, list[Event]] = field(default_factory=dict)

    def send(
        self,
        draft: Draft,
        *,
        at: int | None = None,
        stream_id: bytes | None = None,
        epoch: int = 0,
        hub: str = "A",
        client: bytes | None = None,
        auth_ref: bytes | None = None,
        att_root: bytes | None = None,
    ) -> Event:
        """By default on the stream of the draft's wallet, by a device of its owner."""
        self.now = self.now if at is None else at
        if stream_id is None:
            stream_id = wallet_stream(body_of(draft).wallet_id)
        label = Ht("test/label", hub.encode() + stream_id + u64be(epoch))
        events = self.by_label.setdefault(label, [])
        client_id = client or H(b"device of " + stream_id)
        event = Event(
            stream_id=stream_id,
            label=label,
            epoch=epoch,
            stream_seq=len(events) + 1,
            leaf_hash=H(label + u64be(len(events)) + client_id + draft.body),
            client_id=client_id,
            auth_ref=auth_ref,
            hub_ts=self.now,
            ts=max(self.now, events[-1].ts if events else 0),
            hdr=PayloadHdr(schema=draft.schema, parent_id=draft.parent_id, att_root=att_root),
            body=draft.body,
        )
        events.append(event)
        return event

    def send_all(self, *several: Draft) -> list[Event]:
        """One second apart."""
        return [self.send(draft, at=self.now + 1) for draft in several]

    def copy(self, event: Event, **where) -> Event:
        draft = Draft(schema=event.hdr.schema, body=event.body, parent_id=event.hdr.parent_id or event.msg_id)
        return self.send(draft, **{"client": BRIDGE, "hub": "B", **where})

    def all(self) -> list[Event]:
        return sorted((event for events in self.by_label.values() for event in events), key=lambda event: event.order)


# --- random histories ----------------------------------------------------------------------------------------------

NAMES = st.sampled_from(sorted(WALLETS))
AMOUNTS = st.sampled_from([0, 1, 5, 10, 50, 2**64 - 1])
TIMES = st.sampled_from([0, 10, DAY - 1, DAY, DAY + 5, 3 * DAY])
REFS = st.none() | st.sampled_from([b"", b"r1", b"r2" * 40])
METADATA = st.none() | st.sampled_from([{}, {"note": "rent"}, {"b": 1, "a": [True, None]}])


@st.composite
def drafts_of_wallets(draw):
    """One event; money comes in more often than it goes out, or most histories would be poor."""
    name = draw(NAMES)
    wallet_id, ts = WALLETS[name], draw(TIMES)
    match draw(st.sampled_from(["open", "deposit", "deposit", "withdraw", "transfer", "transfer", "transfer", "rare"])):
        case "open":
            return opened(name, ts)
        case "deposit":
            return drafts.deposit(wallet_id, draw(AMOUNTS), ts=ts, ref=draw(REFS))
        case "withdraw":
            return drafts.withdraw(wallet_id, draw(AMOUNTS), ts=ts, ref=draw(REFS))
        case "transfer":
            to = WALLETS[draw(NAMES)]  # also itself, also in another currency
            transfer_id = xfer(draw(st.integers(0, 12)))
            return drafts.transfer(
                wallet_id, to, draw(AMOUNTS), ts=ts, transfer_id=transfer_id, metadata=draw(METADATA)
            )
        case _:
            return draw(
                st.one_of(
                    st.just(drafts.close(wallet_id, ts=ts)),
                    st.just(drafts.freeze(wallet_id, ts=ts)),
                    st.just(drafts.unfreeze(wallet_id, ts=ts, reason="done")),
                    st.builds(lambda limit: drafts.limit(wallet_id, limit, ts=ts), st.sampled_from([None, 0, 10, 60])),
                    st.builds(
                        lambda delta, ref: drafts.adjust(wallet_id, delta, ts=ts, reason="fix", ref=ref),
                        st.sampled_from([-(2**64), -7, 0, 7, 2**64 - 1]),
                        REFS,
                    ),
                )
            )


@st.composite
def worlds(draw, *, max_events: int = 30, hostile: bool = True) -> World:
    """Several labels per stream, copies by bridges and by strangers, forged parents, events on foreign streams."""
    world = World()
    for name in draw(st.sets(NAMES, min_size=2)):
        world.send(opened(name), at=world.now + draw(st.integers(0, 1)))
    for draft in draw(st.lists(drafts_of_wallets(), max_size=max_events)):
        world.now += draw(st.integers(0, 1))
        sent = world.send(draft, epoch=draw(st.integers(0, 1)), hub=draw(st.sampled_from("AB")))
        match draw(st.integers(0, 9 if hostile else 5)):
            case 0:
                world.copy(sent, stream_id=draw(st.sampled_from([sent.stream_id, H(b"replica")])))
            case 6:  # a stranger writes on their own stream what they may not
                world.send(draft, stream_id=wallet_stream(WALLETS[draw(NAMES)]), client=H(b"mallory"))
            case 7:  # a copy by an unknown sender, possibly before its original in logical order
                world.copy(sent, stream_id=wallet_stream(WALLETS[draw(NAMES)]), client=H(b"mallory"), hub="A")
            case 8:  # an event of their own that claims to be a copy of another's
                forged = replace(draw(drafts_of_wallets()), parent_id=sent.msg_id)
                world.send(forged, client=H(b"mallory"))
    return world


# --- the second ledger ---------------------------------------------------------------------------------------------

NAMES_OF_SCHEMAS = {
    sha256(f"wallet.{word}.v1".encode()).digest(): word
    for word in ("open", "close", "deposit", "withdraw", "transfer", "adjust", "limit", "freeze", "unfreeze")
}
STATE0 = {
    "exists": False,
    "closed": False,
    "balance": 0,
    "frozen": False,
    "daily_limit": None,
    "pending_daily_spent": 0,
    "last_limit_reset_ts": 0,
}


@dataclass
class Reference:
    """The naive ledger: WAL §6 line by line, with D-98 … D-100, D-175, D-176 where prose and pseudocode part."""

    own_streams: bool = True
    bridges: frozenset[bytes] = frozenset((BRIDGE,))
    wallets: dict[bytes, dict[str, Any]] = field(default_factory=dict)
    currencies: dict[bytes, str] = field(default_factory=dict)
    identities: set[Any] = field(default_factory=set)
    used: dict[Any, Any] = field(default_factory=dict)
    codes: list[tuple[bytes, int, str]] = field(default_factory=list)
    outside: dict[str, int] = field(default_factory=dict)  # deposits - withdrawals + adjustments, by currency

    def fold(self, events) -> Reference:
        for event in sorted({(e.order, e.label, e) for e in events}, key=lambda row: row[:2]):
            self.one(event[2])
        return self

    def one(self, event: Event) -> None:
        word, e = NAMES_OF_SCHEMAS[event.hdr.schema], cbor2.loads(event.body)
        own = event.stream_id == sha256(b"wallet/stream\0" + e["wallet_id"]).digest()
        trusted = event.hdr.parent_id is not None and event.client_id in self.bridges
        allowed = trusted or own or not self.own_streams
        original = event.hdr.parent_id if trusted else event.leaf_hash
        if (original, event.body, word) in self.identities:
            return
        self.identities.add((original, event.body, word))
        if not allowed:
            mirrored = word == "transfer" and event.hdr.parent_id is not None
            if mirrored and event.stream_id == sha256(b"wallet/stream\0" + e["to_wallet_id"]).digest():
                return
            self.refuse(event, "WAL.WRONG_STREAM")
            return
        code = getattr(self, word)(e["wallet_id"], self.wallets.setdefault(e["wallet_id"], dict(STATE0)), e)
        if code is not None:
            self.refuse(event, code)

    def refuse(self, event: Event, code: str) -> None:
        self.codes.append((event.label, event.stream_seq, code))

    def open(self, wallet_id, s, e):
        if not s["exists"]:
            s.update(STATE0, exists=True, last_limit_reset_ts=e["created_at"])
            self.currencies[wallet_id] = e["currency"]

    def close(self, wallet_id, s, e):
        if not s["exists"]:
            return "WAL.UNKNOWN_WALLET"
        s["closed"] = True
        return None

    def limit(self, wallet_id, s, e):
        if e.get("daily_limit") is None:
            s["daily_limit"] = None
        else:
            s["daily_limit"] = e["daily_limit"]
            if s["last_limit_reset_ts"] == 0:
                s["last_limit_reset_ts"] = e["ts"]

    def freeze(self, wallet_id, s, e):
        if not s["exists"]:
            return "WAL.UNKNOWN_WALLET"
        s["frozen"] = True
        return None

    def unfreeze(self, wallet_id, s, e):
        if not s["exists"]:
            return "WAL.UNKNOWN_WALLET"
        s["frozen"] = False
        return None

    def again(self, key, use, code):
        """True for a retry, a code for another use, False for the first."""
        if key not in self.used:
            return False
        return True if self.used[key] == use else code

    def usable(self, s):
        if not s["exists"]:
            return "WAL.UNKNOWN_WALLET"
        return "WAL.CLOSED" if s["closed"] else None

    def debit(self, s, e):
        """The fields after the debit, or a code."""
        if s["frozen"]:
            return "WAL.FROZEN"
        new = dict(s)
        if s["daily_limit"] is not None:
            if e["ts"] // 86400 > s["last_limit_reset_ts"] // 86400:
                new["pending_daily_spent"], new["last_limit_reset_ts"] = 0, e["ts"]
            new["pending_daily_spent"] += e["amount"]
            if new["pending_daily_spent"] > s["daily_limit"]:
                return "WAL.DAILY_LIMIT_EXCEEDED"
        new["balance"] -= e["amount"]
        return "WAL.INSUFFICIENT_FUNDS" if new["balance"] < 0 else new

    def booked(self, wallet_id, delta):
        currency = self.currencies[wallet_id]
        self.outside[currency] = self.outside.get(currency, 0) + delta

    def once(self, word, wallet_id, e, amount):
        if e.get("ref") is None:
            return False, None
        key = (word, wallet_id, e["ref"])
        return self.again(key, amount, "WAL.REF_REUSED"), key

    def deposit(self, wallet_id, s, e):
        again, key = self.once("deposit", wallet_id, e, e["amount"])
        if again:
            return None if again is True else again
        if code := self.usable(s):
            return code
        s["balance"] += e["amount"]
        self.booked(wallet_id, e["amount"])
        self.used[key] = e["amount"]
        return None

    def withdraw(self, wallet_id, s, e):
        again, key = self.once("withdraw", wallet_id, e, e["amount"])
        if again:
            return None if again is True else again
        if code := self.usable(s):
            return code
        new = self.debit(s, e)
        if isinstance(new, str):
            return new
        s.update(new)
        self.booked(wallet_id, -e["amount"])
        self.used[key] = e["amount"]
        return None

    def adjust(self, wallet_id, s, e):
        again, key = self.once("adjust", wallet_id, e, e["delta"])
        if again:
            return None if again is True else again
        if code := self.usable(s):
            return code
        if s["balance"] + e["delta"] < 0:
            return "WAL.INSUFFICIENT_FUNDS"
        s["balance"] += e["delta"]
        self.booked(wallet_id, e["delta"])
        self.used[key] = e["delta"]
        return None

    def transfer(self, wallet_id, s, e):
        to = e["to_wallet_id"]
        use = (wallet_id, to, e["amount"])
        again = self.again(e["transfer_id"], use, "WAL.TRANSFER_ID_REUSED")
        if again:
            return None if again is True else again
        if code := self.usable(s):
            return code
        new = self.debit(s, e)
        if isinstance(new, str):
            return new
        if to != wallet_id:
            t = self.wallets.get(to, STATE0)
            if code := self.usable(t):
                return code
            if self.currencies[to] != self.currencies[wallet_id]:
                return "WAL.INVALID_CURRENCY"
            s.update(new)
            t["balance"] += e["amount"]
        self.used[e["transfer_id"]] = use
        return None

    def touched(self) -> dict[bytes, dict[str, Any]]:
        return {wallet_id: s for wallet_id, s in self.wallets.items() if s != STATE0}
