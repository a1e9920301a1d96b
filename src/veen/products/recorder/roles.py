"""The roles of a recorder: separate identities, keys and tokens (SDR-05, 001 products §2.3).

    admin       reads all streams of record/* but the openings; writes configuration and checkpoints; signs the tokens
    producer    one identity per emitting service; may seal for its own streams and the recorder's own, and read nothing
                but the configuration, which it enforces
    disclosure  the only reader of redacted values (record/security/openings)

`equip` gives the identities what their roles need and takes nothing away, so it may run again: for a further producer,
for a further stream, or because a producer has a new client key.

Future client keys of a producer, known before they are used (decision 191).

A token names one client key (D-49), and a key must be replaced after a day (KEX1+). So that an agent can do this alone
at a hub that requires tokens, its next keys are derived from the identity: key number g has the seed

    HKDF(dh_sk, info = "veen/recorder-client-key" || u64be(g))

The holder of the identity can compute them; nobody else can link one to another. With `veen recorder init` the admin
issues tokens for one key for each day of the tokens' ttl. When they are used up, the agent keeps its last key and
reports that in every heartbeat (decision 121).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Final

from veen.client.errors import LocalError, UnknownStream
from veen.client.identity.identity import Identity
from veen.client.identity.keyring import Keyring, StreamKeys
from veen.client.identity.keystore import Keystore
from veen.client.send.captokens import TokenStore, issue
from veen.core.crypto import hkdf
from veen.core.crypto.ed25519 import SEED_BYTES, SigningKey
from veen.core.hashing import u64be
from veen.core.labels import stream_id_of
from veen.core.objects.captoken import CapToken
from veen.overlays.federation.realm import DEFAULT_REALM, admin_streams
from veen.products.recorder.events import CHANGES_STREAM, CHECKPOINTS_STREAM, OPENINGS_STREAM, OWN_STREAM

MAX_SUCCESSORS: Final = 64  # tokens that one run of `init` issues in advance for a producer
_INFO: Final = b"veen/recorder-client-key"


def _seed(identity: Identity, generation: int) -> bytes:
    return hkdf.hkdf(identity.dh_sk, b"", _INFO + u64be(generation), SEED_BYTES)


def next_seed(identity: Identity) -> bytes:
    """Return the seed of the key that follows the current one."""
    return _seed(identity, identity.client_key.generation + 1)


def successors(identity: Identity, count: int) -> list[bytes]:
    """Return the client_ids of the next keys, in the order of their use."""
    present = identity.client_key.generation
    return [SigningKey(_seed(identity, present + step)).public for step in range(1, count + 1)]


CLASSES_STREAM: Final = f"hex:{admin_streams(DEFAULT_REALM).label_class.hex()}"  # label classes of the default realm
ADMIN_STREAMS: Final = (CHANGES_STREAM, CHECKPOINTS_STREAM)
_RECORD: Final = ("record/app/*", "record/security/*", "record/infrastructure/*")


class RoleConflict(LocalError, code="SDR.ROLE"):
    """One identity would have two roles, or a stream is not part of record/*."""


@dataclass(frozen=True, slots=True)
class RecorderRole:
    """An identity on this machine: its keystore, its tokens, and the lock for changes to both."""

    keystore: Keystore
    tokens: TokenStore
    lock: Callable[[], AbstractContextManager[None]]

    @property
    def name(self) -> str:
        return self.keystore.identity.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Equipped:
    """Tokens issued by this run, by the name of their subject, and the streams whose keys are new."""

    tokens: Mapping[str, CapToken]
    new_streams: tuple[str, ...]
    successors: Mapping[str, tuple[CapToken, ...]] = field(default_factory=dict)  # of keys that are not used yet


def check_roles(admin: str, disclosure: str | None, producers: Mapping[str, Sequence[str]]) -> None:
    """Raise RoleConflict unless every role has its own identity and every producer has streams of record/*."""
    for name, streams in producers.items():
        if name in (admin, disclosure):
            raise RoleConflict(f"{name!r} cannot be a producer and the {'admin' if name == admin else 'disclosure'}")
        if not streams:
            raise RoleConflict(f"the producer {name!r} has no stream to record to")
        for stream in streams:
            reserved = stream in (*ADMIN_STREAMS, OWN_STREAM, OPENINGS_STREAM)
            if reserved or not any(fnmatchcase(stream, pattern) for pattern in _RECORD):
                raise RoleConflict(
                    f"{stream!r} is not for producers: they record to record/app/…, record/security/… or"
                    " record/infrastructure/…, and the recorder's own streams are taken"
                )
    if admin == disclosure:
        raise RoleConflict("the admin must not read redacted values: give --disclosure another identity")


def equip(
    admin: RecorderRole,
    producers: Mapping[str, tuple[RecorderRole, Sequence[str]]],
    disclosure: RecorderRole | None,
    *,
    ttl: int,
    hub_id: bytes,
    now: int,
    keys_ahead: int = 0,
    derived: bool = False,
) -> Equipped:
    """Give every role its keys and a token that is valid for at least half of `ttl`.

    `derived`: the hub lets an identity derive tokens for its client keys, so each derives its own (D-179).
    `keys_ahead`: number of future client keys of each producer that have tokens afterwards.
    """
    if not 0 <= keys_ahead <= MAX_SUCCESSORS:
        raise RoleConflict(f"tokens are issued for at most {MAX_SUCCESSORS} keys in advance")
    wanted = [*ADMIN_STREAMS, OWN_STREAM, CLASSES_STREAM]
    wanted += [stream for _, streams in producers.values() for stream in streams]
    new = _make_keys(admin, wanted)
    _own(admin, (*ADMIN_STREAMS, CLASSES_STREAM))
    if disclosure is not None:
        new += _make_keys(disclosure, [OPENINGS_STREAM])
        keys = disclosure.keystore.secrets.keyring.for_stream(OPENINGS_STREAM).for_writers()
        _add_keys(admin, [keys])
    ring = admin.keystore.secrets.keyring
    tokens: dict[str, CapToken] = {}
    ahead: dict[str, tuple[CapToken, ...]] = {}
    own = [OWN_STREAM, *([OPENINGS_STREAM] if disclosure is not None else [])]
    for name, (role, streams) in producers.items():
        _add_keys(role, [ring.for_stream(stream).for_writers() for stream in (*streams, *own)])
        _add_keys(role, [ring.for_stream(CHANGES_STREAM)])  # it reads there what to refuse; it gets no token to write
        token = _token(admin, role, (*streams, *own), ttl=ttl, hub_id=hub_id, now=now, derived=derived)
        if token is not None:
            tokens[name] = token
        issued = [
            _token(admin, role, (*streams, *own), ttl=ttl, hub_id=hub_id, now=now, client_id=client_id)
            for client_id in successors(role.keystore.identity, 0 if derived else keys_ahead)
        ]
        ahead[name] = tuple(token for token in issued if token is not None)
    mine = (*ADMIN_STREAMS, CLASSES_STREAM)
    if (token := _token(admin, admin, mine, ttl=ttl, hub_id=hub_id, now=now, derived=derived)) is not None:
        tokens[admin.name] = token
    return Equipped(tokens=tokens, new_streams=tuple(dict.fromkeys(new)), successors=ahead)


def record_streams(ring: Keyring) -> tuple[StreamKeys, ...]:
    """Return the streams of a recorder that this keyring can read, by name."""
    return tuple(keys for pattern in _RECORD for keys in ring.find_matching(pattern) if keys.can_read)


def _make_keys(role: RecorderRole, streams: Iterable[str]) -> list[str]:
    ring, new = role.keystore.secrets.keyring, []
    for stream in streams:
        try:
            ring.for_stream(stream)
        except UnknownStream:
            ring = ring.with_keys(StreamKeys.create(stream))
            new.append(stream)
    _save(role, ring)
    return new


def _own(role: RecorderRole, streams: Iterable[str]) -> None:
    """Make the role the owner of streams without a known owner: other readers then trust its records there, too."""
    ring = role.keystore.secrets.keyring
    for stream in streams:
        if ring.owner_of(stream) is None:
            ring = ring.with_owner(stream, role.keystore.identity.id_sign_pk)
    _save(role, ring)


def _add_keys(role: RecorderRole, keys: Iterable[StreamKeys]) -> None:
    ring = role.keystore.secrets.keyring
    for entry in keys:
        ring = ring.with_keys(entry)
    _save(role, ring)


def _save(role: RecorderRole, ring: Keyring) -> None:
    if set(ring.entries) != set(role.keystore.secrets.keyring.entries):
        with role.lock():
            role.keystore.save(replace(role.keystore.secrets, keyring=ring))


def _token(
    admin: RecorderRole,
    subject: RecorderRole,
    streams: Sequence[str],
    *,
    ttl: int,
    hub_id: bytes,
    now: int,
    client_id: bytes | None = None,
    derived: bool = False,
) -> CapToken | None:
    """Issue a token for all these streams, by default for the current client key; None if a valid one is stored.

    With `derived` the token is for the identity, whatever client key it uses.
    """
    identity = subject.keystore.identity
    client_id = client_id or (identity.id_sign_pk if derived else identity.client_id)
    ids = {stream_id_of(stream.removeprefix("hex:")) for stream in streams}
    for owned in subject.tokens.all():
        expires_at = owned.expires_at(hub_id)
        lasts = expires_at is None or expires_at - now >= ttl // 2
        if owned.token.subject_pk == client_id and ids <= set(owned.token.allow.stream_ids) and lasts:
            return None
    token = issue(admin.keystore.identity.id_sign, client_id, sorted(ids), ttl=ttl)
    subject.tokens.put(token)
    return token
