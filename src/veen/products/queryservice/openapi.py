"""The OpenAPI document of the query service: `/openapi.json`, and docs/query-openapi.json."""

import json
import sys
from functools import cache
from typing import Any, Final

from veen import __version__
from veen.lake.query.clauses import MAX_CONDITIONS, OPERATORS
from veen.lake.query.clauses import MAX_LIMIT as MAX_ROW_LIMIT
from veen.lake.query.store import DEFAULT_LIMIT, MAX_LIMIT

Schema = dict[str, Any]
_TEXT: Final[Schema] = {"type": "string"}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_ERRORS: Final = {
    "400": "invalid_json, invalid_query_descriptor, unsupported_version",
    "401": "unauthorized",
    "403": "forbidden_scope",
    "404": "query_not_found",
    "405": "invalid_request: another method",
    "409": "duplicate_query_id, cancelled",
    "425": "result_not_ready",
    "500": "execution_failed, internal_error, result_forged",
    "503": "unavailable: the log does not take records now, or too many queries wait",
}


def _object(properties: Schema, *, optional: tuple[str, ...] = ()) -> Schema:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required}


_EVIDENCE: Final = _object(
    {"mode": {"enum": ["none", "spot", "full"]}, "sample_rate": {"type": ["number", "null"]}}, optional=("sample_rate",)
)
_SCALAR: Final = ["string", "number", "boolean"]
_WHERE: Final[Schema] = {
    "type": ["array", "null"],
    "maxItems": MAX_CONDITIONS,
    "items": _object(
        {
            "field": _TEXT,
            "op": {"enum": list(OPERATORS)},
            "value": {"type": [*_SCALAR, "array"], "items": {"type": _SCALAR}},
        }
    ),
}
_ORDER: Final = _object({"field": _TEXT, "direction": {"enum": ["asc", "desc"]}}, optional=("direction",))
_SCHEMAS: Final[Schema] = {
    "QueryDescriptor": _object(
        {
            "query_id": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$"},
            "version": {"const": 1},
            "scope": {"type": "array", "items": _TEXT, "minItems": 1},
            "filter": {"type": ["object", "null"], "properties": {"where": _WHERE}},
            "projection": {"type": "array", "items": _TEXT, "minItems": 1},
            "aggregate": {"type": ["object", "null"]},
            "evidence": _EVIDENCE,
            "order": {"type": ["array", "null"], "items": _ORDER, "maxItems": 16},
            "limit": {"type": ["integer", "null"], "minimum": 1, "maximum": MAX_ROW_LIMIT},
            "meta": {"type": ["object", "null"]},
        },
        optional=("query_id", "version", "filter", "aggregate", "order", "limit", "meta"),
    ),
    "ResultDigest": _object(
        {
            "query_id": _TEXT,
            "result_id": _TEXT,
            "version": {"const": 1},
            "row_count": _COUNT,
            "evidence_policy": _EVIDENCE,
            "rows_hash": _TEXT,
            "evidence_hash": _TEXT,
            "coverage_hash": _TEXT,
            "executed_at": _TEXT,
            "hub_id": _TEXT,
            "profile_id": _TEXT,
            "rows_root": _TEXT,
        },
        optional=("profile_id", "rows_root"),
    ),
    "Accepted": _object({"query_id": _TEXT, "result_id": _TEXT, "status": _TEXT}),
    "Status": _object(
        {
            "query_id": _TEXT,
            "result_id": _TEXT,
            "status": {"enum": ["pending", "running", "completed", "failed"]},
            "error_code": {"type": ["string", "null"]},
            "message": {"type": ["string", "null"]},
            "progress": {
                "description": "tasks that are done, of all that are known so far",
                "type": ["object", "null"],
                "properties": {"done": _COUNT, "total": _COUNT},
                "required": ["done", "total"],
            },
        }
    ),
    "Answer": _object({"result_digest": {"$ref": "#/components/schemas/ResultDigest"}, "rows": {"type": "array"}}),
    "Page": _object(
        {
            "result_digest": {"$ref": "#/components/schemas/ResultDigest"},
            "rows": {"type": "array", "items": {"type": "object"}},
            "page": _object(
                {"offset": _COUNT, "limit": _COUNT, "total": _COUNT, "has_more": {"type": "boolean"}},
            ),
            "proof": _object({"before": {"type": "array", "items": _TEXT}, "after": {"type": "array", "items": _TEXT}}),
        },
        optional=("proof",),
    ),
    "Coverage": {"type": "object"},
    "Descriptor": _object(
        {
            "descriptor": {"$ref": "#/components/schemas/QueryDescriptor"},
            "record_event": _object({"stream": _TEXT, "seq": _COUNT, "hub_id": _TEXT, "receipt_id": _TEXT}),
        }
    ),
    "Error": _object({"error_code": _TEXT, "message": _TEXT}),
}
_PAGE: Final = (
    ("offset", {"type": "integer", "minimum": 0, "maximum": 10**15, "default": 0}),
    ("limit", {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT}),
)


def document() -> Schema:
    """Return the whole document; `/api/query` is an alias of `/api/v1/query`."""
    paths: Schema = {"/api/query/submit": {"post": _operation("submit", "Record and execute a query", "Answer")}}
    submit = paths["/api/query/submit"]["post"]
    submit["requestBody"] = {"required": True, "content": _content("QueryDescriptor")}
    submit["responses"]["202"] = {"description": "recorded; not answered yet", "content": _content("Accepted")}
    for method, name, about, answer in (
        ("get", "status", "How far a query has come", "Status"),
        ("post", "cancel", "End a query; the state says if it had ended before", "Status"),
        ("get", "result", "Rows of a result, page by page", "Page"),
        ("get", "coverage", "What a result covers", "Coverage"),
        ("get", "descriptor", "What was asked, and where that stands in the log", "Descriptor"),
    ):
        operation = _operation(name, about, answer)
        operation["parameters"] = [{"name": "id", "in": "path", "required": True, "schema": _TEXT}]
        if name == "result":
            operation["parameters"] += [{"name": key, "in": "query", "schema": schema} for key, schema in _PAGE]
        paths[f"/api/query/{name}/{{id}}"] = {method: operation}
    errors = {status: {"description": codes, "content": _content("Error")} for status, codes in _ERRORS.items()}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "VEEN query service",
            "version": __version__,
            "description": "docs/query-service.md. QueryDescriptor and ResultDigest of version 1.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}, {"certificate": []}],
        "paths": dict(sorted(paths.items())),
        "components": {
            "responses": errors,
            "schemas": _SCHEMAS,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "certificate": {"type": "mutualTLS", "description": "a client certificate of a name in the principals"},
            },
        },
    }


def _operation(name: str, about: str, answer: str) -> Schema:
    responses: Schema = {"200": {"description": about, "content": _content(answer)}}
    responses |= {status: {"$ref": f"#/components/responses/{status}"} for status in _ERRORS}
    return {"operationId": name, "summary": about, "responses": responses}


def _content(name: str) -> Schema:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}


@cache
def document_bytes() -> bytes:
    """Return the file as committed: `python -m veen.products.queryservice.openapi > docs/query-openapi.json`."""
    return json.dumps(document(), indent=1, ensure_ascii=False).encode() + b"\n"


if __name__ == "__main__":
    sys.stdout.buffer.write(document_bytes())
