"""Recovery of the owner after somebody copied the keystore (docs/decisions.md, "After a theft").

The thief can do everything that the owner can, so only the order of the log distinguishes them, and the first successor
of a principal in a stream counts. The steps, each of which the log or the keystore remembers:

    1. KEYS         new keys in the keystore, durably; the former ones stay (`Keystore.replace_keys`)
    2. PLACE        in each stream, in one batch: the new principal takes the place of the old one, all bindings of the
                    old one end, the new client key is bound. From here on the thief's keys have no effect there
    3. OWNER        in each owned stream: the new key becomes the owner's
    4. GENERATION   in each owned stream: new read keys, for the members and not for the old card
    5. REFUSAL      at each hub: revocations of the old keys and tokens

A repetition begins with the state of the log, so after a crash it is run again. Where the log has
another successor nothing is sent: people have to settle that.

A client key that was never bound belongs to no principal. Step 2 therefore binds the old client keys to the old
principal before it ends all its bindings.

The fold of the overlays decides about bindings; the caller brings it (`Judge`).
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, Protocol

from veen.client.client import Client
from veen.client.errors import ClientError, GenerationRefused, HubRefused, NotOwner
from veen.client.generations import owning
from veen.client.generations.fold import KeyState
from veen.client.generations.records import OWNER_SCHEMA, WRAP_SCHEMA, HandOver, OwnerChange, control_keys
from veen.client.identity.card import IdentityCard
from veen.client.identity.identity import Identity, LongTermKeys
from veen.client.identity.keyring import Keyring, Stream, StreamKeys
from veen.client.identity.rotation import make_binding
from veen.client.send.captokens import HeldToken
from veen.client.send.sealing import Draft
from veen.client.send.writing import Sent
from veen.core.errors import FormatError, VeenError
from veen.core.event import Event
from veen.core.hashing import H
from veen.core.objects.card import CARD_SCHEMA
from veen.core.objects.policies import MAX_POLICY_ITEMS, Revocation
from veen.core.objects.speaking import (
    MAX_SPEAKS_SEC,
    PRINCIPAL_NEXT_SCHEMA,
    SPEAKING_SCHEMAS,
    SPEAKS_END_SCHEMA,
    SPEAKS_SCHEMA,
    PrincipalNext,
    SpeaksBinding,
    SpeaksEnd,
)

_TRIES: Final = 3  # of a record before which somebody else wrote
_BATCH_BINDINGS: Final = 48  # of old client keys, in the batch that ends them; further ones are sent before it
_EARLY_SEC: Final = 300  # a binding begins this long before the key was made, as clocks differ
_MAX_NUMBER: Final = 2**64 - 1
_REASON: Final = "keys replaced after a theft"


class Step(Enum):
    """A step of the work, reported to the caller before it begins."""

    KEYS = "new keys"
    PLACE = "taking the place of the old principal"
    OWNER = "changing the owner's key"
    GENERATION = "announcing new read keys"
    REFUSAL = "asking the hub to refuse the old keys"
    END = "done"


class State(Enum):
    """The state of a stream."""

    DONE = "done"
    THIEF_FIRST = "thief_first"  # another key took the place of the old one, or owns the stream
    OPEN = "open"  # something remains to be done


class _Binding(Protocol):
    @property
    def principal_pk(self) -> bytes: ...


class _Succession(Protocol):
    @property
    def successor_pk(self) -> bytes: ...


class Bindings(Protocol):
    """Bindings of keys by (stream_id, key): `veen.overlays.speaks.Bindings`."""

    @property
    def keys(self) -> Mapping[tuple[bytes, bytes], _Binding]: ...
    @property
    def successors(self) -> Mapping[tuple[bytes, bytes], _Succession]: ...


Judge = Callable[[Sequence[Event]], Bindings]
Progress = Callable[[Step, str], Awaitable[None]]


async def _silent(step: Step, stream: str) -> None:
    """Report nothing."""


@dataclass(frozen=True, slots=True)
class Act:
    """An entry under a key of the identity: the owner's or the thief's, which the log cannot distinguish."""

    label: bytes
    order: tuple[int, int, int]  # ts*, epoch, stream_seq
    client_id: bytes
    schema: bytes | None  # None if it could not be opened


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamReport:
    """The outcome for one stream at one hub."""

    stream: str
    stream_id: bytes
    is_owned: bool = False
    owner_pk: bytes | None = None  # of the stream, if it is not ours
    state: State = State.OPEN
    cause: str | None = None
    successor: bytes | None = None  # the key that took the place of the old one
    position: int | None = None  # stream_seq of the statement by which that was done
    generation: int | None = None  # the one that replaced the generation which the thief could read
    removed: tuple[IdentityCard, ...] = ()  # readers added since the theft, who got no keys of it
    readers: tuple[IdentityCard, ...] = ()
    old_card_reads: bool = False  # the owner of the stream has yet to make a generation without the old card
    foreign_keys: tuple[bytes, ...] = ()  # client keys of the successor, which the hub should refuse
    disputed: tuple[Act, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HubReport:
    """The outcome at one hub."""

    streams: tuple[StreamReport, ...]
    revocations: tuple[Revocation, ...]
    refuses: bool  # the hub refuses the old keys
    asks_for_tokens: bool
    cause: str | None = None  # the reason if it does not

    @property
    def is_settled(self) -> bool:
        """True if no stream of it remains open."""
        return all(row.state is not State.OPEN for row in self.streams)


@dataclass(slots=True)
class _Log:
    """The findings of one reading of a stream."""

    statements: list[Event] = field(default_factory=list)  # also cards
    owner_changes: list[tuple[Event, OwnerChange]] = field(default_factory=list)
    before: set[bytes] = field(default_factory=set)  # readers admitted before the theft
    after: set[bytes] = field(default_factory=set)  # readers admitted since
    acts: list[Act] = field(default_factory=list)


async def secure_hub(
    client: Client,
    identity: Identity,
    judge: Judge,
    *,
    tokens: Iterable[HeldToken] = (),
    worker_ids: Collection[bytes] = (),
    since: int | None = None,
    progress: Progress = _silent,
) -> HubReport:
    """Do the remaining steps 2 to 5 at one hub, for all streams of the keyring that the hub has.

    `client` is connected as `identity.act_as(newest former keys)`, so that tokens of the old principal serve until
    the hub refuses them. An error in one stream does not stop the others. `worker_ids` are client keys of workers of
    the old principal.
    """
    await _settle_pending(client)
    reports = []
    for keys in await _in_order(client, identity):
        try:
            report = await secure_stream(client, identity, keys, judge, since=since, progress=progress)
        except (VeenError, OSError) as exc:
            report = StreamReport(
                stream=str(keys),
                stream_id=keys.stream_id,
                is_owned=keys.owner_pk in identity.principals,
                cause=str(exc) or type(exc).__name__,
            )
        reports.append(report)
    foreign = [key for report in reports for key in report.foreign_keys]
    revocations = old_keys(identity, tokens, [*worker_ids, *foreign], client.session.hub_now())
    hub = HubReport(
        streams=tuple(reports),
        revocations=revocations,
        refuses=False,
        asks_for_tokens=client.session.status.capability_gating,
        cause="streams of the hub remain open, and their tokens are needed",
    )
    if hub.is_settled:
        await progress(Step.REFUSAL, "")
        cause = await _refuse(client, revocations)
        hub = replace(hub, refuses=cause is None, cause=cause)
    await progress(Step.END, "")
    return hub


async def _settle_pending(client: Client) -> None:
    """Send messages that an earlier run left pending, so that no statement is written twice."""
    for state in client.pending():
        try:
            await client.send_pending(state)
        except ClientError:
            continue  # securing the stream reports the fault


async def _in_order(client: Client, identity: Identity) -> list[StreamKeys]:
    """Return the newest keys of each stream that the hub has: owned ones first, then the most active ones."""
    ring, principals = client.keyring, identity.principals
    rows = []
    for stream_id in dict.fromkeys(keys.stream_id for keys in ring.entries if ring.has(keys.stream_id)):
        keys = ring.for_stream(stream_id)
        if not await client.has_entries(stream_id) and keys.bound_to is None:
            continue  # it may be a stream of another hub
        info = await client.session.label_info(client.label(keys))
        rows.append((keys.owner_pk not in principals, 0 if info is None else -info.last_hub_ts, keys))
    return [keys for *_, keys in sorted(rows, key=lambda row: row[:2])]


# --- one stream -----------------------------------------------------------------------------------------------


async def secure_stream(
    client: Client,
    identity: Identity,
    keys: StreamKeys,
    judge: Judge,
    *,
    since: int | None = None,
    progress: Progress = _silent,
) -> StreamReport:
    """Take the place of the old principal in a stream; if the identity owns it, become its owner and change the
    keys.

    Raise an error if a statement could not be written, or had no effect: the caller then tries again.
    """
    stream_id = keys.stream_id
    if client.session.status.capability_gating:
        await client.token(stream_id)
    log, bindings = await _take_place(client, identity, keys, judge, since, progress)
    old, successor = _end_of_chain(bindings, stream_id, identity)
    event = _succession(log, old, successor or identity.id_sign_pk)
    is_owned = keys.owner_pk in identity.principals
    report = StreamReport(
        stream=str(keys),
        stream_id=stream_id,
        is_owned=is_owned,
        owner_pk=None if is_owned else keys.owner_pk,
        state=State.DONE if successor is None else State.THIEF_FIRST,
        successor=successor or identity.id_sign_pk,
        position=None if event is None else event.stream_seq,
        foreign_keys=_keys_of(bindings, stream_id, successor),
        disputed=_select_disputed(log, bindings, stream_id, identity, successor, event),
    )
    if successor is not None or keys.owner_pk is None:
        return report
    if is_owned:
        return await _take_ownership(client, identity, keys, report, since, progress)
    state = await client.key_state(stream_id)
    return replace(report, old_card_reads=state is not None and _reads(state, identity.former))


async def _take_place(
    client: Client, identity: Identity, keys: StreamKeys, judge: Judge, since: int | None, progress: Progress
) -> tuple[_Log, Bindings]:
    """Write the batch of step 2 unless the log has it, or has another successor. Return the log after that."""
    stream_id, was_sent = keys.stream_id, False
    await progress(Step.PLACE, str(keys))
    while True:
        log = await _read(client, keys, since)
        bindings = judge(log.statements)
        _, foreign = _end_of_chain(bindings, stream_id, identity)
        missing = _without_successor(bindings, stream_id, identity)
        if foreign is not None or not missing or (was_sent and not _can_see(keys)):
            return log, bindings
        if was_sent:
            raise GenerationRefused(f"{keys}: the statements stand in the log and have no effect: veen id bindings")
        drafts = _batch(identity, missing, bindings, stream_id, client.session.hub_now())
        place = _place_of(keys)
        early = drafts[: -_BATCH_BINDINGS - 3 * len(missing)]
        for part in filter(None, (early, drafts[len(early) :])):
            for outcome in await client.send_many(place, part, batch=len(part)):
                if not isinstance(outcome, Sent):
                    raise outcome
        was_sent = True


def _can_see(keys: StreamKeys) -> bool:
    """Return True if statements in a stream can be read here. If not, they are sent, and others see which was first."""
    return keys.can_read or keys.owner_pk is not None


def _batch(
    identity: Identity, missing: Sequence[LongTermKeys], bindings: Bindings, stream_id: bytes, now: int
) -> list[Draft]:
    """Return the statements of step 2 in order; those that must be in one batch are the last ones."""
    drafts = []
    owner_of_key = {key.client_id: _principal_at(identity, key.generation) for key in identity.client_keys}
    open_keys = {keys.id_sign_pk: keys for keys in missing}
    for key in identity.client_keys[:-1]:
        holder = open_keys.get(owner_of_key[key.client_id])
        if holder is not None and (stream_id, key.client_id) not in bindings.keys:
            begin = max(key.created_at - _EARLY_SEC, 0)
            binding = SpeaksBinding.issue(
                holder.id_sign, key.key, stream_id=stream_id, not_before=begin, not_after=begin + MAX_SPEAKS_SEC
            )
            drafts.append(Draft(body=binding.to_bytes(), schema=SPEAKS_SCHEMA))
    for former in missing:
        following = PrincipalNext.issue(former.id_sign, identity.id_sign, stream_id=stream_id)
        end = SpeaksEnd.issue(former.id_sign, stream_id=stream_id, reason=_REASON, ended_at=now)
        drafts.append(Draft(body=following.to_bytes(), schema=PRINCIPAL_NEXT_SCHEMA))
        drafts.append(Draft(body=end.to_bytes(), schema=SPEAKS_END_SCHEMA))
    if (stream_id, identity.client_id) not in bindings.keys:
        drafts.append(Draft(body=make_binding(identity, stream_id, now).to_bytes(), schema=SPEAKS_SCHEMA))
    return drafts


def _principal_at(identity: Identity, generation: int) -> bytes:
    """Return the principal of the identity when it made a client key."""
    return next((keys.id_sign_pk for keys in identity.former if generation <= keys.generation), identity.id_sign_pk)


def _without_successor(bindings: Bindings, stream_id: bytes, identity: Identity) -> list[LongTermKeys]:
    return [keys for keys in identity.former if (stream_id, keys.id_sign_pk) not in bindings.successors]


def _end_of_chain(bindings: Bindings, stream_id: bytes, identity: Identity) -> tuple[bytes, bytes | None]:
    """Return the own principal whose place a foreign key took, and that key; without one the newest former one and
    None."""
    own = frozenset(identity.principals)
    for principal in identity.principals:
        row = bindings.successors.get((stream_id, principal))
        if row is not None and row.successor_pk not in own:
            return principal, row.successor_pk
    return identity.former[-1].id_sign_pk, None


def _succession(log: _Log, old: bytes, successor: bytes | None) -> Event | None:
    """Return the entry by which a successor took the place of `old`: the first valid one counts."""
    for event in log.statements:
        if event.hdr.schema == PRINCIPAL_NEXT_SCHEMA:
            try:
                statement = PrincipalNext.from_bytes(event.body)
                statement.verify()
            except VeenError:
                continue
            if (statement.old, statement.stream_id) == (old, event.stream_id) and (
                successor is None or statement.new == successor
            ):
                return event
    return None


def _keys_of(bindings: Bindings, stream_id: bytes, principal: bytes | None) -> tuple[bytes, ...]:
    return tuple(
        client_id
        for (stream, client_id), row in bindings.keys.items()
        if stream == stream_id and principal is not None and row.principal_pk == principal
    )


def _select_disputed(
    log: _Log,
    bindings: Bindings,
    stream_id: bytes,
    identity: Identity,
    successor: bytes | None,
    end: Event | None,
) -> tuple[Act, ...]:
    """Return the acts since the theft under keys that spoke for the old principal, up to the owner's succession."""
    last = identity.former[-1].generation
    spoke = {key.client_id for key in identity.client_keys if key.generation <= last}
    stolen = {keys.id_sign_pk for keys in identity.former} | ({successor} if successor is not None else set())
    spoke |= {
        client_id
        for (stream, client_id), row in bindings.keys.items()
        if stream == stream_id and row.principal_pk in stolen
    }
    bound = None if end is None or successor is not None else (end.ts, end.epoch, end.stream_seq)
    return tuple(act for act in log.acts if act.client_id in spoke and (bound is None or act.order < bound))


