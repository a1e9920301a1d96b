"""What a cluster is asked to do, and the same in one process: source, audit, query and fold over two logs.

As a program it is the driver: it prints what it found, and leaves to the tests what that should have been.
"""

import json
import os
import random
import sys
from hashlib import sha256
from pathlib import Path

from tests.lake.audit_builders import dump, log, run, tables
from tests.lake.cluster import ancestors
from tests.lake.query_builders import KEYS, STREAMS, Recorder, descriptor, filled
from tests.lake.randomlogs import damaged

from veen.client.identity.keyring import StreamKeys
from veen.lake import folds
from veen.lake.log.keys import KeyFile, write_keys
from veen.lake.query import api
from veen.overlays import kv
from veen.overlays.wallet import drafts
from veen.overlays.wallet.bodies import wallet_id_of, wallet_stream
from veen.storage.pinned import pin
from veen.verify.audit.report import document

FOLDS = ("kv", "wallet.ledger")  # a plan of SQL, and one of windows
STEPS = ("source", "audit", "query", "groups", "fold")
# Who is killed in each step, and how often; Spark gives a task up after four failures.
KILLS = {
    "workers": dict.fromkeys(STEPS, ("worker", 3)),
    "all": dict.fromkeys(STEPS, ("worker", 1)) | dict.fromkeys(("audit", "query"), ("executor", 1)),
}
SELECT = descriptor(query_id="q-1", evidence={"mode": "full"})
GROUPS = descriptor(
    query_id="q-2",
    projection=["origin"],
    aggregate={"group_by": ["payload.where.rack"], "metrics": ["count", "avg(payload.price)"]},
)


def prepare(directory, entries=60):
    """A damaged log to audit, a log of recorder events, one of states, and the keys to open them."""
    for name in ("log", "events", "states", "keys"):
        (directory / name).mkdir(parents=True)
    dump(damaged(log(entries).fs.files(), random.Random(5)), directory / "log")
    filled(directory / "events", entries).done()
    _states(Recorder(directory / "states"), entries)
    write_keys(directory / "keys", [*KEYS.values(), *WALLET_KEYS.values()])
    return directory


WALLETS = [wallet_id_of(bytes([number]) * 32, bytes(32), "EUR") for number in range(4)]
WALLET_KEYS = {
    wallet: StreamKeys.create(wallet_stream(wallet).hex(), random=random.Random(wallet).randbytes) for wallet in WALLETS
}


def _states(world, entries):
    """Keys that are written again and again, and wallets, one of which now and then has too little."""
    rng = random.Random(entries)

    def tell(draft, wallet=None):
        stream = STREAMS[0] if wallet is None else wallet_stream(wallet).hex()
        world.emit(stream, client=rng.randrange(3), schema=draft.schema, body=draft.body, keys=WALLET_KEYS.get(wallet))

    for number, opened in enumerate(WALLETS):
        realm = bytes([number]) * 32
        tell(drafts.open_wallet(realm_id=realm, ctx_id=bytes(32), currency="EUR", created_at=world.now), opened)
    for _ in range(entries):
        world.now += rng.randrange(3)
        payee, payer = rng.sample(WALLETS, 2)
        tell(kv.put(f"key-{rng.randrange(9)}", rng.randrange(100)))
        tell(drafts.deposit(payee, rng.randrange(1, 9), ts=world.now, ref=rng.randbytes(32)), payee)
        tell(drafts.withdraw(payer, rng.randrange(1, 9), ts=world.now, ref=rng.randbytes(32)), payer)
    world.done()


def _hash(*parts):
    return sha256(b"".join(sha256(part).digest() for part in parts)).hexdigest()


def _audited(path, engine=None):
    report = run(path, engine=engine)
    return _hash(*tables(report), json.dumps(document(report), sort_keys=True).encode())


def _answered(path, asked, keys, **where):
    result = api.run(str(path), asked, keys=keys, result_id="r-1", now=lambda: 7, **where)
    return {"digest": result.digest.to_json(), "rows": _hash(*(repr(row).encode() for row in result.rows()))}


def _folded(path, keys, **where):
    return {name: folds.run(str(path), name, keys=keys, **where).state_hash.hex() for name in FOLDS}


def _sourced(rows):
    return _hash(*sorted(repr(tuple(map(_plain, row))).encode() for row in rows))


def _plain(value):
    return bytes(value) if isinstance(value, (bytes, bytearray)) else value


