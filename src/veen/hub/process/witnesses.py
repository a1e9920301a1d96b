"""Requests for cosignatures of C2SP witnesses: the client side of `add-checkpoint` (c2sp.org/tlog-witness).

Functions here block and are called in a thread. Answers of a witness are trusted only as far as they are signed.
"""

import http.client
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from veen.core.errors import StatedError
from veen.core.tlog.errors import NoteError, NoteSignatureError, TlogError
from veen.core.tlog.note import (
    LogCheckpoint,
    Note,
    NoteSignature,
    VerifierKey,
    decode_text,
    origin_hash,
    parse_number,
    verify_signatures,
)
from veen.core.tlog.policy import PolicyKey
from veen.core.tlog.proof import AddCheckpoint

_MAX_ANSWER: Final = 256 * 1024
Consistency = Callable[[int, int], tuple[bytes, ...]]


class WitnessError(StatedError, code="E.WITNESS"):
    """A witness gave no cosignature."""


class WitnessOfflineError(WitnessError, code="E.WITNESS.OFFLINE"):
    """The witness cannot be reached, or is not able to answer now."""


class WitnessConfigError(WitnessError, code="E.WITNESS.UNKNOWN_LOG"):
    """The witness does not know the log, or another key for it."""


class WitnessAnswerError(WitnessError, code="E.WITNESS.ANSWER"):
    """The answer is not one of the protocol, or has no valid signature."""


class WitnessAheadError(WitnessError, code="E.WITNESS.AHEAD"):
    """The witness has a larger checkpoint that our key signed: this directory is an old copy, or another one writes."""


class WitnessForkError(WitnessError, code="E.WITNESS.FORK"):
    """The witness refused the proof or the root: our log is not the one that it saw before."""

    def __init__(self, what: str, request: bytes = b"") -> None:
        super().__init__(what)
        self.request = request


@dataclass(frozen=True, slots=True)
class _Response:
    status: int
    content_type: str
    body: bytes


def _send(method: str, url: str, body: bytes | None, seconds: float) -> _Response:
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    try:
        connection = kind(parts.hostname or "", parts.port, timeout=seconds)
        try:
            connection.request(method, parts.path, body=body)
            response = connection.getresponse()
            data = response.read(_MAX_ANSWER + 1)
        finally:
            connection.close()
    except (OSError, http.client.HTTPException, ValueError) as exc:
        raise WitnessOfflineError(f"{url}: {type(exc).__name__}") from exc
    if len(data) > _MAX_ANSWER:
        raise WitnessAnswerError(f"{url}: the answer is too large")
    if response.status >= 500 or response.status == 429:
        raise WitnessOfflineError(f"{url}: answered {response.status}")
    return _Response(response.status, response.headers.get_content_type(), data)


def read_stored_checkpoint(witness: PolicyKey, log: VerifierKey, seconds: float) -> LogCheckpoint | None:
    """Return the newest checkpoint of the log that the witness has cosigned; None if it has none."""
    assert witness.url is not None  # noqa: S101 - callers ask those that have one
    response = _send("GET", f"{witness.url.rstrip('/')}/{origin_hash(log.name)}/checkpoint", None, seconds)
    if response.status == 404:
        return None
    if response.status != 200:
        raise WitnessAnswerError(f"{witness.url}: answered {response.status}")
    try:
        note = Note.from_bytes(response.body)
        checkpoint = LogCheckpoint.parse(note.text)
        if checkpoint.origin != log.name or log not in verify_signatures(note, (log,)):
            raise NoteSignatureError("the log did not sign it")
    except TlogError as exc:
        raise WitnessAnswerError(f"{witness.url}: {exc}") from exc
    return checkpoint


def ask_cosignatures(
    witness: PolicyKey, log: VerifierKey, note: Note, old: int, prove: Consistency, seconds: float
) -> tuple[NoteSignature, ...]:
    """Return the verified cosignature lines of a witness over `note`; raise WitnessError if there are none.

    `old` is the expected size at the witness; `prove` makes consistency proofs of the log.
    """
    assert witness.url is not None  # noqa: S101 - callers ask those that have one
    url = f"{witness.url.rstrip('/')}/add-checkpoint"
    size = LogCheckpoint.parse(note.text).size
    for _ in range(2):
        request = AddCheckpoint(old, prove(old, size), note).to_bytes()
        response = _send("POST", url, request, seconds)
        if response.status == 200:
            return _cosignatures(witness, note, response)
        if response.status != 409:
            raise _refusal(url, response.status, request)
        old = _read_size(url, response)
        if old > size:
            raise _ahead(witness, log, size, old, seconds)
    raise WitnessAnswerError(f"{url}: answers 409 to the size that it asked for")


def _cosignatures(witness: PolicyKey, note: Note, response: _Response) -> tuple[NoteSignature, ...]:
    try:
        lines = [NoteSignature.parse(line) for line in decode_text(response.body, "answer").split("\n")[:-1]]
        ours = tuple(line for line in lines if line.is_by(witness.vkey))
        for line in ours:
            line.verify(witness.vkey, note.text)
    except TlogError as exc:
        raise WitnessAnswerError(f"{witness.url}: {exc}") from exc
    if not ours:
        raise WitnessAnswerError(f"{witness.url}: no cosignature of {witness.vkey.name} in the answer")
    return ours


def _read_size(url: str, response: _Response) -> int:
    try:
        text = decode_text(response.body, "answer", 64)
        if response.content_type != "text/x.tlog.size":
            raise NoteError("409 without a size")
        return parse_number(text.removesuffix("\n"), "size")
    except NoteError as exc:
        raise WitnessAnswerError(f"{url}: {exc}") from exc


def _refusal(url: str, status: int, request: bytes) -> WitnessError:
    if status in (403, 404):
        why = "the log is not known there" if status == 404 else "another key is known for the log there"
        return WitnessConfigError(f"{url}: answered {status}, {why}")
    if status in (400, 422):
        return WitnessForkError(f"{url}: answered {status}: our log does not continue the one that was seen", request)
    return WitnessAnswerError(f"{url}: answered {status}")


def _ahead(witness: PolicyKey, log: VerifierKey, size: int, stated: int, seconds: float) -> WitnessError:
    """Return the error for a witness that states a larger size: it must show a larger note that the log itself
    signed."""
    checkpoint = read_stored_checkpoint(witness, log, seconds)
    if checkpoint is None or checkpoint.size <= size:
        return WitnessAnswerError(f"{witness.url}: claims {stated} leaves and shows no note that the log signed")
    return WitnessAheadError(f"{witness.url}: has a note of this log with {checkpoint.size} leaves, here are {size}")