async def _read(client: Client, keys: StreamKeys, since: int | None) -> _Log:
    log = _Log()
    if not _can_see(keys):
        return log
    async for entry in client.read(keys.stream_id if keys.can_read else _place_of(keys)):
        event = entry.event
        is_late = since is not None and entry.ts >= since
        if is_late:
            schema = None if event is None else event.hdr.schema
            log.acts.append(Act(entry.receipt.label, entry.order, entry.msg.client_id, schema))
        if event is None:
            continue
        schema = event.hdr.schema
        if schema in SPEAKING_SCHEMAS or schema == CARD_SCHEMA:
            log.statements.append(event)
        elif schema == WRAP_SCHEMA:
            names = log.after if is_late else log.before
            names |= {card.id_sign_pk for card in _cards(event.body)}
        elif schema == OWNER_SCHEMA:
            try:
                log.owner_changes.append((event, OwnerChange.from_bytes(event.body)))
            except FormatError:
                continue
    return log


def _cards(body: bytes) -> tuple[IdentityCard, ...]:
    try:
        return HandOver.from_bytes(body).cards
    except FormatError:
        return ()


def _place_of(keys: StreamKeys) -> Stream:
    return keys if keys.owner_pk is None else control_keys(keys.stream_id, keys.owner_pk)