COLUMNS = ("label", "stream_seq", "leaf_hash", "ok", "reason")


def in_one_process(directory):
    """What every cluster must find."""
    from veen.io.places import open_fs
    from veen.lake.log.columns import ENTRIES, select_columns
    from veen.lake.log.entries import ReadSpec, batches
    from veen.lake.log.slices import Slice

    path, keys = directory / "log", KeyFile(str(directory / "keys" / "reader.keys"))
    pinned, fs = pin(str(path)), open_fs(str(path))
    spec = ReadSpec(columns=select_columns(COLUMNS, ENTRIES), level="full", identity=pinned.identity)
    rows = [
        tuple(row[name] for name in COLUMNS)
        for chunk in pinned.chunks()
        for batch in batches(fs, Slice.whole(chunk), spec)
        for row in batch.to_pylist()
    ]
    return {
        "source": _sourced(rows),
        "audit": _audited(path),
        "query": _answered(directory / "events", SELECT, keys),
        "groups": _answered(directory / "events", GROUPS, keys),
        "fold": _folded(directory / "states", keys, engine="python"),
    }


class OnSpark:
    """The same steps on a session."""

    def __init__(self, session, directory):
        self.session, self.directory = session, directory
        self.keys = KeyFile(str(directory / "keys" / "reader.keys"))

    def source(self):
        read = self.session.read.format("veen").option("verify", "full").option("partitionBytes", "4000")
        stream = read.schema(", ".join(f"{name} {kind}" for name, kind in zip(COLUMNS, _KINDS, strict=True)))
        return _sourced(stream.load(str(self.directory / "log")).collect())

    def audit(self):
        from veen.lake.spark.audit import SparkEngine

        return _audited(self.directory / "log", SparkEngine(self.session, 6))

    def query(self):
        return _answered(self.directory / "events", SELECT, self.keys, engine="spark", spark=self.session)

    def groups(self):
        return _answered(self.directory / "events", GROUPS, self.keys, engine="spark", spark=self.session)

    def fold(self):
        return _folded(self.directory / "states", self.keys, engine="spark", spark=self.session)


_KINDS = ("BINARY", "BIGINT", "BINARY", "BOOLEAN", "STRING")


def main(directory, faults, how):
    """Every step, disturbed by the hook that lies in `faults`."""
    from veen.lake.spark import executor_check as fitness
    from veen.lake.spark.session import describe, spark_session

    session = spark_session("veen tests", settings=json.loads(os.environ["VEEN_TEST_CONFS"]))
    steps, outcomes, struck = OnSpark(session, Path(directory)), {}, {}
    above = [ancestors(executor.process) for executor in fitness.check(session, key_file=steps.keys.path)]
    for name in STEPS:
        arm(Path(faults), *KILLS[how][name])
        with describe(session, f"test: {name}"):
            outcomes[name] = getattr(steps, name)()
        struck[name] = len(list(Path(faults).glob("slot-*")))
    session.stop()
    print(json.dumps({"found": outcomes, "struck": struck, "above": above}))


def arm(directory, what, times):
    """From now on the hook ends `times` processes of this kind."""
    for slot in directory.glob("slot-*"):
        slot.unlink()
    (directory / "armed").write_text(f"{what} {times}")


# In the Python workers of executors, before anything else: a process is killed when it opens a chunk, as by the kernel.
HOOK = """\
import os
import signal
import sys

_faults = os.environ.get("VEEN_TEST_FAULTS", "")
_seen = 0


def _hook(event, args):
    global _seen
    if event != "open" or not args or "chunk-" not in str(args[0]) or "pyspark" not in sys.modules:
        return
    from pyspark import TaskContext

    _seen += 1
    if TaskContext.get() is None or _seen < 2:  # not on a driver; and not before some work was done
        return
    what, times = open(_faults + "/armed").read().split()
    for number in range(int(times)):
        try:
            os.close(os.open(f"{_faults}/slot-{number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            continue
        if what == "executor":
            status = open(f"/proc/{os.getppid()}/status").read()
            os.kill(int(status.split("PPid:")[1].split()[0]), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


if _faults and any("pyspark.daemon" in word for word in sys.orig_argv):
    sys.addaudithook(_hook)
"""


def hooked(directory):
    """A directory for PYTHONPATH and for VEEN_TEST_FAULTS."""
    directory.mkdir()
    (directory / "sitecustomize.py").write_text(HOOK)
    return directory


if __name__ == "__main__":
    main(*sys.argv[1:])
