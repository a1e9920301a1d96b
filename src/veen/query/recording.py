"""Queries and results as recorder events of their own (001 query §4.5, §5.5, D-108).

The payload is the canonical JSON as bytes, so a record is queried like any other: `payload.query_id` finds it. A result
is committed once its event has a receipt (QRY-27); whoever sends the drafts made here waits for that.
"""

from typing import Final

from veen.overlays.framework.body import Draft
from veen.overlays.recorder import events as sdr
from veen.query.descriptor import QueryDescriptor
from veen.query.digest import ResultDigest

__all__ = ["AUDIT", "REQUESTS", "RESULTS", "result_event", "submitted_event"]

REQUESTS: Final = "record/query/requests"  # QRY-01
RESULTS: Final = "record/query/results"
AUDIT: Final = "record/query/audit/"  # streams below it are optional


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
