"""Grants of capability tokens: a TOML file of the operator of the issuance service.

    [[grant]]
    streams = ["app/calls"]                # streams that may be requested, all or some of them
    clients = ["5be1…c0ff"]                # client_ids, or identities (id_sign_pk) that prove their client keys
    ttl_sec = 3600                         # at most; a request may ask for less
    rate = [100, 200]                      # per_sec and burst of the token; default: the limit of the hub
    per_hour = 20                          # tokens for one caller; default 20

The first grant that matches a request decides. A grant for everybody who may write to the stream of requests needs
`clients = ["*"]`; without `clients` it is refused.
"""

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Self, TypeGuard

from veen.core.errors import StatedError
from veen.core.labels import stream_id_of
from veen.core.objects.captoken import Rate

ANYBODY: Final = "*"
_PER_HOUR: Final = 20
_KEYS: Final = frozenset(("streams", "clients", "ttl_sec", "rate", "per_hour"))
_HEX: Final = 64


class IssuancePolicyInvalid(StatedError, code="ISSUE.POLICY"):
    """The policy file of an issuance service is invalid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuanceGrant:
    """One row of the policy."""

    stream_ids: frozenset[bytes]
    clients: frozenset[bytes] | None  # client_ids and id_sign_pks; None: all callers
    ttl_sec: int
    rate: Rate | None = None
    per_hour: int = _PER_HOUR

    def fits(self, keys: Iterable[bytes], stream_ids: frozenset[bytes]) -> bool:
        """Return True if one of the keys of a caller may have a token for these streams."""
        is_known = self.clients is None or not self.clients.isdisjoint(keys)
        return is_known and stream_ids <= self.stream_ids


@dataclass(frozen=True, slots=True)
class IssuancePolicy:
    """The grants, in the order of the file."""

    grants: tuple[IssuanceGrant, ...]

    @classmethod
    def from_toml(cls, text: str) -> Self:
        """Parse the policy. Raise IssuancePolicyInvalid, which names the grant and the fault."""
        try:
            table = tomllib.loads(text)
        except tomllib.TOMLDecodeError as exc:
            raise IssuancePolicyInvalid(f"the policy is not valid TOML: {exc}") from exc
        rows = table.get("grant")
        if set(table) != {"grant"} or not isinstance(rows, list) or not rows:
            raise IssuancePolicyInvalid("the policy is a list of [[grant]], and has nothing else")
        return cls(tuple(_grant(number, row) for number, row in enumerate(rows, start=1)))

    def grant_for(self, keys: Iterable[bytes], stream_ids: frozenset[bytes]) -> IssuanceGrant | None:
        """Return the first grant that matches, or None."""
        keys = tuple(keys)
        return next((grant for grant in self.grants if grant.fits(keys, stream_ids)), None)


def _grant(number: int, row: Any) -> IssuanceGrant:
    def refuse(what: str) -> IssuancePolicyInvalid:
        return IssuancePolicyInvalid(f"grant {number}: {what}")

    if not isinstance(row, dict) or (unknown := set(row) - _KEYS):
        raise refuse(f"unknown key {', '.join(sorted(unknown)) if isinstance(row, dict) else row!r}")
    streams, clients, ttl_sec = row.get("streams"), row.get("clients"), row.get("ttl_sec")
    if not _are_texts(streams) or not streams:
        raise refuse("streams is a list of names or hex:ID")
    if not _are_texts(clients) or not clients:
        raise refuse('clients is a list of keys in hex; ["*"] means everybody who may write to the stream of requests')
    per_hour, rate = row.get("per_hour", _PER_HOUR), row.get("rate")
    if not _is_count(ttl_sec) or not _is_count(per_hour):
        raise refuse("ttl_sec and per_hour are whole numbers above 0")
    if rate is not None and (not isinstance(rate, list) or len(rate) != 2 or not all(map(_is_count, rate))):
        raise refuse("rate is [PER_SEC, BURST]")
    keys: frozenset[bytes] | None = None
    if clients != [ANYBODY]:
        try:
            keys = frozenset(_key(text) for text in clients)
        except ValueError:
            raise refuse("a client is a key of 32 bytes in hex") from None
    return IssuanceGrant(
        stream_ids=frozenset(map(_stream, streams)),
        clients=keys,
        ttl_sec=ttl_sec,
        rate=None if rate is None else Rate(per_sec=rate[0], burst=rate[1]),
        per_hour=per_hour,
    )


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) and text for text in value)


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and value > 0


def _key(text: str) -> bytes:
    key = bytes.fromhex(text.removeprefix("ed25519:"))
    if len(key) * 2 != _HEX:
        raise ValueError
    return key


def _stream(text: str) -> bytes:
    return bytes.fromhex(text[4:]) if text.startswith("hex:") else stream_id_of(text)
