"""recovery.request.v1, recovery.approval.v1, recovery.execution.v1: an identity gets a new key (001 spec-3 §8, D-140).

Who guards whom, and how many guardians must approve, is configuration (`Guards`) and part of what decides the state. A
guardian's latest decision before the execution counts. An execution remaps the target from its position on,
transitively; it closes all requests for the target, so another recovery of it needs a new request and new approvals.

    RECOV.SELF        the new identity is the old one
    RECOV.CYCLE       the new identity was itself replaced by the target
    RECOV.DECISION    the decision is neither approve nor reject
    RECOV.SPEAKER     the sender does not speak for approver_identity (D-179)
    RECOV.GUARDIAN    the approver is no guardian of the target
    RECOV.NO_REQUEST  nobody asked for this recovery
    RECOV.LATE        the approval comes after the execution
    RECOV.EXECUTOR    the sender may not execute recoveries (R3)
    RECOV.DONE        the recovery was executed, and there is no new request
    RECOV.REFERENCE   a reference is repeated, or is no standing, matching approval from before (R1, R2)
    RECOV.THRESHOLD   too few guardians approve
    RECOV.SUPERSEDED  the sender or the approver was replaced by a recovery before
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, NamedTuple, TypeVar

from veen.core.wire import Anything, Bytes32, Length, Uint
from veen.overlays.framework.fold import NO_MIRRORS, Mirrors
from veen.overlays.framework.ordered import Table
from veen.overlays.framework.schema import Draft, InvalidBody, Schema, SchemaSet, Violation
from veen.overlays.framework.speaking import SpeakingKey, SpeakingRecord
from veen.overlays.framework.state import state_record
from veen.overlays.framework.typed_table import StateTable
from veen.overlays.operations.common import KEYS_ONLY, MAX_LIST, Operation, Speakers, Speaks
from veen.overlays.operations.delegation import DELEGATED, NO_CAPS, Act, ActingFold, Caps

_DECISIONS: Final = ("approve", "reject")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryRequest(Operation, kind="recovery.request.v1"):
    """The request for a successor of an identity."""

    target_identity: Bytes32
    requested_new_identity: Bytes32
    reason: str | None = None
    request_time: Uint | None = None
    metadata: Anything | None = None

    def _check(self) -> None:
        if self.target_identity == self.requested_new_identity:
            raise InvalidBody("RECOV.SELF", "the new identity must differ from the target")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryApproval(Operation, kind="recovery.approval.v1"):
    """The decision of a guardian about a request."""

    target_identity: Bytes32
    requested_new_identity: Bytes32
    approver_identity: Bytes32
    policy_group_id: Bytes32 | None = None
    decision: str
    decision_time: Uint | None = None
    parent_operation_id: Bytes32 | None = None
    metadata: Anything | None = None

    def _check(self) -> None:
        if self.decision not in _DECISIONS:
            raise InvalidBody("RECOV.DECISION", "decision must be approve or reject")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryExecution(Operation, kind="recovery.execution.v1"):
    """The replacement of an identity, with its approvals."""

    target_identity: Bytes32
    new_identity: Bytes32
    applied_time: Uint | None = None
    approval_references: Annotated[tuple[Bytes32, ...], Length(0, MAX_LIST)]  # operation_ids or msg_ids (D-89)
    metadata: Anything | None = None


REQUEST: Final = Schema(RecoveryRequest.KIND, RecoveryRequest)
APPROVAL: Final = Schema(RecoveryApproval.KIND, RecoveryApproval)
EXECUTION: Final = Schema(RecoveryExecution.KIND, RecoveryExecution)


def request(target: bytes, new: bytes, **fields: Any) -> Draft:
    return REQUEST.draft(RecoveryRequest(target_identity=target, requested_new_identity=new, **fields))


def approve(target: bytes, new: bytes, approver: bytes, decision: str = "approve", **fields: Any) -> Draft:
    body = RecoveryApproval(
        target_identity=target, requested_new_identity=new, approver_identity=approver, decision=decision, **fields
    )
    return APPROVAL.draft(body)


def execute(target: bytes, new: bytes, approvals: Iterable[bytes], **fields: Any) -> Draft:
    body = RecoveryExecution(target_identity=target, new_identity=new, approval_references=tuple(approvals), **fields)
    return EXECUTION.draft(body)


class Guarded(NamedTuple):
    """The guardians of an identity, and the number of approvals that a recovery needs."""

    guardians: frozenset[bytes]
    threshold: int


@dataclass(frozen=True, slots=True)
class Guards:
    """The policy of a domain: guardians by target, those of all other targets, and the executors (None: anyone)."""

    by_target: Mapping[bytes, Guarded]
    others: Guarded | None = None
    executors: frozenset[bytes] | None = None

    @classmethod
    def of(
        cls,
        guardians: Collection[bytes] = (),
        threshold: int = 1,
        *,
        by_target: Mapping[bytes, tuple[Collection[bytes], int]] | None = None,
        executors: Collection[bytes] | None = None,
    ) -> "Guards":
        """Return a policy. Raise ValueError for a threshold below 1, with which nobody would have to approve."""
        named = {target: _to_guarded(*policy) for target, policy in (by_target or {}).items()}
        others = _to_guarded(guardians, threshold) if guardians else None
        return cls(named, others, None if executors is None else frozenset(executors))

    def guards_of(self, target: bytes) -> Guarded | None:
        return self.by_target.get(target, self.others)

    def settings(self) -> Any:
        named = [
            [target, sorted(policy.guardians), policy.threshold] for target, policy in sorted(self.by_target.items())
        ]
        others = None if self.others is None else [sorted(self.others.guardians), self.others.threshold]
        return [named, others, None if self.executors is None else sorted(self.executors)]


def _to_guarded(guardians: Collection[bytes], threshold: int) -> Guarded:
    if threshold < 1:
        raise ValueError("at least one guardian has to approve a recovery")
    return Guarded(frozenset(guardians), threshold)


NO_GUARDS: Final = Guards.of()


@state_record
class Requested:
    """The latest request for a recovery."""

    requested_by: bytes  # operation_id
    is_open: bool = True


@state_record
class Approval:
    """The latest decision of a guardian on the open request."""

    approval_id: bytes  # operation_id
    approval_msg_id: bytes
    decision: str


@state_record
class Remapped:
    """Result of an execution."""

    executed_by: bytes  # operation_id
    new_identity: bytes
    guardians: tuple[bytes, ...]
    hub_ts: int
    ts: int  # ts* of the execution: from then on


@state_record
class Asked:
    """The identities requested as the successor of a target."""

    asked_for: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Recoveries:
    """Requests, decisions, and replaced identities with their successors."""

    requests: Mapping[tuple[bytes, bytes], Requested]  # by (target, new)
    decisions: Mapping[tuple[bytes, bytes, bytes], Approval]  # by (target, new, guardian), of the latest request
    remapped: Mapping[bytes, Remapped]  # by target

    def current(self, identity: bytes) -> bytes:
        """Return the present successor of an identity, through all recoveries."""
        while (step := self.remapped.get(identity)) is not None:
            identity = step.new_identity
        return identity

    def speaks(self) -> tuple[Speaks, ...]:
        """Return the successors that speak for recovered identities, from each recovery on, for other folds."""
        return tuple(Speaks(self.current(target), target, step.ts) for target, step in sorted(self.remapped.items()))


_Sortable = TypeVar("_Sortable", bytes, tuple[bytes, bytes], tuple[bytes, bytes, bytes])
_T = TypeVar("_T")
_Key = tuple[str, bytes, bytes, bytes]
_Record = Requested | Approval | Remapped | Asked


class RecoveryFold(ActingFold[_Key, _Record, Recoveries]):
    """Fold of recoveries under the policy `guards`. Without guardians no recovery succeeds."""

    name = "operation.recovery"
    schemas = SchemaSet([REQUEST, APPROVAL, EXECUTION, DELEGATED])
    TABLE = dict[_Key | SpeakingKey, _Record | SpeakingRecord]

    def __init__(
        self,
        *,
        guards: Guards = NO_GUARDS,
        speakers: Speakers = KEYS_ONLY,
        caps: Caps = NO_CAPS,
        mirrors: Mirrors = NO_MIRRORS,
        speaks: bool = True,
        realms: Collection[bytes] = (),
    ) -> None:
        super().__init__(speakers=speakers, caps=caps, mirrors=mirrors, speaks=speaks, realms=realms)
        self._guards = guards

    def own_settings(self) -> Any:
        return self._guards.settings()

    def act(self, state: Table[_Key, _Record], act: Act[Any]) -> None:
        # A key that is bound acts as its principal: it does not escape a recovery by being new itself.
        for identity in act.identities.stored:
            if _step(state, identity) is None:
                break
        else:
            raise Violation("RECOV.SUPERSEDED", "the sender was replaced by a recovery")
        if isinstance(act.body, RecoveryRequest):
            self._request(state, act)
        elif isinstance(act.body, RecoveryApproval):
            self._approve(state, act)
        else:
            self._execute(state, act)

    def _request(self, state: Table[_Key, _Record], act: Act[RecoveryRequest]) -> None:
        target, new = act.body.target_identity, act.body.requested_new_identity
        _check_cycle(state, target, new)
        before = state.get(("request", target, new, b""))
        if isinstance(before, Requested) and before.is_open:
            return  # the request stands, and so do the decisions on it
        state["request", target, new, b""] = Requested(requested_by=act.operation_id)
        asked = state.get(("asked", target, b"", b""))
        names = asked.asked_for if isinstance(asked, Asked) else ()
        state["asked", target, b"", b""] = Asked(asked_for=tuple(sorted({*names, new})))
        if before is None:
            return  # nobody could decide before anybody asked
        guarded = self._guards.guards_of(target)
        for guardian in guarded.guardians if guarded is not None else ():
            if ("decision", target, new, guardian) in state:
                del state["decision", target, new, guardian]

    def _approve(self, state: Table[_Key, _Record], act: Act[RecoveryApproval]) -> None:
        body = act.body
        target, new = body.target_identity, body.requested_new_identity
        act.check_speaker(body.approver_identity, "RECOV.SPEAKER", "approver_identity")
        guardian = self._guardian(state, target, body.approver_identity)
        asked = state.get(("request", target, new, b""))
        if not isinstance(asked, Requested):
            raise Violation("RECOV.NO_REQUEST", "this recovery was not requested before")
        if not asked.is_open:
            raise Violation("RECOV.LATE", "the target was recovered before this decision, and there is no new request")
        state["decision", target, new, guardian] = Approval(
            approval_id=act.operation_id, approval_msg_id=act.msg_id, decision=body.decision
        )

    def _guardian(self, state: Table[_Key, _Record], target: bytes, approver: bytes) -> bytes:
        """Return the configured guardian that the approver is or has replaced. Raise Violation if there is none."""
        if _step(state, approver) is not None:
            raise Violation("RECOV.SUPERSEDED", "the approver was replaced by a recovery")
        guarded = self._guards.guards_of(target)
        for guardian in sorted(guarded.guardians) if guarded is not None else ():
            if _current(state, guardian) == approver:
                return guardian
        raise Violation("RECOV.GUARDIAN", "the approver is not a guardian of the target")

    def _execute(self, state: Table[_Key, _Record], act: Act[RecoveryExecution]) -> None:
        e, body = act.event, act.body
        target, new = body.target_identity, body.new_identity
        executors = self._guards.executors
        if executors is not None and not act.identities.any_of(executors):
            raise Violation("RECOV.EXECUTOR", "the sender may not execute recoveries")
        asked = state.get(("request", target, new, b""))
        if not isinstance(asked, Requested):
            raise Violation("RECOV.NO_REQUEST", "this recovery was not requested before")
        if not asked.is_open:
            raise Violation("RECOV.DONE", "the target was recovered before, and there is no new request")
        _check_cycle(state, target, new)
        guarded = self._guards.guards_of(target)
        approvals = self._find_approvers(state, body, guarded)
        if guarded is None or len(approvals) < guarded.threshold:
            needed = "guardians are configured for it" if guarded is None else f"{guarded.threshold} are needed"
            raise Violation("RECOV.THRESHOLD", f"{len(approvals)} guardians of the target approve; {needed}")
        names = state["asked", target, b"", b""]
        for name in names.asked_for if isinstance(names, Asked) else ():
            request = state["request", target, name, b""]
            if isinstance(request, Requested) and request.is_open:
                state["request", target, name, b""] = Requested(requested_by=request.requested_by, is_open=False)
        state["remap", target, b"", b""] = Remapped(
            executed_by=act.operation_id,
            new_identity=new,
            guardians=approvals,
            hub_ts=e.hub_ts,
            ts=e.ts,
        )

    @staticmethod
    def _find_approvers(
        state: Table[_Key, _Record], body: RecoveryExecution, guarded: Guarded | None
    ) -> tuple[bytes, ...]:
        """Return the guardians whose valid approvals the references name. Raise Violation for other references."""
        standing: dict[bytes, bytes] = {}  # operation_id and msg_id → guardian
        for guardian in guarded.guardians if guarded is not None else ():
            decision = state.get(("decision", body.target_identity, body.new_identity, guardian))
            if isinstance(decision, Approval) and decision.decision == "approve":
                standing[decision.approval_id] = standing[decision.approval_msg_id] = guardian
        approving: set[bytes] = set()
        for reference in body.approval_references:
            guardian_of = standing.get(reference)
            if guardian_of is None:
                raise Violation("RECOV.REFERENCE", f"{reference.hex()} is not a valid approval of this recovery")
            if guardian_of in approving:
                raise Violation("RECOV.REFERENCE", f"{reference.hex()} repeats an approval")
            approving.add(guardian_of)
        return tuple(sorted(approving))

    def show(self, state: Table[_Key, _Record], as_of: int) -> Recoveries:
        requests: dict[tuple[bytes, bytes], Requested] = {}
        decisions: dict[tuple[bytes, bytes, bytes], Approval] = {}
        remapped: dict[bytes, Remapped] = {}
        for (_, target, new, guardian), record in self.records(state):
            if isinstance(record, Requested):
                requests[target, new] = record
            elif isinstance(record, Approval):
                decisions[target, new, guardian] = record
            elif isinstance(record, Remapped):
                remapped[target] = record
        return Recoveries(_by_key(requests), _by_key(decisions), _by_key(remapped))


def _step(state: Table[_Key, _Record], identity: bytes) -> bytes | None:
    record = state.get(("remap", identity, b"", b""))
    return record.new_identity if isinstance(record, Remapped) else None


def _current(state: Table[_Key, _Record], identity: bytes) -> bytes:
    """Follow the remaps of an identity. They have no cycle: `_check_cycle` refuses what would close one."""
    while (new := _step(state, identity)) is not None:
        identity = new
    return identity


def _check_cycle(state: Table[_Key, _Record], target: bytes, new: bytes) -> None:
    identity: bytes | None = new
    while identity is not None:
        if identity == target:
            raise Violation("RECOV.CYCLE", "the new identity was itself replaced by the target")
        identity = _step(state, identity)


def _by_key(records: dict[_Sortable, _T]) -> dict[_Sortable, _T]:
    return {key: records[key] for key in sorted(records)}


STATES: Final = (
    StateTable.of(
        RecoveryFold.name,
        Requested,
        {"target_identity": "hex", "new_identity": "hex"},
        lambda view: view.requests,
        part="requests",
        about="recoveries that were asked for",
    ),
    StateTable.of(
        RecoveryFold.name,
        Approval,
        {"target_identity": "hex", "new_identity": "hex", "guardian": "hex"},
        lambda view: view.decisions,
        part="decisions",
        about="what guardians have decided on the latest request",
    ),
    StateTable.of(
        RecoveryFold.name,
        Remapped,
        {"target_identity": "hex"},
        lambda view: view.remapped,
        part="remapped",
        about="identities that were replaced",
        times=("hub_ts", "ts"),
    ),
)
