"""What the engines fold: one small value per matching event, made where the event was opened.

Its contents are already what the result needs of it: the canonical bytes of its row, or its group and what it adds to
the metrics. The same function makes it in this process and on an executor, so the engines cannot differ.
"""

from typing import NamedTuple

from veen.core.event import Order
from veen.core.hubkeys import HubIdentity
from veen.pipeline.query import canonical
from veen.pipeline.query.aggregate import Partial, group_key
from veen.pipeline.query.descriptor import QueryDescriptor
from veen.pipeline.query.evidence import signature_fault
from veen.pipeline.query.opening import Taken, Witness
from veen.pipeline.query.rows import project

__all__ = ["Item", "Shaper"]


class Item(NamedTuple):
    """One matching event."""

    order: Order
    label: bytes
    row: bytes  # canonical JSON of the row; of an aggregate, the group key
    partial: Partial | None  # of an aggregate, what the event adds
    witness: Witness
    fault: str | None  # why its signatures do not hold; only judged in mode "full"

    @property
    def stream_seq(self) -> int:
        return self.order[3]

    @property
    def leaf_hash(self) -> bytes:
        return self.order[4]


class Shaper:
    """Makes items for one query."""

    def __init__(self, descriptor: QueryDescriptor, identity: HubIdentity | None) -> None:
        self._descriptor = descriptor
        self._identity = identity
        self._judges = descriptor.evidence.mode == "full"  # then every event is verified, wherever it was opened

    def item(self, taken: Taken) -> Item:
        record, aggregate = taken.record, self._descriptor.aggregate
        partial = None
        if aggregate is None:
            row = canonical.encode(project(self._descriptor, record))
        else:
            row = group_key(aggregate.group_by, record)
            partial = Partial.empty(aggregate)
            partial.add(aggregate, record)
        return Item(
            order=record.order,
            label=record.label,
            row=row,
            partial=partial,
            witness=taken.witness,
            fault=signature_fault(self._identity, taken.witness) if self._judges else None,
        )
