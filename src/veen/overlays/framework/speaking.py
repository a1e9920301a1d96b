"""Bindings of client keys to principals, by statements of the stream itself (D-179).

`Speaking` is a mixin of ordered folds. It takes the statements of `veen.core.objects.speaking` and the cards of
authors, keeps what they say in the table of the fold, and gives every other event the `Voice` of its sender. The rule,
for an event of client key X:

1. B(X) is the first valid binding of X before the event. If X sent a card before, only the identity on it binds X.
2. A binding is ended by its principal, alone or together with all the principal's bindings before the end.
3. Without B(X), X speaks for itself. After the end, or where ts* lies outside of the time of the binding, X speaks for
   nobody. Otherwise X speaks for itself, its principal P, every key that P ever bound, and the accounts of P in the
   realms that the reader names; also for the principals whose place P took (`veen.principal.next.v1`). A key whose
   place was taken speaks for nobody, bound or not, when it signs messages itself.
4. A field that names an identity counts if the sender speaks for it.
5. What a fold stores of a sender is one name: P if X is bound, else X.

    SPEAKS.STREAM    the statement is about another stream
    SPEAKS.SIG       a signature of the statement does not verify
    SPEAKS.LIFETIME  the binding lasts for no time, or for longer than a key may live
    SPEAKS.BOUND     the key is bound already, or the principal has its successor already
    SPEAKS.CARD      the key said before that it is another identity's
    SPEAKS.OWNER     the key is bound to another principal than the one that ends the binding
    SPEAKS.ENDED     the binding was ended, or the principal that binds was replaced; an end of all was used before
    SPEAKS.TIME      the event lies outside of the time of its sender's binding

A fold of several streams keeps all this for each of them: the state is a function of the prefix of the stream, and a
binding that stands in another stream has to be carried into this one. A stranger's statement never changes what a key
may do that is not his.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar, Final, Self, TypeVar

from veen.core.errors import SignatureError
from veen.core.event import Event
from veen.core.objects.card import CardRecord
from veen.core.objects.speaking import PrincipalNext, SpeakingStatement, SpeaksBinding, SpeaksEnd
from veen.overlays.framework.fold import NO_MIRRORS, Mirrors
from veen.overlays.framework.ordered import Ordered, Table
from veen.overlays.framework.schema import Schema, SchemaSet, Typed, Violation
from veen.overlays.framework.state import state_record
from veen.overlays.id.ids import ctx_id_of

K = TypeVar("K")
R = TypeVar("R")
V = TypeVar("V")

SPEAKS: Final = Schema(SpeaksBinding.KIND, SpeaksBinding)
SPEAKS_END: Final = Schema(SpeaksEnd.KIND, SpeaksEnd)
PRINCIPAL_NEXT: Final = Schema(PrincipalNext.KIND, PrincipalNext)
CARD: Final = Schema("veen.card.v1", CardRecord)
STATEMENTS: Final = SchemaSet([SPEAKS, SPEAKS_END, PRINCIPAL_NEXT])
SPEAKING: Final = STATEMENTS | SchemaSet([CARD])  # what `Speaking` reads

MAX_OLDER: Final = 64  # principals that one took the place of

NOBODY: Final[frozenset[bytes]] = frozenset()


@state_record
class Bound:
    """The valid binding of a client key."""

    principal: bytes
    not_before: int
    not_after: int
    number: int  # among the bindings of the principal, from 1
    is_ended: bool = False  # by name


@state_record
class Principal:
    """A principal of the stream, with its successor and the identities whose place it took."""

    bound: int = 0  # bindings so far
    ended: int = 0  # bindings that were made when the principal last ended all
    successor: bytes | None = None
    older: tuple[bytes, ...] = ()  # principals whose place this one took, also by way of others; sorted
    named: tuple[bytes, ...] = ()  # keys that it bound and that records of the fold name; sorted


@state_record
class Carded:
    """The identity on the first card that a client key sent."""

    card_of: bytes


@state_record
class Closed:
    """Mark of an end that precedes its binding, of the digest of an end of all bindings, or that bindings exist."""

    is_closed: bool = True


@state_record
class Marked:
    """An identity that records of the fold name, or that is bound."""

    is_named: bool = False
    bound_in: tuple[bytes, ...] = ()  # streams


SpeakingKey = tuple[str, bytes]
SpeakingRecord = Bound | Principal | Carded | Closed | Marked
SPEAKING_TYPES: Final[frozenset[type]] = frozenset((Bound, Principal, Carded, Closed, Marked))

ANY_BINDING: Final = ("speaks.any", b"")  # there is a binding or a successor
_UNKNOWN: Final = Principal()
_UNMARKED: Final = Marked()


class Voice(frozenset[bytes]):
    """The identities for which the sender of an event speaks: as a set, those that are few.

    `in` costs the same for one name and for thousands: the voice of a key that is bound looks other keys up.
    """

    client_id: bytes
    principal: bytes | None = None  # None: the key is not bound
    principals: tuple[bytes, ...] = ()  # the principal, and those whose place it took

    def __new__(cls, client_id: bytes, configured: frozenset[bytes] = NOBODY) -> Self:
        """Return the voice of a key that is not bound: itself, and what the reader's settings add."""
        voice = super().__new__(cls, (client_id, *configured))
        voice.client_id = client_id
        return voice

    def __reduce__(self) -> Any:
        raise TypeError("a voice belongs to a place of a stream")

    @property
    def canonical(self) -> bytes:
        """The one name under which a fold stores the sender."""
        return self.client_id

    @property
    def stored(self) -> frozenset[bytes]:
        """The identities that a fold stores where it keeps all those of a sender."""
        return frozenset(self)

    def any_of(self, identities: Collection[bytes]) -> bool:
        """Return True if the sender speaks for one of some identities."""
        return not self.isdisjoint(identities)

    def those_of(self, identities: frozenset[bytes]) -> Collection[bytes]:
        """Return the identities among some for which the sender speaks."""
        return self & identities

    @property
    def names(self) -> frozenset[bytes]:
        """The identities of the voice under which a fold may have records. Keys that only spoke are not among them."""
        return self


