"""Data for every page of the console: events of the overlays, written by one client.

Everything is written as the commands of the overlays write it: drafts of `veen.overlays`, sealed, signed and receipted.
"""

import asyncio
import secrets
import time
from collections.abc import Iterable
from typing import Final

from veen.client.client import Client
from veen.client.identity.identity import Identity
from veen.client.identity.keyring import StreamKeys
from veen.client.send.captokens import TokenStore, issue
from veen.core.hashing import H
from veen.core.labels import stream_id_of
from veen.core.objects.captoken import Rate
from veen.core.objects.policies import realm_id_of
from veen.overlays.anchoring import state_root
from veen.overlays.discovery import bodies as discovery
from veen.overlays.framework.schema import Draft
from veen.overlays.id import drafts as people
from veen.overlays.id.ids import DEFAULT_REALM, ctx_id_of, device_id_of, group_id_of, org_id_of
from veen.overlays.operations import access, agreement, publication, queryaudit
from veen.overlays.operations.content import list_root
from veen.overlays.wallet import drafts as money
from veen.overlays.wallet.bodies import wallet_id_of, wallet_stream

OPERATIONS: Final = "demo/operations"
ANCHORS: Final = "demo/anchors"
_DIRECTORY: Final = ("disc.hubs.v1", "disc.overlays.v1", "disc.services.v1")
_DAY: Final = 86_400


async def fill_overlays(
    client: Client, identity: Identity, url: str, *, now: int, anchored: str, tokens: TokenStore
) -> None:
    """Write identities, wallets, capabilities, operations, a directory and anchors; the client gets all their keys.

    `anchored` is a stream of the hub whose newest checkpoint is stated as an anchor; `tokens` stores the tokens.
    """
    writer = _Writer(client)
    other = Identity.create("carol", now=now)
    await _open_wallets(writer, identity, other, now)
    opened = int(time.time())
    await _people(writer, identity, other, now)
    await _operations(writer, identity, other, now)
    await _directory(writer, identity, url, now)
    for ttl, rate in ((_DAY, None), (600, Rate(per_sec=100, burst=100)), (1, None)):
        token = issue(identity.id_sign, other.client_id, [OPERATIONS, *_DIRECTORY[:1]], ttl=ttl, rate=rate)
        await client.authorize(token)
        tokens.put(token)
    # Streams within one second are ordered by their ids, and wallets must be open before money moves (D-27).
    await asyncio.sleep(max(opened + 1 - time.time(), 0))
    await _pay(writer, identity, other, int(time.time()))
    await writer.send(ANCHORS, [state_root(client.hub_id, await client.checkpoint(anchored))])


