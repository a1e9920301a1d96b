"""CRDT0: registers, sets and counters that converge without coordination (001 spec-1 §25, D-88).

The value of a register or the element of a set may be large: it then travels as attachments, and att_root of the event
that wrote it commits to them (CRDT0.4). Registers and members keep that root; `check_provenance` recomputes it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple

from veen.core.errors import VerifyError
from veen.core.event import Order
from veen.core.hashing import H
from veen.core.sealing.ciphertext import att_root_of
from veen.core.wire import Bytes32, Length, Uint
from veen.overlays.framework.fold import Compact
from veen.overlays.framework.schema import Body, Draft, InvalidBody, Schema, SchemaSet, Typed
from veen.overlays.framework.spans import Additive, Spans
from veen.overlays.framework.typed_table import StateTable, TypedColumn

MAX_TOMBS: Final = 32_768  # more than fit into a body


@dataclass(frozen=True, slots=True, kw_only=True)
class LwwSet(Body, kind="crdt.lww.v1"):
    """A write of a register; the last one wins."""

    key: bytes
    ts: Uint
    value: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class OrSetOp(Body, kind="crdt.orset.v1"):
    """An operation on a set: an add has `id` and `elem`, a remove has `tomb` (D-88)."""

    id: Bytes32 | None = None
    elem: bytes | None = None
    tomb: Annotated[tuple[Bytes32, ...], Length(0, MAX_TOMBS)] | None = None

    def _check(self) -> None:
        adds = self.id is not None and self.elem is not None and self.tomb is None
        removes = self.id is None and self.elem is None and self.tomb is not None
        if not adds and not removes:
            raise InvalidBody("CRDT.ORSET", "an add has id and elem, a remove has tomb")


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterDelta(Body, kind="crdt.gcnt.v1"):
    """An increment of a counter that only grows."""

    shard: Bytes32
    delta: Uint


LWW: Final = Schema(LwwSet.KIND, LwwSet)
ORSET: Final = Schema(OrSetOp.KIND, OrSetOp)
GCNT: Final = Schema(CounterDelta.KIND, CounterDelta)


def lww_set(key: bytes, value: bytes, *, ts: int, expires_at: int | None = None) -> Draft:
    return LWW.draft(LwwSet(key=key, ts=ts, value=value), expires_at=expires_at)


def orset_add(elem: bytes, *, add_id: bytes, expires_at: int | None = None) -> Draft:
    """Build an add. `add_id` is unique for every add: 32 random bytes."""
    return ORSET.draft(OrSetOp(id=add_id, elem=elem), expires_at=expires_at)


def orset_remove(ids: Iterable[bytes]) -> Draft:
    """Build a removal of the adds that the remover has seen: the `ids` of a Member. Concurrent adds survive."""
    return ORSET.draft(OrSetOp(tomb=tuple(sorted(ids))))


def counter_add(shard: bytes, delta: int) -> Draft:
    """Build an increment. Each writer uses a shard of its own, such as its client_id."""
    return GCNT.draft(CounterDelta(shard=shard, delta=delta))


def check_provenance(att_root: bytes | None, ciphertexts: Sequence[bytes]) -> None:
    """Raise VerifyError unless these attachments are the ones that the writing event committed to (CRDT0.4)."""
    if att_root is None:
        raise VerifyError("the event commits to no attachments")
    if att_root_of([H(ciphertext) for ciphertext in ciphertexts]) != att_root:
        raise VerifyError("the attachments are not those of the event: att_root differs")


# --- LWW register -------------------------------------------------------------------------------------------


class Register(NamedTuple):
    """The winning write of a key: greatest by (ts, logical order, msg_id)."""

    ts: int
    order: Order
    msg_id: bytes
    value: bytes
    att_root: bytes | None
    expires_at: int | None


class LwwFold(Compact[dict[bytes, Register], dict[bytes, Register]]):
    """Fold of registers: the last write to each key."""

    name = "crdt.lww"
    schemas = SchemaSet([LWW])
    SUMMARY = dict[bytes, Register]

    def start(self) -> dict[bytes, Register]:
        return {}

    def add(self, into: dict[bytes, Register], event: Typed[LwwSet]) -> None:
        e, body = event
        previous = into.get(body.key)
        if previous is None or (body.ts, e.order, e.leaf_hash) > previous[:3]:
            into[body.key] = Register(body.ts, e.order, e.leaf_hash, body.value, e.hdr.att_root, e.hdr.expires_at)

    def absorb(self, into: dict[bytes, Register], other: dict[bytes, Register]) -> None:
        for key, register in other.items():
            previous = into.get(key)
            if previous is None or register[:3] > previous[:3]:
                into[key] = register

    def show(self, state: dict[bytes, Register], as_of: int) -> dict[bytes, Register]:
        return {key: register for key, register in state.items() if _is_live(register.expires_at, as_of)}


# --- OR-set -------------------------------------------------------------------------------------------------


class Add(NamedTuple):
    """One add. If two adds share an id, both are kept until a tomb contains it."""

    order: Order
    msg_id: bytes
    elem: bytes
    att_root: bytes | None
    expires_at: int | None


class OrSetState(NamedTuple):
    adds: dict[bytes, tuple[Add, ...]]  # by id, of those in no tomb; sorted
    tombs: set[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A present element, with its adds that are in no tomb."""

    ids: tuple[bytes, ...]
    msg_ids: tuple[bytes, ...]
    att_roots: tuple[bytes, ...]


