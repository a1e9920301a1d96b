"""What the messages about keys amount to: generations, readers, open invitations, and whose key is whose (D-171).

A fold over the events of one stream, in any order that keeps those of one label in order; the same events give the same
state. What is forged, of another stream or not the owner's changes nothing.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Final, Self

from veen.client.errors import CardInvalid
from veen.client.generations.records import (
    CARD_SCHEMA,
    GENERATION_SCHEMA,
    JOIN_SCHEMA,
    SHRED_SCHEMA,
    WRAP_SCHEMA,
    AuthorCard,
    Enrolment,
    HandOver,
    KeyGeneration,
    KeyShred,
    WrappedKey,
    open_back,
    wrap_id,
)
from veen.client.identity.card import IdentityCard
from veen.client.identity.identity import Identity
from veen.client.identity.keyring import Keyring, StreamKeys
from veen.core.crypto import x25519
from veen.core.errors import FormatError, SignatureError
from veen.core.event import Event
from veen.core.wire import Bytes32, Length, Map, Part, Uint

GRACE_SEC: Final = 600  # after a new generation, what is sealed to an older one still counts for so long
_MAX_GENERATIONS: Final = 65_536
_MAX_MEMBERS: Final = 65_536
_MAX_AUTHORS: Final = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Announced(Part, kind="announced generation"):
    """A generation, and since when writers seal to it."""

    gen: Uint
    pk: Bytes32
    ts: Uint  # ts* of the announcement
    epoch: Uint
    stream_seq: Uint
    back: WrappedKey | None = None

    @property
    def order(self) -> tuple[int, int, int]:
        return self.ts, self.epoch, self.stream_seq


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenInvite(Part, kind="open invitation"):
    """An invitation by code that the owner gave out: a reader of `gen` whose card is not known yet."""

    invite_pk: Bytes32
    gen: Uint
    expires_at: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorKey(Part, kind="author key"):
    """A client key and the identity that proved to have it."""

    client_id: Bytes32
    id_sign_pk: Bytes32


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelCursor(Part, kind="label cursor"):
    """How far a label was read for messages about keys."""

    label: Bytes32
    stream_seq: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class ShreddedGeneration(Part, kind="shredded generation"):
    gen: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyState(Map, kind="key state"):
    """A value. Its wire form is what a client keeps between two runs; it can always be made again from the log."""

    stream_id: Bytes32
    owner_pk: Bytes32
    generations: Annotated[tuple[Announced, ...], Length(0, _MAX_GENERATIONS)] = ()  # by gen
    members: Annotated[tuple[IdentityCard, ...], Length(0, _MAX_MEMBERS)] = ()  # readers, the owner apart
    invites: Annotated[tuple[OpenInvite, ...], Length(0, _MAX_MEMBERS)] = ()
    shredded: Annotated[tuple[ShreddedGeneration, ...], Length(0, _MAX_GENERATIONS)] = ()
    authors: Annotated[tuple[AuthorKey, ...], Length(0, _MAX_AUTHORS)] = ()
    cursors: Annotated[tuple[LabelCursor, ...], Length(0, _MAX_AUTHORS)] = ()

    @property
    def newest(self) -> Announced | None:
        return self.generations[-1] if self.generations else None

    @property
    def gen(self) -> int:
        """The generation that writers seal to."""
        return 0 if self.newest is None else self.newest.gen

    def is_shredded(self, gen: int) -> bool:
        return any(shredded.gen == gen for shredded in self.shredded)

    def is_stale(self, gen: int, ts: int) -> bool:
        """Whether an entry sealed to `gen` came too late: a newer generation had been announced for long enough."""
        return any(newer.gen > gen and ts > newer.ts + GRACE_SEC for newer in reversed(self.generations))

    def cursor(self, label: bytes) -> int:
        return next((cursor.stream_seq for cursor in self.cursors if cursor.label == label), 0)

    def read_to(self, label: bytes, stream_seq: int) -> Self:
        others = tuple(cursor for cursor in self.cursors if cursor.label != label)
        return replace(self, cursors=(*others, LabelCursor(label=label, stream_seq=stream_seq))[-_MAX_AUTHORS:])

    def member(self, id_sign_pk: bytes) -> IdentityCard | None:
        return next((card for card in self.members if card.id_sign_pk == id_sign_pk), None)

    def author(self, client_id: bytes) -> bytes | None:
        """id_sign_pk of the identity that proved to have a client key."""
        return next((author.id_sign_pk for author in self.authors if author.client_id == client_id), None)

    # --- one message each ------------------------------------------------------------------------------

    def _with_member(self, card: IdentityCard) -> Self:
        others = tuple(other for other in self.members if other.id_sign_pk != card.id_sign_pk)
        return replace(self, members=(*others, card)[-_MAX_MEMBERS:])

    def with_author(self, client_id: bytes, id_sign_pk: bytes) -> Self:
        if self.author(client_id) is not None:
            return self
        return replace(self, authors=(*self.authors, AuthorKey(client_id=client_id, id_sign_pk=id_sign_pk)))

    def announced(self, record: KeyGeneration, event: Event) -> Self:
        """A generation counts once, by its first announcement; its readers are those that it is wrapped for."""
        if record.gen <= self.gen or len(self.generations) >= _MAX_GENERATIONS:
            return self
        row = Announced(
            gen=record.gen,
            pk=record.pk,
            ts=event.ts,
            epoch=event.epoch,
            stream_seq=event.stream_seq,
            back=record.back,
        )
        staying = {wrap.card_id for wrap in record.wraps}
        return replace(
            self,
            generations=(*self.generations, row),
            members=tuple(card for card in self.members if wrap_id(card) in staying),
            invites=tuple(invite for invite in self.invites if invite.gen >= record.gen),
        )

    def handed_over(self, record: HandOver) -> Self:
        state = self
        for card in record.cards:
            state = state._with_member(card)
        if record.invite_pk is not None:
            invite = OpenInvite(invite_pk=record.invite_pk, gen=record.gen, expires_at=record.expires_at or 0)
            state = replace(state, invites=(*state.invites, invite)[-_MAX_MEMBERS:])
        return state

    def enrolled(self, record: Enrolment, event: Event) -> Self:
        """The first use of an invitation counts, if it is in time and by the client key on the card."""
        invite = next((invite for invite in self.invites if invite.invite_pk == record.invite_pk), None)
        if invite is None or event.ts > invite.expires_at or record.card.client_id != event.client_id:
            return self
        state = replace(self, invites=tuple(other for other in self.invites if other is not invite))
        return state._with_member(record.card).with_author(event.client_id, record.card.id_sign_pk)


KeyRecord = KeyGeneration | HandOver | Enrolment | KeyShred | AuthorCard


def record_of(state: KeyState, event: Event) -> KeyRecord | None:
    """The message about the keys of this stream in an event; None if it is none, or may not say so."""
    try:
        return _record_of(state, event)
    except (FormatError, SignatureError, CardInvalid):
        return None


def _record_of(state: KeyState, event: Event) -> KeyRecord | None:
    schema, body = event.hdr.schema, event.body
    if schema == CARD_SCHEMA:
        author = AuthorCard.from_bytes(body)
        author.card.verify()
        return author if author.card.client_id == event.client_id else None
    if schema == JOIN_SCHEMA:
        enrolment = Enrolment.from_bytes(body)
        enrolment.check_signed_by(enrolment.invite_pk)
        enrolment.card.verify()
        return enrolment if enrolment.stream_id == state.stream_id else None
    kind = _OWNERS.get(schema)
    if kind is None:
        return None
    record = kind.from_bytes(body)
    if (record.stream_id, record.owner_pk) != (state.stream_id, state.owner_pk):
        return None
    record.check_signed_by(state.owner_pk)
    if isinstance(record, HandOver):
        for card in record.cards:
            card.verify()
    return record


_OWNERS: Final[dict[bytes, type[KeyGeneration] | type[HandOver] | type[KeyShred]]] = {
    GENERATION_SCHEMA: KeyGeneration,
    WRAP_SCHEMA: HandOver,
    SHRED_SCHEMA: KeyShred,
}


def apply(state: KeyState, event: Event, record: KeyRecord) -> KeyState:
    """The state after a record of `record_of`."""
    if isinstance(record, KeyGeneration):
        return state.announced(record, event)
    if isinstance(record, HandOver):
        return state.handed_over(record)
    if isinstance(record, Enrolment):
        return state.enrolled(record, event)
    if isinstance(record, AuthorCard):
        return state.with_author(event.client_id, record.card.id_sign_pk)
    if state.is_shredded(record.gen) or record.gen >= state.gen:
        return state  # the generation in use is rotated first
    return replace(state, shredded=(*state.shredded, ShreddedGeneration(gen=record.gen)))


def learn(ring: Keyring, state: KeyState, record: KeyRecord, identity: Identity) -> Keyring:
    """The keyring of a member after a record that `state` includes: keys of a generation, or that one is gone."""
    if isinstance(record, KeyGeneration | HandOver) and record.pk in _public_keys(ring, state):
        sk = None
        if not state.is_shredded(record.gen):
            sk = record.secret_for(bytes.fromhex(identity.card_id), identity.dh_sk)
        ring = _with(ring, state, record.gen, record.pk, sk)
    ring = with_history(ring, state)
    for shredded in state.shredded:
        if any(keys.can_read and keys.generation == shredded.gen for keys in ring.readers(state.stream_id)):
            ring = ring.shredded(state.stream_id, shredded.gen)
    return ring


def _public_keys(ring: Keyring, state: KeyState) -> set[bytes]:
    """Of the generations that count: those announced, and the first one, which needs no announcement."""
    keys = {keys.reader_pk for keys in ring.readers(state.stream_id)}
    return keys | {row.pk for row in state.generations}


def _with(ring: Keyring, state: KeyState, gen: int, pk: bytes, sk: bytes | None) -> Keyring:
    name = ring.for_stream(state.stream_id).name
    keys = StreamKeys(
        stream_id=state.stream_id, reader_pk=pk, reader_sk=sk, name=name, gen=gen, owner_pk=state.owner_pk
    )
    return ring.with_keys(keys)


def with_history(ring: Keyring, state: KeyState) -> Keyring:
    """Open the generations before, as far as each allows it."""
    secrets = {keys.generation: keys.reader_sk for keys in ring.readers(state.stream_id)}
    for row in reversed(state.generations):
        sk = secrets.get(row.gen)
        if sk is None or secrets.get(row.gen - 1) is not None or state.is_shredded(row.gen - 1):
            continue
        earlier = open_back(row.back, sk, state.stream_id, row.gen, row.pk)
        if earlier is not None:
            secrets[row.gen - 1] = earlier
            ring = _with(ring, state, row.gen - 1, x25519.public_key(earlier), earlier)
    return ring
