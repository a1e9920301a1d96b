"""`veen inbox`, and `veen send --to`: messages to one person, sealed to her prekey."""

import time
from typing import TYPE_CHECKING

import click

from veen.cli.people.common import allow_writing
from veen.cli.shared import options
from veen.cli.shared.command import CliSession, client_options
from veen.cli.shared.entries import COLUMNS, WIDTHS, cells_of, data_of
from veen.cli.shared.output import Mode, Output
from veen.cli.shared.people import Authors, card_of, contact_store, filter_entries
from veen.cli.shared.values import MOMENT

if TYPE_CHECKING:
    from veen.client.client import Client
    from veen.client.read.reading import Entry


def publish_due(session: CliSession) -> bool:
    """Publish a prekey in our inbox if the present one expires soon; return True if one was published."""
    from veen.client.errors import TokenExpired, TokenMissing
    from veen.client.identity.prekey import current
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
    from veen.core.schema_id import schema_id

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
