"""Audit a log wherever it lies, on the session that runs or on a new one.

    python examples/spark/audit_bucket.py s3://bucket/hub
    veen spark shell --script examples/spark/audit_bucket.py        # with VEEN_LOG=s3://bucket/hub

Exit code 1 means that the evidence is bad.
"""

import os
import sys

from veen import AuditOptions, audit, audit_lines
from veen.contrib.spark import SparkEngine, using_session, watch_tasks


def main(place: str) -> int:
    with (
        using_session(app="veen audit") as session,
        watch_tasks(session, lambda text: print(text, file=sys.stderr)) as phase,
    ):
        result = audit(place, AuditOptions(level="full"), engine=SparkEngine(session), progress=phase)
    print("\n".join(audit_lines(result)))
    return 0 if result.ok else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else os.environ["VEEN_LOG"]))
