"""The administration of a realm: primary hubs of streams, and revocations (001 spec-2 §1.3, §2, §4.3).

The records lie on encrypted streams like any other message, so hubs cannot read them. Whoever has the read key folds
them: a client, to drop what was revoked while it was away (§4.4); an agent, to hand the outcome to hubs (D-51).

Writers of policy: named emitters, or the owner of the stream and no others (D-186).

A fold sees events and no keyring, so it does not know who owns a stream. Made without emitters it counts nobody, names
its streams in `unowned_streams`, and whoever has a keyring gives it the owner's client keys with `with_emitters`.

Emitters are client keys. Where they are a mapping, its values are what the emitter's identity proved of the key in the
stream (`AuthorKey`), or None: a record outside of the time of the key's binding, or behind its end, does not count.
"""

from collections.abc import Collection, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Final, NamedTuple, Protocol, Self, TypeVar, runtime_checkable

from veen.core.event import Event
from veen.core.hashing import Ht
from veen.core.objects.policies import REVOCATION_KINDS, Authority, Revocation, realm_id_of
from veen.core.objects.speaking import AuthorKey
from veen.core.wire import Bytes32, Choice, Form, Uint, Wire
from veen.overlays.framework.fold import NO_MIRRORS, Compact, Mirrors
from veen.overlays.framework.schema import Body, Draft, Schema, SchemaSet, Typed, Violation
from veen.overlays.framework.typed_table import StateTable

Emitters = Collection[bytes] | Mapping[bytes, Collection[bytes]]


def is_by_emitter(named: Collection[bytes], event: Event) -> bool:
    """Return True if the client key of an event is among some emitters, at the place of the event."""
    client_id = event.client_id
    if client_id not in named:
        return False
    proof: AuthorKey | None = named[client_id] if isinstance(named, Mapping) else None
    return proof is None or proof.covers(event.ts, (event.epoch, event.stream_seq))


@runtime_checkable
class OwnerRuled(Protocol):
    """A fold whose records are valid by their writer."""

    @property
    def unowned_streams(self) -> tuple[bytes, ...]:
        """The streams whose owner decides but is unknown to the fold; empty if emitters were named."""

    def with_emitters(self, emitters: Mapping[bytes, Collection[bytes]]) -> Self:
        """Return the same fold for these client keys, by stream."""


class EmitterRule:
    """The part of such a fold that decides which writers are valid."""

    _emitters: Emitters | None  # None: everybody

    def _set_rule(self, emitters: Emitters | None, any_emitter: bool, streams: Collection[bytes]) -> None:
        if emitters is not None and any_emitter:
            raise ValueError("give one of emitters and any_emitter")
        self.unowned_streams = () if emitters is not None or any_emitter else tuple(streams)
        if emitters is None and not any_emitter:
            emitters = ()
        self._emitters = emitters if emitters is None or isinstance(emitters, Mapping) else frozenset(emitters)

    def with_emitters(self, emitters: Mapping[bytes, Collection[bytes]]) -> Self:
        """Return the same fold for these client keys, by stream; a stream that is not named has none."""
        fold = copy(self)
        fold._emitters, fold.unowned_streams = dict(emitters), ()
        return fold

    def may_emit(self, stream_id: bytes, client_id: bytes) -> bool:
        """Return True if records of this client key count on the stream, at some place."""
        return self._emitters is None or client_id in self._select_emitters(self._emitters, stream_id)

    def is_emitted(self, event: Event) -> bool:
        """Return True if a record counts by who wrote it, at its place."""
        return self._emitters is None or is_by_emitter(self._select_emitters(self._emitters, event.stream_id), event)

    @staticmethod
    def _select_emitters(emitters: Emitters, stream_id: bytes) -> Collection[bytes]:
        return emitters.get(stream_id, ()) if isinstance(emitters, Mapping) else emitters

    def _rule_settings(self) -> Any:
        if isinstance(self._emitters, Mapping):
            return [[stream_id, _settings_of(named)] for stream_id, named in sorted(self._emitters.items())]
        return None if self._emitters is None else sorted(self._emitters)


