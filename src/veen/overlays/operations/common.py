"""Common parts of the operation profiles: identifiers, bodies, speakers of client keys (001 spec-3 §1, D-137)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from veen.core.hashing import H, tag_prefix
from veen.overlays.framework.schema import Body
from veen.overlays.id.ids import ctx_id_of
from veen.overlays.id.state import IdState

_OPERATION_ID: Final = tag_prefix("veen/operation-id")
_ACCOUNT: Final = tag_prefix("veen/account")
_NOBODY: Final[frozenset[bytes]] = frozenset()
MAX_LIST: Final = 1_024  # elements of a list in a body


def operation_id_of(msg_id: bytes) -> bytes:
    """Return the name by which operations refer to each other (§1.1). A raw msg_id is resolved as well (D-89)."""
    return H(_OPERATION_ID + msg_id)


def account_id_of(identity: bytes) -> bytes:
    """Return the account of an identity. Configuration may name another owner (D-138)."""
    return H(_ACCOUNT + identity)


class Operation(Body):
    """Base of the bodies of operations."""

    __slots__ = ()


class Speaks(NamedTuple):
    """Period from `since` up to and including `until` in which a client key speaks for an identity, in ts* (D-27)."""

    client_id: bytes
    identity: bytes
    since: int = 0
    until: int | None = None


@dataclass(frozen=True, slots=True)
class Speakers:
    """Identities for which client keys speak besides themselves (D-137), from configuration or an ID view."""

    records: frozenset[Speaks] = frozenset()
    _by_client: Mapping[bytes, tuple[Speaks, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_client: dict[bytes, tuple[Speaks, ...]] = {}
        for record in sorted(self.records, key=repr):
            by_client[record.client_id] = (*by_client.get(record.client_id, ()), record)
        object.__setattr__(self, "_by_client", by_client)

    @classmethod
    def by(cls, records: Iterable[Speaks] = ()) -> "Speakers":
        return cls(frozenset(records))

    @classmethod
    def of(cls, state: IdState, realm_ids: Iterable[bytes] = ()) -> "Speakers":
        """Return the devices of an ID view: each speaks for its principal and its accounts in `realm_ids`.

        The end of a device is a time, be it expired, disabled or revoked: what it signed before still counts.
        """
        realms = tuple(realm_ids)
        records = set()
        for device in state.devices.values():
            if device.disabled and device.disabled_since is None:
                continue  # a view that does not say since when
            until = device.until
            for identity in (device.principal_pk, *(ctx_id_of(device.principal_pk, realm) for realm in realms)):
                records.add(Speaks(device.device_pk, identity, device.created_at, until))
        return cls(frozenset(records))

    def identities(self, client_id: bytes, at: int) -> frozenset[bytes]:
        """Return the identities for which the key speaks at a time, itself included."""
        records = self._by_client.get(client_id)
        if records is None:
            return frozenset((client_id,))
        spoken = (
            record.identity for record in records if record.since <= at and (record.until is None or at <= record.until)
        )
        return frozenset((client_id, *spoken))

    def others(self, client_id: bytes, at: int) -> frozenset[bytes]:
        """Return the identities besides itself for which the key speaks at a time."""
        return self.identities(client_id, at) - {client_id} if client_id in self._by_client else _NOBODY

    def settings(self) -> list[list[Any]]:
        return sorted(([*record] for record in self.records), key=repr)


KEYS_ONLY: Final = Speakers()  # without an ID view a key acts only for itself
