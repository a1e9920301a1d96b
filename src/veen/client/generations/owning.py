"""Key operations of the owner of a stream: rotate, hand over, shred; and the enrolment of an invited reader (D-171).

Everything is published in the stream before it is used here, and read back from there: a change that is not in the log
did not happen. The owner wraps each generation for itself as well, so a crash after the announcement loses nothing.
"""

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from veen.client.client import Client
from veen.client.errors import GenerationRefused, NotOwner, NotReader, UnknownStream
from veen.client.generations import records
from veen.client.generations.fold import KeyState
from veen.client.identity.card import IdentityCard
from veen.client.identity.identity import Identity, Random
from veen.client.identity.keyring import Stream, StreamKeys
from veen.client.send.writing import Sent
from veen.core.crypto.ed25519 import SigningKey
from veen.core.errors import LimitError
from veen.core.objects.card import CARD_SCHEMA
from veen.core.objects.speaking import AuthorKey

_TRIES: Final = 3  # attempts, if another device of the owner used the number of a record


@dataclass(frozen=True, slots=True)
class Rotated:
    """A new generation: its readers, removed readers, and the number of invitations by code that ended."""

    sent: Sent
    keys: StreamKeys
    readers: tuple[IdentityCard, ...]
    removed: tuple[IdentityCard, ...]
    bearers: int  # invitations that nobody had used, or whose user had not announced it


async def require_owned(client: Client, identity: Identity, stream: Stream) -> tuple[StreamKeys, KeyState]:
    """Return the newest keys and the state of an owned stream; raise NotOwner if the identity does not own it."""
    keys = client.keyring.for_stream(stream)
    state = None if keys.owner_pk is None else await client.key_state(stream)
    if state is None or state.owner != identity.id_sign_pk:
        raise NotOwner(str(keys))
    return client.keyring.for_stream(stream), state


def next_generation(
    identity: Identity,
    current: StreamKeys,
    members: Sequence[IdentityCard],
    *,
    number: int = 1,
    reason: str = "",
    history: bool = True,
    random: Random = os.urandom,
) -> tuple[StreamKeys, records.KeyGeneration]:
    """Return the next keys of a stream, and the record that gives them to `members` and to the owner.

    Without `history`, later invitations hand over no generation before this one.
    """
    if len(members) >= records.MAX_WRAPS:
        raise LimitError("readers of a stream", len(members) + 1, records.MAX_WRAPS)
    fresh = StreamKeys.create(f"hex:{current.stream_id.hex()}", owner_pk=current.owner_pk, random=random)
    keys = replace(fresh, gen=current.generation + 1, name=current.name)
    cards = [identity.card(), *(card for card in members if card.id_sign_pk != identity.id_sign_pk)]
    return keys, records.KeyGeneration.issue(
        identity.id_sign, keys, cards, number=number, history=history, reason=reason, random=random
    )


async def rotate(
    client: Client,
    identity: Identity,
    stream: Stream,
    *,
    without: Collection[bytes] = (),
    reason: str = "",
    history: bool = True,
) -> Rotated:
    """Announce the next generation to all readers but those named by id_sign_pk. Raise NotReader if one is no
    reader."""
    current, state = await require_owned(client, identity, stream)
    for id_sign_pk in without:
        if state.member(id_sign_pk) is None:
            raise NotReader(f"nobody with the key {id_sign_pk.hex()[:16]}… was given the read key of {current}")
    staying = tuple(card for card in state.members if card.id_sign_pk not in without)
    removed = tuple(card for card in state.members if card.id_sign_pk in without)
    keys, record = next_generation(identity, current, staying, number=state.next_number, reason=reason, history=history)
    sent = await _publish(client, current, state.owner_pk, record.to_bytes(), records.GENERATION_SCHEMA)
    after = await client.key_state(stream)
    if after is None or after.newest is None or after.newest.pk != keys.reader_pk:
        raise GenerationRefused(f"another generation {keys.generation} of {current} was announced first: run it again")
    return Rotated(sent, keys, staying, removed, len(state.invites))


