"""Rotation of client keys during use, without lost or doubled messages after a crash (KEX1+ 4.1, D-102a, D-179).

A client key signs for a day and 65,536 messages a label, or less where the hub states it. `KeyRotation.ready` is called
before messages are sealed; 300 s and 64 messages before a bound it continues with a new key:

    1. the new key and a new prekey are stored, durably (`KeyHolder`)
    2. where the hub requires tokens, one for the new key is derived from that of the principal (`Grants.token`)
    3. the label gets a new writer, which begins at client_seq 1
    4. the first message of the new key in a stream is a `veen.speaks.v1`: the members learn the identity behind the key

A client that starts again can see of each step if it was done. Messages pending under an earlier key are sent again
byte for byte; if the hub refuses that key and the log does not have the message, the new key seals its content, once.

A token that names the client key itself binds the identity to this key (D-49): then the bound is an error.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Protocol, Self

from veen.client.errors import RotationDue, TokenExpired, TokenMissing
from veen.client.identity.identity import Identity, principal_stream
from veen.client.identity.keyring import StreamKeys
from veen.client.identity.keystore import Keystore
from veen.client.send.grants import Grants
from veen.client.send.sealing import Draft
from veen.client.send.writing import Heir, Sent, Writer
from veen.client.session import HubSession
from veen.client.state import LabelState, StateStore
from veen.client.verify.labels import Labels, Target
from veen.core import cbor
from veen.core.errors import LimitError, MalformedError
from veen.core.hashing import Ht
from veen.core.labels import schema_id
from veen.core.objects.speaking import MAX_SPEAKS_SEC, SPEAKS_SCHEMA, SpeaksBinding

MAX_LIFETIME_SEC: Final = 86_400
MAX_MSGS_PER_LABEL: Final = 65_536
# The key is replaced this long before a bound: no message is admitted after its binding has ended.
SPARE_SEC: Final = 300
SPARE_MSGS: Final = 64
DEVICE_SCHEMA: Final = schema_id("id.device.v1")
_KEX0_MSGS: Final = 256
_EARLY_SEC: Final = 300  # a binding begins this long before the key, as clocks differ
_PART: Final = 4  # at most a quarter of a very low bound is spared

LOG: Final = logging.getLogger("veen")


class RotationReason(Enum):
    """The bound that was reached."""

    LIFETIME = "max_client_id_lifetime_sec"
    MESSAGES = "max_msgs_per_client_id_per_label"


@dataclass(frozen=True, slots=True, kw_only=True)
class RotationBounds:
    """The lifetime and number of messages of one client key. Deployments may lower the bounds of KEX1+, not raise
    them."""

    max_client_id_lifetime_sec: int = MAX_LIFETIME_SEC
    max_msgs_per_client_id_per_label: int = MAX_MSGS_PER_LABEL

    def __post_init__(self) -> None:
        for name, value, maximum in (
            ("max_client_id_lifetime_sec", self.max_client_id_lifetime_sec, MAX_LIFETIME_SEC),
            ("max_msgs_per_client_id_per_label", self.max_msgs_per_client_id_per_label, MAX_MSGS_PER_LABEL),
        ):
            if type(value) is not int or value < 1:
                raise MalformedError(f"expected a positive integer, found {value!r}", name)
            if value > maximum:
                raise LimitError(name, value, maximum)

    @classmethod
    def kex0(cls, epoch_sec: int) -> Self:
        """Return the tighter bounds of spec-1 §3: one epoch, or 256 messages where there are no epochs."""
        if epoch_sec:
            return cls(max_client_id_lifetime_sec=min(epoch_sec, MAX_LIFETIME_SEC))
        return cls(max_msgs_per_client_id_per_label=_KEX0_MSGS)

    def at_hub(self, session: HubSession) -> "RotationBounds":
        """Return the lesser of these bounds and those that the hub states."""
        names = [reason.value for reason in RotationReason]
        return RotationBounds(**{name: session.key_bound(name, getattr(self, name)) for name in names})

    def early(self) -> "RotationBounds":
        """Return the bounds at which a key is replaced, before the hub would refuse it."""
        lifetime, most = self.max_client_id_lifetime_sec, self.max_msgs_per_client_id_per_label
        return RotationBounds(
            max_client_id_lifetime_sec=max(lifetime - min(SPARE_SEC, lifetime // _PART), 1),
            max_msgs_per_client_id_per_label=max(most - min(SPARE_MSGS, most // _PART), 1),
        )


DEFAULT_BOUNDS: Final = RotationBounds()


def needs_rotation(
    identity: Identity, counts: Mapping[bytes, int], now: int, bounds: RotationBounds = DEFAULT_BOUNDS
) -> RotationReason | None:
    """Return the reason why the current client key may not sign again, or None. `counts`: label -> messages signed
    (D-102a)."""
    if now - identity.client_key.created_at >= bounds.max_client_id_lifetime_sec:
        return RotationReason.LIFETIME
    if any(count >= bounds.max_msgs_per_client_id_per_label for count in counts.values()):
        return RotationReason.MESSAGES
    return None


def check_bounds(
    identity: Identity, counts: Mapping[bytes, int], now: int, bounds: RotationBounds = DEFAULT_BOUNDS
) -> None:
    """Raise RotationDue if the current client key may not sign again."""
    reason = needs_rotation(identity, counts, now, bounds)
    if reason is not None:
        raise RotationDue(f"the client key {identity.client_id.hex()[:16]}… has reached {reason.value}")


def make_binding(identity: Identity, stream_id: bytes, created_at: int) -> SpeaksBinding:
    """Bind the client key to the identity in a stream, for as long as it may sign and ten minutes more."""
    not_before = max(created_at - _EARLY_SEC, 0)
    return SpeaksBinding.issue(
        identity.id_sign,
        identity.client_key.key,
        stream_id=stream_id,
        not_before=not_before,
        not_after=not_before + MAX_SPEAKS_SEC,
    )


class KeyHolder(Protocol):
    """The keeper of a connected client's keys, which has the lock of the identity."""

    @property
    def issues_tokens(self) -> bool:
        """True if the identity issues tokens for its client keys itself where it holds none."""
        ...

    def next_key(self, now: int) -> Identity:
        """Return the identity with a new client key, which is on disk."""
        ...


