"""State of a stream's keys: generations, readers, open invitations, and bindings of client keys (D-171).

A fold over the events of one stream, in any order that keeps those of one label in order. Records that are forged, of
another stream or not the owner's change nothing, and neither does a record that is repeated, at any later position and
by any author (the law in tests/client/test_generation_laws.py):

    generation       counts if its gen is greater than the present one
    hand-over,       with a number: counts if the number is greater than every number before, and every number that was
    shredding        seen is used up, also that of a record without effect; without a number: counts once, by its digest
    hand-over        counts for the present generation only: a reader who was removed stays removed until a newer
                     hand-over or generation names her
    enrolment        uses up the invitation, which only a hand-over opens
    change of owner  as a hand-over; from then on records count that the new key signed, and no others. A key that was
                     the owner's once never is again
    author card      the first card or binding of a client key counts; a card only if that key sent it, and a binding
                     by another identity than that of an earlier card does not (D-179); none counts for a key that
                     was the owner's once, or of a principal whose place was taken
    end of a key     by the identity that proved the key, or one that took its place; entries behind it are not the
                     identity's. One of all keys counts once, by its digest
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, Final, Self

from veen.client.errors import CardInvalid
from veen.client.generations.records import (
    GENERATION_SCHEMA,
    JOIN_SCHEMA,
    MAX_WRAPS,
    OWNER_SCHEMA,
    SHRED_SCHEMA,
    WRAP_SCHEMA,
    AuthorCard,
    Enrolment,
    HandOver,
    KeyGeneration,
    KeyShred,
    OwnerChange,
    WrappedKey,
    open_back,
    wrap_id,
)
from veen.client.identity.card import IdentityCard, card_id_of
from veen.client.identity.identity import Identity
from veen.client.identity.keyring import Keyring, StreamKeys
from veen.core.crypto import x25519
from veen.core.errors import FormatError, SignatureError
from veen.core.event import Event
from veen.core.hashing import Ht
from veen.core.objects.card import CARD_SCHEMA
from veen.core.objects.speaking import (
    PRINCIPAL_NEXT_SCHEMA,
    SPEAKS_END_SCHEMA,
    SPEAKS_SCHEMA,
    AuthorKey,
    EndOfKey,
    PrincipalNext,
    SpeakingStatement,
    SpeaksBinding,
    SpeaksEnd,
)
from veen.core.wire import LEFT_OUT_EMPTY, Bytes32, Length, Map, Part, Size, Uint

GRACE_SEC: Final = 600  # messages sealed to an older generation still count for this long after a new one
MAX_AUTHORS: Final = 65_536  # client keys of a stream with a known identity; further cards are ignored
_MAX_GENERATIONS: Final = 65_536
_MAX_MEMBERS: Final = 65_536
_MAX_USED: Final = 65_536
_MAX_STEPS: Final = 64  # from a principal to its successors


@dataclass(frozen=True, slots=True, kw_only=True)
class Announced(Part, kind="announced generation"):
    """A generation, and the time from which writers seal to it."""

    gen: Uint
    pk: Bytes32
    ts: Uint  # ts* of the announcement
    epoch: Uint
    stream_seq: Uint
    back: WrappedKey | None = None
    history: bool | None = None  # None in states of earlier releases, where `back` means the same

    @property
    def order(self) -> tuple[int, int, int]:
        return self.ts, self.epoch, self.stream_seq

    @property
    def allows_history(self) -> bool:
        """True if later invitations may hand over the generations before this one."""
        return self.back is not None if self.history is None else self.history


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenInvite(Part, kind="open invitation"):
    """An invitation by code that the owner issued: a reader of `gen` whose card is not known yet."""

    invite_pk: Bytes32
    gen: Uint
    expires_at: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced(Part, kind="replaced principal"):
    """A principal and its successor."""

    old: Bytes32
    new: Bytes32


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelCursor(Part, kind="label cursor"):
    """The position up to which a label was read for messages about keys."""

    label: Bytes32
    stream_seq: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class ShreddedGeneration(Part, kind="shredded generation"):
    gen: Uint


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyState(Map, kind="key state"):
    """The state as a value. A client stores its wire form between two runs; it can always be made again from the
    log."""

    stream_id: Bytes32
    owner_pk: Bytes32
    generations: Annotated[tuple[Announced, ...], Length(0, _MAX_GENERATIONS)] = ()  # by gen
    members: Annotated[tuple[IdentityCard, ...], Length(0, _MAX_MEMBERS)] = ()  # readers without the owner
    invites: Annotated[tuple[OpenInvite, ...], Length(0, _MAX_MEMBERS)] = ()
    shredded: Annotated[tuple[ShreddedGeneration, ...], Length(0, _MAX_GENERATIONS)] = ()
    authors: Annotated[tuple[AuthorKey, ...], Length(0, MAX_AUTHORS)] = ()
    cursors: Annotated[tuple[LabelCursor, ...], Length(0, MAX_AUTHORS)] = ()
    number: Uint | None = None  # the greatest number of a record of the owner; None if none had one
    used: Annotated[
        tuple[Bytes32, ...], Length(0, _MAX_USED), LEFT_OUT_EMPTY
    ] = ()  # digests of those without a number, and former keys of the owner
    wrapped_for: Annotated[tuple[Annotated[bytes, Size(8)], ...], Length(0, MAX_WRAPS), LEFT_OUT_EMPTY] = ()
    new_owner_pk: Bytes32 | None = None  # the owner's key, if it is no longer `owner_pk`, which the control key goes by
    gen_at_change: Uint | None = None  # the generation when that key last changed
    ends: Annotated[
        tuple[Bytes32, ...], Length(0, _MAX_USED), LEFT_OUT_EMPTY
    ] = ()  # digests of ends of all keys, and of pairs that were ended before they were proven
    replaced: Annotated[tuple[Replaced, ...], Length(0, MAX_AUTHORS), LEFT_OUT_EMPTY] = ()

    @property
    def owner(self) -> bytes:
        """Key that signs records of the owner now."""
        return self.owner_pk if self.new_owner_pk is None else self.new_owner_pk

    @property
    def newest(self) -> Announced | None:
        return self.generations[-1] if self.generations else None

    @property
    def gen(self) -> int:
        """Generation that writers seal to."""
        return 0 if self.newest is None else self.newest.gen

    @property
    def next_number(self) -> int:
        """Number of the owner's next record."""
        return (self.number or 0) + 1

    def is_forgotten(self, gen: int) -> bool:
        """Return True if the owner asked all readers to forget a generation."""
        return any(shredded.gen == gen for shredded in self.shredded)

    def find_opening_generation(self, gen: int) -> int | None:
        """Return the generation whose `back` field opens `gen`, unless its own key was shredded for good (D-182)."""
        rows = {row.gen: row for row in self.generations}
        forgotten = {row.gen for row in self.shredded}
        step = gen + 1
        while step in rows and rows[step].back is not None:
            if step not in forgotten:
                return gen + 1
            step += 1
        return None

    def is_shredded(self, gen: int) -> bool:
        """Return True if a generation is to be forgotten and no field of the log leads back to it."""
        return self.is_forgotten(gen) and self.find_opening_generation(gen) is None

    def is_stale(self, gen: int, ts: int) -> bool:
        """Return True if an entry sealed to `gen` came too late: a newer generation was announced long before."""
        return is_stale(self.generations, gen, ts)

    def first_for_new_readers(self) -> int:
        """Return the earliest generation that an invitation hands over: the last one that was made without history."""
        return next((row.gen for row in reversed(self.generations) if not row.allows_history), 0)

    def find_unnamed_readers(self) -> tuple[bytes, ...]:
        """Return card ids that the newest generation is wrapped for although no record made them readers.

        Releases before D-182 counted a repeated hand-over, so that a reader who had been removed was given new keys.
        """
        named = {wrap_id(card) for card in self.members} | {bytes.fromhex(card_id_of(self.owner))}
        return tuple(card_id for card_id in self.wrapped_for if card_id not in named)

    def cursor(self, label: bytes) -> int:
        return next((cursor.stream_seq for cursor in self.cursors if cursor.label == label), 0)

    def member(self, id_sign_pk: bytes) -> IdentityCard | None:
        return next((card for card in self.members if card.id_sign_pk == id_sign_pk), None)

    def author(self, client_id: bytes) -> bytes | None:
        """Return the id_sign_pk of the identity that proved to own a client key."""
        return next((author.id_sign_pk for author in self.authors if author.client_id == client_id), None)

    def keys_of(self, identities: Collection[bytes]) -> dict[bytes, AuthorKey]:
        """Return the client keys that some identities proved, by client_id."""
        return {row.client_id: row for row in self.authors if row.id_sign_pk in identities}


