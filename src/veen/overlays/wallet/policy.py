"""Who may do what, in which currencies: configuration of the reader (WAL §2.2, §8; WAL-03, WAL-17).

A hub admits by stream and cannot see what a message says, so a capability for a wallet's stream lets its holder write
any of the nine events there. What of it counts is decided here, by everyone who folds, under the same policy. Two
readers with the same log, the same mirrors and the same policy hold the same balances.

An event that this policy refuses is reported and takes nothing with it: neither its ref nor its transfer_id is used up,
and it never passes for a copy of another event (D-85).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Self

from veen.core.event import Event
from veen.core.hashing import tag_prefix
from veen.overlays.decode import Issue, Violation, decode
from veen.overlays.dedup import Mirrors
from veen.overlays.wallet import codes
from veen.overlays.wallet.bodies import OPERATIONS, SCHEMAS, Transfer, WalletBody
from veen.overlays.wallet.ids import wallet_stream

__all__ = ["END_USER", "INSTITUTION", "UNRESTRICTED", "Grant", "Policy", "WalletMirrors"]

# The two roles of WAL §8. Close and open are the owner's; what makes or stops money is the institution's.
INSTITUTION: Final = frozenset(OPERATIONS.values())
END_USER: Final = frozenset(("open", "close", "withdraw", "transfer"))


def _check_operations(operations: frozenset[str]) -> None:
    unknown = operations - INSTITUTION
    if unknown:
        raise ValueError(f"no operations of wallets: {', '.join(sorted(unknown))}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Senders, told by their key or by the capability they used, and the reserved operations that they may perform."""

    operations: frozenset[str]
    clients: frozenset[bytes] = frozenset()  # client_ids
    auth_refs: frozenset[bytes] = frozenset()  # of cap_tokens: survives the rotation of the keys that use them
    wallets: frozenset[bytes] | None = None  # None: all

    def __post_init__(self) -> None:
        _check_operations(self.operations)

    def covers(self, operation: str, event: Event, wallet_id: bytes) -> bool:
        return (
            operation in self.operations
            and (event.client_id in self.clients or event.auth_ref in self.auth_refs)
            and (self.wallets is None or wallet_id in self.wallets)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Which events count at all. The default trusts the hub's admission: whoever may write on a stream may do all."""

    currencies: frozenset[str] | None = None  # None: any
    reserved: frozenset[str] = frozenset()  # operations that need a grant
    grants: tuple[Grant, ...] = ()
    own_streams: bool = (
        True  # a wallet changes on its own stream only (WAL §3.1); False: the deployment has other streams
    )
    max_skew_sec: int | None = None  # between the event's ts and the hub's: bounds how far a sender can shift the day

    def __post_init__(self) -> None:
        _check_operations(self.reserved)

    @classmethod
    def institutional(
        cls,
        *,
        services: Iterable[bytes] = (),
        auth_refs: Iterable[bytes] = (),
        currencies: Iterable[str] | None = None,
        max_skew_sec: int | None = None,
    ) -> Self:
        """What WAL §8 advises: end users withdraw and transfer, all the rest is done by the institution's services."""
        grant = Grant(operations=INSTITUTION, clients=frozenset(services), auth_refs=frozenset(auth_refs))
        return cls(
            currencies=None if currencies is None else frozenset(currencies),
            reserved=INSTITUTION - END_USER,
            grants=(grant,),
            max_skew_sec=max_skew_sec,
        )

    def check(self, event: Event, body: WalletBody) -> None:
        """A Violation unless the sender may do this, here and now."""
        if self.own_streams and event.stream_id != wallet_stream(body.wallet_id):
            raise Violation(codes.WRONG_STREAM, f"not the stream of wallet {body.wallet_id.hex()}")
        if self.max_skew_sec is not None and abs(body.ts - event.ts) > self.max_skew_sec:
            raise Violation(codes.TIME_SKEW, f"ts {body.ts}, but the hub's time is {event.ts}")
        if self.reserved:
            operation = OPERATIONS[type(body)]
            if operation in self.reserved and not self._is_granted(operation, event, body.wallet_id):
                raise Violation(codes.UNAUTHORIZED_OPERATION, f"{operation} by {event.client_id.hex()}")

    def check_currency(self, currency: str) -> None:
        """WAL-03. Apart from `check`: it holds for what a trusted bridge brings as well."""
        if self.currencies is not None and currency not in self.currencies:
            raise Violation(codes.INVALID_CURRENCY, f"currency {currency} is not in use here")

    def _is_granted(self, operation: str, event: Event, wallet_id: bytes) -> bool:
        return any(grant.covers(operation, event, wallet_id) for grant in self.grants)


UNRESTRICTED: Final = Policy()

_IDENTITY_TAG: Final = tag_prefix("veen/wallet-event")


@dataclass(frozen=True, slots=True)
class WalletMirrors(Mirrors):
    """Copies of wallet events: whenever parent_id is present (D-85), but only what really is a copy.

    Whoever names a payment as parent and comes first in logical order would otherwise void it. So the identity binds
    the body, which copies share byte for byte, and the sender must have the right to send the event where the copy
    stands.
    """

    policy: Policy = UNRESTRICTED

    @classmethod
    def under(cls, policy: Policy, mirrors: Mirrors) -> Self:
        return cls(mirrors.bridges, mirrors.schemas | SCHEMAS.keys(), policy)

    def original_of(self, event: Event) -> bytes | None:
        parent_id = event.hdr.parent_id
        if parent_id is None or event.client_id in self.bridges:
            return parent_id
        schema = SCHEMAS.get(event.hdr.schema)
        typed = None if schema is None else decode(event, schema)
        if typed is None or isinstance(typed, Issue):
            return None
        try:
            self.policy.check(event, typed.body)
        except Violation:
            return None
        return parent_id

    def identity(self, event: Event) -> bytes:
        hdr = event.hdr
        original = event.leaf_hash if hdr.parent_id is None else self.original_of(event) or event.leaf_hash
        return sha256(_IDENTITY_TAG + original + hdr.schema + event.body).digest()

    def is_echo(self, event: Event, body: WalletBody) -> bool:
        """A transfer mirrored onto the stream of its destination (WAL §5.5); its source has credited it (D-100)."""
        return (
            type(body) is Transfer
            and event.hdr.parent_id is not None
            and event.client_id not in self.bridges
            and self.policy.own_streams
            and event.stream_id == wallet_stream(body.to_wallet_id) != wallet_stream(body.wallet_id)
        )