@dataclass(frozen=True, slots=True)
class KeystoreKeys:
    """The client keys in a keystore. `changed` is called with each new identity."""

    keystore: Keystore
    changed: Callable[[Identity], None] = lambda identity: None
    issues_tokens: bool = False

    def next_key(self, now: int) -> Identity:
        identity = self.keystore.rotate(now)
        self.changed(identity)
        return identity


@dataclass(frozen=True, slots=True)
class Ready:
    """The means to seal the next messages of a label."""

    writer: Writer
    auth_ref: bytes | None
    first: tuple[Draft, ...]  # sent before them, in the same batch
    room: int  # messages that the client key may still sign here, including those of `first`
    late: Mapping[int, Sent] = field(default_factory=dict)  # by number of a draft that an earlier call left pending


class KeyRotation:
    """The client key of one connected client. Owned by the event loop's thread."""

    def __init__(
        self,
        session: HubSession,
        labels: Labels,
        store: StateStore,
        grants: Grants,
        identity: Identity,
        holder: KeyHolder | None,
        bounds: RotationBounds | None,
        clock: Callable[[], float],
    ) -> None:
        """Set up the rotation. Without `holder` the key is never replaced; without `bounds` it has no bounds."""
        self._session, self._labels, self._store, self._grants = session, labels, store, grants
        self.identity = identity  # replaced under `_turning`
        self._holder, self._own_bounds, self._clock = holder, bounds, clock
        self._turning = asyncio.Lock()
        self._bound: set[bytes] | None = None  # streams in which the client key was bound; None: not looked up yet
        self.named: set[bytes] = (
            set()
        )  # streams in which messages name the identity, so that its first key is bound too

    async def ready(
        self,
        target: Target,
        auth_ref: bytes | None,
        count: int = 1,
        *,
        control: StreamKeys | None = None,
        once: Sequence[Draft] = (),
        whole: bool = False,
    ) -> Ready:
        """Prepare to seal `count` messages for a label: with the present client key, or with the next one if it is
        due.

        Raise RotationDue if the key may not sign them and cannot be replaced. A key that can be replaced may have
        room for fewer, unless they must be signed by one key (`whole`). `control` is the key of the stream's
        messages about keys. Messages that an earlier client key left pending here are settled first; those of the
        drafts `once` that were among them are not sent again.
        """
        writer = await self._labels.writer(target)
        may_rotate = False
        if (reason := self._due(writer, count)) is not None:
            may_rotate = await self._may_rotate(target)
        if may_rotate and (whole or self._due(writer, 1) is not None):
            await self.rotate(self.identity.client_id, reason)
            writer = await self._labels.writer(target)
        if target.stream_id is not None:
            auth_ref = await self._grants.current(target.stream_id, auth_ref)
        heir = Heir(writer, auth_ref, target.seal_to, await self._introduction(target, control))
        introduces = bool(heir.first)
        late = await self._settle_retired(target, heir, once)
        if introduces and not heir.first:
            await self.note_introduced(target)
        room = self._room(writer, early=may_rotate and not whole)
        if room < len(heir.first) + (1 if may_rotate and not whole else count):
            most = RotationReason.MESSAGES.value
            raise RotationDue(f"the client key {self.identity.client_id.hex()[:16]}… has reached {most}")
        return Ready(writer, auth_ref, heir.first, room, late)

    # --- when ------------------------------------------------------------------------------------------

    def _bounds(self) -> RotationBounds | None:
        return None if self._own_bounds is None else self._own_bounds.at_hub(self._session)

    def _due(self, writer: Writer, count: int) -> RotationReason | None:
        """Return the reason to replace the key before it signs `count` more messages on a label, or None."""
        bounds = self._bounds()
        if bounds is None:
            return None
        counts = {writer.label: writer.next_seq - 1 + count - 1}
        return needs_rotation(self.identity, counts, int(self._clock()), bounds.early())

    def _room(self, writer: Writer, *, early: bool) -> int:
        """Return the number of messages that the client key may still sign on a label, or may sign before it is
        replaced."""
        bounds = self._bounds()
        if bounds is None:
            return MAX_MSGS_PER_LABEL
        signed = writer.next_seq - 1
        check_bounds(self.identity, {writer.label: signed}, int(self._clock()), bounds)
        if early:
            bounds = bounds.early()
        return bounds.max_msgs_per_client_id_per_label - signed

    async def _may_rotate(self, target: Target) -> bool:
        """Return True if the next key can be stored, and could write to the stream."""
        if self._holder is None:
            return False
        return target.stream_id is None or await self._grants.may_follow(target.stream_id)

    async def in_time(self, stream_id: bytes) -> None:
        """Replace a client key that is too old, before a token is looked up for it."""
        bounds = self._bounds()
        if bounds is None or self._holder is None:
            return
        reason = needs_rotation(self.identity, {}, int(self._clock()), bounds.early())
        if reason is not None and await self._grants.may_follow(stream_id):
            await self.rotate(self.identity.client_id, reason)

    async def replace_refused(self, target: Target, client_id: bytes) -> bool:
        """Continue with a new key, because the hub refuses `client_id`; return False if that is not possible."""
        if not await self._may_rotate(target):
            return False
        await self.rotate(client_id, None)
        return True

    async def rotate(self, client_id: bytes, reason: RotationReason | None) -> None:
        """Replace a client key, unless another task did so already."""
        async with self._turning:
            if self.identity.client_id != client_id or self._holder is None:
                return
            identity = self._holder.next_key(int(self._clock()))  # here: only the loop's thread writes the keystore
            why = "the hub refused it" if reason is None else f"it was about to reach {reason.value}"
            LOG.info("the client key of %s was replaced: %s", identity.name, why)
            self.identity, self._bound = identity, None
            self._grants.use(identity)
            self._labels.use(identity)

    # --- what earlier keys left open -------------------------------------------------------------------

    async def _settle_retired(self, target: Target, heir: Heir, once: Sequence[Draft] = ()) -> dict[int, Sent]:
        """Deliver messages that retired client keys left pending on a label, or have the present key take them over."""
        late: dict[int, Sent] = {}
        retired = await self._labels.writers_of_retired(target.label)
        if (
            retired
            and heir.auth_ref is None
            and target.stream_id is not None
            and self._session.status.capability_gating
        ):
            with contextlib.suppress(TokenMissing, TokenExpired):
                heir.auth_ref = (await self._grants.token(target.stream_id)).auth_ref()
        for writer in retired:
            same = await asyncio.to_thread(writer.find_retried, once) if once else {}
            if target.keys:
                writer.heir = heir
            async with writer.lock:
                await writer.settle()
            delivered = writer.take_recovered(set(same.values()))
            for number, client_seq in same.items():
                if (sent := delivered.get(client_seq)) is not None:
                    sent.is_late = True
                    late[number] = sent
            self._labels.keep_late(writer)
        self._labels.note_settled(target.label)
        return late

    async def settle(self, state: LabelState) -> None:
        """Send the pending messages of a state; see `Labels.take_recovered`."""
        target = self._labels.target_of(state)
        writer = (await self._ready_or_due(target)) or await self._labels.writer(target)
        async with writer.lock:
            await writer.settle()

    async def recover(self, target: Target) -> list[Sent]:
        """Send the pending messages of a label; return all that were delivered late there and not returned yet."""
        writer = (await self._ready_or_due(target)) or await self._labels.writer(target)
        async with writer.lock:
            await writer.settle()
            return self._labels.take_late(target.label)

    async def _ready_or_due(self, target: Target) -> Writer | None:
        """Return the writer of `ready`; None if the key has reached its bounds or there is no token for it."""
        try:
            return (await self.ready(target, None)).writer
        except (RotationDue, TokenMissing, TokenExpired):
            return None

    # --- who it is -------------------------------------------------------------------------------------

    async def _introduction(self, target: Target, control: StreamKeys | None) -> tuple[Draft, ...]:
        """Return the binding of the client key, if it followed another one and the stream does not have it yet.

        Without a holder the caller rotates the keys and binds them itself.
        """
        stream_id = target.stream_id
        if stream_id is None or not target.keys:
            return ()
        if stream_id not in self.named and (self._holder is None or self.identity.client_key.generation == 1):
            return ()
        if self._bound is None:
            self._bound = await asyncio.to_thread(self._read_bound)
        if stream_id in self._bound:
            return ()
        binding = make_binding(self.identity, stream_id, self._key_created_at())
        reader_pk = None if control is None else control.reader_pk
        return (Draft(body=binding.to_bytes(), schema=SPEAKS_SCHEMA, reader_pk=reader_pk),)

    def _key_created_at(self) -> int:
        """Return the time at which the client key was made, by the hub's clock."""
        return self._session.hub_now() - max(int(self._clock()) - self.identity.client_key.created_at, 0)

    async def note_introduced(self, target: Target) -> None:
        """Remember that the stream has the binding of the client key."""
        if target.stream_id is not None:
            await self._remember(target.stream_id)

    async def note_announced(self) -> None:
        """Remember that the stream of the principal has the record of the client key."""
        await self._remember(_name_of_announcement(self._principal_stream))

    async def _remember(self, name: bytes) -> None:
        if self._bound is not None:
            self._bound.add(name)
            await asyncio.to_thread(self._store.write_note, self._note(), b"".join(sorted(self._bound)))

    def _read_bound(self) -> set[bytes]:
        data = self._store.read_note(self._note()) or b""
        return {data[at : at + 32] for at in range(0, len(data), 32)}

    def _note(self) -> str:
        return f"bound-{self._session.hub_id.hex()[:16]}-{self.identity.client_id.hex()[:16]}"

    @property
    def _principal_stream(self) -> bytes:
        return principal_stream(self.identity.id_sign_pk)

    async def device(self) -> tuple[bytes, Draft] | None:
        """Return the stream of the principal and the record of its new key, if the stream lacks it (D-96).

        Return None if there are no keys of that stream, or the key did not follow another one.
        """
        key, principal_pk, stream_id = self.identity.client_key, self.identity.id_sign_pk, self._principal_stream
        if key.generation == 1 or self._holder is None or not self._labels.keyring.has(stream_id):
            return None
        if self._bound is None:
            self._bound = await asyncio.to_thread(self._read_bound)
        if _name_of_announcement(stream_id) in self._bound:
            return None
        created = self._key_created_at()
        record: dict[str, cbor.Item] = {
            "principal_pk": principal_pk,
            "device_id": Ht("id/device", key.client_id),
            "device_pk": key.client_id,
            "dh_pk": self.identity.dh_pk,
            "created_at": created,
            "expires_at": created + MAX_LIFETIME_SEC,
        }
        return stream_id, Draft(body=cbor.encode(record), schema=DEVICE_SCHEMA)


def _name_of_announcement(stream_id: bytes) -> bytes:
    """Return the name under which the record of a device is remembered beside the bindings."""
    return Ht("veen/device-announced", stream_id)
