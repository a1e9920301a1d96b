"""Capability tokens of a client: issue, describe, store, choose, renew (spec §6, D-43 … D-49).

The issuer issues a token for a client key and hands it over; the subject sends it to a hub (`/tooling/authorize`),
which fixes issued_at forever. Only then the end of the token is known, and it differs from hub to hub: `HeldToken` has
one grant per hub. A token whose ttl is spent is renewed by its issuer with a further link: new bytes, a new auth_ref, a
new ttl (D-44).
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Final, Self

from veen.client.errors import LocalError, TokenExpired, TokenMissing
from veen.client.identity.card import IdentityCard
from veen.client.identity.keyring import Keyring, StreamRef
from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import FormatError, VerifyError
from veen.core.objects.captoken import CapToken, Rate
from veen.core.wire import Bytes32, Length, Map, Part, Uint
from veen.io.errors import LockedError
from veen.io.local import Fs
from veen.storage.scan import read_file

RENEW_FRACTION: Final = 5  # a token is due for renewal when the last fifth of its ttl begins (KEX1-05)
_MAX_GRANTS: Final = 1_024
_SUFFIX: Final = ".cbor"
_LOCK_TRIES: Final = 100
_LOCK_PAUSE_SEC: Final = 0.02


def issue(
    issuer: SigningKey,
    subject: IdentityCard | bytes,
    streams: Iterable[str | bytes],
    *,
    ttl: int,
    rate: Rate | None = None,
) -> CapToken:
    """Issue a token for a client key, or for the one on a card; streams by name or id."""
    subject_pk = subject.client_id if isinstance(subject, IdentityCard) else subject
    return CapToken.issue(issuer, subject_pk, map(_stream_id, streams), ttl=ttl, rate=rate)


def _stream_id(stream: str | bytes) -> bytes:
    if isinstance(stream, bytes):
        return stream
    ref = StreamRef.parse(stream)
    if ref.stream_id is None:
        raise LocalError(f"{stream}: a token is for streams, and a label does not show its stream")
    return ref.stream_id


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenInfo:
    """A token as shown to people."""

    auth_ref: bytes
    issuer_pk: bytes
    subject_pk: bytes
    streams: tuple[str, ...]  # by name if the keyring has it
    ttl: int
    rate: Rate | None
    links: int  # 1, and one more for each renewal
    fault: str | None  # the error of `verify`, if it fails


def describe(token: CapToken, keyring: Keyring | None = None) -> TokenInfo:
    """Describe a token without assuming that it is valid: a forged one is shown too, with its fault."""
    try:
        token.verify()
    except VerifyError as exc:
        fault: str | None = str(exc)
    else:
        fault = None
    names = {keys.stream_id: str(keys) for keys in keyring.entries} if keyring else {}
    return TokenInfo(
        auth_ref=token.auth_ref(),
        issuer_pk=token.issuer_pk,
        subject_pk=token.subject_pk,
        streams=tuple(names.get(stream_id, f"hex:{stream_id.hex()}") for stream_id in token.allow.stream_ids),
        ttl=token.allow.ttl,
        rate=token.allow.rate,
        links=len(token.sig_chain),
        fault=fault,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant(Part, kind="grant"):
    """The authorisation of a token by a hub, which fixes its end (D-47)."""

    hub_id: Bytes32
    issued_at: Uint  # hub_ts of the control record, as the hub signed it


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldToken(Map, kind="held token"):
    """A token as a client stores it."""

    token: CapToken
    grants: Annotated[tuple[Grant, ...], Length(0, _MAX_GRANTS)] = ()  # at most one for each hub

    @property
    def auth_ref(self) -> bytes:
        return self.token.auth_ref()

    def issued_at(self, hub_id: bytes) -> int | None:
        return next((grant.issued_at for grant in self.grants if grant.hub_id == hub_id), None)

    def expires_at(self, hub_id: bytes) -> int | None:
        """Return the last second in which the hub accepts the token (D-48); None before the hub has authorised it."""
        issued_at = self.issued_at(hub_id)
        return None if issued_at is None else issued_at + self.token.allow.ttl

    def is_live(self, hub_id: bytes, now: int) -> bool:
        """Return True unless the token is known to have ended: one that the hub does not know yet has all of its
        ttl."""
        issued_at = self.issued_at(hub_id)
        return issued_at is None or self.token.is_live(issued_at=issued_at, hub_ts=now)

    def is_due(self, hub_id: bytes, now: int) -> bool:
        """Return True if the token should be renewed while it still works (KEX1-05)."""
        expires_at = self.expires_at(hub_id)
        return expires_at is not None and now >= expires_at - self.token.allow.ttl // RENEW_FRACTION

    def allows(self, client_id: bytes, stream_id: bytes) -> bool:
        """Return True if the token is for this client key and this stream (D-49)."""
        return self.token.subject_pk == client_id and stream_id in self.token.allow.stream_ids

    def with_grant(self, hub_id: bytes, issued_at: int) -> Self:
        """Return the token with a grant. Authorising again never moves issued_at (D-47), so the first grant of a hub
        stays."""
        if self.issued_at(hub_id) is not None:
            return self
        return replace(self, grants=(*self.grants, Grant(hub_id=hub_id, issued_at=issued_at)))


class TokenStore:
    """The tokens of an identity, one file each, named by auth_ref (CAP-17)."""

    def __init__(self, fs: Fs, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self._fs, self._sleep = fs, sleep

    def put(self, token: CapToken) -> HeldToken:
        """Store a token if its chain verifies; known grants are kept."""
        token.verify()
        return self._update(token.auth_ref(), lambda held: held or HeldToken(token=token))

    def restore(self, held: HeldToken) -> HeldToken:
        """Store a token with its grants, as an export had it."""
        token = self.put(held.token)
        for grant in held.grants:
            token = self.add_grant(held.auth_ref, grant.hub_id, grant.issued_at)
        return token

    def add_grant(self, auth_ref: bytes, hub_id: bytes, issued_at: int) -> HeldToken:
        """Store the grant of a hub. The caller has verified the control record."""

        def update(held: HeldToken | None) -> HeldToken:
            if held is None:
                raise TokenMissing(f"there is no token {auth_ref.hex()[:16]}…")
            return held.with_grant(hub_id, issued_at)

        return self._update(auth_ref, update)

    def get(self, auth_ref: bytes) -> HeldToken | None:
        name = f"{auth_ref.hex()}{_SUFFIX}"
        return self._read(name) if self._fs.exists(name) else None

    def all(self) -> list[HeldToken]:
        """Return all tokens, by auth_ref."""
        return [self._read(name) for name in self._fs.list("") if name.endswith(_SUFFIX)]

    def remove(self, auth_ref: bytes) -> None:
        """Remove a revoked or spent token (KEX1-09); do nothing if it is not here."""
        with self._lock():
            self._fs.remove(f"{auth_ref.hex()}{_SUFFIX}")
            self._fs.sync_dir("")

    def usable(self, hub_id: bytes, client_id: bytes, stream_id: bytes, now: int) -> HeldToken:
        """Return the token to write with: one that the hub has authorised first, then the one that lasts longest.

        It reads and verifies every file, so it is not called for every message.
        """
        fitting = [token for token in self.all() if token.allows(client_id, stream_id)]
        if not fitting:
            raise TokenMissing(
                f"no token lets the client key {client_id.hex()[:16]}… write to stream {stream_id.hex()[:16]}…"
            )
        best = max(fitting, key=lambda token: _worth(token, hub_id, now))
        if not best.is_live(hub_id, now):
            raise TokenExpired(best.auth_ref, best.expires_at(hub_id) or 0)
        return best

    def parent(self, hub_id: bytes, principal_pk: bytes, stream_id: bytes, now: int) -> HeldToken | None:
        """Return the live token of the principal itself that lasts longest and allows a stream; None without one."""
        fitting = [
            token for token in self.all() if token.allows(principal_pk, stream_id) and token.is_live(hub_id, now)
        ]
        return max(fitting, key=lambda token: _worth(token, hub_id, now), default=None)

    def drop_ended(self, hub_id: bytes, issuer_pk: bytes, now: int) -> None:
        """Remove the tokens that the identity issued for its client keys and that have ended at the hub."""
        for token in self.all():
            if token.token.issuer_pk == issuer_pk and not token.is_live(hub_id, now):
                self.remove(token.auth_ref)

    def due(self, hub_id: bytes, now: int) -> list[HeldToken]:
        """Return the tokens to renew soon, or at once."""
        return [token for token in self.all() if token.is_due(hub_id, now)]

    def _update(self, auth_ref: bytes, change: Callable[[HeldToken | None], HeldToken]) -> HeldToken:
        with self._lock():
            before = self.get(auth_ref)
            after = change(before)
            if after != before:
                self._fs.replace(f"{auth_ref.hex()}{_SUFFIX}", after.to_bytes(), private=True)
            return after

    def _read(self, name: str) -> HeldToken:
        try:
            token = HeldToken.from_bytes(read_file(self._fs, name))
            token.token.verify()
        except (FormatError, VerifyError) as exc:
            raise LocalError(f"tokens/{name}: the file is damaged: {exc}") from exc
        if f"{token.auth_ref.hex()}{_SUFFIX}" != name:
            raise LocalError(f"tokens/{name}: the file holds another token")
        return token

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        """Lock the store briefly. It is not the lock of the identity, because a token may be added while a client
        runs."""
        self._fs.make_dir("")
        with contextlib.ExitStack() as stack:
            for left in reversed(range(_LOCK_TRIES)):
                try:
                    stack.enter_context(self._fs.lock())
                    break
                except LockedError as exc:
                    if not left:
                        raise LocalError("another process keeps changing the tokens of this identity") from exc
                    self._sleep(_LOCK_PAUSE_SEC)
            yield


def _worth(held: HeldToken, hub_id: bytes, now: int) -> tuple[bool, int]:
    """Return the sort key: tokens that the hub knows and accepts first, then those that last longest."""
    expires_at = held.expires_at(hub_id)
    if expires_at is None:
        return False, now + held.token.allow.ttl
    return held.is_live(hub_id, now), expires_at