class BoundVoice(Voice):
    """The voice of a key that is bound to a principal, at a place of its stream."""

    _configured: frozenset[bytes]
    _state: Table[Any, Any]
    _stream_id: bytes

    @classmethod
    def of(
        cls,
        client_id: bytes,
        principals: tuple[bytes, ...],
        *,
        state: Table[Any, Any],
        stream_id: bytes,
        configured: frozenset[bytes] = NOBODY,
        accounts: Collection[bytes] = (),
    ) -> Self:
        voice = cls(client_id, frozenset((*principals, *configured, *accounts)))
        voice.principal, voice.principals, voice._configured = principals[0], principals, configured
        voice._state, voice._stream_id = state, stream_id
        return voice

    def __contains__(self, identity: object) -> bool:
        if frozenset.__contains__(self, identity):
            return True
        if type(identity) is not bytes:
            return False
        bound = self._state.get(("speaks", self._stream_id + identity))
        return bound is not None and bound.principal in self.principals

    def any_of(self, identities: Collection[bytes]) -> bool:
        return any(identity in self for identity in identities)

    def those_of(self, identities: frozenset[bytes]) -> Collection[bytes]:
        return [identity for identity in identities if identity in self]

    @property
    def canonical(self) -> bytes:
        return self.principals[0]

    @property
    def stored(self) -> frozenset[bytes]:
        return frozenset((self.canonical, *self._configured))

    @property
    def names(self) -> frozenset[bytes]:
        names = set(self)
        for principal in self.principals:
            names.update(principal_of(self._state, self._stream_id, principal).named)
        return frozenset(names)


voice_of_key: Final = lru_cache(maxsize=8_192)(Voice)  # folds ask for every event, and senders are few


def principal_of(state: Table[Any, Any], stream_id: bytes, principal: bytes) -> Principal:
    """Return what a stream says of a principal; of an unknown one, that it has bound nothing."""
    record: Principal = state.get(("speaks.principal", stream_id + principal), _UNKNOWN)
    return record


def _is_or_follows(state: Table[Any, Any], stream_id: bytes, principal: bytes, other: bytes) -> bool:
    return principal == other or other in principal_of(state, stream_id, principal).older


