"""`veen contacts`: identity cards under names."""

import time
from typing import TYPE_CHECKING, Any

import click

from veen.cli.lazy import LazyGroup
from veen.cli.shared.command import CliSession, client_options, identity_options
from veen.cli.shared.files import text_of
from veen.cli.shared.names import STREAM
from veen.cli.shared.output import Output
from veen.cli.shared.people import ME, contact_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from veen.cli.shared.identities import Meaning
    from veen.client.identity.contacts import Contact


contacts = LazyGroup(
    "contacts",
    help="""People: identity cards under names.

    A card is one line of text, which its owner prints with `veen id card`. Entries of contacts show their names, and
    messages and invitations are sealed for them by name.
    """,
)


def _about(contact: "Contact") -> dict[str, Any]:
    card = contact.card
    return {
        "name": contact.name,
        "card_id": card.card_id,
        "card_name": card.name,
        "id_sign_pk": card.id_sign_pk.hex(),
        "client_id": card.client_id.hex(),
        "client_ids": len(contact.client_ids),
        "tokens": len(contact.tokens),
    }


@contacts.verb("add", "Keep an identity card under a name.")
@click.argument("name")
@click.argument("card")
@identity_options
def add(output: Output, session: CliSession, name: str, card: str) -> None:
    """Keep CARD (veen1…, "@FILE", or "-" for standard input) as NAME; a newer card of the same person is taken over.

    Compare the card id with its owner over another channel: whoever gave you the card decides whom NAME means.

    \b
    veen contacts add bob veen1…
    veen contacts add bob @bob.card
    """
    from veen.client.identity.card import IdentityCard

    parsed = IdentityCard.from_text(text_of(card))
    book = contact_store(session).change(lambda book: book.with_card(name, parsed, int(time.time())))
    data = _about(book.get(name))
    output.result(data)
    output.next(f"veen invite STREAM --for {name}")


@contacts.verb("list", "The people whose cards you have.")
@identity_options
def list_(output: Output, session: CliSession) -> None:
    """List the people whose cards you have, by name.

    \b
    veen contacts list
    """
    entries = [_about(contact) for contact in contact_store(session).load().contacts]
    columns = ("name", "card_id", "card_name", "client_id")
    rows = [[entry[column] for column in columns] for entry in entries]
    output.result({"contacts": entries}, lambda: output.table(columns, rows))
    if not entries:
        output.next("veen contacts add NAME CARD")


@contacts.verb("show", "Details of a contact.")
@click.argument("name")
@identity_options
def show(output: Output, session: CliSession, name: str) -> None:
    """Show the card of NAME, the client keys it was seen with, and the tokens that you issued.

    \b
    veen contacts show bob
    """
    contact = contact_store(session).load().get(name)
    prekey = contact.prekey
    data = {
        **_about(contact),
        "client_ids": [key.hex() for key in contact.client_ids],
        "tokens": [token.auth_ref().hex() for token in contact.tokens],
        "prekey_expires_at": None if prekey is None else prekey.expires_at,
        "card": contact.card.to_text(),
    }
    output.result(data)


@contacts.verb("rename", "Give a contact another name.")
@click.argument("name")
@click.argument("new_name")
@identity_options
def rename(output: Output, session: CliSession, name: str, new_name: str) -> None:
    """Call NAME by NEW_NAME from now on.

    \b
    veen contacts rename bob robert
    """
    book = contact_store(session).change(lambda book: book.rename(name, new_name))
    data = _about(book.get(new_name))
    output.result(data)


@contacts.verb("remove", "Forget a contact.")
@click.argument("name")
@identity_options
def remove(output: Output, session: CliSession, name: str) -> None:
    """Forget NAME. What NAME may read or write does not change: see `veen revoke`.

    \b
    veen contacts remove bob
    """
    contact_store(session).change(lambda book: book.without(name))
    output.result({"removed": name}, lambda: output.line(f"removed the contact {name}"))


@contacts.verb("announce", "Tell the members of a stream which client key is yours.")
@click.argument("stream", type=STREAM)
@client_options
def announce(output: Output, session: CliSession, stream: str) -> None:
    """Send your card to STREAM, sealed for its members: owners of your card then see your name at your entries.

    After `veen id rotate` the next `veen send` to a stream where you did this announces the new key by itself.

    \b
    veen contacts announce orders
    """
    from veen.cli.people.common import announce_card

    sent = announce_card(session, stream)
    output.result({"stream": stream, "seq": sent.seq, "client_id": session.keystore.identity.client_id.hex()})


@contacts.verb("who", "Owner of a key, identity or account.")
@click.argument("key", metavar="HEX")
@click.option("--stream", type=STREAM, help="Stream whose log is searched for proofs, too.")
@client_options
def who(output: Output, session: CliSession, key: str, stream: str | None) -> None:
    """Say whose key or id HEX is, by your contacts, your own keys and, with --stream, what authors proved in a stream.

    HEX is a client key, the long-term key of an identity, its key for seals, or an account.

    \b
    veen contacts who 8a88…
    veen contacts who 8a88… --stream orders
    """
    from veen.cli.shared.files import hex32
    from veen.cli.shared.identities import KnownKeys

    data = hex32(key)
    meanings = (
        _find_proof(session, stream, data) or KnownKeys(session).meanings(data) or _keys_of_mine(session, data)
    )  # what a log proves comes before what a card claims
    rows = [meaning._asdict() for meaning in meanings]
    output.result(
        {"key": data.hex(), "known": bool(rows), "meanings": rows}, lambda: output.table(("name", "kind"), meanings)
    )
    if not rows:
        output.note("neither a contact nor you" + ("" if stream else "; to ask the log of a stream: --stream STREAM"))


def _keys_of_mine(session: CliSession, key: bytes) -> "Sequence[Meaning]":
    """Return the meaning of a key for the identity in use: a retired client key, or the key of a worker."""
    from veen.cli.shared.identities import Meaning
    from veen.client.identity.workers import worker_client_ids

    identity = session.keystore.identity
    if identity.client_key_of(key) is not None:
        return [Meaning(ME, "retired client key")]
    return [Meaning(ME, "client key of a worker")] if key in worker_client_ids(session.home, identity) else []


def _find_proof(session: CliSession, stream: str | None, key: bytes) -> "Sequence[Meaning]":
    """Return the owner of a client key by proofs in a stream: a binding, or a card."""
    from veen.cli.shared.folding import fold_streams
    from veen.cli.shared.identities import KnownKeys, Meaning
    from veen.cli.shared.people import Authors
    from veen.overlays.speaks import SpeaksFold

    if stream is None:
        return []
    bindings = fold_streams(session, SpeaksFold(), [stream]).state.keys
    principals = [row.principal_pk for (_, client_id), row in bindings.items() if client_id == key]
    name = KnownKeys(session).name(principals[0]) if principals else Authors(session, stream).owner_of(key).name
    if name is None:
        return [Meaning(principal.hex(), "client key of this identity") for principal in principals]
    return [Meaning(name, "client key, proven in the stream")]
