"""delegated.execution.v1: an agent acts with the authority of a principal, by a chain of tokens (001 spec-3 §4, D-92).

The tokens of a chain are not in the log. A reader gives them to the fold (`Caps`, D-139); what cannot be resolved is
void until the reader has the token and folds again, since the set of tokens is part of what decides the state.

    DELEG.EMPTY       the chain has no link (D1)
    DELEG.NESTED      the embedded operation is itself a delegated execution
    DELEG.SPEAKER     the sender is not agent_identity and does not speak for it (D-179)
    DELEG.UNRESOLVED  a token of the chain is not known to the reader
    DELEG.CHAIN       a link does not lead to the next, or the tokens do not cover the stream (D2)
    DELEG.EXPIRED     a token was not valid at hub_ts
    DELEG.REVOKED     a token was revoked at hub_ts
    DELEG.INNER       the embedded operation is of an unknown schema, or its body cannot be read

Base of folds of operations, sent by their authors or by agents for a principal (D-179).

A fold that lists DELEGATED among its schemas gets embedded operations of its own schemas with the authority of the
principal, once `check_chain` has found nothing against them (001 spec-3 §4.3).
"""

import dataclasses
import functools
from abc import abstractmethod
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Final, Generic, NamedTuple, TypeVar

from veen.core import cbor
from veen.core.errors import FormatError
from veen.core.event import Event
from veen.core.labels import schema_id
from veen.core.objects.captoken import CapToken
from veen.core.wire import Anything, Bytes32, Length
from veen.overlays.framework.fold import NO_MIRRORS, Compact, Mirrors
from veen.overlays.framework.ordered import Table
from veen.overlays.framework.schema import AnySchema, Body, Draft, InvalidBody, Schema, SchemaSet, Typed, Violation
from veen.overlays.framework.speaking import (
    ANY_BINDING,
    STATEMENT_TYPES,
    Speaking,
    SpeakingKey,
    SpeakingRecord,
    Voice,
    voice_of_key,
)
from veen.overlays.framework.state import state_record
from veen.overlays.framework.typed_table import StateTable
from veen.overlays.operations.common import KEYS_ONLY, Operation, Speakers, operation_id_of

MAX_CHAIN: Final = 8  # D-139
_NAME: Final = "delegated.execution.v1"
_ID: Final = schema_id(_NAME)


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegatedExecution(Operation, kind=_NAME):
    """Execution of an operation by an agent for a principal."""

    principal_identity: Bytes32
    agent_identity: Bytes32
    delegation_chain: Annotated[tuple[Bytes32, ...], Length(0, MAX_CHAIN)]  # auth_refs, from the principal to the agent
    operation_schema: Bytes32
    operation_body: Anything
    parent_operation_id: Bytes32 | None = None
    metadata: Anything | None = None

    def _check(self) -> None:
        if not self.delegation_chain:
            raise InvalidBody("DELEG.EMPTY", "the delegation chain has no link")
        if self.operation_schema == _ID:
            raise InvalidBody("DELEG.NESTED", "a delegated execution must not embed another")


DELEGATED: Final = Schema(_NAME, DelegatedExecution)


def delegate(
    inner: Draft,
    *,
    principal: bytes,
    agent: bytes,
    chain: Iterable[bytes],
    parent_operation_id: bytes | None = None,
    metadata: Any = None,
) -> Draft:
    """Build the draft by which `agent` executes `inner` for `principal`. Its expires_at stays in the header."""
    body = DelegatedExecution(
        principal_identity=principal,
        agent_identity=agent,
        delegation_chain=tuple(chain),
        operation_schema=inner.schema,
        operation_body=cbor.decode(inner.body),
        parent_operation_id=parent_operation_id,
        metadata=metadata,
    )
    return DELEGATED.draft(body, parent_id=inner.parent_id, expires_at=inner.expires_at)


# --- tokens ----------------------------------------------------------------------------------------------------


class KnownCap(NamedTuple):
    """A token with the time at which a hub stored it in its journal, and the time of its revocation, if any."""

    token: CapToken
    issued_at: int
    revoked_at: int | None = None

    def is_live(self, hub_ts: int) -> bool:
        return self.issued_at <= hub_ts and self.token.is_live(issued_at=self.issued_at, hub_ts=hub_ts)


class Caps(Mapping[bytes, KnownCap]):
    """Verified tokens by auth_ref (D-139). Callers that ask a hub for issued_at verify the answer."""

    __slots__ = ("_by_ref", "issuers")

    def __init__(self, caps: Iterable[KnownCap] = (), *, issuers: Iterable[bytes] | None = None) -> None:
        """Index tokens. Raise CapabilityError for a token that its issuer has not signed.

        `issuers` are the keys that a chain may begin with. None: the hub that took the tokens has decided that.
        """
        self.issuers = None if issuers is None else frozenset(issuers)
        self._by_ref: dict[bytes, KnownCap] = {}
        for cap in caps:
            cap.token.verify()
            self._by_ref[cap.token.auth_ref()] = cap

    def __getitem__(self, auth_ref: bytes) -> KnownCap:
        return self._by_ref[auth_ref]

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._by_ref)

    def __len__(self) -> int:
        return len(self._by_ref)

    def __contains__(self, auth_ref: object) -> bool:
        return auth_ref in self._by_ref

    def find(self, auth_ref: bytes) -> KnownCap | None:
        """Return the token of an auth_ref, or None. Faster than `get`: folds look up every link of every chain."""
        return self._by_ref.get(auth_ref)

    def settings(self) -> list[list[Any]]:
        """Return the tokens that decide the state. An auth_ref is the hash of the whole token."""
        rows: list[list[Any]] = [[ref, cap.issued_at, cap.revoked_at] for ref, cap in sorted(self._by_ref.items())]
        return rows if self.issuers is None else [*rows, ["issuers", *sorted(self.issuers)]]


