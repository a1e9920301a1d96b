"""What the log says of queries: requests, digests, failures. A fold, so a service that starts again knows every state.

A request that stands in the log is PENDING until a digest (COMPLETED) or a failure (FAILED) of its result_id stands
there too; what comes after either of them changes nothing (QRY-26, D-134). RUNNING is known to the process alone.
"""

from dataclasses import dataclass, field

from veen.core.event import Event
from veen.overlays.framework.decode import Issue
from veen.overlays.recorder import events as sdr
from veen.query import canonical
from veen.query.descriptor import QueryDescriptor
from veen.query.digest import ResultDigest
from veen.query.errors import QueryError
from veen.query.recording import result_id_of


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRequest:
    """A query as it stands in record/query/requests."""

    descriptor: QueryDescriptor
    subject_id: str
    msg_id: bytes
    stream_seq: int

    @property
    def result_id(self) -> str:
        return result_id_of(self.msg_id)


@dataclass(slots=True)
class QueryHistory:
    """All queries of a log so far. The first request of a query_id counts, the first end of a result too.

    Only records by `authors`, the keys of the service, count: others may be able to write to its streams. None takes
    records of everybody, to show what the streams have.
    """

    authors: frozenset[bytes] | None
    requests: dict[str, RecordedRequest] = field(default_factory=dict)  # by query_id
    results: dict[str, RecordedRequest] = field(default_factory=dict)  # the same by result_id
    digests: dict[str, ResultDigest] = field(default_factory=dict)  # by result_id
    failures: dict[str, str] = field(default_factory=dict)  # error_code by result_id

    def add(self, event: Event) -> None:
        """Add an event of one of the query streams. An event by others, or of no query, changes nothing."""
        if event.hdr.schema != sdr.EVENT.id or (self.authors is not None and event.client_id not in self.authors):
            return
        typed = sdr.read(event)
        if isinstance(typed, Issue) or not isinstance(typed.body.payload, bytes):
            return
        try:
            self._add(typed.body, event)
        except QueryError:  # a descriptor of a later release, or somebody's invention
            return

    def _add(self, body: sdr.RecorderEvent, event: Event) -> None:
        payload: bytes = body.payload
        match body.event_type:
            case "query.submitted":
                self.add_request(
                    RecordedRequest(
                        descriptor=QueryDescriptor.from_bytes(payload),
                        subject_id=body.subject_id,
                        msg_id=event.leaf_hash,
                        stream_seq=event.stream_seq,
                    )
                )
            case "query.result":
                digest = ResultDigest.from_bytes(payload)
                if digest.result_id not in self.failures:
                    self.digests.setdefault(digest.result_id, digest)
            case "query.failed":
                value = canonical.parse(payload)
                result_id = value.get("result_id") if type(value) is dict else None
                if type(result_id) is str and result_id not in self.digests:
                    self.failures.setdefault(result_id, str(value.get("error_code")))

    def add_request(self, request: RecordedRequest) -> None:
        if request.descriptor.query_id not in self.requests:
            self.requests[request.descriptor.query_id] = request
            self.results[request.result_id] = request

    def unfinished(self) -> list[RecordedRequest]:
        """Requests without an end, in the order of the log."""
        return [
            request
            for request in self.requests.values()
            if request.result_id not in self.digests and request.result_id not in self.failures
        ]
