"""The keys of a hub that a client trusts: the configured pin, and its consequences (spec §8.4, D-41, D-42, D-174).

A pin is a key of the hub and its hub_id. If only the key was configured, hub_id is learned once, from an identity
record that the pinned key signed or a key that follows from it, and never changes afterwards: every label follows
from hub_id, so anyone who could choose it could show a client another, empty log.

The unsigned statements of a hub (`/tooling/identity`) never widen the pin by themselves. A further key counts only
if a `key.rotate` record of the hub's control journal introduces it, and that record is signed by the key that it
retires, which is the newest key that counts (decisions.md 80). So a retired key introduces no other, whatever time
its record has. A co-signature on a checkpoint would not suffice: its digest does not name the keys, so anyone could
add one of their own to what the old key signed.

A root pin is for hubs whose directory may vanish (D-121): it names an offline root key, which signs the identity
record in the place of the hub's newest key. Every key of a record that the root signed counts. Such a pin does not
fix hub_id: another hub_id is another hub of the same root. For one hub_id the keys only grow, so an older record of
it is refused.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from veen.client.errors import ForeignKey, HubIdChanged, NotPinned, ProofInvalid, RetiredKey
from veen.core.errors import MalformedError, SignatureError, VeenError, VersionError
from veen.core.labels import hub_id_of
from veen.core.objects.checkpoint import Checkpoint
from veen.core.objects.control import ControlRecord, KeyRotate
from veen.core.objects.identity import (
    HubIdentity,
    HubKey,
    IdentityError,
    canonical_json,
    key_id_of,
    read_canonical_json,
)
from veen.core.objects.receipt import Receipt
from veen.core.objects.tooling import IdentityResponse
from veen.core.objects.trusted_root import PinnedKey

_RECORD: Final = "pin record"
_RECORD_VERSION: Final = 2  # 1 was an identity record whose times and hub_id were not signed: no longer read


@dataclass(frozen=True, slots=True, kw_only=True)
class HubPin:
    """The trusted facts about one hub. A value: `learn` returns a wider one."""

    keys: tuple[
        HubKey, ...
    ]  # by valid_from, then hub_pk; empty only where a root is pinned and nothing was learned yet
    hub_id: bytes | None = None  # None: only a key is pinned, and nothing was learned yet
    windows_known: bool = False  # True if the times of `keys` are signed; otherwise they are placeholders
    root_pk: bytes | None = None  # signs the identity of the hub, if a root is pinned
    _identity: HubIdentity | None = field(init=False, repr=False, compare=False)  # `keys`; None if there are none

    def __post_init__(self) -> None:
        identity = None
        if self.keys:
            first_id = hub_id_of(self.keys[0].hub_pk)
            hub_id = None if self.hub_id in (None, first_id) else self.hub_id
            identity = HubIdentity(self.keys, pinned_hub_id=hub_id)
        elif self.root_pk is None:
            raise NotPinned("a pin needs a key of the hub, or its root key")
        object.__setattr__(self, "_identity", identity)

    @classmethod
    def of_key(cls, hub_pk: bytes, hub_id: bytes | None = None) -> Self:
        """Pin one key. Signatures of older keys do not verify: pin the identity record for that."""
        _check_sizes(("hub key", hub_pk), ("hub_id", hub_id))
        return cls(keys=(HubKey(hub_pk=hub_pk, valid_from=0),), hub_id=hub_id)

    @classmethod
    def of_root(cls, root_pk: bytes, hub_id: bytes | None = None) -> Self:
        """Pin the root key of ephemeral hubs: the newest hub that it signed, or only the one with this hub_id."""
        _check_sizes(("root key", root_pk), ("hub_id", hub_id))
        return cls(keys=(), hub_id=hub_id, root_pk=root_pk)

    @classmethod
    def of_identity(cls, identity: HubIdentity) -> Self:
        """Pin all keys of an identity record that was obtained out of band."""
        return cls(keys=identity.keys, hub_id=identity.hub_id, windows_known=True)

    @classmethod
    def parse(cls, text: str, hub_id: str | None = None) -> Self:
        """Parse `ed25519:<64 hex digits>`, the digits alone, or `root:ed25519:<64 hex digits>`; hub_id as 64 hex
        digits."""
        try:
            pinned = PinnedKey.parse(text)
        except ValueError as exc:
            raise NotPinned(str(exc)) from exc
        try:
            fixed = None if hub_id is None else bytes.fromhex(hub_id.strip())
        except ValueError as exc:
            raise NotPinned(f"{(hub_id or '')[:80]!r} is not a hub_id") from exc
        return cls.of_root(pinned.public, fixed) if pinned.is_root else cls.of_key(pinned.public, fixed)

    def to_text(self) -> str:
        """Return the root, or the key that joined last, in the form of `parse`."""
        if self.root_pk is not None:
            return PinnedKey(self.root_pk, is_root=True).to_text()
        return PinnedKey(self.keys[-1].hub_pk).to_text()

    def origin_text(self) -> str:
        """Return the root, or the oldest trusted key, which leads to all others, in the form of `parse`."""
        return self.to_text() if self.root_pk is not None else PinnedKey(self.keys[0].hub_pk).to_text()

    @property
    def identity(self) -> HubIdentity:
        """`keys` as an identity of the core; NotPinned if a root is pinned and no hub was asked yet."""
        if self._identity is None:
            raise NotPinned("a root key is pinned, and no hub has shown yet which keys it signed")
        return self._identity

    @property
    def newest(self) -> HubKey:
        """The key that joined last: only it, or a root, can introduce another."""
        return self.identity.current

    @property
    def is_whole(self) -> bool:
        """True if the keys begin with the hub's first, so that they make an identity record."""
        return self.identity.pinned_hub_id is None

    # --- what a client remembers -----------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """Encode the record in the state of a client; only signed facts are ever remembered."""
        assert self.hub_id is not None and self.windows_known  # noqa: S101, PT018 - `learn` made it
        keys = [key.to_json() for key in self.keys]
        record = {"ver": _RECORD_VERSION, "hub_id": self.hub_id.hex(), "hub_keys": keys}
        return canonical_json(record if self.root_pk is None else {**record, "root_pk": self.root_pk.hex()})

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Decode a record. Raise FormatError for its shape (VersionError for another release), IdentityError for its
        keys."""
        value: Any = read_canonical_json(data, _RECORD)
        if type(value) is not dict or type(value.get("ver")) is not int:
            raise MalformedError("not a record with a version", _RECORD)
        if value["ver"] != _RECORD_VERSION:
            raise VersionError(_RECORD, value["ver"])
        try:
            hub_id, keys = bytes.fromhex(value["hub_id"]), tuple(map(HubKey.from_json, value["hub_keys"]))
            root_pk = bytes.fromhex(value["root_pk"]) if "root_pk" in value else None
        except (KeyError, TypeError, ValueError) as exc:
            raise MalformedError("hub_id, hub_keys or root_pk is missing or of another type", _RECORD) from exc
        if not keys:
            raise MalformedError("hub_keys is empty", _RECORD)
        return cls(keys=keys, hub_id=hub_id, windows_known=True, root_pk=root_pk)

    def has(self, other: "HubPin") -> bool:
        """Return True if every key of another pin is among these."""
        return {key.hub_pk for key in other.keys} <= {key.hub_pk for key in self.keys}

    def shares_a_key_with(self, other: "HubPin") -> bool:
        """Return True if both pins have a key in common."""
        return not {key.hub_pk for key in other.keys}.isdisjoint(key.hub_pk for key in self.keys)

    # --- what the hub says about itself ----------------------------------------------------------------

    def learn(self, answer: IdentityResponse, rotations: Sequence[ControlRecord] = ()) -> "HubPin":
        """Return the pin with the proven facts of an identity. Raise ForeignKey if it is not proven, HubIdChanged
        for a new hub_id."""
        try:
            identity = answer.to_identity()
        except IdentityError as exc:
            raise ForeignKey(f"the hub contradicts itself: {exc}", found=answer.hub_id) from exc
        if self.root_pk is not None:
            return self._learn_from_root(self.root_pk, identity, answer.sig)
        listed = {key.hub_pk: key for key in identity.keys}
        for key in self.keys:
            if key.hub_pk not in listed:
                raise ForeignKey(
                    "the hub does not list the pinned key", expected=key.hub_pk, found=identity.current.hub_pk
                )
        if self.hub_id not in (None, answer.hub_id):
            raise HubIdChanged(
                "another hub answers: its hub_id is not the pinned one", expected=self.hub_id, found=answer.hub_id
            )
        start = self.keys
        if not self.windows_known:  # the times below are those of the record whose signature is checked at the end
            start = tuple(replace(key, valid_from=listed[key.hub_pk].valid_from) for key in start)
        chain = _follow_rotations(start, rotations)
        oldest, newest = chain[0], chain[-1]
        chained = {key.hub_pk for key in chain}
        for key in identity.keys:
            if key.hub_pk not in chained and _order(key) > _order(oldest):
                raise ForeignKey(
                    f"the hub lists key {key_id_of(key.hub_pk)}, which the newest pinned key did not introduce"
                    f"{_misfit(key, rotations)}",
                    found=key.hub_pk,
                )
        for key in chain:
            if key != listed[key.hub_pk]:
                raise ForeignKey(f"the hub tells another time for key {key.key_id} than it signed", found=key.hub_pk)
        try:
            identity.verify(answer.sig)
        except SignatureError as exc:
            raise ForeignKey(
                f"the hub's identity is not signed by key {newest.key_id}, the newest that follows from the pin",
                expected=newest.hub_pk,
            ) from exc
        return replace(self, keys=chain, hub_id=identity.hub_id, windows_known=True)

    def _learn_from_root(self, root_pk: bytes, identity: HubIdentity, sig: bytes) -> "HubPin":
        """Return the pin with all keys of an identity that the root signed, unless it takes back earlier ones."""
        try:
            identity.verify(sig, root_pk)
        except SignatureError as exc:
            raise ForeignKey(
                "the pinned root key did not sign the hub's identity",
                expected=root_pk,
                found=identity.current.hub_pk,
            ) from exc
        if self.hub_id not in (None, identity.hub_id):
            raise HubIdChanged(
                "this is another hub of the pinned root: reconnect to accept it, or pin hub_id to refuse it",
                expected=self.hub_id,
                found=identity.hub_id,
            )
        if not _continues(identity.keys, self.keys):
            raise ForeignKey(
                "the root signed this list of the hub's keys, but it takes back keys or times that were proven before",
                expected=self.newest.hub_pk,
                found=identity.current.hub_pk,
            )
        return replace(self, keys=identity.keys, hub_id=identity.hub_id, windows_known=True)

    def needs_rotations(self, answer: IdentityResponse) -> bool:
        """Return True if learning this identity requires the records that introduce keys."""
        return self.root_pk is None and answer.hub_keys[-1].hub_pk != self.newest.hub_pk

    # --- what the hub signs ----------------------------------------------------------------------------

    def check_receipt(self, receipt: Receipt) -> HubKey:
        """Return the key that signed, which was valid at hub_ts (HID-06, D-41)."""
        try:
            return self.identity.verify_receipt(receipt)
        except SignatureError as exc:
            raise self._blame(receipt, receipt.label, receipt.stream_seq, f"at {receipt.hub_ts}") from exc

    def check_control(self, record: ControlRecord) -> HubKey:
        """Return the key that signed a control record; raise if it is not one of the hub's."""
        try:
            return self.identity.verify_control(record)
        except SignatureError as exc:
            raise self._blame(record, b"", record.seq, f"at {record.hub_ts}") from exc

    def check_checkpoint(self, checkpoint: Checkpoint, epoch_sec: int) -> HubKey:
        """Return the key that signed, which was valid in the epoch."""
        try:
            return self.identity.verify_checkpoint(checkpoint, epoch_sec)
        except SignatureError as exc:
            when = f"in epoch {checkpoint.epoch}"
            raise self._blame(checkpoint, checkpoint.label_curr, checkpoint.upto_seq, when) from exc

    def check_seal(self, checkpoint: Checkpoint, last_ts: int) -> None:
        """Check that the key of the time of entry upto_seq signed (D-166) and, while two keys overlap, both
        witnesses (D-37)."""
        try:
            checkpoint.verify(self.identity.signing_key_at(last_ts).hub_pk)
        except (SignatureError, IdentityError) as exc:
            when = f"at {last_ts}, the time of its last entry"
            raise self._blame(checkpoint, checkpoint.label_curr, checkpoint.upto_seq, when) from exc
        self.check_witnesses(checkpoint, last_ts)

    def check_witnesses(self, checkpoint: Checkpoint, last_ts: int) -> None:
        """Check that both keys signed while two overlap (KEX0-02, D-37)."""
        required = [key.hub_pk for key in self.identity.witnesses_at(last_ts)]
        missing = set(required) - set(checkpoint.verify_witnesses(required))
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
            if not _has_signed(signed, key):
                continue
            return RetiredKey(
                f"{signed.KIND}: signed by hub key {key.key_id}, which is not the one that signs {when}",
                label=label,
                seq=seq,
            )
        return ForeignKey(f"{signed.KIND}: signed by none of the pinned hub's keys", label=label, seq=seq)


