"""A witness: cosigns checkpoints that continue the cosigned history (c2sp.org/tlog-witness).

POST add-checkpoint                       200 cosignature, or 400, 403, 404, 409, 422
GET  <hex SHA-256 of the origin>/checkpoint   the newest note with a cosignature that is at most an hour old
"""

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Final

from veen.core.crypto.ed25519 import SigningKey
from veen.core.tlog.errors import NoteError, NoteSignatureError, TlogProofError
from veen.core.tlog.note import (
    LogCheckpoint,
    Note,
    NoteSignature,
    VerifierKey,
    cosign,
    origin_hash,
    verify_signatures,
)
from veen.core.tlog.proof import MAX_REQUEST_BYTES, AddCheckpoint
from veen.core.tlog.tree import EMPTY_ROOT, check_consistency
from veen.io.web_listener import WebAnswer, WebRequest
from veen.products.witness.store import FORK, INCONSISTENT, WitnessStore

_TEXT: Final = "text/plain; charset=utf-8"
_SIZE: Final = "text/x.tlog.size"
_CHECKPOINT: Final = re.compile(r"/([0-9a-f]{64})/checkpoint")


class WitnessService:
    """One witness. `logs` are the keys by origin; every signed note is stored first."""

    def __init__(
        self,
        store: WitnessStore,
        key: SigningKey,
        vkey: VerifierKey,
        logs: Mapping[str, VerifierKey],
        clock: Callable[[], float],
    ) -> None:
        self._store, self._key, self.vkey, self.logs, self._clock = store, key, vkey, logs, clock
        self._origins = {origin_hash(origin): origin for origin in logs}
        self._turn = asyncio.Lock()  # the store belongs to one thread at a time
        self.cosigned = 0
        self.refused = 0

    async def handle(self, request: WebRequest) -> WebAnswer:
        """Answer a request; check and store in a thread, one request after the other."""
        async with self._turn:
            return await asyncio.to_thread(self.answer, request.method, request.path, request.body)

    def answer(self, method: str, path: str, body: bytes) -> WebAnswer:
        if path == "/add-checkpoint":
            if method != "POST":
                return _text(405, "the path takes POST", {"allow": "POST"})
            answer = self.add_checkpoint(body)
            self.cosigned += answer.status == 200
            self.refused += answer.status in (403, 422)
            return answer
        if (match := _CHECKPOINT.fullmatch(path)) and method in ("GET", "HEAD"):
            return self._checkpoint(self._origins.get(match[1], ""))
        return _text(404, "no such path")

    # --- add-checkpoint --------------------------------------------------------------------------------------

    def add_checkpoint(self, body: bytes) -> WebAnswer:
        if len(body) > MAX_REQUEST_BYTES:
            return _text(400, "the request is too large")
        try:
            request = AddCheckpoint.from_bytes(body)
            checkpoint = LogCheckpoint.parse(request.note.text)
        except NoteError as exc:
            return _text(400, str(exc))
        log = self.logs.get(checkpoint.origin)
        if log is None:
            return _text(404, "this log is not known here")
        try:
            if log not in verify_signatures(request.note, (log,)):
                return _text(403, "the known key of the log did not sign")
        except NoteSignatureError as exc:
            return _text(403, str(exc))
        if request.old > checkpoint.size:
            return _text(400, "the old size is above the size of the checkpoint")
        now = int(self._clock())
        with self._store.transaction():
            refusal = self._refuse(request, checkpoint, body, now)
            if refusal is None:
                # Only the log's own line is stored: lines of others are theirs to keep.
                own = Note(request.note.text, tuple(line for line in request.note.signatures if line.is_by(log)))
                self._store.put(own, checkpoint)
        return refusal or WebAnswer(200, self._cosign(request.note.text, now).line().encode(), _TEXT)

    def _refuse(self, request: AddCheckpoint, checkpoint: LogCheckpoint, body: bytes, now: int) -> WebAnswer | None:
        """Return the refusal of a checkpoint, and store evidence; None if it continues the cosigned history."""
        origin = checkpoint.origin
        newest, same_size = self._store.newest(origin), self._store.at(origin, checkpoint.size)
        if same_size is not None and same_size.checkpoint.root != checkpoint.root:  # two roots for one size: proof
            self._store.keep(FORK, checkpoint, now, body, same_size.note.to_bytes())
            return _text(422, "another root was signed for this size")
        size = 0 if newest is None else newest.checkpoint.size
        if request.old != size:
            return WebAnswer(409, f"{size}\n".encode(), _SIZE)
        try:
            root = EMPTY_ROOT if newest is None else newest.checkpoint.root
            check_consistency(size, checkpoint.size, request.path, root, checkpoint.root)
        except TlogProofError as exc:
            self._store.keep(INCONSISTENT, checkpoint, now, body, None if newest is None else newest.note.to_bytes())
            return _text(422, str(exc))
        return None

    def _cosign(self, text: str, now: int) -> NoteSignature:
        return cosign(self._key, self.vkey.name, text, now)

    # --- monitoring ------------------------------------------------------------------------------------------

    def _checkpoint(self, origin: str) -> WebAnswer:
        newest = self._store.newest(origin) if origin else None
        if newest is None:
            return _text(404, "nothing was cosigned for this log")
        note = newest.note.with_signatures((self._cosign(newest.note.text, int(self._clock())),))
        return WebAnswer(200, note.to_bytes(), _TEXT)


def _text(status: int, text: str, headers: Mapping[str, str] | None = None) -> WebAnswer:
    return WebAnswer(status, f"{text}\n".encode(), _TEXT, headers or {})
