"""Statements of an identity about its client keys, sent to the members of a stream (D-179).

They are sealed to the key of the stream's messages about keys, like cards; a stream without a known owner has
no such key, and they are sent as ordinary messages.
"""

from collections.abc import Sequence
from typing import Final

from veen.client.client import Client
from veen.client.generations.records import control_keys
from veen.client.identity.identity import ClientKey, Identity
from veen.client.identity.keyring import Stream
from veen.client.send.sealing import Draft
from veen.client.send.writing import Outcome, Sent
from veen.core.objects.speaking import (
    MAX_SPEAKS_SEC,
    SPEAKS_END_SCHEMA,
    SPEAKS_SCHEMA,
    SpeaksBinding,
    SpeaksEnd,
)

EARLY_SEC: Final = 300  # a binding begins this long before the key was made, as clocks differ


async def bind_keys(client: Client, identity: Identity, stream: Stream, keys: Sequence[ClientKey]) -> list[Outcome]:
    """Bind client keys to their identity in a stream. Each one signs, so the keystore must still have it."""
    stream_id = client.keyring.for_stream(stream).stream_id
    bodies = []
    for key in keys:
        begin = max(key.created_at - EARLY_SEC, 0)
        statement = SpeaksBinding.issue(
            identity.id_sign, key.key, stream_id=stream_id, not_before=begin, not_after=begin + MAX_SPEAKS_SEC
        )
        bodies.append(Draft(body=statement.to_bytes(), schema=SPEAKS_SCHEMA))
    place = _place_of(client, stream)
    return await client.send_many(place, bodies)


async def end_binding(
    client: Client,
    identity: Identity,
    stream: Stream,
    *,
    client_id: bytes | None = None,
    reason: str | None = None,
    ended_at: int | None = None,
) -> Sent:
    """End the binding of one client key in a stream, or without `client_id` of all that were bound so far."""
    stream_id = client.keyring.for_stream(stream).stream_id
    statement = SpeaksEnd.issue(
        identity.id_sign, stream_id=stream_id, client_id=client_id, reason=reason, ended_at=ended_at
    )
    return await client.send(_place_of(client, stream), statement.to_bytes(), schema=SPEAKS_END_SCHEMA)


def _place_of(client: Client, stream: Stream) -> Stream:
    keys = client.keyring.for_stream(stream)
    return stream if keys.owner_pk is None else control_keys(keys.stream_id, keys.owner_pk)