class Speaking(Ordered[K, R, V]):
    """A mixin that owns the keys of a table that begin with "speaks". With `speaks` off every key is itself alone.

    `realms` are the realm_ids in which a principal's accounts (ctx_id) are names of the principal.
    """

    KEEPS_NAMES: ClassVar[bool] = False  # True for a fold that looks records up by `Voice.names`

    def __init__(self, *, speaks: bool = True, realms: Collection[bytes] = (), mirrors: Mirrors = NO_MIRRORS) -> None:
        super().__init__(mirrors=mirrors)
        self.speaks, self.realms = speaks, tuple(sorted(set(realms)))
        if speaks:
            self.schemas = self.schemas | SPEAKING

    def voice_settings(self) -> list[Any]:
        """Return the entries to add to the settings of a fold: none with the default."""
        realms = [["realms", *self.realms]] if self.realms else []
        return realms if self.speaks else ["speaks off", *realms]

    def take_statement(self, state: Table[Any, Any], event: Typed[Any]) -> bool:
        """Apply a statement to the state; return False for other events. Raise Violation if the statement is void."""
        body = event.body
        if type(body) not in STATEMENT_TYPES:
            return False
        _STATEMENTS[type(body)](self, state, event.event, body)
        return True

    def voice(self, state: Table[Any, Any], event: Event, configured: frozenset[bytes] = NOBODY) -> Voice:
        """Return the voice of a sender at the place of its event; Violation if it speaks for nobody there.

        `configured` are identities for which the reader's settings let the key speak.
        """
        client_id = event.client_id
        if state.get(ANY_BINDING) is None:
            return voice_of_key(client_id, configured)
        stream_id = event.stream_id
        if (successor := principal_of(state, stream_id, client_id).successor) is not None:
            # Whoever has the key of a principal can sign messages with it, too: with its place it loses its voice.
            raise Violation("SPEAKS.ENDED", f"{successor.hex()} took the place of {client_id.hex()}")
        bound = state.get(("speaks", stream_id + client_id))
        if bound is None:
            return voice_of_key(client_id, configured)
        row = principal_of(state, stream_id, bound.principal)
        if bound.is_ended or bound.number <= row.ended:
            raise Violation("SPEAKS.ENDED", f"the binding of {client_id.hex()} to {bound.principal.hex()} was ended")
        if not bound.not_before <= event.ts <= bound.not_after:
            raise Violation(
                "SPEAKS.TIME",
                f"the key is bound from {bound.not_before} to {bound.not_after}, the event is of {event.ts}",
            )
        principals = (bound.principal, *row.older)
        return BoundVoice.of(
            client_id,
            principals,
            state=state,
            stream_id=stream_id,
            configured=configured,
            accounts=[ctx_id_of(pk, realm) for pk in principals for realm in self.realms],
        )

    def voice_of(self, state: Table[Any, Any], stream_id: bytes, identity: bytes) -> Voice:
        """Return the voice that an identity has in a stream by its own name, whatever the time is."""
        if state.get(ANY_BINDING) is None:
            return voice_of_key(identity)
        bound = state.get(("speaks", stream_id + identity))
        principal = identity if bound is None else bound.principal
        principals = (principal, *principal_of(state, stream_id, principal).older)
        return BoundVoice.of(identity, principals, state=state, stream_id=stream_id)

    def names_of(self, state: Table[Any, Any], stream_id: bytes, identity: bytes) -> frozenset[bytes]:
        """Return the names under which records may be about an identity; a key is its own name and no other."""
        if state.get(ANY_BINDING) is None or ("speaks", stream_id + identity) in state:
            return frozenset((identity,))
        return self.voice_of(state, stream_id, identity).names

    def note_name(self, state: Table[Any, Any], identity: bytes) -> None:
        """Record that the fold keeps records under an identity, so that `Voice.names` contains it once it is bound."""
        if not self.speaks:
            return
        marked: Marked = state.get(("speaks.named", identity), _UNMARKED)
        if not marked.is_named:
            state["speaks.named", identity] = replace(marked, is_named=True)
            for stream_id in marked.bound_in:
                _add_name(state, stream_id, state["speaks", stream_id + identity].principal, identity)

    @staticmethod
    def records(state: Table[K, R]) -> Iterator[tuple[K, R]]:
        """Return the records of the overlay, without those about who speaks for whom."""
        return (item for item in state.items() if type(item[1]) not in SPEAKING_TYPES)

    def on_bound(self, state: Table[Any, Any], stream_id: bytes, identity: bytes, principal: bytes) -> None:
        """Handle a new binding of a key, or a new successor of a principal (then with itself). Folds override this."""

    # --- statements --------------------------------------------------------------------------------------------

    def _card(self, state: Table[Any, Any], event: Event, body: CardRecord) -> None:
        """Store the first card of a key, if it names the key and its identity signed it."""
        key = ("speaks.card", event.stream_id + event.client_id)
        if body.card.client_id == event.client_id and key not in state and body.card.is_signed:
            state[key] = Carded(card_of=body.card.id_sign_pk)

    def _bind(self, state: Table[Any, Any], event: Event, body: SpeaksBinding) -> None:
        _check_statement(event, body)
        if not body.has_legal_lifetime:
            raise Violation("SPEAKS.LIFETIME", f"the binding is from {body.not_before} to {body.not_after}")
        stream_id, client_id, principal = body.stream_id, body.client_id, body.principal_pk
        key = ("speaks", stream_id + client_id)
        if key in state:
            raise Violation("SPEAKS.BOUND", f"the key {client_id.hex()} is bound already")
        carded = state.get(("speaks.card", stream_id + client_id))
        if carded is not None and not _is_or_follows(state, stream_id, principal, carded.card_of):
            raise Violation("SPEAKS.CARD", f"the key {client_id.hex()} sent the card of {carded.card_of.hex()}")
        row = principal_of(state, stream_id, principal)
        if row.successor is not None:
            raise Violation("SPEAKS.ENDED", f"{row.successor.hex()} took the place of {principal.hex()}")
        state[ANY_BINDING] = Closed()
        number = row.bound + 1
        state["speaks.principal", stream_id + principal] = replace(row, bound=number)
        state[key] = Bound(
            principal=principal,
            not_before=body.not_before,
            not_after=body.not_after,
            number=number,
            is_ended=("speaks.ended", stream_id + principal + client_id) in state,
        )
        if self.KEEPS_NAMES:
            marked: Marked = state.get(("speaks.named", client_id), _UNMARKED)
            state["speaks.named", client_id] = replace(marked, bound_in=(*marked.bound_in, stream_id))
            if marked.is_named:
                _add_name(state, stream_id, principal, client_id)
        self.on_bound(state, stream_id, client_id, principal)

    def _end(self, state: Table[Any, Any], event: Event, body: SpeaksEnd) -> None:
        _check_statement(event, body)
        stream_id, client_id, principal = body.stream_id, body.client_id, body.principal_pk
        if client_id is None:
            key = ("speaks.ended", stream_id + body.signing_digest())
            if key in state:
                raise Violation(
                    "SPEAKS.ENDED", "this end of all bindings was used before: another ended_at makes a new one"
                )
            state[key] = Closed()
            row = principal_of(state, stream_id, principal)
            state["speaks.principal", stream_id + principal] = replace(row, ended=row.bound)
            return
        bound = state.get(("speaks", stream_id + client_id))
        if bound is None:
            state["speaks.ended", stream_id + principal + client_id] = Closed()
        elif _is_or_follows(state, stream_id, principal, bound.principal):
            state["speaks", stream_id + client_id] = replace(bound, is_ended=True)
        else:
            raise Violation("SPEAKS.OWNER", f"the key {client_id.hex()} is bound to {bound.principal.hex()}")

    def _replace_principal(self, state: Table[Any, Any], event: Event, body: PrincipalNext) -> None:
        _check_statement(event, body)
        stream_id = body.stream_id
        old, new = principal_of(state, stream_id, body.old), principal_of(state, stream_id, body.new)
        if old.successor is not None:
            raise Violation("SPEAKS.BOUND", f"{old.successor.hex()} took the place of {body.old.hex()} already")
        if body.old == body.new or body.new in old.older:
            raise Violation("SPEAKS.BOUND", f"{body.old.hex()} itself took the place of {body.new.hex()}")
        chain, passed_on = [(body.new, new)], {body.old, *old.older}
        while (following := chain[-1][1].successor) is not None:
            chain.append((following, principal_of(state, stream_id, following)))
        if len(passed_on.union(chain[-1][1].older)) > MAX_OLDER:
            raise Violation("SPEAKS.BOUND", f"a principal takes the place of at most {MAX_OLDER} others")
        state[ANY_BINDING] = Closed()
        state["speaks.principal", stream_id + body.old] = replace(old, successor=body.new)
        for principal, row in chain:
            older = tuple(sorted(passed_on.union(row.older)))
            state["speaks.principal", stream_id + principal] = replace(row, older=older)
        self.on_bound(state, stream_id, body.old, body.old)


def _check_statement(event: Event, body: SpeakingStatement) -> None:
    if body.stream_id != event.stream_id:
        raise Violation("SPEAKS.STREAM", f"the statement is about stream {body.stream_id.hex()}")
    try:
        body.verify()
    except SignatureError as exc:
        raise Violation("SPEAKS.SIG", str(exc)) from exc


def _add_name(state: Table[Any, Any], stream_id: bytes, principal: bytes, identity: bytes) -> None:
    row = principal_of(state, stream_id, principal)
    named = tuple(sorted({*row.named, identity}))
    state["speaks.principal", stream_id + principal] = replace(row, named=named)


_Take = Callable[[Speaking[Any, Any, Any], Table[Any, Any], Event, Any], None]
_STATEMENTS: Final[dict[type[Any], _Take]] = {
    SpeaksBinding: Speaking._bind,
    SpeaksEnd: Speaking._end,
    PrincipalNext: Speaking._replace_principal,
    CardRecord: Speaking._card,
}
STATEMENT_TYPES: Final = frozenset(_STATEMENTS)
