"""Every kind of damage that the suites of verification know, by name: both verifiers are held to the same list.

`DAMAGES` gives a directory for each. The functions it is made of also serve the tests of one verifier alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any

from tests.damage import flipped
from tests.lake.audit_builders import SEALED, Liar, grow, log, reframed_bytes, resigned, signed
from tests.storage.builders import LABELS, LIMITS, World, copy_of
from tests.storage.driver import CLIENTS, HUB, ISSUER, START, STREAMS, TOKENS

from veen.core import cbor
from veen.core.crypto.ed25519 import SigningKey
from veen.core.hashing import H
from veen.core.labels import label_of, routing_key_of
from veen.core.objects.captoken import CapToken
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import AnchorPublish, ControlRecord, LabelOpen, LimitsSet
from veen.core.objects.profile import PRESETS, Profile
from veen.core.tree.mmr import peak_nodes, root_of
from veen.storage import frame, layout
from veen.storage.anchors import AnchorFile
from veen.storage.index import Index
from veen.storage.keys import identity
from veen.storage.keys import rotation as keyrotation
from veen.storage.maintenance.retention import Periods, RetentionPolicy, apply, plan
from veen.storage.maintenance.scrub import compress_chunk
from veen.testing.memfs import MemFs

STRANGER = SigningKey(b"\x77" * 32)
NEXT = b"\x42" * 32
CIPHERTEXT_AT = frame.HEADER_BYTES + 104 + 2 + 34 + 34 + 3 + 10  # somewhere in the ciphertext of an entry with a token
INDEX_STATEMENTS = {
    "labels": "UPDATE labels SET size = size + 1",
    "clients": "DELETE FROM clients WHERE row = 1",
    "entries": "UPDATE entries SET stream_seq = stream_seq + 1",
    "chunks": "UPDATE chunks SET last_ts = last_ts + 1",
    "caps": "DELETE FROM caps",
    "writers": "DELETE FROM writers WHERE first_ts = (SELECT max(first_ts) FROM writers)",
    "policies": "UPDATE policies SET until = until + 1 WHERE seq = 4",
    "meta": "UPDATE meta SET value = value + 1 WHERE key = 'hub_ts'",
}
WRONG_CHECKPOINTS = {  # a field that is signed and wrong, and what the finding says
    "mmr_root": (bytes(32), "mmr_root"),
    "upto_seq": (2, "another position"),
    "label_curr": (bytes(32), "another position"),
    "epoch": (1, "epoch"),
    "label_prev": (bytes(32), "label_prev"),
}
FORGED_ENTRIES = {  # changes to MSG and RECEIPT that whoever holds the keys can sign
    "ct_hash": lambda msg, receipt: (resigned(replace(msg, ct_hash=bytes(32))), receipt),
    "leaf_hash": lambda msg, receipt: (msg, signed(replace(receipt, leaf_hash=bytes(32)))),
    "mmr_root": lambda msg, receipt: (msg, signed(replace(receipt, mmr_root=b"r" * 32))),
    "prev_ack of the future": lambda msg, receipt: (resigned(replace(msg, prev_ack=99)), receipt),
    "label of MSG": lambda msg, receipt: (resigned(replace(msg, label=bytes(32))), receipt),
    "label of RECEIPT": lambda msg, receipt: (msg, signed(replace(receipt, label=bytes(32)))),
    "position of RECEIPT": lambda msg, receipt: (msg, signed(replace(receipt, stream_seq=9))),
    "signature of MSG": lambda msg, receipt: (replace(msg, sig=bytes(64)), receipt),
    "signature of RECEIPT": lambda msg, receipt: (msg, signed(receipt, STRANGER)),
}


@dataclass(frozen=True)
class Damage:
    """How a damaged directory comes about. `unseen`: the verifier that cannot see it, and why."""

    build: Callable[[], MemFs]
    unseen: Mapping[str, str] = field(default_factory=dict)


DAMAGES: dict[str, Damage] = {}


def _add(name: str, build: Callable[..., MemFs], *args: object, **unseen: str) -> None:
    """`build(*args)` gives the directory; `directory` or `audit`: why that verifier cannot see it."""
    assert name not in DAMAGES
    DAMAGES[name] = Damage(partial(build, *args), unseen)


# --- directories without damage ------------------------------------------------------------------------------


@cache
def honest() -> MemFs:
    """Two labels with sealed and active chunks, at rest."""
    return copy_of(log(30).fs)


@cache
def erased(receipts: bool = False) -> MemFs:
    """Sealed chunks without payloads, or without receipts as well."""
    world = Liar()
    world.control(LimitsSet(limits=LIMITS.to_json()))
    grow(world, 20)
    erase(world, Periods(payload_sec=1, receipt_sec=1 if receipts else 0))
    return at_rest(world)


def erase(world: World, periods: Periods) -> None:
    world.store.retire()
    index = Index(world.fs)
    apply(
        world.fs,
        plan(index, RetentionPolicy(periods), world.now + 10_000),
        world.control,
        dropped=world.store.drop_level,
    )
    index.close()


@cache
def in_use() -> MemFs:
    """The journal holds entries that are in no file yet, and a control record."""
    world = Liar()
    world.control(LimitsSet(limits=LIMITS.to_json()))
    grow(world, 8)
    world.store.retire()
    world.bind()
    grow(world, 3)
    world.control(LimitsSet(limits=LIMITS.to_json()))
    return copy_of(world.fs)


@cache
def compressed() -> MemFs:
    world = Liar()
    world.control(LimitsSet(limits=LIMITS.to_json()))
    grow(world, 20)
    world.store.retire()
    index = Index(world.fs)
    for row in index.labels():
        for start in range(1, row.active_start, LIMITS.max_checkpoint_interval):
            chunk = index.chunk_at(row.row, start)
            assert chunk is not None
            compress_chunk(world.fs, row.label, chunk)
    index.close()
    return at_rest(world)


@cache
def anchored(**change: Any) -> MemFs:
    """The control journal says that a root was anchored, and the local chain of anchors has it."""
    world = Liar()
    world.control(LimitsSet(limits=LIMITS.to_json()))
    grow(world, 12)
    files = world.store.files(LABELS[0])
    assert files is not None
    reference = AnchorFile(world.fs).publish(files.root(), 0, world.now, bytes(16))
    body = AnchorPublish(
        label=LABELS[0], upto_seq=files.size, mmr_root=files.root(), backend="file", anchor_ref=reference
    )
    world.control(body)
    if change:
        world.control(replace(body, backend="ledger", **change))
    return at_rest(world)


def anchored_at(upto_seq: int) -> MemFs:
    """Also the root after an entry inside of a chunk, at a backend elsewhere."""
    world = Liar()
    world.control(LimitsSet(limits=LIMITS.to_json()))
    grow(world, 12)
    files = world.store.files(LABELS[0])
    assert files is not None
    root = root_of([files.node_at(*node) for node in peak_nodes(upto_seq)])
    world.store.abandon()
    return anchored(upto_seq=upto_seq, mmr_root=root)


HONEST: Mapping[str, Callable[[], MemFs]] = {
    "at rest": honest,
    "payloads erased": erased,
    "receipts erased": lambda: erased(receipts=True),
    "in use": in_use,
    "compressed": compressed,
    "anchored": anchored,
    "anchored before the end": lambda: anchored_at(2),
}


def at_rest(world: World) -> MemFs:
    world.store.close()
    world.bind()
    return world.fs


# --- changed bytes -------------------------------------------------------------------------------------------


def changed(prefix: str, change: Callable[[bytes], bytes | None], base: Callable[[], MemFs] = honest) -> MemFs:
    """`base` with one file changed, or gone: the first whose path begins so."""
    path = min(path for path in base().files() if path.startswith(prefix))
    return copy_of(base(), **{path: change(base().files()[path])})


def gone(_data: bytes) -> None:
    """For `changed`: the file is missing."""
    return


def extended(data: bytes) -> bytes:
    return data + b"\0"


def cut(data: bytes, size: int = 1) -> bytes:
    return data[:-size]


def without_index() -> MemFs:
    return MemFs(honest().files())


def with_file(path: str, data: bytes = b"x") -> MemFs:
    return copy_of(honest(), **{path: data})


def of_other_chunk(number: int, label: int) -> MemFs:
    """The first chunk is a copy of another one."""
    return changed(chunk_path(), lambda _: honest().files()[chunk_path(number, label)])


def chunk_path(number: int = 0, label: int = 0) -> str:
    start = 1 + number * LIMITS.max_checkpoint_interval
    return layout.chunk(LABELS[label], start, start + LIMITS.max_checkpoint_interval - 1)


ACTIVE = f"log/active-{LABELS[0].hex()}"
SEGMENT = "journal/"


def forged_entry(name: str, number: int = 1) -> MemFs:
    """An entry of the first chunk, framed again with other contents."""
    return changed(chunk_path(), lambda data: reframed_bytes(data, number, FORGED_ENTRIES[name]))


def wrong_checkpoint(name: str) -> MemFs:
    """The first checkpoint with one field that is not as it must be, signed by the hub."""
    path = layout.checkpoint(LABELS[0], 3)
    good = Checkpoint.from_bytes(honest().files()[path])
    names = ("label_prev", "label_curr", "upto_seq", "mmr_root", "epoch")
    values = {field: getattr(good, field) for field in names}
    values[name] = WRONG_CHECKPOINTS[name][0]
    return changed(path, lambda _: Checkpoint.issue(HUB, **values).to_bytes())


def changed_checkpoint(**change: Any) -> MemFs:
    """The first checkpoint with other signatures."""
    path = layout.checkpoint(LABELS[0], 3)
    return changed(path, lambda data: replace(Checkpoint.from_bytes(data), **change).to_bytes())


def wrong_index(table: str, base: Callable[[], MemFs] = honest) -> MemFs:
    fs = copy_of(base())
    fs.database(layout.INDEX).execute(INDEX_STATEMENTS[table])
    return fs


def control_items(data: bytes) -> list[bytes]:
    """The records of a control journal."""
    items, pos = [], 0
    while pos < len(data):
        end = cbor.item_end(data, pos)
        items.append(data[pos:end])
        pos = end
    return items


def without_records(kind: str, data: bytes, *, first_only: bool = False) -> bytes:
    """A control journal without its records, or its first record, of a kind."""
    items = control_items(data)
    places = [place for place, item in enumerate(items) if kind == ControlRecord.from_bytes(item).body.KIND]
    left_out = places[:1] if first_only else places
    assert left_out
    return b"".join(item for place, item in enumerate(items) if place not in left_out)


def with_other_limits(data: bytes) -> bytes:
    """A control journal, signed by the hub, under whose limits chunks should have been longer."""
    other = LimitsSet(limits=replace(LIMITS, max_checkpoint_interval=5).to_json())
    previous, records = None, b""
    for record in map(ControlRecord.from_bytes, control_items(data)):
        body = other if record.body.KIND == "limits.set" else record.body
        previous = ControlRecord.issue(HUB, previous, body, hub_ts=record.hub_ts)
        records += previous.to_bytes()
    return records


def swapped_entries(data: bytes) -> bytes:
    first, second, *others = [entry.to_bytes() for _, entry in frame.frames(data)]
    return b"".join((second, first, *others))


def without_last_entry(data: bytes) -> bytes:
    return b"".join([entry.to_bytes() for _, entry in frame.frames(data)][:-1])


def without_label() -> MemFs:
    name = LABELS[1].hex()
    return copy_of(honest(), **{path: None for path in honest().files() if name in path})


def unopened_label() -> MemFs:
    """A chunk under the name of a label that the control journal does not know."""
    return with_file(chunk_path().replace(LABELS[0].hex(), "55" * 32), honest().files()[chunk_path()])


def unannounced_key() -> MemFs:
    """The identity lists a key that no control record announces."""
    fs = copy_of(honest())
    keyrotation.rotate(
        fs, identity.load(fs), NEXT, hub_ts=START + 5, lead_seconds=0, overlap_seconds=0, journal=lambda _: None
    )
    return fs


def not_erased() -> MemFs:
    """A chunk that should have been erased."""
    world = Liar()
    world.control(LimitsSet(limits=LIMITS.to_json()))
    grow(world, 20)
    world.store.retire()
    before = world.fs.files()
    erase(world, Periods(payload_sec=1))
    fs = at_rest(world)
    path = min(path for path in before if path.startswith("log/chunk-") and path.endswith(".log"))
    return copy_of(fs, **{path: before[path]})


# --- logs of a hub that broke its own rules ------------------------------------------------------------------


def liar() -> Liar:
    """Two honest entries, and more to be told."""
    world = Liar()
    world.control(LimitsSet(limits=LIMITS.to_json()))
    for _ in range(2):
        world.tell()
    return world


def lie(*steps: Callable[[Liar], object]) -> Callable[[], MemFs]:
    def build() -> MemFs:
        world = liar()
        for step in steps:
            step(world)
        return at_rest(world)

    return build


def tell(**changes: Any) -> Callable[[Liar], None]:
    return lambda world: world.tell(**changes)


def later(seconds: int) -> Callable[[Liar], None]:
    def step(world: Liar) -> None:
        world.now += seconds

    return step


def rotated(world: Liar) -> None:
    world.keys, _ = keyrotation.rotate(
        world.fs,
        world.keys,
        NEXT,
        hub_ts=world.now,
        lead_seconds=10,
        overlap_seconds=10,
        journal=world.control,
    )


def outside_epoch() -> MemFs:
    """The second entry of a label lies two epochs behind that of the label."""
    world, rotating = Liar(), PRESETS["rotating"]
    epoch = START // 3600
    label = label_of(routing_key_of(world.keys.identity.hub_id), STREAMS[0], epoch)
    world.tell(opened=(epoch, STREAMS[0]), profile=rotating, label_name=label)
    world.now += 7200
    world.tell(profile=rotating, label_name=label)
    return at_rest(world)


OTHER_STREAM = CapToken.issue(ISSUER, CLIENTS[0].public, [STREAMS[1]], ttl=1_000_000)
SHORT = CapToken.issue(ISSUER, CLIENTS[0].public, STREAMS, ttl=0)
UNAUTHORISED = CapToken.issue(ISSUER, CLIENTS[0].public, STREAMS, ttl=7)
UNKNOWN_PROFILE = Profile(epoch_sec=0, pad_block=77)

# --- the list ------------------------------------------------------------------------------------------------

NO_INDEX = "the index belongs to a running hub: a bucket or an archive has none, and an audit does not read it"
NO_NODES = "the node store answers requests for proofs: an audit computes the tree anew and does not read it"
NO_OFFSETS = "locations answer requests for entries: an audit only takes their number as a claim"
NO_KEYS = "private keys are no part of what is given to an auditor"
ADMISSION = (
    "verify-data checks that the log is whole and signed; whether the hub kept to its admission rules is audited"
)
TORN = "a group that a crash cut off holds nothing that was acknowledged; verify-data mentions it to its operator"

FRAME_PLACES = {"version": 0, "label": 5, "stream_seq": 41, "msg_len": 42, "receipt_len": 48, "entry_hash": 50,
                "MSG": 82, "ciphertext": CIPHERTEXT_AT}  # fmt: skip


def _list_entries() -> None:
    for name, place in FRAME_PLACES.items():
        _add(f"sealed chunk: {name} flipped", changed, chunk_path(1), partial(flipped, at=place))
        _add(f"active chunk: {name} flipped", changed, ACTIVE, partial(flipped, at=place))
    _add("sealed chunk: last byte flipped", changed, chunk_path(1), flipped)
    _add("sealed chunk: cut in an entry", changed, chunk_path(1), partial(cut, size=10))
    _add("sealed chunk: last entry missing", changed, chunk_path(1), without_last_entry)
    _add("sealed chunk: bytes behind it", changed, chunk_path(), extended)
    _add("sealed chunk: empty", with_file, chunk_path(), b"")
    _add("sealed chunk: missing", changed, chunk_path(1), gone)
    _add("sealed chunk: entries swapped", changed, chunk_path(), swapped_entries)
    _add("sealed chunk: another chunk", of_other_chunk, 1, 0)
    _add("sealed chunk: of another label", of_other_chunk, 0, 1)
    _add("compressed chunk: flipped", changed, chunk_path(), partial(flipped, at=90), compressed)
    _add("compressed chunk: cut", changed, chunk_path(), cut, compressed)
    _add("active chunk: cut in an entry", changed, ACTIVE, partial(cut, size=300))
    _add("active chunk: last entry missing", changed, ACTIVE, without_last_entry)
    _add("active chunk: empty", changed, ACTIVE, lambda _: b"")
    _add("active chunk: missing", changed, ACTIVE, gone)
    _add("active chunk: entries repeated", changed, ACTIVE, lambda data: data + data)
    _add("label: all files missing", without_label)
    _add("label: no record opens it", unopened_label)
    for name in FORGED_ENTRIES:
        _add(f"forged entry: {name}", forged_entry, name)


def _list_lies() -> None:
    for number in (1, 2, 9):
        _add(f"client_seq: {number} instead of 3", lie(tell(client_seq=number)))
        _add(f"client_seq: {number} in the next chunk", lie(tell(client=1), tell(client_seq=number)))
    _add("prev_ack: goes back", lie(tell(client=1), tell(prev_ack=0)))
    _add("profile: not known", lie(tell(profile=UNKNOWN_PROFILE)), directory=ADMISSION)
    _add("profiles: of different epochs", lie(tell(profile=PRESETS["ref"])), directory=ADMISSION)
    _add("size: too short", lie(tell(ciphertext=b"short")), directory=ADMISSION)
    _add("size: lengths too large", lie(tell(ciphertext=bytes(32) + b"\xff" * 8)), directory=ADMISSION)
    _add("size: padding not zero", lie(tell(ciphertext=SEALED + b"\x01")), directory=ADMISSION)
    _add("epoch: not that of the label", outside_epoch, directory=ADMISSION)
    _add("token: of another stream", lie(tell(token=OTHER_STREAM)), directory=ADMISSION)
    _add("token: expired", lie(tell(token=SHORT), later(1), tell(token=SHORT)))
    _add("token: authorised later", lie(later(5), tell(token=SHORT), later(-1), tell(token=SHORT)))
    _add("token: not authorised", lie(tell(token=UNAUTHORISED, authorised=False)))
    _add("token: of another client", lie(tell(client=1, token=TOKENS[0])))
    _add("time: backwards", lie(later(9), tell(), later(-5), tell(), tell()))
    _add("hub key: retired", lie(rotated, later(25), lambda world: world.tell(key=HUB)))
    _add("hub key: unknown", lie(tell(key=STRANGER)))
    _add("limits: a chunk ends too early", changed, layout.CONTROL, with_other_limits)
    _add("control: a label is opened twice", lie(lambda world: world.control(LabelOpen(label=LABELS[0], epoch=0))))
    _add(
        "control: label of another stream",
        lie(lambda world: world.tell(opened=(0, STREAMS[1]), label=1, label_name=b"\x55" * 32)),
    )


def _list_artifacts() -> None:
    for name, path in {
        "summary": chunk_path().replace(".log", ".summary"),
        "peaks": layout.peaks(LABELS[0], 3),
        "checkpoint": layout.checkpoint(LABELS[0], 3),
        "checkpoint index": layout.checkpoint_index(LABELS[0]),
        "binding": layout.CHECKPOINT_BINDING,
        "identity": layout.IDENTITY,
        "identity signature": layout.IDENTITY_SIG,
        "key map": layout.KEY_MAP,
        "control journal": layout.CONTROL,
        "write-ahead journal": SEGMENT,
    }.items():
        _add(f"{name}: flipped", changed, path, partial(flipped, at=-3))
        _add(f"{name}: cut", changed, path, cut)
        _add(f"{name}: missing", changed, path, gone)
        unseen = {"audit": TORN} if path == SEGMENT else {}
        _add(f"{name}: bytes behind it", changed, path, extended, **unseen)
    for name, path, reason in (
        ("nodes", layout.nodes(LABELS[0]), NO_NODES),
        ("locations", layout.locations(LABELS[0]), NO_OFFSETS),
    ):
        _add(f"{name}: flipped", changed, path, partial(flipped, at=40), audit=reason)
        _add(f"{name}: missing", changed, path, gone, **({"audit": reason} if name == "nodes" else {}))
    _add("locations: of an entry too many", changed, layout.locations(LABELS[0]), lambda data: data + data[-16:])
    for name in WRONG_CHECKPOINTS:
        _add(f"checkpoint: wrong {name}", wrong_checkpoint, name)
    _add("checkpoint: by a stranger", lambda: changed_checkpoint(hub_sig=bytes(64)))
    _add("checkpoint: unknown witness", lambda: changed_checkpoint(witness_sigs=(bytes(64),)))
    _add("identity: a key that no record announces", unannounced_key)
    _add("private key: empty", changed, "keys/", lambda _: b"", audit=NO_KEYS)
    for table in INDEX_STATEMENTS:
        if table != "policies":  # the log has no such record
            _add(f"index: {table}", wrong_index, table, audit=NO_INDEX)
    _add("index: missing", without_index, audit=NO_INDEX)


def _list_records() -> None:
    for kind in ("cap.authorize", "label.open", "limits.set"):
        change = partial(without_records, kind, first_only=True)
        _add(f"control journal: first {kind} missing", changed, layout.CONTROL, change)
    _add("write-ahead journal: entry flipped", changed, SEGMENT, partial(flipped, at=300), in_use)
    _add("write-ahead journal: control record flipped", changed, SEGMENT, partial(flipped, at=-3), in_use)
    for name, base in (("payloads", erased), ("receipts", partial(erased, receipts=True))):
        for kind in ("heads", "receipts") if name == "payloads" else ("heads",):
            _add(f"{name} erased: {kind} flipped", changed, f"log/{kind}-", partial(flipped, at=40), base)
            _add(f"{name} erased: {kind} missing", changed, f"log/{kind}-", gone, base)
        change = partial(without_records, "retention.drop")
        _add(f"{name} erased: no record says so", changed, layout.CONTROL, change, base)
    _add("payloads not erased", not_erased)
    _add("anchors: of another root", lambda: anchored(mmr_root=H(b"another")))
    _add("anchors: of another root before the end", lambda: anchored(upto_seq=2, mmr_root=H(b"another")))
    _add("anchors: of an entry that is not there", lambda: anchored(upto_seq=99))
    _add("anchors: chain flipped", changed, layout.ANCHORS, partial(flipped, at=50), anchored)
    _add("anchors: chain missing", changed, layout.ANCHORS, gone, anchored)


def _list_names() -> None:
    for path in (
        "notes.txt",
        "log/readme",
        "log/x.tmp",
        "journal/0.wal",
        "nodes/zz",
        layout.peaks(LABELS[0], 2),
        layout.summary(LABELS[0], 2, 4),
        layout.receipts_archive(LABELS[0], 1, 3),
        layout.chunk(LABELS[0], 2, 4),
    ):
        _add(f"name: {path.replace(LABELS[0].hex(), 'LABEL')}", with_file, path)
    _add("name: keys/name.pem", with_file, "keys/name.pem", audit=NO_KEYS)
    _add("limits.json: others than in force", with_file, layout.LIMITS, b'{"max_checkpoint_interval":9}')
    _add("limits.json: not JSON", with_file, layout.LIMITS, b'{"max_checkpoint_interval":')
    _add("limits.json: impossible", with_file, layout.LIMITS, b'{"max_msg_bytes":99999999}')


_list_entries()
_list_lies()
_list_artifacts()
_list_records()
_list_names()