def is_stale(generations: "list[Announced] | tuple[Announced, ...]", gen: int, ts: int) -> bool:
    """Return True if a generation newer than `gen` was announced more than the grace before `ts`."""
    for newer in reversed(generations):
        if newer.gen <= gen:
            return False
        if ts > newer.ts + GRACE_SEC:
            return True
    return False


KeyRecord = KeyGeneration | HandOver | Enrolment | KeyShred | OwnerChange | AuthorCard | SpeakingStatement
_ABOUT_AUTHORS: Final = (AuthorCard, SpeaksBinding, SpeaksEnd, PrincipalNext)


@dataclass(slots=True)
class KeyFold:
    """The fold, with an index for each lookup: the cost of a record does not depend on their number.

    Owned by one thread. `changes` counts the changes of everything but the cursors.
    """

    stream_id: bytes
    owner_pk: bytes
    generations: list[Announced] = field(default_factory=list)
    members: dict[bytes, IdentityCard] = field(default_factory=dict)  # by id_sign_pk, the newest last
    invites: dict[bytes, OpenInvite] = field(default_factory=dict)  # by invite_pk
    shredded: dict[int, ShreddedGeneration] = field(default_factory=dict)
    authors: dict[bytes, AuthorKey] = field(default_factory=dict)  # by client_id
    cursors: dict[bytes, int] = field(default_factory=dict)  # stream_seq by label, the newest last
    number: int | None = None
    used: set[bytes] = field(
        default_factory=set
    )  # digests of the owner's records without a number, and her former keys
    wrapped_for: tuple[bytes, ...] = ()  # card ids of the newest generation's record
    new_owner_pk: bytes | None = None
    gen_at_change: int | None = None
    live: dict[bytes, set[bytes]] = field(default_factory=dict)  # client keys without an end, by id_sign_pk
    ends: set[bytes] = field(default_factory=set)
    replaced: dict[bytes, bytes] = field(default_factory=dict)  # by the old principal
    changes: int = 0
    steps: int = 0  # entries that were read

    @classmethod
    def of(cls, state: KeyState) -> Self:
        live: dict[bytes, set[bytes]] = {}
        for author in state.authors:
            if author.ended is None:
                live.setdefault(author.id_sign_pk, set()).add(author.client_id)
        return cls(
            live=live,
            stream_id=state.stream_id,
            owner_pk=state.owner_pk,
            generations=list(state.generations),
            members={card.id_sign_pk: card for card in state.members},
            invites={invite.invite_pk: invite for invite in state.invites},
            shredded={row.gen: row for row in state.shredded},
            authors={author.client_id: author for author in state.authors},
            cursors={cursor.label: cursor.stream_seq for cursor in state.cursors},
            number=state.number,
            used=set(state.used),
            wrapped_for=state.wrapped_for,
            new_owner_pk=state.new_owner_pk,
            gen_at_change=state.gen_at_change,
            ends=set(state.ends),
            replaced={row.old: row.new for row in state.replaced},
        )

    def state(self) -> KeyState:
        """Return the state as a value. Costs as much as there is in it."""
        return KeyState(
            stream_id=self.stream_id,
            owner_pk=self.owner_pk,
            generations=tuple(self.generations),
            members=tuple(self.members.values()),
            invites=tuple(self.invites.values()),
            shredded=tuple(self.shredded.values()),
            authors=tuple(self.authors.values()),
            cursors=tuple(LabelCursor(label=label, stream_seq=seq) for label, seq in self.cursors.items()),
            number=self.number,
            used=tuple(sorted(self.used)),
            wrapped_for=self.wrapped_for,
            new_owner_pk=self.new_owner_pk,
            gen_at_change=self.gen_at_change,
            ends=tuple(sorted(self.ends)),
            replaced=tuple(Replaced(old=old, new=new) for old, new in self.replaced.items()),
        )

    @property
    def owner(self) -> bytes:
        """The key that signs records of the owner now."""
        return self.owner_pk if self.new_owner_pk is None else self.new_owner_pk

    @property
    def gen(self) -> int:
        return self.generations[-1].gen if self.generations else 0

    def read_to(self, label: bytes, stream_seq: int) -> None:
        """Note that a label was read up to an entry."""
        if self.cursors.pop(label, None) is None and len(self.cursors) >= MAX_AUTHORS:
            del self.cursors[next(iter(self.cursors))]
        self.cursors[label] = stream_seq
        self.steps += 1

    # --- one record each -------------------------------------------------------------------------------

    def apply(self, event: Event, record: KeyRecord) -> bool:
        """Apply a record that `record_of` returned for `event`; return True if it counts."""
        if isinstance(record, AuthorCard):
            return self._add_author(AuthorKey(client_id=event.client_id, id_sign_pk=record.card.id_sign_pk))
        if isinstance(record, SpeaksBinding):
            return self._bind(record)
        if isinstance(record, SpeaksEnd):
            return self._end(record, EndOfKey(ts=event.ts, epoch=event.epoch, stream_seq=event.stream_seq))
        if isinstance(record, PrincipalNext):
            return self._add_successor(record)
        if isinstance(record, Enrolment):
            return self._enrol(record, event)
        if not self._use(record):
            return False
        self.changes += 1
        if isinstance(record, KeyGeneration):
            return self._announce(record, event)
        if isinstance(record, HandOver):
            return self._hand_over(record)
        if isinstance(record, OwnerChange):
            return self._change_owner(record)
        if record.gen >= self.gen or record.gen in self.shredded:  # the generation in use is rotated first
            return False
        self.shredded[record.gen] = ShreddedGeneration(gen=record.gen)
        return True

    def _use(self, record: KeyGeneration | HandOver | KeyShred | OwnerChange) -> bool:
        """Use up the number or the digest of an owner's record; return False if that was done before."""
        if record.number is not None:
            if record.number <= (self.number or 0):
                return False
            self.number = record.number
            return True
        if isinstance(record, KeyGeneration | OwnerChange):
            return True  # its gen serves as a number
        digest = record.signing_digest()
        if digest in self.used or len(self.used) >= _MAX_USED:
            return False
        if record.gen >= self.gen:  # an older one has no effect, so it need not be remembered
            self.used.add(digest)
        return True

    def _announce(self, record: KeyGeneration, event: Event) -> bool:
        """Add a generation, by its first announcement; its readers are those that it is wrapped for."""
        if record.gen <= self.gen or len(self.generations) >= _MAX_GENERATIONS:
            return False
        self.generations.append(
            Announced(
                gen=record.gen,
                pk=record.pk,
                ts=event.ts,
                epoch=event.epoch,
                stream_seq=event.stream_seq,
                back=record.back,
                history=record.history,
            )
        )
        self.wrapped_for = tuple(wrap.card_id for wrap in record.wraps)
        staying = set(self.wrapped_for)
        self.members = {key: card for key, card in self.members.items() if wrap_id(card) in staying}
        self.invites = {key: invite for key, invite in self.invites.items() if invite.gen >= record.gen}
        return True

    def _hand_over(self, record: HandOver) -> bool:
        if record.gen != self.gen:
            return False
        for card in record.cards:
            self._add_member(card)
        if record.invite_pk is not None and len(self.invites) < _MAX_MEMBERS:
            invite = OpenInvite(invite_pk=record.invite_pk, gen=record.gen, expires_at=record.expires_at or 0)
            self.invites[record.invite_pk] = invite
        return True

    def _change_owner(self, record: OwnerChange) -> bool:
        """Change the owner's key. A former owner's key is never accepted again: its old records would count when
        repeated."""
        if record.new_owner_pk in self.used or record.new_owner_pk in (self.owner, self.owner_pk):
            return False
        self.used.add(record.owner_pk)
        self.new_owner_pk, self.gen_at_change = record.new_owner_pk, self.gen
        return True

    def _enrol(self, record: Enrolment, event: Event) -> bool:
        """Add a reader by the first use of an invitation, if it is in time and by the client key on the card."""
        invite = self.invites.get(record.invite_pk)
        if invite is None or event.ts > invite.expires_at or record.card.client_id != event.client_id:
            return False
        del self.invites[record.invite_pk]
        self.changes += 1
        self._add_member(record.card)
        self._add_author(AuthorKey(client_id=event.client_id, id_sign_pk=record.card.id_sign_pk))
        return True

    def _add_member(self, card: IdentityCard) -> None:
        self.members.pop(card.id_sign_pk, None)
        if len(self.members) < _MAX_MEMBERS:
            self.members[card.id_sign_pk] = card

    def _was_owner(self, id_sign_pk: bytes) -> bool:
        """Return True for a key that was the owner's and is no longer: no further client key counts as the owner's."""
        if self.new_owner_pk is None or id_sign_pk == self.new_owner_pk:
            return False
        return id_sign_pk == self.owner_pk or id_sign_pk in self.used

    def _may_prove(self, id_sign_pk: bytes) -> bool:
        return id_sign_pk not in self.replaced and not self._was_owner(id_sign_pk)

    def _add_author(self, author: AuthorKey) -> bool:
        if (
            author.client_id in self.authors
            or len(self.authors) >= MAX_AUTHORS
            or not self._may_prove(author.id_sign_pk)
        ):
            return False
        return self._set_author(author)

    def _set_author(self, author: AuthorKey) -> bool:
        if (earlier := self.authors.get(author.client_id)) is not None:
            self.live.get(earlier.id_sign_pk, set()).discard(author.client_id)
        if author.ended is None:
            self.live.setdefault(author.id_sign_pk, set()).add(author.client_id)
        self.authors[author.client_id] = author
        self.changes += 1
        return True

    def _bind(self, record: SpeaksBinding) -> bool:
        """Add the first binding of a key; after a card only one by the identity on it, or by its successor."""
        author = AuthorKey(
            client_id=record.client_id,
            id_sign_pk=record.principal_pk,
            not_before=record.not_before,
            not_after=record.not_after,
        )
        earlier = self.authors.get(record.client_id)
        if earlier is None:
            if _pair(record.principal_pk, record.client_id) in self.ends:  # ended at every place of the log
                author = replace(author, ended=EndOfKey(ts=0, epoch=0, stream_seq=0))
            return self._add_author(author)
        is_unbound = earlier.not_after is None and self._may_prove(record.principal_pk)
        if not is_unbound or not self._is_or_follows(record.principal_pk, earlier.id_sign_pk):
            return False
        return self._set_author(replace(author, ended=earlier.ended))

    def _end(self, record: SpeaksEnd, place: EndOfKey) -> bool:
        if record.client_id is None:
            if not self._note_end(record.signing_digest()):
                return False
            for client_id in sorted(self.live.get(record.principal_pk, ())):
                self._set_author(replace(self.authors[client_id], ended=place))
            return True
        author_or_none = self.authors.get(record.client_id)
        if author_or_none is None:
            return self._note_end(_pair(record.principal_pk, record.client_id))
        is_over = author_or_none.ended is not None
        if is_over or not self._is_or_follows(record.principal_pk, author_or_none.id_sign_pk):
            return False
        return self._set_author(replace(author_or_none, ended=place))

    def _note_end(self, digest: bytes) -> bool:
        if digest in self.ends or len(self.ends) >= _MAX_USED:
            return False
        self.ends.add(digest)
        self.changes += 1
        return True

    def _add_successor(self, record: PrincipalNext) -> bool:
        """Add the first successor of a principal, unless the principal itself succeeded that one."""
        if record.old in self.replaced or self._is_or_follows(record.old, record.new):
            return False
        if len(self.replaced) >= MAX_AUTHORS:
            return False
        self.replaced[record.old] = record.new
        self.changes += 1
        return True

    def _is_or_follows(self, principal: bytes, other: bytes) -> bool:
        """Return True if a principal is another one, or took its place, also by way of others."""
        for _ in range(_MAX_STEPS):
            if principal == other:
                return True
            if other not in self.replaced:
                return False
            other = self.replaced[other]
        return False


