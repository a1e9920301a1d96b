"""The OpenAPI 3.1 document of the JSON form, made from the declarations of the wire objects (D-62).

Reading and writing follow from the same declarations, so the document cannot differ from the behaviour of the hub.
"""

import json
import sys
from functools import cache
from typing import Any, Final, get_args

from veen import __version__
from veen.core.objects.captoken import CapToken
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import ControlRecord
from veen.core.objects.envelopes import (
    CheckpointRequest,
    CheckpointResponse,
    ErrorEnvelope,
    ProofRequest,
    ProofResponse,
    ReceiptRequest,
    ReceiptResponse,
    StreamRequest,
    StreamResponse,
    SubmitRequest,
    SubmitResponse,
)
from veen.core.objects.evidence import Equivocation
from veen.core.objects.msg import Msg
from veen.core.objects.profile import Profile
from veen.core.objects.receipt import Receipt
from veen.core.objects.tooling import (
    MAX_BATCH_ITEMS,
    AnchorRequest,
    AnchorResponse,
    AnchorsResponse,
    AttachmentsRequest,
    AttachmentsResponse,
    AuthorizeResponse,
    CapStatusRequest,
    CapStatusResponse,
    CheckpointRangeRequest,
    ClientCursorRequest,
    ClientCursorResponse,
    ConsistencyRequest,
    ConsistencyResponse,
    DeriveRequest,
    FeedRequest,
    FeedResponse,
    HealthResponse,
    IdentityResponse,
    InspectRequest,
    InspectResponse,
    LabelRequest,
    LegacyItem,
    OkResponse,
    PolicyRecordsResponse,
    PolicyRequest,
    PolicyResponse,
    ProofAtRequest,
    ReadyResponse,
    RecordResponse,
    RotateKeyRequest,
    StatusResponse,
    StreamRegisterRequest,
    StreamsResponse,
    TailRequest,
    VersionRequest,
    VersionResponse,
)
from veen.core.wire import Schema, Size, Uint, Wire, reference

_UNDESCRIBED: Final = (Profile, ControlRecord, Equivocation)  # their names suffice


def _reference(cls: type[Wire], components: dict[str, Schema]) -> Schema:
    if cls.__name__ not in components:
        components[cls.__name__] = {}  # before its fields, which may refer to it
        components[cls.__name__] = _schema(cls, components)
    return reference(cls)


def _schema(cls: type[Wire], components: dict[str, Schema]) -> Schema:
    fields = cls.wire_fields()
    for part in (part for field in fields for part in field.type.parts):
        _reference(part, components)
    about = {} if cls in _UNDESCRIBED else {"description": " ".join((cls.__doc__ or cls.KIND).split())}
    if cls.FORM != "array":
        return {
            "type": "object",
            **about,
            "properties": {field.name: field.type.schema for field in fields},
            "required": [field.name for field in fields if not field.optional],
            "additionalProperties": False,
        }
    items = [
        {
            **({"description": field.name} if about else {}),
            **({"anyOf": [field.type.schema, _NULL]} if field.optional else field.type.schema),
        }
        for field in fields
    ]
    fewest = len(items) - fields[-1].optional  # an absent last field is trimmed
    return {"type": "array", **about, "prefixItems": items, "minItems": fewest, "maxItems": len(items)}


_NULL: Final[Schema] = {"type": "null"}
_UINT: Final[Schema] = get_args(Uint)[1].schema
_LABEL: Final[Schema] = Size(32).schema

