"""The outer log for readers: the note, leaves and tree as tlog-tiles, proofs and receipts (D-172, docs/witnesses.md).

/outer/checkpoint                     the published note
/outer/key                            the control record that binds the key of the log to the hub's key (CBOR)
/outer/tile/<L>/<N>[.p/<W>]           hashes, 256 to a tile (c2sp.org/tlog-tiles)
/outer/tile/entries/<N>[.p/<W>]       leaves, each behind its length as u16
/outer/proof/<label>/<seq>            tlog-proof of the first listed checkpoint that covers an entry; `extra`: leaf
/outer/receipt/<label>/<seq>?size=N   the same as a COSE receipt, of the tree of N leaves
"""

import re
from collections.abc import Callable
from typing import Final, Protocol

from veen.core.crypto.ed25519 import SigningKey
from veen.core.objects.control import ControlRecord
from veen.core.tlog.note import LogCheckpoint, VerifierKey
from veen.core.tlog.proof import CoseReceipt, OuterLeaf, TlogProof
from veen.hub.api.access import Role
from veen.hub.api.calls import Call, bad_request, not_found, uint_field
from veen.hub.api.operations import Api, Handler
from veen.hub.api.reply import CBOR, Reply
from veen.hub.process.housekeeping import in_thread
from veen.storage.outer import OuterLogFiles

_TEXT: Final = "text/plain; charset=utf-8"
_BYTES: Final = "application/octet-stream"
_COSE: Final = "application/cose"
_WIDTH: Final = 256
_TILE: Final = re.compile(r"tile/(entries|[0-9]{1,2})/((?:x[0-9]{3}/)*[0-9]{3})(?:\.p/([0-9]{1,3}))?")
_PLACE: Final = re.compile(r"(proof|receipt)/([0-9a-f]{64})/([1-9][0-9]{0,18})")


class ServedOuter(Protocol):
    """An outer log that readers are served from: the hub's own, or a replica's copy."""

    @property
    def files(self) -> OuterLogFiles: ...
    @property
    def vkey(self) -> VerifierKey: ...
    def record(self) -> ControlRecord | None: ...
    def sign_receipt_key(self) -> SigningKey: ...


class OuterOperations:
    """The operation `outer`, by GET. `of` returns the outer log, or None if the hub has none."""

    def __init__(self, api: Api, of: Callable[[], ServedOuter | None]) -> None:
        self._api, self._context, self._of = api, api.context, of

    def operations(self) -> dict[str, tuple[Role, Handler]]:
        return {"outer": (Role.ANY, self._outer)}

    async def _outer(self, call: Call) -> Reply:
        outer, path = self._of(), call.query["path"]
        if outer is None:
            raise not_found("this hub has no outer log: outer.origin is not configured")
        if path == "checkpoint":
            if (note := outer.files.published) is None:
                raise not_found("no note is published yet")
            return Reply(200, note.to_bytes(), _TEXT, headers=(("Cache-Control", "no-cache"),))
        if path == "key":
            if (record := outer.record()) is None:
                raise not_found("the key of the outer log is not bound yet")
            return Reply(200, record.to_bytes(), CBOR)
        # Leaves name labels, so they need the right to read.
        self._context.check_role(Role.READ, call.principal)
        if tile := _TILE.fullmatch(path):
            data = await in_thread(_tile, outer.files, tile[1], int(re.sub(r"[x/]", "", tile[2])), tile[3])
            return Reply(200, data, _BYTES)
        if place := _PLACE.fullmatch(path):
            return await self._place(call, outer, place[1], bytes.fromhex(place[2]), int(place[3]))
        raise not_found("no such path")

    async def _place(self, call: Call, outer: ServedOuter, kind: str, label: bytes, seq: int) -> Reply:
        pos, note = await in_thread(outer.files.checkpoint_leaf, label, seq), outer.files.published
        checkpoint = None if note is None else LogCheckpoint.parse(note.text)
        if pos is None or note is None or checkpoint is None or pos >= checkpoint.size:
            raise not_found("no listed checkpoint covers this entry yet", label=label.hex(), stream_seq=seq)
        leaf = outer.files.leaf(pos)
        if kind == "proof":
            path = outer.files.prove_inclusion(pos, checkpoint.size)
            return Reply(200, TlogProof(pos, path, note, leaf).to_bytes(), _TEXT)
        size = uint_field(call.query, "size", checkpoint.size)
        if not pos < size <= outer.files.signed_size or size < 2:
            raise bad_request("expected the size of a note that has this leaf", "size")
        signed = LogCheckpoint(outer.vkey.name, size, outer.files.root(size))
        body = OuterLeaf.from_bytes(leaf).checkpoint()
        assert body is not None  # noqa: S101 - `checkpoint_leaf` finds only leaves of checkpoints
        receipt = CoseReceipt.issue(
            outer.sign_receipt_key(),
            signed,
            pos,
            outer.files.prove_inclusion(pos, size),
            subject=f"veen:checkpoint:{label.hex()}:{body.upto_seq}",
            issued_at=self._context.services.sequencer.now(),
        )
        return Reply(200, receipt.to_bytes(), _COSE)


def _tile(files: OuterLogFiles, level: str, number: int, width_text: str | None) -> bytes:
    """Return a full tile, or the first `width` items of the one that still grows."""
    width = _WIDTH if width_text is None else int(width_text)
    height = 0 if level == "entries" else 8 * int(level)
    published = files.published
    size = 0 if published is None else LogCheckpoint.parse(published.text).size
    count = size >> height
    if not 1 <= width <= _WIDTH or (width_text is not None and width == _WIDTH):
        raise not_found("a partial tile has 1 to 255 items")
    first = number * _WIDTH
    if height > 56 or first + width > count:
        raise not_found("the published tree has no such tile")
    if level != "entries":
        return b"".join(files.node_at(height, index) for index in range(first, first + width))
    leaves = [files.leaf(pos) for pos in range(first, first + width)]
    return b"".join(len(leaf).to_bytes(2, "big") + leaf for leaf in leaves)