def _pair(principal: bytes, client_id: bytes) -> bytes:
    return Ht("veen/speaks-pair", principal + client_id)


def record_of(stream: KeyState | KeyFold, event: Event) -> KeyRecord | None:
    """Return the message about the keys of this stream in an event; None if it is none, or is not authorised."""
    try:
        return _record_of(stream, event)
    except (FormatError, SignatureError, CardInvalid):
        return None


def _record_of(stream: KeyState | KeyFold, event: Event) -> KeyRecord | None:
    schema, body = event.hdr.schema, event.body
    if schema == CARD_SCHEMA:
        author = AuthorCard.from_bytes(body)
        author.card.verify()
        return author if author.card.client_id == event.client_id else None
    if schema == SPEAKS_SCHEMA:
        binding = SpeaksBinding.from_bytes(body)
        if binding.stream_id != stream.stream_id or not binding.has_legal_lifetime:
            return None
        binding.verify()
        return binding
    if schema in (SPEAKS_END_SCHEMA, PRINCIPAL_NEXT_SCHEMA):
        statement = (SpeaksEnd if schema == SPEAKS_END_SCHEMA else PrincipalNext).from_bytes(body)
        if statement.stream_id != stream.stream_id:
            return None
        statement.verify()
        return statement
    if schema == JOIN_SCHEMA:
        enrolment = Enrolment.from_bytes(body)
        enrolment.check_signed_by(enrolment.invite_pk)
        enrolment.card.verify()
        return enrolment if enrolment.stream_id == stream.stream_id else None
    kind = _OWNERS.get(schema)
    if kind is None:
        return None
    record = kind.from_bytes(body)
    if (record.stream_id, record.owner_pk) != (stream.stream_id, stream.owner):
        return None
    record.check_signed_by(stream.owner)
    if isinstance(record, HandOver):
        for card in record.cards:
            card.verify()
    return record


