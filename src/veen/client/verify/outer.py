"""The outer log of a hub for clients: the bound key, notes, leaves and proofs (docs/witnesses.md).

The key of the log follows from the pin: a control record that a key of the hub signed names it. Bytes and signatures
are checked here; `WitnessPolicy` decides if a note satisfies a policy.
"""

from collections.abc import AsyncIterator
from typing import Final

from veen.client.errors import BadAnswer, HubRefused
from veen.client.session import HubSession
from veen.client.transport.calls import is_not_found
from veen.core.errors import FormatError
from veen.core.objects.control import ControlRecord, OuterKey
from veen.core.tlog.note import LogCheckpoint, Note, VerifierKey, verify_signatures
from veen.core.tlog.proof import CoseReceipt, OuterLeaf, TlogProof
from veen.core.tlog.tree import NoteSignatureError, TlogError

_WIDTH: Final = 256
_LENGTH_BYTES: Final = 2


class OuterReader:
    """The outer log of the hub of one session."""

    def __init__(self, session: HubSession) -> None:
        self._session = session
        self._vkey: VerifierKey | None = None

    async def _get(self, path: str) -> bytes:
        return (await self._session.calls.send(f"outer/{path}", b"")).body

    async def vkey(self) -> VerifierKey:
        """Return the key of the log, bound to the pin by a record of the control journal."""
        if self._vkey is None:
            data = await self._get("key")
            try:
                record = ControlRecord.from_bytes(data)
                if not isinstance(record.body, OuterKey):
                    raise BadAnswer("outer/key: a record that names no key")
                vkey = VerifierKey.parse(record.body.vkey)
            except (FormatError, TlogError) as exc:
                raise BadAnswer(f"outer/key: {exc}") from exc
            self._session.pin.check_control(record)
            if vkey.name != record.body.origin:
                raise BadAnswer("outer/key: origin and key have different names")
            self._vkey = vkey
        return self._vkey

    async def note(self) -> tuple[Note, LogCheckpoint]:
        """Return the published note, signed by the key of the log."""
        vkey = await self.vkey()
        try:
            note = Note.from_bytes(await self._get("checkpoint"))
            return note, _check_note(note, vkey)
        except TlogError as exc:
            raise BadAnswer(f"outer/checkpoint: {exc}") from exc

    async def leaves(self, start: int, end: int) -> AsyncIterator[bytes]:
        """Yield the leaves start … end - 1 as the hub sends them; `end` is the size of the published note."""
        while start < end:
            number, offset = divmod(start, _WIDTH)
            width = min(_WIDTH, end - number * _WIDTH)
            leaves = _bundle(await self._get(f"tile/entries/{_tile_path(number, width)}"), width)
            for leaf in leaves[offset:]:
                yield leaf
            start = number * _WIDTH + width

    async def proof(self, label: bytes, seq: int) -> tuple[TlogProof, OuterLeaf] | None:
        """Return the proof that a CHECKPOINT that covers entry `seq` is listed; None if none is listed yet."""
        vkey = await self.vkey()
        try:
            data = await self._get(f"proof/{label.hex()}/{seq}")
        except HubRefused as exc:
            if is_not_found(exc):
                return None
            raise
        try:
            proof = TlogProof.from_bytes(data)
            _check_note(proof.note, vkey)
            leaf = OuterLeaf.from_bytes(proof.extra or b"")
            proof.check(leaf.to_bytes())
            checkpoint = leaf.checkpoint()
        except TlogError as exc:
            raise BadAnswer(f"outer/proof: {exc}") from exc
        if checkpoint is None or checkpoint.label_curr != label or checkpoint.upto_seq < seq:
            raise BadAnswer("outer/proof: another checkpoint than the one asked for")
        return proof, leaf

    async def receipt(self, label: bytes, seq: int, proof: TlogProof, leaf: OuterLeaf) -> CoseReceipt:
        """Return the COSE receipt that belongs to a proof."""
        vkey, checkpoint = await self.vkey(), LogCheckpoint.parse(proof.note.text)
        data = await self._get(f"receipt/{label.hex()}/{seq}?size={checkpoint.size}")
        try:
            receipt = CoseReceipt.from_bytes(data)
            receipt.verify(vkey, leaf.to_bytes(), checkpoint)
        except TlogError as exc:
            raise BadAnswer(f"outer/receipt: {exc}") from exc
        return receipt


def _check_note(note: Note, vkey: VerifierKey) -> LogCheckpoint:
    checkpoint = LogCheckpoint.parse(note.text)
    if checkpoint.origin != vkey.name or vkey not in verify_signatures(note, (vkey,)):
        raise NoteSignatureError("the note is not signed by the key of the log")
    return checkpoint


def _tile_path(number: int, width: int) -> str:
    text = f"{number:03d}"
    groups = [text[max(0, end - 3) : end].rjust(3, "0") for end in range(len(text), 0, -3)][::-1]
    path = "/".join([*(f"x{group}" for group in groups[:-1]), groups[-1]])
    return path if width == _WIDTH else f"{path}.p/{width}"


def _bundle(data: bytes, count: int) -> list[bytes]:
    leaves: list[bytes] = []
    pos = 0
    while len(leaves) < count:
        length = int.from_bytes(data[pos : pos + _LENGTH_BYTES], "big")
        start = pos + _LENGTH_BYTES
        if start > len(data) or start + length > len(data):
            raise BadAnswer("outer/tile: the bundle of leaves is cut off")
        leaves.append(data[start : start + length])
        pos = start + length
    if pos != len(data):
        raise BadAnswer("outer/tile: bytes follow the leaves")
    return leaves