async def hand_over(
    client: Client,
    identity: Identity,
    stream: Stream,
    cards: Sequence[IdentityCard] = (),
    *,
    earlier: Sequence[StreamKeys] = (),
    invite_pk: bytes | None = None,
    expires_at: int | None = None,
) -> Sent:
    """Write a hand-over of the read key into the stream, wrapped for each card; or the record of an invitation.

    `earlier` are the earlier generations that are handed over as well. Raise GenerationRefused if another device of
    the owner wrote at the same time in each attempt.
    """
    for _ in range(_TRIES):
        current, state = await require_owned(client, identity, stream)
        record = records.HandOver.issue(
            identity.id_sign,
            current,
            cards,
            number=state.next_number,
            earlier=[keys for keys in earlier if keys.reader_pk != current.reader_pk],
            invite_pk=invite_pk,
            expires_at=expires_at,
        )
        sent = await _publish(client, current, state.owner_pk, record.to_bytes(), records.WRAP_SCHEMA)
        _, after = await require_owned(client, identity, stream)
        invites = {invite.invite_pk for invite in after.invites}
        if set(cards) <= set(after.members) and (invite_pk is None or invite_pk in invites):
            return sent
    name = client.keyring.for_stream(stream)
    raise GenerationRefused(f"another device of yours changes the keys of {name} at the same time: run it again")


async def ask_to_shred(
    client: Client, identity: Identity, stream: Stream, gen: int, *, weak: bool = False, reason: str = ""
) -> Sent:
    """Ask all readers to forget the secret key of an earlier generation; this client's copy is gone on return.

    Without `weak`, raise GenerationRefused if a field of the log still leads to it (D-182).
    """
    current, state = await require_owned(client, identity, stream)
    if gen >= current.generation:
        raise GenerationRefused(f"generation {gen} of {current} is in use, or does not exist: rotate first")
    if state.is_forgotten(gen):
        raise GenerationRefused(f"generation {gen} of {current} is shredded already")
    leading = state.find_opening_generation(gen)
    if leading is not None and not weak:
        raise GenerationRefused(
            f"generation {leading} of {current} leads back to {gen}: its readers find the key "
            f"of {gen} in the log, as an earlier release wrote it, so {gen} would not count as shredded. Shred "
            f"generation {leading} first, or have readers asked all the same: --weak"
        )
    record = records.KeyShred.issue(identity.id_sign, current.stream_id, gen, number=state.next_number, reason=reason)
    sent = await _publish(client, current, state.owner_pk, record.to_bytes(), records.SHRED_SCHEMA)
    after = await client.key_state(stream)
    if after is None or not after.is_forgotten(gen):
        raise GenerationRefused(f"another device of yours changed the keys of {current} first: run it again")
    return sent


async def change_owner(client: Client, identity: Identity, stream: Stream, new: SigningKey) -> Sent:
    """Announce `new` as the owner's key; later records of the present key have no effect."""
    current, state = await require_owned(client, identity, stream)
    record = records.OwnerChange.issue(identity.id_sign, new, current.stream_id, number=state.next_number)
    sent = await _publish(client, current, state.owner_pk, record.to_bytes(), records.OWNER_SCHEMA)
    after = await client.key_state(stream)
    if after is None or after.owner != new.public:
        raise GenerationRefused(f"another device of yours changed the keys of {current} first: run it again")
    return sent


async def enrol(client: Client, identity: Identity, keys: StreamKeys, invite: SigningKey) -> Sent | None:
    """Send the owner of a stream the card that an invitation was used for; None if the owner is not known."""
    if keys.owner_pk is None:
        return None
    record = records.Enrolment.issue(invite, keys.stream_id, identity.card())
    return await _publish(client, keys, keys.owner_pk, record.to_bytes(), records.JOIN_SCHEMA)


async def announce_card(client: Client, identity: Identity, stream: Stream) -> Sent:
    """Send the members of a stream the card with this client key, also a worker's; the hub does not see it."""
    keys = client.keyring.for_stream(stream)
    card = IdentityCard.issue(identity.id_sign, dh_pk=identity.dh_pk, client_id=client.client_id, name=identity.name)
    body = records.AuthorCard(card=card).to_bytes()
    if keys.owner_pk is None:
        return await client.send(stream, body, schema=CARD_SCHEMA)
    return await _publish(client, keys, keys.owner_pk, body, CARD_SCHEMA)


async def _publish(client: Client, keys: StreamKeys, owner_pk: bytes, body: bytes, schema: bytes) -> Sent:
    return await client.send(records.control_keys(keys.stream_id, owner_pk), body, schema=schema)


async def owner_keys(client: Client, stream: Stream) -> dict[bytes, AuthorKey | None]:
    """Return the client keys that the owner of a stream proved in it, and the own ones if this identity is the owner
    (D-186)."""
    try:
        owner_pk = client.keyring.owner_of(stream)
    except UnknownStream:
        return {}
    if owner_pk is None:
        return {}
    state = await client.key_state(stream)
    # Announcements of the owner's earlier key stay valid.
    owners = {owner_pk} if state is None else {owner_pk, state.owner}
    own = dict.fromkeys(client.client_ids) if client.id_sign_pk in owners else {}
    return {**own, **({} if state is None else state.keys_of(owners))}
