"""query.audit.v1: reads of sensitive resources as events (001 spec-3 §9).

A data access service writes one message for each query it serves, all of a domain on one stream, so that an auditor
reads one log to know who read what. Where a domain demands it, an access without a message is a violation (Q1).

    QAUD.EMPTY    resource_identifier, resource_class or purpose_code is empty
    QAUD.SERVICE  the sender is no data service of the domain
    QAUD.MISSING  an access of which no message tells
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from veen.core import cbor
from veen.core.event import Event, Order
from veen.core.hashing import Ht
from veen.core.wire import Anything, Bytes32, Uint
from veen.overlays.framework.fold import NO_MIRRORS, Compact, Mirrors
from veen.overlays.framework.ordered import Table
from veen.overlays.framework.schema import Draft, InvalidBody, Schema, SchemaSet, Typed, Violation
from veen.overlays.framework.speaking import Speaking, SpeakingKey, SpeakingRecord
from veen.overlays.framework.state import Free
from veen.overlays.framework.typed_table import StateTable
from veen.overlays.operations.common import Operation, operation_id_of


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryAudit(Operation, kind="query.audit.v1"):
    """A query that was served."""

    requester_identity: Bytes32
    resource_identifier: str
    resource_class: str
    query_parameters: Anything | None = None
    purpose_code: str | None = None
    result_digest: Bytes32 | None = None
    request_time: Uint | None = None
    metadata: Anything | None = None

    def _check(self) -> None:
        if not self.resource_identifier or not self.resource_class or self.purpose_code == "":
            raise InvalidBody("QAUD.EMPTY", "resource_identifier, resource_class and purpose_code must not be empty")


QUERY_AUDIT: Final = Schema(QueryAudit.KIND, QueryAudit)


def audit(requester: bytes, resource: str, resource_class: str, **fields: Any) -> Draft:
    """Build a draft. `fields` are the other fields of QueryAudit."""
    body = QueryAudit(
        requester_identity=requester, resource_identifier=resource, resource_class=resource_class, **fields
    )
    return QUERY_AUDIT.draft(body)


def result_digest_of(result: cbor.Item) -> bytes:
    """Return the digest of a result (QAUD-03): Ht("veen/query-result", deterministic CBOR, keys sorted bytewise).

    Byte strings, texts, integers, booleans, null, lists and maps; a result in another form is digested as its bytes.
    """
    return Ht("veen/query-result", cbor.encode_sorted(result))


class Audited(NamedTuple):
    """One audited access."""

    order: Order
    msg_id: bytes
    service: bytes  # client_id of the sender
    requester: bytes
    resource: str
    resource_class: str
    query_parameters: Free | None
    purpose_code: str | None
    result_digest: bytes | None
    request_time: int | None
    hub_ts: int


class AuditedAccess(NamedTuple):
    """An access known from another source, such as the log of a database."""

    requester: bytes
    resource: str
    request_time: int | None = None  # None: any time


def _to_record(e: Event, body: QueryAudit, msg_id: bytes) -> Audited:
    return Audited(
        order=e.order,
        msg_id=msg_id,
        service=e.client_id,
        requester=body.requester_identity,
        resource=body.resource_identifier,
        resource_class=body.resource_class,
        query_parameters=None if body.query_parameters is None else Free(body.query_parameters),
        purpose_code=body.purpose_code,
        result_digest=body.result_digest,
        request_time=body.request_time,
        hub_ts=e.hub_ts,
    )


class QueryAuditFold(Compact[dict[bytes, Audited], dict[bytes, Audited]]):
    """Fold of accesses by operation_id. `services` are client_ids; None: records of every writer are valid."""

    name = "operation.queryaudit"
    schemas = SchemaSet([QUERY_AUDIT])
    SUMMARY = dict[bytes, Audited]

    def __init__(self, *, services: Collection[bytes] | None = None, mirrors: Mirrors = NO_MIRRORS) -> None:
        super().__init__(mirrors=mirrors)
        self._services = None if services is None else frozenset(services)

    def settings(self) -> Any:
        return None if self._services is None else sorted(self._services)

    def start(self) -> dict[bytes, Audited]:
        return {}

    def add(self, into: dict[bytes, Audited], event: Typed[QueryAudit]) -> None:
        e, body = event
        if self._services is not None and e.client_id not in self._services:
            raise Violation("QAUD.SERVICE", "the sender is not a data service of this domain")
        msg_id = self.mirrors.identity(e)
        into[operation_id_of(msg_id)] = _to_record(e, body, msg_id)

    def absorb(self, into: dict[bytes, Audited], other: dict[bytes, Audited]) -> None:
        into.update(other)

    def show(self, state: dict[bytes, Audited], as_of: int) -> dict[bytes, Audited]:
        return dict(sorted(state.items(), key=lambda item: item[1].order))


class ServiceAuditFold(Speaking[bytes, Audited, dict[bytes, Audited]]):
    """Fold of accesses where `services` are identities. Keys may be bound to them (D-179), so order matters."""

    name = QueryAuditFold.name
    version = 2
    schemas = QueryAuditFold.schemas
    TABLE = dict[bytes | SpeakingKey, Audited | SpeakingRecord]

    def __init__(
        self,
        *,
        services: Collection[bytes],
        mirrors: Mirrors = NO_MIRRORS,
        realms: Collection[bytes] = (),
    ) -> None:
        super().__init__(realms=realms, mirrors=mirrors)
        self._services = frozenset(services)

    def settings(self) -> Any:
        return [sorted(self._services), *self.voice_settings()]

    def step(self, state: Table[bytes, Audited], event: Typed[Any]) -> None:
        if self.take_statement(state, event):
            return
        e, body = event
        if not self.voice(state, e).any_of(self._services):
            raise Violation("QAUD.SERVICE", "the sender is not a data service of this domain")
        msg_id = self.mirrors.identity(e)
        state[operation_id_of(msg_id)] = _to_record(e, body, msg_id)

    def show(self, state: Table[bytes, Audited], as_of: int) -> dict[bytes, Audited]:
        return dict(sorted(self.records(state), key=lambda item: item[1].order))


def make_fold(
    *, services: Collection[bytes] | None = None, speaks: bool = True, mirrors: Mirrors = NO_MIRRORS
) -> QueryAuditFold | ServiceAuditFold:
    """Return the fold for some services. Records of every writer, or of fixed keys, need no order (`Compact`)."""
    if services is None or not speaks:
        return QueryAuditFold(services=services, mirrors=mirrors)
    return ServiceAuditFold(services=services, mirrors=mirrors)


def missing(accesses: Iterable[AuditedAccess], audited: Iterable[Audited]) -> list[AuditedAccess]:
    """Return the accesses without a message (Q1, QAUD.MISSING). A message accounts for one access."""
    left = list(audited)
    unaudited = []
    for access in accesses:
        match = next((record for record in left if _accounts_for(record, access)), None)
        if match is None:
            unaudited.append(access)
        else:
            left.remove(match)
    return unaudited


def _accounts_for(one: Audited, access: AuditedAccess) -> bool:
    if (one.requester, one.resource) != (access.requester, access.resource):
        return False
    return access.request_time is None or one.request_time == access.request_time


STATES: Final = (
    StateTable.of(
        QueryAuditFold.name,
        Audited,
        {"operation_id": "hex"},
        lambda view: view,
        about="accesses that services have told of",
        times=("request_time", "hub_ts"),
    ),
)
