"""`veen contacts`: identity cards under names.

The functions at the beginning serve all commands on shared streams: tokens for writing, announcements, file names.

`veen inbox`, and `veen send --to`: messages to one person, sealed to her prekey.
"""

import re
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import click

from veen.cli.lazy import LazyGroup
from veen.cli.shared import options
from veen.cli.shared.authority import authority
from veen.cli.shared.command import CliSession, client_options, identity_options
from veen.cli.shared.entries import COLUMNS, WIDTHS, cells_of, data_of
from veen.cli.shared.files import text_of
from veen.cli.shared.names import STREAM
from veen.cli.shared.output import Fail, Mode, Output
from veen.cli.shared.people import ME, Authors, card_of, contact_store, filter_entries
from veen.cli.shared.values import MOMENT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from veen.cli.shared.people import Meaning
    from veen.client.client import Client
    from veen.client.identity.contacts import Contact
    from veen.client.read.reading import Entry
    from veen.client.send.writing import Sent

T = TypeVar("T")


def with_authority(session: "CliSession", stream: str, work: "Callable[[Client], Coroutine[Any, Any, T]]") -> T:
    """Run work that writes to a stream, with the token that the hub asks for, if any."""
    client = session.client()
    token = authority(session, stream, None)
    if token is not None and client.keyring.for_stream(stream).stream_id in token.allow.stream_ids:
        client.authorize(token)
    return client.run(work)


def allow_writing(session: "CliSession", stream_id: bytes) -> None:
    """Show the hub a token for a stream id, if it asks for one. Raise TokenMissing if none is held."""
    client = session.client()
    if client.status().capability_gating:
        client.run(lambda inner: inner.token(stream_id))


def announce_card(session: "CliSession", stream: str) -> "Sent":
    """Announce the client key of this identity to the members of a stream."""
    from veen.client.generations import owning

    keys = session.client().keyring.for_stream(stream)
    if keys.owner_pk is None:
        raise Fail(
            "E.LOCAL.OWNER",
            f"{stream}: its owner is not known",
            "announcements are sealed for the members of a stream, whom its owner determines",
            f"veen keys owner {stream} NAME",
        )
    identity = session.keystore.identity
    return with_authority(session, stream, lambda client: owning.announce_card(client, identity, stream))


def announce_new_key(session: "CliSession", stream: str) -> None:
    """Announce the client key in use, if an earlier one of this identity was announced."""
    client, identity = session.client(), session.keystore.identity
    if client.keyring.owner_of(stream) is None:
        return
    state = client.run(lambda client: client.key_state(stream))
    own = {row.client_id for row in state.authors if row.id_sign_pk == identity.id_sign_pk} if state else set()
    if own and identity.client_id not in own:
        announce_card(session, stream)
        session.output.note(f"your client key is a new one: its card was announced in {stream}")


def file_name(text: str) -> str:
    """Return a file name made of the name of a stream or a person."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:64] or "stream"


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
    from veen.cli.shared.people import KnownKeys

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
    from veen.cli.shared.people import Meaning
    from veen.client.identity.workers import worker_client_ids

    identity = session.keystore.identity
    if identity.client_key_of(key) is not None:
        return [Meaning(ME, "retired client key")]
    return [Meaning(ME, "client key of a worker")] if key in worker_client_ids(session.home, identity) else []


def _find_proof(session: CliSession, stream: str | None, key: bytes) -> "Sequence[Meaning]":
    """Return the owner of a client key by proofs in a stream: a binding, or a card."""
    from veen.cli.shared.folding import fold_streams
    from veen.cli.shared.people import Authors, KnownKeys, Meaning
    from veen.overlays.speaks import SpeaksFold

    if stream is None:
        return []
    bindings = fold_streams(session, SpeaksFold(), [stream]).state.keys
    principals = [row.principal_pk for (_, client_id), row in bindings.items() if client_id == key]
    name = KnownKeys(session).name(principals[0]) if principals else Authors(session, stream).owner_of(key).name
    if name is None:
        return [Meaning(principal.hex(), "client key of this identity") for principal in principals]
    return [Meaning(name, "client key, proven in the stream")]


def publish_due(session: CliSession) -> bool:
    """Publish a prekey in our inbox if the present one expires soon; return True if one was published."""
    from veen.client.errors import TokenExpired, TokenMissing
    from veen.client.identity.identity import current
    from veen.client.personal import due_prekey, inbox_id, publish_prekey

    client, keystore, now = session.client(), session.keystore, int(time.time())
    due_prekey(keystore, now)
    live = current(keystore.secrets.own_prekeys, now)
    assert live is not None  # noqa: S101 - `due_prekey` made one
    try:
        allow_writing(session, inbox_id(keystore.identity.id_sign_pk))
    except (TokenMissing, TokenExpired) as exc:
        session.output.note(f"no prekey was published, so others cannot write to you here: {exc}")
        return False
    sent = client.run(lambda client: publish_prekey(client, keystore.identity, live.prekey))
    return sent is not None


@click.command()
@click.option("--since", type=MOMENT, help=options.SINCE)
@click.option("--author", metavar="NAME", help=options.AUTHOR)
@click.option("--grep", metavar="PATTERN", help=options.GREP)
@client_options
def inbox(output: Output, session: CliSession, since: int | None, author: str | None, grep: str | None) -> None:
    """Read the messages that others sent to you alone (veen send --to), and publish a new prekey if one is due.

    They stand in a stream of their own, your inbox, whose id follows from your card. Only you can open them: each is
    sealed to one of your prekeys, which you publish there and which are replaced once a week.

    \b
    veen inbox
    veen inbox --author bob --since -1d
    """
    from veen.client.personal import inbox_id, read_inbox

    published = publish_due(session)
    keystore = session.keystore

    async def gather(client: "Client") -> "list[Entry]":
        reading = read_inbox(client, keystore.identity, keystore.secrets.prekeys, since=since)
        return [entry async for entry in reading]

    with output.progress("reading your inbox"):
        entries = session.client().run(gather)
    authors = Authors(session, None)
    with output.records("entries", COLUMNS, WIDTHS) as records:
        for entry, who in filter_entries(iter(entries), authors, author, grep):
            data = data_of(entry) | who
            records.add(data, cells_of(entry, data, human=output.mode is Mode.HUMAN))
    if published:
        output.note(f"a prekey was published in your inbox, hex:{inbox_id(keystore.identity.id_sign_pk).hex()}")


def send_to(output: Output, session: CliSession, name: str, body: bytes, schema: str | None, *, to_card: bool) -> None:
    """Send a body to one person, and store her prekey for the next time."""
    from veen.cli.messages.send import describe_sent, show_sent
    from veen.client.personal import inbox_id, send_personal
    from veen.core.labels import schema_id

    card, contact = card_of(session, name)
    client = session.client()
    allow_writing(session, inbox_id(card.id_sign_pk))
    started = time.perf_counter()
    with output.progress(f"sending {len(body)} bytes to {name}"):
        sent, prekey = client.run(
            lambda client: send_personal(
                client,
                card,
                body,
                prekey=None if contact is None else contact.prekey,
                to_card=to_card,
                schema=None if schema is None else schema_id(schema),
            )
        )
    if contact is not None and prekey is not None:
        contact_store(session).change(lambda book: book.with_contact(book.get(contact.name).with_prekey(prekey)))
    stream = f"hex:{inbox_id(card.id_sign_pk).hex()}"
    data = {**describe_sent(stream, sent), "to": name, "sealed_to": "card" if prekey is None or to_card else "prekey"}
    show_sent(output, {**data, "seconds": round(time.perf_counter() - started, 4)}, sent)
