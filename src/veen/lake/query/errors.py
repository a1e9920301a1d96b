"""Errors of queries, with the codes of the Query API (QRY-25). Their HTTP status and words are in the catalogue."""

from typing import ClassVar, Final

from veen.core.canonical import InvalidJson
from veen.core.catalogue import catalogue
from veen.core.errors import StatedError, VerifyError
from veen.lake.log.errors import PipelineError


class QueryError(PipelineError):
    """Base of the errors of queries. `error_code` is stable and goes to clients; the text is for people."""

    error_code: ClassVar[str] = "internal_error"


# What the Query API answers with a code of its own: InvalidJson is raised by the core, which knows no queries.
QUERY_REFUSALS: Final = (QueryError, InvalidJson)


def http_status_of(exc: QueryError | InvalidJson) -> int:
    """Return the HTTP status of an error in the Query API."""
    return catalogue()[exc.error_code].http_status or 500


def to_json(exc: QueryError | InvalidJson) -> dict[str, str]:
    """Return an error as the Query API writes it."""
    return {"error_code": exc.error_code, "message": str(exc)}


class InvalidDescriptor(QueryError, code="E.USAGE"):
    """A member of the descriptor that is missing, of the wrong type, or unknown."""

    error_code = "invalid_query_descriptor"

    def __init__(self, where: str, why: str) -> None:
        super(StatedError, self).__init__(where, why)
        self.where, self.why = where, why
        self.what = f"{where}: {why}" if where else why


class UnsupportedVersion(QueryError, code="E.USAGE"):
    """A descriptor or digest of another version (QRY-31)."""

    error_code = "unsupported_version"


class ForbiddenScope(QueryError):
    """An unknown stream, or one that the caller may not read: both get the same answer (D-108)."""

    error_code = "forbidden_scope"


class QueryNotFound(QueryError):
    """An unknown id of a query or result."""

    error_code = "query_not_found"


class ResultDamaged(QueryError):
    """A file of a stored result that is a link, a device, or larger than such a file can be."""

    hint = "Run the query again: the log has everything."


class DuplicateQuery(QueryError):
    """A query_id that was used before (QRY-02)."""

    error_code = "duplicate_query_id"


class NotReady(QueryError):
    """A result that is not complete yet, or a step that the state of its execution does not allow."""

    error_code = "result_not_ready"


class ExecutionFailed(QueryError):
    """A query that could not be answered."""

    error_code = "execution_failed"


class QueryCancelled(QueryError):
    """A query that its submitter cancelled: there is no result, and there will be none."""

    error_code = "cancelled"


class EvidenceFailed(VerifyError, ExecutionFailed):
    """An invalid receipt or proof behind a row: there is no result (QRY-18, QRY-19)."""

    hint = "Keep the directory as evidence and run `veen audit run` on it: it names every place that is damaged."


class ServiceUnreachable(QueryError):
    """A query service that gave no intelligible answer."""

    code = "E.NET"
    hint = "Check the URL and that the service runs; a private CA is named by `--service-ca`."


class ServiceRefused(QueryError):
    """A request that a query service refused; `error_code` is its reason."""

    def __init__(self, error_code: str, why: str) -> None:
        super(StatedError, self).__init__(error_code, why)
        self.refused_with, self.what = error_code, f"{error_code}: {why}"


class ResultForged(VerifyError, QueryError):
    """A result whose rows, coverage or descriptor do not match its digest, from a query service or a store."""

    error_code = "result_forged"
    hint = "Do not use the rows. Ask for the log and answer the query yourself: `veen query run`."
