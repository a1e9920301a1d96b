"""Queue: items in stream order, delivered at least once to every group of consumers (spec §11.4, D-84).

An item is pending for a group until the group acknowledges it by its msg_id; who has the receipt of an item knows that
no reader can miss it. nack gives an item back: it stays at its place in the order, and how often that happened is there
for everyone to see. Two consumers of a group may both take an item, as at-least-once means; the second ack says nothing
new. What breaks a rule changes nothing and is reported:

    QUEUE.UNKNOWN   ack or nack of something that is no item before it
    QUEUE.DONE      nack of an item that the group has acknowledged
    QUEUE.GROUP     a group that the queue does not have, where groups are configured
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

from veen.core.event import Order
from veen.core.hashing import Ht
from veen.core.wire import Anything, Bytes32, Choice
from veen.overlays.framework.args import Arg
from veen.overlays.framework.fold import NO_MIRRORS, Mirrors
from veen.overlays.framework.nouns import Noun, Verb
from veen.overlays.framework.ordered import Ordered, Table
from veen.overlays.framework.schema import Body, Draft, InvalidBody, Schema, SchemaSet, Typed, Violation
from veen.overlays.framework.state import Free
from veen.overlays.framework.typed_table import StateTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue(Body, kind="veen.queue.v1"):
    """An item, or the answer of a group to one: ack or nack."""

    op: Annotated[str, Choice("enqueue", "ack", "nack")]
    item: Anything | None = None  # free-form, but not null
    ref: Bytes32 | None = None  # msg_id of the enqueue
    group: str | None = None  # absent: the group without a name

    def _check(self) -> None:
        if self.op == "enqueue":
            if self.item is None or self.ref is not None or self.group is not None:
                raise InvalidBody("QUEUE.SHAPE", "enqueue needs an item, and has neither ref nor group")
        elif self.item is not None or self.ref is None:
            raise InvalidBody("QUEUE.SHAPE", "ack and nack need a ref, and have no item")


QUEUE: Final = Schema(Queue.KIND, Queue)


def enqueue(item: Any, *, expires_at: int | None = None) -> Draft:
    """Build an item. After `expires_at` it is no longer delivered."""
    return QUEUE.draft(Queue(op="enqueue", item=item), expires_at=expires_at)


def ack(msg_id: bytes, *, group: str = "") -> Draft:
    return QUEUE.draft(Queue(op="ack", ref=msg_id, group=group or None))


def nack(msg_id: bytes, *, group: str = "") -> Draft:
    return QUEUE.draft(Queue(op="nack", ref=msg_id, group=group or None))


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueItem:
    """An item and its position in the log."""

    order: Order
    value: Free
    client_id: bytes
    expires_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """The answers of a group to an item."""

    acked: bool
    nacks: int
    last_by: bytes  # client_id
    last_ts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingItem:
    """An item that a group has not acknowledged; `attempt` starts at 1 and grows with every nack."""

    msg_id: bytes
    value: Free
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueView:
    """The queue at one moment: deliverable items in stream order, and answers."""

    items: dict[bytes, QueueItem]  # by msg_id, in logical order
    deliveries: dict[tuple[str, bytes], Delivery]  # by group and msg_id

    def pending(self, group: str = "", *, max_attempts: int | None = None) -> list[PendingItem]:
        """Return the pending items of a group in stream order, without those that failed `max_attempts` times."""
        return [p for p in self._open(group) if max_attempts is None or p.attempt <= max_attempts]

    def dead(self, group: str = "", *, max_attempts: int) -> list[PendingItem]:
        """Return the items that failed `max_attempts` times, for a person to inspect."""
        return [p for p in self._open(group) if p.attempt > max_attempts]

    def share(self, group: str, consumer: str, consumers: Iterable[str], **kwargs: Any) -> list[PendingItem]:
        """Return the share of `pending` of one of several consumers, so that they rarely take the same item.

        Each item goes to the consumer with the highest hash: when one leaves, only its own items move.
        """
        others = sorted({*consumers, consumer})
        return [p for p in self.pending(group, **kwargs) if max(others, key=lambda c: _weight(c, p.msg_id)) == consumer]

    def _open(self, group: str) -> list[PendingItem]:
        items = []
        for msg_id, item in self.items.items():
            delivery = self.deliveries.get((group, msg_id))
            if delivery is None or not delivery.acked:
                nacks = 0 if delivery is None else delivery.nacks
                items.append(PendingItem(msg_id=msg_id, value=item.value, attempt=nacks + 1))
        return items


def _weight(consumer: str, msg_id: bytes) -> bytes:
    return Ht("veen/queue-share", msg_id + consumer.encode())


Key = bytes | tuple[str, bytes]  # an item, or a delivery to a group


class QueueFold(Ordered[Key, QueueItem | Delivery, QueueView]):
    """Fold of items and the answers of groups.

    With `groups`, these are all there are: an item that each of them acknowledged is forgotten, so the state is as
    large as the work that is left; what is said of it later is QUEUE.UNKNOWN. Without, a group may begin at any time,
    and all items stay.
    """

    name = "queue"
    schemas = SchemaSet([QUEUE])
    TABLE = dict[Key, QueueItem | Delivery]

    def __init__(self, *, mirrors: Mirrors = NO_MIRRORS, groups: Iterable[str] | None = None) -> None:
        super().__init__(mirrors=mirrors)
        self.groups = None if groups is None else frozenset(groups)

    def settings(self) -> frozenset[str] | None:
        return self.groups

    def step(self, state: Table[Key, QueueItem | Delivery], event: Typed[Queue]) -> None:
        e, body = event
        if body.op == "enqueue":
            identity = self.mirrors.identity(e)  # consumers refer to the original, wherever they saw the item
            state[identity] = QueueItem(
                order=e.order, value=Free(body.item), client_id=e.client_id, expires_at=e.hdr.expires_at
            )
            return
        assert body.ref is not None  # noqa: S101 - Queue._read refuses anything else
        group = body.group or ""
        if self.groups is not None and group not in self.groups:
            raise Violation("QUEUE.GROUP", f"the queue has no group {group!r}")
        previous = state.get((group, body.ref))
        delivery = previous if isinstance(previous, Delivery) else None
        acked = delivery is not None and delivery.acked
        if body.ref not in state:
            raise Violation("QUEUE.UNKNOWN", f"no item {body.ref.hex()}")
        if acked:
            if body.op == "nack":
                raise Violation("QUEUE.DONE", f"item {body.ref.hex()} has been acknowledged")
            return
        if delivery is None:
            delivery = Delivery(acked=False, nacks=0, last_by=e.client_id, last_ts=e.ts)
        nacks = delivery.nacks + (body.op == "nack")
        state[group, body.ref] = replace(
            delivery, acked=body.op == "ack", nacks=nacks, last_by=e.client_id, last_ts=e.ts
        )
        if self.groups is not None and all(_has_acked(state.get((g, body.ref))) for g in self.groups):
            del state[body.ref]
            for g in self.groups:
                del state[g, body.ref]

    def show(self, state: Table[Key, QueueItem | Delivery], as_of: int) -> QueueView:
        items: dict[bytes, QueueItem] = {}
        deliveries: dict[tuple[str, bytes], Delivery] = {}
        for key, record in state.items():
            if isinstance(record, Delivery):
                assert isinstance(key, tuple)  # noqa: S101 - keys and records come in pairs
                deliveries[key] = record
            elif record.expires_at is None or as_of <= record.expires_at:
                assert isinstance(key, bytes)  # noqa: S101 - as above
                items[key] = record
        in_order = dict(sorted(items.items(), key=lambda pair: pair[1].order))
        return QueueView(items=in_order, deliveries=deliveries)


def _has_acked(record: QueueItem | Delivery | None) -> bool:
    return isinstance(record, Delivery) and record.acked


STATES: Final = (
    StateTable.of(
        QueueFold.name,
        QueueItem,
        {"msg_id": "hex"},
        lambda view: view.items,
        part="items",
        about="items that may be delivered",
        times=("expires_at",),
    ),
    StateTable.of(
        QueueFold.name,
        Delivery,
        {"group": "text", "msg_id": "hex"},
        lambda view: view.deliveries,
        part="deliveries",
        about="what groups have said of items",
        times=("last_ts",),
    ),
)


def _answer(op: str, draft: Callable[..., Draft], help_: str, about: str) -> Verb:
    """Return a verb that says something of an item."""
    group = Arg(help="Group of consumers. Default: the group without a name.", default="")
    return Verb(
        name=op,
        help=help_,
        about=about,
        draft=draft,
        fixed={"op": op},
        args={"msg_id": Arg("reference"), "group": group},
        derive=lambda values: {"ref": values["msg_id"]},
        facts=("stream", "op", "ref", "group"),
    )


NOUNS: Final = {
    "queue": Noun(
        name="queue",
        about="Work items over a stream, each delivered at least once to every group of consumers.",
        fold=QueueFold,
        verbs=[
            Verb(
                name="push",
                help="Put an item at the end of the queue.",
                about='Put ITEM at the end of the queue in STREAM; "-" reads it from standard input.',
                examples=[
                    'veen queue push app/mail "write to Ann"',
                    """veen queue push app/mail '{"to": "ann@example.org"}' --format json --expires +2d""",
                ],
                draft=enqueue,
                args={
                    "item": Arg("value"),
                    "expires_at": Arg("time", "Time at which the item expires: a time, or +10m.", "--expires"),
                },
                facts=("stream", "item"),
                is_judged=False,
            ),
            _answer(
                "ack",
                ack,
                "Acknowledge an item.",
                "Acknowledge the item MSG_ID: it is not delivered to this group again.\n\nExit code 6 "
                "if that has no effect: there is no such item.",
            ),
            _answer(
                "nack",
                nack,
                "Give an item back.",
                "Give the item MSG_ID back: it keeps its place, and its count of attempts grows.\n\n"
                "Exit code 6 if that has no effect: there is no such item, or the group has acknowledged it.",
            ),
        ],
    )
}
