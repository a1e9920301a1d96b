"""The roles of a bridge, and the rights that none of them may have (AGB-02, AGB-19, D-53, D-106).

To read a stream is to have its secret key, to write is to have a token for it (D-53). So rights are checked from
keyrings and tokens alone; tokens that a hub has recorded are checked in addition where the hub is reachable.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from veen.core.labels import stream_id_of
from veen.core.objects.captoken import CapToken
from veen.products.bridge.audit import OFFLINE_LOG, ONLINE_LOG

ROLES: Final = ("exporter", "online-log", "importer", "offline-log")
_ONLINE: Final = ("exporter", "online-log")
_LOGS: Final = {"online-log": ONLINE_LOG, "offline-log": OFFLINE_LOG}


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleHolder:
    """An identity in a role, with all its keys and tokens."""

    role: str
    name: str
    keys: frozenset[bytes]  # public halves: of the identity and of all its client keys
    readable: tuple[str, ...]  # streams whose secret key it has
    tokens: tuple[CapToken, ...]


@dataclass(frozen=True, slots=True)
class RoleFinding:
    role: str
    what: str


def judge(holders: Sequence[RoleHolder]) -> list[RoleFinding]:
    """Return the violations, by role; empty if the roles are separated."""
    return [finding for holder in holders for finding in _alone(holder)] + [
        finding for left, right in combinations(holders, 2) for finding in _together(left, right)
    ]


def _alone(holder: RoleHolder) -> Iterable[RoleFinding]:
    role = holder.role
    if role == "exporter" and holder.tokens:
        yield RoleFinding(role, f"{holder.name} has a token to write: the exporter only reads")
    if role == "exporter" and (streams := [name for name in holder.readable if name.startswith("import/")]):
        yield RoleFinding(role, f"{holder.name} can read {streams[0]}, a stream of the other zone")
    if role == "importer" and holder.readable:
        yield RoleFinding(role, f"{holder.name} can read {holder.readable[0]}: the importer only writes")
    if role in _LOGS:
        log = _LOGS[role]
        if any(token.allow.stream_ids != (stream_id_of(log),) for token in holder.tokens):
            yield RoleFinding(role, f"{holder.name} has a token for other streams than {log}")
        if streams := [name for name in holder.readable if name != log]:
            yield RoleFinding(role, f"{holder.name} can read {streams[0]}: the log identity does nothing but {log}")


def _together(left: RoleHolder, right: RoleHolder) -> Iterable[RoleFinding]:
    if left.keys & right.keys:
        yield RoleFinding(left.role, f"{left.name} and {right.name} ({right.role}) share a private key")
    if (left.role in _ONLINE) != (right.role in _ONLINE):
        for reader, writer in ((left, right), (right, left)):
            ids = {stream_id for token in writer.tokens for stream_id in token.allow.stream_ids}
            if streams := [name for name in reader.readable if stream_id_of(name) in ids]:
                what = f"{reader.name} reads {streams[0]}, which {writer.name} ({writer.role}) of the other zone writes"
                yield RoleFinding(reader.role, what)


def judge_at_hub(zone: str, holder: RoleHolder, known: Iterable[bytes]) -> list[RoleFinding]:
    """Return a finding for each token that the zone's hub must not know. `known`: auth_refs recorded there."""
    allowed = {"online": ("online-log",), "offline": ("importer", "offline-log")}[zone]
    if holder.role in allowed:
        return []
    return [
        RoleFinding(holder.role, f"the hub of the {zone} zone lets {holder.name} write: token {auth_ref.hex()}")
        for auth_ref in known
    ]