def _check_sizes(*values: tuple[str, bytes | None]) -> None:
    for name, value in values:
        if value is not None and len(value) != 32:
            raise NotPinned(f"a {name} has 32 bytes, found {len(value)}")


def _continues(keys: Sequence[HubKey], before: Sequence[HubKey]) -> bool:
    """Return True if a list of keys extends an earlier one; the last of the earlier keys may have got an end."""
    if len(keys) < len(before):
        return False
    for key, earlier in zip(keys, before, strict=False):
        ended = replace(key, valid_until=None) if earlier.valid_until is None and earlier is before[-1] else key
        if ended != earlier:
            return False
    return True


def _follow_rotations(start: Iterable[HubKey], rotations: Iterable[ControlRecord]) -> tuple[HubKey, ...]:
    """Return the keys, and those that follow from the newest of them, in the order of the journal (D-174)."""
    chain = sorted(start, key=_order)
    for record in sorted(rotations, key=lambda record: record.seq):
        body, newest = record.body, chain[-1]
        if not isinstance(body, KeyRotate) or body.retired_pk != newest.hub_pk:
            continue  # about keys older than the pinned one: nothing follows from it
        if not newest.is_valid_at(record.hub_ts) or not _has_signed(record, newest):
            continue
        if body.valid_from <= newest.valid_from or any(key.hub_pk == body.hub_pk for key in chain):
            continue
        chain[-1] = replace(newest, valid_until=body.retired_until)
        chain.append(HubKey(hub_pk=body.hub_pk, valid_from=body.valid_from))
    return tuple(chain)


def _misfit(key: HubKey, rotations: Iterable[ControlRecord]) -> str:
    """Return the reason why the record that names a key does not make it a key of the hub."""
    for record in rotations:
        if isinstance(record.body, KeyRotate) and record.body.hub_pk == key.hub_pk:
            return f" (control record {record.seq} names it, but the newest key at that time did not sign the record)"
    return ""


def _has_signed(statement: Receipt | Checkpoint | ControlRecord, key: HubKey) -> bool:
    try:
        statement.verify(key.hub_pk)
    except VeenError:
        return False
    return True


def _order(key: HubKey) -> tuple[int, bytes]:
    return key.valid_from, key.hub_pk
