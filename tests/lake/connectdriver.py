"""What tests of Spark Connect run in a process of their own: SPARK_REMOTE names the server. Prints one JSON document.

python -m tests.lake.connectdriver HUB KEYS
"""

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.waiting import until

from veen.lake import folds
from veen.lake.log.errors import ConnectUnsupported
from veen.lake.log.keys import KeyFile
from veen.lake.query import api
from veen.lake.spark.audit import SparkEngine
from veen.lake.spark.connect import is_connect, parallelism
from veen.lake.spark.executor_check import ask_executors
from veen.lake.spark.functions import register_functions
from veen.lake.spark.progress import control_jobs, watch_tasks
from veen.lake.spark.session import describe, using_session
from veen.lake.spark.settings import reader
from veen.verify.audit import audit
from veen.verify.audit.report import document

STREAMS = ("record/app/http", "record/security/auth", "record/infra/disk")
QUERY = "q-" + "0" * 32  # part of what evidence hashes
QUESTION = {
    "query_id": QUERY, "scope": list(STREAMS), "filter": {}, "projection": ["*"], "evidence": {"mode": "full"},
}  # fmt: skip
COUNTS = {
    "query_id": QUERY, "scope": list(STREAMS), "filter": {}, "projection": ["origin"], "evidence": {"mode": "none"},
    "aggregate": {"group_by": ["origin"], "metrics": ["count"]},
}  # fmt: skip
RESULT = "r-" + "0" * 32


def answers(path, keys, session=None):
    """What every engine must agree about."""
    engine: Any = "python" if session is None else "spark"

    def digest(question):
        answer = api.run(path, question, keys=keys, engine=engine, spark=session, result_id=RESULT)
        digest = answer.digest
        return [digest.rows_hash, digest.evidence_hash, digest.coverage_hash, digest.row_count]

    def state(plan):
        return folds.run(path, "kv", keys=keys, engine=engine, spark=session, plan=plan).state_hash.hex()

    judge: Any = {} if session is None else {"engine": SparkEngine(session)}
    return {
        "audit": document(audit(path, **judge)),
        "rows": digest(QUESTION),
        "counts": digest(COUNTS),
        "generic": state("generic"),
        "native": state("native"),
    }


def ended_by(session, mark):
    """What ends a job that is stopped in the middle of a task of an hour; None if nothing does."""
    stopped = threading.Event()

    def rows(batches):
        Path(mark).touch()
        time.sleep(3600)
        yield from batches

    def stop():
        until(Path(mark).exists)
        stopped.set()

    threading.Thread(target=stop, daemon=True).start()
    try:
        with control_jobs(session, "query r-1, slow", pool="alice", stopped=stopped, report=lambda *_: None):
            session.range(1).mapInArrow(rows, "id long").collect()
    except Exception as exc:  # of gRPC or of Spark
        return str(exc)
    return None


def main(path, key_file):
    keys = KeyFile(key_file)
    phases: list[str] = []
    with using_session() as session, watch_tasks(session, phases.append) as phase, describe(session, "a, b"):
        phase("begun")
        session.conf.set("spark.veen.openBytes", "5000")
        session.conf.set("spark.veen.partitionBytes", "5000")
        several = answers(path, keys, session)
        opened = reader(session).option("keys", key_file).load(path)
        register_functions(session)
        try:
            ask_executors(session)
            refused = ""
        except ConnectUnsupported as exc:
            refused = str(exc)
        facts = {
            "connect": is_connect(session),
            "parallelism": parallelism(session),
            "entries": session.read.format("veen").load(path).count(),
            "receipts": reader(session, "veen.receipts").load(path).where("ok").count(),
            "opened": opened.where("ok").count(),
            "body": session.sql("SELECT veen_body('x', X'01')").collect()[0][0],
            "phases": phases,
            "refused": refused,
            "ended_by": ended_by(session, f"{key_file}.began"),
            "entries_afterwards": session.read.format("veen").load(path).count(),
            "several": several,
        }
    print(json.dumps(facts))


if __name__ == "__main__":
    main(*sys.argv[1:])
