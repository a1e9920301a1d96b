"""When a client key must be replaced, and how that is done so that a crash loses nothing (KEX1+ 4.1, D-102a).

The bounds are checked before a message is signed. Nothing rotates by itself: a capability token names one client key
(D-49), so whoever uses the client decides whether to refuse or to rotate.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Self

from veen.client.errors import LocalError, RotationDue, StateDamaged
from veen.client.home import Home
from veen.client.identity.identity import Identity
from veen.client.identity.keystore import Keystore
from veen.client.send.captokens import TokenStore
from veen.client.state import StateStore
from veen.core.errors import LimitError, MalformedError

MAX_LIFETIME_SEC: Final = 86_400
MAX_MSGS_PER_LABEL: Final = 65_536
_KEX0_MSGS: Final = 256


class RotationReason(Enum):
    """Which bound was reached."""

    LIFETIME = "max_client_id_lifetime_sec"
    MESSAGES = "max_msgs_per_client_id_per_label"


@dataclass(frozen=True, slots=True, kw_only=True)
class RotationBounds:
    """How long and how often one client key signs. Deployments may lower the bounds of KEX1+, not raise them."""

    max_client_id_lifetime_sec: int = MAX_LIFETIME_SEC
    max_msgs_per_client_id_per_label: int = MAX_MSGS_PER_LABEL

    def __post_init__(self) -> None:
        for name, value, maximum in (
            ("max_client_id_lifetime_sec", self.max_client_id_lifetime_sec, MAX_LIFETIME_SEC),
            ("max_msgs_per_client_id_per_label", self.max_msgs_per_client_id_per_label, MAX_MSGS_PER_LABEL),
        ):
            if type(value) is not int or value < 1:
                raise MalformedError(f"expected a positive integer, found {value!r}", name)
            if value > maximum:
                raise LimitError(name, value, maximum)

    @classmethod
    def kex0(cls, epoch_sec: int) -> Self:
        """The tighter habit of spec-1 §3: once an epoch, or every 256 messages where there are no epochs."""
        if epoch_sec:
            return cls(max_client_id_lifetime_sec=min(epoch_sec, MAX_LIFETIME_SEC))
        return cls(max_msgs_per_client_id_per_label=_KEX0_MSGS)


DEFAULT_BOUNDS: Final = RotationBounds()


def needs_rotation(
    identity: Identity, counts: Mapping[bytes, int], now: int, bounds: RotationBounds = DEFAULT_BOUNDS
) -> RotationReason | None:
    """Why the current client key may not sign again, or None. `counts`: label -> messages it signed (D-102a)."""
    if now - identity.client_key.created_at >= bounds.max_client_id_lifetime_sec:
        return RotationReason.LIFETIME
    if any(count >= bounds.max_msgs_per_client_id_per_label for count in counts.values()):
        return RotationReason.MESSAGES
    return None


def check_bounds(
    identity: Identity, counts: Mapping[bytes, int], now: int, bounds: RotationBounds = DEFAULT_BOUNDS
) -> None:
    """RotationDue if the current client key may not sign again."""
    reason = needs_rotation(identity, counts, now, bounds)
    if reason is not None:
        raise RotationDue(f"the client key {identity.client_id.hex()[:16]}… has reached {reason.value}")


def rotate_identity(home: Home, keystore: Keystore, now: int) -> Identity:
    """Replace the client key, durably, while nobody uses the identity.

    Not while messages wait for their receipts: they are signed by the old key, and only a client that still uses it
    would send them again.
    """
    with StateStore.open(home, keystore.identity.name) as store:
        waiting = sum(len(state.pending) for state in store.unfinished())
        if waiting:
            raise LocalError(
                f"{waiting} messages still wait for their receipts: `veen resync STREAM` settles them first"
            )
        return keystore.rotate(now)


def rotate_if_due(home: Home, keystore: Keystore, now: int, *, is_spent: bool = False) -> bool:
    """Replace a client key that is too old, or `is_spent`; False if it stays.

    One that capability tokens name stays: they would be lost with it (D-49), so a person decides.
    """
    identity = keystore.identity
    if not is_spent and needs_rotation(identity, {}, now) is None:
        return False
    tokens = TokenStore(home.tokens_fs(identity.name)).all()
    if any(entry.token.subject_pk == identity.client_id for entry in tokens):
        return False
    rotate_identity(home, keystore, now)
    return True


def rotate_at_bounds(
    home: Home, keystore: Keystore, now: int, bounds: RotationBounds = DEFAULT_BOUNDS
) -> RotationReason | None:
    """Replace a client key that has reached a bound, in time or in messages of a label; why, or None if it stays.

    One that capability tokens name stays: they would be lost with it (D-49). So does one under which messages wait for
    their receipts: only a client that still uses it sends them again.
    """
    identity = keystore.identity
    with StateStore.open(home, identity.name) as store:
        try:
            reason = needs_rotation(identity, store.counts(identity.client_id), now, bounds)
        except StateDamaged:  # the command says it, or mends it
            return None
        if reason is None or store.unfinished():
            return None
        tokens = TokenStore(home.tokens_fs(identity.name)).all()
        if any(entry.token.subject_pk == identity.client_id for entry in tokens):
            return None
        keystore.rotate(now)
    return reason