class OrSetFold(Compact[OrSetState, dict[bytes, Member]]):
    """Fold of a set. An element is present if an add of it is in no tomb, before or after it (D-88)."""

    name = "crdt.orset"
    schemas = SchemaSet([ORSET])
    SUMMARY = OrSetState

    def start(self) -> OrSetState:
        return OrSetState({}, set())

    def add(self, into: OrSetState, event: Typed[OrSetOp]) -> None:
        e, body = event
        if body.tomb is not None:
            into.tombs.update(body.tomb)
            for add_id in body.tomb:
                into.adds.pop(add_id, None)
        elif body.id is not None and body.elem is not None and body.id not in into.tombs:
            add = Add(e.order, e.leaf_hash, body.elem, e.hdr.att_root, e.hdr.expires_at)
            previous = into.adds.get(body.id)
            into.adds[body.id] = (add,) if previous is None else _union(previous, (add,))

    def absorb(self, into: OrSetState, other: OrSetState) -> None:
        for add_id in other.tombs:
            into.adds.pop(add_id, None)
        into.tombs.update(other.tombs)
        for add_id, adds in other.adds.items():
            if add_id not in into.tombs:
                previous = into.adds.get(add_id)
                into.adds[add_id] = adds if previous is None else _union(previous, adds)

    def show(self, state: OrSetState, as_of: int) -> dict[bytes, Member]:
        by_elem: dict[bytes, list[tuple[bytes, Add]]] = {}
        for add_id in sorted(state.adds):
            for add in state.adds[add_id]:
                if _is_live(add.expires_at, as_of):
                    by_elem.setdefault(add.elem, []).append((add_id, add))
        return {
            elem: Member(
                ids=tuple(dict.fromkeys(add_id for add_id, _ in adds)),
                msg_ids=tuple(add.msg_id for _, add in adds),
                att_roots=tuple(sorted({add.att_root for _, add in adds if add.att_root is not None})),
            )
            for elem, adds in by_elem.items()
        }


def _union(a: tuple[Add, ...], b: tuple[Add, ...]) -> tuple[Add, ...]:
    """Merge adds by msg_id: optional fields make whole adds unsortable, and one msg_id is one add."""
    return tuple(sorted({add.msg_id: add for add in (*a, *b)}.values(), key=lambda add: add[:3]))


# --- G-counter ----------------------------------------------------------------------------------------------


class CounterFold(Additive[dict[bytes, int], dict[bytes, int]]):
    """Fold of counters: the sum by shard. A count does not expire."""

    name = "crdt.gcnt"
    schemas = SchemaSet([GCNT])
    SUMMARY = Spans[dict[bytes, int]]

    def zero(self) -> dict[bytes, int]:
        return {}

    def piece(self, event: Typed[CounterDelta]) -> dict[bytes, int]:
        return {event.body.shard: event.body.delta}

    def plus(self, a: dict[bytes, int], b: dict[bytes, int]) -> dict[bytes, int]:
        if not a or not b:
            return a or b
        small, large = (a, b) if len(a) < len(b) else (b, a)
        total = dict(large)
        for shard, delta in small.items():
            total[shard] = total.get(shard, 0) + delta
        return total

    def total(self, value: dict[bytes, int], as_of: int) -> dict[bytes, int]:
        return value


def counter_value(shards: dict[bytes, int]) -> int:
    """Return the counter as one number."""
    return sum(shards.values())


def _is_live(expires_at: int | None, as_of: int) -> bool:
    return expires_at is None or as_of <= expires_at


STATES: Final = (
    StateTable.of(
        LwwFold.name,
        Register,
        {"key": "hex"},
        lambda view: view,
        about="the last write to each key",
        times=("expires_at",),
    ),
    StateTable.of(OrSetFold.name, Member, {"elem": "hex"}, lambda view: view, about="the elements that are present"),
    StateTable(
        fold=CounterFold.name,
        about="the sum of each shard",
        columns=(TypedColumn("shard", "hex", "who counts"), TypedColumn("count", "integer", "the sum of its deltas")),
        key=("shard",),
        rows=lambda view: ({"shard": shard, "count": count} for shard, count in view.items()),
    ),
)