_OWNERS: Final[dict[bytes, type[KeyGeneration] | type[HandOver] | type[KeyShred] | type[OwnerChange]]] = {
    GENERATION_SCHEMA: KeyGeneration,
    WRAP_SCHEMA: HandOver,
    SHRED_SCHEMA: KeyShred,
    OWNER_SCHEMA: OwnerChange,
}


def apply(state: KeyState, event: Event, record: KeyRecord) -> KeyState:
    """Return the state after a record of `record_of`. For many records use `KeyFold`."""
    fold = KeyFold.of(state)
    fold.apply(event, record)
    return fold.state()


def learn(ring: Keyring, state: KeyState | KeyFold, record: KeyRecord, identity: Identity) -> Keyring:
    """Return the keyring of a member after a record that counts in `state`: with keys of a generation, or without
    one."""
    if isinstance(record, (*_ABOUT_AUTHORS, Enrolment, OwnerChange)):
        return ring
    forgotten = _generations_to_forget(state)
    if isinstance(record, KeyShred):
        if record.gen in forgotten:
            return _forget(ring, state.stream_id, record.gen)
        return ring
    for gen, pk, sk in _unwrap(record, identity):
        if _is_announced(ring, state, gen, pk):
            ring = _with(ring, state, gen, pk, None if gen in forgotten else sk)
    return with_history(ring, state)