NO_CAPS: Final = Caps()


def check_chain(body: DelegatedExecution, event: Event, caps: Caps, voice: Container[bytes]) -> None:
    """Raise Violation unless the principal's authority reaches the sender, link by link (§4.3, D-92).

    `voice` has the identities for which the sender speaks.
    """
    if body.agent_identity not in voice:
        raise Violation("DELEG.SPEAKER", "the sender does not speak for agent_identity")
    links: list[KnownCap] = []
    for number, ref in enumerate(body.delegation_chain, start=1):
        link = caps.find(ref)
        if link is None:
            raise Violation("DELEG.UNRESOLVED", f"token {number} of the chain, {ref.hex()}, is not known here")
        links.append(link)
    tokens = [link.token for link in links]
    if tokens[0].subject_pk != body.principal_identity:
        raise Violation("DELEG.CHAIN", "the first token is not for the principal")
    if caps.issuers is not None and tokens[0].issuer_pk not in caps.issuers:
        raise Violation("DELEG.CHAIN", "the first token is not by an issuer that the reader trusts")
    for number, (giver, taker) in enumerate(pairwise(tokens), start=2):
        if taker.issuer_pk != giver.subject_pk:
            raise Violation("DELEG.CHAIN", f"token {number} was not issued by the subject of the one before it")
        scope, part = giver.allow.stream_ids, taker.allow.stream_ids
        if part != scope and not set(scope).issuperset(part):
            raise Violation("DELEG.CHAIN", f"token {number} allows streams that the one before it does not")
    if tokens[-1].subject_pk not in (body.agent_identity, event.client_id):
        raise Violation("DELEG.CHAIN", "the last token is neither for the agent nor for the sender")
    if event.stream_id not in tokens[-1].allow.stream_ids:
        raise Violation("DELEG.CHAIN", "the tokens do not allow the stream of this message")
    for number, link in enumerate(links, start=1):
        if link.revoked_at is not None and link.revoked_at <= event.hub_ts:
            raise Violation("DELEG.REVOKED", f"token {number} of the chain was revoked")
        if not link.is_live(event.hub_ts):
            raise Violation("DELEG.EXPIRED", f"token {number} of the chain was not valid at the time of the message")


@functools.cache
def _names_of(body: type[Body]) -> tuple[str, ...]:
    """Return the names of the fields of a body, in the order of the wire."""
    return tuple(field.name for field in dataclasses.fields(body))  # type: ignore[arg-type]  # every body is a dataclass


def inner_body(body: DelegatedExecution, event: Event, schemas: Mapping[bytes, AnySchema]) -> Body:
    """Decode the embedded operation. Raise Violation if it cannot be read."""
    schema = schemas.get(body.operation_schema)
    if schema is None:
        raise Violation("DELEG.INNER", f"the schema {body.operation_schema.hex()} of the operation is not known here")
    if schema.needs_parent and event.hdr.parent_id is None:
        raise Violation("DELEG.INNER", f"{schema.name} needs a parent_id")
    tree = body.operation_body
    if type(tree) is dict:  # free-form in here, so its keys stand in any order (D-03); its own schema lists them
        names = _names_of(schema.body)  # type: ignore[arg-type]  # a class, of any body, is hashable
        tree = {**{name: tree[name] for name in names if name in tree}, **tree}
    try:
        return schema.body.from_tree(tree)  # type: ignore[no-any-return]  # a schema of any body
    except FormatError as exc:
        raise Violation("DELEG.INNER", str(exc)) from exc


# --- folds -----------------------------------------------------------------------------------------------------


@state_record
class Execution:
    """A valid delegated execution, with the whole chain, which shows the responsible parties (D3)."""

    msg_id: bytes
    client_id: bytes
    principal: bytes
    agent: bytes
    chain: tuple[bytes, ...]
    operation_schema: bytes
    hub_ts: int


