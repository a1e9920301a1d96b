"""Which keys are the hub's: the pin a user configured, and what follows from it (spec §8.4, D-21, D-37, D-41, D-42).

A pin is one key of the hub, or its whole identity record. What a hub says about itself (`/tooling/identity`) never
widens the pin by itself: a further key counts only if a `key.rotate` record of the hub's control journal introduces
it, signed by a key that counts already and was valid when it signed. A co-signature on a checkpoint would not do:
its digest does not name the keys, so anyone could add one of their own to what the old key signed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from veen.client.errors import ForeignKey, NotPinned, ProofInvalid, RetiredKey
from veen.core.checkpoint import Checkpoint
from veen.core.control import ControlRecord, KeyRotate
from veen.core.errors import SignatureError, VeenError
from veen.core.hubkeys import HubIdentity, HubKey, key_id_of
from veen.core.labels import hub_id_of
from veen.core.receipt import Receipt
from veen.core.tooling import IdentityResponse

__all__ = ["HubPin"]

_PREFIX = "ed25519:"


@dataclass(frozen=True, slots=True, kw_only=True)
class HubPin:
    """What is known of one hub for certain. A value: `learn` returns a wider one."""

    keys: tuple[HubKey, ...]  # by valid_from, then hub_pk
    hub_id: bytes | None = None  # None: only one key is pinned, and whether it is the first is not known yet
    windows_known: bool = False  # whether the times of `keys` are more than a placeholder
    identity: HubIdentity = field(init=False, repr=False, compare=False)  # `keys`, as the rules of the core take them

    def __post_init__(self) -> None:
        object.__setattr__(self, "identity", HubIdentity(self.keys))

    @classmethod
    def of_key(cls, hub_pk: bytes) -> Self:
        """Pin one key. What older keys signed is not believed: pin the identity record for that."""
        if len(hub_pk) != 32:
            raise NotPinned(f"a hub key has 32 bytes, found {len(hub_pk)}")
        return cls(keys=(HubKey(hub_pk=hub_pk, valid_from=0),))

    @classmethod
    def of_identity(cls, identity: HubIdentity) -> Self:
        """Pin all keys of an identity record that was obtained out of band."""
        return cls(keys=identity.keys, hub_id=identity.hub_id, windows_known=True)

    @classmethod
    def parse(cls, text: str) -> Self:
        """`ed25519:<64 hex digits>`, or the digits alone."""
        try:
            return cls.of_key(bytes.fromhex(text.strip().removeprefix(_PREFIX)))
        except ValueError as exc:
            raise NotPinned(f"{text[:80]!r} is not a hub key") from exc

    def to_text(self) -> str:
        """The key that joined last, in the form that `parse` takes."""
        return f"{_PREFIX}{self.keys[-1].hub_pk.hex()}"

    # --- what the hub says about itself ----------------------------------------------------------------

    def learn(self, told: IdentityResponse, rotations: Sequence[ControlRecord] = ()) -> "HubPin":
        """Take over what is proven of an identity; ForeignKey if it is another hub, or a key proves nothing."""
        listed = {
            key.hub_pk: HubKey(hub_pk=key.hub_pk, valid_from=key.valid_from, valid_until=key.valid_until)
            for key in told.hub_keys
        }
        first = min(listed.values(), key=lambda key: (key.valid_from, key.hub_pk))
        if hub_id_of(first.hub_pk) != told.hub_id:
            raise ForeignKey(
                "hub_id is not that of the hub's first key", expected=hub_id_of(first.hub_pk), found=told.hub_id
            )
        if self.hub_id is not None and told.hub_id != self.hub_id:
            raise ForeignKey(
                "another hub answers: its hub_id is not the pinned one", expected=self.hub_id, found=told.hub_id
            )
        for known in self.keys:
            if known.hub_pk not in listed:
                raise ForeignKey(
                    "the hub does not know the pinned key", expected=known.hub_pk, found=told.hub_keys[-1].hub_pk
                )
        known_keys = {key.hub_pk: key if self.windows_known else listed[key.hub_pk] for key in self.keys}
        if not self.windows_known:
            # The end of a key's time is only believed with the record that names its successor, below.
            known_keys = {pk: replace(key, valid_until=None) for pk, key in known_keys.items()}
        _introduce(known_keys, rotations)
        newest_known = max(key.valid_from for key in known_keys.values())
        for key in listed.values():
            if key.hub_pk not in known_keys and key.valid_from >= newest_known:
                raise ForeignKey(
                    f"the hub lists key {key_id_of(key.hub_pk)}, which no pinned key introduced", found=key.hub_pk
                )
        for pk, key in known_keys.items():
            if (key.valid_from, key.valid_until) != (listed[pk].valid_from, listed[pk].valid_until):
                raise ForeignKey(f"the hub tells another time for key {key.key_id} than it signed", found=pk)
        return replace(self, keys=_sorted(known_keys.values()), hub_id=told.hub_id, windows_known=True)

    def needs_rotations(self, told: IdentityResponse) -> bool:
        """Whether learning this identity takes the records that introduce keys."""
        known = {key.hub_pk: key.valid_until for key in self.keys}
        return any(key.hub_pk not in known or key.valid_until != known[key.hub_pk] for key in told.hub_keys)

    # --- what the hub signs ----------------------------------------------------------------------------

    def check_receipt(self, receipt: Receipt) -> HubKey:
        """The key that signed, valid at hub_ts (HID-06, D-41)."""
        try:
            return self.identity.verify_receipt(receipt)
        except SignatureError as exc:
            raise self._blame(receipt, receipt.label, receipt.stream_seq, f"at {receipt.hub_ts}") from exc

    def check_control(self, record: ControlRecord) -> HubKey:
        try:
            return self.identity.verify_control(record)
        except SignatureError as exc:
            raise self._blame(record, b"", record.seq, f"at {record.hub_ts}") from exc

    def check_checkpoint(self, checkpoint: Checkpoint, epoch_sec: int) -> HubKey:
        """The key that signed, valid in the epoch."""
        try:
            return self.identity.verify_checkpoint(checkpoint, epoch_sec)
        except SignatureError as exc:
            when = f"in epoch {checkpoint.epoch}"
            raise self._blame(checkpoint, checkpoint.label_curr, checkpoint.upto_seq, when) from exc

    def check_witnesses(self, checkpoint: Checkpoint, last_ts: int) -> None:
        """While two keys overlap, both must have signed (KEX0-02, D-37)."""
        required = [key.hub_pk for key in self.identity.witnesses_at(last_ts)]
        missing = set(required) - set(checkpoint.verified_witnesses(required))
        if missing:
            raise ProofInvalid(
                "a checkpoint from the time of a key rotation is not witnessed by both keys",
                label=checkpoint.label_curr,
                seq=checkpoint.upto_seq,
                expected=min(missing),
            )

    def _blame(
        self, signed: Receipt | Checkpoint | ControlRecord, label: bytes, seq: int, when: str
    ) -> ForeignKey | RetiredKey:
        for key in self.keys:
            try:
                signed.verify(key.hub_pk)
            except SignatureError:
                continue
            return RetiredKey(
                f"{signed.KIND}: signed by hub key {key.key_id}, which is not valid {when}", label=label, seq=seq
            )
        return ForeignKey(f"{signed.KIND}: signed by none of the pinned hub's keys", label=label, seq=seq)


def _introduce(known: dict[bytes, HubKey], rotations: Iterable[ControlRecord]) -> None:
    """Add the keys that known ones introduce, in the order of the journal."""
    for record in sorted(rotations, key=lambda record: record.seq):
        rotation = record.body
        if not isinstance(rotation, KeyRotate) or rotation.retired_pk is None:
            continue
        signers = [key for key in known.values() if key.is_valid_at(record.hub_ts) and _signed(record, key)]
        if not signers or rotation.retired_pk not in known:
            continue  # about keys from before the pinned one: nothing follows from it
        old = known[rotation.retired_pk]
        known[old.hub_pk] = replace(old, valid_until=rotation.retired_until)
        known.setdefault(rotation.hub_pk, HubKey(hub_pk=rotation.hub_pk, valid_from=rotation.valid_from))


def _signed(record: ControlRecord, key: HubKey) -> bool:
    try:
        record.verify(key.hub_pk)
    except VeenError:
        return False
    return True


def _sorted(keys: Iterable[HubKey]) -> tuple[HubKey, ...]:
    return tuple(sorted(keys, key=lambda key: (key.valid_from, key.hub_pk)))