def _unwrap(record: KeyGeneration | HandOver, identity: Identity) -> Iterator[tuple[int, bytes, bytes | None]]:
    """Yield (gen, pk, secret key) of each generation in a record; without a secret if none is wrapped for this
    identity."""
    openings = [(bytes.fromhex(card_id), dh_sk) for card_id, dh_sk in identity.openings]
    if isinstance(record, HandOver):
        for card_id, dh_sk in openings:
            yield from record.earlier_for(card_id, dh_sk)
    secrets = (record.secret_for(card_id, dh_sk) for card_id, dh_sk in openings)
    yield record.gen, record.pk, next((sk for sk in secrets if sk is not None), None)


def _generations_to_forget(state: KeyState | KeyFold) -> frozenset[int]:
    rows = state.shredded if isinstance(state, KeyState) else state.shredded.values()
    return frozenset(row.gen for row in rows)


def _forget(ring: Keyring, stream_id: bytes, gen: int) -> Keyring:
    if any(keys.can_read and keys.generation == gen for keys in ring.readers(stream_id)):
        return ring.without_secret(stream_id, gen)
    return ring


def _is_announced(ring: Keyring, state: KeyState | KeyFold, gen: int, pk: bytes) -> bool:
    """Return True for a generation that counts: an announced one, or the first one, which needs no announcement."""
    public_keys = {keys.generation: keys.reader_pk for keys in ring.readers(state.stream_id)}
    if gen in public_keys:
        return public_keys[gen] == pk
    return gen == 0 or any((row.gen, row.pk) == (gen, pk) for row in state.generations)


