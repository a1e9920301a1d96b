"""`veen revoke`: revoke the right of a person to write or to read."""

import time
from typing import TYPE_CHECKING, Any

import click

from veen.cli.lazy import LazyGroup
from veen.cli.shared import options
from veen.cli.shared.command import CliSession, client_options
from veen.cli.shared.names import STREAM
from veen.cli.shared.output import Fail, Output
from veen.cli.shared.people import card_of, contact_store
from veen.cli.shared.values import SPAN

if TYPE_CHECKING:
    from veen.client.client import Client

revoke = LazyGroup(
    "revoke",
    help="""Revoke the right of a person to write or to read.

    A writer is refused by the hub, by token and client key. A reader is given no later generation of the keys of a
    stream; what she could read before she can still read.
    """,
    table={
        "publish": (
            "veen.products.policy.commands.group:revoke_publish",
            "Publish a revocation in the realm, as `policy revoke`.",
        ),
    },
)


@revoke.verb("writer", "Have the hub refuse a person's tokens and client keys.")
@click.argument("name")
@click.option("--ttl", type=SPAN, help="Time until the revocation expires. Default: never.")
@client_options
def writer(output: Output, session: CliSession, name: str, ttl: int | None) -> None:
    """Have the hub refuse what NAME (a contact, or a card) writes: the tokens that you issued, and the client keys.

    Needs the right to administer the hub (--token-file), and a hub with admission.kex1_plus. It counts from the next
    second on. Messages that were admitted before stay in the log.

    \b
    veen revoke writer bob --token-file admin.token
    """
    from veen.client.errors import HubRefused
    from veen.core.errors import ApiCode
    from veen.core.hashing import H
    from veen.core.objects.policies import MAX_POLICY_ITEMS, Revocation

    card, contact = card_of(session, name)
    client, now = session.client(), int(time.time())
    claimed = {card.client_id} if contact is None else set(contact.client_ids)
    # A card can name a key of somebody else: what others are known by is not revoked with it.
    others = _keys_of_others(session, card.id_sign_pk)
    client_ids = claimed - others
    with output.progress("looking for client keys that were announced in streams"):
        client_ids |= client.run(lambda client: _find_announced_keys(client, card.id_sign_pk))
    tokens = () if contact is None else contact.tokens
    # The identity itself, too: a hub that takes derived tokens refuses every key that it lets write (D-179).
    targets = [("client-id", client_id) for client_id in sorted({*client_ids, card.id_sign_pk})]
    for token in tokens:
        # By its first link too, so that a renewal of it is refused as well (D-173).
        targets += [("auth-ref", token.auth_ref()), ("cap-token", H(token.sig_chain[0]))]
    revocations = [
        Revocation(kind=kind, target=target, ts=now, ttl=ttl) for kind, target in targets[-MAX_POLICY_ITEMS:]
    ]
    try:
        records = client.run(lambda client: client.revoke(revocations))
    except HubRefused as exc:
        if exc.code == ApiCode.CONFLICT.code:
            raise Fail(
                exc.code,
                "this hub does not enforce revocations",
                exc.message,
                "its operator sets admission.kex1_plus = true; until then no key is refused",
            ) from exc
        raise
    gated = client.status().capability_gating
    data: dict[str, Any] = {
        "name": name,
        "client_keys": len(client_ids),
        "client_ids": sorted(key.hex() for key in client_ids),
        "tokens": len(tokens),
        "records": [record.seq for record in records],
        "capability_gating": gated,
    }
    output.result(data)
    for key in sorted(claimed & others):
        output.note(f"the card names {key.hex()}, which is known as somebody else's: it was not revoked")
    if not gated:
        output.note("this hub does not require tokens: with a new client key anyone can write again")
    if not tokens and gated:
        output.note("no token that you issued is known here; `veen cap status` of the issuer lists others")


def _keys_of_others(session: CliSession, id_sign_pk: bytes) -> set[bytes]:
    """Return the keys of the identity in use and of all contacts but one."""
    identity = session.keystore.identity
    keys = {identity.id_sign_pk, *(key.client_id for key in identity.client_keys)}
    for contact in contact_store(session).load().contacts:
        if contact.id_sign_pk != id_sign_pk:
            keys |= {contact.id_sign_pk, *contact.client_ids}
    return keys - {id_sign_pk} if identity.id_sign_pk != id_sign_pk else keys


async def _find_announced_keys(client: "Client", id_sign_pk: bytes) -> set[bytes]:
    """Return the client keys that an identity proved, in the streams that we know, by their logs up to now."""
    keys: set[bytes] = set()
    for stream_id in {entry.stream_id for entry in client.keyring.entries if entry.owner_pk is not None}:
        state = await client.key_state(stream_id)
        if state is not None:
            keys |= {row.client_id for row in state.authors if row.id_sign_pk == id_sign_pk}
    return keys


@revoke.verb("reader", "Exclude a reader from later keys of a stream.")
@click.argument("name")
@click.argument("stream", type=STREAM)
@click.option("--reason", default="", help=options.REASON)
@client_options
def reader(output: Output, session: CliSession, name: str, stream: str, reason: str) -> None:
    """Announce a new generation of the keys of STREAM to all its readers but NAME. Only the owner can.

    Writers seal to it as soon as they see it. What was sealed before, NAME can still open.

    \b
    veen revoke reader bob orders
    """
    from veen.cli.people.keys import rotate_keys, show_rotated

    show_rotated(output, session, stream, rotate_keys(session, stream, (name,), reason=reason))
