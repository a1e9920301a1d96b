"""Messages to one person, sealed to her prekey (KEX0.2, D-102).

Every identity has an inbox: the stream whose id is Ht("veen/inbox", id_sign_pk), which the holders of her card can
name. It has two kinds of messages:

    veen.prekey.v1    by her: a prekey, signed by id_sign, with its time of expiry. Sealed to the directory key of the
                      inbox, which follows from the card, so that her contacts can read it and the hub cannot
    any other         to her: sealed to one of her prekeys, which she alone opens, for some months after it has expired

A prekey is published when the last one has less than a day left, and when the client key has rotated. A sender
uses the newest live one; after three attempts without progress the inbox is read again for a newer one
(RESYNC0.3), and a message that is still on its way is not sent twice.
"""

import time
from collections.abc import AsyncGenerator, Iterable
from dataclasses import replace
from typing import Final

from veen.client.client import Client
from veen.client.errors import CardInvalid, HubRefused, NetworkError, PrekeyExpired, PrekeyMissing
from veen.client.identity.card import IdentityCard
from veen.client.identity.identity import Identity, LongTermKeys, PrekeySecret, check_prekey, current, recent_prekeys
from veen.client.identity.keyring import StreamKeys
from veen.client.identity.keystore import Keystore
from veen.client.read.reading import Entry
from veen.client.send.writing import Sent
from veen.core.crypto import x25519
from veen.core.errors import FormatError
from veen.core.hashing import Ht
from veen.core.labels import schema_id
from veen.core.objects.card import Prekey

PREKEY_SCHEMA: Final = schema_id("veen.prekey.v1")
ATTEMPTS: Final = 3  # R of RESYNC0.3
_RENEW_SEC: Final = 86_400  # a prekey with less time than this is replaced
_LOOK_BACK_SEC: Final = 14 * 86_400  # prekeys live for a week; older ones have expired


def inbox_id(id_sign_pk: bytes) -> bytes:
    """Return the id of the stream of messages to an identity."""
    return Ht("veen/inbox", id_sign_pk)


def _directory(card: IdentityCard | Identity | LongTermKeys) -> StreamKeys:
    """Return the key that prekeys are published under, for all who have the card."""
    sk = Ht("veen/inbox-directory", card.id_sign_pk + card.dh_pk)
    return StreamKeys(stream_id=inbox_id(card.id_sign_pk), reader_pk=x25519.public_key(sk), reader_sk=sk)


def inbox_keys(identity: Identity | LongTermKeys, prekeys: Iterable[PrekeySecret]) -> tuple[StreamKeys, ...]:
    """Return all keys that open messages in an own inbox: every prekey, the key on the card, the directory."""
    stream_id = inbox_id(identity.id_sign_pk)
    secrets = [(secret.prekey.prekey_pk, secret.sk) for secret in prekeys] + [(identity.dh_pk, identity.dh_sk)]
    keys = (StreamKeys(stream_id=stream_id, reader_pk=pk, reader_sk=sk) for pk, sk in secrets)
    return (*keys, _directory(identity))


# --- prekeys --------------------------------------------------------------------------------------------------


def due_prekey(keystore: Keystore, now: int) -> PrekeySecret | None:
    """Return a new prekey if the last one ends soon, stored in the keystore before it is published; else None.

    The caller holds the lock of the identity.
    """
    live = current(keystore.secrets.own_prekeys, now)
    if live is not None and live.prekey.expires_at >= now + _RENEW_SEC:
        return None
    fresh = PrekeySecret.create(keystore.identity, now=now)
    keystore.save(replace(keystore.secrets, prekeys=recent_prekeys((*keystore.secrets.prekeys, fresh), now)))
    return fresh


async def publish_prekey(client: Client, identity: Identity, prekey: Prekey) -> Sent | None:
    """Publish a prekey in the own inbox, unless it is there already."""
    card = identity.card()
    async for published in _read_prekeys(client, card, int(time.time())):
        if published == prekey:
            return None
    return await client.send(_directory(card), prekey.to_bytes(), schema=PREKEY_SCHEMA)


async def _read_prekeys(client: Client, card: IdentityCard, now: int) -> AsyncGenerator[Prekey, None]:
    async for entry in client.read(_directory(card), since=max(now - _LOOK_BACK_SEC, 0)):
        if entry.event is None or entry.event.hdr.schema != PREKEY_SCHEMA:
            continue
        try:
            yield Prekey.from_bytes(entry.event.body)
        except FormatError:
            continue


async def find_prekey(client: Client, card: IdentityCard, now: int) -> Prekey | None:
    """Return the newest live prekey in an inbox that its owner signed; anybody can write there."""
    newest: Prekey | None = None
    async for prekey in _read_prekeys(client, card, now):
        try:
            check_prekey(prekey, card, now)
        except (CardInvalid, PrekeyExpired):
            continue
        if newest is None or prekey.expires_at >= newest.expires_at:
            newest = prekey
    return newest


# --- messages -------------------------------------------------------------------------------------------------


async def send_personal(
    client: Client,
    card: IdentityCard,
    body: bytes,
    *,
    prekey: Prekey | None = None,
    to_card: bool = False,
    schema: bytes | None = None,
) -> tuple[Sent, Prekey | None]:
    """Seal for one person and send; return also the prekey to use from now on, None with `to_card` (the key on the
    card).

    Raise PrekeyMissing if she has no live one.
    """
    attempts, on_its_way = 0, False
    while True:
        now = int(time.time())
        if not to_card and (prekey is None or not prekey.is_live(now)):
            prekey = await find_prekey(client, card, now)
            if prekey is None:
                raise PrekeyMissing(card.name)
        reader_pk = card.dh_pk if prekey is None or to_card else check_prekey(prekey, card, now)
        keys = StreamKeys(stream_id=inbox_id(card.id_sign_pk), reader_pk=reader_pk)
        try:
            if on_its_way and (recovered := await client.recover(keys)):
                return recovered[-1], prekey
            on_its_way = False
            return await client.send(keys, body, schema=schema), prekey
        except NetworkError:
            attempts, on_its_way = attempts + 1, True  # the sealed message is kept, and sent again as it is
            if attempts > ATTEMPTS:
                raise
        except HubRefused:
            attempts += 1
            if attempts > ATTEMPTS:
                raise
        if attempts == ATTEMPTS:
            prekey = None  # RESYNC0.3: no progress, so a fresh prekey and a new HPKE context


async def read_inbox(
    client: Client, identity: Identity, prekeys: Iterable[PrekeySecret], *, since: int | None = None
) -> AsyncGenerator[Entry, None]:
    """Yield the messages to this identity, in order, without its own publications.

    Messages in the inboxes of former cards come first: anybody who had these keys may read and write there.
    """
    prekeys = tuple(prekeys)
    cards: tuple[Identity | LongTermKeys, ...] = (*identity.former, identity)
    for card in cards:
        stream_id = inbox_id(card.id_sign_pk)
        client.use_personal_keys(stream_id, inbox_keys(card, prekeys))
        async for entry in client.read(stream_id, since=since):
            if entry.event is None or entry.event.hdr.schema != PREKEY_SCHEMA:
                yield entry