class _Writer:
    """Sends drafts, and creates the keys of streams that the client does not have."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def send(self, stream: str | bytes, drafts: Iterable[Draft]) -> None:
        stream_id = stream if isinstance(stream, bytes) else stream_id_of(stream)
        if not any(keys.stream_id == stream_id for keys in self.client.keyring.entries):
            name = stream if isinstance(stream, str) else f"hex:{stream_id.hex()}"
            self.client.learn_keys(StreamKeys.create(name))
        for draft in drafts:
            await self.client.send(
                stream_id, draft.body, schema=draft.schema, parent=draft.parent_id, expires_at=draft.expires_at
            )

    async def send_all(self, messages: Iterable[people.Addressed]) -> None:
        for message in messages:
            await self.send(message.stream_id, [message.draft])


async def _people(writer: _Writer, identity: Identity, other: Identity, now: int) -> None:
    realm, org = realm_id_of(DEFAULT_REALM), org_id_of(identity.id_sign_pk)
    bob, carol = (ctx_id_of(person.id_sign_pk, realm) for person in (identity, other))
    phone = H(b"demo phone")
    await writer.send_all(
        [
            people.principal(identity.id_sign_pk, created_at=now),
            people.device(
                identity.id_sign_pk, device_pk=identity.client_id, dh_pk=H(b"demo dh"), created_at=now, label="laptop"
            ),
            people.device(identity.id_sign_pk, device_pk=phone, dh_pk=H(b"demo dh 2"), created_at=now, label="phone"),
            people.revoke_by_principal(
                identity.id_sign_pk, ts=now + 1, device_id=device_id_of(phone), reason="left in a taxi"
            ),
            people.ctx_profile(bob, realm, updated_at=now, display_name="Bob"),
            people.principal(other.id_sign_pk, created_at=now),
            people.device(
                other.id_sign_pk, device_pk=other.client_id, dh_pk=H(b"demo dh 3"), created_at=now, label="desktop"
            ),
            people.ctx_profile(carol, realm, updated_at=now, display_name="Carol"),
            people.org_profile(org, created_at=now, updated_at=now, display_name="Water works"),
            people.change_group(org, "operators", updated_at=now, add=[bob, carol], name="Operators"),
            people.bind_role(org, "valves", ts=now, groups=[group_id_of(org, "operators")]),
            people.handle(realm, "bob", target_type="ctx", target_id=bob, ts=now),
        ]
    )


def _wallet_ids(identity: Identity, other: Identity) -> list[tuple[bytes, bytes]]:
    """Return the wallets and their owners."""
    realm = realm_id_of(DEFAULT_REALM)
    owners = [ctx_id_of(person.id_sign_pk, realm) for person in (identity, other)]
    return [(wallet_id_of(realm, owner, "EUR"), owner) for owner in owners]


async def _open_wallets(writer: _Writer, identity: Identity, other: Identity, now: int) -> None:
    realm = realm_id_of(DEFAULT_REALM)
    for wallet_id, owner in _wallet_ids(identity, other):
        await writer.send(
            wallet_stream(wallet_id),
            [money.open_wallet(realm_id=realm, ctx_id=owner, currency="EUR", created_at=now)],
        )


async def _pay(writer: _Writer, identity: Identity, other: Identity, now: int) -> None:
    (bob, _), (carol, _) = _wallet_ids(identity, other)
    await writer.send(
        wallet_stream(bob),
        [
            money.deposit(bob, 10_000, ts=now, ref=b"payroll"),
            money.limit(bob, 5_000, ts=now),
            money.transfer(bob, carol, 2_500, ts=now, nonce=secrets.token_bytes(16)),
            money.transfer(bob, carol, 9_000, ts=now, nonce=secrets.token_bytes(16)),  # beyond the limit
            money.withdraw(bob, 1_200, ts=now),
            money.freeze(bob, ts=now, reason="card was lost"),
            money.withdraw(bob, 100, ts=now),  # while frozen
            money.unfreeze(bob, ts=now, reason="card was found"),
            money.deposit(bob, 3_000, ts=now, ref=b"refund"),
        ],
    )


async def _operations(writer: _Writer, identity: Identity, other: Identity, now: int) -> None:
    me, agreement_id = identity.client_id, H(b"demo agreement")
    terms = [H(b"valve 7 opens at 06:00"), H(b"valve 7 opens at 07:00")]
    await writer.send(
        OPERATIONS,
        [
            agreement.define(agreement_id, 1, terms_hash=terms[0], parties=[me]),
            agreement.confirm(agreement_id, 1, me, "accept"),
            agreement.define(agreement_id, 2, terms_hash=terms[1], parties=[me, other.client_id]),
            agreement.confirm(agreement_id, 2, me, "accept"),
            access.grant(other.client_id, [stream_id_of(OPERATIONS)], expiry_time=now + _DAY, reason="night shift"),
            publication.publish(
                H(b"demo manual"),
                me,
                content_root=list_root([H(b"page 1"), H(b"page 2")]),
                content_form="list",
                content_class="manual",
                version="1.0.0",
            ),
            queryaudit.audit(me, "record/app/shop", "recorder", purpose_code="support"),
        ],
    )


async def _directory(writer: _Writer, identity: Identity, url: str, now: int) -> None:
    client = writer.client
    status = await client.status()
    rpc = discovery.overlay_id_of("rpc")
    hub = discovery.HubAdvert(
        hub_id=client.hub_id,
        hub_pk=client.pin.newest.hub_pk,
        profile_id=status.profiles[0].profile_id(),
        region="north",
        tags=("demo",),
        endpoints=(discovery.Endpoint(kind="http", url=url),),
        overlays=(rpc,),
        ttl_sec=_DAY,
        version=status.server_version,
    )
    overlay = discovery.OverlayAdvert(overlay_id=rpc, name="rpc", version="1", schemas=(), tags=(), ttl_sec=_DAY)
    services = [
        discovery.ServiceAdvert(
            service_id=discovery.service_id_of(identity.client_id, name),
            name=name,
            overlay_id=rpc,
            methods=methods,
            stream_ids=(stream_id_of(OPERATIONS),),
            regions=("north",),
            required_caps=(),
            tags=(),
            ttl_sec=_DAY,
        )
        for name, methods in (("valves", ("open", "shut")), ("meters", ("read",)))
    ]
    listings: tuple[list[discovery.Advert], ...] = ([hub], [overlay], [*services])
    for stream, adverts in zip(_DIRECTORY, listings, strict=True):
        await writer.send(stream, [discovery.advertise(advert) for advert in adverts])
    await writer.send(_DIRECTORY[2], [discovery.retire("service", services[1].service_id, "moved to another hub")])
