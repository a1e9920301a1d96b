"""CHECKPOINT, the hub's signed statement about a whole log prefix (spec §4.4)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Self

from veen.core import cbor
from veen.core.crypto import ed25519
from veen.core.errors import SignatureError, VerifyError
from veen.core.hashing import Ht
from veen.core.labels import label_of
from veen.core.limits import MAX_WITNESSES
from veen.core.wire import Bytes32, Bytes64, Form, Length, Uint, Version, Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint(Wire, kind="CHECKPOINT"):
    """A statement that the prefix 1 … upto_seq of `label_curr` has the root `mmr_root`."""

    FORM: ClassVar[Form] = "array"

    ver: ClassVar[Version] = 1
    label_prev: Bytes32  # the label of the epoch before, or label_curr where labels do not rotate (D-38)
    label_curr: Bytes32
    upto_seq: Uint
    mmr_root: Bytes32
    epoch: Uint
    hub_sig: Bytes64
    witness_sigs: Annotated[tuple[Bytes64, ...], Length(1, MAX_WITNESSES)] | None = None  # trimmed, not null

    @classmethod
    def issue(
        cls,
        key: ed25519.SigningKey,
        *,
        label_prev: bytes,
        label_curr: bytes,
        upto_seq: int,
        mmr_root: bytes,
        epoch: int,
        witnesses: Sequence[ed25519.SigningKey] = (),
    ) -> Self:
        """Sign a checkpoint; witnesses sign the same digest, in the order given (D-37)."""
        unsigned = cls(
            label_prev=label_prev,
            label_curr=label_curr,
            upto_seq=upto_seq,
            mmr_root=mmr_root,
            epoch=epoch,
            hub_sig=b"",
        )
        digest = unsigned.signing_digest()
        witness_sigs = tuple(witness.sign(digest) for witness in witnesses) or None
        return replace(unsigned, hub_sig=key.sign(digest), witness_sigs=witness_sigs)

    def signing_digest(self) -> bytes:
        """Return the digest that hub_sig and every witness signature sign: the first six items (D-36)."""
        items = [1, self.label_prev, self.label_curr, self.upto_seq, self.mmr_root, self.epoch]
        return Ht("veen/sig", cbor.encode(items))

    def verify(self, hub_pk: bytes) -> None:
        """Raise SignatureError unless `hub_pk` signed this checkpoint."""
        if not ed25519.verify(hub_pk, self.signing_digest(), self.hub_sig):
            raise SignatureError(f"CHECKPOINT {self.upto_seq}: hub_sig does not verify under the given hub key")

    def verify_witnesses(self, keys: Sequence[bytes]) -> tuple[bytes, ...]:
        """Return those of `keys` that witnessed this checkpoint, in the order of `keys`."""
        digest = self.signing_digest()
        return tuple(
            key for key in keys if any(ed25519.verify(key, digest, signature) for signature in self.witness_sigs or ())
        )

    def check_labels(self, routing_key: bytes, stream_id: bytes) -> None:
        """Raise VerifyError unless the labels and the epoch belong together (spec §4.4.1).

        Both forms of the spec are accepted: label_prev equal to label_curr (no rotation), or the label of the
        preceding epoch.
        """
        if self.label_curr != label_of(routing_key, stream_id, self.epoch):
            raise VerifyError("CHECKPOINT: label_curr is not the label of this stream in this epoch")
        if self.label_prev == self.label_curr:
            return
        if self.epoch == 0 or self.label_prev != label_of(routing_key, stream_id, self.epoch - 1):
            raise VerifyError("CHECKPOINT: label_prev is not the label of the preceding epoch")