# --- owned streams --------------------------------------------------------------------------------------------


async def _take_ownership(
    client: Client, identity: Identity, keys: StreamKeys, report: StreamReport, since: int | None, progress: Progress
) -> StreamReport:
    """Become the owner by the new key and announce a generation without the old card. Return the updated report."""
    stream_id = keys.stream_id
    for attempt in range(_TRIES):
        state = await client.key_state(stream_id)
        if state is None or state.owner not in identity.principals:
            owner = None if state is None else state.owner
            log = await _read(client, keys, None)
            event = next((event for event, change in log.owner_changes if change.new_owner_pk == owner), None)
            at = "" if event is None else f" by entry {event.stream_seq}"
            cause = f"another key became the owner's{at}: {'unknown' if owner is None else owner.hex()}"
            return replace(report, state=State.THIEF_FIRST, cause=cause)
        if max(state.next_number, state.gen + 1) > _MAX_NUMBER:
            cause = "the numbers of the owner's records, or of generations, are used up: move to a new stream"
            return replace(report, state=State.THIEF_FIRST, cause=cause)
        try:
            if state.owner != identity.id_sign_pk:
                await progress(Step.OWNER, str(keys))
                acting = next(former for former in identity.former if former.id_sign_pk == state.owner)
                await owning.change_owner(client, identity.act_as(acting), stream_id, identity.id_sign)
                continue
            if state.gen_at_change is not None and state.gen > state.gen_at_change:
                return _with_readers(report, state, identity)
            await progress(Step.GENERATION, str(keys))
            log = await _read(client, keys, since)  # the old owner's key could admit readers until it was changed
            added = log.after - log.before
            without = {
                card.id_sign_pk
                for card in state.members
                if card.id_sign_pk in added or card.id_sign_pk in identity.principals
            }
            rotated = await owning.rotate(client, identity, stream_id, without=without, reason=_REASON)
            removed = tuple(card for card in rotated.removed if card.id_sign_pk not in identity.principals)
        except (GenerationRefused, NotOwner):  # somebody wrote in between
            if attempt == _TRIES - 1:
                raise
            continue
        state = await client.key_state(stream_id)
        if state is not None:
            return _with_readers(replace(report, removed=removed), state, identity)
    raise GenerationRefused(f"{keys}: somebody else changes its keys at the same time")