# path -> (summary, request, response); a list of one class is a sequence of it
_POSTS: Final[dict[str, tuple[str, type[Wire] | list[type[Wire]], type[Wire] | list[type[Wire]]]]] = {
    "/v1/submit": ("Admit a MSG", SubmitRequest, SubmitResponse),
    "/v1/stream": ("Read a range of entries", StreamRequest, StreamResponse),
    "/v1/receipt": ("Read the RECEIPT of one entry", ReceiptRequest, ReceiptResponse),
    "/v1/proof": ("Prove the inclusion of one entry", ProofRequest, ProofResponse),
    "/v1/checkpoint": ("Read a signed CHECKPOINT of a prefix", CheckpointRequest, CheckpointResponse),
    "/tooling/anchor": ("Anchor a checkpoint (administrators)", AnchorRequest, AnchorResponse),
    "/tooling/attachments": ("List new and changed attachments, for replicas", AttachmentsRequest, AttachmentsResponse),
    "/tooling/authorize": ("Register a capability", CapToken, AuthorizeResponse),
    "/tooling/cap_status": ("Read the state of a capability", CapStatusRequest, CapStatusResponse),
    "/tooling/checkpoint_latest": ("Read the checkpoint of a whole label", LabelRequest, CheckpointResponse),
    "/tooling/checkpoint_range": ("List checkpoints by epoch", CheckpointRangeRequest, [Checkpoint]),
    "/tooling/client_cursor": (
        "Read a client's own cursor; the client signs the request",
        ClientCursorRequest,
        ClientCursorResponse,
    ),
    "/tooling/consistency": ("Prove that a label was only appended to", ConsistencyRequest, ConsistencyResponse),
    "/tooling/derive": ("Register a capability that a principal issued for its key", DeriveRequest, AuthorizeResponse),
    "/tooling/feed": ("Read changes, for replicas", FeedRequest, FeedResponse),
    "/tooling/fence": ("Stop admission for good (administrators)", VersionRequest, RecordResponse),
    "/tooling/identity": ("Read the keys of the hub", VersionRequest, IdentityResponse),
    "/tooling/inspect": ("List labels and their sizes", InspectRequest, InspectResponse),
    "/tooling/key_rotations": (
        "List the records that lead from the first key to the others",
        VersionRequest,
        [ControlRecord],
    ),
    "/tooling/policy": ("Set revocations and authority (administrators)", PolicyRequest, PolicyResponse),
    "/tooling/promotion": ("Read the record by which a replica became this hub", VersionRequest, RecordResponse),
    "/tooling/proof_at": ("Prove an entry under a later root", ProofAtRequest, ProofResponse),
    "/tooling/report_equivocation": ("Report two contradicting statements", Equivocation, OkResponse),
    "/tooling/rotate_key": ("Give the hub its next key (administrators)", RotateKeyRequest, RecordResponse),
    "/tooling/status": ("Read the settings that a client needs", VersionRequest, StatusResponse),
    "/tooling/streams": ("Register a stream (administrators)", StreamRegisterRequest, RecordResponse),
    "/tooling/submit_batch": ("Admit many MSGs, one by one", [Msg], [Receipt, ErrorEnvelope]),
    "/tooling/tail": ("Wait for entries and read them", TailRequest, StreamResponse),
}
_GETS: Final[dict[str, tuple[str, type[Wire] | list[type[Wire]], dict[str, Schema]]]] = {
    "/healthz": ("Check that the process is alive", HealthResponse, {}),
    "/readyz": ("Check that the hub admits messages", ReadyResponse, {}),
    "/version": ("Read the versions of hub and API", VersionResponse, {}),
    "/tooling/anchor": ("List anchors with their checkpoints", AnchorsResponse, {"label": _LABEL, "from": _UINT}),
    "/tooling/checkpoint_latest": ("Read the CHECKPOINT of a whole label", Checkpoint, {"label": _LABEL}),
    "/tooling/checkpoint_range": (
        "List checkpoints by epoch",
        [Checkpoint],
        {"epoch_min": _UINT, "epoch_max": _UINT, "label": _LABEL, "after": _LABEL},
    ),
    "/tooling/identity": ("Read the keys of the hub", IdentityResponse, {}),
    "/tooling/policy": ("List policy records (administrators)", PolicyRecordsResponse, {"after": _UINT}),
    "/tooling/status": ("Read the settings that a client needs", StatusResponse, {}),
    "/tooling/stream": (
        "Read a range of entries, in the older form",
        [LegacyItem],
        {"label": _LABEL, "from": _UINT, "with_proof": {"enum": [0, 1]}},
    ),
    "/tooling/streams": ("List registered streams (administrators)", StreamsResponse, {}),
}
_LABEL_OPTIONAL: Final = ("/tooling/checkpoint_range",)
_ERRORS: Final = {
    "400": "E.BAD_REQUEST, E.VERSION, E.FORMAT, E.TIME",
    "401": "E.UNAUTHORIZED",
    "403": "E.FORBIDDEN, E.CAP, E.AUTH",
    "404": "E.NOT_FOUND",
    "405": "another method",
    "408": "the request took too long to arrive",
    "409": "E.SIG, E.SEQ, E.CONFLICT",
    "413": "E.LIMIT, E.SIZE",
    "414": "the URL is too long",
    "415": "another Content-Type",
    "429": "E.RATE",
    "431": "the headers are too large",
    "503": "E.UNAVAILABLE",
}