def _with(ring: Keyring, state: KeyState | KeyFold, gen: int, pk: bytes, sk: bytes | None) -> Keyring:
    newest, *older = ring.readers(state.stream_id)
    if any(
        (old.reader_pk, old.gen, old.owner_pk) == (pk, gen, state.owner_pk) and sk in (None, old.reader_sk)
        for old in (newest, *older)
    ):
        return ring
    keys = StreamKeys(
        stream_id=state.stream_id,
        reader_pk=pk,
        reader_sk=sk,
        name=newest.name,
        gen=gen,
        owner_pk=state.owner_pk,
        bound_to=newest.bound_to,
    )
    return ring.with_keys(keys)


def with_history(ring: Keyring, state: KeyState | KeyFold) -> Keyring:
    """Open the generations that a `back` field of an earlier release leads to, unless they are to be forgotten."""
    if all(row.back is None for row in state.generations):
        return ring
    secrets = {keys.generation: keys.reader_sk for keys in ring.readers(state.stream_id)}
    forgotten = _generations_to_forget(state)
    for row in reversed(state.generations):
        sk = secrets.get(row.gen)
        if row.back is None or sk is None or secrets.get(row.gen - 1) is not None or row.gen - 1 in forgotten:
            continue
        earlier = open_back(row.back, sk, state.stream_id, row.gen, row.pk)
        if earlier is not None:
            secrets[row.gen - 1] = earlier
            ring = _with(ring, state, row.gen - 1, x25519.public_key(earlier), earlier)
    return ring
