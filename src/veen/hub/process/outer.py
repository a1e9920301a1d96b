"""The outer log of a running hub (D-172): it lists checkpoints, signs notes, asks witnesses, and serves readers.

Receipts never wait for it. A note is published when the witnesses answered or their timeout is over; witnesses
that failed are counted. Once a witness proves that another copy of this log exists, nothing is signed any more.

Requests for cosignatures of C2SP witnesses: the client side of `add-checkpoint` (c2sp.org/tlog-witness).

Functions here block and are called in a thread. Answers of a witness are trusted only as far as they are signed.
"""

import asyncio
import http.client
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit

from veen.core import cbor
from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import StatedError
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import ControlRecord, OuterKey
from veen.core.tlog.note import (
    ED25519,
    LogCheckpoint,
    Note,
    NoteSignature,
    VerifierKey,
    check_name,
    decode_text,
    origin_hash,
    parse_number,
    verify_signatures,
)
from veen.core.tlog.policy import PolicyKey, WitnessPolicy
from veen.core.tlog.proof import CONTROL_LEAF, IDENTITY_LEAF, AddCheckpoint, OuterLeaf
from veen.core.tlog.tree import NoteError, NoteSignatureError, TlogError, WitnessPolicyError
from veen.hub.admission.control_index import ControlIndex
from veen.hub.process.config import ConfigError, Outer
from veen.hub.process.housekeeping import in_thread
from veen.hub.process.logs import EventLog
from veen.hub.sequencer.sequencer import NotDurable, Overloaded, Sequencer, Stopped
from veen.io.errors import StorageError, is_disk_full
from veen.io.local import Fs
from veen.storage.label_files import LabelHead
from veen.storage.outer import MissingOuterKeyError, OuterLogFiles, outer_signing_key

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


_REFRESH_SECONDS: Final = (
    1800.0  # after which an unchanged note is cosigned again: monitors want it at most an hour old
)
_MAX_POLICY_BYTES: Final = 1 << 20
_PAGE: Final = 256


class SealLabel(Protocol):
    """A function that signs the newest checkpoint of a label."""

    def __call__(self, head: LabelHead) -> Checkpoint: ...


def read_policy(path: Path | None) -> WitnessPolicy | None:
    """Read the policy that the configuration names. Raise ConfigError if it cannot be used."""
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            return WitnessPolicy.parse(file.read(_MAX_POLICY_BYTES + 1).decode())
    except (OSError, UnicodeDecodeError, TlogError, WitnessPolicyError) as exc:
        raise ConfigError(
            str(path), "outer.policy", str(exc), "Correct the file: docs/witnesses.md shows one."
        ) from exc


