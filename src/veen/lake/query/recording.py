"""Queries and results as recorder events of their own (001 query §4.5, §5.5, D-108).

The payload is the canonical JSON as bytes, so a record is queried like any other: `payload.query_id` finds it. A result
is committed once its event has a receipt (QRY-27); whoever sends the drafts made here waits for that.
"""

from typing import Final

from veen.core import canonical
from veen.core.hashing import Ht
from veen.lake.query.descriptor import QueryDescriptor
from veen.lake.query.digest import ResultDigest
from veen.overlays.framework.schema import Draft
from veen.overlays.recorder import events as sdr

REQUESTS: Final = "record/query/requests"  # QRY-01
RESULTS: Final = "record/query/results"
AUDIT: Final = "record/query/audit/"  # streams below it are optional
EXECUTIONS: Final = f"{AUDIT}executions"  # failures (D-134)
ACCESSES: Final = f"{AUDIT}access"  # query.audit.v1, one for each delivery of rows (D-135)


def result_id_of(request_msg_id: bytes, attempt: int = 0) -> str:
    """Return the result_id of a recorded request: it survives crashes, and anyone can compute it (D-136)."""
    return f"r-{Ht('veen/query-result', request_msg_id + attempt.to_bytes(8, 'big')).hex()[:32]}"


def make_submitted(
    descriptor: QueryDescriptor, *, subject_id: str, principal_id: bytes, received_at: int, origin: str
) -> Draft:
    """Draft an event for REQUESTS: who asks (`subject_id`) through which client, and the time of receipt (QRY-12)."""
    return sdr.event(
        subject_id=subject_id,
        principal_id=principal_id,
        event_type="query.submitted",
        event_time=received_at,
        origin=origin,
        payload=descriptor.to_bytes(),
    )


def make_result(digest: ResultDigest, *, subject_id: str, principal_id: bytes, answered_at: int, origin: str) -> Draft:
    """Draft an event for RESULTS: who answers for the execution, and the engine's client (QRY-17)."""
    return sdr.event(
        subject_id=subject_id,
        principal_id=principal_id,
        event_type="query.result",
        event_time=answered_at,
        origin=origin,
        payload=digest.to_bytes(),
    )


def make_failed(
    query_id: str,
    result_id: str,
    error_code: str,
    *,
    subject_id: str,
    principal_id: bytes,
    failed_at: int,
    origin: str,
) -> Draft:
    """Draft an event for EXECUTIONS: an execution without a digest, which a restart does not repeat (D-134)."""
    return sdr.event(
        subject_id=subject_id,
        principal_id=principal_id,
        event_type="query.failed",
        event_time=failed_at,
        origin=origin,
        payload=canonical.encode({"query_id": query_id, "result_id": result_id, "error_code": error_code}),
    )
