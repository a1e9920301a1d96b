"""The conformance sets of WAL §14, each with the operations that it requires. VEEN conforms to all four."""

from enum import Enum
from typing import Final

from veen.overlays.wallet.bodies import OPERATIONS

_CORE: Final = frozenset(("open", "deposit", "withdraw", "transfer"))
_LIMITS: Final = _CORE | {"limit"}
_CONTROL: Final = _LIMITS | {"freeze", "unfreeze", "adjust"}


class Conformance(Enum):
    """Conformance sets, each including the one before. `bridges`: copies are recognised by parent_id (WALBR0)."""

    CORE = ("WAL v0.0.1 Core", _CORE, False)
    LIMITS = ("WAL v0.0.1 Limits", _LIMITS, False)
    CONTROL = ("WAL v0.0.1 Control", _CONTROL, False)
    BRIDGE = ("WAL v0.0.1 Bridge", _CONTROL, True)

    def __init__(self, title: str, operations: frozenset[str], bridges: bool) -> None:
        self.title, self.operations, self.bridges = title, operations, bridges


def claims_of(operations: frozenset[str], *, bridges: bool) -> tuple[Conformance, ...]:
    """Return the sets to which an implementation of these operations conforms."""
    return tuple(c for c in Conformance if c.operations <= operations and (bridges or not c.bridges))


CLAIMED: Final = claims_of(frozenset(OPERATIONS.values()), bridges=True)
