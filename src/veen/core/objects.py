"""Recognise any one wire object, from its CBOR or its JSON form, without keys.

The shapes differ enough that trying each in turn is safe: of those that share a shape (a receipt request and a
proof request, say), `recognise` names all.
"""

import json
from dataclasses import dataclass
from typing import Final

from veen.core import cbor
from veen.core.captoken import CapToken
from veen.core.checkpoint import Checkpoint
from veen.core.control import ControlRecord
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
from veen.core.errors import FieldSizeError, FormatError, MalformedError
from veen.core.evidence import Equivocation
from veen.core.msg import Msg
from veen.core.payload_hdr import PayloadHdr
from veen.core.prekey import Prekey
from veen.core.profile import Profile
from veen.core.proof import ConsistencyProof, MmrProof, RangeProof
from veen.core.receipt import Receipt
from veen.core.wire import Wire

__all__ = ["KINDS", "Recognised", "parse_json", "recognise"]

KINDS: Final[tuple[type[Wire], ...]] = (
    Msg,
    Receipt,
    Checkpoint,
    ControlRecord,
    MmrProof,
    ConsistencyProof,
    RangeProof,
    CapToken,
    Prekey,
    Equivocation,
    Profile,
    PayloadHdr,
    SubmitRequest,
    SubmitResponse,
    StreamRequest,
    StreamResponse,
    ReceiptRequest,
    ReceiptResponse,
    ProofRequest,
    ProofResponse,
    CheckpointRequest,
    CheckpointResponse,
    ErrorEnvelope,
)


@dataclass(frozen=True, slots=True)
class Recognised:
    """One object, the encoding it came in, and other kinds that have the same shape."""

    obj: Wire
    encoding: str  # "cbor" or "json"
    also: tuple[str, ...]


def recognise(data: bytes) -> Recognised:
    """The object in `data`; a FormatError that tells the nearest miss if there is none."""
    as_json = data.lstrip()[:1] in (b"{", b"[")  # no canonical wire object begins with these bytes
    tree = parse_json(data) if as_json else cbor.decode(data)
    found: list[Wire] = []
    nearest: FormatError = MalformedError("well formed, but not one of the known objects", "item")
    for kind in KINDS:
        try:
            found.append(kind.from_json(tree) if as_json else kind.from_tree(tree))
        except FormatError as exc:
            # A size or version fault means that the shape was right, which is the most telling answer.
            if isinstance(nearest, MalformedError) and not isinstance(exc, MalformedError):
                nearest = exc.with_traceback(None)  # which would keep all that was read alive
    if not found:
        raise nearest
    return Recognised(found[0], "json" if as_json else "cbor", tuple(obj.KIND for obj in found[1:]))


def parse_json(data: bytes) -> object:
    """JSON as we accept it: UTF-8, no duplicate names, no fractions, bounded in size and depth."""
    if len(data) > cbor.MAX_ITEM_BYTES:
        raise FieldSizeError("JSON", f"at most {cbor.MAX_ITEM_BYTES} bytes", len(data))
    try:
        return json.loads(
            data.decode(), object_pairs_hook=_unique, parse_float=_refuse, parse_constant=_refuse, parse_int=_integer
        )
    except (ValueError, RecursionError) as exc:
        raise MalformedError(f"not the JSON form of an object: {type(exc).__name__}", "JSON") from exc


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    names = dict(pairs)
    if len(names) != len(pairs):
        raise ValueError("a name occurs twice")
    return names


def _integer(digits: str) -> int:
    if len(digits.lstrip("-")) > 20:  # longer than any 64-bit integer; int() would take quadratic time
        raise ValueError("integer outside 64 bits")
    return int(digits)


def _refuse(_: str) -> object:
    raise ValueError("only integers are allowed")