class DelegationFold(Speaking[bytes, Execution, dict[bytes, Execution]]):
    """Fold of valid delegated executions by operation_id. `inner` are the schemas that may be embedded."""

    name = "operation.delegated"
    version = 2  # as `ActingFold`
    schemas = SchemaSet([DELEGATED])
    TABLE = dict[bytes | SpeakingKey, Execution | SpeakingRecord]

    def __init__(
        self,
        *,
        inner: SchemaSet | None = None,
        speakers: Speakers = KEYS_ONLY,
        caps: Caps = NO_CAPS,
        mirrors: Mirrors = NO_MIRRORS,
        speaks: bool = True,
        realms: Collection[bytes] = (),
    ) -> None:
        super().__init__(speaks=speaks, realms=realms, mirrors=mirrors)
        self._inner = inner if inner is not None else _all_operations()
        self._speakers, self._caps = speakers, caps

    def settings(self) -> Any:
        own = [self._speakers.settings(), self._caps.settings(), sorted(self._inner)]
        return [*own, *self.voice_settings()]

    def step(self, state: Table[bytes, Execution], event: Typed[DelegatedExecution]) -> None:
        if self.take_statement(state, event):
            return
        e, body = event
        voice = self.voice(state, e, self._speakers.others(e.client_id, e.ts))
        check_chain(body, e, self._caps, voice)
        inner_body(body, e, self._inner)
        msg_id = self.mirrors.identity(e)
        state[operation_id_of(msg_id)] = Execution(
            msg_id=msg_id,
            client_id=e.client_id,
            principal=body.principal_identity,
            agent=body.agent_identity,
            chain=body.delegation_chain,
            operation_schema=body.operation_schema,
            hub_ts=e.hub_ts,
        )

    def show(self, state: Table[bytes, Execution], as_of: int) -> dict[bytes, Execution]:
        return dict(sorted(self.records(state)))


class ReferencesFold(Compact[set[bytes], frozenset[bytes]]):
    """Fold of the auth_refs in the chains of a log, which a reader resolves before it folds operations."""

    name = "operation.references"
    schemas = SchemaSet([DELEGATED])
    SUMMARY = set[bytes]

    def start(self) -> set[bytes]:
        return set()

    def add(self, into: set[bytes], event: Typed[DelegatedExecution]) -> None:
        into.update(event.body.delegation_chain)

    def absorb(self, into: set[bytes], other: set[bytes]) -> None:
        into |= other

    def show(self, state: set[bytes], as_of: int) -> frozenset[bytes]:
        return frozenset(state)


def _all_operations() -> SchemaSet:
    """Return the schemas of all operations. Imported here because those modules import this one."""
    from veen.overlays.operations.schemas import EMBEDDABLE

    return EMBEDDABLE


STATES: Final = (
    StateTable.of(
        DelegationFold.name,
        Execution,
        {"operation_id": "hex"},
        lambda view: view,
        about="operations that agents have executed for principals",
        times=("hub_ts",),
    ),
)


B = TypeVar("B", bound=Body)
K = TypeVar("K")
R = TypeVar("R")
V = TypeVar("V")


class Act(NamedTuple, Generic[B]):
    """One operation and the identities for which its sender speaks."""

    event: Event
    body: B
    msg_id: bytes  # of the original, where the event is a copy (D-85)
    operation_id: bytes
    identities: Voice  # of the sender at this place; delegated: the principal alone
    is_delegated: bool

    def check_speaker(self, identity: bytes, code: str, field: str) -> None:
        """Raise Violation unless the sender may speak for `identity`, the value of `field`."""
        if identity not in self.identities:
            raise Violation(code, f"the sender does not speak for {field} {identity.hex()}")


class ActingFold(Speaking[K, R, V]):
    """Base of a fold of operations. The overlay writes `act` and `show`, and `own_settings` if it has settings."""

    version = 2  # client keys are bound to principals by statements of the stream (D-179)

    def __init__(
        self,
        *,
        speakers: Speakers = KEYS_ONLY,
        caps: Caps = NO_CAPS,
        mirrors: Mirrors = NO_MIRRORS,
        speaks: bool = True,
        realms: Collection[bytes] = (),
    ) -> None:
        super().__init__(speaks=speaks, realms=realms, mirrors=mirrors)
        self.speakers, self.caps = speakers, caps

    def own_settings(self) -> Any:
        return None

    def settings(self) -> Any:
        return [self.speakers.settings(), self.caps.settings(), self.own_settings(), *self.voice_settings()]

    @abstractmethod
    def act(self, state: Table[K, R], act: Act[Any]) -> None:
        """Apply one operation. Check first and write then, as in `Ordered.step`."""

    def step(self, state: Table[K, R], event: Typed[Any]) -> None:
        e, body = event
        if type(body) in STATEMENT_TYPES:
            self.take_statement(state, event)
            return
        is_delegated = type(body) is DelegatedExecution
        if is_delegated and body.operation_schema not in self.schemas:
            return  # an operation of another profile
        others = self.speakers.others(e.client_id, e.ts)
        # Most streams have no binding, and most folds are of them.
        voice = voice_of_key(e.client_id, others) if state.get(ANY_BINDING) is None else self.voice(state, e, others)  # type: ignore[arg-type]  # a key of `Speaking`
        if is_delegated:
            check_chain(body, e, self.caps, voice)
            voice = Voice(body.principal_identity)
            body = inner_body(body, e, self.schemas)
        msg_id = self.mirrors.identity(e)
        self.act(state, Act(e, body, msg_id, operation_id_of(msg_id), voice, is_delegated))
