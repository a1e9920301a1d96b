"""Checks of the identity overlay: from keys to a verdict, and the effect of revocation."""

import time
from typing import Final

from veen.client.client import Client
from veen.client.identity.keyring import StreamKeys
from veen.overlays.framework.link import send
from veen.overlays.id import drafts, ids
from veen.overlays.id.auth import MessageFacts, RoleNeed, authenticate
from veen.overlays.id.delegation import delegate
from veen.overlays.id.drafts import Addressed
from veen.overlays.id.fold import IdFold
from veen.overlays.kv import put
from veen.products.selftest.suite import Check, World, events_of, expect, fold_over, same_state

_TRUSTING: Final = 2  # the number of a hub of our own


async def _say(client: Client, *messages: Addressed) -> None:
    for message in messages:
        await send(client, message.stream_id, message.draft)


def _keys(*stream_ids: bytes) -> list[StreamKeys]:
    return [StreamKeys.create(f"hex:{stream_id.hex()}") for stream_id in stream_ids]


async def _authentication(world: World) -> None:
    ann, acme = world.person("ann"), world.person("acme")
    principal, realm, now = ann.id_sign, ids.realm_id_of("selftest"), int(time.time())
    account, org_id = ids.ctx_id_of(principal.public, realm), ids.org_id_of(acme.id_sign.public)
    homes = (
        ids.principal_stream(principal.public),
        ids.ctx_stream(account, realm),
        ids.org_stream(org_id),
        ids.handle_stream(realm),
    )
    orders, keys = world.keys("orders"), _keys(*homes)
    # A hub takes tokens of issuers that it trusts, so this one is told of Ann.
    await world.hub(_TRUSTING, f"admission.trusted_issuers={principal.public.hex()}")
    phone = await world.client(ann, orders, *keys, hub=_TRUSTING)
    office = await world.client(acme, orders, *keys, hub=_TRUSTING)
    await _say(
        phone,
        drafts.principal(principal.public, created_at=now),
        drafts.device(principal.public, device_pk=ann.client_id, dh_pk=ann.dh_pk, label="phone", created_at=now),
        drafts.ctx_profile(account, realm, display_name="Ann", updated_at=now),
        drafts.handle(realm, "@ann", target_type="ctx", target_id=account, ts=now),
    )
    await _say(
        office,
        drafts.org_profile(org_id, display_name="Acme", created_at=now, updated_at=now),
        drafts.change_group(org_id, "staff", add=[account], updated_at=now),
        drafts.bind_role(org_id, "clerk", groups=[ids.group_id_of(org_id, "staff")], ts=now),
    )
    state = await same_state(IdFold(), keys, phone, office)
    expect(state.roles_of(account, org_id=org_id, realm_id=realm, as_of=now) == {"clerk"}, "a role through a group")
    means = state.resolve(realm, "@ann", as_of=now)
    expect(means is not None and means.target_id == account, "a handle leads to its account")

    token = delegate(
        principal, ann.client_id, state=state, as_of=now, ttl=3600, realms=[realm], streams=[orders.stream_id]
    )
    draft = put("order", 1)
    await phone.authorize(token)
    await phone.send(orders, draft.body, schema=draft.schema, capability=token)
    (event,) = await events_of(office, orders)
    facts = MessageFacts.of_event(event)
    needs = [RoleNeed(org_id=org_id, role="clerk")]
    verdict = authenticate(state, token, facts, realm_id=realm, roles=needs)
    expect(verdict.ok and verdict.ctx_id == account, f"refused: {[check.code for check in verdict.failed]}")

    (device,) = state.devices_of(principal.public)
    await _say(
        phone,
        drafts.revoke_by_principal(principal.public, device_id=device.device_id, reason="lost", ts=now),
        drafts.revoke_by_principal(principal.public, auth_ref=token.auth_ref(), reason="lost", ts=now),
    )
    after = await same_state(IdFold(), keys, phone, office)
    refused = authenticate(after, token, facts, realm_id=realm, roles=needs, as_of=now + 60)
    codes = {check.code for check in refused.failed}
    expect(codes == {"ID.AUTH_REVOKED", "ID.AUTH_DEVICE"}, f"after the revocation: {sorted(codes)}")


async def _authority_of_streams(world: World) -> None:
    ann, eve, now = world.person("ann"), world.person("eve"), int(time.time())
    keys = _keys(ids.principal_stream(eve.id_sign_pk))
    client = await world.client(eve, *keys)
    forged = drafts.principal(ann.id_sign_pk, created_at=now)
    await send(client, keys[0].stream_id, forged.draft)
    state = await fold_over(client, IdFold(), *keys)
    expect([issue.code for issue in state.issues] == ["ID.STREAM"], f"reported: {state.issues}")
    expect(not state.state.principals, "nobody speaks for another through a stream of their own")


IDENTITY_CHECKS: Final[dict[str, Check]] = {
    "id: from keys to a verdict, and from a revocation to a refusal": _authentication,
    "id: nobody speaks for another": _authority_of_streams,
}
