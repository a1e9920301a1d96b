"""agreement.definition.v1 and agreement.confirmation.v1: contracts between parties (001 spec-3 §5, D-93, D-158).

A version is active at a time if all its parties' latest decisions are "accept" and the time lies within effective_time
and expiry_time; of several active versions the highest counts. The fold of any prefix of the log gives the state there.

    AGREE.PARTIES    the parties are none, or one is listed twice
    AGREE.TIMES      it would expire before it is effective
    AGREE.TERMS      terms_attachment_root is not the root of the attachments of the message
    AGREE.DUPLICATE  this version is defined already
    AGREE.VERSION    a higher version is defined already
    AGREE.OWNER      the sender neither defined nor is a party of the version before
    AGREE.DECISION   the decision is none of accept, reject, withdraw
    AGREE.UNKNOWN    there is no definition of this version
    AGREE.PARTY      the party is not listed in the definition
    AGREE.SPEAKER    the sender does not speak for party_identity (D-179)
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from veen.core.wire import Anything, Bytes32, Length, Uint
from veen.overlays.framework.ordered import Table
from veen.overlays.framework.schema import Draft, InvalidBody, Schema, SchemaSet, Violation
from veen.overlays.framework.speaking import SpeakingKey, SpeakingRecord
from veen.overlays.framework.state import Free, state_record
from veen.overlays.framework.typed_table import StateTable, TypedColumn
from veen.overlays.operations.common import MAX_LIST, Operation
from veen.overlays.operations.delegation import DELEGATED, Act, ActingFold

DECISIONS: Final = ("accept", "reject", "withdraw")
MAX_STEP: Final = 1 << 40  # from one version to the next: room for times in milliseconds, and nobody takes the last one


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreementDefinition(Operation, kind="agreement.definition.v1"):
    """A version of an agreement."""

    agreement_id: Bytes32
    version: Uint
    terms_hash: Bytes32
    terms_attachment_root: Bytes32 | None = None
    parties: Annotated[tuple[Bytes32, ...], Length(0, MAX_LIST)]
    effective_time: Uint | None = None
    expiry_time: Uint | None = None
    metadata: Anything | None = None

    def _check(self) -> None:
        if not self.parties or len(set(self.parties)) < len(self.parties):
            raise InvalidBody("AGREE.PARTIES", "parties must not be empty or contain an identity twice")
        if self.expiry_time is not None and (self.effective_time or 0) >= self.expiry_time:
            raise InvalidBody("AGREE.TIMES", "effective_time must be before expiry_time")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgreementConfirmation(Operation, kind="agreement.confirmation.v1"):
    """The decision of a party about a version."""

    agreement_id: Bytes32
    version: Uint
    party_identity: Bytes32
    decision: str
    decision_time: Uint | None = None
    parent_operation_id: Bytes32 | None = None
    metadata: Anything | None = None

    def _check(self) -> None:
        if self.decision not in DECISIONS:
            raise InvalidBody("AGREE.DECISION", "decision must be accept, reject or withdraw")


DEFINITION: Final = Schema(AgreementDefinition.KIND, AgreementDefinition)
CONFIRMATION: Final = Schema(AgreementConfirmation.KIND, AgreementConfirmation)


def define(agreement_id: bytes, version: int, *, terms_hash: bytes, parties: Iterable[bytes], **fields: Any) -> Draft:
    """Build a draft. `fields` are the other fields of AgreementDefinition."""
    body = AgreementDefinition(
        agreement_id=agreement_id, version=version, terms_hash=terms_hash, parties=tuple(parties), **fields
    )
    return DEFINITION.draft(body)


def confirm(agreement_id: bytes, version: int, party: bytes, decision: str, **fields: Any) -> Draft:
    """Build a draft. `fields` are the other fields of AgreementConfirmation."""
    body = AgreementConfirmation(
        agreement_id=agreement_id, version=version, party_identity=party, decision=decision, **fields
    )
    return CONFIRMATION.draft(body)


@state_record
class Defined:
    """A version of an agreement, from its definition."""

    operation_id: bytes
    definers: frozenset[bytes]  # for whom the sender of the definition speaks
    terms_hash: bytes
    terms_attachment_root: bytes | None = None
    parties: tuple[bytes, ...]
    effective_time: int | None = None
    expiry_time: int | None = None
    metadata: Free | None = None

    def is_within(self, at: int) -> bool:
        return (self.effective_time or 0) <= at and (self.expiry_time is None or at < self.expiry_time)


@state_record
class Decision:
    """The latest decision of a party on a version (M1)."""

    decided_by: bytes  # operation_id
    decision: str
    decision_time: int | None = None
    hub_ts: int


@state_record
class Highest:
    """The highest defined version of an agreement."""

    highest_version: int


@dataclass(frozen=True, slots=True)
class Agreements:
    """All versions and decisions, and the versions active at `as_of`."""

    definitions: Mapping[tuple[bytes, int], Defined]  # by (agreement_id, version)
    decisions: Mapping[tuple[bytes, int, bytes], Decision]  # by (agreement_id, version, party)
    active: Mapping[bytes, int]  # agreement_id → version

    def is_accepted(self, agreement_id: bytes, version: int) -> bool:
        parties = self.definitions[agreement_id, version].parties
        latest = (self.decisions.get((agreement_id, version, party)) for party in parties)
        return all(confirmation is not None and confirmation.decision == "accept" for confirmation in latest)

    def active_version(self, agreement_id: bytes, at: int) -> int | None:
        """Return the highest active version at a time (D-158); None if no version is active."""
        versions = (
            version
            for (known_id, version), defined in self.definitions.items()
            if known_id == agreement_id and defined.is_within(at) and self.is_accepted(known_id, version)
        )
        return max(versions, default=None)


_Key = tuple[str, bytes, int, bytes]
_Record = Defined | Decision | Highest


class AgreementFold(ActingFold[_Key, _Record, Agreements]):
    """Fold of agreements and their parties' decisions."""

    name = "operation.agreement"
    schemas = SchemaSet([DEFINITION, CONFIRMATION, DELEGATED])
    TABLE = dict[_Key | SpeakingKey, _Record | SpeakingRecord]

    def act(self, state: Table[_Key, _Record], act: Act[Any]) -> None:
        if isinstance(act.body, AgreementDefinition):
            self._define(state, act)
        else:
            self._confirm(state, act)

    def _define(self, state: Table[_Key, _Record], act: Act[AgreementDefinition]) -> None:
        body, att_root = act.body, act.event.hdr.att_root
        if None not in (att_root, body.terms_attachment_root) and att_root != body.terms_attachment_root:
            raise Violation("AGREE.TERMS", "terms_attachment_root is not the root of the attachments of the message")
        top = state.get(("highest", body.agreement_id, 0, b""))
        if isinstance(top, Highest):
            if ("definition", body.agreement_id, body.version, b"") in state:
                raise Violation("AGREE.DUPLICATE", f"version {body.version} is defined already")
            if body.version < top.highest_version:
                raise Violation("AGREE.VERSION", f"version {top.highest_version} is defined already")
            if body.version > top.highest_version + MAX_STEP:
                raise Violation("AGREE.VERSION", f"version {body.version} is too far above {top.highest_version}")
            before = state["definition", body.agreement_id, top.highest_version, b""]
            if isinstance(before, Defined) and not act.identities.any_of((*before.definers, *before.parties)):
                raise Violation("AGREE.OWNER", "the sender neither defined nor is a party of the version before")
        state["highest", body.agreement_id, 0, b""] = Highest(highest_version=body.version)
        state["definition", body.agreement_id, body.version, b""] = Defined(
            operation_id=act.operation_id,
            definers=act.identities.stored,
            terms_hash=body.terms_hash,
            terms_attachment_root=body.terms_attachment_root,
            parties=body.parties,
            effective_time=body.effective_time,
            expiry_time=body.expiry_time,
            metadata=None if body.metadata is None else Free(body.metadata),
        )

    def _confirm(self, state: Table[_Key, _Record], act: Act[AgreementConfirmation]) -> None:
        body = act.body
        defined = state.get(("definition", body.agreement_id, body.version, b""))
        if not isinstance(defined, Defined):
            raise Violation("AGREE.UNKNOWN", f"version {body.version} of this agreement is not defined")
        if body.party_identity not in defined.parties:
            raise Violation("AGREE.PARTY", "the definition does not list this party")
        act.check_speaker(body.party_identity, "AGREE.SPEAKER", "party_identity")
        state["decision", body.agreement_id, body.version, body.party_identity] = Decision(
            decided_by=act.operation_id,
            decision=body.decision,
            decision_time=body.decision_time,
            hub_ts=act.event.hub_ts,
        )

    def show(self, state: Table[_Key, _Record], as_of: int) -> Agreements:
        definitions: dict[tuple[bytes, int], Defined] = {}
        decisions: dict[tuple[bytes, int, bytes], Decision] = {}
        for (_, agreement_id, version, party), record in self.records(state):
            if isinstance(record, Defined):
                definitions[agreement_id, version] = record
            elif isinstance(record, Decision):
                decisions[agreement_id, version, party] = record
        definitions = {key: definitions[key] for key in sorted(definitions)}
        decisions = {key: decisions[key] for key in sorted(decisions)}
        shown = Agreements(definitions, decisions, {})
        active = {  # by rising version: the highest is the last
            agreement_id: version
            for (agreement_id, version), defined in definitions.items()
            if defined.is_within(as_of) and shown.is_accepted(agreement_id, version)
        }
        return Agreements(definitions, decisions, active)


STATES: Final = (
    StateTable.of(
        AgreementFold.name,
        Defined,
        {"agreement_id": "hex", "version": "integer"},
        lambda view: view.definitions,
        part="definitions",
        about="agreements by version",
        times=("effective_time", "expiry_time"),
    ),
    StateTable.of(
        AgreementFold.name,
        Decision,
        {"agreement_id": "hex", "version": "integer", "party": "hex"},
        lambda view: view.decisions,
        part="decisions",
        about="what parties have decided",
        times=("decision_time", "hub_ts"),
    ),
    StateTable(
        fold=AgreementFold.name,
        part="active",
        about="the version of each agreement that is in force",
        columns=(
            TypedColumn("agreement_id", "hex", "the agreement"),
            TypedColumn("version", "integer", "the highest that all parties accepted and that is in its time"),
        ),
        key=("agreement_id",),
        rows=lambda view: ({"agreement_id": key, "version": version} for key, version in view.active.items()),
    ),
)