def document() -> dict[str, Any]:
    """Return the whole document, with everything in a fixed order."""
    components: dict[str, Schema] = {}
    paths: dict[str, Schema] = {}
    for path, (about, request, response) in _POSTS.items():
        operation = _operation(path, "post", about, response, components)
        operation["requestBody"] = {"required": True, "content": _content(request, components, MAX_BATCH_ITEMS)}
        paths.setdefault(path, {})["post"] = operation
    for path, (about, answer, parameters) in _GETS.items():
        operation = _operation(path, "get", about, answer, components)
        if parameters:
            operation["parameters"] = [
                {
                    "name": name,
                    "in": "query",
                    "required": name == "label" and path not in _LABEL_OPTIONAL,
                    "schema": schema,
                }
                for name, schema in parameters.items()
            ]
        paths.setdefault(path, {})["get"] = operation
    error = {"application/json": {"schema": _reference(ErrorEnvelope, components)}}
    errors = {status: {"description": codes, "content": error} for status, codes in _ERRORS.items()}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "VEEN hub",
            "version": __version__,
            "description": "The JSON form of the API (docs/api.md): CBOR is the primary one. Bytes are lower-case hex.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": dict(sorted(paths.items())),
        "components": {"responses": errors, "schemas": dict(sorted(components.items()))},
    }


def _operation(
    path: str, method: str, about: str, response: type[Wire] | list[type[Wire]], components: dict[str, Schema]
) -> Schema:
    responses: Schema = {"200": {"description": about, "content": _content(response, components, None)}}
    responses |= {status: {"$ref": f"#/components/responses/{status}"} for status in _ERRORS}
    if path == "/readyz":
        responses["503"] = {"description": "not now", "content": _content(response, components, None)}
    name = path.strip("/").replace("/", "_")
    return {"operationId": f"{method}_{name}", "summary": about, "responses": responses}


def _content(kind: type[Wire] | list[type[Wire]], components: dict[str, Schema], most: int | None) -> Schema:
    if not isinstance(kind, list):
        return {"application/json": {"schema": _reference(kind, components)}}
    references = [_reference(cls, components) for cls in kind]
    items = references[0] if len(references) == 1 else {"anyOf": references}
    schema: Schema = {"type": "array", "items": items}
    if most is not None:
        schema["maxItems"] = most
    return {"application/json": {"schema": schema}}


@cache  # it is the same for all, and takes milliseconds
def document_bytes() -> bytes:
    """Return the document as committed in docs/openapi.json: `python -m veen.hub.api.openapi > docs/openapi.json`."""
    return json.dumps(document(), indent=1, ensure_ascii=False).encode() + b"\n"


if __name__ == "__main__":
    sys.stdout.buffer.write(document_bytes())
