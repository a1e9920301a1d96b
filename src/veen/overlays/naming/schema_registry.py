"""veen.meta.schema.v1: the registry of schemas and their owners (META0+, 001 spec-2 §7, D-103, D-156).

The last record by (ts, logical order) counts for a schema_id; a ts ahead of the hub's time counts as that time (D-175).
Nothing is refused that is on the right stream: a schema_id that no rule derives from its name is shown as unbound, and
a schema whose owner another sender changed as contested.

    META.NAME     name or version is empty
    META.EMITTER  the client is not among those who may register
    META.STREAM   the record does not stand on the realm's stream of schemas
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from veen.core.event import Order
from veen.core.hashing import H
from veen.core.wire import Bytes32, Uint
from veen.overlays.federation.realm import DEFAULT_REALM, EmitterRule, Emitters, admin_streams
from veen.overlays.framework.fold import NO_MIRRORS, Compact, Mirrors
from veen.overlays.framework.schema import Body, Draft, InvalidBody, Schema, SchemaSet, Typed, Violation
from veen.overlays.framework.typed_table import StateTable


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaSchema(Body, kind="veen.meta.schema.v1"):
    """Metadata of a schema: name, version, documentation, owner."""

    schema_id: Bytes32
    name: str
    version: str
    doc_url: str | None = None
    owner: Bytes32 | None = None
    ts: Uint

    def _check(self) -> None:
        if not self.name or not self.version:
            raise InvalidBody("META.NAME", "name and version must not be empty")


META_SCHEMA: Final = Schema(MetaSchema.KIND, MetaSchema)


def register(
    schema_id: bytes, name: str, version: str, *, ts: int, doc_url: str | None = None, owner: bytes | None = None
) -> Draft:
    """Build a record, to be sent to `admin_streams(realm_id).schema_meta`."""
    return META_SCHEMA.draft(
        MetaSchema(schema_id=schema_id, name=name, version=version, doc_url=doc_url, owner=owner, ts=ts)
    )


def is_bound(schema_id: bytes, name: str) -> bool:
    """Return True if the id derives from the name by one of the two rules (D-83)."""
    data = name.encode()
    return schema_id in (H(data), H(b"veen/schema:" + data))


class Latest(NamedTuple):
    """The valid record; compared by time and place first."""

    ts: int
    order: Order
    msg_id: bytes
    client_id: bytes
    name: str
    version: str
    doc_url: str | None
    owner: bytes | None


@dataclass(slots=True)
class Claims:
    """Records of schemas: the latest by schema_id, and everyone who named an owner."""

    latest: dict[bytes, Latest] = field(default_factory=dict)
    owners: set[tuple[bytes, bytes, bytes]] = field(default_factory=set)  # (schema_id, owner, client_id)


class Registered(NamedTuple):
    """An entry of the registry."""

    name: str
    version: str
    doc_url: str | None
    owner: bytes | None
    ts: int
    client_id: bytes
    msg_id: bytes
    unbound: bool  # the id does not follow from the name
    contested: bool  # different senders named different owners


@dataclass(frozen=True, slots=True)
class SchemaRegistry:
    """The metadata of schemas by schema_id (§7.2)."""

    schemas: Mapping[bytes, Registered]

    def find_unregistered(self, used: Iterable[bytes]) -> list[bytes]:
        """Return the ids among those used in payload headers that nobody registered."""
        return sorted(set(used) - self.schemas.keys())


class SchemaRegistryFold(EmitterRule, Compact[Claims, SchemaRegistry]):
    """The schemas of one realm. `emitters` are client_ids; by default the owner's count (D-186).

    A fold does not know her: nobody counts until `with_emitters` brings her keys. `any_emitter`: everybody counts.
    """

    name = "schema.registry"
    schemas = SchemaSet([META_SCHEMA])
    SUMMARY = Claims

    def __init__(
        self,
        realm_id: bytes = DEFAULT_REALM,
        *,
        emitters: Emitters | None = None,
        any_emitter: bool = False,
        stream_id: bytes | None = None,
        mirrors: Mirrors = NO_MIRRORS,
    ) -> None:
        super().__init__(mirrors=mirrors)
        self._stream_id = stream_id or admin_streams(realm_id).schema_meta
        self._set_rule(emitters, any_emitter, (self._stream_id,))

    def settings(self) -> Any:
        return [self._rule_settings(), self._stream_id]

    def start(self) -> Claims:
        return Claims()

    def add(self, into: Claims, event: Typed[MetaSchema]) -> None:
        e, body = event
        if not self.is_emitted(e):
            raise Violation("META.EMITTER", "this client may not register schemas")
        if e.stream_id != self._stream_id:
            raise Violation("META.STREAM", "the record is not on the realm's stream of schemas")
        record = Latest(
            ts=min(body.ts, e.ts),
            order=e.order,
            msg_id=e.leaf_hash,
            client_id=e.client_id,
            name=body.name,
            version=body.version,
            doc_url=body.doc_url,
            owner=body.owner,
        )
        _keep_latest(into.latest, body.schema_id, record)
        if body.owner is not None:
            into.owners.add((body.schema_id, body.owner, e.client_id))

    def absorb(self, into: Claims, other: Claims) -> None:
        for schema_id, record in other.latest.items():
            _keep_latest(into.latest, schema_id, record)
        into.owners |= other.owners

    def show(self, state: Claims, as_of: int) -> SchemaRegistry:
        claims: dict[bytes, set[tuple[bytes, bytes]]] = {}
        for schema_id, owner, client_id in state.owners:
            claims.setdefault(schema_id, set()).add((owner, client_id))
        return SchemaRegistry(
            {
                schema_id: Registered(
                    name=record.name,
                    version=record.version,
                    doc_url=record.doc_url,
                    owner=record.owner,
                    ts=record.ts,
                    client_id=record.client_id,
                    msg_id=record.msg_id,
                    unbound=not is_bound(schema_id, record.name),
                    contested=_is_contested(claims.get(schema_id, set())),
                )
                for schema_id, record in sorted(state.latest.items())
            }
        )


def _keep_latest(into: dict[bytes, Latest], schema_id: bytes, record: Latest) -> None:
    before = into.get(schema_id)
    if before is None or (before.ts, before.order) < (record.ts, record.order):
        into[schema_id] = record


def _is_contested(claims: set[tuple[bytes, bytes]]) -> bool:
    """Return True if there are several senders, and not all of them named the same owner."""
    owners, senders = {owner for owner, _ in claims}, {sender for _, sender in claims}
    return len(owners) > 1 and len(senders) > 1


STATES: Final = (
    StateTable.of(
        SchemaRegistryFold.name, Registered, {"schema_id": "hex"}, lambda view: view.schemas, about="registered schemas"
    ),
)
