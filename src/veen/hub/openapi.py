"""The OpenAPI 3.1 document of the JSON form, made from the wire objects themselves (D-62).

`_read` lists the fields of an object once, for CBOR and JSON; here a recorder walks the same list and notes a schema
for each field. So the document cannot differ from what the hub reads and writes.
"""

import json
import sys
from collections.abc import Callable, Collection
from typing import Any, Final

from veen import __version__
from veen.core import cbor
from veen.core.captoken import CapToken
from veen.core.checkpoint import Checkpoint
from veen.core.control import BODIES, ControlRecord
from veen.core.envelopes import (
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
from veen.core.evidence import Equivocation
from veen.core.msg import Msg
from veen.core.profile import PRESETS, Profile
from veen.core.receipt import Receipt
from veen.core.tooling import (
    MAX_BATCH_ITEMS,
    AnchorRequest,
    AnchorResponse,
    AnchorsResponse,
    AuthorizeResponse,
    CapStatusRequest,
    CapStatusResponse,
    CheckpointRangeRequest,
    ConsistencyRequest,
    ConsistencyResponse,
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
from veen.core.wire import Wire

__all__ = ["document", "document_bytes"]

Schema = dict[str, Any]

_UINT: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": cbor.U64_MAX}


class _Recorder:
    """Looks like `wire.Fields` to `_read`, and notes what is asked for."""

    def __init__(self, components: dict[str, Schema]) -> None:
        self.fields: dict[str, Schema] = {}
        self.required: list[str] = []
        self._components = components
        self._optional = False

    def _note(self, name: str, schema: Schema) -> None:
        self.fields[name] = schema
        if not self._optional:
            self.required.append(name)

    def version(self) -> None:
        self._note("ver", {"const": 1})

    def uint(self, name: str) -> int:
        self._note(name, _UINT)
        return 0

    def bstr(self, name: str, size: int) -> bytes:
        self._note(name, _hex(size))
        return bytes(size)

    def blob(self, name: str) -> bytes:
        self._note(name, _hex(None))
        return b""

    def text(self, name: str) -> str:
        self._note(name, {"type": "string"})
        return ""

    def choice(self, name: str, options: Collection[str]) -> str:
        self._note(name, {"enum": sorted(options)})
        return ""

    def flag(self, name: str) -> bool:
        self._note(name, {"type": "boolean"})
        return False

    def free(self, name: str) -> dict[str, Any]:
        self._note(name, {"type": "object"})
        return {}

    def bstrs(self, name: str, size: int, *, at_least: int = 0, at_most: int) -> tuple[bytes, ...]:
        self._note(name, _list(_hex(size), at_least, at_most))
        return ()

    def object(self, name: str, cls: type[Wire]) -> Any:
        self._note(name, _reference(cls, self._components))

    def objects(self, name: str, cls: type[Wire], *, at_least: int = 0, at_most: int) -> tuple[Any, ...]:
        self._note(name, _list(_reference(cls, self._components), at_least, at_most))
        return ()

    def optional(self, read: Callable[..., Any], name: str, *args: Any, **kwargs: Any) -> Any:
        self._optional = True
        read(name, *args, **kwargs)
        self._optional = False

    def more(self) -> bool:
        self._optional = True  # what follows is trimmed when absent
        return True


def _hex(size: int | None) -> Schema:
    digits = "([0-9a-f]{2})*" if size is None else f"[0-9a-f]{{{2 * size}}}"
    return {"type": "string", "pattern": f"^{digits}$"}


def _list(items: Schema, at_least: int, at_most: int) -> Schema:
    return {"type": "array", "items": items, "minItems": at_least, "maxItems": at_most}


def _reference(cls: type[Wire], components: dict[str, Schema]) -> Schema:
    if cls.__name__ not in components:
        components[cls.__name__] = {}  # before its fields, which may refer to it
        components[cls.__name__] = _schema(cls, components)
    return {"$ref": f"#/components/schemas/{cls.__name__}"}


def _schema(cls: type[Wire], components: dict[str, Schema]) -> Schema:
    if cls in _SPECIAL:
        return _SPECIAL[cls](components)
    recorder = _Recorder(components)
    cls._read(recorder)  # type: ignore[arg-type]  # it has the methods that are called
    about = " ".join((cls.__doc__ or cls.KIND).split())
    if cls.FORM != "array":
        return {
            "type": "object",
            "description": about,
            "properties": recorder.fields,
            "required": recorder.required,
            "additionalProperties": False,
        }
    items = []
    for name, schema in recorder.fields.items():
        allowed = schema if name in recorder.required else {"anyOf": [schema, _NULL]}
        items.append({"description": name, **allowed})
    fewest = len(items) - (cls is Checkpoint)  # witness_sigs is trimmed
    return {"type": "array", "description": about, "prefixItems": items, "minItems": fewest, "maxItems": len(items)}


_NULL: Final[Schema] = {"type": "null"}


def _profile(components: dict[str, Schema]) -> Schema:
    """Its suite is fixed, so its fields have values instead of types."""
    fields = PRESETS["messaging"].to_json()
    properties = {name: _UINT if type(value) is int else {"const": value} for name, value in fields.items()}
    return {"type": "object", "properties": properties, "required": list(fields), "additionalProperties": False}


def _control_record(components: dict[str, Schema]) -> Schema:
    bodies = [_reference(body, components) for body in BODIES.values()]
    items = [{"const": 1}, _UINT, {"enum": list(BODIES)}, _UINT, _hex(32), {"anyOf": bodies}, _hex(64)]
    return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}


def _equivocation(components: dict[str, Schema]) -> Schema:
    statement = {"anyOf": [_reference(Receipt, components), _reference(Checkpoint, components)]}
    fields = {"ver": {"const": 1}, "hub_pks": _list(_hex(32), 1, 2), "first": statement, "second": statement}
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


_SPECIAL: Final[dict[type[Wire], Callable[[dict[str, Schema]], Schema]]] = {
    Profile: _profile,
    ControlRecord: _control_record,
    Equivocation: _equivocation,
}

# path -> (what it does, request, response); a list of one class is a sequence of it
_POSTS: Final[dict[str, tuple[str, type[Wire] | list[type[Wire]], type[Wire] | list[type[Wire]]]]] = {
    "/v1/submit": ("Admit a MSG", SubmitRequest, SubmitResponse),
    "/v1/stream": ("Read a range of entries", StreamRequest, StreamResponse),
    "/v1/receipt": ("The RECEIPT of one entry", ReceiptRequest, ReceiptResponse),
    "/v1/proof": ("The inclusion proof of one entry", ProofRequest, ProofResponse),
    "/v1/checkpoint": ("A signed CHECKPOINT of a prefix", CheckpointRequest, CheckpointResponse),
    "/tooling/anchor": ("Anchor a checkpoint (administrators)", AnchorRequest, AnchorResponse),
    "/tooling/authorize": ("Make a capability known", CapToken, AuthorizeResponse),
    "/tooling/cap_status": ("What the hub holds about a capability", CapStatusRequest, CapStatusResponse),
    "/tooling/checkpoint_latest": ("The checkpoint of a whole label", LabelRequest, CheckpointResponse),
    "/tooling/checkpoint_range": ("Checkpoints by epoch", CheckpointRangeRequest, [Checkpoint]),
    "/tooling/consistency": ("Proof that a label was only appended to", ConsistencyRequest, ConsistencyResponse),
    "/tooling/identity": ("The keys of the hub", VersionRequest, IdentityResponse),
    "/tooling/inspect": ("Labels and their sizes", InspectRequest, InspectResponse),
    "/tooling/key_rotations": ("How the keys of the hub follow from its first", VersionRequest, [ControlRecord]),
    "/tooling/policy": ("Hand over revocations and authority (administrators)", PolicyRequest, PolicyResponse),
    "/tooling/proof_at": ("An entry under a later root", ProofAtRequest, ProofResponse),
    "/tooling/report_equivocation": ("Report two contradicting statements", Equivocation, OkResponse),
    "/tooling/rotate_key": ("Give the hub its next key (administrators)", RotateKeyRequest, RecordResponse),
    "/tooling/status": ("What a client needs to know", VersionRequest, StatusResponse),
    "/tooling/streams": ("Register a stream (administrators)", StreamRegisterRequest, RecordResponse),
    "/tooling/submit_batch": ("Admit many MSGs, one by one", [Msg], [Receipt, ErrorEnvelope]),
    "/tooling/tail": ("Read on, and wait for entries", TailRequest, StreamResponse),
}
_GETS: Final[dict[str, tuple[str, type[Wire] | list[type[Wire]], dict[str, Schema]]]] = {
    "/healthz": ("The process is alive", HealthResponse, {}),
    "/readyz": ("The hub admits messages", ReadyResponse, {}),
    "/version": ("Versions", VersionResponse, {}),
    "/tooling/anchor": ("Anchors beside their checkpoints", AnchorsResponse, {"label": _hex(32), "from": _UINT}),
    "/tooling/identity": ("The keys of the hub", IdentityResponse, {}),
    "/tooling/policy": ("Policy records (administrators)", PolicyRecordsResponse, {"after": _UINT}),
    "/tooling/status": ("What a client needs to know", StatusResponse, {}),
    "/tooling/stream": (
        "The older way to read",
        [LegacyItem],
        {"label": _hex(32), "from": _UINT, "with_proof": {"enum": [0, 1]}},
    ),
    "/tooling/streams": ("Registered streams (administrators)", StreamsResponse, {}),
}
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
    """The whole document, with everything in a fixed order."""
    components: dict[str, Schema] = {}
    paths: dict[str, Schema] = {}
    for path, (about, request, response) in _POSTS.items():
        made = _operation(path, "post", about, response, components)
        made["requestBody"] = {"required": True, "content": _content(request, components, MAX_BATCH_ITEMS)}
        paths.setdefault(path, {})["post"] = made
    for path, (about, answer, parameters) in _GETS.items():
        made = _operation(path, "get", about, answer, components)
        if parameters:
            made["parameters"] = [
                {"name": name, "in": "query", "required": name == "label", "schema": schema}
                for name, schema in parameters.items()
            ]
        paths.setdefault(path, {})["get"] = made
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


def document_bytes() -> bytes:
    """As committed in docs/openapi.json: `python -m veen.hub.openapi > docs/openapi.json`."""
    return json.dumps(document(), indent=1, ensure_ascii=False).encode() + b"\n"


if __name__ == "__main__":
    sys.stdout.buffer.write(document_bytes())