class OuterLog:
    """The outer log. Fields are owned by the event loop's thread; `files` is used by one helper thread at a time,
    under `_turn`."""

    def __init__(self, fs: Fs, sequencer: Sequencer, log: EventLog, origin: str, identity: bytes) -> None:
        self._fs, self._sequencer, self._log = fs, sequencer, log
        self._identity = identity  # hub-identity.json, which is leaf 0
        self._turn = asyncio.Lock()
        self._changed: set[bytes] | None = None  # labels that grew since they were listed; None: any of them
        self._sizes: dict[str, int] = {}  # size of the newest checkpoint at each witness, by name
        self._cosigned_at = -_REFRESH_SECONDS
        self._asked: Sequence[str] = ()
        self._fence_listed = False  # True if the last note lists the record that fenced this hub
        self.halted: str | None = None  # the reason why nothing is signed any more
        self.failures = 0  # of witnesses
        self.cosignatures = 0  # on the published note
        try:
            check_name(origin)
        except TlogError as exc:
            raise ConfigError(
                "outer.origin", "outer.origin", str(exc), "Give a name such as hub.example/veen."
            ) from exc
        record = self.record()
        if record is not None and isinstance(record.body, OuterKey) and record.body.origin != origin:
            raise StorageError(
                f"the control journal binds the outer log to the origin {record.body.origin}, which never changes;"
                f" {origin} is configured"
            )
        self._key: SigningKey = outer_signing_key(fs, new_log=not OuterLogFiles.exists(fs))
        self.vkey = VerifierKey(origin, ED25519, self._key.public)
        self.files = OuterLogFiles(fs, self.vkey)
        sequencer.on_applied(self._on_applied)

    def close(self) -> None:
        self.files.close()

    def _on_applied(self, labels: Sequence[bytes]) -> None:
        if self._changed is not None:
            self._changed.update(labels)

    # --- start -----------------------------------------------------------------------------------------------

    async def begin(self, policy: WitnessPolicy | None, seconds: float) -> None:
        """Bind the key by a control record, and ask the witnesses if this is the newest copy of the log.

        Raise WitnessAheadError if one of them has a note that this log signed and that this directory does not have.
        """
        record = ControlIndex(self._sequencer.store).outer_key()
        body = OuterKey(origin=self.vkey.name, vkey=str(self.vkey))
        if record is None:
            await self._sequencer.control(lambda hub_ts: body)
        elif record.body != body:
            raise MissingOuterKeyError(
                "the control journal binds the outer log to another key than the one that is here"
            )
        for name, witness in _askable(policy).items():
            try:
                checkpoint = await in_thread(read_stored_checkpoint, witness, self.vkey, seconds)
            except WitnessError as exc:
                self._count_failure(name, exc)
                continue
            if checkpoint is None:
                continue
            self._sizes[name] = checkpoint.size
            if checkpoint.size > self.files.signed_size or self.files.root(checkpoint.size) != checkpoint.root:
                raise WitnessAheadError(
                    f"{witness.url}: has a note of this log with {checkpoint.size} leaves that this directory does not"
                    f" continue; it has {self.files.signed_size}"
                )

    # --- by itself -------------------------------------------------------------------------------------------

    async def run(
        self, settings: Callable[[], Outer], seal: SealLabel, policy: Callable[[], WitnessPolicy | None]
    ) -> None:
        """Run until cancelled. Read the settings on each pass: a reload may change them."""
        while True:
            try:
                await self.publish(seal, policy(), float(settings().witness_timeout))
            except Exception as exc:
                if not is_disk_full(exc) and not isinstance(exc, (NotDurable, Overloaded, Stopped)):
                    raise
                self._log.event("warning", "outer", f"put off: {exc}")
            await self._pause(max(1, settings().every))

    async def _pause(self, seconds: int) -> None:
        """Wait until the next note is due. List a fence at once: the hub that takes over must know that nothing
        follows."""
        for _ in range(seconds):
            await asyncio.sleep(1.0)
            if self._sequencer.store.state.fenced and not self._fence_listed:
                return

    async def publish(self, seal: SealLabel, policy: WitnessPolicy | None, seconds: float) -> Note | None:
        """List changed labels, sign a note, collect cosignatures and publish. Return None once nothing is signed any
        more."""
        async with self._turn:
            if self.halted is not None:
                return None
            fenced = self._sequencer.store.state.fenced
            before = self.files.signed
            try:
                leaves = await self._new_leaves(seal)
                note = await in_thread(self._sign, leaves)
            except BaseException:
                self._changed = None  # some changes may not be listed: look at all labels next time
                raise
            askable = _askable(policy)
            due = time.monotonic() - self._cosigned_at >= _REFRESH_SECONDS or sorted(askable) != list(self._asked)
            self._fence_listed = fenced
            published = self.files.published
            if note == before and published is not None and published.text == note.text and not due:
                return published
            lines = await self._cosignatures(askable, note, seconds)
            if self.halted is not None:
                return None
            if published is not None and published.text == note.text:  # earlier cosignatures stay valid
                note = published
            note = note.with_signatures(lines)
            self.cosignatures = len(note.signatures) - 1
            await in_thread(self.files.publish, note)
            if len(lines) >= len(askable):
                self._cosigned_at, self._asked = time.monotonic(), sorted(askable)
            return note

    def _sign(self, leaves: Sequence[bytes]) -> Note:
        if leaves:
            self.files.append(leaves)
        return self.files.sign(self._key)

    async def _new_leaves(self, seal: SealLabel) -> list[bytes]:
        """Return leaves by label, then the newest control record. The store shows applied entries only, and those
        are durable."""
        leaves: list[bytes] = []
        if not self.files.size:
            leaves.append(OuterLeaf(IDENTITY_LEAF, self._identity).to_bytes())
        changed, self._changed = self._changed, set()
        heads = await self._heads(changed)
        for count, head in enumerate(sorted(heads, key=lambda head: head.label), 1):
            if head.size > await in_thread(self.files.last_upto, head.label):
                leaves.append(OuterLeaf.of_checkpoint(seal(head)).to_bytes())
            if count % _PAGE == 0:
                await asyncio.sleep(0)
        await self._sequencer.wait_settled()
        control = self._sequencer.store.last_control
        if control is not None and await in_thread(self.files.last_control) != control:
            leaves.append(OuterLeaf(CONTROL_LEAF, control.to_bytes()).to_bytes())
        return leaves

    async def _heads(self, changed: set[bytes] | None) -> list[LabelHead]:
        await self._sequencer.wait_settled()  # a store that is being opened again is not read (decisions.md 498)
        store = self._sequencer.store
        if changed is not None:
            files = (store.files(label) for label in sorted(changed))
            return [label_files.head() for label_files in files if label_files is not None and label_files.size]
        heads: list[LabelHead] = []
        epoch, after = 0, None
        while True:
            page = store.heads(epoch, after, _PAGE)
            heads += [head for head in page if head.size]
            if len(page) < _PAGE or page[-1].epoch > cbor.U64_MAX:
                return heads
            epoch, after = page[-1].epoch, page[-1].label
            await asyncio.sleep(0)
            await self._sequencer.wait_settled()
            store = self._sequencer.store

    # --- witnesses -------------------------------------------------------------------------------------------

    async def _cosignatures(
        self, witnesses: Mapping[str, PolicyKey], note: Note, seconds: float
    ) -> list[NoteSignature]:
        """Return the signatures of all witnesses that answer in time, also of those outside of the quorum."""
        if not witnesses:
            return []
        answers = await asyncio.gather(
            *(self._ask(name, witness, note, seconds) for name, witness in witnesses.items())
        )
        return [line for lines in answers for line in lines]

    async def _ask(self, name: str, witness: PolicyKey, note: Note, seconds: float) -> tuple[NoteSignature, ...]:
        old, size = self._sizes.get(name, 0), self.files.signed_size
        # The thread of a witness that answers very slowly is abandoned; it uses nothing that is closed before it ends.
        asking = asyncio.get_running_loop().run_in_executor(
            None, ask_cosignatures, witness, self.vkey, note, min(old, size), self.files.prove_apart, seconds
        )
        try:
            lines = await asyncio.wait_for(asking, seconds * 2)
        except TimeoutError:
            self._count_failure(name, WitnessError("no answer in time"))
            return ()
        except (WitnessAheadError, WitnessForkError) as exc:
            self._halt(name, exc)
            return ()
        except WitnessError as exc:
            self._count_failure(name, exc)
            return ()
        self._sizes[name] = size
        return lines

    def _count_failure(self, name: str, error: WitnessError) -> None:
        self.failures += 1
        self._log.event("warning", "outer", f"witness {name} gave no cosignature: {error.code}: {error}")

    def _halt(self, name: str, error: WitnessError) -> None:
        self.failures += 1
        self.halted = f"witness {name}: {error}"
        path = self.files.keep_refusal(error.request) if isinstance(error, WitnessForkError) and error.request else ""
        self._log.event("error", "outer", f"the outer log signs nothing any more: {error.code}: {error}", evidence=path)

    # --- readers ---------------------------------------------------------------------------------------------

    def record(self) -> ControlRecord | None:
        """Return the control record that binds the key."""
        return ControlIndex(self._sequencer.store).outer_key()

    def sign_receipt_key(self) -> SigningKey:
        return self._key


def _askable(policy: WitnessPolicy | None) -> Mapping[str, PolicyKey]:
    """Return every witness of the policy that has a URL, once each."""
    if policy is None:
        return {}
    return {name: witness for name, witness in policy.witnesses.items() if witness.url}
