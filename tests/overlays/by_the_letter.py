"""WAL §5, §6, §11.4 and ID §7.1, §8.1, §10.1 read from their text alone: plain dicts, one message after another.

Nothing of `veen.overlays` is used here. A message is a dict: msg_id, parent_id, schema (the text that its id is the
hash of), stream, body, stream_seq, bridge (whether a registered bridge sent it). Messages come in the order of the log.
"""

from hashlib import sha256
from typing import Any


def hash_of(tag, data):
    return sha256(tag.encode() + b"\0" + data).digest()


def wallet_stream(wallet_id):
    return hash_of("wallet/stream", wallet_id)


def ctx_stream(ctx_id, realm_id):
    return hash_of("id/stream/ctx", ctx_id + realm_id)


def needs_reset(last_limit_reset_ts, ts_now):
    return ts_now // 86400 != last_limit_reset_ts // 86400


def state0():
    return {
        "exists": False,
        "closed": False,
        "balance": 0,
        "frozen": False,
        "daily_limit": None,
        "pending_daily_spent": 0,
        "last_limit_reset_ts": 0,
    }


class Wallets:
    def __init__(self):
        self.of = {}
        self.identities = set()  # §11.4: seen parent_ids
        self.debited, self.credited = set(), set()  # §5.5: transfer_ids per wallet and direction
        self.withdrawn = set()  # §7: refs per wallet

    def fold(self, messages):
        for message in messages:
            identity = message["parent_id"] or message["msg_id"]
            if identity not in self.identities:
                self.identities.add(identity)
                self.event(message)
        return {wallet_id: state for wallet_id, state in self.of.items() if state != state0()}

    def event(self, message):
        e, kind = message["body"], message["schema"]
        streams = {wallet_stream(e["wallet_id"])}
        if kind == "wallet.transfer.v1":
            streams.add(wallet_stream(e["to_wallet_id"]))
        if message["stream"] not in streams and not (message["bridge"] and message["parent_id"]):
            return
        s = self.of.setdefault(e["wallet_id"], state0())
        if kind == "wallet.open.v1":
            if not s["exists"]:
                s.update(state0(), exists=True, last_limit_reset_ts=e["created_at"])
        elif kind == "wallet.close.v1":
            if s["exists"]:
                s["closed"] = True
        elif kind == "wallet.limit.v1":
            if e.get("daily_limit") is None:
                s["daily_limit"] = None
            else:
                s["daily_limit"] = e["daily_limit"]
                if s["last_limit_reset_ts"] == 0:
                    s["last_limit_reset_ts"] = e["ts"]
        elif kind in ("wallet.freeze.v1", "wallet.unfreeze.v1"):
            if s["exists"]:
                s["frozen"] = kind == "wallet.freeze.v1"
        elif kind == "wallet.deposit.v1":
            if s["exists"] and not s["closed"]:
                s["balance"] += e["amount"]
        elif kind == "wallet.adjust.v1":
            if s["exists"] and not s["closed"] and s["balance"] + e["delta"] >= 0:
                s["balance"] += e["delta"]
        elif kind == "wallet.withdraw.v1":
            self.withdraw(s, e)
        elif kind == "wallet.transfer.v1":
            self.transfer(s, e)

    def may_leave(self, s, e):
        """§5.4: above the limit, or more than there is, is a policy violation."""
        spent = 0 if needs_reset(s["last_limit_reset_ts"], e["ts"]) else s["pending_daily_spent"]
        if s["daily_limit"] is not None and spent + e["amount"] > s["daily_limit"]:
            return False
        return s["balance"] >= e["amount"]

    def leave(self, s, e):
        if s["daily_limit"] is not None:
            if needs_reset(s["last_limit_reset_ts"], e["ts"]):
                s["pending_daily_spent"] = 0
                s["last_limit_reset_ts"] = e["ts"]
            s["pending_daily_spent"] += e["amount"]
        s["balance"] -= e["amount"]

    def withdraw(self, s, e):
        ref = None if e.get("ref") is None else (e["wallet_id"], e["ref"])
        if ref in self.withdrawn or not (s["exists"] and not s["closed"] and not s["frozen"]):
            return
        if self.may_leave(s, e):
            self.leave(s, e)
            if ref is not None:
                self.withdrawn.add(ref)

    def transfer(self, s, e):
        out, into = (e["wallet_id"], e["transfer_id"]), (e["to_wallet_id"], e["transfer_id"])
        pays = s["exists"] and not s["closed"] and not s["frozen"] and out not in self.debited
        if pays and not self.may_leave(s, e):
            return
        if pays:
            self.leave(s, e)
            self.debited.add(out)
        if e["to_wallet_id"] != e["wallet_id"] and into not in self.credited:
            to = self.of.setdefault(e["to_wallet_id"], state0())
            if to["exists"] and not to["closed"]:
                to["balance"] += e["amount"]
                self.credited.add(into)


def last_writers(messages):
    """The winners of profiles and handles: the maximum of (updated_at or ts, stream_seq), by what they are about."""
    winners: dict[tuple[Any, ...], Any] = {}
    key: tuple[Any, ...]
    for message in messages:
        e, kind = message["body"], message["schema"]
        if kind == "id.ctx.profile.v1":
            if message["stream"] != ctx_stream(e["ctx_id"], e["realm_id"]):
                continue
            key, stamp, value = ("ctx", e["ctx_id"], e["realm_id"]), e["updated_at"], e.get("display_name")
        elif kind == "id.org.profile.v1":
            if message["stream"] != hash_of("id/stream/org", e["org_id"]):
                continue
            key, stamp, value = ("org", e["org_id"]), e["updated_at"], e.get("display_name")
        elif kind == "id.handlemap.v1":
            if message["stream"] != hash_of("id/stream/handle", e["realm_id"]):
                continue
            key, stamp, value = ("handle", e["realm_id"], e["handle"]), e["ts"], e["target_id"]
        else:
            continue
        if key not in winners or (stamp, message["stream_seq"]) > winners[key][0]:
            winners[key] = (stamp, message["stream_seq"]), value
    return {key: value for key, (_, value) in winners.items()}
