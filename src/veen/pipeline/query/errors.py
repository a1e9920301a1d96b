"""How a query says no: the codes of the Query API and the HTTP status of each (QRY-25)."""

from typing import ClassVar, Final

from veen.core.errors import VerifyError
from veen.pipeline.errors import PipelineError

__all__ = [
    "STATUS",
    "DuplicateQuery",
    "EvidenceFailed",
    "ExecutionFailed",
    "ForbiddenScope",
    "InvalidDescriptor",
    "InvalidJson",
    "NotReady",
    "QueryError",
    "QueryNotFound",
    "UnsupportedVersion",
]

STATUS: Final = {
    "invalid_json": 400,
    "invalid_query_descriptor": 400,
    "unsupported_version": 400,
    "unauthorized": 401,
    "forbidden_scope": 403,
    "query_not_found": 404,
    "duplicate_query_id": 409,
    "result_not_ready": 425,  # D-108
    "execution_failed": 500,
    "internal_error": 500,
}


class QueryError(PipelineError):
    """Base. `error_code` is stable and goes to clients; the words are for people."""

    error_code: ClassVar[str] = "internal_error"
    hint = "docs/query.md describes descriptors, evidence and results."

    @property
    def status(self) -> int:
        return STATUS[self.error_code]

    def to_json(self) -> dict[str, str]:
        return {"error_code": self.error_code, "message": str(self)}


class InvalidJson(QueryError):
    """Not JSON, or JSON that says two things at once."""

    error_code = "invalid_json"
    hint = "Send one JSON value in UTF-8, without repeated names, NaN or Infinity."


class InvalidDescriptor(QueryError):
    """A member of the descriptor is missing, of the wrong type, or asks for what there is not."""

    error_code = "invalid_query_descriptor"

    def __init__(self, where: str, why: str) -> None:
        super(PipelineError, self).__init__(where, why)
        self.where, self.why = where, why
        self.what = f"{where}: {why}" if where else why


class UnsupportedVersion(QueryError):
    """A descriptor or digest of another version (QRY-31)."""

    error_code = "unsupported_version"
    hint = "This release speaks version 1 of the Query API."


class ForbiddenScope(QueryError):
    """A stream that does not exist or that the caller may not read: the two are not told apart (D-108)."""

    error_code = "forbidden_scope"
    hint = "Check the name, and that the keyring has a read key: `veen id keyring list`."


class QueryNotFound(QueryError):
    """No query or result has this id."""

    error_code = "query_not_found"
    hint = "Ids are those that `veen query run` printed; check that the store is the same directory."


class DuplicateQuery(QueryError):
    """query_id was used before (QRY-02)."""

    error_code = "duplicate_query_id"
    hint = "Leave query_id out: a fresh one is made."


class NotReady(QueryError):
    """The result is not there yet, or the state of an execution does not allow the step."""

    error_code = "result_not_ready"
    hint = "Ask for the status of the result; a failed one says why."


class ExecutionFailed(QueryError):
    """The query could not be answered."""

    error_code = "execution_failed"
    hint = "Run `veen audit run` on the directory: it names every place that is damaged."


class EvidenceFailed(VerifyError, ExecutionFailed):
    """A receipt or proof behind a row does not hold: there is no result (QRY-18, QRY-19)."""

    error_code = "execution_failed"
    hint = "Keep the directory as evidence and run `veen audit run` on it: it names every place that does not hold."
