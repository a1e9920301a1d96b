"""Export of evidence files: entries are read and verified, then combined with everything that an outsider needs to
check them (docs/evidence.md).

The exported entries were verified against the pin, and the finished file is checked once more as its reader will
check it. Keys of streams and identities are never exported: an opening is the secret of one message.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final, Literal

from veen.client.errors import HubRefused, LocalError
from veen.client.identity.keyring import Stream
from veen.client.read.reading import Entry
from veen.client.session import HubSession
from veen.client.transport.calls import is_not_found
from veen.client.verify.labels import Labels, Target
from veen.client.verify.outer import OuterReader
from veen.client.verify.view import peaks_before
from veen.core.errors import SignatureError
from veen.core.evidence_check import EvidenceReport, check_evidence
from veen.core.evidence_file import (
    MAX_ENTRIES,
    MAX_FILE_BYTES,
    EntryEvidence,
    EvidenceFile,
    LogEvidence,
    OutsideProof,
    Plaintext,
    RunEvidence,
)
from veen.core.hashing import H
from veen.core.labels import stream_id_of
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import ControlRecord, KeyRotate
from veen.core.objects.identity import HubIdentity
from veen.core.objects.profile import PRESETS
from veen.core.objects.trusted_root import TrustedKeys
from veen.core.sealing.ciphertext import opening_of
from veen.core.tlog.policy import WitnessPolicy
from veen.core.tree.proof import RangeProof

__all__ = ["Contents", "EvidenceExport", "NoEntries", "NotListed", "TooMuch", "TrustedKeys", "verify_evidence"]

Contents = Literal["sealed", "openings", "plaintext"]
Read = Callable[..., AsyncGenerator[Entry, None]]  # `Client.read`

_MAX_CONTENT_BYTES: Final = MAX_FILE_BYTES - (1 << 20)  # room for identity, proofs and checkpoints


class NoEntries(LocalError, code="E.LOCAL.NO_ENTRIES"):
    """The stream has nothing in the range that was asked for."""


class NotListed(LocalError):
    """The outer log of the hub does not cover the range yet, or the hub has none."""

    hint = "Wait for the next note of the hub (outer.every), then export again; or leave out --outside."


class TooMuch(LocalError):
    """A range that does not fit into one file."""

    hint = "Export the range in several parts."


def verify_evidence(data: bytes, trusted: TrustedKeys | None, policy: WitnessPolicy | None = None) -> EvidenceReport:
    """Verify the bytes of an evidence file and return its report. Raise EvidenceFault for any fault. No hub is
    contacted.

    With a `policy`, the outside proofs must satisfy it.
    """
    return check_evidence(EvidenceFile.from_file(data), trusted, policy)


class EvidenceExport:
    """The export of evidence files from entries that a client reads."""

    def __init__(self, session: HubSession, labels: Labels, read: Read) -> None:
        self._session, self._labels, self._read = session, labels, read

    async def export(
        self,
        stream: Stream,
        *,
        from_seq: int | None = None,
        to_seq: int | None = None,
        since: int | None = None,
        until: int | None = None,
        epoch: int | None = None,
        selection: Iterable[tuple[bytes, int]] | None = None,
        contents: Contents = "sealed",
        with_head: bool = False,
        with_outside: bool = False,
        named: bool = True,
    ) -> EvidenceFile:
        """Return the entries of a range, of a time, or a selection of (label, stream_seq), as evidence.

        `contents` selects the part of the messages that an outsider can read: nothing, the opening of each, or the
        plaintext without a proof. `named` includes the name of the stream. `with_head` adds the newest checkpoint of
        each log and the proof that the log only grew up to it; without it the same range gives the same bytes as
        long as the keys of the hub are the same. `with_outside` adds, for each log, the first checkpoint after the
        range that the outer log lists, with its tlog-proof and COSE receipt; LocalError if none is listed yet.
        """
        entries: list[Entry] = []
        size = 0
        span = {"from_seq": from_seq, "to_seq": to_seq, "since": since, "until": until, "epoch": epoch}
        for options in [span] if selection is None else await self._spans_of(stream, selection):
            async for entry in self._read(stream, **options, with_proofs=True, open=contents != "sealed"):
                entries.append(entry)
                size += len(entry.msg.ciphertext) * (2 if contents == "plaintext" else 1) + 512
                if len(entries) > MAX_ENTRIES or size > _MAX_CONTENT_BYTES:
                    raise TooMuch(f"the range has more than an evidence file can hold: entry {entry.seq} does not fit")
        if not entries:
            raise NoEntries("no entry of the stream is in the range")
        answer = await self._session.refresh_identity()
        identity = answer.to_identity()
        target = await self._labels.find(stream, entries[0].epoch)
        outside: list[OutsideProof] = []
        logs = [
            await self._log(
                replace(target, label=label, epoch=of_label[0].epoch),
                of_label,
                contents,
                with_head,
                outside if with_outside else None,
            )
            for label, of_label in sorted(_by_label(entries).items(), key=lambda item: (item[1][0].epoch, item[0]))
        ]
        evidence = EvidenceFile(
            identity=identity.to_bytes(),
            identity_sig=answer.sig,
            rotations=await self._rotations(identity),
            stream_id=target.stream_id if named else None,
            stream_name=_name_of(target) if named else None,
            profiles=self._profiles(entries),
            logs=tuple(logs),
            outside=tuple(outside) or None,
        )
        check_evidence(evidence, self.trusted)
        return evidence

    @property
    def trusted(self) -> TrustedKeys:
        """Keys that this client trusts: those that follow from its pin."""
        pin = self._session.pin
        if pin.root_pk is not None:
            return TrustedKeys(root_pk=pin.root_pk, hub_id=pin.hub_id)
        return TrustedKeys(hub_pks=tuple(key.hub_pk for key in pin.keys))

    async def labels_of(self, stream: Stream) -> dict[bytes, int]:
        """Return the labels of a stream that have entries, and their epochs, as the hub lists them."""
        target = await self._labels.find(stream, 0)
        epochs = {target.label: target.epoch}
        if target.stream_id is not None:
            for epoch in await self._session.epochs_of(target.stream_id):
                epochs[self._session.label(target.stream_id, epoch)] = epoch
        return epochs

    async def _spans_of(
        self, stream: Stream, selection: Iterable[tuple[bytes, int]]
    ) -> Sequence[Mapping[str, int | None]]:
        """Return options of `Client.read` for the selection. Raise LocalError for a label of another stream."""
        epochs = await self.labels_of(stream)
        spans: list[dict[str, int | None]] = []
        for label, seq in sorted(set(selection)):
            if label not in epochs:
                raise LocalError(f"label {label.hex()} is not one of the stream's")
            last = spans[-1] if spans else None
            if last is not None and (last["epoch"], last["to_seq"]) == (epochs[label], seq - 1):
                last["to_seq"] = seq
            else:
                spans.append({"epoch": epochs[label], "from_seq": seq, "to_seq": seq})
        return spans

    async def _rotations(self, identity: HubIdentity) -> tuple[bytes, ...]:
        """Return the records by which the keys of the hub introduced each other, if their signatures can be checked."""
        if len(identity.keys) == 1:
            return ()
        rotations = identity.rotations()
        records = [
            record for record in await self._session.rotations() if record.body in rotations and _is_signed(record)
        ]
        return tuple(record.to_bytes() for record in sorted(records, key=lambda record: record.seq))

    def _profiles(self, entries: Sequence[Entry]) -> tuple[bytes, ...]:
        profiles = {profile.profile_id(): profile for profile in (*PRESETS.values(), *self._session.status.profiles)}
        used = sorted({entry.msg.profile_id for entry in entries})
        for profile_id in used:
            if profile_id not in profiles:
                raise LocalError(f"the hub does not tell what profile {profile_id.hex()} is, which an entry names")
        return tuple(profiles[profile_id].to_bytes() for profile_id in used)

    async def _log(
        self,
        target: Target,
        entries: Sequence[Entry],
        contents: Contents,
        with_head: bool,
        outside: list[OutsideProof] | None,
    ) -> LogEvidence:
        checkpoint = await self._checkpoint(target, entries[-1].seq)
        checkpoints, consistency = [checkpoint], []
        if outside is not None:
            listed, proofs = await self._find_listed(target, checkpoint)
            if listed.upto_seq > checkpoint.upto_seq:
                checkpoints.append(listed)
            outside += proofs(H(checkpoints[-1].to_bytes()))
        if with_head:
            head = await self._session.checkpoint(target.stream_id, target.label)
            if head.upto_seq > checkpoints[-1].upto_seq:
                checkpoints.append(head)
        for before, after in pairwise(checkpoints):
            proof = await self._session.consistency(target.label, before.upto_seq, after.upto_seq)
            consistency.append(proof.to_bytes())
        runs = [await self._run(target, run, checkpoint, contents) for run in _runs(entries)]
        return LogEvidence(
            label=target.label,
            epoch=target.epoch,
            checkpoints=tuple(signed.to_bytes() for signed in checkpoints),
            consistency=tuple(consistency),
            runs=tuple(runs),
        )

    async def _find_listed(
        self, target: Target, checkpoint: Checkpoint
    ) -> tuple[Checkpoint, Callable[[bytes], list[OutsideProof]]]:
        """Return the first listed checkpoint that covers the range, and a function for its proofs, which need its
        hash."""
        reader = OuterReader(self._session)
        answer = await reader.proof(target.label, checkpoint.upto_seq)
        if answer is None:
            raise NotListed(f"the outer log lists no checkpoint of label {target.label.hex()} that covers the range")
        proof, leaf = answer
        listed = leaf.checkpoint()
        assert listed is not None  # noqa: S101 - the reader made sure
        self._session.pin.check_checkpoint(listed, self._session.epoch_sec)
        receipt = await reader.receipt(target.label, checkpoint.upto_seq, proof, leaf)

        def proofs(checkpoint_hash: bytes) -> list[OutsideProof]:
            data = {"tlog-proof": replace(proof, extra=None).to_bytes(), "cose-receipt": receipt.to_bytes()}
            return [OutsideProof(kind=kind, checkpoint_hash=checkpoint_hash, data=data[kind]) for kind in data]

        return listed, proofs

    async def _checkpoint(self, target: Target, seq: int) -> Checkpoint:
        """Return a checkpoint at the last exported entry, so that later entries do not change the file.

        A hub that no longer has the key of that time cannot sign it; then the newest checkpoint is used.
        """
        try:
            return await self._session.checkpoint(target.stream_id, target.label, seq)
        except HubRefused as exc:
            if not is_not_found(exc) or exc.detail.get("reason") != "key_retired":
                raise
            return await self._session.checkpoint(target.stream_id, target.label)

    async def _run(
        self, target: Target, entries: Sequence[Entry], checkpoint: Checkpoint, contents: Contents
    ) -> RunEvidence:
        first, last = entries[0], entries[-1]
        assert first.proof is not None  # noqa: S101 - read with proofs
        after: tuple[bytes, ...] = ()
        if last.seq < checkpoint.upto_seq:
            after = (await self._session.consistency(target.label, last.seq, checkpoint.upto_seq)).added
        proof = RangeProof(
            first_seq=first.seq,
            last_seq=last.seq,
            tree_size=checkpoint.upto_seq,
            before=peaks_before(first.proof),
            after=after,
        )
        return RunEvidence(proof=proof.to_bytes(), entries=tuple(_entry(entry, contents) for entry in entries))


def _entry(entry: Entry, contents: Contents) -> EntryEvidence:
    content: bytes | Plaintext | None = None
    if entry.event is not None and contents == "openings":
        content = opening_of(entry.opened_with, entry.msg)
    elif entry.event is not None and contents == "plaintext":
        content = Plaintext(payload_hdr=entry.event.hdr.to_bytes(), body=entry.event.body)
    return EntryEvidence(msg=entry.msg.to_bytes(), receipt=entry.receipt.to_bytes(), content=content)


def _by_label(entries: Iterable[Entry]) -> dict[bytes, list[Entry]]:
    labels: dict[bytes, list[Entry]] = {}
    for entry in entries:
        labels.setdefault(entry.receipt.label, []).append(entry)
    for of_label in labels.values():
        of_label.sort(key=lambda entry: entry.seq)
    return labels


def _runs(entries: Sequence[Entry]) -> list[list[Entry]]:
    runs: list[list[Entry]] = []
    for entry in entries:
        if runs and runs[-1][-1].seq + 1 == entry.seq:
            runs[-1].append(entry)
        else:
            runs.append([entry])
    return runs


def _is_signed(record: ControlRecord) -> bool:
    body = record.body
    if not isinstance(body, KeyRotate) or body.retired_pk is None:
        return False
    try:
        record.verify(body.retired_pk)
    except SignatureError:
        return False
    return True


def _name_of(target: Target) -> str | None:
    """Return the name of the stream if its keys have it; a raw id has none."""
    name = target.keys[0].name if target.keys else None
    if name is None or target.stream_id is None or stream_id_of(name) != target.stream_id:
        return None
    return name
