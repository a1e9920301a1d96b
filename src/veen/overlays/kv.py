"""KV: values by key, the last writer wins (spec §11.4, D-84).

Writes are ordered by (ts, logical order). A write without `ts` has the hub's: ts*, so that writers need no clock. A
value that expires (payload_hdr.expires_at) is gone afterwards; the value before it does not come back.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Final, NamedTuple

from veen.core.event import Order
from veen.core.wire import Anything, Choice, Uint
from veen.overlays.framework.args import Arg
from veen.overlays.framework.fold import Compact
from veen.overlays.framework.nouns import Noun, Verb
from veen.overlays.framework.schema import Body, Draft, InvalidBody, Schema, SchemaSet, Typed
from veen.overlays.framework.state import Free
from veen.overlays.framework.typed_table import StateTable


@dataclass(frozen=True, slots=True, kw_only=True)
class Kv(Body, kind="veen.kv.v1"):
    """A write of a key: its value or its deletion."""

    op: Annotated[str, Choice("put", "del")]
    key: str
    value: Anything | None = None  # free-form, but not null
    ts: Uint | None = None

    def _check(self) -> None:
        if (self.op == "put") != (self.value is not None):
            raise InvalidBody("KV.VALUE", "put needs a value, del has none")


KV: Final = Schema(Kv.KIND, Kv)


def put(key: str, value: Any, *, ts: int | None = None, expires_at: int | None = None) -> Draft:
    return KV.draft(Kv(op="put", key=key, value=value, ts=ts), expires_at=expires_at)


def delete(key: str, *, ts: int | None = None) -> Draft:
    return KV.draft(Kv(op="del", key=key, ts=ts))


class Write(NamedTuple):
    """The last write to a key. Tuples compare from the left, and no two events have the same order."""

    ts: int
    order: Order
    msg_id: bytes
    client_id: bytes
    value: Free | None  # None: deleted
    expires_at: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KvEntry:
    """The value of a key, and the message that set it."""

    value: Free
    ts: int
    msg_id: bytes
    client_id: bytes
    expires_at: int | None = None


class KvFold(Compact[dict[str, Write], dict[str, KvEntry]]):
    """Fold of the values by key."""

    name = "kv"
    schemas = SchemaSet([KV])
    SUMMARY = dict[str, Write]

    def start(self) -> dict[str, Write]:
        return {}

    def add(self, into: dict[str, Write], event: Typed[Kv]) -> None:
        e, body = event
        ts = e.ts if body.ts is None else body.ts
        previous = into.get(body.key)
        if previous is not None and previous.ts > ts:
            return
        value = None if body.value is None else Free(body.value)
        write = Write(ts, e.order, e.leaf_hash, e.client_id, value, e.hdr.expires_at)
        if previous is None or write[:3] > previous[:3]:
            into[body.key] = write

    def absorb(self, into: dict[str, Write], other: dict[str, Write]) -> None:
        if not into:
            into.update(other)
            return
        for key, write in other.items():
            previous = into.get(key)
            if previous is None or write[:3] > previous[:3]:
                into[key] = write

    def show(self, state: dict[str, Write], as_of: int) -> dict[str, KvEntry]:
        return {
            key: KvEntry(
                value=write.value,
                ts=write.ts,
                msg_id=write.msg_id,
                client_id=write.client_id,
                expires_at=write.expires_at,
            )
            for key, write in sorted(state.items())
            if write.value is not None and (write.expires_at is None or as_of <= write.expires_at)
        }


STATES: Final = (
    StateTable.of(
        KvFold.name, KvEntry, {"key": "text"}, lambda view: view, about="values by key", times=("expires_at",)
    ),
)


_TS: Final = {"ts": Arg("time", "Time of the write. Default: the hub's time.")}
NOUNS: Final = {
    "kv": Noun(
        name="kv",
        about="Values by key over a stream; the last writer wins, and every write stays in the log.",
        fold=KvFold,
        verbs=[
            Verb(
                name="put",
                help="Set the value of a key.",
                about='Set KEY of STREAM to VALUE; "-" reads the value from standard input.',
                examples=[
                    "veen kv put app/settings colour red",
                    'veen kv put app/settings size \'{"w": 2, "h": 3}\' --format json',
                ],
                schema=KV,
                fixed={"op": "put"},
                args={
                    "key": Arg(),
                    "value": Arg("value"),
                    **_TS,
                    "expires_at": Arg("time", "Time at which the value expires: a time, or +10m.", "--expires"),
                },
                facts=("stream", "key", "value"),
                is_judged=False,
                follow_up="veen kv get {stream} {key}",
            ),
            Verb(
                name="del",
                help="Delete a key.",
                about="Delete KEY of STREAM. Earlier values stay in the log: use --as-of.",
                schema=KV,
                fixed={"op": "del"},
                args={"key": Arg(), **_TS},
                facts=("stream", "key"),
                is_judged=False,
            ),
        ],
    )
}
