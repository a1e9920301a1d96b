"""Recognition of any single wire object, from its CBOR or its JSON form, without keys.

The forms differ enough that trying each in turn is safe. Of those that have one form (a receipt request and a proof
request, for instance), `recognise` names all.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from veen.core import cbor
from veen.core.errors import FieldSizeError, FormatError, MalformedError
from veen.core.objects import envelopes
from veen.core.objects.captoken import CapToken
from veen.core.objects.card import Prekey
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import ControlRecord
from veen.core.objects.evidence import Equivocation
from veen.core.objects.msg import Msg
from veen.core.objects.payload_hdr import PayloadHdr
from veen.core.objects.profile import Profile
from veen.core.objects.receipt import Receipt
from veen.core.tree.proof import ConsistencyProof, MmrProof, RangeProof
from veen.core.wire import Wire

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
    envelopes.SubmitRequest,
    envelopes.SubmitResponse,
    envelopes.StreamRequest,
    envelopes.StreamResponse,
    envelopes.ReceiptRequest,
    envelopes.ReceiptResponse,
    envelopes.ProofRequest,
    envelopes.ProofResponse,
    envelopes.CheckpointRequest,
    envelopes.CheckpointResponse,
    envelopes.ErrorEnvelope,
)


@dataclass(frozen=True, slots=True)
class Recognised:
    """One object, the encoding it came in, and other kinds that have the same shape."""

    obj: Wire
    encoding: str  # "cbor" or "json"
    also: tuple[str, ...]


def recognise(data: bytes) -> Recognised:
    """Return the object in `data`; if there is none, raise the FormatError of the closest kind."""
    as_json = data.lstrip()[:1] in (b"{", b"[")  # no canonical wire object begins with these bytes
    tree = parse_json(data) if as_json else cbor.decode(data)
    objects: list[Wire] = []
    nearest: FormatError = MalformedError("well formed, but not one of the known objects", "item")
    for kind in KINDS:
        try:
            objects.append(kind.from_json(tree) if as_json else kind.from_tree(tree))
        except FormatError as exc:
            # A size or version fault means that the shape was right, which is the most telling answer.
            if isinstance(nearest, MalformedError) and not isinstance(exc, MalformedError):
                nearest = exc.with_traceback(None)  # which would keep all that was read alive
    if not objects:
        raise nearest
    return Recognised(objects[0], "json" if as_json else "cbor", tuple(obj.KIND for obj in objects[1:]))


class NoItem:
    """Placeholder in a parsed tree for JSON that no CBOR item equals; every field refuses it as a value of a wrong
    type.
    """

    __slots__ = ()


NO_ITEM: Final = NoItem()


def parse_json(data: bytes) -> object:
    """Parse JSON as hubs accept it: UTF-8, no duplicate names, no fractions, bounded in size and depth."""
    return _parse(data, _refuse, _integer, _unique)


def parse_json_parts(data: bytes) -> object:
    """Parse as `parse_json` does, but put NO_ITEM for a fraction, an integer outside 64 bits or repeated names.

    The reader of an envelope then decides which part is at fault (D-54, D-164).
    """
    return _parse(data, lambda _: NO_ITEM, _integer_or_none, _unique_or_none)


def _parse(
    data: bytes,
    fraction: Callable[[str], object],
    integer: Callable[[str], object],
    pairs: Callable[[list[tuple[str, object]]], object],
) -> object:
    if len(data) > cbor.MAX_ITEM_BYTES:
        raise FieldSizeError("JSON", f"at most {cbor.MAX_ITEM_BYTES} bytes", len(data))
    try:
        return json.loads(
            data.decode(), object_pairs_hook=pairs, parse_float=fraction, parse_constant=_refuse, parse_int=integer
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


def _unique_or_none(pairs: list[tuple[str, object]]) -> object:
    names = dict(pairs)
    return names if len(names) == len(pairs) else NO_ITEM


def _integer_or_none(digits: str) -> object:
    return int(digits) if len(digits.lstrip("-")) <= 20 else NO_ITEM


def _refuse(_: str) -> object:
    raise ValueError("only integers are allowed")
