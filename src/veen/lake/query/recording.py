"""Queries and results as recorder events of their own (001 query §4.5, §5.5, D-108).

The payload is the canonical JSON as bytes, so a record is queried like any other: `payload.query_id` finds it. A result
is committed once its event has a receipt (QRY-27); whoever sends the drafts made here waits for that.
"""

from typing import Final

from veen.core import canonical
from veen.core.hashing import Ht
from veen.lake.query.descriptor import QueryDescriptor
from veen.lake.query.digest import ResultDigest
from veen.overlays.framework.body import Draft
from veen.overlays.recorder import events as sdr

REQUESTS: Final = "record/query/requests"  # QRY-01
RESULTS: Final = "record/query/results"
AUDIT: Final = "record/query/audit/"  # streams below it are optional
EXECUTIONS: Final = f"{AUDIT}executions"  # failures (D-134)
ACCESSES: Final = f"{AUDIT}access"  # query.audit.v1, one for each delivery of rows (D-135)


def result_id_of(request_msg_id: bytes, attempt: int = 0) -> str:
    """The result_id of a recorded request: it survives crashes, and anyone can compute it (D-136)."""
    return f"r-{Ht('veen/query-result', request_msg_id + attempt.to_bytes(8, 'big')).hex()[:32]}"


def submitted_event(
    descriptor: QueryDescriptor, *, subject_id: str, principal_id: bytes, received_at: int, origin: str
) -> Draft:
    """For REQUESTS: who asks (`subject_id`) through which client, and when the server heard of it (QRY-12)."""
    return sdr.event(
        subject_id=subject_id,
        principal_id=principal_id,
        event_type="query.submitted",
        event_time=received_at,
        origin=origin,
        payload=descriptor.to_bytes(),
    )


def result_event(digest: ResultDigest, *, subject_id: str, principal_id: bytes, answered_at: int, origin: str) -> Draft:
    """For RESULTS: who answers for the execution, and the engine's client (QRY-17)."""
    return sdr.event(
        subject_id=subject_id,
        principal_id=principal_id,
        event_type="query.result",
        event_time=answered_at,
        origin=origin,
        payload=digest.to_bytes(),
    )


def failed_event(
    query_id: str,
    result_id: str,
    error_code: str,
    *,
    subject_id: str,
    principal_id: bytes,
    failed_at: int,
    origin: str,
) -> Draft:
    """For EXECUTIONS: an execution that ended without a digest, so that a restart does not begin it again (D-134)."""
    return sdr.event(
        subject_id=subject_id,
        principal_id=principal_id,
        event_type="query.failed",
        event_time=failed_at,
        origin=origin,
        payload=canonical.encode({"query_id": query_id, "result_id": result_id, "error_code": error_code}),
    )