def _settings_of(named: Collection[bytes]) -> list[Any]:
    if not isinstance(named, Mapping):
        return sorted(named)
    return [
        client_id if named[client_id] is None else [client_id, named[client_id].to_bytes()]
        for client_id in sorted(named)
    ]


_Record = TypeVar("_Record", Authority, Revocation)

DEFAULT_REALM: Final = realm_id_of("default")  # of deployments without realms (§1.3)


class AdminStreams(NamedTuple):
    """The stream_ids on which a realm is administered."""

    fed_admin: bytes
    revocation: bytes
    label_class: bytes
    schema_meta: bytes


def admin_streams(realm_id: bytes = DEFAULT_REALM) -> AdminStreams:
    """Return the admin streams of a realm (§1.3)."""
    tags = ("veen/admin", "veen/revocation", "veen/label-class", "veen/meta-schema")
    return AdminStreams(*(Ht(tag, realm_id) for tag in tags))


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorityRecord(Authority, Body, kind="veen.fed.authority.v1"):
    """The authority record for hubs (`veen.core.objects.policies`), as a body."""

    FORM: ClassVar[Form] = "body"

    def authority(self) -> Authority:
        return Authority(
            realm_id=self.realm_id,
            stream_id=self.stream_id,
            primary_hub=self.primary_hub,
            replica_hubs=self.replica_hubs,
            policy=self.policy,
            ts=self.ts,
            ttl=self.ttl,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RevocationRecord(Body, kind="veen.revocation.v1"):
    """The revocation of a client key, a capability or a link."""

    kind: Annotated[str, Choice(*REVOCATION_KINDS)]
    target: Bytes32  # a client_id, an auth_ref, H(cap_token bytes), or H of a link signature (D-173)
    reason: str | None = None
    ts: Uint
    ttl: Uint | None = None


AUTHORITY: Final = Schema(AuthorityRecord.KIND, AuthorityRecord)
REVOCATION: Final = Schema(RevocationRecord.KIND, RevocationRecord)


def assign(authority: Authority) -> Draft:
    """Build a record that assigns a primary hub, to be sent to `admin_streams(authority.realm_id).fed_admin`."""
    return AUTHORITY.draft(
        AuthorityRecord(
            realm_id=authority.realm_id,
            stream_id=authority.stream_id,
            primary_hub=authority.primary_hub,
            replica_hubs=authority.replica_hubs,
            policy=authority.policy,
            ts=authority.ts,
            ttl=authority.ttl,
        )
    )


def revoke(kind: str, target: bytes, *, ts: int, ttl: int | None = None, reason: str | None = None) -> Draft:
    """Build a revocation of a client key or a capability, to be sent to the realm's `revocation` stream."""
    return REVOCATION.draft(RevocationRecord(kind=kind, target=target, reason=reason, ts=ts, ttl=ttl))


@dataclass(slots=True)
class RealmRecords:
    """Records of a realm. Sets only grow: the time of a record decides when it is valid (§4.3)."""

    authorities: set[Authority] = field(default_factory=set)
    revocations: set[Revocation] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class RealmState:
    """Every record, in order of precedence."""

    authorities: tuple[Authority, ...]
    revocations: tuple[Revocation, ...]

    def authority(self, stream_id: bytes, at: int) -> Authority | None:
        """Return the active record of a stream, the earliest by (ts, primary_hub) (§2.2, D-101), or None."""
        active = (record for record in self.authorities if record.stream_id == stream_id)
        return next((record for record in active if record.ts <= at < record.until), None)

    def is_revoked(self, kind: str, target: bytes, at: int) -> bool:
        return any(
            (record.kind, record.target) == (kind, target) and record.ts <= at < record.until
            for record in self.revocations
        )


class RealmFold(EmitterRule, Compact[RealmRecords, RealmState]):
    """The records of one realm that stand on its admin streams and come from those who may speak for it.

    `emitters` are client_ids (§2.3: a small, well-defined set), for both streams or by stream_id; a stream that a
    mapping does not name has none. Without emitters nobody counts until `with_emitters` brings the keys of the owner of
    each stream (D-186). `any_emitter`: the records of every writer count, which leaves the choice to the hub's
    capabilities.
    """

    name = "realm"
    schemas = SchemaSet([AUTHORITY, REVOCATION])
    SUMMARY = RealmRecords

    def __init__(
        self,
        realm_id: bytes = DEFAULT_REALM,
        *,
        emitters: Emitters | None = None,
        any_emitter: bool = False,
        streams: AdminStreams | None = None,
        mirrors: Mirrors = NO_MIRRORS,
    ) -> None:
        super().__init__(mirrors=mirrors)
        self._realm_id = realm_id
        self._streams = streams or admin_streams(realm_id)
        self._set_rule(emitters, any_emitter, (self._streams.fed_admin, self._streams.revocation))

    def settings(self) -> Any:
        return [self._realm_id, self._rule_settings(), list(self._streams)]

    @property
    def admin_streams(self) -> AdminStreams:
        """The streams on which the realm is administered."""
        return self._streams

    def start(self) -> RealmRecords:
        return RealmRecords()

    def add(self, into: RealmRecords, event: Typed[Any]) -> None:
        e, body = event
        if not self.is_emitted(e):
            raise Violation("REALM.EMITTER", "this client may not speak for the realm")
        on = self._streams.fed_admin if isinstance(body, AuthorityRecord) else self._streams.revocation
        if e.stream_id != on:
            raise Violation("REALM.STREAM", "the record is not on the admin stream for its kind")
        if isinstance(body, AuthorityRecord):
            if body.realm_id != self._realm_id:
                raise Violation("REALM.REALM", "the record is of another realm")
            into.authorities.add(body.authority())
        else:
            into.revocations.add(Revocation(kind=body.kind, target=body.target, ts=body.ts, ttl=body.ttl))

    def absorb(self, into: RealmRecords, other: RealmRecords) -> None:
        into.authorities |= other.authorities
        into.revocations |= other.revocations

    def show(self, state: RealmRecords, as_of: int) -> RealmState:
        """Return all records, expired ones included: callers of `authority` and `is_revoked` name the time."""
        return RealmState(_sort_records(state.authorities), _sort_records(state.revocations))


def _sort_records(records: Iterable[_Record]) -> tuple[_Record, ...]:
    """Sort by ts, then by the bytes, which rank authorities of one stream by primary_hub."""
    by_ts: dict[int, list[_Record]] = {}
    for record in records:
        by_ts.setdefault(record.ts, []).append(record)
    for group in by_ts.values():
        if len(group) > 1:  # only these have to be encoded
            group.sort(key=Wire.to_bytes_unchecked)
    return tuple(record for ts in sorted(by_ts) for record in by_ts[ts])


STATES: Final = (
    StateTable.of(
        RealmFold.name,
        Authority,
        {
            "stream_id": "hex",
            "ts": "time",
            "primary_hub": "hex",
            "policy": "text",
            "ttl": "integer",
            "replica_hubs": "json",
        },
        lambda view: (
            (
                (
                    record.stream_id,
                    record.ts,
                    record.primary_hub,
                    record.policy,
                    record.ttl,
                    record.replica_hubs,
                ),
                record,
            )
            for record in view.authorities
        ),
        part="authorities",
        about="which hub is the primary of a stream, and when",
    ),
    StateTable.of(
        RealmFold.name,
        Revocation,
        {"kind": "text", "target": "hex", "ts": "time", "ttl": "integer"},
        lambda view: (((record.kind, record.target, record.ts, record.ttl), record) for record in view.revocations),
        part="revocations",
        about="what is revoked, and when",
    ),
)