def _with_readers(report: StreamReport, state: KeyState, identity: Identity) -> StreamReport:
    readers = tuple(card for card in state.members if card.id_sign_pk not in identity.principals)
    return replace(report, generation=state.gen, readers=readers)


def _reads(state: KeyState, former: Sequence[LongTermKeys]) -> bool:
    """Return True if a former card reads the newest generation of a stream, by its log."""
    if any(state.member(keys.id_sign_pk) is not None for keys in former):
        return True
    return not state.generations


# --- hubs -----------------------------------------------------------------------------------------------------


def old_keys(
    identity: Identity, tokens: Iterable[HeldToken], others: Iterable[bytes], now: int
) -> tuple[Revocation, ...]:
    """Return the revocations of former principals, of earlier client keys, and of their tokens.

    A revoked principal ends all tokens derived from its own. Tokens are revoked by their first link too, so that a
    renewal is refused as well (D-173).
    """
    former = {keys.id_sign_pk for keys in identity.former}
    last = identity.former[-1].generation
    keys = [key.client_id for key in reversed(identity.client_keys) if key.generation <= last]
    targets = [("client-id", pk) for pk in (*sorted(former), *keys, *others)]
    subjects = former | set(keys)
    for row in tokens:
        token = row.token
        if token.subject_pk in subjects and token.issuer_pk not in former:
            targets += [("auth-ref", row.auth_ref), ("cap-token", H(token.sig_chain[0]))]
    return tuple(Revocation(kind=kind, target=target, ts=now) for kind, target in dict.fromkeys(targets))


async def _refuse(client: Client, revocations: Sequence[Revocation]) -> str | None:
    """Have the hub refuse the old keys. Return the reason if it does not, else None."""
    try:
        for at in range(0, len(revocations), MAX_POLICY_ITEMS):
            await client.revoke(revocations[at : at + MAX_POLICY_ITEMS])
    except HubRefused as exc:
        return str(exc)
    return None


def never_written(ring: Keyring, reports: Iterable[HubReport], identity: Identity) -> tuple[StreamKeys, ...]:
    """Return the owned streams of a keyring that no hub had: the thief knows their read keys."""
    reported = {row.stream_id for report in reports for row in report.streams}
    newest = {keys.stream_id: keys for keys in reversed(ring.entries)}
    return tuple(
        keys for keys in newest.values() if keys.stream_id not in reported and keys.owner_pk in identity.principals
    )
